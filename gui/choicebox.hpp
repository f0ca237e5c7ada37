// SPDX-License-Identifier: Apache-2.0
// A drop-down that the wheel does not change. A person who scrolls a page of them would rewrite
// what happens to pass under the mouse; the wheel goes on to the page. A click, the arrow keys and
// the first letter of an item choose, as ever.
#pragma once
#include <QComboBox>
#include <QWheelEvent>

namespace switchyard::gui {

class ChoiceBox : public QComboBox {
 public:
  using QComboBox::QComboBox;

 protected:
  void wheelEvent(QWheelEvent* event) override { event->ignore(); }
};

}  // namespace switchyard::gui
