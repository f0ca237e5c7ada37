// SPDX-License-Identifier: Apache-2.0
// Whether the host memory and the SSDs that weights come from can hold them (M35, M38).
//
// A device holds what the GPUs that load from it need: each expert of each MoE layer once, however
// many of the GPUs have a copy (each part of its columns once with expert_tp), and of each pipeline
// stage every tensor-parallel shard once, together no more than the stage without shards. Prefill
// and decode replicas are cut from the same weights: of the two the larger counts.
//
// Not modelled: what else is in host memory (swapped KV pages, the serving processes).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "sim/loop/step_loop.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {

namespace {

/// GPUs by the device that `source` names for each; only those of `which`.
std::map<std::uint32_t, std::vector<std::uint32_t>> by_source(
    const std::vector<std::uint32_t>& which, const std::vector<std::uint32_t>& source) {
  std::map<std::uint32_t, std::vector<std::uint32_t>> users;
  for (const std::uint32_t g : which) users[source[g]].push_back(g);
  return users;
}

}  // namespace

std::uint64_t Simulator::distinct_experts_bytes(const Pool& pool,
                                                const std::vector<std::uint32_t>& gpus) const {
  const std::uint64_t each = expert_bytes(pool);
  const scenario::Parallel& p = pool.layout;
  std::uint64_t parts = 0;
  std::vector<std::uint8_t> there(std::size_t{experts_} * p.expert_tp);
  for (std::uint32_t l = 0; l < layers_; ++l) {
    std::fill(there.begin(), there.end(), std::uint8_t{0});
    const ExpertMap::Row& row = pool.map.row(l);
    for (const std::uint32_t g : gpus) {
      if (&pool_of(g) != &pool || stage_of_moe(l) != stage_of_gpu(g)) continue;
      for (const std::uint32_t c : row.of_rank[p.rank_of(g)]) {
        const std::uint32_t e = row.expert[c];
        if (loads_ && !loads_->residency.resident(l, g, static_cast<std::uint16_t>(e))) continue;
        there[std::size_t{e} * p.expert_tp + (g - p.first_gpu) % p.expert_tp] = 1;
      }
    }
    parts += static_cast<std::uint64_t>(std::count(there.begin(), there.end(), 1));
  }
  return parts * each;
}

std::uint64_t Simulator::distinct_weights(const std::vector<std::uint32_t>& gpus) const {
  std::uint64_t most = 0;
  for (const auto& pool : pools_) {
    const scenario::Parallel& p = pool->layout;
    std::map<std::uint32_t, std::uint64_t> rest;  // Of each stage.
    std::set<std::pair<std::uint32_t, std::uint32_t>> shards;
    for (const std::uint32_t g : gpus) {
      if (&pool_of(g) != pool.get() || (hub() && g != p.hub)) continue;
      const std::uint32_t stage = stage_of_gpu(g);
      if (!shards.emplace(stage, (g - p.first_gpu) % p.tp).second) continue;
      rest[stage] += backbone_bytes(*pool, stage);
    }
    std::uint64_t bytes = distinct_experts_bytes(*pool, gpus);
    for (const auto& [stage, sum] : rest) {
      bytes += std::min(sum, backbone_bytes(s_.model, p.pp, stage));
    }
    most = std::max(most, bytes);
  }
  return most;
}

std::vector<std::uint32_t> Simulator::hosts_to_reload_from() const {
  const cluster::ClusterGraph graph = network::cluster_of(s_);
  std::vector<std::uint32_t> endpoints = graph.gpus(), host(gpus_, run::kNone);
  for (std::uint32_t d = 0; d < graph.devices().size(); ++d) {
    if (graph.devices()[d].kind == cluster::DeviceKind::kCpu) endpoints.push_back(d);
  }
  const cluster::RouteTable routes = graph.routes(endpoints);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    std::pair<bool, std::size_t> least;
    for (std::uint32_t c = gpus_; c < endpoints.size(); ++c) {
      const std::pair<bool, std::size_t> far{graph.devices()[endpoints[c]].node != node_[g],
                                             routes.links_of(c, g).size()};
      if (host[g] != run::kNone && !(far < least)) continue;
      host[g] = endpoints[c];
      least = far;
    }
  }
  return host;
}

void Simulator::require_room(std::uint32_t device, std::uint64_t need,
                             const std::vector<std::uint32_t>& gpus, const std::string& where,
                             const std::string& hint) const {
  const scenario::Device& d = s_.hardware.devices[device];
  if (d.memory_bytes == 0 || need <= d.memory_bytes) return;
  throw InputError(
      where,
      fmt::format("the weights of {} take {}, {} has {}",
                  gpus.size() == 1 ? s_.hardware.gpu(gpus[0]).name
                                   : fmt::format("the {} GPUs that load from it", gpus.size()),
                  format_bytes(static_cast<double>(need)), d.name,
                  format_bytes(static_cast<double>(d.memory_bytes))),
      hint);
}

void Simulator::check_weight_sources() const {
  std::vector<std::uint32_t> all(gpus_);
  for (std::uint32_t g = 0; g < gpus_; ++g) all[g] = g;
  if (s_.memory.loading.on()) {
    const bool ssd = s_.memory.loading.from == scenario::LoadingSpec::From::kSsd;
    const std::vector<std::uint32_t>& source = ssd ? exchange_.ssd_of() : exchange_.host_of();
    for (const auto& [endpoint, users] : by_source(all, source)) {
      require_room(exchange_.device_of(endpoint), distinct_weights(users), users,
                   "memory.loading.from",
                   ssd ? "use a larger SSD or a smaller format"
                       : "use from = \"ssd\", more host memory or a smaller format");
    }
  }
  if (s_.faults.reload.value > 0) return;  // From wherever that rate is had.
  std::vector<std::uint32_t> lost;
  const scenario::FaultRule* first = nullptr;
  for (const scenario::FaultRule& r : s_.faults.events) {
    if (r.kind != scenario::FaultKind::kGpuLoss) continue;
    // A GPU that stays away loads nothing; what the others load then, host_load_ps() sees.
    if (s_.faults.reaction == scenario::FaultReaction::kMigrate && r.lasts == 0) continue;
    if (first == nullptr) first = &r;
    for (const std::uint32_t g : all) {
      if (r.gpu == g || r.gpu == scenario::kAnyTarget) lost.push_back(g);
    }
  }
  if (first == nullptr) return;
  std::sort(lost.begin(), lost.end());
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  for (const auto& [device, users] : by_source(lost, hosts_to_reload_from())) {
    require_room(device, distinct_weights(users), users, first->where,
                 "state faults.reload, the rate at which weights come from elsewhere");
  }
}

}  // namespace switchyard::sim
