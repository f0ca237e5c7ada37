// SPDX-License-Identifier: Apache-2.0
// Views that are not over steps: reroutes, capacity, requests, health, the tour, the what-if strip.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include <QAbstractItemModelTester>
#include <QApplication>
#include <QComboBox>
#include <QDir>
#include <QDockWidget>
#include <QLineEdit>
#include <QPushButton>
#include <QSignalSpy>
#include <QTest>

#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "gui/core/tour.hpp"
#include "gui/core/views.hpp"
#include "gui/mainwindow.hpp"
#include "gui/stepspanes.hpp"
#include "gui/text.hpp"
#include "gui/tour.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;
using testing::wait;

run::RunData withRequests() {
  run::RunData data = demoRun(300);
  const std::int64_t step = data.steps[0].end_ps;
  for (std::uint64_t i = 0; i < 50; ++i) {
    run::RequestRecord r;
    r.id = i;
    r.arrival_ps = static_cast<std::int64_t>(i) * step;
    r.first_token_ps = r.arrival_ps + step * (1 + static_cast<std::int64_t>(i % 5));
    r.end_ps = r.first_token_ps + 10 * step;
    r.prompt_tokens = 100;
    r.output_tokens = 11;
    r.outcome = run::RequestOutcome::kFinished;
    data.requests.push_back(r);
  }
  data.requests[7].end_ps = -1;
  data.requests[7].outcome = run::RequestOutcome::kRunning;
  return data;
}

std::shared_ptr<const RunStore> demo() {
  static const auto store = std::make_shared<const RunStore>(
      std::make_shared<const run::RunData>(withRequests()), "demo.h5");
  return store;
}

TEST(ReroutesMatrix, SumsToTheRunsTotalsAtEveryCut) {
  const run::RunData& d = demo()->data();
  const Matrix all = matrixOf(*demo(), MatrixKind::kReroutesExperts, kAllLayers, {});
  ASSERT_EQ(all.n, 64U);
  std::uint64_t measured = 0;
  for (const run::StepScalars& s : d.steps) measured += s.warmup ? 0 : s.rerouted;
  EXPECT_EQ(all.sum, measured);
  EXPECT_EQ(all.cells[19 * 64 + 20], d.totals.reroute_experts[19 * 64 + 20]);
  // Layers sum to the whole; steps too.
  std::uint64_t layers = 0;
  for (std::uint32_t l = 0; l < testing::kDemoLayers; ++l) {
    layers += matrixOf(*demo(), MatrixKind::kReroutesExperts, l, {}).sum;
  }
  EXPECT_EQ(layers, measured);
  for (const std::uint64_t s : {185ULL, 200ULL, 250ULL}) {
    EXPECT_EQ(matrixOf(*demo(), MatrixKind::kReroutesExperts, kAllLayers, {s, s + 1, false}).sum,
              d.steps[s].rerouted);
  }
  const Matrix gpus = matrixOf(*demo(), MatrixKind::kReroutesGpus, kAllLayers, {180, 210, false});
  const Matrix experts =
      matrixOf(*demo(), MatrixKind::kReroutesExperts, kAllLayers, {180, 210, false});
  ASSERT_EQ(gpus.n, 8U);
  EXPECT_EQ(gpus.sum, experts.sum);
  const Matrix bytes = matrixOf(*demo(), MatrixKind::kGpuBytes, kAllLayers, {});
  EXPECT_EQ(bytes.cells, d.totals.pair_bytes);
}

TEST(Capacity, BarsAreTheNumbersOfTheStep) {
  const run::ExpertSteps& x = demo()->data().experts;
  const CapacityBars bars = capacityBars(*demo(), kAllLayers, {200, 201, false});
  ASSERT_EQ(bars.bars.size(), 64U);
  for (std::size_t e = 0; e < 64; ++e) {
    const std::size_t i = 200 * 64 + e;
    EXPECT_EQ(bars.bars[e].own + bars.bars[e].rerouted, x.kept[i]);
    EXPECT_EQ(bars.bars[e].rerouted, x.rerouted_in[i]);
    EXPECT_EQ(bars.bars[e].dropped, x.dropped[i]);
    EXPECT_EQ(bars.bars[e].capacity, x.capacity[i]);
  }
  EXPECT_GT(bars.bars[19].dropped + bars.bars[19].queued, 0);
  EXPECT_GT(bars.bars[20].rerouted, 0);
}

TEST(Requests, TimesStepsAndHistogram) {
  const run::RequestRecord& r = demo()->data().requests[10];
  const RequestTimes t = timesOf(r);
  EXPECT_EQ(t.ttft, r.first_token_ps - r.arrival_ps);
  EXPECT_NEAR(t.tpot, static_cast<double>(r.end_ps - r.first_token_ps) / 10, 1e-6);
  EXPECT_EQ(timesOf(demo()->data().requests[7]).whole, -1);
  const auto span = stepsOf(*demo(), r);
  ASSERT_TRUE(span);
  const auto& steps = demo()->data().steps;
  EXPECT_LE(steps[span->first].start_ps, r.arrival_ps);
  EXPECT_GT(steps[span->first].end_ps, r.arrival_ps);
  EXPECT_LT(steps[span->end - 1].start_ps, r.end_ps);
  double top = 0;
  EXPECT_EQ(histogram({0, 1, 2, 4, -1}, 4, top), (std::vector<std::uint32_t>{1, 1, 1, 1}));
  EXPECT_EQ(top, 4);
}

TEST(Tour, TellsWhoTakesWhichTokenAsTheRoutingLibraryDecides) {
  const std::vector<TourStage> stages = tourStages();
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_EQ(stages[0].load(3, kTourTokens), 7U);
  EXPECT_EQ(stages[1].capacity, 2U);
  EXPECT_EQ(stages[1].load(3, kTourTokens), 2U);
  EXPECT_EQ(stages[1].sentence(3),
            "Token 3 wants experts 3 and 7. Expert 3 is full: it goes to expert 5. Expert 7 takes "
            "it.");
  EXPECT_EQ(stages[2].sentence(4),
            "Token 4 wants experts 7 and 3. Expert 7 is full: the slot is dropped. Expert 3 is "
            "full: the slot is dropped.");
  std::uint32_t dropped = 0;
  for (const auto& token : stages[2].tokens) {
    for (const TourSlot& slot : token) dropped += slot.ran == kTourNowhere ? 1 : 0;
  }
  EXPECT_EQ(dropped, 11U);
  EXPECT_EQ(stages[0].outcome(),
            "All are placed: expert 3 runs 7, 0 slots are rerouted, 0 dropped.");
  // Of 24 slots 13 stay; two places are the most there is.
  EXPECT_EQ(stages[2].outcome(),
            "All are placed: expert 3 runs 2, 0 slots are rerouted, 11 dropped.");
}

class ViewsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    window.resize(1680, 1020);
    window.showRun(demo());
    window.show();
    QApplication::processEvents();
  }
  MainWindow window{false};
};

TEST_F(ViewsTest, TheMatrixFollowsTheCursorAndSaysACellsNumber) {
  window.dock(QStringLiteral("reroutes"))->raise();
  window.state()->setCursor(200);
  QApplication::processEvents();
  MatrixView& m = *window.matrix();
  EXPECT_EQ(m.matrix().sum, demo()->data().steps[200].rerouted);
  EXPECT_TRUE(m.caption().contains(QStringLiteral("at step 200")));
  QString found;
  for (int y = 0; y < m.height() && found.isEmpty(); y += 1) {
    for (int x = 0; x < m.width() && found.isEmpty(); x += 1) {
      if (m.tip({x, y}).startsWith(QStringLiteral("e19 → e20:"))) found = m.tip({x, y});
    }
  }
  EXPECT_EQ(found,
            QStringLiteral("e19 → e20: %1 assignments").arg(count(m.matrix().cells[19 * 64 + 20])));
  m.setKind(MatrixKind::kGpuBytes);
  EXPECT_TRUE(m.caption().startsWith(QStringLiteral("whole run")));
  m.grab();
}

TEST_F(ViewsTest, AClickOnABarChoosesTheExpertOnce) {
  window.dock(QStringLiteral("capacity"))->raise();
  window.state()->setCursor(200);
  QApplication::processEvents();
  CapacityView& c = *window.capacity();
  c.grab();
  QSignalSpy spy(window.state(), &ViewState::expertChanged);
  QTest::mouseClick(&c, Qt::LeftButton, {}, QPoint(c.width() / 2, c.height() / 2));
  EXPECT_EQ(spy.count(), 1);
  const QString tip = c.tip(QPoint(c.width() / 2, c.height() / 2));
  EXPECT_TRUE(tip.startsWith(qs(expertName(window.state()->expert(), 64)))) << tip.toStdString();
}

TEST_F(ViewsTest, ChoosingARequestSelectsItsSteps) {
  TableView& table = *window.requests()->table();
  ASSERT_EQ(table.model()->rowCount(), 50);
  QSignalSpy spy(window.state(), &ViewState::selectionChanged);
  table.setCurrentIndex(table.model()->index(3, 0));
  EXPECT_EQ(spy.count(), 1);
  EXPECT_TRUE(window.state()->selection());
  EXPECT_TRUE(window.requests()->ttft()->caption().contains(QStringLiteral("n = 50")));
  EXPECT_TRUE(window.requests()->tpot()->caption().contains(QStringLiteral("n = 49")));
  // The longest TTFT comes first.
  EXPECT_EQ(table.model()->index(0, RequestsModel::kTtft).data().toString(),
            qs(timeText(static_cast<double>(5 * demo()->data().steps[0].end_ps))));
}

TEST_F(ViewsTest, HealthIsReadInTheBackgroundAndNamesWhatIsWrong) {
  window.dock(QStringLiteral("health"))->raise();
  QApplication::processEvents();
  HealthView& h = *window.health();
  ASSERT_TRUE(wait([&] { return !h.busy() && h.table(0)->model()->rowCount() > 5; }, 20000));
  // Gate entropy of the demo run is above 3.2 bits: an alarm.
  bool alarm = false;
  const QAbstractItemModel& alarms = *h.table(1)->model();
  for (int r = 0; r < alarms.rowCount(); ++r) {
    for (int c = 0; c < alarms.columnCount(); ++c) {
      alarm = alarm || alarms.index(r, c).data().toString().contains(QStringLiteral("entropy"));
    }
  }
  EXPECT_TRUE(alarm);
  EXPECT_GT(h.table(2)->model()->rowCount(), 0);
}

// The old judge is still at work when another run is shown: the window must not wait for it.
TEST_F(ViewsTest, AnotherRunDoesNotWaitForTheHealthOfTheOldOne) {
  HealthView& h = *window.health();
  std::atomic<bool> stopped{false};
  std::atomic<int> started{0};
  h.setJudge([&](const RunStore&, const std::atomic<bool>& stop) {
    if (++started == 1) {
      while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(150));  // it takes its time to notice
      stopped = true;
    }
    HealthReport r;
    r.missing = "judged";
    return r;
  });
  window.dock(QStringLiteral("health"))->raise();
  window.showRun(std::make_shared<const RunStore>(std::make_shared<const run::RunData>(demoRun(8)),
                                                  "slow.h5"));
  ASSERT_TRUE(wait([&] { return started == 1; }, 5000));
  window.showRun(std::make_shared<const RunStore>(std::make_shared<const run::RunData>(demoRun(9)),
                                                  "next.h5"));
  EXPECT_FALSE(stopped) << "the window waited for the thread";
  ASSERT_TRUE(wait([&] { return started == 2 && !h.busy(); }, 5000));
  EXPECT_EQ(h.table(0)->model()->index(0, 0).data().toString(), QStringLiteral("judged"));
  EXPECT_TRUE(wait([&] { return h.threads() == 0; }, 5000));
  EXPECT_TRUE(stopped);
}

// Judging reads the whole file: only who looks at the dock pays for it.
TEST(HealthDock, IsNotReadBeforeItIsSeen) {
  MainWindow window(false);
  std::atomic<int> started{0};
  window.health()->setJudge([&](const RunStore&, const std::atomic<bool>&) {
    ++started;
    return HealthReport{};
  });
  window.resize(1680, 1020);
  window.show();
  QApplication::processEvents();
  window.showRun(demo());
  for (int i = 0; i < 5; ++i) QApplication::processEvents();
  window.restoreDefaultLayout();
  QApplication::processEvents();
  EXPECT_FALSE(window.health()->busy());
  EXPECT_EQ(started, 0);
  window.dock(QStringLiteral("health"))->raise();
  EXPECT_TRUE(wait([&] { return started == 1 && !window.health()->busy(); }, 5000));
}

// An alarm per step of a long run: no object per row, and columns measured by the rows on screen.
TEST(HealthDock, ShowsAHundredThousandAlarms) {
  ReportModel model;
  const QAbstractItemModelTester tester(&model,
                                        QAbstractItemModelTester::FailureReportingMode::Fatal);
  model.setTable({"alarms", "", {"step", "what"}, {{"3", "x"}}, {}});
  EXPECT_EQ(model.index(0, 0).data(Qt::TextAlignmentRole).toInt() & Qt::AlignRight, Qt::AlignRight);
  EXPECT_FALSE(model.index(0, 1).data(Qt::TextAlignmentRole).isValid());
  Table many{"alarms", "", {"step", "took"}, {}, {}};
  for (int i = 0; i < 100000; ++i) many.rows.push_back({std::to_string(i), "1.07e+04 us"});
  model.setTable(std::move(many));
  EXPECT_EQ(model.rowCount(), 100000);
  EXPECT_EQ(model.index(99999, 0).data().toString(), QStringLiteral("99999"));
  EXPECT_EQ(model.index(5, 1).data().toString(), QStringLiteral("10.70 ms"));
  EXPECT_EQ(model.headerData(1, Qt::Horizontal, Qt::DisplayRole).toString(),
            QStringLiteral("took"));
  model.setTable({});
  EXPECT_EQ(model.rowCount(), 0);
  EXPECT_EQ(model.columnCount(), 0);
}

TEST_F(ViewsTest, AnExceptionWhileJudgingIsALineInTheHealthDock) {
  HealthView& h = *window.health();
  h.setJudge([](const RunStore&, const std::atomic<bool>&) -> HealthReport {
    throw std::runtime_error("out of ideas");
  });
  window.dock(QStringLiteral("health"))->raise();
  window.showRun(std::make_shared<const RunStore>(std::make_shared<const run::RunData>(demoRun(9)),
                                                  "next.h5"));
  EXPECT_TRUE(wait(
      [&] { return h.table(2)->model()->index(0, 0).data().toString() == "out of ideas"; }, 5000));
  EXPECT_FALSE(h.busy());
}

// The demo run takes 66 to 69 % of a GPU's memory: an alarm at a watermark of 65 %, none at the 92
// % that hold where the scenario says nothing.
TEST(Health, TakesTheWatermarkOfTheRunsOwnScenario) {
  const auto stateOfMemory = [](const HealthReport& r) {
    for (const auto& row : r.watched.rows) {
      if (row.front() == "memory" || row.front().starts_with("memory ")) return row[6];
    }
    return std::string("no such signal");
  };
  run::RunData run = demoRun(100);
  EXPECT_DOUBLE_EQ(watermarkOf(run), 0.92);
  EXPECT_EQ(stateOfMemory(healthOf(run, "demo")), "ok");
  run.meta.scenario_text += "memory.watermark = \"65 %\"\n";
  EXPECT_DOUBLE_EQ(watermarkOf(run), 0.65);
  EXPECT_EQ(stateOfMemory(healthOf(run, "demo")), "ALARM");
}

TEST_F(ViewsTest, TheEntropyLineStandsAtTheRunsOwnAlarm) {
  auto* pane = static_cast<EntropyPane*>(window.panes()->pane(QStringLiteral("entropy")));
  ASSERT_TRUE(pane->alarm().has_value());
  EXPECT_DOUBLE_EQ(pane->alarm()->threshold, 3.2);
  const auto show = [&](const std::string& lines) {
    run::RunData run = demoRun(9);
    run.meta.scenario_text += lines;
    window.showRun(std::make_shared<const RunStore>(
        std::make_shared<const run::RunData>(std::move(run)), "own.h5"));
  };
  show("monitor.alarms[0].signal = gate_entropy\nmonitor.alarms[0].above = 2.5\n");
  ASSERT_TRUE(pane->alarm().has_value());
  EXPECT_DOUBLE_EQ(pane->alarm()->threshold, 2.5);
  show("monitor.alarms[0].signal = memory\nmonitor.alarms[0].above = 90 %\n");
  EXPECT_FALSE(pane->alarm().has_value());
}

TEST_F(ViewsTest, MemoryAndEntropyPanesAppearWhenAskedFor) {
  for (const char* id : {"memory", "entropy"}) {
    TimePane* pane = window.panes()->pane(QString::fromLatin1(id));
    ASSERT_NE(pane, nullptr);
    EXPECT_FALSE(pane->isVisible());
    auto* action = window.findChild<QAction*>(QStringLiteral("pane:") + QString::fromLatin1(id));
    ASSERT_NE(action, nullptr);
    action->trigger();
    QApplication::processEvents();
    EXPECT_TRUE(pane->isVisible());
    window.state()->setCursor(120);
    pane->grab();
    EXPECT_FALSE(pane->labels().empty());
  }
}

TEST_F(ViewsTest, TheTourWalksThroughTwelveTokens) {
  window.showTour();
  auto* tour = window.findChild<Tour*>(QStringLiteral("tour"));
  ASSERT_NE(tour, nullptr);
  EXPECT_FALSE(tour->backButton()->isEnabled());
  // What the picture shows: nothing is placed, so nothing is said of the end.
  EXPECT_TRUE(tour->sentence().contains(QStringLiteral("No token is placed yet")));
  EXPECT_FALSE(tour->sentence().contains(QStringLiteral("runs")));
  tour->stageBox()->setCurrentIndex(1);
  for (int i = 0; i < 4; ++i) QTest::mouseClick(tour->nextButton(), Qt::LeftButton);
  EXPECT_EQ(tour->placed(), 4U);
  EXPECT_TRUE(tour->sentence().contains(QStringLiteral("it goes to expert 5")));
  for (int i = 0; i < 20; ++i) QTest::mouseClick(tour->nextButton(), Qt::LeftButton);
  EXPECT_EQ(tour->placed(), 12U);
  EXPECT_FALSE(tour->nextButton()->isEnabled());
  EXPECT_TRUE(tour->sentence().contains(QStringLiteral("\nAll are placed: expert ")));
  tour->grab();
  tour->close();
}

TEST(Models, OfRequestsAndComparisonKeepTheContract) {
  ViewState state;
  RequestsModel requests(&state);
  CompareModel compare(&state);
  using Tester = QAbstractItemModelTester;
  const Tester a(&requests, Tester::FailureReportingMode::Fatal);
  const Tester b(&compare, Tester::FailureReportingMode::Fatal);
  state.setRun(demo());
  EXPECT_EQ(requests.rowCount(), 50);
  state.setOther(std::make_shared<const RunStore>(std::make_shared<const run::RunData>(demoRun(20)),
                                                  "other.h5"));
  EXPECT_GT(compare.rowCount(), 10);
  state.setOther(nullptr);
  EXPECT_EQ(compare.rowCount(), 0);
  state.setRun(nullptr);
  EXPECT_EQ(requests.rowCount(), 0);
}

// Capacity factor 4 in the strip, one click: the run with it lies over the first one.
TEST(WhatIfStrip, RunsTheScenarioOfTheRunWithTheChangeAndOverlaysIt) {
  qputenv("SWITCHYARD_CLI", SWITCHYARD_CLI_BINARY);
  qputenv("SWITCHYARD_RUNS", "whatif_runs");
  QDir(QStringLiteral("whatif_runs")).removeRecursively();
  testing::writeText("whatif.toml", testing::kTinyScenario);
  MainWindow window(false);
  window.resize(1280, 800);
  window.show();
  window.simulate({{QStringLiteral("whatif.toml"), {}, QStringLiteral("whatif"), false, false}},
                  MainWindow::Role::kShow);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 30000));
  ASSERT_NE(window.state()->run(), nullptr) << window.messageBar()->text().toStdString();
  WhatIf& strip = *window.whatIf();
  ASSERT_TRUE(strip.runButton()->isEnabled());
  strip.factor()->setText(QStringLiteral("zero"));
  QTest::mouseClick(strip.runButton(), Qt::LeftButton);
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("no number > 0")));
  strip.factor()->setText(QStringLiteral("4"));
  strip.links()->setText(QStringLiteral("0.5"));
  EXPECT_TRUE(
      strip.settings().contains(QStringLiteral("hardware.link_types.nvlink4.bandwidth=225 GB/s")));
  strip.lost()->setCurrentIndex(strip.lost()->findData(QStringLiteral("gpu3")));
  window.state()->setCursor(5);
  QTest::mouseClick(strip.runButton(), Qt::LeftButton);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 30000));
  ASSERT_NE(window.state()->other(), nullptr) << window.messageBar()->text().toStdString();
  const auto& events = window.state()->other()->events();
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const run::Event& e) {
    return e.kind == run::EventKind::kFault && e.gpu == 3 && e.step == 5;
  }));
  const QAbstractItemModel& model = *window.compare()->table()->model();
  QStringList inputs;
  for (int r = 0; r < model.rowCount(); ++r) {
    if (model.index(r, CompareModel::kKind).data().toString() == QLatin1String("input")) {
      inputs << model.index(r, CompareModel::kName).data().toString();
    }
  }
  EXPECT_TRUE(inputs.contains(QStringLiteral("policy.capacity.factor")));
  EXPECT_TRUE(inputs.contains(QStringLiteral("hardware.link_types.nvlink4.bandwidth")))
      << inputs.join(' ').toStdString();
}

}  // namespace
}  // namespace switchyard::gui
