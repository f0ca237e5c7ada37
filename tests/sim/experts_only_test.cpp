// SPDX-License-Identifier: Apache-2.0
// Capacities over a trace that states the experts taken and no logits (vLLM, SGLang): what is kept
// and dropped against a count by hand.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "engine/base/error.hpp"
#include "engine/trace/experts_only.hpp"
#include "sim/loop/routing_source.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using Choices = std::vector<std::vector<std::vector<std::uint16_t>>>;

// Layer 0: expert 0 wanted by tokens 0, 1, 3; expert 1 by 0, 2, 3; 5 by 1; 6 by 2.
const Choices kChoices{{{0, 1}, {0, 5}, {6, 1}, {1, 0}}, {{2, 3}, {4, 5}, {7, 2}, {0, 1}}};

/// As a dump is imported: the experts taken, in their order, and nothing of the others.
RoutingTrace dump(const Choices& choices = kChoices, std::uint32_t experts = 8) {
  RoutingTrace t = test::decode_trace(choices, experts);
  for (std::uint32_t l = 0; l < choices.size(); ++l) {
    for (std::uint32_t r = 0; r < choices[l].size(); ++r) {
      for (std::uint32_t m = 0; m < t.header.candidates; ++m) {
        t.routing.candidates[t.candidate_at(r, l, m)] =
            m < choices[l][r].size() ? choices[l][r][m] : kNoExpert;
      }
    }
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

// Rows of eight are copied whole, others one by one; a row may end before its slots do.
TEST(ExpertsOnly, TheSourceGivesTheIdsOfTheTrace) {
  for (const std::uint32_t k : {8U, 6U}) {
    Choices choices(2, std::vector<std::vector<std::uint16_t>>(4));
    for (std::uint32_t l = 0; l < 2; ++l) {
      for (std::uint32_t t = 0; t < 4; ++t) {
        for (std::uint32_t j = 0; j < k; ++j) {
          choices[l][t].push_back(static_cast<std::uint16_t>((5 * l + 3 * t + j * 7) % 16));
        }
      }
    }
    RoutingTrace trace = dump(choices, 16);
    // Token 2 takes five experts in layer 1, token 3 none in layer 0.
    for (const auto& [token, layer, from] : {std::array{2U, 1U, 5U}, {3U, 0U, 0U}}) {
      for (std::uint32_t j = from; j < k; ++j) {
        trace.routing.candidates[trace.candidate_at(token, layer, j)] = kNoExpert;
        choices[layer][token][j] = kNoExpert;
      }
    }
    const scenario::Scenario s = test::worked_scenario(
        {"model.num_experts=16", "model.top_k=" + std::to_string(k), "workload.batch=4"});
    const auto source = make_routing_source(s, &trace);
    StepTokens tokens;
    for (const std::uint32_t t : {3U, 1U, 2U, 0U}) {
      tokens.sequence.push_back(t);
      tokens.position.push_back(1);
      tokens.phase.push_back(1);
      tokens.rank.push_back(0);
      tokens.ordinal.push_back(0);
      tokens.answer.push_back(1);
    }
    std::uint64_t stated = 0;
    for (std::uint32_t l = 0; l < 2; ++l) {
      Candidates c;
      source->candidates(tokens, l, c, RoutingSource::Need::kChosen);
      ASSERT_EQ(c.width, k);
      std::vector<std::uint16_t> want;
      for (const std::uint32_t t : tokens.sequence) {
        want.insert(want.end(), choices[l][t].begin(), choices[l][t].end());
        for (const std::uint16_t e : choices[l][t]) stated += e == kNoExpert ? 0U : 1U;
      }
      EXPECT_EQ(c.ids, want) << k << " " << l;
    }
    EXPECT_EQ(stated, 8 * k - (k - 5) - k);
    const run::RunData r = test::run_in_memory(s, &trace).data;
    for (std::size_t l = 0; l < 2; ++l) {
      std::array<std::uint64_t, 16> kept{};
      for (const auto& token : choices[l]) {
        for (const std::uint16_t e : token) {
          if (e != kNoExpert) ++kept[e];
        }
      }
      for (std::size_t e = 0; e < 16; ++e) EXPECT_EQ(r.totals.expert_kept[l * 16 + e], kept[e]);
    }
  }
}

}  // namespace switchyard::sim
