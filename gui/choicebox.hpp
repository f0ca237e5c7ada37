// SPDX-License-Identifier: Apache-2.0
// A drop-down that the wheel does not change. A person who scrolls a page of them would rewrite
// what happens to pass under the mouse; the wheel goes on to the page. A click, the arrow keys and
// the first letter of an item choose, as ever. Its list is as wide as its longest item, however
// narrow the box is.
#pragma once
#include <QAbstractItemView>
#include <QComboBox>
#include <QWheelEvent>

namespace switchyard::gui {

class ChoiceBox : public QComboBox {
 public:
  using QComboBox::QComboBox;
  /// QComboBox keeps the least width of what it held first, which a tool bar would leave beside a
  /// shorter list and not count in its own width.
  [[nodiscard]] QSize minimumSizeHint() const override { return sizeHint(); }
  void showPopup() override {
    constexpr int kFrame = 24;  // outline and scroll bar
    view()->setMinimumWidth(view()->sizeHintForColumn(0) + kFrame);
    QComboBox::showPopup();
  }

 protected:
  void wheelEvent(QWheelEvent* event) override { event->ignore(); }
};

}  // namespace switchyard::gui
