// SPDX-License-Identifier: Apache-2.0
#include "sim/health/health_series.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"

namespace switchyard::health {
namespace {

double share(double part, double whole) { return whole > 0 ? part / whole : run::kNoData; }

double seconds(std::int64_t ps) { return static_cast<double>(ps) * 1e-12; }

}  // namespace

std::string describe(const Place& p, const run::Inventory& inv) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
  if (p.gpu < inv.gpus.size()) add(inv.gpus[p.gpu].name);
  if (p.link < inv.links.size()) add("link " + inv.links[p.link].name);
  if (p.layer < inv.moe_layers.size()) add(fmt::format("MoE layer {}", inv.moe_layers[p.layer]));
  if (p.expert != run::kNone) add(fmt::format("expert {}", p.expert));
  return text.empty() ? "-" : text;
}

HealthSample sample_step(const run::StepRecord& r, std::uint32_t step, const run::Inventory& inv) {
  HealthSample out;
  out.value.fill(run::kNoData);
  const run::StepScalars& sc = r.scalars;
  out.step = step;
  out.end_ps = sc.end_ps;
  const std::int64_t duration = sc.end_ps - sc.start_ps;
  const auto set = [&](HealthSignal s, double v, Place p = {}) {
    out.value[at(s)] = v;
    out.place[at(s)] = p;
  };
  const auto gpus = static_cast<std::uint32_t>(inv.gpus.size());
  set(HealthSignal::kStepTime, seconds(duration), {.gpu = sc.straggler_gpu});
  set(HealthSignal::kImbalance, sc.imbalance);
  const auto assignments = static_cast<double>(sc.assignments);
  set(HealthSignal::kDropShare, share(static_cast<double>(sc.dropped), assignments));
  set(HealthSignal::kOverflowShare, share(static_cast<double>(sc.overflow), assignments));
  set(HealthSignal::kLongestQueue,
      sc.assignments > 0 ? static_cast<double>(sc.longest_queue) : run::kNoData);
  set(HealthSignal::kGateEntropy, sc.gate_entropy);
  set(HealthSignal::kCohesion, sc.cohesion);
  set(HealthSignal::kCohesionBaseline, sc.cohesion_baseline);
  set(HealthSignal::kExpertFraction,
      share(static_cast<double>(sc.assignments - sc.dropped),
            static_cast<double>(sc.tokens) * static_cast<double>(inv.moe_layers.size()) *
                inv.experts));
  set(HealthSignal::kSparsityRatio,
      share(
          static_cast<double>(sc.assignments - sc.dropped),
          static_cast<double>(sc.tokens) * static_cast<double>(inv.moe_layers.size()) * inv.top_k));
  if (r.gpu_memory_peak.size() == gpus) {
    double full = -1, slack = -1;
    for (std::uint32_t g = 0; g < gpus; ++g) {
      if (inv.gpus[g].engine != sc.engine) continue;  // Another replica's.
      const auto capacity = static_cast<double>(inv.gpus[g].memory_bytes);
      const double used = share(static_cast<double>(r.gpu_memory_peak[g]), capacity);
      if (used > full) set(HealthSignal::kMemory, full = used, {.gpu = g});
      const double runtime =
          share(static_cast<double>(
                    r.gpu_memory[g * run::kMemoryCategories +
                                 static_cast<std::size_t>(run::MemoryCategory::kRuntime)]),
                capacity);
      if (runtime > slack) set(HealthSignal::kRuntimeMemory, slack = runtime, {.gpu = g});
    }
  }
  if (!inv.links.empty() && r.link_bytes.size() == inv.links.size()) {
    double most = -1, sum = 0, squares = 0;
    for (std::uint32_t k = 0; k < inv.links.size(); ++k) {
      const double use = run::link_use(r.link_bytes[k], inv.links[k].bandwidth, duration);
      sum += use;
      squares += use * use;
      if (use > most) set(HealthSignal::kLinkUse, most = use, {.link = k});
    }
    const auto n = static_cast<double>(inv.links.size());
    set(HealthSignal::kLinkSpread, std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n))));
  }
  if (r.gpu_phase_ps.size() == std::size_t{gpus} * run::kPhases && duration > 0) {
    // Of the GPUs that are in the step: another replica's have no time in it.
    double wait = 0, most = -1;
    std::uint32_t members = 0;
    for (std::uint32_t g = 0; g < gpus; ++g) {
      const auto* const phases = r.gpu_phase_ps.data() + std::size_t{g} * run::kPhases;
      if (std::all_of(phases, phases + run::kPhases, [](auto ps) { return ps == 0; })) continue;
      ++members;
      double busy = 0;
      for (std::size_t p = 0; p < run::kPhases; ++p) busy += static_cast<double>(phases[p]);
      const auto idle = static_cast<double>(phases[static_cast<std::size_t>(run::Phase::kWait)]);
      wait += idle;
      busy = share(busy - idle, static_cast<double>(duration));
      if (busy > most) set(HealthSignal::kGpuBusy, most = busy, {.gpu = g});
    }
    if (members > 0) {
      set(HealthSignal::kWaitShare, wait / (static_cast<double>(duration) * members),
          {.gpu = sc.straggler_gpu});
    }
  }
  return out;
}

SummedValue summed_signal(HealthSignal signal, const ExpertSums& sums, const run::Inventory& inv) {
  SummedValue out{run::kNoData, {}, run::kNoData};
  const std::size_t experts = inv.experts;
  if (experts == 0) return out;
  const std::vector<double>& x = signal == HealthSignal::kExpertLatency ? sums.time_ps : sums.kept;
  const std::size_t layers = x.size() / experts;
  // Experts summed over layers tell neither: one layer's hot expert hides behind another's.
  if (layers < inv.moe_layers.size() && signal != HealthSignal::kExpertLatency) return out;
  double total = 0, floors = 0, used = 0;
  for (std::size_t l = 0; l < layers; ++l) {
    const auto row = std::span(x).subspan(l * experts, experts);
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    if (sum <= 0) continue;
    ++used;
    const auto layer = static_cast<std::uint32_t>(layers == inv.moe_layers.size() ? l : run::kNone);
    if (signal == HealthSignal::kLoadCv) {
      const double mean = sum / static_cast<double>(experts);
      double squares = 0;
      for (const double v : row) squares += (v - mean) * (v - mean);
      total += std::sqrt(squares / static_cast<double>(experts)) / mean;
      const double p = static_cast<double>(inv.top_k) / static_cast<double>(experts);
      floors += std::sqrt(std::max(0.0, 1 - p) / mean);
    } else if (signal == HealthSignal::kColdExpert) {
      const auto least = std::min_element(row.begin(), row.end());
      const double v = *least * static_cast<double>(experts) / sum;
      if (std::isnan(out.value) || v < out.value) {
        out.value = v;
        out.place = {.layer = layer, .expert = static_cast<std::uint32_t>(least - row.begin())};
      }
    } else {
      // Among the experts that ran at all: one that is never called is not a fast one.
      const auto called = static_cast<double>(
          std::count_if(row.begin(), row.end(), [](double v) { return v > 0; }));
      const auto most = std::max_element(row.begin(), row.end());
      const double v = *most * called / sum;
      if (std::isnan(out.value) || v > out.value) {
        out.value = v;
        out.place = {.layer = layer, .expert = static_cast<std::uint32_t>(most - row.begin())};
      }
    }
  }
  if (signal == HealthSignal::kLoadCv && used > 0) {
    out.value = total / used;
    out.floor = floors / used;
  }
  if (out.place.expert != run::kNone && out.place.layer != run::kNone &&
      inv.placement.size() >= inv.moe_layers.size() * experts * inv.replicas) {
    out.place.gpu = inv.placement[(out.place.layer * experts + out.place.expert) * inv.replicas];
  }
  return out;
}

namespace {

void need_steps(bool there, const std::string& name) {
  if (!there) {
    throw InputError(name, "the run holds no steps (detail = \"summary\")",
                     "simulate with run.detail = \"steps\" or more");
  }
}

/// Above this many numbers the experts of single layers stay in the file.
constexpr double kMostLayerExperts = 2e7;

}  // namespace

RecordedRun read_recorded(const std::filesystem::path& file, const h5::ReadOptions& options) {
  RecordedRun out;
  out.blocks = std::make_unique<run::RunReader>(file, options);
  const run::RunReader& reader = *out.blocks;
  run::RunData& r = out.run = reader.base();
  const std::uint64_t steps = reader.steps();
  r.totals = reader.read_totals();
  r.requests = reader.read_requests();
  r.serving = reader.has_served_requests();
  r.events = reader.read_events();
  r.critical_path = reader.read_critical_path();
  if (!reader.has(run::Detail::kSteps)) return out;
  r.steps = reader.read_steps(0, steps);
  r.gpus.memory =
      reader.read_column<std::uint64_t>(run::StepColumn::kGpuMemory, run::kNone, 0, steps);
  r.gpus.memory_peak =
      reader.read_column<std::uint64_t>(run::StepColumn::kGpuMemoryPeak, run::kNone, 0, steps);
  if (const std::size_t top = run::lod_levels(steps); top > 0) {
    const auto most = reader.read_lod_bins<float, double>(run::LodSeries::kExpertFill, run::kNone,
                                                          run::LodPart::kMaxAndFlag, top, 0, 1);
    // The levels take a missing capacity as 0.
    for (const float f : most.max) {
      r.experts.fill.push_back(f > 0 ? f : std::numeric_limits<float>::quiet_NaN());
    }
  }
  if (!reader.has(run::Detail::kLayers)) return out;
  const auto layers = static_cast<double>(r.inventory.moe_layers.size());
  out.layers =
      static_cast<double>(steps) * layers * r.inventory.experts <= kMostLayerExperts && layers > 0;
  const auto append = [](std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  constexpr std::uint64_t kPart = 4096;
  for (std::uint64_t first = 0; first < steps; first += kPart) {
    const run::LayerSteps part = reader.read_layers(first, std::min(kPart, steps - first));
    append(r.layer_steps.dispatch_ps, part.dispatch_ps);
    append(r.layer_steps.combine_ps, part.combine_ps);
    append(r.layer_steps.dispatch_floor_ps, part.dispatch_floor_ps);
    append(r.layer_steps.combine_floor_ps, part.combine_floor_ps);
    r.layer_steps.imbalance.insert(r.layer_steps.imbalance.end(), part.imbalance.begin(),
                                   part.imbalance.end());
  }
  return out;
}

RecordedSteps::RecordedSteps(const run::RunData& run, const std::string& name) : run_(run) {
  need_steps(run.totals.steps == 0 || !run.gpus.memory_peak.empty(), name);
}

RecordedSteps::RecordedSteps(const RecordedRun& file, const std::string& name)
    : run_(file.run), file_(&file) {
  need_steps(file.run.totals.steps == 0 || !file.run.steps.empty(), name);
}

void RecordedSteps::load(std::uint32_t step) {
  if (file_->between) file_->between();
  const run::RunReader& reader = *file_->blocks;
  first_ = step / kWindow * kWindow;
  end_ = std::min(first_ + kWindow, size());
  const std::uint64_t count = end_ - first_;
  window_.gpus = reader.read_gpus(first_, count);
  window_.links = reader.read_links(first_, count);
  if (!file_->layers) {
    window_.experts.kept =
        reader.read_column<std::uint32_t>(run::StepColumn::kKept, run::kNone, first_, count);
    return;
  }
  window_.layer_experts.resize(run_.inventory.moe_layers.size());
  for (std::uint32_t l = 0; l < window_.layer_experts.size(); ++l) {
    window_.layer_experts[l].kept =
        reader.read_column<std::uint32_t>(run::StepColumn::kKept, l, first_, count);
  }
}

std::uint32_t RecordedSteps::size() const { return static_cast<std::uint32_t>(run_.steps.size()); }

const run::StepRecord& RecordedSteps::record(std::uint32_t step) {
  const run::Inventory& inv = run_.inventory;
  if (file_ != nullptr && (step < first_ || step >= end_)) load(step);
  const run::RunData& blocks = file_ != nullptr ? window_ : run_;
  const auto rows = [row = step - first_](const auto& from, auto& to, std::size_t width) {
    if (from.size() < (std::size_t{row} + 1) * width) {
      to.clear();
      return;
    }
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(row * width);
    to.assign(begin, begin + static_cast<std::ptrdiff_t>(width));
  };
  run::StepRecord& r = record_;
  const std::size_t gpus = inv.gpus.size(), links = inv.links.size(), experts = inv.experts;
  r.scalars = run_.steps[step];
  rows(blocks.gpus.phase_ps, r.gpu_phase_ps, gpus * run::kPhases);
  rows(blocks.gpus.bytes_out, r.gpu_bytes_out, gpus);
  rows(blocks.gpus.bytes_in, r.gpu_bytes_in, gpus);
  rows(blocks.gpus.memory, r.gpu_memory, gpus * run::kMemoryCategories);
  rows(blocks.gpus.memory_peak, r.gpu_memory_peak, gpus);
  rows(blocks.links.bytes, r.link_bytes, links);
  rows(blocks.links.busy_ps, r.link_busy_ps, links);
  r.expert_kept.clear();
  std::vector<std::uint32_t> part;
  if (!blocks.layer_experts.empty()) {
    for (const run::ExpertSteps& layer : blocks.layer_experts) {
      rows(layer.kept, part, experts);
      r.expert_kept.insert(r.expert_kept.end(), part.begin(), part.end());
    }
  } else {
    rows(blocks.experts.kept, r.expert_kept, experts);
  }
  r.expert_time_ps.clear();  // A run keeps the experts' times in its totals only.
  return r;
}

}  // namespace switchyard::health
