// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/scenario.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"

namespace {

namespace fs = std::filesystem;
using switchyard::CapacityRule;
using switchyard::InputError;
using switchyard::RoutingPolicy;
using switchyard::SimTime;
using switchyard::model::DType;
using namespace switchyard::scenario;  // NOLINT(google-build-using-namespace): the unit under test

const std::string kScenarios = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/";
const std::string kNormative = kScenarios + "normative.toml";

Scenario normative(const std::vector<std::string>& settings = {}) {
  ReadOptions options;
  options.settings = settings;
  return read_scenario(kNormative, options);
}

std::string refusal(const std::vector<std::string>& settings) {
  try {
    static_cast<void>(normative(settings));
  } catch (const InputError& e) {
    return e.what();
  }
  return "(accepted)";
}

const ResolvedValue& value(const Scenario& s, const std::string& key) {
  const auto it = std::find_if(s.values.begin(), s.values.end(),
                               [&](const ResolvedValue& v) { return v.key == key; });
  if (it == s.values.end()) {
    throw std::runtime_error("no value " + key);
  }
  return *it;
}

/// Smallest scenario: two lines of hardware files and one of work.
std::string small(const std::string& more = {}) {
  return "[model]\nfile = \"models/mixtral_8x7b.json\"\n"
         "[hardware]\nfile = \"hardware/hgx_h100.toml\"\n"
         "[workload]\nkind = \"decode\"\nbatch = 8\ncontext = 16\n"
         "routing = { synthetic = \"uniform\" }\n" +
         more;
}

Scenario read_small(const std::string& more = {}) {
  return read_scenario_text(small(more), kScenarios + "small.toml");
}

TEST(NormativeScenario, ResolvesToTheValuesOfTheContract) {
  const Scenario s = normative();
  EXPECT_EQ(s.model.name, "mixtral_8x7b");
  EXPECT_EQ(s.model.num_experts, 8U);
  EXPECT_EQ(s.gate.top_k, 2U);
  EXPECT_EQ(s.dtype.experts, DType::kBf16);
  EXPECT_EQ(s.dtype.router, DType::kF32);
  EXPECT_EQ(s.hardware.name, "hgx_h100");
  EXPECT_EQ(s.parallel.dp, 8U);
  EXPECT_EQ(s.parallel.ep, 8U);
  EXPECT_EQ(s.parallel.attention, AttentionPlacement::kDp);
  EXPECT_EQ(s.parallel.expert_rank,
            (std::vector<std::vector<std::uint32_t>>{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(s.workload.kind, WorkloadKind::kDecode);
  EXPECT_EQ(s.workload.batch, 64U);
  EXPECT_EQ(s.workload.context, 512U);
  EXPECT_EQ(s.workload.tokens, 1U);
  EXPECT_EQ(s.workload.steps, 64U);
  EXPECT_EQ(s.workload.warmup_steps, 16U);
  EXPECT_EQ(s.workload.routing.law, SyntheticLaw::kLognormal);
  EXPECT_EQ(s.workload.routing.sigma, 0.9);
  EXPECT_EQ(s.policy.capacity.rule, CapacityRule::kShare);
  EXPECT_EQ(s.policy.capacity.factor, 1.25);
  EXPECT_EQ(s.policy.capacity.mode, switchyard::OverflowMode::kSequential);
  EXPECT_EQ(s.network.model, NetworkModelKind::kAuto);
  EXPECT_EQ(s.network.dispatch, DispatchKind::kPerRank);
  EXPECT_DOUBLE_EQ(s.memory.watermark, 0.92);
  EXPECT_EQ(s.memory.kv_block, 16U);
  EXPECT_EQ(s.run.seed, 1U);
  EXPECT_EQ(s.run.detail, Detail::kLayers);
  ASSERT_EQ(s.sweep.size(), 1U);
  EXPECT_EQ(s.sweep[0].key, "policy.capacity.factor");
  EXPECT_EQ(s.sweep[0].values, (std::vector<std::string>{"1.0", "1.25", "2.0"}));
}

TEST(NormativeScenario, ContractsOwnTextWorksOnceItsTraceExists) {
  std::string text = switchyard::read_file(kNormative);
  const std::string source = "{ synthetic = \"lognormal\", sigma = 0.9 }";
  text.replace(text.find(source), source.size(), "{ trace = \"traces/x.h5\", layers = \"exact\" }");
  ReadOptions options;
  try {
    static_cast<void>(read_scenario_text(text, kScenarios + "contract.toml", options));
    FAIL() << "the trace does not exist";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("contract.toml:26:21: workload.routing.trace = "
                                         "\"traces/x.h5\": No such file"),
              std::string::npos)
        << e.what();
  }
  options.require_trace = false;
  const Scenario s = read_scenario_text(text, kScenarios + "contract.toml", options);
  EXPECT_EQ(s.workload.routing.source, RoutingSource::kTrace);
  EXPECT_EQ(s.workload.routing.trace_path, kScenarios + "traces/x.h5");
  EXPECT_EQ(value(s, "workload.routing.trace").value, "x.h5");
}

TEST(ShippedScenarios, AreAllValidAtEveryPointOfTheirSweeps) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(kScenarios)) {
    if (entry.path().extension() != ".toml") {
      continue;
    }
    ++count;
    ReadOptions options;
    options.require_trace = false;  // scripts/demo records the trace that demo.toml names
    EXPECT_GE(read_sweep(entry.path().string(), options).size(), 1U) << entry.path();
  }
  EXPECT_GE(count, 6U);
}

TEST(ScenarioReadme, NamesEveryKeyOfItsSections) {
  const std::string readme = switchyard::read_file(kScenarios + "README.md");
  for (const ResolvedValue& v : normative().values) {
    const bool listed = v.key.starts_with("parallel.") || v.key.starts_with("workload.") ||
                        v.key.starts_with("network.") || v.key.starts_with("memory.") ||
                        v.key.starts_with("host.") || v.key.starts_with("run.") ||
                        v.key.starts_with("model.dtype.");
    if (listed) {
      const std::string leaf = v.key.substr(v.key.rfind('.') + 1);
      EXPECT_TRUE(readme.find("`" + v.key + "`") != std::string::npos ||
                  readme.find("`" + leaf + "`") != std::string::npos)
          << v.key;
    }
  }
}

TEST(Origin, NamesFileLineAndColumnOrDefaultOrSet) {
  const Scenario s = normative({"run.seed=7"});
  EXPECT_EQ(value(s, "workload.batch").origin, kNormative + ":22:9");
  EXPECT_EQ(value(s, "workload.batch").value, "64");
  EXPECT_EQ(value(s, "memory.reserve").origin, "default");
  EXPECT_EQ(value(s, "memory.reserve").value, "0 B");
  EXPECT_EQ(value(s, "run.seed").origin, "--set");
  EXPECT_EQ(value(s, "run.seed").value, "7");
  EXPECT_TRUE(value(s, "hardware.link_types.nvlink4.bandwidth")
                  .origin.starts_with(kScenarios + "hardware/hgx_h100.toml:"));
  EXPECT_EQ(value(s, "model.hidden_size").origin, kScenarios + "models/mixtral_8x7b.json");
}

TEST(Settings, OverrideAnyValueAndTheLastOneWins) {
  const Scenario s = normative({"network.model=flow", "workload.batch=32", "workload.batch=16",
                                "hardware.link_types.nvlink4.bandwidth=100 GB/s",
                                "hardware.devices[0].node=1", "policy.capacity.factor = 2"});
  EXPECT_EQ(s.network.model, NetworkModelKind::kFlow);
  EXPECT_EQ(s.workload.batch, 16U);
  EXPECT_EQ(s.hardware.links[0].bandwidth.value, 100e9);
  EXPECT_EQ(s.hardware.gpu(0).node, 1U);
  EXPECT_EQ(s.policy.capacity.factor, 2.0);
}

TEST(Settings, CanNameAnotherFile) {
  const Scenario s = normative({"hardware.file=hardware/hgx_a100.toml"});
  EXPECT_EQ(s.hardware.name, "hgx_a100");
  const Scenario p = normative({"policy={file=\"policies/capacity_2.0.toml\"}"});
  EXPECT_EQ(p.policy.capacity.factor, 2.0);
}

TEST(Settings, ErrorsNameTheOption) {
  EXPECT_EQ(refusal({"policy.capacity.facto=2"}),
            "--set: policy.capacity.facto: unknown key; did you mean \"factor\"?");
  EXPECT_EQ(refusal({"workload.batch=-3"}),
            "--set: workload.batch = -3. Violated: 1 <= batch <= 16777216");
  EXPECT_EQ(refusal({"hardware.link_types.nvlink4.bandwidth=400"}),
            "--set: hardware.link_types.nvlink4.bandwidth = 400 has no unit; write e.g. "
            "\"400 Gbit/s\" or \"50 GB/s\"");
  EXPECT_EQ(refusal({"workload.batch"}),
            "--set: \"workload.batch\" is not key=value; write e.g. --set "
            "policy.capacity.factor=1.25");
  EXPECT_EQ(refusal({"wrkload.batch=8"}),
            "--set: wrkload: unknown key; did you mean \"workload\"?");
  EXPECT_EQ(refusal({"hardware.links[9].bandwidth=1 GB/s"}),
            "--set: \"hardware.links[9].bandwidth\": there is no entry [9]");
  EXPECT_EQ(refusal({"workload..batch=8"}), "--set: \"workload..batch\": empty key");
  EXPECT_EQ(refusal({"parallel.ep=3"}), "--set: parallel.ep = 3. Violated: ep divides the 8 GPUs");
  EXPECT_EQ(refusal({"hardware.file=hardware/hgx_h10.toml"}),
            "--set: hardware.file = \"hardware/hgx_h10.toml\": No such file (" + kScenarios +
                "hardware/hgx_h10.toml); did you mean \"hgx_h100.toml\"?");
}

TEST(Presets, AreFoundFromAScenarioThatLiesAnywhere) {
  const auto read = [](const std::string& hardware, const std::string& more = {}) {
    ReadOptions options;
    options.presets_root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
    return read_scenario_text("[model]\nfile = \"models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" +
                                  hardware +
                                  "\"\n[workload]\nkind = \"decode\"\nbatch = 8\ncontext = 8\nsteps = "
                                  "1\nrouting = { synthetic = \"uniform\" }\n" +
                                  more,
                              "elsewhere/s.toml", options);
  };
  for (const char* name : {"hgx_h100", "hgx_h100.toml", "hardware/hgx_h100.toml"}) {
    EXPECT_EQ(read(name).hardware.name, read("hgx_h100").hardware.name) << name;
  }
  EXPECT_NE(read("hgx_h100", "[cost]\ncalibration = \"h100\"\n").cost.calibration, nullptr);
  const auto refused = [&](const std::string& hardware) -> std::string {
    try {
      static_cast<void>(read(hardware));
    } catch (const switchyard::InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused("hgx_h10"),
            "elsewhere/s.toml:4:8: hardware.file = \"hgx_h10\": No such file or preset; did you "
            "mean \"hgx_h100\"?");
  EXPECT_NE(refused("../nowhere/hgx_h100.toml"), "accepted");
  // What lies beside the scenario comes first.
  std::filesystem::create_directories("elsewhere/hardware");
  switchyard::write_file("elsewhere/hardware/hgx_h100.toml", "name = 1\n");
  EXPECT_NE(refused("hgx_h100"), "accepted");
  std::filesystem::remove_all("elsewhere/hardware");
}

TEST(Trace, OptionReplacesTheSourceAndKeepsTheRest) {
  switchyard::write_file("t.h5", "not read here");
  ReadOptions options;
  options.trace = "t.h5";
  const Scenario s = read_scenario(kNormative, options);
  EXPECT_EQ(s.workload.routing.source, RoutingSource::kTrace);
  EXPECT_EQ(s.workload.routing.trace_path, "t.h5");
  EXPECT_EQ(s.workload.routing.layers, TraceLayers::kExact);
  EXPECT_EQ(value(s, "workload.routing.trace").origin, "--trace");
  EXPECT_EQ(s.workload.batch, 64U);
  options.trace = "nowhere.h5";
  try {
    static_cast<void>(read_scenario(kNormative, options));
    FAIL();
  } catch (const InputError& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("--trace: workload.routing.trace")) << e.what();
  }
}

TEST(Sweep, IsACartesianProductWithTheFirstAxisSlowest) {
  const std::string text = small(
      "[[sweep]]\nkey = \"workload.batch\"\nvalues = [8, 16]\n"
      "[[sweep]]\nkey = \"hardware.link_types.nvlink4.bandwidth\"\n"
      "values = [\"100 GB/s\", \"450 GB/s\", \"900 GB/s\"]\n");
  fs::create_directories("models");
  fs::create_directories("hardware");
  fs::copy_file(kScenarios + "models/mixtral_8x7b.json", "models/mixtral_8x7b.json",
                fs::copy_options::overwrite_existing);
  fs::copy_file(kScenarios + "hardware/hgx_h100.toml", "hardware/hgx_h100.toml",
                fs::copy_options::overwrite_existing);
  switchyard::write_file("sweep.toml", text);
  const std::vector<SweepPoint> points = read_sweep("sweep.toml");
  ASSERT_EQ(points.size(), 6U);
  EXPECT_EQ(points[0].scenario.workload.batch, 8U);
  EXPECT_EQ(points[2].scenario.workload.batch, 8U);
  EXPECT_EQ(points[3].scenario.workload.batch, 16U);
  EXPECT_EQ(points[1].scenario.hardware.links[0].bandwidth.value, 450e9);
  EXPECT_EQ(points[5].scenario.hardware.links[0].bandwidth.value, 900e9);
  EXPECT_EQ(points[4].settings, (std::vector<std::pair<std::string, std::string>>{
                                    {"workload.batch", "16"},
                                    {"hardware.link_types.nvlink4.bandwidth", "\"450 GB/s\""}}));
  // The settings of a point are what --set takes: same scenario, same hash.
  ReadOptions options;
  for (const auto& [key, text_value] : points[4].settings) {
    options.settings.push_back(key + "=" + text_value);
  }
  EXPECT_EQ(scenario_hash(read_scenario("sweep.toml", options)), scenario_hash(points[4].scenario));
  EXPECT_TRUE(read_scenario("sweep.toml", options).sweep.empty());
  EXPECT_EQ(read_scenario("sweep.toml").sweep.size(), 2U);
  // A swept key that --set states is fixed, also at a value that the axis does not have.
  options.settings = {"workload.batch=4"};
  const std::vector<SweepPoint> rest = read_sweep("sweep.toml", options);
  ASSERT_EQ(rest.size(), points.size() / 2);
  for (const SweepPoint& p : rest) {
    ASSERT_EQ(p.settings.size(), 1U);
    EXPECT_EQ(p.settings[0].first, "hardware.link_types.nvlink4.bandwidth");
    EXPECT_EQ(p.scenario.workload.batch, 4U);
  }
  EXPECT_EQ(read_scenario("sweep.toml", options).sweep.size(), 1U);
}

TEST(Hash, DependsOnValuesAndNotOnPlacesOrder) {
  const std::string reordered =
      "[workload]\ncontext = 16\nrouting = { synthetic = \"uniform\" }\nbatch = 8\nkind = "
      "\"decode\"\n# a comment\n[hardware]\nfile = \"hardware/hgx_h100.toml\"\n"
      "[model]\nfile = \"models/mixtral_8x7b.json\"\n";
  const Scenario a = read_small();
  const Scenario b = read_scenario_text(reordered, kScenarios + "other.toml");
  EXPECT_EQ(canonical_text(a), canonical_text(b));
  EXPECT_EQ(scenario_hash(a), scenario_hash(b));
  EXPECT_EQ(scenario_hash(a).size(), 32U);
  // A default written out is the same scenario; another value is another one.
  EXPECT_EQ(scenario_hash(a), scenario_hash(read_small("[network]\ndispatch = \"per_rank\"\n")));
  EXPECT_NE(scenario_hash(a), scenario_hash(read_small("[network]\ndispatch = \"per_node\"\n")));
  // No path of this machine is part of it.
  EXPECT_EQ(canonical_text(a).find(SWITCHYARD_SOURCE_DIR), std::string::npos);
}

TEST(Model, FormatsAreTheFilesWhenItStoresFewerBits) {
  const auto read = [](const std::string& model, const std::string& dtype = {}) {
    return read_scenario_text("[model]\nfile = \"models/" + model + ".json\"\n" + dtype +
                                  "[hardware]\nfile = \"hardware/hgx_h200.toml\"\n"
                                  "[workload]\nkind = \"decode\"\nbatch = 8\ncontext = 16\n"
                                  "routing = { synthetic = \"uniform\" }\n",
                              kScenarios + "small.toml");
  };
  EXPECT_EQ(read("gpt4_s4_int4").dtype.experts, DType::kInt4);
  EXPECT_EQ(read("gpt4_s4_int4").dtype.shared, DType::kBf16);
  EXPECT_EQ(read("gpt_oss_20b").dtype.experts, DType::kMxfp4);
  EXPECT_EQ(read("deepseek_v3").dtype.experts, DType::kF8E4M3);
  EXPECT_EQ(read("deepseek_v3").dtype.shared, DType::kF8E4M3);
  EXPECT_EQ(read("deepseek_v3").dtype.router, DType::kF32);
  EXPECT_EQ(read("mixtral_8x7b").dtype.experts, DType::kBf16);
  const Scenario stated = read("deepseek_v3", "dtype = { experts = \"bf16\" }\n");
  EXPECT_EQ(stated.dtype.experts, DType::kBf16);
  EXPECT_EQ(stated.dtype.shared, DType::kF8E4M3);
}

TEST(Model, PresetNamesAndOverridesWork) {
  const std::string text =
      "[model]\nfile = \"deepseek-v3\"\nnum_experts = 64\n[hardware]\nfile = \"hgx_h100\"\n"
      "[workload]\nfile = \"decode_b32_ctx512\"\nbatch = 8\nrouting = { synthetic = \"uniform\" }\n"
      "[policy]\nfile = \"capacity_1.0\"\n";
  const Scenario s = read_scenario_text(text, kScenarios + "small.toml");
  EXPECT_EQ(s.model.num_experts, 64U);
  EXPECT_EQ(s.gate.experts, 64U);
  EXPECT_EQ(s.gate.n_group, 8U);
  EXPECT_EQ(s.gate.score, switchyard::GateScore::kSigmoid);
  EXPECT_EQ(s.hardware.name, "hgx_h100");
  EXPECT_EQ(s.workload.context, 512U);  // from the file
  EXPECT_EQ(s.workload.batch, 8U);      // beside it
  EXPECT_EQ(s.policy.capacity.factor, 1.0);
  EXPECT_EQ(s.parallel.expert_rank[0][63], 7U);  // 8 experts per rank, contiguous
  EXPECT_EQ(s.parallel.expert_rank[0][8], 1U);
}

TEST(Model, MisspeltPresetIsSuggested) {
  try {
    static_cast<void>(
        read_scenario_text("[model]\nfile = \"mixtral_8x7\"\n", kScenarios + "small.toml"));
    FAIL();
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()),
              kScenarios +
                  "small.toml:2:8: model.file = \"mixtral_8x7\": no such file or preset; "
                  "did you mean \"mixtral_8x7b\"?");
  }
}

TEST(Placement, RoundRobinAndExplicitFilesFillTheTable) {
  const Scenario rr = read_small("[parallel]\nplacement = \"round_robin\"\nep = 4\n");
  EXPECT_EQ(rr.parallel.expert_rank[0], (std::vector<std::uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  std::string csv = "layer,expert,rank\n";
  for (int e = 0; e < 8; ++e) {
    csv += "*," + std::to_string(e) + "," + std::to_string(e == 3 ? 0 : 7 - e) + "\n";
  }
  fs::create_directories("placements");
  switchyard::write_file("placements/p.csv", csv);
  const Scenario ex =
      read_small("[parallel]\nplacement = \"" + fs::absolute("placements/p.csv").string() + "\"\n");
  EXPECT_EQ(ex.parallel.placement, PlacementKind::kExplicit);
  EXPECT_EQ(ex.parallel.expert_rank,
            (std::vector<std::vector<std::uint32_t>>{{7, 6, 5, 0, 3, 2, 1, 0}}));
  EXPECT_NE(scenario_hash(ex), scenario_hash(read_small()));
}

TEST(Placement, LayerNumbersAreThoseOfTheModel) {
  // DeepSeek-V2-Lite: layer 0 is dense, so layer 1 is row 0.
  std::string csv = "layer,expert,rank\n";
  for (int layer = 1; layer < 27; ++layer) {
    for (int e = 0; e < 64; ++e) {
      csv += std::to_string(layer) + "," + std::to_string(e) + "," +
             std::to_string((e + layer) % 8) + "\n";
    }
  }
  switchyard::write_file("layers.csv", csv);
  const std::string head =
      "[model]\nfile = \"deepseek_v2_lite\"\n[hardware]\nfile = \"hgx_h100\"\n[workload]\nkind = "
      "\"prefill\"\ntokens = 8\nrouting = { synthetic = \"uniform\" }\n[parallel]\nplacement = \"" +
      fs::absolute("layers.csv").string() + "\"\n";
  const Scenario s = read_scenario_text(head, kScenarios + "small.toml");
  ASSERT_EQ(s.parallel.expert_rank.size(), 26U);
  EXPECT_EQ(s.parallel.expert_rank[0][0], 1U);
  EXPECT_EQ(s.parallel.expert_rank[25][0], 26U % 8U);
  switchyard::write_file("layers.csv", "layer,expert,rank\n0,0,0\n");
  try {
    static_cast<void>(read_scenario_text(head, kScenarios + "small.toml"));
    FAIL();
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()), fs::absolute("layers.csv").generic_string() +
                                         ":2: layer 0 of the model is no MoE layer");
  }
}

TEST(Payload, BytesPerCopyAreDeepEpsNumbers) {
  // DeepEP low latency, 128 tokens x top-8 x 7168: FP8 7168 + 4 * 56 scales + 16 header = 7408
  // bytes a copy, 1024 copies = 7,585,792; BF16 back 14,336 * 1024 = 14,680,064.
  Payload p;
  p.dispatch = DType::kF8E4M3;
  p.header = 16;
  EXPECT_EQ(1024 * p.dispatch_bytes(7168), 7585792U);
  EXPECT_EQ(1024 * p.combine_bytes(7168), 14680064U);
  p.scale_block = 0;
  EXPECT_EQ(p.dispatch_bytes(7168), 7168U + 16U);
  p.dispatch = DType::kInt4;
  p.scale_block = 128;
  EXPECT_EQ(p.dispatch_bytes(129), 65U + 8U + 16U);
}

TEST(PolicyFile, EveryShippedOneIsValidForTheShippedCheckpointAndDoesSomething) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kScenarios + "policies")) {
    if (entry.path().extension() != ".toml") {
      continue;
    }
    const RoutingPolicy policy = read_policy_file(entry.path().string());
    EXPECT_NO_THROW(switchyard::validate(policy, 16, 2, "policy")) << entry.path();
    EXPECT_EQ(policy == RoutingPolicy{}, entry.path().stem() == "none") << entry.path();
    ++count;
  }
  EXPECT_GE(count, 20U);
}

TEST(PolicyFile, ReadsListsTablesAndTruthValues) {
  switchyard::write_file(
      "lists.toml",
      "[soft]\nexperts = 4\nrenorm = true\nkeywords = [\"a poem\", \"x|y=%\", "
      "\"诗\"]\n[pinned]\nrequests = \"named\"\nnames = { code = 3, \"a b\" = 5 }\n");
  const RoutingPolicy p = read_policy_file("lists.toml");
  EXPECT_EQ(p.soft.keywords, (std::vector<std::string>{"a poem", "x|y=%", "诗"}));
  EXPECT_TRUE(p.soft.renorm);
  ASSERT_EQ(p.pinned.names.size(), 2U);
  EXPECT_EQ(p.pinned.names[1].first, "a b");
  EXPECT_EQ(p.pinned.names[1].second, 5U);
  switchyard::write_file("wrong.toml", "[soft]\nexperts = 4\nkeywords = [1]\n");
  EXPECT_THROW(static_cast<void>(read_policy_file("wrong.toml")), InputError);
  switchyard::write_file("wrong.toml", "[pinned]\nrequests = \"named\"\nnames = { a = \"b\" }\n");
  EXPECT_THROW(static_cast<void>(read_policy_file("wrong.toml")), InputError);
}

TEST(PolicyFile, FindsTheFilesItNamesBesideIt) {
  std::filesystem::create_directories("beside");
  switchyard::write_file("beside/w.safetensors", "not read here");
  switchyard::write_file("beside/p.toml", "[semantic]\nmode = \"mlp\"\nfile = \"w.safetensors\"\n");
  switchyard::PolicyFiles files;
  const RoutingPolicy policy = read_policy_file("beside/p.toml", &files);
  EXPECT_EQ(policy.semantic.file, "w.safetensors");
  EXPECT_EQ(files.at("semantic.file"), std::filesystem::path("beside/w.safetensors"));
  switchyard::write_file("beside/q.toml", "[semantic]\nmode = \"mlp\"\nfile = \"x.safetensors\"\n");
  EXPECT_THROW(static_cast<void>(read_policy_file("beside/q.toml")), InputError);
}

TEST(PolicyFile, HoldsTheKeysOfThePolicySection) {
  const RoutingPolicy one = read_policy_file(kScenarios + "policies/capacity_1.0.toml");
  EXPECT_EQ(one.capacity.rule, CapacityRule::kShare);
  EXPECT_EQ(one.capacity.factor, 1.0);
  EXPECT_EQ(read_policy_file(kScenarios + "policies/capacity_2.0.toml").capacity.factor, 2.0);
  EXPECT_EQ(read_policy_file(kScenarios + "policies/none.toml"), RoutingPolicy{});
  switchyard::write_file("p.toml", "[capacity]\nrule = \"share\"\nfacto = 2\n");
  try {
    static_cast<void>(read_policy_file("p.toml"));
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "p.toml:3:1: capacity.facto: unknown key; did you mean \"factor\"?");
  }
}

TEST(Scenario, MissingFileAndFolderAreRefusedByName) {
  for (const auto& [path, message] :
       {std::pair("nowhere.toml", "nowhere.toml: No such file"),
        std::pair(".", ".: \".\" is a folder; expected a TOML file")}) {
    try {
      static_cast<void>(read_scenario(path));
      FAIL() << path;
    } catch (const InputError& e) {
      EXPECT_STREQ(e.what(), message);
    }
  }
}

TEST(Scenario, HubTakesTheKvCacheAndDenseModelsNeedNoRouting) {
  const Scenario hub = read_small("[parallel]\nattention = \"hub\"\nhub = 3\n");
  EXPECT_EQ(hub.parallel.hub, 3U);
  EXPECT_EQ(hub.memory.kv_placement, KvPlacement::kHub);
  const Scenario dense = read_scenario_text(
      "[model]\nfile = \"dense_28b\"\n[hardware]\nfile = \"hgx_h100\"\n[workload]\nkind = "
      "\"prefill\"\ntokens = 8\n",
      kScenarios + "small.toml");
  EXPECT_EQ(dense.gate.experts, 0U);
  EXPECT_EQ(dense.parallel.ep, 1U);
  EXPECT_TRUE(dense.parallel.expert_rank.empty());
}

TEST(Scenario, ACalibrationOfAnotherDeviceIsRefusedUnlessTheScenarioSaysSo) {
  const std::string file = kScenarios + "calibrations/h200.toml";
  const std::string section = "[cost]\ncalibration = \"" + file + "\"\n";
  try {
    static_cast<void>(read_small(section));
    ADD_FAILURE() << "accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("its times are of \"h200\", gpu0 is a \"h100\""),
              std::string::npos)
        << e.what();
  }
  EXPECT_NE(read_small(section + "other_device = true\nlibrary = \"vllm\"\n").cost.calibration,
            nullptr);
  EXPECT_THROW(static_cast<void>(read_small("[cost]\nother_device = true\n")), InputError);
  // A whole name is that library, though others begin with it.
  const auto named = [&](const std::string& library) {
    return read_scenario_text(
        "[model]\nfile = \"" + kScenarios +
            "models/mixtral_8x7b.json\"\ndtype = { experts = "
            "\"fp8\" }\n[hardware]\nfile = \"" +
            kScenarios +
            "hardware/hgx_h200.toml\"\n[workload]\nkind = \"prefill\"\ntokens = 8\nrouting = { "
            "synthetic = \"uniform\" }\n" +
            section + "library = \"" + library + "\"\n",
        "named.toml");
  };
  const Scenario cutlass = named("trtllm1.3.0rc20/moe_torch_flow_cutlass");
  EXPECT_TRUE(std::none_of(
      cutlass.cost.calibration->tables.begin(), cutlass.cost.calibration->tables.end(),
      [](const OpTable& t) { return t.library.find("cutlass/fp8_block") != std::string::npos; }));
  EXPECT_THROW(static_cast<void>(named("trtllm1.3.0rc20/moe_torch")), InputError);
}

TEST(Scenario, TheHashHoldsWhatFilesSayNotTheirNames) {
  const std::string here = fs::absolute("small.toml").string();
  std::string text = small("[policy.table]\nfile = \"table.json\"\n");
  for (const std::string name : {"models/mixtral_8x7b.json", "hardware/hgx_h100.toml"}) {
    text.replace(text.find(name), name.size(), kScenarios + name);
  }
  const auto hash = [&] { return scenario_hash(read_scenario_text(text, here)); };
  switchyard::write_file("table.json", "one");
  const std::string one = hash();
  EXPECT_EQ(hash(), one);
  switchyard::write_file("table.json", "two");
  EXPECT_NE(hash(), one);

  const std::string config = switchyard::read_file(kScenarios + "models/mixtral_8x7b.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(config.find(from), std::string::npos) << from;
    switchyard::write_file("m.json", std::regex_replace(config, std::regex(from), to));
    std::string other = small();
    other.replace(other.find("models/mixtral_8x7b.json"), 24, fs::absolute("m.json").string());
    return scenario_hash(read_scenario_text(other, kScenarios + "small.toml"));
  };
  const std::string plain = with("model_type", "model_type");
  EXPECT_NE(with("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"), plain);
  const std::string none = "\"sliding_window\": null";
  EXPECT_NE(with(none, "\"sliding_window\": 128"), plain);
  EXPECT_NE(with(none, "\"sliding_window\": 128"), with(none, "\"sliding_window\": 256"));
}

}  // namespace
