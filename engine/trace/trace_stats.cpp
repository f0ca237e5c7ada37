// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_stats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/trace/trace_parts.hpp"

namespace switchyard {
namespace {
constexpr std::uint64_t kNoRow = ~0ULL;

std::optional<double> variation(const std::vector<std::uint64_t>& load) {
  const auto n = static_cast<double>(load.size());
  const double sum =
      static_cast<double>(std::accumulate(load.begin(), load.end(), std::uint64_t{0}));
  if (sum == 0) {
    return std::nullopt;
  }
  const double mean = sum / n;
  double squares = 0;
  for (const std::uint64_t x : load) {
    const double d = static_cast<double>(x) - mean;
    squares += d * d;
  }
  return std::sqrt(squares / n) / mean;
}

/// -sum p log2 p of the softmax over all E. A logit of -inf has p = 0 and adds nothing.
double entropy_bits(std::span<const float> logit, float lse) {
  double h = 0;
  for (const float z : logit) {
    const double log_p = static_cast<double>(z) - static_cast<double>(lse);
    const double p = std::exp(log_p);
    if (p > 0) {
      h -= p * log_p;
    }
  }
  return std::max(h, 0.0) / std::log(2.0);
}

/// The ceil(0.95 n)-th smallest of n >= 1 values.
double nearest_p95(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() * 95 + 99) / 100 - 1];
}

/// One layer, row by row, part after part.
class LayerScan {
 public:
  LayerScan(const RoutingTrace& trace, std::uint32_t l, std::uint64_t window)
      : trace_(trace), l_(l), window_(window) {
    out_.layer = trace.header.layers[l];
    out_.load.assign(trace.header.experts(), 0);
    window_load_ = out_.load;
    previous_.assign(trace.sequences.size(), kNoRow);
    previous_first_.assign(trace.sequences.size() * trace.header.slots, kNoExpert);
  }

  void part(const TracePart& p) {
    for (std::uint64_t row = p.first; row < p.end; ++row) {
      if (row > 0 && trace_.tokens.step[row] != trace_.tokens.step[row - 1]) {
        end_step();
      }
      if (trace_.tokens.phase[row] != static_cast<std::uint8_t>(Phase::kWarmUp)) {
        slots(p, row);
        gate(p, row);
        neighbours(p, row);
      }
    }
  }
  LayerStats finish() {
    end_step();
    close();
    return std::move(out_);
  }

 private:
  void slots(const TracePart& p, std::uint64_t row) {
    const TraceRouting& r = *p.routing;
    for (std::uint32_t j = 0; j < trace_.header.slots; ++j) {
      const std::uint64_t at = p.slot_at(row, l_, j);
      const auto outcome = static_cast<SlotOutcome>(r.outcome[at]);
      if (outcome == SlotOutcome::kNoSlot) {
        continue;
      }
      ++out_.assignments;
      out_.kept += outcome == SlotOutcome::kKept ? 1U : 0U;
      out_.rerouted += outcome == SlotOutcome::kRerouted ? 1U : 0U;
      out_.queued += outcome == SlotOutcome::kQueued ? 1U : 0U;
      out_.dropped += outcome == SlotOutcome::kDropped ? 1U : 0U;
      const std::uint16_t e = r.chosen[at];
      if (e == kNoExpert) {
        continue;
      }
      ids_ += 1;
      id_sum_ += e;
      id_squares_ += std::uint64_t{e} * e;
      if (outcome != SlotOutcome::kQueued) {
        ++out_.load[e];
        ++window_load_[e];
      }
    }
    if (++window_rows_ == window_) {
      if (const auto cv = variation(window_load_)) {
        cv_sum_ += *cv;
        ++windows_;
      }
      std::fill(window_load_.begin(), window_load_.end(), 0U);
      window_rows_ = 0;
    }
  }

  void gate(const TracePart& p, std::uint64_t row) {
    const TraceHeader& h = trace_.header;
    const float lse = p.routing->lse[p.layer_at(row, l_)];
    if (h.candidates == h.experts() && std::isfinite(lse)) {
      entropy_.push_back(entropy_bits(
          std::span<const float>(p.routing->logit).subspan(p.candidate_at(row, l_), h.candidates),
          lse));
      step_entropy_ += entropy_.back();
      ++step_rows_;
    }
  }

  void neighbours(const TracePart& p, std::uint64_t row) {
    const TraceTokens& t = trace_.tokens;
    const std::uint64_t before = std::exchange(previous_[t.sequence[row]], row);
    const std::uint32_t k = trace_.header.slots;
    // The row before may lie in a part that is gone.
    std::uint16_t* a = previous_first_.data() + std::size_t{t.sequence[row]} * k;
    const std::uint16_t* b = p.routing->first.data() + p.slot_at(row, l_);
    if (before != kNoRow && t.position[row] == t.position[before] + 1) {
      pair(a, b, k);
    }
    std::copy_n(b, k, a);
  }
  void pair(const std::uint16_t* a, const std::uint16_t* b, std::uint32_t k) {
    ++pairs_;
    switches_ += a[0] != b[0] ? 1U : 0U;
    std::uint64_t common = 0;
    for (std::uint32_t j = 0; j < k; ++j) {
      if (b[j] != kNoExpert) {
        ++wanted_;
        common += std::find(a, a + k, b[j]) != a + k ? 1U : 0U;
      }
    }
    common_ += common;
  }

  void end_step() {
    if (ids_ > 0) {
      const auto n = static_cast<double>(ids_);
      const double mean = static_cast<double>(id_sum_) / n;
      variance_sum_ += static_cast<double>(id_squares_) / n - mean * mean;
      ++variance_steps_;
    }
    ids_ = id_sum_ = id_squares_ = 0;
    if (step_rows_ > 0) {
      batch_entropy_.push_back(step_entropy_ / static_cast<double>(step_rows_));
    }
    step_entropy_ = 0;
    step_rows_ = 0;
  }

  void close() {
    const std::uint64_t sum = std::accumulate(out_.load.begin(), out_.load.end(), std::uint64_t{0});
    if (windows_ > 0) {
      out_.load_cv = cv_sum_ / static_cast<double>(windows_);
    }
    if (sum > 0) {
      const auto total = static_cast<double>(sum);
      std::vector<std::uint64_t> sorted = out_.load;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      std::uint64_t busiest = 0;
      for (std::size_t i = 0; i < std::min<std::size_t>(3, sorted.size()); ++i) {
        busiest += sorted[i];
      }
      out_.top3_share = static_cast<double>(busiest) / total;
      out_.imbalance = static_cast<double>(sorted[0]) * static_cast<double>(sorted.size()) / total;
      double h = 0;
      for (const std::uint64_t x : out_.load) {
        if (x > 0) {
          const double p = static_cast<double>(x) / total;
          h -= p * std::log2(p);
        }
      }
      out_.entropy_load = std::max(h, 0.0);
    }
    if (!entropy_.empty()) {
      out_.entropy_gate_mean = std::accumulate(entropy_.begin(), entropy_.end(), 0.0) /
                               static_cast<double>(entropy_.size());
      out_.entropy_gate_p95 = nearest_p95(entropy_);
      out_.entropy_gate_batch_p95 = nearest_p95(batch_entropy_);
    }
    if (pairs_ > 0) {
      const auto n = static_cast<double>(pairs_);
      out_.switch_rate = static_cast<double>(switches_) / n;
      if (wanted_ > 0) {
        out_.set_switch = 1.0 - static_cast<double>(common_) / static_cast<double>(wanted_);
      }
    }
    if (variance_steps_ > 0) {
      out_.index_variance = variance_sum_ / static_cast<double>(variance_steps_);
    }
  }

  const RoutingTrace& trace_;
  std::uint32_t l_;
  std::uint64_t window_;  // >= 1 and <= the rows counted, unless there are none.
  LayerStats out_;
  std::vector<std::uint64_t> window_load_;
  std::uint64_t window_rows_ = 0, windows_ = 0;
  double cv_sum_ = 0;
  std::vector<double> entropy_, batch_entropy_;  // by token, by step
  double step_entropy_ = 0;
  std::uint64_t step_rows_ = 0;
  std::vector<std::uint64_t> previous_;        // [sequence] last row seen.
  std::vector<std::uint16_t> previous_first_;  // [sequence][K] its choices.
  std::uint64_t pairs_ = 0, switches_ = 0, common_ = 0, wanted_ = 0;
  std::uint64_t ids_ = 0, id_sum_ = 0, id_squares_ = 0, variance_steps_ = 0;
  double variance_sum_ = 0;
};

std::optional<double> mean_over(const std::vector<LayerStats>& layers,
                                std::optional<double> LayerStats::*field) {
  double sum = 0;
  std::size_t n = 0;
  for (const LayerStats& layer : layers) {
    if (const std::optional<double>& value = layer.*field) {
      sum += *value;
      ++n;
    }
  }
  return n == 0 ? std::nullopt : std::optional(sum / static_cast<double>(n));
}

std::optional<double> most_over(const std::vector<LayerStats>& layers,
                                std::optional<double> LayerStats::*field) {
  std::optional<double> most;
  for (const LayerStats& layer : layers) {
    if (const std::optional<double>& value = layer.*field; value && (!most || *value > *most)) {
      most = value;
    }
  }
  return most;
}
}  // namespace

TraceStats trace_stats(const RoutingTrace& trace, std::uint64_t window) {
  SWITCHYARD_ASSERT(trace.decisions_present, "replay() first");
  TraceStats stats;
  for (const std::uint8_t phase : trace.tokens.phase) {
    stats.prefill += phase == static_cast<std::uint8_t>(Phase::kPrefill) ? 1U : 0U;
    stats.decode += phase == static_cast<std::uint8_t>(Phase::kDecode) ? 1U : 0U;
    stats.warm_up += phase == static_cast<std::uint8_t>(Phase::kWarmUp) ? 1U : 0U;
  }
  stats.tokens = stats.prefill + stats.decode;
  stats.window = window == 0 || window > stats.tokens ? stats.tokens : window;
  const double experts = trace.header.experts();
  const double share = trace.header.top_k() / experts;
  stats.top3_fair = std::min(3.0, experts) / experts;
  if (stats.window > 0) {
    stats.load_cv_floor = std::sqrt((1.0 - share) / (static_cast<double>(stats.window) * share));
  }
  std::vector<LayerScan> scans;
  for (std::uint32_t l = 0; l < trace.header.layer_count(); ++l) {
    scans.emplace_back(trace, l, stats.window);
  }
  for_each_part(trace, [&scans](const TracePart& p) {
    for (LayerScan& scan : scans) {
      scan.part(p);
    }
  });
  for (LayerScan& scan : scans) {
    stats.layers.push_back(scan.finish());
    const LayerStats& layer = stats.layers.back();
    stats.assignments += layer.assignments;
    stats.kept += layer.kept;
    stats.rerouted += layer.rerouted;
    stats.queued += layer.queued;
    stats.dropped += layer.dropped;
  }
  stats.load_cv = mean_over(stats.layers, &LayerStats::load_cv);
  stats.top3_share = mean_over(stats.layers, &LayerStats::top3_share);
  stats.top3_share_max = most_over(stats.layers, &LayerStats::top3_share);
  stats.imbalance = mean_over(stats.layers, &LayerStats::imbalance);
  stats.imbalance_max = most_over(stats.layers, &LayerStats::imbalance);
  stats.entropy_load = mean_over(stats.layers, &LayerStats::entropy_load);
  stats.entropy_gate_mean = mean_over(stats.layers, &LayerStats::entropy_gate_mean);
  stats.entropy_gate_p95 = mean_over(stats.layers, &LayerStats::entropy_gate_p95);
  stats.entropy_gate_batch_p95 = mean_over(stats.layers, &LayerStats::entropy_gate_batch_p95);
  stats.switch_rate = mean_over(stats.layers, &LayerStats::switch_rate);
  stats.set_switch = mean_over(stats.layers, &LayerStats::set_switch);
  stats.index_variance = mean_over(stats.layers, &LayerStats::index_variance);
  return stats;
}

}  // namespace switchyard
