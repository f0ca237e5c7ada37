// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/h5/file_writer.hpp"
#include "sim/run/columns.hpp"
#include "sim/run/metrics.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::run {
namespace {
using h5::FileWriter;

constexpr std::size_t kStepsInMemory = 64;
/// A run with layers has hundreds of datasets, and its blocks are read back.
constexpr h5::WriteOptions kWriteOptions{.chunk_cache = false};

/// What a member becomes in the file: enums and bool are u8.
template <class T>
using Stored = std::conditional_t<std::is_enum_v<T> || std::is_same_v<T, bool>, std::uint8_t, T>;

template <class Row, class T>
std::vector<Stored<T>> column(const std::vector<Row>& rows, T Row::*member, std::size_t first = 0) {
  std::vector<Stored<T>> out;
  out.reserve(rows.size() - first);
  for (std::size_t i = first; i < rows.size(); ++i) {
    out.push_back(static_cast<Stored<T>>(rows[i].*member));
  }
  return out;
}
template <class Row>
std::vector<std::string> texts(const std::vector<Row>& rows, std::string Row::*member) {
  std::vector<std::string> out;
  out.reserve(rows.size());
  for (const Row& r : rows) out.push_back(r.*member);
  return out;
}
template <std::size_t N>
std::vector<std::string> texts(const std::array<std::string_view, N>& names) {
  return {names.begin(), names.end()};
}

bool several_engines(const Inventory& inv) {
  return !inv.gpus.empty() && inv.gpus.back().engine > 0;
}

std::string layer_name(std::size_t layer) { return fmt::format("layer_{:05}", layer); }

struct Shape {
  std::uint64_t layers, experts, gpus, links;
  explicit Shape(const Inventory& inv)
      : layers(inv.moe_layers.size()),
        experts(inv.experts),
        gpus(inv.gpus.size()),
        links(inv.links.size()) {}
};

/// f(name, column, trailing shape) for every streamed block that the detail has.
template <class Run, class F>
void step_blocks(Run& run, F&& f) {
  const Shape n(run.inventory);
  const Detail detail = run.meta.detail;
  if (detail < Detail::kSteps) return;
  const auto experts = [&](const std::string& group, auto& block) {
    if (n.experts == 0) return;
    internal::expert_columns(block, [&](const char* name, auto& v) {
      f(fmt::format("expert/{}/{}", group, name), v, std::vector<std::uint64_t>{n.experts});
    });
  };
  experts("all", run.experts);
  f("gpu_step/phase", run.gpus.phase_ps, std::vector<std::uint64_t>{n.gpus, kPhases});
  f("gpu_step/bytes_out", run.gpus.bytes_out, std::vector<std::uint64_t>{n.gpus});
  f("gpu_step/bytes_in", run.gpus.bytes_in, std::vector<std::uint64_t>{n.gpus});
  f("gpu_step/memory", run.gpus.memory, std::vector<std::uint64_t>{n.gpus, kMemoryCategories});
  f("gpu_step/memory_peak", run.gpus.memory_peak, std::vector<std::uint64_t>{n.gpus});
  if (n.links > 0) {
    f("link_step/bytes", run.links.bytes, std::vector<std::uint64_t>{n.links});
    f("link_step/busy", run.links.busy_ps, std::vector<std::uint64_t>{n.links});
  }
  internal::reroute_columns(run.reroutes, [&](const char* name, auto& v) {
    f(fmt::format("reroute/{}", name), v, std::vector<std::uint64_t>{});
  });
  if (detail < Detail::kLayers) return;
  if (n.layers > 0) {
    internal::layer_columns(run.layer_steps, [&](const char* name, auto& v) {
      f(fmt::format("layer/{}", name), v, std::vector<std::uint64_t>{n.layers});
    });
  }
  for (std::size_t l = 0; l < run.layer_experts.size(); ++l) {
    experts(layer_name(l), run.layer_experts[l]);
  }
}

template <class V>
using Element = typename std::remove_cvref_t<V>::value_type;

void declare_blocks(FileWriter& file, const RunData& run) {
  step_blocks(run, [&file](const std::string& name, const auto& v,
                           const std::vector<std::uint64_t>& trailing) {
    file.rows<Element<decltype(v)>>(name, trailing);
  });
}

/// Appends what the blocks hold.
void flush_blocks(FileWriter& file, const RunData& run) {
  step_blocks(run, [&file](const std::string& name, const auto& v,
                           const std::vector<std::uint64_t>&) { file.append(name, v); });
}

void clear_blocks(RunData& run) {
  step_blocks(run,
              [](const std::string&, auto& v, const std::vector<std::uint64_t>&) { v.clear(); });
}

template <class T, class Sum>
void write_lod(FileWriter& file, const std::string& name, const Lod<T, Sum>& lod) {
  if (lod.width() == 0) return;
  std::uint64_t bins = 0;
  for (std::size_t l = lod.levels(); l >= 1; --l) {
    SWITCHYARD_ASSERT(lod.loaded(l), fmt::format("{}: level {} is not there", name, l));
    bins += lod_bins(lod.steps(), l);
  }
  // One after the other: a long run's levels are what its writer needs memory for.
  const auto write = [&](const char* part, auto member) {
    std::remove_cvref_t<decltype(lod.level(1).*member)> all;
    all.reserve(static_cast<std::size_t>(bins) * lod.width());
    for (std::size_t l = lod.levels(); l >= 1; --l) {
      const auto& level = lod.level(l).*member;
      all.insert(all.end(), level.begin(), level.end());
    }
    file.write(name + part, all, {bins, lod.width()});
  };
  using Level = typename Lod<T, Sum>::Level;
  write("_max", &Level::max);
  write("_sum", &Level::sum);
  write("_flag", &Level::flag);
}

std::string expert_lod_name(const std::string& group, const char* column) {
  return fmt::format("lod_expert/{}/{}", group, column);
}

void write_expert_lod(FileWriter& file, const std::string& group, const ExpertLod& lod) {
  internal::expert_lods(lod, [&](const char* name, const auto& one) {
    write_lod(file, expert_lod_name(group, name), one);
  });
}

template <class T, class Sum>
std::uint64_t bytes_of(const Lod<T, Sum>& lod) {
  std::uint64_t bytes = 0;
  for (std::size_t l = 1; l <= lod.levels(); ++l) {
    const auto& level = lod.level(l);
    bytes += level.max.capacity() * sizeof(T) + level.sum.capacity() * sizeof(Sum) +
             level.flag.capacity();
  }
  return bytes;
}
std::uint64_t bytes_of(const ExpertLod& lod) {
  return bytes_of(lod.kept) + bytes_of(lod.overflow) + bytes_of(lod.fill);
}

ExpertLod make_expert_lod(std::size_t experts) {
  return {Lod<std::uint32_t, std::uint64_t>(experts), Lod<std::uint32_t, std::uint64_t>(experts),
          Lod<float, double>(experts)};
}

/// One of kept, overflow and fill, from the blocks expert/<group>/ that were appended to the file.
template <class T, class Sum>
Lod<T, Sum> lod_of_blocks(FileWriter& file, const std::string& group, const char* column,
                          std::uint64_t steps, std::size_t experts) {
  Lod<T, Sum> lod(experts);
  if (experts == 0) return lod;
  lod.reserve(steps);
  std::vector<std::uint8_t> flag(experts);
  const auto name = [&group](const char* of) { return fmt::format("expert/{}/{}", group, of); };
  // 1 MiB of each column: whole pieces of the file in most shapes.
  const std::uint64_t part = std::max<std::uint64_t>(1, (std::uint64_t{1} << 20) / (experts * 4));
  for (std::uint64_t first = 0; first < steps; first += part) {
    const std::uint64_t count = std::min(part, steps - first);
    const auto values = file.read_back<T>(name(column), first, count);
    const auto overflow = file.read_back<std::uint32_t>(name("overflow"), first, count);
    for (std::uint64_t s = 0; s < count; ++s) {
      const auto at = static_cast<std::size_t>(s) * experts;
      for (std::size_t e = 0; e < experts; ++e) flag[e] = overflow[at + e] > 0 ? 1 : 0;
      lod.append(std::span(values).subspan(at, experts), flag);
    }
  }
  return lod;
}

/// `write_experts(group, lod in memory or null)` writes the levels of the sum and of each layer.
template <class F>
void write_lods(FileWriter& file, const RunData& run, F&& write_experts) {
  internal::run_lods(run.lod, [&file](const char* name, const auto& lod) {
    write_lod(file, fmt::format("lod/{}", name), lod);
  });
  write_experts("all", &run.lod.experts);
  if (run.meta.detail < Detail::kLayers) return;
  for (std::size_t l = 0; l < run.inventory.moe_layers.size(); ++l) {
    write_experts(layer_name(l), l < run.lod.layers.size() ? &run.lod.layers[l] : nullptr);
  }
}

void write_meta(FileWriter& file, const RunData& run) {
  internal::meta_texts(run.meta, [&file](const char* name, const std::string& v) {
    file.attribute(name, std::string_view(v));
  });
  file.attribute("detail", kDetailNames[static_cast<std::size_t>(run.meta.detail)]);
  file.attribute("seed", run.meta.seed);
  file.attribute("experts", std::uint64_t{run.inventory.experts});
  file.attribute("top_k", std::uint64_t{run.inventory.top_k});
  internal::counters(run.totals,
                     [&file](const char* name, std::uint64_t v) { file.attribute(name, v); });
  file.text("scenario", run.meta.scenario_text);
  file.strings("notes", run.notes);
  file.strings("names/phases", texts(kPhaseNames));
  file.strings("names/memory_categories", texts(kMemoryCategoryNames));
  file.strings("names/step_kinds", texts(kStepKindNames));
  file.strings("names/straggler_reasons", texts(kStragglerReasonNames));
  file.strings("names/request_outcomes", texts(kRequestOutcomeNames));
  file.strings("names/event_kinds", texts(kEventKindNames));
  file.strings("names/step_series", texts(kStepSeriesNames));
}

void write_inventory(FileWriter& file, const Inventory& inv) {
  file.strings("gpu/name", texts(inv.gpus, &GpuInfo::name));
  file.write("gpu/node", column(inv.gpus, &GpuInfo::node));
  file.write("gpu/memory", column(inv.gpus, &GpuInfo::memory_bytes));
  if (several_engines(inv)) file.write("gpu/engine", column(inv.gpus, &GpuInfo::engine));
  std::vector<double> hbm;
  std::vector<double> peak;
  for (const GpuInfo& g : inv.gpus) {
    hbm.push_back(g.hbm.value);
    peak.push_back(g.peak.value);
  }
  file.write("gpu/hbm", hbm);
  file.write("gpu/peak", peak);
  file.strings("link/name", texts(inv.links, &LinkInfo::name));
  file.strings("link/from", texts(inv.links, &LinkInfo::from));
  file.strings("link/to", texts(inv.links, &LinkInfo::to));
  file.strings("link/class", texts(inv.links, &LinkInfo::link_class));
  std::vector<double> bandwidth;
  for (const LinkInfo& k : inv.links) bandwidth.push_back(k.bandwidth.value);
  file.write("link/bandwidth", bandwidth);
  file.write("moe_layers", inv.moe_layers);
  file.write("placement", inv.placement, {inv.moe_layers.size(), inv.experts, inv.replicas});
}

void write_totals(FileWriter& file, const RunData& run) {
  const Shape n(run.inventory);
  const Totals& t = run.totals;
  file.write("totals/gpu_memory", t.gpu_memory, {n.gpus, kMemoryCategories});
  file.write("totals/gpu_memory_peak", t.gpu_memory_peak);
  file.write("totals/expert_kept", t.expert_kept, {n.layers, n.experts});
  file.write("totals/expert_overflow", t.expert_overflow, {n.layers, n.experts});
  if (!t.expert_time_ps.empty()) {
    file.write("totals/expert_time", t.expert_time_ps, {n.layers, n.experts});
  }
  file.write("totals/reroute_experts", t.reroute_experts, {n.experts, n.experts});
  file.write("totals/reroute_gpus", t.reroute_gpus, {n.gpus, n.gpus});
  file.write("totals/pair_bytes", t.pair_bytes, {n.gpus, n.gpus});
  file.write("totals/gpu_phase", t.gpu_phase_ps, {n.gpus, kPhases});
  file.write("totals/link_bytes", t.link_bytes);
  file.write("totals/link_busy", t.link_busy_ps);
  file.strings("metric/name", texts(run.metrics, &Metric::name));
  file.write("metric/value", column(run.metrics, &Metric::value));
  file.strings("metric/unit", texts(run.metrics, &Metric::unit));
}

void write_rows(FileWriter& file, const RunData& run) {
  if (run.meta.detail >= Detail::kSteps) {
    internal::step_columns([&](const char* name, auto member) {
      file.write(fmt::format("step/{}", name), column(run.steps, member));
    });
    std::vector<std::int64_t> phases;
    phases.reserve(run.steps.size() * kPhases);
    for (const StepScalars& s : run.steps) {
      phases.insert(phases.end(), s.phase_ps.begin(), s.phase_ps.end());
    }
    file.write("step/phase", phases, {run.steps.size(), kPhases});
    if (several_engines(run.inventory)) {
      file.write("step/engine", column(run.steps, &StepScalars::engine));
    }
    if (run.cohesion) {
      file.write("step/cohesion", column(run.steps, &StepScalars::cohesion));
      file.write("step/cohesion_baseline", column(run.steps, &StepScalars::cohesion_baseline));
    }
  }
  internal::request_columns([&](const char* name, auto member) {
    file.write(fmt::format("request/{}", name), column(run.requests, member));
  });
  if (run.serving) {
    const auto write = [&](const char* name, auto member) {
      file.write(fmt::format("request/{}", name), column(run.requests, member));
    };
    internal::served_columns(write);
    if (std::any_of(run.requests.begin(), run.requests.end(),
                    [](const RequestRecord& r) { return r.cached_tokens > 0; })) {
      internal::prefix_columns(write);
    }
  }
  if (run.meta.detail >= Detail::kTokens) {
    internal::token_columns([&](const char* name, auto member) {
      file.write(fmt::format("token/{}", name), column(run.tokens, member));
    });
  }
  internal::event_columns([&](const char* name, auto member) {
    file.write(fmt::format("event/{}", name), column(run.events, member));
  });
  file.strings("event/text", texts(run.events, &Event::text));
  internal::critical_columns([&](const char* name, auto member) {
    file.write(fmt::format("critical/{}", name), column(run.critical_path, member));
  });
}

template <class F>
void write_rest(FileWriter& file, const RunData& run, F&& write_experts) {
  write_meta(file, run);
  write_inventory(file, run.inventory);
  write_totals(file, run);
  write_lods(file, run, write_experts);
  write_rows(file, run);
  file.finish();
}

void check_inventory(const Inventory& inv) {
  SWITCHYARD_ASSERT(!inv.gpus.empty(), "a run needs a GPU");
  SWITCHYARD_ASSERT(inv.replicas >= 1, "replicas is 0");
  SWITCHYARD_ASSERT(inv.placement.size() == inv.moe_layers.size() * inv.experts * inv.replicas,
                    fmt::format("{} places", inv.placement.size()));
  for (const LinkInfo& k : inv.links) {
    SWITCHYARD_ASSERT(std::isfinite(k.bandwidth.value) && k.bandwidth.value > 0,
                      fmt::format("{}: {} B/s", k.name, k.bandwidth.value));
  }
}

}  // namespace

struct RunWriter::State {
  State(const std::filesystem::path& target, RunMeta meta, Inventory inventory)
      : file(target, run_schema(), kWriteOptions),
        data(make_run(std::move(meta), std::move(inventory))) {
    data.lod.layers.clear();
    // Without blocks there is nothing to make the sum's from.
    if (data.meta.detail >= Detail::kSteps) data.lod.experts = make_expert_lod(0);
  }
  FileWriter file;
  RunData data;
  std::size_t flushed = 0;  // Steps whose blocks are in the file.
  std::uint64_t peak = 0;
  std::vector<Violation> violations;

  void flush() {
    check_steps(data, flushed, violations);
    flush_blocks(file, data);
    note_bytes(0);
    clear_blocks(data);
    flushed = data.steps.size();
  }
  void note_bytes(std::uint64_t more) {
    std::uint64_t bytes = more + file.buffered_bytes() + bytes_of(data.lod.experts);
    internal::run_lods(data.lod, [&](const char*, const auto& lod) { bytes += bytes_of(lod); });
    step_blocks(data, [&](const std::string&, auto& v, const std::vector<std::uint64_t>&) {
      bytes += v.capacity() * sizeof(Element<decltype(v)>);
    });
    peak = std::max(peak, bytes);
  }
};

RunWriter::RunWriter(const std::filesystem::path& target, RunMeta meta, Inventory inventory) {
  check_inventory(inventory);
  state_ = std::make_unique<State>(target, std::move(meta), std::move(inventory));
  declare_blocks(state_->file, state_->data);
}
RunWriter::~RunWriter() = default;

void RunWriter::append(const StepRecord& step) {
  append_step(state_->data, step);
  if (state_->data.steps.size() - state_->flushed >= kStepsInMemory) state_->flush();
}

RunData& RunWriter::data() { return state_->data; }
std::uint64_t RunWriter::peak_bytes() const { return state_->peak; }

std::vector<Violation> RunWriter::finish() {
  State& s = *state_;
  s.flush();
  check_whole_run(s.data, s.violations);
  std::vector<Metric> metrics = compute_metrics(s.data);
  metrics.insert(metrics.end(), s.data.metrics.begin(), s.data.metrics.end());
  s.data.metrics = std::move(metrics);
  const bool blocks = s.data.meta.detail >= Detail::kSteps;
  write_rest(s.file, s.data, [&](const std::string& group, const ExpertLod* held) {
    if (!blocks) return write_expert_lod(s.file, group, *held);
    internal::expert_lods(
        s.data.lod.experts, [&]<class T, class Sum>(const char* column, const Lod<T, Sum>&) {
          const auto lod = lod_of_blocks<T, Sum>(s.file, group, column, s.data.totals.steps,
                                                 s.data.inventory.experts);
          s.note_bytes(bytes_of(lod));
          write_lod(s.file, expert_lod_name(group, column), lod);
        });
  });
  return shorten(std::move(s.violations));
}

void write_run(const std::filesystem::path& target, const RunData& run) {
  check_inventory(run.inventory);
  FileWriter file(target, run_schema(), kWriteOptions);
  declare_blocks(file, run);
  step_blocks(run, [&run](const std::string& name, const auto& v,
                          const std::vector<std::uint64_t>& trailing) {
    if (trailing.empty()) return;
    std::uint64_t width = 1;
    for (const std::uint64_t d : trailing) width *= d;
    SWITCHYARD_ASSERT(
        v.size() == run.totals.steps * width,
        fmt::format("{}: {} values for {} steps of {}", name, v.size(), run.totals.steps, width));
  });
  SWITCHYARD_ASSERT(run.meta.detail == Detail::kSummary || run.steps.size() == run.totals.steps,
                    fmt::format("{} of {} steps", run.steps.size(), run.totals.steps));
  // In the same portions as RunWriter, so that the pieces of the datasets lie in the same order.
  for (std::uint64_t first = 0; first < run.totals.steps; first += kStepsInMemory) {
    const std::uint64_t end = std::min<std::uint64_t>(first + kStepsInMemory, run.totals.steps);
    step_blocks(run, [&](const std::string& name, const auto& v,
                         const std::vector<std::uint64_t>& trailing) {
      std::uint64_t from = first;
      std::uint64_t to = end;
      std::uint64_t width = 1;
      for (const std::uint64_t d : trailing) width *= d;
      if (trailing.empty()) {  // reroutes: rows of these steps
        const auto& step = run.reroutes.step;
        const auto at = [&step](std::uint64_t s) {
          return static_cast<std::uint64_t>(std::lower_bound(step.begin(), step.end(), s) -
                                            step.begin());
        };
        from = at(first);
        to = end == run.totals.steps ? step.size() : at(end);
      }
      file.append<Element<decltype(v)>>(
          name, std::span(v).subspan(static_cast<std::size_t>(from * width),
                                     static_cast<std::size_t>((to - from) * width)));
    });
  }
  write_rest(file, run, [&file](const std::string& group, const ExpertLod* held) {
    SWITCHYARD_ASSERT(held != nullptr, group + " has no levels of detail");
    write_expert_lod(file, group, *held);
  });
}

}  // namespace switchyard::run
