// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/explain.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace {

using switchyard::explain_file;
using switchyard::Table;
using switchyard::scenario::ReadOptions;

const std::string kNormative = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/normative.toml";

std::vector<std::string> row(const Table& table, const std::string& key) {
  const auto it = std::find_if(table.rows.begin(), table.rows.end(),
                               [&](const std::vector<std::string>& r) { return r[0] == key; });
  return it == table.rows.end() ? std::vector<std::string>() : *it;
}

TEST(Explain, ShowsValueOriginAndSourceOfEachFigure) {
  ReadOptions options;
  options.settings = {"memory.reserve=2 GiB"};
  const Table t = explain_file(kNormative, options);
  EXPECT_EQ(t.columns,
            (std::vector<std::string>{"key", "value", "origin", "source of the figure"}));
  EXPECT_EQ(row(t, "memory.reserve"),
            (std::vector<std::string>{"memory.reserve", "2 GiB", "--set", ""}));
  EXPECT_EQ(row(t, "run.seed")[2], kNormative + ":41:8");
  EXPECT_EQ(row(t, "host.per_step")[2], "default");
  EXPECT_EQ(row(t, "hardware.link_types.nvlink4.bandwidth")[1], "450 GB/s");
  EXPECT_NE(row(t, "hardware.link_types.nvlink4.bandwidth")[3].find("per direction"),
            std::string::npos);
  EXPECT_NE(row(t, "hardware.gpu_types.h100.peak.bf16")[3].find("h100_sxm.yaml"),
            std::string::npos);
  EXPECT_TRUE(row(t, "hardware.gpu_types.h100.source.hbm").empty());
  EXPECT_EQ(row(t, "sweep policy.capacity.factor")[1], "1.0, 1.25, 2.0");
  for (const std::vector<std::string>& r : t.rows) {
    EXPECT_EQ(r.size(), t.columns.size());
    EXPECT_FALSE(r[2].empty()) << r[0] << " has no origin";
  }
}

TEST(Explain, NotesNameTheActiveRoutingStepsTheSweepAndTheHash) {
  const Table t = explain_file(kNormative, {});
  std::string notes;
  for (const std::string& note : t.notes) {
    notes += note + "\n";
  }
  const std::size_t softmax = notes.find("softmax");
  const std::size_t capacity = notes.find("1.25");
  ASSERT_NE(softmax, std::string::npos) << notes;
  ASSERT_NE(capacity, std::string::npos) << notes;
  EXPECT_LT(softmax, capacity) << "pipeline order";
  EXPECT_NE(notes.find("3 sweep points"), std::string::npos) << notes;
  EXPECT_NE(notes.find("scenario hash " + switchyard::scenario::scenario_hash(
                                              switchyard::scenario::read_scenario(kNormative))),
            std::string::npos)
      << notes;
}

TEST(Explain, ATraceThatIsNotMadeYetIsNoError) {
  ReadOptions options;
  options.trace = "later.h5";
  const Table t = explain_file(kNormative, options);
  EXPECT_EQ(row(t, "workload.routing.trace"),
            (std::vector<std::string>{"workload.routing.trace", "later.h5", "--trace", ""}));
}

}  // namespace
