// SPDX-License-Identifier: Apache-2.0
// The window: menus, tool bar, panes in the middle, docks around them, one ViewState for all.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include <QMainWindow>

#include "gui/capacityview.hpp"
#include "gui/childjob.hpp"
#include "gui/compareview.hpp"
#include "gui/core/scenariodocument.hpp"
#include "gui/healthview.hpp"
#include "gui/loader.hpp"
#include "gui/matrixview.hpp"
#include "gui/models.hpp"
#include "gui/panestack.hpp"
#include "gui/requestsview.hpp"
#include "gui/scenarioform.hpp"
#include "gui/tableview.hpp"
#include "gui/topologyview.hpp"
#include "gui/viewstate.hpp"
#include "gui/welcome.hpp"
#include "gui/whatif.hpp"

class QComboBox;
class QFrame;
class QLabel;
class QSettings;
class QLineEdit;
class QProgressBar;
class QPushButton;
class QSortFilterProxyModel;
class QStackedWidget;
class QStandardItemModel;
class QTimer;
class QToolBar;
class QTreeView;

namespace switchyard::gui {

/// Of saved layouts; rises when docks are added.
inline constexpr int kLayoutVersion = 3;

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

  /// Runs kept for choosing; the oldest one that is not shown goes.
  static constexpr std::size_t kOpenMost = 12;
  [[nodiscard]] ViewState* state() const { return m_state; }
  [[nodiscard]] PaneStack* panes() const { return m_panes; }
  [[nodiscard]] MessageBar* messageBar() const { return m_message; }
  [[nodiscard]] InspectorModel* inspector() const { return m_inspector; }
  [[nodiscard]] TableView* expertsTable() const { return m_expertsView; }
  [[nodiscard]] TableView* eventsTable() const { return m_eventsView; }
  [[nodiscard]] TopologyView* topology() const { return m_topology; }
  [[nodiscard]] QString windowText() const;
  [[nodiscard]] QString hoverText() const;

  enum class Page { kWelcome, kRun, kScenario };
  [[nodiscard]] Page page() const;
  void showPage(Page page);
  [[nodiscard]] Welcome* welcome() const { return m_welcome; }
  [[nodiscard]] MatrixView* matrix() const { return m_matrix; }
  [[nodiscard]] CapacityView* capacity() const { return m_capacity; }
  [[nodiscard]] RequestsView* requests() const { return m_requests; }
  [[nodiscard]] HealthView* health() const { return m_health; }
  [[nodiscard]] WhatIf* whatIf() const { return m_whatIf; }
  [[nodiscard]] const ScenarioTexts& scenarioTexts() const { return *m_texts; }
  /// The dock of that object name: runs, experts, topology, inspector, events, compare, reroutes,
  /// capacity, requests, health.
  [[nodiscard]] QDockWidget* dock(const QString& name) const;
  void showTour();
  void showPalette();
  void showKeys();
  void showRunsFolder();
  /// Shows what an inspector's value is about (kTargetRole).
  void follow(const QString& target);
  /// The program and words that simulate the shown run again; empty where its scenario is not
  /// known.
  [[nodiscard]] QString commandLine() const;
  /// Of A or B; empty where what made it is not known.
  [[nodiscard]] QString commandLine(const RunStore* run) const;
  [[nodiscard]] CompareView* compare() const { return m_compare; }
  [[nodiscard]] RunLoader* loader() const { return m_loader; }
  [[nodiscard]] ChildJob* job() const { return m_job; }

  [[nodiscard]] ScenarioForm* form() const { return m_form; }
  /// Opens a scenario in the form; the message bar says why if it cannot be. Asks first when the
  /// form has unsaved edits.
  void openScenario(const QString& file);

  /// What becomes of a run when it is there: A, or B beside the A there is.
  /// kReload: each file takes the place of the open run that was read from it.
  enum class Role { kShow, kCompare, kReload };
  /// Starts to open run files in the background: one as `role` says, two as A and B; of more the
  /// first is A, the first of another scenario B, the rest are other seeds of the two. If any
  /// cannot be opened the message bar says why and what is shown stays.
  void openFiles(const QStringList& files, Role role = Role::kShow);
  /// The run at once, as A (B stays if there is one).
  void showRun(std::shared_ptr<const RunStore> run);
  void compareWith(std::shared_ptr<const RunStore> run);

  struct Simulation {
    QString scenario;  ///< A file.
    QStringList settings;
    QString label;          ///< Part of the run file's name.
    bool oneLayer = false;  ///< Show the first MoE layer, not the sum.
    bool recorded = false;  ///< Routing from the shipped checkpoint, recorded first.
    QStringList panes = {};  ///< Shown when the run is there.
  };
  /// Simulates in child processes and opens what comes out: one run as `role` says, two as A and B.
  void simulate(const std::vector<Simulation>& simulations, Role role);
  /// An entry of the welcome page.
  void runEntry(const QString& id);
  /// A file is being opened, or a simulation runs.
  [[nodiscard]] bool busy() const;
  void cancelWork();
  /// Runs have arrived and are about to be shown: the panes are drawn one per turn of the event
  /// loop, and until the last one is there the screen keeps what it shows, the run before with its
  /// name.
  [[nodiscard]] bool showing() const { return m_toDraw != nullptr; }
  /// Where simulations put their runs: $SWITCHYARD_RUNS, else the user's data folder.
  [[nodiscard]] static QString runsFolder();

  void setDark(bool dark);
  /// Points of all text, within [7, 18].
  void setTextSize(double points);
  [[nodiscard]] double textSize() const { return m_points; }
  [[nodiscard]] QProgressBar* progressBar() const { return m_progress; }
  [[nodiscard]] QPushButton* cancelButton() const { return m_cancel; }
  /// Docks and sizes as shipped.
  void restoreDefaultLayout();

 signals:
  /// Opening or simulating has ended, in whichever way.
  void idle();

 protected:
  bool event(QEvent* event) override;
  void closeEvent(QCloseEvent* event) override;
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  bool eventFilter(QObject* watched, QEvent* event) override;

 private:
  /// Sizes in letters of what is not laid out by its text alone.
  void fitText();
  /// Widths of the tool bars' fields; what the window has no room for goes.
  void fitBars();
  void focusField(QLineEdit* field);
  /// The run or the scenario that is on the page.
  void updateTitle();
  void copyRunRow();
  /// The words after "switchyard", without the trace and the output; empty where not known.
  [[nodiscard]] QStringList commandWords(const RunStore* run) const;
  /// The trace that the run replayed, found by its hash: as the scenario names it, beside the run,
  /// in the folder of runs. Not found: its name alone. Empty for synthetic routing.
  [[nodiscard]] QString traceOf(const RunStore& run, const QString& scenario) const;
  /// Names taken for runs that did not come.
  void dropOutputs();
  void keepOnScreen();
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
  void filterEvents(const QString& text);
  void find();
  void rangeMenu(const QPoint& at);
  void exportView();
  void copyInspector();
  void makeBookmarkActions(QMenu* view);
  void nameBookmark();
  void nextBookmark(int direction);
  void fillBookmarks();
  void linkChanged();
  void metricMenu(const QPoint& at);
  void runsMenu(const QPoint& at);
  void updateRunActions();
  void updateReload();
  /// back() undoes a change of a filter: `undo` sets what it was.
  void undoFilter(std::function<void()> undo);
  /// Which panes are shown, their heights, colours and order of rows.
  void savePanes(QSettings& settings) const;
  void restoreDefaultPanes();
  void restorePanes(const QSettings& settings);
  void filterTo(std::optional<StepRange> range);
  /// The event that is current stays it if the change leaves it in the table.
  void keepEvent(const std::function<void()>& change);
  void showEventsTitle();
  void offerLatency();
  QPushButton* addChip(const QString& tip, std::function<void()> remove);
  void updateChips();
  void chooseFile(Role role);
  void connectWork();
  void showProgress(const QString& what, int permille);
  void workEnded();
  void arrived(const std::vector<RunPointer>& runs);
  void reloaded(const std::vector<RunPointer>& runs);
  void keep(const RunPointer& run);
  void fillCompare();
  void fillRecent();
  void refreshPage();
  void runForm(bool compare);
  void runWhatIf();
  void findScenario();
  [[nodiscard]] std::vector<std::filesystem::path> galleryFiles() const;
  void prepareRuns();
  /// Docks and bars as saveState() had them; false: it is no layout of this window.
  bool restoreDocks(const QByteArray& docks);
  void holdScreen();
  void drawNextPane();

  ViewState* m_state;
  bool m_persistent;
  bool m_readingBookmarks = false;
  /// Told that another file stands in its place.
  std::vector<RunPointer> m_toldReplaced;  // of the open runs
  bool m_undoing = false;
  QString m_lastFilter;
  std::vector<QStringList> m_childWords;      // of the simulations under way
  std::map<QString, QStringList> m_commands;  // file → what made it, without -o
  PaneStack* m_panes = nullptr;
  MessageBar* m_message = nullptr;
  InspectorModel* m_inspector = nullptr;
  ExpertsModel* m_experts = nullptr;
  EventsModel* m_events = nullptr;
  QSortFilterProxyModel* m_expertsSorted = nullptr;
  EventsFilter* m_eventsSorted = nullptr;
  TableView *m_expertsView = nullptr, *m_eventsView = nullptr, *m_inspectorView = nullptr;
  TopologyView* m_topology = nullptr;
  QStandardItemModel* m_runs = nullptr;
  QTreeView* m_runsView = nullptr;
  QList<QDockWidget*> m_docks;
  QComboBox *m_layer = nullptr, *m_aggregate = nullptr, *m_scale = nullptr;
  QLineEdit *m_goTo = nullptr, *m_find = nullptr;
  QToolBar* m_tools = nullptr;
  QList<QAction*> m_barButtons;  // of the tool bar; the last ones go first where it is narrow
  std::vector<std::pair<QAction*, int>> m_barDropped;  // those that went, and their widths
  QAction* m_barSeparator = nullptr;
  QSize m_barFitted;  // the width of the window and what the bar wanted, when it was last laid out
  // What narrows the view; a click on a chip removes its part.
  QPushButton *m_chip = nullptr, *m_rangeChip = nullptr, *m_layerChip = nullptr,
              *m_gpuChip = nullptr, *m_linkChip = nullptr;
  QLabel *m_hover = nullptr, *m_windowLabel = nullptr, *m_cursorLabel = nullptr;
  QAction *m_reload = nullptr, *m_export = nullptr, *m_dark = nullptr;
  QAction *m_swapRuns = nullptr, *m_endCompare = nullptr, *m_copyCommand = nullptr,
          *m_reveal = nullptr;
  QList<QAction*> m_runActions;
  /// Whether the form's unsaved edits may go: saved, discarded, or there are none. Asks in the real
  /// application only.
  bool editsMayGo();
  QStackedWidget* m_stack = nullptr;
  Welcome* m_welcome = nullptr;
  ScenarioForm* m_form = nullptr;
  CompareView* m_compare = nullptr;
  MatrixView* m_matrix = nullptr;
  CapacityView* m_capacity = nullptr;
  RequestsView* m_requests = nullptr;
  HealthView* m_health = nullptr;
  WhatIf* m_whatIf = nullptr;
  /// Shared with the thread that opens a file, which may outlive a cancelled opening.
  std::shared_ptr<ScenarioTexts> m_texts = std::make_shared<ScenarioTexts>();
  std::unique_ptr<std::vector<TimePane*>> m_toDraw;  // null: the screen is not held
  QTimer* m_turns = nullptr;
  std::map<QString, Simulation> m_origins;  // run file → what it was simulated from
  std::vector<Simulation> m_running;
  RunLoader* m_loader = nullptr;
  ChildJob* m_job = nullptr;
  QLabel* m_work = nullptr;
  QProgressBar* m_progress = nullptr;
  double m_points = kTextPoints;
  QPushButton* m_cancel = nullptr;
  QAction* m_copyRunRow = nullptr;
  QMenu *m_recentMenu = nullptr, *m_bookmarkMenu = nullptr;
  QAction* m_timeAxis = nullptr;
  QString m_linkFilter;            // what linkChanged() put into the find field
  bool m_latencyByHand = false;    // the person has shown or hidden the pane
  std::vector<RunPointer> m_open;  // in the order of opening
  Role m_role = Role::kShow;
  bool m_oneLayer = false;
  QStringList m_wantedPanes;             // of the simulation under way
  QStringList m_outputs;                 // of the simulation under way
  QByteArray m_defaultLayout, m_layout;  // m_layout: of the run page while another is shown
};

}  // namespace switchyard::gui
