// SPDX-License-Identifier: Apache-2.0
// Panes over steps that are hidden until they are asked for (View > Panes): memory of the fullest
// GPU, and the entropy of the gate. Their numbers have no levels of detail: steps on screen are
// read one by one, at most kReadSteps of them.
#pragma once
#include "gui/panes.hpp"

namespace switchyard::gui {

inline constexpr double kReadSteps = 20000;

/// High water by category, stacked; per pixel the fullest step. Dashed: the watermark.
/// Not modelled: other GPUs than the fullest one (the inspector and the run have them).
class MemoryPane : public LinePane {
  Q_OBJECT
 public:
  explicit MemoryPane(ViewState* state, QWidget* parent = nullptr);
  /// The GPU with the largest high water of the run.
  [[nodiscard]] std::size_t gpu() const;

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;
};

/// Mean over tokens and layers, bits. Dashed: 3.2 bits, where monitor's alarm stands.
class EntropyPane : public LinePane {
  Q_OBJECT
 public:
  static constexpr double kAlarm = 3.2;
  explicit EntropyPane(ViewState* state, QWidget* parent = nullptr);

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;
};

}  // namespace switchyard::gui
