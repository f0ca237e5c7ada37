// SPDX-License-Identifier: Apache-2.0
// Tokens per expert against its capacity: kept, taken over from full experts, queued, dropped, one
// bar per expert, at the cursor, else mean per step of the selection or the run.
// A queued or dropped assignment stands at the expert that had no room for it.
#pragma once
#include <QWidget>

#include "gui/core/views.hpp"
#include "gui/viewstate.hpp"

namespace switchyard::gui {

class CapacityView : public QWidget {
  Q_OBJECT
 public:
  explicit CapacityView(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] const CapacityBars& bars() const { return m_bars; }
  [[nodiscard]] QString tip(const QPoint& position) const;
  [[nodiscard]] QSize sizeHint() const override { return {400, 140}; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  void showEvent(QShowEvent* event) override;
  bool event(QEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;

 private:
  void refresh();
  [[nodiscard]] QRect plot() const;
  [[nodiscard]] int expertAt(const QPoint& position) const;

  ViewState* m_state;
  CapacityBars m_bars;
  QString m_when;
  double m_top = 1;
  bool m_stale = true;
};

}  // namespace switchyard::gui
