// SPDX-License-Identifier: Apache-2.0
// File: backend.hpp. The few operations a Mixture-of-Experts forward pass is made of, over memory
// that belongs to one device. The forward pass (engine/nn) is written once against this interface.
//
// Memory: `float*` arguments and the data of a WeightView lie in the backend's own memory (for the
// CPU backend: ordinary memory; weights may be a read-only file mapping). Host code may only touch
// them through upload() and download(). Index arguments (std::span) are always host memory.
// Shapes are row-major; a "row" is one token of the current step. Values are float32.
//
// Promise of every backend in float32: a row's result depends only on that row's own inputs, never
// on the number of rows in the call, on its place among them, or on the number of threads. A
// backend of another precision() says what of this it keeps (kernels/cuda_backend.hpp).
//
// Not modelled: activations of fewer than 16 bits, several devices per backend.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/kv_cache.hpp"

namespace switchyard {

struct Candidates;       // engine/routing/candidates.hpp
struct GateSpec;         // engine/routing/gate.hpp
struct SamplingOptions;  // engine/nn/sampling.hpp

/// How a weight is stored. The first three widen to float32 without rounding; the packed ones mean
/// the float32 values that packed_weights.hpp gives, and are widened block by block where they are
/// used, so that a model is never held twice.
enum class WeightType : std::uint8_t {
  kF32,
  kBf16,
  kF16,
  kFp8,    ///< E4M3 with a float32 scale per 128 x 128 block
  kMxfp4,  ///< 4-bit values, a power-of-two scale per 32
  kQ8,     ///< GGUF Q8_0
  kQ4,     ///< GGUF Q4_0
  kQ4K,    ///< GGUF Q4_K
  kQ6K,    ///< GGUF Q6_K
  kMx4,    ///< GGUF MXFP4: each scale stands before its values
};

/// Bytes per element of the plain types: 4, 2, 2.
constexpr std::size_t weight_bytes(WeightType type) { return type == WeightType::kF32 ? 4 : 2; }

/// A borrowed weight matrix W[rows, cols], row-major: y = W x maps `cols` inputs to `rows` outputs.
/// A vector has rows = 1. The data outlives every call that uses the view.
struct WeightView {
  const void* data = nullptr;
  WeightType type = WeightType::kF32;
  std::size_t rows = 0;
  std::size_t cols = 0;
  // A packed view (is_packed): row r is row first_row + r * row_step of the matrix stored at
  // `data`.
  const void* scales = nullptr;  ///< kFp8: float32 [.., ceil(cols / 128)]; kMxfp4: [.., cols / 32]
  std::size_t first_row = 0;
  std::size_t row_step = 1;
  std::size_t stored_width = 0;  ///< > 0: stored transposed, [cols, stored_width], plain types only
};

/// Whether the rows must be widened before use: not a plain row-major matrix. Vectors never are.
constexpr bool is_packed(const WeightView& w) {
  return w.type > WeightType::kF16 || w.stored_width > 0;
}

/// The three matrices of one SwiGLU expert: down(silu(gate x) * (up x)).
/// gate and up are [I, H], down is [H, I]. Biases, when their data is not null, are [1, I], [1, I]
/// and [1, H]. limit > 0: GPT-OSS's form instead, with g = min(gate x + bias, limit) and
/// u = clamp(up x + bias, -limit, limit): down(g * sigmoid(1.702 g) * (u + 1)) + bias.
struct ExpertView {
  WeightView gate, up, down;
  WeightView gate_bias{}, up_bias{}, down_bias{};
  float limit = 0;
};

/// What one layer's attention computes beyond its shape.
struct AttentionRule {
  /// The last 2 * size entries of each query and key head are rotated by position * frequency.
  std::span<const float> inverse_frequency{};
  float rotation_gain = 1;         ///< Multiplies cosine and sine (YaRN).
  float scale = 0;                 ///< Of q k; 0: 1/sqrt(head_dim).
  std::size_t sliding_window = 0;  ///< 0: none. Else position p sees p − window + 1 … p.
  WeightView sinks{};  ///< [1, heads]: one more logit of each softmax, without a value; or null.
  /// ALiBi, or empty: head j's score of key position s and query position p becomes
  /// scale q k - slopes[j] (p - s).
  std::span<const float> slopes{};
};

/// A layer's gate: z = router x (+ router_bias), ranked as rank_candidates() does.
struct GateCall {
  const GateSpec* gate = nullptr;  ///< Valid.
  WeightView router{};             ///< [E, H], of place_exact().
  WeightView router_bias{};        ///< [1, E], or null data.
  std::span<const float>
      selection_bias{};     ///< [E] host memory that outlives the backend, or empty.
  std::uint32_t width = 0;  ///< M, top_k…E.
};

/// What a layer that the backend routed itself chose; filled by finish_routed().
struct RoutedLayer {
  std::span<float> logits{};            ///< [rows, E], the caller's.
  Candidates* candidates = nullptr;     ///< The caller's.
  std::vector<std::uint16_t> chosen{};  ///< [rows, K]
  std::vector<float> weights{};         ///< [rows, K]
};

/// Float buffer in backend memory, not initialised; freed with the handle.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  [[nodiscard]] virtual float* data() = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  /// "cpu avx2": device and the arithmetic path; part of the engine build recorded in traces.
  [[nodiscard]] virtual std::string name() const = 0;
  /// "f32" or "bf16": of the operands of matrix products; sums are float32. Recorded in traces.
  [[nodiscard]] virtual std::string precision() const { return "f32"; }

  [[nodiscard]] virtual std::unique_ptr<DeviceBuffer> allocate(std::size_t floats) = 0;
  virtual void upload(std::span<const float> host, float* device) = 0;
  virtual void download(const float* device, std::span<float> host) = 0;
  /// Makes a weight in host memory usable by the operations below. The CPU backend returns the view
  /// itself, so the host memory must stay alive; others copy.
  [[nodiscard]] virtual WeightView place(const WeightView& host) = 0;
  /// The same for a matrix that decides (a gate's): neither it nor what it is multiplied with is
  /// rounded, whatever the precision.
  [[nodiscard]] virtual WeightView place_exact(const WeightView& host) { return place(host); }

  /// out[r] = table[tokens[r]]; table [V, H], tokens[r] < V.
  virtual void embed(const WeightView& table, std::span<const std::uint32_t> tokens,
                     float* out) = 0;
  /// out[r] = weight * (x[r] / sqrt(mean(x[r]^2) + eps)); weight [1, H]; out may be x.
  virtual void rms_norm(const float* x, std::size_t rows, const WeightView& weight, float eps,
                        float* out) = 0;
  /// out[r, n] = sum_k w[n, k] x[r, k]; x [rows, w.cols], out [rows, w.rows], no overlap.
  virtual void linear(const float* x, std::size_t rows, const WeightView& w, float* out) = 0;
  /// out[i] = x[index[i]], rows of `columns` floats; no overlap.
  virtual void gather(const float* x, std::span<const std::uint32_t> index, std::size_t columns,
                      float* out) = 0;
  /// x[i] += y[i].
  virtual void add(float* x, const float* y, std::size_t count) = 0;
  /// x[r] += bias for each of `rows` rows; bias [1, columns].
  virtual void add_bias(float* x, std::size_t rows, const WeightView& bias) = 0;
  /// gate[i] = silu(gate[i]) * up[i], or with limit > 0 the form of ExpertView::limit.
  virtual void swiglu(float* gate, const float* up, std::size_t count, float limit) = 0;
  /// x[i] = min(max(x[i], -limit), limit).
  virtual void clamp(float* x, std::size_t count, float limit) = 0;
  /// linear() of each head j apart: out[r, j * out_stride + n] = w[j] . x[r, j * in_stride ...],
  /// n < w[j].rows. x [rows, heads * in_stride], out [rows, heads * out_stride]; no overlap.
  virtual void linear_heads(const float* x, std::size_t rows, std::size_t in_stride,
                            std::span<const WeightView> w, std::size_t out_stride, float* out) = 0;
  /// out[r * out_stride + i] = x[r * in_stride + i], i < columns; no overlap.
  virtual void copy_columns(const float* x, std::size_t rows, std::size_t in_stride,
                            std::size_t columns, float* out, std::size_t out_stride) = 0;

  /// Paged keys and values. InputError: options out of range.
  [[nodiscard]] virtual std::unique_ptr<KvPool> make_pool(const AttentionShape& shape,
                                                          const KvOptions& options) = 0;
  /// One layer's attention over the rows of a step. q [rows, heads*head_dim], k and v
  /// [rows, kv_heads*head_dim] (v is not read when latent), before rotation. Row r belongs to
  /// *caches[r] at position positions[r]. Rotates q and k, stores k and v in the cache, and writes
  /// softmax(scale q K^T) V, causal, into out [rows, heads*value_dim]. All caches are of one pool;
  /// rows of one sequence follow each other in order of position without gaps, continuing the
  /// cache. rule.sliding_window is the pool's. After the last layer call advance().
  virtual void attention(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                         std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                         const AttentionRule& rule, float* out) = 0;
  /// Declares `tokens` more rows of `cache` complete in all layers; blocks that fell out of a
  /// layer's sliding window go back to the pool.
  virtual void advance(KvCache& cache, std::size_t tokens) = 0;

  /// out[r] = sum over slots j = 0..slots-1, in that order, of weights[r, j] *
  /// expert[chosen[r, j]](x[r]); a slot with chosen = 0xFFFF contributes nothing, so a row without
  /// experts is exactly zero. x and out [rows, H]; chosen and weights [rows, slots], host memory;
  /// every other chosen id < experts.size().
  virtual void moe(const float* x, std::size_t rows, std::span<const ExpertView> experts,
                   std::span<const std::uint16_t> chosen, std::span<const float> weights,
                   std::size_t slots, float* out) = 0;
  /// The last part of moe() alone: out[r] = sum over slots j, in that order, of weights[r, j] *
  /// y[where[r, j]], nothing where `where` is 0xFFFFFFFF. y rows of `columns` floats, out
  /// [rows, columns].
  virtual void combine(const float* y, std::span<const std::uint32_t> where,
                       std::span<const float> weights, std::size_t rows, std::size_t slots,
                       std::size_t columns, float* out) = 0;

  /// The gate of a layer and its ranking on the device. logits [rows, E] and `out` are host memory:
  /// the logits have the bits of linear() and add_bias(), ids and candidates those that
  /// rank_candidates() makes of them; lse may differ in its last bit (kernels/router.hpp). False,
  /// with nothing done: not by this backend or not of this shape; the caller ranks on the host.
  virtual bool gate(const GateCall& /*call*/, const float* /*x*/, std::size_t /*rows*/,
                    std::span<float> /*logits*/, Candidates& /*out*/) {
    return false;
  }
  /// gate(), the family's own choice (no policy: the first top_k candidates run, with the family's
  /// weights), and moe() with it, while the host goes on: out [rows, H] is in the backend's order
  /// of work as after moe(), `layer` is filled by finish_routed() at the latest and stays alive
  /// until then. False, with nothing done: not by this backend or not of this shape.
  virtual bool routed_moe(const GateCall& /*call*/, std::span<const ExpertView> /*experts*/,
                          const float* /*x*/, std::size_t /*rows*/, float* /*out*/,
                          RoutedLayer& /*layer*/) {
    return false;
  }
  /// Waits until every RoutedLayer of routed_moe() so far is filled.
  virtual void finish_routed() {}
  /// Forgets them, after an error.
  virtual void drop_routed() noexcept {}
  /// tokens[r] = switchyard::sample(logits[r], options, sequence[r], position[r]) on the device;
  /// logits [tokens.size(), vocab]. nan_rows: rows with a NaN. False, with nothing done: not by
  /// this backend; the caller downloads the logits.
  virtual bool sample(const float* /*logits*/, std::size_t /*vocab*/,
                      const SamplingOptions& /*options*/,
                      std::span<const std::uint32_t> /*sequence*/,
                      std::span<const std::uint32_t> /*position*/,
                      std::span<std::uint32_t> /*tokens*/, std::uint64_t& /*nan_rows*/) {
    return false;
  }
};

/// The CPU backend. `threads` >= 1; 0 means the cores this process may use. Results do not depend
/// on it.
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend(unsigned threads);

}  // namespace switchyard
