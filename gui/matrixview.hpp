// SPDX-License-Identifier: Apache-2.0
// Reroutes from expert to expert or GPU to GPU, and bytes between GPUs, as a matrix: at the cursor,
// else over the selection, else over the whole run; of one layer where one is shown. Rows are where
// the tokens came from.
#pragma once
#include <QWidget>

#include "gui/core/views.hpp"
#include "gui/viewstate.hpp"

class QComboBox;
class QLabel;

namespace switchyard::gui {

/// The steps that cursor and selection mean, and their name: "at step 12", "steps 3–9", "whole
/// run".
StepSpan spanOf(const ViewState& state, QString& name);

class MatrixView : public QWidget {
  Q_OBJECT
 public:
  explicit MatrixView(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] const Matrix& matrix() const { return m_matrix; }
  void setKind(MatrixKind kind);
  [[nodiscard]] QString caption() const;
  /// The caption, or as much of it as has room in that many pixels.
  [[nodiscard]] QString shortCaption(int room) const;
  /// "e19 → e20: 40 assignments"; empty outside.
  [[nodiscard]] QString tip(const QPoint& position) const;
  [[nodiscard]] QSize sizeHint() const override { return {270, 240}; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  bool event(QEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;

 private:
  void refresh();
  /// What the run has to show, until a person chooses.
  void chooseKind();
  [[nodiscard]] QRect plot() const;
  /// Of a share of the largest cell; 0: the ground.
  [[nodiscard]] QRgb colorOf(double share) const;
  void drawLegend(QPainter& painter) const;
  [[nodiscard]] QString nameOf(std::size_t i) const;
  [[nodiscard]] bool cellAt(const QPoint& position, std::size_t& from, std::size_t& to) const;

  ViewState* m_state;
  QComboBox* m_kind;
  bool m_chosen = false;  // by a person
  Matrix m_matrix;
  QString m_when;
};

}  // namespace switchyard::gui
