// SPDX-License-Identifier: Apache-2.0
// Checks of the kernels on the host executor against their CPU twins. Included by the kernel tests
// and, compiled against a changed kernel source, by the planted-bug tests; so a check answers with
// a text instead of failing: empty is good, else the shape and the first difference. Each shape
// runs under four schedules (two fillings of shared memory, two orders of the threads). Outputs lie
// between guard words and start as garbage, so a missing or stray write shows.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/random.hpp"
#include "engine/routing/candidates.hpp"
#include "engine/routing/decide.hpp"
#include "kernels/capacity.hpp"
#include "kernels/combine.hpp"
#include "kernels/expert_sort.hpp"
#include "kernels/host/executor.hpp"
#include "kernels/router.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

inline constexpr std::array kSchedules{host::Schedule{0xA5, false}, host::Schedule{0x3C, false},
                                       host::Schedule{0xA5, true}, host::Schedule{0x3C, true}};

/// An output as a kernel sees device memory: garbage between guards.
template <class T>
class Output {
 public:
  explicit Output(std::size_t count) : all_(count + 2 * kPad) {
    std::memset(all_.data(), kGuard, all_.size() * sizeof(T));
    std::memset(all_.data() + kPad, host::schedule().fill, count * sizeof(T));
  }
  [[nodiscard]] T* data() { return all_.data() + kPad; }
  [[nodiscard]] std::size_t size() const { return all_.size() - 2 * kPad; }
  [[nodiscard]] bool intact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(all_.data());
    const std::size_t pad = kPad * sizeof(T);
    const std::size_t total = all_.size() * sizeof(T);
    return std::all_of(bytes, bytes + pad, [](unsigned char b) { return b == kGuard; }) &&
           std::all_of(bytes + total - pad, bytes + total,
                       [](unsigned char b) { return b == kGuard; });
  }

 private:
  static constexpr std::size_t kPad = 64;
  static constexpr unsigned char kGuard = 0xC7;
  std::vector<T> all_;
};

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// "ids[3] is 5, the CPU has 4", or empty.
template <class T>
std::string difference(const char* name, Output<T>& got, const std::vector<T>& expected) {
  if (!got.intact()) {
    return std::string("a write outside ") + name;
  }
  if (got.size() != expected.size()) {
    return std::string(name) + ": sizes differ";
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!same_bits(got.data()[i], expected[i])) {
      return std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(got.data()[i]) +
             ", the CPU has " + std::to_string(expected[i]);
    }
  }
  return {};
}

/// The first non-empty text.
inline std::string first_of(std::initializer_list<std::string> texts) {
  for (const std::string& text : texts) {
    if (!text.empty()) {
      return text;
    }
  }
  return {};
}

/// Runs `body` (launches, compares, answers with a text) under every schedule.
template <class F>
std::string under_schedules(const std::string& shape, F&& body) {
  for (const host::Schedule& s : kSchedules) {
    host::set_schedule(s);
    const std::string what = body();
    const std::string fault = host::take_fault();
    host::set_schedule({});
    if (!what.empty() || !fault.empty()) {
      return shape + (s.reverse ? ", threads in falling order: " : ", threads in rising order: ") +
             (fault.empty() ? what : fault);
    }
  }
  return {};
}

/// Waits for the launches so far; false: the device failed. On the host executor there is nothing
/// to wait for.
#ifdef SWITCHYARD_DEVICE_HOST
bool finish_launches(std::string& why);
#else
inline bool finish_launches(std::string&) { return true; }
#endif

inline std::string launched(gpu::Status status) {
  if (status != gpu::Status::kOk) {
    return std::string("status ") + status_text(status);
  }
  std::string why;
  return finish_launches(why) ? std::string() : "the device failed: " + why;
}

/// Reproducible draws.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  double normal() { return random_normal(seed_, random_purpose("kernel test"), {0, 0, 0, n_++}); }
  std::uint32_t below(std::uint32_t n) {
    const double u = random_uniform(seed_, random_purpose("kernel test"), {1, 0, 0, n_++});
    return std::min(n - 1, static_cast<std::uint32_t>(u * n));
  }

 private:
  std::uint64_t seed_;
  std::uint32_t n_ = 0;
};

enum class Logits : std::uint8_t { kRandom, kTies, kBroken, kEqual, kSignedZero, kWide };
inline constexpr std::array kLogits{Logits::kRandom, Logits::kTies,       Logits::kBroken,
                                    Logits::kEqual,  Logits::kSignedZero, Logits::kWide};

inline std::vector<float> make_logits(Logits kind, std::uint32_t tokens, std::uint32_t experts,
                                      std::uint64_t seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Dice dice(seed);
  std::vector<float> z(std::size_t{tokens} * experts);
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double n = dice.normal();
    switch (kind) {
      case Logits::kRandom:
        z[i] = static_cast<float>(2 * n);
        break;
      case Logits::kTies:
        z[i] = static_cast<float>(std::round(n));
        break;
      case Logits::kBroken: {
        // The first row is NaN throughout; in the others a third is NaN or infinite.
        const std::uint32_t pick = dice.below(9);
        z[i] = i < experts || pick == 0 ? kNaN
               : pick == 1              ? kInf
               : pick == 2              ? -kInf
                                        : static_cast<float>(n);
        break;
      }
      case Logits::kEqual:
        z[i] = 0.25F;
        break;
      case Logits::kSignedZero: {
        const std::uint32_t pick = dice.below(3);
        z[i] = pick == 0 ? -0.0F : pick == 1 ? 0.0F : -1.0F;
        break;
      }
      case Logits::kWide:
        z[i] = static_cast<float>(200 * n);  // probabilities underflow
        break;
    }
  }
  return z;
}

// ---------------------------------------------------------------------------------- router

struct RouterShape {
  GateSpec gate;
  std::uint32_t tokens, width;
  bool bias;
  Logits kind;
};

inline std::string text_of(const RouterShape& s) {
  return "router T=" + std::to_string(s.tokens) + " M=" + std::to_string(s.width) +
         " bias=" + std::to_string(s.bias) + " logits=" + std::to_string(static_cast<int>(s.kind)) +
         " " + gate_to_text(s.gate);
}

inline std::vector<float> make_bias(bool present, std::uint32_t experts) {
  std::vector<float> bias;
  Dice dice(99);
  for (std::uint32_t e = 0; present && e < experts; ++e) {
    bias.push_back(e % 7 == 3 ? -std::numeric_limits<float>::infinity()
                              : static_cast<float>(std::round(2 * dice.normal()) / 8));
  }
  return bias;
}

inline std::string check(const RouterShape& s) {
  const std::uint32_t experts = s.gate.experts;
  const std::vector<float> logits = make_logits(s.kind, s.tokens, experts, 7 + experts);
  const std::vector<float> bias = make_bias(s.bias, experts);
  Candidates expected;
  RankWorkspace scratch;
  rank_candidates(s.gate, logits, bias, s.width, scratch, expected);
  std::vector<std::uint8_t> nan_rows;
  for (std::uint32_t t = 0; t < s.tokens; ++t) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(row_offset(t, experts));
    nan_rows.push_back(std::any_of(row, row + experts, [](float z) {
      return std::isnan(z) || z == std::numeric_limits<float>::infinity();
    }));
  }
  return under_schedules(text_of(s), [&]() -> std::string {
    Output<std::uint16_t> ids(expected.ids.size());
    Output<float> logit(expected.logit.size());
    Output<float> lse(s.tokens);
    Output<std::uint8_t> nan_row(s.tokens);
    const RouterParams p{
        s.gate,     s.tokens,     s.width,    logits.data(), s.bias ? bias.data() : nullptr,
        ids.data(), logit.data(), lse.data(), nan_row.data()};
    return first_of({launched(launch(p, nullptr)), difference("ids", ids, expected.ids),
                     difference("logit", logit, expected.logit),
                     difference("lse", lse, expected.lse),
                     difference("nan_row", nan_row, nan_rows)});
  });
}

inline std::vector<GateSpec> router_gates(std::uint32_t experts, std::uint32_t top_k) {
  std::vector<GateSpec> gates{gate_mixtral(experts, top_k), gate_gpt_oss(experts, top_k)};
  GateSpec sigmoid = gate_mixtral(experts, top_k);
  sigmoid.score = GateScore::kSigmoid;
  gates.push_back(sigmoid);
  for (const std::uint32_t groups : {2U, 4U, 8U, 64U}) {
    if (experts % groups == 0 && top_k <= groups / 2 * (experts / groups)) {
      gates.push_back(gate_deepseek_v3(experts, top_k, groups, groups / 2));
      gates.push_back(gate_deepseek_v2(experts, top_k, groups, groups / 2, 16.0F));
    }
  }
  return gates;
}

/// E = 1…512, k = 1…8, 0 and 1 token and a half-filled last block.
inline std::vector<RouterShape> router_shapes() {
  std::vector<RouterShape> shapes;
  std::uint32_t n = 0;
  for (const std::uint32_t experts :
       {1U, 7U, 8U, 16U, 31U, 32U, 33U, 60U, 64U, 65U, 128U, 160U, 256U, 257U, 512U}) {
    for (std::uint32_t top_k = 1; top_k <= std::min(8U, experts); ++top_k) {
      // All rules for k = 2 and 8, one per k otherwise.
      const std::vector<GateSpec> gates = router_gates(experts, top_k);
      const bool all = top_k == 2 || top_k == 8;
      for (std::size_t g = 0; g < (all ? gates.size() : 1); ++g) {
        const GateSpec& gate = gates[all ? g : top_k % gates.size()];
        const std::uint32_t tokens = n % 11 == 10 ? 0 : n % 5 == 4 ? 1 : 5;
        const std::uint32_t width =
            n % 3 == 0 ? top_k : std::min(stored_candidates(experts, top_k), top_k + 6);
        shapes.push_back({gate, tokens, width, n % 2 == 1, kLogits[n % kLogits.size()]});
        ++n;
      }
    }
  }
  // Every rule on every kind of logits, with and without a bias, all candidates stored.
  for (const GateSpec& gate : router_gates(16, 3)) {
    for (const Logits kind : kLogits) {
      shapes.push_back({gate, 3, 16, true, kind});
      shapes.push_back({gate, 3, 16, false, kind});
    }
  }
  return shapes;
}

// ------------------------------------------------------------------------------------ sort

struct SortShape {
  std::uint32_t assignments, experts;
  enum class Skew : std::uint8_t { kEven, kOneExpert, kFewExperts, kNothing } skew;
};

inline std::string text_of(const SortShape& s) {
  return "expert_sort N=" + std::to_string(s.assignments) + " E=" + std::to_string(s.experts) +
         " skew=" + std::to_string(static_cast<int>(s.skew));
}

inline std::string check(const SortShape& s) {
  Dice dice(s.assignments + s.experts);
  std::vector<std::uint16_t> chosen(s.assignments);
  for (std::uint16_t& e : chosen) {
    const std::uint32_t any = dice.below(s.experts);
    const bool none = s.skew == SortShape::Skew::kNothing || dice.below(10) == 0;
    e = static_cast<std::uint16_t>(s.skew == SortShape::Skew::kOneExpert    ? s.experts - 1
                                   : s.skew == SortShape::Skew::kFewExperts ? any / 4
                                                                            : any);
    e = none ? kNoExpert : e;
  }
  // The definition: stable order by expert.
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> offsets{0};
  std::vector<std::uint32_t> place(s.assignments, kNoPlace);
  for (std::uint32_t e = 0; e < s.experts; ++e) {
    for (std::uint32_t i = 0; i < s.assignments; ++i) {
      if (chosen[i] == e) {
        place[i] = static_cast<std::uint32_t>(order.size());
        order.push_back(i);
      }
    }
    offsets.push_back(static_cast<std::uint32_t>(order.size()));
  }
  return under_schedules(text_of(s), [&]() -> std::string {
    Output<std::uint32_t> got_offsets(s.experts + 1);
    Output<std::uint32_t> got_order(order.size());
    Output<std::uint32_t> got_place(s.assignments);
    ExpertSortParams p;
    p.assignments = s.assignments;
    p.experts = s.experts;
    p.chosen = chosen.data();
    p.offsets = got_offsets.data();
    p.order = got_order.data();
    p.place = got_place.data();
    Output<std::uint32_t> workspace(workspace_bytes(p) / sizeof(std::uint32_t));
    p.workspace = workspace.data();
    p.workspace_size = workspace_bytes(p);
    return first_of({launched(launch(p, nullptr)), difference("offsets", got_offsets, offsets),
                     difference("place", got_place, place), difference("order", got_order, order),
                     workspace.intact() ? "" : "a write outside the workspace"});
  });
}

inline std::vector<SortShape> sort_shapes() {
  using Skew = SortShape::Skew;
  std::vector<SortShape> shapes;
  for (const std::uint32_t n :
       {0U, 1U, 31U, 32U, 33U, 127U, 128U, 129U, 1023U, 1024U, 1025U, 3000U}) {
    for (const std::uint32_t experts : {1U, 8U, 33U, 64U, 512U}) {
      shapes.push_back({n, experts, Skew::kEven});
    }
  }
  for (const Skew skew : {Skew::kOneExpert, Skew::kFewExperts, Skew::kNothing}) {
    shapes.push_back({2500, 40, skew});
    shapes.push_back({1100, 1024, skew});
  }
  return shapes;
}

// --------------------------------------------------------------------------------- combine

struct CombineShape {
  std::uint32_t tokens, slots, hidden;
  Element y_type, out_type;
  bool residual = false, shared = false, shared_weight = false;
};

inline std::string text_of(const CombineShape& s) {
  return "combine T=" + std::to_string(s.tokens) + " K=" + std::to_string(s.slots) +
         " H=" + std::to_string(s.hidden) + (s.y_type == Element::kBf16 ? " bf16" : " f32") +
         (s.out_type == Element::kBf16 ? " to bf16" : " to f32") + (s.residual ? " residual" : "") +
         (s.shared ? " shared" : "") + (s.shared_weight ? " weighted" : "");
}

/// A third of the slots are empty; token 1 has none.
inline std::string check(const CombineShape& s) {
  Dice dice(s.tokens * 31 + s.hidden);
  const std::uint64_t slots = row_offset(s.tokens, s.slots);
  std::vector<std::uint32_t> place(slots, 0xFFFFFFFFU);
  std::vector<float> weights(slots);
  std::uint32_t rows = 0;
  for (std::uint64_t i = 0; i < slots; ++i) {
    weights[i] = static_cast<float>(dice.normal());
    if (i / s.slots != 1 && dice.below(3) != 0) {
      place[i] = rows++;
    }
  }
  std::reverse(place.begin(), place.end());  // expert order is not slot order
  for (std::uint64_t i = 0; s.tokens > 1 && i < s.slots; ++i) {
    place[s.slots + i] = 0xFFFFFFFFU;
  }
  std::vector<float> y(row_offset(rows, s.hidden));
  std::vector<std::uint16_t> y_bf16(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = static_cast<float>(dice.normal());
    if (s.y_type == Element::kBf16) {
      y_bf16[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(y[i]) >> 16);
      y[i] = std::bit_cast<float>(std::uint32_t{y_bf16[i]} << 16);
    }
  }
  std::vector<float> expected(row_offset(s.tokens, s.hidden));
  for (std::uint64_t i = 0; i < slots; ++i) {
    if (place[i] != 0xFFFFFFFFU) {
      cpu::axpy(weights[i], y.data() + row_offset(place[i], s.hidden),
                expected.data() + row_offset(i / s.slots, s.hidden), s.hidden);
    }
  }
  std::vector<float> residual(expected.size());
  std::vector<std::uint16_t> residual_bf16(expected.size());
  std::vector<float> shared(expected.size());
  std::vector<std::uint16_t> shared_bf16(expected.size());
  std::vector<float> shared_weight;
  const auto cut = [](float& v, std::uint16_t& half, Element type) {
    half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
    v = type == Element::kBf16 ? std::bit_cast<float>(std::uint32_t{half} << 16) : v;
  };
  for (std::uint32_t t = 0; t < s.tokens; ++t) {
    shared_weight.push_back(static_cast<float>(dice.normal()));
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    residual[i] = static_cast<float>(dice.normal());
    shared[i] = static_cast<float>(dice.normal());
    cut(residual[i], residual_bf16[i], s.out_type);
    cut(shared[i], shared_bf16[i], s.y_type);
    expected[i] = s.residual ? residual[i] + expected[i] : expected[i];
    const float own = s.shared_weight ? shared_weight[i / s.hidden] * shared[i] : shared[i];
    expected[i] = s.shared ? expected[i] + own : expected[i];
  }
  // The nearer of the two neighbours in BF16, by distance; the even one in a tie.
  std::vector<std::uint16_t> expected_bf16;
  for (const float v : expected) {
    const auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
    const auto high = static_cast<std::uint16_t>(low + 1);
    const auto distance = [&](std::uint16_t b) {
      return std::abs(static_cast<double>(std::bit_cast<float>(std::uint32_t{b} << 16)) - v);
    };
    const double below = distance(low);
    const double above = distance(high);
    expected_bf16.push_back(below < above || (below == above && low % 2 == 0) ? low : high);
  }
  return under_schedules(text_of(s), [&]() -> std::string {
    Output<float> out(expected.size());
    Output<std::uint16_t> out_bf16(expected.size());
    CombineParams p;
    p.tokens = s.tokens;
    p.slots = s.slots;
    p.hidden = s.hidden;
    p.y_type = s.y_type;
    p.out_type = s.out_type;
    p.y = s.y_type == Element::kBf16 ? static_cast<const void*>(y_bf16.data()) : y.data();
    p.place = place.data();
    p.weights = weights.data();
    p.out = s.out_type == Element::kBf16 ? static_cast<void*>(out_bf16.data()) : out.data();
    const auto part = [](Element type, auto& halves, auto& floats) {
      return type == Element::kBf16 ? static_cast<const void*>(halves.data()) : floats.data();
    };
    p.residual = s.residual ? part(s.out_type, residual_bf16, residual) : nullptr;
    p.shared = s.shared ? part(s.y_type, shared_bf16, shared) : nullptr;
    p.shared_weight = s.shared_weight ? shared_weight.data() : nullptr;
    return first_of({launched(launch(p, nullptr)), s.out_type == Element::kBf16
                                                       ? difference("out", out_bf16, expected_bf16)
                                                       : difference("out", out, expected)});
  });
}

inline std::vector<CombineShape> combine_shapes() {
  std::vector<CombineShape> shapes;
  for (const Element in : {Element::kF32, Element::kBf16}) {
    for (const Element out : {Element::kF32, Element::kBf16}) {
      for (const std::uint32_t hidden : {1U, 37U, 256U, 257U, 511U}) {
        shapes.push_back({3, 2, hidden, in, out});
      }
      for (std::uint32_t slots = 1; slots <= 8; ++slots) {
        shapes.push_back({5, slots, 33, in, out});
      }
      shapes.push_back({0, 2, 64, in, out});
      shapes.push_back({1, 8, 64, in, out});
      shapes.push_back({4, 2, 65, in, out, true, false, false});
      shapes.push_back({4, 2, 65, in, out, true, true, false});
      shapes.push_back({4, 2, 65, in, out, true, true, true});
      shapes.push_back({4, 2, 65, in, out, false, true, true});
    }
  }
  return shapes;
}

// -------------------------------------------------------------------------------- capacity

struct CapacityShape {
  GateSpec gate;
  const char* policy;
  std::uint32_t tokens, width;
  bool bias;
  Logits kind;
  std::uint32_t ranks;  // source ranks; 1: no rank array
  bool backlog;
};

inline std::string text_of(const CapacityShape& s) {
  return "capacity T=" + std::to_string(s.tokens) + " M=" + std::to_string(s.width) +
         " bias=" + std::to_string(s.bias) + " logits=" + std::to_string(static_cast<int>(s.kind)) +
         " ranks=" + std::to_string(s.ranks) + " backlog=" + std::to_string(s.backlog) +
         " policy=" + s.policy + " " + gate_to_text(s.gate);
}

/// C of each partition, as decide() counts it for decode tokens of one sequence each.
inline std::vector<std::uint32_t> capacities(const CapacityPolicy& policy, const GateSpec& gate,
                                             const std::vector<std::uint32_t>& partition,
                                             std::uint32_t partitions) {
  std::vector<std::uint32_t> capacity;
  for (std::uint32_t p = 0; p < partitions; ++p) {
    ScopeCounts counts;
    counts.tokens[1] =
        static_cast<std::uint64_t>(std::count(partition.begin(), partition.end(), p));
    counts.sequences[1] = counts.tokens[1];
    counts.step_sequences = partition.size();
    capacity.push_back(expert_capacity(policy, counts, gate.experts, gate.top_k));
  }
  return capacity;
}

inline std::string check(const CapacityShape& s) {
  const std::uint32_t experts = s.gate.experts;
  const RoutingPolicy policy = policy_from_text(s.policy, "test");
  validate(s.gate, "test");
  validate(policy, experts, s.gate.top_k, "test");
  const std::vector<float> logits = make_logits(s.kind, s.tokens, experts, 3 + s.tokens);
  const std::vector<float> bias = make_bias(s.bias, experts);
  Candidates candidates;
  RankWorkspace rank_scratch;
  rank_candidates(s.gate, logits, bias, s.width, rank_scratch, candidates);
  // Every ninth row is padding; every tenth ends after one candidate.
  for (std::uint32_t t = 0; t < s.tokens; ++t) {
    if (t % 9 == 8 || t % 10 == 7) {
      for (std::uint32_t r = t % 9 == 8 ? 0 : 1; r < s.width; ++r) {
        candidates.ids[row_offset(t, s.width, r)] = kNoExpert;
      }
    }
  }
  std::vector<std::uint32_t> sequence;
  std::vector<std::uint32_t> position(s.tokens, 100);
  std::vector<std::uint8_t> phase(s.tokens, static_cast<std::uint8_t>(Phase::kDecode));
  std::vector<std::uint16_t> rank;
  std::vector<std::uint32_t> partition(s.tokens, 0);
  std::uint32_t partitions = 1;
  const CapacityScope scope = resolved_scope(policy.capacity);
  for (std::uint32_t t = 0; t < s.tokens; ++t) {
    sequence.push_back(t);
    rank.push_back(static_cast<std::uint16_t>(t % s.ranks));
    if (scope == CapacityScope::kRank) {
      partition[t] = t % s.ranks;
      partitions = s.ranks;
    } else if (scope == CapacityScope::kGroup) {
      const std::uint64_t size = capacity_group_size(s.tokens, policy.capacity.group_size);
      partition[t] = static_cast<std::uint32_t>(t / size);
      partitions = static_cast<std::uint32_t>(s.tokens / size);
    }
  }
  StepContext step = make_step(sequence, position, phase, 5, 2, 0);
  step.rank = rank;
  step.ranks = s.ranks;
  std::vector<std::uint32_t> backlog;
  for (std::uint32_t at = 0; s.backlog && at < partitions * experts; ++at) {
    backlog.push_back(at % 5 == 0 ? 3 : 0);
  }
  step.backlog = backlog;
  LayerDecision expected;
  DecideWorkspace decide_scratch;
  decide(s.gate, policy, step, candidates.view(), bias, decide_scratch, expected);
  const std::vector<std::uint32_t> capacity =
      capacities(policy.capacity, s.gate, partition, partitions);
  const std::vector<std::uint64_t> totals{expected.kept, expected.rerouted, expected.queued_slots,
                                          expected.dropped, expected.truncated_slots};
  return under_schedules(text_of(s), [&]() -> std::string {
    const std::size_t slots = expected.first.size();
    Output<std::uint16_t> first(slots);
    Output<std::uint16_t> chosen(slots);
    Output<float> weights(slots);
    Output<std::uint8_t> outcome(slots);
    Output<std::uint32_t> demand(experts);
    Output<std::uint32_t> overflow(experts);
    Output<std::uint32_t> load(experts);
    Output<std::uint64_t> sums(5);
    static_assert(sizeof(CapacityTotals) == 5 * sizeof(std::uint64_t));
    CapacityParams p;
    p.gate = s.gate;
    p.policy = policy;
    p.tokens = s.tokens;
    p.width = s.width;
    p.partitions = partitions;
    p.ids = candidates.ids.data();
    p.logit = candidates.logit.data();
    p.lse = candidates.lse.data();
    p.bias = s.bias ? bias.data() : nullptr;
    p.partition = partitions > 1 ? partition.data() : nullptr;
    p.capacity = capacity.data();
    p.backlog = s.backlog ? backlog.data() : nullptr;
    p.first = first.data();
    p.chosen = chosen.data();
    p.weights = weights.data();
    p.outcome = outcome.data();
    p.demand = demand.data();
    p.overflow = overflow.data();
    p.load = load.data();
    p.totals = reinterpret_cast<CapacityTotals*>(sums.data());
    p.seed = step.seed;
    p.layer = step.layer;
    p.sequence = sequence.data();
    p.position = position.data();
    Output<std::uint64_t> workspace(workspace_bytes(p) / sizeof(std::uint64_t));
    p.workspace = workspace.data();
    p.workspace_size = workspace_bytes(p);
    return first_of({launched(launch(p, nullptr)), difference("first", first, expected.first),
                     difference("chosen", chosen, expected.chosen),
                     difference("outcome", outcome, expected.outcome),
                     difference("weights", weights, expected.weights),
                     difference("demand", demand, expected.demand),
                     difference("overflow", overflow, expected.overflow),
                     difference("load", load, expected.load), difference("totals", sums, totals),
                     workspace.intact() ? "" : "a write outside the workspace"});
  });
}

inline std::vector<CapacityShape> capacity_shapes() {
  constexpr std::array kPolicies{
      "",
      "weights.renorm=none",
      "capacity.rule=share",
      "capacity.rule=share capacity.factor=0.5 weights.renorm=first",
      "capacity.rule=share capacity.factor=0.6 weights.renorm=none",
      "capacity.rule=share capacity.reroute=none",
      "capacity.rule=share capacity.factor=0.7 capacity.exhausted=drop_token",
      "capacity.rule=share capacity.factor=0.8 capacity.reroute=none capacity.exhausted=drop_token",
      "capacity.rule=share capacity.factor=0.5 capacity.exhausted=queue",
      "capacity.rule=share capacity.max_score_drop=0.3",
      "capacity.rule=share capacity.max_score_drop=1 capacity.exhausted=queue",
      "capacity.rule=absolute capacity.absolute=0",
      "capacity.rule=absolute capacity.absolute=2 capacity.exhausted=drop_token",
      "capacity.rule=megatron capacity.factor=0.7",
      "capacity.rule=share capacity.scope=rank",
      "capacity.rule=share capacity.scope=group capacity.group_size=11",
      "capacity.rule=batch_seqs capacity.factor=0.2 capacity.mode=sequential",
      "capacity.rule=share capacity.factor=0.7 capacity.mode=rounds",
      "capacity.rule=share capacity.factor=0.7 capacity.order=prob",
      "capacity.rule=share capacity.factor=0.6 capacity.order=prob capacity.reroute=none",
      "capacity.rule=share capacity.factor=0.6 capacity.order=random",
      "capacity.rule=share capacity.factor=0.7 capacity.order=random capacity.exhausted=drop_token",
      "capacity.rule=share capacity.factor=0.5 capacity.order=prob capacity.exhausted=queue",
      "capacity.rule=share capacity.order=prob capacity.max_score_drop=0.3",
      "capacity.rule=absolute capacity.absolute=0 capacity.mode=rounds",
      "capacity.rule=share capacity.order=prob capacity.scope=rank",
      "capacity.rule=share capacity.mode=rounds capacity.scope=group capacity.group_size=11"};
  std::vector<CapacityShape> shapes;
  std::uint32_t n = 0;
  for (const char* policy : kPolicies) {
    for (const GateSpec& gate :
         {gate_mixtral(8, 2), gate_gpt_oss(16, 4), gate_deepseek_v3(64, 8, 8, 4),
          gate_deepseek_v2(16, 3, 4, 2, 16.0F), gate_deepseek_v2(8, 1, 4, 2, 16.0F, true),
          gate_qwen(128, 8, true)}) {
      const std::string text = policy;
      const bool group = text.find("scope=group") != std::string::npos;
      const std::uint32_t ranks = n % 3 == 0 ? 3 : 1;
      const std::uint32_t tokens = std::array{70U, 33U, 32U, 96U}[n % 4];
      // All candidates, or the stored ones.
      const std::uint32_t width = n % 2 == 0 ? std::min(gate.experts, gate.top_k + 2)
                                             : stored_candidates(gate.experts, gate.top_k);
      shapes.push_back({gate, policy, tokens, width, n % 2 == 1, kLogits[n % kLogits.size()], ranks,
                        !group && n % 5 == 1});
      ++n;
    }
  }
  for (const char* policy :
       {kPolicies[0], kPolicies[2], kPolicies[6], kPolicies[8], kPolicies[17], kPolicies[21]}) {
    shapes.push_back({gate_mixtral(8, 2), policy, 0, 8, false, Logits::kRandom, 1, false});
    shapes.push_back({gate_mixtral(8, 2), policy, 1, 8, false, Logits::kRandom, 1, false});
    // Maximum skew: all tokens want the same experts.
    shapes.push_back({gate_mixtral(512, 8), policy, 70, 10, false, Logits::kEqual, 1, false});
    shapes.push_back({gate_mixtral(40, 8), policy, 70, 40, false, Logits::kEqual, 1, true});
  }
  return shapes;
}

/// The first shape that fails, or empty.
template <class Shape>
std::string check_all(const std::vector<Shape>& shapes) {
  for (const Shape& s : shapes) {
    if (std::string what = check(s); !what.empty()) {
      return what;
    }
  }
  return {};
}
inline std::string check_router() { return check_all(router_shapes()); }
inline std::string check_sort() { return check_all(sort_shapes()); }
inline std::string check_combine() { return check_all(combine_shapes()); }
// ------------------------------------------------------------- the family's own choice

struct ChooseShape {
  GateSpec gate;
  std::uint32_t tokens, width;
  bool bias;
  Logits kind;
};
inline std::string text_of(const ChooseShape& s) {
  return "choose T=" + std::to_string(s.tokens) + " M=" + std::to_string(s.width) +
         " bias=" + std::to_string(s.bias) + " logits=" + std::to_string(static_cast<int>(s.kind)) +
         " " + gate_to_text(s.gate);
}

inline std::string check(const ChooseShape& s) {
  const std::vector<float> logits = make_logits(s.kind, s.tokens, s.gate.experts, 3 + s.tokens);
  const std::vector<float> bias = make_bias(s.bias, s.gate.experts);
  Candidates candidates;
  RankWorkspace scratch;
  rank_candidates(s.gate, logits, bias, s.width, scratch, candidates);
  for (std::uint32_t t = 4; t < s.tokens; t += 5) {  // padding, or a row that ends early
    for (std::uint32_t r = t % 2; r < s.width; ++r) {
      candidates.ids[row_offset(t, s.width, r)] = kNoExpert;
    }
  }
  StepContext step;
  step.tokens[1] = step.sequences[1] = s.tokens;
  LayerDecision expected;
  DecideWorkspace workspace;
  decide(s.gate, {}, step, candidates.view(), bias, workspace, expected);
  return under_schedules(text_of(s), [&]() -> std::string {
    Output<std::uint16_t> chosen(expected.chosen.size());
    Output<float> weights(expected.weights.size());
    ChooseParams p;
    p.gate = s.gate;
    p.tokens = s.tokens;
    p.width = s.width;
    p.ids = candidates.ids.data();
    p.logit = candidates.logit.data();
    p.lse = candidates.lse.data();
    p.chosen = chosen.data();
    p.weights = weights.data();
    Output<std::uint32_t> space(workspace_bytes(p) / 4);
    p.workspace = space.data();
    p.workspace_size = workspace_bytes(p);
    return first_of({launched(launch(p, nullptr)), difference("chosen", chosen, expected.chosen),
                     difference("weights", weights, expected.weights),
                     space.intact() ? "" : "a write outside the workspace"});
  });
}

inline std::vector<ChooseShape> choose_shapes() {
  std::vector<ChooseShape> shapes;
  std::uint32_t n = 0;
  for (const std::uint32_t experts : {8U, 60U, 128U, 512U}) {
    for (const std::uint32_t k : {1U, 4U, 8U}) {
      for (const GateSpec& gate : router_gates(experts, k)) {
        const std::array<std::uint32_t, 5> tokens{0, 1, 7, 33, 130};
        shapes.push_back({gate, tokens[n % tokens.size()], std::min(experts, gate.top_k + 2),
                          n % 3 == 1, kLogits[n % kLogits.size()]});
        ++n;
      }
    }
  }
  return shapes;
}

inline std::string check_choose() { return check_all(choose_shapes()); }
inline std::string check_capacity() { return check_all(capacity_shapes()); }

}  // namespace switchyard::SWITCHYARD_KERNELS
