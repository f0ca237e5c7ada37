// SPDX-License-Identifier: Apache-2.0
// Weights come to the GPUs: all at once before the run, or in the time that it takes (M35).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/model/accounting.hpp"
#include "sim/loop/step_loop.hpp"
#include "sim/memory/loading.hpp"

namespace switchyard::sim {

void Simulator::load_weights() {
  // Blocks that come often; of two pools those of the decode replicas.
  ledger_.use_allocator(s_.memory.allocator, s_.memory.page, expert_bytes(*pool_),
                        kv_by_expert() ? kv_layer_page() : kv_bytes_of(*pool_, s_.memory.kv_block));
  std::vector<LoadJob> jobs(gpus_);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    LoadJob& job = jobs[g];
    const Pool& pool = pool_of(g);
    const std::uint64_t per_expert = expert_bytes(pool);
    job.backbone = !hub() || g == pool.layout.hub ? backbone_bytes(pool, stage_of_gpu(g)) : 0;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      const std::uint64_t held = loads_ ? loads_->residency.resident(l, g)
                                 : stage_of_moe(l) != stage_of_gpu(g)
                                     ? 0
                                     : pool.map.row(l).count[pool.layout.rank_of(g)];
      job.layers.push_back(held * per_expert);
      job.experts += held;
    }
    ledger_.allocate(g, MemoryCategory::kRuntime, s_.memory.reserve, 0, run::kNone,
                     "memory.reserve");
    if (s_.memory.loading.on()) continue;
    if (job.backbone > 0) {
      ledger_.allocate(g, MemoryCategory::kWeights, job.backbone, 0, run::kNone, "weights");
    }
    ledger_.allocate(g, MemoryCategory::kExperts, job.experts * per_expert, 0, run::kNone,
                     fmt::format("{} expert weights", job.experts));
  }
  if (s_.memory.loading.on()) start_up(jobs);
}

/// Runs the loading of every GPU; the first step begins when the GPUs may serve.
void Simulator::start_up(std::vector<LoadJob>& jobs) {
  scenario::LoadingSpec spec = s_.memory.loading;
  const cluster::RouteTable& routes = exchange_.copies()->routes();
  const bool ssd = spec.from == scenario::LoadingSpec::From::kSsd;
  std::vector<std::uint64_t> bytes(gpus_, 0);
  // Seconds that each link needs for the bytes of all GPUs: SSD to host, host to GPU.
  std::vector<double> busy(routes.links(), 0);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    bytes[g] = std::accumulate(jobs[g].layers.begin(), jobs[g].layers.end(), jobs[g].backbone);
    const auto use = [&](std::uint32_t from, std::uint32_t to) {
      for (const std::uint32_t link : routes.links_of(from, to)) {
        busy[link] += static_cast<double>(bytes[g]) / routes.bandwidth[link];
      }
    };
    use(exchange_.host_of()[g], g);
    if (ssd) use(exchange_.ssd_of()[g], exchange_.host_of()[g]);
  }
  const auto rate = [&](std::uint32_t gpu, std::uint32_t from, std::uint32_t to) {
    double longest = 0, narrowest = 0;
    for (const std::uint32_t link : routes.links_of(from, to)) {
      longest = std::max(longest, busy[link]);
      narrowest =
          narrowest == 0 ? routes.bandwidth[link] : std::min(narrowest, routes.bandwidth[link]);
    }
    return bytes[gpu] > 0 ? static_cast<double>(bytes[gpu]) / longest : narrowest;
  };
  timelines_.clear();
  std::map<std::uint32_t, std::uint64_t> buffers;  // Of each host, for all its GPUs.
  std::int64_t begin = 0;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    LoadJob& job = jobs[g];
    const std::uint32_t host = exchange_.host_of()[g];
    job.copy = rate(g, host, g);
    job.copy_latency_ps = routes.latency(host, g).ps();
    if (ssd) {
      job.read = rate(g, exchange_.ssd_of()[g], host);
      job.read_latency_ps = routes.latency(exchange_.ssd_of()[g], host).ps();
    }
    if (spec.warm_up_tokens > 0) {
      // A batch of dummy tokens is a prompt to the kernels.
      const std::uint32_t rows[] = {spec.warm_up_tokens};
      cost_[g].use_decode(false);
      spec.warm_up_per_expert = cost_[g].experts(rows).time;
      warm_up_ps_ = std::max(warm_up_ps_, spec.warm_up_per_expert.ps());
    }
    const LoadTimeline t = load_timeline(spec, job);
    check_time(t.ready_ps);
    buffers[host] += t.host_buffers;
    // What is in memory when; parallel: workspace and table meet.
    if (job.backbone > 0) {
      ledger_.allocate(g, MemoryCategory::kWeights, job.backbone, t.backbone_ps, run::kNone,
                       "router and shared weights");
    }
    for (std::uint32_t l = 0; l < layers_; ++l) {
      ledger_.allocate(g, MemoryCategory::kExperts, job.layers[l], t.layer_ps[l], run::kNone,
                       fmt::format("experts of MoE layer {}", s_.model.moe_layers()[l]));
    }
    ledger_.allocate(g, MemoryCategory::kRuntime, spec.workspace, t.warm_up_begin_ps, run::kNone,
                     "workspace of the warm-up");
    if (!spec.parallel) {
      ledger_.release(g, MemoryCategory::kRuntime, spec.workspace, t.warm_up_end_ps, run::kNone,
                      "the warm-up ends");
    }
    ledger_.allocate(g, MemoryCategory::kRuntime, spec.table, t.table_begin_ps, run::kNone,
                     "routing table");
    if (spec.parallel) {
      ledger_.release(g, MemoryCategory::kRuntime, spec.workspace, t.warm_up_end_ps, run::kNone,
                      "the warm-up ends");
    }
    const auto state = [&](const char* what, std::int64_t from, std::int64_t to) {
      if (to <= from) return;
      run::Event e;
      e.time_ps = to;
      e.kind = run::EventKind::kPolicyAction;
      e.gpu = g;
      e.value = static_cast<double>(to - from) * 1e-12;
      e.text = fmt::format("loading: {} after {}; value: seconds", what,
                           format_time(SimTime::from_ps(to - from)));
      sink_.data().events.push_back(std::move(e));
    };
    state("router and shared weights there", 0, t.backbone_ps);
    state("experts there", t.backbone_ps, t.experts_ps);
    state("warm-up done", t.warm_up_begin_ps, t.warm_up_end_ps);
    state("table there", t.table_begin_ps, t.table_end_ps);
    begin = std::max(begin, spec.by_layer ? t.backbone_ps : t.ready_ps);
    timelines_.push_back(t);
  }
  for (const auto& [host, need] : buffers) {
    const scenario::Device& device = s_.hardware.devices[exchange_.device_of(host)];
    if (device.memory_bytes == 0 || need <= device.memory_bytes) continue;
    throw InputError(
        "memory.loading.shards",
        fmt::format("{} shards in flight to each GPU take {} of host buffers, {} has {}",
                    std::min(spec.in_flight, spec.shards), format_bytes(static_cast<double>(need)),
                    device.name, format_bytes(static_cast<double>(device.memory_bytes))),
        "use more shards or fewer in flight");
  }
  std::fill(ready_.begin(), ready_.end(), begin);
  for (run::Event& e : ledger_.take_events()) sink_.data().events.push_back(std::move(e));
}

/// start = "by_layer": the first step waits for the experts of its layer.
void Simulator::await_layer(std::uint32_t moe) {
  for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
    const std::int64_t wait = timelines_[g].layer_ps[moe] - ready_[g];
    if (wait <= 0) continue;
    ready_[g] += wait;
    extend(path_[g], {run::Phase::kWait, moe, g, StragglerReason::kExpertLoadFromHost}, wait);
    gpu_phase_[g][at(run::Phase::kWait)] += wait;
    straggler_ps_[2][g] += wait;
  }
}

void Simulator::note_start_up(SimulationResult& result) {
  const scenario::LoadingSpec& spec = s_.memory.loading;
  std::int64_t ready = 0, floor = 0;
  std::uint64_t buffers = 0;
  for (const LoadTimeline& t : timelines_) {
    ready = std::max(ready, t.ready_ps);
    floor = std::max(floor, t.stream_alone_ps);
    buffers = std::max(buffers, t.host_buffers);
  }
  std::vector<run::Metric>& metrics = sink_.data().metrics;
  metrics.push_back({"loading time", static_cast<double>(ready) * 1e-9, "ms"});
  metrics.push_back({"loading time by bandwidth alone", static_cast<double>(floor) * 1e-9, "ms"});
  metrics.push_back({"first token, cold", static_cast<double>(first_step_end_ps_) * 1e-9, "ms"});
  metrics.push_back({"first token, warm", static_cast<double>(last_step_ps_) * 1e-9, "ms"});
  result.notes.push_back(fmt::format(
      "loading: {} shards, {} in flight{}; cold: from the start to the end of the first step; "
      "warm: "
      "the last step's duration",
      spec.shards, std::min(spec.in_flight, spec.shards),
      buffers > 0
          ? fmt::format(", {} of host buffers a GPU", format_bytes(static_cast<double>(buffers)))
          : ""));
  if (spec.warm_up_tokens > 0) {
    metrics.push_back({"warm-up of an expert", static_cast<double>(warm_up_ps_) * 1e-9, "ms"});
    result.notes.push_back(
        fmt::format("loading: {} dummy tokens take {} in an expert by the cost model (the slowest "
                    "GPU type)",
                    spec.warm_up_tokens, format_time(SimTime::from_ps(warm_up_ps_))));
  }
}

}  // namespace switchyard::sim
