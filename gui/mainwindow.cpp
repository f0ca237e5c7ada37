// SPDX-License-Identifier: Apache-2.0
#include "gui/mainwindow.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include <QActionGroup>
#include <QApplication>
#include <QClipboard>
#include <QCloseEvent>
#include <QComboBox>
#include <QDesktopServices>
#include <QDir>
#include <QDockWidget>
#include <QDropEvent>
#include <QFileDialog>
#include <QFileInfo>
#include <QHeaderView>
#include <QInputDialog>
#include <QLabel>
#include <QLayout>
#include <QLineEdit>
#include <QMenuBar>
#include <QMessageBox>
#include <QMimeData>
#include <QPainter>
#include <QProgressBar>
#include <QPushButton>
#include <QRegularExpression>
#include <QScreen>
#include <QScrollArea>
#include <QSettings>
#include <QSortFilterProxyModel>
#include <QStackedWidget>
#include <QStandardItemModel>
#include <QStatusBar>
#include <QStyle>
#include <QToolBar>
#include <QToolButton>
#include <QTreeView>
#include <QUrl>
#include <QVBoxLayout>

#include "engine/base/error.hpp"
#include "engine/base/file_hash.hpp"
#include "engine/base/hash.hpp"
#include "engine/base/version.hpp"
#include "gui/choicebox.hpp"
#include "gui/core/scenariodocument.hpp"
#include "gui/palette.hpp"
#include "gui/recent.hpp"
#include "gui/render.hpp"
#include "gui/runsfolder.hpp"
#include "gui/savename.hpp"
#include "gui/stepspanes.hpp"
#include "gui/text.hpp"
#include "gui/tour.hpp"

namespace switchyard::gui {
namespace {

/// Left for a frame and a title bar, which are not known before the window is shown; pixels.
constexpr QMargins kFrameRoom(4, 32, 4, 4);

/// One line that ends with an ellipsis where it is cut; text() stays whole.
class CutLabel : public QLabel {
 public:
  using QLabel::QLabel;

 protected:
  void paintEvent(QPaintEvent* /*event*/) override {
    QPainter painter(this);
    const QRect room = contentsRect();
    style()->drawItemText(&painter, room, Qt::AlignLeft | Qt::AlignVCenter, palette(), isEnabled(),
                          fontMetrics().elidedText(text(), Qt::ElideRight, room.width()),
                          foregroundRole());
  }
};

}  // namespace

MessageBar::MessageBar(QWidget* parent) : QWidget(parent), m_text(new QLabel(this)) {
  auto* layout = new QHBoxLayout(this);
  layout->setContentsMargins(8, 3, 4, 3);
  m_text->setWordWrap(true);
  m_text->setTextInteractionFlags(Qt::TextSelectableByMouse);
  m_text->setTextFormat(Qt::PlainText);
  auto* close = new QToolButton(this);
  close->setText(tr("Close"));
  close->setAutoRaise(true);
  connect(close, &QToolButton::clicked, this, &QWidget::hide);
  layout->addWidget(m_text, 1);
  layout->addWidget(close);
  setAccessibleName(tr("Message"));
  setAutoFillBackground(true);
  setBackgroundRole(QPalette::ToolTipBase);
  m_text->setForegroundRole(QPalette::ToolTipText);
  hide();
}

void MessageBar::showMessage(const QString& text) {
  m_text->setText(text);
  setVisible(!text.isEmpty());
}

QString MessageBar::text() const {
  return isVisibleTo(parentWidget()) ? m_text->text() : QString();
}

MainWindow::MainWindow(bool persistent, QWidget* parent)
    : QMainWindow(parent), m_state(new ViewState(this)), m_persistent(persistent) {
  setWindowTitle(tr("Switchyard"));
  setAcceptDrops(true);
  setDockNestingEnabled(true);
  setCorner(Qt::BottomLeftCorner, Qt::LeftDockWidgetArea);
  setCorner(Qt::BottomRightCorner, Qt::RightDockWidgetArea);
  makePanes();
  makeDocks();
  makeToolBar();
  makeActions();
  resize(1680, 1020);

  m_hover = new CutLabel(this);
  m_hover->setTextFormat(Qt::PlainText);
  // A long read-out is cut at the right rather than widening the window.
  m_hover->setMinimumWidth(1);
  m_hover->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
  m_windowLabel = new QLabel(this);
  m_cursorLabel = new QLabel(this);
  m_chip = addChip(tr("Only events with this text are listed; click to list all"),
                   [this] { m_find->clear(); });
  m_rangeChip = addChip(tr("Only events of these steps are listed; click to list all"),
                        [this] { filterTo(std::nullopt); });
  m_layerChip = addChip(tr("Heat map and experts show this layer; click to show all"),
                        [this] { m_state->setLayer(kAllLayers); });
  m_gpuChip = addChip(tr("The inspector shows this GPU; click to show none"),
                      [this] { m_state->setGpu(run::kNone); });
  m_linkChip = addChip(tr("This link is drawn and its events are listed; click to choose none"),
                       [this] { m_state->setLink(run::kNone); });
  m_work = new QLabel(this);
  m_progress = new QProgressBar(this);
  m_progress->setRange(0, 1000);
  m_progress->setFixedWidth(fontMetrics().averageCharWidth() * 24);
  m_progress->setFixedHeight(fontMetrics().height() + 4);
  m_progress->setFormat(QStringLiteral("%p %"));
  m_progress->setAccessibleName(tr("Progress"));
  m_cancel = new QPushButton(tr("Cancel"), this);
  m_cancel->setFixedHeight(fontMetrics().height() + 8);
  m_windowLabel->setContentsMargins(10, 0, 10, 0);
  m_cursorLabel->setContentsMargins(10, 0, 10, 0);
  statusBar()->addWidget(m_hover, 1);
  for (QWidget* w : {static_cast<QWidget*>(m_work), static_cast<QWidget*>(m_progress),
                     static_cast<QWidget*>(m_cancel)}) {
    statusBar()->addPermanentWidget(w);
    w->hide();
  }
  statusBar()->addPermanentWidget(m_windowLabel);
  statusBar()->addPermanentWidget(m_cursorLabel);

  connect(m_state, &ViewState::runChanged, this, &MainWindow::runChanged);
  connect(m_state, &ViewState::windowChanged, this, &MainWindow::updateStatus);
  connect(m_state, &ViewState::cursorChanged, this, &MainWindow::updateStatus);
  connect(m_state, &ViewState::expertChanged, this, &MainWindow::syncExpert);
  connect(m_state, &ViewState::linkChanged, this, &MainWindow::linkChanged);
  for (const auto signal : {&ViewState::runChanged, &ViewState::optionsChanged,
                            &ViewState::gpuChanged, &ViewState::linkChanged}) {
    connect(m_state, signal, this, &MainWindow::updateChips);
  }
  connect(m_state, &ViewState::bookmarksChanged, this, &MainWindow::fillBookmarks);
  connect(m_panes, &PaneStack::hovered, m_hover, [this](const QString& text) {
    m_hover->setText(text);
    m_hover->setToolTip(text);
  });
  connect(m_panes, &PaneStack::rangeSelected, this, &MainWindow::rangeMenu);
  connectWork();
  m_defaultLayout = saveState(kLayoutVersion);
  if (m_persistent) {
    // A first start on a small screen must not hang over its edges.
    if (const QScreen* screen = QGuiApplication::primaryScreen()) {
      resize(size().boundedTo(screen->availableGeometry().marginsRemoved(kFrameRoom).size()));
    }
    const QSettings settings;
    const bool systemDark = QApplication::palette().color(QPalette::Window).lightness() < 128;
    setTextSize(settings.value(QStringLiteral("textSize"), m_points).toDouble());
    setDark(settings.value(QStringLiteral("dark"), systemDark).toBool());
    restoreGeometry(settings.value(QStringLiteral("geometry")).toByteArray());
    keepOnScreen();
    const QByteArray layout = settings.value(QStringLiteral("layout")).toByteArray();
    if (restoreDocks(layout)) m_layout = layout;
    restorePanes(settings);
  }
  if (m_layout.isEmpty()) m_layout = m_defaultLayout;
  runChanged();
  showPage(Page::kWelcome);
  fillRecent();
}

/// A geometry of larger screens, or of ones that are gone, must leave the title bar in reach. One
/// that lies on the screen stays as it is. All is about the inner rectangle: the frame is not known
/// before the window is first shown, so move(), which takes the frame's corner, would shift it.
void MainWindow::keepOnScreen() {
  if (isMaximized() || isFullScreen()) return;
  const QScreen* screen = QGuiApplication::screenAt(geometry().center());
  if (screen == nullptr) screen = QGuiApplication::primaryScreen();
  if (screen == nullptr) return;
  const QRect whole = screen->availableVirtualGeometry();
  QRect inner = geometry();
  if (whole.contains(inner)) return;
  const QRect room = whole.marginsRemoved(kFrameRoom);
  inner.setSize(inner.size().boundedTo(room.size()));
  inner.moveLeft(std::clamp(inner.left(), room.left(), room.right() + 1 - inner.width()));
  inner.moveTop(std::clamp(inner.top(), room.top(), room.bottom() + 1 - inner.height()));
  setGeometry(inner);
}

MainWindow::~MainWindow() {
  // The children listen to each other; they must not tell anything while they go.
  m_state->disconnect();
  m_loader->disconnect(this);
  m_job->disconnect(this);
  dropOutputs();  // the simulation under way ends with the window
  m_expertsView->selectionModel()->disconnect(this);
  m_eventsView->selectionModel()->disconnect(this);
}

void MainWindow::makePanes() {
  auto* centre = new QWidget(this);
  auto* layout = new QVBoxLayout(centre);
  layout->setContentsMargins(2, 2, 2, 0);
  layout->setSpacing(2);
  m_message = new MessageBar(centre);
  m_stack = new QStackedWidget(centre);
  m_welcome = new Welcome(scenariosFolder(), m_stack);
  m_panes = new PaneStack(m_state, {}, m_stack);
  m_stack->addWidget(m_welcome);
  m_stack->addWidget(m_panes);
  m_form = new ScenarioForm(m_stack);
  m_stack->addWidget(m_form);
  layout->addWidget(m_message);
  layout->addWidget(m_stack, 1);
  setCentralWidget(centre);
}

QDockWidget* MainWindow::addDock(const QString& title, const QString& name, QWidget* content,
                                 Qt::DockWidgetArea area) {
  auto* dock = new QDockWidget(title, this);
  dock->setObjectName(name);
  dock->setWidget(content);
  content->setAccessibleName(title);
  addDockWidget(area, dock);
  m_docks.push_back(dock);
  return dock;
}

void MainWindow::makeDocks() {
  m_runs = new QStandardItemModel(this);
  m_runsView = new QTreeView(this);
  m_runsView->setModel(m_runs);
  m_runsView->setAlternatingRowColors(true);
  m_runsView->setEditTriggers(QAbstractItemView::NoEditTriggers);
  m_runsView->setUniformRowHeights(true);
  m_runsView->setIndentation(12);
  m_runsView->setTextElideMode(Qt::ElideLeft);  // The end tells "model.hidden_size" from others.
  m_runsView->header()->setFixedHeight(fontMetrics().height() + 8);
  m_runsView->header()->setStretchLastSection(false);
  m_runsView->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  m_runsView->setContextMenuPolicy(Qt::CustomContextMenu);
  connect(m_runsView, &QWidget::customContextMenuRequested, this,
          [this](const QPoint& at) { runsMenu(m_runsView->viewport()->mapToGlobal(at)); });
  m_copyRunRow = new QAction(tr("Copy"), m_runsView);
  m_copyRunRow->setShortcut(QKeySequence::Copy);
  m_copyRunRow->setShortcutContext(Qt::WidgetShortcut);
  m_copyRunRow->setStatusTip(tr("Copy the chosen row and what is below it, as tab-separated text"));
  connect(m_copyRunRow, &QAction::triggered, this, &MainWindow::copyRunRow);
  m_runsView->addAction(m_copyRunRow);
  addDock(tr("Run"), QStringLiteral("runs"), m_runsView, Qt::LeftDockWidgetArea);

  m_experts = new ExpertsModel(m_state, this);
  m_expertsSorted = new QSortFilterProxyModel(this);
  m_expertsSorted->setSourceModel(m_experts);
  m_expertsSorted->setSortRole(kSortRole);
  m_expertsView = new TableView(this);
  m_expertsView->setModel(m_expertsSorted);
  m_expertsView->setSortingEnabled(true);
  m_expertsView->sortByColumn(ExpertsModel::kOverflowShare, Qt::DescendingOrder);
  m_expertsView->setItemDelegateForColumn(ExpertsModel::kSpark, new SparkDelegate(m_expertsView));
  using E = ExpertsModel;
  m_expertsView->fitWhole({E::kExpert, E::kOverflowShare, E::kMean, E::kGpu, E::kRerouted, E::kP99,
                           E::kDropped, E::kSpark, E::kCopies, E::kMax, E::kStd, E::kMin},
                          [this](int column) { return m_experts->says(column); });
  m_expertsView->setEmptyText(tr("The model has no routed experts."));
  m_expertsView->setSelectionMode(QAbstractItemView::ExtendedSelection);
  addDock(tr("Experts"), QStringLiteral("experts"), m_expertsView, Qt::LeftDockWidgetArea);
  connect(m_expertsView, &QAbstractItemView::doubleClicked, this, [this](const QModelIndex& at) {
    if (auto* heat = dynamic_cast<HeatPane*>(m_panes->pane(QStringLiteral("heatmap")))) {
      heat->zoomToHottest(at.data(kIdRole).toUInt());
    }
  });
  connect(m_expertsView->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
          [this](const QModelIndex& current) {
            if (current.isValid()) m_state->setExpert(current.data(kIdRole).toUInt());
          });

  m_topology = new TopologyView(m_state, this);
  addDock(tr("Topology"), QStringLiteral("topology"), m_topology, Qt::RightDockWidgetArea);

  m_inspector = new InspectorModel(m_state, this);
  m_inspectorView = new TableView(this);
  m_inspectorView->setModel(m_inspector);
  m_inspectorView->fitValues();
  m_inspectorView->setTextElideMode(Qt::ElideMiddle);
  // Values are links, for the mouse and for Enter.
  const auto open = [this](const QModelIndex& at) { follow(at.data(kTargetRole).toString()); };
  connect(m_inspectorView, &QAbstractItemView::clicked, this, [open](const QModelIndex& at) {
    if (at.column() == 1) open(at);
  });
  connect(m_inspectorView, &QAbstractItemView::activated, this, open);
  addDock(tr("Inspector"), QStringLiteral("inspector"), m_inspectorView, Qt::RightDockWidgetArea);

  m_events = new EventsModel(m_state, this);
  m_eventsSorted = new EventsFilter(m_events, this);
  m_eventsView = new TableView(this);
  m_eventsView->setModel(m_eventsSorted);
  // Before sorting is on: that sorts at once, by what the header says.
  m_eventsView->horizontalHeader()->setSortIndicator(EventsModel::kTime, Qt::AscendingOrder);
  m_eventsView->setSortingEnabled(true);
  m_eventsView->fitLast([this](int column) { return m_events->says(column); });
  m_eventsView->setEmptyText(tr("no events"));
  addDock(tr("Events"), QStringLiteral("events"), m_eventsView, Qt::BottomDockWidgetArea);
  connect(m_eventsView->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
          [this](const QModelIndex& current) {
            if (!current.isValid() || m_state->run() == nullptr) return;
            const auto row = static_cast<std::size_t>(current.data(kIdRole).toInt());
            const run::Event& e = m_state->run()->events()[row];
            if (e.step < m_state->steps()) m_state->centreOn(e.step);
          });

  m_compare = new CompareView(m_state, this);
  QDockWidget* compare =
      addDock(tr("Compare"), QStringLiteral("compare"), m_compare, Qt::BottomDockWidgetArea);
  tabifyDockWidget(m_docks[4], compare);
  m_matrix = new MatrixView(m_state, this);
  tabifyDockWidget(m_docks[2], addDock(tr("Reroutes, traffic"), QStringLiteral("reroutes"),
                                       m_matrix, Qt::RightDockWidgetArea));
  m_docks[2]->raise();
  m_capacity = new CapacityView(m_state, this);
  tabifyDockWidget(compare, addDock(tr("Capacity"), QStringLiteral("capacity"), m_capacity,
                                    Qt::BottomDockWidgetArea));
  m_requests = new RequestsView(m_state, this);
  tabifyDockWidget(m_docks[7], addDock(tr("Requests"), QStringLiteral("requests"), m_requests,
                                       Qt::BottomDockWidgetArea));
  m_health = new HealthView(m_state, this);
  tabifyDockWidget(m_docks[8], addDock(tr("Health"), QStringLiteral("health"), m_health,
                                       Qt::BottomDockWidgetArea));
  connect(m_docks[9], &QDockWidget::visibilityChanged, m_health, &HealthView::setSeen);
  m_docks[4]->raise();
  restoreDefaultLayout();
}

bool MainWindow::restoreDocks(const QByteArray& docks) {
  // QMainWindow shows the tab bars while it goes through a set of them. Each activates the layout,
  // which gives the window another set and frees this one (Qt 6.4: a crash now and then). A layout
  // that is not enabled is not activated.
  layout()->setEnabled(false);
  const bool done = restoreState(docks, kLayoutVersion);
  layout()->setEnabled(true);
  layout()->activate();
  return done;
}

void MainWindow::restoreDefaultLayout() {
  if (!m_defaultLayout.isEmpty()) restoreDocks(m_defaultLayout);
  for (QDockWidget* dock : m_docks) dock->setVisible(true);
  const QFontMetrics m = fontMetrics();
  const int letter = m.averageCharWidth();
  // Large letters must leave the panes half of a small screen. (The window has no size yet when
  // this is called first.)
  const int side = std::min(std::clamp(width() * 17 / 100, letter * 47, letter * 50),
                            std::max(width() * 24 / 100, 300));
  // The table of experts has more columns than the inspector.
  const int left = std::min(std::clamp(width() * 21 / 100, side, letter * 62),
                            std::max(width() * 26 / 100, side));
  resizeDocks({m_docks[0], m_docks[2]}, {left, side}, Qt::Horizontal);
  resizeDocks({m_docks[0], m_docks[1]}, {45, 55}, Qt::Vertical);
  resizeDocks({m_docks[2], m_docks[3]}, {40, 60}, Qt::Vertical);
  // On a small screen panes fold: the tables below them have a quarter of it, large letters or not.
  constexpr int kLowWindow = 900;
  const bool low = height() < kLowWindow;
  const int lines =
      std::clamp(height() * (low ? 26 : 15) / 100, m.height() * 8, m.height() * (low ? 12 : 10));
  resizeDocks({m_docks[4]}, {lines}, Qt::Vertical);
}

void MainWindow::restoreDefaultPanes() {
  m_panes->restoreSizes({});
  m_panes->setAllFolds(PaneStack::Fold::kAuto);
  for (const QString& id : PaneStack::panelNames()) {
    auto* action = findChild<QAction*>(QStringLiteral("pane:") + id);
    if (action == nullptr || id == QLatin1String("latency")) continue;
    action->setChecked(!PaneStack::hiddenAtFirst().contains(id));
  }
  m_latencyByHand = false;
  offerLatency();
}

void MainWindow::savePanes(QSettings& settings) const {
  QStringList shown;
  for (const QString& id : PaneStack::panelNames()) {
    const auto* action = findChild<QAction*>(QStringLiteral("pane:") + id);
    // Latency comes and goes with the runs until a person chooses.
    if (id == QLatin1String("latency") && !m_latencyByHand) continue;
    if (action != nullptr && action->isChecked()) shown << id;
  }
  settings.setValue(QStringLiteral("panes"), shown);
  settings.setValue(QStringLiteral("latencyByHand"), m_latencyByHand);
  settings.setValue(QStringLiteral("paneSizes"), m_panes->sizesState());
  settings.setValue(QStringLiteral("panesFolded"), m_panes->foldsByHand(PaneStack::Fold::kFolded));
  settings.setValue(QStringLiteral("panesOpen"), m_panes->foldsByHand(PaneStack::Fold::kOpen));
  settings.setValue(QStringLiteral("colors"), static_cast<int>(m_state->colorMap()));
  settings.setValue(QStringLiteral("rows"), static_cast<int>(m_state->rowOrder()));
}

void MainWindow::restorePanes(const QSettings& settings) {
  if (!settings.contains(QStringLiteral("panes"))) return;
  const QStringList shown = settings.value(QStringLiteral("panes")).toStringList();
  m_latencyByHand = settings.value(QStringLiteral("latencyByHand")).toBool();
  for (const QString& id : PaneStack::panelNames()) {
    if (id == QLatin1String("latency") && !m_latencyByHand) continue;
    if (auto* action = findChild<QAction*>(QStringLiteral("pane:") + id)) {
      action->setChecked(shown.contains(id));
    }
  }
  m_panes->restoreSizes(settings.value(QStringLiteral("paneSizes")).toByteArray());
  for (const QString& id : settings.value(QStringLiteral("panesFolded")).toStringList()) {
    m_panes->setFold(id, PaneStack::Fold::kFolded);
  }
  for (const QString& id : settings.value(QStringLiteral("panesOpen")).toStringList()) {
    m_panes->setFold(id, PaneStack::Fold::kOpen);
  }
  const int colors = settings.value(QStringLiteral("colors")).toInt();
  const int rows = settings.value(QStringLiteral("rows")).toInt();
  for (QAction* action : findChildren<QAction*>()) {
    if (action->objectName() == QStringLiteral("colors:%1").arg(colors) ||
        action->objectName() == QStringLiteral("rows:%1").arg(rows)) {
      action->trigger();
    }
  }
}

void MainWindow::makeToolBar() {
  QToolBar* bar = m_tools = addToolBar(tr("Tools"));
  bar->setObjectName(QStringLiteral("tools"));
  bar->setMovable(false);
  const auto name = [&](const QString& text) {
    auto* label = new QLabel(text, bar);
    label->setContentsMargins(8, 0, 4, 0);
    bar->addWidget(label);
    return label;
  };
  const auto choice = [&](const QString& text) {
    auto* box = new ChoiceBox(bar);
    box->setAccessibleName(text);
    box->setSizeAdjustPolicy(QComboBox::AdjustToContents);
    box->setFocusPolicy(Qt::ClickFocus);
    name(text)->setBuddy(box);
    bar->addWidget(box);
    return box;
  };
  m_layer = choice(tr("Layer"));
  m_aggregate = choice(tr("Aggregate"));
  m_aggregate->addItem(tr("largest step"), static_cast<int>(Aggregate::kMax));
  m_aggregate->addItem(tr("mean"), static_cast<int>(Aggregate::kMean));
  m_scale = choice(tr("Scale"));
  m_scale->addItem(tr("% of capacity"), static_cast<int>(Scale::kCapacity));
  m_scale->addItem(tr("load / fair share"), static_cast<int>(Scale::kFairShare));
  m_scale->addItem(tr("tokens"), static_cast<int>(Scale::kTokens));
  connect(m_layer, &QComboBox::activated, this, [this] {
    undoFilter([this, old = m_state->layer()] { m_state->setLayer(old); });
    m_state->setLayer(m_layer->currentData().toUInt());
  });
  connect(m_aggregate, &QComboBox::activated, this, [this] {
    m_state->setAggregate(static_cast<Aggregate>(m_aggregate->currentData().toInt()));
  });
  connect(m_scale, &QComboBox::activated, this,
          [this] { m_state->setScale(static_cast<Scale>(m_scale->currentData().toInt())); });
  // The boxes show the state whoever changed it (--layer, a restored view). setCurrentIndex does
  // not emit activated, so there is no loop.
  connect(m_state, &ViewState::optionsChanged, this, [this] {
    const auto select = [](QComboBox* box, const QVariant& value) {
      const int index = box->findData(value);
      if (index >= 0) box->setCurrentIndex(index);
    };
    select(m_layer, m_state->layer());
    select(m_aggregate, static_cast<int>(m_state->aggregate()));
    select(m_scale, static_cast<int>(m_state->scale()));
  });
  name(tr("Go to"));
  m_goTo = new QLineEdit(bar);
  m_goTo->setObjectName(QStringLiteral("goto"));
  m_goTo->setAccessibleName(tr("Go to step, range or time"));
  connect(m_goTo, &QLineEdit::returnPressed, this, &MainWindow::goTo);
  bar->addWidget(m_goTo);
  name(tr("Find"));
  m_find = new QLineEdit(bar);
  m_find->setObjectName(QStringLiteral("find"));
  m_find->setAccessibleName(tr("Find an expert, or events with a text"));
  m_find->setToolTip(
      tr("Events with this text; Enter: the expert of that name, else the next "
         "such event"));
  m_find->setClearButtonEnabled(true);
  connect(m_find, &QLineEdit::textChanged, this, &MainWindow::filterEvents);
  connect(m_find, &QLineEdit::returnPressed, this, &MainWindow::find);
  bar->addWidget(m_find);
  addToolBarBreak();
  m_whatIf = new WhatIf(this);
  addToolBar(m_whatIf);
}

QAction* MainWindow::add(QMenu* menu, const QString& text, const QList<QKeySequence>& keys,
                         const QString& tip, std::function<void()> run) {
  QAction* action = menu->addAction(text);
  action->setShortcuts(keys);
  action->setStatusTip(tip);
  if (run) connect(action, &QAction::triggered, this, std::move(run));
  return action;
}

void MainWindow::makeActions() {
  QMenu* file = menuBar()->addMenu(tr("&File"));
  QAction* open = add(file, tr("&Open run…"), {QKeySequence(Qt::CTRL | Qt::Key_O)},
                      tr("Open a run file, two to compare, or more seeds of the two"),
                      [this] { chooseFile(Role::kShow); });
  QAction* second = add(
      file, tr("&Add run to compare…"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_O)},
      tr("Open a run as B, beside the one that is shown"), [this] { chooseFile(Role::kCompare); });
  m_runActions << second;
  add(file, tr("Edit &scenario…"), {QKeySequence(Qt::CTRL | Qt::Key_T)},
      tr("Open a scenario (.toml) in the form"), [this] {
        const QString path = QFileDialog::getOpenFileName(
            this, tr("Open scenario"), qs(scenariosFolder().string()), tr("Scenarios (*.toml)"));
        if (!path.isEmpty()) openScenario(path);
      });
  file->addMenu(tr("S&cenario"))->addActions(m_form->commands());
  m_recentMenu = file->addMenu(tr("Open &recent"));
  file->addSeparator();
  add(file, tr("Scenario form"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_T)},
      tr("Between the run and the form of the scenario"), [this] {
        showPage(page() == Page::kScenario || m_form->document() == nullptr ? Page::kRun
                                                                            : Page::kScenario);
      });
  add(file, tr("&Welcome page"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_W)},
      tr("The shipped scenarios and the files opened lately"),
      [this] { showPage(page() == Page::kWelcome ? Page::kRun : Page::kWelcome); });
  m_reload = add(file, tr("&Reload"), {QKeySequence(Qt::Key_F5)},
                 tr("Read the runs, or the form's scenario, from disk again"), [this] {
                   if (page() == Page::kScenario) {
                     m_form->reload();
                     return;
                   }
                   QStringList files;
                   for (const RunStore* run : {m_state->run(), m_state->other()}) {
                     if (run != nullptr && !run->path().empty()) files << qs(run->path().string());
                   }
                   for (const auto& run : m_open) {
                     const QString file = qs(run->path().string());
                     if (!file.isEmpty() && !files.contains(file) && run->replacedOnDisk()) {
                       files << file;
                     }
                   }
                   openFiles(files, Role::kReload);
                 });
  m_export = add(file, tr("&Export…"), {QKeySequence(Qt::CTRL | Qt::Key_E)},
                 tr("Save the window as PNG or SVG, or the steps on screen as CSV"),
                 [this] { exportView(); });
  m_runActions << add(file, tr("Copy &picture"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_C)},
                      tr("Copy a picture of the window, twice its size"), [this] {
                        QApplication::clipboard()->setImage(imageOf(*this, 2));
                        statusBar()->showMessage(tr("copied a picture of the window"), 4000);
                      });
  file->addSeparator();
  add(file, tr("&Quit"), {QKeySequence(Qt::CTRL | Qt::Key_Q)}, tr("Close the window"),
      [this] { close(); });

  QMenu* view = menuBar()->addMenu(tr("&View"));
  const auto middle = [this] {
    const TimeWindow w = m_state->window();
    const auto step = m_state->cursor();
    const double at = step ? static_cast<double>(*step) + 0.5 : -1;
    return at >= w.first && at <= w.end ? at : (w.first + w.end) / 2;
  };
  QList<QAction*> paneKeys;
  m_runActions << add(view, tr("Zoom in"), {QKeySequence(Qt::Key_W)}, tr("Zoom in at the cursor"),
                      [this, middle] { m_state->zoom(middle(), 0.7); })
               << add(view, tr("Zoom out"), {QKeySequence(Qt::Key_S)}, tr("Zoom out at the cursor"),
                      [this, middle] { m_state->zoom(middle(), 1 / 0.7); })
               << add(view, tr("Pan left"), {QKeySequence(Qt::Key_A)}, tr("Show earlier steps"),
                      [this] { m_state->pan(-0.2 * m_state->window().length()); })
               << add(view, tr("Pan right"), {QKeySequence(Qt::Key_D)}, tr("Show later steps"),
                      [this] { m_state->pan(0.2 * m_state->window().length()); });
  const auto moveCursor = [this](int by) {
    const auto now = m_state->cursor();
    const double start = now ? static_cast<double>(*now) + by : m_state->window().first;
    const double last = static_cast<double>(m_state->steps()) - 1;
    const double to = std::clamp(start, 0.0, std::max(last, 0.0));
    m_state->setCursor(static_cast<std::uint64_t>(to));
    const TimeWindow w = m_state->window();
    if (to < w.first) m_state->pan(to - w.first);
    if (to + 1 > w.end) m_state->pan(to + 1 - w.end);
  };
  paneKeys << add(view, tr("Cursor left"), {QKeySequence(Qt::Key_Left)},
                  tr("Move the cursor to the step before"), [moveCursor] { moveCursor(-1); })
           << add(view, tr("Cursor right"), {QKeySequence(Qt::Key_Right)},
                  tr("Move the cursor to the next step"), [moveCursor] { moveCursor(1); });
  m_runActions << add(
      view, tr("Fit selection"), {QKeySequence(Qt::Key_F)},
      tr("Zoom to the selected steps, or to the chosen phase"), [this] {
        if (const auto s = m_state->selection()) {
          m_state->setWindow({static_cast<double>(s->first), static_cast<double>(s->end)},
                             ViewState::Move::kJump);
        } else if (m_state->cursor() && m_state->gpu() != run::kNone) {
          // A click on a phase chose its GPU and its step.
          const auto step = static_cast<double>(*m_state->cursor());
          m_state->setWindow({step - (kMinWindowSteps - 1) / 2, step + (kMinWindowSteps + 1) / 2},
                             ViewState::Move::kJump);
        } else {
          statusBar()->showMessage(
              tr("nothing is chosen: drag over a pane, or click on a GPU's phase"), 4000);
        }
      });
  m_runActions << add(view, tr("Whole run"), {QKeySequence(Qt::Key_0)}, tr("Show all steps"),
                      [this] { m_state->showAll(); });
  paneKeys << add(view, tr("Whole run (in the panes)"), {QKeySequence(Qt::Key_Home)},
                  tr("Show all steps"), [this] { m_state->showAll(); });
  m_runActions << add(view, tr("Back"),
                      {QKeySequence(Qt::Key_Backspace), QKeySequence(Qt::ALT | Qt::Key_Left)},
                      tr("Undo the last zoom, jump or filter"), [this] {
                        if (!m_state->back()) {
                          statusBar()->showMessage(tr("nothing to go back to"), 4000);
                        }
                      });
  view->addSeparator();
  m_runActions << add(view, tr("Next event"), {QKeySequence(Qt::Key_Period)},
                      tr("Cursor to the next event"), [this] { nextEvent(1); })
               << add(view, tr("Previous event"), {QKeySequence(Qt::Key_Comma)},
                      tr("Cursor to the event before"), [this] { nextEvent(-1); })
               << add(view, tr("Go to…"), {QKeySequence(Qt::CTRL | Qt::Key_G)},
                      tr("Type a step, a range of steps or a time"),
                      [this] { focusField(m_goTo); })
               << add(view, tr("Find…"),
                      {QKeySequence(Qt::CTRL | Qt::Key_F), QKeySequence(Qt::Key_Slash)},
                      tr("Find an expert, or filter the events by a text"),
                      [this] { focusField(m_find); });
  QAction* clear =
      add(view, tr("Clear cursor and selection"), {QKeySequence(Qt::Key_Escape)},
          tr("Remove the filters, then the GPU, the selection, the expert, the cursor"), [this] {
            if (!m_find->text().isEmpty()) {
              m_find->clear();
              m_state->setLink(run::kNone);
            } else if (m_state->link() != run::kNone) {
              m_state->setLink(run::kNone);
            } else if (m_eventsSorted->range()) {
              filterTo(std::nullopt);
            } else if (m_state->gpu() != run::kNone) {
              m_state->setGpu(run::kNone);
            } else if (m_state->selection()) {
              m_state->setSelection(std::nullopt);
            } else if (m_state->expert() != run::kNone) {
              m_state->setExpert(run::kNone);
            } else {
              m_state->setCursor(std::nullopt);
            }
          });
  paneKeys << clear;
  // A table in a dock has no use for Escape of its own; a field of the form has.
  for (QDockWidget* dock : findChildren<QDockWidget*>()) dock->addAction(clear);
  // These keys belong to tables and text fields as well: they act where a pane has the focus.
  for (QAction* action : paneKeys) {
    action->setShortcutContext(Qt::WidgetWithChildrenShortcut);
    m_panes->addAction(action);
  }
  m_runActions << paneKeys;
  view->addSeparator();
  makeBookmarkActions(view);
  m_timeAxis = add(view, tr("Axis of simulated time"), {QKeySequence(Qt::Key_T)},
                   tr("Widths on the axis: simulated time, or steps of equal width"),
                   [this] { m_state->setTimeAxis(m_timeAxis->isChecked()); });
  m_timeAxis->setCheckable(true);
  connect(m_state, &ViewState::windowChanged, this,
          [this] { m_timeAxis->setChecked(m_state->timeAxis()); });
  QMenu* runs = menuBar()->addMenu(tr("&Runs"));
  QMenu* experts = menuBar()->addMenu(tr("&Experts"));
  m_swapRuns = add(runs, tr("&Swap A and B"), {QKeySequence(Qt::Key_X)},
                   tr("A becomes B and B becomes A"), [this] { m_compare->swapButton()->click(); });
  m_endCompare = add(runs, tr("&End the comparison"), {}, tr("Show A alone"),
                     [this] { compareWith(nullptr); });
  runs->addSeparator();
  m_copyCommand = add(runs, tr("&Copy the command line of A"), {},
                      tr("The switchyard sim … that makes this run, into the clipboard"),
                      [this] { QApplication::clipboard()->setText(commandLine()); });
  m_reveal = add(runs, tr("&Open the folder of A"), {}, tr("Where the run's file lies"), [this] {
    QDesktopServices::openUrl(
        QUrl::fromLocalFile(QFileInfo(qs(m_state->run()->path().string())).absolutePath()));
  });
  runs->addSeparator();
  add(runs, tr("Runs kept on &disk…"), {},
      tr("What was simulated here: how large it is, open it again, delete it"),
      [this] { showRunsFolder(); });
  connect(runs, &QMenu::aboutToShow, this, &MainWindow::updateRunActions);
  connect(m_state, &ViewState::otherChanged, this, &MainWindow::updateRunActions);
  const auto heat = [this] {
    return dynamic_cast<HeatPane*>(m_panes->pane(QStringLiteral("heatmap")));
  };
  m_runActions << add(experts, tr("&Hottest steps of the expert"), {QKeySequence(Qt::Key_H)},
                      tr("Zoom to the chosen expert's hottest steps"), [this, heat] {
                        if (m_state->expert() == run::kNone) {
                          statusBar()->showMessage(tr("no expert is chosen"), 4000);
                        } else if (HeatPane* pane = heat()) {
                          pane->zoomToHottest(m_state->expert());
                        }
                      });
  QMenu* columns = experts->addMenu(tr("&Columns of the table"));
  columns->setToolTipsVisible(true);
  connect(columns, &QMenu::aboutToShow, this,
          [this, columns] { m_expertsView->columnsMenu(columns); });
  QMenu* rows = experts->addMenu(tr("&Rows of the heat map"));
  auto* order = new QActionGroup(this);
  for (const auto& [name, which] :
       {std::pair(tr("by GPU"), RowOrder::kGpu), std::pair(tr("by number"), RowOrder::kId),
        std::pair(tr("by load, most first"), RowOrder::kLoad)}) {
    QAction* action = add(rows, name, {}, tr("Order of the experts in the heat map"),
                          [this, which = which] { m_state->setRowOrder(which); });
    action->setCheckable(true);
    action->setChecked(which == RowOrder::kGpu);
    action->setObjectName(QStringLiteral("rows:%1").arg(static_cast<int>(which)));
    order->addAction(action);
  }
  rows->addSeparator();
  m_runActions << add(rows, tr("All rows"), {QKeySequence(Qt::Key_R)},
                      tr("Show all experts again after Ctrl+Shift+wheel"), [heat] {
                        if (HeatPane* pane = heat()) pane->showAllRows();
                      });
  QMenu* panes = view->addMenu(tr("Panes"));
  for (TimePane* pane : m_panes->panes()) {
    if (!PaneStack::panelNames().contains(pane->id())) continue;
    QAction* action = add(panes, pane->accessibleName(), {}, tr("Show or hide this pane"), {});
    action->setCheckable(true);
    action->setChecked(!PaneStack::hiddenAtFirst().contains(pane->id()));
    action->setObjectName(QStringLiteral("pane:") + pane->id());
    connect(action, &QAction::toggled, pane, &QWidget::setVisible);
    // Who asks for a pane wants to see it, not its title.
    connect(action, &QAction::triggered, this, [this, id = pane->id()](bool shown) {
      if (shown) m_panes->setFold(id, PaneStack::Fold::kOpen);
    });
    if (pane->id() == QLatin1String("latency")) {
      connect(action, &QAction::triggered, this, [this] { m_latencyByHand = true; });
    }
    if (auto* line = qobject_cast<LinePane*>(pane)) {
      connect(line, &LinePane::menuWanted, this, &MainWindow::metricMenu);
    }
  }
  panes->addSeparator();
  // Its key, Space, is the panes' own: a shortcut would take it from tables, boxes and buttons.
  QAction* foldOne =
      add(panes, tr("Fold or unfold"), {},
          tr("Fold the pane with the focus to one line, or unfold it (Space)"), [this] {
            if (!m_panes->toggleFocused()) {
              statusBar()->showMessage(tr("no pane has the focus"), 4000);
            }
          });
  m_runActions << foldOne
               << add(panes, tr("Unfold all"), {},
                      tr("Open all shown panes, as far as the window has room"),
                      [this] { m_panes->setAllFolds(PaneStack::Fold::kOpen); })
               << add(panes, tr("Fold all but the heat map"), {},
                      tr("A line each, and the room for the heat map"),
                      [this] { m_panes->setAllFolds(PaneStack::Fold::kFolded); })
               << add(panes, tr("Fold as the window asks"), {},
                      tr("Fold panes only where the heat map would become too low"),
                      [this] { m_panes->setAllFolds(PaneStack::Fold::kAuto); });
  QMenu* maps = view->addMenu(tr("Colour map"));
  auto* group = new QActionGroup(this);
  for (const auto& [name, map] :
       {std::pair(tr("viridis"), ColorMap::kViridis), std::pair(tr("cividis"), ColorMap::kCividis),
        std::pair(tr("grey"), ColorMap::kGrey)}) {
    QAction* action = add(maps, name, {}, tr("Colours of the heat map; red stays reserved"),
                          [this, map = map] { m_state->setColorMap(map); });
    action->setCheckable(true);
    action->setChecked(map == ColorMap::kViridis);
    action->setObjectName(QStringLiteral("colors:%1").arg(static_cast<int>(map)));
    group->addAction(action);
  }
  const auto resize = [this](double points) {
    setTextSize(points);
    if (m_persistent) QSettings().setValue(QStringLiteral("textSize"), m_points);
  };
  add(view, tr("Larger text"),
      {QKeySequence(Qt::CTRL | Qt::Key_Plus), QKeySequence(Qt::CTRL | Qt::Key_Equal)},
      tr("Make all text of the window larger"), [this, resize] { resize(m_points + 1); });
  add(view, tr("Smaller text"), {QKeySequence(Qt::CTRL | Qt::Key_Minus)},
      tr("Make all text of the window smaller"), [this, resize] { resize(m_points - 1); });
  // Ctrl+0 shows the tenth dock.
  add(view, tr("Normal text"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_0)},
      tr("Text of the usual size"), [resize] { resize(kTextPoints); });
  m_dark = add(view, tr("Dark theme"), {QKeySequence(Qt::CTRL | Qt::Key_D)},
               tr("Switch between the light and the dark theme"), [this] {
                 setDark(m_dark->isChecked());
                 if (m_persistent)
                   QSettings().setValue(QStringLiteral("dark"), m_dark->isChecked());
               });
  m_dark->setCheckable(true);

  QMenu* window = menuBar()->addMenu(tr("&Window"));
  for (qsizetype i = 0; i < m_docks.size(); ++i) {
    QAction* action = m_docks[i]->toggleViewAction();
    // Ctrl+1 … Ctrl+9, Ctrl+0
    const auto key = i < 9 ? static_cast<Qt::Key>(Qt::Key_1 + i) : Qt::Key_0;
    action->setShortcut(QKeySequence(Qt::CTRL | key));
    action->setStatusTip(tr("Show %1 in front, or hide it").arg(m_docks[i]->windowTitle()));
    window->addAction(action);
    // Qt's own slot hides a dock that lies behind another one's tab, where it was not seen.
    disconnect(action, &QAction::triggered, m_docks[i], nullptr);
    connect(action, &QAction::triggered, this, [dock = m_docks[i], action] {
      if (!dock->isHidden() && !dock->visibleRegion().isEmpty()) {
        dock->hide();
      } else {
        dock->show();
        dock->raise();
      }
      action->setChecked(!dock->isHidden());
    });
  }
  window->addSeparator();
  m_whatIf->toggleViewAction()->setStatusTip(tr("Show or hide the what-if strip"));
  window->addAction(m_whatIf->toggleViewAction());
  add(window, tr("Restore default layout"), {}, tr("Docks, panes and sizes as shipped"), [this] {
    restoreDefaultLayout();
    restoreDefaultPanes();
  });

  QMenu* help = menuBar()->addMenu(tr("&Help"));
  add(help, tr("&Tour: twelve tokens"), {}, tr("Which expert takes which token, one by one"),
      [this] { showTour(); });
  add(help, tr("&Commands…"), {QKeySequence(Qt::CTRL | Qt::Key_P)},
      tr("Find any command by some of its letters"), [this] { showPalette(); });
  add(help, tr("&Keys and mouse"), {QKeySequence(Qt::Key_F1), QKeySequence(Qt::Key_Question)},
      tr("What keys and mouse do"), [this] { showKeys(); });
  add(help, tr("&About"), {}, tr("Version"), [this] {
    QMessageBox::about(this, tr("About Switchyard"),
                       tr("Switchyard %1\nShows where the tokens of a Mixture-of-Experts model go, "
                          "and what that costs.")
                           .arg(qs(version())));
  });

  QToolBar* bar = m_tools;
  second->setIconText(tr("Compare…"));
  auto* recent = new QToolButton(bar);
  recent->setText(tr("Recent"));
  recent->setToolTip(tr("Files opened lately"));
  recent->setAccessibleName(tr("Files opened lately"));
  recent->setAutoRaise(true);
  recent->setFocusPolicy(Qt::NoFocus);
  recent->setPopupMode(QToolButton::InstantPopup);
  recent->setMenu(m_recentMenu);
  m_barSeparator = bar->insertSeparator(bar->actions().first());
  m_barButtons = {open, bar->insertWidget(m_barSeparator, recent), second, m_export};
  for (qsizetype i = 0; i < m_barButtons.size(); ++i) {
    // The second one stands there already.
    if (i != 1) bar->insertAction(i == 0 ? m_barButtons[1] : m_barSeparator, m_barButtons[i]);
  }
  bar->installEventFilter(this);
  fitBars();
}

void MainWindow::setTextSize(double points) {
  // Not a number, as a damaged settings file may hold: the usual size.
  m_points = points > 0 ? std::clamp(points, 7.0, 18.0) : kTextPoints;
  QFont font = QApplication::font();
  font.setPointSizeF(m_points);
  QApplication::setFont(font);
  fitText();
}

void MainWindow::fitText() {
  const QFontMetrics m(QApplication::font());
  for (QLabel* label : findChildren<QLabel*>()) {
    const QVariant larger = label->property(kHeadingProperty);
    if (larger.isValid()) label->setFont(headingFont(larger.toDouble()));
  }
  for (QPushButton* chip : statusBar()->findChildren<QPushButton*>()) {
    chip->setFixedHeight(m.height() + 8);
  }
  m_progress->setFixedSize(m.averageCharWidth() * 24, m.height() + 4);
  m_runsView->header()->setFixedHeight(m.height() + 8);
  fitBars();
}

void MainWindow::setDark(bool dark) {
  applyTheme(dark, m_points);
  m_state->setDark(dark);
  if (m_dark != nullptr) m_dark->setChecked(dark);
}

void MainWindow::runChanged() {
  const RunStore* run = m_state->run();
  for (QAction* a : m_runActions) a->setEnabled(run != nullptr);
  m_export->setEnabled(run != nullptr);
  updateRunActions();
  updateReload();
  m_layer->clear();
  m_layer->addItem(tr("all"), kAllLayers);
  if (run != nullptr && run->hasLayers()) {
    const auto& layers = run->data().inventory.moe_layers;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      m_layer->addItem(QString::number(layers[i]), static_cast<uint>(i));
    }
  }
  m_layer->setEnabled(m_layer->count() > 1);
  m_layer->setToolTip(m_layer->isEnabled()
                          ? tr("MoE layer in the heat map and the expert table")
                          : tr("This run file has no numbers per layer (detail \"layers\")"));
  m_scale->setEnabled(run != nullptr);
  m_aggregate->setEnabled(run != nullptr);
  m_scale->setCurrentIndex(m_scale->findData(static_cast<int>(m_state->scale())));
  m_goTo->setEnabled(run != nullptr);
  m_find->setEnabled(run != nullptr);
  m_undoing = true;  // another run begins without filters and without a past
  m_find->clear();
  filterTo(std::nullopt);
  m_undoing = false;
  m_linkFilter.clear();
  if (run != nullptr && m_persistent && !run->path().empty()) {
    // A shorter run at this place hides bookmarks beyond its end; they are not forgotten.
    m_readingBookmarks = true;
    m_state->setBookmarks(bookmarksOf(qs(run->path().string())));
    m_readingBookmarks = false;
  }
  m_readingBookmarks = true;
  fillBookmarks();
  m_readingBookmarks = false;
  offerLatency();
  updateTitle();
  fillRuns();
  findScenario();
  if (run != nullptr) {
    showPage(Page::kRun);
    m_panes->focusFirst();
  } else {
    showPage(Page::kWelcome);
  }
  updateStatus();
}

void MainWindow::fillRuns() {
  m_runs->clear();
  m_runs->setHorizontalHeaderLabels({tr("what"), tr("value")});
  const auto row = [](QStandardItem* parent, const QString& name, const QString& value) {
    auto* n = new QStandardItem(name);
    auto* v = new QStandardItem(value);
    n->setToolTip(name);
    v->setToolTip(value);
    parent->appendRow({n, v});
    return n;
  };
  QStandardItem* root = m_runs->invisibleRootItem();
  const auto show = [&](const RunStore& run, const QString& letter) {
    const run::RunMeta& m = run.data().meta;
    QStandardItem* a = row(root, letter, qs(run.name()));
    row(a, tr("scenario"), qs(m.scenario_name));
    row(a, tr("model"), qs(m.model_name));
    row(a, tr("hardware"), qs(m.hardware_name));
    row(a, tr("GPUs"), QString::number(run.gpus()));
    row(a, tr("experts"), tr("%1, top %2").arg(run.experts()).arg(run.data().inventory.top_k));
    row(a, tr("MoE layers"), QString::number(run.data().inventory.moe_layers.size()));
    row(a, tr("steps"), count(run.steps()));
    row(a, tr("seed"), QString::number(m.seed));
    row(a, tr("detail"), qs(run::kDetailNames[static_cast<std::size_t>(m.detail)]));
    row(a, tr("network"), qs(m.network_model));
    row(a, tr("decided by"), qs(m.policy_way));
    row(a, tr("routing"), qs(m.routing_source));
    row(a, tr("scenario hash"), qs(m.scenario_hash));
    row(a, tr("version"), qs(m.product_version));
    if (!run.path().empty()) row(a, tr("file"), qs(run.path().string()));
    if (!run.data().notes.empty()) {
      QStandardItem* notes = row(a, tr("notes"), QString::number(run.data().notes.size()));
      int i = 1;
      for (const std::string& n : run.data().notes) row(notes, QString::number(i++), qs(n));
    }
    QStandardItem* parameters = row(a, tr("parameters"), {});
    for (const QString& line : qs(m.scenario_text).split('\n', Qt::SkipEmptyParts)) {
      const qsizetype equals = line.indexOf(QStringLiteral(" = "));
      row(parameters, equals < 0 ? line : line.left(equals),
          equals < 0 ? QString() : line.mid(equals + 3));
    }
    parameters->setText(parameters->child(0) != nullptr ? tr("parameters")
                                                        : tr("parameters (none in the file)"));
  };
  const bool two = m_state->other() != nullptr;
  if (m_state->run() != nullptr) show(*m_state->run(), two ? tr("A") : tr("run"));
  if (two) show(*m_state->other(), tr("B"));
  m_runsView->expandAll();
  m_runsView->header()->setSectionResizeMode(QHeaderView::Stretch);
}

void MainWindow::syncExpert() {
  if (m_state->expert() == run::kNone) {
    m_expertsView->clearSelection();
    m_expertsView->setCurrentIndex({});
    return;
  }
  const QModelIndex at =
      m_expertsSorted->mapFromSource(m_experts->index(static_cast<int>(m_state->expert()), 0));
  if (m_expertsView->currentIndex().row() != at.row()) m_expertsView->setCurrentIndex(at);
  m_expertsView->scrollTo(at);
}

QDockWidget* MainWindow::dock(const QString& name) const {
  for (QDockWidget* d : m_docks) {
    if (d->objectName() == name) return d;
  }
  return nullptr;
}

void MainWindow::showTour() {
  auto* tour = new Tour(m_state->theme(), this);
  tour->setAttribute(Qt::WA_DeleteOnClose);
  tour->setObjectName(QStringLiteral("tour"));
  tour->open();
}

void MainWindow::updateStatus() {
  m_windowLabel->setText(windowText());
  const auto step = m_state->cursor();
  m_cursorLabel->setText(
      step ? tr("cursor %1 (%2)")
                 .arg(count(*step),
                      qs(timeText(static_cast<double>(m_state->run()->startPs(*step)))))
           : tr("no cursor"));
}

QString MainWindow::windowText() const {
  if (m_state->steps() == 0) return tr("no steps");
  const TimeWindow w = m_state->window();
  const auto first = static_cast<std::uint64_t>(w.first);
  const auto last = std::min(m_state->steps(), static_cast<std::uint64_t>(std::ceil(w.end))) - 1;
  return tr("steps %1–%2 of %3").arg(count(first), count(last), count(m_state->steps()));
}

QString MainWindow::hoverText() const { return m_hover->text(); }

void MainWindow::goTo() {
  if (m_state->run() == nullptr) return;
  try {
    const TimeWindow w =
        parseGoTo(m_goTo->text().toStdString(), m_state->steps(), m_state->run()->starts());
    if (w.length() <= 1) {
      m_state->centreOn(static_cast<std::uint64_t>(w.first));
    } else {
      m_state->setWindow(w, ViewState::Move::kJump);
    }
    m_message->showMessage({});
    m_panes->focusFirst();
  } catch (const InputError& e) {
    m_message->showMessage(QString::fromUtf8(e.what()));
  }
}

void MainWindow::nextEvent(int direction) {
  const RunStore* run = m_state->run();
  if (run == nullptr) return;
  // Without a cursor, start before the first step on screen (after the last, going back).
  const double from = m_state->cursor() ? static_cast<double>(*m_state->cursor())
                      : direction > 0   ? std::ceil(m_state->window().first) - 1
                                        : std::floor(m_state->window().end);
  std::optional<std::uint32_t> best;
  for (const run::Event& e : run->events()) {
    if (e.step >= run->steps()) continue;
    const double s = e.step;
    if (direction > 0 ? s <= from : s >= from) continue;
    if (!best || (direction > 0 ? e.step < *best : e.step > *best)) best = e.step;
  }
  if (!best) {
    statusBar()->showMessage(
        direction > 0 ? tr("no event after the cursor") : tr("no event before the cursor"), 4000);
    return;
  }
  const double s = *best;
  const TimeWindow w = m_state->window();
  if (s < w.first || s + 1 > w.end) {
    m_state->centreOn(*best);
  } else {
    m_state->setCursor(*best);
  }
}

void MainWindow::filterEvents(const QString& text) {
  keepEvent([&] { m_eventsSorted->setText(text.trimmed()); });
  const bool filtered = !text.trimmed().isEmpty();
  // A text is one filter, however many letters were typed.
  if (filtered != !m_lastFilter.isEmpty()) {
    undoFilter([this, old = m_lastFilter] { m_find->setText(old); });
  }
  m_lastFilter = text.trimmed();
  m_chip->setVisible(filtered);
  m_chip->setText(tr("events: %1  ×")
                      .arg(fontMetrics().elidedText(text.trimmed(), Qt::ElideRight,
                                                    fontMetrics().averageCharWidth() * 20)));
  showEventsTitle();
}

void MainWindow::showEventsTitle() {
  m_eventsView->setEmptyText(m_events->rowCount() == 0 ? tr("This run has no events.")
                                                       : tr("No event passes the filters."));
  const bool filtered = m_eventsSorted->rowCount() != m_events->rowCount() ||
                        !m_find->text().trimmed().isEmpty() || m_eventsSorted->range();
  dock(QStringLiteral("events"))
      ->setWindowTitle(filtered
                           ? tr("Events (%1 of %2)")
                                 .arg(count(static_cast<std::uint64_t>(m_eventsSorted->rowCount())),
                                      count(static_cast<std::uint64_t>(m_events->rowCount())))
                           : tr("Events"));
}

void MainWindow::undoFilter(std::function<void()> undo) {
  if (m_undoing) return;
  m_state->pushUndo([this, undo = std::move(undo)] {
    m_undoing = true;
    undo();
    m_undoing = false;
  });
}

void MainWindow::keepEvent(const std::function<void()>& change) {
  const QModelIndex before = m_eventsView->currentIndex();
  const int event = before.isValid() ? before.data(kIdRole).toInt() : -1;
  change();
  const int row =
      event < 0 || m_eventsView->currentIndex().isValid() ? -1 : m_eventsSorted->rowOf(event);
  if (row < 0) return;
  // It was chosen before: the cursor need not move to it again.
  const QSignalBlocker quiet(m_eventsView->selectionModel());
  m_eventsView->setCurrentIndex(m_eventsSorted->index(row, 0));
  m_eventsView->scrollTo(m_eventsView->currentIndex());
}

void MainWindow::filterTo(std::optional<StepRange> range) {
  if (range != m_eventsSorted->range()) {
    undoFilter([this, old = m_eventsSorted->range()] { filterTo(old); });
  }
  keepEvent([&] { m_eventsSorted->setRange(range); });
  m_rangeChip->setVisible(range.has_value());
  if (range) {
    m_rangeChip->setText(
        tr("events: steps %1–%2  ×").arg(count(range->first), count(range->end - 1)));
    dock(QStringLiteral("events"))->raise();
  }
  showEventsTitle();
}

QPushButton* MainWindow::addChip(const QString& tip, std::function<void()> remove) {
  auto* chip = new QPushButton(this);
  chip->setToolTip(tip);
  chip->setFixedHeight(fontMetrics().height() + 8);
  chip->hide();
  connect(chip, &QPushButton::clicked, this, std::move(remove));
  statusBar()->addPermanentWidget(chip);
  return chip;
}

void MainWindow::updateChips() {
  const RunStore* run = m_state->run();
  const bool layer = run != nullptr && m_state->layer() != kAllLayers;
  m_layerChip->setVisible(layer);
  if (layer) {
    m_layerChip->setText(tr("layer %1  ×").arg(run->data().inventory.moe_layers[m_state->layer()]));
  }
  const bool gpu = run != nullptr && m_state->gpu() != run::kNone;
  m_gpuChip->setVisible(gpu);
  if (gpu) m_gpuChip->setText(QStringLiteral("%1  ×").arg(gpuName(m_state->gpu())));
  const bool link = run != nullptr && m_state->link() < run->links();
  m_linkChip->setVisible(link);
  if (link) {
    m_linkChip->setText(QStringLiteral("%1  ×").arg(
        fontMetrics().elidedText(qs(run->data().inventory.links[m_state->link()].name),
                                 Qt::ElideMiddle, fontMetrics().averageCharWidth() * 20)));
  }
}

void MainWindow::linkChanged() {
  const RunStore* run = m_state->run();
  const std::uint32_t link = m_state->link();
  if (run == nullptr) return;
  if (link < run->links()) {
    m_linkFilter = qs(run->data().inventory.links[link].name);
    m_find->setText(m_linkFilter);
  } else {
    // What a person typed since then stays.
    if (m_find->text() == m_linkFilter) m_find->clear();
    m_linkFilter.clear();
  }
}

void MainWindow::offerLatency() {
  if (m_latencyByHand) return;
  const RunStore* run = m_state->run();
  auto* action = findChild<QAction*>(QStringLiteral("pane:latency"));
  if (action == nullptr) return;
  // Requests that arrived were scheduled; those of a batch of fixed size were not.
  const auto arrived = [](const run::RequestRecord& r) { return r.scheduled_ps >= 0; };
  action->setChecked(run != nullptr && std::any_of(run->data().requests.begin(),
                                                   run->data().requests.end(), arrived));
}

void MainWindow::metricMenu(const QPoint& at) {
  auto* menu = new QMenu(this);
  menu->setObjectName(QStringLiteral("metrics"));
  menu->setAttribute(Qt::WA_DeleteOnClose);
  menu->addSection(tr("Show as a pane"));
  for (std::size_t i = 0; i < run::kStepSeries; ++i) {
    menu->addAction(qs(run::kStepSeriesNames[i]), this, [this, i] {
      auto* pane = dynamic_cast<MetricPane*>(m_panes->pane(QStringLiteral("metric")));
      if (pane == nullptr) return;
      pane->setMetric(static_cast<run::StepSeries>(i));
      m_panes->alignGutters();
      if (auto* shown = findChild<QAction*>(QStringLiteral("pane:metric"))) shown->setChecked(true);
      m_panes->setFold(QStringLiteral("metric"), PaneStack::Fold::kOpen);
    });
  }
  menu->popup(at);
}

QString MainWindow::commandLine() const { return commandLine(m_state->run()); }

QStringList MainWindow::commandWords(const RunStore* run) const {
  if (run == nullptr) return {};
  const QFileInfo file(qs(run->path().string()));
  QStringList words;
  const auto made = m_commands.find(file.filePath());
  if (!run->path().empty() && made != m_commands.end()) {
    words = made->second;
  } else if (run == m_state->run() && !m_whatIf->scenario().isEmpty()) {
    words = {QStringLiteral("sim"), m_whatIf->scenario()};
    for (const QString& s : m_whatIf->baseSettings()) words << QStringLiteral("--set") << s;
  }
  return words;
}

QString MainWindow::traceOf(const RunStore& run, const QString& scenario) const {
  const run::RunMeta& meta = run.data().meta;
  if (meta.trace_hash.empty()) return {};
  static const QRegularExpression named(QStringLiteral("^workload\\.routing\\.trace = (.*)$"),
                                        QRegularExpression::MultilineOption);
  const QString name = named.match(qs(meta.scenario_text)).captured(1).remove(QLatin1Char('"'));
  QStringList places;
  try {
    const ScenarioDocument document(scenario.toStdString());
    if (const auto* e = document.entry("workload.routing.trace_path")) places << qs(e->value);
  } catch (const InputError&) {
    // The other places may have it.
  }
  if (!name.isEmpty() && !run.path().empty()) {
    places << QFileInfo(qs(run.path().string())).absoluteDir().filePath(name);
  }
  const QDir kept(runsFolder());
  for (const QString& f : kept.entryList({QStringLiteral("demo-trace-*.h5")}, QDir::Files)) {
    places << kept.filePath(f);
  }
  for (const QString& place : places) {
    if (!QFileInfo(place).isFile()) continue;
    try {
      if (hex64(hash64_of_file(place.toStdString())) == meta.trace_hash) return place;
    } catch (const InputError&) {
      // One that cannot be read is not the one.
    }
  }
  return name;
}

QString MainWindow::commandLine(const RunStore* run) const {
  QStringList words = commandWords(run);
  if (words.isEmpty()) return {};
  const auto quoted = [](const QString& word) {
    static const QRegularExpression plain(QStringLiteral("^[A-Za-z0-9_./=,:+-]+$"));
    return plain.match(word).hasMatch()
               ? word
               : QLatin1Char('\'') + QString(word).replace('\'', QStringLiteral("'\\''")) +
                     QLatin1Char('\'');
  };
  if (!words.contains(QStringLiteral("--trace"))) {
    if (const QString trace = traceOf(*run, words.value(1)); !trace.isEmpty()) {
      words << QStringLiteral("--trace") << trace;
    }
  }
  const QFileInfo file(qs(run->path().string()));
  // Never over the run that is shown.
  words << QStringLiteral("-o")
        << (run->path().empty() ? QStringLiteral("run.h5")
                                : file.absoluteDir().filePath(file.completeBaseName() +
                                                              QStringLiteral("-again.h5")));
  QString line = QStringLiteral("switchyard");
  for (const QString& word : words) line += QLatin1Char(' ') + quoted(word);
  return line;
}

void MainWindow::copyRunRow() {
  const QModelIndex chosen = m_runsView->currentIndex();
  if (!chosen.isValid()) return;
  QStringList lines;
  const std::function<void(const QModelIndex&)> add = [&](const QModelIndex& at) {
    lines << at.siblingAtColumn(0).data().toString() + QLatin1Char('\t') +
                 at.siblingAtColumn(1).data().toString();
    const QModelIndex first = at.siblingAtColumn(0);
    for (int r = 0; r < m_runs->rowCount(first); ++r) add(m_runs->index(r, 0, first));
  };
  add(chosen);
  QApplication::clipboard()->setText(lines.join(QLatin1Char('\n')) + QLatin1Char('\n'));
}

void MainWindow::updateRunActions() {
  const RunStore* run = m_state->run();
  m_swapRuns->setEnabled(run != nullptr && m_state->other() != nullptr);
  m_endCompare->setEnabled(m_state->other() != nullptr);
  m_copyCommand->setEnabled(!commandWords(run).isEmpty());
  m_reveal->setEnabled(run != nullptr && !run->path().empty());
}

void MainWindow::runsMenu(const QPoint& at) {
  if (m_state->run() == nullptr) return;
  updateRunActions();
  // The run whose branch was clicked.
  QModelIndex row = m_runsView->indexAt(m_runsView->viewport()->mapFromGlobal(at));
  while (row.parent().isValid()) row = row.parent();
  const auto run = row.row() == 1 ? m_state->otherPointer() : m_state->runPointer();
  auto* menu = new QMenu(this);
  menu->setObjectName(QStringLiteral("runmenu"));
  menu->setAttribute(Qt::WA_DeleteOnClose);
  menu->addAction(m_copyRunRow);
  menu->addSeparator();
  menu->addActions({m_swapRuns, m_endCompare});
  menu->addSeparator();
  menu->addAction(tr("Copy the command line of %1").arg(qs(run->name())), this,
                  [this, run] { QApplication::clipboard()->setText(commandLine(run.get())); })
      ->setEnabled(!commandWords(run.get()).isEmpty());
  menu->addAction(tr("Open the folder of %1").arg(qs(run->name())), this,
                  [run] {
                    QDesktopServices::openUrl(
                        QUrl::fromLocalFile(QFileInfo(qs(run->path().string())).absolutePath()));
                  })
      ->setEnabled(!run->path().empty());
  menu->popup(at);
}

void MainWindow::follow(const QString& target) {
  const QString name = target.section(':', 1);
  const auto showDock = [this](const QString& which) {
    if (QDockWidget* d = dock(which)) {
      d->show();
      d->raise();
    }
  };
  if (target.startsWith(QStringLiteral("pane:"))) {
    if (auto* action = findChild<QAction*>(target)) action->setChecked(true);
    m_panes->setFold(name, PaneStack::Fold::kOpen);
    if (TimePane* pane = m_panes->pane(name)) pane->setFocus();
  } else if (target.startsWith(QStringLiteral("dock:"))) {
    showDock(name);
  } else if (target.startsWith(QStringLiteral("link:"))) {
    m_state->setLink(name.toUInt());
    showDock(QStringLiteral("topology"));
  } else if (target.startsWith(QStringLiteral("gpu:"))) {
    m_state->setGpu(name.toUInt());
    if (TimePane* pane = m_panes->pane(QStringLiteral("timeline"))) pane->setFocus();
  } else if (target.startsWith(QStringLiteral("expert:"))) {
    m_state->setExpert(name.toUInt());
    showDock(QStringLiteral("experts"));
    m_expertsView->setFocus();
  }
}

void MainWindow::showPalette() {
  auto* palette = new Palette(this);
  palette->setAttribute(Qt::WA_DeleteOnClose);
  palette->open();
}

// ---- bookmarks ---------------------------------------------------------------------------------

void MainWindow::makeBookmarkActions(QMenu* view) {
  m_bookmarkMenu = view->addMenu(tr("Bookmarks"));
  m_runActions << add(m_bookmarkMenu, tr("Set or remove"), {QKeySequence(Qt::CTRL | Qt::Key_B)},
                      tr("Bookmark the step under the cursor, or remove its bookmark"),
                      [this] {
                        const auto step = m_state->cursor();
                        if (!step) {
                          statusBar()->showMessage(tr("no cursor to bookmark"), 4000);
                          return;
                        }
                        const auto& all = m_state->bookmarks();
                        const bool there =
                            std::any_of(all.begin(), all.end(),
                                        [&](const Bookmark& b) { return b.step == *step; });
                        m_state->setBookmark(
                            *step, there ? std::nullopt : std::optional<QString>(QString()));
                      })
               << add(m_bookmarkMenu, tr("Name…"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_B)},
                      tr("Bookmark the step under the cursor with a name"),
                      [this] { nameBookmark(); })
               << add(m_bookmarkMenu, tr("Next"), {QKeySequence(Qt::Key_BracketRight)},
                      tr("Cursor to the next bookmark"), [this] { nextBookmark(1); })
               << add(m_bookmarkMenu, tr("Previous"), {QKeySequence(Qt::Key_BracketLeft)},
                      tr("Cursor to the bookmark before"), [this] { nextBookmark(-1); });
  m_bookmarkMenu->addSeparator();
}

void MainWindow::nameBookmark() {
  const auto step = m_state->cursor();
  if (!step) {
    statusBar()->showMessage(tr("no cursor to bookmark"), 4000);
    return;
  }
  auto* ask = new QInputDialog(this);
  ask->setAttribute(Qt::WA_DeleteOnClose);
  ask->setObjectName(QStringLiteral("bookmarkName"));
  ask->setWindowTitle(tr("Bookmark"));
  ask->setLabelText(tr("Name of the bookmark at step %1").arg(count(*step)));
  for (const Bookmark& b : m_state->bookmarks()) {
    if (b.step == *step) ask->setTextValue(b.name);
  }
  connect(ask, &QInputDialog::textValueSelected, this, [this, step = *step](const QString& name) {
    if (step < m_state->steps()) m_state->setBookmark(step, name.simplified());
  });
  ask->open();
}

void MainWindow::nextBookmark(int direction) {
  const auto& all = m_state->bookmarks();
  const auto from = m_state->cursor();
  const Bookmark* best = nullptr;
  for (const Bookmark& b : all) {
    const bool after = !from || b.step > *from;
    const bool before = !from || b.step < *from;
    if (direction > 0 && after && (best == nullptr || b.step < best->step)) best = &b;
    if (direction < 0 && before && (best == nullptr || b.step > best->step)) best = &b;
  }
  if (best == nullptr) {
    statusBar()->showMessage(
        direction > 0 ? tr("no bookmark after the cursor") : tr("no bookmark before the cursor"),
        4000);
    return;
  }
  const auto s = static_cast<double>(best->step);
  const TimeWindow w = m_state->window();
  if (s < w.first || s + 1 > w.end) {
    m_state->centreOn(best->step);
  } else {
    m_state->setCursor(best->step);
  }
}

void MainWindow::fillBookmarks() {
  // Below the separator stand the run's bookmarks.
  const QList<QAction*> actions = m_bookmarkMenu->actions();
  bool below = false;
  for (QAction* a : actions) {
    if (below) delete a;
    below = below || a->isSeparator();
  }
  for (const Bookmark& b : m_state->bookmarks()) {
    QAction* a =
        m_bookmarkMenu->addAction(b.name.isEmpty() ? tr("step %1").arg(count(b.step))
                                                   : tr("%1 (step %2)").arg(b.name, count(b.step)),
                                  this, [this, step = b.step] { m_state->centreOn(step); });
    a->setStatusTip(tr("Cursor to this bookmark"));
  }
  const RunStore* run = m_state->run();
  if (!m_persistent || m_readingBookmarks || run == nullptr || run->path().empty()) return;
  const QString path = qs(run->path().string());
  const std::vector<Bookmark> known = bookmarksOf(path);
  std::vector<Bookmark> all = m_state->bookmarks();
  std::copy_if(known.begin(), known.end(), std::back_inserter(all),
               [&](const Bookmark& b) { return b.step >= run->steps(); });
  if (known != all) rememberBookmarks(path, all);
}

void MainWindow::find() {
  const RunStore* run = m_state->run();
  const QString text = m_find->text().trimmed();
  if (run == nullptr || text.isEmpty()) return;
  // "e19", "19" and "expert 19" name an expert.
  QString digits = text.toLower();
  for (const char* prefix : {"expert", "e"}) {
    if (digits.startsWith(QLatin1String(prefix))) {
      digits = digits.mid(static_cast<qsizetype>(qstrlen(prefix))).trimmed();
      break;
    }
  }
  bool number = false;
  const uint expert = digits.toUInt(&number);
  if (number && expert < run->experts()) {
    m_state->setExpert(expert);
    return;
  }
  // The next row, and round again.
  const int rows = m_eventsSorted->rowCount();
  if (rows == 0) {
    statusBar()->showMessage(tr("no expert and no event is called \"%1\"").arg(text), 4000);
    return;
  }
  const QModelIndex now = m_eventsView->currentIndex();
  dock(QStringLiteral("events"))->raise();
  m_eventsView->setCurrentIndex(
      m_eventsSorted->index(now.isValid() ? (now.row() + 1) % rows : 0, 0));
}

void MainWindow::rangeMenu(const QPoint& at) {
  if (!m_state->selection()) return;
  auto* menu = new QMenu(this);
  menu->setAttribute(Qt::WA_DeleteOnClose);
  menu->addAction(tr("Zoom in"), this, [this] {
    const auto s = m_state->selection();
    if (!s) return;
    m_state->setWindow({static_cast<double>(s->first), static_cast<double>(s->end)},
                       ViewState::Move::kJump);
  });
  menu->addAction(tr("Filter events to it"), this, [this] { filterTo(m_state->selection()); });
  menu->addAction(tr("Copy statistics"), this, [this] { copyInspector(); });
  menu->addAction(tr("Clear selection"), this, [this] { m_state->setSelection(std::nullopt); });
  menu->popup(at);
}

void MainWindow::copyInspector() {
  m_inspectorView->clearSelection();
  m_inspectorView->copy(TableText::kTsv);
}

void MainWindow::exportView() {
  const QString path = askSaveName(
      this, tr("Export"), {},
      {tr("Picture (*.png)"), tr("Vector picture (*.svg)"), tr("Steps on screen (*.csv)")});
  if (path.isEmpty()) return;
  try {
    exportWindow(*this, path);
    statusBar()->showMessage(tr("saved %1").arg(path), 6000);
  } catch (const InputError& e) {
    m_message->showMessage(QString::fromUtf8(e.what()));
  }
}

void MainWindow::showRunsFolder() {
  auto* dialog = new RunsFolder(runsFolder(), this);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  connect(dialog, &RunsFolder::openWanted, this,
          [this](const QStringList& files) { openFiles(files); });
  dialog->open();
}

void MainWindow::showKeys() {
  auto* box = new QDialog(this);
  box->setAttribute(Qt::WA_DeleteOnClose);
  box->setWindowTitle(tr("Keys and mouse"));
  box->setObjectName(QStringLiteral("keys"));
  QStringList rows;
  const auto row = [&](const QString& a, const QString& b) {
    rows << QStringLiteral("<tr><td><b>%1</b>&nbsp;&nbsp;</td><td>%2</td></tr>")
                .arg(a.toHtmlEscaped(), b.toHtmlEscaped());
  };
  row(tr("wheel"), tr("zoom at the mouse; Ctrl: finer; Shift: pan"));
  row(tr("left drag"), tr("select steps, then choose what to do"));
  row(tr("middle or right drag"), tr("pan"));
  row(tr("click in the heat map"), tr("choose the expert"));
  row(tr("Ctrl+Shift+wheel in the heat map"), tr("zoom the rows; R shows all"));
  row(tr("click on a GPU's lane"), tr("choose the GPU: its phases in the inspector"));
  row(tr("click on a link"), tr("choose it: its line, its events"));
  row(tr("click on a name in a legend"), tr("hide or show its line"));
  row(tr("click on a pane's title; Space in it"), tr("fold the pane to one line, or unfold it"));
  row(tr("right click in a line pane"), tr("show another number per step"));
  row(tr("click on an underlined value"), tr("show where it comes from"));
  row(tr("double click in the heat map"), tr("zoom to the expert's hottest steps"));
  for (const QAction* a : actionsInOrder(this)) {
    if (a->shortcuts().isEmpty() || a->statusTip().isEmpty()) continue;
    row(QKeySequence::listToString(a->shortcuts(), QKeySequence::NativeText), a->statusTip());
  }
  // Two columns: one would be taller than a small screen.
  const qsizetype half = (rows.size() + 1) / 2;
  auto* text = new QLabel(box);
  text->setTextFormat(Qt::RichText);
  text->setTextInteractionFlags(Qt::TextSelectableByMouse);
  text->setMargin(8);
  text->setText(QStringLiteral("<table><tr><td><table>%1</table></td><td>&nbsp;&nbsp;&nbsp;</td>"
                               "<td><table>%2</table></td></tr></table>")
                    .arg(rows.mid(0, half).join(QString()), rows.mid(half).join(QString())));
  auto* area = new QScrollArea(box);
  area->setWidget(text);
  area->setFrameShape(QFrame::NoFrame);
  auto* layout = new QVBoxLayout(box);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->addWidget(area);
  box->resize((text->sizeHint() + QSize(24, 8)).boundedTo(QSize(1260, 740)));
  box->open();
}

void MainWindow::chooseFile(Role role) {
  const QStringList files = QFileDialog::getOpenFileNames(
      this, tr("Open run"), {}, tr("Runs and scenarios (*.h5 *.toml);;All files (*)"));
  if (!files.isEmpty()) openFiles(files, role);
}

void MainWindow::updateReload() {
  const RunStore* run = m_state->run();
  m_reload->setEnabled(page() == Page::kScenario ? m_form->document() != nullptr
                                                 : run != nullptr && !run->path().empty());
}

bool MainWindow::editsMayGo() {
  m_form->commit();
  const ScenarioDocument* document = m_form->document();
  if (!m_persistent || document == nullptr || !document->changed()) return true;
  const auto answer = QMessageBox::question(
      this, tr("Unsaved scenario"),
      tr("%1 has changes that are not saved.").arg(qs(document->path().string())),
      QMessageBox::Save | QMessageBox::Discard | QMessageBox::Cancel, QMessageBox::Save);
  if (answer == QMessageBox::Save) {
    m_form->saveButton()->click();
    if (!m_form->document()->changed()) return true;
    showPage(Page::kScenario);  // where it says why not
    return false;
  }
  return answer == QMessageBox::Discard;
}

bool MainWindow::event(QEvent* event) {
  if (event->type() == QEvent::WindowActivate) m_form->checkDisk();
  if (event->type() == QEvent::WindowActivate && !busy()) {
    std::erase_if(m_toldReplaced, [this](const auto& run) {
      return std::find(m_open.begin(), m_open.end(), run) == m_open.end();
    });
    QStringList names;
    for (const auto& run : m_open) {
      if (std::find(m_toldReplaced.begin(), m_toldReplaced.end(), run) != m_toldReplaced.end() ||
          !run->replacedOnDisk()) {
        continue;
      }
      m_toldReplaced.push_back(run);
      names << qs(run->name());
    }
    if (names.size() == 1) {
      m_message->showMessage(
          tr("%1 was written again since it was opened; F5 reads it.").arg(names[0]));
    } else if (!names.isEmpty()) {
      m_message->showMessage(tr("%1 were written again since they were opened; F5 reads them.")
                                 .arg(names.join(QStringLiteral(", "))));
    }
  }
  return QMainWindow::event(event);
}

void MainWindow::closeEvent(QCloseEvent* event) {
  if (!editsMayGo()) {
    event->ignore();
    return;
  }
  if (m_persistent) {
    QSettings settings;
    settings.setValue(QStringLiteral("geometry"), saveGeometry());
    settings.setValue(QStringLiteral("layout"),
                      page() == Page::kRun ? saveState(kLayoutVersion) : m_layout);
    savePanes(settings);
  }
  cancelWork();
  QMainWindow::closeEvent(event);
}

void MainWindow::dragEnterEvent(QDragEnterEvent* event) {
  if (event->mimeData()->hasUrls()) event->acceptProposedAction();
}

void MainWindow::dropEvent(QDropEvent* event) {
  QStringList files;
  for (const QUrl& url : event->mimeData()->urls()) {
    if (url.isLocalFile()) files << url.toLocalFile();
  }
  if (files.isEmpty()) {
    m_message->showMessage(
        tr("Drop run files: one opens, two are compared, more are other seeds of the two."));
    return;
  }
  event->acceptProposedAction();
  openFiles(files);
}

}  // namespace switchyard::gui
