// SPDX-License-Identifier: Apache-2.0
#include "gui/viewstate.hpp"

#include <algorithm>

namespace switchyard::gui {

void ViewState::setRun(std::shared_ptr<const RunStore> run) {
  // Both read the file and may throw: the old run stays then.
  const bool capacity = !run || run->hasCapacity();
  auto times = m_timeAxis && run ? timeScaleOf(*run) : nullptr;
  m_run = std::move(run);
  const bool alone = m_other != nullptr && m_other == m_run;
  if (alone) m_other.reset();
  m_window = {0, static_cast<double>(steps())};
  m_history.clear();
  m_moving = false;
  m_cursor.reset();
  m_selection.reset();
  m_expert = m_gpu = m_link = run::kNone;
  m_bookmarks.clear();
  m_times = std::move(times);
  if (alone) m_otherTimes.reset();
  m_layer = kAllLayers;
  m_scale = capacity ? Scale::kCapacity : Scale::kFairShare;
  emit runChanged();
  if (alone) emit otherChanged();
}

void ViewState::replaceRun(std::shared_ptr<const RunStore> run) {
  const TimeWindow window = m_window;
  const bool whole = window.length() >= static_cast<double>(steps());
  const auto cursor = m_cursor;
  const auto selection = m_selection;
  const std::uint32_t expert = m_expert;
  const std::uint32_t gpu = m_gpu;
  const std::uint32_t link = m_link;
  const std::uint32_t layer = m_layer;
  const Scale scale = m_scale;
  setRun(std::move(run));
  if (m_run == nullptr) return;
  const bool layers = m_run->hasLayers() && layer < m_run->data().inventory.moe_layers.size();
  if (layer != kAllLayers && layers) setLayer(layer);
  if (scale != Scale::kCapacity || m_run->hasCapacity()) setScale(scale);
  if (!whole && window.end <= static_cast<double>(steps())) {
    setWindow(window, Move::kContinuous);
    m_moving = false;
  }
  if (cursor && *cursor < steps()) setCursor(cursor);
  if (selection && selection->end <= steps()) setSelection(selection);
  if (expert < m_run->experts()) setExpert(expert);
  if (gpu < m_run->gpus()) setGpu(gpu);
  if (link < m_run->links()) setLink(link);
}

void ViewState::setOther(std::shared_ptr<const RunStore> other) {
  if (other == m_run) other.reset();
  if (other == m_other) return;
  m_other = std::move(other);
  m_otherTimes = m_timeAxis && m_other ? timeScaleOf(*m_other) : nullptr;
  emit otherChanged();
}

void ViewState::setWindow(TimeWindow window, Move move) {
  window = clampWindow(window, static_cast<double>(steps()));
  if (window == m_window) return;
  if (move == Move::kJump || !m_moving) remember({m_window, nullptr});
  m_moving = move == Move::kContinuous;
  m_window = window;
  emit windowChanged();
}

bool ViewState::back() {
  if (m_history.empty()) return false;
  const Past past = std::move(m_history.back());
  m_history.pop_back();
  m_moving = false;
  if (past.undo != nullptr) {
    past.undo();
    return true;
  }
  m_window = past.window;
  emit windowChanged();
  return true;
}

void ViewState::remember(Past past) {
  constexpr std::size_t kHistory = 100;
  m_history.push_back(std::move(past));
  if (m_history.size() > kHistory) m_history.erase(m_history.begin());
}

void ViewState::pushUndo(std::function<void()> undo) {
  m_moving = false;
  remember({m_window, std::move(undo)});
}

void ViewState::zoom(double at, double factor, Move move) {
  const auto all = static_cast<double>(steps());
  setWindow(timeScale() != nullptr ? zoomInTime(*timeScale(), m_window, at, factor, all)
                                   : zoomAt(m_window, at, factor, all),
            move);
}

TimeWindow ViewState::panned(TimeWindow window, double share) const {
  const auto all = static_cast<double>(steps());
  return timeScale() != nullptr ? panInTime(*timeScale(), window, share, all)
                                : panBy(window, share * window.length(), all);
}

void ViewState::pan(double delta) {
  if (!(m_window.length() > 0)) return;
  setWindow(panned(m_window, delta / m_window.length()), Move::kContinuous);
}

void ViewState::setTimeAxis(bool on) {
  if (on == m_timeAxis) return;
  m_timeAxis = on;
  m_times = on && m_run ? timeScaleOf(*m_run) : nullptr;
  m_otherTimes = on && m_other ? timeScaleOf(*m_other) : nullptr;
  emit windowChanged();  // everything lies elsewhere
}

void ViewState::setGpu(std::uint32_t gpu) {
  if (gpu == m_gpu) return;
  m_gpu = gpu;
  emit gpuChanged();
}

void ViewState::setLink(std::uint32_t link) {
  if (link == m_link) return;
  m_link = link;
  emit linkChanged();
}

void ViewState::setBookmarks(std::vector<Bookmark> bookmarks) {
  std::erase_if(bookmarks, [this](const Bookmark& b) { return b.step >= steps(); });
  std::stable_sort(bookmarks.begin(), bookmarks.end(),
                   [](const Bookmark& a, const Bookmark& b) { return a.step < b.step; });
  const auto same = [](const Bookmark& a, const Bookmark& b) { return a.step == b.step; };
  bookmarks.erase(std::unique(bookmarks.begin(), bookmarks.end(), same), bookmarks.end());
  if (bookmarks == m_bookmarks) return;
  m_bookmarks = std::move(bookmarks);
  emit bookmarksChanged();
}

void ViewState::setBookmark(std::uint64_t step, std::optional<QString> name) {
  std::vector<Bookmark> all = m_bookmarks;
  std::erase_if(all, [step](const Bookmark& b) { return b.step == step; });
  if (name) all.push_back({step, *name});
  setBookmarks(std::move(all));
}

void ViewState::showAll() { setWindow({0, static_cast<double>(steps())}, Move::kJump); }

void ViewState::setCursor(std::optional<std::uint64_t> step) {
  if (step && steps() == 0) return;
  if (step) step = std::min(*step, steps() - 1);
  if (step == m_cursor) return;
  m_cursor = step;
  emit cursorChanged();
}

void ViewState::centreOn(std::uint64_t step) {
  const double middle = static_cast<double>(step) + 0.5;
  const double half = m_window.length() / 2;
  setWindow({middle - half, middle + half}, Move::kJump);
  setCursor(step);
}

void ViewState::bringIntoView(StepRange range) {
  range.end = std::min(range.end, steps());
  if (range.first >= range.end) return;
  const auto first = static_cast<double>(range.first);
  const auto end = static_cast<double>(range.end);
  if (first >= m_window.first && end <= m_window.end) return;
  constexpr double kMargin = 0.05;  // beside steps that fill the window, of their number
  const double half =
      end - first <= m_window.length() ? m_window.length() / 2 : (end - first) * (0.5 + kMargin);
  const double middle = (first + end) / 2;
  setWindow({middle - half, middle + half}, Move::kJump);
}

void ViewState::setSelection(std::optional<StepRange> selection) {
  if (selection) {
    selection->end = std::min(selection->end, steps());
    if (selection->first >= selection->end) selection.reset();
  }
  if (selection == m_selection) return;
  m_selection = selection;
  emit selectionChanged();
}

void ViewState::setExpert(std::uint32_t expert) {
  if (expert == m_expert) return;
  m_expert = expert;
  emit expertChanged();
}

void ViewState::setLayer(std::uint32_t layer) {
  if (layer == m_layer) return;
  m_layer = layer;
  emit optionsChanged();
}

void ViewState::setScale(Scale scale) {
  if (scale == m_scale) return;
  m_scale = scale;
  emit optionsChanged();
}

void ViewState::setAggregate(Aggregate aggregate) {
  if (aggregate == m_aggregate) return;
  m_aggregate = aggregate;
  emit optionsChanged();
}

void ViewState::setRowOrder(RowOrder order) {
  if (order == m_rowOrder) return;
  m_rowOrder = order;
  emit optionsChanged();
}

void ViewState::setColorMap(ColorMap map) {
  if (map == m_colorMap) return;
  m_colorMap = map;
  emit optionsChanged();
}

void ViewState::setDark(bool dark) {
  if (dark == m_dark) return;
  m_dark = dark;
  emit themeChanged();
}

}  // namespace switchyard::gui
