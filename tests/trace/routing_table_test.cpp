// SPDX-License-Identifier: Apache-2.0
// `inspect --build-table` and `--use-table`.
#include "experiments/cli/routing_table.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "engine/base/error.hpp"
#include "tests/trace/sample_trace.hpp"

namespace switchyard {
namespace {

using testing_trace::SampleOptions;
using testing_trace::write_sample;

std::string cell(const Table& table, const std::string& row, std::size_t column) {
  for (const auto& r : table.rows) {
    if (r[0] == row) {
      return r[column];
    }
  }
  return "no row " + row;
}

RoutingTrace sample(const SampleOptions& o, const std::string& name = "t.h5") {
  RoutingTrace trace = write_sample(name, o);
  std::filesystem::remove(name);
  return trace;
}

// One prompt of one token: its entry is the live choice with the token's own p.
TEST(BuildTable, AnEntryOfOneTokenIsTheRoutersChoice) {
  const RoutingTrace trace = sample({});
  const BuiltTable built = build_routing_table(trace, "tokens", 256);
  EXPECT_EQ(built.table.size(), 3U);
  EXPECT_EQ(built.prompts, 3U);
  const std::uint64_t row = 3;  // sequence 1, its only prompt token
  ASSERT_EQ(trace.tokens.sequence[row], 1U);
  for (std::uint32_t l = 0; l < 3; ++l) {
    const std::uint64_t at = trace.candidate_at(row, l);
    for (std::uint32_t j = 0; j < 2; ++j) {
      EXPECT_EQ(built.table.ids(1, l)[j], trace.routing.candidates[at + j]);
      EXPECT_EQ(built.table.p(1, l)[j],
                gate_probability(trace.header.gate, trace.routing.logit[at + j],
                                 trace.routing.lse[trace.layer_at(row, l)]));
    }
  }
}

TEST(BuildTable, CountsConflictsAndRepeats) {
  SampleOptions o;
  o.prompts = {2, 2, 2};
  RoutingTrace trace = sample(o);
  // All three prompts get the tokens of the first, the third also its logits.
  const auto rows_of = [&](std::uint32_t s) { return std::uint64_t{2} * s; };
  for (std::uint32_t s = 1; s < 3; ++s) {
    for (std::uint64_t i = 0; i < 2; ++i) {
      trace.tokens.token[rows_of(s) + i] = trace.tokens.token[i];
      if (s == 2) {
        const std::uint64_t n = std::uint64_t{3} * trace.header.candidates;
        std::copy_n(
            trace.routing.candidates.begin() + static_cast<std::ptrdiff_t>(i * n), n,
            trace.routing.candidates.begin() + static_cast<std::ptrdiff_t>((rows_of(s) + i) * n));
        std::copy_n(
            trace.routing.logit.begin() + static_cast<std::ptrdiff_t>(i * n), n,
            trace.routing.logit.begin() + static_cast<std::ptrdiff_t>((rows_of(s) + i) * n));
        std::copy_n(trace.routing.lse.begin() + static_cast<std::ptrdiff_t>(i * 3), 3,
                    trace.routing.lse.begin() + static_cast<std::ptrdiff_t>((rows_of(s) + i) * 3));
      }
    }
  }
  const BuiltTable built = build_routing_table(trace, "tokens", 64);
  EXPECT_EQ(built.table.size(), 1U);
  EXPECT_EQ(built.table.conflicts(), 1U);
  EXPECT_EQ(built.repeated, 1U);
  const Table summary = built_table_summary(built);
  EXPECT_EQ(cell(summary, "conflicts", 1), "1");
  EXPECT_EQ(cell(summary, "repeated prompts", 1), "1");
}

TEST(BuildTable, KeysByTextNeedTheTexts) {
  SampleOptions o;
  EXPECT_THROW((void)build_routing_table(sample(o), "characters", 256), InputError);
  o.requests = true;
  const RoutingTrace trace = sample(o);
  EXPECT_EQ(build_routing_table(trace, "characters", 32).table.size(), 3U);
  EXPECT_EQ(build_routing_table(trace, "bytes", 256).table.size(), 3U);
  EXPECT_THROW((void)build_routing_table(trace, "words", 256), InputError);
  EXPECT_THROW((void)build_routing_table(trace, "tokens", 128), InputError);
}

TEST(BuildTable, RefusesATraceThatLacksPromptTokens) {
  RoutingTrace trace = sample({});
  trace.sequences[0].prompt_length += 100;
  EXPECT_THROW((void)build_routing_table(trace, "tokens", 256), InputError);
}

TEST(TableReport, ComparesTheLiveRouterWithTheTable) {
  SampleOptions o;
  o.prompts = {12, 1, 9, 17, 3, 3, 2};
  o.decode_steps = 6;
  const RoutingTrace trace = sample(o);
  const RoutingTable table = build_routing_table(trace, "tokens", 256).table;
  const Table report = routing_table_report(trace, table, "own.table");
  EXPECT_EQ(cell(report, "hit rate of requests", 2), "1.0000");
  EXPECT_EQ(cell(report, "router passes per token and layer", 2), "0.0000");
  EXPECT_NE(cell(report, "agreement@k", 2), "1.0000");
  EXPECT_NE(cell(report, "load_cv", 1), cell(report, "load_cv", 2));
  EXPECT_NE(cell(report, "top share", 2), "n/a");
  // A table without any of the prompts changes nothing.
  const RoutingTable empty(table.spec());
  const Table none = routing_table_report(trace, empty, "empty.table");
  EXPECT_EQ(cell(none, "hit rate of requests", 2), "0.0000");
  EXPECT_EQ(cell(none, "agreement@k", 2), "n/a");
  EXPECT_EQ(cell(none, "load_cv", 1), cell(none, "load_cv", 2));
  EXPECT_EQ(cell(none, "router passes per token and layer", 2), "1.0000");
  TableSpec other = table.spec();
  other.layers = 2;
  EXPECT_THROW((void)routing_table_report(trace, RoutingTable(other), "x"), InputError);
}

}  // namespace
}  // namespace switchyard
