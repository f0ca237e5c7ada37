// SPDX-License-Identifier: Apache-2.0
// What opening a run costs the window's thread, as counts: pages it reads, texts it lays out, panes
// it draws in one turn of the event loop. The times are measured by tests/bench/gui_bench.
#include <filesystem>

#include <QApplication>
#include <QDockWidget>
#include <QHeaderView>
#include <QSignalSpy>
#include <QTest>
#include <QTimer>

#include <gtest/gtest.h>

#include "gui/core/columns.hpp"
#include "gui/core/firstpictures.hpp"
#include "gui/core/places.hpp"
#include "gui/mainwindow.hpp"
#include "gui/stepspanes.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;
using testing::stored;
using testing::wait;

/// Counts turns of the event loop and what each of them draws.
class Turns : public QObject {
 public:
  explicit Turns(MainWindow& window) : m_window(window) {
    for (TimePane* p : window.panes()->panes()) p->installEventFilter(this);
    m_before = draws();
    connect(&m_timer, &QTimer::timeout, this, [this] {
      const int now = draws();
      most = std::max(most, now - m_before);
      inTurns += now - m_before;
      m_before = now;
    });
    m_timer.start(0);
  }
  int most = 0;          ///< Panes drawn in one turn.
  int inTurns = 0;       ///< Panes drawn.
  int whileHeld = 0;     ///< Paints of a pane while the screen is held.
  int drawnByPaint = 0;  ///< Contents that a paint had to draw itself.

 protected:
  bool eventFilter(QObject* object, QEvent* event) override {
    if (event->type() != QEvent::Paint) return false;
    if (m_window.showing()) ++whileHeld;
    auto* pane = static_cast<TimePane*>(object);
    const int drawn = pane->contentDraws();
    pane->removeEventFilter(this);
    QApplication::sendEvent(pane, event);
    pane->installEventFilter(this);
    // Its spread over the layers arrives when it has been read, and is drawn then.
    if (pane->id() != QLatin1String("imbalance")) drawnByPaint += pane->contentDraws() - drawn;
    return true;
  }

 private:
  [[nodiscard]] int draws() const {
    int n = 0;
    for (const TimePane* p : m_window.panes()->panes()) n += p->contentDraws();
    return n;
  }
  MainWindow& m_window;
  QTimer m_timer;
  int m_before = 0;
};

class OpeningTest : public ::testing::Test {
 protected:
  void SetUp() override {
    window.resize(1280, 800);
    window.show();
    QApplication::processEvents();
  }
  void open(const char* file, MainWindow::Role role = MainWindow::Role::kShow) {
    window.openFiles({QString::fromLatin1(file)}, role);
    ASSERT_TRUE(wait([&] { return !window.busy() && !window.showing(); }, 20000));
    QApplication::processEvents();
  }
  template <class Pane>
  Pane* pane(const char* id) {
    return dynamic_cast<Pane*>(window.panes()->pane(QString::fromLatin1(id)));
  }
  MainWindow window{false};
};

// The window draws the whole run without reading a page: the thread that opened it has.
TEST_F(OpeningTest, TheFirstPictureReadsNoPage) {
  run::write_run("pages.h5", demoRun(3000));
  // Between the thread and the window: what has been read by then?
  RunPointer arrived;
  QObject::disconnect(window.loader(), &RunLoader::loaded, &window, nullptr);
  QObject::connect(window.loader(), &RunLoader::loaded, &window,
                   [&](const std::vector<RunPointer>& runs) { arrived = runs.at(0); });
  window.openFiles({QStringLiteral("pages.h5")});
  ASSERT_TRUE(wait([&] { return arrived != nullptr; }, 20000));
  const std::uint64_t pages = arrived->pagesRead();
  const std::uint64_t bytes = arrived->bytesRead();
  EXPECT_GT(pages, 8U);
  window.showRun(arrived);
  QApplication::processEvents();
  (void)window.grab();
  EXPECT_EQ(arrived->pagesRead(), pages);
  EXPECT_EQ(arrived->bytesRead(), bytes);
}

TEST_F(OpeningTest, ReadingAheadIsStoppedAndLeavesOutWhatCannotBeRead) {
  run::write_run("stop.h5", demoRun(600));
  const RunStore run(std::filesystem::path("stop.h5"));
  struct Stop {};
  int asked = 0;
  EXPECT_THROW(readFirstPictures(run, 300,
                                 [&] {
                                   if (++asked == 3) throw Stop{};
                                 }),
               Stop);
  EXPECT_EQ(asked, 3);
  // Cut since it was opened: nothing is thrown, the panes say it when they draw.
  const RunStore cut(std::filesystem::path("stop.h5"));
  std::filesystem::resize_file("stop.h5", 4096);
  EXPECT_NO_THROW(readFirstPictures(cut, 300));
  EXPECT_THROW((void)heatColumns(cut, kAllLayers, Scale::kTokens, Aggregate::kMax, {0, 600}, 300),
               InputError);
  // No steps, no columns: nothing to read.
  const auto none = stored(demoRun(0));
  EXPECT_NO_THROW(readFirstPictures(*none, 300));
  EXPECT_NO_THROW(readFirstPictures(*stored(demoRun(9)), 0));
}

// One pane per turn, none of them by the paint that shows the run, and until then no paint at all:
// the run before stands there with its name, or the new one whole.
TEST_F(OpeningTest, PanesAreDrawnOnePerTurnAndShownTogether) {
  run::write_run("first.h5", demoRun(300));
  run::write_run("second.h5", demoRun(400));
  open("first.h5");
  EXPECT_TRUE(window.updatesEnabled());
  (void)window.grab();
  // A dock that floats is a window of its own.
  auto* dock = window.findChild<QDockWidget*>(QStringLiteral("inspector"));
  ASSERT_NE(dock, nullptr);
  dock->setFloating(true);
  dock->show();
  QApplication::processEvents();
  Turns turns(window);
  window.openFiles({QStringLiteral("second.h5")});
  ASSERT_TRUE(wait([&] { return window.showing(); }, 20000));
  EXPECT_TRUE(window.windowTitle().startsWith(QStringLiteral("first.h5")))
      << window.windowTitle().toStdString();
  EXPECT_FALSE(dock->updatesEnabled());
  ASSERT_TRUE(wait([&] { return !window.busy() && !window.showing(); }, 20000));
  EXPECT_TRUE(window.windowTitle().startsWith(QStringLiteral("second.h5")))
      << window.windowTitle().toStdString();
  EXPECT_TRUE(window.updatesEnabled());
  EXPECT_TRUE(dock->updatesEnabled());
  ASSERT_TRUE(wait([&] { return turns.inTurns >= 7; }, 2000)) << turns.inTurns;
  EXPECT_EQ(turns.most, 1);
  EXPECT_EQ(turns.whileHeld, 0);
  EXPECT_EQ(turns.drawnByPaint, 0);
  EXPECT_EQ(window.state()->run()->name(), "second.h5");
  // The same for a second run beside the first, and for one read again.
  for (const auto role : {MainWindow::Role::kCompare, MainWindow::Role::kReload}) {
    open(role == MainWindow::Role::kCompare ? "first.h5" : "second.h5", role);
    EXPECT_TRUE(window.updatesEnabled());
    EXPECT_EQ(turns.whileHeld, 0);
  }
}

// What was pressed in one run chooses nothing in the next.
TEST_F(OpeningTest, ADragEndsWithItsRun) {
  window.showRun(stored(demoRun(300)));
  (void)window.grab();
  TimePane* const heat = window.panes()->pane(QStringLiteral("heatmap"));
  ASSERT_NE(heat, nullptr);
  const QPoint from = heat->plotRect().center();
  const auto drag = [&] {
    QTest::mousePress(heat, Qt::LeftButton, {}, from);
    QTest::mouseMove(heat, from + QPoint(40, 0));
  };
  drag();
  ASSERT_TRUE(window.state()->selection().has_value());
  QTest::mouseRelease(heat, Qt::LeftButton, {}, from + QPoint(40, 0));
  window.state()->setSelection(std::nullopt);
  QTest::mousePress(heat, Qt::LeftButton, {}, from);
  window.showRun(stored(demoRun(200)));
  QTest::mouseMove(heat, from + QPoint(60, 0));
  EXPECT_FALSE(window.state()->selection().has_value());
  QTest::mouseRelease(heat, Qt::LeftButton, {}, from + QPoint(60, 0));
  EXPECT_FALSE(window.state()->selection().has_value());
}

TEST_F(OpeningTest, TheScreenIsNotHeldByWhatDoesNotArrive) {
  run::write_run("there.h5", demoRun(40));
  open("there.h5");
  open("missing.h5");
  EXPECT_TRUE(window.updatesEnabled());
  EXPECT_FALSE(window.messageBar()->text().isEmpty());
  window.openFiles({QStringLiteral("there.h5")});
  window.cancelWork();
  EXPECT_FALSE(window.showing());
  EXPECT_TRUE(window.updatesEnabled());
  // A second opening that arrives while the first one is being drawn.
  run::write_run("later.h5", demoRun(50));
  window.openFiles({QStringLiteral("there.h5")});
  ASSERT_TRUE(wait([&] { return window.showing() || !window.busy(); }, 20000));
  open("later.h5");
  EXPECT_TRUE(window.updatesEnabled());
  EXPECT_EQ(window.state()->run()->name(), "later.h5");
}

// A few texts are laid out, not a thousand per column; the columns are as wide as all of them.
TEST_F(OpeningTest, ColumnsOfEventsAreFittedFromTheWidestTextsOnly) {
  run::RunData data = demoRun(60);
  data.events.clear();
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const auto step = i % 60;
    data.events.push_back({data.steps[step].start_ps, step, run::EventKind::kOverflow, 0, i % 8,
                           i % 64, run::kNone, 1.0 * i,
                           fmt::format("{} of {} over", testing::mix(i) % 100000, i % 7)});
  }
  std::stable_sort(data.events.begin(), data.events.end(),
                   [](const run::Event& a, const run::Event& b) { return a.time_ps < b.time_ps; });
  TableView* table = window.eventsTable();
  const std::uint64_t before = table->textsMeasured();
  window.showRun(stored(std::move(data)));
  const QAbstractItemModel& m = *table->model();
  ASSERT_EQ(m.rowCount(), 5000);
  EXPECT_GT(table->textsMeasured(), before);
  EXPECT_LE(table->textsMeasured() - before, 8U * static_cast<unsigned>(m.columnCount()));
  const QFontMetrics metrics = table->fontMetrics();
  EXPECT_TRUE(table->isColumnHidden(EventsModel::kLink)) << "no event is of a link";
  for (int c = 0; c < m.columnCount() - 1; ++c) {
    if (c == EventsModel::kLink) continue;
    int widest = metrics.horizontalAdvance(m.headerData(c, Qt::Horizontal).toString());
    for (int r = 0; r < 1000; ++r) {
      widest = std::max(widest, metrics.horizontalAdvance(m.index(r, c).data().toString()));
    }
    EXPECT_GE(table->columnWidth(c), widest + 8) << c;
    EXPECT_LE(table->columnWidth(c), widest + 40) << c;
  }
}

// Hidden, the pane of the entropy looks at no step; shown, at each once.
TEST_F(OpeningTest, LevelsOfTheEntropyAreMadeWhenThePaneIsDrawn) {
  auto* entropy = pane<EntropyPane>("entropy");
  ASSERT_NE(entropy, nullptr);
  const std::uint64_t before = entropy->stepsRead();
  window.showRun(stored(demoRun(300)));
  (void)window.grab();
  EXPECT_EQ(entropy->stepsRead(), before);
  entropy->show();
  window.panes()->setFold(QStringLiteral("entropy"), PaneStack::Fold::kOpen);
  (void)entropy->grab();
  (void)entropy->grab();
  EXPECT_EQ(entropy->stepsRead(), before + 300);
  window.showRun(stored(demoRun(200)));
  (void)entropy->grab();
  EXPECT_EQ(entropy->stepsRead(), before + 500);
}

// The window's thread finds the scenario of the run known already.
TEST_F(OpeningTest, TheScenarioOfARunIsLookedForByTheThreadThatOpensIt) {
  run::write_run("known.h5", demoRun(20));
  open("known.h5");
  const std::size_t resolved = window.scenarioTexts().resolved();
  EXPECT_GT(resolved, 0U);
  run::write_run("again.h5", demoRun(30));
  open("again.h5");
  EXPECT_EQ(window.scenarioTexts().resolved(), resolved);
}

// Places of events by kind are those a look at all of them finds.
TEST(RunStore, KnowsTheEventsOfEachKind) {
  run::RunData data = demoRun(40);
  data.events.clear();
  for (std::uint32_t i = 0; i < 40; ++i) {
    const auto kind = static_cast<run::EventKind>(i % run::kEventKindNames.size());
    data.events.push_back(
        {data.steps[i].start_ps, i, kind, 0, 2, 5, run::kNone, 0,
         kind == run::EventKind::kPolicyAction ? "rebalance: 2 experts" : "gpu_loss gpu2"});
  }
  const auto run = stored(std::move(data));
  std::size_t all = 0;
  for (std::size_t k = 0; k < run::kEventKindNames.size(); ++k) {
    const auto& of = run->eventsOf(static_cast<run::EventKind>(k));
    EXPECT_TRUE(std::is_sorted(of.begin(), of.end()));
    for (const std::uint32_t i : of) {
      EXPECT_EQ(static_cast<std::size_t>(run->events()[i].kind), k);
    }
    all += of.size();
  }
  EXPECT_EQ(all, 40U);
  // kFault is the eighth kind, kPolicyAction the tenth.
  EXPECT_EQ(lostGpus(*run).size(), 3U);
  EXPECT_EQ(movedSince(*run), std::optional<std::uint64_t>(9));
}

}  // namespace
}  // namespace switchyard::gui
