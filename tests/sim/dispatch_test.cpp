// SPDX-License-Identifier: Apache-2.0
// Bytes per pair of GPUs and per port, against a recount of the decisions pair by pair.
#include "sim/loop/dispatch.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "engine/base/random.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard {
namespace {

struct Case {
  std::uint32_t gpus, experts, top_k;
  scenario::DispatchKind kind;
  std::uint64_t header;      ///< Bytes of a copy, both ways, beside the row.
  std::uint32_t groups = 1;  ///< Replica groups.
};

std::string name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("G{}k{}{}{}{}", c.gpus, c.top_k,
                     c.kind == scenario::DispatchKind::kPerExpert ? "PerExpert" : "PerRank",
                     c.header > UINT32_MAX ? "Huge" : "",
                     c.groups > 1 ? fmt::format("In{}", c.groups) : "");
}

class Dispatch : public testing::TestWithParam<Case> {};

/// Random choices of `c.top_k` distinct experts; one slot in eleven is dropped, one in thirteen
/// waits. Ranks go round by `stride`: where it divides, some GPUs have no tokens.
void draw(const Case& c, std::uint32_t count, std::uint32_t stride, sim::StepTokens& tokens,
          LayerDecision& d) {
  d.tokens = count;
  d.slots = c.top_k;
  for (std::uint32_t t = 0; t < count; ++t) {
    tokens.sequence.push_back(t);
    tokens.position.push_back(0);
    tokens.phase.push_back(1);
    tokens.rank.push_back(static_cast<std::uint16_t>(t * stride % c.gpus));
    const auto r = static_cast<std::uint32_t>(random_u64(7, random_purpose("dispatch"), {t}));
    for (std::uint32_t j = 0; j < c.top_k; ++j) {
      const auto e = static_cast<std::uint16_t>((r + j) % c.experts);
      const std::uint32_t i = t * c.top_k + j;
      const auto outcome = i % 11 == 10   ? SlotOutcome::kDropped
                           : i % 13 == 12 ? SlotOutcome::kQueued
                                          : SlotOutcome::kKept;
      d.first.push_back(e);
      d.chosen.push_back(outcome == SlotOutcome::kKept ? e : kNoExpert);
      d.outcome.push_back(static_cast<std::uint8_t>(outcome));
    }
  }
}

TEST_P(Dispatch, BytesAreThoseOfTheDecisions) {
  const Case& c = GetParam();
  scenario::Scenario s = test::worked_scenario();
  s.network.dispatch = c.kind;
  s.network.payload.header = c.header;
  s.network.payload.combine_header = 2 * c.header;
  const std::uint64_t there = s.network.payload.dispatch_bytes(s.model.hidden_size);
  const std::uint64_t back = s.network.payload.combine_bytes(s.model.hidden_size);
  ASSERT_NE(there, back);
  placement::Placement placement;
  const std::uint32_t ep = c.gpus / c.groups;
  placement.ranks = ep;
  placement.rows.emplace_back();
  // Experts go round, so that neighbours are on different GPUs and some GPUs hold one more.
  for (std::uint32_t e = 0; e < c.experts; ++e) placement.rows[0].push_back({e % ep});
  const sim::ExpertMap map(c.gpus, placement);
  sim::TrafficBuilder builder(s, map, std::vector<std::uint32_t>(c.gpus, 0),
                              s.parallel.placement_options.choice);
  sim::StepTokens tokens;
  LayerDecision decision;
  draw(c, 40 * c.gpus, 1, tokens, decision);
  sim::LayerTraffic traffic;
  // Of other tokens first, and twice: nothing stays of the times before.
  {
    sim::StepTokens others;
    LayerDecision theirs;
    draw(c, 30 * c.gpus, 2, others, theirs);
    builder.build(0, others, theirs, traffic);
  }
  for (int turn = 0; turn < 2; ++turn) builder.build(0, tokens, decision, traffic);

  const std::size_t g = c.gpus;
  std::vector<std::uint64_t> copies(g * g, 0), ran(g, 0);
  for (std::uint32_t t = 0; t < decision.tokens; ++t) {
    std::vector<bool> seen(g, false);
    for (std::uint32_t i = t * c.top_k; i < (t + 1) * c.top_k; ++i) {
      if (static_cast<SlotOutcome>(decision.outcome[i]) == SlotOutcome::kDropped) {
        EXPECT_EQ(traffic.gpu[i], sim::kNoGpu);
        continue;
      }
      const std::size_t to = tokens.rank[t] / ep * ep + decision.first[i] % ep;
      EXPECT_EQ(traffic.gpu[i], to);
      ++ran[to];
      const bool again = c.kind == scenario::DispatchKind::kPerRank && seen[to];
      seen[to] = true;
      if (to != tokens.rank[t] && !again) ++copies[tokens.rank[t] * g + to];
    }
  }
  ASSERT_EQ(traffic.dispatch.size(), 1U);
  ASSERT_EQ(traffic.combine.size(), 1U);
  std::vector<std::uint64_t> out(g, 0), in(g, 0);
  for (std::size_t i = 0; i < g; ++i) {
    for (std::size_t j = 0; j < g; ++j) {
      const std::uint64_t n = copies[i * g + j];
      EXPECT_EQ(traffic.copies[i * g + j], n) << i << " to " << j;
      EXPECT_EQ(traffic.dispatch[0][i * g + j], n * there) << i << " to " << j;
      EXPECT_EQ(traffic.combine[0][j * g + i], n * back) << j << " back to " << i;
      out[i] += n;
      in[j] += n;
    }
  }
  const std::uint64_t all = std::accumulate(out.begin(), out.end(), std::uint64_t{0});
  EXPECT_GT(all, 0U);
  for (std::size_t i = 0; i < g; ++i) {
    EXPECT_EQ(traffic.assignments[i], ran[i]);
    EXPECT_EQ(traffic.dispatch_ports[0].out[i], out[i] * there);
    EXPECT_EQ(traffic.dispatch_ports[0].in[i], in[i] * there);
    EXPECT_EQ(traffic.combine_ports[0].out[i], in[i] * back);
    EXPECT_EQ(traffic.combine_ports[0].in[i], out[i] * back);
  }
  EXPECT_EQ(traffic.dispatch_ports[0].total, all * there);
  EXPECT_EQ(traffic.combine_ports[0].total, all * back);

  // Without the matrices the ports stay.
  sim::LayerTraffic ports;
  builder.build(0, tokens, decision, ports, false);
  EXPECT_TRUE(ports.dispatch.empty());
  EXPECT_TRUE(ports.combine.empty());
  EXPECT_EQ(ports.dispatch_ports[0].out, traffic.dispatch_ports[0].out);
  EXPECT_EQ(ports.combine_ports[0].in, traffic.combine_ports[0].in);
}

// Whole tiles of eight, edges of them, fewer GPUs than a tile; a copy beyond 32 bits of bytes.
INSTANTIATE_TEST_SUITE_P(
    Sizes, Dispatch,
    testing::Values(Case{2, 8, 2, scenario::DispatchKind::kPerExpert, 16},
                    Case{7, 16, 3, scenario::DispatchKind::kPerExpert, 16},
                    Case{8, 64, 8, scenario::DispatchKind::kPerExpert, 16},
                    Case{9, 64, 8, scenario::DispatchKind::kPerExpert, 16},
                    Case{8, 64, 8, scenario::DispatchKind::kPerExpert, 16, 2},
                    Case{18, 64, 8, scenario::DispatchKind::kPerExpert, 16, 3},
                    Case{24, 64, 8, scenario::DispatchKind::kPerExpert, 16},
                    Case{30, 64, 6, scenario::DispatchKind::kPerRank, 16},
                    Case{32, 64, 8, scenario::DispatchKind::kPerRank, 16},
                    Case{17, 64, 8, scenario::DispatchKind::kPerExpert, std::uint64_t{5} << 32U},
                    Case{16, 64, 8, scenario::DispatchKind::kPerExpert, std::uint64_t{5} << 32U}),
    name);

}  // namespace
}  // namespace switchyard
