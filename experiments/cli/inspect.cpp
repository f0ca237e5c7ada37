// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/inspect_activation.hpp"
#include "experiments/cli/inspect_gguf.hpp"
#include "experiments/cli/inspect_profile.hpp"
#include "experiments/cli/inspect_run.hpp"
#include "experiments/cli/inspect_trace.hpp"
#include "experiments/cli/own_output.hpp"
#include "experiments/cli/routing_table.hpp"
#include "experiments/cli/run_rows.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/report.hpp"
#include "sim/scenario/hardware.hpp"
#include "sim/scenario/scenario.hpp"
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
  const bool is_run = magic.starts_with("SWYRUN");
  const bool is_toml = options.file.extension() == ".toml";
  const bool is_gguf = magic.starts_with("GGUF");
  if (options.activation && options.profile) {
    throw InputError("--profile", "cannot be joined with --activation", "ask for one of them");
  }
  if (options.activation && (is_run || is_toml || is_gguf)) {
    throw InputError("--activation", "works on routing traces only",
                     "switchyard trace writes one; the metrics of a run are in plain inspect");
  }
  if (options.profile && !is_run) {
    throw InputError("--profile", "works on runs only",
                     "a trace records no times; switchyard sim writes a run");
  }
  if (options.requests && !is_run) {
    throw InputError("--requests", "works on runs only", "switchyard sim writes a run");
  }
  if (options.requests && (options.profile || options.activation)) {
    throw InputError("--requests", "cannot be joined with --profile", "ask for one of them");
  }
  if (!options.requests && (options.first != 0 || options.rows != 50)) {
    throw InputError("--first, --rows", "say which requests --requests lists");
  }
  if (options.layers && (!is_run || options.profile || options.requests)) {
    throw InputError("--layers", "says what plain inspect checks of a run");
  }
  if (options.window > 0 && (is_run || is_toml || is_gguf)) {
    throw InputError("--window", "works on routing traces only");
  }
  if (!options.model.empty() && !options.activation) {
    throw InputError("--model", "has no effect without --activation");
  }
  const bool tables_asked = !options.build_table.empty() || !options.use_table.empty();
  const bool is_trace = magic == "SWYTRACE";
  if (tables_asked && !is_trace) {
    throw InputError(options.build_table.empty() ? "--use-table" : "--build-table",
                     "works on routing traces only");
  }
  if (tables_asked && (options.activation || options.topology || options.window > 0)) {
    throw InputError(options.build_table.empty() ? "--use-table" : "--build-table",
                     "cannot be joined with --activation, --window or --topology");
  }
  if (options.build_table.empty() &&
      (options.table_prefix != "tokens" || options.table_digest_bits != 256)) {
    throw InputError("--table-prefix, --table-digest-bits", "say how --build-table makes its keys");
  }
  if (!options.policy.empty() && (!is_trace || tables_asked)) {
    throw InputError("--policy", "works on routing traces only, without tables of M14");
  }
  std::optional<NamedPolicy> named;
  if (!options.policy.empty()) {
    named.emplace();
    named->path = options.policy.string();
    named->policy = scenario::read_policy_file(named->path, &named->files);
  }
  const NamedPolicy* const policy = named ? &*named : nullptr;
  std::vector<Table> tables;
  if (tables_asked) {
    const RoutingTrace trace = read_trace(options.file, {!options.no_verify, false});
    require_own_output(
        "--build-table", options.build_table,
        {{"the routing trace", options.file}, {"the table (--use-table)", options.use_table}});
    if (!options.build_table.empty()) {
      const BuiltTable built =
          build_routing_table(trace, options.table_prefix, options.table_digest_bits);
      write_file(options.build_table, built.table.to_text());
      tables.push_back(built_table_summary(built));
    }
    if (!options.use_table.empty()) {
      tables.push_back(routing_table_report(trace, RoutingTable::read(options.use_table),
                                            options.use_table.filename().string()));
    }
  } else if (is_toml) {
    refuse_scenario(options.file);
    const scenario::HardwareSpec hardware = scenario::read_hardware(options.file.string());
    const cluster::ClusterGraph graph = cluster::build_cluster(hardware);
    const cluster::RouteTable routes = graph.routes();
    tables = {cluster::topology_table(graph, routes), cluster::route_kind_table(routes),
              cluster::link_table(graph, routes)};
  } else if (options.topology) {
    throw InputError("--topology", "works on hardware files (.toml) only");
  } else if (is_gguf) {
    tables = inspect_gguf(options.file);
  } else if (options.requests) {
    const run::RunReader reader(options.file, h5::ReadOptions{!options.no_verify});
    tables = {request_rows(reader, options.first, options.rows)};
  } else if (options.profile) {
    tables = inspect_profile(options.file.string(), !options.no_verify);
  } else if (is_run) {
    InspectRunOptions run;
    run.verify = !options.no_verify;
    run.layers = options.layers;
    tables = inspect_run(options.file.string(), run);
  } else if (magic == "SWYTRACE" || options.file.extension() == ".h5") {
    if (options.activation) {
      tables = inspect_activation(
          options.file, {!options.no_verify, options.window, options.model, options.root, policy});
    } else {
      tables = inspect_trace(options.file, {!options.no_verify, options.window, policy});
    }
  } else {
    throw InputError(options.file.string(),
                     "is neither a routing trace, a run, a GGUF nor a hardware file",
                     "traces and runs end in .h5, hardware files in .toml");
  }
  fmt::print("{}", render_all(tables, options.format));
  return 0;
}

}  // namespace switchyard::cli
