// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/expert_loads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

std::vector<std::vector<std::vector<std::uint16_t>>> Simulator::local_experts() const {
  std::vector<std::vector<std::vector<std::uint16_t>>> local(
      layers_, std::vector<std::vector<std::uint16_t>>(gpus_));
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      const ExpertMap::Row& row = pool_of(g).map.row(l);
      const std::uint32_t rank = layout_of(g).rank_of(g);
      std::vector<std::uint16_t>& mine = local[l][g];
      for (std::size_t c = 0; c < row.rank.size(); ++c) {
        const auto e = static_cast<std::uint16_t>(row.expert[c]);
        // Two copies on one GPU take one slot.
        if (row.rank[c] == rank && std::find(mine.begin(), mine.end(), e) == mine.end()) {
          mine.push_back(e);
        }
      }
    }
  }
  return local;
}

void Simulator::relocate_experts() {
  const std::vector<std::uint32_t> dropped = loads_->residency.relocate(local_experts());
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    // What a lost GPU held has been freed with it.
    if (lost_[g] != 0) continue;
    ledger_.release(g, MemoryCategory::kExperts, dropped[g] * loads_->bytes_each, ready_[g],
                    static_cast<std::uint32_t>(step_), "experts of another GPU now");
  }
}

void Simulator::make_expert_loads(const RoutingTrace* trace) {
  const scenario::ResidencySpec& spec = s_.memory.residency;
  if (!spec.on() || layers_ == 0) return;
  if (policy_.soft.on() && policy_.soft.cost == SoftCost::kStacked) {
    throw InputError("memory.residency",
                     "policy.soft.cost = \"stacked\" reads every expert of a layer",
                     "use soft.cost = \"gathered\"");
  }
  std::vector<std::vector<std::uint16_t>> hot;
  if (spec.hot) {
    std::vector<std::vector<double>> loads = spec.loads;
    if (loads.empty()) loads = profile_routing(s_, trace, spec.profile_steps, false).load;
    if (loads.size() == 1) loads.resize(layers_, loads[0]);  // A file's row of all layers.
    for (const std::vector<double>& load : loads) {
      std::vector<std::uint16_t> order(experts_);
      std::iota(order.begin(), order.end(), std::uint16_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint16_t a, std::uint16_t b) { return load[a] > load[b]; });
      hot.push_back(std::move(order));
    }
  }
  // Hosts by number: endpoints in order of first use. Without slots in host memory the store stands
  // in for it.
  const bool cxl = spec.store == scenario::ExpertStore::kCxl;
  const std::vector<std::uint32_t>& store = cxl ? exchange_.pool_of() : exchange_.ssd_of();
  const std::vector<std::uint32_t>& host = spec.host_slots == 0 ? store : exchange_.host_of();
  std::vector<std::uint32_t> hosts, number;
  for (const std::uint32_t h : host) {
    const auto at = std::find(hosts.begin(), hosts.end(), h);
    number.push_back(static_cast<std::uint32_t>(at - hosts.begin()));
    if (at == hosts.end()) hosts.push_back(h);
  }
  const std::uint64_t each = expert_bytes(*pool_);
  for (const std::uint32_t h : hosts) {
    const scenario::Device& device = s_.hardware.devices[exchange_.device_of(h)];
    const std::uint64_t need = std::uint64_t{spec.host_slots} * layers_ * each;
    if (device.memory_bytes > 0 && need > device.memory_bytes) {
      throw InputError("memory.residency.host_slots",
                       fmt::format("{} experts of {} layers take {}, {} has {}", spec.host_slots,
                                   layers_, format_bytes(static_cast<double>(need)), device.name,
                                   format_bytes(static_cast<double>(device.memory_bytes))),
                       "keep fewer experts in host memory");
    }
  }
  const bool stored = cxl || spec.host_slots < experts_;  // Else the SSD is not read.
  for (std::uint32_t g = 0; g < gpus_ && stored; ++g) {
    const scenario::Device& pool = s_.hardware.devices[exchange_.device_of(store[g])];
    const std::uint64_t need = std::uint64_t{experts_} * layers_ * each;
    if (pool.memory_bytes > 0 && need > pool.memory_bytes) {
      throw InputError(scenario::origin_of(s_, "memory.residency.store"),
                       fmt::format("{} experts of {} layers take {}, {} has {}", experts_, layers_,
                                   format_bytes(static_cast<double>(need)), pool.name,
                                   format_bytes(static_cast<double>(pool.memory_bytes))),
                       cxl ? "use a larger pool or a smaller format"
                           : "use a larger SSD or a smaller format");
    }
  }
  loads_ = std::make_unique<ExpertLoads>(ExpertLoads{
      .residency = Residency(spec, experts_, local_experts(), std::move(number),
                             static_cast<std::uint32_t>(hosts.size()), hot),
      .queue = *exchange_.copies(),
      .host = host,
      .ssd = store,
      .store_name = cxl ? "CXL pool" : "SSD",
      .bytes_each = each,
      .ahead = spec.prefetch == scenario::PrefetchKind::kTrace ? make_routing_source(s_, trace)
                                                               : nullptr,
      .on_host = make_host_experts(host),
      .awaited = std::vector<std::vector<TransferQueue::Id>>(gpus_),
      .passing = std::vector<std::uint64_t>(gpus_, 0),
      .prefetched = std::vector<std::vector<std::pair<std::uint16_t, TransferQueue::Id>>>(gpus_),
      .step = std::vector<ExpertLoads::Step>(gpus_)});
}

void Simulator::queue_loads(std::uint32_t moe, std::uint32_t gpu, const LayerLoads& found,
                            std::vector<TransferQueue::Id>& ids) {
  ExpertLoads& x = *loads_;
  const auto index = static_cast<std::uint32_t>(step_);
  const std::uint64_t out = found.evicted * x.bytes_each;
  ledger_.release(gpu, MemoryCategory::kExperts, out, ready_[gpu], index, "experts are evicted");
  x.step[gpu].evicted += found.evicted;
  std::uint64_t kept = 0, passing = 0;
  ids.clear();
  for (const ExpertLoad& load : found.loads) {
    (load.passing ? passing : kept) += x.bytes_each;
    if (faults_ != nullptr) faults_->load_sound(moe, load.expert);
    (load.from_ssd ? x.step[gpu].from_ssd : x.step[gpu].from_host) += 1;
    ids.push_back(
        copy(gpu, load.from_ssd ? x.ssd[gpu] : x.host[gpu], gpu, x.bytes_each, ready_[gpu]));
  }
  if (kept > 0) {
    ledger_.allocate(gpu, MemoryCategory::kExperts, kept, ready_[gpu], index, "experts from host");
  }
  if (passing > 0) {
    ledger_.allocate(gpu, MemoryCategory::kBuffers, passing, ready_[gpu], index,
                     "experts that find no slot");
    x.passing[gpu] += passing;
  }
}

/// The layer's experts are known: what is missing is asked for, then what the next layer may need.
void Simulator::ask_experts(std::uint32_t moe) {
  ExpertLoads& x = *loads_;
  x.queue.advance(earliest());
  const bool measured = !record_.scalars.warmup;
  std::vector<std::vector<std::uint16_t>> asked(gpus_);
  std::vector<std::uint8_t> seen(std::size_t{gpus_} * experts_, 0);
  std::vector<std::uint32_t> rows(x.on_host ? seen.size() : 0, 0);
  for (std::size_t i = 0; i < ran_->outcome.size(); ++i) {
    const std::uint32_t g = traffic_.gpu[i];
    if (g == kNoGpu) continue;
    const std::uint16_t e = static_cast<SlotOutcome>(ran_->outcome[i]) == SlotOutcome::kQueued
                                ? ran_->first[i]
                                : ran_->chosen[i];
    std::uint8_t& once = seen[std::size_t{g} * experts_ + e];
    if (once == 0) asked[g].push_back(e);
    once = 1;
    if (x.on_host) ++rows[std::size_t{g} * experts_ + e];
  }
  // Whoever has columns of an expert loads them; the statistics count it once.
  const std::uint32_t cut = layout().expert_tp;
  const auto to_columns = [&](std::vector<std::vector<std::uint16_t>>& of) {
    for (std::uint32_t g = 0; g < gpus_ && cut > 1; ++g) of[g] = of[first_column(g)];
  };
  to_columns(asked);
  std::vector<TransferQueue::Id> ids;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    x.awaited[g].clear();
    if (x.prefetched_layer == moe) {
      for (const auto& [expert, id] : x.prefetched[g]) {
        if (std::find(asked[g].begin(), asked[g].end(), expert) != asked[g].end()) {
          x.prefetches_used += measured ? 1 : 0;
          x.awaited[g].push_back(id);
        } else if (x.queue.cancel(id, ready_[g])) {
          const bool on_ssd = x.prefetched_from_ssd.contains(id);
          for (const std::uint32_t link :
               x.queue.routes().links_of(on_ssd ? x.ssd[g] : x.host[g], g)) {
            copy_bytes_[link] -= x.bytes_each;  // It never moved.
          }
          x.residency.discard(moe, g, expert);
          ledger_.release(g, MemoryCategory::kExperts, x.bytes_each, ready_[g],
                          static_cast<std::uint32_t>(step_), "a prefetch is taken back");
          x.taken_back += measured ? 1 : 0;
        }
      }
    }
    if (asked[g].empty()) continue;
    const LayerLoads& found = x.residency.demand(moe, g, asked[g], measured && g % cut == 0);
    if (x.on_host) {
      LayerLoads rest = found;
      leave_to_host(g, std::span(rows).subspan(std::size_t{g} * experts_, experts_), rest);
      queue_loads(moe, g, rest, ids);
    } else {
      queue_loads(moe, g, found, ids);
    }
    x.awaited[g].insert(x.awaited[g].end(), ids.begin(), ids.end());
  }
  x.prefetched_layer = UINT32_MAX;
  const std::uint32_t next = moe + 1;
  if (s_.memory.residency.prefetch == scenario::PrefetchKind::kNone || next == layers_) return;
  std::vector<std::vector<std::uint16_t>> wanted(gpus_);
  if (s_.memory.residency.prefetch == scenario::PrefetchKind::kTrace) {
    x.ahead->candidates(tokens_, next, x.candidates, RoutingSource::Need::kRanked);
    std::fill(seen.begin(), seen.end(), std::uint8_t{0});
    const std::uint32_t best =
        std::min(static_cast<std::uint32_t>(s_.model.top_k), x.candidates.width);
    for (std::size_t t = 0; t < tokens_.size(); ++t) {
      for (std::uint32_t j = 0; j < best; ++j) {
        const std::uint16_t e = x.candidates.ids[t * x.candidates.width + j];
        if (e >= experts_) continue;  // A row with fewer candidates.
        // Which copy will serve is not known yet: the first.
        const std::uint32_t g = map().gpu_of(next, e, tokens_.rank[t]);
        std::uint8_t& once = seen[std::size_t{g} * experts_ + e];
        if (once == 0) wanted[g].push_back(e);
        once = 1;
      }
    }
    to_columns(wanted);
  } else {
    for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
      wanted[g] = x.residency.frequent(next, g);
    }
  }
  x.prefetched_from_ssd.clear();
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    x.prefetched[g].clear();
    const LayerLoads& found = x.residency.prefetch(next, g, wanted[g]);
    queue_loads(next, g, found, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      x.prefetched[g].emplace_back(found.loads[i].expert, ids[i]);
      if (found.loads[i].from_ssd) x.prefetched_from_ssd.insert(ids[i]);
    }
    x.prefetches += measured ? ids.size() : 0;
  }
  x.prefetched_layer = next;
}

/// The GPU goes on `ps` later.
void Simulator::wait_for_expert(std::uint32_t moe, std::uint32_t gpu, std::int64_t ps) {
  if (ps == 0) return;
  check_time(ready_[gpu] + ps);
  ready_[gpu] += ps;
  extend(path_[gpu], {run::Phase::kWait, moe, gpu, StragglerReason::kExpertLoadFromHost}, ps);
  gpu_phase_[gpu][at(run::Phase::kWait)] += ps;
  straggler_ps_[kByHostLoad][gpu] += ps;
}

/// The longest of the waits in a layer.
void Simulator::note_expert_wait(std::uint32_t moe, std::uint32_t gpu, std::int64_t ps) {
  if (ps <= layer_straggler_ps_[moe]) return;
  layer_straggler_ps_[moe] = ps;
  record_.layers[moe].straggler_gpu = gpu;
  record_.layers[moe].straggler_reason = StragglerReason::kExpertLoadFromHost;
}

/// Every GPU waits for the experts that it computes next.
void Simulator::await_experts(std::uint32_t moe) {
  ExpertLoads& x = *loads_;
  std::uint32_t latest = 0;
  std::int64_t longest = 0;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    std::int64_t there = ready_[g];
    for (const TransferQueue::Id id : x.awaited[g]) there = std::max(there, x.queue.end(id));
    const std::int64_t wait = there - ready_[g];
    if (!x.awaited[g].empty()) exchange_.follow(g, x.awaited[g], ready_[g], there);
    if (wait == 0) continue;
    if (wait > longest) {
      longest = wait;
      latest = g;
    }
    wait_for_expert(moe, g, wait);
    x.step[g].wait_ps += wait;
  }
  if (longest == 0) return;
  note_expert_wait(moe, latest, longest);
  if (!record_.scalars.warmup) x.wait_ps += longest;
}

/// Experts that found no slot are dropped once they have been used.
void Simulator::drop_passing() {
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    ledger_.release(g, MemoryCategory::kBuffers, loads_->passing[g], ready_[g],
                    static_cast<std::uint32_t>(step_), "experts that found no slot have been used");
    loads_->passing[g] = 0;
  }
}

std::int64_t Simulator::earliest() const {
  // Pages may begin to travel when a step of another replica ends.
  if (exchange_.carries_pages()) return plan_.earliest_ps;
  return std::max(plan_.earliest_ps, *std::min_element(ready_.begin(), ready_.end()));
}

TransferQueue::Id Simulator::copy(std::uint32_t lane, std::uint32_t from, std::uint32_t to,
                                  std::uint64_t bytes, std::int64_t ready_ps) {
  TransferQueue& queue = *exchange_.copies();
  for (const std::uint32_t link : queue.routes().links_of(from, to)) copy_bytes_[link] += bytes;
  return queue.add(lane, from, to, bytes, ready_ps);
}

/// Bytes of the copies to the step's links. Where all GPUs step together those that moved until
/// its end; where replicas do by themselves, another step may share that time: all bytes of the
/// copies that the step asked for.
void Simulator::count_copies() {
  TransferQueue& queue = *exchange_.copies();
  std::vector<std::uint64_t> bytes(record_.link_bytes.size(), 0);
  if (plan_.last_gpu - plan_.first_gpu == gpus_) {
    queue.count_bytes(record_.scalars.end_ps, bytes);
  } else {
    queue.count_bytes(plan_.earliest_ps, bytes);
    bytes = copy_bytes_;
  }
  std::fill(copy_bytes_.begin(), copy_bytes_.end(), 0);
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    record_.link_bytes[k] += bytes[k];
    record_.link_busy_ps[k] +=
        SimTime::from_seconds(static_cast<double>(bytes[k]) / exchange_.bandwidth(k).value).ps();
  }
}

void Simulator::swap_pages() {
  TransferQueue& queue = *exchange_.copies();
  queue.advance(earliest());
  const std::vector<std::uint32_t>& there =
      s_.workload.serving.batching.swap_to_pool ? exchange_.pool_of() : exchange_.host_of();
  std::vector<std::vector<TransferQueue::Id>> awaited(gpus_);
  for (const KvSwap& w : plan_.swaps) {
    for (std::uint32_t g = w.gpu; g < w.gpu + layout().tp; ++g) {
      const std::uint32_t host = there[g];
      awaited[g].push_back(w.out ? copy(gpus_ + g, g, host, w.bytes, ready_[g])
                                 : copy(g, host, g, w.bytes, ready_[g]));
    }
  }
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    std::int64_t back = ready_[g];
    for (const TransferQueue::Id id : awaited[g]) back = std::max(back, queue.end(id));
    const std::int64_t ps = back - ready_[g];
    if (!awaited[g].empty()) exchange_.follow(g, awaited[g], ready_[g], back);
    if (ps == 0) continue;
    wait(g, ps, g, StragglerReason::kExpertLoadFromHost);
    straggler_ps_[kByHostLoad][g] += ps;
  }
}

/// One event for each GPU that loaded anything.
void Simulator::end_loads(std::uint64_t step) {
  ExpertLoads& x = *loads_;
  if (!record_.scalars.warmup) ++x.steps;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    ExpertLoads::Step& s = x.step[g];
    if (s.from_host + s.from_ssd > 0) {
      run::Event e;
      e.time_ps = record_.scalars.end_ps;
      e.step = static_cast<std::uint32_t>(step);
      e.kind = run::EventKind::kEviction;
      e.gpu = g;
      e.value = static_cast<double>(s.evicted);
      e.text = fmt::format(
          "{} experts loaded from host memory and {} from the {} ({}), {} evicted; the GPU waited "
          "{}; value: experts evicted",
          s.from_host, s.from_ssd, x.store_name,
          format_bytes(static_cast<double>((s.from_host + s.from_ssd) * x.bytes_each)), s.evicted,
          format_time(SimTime::from_ps(s.wait_ps)));
      sink_.data().events.push_back(std::move(e));
    }
    if (!record_.scalars.warmup) {
      x.from_host += s.from_host;
      x.from_ssd += s.from_ssd;
    }
    s = {};
  }
}

void Simulator::note_loads(SimulationResult& result) {
  const ExpertLoads& x = *loads_;
  std::vector<run::Metric>& metrics = sink_.data().metrics;
  const auto share = [](std::uint64_t a, std::uint64_t b) {
    return b == 0 ? run::kNoData : static_cast<double>(a) / static_cast<double>(b);
  };
  const std::vector<Residency::LayerCount> counts = x.residency.counts();
  Residency::LayerCount all;
  std::size_t worst = 0, best = 0;
  const auto rate = [&](std::size_t l) { return share(counts[l].hits, counts[l].asked); };
  for (std::size_t l = 0; l < counts.size(); ++l) {
    all.asked += counts[l].asked;
    all.hits += counts[l].hits;
    all.belady_hits += counts[l].belady_hits;
    // A layer that asked for none has no rate, which every other beats.
    if (counts[worst].asked == 0 || rate(l) < rate(worst)) worst = l;
    if (counts[best].asked == 0 || rate(l) > rate(best)) best = l;
  }
  const double steps = static_cast<double>(std::max<std::uint64_t>(x.steps, 1));
  metrics.push_back({"expert hit rate", share(all.hits, all.asked), ""});
  metrics.push_back({"expert hit rate, Belady bound", share(all.belady_hits, all.asked), ""});
  metrics.push_back(
      {"experts loaded per step", static_cast<double>(x.from_host + x.from_ssd) / steps, ""});
  metrics.push_back({"expert bytes loaded per step",
                     static_cast<double>((x.from_host + x.from_ssd) * x.bytes_each) / steps, "B"});
  metrics.push_back({fmt::format("experts from {}", x.store_name),
                     share(x.from_ssd, x.from_host + x.from_ssd), ""});
  metrics.push_back(
      {"expert load wait per step", static_cast<double>(x.wait_ps) * 1e-9 / steps, "ms"});
  if (s_.memory.residency.prefetch != scenario::PrefetchKind::kNone) {
    metrics.push_back({"prefetched experts used", share(x.prefetches_used, x.prefetches), ""});
  }
  const std::vector<std::uint32_t> numbers = s_.model.moe_layers();
  for (std::size_t l = 0; l < counts.size(); ++l) {
    metrics.push_back({fmt::format("expert hit rate, layer {}", numbers[l]), rate(l), ""});
  }
  if (all.asked == 0) {
    result.notes.push_back("experts: none was asked for");
    return;
  }
  result.notes.push_back(fmt::format(
      "experts: {} of {} asked for were on the GPU or on their way (layer {}: {:.4g}, layer {}: "
      "{:.4g}); Belady's bound of loading on demand: {}",
      all.hits, all.asked, numbers[worst], rate(worst), numbers[best], rate(best),
      all.belady_hits));
}

}  // namespace switchyard::sim
