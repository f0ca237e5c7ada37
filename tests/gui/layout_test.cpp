// SPDX-License-Identifier: Apache-2.0
// What keeps a window readable: numbers of many GPUs that stand clear of each other, whole columns,
// marks where pixels hold more than they show, words for the size of a difference, the scroll bar.
#include <algorithm>
#include <cmath>

#include <QAction>
#include <QApplication>
#include <QClipboard>
#include <QComboBox>
#include <QDir>
#include <QDockWidget>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QMenu>
#include <QPushButton>
#include <QScrollBar>
#include <QSettings>
#include <QSplitter>
#include <QTest>
#include <QToolBar>

#include <gtest/gtest.h>

#include "gui/mainwindow.hpp"
#include "gui/matrixview.hpp"
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
using testing::wait;

/// `gpus` in one server: the first half behind an NVSwitch, all behind PCIe; two steps in which
/// every link has a use of its own.
run::RunData manyGpus(std::uint32_t gpus) {
  run::Inventory inv;
  for (std::uint32_t g = 0; g < gpus; ++g) {
    const std::string name = fmt::format("gpu{}", g);
    inv.gpus.push_back({name, 0, 80'000'000'000ULL, {3e12}, {989e12}});
    for (const char* hub : {"nvswitch", "pcie"}) {
      if (hub[0] == 'n' && g >= gpus / 2) continue;
      inv.links.push_back({name + ">" + hub, name, hub, hub, {64e9}});
      inv.links.push_back({std::string(hub) + ">" + name, hub, name, hub, {64e9}});
    }
  }
  inv.experts = gpus;
  inv.top_k = 1;
  inv.moe_layers = {0};
  for (std::uint32_t e = 0; e < gpus; ++e) inv.placement.push_back(e);
  run::RunMeta meta;
  meta.detail = run::Detail::kLayers;
  run::RunData data = run::make_run(meta, inv);
  for (std::uint32_t s = 0; s < 2; ++s) {
    run::StepRecord r = run::make_step(inv);
    r.scalars.start_ps = s * 1'000'000LL;
    r.scalars.end_ps = (s + 1) * 1'000'000LL;
    for (std::size_t k = 0; k < inv.links.size(); ++k) {
      r.link_busy_ps[k] = static_cast<std::int64_t>(k * 997'000 / inv.links.size());
    }
    run::append_step(data, r);
  }
  return data;
}

TEST(Topology, NumbersOfManyGpusStandClearOfEachOther) {
  for (const std::uint32_t gpus : {4U, 16U, 64U, 256U}) {
    const auto run = stored(manyGpus(gpus));
    for (const bool dark : {false, true}) {
      for (const QSize size :
           {QSize(160, 120), QSize(270, 230), QSize(282, 300), QSize(700, 500)}) {
        ViewState state;
        state.setDark(dark);
        TopologyView view(&state);
        state.setRun(run);
        view.resize(size);
        view.grab();
        const auto& labels = view.labels();
        std::size_t numbers = 0;
        for (std::size_t i = 0; i < labels.size(); ++i) {
          EXPECT_TRUE(view.rect().contains(labels[i].rect))
              << "\"" << labels[i].text.toStdString() << "\" is cut, " << gpus << " GPUs, "
              << size.width();
          bool number = false;
          labels[i].text.toUInt(&number);
          numbers += number ? 1 : 0;
          for (std::size_t k = i + 1; k < labels.size(); ++k) {
            EXPECT_FALSE(labels[i].rect.intersects(labels[k].rect))
                << "\"" << labels[i].text.toStdString() << "\" and \""
                << labels[k].text.toStdString() << "\", " << gpus << " GPUs, " << size.width();
          }
        }
        // Not all of 256 have room, but some always do, and all of 16 in the dock.
        EXPECT_GE(numbers, gpus <= 16 && size.width() >= 270 ? gpus : 2U)
            << gpus << " GPUs, " << size.width();
        EXPECT_TRUE(
            std::any_of(labels.begin(), labels.end(),
                        [](const auto& l) { return l.text.endsWith(QStringLiteral(" %")); }) ||
            size.width() < 200);
      }
    }
  }
}

TEST(Topology, AClickAmongManyGpusChoosesTheNearest) {
  ViewState state;
  TopologyView view(&state);
  state.setRun(stored(manyGpus(16)));
  view.resize(282, 300);
  view.grab();
  for (const std::uint32_t gpu : {0U, 7U, 15U}) {
    // A GPU's number stands below its box.
    for (const auto& l : view.labels()) {
      if (l.text != QString::number(gpu)) continue;
      const int y = view.pointOnLink(0).y();
      for (int above = l.rect.top(); above > y; above -= 2) {
        QTest::mouseClick(&view, Qt::LeftButton, {}, QPoint(l.rect.center().x(), above));
        if (state.gpu() == gpu) break;
      }
    }
    EXPECT_EQ(state.gpu(), gpu);
  }
}

TEST(Words, SayLessOrMoreAndHowMuch) {
  EXPECT_EQ(changeWords(2, 2), QStringLiteral("= equal"));
  EXPECT_EQ(changeWords(100, 52), QStringLiteral("▼ 48 % less"));
  EXPECT_EQ(changeWords(100, 104.2), QStringLiteral("▲ 4.2 % more"));
  EXPECT_EQ(changeWords(1000000, 1000001), QStringLiteral("▲ < 0.1 % more"));
  EXPECT_EQ(changeWords(2, 24), QStringLiteral("▲ more: × 12"));
  EXPECT_EQ(changeWords(0, 3), QStringLiteral("▲ more"));
  EXPECT_EQ(changeWords(3, 0), QStringLiteral("▼ 100 % less"));
  EXPECT_EQ(changeWords(-1, 3), QStringLiteral("▲ more"));
  EXPECT_EQ(changeWords(run::kNoData, 3), QString());
  EXPECT_EQ(changeSize(5, 5), 0);
  EXPECT_EQ(changeSize(1, 2), 1);
  EXPECT_EQ(changeSize(8, 1), 1);
  EXPECT_EQ(changeSize(0, 1), 1);
  EXPECT_NEAR(changeSize(1, std::sqrt(2.0)), 0.5, 1e-12);
  EXPECT_LT(changeSize(100, 101), changeSize(100, 99.0 / 1.1));
}

TEST(Words, AreColouredByTheSizeOfTheChangeAndLegible) {
  for (const bool dark : {false, true}) {
    ViewState state;
    state.setDark(dark);
    CompareModel model(&state);
    state.setRun(stored(demoRun(40), "a.h5"));
    state.setOther(stored(demoRun(60), "b.h5"));
    const Theme& theme = state.theme();
    ASSERT_GT(model.rowCount(), 10);
    int words = 0;
    int equal = 0;
    for (int r = 0; r < model.rowCount(); ++r) {
      const QString word = model.index(r, CompareModel::kChange).data().toString();
      const auto color =
          model.index(r, CompareModel::kChange).data(Qt::ForegroundRole).value<QColor>();
      if (word.isEmpty()) continue;
      ++words;
      for (const QColor& ground : {theme.base, theme.alternate}) {
        EXPECT_GE(contrast(color, ground), 4.4) << color.name().toStdString();
      }
      if (word == QStringLiteral("= equal")) {
        ++equal;
        EXPECT_EQ(color, theme.muted);
      }
      const double a = model.index(r, CompareModel::kA).data().toDouble();
      const double b = model.index(r, CompareModel::kB).data().toDouble();
      if (a > 0 && b >= 2 * a) {
        EXPECT_NE(color, theme.muted) << word.toStdString();
      }
    }
    EXPECT_GT(words, equal);
    EXPECT_GT(equal, 0);
    // Copies hold what `switchyard diff` prints.
    EXPECT_FALSE(tableText(model, {0}, TableText::kTsv).contains(QStringLiteral("B is")));
  }
}

class LayoutTest : public ::testing::Test {
 protected:
  void open(std::shared_ptr<const RunStore> run, const QSize& size = QSize(1280, 800)) {
    window.resize(size);
    window.showRun(std::move(run));
    window.show();
    QApplication::processEvents();
    window.restoreDefaultLayout();
    QApplication::processEvents();
  }
  template <class T = TimePane>
  T* pane(const char* id) {
    auto* p = dynamic_cast<T*>(window.panes()->pane(QString::fromLatin1(id)));
    EXPECT_NE(p, nullptr) << id;
    return p;
  }
  MainWindow window{false};
};

TEST_F(LayoutTest, TheExpertsTableShowsWholeColumnsOnly) {
  for (const QSize size : {QSize(1280, 800), QSize(1680, 1020), QSize(3000, 1600)}) {
    open(stored(demoRun()), size);
    const TableView& table = *window.expertsTable();
    int width = 0;
    int shown = 0;
    for (int c = 0; c < ExpertsModel::kColumns; ++c) {
      if (table.isColumnHidden(c)) continue;
      ++shown;
      width += table.columnWidth(c);
      for (int r = 0; r < 64 && c != ExpertsModel::kSpark; ++r) {
        const QString text = table.model()->index(r, c).data().toString();
        EXPECT_LE(table.fontMetrics().horizontalAdvance(text) + 4, table.columnWidth(c))
            << "column " << c << ": \"" << text.toStdString() << "\" is cut";
      }
    }
    EXPECT_LE(width, table.viewport()->width()) << size.width();
    EXPECT_GE(shown, 5);
    EXPECT_FALSE(table.isColumnHidden(ExpertsModel::kOverflowShare));
    EXPECT_TRUE(table.isColumnHidden(ExpertsModel::kCopies)) << "each expert stands on one GPU";
  }
  // A person's choice stays, whatever fits.
  QMenu menu;
  window.expertsTable()->columnsMenu(&menu);
  ASSERT_EQ(menu.actions().size(), ExpertsModel::kColumns + 2);
  menu.actions()[2 + ExpertsModel::kCopies]->trigger();
  menu.actions()[2 + ExpertsModel::kMean]->trigger();
  EXPECT_FALSE(window.expertsTable()->isColumnHidden(ExpertsModel::kCopies));
  EXPECT_TRUE(window.expertsTable()->isColumnHidden(ExpertsModel::kMean));
  window.resize(1280, 800);
  QApplication::processEvents();
  EXPECT_FALSE(window.expertsTable()->isColumnHidden(ExpertsModel::kCopies));
  menu.actions()[0]->trigger();
  EXPECT_TRUE(window.expertsTable()->isColumnHidden(ExpertsModel::kCopies));
  EXPECT_FALSE(window.expertsTable()->isColumnHidden(ExpertsModel::kMean));
}

/// No text of the panes lies over another one of its pane, or leaves it.
void expectClear(const MainWindow& window, const char* when) {
  for (const TimePane* p : window.panes()->panes()) {
    if (!p->isVisible()) continue;
    EXPECT_GE(p->height(), p->minimumSizeHint().height()) << p->id().toStdString() << when;
    const auto labels = p->labels();
    for (std::size_t a = 0; a < labels.size(); ++a) {
      EXPECT_TRUE(p->rect().adjusted(0, -2, 0, 2).contains(labels[a].rect))
          << p->id().toStdString() << " \"" << labels[a].text.toStdString() << "\" is cut" << when;
      for (std::size_t b = 0; b < a; ++b) {
        EXPECT_FALSE(
            labels[a].rect.adjusted(1, 2, -1, -2).intersects(labels[b].rect.adjusted(1, 2, -1, -2)))
            << p->id().toStdString() << " " << labels[a].text.toStdString() << " "
            << labels[b].text.toStdString() << when;
      }
    }
  }
}

TEST_F(LayoutTest, TextMayBeLargerAndSmaller) {
  open(stored(demoRun(60)), QSize(1680, 1020));
  const QImage before = window.grab().toImage();
  const int row = window.expertsTable()->verticalHeader()->defaultSectionSize();
  const auto action = [&](const char* text) {
    for (QAction* a : window.findChildren<QAction*>()) {
      if (a->text() == QLatin1String(text)) return a;
    }
    return static_cast<QAction*>(nullptr);
  };
  for (const char* text : {"Larger text", "Smaller text", "Normal text"}) {
    ASSERT_NE(action(text), nullptr) << text;
  }
  for (int i = 0; i < 4; ++i) action("Larger text")->trigger();
  QApplication::processEvents();
  EXPECT_EQ(window.textSize(), 13);
  EXPECT_GT(window.expertsTable()->verticalHeader()->defaultSectionSize(), row + 3);
  // Headings are larger than that; nothing keeps letters of its own.
  for (const QWidget* w : window.findChildren<QWidget*>()) {
    EXPECT_GE(w->font().pointSizeF(), 13)
        << w->metaObject()->className() << " " << w->objectName().toStdString();
  }
  window.grab();
  expectClear(window, ", 13 points");
  action("Normal text")->trigger();
  QApplication::processEvents();
  EXPECT_EQ(window.textSize(), 9);
  for (int i = 0; i < 2; ++i) action("Smaller text")->trigger();
  EXPECT_EQ(window.textSize(), 7);
  action("Normal text")->trigger();
  QApplication::processEvents();
  window.restoreDefaultLayout();
  QApplication::processEvents();
  EXPECT_EQ(window.grab().toImage(), before);
  window.setTextSize(100);
  EXPECT_EQ(window.textSize(), 18);
  window.setTextSize(std::nan(""));
  EXPECT_EQ(window.textSize(), 9);
}

TEST_F(LayoutTest, LargeTextFitsIntoASmallWindow) {
  window.setTextSize(14);
  open(stored(demoRun(60)));
  window.state()->setCursor(30);
  window.state()->setExpert(19);
  QApplication::processEvents();
  EXPECT_EQ(window.size(), QSize(1280, 800));
  window.grab();
  expectClear(window, ", 14 points at 1280 x 800");
  EXPECT_GE(window.panes()->width(), 600) << "the panes have room left";
  // Words of buttons, boxes and labels are whole.
  for (const QWidget* w : window.findChildren<QWidget*>()) {
    if (!w->isVisible()) continue;
    if (qobject_cast<const QPushButton*>(w) != nullptr ||
        qobject_cast<const QComboBox*>(w) != nullptr) {
      EXPECT_GE(w->height(), w->fontMetrics().height()) << w->metaObject()->className();
    }
    const auto* label = qobject_cast<const QLabel*>(w);
    if (label != nullptr && !label->wordWrap() &&
        label->sizePolicy().horizontalPolicy() != QSizePolicy::Ignored) {
      EXPECT_GE(label->width() + 1, label->sizeHint().width()) << label->text().toStdString();
    }
  }
  const TableView& table = *window.expertsTable();
  int shown = 0;
  for (int c = 0; c < ExpertsModel::kColumns; ++c) {
    if (table.isColumnHidden(c) || c == ExpertsModel::kSpark) continue;
    ++shown;
    const QString name = table.model()->headerData(c, Qt::Horizontal).toString();
    EXPECT_LE(table.fontMetrics().horizontalAdvance(name), table.columnWidth(c))
        << name.toStdString();
  }
  EXPECT_GE(shown, 4);
  window.setTextSize(9);
}

TEST_F(LayoutTest, TheToolBarsStayWholeInANarrowWindow) {
  open(stored(demoRun(60)));
  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  auto* goTo = window.findChild<QLineEdit*>(QStringLiteral("goto"));
  auto* bar = window.findChild<QToolBar*>(QStringLiteral("tools"));
  ASSERT_TRUE(find != nullptr && goTo != nullptr && bar != nullptr);
  const auto names = [&] {
    QStringList all;
    for (const QAction* a : bar->actions()) all << a->text();
    return all;
  };
  const QStringList whole = names();
  EXPECT_TRUE(whole.contains(QStringLiteral("&Export…")));
  const int wide = find->width();
  for (const double points : {9.0, 12.0, 14.0, 18.0}) {
    window.setTextSize(points);
    QApplication::processEvents();
    QApplication::processEvents();
    EXPECT_EQ(window.size(), QSize(1280, 800)) << points;
    for (const QLineEdit* field : {find, goTo}) {
      const QRect place(field->mapTo(bar, QPoint(0, 0)), field->size());
      EXPECT_TRUE(field->isVisible() && bar->rect().contains(place))
          << points << " points: the bar wants " << bar->sizeHint().width() << " of "
          << bar->width() << " pixels, a field has " << field->width();
      EXPECT_GE(field->width(), 10 * field->fontMetrics().averageCharWidth()) << points;
      // What stands in it as a hint is whole.
      EXPECT_LE(field->fontMetrics().horizontalAdvance(field->placeholderText()), field->width());
    }
    if (points <= 12) {
      EXPECT_EQ(names(), whole) << points;
      const QRect run(window.whatIf()->runButton()->mapTo(window.whatIf(), QPoint(0, 0)),
                      window.whatIf()->runButton()->size());
      EXPECT_TRUE(window.whatIf()->runButton()->isVisible() &&
                  window.whatIf()->rect().contains(run))
          << points;
    }
    goTo->setFocus();
    QTest::keyClick(&window, Qt::Key_F, Qt::ControlModifier);
    EXPECT_TRUE(find->hasFocus() && find->isVisible()) << points;
  }
  EXPECT_LT(names().size(), whole.size()) << "buttons whose entries the File menu has go";
  window.setTextSize(9);
  QApplication::processEvents();
  QApplication::processEvents();
  EXPECT_EQ(names(), whole);
  EXPECT_EQ(find->width(), wide);
  // Where there is no room at all, the key says so, and nothing is laid out for ever.
  window.setTextSize(18);
  window.setMinimumSize(1, 1);
  for (QDockWidget* dock : window.findChildren<QDockWidget*>()) dock->hide();
  window.centralWidget()->setMaximumWidth(400);
  window.resize(500, 800);
  QApplication::processEvents();
  goTo->setFocus();
  QTest::keyClick(&window, Qt::Key_F, Qt::ControlModifier);
  EXPECT_TRUE(!find->hasFocus() || find->isVisible());
  window.setTextSize(9);
}

TEST_F(LayoutTest, NamesOfTheInspectorAreWholeBesideLongValues) {
  open(stored(demoRun(60)));
  window.state()->setCursor(30);
  window.state()->setGpu(0);
  QApplication::processEvents();
  const TableView* view = nullptr;
  for (const TableView* v : window.findChildren<TableView*>()) {
    if (v->model() == window.inspector()) view = v;
  }
  ASSERT_NE(view, nullptr);
  int cut = 0;
  for (int r = 0; r < view->model()->rowCount(); ++r) {
    for (const int c : {0, 1}) {
      const QString text = view->model()->index(r, c).data().toString();
      if (view->fontMetrics().horizontalAdvance(text) + 6 > view->columnWidth(c)) ++cut;
    }
  }
  // One name is longer than the values of the GPU's phases leave.
  EXPECT_LE(cut, 1);
}

/// 35 requests that arrive while it runs: the latency is shown without being asked for.
run::RunData arrivals() {
  run::RunData data = demoRun(60);
  for (std::uint32_t s = 5; s < 40; ++s) {
    run::RequestRecord q;
    q.id = s;
    q.arrival_ps = q.scheduled_ps = data.steps[s - 3].start_ps;
    q.first_token_ps = data.steps[s].end_ps;
    q.end_ps = data.steps[s + 10].end_ps;
    q.prompt_tokens = 9;
    q.output_tokens = 9;
    q.outcome = run::RequestOutcome::kFinished;
    data.requests.push_back(q);
  }
  data.serving = true;
  return data;
}

QStringList foldedOf(const MainWindow& window) {
  QStringList names;
  for (const TimePane* p : window.panes()->panes()) {
    if (p->folded() && p->isVisible()) names << p->id();
  }
  return names;
}

bool says(const TimePane* pane, const QString& text) {
  const auto labels = pane->labels();
  return std::any_of(labels.begin(), labels.end(),
                     [&](const auto& l) { return l.text.startsWith(text.left(6)); });
}

TEST_F(LayoutTest, TheHeatMapIsHighInASmallWindow) {
  for (const double points : {9.0, 10.0, 14.0}) {
    for (const bool arriving : {false, true}) {
      window.setTextSize(points);
      open(stored(arriving ? arrivals() : demoRun(60)));
      window.state()->setCursor(30);
      QApplication::processEvents();
      window.grab();
      const std::string when = fmt::format(", {} points, arrivals {}", points, arriving);
      EXPECT_EQ(window.size(), QSize(1280, 800)) << when;
      EXPECT_GE(pane("heatmap")->plotRect().height(), PaneStack::kHeatPlot) << when;
      expectClear(window, when.c_str());
      // Nothing has vanished: each pane is there, open or as a line with its name and its plot.
      QStringList there = {QStringLiteral("heatmap"), QStringLiteral("imbalance"),
                           QStringLiteral("steptime"), QStringLiteral("links"),
                           QStringLiteral("timeline")};
      if (arriving) there << QStringLiteral("latency");
      for (const QString& id : there) {
        const TimePane* p = window.panes()->pane(id);
        EXPECT_TRUE(p->isVisible()) << id.toStdString() << when;
        EXPECT_TRUE(p->foldable());
        EXPECT_TRUE(says(p, p->id() == QLatin1String("heatmap") ? QStringLiteral("Expert load")
                            : p->id() == QLatin1String("imbalance")
                                ? QStringLiteral("Load imbalance")
                            : p->id() == QLatin1String("steptime") ? QStringLiteral("Step time")
                            : p->id() == QLatin1String("links")    ? QStringLiteral("Link use")
                            : p->id() == QLatin1String("timeline") ? QStringLiteral("GPU time")
                                                                   : QStringLiteral("Latency")))
            << id.toStdString() << when;
        EXPECT_GE(p->plotRect().height(), p->fontMetrics().height()) << id.toStdString() << when;
      }
      // The lanes of the GPUs are the last to be folded.
      if (pane("timeline")->folded()) {
        EXPECT_TRUE(pane("links")->folded() && pane("steptime")->folded()) << when;
      }
    }
  }
  window.setTextSize(9);
}

TEST_F(LayoutTest, ALargeWindowFoldsNothing) {
  open(stored(arrivals()), QSize(1680, 1020));
  EXPECT_EQ(foldedOf(window), QStringList());
  EXPECT_GE(pane("heatmap")->plotRect().height(), PaneStack::kHeatPlot);
  window.resize(1280, 800);
  QApplication::processEvents();
  EXPECT_NE(foldedOf(window), QStringList());
  window.resize(1680, 1020);
  QApplication::processEvents();
  EXPECT_EQ(foldedOf(window), QStringList());
}

TEST_F(LayoutTest, APaneIsFoldedByClickKeyAndMenu) {
  open(stored(demoRun(60)), QSize(1680, 1020));
  TimePane* links = pane("links");
  const int heat = pane("heatmap")->height();
  const auto title = [&] { return links->foldRect().center(); };
  QTest::mouseClick(links, Qt::LeftButton, {}, title());
  QApplication::processEvents();
  EXPECT_TRUE(links->folded());
  EXPECT_EQ(links->height(), links->foldedHeight());
  EXPECT_GT(pane("heatmap")->height(), heat) << "the heat map has its room";
  EXPECT_EQ(window.panes()->fold(QStringLiteral("links")), PaneStack::Fold::kFolded);
  // Mouse and cursor work in it; the number at the cursor stands beside the title.
  QTest::mouseMove(links, QPoint(1, 1));
  QTest::mouseMove(links, links->plotRect().center());
  EXPECT_TRUE(window.state()->cursor().has_value());
  links->grab();
  EXPECT_EQ(links->labels().size(), 2U);
  expectClear(window, ", one pane folded");
  QTest::mouseClick(links, Qt::LeftButton, {}, title());
  QApplication::processEvents();
  EXPECT_FALSE(links->folded());
  EXPECT_EQ(pane("heatmap")->height(), heat);
  // A click elsewhere in the header folds nothing.
  QTest::mouseClick(links, Qt::LeftButton, {}, QPoint(links->foldRect().right() + 40, 5));
  EXPECT_FALSE(links->folded());
  // Space, in the pane with the focus.
  links->setFocus();
  QTest::keyClick(links, Qt::Key_Space);
  EXPECT_TRUE(links->folded());
  QTest::keyClick(links, Qt::Key_Return);
  EXPECT_FALSE(links->folded());
  const auto action = [&](const char* text) {
    for (QAction* a : window.findChildren<QAction*>()) {
      if (a->text() == QLatin1String(text)) return a;
    }
    ADD_FAILURE() << text;
    return static_cast<QAction*>(nullptr);
  };
  action("Fold all but the heat map")->trigger();
  EXPECT_EQ(foldedOf(window).size(), 4);
  EXPECT_FALSE(pane("heatmap")->folded());
  action("Unfold all")->trigger();
  EXPECT_EQ(foldedOf(window).size(), 0);
  // In a small window what a person opened stays open, and the heat map gives way.
  window.resize(1280, 800);
  QApplication::processEvents();
  EXPECT_EQ(window.size(), QSize(1280, 800));
  EXPECT_FALSE(pane("timeline")->folded());
  for (TimePane* p : window.panes()->panes()) {
    if (!p->isVisible()) continue;
    EXPECT_GE(p->height(), p->minimumSizeHint().height()) << p->id().toStdString();
  }
  // The last one stays open: a window of titles only has no use.
  action("Fold all but the heat map")->trigger();
  QTest::mouseClick(pane("heatmap"), Qt::LeftButton, {}, pane("heatmap")->foldRect().center());
  EXPECT_FALSE(pane("heatmap")->folded());
  window.panes()->setFold(QStringLiteral("timeline"), PaneStack::Fold::kOpen);
  QTest::mouseClick(pane("heatmap"), Qt::LeftButton, {}, pane("heatmap")->foldRect().center());
  QApplication::processEvents();
  EXPECT_TRUE(pane("heatmap")->folded());
  EXPECT_GT(pane("timeline")->height(), 300);
  expectClear(window, ", the heat map folded");
  action("Fold as the window asks")->trigger();
  QApplication::processEvents();
  EXPECT_GE(pane("heatmap")->plotRect().height(), PaneStack::kHeatPlot);
  // A pane that is asked for comes open, also where others have to be folded for it.
  window.findChild<QAction*>(QStringLiteral("pane:memory"))->trigger();
  QApplication::processEvents();
  EXPECT_FALSE(pane("memory")->folded());
  EXPECT_GE(pane("heatmap")->plotRect().height(), PaneStack::kHeatPlot);
  window.follow(QStringLiteral("pane:steptime"));
  QApplication::processEvents();
  EXPECT_FALSE(pane("steptime")->folded());
  expectClear(window, ", memory and step time open");
}

TEST_F(LayoutTest, HeightsThatAPersonGaveStay) {
  open(stored(demoRun(60)), QSize(1680, 1020));
  auto* splitter = window.panes()->findChild<QSplitter*>();
  ASSERT_NE(splitter, nullptr);
  const int before = pane("imbalance")->height();
  // The handle above the second pane, 90 pixels up.
  QWidget* handle = splitter->handle(1);
  QTest::mousePress(handle, Qt::LeftButton, {}, QPoint(20, 1));
  QTest::mouseMove(handle, QPoint(20, -40));
  QTest::mouseMove(handle, QPoint(20, -89));
  QTest::mouseRelease(handle, Qt::LeftButton, {}, QPoint(20, -89));
  const int dragged = pane("imbalance")->height();
  EXPECT_GT(dragged, before + 40);
  const QByteArray state = window.panes()->sizesState();
  EXPECT_TRUE(state.contains("imbalance=" + QByteArray::number(dragged))) << state.toStdString();
  // Folding another one and back leaves it as it was.
  window.panes()->setFold(QStringLiteral("links"), PaneStack::Fold::kFolded);
  window.panes()->setFold(QStringLiteral("links"), PaneStack::Fold::kOpen);
  EXPECT_NEAR(pane("imbalance")->height(), dragged, 1);
  window.panes()->restoreSizes({});
  EXPECT_NEAR(pane("imbalance")->height(), before, 1);
  window.panes()->restoreSizes(state);
  EXPECT_NEAR(pane("imbalance")->height(), dragged, 1);
  window.panes()->restoreSizes("nonsense =3 imbalance=x links=-4 heatmap=999999999999");
  EXPECT_NEAR(pane("imbalance")->height(), before, 1) << "what is no height counts for nothing";
}

TEST_F(LayoutTest, ARunWithRequestsFitsIntoASmallWindow) {
  open(stored(arrivals()));
  window.restoreDefaultLayout();
  QApplication::processEvents();
  for (const char* name : {"events", "compare", "capacity", "requests", "health"}) {
    QWidget* dock = window.dock(QLatin1String(name));
    ASSERT_NE(dock, nullptr) << name;
    EXPECT_LT(dock->minimumSizeHint().height(), 110) << name;
  }
  EXPECT_EQ(window.size(), QSize(1280, 800));
}

TEST_F(LayoutTest, SmallestLargestAndSpreadOfAnExpertAreThoseOfItsSteps) {
  open(stored(demoRun(50)));
  const run::ExpertSteps& x = window.state()->run()->data().experts;
  const auto& steps = window.state()->run()->data().steps;
  const QAbstractItemModel& m = *window.expertsTable()->model();
  for (int r = 0; r < m.rowCount(); r += 7) {
    const auto e = m.index(r, 0).data(kIdRole).toUInt();
    double least = 1e9;
    double most = 0;
    double sum = 0;
    double squares = 0;
    double n = 0;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      if (steps[s].warmup) continue;
      const double v = x.kept[s * 64 + e];
      least = std::min(least, v);
      most = std::max(most, v);
      sum += v;
      squares += v * v;
      n += 1;
    }
    EXPECT_EQ(m.index(r, ExpertsModel::kMin).data(kSortRole).toDouble(), least);
    EXPECT_EQ(m.index(r, ExpertsModel::kMax).data(kSortRole).toDouble(), most);
    EXPECT_NEAR(m.index(r, ExpertsModel::kStd).data(kSortRole).toDouble(),
                std::sqrt(squares / n - sum / n * sum / n), 1e-6);
  }
}

TEST_F(LayoutTest, AZigzagMarksPixelsThatHoldMore) {
  // 2000 steps over some hundred pixels: every one holds several.
  open(stored(demoRun(2000)));
  auto* timeline = pane<TimelinePane>("timeline");
  timeline->grab();
  EXPECT_EQ(timeline->drawn().moreInside, static_cast<std::size_t>(timeline->plotRect().width()));
  EXPECT_TRUE(timeline->headerText().contains(QStringLiteral("zigzag")));
  const QImage image = timeline->grab().toImage();
  const QRect plot = timeline->plotRect();
  // It stands over the whole width, in two heights.
  for (const int x : {plot.left() + 30, plot.center().x(), plot.right() - 30}) {
    int marked = 0;
    for (int dx = 0; dx < 12; ++dx) {
      for (int y = plot.top() - 6; y < plot.top() - 1; ++y) {
        marked += image.pixelColor(x + dx, y) == window.state()->theme().window ? 0 : 1;
      }
    }
    EXPECT_GE(marked, 8) << x;
  }
  // Steps of many pixels, all phases thick: nothing is hidden.
  window.state()->setWindow({100, 104}, ViewState::Move::kJump);
  timeline->grab();
  const std::size_t wide = timeline->drawn().moreInside;
  EXPECT_LT(wide, static_cast<std::size_t>(plot.width()) / 20);
  // The same steps at 25 pixels each: thin phases are drawn as one pixel and marked.
  window.state()->setWindow({100, 100 + plot.width() / 25.0}, ViewState::Move::kJump);
  timeline->grab();
  EXPECT_GT(timeline->drawn().wideSteps, 0U);
  EXPECT_GT(timeline->drawn().moreInside, wide);
  // Events: a pixel of the minimap with several has a zigzag, and says how many.
  auto* map = pane<MinimapPane>("minimap");
  map->grab();
  const auto& events = window.state()->run()->events();
  std::map<int, int> perPixel;
  for (const run::Event& e : events) {
    ++perPixel[static_cast<int>(map->axis().xOf(static_cast<double>(e.step) + 0.5))];
  }
  const auto several = static_cast<std::size_t>(
      std::count_if(perPixel.begin(), perPixel.end(), [](const auto& p) { return p.second > 1; }));
  EXPECT_GT(several, 0U);
  EXPECT_EQ(map->moreInside(), several);
  QString said;
  QObject::connect(map, &TimePane::hovered, [&](const QString& text) { said = text; });
  const auto most = std::max_element(perPixel.begin(), perPixel.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  QTest::mouseMove(map, QPoint(1, 1));
  QTest::mouseMove(map, QPoint(most->first, map->plotRect().center().y()));
  EXPECT_TRUE(said.endsWith(QStringLiteral("events in this pixel: %1").arg(most->second)))
      << said.toStdString();
}

TEST_F(LayoutTest, TheCriticalPathIsNamedWhereItsStepIsOnScreen) {
  run::RunData data = demoRun();
  run::CriticalEntry e;
  e.step = 200;
  e.start_ps = data.steps[200].start_ps;
  e.duration_ps = 1000;
  data.critical_path.push_back(e);
  open(stored(std::move(data)), QSize(1680, 1020));
  auto* timeline = pane<TimelinePane>("timeline");
  const auto named = [&] {
    timeline->grab();
    const auto labels = timeline->labels();
    return std::any_of(labels.begin(), labels.end(),
                       [](const auto& l) { return l.text == QStringLiteral("critical"); });
  };
  EXPECT_TRUE(named());
  // At every zoom a mark of its colour stands above the lanes at that step.
  const QRect plot = timeline->plotRect();
  const int x = static_cast<int>(timeline->axis().xOf(200)) + 1;
  EXPECT_EQ(timeline->grab().toImage().pixelColor(x, plot.top() - 4),
            window.state()->theme().accent);
  window.state()->setWindow({0, 100}, ViewState::Move::kJump);
  EXPECT_FALSE(named());
}

TEST_F(LayoutTest, AxesOfTimeHaveNoTrailingZeros) {
  open(stored(demoRun()));
  window.grab();
  for (const char* id : {"steptime", "axis"}) {
    for (const TimePane::Label& l : pane(id)->labels()) {
      const QString number = l.text.section(' ', 0, 0);
      if (!number.contains('.') || l.text.contains(QStringLiteral("at "))) continue;
      EXPECT_FALSE(number.endsWith('0')) << id << ": " << l.text.toStdString();
    }
  }
  EXPECT_EQ(roundedTickText(1.0854e12), "1.085 s");
  EXPECT_EQ(roundedTickText(1.5e12), "1.5 s");
  EXPECT_EQ(roundedTickText(323'300'000'000.0), "323.3 ms");
  EXPECT_EQ(roundedTickText(0), "0 s");
}

TEST_F(LayoutTest, NamesOfCloseTargetsStandSideBySide) {
  run::RunData data = demoRun(60);
  for (std::uint32_t s = 5; s < 40; ++s) {
    run::RequestRecord q;
    q.id = s;
    q.arrival_ps = q.scheduled_ps = data.steps[s - 3].start_ps;
    q.first_token_ps = data.steps[s].end_ps;
    q.end_ps = data.steps[s + 10].end_ps;
    q.output_tokens = 9;
    q.outcome = run::RequestOutcome::kFinished;
    data.requests.push_back(q);
  }
  data.serving = true;
  data.meta.scenario_text +=
      "workload.tiers[0].ttft = \"200 ms\"\nworkload.tiers[1].ttft = \"500 ms\"\n"
      "workload.slo.tpot = \"50 ms\"\n";
  open(stored(std::move(data)));
  auto* latency = pane<LatencyPane>("latency");
  for (const int height : {70, 120, 400}) {
    LatencyPane alone(window.state());
    alone.setMargins(80, 20);
    alone.resize(760, height);
    alone.grab();
    const auto labels = alone.labels();
    int names = 0;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      names += labels[i].text.contains(QStringLiteral(" SLO ")) ? 1 : 0;
      EXPECT_TRUE(alone.rect().contains(labels[i].rect)) << labels[i].text.toStdString();
      for (std::size_t k = i + 1; k < labels.size(); ++k) {
        EXPECT_FALSE(
            labels[i].rect.adjusted(1, 2, -1, -2).intersects(labels[k].rect.adjusted(1, 2, -1, -2)))
            << labels[i].text.toStdString() << " and " << labels[k].text.toStdString();
      }
    }
    EXPECT_EQ(names, 3) << height;
  }
  ASSERT_NE(latency, nullptr);
}

TEST_F(LayoutTest, TheScrollBarIsThePartOfTheRunOnScreen) {
  open(stored(demoRun()));
  QScrollBar& bar = *window.panes()->scrollBar();
  ViewState& state = *window.state();
  EXPECT_FALSE(bar.isEnabled()) << "all of the run is on screen";
  // As wide as the plots.
  const QRect plot = pane("imbalance")->plotRect();
  EXPECT_EQ(bar.mapTo(window.panes(), QPoint(0, 0)).x(),
            pane("imbalance")->mapTo(window.panes(), plot.topLeft()).x());
  EXPECT_NEAR(bar.width(), plot.width(), 2);
  state.setWindow({100, 200}, ViewState::Move::kJump);
  EXPECT_TRUE(bar.isEnabled());
  EXPECT_NEAR(bar.value(), 250000, 1);
  EXPECT_NEAR(bar.pageStep(), 250000, 1);
  bar.setValue(500000);
  EXPECT_NEAR(state.window().first, 200, 1e-3);
  EXPECT_NEAR(state.window().length(), 100, 1e-9);
  bar.setValue(bar.maximum());
  EXPECT_NEAR(state.window().end, 400, 1e-3);
  // On an axis of time its units are times.
  state.setTimeAxis(true);
  bar.setValue(0);
  EXPECT_NEAR(state.window().first, 0, 1e-3);
  const RunStore& run = *state.run();
  const double all = static_cast<double>(run.data().steps.back().end_ps - run.startPs(0));
  bar.setValue(bar.maximum() / 2);
  const TimeScale& times = *state.timeScale();
  EXPECT_NEAR((times.psOf(state.window().first) - times.psOf(0)) / all,
              static_cast<double>(bar.value()) / (bar.maximum() + bar.pageStep()), 1e-5);
}

TEST_F(LayoutTest, MenusSwapEndAndCopy) {
  open(stored(demoRun(40), "a.h5"));
  const auto action = [&](const char* text) {
    for (QAction* a : window.findChildren<QAction*>()) {
      if (QString(a->text()).remove('&') == QString::fromUtf8(text)) return a;
    }
    ADD_FAILURE() << "no action " << text;
    return static_cast<QAction*>(nullptr);
  };
  EXPECT_FALSE(action("Swap A and B")->isEnabled());
  EXPECT_FALSE(action("End the comparison")->isEnabled());
  window.compareWith(stored(demoRun(60), "b.h5"));
  action("Swap A and B")->trigger();
  EXPECT_EQ(window.state()->run()->name(), "b.h5");
  EXPECT_EQ(window.state()->other()->name(), "a.h5");
  action("End the comparison")->trigger();
  EXPECT_EQ(window.state()->other(), nullptr);
  EXPECT_EQ(window.state()->run()->name(), "b.h5");
  // The hottest steps of an expert, by key as by a double click.
  window.state()->setExpert(3);
  action("Hottest steps of the expert")->trigger();
  EXPECT_LT(window.state()->window().length(), 60);
  QApplication::clipboard()->clear();
  action("Copy picture")->trigger();
  EXPECT_EQ(QApplication::clipboard()->image().size(), window.size() * 2);
}

TEST_F(LayoutTest, ASelectionGoesBeforeTheCursorEverywhere) {
  open(stored(demoRun()));
  auto* heat = pane<HeatPane>("heatmap");
  const auto at = [&](double step) {
    return QPoint(static_cast<int>(heat->axis().xOf(step)), heat->plotRect().center().y());
  };
  QTest::mouseMove(heat, at(100.5));
  QTest::mousePress(heat, Qt::LeftButton, {}, at(100.5));
  QTest::mouseMove(heat, at(120.5));
  QTest::mouseMove(heat, at(140.5));
  QTest::mouseRelease(heat, Qt::LeftButton, {}, at(140.5));
  for (QWidget* menu : QApplication::topLevelWidgets()) {
    if (qobject_cast<QMenu*>(menu) != nullptr) menu->close();
  }
  const auto range = window.state()->selection();
  ASSERT_TRUE(range.has_value());
  ASSERT_TRUE(window.state()->cursor().has_value());
  const QString steps = QStringLiteral("teps %1–%2").arg(range->first).arg(range->end - 1);
  EXPECT_TRUE(window.inspector()->heading().contains(steps));
  EXPECT_TRUE(window.topology()->when().contains(steps)) << window.topology()->when().toStdString();
  QString name;
  const StepSpan span = spanOf(*window.state(), name);
  EXPECT_TRUE(name.contains(steps)) << name.toStdString();
  EXPECT_EQ(span.first, range->first);
  EXPECT_EQ(span.end, range->end);
  window.state()->setSelection(std::nullopt);
  EXPECT_TRUE(window.topology()->when().contains(QStringLiteral("at step")));
}

TEST_F(LayoutTest, TypingInATableFindsARow) {
  open(stored(demoRun()));
  window.state()->setWindow({32, 96}, ViewState::Move::kJump);
  TableView* table = window.expertsTable();
  table->setFocus();
  QTest::keyClicks(table, QStringLiteral("e10"));
  EXPECT_EQ(window.state()->expert(), 10U);
  EXPECT_EQ(window.state()->window(), (TimeWindow{32, 96})) << "0 is a digit here, no shortcut";
  // A double click zooms to the expert's hottest steps.
  const QRect cell = table->visualRect(table->currentIndex());
  QTest::mouseClick(table->viewport(), Qt::LeftButton, {}, cell.center());
  QTest::mouseDClick(table->viewport(), Qt::LeftButton, {}, cell.center());
  EXPECT_NE(window.state()->window(), (TimeWindow{32, 96}));
  pane("heatmap")->setFocus();
  QTest::keyClick(pane("heatmap"), Qt::Key_0);
  EXPECT_EQ(window.state()->window(), (TimeWindow{0, 400}));
}

TEST_F(LayoutTest, LinksOfTheOtherRunAreDrawnDashed) {
  open(stored(demoRun(), "a.h5"));
  auto* links = pane<LinkPane>("links");
  const QImage alone = links->grab().toImage();
  run::RunData busier = demoRun();
  for (std::int64_t& busy : busier.links.busy_ps) busy = busy * 3 / 2;
  window.compareWith(stored(std::move(busier), "b.h5"));
  QApplication::processEvents();
  links->grab();
  const auto labels = links->labels();
  const auto name = std::find_if(labels.begin(), labels.end(), [](const auto& l) {
    return l.text.startsWith(QStringLiteral("B, "));
  });
  ASSERT_NE(name, labels.end());
  // Pixels of its colour in the plot, which are gone when its name is clicked.
  const auto dashes = [&] {
    const QImage image = links->grab().toImage();
    const QRect plot = links->plotRect();
    int n = 0;
    for (int y = plot.top() + 1; y < plot.bottom(); ++y) {
      for (int x = plot.left() + 1; x < plot.right(); ++x) {
        const QColor c = image.pixelColor(x, y);
        n += contrast(c, window.state()->theme().base) > 8 ? 1 : 0;
      }
    }
    return n;
  };
  const int with = dashes();
  QTest::mouseClick(links, Qt::LeftButton, {}, name->rect.center());
  EXPECT_GT(with, dashes() + 50);
}

TEST_F(LayoutTest, MemoryIsThatOfTheChosenGpu) {
  open(stored(demoRun()));
  auto* memory = pane<MemoryPane>("memory");
  const std::size_t fullest = memory->gpu();
  window.state()->setGpu(fullest == 3 ? 4 : 3);
  EXPECT_EQ(memory->gpu(), window.state()->gpu());
  EXPECT_TRUE(memory->headerText().contains(QStringLiteral("chosen")));
  window.state()->setGpu(run::kNone);
  EXPECT_EQ(memory->gpu(), fullest);
}

TEST_F(LayoutTest, BackUndoesFiltersAndZoomsInTurn) {
  open(stored(demoRun()));
  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  ViewState& state = *window.state();
  state.setWindow({100, 200}, ViewState::Move::kJump);
  QTest::keyClicks(find, QStringLiteral("over"));
  state.setWindow({120, 140}, ViewState::Move::kJump);
  EXPECT_TRUE(state.back());
  EXPECT_EQ(state.window(), (TimeWindow{100, 200}));
  EXPECT_EQ(find->text(), QStringLiteral("over"));
  EXPECT_TRUE(state.back()) << "four letters are one filter";
  EXPECT_EQ(find->text(), QString());
  EXPECT_EQ(state.window(), (TimeWindow{100, 200}));
  EXPECT_TRUE(state.back());
  EXPECT_EQ(state.window(), (TimeWindow{0, 400}));
  EXPECT_FALSE(state.back());
  // A filter of another run is forgotten with it.
  QTest::keyClicks(find, QStringLiteral("over"));
  window.showRun(stored(demoRun(30), "other.h5"));
  EXPECT_EQ(find->text(), QString());
  EXPECT_FALSE(window.state()->back());
}

TEST_F(LayoutTest, ARequestsLifeIsDrawn) {
  run::RunData data = demoRun(60);
  for (std::uint32_t s = 5; s < 40; ++s) {
    run::RequestRecord q;
    q.id = s;
    q.arrival_ps = data.steps[s - 3].start_ps;
    q.scheduled_ps = data.steps[s - 1].start_ps;
    q.first_token_ps = data.steps[s].end_ps;
    q.end_ps = data.steps[s + 10].end_ps;
    q.output_tokens = 11;
    q.outcome = run::RequestOutcome::kFinished;
    q.preemptions = s == 7 ? 2 : 0;
    q.met_slo = s % 2;
    data.requests.push_back(q);
  }
  data.serving = true;
  const auto first = data.requests[2];
  open(stored(std::move(data)));
  window.dock(QStringLiteral("requests"))->raise();
  QApplication::processEvents();
  auto* view = window.findChild<RequestsView*>();
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(view->life()->caption().startsWith(QStringLiteral("Choose")));
  TableView& table = *view->table();
  int row = -1;
  for (int r = 0; r < table.model()->rowCount(); ++r) {
    if (table.model()->index(r, RequestsModel::kId).data() == QStringLiteral("7")) row = r;
  }
  ASSERT_GE(row, 0);
  EXPECT_EQ(table.model()->index(row, RequestsModel::kWait).data(kSortRole).toDouble(),
            static_cast<double>(first.scheduled_ps - first.arrival_ps));
  EXPECT_EQ(table.model()->index(row, RequestsModel::kSlo).data(), QStringLiteral("met"));
  table.setCurrentIndex(table.model()->index(row, 0));
  QApplication::processEvents();
  view->life()->grab();
  EXPECT_TRUE(view->life()->caption().startsWith(QStringLiteral("Request 7: waits ")))
      << view->life()->caption().toStdString();
  EXPECT_TRUE(view->life()->caption().contains(QStringLiteral("2 times preempted")));
  // The sentence is whole, in two lines where the table leaves no room for one.
  const auto texts = testing::textsOf(*view->life());
  QStringList drawn;
  for (const auto& t : texts) drawn << t.text;
  EXPECT_EQ(drawn.join(' '), view->life()->caption());
  EXPECT_LE(texts.size(), 2U);
  EXPECT_FALSE(table.visualRect(table.currentIndex()).isEmpty());
  EXPECT_TRUE(table.viewport()->rect().contains(table.visualRect(table.currentIndex())));
  for (HistogramView* h : {view->ttft(), view->tpot()}) {
    QStringList words;
    for (const auto& t : testing::textsOf(*h)) words << t.text;
    EXPECT_TRUE(words.join(' ').startsWith(h->caption())) << words.join(' ').toStdString();
  }
  // Three parts one behind the other, as long as their times.
  const auto& parts = view->life()->parts();
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_NEAR(parts[1].left(), parts[0].right() + 1, 2);
  EXPECT_NEAR(parts[2].left(), parts[1].right() + 1, 2);
  const double all = static_cast<double>(first.end_ps - first.arrival_ps);
  const double width = parts[2].right() + 1 - parts[0].left();
  EXPECT_NEAR(parts[0].width() / width,
              static_cast<double>(first.scheduled_ps - first.arrival_ps) / all, 0.02);
  EXPECT_NEAR(parts[2].width() / width,
              static_cast<double>(first.end_ps - first.first_token_ps) / all, 0.02);
  window.showRun(stored(demoRun(30), "none.h5"));
  EXPECT_TRUE(view->life()->caption().startsWith(QStringLiteral("Choose")));
}

TEST(Panes, ThatAreShownAndTheirColoursAreKept) {
  const QString config = QDir(QStringLiteral("panes_config")).absolutePath();
  QDir(config).removeRecursively();
  QSettings::setPath(QSettings::NativeFormat, QSettings::UserScope, config);
  const auto action = [](MainWindow& w, const char* name) {
    auto* a = w.findChild<QAction*>(QString::fromLatin1(name));
    EXPECT_NE(a, nullptr) << name;
    return a;
  };
  {
    MainWindow first(true);
    first.showRun(stored(demoRun(30)));
    first.show();
    QApplication::processEvents();
    action(first, "pane:entropy")->trigger();
    action(first, "pane:links")->trigger();
    first.panes()->setFold(QStringLiteral("timeline"), PaneStack::Fold::kFolded);
    first.panes()->setFold(QStringLiteral("imbalance"), PaneStack::Fold::kOpen);
    action(first, "colors:1")->trigger();
    action(first, "rows:2")->trigger();
    first.close();
  }
  MainWindow second(true);
  second.showRun(stored(demoRun(30)));
  second.show();
  QApplication::processEvents();
  EXPECT_TRUE(second.panes()->pane(QStringLiteral("entropy"))->isVisible());
  EXPECT_FALSE(second.panes()->pane(QStringLiteral("links"))->isVisible());
  EXPECT_TRUE(second.panes()->pane(QStringLiteral("timeline"))->folded());
  EXPECT_EQ(second.panes()->fold(QStringLiteral("imbalance")), PaneStack::Fold::kOpen);
  EXPECT_EQ(second.panes()->fold(QStringLiteral("steptime")), PaneStack::Fold::kAuto);
  EXPECT_EQ(second.state()->colorMap(), ColorMap::kCividis);
  EXPECT_EQ(second.state()->rowOrder(), RowOrder::kLoad);
  for (QAction* a : second.findChildren<QAction*>()) {
    if (a->text() == QStringLiteral("Restore default layout")) a->trigger();
  }
  EXPECT_EQ(second.panes()->fold(QStringLiteral("timeline")), PaneStack::Fold::kAuto);
  EXPECT_FALSE(second.panes()->pane(QStringLiteral("entropy"))->isVisible());
  EXPECT_TRUE(second.panes()->pane(QStringLiteral("links"))->isVisible());
}

TEST_F(LayoutTest, AWindowOfAbsurdSizeIsDrawnAndComesBack) {
  open(stored(demoRun(60)));
  for (const QSize size : {QSize(1, 1), QSize(300, 9000), QSize(12000, 200), QSize(1280, 800)}) {
    window.resize(size);
    QApplication::processEvents();
    EXPECT_FALSE(window.grab().isNull());
  }
  EXPECT_EQ(window.size(), QSize(1280, 800));
  // A pane without any room draws nothing, and does not fail.
  for (const char* id : {"heatmap", "imbalance", "links", "timeline", "latency", "memory"}) {
    pane(id)->resize(5, 3);
    EXPECT_FALSE(pane(id)->grab().isNull());
  }
}

}  // namespace
}  // namespace switchyard::gui
