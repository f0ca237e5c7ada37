// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/cli/own_output.hpp"
#include "experiments/cli/sim.hpp"
#include "experiments/validation/deepep_h800.hpp"
#include "experiments/validation/deepseek_v3_case.hpp"
#include "experiments/validation/default_network.hpp"
#include "experiments/validation/fit_routing.hpp"
#include "experiments/validation/left_out.hpp"
#include "experiments/validation/validate.hpp"
#include "experiments/validation/vllm_case.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;

/// The fastest link of the first GPU.
BytesPerSecond own_link(const scenario::HardwareSpec& hardware) {
  BytesPerSecond best;
  for (const scenario::Link& l : hardware.links) {
    if (l.a == hardware.gpus.front() || l.b == hardware.gpus.front()) {
      best.value = std::max(best.value, l.bandwidth.value);
    }
  }
  return best;
}

/// The shipped server of that GPU, whose links a simulation has by default; none: no such file.
std::optional<scenario::HardwareSpec> preset_of(const std::string& device) {
  const fs::path file = scenarios_root() / "hardware" / fmt::format("hgx_{}.toml", device);
  if (!fs::exists(file)) return std::nullopt;
  return scenario::read_hardware(file.string());
}

}  // namespace

int run_validate(const ValidateOptions& options) {
  if (options.step_loop && !options.data.empty()) {
    throw InputError("--step-loop", "has no effect with --data", "leave one of them out");
  }
  const scenario::Calibration calibration = scenario::read_calibration(
      find_named(options.hardware, "calibrations", "--hardware").string());
  const fs::path folder =
      options.data.empty() ? scenarios_root() / "validation" / calibration.device : options.data;
  const validation::MeasuredRows measured = validation::read_measured(folder, calibration.device);
  const std::vector<validation::JudgedRow> judged = validation::judge(calibration, measured.rows);
  std::vector<Table> tables{validation::summary_table(calibration, measured, judged)};
  if (options.rows) tables.push_back(validation::rows_table(judged));
  const validation::LeftOut left_out = validation::judge_left_out(calibration, measured.rows);
  if (!left_out.rows.empty()) {
    tables.push_back(validation::left_out_table(calibration, left_out));
  }
  if (const auto server = preset_of(calibration.device)) {
    const validation::DefaultNetwork network =
        validation::judge_default_network(*server, measured.rows);
    if (!network.rows.empty()) {
      tables.push_back(validation::default_network_table(*server, network));
    }
  }
  if (options.data.empty()) {
    const fs::path folder_of_case = scenarios_root() / "validation" / "rtx_pro_6000_qwen3_30b";
    validation::VllmCase vllm = validation::run_vllm_case(folder_of_case);
    if (options.step_loop) {
      const auto loop = [&](validation::MoeRows rows) {
        return run_vllm_loop(folder_of_case, scenarios_root(), rows);
      };
      vllm.loop = loop(validation::MoeRows::kGathered);
      vllm.loop_own_rows = loop(validation::MoeRows::kOwn);
    }
    tables.push_back(validation::vllm_table(vllm));
    if (options.step_loop) {
      tables.push_back(
          validation::deepseek_table({validation::run_deepseek_prefill(scenarios_root()),
                                      validation::run_deepseek_decode(scenarios_root())}));
    }
  }
  if (options.data.empty() && calibration.device == "h800") {
    tables.push_back(validation::deepep_table(validation::run_deepep_h800(scenarios_root())));
  }
  fmt::print("{}", render_all(tables, options.format));
  return validation::goal_met(judged) ? 0 : 1;
}

int run_fit(const FitOptions& options) {
  require_own_output("-o", options.output,
                     {{"the routing trace", options.trace}, {"the hardware", options.hardware}});
  ParentFolders folders;
  folders.make("-o", options.output);
  const bool measured_given = !options.measured.empty();
  if (options.trace.empty() != measured_given) {
    throw InputError("fit", "give a routing trace, or --measured DIR, and not both",
                     "see switchyard fit --help");
  }
  if (!measured_given) {
    for (const auto& [value, name] :
         {std::pair{options.device, "--device"}, std::pair{options.hardware, "--hardware"},
          std::pair{options.source, "--source"}, std::pair{options.licence, "--licence"}}) {
      if (!value.empty()) {
        throw InputError(name, "has no effect on the fit of a trace", "leave it out");
      }
    }
    const validation::RoutingFit fit =
        validation::fit_routing(read_trace(options.trace), options.trace);
    write_file(options.output,
               validation::workload_text(fit, fs::path(options.trace).filename().string()));
    if (!options.quiet)
      fmt::print("{}", render(validation::routing_fit_table(fit), options.format));
    return 0;
  }
  for (const auto& [value, name] :
       {std::pair{options.device, "--device"}, std::pair{options.hardware, "--hardware"},
        std::pair{options.source, "--source"}, std::pair{options.licence, "--licence"}}) {
    if (value.empty()) {
      throw InputError(name, "is missing", "a calibration says what was measured, and by whom");
    }
  }
  const scenario::HardwareSpec hardware =
      scenario::read_hardware(find_named(options.hardware, "hardware", "--hardware").string());
  scenario::Calibration c;
  c.device = options.device;
  c.hbm = hardware.gpu_type(0).hbm;
  c.peak = hardware.gpu_type(0).peak;
  c.link = own_link(hardware);
  if (!(c.link.value > 0)) {
    throw InputError("--hardware", "its first GPU has no link", "name one with links");
  }
  c.source = options.source;
  c.licence = options.licence;
  const validation::MeasuredRows measured =
      validation::read_measured(options.measured, options.device);
  const std::size_t rows = measured.rows.size();
  c = validation::fit_rows(std::move(c), measured.rows);
  write_file(options.output, scenario::calibration_text(c));
  if (!options.quiet) {
    std::size_t used = 0;
    for (const scenario::OpTable& t : c.tables) used += t.points.size();
    if (options.format == TableFormat::kText) {
      fmt::print("{}: {} of {} rows in {} tables; the others are left for validate\n",
                 options.output.string(), used, rows, c.tables.size());
    } else {
      Table t;
      t.name = "fit";
      t.title = "Calibration fitted to measured times";
      t.columns = {"calibration", "rows fitted", "rows", "tables"};
      t.rows = {{options.output.string(), std::to_string(used), std::to_string(rows),
                 std::to_string(c.tables.size())}};
      t.notes = {"the other rows are left for validate"};
      fmt::print("{}", render_all({t}, options.format));
    }
  }
  return 0;
}

}  // namespace switchyard::cli
