// SPDX-License-Identifier: Apache-2.0
#include "kernels/capacity.hpp"

#include "engine/base/random.hpp"
#include "engine/routing/decide.hpp"
#include "kernels/cuda_compat.hpp"
#include "kernels/gate_rule.hpp"
#include "kernels/philox.hpp"

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
constexpr unsigned kRoundThreads = 1024;
constexpr std::uint16_t kAsksNobody = 0xFFFF;
constexpr std::uint16_t kLost = 0x8000;  // beside the candidate asked, < 1024
constexpr std::uint32_t kOverflowPurpose = random_purpose("overflow_order");
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
  // Of mode = rounds.
  OverflowOrder order;
  std::uint64_t seed;
  std::uint32_t layer;
  const std::uint32_t* sequence;
  const std::uint32_t* position;
  std::uint64_t* key;         // [T K] of the entries of list
  std::uint32_t* list;        // [T K] slots that ask, by place
  std::uint32_t* place_load;  // [partition][E]
  std::uint16_t* asked;       // [T][K] candidate that the slot asks, or kAsksNobody
  std::uint16_t* next;        // [T] first candidate not tried; shared by the token's slots
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

SWITCHYARD_DEVICE std::uint32_t place_of(const DecideArguments& a, std::uint64_t t,
                                         std::uint32_t r) {
  const std::uint32_t part = a.partition == nullptr ? 0 : a.partition[t];
  return part * a.gate.experts + a.ids[t * a.width + r];
}

/// What an expert orders its askers by, smallest first; equal keys by slot.
SWITCHYARD_DEVICE std::uint64_t order_key(const DecideArguments& a, std::uint64_t t,
                                          std::uint32_t j, std::uint32_t r) {
  if (a.order == OverflowOrder::kPosition) {
    return (std::uint64_t{j} << 32) | t;
  }
  if (a.order == OverflowOrder::kProb) {
    return ~std::uint64_t{gpu::float_bits(candidate_probability(a, t, r))};
  }
  return gpu::random_u64(a.seed, kOverflowPurpose, a.sequence[t], a.layer, a.position[t],
                         a.ids[t * a.width + r]);
}

template <class T>
SWITCHYARD_DEVICE T warp_or(T v) {
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    v |= gpu::shuffle_xor(kAllLanes, v, offset);
  }
  return v;
}
SWITCHYARD_DEVICE std::uint32_t warp_sum(std::uint32_t v) {
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    v += gpu::shuffle_xor(kAllLanes, v, offset);
  }
  return v;
}

/// The largest (key, slot) among the `win` smallest of the n entries; found bit by bit, so that
/// neither the order of the list nor its length matters. By one warp; 0 < win < n.
SWITCHYARD_DEVICE void find_bound(const std::uint64_t* key, const std::uint32_t* list,
                                  std::uint32_t n, std::uint32_t win, unsigned lane,
                                  std::uint64_t& bound_key, std::uint32_t& bound_slot) {
  std::uint64_t ones = 0, zeros = 0;
  std::uint32_t slot_ones = 0, slot_zeros = 0;
  for (std::uint32_t at = lane; at < n; at += kWarp) {
    ones |= key[at];
    zeros |= ~key[at];
    slot_ones |= list[at];
    slot_zeros |= ~list[at];
  }
  const std::uint64_t differs = warp_or(ones) & warp_or(zeros);
  const std::uint32_t slot_differs = warp_or(slot_ones) & warp_or(slot_zeros);
  // Bits outside the two are the same in all entries.
  bound_key = key[0] & ~differs;
  bound_slot = list[0] & ~slot_differs;
  std::uint64_t known = ~differs;
  for (unsigned bit = 64; bit-- > 0;) {
    if ((differs >> bit & 1U) == 0) {
      continue;
    }
    std::uint32_t low = 0;
    for (std::uint32_t at = lane; at < n; at += kWarp) {
      low += (key[at] & known) == bound_key && (key[at] >> bit & 1U) == 0 ? 1 : 0;
    }
    low = warp_sum(low);
    known |= std::uint64_t{1} << bit;
    if (win > low) {
      win -= low;
      bound_key |= std::uint64_t{1} << bit;
    }
  }
  std::uint32_t slot_known = ~slot_differs;
  for (unsigned bit = 32; bit-- > 0;) {
    if ((slot_differs >> bit & 1U) == 0) {
      continue;
    }
    std::uint32_t low = 0;
    for (std::uint32_t at = lane; at < n; at += kWarp) {
      low += key[at] == bound_key && (list[at] & slot_known) == bound_slot &&
                     (list[at] >> bit & 1U) == 0
                 ? 1
                 : 0;
    }
    low = warp_sum(low);
    slot_known |= 1U << bit;
    if (win > low) {
      win -= low;
      bound_slot |= 1U << bit;
    }
  }
}

/// One block. Each round: list the askers of each place; one warp per place finds its winners; one
/// thread per token sends its losers on. Lists are filled by atomics in any order; who wins depends
/// on the keys alone.
SWITCHYARD_KERNEL(kRoundThreads)
decide_rounds_kernel(DecideArguments a) {
  SWITCHYARD_DYNAMIC_SHARED(raw);
  SWITCHYARD_SHARED(std::uint32_t, warp_total, kWarp);
  SWITCHYARD_SHARED(std::uint32_t, asking, 1);
  SWITCHYARD_SHARED(std::uint32_t, counts, 5);  // kept, rerouted, queued, dropped, truncated
  std::uint32_t* const offset = reinterpret_cast<std::uint32_t*>(raw);  // [partition][E]
  const unsigned thread = gpu::thread_index();
  const unsigned threads = gpu::block_threads();
  const unsigned lane = thread % kWarp;
  const unsigned warp = thread / kWarp;
  const std::uint32_t experts = a.gate.experts;
  const std::uint32_t places = a.partitions * experts;
  const std::uint64_t slots = std::uint64_t{a.tokens} * a.slots;
  const std::uint32_t open =
      a.gate.grouped ? a.gate.topk_group * (experts / a.gate.n_group) : experts;
  for (std::uint32_t at = thread; at < places; at += threads) {
    a.place_load[at] = a.backlog == nullptr ? 0 : a.backlog[at];
  }
  for (std::uint32_t e = thread; e < experts; e += threads) {
    a.demand[e] = 0;
    a.overflow[e] = 0;
  }
  if (thread < 5) {
    counts[thread] = 0;
  }
  gpu::sync_block();
  for (std::uint64_t i = thread; i < slots; i += threads) {
    const auto j = static_cast<std::uint16_t>(i % a.slots);
    const bool has = j < a.first_count[i / a.slots];
    a.asked[i] = has ? j : kAsksNobody;
    a.chosen[i] = kNoExpert;
    a.outcome[i] = kSlotNone;
    a.slot_rank[i] = has ? j : 0;
    if (has) {
      gpu::atomic_add(&a.demand[a.first[i]], 1);
    }
  }
  for (std::uint64_t t = thread; t < a.tokens; t += threads) {
    a.next[t] = a.first_count[t];
  }

  while (true) {
    for (std::uint32_t at = thread; at < places; at += threads) {
      offset[at] = 0;
    }
    if (thread == 0) {
      asking[0] = 0;
    }
    gpu::sync_block();
    bool any = false;
    for (std::uint64_t i = thread; i < slots; i += threads) {
      if (a.asked[i] != kAsksNobody) {
        gpu::atomic_add(&offset[place_of(a, i / a.slots, a.asked[i])], 1);
        any = true;
      }
    }
    if (any) {
      gpu::atomic_add(&asking[0], 1);
    }
    gpu::sync_block();
    if (asking[0] == 0) {
      break;  // all threads alike
    }
    // Exclusive prefix sums over the places, a piece of them per thread.
    const std::uint32_t piece = (places + threads - 1) / threads;
    const std::uint32_t begin = thread * piece < places ? thread * piece : places;
    const std::uint32_t end = begin + piece < places ? begin + piece : places;
    std::uint32_t own = 0;
    for (std::uint32_t at = begin; at < end; ++at) {
      own += offset[at];
    }
    std::uint32_t up_to = own;
    for (unsigned by = 1; by < kWarp; by *= 2) {
      const std::uint32_t lower = gpu::shuffle_up(kAllLanes, up_to, by);
      up_to += lane >= by ? lower : 0;
    }
    if (lane == kWarp - 1) {
      warp_total[warp] = up_to;
    }
    gpu::sync_block();
    std::uint32_t before = up_to - own;
    for (unsigned w = 0; w < warp; ++w) {
      before += warp_total[w];
    }
    for (std::uint32_t at = begin; at < end; ++at) {
      const std::uint32_t n = offset[at];
      offset[at] = before;
      before += n;
    }
    gpu::sync_block();
    for (std::uint64_t i = thread; i < slots; i += threads) {
      const std::uint32_t r = a.asked[i];
      if (r != kAsksNobody) {
        const std::uint64_t t = i / a.slots;
        const std::uint32_t at = gpu::atomic_add(&offset[place_of(a, t, r)], 1);
        a.list[at] = static_cast<std::uint32_t>(i);
        a.key[at] = order_key(a, t, static_cast<std::uint32_t>(i % a.slots), r);
      }
    }
    gpu::sync_block();
    // offset[place] is now where its list ends.
    for (std::uint32_t place = warp; place < places; place += threads / kWarp) {
      const std::uint32_t first = place == 0 ? 0 : offset[place - 1];
      const std::uint32_t n = offset[place] - first;
      if (n == 0) {
        continue;
      }
      const std::uint32_t limit = a.capacity[place / experts];
      const std::uint32_t load = a.place_load[place];
      const std::uint32_t room = limit > load ? limit - load : 0;
      const std::uint32_t win = room < n ? room : n;
      std::uint64_t bound_key = ~std::uint64_t{0};
      std::uint32_t bound_slot = ~0U;
      if (win > 0 && win < n) {
        find_bound(a.key + first, a.list + first, n, win, lane, bound_key, bound_slot);
      }
      for (std::uint32_t at = first + lane; at < first + n; at += kWarp) {
        const std::uint32_t i = a.list[at];
        const std::uint16_t r = a.asked[i];
        const bool wins =
            win > 0 && (a.key[at] < bound_key || (a.key[at] == bound_key && i <= bound_slot));
        a.asked[i] = wins ? kAsksNobody : static_cast<std::uint16_t>(r | kLost);
        if (wins) {
          a.slot_rank[i] = r;
          a.chosen[i] = a.ids[i / a.slots * a.width + r];
          a.outcome[i] = r == i % a.slots ? kSlotKept : kSlotRerouted;
        }
      }
      gpu::sync_warp();
      if (lane == 0) {
        a.place_load[place] = load + win;
      }
    }
    gpu::sync_block();
    for (std::uint64_t t = thread; t < a.tokens; t += threads) {
      bool gone = false;  // the whole token was dropped
      for (std::uint32_t j = 0; j < a.slots; ++j) {
        const std::uint64_t i = t * a.slots + j;
        if (a.asked[i] == kAsksNobody) {
          continue;
        }
        const std::uint32_t r = a.asked[i] & ~kLost;
        a.asked[i] = kAsksNobody;
        if (r == j) {
          gpu::atomic_add(&a.overflow[a.first[i]], 1);
        }
        if (gone) {
          continue;
        }
        if (a.reroute) {
          const std::uint32_t next = a.next[t];
          if (next < a.usable[t]) {
            if (score_allows(a, t, j, next)) {
              a.asked[i] = static_cast<std::uint16_t>(next);
              a.next[t] = static_cast<std::uint16_t>(next + 1);
              continue;
            }
          } else if (a.usable[t] == a.width && a.width < open &&
                     score_allows(a, t, j, a.width - 1)) {
            gpu::atomic_add(&counts[4], 1);
          }
        }
        if (a.queue) {
          a.chosen[i] = a.first[i];
          a.outcome[i] = kSlotQueued;
          a.slot_rank[i] = static_cast<std::uint16_t>(j);
        } else if (!a.drop_token) {
          a.outcome[i] = kSlotDropped;
        } else {
          gone = true;
          for (std::uint32_t s = 0; s < a.first_count[t]; ++s) {
            const std::uint64_t at = t * a.slots + s;
            if (a.outcome[at] == kSlotKept || a.outcome[at] == kSlotRerouted) {
              gpu::atomic_add(&a.place_load[place_of(a, t, a.slot_rank[at])], ~0U);  // minus 1
            }
            if (s < j) {
              a.asked[at] = kAsksNobody;
            }
            a.chosen[at] = kNoExpert;
            a.outcome[at] = kSlotDropped;
          }
        }
      }
    }
  }

  for (std::uint64_t i = thread; i < slots; i += threads) {
    const std::uint8_t outcome = a.outcome[i];
    if (outcome != kSlotNone) {
      gpu::atomic_add(&counts[outcome == kSlotKept       ? 0
                              : outcome == kSlotRerouted ? 1
                              : outcome == kSlotQueued   ? 2
                                                         : 3],
                      1);
    }
  }
  for (std::uint32_t e = thread; e < experts; e += threads) {
    std::uint32_t accepted = 0;
    for (std::uint32_t p = 0; p < a.partitions; ++p) {
      const std::uint32_t at = p * experts + e;
      accepted += a.place_load[at] - (a.backlog == nullptr ? 0 : a.backlog[at]);
    }
    a.load[e] = accepted;
  }
  gpu::sync_block();
  if (thread == 0) {
    *a.totals = {counts[0], counts[1], counts[2], counts[3], counts[4]};
  }
}

/// The family's weights of a token over the slots that run; sums in slot order.
SWITCHYARD_DEVICE void weigh_token(const DecideArguments& a, std::uint64_t t) {
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

/// One thread per token.
SWITCHYARD_KERNEL(kTokenThreads)
decide_weights_kernel(DecideArguments a) {
  const std::uint64_t t = gpu::block_x() * kTokenThreads + gpu::thread_index();
  if (t < a.tokens) {
    weigh_token(a, t);
  }
}

/// One thread per token: its first K candidates, and their weights.
SWITCHYARD_KERNEL(kTokenThreads)
choose_kernel(DecideArguments a) {
  const std::uint64_t t = gpu::block_x() * kTokenThreads + gpu::thread_index();
  if (t >= a.tokens) {
    return;
  }
  bool open = true;  // kNoExpert ends a row
  for (std::uint32_t j = 0; j < a.slots; ++j) {
    const std::uint16_t e = a.ids[t * a.width + j];
    open = open && e != kNoExpert;
    a.chosen[t * a.slots + j] = open ? e : kNoExpert;
    a.slot_rank[t * a.slots + j] = static_cast<std::uint16_t>(j);
  }
  weigh_token(a, t);
}

bool in_rounds(const CapacityParams& p) {
  const CapacityPolicy& c = p.policy.capacity;
  return c.rule != CapacityRule::kNone &&
         (c.mode == OverflowMode::kRounds ||
          (c.mode == OverflowMode::kAuto && c.order != OverflowOrder::kPosition));
}

}  // namespace

Status can_run(const CapacityParams& p) {
  const CapacityPolicy& c = p.policy.capacity;
  if (!gpu::gate_is_sound(p.gate) || p.width < p.gate.top_k || p.width > p.gate.experts ||
      p.partitions == 0) {
    return Status::kInvalidShape;
  }
  const bool keyed = in_rounds(p) && c.order == OverflowOrder::kRandom;
  if (keyed && p.tokens > 0 && (p.sequence == nullptr || p.position == nullptr)) {
    return Status::kInvalidShape;
  }
  if (p.gate.top_k > kDecideSlots || p.gate.experts > kDecideExperts ||
      p.partitions > kDecidePlaces / p.gate.experts ||
      std::uint64_t{p.tokens} * p.gate.top_k > 0xFFFFFFFFU) {
    return Status::kUnsupported;
  }
  return Status::kOk;
}

std::size_t workspace_bytes(const CapacityParams& p) {
  const std::size_t slots = std::size_t{p.tokens} * p.gate.top_k;
  const std::size_t per_token = std::size_t{p.tokens} * 2 * sizeof(std::uint16_t);
  std::size_t bytes = slots * sizeof(std::uint16_t) + per_token;
  if (in_rounds(p)) {
    bytes += slots * (sizeof(std::uint64_t) + sizeof(std::uint32_t) + sizeof(std::uint16_t)) +
             std::size_t{p.partitions} * p.gate.experts * sizeof(std::uint32_t) + per_token / 2;
  }
  return (bytes + 15) / 16 * 16;
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
  const std::size_t places = std::size_t{p.partitions} * p.gate.experts;
  const bool rounds = in_rounds(p);
  if (rounds) {  // wide types first: each array is then aligned
    const std::size_t all = std::size_t{p.tokens} * slots;
    a.order = c.order;
    a.seed = p.seed;
    a.layer = p.layer;
    a.sequence = p.sequence;
    a.position = p.position;
    a.key = static_cast<std::uint64_t*>(p.workspace);
    a.list = reinterpret_cast<std::uint32_t*>(a.key + all);
    a.place_load = a.list + all;
    a.asked = reinterpret_cast<std::uint16_t*>(a.place_load + places);
    a.next = a.asked + all;
    a.slot_rank = a.next + p.tokens;
  } else {
    a.slot_rank = static_cast<std::uint16_t*>(p.workspace);
  }
  a.first_count = a.slot_rank + std::size_t{p.tokens} * slots;
  a.usable = a.first_count + p.tokens;
  const gpu::Grid per_token{(std::uint64_t{p.tokens} + kTokenThreads - 1) / kTokenThreads, 1};
  if (p.tokens > 0) {
    status = gpu::launch_kernel("decide_first", decide_first_kernel, per_token, kTokenThreads, 0,
                                stream, a);
  }
  if (status == Status::kOk && rounds) {
    const std::uint64_t most = std::uint64_t{p.tokens} * slots;
    const unsigned threads =
        most < kRoundThreads ? static_cast<unsigned>(most / kWarp * kWarp + kWarp) : kRoundThreads;
    status = gpu::launch_kernel("decide_rounds", decide_rounds_kernel, {1, 1}, threads,
                                places * sizeof(std::uint32_t), stream, a);
  } else if (status == Status::kOk) {
    const std::size_t shared = (p.partitions + 2) * p.gate.experts * sizeof(std::uint32_t);
    status = gpu::launch_kernel("decide", decide_kernel, {1, 1}, kWarp, shared, stream, a);
  }
  if (status == Status::kOk && p.tokens > 0) {
    status = gpu::launch_kernel("decide_weights", decide_weights_kernel, per_token, kTokenThreads,
                                0, stream, a);
  }
  return status;
}

Status can_run(const ChooseParams& p) {
  if (!gpu::gate_is_sound(p.gate) || p.width < p.gate.top_k || p.width > p.gate.experts) {
    return Status::kInvalidShape;
  }
  return p.gate.top_k > kDecideSlots || std::uint64_t{p.tokens} * p.gate.top_k > 0xFFFFFFFFU
             ? Status::kUnsupported
             : Status::kOk;
}

std::size_t workspace_bytes(const ChooseParams& p) {
  return (std::size_t{p.tokens} * p.gate.top_k * sizeof(std::uint16_t) + 15) / 16 * 16;
}

Status launch(const ChooseParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.tokens == 0) {
    return status;
  }
  if (p.workspace_size < workspace_bytes(p)) {
    return Status::kWorkspaceTooSmall;
  }
  DecideArguments a{};
  a.gate = gpu::gate_rule(p.gate);
  a.tokens = p.tokens;
  a.slots = p.gate.top_k;
  a.width = p.width;
  a.ids = p.ids;
  a.logit = p.logit;
  a.lse = p.lse;
  a.first = a.chosen = p.chosen;
  a.weights = p.weights;
  a.slot_rank = static_cast<std::uint16_t*>(p.workspace);
  const gpu::Grid per_token{(std::uint64_t{p.tokens} + kTokenThreads - 1) / kTokenThreads, 1};
  return gpu::launch_kernel("choose", choose_kernel, per_token, kTokenThreads, 0, stream, a);
}

}  // namespace switchyard::SWITCHYARD_KERNELS
