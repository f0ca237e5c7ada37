// SPDX-License-Identifier: Apache-2.0
// File: session.hpp. A loaded model (Engine) and a batch of sequences being run (Session).
//
//   auto engine = Engine::load("checkpoint", {.threads = 2});
//   Session session(engine, {.policy = {}, .seed = 1});
//   const auto a = session.add_sequence();
//   const StepResult& r = session.step({{{a, prompt}}}, Phase::kPrefill);
//   sample(r.logits_of(0), …); session.step({{{a, {token}}}}, Phase::kDecode); …
//
// One step of the model, for every row of the step (equations: engine/README.md):
//   x = embedding[token]
//   each layer: x += o(attention(rope(q n), rope(k n), v n)), n = rms_norm(x)
//               x += sum_j w_j expert_j(n) + shared(n),       n = rms_norm(x)
//   logits = head(rms_norm(x))
// The experts and weights of a row come from the routing library (rank_candidates, then route_layer
// with the session's policy over all rows of the step), so a policy acts in closed loop: a dropped
// slot contributes nothing, a token that lost all slots keeps its residual only.
//
// Promise: logits and routing of a row depend on the row's own sequence only, bit for bit, whether
// it was prefilled at once, in chunks, or decoded, alone or in any batch, with any number of
// threads (given a policy without a capacity limit; with one, tokens of a step compete by design).
//
// With several ranks (EngineOptions::job) every rank makes the same calls and gets the same result;
// how the work is spread: expert_exchange.hpp.
//
// This holds for backends in float32; of BF16 on a GPU kernels/cuda_backend.hpp says what holds.
//
// router_dtype = BF16 (EngineOptions, or the checkpoint's config.json) rounds what the router
// computes with as a BF16 program does: its input, matrix and bias, and the logits, each sum in
// float32. By default routers are computed in float32.
//
// Not modelled: several devices, speculative decoding, MTP;
// capacity.queue = defer (the engine has no notion of a layer waiting a step); capacity.scope =
// rank (a step's tokens are one rank's, also where that is the rule's own scope).
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/model/checkpoint.hpp"
#include "engine/model/model_config.hpp"
#include "engine/nn/expert_exchange.hpp"
#include "engine/nn/quantise.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/nn/two_tier_router.hpp"
#include "engine/nn/weights.hpp"
#include "engine/routing/candidates.hpp"
#include "engine/routing/decide.hpp"
#include "engine/routing/route.hpp"
#include "engine/routing/signal_table.hpp"

namespace switchyard {

struct EngineOptions {
  unsigned threads = 1;  ///< 0: the cores this process may use. Results do not depend on it.
  /// Bytes of tensors read so far, and of all, as loading goes on; may be empty.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
  /// The ranks that run the model together (expert_exchange.hpp), null: this process alone; it
  /// outlives the engine. Every rank loads the same checkpoint and makes the same calls.
  Communicator* job = nullptr;
  unsigned tp = 1;             ///< Parts of each expert; divides the ranks.
  QuantiseOptions quantise{};  ///< Weights are rounded after loading; by default nothing is.
  /// Routers in BF16 or, false, in float32; none: as config.json's router_dtype says.
  std::optional<bool> router_bf16{};
};

/// A model ready to run. Movable; sessions borrow it. Not thread-safe: one step at a time.
class Engine {
 public:
  /// Opens a checkpoint folder or .gguf file and reads its weights into memory, tensor by tensor
  /// (unless they exceed 80 % of the machine's memory: then pages come as they are used). Weights
  /// stay where the file is mapped and in the file's format, so that the process holds the file's
  /// bytes and little else. InputError: see Checkpoint, require_runnable, take_weights.
  [[nodiscard]] static Engine load(const std::filesystem::path& folder,
                                   const EngineOptions& options);
  /// The same on any device's backend; options.threads has no effect.
  [[nodiscard]] static Engine load_on(const std::filesystem::path& folder,
                                      std::unique_ptr<Backend> backend,
                                      const EngineOptions& options = {});
  /// Runs weights that the caller keeps alive (tests, benchmarks).
  Engine(model::ModelConfig config, const ModelWeights& weights, std::unique_ptr<Backend> backend);

  [[nodiscard]] const model::ModelConfig& config() const { return config_; }
  [[nodiscard]] const GateSpec& gate() const { return gate_; }
  [[nodiscard]] const ModelWeights& weights() const { return weights_; }
  /// Null when constructed from weights.
  [[nodiscard]] const model::Checkpoint* checkpoint() const { return checkpoint_.get(); }
  /// Checkpoint::weight_hash(); with several ranks on rank 0 only (asserted), which read the whole
  /// file for it when it loaded.
  [[nodiscard]] Hash128 weight_hash() const;
  [[nodiscard]] Backend& backend() const { return *backend_; }
  [[nodiscard]] const QuantiseOptions& quantisation() const { return quantise_; }
  /// What rounding the weights did; empty when nothing was rounded.
  [[nodiscard]] const std::vector<QuantisedPart>& quantised() const { return quantised_; }

  /// A checkpoint with its weights, rounded as the engine's were.
  struct Reread {
    std::unique_ptr<model::Checkpoint> checkpoint;  ///< Null for an engine without one.
    ModelWeights weights;                           ///< Borrowed from the checkpoint.
    std::vector<QuantisedPart> quantised;
  };
  /// Opens the checkpoint once more, for repairs; its pages come as they are used. InputError as
  /// load().
  [[nodiscard]] Reread read_again() const;
  /// The views that steps read; whoever changes one keeps its data alive. For repairs.
  [[nodiscard]] ModelWeights& weights_for_repair() { return weights_; }
  /// What the KV cache of this model holds per token.
  [[nodiscard]] AttentionShape attention_shape() const;
  /// Null when this process runs alone.
  [[nodiscard]] Communicator* job() const { return job_; }
  [[nodiscard]] const RankGrid& grid() const { return grid_; }
  /// Rotation, scale, window and sinks of a layer; borrowed from the engine. The sinks are those
  /// of the weights as they are now.
  [[nodiscard]] AttentionRule attention_rule(std::size_t layer) const {
    AttentionRule rule = attention_[layer];
    rule.sinks = weights_.layers[layer].sinks;
    return rule;
  }

 private:
  Engine(Reread source, std::unique_ptr<Backend> backend, const QuantiseOptions& quantise,
         bool router_bf16);
  static Reread read(const std::filesystem::path& folder, const EngineOptions& options,
                     const RankGrid& grid, bool page_in);
  void prepare(const std::string& where);

  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::optional<Hash128> weight_hash_;  // of several ranks' rank 0
  QuantiseOptions quantise_;
  std::vector<QuantisedPart> quantised_;
  std::unique_ptr<Backend> backend_;  // after the mapping it may read
  Communicator* job_ = nullptr;
  RankGrid grid_;
  model::ModelConfig config_;
  GateSpec gate_;
  ModelWeights weights_;
  std::vector<float> inverse_frequency_;  // empty unless rotary
  std::vector<float> slopes_;             // [heads] with ALiBi
  std::vector<AttentionRule> attention_;  // [layer], views into the above, without sinks
};

/// Rows that one sequence adds in a step.
struct SequenceTokens {
  std::uint32_t sequence = 0;               ///< As add_sequence() returned.
  std::span<const std::uint32_t> tokens{};  ///< >= 1, borrowed for the call.
  std::optional<Phase> phase{};             ///< Of these rows; none: the step's.
};

/// Routing of one MoE layer in one step.
struct LayerRouting {
  Candidates candidates;   ///< Stage 1, M = stored_candidates(E, K) per row, K = policy_slots().
  LayerDecision decision;  ///< Stage 2 under the session's policy.
};

/// What a step computed; owned by the session, overwritten by its next step.
struct StepResult {
  std::uint32_t step = 0;               ///< Counted from 0.
  std::vector<std::uint32_t> sequence;  ///< [T] rows in canonical order (sequence, position)
  std::vector<std::uint32_t> position;  ///< [T]
  std::vector<std::uint32_t> token;     ///< [T] input token
  std::vector<std::uint8_t> phase;      ///< [T]
  std::vector<LayerRouting> layers;     ///< [L] MoE layers, ascending
  std::vector<float> router_logits;     ///< [L, T, E], L MoE layers
  /// [L, T, H] what the router sees (normalised hidden states), bfloat16 bits; see SessionOptions.
  std::vector<std::uint16_t> router_input;
  std::vector<float> logits;  ///< [rows, V]; see SessionOptions::all_logits and ::sampling
  /// The next token after each row of logits, chosen by the backend, or empty; see
  /// SessionOptions::sampling.
  std::vector<std::uint32_t> sampled;
  std::size_t vocab = 0;
  std::uint64_t nan_rows = 0;  ///< Router rows (all layers) with a NaN or +inf logit.
  /// M18: router rows whose k experts are those of the FP32 router, after tier 1 and after tier 2.
  std::uint64_t tier1_agreed = 0, tier2_agreed = 0;
  std::uint64_t nan_logits = 0;  ///< Rows of `logits` with a NaN.
  [[nodiscard]] std::size_t tokens() const { return token.size(); }
  /// Only while `sampled` is empty. Logits of row i: of the i-th sequence of the step (or of row i
  /// with all_logits).
  [[nodiscard]] std::span<const float> logits_of(std::size_t i) const {
    return std::span(logits).subspan(i * vocab, vocab);
  }
};

struct SessionOptions {
  RoutingPolicy policy;       ///< Validated by the constructor.
  std::uint64_t seed = 1;     ///< Of the policy's random choices.
  bool all_logits = false;    ///< Logits of every row, not only of each sequence's last.
  bool router_input = false;  ///< Fill StepResult::router_input; changes nothing else.
  /// How the caller will sample. A backend that can samples itself then: StepResult::sampled has
  /// the tokens and `logits` stays empty. Others leave it to the caller.
  std::optional<SamplingOptions> sampling{};
  bool sample_alike = false;               ///< Every sequence draws as sequence 0.
  KvOptions kv{};                          ///< Paging of keys and values; no result depends on it.
  const PolicyWeights* weights = nullptr;  ///< Of the files that the policy names; borrowed.
  const SignalTable* signals = nullptr;    ///< For policies that look at the machine; borrowed.
  const RoutingTable* table = nullptr;     ///< Of policy.table; borrowed.
  const TwoTierRouter* tiers = nullptr;    ///< Of policy.two_tier; borrowed.
  bool may_redo = false;  ///< Keep what redo() needs: tokens, and the policy's state of a step ago.
  /// Called when a MoE layer is decided; may change what runs (chosen, weights). For measurements;
  /// empty: nothing.
  std::function<void(std::size_t moe_layer, const Candidates&, LayerDecision&)> after_routing{};
};

class Session {
 public:
  /// InputError("policy", …) when the policy does not fit the model or the engine, and
  /// InputError("--kv-block", …).
  Session(const Engine& engine, const SessionOptions& options);

  /// A new, empty sequence; numbers ascend in order of arrival.
  std::uint32_t add_sequence();
  /// Tells what the request brings beside its tokens, for policies that look at it (M14, M17, M22):
  /// its whole prompt as tokens and text, the expert that it names or kNoExpert. Before its first
  /// step. InputError(`where`, …): the policy needs a text and there is none.
  void describe(std::uint32_t sequence, std::span<const std::uint32_t> prompt,
                std::string_view text, std::uint16_t expert, const std::string& where);
  [[nodiscard]] const RequestInfo& request(std::uint32_t sequence) {
    return state_.request(sequence);
  }
  /// Gives the blocks of a sequence back; it can take no more tokens.
  void end_sequence(std::uint32_t sequence);
  /// Tokens of the sequence so far.
  [[nodiscard]] std::size_t length(std::uint32_t sequence) const;

  /// Runs one step. `work` is in ascending order of sequence, each at most once; it may hold prompt
  /// tokens of some sequences beside new tokens of others, each with its phase. Under signals of
  /// several replicas all are of one (SignalCursor::replica_of; asserted). Empty work is a
  /// step of T = 0 rows. InputError("sequence n", …): a token outside the vocabulary, or more
  /// tokens than the model has positions; InputError("--kv-memory", …): the blocks it needs exceed
  /// what is left. Nothing is changed then.
  const StepResult& step(std::span<const SequenceTokens> work, Phase phase);
  /// The same step, forgotten by the sequences: the next one begins where this one began. What the
  /// policy remembers from step to step is not forgotten.
  const StepResult& peek(std::span<const SequenceTokens> work, Phase phase);
  /// The last step once more, after weights were repaired: what its sequences hold is forgotten,
  /// their earlier tokens go through the model again, then the step. Without a policy the result is
  /// that of an undisturbed run; under one, the earlier tokens of a sequence are decided as one
  /// prefill, and the policy remembers what it did before the step. `work` and `phase` are those of
  /// the last step (asserted). For a process alone, with SessionOptions::may_redo.
  const StepResult& redo(std::span<const SequenceTokens> work, Phase phase);
  [[nodiscard]] const StepResult& last() const { return result_; }
  /// Bytes and blocks of KV cache that the sequences hold now, counted from their tables. With
  /// several ranks, like the pool, those of this rank's sequences.
  [[nodiscard]] std::size_t kv_bytes() const;
  [[nodiscard]] std::size_t kv_blocks() const;
  /// The paged cache: what it lent so far, what a sequence needs.
  [[nodiscard]] const KvPool& kv_pool() const { return *pool_; }
  /// What the ranks exchanged so far; every rank calls it. No value when this process runs alone.
  [[nodiscard]] std::optional<ExchangeTotals> exchanged();

 private:
  [[nodiscard]] LayerState& layer_state(std::size_t moe_layer) {
    return state_.layer(replica_ * engine_.config().num_moe_layers() + moe_layer);
  }
  enum Slot : std::uint8_t { kX, kNormed, kQ, kK, kV, kMixed, kDelta, kWide, kGate, kSlots };
  float* scratch(Slot slot, std::size_t floats);
  /// What the policy needs of the backend.
  void prepare_policy();
  /// all = rows [owner.size(), columns] of every rank, from each one's `mine`.
  void download_rows(const float* mine, std::span<const std::uint16_t> owner, std::size_t columns,
                     ExpertExchange::What what, std::span<float> all);
  /// out = attention of one layer over the rows of the step.
  void attend(std::size_t l, std::size_t rows, const float* normed, float* out);
  void attend_latent(std::size_t l, std::size_t rows, const float* normed, float* out);
  /// out = routed experts of the moe_layer-th MoE layer; fills its LayerRouting.
  void route(const LayerWeights& layer, std::size_t moe_layer, std::size_t rows,
             const float* normed, float* out);
  /// The gate's input under the policy: `normed` itself, or a conditioned copy.
  const float* condition(const StepContext& context, std::size_t rows, const float* normed);
  /// Fills the LayerRouting of the layers that the backend routed itself.
  void settle_routed();
  /// Whether the backend chose the tokens after the rows `wanted`; fills StepResult::sampled.
  bool sampled_there(const float* logits, std::span<const std::uint32_t> wanted);
  /// Compares both tiers' choices with the FP32 router's.
  void count_agreement(const LayerWeights& layer, const LayerRouting& routing);
  /// out = what every row passes through: shared experts, or a dense layer's feed-forward.
  void feed_all(const LayerWeights& layer, std::size_t rows, const float* normed, float* out);

  const Engine& engine_;
  SessionOptions options_;
  std::uint32_t width_;
  std::unique_ptr<KvPool> pool_;
  std::vector<std::unique_ptr<KvCache>> caches_;
  std::uint32_t next_step_ = 0;
  StepResult result_;
  RankWorkspace rank_;
  RouteWorkspace route_;
  RoutingState state_;         // [replica][MoE layer]
  SignalCursor signals_;
  std::uint32_t replica_ = 0;  // of the step
  bool peeking_ = false;
  bool plain_ = false;                  // nothing but the family's rule chooses: the backend may
  std::vector<RoutedLayer> routed_;     // [L]
  std::vector<std::size_t> unsettled_;  // of these, in order
  bool conditioned_ = false, needs_hidden_ = false;
  std::vector<std::array<WeightView, 2>> adapter_;  // [L] A, B; or empty
  // Several ranks: each holds the caches, and computes the rows, of its own sequences. Everything
  // in `result_` is of all rows, on every rank.
  std::unique_ptr<ExpertExchange> exchange_;
  std::vector<std::size_t> lengths_;                     // of all sequences
  std::vector<std::vector<std::uint32_t>> history_;      // their tokens, with may_redo
  RoutingState before_;                                  // state_ before the last step, with it
  SignalCursor signals_before_{nullptr};                 // signals_ before it
  std::vector<std::uint16_t> row_owner_;                 // [rows of the step]
  std::vector<std::uint32_t> own_token_, own_position_;  // of this rank's rows
  std::vector<float> own_values_;                        // floats of these, on the host
  std::vector<KvCache*> row_cache_;                      // of these
  std::vector<std::uint16_t> every_chosen_;
  std::vector<float> every_weight_;
  std::vector<float> router_rows_;
  std::vector<float> tier2_, exact_;
  Candidates exact_candidates_;
  std::array<std::unique_ptr<DeviceBuffer>, kSlots> scratch_;
};

}  // namespace switchyard
