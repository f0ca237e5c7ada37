// SPDX-License-Identifier: Apache-2.0
#include "gui/core/runstore.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace switchyard::gui {
namespace {

/// Pages that are never dropped: those of one ExpertRow, and then some.
constexpr std::size_t kLeastPages = 32;
/// Flags that lie together in the file (run_writer.cpp packs about 128 KiB).
constexpr std::uint64_t kFlagBytes = 128 << 10;

template <class T, class Sum>
const run::Lod<T, Sum>& lodOf(const run::RunLod& lod, run::LodSeries series, std::uint32_t layer) {
  const run::ExpertLod& experts = layer == kAllLayers ? lod.experts : lod.layers.at(layer);
  if constexpr (std::is_same_v<T, double>) {
    return lod.steps;
  } else if constexpr (std::is_same_v<T, float>) {
    return series == run::LodSeries::kLinkUse ? lod.link_use : experts.fill;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return series == run::LodSeries::kStepStart ? lod.step_start : lod.gpu_phase;
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    return lod.link_bytes;
  } else {
    return series == run::LodSeries::kExpertOverflow ? experts.overflow : experts.kept;
  }
}

const std::vector<std::uint32_t>& memoryColumn(const run::ExpertSteps& x, run::StepColumn column) {
  switch (column) {
    case run::StepColumn::kOverflow:
      return x.overflow;
    case run::StepColumn::kReroutedIn:
      return x.rerouted_in;
    case run::StepColumn::kQueued:
      return x.queued;
    case run::StepColumn::kDropped:
      return x.dropped;
    case run::StepColumn::kCapacity:
      return x.capacity;
    default:
      return x.kept;
  }
}

}  // namespace

struct RunStore::Page {
  Key key;
  std::uint64_t first = 0, count = 0;  // Rows: steps or bins.
  std::vector<std::uint32_t> u32;
  std::vector<float> f32;
  std::vector<std::int64_t> i64;
  std::vector<std::uint64_t> u64;
  std::vector<double> f64;
  std::vector<std::uint8_t> flag;
  template <class T>
  std::vector<T>& of() {
    if constexpr (std::is_same_v<T, std::uint32_t>) {
      return u32;
    } else if constexpr (std::is_same_v<T, float>) {
      return f32;
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      return i64;
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      return u64;
    } else {
      return f64;
    }
  }
  template <class T>
  const T* data() const {
    return const_cast<Page*>(this)->of<T>().data();
  }
  [[nodiscard]] std::uint64_t bytes() const {
    return u32.size() * 4 + f32.size() * 4 + i64.size() * 8 + u64.size() * 8 + f64.size() * 8 +
           flag.size();
  }
};

RunStore::RunStore(const std::filesystem::path& path, const LoadProgress& progress,
                   std::uint64_t budget)
    : m_name(path.filename().string()), m_path(path), m_budget(budget) {
  const auto tell = [&](double share) {
    if (progress) progress(share);
  };
  tell(0);
  // Shares of the time as measured on 100 000 steps x 256 experts.
  constexpr double kHashed = 0.4, kRows = 0.5;
  h5::ReadOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    tell(kHashed * static_cast<double>(done) / static_cast<double>(std::max(done, total)));
  };
  m_contentHash = h5::read_header(path).hash;
  m_reader = std::make_unique<run::RunReader>(path, options);
  tell(kHashed);
  auto data = std::make_shared<run::RunData>(m_reader->base());
  data->totals = m_reader->read_totals();
  tell(kHashed + 0.02);
  data->events = m_reader->read_events();
  // Here, in the loading thread: the window shows them by time.
  std::stable_sort(data->events.begin(), data->events.end(),
                   [](const run::Event& a, const run::Event& b) { return a.time_ps < b.time_ps; });
  data->requests = m_reader->read_requests();
  if (m_reader->has(run::Detail::kTokens)) data->tokens = m_reader->read_tokens();
  data->critical_path = m_reader->read_critical_path();
  tell(kRows);
  if (m_reader->has(run::Detail::kSteps)) {
    constexpr std::uint64_t kParts = 16;
    const std::uint64_t steps = m_reader->steps();
    const std::uint64_t part = std::max<std::uint64_t>(1, (steps + kParts - 1) / kParts);
    data->steps.reserve(static_cast<std::size_t>(steps));
    for (std::uint64_t first = 0; first < steps; first += part) {
      const auto block = m_reader->read_steps(first, std::min(part, steps - first));
      data->steps.insert(data->steps.end(), block.begin(), block.end());
      tell(kRows +
           (1 - kRows) * static_cast<double>(data->steps.size()) / static_cast<double>(steps));
    }
    data->reroutes = m_reader->read_reroutes();
  }
  m_data = std::move(data);
  sortEvents();
  tell(1);
}

RunStore::RunStore(std::shared_ptr<const run::RunData> run, std::string name)
    : m_name(std::move(name)), m_data(std::move(run)) {
  sortEvents();
}

RunStore::~RunStore() = default;

void RunStore::sortEvents() {
  const std::vector<run::Event>& all = m_data->events;
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    m_eventsOf[static_cast<std::size_t>(all[i].kind)].push_back(i);
  }
}

bool RunStore::replacedOnDisk() const {
  if (m_path.empty()) return false;
  try {
    return h5::read_header(m_path).hash != m_contentHash;
  } catch (const InputError&) {
    return false;
  }
}

std::uint64_t RunStore::bytesRead() const { return m_reader ? m_reader->bytes_read() : 0; }

bool RunStore::hasCapacity() const {
  if (levels() == 0 || experts() == 0) return false;
  const auto top = bins<float, double>(run::LodSeries::kExpertFill, kAllLayers,
                                       run::LodPart::kMaxAndFlag, levels(), 0);
  return std::any_of(top.max, top.max + experts(), [](float v) { return v > 0; });
}

std::size_t RunStore::width(run::LodSeries series) const {
  switch (series) {
    case run::LodSeries::kSteps:
      return run::kStepSeries;
    case run::LodSeries::kStepStart:
      return 1;
    case run::LodSeries::kGpuPhase:
      return gpus() * run::kPhases;
    case run::LodSeries::kLinkBytes:
    case run::LodSeries::kLinkUse:
      return links();
    default:
      return experts();
  }
}

const RunStore::Page* RunStore::find(const Key& key) const {
  // The page asked for last is asked for again most of the time.
  if (!m_pages.empty() && m_pages.front().key == key) return &m_pages.front();
  const auto it = m_index.find(key);
  if (it == m_index.end()) return nullptr;
  m_pages.splice(m_pages.begin(), m_pages, it->second);
  return &m_pages.front();
}

const RunStore::Page& RunStore::keep(const Key& key, Page page) const {
  page.key = key;
  ++m_pagesRead;
  m_cachedBytes += page.bytes();
  m_pages.push_front(std::move(page));
  m_index[key] = m_pages.begin();
  while (m_cachedBytes > m_budget && m_pages.size() > kLeastPages) {
    m_cachedBytes -= m_pages.back().bytes();
    m_index.erase(m_pages.back().key);
    m_pages.pop_back();
  }
  return m_pages.front();
}

template <class T, class Sum>
BinRows<T, Sum> RunStore::bins(run::LodSeries series, std::uint32_t layer, run::LodPart part,
                               std::size_t level, std::uint64_t bin) const {
  const std::uint64_t all = run::lod_bins(steps(), level);
  const bool sum = part == run::LodPart::kSum;
  if (!m_reader) {
    const auto& x = lodOf<T, Sum>(m_data->lod, series, layer).level(level);
    if (sum) return {0, all, nullptr, nullptr, x.sum.data()};
    return {0, all, x.max.data(), x.flag.data(), nullptr};
  }
  SWITCHYARD_ASSERT(level >= 1 && level <= levels() && bin < all,
                    fmt::format("bin {} of {}, level {}", bin, all, level));
  // The file holds the levels one after the other, coarsest first; a page ends where a packed piece
  // of the file does, or the level.
  std::uint64_t before = 0;
  for (std::size_t l = levels(); l > level; --l) before += run::lod_bins(steps(), l);
  const std::uint64_t rows =
      std::max<std::uint64_t>(1, kFlagBytes / std::max<std::uint64_t>(1, width(series)));
  const std::uint64_t number = (before + bin) / rows;
  const Key key{1,     static_cast<std::uint8_t>(series), static_cast<std::uint8_t>(part),
                layer, static_cast<std::uint32_t>(level), number};
  const Page* p = find(key);
  if (p == nullptr) {
    Page page;
    page.first = std::max(number * rows, before) - before;
    page.count = std::min((number + 1) * rows - before, all) - page.first;
    auto read = m_reader->read_lod_bins<T, Sum>(series, layer, part, level, page.first, page.count);
    if (sum) {
      page.of<Sum>() = std::move(read.sum);
    } else {
      page.of<T>() = std::move(read.max);
      page.flag = std::move(read.flag);
    }
    p = &keep(key, std::move(page));
  }
  if (sum) return {p->first, p->count, nullptr, nullptr, p->template data<Sum>()};
  return {p->first, p->count, p->template data<T>(), p->flag.data(), nullptr};
}
template BinRows<double, double> RunStore::bins(run::LodSeries, std::uint32_t, run::LodPart,
                                                std::size_t, std::uint64_t) const;
template BinRows<float, double> RunStore::bins(run::LodSeries, std::uint32_t, run::LodPart,
                                               std::size_t, std::uint64_t) const;
template BinRows<std::int64_t, std::int64_t> RunStore::bins(run::LodSeries, std::uint32_t,
                                                            run::LodPart, std::size_t,
                                                            std::uint64_t) const;
template BinRows<std::uint64_t, std::uint64_t> RunStore::bins(run::LodSeries, std::uint32_t,
                                                              run::LodPart, std::size_t,
                                                              std::uint64_t) const;
template BinRows<std::uint32_t, std::uint64_t> RunStore::bins(run::LodSeries, std::uint32_t,
                                                              run::LodPart, std::size_t,
                                                              std::uint64_t) const;

template <class T>
const T* RunStore::columnRow(run::StepColumn column, std::uint32_t layer, std::uint64_t step,
                             std::size_t width) const {
  SWITCHYARD_ASSERT(hasSteps() && step < steps(), fmt::format("{} of {}", step, steps()));
  const std::uint64_t rows = m_reader->rows_together(column);
  const Key key{0, static_cast<std::uint8_t>(column), 0, layer, 0, step / rows};
  const Page* p = find(key);
  if (p == nullptr) {
    Page page;
    page.first = step / rows * rows;
    page.count = std::min(rows, steps() - page.first);
    page.of<T>() = m_reader->read_column<T>(column, layer, page.first, page.count);
    p = &keep(key, std::move(page));
  }
  return p->template data<T>() + static_cast<std::size_t>(step - p->first) * width;
}

ExpertRow RunStore::expertRow(std::uint32_t layer, std::uint64_t step, unsigned columns) const {
  SWITCHYARD_ASSERT(hasSteps() && step < steps(), fmt::format("{} of {}", step, steps()));
  const auto column = [&](run::StepColumn c) -> const std::uint32_t* {
    if (m_reader) return columnRow<std::uint32_t>(c, layer, step, experts());
    const run::ExpertSteps& x =
        layer == kAllLayers ? m_data->experts : m_data->layer_experts.at(layer);
    return memoryColumn(x, c).data() + static_cast<std::size_t>(step) * experts();
  };
  ExpertRow row;
  if (columns & kKeptColumn) row.kept = column(run::StepColumn::kKept);
  if (columns & kOverflowColumn) row.overflow = column(run::StepColumn::kOverflow);
  if (columns & kReroutedInColumn) row.rerouted_in = column(run::StepColumn::kReroutedIn);
  if (columns & kQueuedColumn) row.queued = column(run::StepColumn::kQueued);
  if (columns & kDroppedColumn) row.dropped = column(run::StepColumn::kDropped);
  if (columns & kCapacityColumn) row.capacity = column(run::StepColumn::kCapacity);
  if (columns & kFillColumn) {
    if (m_reader) {
      row.fill = columnRow<float>(run::StepColumn::kFill, layer, step, experts());
    } else {
      const auto& x = layer == kAllLayers ? m_data->experts : m_data->layer_experts.at(layer);
      row.fill = x.fill.data() + static_cast<std::size_t>(step) * experts();
    }
  }
  return row;
}

const std::int64_t* RunStore::gpuPhases(std::uint64_t step) const {
  const std::size_t width = gpus() * run::kPhases;
  if (!m_reader) return m_data->gpus.phase_ps.data() + static_cast<std::size_t>(step) * width;
  return columnRow<std::int64_t>(run::StepColumn::kGpuPhase, kAllLayers, step, width);
}

const std::uint64_t* RunStore::gpuMemory(std::uint64_t step) const {
  const std::size_t width = gpus() * run::kMemoryCategories;
  if (!m_reader) return m_data->gpus.memory.data() + static_cast<std::size_t>(step) * width;
  return columnRow<std::uint64_t>(run::StepColumn::kGpuMemory, kAllLayers, step, width);
}

const std::uint64_t* RunStore::gpuMemoryPeak(std::uint64_t step) const {
  if (!m_reader) return m_data->gpus.memory_peak.data() + static_cast<std::size_t>(step) * gpus();
  return columnRow<std::uint64_t>(run::StepColumn::kGpuMemoryPeak, kAllLayers, step, gpus());
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
  return columnRow<std::uint64_t>(run::StepColumn::kLinkBytes, kAllLayers, step, links());
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
  const std::uint64_t bin = step / run::kLodFactor;
  const std::uint64_t first = bin * run::kLodFactor;
  const std::uint64_t n = std::min(run::kLodFactor, steps() - first);
  const auto x = bins<std::int64_t, std::int64_t>(run::LodSeries::kStepStart, kAllLayers,
                                                  run::LodPart::kSum, 1, bin);
  return x.sum[bin - x.first] / static_cast<std::int64_t>(n);
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
