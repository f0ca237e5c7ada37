// SPDX-License-Identifier: Apache-2.0
// Health of run A: signals, alarms and findings, computed in a worker thread when the dock is first
// seen.
#pragma once
#include <memory>
#include <thread>

#include <QTabWidget>

#include "gui/core/health.hpp"
#include "gui/tableview.hpp"

class QStandardItemModel;

namespace switchyard::gui {

class HealthView : public QTabWidget {
  Q_OBJECT
 public:
  explicit HealthView(ViewState* state, QWidget* parent = nullptr);
  ~HealthView() override;
  [[nodiscard]] bool busy() const { return m_busy; }
  /// signals, alarms, findings
  [[nodiscard]] TableView* table(int i) const;

 protected:
  void showEvent(QShowEvent* event) override;

 private:
  void runChanged();
  void start();
  void fill(const HealthReport& report);
  ViewState* m_state;
  std::jthread m_thread;
  int m_job = 0;
  bool m_busy = false, m_done = false;
};

}  // namespace switchyard::gui
