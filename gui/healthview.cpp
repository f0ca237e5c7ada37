// SPDX-License-Identifier: Apache-2.0
#include "gui/healthview.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <numeric>

#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QRegularExpression>
#include <QTimer>

#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

/// "1.07e+04 us" as monitor prints it is "10.70 ms" here, also within a sentence.
QString readable(QString cell) {
  static const QRegularExpression time(
      QStringLiteral("(?<![\\w.+-])(\\d+(?:\\.\\d+)?(?:e[+-]?\\d+)?) us\\b"));
  qsizetype from = 0;
  for (QRegularExpressionMatch m = time.match(cell); m.hasMatch(); m = time.match(cell, from)) {
    const QString text = qs(timeText(m.captured(1).toDouble() * 1e6));
    cell.replace(m.capturedStart(), m.capturedLength(), text);
    from = m.capturedStart() + text.size();
  }
  return cell;
}

}  // namespace

ReportModel::ReportModel(QObject* parent) : QAbstractTableModel(parent) {}

void ReportModel::setTable(Table table) {
  beginResetModel();
  m_table = std::move(table);
  m_numbers.assign(m_table.columns.size(), false);
  for (std::size_t c = 0; !m_table.rows.empty() && c < m_numbers.size(); ++c) {
    const std::string& first = m_table.rows.front()[c];
    m_numbers[c] = !first.empty() && first[0] >= '0' && first[0] <= '9';
  }
  endResetModel();
}

int ReportModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(m_table.rows.size());
}

int ReportModel::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(m_table.columns.size());
}

QVariant ReportModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid()) return {};
  const auto column = static_cast<std::size_t>(index.column());
  if (role == Qt::DisplayRole || role == Qt::ToolTipRole) {
    return readable(qs(m_table.rows[static_cast<std::size_t>(index.row())][column]));
  }
  if (role == Qt::TextAlignmentRole && m_sentences) {
    return static_cast<int>(Qt::AlignLeft | Qt::AlignTop);
  }
  // Numbers stand to the right, also the "-" among them.
  if (role == Qt::TextAlignmentRole && m_numbers[column]) {
    return static_cast<int>(Qt::AlignRight | Qt::AlignVCenter);
  }
  return {};
}

QVariant ReportModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  if (role == Qt::TextAlignmentRole) {
    const bool number = m_numbers[static_cast<std::size_t>(section)];
    return static_cast<int>((number ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter);
  }
  if (role != Qt::DisplayRole) return {};
  return qs(m_table.columns[static_cast<std::size_t>(section)]);
}

void ReportModel::sort(int column, Qt::SortOrder order) {
  if (column < 0 || column >= columnCount()) return;
  const auto c = static_cast<std::size_t>(column);
  // Numbers by their value, in the report's own units; what is none is below them.
  std::vector<double> value(m_table.rows.size(), -std::numeric_limits<double>::infinity());
  for (std::size_t r = 0; m_numbers[c] && r < value.size(); ++r) {
    bool ok = false;
    const double v = qs(m_table.rows[r][c]).section(QLatin1Char(' '), 0, 0).toDouble(&ok);
    if (ok) value[r] = v;
  }
  std::vector<std::size_t> rows(value.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  const auto less = [&](std::size_t a, std::size_t b) {
    return m_numbers[c] ? value[a] < value[b] : m_table.rows[a][c] < m_table.rows[b][c];
  };
  std::stable_sort(rows.begin(), rows.end(), [&](std::size_t a, std::size_t b) {
    return order == Qt::AscendingOrder ? less(a, b) : less(b, a);
  });
  beginResetModel();
  std::vector<std::vector<std::string>> sorted;
  sorted.reserve(rows.size());
  for (const std::size_t r : rows) sorted.push_back(std::move(m_table.rows[r]));
  m_table.rows = std::move(sorted);
  endResetModel();
}

HealthView::HealthView(ViewState* state, QWidget* parent)
    : QTabWidget(parent), m_state(state), m_reading(new ReadingBar(this)) {
  setCornerWidget(m_reading, Qt::TopRightCorner);
  m_reading->hide();
  connect(m_reading, &ReadingBar::cancelled, this, &HealthView::cancel);
  connect(m_reading, &ReadingBar::wanted, this, [this] {
    m_stopped = false;
    start();
  });
  setDocumentMode(true);
  for (const QString& name : {tr("Signals"), tr("Alarms"), tr("Findings")}) {
    auto* table = new TableView(this);
    table->setModel(new ReportModel(table));
    // In the order of the report until a header is clicked.
    table->sortByColumn(-1, Qt::AscendingOrder);
    table->setSortingEnabled(true);
    table->setAccessibleName(name);
    table->fitLast([](int) { return true; });
    table->setMinimumHeight(48);  // the dock must not push the panes up
    addTab(table, name);
  }
  // A finding is sentences: each in as many lines as it needs.
  table(2)->setWordWrap(true);
  static_cast<ReportModel*>(table(2)->model())->setSentences();
  table(2)->setVerticalScrollMode(QAbstractItemView::ScrollPerPixel);
  auto* page = new QWidget(this);
  // Side by side, and low: the dock must not push the panes up.
  auto* layout = new QHBoxLayout(page);
  layout->setContentsMargins(2, 2, 2, 2);
  m_times = new HistogramView(state, tr("Kernel time of an expert per step"), page);
  m_slowest = new QLabel(page);
  m_slowest->setTextInteractionFlags(Qt::TextSelectableByMouse);
  m_times->setMinimumSize(140, 40);
  m_slowest->setWordWrap(true);
  m_slowest->setAlignment(Qt::AlignLeft | Qt::AlignTop);
  m_slowest->setMinimumSize(100, 20);
  m_slowest->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Ignored);
  layout->addWidget(m_times, 3);
  layout->addWidget(m_slowest, 2);
  addTab(page, tr("Expert time"));
  connect(state, &ViewState::runChanged, this, &HealthView::runChanged);
  connect(state, &ViewState::optionsChanged, this, &HealthView::fillTimes);
}

HealthView::~HealthView() {
  for (Job& job : m_jobs) job.stop = true;
  m_jobs.clear();
}

TableView* HealthView::table(int i) const { return static_cast<TableView*>(widget(i)); }

QString HealthView::slowest() const { return m_slowest->text(); }

void HealthView::fillTimes() {
  std::vector<double> mean;
  QString slowest = tr("The run has no kernel times of experts.");
  if (const RunStore* run = m_state->run()) {
    const run::RunData& d = run->data();
    double steps = static_cast<double>(run->steps());
    if (run->hasSteps()) {
      steps = static_cast<double>(std::count_if(
          d.steps.begin(), d.steps.end(), [](const run::StepScalars& s) { return !s.warmup; }));
    }
    std::size_t worst = 0;
    double sum = 0;
    const std::vector<std::int64_t>& times = d.totals.expert_time_ps;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < times.size() && steps > 0; ++i) {
      if (m_state->layer() != kAllLayers && i / run->experts() != m_state->layer()) continue;
      mean.push_back(static_cast<double>(times[i]) / steps);
      which.push_back(i);
      sum += mean.back();
      if (mean.back() > mean[worst]) worst = mean.size() - 1;
    }
    if (sum > 0) {
      const std::size_t i = which[worst];
      slowest =
          tr("Slowest: %1 of layer %2, %3, %4 times the mean")
              .arg(qs(expertName(static_cast<std::uint32_t>(i % run->experts()), run->experts())),
                   QString::number(d.inventory.moe_layers[i / run->experts()]),
                   qs(timeText(mean[worst])),
                   qs(shortNumber(mean[worst] * static_cast<double>(mean.size()) / sum)));
    } else {
      mean.clear();
    }
    // Heat: what the hottest expert ran per minute of simulated time.
    const auto span = std::find_if(d.metrics.begin(), d.metrics.end(),
                                   [](const run::Metric& m) { return m.name == "span"; });
    const auto& kept = d.totals.expert_kept;
    if (span != d.metrics.end() && span->value > 0 && !kept.empty()) {
      std::size_t first = 0;
      std::size_t end = kept.size();
      if (m_state->layer() != kAllLayers) {
        first = std::size_t{m_state->layer()} * run->experts();
        end = first + run->experts();
      }
      const auto hottest = static_cast<std::size_t>(
          std::max_element(kept.begin() + static_cast<std::ptrdiff_t>(first),
                           kept.begin() + static_cast<std::ptrdiff_t>(end)) -
          kept.begin());
      slowest += tr("\nHottest: %1 of layer %2, %3 tokens per simulated minute")
                     .arg(qs(expertName(static_cast<std::uint32_t>(hottest % run->experts()),
                                        run->experts())),
                          QString::number(d.inventory.moe_layers[hottest / run->experts()]),
                          gui::count(static_cast<std::uint64_t>(static_cast<double>(kept[hottest]) /
                                                                (span->value / 60000))));
    }
  }
  m_times->setValues(std::move(mean));
  m_slowest->setText(slowest);
}

void HealthView::runChanged() {
  fillTimes();
  ++m_job;  // what is under way is of another run
  for (Job& job : m_jobs) job.stop = true;
  m_done = m_busy = m_stopped = false;
  m_reading->setDone();
  fill({});
  startIfSeen();
}

void HealthView::setSeen(bool seen) {
  m_seen = seen;
  startIfSeen();
}

void HealthView::startIfSeen() {
  // Docks that are laid out as tabs come up for a moment, all of them: the run is read only for the
  // one that stays.
  QTimer::singleShot(0, this, [this] {
    if (m_seen) start();
  });
}

void HealthView::start() {
  if (m_done || m_busy || m_stopped || m_state->run() == nullptr) return;
  m_busy = true;
  const auto permille = std::make_shared<std::atomic<int>>(0);
  m_reading->setReading(permille);
  HealthReport waiting;
  waiting.missing = tr("reading the run …").toStdString();
  fill(std::move(waiting));
  Job& job = m_jobs.emplace_back();
  job.id = ++m_job;
  job.thread = std::jthread(
      [this, &job, id = job.id, run = m_state->runPointer(), judge = m_judge, permille] {
        HealthReport report;
        // Whatever goes wrong in here is a line in the dock, never the end of the window.
        try {
          report = judge                 ? judge(*run, job.stop)
                   : run->path().empty() ? healthOf(run->data(), run->name())
                                         : healthOf(run->path(), &job.stop, permille.get());
        } catch (const std::exception& e) {
          report.missing = e.what();
        }
        QMetaObject::invokeMethod(
            this,
            [this, id, report = std::move(report)]() mutable {
              m_jobs.remove_if([id](const Job& j) { return j.id == id; });
              if (id != m_job) return;
              m_busy = false;
              m_done = true;
              m_reading->setDone();
              fill(std::move(report));
            },
            Qt::QueuedConnection);
      });
}

void HealthView::cancel() {
  if (!m_busy) return;
  ++m_job;  // its result is not heard of
  for (Job& job : m_jobs) job.stop = true;
  m_busy = false;
  m_stopped = true;
  HealthReport stopped;
  stopped.missing = tr("stopped; Read, beside the tabs, reads the run").toStdString();
  fill(std::move(stopped));
  m_reading->setStopped();
}

void HealthView::fill(HealthReport report) {
  const std::size_t raised = report.alarms.rows.size();
  const std::size_t found = report.findings.rows.size();
  const std::array<Table*, 3> tables = {&report.watched, &report.alarms, &report.findings};
  for (int i = 0; i < 3; ++i) {
    Table& t = *tables[static_cast<std::size_t>(i)];
    if (!report.missing.empty() && t.rows.empty()) {
      t = {};
      t.columns = {tr("what").toStdString()};
      t.rows = {{report.missing}};
    }
    auto* model = static_cast<ReportModel*>(table(i)->model());
    model->setTable(std::move(t));
    const QHeaderView& header = *table(i)->horizontalHeader();
    model->sort(header.sortIndicatorSection(), header.sortIndicatorOrder());
  }
  table(1)->setEmptyText(tr("No alarm was raised."));
  table(2)->setEmptyText(tr("Nothing was found that could be better."));
  QString alarms = raised == 0 ? tr("Alarms") : tr("Alarms (%1)").arg(raised);
  if (!report.rules.empty()) alarms += report.ownRules ? tr(", own rules") : tr(", default rules");
  setTabText(1, alarms);
  setTabToolTip(1, report.rules.empty() ? QString() : tr("Judged by %1").arg(qs(report.rules)));
  setTabText(2, found == 0 ? tr("Findings") : tr("Findings (%1)").arg(found));
}

}  // namespace switchyard::gui
