// SPDX-License-Identifier: Apache-2.0
// The twelve-token tour as a picture: tokens from top to bottom, experts from left to right; Next
// places one token after the other.
#pragma once
#include <vector>

#include <QDialog>

#include "gui/core/tour.hpp"
#include "gui/theme.hpp"

class QComboBox;
class QLabel;
class QPushButton;

namespace switchyard::gui {

class TourBoard : public QWidget {
  Q_OBJECT
 public:
  explicit TourBoard(QWidget* parent = nullptr) : QWidget(parent) { setMinimumSize(560, 330); }
  void show(const TourStage& stage, std::uint32_t placed, const Theme& theme);

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  TourStage m_stage;
  std::uint32_t m_placed = 0;
  const Theme* m_theme = nullptr;
};

class Tour : public QDialog {
  Q_OBJECT
 public:
  explicit Tour(const Theme& theme, QWidget* parent = nullptr);
  [[nodiscard]] QString sentence() const;
  [[nodiscard]] std::uint32_t placed() const { return m_placed; }
  [[nodiscard]] QPushButton* nextButton() const { return m_next; }
  [[nodiscard]] QPushButton* backButton() const { return m_back; }
  [[nodiscard]] QComboBox* stageBox() const { return m_stage; }

 private:
  void refresh();
  const Theme& m_theme;
  std::vector<TourStage> m_stages;
  std::uint32_t m_placed = 0;
  TourBoard* m_board;
  QComboBox* m_stage;
  QLabel* m_text;
  QPushButton *m_back, *m_next;
};

}  // namespace switchyard::gui
