// SPDX-License-Identifier: Apache-2.0
#include "experiments/export/perfetto.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.hpp"

namespace switchyard::exporters {
namespace {

using run::Phase;

constexpr std::uint32_t kRunProcess = 1, kFirstGpu = 2;
constexpr std::uint32_t kCompute = 1, kExchange = 2, kWaiting = 3, kCritical = 4;

std::uint32_t thread_of(Phase phase) {
  switch (phase) {
    case Phase::kDispatch:
    case Phase::kCombine:
    case Phase::kCollective:
      return kExchange;
    case Phase::kWait:
      return kWaiting;
    default:
      return kCompute;
  }
}

/// Picoseconds as microseconds, exactly.
std::string us(std::int64_t ps) {
  const char* const sign = ps < 0 ? "-" : "";
  const std::uint64_t size =
      ps < 0 ? 0 - static_cast<std::uint64_t>(ps) : static_cast<std::uint64_t>(ps);
  return fmt::format("{}{}.{:06}", sign, size / 1'000'000, size % 1'000'000);
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Writer {
 public:
  explicit Writer(std::FILE* out) : out_(out) {}
  void event(const std::string& members) {
    fmt::print(out_, "{}{{{}}}", first_ ? "\n" : ",\n", members);
    first_ = false;
  }
  void name(std::string_view what, std::uint32_t pid, std::uint32_t tid, std::string_view text) {
    event(fmt::format(R"("ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}})", what, pid,
                      tid, json_text(text)));
  }
  void sort(std::string_view what, std::uint32_t pid, std::uint32_t tid) {
    const bool process = what == "process_sort_index";
    event(fmt::format(R"("ph":"M","name":"{}","pid":{},"tid":{},"args":{{"sort_index":{}}})", what,
                      pid, tid, process ? pid : tid));
  }
  void slice(std::string_view category, std::string_view text, std::uint32_t pid, std::uint32_t tid,
             std::int64_t start, std::int64_t length, const std::string& args) {
    event(fmt::format(
        R"("ph":"X","cat":"{}","name":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}})",
        category, json_text(text), pid, tid, us(start), us(length), args));
  }
  void counter(std::string_view text, std::uint32_t pid, std::int64_t at, const std::string& args) {
    event(fmt::format(R"("ph":"C","name":{},"pid":{},"tid":0,"ts":{},"args":{{{}}})",
                      json_text(text), pid, us(at), args));
  }

 private:
  std::FILE* out_;
  bool first_ = true;
};

std::uint32_t process_of(std::uint32_t gpu) {
  return gpu == run::kNone ? kRunProcess : kFirstGpu + gpu;
}

void name_tracks(Writer& w, const run::RunData& base, std::uint32_t replicas) {
  w.name("process_name", kRunProcess, 0, base.meta.scenario_name + ": run");
  w.sort("process_sort_index", kRunProcess, 0);
  for (std::uint32_t r = 0; r < replicas; ++r) {
    w.name("thread_name", kRunProcess, r + 1,
           replicas == 1 ? "steps" : fmt::format("steps of replica {}", r));
    w.sort("thread_sort_index", kRunProcess, r + 1);
  }
  w.name("thread_name", kRunProcess, replicas + 1, "critical path, no GPU");
  w.sort("thread_sort_index", kRunProcess, replicas + 1);
  constexpr std::array<std::string_view, 4> kThreads{"compute (sums)", "exchange (sums)",
                                                     "wait (sum)", "critical path"};
  for (std::uint32_t g = 0; g < base.inventory.gpus.size(); ++g) {
    w.name("process_name", kFirstGpu + g, 0, base.inventory.gpus[g].name);
    w.sort("process_sort_index", kFirstGpu + g, 0);
    for (std::uint32_t t = 0; t < kThreads.size(); ++t) {
      w.name("thread_name", kFirstGpu + g, t + 1, kThreads[t]);
      w.sort("thread_sort_index", kFirstGpu + g, t + 1);
    }
  }
}

void write_steps(Writer& w, const run::RunReader& reader,
                 const std::vector<run::StepScalars>& steps, std::uint64_t first,
                 PerfettoSummary& sum) {
  const std::size_t gpus = reader.base().inventory.gpus.size();
  // About 64 MB of phases and memory at once.
  const std::uint64_t window = std::max<std::uint64_t>(
      1, (std::uint64_t{1} << 26U) / (gpus * 8 * (run::kPhases + run::kMemoryCategories)));
  for (std::uint64_t begin = 0; begin < steps.size(); begin += window) {
    const std::uint64_t count = std::min<std::uint64_t>(window, steps.size() - begin);
    const run::GpuSteps rows = reader.read_gpus(first + begin, count);
    for (std::uint64_t i = 0; i < count; ++i) {
      const run::StepScalars& s = steps[begin + i];
      const std::uint64_t step = first + begin + i;
      const std::string which = fmt::format(R"("step":{})", step);
      w.slice(
          "step", fmt::format("step {}", step), kRunProcess, s.engine + 1, s.start_ps,
          s.end_ps - s.start_ps,
          fmt::format(R"("kind":"{}","warm-up":{},"tokens":{},"sequences":{},"overflow":{},)"
                      R"("rerouted":{},"queued":{},"dropped":{},"bytes sent":{},"straggler":{})",
                      run::kStepKindNames[static_cast<std::size_t>(s.kind)], s.warmup, s.tokens,
                      s.sequences, s.overflow, s.rerouted, s.queued, s.dropped, s.bytes_sent,
                      s.straggler_gpu == run::kNone
                          ? std::string("null")
                          : json_text(reader.base().inventory.gpus.at(s.straggler_gpu).name)));
      ++sum.slices;
      w.counter("tokens", kRunProcess, s.start_ps, fmt::format(R"("tokens":{})", s.tokens));
      w.counter("longest queue of an expert", kRunProcess, s.start_ps,
                fmt::format(R"("assignments":{})", s.longest_queue));
      sum.counters += 2;
      if (std::isfinite(s.imbalance)) {
        w.counter("imbalance = max/mean", kRunProcess, s.start_ps,
                  fmt::format(R"("imbalance":{})", s.imbalance));
        ++sum.counters;
      }
      for (std::uint32_t g = 0; g < gpus; ++g) {
        if (reader.base().inventory.gpus[g].engine != s.engine) continue;
        std::array<std::int64_t, 5> at{};
        at.fill(s.start_ps);
        for (std::size_t p = 0; p < run::kPhases; ++p) {
          const std::int64_t took = rows.phase_ps[(i * gpus + g) * run::kPhases + p];
          if (took <= 0) continue;
          const std::uint32_t thread = thread_of(static_cast<Phase>(p));
          w.slice("phase", fmt::format("{} (sum)", run::kPhaseNames[p]), kFirstGpu + g, thread,
                  at[thread], took, which);
          at[thread] += took;
          ++sum.slices;
        }
        std::string memory;
        for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
          memory += fmt::format(R"({}"{}":{})", c == 0 ? "" : ",", run::kMemoryCategoryNames[c],
                                rows.memory[(i * gpus + g) * run::kMemoryCategories + c]);
        }
        w.counter("memory [B]", kFirstGpu + g, s.start_ps, memory);
        ++sum.counters;
      }
    }
  }
}

void write_critical_path(Writer& w, const run::RunReader& reader, std::uint64_t first,
                         std::uint64_t count, std::uint32_t replicas, PerfettoSummary& sum) {
  const run::Inventory& inv = reader.base().inventory;
  const run::CriticalEntry* before = nullptr;
  const std::vector<run::CriticalEntry> path = reader.read_critical_path();
  const auto thread = [&](const run::CriticalEntry& e) {
    return e.gpu == run::kNone ? replicas + 1 : kCritical;
  };
  for (const run::CriticalEntry& e : path) {
    if (e.step < first || e.step >= first + count || e.duration_ps <= 0) continue;
    const std::string_view phase = run::kPhaseNames[static_cast<std::size_t>(e.phase)];
    const std::string text = e.layer == run::kNone
                                 ? std::string(phase)
                                 : fmt::format("{}, layer {}", phase, inv.moe_layers.at(e.layer));
    w.slice("critical path", text, process_of(e.gpu), thread(e), e.start_ps, e.duration_ps,
            fmt::format(R"("step":{},"straggler":"{}")", e.step,
                        run::kStragglerReasonNames[static_cast<std::size_t>(e.reason)]));
    ++sum.slices;
    if (before != nullptr && before->step == e.step && before->gpu != e.gpu) {
      // Each end is tied to the slice that holds its time.
      ++sum.arrows;
      const auto end_of_arrow = [&](const char* kind, const run::CriticalEntry& at) {
        w.event(fmt::format(
            R"("ph":"{}",{}"cat":"critical path","name":"next","id":{},"pid":{},"tid":{},"ts":{})",
            kind, *kind == 'f' ? R"("bp":"e",)" : "", sum.arrows, process_of(at.gpu), thread(at),
            us(at.start_ps)));
      };
      end_of_arrow("s", *before);
      end_of_arrow("f", e);
    }
    before = &e;
  }
}

void write_requests(Writer& w, const run::RunReader& reader, std::int64_t begin, std::int64_t end,
                    PerfettoSummary& sum) {
  if (!reader.has_served_requests()) return;
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> change;  // time → waiting, running
  for (const run::RequestRecord& r : reader.read_requests()) {
    if (r.arrival_ps < 0 || r.outcome == run::RequestOutcome::kRejected) continue;
    ++change[r.arrival_ps].first;
    if (r.scheduled_ps >= 0) {
      --change[r.scheduled_ps].first;
      ++change[r.scheduled_ps].second;
      if (r.end_ps >= 0) --change[r.end_ps].second;
    } else if (r.end_ps >= 0) {
      --change[r.end_ps].first;
    }
    // What the run did not end is drawn to the end of the window.
    const std::int64_t over = r.end_ps >= 0 ? r.end_ps : end;
    const std::int64_t begun = r.scheduled_ps >= 0 ? r.scheduled_ps : over;
    if (r.arrival_ps > end || over < begin) continue;
    ++sum.requests;
    const auto async = [&](const char* kind, std::string_view text, std::int64_t at,
                           const std::string& args) {
      w.event(fmt::format(
          R"("ph":"{}","cat":"request","name":{},"id":{},"pid":{},"tid":0,"ts":{},"args":{{{}}})",
          kind, json_text(text), r.id, kRunProcess, us(at), args));
    };
    const std::string text = fmt::format("request {}", r.id);
    async("b", text, r.arrival_ps,
          fmt::format(R"("prompt":{},"output":{},"outcome":"{}","preemptions":{},"SLO met":{})",
                      r.prompt_tokens, r.output_tokens,
                      run::kRequestOutcomeNames[static_cast<std::size_t>(r.outcome)], r.preemptions,
                      r.met_slo != 0));
    async("b", "waits", r.arrival_ps, "");
    async("e", "waits", std::max(begun, r.arrival_ps), "");
    if (r.first_token_ps >= 0) async("n", "first token", r.first_token_ps, "");
    async("e", text, std::max(over, r.arrival_ps), "");
  }
  std::int64_t waiting = 0, running = 0;
  for (const auto& [at, by] : change) {
    waiting += by.first;
    running += by.second;
    if (at < begin || at > end) continue;
    w.counter("requests", kRunProcess, at,
              fmt::format(R"("waiting":{},"running":{})", waiting, running));
    ++sum.counters;
  }
}

void write_events(Writer& w, const run::RunReader& reader, std::int64_t begin, std::int64_t end,
                  PerfettoSummary& sum) {
  for (const run::Event& e : reader.read_events()) {
    if (e.time_ps < begin || e.time_ps > end) continue;
    const bool gpu = e.gpu != run::kNone;
    w.event(fmt::format(
        R"("ph":"i","s":"{}","cat":"event","name":"{}","pid":{},"tid":{},"ts":{},"args":{{"text":{}}})",
        gpu ? "t" : "p", run::kEventKindNames[static_cast<std::size_t>(e.kind)], process_of(e.gpu),
        gpu ? kCritical : 1, us(e.time_ps), json_text(e.text)));
    ++sum.instants;
  }
}

}  // namespace

PerfettoSummary write_perfetto(const run::RunReader& reader, const PerfettoOptions& options,
                               std::FILE* out) {
  const std::uint64_t all = reader.steps();
  if (all == 0 || options.first >= all) {
    throw InputError("--first", fmt::format("step {} of a run of {} steps", options.first, all));
  }
  const std::uint64_t rest = all - options.first;
  if (options.count > rest) {
    throw InputError("--steps", fmt::format("{} steps from step {} of a run of {}", options.count,
                                            options.first, all));
  }
  PerfettoSummary sum;
  sum.steps = options.count == 0 ? rest : options.count;
  const run::RunData& base = reader.base();
  const std::uint64_t a_step =
      4 + base.inventory.gpus.size() * (run::kPhases + 1) + 5 * base.inventory.moe_layers.size();
  if (options.count == 0 && sum.steps > std::max<std::uint64_t>(1, kMostSlices / a_step)) {
    throw InputError("--steps",
                     fmt::format("{} steps are about {} slices, more than viewers open", sum.steps,
                                 sum.steps * a_step),
                     fmt::format("name a part, e.g. --first {} --steps {}", options.first,
                                 std::max<std::uint64_t>(1, kMostSlices / a_step)));
  }
  const std::vector<run::StepScalars> steps = reader.read_steps(options.first, sum.steps);
  const std::int64_t begin = steps.front().start_ps;
  std::int64_t end = begin;
  for (const run::StepScalars& s : steps) end = std::max(end, s.end_ps);
  std::uint32_t replicas = 1;
  for (const run::GpuInfo& g : base.inventory.gpus) replicas = std::max(replicas, g.engine + 1);

  fmt::print(out,
             "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"program\":{},\"scenario\":{},"
             "\"scenario hash\":{},\"seed\":{},\"note\":\"tracks called sums: a phase's time "
             "in the step, laid end to end; critical path: at its recorded times\"}},"
             "\"traceEvents\":[",
             json_text("switchyard " + base.meta.product_version),
             json_text(base.meta.scenario_name), json_text(base.meta.scenario_hash),
             base.meta.seed);
  Writer w(out);
  name_tracks(w, base, replicas);
  write_steps(w, reader, steps, options.first, sum);
  write_critical_path(w, reader, options.first, sum.steps, replicas, sum);
  // Before the first and after the last step requests still arrive and end.
  const bool whole = sum.steps == all;
  const std::int64_t from = whole ? std::min<std::int64_t>(begin, 0) : begin;
  write_requests(w, reader, from, end, sum);
  write_events(w, reader, from, end, sum);
  fmt::print(out, "\n]}}\n");
  return sum;
}

}  // namespace switchyard::exporters
