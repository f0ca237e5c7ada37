// SPDX-License-Identifier: Apache-2.0
// The routing trace: what a router saw and decided, token by token and layer by layer. The engine
// writes it, the simulator and the tables read it. Datasets, shapes and units: FORMAT.md, which is
// generated from trace_schema().
//
// T token rows, L MoE layers, E experts, M stored candidates, k experts per token, K slots (the
// largest k of any token), H width of the router's input. Arrays are flattened row-major,
// [row][layer][…].
//
// Rows are grouped in steps 0, 1, 2, … without gaps; inside a step they stand in canonical order:
// ascending (arrival of the sequence, position).
//
// Not modelled: gates that differ between layers; several engines' ranks (a trace is of one model,
// the simulator places it); hidden states other than the optional router input.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/routing/candidates.hpp"
#include "engine/routing/decide.hpp"
#include "engine/routing/gate.hpp"
#include "engine/routing/policy.hpp"

namespace switchyard {

namespace h5 {
struct SchemaTable;
}  // namespace h5
struct RoutingTrace;
class TraceParts;

/// What the whole trace is about. E = gate.experts and k = gate.top_k.
struct TraceHeader {
  std::string model;                  ///< Model id, a name and not a path.
  GateSpec gate;                      ///< Of every MoE layer.
  RoutingPolicy policy;               ///< In force when the decisions were made.
  std::vector<std::uint32_t> layers;  ///< [L] numbers of the MoE layers in the model, ascending.
  std::uint32_t candidates = 0;       ///< M, k…E, at least stored_candidates(E, k).
  std::uint32_t slots = 0;            ///< K, k…M.
  std::uint32_t hidden = 0;           ///< H when the router's input is stored, else 0.
  std::string config_hash;            ///< 16 or 32 hex digits.
  std::string weight_hash;            ///< XXH3 over name, dtype, shape and bytes of the tensors.
  std::uint64_t seed = 1;             ///< Of every random choice; replay needs it.
  std::string engine;                 ///< Program and version that made the trace.
  std::string precision;              ///< "f32", "bf16": of the forward pass;
                                      ///< in brackets the formats weights were rounded to.
  [[nodiscard]] std::uint32_t experts() const { return gate.experts; }
  [[nodiscard]] std::uint32_t top_k() const { return gate.top_k; }
  [[nodiscard]] std::uint32_t layer_count() const {
    return static_cast<std::uint32_t>(layers.size());
  }
  bool operator==(const TraceHeader&) const = default;
};

/// Throws InputError(where, …): gate or policy invalid, no or unsorted layers, M or K out of range.
void validate(const TraceHeader& header, const std::string& where);

struct TraceSequence {
  std::uint32_t prompt_length = 0;  ///< Tokens, >= 1.
  std::uint32_t arrival = 0;        ///< Order of arrival, different for each sequence.
  std::string domain;               ///< "prose", "code", …; may be empty.
  std::string name;                 ///< Prompt id; may be empty.
  /// The prompt as UTF-8, for policies that read it (routing tables, soft routing); may be empty.
  std::string text{};
  std::uint16_t expert = kNoExpert;  ///< Expert that the request names (M22), or none.
  bool operator==(const TraceSequence&) const = default;
};

/// Structure of arrays, one entry per token row.
struct TraceTokens {
  std::vector<std::uint32_t> sequence;  ///< Index into the sequence table.
  std::vector<std::uint32_t> position;  ///< In its sequence, from 0. Decode: >= prompt length.
  std::vector<std::uint32_t> token;     ///< Vocabulary id.
  std::vector<std::uint8_t> phase;      ///< Phase: 0 prefill, 1 decode, 2 warm-up.
  std::vector<std::uint32_t> step;
  [[nodiscard]] std::size_t size() const { return step.size(); }
  bool operator==(const TraceTokens&) const = default;
};

/// The per-layer arrays of some rows. 8 rows of Mixtral (L 32, M 8, K 2) are 21.5 KiB.
struct TraceRouting {
  std::vector<std::uint16_t> candidates;  ///< [rows][L][M] best first; kNoExpert ends a row early.
  std::vector<float> logit;               ///< [rows][L][M] raw gate logits; -inf for NaN and +inf.
  std::vector<float> lse;                 ///< [rows][L] log-sum-exp over all E.
  std::vector<std::uint16_t> first;       ///< [rows][L][K] choice before capacity, or kNoExpert.
  std::vector<std::uint16_t> chosen;      ///< [rows][L][K] what runs, or kNoExpert.
  std::vector<float> weights;             ///< [rows][L][K] 0 where nothing runs.
  std::vector<std::uint8_t> outcome;      ///< [rows][L][K] SlotOutcome.
  std::vector<std::uint16_t> router_input;  ///< [rows][L][H] bfloat16 bits, or empty.
  bool operator==(const TraceRouting&) const = default;
};

/// The router's input of the last MoE layer alone (cohesion.hpp); empty when it was not read.
struct LastInput {
  std::uint32_t width = 0;            ///< H
  std::vector<std::uint16_t> values;  ///< [rows][H] bfloat16 bits
  bool operator==(const LastInput&) const = default;
};

/// A whole trace in memory; or, from open_trace (trace_parts.hpp), all of it but `routing`.
struct RoutingTrace {
  TraceHeader header;
  std::vector<TraceSequence> sequences;
  TraceTokens tokens;
  std::vector<std::uint64_t> step_begin;  ///< [steps + 1] first row of each step, then T.
  std::vector<float> gate_bias;           ///< [L][E] selection bias, or empty: the family has none.
  /// [S][L][E] the gate's probability of each expert (softmax over all E; a sigmoid gate's scores
  /// divided by their sum), summed over the sequence's rows that are not warm-up; NaN where a row
  /// had none. What balancing losses need when M < E; empty: not recorded.
  std::vector<double> gate_sum;
  TraceRouting routing;
  LastInput last_input{};
  /// False when the file has candidates but no first, chosen, weights, outcome: replay() makes
  /// them.
  bool decisions_present = true;
  std::uint64_t truncated_slots = 0;  ///< Slots that wanted an expert outside the stored M.
  std::uint64_t nan_rows = 0;         ///< Row × layer with a NaN or +inf logit.
  /// Row × layer with a stored logit of -inf. Honest files say so; the reader compares.
  std::uint64_t minus_inf_rows = 0;
  /// Set when the routing is read by parts (trace_parts.hpp); `routing` is empty then.
  std::shared_ptr<TraceParts> parts = {};

  [[nodiscard]] std::uint64_t rows() const { return tokens.size(); }
  [[nodiscard]] std::uint32_t steps() const {
    return step_begin.empty() ? 0 : static_cast<std::uint32_t>(step_begin.size() - 1);
  }
  /// [first row, end row) of a step; `step` < steps().
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> step_rows(std::uint32_t step) const {
    return {step_begin[step], step_begin[step + 1]};
  }
  /// Offsets into the flattened arrays. l < L; m < M, j < K.
  [[nodiscard]] std::uint64_t candidate_at(std::uint64_t row, std::uint32_t l,
                                           std::uint32_t m = 0) const {
    return (row * header.layer_count() + l) * header.candidates + m;
  }
  [[nodiscard]] std::uint64_t slot_at(std::uint64_t row, std::uint32_t l,
                                      std::uint32_t j = 0) const {
    return (row * header.layer_count() + l) * header.slots + j;
  }
  [[nodiscard]] std::uint64_t layer_at(std::uint64_t row, std::uint32_t l) const {
    return row * header.layer_count() + l;
  }
  /// Selection bias of a layer, [E] or empty.
  [[nodiscard]] std::span<const float> bias_of(std::uint32_t l) const {
    return gate_bias.empty() ? std::span<const float>{}
                             : std::span<const float>(gate_bias).subspan(
                                   std::size_t{l} * header.experts(), header.experts());
  }
};

/// p [E]: a gate's probabilities of all experts from its logits [E] and their log-sum-exp: softmax,
/// or a sigmoid gate's scores divided by their sum. All NaN when lse is not finite or the sum is 0.
void gate_probabilities(const GateSpec& gate, std::span<const float> logits, float lse,
                        std::span<double> p);

/// One engine step while it is being made: the rows, then layer by layer what the router did.
/// Reusable; begin() keeps the memory.
class TraceStep {
 public:
  /// Rows of the step in canonical order; spans of equal size, copied.
  void begin(const TraceHeader& header, std::uint32_t step, std::span<const std::uint32_t> sequence,
             std::span<const std::uint32_t> position, std::span<const std::uint32_t> token,
             std::span<const std::uint8_t> phase);
  /// What layer index l (0…L-1) decided for these rows. `nan_rows` as counted by rank_candidates.
  /// Every layer must be set once before TraceWriter::append (asserted there).
  void set_layer(std::uint32_t l, const CandidatesView& candidates, std::uint64_t nan_rows,
                 const LayerDecision& decision);
  /// The logits of layer l before any policy, [rows][E], for gate_sum; after set_layer(l). For
  /// every layer of every step, or of none.
  void set_gate(std::uint32_t l, const GateSpec& gate, std::span<const float> logits);
  /// The router's input of layer l, [rows][H] bfloat16 bits; only when header.hidden > 0.
  void set_router_input(std::uint32_t l, std::span<const std::uint16_t> values);
  [[nodiscard]] const TraceTokens& tokens() const { return tokens_; }
  [[nodiscard]] const TraceRouting& routing() const { return routing_; }

 private:
  friend class TraceWriter;
  std::uint32_t layers_ = 0, candidates_ = 0, slots_ = 0, hidden_ = 0;
  std::uint32_t experts_ = 0, layers_set_ = 0, inputs_set_ = 0, gates_set_ = 0;
  std::uint64_t truncated_slots_ = 0, nan_rows_ = 0, minus_inf_rows_ = 0;
  TraceTokens tokens_;
  TraceRouting routing_;
  std::vector<std::size_t> run_;  // [rows] which of the step's sequences the row is of
  std::vector<double> gate_sum_;  // [sequences of the step][L][E]
  std::vector<double> gate_row_;  // [E] scratch
};

/// Streams a trace to disk; holds about one chunk (128 KiB) per dataset (gate_sum as a whole, 8 L E
/// bytes a sequence), never the whole trace.
/// The file appears under its name when finish() succeeds, and not at all otherwise.
class TraceWriter {
 public:
  /// `gate_bias` is [L][E] or empty. InputError: header invalid, folder missing or not writable.
  TraceWriter(const std::filesystem::path& path, const TraceHeader& header,
              std::span<const float> gate_bias);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;
  /// Adds a row to the sequence table and returns its index.
  std::uint32_t add_sequence(TraceSequence sequence);
  /// Steps come in order 0, 1, 2, …; each has at least one row (asserted), and its sequences were
  /// added before. InputError when the disk is full.
  void append(const TraceStep& step);
  void finish();

 private:
  friend void write_trace(const std::filesystem::path& path, const RoutingTrace& trace);
  TraceWriter(const std::filesystem::path& path, const TraceHeader& header,
              std::span<const float> gate_bias, bool decisions);
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a trace that is in memory (importers, tests). Without decisions the four decision
/// datasets are left out.
void write_trace(const std::filesystem::path& path, const RoutingTrace& trace);

struct TraceReadOptions {
  bool verify = true;         ///< false (--no-verify): skip the content hash; only above 4 GiB.
  bool router_input = false;  ///< Read router_input when it is there.
  bool last_input = false;    ///< Read that of the last MoE layer alone.
};

/// Reads and validates a whole trace. InputError names the file, the dataset and the row: not a
/// trace, damaged, newer schema, E, k, K, M, L inconsistent, ids >= E, repeated candidates,
/// candidates not best first, NaN or infinite logits that are not flagged, outcomes > 4 or at odds
/// with first and chosen, weights not finite, phases > 2, sequences outside the table, steps with
/// gaps, rows out of canonical order.
[[nodiscard]] RoutingTrace read_trace(const std::filesystem::path& path,
                                      const TraceReadOptions& options = {});

/// The schema table of version 1, and FORMAT.md made from it.
[[nodiscard]] const h5::SchemaTable& trace_schema();
[[nodiscard]] std::string trace_format();

}  // namespace switchyard
