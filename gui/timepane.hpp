// SPDX-License-Identifier: Apache-2.0
// Base of all panes over steps: header, gutter, plot, the shared cursor and selection, mouse and
// wheel. The content is drawn into a pixmap that is kept until something it shows changes; a cursor
// move only draws the pixmap and the cursor's lines and numbers over it. Onto a vector device (SVG)
// everything is drawn directly, by the same code.
//
//   gutter (labels, values at the cursor) | plot | right margin (half a tick label)
//
// A pane may be folded: one line high, its title in the gutter and a small plot beside it, without
// numbers but the one at the cursor.
//
// Every text goes through label(), which records its rectangle: tests intersect them.
#pragma once
#include <optional>
#include <vector>

#include <QPixmap>
#include <QString>
#include <QWidget>

#include "gui/viewstate.hpp"

class QPainter;

namespace switchyard::gui {

class TimePane : public QWidget {
  Q_OBJECT
 public:
  struct Label {
    QRect rect;
    QString text;
  };
  struct LegendItem {
    QString text;
    QColor color;
    Qt::PenStyle line = Qt::SolidLine;  ///< NoPen: a filled box.
    QString brief = {};  ///< Stands for the text where the legend has no room for all of them.
  };

  /// `state` outlives the pane.
  TimePane(ViewState* state, const QString& id, QWidget* parent = nullptr);

  /// Name for --panel: "heatmap", "imbalance", …
  [[nodiscard]] const QString& id() const { return m_id; }
  /// Width that this pane's gutter labels need in its font.
  [[nodiscard]] virtual int gutterNeeded() const = 0;
  /// The same for all panes of a stack, so that their plots line up.
  void setMargins(int gutter, int right);
  [[nodiscard]] int gutter() const { return m_gutter; }
  [[nodiscard]] QRect plotRect() const;
  /// The gutter beside the plot.
  [[nodiscard]] QRect besidePlot() const;
  /// With a triangle in its header, which folds it. Off at first: a figure has none.
  void setFoldable(bool foldable);
  [[nodiscard]] bool foldable() const { return m_foldable; }
  void setFolded(bool folded);
  [[nodiscard]] bool folded() const { return m_folded; }
  [[nodiscard]] int foldedHeight() const { return lineHeight() + 6; }
  /// Width of the gutter that holds the title of a folded pane; 0 for one that cannot be folded.
  [[nodiscard]] int foldedGutter() const;
  /// Height at which an open pane's plot is `plot` pixels high.
  [[nodiscard]] int heightFor(int plot) const;
  /// Where a click folds or unfolds: triangle and title. Empty unless foldable.
  [[nodiscard]] QRect foldRect() const;
  [[nodiscard]] QSize minimumSizeHint() const override;
  /// Of an open pane.
  [[nodiscard]] virtual QSize openMinimum() const { return QWidget::minimumSizeHint(); }
  [[nodiscard]] TimeAxis axis() const;

  /// Draws what the widget shows now; fills labels().
  void draw(QPainter& painter);
  /// Texts of the last paint, cursor values included.
  [[nodiscard]] std::vector<Label> labels() const;
  /// Pixels of the device per logical pixel, of the paint under way or last done.
  [[nodiscard]] qreal pixelRatio() const { return m_ratio; }
  /// How often the content was drawn (cursor moves must not count).
  [[nodiscard]] int contentDraws() const { return m_contentDraws; }
  void invalidate();
  /// Draws the content into its pixmap if it is not there, so that a paint only copies it. Nothing
  /// while the pane is hidden.
  void drawAhead();
  /// Something that the pane shows is being read in the background; a picture waits for it.
  [[nodiscard]] virtual bool reading() const { return false; }
  /// What the header says behind the title, uncut: the mouse over the header shows it.
  [[nodiscard]] QString headerText() const;

 signals:
  /// What lies under the mouse; empty when it leaves.
  void hovered(const QString& text);
  /// The mouse has selected a range.
  void rangeSelected(const QPoint& globalPosition);
  /// A click on the title: fold it, or unfold it.
  void foldWanted();

 protected:
  /// Steps this pane shows: the shared window, or the whole run.
  [[nodiscard]] virtual TimeWindow shownWindow() const { return m_state->window(); }
  [[nodiscard]] virtual QString title() const = 0;
  [[nodiscard]] virtual QString detail() const { return {}; }
  /// Which of the values on screen are points of their own; empty where all are.
  [[nodiscard]] virtual QString drawnText() const;
  [[nodiscard]] virtual std::vector<LegendItem> legend() const { return {}; }
  [[nodiscard]] virtual int legendWidth() const;
  /// The legend as it is drawn in that width: with short names where the whole ones do not fit.
  [[nodiscard]] std::vector<LegendItem> legendIn(int width) const;
  virtual void drawLegend(QPainter& painter, const QRect& rect);
  /// Pixels between header and plot (a strip of ticks).
  [[nodiscard]] virtual int stripHeight() const { return 0; }
  [[nodiscard]] virtual bool hasHeader() const { return true; }
  [[nodiscard]] virtual bool hasFrame() const { return true; }
  virtual void drawContent(QPainter& painter, const QRect& plot) = 0;
  /// Cursor, selection and the values at the cursor.
  virtual void drawOverlay(QPainter& painter, const QRect& plot);
  /// Values at the cursor in the gutter.
  virtual void drawCursorValues(QPainter& painter, const QRect& plot, std::uint64_t step);
  [[nodiscard]] virtual QString describe(const QPoint& position) const;
  virtual void clicked(const QPoint& position);
  virtual void doubleClicked(const QPoint& position);

  void label(QPainter& painter, const QRect& where, int flags, const QString& text,
             const QColor& color, bool bold = false);
  /// Rectangle of the gutter beside the plot, ending before the plot; `y` is the text's centre.
  [[nodiscard]] QRect gutterLine(int y) const;
  [[nodiscard]] int lineHeight() const;
  [[nodiscard]] int headerHeight() const;
  /// Of a folded pane, the number at the cursor beside its title, where it has room.
  void foldedValue(QPainter& painter, const QString& text);
  /// Width of the title in its bold font, and where it begins.
  [[nodiscard]] int titleWidth() const;
  [[nodiscard]] int titleLeft() const;
  void drawStripTick(QPainter& painter, int x) const;

  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void changeEvent(QEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  void focusInEvent(QFocusEvent* event) override;
  void focusOutEvent(QFocusEvent* event) override;

  ViewState* m_state;

 private:
  [[nodiscard]] int widthOf(const std::vector<LegendItem>& items, int gap) const;
  void drawStatic(QPainter& painter);
  void fillCache();
  void drawHeader(QPainter& painter);
  void drawFoldedTitle(QPainter& painter);
  /// Says what a click on the title does.
  void sayFold();
  void drawTriangle(QPainter& painter, int middle);
  /// Of a folded pane none.
  [[nodiscard]] int strip() const { return m_folded ? 0 : stripHeight(); }

  QString m_id;
  int m_gutter = 100, m_right = 30;
  QPixmap m_cache;
  qreal m_ratio = 1;
  bool m_dirty = true;
  int m_contentDraws = 0;
  std::vector<Label> m_staticLabels, m_cursorLabels;
  std::vector<Label>* m_sink = nullptr;
  enum class Drag { kNone, kSelect, kPan } m_drag = Drag::kNone;
  QPoint m_pressed;
  TimeWindow m_pressedWindow;
  bool m_moved = false;
  bool m_foldable = false, m_folded = false;
  bool m_inContent = false;  // the labels being drawn are the content's
};

}  // namespace switchyard::gui
