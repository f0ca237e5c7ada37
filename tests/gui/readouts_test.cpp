// SPDX-License-Identifier: Apache-2.0
// What the window says of what it shows: read-outs, numbers beside the plots, names of lanes, the
// steps of a chosen request.
#include <cmath>

#include <QApplication>
#include <QLabel>
#include <QPainter>
#include <QScrollBar>
#include <QStatusBar>
#include <QTest>

#include <gtest/gtest.h>

#include "gui/core/latency.hpp"
#include "gui/mainwindow.hpp"
#include "gui/requestsview.hpp"
#include "gui/stepspanes.hpp"
#include "gui/text.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"
#include "tests/gui/text_recorder.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;
using testing::stored;

/// The demo without overflow, with requests of two steps each that arrive one after the other.
run::RunData calmRun() {
  const run::RunData demo = demoRun(1);
  run::RunData data = run::make_run(demo.meta, demo.inventory);
  for (std::uint32_t s = 0; s < 180; ++s) {
    run::StepRecord r = testing::demoStep(demo.inventory, s);
    r.scalars.start_ps = data.steps.empty() ? 0 : data.steps.back().end_ps;
    r.scalars.end_ps = r.scalars.start_ps + 1'000'000'000 * (s < 90 ? 1 : 2);
    r.scalars.overflow = 0;
    std::fill(r.expert_overflow.begin(), r.expert_overflow.end(), 0U);
    run::append_step(data, r);
  }
  for (std::uint32_t s = 3; s + 4 < data.steps.size(); ++s) {
    run::RequestRecord r;
    r.id = s;
    r.arrival_ps = data.steps[s - 1].start_ps;
    r.scheduled_ps = r.arrival_ps;
    r.first_token_ps = data.steps[s].start_ps;
    r.end_ps = data.steps[s + 2].start_ps;
    r.output_tokens = 3;
    r.outcome = run::RequestOutcome::kFinished;
    data.requests.push_back(r);
  }
  return data;
}

class ReadoutsTest : public ::testing::Test {
 protected:
  void open(std::shared_ptr<const RunStore> run, const QSize& size = {1280, 800}) {
    window.resize(size);
    window.showRun(std::move(run));
    window.show();
    QApplication::processEvents();
    window.restoreDefaultLayout();
    QApplication::processEvents();
    (void)window.grab();
  }
  TimePane* pane(const char* id) { return window.panes()->pane(QString::fromLatin1(id)); }
  QString said(TimePane* p, const QPoint& at) {
    QString text;
    const auto link =
        QObject::connect(p, &TimePane::hovered, [&](const QString& now) { text = now; });
    QTest::mouseMove(p, QPoint(1, 1));
    QTest::mouseMove(p, at);
    QObject::disconnect(link);
    return text;
  }
  TableView* inspectorTable() {
    for (TableView* t : window.findChildren<TableView*>()) {
      if (t->model() == window.inspector()) return t;
    }
    return nullptr;
  }
  MainWindow window{false};
};

TEST_F(ReadoutsTest, ALongReadOutEndsWithAnEllipsisAndIsWholeInItsTip) {
  open(stored(demoRun(300)));
  QLabel* label = nullptr;
  const QString whole = QStringLiteral("GPU 4, step 38:") +
                        QStringLiteral(" attention 218.0 us").repeated(20) +
                        QStringLiteral(" the end");
  emit window.panes()->hovered(whole);
  for (QLabel* l : window.statusBar()->findChildren<QLabel*>()) {
    if (l->text() == whole) label = l;
  }
  ASSERT_NE(label, nullptr);
  EXPECT_EQ(window.hoverText(), whole);
  EXPECT_EQ(label->toolTip(), whole);
  const auto drawn = [&] {
    testing::TextDevice device(label->size());
    QPainter painter(&device);
    label->render(&painter);
    painter.end();
    QString text;
    for (const testing::PaintedText& t : device.texts()) text += t.text;
    return text;
  };
  const QString cut = drawn();
  ASSERT_TRUE(cut.endsWith(QChar(0x2026))) << cut.toStdString();
  EXPECT_TRUE(whole.startsWith(cut.chopped(1)));
  EXPECT_LE(label->fontMetrics().horizontalAdvance(cut), label->width());
  EXPECT_EQ(window.width(), 1280);
  emit window.panes()->hovered(QStringLiteral("short"));
  EXPECT_EQ(drawn(), QStringLiteral("short"));
}

TEST_F(ReadoutsTest, TheInspectorShowsAChosenGpuAndExpertWithoutScrolling) {
  open(stored(demoRun(300)));
  TableView* table = inspectorTable();
  ASSERT_NE(table, nullptr);
  const auto rowOf = [&](const QString& start) {
    for (int r = 0; r < table->model()->rowCount(); ++r) {
      if (table->model()->index(r, 0).data().toString().startsWith(start)) return r;
    }
    return -1;
  };
  window.state()->setCursor(120);
  EXPECT_EQ(rowOf(QStringLiteral("GPU 3")), -1);
  window.state()->setGpu(3);
  QApplication::processEvents();
  EXPECT_EQ(rowOf(QStringLiteral("GPU 3")), rowOf(QStringLiteral("step time")) + 1);
  const auto visible = [&](int row) {
    const QRect at = table->visualRect(table->model()->index(row, 1));
    return table->viewport()->rect().contains(at);
  };
  EXPECT_EQ(table->verticalScrollBar()->value(), 0);
  EXPECT_TRUE(visible(rowOf(QStringLiteral("GPU 3"))));
  // The number is the run's.
  const auto expert = static_cast<std::size_t>(run::Phase::kExpert);
  const std::int64_t ps = window.state()->run()->gpuPhases(120)[3 * run::kPhases + expert];
  const QString value =
      table->model()->index(rowOf(QStringLiteral("GPU 3 expert")), 1).data().toString();
  EXPECT_TRUE(value.startsWith(qs(timeText(static_cast<double>(ps))))) << value.toStdString();
  window.state()->setGpu(run::kNone);
  window.state()->setExpert(19);
  QApplication::processEvents();
  EXPECT_EQ(rowOf(QStringLiteral("e19")), rowOf(QStringLiteral("step time")) + 1);
  EXPECT_TRUE(visible(rowOf(QStringLiteral("e19"))));
  EXPECT_TRUE(visible(rowOf(QStringLiteral("e19 overflow"))));
}

TEST_F(ReadoutsTest, NumbersBesideThePlotOfGpuTimeAreSharesOfWaiting) {
  open(stored(demoRun(300)), {1680, 1020});
  TimePane* time = pane("timeline");
  window.panes()->setFold(QStringLiteral("timeline"), PaneStack::Fold::kOpen);
  QApplication::processEvents();
  (void)window.grab();
  const QRect plot = time->plotRect();
  const auto lane = [&](int gpu) { return plot.top() + plot.height() * (2 * gpu + 1) / 16; };
  window.state()->setCursor(std::nullopt);
  EXPECT_EQ(said(time, QPoint(10, lane(5))), QString()) << "no cursor, no number";
  window.state()->setCursor(120);
  const std::int64_t* phases = window.state()->run()->gpuPhases(120) + 5 * run::kPhases;
  double all = 0;
  for (std::size_t p = 0; p < run::kPhases; ++p) all += static_cast<double>(phases[p]);
  const int share =
      qRound(100 * static_cast<double>(phases[static_cast<std::size_t>(run::Phase::kWait)]) / all);
  EXPECT_EQ(said(time, QPoint(10, lane(5))),
            QStringLiteral("GPU 5: %1 % of step 120 waiting, the share at the cursor").arg(share));
  EXPECT_EQ(window.state()->cursor(), std::optional<std::uint64_t>(120));
  EXPECT_TRUE(time->headerText().contains(QStringLiteral("at the cursor: share waiting")));
  // Of wide steps as well.
  window.state()->setWindow({118, 124}, ViewState::Move::kJump);
  EXPECT_TRUE(time->headerText().contains(QStringLiteral("at the cursor: share waiting")))
      << time->headerText().toStdString();
}

TEST_F(ReadoutsTest, TheNumberBesideTheLatencyNamesItsRequests) {
  open(stored(calmRun()), {1680, 1020});
  auto* latency = dynamic_cast<LatencyPane*>(pane("latency"));
  ASSERT_NE(latency, nullptr);
  window.panes()->setFold(QStringLiteral("latency"), PaneStack::Fold::kOpen);
  window.state()->setCursor(100);
  QApplication::processEvents();
  (void)window.grab();
  ASSERT_TRUE(latency->isVisible());
  const QRect plot = latency->plotRect();
  const QString text = said(latency, QPoint(10, plot.center().y()));
  const auto bins = latency->bins();
  // The bin of the cursor, found by its place on the axis.
  const double x = latency->axis().xOf(100.5) - plot.left();
  const auto i = static_cast<std::size_t>(x * static_cast<double>(bins.size()) / plot.width());
  ASSERT_LT(i, bins.size());
  ASSERT_GT(bins[i].first, 0U);
  EXPECT_TRUE(text.startsWith(qs(timeText(bins[i].ttft99)) + QStringLiteral(": TTFT p99 of the ")))
      << text.toStdString();
  if (bins[i].first > 1) {
    EXPECT_TRUE(text.contains(QStringLiteral("%1 requests of steps").arg(bins[i].first)))
        << text.toStdString();
  }
  window.state()->setCursor(std::nullopt);
  EXPECT_EQ(said(latency, QPoint(10, plot.center().y())), QString());
}

TEST_F(ReadoutsTest, TheMinimapOfACalmRunShowsStepTimes) {
  // Rows of the line of step times, left and right of the middle of the run.
  TimePane* map = pane("minimap");
  const auto rows = [&](double share) {
    const QImage image = map->grab().toImage();
    const QRect plot = map->plotRect();
    const int x = plot.left() + static_cast<int>(share * plot.width());
    std::vector<int> all;
    for (int y = plot.top() + 3; y < plot.bottom() - 2; ++y) {
      if (image.pixelColor(x, y) == window.state()->theme().muted) all.push_back(y);
    }
    return all;
  };
  open(stored(calmRun()));
  // The first half takes half as long.
  const auto left = rows(0.25);
  const auto right = rows(0.75);
  ASSERT_EQ(left.size(), 1U);
  ASSERT_EQ(right.size(), 1U);
  const int bottom = map->plotRect().bottom();
  EXPECT_NEAR(2.0 * (bottom - left[0]), bottom - right[0], 1.0);
  EXPECT_TRUE(said(map, map->plotRect().center())
                  .contains(QStringLiteral(" 1.000 ms long; line: step time, up to 2.000 ms")))
      << said(map, map->plotRect().center()).toStdString();
  // A run with overflow shows that alone.
  open(stored(demoRun(300)));
  EXPECT_TRUE(rows(0.25).empty());
  EXPECT_FALSE(said(map, map->plotRect().center()).contains(QStringLiteral("line:")));
}

TEST_F(ReadoutsTest, AChosenRequestComesIntoViewAtTheZoomThereIs) {
  open(stored(calmRun()));
  ViewState& state = *window.state();
  TableView& table = *window.requests()->table();
  const auto choose = [&](std::uint64_t id) {
    for (int r = 0; r < table.model()->rowCount(); ++r) {
      const auto row = static_cast<std::size_t>(table.model()->index(r, 0).data(kIdRole).toInt());
      if (state.run()->data().requests[row].id == id) {
        table.setCurrentIndex(table.model()->index(r, 0));
        return;
      }
    }
    FAIL() << id;
  };
  const auto holds = [&] {
    const TimeWindow w = state.window();
    const auto s = state.selection();
    return s && static_cast<double>(s->first) >= w.first && static_cast<double>(s->end) <= w.end;
  };
  // On screen already: the window stays.
  state.setWindow({20, 60}, ViewState::Move::kJump);
  choose(30);
  EXPECT_EQ(state.window(), (TimeWindow{20, 60}));
  EXPECT_TRUE(holds());
  // Elsewhere: as wide as before, the steps in its middle.
  choose(120);
  EXPECT_TRUE(holds());
  EXPECT_DOUBLE_EQ(state.window().length(), 40);
  const auto chosen = *state.selection();
  EXPECT_DOUBLE_EQ(state.window().first + state.window().end,
                   static_cast<double>(chosen.first + chosen.end));
  // Back goes to where the person was.
  EXPECT_TRUE(state.back());
  EXPECT_EQ(state.window(), (TimeWindow{20, 60}));
  // At the end of the run the window stops there.
  choose(state.steps() - 5);
  EXPECT_TRUE(holds());
  EXPECT_LE(state.window().end, static_cast<double>(state.steps()));
  // More steps than the window has: they fill it.
  state.setWindow({20, 24}, ViewState::Move::kJump);
  state.bringIntoView({50, 90});
  EXPECT_DOUBLE_EQ(state.window().first, 48);
  EXPECT_DOUBLE_EQ(state.window().end, 92);
  // Nothing of the run.
  const TimeWindow before = state.window();
  state.bringIntoView({state.steps(), state.steps() + 9});
  state.bringIntoView({7, 7});
  EXPECT_EQ(state.window(), before);
}

}  // namespace
}  // namespace switchyard::gui
