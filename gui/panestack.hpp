// SPDX-License-Identifier: Apache-2.0
// The panes over steps, one above the other with lined-up plots, and the axis under them.
#pragma once
#include <vector>

#include <QStringList>
#include <QWidget>

#include "gui/panes.hpp"

class QScrollBar;
class QSplitter;

namespace switchyard::gui {

class PaneStack : public QWidget {
  Q_OBJECT
 public:
  /// Panels that --panel knows besides "all".
  static const QStringList& panelNames();
  /// Those of them that the window shows only when asked to.
  static const QStringList& hiddenAtFirst();

  /// `panels`: which panes (ids), from top to bottom; empty = all, with the minimap. Each must be
  /// in panelNames() (asserted).
  explicit PaneStack(ViewState* state, const QStringList& panels = {}, QWidget* parent = nullptr);

  /// Null if that pane is not in this stack.
  [[nodiscard]] TimePane* pane(const QString& id) const;
  [[nodiscard]] const std::vector<TimePane*>& panes() const { return m_panes; }
  void focusFirst();
  /// Heights of the panes; an unknown or empty state gives the shipped ones.
  [[nodiscard]] QByteArray sizesState() const;
  void restoreSizes(const QByteArray& state);
  /// Under the axis: which part of the run is on screen. Null unless this stack shows all panes.
  [[nodiscard]] QScrollBar* scrollBar() const { return m_scroll; }
  /// Shares the gutter; called when run, options or font change.
  void alignGutters();

 signals:
  void hovered(const QString& text);
  void rangeSelected(const QPoint& globalPosition);

 protected:
  void changeEvent(QEvent* event) override;
  void showEvent(QShowEvent* event) override;

 private:
  /// The part of the run on screen, on either axis, to the scroll bar and back.
  void showWindow();
  void scrolledTo(int value);
  ViewState* m_state;
  QSplitter* m_splitter;
  QList<int> m_weights;
  bool m_sized = false;  // by a person
  QWidget* m_scrollRow = nullptr;
  QScrollBar* m_scroll = nullptr;
  bool m_scrolling = false;
  AxisPane* m_axis;
  std::vector<TimePane*> m_panes;  // minimap and axis included
};

}  // namespace switchyard::gui
