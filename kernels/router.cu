// SPDX-License-Identifier: Apache-2.0
#include "kernels/router.hpp"

#include "kernels/cuda_compat.hpp"
#include "kernels/few_rows.hpp"
#include "kernels/gate_rule.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::GateRule;
using gpu::kAllLanes;
using gpu::kInfinity;
using gpu::kWarp;
using gpu::Status;

constexpr unsigned kRouterWarps = 4;
constexpr unsigned kRouterThreads = kRouterWarps * kWarp;
constexpr std::uint32_t kRouterExperts = 512;
constexpr std::uint32_t kRouterGroups = 64;
constexpr unsigned kGateWarps = 4;
constexpr unsigned kGateThreads = kGateWarps * kWarp;
constexpr unsigned kGateOutputs = 4;  // experts of one warp at a time

struct RouterArguments {
  GateRule gate;
  std::uint32_t tokens, width;
  bool by_score;  // the selection score orders the experts, not the logit
  const float* logits;
  const float* bias;
  std::uint16_t* ids;
  float* logit;
  float* lse;
  std::uint8_t* nan_row;
};

SWITCHYARD_DEVICE float finite_or_low(float z) { return z != z || z == kInfinity ? -kInfinity : z; }

/// Grows with the value and, for equal values, falls with the id; above 0 for every expert. -0 and
/// +0 are equal.
SWITCHYARD_DEVICE std::uint64_t rank_key(float value, std::uint32_t expert) {
  const std::uint32_t bits = gpu::float_bits(value == 0.0F ? 0.0F : value);
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (std::uint64_t{ordered} << 32) | (0xFFFFU - expert);
}

/// Ranks token t, whose logits are `row`, by one warp. Lane l holds the experts l, l + 32, …:
/// kPerLane of them, so that all stay in registers. Shared memory of the warp: terms of the sum
/// [E], selection scores [E], group scores [64].
template <unsigned kPerLane>
SWITCHYARD_DEVICE void rank_row(const RouterArguments& a, std::uint64_t t, const float* row,
                                unsigned lane, double* terms, float* selection,
                                float* group_score) {
  const std::uint32_t experts = a.gate.experts;
  float value[kPerLane];
  bool bad = false;
  float top = -kInfinity;
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < kPerLane; ++i) {
    const std::uint32_t e = lane + i * kWarp;
    const float z = e < experts ? row[e] : -kInfinity;
    value[i] = finite_or_low(z);
    bad = bad || z != z || z == kInfinity;
    top = value[i] > top ? value[i] : top;
  }
  bad = gpu::any(kAllLanes, bad);
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = gpu::shuffle_xor(kAllLanes, top, offset);
    top = other > top ? other : top;
  }

  // Log-sum-exp in double over e = 0…E-1.
  float lse = -kInfinity;
  if (top != -kInfinity) {
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kPerLane; ++i) {
      const std::uint32_t e = lane + i * kWarp;
      if (e < experts) {
        terms[e] = value[i] == -kInfinity
                       ? 0.0
                       : exp(static_cast<double>(value[i]) - static_cast<double>(top));
      }
    }
    gpu::sync_warp();
    double sum = 0;
    for (std::uint32_t e = 0; e < experts; ++e) {
      sum += terms[e];
    }
    lse = static_cast<float>(static_cast<double>(top) + log(sum));
  }
  if (lane == 0) {
    a.lse[t] = lse;
    a.nan_row[t] = bad ? 1 : 0;
  }

  // What orders the experts: the logit, or the selection score; outside the kept groups the mask.
  if (a.by_score || a.gate.grouped) {
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kPerLane; ++i) {
      const std::uint32_t e = lane + i * kWarp;
      if (e < experts) {
        float s = -kInfinity;
        if (value[i] != -kInfinity) {
          s = a.gate.identity ? value[i] : gpu::probability(a.gate, value[i], lse);
          s = a.bias == nullptr ? s : s + a.bias[e];
          s = s != s ? -kInfinity : s;
        }
        selection[e] = s;
      }
    }
    gpu::sync_warp();
    std::uint64_t kept = ~std::uint64_t{0};
    const std::uint32_t size = experts / a.gate.n_group;
    if (a.gate.grouped) {
      for (std::uint32_t g = lane; g < a.gate.n_group; g += kWarp) {
        float best = -kInfinity;
        float second = -kInfinity;
        for (std::uint32_t e = g * size; e < (g + 1) * size; ++e) {
          const float s = selection[e];
          if (s > best) {
            second = best;
            best = s;
          } else if (s > second) {
            second = s;
          }
        }
        group_score[g] = a.gate.group_sum ? best + second : best;
      }
      gpu::sync_warp();
      kept = 0;
      for (std::uint32_t n = 0; n < a.gate.topk_group; ++n) {
        std::uint32_t pick = a.gate.n_group;
        for (std::uint32_t g = 0; g < a.gate.n_group; ++g) {
          if ((kept >> g & 1U) == 0 &&
              (pick == a.gate.n_group || group_score[g] > group_score[pick])) {
            pick = g;
          }
        }
        kept |= std::uint64_t{1} << pick;
      }
    }
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kPerLane; ++i) {
      const std::uint32_t e = lane + i * kWarp;
      if (e < experts) {
        const float s = selection[e];
        if (a.by_score) {
          value[i] = s;
        }
        if (a.gate.grouped && (kept >> (e / size) & 1U) == 0) {
          value[i] = a.gate.mask_zero && s != -kInfinity ? 0.0F : -kInfinity;
        }
      }
    }
  }

  // M rounds of arg-max; a taken expert leaves the race, so the ids are distinct even in a row of
  // NaN.
  std::uint32_t taken = 0;
  for (std::uint32_t r = 0; r < a.width; ++r) {
    std::uint64_t best = 0;
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kPerLane; ++i) {
      const std::uint32_t e = lane + i * kWarp;
      if (e < experts && (taken >> i & 1U) == 0) {
        const std::uint64_t key = rank_key(value[i], e);
        best = key > best ? key : best;
      }
    }
    for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
      const std::uint64_t other = gpu::shuffle_xor(kAllLanes, best, offset);
      best = other > best ? other : best;
    }
    const std::uint32_t e = 0xFFFFU - static_cast<std::uint32_t>(best & 0xFFFFU);
    if (e % kWarp == lane) {
      taken |= 1U << (e / kWarp);
    }
    if (r % kWarp == lane) {
      a.ids[t * a.width + r] = static_cast<std::uint16_t>(e);
      a.logit[t * a.width + r] = finite_or_low(row[e]);
    }
  }
}

template <unsigned kPerLane>
SWITCHYARD_KERNEL(kRouterThreads)
router_kernel(RouterArguments a) {
  SWITCHYARD_DYNAMIC_SHARED(raw);
  const unsigned lane = gpu::thread_index() % kWarp;
  const unsigned warp = gpu::thread_index() / kWarp;
  const std::uint64_t t = gpu::block_x() * kRouterWarps + warp;
  if (t >= a.tokens) {
    return;  // the whole warp, and no barrier of the block follows
  }
  const std::uint32_t experts = a.gate.experts;
  double* const terms = reinterpret_cast<double*>(raw) + warp * experts;
  float* const scores =
      reinterpret_cast<float*>(reinterpret_cast<double*>(raw) + kRouterWarps * experts);
  rank_row<kPerLane>(a, t, a.logits + t * experts, lane, terms, scores + warp * experts,
                     scores + kRouterWarps * experts + warp * kRouterGroups);
}

struct GateArguments {
  const float* x;
  const void* w;
  const float* linear_bias;
  std::uint32_t depth;
  float* logits;
};

/// One block per token: its warps multiply, 4 experts each at a time; then the first one ranks.
template <class W, unsigned kPerLane, bool kAligned>
SWITCHYARD_KERNEL(kGateThreads)
gate_router_kernel(RouterArguments a, GateArguments g) {
  SWITCHYARD_DYNAMIC_SHARED(raw);
  const unsigned lane = gpu::thread_index() % kWarp;
  const unsigned warp = gpu::thread_index() / kWarp;
  const std::uint64_t t = gpu::block_x();
  const std::uint32_t experts = a.gate.experts;
  double* const terms = reinterpret_cast<double*>(raw);          // [E]
  float* const row = reinterpret_cast<float*>(terms + experts);  // [E] logits
  const float* const x[1] = {g.x + t * g.depth};
  for (std::uint32_t first = warp * kGateOutputs; first < experts;
       first += kGateWarps * kGateOutputs) {
    const W* w[kGateOutputs];
    SWITCHYARD_UNROLL
    for (unsigned n = 0; n < kGateOutputs; ++n) {
      const std::uint64_t e = first + n < experts ? first + n : experts - 1;
      w[n] = static_cast<const W*>(g.w) + e * g.depth;
    }
    float sum[kGateOutputs];
    gpu::dot_tile<W, 1, kGateOutputs, kAligned>(w, x, g.depth, lane, sum);
    const float dot = gpu::sum_lanes(sum, lane);
    constexpr unsigned kHolders = kWarp / kGateOutputs;
    const std::uint32_t e = first + lane / kHolders;
    if (lane % kHolders == 0 && e < experts) {
      row[e] = g.linear_bias == nullptr ? dot : dot + g.linear_bias[e];
      g.logits[t * experts + e] = row[e];
    }
  }
  gpu::sync_block();  // the logits are there
  if (warp == 0) {
    rank_row<kPerLane>(a, t, row, lane, terms, row + experts, row + 2 * experts);
  }
}

std::size_t router_shared(const RouterParams& p) {
  return kRouterWarps *
         (p.gate.experts * (sizeof(double) + sizeof(float)) + kRouterGroups * sizeof(float));
}

template <unsigned kPerLane>
Status launch_router(const RouterArguments& a, const RouterParams& p, gpu::Stream stream) {
  const std::uint64_t blocks = (std::uint64_t{p.tokens} + kRouterWarps - 1) / kRouterWarps;
  return gpu::launch_kernel("router", router_kernel<kPerLane>, {blocks, 1}, kRouterThreads,
                            router_shared(p), stream, a);
}

template <class W>
Status launch_gate_router(const RouterArguments& a, const GateRouterParams& p, gpu::Stream stream) {
  const GateArguments g{p.x, p.w, p.linear_bias, p.depth, p.logits};
  const std::size_t shared =
      p.router.gate.experts * (sizeof(double) + 2 * sizeof(float)) + kRouterGroups * sizeof(float);
  const bool wide = p.aligned && p.depth % 8 == 0;
  const auto run = [&](auto kernel) {
    return gpu::launch_kernel("gate_router", kernel, {p.router.tokens, 1}, kGateThreads, shared,
                              stream, a, g);
  };
  if (p.router.gate.experts <= 4 * kWarp) {
    return wide ? run(gate_router_kernel<W, 4, true>) : run(gate_router_kernel<W, 4, false>);
  }
  return wide ? run(gate_router_kernel<W, 16, true>) : run(gate_router_kernel<W, 16, false>);
}

/// Without a bias the score grows with the logit; DeepSeek-V2's mask 0.0 can tie with a score.
RouterArguments router_arguments(const RouterParams& p) {
  const GateRule gate = gpu::gate_rule(p.gate);
  const bool by_score = p.bias != nullptr || (gate.grouped && gate.mask_zero);
  return {gate, p.tokens, p.width, by_score, p.logits, p.bias, p.ids, p.logit, p.lse, p.nan_row};
}

}  // namespace

Status can_run(const RouterParams& p) {
  if (!gpu::gate_is_sound(p.gate) || p.width < p.gate.top_k || p.width > p.gate.experts) {
    return Status::kInvalidShape;
  }
  if (p.gate.experts > kRouterExperts || p.gate.n_group > kRouterGroups) {
    return Status::kUnsupported;
  }
  return Status::kOk;
}

std::size_t workspace_bytes(const RouterParams&) { return 0; }

Status launch(const RouterParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.tokens == 0) {
    return status;
  }
  const RouterArguments a = router_arguments(p);
  const std::uint32_t per_lane = (p.gate.experts + kWarp - 1) / kWarp;
  if (per_lane <= 1) {
    return launch_router<1>(a, p, stream);
  }
  if (per_lane <= 2) {
    return launch_router<2>(a, p, stream);
  }
  if (per_lane <= 4) {
    return launch_router<4>(a, p, stream);
  }
  if (per_lane <= 8) {
    return launch_router<8>(a, p, stream);
  }
  return launch_router<16>(a, p, stream);
}

Status can_run(const GateRouterParams& p) {
  const Status status = can_run(p.router);
  if (status != Status::kOk) {
    return status;
  }
  if (p.depth == 0) {
    return Status::kInvalidShape;
  }
  return p.router.tokens > gpu::kMaxGridX ? Status::kUnsupported : Status::kOk;
}

std::size_t workspace_bytes(const GateRouterParams&) { return 0; }

Status launch(const GateRouterParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.router.tokens == 0) {
    return status;
  }
  const RouterArguments a = router_arguments(p.router);
  switch (p.type) {
    case gpu::Stored::kF32:
      return launch_gate_router<float>(a, p, stream);
    case gpu::Stored::kBf16:
      return launch_gate_router<gpu::Bf16>(a, p, stream);
    case gpu::Stored::kF16:
      return launch_gate_router<gpu::F16>(a, p, stream);
  }
  return Status::kUnsupported;
}

}  // namespace switchyard::SWITCHYARD_KERNELS
