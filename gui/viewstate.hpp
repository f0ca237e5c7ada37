// SPDX-License-Identifier: Apache-2.0
// What all panes share: the run, the steps on screen, the one cursor, the selection, the chosen
// expert, and how the heat map is drawn. A setter emits its signal once, and only on a change.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <QObject>
#include <QString>

#include "gui/core/colormap.hpp"
#include "gui/core/columns.hpp"
#include "gui/core/runstore.hpp"
#include "gui/core/timeaxis.hpp"
#include "gui/core/warp.hpp"
#include "gui/theme.hpp"

namespace switchyard::gui {

/// Steps [first, end), at least one.
struct StepRange {
  std::uint64_t first = 0, end = 0;
  bool operator==(const StepRange&) const = default;
};

/// A step that a person wants to find again.
struct Bookmark {
  std::uint64_t step = 0;
  QString name;  ///< May be empty.
  bool operator==(const Bookmark&) const = default;
};

/// Order of the heat map's rows: by the GPU that holds the expert, by number, by load (most first).
enum class RowOrder { kGpu, kId, kLoad };

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

  /// setRun, with as much of the view as the new run has: steps on screen, cursor, selection,
  /// expert, GPU, link, layer, scale.
  void replaceRun(std::shared_ptr<const RunStore> run);
  [[nodiscard]] std::shared_ptr<const RunStore> runPointer() const { return m_run; }
  /// B of a comparison; null without one. Never the same as run().
  [[nodiscard]] const RunStore* other() const { return m_other.get(); }
  [[nodiscard]] std::shared_ptr<const RunStore> otherPointer() const { return m_other; }
  void setOther(std::shared_ptr<const RunStore> other);

  [[nodiscard]] TimeWindow window() const { return m_window; }
  void setWindow(TimeWindow window, Move move);
  /// False if there is nothing to go back to.
  bool back();
  /// back() calls it in its turn among the windows: what a filter was before. Another run forgets.
  void pushUndo(std::function<void()> undo);
  /// In steps, or in simulated time where the axis is of time.
  void zoom(double at, double factor, Move move = Move::kContinuous);
  void pan(double steps);
  /// `window` moved by a share of its length on the axis at hand (of time or of steps).
  [[nodiscard]] TimeWindow panned(TimeWindow window, double share) const;
  void showAll();

  [[nodiscard]] std::optional<std::uint64_t> cursor() const { return m_cursor; }
  void setCursor(std::optional<std::uint64_t> step);
  /// Puts the cursor there and moves the window so that the step is in its middle.
  void centreOn(std::uint64_t step);
  /// Moves the window, at its length, so that these steps are in its middle; they fill it where
  /// they are more. Nothing if all of them are on screen.
  void bringIntoView(StepRange range);

  [[nodiscard]] std::optional<StepRange> selection() const { return m_selection; }
  void setSelection(std::optional<StepRange> selection);

  /// kNone = no expert chosen.
  [[nodiscard]] std::uint32_t expert() const { return m_expert; }
  void setExpert(std::uint32_t expert);

  /// GPU whose lane is chosen, and a link; kNone = none.
  [[nodiscard]] std::uint32_t gpu() const { return m_gpu; }
  void setGpu(std::uint32_t gpu);
  [[nodiscard]] std::uint32_t link() const { return m_link; }
  void setLink(std::uint32_t link);

  /// Whether equal widths on screen are equal simulated times; else they are equal numbers of
  /// steps.
  [[nodiscard]] bool timeAxis() const { return m_timeAxis; }
  void setTimeAxis(bool on);
  /// Of A on an axis of time; null on an axis of steps. B's likewise.
  [[nodiscard]] const TimeScale* timeScale() const { return m_timeAxis ? m_times.get() : nullptr; }
  [[nodiscard]] const TimeScale* otherTimeScale() const {
    return m_timeAxis ? m_otherTimes.get() : nullptr;
  }

  /// By step, each step once. Steps that the run does not have are left out.
  [[nodiscard]] const std::vector<Bookmark>& bookmarks() const { return m_bookmarks; }
  void setBookmarks(std::vector<Bookmark> bookmarks);
  /// Adds, renames, or (name == nullopt) removes the bookmark of a step.
  void setBookmark(std::uint64_t step, std::optional<QString> name);

  [[nodiscard]] std::uint32_t layer() const { return m_layer; }
  [[nodiscard]] Scale scale() const { return m_scale; }
  [[nodiscard]] Aggregate aggregate() const { return m_aggregate; }
  [[nodiscard]] ColorMap colorMap() const { return m_colorMap; }
  void setLayer(std::uint32_t layer);
  void setScale(Scale scale);
  void setAggregate(Aggregate aggregate);
  void setColorMap(ColorMap map);
  [[nodiscard]] RowOrder rowOrder() const { return m_rowOrder; }
  void setRowOrder(RowOrder order);

  [[nodiscard]] const Theme& theme() const { return themeFor(m_dark); }
  void setDark(bool dark);

 signals:
  void runChanged();
  void otherChanged();
  void windowChanged();
  void cursorChanged();
  void selectionChanged();
  void expertChanged();
  void gpuChanged();
  void linkChanged();
  void bookmarksChanged();
  void optionsChanged();
  void themeChanged();

 private:
  std::shared_ptr<const RunStore> m_run, m_other;
  TimeWindow m_window;
  struct Past {
    TimeWindow window;
    std::function<void()> undo;  ///< Null: the window.
  };
  void remember(Past past);
  std::vector<Past> m_history;
  bool m_moving = false;
  std::optional<std::uint64_t> m_cursor;
  std::optional<StepRange> m_selection;
  std::uint32_t m_expert = run::kNone;
  std::uint32_t m_gpu = run::kNone, m_link = run::kNone;
  bool m_timeAxis = false;
  std::shared_ptr<const TimeScale> m_times, m_otherTimes;  // where the axis is of time
  std::vector<Bookmark> m_bookmarks;
  RowOrder m_rowOrder = RowOrder::kGpu;
  std::uint32_t m_layer = kAllLayers;
  Scale m_scale = Scale::kCapacity;
  Aggregate m_aggregate = Aggregate::kMax;
  ColorMap m_colorMap = ColorMap::kViridis;
  bool m_dark = false;
};

}  // namespace switchyard::gui
