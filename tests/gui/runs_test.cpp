// SPDX-License-Identifier: Apache-2.0
// Opening in the background, simulating in a child process, comparing two runs.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <unistd.h>

#include <QApplication>
#include <QComboBox>
#include <QDir>
#include <QElapsedTimer>
#include <QFile>
#include <QFileInfo>
#include <QLabel>
#include <QProcess>
#include <QProgressBar>
#include <QPushButton>
#include <QSettings>
#include <QSignalSpy>
#include <QTest>
#include <QTimer>
#include <QToolButton>

#include <gtest/gtest.h>

#include "gui/application.hpp"
#include "gui/mainwindow.hpp"
#include "gui/recent.hpp"
#include "gui/text.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;
using testing::kTinyScenario;
using testing::wait;
using testing::writeText;

class RunsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    qputenv("SWITCHYARD_CLI", SWITCHYARD_CLI_BINARY);
    qputenv("SWITCHYARD_RUNS", "runs");
    QDir(QStringLiteral("runs")).removeRecursively();
    window.resize(1280, 800);
    window.show();
    QApplication::processEvents();
  }
  void finish(int ms = 20000) {
    ASSERT_TRUE(wait([&] { return !window.busy(); }, ms)) << "still busy";
  }
  MainWindow window{false};
};

TEST_F(RunsTest, LoadingTellsItsProgressAndTheWindowStaysAlive) {
  run::write_run("progress.h5", demoRun(600));
  QSignalSpy progress(window.loader(), &RunLoader::progressed);
  QElapsedTimer clock;
  qint64 last = 0;
  qint64 gap = 0;
  int beats = 0;
  QTimer heart;
  QObject::connect(&heart, &QTimer::timeout, [&] {
    gap = std::max(gap, clock.elapsed() - last);
    last = clock.elapsed();
    ++beats;
  });
  clock.start();
  heart.start(1);
  window.openFiles({QStringLiteral("progress.h5")});
  EXPECT_TRUE(window.busy());
  EXPECT_TRUE(window.progressBar()->isVisible());
  finish();
  EXPECT_GE(progress.count(), 10);
  int before = -1;
  for (const auto& p : progress) {
    EXPECT_GT(p[0].toInt(), before);
    before = p[0].toInt();
  }
  EXPECT_EQ(before, 1000);
  EXPECT_GT(beats, 0) << "the window did nothing else while it loaded";
  EXPECT_EQ(window.state()->steps(), 600U);
  EXPECT_FALSE(window.progressBar()->isVisible());
  EXPECT_TRUE(wait([&] { return window.loader()->threads() == 0; }, 2000));
}

TEST_F(RunsTest, CancelKeepsTheOldRunAndLeavesNoThread) {
  run::write_run("first.h5", demoRun(20));
  run::write_run("second.h5", demoRun(600));
  window.openFiles({QStringLiteral("first.h5")});
  finish();
  const RunStore* old = window.state()->run();
  ASSERT_NE(old, nullptr);
  QSignalSpy changed(window.state(), &ViewState::runChanged);
  window.openFiles({QStringLiteral("second.h5")});
  QTest::mouseClick(window.cancelButton(), Qt::LeftButton);
  EXPECT_FALSE(window.busy()) << "cancelling waits for the thread";
  EXPECT_TRUE(wait([&] { return window.loader()->threads() == 0; }, 5000));
  QApplication::processEvents();
  EXPECT_EQ(changed.count(), 0) << "a part of the cancelled run was shown";
  EXPECT_EQ(window.state()->run(), old);
  EXPECT_FALSE(window.cancelButton()->isVisible());
}

TEST_F(RunsTest, TwoFilesAreComparedWithTheNumbersOfDiffCellByCell) {
  run::RunData a = demoRun(40);
  run::RunData b = demoRun(60);
  b.meta.seed = 7;
  b.meta.scenario_text += "policy.capacity.rule = \"share\"\n";
  run::write_run("a.h5", a);
  run::write_run("b.h5", b);
  window.openFiles({QStringLiteral("a.h5"), QStringLiteral("b.h5")});
  finish();
  ASSERT_NE(window.state()->other(), nullptr);
  QProcess diff;
  diff.start(QStringLiteral(SWITCHYARD_CLI_BINARY),
             {QStringLiteral("diff"), QStringLiteral("a.h5"), QStringLiteral("b.h5"),
              QStringLiteral("--format"), QStringLiteral("csv")});
  ASSERT_TRUE(diff.waitForFinished());
  ASSERT_EQ(diff.exitCode(), 0);
  const QAbstractItemModel& model = *window.compare()->table()->model();
  std::vector<int> rows;
  for (int r = 0; r < model.rowCount(); ++r) rows.push_back(r);
  EXPECT_GT(model.rowCount(), 10);
  EXPECT_EQ(tableText(model, rows, TableText::kCsv).toStdString(),
            diff.readAllStandardOutput().toStdString());
  // Swapped: A is the other one, and the same steps of the same layer stay on screen.
  window.state()->setWindow({10, 30}, ViewState::Move::kJump);
  window.state()->setCursor(12);
  window.state()->setLayer(2);
  QTest::mouseClick(window.compare()->swapButton(), Qt::LeftButton);
  EXPECT_EQ(window.state()->window(), (TimeWindow{10, 30}));
  EXPECT_EQ(window.state()->cursor(), 12U);
  EXPECT_EQ(window.state()->layer(), 2U);
  EXPECT_EQ(window.state()->run()->name(), "b.h5");
  ASSERT_NE(window.state()->other(), nullptr);
  EXPECT_EQ(window.state()->other()->name(), "a.h5");
  // None of the runs as B ends the comparison.
  window.compare()->boxB()->setCurrentIndex(0);
  emit window.compare()->boxB()->activated(0);
  EXPECT_EQ(window.state()->other(), nullptr);
  EXPECT_EQ(model.rowCount(), 0);
}

// Several seeds of both scenarios are open: what the seeds explain stands back.
TEST_F(RunsTest, DifferencesWithinTheNoiseOfTheSeedsAreGrey) {
  const auto file = [](const char* name, std::uint64_t seed, std::uint32_t steps, bool second) {
    run::RunData r = demoRun(steps);
    r.meta.seed = seed;
    if (second) r.meta.scenario_text += steps < 60 ? "policy.other = 1\n" : "policy.other = 2\n";
    run::write_run(name, r);
    return QString::fromLatin1(name);
  };
  const QString a1 = file("a1.h5", 1, 40, false);
  const QString a2 = file("a2.h5", 2, 48, false);
  const QString b1 = file("b1.h5", 1, 44, true);
  const QString b2 = file("b2.h5", 2, 46, true);
  const auto row = [&](const QString& name) {
    const QAbstractItemModel& m = *window.compare()->model();
    for (int r = 0; r < m.rowCount(); ++r) {
      if (m.index(r, CompareModel::kName).data().toString() == name) return r;
    }
    ADD_FAILURE() << "no row " << name.toStdString();
    return -1;
  };
  const auto color = [&](const QString& name, int column) {
    return window.compare()->model()->index(row(name), column).data(Qt::ForegroundRole);
  };
  const QVariant muted = window.state()->theme().muted;
  // One run a side: no noise is known.
  window.openFiles({a1, b1});
  finish();
  EXPECT_EQ(window.compare()->seedsText(), QString());
  EXPECT_NE(color(QStringLiteral("tokens"), CompareModel::kA), muted);
  // Four files: A and B are the first of each scenario. 40 … 48 steps against 44 … 46.
  window.openFiles({a1, a2, b2, b1});
  finish();
  EXPECT_EQ(window.state()->run()->name(), "a1.h5");
  ASSERT_NE(window.state()->other(), nullptr);
  EXPECT_EQ(window.state()->other()->name(), "b2.h5");
  EXPECT_TRUE(window.compare()->seedsText().contains(QStringLiteral("A 2, B 2")))
      << window.compare()->seedsText().toStdString();
  EXPECT_EQ(color(QStringLiteral("tokens"), CompareModel::kA), muted);
  EXPECT_TRUE(window.compare()->model()->noise(row(QStringLiteral("tokens"))));
  const QString tip = window.compare()
                          ->model()
                          ->index(row(QStringLiteral("tokens")), CompareModel::kB)
                          .data(Qt::ToolTipRole)
                          .toString();
  EXPECT_TRUE(tip.contains(QStringLiteral("ranges touch"))) << tip.toStdString();
  EXPECT_TRUE(tip.contains(QStringLiteral("(seeds: 2)"))) << tip.toStdString();
  // Far from A's range: no noise, whatever the seeds.
  window.openFiles({file("far1.h5", 1, 90, true), file("far2.h5", 2, 96, true), a1, a2});
  finish();
  EXPECT_NE(color(QStringLiteral("tokens"), CompareModel::kA), muted);
  EXPECT_FALSE(window.compare()->model()->noise(row(QStringLiteral("tokens"))));
  // Two seeds of one scenario differ by noise only.
  window.openFiles({a1, a2});
  finish();
  EXPECT_TRUE(window.compare()->seedsText().contains(QStringLiteral("all differences are noise")))
      << window.compare()->seedsText().toStdString();
  EXPECT_EQ(color(QStringLiteral("tokens"), CompareModel::kA), muted);
}

TEST_F(RunsTest, TheSecondRunIsDrawnDashedOverTheFirst) {
  run::write_run("a.h5", demoRun(40));
  window.openFiles({QStringLiteral("a.h5")});
  finish();
  const auto picture = [&] {
    TimePane* p = window.panes()->pane(QStringLiteral("steptime"));
    return p->grab().toImage();
  };
  const QImage alone = picture();
  run::write_run("b.h5", demoRun(30));
  window.openFiles({QStringLiteral("b.h5")}, MainWindow::Role::kCompare);
  finish();
  EXPECT_EQ(window.state()->run()->name(), "a.h5");
  EXPECT_EQ(window.state()->other()->name(), "b.h5");
  EXPECT_NE(alone, picture());
}

// Not only InputError: what a library throws in the worker is a message as well.
TEST_F(RunsTest, AnyExceptionOfTheWorkerIsAMessageAndKeepsTheOldRun) {
  window.showRun(
      std::make_shared<const RunStore>(std::make_shared<const run::RunData>(demoRun(9)), "old.h5"));
  window.loader()->setOpen([](const std::filesystem::path&, const LoadProgress&) -> RunPointer {
    throw std::length_error("vector::reserve");
  });
  window.openFiles({QStringLiteral("any.h5")});
  finish();
  EXPECT_EQ(window.messageBar()->text(), QStringLiteral("vector::reserve"));
  EXPECT_EQ(window.state()->run()->name(), "old.h5");
  window.loader()->setOpen([](const std::filesystem::path&, const LoadProgress&) -> RunPointer {
    throw std::bad_alloc();
  });
  window.openFiles({QStringLiteral("any.h5")});
  finish();
  EXPECT_EQ(window.messageBar()->text(), QStringLiteral("not enough memory for this run"));
  EXPECT_TRUE(wait([&] { return window.loader()->threads() == 0; }, 2000));
}

// A slot that throws ends in the message bar; the window goes on.
TEST_F(RunsTest, AnExceptionInTheWindowsThreadIsAMessage) {
  auto* app = static_cast<Application*>(qApp);
  app->setProblem([this](const QString& text) { window.messageBar()->showMessage(text); });
  QMetaObject::invokeMethod(
      &window, [] { throw std::runtime_error("the disk went away"); }, Qt::QueuedConnection);
  QApplication::processEvents();
  app->setProblem({});
  EXPECT_EQ(window.messageBar()->text(), QStringLiteral("the disk went away"));
}

TEST_F(RunsTest, OneBadFileOfTwoOpensNeither) {
  run::write_run("good.h5", demoRun(10));
  writeText("bad.h5", "no run at all, only a text of some length\n");
  window.openFiles({QStringLiteral("good.h5"), QStringLiteral("bad.h5")});
  finish();
  EXPECT_EQ(window.state()->run(), nullptr);
  EXPECT_TRUE(window.messageBar()->text().startsWith(QStringLiteral("bad.h5")))
      << window.messageBar()->text().toStdString();
}

TEST_F(RunsTest, RecentFilesAreTenNewestFirstAndDropThoseThatAreGone) {
  QSettings().remove(QStringLiteral("recent"));
  for (int i = 0; i < 12; ++i) {
    const QString name = QStringLiteral("recent%1.h5").arg(i);
    writeText(name.toStdString(), "x");
    rememberFile(name);
  }
  QStringList files = recentFiles();
  ASSERT_EQ(files.size(), 10);
  EXPECT_TRUE(files.first().endsWith(QStringLiteral("recent11.h5")));
  EXPECT_TRUE(files.last().endsWith(QStringLiteral("recent2.h5")));
  rememberFile(QStringLiteral("recent5.h5"));
  EXPECT_TRUE(recentFiles().first().endsWith(QStringLiteral("recent5.h5")));
  EXPECT_EQ(recentFiles().size(), 10);
  QFile::remove(QStringLiteral("recent11.h5"));
  files = recentFiles();
  EXPECT_EQ(files.size(), 9);
  EXPECT_FALSE(files.contains(QFileInfo(QStringLiteral("recent11.h5")).absoluteFilePath()));
  QSettings().remove(QStringLiteral("recent"));
}

TEST_F(RunsTest, AScenarioRunsInAChildProcessAndItsRunIsShown) {
  writeText("tiny.toml", kTinyScenario);
  QSignalSpy progress(window.job(), &ChildJob::progressed);
  window.simulate({{QStringLiteral("tiny.toml"), {}, QStringLiteral("tiny"), false, false}},
                  MainWindow::Role::kShow);
  EXPECT_TRUE(window.busy());
  finish();
  EXPECT_EQ(window.messageBar()->text(), QString());
  ASSERT_NE(window.state()->run(), nullptr);
  EXPECT_EQ(window.state()->run()->name(), "tiny.h5");
  EXPECT_EQ(window.page(), MainWindow::Page::kRun);
  EXPECT_GE(progress.count(), 2);
  // Again, changed, beside the first: a new name, and one input differs.
  window.simulate({{QStringLiteral("tiny.toml"),
                    {QStringLiteral("policy.capacity.factor=2.0")},
                    QStringLiteral("tiny"),
                    false,
                    false}},
                  MainWindow::Role::kCompare);
  finish();
  ASSERT_NE(window.state()->other(), nullptr) << window.messageBar()->text().toStdString();
  EXPECT_EQ(window.state()->other()->name(), "tiny-2.h5");
  const QAbstractItemModel& model = *window.compare()->table()->model();
  EXPECT_EQ(model.index(0, CompareModel::kName).data().toString(),
            QStringLiteral("policy.capacity.factor"));
}

TEST_F(RunsTest, AScenarioThatIsWrongSaysWhereAndKeepsTheOldRun) {
  run::write_run("old.h5", demoRun(10));
  window.openFiles({QStringLiteral("old.h5")});
  finish();
  std::string text = kTinyScenario;
  text.replace(text.find("batch"), 5, "bacth");
  writeText("wrong.toml", text);
  window.simulate({{QStringLiteral("wrong.toml"), {}, QStringLiteral("wrong"), false, false}},
                  MainWindow::Role::kShow);
  finish();
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("wrong.toml:")))
      << window.messageBar()->text().toStdString();
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("bacth")));
  EXPECT_EQ(window.state()->run()->name(), "old.h5");
}

TEST_F(RunsTest, AKilledOrMissingChildIsAMessage) {
  writeText("slow.sh", "#!/bin/sh\nkill -9 $$\n");
  QFile::setPermissions(QStringLiteral("slow.sh"),
                        QFileDevice::ReadOwner | QFileDevice::ExeOwner | QFileDevice::WriteOwner);
  qputenv("SWITCHYARD_CLI", QFileInfo(QStringLiteral("slow.sh")).absoluteFilePath().toUtf8());
  writeText("tiny.toml", kTinyScenario);
  const MainWindow::Simulation tiny{
      QStringLiteral("tiny.toml"), {}, QStringLiteral("tiny"), false, false};
  window.simulate({tiny}, MainWindow::Role::kShow);
  finish();
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("ended by a signal")))
      << window.messageBar()->text().toStdString();
  qputenv("SWITCHYARD_CLI", "/no/such/program");
  window.simulate({tiny}, MainWindow::Role::kShow);
  finish();
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("cannot start")))
      << window.messageBar()->text().toStdString();
  EXPECT_EQ(window.state()->run(), nullptr);
}

TEST_F(RunsTest, CancelEndsTheChildAndLeavesNoRun) {
  writeText("long.toml", testing::longScenario());
  window.simulate({{QStringLiteral("long.toml"), {}, QStringLiteral("long"), false, false}},
                  MainWindow::Role::kShow);
  ASSERT_TRUE(wait([&] { return window.job()->processId() > 0; }, 5000));
  const auto pid = static_cast<pid_t>(window.job()->processId());
  QTest::qWait(50);
  QTest::mouseClick(window.cancelButton(), Qt::LeftButton);
  finish();
  EXPECT_NE(::kill(pid, 0), 0) << "the child lives on";
  EXPECT_EQ(window.state()->run(), nullptr);
  EXPECT_TRUE(QDir(QStringLiteral("runs")).entryList(QDir::Files).isEmpty())
      << "a cancelled simulation left a file";
}

TEST_F(RunsTest, TwoWindowsNeverTakeTheSameNameAndSweepWhatDeadProgramsLeft) {
  writeText("long.toml", testing::longScenario());
  QDir().mkpath(QStringLiteral("runs"));
  // One of a program that is gone (no process has that number), one of a living one.
  const QString dead = QStringLiteral("runs/x.h5.2147483646.tmp");
  const QString alive = QStringLiteral("runs/y.h5.%1.tmp").arg(::getpid());
  writeText(dead.toStdString(), "half a run");
  writeText(alive.toStdString(), "half a run");
  const MainWindow::Simulation wanted{
      QStringLiteral("long.toml"), {}, QStringLiteral("long"), false, false};
  MainWindow other(false);
  window.simulate({wanted}, MainWindow::Role::kShow);
  other.simulate({wanted}, MainWindow::Role::kShow);
  EXPECT_TRUE(QFile::exists(QStringLiteral("runs/long.h5")));
  EXPECT_TRUE(QFile::exists(QStringLiteral("runs/long-2.h5")));
  EXPECT_FALSE(QFile::exists(dead));
  EXPECT_TRUE(QFile::exists(alive));
  QFile::remove(alive);
  window.cancelWork();
  other.cancelWork();
  finish();
  ASSERT_TRUE(wait([&] { return !other.busy(); }, 20000));
  EXPECT_TRUE(QDir(QStringLiteral("runs")).entryList(QDir::Files).isEmpty())
      << "names of runs that did not come";
  {
    MainWindow closed(false);
    closed.simulate({wanted}, MainWindow::Role::kShow);
    EXPECT_TRUE(QFile::exists(QStringLiteral("runs/long.h5")));
  }
  EXPECT_FALSE(QFile::exists(QStringLiteral("runs/long.h5"))) << "the window was closed";
}

// The kernel tells the child when the thread that started it ends, whatever ended that.
TEST_F(RunsTest, ASimulationEndsWithItsWindow) {
  writeText("long.toml", testing::longScenario());
  static ChildJob* left = nullptr;  // as after a crash: nobody tidies up
  qint64 pid = 0;
  const QString scenario = QFileInfo(QStringLiteral("long.toml")).absoluteFilePath();
  const QString output = QFileInfo(QStringLiteral("orphan.h5")).absoluteFilePath();
  std::thread thread([&] {
    left = new ChildJob;
    left->start({{QStringLiteral("long"),
                  {QStringLiteral("sim"), scenario, QStringLiteral("-o"), output},
                  {}}});
    for (int i = 0; i < 500 && left->processId() == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    pid = left->processId();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  });
  thread.join();
  ASSERT_GT(pid, 0);
  const auto running = [pid] {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    in >> number >> name >> state;
    return !state.empty() && state != "Z";
  };
  EXPECT_TRUE(wait([&] { return !running(); }, 10000)) << "the child lives on";
  EXPECT_FALSE(QFile::exists(output));
}

TEST_F(RunsTest, AReadOnlyFolderOfRunsIsNamed) {
  writeText("tiny.toml", kTinyScenario);
  qputenv("SWITCHYARD_RUNS", "/proc/no/runs");
  window.simulate({{QStringLiteral("tiny.toml"), {}, QStringLiteral("tiny"), false, false}},
                  MainWindow::Role::kShow);
  EXPECT_FALSE(window.busy());
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("cannot write runs there")));
}

TEST_F(RunsTest, TheWelcomePageOffersTheShippedScenariosAndRunsOneInTwoClicks) {
  ASSERT_EQ(window.page(), MainWindow::Page::kWelcome);
  Welcome& welcome = *window.welcome();
  for (const char* id : {"demo", "overloaded", "fabric", "normative"}) {
    ASSERT_NE(welcome.runButton(QString::fromLatin1(id)), nullptr) << id;
  }
  // What needs another command's file first is offered for editing only.
  ASSERT_NE(welcome.runButton(QStringLiteral("coupled_queue")), nullptr);
  EXPECT_FALSE(welcome.runButton(QStringLiteral("coupled_queue"))->isEnabled());
  EXPECT_TRUE(welcome.editButton(QStringLiteral("coupled_queue"))->isEnabled());
  QTest::mouseClick(welcome.runButton(QStringLiteral("overloaded")), Qt::LeftButton);
  EXPECT_FALSE(welcome.runButton(QStringLiteral("demo"))->isEnabled());
  finish(60000);
  ASSERT_NE(window.state()->run(), nullptr) << window.messageBar()->text().toStdString();
  const run::Totals& t = window.state()->run()->data().totals;
  EXPECT_GT(t.overflow, 0U);
  EXPECT_GT(t.rerouted, 0U);
  EXPECT_EQ(window.page(), MainWindow::Page::kRun);
  window.showPage(MainWindow::Page::kWelcome);
  EXPECT_TRUE(welcome.runButton(QStringLiteral("demo"))->isEnabled());
  EXPECT_FALSE(welcome.runButton(QStringLiteral("coupled_queue"))->isEnabled());
}

// Each exploration shows what its text on the welcome page promises.
TEST_F(RunsTest, TheExplorationsShowWhatTheyPromise) {
  const auto explore = [&](const char* id) -> const run::RunData* {
    window.showPage(MainWindow::Page::kWelcome);
    QTest::mouseClick(window.welcome()->runButton(QString::fromLatin1(id)), Qt::LeftButton);
    finish(200000);
    EXPECT_EQ(window.messageBar()->text(), QString()) << id;
    EXPECT_EQ(window.page(), MainWindow::Page::kRun) << id;
    return window.state()->run() != nullptr ? &window.state()->run()->data() : nullptr;
  };
  const auto events = [](const run::RunData& r, run::EventKind kind) {
    return std::count_if(r.events.begin(), r.events.end(),
                         [&](const run::Event& e) { return e.kind == kind; });
  };
  // Ring against hierarchical, side by side: the algorithm is the one input that differs, and B's
  // links are drawn.
  const run::RunData* fabric = explore("fabric");
  ASSERT_NE(fabric, nullptr);
  ASSERT_NE(window.state()->other(), nullptr);
  const QAbstractItemModel& compare = *window.compare()->table()->model();
  EXPECT_EQ(compare.index(0, CompareModel::kName).data().toString(),
            QStringLiteral("network.algorithm"));
  EXPECT_EQ(compare.index(1, CompareModel::kKind).data().toString(), QStringLiteral("metric"));
  // B - A of the span, in ms.
  const auto difference = [&] {
    for (int r = 0; r < compare.rowCount(); ++r) {
      if (compare.index(r, CompareModel::kName).data() == "span") {
        return compare.index(r, CompareModel::kDifference).data().toDouble();
      }
    }
    ADD_FAILURE() << "no span";
    return 0.0;
  };
  EXPECT_LT(difference(), -100) << "the ring takes longer over mixed links";
  // The third one, direct, waits in the list of B. The hierarchical exchange goes by the two
  // groups, so it is another one: the relays send over PCIe twice.
  ASSERT_EQ(window.compare()->boxA()->count(), 3);
  const double hierarchical = difference();
  QComboBox* b = window.compare()->boxB();
  b->setCurrentIndex(3);  // none, ring, hierarchical, direct
  emit b->activated(3);
  EXPECT_LT(difference(), hierarchical - 10) << "direct is faster than hierarchical";
  // Experts wait in the host's memory: loads are events, and take time.
  const run::RunData* offload = explore("offload");
  ASSERT_NE(offload, nullptr);
  EXPECT_EQ(window.state()->other(), nullptr);
  EXPECT_GT(offload->events.size(), 0U);
  // A GPU is lost and comes back.
  const run::RunData* failure = explore("failure");
  ASSERT_NE(failure, nullptr);
  EXPECT_GE(events(*failure, run::EventKind::kFault), 2);
  // Requests have their two times, and the latency pane is there.
  const run::RunData* serving = explore("serving");
  ASSERT_NE(serving, nullptr);
  EXPECT_GT(serving->requests.size(), 10U);
  EXPECT_TRUE(window.panes()->pane(QStringLiteral("latency"))->isVisible());
  // The line that is copied makes the run again: with the settings of the welcome page, and not
  // over the file that is shown.
  const QString line = window.commandLine();
  EXPECT_TRUE(line.startsWith(QStringLiteral("switchyard sim "))) << line.toStdString();
  EXPECT_TRUE(line.contains(QStringLiteral("--set sweep=[]")) ||
              line.contains(QStringLiteral("--set 'sweep=[]'")))
      << line.toStdString();
  EXPECT_TRUE(line.endsWith(QStringLiteral("-again.h5"))) << line.toStdString();
}

}  // namespace
}  // namespace switchyard::gui
