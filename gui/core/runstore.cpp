// SPDX-License-Identifier: Apache-2.0
#include "gui/core/runstore.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace switchyard::gui {
namespace {

constexpr std::uint64_t kBlockSteps = 512;
constexpr std::uint64_t kBlockBudget = 192ULL << 20;  // 192 MiB

}  // namespace

struct RunStore::Block {
  Kind kind = Kind::kExperts;
  std::uint32_t layer = kAllLayers;
  std::uint64_t first = 0, count = 0;
  run::ExpertSteps experts;
  run::GpuSteps gpus;
  run::LinkSteps links;
  std::uint64_t bytes = 0;
};

RunStore::RunStore(const std::filesystem::path& path, const LoadProgress& progress)
    : m_name(path.filename().string()), m_path(path) {
  const auto tell = [&](double share) {
    if (progress) progress(share);
  };
  tell(0);
  // Shares of the time as measured on 100 000 steps x 256 experts.
  constexpr double kHashed = 0.5, kOverview = 0.85;
  h5::ReadOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    tell(kHashed * static_cast<double>(done) / static_cast<double>(std::max(done, total)));
  };
  m_reader = std::make_unique<run::RunReader>(path, options);
  tell(kHashed);
  auto data = std::make_shared<run::RunData>(m_reader->base());
  data->totals = m_reader->read_totals();
  tell(kHashed + 0.02);
  data->lod = m_reader->read_lod(1);
  tell(kOverview);
  data->events = m_reader->read_events();
  data->requests = m_reader->read_requests();
  if (m_reader->has(run::Detail::kTokens)) data->tokens = m_reader->read_tokens();
  data->critical_path = m_reader->read_critical_path();
  if (m_reader->has(run::Detail::kSteps)) {
    constexpr std::uint64_t kParts = 16;
    const std::uint64_t steps = m_reader->steps();
    const std::uint64_t part = std::max<std::uint64_t>(1, (steps + kParts - 1) / kParts);
    data->steps.reserve(static_cast<std::size_t>(steps));
    for (std::uint64_t first = 0; first < steps; first += part) {
      const auto block = m_reader->read_steps(first, std::min(part, steps - first));
      data->steps.insert(data->steps.end(), block.begin(), block.end());
      tell(kOverview +
           (1 - kOverview) * static_cast<double>(data->steps.size()) / static_cast<double>(steps));
    }
    data->reroutes = m_reader->read_reroutes();
  }
  tell(1);
  m_data = std::move(data);
  m_layerLods.resize(m_data->inventory.moe_layers.size());
}

RunStore::RunStore(std::shared_ptr<const run::RunData> run, std::string name)
    : m_name(std::move(name)), m_data(std::move(run)) {}

RunStore::~RunStore() = default;

bool RunStore::hasCapacity() const {
  const auto& fill = lod().experts.fill;
  if (fill.levels() == 0) return false;
  const auto& top = fill.level(fill.levels()).max;
  return std::any_of(top.begin(), top.end(), [](float v) { return v > 0; });
}

const run::ExpertLod& RunStore::expertLod(std::uint32_t layer) const {
  if (layer == kAllLayers) return lod().experts;
  if (!m_reader) return lod().layers.at(layer);
  auto& slot = m_layerLods.at(layer);
  if (!slot) slot = std::make_unique<run::ExpertLod>(m_reader->read_layer_lod(layer, 1));
  return *slot;
}

const RunStore::Block& RunStore::block(Kind kind, std::uint32_t layer, std::uint64_t step) const {
  const std::uint64_t first = step / kBlockSteps * kBlockSteps;
  for (auto it = m_blocks.begin(); it != m_blocks.end(); ++it) {
    if (it->kind == kind && it->layer == layer && it->first == first) {
      if (it != m_blocks.begin()) m_blocks.splice(m_blocks.begin(), m_blocks, it);
      return m_blocks.front();
    }
  }
  Block b;
  b.kind = kind;
  b.layer = layer;
  b.first = first;
  b.count = std::min(kBlockSteps, steps() - first);
  switch (kind) {
    case Kind::kExperts:
      b.experts = layer == kAllLayers ? m_reader->read_experts(first, b.count)
                                      : m_reader->read_layer_experts(layer, first, b.count);
      b.bytes = b.count * experts() * (6 * sizeof(std::uint32_t) + sizeof(float));
      break;
    case Kind::kGpus:
      b.gpus = m_reader->read_gpus(first, b.count);
      b.bytes = b.count * gpus() * 8 * (run::kPhases + run::kMemoryCategories + 3);
      break;
    case Kind::kLinks:
      b.links = m_reader->read_links(first, b.count);
      b.bytes = b.count * links() * 16;
      break;
  }
  m_cachedBytes += b.bytes;
  m_blocks.push_front(std::move(b));
  while (m_cachedBytes > kBlockBudget && m_blocks.size() > 1) {
    m_cachedBytes -= m_blocks.back().bytes;
    m_blocks.pop_back();
  }
  return m_blocks.front();
}

ExpertRow RunStore::expertRow(std::uint32_t layer, std::uint64_t step) const {
  SWITCHYARD_ASSERT(hasSteps() && step < steps(), fmt::format("{} of {}", step, steps()));
  const run::ExpertSteps* x = nullptr;
  std::uint64_t row = step;
  if (m_reader) {
    const Block& b = block(Kind::kExperts, layer, step);
    x = &b.experts;
    row -= b.first;
  } else {
    x = layer == kAllLayers ? &m_data->experts : &m_data->layer_experts.at(layer);
  }
  const std::size_t i = static_cast<std::size_t>(row) * experts();
  return {x->kept.data() + i,   x->overflow.data() + i, x->rerouted_in.data() + i,
          x->queued.data() + i, x->dropped.data() + i,  x->capacity.data() + i,
          x->fill.data() + i};
}

const std::int64_t* RunStore::gpuPhases(std::uint64_t step) const {
  const std::size_t width = gpus() * run::kPhases;
  if (!m_reader) return m_data->gpus.phase_ps.data() + static_cast<std::size_t>(step) * width;
  const Block& b = block(Kind::kGpus, kAllLayers, step);
  return b.gpus.phase_ps.data() + static_cast<std::size_t>(step - b.first) * width;
}

const std::uint64_t* RunStore::gpuMemory(std::uint64_t step) const {
  const std::size_t width = gpus() * run::kMemoryCategories;
  if (!m_reader) return m_data->gpus.memory.data() + static_cast<std::size_t>(step) * width;
  const Block& b = block(Kind::kGpus, kAllLayers, step);
  return b.gpus.memory.data() + static_cast<std::size_t>(step - b.first) * width;
}

const std::uint64_t* RunStore::gpuMemoryPeak(std::uint64_t step) const {
  if (!m_reader) return m_data->gpus.memory_peak.data() + static_cast<std::size_t>(step) * gpus();
  const Block& b = block(Kind::kGpus, kAllLayers, step);
  return b.gpus.memory_peak.data() + static_cast<std::size_t>(step - b.first) * gpus();
}

std::pair<std::size_t, std::size_t> RunStore::rerouteRows(std::uint64_t first,
                                                          std::uint64_t end) const {
  const auto& step = m_data->reroutes.step;
  const auto a = std::lower_bound(step.begin(), step.end(), first);
  const auto b = std::lower_bound(a, step.end(), end);
  return {static_cast<std::size_t>(a - step.begin()), static_cast<std::size_t>(b - step.begin())};
}

const std::uint64_t* RunStore::linkBytes(std::uint64_t step) const {
  if (!m_reader) return m_data->links.bytes.data() + static_cast<std::size_t>(step) * links();
  const Block& b = block(Kind::kLinks, kAllLayers, step);
  return b.links.bytes.data() + static_cast<std::size_t>(step - b.first) * links();
}

double RunStore::linkUse(std::uint64_t step, std::size_t k) const {
  const run::StepScalars& s = m_data->steps.at(static_cast<std::size_t>(step));
  return run::link_use(linkBytes(step)[k], m_data->inventory.links[k].bandwidth,
                       s.end_ps - s.start_ps);
}

std::int64_t RunStore::startPs(std::uint64_t step) const {
  if (hasSteps()) return m_data->steps.at(static_cast<std::size_t>(step)).start_ps;
  // The level holds the start of each bin's last step; the bin before ends where this one starts,
  // so the sum over the bin divided by its steps is the nearest statement there is.
  const auto& starts = lod().step_start;
  const std::uint64_t bin = step / run::kLodFactor;
  const std::uint64_t first = bin * run::kLodFactor;
  const std::uint64_t n = std::min(run::kLodFactor, steps() - first);
  return starts.level(1).sum.at(static_cast<std::size_t>(bin)) / static_cast<std::int64_t>(n);
}

std::vector<std::int64_t> RunStore::starts() const {
  std::vector<std::int64_t> out;
  if (!hasSteps()) return out;
  out.reserve(m_data->steps.size());
  for (const run::StepScalars& s : m_data->steps) out.push_back(s.start_ps);
  return out;
}

std::vector<ExpertPlace> RunStore::expertOrder(std::uint32_t layer) const {
  const run::Inventory& inv = m_data->inventory;
  std::vector<ExpertPlace> order;
  const std::size_t l = layer == kAllLayers ? 0 : layer;
  for (std::uint32_t e = 0; e < inv.experts; ++e) {
    std::uint32_t gpu = run::kNone;
    if (l < inv.moe_layers.size()) gpu = inv.placement[(l * inv.experts + e) * inv.replicas];
    order.push_back({e, gpu});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const ExpertPlace& a, const ExpertPlace& b) { return a.gpu < b.gpu; });
  return order;
}

bool RunStore::placementVaries() const {
  const run::Inventory& inv = m_data->inventory;
  const std::size_t width = std::size_t{inv.experts} * inv.replicas;
  for (std::size_t l = 1; l < inv.moe_layers.size(); ++l) {
    const auto row = inv.placement.begin() + static_cast<std::ptrdiff_t>(l * width);
    if (!std::equal(inv.placement.begin(),
                    inv.placement.begin() + static_cast<std::ptrdiff_t>(width), row)) {
      return true;
    }
  }
  return false;
}

}  // namespace switchyard::gui
