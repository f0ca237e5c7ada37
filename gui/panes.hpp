// SPDX-License-Identifier: Apache-2.0
// The panes over steps. Their pixel columns come from core/columns.hpp.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include <QSet>

#include "gui/core/places.hpp"
#include "gui/timepane.hpp"
#include "gui/worker.hpp"

namespace switchyard::gui {

/// Experts (rows, by default by GPU) over steps. Red cells, ticks above the plot and triangles in
/// the gutter mark overflow. Copies of an expert that a GPU holds beside experts of its own have
/// rows there too, hatched, with the numbers of all copies together (the run has no load per copy
/// and step); at the right a dot marks an expert with copies, a ring a copy. GPUs that hold only
/// copies have a line below the rows. Where experts are more than
/// pixel rows, a row shows its largest value. Ctrl+Shift+wheel zooms the rows.
class HeatPane : public TimePane {
  Q_OBJECT
 public:
  explicit HeatPane(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] int gutterNeeded() const override;
  /// Expert drawn at the height y; kNone outside.
  [[nodiscard]] std::uint32_t expertAt(int y) const;
  /// Middle of the expert's row.
  [[nodiscard]] int yOfExpert(std::uint32_t expert) const;
  /// Lines of GPUs that hold only copies, as "GPU 4  copies of e0–1".
  [[nodiscard]] QStringList copyNames() const;
  /// Rows on screen, copies included.
  [[nodiscard]] std::size_t rows() const { return m_order.size(); }
  void showAllRows();
  /// Chooses the expert and shows the steps around its largest demand (load, without capacities).
  void zoomToHottest(std::uint32_t expert);

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] int legendWidth() const override;
  void drawLegend(QPainter& painter, const QRect& rect) override;
  [[nodiscard]] int stripHeight() const override { return 8; }
  void drawContent(QPainter& painter, const QRect& plot) override;
  void drawOverlay(QPainter& painter, const QRect& plot) override;
  void drawCursorValues(QPainter& painter, const QRect& plot, std::uint64_t step) override;
  [[nodiscard]] QString describe(const QPoint& position) const override;
  void clicked(const QPoint& position) override;
  void doubleClicked(const QPoint& position) override;
  void wheelEvent(QWheelEvent* event) override;

 private:
  struct Group {
    std::uint32_t gpu = run::kNone;
    std::size_t first = 0, end = 0;  // rows
    QString text;
  };
  /// GPUs that hold nothing but copies: which, what of, and why there are no colours.
  struct CopyLine {
    QString name, says;
  };
  void refresh();
  void findCopies();
  /// "GPU 0", of stages "GPU 0, 4"; notes where no such name is right for all layers.
  [[nodiscard]] QString groupName(std::uint32_t gpu, const std::vector<std::uint32_t>& experts);
  /// Lines of copies that have room below the rows, and the part of the plot that rows have.
  [[nodiscard]] int copyLines(const QRect& plot) const;
  [[nodiscard]] QRect rowsOf(const QRect& plot) const;
  void drawCopies(QPainter& painter, const QRect& plot);
  [[nodiscard]] QString valueText(double value) const;
  [[nodiscard]] std::size_t rowAt(int y) const;
  /// Reds from the capacity to the largest demand: width of their bar, its text, one of them.
  [[nodiscard]] int overBar() const;
  [[nodiscard]] QString overText() const;
  /// Width of the colour bar and the text behind the reds.
  struct LegendParts {
    int bar = 0;
    QString over;
  };
  [[nodiscard]] int widthOf(const LegendParts& parts) const;
  [[nodiscard]] QRgb overColor(double fill) const;

  void drawHatch(QPainter& painter, const QRect& plot, double rowHeight) const;
  /// Rows of GPUs over the steps in which they are lost.
  void drawLost(QPainter& painter, const QRect& plot, double rowHeight) const;
  /// "GPU 3", and what has become of that at the step.
  [[nodiscard]] QString placeText(const HeatRow& row, std::uint64_t step) const;

  std::vector<HeatRow> m_order;  // rows on screen
  std::size_t m_allRows = 0;
  bool m_mixed = false;  // the rows' GPUs are those of the first layer only
  std::vector<Group> m_groups;
  std::vector<CopyLine> m_copies;
  /// [GPU] of the first replica: GPUs of others that hold the same experts and step by themselves.
  std::vector<std::vector<std::uint32_t>> m_replicas;
  std::vector<LostGpu> m_lost;
  std::optional<std::uint64_t> m_movedSince;
  double m_rowFirst = 0, m_rowEnd = 0;  // share of all rows on screen, 0 … 1; end 0: all
  double m_top = 1;
  double m_overTop = 1;  // largest demand / capacity; 1: one red
};

/// Base of the line panes: a y axis with two labels, the value at the cursor between them. A click
/// on a name of the legend hides its line, another one shows it. A right click asks for a menu.
class LinePane : public TimePane {
  Q_OBJECT
 public:
  LinePane(ViewState* state, const QString& id, QWidget* parent) : TimePane(state, id, parent) {
    // The names of another run are others.
    connect(state, &ViewState::runChanged, this, [this] { m_hidden.clear(); });
    connect(state, &ViewState::otherChanged, this, [this] { m_hidden.clear(); });
  }
  /// Whether the line of that name in the legend is hidden.
  [[nodiscard]] bool hidden(const QString& name) const { return m_hidden.contains(name); }
  [[nodiscard]] int gutterNeeded() const override;
  [[nodiscard]] QSize openMinimum() const override;

 signals:
  void menuWanted(const QPoint& globalPosition);

 protected:
  void clicked(const QPoint& position) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void drawLegend(QPainter& painter, const QRect& rect) override;
  [[nodiscard]] virtual QString valueText(double value) const = 0;
  /// Of a round value at the end of the y axis.
  [[nodiscard]] virtual QString axisText(double value) const { return valueText(value); }
  /// Value at a step, for the gutter.
  [[nodiscard]] virtual double valueAt(std::uint64_t step) const = 0;
  void drawCursorValues(QPainter& painter, const QRect& plot, std::uint64_t step) override;
  void setRange(double low, double high);
  void drawRange(QPainter& painter, const QRect& plot);
  [[nodiscard]] double yOf(const QRect& plot, double value) const;
  void drawReference(QPainter& painter, const QRect& plot, double value);
  /// B of a comparison, dashed; one value per pixel.
  void drawOther(QPainter& painter, const QRect& plot, const std::vector<double>& y);
  /// Line through the column values, and a band between two of them.
  void drawLine(QPainter& painter, const QRect& plot, const std::vector<double>& y,
                const QColor& color, Qt::PenStyle style = Qt::SolidLine);
  void drawBand(QPainter& painter, const QRect& plot, const std::vector<double>& low,
                const std::vector<double>& high, QColor color);
  /// Line through points of the plot, x and value.
  void drawPoints(QPainter& painter, const QRect& plot, const std::vector<QPointF>& points,
                  const QColor& color, Qt::PenStyle style = Qt::SolidLine);
  /// Series over the window's columns, on the axis at hand; of B as far as it reaches.
  [[nodiscard]] Columns<double> series(const QRect& plot) const;
  [[nodiscard]] std::vector<double> otherSeries(const QRect& plot, run::StepSeries series) const;
  double m_low = 0, m_high = 1;

 private:
  QSet<QString> m_hidden;
  QPoint m_rightPressed;
};

/// imbalance = max/mean over GPUs: mean over layers, and the largest layer. Of a run with numbers
/// per layer also the 5th to 95th percentile over its layers, from the lowest to the highest step
/// of a pixel; they are read in the background when the pane is first drawn.
class ImbalancePane : public LinePane {
  Q_OBJECT
 public:
  explicit ImbalancePane(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] bool reading() const override { return m_worker->busy(); }
  /// Null until it is read, and for runs without.
  [[nodiscard]] const LayerSpread* spread() const { return m_spread.get(); }

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 private:
  [[nodiscard]] bool hasSpread() const;
  void startReading();
  Worker* m_worker;
  std::shared_ptr<const LayerSpread> m_spread;
  QString m_problem;
};

/// Duration of a step; in decode steps, the time per output token of the running sequences.
/// Replicas that step by themselves have a line each.
class StepTimePane : public LinePane {
  Q_OBJECT
 public:
  /// Steps on screen up to which replicas are drawn one by one.
  static constexpr double kReplicaSteps = 20000;
  explicit StepTimePane(ViewState* state, QWidget* parent = nullptr);
  /// Lines drawn for A now.
  [[nodiscard]] std::uint32_t replicas() const;

 protected:
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] QString axisText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 private:
  void drawReplica(QPainter& painter, const QRect& plot, std::uint32_t engine);
};

/// Use of the busiest links (and of the chosen one), the envelope over all links, and dashed the
/// envelope of B.
class LinkPane : public LinePane {
  Q_OBJECT
 public:
  static constexpr std::size_t kLines = 4;
  explicit LinkPane(ViewState* state, QWidget* parent = nullptr);

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  [[nodiscard]] int stripHeight() const override { return 8; }
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 private:
  void refresh();
  std::vector<std::size_t> m_links;
};

/// One lane per GPU. Where steps are narrow: the share of each phase in its time, stacked, so that
/// waits stay visible at every zoom. Where they are wide: the phases one after the other, each as
/// long as it took in the step (sums over layers), the GPU that others waited for outlined, and, at
/// deep zoom, an arrow where an exchange ends: from the GPU that was last to those that waited. On
/// an axis of time the lanes of a replica show its own steps, which overlap with those of others.
/// The recorded critical path (of the slowest step) is outlined at its times, an outline for what
/// follows each other on one GPU, thin lines from GPU to GPU; a mark above the lanes stands at that
/// step at every zoom. A zigzag above the lanes: there is more inside than the pixels show, several
/// steps, or phases thinner than a pixel (drawn as one).
class TimelinePane : public TimePane {
  Q_OBJECT
 public:
  explicit TimelinePane(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] int gutterNeeded() const override;
  [[nodiscard]] QSize openMinimum() const override;

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  [[nodiscard]] int stripHeight() const override { return 7; }
  void drawContent(QPainter& painter, const QRect& plot) override;
  void drawCursorValues(QPainter& painter, const QRect& plot, std::uint64_t step) override;
  void drawOverlay(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString describe(const QPoint& position) const override;
  void clicked(const QPoint& position) override;

 public:
  /// What the last paint drew besides shares: steps as phases, outlines, arrows, pixel columns
  /// under a zigzag.
  struct Drawn {
    std::size_t wideSteps = 0, outlines = 0, arrows = 0, moreInside = 0;
    std::size_t criticalPieces = 0, criticalOutlines = 0;
  };
  /// Part of the critical path in one outline: from one pixel to another, how long, by phase. Where
  /// there is no room for all GPUs in turn it holds short pieces of other GPUs too.
  struct Critical {
    std::uint32_t step = 0, gpu = 0;
    double left = 0, right = 0;
    std::size_t pieces = 0;
    std::array<std::int64_t, run::kPhases> ps{};
    void take(const Critical& other);
    [[nodiscard]] std::int64_t total() const;
  };
  /// In time order, as drawn over `plot`.
  [[nodiscard]] std::vector<Critical> criticalOn(const QRect& plot) const;
  [[nodiscard]] const Drawn& drawn() const { return m_drawn; }
  /// Lane drawn at the height y, and its first GPU.
  [[nodiscard]] std::size_t gpuAt(int y) const;

 private:
  struct Lanes {
    std::size_t per = 1, count = 0;
    double height = 0;
  };
  [[nodiscard]] Lanes lanes(const QRect& plot) const;
  void drawShares(QPainter& painter, const QRect& plot, const Lanes& lanes,
                  const std::vector<double>& time);
  void drawSteps(QPainter& painter, const QRect& plot, const Lanes& lanes);
  void drawCritical(QPainter& painter, const QRect& plot, const Lanes& lanes);
  void refresh();
  /// Zigzag and the mark of the critical path.
  void drawStrip(QPainter& painter, const QRect& plot);
  /// The step whose critical path was recorded, where it is on screen.
  [[nodiscard]] std::optional<std::uint32_t> criticalStep() const;
  std::vector<std::vector<std::uint32_t>> m_steps;  // [engine] its steps, ascending
  std::vector<std::uint8_t> m_thin;  // [pixel column of the plot] holds phases below a pixel
  Drawn m_drawn;
  /// GPUs per lane: more than one only where a lane would be thinner than 6 pixels.
  [[nodiscard]] std::size_t gpusPerLane(int height) const;
  /// Every so many lanes have room for a name.
  [[nodiscard]] std::size_t namedLanes(double height) const;
  [[nodiscard]] QString laneName(std::size_t lane, std::size_t per) const;
};

/// The whole run: overflow per step (or, where there is none, the time of the steps), events (a
/// zigzag where a pixel has several), and the window as a handle to drag.
class MinimapPane : public TimePane {
  Q_OBJECT
 public:
  explicit MinimapPane(ViewState* state, QWidget* parent = nullptr);
  /// Pixel columns with several events at the last paint.
  [[nodiscard]] std::size_t moreInside() const { return m_more; }
  /// Events put into columns so far: once per run, place and kind of axis, not once per paint.
  [[nodiscard]] std::uint64_t eventsPlaced() const { return m_placed; }
  [[nodiscard]] int gutterNeeded() const override;
  [[nodiscard]] QSize sizeHint() const override;

 protected:
  [[nodiscard]] TimeWindow shownWindow() const override;
  [[nodiscard]] QString title() const override { return {}; }
  [[nodiscard]] bool hasHeader() const override { return false; }
  void drawContent(QPainter& painter, const QRect& plot) override;
  void drawOverlay(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString describe(const QPoint& position) const override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;

 private:
  enum class Grip { kNone, kBody, kLeft, kRight } m_grip = Grip::kNone;
  [[nodiscard]] const std::vector<std::uint32_t>& eventsPerColumn(const QRect& plot) const;
  mutable std::vector<std::uint32_t> m_perColumn;  // empty: not counted yet
  mutable int m_perColumnLeft = 0;
  mutable const TimeScale* m_perColumnScale = nullptr;
  mutable std::uint64_t m_placed = 0;
  std::size_t m_more = 0;
  double m_outlineTop = 0;  // ps at the top of the outline; 0: none is drawn
  double m_grabbed = 0;     // x
  TimeWindow m_grabbedWindow;
};

/// Step numbers and simulated times under the panes; the cursor's in the gutter.
class AxisPane : public TimePane {
  Q_OBJECT
 public:
  explicit AxisPane(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] int gutterNeeded() const override;
  [[nodiscard]] QSize sizeHint() const override;
  /// Half of the widest tick label of the run: the margin that the last tick needs.
  [[nodiscard]] int halfLabel() const;

 protected:
  [[nodiscard]] QString title() const override { return {}; }
  [[nodiscard]] bool hasHeader() const override { return false; }
  [[nodiscard]] bool hasFrame() const override { return false; }
  void drawContent(QPainter& painter, const QRect& plot) override;
  void drawOverlay(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 private:
  void drawNames(QPainter& painter, const QRect& plot, const QString& step, const QString& time,
                 const QColor& color);
};

}  // namespace switchyard::gui
