// SPDX-License-Identifier: Apache-2.0
#include "kernels/router.hpp"

#include "kernels/cuda_compat.hpp"
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

/// Lane l holds the experts l, l + 32, …: kPerLane of them, so that all stay in registers.
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
  // Shared, per warp: terms of the sum [E] double, selection scores [E] float, group scores [64].
  double* const terms = reinterpret_cast<double*>(raw) + warp * experts;
  float* const scores =
      reinterpret_cast<float*>(reinterpret_cast<double*>(raw) + kRouterWarps * experts);
  float* const selection = scores + warp * experts;
  float* const group_score = scores + kRouterWarps * experts + warp * kRouterGroups;
  const float* const row = a.logits + t * experts;

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
  // Without a bias the score grows with the logit; DeepSeek-V2's mask 0.0 can tie with a score.
  const GateRule gate = gpu::gate_rule(p.gate);
  const bool by_score = p.bias != nullptr || (gate.grouped && gate.mask_zero);
  const RouterArguments a{gate,   p.tokens, p.width, by_score, p.logits,
                          p.bias, p.ids,    p.logit, p.lse,    p.nan_row};
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

}  // namespace switchyard::SWITCHYARD_KERNELS
