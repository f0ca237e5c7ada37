// SPDX-License-Identifier: Apache-2.0
// Ways to look closer: the axis of time, lanes of replicas, phases at deep zoom, latency of
// requests, rows of the heat map, legends, links between panels, bookmarks, the command palette.
#include <algorithm>
#include <filesystem>
#include <utility>

#include <QAbstractItemModelTester>
#include <QAction>
#include <QApplication>
#include <QCheckBox>
#include <QClipboard>
#include <QDialog>
#include <QDir>
#include <QDockWidget>
#include <QFileDialog>
#include <QFileInfo>
#include <QInputDialog>
#include <QLabel>
#include <QLineEdit>
#include <QListWidget>
#include <QMenu>
#include <QMessageBox>
#include <QPushButton>
#include <QSettings>
#include <QSignalSpy>
#include <QTest>
#include <QTimer>
#include <QWheelEvent>

#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "gui/mainwindow.hpp"
#include "gui/palette.hpp"
#include "gui/recent.hpp"
#include "gui/render.hpp"
#include "gui/savename.hpp"
#include "gui/stepspanes.hpp"
#include "gui/text.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;
using testing::stored;
using testing::wait;

/// Two replicas of four GPUs each that step by themselves; their steps overlap in time. Requests
/// arrive; each gets its first token one step later.
run::RunData twoReplicas() {
  run::RunData data = demoRun(1);
  run::Inventory inv = data.inventory;
  for (std::uint32_t g = 4; g < 8; ++g) inv.gpus[g].engine = 1;
  run::RunData out = run::make_run(data.meta, inv);
  std::array<std::int64_t, 2> ready = {0, 400'000'000};
  for (std::uint32_t s = 0; s < 120; ++s) {
    run::StepRecord r = testing::demoStep(inv, s);
    const std::uint32_t engine = ready[0] <= ready[1] ? 0 : 1;
    const std::int64_t duration = r.scalars.end_ps - r.scalars.start_ps;
    r.scalars.engine = engine;
    r.scalars.start_ps = ready[engine];
    // The second replica is slower.
    r.scalars.end_ps = r.scalars.start_ps + duration;
    ready[engine] = r.scalars.end_ps + (engine == 1 ? duration / 2 : 0);
    for (std::uint32_t g = 0; g < 8; ++g) {
      if (inv.gpus[g].engine == engine) continue;
      std::fill_n(r.gpu_phase_ps.begin() + g * static_cast<std::ptrdiff_t>(run::kPhases),
                  run::kPhases, 0);
    }
    r.scalars.straggler_gpu = engine * 4;
    run::append_step(out, r);
  }
  for (std::uint32_t s = 5; s < 100; ++s) {
    run::RequestRecord q;
    q.id = s;
    q.arrival_ps = out.steps[s - 3].start_ps;
    q.scheduled_ps = q.arrival_ps;
    q.first_token_ps = out.steps[s].end_ps;
    q.end_ps = out.steps[s + 10].end_ps;
    q.output_tokens = 9;
    q.outcome = run::RequestOutcome::kFinished;
    out.requests.push_back(q);
  }
  out.serving = true;
  out.meta.scenario_text += "workload.slo.ttft = \"5 ms\"\nworkload.slo.tpot = \"1 ms\"\n";
  out.metrics = run::compute_metrics(out);
  return out;
}

class ExploreTest : public ::testing::Test {
 protected:
  void SetUp() override { open(stored(demoRun())); }
  void open(std::shared_ptr<const RunStore> run) {
    window.resize(1680, 1020);
    window.showRun(std::move(run));
    window.show();
    QApplication::processEvents();
    window.restoreDefaultLayout();
    QApplication::processEvents();
    QTest::mouseMove(&window, QPoint(1, 1));
    QApplication::processEvents();
  }
  template <class T = TimePane>
  T* pane(const char* id) {
    auto* p = dynamic_cast<T*>(window.panes()->pane(QString::fromLatin1(id)));
    EXPECT_NE(p, nullptr) << id;
    return p;
  }
  void show(const char* id) {
    auto* a = window.findChild<QAction*>(QStringLiteral("pane:") + QString::fromLatin1(id));
    ASSERT_NE(a, nullptr) << id;
    a->setChecked(true);
    QApplication::processEvents();
  }
  /// Middle of what the pane's legend says of that name.
  static QPoint nameAt(const TimePane* p, const QString& name) {
    for (const TimePane::Label& l : p->labels()) {
      if (l.text == name) return l.rect.center();
    }
    ADD_FAILURE() << "no label " << name.toStdString();
    return {};
  }
  static QPoint at(const TimePane* p, double step) {
    return {static_cast<int>(p->axis().xOf(step)), p->plotRect().center().y()};
  }
  QModelIndex inspected(const QString& name) {
    const InspectorModel& m = *window.inspector();
    for (int r = 0; r < m.rowCount(); ++r) {
      if (m.index(r, 0).data().toString() == name) return m.index(r, 1);
    }
    ADD_FAILURE() << "no row " << name.toStdString();
    return {};
  }
  MainWindow window{false};
};

TEST_F(ExploreTest, OneKeySwitchesEveryPaneToSimulatedTimeAndBack) {
  ViewState* s = window.state();
  TimePane* heat = pane("heatmap");
  heat->setFocus();
  s->setWindow({100, 200}, ViewState::Move::kJump);
  QTest::keyClick(heat, Qt::Key_T);
  ASSERT_TRUE(s->timeAxis());
  const auto& steps = s->run()->data().steps;
  const auto start = [&](std::size_t i) { return static_cast<double>(steps[i].start_ps); };
  for (TimePane* p : window.panes()->panes()) {
    if (p->id() == QLatin1String("minimap")) continue;
    const TimeAxis a = p->axis();
    const double perPs = p->plotRect().width() / (start(200) - start(100));
    EXPECT_NEAR(a.xOf(150) - a.xOf(100), (start(150) - start(100)) * perPs, 1e-6)
        << p->id().toStdString();
  }
  // The mouse still finds the step that is drawn there.
  QTest::mouseMove(heat, at(heat, 137.5));
  EXPECT_EQ(s->cursor(), 137U);
  window.grab();
  bool unit = false;
  for (const TimePane::Label& l : pane("axis")->labels()) {
    unit = unit || l.text.endsWith(QStringLiteral(" ms")) || l.text.endsWith(QStringLiteral(" s"));
  }
  EXPECT_TRUE(unit);
  QTest::keyClick(heat, Qt::Key_T);
  EXPECT_FALSE(s->timeAxis());
  EXPECT_EQ(s->window(), (TimeWindow{100, 200}));
}

TEST_F(ExploreTest, TheWheelOnAnAxisOfTimeZoomsAtTheMouse) {
  ViewState* s = window.state();
  s->setTimeAxis(true);
  TimePane* p = pane("imbalance");
  const QPoint mouse = at(p, 120.5);
  const double before = p->axis().tOf(mouse.x());
  QWheelEvent wheel(mouse, p->mapToGlobal(mouse), {}, QPoint(0, 240), Qt::NoButton, {},
                    Qt::NoScrollPhase, false);
  QApplication::sendEvent(p, &wheel);
  EXPECT_LT(s->window().length(), 300);
  EXPECT_NEAR(p->axis().tOf(mouse.x()), before, 1e-6);
}

// On an axis of time every replica's lane shows its own steps, also where those of the other one
// began later; on an axis of steps the other lanes are empty.
TEST_F(ExploreTest, OverlappingStepsOfReplicasHaveLanesOfTheirOwn) {
  open(stored(twoReplicas(), "replicas.h5"));
  ViewState* s = window.state();
  auto* timeline = pane<TimelinePane>("timeline");
  const auto lanePixels = [&](std::size_t gpu) {
    const QImage image = timeline->grab().toImage();
    const QRect plot = timeline->plotRect();
    const int y =
        plot.top() + static_cast<int>((static_cast<double>(gpu) + 0.5) * plot.height() / 8);
    int busy = 0;
    for (int x = plot.left(); x <= plot.right(); ++x) {
      busy += image.pixelColor(x, y) != s->theme().base ? 1 : 0;
    }
    return busy / static_cast<double>(plot.width());
  };
  const double stepsA = lanePixels(0);
  s->setTimeAxis(true);
  QApplication::processEvents();
  const double timeA = lanePixels(0);
  const double timeB = lanePixels(5);
  // Replica 0 is always busy, replica 1 two thirds of the time (it waits half a step after each).
  EXPECT_LT(stepsA, 0.75);
  EXPECT_GT(timeA, 0.97);
  EXPECT_NEAR(timeB, 0.67, 0.08);
  bool named = false;
  for (const TimePane::Label& l : timeline->labels()) {
    named = named || l.text == QStringLiteral("R1 GPU 4");
  }
  EXPECT_TRUE(named);
  // Step times are a line per replica.
  EXPECT_EQ(pane<StepTimePane>("steptime")->replicas(), 2U);
  nameAt(pane("steptime"), QStringLiteral("replica 1"));
}

TEST_F(ExploreTest, DeepZoomShowsPhasesTheStragglerAndWhereExchangesEnd) {
  run::RunData data = demoRun();
  // As the simulator records it: the chain of the slowest step.
  const run::StepScalars& slow = data.steps[200];
  std::int64_t from = slow.start_ps;
  for (std::size_t p = 0; p < run::kPhases; ++p) {
    if (slow.phase_ps[p] == 0) continue;
    run::CriticalEntry e;
    e.step = 200;
    e.phase = static_cast<run::Phase>(p);
    e.gpu = slow.straggler_gpu;
    e.start_ps = from;
    e.duration_ps = slow.phase_ps[p];
    from += e.duration_ps;
    data.critical_path.push_back(e);
  }
  const std::size_t pieces = data.critical_path.size();
  open(stored(std::move(data)));
  ViewState* s = window.state();
  auto* timeline = pane<TimelinePane>("timeline");
  timeline->grab();
  EXPECT_EQ(timeline->drawn().wideSteps, 0U) << "400 steps are shares";
  s->setWindow({195, 215}, ViewState::Move::kJump);
  timeline->grab();
  EXPECT_GE(timeline->drawn().wideSteps, 20U);
  EXPECT_GE(timeline->drawn().outlines, 20U);
  EXPECT_EQ(timeline->drawn().criticalPieces, pieces);
  EXPECT_EQ(timeline->drawn().arrows, 0U);
  s->setWindow({198, 202}, ViewState::Move::kJump);
  timeline->grab();
  EXPECT_GT(timeline->drawn().arrows, 0U);
  // The same on an axis of time.
  s->setTimeAxis(true);
  timeline->grab();
  EXPECT_GT(timeline->drawn().arrows, 0U);
  EXPECT_EQ(timeline->drawn().criticalPieces, pieces);
  // The picture has the phases in turn: in the lane of a GPU that is not outlined the colour is
  // that of the phase that holds the time.
  const std::size_t gpu = s->run()->data().steps[200].straggler_gpu == 2 ? 3 : 2;
  const std::int64_t* phases = s->run()->gpuPhases(200) + gpu * run::kPhases;
  const QImage image = timeline->grab().toImage();
  const QRect plot = timeline->plotRect();
  const auto& step = s->run()->data().steps[200];
  std::int64_t done = 0;
  for (std::size_t p = 0; p < run::kPhases; ++p) {
    const double middle =
        static_cast<double>(step.start_ps + done) + 0.5 * static_cast<double>(phases[p]);
    done += phases[p];
    const double x = timeline->axis().xOfPs(middle);
    if (static_cast<double>(phases[p]) * timeline->axis().pixelsPerPs() < 6) continue;
    const int y =
        plot.top() + static_cast<int>((static_cast<double>(gpu) + 0.75) * plot.height() / 8);
    // An arrow of the last GPU may cross one of these pixels.
    bool found = false;
    for (int dx = -2; dx <= 2; ++dx) {
      found = found || image.pixelColor(static_cast<int>(x) + dx, y) == s->theme().phases[p];
    }
    EXPECT_TRUE(found) << run::kPhaseNames[p];
  }
}

TEST_F(ExploreTest, AClickOnAPhaseChoosesTheGpuAndTheInspectorHasItsPhases) {
  auto* timeline = pane<TimelinePane>("timeline");
  QSignalSpy spy(window.state(), &ViewState::gpuChanged);
  const QRect plot = timeline->plotRect();
  const QPoint where(at(timeline, 100.5).x(),
                     plot.top() + static_cast<int>(5.5 * plot.height() / 8));
  QTest::mouseClick(timeline, Qt::LeftButton, {}, where);
  EXPECT_EQ(spy.count(), 1);
  EXPECT_EQ(window.state()->gpu(), 5U);
  EXPECT_EQ(window.state()->cursor(), 100U);
  const auto phase = static_cast<std::size_t>(run::Phase::kExpert);
  const std::int64_t ps = window.state()->run()->gpuPhases(100)[5 * run::kPhases + phase];
  EXPECT_TRUE(inspected(QStringLiteral("GPU 5 expert"))
                  .data()
                  .toString()
                  .startsWith(qs(timeText(static_cast<double>(ps)))));
}

TEST_F(ExploreTest, LatencyOfRequestsAppearsByItselfWithTheSlo) {
  EXPECT_FALSE(pane("latency")->isVisible());
  open(stored(twoReplicas(), "serving.h5"));
  auto* latency = pane<LatencyPane>("latency");
  ASSERT_TRUE(latency->isVisible());
  window.resize(1680, 1600);
  QApplication::processEvents();
  latency->grab();
  nameAt(latency, QStringLiteral("TTFT SLO 5 ms"));
  nameAt(latency, QStringLiteral("TPOT SLO 1 ms"));
  std::size_t first = 0;
  std::size_t ended = 0;
  for (const LatencySeries::Bin& b : latency->bins()) {
    first += b.first;
    ended += b.ended;
  }
  EXPECT_EQ(first, 95U);
  EXPECT_EQ(ended, 95U);
  QString said;
  QObject::connect(latency, &TimePane::hovered, [&](const QString& t) { said = t; });
  QTest::mouseMove(latency, at(latency, 50.5));
  EXPECT_TRUE(said.contains(QStringLiteral("TTFT p50"))) << said.toStdString();
  // A run without arriving requests hides it again, unless a person has chosen.
  open(stored(demoRun(30)));
  EXPECT_FALSE(latency->isVisible());
  window.findChild<QAction*>(QStringLiteral("pane:latency"))->trigger();
  open(stored(demoRun(31)));
  EXPECT_TRUE(latency->isVisible());
  latency->grab();
  EXPECT_TRUE(latency->bins().empty());
}

TEST_F(ExploreTest, RowsOfTheHeatMapZoomAndSort) {
  auto* heat = pane<HeatPane>("heatmap");
  ASSERT_EQ(heat->rows(), 64U);
  const int y = heat->yOfExpert(19);
  const QPoint mouse(at(heat, 100.5).x(), y);
  const TimeWindow before = window.state()->window();
  const auto wheel = [&](int delta) {
    QWheelEvent e(mouse, heat->mapToGlobal(mouse), {}, QPoint(0, delta), Qt::NoButton,
                  Qt::ControlModifier | Qt::ShiftModifier, Qt::NoScrollPhase, false);
    QApplication::sendEvent(heat, &e);
  };
  wheel(480);
  EXPECT_LT(heat->rows(), 40U);
  EXPECT_EQ(window.state()->window(), before) << "the steps stay";
  EXPECT_EQ(heat->expertAt(y), 19U) << "the row under the mouse stays";
  heat->grab();
  QTest::mouseClick(heat, Qt::LeftButton, {}, mouse);
  EXPECT_EQ(window.state()->expert(), 19U);
  heat->setFocus();
  QTest::keyClick(heat, Qt::Key_R);
  EXPECT_EQ(heat->rows(), 64U);
  wheel(480);
  wheel(-960);
  EXPECT_EQ(heat->rows(), 64U);
  window.state()->setRowOrder(RowOrder::kLoad);
  // The first row is the expert that ran most.
  std::vector<std::uint64_t> load(64, 0);
  const auto& kept = window.state()->run()->data().totals.expert_kept;
  for (std::size_t i = 0; i < kept.size(); ++i) load[i % 64] += kept[i];
  const auto most =
      static_cast<std::uint32_t>(std::max_element(load.begin(), load.end()) - load.begin());
  EXPECT_EQ(heat->expertAt(heat->plotRect().top() + 1), most);
  window.state()->setRowOrder(RowOrder::kId);
  EXPECT_EQ(heat->expertAt(heat->plotRect().bottom() - 1), 63U);
}

TEST_F(ExploreTest, ReplicasOfAnExpertAreMarkedAndCounted) {
  run::RunData data = demoRun(40);
  data.inventory.replicas = 2;
  std::vector<std::uint32_t> two;
  for (std::size_t i = 0; i < data.inventory.placement.size(); ++i) {
    two.push_back(data.inventory.placement[i]);
    two.push_back(i % 64 == 19 ? 7 : run::kNone);
  }
  data.inventory.placement = two;
  open(stored(std::move(data)));
  const QAbstractItemModel& experts = *window.expertsTable()->model();
  for (int r = 0; r < 64; ++r) {
    const bool replicated = experts.index(r, 0).data(kIdRole).toUInt() == 19;
    EXPECT_EQ(experts.index(r, ExpertsModel::kCopies).data().toString(),
              replicated ? QStringLiteral("2") : QStringLiteral("1"));
  }
  auto* heat = pane<HeatPane>("heatmap");
  const QImage image = heat->grab().toImage();
  const int x = heat->plotRect().right() + 5;
  EXPECT_NE(image.pixelColor(x, heat->yOfExpert(19)), window.state()->theme().window);
  EXPECT_EQ(image.pixelColor(x, heat->yOfExpert(30)), window.state()->theme().window);
}

TEST_F(ExploreTest, AClickOnANameInTheLegendHidesTheLine) {
  auto* p = pane<LinePane>("imbalance");
  const QImage before = p->grab().toImage();
  const QPoint name = nameAt(p, QStringLiteral("largest layer"));
  QTest::mouseClick(p, Qt::LeftButton, {}, name);
  EXPECT_TRUE(p->hidden(QStringLiteral("largest layer")));
  const QColor line = window.state()->theme().series[1];
  const auto pixels = [&](const QImage& image) {
    int n = 0;
    const QRect plot = p->plotRect();
    for (int x = plot.left(); x <= plot.right(); ++x) {
      for (int y = plot.top(); y <= plot.bottom(); ++y) n += image.pixelColor(x, y) == line ? 1 : 0;
    }
    return n;
  };
  EXPECT_GT(pixels(before), 0);
  EXPECT_EQ(pixels(p->grab().toImage()), 0);
  QTest::mouseClick(p, Qt::LeftButton, {}, name);
  EXPECT_FALSE(p->hidden(QStringLiteral("largest layer")));
}

TEST_F(ExploreTest, ARightClickAddsAnotherNumberAsAPane) {
  auto* p = pane<LinePane>("imbalance");
  QTest::mouseClick(p, Qt::RightButton, {}, p->plotRect().center());
  auto* menu = window.findChild<QMenu*>(QStringLiteral("metrics"));
  ASSERT_NE(menu, nullptr);
  EXPECT_FALSE(window.state()->selection());
  for (QAction* a : menu->actions()) {
    if (a->text() == QLatin1String("rerouted")) a->trigger();
  }
  menu->close();
  QApplication::processEvents();
  auto* metric = pane<MetricPane>("metric");
  EXPECT_TRUE(metric->isVisible());
  EXPECT_EQ(metric->metric(), run::StepSeries::kRerouted);
  QString said;
  QObject::connect(metric, &TimePane::hovered, [&](const QString& t) { said = t; });
  QTest::mouseMove(metric, at(metric, 200.5));
  EXPECT_EQ(said, QStringLiteral("step 200: rerouted %1")
                      .arg(count(window.state()->run()->data().steps[200].rerouted)));
}

TEST_F(ExploreTest, ALinkOfTheTopologyShowsItsLineAndItsEvents) {
  run::RunData data = demoRun(60);
  const std::uint32_t link = 7;
  data.events.push_back({data.steps[20].start_ps, 20, run::EventKind::kLinkSaturated, run::kNone,
                         run::kNone, run::kNone, link, 0.95, "95 % of capacity"});
  open(stored(std::move(data)));
  const std::string name = window.state()->run()->data().inventory.links[link].name;
  QTest::mouseClick(window.topology(), Qt::LeftButton, {}, window.topology()->pointOnLink(link));
  ASSERT_NE(window.state()->link(), run::kNone);
  // The busier direction of the line that was hit; the other one is as good for the test.
  const std::uint32_t chosen = window.state()->link();
  EXPECT_TRUE(chosen == link || chosen == link - 1) << chosen;
  window.state()->setLink(link);
  EXPECT_EQ(window.eventsTable()->model()->rowCount(), 1);
  pane("links")->grab();
  nameAt(pane("links"), qs(name));
  pane("heatmap")->setFocus();
  QTest::keyClick(pane("heatmap"), Qt::Key_Escape);
  EXPECT_EQ(window.state()->link(), run::kNone);
  EXPECT_GT(window.eventsTable()->model()->rowCount(), 1);
}

TEST_F(ExploreTest, ValuesOfTheInspectorAreLinks) {
  window.state()->setCursor(200);
  QApplication::processEvents();
  const auto& step = window.state()->run()->data().steps[200];
  const QModelIndex straggler = inspected(QStringLiteral("straggler"));
  EXPECT_TRUE(straggler.data(Qt::FontRole).value<QFont>().underline());
  window.follow(straggler.data(kTargetRole).toString());
  EXPECT_EQ(window.state()->gpu(), step.straggler_gpu);
  window.follow(inspected(QStringLiteral("busiest link")).data(kTargetRole).toString());
  EXPECT_NE(window.state()->link(), run::kNone);
  window.follow(inspected(QStringLiteral("gate entropy")).data(kTargetRole).toString());
  EXPECT_TRUE(pane("entropy")->isVisible());
  window.follow(inspected(QStringLiteral("over capacity")).data(kTargetRole).toString());
  QApplication::processEvents();
  EXPECT_TRUE(window.capacity()->isVisible());
  // Every link leads somewhere.
  const InspectorModel& m = *window.inspector();
  for (int r = 0; r < m.rowCount(); ++r) {
    const QString target = m.index(r, 1).data(kTargetRole).toString();
    if (target.startsWith(QStringLiteral("pane:"))) {
      EXPECT_NE(window.panes()->pane(target.mid(5)), nullptr) << target.toStdString();
    } else if (target.startsWith(QStringLiteral("dock:"))) {
      EXPECT_NE(window.dock(target.mid(5)), nullptr) << target.toStdString();
    }
  }
}

TEST_F(ExploreTest, EventsAreFilteredToTheSelectedSteps) {
  window.state()->setSelection(StepRange{180, 210});
  auto* filter = dynamic_cast<EventsFilter*>(window.eventsTable()->model());
  ASSERT_NE(filter, nullptr);
  const QAbstractItemModelTester tester(filter,
                                        QAbstractItemModelTester::FailureReportingMode::Fatal);
  const int all = filter->rowCount();
  filter->setRange(StepRange{180, 210});
  EXPECT_LT(filter->rowCount(), all);
  EXPECT_GT(filter->rowCount(), 0);
  for (int r = 0; r < filter->rowCount(); ++r) {
    const double step = filter->index(r, EventsModel::kStep).data(kSortRole).toDouble();
    EXPECT_GE(step, 180);
    EXPECT_LT(step, 210);
  }
  pane("heatmap")->setFocus();
  QTest::keyClick(pane("heatmap"), Qt::Key_Escape);
  EXPECT_EQ(filter->rowCount(), all);
}

// 200,000 events: the work is counted, as its time depends on the machine.
TEST_F(ExploreTest, ManyEventsAreNotSortedOrWalkedPerLetterOrZoom) {
  constexpr std::size_t kEvents = 200'000;
  run::RunData data = testing::demoRun(400);
  data.events.clear();
  for (std::size_t i = 0; i < kEvents; ++i) {
    const auto step = static_cast<std::uint32_t>(i / 500);
    const auto gpu = static_cast<std::uint32_t>(i % 8);
    data.events.push_back({data.steps[step].start_ps, step, run::EventKind::kOverflow, 1, gpu,
                           static_cast<std::uint32_t>(i % 64), run::kNone, 1,
                           i % 2 == 0 ? "even Tokens lost" : "odd tokens moved"});
  }
  auto* filter = dynamic_cast<EventsFilter*>(window.eventsTable()->model());
  ASSERT_NE(filter, nullptr);
  const std::uint64_t sorts = filter->sorts();
  std::uint64_t compared = filter->eventsCompared();
  /// Events compared since the last call.
  const auto looked = [&] {
    const std::uint64_t before = std::exchange(compared, filter->eventsCompared());
    return compared - before;
  };
  window.showRun(std::make_shared<const RunStore>(
      std::make_shared<const run::RunData>(std::move(data)), "many.h5"));
  QApplication::processEvents();
  EXPECT_EQ(filter->rowCount(), static_cast<int>(kEvents));
  EXPECT_EQ(looked(), 0U);

  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  find->setFocus();
  // "m" is in "moved" alone, so the letters after it look at half of the events.
  QTest::keyClicks(find, QStringLiteral("m"));
  EXPECT_EQ(filter->rowCount(), static_cast<int>(kEvents / 2));
  EXPECT_EQ(looked(), kEvents);
  QTest::keyClicks(find, QStringLiteral("oved"));
  EXPECT_EQ(filter->rowCount(), static_cast<int>(kEvents / 2));
  EXPECT_EQ(looked(), 4 * kEvents / 2);
  QTest::keyClicks(find, QStringLiteral(" "));  // trimmed: the same text
  EXPECT_EQ(looked(), 0U);
  find->setText(QStringLiteral("LOST"));
  EXPECT_EQ(filter->rowCount(), static_cast<int>(kEvents / 2));
  EXPECT_EQ(looked(), kEvents);
  EXPECT_EQ(filter->sorts(), sorts);

  // A click on a header sorts once; letters after it keep the order and sort nothing.
  window.eventsTable()->sortByColumn(EventsModel::kGpu, Qt::DescendingOrder);
  EXPECT_EQ(filter->sorts(), sorts + 1);
  EXPECT_EQ(filter->rowCount(), static_cast<int>(kEvents / 2));
  EXPECT_EQ(filter->index(0, EventsModel::kGpu).data(kSortRole).toDouble(), 6);
  find->setText(QStringLiteral("odd tok"));
  EXPECT_EQ(filter->rowCount(), static_cast<int>(kEvents / 2));
  EXPECT_EQ(filter->index(0, EventsModel::kGpu).data(kSortRole).toDouble(), 7);
  EXPECT_EQ(filter->index(0, EventsModel::kStep).data(kSortRole).toDouble(), 0);
  EXPECT_EQ(filter->index(filter->rowCount() - 1, EventsModel::kGpu).data(kSortRole).toDouble(), 1);
  EXPECT_EQ(filter->sorts(), sorts + 1);

  auto* map = static_cast<MinimapPane*>(pane("minimap"));
  map->grab();
  const std::uint64_t placed = map->eventsPlaced();
  EXPECT_GE(placed, kEvents);
  for (int i = 0; i < 8; ++i) {
    window.state()->zoom(200, 0.8);
    map->grab();
  }
  EXPECT_EQ(map->eventsPlaced(), placed);
  EXPECT_GT(map->moreInside(), 0U);
  window.state()->setTimeAxis(true);
  map->grab();
  EXPECT_EQ(map->eventsPlaced(), placed + kEvents);
}

// Each column orders by what it shows, both ways, and the event that is chosen stays chosen.
TEST_F(ExploreTest, EveryColumnOfTheEventsSorts) {
  TableView* table = window.eventsTable();
  const QAbstractItemModel& events = *table->model();
  const QAbstractItemModelTester tester(table->model(),
                                        QAbstractItemModelTester::FailureReportingMode::Fatal);
  table->setCurrentIndex(events.index(3, 0));
  const int chosen = table->currentIndex().data(kIdRole).toInt();
  for (int c = 0; c < events.columnCount(); ++c) {
    for (const Qt::SortOrder order : {Qt::DescendingOrder, Qt::AscendingOrder}) {
      table->sortByColumn(c, order);
      EXPECT_EQ(table->currentIndex().data(kIdRole).toInt(), chosen) << c;
      for (int r = 1; r < events.rowCount(); ++r) {
        QVariant a = events.index(r - 1, c).data(kSortRole);
        QVariant b = events.index(r, c).data(kSortRole);
        if (order == Qt::DescendingOrder) a.swap(b);
        if (a.typeId() == QMetaType::Double) {
          EXPECT_LE(a.toDouble(), b.toDouble()) << c;
        } else if (a.toString() != QStringLiteral("–")) {
          EXPECT_LE(a.toString(), b.toString()) << c;
        }
      }
    }
  }
  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  find->setText(table->currentIndex().siblingAtColumn(EventsModel::kKind).data().toString());
  EXPECT_EQ(table->currentIndex().data(kIdRole).toInt(), chosen);
  // A text without a digit is not sought in steps and times; one that goes on with a digit is, so
  // that "1.2 ms" finds more than "ms" left.
  find->clear();
  const QString time = events.index(events.rowCount() / 2, EventsModel::kTime).data().toString();
  const QString unit = time.section(' ', -1);
  ASSERT_NE(unit, time);
  find->setText(unit);
  EXPECT_EQ(events.rowCount(), 0) << unit.toStdString();
  find->setText(time);
  EXPECT_GT(events.rowCount(), 0) << time.toStdString();
}

// Keys that stand in no other test.
TEST_F(ExploreTest, GoToFindHelpAndBackHaveTheirKeys) {
  QWidget* heat = pane("heatmap");
  heat->setFocus();
  QTest::keyClick(heat, Qt::Key_G, Qt::ControlModifier);
  auto* goTo = window.findChild<QLineEdit*>(QStringLiteral("goto"));
  ASSERT_TRUE(goTo->hasFocus());
  QTest::keyClicks(goTo, QStringLiteral("200..209"));
  QTest::keyClick(goTo, Qt::Key_Return);
  const TimeWindow there = window.state()->window();
  EXPECT_NEAR(there.first, 200, 1e-9);
  EXPECT_NEAR(there.end, 210, 1e-9);

  heat->setFocus();
  QTest::keyClick(heat, Qt::Key_Left, Qt::AltModifier);
  EXPECT_NEAR(window.state()->window().first, 0, 1e-9);
  EXPECT_NEAR(window.state()->window().end, static_cast<double>(window.state()->steps()), 1e-9);

  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  ASSERT_FALSE(find->hasFocus());
  QTest::keyClick(heat, Qt::Key_Slash);
  EXPECT_TRUE(find->hasFocus());
  EXPECT_TRUE(find->text().isEmpty()) << "the key is no letter of the text";

  heat->setFocus();
  EXPECT_EQ(window.findChild<QDialog*>(QStringLiteral("keys")), nullptr);
  // As the keyboard map gives it; real_window_test.sh types it with Shift.
  QTest::keyClick(heat, Qt::Key_Question);
  auto* keys = window.findChild<QDialog*>(QStringLiteral("keys"));
  ASSERT_NE(keys, nullptr);
  EXPECT_TRUE(keys->isVisible());
}

// The suffix of the kind that is chosen is part of the name before the dialog looks whether the
// file is there.
TEST(SaveName, HasTheSuffixOfTheKind) {
  const QStringList kinds = {QStringLiteral("Picture (*.png)"),
                             QStringLiteral("Vector picture (*.svg)")};
  EXPECT_EQ(suffixOf(kinds[1]), QStringLiteral("svg"));
  EXPECT_EQ(suffixOf(QStringLiteral("Everything (*)")), QString());
  QFileDialog dialog;
  prepareToSave(dialog, {}, kinds);
  EXPECT_EQ(dialog.acceptMode(), QFileDialog::AcceptSave);
  EXPECT_FALSE(dialog.testOption(QFileDialog::DontConfirmOverwrite));
  const auto chosen = [&](const char* name) {
    dialog.selectFile(QString::fromLatin1(name));
    return QFileInfo(dialog.selectedFiles().value(0)).fileName();
  };
  EXPECT_EQ(chosen("fig"), QStringLiteral("fig.png"));
  EXPECT_EQ(chosen("fig.svg"), QStringLiteral("fig.svg"));
  emit dialog.filterSelected(kinds[1]);
  EXPECT_EQ(chosen("fig"), QStringLiteral("fig.svg"));

  QFileDialog scenario;
  prepareToSave(scenario, QDir::current().filePath(QStringLiteral("old.toml")),
                {QStringLiteral("Scenarios (*.toml)")});
  EXPECT_EQ(QFileInfo(scenario.selectedFiles().value(0)).fileName(), QStringLiteral("old.toml"));
  scenario.selectFile(QStringLiteral("mine"));
  EXPECT_EQ(QFileInfo(scenario.selectedFiles().value(0)).fileName(), QStringLiteral("mine.toml"));
}

// "there" is typed, there.png exists: the question is about that file, and "No" keeps the dialog.
TEST(SaveName, AFileWithTheAddedSuffixIsNotReplacedUnasked) {
  testing::writeText("there.png", "kept");
  QFileDialog dialog;
  prepareToSave(dialog, QDir::current().filePath(QStringLiteral("there")),
                {QStringLiteral("Picture (*.png)")});
  QString question;
  QTimer answer;
  QObject::connect(&answer, &QTimer::timeout, [&] {
    auto* box = qobject_cast<QMessageBox*>(QApplication::activeModalWidget());
    if (box == nullptr) return;
    question = box->text();
    box->button(QMessageBox::No)->click();
  });
  answer.start(10);
  QSignalSpy accepted(&dialog, &QDialog::accepted);
  QMetaObject::invokeMethod(&dialog, "accept");
  EXPECT_TRUE(question.contains(QStringLiteral("there.png"))) << question.toStdString();
  EXPECT_EQ(accepted.count(), 0);
}

// What narrows the view stands as chips in the status bar; a click removes one and leaves the
// others.
TEST_F(ExploreTest, ChipsNameTheFiltersAndRemoveThem) {
  const auto chip = [&](const QString& text) -> QPushButton* {
    for (auto* b : window.findChildren<QPushButton*>()) {
      if (b->isVisible() && b->text() == text) return b;
    }
    return nullptr;
  };
  window.state()->setLayer(2);
  window.state()->setGpu(5);
  QApplication::processEvents();
  ASSERT_NE(chip(QStringLiteral("layer 3  ×")), nullptr);
  ASSERT_NE(chip(QStringLiteral("GPU 5  ×")), nullptr);
  QTest::mouseClick(chip(QStringLiteral("layer 3  ×")), Qt::LeftButton);
  EXPECT_EQ(window.state()->layer(), kAllLayers);
  EXPECT_EQ(window.state()->gpu(), 5U);
  QTest::mouseClick(chip(QStringLiteral("GPU 5  ×")), Qt::LeftButton);
  EXPECT_EQ(window.state()->gpu(), run::kNone);
  EXPECT_EQ(chip(QStringLiteral("GPU 5  ×")), nullptr);
}

TEST_F(ExploreTest, ComparePerTokenDividesTheNumbersOfBoth) {
  window.compareWith(stored(demoRun(200), "other.h5"));
  const QAbstractItemModel& model = *window.compare()->table()->model();
  const auto cell = [&](const QString& name, int column) {
    for (int r = 0; r < model.rowCount(); ++r) {
      if (model.index(r, CompareModel::kName).data().toString() == name) {
        return model.index(r, column).data().toString();
      }
    }
    return QStringLiteral("no such row");
  };
  const double span = cell(QStringLiteral("span"), CompareModel::kA).toDouble();
  const double tokens = cell(QStringLiteral("tokens"), CompareModel::kA).toDouble();
  window.compare()->perTokenBox()->setChecked(true);
  EXPECT_EQ(cell(QStringLiteral("span"), CompareModel::kUnit), QStringLiteral("ms/token"));
  EXPECT_NEAR(cell(QStringLiteral("span"), CompareModel::kA).toDouble(), span / tokens,
              span / tokens * 1e-4);
  window.compare()->perTokenBox()->setChecked(false);
  EXPECT_NEAR(cell(QStringLiteral("span"), CompareModel::kA).toDouble(), span, 1e-9);
}

TEST_F(ExploreTest, TimesOfExpertsAreAHistogramInTheHealthDock) {
  EXPECT_TRUE(window.health()->expertTimes()->caption().contains(QStringLiteral("no data")));
  run::RunData data = demoRun(40);
  data.totals.expert_time_ps.assign(4 * 64, 32'000'000);  // 1 us in each of 32 measured steps
  data.totals.expert_time_ps[2 * 64 + 19] = 320'000'000;
  open(stored(std::move(data)));
  EXPECT_TRUE(window.health()->expertTimes()->caption().contains(QStringLiteral("n = 256")))
      << window.health()->expertTimes()->caption().toStdString();
  EXPECT_TRUE(window.health()->slowest().startsWith(QStringLiteral("Slowest: e19 of layer 3, 10")))
      << window.health()->slowest().toStdString();
  const auto& kept = window.state()->run()->data().totals.expert_kept;
  const double minutes = [&] {
    for (const run::Metric& m : window.state()->run()->data().metrics) {
      if (m.name == "span") return m.value / 60000;
    }
    return 0.0;
  }();
  const QString heat = count(static_cast<std::uint64_t>(
      static_cast<double>(*std::max_element(kept.begin(), kept.end())) / minutes));
  EXPECT_TRUE(window.health()->slowest().contains(heat + QStringLiteral(" tokens per")))
      << window.health()->slowest().toStdString();
  window.state()->setLayer(0);
  EXPECT_TRUE(window.health()->expertTimes()->caption().contains(QStringLiteral("n = 64")));
  EXPECT_TRUE(window.health()->slowest().contains(QStringLiteral("layer 1")));
}

// More steps than pixels: levels of detail are drawn, and a single high step does not vanish.
TEST_F(ExploreTest, EntropyOfALongRunIsDrawnAtEveryZoom) {
  const run::RunData data = demoRun(1);
  run::RunMeta meta = data.meta;
  meta.detail = run::Detail::kSteps;
  run::RunData longRun = run::make_run(meta, data.inventory);
  run::StepRecord step = testing::demoStep(data.inventory, 30);
  const std::int64_t duration = step.scalars.end_ps - step.scalars.start_ps;
  for (std::uint32_t s = 0; s < 6000; ++s) {
    step.scalars.start_ps = s * duration;
    step.scalars.end_ps = step.scalars.start_ps + duration;
    step.scalars.gate_entropy = s == 4000 ? 7.5 : 5;
    run::append_step(longRun, step);
  }
  ViewState state;
  EntropyPane pane(&state);
  pane.resize(500, 120);  // 15 steps in a pixel
  pane.setMargins(80, 20);
  state.setRun(stored(std::move(longRun), "long.h5"));
  const QImage image = pane.grab().toImage();
  const QRect plot = pane.plotRect();
  const auto x = static_cast<int>(pane.axis().xOf(4000.5));
  const int y = plot.top() + plot.height() / 8;
  const QColor base = state.theme().base;
  bool peak = false;
  for (int dx = -2; dx <= 2; ++dx) peak = peak || image.pixelColor(x + dx, y) != base;
  EXPECT_TRUE(peak);
  EXPECT_EQ(image.pixelColor(x - 50, y), base);
}

// Beyond the steps that are read one by one, levels of detail are made in the background; the
// picture has the same heights where a pixel is one bin.
TEST_F(ExploreTest, MemoryOfALongRunIsReadInTheBackground) {
  run::write_run("memory.h5", demoRun(320));
  const auto file = std::make_shared<const RunStore>("memory.h5");
  ViewState state;
  MemoryPane pane(&state);
  pane.setReadSteps(100);
  pane.setMargins(80, 20);
  pane.resize(40 + 100, 120);  // 40 pixels of 8 steps
  state.setRun(file);
  ASSERT_EQ(pane.plotRect().width(), 40);
  pane.grab();
  EXPECT_TRUE(pane.reading());
  ASSERT_TRUE(wait([&] { return !pane.reading(); }, 20000));
  const QImage image = pane.grab().toImage();
  for (const TimePane::Label& l : pane.labels()) {
    EXPECT_FALSE(l.text.contains(QStringLiteral("reading"))) << l.text.toStdString();
  }
  pane.setReadSteps(1e9);
  pane.invalidate();
  EXPECT_EQ(pane.grab().toImage(), image);
  // A file that is another run by now is named; the pane does not show the wrong numbers.
  pane.setReadSteps(100);
  state.setRun(nullptr);
  state.setRun(file);
  run::write_run("memory.h5", demoRun(300));
  pane.grab();
  ASSERT_TRUE(wait([&] { return !pane.reading(); }, 20000));
  pane.grab();
  bool said = false;
  for (const TimePane::Label& l : pane.labels()) {
    said = said || l.text.contains(QStringLiteral("another run"));
  }
  EXPECT_TRUE(said);
}

// Of the same scenario, with as many steps and GPUs: only the content tells the files apart.
TEST_F(ExploreTest, AFileReplacedByAnotherOfTheSameScenarioIsNamedAndReadAgain) {
  run::RunData first = demoRun(320);
  run::write_run("twin.h5", first);
  run::RunData second = demoRun(320);
  for (std::uint64_t& bytes : second.gpus.memory_peak) bytes += 1;
  window.openFiles({QStringLiteral("twin.h5")});
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 20000));
  const auto old = window.state()->runPointer();
  EXPECT_FALSE(old->replacedOnDisk());
  QEvent activate(QEvent::WindowActivate);
  QApplication::sendEvent(&window, &activate);
  EXPECT_EQ(window.messageBar()->text(), QString());
  ViewState state;
  MemoryPane pane(&state);
  pane.setReadSteps(100);
  pane.setMargins(80, 20);
  pane.resize(140, 120);
  state.setRun(old);
  run::write_run("twin.h5", second);
  EXPECT_TRUE(old->replacedOnDisk());
  pane.grab();
  ASSERT_TRUE(wait([&] { return !pane.reading(); }, 20000));
  pane.grab();
  bool said = false;
  for (const TimePane::Label& l : pane.labels()) {
    said = said || l.text.contains(QStringLiteral("another run"));
  }
  EXPECT_TRUE(said);
  QApplication::sendEvent(&window, &activate);
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("twin.h5 was written again")))
      << window.messageBar()->text().toStdString();
  pane.setFocus();
  window.state()->setWindow({40, 60}, ViewState::Move::kJump);
  window.state()->setCursor(50);
  window.state()->setSelection(StepRange{45, 55});
  window.state()->setScale(Scale::kTokens);
  QTest::keyClick(&window, Qt::Key_F5);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 20000));
  // The view is where it was.
  EXPECT_EQ(window.state()->window(), (TimeWindow{40, 60}));
  EXPECT_EQ(window.state()->cursor(), 50U);
  EXPECT_EQ(window.state()->selection(), (StepRange{45, 55}));
  EXPECT_EQ(window.state()->scale(), Scale::kTokens);
  EXPECT_NE(window.state()->runPointer(), old);
  EXPECT_NE(window.state()->run()->contentHash(), old->contentHash());
  EXPECT_FALSE(window.state()->run()->replacedOnDisk());
  EXPECT_EQ(window.messageBar()->text(), QString());
}

// All that were written again are named at once, B and the other seeds too, and read by one key.
TEST_F(ExploreTest, SeveralFilesWrittenAgainAreNamedAndReadTogether) {
  const auto write = [](const char* name, std::uint64_t seed, std::uint32_t steps) {
    run::RunData data = demoRun(steps);
    data.meta.seed = seed;
    run::write_run(name, data);
  };
  write("s1.h5", 1, 30);
  write("s2.h5", 2, 31);
  write("s3.h5", 3, 32);
  window.openFiles({QStringLiteral("s1.h5"), QStringLiteral("s2.h5"), QStringLiteral("s3.h5")});
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 20000));
  ASSERT_NE(window.state()->other(), nullptr);
  write("s2.h5", 2, 41);
  write("s3.h5", 3, 42);
  QEvent activate(QEvent::WindowActivate);
  QApplication::sendEvent(&window, &activate);
  EXPECT_TRUE(window.messageBar()->text().startsWith(QStringLiteral("s2.h5, s3.h5 were written")))
      << window.messageBar()->text().toStdString();
  // Told once.
  window.messageBar()->showMessage({});
  QApplication::sendEvent(&window, &activate);
  EXPECT_EQ(window.messageBar()->text(), QString());
  pane("heatmap")->setFocus();
  QTest::keyClick(&window, Qt::Key_F5);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 20000));
  EXPECT_EQ(window.state()->run()->name(), "s1.h5");
  EXPECT_EQ(window.state()->other()->name(), "s2.h5");
  EXPECT_EQ(window.state()->other()->steps(), 41U);
  EXPECT_TRUE(window.compare()->seedsText().contains(QStringLiteral("seeds of one scenario")))
      << window.compare()->seedsText().toStdString();
  write("s3.h5", 3, 43);
  QApplication::sendEvent(&window, &activate);
  EXPECT_TRUE(window.messageBar()->text().startsWith(QStringLiteral("s3.h5 was written again")))
      << window.messageBar()->text().toStdString();
}

// The old run stays when the new one cannot be read after it was opened.
TEST_F(ExploreTest, ARunWhosePagesCannotBeReadKeepsTheOldOne) {
  run::write_run("torn.h5", demoRun(300));
  const auto torn = std::make_shared<const RunStore>("torn.h5");
  const auto old = window.state()->runPointer();
  std::filesystem::resize_file("torn.h5", 600);
  QSignalSpy changed(window.state(), &ViewState::runChanged);
  EXPECT_THROW(window.state()->setRun(torn), InputError);
  EXPECT_EQ(window.state()->runPointer(), old);
  EXPECT_EQ(window.state()->steps(), 400U);
  EXPECT_EQ(changed.count(), 0);
}

TEST_F(ExploreTest, EscapeClearsALinkWhoseFilterIsGone) {
  window.state()->setLink(3);
  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  ASSERT_FALSE(find->text().isEmpty());
  find->clear();
  EXPECT_EQ(window.state()->link(), 3U) << "the line stays without its events";
  pane("heatmap")->setFocus();
  QTest::keyClick(pane("heatmap"), Qt::Key_Escape);
  EXPECT_EQ(window.state()->link(), run::kNone);
}

// Three GPUs in a lane of eight: the last lane holds two and is filled like the others.
TEST_F(ExploreTest, TheLastLaneIsFilledWhenItHoldsFewerGpus) {
  run::RunData data = demoRun(40);
  // Each GPU computes all the time.
  for (std::uint64_t s = 0; s < 40; ++s) {
    const std::int64_t whole = data.steps[s].end_ps - data.steps[s].start_ps;
    for (std::size_t g = 0; g < 8; ++g) {
      std::int64_t* phases = data.gpus.phase_ps.data() + (s * 8 + g) * run::kPhases;
      std::fill_n(phases, run::kPhases, 0);
      phases[1] = whole;
    }
  }
  ViewState state;
  TimelinePane pane(&state);
  pane.setMargins(80, 20);
  state.setRun(stored(std::move(data)));
  pane.resize(300, 60);
  for (int h = 60; h > 20 && pane.gpuAt(pane.plotRect().bottom()) != 6; --h) pane.resize(300, h);
  const QRect plot = pane.plotRect();
  ASSERT_EQ(pane.gpuAt(plot.bottom()), 6U) << "no height has lanes of three";
  ASSERT_EQ(pane.gpuAt(plot.top()), 0U);
  const QImage image = pane.grab().toImage();
  const QColor color = state.theme().phases[1];
  int filled = 0;
  int rows = 0;
  for (int y = plot.top(); y <= plot.bottom(); ++y) {
    if (pane.gpuAt(y) != 6) continue;
    ++rows;
    filled += image.pixelColor(plot.center().x(), y) == color ? 1 : 0;
  }
  EXPECT_GT(rows, 3);
  EXPECT_GE(filled, rows - 1) << "the lane's lower part is empty";
}

// More steps than pixels: the header says so, and the mouse over it shows the whole of it.
TEST_F(ExploreTest, HeadersSayHowManyPointsAreDrawn) {
  auto* p = pane("imbalance");
  window.resize(1280, 800);
  QApplication::processEvents();
  ViewState state;
  StepTimePane alone(&state);
  alone.setMargins(80, 20);
  alone.resize(80 + 20 + 200, 100);
  state.setRun(stored(demoRun()));
  const int pixels = alone.plotRect().width();
  ASSERT_LT(pixels, 400);
  EXPECT_TRUE(alone.headerText().endsWith(
      QStringLiteral("%1 points drawn, each of %2 steps").arg(pixels).arg(400.0 / pixels)))
      << alone.headerText().toStdString();
  state.setWindow({0, 50}, ViewState::Move::kJump);
  EXPECT_FALSE(alone.headerText().contains(QStringLiteral("points drawn")));
  // A run with requests says how many of them have the times.
  open(stored(twoReplicas(), "serving.h5"));
  EXPECT_TRUE(pane("latency")->headerText().contains(
      QStringLiteral("TTFT of 95 and TPOT of 95 of 95 requests")))
      << pane("latency")->headerText().toStdString();
  // Of a pane that is folded in a window this low it shows the same.
  for (TimePane* shown : {static_cast<TimePane*>(p), static_cast<TimePane*>(pane("latency"))}) {
    QTest::mouseMove(shown, QPoint(1, shown->height() - 1));
    QTest::mouseMove(shown, QPoint(60, 4));
    EXPECT_TRUE(window.hoverText().contains(shown->headerText()))
        << window.hoverText().toStdString() << " / " << shown->headerText().toStdString();
  }
}

TEST_F(ExploreTest, ThePaletteAndTheHelpFollowTheMenus) {
  QStringList names;
  for (const QAction* a : actionsInOrder(&window)) names << a->text().remove('&');
  EXPECT_EQ(names.first(), QStringLiteral("Open run…"));
  EXPECT_LT(names.indexOf(QStringLiteral("Zoom in")), names.indexOf(QStringLiteral("Run")));
  EXPECT_LT(names.indexOf(QStringLiteral("Run")), names.indexOf(QStringLiteral("Health")));
  EXPECT_EQ(names.count(QStringLiteral("Zoom in")), 1);
}

// A long text must not push the columns behind it out of the view.
TEST_F(ExploreTest, TablesKeepAllColumnsOnScreen) {
  run::RunData other = demoRun(300);
  other.meta.scenario_text += "workload.note = \"" + std::string(200, 'x') + "\"\n";
  window.resize(1280, 800);
  window.compareWith(stored(std::move(other), "b.h5"));
  QApplication::processEvents();
  const TableView& table = *window.compare()->table();
  ASSERT_GT(table.model()->rowCount(), 10);
  int width = 0;
  for (int c = 0; c < CompareModel::kColumns; ++c) width += table.columnWidth(c);
  EXPECT_LE(width, table.viewport()->width());
  // The kind may go: an input has no difference.
  for (int c = CompareModel::kName; c < CompareModel::kColumns; ++c) {
    EXPECT_GT(table.columnWidth(c), 20) << c;
  }
  // Without rows a table says why.
  window.showRun(stored(demoRun(3), "short.h5"));
  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  find->setText(QStringLiteral("no such event"));
  window.dock(QStringLiteral("events"))->raise();
  QApplication::processEvents();
  EXPECT_EQ(window.eventsTable()->model()->rowCount(), 0);
  EXPECT_EQ(window.eventsTable()->emptyText(), QStringLiteral("No event passes the filters."));
}

TEST_F(ExploreTest, BookmarksAreSetNamedFoundAndRemoved) {
  ViewState* s = window.state();
  QWidget* heat = pane("heatmap");
  heat->setFocus();
  QTest::keyClick(heat, Qt::Key_B, Qt::ControlModifier);
  EXPECT_TRUE(s->bookmarks().empty()) << "there is no cursor";
  for (const std::uint64_t step : {300U, 50U}) {
    s->setCursor(step);
    QTest::keyClick(heat, Qt::Key_B, Qt::ControlModifier);
  }
  ASSERT_EQ(s->bookmarks().size(), 2U);
  EXPECT_EQ(s->bookmarks()[0].step, 50U);
  s->setCursor(200);
  QTest::keyClick(heat, Qt::Key_B, Qt::ControlModifier | Qt::ShiftModifier);
  auto* ask = window.findChild<QInputDialog*>(QStringLiteral("bookmarkName"));
  ASSERT_NE(ask, nullptr);
  ask->setTextValue(QStringLiteral("hot expert"));
  ask->accept();
  QApplication::processEvents();
  window.activateWindow();
  QApplication::processEvents();
  ASSERT_EQ(s->bookmarks().size(), 3U);
  EXPECT_EQ(s->bookmarks()[1], (Bookmark{200, QStringLiteral("hot expert")}));
  s->setCursor(60);
  heat->setFocus();
  QTest::keyClick(heat, Qt::Key_BracketRight);
  EXPECT_EQ(s->cursor(), 200U);
  QTest::keyClick(heat, Qt::Key_BracketLeft);
  EXPECT_EQ(s->cursor(), 50U);
  QTest::keyClick(heat, Qt::Key_B, Qt::ControlModifier);
  EXPECT_EQ(s->bookmarks().size(), 2U) << "the second time removes it";
  QString said;
  TimePane* axis = pane("axis");
  QObject::connect(axis, &TimePane::hovered, [&](const QString& t) { said = t; });
  QTest::mouseMove(axis, QPoint(static_cast<int>(axis->axis().xOf(200.5)), 6));
  EXPECT_EQ(said, QStringLiteral("bookmark: step 200, hot expert"));
}

TEST(Bookmarks, AreSavedPerFileAndDropStepsThatAreGone) {
  QSettings().remove(QStringLiteral("bookmarks"));
  run::write_run("marks_a.h5", demoRun(40));
  run::write_run("marks_b.h5", demoRun(40));
  const auto openIn = [](MainWindow& w, const char* file) {
    w.openFiles({QString::fromLatin1(file)});
    ASSERT_TRUE(wait([&] { return !w.busy(); }, 20000));
  };
  {
    MainWindow w(true);
    openIn(w, "marks_a.h5");
    w.state()->setBookmark(7, QStringLiteral("first one"));
    w.state()->setBookmark(30, QString());
    openIn(w, "marks_b.h5");
    EXPECT_TRUE(w.state()->bookmarks().empty());
  }
  MainWindow w(true);
  openIn(w, "marks_a.h5");
  ASSERT_EQ(w.state()->bookmarks().size(), 2U);
  EXPECT_EQ(w.state()->bookmarks()[0], (Bookmark{7, QStringLiteral("first one")}));
  EXPECT_TRUE(bookmarksOf(QStringLiteral("marks_b.h5")).empty());
  // The file was simulated again, shorter.
  run::write_run("marks_a.h5", demoRun(20));
  openIn(w, "marks_a.h5");
  ASSERT_EQ(w.state()->bookmarks().size(), 1U);
  w.state()->setBookmark(7, std::nullopt);
  // The one beyond the end is hidden, not forgotten: a longer run at this place shows it again.
  ASSERT_EQ(bookmarksOf(QStringLiteral("marks_a.h5")).size(), 1U);
  run::write_run("marks_a.h5", demoRun(40));
  openIn(w, "marks_a.h5");
  ASSERT_EQ(w.state()->bookmarks().size(), 1U);
  EXPECT_EQ(w.state()->bookmarks()[0], (Bookmark{30, QString()}));
}

TEST(PaletteScore, WantsTheLettersInOrderAndLikesBeginnings) {
  EXPECT_EQ(paletteScore(QStringLiteral("xyz"), QStringLiteral("Zoom in")), 0);
  EXPECT_GT(paletteScore(QStringLiteral("zi"), QStringLiteral("Zoom in")), 0);
  EXPECT_EQ(paletteScore(QStringLiteral("iz"), QStringLiteral("Zoom in")), 0);
  EXPECT_GT(paletteScore(QStringLiteral("wr"), QStringLiteral("Whole run")),
            paletteScore(QStringLiteral("wr"), QStringLiteral("Show arrows")));
  EXPECT_GT(paletteScore(QString(), QStringLiteral("anything")), 0);
}

TEST_F(ExploreTest, ThePaletteFindsAndRunsAnAction) {
  QWidget* heat = pane("heatmap");
  heat->setFocus();
  window.state()->setWindow({100, 120}, ViewState::Move::kJump);
  QTest::keyClick(heat, Qt::Key_P, Qt::ControlModifier);
  auto* palette = window.findChild<Palette*>(QStringLiteral("palette"));
  ASSERT_NE(palette, nullptr);
  const int all = palette->list()->count();
  EXPECT_GT(all, 30);
  QTest::keyClicks(palette->field(), QStringLiteral("whole"));
  EXPECT_LT(palette->list()->count(), all);
  EXPECT_TRUE(palette->list()->item(0)->text().contains(QStringLiteral("Whole run")));
  QTest::keyClick(palette->field(), Qt::Key_Down);
  QTest::keyClick(palette->field(), Qt::Key_Up);
  QTest::keyClick(palette->field(), Qt::Key_Return);
  QApplication::processEvents();
  EXPECT_EQ(window.state()->window(), (TimeWindow{0, 400}));
}

// The help sheet has every key and fits on a screen of 1280 x 800.
TEST_F(ExploreTest, TheHelpSheetNamesEveryKeyAndFits) {
  pane("heatmap")->setFocus();
  QTest::keyClick(pane("heatmap"), Qt::Key_F1);
  auto* box = window.findChild<QDialog*>(QStringLiteral("keys"));
  ASSERT_NE(box, nullptr);
  auto* text = box->findChild<QLabel*>();
  ASSERT_NE(text, nullptr);
  QApplication::processEvents();
  for (const QAction* a : window.findChildren<QAction*>()) {
    if (a->shortcuts().isEmpty()) continue;
    EXPECT_TRUE(text->text().contains(a->statusTip().toHtmlEscaped())) << a->text().toStdString();
  }
  EXPECT_TRUE(text->text().contains(QStringLiteral("Ctrl+P")));
  // All of it is seen without scrolling.
  EXPECT_LE(text->sizeHint().height(), 740);
  EXPECT_LE(text->sizeHint().width(), 1260);
  EXPECT_GE(box->width(), text->sizeHint().width());
  box->close();
}

TEST_F(ExploreTest, TheCommandLineOfARunIsCopiedOnlyWhereItIsKnown) {
  EXPECT_EQ(window.commandLine(), QString());
  window.whatIf()->setScenario(QStringLiteral("my scenario.toml"), {});
  EXPECT_EQ(window.commandLine(), QStringLiteral("switchyard sim 'my scenario.toml' -o run.h5"));
}

// No label is cut or overlaps another on the new panes either, on both axes and at twice the size.
TEST_F(ExploreTest, LabelsOfAllPanesStandClearOnBothAxes) {
  open(stored(twoReplicas(), "serving.h5"));
  for (const char* id : {"latency", "memory", "entropy", "metric"}) show(id);
  for (const bool time : {false, true}) {
    window.state()->setTimeAxis(time);
    for (const TimeWindow w : {TimeWindow{0, 120}, TimeWindow{20, 30}}) {
      window.state()->setWindow(w, ViewState::Move::kJump);
      window.state()->setCursor(static_cast<std::uint64_t>(w.first) + 2);
      window.resize(1680, 1300);
      QApplication::processEvents();
      window.grab();
      for (const TimePane* p : window.panes()->panes()) {
        const auto labels = p->labels();
        for (std::size_t i = 0; i < labels.size(); ++i) {
          EXPECT_TRUE(p->rect().adjusted(0, -1, 0, 1).contains(labels[i].rect))
              << p->id().toStdString() << ": \"" << labels[i].text.toStdString() << "\" is cut";
          for (std::size_t k = i + 1; k < labels.size(); ++k) {
            EXPECT_FALSE(labels[i]
                             .rect.adjusted(1, 2, -1, -2)
                             .intersects(labels[k].rect.adjusted(1, 2, -1, -2)))
                << p->id().toStdString() << ": \"" << labels[i].text.toStdString() << "\" and \""
                << labels[k].text.toStdString() << "\"" << (time ? " on an axis of time" : "");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::gui
