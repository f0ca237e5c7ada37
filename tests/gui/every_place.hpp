// SPDX-License-Identifier: Apache-2.0
// Every dock with its tabs, pane, page and dialog of the window in turn, to be drawn or judged.
#pragma once
#include <functional>

#include <QAction>
#include <QApplication>
#include <QComboBox>
#include <QDialog>
#include <QDockWidget>
#include <QListWidget>
#include <QTabWidget>

#include "gui/core/gallery.hpp"
#include "gui/mainwindow.hpp"
#include "gui/text.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui::testing {

/// The widget to look at, and a name that fits into a file's.
using See = std::function<void(QWidget&, const QString&)>;

inline void settle() {
  for (int i = 0; i < 5; ++i) {
    QApplication::sendPostedEvents();
    QApplication::processEvents(QEventLoop::AllEvents, 20);
  }
}

/// The dialogs that are open, which are closed again.
inline void seeDialogs(MainWindow& window, const QString& name, const See& see) {
  settle();
  for (auto* d : window.findChildren<QDialog*>()) {
    if (!d->isVisible()) continue;
    see(*d, name);
    d->close();
    settle();
  }
}

/// Docks of the run that is shown, each on top; those with tabs or kinds once per tab or kind.
inline void seeDocks(MainWindow& window, const See& see) {
  static const QStringList kDocks = {
      QStringLiteral("runs"),     QStringLiteral("experts"), QStringLiteral("topology"),
      QStringLiteral("reroutes"), QStringLiteral("events"),  QStringLiteral("compare"),
      QStringLiteral("capacity"), QStringLiteral("health"),  QStringLiteral("requests")};
  for (const QString& name : kDocks) {
    QDockWidget* dock = window.dock(name);
    dock->raise();
    settle();
    if (name == QLatin1String("health")) {
      wait([&] { return window.health()->table(0)->model()->columnCount() > 1; }, 30000);
      for (int tab = 0; tab < window.health()->count(); ++tab) {
        window.health()->setCurrentIndex(tab);
        settle();
        see(*dock, QStringLiteral("dock-health-%1").arg(tab));
      }
      window.health()->setCurrentIndex(0);
    } else if (name == QLatin1String("reroutes")) {
      auto* kind = window.matrix()->findChild<QComboBox*>();
      const int before = kind->currentIndex();
      for (int i = 0; i < kind->count(); ++i) {
        kind->setCurrentIndex(i);
        settle();
        see(*dock, QStringLiteral("dock-matrix-%1").arg(i));
      }
      kind->setCurrentIndex(before);
    } else {
      see(*dock, QStringLiteral("dock-") + name);
    }
  }
  // One request's life; its steps are selected.
  const auto* requests = window.requests()->table()->model();
  if (requests->rowCount() > 0) {
    window.requests()->table()->setCurrentIndex(requests->index(requests->rowCount() / 2, 0));
    settle();
    see(*window.dock(QStringLiteral("requests")), QStringLiteral("dock-requests-chosen"));
  }
  ViewState& state = *window.state();
  QDockWidget& inspector = *window.dock(QStringLiteral("inspector"));
  const auto cursor = state.cursor();
  state.setSelection(StepRange{state.steps() / 4, state.steps() / 2 + 1});
  settle();
  see(inspector, QStringLiteral("dock-inspector-selection"));
  see(*window.dock(QStringLiteral("topology")), QStringLiteral("dock-topology-selection"));
  state.setSelection(std::nullopt);
  state.setCursor(std::nullopt);
  settle();
  see(inspector, QStringLiteral("dock-inspector-run"));
  state.setCursor(cursor);
  if (state.run()->gpus() > 0) state.setGpu(0);
  settle();
  see(inspector, QStringLiteral("dock-inspector-gpu"));
  state.setGpu(run::kNone);
}

/// All panes unfolded one after the other, with those that are hidden at first.
inline void seePanes(MainWindow& window, const See& see) {
  const auto show = [&](const QString& id, bool on) {
    auto* action = window.findChild<QAction*>(QStringLiteral("pane:") + id);
    if (action != nullptr && action->isChecked() != on) action->trigger();
  };
  window.dock(QStringLiteral("events"))->hide();
  const QStringList late = {QStringLiteral("memory"), QStringLiteral("entropy"),
                            QStringLiteral("metric")};
  for (const QString& id : late) show(id, true);
  const QStringList ids = PaneStack::panelNames();
  for (qsizetype i = 0; i < ids.size(); i += 3) {
    window.panes()->setAllFolds(PaneStack::Fold::kFolded);
    for (const QString& id : ids.mid(i, 3)) window.panes()->setFold(id, PaneStack::Fold::kOpen);
    settle();
    // The memory of a long run is read in the background.
    wait([] { return false; }, 50);
    see(*window.panes(), QStringLiteral("panes-%1").arg(i / 3));
  }
  window.state()->setTimeAxis(true);
  settle();
  see(*window.panes(), QStringLiteral("panes-time-axis"));
  window.state()->setTimeAxis(false);
  for (const QString& id : late) show(id, false);
  window.panes()->setAllFolds(PaneStack::Fold::kAuto);
  window.restoreDefaultLayout();
  settle();
}

inline void seePages(MainWindow& window, const See& see) {
  window.welcome()->setRecent({QStringLiteral("/runs/a_run_of_yesterday.h5"),
                               QStringLiteral("/runs/gpu_failure.h5")});
  window.showPage(MainWindow::Page::kWelcome);
  settle();
  see(window, QStringLiteral("welcome"));
  window.welcome()->setBusy(true);
  settle();
  see(window, QStringLiteral("welcome-busy"));
  window.welcome()->setBusy(false);
  window.showPalette();
  seeDialogs(window, QStringLiteral("palette"), see);
  window.showKeys();
  seeDialogs(window, QStringLiteral("keys"), see);
  window.showTour();
  seeDialogs(window, QStringLiteral("tour"), see);
  window.showRunsFolder();
  seeDialogs(window, QStringLiteral("runs-folder"), see);
  for (const char* file : {"gpu_failure.toml", "normative.toml"}) {
    window.openScenario(qs((scenariosFolder() / file).string()));
    settle();
    auto* sections = window.form()->findChild<QListWidget*>();
    for (int i = 0; i < sections->count(); ++i) {
      sections->setCurrentRow(i);
      settle();
      see(window, QStringLiteral("form-%1-%2")
                      .arg(QString::fromLatin1(file).section('.', 0, 0), sections->item(i)->text()));
    }
  }
  window.showPage(MainWindow::Page::kRun);
  settle();
}

/// All of them, for the run (and the comparison) that is shown.
inline void seeEveryPlace(MainWindow& window, const See& see) {
  window.restoreDefaultLayout();
  window.state()->setCursor(window.state()->steps() / 2);
  window.state()->setExpert(0);
  settle();
  see(window, QStringLiteral("window"));
  seeDocks(window, see);
  window.state()->setExpert(0);
  settle();
  seePanes(window, see);
  seePages(window, see);
}

}  // namespace switchyard::gui::testing
