// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string_view>

#include "engine/base/error.hpp"
#include "engine/h5/file_reader.hpp"
#include "engine/h5/file_writer.hpp"
#include "engine/trace/trace_parts.hpp"

namespace switchyard {
namespace {
using h5::ElementType;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t kMostLayers = 4096;
constexpr std::uint32_t kMostHidden = 1U << 20;
constexpr std::uint64_t kNoRow = ~0ULL;

h5::SchemaTable make_schema() {
  h5::SchemaTable t;
  t.kind = h5::FileKind::kTrace;
  t.version = 1;
  t.title = "Routing trace, version 1";
  t.introduction =
      "What a router saw and decided, token by token and layer by layer. T token rows, L MoE "
      "layers, "
      "E experts, M stored candidates (all E when E ≤ 64, else at least k + 2), K slots (the "
      "largest k "
      "of any token), S sequences, H width of the router's input.\n\n"
      "Rows are grouped in steps 0, 1, 2, … without gaps; inside a step they ascend by (arrival of "
      "the "
      "sequence, position). From → to of a reroute is first → chosen. The four datasets `first`, "
      "`chosen`, `weights`, `outcome` may be absent together; replay with the recorded policy and "
      "seed "
      "gives exactly them back.";
  const auto add = [&t](std::string name, std::string shape, ElementType type, std::string unit,
                        std::string meaning, bool optional = false) {
    t.entries.push_back(
        {std::move(name), std::move(shape), type, std::move(unit), std::move(meaning), optional});
  };
  add("@schema", "", ElementType::kU64, "", "Schema version, as in the user block");
  add("@model", "", ElementType::kText, "", "Model id");
  add("@experts", "", ElementType::kU64, "", "E, routed experts per MoE layer");
  add("@top_k", "", ElementType::kU64, "", "k, experts per token");
  add("@slots", "", ElementType::kU64, "", "K, slots per token");
  add("@candidates", "", ElementType::kU64, "", "M, stored candidates per token");
  add("@gate", "", ElementType::kText, "", "Gate of the MoE layers, key=value");
  add("@policy", "", ElementType::kText, "", "Routing policy in force, key=value");
  add("@seed", "", ElementType::kU64, "", "Seed of every random choice");
  add("@config_hash", "", ElementType::kText, "", "Hash of the model's configuration, hex");
  add("@weight_hash", "", ElementType::kText, "",
      "XXH3 over name, dtype, shape and bytes of the weights, hex");
  add("@engine", "", ElementType::kText, "", "Program and version that made the trace");
  add("@precision", "", ElementType::kText, "",
      "Precision of the forward pass; \"experts only, no logits\": another program's dump");
  add("@truncated_slots", "", ElementType::kU64, "slots",
      "Slots that wanted an expert outside the stored M");
  add("@nan_rows", "", ElementType::kU64, "rows", "Row × layer with a NaN or +inf logit");
  add("@minus_inf_rows", "", ElementType::kU64, "rows",
      "Row × layer with a stored logit of -inf (how NaN and +inf are stored)");
  add("layer/number", "L", ElementType::kU32, "",
      "Number of the MoE layer in the model, ascending");
  add("sequence/prompt_length", "S", ElementType::kU32, "tokens", "Length of the prompt");
  add("sequence/arrival", "S", ElementType::kU32, "", "Order of arrival, different for each");
  add("sequence/domain", "S", ElementType::kText, "", "Domain of the prompt, may be empty");
  add("sequence/name", "S", ElementType::kText, "", "Id of the prompt, may be empty");
  add("sequence/expert", "S", ElementType::kU16, "",
      "Expert that the request names, 65535 none; absent when no request names one", true);
  add("sequence/text_end", "S", ElementType::kU64, "bytes",
      "End of the prompt's text in prompt_text; it begins where the one before ends", true);
  add("prompt_text", "B", ElementType::kU8, "",
      "UTF-8 of all prompts, one after the other; absent when not recorded", true);
  add("token/sequence", "T", ElementType::kU32, "", "Row of the sequence table");
  add("token/position", "T", ElementType::kU32, "", "Position in its sequence, from 0");
  add("token/id", "T", ElementType::kU32, "", "Vocabulary id of the token");
  add("token/phase", "T", ElementType::kU8, "",
      "0 prefill, 1 decode, 2 warm-up (not in statistics)");
  add("token/step", "T", ElementType::kU32, "", "Engine step");
  add("gate_bias", "L,E", ElementType::kF32, "logits",
      "Bias of the selection; absent when the family has none", true);
  add("gate_sum", "S,L,E", ElementType::kF64, "",
      "The gate's probabilities over all E (a sigmoid gate's scores divided by their sum), summed "
      "over the sequence's rows but warm-up; NaN where a row has none. What balancing losses need "
      "when M < E",
      true);
  add("candidates", "T,L,M", ElementType::kU16, "",
      "Experts by the family's own selection score (bias and group mask applied, no policy), best "
      "first; 65535 ends a row early");
  add("logit", "T,L,M", ElementType::kF32, "logits", "Raw gate logits of the candidates");
  add("lse", "T,L", ElementType::kF32, "logits", "Log-sum-exp of the logits of all E experts");
  add("first", "T,L,K", ElementType::kU16, "",
      "Choice after pipeline step 10, before capacity; 65535 none", true);
  add("chosen", "T,L,K", ElementType::kU16, "", "Expert that runs; 65535 none", true);
  add("weights", "T,L,K", ElementType::kF32, "", "Weight of the expert's output; 0 where none runs",
      true);
  add("outcome", "T,L,K", ElementType::kU8, "",
      "0 no slot, 1 kept, 2 rerouted, 3 queued, 4 dropped", true);
  add("router_input", "T,L,H", ElementType::kU16, "", "Input of the router, bfloat16 bits", true);
  return t;
}

bool hex_text(const std::string& text) {
  return (text.size() == 16 || text.size() == 32) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::uint64_t count_minus_inf(std::span<const float> logit, std::uint64_t rows,
                              std::uint32_t width) {
  std::uint64_t n = 0;
  for (std::uint64_t r = 0; r < rows; ++r) {
    const auto row = logit.subspan(r * width, width);
    n += std::find(row.begin(), row.end(), kMinusInfinity) != row.end() ? 1U : 0U;
  }
  return n;
}

/// Range checks of what was read; each names the dataset and the token row.
class Validator {
 public:
  Validator(const h5::FileReader& file, const RoutingTrace& trace)
      : file_(file),
        trace_(trace),
        seen_(trace.header.experts(), kNoRow),
        first_seen_(seen_),
        chosen_seen_(seen_) {}

  /// All but the routing.
  void tokens() const {
    sequences();
    rows();
    bias();
    gate_sum();
  }
  /// Routing of the rows that begin with `first`; parts come in order.
  void part(const TraceRouting& routing, std::uint64_t first) {
    const std::uint64_t end =
        first +
        (trace_.header.layer_count() == 0 ? 0 : routing.lse.size() / trace_.header.layer_count());
    candidates(routing, first, end);
    if (trace_.decisions_present) {
      decisions(routing, first, end);
    }
  }
  /// After the last part.
  void end() const {
    if (minus_inf_ != trace_.minus_inf_rows) {
      file_.fail("logit", fmt::format("{} rows have a logit of -inf, the attribute minus_inf_rows "
                                      "says {}",
                                      minus_inf_, trace_.minus_inf_rows));
    }
  }

 private:
  [[noreturn]] void fail(std::string_view dataset, std::uint64_t row, std::uint32_t l,
                         const std::string& message) const {
    file_.fail(dataset, row, fmt::format("layer {}: {}", trace_.header.layers[l], message));
  }

  void sequences() const {
    std::set<std::uint32_t> arrivals;
    for (std::size_t s = 0; s < trace_.sequences.size(); ++s) {
      const TraceSequence& sequence = trace_.sequences[s];
      if (sequence.prompt_length == 0) {
        file_.fail("sequence/prompt_length", s, "a prompt has at least one token");
      }
      if (!arrivals.insert(sequence.arrival).second) {
        file_.fail("sequence/arrival", s, fmt::format("arrival {} stands twice", sequence.arrival));
      }
    }
  }

  void rows() const {
    const TraceTokens& t = trace_.tokens;
    for (std::size_t r = 0; r < t.size(); ++r) {
      if (t.sequence[r] >= trace_.sequences.size()) {
        file_.fail(
            "token/sequence", r,
            fmt::format("sequence {} of a table of {}", t.sequence[r], trace_.sequences.size()));
      }
      const TraceSequence& sequence = trace_.sequences[t.sequence[r]];
      if (t.phase[r] > static_cast<std::uint8_t>(Phase::kWarmUp)) {
        file_.fail("token/phase", r,
                   fmt::format("phase {}; 0 prefill, 1 decode, 2 warm-up", t.phase[r]));
      }
      if (t.phase[r] == static_cast<std::uint8_t>(Phase::kDecode) &&
          t.position[r] < sequence.prompt_length) {
        file_.fail("token/position", r,
                   fmt::format("a decode row at position {} of a prompt of {} tokens",
                               t.position[r], sequence.prompt_length));
      }
      const std::uint32_t before = r == 0 ? 0 : t.step[r - 1];
      if (t.step[r] < before || t.step[r] > before + (r == 0 ? 0 : 1)) {
        file_.fail("token/step", r,
                   r == 0 ? fmt::format("the first step is {}, not 0", t.step[r])
                          : fmt::format("step {} after step {}", t.step[r], before));
      }
      if (r > 0 && t.step[r] == before) {
        const auto key = [&](std::size_t i) {
          return std::pair(trace_.sequences[t.sequence[i]].arrival, t.position[i]);
        };
        if (key(r) <= key(r - 1)) {
          file_.fail("token/position", r,
                     "rows of a step ascend by (arrival of the sequence, position)");
        }
      }
    }
  }

  void bias() const {
    for (std::size_t i = 0; i < trace_.gate_bias.size(); ++i) {
      if (!std::isfinite(trace_.gate_bias[i])) {
        file_.fail("gate_bias", i / trace_.header.experts(), "a bias that is not finite");
      }
    }
  }

  /// Each row's probabilities add up to 1.
  void gate_sum() const {
    if (trace_.gate_sum.empty()) {
      return;
    }
    const TraceHeader& h = trace_.header;
    std::vector<double> rows(trace_.sequences.size(), 0.0);
    for (std::size_t r = 0; r < trace_.tokens.size(); ++r) {
      if (trace_.tokens.phase[r] != static_cast<std::uint8_t>(Phase::kWarmUp)) {
        rows[trace_.tokens.sequence[r]] += 1;
      }
    }
    const std::size_t width = std::size_t{h.layer_count()} * h.experts();
    for (std::size_t s = 0; s < rows.size(); ++s) {
      for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
        double sum = 0;
        bool negative = false;
        for (std::uint32_t e = 0; e < h.experts(); ++e) {
          const double p = trace_.gate_sum[s * width + std::size_t{l} * h.experts() + e];
          sum += p;
          negative = negative || p < 0;
        }
        if (negative || (!std::isnan(sum) && !(std::abs(sum - rows[s]) <= 1e-4 * rows[s]))) {
          fail("gate_sum", s, l,
               fmt::format("probabilities of {} rows that add up to {}", rows[s], sum));
        }
      }
    }
  }

  void candidates(const TraceRouting& r, std::uint64_t begin, std::uint64_t end) {
    const TraceHeader& h = trace_.header;
    const bool by_logit = !h.gate.grouped() && trace_.gate_bias.empty();
    for (std::uint64_t row = begin; row < end; ++row) {
      for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
        const std::uint64_t cell = trace_.layer_at(row, l);
        const std::uint64_t at = trace_.candidate_at(row - begin, l);
        bool flagged = false;
        bool ended = false;
        for (std::uint32_t m = 0; m < h.candidates; ++m) {
          const std::uint16_t e = r.candidates[at + m];
          const float z = r.logit[at + m];
          if (std::isnan(z) || z == -kMinusInfinity) {
            fail("logit", row, l, "a logit that is NaN or +inf; they are stored as -inf");
          }
          flagged = flagged || z == kMinusInfinity;
          if (e == kNoExpert) {
            if (m == 0) {
              fail("candidates", row, l, "no candidate at all");
            }
            ended = true;
            continue;
          }
          if (e >= h.experts()) {
            fail("candidates", row, l, fmt::format("expert {} of {}", e, h.experts()));
          }
          if (ended) {
            fail("candidates", row, l, "an expert after the end of the row");
          }
          if (seen_[e] == cell) {
            fail("candidates", row, l, fmt::format("expert {} stands twice", e));
          }
          seen_[e] = cell;
          if (by_logit && m > 0 && z > r.logit[at + m - 1]) {
            fail("logit", row, l, "the candidates are not best first");
          }
        }
        minus_inf_ += flagged ? 1U : 0U;
        const float lse = r.lse[trace_.layer_at(row - begin, l)];
        if (!std::isfinite(lse) && !(lse == kMinusInfinity && flagged)) {
          fail("lse", row, l, "not finite");
        }
      }
    }
  }

  void decisions(const TraceRouting& r, std::uint64_t begin, std::uint64_t end) {
    const TraceHeader& h = trace_.header;
    for (std::uint64_t row = begin; row < end; ++row) {
      for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
        const std::uint64_t cell = trace_.layer_at(row, l);
        for (std::uint32_t j = 0; j < h.slots; ++j) {
          const std::uint64_t at = trace_.slot_at(row - begin, l, j);
          id("first", r.first[at], row, l, cell, first_seen_);
          id("chosen", r.chosen[at], row, l, cell, chosen_seen_);
          if (!std::isfinite(r.weights[at])) {
            fail("weights", row, l, "not finite");
          }
          if (r.chosen[at] == kNoExpert && r.weights[at] != 0.0F) {
            fail("weights", row, l, "a weight where no expert runs");
          }
          if (r.outcome[at] > static_cast<std::uint8_t>(SlotOutcome::kDropped)) {
            fail("outcome", row, l, fmt::format("outcome {}; the largest is 4", r.outcome[at]));
          }
          if (!consistent(static_cast<SlotOutcome>(r.outcome[at]), r.first[at], r.chosen[at])) {
            fail("outcome", row, l,
                 fmt::format("outcome {} does not fit first = {}, chosen = {}", r.outcome[at],
                             r.first[at], r.chosen[at]));
          }
        }
      }
    }
  }

  void id(std::string_view dataset, std::uint16_t e, std::uint64_t row, std::uint32_t l,
          std::uint64_t cell, std::vector<std::uint64_t>& seen) const {
    if (e == kNoExpert) {
      return;
    }
    if (e >= trace_.header.experts()) {
      fail(dataset, row, l, fmt::format("expert {} of {}", e, trace_.header.experts()));
    }
    if (seen[e] == cell) {
      fail(dataset, row, l, fmt::format("expert {} stands twice", e));
    }
    seen[e] = cell;
  }

  static bool consistent(SlotOutcome outcome, std::uint16_t first, std::uint16_t chosen) {
    switch (outcome) {
      case SlotOutcome::kNoSlot:
        return first == kNoExpert && chosen == kNoExpert;
      case SlotOutcome::kKept:
        return first != kNoExpert && chosen == first;
      case SlotOutcome::kRerouted:
        return first != kNoExpert && chosen != kNoExpert && chosen != first;
      case SlotOutcome::kQueued:
        return first != kNoExpert && (chosen == first || chosen == kNoExpert);
      case SlotOutcome::kDropped:
        return first != kNoExpert && chosen == kNoExpert;
    }
    return false;
  }

  const h5::FileReader& file_;
  const RoutingTrace& trace_;
  std::vector<std::uint64_t> seen_, first_seen_, chosen_seen_;  // [E] last cell
  std::uint64_t minus_inf_ = 0;
};

std::uint32_t small_attribute(const h5::FileReader& file, std::string_view name) {
  const std::uint64_t value = file.u64_attribute(name);
  if (value > std::numeric_limits<std::uint32_t>::max()) {
    file.fail(fmt::format("attribute {}", name), fmt::format("{} is out of range", value));
  }
  return static_cast<std::uint32_t>(value);
}
}  // namespace

const h5::SchemaTable& trace_schema() {
  static const h5::SchemaTable table = make_schema();
  return table;
}

void gate_probabilities(const GateSpec& gate, std::span<const float> logits, float lse,
                        std::span<double> p) {
  double sum = 0;
  for (std::size_t e = 0; e < p.size(); ++e) {
    const float z = logits[e];
    const bool broken = std::isnan(z) || z == -kMinusInfinity;
    const double value = broken ? kMinusInfinity : z;
    p[e] = gate.score == GateScore::kSigmoid ? 1.0 / (1.0 + std::exp(-value))
                                             : std::exp(value - static_cast<double>(lse));
    sum += p[e];
  }
  if (!std::isfinite(lse) || sum <= 0) {
    std::fill(p.begin(), p.end(), std::numeric_limits<double>::quiet_NaN());
  } else if (gate.score == GateScore::kSigmoid) {
    for (double& v : p) {
      v /= sum;
    }
  }
}

std::string trace_format() { return h5::format_markdown(trace_schema()); }

void validate(const TraceHeader& header, const std::string& where) {
  validate(header.gate, where);
  validate(header.policy, header.experts(), header.top_k(), where);
  const std::uint32_t least = stored_candidates(header.experts(), header.top_k());
  if (header.candidates < least || header.candidates > header.experts()) {
    throw InputError(where, fmt::format("candidates = {}. Violated: {} <= candidates <= {} for {} "
                                        "experts, {} per token",
                                        header.candidates, least, header.experts(),
                                        header.experts(), header.top_k()));
  }
  if (header.slots < header.top_k() || header.slots > header.candidates) {
    throw InputError(where, fmt::format("slots = {}. Violated: {} <= slots <= {}", header.slots,
                                        header.top_k(), header.candidates));
  }
  if (header.layers.empty() || header.layers.size() > kMostLayers) {
    throw InputError(where, fmt::format("{} MoE layers. Violated: 1 <= layers <= {}",
                                        header.layers.size(), kMostLayers));
  }
  for (std::size_t l = 1; l < header.layers.size(); ++l) {
    if (header.layers[l] <= header.layers[l - 1]) {
      throw InputError(where, fmt::format("layer {} after layer {}; layer numbers ascend",
                                          header.layers[l], header.layers[l - 1]));
    }
  }
  if (header.hidden > kMostHidden) {
    throw InputError(
        where, fmt::format("hidden = {}. Violated: hidden <= {}", header.hidden, kMostHidden));
  }
  for (const auto& [name, hash] :
       {std::pair<std::string_view, const std::string&>{"config_hash", header.config_hash},
        {"weight_hash", header.weight_hash}}) {
    if (!hex_text(hash)) {
      throw InputError(
          where, fmt::format("{} = \"{}\" is not 16 or 32 lower-case hex digits", name, hash));
    }
  }
}

void TraceStep::begin(const TraceHeader& header, std::uint32_t step,
                      std::span<const std::uint32_t> sequence,
                      std::span<const std::uint32_t> position, std::span<const std::uint32_t> token,
                      std::span<const std::uint8_t> phase) {
  const std::size_t rows = sequence.size();
  SWITCHYARD_ASSERT(position.size() == rows && token.size() == rows && phase.size() == rows,
                    fmt::format("{} rows", rows));
  layers_ = header.layer_count();
  candidates_ = header.candidates;
  slots_ = header.slots;
  hidden_ = header.hidden;
  experts_ = header.experts();
  layers_set_ = inputs_set_ = gates_set_ = 0;
  run_.resize(rows);
  std::size_t runs = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    runs += r == 0 || sequence[r] != sequence[r - 1] ? 1U : 0U;
    run_[r] = runs - 1;
  }
  gate_sum_.assign(runs * layers_ * experts_, 0.0);
  truncated_slots_ = nan_rows_ = minus_inf_rows_ = 0;
  tokens_.sequence.assign(sequence.begin(), sequence.end());
  tokens_.position.assign(position.begin(), position.end());
  tokens_.token.assign(token.begin(), token.end());
  tokens_.phase.assign(phase.begin(), phase.end());
  tokens_.step.assign(rows, step);
  const std::size_t cells = rows * layers_;
  routing_.candidates.assign(cells * candidates_, kNoExpert);
  routing_.logit.assign(cells * candidates_, 0.0F);
  routing_.lse.assign(cells, 0.0F);
  routing_.first.assign(cells * slots_, kNoExpert);
  routing_.chosen.assign(cells * slots_, kNoExpert);
  routing_.weights.assign(cells * slots_, 0.0F);
  routing_.outcome.assign(cells * slots_, 0);
  routing_.router_input.assign(cells * hidden_, 0);
}

void TraceStep::set_layer(std::uint32_t l, const CandidatesView& candidates, std::uint64_t nan_rows,
                          const LayerDecision& decision) {
  const std::size_t rows = tokens_.size();
  SWITCHYARD_ASSERT(l < layers_ && candidates.tokens == rows && candidates.width == candidates_ &&
                        decision.tokens == rows && decision.slots <= slots_,
                    fmt::format("layer {} of {}: {} rows, {} candidates, {} slots", l, layers_,
                                rows, candidates.width, decision.slots));
  for (std::size_t t = 0; t < rows; ++t) {
    const std::size_t cell = t * layers_ + l;
    const auto from = static_cast<std::ptrdiff_t>(t * candidates_);
    const auto to = static_cast<std::ptrdiff_t>(cell * candidates_);
    std::copy_n(candidates.ids.begin() + from, candidates_, routing_.candidates.begin() + to);
    std::copy_n(candidates.logit.begin() + from, candidates_, routing_.logit.begin() + to);
    routing_.lse[cell] = candidates.lse[t];
    for (std::size_t j = 0; j < decision.slots; ++j) {
      const std::size_t slot = cell * slots_ + j;
      const std::size_t source = t * decision.slots + j;
      routing_.first[slot] = decision.first[source];
      routing_.chosen[slot] = decision.chosen[source];
      routing_.weights[slot] = decision.weights[source];
      routing_.outcome[slot] = decision.outcome[source];
    }
  }
  minus_inf_rows_ += count_minus_inf(candidates.logit, rows, candidates_);
  nan_rows_ += nan_rows;
  truncated_slots_ += decision.truncated_slots;
  ++layers_set_;
}

void TraceStep::set_gate(std::uint32_t l, const GateSpec& gate, std::span<const float> logits) {
  const std::size_t rows = tokens_.size();
  SWITCHYARD_ASSERT(l < layers_ && gate.experts == experts_ && logits.size() == rows * experts_,
                    fmt::format("layer {}: {} logits", l, logits.size()));
  gate_row_.resize(experts_);
  for (std::size_t t = 0; t < rows; ++t) {
    if (tokens_.phase[t] == static_cast<std::uint8_t>(Phase::kWarmUp)) {
      continue;
    }
    gate_probabilities(gate, logits.subspan(t * experts_, experts_), routing_.lse[t * layers_ + l],
                       gate_row_);
    double* sum = gate_sum_.data() + (run_[t] * layers_ + l) * experts_;
    for (std::size_t e = 0; e < experts_; ++e) {
      sum[e] += gate_row_[e];
    }
  }
  ++gates_set_;
}

void TraceStep::set_router_input(std::uint32_t l, std::span<const std::uint16_t> values) {
  const std::size_t rows = tokens_.size();
  SWITCHYARD_ASSERT(l < layers_ && hidden_ > 0 && values.size() == rows * hidden_,
                    fmt::format("layer {}: {} values", l, values.size()));
  for (std::size_t t = 0; t < rows; ++t) {
    std::copy_n(
        values.begin() + static_cast<std::ptrdiff_t>(t * hidden_), hidden_,
        routing_.router_input.begin() + static_cast<std::ptrdiff_t>((t * layers_ + l) * hidden_));
  }
  ++inputs_set_;
}

struct TraceWriter::State {
  TraceHeader header;
  h5::FileWriter file;
  std::vector<TraceSequence> sequences;
  std::set<std::uint32_t> arrivals;
  std::uint32_t steps = 0;
  std::uint64_t truncated_slots = 0, nan_rows = 0, minus_inf_rows = 0;
  bool decisions = true;
  bool gates = true;             // of every step so far
  std::vector<double> gate_sum;  // [sequences][L][E]

  State(const std::filesystem::path& path, TraceHeader h)
      : header(std::move(h)), file(path, trace_schema()) {}

  /// The [rows][L][…] part; `bias` [L][E] or empty.
  void declare(std::span<const float> bias) {
    const std::uint64_t layers = header.layer_count();
    const std::uint64_t m = header.candidates;
    const std::uint64_t k = header.slots;
    file.attribute("schema", std::uint64_t{trace_schema().version});
    file.attribute("model", header.model);
    file.attribute("experts", std::uint64_t{header.experts()});
    file.attribute("top_k", std::uint64_t{header.top_k()});
    file.attribute("slots", k);
    file.attribute("candidates", m);
    file.attribute("gate", gate_to_text(header.gate));
    file.attribute("policy", policy_to_text(header.policy));
    file.attribute("seed", header.seed);
    file.attribute("config_hash", header.config_hash);
    file.attribute("weight_hash", header.weight_hash);
    file.attribute("engine", header.engine);
    file.attribute("precision", header.precision);
    file.write("layer/number", header.layers);
    if (!bias.empty()) {
      file.write<float>("gate_bias", bias, {layers, header.experts()});
    }
    file.rows<std::uint32_t>("token/sequence", {});
    file.rows<std::uint32_t>("token/position", {});
    file.rows<std::uint32_t>("token/id", {});
    file.rows<std::uint8_t>("token/phase", {});
    file.rows<std::uint32_t>("token/step", {});
    file.rows<std::uint16_t>("candidates", {layers, m});
    file.rows<float>("logit", {layers, m});
    file.rows<float>("lse", {layers});
    if (decisions) {
      file.rows<std::uint16_t>("first", {layers, k});
      file.rows<std::uint16_t>("chosen", {layers, k});
      file.rows<float>("weights", {layers, k});
      file.rows<std::uint8_t>("outcome", {layers, k});
    }
    if (header.hidden > 0) {
      file.rows<std::uint16_t>("router_input", {layers, header.hidden});
    }
  }

  void append(const TraceTokens& tokens, const TraceRouting& routing) {
    file.append("token/sequence", tokens.sequence);
    file.append("token/position", tokens.position);
    file.append("token/id", tokens.token);
    file.append("token/phase", tokens.phase);
    file.append("token/step", tokens.step);
    file.append("candidates", routing.candidates);
    file.append("logit", routing.logit);
    file.append("lse", routing.lse);
    if (decisions) {
      file.append("first", routing.first);
      file.append("chosen", routing.chosen);
      file.append("weights", routing.weights);
      file.append("outcome", routing.outcome);
    }
    if (header.hidden > 0) {
      file.append("router_input", routing.router_input);
    }
  }

  void finish() {
    std::vector<std::uint32_t> lengths;
    std::vector<std::uint32_t> arrival;
    std::vector<std::string> domains;
    std::vector<std::string> names;
    std::vector<std::uint16_t> experts;
    std::vector<std::uint64_t> text_end;
    std::vector<std::uint8_t> texts;
    bool names_expert = false;
    for (const TraceSequence& sequence : sequences) {
      lengths.push_back(sequence.prompt_length);
      arrival.push_back(sequence.arrival);
      domains.push_back(sequence.domain);
      names.push_back(sequence.name);
      experts.push_back(sequence.expert);
      names_expert = names_expert || sequence.expert != kNoExpert;
      texts.insert(texts.end(), sequence.text.begin(), sequence.text.end());
      text_end.push_back(texts.size());
    }
    if (names_expert) {
      file.write("sequence/expert", experts);
    }
    if (!texts.empty()) {
      file.write("sequence/text_end", text_end);
      file.write("prompt_text", texts);
    }
    file.write("sequence/prompt_length", lengths);
    file.write("sequence/arrival", arrival);
    file.strings("sequence/domain", domains);
    file.strings("sequence/name", names);
    if (!gate_sum.empty()) {
      file.write<double>("gate_sum", gate_sum,
                         {lengths.size(), header.layer_count(), header.experts()});
    }
    file.attribute("truncated_slots", truncated_slots);
    file.attribute("nan_rows", nan_rows);
    file.attribute("minus_inf_rows", minus_inf_rows);
    file.finish();
  }
};

TraceWriter::TraceWriter(const std::filesystem::path& path, const TraceHeader& header,
                         std::span<const float> gate_bias)
    : TraceWriter(path, header, gate_bias, true) {}

TraceWriter::TraceWriter(const std::filesystem::path& path, const TraceHeader& header,
                         std::span<const float> gate_bias, bool decisions) {
  validate(header, path.string());
  SWITCHYARD_ASSERT(
      gate_bias.empty() || gate_bias.size() == std::size_t{header.layer_count()} * header.experts(),
      fmt::format("{} biases", gate_bias.size()));
  state_ = std::make_unique<State>(path, header);
  state_->decisions = decisions;
  state_->declare(gate_bias);
}

TraceWriter::~TraceWriter() = default;

std::uint32_t TraceWriter::add_sequence(TraceSequence sequence) {
  SWITCHYARD_ASSERT(
      sequence.prompt_length > 0 && state_->arrivals.insert(sequence.arrival).second,
      fmt::format("prompt of {} tokens, arrival {}", sequence.prompt_length, sequence.arrival));
  state_->sequences.push_back(std::move(sequence));
  return static_cast<std::uint32_t>(state_->sequences.size() - 1);
}

void TraceWriter::append(const TraceStep& step) {
  State& s = *state_;
  const TraceTokens& t = step.tokens_;
  SWITCHYARD_ASSERT(
      t.size() > 0 && t.step[0] == s.steps && step.layers_set_ == step.layers_ &&
          step.layers_ == s.header.layer_count() &&
          step.inputs_set_ == (s.header.hidden > 0 ? step.layers_ : 0),
      fmt::format("step {} of {} rows after {} steps, {} of {} layers set",
                  t.size() > 0 ? t.step[0] : 0, t.size(), s.steps, step.layers_set_, step.layers_));
  for (std::size_t r = 0; r < t.size(); ++r) {
    SWITCHYARD_ASSERT(t.sequence[r] < s.sequences.size(),
                      fmt::format("row {}: sequence {}", r, t.sequence[r]));
    const auto key = [&](std::size_t i) {
      return std::pair(s.sequences[t.sequence[i]].arrival, t.position[i]);
    };
    SWITCHYARD_ASSERT(r == 0 || key(r - 1) < key(r),
                      fmt::format("row {} is out of canonical order", r));
  }
  s.append(t, step.routing_);
  SWITCHYARD_ASSERT((s.steps == 0 || s.gates == (step.gates_set_ > 0)) &&
                        (step.gates_set_ == 0 || step.gates_set_ == step.layers_),
                    fmt::format("{} of {} gates set", step.gates_set_, step.layers_));
  s.gates = step.gates_set_ > 0;
  if (s.gates) {
    const std::size_t width = std::size_t{s.header.layer_count()} * s.header.experts();
    for (std::size_t r = 0; r < t.size(); ++r) {
      if (r > 0 && step.run_[r] == step.run_[r - 1]) {
        continue;
      }
      s.gate_sum.resize(s.sequences.size() * width, 0.0);
      double* to = s.gate_sum.data() + t.sequence[r] * width;
      const double* from = step.gate_sum_.data() + step.run_[r] * width;
      for (std::size_t i = 0; i < width; ++i) {
        to[i] += from[i];
      }
    }
  }
  s.truncated_slots += step.truncated_slots_;
  s.nan_rows += step.nan_rows_;
  s.minus_inf_rows += step.minus_inf_rows_;
  ++s.steps;
}

void TraceWriter::finish() {
  State& s = *state_;
  if (!s.gate_sum.empty()) {  // sequences that had no rows
    s.gate_sum.resize(s.sequences.size() * s.header.layer_count() * s.header.experts(), 0.0);
  }
  s.finish();
}

void write_trace(const std::filesystem::path& path, const RoutingTrace& trace) {
  validate(trace.header, path.string());
  const TraceHeader& h = trace.header;
  const std::uint64_t cells = trace.rows() * h.layer_count();
  SWITCHYARD_ASSERT(
      trace.routing.candidates.size() == cells * h.candidates &&
          trace.routing.logit.size() == cells * h.candidates && trace.routing.lse.size() == cells &&
          (!trace.decisions_present || (trace.routing.first.size() == cells * h.slots &&
                                        trace.routing.chosen.size() == cells * h.slots &&
                                        trace.routing.weights.size() == cells * h.slots &&
                                        trace.routing.outcome.size() == cells * h.slots)) &&
          trace.routing.router_input.size() == cells * h.hidden &&
          (trace.gate_sum.empty() ||
           trace.gate_sum.size() == trace.sequences.size() * h.layer_count() * h.experts()),
      fmt::format("{} rows", trace.rows()));
  TraceWriter writer(path, h, trace.gate_bias, trace.decisions_present);
  writer.state_->sequences = trace.sequences;
  writer.state_->gate_sum = trace.gate_sum;
  writer.state_->append(trace.tokens, trace.routing);
  writer.state_->truncated_slots = trace.truncated_slots;
  writer.state_->nan_rows = trace.nan_rows;
  writer.state_->minus_inf_rows = trace.minus_inf_rows;
  writer.finish();
}

namespace {

/// Everything but the routing.
RoutingTrace read_tokens(const h5::FileReader& file) {
  RoutingTrace trace;
  TraceHeader& h = trace.header;
  const std::string where = file.path().string();
  if (file.u64_attribute("schema") != file.header().schema_version) {
    file.fail("attribute schema", "differs from the version in the user block");
  }
  h.model = file.text_attribute("model");
  h.gate = gate_from_text(file.text_attribute("gate"), where + ": attribute gate");
  h.policy = policy_from_text(file.text_attribute("policy"), where + ": attribute policy");
  h.layers = file.read<std::uint32_t>("layer/number");
  h.candidates = small_attribute(file, "candidates");
  h.slots = small_attribute(file, "slots");
  h.config_hash = file.text_attribute("config_hash");
  h.weight_hash = file.text_attribute("weight_hash");
  h.seed = file.u64_attribute("seed");
  h.engine = file.text_attribute("engine");
  h.precision = file.text_attribute("precision");
  validate(h, where);
  const auto same = [&file](std::string_view name, std::uint64_t expected, std::string_view as) {
    const std::uint64_t value = file.u64_attribute(name);
    if (value != expected) {
      file.fail(fmt::format("attribute {}", name),
                fmt::format("{}, but {} says {}", value, as, expected));
    }
  };
  same("experts", h.experts(), "the gate");
  same("top_k", h.top_k(), "the gate");
  same("candidates", file.extent("M"), "the dataset candidates");
  const bool decided = file.has("first");
  for (const std::string_view name : {"chosen", "weights", "outcome"}) {
    if (file.has(name) != decided) {
      file.fail(name, "first, chosen, weights and outcome are present together or not at all");
    }
  }
  if (decided) {
    same("slots", file.extent("K"), "the dataset first");
  }
  if (file.has("gate_bias")) {
    same("experts", file.extent("E"), "the dataset gate_bias");
    trace.gate_bias = file.read<float>("gate_bias");
  }
  if (file.has("gate_sum")) {
    same("experts", file.extent("E"), "the dataset gate_sum");
    trace.gate_sum = file.read<double>("gate_sum");
  }
  trace.truncated_slots = file.u64_attribute("truncated_slots");
  trace.nan_rows = file.u64_attribute("nan_rows");
  trace.minus_inf_rows = file.u64_attribute("minus_inf_rows");
  trace.decisions_present = decided;

  const auto lengths = file.read<std::uint32_t>("sequence/prompt_length");
  const auto arrivals = file.read<std::uint32_t>("sequence/arrival");
  std::vector<std::string> domains = file.strings("sequence/domain");
  std::vector<std::string> names = file.strings("sequence/name");
  const auto experts = file.has("sequence/expert") ? file.read<std::uint16_t>("sequence/expert")
                                                   : std::vector<std::uint16_t>{};
  if (file.has("sequence/text_end") != file.has("prompt_text")) {
    file.fail("prompt_text", "sequence/text_end and prompt_text are present together");
  }
  std::vector<std::uint64_t> text_end(lengths.size(), 0);
  std::vector<std::uint8_t> texts;
  if (file.has("prompt_text")) {
    text_end = file.read<std::uint64_t>("sequence/text_end");
    texts = file.read<std::uint8_t>("prompt_text");
  }
  std::uint64_t text_begin = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (text_end[i] < text_begin || text_end[i] > texts.size()) {
      file.fail("sequence/text_end", i,
                fmt::format("{} after {}, of {} bytes", text_end[i], text_begin, texts.size()));
    }
    if (!experts.empty() && experts[i] != kNoExpert && experts[i] >= h.experts()) {
      file.fail("sequence/expert", i, fmt::format("expert {} of {}", experts[i], h.experts()));
    }
    trace.sequences.push_back(
        {lengths[i], arrivals[i], std::move(domains[i]), std::move(names[i]),
         std::string(texts.begin() + static_cast<std::ptrdiff_t>(text_begin),
                     texts.begin() + static_cast<std::ptrdiff_t>(text_end[i])),
         experts.empty() ? kNoExpert : experts[i]});
    text_begin = text_end[i];
  }
  TraceTokens& t = trace.tokens;
  t.sequence = file.read<std::uint32_t>("token/sequence");
  t.position = file.read<std::uint32_t>("token/position");
  t.token = file.read<std::uint32_t>("token/id");
  t.phase = file.read<std::uint8_t>("token/phase");
  t.step = file.read<std::uint32_t>("token/step");
  Validator(file, trace).tokens();
  for (std::uint64_t row = 0; row < t.size(); ++row) {
    if (row == 0 || t.step[row] != t.step[row - 1]) {
      trace.step_begin.push_back(row);
    }
  }
  trace.step_begin.push_back(t.size());
  return trace;
}

TraceRouting read_rows(const h5::FileReader& file, std::uint64_t first, std::uint64_t count,
                       bool decisions) {
  TraceRouting r;
  r.candidates = file.read_rows<std::uint16_t>("candidates", first, count);
  r.logit = file.read_rows<float>("logit", first, count);
  r.lse = file.read_rows<float>("lse", first, count);
  if (decisions) {
    r.first = file.read_rows<std::uint16_t>("first", first, count);
    r.chosen = file.read_rows<std::uint16_t>("chosen", first, count);
    r.weights = file.read_rows<float>("weights", first, count);
    r.outcome = file.read_rows<std::uint8_t>("outcome", first, count);
  }
  return r;
}

std::uint32_t input_width(const h5::FileReader& file) {
  const std::uint64_t hidden = file.extent("H");
  if (hidden == 0 || hidden > kMostHidden) {
    file.fail("router_input", fmt::format("a width of {}", hidden));
  }
  return static_cast<std::uint32_t>(hidden);
}

/// The last layer's part of router_input, a few MB of rows at a time.
LastInput read_last_input(const h5::FileReader& file, const RoutingTrace& trace) {
  LastInput out;
  if (!file.has("router_input") || trace.header.layer_count() == 0) return out;
  out.width = input_width(file);
  const std::uint64_t row = std::uint64_t{trace.header.layer_count()} * out.width;
  const std::uint64_t each = std::max<std::uint64_t>(1, (std::uint64_t{8} << 20) / (2 * row));
  out.values.reserve(trace.rows() * out.width);
  for (std::uint64_t first = 0; first < trace.rows(); first += each) {
    const std::uint64_t n = std::min(each, trace.rows() - first);
    const auto values = file.read_rows<std::uint16_t>("router_input", first, n);
    for (std::uint64_t r = 1; r <= n; ++r) {
      const auto end = values.begin() + static_cast<std::ptrdiff_t>(r * row);
      out.values.insert(out.values.end(), end - out.width, end);
    }
  }
  return out;
}

}  // namespace

RoutingTrace read_trace(const std::filesystem::path& path, const TraceReadOptions& options) {
  const h5::FileReader file(path, trace_schema(), {options.verify});
  RoutingTrace trace = read_tokens(file);
  trace.routing = read_rows(file, 0, trace.rows(), trace.decisions_present);
  if (file.has("router_input") && options.router_input) {
    trace.header.hidden = input_width(file);
    trace.routing.router_input = file.read<std::uint16_t>("router_input");
  }
  if (options.last_input) trace.last_input = read_last_input(file, trace);
  Validator validator(file, trace);
  validator.part(trace.routing, 0);
  validator.end();
  return trace;
}

RoutingTrace open_trace(const std::filesystem::path& path, bool verify, std::uint64_t most_bytes,
                        bool last_input) {
  auto file = std::make_shared<h5::FileReader>(path, trace_schema(), h5::ReadOptions{verify});
  RoutingTrace trace = read_tokens(*file);
  if (last_input) trace.last_input = read_last_input(*file, trace);
  const TraceHeader& h = trace.header;
  const std::uint64_t row_bytes =
      std::uint64_t{h.layer_count()} *
      (std::uint64_t{h.candidates} * 6 + 4 + (trace.decisions_present ? h.slots * 9ULL : 0));
  const std::uint64_t rows = trace.rows();
  if (rows <= most_bytes / row_bytes) {
    trace.routing = read_rows(*file, 0, rows, trace.decisions_present);
    Validator validator(*file, trace);
    validator.part(trace.routing, 0);
    validator.end();
    return trace;
  }
  // Four times what the file packs together of the candidates, the widest dataset but one; of a
  // small budget less, so that several parts fit.
  constexpr std::uint64_t kPacked = 128 << 10;
  const std::uint64_t packed = kPacked / (std::uint64_t{h.layer_count()} * h.candidates * 2);
  const std::uint64_t each = std::clamp<std::uint64_t>(
      4 * packed, 1, std::max<std::uint64_t>(1, most_bytes / row_bytes / 8));
  const bool decided = trace.decisions_present;
  Validator validator(*file, trace);
  for (std::uint64_t first = 0; first < rows; first += each) {
    validator.part(read_rows(*file, first, std::min(each, rows - first), decided), first);
  }
  validator.end();
  trace.parts = std::make_shared<TraceParts>(
      rows, each, most_bytes,
      [file, decided](std::uint64_t first, std::uint64_t end, bool decisions) {
        return read_rows(*file, first, end - first, decisions && decided);
      });
  return trace;
}

}  // namespace switchyard
