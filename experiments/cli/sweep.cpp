// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/sweep.hpp"

#include <fmt/format.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <optional>
#include <sstream>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/base/version.hpp"
#include "experiments/cli/interrupt.hpp"
#include "experiments/cli/ranks.hpp"
#include "experiments/cli/say.hpp"
#include "experiments/cli/sim.hpp"
#include "sim/run/conservation.hpp"
#include "sim/run/metrics.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kMostJobs = 256;
constexpr int kInternalError = 4;  // Of a child; 0 to 3 are those of the verb sim.

struct Point {
  fs::path file;
  std::string trace_hash;  ///< "" for synthetic routing.
  std::vector<std::pair<std::string, std::string>> settings;
};

/// The run in the point's file, without its blocks, when it can stand for the point:
/// whole, from this trace, by this version of the program, and with all conservation laws holding.
/// The file's name holds the hash of the resolved scenario already.
std::optional<run::RunData> usable_run(const Point& point) {
  std::error_code ec;
  if (!fs::exists(point.file, ec)) return std::nullopt;
  try {
    const run::RunReader reader(point.file);
    run::RunData found = reader.base();
    found.events = reader.read_events();
    const bool ours = found.meta.trace_hash == point.trace_hash &&
                      found.meta.product_version == version() &&
                      run::check_conservation(reader).empty();
    return ours ? std::optional(std::move(found)) : std::nullopt;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

/// Removes what killed processes of this machine left half written ("<file>.<pid>.tmp").
void remove_leftovers(const fs::path& folder) {
  std::error_code ec;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder, ec)) {
    const std::string name = entry.path().stem().string();
    const std::size_t dot = name.rfind('.');
    pid_t pid = 0;
    if (entry.path().extension() != ".tmp" || dot == std::string::npos) continue;
    const char* end = name.data() + name.size();
    const auto [stop, bad] = std::from_chars(name.data() + dot + 1, end, pid);
    if (bad != std::errc{} || stop != end || pid <= 0) continue;
    if (::kill(pid, 0) != 0 && errno == ESRCH) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove(path, ec);
}

constexpr const char* kWrongInput = "failed: the input is wrong";

std::string failure_of(const EndedChild& child) {
  if (child.signal != 0) return fmt::format("failed: killed by signal {}", child.signal);
  switch (child.exit_code) {
    case 0:
      return {};
    case 1:
      return "failed: a conservation law does not hold";
    case 2:
      return kWrongInput;
    case 3:
      return "failed: this machine lacks something";
    default:
      return "failed: internal error";
  }
}

/// One point in this (child) process. SimGrid allows one engine per process, hence the fork.
int run_point(const SweepOptions& options, const Point& point) {
  SimOptions sim;
  sim.scenario = options.scenario;
  sim.trace = options.trace;
  sim.settings = options.settings;
  for (const auto& [key, value] : point.settings)
    sim.settings.push_back(fmt::format("{}={}", key, value));
  sim.output = point.file;
  sim.quiet = true;
  sim.base_point = true;
  try {
    return run_sim(sim);
  } catch (const std::exception& e) {
    say("switchyard: {}: {}\n", point.file.filename().string(), e.what());
    if (dynamic_cast<const InputError*>(&e) != nullptr) return 2;
    return dynamic_cast<const CapabilityError*>(&e) != nullptr ? 3 : kInternalError;
  }
}

/// Failures of all ranks; each names its own points. Waits until every rank is done.
void gather_failures(Communicator& job, std::map<std::size_t, std::string>& failures) {
  std::string mine;
  for (const auto& [point, why] : failures) mine += fmt::format("{} {}\n", point, why);
  for (const std::string& text : job.all_gather(mine)) {
    std::istringstream lines(text);
    std::size_t point = 0;
    std::string why;
    while (lines >> point && lines.ignore(1) && std::getline(lines, why)) failures[point] = why;
  }
}

}  // namespace

int run_sweep(const SweepOptions& options) {
  if (options.jobs == 0 || options.jobs > kMostJobs) {
    throw InputError("-j",
                     fmt::format("jobs = {}. Violated: 1 <= jobs <= {}", options.jobs, kMostJobs));
  }
  // Under mpirun each rank takes every size-th point, whatever is there already: the ranks look at
  // the folder at different times.
  std::unique_ptr<Communicator> job;
  if (launched_as_job()) {
    JobOptions patient;
    patient.timeout = std::chrono::hours(24 * 365);  // A rank may work on one point for days.
    job = open_job(patient);
  }
  const unsigned ranks = job ? job->size() : 1, rank = job ? job->rank() : 0;
  scenario::ReadOptions read;
  read.settings = options.settings;
  read.trace = options.trace;
  read.presets_root = scenarios_root().string();
  std::vector<Point> points;
  std::vector<std::string> keys;
  std::map<std::string, std::string> trace_hashes;  // By path.
  for (const scenario::SweepPoint& p : scenario::read_sweep(options.scenario, read)) {
    Point point;
    point.file =
        options.output / "points" /
        fmt::format("{:05}-{}.h5", p.index, scenario::scenario_hash(p.scenario).substr(0, 8));
    point.settings = p.settings;
    if (p.scenario.workload.routing.source == scenario::RoutingSource::kTrace) {
      const std::string& path = p.scenario.workload.routing.trace_path;
      auto [known, fresh] = trace_hashes.try_emplace(path);
      if (fresh) known->second = trace_file_hash(path);
      point.trace_hash = known->second;
    }
    points.push_back(std::move(point));
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
  // Ranks may be processes of other machines, whose numbers mean nothing here.
  if (!job) remove_leftovers(options.output / "points");
  if (job) {
    std::string all;
    for (const Point& p : points) all += p.file.string() + p.trace_hash + "\n";
    require_same_program(*job, "sweep", {{"the points", hex64(hash64(std::string_view(all)))}});
  }
  for (std::size_t i = points.size(); i-- > 0;) {
    if (i % ranks == rank && !usable_run(points[i])) waiting.push_back(i);
  }
  std::size_t run_now = waiting.size();
  std::map<pid_t, std::size_t> running;
  std::map<std::size_t, std::string> failures;  // By point.
  while (!waiting.empty() || !running.empty()) {
    if (!waiting.empty() && running.size() < options.jobs) {
      const std::size_t i = waiting.back();
      waiting.pop_back();
      running[start_child([&] { return run_point(options, points[i]); })] = i;
      continue;
    }
    const EndedChild ended = wait_for_child();
    const auto it = running.find(ended.pid);
    if (it == running.end()) continue;
    if (const std::string why = failure_of(ended); !why.empty()) failures[it->second] = why;
    running.erase(it);
  }

  if (job) {
    run_now = job->sum(run_now);
    gather_failures(*job, failures);
    job->finish();
    if (rank != 0) return failures.empty() ? 0 : 1;
  }
  bool missing = false;

  Table table;
  table.name = "sweep";
  table.title =
      fmt::format("{}: {} points", fs::path(options.scenario).stem().string(), points.size());
  table.columns = {"point"};
  table.columns.insert(table.columns.end(), keys.begin(), keys.end());
  // A point that failed is shown without numbers, whatever file an earlier sweep left.
  std::vector<std::optional<run::RunData>> runs(points.size());
  std::vector<std::map<std::string, double>> values(points.size());
  bool serving = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (failures.count(i) == 0) runs[i] = usable_run(points[i]);
    if (!runs[i]) continue;
    for (const run::Metric& m : runs[i]->metrics) values[i][m.name] = m.value;
    const auto served = values[i].find("requests per second");
    serving = serving || (served != values[i].end() && !std::isnan(served->second));
  }
  std::vector<std::string> metrics{"step time mean",         "tokens per second", "imbalance mean",
                                   "overflow share",         "reroute share",     "drop share",
                                   "memory high water share"};
  if (serving) {
    metrics.insert(metrics.end(),
                   {"requests per second", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99",
                    "ITL p99", "SLO attainment", "goodput", "queue wait mean"});
  }
  for (const std::string& m : metrics) {
    const run::MetricDefinition* d = run::find_metric(m);
    SWITCHYARD_ASSERT(d != nullptr, m);
    table.columns.push_back(d->unit.empty() ? m : fmt::format("{} [{}]", m, d->unit));
  }
  for (const char* column : {"out of memory", "state", "file"}) table.columns.emplace_back(column);
  for (std::size_t i = 0; i < points.size(); ++i) {
    std::vector<std::string> row{fmt::format("{}", i)};
    for (const auto& [key, value] : points[i].settings) {
      // TOML's quotes are no part of a text.
      const bool quoted = value.size() >= 2 && value.front() == '"' && value.back() == '"';
      row.push_back(quoted ? value.substr(1, value.size() - 2) : value);
    }
    const auto failure = failures.find(i);
    const std::optional<run::RunData>& found = runs[i];
    for (const std::string& m : metrics) {
      row.push_back(values[i].count(m) != 0 ? run::format_value(values[i][m]) : "n/a");
    }
    const auto is_out_of_memory = [](const run::Event& e) {
      return e.kind == run::EventKind::kOutOfMemory;
    };
    row.emplace_back(!found ? "n/a"
                     : std::any_of(found->events.begin(), found->events.end(), is_out_of_memory)
                         ? "yes"
                         : "no");
    missing = missing || (failure == failures.end() && !found);
    row.push_back(failure != failures.end() ? failure->second
                  : found                   ? "ok"
                                            : "missing: all ranks must see one DIR");
    row.push_back(fmt::format("points/{}", points[i].file.filename().string()));
    table.rows.push_back(std::move(row));
  }
  write_file(options.output / "index.csv", render(table, TableFormat::kCsv));
  table.notes.push_back(fmt::format("{} run now, {} were there already, {} failed", run_now,
                                    points.size() - run_now, failures.size()));
  if (!options.quiet) fmt::print("{}", render(table, options.format));
  // One wrong key of the file is wrong in every point.
  const bool wrong_input = !failures.empty() && failures.size() == points.size() &&
                           std::all_of(failures.begin(), failures.end(), [](const auto& failure) {
                             return failure.second == kWrongInput;
                           });
  if (wrong_input) return 2;
  return failures.empty() && !missing ? 0 : 1;
}

}  // namespace switchyard::cli
