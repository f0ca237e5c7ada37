// SPDX-License-Identifier: Apache-2.0
// The window: menus, tool bar, panes in the middle, docks around them, one ViewState for all.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>

#include <QMainWindow>

#include "gui/models.hpp"
#include "gui/panestack.hpp"
#include "gui/tableview.hpp"
#include "gui/topologyview.hpp"
#include "gui/viewstate.hpp"

class QComboBox;
class QFrame;
class QLabel;
class QLineEdit;
class QSortFilterProxyModel;
class QStandardItemModel;
class QTreeView;

namespace switchyard::gui {

/// An inline message over the panes; stays until closed or replaced.
class MessageBar : public QWidget {
  Q_OBJECT
 public:
  explicit MessageBar(QWidget* parent = nullptr);
  void showMessage(const QString& text);
  [[nodiscard]] QString text() const;

 private:
  QLabel* m_text;
};

class MainWindow : public QMainWindow {
  Q_OBJECT
 public:
  /// `persistent`: theme and layout are read from and written to QSettings (not for --render).
  explicit MainWindow(bool persistent, QWidget* parent = nullptr);
  ~MainWindow() override;

  [[nodiscard]] ViewState* state() const { return m_state; }
  [[nodiscard]] PaneStack* panes() const { return m_panes; }
  [[nodiscard]] MessageBar* messageBar() const { return m_message; }
  [[nodiscard]] InspectorModel* inspector() const { return m_inspector; }
  [[nodiscard]] TableView* expertsTable() const { return m_expertsView; }
  [[nodiscard]] TableView* eventsTable() const { return m_eventsView; }
  [[nodiscard]] TopologyView* topology() const { return m_topology; }
  [[nodiscard]] QString windowText() const;
  [[nodiscard]] QString hoverText() const;

  /// False if the file cannot be opened: the message bar says why, the old run stays.
  bool openRun(const std::filesystem::path& path);
  void showRun(std::shared_ptr<const RunStore> run);
  void setDark(bool dark);
  /// Docks and sizes as shipped.
  void restoreDefaultLayout();

 protected:
  void closeEvent(QCloseEvent* event) override;
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;

 private:
  void makePanes();
  void makeDocks();
  void makeActions();
  void makeToolBar();
  QDockWidget* addDock(const QString& title, const QString& name, QWidget* content,
                       Qt::DockWidgetArea area);
  QAction* add(QMenu* menu, const QString& text, const QList<QKeySequence>& keys,
               const QString& tip, std::function<void()> run);
  void runChanged();
  void updateStatus();
  void fillRuns();
  void syncExpert();
  void goTo();
  void nextEvent(int direction);
  void rangeMenu(const QPoint& at);
  void exportView();
  void copyInspector();
  void showKeys();
  void chooseFile();

  ViewState* m_state;
  bool m_persistent;
  PaneStack* m_panes = nullptr;
  MessageBar* m_message = nullptr;
  InspectorModel* m_inspector = nullptr;
  ExpertsModel* m_experts = nullptr;
  EventsModel* m_events = nullptr;
  QSortFilterProxyModel *m_expertsSorted = nullptr, *m_eventsSorted = nullptr;
  TableView *m_expertsView = nullptr, *m_eventsView = nullptr, *m_inspectorView = nullptr;
  TopologyView* m_topology = nullptr;
  QStandardItemModel* m_runs = nullptr;
  QTreeView* m_runsView = nullptr;
  QList<QDockWidget*> m_docks;
  QComboBox *m_layer = nullptr, *m_aggregate = nullptr, *m_scale = nullptr;
  QLineEdit* m_goTo = nullptr;
  QLabel *m_hover = nullptr, *m_windowLabel = nullptr, *m_cursorLabel = nullptr;
  QAction *m_reload = nullptr, *m_export = nullptr, *m_dark = nullptr;
  QList<QAction*> m_runActions;
  std::filesystem::path m_path;
  QByteArray m_defaultLayout;
};

}  // namespace switchyard::gui
