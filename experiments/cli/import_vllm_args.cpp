// SPDX-License-Identifier: Apache-2.0
// The kind vllm-args of the verb `import`.
#include <fmt/format.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/model_config.hpp"
#include "experiments/cli/import.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/cli/sim.hpp"
#include "experiments/import/vllm_args.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;

/// How a file is named from the folder of `scenario`.
std::string seen_from(const fs::path& scenario, const fs::path& file) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(fs::absolute(scenario).parent_path(), error);
  const fs::path target = fs::weakly_canonical(fs::absolute(file), error);
  const fs::path relative = target.lexically_relative(folder);
  return relative.empty() ? target.string() : relative.string();
}

}  // namespace

int import_vllm_args(const ImportOptions& options) {
  if (options.like.empty()) {
    throw InputError("--like", "is missing",
                     "name the hardware the server runs on, e.g. hgx_h100, or its file");
  }
  if (options.requests.empty()) {
    throw InputError("--requests", "is missing",
                     "the command says nothing about the load: name a CSV that switchyard import "
                     "requests-azure or its kin wrote");
  }
  if (options.output.extension() != ".toml") throw InputError("-o", "a scenario ends in .toml");
  const std::string text = read_file(options.input), where = options.input.string();
  std::string model = options.model;
  if (model.empty()) {
    // "mistralai/Mixtral-8x7B": the preset's name, or a folder with a config.json.
    model = importers::model_of_vllm_args(text, where);
    std::error_code ignored;
    if (!fs::exists(model, ignored)) {
      model = fs::path(model).filename().string();
      for (char& c : model) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  fs::path config;
  try {
    config = model::find_model(model, scenarios_root());
  } catch (const InputError& e) {
    throw InputError(
        "--model", e.what(),
        options.model.empty() ? "name a preset or config.json of the command's model" : "");
  }
  importers::VllmArgsOptions o;
  o.model_file = seen_from(options.output, config);
  o.hardware_file = seen_from(options.output, find_named(options.like, "hardware", "--like"));
  o.requests_file = seen_from(options.output, options.requests);
  const importers::VllmArgs args = importers::scenario_from_vllm_args(text, where, o);
  // What is written must be a scenario that can run: it is read under another name first.
  AtomicFile file(options.output);
  write_file(file.temporary(), args.scenario);
  scenario::ReadOptions read;
  read.presets_root = scenarios_root().string();
  scenario::Scenario scenario;
  try {
    scenario = scenario::read_scenario(file.temporary().string(), read);
    sim::check_scenario(scenario);
  } catch (const InputError& e) {
    throw InputError(where,
                     fmt::format("what the command describes cannot be simulated: {}", e.message()),
                     e.hint());
  }
  file.commit();
  if (options.quiet) return 0;
  Table table;
  table.name = "import";
  table.title = "Scenario";
  table.columns = {"quantity", "value"};
  table.rows = {{"model", scenario.model.name},
                {"hardware", scenario.hardware.name},
                {"dp · tp · pp", fmt::format("{} · {} · {}", scenario.parallel.dp,
                                             scenario.parallel.tp, scenario.parallel.pp)},
                {"ep", std::to_string(scenario.parallel.ep)}};
  for (const std::string& flag : args.left_out) table.rows.push_back({"not taken over", flag});
  table.notes = {fmt::format("next: switchyard explain {0}; switchyard sim {0} -o r.h5",
                             options.output.string())};
  fmt::print("{}", render(table, options.format));
  return 0;
}

}  // namespace switchyard::cli
