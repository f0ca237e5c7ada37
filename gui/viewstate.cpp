// SPDX-License-Identifier: Apache-2.0
#include "gui/viewstate.hpp"

#include <algorithm>

namespace switchyard::gui {

void ViewState::setRun(std::shared_ptr<const RunStore> run) {
  m_run = std::move(run);
  const bool alone = m_other != nullptr && m_other == m_run;
  if (alone) m_other.reset();
  m_window = {0, static_cast<double>(steps())};
  m_history.clear();
  m_moving = false;
  m_cursor.reset();
  m_selection.reset();
  m_expert = run::kNone;
  m_layer = kAllLayers;
  m_scale = m_run && !m_run->hasCapacity() ? Scale::kFairShare : Scale::kCapacity;
  emit runChanged();
  if (alone) emit otherChanged();
}

void ViewState::setOther(std::shared_ptr<const RunStore> other) {
  if (other == m_run) other.reset();
  if (other == m_other) return;
  m_other = std::move(other);
  emit otherChanged();
}

void ViewState::setWindow(TimeWindow window, Move move) {
  window = clampWindow(window, static_cast<double>(steps()));
  if (window == m_window) return;
  constexpr std::size_t kHistory = 100;
  if (move == Move::kJump || !m_moving) {
    m_history.push_back(m_window);
    if (m_history.size() > kHistory) m_history.erase(m_history.begin());
  }
  m_moving = move == Move::kContinuous;
  m_window = window;
  emit windowChanged();
}

bool ViewState::back() {
  if (m_history.empty()) return false;
  m_window = m_history.back();
  m_history.pop_back();
  m_moving = false;
  emit windowChanged();
  return true;
}

void ViewState::zoom(double at, double factor, Move move) {
  setWindow(zoomAt(m_window, at, factor, static_cast<double>(steps())), move);
}

void ViewState::pan(double delta) {
  setWindow(panBy(m_window, delta, static_cast<double>(steps())), Move::kContinuous);
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
