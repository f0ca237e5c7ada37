// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "experiments/cli/inspect_gguf.hpp"
#include "experiments/cli/inspect_run.hpp"
#include "experiments/cli/inspect_trace.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/report.hpp"
#include "sim/scenario/hardware.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::cli {
namespace {

std::string first_bytes(const std::filesystem::path& path) {
  std::FILE* f = std::fopen(path.c_str(), "rb");
  if (f == nullptr) {
    throw InputError(path.string(), fmt::format("cannot open: {}", std::strerror(errno)));
  }
  std::string bytes(8, '\0');
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), f));
  std::fclose(f);
  return bytes;
}

/// A scenario shares its ending with hardware files; only it has both tables.
void refuse_scenario(const std::filesystem::path& path) {
  const scenario::Node root = scenario::load_toml(path, "", path.string());
  if (root.find("model") != nullptr && root.find("hardware") != nullptr) {
    throw InputError(path.string(), "is a scenario, not a hardware file",
                     fmt::format("switchyard explain {} shows what it holds", path.string()));
  }
}

}  // namespace

int run_inspect(const InspectOptions& options) {
  const std::string magic = first_bytes(options.file);
  std::vector<Table> tables;
  if (options.file.extension() == ".toml") {
    refuse_scenario(options.file);
    const scenario::HardwareSpec hardware = scenario::read_hardware(options.file.string());
    const cluster::ClusterGraph graph = cluster::build_cluster(hardware);
    const cluster::RouteTable routes = graph.routes();
    tables = {cluster::topology_table(graph, routes), cluster::link_table(graph, routes)};
  } else if (options.topology) {
    throw InputError("--topology", "works on hardware files (.toml) only");
  } else if (magic.starts_with("GGUF")) {
    tables = inspect_gguf(options.file);
  } else if (magic.starts_with("SWYRUN")) {
    InspectRunOptions run;
    run.verify = !options.no_verify;
    tables = inspect_run(options.file.string(), run);
  } else if (magic == "SWYTRACE" || options.file.extension() == ".h5") {
    InspectTraceOptions trace;
    trace.verify = !options.no_verify;
    tables = inspect_trace(options.file, trace);
  } else {
    throw InputError(options.file.string(), "is neither a routing trace, a run, a GGUF nor a hardware file",
                     "traces and runs end in .h5, hardware files in .toml");
  }
  fmt::print("{}", render_all(tables, options.format));
  return 0;
}

}  // namespace switchyard::cli
