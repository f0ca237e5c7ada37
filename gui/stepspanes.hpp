// SPDX-License-Identifier: Apache-2.0
// Panes over steps that are hidden until they are asked for (View > Panes, or a right click on a
// line pane): memory of the fullest GPU, the entropy of the gate, any other number per step, and
// the latency of requests (which a run with arriving requests shows by itself).
#pragma once
#include <array>
#include <memory>
#include <optional>

#include "gui/core/health.hpp"
#include "gui/core/latency.hpp"
#include "gui/panes.hpp"
#include "gui/readingbar.hpp"
#include "gui/worker.hpp"

namespace switchyard::gui {

/// Steps on screen up to which the memory pane reads each of them.
inline constexpr double kReadSteps = 20000;

/// High water by category, stacked. Up to kReadSteps steps on screen: per pixel those of the
/// fullest step. Beyond: from levels of detail that are made of the file's steps in the background
/// when they are first needed, per pixel the largest of each category, cut at the largest sum.
/// Dashed: the watermark. Not modelled: other GPUs than the fullest one (the inspector and the run
/// have them).
class MemoryPane : public LinePane {
  Q_OBJECT
 public:
  explicit MemoryPane(ViewState* state, QWidget* parent = nullptr);
  /// The chosen GPU, else the one with the largest high water of the run.
  [[nodiscard]] std::size_t gpu() const;

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 public:
  void setReadSteps(double steps) { m_readSteps = steps; }
  /// Levels of detail are being made.
  [[nodiscard]] bool reading() const override { return m_worker->busy(); }
  /// How far the reading is, with Cancel; lies over the plot while it reads.
  [[nodiscard]] ReadingBar* readingBar() const { return m_bar; }

 protected:
  void resizeEvent(QResizeEvent* event) override;

 private:
  void drop();
  /// Categories of one GPU, then their sum.
  using MemoryLod = run::Lod<std::uint64_t, std::uint64_t>;
  void startReading();
  void drawStack(QPainter& painter, const QRect& plot, int x,
                 const std::array<std::uint64_t, run::kMemoryCategories>& bytes, double most);
  void placeBar();
  Worker* m_worker;
  ReadingBar* m_bar;
  std::shared_ptr<const MemoryLod> m_lod;
  QString m_problem;
  double m_readSteps = kReadSteps;
};

/// Mean over tokens and layers, bits, at every length of the run (levels of detail are made of the
/// scalars of the steps). Dashed: the threshold of the run's first rule on gate_entropy
/// (entropyAlarmOf); no line where its scenario watches other signals only.
class EntropyPane : public LinePane {
  Q_OBJECT
 public:
  /// Bits; nullopt: no rule watches it.
  [[nodiscard]] std::optional<EntropyAlarm> alarm() const { return m_alarm; }
  explicit EntropyPane(ViewState* state, QWidget* parent = nullptr);
  /// Steps put into levels of detail so far: those of a run when it is first drawn.
  [[nodiscard]] std::uint64_t stepsRead() const { return m_read; }

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 private:
  void refresh();
  void makeLevels();
  run::Lod<double, double> m_lod{2};  // value or 0, and 1 where there is a value
  bool m_made = false, m_any = false;
  std::uint64_t m_read = 0;
  std::optional<EntropyAlarm> m_alarm;
};

/// One of the numbers per step that have levels of detail (run::StepSeries), B dashed over it.
class MetricPane : public LinePane {
  Q_OBJECT
 public:
  explicit MetricPane(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] run::StepSeries metric() const { return m_metric; }
  void setMetric(run::StepSeries metric);

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] QString axisText(double value) const override;
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 private:
  run::StepSeries m_metric = run::StepSeries::kTokens;
};

/// TTFT and TPOT of the requests whose first (last) token appeared there: median and 99th
/// percentile of bins of kBinPixels, on a logarithmic axis, with the targets of workload.slo and
/// the tiers dashed. Gaps: bins without such a request. Values of the axis are log10 of
/// picoseconds.
class LatencyPane : public LinePane {
  Q_OBJECT
 public:
  static constexpr int kBinPixels = 12;
  explicit LatencyPane(ViewState* state, QWidget* parent = nullptr);
  /// The bins of the last paint.
  [[nodiscard]] const std::vector<LatencySeries::Bin>& bins() const { return m_bins; }

 protected:
  [[nodiscard]] QString title() const override;
  [[nodiscard]] QString detail() const override;
  /// How many of the run's requests have the times that are drawn.
  [[nodiscard]] QString drawnText() const override;
  [[nodiscard]] std::vector<LegendItem> legend() const override;
  void drawContent(QPainter& painter, const QRect& plot) override;
  [[nodiscard]] QString valueText(double value) const override;
  [[nodiscard]] QString axisText(double value) const override;
  /// TTFT p99 of the bin, TPOT p99 where the run has no TTFT.
  [[nodiscard]] double valueAt(std::uint64_t step) const override;
  [[nodiscard]] QString describe(const QPoint& position) const override;

 private:
  void refresh();
  [[nodiscard]] std::vector<double> edges(const QRect& plot) const;
  [[nodiscard]] const LatencySeries::Bin* binAt(double t) const;
  LatencySeries m_series, m_otherSeries;
  std::vector<double> m_ttftTargets, m_tpotTargets;
  std::vector<double> m_edges;
  std::vector<LatencySeries::Bin> m_bins;
};

}  // namespace switchyard::gui
