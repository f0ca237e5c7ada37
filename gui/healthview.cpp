// SPDX-License-Identifier: Apache-2.0
#include "gui/healthview.hpp"

#include <array>
#include <exception>

#include <QHeaderView>
#include <QStandardItemModel>

#include "gui/text.hpp"

namespace switchyard::gui {

HealthView::HealthView(ViewState* state, QWidget* parent) : QTabWidget(parent), m_state(state) {
  m_judge = [](const RunStore& run, const std::atomic<bool>& stop) {
    return run.path().empty() ? healthOf(run.data(), run.name()) : healthOf(run.path(), &stop);
  };
  setDocumentMode(true);
  for (const QString& name : {tr("Signals"), tr("Alarms"), tr("Findings")}) {
    auto* table = new TableView(this);
    table->setModel(new QStandardItemModel(table));
    table->setAccessibleName(name);
    addTab(table, name);
  }
  connect(state, &ViewState::runChanged, this, &HealthView::runChanged);
}

HealthView::~HealthView() {
  for (Job& job : m_jobs) job.stop = true;
  m_jobs.clear();
}

TableView* HealthView::table(int i) const { return static_cast<TableView*>(widget(i)); }

void HealthView::runChanged() {
  ++m_job;  // what is under way is of another run
  for (Job& job : m_jobs) job.stop = true;
  m_done = m_busy = false;
  fill({});
  if (isVisible()) start();
}

void HealthView::showEvent(QShowEvent* event) {
  QTabWidget::showEvent(event);
  start();
}

void HealthView::start() {
  if (m_done || m_busy || m_state->run() == nullptr) return;
  m_busy = true;
  HealthReport waiting;
  waiting.missing = tr("reading the run …").toStdString();
  fill(waiting);
  Job& job = m_jobs.emplace_back();
  job.id = ++m_job;
  job.thread =
      std::jthread([this, &job, id = job.id, run = m_state->runPointer(), judge = m_judge] {
        HealthReport report;
        // Whatever goes wrong in here is a line in the dock, never the end of the window.
        try {
          report = judge(*run, job.stop);
        } catch (const std::exception& e) {
          report.missing = e.what();
        }
        QMetaObject::invokeMethod(
            this,
            [this, id, report = std::move(report)] {
              m_jobs.remove_if([id](const Job& j) { return j.id == id; });
              if (id != m_job) return;
              m_busy = false;
              m_done = true;
              fill(report);
            },
            Qt::QueuedConnection);
      });
}

void HealthView::fill(const HealthReport& report) {
  const std::array<const Table*, 3> tables = {&report.watched, &report.alarms, &report.findings};
  for (int i = 0; i < 3; ++i) {
    auto* model = static_cast<QStandardItemModel*>(table(i)->model());
    model->clear();
    const Table& t = *tables[static_cast<std::size_t>(i)];
    if (!report.missing.empty() && t.rows.empty()) {
      model->appendRow(new QStandardItem(qs(report.missing)));
      model->setHorizontalHeaderLabels({tr("what")});
    } else {
      QStringList columns;
      for (const std::string& c : t.columns) columns << qs(c);
      model->setHorizontalHeaderLabels(columns);
      for (const auto& row : t.rows) {
        QList<QStandardItem*> items;
        for (const std::string& cell : row) {
          auto* item = new QStandardItem(qs(cell));
          item->setToolTip(qs(cell));
          items << item;
        }
        model->appendRow(items);
      }
    }
    table(i)->fitColumns();
    table(i)->horizontalHeader()->setStretchLastSection(true);
  }
  setTabText(1, report.alarms.rows.empty() ? tr("Alarms")
                                           : tr("Alarms (%1)").arg(report.alarms.rows.size()));
  setTabText(2, report.findings.rows.empty()
                    ? tr("Findings")
                    : tr("Findings (%1)").arg(report.findings.rows.size()));
}

}  // namespace switchyard::gui
