// SPDX-License-Identifier: Apache-2.0
// Capacities over a trace that states the experts taken and no logits (vLLM, SGLang): what is kept
// and dropped against a count by hand.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "engine/base/error.hpp"
#include "engine/trace/experts_only.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using Choices = std::vector<std::vector<std::vector<std::uint16_t>>>;

// Layer 0: expert 0 wanted by tokens 0, 1, 3; expert 1 by 0, 2, 3; 5 by 1; 6 by 2.
const Choices kChoices{{{0, 1}, {0, 5}, {6, 1}, {1, 0}}, {{2, 3}, {4, 5}, {7, 2}, {0, 1}}};

/// As a dump is imported: the experts taken, in their order, and nothing of the others.
RoutingTrace dump() {
  RoutingTrace t = test::decode_trace(kChoices, 8);
  const std::size_t m = t.header.candidates, k = 2;
  for (std::size_t i = 0; i < t.routing.candidates.size(); ++i) {
    if (i % m >= k) t.routing.candidates[i] = kNoExpert;
  }
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  t.routing.logit.assign(t.routing.logit.size(), kNone);
  t.routing.lse.assign(t.routing.lse.size(), kNone);
  t.header.precision = kExpertsOnly;
  return t;
}

run::RunData run_with(const std::vector<std::string>& settings) {
  const RoutingTrace t = dump();
  return test::run_in_memory(test::worked_scenario(settings), &t).data;
}

struct Count {
  std::array<std::array<std::uint64_t, 8>, 2> kept{};
  std::uint64_t overflow = 0;
};
/// Token after token, slot after slot, no more than `most` an expert and layer.
Count count(std::uint64_t most, bool drop_token) {
  Count c;
  for (std::size_t l = 0; l < 2; ++l) {
    for (const auto& token : kChoices[l]) {
      std::vector<std::uint16_t> mine;
      for (const std::uint16_t e : token) {
        if (c.kept[l][e] < most) {
          ++c.kept[l][e];
          mine.push_back(e);
          continue;
        }
        ++c.overflow;
        if (!drop_token) continue;
        for (const std::uint16_t m : mine) --c.kept[l][m];
        break;
      }
    }
  }
  return c;
}

std::string refusal(const std::vector<std::string>& settings) {
  try {
    static_cast<void>(run_with(settings));
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

const char* const kNoReroute = "policy.capacity.reroute=none";

}  // namespace

TEST(ExpertsOnly, ACapacityKeepsTheFirstByPosition) {
  for (const std::uint64_t most : {1, 2, 3}) {
    for (const bool drop_token : {false, true}) {
      const run::RunData r =
          run_with({"policy.capacity.rule=absolute",
                    "policy.capacity.absolute=" + std::to_string(most), kNoReroute,
                    std::string("policy.capacity.exhausted=") + (drop_token ? "drop_token" : "top1")});
      const Count c = count(most, drop_token);
      std::uint64_t kept = 0;
      for (std::size_t l = 0; l < 2; ++l) {
        for (std::size_t e = 0; e < 8; ++e) {
          EXPECT_EQ(r.totals.expert_kept[l * 8 + e], c.kept[l][e]) << most << " " << l << " " << e;
          kept += c.kept[l][e];
        }
      }
      EXPECT_EQ(r.totals.assignments, 16U);
      EXPECT_EQ(r.totals.dropped, 16 - kept) << most;
      EXPECT_EQ(r.totals.overflow, c.overflow) << most;
      EXPECT_EQ(r.totals.rerouted, 0U);
      EXPECT_EQ(r.totals.dropped == 0, most == 3);
    }
  }
}

TEST(ExpertsOnly, AQueueLosesNothing) {
  const run::RunData r = run_with({"policy.capacity.rule=absolute", "policy.capacity.absolute=1",
                                   kNoReroute, "policy.capacity.exhausted=queue"});
  EXPECT_EQ(r.totals.dropped, 0U);
  // Layer 0 has 8 assignments of 4 experts, layer 1 of 7 (expert 2 twice).
  EXPECT_EQ(r.totals.queued, 4U + 1U);
}

TEST(ExpertsOnly, WhatNeedsLogitsIsRefusedByName) {
  const std::string rule = "policy.capacity.rule=share";
  EXPECT_EQ(refusal({rule}),
            "policy.capacity.reroute: unsupported: the routing trace states the experts taken and "
            "no logits: who is refused has no next candidate; use reroute = \"none\"; drop the "
            "policy, or trace the model with switchyard trace");
  EXPECT_NE(refusal({rule, kNoReroute, "policy.capacity.order=prob"})
                .find("policy.capacity.order: unsupported"),
            std::string::npos);
  EXPECT_NE(refusal({rule, kNoReroute, "policy.capacity.max_score_drop=0.5"}).find("max_score_drop"),
            std::string::npos);
  EXPECT_NE(refusal({rule, kNoReroute, "policy.weights.renorm=none"}).find("nothing to route by"),
            std::string::npos);
  EXPECT_EQ(refusal({rule, kNoReroute}), "accepted");
}

}  // namespace switchyard::sim
