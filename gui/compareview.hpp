// SPDX-License-Identifier: Apache-2.0
// Two of the open runs side by side: which is A, which is B, and their differences as
// `switchyard diff` prints them. Where runs of A's or B's scenario with other seeds are open, the
// differences that the seeds explain are grey (sim/run/diff.hpp, within_noise).
// Not modelled: medians of the seeds (`switchyard diff` with more than two files prints them).
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
  /// Runs with other seeds, A and B among them.
  void setSeeds(std::vector<std::shared_ptr<const RunStore>> a,
                std::vector<std::shared_ptr<const RunStore>> b);
  /// What is said about the seeds; empty without several.
  [[nodiscard]] QString seedsText() const;
  [[nodiscard]] CompareModel* model() const { return m_model; }
  [[nodiscard]] TableView* table() const { return m_table; }
  [[nodiscard]] QComboBox* boxA() const { return m_a; }
  [[nodiscard]] QComboBox* boxB() const { return m_b; }
  /// Times and energy of both divided by their tokens.
  [[nodiscard]] QCheckBox* perTokenBox() const { return m_perToken; }
  [[nodiscard]] QToolButton* swapButton() const { return m_swap; }

 signals:
  /// Indices into the names; b = -1: no comparison.
  void chosen(int a, int b);

 protected:
  void resizeEvent(QResizeEvent* event) override;

 private:
  /// As wide as the contents, cut so that all columns are on screen.
  void fit();
  QComboBox *m_a, *m_b;
  QToolButton* m_swap;
  QCheckBox* m_perToken;
  QLabel *m_hint, *m_seeds;
  CompareModel* m_model;
  TableView* m_table;
};

}  // namespace switchyard::gui
