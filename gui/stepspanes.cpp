// SPDX-License-Identifier: Apache-2.0
#include "gui/stepspanes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <QPainter>
#include <QTimer>
#include <array>

#include "engine/base/error.hpp"
#include "gui/core/views.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

/// Steps [first, end) of the columns between `edges`, at least one each.
std::pair<std::uint64_t, std::uint64_t> stepsOfColumn(const std::vector<double>& edges,
                                                      std::size_t column, std::uint64_t steps) {
  const auto first =
      std::min(steps - 1, static_cast<std::uint64_t>(std::max(0.0, edges[column] + 1e-9)));
  const auto end =
      std::clamp(static_cast<std::uint64_t>(std::ceil(edges[column + 1] - 1e-9)), first + 1, steps);
  return {first, end};
}

/// Columns of [value, there is one]: of single steps where they are wide, of the levels else.
Columns<double> entropyColumns(const RunStore& run, const run::Lod<double, double>& lod,
                               TimeWindow window, std::size_t columns) {
  Columns<double> out;
  out.columns = columns;
  out.width = 2;
  out.max.assign(columns * 2, 0.0);
  out.sum.assign(columns * 2, 0.0);
  if (lod.levels() == 0) return out;
  out.level = levelForColumns(window, columns, 0, lod.levels());
  const std::uint64_t width = run::lod_bin_steps(out.level);
  const std::uint64_t bins = run::lod_bins(run.steps(), out.level);
  const std::vector<double> edges = columnEdges(nullptr, window, columns);
  for (std::size_t c = 0; c < columns; ++c) {
    const auto w = static_cast<double>(width);
    const auto first = std::min(
        bins - 1, static_cast<std::uint64_t>(std::max(0.0, std::floor(edges[c] / w + 1e-9))));
    const auto end =
        std::clamp(static_cast<std::uint64_t>(std::max(0.0, std::ceil(edges[c + 1] / w - 1e-9))),
                   first + 1, bins);
    for (std::uint64_t b = first; b < end; ++b) {
      if (out.level == 0) {
        const double v = run.data().steps[static_cast<std::size_t>(b)].gate_entropy;
        if (std::isnan(v)) continue;
        out.max[c * 2] = std::max(out.max[c * 2], v);
        out.sum[c * 2] += v;
        out.sum[c * 2 + 1] += 1;
      } else {
        const auto& level = lod.level(out.level);
        const std::size_t i = static_cast<std::size_t>(b) * 2;
        out.max[c * 2] = std::max(out.max[c * 2], level.max[i]);
        out.sum[c * 2] += level.sum[i];
        out.sum[c * 2 + 1] += level.sum[i + 1];
      }
    }
  }
  return out;
}

}  // namespace

MemoryPane::MemoryPane(ViewState* state, QWidget* parent)
    : LinePane(state, QStringLiteral("memory"), parent),
      m_worker(new Worker(this)),
      m_bar(new ReadingBar(this)) {
  setAccessibleName(tr("Memory of a GPU over steps"));
  connect(state, &ViewState::runChanged, this, &MemoryPane::drop);
  // Another GPU's levels have to be read.
  connect(state, &ViewState::gpuChanged, this, [this] {
    drop();
    invalidate();
  });
  connect(m_bar, &ReadingBar::cancelled, this, [this] {
    m_worker->stop();
    m_problem = tr("stopped: the memory of so many steps was not read");
    m_bar->setStopped();
    placeBar();
    invalidate();
  });
  connect(m_bar, &ReadingBar::wanted, this, [this] {
    drop();
    startReading();
    invalidate();
  });
}

void MemoryPane::drop() {
  m_worker->stop();
  m_lod.reset();
  m_problem.clear();
  m_bar->setDone();
}

void MemoryPane::placeBar() {
  // Below the line of text that says what is read.
  const QRect plot = plotRect();
  const QSize size = m_bar->sizeHint().boundedTo(plot.size());
  m_bar->setGeometry(QRect(
      QPoint(plot.center().x() - size.width() / 2,
             std::min(plot.center().y() + lineHeight() / 2 + 2, plot.bottom() + 1 - size.height())),
      size));
}

void MemoryPane::resizeEvent(QResizeEvent* event) {
  LinePane::resizeEvent(event);
  placeBar();
}

void MemoryPane::startReading() {
  if (m_worker->busy() || m_lod || !m_problem.isEmpty()) return;
  const auto append = [](MemoryLod& lod, const std::uint64_t* categories, std::uint64_t peak) {
    std::array<std::uint64_t, run::kMemoryCategories + 1> row{};
    std::copy_n(categories, run::kMemoryCategories, row.begin());
    row.back() = peak;
    lod.append(row);
  };
  const auto permille = std::make_shared<std::atomic<int>>(0);
  // This may be asked for while the pane is painted.
  QTimer::singleShot(0, this, [this, permille] {
    if (!m_worker->busy()) return;
    m_bar->setReading(permille);
    placeBar();
  });
  m_worker->run(
      [this, append, permille, run = m_state->runPointer(),
       g = gpu()](const std::atomic<bool>& stop) -> std::function<void()> {
        auto lod = std::make_shared<MemoryLod>(run::kMemoryCategories + 1);
        const std::size_t gpus = run->gpus();
        const auto take = [&](const run::GpuSteps& steps, std::size_t count) {
          for (std::size_t s = 0; s < count; ++s) {
            append(*lod, steps.memory.data() + (s * gpus + g) * run::kMemoryCategories,
                   steps.memory_peak[s * gpus + g]);
          }
        };
        if (run->path().empty()) {
          take(run->data().gpus, static_cast<std::size_t>(run->steps()));
        } else {
          // A reader of its own: the store is the window's. The file was checked when it was
          // opened, and is checked again, since it may have been replaced.
          const run::RunReader reader(run->path());
          constexpr std::uint64_t kPart = 4096;
          // Another file of the same scenario has the same names and the same number of steps:
          // only the content tells.
          if (run->replacedOnDisk()) {
            throw InputError(run->path().string(), "is another run now", "reload it (F5)");
          }
          for (std::uint64_t first = 0; first < reader.steps() && !stop; first += kPart) {
            const std::uint64_t n = std::min(kPart, reader.steps() - first);
            take(reader.read_gpus(first, n), static_cast<std::size_t>(n));
            *permille = static_cast<int>((first + n) * 1000 / reader.steps());
          }
        }
        return [this, lod] {
          m_lod = lod;
          m_bar->setDone();
          invalidate();
        };
      },
      [this](const QString& text) {
        m_problem = text;
        m_bar->setDone();
        invalidate();
      });
}

void MemoryPane::drawStack(QPainter& painter, const QRect& plot, int x,
                           const std::array<std::uint64_t, run::kMemoryCategories>& bytes,
                           double most) {
  double below = 0;
  for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
    const int y0 = qRound(yOf(plot, below)) + 1;
    below = std::min(most, below + static_cast<double>(bytes[c]));
    const int y1 = qRound(yOf(plot, below)) + 1;
    painter.fillRect(QRect(plot.left() + x, y1, 1, y0 - y1), m_state->theme().series[c]);
  }
}

std::size_t MemoryPane::gpu() const {
  if (m_state->gpu() < m_state->run()->gpus()) return m_state->gpu();
  const auto& peaks = m_state->run()->data().totals.gpu_memory_peak;
  return static_cast<std::size_t>(std::max_element(peaks.begin(), peaks.end()) - peaks.begin());
}

QString MemoryPane::title() const { return tr("Memory"); }

QString MemoryPane::detail() const {
  const RunStore* run = m_state->run();
  if (run == nullptr || run->gpus() == 0) return {};
  return tr("GPU %1, %2; dashed: watermark %3 %")
      .arg(gpu())
      .arg(m_state->gpu() < run->gpus() ? tr("chosen") : tr("the fullest"))
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
  const auto columns = static_cast<std::size_t>(plot.width());
  const std::vector<double> edges = columnEdges(m_state->timeScale(), w, columns);
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  if (!run.hasSteps()) {
    label(painter, plot, Qt::AlignCenter, tr("this run has no memory per step (detail \"steps\")"),
          theme.muted);
  } else if (w.length() <= m_readSteps) {
    std::array<std::uint64_t, run::kMemoryCategories> shown{};
    for (std::size_t x = 0; x < columns; ++x) {
      const auto [first, end] = stepsOfColumn(edges, x, run.steps());
      std::uint64_t fullest = 0;
      for (std::uint64_t s = first; s < end; ++s) {
        const std::uint64_t* m = run.gpuMemory(s) + g * run::kMemoryCategories;
        std::uint64_t sum = 0;
        for (std::size_t c = 0; c < run::kMemoryCategories; ++c) sum += m[c];
        if (sum < fullest) continue;
        fullest = sum;
        std::copy_n(m, run::kMemoryCategories, shown.begin());
      }
      drawStack(painter, plot, static_cast<int>(x), shown, kNoLimit);
    }
  } else if (m_lod) {
    const std::size_t level =
        std::max<std::size_t>(1, levelForColumns(w, columns, 0, m_lod->levels()));
    const auto& bins = m_lod->level(level).max;
    const auto steps = static_cast<double>(run::lod_bin_steps(level));
    const std::size_t width = run::kMemoryCategories + 1;
    for (std::size_t x = 0; x < columns; ++x) {
      const auto [first, end] = stepsOfColumn({edges[x] / steps, edges[x + 1] / steps}, 0,
                                              run::lod_bins(run.steps(), level));
      std::array<std::uint64_t, run::kMemoryCategories> shown{};
      std::uint64_t most = 0;
      for (std::uint64_t b = first; b < end; ++b) {
        const std::uint64_t* row = bins.data() + static_cast<std::size_t>(b) * width;
        for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
          shown[c] = std::max(shown[c], row[c]);
        }
        most = std::max(most, row[run::kMemoryCategories]);
      }
      drawStack(painter, plot, static_cast<int>(x), shown, static_cast<double>(most));
    }
  } else {
    startReading();
    label(painter, plot, Qt::AlignCenter,
          m_problem.isEmpty() ? tr("reading the memory of %1 steps …").arg(count(run.steps()))
                              : m_problem,
          m_problem.isEmpty() ? theme.muted : theme.saturated);
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
  connect(state, &ViewState::runChanged, this, &EntropyPane::refresh);
  refresh();
}

void EntropyPane::refresh() {
  m_lod = run::Lod<double, double>(2);
  m_made = m_any = false;
  m_alarm.reset();
  const RunStore* run = m_state->run();
  if (run != nullptr && run->hasSteps()) m_alarm = entropyAlarmOf(run->data());
}

void EntropyPane::makeLevels() {
  if (m_made) return;
  m_made = true;
  const std::vector<run::StepScalars>& steps = m_state->run()->data().steps;
  m_read += steps.size();
  for (const run::StepScalars& s : steps) {
    const bool there = !std::isnan(s.gate_entropy);
    m_any = m_any || there;
    m_lod.append(std::array<double, 2>{there ? s.gate_entropy : 0.0, there ? 1.0 : 0.0});
  }
}

QString EntropyPane::title() const { return tr("Gate entropy"); }
QString EntropyPane::detail() const {
  const QString what =
      tr("bits, mean over tokens and layers; band: up to the largest step of a pixel");
  if (!m_alarm) return what;
  return what + (m_alarm->above ? tr("; dashed: alarm above %1") : tr("; dashed: alarm below %1"))
                    .arg(qs(shortNumber(m_alarm->threshold)));
}

void EntropyPane::drawContent(QPainter& painter, const QRect& plot) {
  const RunStore& run = *m_state->run();
  makeLevels();
  const Columns<double> c =
      overColumns(m_state->timeScale(), m_state->window(), static_cast<std::size_t>(plot.width()),
                  [&](TimeWindow w, std::size_t n) { return entropyColumns(run, m_lod, w, n); });
  std::vector<double> mean, most;
  double top = 0;
  for (std::size_t x = 0; x < c.columns; ++x) {
    const double n = c.sum[x * 2 + 1];
    mean.push_back(n > 0 ? c.sum[x * 2] / n : 0);
    most.push_back(c.max[x * 2]);
    top = std::max(top, most.back());
  }
  // A threshold beyond what a gate can have must not flatten the curve.
  const double line = m_alarm && m_alarm->threshold <= 16 ? std::ceil(m_alarm->threshold) : 0;
  setRange(0, std::max({4.0, std::ceil(top), line}));
  drawRange(painter, plot);
  if (!m_any) {
    label(painter, plot, Qt::AlignCenter, tr("this run has no entropy of the gate"),
          m_state->theme().muted);
    return;
  }
  drawBand(painter, plot, mean, most, m_state->theme().series[1]);
  drawLine(painter, plot, mean, m_state->theme().series[1]);
  if (m_alarm) drawReference(painter, plot, m_alarm->threshold);
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

// ---- any number per step -----------------------------------------------------------------------

MetricPane::MetricPane(ViewState* state, QWidget* parent)
    : LinePane(state, QStringLiteral("metric"), parent) {
  setAccessibleName(tr("A number per step over steps"));
}

void MetricPane::setMetric(run::StepSeries metric) {
  m_metric = metric;
  invalidate();
}

QString MetricPane::title() const {
  return qs(run::kStepSeriesNames[static_cast<std::size_t>(m_metric)]);
}

QString MetricPane::detail() const {
  return tr("per step; band: up to the largest step of a pixel; right click: another number");
}

std::vector<TimePane::LegendItem> MetricPane::legend() const {
  if (m_state->other() == nullptr) return {};
  return {{tr("A"), m_state->theme().series[5]}, {tr("B"), m_state->theme().text, Qt::DashLine}};
}

void MetricPane::drawContent(QPainter& painter, const QRect& plot) {
  const Columns<double> c = series(plot);
  const auto i = static_cast<std::size_t>(m_metric);
  std::vector<double> mean, most;
  double top = 0;
  for (std::size_t x = 0; x < c.columns; ++x) {
    mean.push_back(c.mean(x, i));
    most.push_back(c.max[x * c.width + i]);
    top = std::max(top, most.back());
  }
  const std::vector<double> other = otherSeries(plot, m_metric);
  for (const double v : other) top = std::max(top, v);
  setRange(0, niceCeiling(top));
  drawRange(painter, plot);
  if (!hidden(tr("A"))) {
    drawBand(painter, plot, mean, most, m_state->theme().series[5]);
    drawLine(painter, plot, mean, m_state->theme().series[5]);
  }
  drawOther(painter, plot, other);
}

QString MetricPane::valueText(double value) const {
  if (m_metric == run::StepSeries::kDurationPs) return qs(timeText(value));
  constexpr double kExact = 1e15;
  const bool counted = m_metric < run::StepSeries::kImbalance;
  return counted && value >= 0 && value < kExact && value == std::floor(value)
             ? count(static_cast<std::uint64_t>(value))
             : qs(shortNumber(value));
}

QString MetricPane::axisText(double value) const {
  return m_metric == run::StepSeries::kDurationPs ? qs(tickText(value)) : valueText(value);
}

double MetricPane::valueAt(std::uint64_t step) const {
  const auto s = static_cast<double>(step);
  return seriesColumns(*m_state->run(), {s, s + 1}, 1).mean(0, static_cast<std::size_t>(m_metric));
}

QString MetricPane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr) return {};
  const auto step = axis().stepAt(position.x(), run->steps());
  if (!step) return {};
  return tr("step %1: %2 %3").arg(count(*step), title(), valueText(valueAt(*step)));
}

// ---- latency of requests -----------------------------------------------------------------------

LatencyPane::LatencyPane(ViewState* state, QWidget* parent)
    : LinePane(state, QStringLiteral("latency"), parent) {
  setAccessibleName(tr("TTFT and TPOT of requests over steps"));
  connect(state, &ViewState::runChanged, this, &LatencyPane::refresh);
  connect(state, &ViewState::otherChanged, this, &LatencyPane::refresh);
  refresh();
}

void LatencyPane::refresh() {
  m_series = m_otherSeries = {};
  m_ttftTargets.clear();
  m_tpotTargets.clear();
  m_bins.clear();
  m_edges.clear();
  const RunStore* run = m_state->run();
  if (run == nullptr) return;
  m_series = LatencySeries(*run);
  if (m_state->other() != nullptr) m_otherSeries = LatencySeries(*m_state->other());
  m_ttftTargets = sloTargets(run->data(), "ttft");
  m_tpotTargets = sloTargets(run->data(), "tpot");
  // The same axis wherever one zooms: values are compared over the whole run.
  double low = m_series.smallest();
  double high = m_series.largest();
  if (!m_otherSeries.empty()) {
    low = low > 0 ? std::min(low, m_otherSeries.smallest()) : m_otherSeries.smallest();
    high = std::max(high, m_otherSeries.largest());
  }
  if (m_series.hasTtft() && !m_ttftTargets.empty()) high = std::max(high, m_ttftTargets.back());
  if (!m_series.empty() && !m_tpotTargets.empty()) {
    low = std::min(low, m_tpotTargets.front());
    high = std::max(high, m_tpotTargets.back());
  }
  setRange(std::log10(niceFloor(low)), std::log10(niceCeiling(high * 1.25)));
}

QString LatencyPane::title() const { return tr("Latency"); }

QString LatencyPane::detail() const {
  return tr("of requests by their first / last token; logarithmic; dashed red: SLO; at the cursor: "
            "%1 p99")
      .arg(m_series.hasTtft() ? tr("TTFT") : tr("TPOT"));
}

QString LatencyPane::drawnText() const {
  const RunStore* run = m_state->run();
  if (run == nullptr || m_series.empty()) return {};
  return tr("drawn: TTFT of %1 and TPOT of %2 of %3 requests")
      .arg(count(m_series.ttfts()), count(m_series.tpots()), count(run->data().requests.size()));
}

std::vector<TimePane::LegendItem> LatencyPane::legend() const {
  const Theme& t = m_state->theme();
  std::vector<LegendItem> items;
  if (m_series.hasTtft()) {
    items.push_back({tr("TTFT p50"), t.series[0]});
    items.push_back({tr("TTFT p99"), t.series[0], Qt::DotLine});
  }
  if (m_series.empty()) return items;
  items.push_back({tr("TPOT p50"), t.series[3]});
  items.push_back({tr("TPOT p99"), t.series[3], Qt::DotLine});
  if (!m_otherSeries.empty()) items.push_back({tr("B"), t.text, Qt::DashLine});
  return items;
}

std::vector<double> LatencyPane::edges(const QRect& plot) const {
  const auto n = static_cast<std::size_t>(std::max(1, plot.width() / kBinPixels));
  return columnEdges(m_state->timeScale(), m_state->window(), n);
}

const LatencySeries::Bin* LatencyPane::binAt(double t) const {
  const auto after = std::upper_bound(m_edges.begin(), m_edges.end(), t);
  if (after == m_edges.begin() || after == m_edges.end()) return nullptr;
  const auto i = static_cast<std::size_t>(after - m_edges.begin()) - 1;
  return i < m_bins.size() ? &m_bins[i] : nullptr;
}

void LatencyPane::drawContent(QPainter& painter, const QRect& plot) {
  const Theme& theme = m_state->theme();
  if (m_series.empty()) {
    label(painter, plot, Qt::AlignCenter,
          tr("this run has no latencies: no request got its tokens in it"), theme.muted);
    return;
  }
  drawRange(painter, plot);
  m_edges = edges(plot);
  m_bins = m_series.bins(m_edges);
  const auto draw = [&](const std::vector<LatencySeries::Bin>& bins,
                        double LatencySeries::Bin::*what, const QColor& color, Qt::PenStyle style) {
    const double dx = plot.width() / static_cast<double>(bins.size());
    std::vector<QPointF> line;
    const auto flush = [&] {
      if (!line.empty()) drawPoints(painter, plot, line, color, style);
      line.clear();
    };
    for (std::size_t i = 0; i < bins.size(); ++i) {
      const double v = bins[i].*what;
      if (std::isnan(v)) {
        flush();
        continue;
      }
      const double x = plot.left() + static_cast<double>(i) * dx;
      line.emplace_back(x, std::log10(v));
      line.emplace_back(x + dx, std::log10(v));
    }
    flush();
  };
  using Bin = LatencySeries::Bin;
  if (!hidden(tr("TTFT p99"))) draw(m_bins, &Bin::ttft99, theme.series[0], Qt::DotLine);
  if (!hidden(tr("TTFT p50"))) draw(m_bins, &Bin::ttft50, theme.series[0], Qt::SolidLine);
  if (!hidden(tr("TPOT p99"))) draw(m_bins, &Bin::tpot99, theme.series[3], Qt::DotLine);
  if (!hidden(tr("TPOT p50"))) draw(m_bins, &Bin::tpot50, theme.series[3], Qt::SolidLine);
  if (!m_otherSeries.empty() && !hidden(tr("B"))) {
    // On an axis of time the same time of B lies there, else the same step.
    std::vector<double> at = m_edges;
    if (m_state->timeScale() != nullptr && m_state->otherTimeScale() != nullptr) {
      for (double& t : at) t = m_state->otherTimeScale()->stepOf(m_state->timeScale()->psOf(t));
    }
    const std::vector<Bin> other = m_otherSeries.bins(at);
    draw(other, &Bin::ttft50, theme.text, Qt::DashLine);
    draw(other, &Bin::tpot50, theme.text, Qt::DashLine);
  }
  std::vector<std::pair<double, QString>> targets;
  if (m_series.hasTtft()) {
    for (const double ps : m_ttftTargets) targets.emplace_back(ps, tr("TTFT"));
  }
  for (const double ps : m_tpotTargets) targets.emplace_back(ps, tr("TPOT"));
  std::sort(targets.begin(), targets.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [ps, name] : targets) drawReference(painter, plot, std::log10(ps));
  if (folded()) return;
  // Each name on its own line; where lines are close their names stand side by side.
  std::vector<QRect> names;
  for (const auto& [ps, name] : targets) {
    const QString text = tr("%1 SLO %2").arg(name, qs(tickText(ps)));
    const int width = fontMetrics().horizontalAdvance(text) + 6;
    const int y = qRound(yOf(plot, std::log10(ps)));
    QRect where(plot.right() - width - 2,
                std::clamp(y - lineHeight() / 2, plot.top(), plot.bottom() + 1 - lineHeight()),
                width, lineHeight());
    for (const QRect& other : names) {
      if (where.adjusted(-6, 0, 6, 0).intersects(other)) where.moveRight(other.left() - 8);
    }
    // A name without room is left out: the line and the hover say it as well.
    if (where.left() < plot.left() + plot.width() / 4 || plot.height() < lineHeight()) continue;
    painter.fillRect(where, theme.base);  // over the other lines
    label(painter, where, Qt::AlignCenter, text, theme.saturated);
    names.push_back(where);
  }
}

QString LatencyPane::valueText(double value) const {
  return std::isnan(value) ? tr("n/a") : qs(timeText(std::pow(10.0, value)));
}

QString LatencyPane::axisText(double value) const {
  return qs(roundedTickText(std::pow(10.0, value)));
}

double LatencyPane::valueAt(std::uint64_t step) const {
  const LatencySeries::Bin* bin = binAt(static_cast<double>(step) + 0.5);
  if (bin == nullptr) return run::kNoData;
  return std::log10(m_series.hasTtft() ? bin->ttft99 : bin->tpot99);
}

QString LatencyPane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr || m_series.empty()) return {};
  // Beside the plot stands the cursor's number.
  const bool beside = besidePlot().contains(position) && m_state->cursor().has_value();
  if (!beside && !plotRect().contains(position)) return {};
  const double t =
      beside ? static_cast<double>(*m_state->cursor()) + 0.5 : axis().tOf(position.x());
  const LatencySeries::Bin* bin = binAt(t);
  if (bin == nullptr) return {};
  const auto i = static_cast<std::size_t>(bin - m_bins.data());
  const auto time = [](double ps) { return std::isnan(ps) ? tr("n/a") : qs(timeText(ps)); };
  const auto first = static_cast<std::uint64_t>(std::max(0.0, std::ceil(m_edges[i] - 0.5)));
  const auto last = static_cast<std::uint64_t>(std::max(0.0, std::ceil(m_edges[i + 1] - 0.5)));
  if (beside) {
    const bool ttft = m_series.hasTtft();
    const std::size_t n = ttft ? bin->first : bin->ended;
    return tr("%1: %2 p99 of the %3 of steps %4–%5, those that share %6 pixels with the cursor")
        .arg(time(ttft ? bin->ttft99 : bin->tpot99), ttft ? tr("TTFT") : tr("TPOT"),
             n == 1 ? tr("request") : tr("%1 requests").arg(n), count(first),
             count(std::max(first + 1, last) - 1))
        .arg(kBinPixels);
  }
  return tr("steps %1–%2: TTFT p50 %3, p99 %4 (%5 first tokens); TPOT p50 %6, p99 %7 (%8 ended)")
      .arg(count(first), count(std::max(first + 1, last) - 1), time(bin->ttft50), time(bin->ttft99))
      .arg(bin->first)
      .arg(time(bin->tpot50), time(bin->tpot99))
      .arg(bin->ended);
}

}  // namespace switchyard::gui
