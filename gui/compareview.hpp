// SPDX-License-Identifier: Apache-2.0
// Two of the open runs side by side: which is A, which is B, and their differences as
// `switchyard diff` prints them.
// Not modelled: noise between seeds; one pair of runs is compared.
#pragma once
#include <memory>
#include <vector>

#include <QWidget>

#include "gui/tableview.hpp"

class QCheckBox;
class QComboBox;
class QLabel;
class QToolButton;

namespace switchyard::gui {

class CompareView : public QWidget {
  Q_OBJECT
 public:
  explicit CompareView(ViewState* state, QWidget* parent = nullptr);
  /// Names of the open runs, in the order of opening; which of them is A, and B (-1: none).
  void setRuns(const QStringList& names, int a, int b);
  [[nodiscard]] TableView* table() const { return m_table; }
  [[nodiscard]] QComboBox* boxA() const { return m_a; }
  [[nodiscard]] QComboBox* boxB() const { return m_b; }
  /// Times and energy of both divided by their tokens.
  [[nodiscard]] QCheckBox* perTokenBox() const { return m_perToken; }
  [[nodiscard]] QToolButton* swapButton() const { return m_swap; }

 signals:
  /// Indices into the names; b = -1: no comparison.
  void chosen(int a, int b);

 private:
  QComboBox *m_a, *m_b;
  QToolButton* m_swap;
  QCheckBox* m_perToken;
  QLabel* m_hint;
  TableView* m_table;
};

}  // namespace switchyard::gui
