// SPDX-License-Identifier: Apache-2.0
// Private to the kernels: dot products of a few rows of activations with weight rows, by one warp.
//
// One order of summation, whatever the rows and the weight type: lane l sums k = 8 l + 256 i +
// (0…7) in rising order by fused multiply-add from 0; the 32 lanes are added as a tree over lane
// distances 16, 8, 4, 2, 1 (each step a + b, which has no order). So a row's bits depend on neither
// its neighbours nor the batch, as backend.hpp promises.
#pragma once
#include "kernels/cuda_compat.hpp"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#else
#include <immintrin.h>
#endif

namespace switchyard::gpu {

/// How a plain weight matrix is stored; widens to float32 without rounding.
enum class Stored : std::uint8_t { kF32, kBf16, kF16 };
[[nodiscard]] constexpr std::size_t stored_bytes(Stored type) {
  return type == Stored::kF32 ? 4 : 2;
}

struct F16 {
  std::uint16_t bits;
};
SWITCHYARD_DEVICE float to_float(F16 v) {
#ifdef __CUDACC__
  __half_raw raw;
  raw.x = v.bits;
  return __half2float(__half(raw));
#else
  return _cvtsh_ss(v.bits);
#endif
}

/// 16 bytes, loaded at once.
struct alignas(16) Quad {
  std::uint32_t word[4];
};

SWITCHYARD_DEVICE void load_eight(const float* p, float (&out)[8]) {
  const Quad low = *reinterpret_cast<const Quad*>(p);
  const Quad high = *reinterpret_cast<const Quad*>(p + 4);
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    out[i] = bits_float(low.word[i]);
    out[i + 4] = bits_float(high.word[i]);
  }
}
template <class Half>
SWITCHYARD_DEVICE void load_eight(const Half* p, float (&out)[8]) {
  const Quad all = *reinterpret_cast<const Quad*>(p);
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    out[2 * i] = to_float(Half{static_cast<std::uint16_t>(all.word[i] & 0xFFFFU)});
    out[2 * i + 1] = to_float(Half{static_cast<std::uint16_t>(all.word[i] >> 16)});
  }
}
template <class T>
SWITCHYARD_DEVICE void load_some(const T* p, std::uint64_t count, float (&out)[8]) {
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < 8; ++i) {
    out[i] = i < count ? to_float(p[i]) : 0.0F;
  }
}

/// sum[n * R + r] = this lane's part of w[n] . x[r]. kAligned: depth is a multiple of 8 and all
/// rows begin at multiples of 16 bytes.
template <class W, unsigned R, unsigned N, bool kAligned>
SWITCHYARD_DEVICE void dot_tile(const W* const (&w)[N], const float* const (&x)[R],
                                std::uint64_t depth, unsigned lane, float (&sum)[N * R]) {
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < N * R; ++i) {
    sum[i] = 0.0F;
  }
  for (std::uint64_t k = std::uint64_t{lane} * 8; k < depth; k += kWarp * 8) {
    float weight[N][8];
    SWITCHYARD_UNROLL
    for (unsigned n = 0; n < N; ++n) {
      if constexpr (kAligned) {
        load_eight(w[n] + k, weight[n]);
      } else {
        load_some(w[n] + k, depth - k, weight[n]);
      }
    }
    SWITCHYARD_UNROLL
    for (unsigned r = 0; r < R; ++r) {
      float value[8];
      if constexpr (kAligned) {
        load_eight(x[r] + k, value);
      } else {
        load_some(x[r] + k, depth - k, value);
      }
      SWITCHYARD_UNROLL
      for (unsigned n = 0; n < N; ++n) {
        SWITCHYARD_UNROLL
        for (unsigned i = 0; i < 8; ++i) {
          sum[n * R + r] = fmaf(weight[n][i], value[i], sum[n * R + r]);
        }
      }
    }
  }
}

/// One step of sum_lanes: a lane keeps kHalf of its values and adds what the lane kOffset away kept
/// of the same ones. Recursive, so that all indices are constants and v stays in registers.
template <unsigned kHalf, unsigned kOffset, unsigned V>
SWITCHYARD_DEVICE void sum_step(float (&v)[V], unsigned lane) {
  if constexpr (kHalf > 0) {
    const bool upper = (lane & kOffset) != 0;
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kHalf; ++i) {
      const float low = v[i];
      const float high = v[i + kHalf];
      v[i] = (upper ? high : low) + shuffle_xor(kAllLanes, upper ? low : high, kOffset);
    }
    sum_step<kHalf / 2, kOffset / 2>(v, lane);
  } else if constexpr (kOffset > 0) {
    v[0] = v[0] + shuffle_xor(kAllLanes, v[0], kOffset);
    sum_step<0, kOffset / 2>(v, lane);
  }
}

/// The sums of V values over the 32 lanes; lane l gets that of value l / (32 / V). V is a power of
/// two. Halves the values a lane holds in each step, so V + log2(32 / V) - 1 shuffles do.
template <unsigned V>
SWITCHYARD_DEVICE float sum_lanes(float (&v)[V], unsigned lane) {
  static_assert(V >= 1 && V <= kWarp && (V & (V - 1)) == 0);
  sum_step<V / 2, kWarp / 2>(v, lane);
  return v[0];
}

/// gate -> silu(gate) * up, or with limit > 0 GPT-OSS's form (ExpertView::limit). A NaN stays one.
SWITCHYARD_DEVICE float gated(float gate, float up, float limit) {
  if (limit > 0) {
    const float g = gate > limit ? limit : gate;
    const float low = up < -limit ? -limit : up;
    const float u = low > limit ? limit : low;
    return g / (1.0F + expf(-1.702F * g)) * (u + 1.0F);
  }
  return gate / (1.0F + expf(-gate)) * up;
}

}  // namespace switchyard::gpu
