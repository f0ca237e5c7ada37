// SPDX-License-Identifier: Apache-2.0
#include "sim/health/health_series.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
  if (p.layer < inv.moe_layers.size()) add(fmt::format("MoE layer {}", p.layer));
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
  set(HealthSignal::kExpertFraction,
      share(static_cast<double>(sc.assignments - sc.dropped),
            static_cast<double>(sc.tokens) * static_cast<double>(inv.moe_layers.size()) *
                inv.experts));
  if (r.gpu_memory_peak.size() == gpus) {
    double full = -1, slack = -1;
    for (std::uint32_t g = 0; g < gpus; ++g) {
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
    double wait = 0;
    for (std::uint32_t g = 0; g < gpus; ++g) {
      wait += static_cast<double>(
          r.gpu_phase_ps[g * run::kPhases + static_cast<std::size_t>(run::Phase::kWait)]);
    }
    set(HealthSignal::kWaitShare, wait / (static_cast<double>(duration) * gpus),
        {.gpu = sc.straggler_gpu});
  }
  return out;
}

SummedValue summed_signal(HealthSignal signal, const ExpertSums& sums, const run::Inventory& inv) {
  SummedValue out{run::kNoData, {}, run::kNoData};
  const std::size_t experts = inv.experts;
  if (experts == 0) return out;
  const std::vector<double>& x = signal == HealthSignal::kExpertLatency ? sums.time_ps : sums.kept;
  const std::size_t layers = x.size() / experts;
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

RecordedSteps::RecordedSteps(const run::RunData& run, const std::string& name) : run_(run) {
  if (run.totals.steps > 0 && run.gpus.memory_peak.empty()) {
    throw InputError(name, "the run holds no steps (detail = \"summary\")",
                     "simulate with run.detail = \"steps\" or more");
  }
}

std::uint32_t RecordedSteps::size() const { return static_cast<std::uint32_t>(run_.steps.size()); }

const run::StepRecord& RecordedSteps::record(std::uint32_t step) {
  const run::Inventory& inv = run_.inventory;
  const auto rows = [step](const auto& from, auto& to, std::size_t width) {
    if (from.size() < (std::size_t{step} + 1) * width) {
      to.clear();
      return;
    }
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(step * width);
    to.assign(begin, begin + static_cast<std::ptrdiff_t>(width));
  };
  run::StepRecord& r = record_;
  const std::size_t gpus = inv.gpus.size(), links = inv.links.size(), experts = inv.experts;
  r.scalars = run_.steps[step];
  rows(run_.gpus.phase_ps, r.gpu_phase_ps, gpus * run::kPhases);
  rows(run_.gpus.bytes_out, r.gpu_bytes_out, gpus);
  rows(run_.gpus.bytes_in, r.gpu_bytes_in, gpus);
  rows(run_.gpus.memory, r.gpu_memory, gpus * run::kMemoryCategories);
  rows(run_.gpus.memory_peak, r.gpu_memory_peak, gpus);
  rows(run_.links.bytes, r.link_bytes, links);
  rows(run_.links.busy_ps, r.link_busy_ps, links);
  r.expert_kept.clear();
  std::vector<std::uint32_t> part;
  if (!run_.layer_experts.empty()) {
    for (const run::ExpertSteps& layer : run_.layer_experts) {
      rows(layer.kept, part, experts);
      r.expert_kept.insert(r.expert_kept.end(), part.begin(), part.end());
    }
  } else {
    rows(run_.experts.kept, r.expert_kept, experts);
  }
  r.expert_time_ps.clear();  // A run keeps the experts' times in its totals only.
  return r;
}

}  // namespace switchyard::health
