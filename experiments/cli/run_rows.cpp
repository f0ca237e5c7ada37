// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/run_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::cli {
namespace {

constexpr const char* kUnknown = "n/a";

std::string ms(std::int64_t ps) { return run::format_value(static_cast<double>(ps) * 1e-9); }
/// later − earlier, when both are known.
std::string span(std::int64_t earlier, std::int64_t later) {
  return earlier < 0 || later < 0 ? kUnknown : ms(later - earlier);
}
std::string index(std::uint32_t i) { return i == run::kNone ? "-" : fmt::to_string(i); }

}  // namespace

Table request_rows(const run::RunReader& reader, std::uint64_t first, std::uint64_t count) {
  const std::vector<run::RequestRecord> all = reader.read_requests();
  if (first > 0 && first >= all.size()) {
    throw InputError("--first", fmt::format("{}: the run has {} requests", first, all.size()),
                     "they are counted from 0");
  }
  const std::uint64_t end =
      count == 0 ? all.size() : first + std::min<std::uint64_t>(count, all.size() - first);
  const bool served = reader.has_served_requests();
  Table t;
  t.name = "requests";
  t.title = "Requests";
  t.columns = {"request",      "arrival [ms]",    "queue wait [ms]", "TTFT [ms]", "TPOT [ms]",
               "latency [ms]", "prompt [tokens]", "answer [tokens]", "outcome",   "replica",
               "tier",         "preemptions",     "met objective"};
  const bool cached = std::any_of(all.begin(), all.end(),
                                  [](const run::RequestRecord& r) { return r.cached_tokens > 0; });
  if (cached) t.columns.emplace_back("from cache [tokens]");
  for (std::uint64_t i = first; i < end; ++i) {
    const run::RequestRecord& r = all[i];
    std::string tpot = kUnknown;
    if (r.first_token_ps >= 0 && r.end_ps >= 0 && r.output_tokens > 1) {
      tpot = run::format_value(static_cast<double>(r.end_ps - r.first_token_ps) * 1e-9 /
                               (r.output_tokens - 1));
    }
    t.rows.push_back({fmt::to_string(r.id), r.arrival_ps < 0 ? kUnknown : ms(r.arrival_ps),
                      span(r.arrival_ps, r.scheduled_ps), span(r.arrival_ps, r.first_token_ps),
                      tpot, span(r.arrival_ps, r.end_ps), fmt::to_string(r.prompt_tokens),
                      fmt::to_string(r.output_tokens),
                      std::string(run::kRequestOutcomeNames[static_cast<std::size_t>(r.outcome)]),
                      served ? index(r.replica) : "-", served ? fmt::to_string(r.tier) : "-",
                      served ? fmt::to_string(r.preemptions) : "-",
                      !served          ? "-"
                      : r.met_slo != 0 ? "yes"
                                       : "no"});
    if (cached) t.rows.back().push_back(fmt::to_string(r.cached_tokens));
  }
  if (end > first) {
    t.notes.push_back(
        fmt::format("requests {} to {} of {}{}", first, end - 1, all.size(),
                    end < all.size() ? fmt::format("; --first {} goes on", end) : std::string()));
  } else {
    t.notes.emplace_back("the run has no request");
  }
  if (!served) {
    t.notes.emplace_back("a fixed batch: nobody arrives, so there is no wait, tier or objective");
  }
  return t;
}

Table step_rows(const run::RunReader& reader) {
  Table t;
  t.name = "steps";
  t.title = "Steps";
  t.columns = {"step",          "replica", "kind",      "warm-up",     "start [ms]",
               "duration [ms]", "tokens",  "sequences", "assignments", "kept",
               "rerouted",      "queued",  "dropped",   "overflow",    "imbalance = max/mean",
               "bytes sent [B]"};
  for (const std::string_view phase : run::kPhaseNames) {
    t.columns.push_back(fmt::format("{} [ms]", phase));
  }
  std::uint64_t n = 0;
  for (const run::StepScalars& s : reader.read_steps(0, reader.steps())) {
    std::vector<std::string> row{fmt::to_string(n++),
                                 fmt::to_string(s.engine),
                                 std::string(run::kStepKindNames[static_cast<std::size_t>(s.kind)]),
                                 s.warmup ? "yes" : "no",
                                 ms(s.start_ps),
                                 ms(s.end_ps - s.start_ps),
                                 fmt::to_string(s.tokens),
                                 fmt::to_string(s.sequences),
                                 fmt::to_string(s.assignments),
                                 fmt::to_string(s.kept),
                                 fmt::to_string(s.rerouted),
                                 fmt::to_string(s.queued),
                                 fmt::to_string(s.dropped),
                                 fmt::to_string(s.overflow),
                                 run::format_value(s.imbalance),
                                 fmt::to_string(s.bytes_sent)};
    for (const std::int64_t ps : s.phase_ps) row.push_back(ms(ps));
    t.rows.push_back(std::move(row));
  }
  return t;
}

Table event_rows(const run::RunReader& reader) {
  Table t;
  t.name = "events";
  t.title = "Events";
  t.columns = {"time [ms]", "step", "kind", "MoE layer", "GPU", "expert", "link", "value", "text"};
  const run::Inventory& inv = reader.base().inventory;
  for (const run::Event& e : reader.read_events()) {
    t.rows.push_back({ms(e.time_ps), index(e.step),
                      std::string(run::kEventKindNames[static_cast<std::size_t>(e.kind)]),
                      e.layer == run::kNone ? "-" : fmt::to_string(inv.moe_layers.at(e.layer)),
                      e.gpu == run::kNone ? "-" : inv.gpus.at(e.gpu).name, index(e.expert),
                      e.link == run::kNone ? "-" : inv.links.at(e.link).name,
                      run::format_value(e.value), e.text});
  }
  return t;
}

Table run_rows(const run::RunReader& reader, const std::string& what) {
  static const std::array<std::string, 3> kWhat{"requests", "steps", "events"};
  if (what == kWhat[0]) return request_rows(reader, 0, 0);
  if (what == kWhat[1]) return step_rows(reader);
  if (what == kWhat[2]) return event_rows(reader);
  throw InputError("--what", fmt::format("unknown rows \"{}\"", what), suggest_name(what, kWhat));
}

}  // namespace switchyard::cli
