// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/routing_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/model/gate.hpp"
#include "engine/routing/selection.hpp"
#include "engine/trace/experts_only.hpp"
#include "engine/trace/trace_parts.hpp"
#include "sim/loop/synthetic_routing.hpp"

namespace switchyard::sim {
namespace {

constexpr std::uint32_t kShift = 997;  // rows between re-used sequences and cycled layers

class TraceSource final : public RoutingSource {
 public:
  TraceSource(const scenario::Scenario& scenario, const RoutingTrace& trace)
      : trace_(trace),
        cycle_(scenario.workload.routing.layers == scenario::TraceLayers::kCycle),
        serves_(scenario.workload.serves()),
        seed_(scenario.run.seed),
        slots_(std::min(std::max(policy_slots(scenario.policy, trace.header.gate),
                                 policy_slots(trace.header.policy, trace.header.gate)),
                        trace.header.candidates)) {
    const std::string where = scenario.workload.routing.trace_path;
    const TraceHeader& h = trace.header;
    const std::uint64_t layers = scenario.model.num_moe_layers();
    if (h.experts() != scenario.model.num_experts || h.top_k() != scenario.model.top_k) {
      throw InputError(
          where,
          fmt::format("the trace has E = {}, k = {}; the model has E = {}, k = {}", h.experts(),
                      h.top_k(), scenario.model.num_experts, scenario.model.top_k),
          "use a trace of this model, or a model with the trace's experts");
    }
    if (!cycle_ && h.layer_count() != layers) {
      throw InputError(
          where, fmt::format("the trace has {} MoE layers, the model {}", h.layer_count(), layers),
          "write routing = { trace = …, layers = \"cycle\" } to re-use the trace's layers");
    }
    const bool decode = scenario.workload.kind == scenario::WorkloadKind::kDecode;
    for (const bool answer : {false, true}) {
      if (!serves_ && answer != decode) continue;
      Pool& pool = pools_[answer ? 1 : 0];
      const auto wanted = static_cast<std::uint8_t>(answer ? switchyard::Phase::kDecode
                                                           : switchyard::Phase::kPrefill);
      pool.of_sequence.resize(trace.sequences.size());
      for (std::uint64_t row = 0; row < trace.rows(); ++row) {
        if (trace.tokens.phase[row] == wanted) {
          pool.of_sequence[trace.tokens.sequence[row]].push_back(
              static_cast<std::uint32_t>(pool.rows.size()));
          pool.rows.push_back(row);
        }
      }
      pool.taken.assign(pool.rows.size(), 0);
      if (pool.rows.empty()) {
        throw InputError(where,
                         fmt::format("the trace has no {} token", answer ? "decode" : "prefill"),
                         answer    ? "make it with switchyard trace --max-new N"
                         : serves_ ? "arriving requests need the prompts' rows too"
                                   : "use workload.kind = \"decode\"");
      }
    }
    // Sequences that have rows of every phase that is needed.
    for (std::uint32_t q = 0; q < trace.sequences.size(); ++q) {
      bool all = true;
      for (const Pool& pool : pools_)
        all = all && (pool.rows.empty() || !pool.of_sequence[q].empty());
      if (all) sequences_.push_back(q);
    }
    if (sequences_.empty()) {
      throw InputError(where, "no sequence of the trace has both a prompt and an answer",
                       "make it with switchyard trace --max-new N");
    }
    description_ = cycle_ ? fmt::format("routing: cycled {} → {} from {}", h.layer_count(), layers,
                                        std::filesystem::path(where).filename().string())
                          : fmt::format("routing: exact from {}",
                                        std::filesystem::path(where).filename().string());
    if (serves_) {
      description_ += fmt::format(
          "; request b follows sequence b of its {}, later ones a sequence drawn with the seed",
          sequences_.size());
    }
  }

  void candidates(const StepTokens& tokens, std::uint32_t layer, Candidates& out,
                  Need need) override {
    const std::uint32_t in_trace = trace_.header.layer_count();
    const std::uint32_t l = layer % in_trace;
    const std::uint32_t m = trace_.header.candidates;
    const bool scored = need == Need::kScored;
    const bool entropies = m == trace_.header.experts() && !is_experts_only(trace_.header);
    const std::uint32_t width = need == Need::kChosen ? slots_ : m;
    out.tokens = static_cast<std::uint32_t>(tokens.size());
    out.width = width;
    out.nan_rows = 0;
    out.ids.resize(std::size_t{width} * tokens.size());
    out.logit.resize(scored ? out.ids.size() : 0);
    out.lse.resize(scored ? tokens.size() : 0);
    find_places(tokens);
    if (layer == 0) take_places();
    if (!scored && !entropies && trace_.parts == nullptr) {
      copy_ids(layer, l, width, out.ids);
      entropy_ = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    double sum = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const std::uint64_t row = row_of(tokens, layer, t, places_[t]);
      const TraceCell cell = trace_cell(trace_, row, l);
      std::copy_n(cell.candidates.begin(), width,
                  out.ids.begin() + static_cast<std::ptrdiff_t>(t * width));
      if (scored) {
        std::copy_n(cell.logit.begin(), m, out.logit.begin() + static_cast<std::ptrdiff_t>(t * m));
        out.lse[t] = cell.lse;
      }
      if (entropies) sum += entropy(trace_.layer_at(row, l), cell);
    }
    entropy_ = tokens.size() == 0 || !entropies
                   ? std::numeric_limits<double>::quiet_NaN()
                   : sum / std::log(2.0) / static_cast<double>(tokens.size());
  }

  [[nodiscard]] bool knows_all() const override { return false; }
  void all_candidates(const StepTokens&, std::uint32_t, std::uint32_t,
                      std::span<std::uint16_t>) override {
    SWITCHYARD_ASSERT(false, "a trace knows its candidates only");
  }
  [[nodiscard]] std::span<const float> logits() const override { return {}; }
  [[nodiscard]] std::optional<std::uint32_t> trace_sequence(std::uint32_t b) const override {
    return followed(b);
  }
  [[nodiscard]] std::optional<std::uint64_t> trace_row(const StepTokens& tokens,
                                                       std::uint32_t layer,
                                                       std::uint32_t t) const override {
    return row_of(tokens, layer, t, place_of(tokens, t));
  }
  [[nodiscard]] std::span<const float> gate_bias(std::uint32_t layer) const override {
    return trace_.bias_of(layer % trace_.header.layer_count());
  }
  [[nodiscard]] const GateSpec& gate() const override { return trace_.header.gate; }
  [[nodiscard]] double mean_entropy() const override { return entropy_; }
  [[nodiscard]] std::string description() const override { return description_; }
  [[nodiscard]] bool reused() const override { return reused_; }

 private:
  struct Pool {
    std::vector<std::uint64_t> rows;                      // in trace order
    std::vector<std::vector<std::uint32_t>> of_sequence;  // indices into rows
    std::vector<std::uint8_t> taken;
  };
  /// Of the tokens of a step, which its layers ask for again and again.
  void find_places(const StepTokens& tokens) {
    if (tokens.sequence == asked_.sequence && tokens.ordinal == asked_.ordinal &&
        tokens.answer == asked_.answer) {
      return;
    }
    asked_.sequence = tokens.sequence;
    asked_.ordinal = tokens.ordinal;
    asked_.answer = tokens.answer;
    places_.resize(tokens.size());
    for (std::size_t t = 0; t < tokens.size(); ++t) places_[t] = place_of(tokens, t);
  }
  void take_places() {
    for (std::size_t t = 0; t < places_.size(); ++t) {
      std::uint8_t& taken = pools_[asked_.answer[t]].taken[places_[t]];
      reused_ = reused_ || taken != 0;
      taken = 1;
    }
  }
  /// The first `width` candidates of the tokens of find_places(), from a trace in memory.
  void copy_ids(std::uint32_t layer, std::uint32_t l, std::uint32_t width,
                std::vector<std::uint16_t>& ids) const {
    const std::uint16_t* const from = trace_.routing.candidates.data() + trace_.candidate_at(0, l);
    const std::size_t each = trace_.candidate_at(1, 0);
    for (std::size_t t = 0; t < places_.size(); ++t) {
      const std::uint16_t* const row = from + row_of(asked_, layer, t, places_[t]) * each;
      std::uint16_t* const to = ids.data() + t * width;
      if (width == 8) {
        std::memcpy(to, row, 8 * sizeof *to);  // One load and one store.
      } else {
        std::copy_n(row, width, to);
      }
    }
  }
  /// Place of the token's row in its pool, before layers that are cycled shift it.
  [[nodiscard]] std::uint32_t place_of(const StepTokens& tokens, std::size_t t) const {
    const std::uint32_t b = tokens.sequence[t];
    const auto& list = pools_[tokens.answer[t]].of_sequence[followed(b)];
    const std::uint64_t lap = serves_ ? 0 : b / sequences_.size();
    return list[(lap * kShift + tokens.ordinal[t]) % list.size()];
  }
  [[nodiscard]] std::uint64_t row_of(const StepTokens& tokens, std::uint32_t layer, std::size_t t,
                                     std::uint32_t place) const {
    const auto& rows = pools_[tokens.answer[t]].rows;
    const std::uint64_t at =
        place + std::uint64_t{kShift} * (layer / trace_.header.layer_count());
    return rows[at < rows.size() ? at : at % rows.size()];
  }
  /// Sequence of the trace that simulated sequence b follows.
  [[nodiscard]] std::uint32_t followed(std::uint32_t b) const {
    const std::uint64_t n = sequences_.size();
    if (!serves_ || b < n) return sequences_[b % n];
    return sequences_[random_u64(seed_, random_purpose("trace sequence"), {b, 0, 0, 0}) % n];
  }
  /// Of one row and layer, in nats; all E logits are stored. Remembered, since a long run takes the
  /// same rows again and again.
  [[nodiscard]] double entropy(std::uint64_t place, const TraceCell& cell) {
    const std::uint32_t m = trace_.header.candidates;
    if (entropies_.empty()) {
      entropies_.assign(trace_.rows() * trace_.header.layer_count(), -1);
    }
    double& known = entropies_[place];
    if (known < 0) {
      double sum = 0;
      for (std::uint32_t i = 0; i < m; ++i) {
        const double log_p = static_cast<double>(cell.logit[i]) - static_cast<double>(cell.lse);
        if (std::isfinite(log_p)) sum -= std::exp(log_p) * log_p;
      }
      // Rounding may leave a row that is certain a little below zero.
      known = std::max(sum, 0.0);
    }
    return known;
  }

  const RoutingTrace& trace_;
  bool cycle_, serves_;
  bool reused_ = false;
  std::uint64_t seed_;
  double entropy_ = 0;
  std::uint32_t slots_;            // Of the scenario's policy or the trace's, at most M.
  std::array<Pool, 2> pools_;      // prompts, answers
  StepTokens asked_;               // sequence, ordinal and answer of the tokens of
  std::vector<std::uint32_t> places_;
  std::vector<double> entropies_;  // [row, layer] -1: not computed yet
  std::vector<std::uint32_t> sequences_;
  std::string description_;
};

class SyntheticSource final : public RoutingSource {
 public:
  explicit SyntheticSource(const scenario::Scenario& scenario)
      : gate_(model::gate_spec(scenario.model)),
        experts_(static_cast<std::uint32_t>(scenario.model.num_experts)),
        slots_(policy_slots(scenario.policy, gate_)),
        width_(stored_candidates(experts_, slots_)),
        many_domains_(scenario.workload.routing.domains > 1),
        law_(scenario.workload.routing, static_cast<std::uint32_t>(scenario.model.num_moe_layers()),
             experts_, scenario.run.seed),
        description_("routing: synthetic " + law_.description()) {
    // A synthetic law states probabilities; a group limit or a selection bias has no meaning for
    // it.
    if (gate_.topk_group < gate_.n_group) {
      description_ += fmt::format("; the model's limit to {} of {} groups does not apply to it",
                                  gate_.topk_group, gate_.n_group);
    }
    gate_.n_group = 1;
    gate_.topk_group = 1;
  }

  void candidates(const StepTokens& tokens, std::uint32_t layer, Candidates& out,
                  Need need) override {
    const auto count = static_cast<std::uint32_t>(tokens.size());
    const std::uint32_t width = need == Need::kChosen   ? slots_
                                : need == Need::kScored ? experts_
                                                        : width_;
    const std::uint32_t first = drawn_one_by_one();
    out.tokens = count;
    out.width = width;
    out.nan_rows = 0;
    out.ids.resize(std::size_t{count} * width);
    const bool scored = need == Need::kScored;
    logits_.resize(scored ? std::size_t{count} * experts_ : 0);
    out.logit.resize(scored ? out.ids.size() : 0);
    out.lse.resize(scored ? count : 0);
    double entropy = 0;
    domains_.resize(many_domains_ ? count : 0);
    for (std::size_t t = 0; t < domains_.size(); ++t) {
      domains_[t] = static_cast<std::uint16_t>(law_.domain_of(tokens.sequence[t]));
      entropy += law_.entropy(layer, domains_[t]);
    }
    if (!scored) {
      law_.draw_all(tokens.sequence, layer, tokens.position, domains_, first, width, out.ids);
    }
    for (std::size_t t = 0; scored && t < count; ++t) {
      const std::span<std::uint16_t> ids = std::span(out.ids).subspan(t * width, width);
      const std::span<float> row = std::span(logits_).subspan(t * experts_, experts_);
      law_.draw(tokens.sequence[t], layer, tokens.position[t], first, ids, row);
      for (std::uint32_t r = 0; r < width; ++r) out.logit[t * width + r] = row[ids[r]];
      out.lse[t] = log_sum_exp(row);
    }
    entropy_ = count == 0      ? std::numeric_limits<double>::quiet_NaN()
               : many_domains_ ? entropy / count
                               : law_.entropy(layer, 0);
  }
  [[nodiscard]] bool knows_all() const override { return true; }
  void all_candidates(const StepTokens& tokens, std::uint32_t layer, std::uint32_t t,
                      std::span<std::uint16_t> ids) override {
    law_.draw(tokens.sequence[t], layer, tokens.position[t], drawn_one_by_one(), ids);
  }
  [[nodiscard]] std::span<const float> logits() const override { return logits_; }
  [[nodiscard]] std::optional<std::uint32_t> trace_sequence(std::uint32_t) const override {
    return std::nullopt;
  }
  [[nodiscard]] std::span<const float> gate_bias(std::uint32_t) const override { return {}; }
  [[nodiscard]] const GateSpec& gate() const override { return gate_; }
  [[nodiscard]] double mean_entropy() const override { return entropy_; }
  [[nodiscard]] std::string description() const override { return description_; }
  [[nodiscard]] bool reused() const override { return false; }

 private:
  /// One after the other is fastest for few of many; the rest of all experts, by their clocks.
  [[nodiscard]] std::uint32_t drawn_one_by_one() const {
    return width_ == experts_ ? slots_ : width_;
  }

  GateSpec gate_;
  std::uint32_t experts_, slots_, width_;
  bool many_domains_;
  SyntheticRouting law_;
  double entropy_ = 0;
  std::vector<float> logits_;           // [T][E] of a call that asked for scores.
  std::vector<std::uint16_t> domains_;  // [T] of the call's tokens, if there are several.
  std::string description_;
};

}  // namespace

std::unique_ptr<RoutingSource> make_routing_source(const scenario::Scenario& scenario,
                                                   const RoutingTrace* trace) {
  if (scenario.workload.routing.source == scenario::RoutingSource::kTrace) {
    SWITCHYARD_ASSERT(trace != nullptr, "a trace scenario needs its trace");
    return std::make_unique<TraceSource>(scenario, *trace);
  }
  return std::make_unique<SyntheticSource>(scenario);
}

}  // namespace switchyard::sim
