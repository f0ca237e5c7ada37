// SPDX-License-Identifier: Apache-2.0
// The window's runs: opening files and simulating in the background, which run is A and which B,
// and the page that is shown.
#include <algorithm>
#include <cerrno>
#include <csignal>

#include <QDateTime>
#include <QDir>
#include <QDockWidget>
#include <QFile>
#include <QFileDialog>
#include <QFileInfo>
#include <QLabel>
#include <QMenu>
#include <QProgressBar>
#include <QPushButton>
#include <QRegularExpression>
#include <QStackedWidget>
#include <QStandardPaths>
#include <QTimer>

#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "gui/core/firstpictures.hpp"
#include "gui/mainwindow.hpp"
#include "gui/recent.hpp"
#include "gui/text.hpp"
#include "sim/run/diff.hpp"

namespace switchyard::gui {
namespace {

/// A name in `folder` that no file has: label.h5, label-2.h5, … An empty file takes it at once, so
/// that two windows never take the same one.
QString takeName(const QDir& folder, const QString& label) {
  QString name = label + QStringLiteral(".h5");
  for (int n = 2;; ++n) {
    QFile file(folder.filePath(name));
    // Where no file can be made, the program that writes the run says why.
    if (file.open(QIODevice::WriteOnly | QIODevice::NewOnly) || !file.exists()) break;
    name = QStringLiteral("%1-%2.h5").arg(label).arg(n);
  }
  return folder.filePath(name);
}

/// Temporary files (name.PID.tmp) of programs that were killed, and names of yesterday and before
/// that were taken for runs that never came.
void sweep(const QDir& folder) {
  static const QRegularExpression left(QStringLiteral("\\.(\\d+)\\.tmp$"));
  for (const QString& f : folder.entryList({QStringLiteral("*.tmp")}, QDir::Files)) {
    const QRegularExpressionMatch match = left.match(f);
    const auto pid = static_cast<pid_t>(match.captured(1).toInt());
    if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) QFile::remove(folder.filePath(f));
  }
  const QDateTime yesterday = QDateTime::currentDateTime().addDays(-1);
  for (const QFileInfo& f : folder.entryInfoList({QStringLiteral("*.h5")}, QDir::Files)) {
    if (f.size() == 0 && f.lastModified() < yesterday) QFile::remove(f.filePath());
  }
}

}  // namespace

void MainWindow::connectWork() {
  m_loader = new RunLoader(this);
  m_job = new ChildJob(this);
  m_turns = new QTimer(this);
  connect(m_turns, &QTimer::timeout, this, &MainWindow::drawNextPane);
  connect(m_loader, &RunLoader::progressed, this,
          [this](int permille) { showProgress(tr("opening"), permille); });
  connect(m_loader, &RunLoader::loaded, this, &MainWindow::arrived);
  connect(m_loader, &RunLoader::failed, this, [this](const QString& message) {
    workEnded();
    m_message->showMessage(message);
    emit idle();
  });
  connect(m_loader, &RunLoader::cancelled, this, [this] {
    workEnded();
    emit idle();
  });
  connect(m_job, &ChildJob::progressed, this, &MainWindow::showProgress);
  connect(m_job, &ChildJob::finished, this, [this] {
    QStringList files = m_outputs;
    m_outputs.clear();
    for (qsizetype i = 0; i < files.size(); ++i) {
      m_origins[files[i]] = m_running[static_cast<std::size_t>(i)];
      m_commands[files[i]] = m_childWords[static_cast<std::size_t>(i)];
    }
    openFiles(files, m_role);
  });
  connect(m_job, &ChildJob::failed, this, [this](const QString& message) {
    dropOutputs();
    workEnded();
    m_message->showMessage(message);
    emit idle();
  });
  connect(m_job, &ChildJob::cancelled, this, [this] {
    dropOutputs();
    workEnded();
    emit idle();
  });
  connect(m_cancel, &QPushButton::clicked, this, &MainWindow::cancelWork);
  connect(m_welcome, &Welcome::runWanted, this, &MainWindow::runEntry);
  connect(m_welcome, &Welcome::tourWanted, this, &MainWindow::showTour);
  connect(m_whatIf, &WhatIf::runWanted, this, &MainWindow::runWhatIf);
  connect(m_whatIf, &WhatIf::chooseScenario, this, [this] {
    const QString file =
        QFileDialog::getOpenFileName(this, tr("The scenario of this run"),
                                     qs(scenariosFolder().string()), tr("Scenarios (*.toml)"));
    if (!file.isEmpty()) m_whatIf->setScenario(file, {});
  });
  connect(m_welcome, &Welcome::editWanted, this, &MainWindow::openScenario);
  connect(m_form, &ScenarioForm::runWanted, this, &MainWindow::runForm);
  connect(m_form, &ScenarioForm::changed, this, &MainWindow::updateTitle);
  connect(m_welcome, &Welcome::openWanted, this, [this] { chooseFile(Role::kShow); });
  connect(m_welcome, &Welcome::fileWanted, this, [this](const QString& f) { openFiles({f}); });
  connect(m_compare, &CompareView::chosen, this, [this](int a, int b) {
    if (a < 0 || static_cast<std::size_t>(a) >= m_open.size()) return;
    const RunPointer first = m_open[static_cast<std::size_t>(a)];
    const RunPointer second = b >= 0 && static_cast<std::size_t>(b) < m_open.size()
                                  ? m_open[static_cast<std::size_t>(b)]
                                  : nullptr;
    if (first != m_state->runPointer()) {
      m_state->setOther(nullptr);
      m_state->replaceRun(first);
    }
    m_state->setOther(second);
    fillCompare();
  });
  connect(m_state, &ViewState::otherChanged, this, [this] {
    fillRuns();
    fillCompare();
    if (m_state->other() != nullptr) m_docks[5]->raise();
  });
}

// ---- pages -------------------------------------------------------------------------------------

MainWindow::Page MainWindow::page() const {
  return m_stack->currentWidget() == m_welcome ? Page::kWelcome
         : m_stack->currentWidget() == m_form  ? Page::kScenario
                                               : Page::kRun;
}

void MainWindow::showPage(Page page) {
  if (page == Page::kRun && m_state->run() == nullptr) page = Page::kWelcome;
  QWidget* wanted = page == Page::kWelcome    ? static_cast<QWidget*>(m_welcome)
                    : page == Page::kScenario ? static_cast<QWidget*>(m_form)
                                              : static_cast<QWidget*>(m_panes);
  const bool was = m_stack->currentWidget() == m_panes;
  const bool will = wanted == m_panes;
  if (was && !will && m_state->run() != nullptr) m_layout = saveState(kLayoutVersion);
  m_stack->setCurrentWidget(wanted);
  if (will == was && will) return;
  refreshPage();
}

void MainWindow::updateTitle() {
  if (showing()) return;  // with the picture, when all panes are drawn
  const ScenarioDocument* document = m_form->document();
  const RunStore* run = m_state->run();
  QString what;
  if (page() == Page::kScenario && document != nullptr) {
    what = qs(document->path().filename().string());
    if (document->changed()) what += tr(" (changed)");
  } else if (page() == Page::kRun && run != nullptr) {
    what = qs(run->name());
  }
  setWindowTitle(what.isEmpty() ? tr("Switchyard") : tr("%1 — Switchyard").arg(what));
}

void MainWindow::refreshPage() {
  // The docks say nothing without a run, and the welcome page wants the room.
  const bool run = page() == Page::kRun;
  for (QDockWidget* dock : m_docks) {
    dock->toggleViewAction()->setEnabled(run);
    if (!run) dock->hide();
  }
  if (run) {
    if (m_layout.isEmpty() || !restoreDocks(m_layout)) restoreDefaultLayout();
  } else {
    m_stack->currentWidget()->setFocus();
  }
  m_whatIf->setVisible(run);
  updateReload();
  updateTitle();
  m_windowLabel->setVisible(run);
  m_cursorLabel->setVisible(run);
}

// ---- work in the background --------------------------------------------------------------------

bool MainWindow::busy() const { return m_loader->busy() || m_job->busy(); }

void MainWindow::showProgress(const QString& what, int permille) {
  m_work->setText(what);
  m_progress->setValue(permille);
  m_cancel->setEnabled(true);
  for (QWidget* w : {static_cast<QWidget*>(m_work), static_cast<QWidget*>(m_progress),
                     static_cast<QWidget*>(m_cancel)}) {
    w->show();
  }
  m_welcome->setBusy(true);
  m_form->setBusy(true);
  m_whatIf->setBusy(true);
}

void MainWindow::workEnded() {
  // What was wanted of a simulation holds for no other run, also when it failed.
  m_oneLayer = false;
  m_wantedPanes.clear();
  m_work->hide();
  m_progress->hide();
  m_cancel->hide();
  m_welcome->setBusy(false);
  m_form->setBusy(false);
  m_whatIf->setBusy(false);
}

void MainWindow::cancelWork() {
  m_cancel->setEnabled(false);
  m_loader->cancel();
  m_job->cancel();
}

void MainWindow::openFiles(const QStringList& named, Role role) {
  if (named.isEmpty()) return;
  QStringList files;
  for (const QString& f : named) {
    // The same file twice is one run.
    const auto same = [&](const QString& g) { return QFileInfo(f) == QFileInfo(g); };
    if (std::none_of(files.begin(), files.end(), same)) files << f;
  }
  if (files.size() == 1 && files.first().endsWith(QStringLiteral(".toml"))) {
    openScenario(files.first());
    return;
  }
  if (static_cast<std::size_t>(files.size()) > kOpenMost) {
    m_message->showMessage(
        tr("At most %1 runs are open at once: %2 were named.").arg(kOpenMost).arg(files.size()));
    return;
  }
  if (m_job->busy()) {
    m_message->showMessage(tr("A simulation is running; cancel it first."));
    return;
  }
  std::vector<std::filesystem::path> paths;
  for (const QString& f : files) paths.emplace_back(f.toStdString());
  m_role = m_state->run() == nullptr ? Role::kShow : role;
  showProgress(tr("opening"), 0);
  prepareRuns();
  m_loader->load(paths);
}

void MainWindow::arrived(const std::vector<RunPointer>& runs) {
  const bool oneLayer = m_oneLayer;
  const QStringList panes = m_wantedPanes;
  workEnded();
  // Of several files the first is A, and the first of another scenario is B; the rest are other
  // seeds of the two.
  RunPointer second = runs.size() == 2 ? runs[1] : nullptr;
  if (m_role == Role::kReload) {
    reloaded(runs);
    return;
  }
  // Of an exploration of three or more scenarios the first two are shown; the others wait in the
  // lists of Compare.
  const bool exploration = runs.size() == m_running.size() &&
                           std::all_of(runs.begin(), runs.end(), [this](const RunPointer& r) {
                             return m_origins.find(qs(r->path().string())) != m_origins.end();
                           });
  if (exploration && runs.size() > 2) second = runs[1];
  for (std::size_t i = 1; i < runs.size() && runs.size() > 2 && !exploration; ++i) {
    const run::RunMeta& meta = runs[i]->data().meta;
    if (run::same_but_seed(runs[0]->data().meta, meta)) continue;
    if (second == nullptr) second = runs[i];
    if (!run::same_but_seed(second->data().meta, meta)) {
      m_message->showMessage(tr("%1 is of a third scenario: two are compared, each with as many "
                                "seeds as you like.")
                                 .arg(qs(runs[i]->name())));
      emit idle();
      return;
    }
  }
  if (runs.size() > 2 && second == nullptr) second = runs[1];
  // What may throw when a run is shown is asked before another one goes.
  try {
    for (const RunPointer& run : runs) (void)run->hasCapacity();
  } catch (const InputError& e) {
    m_message->showMessage(QString::fromUtf8(e.what()));
    emit idle();
    return;
  }
  holdScreen();
  m_message->showMessage({});
  if (second != nullptr) {
    m_state->setOther(nullptr);
    m_state->setRun(runs[0]);
    m_state->setOther(second);
  } else if (m_role == Role::kCompare) {
    m_state->setOther(runs[0]);
    showPage(Page::kRun);
  } else {
    m_state->setOther(nullptr);
    m_state->setRun(runs[0]);
  }
  // After the runs that are shown are known: keep() closes others first.
  for (const RunPointer& run : runs) {
    keep(run);
    if (m_persistent) rememberFile(qs(run->path().string()));
  }
  if (oneLayer && m_state->run()->hasLayers()) m_state->setLayer(0);
  for (const QString& id : panes) {
    if (auto* action = findChild<QAction*>(QStringLiteral("pane:") + id)) action->setChecked(true);
  }
  fillCompare();
  fillRecent();
  emit idle();
}

/// All that a run changes, and then the pictures, in one turn would keep the window from answering
/// for as long as both take.
void MainWindow::holdScreen() {
  if (!isVisible()) return;
  const bool held = m_toDraw != nullptr;
  m_toDraw = std::make_unique<std::vector<TimePane*>>(m_panes->panes());
  if (held) return;  // its turns go on, with all panes
  setUpdatesEnabled(false);
  // A window of its own does not take that from this one.
  for (QDockWidget* dock : m_docks) {
    if (dock->isFloating()) dock->setUpdatesEnabled(false);
  }
  // A timer, not a queued call: those are all done before other timers have their turn.
  m_turns->start(0);
}

void MainWindow::drawNextPane() {
  while (!m_toDraw->empty() && !m_toDraw->back()->isVisible()) m_toDraw->pop_back();
  if (m_toDraw->empty()) {
    m_turns->stop();
    m_toDraw.reset();
    setUpdatesEnabled(true);
    for (QDockWidget* dock : m_docks) dock->setUpdatesEnabled(true);
    updateTitle();
    return;
  }
  TimePane* pane = m_toDraw->back();
  m_toDraw->pop_back();
  pane->drawAhead();
}

void MainWindow::reloaded(const std::vector<RunPointer>& runs) {
  // Each takes the place of the run that was read from the same file.
  const auto again = [&](const RunPointer& old) {
    const auto found = std::find_if(runs.begin(), runs.end(), [&](const RunPointer& r) {
      return old != nullptr && r->path() == old->path();
    });
    return found != runs.end() ? *found : old;
  };
  const RunPointer a = again(m_state->runPointer());
  const RunPointer b = again(m_state->otherPointer());
  holdScreen();
  m_message->showMessage({});
  m_state->setOther(nullptr);
  m_state->replaceRun(a);
  m_state->setOther(b);
  for (const RunPointer& run : runs) keep(run);
  fillCompare();
  emit idle();
}

void MainWindow::keep(const RunPointer& run) {
  if (run == nullptr) return;
  // A file read again replaces what was read before.
  for (RunPointer& r : m_open) {
    if (r == run) return;
    if (!run->path().empty() && r->path() == run->path()) {
      r = run;
      return;
    }
  }
  m_open.push_back(run);
  for (std::size_t i = 0; i < m_open.size() && m_open.size() > kOpenMost;) {
    const bool shown = m_open[i] == m_state->runPointer() || m_open[i] == m_state->otherPointer() ||
                       m_open[i] == run;
    if (shown) {
      ++i;
    } else {
      m_open.erase(m_open.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

void MainWindow::fillCompare() {
  QStringList names;
  int a = -1;
  int b = -1;
  for (std::size_t i = 0; i < m_open.size(); ++i) {
    names << qs(m_open[i]->name());
    if (m_open[i] == m_state->runPointer()) a = static_cast<int>(i);
    if (m_open[i] == m_state->otherPointer()) b = static_cast<int>(i);
  }
  m_compare->setRuns(names, a, b);
  // Runs of the same scenario with other seeds, each seed once.
  const auto seedsOf = [this](const RunPointer& run) {
    std::vector<RunPointer> out;
    if (run == nullptr) return out;
    out.push_back(run);
    for (const RunPointer& other : m_open) {
      const bool known = std::any_of(out.begin(), out.end(), [&](const RunPointer& r) {
        return r->data().meta.seed == other->data().meta.seed;
      });
      if (!known && run::same_but_seed(run->data().meta, other->data().meta)) out.push_back(other);
    }
    std::sort(out.begin(), out.end(), [](const RunPointer& x, const RunPointer& y) {
      return x->data().meta.seed < y->data().meta.seed;
    });
    return out;
  };
  m_compare->setSeeds(seedsOf(m_state->runPointer()), seedsOf(m_state->otherPointer()));
}

void MainWindow::fillRecent() {
  const QStringList files = m_persistent ? recentFiles() : QStringList();
  m_welcome->setRecent(files);
  m_recentMenu->clear();
  for (const QString& f : files) {
    QAction* action =
        m_recentMenu->addAction(QFileInfo(f).fileName(), this, [this, f] { openFiles({f}); });
    action->setStatusTip(f);
  }
  m_recentMenu->setEnabled(!files.isEmpty());
}

void MainWindow::showRun(std::shared_ptr<const RunStore> run) {
  m_message->showMessage({});
  keep(run);
  if (run == nullptr) m_state->setOther(nullptr);
  m_state->setRun(std::move(run));
  fillCompare();
}

void MainWindow::compareWith(std::shared_ptr<const RunStore> run) {
  keep(run);
  m_state->setOther(std::move(run));
  fillCompare();
}

// ---- simulating --------------------------------------------------------------------------------

QString MainWindow::runsFolder() {
  const QString named = qEnvironmentVariable("SWITCHYARD_RUNS");
  if (!named.isEmpty()) return named;
  return QStandardPaths::writableLocation(QStandardPaths::AppLocalDataLocation) +
         QStringLiteral("/runs");
}

void MainWindow::simulate(const std::vector<Simulation>& simulations, Role role) {
  if (busy()) {
    m_message->showMessage(tr("Something is being opened or simulated; cancel it first."));
    return;
  }
  const QDir folder(QFileInfo(runsFolder()).absoluteFilePath());
  if (!folder.mkpath(QStringLiteral(".")) || !QFileInfo(folder.path()).isWritable()) {
    m_message->showMessage(tr("%1: cannot write runs there; name another folder in SWITCHYARD_RUNS")
                               .arg(folder.path()));
    return;
  }
  sweep(folder);
  std::vector<ChildJob::Step> steps;
  m_outputs.clear();
  m_childWords.clear();
  for (const Simulation& s : simulations) {
    const QString scenario = QFileInfo(s.scenario).absoluteFilePath();
    const QDir beside = QFileInfo(scenario).absoluteDir();
    QStringList words = {QStringLiteral("sim"), scenario};
    if (s.recorded) {
      // As scripts/demo does; the same program and seed give the same trace, so it is kept.
      const QString trace = folder.filePath(QStringLiteral("demo-trace-%1.h5").arg(qs(version())));
      if (!QFileInfo::exists(trace)) {
        steps.push_back(
            {tr("recording routing"),
             {QStringLiteral("trace"), QStringLiteral("--model"),
              beside.filePath(QStringLiteral("checkpoints/sy-16x2")), QStringLiteral("--prompts"),
              beside.filePath(QStringLiteral("prompts/mixed.jsonl")), QStringLiteral("--max-new"),
              QStringLiteral("32"), QStringLiteral("--batch"), QStringLiteral("32"),
              QStringLiteral("--policy"),
              beside.filePath(QStringLiteral("policies/capacity_1.0.toml")),
              QStringLiteral("--seed"), QStringLiteral("1"), QStringLiteral("-o"), trace},
             {}});
      }
      words << QStringLiteral("--trace") << trace;
    }
    for (const QString& setting : s.settings) words << QStringLiteral("--set") << setting;
    const QString output = takeName(folder, s.label);
    m_outputs << output;
    m_childWords.push_back(words);
    words << QStringLiteral("-o") << output;
    // Paths in settings start at the scenario's folder, as those in the file do.
    steps.push_back({tr("simulating %1").arg(s.label), words, beside.path()});
  }
  m_message->showMessage({});
  m_oneLayer = simulations.front().oneLayer;
  m_wantedPanes = simulations.front().panes;
  m_role = role;
  m_running = simulations;
  m_job->start(std::move(steps));
}

void MainWindow::dropOutputs() {
  for (const QString& f : m_outputs) {
    if (QFileInfo(f).size() == 0) QFile::remove(f);
  }
  m_outputs.clear();
}

void MainWindow::runEntry(const QString& id) {
  for (const GalleryEntry& e : m_welcome->entries()) {
    if (qs(e.id) != id) continue;
    std::vector<Simulation> simulations;
    for (const GalleryRun& r : e.runs) {
      Simulation s;
      s.scenario = qs((scenariosFolder() / r.file).string());
      for (const std::string& setting : r.settings) s.settings << qs(setting);
      s.label = qs(r.label);
      s.oneLayer = e.oneLayer;
      for (const std::string& pane : e.panes) s.panes << qs(pane);
      s.recorded = e.records;
      simulations.push_back(s);
    }
    simulate(simulations, Role::kShow);
    return;
  }
}

void MainWindow::openScenario(const QString& file) {
  if (!editsMayGo()) return;
  try {
    m_form->open(file);
  } catch (const InputError& e) {
    m_message->showMessage(QString::fromUtf8(e.what()));
    return;
  }
  m_message->showMessage({});
  if (m_persistent) {
    rememberFile(file);
    fillRecent();
  }
  showPage(Page::kScenario);
}

void MainWindow::runForm(bool compare) {
  const ScenarioDocument* document = m_form->document();
  if (document == nullptr || document->problem()) return;
  Simulation s;
  s.scenario = qs(document->path().string());
  try {
    for (const std::string& setting : document->settings()) {
      // One run: the sweep is left out, so what was changed in it says nothing.
      if (!setting.starts_with("sweep[") && !setting.starts_with("sweep=")) {
        s.settings << qs(setting);
      }
    }
  } catch (const InputError& e) {
    m_message->showMessage(QString::fromUtf8(e.what()));
    return;
  }
  if (document->hasSweep()) s.settings << QStringLiteral("sweep=[]");
  s.label = qs(document->path().stem().string());
  // The demo's trace is recorded when nobody has done it yet.
  const ScenarioDocument::Entry* trace = document->entry("workload.routing.trace_path");
  s.recorded = document->path().filename() == "demo.toml" && trace != nullptr &&
               !std::filesystem::exists(trace->value);
  simulate({s}, compare ? Role::kCompare : Role::kShow);
}

void MainWindow::findScenario() {
  const RunStore* run = m_state->run();
  if (run == nullptr) {
    m_whatIf->setScenario({}, {});
    return;
  }
  QStringList gpus;
  for (const run::GpuInfo& g : run->data().inventory.gpus) gpus << qs(g.name);
  m_whatIf->setGpus(gpus);
  const auto known = m_origins.find(qs(run->path().string()));
  if (known != m_origins.end()) {
    m_whatIf->setScenario(known->second.scenario, known->second.settings);
    return;
  }
  // A shipped scenario, or the one in the form, that resolves to the text in the run.
  m_whatIf->setScenario({}, {});
  if (run->path().empty()) return;
  const auto found = m_texts->withText(galleryFiles(), run->data().meta.scenario_text);
  if (!found.empty()) m_whatIf->setScenario(qs(found.string()), {QStringLiteral("sweep=[]")});
}

std::vector<std::filesystem::path> MainWindow::galleryFiles() const {
  std::vector<std::filesystem::path> files;
  for (const GalleryEntry& e : m_welcome->entries()) {
    for (const GalleryRun& r : e.runs) files.push_back(scenariosFolder() / r.file);
  }
  return files;
}

/// What showing a run would read is read by the thread that opens it.
void MainWindow::prepareRuns() {
  // The panes are as wide as they will be, or the docks will take some 40 % of the window.
  const bool shown = page() == Page::kRun;
  const int plot = shown ? m_panes->panes().front()->plotRect().width() : width() * 6 / 10;
  const auto columns = static_cast<std::size_t>(std::max(1.0, plot * devicePixelRatioF()));
  m_loader->setPrepare([columns, texts = m_texts, files = galleryFiles()](
                           const RunStore& run, const std::function<void()>& stop) {
    readFirstPictures(run, columns, stop);
    stop();
    (void)texts->withText(files, run.data().meta.scenario_text);
  });
}

void MainWindow::runWhatIf() {
  if (!m_whatIf->runButton()->isEnabled()) return;
  try {
    Simulation s;
    s.scenario = m_whatIf->scenario();
    m_whatIf->setStep(m_state->cursor().value_or(m_state->steps() / 2));
    s.settings = m_whatIf->settings();
    const auto known = m_origins.find(qs(m_state->run()->path().string()));
    s.recorded = known != m_origins.end() && known->second.recorded;
    s.label = QFileInfo(s.scenario).completeBaseName() + QStringLiteral("-whatif");
    simulate({s}, Role::kCompare);
  } catch (const InputError& e) {
    m_message->showMessage(QString::fromUtf8(e.what()));
  }
}

}  // namespace switchyard::gui
