// SPDX-License-Identifier: Apache-2.0
#include "sim/run/run_data.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "engine/base/nearest_name.hpp"

namespace switchyard::run {
namespace {

void expect_size(std::size_t got, std::size_t want, const char* what) {
  SWITCHYARD_ASSERT(got == want, fmt::format("{}: {} entries, {} expected", what, got, want));
}

template <class T>
void append_all(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// to[i] += from[i]; equal lengths.
template <class T, class U>
void add_all(std::vector<T>& to, const std::vector<U>& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

float demand_over_capacity(std::uint32_t kept, std::uint32_t overflow, std::uint32_t capacity) {
  if (capacity == kUnlimited) return std::numeric_limits<float>::quiet_NaN();
  const double demand = static_cast<double>(kept) + static_cast<double>(overflow);
  return static_cast<float>(demand / static_cast<double>(std::max(capacity, 1U)));
}

struct ExpertRow {
  std::vector<std::uint32_t> kept, overflow, rerouted_in, queued, dropped, capacity;
  std::vector<float> fill;
  std::vector<std::uint8_t> flag;
  explicit ExpertRow(std::size_t e)
      : kept(e),
        overflow(e),
        rerouted_in(e),
        queued(e),
        dropped(e),
        capacity(e),
        fill(e, std::numeric_limits<float>::quiet_NaN()),
        flag(e) {}
};

/// Adds layer l of the step to the row.
void add_layer(ExpertRow& row, const StepRecord& step, std::size_t l) {
  const std::size_t experts = row.kept.size();
  for (std::size_t e = 0; e < experts; ++e) {
    const std::size_t i = l * experts + e;
    row.kept[e] += step.expert_kept[i];
    row.overflow[e] += step.expert_overflow[i];
    row.rerouted_in[e] += step.expert_rerouted_in[i];
    row.queued[e] += step.expert_queued[i];
    row.dropped[e] += step.expert_dropped[i];
    const std::uint32_t c = step.expert_capacity[i];
    const std::uint64_t sum = std::uint64_t{row.capacity[e]} + c;
    row.capacity[e] = (row.capacity[e] == kUnlimited || c == kUnlimited || sum >= kUnlimited)
                          ? kUnlimited
                          : static_cast<std::uint32_t>(sum);
    const float fill = demand_over_capacity(step.expert_kept[i], step.expert_overflow[i], c);
    row.fill[e] = std::fmax(row.fill[e], fill);  // fmax prefers the number over NaN
    if (step.expert_overflow[i] > 0) row.flag[e] = 1;
  }
}

void append_row(ExpertSteps& to, const ExpertRow& row) {
  append_all(to.kept, row.kept);
  append_all(to.overflow, row.overflow);
  append_all(to.rerouted_in, row.rerouted_in);
  append_all(to.queued, row.queued);
  append_all(to.dropped, row.dropped);
  append_all(to.capacity, row.capacity);
  append_all(to.fill, row.fill);
}

void append_lod(ExpertLod& to, const ExpertRow& row) {
  to.kept.append(row.kept, row.flag);
  to.overflow.append(row.overflow, row.flag);
  to.fill.append(row.fill, row.flag);
}

ExpertLod make_expert_lod(std::size_t e) {
  return {Lod<std::uint32_t, std::uint64_t>(e), Lod<std::uint32_t, std::uint64_t>(e),
          Lod<float, double>(e)};
}

void check_lengths(const Inventory& inv, const StepRecord& s) {
  const std::size_t le = inv.moe_layers.size() * inv.experts;
  const std::size_t g = inv.gpus.size();
  expect_size(s.layers.size(), inv.moe_layers.size(), "layers");
  expect_size(s.expert_kept.size(), le, "expert_kept");
  expect_size(s.expert_overflow.size(), le, "expert_overflow");
  expect_size(s.expert_rerouted_in.size(), le, "expert_rerouted_in");
  expect_size(s.expert_queued.size(), le, "expert_queued");
  expect_size(s.expert_dropped.size(), le, "expert_dropped");
  expect_size(s.expert_capacity.size(), le, "expert_capacity");
  if (!s.expert_time_ps.empty()) expect_size(s.expert_time_ps.size(), le, "expert_time_ps");
  expect_size(s.gpu_phase_ps.size(), g * kPhases, "gpu_phase_ps");
  expect_size(s.gpu_bytes_out.size(), g, "gpu_bytes_out");
  expect_size(s.gpu_bytes_in.size(), g, "gpu_bytes_in");
  expect_size(s.gpu_memory.size(), g * kMemoryCategories, "gpu_memory");
  expect_size(s.gpu_memory_peak.size(), g, "gpu_memory_peak");
  expect_size(s.link_bytes.size(), inv.links.size(), "link_bytes");
  expect_size(s.link_busy_ps.size(), inv.links.size(), "link_busy_ps");
  expect_size(s.pair_bytes.size(), g * g, "pair_bytes");
  for (const Reroute& r : s.reroutes) {
    SWITCHYARD_ASSERT(r.layer < inv.moe_layers.size() && r.from < inv.experts && r.to < inv.experts,
                      fmt::format("reroute in layer {}: {} -> {}", r.layer, r.from, r.to));
  }
}

void add_totals(RunData& run, const StepRecord& step) {
  Totals& t = run.totals;
  const StepScalars& s = step.scalars;
  const Inventory& inv = run.inventory;
  ++t.steps;
  t.assignments += s.assignments;
  t.kept += s.kept;
  t.rerouted += s.rerouted;
  t.queued += s.queued;
  t.dropped += s.dropped;
  t.overflow += s.overflow;
  t.bytes_sent += s.bytes_sent;
  t.bytes_received += s.bytes_received;
  const std::size_t gpus = inv.gpus.size();
  for (std::size_t i = 0; i < t.gpu_memory.size(); ++i) {
    t.gpu_memory[i] = std::max(t.gpu_memory[i], step.gpu_memory[i]);
  }
  for (std::size_t i = 0; i < gpus; ++i) {
    t.gpu_memory_peak[i] = std::max(t.gpu_memory_peak[i], step.gpu_memory_peak[i]);
  }
  if (s.warmup) return;
  add_all(t.expert_kept, step.expert_kept);
  add_all(t.expert_overflow, step.expert_overflow);
  if (!step.expert_time_ps.empty()) {
    t.expert_time_ps.resize(step.expert_time_ps.size());
    add_all(t.expert_time_ps, step.expert_time_ps);
  }
  add_all(t.pair_bytes, step.pair_bytes);
  add_all(t.gpu_phase_ps, step.gpu_phase_ps);
  add_all(t.link_bytes, step.link_bytes);
  add_all(t.link_busy_ps, step.link_busy_ps);
  for (const Reroute& r : step.reroutes) {
    t.reroute_experts[std::size_t{r.from} * inv.experts + r.to] += r.count;
    const std::size_t row = std::size_t{r.layer} * inv.experts;
    const std::uint32_t from = inv.placement[(row + r.from) * inv.replicas];
    const std::uint32_t to = inv.placement[(row + r.to) * inv.replicas];
    if (from < gpus && to < gpus) t.reroute_gpus[from * gpus + to] += r.count;
  }
}

void append_layers(LayerSteps& to, const std::vector<LayerRecord>& layers) {
  for (const LayerRecord& l : layers) {
    to.attention_ps.push_back(l.attention_ps);
    to.router_ps.push_back(l.router_ps);
    to.dispatch_ps.push_back(l.dispatch_ps);
    to.expert_ps.push_back(l.expert_ps);
    to.combine_ps.push_back(l.combine_ps);
    to.dispatch_floor_ps.push_back(l.dispatch_floor_ps);
    to.combine_floor_ps.push_back(l.combine_floor_ps);
    to.imbalance.push_back(static_cast<float>(l.imbalance));
    to.distinct_experts.push_back(l.distinct_experts);
    to.straggler_gpu.push_back(l.straggler_gpu);
    to.straggler_reason.push_back(static_cast<std::uint8_t>(l.straggler_reason));
  }
}

void append_reroutes(RerouteSteps& to, const StepRecord& step, std::uint32_t index, bool layers) {
  std::map<std::array<std::uint32_t, 3>, std::uint32_t> merged;  // (layer, from, to) in order
  for (const Reroute& r : step.reroutes) {
    merged[{layers ? r.layer : kNone, r.from, r.to}] += r.count;
  }
  for (const auto& [key, count] : merged) {
    to.step.push_back(index);
    to.layer.push_back(key[0]);
    to.from.push_back(key[1]);
    to.to.push_back(key[2]);
    to.count.push_back(count);
  }
}

void append_step_lod(RunData& run, const StepRecord& step) {
  const StepScalars& s = step.scalars;
  const std::int64_t duration = s.end_ps - s.start_ps;
  const std::array<double, kStepSeries> series = {static_cast<double>(duration),
                                                  static_cast<double>(s.tokens),
                                                  static_cast<double>(s.overflow),
                                                  static_cast<double>(s.rerouted),
                                                  static_cast<double>(s.queued),
                                                  static_cast<double>(s.dropped),
                                                  s.imbalance,
                                                  s.imbalance_max};
  std::array<std::uint8_t, kStepSeries> flags{};
  flags.fill(s.overflow > 0 ? 1 : 0);
  run.lod.steps.append(series, flags);
  run.lod.step_start.append(std::array{s.start_ps});

  std::vector<std::uint8_t> straggler(step.gpu_phase_ps.size());
  if (s.straggler_gpu < run.inventory.gpus.size()) {
    std::fill_n(straggler.begin() + static_cast<std::ptrdiff_t>(s.straggler_gpu * kPhases), kPhases,
                std::uint8_t{1});
  }
  run.lod.gpu_phase.append(step.gpu_phase_ps, straggler);

  const std::size_t links = run.inventory.links.size();
  std::vector<float> use(links);
  std::vector<std::uint8_t> saturated(links);
  for (std::size_t k = 0; k < links; ++k) {
    const double u = link_use(step.link_bytes[k], run.inventory.links[k].bandwidth, duration);
    use[k] = static_cast<float>(u);
    saturated[k] = u >= 0.9 ? 1 : 0;
  }
  run.lod.link_bytes.append(step.link_bytes, saturated);
  run.lod.link_use.append(use, saturated);
}

}  // namespace

Detail parse_detail(std::string_view name, const std::string& where) {
  for (std::size_t i = 0; i < kDetailNames.size(); ++i) {
    if (kDetailNames[i] == name) return static_cast<Detail>(i);
  }
  const std::vector<std::string> known(kDetailNames.begin(), kDetailNames.end());
  throw InputError(where, fmt::format("unknown detail \"{}\"", name), suggest_name(name, known));
}

double link_use(std::uint64_t bytes, BytesPerSecond bandwidth, std::int64_t duration_ps) {
  if (bytes == 0 || duration_ps <= 0) return 0;
  return static_cast<double>(bytes) /
         (bandwidth.value * (static_cast<double>(duration_ps) * 1e-12));
}

RunData make_run(RunMeta meta, Inventory inventory) {
  RunData run;
  run.meta = std::move(meta);
  run.inventory = std::move(inventory);
  const Inventory& inv = run.inventory;
  const std::size_t le = inv.moe_layers.size() * inv.experts;
  const std::size_t g = inv.gpus.size();
  expect_size(inv.placement.size(), le * inv.replicas, "placement");
  run.totals.expert_kept.assign(le, 0);
  run.totals.expert_overflow.assign(le, 0);
  run.totals.reroute_experts.assign(std::size_t{inv.experts} * inv.experts, 0);
  run.totals.reroute_gpus.assign(g * g, 0);
  run.totals.pair_bytes.assign(g * g, 0);
  run.totals.gpu_memory.assign(g * kMemoryCategories, 0);
  run.totals.gpu_memory_peak.assign(g, 0);
  run.totals.gpu_phase_ps.assign(g * kPhases, 0);
  run.totals.link_bytes.assign(inv.links.size(), 0);
  run.totals.link_busy_ps.assign(inv.links.size(), 0);
  run.lod.steps = Lod<double, double>(kStepSeries);
  run.lod.step_start = Lod<std::int64_t, std::int64_t>(1);
  run.lod.experts = make_expert_lod(inv.experts);
  run.lod.gpu_phase = Lod<std::int64_t, std::int64_t>(g * kPhases);
  run.lod.link_bytes = Lod<std::uint64_t, std::uint64_t>(inv.links.size());
  run.lod.link_use = Lod<float, double>(inv.links.size());
  if (run.meta.detail >= Detail::kLayers) {
    run.lod.layers.assign(inv.moe_layers.size(), make_expert_lod(inv.experts));
    run.layer_experts.resize(inv.moe_layers.size());
  }
  return run;
}

StepRecord make_step(const Inventory& inv) {
  StepRecord s;
  const std::size_t le = inv.moe_layers.size() * inv.experts;
  const std::size_t g = inv.gpus.size();
  s.layers.resize(inv.moe_layers.size());
  s.expert_kept.assign(le, 0);
  s.expert_overflow.assign(le, 0);
  s.expert_rerouted_in.assign(le, 0);
  s.expert_queued.assign(le, 0);
  s.expert_dropped.assign(le, 0);
  s.expert_capacity.assign(le, kUnlimited);
  s.gpu_phase_ps.assign(g * kPhases, 0);
  s.gpu_bytes_out.assign(g, 0);
  s.gpu_bytes_in.assign(g, 0);
  s.gpu_memory.assign(g * kMemoryCategories, 0);
  s.gpu_memory_peak.assign(g, 0);
  s.link_bytes.assign(inv.links.size(), 0);
  s.link_busy_ps.assign(inv.links.size(), 0);
  s.pair_bytes.assign(g * g, 0);
  return s;
}

void append_step(RunData& run, const StepRecord& step) {
  check_lengths(run.inventory, step);
  const std::size_t layers = run.inventory.moe_layers.size();
  const std::size_t experts = run.inventory.experts;
  const Detail detail = run.meta.detail;
  const auto index = static_cast<std::uint32_t>(run.totals.steps);

  ExpertRow all(experts);
  for (std::size_t l = 0; l < layers; ++l) {
    add_layer(all, step, l);
    if (detail >= Detail::kLayers) {
      ExpertRow one(experts);
      add_layer(one, step, l);
      append_row(run.layer_experts[l], one);
      if (!run.lod.layers.empty()) append_lod(run.lod.layers[l], one);
    }
  }
  if (run.lod.experts.kept.width() == experts) append_lod(run.lod.experts, all);
  append_step_lod(run, step);
  run.steps.push_back(step.scalars);
  if (detail >= Detail::kSteps) {
    append_row(run.experts, all);
    append_all(run.gpus.phase_ps, step.gpu_phase_ps);
    append_all(run.gpus.bytes_out, step.gpu_bytes_out);
    append_all(run.gpus.bytes_in, step.gpu_bytes_in);
    append_all(run.gpus.memory, step.gpu_memory);
    append_all(run.gpus.memory_peak, step.gpu_memory_peak);
    append_all(run.links.bytes, step.link_bytes);
    append_all(run.links.busy_ps, step.link_busy_ps);
    append_reroutes(run.reroutes, step, index, detail >= Detail::kLayers);
  }
  if (detail >= Detail::kLayers) append_layers(run.layer_steps, step.layers);
  add_totals(run, step);
}

}  // namespace switchyard::run
