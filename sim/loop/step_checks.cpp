// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

/// Memory levels as the policies of this step see them.
void Simulator::sample_memory() {
  step_start_ = static_cast<double>(ready_[plan_.first_gpu]) * 1e-12;
  if (s_.memory.sample_every.ps() > 0) {
    sample_by_clock();
  } else {
    measure_memory();
  }
}

/// memory.sample_every: a new sample when the engine's clock has passed a multiple of it since the
/// last one. It is of the moment at which it is first asked for: a decision or a step's start.
void Simulator::sample_by_clock() {
  const std::int64_t every = s_.memory.sample_every.ps(), now = engine_time();
  if (now < next_sample_ps_) return;
  measure_memory();
  next_sample_ps_ = (now / every + 1) * every;
}

void Simulator::measure_memory() {
  memory_used_.resize(gpus_);
  memory_elastic_.resize(gpus_);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const auto capacity = static_cast<double>(ledger_.capacity(g));
    double fixed = 0;
    for (const MemoryCategory c :
         {MemoryCategory::kWeights, MemoryCategory::kExperts, MemoryCategory::kRuntime}) {
      fixed += static_cast<double>(ledger_.live(g, c));
    }
    const auto live = static_cast<double>(ledger_.live(g));
    memory_used_[g] = live / capacity;
    // A GPU that its weights fill has no room left for anything.
    memory_elastic_[g] = capacity > fixed ? (live - fixed) / (capacity - fixed) : 1.0;
  }
}

std::int64_t Simulator::work(std::uint32_t gpu, run::Phase phase, const OpCost& cost) {
  SimTime time = cost.time;
  Activity what{phase, at_layer_, gpu, StragglerReason::kNone};
  if (slowdown_ != 1 && phase != run::Phase::kHost) time = stretched(gpu, cost, slowdown_);
  if (faults_ != nullptr) {
    if (out_[gpu] != 0) return 0;
    if (phase != run::Phase::kHost && faults_->gpu_factor(gpu) > 1) {
      time = SimTime::from_seconds(time.seconds() * faults_->gpu_factor(gpu));
      what.reason = StragglerReason::kFault;
    }
  }
  const std::int64_t t = time.ps();
  check_time(t);
  ready_[gpu] += t;
  check_time(ready_[gpu]);
  extend(path_[gpu], what, t);
  gpu_phase_[gpu][at(phase)] += t;
  record_.scalars.hbm_bytes += static_cast<std::uint64_t>(std::llround(cost.bytes));
  record_.scalars.flops += cost.flops;
  record_.scalars.kernels += cost.kernels;
  measured_ops_ += cost.measured;
  extrapolated_ops_ += cost.extrapolated;
  return t;
}

SimTime Simulator::stretched(std::uint32_t gpu, const OpCost& cost, double factor) const {
  const SimTime launches =
      std::min(cost.time, SimTime::from_ps(cost_[gpu].launch().ps() * cost.kernels));
  return launches + SimTime::from_seconds((cost.time - launches).seconds() * factor);
}

namespace {

/// The plain case of check_traffic(): copies that travel when every expert has one place and a copy
/// of the token goes to each; no value: a slot ran elsewhere.
std::optional<std::uint64_t> plain_copies(const LayerDecision& decision, const StepTokens& tokens,
                                          const std::vector<std::uint32_t>& gpu,
                                          const std::vector<std::uint32_t>& rank_of,
                                          const scenario::Parallel& layout) {
  const std::size_t k = decision.slots;
  const std::uint32_t ep = layout.copy_gpus(), origin = layout.first_gpu;
  std::uint64_t copies = 0;
  bool sound = true;
  for (std::uint32_t t = 0; t < decision.tokens; ++t) {
    const std::uint32_t s = tokens.rank[t], base = s - (s - origin) % ep;
    const std::uint8_t* const outcome = decision.outcome.data() + t * k;
    const std::uint16_t* const first = decision.first.data() + t * k;
    const std::uint16_t* const chosen = decision.chosen.data() + t * k;
    const std::uint32_t* const ran = gpu.data() + t * k;
    // Most tokens of most runs: eight choices, all kept.
    std::uint64_t eight = 0;
    if (k == 8) std::memcpy(&eight, outcome, 8);
    if (eight == kEightKept) {
      std::uint32_t wrong = 0, own = 0;
      for (std::size_t j = 0; j < 8; ++j) {
        wrong |= (base + rank_of[chosen[j]]) ^ ran[j];
        own += ran[j] == s ? 1 : 0;
      }
      sound = sound && wrong == 0;
      copies += 8 - own;
      continue;
    }
    for (std::size_t j = 0; j < k; ++j) {
      const auto o = static_cast<SlotOutcome>(outcome[j]);
      if (o == SlotOutcome::kNoSlot || o == SlotOutcome::kDropped) continue;
      const std::uint32_t e = o == SlotOutcome::kQueued ? first[j] : chosen[j];
      sound = sound && base + rank_of[e] == ran[j];
      copies += ran[j] != s ? 1 : 0;
    }
  }
  return sound ? std::optional(copies) : std::nullopt;
}

}  // namespace

/// Recounts what the layer sends from the decisions, token by token, and compares: an independent
/// count of the copies.
void Simulator::check_traffic(std::uint32_t moe) {
  std::uint64_t copies = 0;
  // With expert groups: a destination is a GPU and a group.
  const bool grouped = s_.network.chunk_by == scenario::ChunkBy::kExperts;
  const bool per_expert = s_.network.dispatch == scenario::DispatchKind::kPerExpert;
  const bool per_node = s_.network.dispatch == scenario::DispatchKind::kPerNode;
  const std::uint32_t groups = grouped ? s_.network.chunks : 1;
  const std::uint32_t ep = layout().copy_gpus(), cut = layout().expert_tp;
  const std::uint32_t origin = layout().first_gpu;
  const ExpertMap::Row& places = map().row(moe);
  if (node_place_.empty()) {
    met_.assign(std::size_t{gpus_} * groups, 0);
    const std::size_t nodes = *std::max_element(node_.begin(), node_.end()) + 1;
    met_node_.assign(nodes * groups, 0);
    node_gpus_.resize(nodes);
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      node_place_.push_back(static_cast<std::uint32_t>(node_gpus_[node_[g]].size()));
      node_gpus_[node_[g]].push_back(g);
    }
  }
  std::optional<std::uint64_t> plain;
  if (per_expert && !grouped && cut == 1 && map().most_copies == 1 &&
      places.rank.size() == experts_) {
    plain = plain_copies(*ran_, *ran_tokens_, traffic_.gpu, places.rank, layout());
    copies = plain.value_or(0);
  }
  const std::size_t k = ran_->slots;
  const std::uint32_t* const first = places.first.data();
  const std::uint32_t* const rank = places.rank.data();
  const std::uint8_t* const outcomes = ran_->outcome.data();
  const std::uint16_t* const wanted = ran_->first.data();
  const std::uint16_t* const chosen = ran_->chosen.data();
  const std::uint32_t* const runs_on = traffic_.gpu.data();
  std::vector<std::uint32_t> group_of(per_node ? k : 0, 0);  // of a token's slots
  for (std::uint32_t t = 0; !plain && t < ran_->tokens; ++t) {
    const std::uint32_t s = ran_tokens_->rank[t];
    const std::uint32_t base = s - (s - origin) % ep;
    std::uint32_t own = 0;
    if (++met_stamp_ == 0) {
      std::fill(met_.begin(), met_.end(), 0);
      std::fill(met_node_.begin(), met_node_.end(), 0);
      met_stamp_ = 1;
    }
    for (std::size_t i = t * k; i < (t + 1) * k; ++i) {
      const auto outcome = static_cast<SlotOutcome>(outcomes[i]);
      if (outcome == SlotOutcome::kNoSlot || outcome == SlotOutcome::kDropped) continue;
      const std::uint32_t e = outcome == SlotOutcome::kQueued ? wanted[i] : chosen[i];
      const std::uint32_t d = runs_on[i];
      std::uint32_t c = first[e];
      const std::uint32_t beyond = first[e + 1];
      while (c < beyond && rank[c] * cut != d - base) ++c;
      if (c == beyond) {
        violation("placement",
                  fmt::format("step {}, MoE layer {}", step_, s_.model.moe_layers()[moe]),
                  fmt::format("expert {} ran on GPU {}, which holds no copy", e, d));
      }
      if (d == s) continue;
      if (per_expert) {
        ++own;
        continue;
      }
      const std::uint32_t group =
          grouped && c < beyond ? expert_group(places.local[c], places.count[rank[c]], groups) : 0;
      if (per_node) group_of[i - t * k] = group;
      std::uint32_t& met = met_[std::size_t{d} * groups + group];
      if (met == met_stamp_) continue;
      met = met_stamp_;
      ++own;
    }
    copies += own;
    if (!per_node) continue;
    // One copy more for every other node (and group) whose relay is not itself a destination.
    for (std::size_t i = t * k; i < (t + 1) * k; ++i) {
      const std::uint32_t d = runs_on[i];
      if (d == kNoGpu || node_[d] == node_[s]) continue;
      const std::uint32_t group = group_of[i - t * k];
      std::uint32_t& met = met_node_[node_[d] * groups + group];
      if (met == met_stamp_) continue;
      met = met_stamp_;
      if (met_[node_gpus_[node_[d]][node_place_[s]] * groups + group] != met_stamp_) ++copies;
    }
  }
  const auto sum = [](const std::vector<PortBytes>& exchanges) {
    std::uint64_t bytes = 0;
    for (const PortBytes& p : exchanges) bytes += p.total;
    return bytes;
  };
  const std::uint64_t out = s_.network.payload.dispatch_bytes(s_.model.hidden_size) * copies;
  const std::uint64_t back = s_.network.payload.combine_bytes(s_.model.hidden_size) * copies;
  if (sum(traffic_.dispatch_ports) != out || sum(traffic_.combine_ports) != back) {
    violation("bytes", fmt::format("step {}, MoE layer {}", step_, s_.model.moe_layers()[moe]),
              fmt::format("dispatch {} and combine {} bytes, the decisions ask for {} and {}",
                          sum(traffic_.dispatch_ports), sum(traffic_.combine_ports), out, back));
  }
}

/// What each GPU's own links carried must be what it sent and received, the KV cache must be what
/// the sequences need, and nothing of the step may outlive it.
void Simulator::check_step(std::uint64_t step) {
  const std::string where = fmt::format("step {}", step);
  std::vector<std::uint64_t> out = record_.gpu_bytes_out, in = record_.gpu_bytes_in;
  if (exchange_.ports_tell_bytes()) {
    std::fill(out.begin(), out.end(), 0);
    std::fill(in.begin(), in.end(), 0);
    for (std::size_t k = 0; k < record_.link_bytes.size(); ++k) {
      if (exchange_.gpu_at_start(k) < gpus_) {
        out[exchange_.gpu_at_start(k)] += record_.link_bytes[k];
      }
      if (exchange_.gpu_at_end(k) < gpus_) in[exchange_.gpu_at_end(k)] += record_.link_bytes[k];
    }
    if (out != record_.gpu_bytes_out || in != record_.gpu_bytes_in) {
      violation("bytes", where, "a GPU's links carried other bytes than it sent or received");
    }
  }
  record_.scalars.bytes_received = std::accumulate(in.begin(), in.end(), std::uint64_t{0});
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    std::uint64_t want = kv_by_expert() ? expert_kv_bytes(g) : 0;
    for (std::uint32_t home = 0; home < gpus_; ++home) {
      if (!spread_kv() && !holds_kv(g, home)) continue;
      batch_->holders(home, held_);
      // Neighbours in a batch often have as many tokens.
      std::uint64_t known = UINT64_MAX, bytes = 0;
      for (const std::uint64_t tokens : held_) {
        if (tokens != known) bytes = kv_bytes_on(g, home, known = tokens);
        want += bytes;
      }
    }
    if (ledger_.live(g, MemoryCategory::kKv) != want) {
      violation("memory", where,
                fmt::format("GPU {}: {} bytes of KV pages, the sequences need {}", g,
                            ledger_.live(g, MemoryCategory::kKv), want));
    }
    for (const MemoryCategory c : {MemoryCategory::kBuffers, MemoryCategory::kActivations}) {
      if (ledger_.live(g, c) != 0) {
        violation("memory", where,
                  fmt::format("GPU {}: {} outlive the step", g,
                              run::kMemoryCategoryNames[static_cast<std::size_t>(c)]));
      }
    }
  }
}

void Simulator::violation(const std::string& check, const std::string& where,
                          const std::string& message) {
  if (violations_.size() < 20) violations_.push_back({check, where, message});
}

void Simulator::check_time(std::int64_t ps) const {
  if (ps < 0 || ps > kLongestTimePs) {
    throw InputError("simulated time", fmt::format("step {} goes beyond 53 days", step_),
                     "look for a bandwidth, latency or launch time with the wrong unit");
  }
}

/// Micro-batches name a pair of experts once each; a step names it once.
void Simulator::merge_reroutes() {
  std::map<std::array<std::uint32_t, 3>, std::uint32_t> sum;
  for (const run::Reroute& r : record_.reroutes) sum[{r.layer, r.from, r.to}] += r.count;
  record_.reroutes.clear();
  for (const auto& [key, count] : sum) {
    record_.reroutes.push_back({key[0], key[1], key[2], count});
  }
}

void Simulator::note_length(const run::StepScalars& scalars, std::uint64_t step) {
  if (step == 0) first_step_end_ps_ = scalars.end_ps;
  if (step < last_step_) return;
  last_step_ = step;
  last_step_ps_ = scalars.end_ps - scalars.start_ps;
}

void Simulator::end_step(std::uint64_t step) {
  run::StepScalars& sc = record_.scalars;
  const auto first = ready_.begin() + plan_.first_gpu, beyond = ready_.begin() + plan_.last_gpu;
  const auto last = static_cast<std::uint32_t>(std::max_element(first, beyond) - ready_.begin());
  const std::int64_t start = sc.start_ps;
  sc.end_ps = ready_[last];
  sc.phase_ps = path_[last].ps;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (of_engine(g)) gpu_phase_[g][at(run::Phase::kWait)] += sc.end_ps - ready_[g];
    std::copy(gpu_phase_[g].begin(), gpu_phase_[g].end(),
              record_.gpu_phase_ps.begin() + static_cast<std::ptrdiff_t>(g * run::kPhases));
    for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
      record_.gpu_memory[g * run::kMemoryCategories + c] =
          ledger_.high_water(g, static_cast<MemoryCategory>(c));
    }
    record_.gpu_memory_peak[g] = ledger_.high_water(g);
  }
  std::int64_t largest = 0;
  for (std::size_t reason = 0; reason < straggler_ps_.size(); ++reason) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (straggler_ps_[reason][g] > largest) {
        largest = straggler_ps_[reason][g];
        sc.straggler_gpu = g;
        sc.straggler_reason = reason == kByLoad       ? StragglerReason::kLoad
                              : reason == kByLink     ? StragglerReason::kLink
                              : reason == kByHostLoad ? StragglerReason::kExpertLoadFromHost
                                                      : StragglerReason::kFault;
      }
    }
  }
  if (!exchange_.ends_move()) note_length(sc, step);
  count_copies_sent();
  check_step(step);
  if (exchange_.copies() != nullptr) count_copies();
  if (loads_) end_loads(step);
  for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu && !peak_other_.empty(); ++g) {
    peak_other_[g] = 0;
    for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
      const auto category = static_cast<MemoryCategory>(c);
      if (category != MemoryCategory::kKv) peak_other_[g] += ledger_.high_water(g, category);
    }
  }
  if (router_units_) {
    std::vector<std::uint64_t> carried(record_.link_bytes.size(), 0);
    router_units_->take_links(carried);
    for (std::size_t k = 0; k < carried.size(); ++k) {
      record_.link_bytes[k] += carried[k];
      record_.link_busy_ps[k] +=
          SimTime::from_seconds(static_cast<double>(carried[k]) / exchange_.bandwidth(k).value)
              .ps();
    }
  }
  count_transfers();
  if (parts_ > 1) merge_reroutes();
  double sum = 0;
  std::size_t n = 0;
  for (const run::LayerRecord& l : record_.layers) {
    if (!std::isnan(l.imbalance)) {
      sum += l.imbalance;
      sc.imbalance_max = n == 0 ? l.imbalance : std::max(sc.imbalance_max, l.imbalance);
      ++n;
    }
  }
  if (n > 0) sc.imbalance = sum / static_cast<double>(n);
  if (exchange_.ends_move()) {
    step_critical_ = critical_path(path_[last], sc.end_ps);
  } else if (!sc.warmup && sc.end_ps - start > slowest_step_ps_) {
    offer_critical(sc, critical_path(path_[last], sc.end_ps));
  }
  for (run::Event& e : ledger_.take_events()) sink_.data().events.push_back(std::move(e));
  if (exchange_.ends_move()) {
    clocks_ = exchange_.end_step(plan_.first_gpu, plan_.last_gpu, ready_);
  }
  // The engine's next step begins when this one has ended on all its GPUs.
  std::fill(first, beyond, sc.end_ps);
}

}  // namespace switchyard::sim
