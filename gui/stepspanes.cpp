// SPDX-License-Identifier: Apache-2.0
#include "gui/stepspanes.hpp"

#include <algorithm>
#include <cmath>

#include <QPainter>
#include <array>

#include "gui/core/views.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

/// Steps [first, end) of a pixel column, at least one.
std::pair<std::uint64_t, std::uint64_t> stepsOfColumn(const TimeWindow& w, int column, int columns,
                                                      std::uint64_t steps) {
  const double per = w.length() / columns;
  const double t0 = w.first + column * per;
  const auto first = std::min(steps - 1, static_cast<std::uint64_t>(std::max(0.0, t0)));
  const auto end = std::clamp(static_cast<std::uint64_t>(std::ceil(t0 + per)), first + 1, steps);
  return {first, end};
}

}  // namespace

MemoryPane::MemoryPane(ViewState* state, QWidget* parent)
    : LinePane(state, QStringLiteral("memory"), parent) {
  setAccessibleName(tr("Memory of the fullest GPU over steps"));
}

std::size_t MemoryPane::gpu() const {
  const auto& peaks = m_state->run()->data().totals.gpu_memory_peak;
  return static_cast<std::size_t>(std::max_element(peaks.begin(), peaks.end()) - peaks.begin());
}

QString MemoryPane::title() const { return tr("Memory"); }

QString MemoryPane::detail() const {
  const RunStore* run = m_state->run();
  if (run == nullptr || run->gpus() == 0) return {};
  return tr("GPU %1, the fullest; dashed: watermark %2 %")
      .arg(gpu())
      .arg(qRound(watermarkOf(run->data()) * 100));
}

std::vector<TimePane::LegendItem> MemoryPane::legend() const {
  std::vector<LegendItem> items;
  const RunStore* run = m_state->run();
  if (run == nullptr || run->gpus() == 0) return items;
  for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
    if (run->data().totals.gpu_memory[gpu() * run::kMemoryCategories + c] == 0) continue;
    items.push_back({qs(run::kMemoryCategoryNames[c]), m_state->theme().series[c], Qt::NoPen});
  }
  return items;
}

void MemoryPane::drawContent(QPainter& painter, const QRect& plot) {
  const RunStore& run = *m_state->run();
  const Theme& theme = m_state->theme();
  const std::size_t g = gpu();
  const double memory = static_cast<double>(run.data().inventory.gpus[g].memory_bytes);
  setRange(0, std::max(memory, static_cast<double>(run.data().totals.gpu_memory_peak[g])));
  drawRange(painter, plot);
  const TimeWindow w = m_state->window();
  if (!run.hasSteps() || w.length() > kReadSteps) {
    label(painter, plot, Qt::AlignCenter,
          run.hasSteps() ? tr("zoom in to %1 steps or fewer").arg(count(20000))
                         : tr("this run has no memory per step (detail \"steps\")"),
          theme.muted);
  } else {
    std::array<std::uint64_t, run::kMemoryCategories> shown{};
    for (int x = 0; x < plot.width(); ++x) {
      const auto [first, end] = stepsOfColumn(w, x, plot.width(), run.steps());
      std::uint64_t fullest = 0;
      for (std::uint64_t s = first; s < end; ++s) {
        const std::uint64_t* m = run.gpuMemory(s) + g * run::kMemoryCategories;
        std::uint64_t sum = 0;
        for (std::size_t c = 0; c < run::kMemoryCategories; ++c) sum += m[c];
        if (sum < fullest) continue;
        fullest = sum;
        std::copy_n(m, run::kMemoryCategories, shown.begin());
      }
      double below = 0;
      for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
        const int y0 = qRound(yOf(plot, below)) + 1;
        below += static_cast<double>(shown[c]);
        const int y1 = qRound(yOf(plot, below)) + 1;
        painter.fillRect(QRect(plot.left() + x, y1, 1, y0 - y1), theme.series[c]);
      }
    }
  }
  drawReference(painter, plot, watermarkOf(run.data()) * memory);
}

QString MemoryPane::valueText(double value) const { return qs(bytesText(value)); }

double MemoryPane::valueAt(std::uint64_t step) const {
  const RunStore& run = *m_state->run();
  return static_cast<double>(run.hasSteps() ? run.gpuMemoryPeak(step)[gpu()]
                                            : run.data().totals.gpu_memory_peak[gpu()]);
}

QString MemoryPane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr || !run->hasSteps()) return {};
  const auto step = axis().stepAt(position.x(), run->steps());
  if (!step) return {};
  const std::uint64_t* m = run->gpuMemory(*step) + gpu() * run::kMemoryCategories;
  QString text =
      tr("GPU %1, step %2: high water %3;").arg(gpu()).arg(count(*step), valueText(valueAt(*step)));
  for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
    if (m[c] > 0) {
      text += QStringLiteral(" %1 %2").arg(qs(run::kMemoryCategoryNames[c]),
                                           valueText(static_cast<double>(m[c])));
    }
  }
  return text;
}

EntropyPane::EntropyPane(ViewState* state, QWidget* parent)
    : LinePane(state, QStringLiteral("entropy"), parent) {
  setAccessibleName(tr("Entropy of the gate over steps"));
}

QString EntropyPane::title() const { return tr("Gate entropy"); }
QString EntropyPane::detail() const {
  return tr(
      "bits, mean over tokens and layers; band: up to the largest step of a pixel; dashed: "
      "alarm at 3.2");
}

void EntropyPane::drawContent(QPainter& painter, const QRect& plot) {
  const RunStore& run = *m_state->run();
  std::vector<double> mean, most;
  double top = 0;
  bool any = false;
  for (int x = 0; x < plot.width() && run.hasSteps(); ++x) {
    const auto [first, end] = stepsOfColumn(m_state->window(), x, plot.width(), run.steps());
    double sum = 0;
    double n = 0;
    double largest = 0;
    for (std::uint64_t s = first; s < end; ++s) {
      const double v = run.data().steps[static_cast<std::size_t>(s)].gate_entropy;
      if (std::isnan(v)) continue;
      sum += v;
      ++n;
      largest = std::max(largest, v);
    }
    any = any || n > 0;
    mean.push_back(n > 0 ? sum / n : 0);
    most.push_back(largest);
    top = std::max(top, largest);
  }
  setRange(0, std::max(4.0, std::ceil(top)));
  drawRange(painter, plot);
  if (!any) {
    label(painter, plot, Qt::AlignCenter, tr("this run has no entropy of the gate"),
          m_state->theme().muted);
    return;
  }
  drawBand(painter, plot, mean, most, m_state->theme().series[1]);
  drawLine(painter, plot, mean, m_state->theme().series[1]);
  drawReference(painter, plot, kAlarm);
}

QString EntropyPane::valueText(double value) const {
  return std::isnan(value) ? tr("n/a") : QString::number(value, 'f', 2);
}

double EntropyPane::valueAt(std::uint64_t step) const {
  const RunStore& run = *m_state->run();
  return run.hasSteps() ? run.data().steps[static_cast<std::size_t>(step)].gate_entropy
                        : run::kNoData;
}

QString EntropyPane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr) return {};
  const auto step = axis().stepAt(position.x(), run->steps());
  if (!step) return {};
  return tr("step %1: gate entropy %2 bit").arg(count(*step), valueText(valueAt(*step)));
}

}  // namespace switchyard::gui
