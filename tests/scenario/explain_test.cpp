// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/explain.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"

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
  EXPECT_NE(
      notes.find("exchanges run at the achievable rate, a share of the nominal one of nvlink4; "
                 "no share is stated for pcie5: the nominal rate\n"),
      std::string::npos)
      << notes;
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

// What `sim` refuses before its first step is refused here, at the line that is to blame.
TEST(Explain, RefusesWhatTheSimulatorWouldWithFileAndLine) {
  const auto refusal = [](const std::string& text) -> std::string {
    switchyard::write_file("refused.toml", text);
    ReadOptions options;
    options.presets_root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
    try {
      (void)explain_file("refused.toml", options);
    } catch (const switchyard::InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  const std::string open =
      "[workload]\nkind = \"open\"\nrouting = { synthetic = \"uniform\" }\n"
      "arrivals = { per_second = 4.0, requests = 3 }\nlengths = { prompt = 8, output = 2 }\n";
  const std::string decode =
      "[workload]\nkind = \"decode\"\nbatch = 8\ncontext = 64\n"
      "routing = { synthetic = \"uniform\" }\n";
  const std::string root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/";
  const std::string head = "[model]\nfile = \"" + root +
                           "models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" + root +
                           "hardware/hgx_h100.toml\"\n";
  EXPECT_EQ(refusal(head + "[parallel]\nep = 8\n" + open), "accepted");
  const std::string full = refusal(head + "[parallel]\nep = 1\n" + open);
  EXPECT_EQ(full.find("refused.toml:6:6: parallel.ep: GPU 0 has 0 B for KV pages"), 0U) << full;
  const std::string kv = refusal(head + open + "batching = { kv = \"10 TB\" }\n");
  EXPECT_EQ(kv.find("refused.toml:10:19: workload.batching.kv: "), 0U) << kv;
  const std::string page = refusal(head + open + "batching = { kv = \"1 B\" }\n");
  EXPECT_EQ(page.find("refused.toml:10:19: workload.batching.kv: GPU 0 has 1 B"), 0U) << page;
  EXPECT_NE(page.find("state room for at least one page"), std::string::npos) << page;
  const std::string norm = refusal(head + decode + "[policy]\ncondition.layer_norm = \"on\"\n");
  EXPECT_EQ(norm.find("refused.toml:11:24: policy.condition.layer_norm = on acts before"), 0U)
      << norm;
  const std::string words =
      refusal(head + decode +
              "[policy]\nsoft = { requests = \"keywords\", keywords = [\"a\"], experts = 2 }\n");
  EXPECT_EQ(words.find("refused.toml:11:"), 0U) << words;
  const std::string sampled = refusal(head + decode + "[memory]\nsample_every = \"1 ms\"\n");
  EXPECT_EQ(sampled.find("refused.toml:11:16: memory.sample_every: means nothing"), 0U) << sampled;
}

TEST(Explain, ChecksEveryPointOfASweepWhateverTimesItsExchanges) {
  ReadOptions options;
  for (const char* model : {"flow", "coflow"}) {
    options.settings = {std::string("network.model=") + model};
    EXPECT_NO_THROW((void)explain_file(kNormative, options)) << model;
  }
}

TEST(Explain, SaysThatALimitOfZeroIsNone) {
  ReadOptions options;
  options.settings = {
      "workload={ kind = \"open\", routing = { synthetic = \"uniform\" }, arrivals = "
      "{ per_second = 4.0, requests = 3 }, lengths = { prompt = 8, output = 2 } }"};
  const Table t = explain_file(kNormative, options);
  EXPECT_EQ(row(t, "workload.batching.max_waiting")[1], "no limit");
  EXPECT_EQ(row(t, "workload.max_steps")[1], "no limit");
}

}  // namespace
