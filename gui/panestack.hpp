// SPDX-License-Identifier: Apache-2.0
// The panes over steps, one above the other with lined-up plots, and the axis under them.
#pragma once
#include <vector>

#include <QStringList>
#include <QWidget>

#include "gui/panes.hpp"

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
  /// Shares the gutter; called when run, options or font change.
  void alignGutters();

 signals:
  void hovered(const QString& text);
  void rangeSelected(const QPoint& globalPosition);

 protected:
  void changeEvent(QEvent* event) override;
  void showEvent(QShowEvent* event) override;

 private:
  ViewState* m_state;
  QSplitter* m_splitter;
  AxisPane* m_axis;
  std::vector<TimePane*> m_panes;  // minimap and axis included
};

}  // namespace switchyard::gui
