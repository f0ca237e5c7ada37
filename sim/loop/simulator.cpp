// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "engine/base/hash.hpp"
#include "engine/base/version.hpp"
#include "engine/model/accounting.hpp"
#include "engine/trace/experts_only.hpp"
#include "engine/trace/replay.hpp"
#include "sim/cost/economics.hpp"
#include "sim/loop/fixed_batch.hpp"
#include "sim/loop/step_loop.hpp"
#include "sim/network/from_scenario.hpp"
#include "sim/run/metrics.hpp"
#include "sim/scenario/place.hpp"
#include "sim/serving/kv_shards.hpp"
#include "sim/serving/serving.hpp"

namespace switchyard::sim {

namespace {

/// Whether the scenario states a policy of its own; without one a trace's recorded policy applies.
bool states_policy(const scenario::Scenario& s) {
  return std::any_of(s.values.begin(), s.values.end(), [](const scenario::ResolvedValue& v) {
    return v.key.starts_with("policy.") && v.origin != "default";
  });
}

run::Detail detail_of(scenario::Detail d) {
  switch (d) {
    case scenario::Detail::kSummary:
      return run::Detail::kSummary;
    case scenario::Detail::kSteps:
      return run::Detail::kSteps;
    case scenario::Detail::kLayers:
      return run::Detail::kLayers;
    case scenario::Detail::kTokens:
      return run::Detail::kTokens;
  }
  return run::Detail::kLayers;
}

}  // namespace

Simulator::Pool::Pool(const scenario::Scenario& s, const scenario::Parallel& of,
                      const RoutingTrace* trace)
    : layout(of),
      places(resolve_placement(s, of, trace)),
      map(static_cast<std::uint32_t>(s.hardware.gpu_count()), places, of),
      shard(shard_of(s.model, of)),
      traffic(s, map, nodes(s), of.placement_options.choice) {}

void Simulator::Pool::place(placement::Placement next) {
  places = std::move(next);
  map = ExpertMap(map.gpus, places, layout);
}

Simulator::Simulator(const scenario::Scenario& scenario, const RoutingTrace* trace, RunSink& sink)
    : s_(scenario),
      sink_(sink),
      gpus_(static_cast<std::uint32_t>(scenario.hardware.gpu_count())),
      layers_(static_cast<std::uint32_t>(scenario.model.num_moe_layers())),
      experts_(static_cast<std::uint32_t>(scenario.model.num_experts)),
      engine_gpus_(scenario::replica_gpus(scenario)),
      exchange_(scenario),
      ledger_(capacities(scenario), scenario.memory.watermark),
      policy_(scenario.policy) {
  trace_ = trace;
  windows_ = std::any_of(s_.model.layers.begin(), s_.model.layers.end(),
                         [](const model::LayerSpec& l) { return l.sliding_window > 0; });
  for (const scenario::Parallel* layout : s_.layouts()) {
    pools_.push_back(std::make_unique<Pool>(s_, *layout, trace));
    pools_.back()->first_copy = static_cast<std::uint32_t>(copies_);
    copies_ += layout->copies();
  }
  pool_ = pools_.back().get();
  refuse_unsupported();
  exchange_times_ = make_exchange_times(s_, exchange_);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    cost_.emplace_back(pool_of(g).shard, s_.dtype, s_.activations, s_.hardware.gpu_type(g),
                       s_.cost);
    cost_.back().use_vocabulary(s_.model.vocab_size);
  }
  if (layers_ > 0) {
    source_ = make_routing_source(s_, trace);
    if (trace != nullptr && !states_policy(s_)) {
      policy_ = trace->header.policy;
      policy_from_trace_ = true;
    }
    if (trace != nullptr) require_decidable(trace->header, policy_, "policy");
    make_deferral();
    refuse_groups_of_copies(policy_, "policy.groups");
    validate(policy_, experts_, static_cast<std::uint32_t>(s_.model.top_k), "policy");
    const std::vector<std::uint32_t> numbers = s_.model.moe_layers();
    weights_ = model::load_policy_weights(policy_, s_.policy_files, source_->gate(), numbers,
                                          s_.model.hidden_size);
    const RoutingPolicy plain;
    require_supply(policy_,
                   {.signals = true,
                    .all_logits = trace == nullptr || trace->header.candidates == experts_,
                    .hidden = false,
                    .weights = !weights_.layers.empty(),
                    .recorded = trace == nullptr ? &plain : &trace->header.policy},
                   "policy");
    slots_ = policy_slots(policy_, source_->gate());
    for (CostModel& c : cost_) c.use_slots(slots_);
    if (trace != nullptr && slots_ > trace->header.candidates) {
      throw InputError("policy",
                       fmt::format("a token may get {} experts, the trace holds {} candidates",
                                   slots_, trace->header.candidates),
                       "trace the model with the policy in force");
    }
    state_ = RoutingState(layers_ * copies_);
    const bool cycled =
        trace != nullptr && s_.workload.routing.layers == scenario::TraceLayers::kCycle;
    table_ = load_table(policy_, s_.policy_files, source_->gate(),
                        cycled ? trace->header.layer_count() : layers_);
    describe_requests(trace);
    if (trace != nullptr && has_token_vectors(*trace)) {
      cohesion_ = std::make_unique<StepCohesion>(*trace, experts_, s_.run.seed);
    }
  }
  check_sampling();
  make_expert_loads(trace);
  place_context_kv(trace);
  make_router_units();
  if (s_.faults.on()) {
    faults_ = std::make_unique<FaultClock>(s_);
    whole_ = pool_->places;
    check_fault_places();
    hang_until_.assign(replicas(), 0);
  }
  lost_.assign(gpus_, 0);
  out_.assign(gpus_, 0);
  leaked_.assign(gpus_, 0);
  loads_until_.assign(gpus_, 0);
  clock_.assign(gpus_, 1);
  relay_bytes_.assign(gpus_, 0);
  ready_.assign(gpus_, 0);
  path_.assign(gpus_, Path{});
  node_ = nodes(s_);
  copy_bytes_.assign(exchange_.links().size(), 0);
  for (const auto& pool : pools_) {
    if (!duplicates_.empty()) break;
    duplicates_ = placement::describe(placement::duplicates(pool->places));
  }
  if (layout().rebalance.signal != scenario::RebalanceSignal::kOff &&
      layout().rebalance.to == scenario::PlacementKind::kTopologyHot) {
    speed_ = rank_speeds(s_, layout());
  }
  check_weight_sources();
}

std::vector<std::uint32_t> Simulator::nodes(const scenario::Scenario& s) {
  std::vector<std::uint32_t> node;
  for (std::size_t g = 0; g < s.hardware.gpu_count(); ++g) node.push_back(s.hardware.gpu(g).node);
  return node;
}

std::vector<std::uint64_t> Simulator::capacities(const scenario::Scenario& s) {
  std::vector<std::uint64_t> bytes;
  for (std::size_t g = 0; g < s.hardware.gpu_count(); ++g) {
    bytes.push_back(s.hardware.gpu_type(g).memory_bytes);
  }
  return bytes;
}

void Simulator::refuse_unsupported() const {
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (s_.hardware.gpu_type(g).kernel_launch.ps() > kLongestSettingPs) {
      throw InputError("hardware.gpu_types", "kernel_launch is beyond 1 h");
    }
  }
  if (std::max(s_.host.per_step.ps(), s_.host.per_sequence.ps()) > kLongestSettingPs) {
    throw InputError("host", "per_step and per_sequence must be at most 1 h");
  }
}

/// Who reads memory levels, and whether they are what memory.sample_every says.
void Simulator::check_sampling() const {
  if (s_.memory.sample_every.ps() == 0) return;
  const auto reads = [](const RoutingPolicy& p) {
    return p.load_aware.u == LoadLevel::kTotal || p.load_aware.u == LoadLevel::kElastic;
  };
  const auto reads_at_start = [](const RoutingPolicy& p) {
    return p.soft_balance.needs_memory() || p.decode_rebalance.on();
  };
  bool any = reads(policy_), at_start = reads_at_start(policy_);
  for (const scenario::AlarmRule& r : s_.alarms) {
    if (r.action != scenario::AlarmAction::kPolicy) continue;
    any = any || reads(r.policy);
    at_start = at_start || reads_at_start(r.policy);
  }
  if (!any) {
    throw InputError("memory.sample_every",
                     "means nothing: no policy has load_aware.u = \"total\" or \"elastic\"",
                     "set policy.load_aware.u");
  }
  if (at_start) {
    throw InputError(
        "memory.sample_every",
        "unsupported with policy.soft_balance and policy.decode_rebalance: their levels "
        "are those at the start of a step",
        "use load_aware alone");
  }
}

void Simulator::refuse_groups_of_copies(const RoutingPolicy& policy,
                                        const std::string& where) const {
  const bool several = std::any_of(pools_.begin(), pools_.end(),
                                   [](const auto& pool) { return pool->map.most_copies > 1; });
  if (policy.groups.by == GroupBy::kPlacement && several) {
    throw InputError(where,
                     "by = \"placement\" with several copies of an expert is "
                     "unsupported",
                     "use a placement without redundant slots");
  }
}

run::Inventory Simulator::inventory() const {
  run::Inventory inv;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const scenario::GpuType& type = s_.hardware.gpu_type(g);
    run::GpuInfo info;
    info.name = s_.hardware.gpu(g).name;
    info.node = s_.hardware.gpu(g).node;
    info.engine = engine_of(g);
    info.memory_bytes = type.memory_bytes;
    info.hbm = type.hbm;
    // Arithmetic runs in the wider of the weights' and the activations' formats.
    info.peak = type.peak_for(cost_[g].compute_format(s_.dtype.experts));
    inv.gpus.push_back(std::move(info));
  }
  for (const LinkDescription& l : exchange_.links()) {
    inv.links.push_back({l.name, l.from, l.to, l.link_class, l.bandwidth});
  }
  inv.experts = experts_;
  inv.top_k = static_cast<std::uint32_t>(s_.model.top_k);
  inv.moe_layers = s_.model.moe_layers();
  // The groups of the layer's stage, of all pools.
  inv.replicas = 0;
  for (const auto& pool : pools_) {
    const scenario::Parallel& p = pool->layout;
    inv.replicas += p.copies() / p.pp * pool->map.most_copies;
  }
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      for (const auto& pool : pools_) {
        const scenario::Parallel& p = pool->layout;
        const ExpertMap& map = pool->map;
        const std::uint32_t first = p.first_gpu + stage_of_moe(l) * p.stage_gpus();
        const std::uint32_t copies = map.row(l).copies(e), groups = p.copies() / p.pp;
        for (std::uint32_t q = 0; q < groups; ++q) {
          for (std::uint32_t i = 0; i < copies; ++i) {
            inv.placement.push_back(map.gpu_of(l, e, first + q * p.copy_gpus(), i));
          }
        }
      }
      // Further copies that this expert has none of.
      inv.placement.resize((std::size_t{l} * experts_ + e + 1) * inv.replicas, run::kNone);
    }
  }
  return inv;
}

/// Everything but the routed experts, on one GPU.
std::uint64_t Simulator::backbone_bytes(const Pool& pool, std::uint32_t stage) const {
  return backbone_bytes(pool.shard, pool.layout.pp, stage);
}

std::uint64_t Simulator::backbone_bytes(const model::ModelConfig& shard, std::uint32_t pp,
                                        std::uint32_t stage) const {
  model::ParameterCount all =
      model::count_parameters(staged() ? stage_of(shard, pp, stage) : shard);
  if (staged()) {
    const bool last = stage + 1 == pp;
    all.head = last ? shard.vocab_size * shard.hidden_size : 0;
    if (stage > 0) all.embedding = 0;
  }
  if (router_units_) all.router = 0;
  // A preset with a stated backbone counts it in place of the parts.
  const std::uint64_t rest = all.embedding + all.attention + all.norms + all.shared_experts +
                             all.dense_ffn + all.head + all.stated_backbone;
  return model::dtype_bytes(s_.dtype.shared, rest) +
         model::dtype_bytes(s_.dtype.router, all.router);
}

/// parallel.router = "cpu", "card": what decides, and whether its weights fit there.
void Simulator::make_router_units() {
  const scenario::Parallel& p = s_.parallel;
  if (p.router == scenario::RouterPlacement::kGpu) return;
  const bool card = p.router == scenario::RouterPlacement::kCard;
  const scenario::Device& device = s_.hardware.devices[p.router_card];
  const std::uint64_t weights =
      model::dtype_bytes(s_.dtype.router, model::count_parameters(s_.model).router);
  std::function<SimTime(std::uint64_t)> gate;
  if (card) {
    const scenario::GpuType& type =
        s_.hardware.gpu_types[static_cast<std::size_t>(device.gpu_type)];
    if (weights > type.memory_bytes) {
      throw InputError("parallel.router",
                       fmt::format("{} of router weights do not fit the card's {}",
                                   format_bytes(static_cast<double>(weights)),
                                   format_bytes(static_cast<double>(type.memory_bytes))));
    }
    const CostModel cost(s_.model, s_.dtype, s_.activations, type, s_.cost);
    gate = [cost](std::uint64_t rows) { return cost.router_gate(rows).time; };
  } else {
    const GateShape shape = gate_shape(s_.model);
    const double experts = static_cast<double>(s_.model.num_experts);
    const auto bytes = [](model::DType t, std::uint64_t n) {
      return static_cast<double>(model::dtype_bytes(t, n));
    };
    const double read = shape.weights * bytes(s_.dtype.router, 1u << 20) / (1u << 20);
    const double row =
        (shape.input + 2 * shape.inner) * bytes(s_.activations, 1u << 20) / (1u << 20) +
        8 * experts;
    gate = [cpu = p.router_cpu, shape, read, row](std::uint64_t rows) {
      const auto r = static_cast<double>(rows);
      return cpu.per_batch +
             SimTime::from_seconds(std::max((read + r * row) / cpu.bandwidth.value,
                                            2 * r * shape.weights / cpu.flops.value));
    };
  }
  router_units_ = std::make_unique<RouterUnits>(s_, std::move(gate));
  if (exchange_.ends_move()) {
    std::vector<std::uint32_t> devices;
    for (const RouterUnits::Unit& u : router_units_->units()) devices.push_back(u.device);
    router_units_->time_by([this, devices](const RouterUnits::Trip& trip,
                                           std::span<const std::int64_t> ready,
                                           RouterUnits::Batch& batch) {
      exchange_.run_trip(trip.up, trip.down, trip.compute, devices, ready, batch.gpus,
                         batch.gpu_end_ps);
      batch.end_ps = *std::max_element(batch.gpu_end_ps.begin(), batch.gpu_end_ps.end());
    });
  }
  if (card) return;
  for (const RouterUnits::Unit& u : router_units_->units()) {
    const std::uint64_t room = s_.hardware.devices[u.device].memory_bytes;
    if (room > 0 && weights > room) {
      throw InputError("parallel.router",
                       fmt::format("{} of router weights do not fit the {} of {}",
                                   format_bytes(static_cast<double>(weights)),
                                   format_bytes(static_cast<double>(room)), u.name));
    }
  }
}

/// CPU (or card) use by the router, and what its way costs.
void Simulator::note_router(std::uint64_t steps, SimulationResult& result) {
  if (!router_units_) return;
  const bool card = s_.parallel.router == scenario::RouterPlacement::kCard;
  double most = 0;
  std::int64_t begin = 0, end = 0;
  for (const run::StepScalars& step : sink_.data().steps) {
    begin = end == 0 ? step.start_ps : std::min(begin, step.start_ps);
    end = std::max(end, step.end_ps);
  }
  const auto span = static_cast<double>(end - begin);
  std::string text;
  for (const RouterUnits::Unit& u : router_units_->units()) {
    const double use = span > 0 ? static_cast<double>(u.busy_ps) / span : 0;
    most = std::max(most, use);
    text += fmt::format("{}{} {:.3g} % ({} GPU{}, {} tokens x layers)", text.empty() ? "" : "; ",
                        u.name, 100 * use, u.gpus.size(), u.gpus.size() == 1 ? "" : "s", u.rows);
  }
  const double bytes = static_cast<double>(router_units_->bytes()) / static_cast<double>(steps);
  sink_.data().metrics.push_back({card ? "router card use" : "router CPU use", most, ""});
  sink_.data().metrics.push_back({"router transfers per step", bytes, "B"});
  result.notes.push_back(fmt::format("router on the {}: busy {}; {} a step to it and back",
                                     card ? "card" : "CPU", text, format_bytes(bytes)));
}

/// Share of the GPUs' time that waits: pipeline bubbles, stragglers.
void Simulator::note_stages(SimulationResult& result) {
  if (!staged()) return;
  const run::Totals& t = sink_.data().totals;
  double wait = 0, all = 0;
  for (std::size_t i = 0; i < t.gpu_phase_ps.size(); ++i) {
    all += static_cast<double>(t.gpu_phase_ps[i]);
    if (i % run::kPhases == at(run::Phase::kWait)) wait += static_cast<double>(t.gpu_phase_ps[i]);
  }
  // Homes with fewer sequences than micro-batches leave some empty.
  const std::uint64_t homes = std::max<std::uint64_t>(layout().dp, 1);
  const std::uint64_t used = s_.workload.serves()
                                 ? layout().micro_batches
                                 : std::min<std::uint64_t>(layout().micro_batches,
                                                           (s_.workload.batch + homes - 1) / homes);
  const double m = static_cast<double>(std::max<std::uint64_t>(used, 1)), pp = layout().pp;
  const double idle = all > 0 ? wait / all : run::kNoData;
  sink_.data().metrics.push_back({"pipeline idle share", idle, ""});
  result.notes.push_back(fmt::format(
      "pipeline: {} stages of {} GPUs, {} micro-batches; GPUs wait {:.3g} % of the time, equal "
      "stages alone would {:.3g} %",
      layout().pp, layout().stage_gpus(), used, 100 * idle, 100 * (pp - 1) / (m + pp - 1)));
}

std::uint64_t Simulator::expert_bytes(const Pool& pool) const {
  if (layers_ == 0 || experts_ == 0) return 0;
  return model::dtype_bytes(s_.dtype.experts, model::count_parameters(pool.shard).experts /
                                                  (std::uint64_t{layers_} * experts_));
}

/// Requests that arrive get the memory that the weights leave.
void Simulator::make_batch() {
  if (!s_.workload.serves()) {
    batch_ = make_fixed_batch(s_);
    return;
  }
  ServingMachine machine;
  machine.ready_ps = *std::max_element(ready_.begin(), ready_.end());
  // A sequence is at home on the same GPUs of every stage: the scheduler sees those of the first
  // one, with the least room and the largest pages of all stages.
  machine.gpus = this->homes();
  const std::uint32_t homes = machine.gpus;
  for (const scenario::GpuRange& of : engine_gpus_) {
    const std::uint32_t last = staged() ? homes : of.beyond;
    machine.replicas.push_back({of.first, last - of.first, layout_of(of.first).tp});
  }
  machine.kv_capacity = kv_rooms();
  const std::uint64_t kv = s_.workload.serving.batching.kv;
  for (std::uint32_t g = 0; g < gpus_ && kv > 0; ++g) {
    const std::uint64_t all = ledger_.capacity(g), free = all - std::min(first_used_[g], all);
    if (kv <= free) continue;
    throw InputError(
        "workload.batching.kv",
        fmt::format("{} for KV pages; {} of the {} of {} are left beside weights and "
                    "memory.reserve",
                    format_bytes(static_cast<double>(kv)), format_bytes(static_cast<double>(free)),
                    format_bytes(static_cast<double>(all)), s_.hardware.gpu(g).name),
        "state less, or use workload.batching.memory_share");
  }
  if (spread_kv() || kv_by_expert()) {
    machine.kv_round = kv_round();
    machine.kv_on = [this](std::uint32_t id, std::uint32_t gpu, std::uint32_t home,
                           std::uint64_t had, std::uint64_t tokens) {
      std::uint64_t most = 0;
      for (std::uint32_t g = gpu; g < gpus_; g += this->homes()) {
        most = std::max(most, kv_most_on(id, g, home, had, tokens));
      }
      return most;
    };
    machine.kv_moves = [this](std::uint32_t id, std::uint32_t from, std::uint32_t to,
                              std::uint64_t tokens) { return kv_moves(id, from, to, tokens); };
  }
  const auto bytes_of = [this](const Pool& pool, std::uint64_t tokens) {
    const std::size_t layers = s_.model.layers.size();
    const std::uint32_t pp = pool.layout.pp;
    std::uint64_t most = 0;
    for (std::uint32_t stage = 0; stage < pp; ++stage) {
      // by_token: the home has the first of what remains after whole rounds.
      if (spread_kv()) {
        most = std::max(most, kv_bytes_on(stage * this->homes(), 0, tokens));
        continue;
      }
      most = std::max(most, kv_bytes_of(pool, tokens, stage_begin(layers, pp, stage),
                                        stage_begin(layers, pp, stage + 1)));
    }
    return most;
  };
  machine.kv_bytes = [bytes_of, pool = pools_.back().get()](std::uint64_t tokens) {
    return bytes_of(*pool, tokens);
  };
  if (pools_.size() > 1) {
    machine.prefill_kv_bytes = [bytes_of, pool = pools_.front().get()](std::uint64_t tokens) {
      return bytes_of(*pool, tokens);
    };
    const std::uint32_t there = s_.prefill->tp, here = s_.parallel.tp;
    const auto heads = static_cast<std::uint32_t>(
        s_.model.attention == model::AttentionKind::kMla ? 1 : s_.model.num_kv_heads);
    if (there != here) {
      machine.kv_shards = [there, here, heads](std::uint32_t from, std::uint32_t to,
                                               std::uint64_t bytes) {
        return kv_shards({from, there}, {to, here}, heads, bytes);
      };
    }
  }
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    peak_other_.push_back(ledger_.live(g) - ledger_.live(g, MemoryCategory::kKv));
    if (s_.memory.watermark_action == scenario::WatermarkAction::kRecord) continue;
    const auto mark =
        static_cast<std::uint64_t>(s_.memory.watermark * static_cast<double>(ledger_.capacity(g)));
    if (g < homes) {
      machine.watermark.push_back(mark);
    } else {
      machine.watermark[g % homes] = std::min(machine.watermark[g % homes], mark);
    }
  }
  machine.other_bytes = [this, homes](std::uint32_t gpu) {
    std::uint64_t most = 0;
    for (std::uint32_t g = gpu; g < gpus_; g += homes) most = std::max(most, peak_other_[g]);
    return most;
  };
  if (exchange_.ends_move() && replicas() > 1) {
    machine.pages.step_end = [this](std::uint32_t engine) { return held_end(engine); };
  }
  if (s_.workload.serving.front_end.prefill_replicas > 0) {
    transfer_routes_ = network::cluster_of(s_).routes();
    if (exchange_.carries_pages()) {
      TransferQueue& queue = *exchange_.copies();
      machine.pages.send = [this](std::uint32_t from, std::uint32_t to, std::uint64_t bytes,
                                  std::int64_t now) {
        return exchange_.send_pages(from, to, bytes, now);
      };
      machine.pages.arrival = [&queue](std::uint64_t id) { return queue.end(id); };
      machine.pages.forget = [&queue](std::uint64_t id) { queue.forget_copy(id); };
    } else {
      machine.routes = transfer_routes_;
    }
  }
  batch_ = make_serving(s_, std::move(machine));
}

/// Bytes that weights and what else is there leave for KV pages on each GPU of a stage; of several
/// stages the least.
std::vector<std::uint64_t> Simulator::kv_rooms() {
  const scenario::Batching& b = s_.workload.serving.batching;
  const std::uint32_t homes = this->homes();
  std::vector<std::uint64_t> rooms;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const auto share =
        static_cast<std::uint64_t>(b.memory_share * static_cast<double>(ledger_.capacity(g)));
    // Slots of an expert cache that are still empty are not free for the KV cache. What leaked is
    // for the watermark and the watchdog to see.
    std::uint64_t used = ledger_.live(g) - ledger_.live(g, MemoryCategory::kKv) - leaked_[g] +
                         (loads_ ? loads_->residency.room(g) * loads_->bytes_each : 0);
    if (!arriving_.empty()) used += arriving_[g] - std::min(arriving_[g] + used, leaving_[g]);
    if (first_used_.size() == g) first_used_.push_back(used);
    std::uint64_t room = share > used ? share - used : 0;
    if (b.kv > 0) {
      // A stated room is the user's (make_batch() checked it); what has come since then takes from
      // it what it does not find beside it.
      const std::uint64_t free = ledger_.capacity(g) - std::min(b.kv, ledger_.capacity(g));
      const std::uint64_t beside = std::max(first_used_[g], free);
      room = b.kv - std::min(b.kv, used > beside ? used - beside : 0);
    }
    if (g < homes) {
      rooms.push_back(room);
    } else {
      rooms[g % homes] = std::min(rooms[g % homes], room);
    }
  }
  return rooms;
}

void Simulator::describe_requests(const RoutingTrace* trace) {
  const RoutingTable* table = table_ ? &*table_ : nullptr;
  if (s_.workload.routing.source == scenario::RoutingSource::kTrace) {
    trace_requests_ = trace_requests(*trace, policy_, table, s_.workload.routing.trace_path);
    return;
  }
  const auto refuse = [](bool on, std::string_view key, std::string_view what) {
    if (on) {
      throw InputError("policy",
                       fmt::format("policy.{} needs {}: synthetic requests have none", key, what),
                       "give a trace");
    }
  };
  refuse(policy_.table.on(), "table.file", "prompts");
  refuse(policy_.soft.on() && !policy_.soft.all_requests, "soft.keywords", "prompts");
  refuse(policy_.pinned.requests == PinnedRequests::kNamed, "pinned.requests = named",
         "requests that name an expert");
}

void Simulator::describe_new() {
  if (!source_) return;
  const bool plain = !policy_.soft.on() && !policy_.pinned.on();
  for (const PlannedSequence& q : plan_.sequences) {
    for (; described_ <= q.id; ++described_) {
      if (!trace_requests_.empty()) {
        state_.request(described_) = trace_requests_[*source_->trace_sequence(described_)];
      } else if (s_.workload.routing.source == scenario::RoutingSource::kSynthetic && !plain) {
        state_.request(described_) = request_info(policy_, nullptr, {}, "", kNoExpert);
      }
    }
  }
}

bool Simulator::uses_router(std::uint32_t sequence) const {
  if (policy_.set == SetRule::kRoundRobin) {
    return false;
  }
  const std::vector<RequestInfo>& requests = state_.requests();
  return sequence >= requests.size() || (requests[sequence].expert == kNoExpert &&
                                         requests[sequence].table_entry == kNoTableEntry);
}

void Simulator::begin_step(std::uint64_t step, const run::Inventory& inv) {
  record_ = run::make_step(inv);
  for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
    ready_[g] = std::max(ready_[g], plan_.earliest_ps);
  }
  if (exchange_.ends_move()) {
    exchange_.copies()->advance(plan_.earliest_ps);
    exchange_.begin_step(plan_.first_gpu, plan_.last_gpu);
  }
  if (router_units_) router_units_->forget_before(plan_.earliest_ps);
  if (loads_ && loads_->on_host) {
    for (HostExperts::Unit& u : loads_->on_host->units) {
      u.calendar.forget_before(plan_.earliest_ps);
    }
  }
  record_.scalars.start_ps = ready_[plan_.first_gpu];
  record_.expert_time_ps.assign(std::size_t{layers_} * experts_, 0);
  record_.scalars.engine = plan_.engine;
  record_.scalars.kind = plan_.kind;
  record_.scalars.warmup = plan_.warmup;
  path_.assign(gpus_, Path{});
  gpu_phase_.assign(gpus_, PhaseTimes{});
  for (auto& per_gpu : straggler_ps_) per_gpu.assign(gpus_, 0);
  step_ = step;
  pieces_.clear();
  at_layer_ = run::kNone;
  ledger_.reset_high_water();
  sample_memory();
}

/// The host's part of the composed step.
void Simulator::begin_hosts() {
  for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
    OpCost host;
    if (tokens_of_[g] > 0 || !hub() || (defers_ && planned_of(g) > 0)) {
      // Every stage's hosts know all sequences.
      const std::size_t sequences = defers_ ? planned_of(g) : sequences_[g % homes()].size();
      host.time =
          SimTime::from_ps(plan_.host_ps + s_.host.per_step.ps() +
                           s_.host.per_sequence.ps() * static_cast<std::int64_t>(sequences));
      host += cost_[g].step_launch();
      if (faults_ != nullptr) host.time += SimTime::from_ps(faults_->stall_ps(g));
    }
    work(g, run::Phase::kHost, host);
  }
}

/// Sequences of the plan at home on a GPU or its group.
std::size_t Simulator::planned_of(std::uint32_t gpu) const {
  return static_cast<std::size_t>(
      std::count_if(plan_.sequences.begin(), plan_.sequences.end(),
                    [&](const PlannedSequence& q) { return q.gpu == group_first(gpu); }));
}

/// [G] Nothing of a layer but its window decides what its attention costs.
const std::vector<OpCost>& Simulator::attention_costs(std::size_t layer) {
  const std::uint64_t window = s_.model.layers[layer].sliding_window;
  for (const auto& [of, costs] : attention_costs_) {
    if (of == window) return costs;
  }
  std::vector<OpCost>& costs = attention_costs_.emplace_back(window, 0).second;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    costs.push_back(cost_[g].attention(layer, sequences_[g], shares()));
  }
  return costs;
}

void Simulator::attention(std::size_t layer, std::uint32_t moe) {
  const bool is_moe = s_.model.is_moe(layer);
  const std::uint32_t of = is_moe ? moe : run::kNone;
  at_layer_ = of;
  std::int64_t slowest = 0;
  begin_merge();
  const std::vector<OpCost>* const known =
      same_rows_ && !merge_on_ ? &attention_costs(layer) : nullptr;
  if (kv_travels()) move_kv(layer, of);
  if (layout().sequence_parallel) gather_hidden(of);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const OpCost c =
        known != nullptr
            ? (*known)[g]
            : cost_[g].attention(layer, merge_on_ ? merge_home_[g] : sequences_[g], shares());
    transient(
        g,
        tokens_of_[g] * (3 * s_.model.hidden_size + shard().num_heads * s_.model.head_dim * 2 +
                         model::kv_values_per_token_layer(shard())),
        s_.activations, "attention activations");
    slowest = std::max(slowest, work(g, run::Phase::kAttention, c));
  }
  if (merge_on_) finish_merge(of, slowest);
  if (sharded()) reduce_hidden(of);
  if (is_moe) record_.layers[moe].attention_ps += slowest;
}

void Simulator::dense_layer(std::size_t layer) {
  const bool ffn = s_.model.layers[layer].ffn == model::FfnKind::kDense;
  at_layer_ = run::kNone;
  if (ffn && layout().sequence_parallel) gather_hidden(run::kNone);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (ffn) {
      transient(g, tokens_of_[g] * (2 * s_.model.hidden_size + 2 * shard().dense_intermediate),
                s_.activations, "dense FFN activations");
    }
    work(g, run::Phase::kDense, cost_[g].dense(layer, tokens_of_[g], shares()));
  }
  if (ffn && sharded()) reduce_hidden(run::kNone);
}

/// Layers of the composed part, one after the other.
void Simulator::run_layers(std::size_t first, std::size_t beyond) {
  std::uint32_t moe = 0;
  for (std::size_t layer = 0; layer < first; ++layer) moe += s_.model.is_moe(layer) ? 1 : 0;
  attention_costs_.clear();
  same_rows_ = true;
  for (std::size_t layer = first; layer < beyond; ++layer) {
    attention(layer, moe);
    if (s_.model.is_moe(layer)) {
      moe_layer(step_, moe);
      add_entropy();
      if (defers_) end_deferral(moe);
      ++moe;
    } else {
      dense_layer(layer);
    }
  }
  same_rows_ = false;
  at_layer_ = run::kNone;
}

/// Mean over the layers and the tokens of all micro-batches.
void Simulator::add_entropy() {
  if (defers_ && tokens_.size() == 0) {  // All wait.
    ++empty_layers_;
    return;
  }
  const double share = parts_ == 1 ? 1
                                   : static_cast<double>(tokens_.size()) /
                                         static_cast<double>(record_.scalars.tokens);
  entropy_ += source_->mean_entropy() * share;
}

void Simulator::head() {
  if (layout().sequence_parallel) gather_samples();
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    // A sequence samples from its last token only, a chunk that others follow not at all.
    transient(g, sampled_of_[g] * s_.model.vocab_size, model::DType::kF32, "logits");
    work(g, run::Phase::kHead, cost_[g].head(sampled_of_[g]));
  }
  if (!layout().vocab_parallel) return;
  gather_logits();
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    work(g, run::Phase::kHead, cost_[g].sampling(sampled_of_[g]));
  }
}

/// The work of the composed step: host, every layer, head.
void Simulator::compute_layers() {
  entropy_ = 0;
  empty_layers_ = 0;
  if (cohesion_) cohesion_->begin_step();
  parts_ = layout().micro_batches * (s_.network.two_batch ? 2 : 1);
  layer_begun_.assign(layers_, 0);
  layer_straggler_ps_.assign(layers_, 0);
  begin_hosts();
  if (staged()) {
    pipeline();
  } else {
    embed();
    wire_.assign(gpus_, 0);
    wire_in_.assign(gpus_, 0);
    wire_path_.assign(gpus_, Path{});
    wire_in_path_.assign(gpus_, Path{});
    if (!s_.network.two_batch || !two_batch(0, 1, 0, 0, s_.model.layers.size())) {
      parts_ = 1;
      run_layers(0, s_.model.layers.size());
    }
    head();
  }
  if (layers_ > empty_layers_) {
    record_.scalars.gate_entropy = entropy_ / (layers_ - empty_layers_);
  }
  if (cohesion_) cohesion_->finish(step_, record_.scalars);
  note_deferral();
}

void Simulator::embed() {
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (!of_engine(g)) continue;
    // Of a divided vocabulary every GPU looks for all tokens of its group.
    const std::uint32_t n = layout().vocab_parallel ? 1 : shares();
    work(g, run::Phase::kHead, cost_[g].embedding((tokens_of_[g] + n - 1) / n));
  }
  if (!layout().vocab_parallel) return;
  const std::uint64_t before = record_.scalars.bytes_sent;
  reduce_hidden(run::kNone);
  embedding_bytes_ += record_.scalars.bytes_sent - before;
}

/// Which tables of the calibration gave times, and what the others are of.
void Simulator::note_calibration(SimulationResult& result) const {
  const scenario::Calibration& c = *s_.cost.calibration;
  result.notes.push_back(
      fmt::format("calibration {}{}{}: {} times of operations are measured ones, {} of them "
                  "EXTRAPOLATED by the roofline; all other operations are the roofline's",
                  c.device, s_.cost.library.empty() ? "" : ", ", s_.cost.library, measured_ops_,
                  extrapolated_ops_));
  std::set<const scenario::OpTable*> used;
  for (const CostModel& m : cost_) m.add_used(used);
  std::string timed, left;
  std::uint64_t all = 0, beyond = 0;
  for (std::size_t k = 0; exchange_times_ && k < ExchangeTimes::kKinds; ++k) {
    const auto kind = static_cast<ExchangeTimes::Kind>(k);
    if (!exchange_times_->wanted(kind)) continue;
    if (!exchange_times_->has(kind)) {
      left += fmt::format("{}{} ({})", left.empty() ? "" : "; ", ExchangeTimes::kNames[k],
                          exchange_times_->why_not(kind));
      continue;
    }
    const scenario::OpTable& table = exchange_times_->table(kind);
    if (timed_exchanges_[k].all > 0) used.insert(&table);
    all += timed_exchanges_[k].all;
    beyond += timed_exchanges_[k].extrapolated;
    timed += fmt::format("{}{} by {} {}", timed.empty() ? "" : ", ", ExchangeTimes::kNames[k],
                         table.library, table.variant);
    if (table.shape.back() > 0 && table.kind != scenario::OpKind::kCollective) {
      timed += fmt::format(" of {} SMs", table.shape.back());
    }
  }
  if (!timed.empty()) {
    result.notes.push_back(fmt::format(
        "calibration {}: {} exchanges are measured ones, {} of them EXTRAPOLATED: {}{}{}", c.device,
        all, beyond, timed, left.empty() ? "" : "; the network model times ", left));
  }
  if (const scenario::OpTable* host = s_.host.measured; host != nullptr) used.insert(host);
  std::array<std::array<std::size_t, 2>, scenario::kOpKinds> count{};  // Used, all.
  for (const scenario::OpTable& t : c.tables) {
    auto& n = count[static_cast<std::size_t>(t.kind)];
    n[0] += used.contains(&t) ? 1 : 0;
    ++n[1];
  }
  std::string kinds;
  bool exchanges = false;
  for (std::size_t k = 0; k < scenario::kOpKinds; ++k) {
    if (count[k][1] == 0) continue;
    kinds += fmt::format("{}{} {} of {}", kinds.empty() ? "" : ", ", scenario::kOpKindNames[k],
                         count[k][0], count[k][1]);
    exchanges = exchanges || (k >= static_cast<std::size_t>(scenario::OpKind::kCollective) &&
                              k != static_cast<std::size_t>(scenario::OpKind::kHost));
  }
  result.notes.push_back(fmt::format(
      "calibration {}: times came from {} of its {} tables: {}{}", c.device, used.size(),
      c.tables.size(), kinds,
      exchanges && !exchange_times_
          ? "; the network model times exchanges (cost.exchange = \"calibrated\": tables that fit)"
          : ""));
}

/// Settings that change nothing here, though a sweep may well go through them.
void Simulator::note_idle_settings(bool one_server, SimulationResult& result) const {
  if (layers_ == 0) return;
  if (s_.network.dispatch == scenario::DispatchKind::kPerNode && one_server) {
    result.notes.emplace_back(
        "network.dispatch = \"per_node\" sends one copy to each server, and there is one: the "
        "exchanges are those of \"per_rank\"");
  }
  scenario::Payload bare = s_.network.payload;
  bare.scale_block = 0;
  const std::uint64_t hidden = s_.model.hidden_size;
  if (scenario::origin_of(s_, "network.payload.scale_block") != "network.payload.scale_block" &&
      s_.network.payload.scale_block > 0 &&
      bare.dispatch_bytes(hidden) == s_.network.payload.dispatch_bytes(hidden) &&
      bare.combine_bytes(hidden) == s_.network.payload.combine_bytes(hidden)) {
    result.notes.emplace_back(
        "network.payload.scale_block: only formats of 8 bits and less have scales, and neither "
        "payload is of one");
  }
  if (s_.network.chunk_by != scenario::ChunkBy::kExperts) return;
  std::uint32_t most = 0;
  for (const auto& pool : pools_) {
    for (std::uint32_t l = 0; l < layers_; ++l) {
      const std::vector<std::uint32_t>& count = pool->map.row(l).count;
      most = std::max(most, *std::max_element(count.begin(), count.end()));
    }
  }
  if (most > 1) return;
  result.notes.emplace_back(
      "network.chunk_by = \"experts\": no GPU has more than one expert of a layer, so one chunk "
      "has all rows");
}

/// What a reader of the run must know beside its numbers.
void Simulator::note_result(const run::Inventory& inv, std::uint64_t steps,
                            SimulationResult& result) const {
  if (source_ && source_->reused()) {
    result.notes.push_back("trace rows were used more than once: the run is longer than the trace");
  }
  // Of the longest sequence, in tokens.
  std::uint64_t longest = 0;
  if (s_.workload.serves()) {
    for (const run::RequestRecord& r : sink_.data().requests) {
      longest = std::max(longest, std::uint64_t{r.prompt_tokens} + r.output_tokens);
    }
  } else {
    const std::uint64_t each =
        s_.workload.kind == scenario::WorkloadKind::kDecode ? 1 : s_.workload.tokens;
    longest = s_.workload.context + steps * each;
  }
  if (const std::uint64_t most = s_.model.max_position_embeddings; most > 0 && longest > most) {
    result.notes.push_back(
        fmt::format("the longest sequence has {} tokens, {} is made for {} "
                    "(max_position_embeddings): costs are right, answers would not be",
                    longest, s_.model.name, most));
  }
  const bool one_server = std::all_of(inv.gpus.begin(), inv.gpus.end(), [&](const run::GpuInfo& g) {
    return g.node == inv.gpus.front().node;
  });
  if (s_.network.algorithm == scenario::ExchangeAlgorithm::kHierarchical && one_server) {
    result.notes.emplace_back(
        "network.algorithm = \"hierarchical\" goes by servers, and there is one: the exchanges are "
        "the direct ones; where GPUs of a server form groups on different fabrics, say so with "
        "`node` in the hardware file");
  }
  note_idle_settings(one_server, result);
  std::int64_t last = 0;  // The latest start of a step: a fault begins with one.
  for (const run::StepScalars& x : sink_.data().steps) last = std::max(last, x.start_ps);
  for (const scenario::FaultRule& r : s_.faults.events) {
    if (r.step ? *r.step < steps : !r.time || r.time->ps() <= last) continue;
    result.notes.push_back(
        fmt::format("{}: {} never begins: the run has {} steps, the last of which begins at {}",
                    r.where, scenario::kFaultKindNames[static_cast<std::size_t>(r.kind)], steps,
                    format_time(SimTime::from_ps(last))));
  }
  if (s_.cost.calibration) note_calibration(result);
  if (policy_from_trace_) result.notes.push_back("policy: the one recorded in the trace");
  if (!duplicates_.empty()) result.notes.push_back(duplicates_);
  for (const auto& pool : pools_) {
    if (pool->layout.expert_tp == 1) continue;
    result.notes.push_back(fmt::format(
        "experts{}: cut into columns over {} neighbouring GPUs each; the placement and the "
        "assignments of GPUs name the first of them",
        pools_.size() == 1  ? ""
        : pool == pools_[0] ? " of prefill replicas"
                            : " of decode replicas",
        pool->layout.expert_tp));
  }
  if (moves_ > 0) {
    result.notes.push_back(
        fmt::format("the placement changed {} time{} (events); the run's placement table is the "
                    "first one",
                    moves_, moves_ == 1 ? "" : "s"));
  }
  if (truncated_ > 0) {
    result.notes.push_back(
        fmt::format("truncated: {} slots wanted, or may have wanted, an expert outside the trace's "
                    "candidates",
                    truncated_));
  }
  if (linear_fallbacks_ > 0) {
    result.notes.push_back(
        fmt::format("linear scores: {} tokens x layers had a logit <= 0 and became a softmax",
                    linear_fallbacks_));
  }
  const auto did = [&](std::uint64_t n, std::string_view what) {
    if (n > 0) {
      result.notes.push_back(fmt::format("{}: {}", what, n));
    }
  };
  did(sets_.balanced, "soft balance, slots moved off long queues");
  did(sets_.unbalanced, "soft balance, slots on long queues with nowhere to go");
  did(sets_.third, "soft balance, tokens x layers with a third expert");
  did(sets_.rebalanced, "decode rebalance, slots moved off hot GPUs");
  did(sets_.table_tokens, "routing table, tokens x layers decided by it");
  did(sets_.soft_tokens, "soft routing, tokens x layers");
  did(sets_.pinned_tokens, "pinned, tokens x layers");
  std::uint64_t waiting = 0;
  for (const KvTransfer& t : moving_) waiting += t.bytes;
  if (waiting > 0) {
    result.notes.push_back(fmt::format(
        "KV pages: {} travelled while no step was computed; they count on no step's links",
        format_bytes(static_cast<double>(waiting))));
  }
  if (extrapolated_ > 0) {
    result.notes.push_back(
        fmt::format("EXTRAPOLATED: {} of {} exchanges lie outside the table of measured bandwidths",
                    extrapolated_, exchanges_));
  }
  if (pack_ps_ > 0) {
    result.notes.push_back(fmt::format(
        "payload: {} on the wire; packing and unpacking took {} of GPU time in all, {} a step",
        s_.network.payload.wire == scenario::WireFormat::kInt4 ? "INT4" : "two INT2 halves",
        format_time(SimTime::from_ps(pack_ps_)),
        format_time(SimTime::from_ps(pack_ps_ / static_cast<std::int64_t>(steps)))));
  }
  if (ledger_.any_out_of_memory()) {
    std::string which;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (ledger_.out_of_memory(g)) which += (which.empty() ? "" : ", ") + inv.gpus[g].name;
    }
    result.notes.push_back(
        fmt::format("OUT OF MEMORY on {}: the times are of a machine that does "
                    "not exist",
                    which));
  }
}

/// Fragmentation: what the allocator had reserved at most and was not in use then.
void Simulator::note_allocator(SimulationResult& result) {
  constexpr std::array<std::string_view, 4> kNames{"pool", "caching", "paged", "bump"};
  std::uint32_t worst = 0;
  for (std::uint32_t g = 1; g < gpus_; ++g) {
    if (ledger_.most_reserved(g).reserved > ledger_.most_reserved(worst).reserved) worst = g;
  }
  const MemoryLedger::Reserved most = ledger_.most_reserved(worst);
  const auto reserved = static_cast<double>(most.reserved);
  const double idle = most.reserved == 0 ? 0 : 1 - static_cast<double>(most.in_use) / reserved;
  sink_.data().metrics.push_back({"memory reserved", reserved * 1e-9, "GB"});
  sink_.data().metrics.push_back({"memory reserved and not in use", idle, ""});
  result.notes.push_back(
      fmt::format("allocator {}: at most {} reserved ({}), {:.3g} % of it not in use then",
                  kNames[static_cast<std::size_t>(s_.memory.allocator)], format_bytes(reserved),
                  s_.hardware.gpu(worst).name, 100 * idle));
}

/// All that can be refused before the first step.
void Simulator::prepare(const run::Inventory& inventory) {
  load_weights();
  make_batch();
  make_board(inventory);
}

SimulationResult Simulator::run(const std::string& trace_hash, const ProgressCallback& progress,
                                const SimulationExtras& extras) {
  SimulationResult result;
  result.notes = extras.notes;
  result.policy = policy_to_text(policy_);
  begin_signals(extras.signals);
  if (extras.memory) ledger_.watch(extras.memory);
  run::RunMeta meta;
  meta.product_version = version();
  meta.scenario_name = std::filesystem::path(s_.path).stem().string();
  meta.scenario_text = scenario::canonical_text(s_);
  meta.scenario_hash = hex64(hash64(std::string_view(meta.scenario_text)));
  meta.model_name = s_.model.name;
  meta.hardware_name = s_.hardware.name;
  meta.hardware_hash = hex64(hash64(std::string_view(s_.hardware.canonical)));
  meta.trace_hash = trace_hash;
  meta.routing_source = source_ ? source_->description() : "routing: none (dense model)";
  const bool from_trace = s_.workload.routing.source == scenario::RoutingSource::kTrace;
  meta.policy_way = !source_ ? "none" : from_trace ? "replay" : "synthetic";
  if (!extras.policy_way.empty()) meta.policy_way = extras.policy_way;
  meta.routing_source += extras.routing_note;
  if (policy_from_trace_) meta.routing_source += ", policy of the trace";
  constexpr std::array<std::string_view, 4> kModels{"auto", "flow", "coflow", "bottleneck"};
  meta.network_model = kModels[static_cast<std::size_t>(s_.network.model)];
  meta.seed = s_.run.seed;
  meta.detail = detail_of(s_.run.detail);
  const run::Inventory inv = inventory();
  sink_.begin(meta, inv);
  prepare(inv);
  sink_.data().serving = s_.workload.serves();
  sink_.data().cohesion = cohesion_ != nullptr;

  reset_healing();
  bool due = false;
  std::uint64_t step = 0;
  std::int64_t end = 0;
  for (;; ++step) {
    const bool heals = faults_ != nullptr || board_ != nullptr;
    bool more = false;
    do {
      more = batch_->await(step, plan_);
      if (!more) break;
      pool_ = &pool_of(plan_.first_gpu);
      if (staged()) plan_.last_gpu = gpus_;  // The scheduler plans for the first stage.
      settle_step(plan_.engine);
      // Nothing begins earlier any more: steps of replicas that idle are over, too.
      for (std::uint32_t e = 0; exchange_.ends_move() && e < replicas(); ++e) {
        if (held_end(e) <= plan_.earliest_ps) settle_step(e);
      }
      if (!heals) continue;
      // Faults after the last step are none; those of an idle time have begun when the step does.
      for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
        ready_[g] = std::max(ready_[g], plan_.earliest_ps);
      }
      if (faults_ != nullptr) begin_faults(step);
      if (board_ != nullptr) take_actions(step);
      note_healing();
    } while (!batch_->plan(step, plan_));
    if (!more) break;
    if (staged()) plan_.last_gpu = gpus_;
    begin_step(step, inv);
    describe_new();
    begin_deferral();
    compose_step();
    compose_reduce();
    grow_kv(step);
    if (heals) pay_faults(step);
    if (!plan_.swaps.empty()) swap_pages();
    if (due) rebalance(step);
    note_signals();
    compute_layers();
    end_step(step);
    const std::int64_t from = record_.scalars.start_ps;
    std::int64_t to = record_.scalars.end_ps;
    // Without replicas nobody else's traffic comes: its exchanges have met all that they meet.
    if (replicas() == 1 && exchange_.ends_move()) to = end_by(record_, plan_.first_gpu, clocks_);
    end_signals(to);
    if (faults_ != nullptr) end_faults(step);
    const bool held = exchange_.ends_move();
    if (board_ != nullptr && !held) watch(record_, step);
    if (heals) reset_healing();
    due = rebalance_due(to);
    end = std::max(end, to);
    if (held) hold_step();
    if (held && replicas() == 1) settle_step(plan_.engine);
    batch_->done(step, plan_, from, to, sink_.data());
    for (const std::uint32_t id : plan_.ended) state_.end_sequence(id);
    if (!held) sink_.append(record_);
    if (progress) progress(step + 1, std::max(step + 1, batch_->steps()), end);
  }

  while (!held_steps_.empty()) {
    const std::size_t before = held_steps_.size();
    settle_step(held_steps_.front().record.scalars.engine);
    SWITCHYARD_ASSERT(held_steps_.size() < before, "a step that stays held");
  }
  for (const run::StepScalars& x : sink_.data().steps) end = std::max(end, x.end_ps);
  std::vector<std::string> broken;
  batch_->finish(end, sink_.data(), result.notes, broken);
  if (faults_ != nullptr) note_faults(result);
  note_deferral(result);
  if (cohesion_) note_cohesion(sink_.data());
  if (board_ != nullptr) {
    sink_.data().metrics.push_back({"alarms", static_cast<double>(alarms_), ""});
  }
  for (std::string& text : broken) violation("serving", "run", text);
  // Everything is given back, so that the ledger must come out even.
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
      const auto category = static_cast<MemoryCategory>(c);
      ledger_.release(g, category, ledger_.live(g, category), ready_[g], run::kNone,
                      "the run ends");
    }
  }
  if (ledger_.has_allocator()) note_allocator(result);
  if (loads_) note_loads(result);
  if (loads_ && loads_->on_host) note_host_experts(result);
  if (!timelines_.empty()) note_start_up(result);
  sink_.data().critical_path = slowest_critical_;
  result.violations = violations_;
  if (const std::string uneven = ledger_.check(); !uneven.empty()) {
    result.violations.push_back({"memory", "run", uneven});
  }
  for (const run::Metric& m : extras.metrics) sink_.data().metrics.push_back(m);
  note_router(std::max<std::uint64_t>(step, 1), result);
  note_stages(result);
  if (std::any_of(pools_.begin(), pools_.end(),
                  [](const auto& pool) { return pool->layout.vocab_parallel; })) {
    note_vocabulary(std::max<std::uint64_t>(step, 1));
  }
  for (run::Metric& m : energy_metrics(s_, sink_.data())) {
    sink_.data().metrics.push_back(std::move(m));
  }
  for (const run::Metric& m : sink_.data().metrics) {
    const run::MetricDefinition* d = run::find_metric(m.name);
    SWITCHYARD_ASSERT(d != nullptr && d->unit == m.unit, "no definition of metric " + m.name);
  }
  for (run::Violation& v : sink_.finish()) result.violations.push_back(std::move(v));
  note_result(inv, std::max<std::uint64_t>(step, 1), result);
  return result;
}

namespace {

/// Whether the calibration answers every question of this scenario with one table.
void check_calibration(const scenario::Scenario& s) {
  if (!s.cost.calibration) return;
  const scenario::Workload& w = s.workload;
  for (const scenario::Parallel* p : s.layouts()) {
    const CostModel cost(shard_of(s.model, *p), s.dtype, s.activations, s.hardware.gpu_type(0),
                         s.cost);
    cost.ask_all(w.serves() || w.tokens == 1, w.serves() || w.tokens > 1);
  }
  if (s.cost.exchange == scenario::ExchangeCost::kModel) return;
  ExchangeTimer timer(s);
  static_cast<void>(make_exchange_times(s, timer));
}

}  // namespace

SimulationResult simulate(const scenario::Scenario& scenario, const RoutingTrace* trace,
                          const std::string& trace_hash, RunSink& sink,
                          const ProgressCallback& progress, const SimulationExtras& extras) {
  try {
    Simulator simulator(scenario, trace, sink);
    return simulator.run(trace_hash, progress, extras);
  } catch (const InputError& e) {
    throw scenario::with_place(scenario, e);
  }
}

void check_scenario(const scenario::Scenario& scenario, const RoutingTrace* trace) {
  try {
    check_groups(scenario);
    check_calibration(scenario);
    const bool routed = scenario.model.num_moe_layers() > 0;
    const bool replays =
        routed && scenario.workload.routing.source == scenario::RoutingSource::kTrace;
    if (replays && trace == nullptr) return;
    // SimGrid has one session a process, and nothing is timed here: a sweep's points would not get
    // one each. What is loaded before the first step is there in the end.
    scenario::Scenario untimed = scenario;
    using scenario::NetworkModelKind;
    NetworkModelKind& model = untimed.network.model;
    if (model == NetworkModelKind::kFlow || model == NetworkModelKind::kCoflow) {
      model = NetworkModelKind::kAuto;
    }
    untimed.memory.loading = {};
    const std::unique_ptr<RunSink> sink = memory_sink();
    Simulator simulator(untimed, replays ? trace : nullptr, *sink);
    const run::Inventory inventory = simulator.inventory();
    sink->begin({}, inventory);
    simulator.prepare(inventory);
  } catch (const InputError& e) {
    throw scenario::with_place(scenario, e);
  }
}

}  // namespace switchyard::sim
