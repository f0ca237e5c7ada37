// SPDX-License-Identifier: Apache-2.0
// What one simulated step costs (simulation.md §6 of the specification, "Speed"), processor time of
// the fastest step on one core, its results checked:
//   deepseek_v3/…  decode on 256 H200 in 32 servers, 58 MoE layers, 32 tokens per GPU, 3.8 million
//                  assignments; from a trace, or synthetic. Goal 50 ms.
//   mixtral/…      decode on 8 H100, 32 MoE layers, batch 64. Goal 1 ms.
//   matrix/…       the byte matrix of one layer of 8,192 tokens, counted from the decisions.
//                  Goal 3 ns per assignment.
// A missed goal is said beside the time; only a wrong result makes the exit code 1, since CI's
// machines are shared.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "engine/base/random.hpp"
#include "engine/routing/candidates.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "sim/loop/dispatch.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/scenario/scenario.hpp"

namespace {

namespace sim = switchyard::sim;
namespace scenario = switchyard::scenario;

bool g_failed = false;
void fail(benchmark::State& state, const std::string& why) {
  g_failed = true;
  state.SkipWithError(why.c_str());
}

double cpu() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::string servers(std::uint32_t gpus) {
  std::string text = R"(
[hardware]
name = "h200 servers"
[hardware.gpu_types.h200]
memory = "141 GB"
hbm = "4.8 TB/s"
mbu = 0.88
mfu = 0.80
mfu_grouped = 0.73
sms = 132
kernel_launch = "3 us"
tdp = "700 W"
peak = { fp32 = "67 TFLOP/s", bf16 = "989 TFLOP/s", fp8 = "1978 TFLOP/s" }
[hardware.link_types.nvlink]
class = "nvlink4"
bandwidth = "450 GB/s"
latency = "3 us"
[hardware.link_types.pcie]
class = "pcie5"
bandwidth = "63 GB/s"
latency = "2.5 us"
[hardware.link_types.nic]
class = "ib"
bandwidth = "50 GB/s"
latency = "2.5 us"
)";
  const auto device = [&](const char* name, std::uint32_t count, const char* kind,
                          std::uint32_t per_node, const char* more) {
    text += fmt::format("[[hardware.devices]]\nname = \"{}\"\ncount = {}\nkind = \"{}\"\n{}", name,
                        count, kind, more);
    if (per_node > 0) text += fmt::format("per_node = {}\n", per_node);
  };
  const auto link = [&](const std::string& from, const std::string& to, const char* type) {
    text += fmt::format("[[hardware.links]]\nfrom = \"{}\"\nto = \"{}\"\ntype = \"{}\"\n", from, to,
                        type);
  };
  device("gpu", gpus, "gpu", 8, "type = \"h200\"\n");
  device("nvswitch", gpus / 8, "nvswitch", 1, "");
  device("nic", gpus, "nic", 8, "");
  text += "[[hardware.devices]]\nname = \"fabric\"\nkind = \"switch\"\n";
  link(fmt::format("gpu[0-{}]", gpus - 1), fmt::format("nvswitch[0-{}]", gpus / 8 - 1), "nvlink");
  link(fmt::format("gpu[0-{}]", gpus - 1), fmt::format("nic[0-{}]", gpus - 1), "pcie");
  link(fmt::format("nic[0-{}]", gpus - 1), "fabric", "nic");
  return text;
}

std::string deepseek(std::uint32_t gpus, const std::string& routing) {
  return fmt::format(
      "[model]\nfile = \"deepseek_v3\"\ndtype = {{ experts = \"fp8\", shared = \"fp8\", router = "
      "\"fp32\", kv = \"bf16\" }}\n{0}[parallel]\nep = {1}\n[workload]\nkind = \"decode\"\nbatch = "
      "{2}\ncontext = 1024\nsteps = 20\nrouting = {3}\n[network]\ndispatch = "
      "\"per_expert\"\npayload = {{ dispatch = \"fp8\", combine = \"bf16\", scale_block = 128, "
      "header = \"16 B\" }}\n[run]\ndetail = \"summary\"\n",
      servers(gpus), gpus, 32 * gpus, routing);
}

std::string mixtral(const std::string& routing) {
  return fmt::format(
      "[model]\nfile = \"mixtral_8x7b\"\n[hardware]\nfile = \"hgx_h100\"\n[parallel]\nep = "
      "8\n[workload]\nkind = \"decode\"\nbatch = 64\ncontext = 512\nsteps = 200\nrouting = "
      "{}\n[run]\ndetail = \"summary\"\n",
      routing);
}

scenario::Scenario read(const std::string& text) {
  scenario::ReadOptions options;
  options.require_trace = false;
  options.presets_root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
  return scenario::read_scenario_text(
      text, std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/step_bench.toml", options);
}

/// 64 sequences of 64 answer rows, 4 layers, logits drawn at random.
switchyard::RoutingTrace made_trace(const switchyard::GateSpec& gate) {
  using namespace switchyard;  // NOLINT(google-build-using-namespace): one function
  constexpr std::uint32_t kSequences = 64, kRows = 64, kLayers = 4;
  RoutingTrace t;
  t.header.model = "made";
  t.header.gate = gate;
  for (std::uint32_t l = 0; l < kLayers; ++l) t.header.layers.push_back(l);
  t.header.candidates = stored_candidates(gate.experts, gate.top_k);
  t.header.slots = gate.top_k;
  t.header.config_hash = t.header.weight_hash = "0000000000000000";
  t.header.engine = "made";
  t.header.precision = "f32";
  RankWorkspace workspace;
  Candidates c;
  t.step_begin = {0, std::uint64_t{kSequences} * kRows};
  std::vector<float> logits(gate.experts);
  for (std::uint32_t q = 0; q < kSequences; ++q) {
    t.sequences.push_back({0, q, "", ""});
    for (std::uint32_t p = 0; p < kRows; ++p) {
      t.tokens.sequence.push_back(q);
      t.tokens.position.push_back(p);
      t.tokens.token.push_back(p);
      t.tokens.phase.push_back(1);
      t.tokens.step.push_back(0);
      for (std::uint32_t l = 0; l < kLayers; ++l) {
        for (std::uint32_t e = 0; e < gate.experts; ++e) {
          logits[e] = static_cast<float>(random_gumbel(1, random_purpose("bench"), {q, l, p, e}));
        }
        rank_candidates(t.header.gate, logits, {}, t.header.candidates, workspace, c);
        t.routing.candidates.insert(t.routing.candidates.end(), c.ids.begin(), c.ids.end());
        t.routing.logit.insert(t.routing.logit.end(), c.logit.begin(), c.logit.end());
        t.routing.lse.push_back(c.lse[0]);
      }
    }
  }
  t.decisions_present = false;
  replay(t, ReplayOptions::recorded(t.header));
  return t;
}

/// `goal`: seconds.
void step(benchmark::State& state, const std::string& text, double goal) {
  const scenario::Scenario s = read(text);
  const bool from_trace = s.workload.routing.source == scenario::RoutingSource::kTrace;
  const switchyard::RoutingTrace trace =
      from_trace ? made_trace(s.gate) : switchyard::RoutingTrace{};
  double best = 1e9;
  std::uint64_t assignments = 0;
  for (auto _ : state) {
    const auto sink = sim::memory_sink();
    double last = 0;
    const sim::SimulationResult result =
        sim::simulate(s, from_trace ? &trace : nullptr, "", *sink,
                      [&](std::uint64_t done, std::uint64_t, std::int64_t) {
                        const double now = cpu();
                        // The first step warms buffers up.
                        if (done > 1) best = std::min(best, now - last);
                        last = now;
                      });
    assignments = sink->data().steps.at(0).assignments;
    if (!result.violations.empty()) {
      return fail(state, result.violations.front().message);
    }
    if (assignments != std::uint64_t{s.workload.batch} * s.gate.top_k * s.model.num_moe_layers()) {
      return fail(state, fmt::format("{} assignments", assignments));
    }
  }
  state.counters["s/step"] = best;
  state.counters["ns/assignment"] = best * 1e9 / static_cast<double>(assignments);
  state.SetLabel(fmt::format("goal {} s: {}", goal, best <= goal ? "met" : "missed"));
}

void matrix(benchmark::State& state, std::uint32_t gpus) {
  const scenario::Scenario s = read(deepseek(gpus, R"({ synthetic = "uniform" })"));
  switchyard::placement::Placement placement;
  placement.ranks = gpus;
  placement.rows.emplace_back();
  const auto experts = static_cast<std::uint32_t>(s.model.num_experts);
  for (std::uint32_t e = 0; e < experts; ++e) placement.rows[0].push_back({e / (experts / gpus)});
  const sim::ExpertMap map(gpus, placement);
  std::vector<std::uint32_t> node(gpus);
  for (std::uint32_t g = 0; g < gpus; ++g) node[g] = g / 8;
  sim::TrafficBuilder builder(s, map, node, s.parallel.placement_options.choice);
  sim::StepTokens tokens;
  switchyard::LayerDecision decision;
  const std::uint32_t k = s.gate.top_k;
  decision.tokens = 8192;
  decision.slots = k;
  std::uint64_t copies = 0;
  for (std::uint32_t t = 0; t < decision.tokens; ++t) {
    tokens.sequence.push_back(t);
    tokens.position.push_back(0);
    tokens.phase.push_back(1);
    tokens.rank.push_back(static_cast<std::uint16_t>(t % gpus));
    const auto r = static_cast<std::uint32_t>(
        switchyard::random_u64(1, switchyard::random_purpose("bench"), {t, 0, 0, 0}));
    for (std::uint32_t j = 0; j < k; ++j) {
      const std::uint32_t e = (r + j * 31) % experts;  // Distinct: 31 j < 256.
      decision.first.push_back(static_cast<std::uint16_t>(e));
      decision.chosen.push_back(static_cast<std::uint16_t>(e));
      decision.outcome.push_back(static_cast<std::uint8_t>(switchyard::SlotOutcome::kKept));
      copies += e / (experts / gpus) == t % gpus ? 0 : 1;
    }
  }
  sim::LayerTraffic traffic;
  double best = 1e9;
  for (auto _ : state) {
    const double begin = cpu();
    for (int i = 0; i < 100; ++i) builder.build(0, tokens, decision, traffic);
    best = std::min(best, (cpu() - begin) / 100);
  }
  std::uint64_t bytes = 0;
  for (const std::uint64_t b : traffic.dispatch[0]) bytes += b;
  if (bytes != copies * s.network.payload.dispatch_bytes(s.model.hidden_size)) {
    return fail(state, "the matrix holds other bytes than the decisions ask for");
  }
  const double each = best * 1e9 / (8192.0 * k);
  state.counters["ns/assignment"] = each;
  state.SetLabel(fmt::format("goal 3 ns: {}", each <= 3 ? "met" : "missed"));
}

}  // namespace

int main(int argc, char** argv) {
  const auto add = [](const char* name, const std::string& text, double goal) {
    benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { step(state, text, goal); })
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  };
  const std::string trace = R"({ trace = "made", layers = "cycle" })";
  const std::string lognormal = R"({ synthetic = "lognormal", sigma = 0.9 })";
  add("deepseek_v3/256_gpus/trace", deepseek(256, trace), 0.05);
  add("deepseek_v3/256_gpus/lognormal", deepseek(256, lognormal), 0.05);
  add("mixtral/8_gpus/trace", mixtral(trace), 0.001);
  add("mixtral/8_gpus/lognormal", mixtral(lognormal), 0.001);
  for (const std::uint32_t gpus : {8U, 64U, 256U}) {
    benchmark::RegisterBenchmark(fmt::format("matrix/{}_gpus", gpus).c_str(), matrix, gpus)
        ->Iterations(3)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return g_failed ? 1 : 0;
}
