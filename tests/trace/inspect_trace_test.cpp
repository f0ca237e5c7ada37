// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect_trace.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/trace/trace_stats.hpp"
#include "experiments/cli/inspect_activation.hpp"
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
  ASSERT_EQ(tables.size(), 4U);
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

// M03: the gate's weights come from the policy file, which must be the one that made the trace.
TEST(InspectTrace, ReplaysASemanticGateWithTheFilesOfItsPolicy) {
  std::vector<model::TensorData> tensors;
  for (const std::uint32_t l : {1U, 3U, 5U}) {
    const auto add = [&](const char* name, std::vector<std::uint64_t> shape, std::uint32_t n) {
      std::vector<float> values(n);
      for (std::uint32_t i = 0; i < n; ++i) {
        values[i] =
            0.5F * static_cast<float>(random_normal(9, random_purpose("test"), {l, n, i, 0}));
      }
      tensors.push_back(
          model::TensorData::from_floats(fmt::format("layers.{}.semantic.{}", l, name),
                                         model::DType::kF32, std::move(shape), values));
    };
    add("w1", {4, 8}, 32);
    add("b1", {4}, 4);
    add("w2", {8, 4}, 32);
    add("b2", {8}, 8);
  }
  model::write_safetensors("w.safetensors", tensors);
  NamedPolicy named{"p.toml",
                    policy_from_text("semantic.mode=mlp semantic.file=w.safetensors "
                                     "capacity.rule=share capacity.factor=1",
                                     "test"),
                    {{"semantic.file", "w.safetensors"}}};
  SampleOptions o;
  o.policy = named.policy;
  const std::vector<std::uint32_t> layers{1, 3, 5};
  const PolicyWeights weights =
      model::load_policy_weights(o.policy, named.files, o.gate, layers, 0);
  o.weights = &weights;
  RoutingTrace trace = write_sample("full.h5", o);
  trace.decisions_present = false;
  write_trace("bare.h5", trace);
  const std::vector<Table> full = inspect_trace("full.h5");
  const std::vector<Table> bare = inspect_trace("bare.h5", {.policy = &named});
  EXPECT_EQ(bare[1].rows, full[1].rows);
  EXPECT_EQ(bare[2].rows, full[2].rows);
  const auto error = [](const char* file, const NamedPolicy* policy) -> std::string {
    try {
      (void)inspect_trace(file, {.policy = policy});
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error("bare.h5", nullptr),
            "bare.h5: the file has no decisions, and policy.semantic.file = w.safetensors needs "
            "that file for a replay; give --policy with the policy file of the run");
  EXPECT_EQ(error("full.h5", &named), "--policy: has no effect: the file holds its decisions");
  named.policy.capacity.factor = 2;
  EXPECT_EQ(error("bare.h5", &named)
                .find("p.toml: is not the policy that made the trace; that "
                      "was: semantic.mode=mlp"),
            0U)
      << error("bare.h5", &named);
  fs::remove("full.h5");
  fs::remove("bare.h5");
  fs::remove("w.safetensors");
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

/// Two decode steps of a model of one MoE layer, E = 4, k = 2: two tokens on experts 0 1, 0 2; then
/// one on 1 0.
RoutingTrace two_steps() {
  RoutingTrace trace;
  trace.header.gate = gate_mixtral(4, 2);
  trace.header.layers = {0};
  trace.header.candidates = 4;
  trace.header.slots = 2;
  trace.sequences = {{1, 0, "", ""}, {1, 1, "", ""}};
  trace.tokens = {{0, 1, 0}, {9, 4, 10}, {1, 1, 1}, {1, 1, 1}, {0, 0, 1}};
  trace.step_begin = {0, 2, 3};
  trace.routing.candidates = {0, 1, 2, 3, 0, 2, 1, 3, 1, 0, 2, 3};
  trace.routing.logit.assign(12, 0.0F);
  trace.routing.lse.assign(3, std::log(4.0F));
  trace.routing.first = trace.routing.chosen = {0, 1, 0, 2, 1, 0};
  trace.routing.weights.assign(6, 0.5F);
  trace.routing.outcome.assign(6, 1);
  return trace;
}

TEST(InspectActivation, MatchesAHandCalculation) {
  const auto tables = activation_tables(two_steps(), std::nullopt);
  ASSERT_EQ(tables.size(), 6U);
  // Columns: rate, definition, prefill, decode, mixed, all.
  EXPECT_EQ(cell(tables[0], "expert_fraction", 3), "50.00");
  EXPECT_EQ(cell(tables[0], "touched_fraction", 3), "62.50");  // 3/4 and 2/4
  EXPECT_EQ(cell(tables[0], "kept_fraction", 3), "50.00");
  EXPECT_EQ(cell(tables[0], "slot_occupancy", 3), "n/a");  // no capacity
  EXPECT_EQ(cell(tables[0], "param_wide", 3), "n/a");      // no model
  EXPECT_EQ(cell(tables[0], "touched_fraction", 2), "n/a");
  EXPECT_EQ(cell(tables[1], "tokens", 3), "1.50");
  EXPECT_EQ(cell(tables[1], "distinct experts of a layer, mean", 3), "2.50");
  EXPECT_EQ(cell(tables[1], "tokens of the busiest expert", 3), "1.50");
  EXPECT_EQ(cell(tables[1], "tokens per touched expert", 3), "1.17");
  // W = 1: loads 1 1 0 0, std / mean = 1. All: 3 2 1 0, sqrt(1.25) / 1.5.
  EXPECT_EQ(cell(tables[2], "1", 1), "100.00");
  EXPECT_EQ(cell(tables[2], "3", 1), "74.54");
  EXPECT_EQ(cell(tables[2], "3", 2), "57.74");            // sqrt(.5 / 1.5)
  EXPECT_EQ(cell(tables[3], "even router", 3), "1.250");  // (16 - 1) / 12
  EXPECT_EQ(cell(tables[4], "0", 1), "0 (50.0), 1 (33.3), 2 (16.7), 3 (0.0)");
  EXPECT_EQ(cell(tables[4], "0", 5), "1");
  for (const Table& table : tables) {
    EXPECT_FALSE(render(table, TableFormat::kText).empty());
  }
}

TEST(InspectActivation, TakesParametersAndBytesFromTheModel) {
  model::ModelConfig config = model::read_model_config(fs::path(SWITCHYARD_SOURCE_DIR) /
                                                       "scenarios/checkpoints/sy-16x2/config.json");
  SampleOptions o;
  o.gate = gate_mixtral(16, 2);
  o.layers = config.moe_layers();
  const RoutingTrace trace = write_sample("m.h5", o);
  fs::remove("m.h5");
  const auto tables = activation_tables(trace, config);
  const auto active = model::count_active(config);
  const auto all = model::count_parameters(config);
  EXPECT_EQ(cell(tables[0], "param_wide", 5),
            fmt::format("{:.2f}", 100.0 * static_cast<double>(active.total()) /
                                      static_cast<double>(all.total())));
  const double touched = std::stod(cell(tables[1], "distinct experts of a layer, mean", 3));
  const auto expert =
      static_cast<double>(model::expert_bytes(config, model::default_dtypes(config).experts));
  EXPECT_NEAR(std::stod(cell(tables[1], "of them routed experts", 3)),
              touched * expert * static_cast<double>(config.num_moe_layers()), 0.006 * expert * 4);
  EXPECT_GT(std::stod(cell(tables[1], "keys and values attended to per token", 3)), 0.0);
}

TEST(InspectActivation, RefusesAnotherModel) {
  SampleOptions o;
  (void)write_sample("other.h5", o);
  const fs::path root = fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios";
  try {
    (void)inspect_activation("other.h5", {true, 0, "deepseek_v3", root});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("has 256 experts, top-8, 58 MoE layers"),
              std::string::npos)
        << e.what();
  }
  EXPECT_EQ(inspect_activation("other.h5", {true, 0, "", root}).size(), 6U);
  fs::remove("other.h5");
}

TEST(InspectTrace, NamesAMissingFile) { EXPECT_THROW((void)inspect_trace("no.h5"), InputError); }

}  // namespace
}  // namespace switchyard
