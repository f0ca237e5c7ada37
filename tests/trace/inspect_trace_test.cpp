// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect_trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.hpp"
#include "engine/trace/trace_stats.hpp"
#include "tests/trace/sample_trace.hpp"

namespace switchyard {
namespace {
namespace fs = std::filesystem;
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

TEST(InspectTrace, ShowsWhatTheFileHoldsAndTheSameStatisticsAsTheLibrary) {
  SampleOptions o;
  o.policy.capacity.rule = CapacityRule::kShare;
  const RoutingTrace trace = write_sample("i.h5", o);
  const std::vector<Table> tables = inspect_trace("i.h5");
  fs::remove("i.h5");
  ASSERT_EQ(tables.size(), 2U);
  EXPECT_EQ(cell(tables[0], "model", 1), "sample");
  EXPECT_EQ(cell(tables[0], "experts E", 1), "8");
  EXPECT_EQ(cell(tables[0], "token rows", 1), "17");
  EXPECT_EQ(cell(tables[0], "warm-up rows (not in statistics)", 1), "3");
  EXPECT_EQ(cell(tables[0], "decode rows", 1), "9");
  EXPECT_EQ(cell(tables[0], "sequences of domain prose", 1), "2");
  EXPECT_EQ(cell(tables[0], "decisions in the file", 1), "yes");
  EXPECT_EQ(cell(tables[0], "policy", 1), policy_to_text(o.policy));
  const TraceStats stats = trace_stats(trace);
  ASSERT_EQ(tables[1].rows.size(), 4U);  // Three layers and "all".
  EXPECT_EQ(cell(tables[1], "3", 1), std::to_string(stats.layers[1].assignments));
  EXPECT_EQ(cell(tables[1], "all", 3), std::to_string(stats.rerouted));
  EXPECT_GT(stats.rerouted, 0U);
  for (const Table& table : tables) {
    for (const auto& row : table.rows) {
      EXPECT_EQ(row.size(), table.columns.size());
    }
    EXPECT_FALSE(render(table, TableFormat::kText).empty());
  }
}

TEST(InspectTrace, ReplaysAFileWithoutDecisionsAndSaysSo) {
  SampleOptions o;
  o.policy.capacity.rule = CapacityRule::kShare;
  RoutingTrace trace = write_sample("full.h5", o);
  trace.decisions_present = false;
  write_trace("bare.h5", trace);
  const std::vector<Table> full = inspect_trace("full.h5");
  const std::vector<Table> bare = inspect_trace("bare.h5");
  fs::remove("full.h5");
  fs::remove("bare.h5");
  EXPECT_EQ(cell(bare[0], "decisions in the file", 1), "no");
  ASSERT_EQ(bare[0].notes.size(), 1U);
  EXPECT_TRUE(bare[0].notes[0].starts_with("way: replay"));
  EXPECT_EQ(bare[1].rows, full[1].rows);
}

TEST(InspectTrace, PrintsNaWhereThereIsNoData) {
  RoutingTrace trace;
  trace.header = testing_trace::sample_header({});
  trace.step_begin = {0};
  write_trace("empty.h5", trace);
  const std::vector<Table> tables = inspect_trace("empty.h5");
  fs::remove("empty.h5");
  EXPECT_EQ(cell(tables[1], "all", 7), "n/a");
  EXPECT_EQ(cell(tables[1], "all", 13), "n/a");
}

TEST(InspectTrace, NamesAMissingFile) { EXPECT_THROW((void)inspect_trace("no.h5"), InputError); }

}  // namespace
}  // namespace switchyard
