// SPDX-License-Identifier: Apache-2.0
#include "sim/run/conservation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

namespace switchyard::run {
namespace {

using Wide = __int128;  // Sums of any 64-bit values of a file; they cannot overflow.

class Report {
 public:
  explicit Report(std::vector<Violation>& out) : out_(out) {}
  void add(const char* check, std::string where, std::string message) {
    out_.push_back({check, std::move(where), std::move(message)});
  }
  void equal(const char* check, const std::string& where, const char* left, Wide a,
             const char* right, Wide b) {
    if (a != b) {
      add(check, where, fmt::format("{} = {}, {} = {}", left, number(a), right, number(b)));
    }
  }
  void at_most(const char* check, const std::string& where, const char* left, Wide a,
               const char* right, Wide b) {
    if (a > b) {
      add(check, where, fmt::format("{} = {} exceeds {} = {}", left, number(a), right, number(b)));
    }
  }
  static std::string number(Wide v) {
    const bool negative = v < 0;
    std::string digits;
    do {
      const int d = static_cast<int>(v % 10);
      digits.insert(digits.begin(), static_cast<char>('0' + (negative ? -d : d)));
      v /= 10;
    } while (v != 0);
    return negative ? "-" + digits : digits;
  }

 private:
  std::vector<Violation>& out_;
};

template <class T>
Wide sum_of(std::span<const T> values) {
  Wide s = 0;
  for (const T v : values) s += static_cast<Wide>(v);
  return s;
}

/// Row i of a [rows][width] array; empty when the block is not there.
template <class T>
std::span<const T> row(const std::vector<T>& values, std::size_t i, std::size_t width) {
  if (values.size() < (i + 1) * width) return {};
  return std::span(values).subspan(i * width, width);
}

void check_scalars(Report& report, const RunData& run, std::size_t s) {
  const StepScalars& x = run.steps[s];
  const std::string where = fmt::format("step {}", s);
  report.equal("assignments", where, "assignments", x.assignments,
               "kept + rerouted + queued + dropped",
               Wide{x.kept} + Wide{x.rerouted} + Wide{x.queued} + Wide{x.dropped});
  report.equal("bytes", where, "sent", x.bytes_sent, "received", x.bytes_received);
  report.at_most("time", where, "start", x.start_ps, "end", x.end_ps);
  if (s > 0) {
    report.at_most("time", where, "start of the step before", run.steps[s - 1].start_ps, "start",
                   x.start_ps);
    std::size_t before = s;
    while (before > 0 && run.steps[before - 1].engine != x.engine) --before;
    if (before > 0) {
      report.at_most("time", where, "end of the engine's step before", run.steps[before - 1].end_ps,
                     "start", x.start_ps);
    }
  }
  report.equal("time", where, "sum of phases [ps]",
               sum_of(std::span<const std::int64_t>(x.phase_ps)), "duration [ps]",
               Wide{x.end_ps} - Wide{x.start_ps});
}

void check_experts(Report& report, const RunData& run, std::size_t s, std::size_t i) {
  const std::size_t experts = run.inventory.experts;
  if (experts == 0 || row(run.experts.kept, i, experts).empty()) return;
  const StepScalars& x = run.steps[s];
  const std::string where = fmt::format("step {}, experts", s);
  const Wide kept = sum_of(row(run.experts.kept, i, experts));
  report.at_most("assignments", where, "kept + rerouted", Wide{x.kept} + Wide{x.rerouted},
                 "sum over experts", kept);
  report.at_most("assignments", where, "sum over experts", kept, "kept + rerouted + queued",
                 Wide{x.kept} + Wide{x.rerouted} + Wide{x.queued});
  const auto equal = [&](const char* what, const std::vector<std::uint32_t>& column,
                         std::uint64_t scalar) {
    report.equal("assignments", where, fmt::format("{} over experts", what).c_str(),
                 sum_of(row(column, i, experts)), what, scalar);
  };
  equal("overflow", run.experts.overflow, x.overflow);
  equal("rerouted", run.experts.rerouted_in, x.rerouted);
  equal("queued", run.experts.queued, x.queued);
  equal("dropped", run.experts.dropped, x.dropped);
  if (run.layer_experts.empty() || row(run.layer_experts[0].kept, i, experts).empty()) return;
  for (std::size_t e = 0; e < experts; ++e) {
    Wide k = 0;
    Wide o = 0;
    for (const ExpertSteps& layer : run.layer_experts) {
      k += layer.kept[i * experts + e];
      o += layer.overflow[i * experts + e];
    }
    const std::string place = fmt::format("step {}, expert {}", s, e);
    report.equal("assignments", place, "kept over layers", k, "kept",
                 run.experts.kept[i * experts + e]);
    report.equal("assignments", place, "overflow over layers", o, "overflow",
                 run.experts.overflow[i * experts + e]);
  }
}

void check_gpus(Report& report, const RunData& run, std::size_t s, std::size_t i) {
  const std::size_t gpus = run.inventory.gpus.size();
  const StepScalars& x = run.steps[s];
  const auto out = row(run.gpus.bytes_out, i, gpus);
  const auto in = row(run.gpus.bytes_in, i, gpus);
  if (gpus == 0 || out.empty() || in.empty()) return;
  report.equal("bytes", fmt::format("step {}", s), "sum of GPUs' bytes out", sum_of(out), "sent",
               x.bytes_sent);
  report.equal("bytes", fmt::format("step {}", s), "sum of GPUs' bytes in", sum_of(in), "received",
               x.bytes_received);
  for (std::size_t g = 0; g < gpus; ++g) {
    const std::string where = fmt::format("step {}, GPU {}", s, g);
    const auto phases = row(run.gpus.phase_ps, i * gpus + g, kPhases);
    if (!phases.empty()) {
      const bool part = run.inventory.gpus[g].engine == x.engine;
      report.equal("time", where, "sum of phases [ps]", sum_of(phases), "duration [ps]",
                   part ? Wide{x.end_ps} - Wide{x.start_ps} : Wide{0});
    }
    const auto memory = row(run.gpus.memory, i * gpus + g, kMemoryCategories);
    if (!memory.empty()) {
      const Wide peak = run.gpus.memory_peak[i * gpus + g];
      report.at_most("memory", where, "largest category [B]",
                     *std::max_element(memory.begin(), memory.end()), "high water [B]", peak);
      report.at_most("memory", where, "high water [B]", peak, "sum of categories [B]",
                     sum_of(memory));
    }
  }
}

void check_links(Report& report, const RunData& run, std::size_t s, std::size_t i) {
  const std::size_t links = run.inventory.links.size();
  const auto bytes = row(run.links.bytes, i, links);
  const StepScalars& x = run.steps[s];
  const double seconds = static_cast<double>(x.end_ps - x.start_ps) * 1e-12;
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    const double bandwidth = run.inventory.links[k].bandwidth.value;
    const double most = bandwidth * (seconds * (1 + 1e-9) + 1e-12) + 1;
    if (static_cast<double>(bytes[k]) > most) {
      report.add(
          "floor", fmt::format("step {}, link {}", s, run.inventory.links[k].name),
          fmt::format("{} B in {} ps at {:.6g} B/s", bytes[k], x.end_ps - x.start_ps, bandwidth));
    }
  }
}

void check_layers(Report& report, const RunData& run, std::size_t s, std::size_t i) {
  const std::size_t layers = run.inventory.moe_layers.size();
  const LayerSteps& x = run.layer_steps;
  if (layers == 0 || row(x.dispatch_ps, i, layers).empty()) return;
  for (std::size_t l = 0; l < layers; ++l) {
    const std::size_t at = i * layers + l;
    const std::string where = fmt::format("step {}, layer {}", s, run.inventory.moe_layers[l]);
    report.at_most("floor", where, "floor of dispatch [ps]", x.dispatch_floor_ps[at],
                   "dispatch [ps]", x.dispatch_ps[at]);
    report.at_most("floor", where, "floor of combine [ps]", x.combine_floor_ps[at], "combine [ps]",
                   x.combine_ps[at]);
  }
}

}  // namespace

void check_steps(const RunData& run, std::size_t first, std::vector<Violation>& out) {
  Report report(out);
  for (std::size_t s = first; s < run.steps.size(); ++s) {
    check_scalars(report, run, s);
    check_experts(report, run, s, s - first);
    check_gpus(report, run, s, s - first);
    check_links(report, run, s, s - first);
    check_layers(report, run, s, s - first);
  }
}

void check_whole_run(const RunData& run, std::vector<Violation>& out) {
  Report report(out);
  const Totals& t = run.totals;
  report.equal("assignments", "run", "assignments", t.assignments,
               "kept + rerouted + queued + dropped",
               Wide{t.kept} + Wide{t.rerouted} + Wide{t.queued} + Wide{t.dropped});
  report.equal("bytes", "run", "sent", t.bytes_sent, "received", t.bytes_received);
  if (!run.steps.empty()) {
    report.equal("time", "run", "steps listed", static_cast<Wide>(run.steps.size()), "steps",
                 t.steps);
    Wide assignments = 0;
    for (const StepScalars& s : run.steps) assignments += s.assignments;
    report.equal("assignments", "run", "assignments over steps", assignments, "assignments",
                 t.assignments);
  }
  for (std::size_t g = 0; g < run.inventory.gpus.size() && g < t.gpu_memory_peak.size(); ++g) {
    const bool out_of_memory = std::any_of(
        run.events.begin(), run.events.end(),
        [g](const Event& e) { return e.kind == EventKind::kOutOfMemory && e.gpu == g; });
    if (!out_of_memory) {
      report.at_most("memory", fmt::format("GPU {}", g), "high water [B]", t.gpu_memory_peak[g],
                     "its memory [B]", run.inventory.gpus[g].memory_bytes);
    }
  }
  for (const RequestRecord& r : run.requests) {
    const std::string where = fmt::format("request {}", r.id);
    if (r.first_token_ps >= 0) {
      report.at_most("requests", where, "arrival [ps]", r.arrival_ps, "first token [ps]",
                     r.first_token_ps);
    }
    if (r.end_ps >= 0) {
      report.at_most("requests", where, "first token [ps]",
                     std::max(r.first_token_ps, r.arrival_ps), "end [ps]", r.end_ps);
    }
  }
}

std::vector<Violation> shorten(std::vector<Violation> violations) {
  constexpr std::size_t kListed = 20;
  std::map<std::string, std::size_t> count;
  std::vector<Violation> out;
  for (Violation& v : violations) {
    if (++count[v.check] <= kListed) out.push_back(std::move(v));
  }
  for (const auto& [check, n] : count) {
    if (n > kListed) out.push_back({check, "run", fmt::format("{} more", n - kListed)});
  }
  return out;
}

std::vector<Violation> check_conservation(const RunData& run) {
  std::vector<Violation> out;
  check_steps(run, 0, out);
  check_whole_run(run, out);
  return shorten(std::move(out));
}

}  // namespace switchyard::run
