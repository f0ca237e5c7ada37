// SPDX-License-Identifier: Apache-2.0
// A run small enough to check by hand.
//
// 2 GPUs of 1000 B, 2 links of 1 GB/s (1 byte per 1000 ps), 2 MoE layers (real numbers 1 and 3) of
// 4 experts (0, 1 on GPU 0; 2, 3 on GPU 1), top-2, 4 tokens a step: 8 assignments per layer. Each
// step lasts 100 us. Steps 0 and 1 are warm-up. C = 3.
//   layer 0  kept 2 2 2 2; in steps 1, 5, 9, …: expert 0 refuses one, which runs on expert 1:
//            3 3 2 0 with overflow 1 0 0 0
//   layer 1  kept 2 2 2 2; in step 5: expert 0 refuses one, which is dropped: 3 2 2 0
#pragma once
#include "engine/base/version.hpp"
#include "sim/run/run_data.hpp"

namespace switchyard::run::testing {

inline Inventory sample_inventory() {
  Inventory inv;
  inv.gpus = {{"gpu0", 0, 1000, {1e9}, {1e12}}, {"gpu1", 0, 1000, {1e9}, {1e12}}};
  inv.links = {{"up", "gpu0", "gpu1", "nvlink4", {1e9}},
               {"down", "gpu1", "gpu0", "nvlink4", {1e9}}};
  inv.experts = 4;
  inv.top_k = 2;
  inv.moe_layers = {1, 3};
  inv.replicas = 1;
  inv.placement = {0, 0, 1, 1, 0, 0, 1, 1};
  return inv;
}

inline RunMeta sample_meta(Detail detail) {
  RunMeta m;
  m.product_version = "0.1.0";
  m.scenario_name = "sample";
  m.scenario_text = "workload.batch = 4\npolicy.capacity.factor = 1.5\n";
  m.scenario_hash = "0123456789abcdef";
  m.model_name = "tiny";
  m.model_hash = "aa";
  m.hardware_name = "pair";
  m.hardware_hash = "bb";
  m.routing_source = "synthetic uniform";
  m.policy_way = "synthetic";
  m.network_model = "bottleneck";
  m.seed = 7;
  m.detail = detail;
  return m;
}

inline StepRecord sample_step(const Inventory& inv, std::uint32_t s) {
  constexpr std::int64_t kUs = 1'000'000;
  StepRecord r = make_step(inv);
  StepScalars& x = r.scalars;
  x.start_ps = s * 100 * kUs;
  x.end_ps = (s + 1) * 100 * kUs;
  x.kind = StepKind::kDecode;
  x.warmup = s < 2;
  x.tokens = 4;
  x.sequences = 4;
  //            host      attention router   dispatch  expert    combine   dense coll head    wait
  x.phase_ps = {10 * kUs, 30 * kUs, 5 * kUs, 10 * kUs, 30 * kUs, 10 * kUs, 0, 0, 5 * kUs, 0};
  const bool reroute = s % 4 == 1;
  const bool drop = s == 5;
  r.expert_capacity.assign(8, 3);
  r.expert_kept = {2, 2, 2, 2, 2, 2, 2, 2};
  if (reroute) {
    r.expert_kept[0] = 3;
    r.expert_kept[1] = 3;
    r.expert_kept[3] = 0;
    r.expert_overflow[0] = 1;
    r.expert_rerouted_in[1] = 1;
    r.reroutes = {{0, 0, 1, 1}};
  }
  if (drop) {
    r.expert_kept[4] = 3;
    r.expert_kept[7] = 0;
    r.expert_overflow[4] = 1;
    r.expert_dropped[4] = 1;
  }
  x.assignments = 16;
  x.rerouted = reroute ? 1 : 0;
  x.dropped = drop ? 1 : 0;
  x.kept = 16 - x.rerouted - x.dropped;
  x.overflow = x.rerouted + x.dropped;
  x.longest_queue = x.overflow > 0 ? 1 : 0;
  x.gate_entropy = 1.5;
  x.hbm_bytes = 50'000;
  x.flops = 4e7;
  x.kernels = 20;
  x.bytes_sent = 7000;
  x.bytes_received = 7000;
  x.straggler_gpu = 0;
  x.straggler_reason = StragglerReason::kLoad;
  // GPU loads of layer 0 with a reroute: 6 and 2, max/mean 1.5; of layer 1 with the drop: 5 and 2,
  // 10/7.
  r.layers[0] = {15 * kUs,
                 2 * kUs,
                 5 * kUs,
                 15 * kUs,
                 5 * kUs,
                 4 * kUs,
                 3 * kUs,
                 reroute ? 1.5 : 1.0,
                 reroute ? 3U : 4U,
                 0,
                 StragglerReason::kLoad};
  r.layers[1] = {15 * kUs,
                 3 * kUs,
                 5 * kUs,
                 15 * kUs,
                 5 * kUs,
                 4 * kUs,
                 3 * kUs,
                 drop ? 10.0 / 7 : 1.0,
                 drop ? 3U : 4U,
                 1,
                 StragglerReason::kLink};
  x.imbalance = (r.layers[0].imbalance + r.layers[1].imbalance) / 2;
  x.imbalance_max = std::max(r.layers[0].imbalance, r.layers[1].imbalance);
  r.expert_time_ps.assign(8, 1000);
  for (std::size_t p = 0; p < kPhases; ++p) {
    r.gpu_phase_ps[p] = x.phase_ps[p];
    r.gpu_phase_ps[kPhases + p] = x.phase_ps[p];
  }
  // GPU 1 is done with its experts 10 us earlier and waits.
  r.gpu_phase_ps[kPhases + static_cast<std::size_t>(Phase::kExpert)] -= 10 * kUs;
  r.gpu_phase_ps[kPhases + static_cast<std::size_t>(Phase::kWait)] += 10 * kUs;
  r.gpu_bytes_out = {4000, 3000};
  r.gpu_bytes_in = {3000, 4000};
  r.gpu_memory = {100, 200, 50 + s, 30, 20, 10, 100, 200, 50, 30, 20, 10};
  r.gpu_memory_peak = {410 + s, 410};
  r.link_bytes = {4000, 3000};
  r.link_busy_ps = {4 * kUs, 3 * kUs};
  r.pair_bytes = {0, 4000, 3000, 0};
  return r;
}

inline void fill_sample_rest(RunData& run) {
  constexpr std::int64_t kUs = 1'000'000;
  // TTFT 0.1, 0.2, 0.3 ms; TPOT (end - first) / (n - 1) = 0.1 ms each; one still running.
  run.requests = {
      {10, 100 * kUs, 200 * kUs, 500 * kUs, 12, 4, RequestOutcome::kFinished},
      {11, 100 * kUs, 300 * kUs, 400 * kUs, 8, 2, RequestOutcome::kFinished},
      {12, 200 * kUs, 500 * kUs, 700 * kUs, 9, 3, RequestOutcome::kFinished},
      {13, 300 * kUs, 600 * kUs, -1, 9, 2, RequestOutcome::kRunning},
  };
  if (run.meta.detail >= Detail::kTokens) {
    run.tokens = {{10, 0, 1, 200 * kUs}, {11, 0, 2, 300 * kUs}, {10, 1, 2, 300 * kUs}};
  }
  run.events = {{500 * kUs, 5, EventKind::kDrop, 1, 0, 0, kNone, 1.0, "1 assignment dropped"},
                {600 * kUs, kNone, EventKind::kAlarm, kNone, kNone, kNone, 1, kNoData, "Überlast"}};
  run.critical_path = {{0, kNone, Phase::kHost, 0, StragglerReason::kNone, 0, 10 * kUs},
                       {0, 1, Phase::kExpert, 1, StragglerReason::kLoad, 10 * kUs, 15 * kUs}};
  run.notes = {"made by a test"};
}

inline RunData sample_run(std::uint32_t steps, Detail detail) {
  RunData run = make_run(sample_meta(detail), sample_inventory());
  for (std::uint32_t s = 0; s < steps; ++s) append_step(run, sample_step(run.inventory, s));
  if (steps > 5) fill_sample_rest(run);  // Its events name step 5.
  return run;
}

}  // namespace switchyard::run::testing
