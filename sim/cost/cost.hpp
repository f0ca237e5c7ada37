// SPDX-License-Identifier: Apache-2.0
// What one operation costs on one GPU: the roofline, operation by operation.
//
//   time = kernels · launch + max( bytes / (mbu · HBM), flops / (mfu · peak) )
//
// summed over the operations of a phase (they run one after another on one stream). mbu, mfu,
// mfu_grouped, peak, HBM and launch come from the hardware file, where each has its source. Weight
// bytes count what the kernel reads: all weights of a dense layer, but only the *distinct* experts
// that received a token (engines.md §4.4 of the specification; derived in sim/README.md).
//
// Symbols: T tokens on this GPU, H hidden, h heads, g KV heads, d head size, E experts, I expert
// width, V vocabulary, w bytes per weight, a bytes per activation, c bytes per cached value.
//
// Arithmetic runs in the wider of the weight's format and that of the GEMM's inputs
// (model.dtype.gemm_inputs, else the activations'): weight-only formats (W4A16) are widened and gain
// bytes, not FLOPs; FP8 arithmetic (W8A8) needs gemm_inputs = "fp8". Rounding the inputs costs no
// kernel of its own. The attention core runs in the wider of the cache's and the activation's format.
//
// Launch modes (cost.launch): eager, every kernel pays the GPU's launch; graph, every kernel pays
// graph_kernel and the step one launch; fused, as graph with fewer kernels. Fused are: norm + QKV +
// RoPE; output projection + residual; norm + gate + top-k; an expert's products; a dense or shared
// FFN with its norm; norm + LM head + sampling. A fused kernel takes max(Σ bytes without what stays
// on the chip, Σ flops) and is one kernel.
//
// A calibration (cost.calibration) replaces single operations by measured times where it has a
// table of the very shape and format: experts (both products; measured layers include permutation
// and weighted sum, which the model also counts by itself: T·k·H bytes twice), the attention core
// of GQA and of one new token of MLA (sequences of one step stand as their mean length; decode and
// prefill are asked apart), and GEMMs (n × k of a table), with what this GPU has of heads and
// widths:
//
//   QKV (GQA)         (h + 2g)·d × H                 output       H × h·d (MLA: H × h·v)
//   MLA down          q_rank + rank + rope × H in one, or q_rank × H (without q_rank h·qk × H) and
//                     rank + rope × H
//   MLA up            h·qk × q_rank; h·(nope + v) × rank for sequences with several new tokens (one
//                     new token runs absorbed: other kernels, the roofline's)
//   dense, shared     2I × H in one, or twice I × H; then H × I
//   gate, head        E × H, V × H
//
// Measured times include their launch. Where the table is of a masked and of a contiguous grouped
// GEMM, steps that only decode take the masked one, all others the contiguous one
// (cost.grouped_gemm). Every other operation keeps the roofline. OpCost counts which were measured
// and which of those lie outside the measured places.
//
// Not modelled: tile quantisation (rows padded to a tile) outside the calibration, cache hits
// between kernels, power and clock effects, overlap of two kernels on one GPU except the shared
// expert beside dispatch (sim/loop).
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/base/units.hpp"
#include "engine/model/accounting.hpp"
#include "engine/model/model_config.hpp"
#include "sim/cost/calibrated.hpp"
#include "sim/scenario/hardware.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// One phase of work on one GPU. Adding two means running one after the other.
struct OpCost {
  SimTime time;
  double bytes = 0;  ///< HBM bytes read and written.
  double flops = 0;  ///< A multiply-add is two.
  std::uint32_t kernels = 0;
  std::uint32_t measured = 0,
                extrapolated = 0;  ///< Operations from a calibration, those outside it.
  OpCost& operator+=(const OpCost& o) {
    time += o.time;
    bytes += o.bytes;
    flops += o.flops;
    kernels += o.kernels;
    measured += o.measured;
    extrapolated += o.extrapolated;
    return *this;
  }
};

/// New tokens of one sequence in a step and how many it already has in the cache.
struct SequenceWork {
  std::uint64_t new_tokens = 0;
  std::uint64_t context = 0;
};

/// What deciding one row of one MoE layer reads and computes: linear H → E; hidden_mlp H → w → E;
/// token_mlp the row's embedding d → w → E, one router for all MoE layers, whose cost is spread
/// evenly over them. Biases, activations and LayerNorm are left out.
struct GateShape {
  double weights = 0;  ///< of the matrices; 2 FLOPs each per row
  double input = 0;    ///< values read per row
  double inner = 0;    ///< values between two matrices per row, written and read
};
[[nodiscard]] GateShape gate_shape(const model::ModelConfig& model);

class CostModel {
 public:
  /// Keeps copies; the arguments need not outlive the model. Throws InputError when the GPU type
  /// has no arithmetic for a precision the scenario names.
  CostModel(const model::ModelConfig& model, const model::DTypeChoice& dtype,
            model::DType activations, const scenario::GpuType& gpu,
            const scenario::CostSpec& cost = {});

  /// What a step pays once: the launch of its graph; zero when eager.
  [[nodiscard]] OpCost step_launch() const;
  /// Fixed time of a kernel.
  [[nodiscard]] SimTime launch() const {
    return spec_.launch == scenario::LaunchMode::kEager ? gpu_.kernel_launch : spec_.graph_kernel;
  }
  /// kernels · launch + max(bytes/(mbu·HBM), flops/(share·peak(p))). `share` is mfu or mfu_grouped.
  [[nodiscard]] OpCost roofline(double bytes, double flops, model::DType p, double share,
                                std::uint32_t kernels) const;

  /// Token lookup: T·H·(w + a) bytes; of a part of the vocabulary its share of w.
  [[nodiscard]] OpCost embedding(std::uint64_t tokens) const;
  /// RMSNorm, QKV projection, RoPE + cache append, attention core, output projection + residual.
  /// Core, per sequence with n new tokens and c cached: attended pairs n·c + n(n+1)/2 (windows
  /// honoured), 2·h·(d_qk + d_v) FLOPs per pair, cache bytes read once per sequence. MLA with r =
  /// latent rank: one new token 2·h·(2r + rope) per pair (absorbed); several the fewer of that and
  /// 2·h·(nope + rope + v) per pair + 2·c·h·r·(nope + v) (keys and values per head, those of the
  /// cached tokens made again), then (n + c)·h·(nope + rope + v) values written and read.
  /// `shares` > 1 (sequence parallelism): norm and residual are of 1 / shares of the tokens.
  [[nodiscard]] OpCost attention(std::size_t layer, std::span<const SequenceWork> work,
                                 std::uint32_t shares = 1) const;
  /// Attention of n new tokens over c cached ones that lie here, per sequence, n·c pairs: the cache
  /// and the queries are read, a part of the softmax (h·(d_v + 2) values in FP32) is written.
  [[nodiscard]] OpCost partial_attention(std::span<const SequenceWork> work) const;
  /// Adds up so many parts of `values` FP32 values each.
  [[nodiscard]] OpCost merge_parts(std::uint64_t parts, std::uint64_t values) const;
  /// k of the permutation and of the weighted sum, at most one expert per slot of a policy's
  /// decision; the model's top_k until it is called. Slots that stay empty count too.
  void use_slots(std::uint32_t slots) { slots_ = slots; }
  /// Whether the step only decodes: which grouped GEMM cost.grouped_gemm = auto takes.
  void use_decode(bool only_decode) { only_decode_ = only_decode; }
  /// Entries of the whole vocabulary where the model has a part of it: then head() gives the part's
  /// logits, in the activations' format, and sampling() is apart; embedding() reads
  /// vocab_size / entries of the rows. Without the call the model has all of it.
  void use_vocabulary(std::uint64_t entries) { vocabulary_ = entries; }
  /// RMSNorm, gate GEMM (T·H·E, or the GateShape of an MLP router), top-k, then the permutation of
  /// T·k rows: T·H·a read, T·k·H·a written. GEMM and top-k are of the `routed` tokens only: a
  /// policy may decide the others without the router.
  [[nodiscard]] OpCost router(std::uint64_t tokens, std::uint64_t routed) const;
  /// The parts of router() when the gate runs elsewhere: norm of T tokens, gate and top-k of the
  /// rows of a unit (0 for none), permutation of T tokens.
  [[nodiscard]] OpCost router_norm(std::uint64_t tokens) const;
  [[nodiscard]] OpCost router_gate(std::uint64_t rows) const;
  [[nodiscard]] OpCost router_permute(std::uint64_t tokens) const;
  /// Grouped gate+up GEMM with SwiGLU, then grouped down GEMM, over this GPU's local experts.
  /// `rows[i]` is the number of assignments of local expert i; experts with 0 rows cost nothing.
  [[nodiscard]] OpCost experts(std::span<const std::uint32_t> rows) const;
  /// The same when `soft[i]` of rows[i] are of `soft_tokens` soft tokens whose gate+up is one dense
  /// GEMM with the stacked weights of all L local experts (M17 stacked):
  ///   L·⅔·W_e·w + S·(H + L·I)·a bytes, 4·S·H·L·I FLOPs for S soft tokens
  /// beside the grouped GEMM of the others; the down GEMM is of all rows.
  [[nodiscard]] OpCost experts_stacked(std::span<const std::uint32_t> rows,
                                       std::span<const std::uint32_t> soft,
                                       std::uint64_t soft_tokens) const;
  /// Time of one local expert by itself with `rows` rows, without launches; 0 for 0 rows.
  [[nodiscard]] SimTime expert_alone(std::uint32_t rows) const;
  /// Weighted sum of the returned rows and residual: (T·k + 2T)·H·a bytes.
  /// With shares > 1 the residual is of 1 / shares of the tokens.
  [[nodiscard]] OpCost combine_sum(std::uint64_t tokens, std::uint32_t shares = 1) const;
  /// Shared experts of a MoE layer (0 cost when the model has none).
  [[nodiscard]] OpCost shared(std::uint64_t tokens) const;
  /// Dense FFN of a layer that is not MoE (norm included; 0 for attention-only layers).
  /// With shares > 1 the norm is of 1 / shares of the tokens.
  [[nodiscard]] OpCost dense(std::size_t layer, std::uint64_t tokens,
                             std::uint32_t shares = 1) const;
  /// Final norm, LM head for `rows` rows, sampling; of a part of the vocabulary no sampling.
  [[nodiscard]] OpCost head(std::uint64_t rows) const;
  /// From `rows` rows of logits of the whole vocabulary, 4·V bytes each.
  [[nodiscard]] OpCost sampling(std::uint64_t rows) const;

  /// Asks for every table that layers of this model may ask for in steps that decode and in steps
  /// with prompts. InputError: several libraries have times of one operation.
  void ask_all(bool decode, bool prefill) const;
  /// Adds the tables that times came from.
  void add_used(std::set<const scenario::OpTable*>& tables) const;

  [[nodiscard]] const model::ModelConfig& model() const { return model_; }
  [[nodiscard]] const model::DTypeChoice& dtype() const { return dtype_; }
  /// Format a GEMM runs in whose stored operand has `stored`.
  [[nodiscard]] model::DType compute_format(model::DType stored) const;
  [[nodiscard]] const scenario::GpuType& gpu() const { return gpu_; }

 private:
  /// One kernel of a fused group: bytes, of which `inside` stay on the chip when fused, and flops.
  struct Part {
    double bytes, inside, flops;
    model::DType format;
    double share;
  };
  /// The parts one after the other, or as one kernel when fused.
  [[nodiscard]] OpCost group(std::initializer_list<Part> parts) const;
  [[nodiscard]] bool fused() const { return spec_.launch == scenario::LaunchMode::kFused; }
  static constexpr std::size_t kFormats = static_cast<std::size_t>(model::DType::kQ6K) + 1;
  /// FLOP/s in the format that a GEMM runs in whose stored operand has `stored`.
  [[nodiscard]] double peak(model::DType stored) const {
    return peak_[static_cast<std::size_t>(stored)];
  }
  struct Asked;
  /// The table that a question of this kind goes to; null: none.
  Asked* table_of(scenario::OpKind kind, model::DType format,
                  std::initializer_list<std::uint64_t> shape) const;
  /// Whether product() of these n and k is measured.
  [[nodiscard]] bool has_product(double n, double k) const;
  /// The measured time, if the calibration has it; bytes and flops are the roofline's.
  bool measured(scenario::OpKind kind, model::DType format,
                std::initializer_list<std::uint64_t> shape, const std::array<double, 3>& at,
                OpCost& cost) const;
  /// A product of m rows of k with n × k shared weights by itself; measured = 1 when it is.
  [[nodiscard]] OpCost product(double m, double n, double k) const;
  /// The projections of latent attention to queries, keys and values; none of them measured: false.
  bool measured_mla(std::span<const SequenceWork> work, OpCost& cost) const;
  [[nodiscard]] OpCost core(std::size_t layer, std::span<const SequenceWork> work) const;
  [[nodiscard]] OpCost core_of(std::size_t layer, std::span<const SequenceWork> work) const;
  /// `shares` of 0: no norm. Where gate and up are measured as a GEMM (gate and up in one or twice
  /// one of them), the activation is a kernel of its own, as libraries run it:
  ///   T·m·I·a bytes, m matrices (3: reads 2·I, writes I per token), at the roofline.
  [[nodiscard]] OpCost ffn(std::uint64_t tokens, std::uint64_t width, std::uint32_t shares) const;
  model::ModelConfig model_;
  model::DTypeChoice dtype_;
  model::DType activations_ = model::DType::kBf16;
  model::DType inputs_ = model::DType::kBf16;  ///< Of GEMMs.
  scenario::GpuType gpu_;
  scenario::CostSpec spec_;
  /// Tables that were asked for (null: none), and answers of this step's places.
  using TableKey =
      std::tuple<scenario::OpKind, std::string_view, model::DType, std::vector<std::uint64_t>>;
  struct Asked {
    std::unique_ptr<OpTimer> timer;
    bool used = false;
    std::map<std::array<double, 3>, OpTime> known;
  };
  mutable std::map<TableKey, std::shared_ptr<Asked>> tables_;
  bool only_decode_ = true;
  std::array<double, kFormats> peak_{};  // FLOP/s by stored format
  GateShape gate_;
  double a_ = 2, w_ = 2;                      // bytes per activation, per backbone weight
  double expert_w_ = 2;                       // bytes per expert weight
  std::uint32_t slots_ = 0;                   // k: copies of a token's row
  std::uint64_t vocabulary_ = 0;              // entries of the whole one
  double expert_matrices_ = 3;                // matrices per expert
  double expert_bytes_ = 0;                   // weight bytes of one expert
  double qkv_weights_ = 0, out_weights_ = 0;  // attention projection weights of one layer
};

}  // namespace switchyard::sim
