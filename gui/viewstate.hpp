// SPDX-License-Identifier: Apache-2.0
// What all panes share: the run, the steps on screen, the one cursor, the selection, the chosen
// expert, and how the heat map is drawn. A setter emits its signal once, and only on a change.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include <QObject>

#include "gui/core/colormap.hpp"
#include "gui/core/columns.hpp"
#include "gui/core/runstore.hpp"
#include "gui/core/timeaxis.hpp"
#include "gui/theme.hpp"

namespace switchyard::gui {

/// Steps [first, end), at least one.
struct StepRange {
  std::uint64_t first = 0, end = 0;
  bool operator==(const StepRange&) const = default;
};

class ViewState : public QObject {
  Q_OBJECT
 public:
  /// A jump can be undone by back(); steps of one continuous movement are undone together.
  enum class Move { kJump, kContinuous };

  explicit ViewState(QObject* parent = nullptr) : QObject(parent) {}

  /// Null when nothing is open. Shared, because panes of an older run may still be painting.
  [[nodiscard]] const RunStore* run() const { return m_run.get(); }
  [[nodiscard]] std::uint64_t steps() const { return m_run ? m_run->steps() : 0; }
  /// B stays unless it is the same run. Shows the whole run, no cursor, no selection, all layers,
  /// and the scale that the run has data for.
  void setRun(std::shared_ptr<const RunStore> run);

  [[nodiscard]] std::shared_ptr<const RunStore> runPointer() const { return m_run; }
  /// B of a comparison; null without one. Never the same as run().
  [[nodiscard]] const RunStore* other() const { return m_other.get(); }
  [[nodiscard]] std::shared_ptr<const RunStore> otherPointer() const { return m_other; }
  void setOther(std::shared_ptr<const RunStore> other);

  [[nodiscard]] TimeWindow window() const { return m_window; }
  void setWindow(TimeWindow window, Move move);
  /// False if there is nothing to go back to.
  bool back();
  void zoom(double at, double factor, Move move = Move::kContinuous);
  void pan(double steps);
  void showAll();

  [[nodiscard]] std::optional<std::uint64_t> cursor() const { return m_cursor; }
  void setCursor(std::optional<std::uint64_t> step);
  /// Puts the cursor there and moves the window so that the step is in its middle.
  void centreOn(std::uint64_t step);

  [[nodiscard]] std::optional<StepRange> selection() const { return m_selection; }
  void setSelection(std::optional<StepRange> selection);

  /// kNone = no expert chosen.
  [[nodiscard]] std::uint32_t expert() const { return m_expert; }
  void setExpert(std::uint32_t expert);

  [[nodiscard]] std::uint32_t layer() const { return m_layer; }
  [[nodiscard]] Scale scale() const { return m_scale; }
  [[nodiscard]] Aggregate aggregate() const { return m_aggregate; }
  [[nodiscard]] ColorMap colorMap() const { return m_colorMap; }
  void setLayer(std::uint32_t layer);
  void setScale(Scale scale);
  void setAggregate(Aggregate aggregate);
  void setColorMap(ColorMap map);

  [[nodiscard]] const Theme& theme() const { return themeFor(m_dark); }
  void setDark(bool dark);

 signals:
  void runChanged();
  void otherChanged();
  void windowChanged();
  void cursorChanged();
  void selectionChanged();
  void expertChanged();
  void optionsChanged();
  void themeChanged();

 private:
  std::shared_ptr<const RunStore> m_run, m_other;
  TimeWindow m_window;
  std::vector<TimeWindow> m_history;
  bool m_moving = false;
  std::optional<std::uint64_t> m_cursor;
  std::optional<StepRange> m_selection;
  std::uint32_t m_expert = run::kNone;
  std::uint32_t m_layer = kAllLayers;
  Scale m_scale = Scale::kCapacity;
  Aggregate m_aggregate = Aggregate::kMax;
  ColorMap m_colorMap = ColorMap::kViridis;
  bool m_dark = false;
};

}  // namespace switchyard::gui
