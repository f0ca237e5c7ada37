// SPDX-License-Identifier: Apache-2.0
#include "gui/core/places.hpp"

#include <algorithm>

namespace switchyard::gui {

std::vector<std::uint32_t> placesOf(const run::Inventory& inv, std::uint32_t layer,
                                    std::uint32_t expert) {
  const std::size_t l = layer == kAllLayers ? 0 : layer;
  std::vector<std::uint32_t> places;
  if (l >= inv.moe_layers.size() || expert >= inv.experts) return places;
  const std::uint32_t* row = inv.placement.data() + (l * inv.experts + expert) * inv.replicas;
  for (std::uint32_t r = 0; r < inv.replicas; ++r) {
    if (row[r] == run::kNone || std::find(places.begin(), places.end(), row[r]) != places.end()) {
      continue;
    }
    places.push_back(row[r]);
  }
  return places;
}

std::vector<std::uint32_t> firstPlaces(const run::Inventory& inv, std::uint32_t expert) {
  std::vector<std::uint32_t> places;
  for (std::uint32_t l = 0; l < inv.moe_layers.size(); ++l) {
    const std::vector<std::uint32_t> here = placesOf(inv, l, expert);
    if (here.empty() || std::find(places.begin(), places.end(), here.front()) != places.end()) {
      continue;
    }
    places.push_back(here.front());
  }
  return places;
}

std::vector<HeatRow> rowsByGpu(const RunStore& run, std::uint32_t layer) {
  const run::Inventory& inv = run.data().inventory;
  std::vector<HeatRow> rows;
  std::vector<std::uint8_t> first(run.gpus(), 0);
  for (const ExpertPlace& p : run.expertOrder(layer)) {
    rows.push_back({p.expert, p.gpu, false});
    if (p.gpu < first.size()) first[p.gpu] = 1;
  }
  if (inv.replicas < 2) return rows;
  for (std::uint32_t e = 0; e < inv.experts; ++e) {
    const std::vector<std::uint32_t> places = placesOf(inv, layer, e);
    for (std::size_t i = 1; i < places.size(); ++i) {
      const std::uint32_t gpu = places[i];
      if (gpu >= first.size() || !first[gpu] ||
          inv.gpus[gpu].engine != inv.gpus[places.front()].engine) {
        continue;
      }
      rows.push_back({e, gpu, true});
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const HeatRow& a, const HeatRow& b) { return a.gpu < b.gpu; });
  return rows;
}

std::vector<LostGpu> lostGpus(const RunStore& run) {
  std::vector<LostGpu> lost;
  for (const std::uint32_t i : run.eventsOf(run::EventKind::kFault)) {
    const run::Event& e = run.events()[i];
    if (e.gpu == run::kNone || e.step == run::kNone || !e.text.starts_with("gpu_loss ")) continue;
    if (!e.text.ends_with(": over")) {
      lost.push_back({e.gpu, e.step, run.steps()});
      continue;
    }
    const auto open = std::find_if(lost.rbegin(), lost.rend(), [&](const LostGpu& l) {
      return l.gpu == e.gpu && l.to == run.steps();
    });
    if (open != lost.rend()) open->to = e.step;
  }
  return lost;
}

std::optional<std::uint64_t> movedSince(const RunStore& run) {
  for (const std::uint32_t i : run.eventsOf(run::EventKind::kPolicyAction)) {
    const run::Event& e = run.events()[i];
    if (e.step != run::kNone && e.text.starts_with("rebalance: ")) return e.step;
  }
  return std::nullopt;
}

}  // namespace switchyard::gui
