// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/deepseek_v3_case.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/base/error.hpp"
#include "experiments/validation/csv.hpp"
#include "experiments/validation/drawn_routing.hpp"
#include "experiments/validation/measured_rows.hpp"
#include "sim/cost/calibrated.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::validation {
namespace {

constexpr std::uint32_t kServer = 8, kPrompt = 4096, kDecodeBatch = 128, kPrompts = 4;

constexpr std::string_view kHardware = R"(
[model]
file = "deepseek_v3"
dtype = { experts = "fp8", shared = "fp8", router = "fp32", kv = "bf16", activations = "bf16" }
[hardware]
name = "h800"
[hardware.gpu_types.h800]
memory = "80 GB"
hbm = "3.35 TB/s"
mbu = 0.69
mfu = 0.55
mfu_grouped = 0.55
sms = 132
kernel_launch = "3 us"
tdp = "700 W"
peak = { fp32 = "67 TFLOP/s", bf16 = "989 TFLOP/s", fp8 = "1978 TFLOP/s" }
[hardware.link_types.nvlink]
class = "nvlink4"
bandwidth = "{}"
latency = "3 us"
[hardware.link_types.pcie]
class = "pcie5"
bandwidth = "63 GB/s"
latency = "2.5 us"
[hardware.link_types.nic]
class = "ib"
latency = "2.5 us"
)";

std::string scenario_text(std::uint32_t gpus, const std::string& nvlink, const std::string& nic,
                          const std::string& workload, const std::string& network) {
  std::string text(kHardware);
  const std::string_view hole = "{}";
  text.replace(text.find(hole), hole.size(), nvlink);
  text += fmt::format("bandwidth = \"{}\"\n", nic);
  const auto device = [&](const char* name, std::uint32_t count, const char* kind,
                          std::uint32_t per_node, const char* more) {
    text += fmt::format("[[hardware.devices]]\nname = \"{}\"\ncount = {}\nkind = \"{}\"\n", name,
                        count, kind);
    if (per_node > 0) text += fmt::format("per_node = {}\n", per_node);
    text += more;
  };
  const auto link = [&](const std::string& from, const std::string& to, const char* type) {
    text += fmt::format("[[hardware.links]]\nfrom = \"{}\"\nto = \"{}\"\ntype = \"{}\"\n", from, to,
                        type);
  };
  device("gpu", gpus, "gpu", kServer, "type = \"h800\"\n");
  device("nvswitch", gpus / kServer, "nvswitch", 1, "");
  device("nic", gpus, "nic", kServer, "");
  text += "[[hardware.devices]]\nname = \"fabric\"\nkind = \"switch\"\n";
  for (std::uint32_t s = 0; s < gpus / kServer; ++s) {
    link(fmt::format("gpu[{}-{}]", s * kServer, s * kServer + kServer - 1),
         fmt::format("nvswitch{}", s), "nvlink");
  }
  link(fmt::format("gpu[0-{}]", gpus - 1), fmt::format("nic[0-{}]", gpus - 1), "pcie");
  link(fmt::format("nic[0-{}]", gpus - 1), "fabric", "nic");
  text += fmt::format(
      "[parallel]\ndp = {0}\nep = {0}\n[workload]\n{1}\nsteps = 1\nrouting = {{ trace = \"drawn\", "
      "layers = \"cycle\" }}\n[network]\n{2}\n[run]\ndetail = \"steps\"\n",
      gpus, workload, network);
  return text;
}

std::shared_ptr<const scenario::Calibration> calibration(const std::filesystem::path& folder,
                                                         const scenario::Scenario& s,
                                                         std::string_view phase) {
  const scenario::GpuType& gpu = s.hardware.gpu_type(0);
  scenario::Calibration c;
  c.device = gpu.name;
  c.hbm = gpu.hbm;
  c.link.value = 50e9;
  c.peak = gpu.peak;
  c.source = "alibaba/InferSim f2293da, bench_data/grouped_gemm";
  c.licence = "Apache-2.0";
  scenario::OpTable t;
  t.kind = scenario::OpKind::kExperts;
  t.library = "DeepGEMM";
  t.dtype = s.dtype.experts;
  t.shape = {s.model.hidden_size, s.model.expert_intermediate, 3};
  t.where = folder.string();
  const Csv csv = read_csv(folder / "grouped_gemm.csv",
                           "phase,local_experts,tokens_per_expert,up_us,down_us,up_rows,down_rows");
  for (std::size_t r = 0; r < csv.rows.size(); ++r) {
    if (csv.rows[r][0] != phase) continue;
    const double experts = number(csv, r, 1, 1), tokens = number(csv, r, 2, 1);
    t.points.push_back({grouped_rows(experts, tokens, number(csv, r, 5, 1), number(csv, r, 6, 1)),
                        number(csv, r, 3, 1e-9) + number(csv, r, 4, 1e-9)});
  }
  if (t.points.empty()) {
    throw InputError((folder / "grouped_gemm.csv").string(),
                     fmt::format("there is no row of phase \"{}\"", phase));
  }
  c.tables.push_back(std::move(t));
  sim::fit_tables(c);
  return std::make_shared<const scenario::Calibration>(std::move(c));
}

/// One step of the scenario: tokens a second and GPU, and the phases of its critical path.
struct Step {
  double rate = 0;
  std::array<double, run::kPhases> seconds{};
};

Step run_step(const std::filesystem::path& scenarios, const std::string& text,
              std::string_view phase) {
  scenario::ReadOptions options;
  options.require_trace = false;
  options.presets_root = scenarios.string();
  scenario::Scenario s = scenario::read_scenario_text(
      text, (scenarios / fmt::format("deepseek_v3_{}.toml", phase)).string(), options);
  s.cost.calibration = calibration(scenarios / "validation" / "h800_deepseek_v3", s, phase);
  const RoutingTrace routing = drawn_routing(s.gate);
  const auto sink = sim::memory_sink();
  const sim::SimulationResult result = sim::simulate(s, &routing, "", *sink);
  if (!result.violations.empty()) {
    throw InputError(fmt::format("DeepSeek-V3, {}", phase), result.violations.front().message);
  }
  const run::StepScalars& step = sink->data().steps.at(0);
  Step out;
  for (std::size_t p = 0; p < run::kPhases; ++p) {
    out.seconds[p] = static_cast<double>(step.phase_ps[p]) * 1e-12;
  }
  out.rate = static_cast<double>(step.tokens) / static_cast<double>(s.hardware.gpu_count()) /
             (static_cast<double>(step.end_ps - step.start_ps) * 1e-12);
  return out;
}

/// One published figure and the scenario it is of.
struct Case {
  std::string_view phase;
  double measured = 0;
  std::uint32_t gpus = 0;
  std::string nic, workload, network, overlap;
};

Throughput compare(const std::filesystem::path& scenarios, const Case& c) {
  const auto text = [&](const std::string& network) {
    return scenario_text(c.gpus, "160 GB/s", c.nic, c.workload, network);
  };
  const Step serial = run_step(scenarios, text(c.network), c.phase);
  Throughput out;
  out.phase = c.phase;
  out.measured = c.measured;
  out.serial = serial.rate;
  out.simulated = run_step(scenarios, text(c.network + "\n" + c.overlap), c.phase).rate;
  out.seconds = serial.seconds;
  return out;
}

}  // namespace

Throughput run_deepseek_prefill(const std::filesystem::path& scenarios) {
  constexpr std::uint32_t kGpus = 32;
  return compare(
      scenarios,
      {"prefill", 7839, kGpus, "45 GB/s",
       fmt::format("kind = \"prefill\"\nbatch = {}\ntokens = {}", kGpus * kPrompts, kPrompt),
       "dispatch = \"per_node\"\npayload = { dispatch = \"fp8\", combine = \"bf16\", "
       "scale_block = 128 }",
       "two_batch = true\ncomm_sms = \"18.18 %\""});
}

Throughput run_deepseek_decode(const std::filesystem::path& scenarios) {
  constexpr std::uint32_t kGpus = 128;
  return compare(
      scenarios,
      {"decode", 2324, kGpus, "39 GB/s",
       fmt::format("kind = \"decode\"\nbatch = {}\ncontext = {}", kGpus * kDecodeBatch, kPrompt),
       "dispatch = \"per_expert\"\npayload = { dispatch = \"fp8\", combine = \"bf16\", "
       "scale_block = 128, header = \"16 B\" }",
       "two_batch = true"});
}

scenario::HardwareSpec h800_servers(const std::filesystem::path& scenarios, std::uint32_t gpus,
                                    const std::string& nvlink, const std::string& nic) {
  scenario::ReadOptions options;
  options.require_trace = false;
  options.presets_root = scenarios.string();
  return scenario::read_scenario_text(
             scenario_text(gpus, nvlink, nic,
                           fmt::format("kind = \"decode\"\nbatch = {}\ncontext = 1", gpus), ""),
             (scenarios / "h800_servers.toml").string(), options)
      .hardware;
}

Table deepseek_table(const std::vector<Throughput>& results) {
  Table table;
  table.name = "validate-deepseek-v3";
  table.title = "End to end: DeepSeek-V3 on H800, prefill EP32 and decode EP128";
  table.columns = {"phase",     "measured [tokens/s/GPU]", "simulated [tokens/s/GPU]",
                   "error [%]", "goal |error| [%]",        "without overlap, error [%]"};
  for (std::size_t p = 0; p < run::kPhases; ++p) {
    table.columns.push_back(fmt::format("{} [ms]", run::kPhaseNames[p]));
  }
  const auto error = [](double rate, double measured) {
    return fmt::format("{:.1f}", 100 * (rate / measured - 1));
  };
  for (const Throughput& r : results) {
    table.rows.push_back({r.phase, fmt::format("{:.0f}", r.measured),
                          fmt::format("{:.0f}", r.simulated), error(r.simulated, r.measured), "15",
                          error(r.serial, r.measured)});
    for (const double t : r.seconds) table.rows.back().push_back(fmt::format("{:.3f}", t * 1e3));
  }
  table.notes.push_back(
      "experts from InferSim's grouped GEMMs on H800, NICs at the rates DeepEP measured, all else "
      "the roofline with published achievable shares; nothing fitted to these figures");
  table.notes.push_back(
      "simulated: two micro-batches (network.two_batch), prefill with 24 of 132 SMs for "
      "communication, as the profile; the times are of the step without overlap");
  table.notes.push_back(
      "differs from the profile: routing is drawn evenly, not exactly balanced as there (against "
      "us)");
  table.notes.push_back("published simulator on this case (InferSim): prefill 15.2, decode 15.1 %");
  table.notes.push_back(
      "measured: deepseek-ai/profile-data as listed by alibaba/InferSim f2293da (Apache-2.0)");
  return table;
}

}  // namespace switchyard::validation
