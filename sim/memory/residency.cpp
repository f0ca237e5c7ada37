// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/residency.hpp"

#include <algorithm>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {

CachePolicy policy_of(scenario::ResidencyPolicy p) {
  switch (p) {
    case scenario::ResidencyPolicy::kLfu:
      return CachePolicy::kLfu;
    case scenario::ResidencyPolicy::kStatic:
      return CachePolicy::kStatic;
    default:
      return CachePolicy::kLru;
  }
}

}  // namespace

Residency::Residency(const scenario::ResidencySpec& spec, std::uint32_t experts,
                     std::vector<std::vector<std::vector<std::uint16_t>>> local,
                     std::vector<std::uint32_t> host, std::uint32_t hosts,
                     const std::vector<std::vector<std::uint16_t>>& hot)
    : spec_(spec),
      experts_(experts),
      layers_(static_cast<std::uint32_t>(local.size())),
      gpus_(static_cast<std::uint32_t>(host.size())),
      host_(std::move(host)),
      history_(local.size() * host_.size()),
      asked_(local.size(), 0),
      hits_(local.size(), 0),
      warm_(spec.hot) {
  const CachePolicy policy = policy_of(spec.policy);
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      std::vector<std::uint16_t>& mine = local[l][g];
      const auto most = static_cast<std::uint32_t>(mine.size());
      gpu_cache_.emplace_back(policy, experts, std::min(spec.slots, most));
      if (!hot.empty()) {
        ids_.clear();
        for (const std::uint16_t e : hot[l]) {
          if (ids_.size() < gpu_cache_.back().slots() &&
              std::find(mine.begin(), mine.end(), e) != mine.end()) {
            ids_.push_back(e);
          }
        }
        gpu_cache_.back().fill(ids_);
      }
      local_.push_back(std::move(mine));
    }
  }
  for (std::uint32_t h = 0; h < hosts; ++h) {
    for (std::uint32_t l = 0; l < layers_; ++l) {
      host_cache_.emplace_back(policy, experts, spec.host_slots);
      ids_.clear();
      if (spec.host_slots >= experts) {
        for (std::uint32_t e = 0; e < experts; ++e) ids_.push_back(static_cast<std::uint16_t>(e));
      } else if (!hot.empty()) {
        ids_.assign(hot[l].begin(), hot[l].begin() + spec.host_slots);
      }
      host_cache_.back().fill(ids_);
    }
  }
}

std::uint64_t Residency::room(std::uint32_t gpu) const {
  std::uint64_t sum = 0;
  for (std::uint32_t l = 0; l < layers_; ++l) {
    sum += gpu_cache_[at(l, gpu)].slots() - gpu_cache_[at(l, gpu)].size();
  }
  return sum;
}

void Residency::ask_host(std::uint32_t layer, std::uint32_t gpu, const CacheAccess& access) {
  out_.loads.clear();
  out_.evicted = static_cast<std::uint32_t>(access.evicted.size());
  if (access.misses.empty()) return;
  const CacheAccess& host =
      host_cache_[std::size_t{host_[gpu]} * layers_ + layer].access(access.misses);
  for (const std::uint16_t e : access.misses) {
    ExpertLoad load;
    load.expert = e;
    load.from_ssd = std::find(host.misses.begin(), host.misses.end(), e) != host.misses.end();
    load.passing =
        std::find(access.passing.begin(), access.passing.end(), e) != access.passing.end();
    out_.loads.push_back(load);
  }
}

const LayerLoads& Residency::demand(std::uint32_t layer, std::uint32_t gpu,
                                    std::span<const std::uint16_t> experts, bool measured) {
  const CacheAccess& access = gpu_cache_[at(layer, gpu)].access(experts);
  out_.hits = access.hits;
  if (measured) {
    asked_[layer] += experts.size();
    hits_[layer] += access.hits.size();
    history_[at(layer, gpu)].emplace_back(experts.begin(), experts.end());
  } else {
    warm_ = true;
  }
  ask_host(layer, gpu, access);
  return out_;
}

const LayerLoads& Residency::prefetch(std::uint32_t layer, std::uint32_t gpu,
                                      std::span<const std::uint16_t> wanted) {
  out_.hits.clear();
  ask_host(layer, gpu, gpu_cache_[at(layer, gpu)].prefetch(wanted));
  return out_;
}

std::vector<std::uint16_t> Residency::frequent(std::uint32_t layer, std::uint32_t gpu) const {
  const ExpertCache& cache = gpu_cache_[at(layer, gpu)];
  std::vector<std::uint16_t> out;
  for (const std::uint16_t e : local_[at(layer, gpu)]) {
    if (cache.uses(e) > 0) out.push_back(e);
  }
  std::sort(out.begin(), out.end(), [&](std::uint16_t a, std::uint16_t b) {
    return cache.uses(a) != cache.uses(b) ? cache.uses(a) > cache.uses(b) : a < b;
  });
  if (out.size() > spec_.prefetch_experts) out.resize(spec_.prefetch_experts);
  return out;
}

std::vector<std::uint32_t> Residency::relocate(
    std::vector<std::vector<std::vector<std::uint16_t>>> local) {
  SWITCHYARD_ASSERT(spec_.policy != scenario::ResidencyPolicy::kStatic, "a static cache");
  std::vector<std::uint32_t> dropped(gpus_, 0);
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      ExpertCache& cache = gpu_cache_[at(l, g)];
      std::vector<std::uint16_t>& mine = local[l][g];
      for (std::uint32_t e = 0; e < experts_; ++e) {
        const auto expert = static_cast<std::uint16_t>(e);
        if (!cache.resident(expert) || std::find(mine.begin(), mine.end(), expert) != mine.end()) {
          continue;
        }
        cache.discard(expert);
        ++dropped[g];
      }
      cache.set_slots(std::min(spec_.slots, static_cast<std::uint32_t>(mine.size())));
      local_[at(l, g)] = std::move(mine);
    }
  }
  relocated_ = true;
  return dropped;
}

void Residency::discard(std::uint32_t layer, std::uint32_t gpu, std::uint16_t expert) {
  gpu_cache_[at(layer, gpu)].discard(expert);
}

std::vector<Residency::LayerCount> Residency::counts() const {
  std::vector<LayerCount> out(layers_);
  for (std::uint32_t l = 0; l < layers_; ++l) {
    out[l].asked = asked_[l];
    out[l].hits = hits_[l];
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      for (const std::uint32_t h :
           belady_hits(history_[at(l, g)], experts_,
                       relocated_ ? spec_.slots : gpu_cache_[at(l, g)].slots(), warm_)) {
        out[l].belady_hits += h;
      }
    }
  }
  return out;
}

}  // namespace switchyard::sim
