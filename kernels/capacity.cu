// SPDX-License-Identifier: Apache-2.0
#include "kernels/capacity.hpp"

#include "engine/routing/decide.hpp"
#include "kernels/cuda_compat.hpp"
#include "kernels/gate_rule.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::GateRule;
using gpu::kAllLanes;
using gpu::kInfinity;
using gpu::kWarp;
using gpu::Status;

constexpr unsigned kTokenThreads = 128;
constexpr std::uint32_t kDecideSlots = 32;
constexpr std::uint32_t kDecideExperts = 1024;
constexpr std::uint32_t kDecidePlaces = 8192;
constexpr std::uint32_t kNoCandidate = 0xFFFFFFFFU;
constexpr std::uint8_t kSlotNone = static_cast<std::uint8_t>(SlotOutcome::kNoSlot);
constexpr std::uint8_t kSlotKept = static_cast<std::uint8_t>(SlotOutcome::kKept);
constexpr std::uint8_t kSlotRerouted = static_cast<std::uint8_t>(SlotOutcome::kRerouted);
constexpr std::uint8_t kSlotQueued = static_cast<std::uint8_t>(SlotOutcome::kQueued);
constexpr std::uint8_t kSlotDropped = static_cast<std::uint8_t>(SlotOutcome::kDropped);

struct DecideArguments {
  GateRule gate;
  std::uint32_t tokens, slots, width, partitions;
  bool reroute, drop_token, queue, limit_drop, renorm_none, renorm_first;
  double keep_score;  // 1 - max_score_drop
  const std::uint16_t* ids;
  const float* logit;
  const float* lse;
  const float* bias;
  const std::uint32_t* partition;
  const std::uint32_t* capacity;
  const std::uint32_t* backlog;
  std::uint16_t* first;
  std::uint16_t* chosen;
  float* weights;
  std::uint8_t* outcome;
  std::uint32_t* demand;
  std::uint32_t* overflow;
  std::uint32_t* load;
  CapacityTotals* totals;
  std::uint16_t* slot_rank;    // [T][K] index of the candidate that runs
  std::uint16_t* first_count;  // [T] slots with a first choice
  std::uint16_t* usable;       // [T] leading candidates that may be reroute targets
};

SWITCHYARD_DEVICE float candidate_probability(const DecideArguments& a, std::uint64_t t,
                                              std::uint32_t r) {
  return gpu::probability(a.gate, a.logit[t * a.width + r], a.lse[t]);
}

/// Selection score for max_score_drop.
SWITCHYARD_DEVICE double selection_score(const DecideArguments& a, std::uint64_t t,
                                         std::uint32_t r) {
  const float p = candidate_probability(a, t, r);
  return a.bias != nullptr && !a.gate.identity ? p + a.bias[a.ids[t * a.width + r]] : p;
}

SWITCHYARD_DEVICE bool score_allows(const DecideArguments& a, std::uint64_t t, std::uint32_t first,
                                    std::uint32_t r) {
  return !a.limit_drop || selection_score(a, t, r) >= a.keep_score * selection_score(a, t, first);
}

/// One thread per token: first choices, and how many leading candidates are usable.
SWITCHYARD_KERNEL(kTokenThreads)
decide_first_kernel(DecideArguments a) {
  const std::uint64_t t = gpu::block_x() * kTokenThreads + gpu::thread_index();
  if (t >= a.tokens) {
    return;
  }
  const std::uint16_t* const ids = a.ids + t * a.width;
  std::uint32_t count = 0;
  bool open = true;
  for (std::uint32_t j = 0; j < a.slots; ++j) {
    open = open && ids[j] != kNoExpert;
    count += open ? 1 : 0;
    a.first[t * a.slots + j] = open ? ids[j] : kNoExpert;
  }
  a.first_count[t] = static_cast<std::uint16_t>(count);
  // The kept groups are the first topk_group distinct groups met in rank order. A group was met
  // before iff an earlier candidate belongs to it.
  const std::uint32_t group_size = a.gate.experts / a.gate.n_group;
  std::uint32_t groups = 0;
  std::uint32_t r = 0;
  for (; r < a.width; ++r) {
    const std::uint32_t e = ids[r];
    if (e == kNoExpert || a.logit[t * a.width + r] == -kInfinity ||
        (a.bias != nullptr && !(a.bias[e] > -kInfinity))) {
      break;
    }
    if (a.gate.grouped) {
      bool met = false;
      for (std::uint32_t earlier = 0; earlier < r; ++earlier) {
        met = met || ids[earlier] / group_size == e / group_size;
      }
      if (!met && groups++ == a.gate.topk_group) {
        break;
      }
    }
  }
  a.usable[t] = static_cast<std::uint16_t>(r);
}

/// One warp; the tokens in order, lane j holding slot j.
SWITCHYARD_KERNEL(kWarp)
decide_kernel(DecideArguments a) {
  SWITCHYARD_DYNAMIC_SHARED(raw);
  SWITCHYARD_SHARED(std::uint16_t, tile_first, kWarp * kDecideSlots);  // [token][K]
  SWITCHYARD_SHARED(std::uint16_t, tile_count, kWarp);
  const unsigned lane = gpu::thread_index();
  const std::uint32_t experts = a.gate.experts;
  const std::uint32_t places = a.partitions * experts;
  std::uint32_t* const load = reinterpret_cast<std::uint32_t*>(raw);  // [partition][E]
  std::uint32_t* const demand = load + places;                        // [E]
  std::uint32_t* const overflow = demand + experts;                   // [E]
  for (std::uint32_t at = lane; at < places; at += kWarp) {
    load[at] = a.backlog == nullptr ? 0 : a.backlog[at];
  }
  for (std::uint32_t e = lane; e < experts; e += kWarp) {
    demand[e] = 0;
    overflow[e] = 0;
  }
  std::uint64_t kept = 0, rerouted = 0, queued = 0, dropped = 0, truncated = 0;
  // Experts that the group limit leaves; stored candidates short of them are a truncation.
  const std::uint32_t open =
      a.gate.grouped ? a.gate.topk_group * (experts / a.gate.n_group) : experts;

  for (std::uint64_t tile = 0; tile < a.tokens; tile += kWarp) {
    gpu::sync_warp();
    const std::uint32_t rows =
        a.tokens - tile < kWarp ? static_cast<std::uint32_t>(a.tokens - tile) : kWarp;
    for (std::uint32_t at = lane; at < rows * a.slots; at += kWarp) {
      tile_first[at] = a.first[tile * a.slots + at];
    }
    if (lane < rows) {
      tile_count[lane] = a.first_count[tile + lane];
    }
    gpu::sync_warp();
    for (std::uint32_t row = 0; row < rows; ++row) {
      const std::uint64_t t = tile + row;
      const std::uint32_t count = tile_count[row];
      const std::uint32_t part = a.partition == nullptr ? 0 : a.partition[t];
      const std::uint32_t limit = a.capacity[part];
      const std::uint16_t* const ids = a.ids + t * a.width;
      std::uint32_t* const loads = load + part * experts;
      const bool has = lane < count;
      const std::uint16_t wish = has ? tile_first[row * a.slots + lane] : kNoExpert;
      std::uint16_t chosen = wish;
      std::uint8_t outcome = has ? kSlotKept : kSlotNone;
      std::uint32_t rank = has ? lane : 0;
      const bool full = has && loads[wish] >= limit;
      if (has) {
        ++demand[wish];
      }
      const unsigned full_slots = gpu::ballot(kAllLanes, full);
      if (full_slots == 0) {
        if (has) {
          ++loads[wish];
        }
      } else {
        std::uint32_t next = count;  // first candidate not tried; shared by the token's slots
        const std::uint32_t usable = a.usable[t];
        for (std::uint32_t j = 0; j < count; ++j) {
          if ((full_slots >> j & 1U) == 0) {
            if (lane == j) {
              ++loads[wish];
            }
            continue;
          }
          if (lane == j) {
            ++overflow[wish];
          }
          std::uint32_t target = kNoCandidate;
          if (a.reroute) {
            bool found = false;
            while (!found && next < usable) {
              const std::uint32_t r = next + lane;
              const unsigned room = gpu::ballot(kAllLanes, r < usable && loads[ids[r]] < limit);
              found = room != 0;
              next = found ? next + gpu::lowest_bit(room) : next + kWarp;
            }
            if (found && score_allows(a, t, j, next)) {
              target = next++;
            } else if (!found) {
              next = usable > next ? next : usable;
              truncated +=
                  usable == a.width && a.width < open && score_allows(a, t, j, a.width - 1) ? 1 : 0;
            }
          }
          if (target != kNoCandidate) {
            if (lane == j) {
              chosen = ids[target];
              outcome = kSlotRerouted;
              rank = target;
              ++loads[chosen];
            }
          } else if (a.queue) {
            if (lane == j) {
              outcome = kSlotQueued;
            }
          } else if (!a.drop_token) {
            if (lane == j) {
              chosen = kNoExpert;
              outcome = kSlotDropped;
            }
          } else {
            if (lane < j) {
              --loads[chosen];  // every earlier slot was accepted, or the token were gone
            }
            chosen = kNoExpert;
            outcome = has ? kSlotDropped : kSlotNone;
            break;
          }
        }
      }
      gpu::sync_warp();
      if (lane < a.slots) {
        a.chosen[t * a.slots + lane] = chosen;
        a.outcome[t * a.slots + lane] = outcome;
        a.slot_rank[t * a.slots + lane] = static_cast<std::uint16_t>(rank);
      }
      kept += gpu::count_bits(gpu::ballot(kAllLanes, outcome == kSlotKept));
      rerouted += gpu::count_bits(gpu::ballot(kAllLanes, outcome == kSlotRerouted));
      queued += gpu::count_bits(gpu::ballot(kAllLanes, outcome == kSlotQueued));
      dropped += gpu::count_bits(gpu::ballot(kAllLanes, outcome == kSlotDropped));
    }
  }
  gpu::sync_warp();
  for (std::uint32_t e = lane; e < experts; e += kWarp) {
    std::uint32_t accepted = 0;
    for (std::uint32_t p = 0; p < a.partitions; ++p) {
      accepted += load[p * experts + e] - (a.backlog == nullptr ? 0 : a.backlog[p * experts + e]);
    }
    a.load[e] = accepted;
    a.demand[e] = demand[e];
    a.overflow[e] = overflow[e];
  }
  if (lane == 0) {
    *a.totals = {kept, rerouted, queued, dropped, truncated};
  }
}

/// One thread per token: the family's weights over the slots that run; sums in slot order.
SWITCHYARD_KERNEL(kTokenThreads)
decide_weights_kernel(DecideArguments a) {
  const std::uint64_t t = gpu::block_x() * kTokenThreads + gpu::thread_index();
  if (t >= a.tokens) {
    return;
  }
  const GateRule& g = a.gate;
  const std::uint16_t* const first = a.first + t * a.slots;
  const std::uint16_t* const chosen = a.chosen + t * a.slots;
  const std::uint16_t* const rank = a.slot_rank + t * a.slots;
  const float* const logit = a.logit + t * a.width;
  const bool softmax_of_chosen = g.identity && !a.renorm_none;
  const bool renorm = g.renorm && !a.renorm_none && !(g.exclusive_scale && g.top_k == 1);
  // Slots of the denominator: those that run, or (renorm = first) the first choices.
  float top = -kInfinity;
  for (std::uint32_t j = 0; softmax_of_chosen && j < a.slots; ++j) {
    if ((a.renorm_first ? first[j] : chosen[j]) != kNoExpert) {
      const float z = logit[a.renorm_first ? j : rank[j]];
      top = z > top ? z : top;
    }
  }
  float divisor = 1.0F;
  if (softmax_of_chosen || renorm) {
    float sum = 0.0F;
    for (std::uint32_t j = 0; j < a.slots; ++j) {
      if ((a.renorm_first ? first[j] : chosen[j]) == kNoExpert) {
        continue;
      }
      const std::uint32_t r = a.renorm_first ? j : rank[j];
      if (!softmax_of_chosen) {
        sum += candidate_probability(a, t, r);
      } else if (logit[r] != -kInfinity) {
        sum += static_cast<float>(exp(static_cast<double>(logit[r]) - static_cast<double>(top)));
      }
    }
    divisor = softmax_of_chosen ? sum : sum + g.eps;
  }
  const bool scaled = !(g.exclusive_scale && renorm);
  for (std::uint32_t j = 0; j < a.slots; ++j) {
    float weight = 0.0F;
    if (chosen[j] != kNoExpert) {
      const std::uint32_t r = rank[j];
      float v = 0.0F;
      if (!softmax_of_chosen) {
        v = candidate_probability(a, t, r);
      } else if (logit[r] != -kInfinity) {
        v = static_cast<float>(exp(static_cast<double>(logit[r]) - static_cast<double>(top)));
      }
      // A divisor of 0 means that every p is 0 (a row of NaN): nothing is added to the residual.
      weight = divisor > 0.0F ? v / divisor : 0.0F;
      weight = scaled ? weight * g.scale : weight;
    }
    a.weights[t * a.slots + j] = weight;
  }
}

}  // namespace

Status can_run(const CapacityParams& p) {
  const CapacityPolicy& c = p.policy.capacity;
  if (!gpu::gate_is_sound(p.gate) || p.width < p.gate.top_k || p.width > p.gate.experts ||
      p.partitions == 0) {
    return Status::kInvalidShape;
  }
  const bool sequential = c.rule == CapacityRule::kNone || c.mode == OverflowMode::kSequential ||
                          (c.mode == OverflowMode::kAuto && c.order == OverflowOrder::kPosition);
  if (!sequential || p.gate.top_k > kDecideSlots || p.gate.experts > kDecideExperts ||
      p.partitions > kDecidePlaces / p.gate.experts) {
    return Status::kUnsupported;
  }
  return Status::kOk;
}

std::size_t workspace_bytes(const CapacityParams& p) {
  return (std::size_t{p.tokens} * (p.gate.top_k + 2) * sizeof(std::uint16_t) + 15) / 16 * 16;
}

Status launch(const CapacityParams& p, gpu::Stream stream) {
  Status status = can_run(p);
  if (status != Status::kOk) {
    return status;
  }
  if (p.workspace_size < workspace_bytes(p)) {
    return Status::kWorkspaceTooSmall;
  }
  const CapacityPolicy& c = p.policy.capacity;
  const std::uint32_t slots = p.gate.top_k;
  DecideArguments a{};
  a.gate = gpu::gate_rule(p.gate);
  a.tokens = p.tokens;
  a.slots = slots;
  a.width = p.width;
  a.partitions = p.partitions;
  a.reroute = c.reroute == Reroute::kNext;
  a.drop_token = c.exhausted == Exhausted::kDropToken;
  a.queue = c.exhausted == Exhausted::kQueue;
  a.limit_drop = c.max_score_drop.has_value();
  a.keep_score = 1.0 - c.max_score_drop.value_or(0.0);
  a.renorm_none = p.policy.renorm == WeightRenorm::kNone;
  a.renorm_first = p.policy.renorm == WeightRenorm::kFirst;
  a.ids = p.ids;
  a.logit = p.logit;
  a.lse = p.lse;
  a.bias = p.bias;
  a.partition = p.partition;
  a.capacity = p.capacity;
  a.backlog = p.backlog;
  a.first = p.first;
  a.chosen = p.chosen;
  a.weights = p.weights;
  a.outcome = p.outcome;
  a.demand = p.demand;
  a.overflow = p.overflow;
  a.load = p.load;
  a.totals = p.totals;
  a.slot_rank = static_cast<std::uint16_t*>(p.workspace);
  a.first_count = a.slot_rank + std::size_t{p.tokens} * slots;
  a.usable = a.first_count + p.tokens;
  const gpu::Grid per_token{(std::uint64_t{p.tokens} + kTokenThreads - 1) / kTokenThreads, 1};
  if (p.tokens > 0) {
    status = gpu::launch_kernel("decide_first", decide_first_kernel, per_token, kTokenThreads, 0,
                                stream, a);
  }
  if (status == Status::kOk) {
    const std::size_t shared = (p.partitions + 2) * p.gate.experts * sizeof(std::uint32_t);
    status = gpu::launch_kernel("decide", decide_kernel, {1, 1}, kWarp, shared, stream, a);
  }
  if (status == Status::kOk && p.tokens > 0) {
    status = gpu::launch_kernel("decide_weights", decide_weights_kernel, per_token, kTokenThreads,
                                0, stream, a);
  }
  return status;
}

}  // namespace switchyard::SWITCHYARD_KERNELS
