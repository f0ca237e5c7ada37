// SPDX-License-Identifier: Apache-2.0
// What panes draw of layers, copies and the critical path.
#include <algorithm>
#include <cmath>
#include <limits>

#include <QApplication>
#include <QSignalSpy>
#include <QTest>

#include <gtest/gtest.h>

#include "gui/mainwindow.hpp"
#include "gui/text.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;
using testing::stored;
using testing::wait;

TEST(LayerSpread, IsTheNearestRankOfTheLayersThatHaveAnImbalance) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  LayerSpread spread;
  std::vector<float> twenty(20);
  for (std::size_t i = 0; i < 20; ++i) twenty[i] = 1 + static_cast<float>((i * 7) % 20) / 20;
  spread.append(twenty, 20);
  // The first, the tenth and the nineteenth of twenty.
  EXPECT_EQ(spread.low.at(0), 1.0F);
  EXPECT_EQ(spread.middle.at(0), 1.45F);
  EXPECT_EQ(spread.high.at(0), 1.9F);
  spread.append({kNone, 2, kNone, 3, kNone, kNone, kNone, kNone}, 4);
  ASSERT_EQ(spread.low.size(), 3U);
  EXPECT_EQ(spread.low[1], 2);
  EXPECT_EQ(spread.middle[1], 2);
  EXPECT_EQ(spread.high[1], 3);
  EXPECT_TRUE(std::isnan(spread.low[2]) && std::isnan(spread.high[2]));
  // As the metrics count.
  std::vector<double> values(twenty.begin(), twenty.end());
  for (const auto& [percent, value] :
       {std::pair(5.0, spread.low[0]), std::pair(50.0, spread.middle[0]),
        std::pair(95.0, spread.high[0])}) {
    EXPECT_EQ(static_cast<float>(run::nearest_rank(values, percent)), value) << percent;
  }
}

class DisplayTest : public ::testing::Test {
 protected:
  void open(std::shared_ptr<const RunStore> run) {
    window.resize(1680, 1020);
    window.showRun(std::move(run));
    window.show();
    QApplication::processEvents();
    window.restoreDefaultLayout();
    QApplication::processEvents();
    window.grab();
  }
  template <class T = TimePane>
  T* pane(const char* id) {
    auto* p = dynamic_cast<T*>(window.panes()->pane(QString::fromLatin1(id)));
    EXPECT_NE(p, nullptr) << id;
    return p;
  }
  QString said(TimePane* p, const QPoint& at) {
    QString text;
    const auto link =
        QObject::connect(p, &TimePane::hovered, [&](const QString& now) { text = now; });
    QTest::mouseMove(p, QPoint(1, 1));
    QTest::mouseMove(p, at);
    QObject::disconnect(link);
    return text;
  }
  QStringList texts(TimePane* p) {
    p->grab();
    QStringList all;
    for (const TimePane::Label& l : p->labels()) all << l.text;
    return all;
  }
  MainWindow window{false};
};

TEST_F(DisplayTest, TheBandOfTheImbalanceIsThatOfTheLayers) {
  run::RunData data = demoRun(60);
  // Four layers apart, the third without assignments in one step.
  for (std::size_t s = 0; s < 60; ++s) {
    data.steps[s].imbalance = 1.1;
    data.steps[s].imbalance_max = 3;
    for (std::size_t l = 0; l < 4; ++l) {
      data.layer_steps.imbalance[s * 4 + l] = 1.5F + static_cast<float>(l) * 0.5F;
    }
  }
  data.layer_steps.imbalance[20 * 4 + 2] = std::numeric_limits<float>::quiet_NaN();
  for (const bool time : {false, true}) {
    open(stored(data));
    window.state()->setTimeAxis(time);
    auto* imbalance = pane<ImbalancePane>("imbalance");
    imbalance->grab();
    ASSERT_TRUE(wait([&] { return !imbalance->reading(); }, 20000));
    ASSERT_NE(imbalance->spread(), nullptr);
    EXPECT_EQ(imbalance->spread()->low.size(), 60U);
    EXPECT_TRUE(texts(imbalance).contains(QStringLiteral("5–95 % of layers")));
    const QRect plot = imbalance->plotRect();
    const int x = static_cast<int>(imbalance->axis().xOf(30.5));
    const QString hover = said(imbalance, QPoint(x, plot.center().y()));
    EXPECT_TRUE(hover.endsWith(QStringLiteral("layers p5 1.500, p50 2.000, p95 3.000")))
        << hover.toStdString();
    // Pixels between the curves have the band's colour; above and below they do not.
    const QImage image = imbalance->grab().toImage();
    const double top = [&] {
      double most = 0;
      for (const QString& t : texts(imbalance)) {
        bool ok = false;
        const double v = t.toDouble(&ok);
        if (ok) most = std::max(most, v);
      }
      return most;
    }();
    ASSERT_GE(top, 3);
    const auto y = [&](double v) {
      return plot.bottom() - static_cast<int>((v - 1) / (top - 1) * (plot.height() - 1));
    };
    const QColor ground = window.state()->theme().base;
    EXPECT_NE(image.pixelColor(x, y(1.7)), ground);
    EXPECT_NE(image.pixelColor(x, y(2.7)), ground);
    EXPECT_EQ(image.pixelColor(x, y(1.4)), ground);
    if (top > 3.3) {
      EXPECT_EQ(image.pixelColor(x, y(3.2)), ground);
    }
  }
}

TEST_F(DisplayTest, WithoutNumbersPerLayerThereIsNoBandOfLayers) {
  run::RunData data = demoRun(60);
  data.meta.detail = run::Detail::kSteps;
  open(stored(std::move(data)));
  auto* imbalance = pane<ImbalancePane>("imbalance");
  EXPECT_FALSE(texts(imbalance).contains(QStringLiteral("5–95 % of layers")));
  EXPECT_FALSE(imbalance->reading());
  EXPECT_TRUE(imbalance->headerText().contains(QStringLiteral("largest step of a pixel")));
}

/// The demo, and the experts' first two GPUs copied on two further ones.
run::RunData withCopies(bool replica) {
  run::RunData data = demoRun(40);
  run::Inventory& inv = data.inventory;
  std::vector<std::uint32_t> places;
  for (std::size_t l = 0; l < inv.moe_layers.size(); ++l) {
    for (std::uint32_t e = 0; e < inv.experts; ++e) {
      // GPUs 6 and 7 hold copies only; the first copies of e48 … e63 stand on GPU 5.
      places.push_back(std::min(e / 8, 5U));
      places.push_back(e < 8 ? 6U : e < 12 ? 7U : run::kNone);
    }
  }
  inv.placement = places;
  inv.replicas = 2;
  if (replica) inv.gpus[6].engine = inv.gpus[7].engine = 1;
  return data;
}

TEST_F(DisplayTest, GpusThatHoldOnlyCopiesHaveALine) {
  for (const bool replica : {false, true}) {
    open(stored(withCopies(replica)));
    auto* heat = pane<HeatPane>("heatmap");
    const QStringList shown = texts(heat);
    // A replica's GPU 6 holds what GPU 0 does: its steps are in that one's rows, which name both.
    QStringList lines = {QStringLiteral("GPU 6  copies of e00–07"),
                         QStringLiteral("GPU 7  copies of e08–11")};
    if (replica) lines.removeFirst();
    ASSERT_EQ(heat->copyNames(), lines);
    for (const QString& name : heat->copyNames()) EXPECT_TRUE(shown.contains(name));
    EXPECT_EQ(shown.contains(QStringLiteral("GPU 0, 6  e00–07")), replica);
    EXPECT_EQ(shown.contains(QStringLiteral("GPU 0  e00–07")), !replica);
    const QString why = replica ? QStringLiteral("replica 1: its steps are in the rows above")
                                : QStringLiteral("no load per copy in this run: counted above");
    EXPECT_EQ(shown.count(why), lines.size()) << shown.join('|').toStdString();
    const QRect plot = heat->plotRect();
    EXPECT_EQ(said(heat, QPoint(plot.center().x(), plot.bottom() - 3)),
              QStringLiteral("GPU 7  copies of e08–11: ") + why);
    EXPECT_EQ(heat->expertAt(plot.bottom() - 3), run::kNone) << "a line of copies is no expert";
    // The rows above are where the mouse finds them.
    EXPECT_EQ(heat->expertAt(plot.top() + 1), 0U);
    EXPECT_EQ(heat->expertAt(heat->yOfExpert(63)), 63U);
    EXPECT_LT(heat->yOfExpert(63), plot.bottom() - lines.size() * heat->fontMetrics().height());
    const auto labels = heat->labels();
    for (std::size_t a = 0; a < labels.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        EXPECT_FALSE(
            labels[a].rect.adjusted(1, 2, -1, -2).intersects(labels[b].rect.adjusted(1, 2, -1, -2)))
            << labels[a].text.toStdString() << " " << labels[b].text.toStdString();
      }
    }
    window.state()->setRowOrder(RowOrder::kId);
    EXPECT_TRUE(heat->copyNames().isEmpty()) << "rows by number are not places";
    window.state()->setRowOrder(RowOrder::kGpu);
  }
  open(stored(demoRun(40)));
  EXPECT_TRUE(pane<HeatPane>("heatmap")->copyNames().isEmpty());
}

TEST_F(DisplayTest, AStepOfAReplicaNamesTheReplicasGpu) {
  run::RunData data = withCopies(true);
  for (std::size_t s = 0; s < data.steps.size(); ++s) data.steps[s].engine = s % 2;
  open(stored(std::move(data)));
  auto* heat = pane<HeatPane>("heatmap");
  const auto at = [&](std::uint64_t step, std::uint32_t expert) {
    return QPoint(static_cast<int>(heat->axis().xOf(static_cast<double>(step) + 0.5)),
                  heat->yOfExpert(expert));
  };
  EXPECT_TRUE(said(heat, at(20, 3)).startsWith(QStringLiteral("e03 @ GPU 0, step 20")));
  EXPECT_TRUE(said(heat, at(21, 3)).startsWith(QStringLiteral("e03 @ GPU 6, step 21")));
  // GPU 7 holds less than GPU 1 does: no row of it is that one's.
  EXPECT_TRUE(said(heat, at(21, 9)).startsWith(QStringLiteral("e09 @ GPU 1, step 21")));
}

TEST_F(DisplayTest, RowsOfALostGpuSayThatItsExpertsStandElsewhere) {
  run::RunData data = demoRun(40);
  const auto event = [](run::EventKind kind, std::uint32_t step, std::uint32_t gpu,
                        std::string text) {
    run::Event e;
    e.kind = kind;
    e.step = step;
    e.gpu = gpu;
    e.text = std::move(text);
    return e;
  };
  data.events = {event(run::EventKind::kFault, 10, 3, "gpu_loss gpu3"),
                 event(run::EventKind::kFault, 20, 3, "gpu_loss gpu3: over"),
                 event(run::EventKind::kFault, 25, 5, "slow_gpu gpu5"),
                 event(run::EventKind::kPolicyAction, 30, run::kNone, "rebalance: load 1.5 > 1.2")};
  open(stored(run::RunData(data)));
  auto* heat = pane<HeatPane>("heatmap");
  const QRect plot = heat->plotRect();
  const QImage with = heat->grab().toImage();
  const auto at = [&](double step, std::uint32_t expert) {
    return QPoint(plot.left() + static_cast<int>(step / 40 * plot.width()),
                  heat->yOfExpert(expert));
  };
  const std::uint32_t lost = 3 * 8 + 4;  // Eight experts on each GPU.
  const auto place = [&](double step, std::uint32_t expert) {
    const QString text = said(heat, at(step, expert));
    return text.left(text.indexOf(QStringLiteral(", step")));
  };
  EXPECT_EQ(place(9.5, lost), QStringLiteral("e28 @ GPU 3"));
  EXPECT_EQ(place(10.5, lost),
            QStringLiteral("e28 @ GPU 3 (lost since step 10: it stands elsewhere)"));
  EXPECT_EQ(place(19.5, lost),
            QStringLiteral("e28 @ GPU 3 (lost since step 10: it stands elsewhere)"));
  EXPECT_EQ(place(20.5, lost), QStringLiteral("e28 @ GPU 3"));
  EXPECT_EQ(place(10.5, 5 * 8), QStringLiteral("e40 @ GPU 5"));
  EXPECT_EQ(place(30.5, 5 * 8),
            QStringLiteral("e40 @ GPU 5 (at the start; experts moved at step 30)"));
  // Hatched there and nowhere else: against the same run with a fault of another kind.
  data.events[0].text = "slow_gpu gpu3";
  data.events[1].text = "slow_gpu gpu3: over";
  open(stored(std::move(data)));
  heat = pane<HeatPane>("heatmap");
  ASSERT_EQ(heat->plotRect(), plot);
  const QImage without = heat->grab().toImage();
  const int left = plot.left() + plot.width() / 4, right = plot.left() + plot.width() / 2;
  int inside = 0, outside = 0;
  for (int y = heat->yOfExpert(0); y <= heat->yOfExpert(63); ++y) {
    const bool row = y >= heat->yOfExpert(24) - 4 && y <= heat->yOfExpert(31) + 4;
    for (int x = plot.left(); x < plot.right(); ++x) {
      if (with.pixel(x, y) == without.pixel(x, y)) continue;
      (row && x >= left - 1 && x <= right + 1 ? inside : outside) += 1;
    }
  }
  EXPECT_GT(inside, 50);
  EXPECT_EQ(outside, 0);
}

/// Eight experts per GPU, as the demo; GPU 5 holds a copy of e03 as well, GPU 2 copies of e40, e41.
run::RunData withReplicas() {
  run::RunData data = demoRun(40);
  run::Inventory& inv = data.inventory;
  std::vector<std::uint32_t> places;
  for (std::size_t l = 0; l < inv.moe_layers.size(); ++l) {
    for (std::uint32_t e = 0; e < inv.experts; ++e) {
      places.push_back(e / 8);
      places.push_back(e == 3 ? 5U : e == 40 || e == 41 ? 2U : run::kNone);
    }
  }
  inv.placement = places;
  inv.replicas = 2;
  return data;
}

TEST_F(DisplayTest, ACopyBesideExpertsOfItsGpuHasARowOfItsOwn) {
  open(stored(withReplicas()));
  auto* heat = pane<HeatPane>("heatmap");
  EXPECT_EQ(heat->rows(), 67U) << "64 experts, three copies";
  EXPECT_TRUE(heat->copyNames().isEmpty());
  const QStringList shown = texts(heat);
  EXPECT_TRUE(shown.contains(QStringLiteral("GPU 5  e40–47 +e03")))
      << shown.join('|').toStdString();
  EXPECT_TRUE(shown.contains(QStringLiteral("GPU 2  e16–23 +2")));
  EXPECT_TRUE(shown.contains(QStringLiteral("GPU 1  e08–15")));
  EXPECT_TRUE(heat->headerText().contains(QStringLiteral("hatched: a copy")));
  // Rows from the top: GPU 0 has 8, GPU 1 8, GPU 2 8 and two copies.
  const QRect plot = heat->plotRect();
  const auto middle = [&](int row) {
    return plot.top() + static_cast<int>((row + 0.5) * plot.height() / 67);
  };
  EXPECT_EQ(heat->expertAt(middle(3)), 3U);
  EXPECT_EQ(heat->yOfExpert(3), middle(3)) << "the first replica's row";
  EXPECT_EQ(heat->expertAt(middle(24)), 40U);
  EXPECT_EQ(heat->expertAt(middle(25)), 41U);
  EXPECT_EQ(heat->expertAt(middle(26)), 24U);
  // 26 rows of GPUs 0 to 2, 16 of GPUs 3 and 4, 8 of GPU 5: then the copy of e03.
  EXPECT_EQ(heat->expertAt(middle(50)), 3U);
  const int x = plot.center().x();
  EXPECT_TRUE(
      said(heat, QPoint(x, middle(50))).startsWith(QStringLiteral("e03 @ GPU 5 (a copy), ")))
      << said(heat, QPoint(x, middle(50))).toStdString();
  EXPECT_TRUE(said(heat, QPoint(x, middle(3)))
                  .endsWith(QStringLiteral("all 2 copies together: first on GPU 0, GPU 5")))
      << said(heat, QPoint(x, middle(3))).toStdString();
  // Choosing the expert outlines both rows; the rings and dots at the right differ.
  const QImage before = heat->grab().toImage();
  window.state()->setExpert(3);
  const QImage after = heat->grab().toImage();
  for (const int row : {3, 50}) {
    EXPECT_NE(before.pixelColor(plot.left(), middle(row)),
              after.pixelColor(plot.left(), middle(row)))
        << row;
  }
  EXPECT_NE(before.pixelColor(plot.right() + 5, middle(3)),
            before.pixelColor(plot.right() + 5, middle(4)));
  // By number or by load a row is an expert.
  window.state()->setRowOrder(RowOrder::kId);
  EXPECT_EQ(heat->rows(), 64U);
  EXPECT_FALSE(heat->headerText().contains(QStringLiteral("hatched")));
  window.state()->setRowOrder(RowOrder::kGpu);
  // The table names the GPUs, the first replica's first.
  const QAbstractItemModel& m = *window.expertsTable()->model();
  int seen = 0;
  for (int r = 0; r < m.rowCount(); ++r) {
    const auto e = m.index(r, 0).data(kIdRole).toUInt();
    const QString gpus = m.index(r, ExpertsModel::kGpu).data().toString();
    if (e == 3) {
      ++seen;
      EXPECT_EQ(gpus, QStringLiteral("0, 5"));
      EXPECT_EQ(m.index(r, ExpertsModel::kCopies).data().toString(), QStringLiteral("2"));
      EXPECT_EQ(m.index(r, ExpertsModel::kGpu).data(Qt::ToolTipRole).toString(),
                QStringLiteral("First on GPU 0, copies on GPU 5; the numbers are of all copies "
                               "together"));
    }
    if (e == 4) {
      ++seen;
      EXPECT_EQ(gpus, QStringLiteral("0"));
    }
  }
  EXPECT_EQ(seen, 2);
}

TEST_F(DisplayTest, RowsOfAPipelineNameTheGpusOfEveryStage) {
  run::RunData data = demoRun(40);
  run::Inventory& inv = data.inventory;
  for (std::size_t l = 0; l < 4; ++l) {
    for (std::uint32_t e = 0; e < 64; ++e) inv.placement[l * 64 + e] = (l < 2 ? 0 : 4) + e / 16;
  }
  open(stored(std::move(data)));
  auto* heat = pane<HeatPane>("heatmap");
  EXPECT_TRUE(texts(heat).contains(QStringLiteral("GPU 0, 4  e00–15")))
      << texts(heat).join('|').toStdString();
  EXPECT_FALSE(heat->headerText().contains(QStringLiteral("as in layer")));
  // A layer stands in one stage.
  window.state()->setLayer(3);
  EXPECT_TRUE(texts(heat).contains(QStringLiteral("GPU 4  e00–15")));
  // What each layer places by itself has no such names.
  data = demoRun(40);
  std::swap(data.inventory.placement[64], data.inventory.placement[64 + 9]);
  open(stored(std::move(data)));
  window.state()->setLayer(kAllLayers);
  EXPECT_TRUE(texts(heat).contains(QStringLiteral("GPU 0  e00–07")));
  EXPECT_TRUE(heat->headerText().contains(QStringLiteral("GPUs as in layer 1")));
}

TEST(Places, AreEachGpuOnceTheFirstReplicaFirst) {
  run::Inventory inv;
  inv.experts = 2;
  inv.moe_layers = {0, 5};
  inv.replicas = 3;
  inv.placement = {4, 4, 1, 2, run::kNone, run::kNone, 0, 1, 2, run::kNone, run::kNone, run::kNone};
  EXPECT_EQ(placesOf(inv, 0, 0), (std::vector<std::uint32_t>{4, 1}));
  EXPECT_EQ(placesOf(inv, kAllLayers, 1), (std::vector<std::uint32_t>{2}));
  EXPECT_EQ(placesOf(inv, 1, 0), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_TRUE(placesOf(inv, 1, 1).empty());
  EXPECT_TRUE(placesOf(inv, 2, 0).empty());
  EXPECT_TRUE(placesOf(inv, 0, 2).empty());
}

TEST_F(DisplayTest, TheCriticalPathHasAnOutlinePerGpuThatHeldIt) {
  // 40 pieces of a step: GPU 2 for a while, GPU 5, GPU 2 again; a short while of GPU 7 between.
  run::RunData data = demoRun();
  const run::StepScalars& slow = data.steps[200];
  const std::int64_t part = (slow.end_ps - slow.start_ps) / 40;
  for (int i = 0; i < 40; ++i) {
    run::CriticalEntry e;
    e.step = 200;
    e.gpu = i == 16 || i == 17 ? 7U : i < 22 || i >= 31 ? 2U : 5U;
    e.phase = i % 2 == 0 ? run::Phase::kExpert : run::Phase::kDispatch;
    e.start_ps = slow.start_ps + i * part;
    e.duration_ps = part;
    data.critical_path.push_back(e);
  }
  open(stored(std::move(data)));
  auto* timeline = pane<TimelinePane>("timeline");
  const auto gpus = [&] {
    timeline->grab();
    std::vector<std::uint32_t> out;
    for (const auto& c : timeline->criticalOn(timeline->plotRect())) out.push_back(c.gpu);
    return out;
  };
  EXPECT_TRUE(gpus().empty()) << "400 steps";
  // 40 pixels a step: the short piece has no room of its own, its time is in its neighbour.
  window.state()->setWindow({195, 215}, ViewState::Move::kJump);
  EXPECT_EQ(gpus(), (std::vector<std::uint32_t>{2, 5, 2}));
  EXPECT_EQ(timeline->drawn().criticalPieces, 40U);
  EXPECT_EQ(timeline->drawn().criticalOutlines, 3U);
  std::int64_t all = 0;
  double right = 0;
  for (const auto& c : timeline->criticalOn(timeline->plotRect())) {
    EXPECT_GE(c.right - c.left, 7);
    EXPECT_GE(c.left, right - 0.5) << "in turn";
    right = c.right;
    all += c.total();
  }
  EXPECT_EQ(all, 40 * part);
  // Zoomed in it has: five outlines, and how long each was where that fits.
  window.state()->setWindow({198, 202}, ViewState::Move::kJump);
  EXPECT_EQ(gpus(), (std::vector<std::uint32_t>{2, 7, 2, 5, 2}));
  const QStringList shown = texts(timeline);
  EXPECT_TRUE(shown.contains(qs(timeText(static_cast<double>(16 * part)))))
      << shown.join('|').toStdString();
  EXPECT_FALSE(shown.contains(qs(timeText(static_cast<double>(4 * part))))) << "no room";
  // A line leads from one to the next, and the mouse says what it was.
  const auto parts = timeline->criticalOn(timeline->plotRect());
  const QRect plot = timeline->plotRect();
  const double lane = plot.height() / 8.0;
  const auto x = static_cast<int>((parts[3].left + parts[2].right) / 2);
  const QImage image = timeline->grab().toImage();
  const auto isAccent = [&](int px, int py) {
    const QColor c = image.pixelColor(px, py);
    const QColor accent = window.state()->theme().accent;
    return std::abs(c.red() - accent.red()) < 60 && std::abs(c.green() - accent.green()) < 60 &&
           std::abs(c.blue() - accent.blue()) < 60;
  };
  bool line = false;
  for (int dx = -2; dx <= 2; ++dx) {
    line = line || isAccent(x + dx, plot.top() + static_cast<int>(4.5 * lane));
  }
  EXPECT_TRUE(line);
  const QString hover =
      said(timeline, QPoint(static_cast<int>((parts[3].left + parts[3].right) / 2),
                            plot.top() + static_cast<int>(5.5 * lane)));
  EXPECT_TRUE(hover.contains(QStringLiteral("critical path ") +
                             qs(timeText(static_cast<double>(9 * part)))))
      << hover.toStdString();
}

}  // namespace
}  // namespace switchyard::gui
