// SPDX-License-Identifier: Apache-2.0
// A person who presses anything: seeded keys, clicks, drags, wheels and menu entries over the
// panes and docks, with runs that have replicas, stages, prefill replicas, faults and copies of
// experts. Nothing may end the program, and afterwards the window answers as it did before.
//   SWITCHYARD_MONKEY=N        N seeds in place of one (by hand; MALLOC_PERTURB_=165 finds more)
//   SWITCHYARD_MONKEY_FIRST=N  the first of them
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>

#include <QAbstractButton>
#include <QAbstractItemView>
#include <QApplication>
#include <QComboBox>
#include <QDialog>
#include <QDir>
#include <QDockWidget>
#include <QLineEdit>
#include <QMenu>
#include <QPointer>
#include <QProcess>
#include <QSettings>
#include <QTest>
#include <QTimer>
#include <QWheelEvent>

#include <gtest/gtest.h>

#include "gui/mainwindow.hpp"
#include "gui/palette.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;
using testing::stored;
using testing::wait;

int first() {
  const char* n = std::getenv("SWITCHYARD_MONKEY_FIRST");
  return n != nullptr ? std::max(1, std::atoi(n)) : 1;
}

int seeds() {
  const char* n = std::getenv("SWITCHYARD_MONKEY");
  return n != nullptr ? std::max(1, std::atoi(n)) : 1;
}

/// Simulates a shipped scenario with settings, once for all tests; the run's file.
std::string simulated(const char* scenario, const QStringList& settings, const char* name) {
  std::filesystem::create_directories("monkey_runs");
  const std::string file = std::string("monkey_runs/") + name;
  QStringList words = {
      QStringLiteral("sim"),
      QStringLiteral("%1/scenarios/%2").arg(SWITCHYARD_SOURCE_DIR, QLatin1String(scenario)),
      QStringLiteral("-o"), QString::fromStdString(file)};
  for (const QString& s : settings) words << QStringLiteral("--set") << s;
  QProcess child;
  child.start(QStringLiteral(SWITCHYARD_CLI_BINARY), words);
  EXPECT_TRUE(child.waitForFinished(120000)) << name;
  EXPECT_EQ(child.exitCode(), 0) << name << ": " << child.readAllStandardError().toStdString();
  return file;
}

class MonkeyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    qputenv("SWITCHYARD_CLI", SWITCHYARD_CLI_BINARY);
    qputenv("SWITCHYARD_RUNS", "monkey_out");
    QDir(QStringLiteral("monkey_out")).removeRecursively();
    // Files that other tests opened are none to write into.
    QDir(QStringLiteral("monkey_config")).removeRecursively();
    QSettings::setPath(QSettings::NativeFormat, QSettings::UserScope,
                       QDir(QStringLiteral("monkey_config")).absolutePath());
    // Nobody answers a dialog: it is closed again after a few events.
    closer.setInterval(30);
    QObject::connect(&closer, &QTimer::timeout, [] {
      if (QWidget* modal = QApplication::activeModalWidget()) modal->close();
      if (QWidget* popup = QApplication::activePopupWidget()) popup->close();
    });
    closer.start();
    window.resize(1280, 800);
    window.show();
    QApplication::processEvents();
  }
  void TearDown() override { window.cancelWork(); }

  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : random() % n; }
  template <class List>
  auto any(const List& list) {
    return list[static_cast<decltype(list.size())>(below(static_cast<std::uint64_t>(list.size())))];
  }

  /// Widgets that are seen below `root`.
  static std::vector<QWidget*> seen(QWidget* root) {
    std::vector<QWidget*> all;
    for (QWidget* w : root->findChildren<QWidget*>()) {
      if (w->isVisible() && !w->visibleRegion().isEmpty() && w->isEnabled()) all.push_back(w);
    }
    return all;
  }
  /// What leaves the program, waits for a person, or writes into the shipped scenarios.
  static bool mayBeTriggered(const QAction* action) {
    static const QStringList kNever = {
        QStringLiteral("Quit"),         QStringLiteral("Open run…"),
        QStringLiteral("Export…"),      QStringLiteral("Add run to compare…"),
        QStringLiteral("About"),        QStringLiteral("Edit scenario…"),
        QStringLiteral("Welcome page"), QStringLiteral("Save scenario as…")};
    const QString text = QString(action->text()).remove('&');
    return !text.startsWith(QStringLiteral("Open the folder")) && !kNever.contains(text);
  }

  void anyEvent(QWidget* root) {
    const std::vector<QWidget*> widgets = seen(root);
    if (widgets.empty()) return;
    const QPointer<QWidget> w = any(widgets);
    const QPoint at(static_cast<int>(below(static_cast<std::uint64_t>(std::max(1, w->width())))),
                    static_cast<int>(below(static_cast<std::uint64_t>(std::max(1, w->height())))));
    const auto modifiers =
        any(std::vector<Qt::KeyboardModifiers>{{},
                                               {},
                                               {},
                                               Qt::ControlModifier,
                                               Qt::ShiftModifier,
                                               Qt::ControlModifier | Qt::ShiftModifier});
    const auto button = any(std::vector<Qt::MouseButton>{Qt::LeftButton, Qt::LeftButton,
                                                         Qt::LeftButton, Qt::RightButton});
    switch (below(9)) {
      case 0:
        QTest::mouseMove(w, at);
        break;
      case 1:
      case 2:
        QTest::mouseClick(w, button, modifiers, at);
        break;
      case 3:
        QTest::mouseDClick(w, Qt::LeftButton, modifiers, at);
        break;
      case 4: {
        QTest::mousePress(w, button, modifiers, at);
        const QPoint to(static_cast<int>(below(1200)) - 200, static_cast<int>(below(700)) - 100);
        if (w != nullptr) QTest::mouseMove(w, to / 2);
        if (w != nullptr) QTest::mouseMove(w, to);
        if (w != nullptr) QTest::mouseRelease(w, button, modifiers, to);
        break;
      }
      case 5: {
        QWheelEvent wheel(at, w->mapToGlobal(at), {}, {0, below(2) == 0 ? 120 : -120}, Qt::NoButton,
                          modifiers, Qt::NoScrollPhase, false);
        QApplication::sendEvent(w, &wheel);
        break;
      }
      case 6:
      case 7: {
        static const std::vector<Qt::Key> kKeys = {
            Qt::Key_W,      Qt::Key_S,        Qt::Key_A,           Qt::Key_D,
            Qt::Key_F,      Qt::Key_0,        Qt::Key_R,           Qt::Key_T,
            Qt::Key_H,      Qt::Key_X,        Qt::Key_Period,      Qt::Key_Comma,
            Qt::Key_Escape, Qt::Key_Home,     Qt::Key_End,         Qt::Key_Left,
            Qt::Key_Right,  Qt::Key_Up,       Qt::Key_Down,        Qt::Key_Return,
            Qt::Key_Space,  Qt::Key_Tab,      Qt::Key_Backtab,     Qt::Key_Backspace,
            Qt::Key_Delete, Qt::Key_PageDown, Qt::Key_BracketLeft, Qt::Key_BracketRight,
            Qt::Key_1,      Qt::Key_9};
        QWidget* focus = QApplication::focusWidget();
        const Qt::Key key = any(kKeys);
        // Ctrl+Shift+W leads to the shipped scenarios, Ctrl+T to a dialog.
        const bool plain = key == Qt::Key_W || key == Qt::Key_T;
        QTest::keyClick(focus != nullptr ? focus : w.data(), key,
                        plain ? Qt::KeyboardModifiers() : modifiers);
        break;
      }
      default: {
        std::vector<QAction*> actions;
        for (QAction* a : actionsInOrder(&window)) {
          if (a->isEnabled() && a->menu() == nullptr && mayBeTriggered(a)) actions.push_back(a);
        }
        if (!actions.empty()) any(actions)->trigger();
      }
    }
    QApplication::processEvents();
  }

  /// The window is still one: it draws, and a click moves the cursor.
  void expectSound() {
    for (QWidget* w : QApplication::topLevelWidgets()) {
      if (w != &window) w->close();
    }
    window.cancelWork();
    EXPECT_TRUE(wait([&] { return !window.busy(); }, 20000));
    window.showRun(stored(demoRun(30)));
    window.restoreDefaultLayout();
    for (QAction* a : window.findChildren<QAction*>()) {
      if (a->text() == QStringLiteral("Restore default layout")) a->trigger();
    }
    window.setTextSize(9);
    window.resize(1280, 800);
    QApplication::processEvents();
    EXPECT_FALSE(window.grab().isNull());
    TimePane* heat = window.panes()->pane(QStringLiteral("heatmap"));
    ASSERT_TRUE(heat->isVisible());
    window.state()->showAll();
    QTest::mouseMove(heat, QPoint(1, 1));
    QTest::mouseMove(heat, heat->plotRect().center());
    ASSERT_TRUE(window.state()->cursor().has_value());
    EXPECT_NEAR(static_cast<double>(*window.state()->cursor()), 15, 1);
  }

  std::mt19937_64 random;
  QTimer closer;
  MainWindow window{false};
};

TEST_F(MonkeyTest, NothingThatIsPressedOverARunEndsTheProgram) {
  const std::vector<std::string> files = {
      simulated("serving_mixtral.toml",
                {QStringLiteral("workload.front_end.prefill_replicas=1"),
                 QStringLiteral("workload.arrivals.requests=30")},
                "prefill.h5"),
      simulated("gpu_failure.toml", {}, "faults.h5"),
      simulated("deepseek_v3_h200.toml",
                {QStringLiteral("workload.steps=6"), QStringLiteral("workload.warmup_steps=0")},
                "deepseek.h5"),
      simulated("overloaded_expert.toml",
                {QStringLiteral("parallel.attention=pp"), QStringLiteral("parallel.pp=2"),
                 QStringLiteral("parallel.dp=4"), QStringLiteral("parallel.ep=4"),
                 QStringLiteral("workload.steps=20")},
                "stages.h5")};
  for (int seed = first(); seed < first() + seeds(); ++seed) {
    // A crash says no trace.
    if (seeds() > 1) std::fprintf(stderr, "seed %d\n", seed);
    random.seed(static_cast<std::uint64_t>(seed));
    for (std::size_t i = 0; i < files.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << files[i]);
      window.showRun(std::make_shared<const RunStore>(files[i]));
      if (below(2) == 0) {
        window.compareWith(std::make_shared<const RunStore>(files[below(files.size())]));
      }
      for (int n = 0; n < 150; ++n) {
        if (n % 30 == 0) window.showPage(MainWindow::Page::kRun);
        if (n % 40 == 39) {
          any(window.findChildren<QDockWidget*>())->raise();
          window.resize(800 + static_cast<int>(below(1200)), 600 + static_cast<int>(below(600)));
        }
        anyEvent(&window);
      }
      expectSound();
    }
  }
}

}  // namespace
}  // namespace switchyard::gui
