// SPDX-License-Identifier: Apache-2.0
// A made-up run for tests of the window: two nodes of four GPUs behind an NVSwitch each, a NIC per
// GPU, one leaf switch; 64 experts in 4 layers, top-4, 1024 tokens per decode step. Popularity
// drifts; expert 19 is hot in steps 180 to 210; expert 40 has one step of overflow, 250. Every
// count obeys the conservation rules (tests check that).
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "engine/base/version.hpp"
#include "sim/run/metrics.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::gui::testing {

inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
/// In [0, 1).
inline double unit(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return static_cast<double>(mix(mix(mix(a) + b) + c) >> 11) * 0x1p-53;
}

inline constexpr std::uint32_t kDemoGpus = 8, kDemoExperts = 64, kDemoLayers = 4, kDemoTopK = 4;
inline constexpr std::uint32_t kDemoTokens = 1024, kDemoCapacity = 136;
inline constexpr std::uint32_t kSpikeStep = 250, kSpikeExpert = 40;

inline run::Inventory demoInventory() {
  run::Inventory inv;
  const auto cable = [&](const std::string& a, const std::string& b, const char* kind,
                         double rate) {
    inv.links.push_back({a + "->" + b, a, b, kind, {rate}});
    inv.links.push_back({b + "->" + a, b, a, kind, {rate}});
  };
  for (std::uint32_t g = 0; g < kDemoGpus; ++g) {
    const std::string gpu = fmt::format("gpu{}", g);
    inv.gpus.push_back({gpu, g / 4, 141'000'000'000ULL, {4.8e12}, {989e12}});
    cable(gpu, fmt::format("nvswitch{}", g / 4), "nvlink4", 450e9);
    cable(gpu, fmt::format("nic{}", g), "pcie5", 64e9);
    cable(fmt::format("nic{}", g), "leaf", "ndr200", 25e9);
  }
  inv.experts = kDemoExperts;
  inv.top_k = kDemoTopK;
  for (std::uint32_t l = 0; l < kDemoLayers; ++l) {
    inv.moe_layers.push_back(l + 1);
    for (std::uint32_t e = 0; e < kDemoExperts; ++e) inv.placement.push_back(e / 8);
  }
  return inv;
}

inline run::StepRecord demoStep(const run::Inventory& inv, std::uint32_t s) {
  constexpr std::int64_t kUs = 1'000'000;
  constexpr double kRowBytes = 8192;
  run::StepRecord r = run::make_step(inv);
  run::StepScalars& x = r.scalars;
  x.kind = run::StepKind::kDecode;
  x.warmup = s < 8;
  x.tokens = kDemoTokens;
  x.sequences = kDemoTokens;
  const std::uint32_t perLayer = kDemoTokens * kDemoTopK;
  std::array<double, kDemoGpus> load{};
  for (std::uint32_t l = 0; l < kDemoLayers; ++l) {
    std::array<double, kDemoExperts> w{};
    double all = 0;
    for (std::uint32_t e = 0; e < kDemoExperts; ++e) {
      const double base = 0.55 + 0.9 * unit(1, l, e);
      const double drift =
          1 + 0.35 * std::sin(s * (0.01 + 0.02 * unit(2, l, e)) + 6.3 * unit(3, l, e));
      w[e] = base * drift * (0.92 + 0.16 * unit(4 + s, l, e));
      if (e == kSpikeExpert) w[e] = 0.5;
      if (e == 19 && s >= 180 && s < 210) w[e] *= 2.5;
      all += w[e];
    }
    std::array<std::uint32_t, kDemoExperts> demand{};
    std::uint32_t given = 0;
    for (std::uint32_t e = 0; e < kDemoExperts; ++e) {
      demand[e] = static_cast<std::uint32_t>(w[e] / all * perLayer);
      if (e == kSpikeExpert) demand[e] = std::min(demand[e], kDemoCapacity - 1);
      given += demand[e];
    }
    // What rounding left over goes round the experts with the least demand.
    for (std::uint32_t e = 0; given < perLayer; e = (e + 1) % kDemoExperts) {
      if (e != kSpikeExpert && demand[e] < 80) ++demand[e], ++given;
    }
    if (s == kSpikeStep && l == 2) {
      std::uint32_t taken = 0;
      for (std::uint32_t e = 0; taken < 130; e = (e + 1) % kDemoExperts) {
        if (e != kSpikeExpert && demand[e] > 20) --demand[e], ++taken;
      }
      demand[kSpikeExpert] += taken;
    }
    std::uint32_t* kept = r.expert_kept.data() + l * kDemoExperts;
    for (std::uint32_t e = 0; e < kDemoExperts; ++e) {
      kept[e] = std::min(demand[e], kDemoCapacity);
      r.expert_capacity[l * kDemoExperts + e] = kDemoCapacity;
    }
    for (std::uint32_t e = 0; e < kDemoExperts; ++e) {
      std::uint32_t over = demand[e] - std::min(demand[e], kDemoCapacity);
      if (over == 0) continue;
      r.expert_overflow[l * kDemoExperts + e] = over;
      x.overflow += over;
      // Two of three go to the first expert after it that has room; the rest is dropped.
      std::uint32_t moving = over * 2 / 3;
      for (std::uint32_t d = 1; d < kDemoExperts && moving > 0; ++d) {
        const std::uint32_t to = (e + d) % kDemoExperts;
        const std::uint32_t room =
            demand[to] >= kDemoCapacity ? 0 : kDemoCapacity - std::max(kept[to], demand[to]);
        const std::uint32_t n = std::min(room, moving);
        if (n == 0) continue;
        kept[to] += n;
        r.expert_rerouted_in[l * kDemoExperts + to] += n;
        r.reroutes.push_back({l, e, to, n});
        x.rerouted += n;
        moving -= n;
        over -= n;
      }
      r.expert_dropped[l * kDemoExperts + e] = over;
      x.dropped += over;
    }
    x.assignments += perLayer;
    std::array<double, kDemoGpus> layerLoad{};
    run::LayerRecord& layer = r.layers[l];
    for (std::uint32_t e = 0; e < kDemoExperts; ++e) {
      layerLoad[e / 8] += kept[e];
      if (kept[e] > 0) ++layer.distinct_experts;
    }
    double top = 0;
    double sum = 0;
    for (std::uint32_t g = 0; g < kDemoGpus; ++g) {
      if (layerLoad[g] > top) top = layerLoad[g], layer.straggler_gpu = g;
      sum += layerLoad[g];
      load[g] += layerLoad[g];
    }
    layer.imbalance = top / (sum / kDemoGpus);
    layer.straggler_reason = run::StragglerReason::kLoad;
    layer.attention_ps = 60 * kUs;
    layer.router_ps = 8 * kUs;
    layer.expert_ps = static_cast<std::int64_t>(top * 0.25) * kUs;
    layer.dispatch_ps = layer.combine_ps = 90 * kUs;
    x.imbalance = (l == 0 ? 0 : x.imbalance) + layer.imbalance / kDemoLayers;
    x.imbalance_max = std::max(l == 0 ? 0 : x.imbalance_max, layer.imbalance);
  }
  std::sort(r.reroutes.begin(), r.reroutes.end(), [](const run::Reroute& a, const run::Reroute& b) {
    return std::tie(a.layer, a.from, a.to) < std::tie(b.layer, b.from, b.to);
  });
  x.kept = x.assignments - x.rerouted - x.dropped;
  x.longest_queue = *std::max_element(r.expert_overflow.begin(), r.expert_overflow.end());
  x.gate_entropy = 5.2 + 0.2 * std::sin(s * 0.02);

  // Bytes: tokens live evenly on the GPUs; each assignment goes there and back.
  std::uint64_t out = 0;
  std::int64_t exchange = 0;
  for (std::uint32_t a = 0; a < kDemoGpus; ++a) {
    for (std::uint32_t b = 0; b < kDemoGpus; ++b) {
      if (a == b) continue;
      const auto bytes = static_cast<std::uint64_t>((load[b] + load[a]) / kDemoGpus * kRowBytes);
      r.pair_bytes[a * kDemoGpus + b] = bytes;
      r.gpu_bytes_out[a] += bytes;
      r.gpu_bytes_in[b] += bytes;
      out += bytes;
      // Per GPU, in this order: gpu->nvswitch, back, gpu->nic, back, nic->leaf, back.
      if (a / 4 == b / 4) {
        r.link_bytes[a * 6] += bytes;
        r.link_bytes[b * 6 + 1] += bytes;
      } else {
        r.link_bytes[a * 6 + 2] += bytes;
        r.link_bytes[a * 6 + 4] += bytes;
        r.link_bytes[b * 6 + 5] += bytes;
        r.link_bytes[b * 6 + 3] += bytes;
      }
    }
  }
  x.bytes_sent = x.bytes_received = out;
  for (std::size_t k = 0; k < inv.links.size(); ++k) {
    r.link_busy_ps[k] = static_cast<std::int64_t>(static_cast<double>(r.link_bytes[k]) /
                                                  inv.links[k].bandwidth.value * 1e12);
    exchange = std::max(exchange, r.link_busy_ps[k]);
  }
  exchange = exchange / 2 + 40 * kUs;  // of dispatch, and of combine
  for (run::LayerRecord& layer : r.layers) {
    layer.dispatch_ps = layer.combine_ps = exchange / kDemoLayers;
    layer.dispatch_floor_ps = layer.combine_floor_ps = (exchange - 40 * kUs) / kDemoLayers;
  }
  const double top = *std::max_element(load.begin(), load.end());
  const auto expert = [](double n) { return static_cast<std::int64_t>(n * 0.12) * kUs; };
  x.phase_ps = {40 * kUs, 240 * kUs, 32 * kUs, exchange, expert(top),
                exchange, 0,         60 * kUs, 30 * kUs, 0};
  std::int64_t duration = 0;
  for (const std::int64_t p : x.phase_ps) duration += p;
  for (std::uint32_t g = 0; g < kDemoGpus; ++g) {
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      r.gpu_phase_ps[g * run::kPhases + p] = x.phase_ps[p];
    }
    const std::int64_t mine = expert(load[g]);
    r.gpu_phase_ps[g * run::kPhases + static_cast<std::size_t>(run::Phase::kExpert)] = mine;
    r.gpu_phase_ps[g * run::kPhases + static_cast<std::size_t>(run::Phase::kWait)] =
        expert(top) - mine;
    if (load[g] == top) x.straggler_gpu = g;
    const std::uint64_t kv = 20'000'000'000ULL + s * 40'000'000ULL;
    const std::array<std::uint64_t, 6> memory = {
        9'000'000'000ULL, 60'000'000'000ULL, kv,
        2'000'000'000ULL, 1'000'000'000ULL,  1'500'000'000ULL};
    std::uint64_t sum = 0;
    for (std::size_t c = 0; c < memory.size(); ++c) {
      r.gpu_memory[g * run::kMemoryCategories + c] = memory[c];
      sum += memory[c];
    }
    r.gpu_memory_peak[g] = sum;
  }
  x.straggler_reason = run::StragglerReason::kLoad;
  x.start_ps = static_cast<std::int64_t>(s) * 3000 * kUs;
  x.end_ps = x.start_ps + duration;
  x.hbm_bytes = 220'000'000'000ULL;
  x.flops = 2e13;
  x.kernels = 640;
  return r;
}

inline run::RunData demoRun(std::uint32_t steps = 400, run::Detail detail = run::Detail::kLayers) {
  run::RunMeta meta;
  meta.product_version = version();
  meta.scenario_name = "demo";
  meta.scenario_text =
      "model.file = \"models/demo_64e.json\"\nhardware.file = \"hardware/two_nodes.toml\"\n"
      "parallel.ep = 8\nworkload.kind = \"decode\"\nworkload.batch = 1024\n"
      "policy.capacity.factor = 1.75\npolicy.capacity.reroute = \"next\"\n"
      "network.model = \"flow\"\nrun.seed = 42\nrun.detail = \"layers\"\n";
  meta.scenario_hash = "5d41402abc4b2a76";
  meta.model_name = "demo 64 experts";
  meta.model_hash = "00000000000000aa";
  meta.hardware_name = "2 nodes, 8 GPUs";
  meta.hardware_hash = "00000000000000bb";
  meta.routing_source = "synthetic, drifting popularity";
  meta.policy_way = "synthetic";
  meta.network_model = "flow";
  meta.seed = 42;
  meta.detail = detail;
  run::RunData run = run::make_run(meta, demoInventory());
  std::int64_t at = 0;
  for (std::uint32_t s = 0; s < steps; ++s) {
    run::StepRecord r = demoStep(run.inventory, s);
    const std::int64_t duration = r.scalars.end_ps - r.scalars.start_ps;
    r.scalars.start_ps = at;
    at += duration;
    r.scalars.end_ps = at;
    for (const run::Reroute& m : r.reroutes) {
      if (m.count < 40) continue;
      run.events.push_back({r.scalars.start_ps, s, run::EventKind::kReroute, m.layer, m.from / 8,
                            m.from, run::kNone, static_cast<double>(m.count),
                            fmt::format("{} assignments ran on expert {}", m.count, m.to)});
    }
    if (s == kSpikeStep) {
      run.events.push_back({r.scalars.start_ps, s, run::EventKind::kOverflow, 2, 5, kSpikeExpert,
                            run::kNone, 1, "expert 40 over capacity"});
    }
    run::append_step(run, r);
  }
  run.events.push_back({at, run::kNone, run::EventKind::kAlarm, run::kNone, run::kNone, run::kNone,
                        run::kNone, run::kNoData, "gate entropy fell for 30 steps"});
  if (run.meta.detail < run::Detail::kSteps) run.experts = {};
  run.notes = {"routing: synthetic popularity, not recorded from a model"};
  run.metrics = run::compute_metrics(run);
  return run;
}

}  // namespace switchyard::gui::testing
