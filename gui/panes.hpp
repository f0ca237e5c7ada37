// SPDX-License-Identifier: Apache-2.0
// The panes over steps. Their pixel columns come from core/columns.hpp.
#pragma once
#include <vector>

#include "gui/timepane.hpp"

namespace switchyard::gui {

/// Experts by GPU (rows) over steps. Red cells, ticks above the plot and triangles in the gutter
/// mark overflow. Where experts are more than pixel rows, a row shows its largest value.
class HeatPane : public TimePane {
  Q_OBJECT
 public:
  explicit HeatPane(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] int gutterNeeded() const override;
  /// Expert drawn at the height y; kNone outside.
  [[nodiscard]] std::uint32_t expertAt(int y) const;
  /// Middle of the expert's row.
  [[nodiscard]] int yOfExpert(std::uint32_t expert) const;

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

 private:
  struct Group {
    std::uint32_t gpu = run::kNone;
    std::size_t first = 0, end = 0;  // rows
    QString text;
  };
  void refresh();
  [[nodiscard]] QString valueText(double value) const;
  [[nodiscard]] std::size_t rowAt(int y) const;

  std::vector<ExpertPlace> m_order;
  std::vector<Group> m_groups;
  double m_top = 1;
};

/// Base of the line panes: a y axis with two labels, the value at the cursor between them.
class LinePane : public TimePane {
  Q_OBJECT
 public:
  LinePane(ViewState* state, const QString& id, QWidget* parent) : TimePane(state, id, parent) {}
  [[nodiscard]] int gutterNeeded() const override;
  [[nodiscard]] QSize minimumSizeHint() const override;

 protected:
  [[nodiscard]] virtual QString valueText(double value) const = 0;
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
  double m_low = 0, m_high = 1;
};

/// imbalance = max/mean over GPUs: mean over layers, and the largest layer.
class ImbalancePane : public LinePane {
  Q_OBJECT
 public:
  explicit ImbalancePane(ViewState* state, QWidget* parent = nullptr);

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;
};

/// Duration of a step; in decode steps, the time per output token of the running sequences.
class StepTimePane : public LinePane {
  Q_OBJECT
 public:
  explicit StepTimePane(ViewState* state, QWidget* parent = nullptr);

 protected:
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;
};

/// Use of the busiest links, and the envelope over all links.
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

/// One lane per GPU: the share of each phase in its time, stacked. Stacked shares, not one colour
/// per pixel, so that waits stay visible at every zoom.
class TimelinePane : public TimePane {
  Q_OBJECT
 public:
  explicit TimelinePane(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] int gutterNeeded() const override;

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  void drawCursorValues(QPainter& painter, const QRect& plot, std::uint64_t step) override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 private:
  /// GPUs per lane: more than one only where a lane would be thinner than 6 pixels.
  [[nodiscard]] std::size_t gpusPerLane(int height) const;
  [[nodiscard]] QString laneName(std::size_t lane, std::size_t per) const;
};

/// The whole run: overflow per step, events, and the window as a handle to drag.
class MinimapPane : public TimePane {
  Q_OBJECT
 public:
  explicit MinimapPane(ViewState* state, QWidget* parent = nullptr);
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
  double m_grabbed = 0;
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

 private:
  void drawNames(QPainter& painter, const QRect& plot, const QString& step, const QString& time,
                 const QColor& color);
};

}  // namespace switchyard::gui
