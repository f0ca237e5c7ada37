// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/sweep.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <map>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/sim.hpp"
#include "sim/run/metrics.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;

struct Point {
  fs::path file;
  std::vector<std::pair<std::string, std::string>> settings;
};

bool is_sound_run(const fs::path& file) {
  std::error_code ec;
  if (!fs::exists(file, ec)) return false;
  try {
    (void)run::read_run(file, run::RunParts::none());
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// One point in this (child) process. SimGrid allows one engine per process, hence the fork.
int run_point(const SweepOptions& options, const Point& point) {
  SimOptions sim;
  sim.scenario = options.scenario;
  sim.trace = options.trace;
  sim.settings = options.settings;
  for (const auto& [key, value] : point.settings) sim.settings.push_back(key + "=" + value);
  sim.output = point.file;
  sim.quiet = true;
  sim.base_point = true;
  try {
    return run_sim(sim);
  } catch (const std::exception& e) {
    fmt::print(stderr, "switchyard: {}: {}\n", point.file.filename().string(), e.what());
    return 2;
  }
}

}  // namespace

int run_sweep(const SweepOptions& options) {
  if (options.jobs == 0) {
    throw InputError("-j", "jobs = 0. Violated: jobs >= 1");
  }
  scenario::ReadOptions read;
  read.settings = options.settings;
  read.trace = options.trace;
  read.presets_root = scenarios_root().string();
  std::vector<Point> points;
  std::vector<std::string> keys;
  for (const scenario::SweepPoint& p : scenario::read_sweep(options.scenario, read)) {
    points.push_back(
        {options.output / "points" /
             fmt::format("{:05}-{}.h5", p.index, scenario::scenario_hash(p.scenario).substr(0, 8)),
         p.settings});
    if (keys.empty()) {
      for (const auto& [key, value] : p.settings) keys.push_back(key);
    }
  }
  std::error_code ec;
  fs::create_directories(options.output / "points", ec);
  if (ec) {
    throw InputError(options.output.string(),
                     fmt::format("cannot make the folder: {}", ec.message()));
  }

  std::vector<std::size_t> waiting;
  for (std::size_t i = points.size(); i-- > 0;) {
    if (!is_sound_run(points[i].file)) waiting.push_back(i);
  }
  const std::size_t reused = points.size() - waiting.size();
  std::map<pid_t, std::size_t> running;
  int failed = 0;
  std::fflush(nullptr);
  while (!waiting.empty() || !running.empty()) {
    if (!waiting.empty() && running.size() < options.jobs) {
      const std::size_t i = waiting.back();
      waiting.pop_back();
      const pid_t child = fork();
      if (child < 0) {
        throw CapabilityError("cannot start another process for a point of the sweep");
      }
      if (child == 0) {
        const int code = run_point(options, points[i]);
        std::fflush(nullptr);
        _exit(code);
      }
      running[child] = i;
      continue;
    }
    int status = 0;
    const pid_t done = waitpid(-1, &status, 0);
    if (running.erase(done) == 0) continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }

  Table table;
  table.name = "sweep";
  table.title =
      fmt::format("{}: {} points", fs::path(options.scenario).stem().string(), points.size());
  table.columns = {"point"};
  table.columns.insert(table.columns.end(), keys.begin(), keys.end());
  const std::vector<std::string> metrics{
      "step time mean", "tokens per second", "imbalance mean",         "overflow share",
      "reroute share",  "drop share",        "memory high water share"};
  for (const std::string& m : metrics) {
    const run::MetricDefinition* d = run::find_metric(m);
    SWITCHYARD_ASSERT(d != nullptr, m);
    table.columns.push_back(d->unit.empty() ? m : fmt::format("{} [{}]", m, d->unit));
  }
  table.columns.emplace_back("file");
  for (std::size_t i = 0; i < points.size(); ++i) {
    std::vector<std::string> row{fmt::format("{}", i)};
    for (const auto& [key, value] : points[i].settings) row.push_back(value);
    std::map<std::string, double> values;
    if (is_sound_run(points[i].file)) {
      for (const run::Metric& m : run::read_run(points[i].file, run::RunParts::none()).metrics) {
        values[m.name] = m.value;
      }
    }
    for (const std::string& m : metrics) {
      row.push_back(values.count(m) != 0 ? run::format_value(values[m]) : "n/a");
    }
    row.push_back(fmt::format("points/{}", points[i].file.filename().string()));
    table.rows.push_back(std::move(row));
  }
  write_file(options.output / "index.csv", render(table, TableFormat::kCsv));
  table.notes.push_back(fmt::format("{} run now, {} were there already, {} failed",
                                    points.size() - reused, reused, failed));
  if (!options.quiet) fmt::print("{}", render(table, options.format));
  return failed == 0 ? 0 : 1;
}

}  // namespace switchyard::cli
