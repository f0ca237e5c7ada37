// SPDX-License-Identifier: Apache-2.0
// File: cpu_kernels.hpp. The arithmetic of the CPU backend, single-threaded.
//
// One order of summation for every dot product, whatever the shape of the call and the processor:
//   lane i (0..15):  s_i = fma(x[16t+i], w[16t+i], s_i)  for t = 0, 1, …; K is padded with zeros to
//   16; result:          u_i = s_i + s_(i+8), i < 8;  v_i = u_i + u_(i+4), i < 4;
//                    (v_0 + v_2) + (v_1 + v_3).
// A few rows stream the weights once; many rows first widen a block of weight rows to float32 and
// then pass over it in register tiles. All paths (cpu_path.hpp) give the same bits, so prefill,
// chunked prefill, decode, and any batch agree exactly.
#pragma once
#include <cstddef>

#include "engine/backend/backend.hpp"
#include "engine/backend/cpu_path.hpp"

namespace switchyard::cpu {

/// Outputs per unit of work of many rows: weights that are widened together. Any value gives the
/// same bits; this one is a multiple of every register tile and lets the block stay in the second
/// cache.
inline constexpr std::size_t kBlockOutputs = 48;
/// Rows per unit of work.
inline constexpr std::size_t kTileRows = 512;

/// Dot product of two float vectors of length n in the order above.
[[nodiscard]] float dot(const float* a, const float* b, std::size_t n);

/// out[r*ldo + n] = w[n] . x[r] for n in [first, last), r in [0, rows). x has leading dimension
/// ldx >= w.cols. For many rows last - first should be about kBlockOutputs. Packed weights are
/// widened to float32 first, block by block, and summed in the same order. next: see Product.
void linear_block(const float* x, std::size_t ldx, std::size_t rows, const WeightView& w,
                  std::size_t first, std::size_t last, float* out, std::size_t ldo,
                  const void* next = nullptr);
/// Where row `output` of the weights begins; null beyond the end and for packed weights.
[[nodiscard]] const void* weight_row(const WeightView& w, std::size_t output);

/// The product on one path, with this thread's scratch memory.
void multiply(const Path& on, const Product& p);

/// Widens elements [offset, offset + count) of a plain weight's data to float32, exactly.
void widen(const WeightView& w, std::size_t offset, std::size_t count, float* out);

/// y[i] += a * x[i] (fused), i in [0, n).
void axpy(float a, const float* x, float* y, std::size_t n);

/// gate[i] = silu(gate[i]) * up[i], silu(z) = z / (1 + exp(-z)).
void swiglu(float* gate, const float* up, std::size_t n);

/// GPT-OSS: g = min(gate[i], limit), u = clamp(up[i], -limit, limit),
/// gate[i] = g / (1 + exp(-1.702 g)) * (u + 1).
void swiglu_clamped(float* gate, const float* up, std::size_t n, float limit);

/// x[i] = exp(x[i]) within 2 units in the last place (Cephes' expf polynomial, so that no result
/// depends on the C library). Below -87.33: 0. Above 88.37: 2.4e38. NaN stays NaN.
void exponential(float* x, std::size_t n);

/// x = softmax(scale * x); summed in 8 lanes. A NaN anywhere makes all of it NaN.
void softmax(float* x, std::size_t n, float scale);

/// out[i] = sum_j p[j] * values[j*d + i], fused, j = 0, 1, … n-1.
void weighted_sum(const float* p, const float* values, std::size_t n, std::size_t d, float* out);
/// The same with `stride` >= d floats from one row of values to the next.
void weighted_sum(const float* p, const float* values, std::size_t n, std::size_t d,
                  std::size_t stride, float* out);

/// Rotates one head of dimension n in place: pairs (i, i + n/2) by the angle whose cosine and sine
/// are given, i < n/2 (rotate-half).
void rope(float* head, std::size_t n, const float* cosine, const float* sine);
/// The same for pairs (2i, 2i + 1).
void rope_interleaved(float* head, std::size_t n, const float* cosine, const float* sine);

}  // namespace switchyard::cpu
