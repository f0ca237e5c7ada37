// SPDX-License-Identifier: Apache-2.0
// The kinds perfetto, dot and svg of the verb `export`.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/export.hpp"
#include "experiments/cli/sim.hpp"
#include "experiments/export/dot.hpp"
#include "experiments/export/perfetto.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/scenario/tree.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX asks for it

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;

bool is_program(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

/// The app beside this program, else in PATH; empty when it is not there.
fs::path find_gui() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error && is_program(self.parent_path() / "switchyard-gui")) {
    return self.parent_path() / "switchyard-gui";
  }
  const char* const path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    fs::path here = fs::path(rest.substr(0, end)) / "switchyard-gui";
    if (end > 0 && is_program(here)) return here;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {};
}

}  // namespace

int export_perfetto(const ExportOptions& options) {
  const run::RunReader reader(options.input);
  AtomicFile file(options.output);
  std::FILE* const out = std::fopen(file.temporary().c_str(), "wb");
  if (out == nullptr) {
    throw InputError(options.output.string(),
                     fmt::format("cannot be written: {}", std::strerror(errno)));
  }
  exporters::PerfettoSummary sum;
  int failure = 0;
  try {
    sum = exporters::write_perfetto(reader, {options.first, options.steps}, out);
  } catch (const std::system_error& e) {
    failure = e.code().value();  // fmt says so when the disk is full.
  } catch (...) {
    std::fclose(out);
    throw;
  }
  if (failure == 0 && std::ferror(out) != 0) failure = EIO;
  if (std::fclose(out) != 0 && failure == 0) failure = errno;
  if (failure != 0) {
    throw InputError(options.output.string(),
                     fmt::format("cannot be written: {}", std::strerror(failure)));
  }
  file.commit();
  if (!options.quiet) {
    Table table;
    table.name = "export";
    table.title = "Chrome trace";
    table.columns = {"quantity", "value"};
    table.rows = {{"steps", std::to_string(sum.steps)},
                  {"slices", std::to_string(sum.slices)},
                  {"arrows of the critical path", std::to_string(sum.arrows)},
                  {"counter values", std::to_string(sum.counters)},
                  {"requests", std::to_string(sum.requests)},
                  {"events", std::to_string(sum.instants)}};
    table.notes = {
        "open it in ui.perfetto.dev or chrome://tracing; tracks called sums hold the "
        "time of a phase in the step, not when each layer ran"};
    fmt::print("{}", render(table, options.format));
  }
  return 0;
}

int export_dot(const ExportOptions& options) {
  if (options.input.extension() != ".toml") {
    throw InputError(options.input.string(), "is no scenario and no hardware file",
                     "export dot takes a .toml");
  }
  const scenario::Node root = scenario::load_toml(options.input, "", options.input.string());
  scenario::HardwareSpec hardware;
  std::string title;
  if (root.find("hardware") != nullptr) {
    scenario::ReadOptions read;
    read.require_trace = false;
    read.presets_root = scenarios_root().string();
    const scenario::Scenario s = scenario::read_scenario(options.input.string(), read);
    hardware = s.hardware;
    title = fmt::format("{} on {}", s.model.name, s.hardware.name);
  } else {
    hardware = scenario::read_hardware(options.input.string());
    title = hardware.name;
  }
  write_file(options.output, exporters::hardware_dot(hardware, title));
  if (!options.quiet) {
    Table table;
    table.name = "export";
    table.title = "Graphviz file";
    table.columns = {"quantity", "value"};
    table.rows = {{"servers", std::to_string(hardware.nodes)},
                  {"devices", std::to_string(hardware.devices.size())},
                  {"cables", std::to_string(hardware.links.size())}};
    table.notes = {fmt::format("next: dot -Tsvg {} -o topology.svg", options.output.string())};
    fmt::print("{}", render(table, options.format));
  }
  return 0;
}

int export_svg(const ExportOptions& options) {
  if (options.output.extension() != ".svg") {
    throw InputError("-o", fmt::format("{} does not end in .svg", options.output.string()),
                     "switchyard-gui --render also draws .png and .csv");
  }
  { const run::RunReader reader(options.input); }  // What is wrong with the run is said here.
  const fs::path gui = find_gui();
  if (gui.empty()) {
    throw CapabilityError(
        "export svg draws with switchyard-gui, which is neither beside switchyard nor in PATH; "
        "build it with Qt 6 (apt: qt6-base-dev, qt6-svg-dev)");
  }
  std::vector<std::string> words{gui.string(), "--render", options.output.string(),
                                 options.input.string()};
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  pid_t child = 0;
  if (const int error =
          posix_spawn(&child, gui.c_str(), nullptr, nullptr, arguments.data(), environ);
      error != 0) {
    throw CapabilityError(fmt::format("cannot run {}: {}", gui.string(), std::strerror(error)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw CapabilityError("cannot wait for switchyard-gui");
  }
  // Its own message stands on stderr already.
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace switchyard::cli
