// SPDX-License-Identifier: Apache-2.0
// Health of run A: signals, alarms, findings, and how long the experts' kernels took. Computed in a
// worker thread when setSeen() says that the dock is seen. Another run drops what is under way at
// once: its thread ends by itself, and nothing waits for it but the destructor.
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include <QAbstractTableModel>
#include <QTabWidget>

#include "gui/core/health.hpp"
#include "gui/readingbar.hpp"
#include "gui/requestsview.hpp"
#include "gui/tableview.hpp"

class QLabel;

namespace switchyard::gui {

/// A table of the report as it is: a long run may raise an alarm per step, so there is nothing per
/// row but its texts.
class ReportModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  explicit ReportModel(QObject* parent = nullptr);
  /// Each row as long as the columns.
  void setTable(Table table);
  /// Cells hold sentences, in several lines each.
  void setSentences() { m_sentences = true; }
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  void sort(int column, Qt::SortOrder order = Qt::AscendingOrder) override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  Table m_table;
  std::vector<bool> m_numbers;  // by column
  bool m_sentences = false;
};

class HealthView : public QTabWidget {
  Q_OBJECT
 public:
  /// Judges a run. `stop` becomes true when nobody wants the result any more.
  using Judge = std::function<HealthReport(const RunStore& run, const std::atomic<bool>& stop)>;

  explicit HealthView(ViewState* state, QWidget* parent = nullptr);
  ~HealthView() override;
  /// How far the reading is, with Cancel; stands beside the tabs.
  [[nodiscard]] ReadingBar* readingBar() const { return m_reading; }
  /// In place of healthOf(): for tests. What it throws is shown as the reason why there is nothing.
  void setJudge(Judge judge) { m_judge = std::move(judge); }
  /// Threads that have not ended yet.
  [[nodiscard]] std::size_t threads() const { return m_jobs.size(); }
  [[nodiscard]] bool busy() const { return m_busy; }
  /// signals, alarms, findings
  [[nodiscard]] TableView* table(int i) const;
  /// Mean kernel time per step of each expert of the shown layer (of all layers).
  [[nodiscard]] HistogramView* expertTimes() const { return m_times; }
  /// "Slowest: e19 of layer 3, 4.2 us, 2.3 times the mean", and the hottest: its tokens per minute.
  [[nodiscard]] QString slowest() const;
  /// Whether it is on screen: a dock behind another tab is not, though Qt calls it visible.
  void setSeen(bool seen);

 private:
  void runChanged();
  void startIfSeen();
  void start();
  void cancel();
  void fill(HealthReport report);
  void fillTimes();
  struct Job {
    int id = 0;
    std::atomic<bool> stop{false};
    std::jthread thread;
  };
  ViewState* m_state;
  Judge m_judge;  ///< Null: healthOf().
  ReadingBar* m_reading;
  HistogramView* m_times;
  QLabel* m_slowest;
  std::list<Job> m_jobs;
  int m_job = 0;
  bool m_busy = false, m_done = false, m_seen = false;
  bool m_stopped = false;  ///< By a person: not read again until that is asked for.
};

}  // namespace switchyard::gui
