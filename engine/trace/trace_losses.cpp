// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_losses.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/trace/trace_parts.hpp"

namespace switchyard {
namespace {

/// Sums over the rows of one sequence in one layer.
struct SequenceSums {
  std::vector<double> p;
  std::vector<std::uint64_t> count;
  std::uint64_t rows = 0;
};

double squared_variation(const std::vector<double>& x) {
  const auto n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double squares = 0;
  for (const double v : x) {
    squares += (v - mean) * (v - mean);
  }
  return squares / (n - 1) / (mean * mean + 1e-10);
}

/// p[e] of one row over all E, in order of e. False when the row's logits are not numbers.
bool probabilities(const TraceHeader& h, const TracePart& part, std::uint64_t row, std::uint32_t l,
                   std::vector<float>& logits, std::vector<double>& p) {
  const std::uint64_t at = part.candidate_at(row, l);
  logits.assign(h.experts(), -std::numeric_limits<float>::infinity());
  for (std::uint32_t m = 0; m < h.candidates; ++m) {
    const std::uint16_t e = part.routing->candidates[at + m];
    if (e != kNoExpert) {
      logits[e] = part.routing->logit[at + m];
    }
  }
  gate_probabilities(h.gate, logits, part.routing->lse[part.layer_at(row, l)], p);
  return !std::isnan(p[0]);
}

/// Sums over the rows of one layer, part after part.
struct LayerSums {
  LayerSums(std::uint32_t experts, std::size_t sequence_count, bool complete)
      : p_sum(experts, 0.0),
        count(experts, 0.0),
        top(experts, 0.0),
        sequences(sequence_count),
        numbers(complete) {}
  std::vector<double> p_sum, count, top;
  std::vector<SequenceSums> sequences;
  double z = 0;
  std::uint64_t z_rows = 0;
  bool numbers;

  /// `all`: the rows' logits are of all experts.
  void part(const RoutingTrace& trace, const TracePart& part, std::uint32_t l, bool all,
            std::vector<float>& logits, std::vector<double>& p) {
    const TraceHeader& h = trace.header;
    const std::uint32_t experts = h.experts();
    for (std::uint64_t row = part.first; row < part.end; ++row) {
      if (trace.tokens.phase[row] == static_cast<std::uint8_t>(Phase::kWarmUp)) {
        continue;
      }
      const double lse = part.routing->lse[part.layer_at(row, l)];
      if (std::isfinite(lse)) {
        z += lse * lse;
        ++z_rows;
      }
      SequenceSums& s = sequences[trace.tokens.sequence[row]];
      if (s.p.empty()) {
        s.p.assign(experts, 0.0);
        s.count.assign(experts, 0);
      }
      ++s.rows;
      for (std::uint32_t j = 0; j < h.slots; ++j) {
        const std::uint16_t e = part.routing->first[part.slot_at(row, l, j)];
        if (e == kNoExpert) {
          continue;
        }
        count[e] += 1;
        ++s.count[e];
        if (j == 0) {
          top[e] += 1;
        }
      }
      if (numbers && all && !probabilities(h, part, row, l, logits, p)) {
        numbers = false;
      }
      if (numbers && all) {
        for (std::uint32_t e = 0; e < experts; ++e) {
          p_sum[e] += p[e];
          s.p[e] += p[e];
        }
      }
    }
  }
};

/// Sums of sequences that are held at once.
constexpr std::uint64_t kSumsInMemory = 256ULL << 20;

}  // namespace

TraceLosses trace_losses(const RoutingTrace& trace) {
  SWITCHYARD_ASSERT(trace.decisions_present, "replay() first");
  const TraceHeader& h = trace.header;
  const std::uint32_t experts = h.experts();
  const double e_count = experts;
  const double k = h.top_k();
  const bool all = h.candidates == experts;
  TraceLosses out;
  std::vector<std::uint64_t> rows;
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    if (trace.tokens.phase[row] != static_cast<std::uint8_t>(Phase::kWarmUp)) {
      rows.push_back(row);
    }
  }
  out.tokens = rows.size();
  const auto t_count = static_cast<double>(rows.size());

  std::vector<double> every_p(experts, 0.0);  // summed over layers
  std::vector<double> every_count(experts, 0.0);
  const bool summed = !all && !trace.gate_sum.empty();
  bool complete = (all || summed) && !rows.empty();  // every row has probabilities
  std::vector<float> logits;
  std::vector<double> p(experts);
  // Layers that are summed in one reading of a trace by parts.
  const std::uint64_t layer_bytes =
      std::max<std::uint64_t>(1, trace.sequences.size()) * (16ULL * experts + 64);
  const auto together = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      kSumsInMemory / layer_bytes, 1, std::max<std::uint32_t>(1, h.layer_count())));
  std::vector<LayerSums> sums;
  for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
    if (l % together == 0) {
      sums.assign(std::min(together, h.layer_count() - l),
                  LayerSums(experts, trace.sequences.size(), complete));
      for_each_part(trace, [&](const TracePart& part) {
        for (std::uint32_t i = 0; i < sums.size(); ++i) {
          sums[i].part(trace, part, l + i, all, logits, p);
        }
      });
    }
    for (std::size_t i = 0; summed && i < trace.sequences.size(); ++i) {
      SequenceSums& s = sums[l % together].sequences[i];
      for (std::uint32_t e = 0; e < experts && s.rows > 0; ++e) {
        s.p[e] = trace.gate_sum[(i * h.layer_count() + l) * experts + e];
        sums[l % together].p_sum[e] += s.p[e];
        sums[l % together].numbers = sums[l % together].numbers && !std::isnan(s.p[e]);
      }
    }
    const auto& [p_sum, count, top, sequences, z, z_rows, numbers_of] = sums[l % together];
    // As one after the other: a layer after one without probabilities has none.
    const bool numbers = numbers_of && complete;
    LayerLosses layer;
    layer.layer = h.layers[l];
    const double slots = std::accumulate(count.begin(), count.end(), 0.0);
    if (z_rows > 0) {
      layer.z = z / static_cast<double>(z_rows);
    }
    if (slots > 0) {
      layer.max_violation = *std::max_element(count.begin(), count.end()) * e_count / slots - 1.0;
      if (experts > 1) {
        layer.load_cv2 = squared_variation(count);
      }
    }
    if (numbers) {
      double switch_sum = 0;
      double megatron_sum = 0;
      for (std::uint32_t e = 0; e < experts; ++e) {
        switch_sum += top[e] * p_sum[e];
        megatron_sum += count[e] * p_sum[e];
        every_p[e] += p_sum[e];
        every_count[e] += count[e];
      }
      layer.switch_loss = e_count * switch_sum / (t_count * t_count);
      layer.megatron = e_count * megatron_sum / (k * t_count * t_count);
      if (experts > 1) {
        layer.importance_cv2 = squared_variation(p_sum);
      }
      double sequence_sum = 0;
      double sequence_count = 0;
      for (const SequenceSums& s : sequences) {
        if (s.rows == 0) {
          continue;
        }
        const auto n = static_cast<double>(s.rows);
        double inner = 0;
        for (std::uint32_t e = 0; e < experts; ++e) {
          inner += static_cast<double>(s.count[e]) * e_count / (k * n) * s.p[e] / n;
        }
        sequence_sum += inner;
        sequence_count += 1;
      }
      layer.deepseek_seq = sequence_sum / sequence_count;
    }
    complete = complete && numbers;
    out.layers.push_back(layer);
  }
  if (complete && h.layer_count() > 0) {
    const double n = t_count * h.layer_count();
    double sum = 0;
    for (std::uint32_t e = 0; e < experts; ++e) {
      sum += every_count[e] / n * every_p[e] / n;
    }
    out.hugging_face = e_count * sum;
  }
  return out;
}

}  // namespace switchyard
