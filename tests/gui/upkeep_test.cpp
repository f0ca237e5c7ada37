// SPDX-License-Identifier: Apache-2.0
// What keeps the window honest about files, names and work in the background: the command line of a
// run, runs kept on disk, bars with Cancel, warnings, docks as pictures and numbers.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <thread>

#include <QAction>
#include <QApplication>
#include <QClipboard>
#include <QComboBox>
#include <QDir>
#include <QDockWidget>
#include <QImage>
#include <QLineEdit>
#include <QMessageBox>
#include <QPushButton>
#include <QTest>
#include <QTreeView>

#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "engine/base/file_hash.hpp"
#include "engine/base/hash.hpp"
#include "gui/core/gallery.hpp"
#include "gui/core/scenariodocument.hpp"
#include "gui/mainwindow.hpp"
#include "gui/render.hpp"
#include "gui/runsfolder.hpp"
#include "gui/stepspanes.hpp"
#include "gui/text.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

namespace fs = std::filesystem;
using testing::demoRun;
using testing::kTinyScenario;
using testing::stored;
using testing::wait;
using testing::writeText;

class UpkeepTest : public ::testing::Test {
 protected:
  void open(std::shared_ptr<const RunStore> run) {
    window.resize(1680, 1020);
    window.showRun(std::move(run));
    window.show();
    QApplication::processEvents();
    window.restoreDefaultLayout();
    QApplication::processEvents();
  }
  QAction* action(const char* text) {
    for (QAction* a : window.findChildren<QAction*>()) {
      if (a->text() == QString::fromUtf8(text)) return a;
    }
    ADD_FAILURE() << text;
    return nullptr;
  }
  MainWindow window{false};
};

TEST_F(UpkeepTest, TheCommandLineNamesTheTraceThatTheRunReplayed) {
  const fs::path folder = fs::absolute("upkeep-trace");
  fs::create_directories(folder);
  writeText((folder / "t.h5").string(), "the trace");
  writeText((folder / "s.toml").string(), kTinyScenario);
  run::RunData data = demoRun(20);
  data.meta.scenario_text = "workload.routing.trace = t.h5\n";
  data.meta.trace_hash = hex64(hash64_of_file((folder / "t.h5").string()));
  run::write_run((folder / "run.h5").string(), data);
  open(std::make_shared<const RunStore>(folder / "run.h5"));
  window.whatIf()->setScenario(qs((folder / "s.toml").string()), {});
  const QString found = window.commandLine();
  EXPECT_TRUE(found.contains(QStringLiteral("--trace ") + qs((folder / "t.h5").string())))
      << found.toStdString();
  EXPECT_TRUE(found.startsWith(QStringLiteral("switchyard sim ")));
  // Another file of that name is not the one: the name says what to look for.
  writeText((folder / "t.h5").string(), "another trace");
  const QString lost = window.commandLine();
  EXPECT_TRUE(lost.contains(QStringLiteral("--trace t.h5"))) << lost.toStdString();
}

void search(QAbstractItemView& view, const QString& letters) { view.keyboardSearch(letters); }

TEST_F(UpkeepTest, TypingFindsTheFirstColumnWithAMatch) {
  open(stored(demoRun()));
  TableView& table = *window.expertsTable();
  ASSERT_GT(table.model()->rowCount(), 30);
  // The column clicked last holds numbers: the expert is found all the same.
  table.setCurrentIndex(table.model()->index(3, ExpertsModel::kMean));
  search(table, QStringLiteral("e19"));
  EXPECT_EQ(table.currentIndex().data(kIdRole).toUInt(), 19U);
  const int row = table.currentIndex().row();
  QTest::qWait(QApplication::keyboardInputInterval() + 50);
  search(table, QStringLiteral("nothing like it"));
  EXPECT_EQ(table.currentIndex().row(), row);
  // The events: a word of the last column, letter by letter.
  TableView& events = *window.eventsTable();
  QString text;
  for (int r = 0; r < events.model()->rowCount() && text.isEmpty(); ++r) {
    text = events.model()->index(r, EventsModel::kText).data().toString().left(4);
  }
  ASSERT_FALSE(text.isEmpty());
  events.setCurrentIndex({});
  QTest::qWait(QApplication::keyboardInputInterval() + 50);
  for (const QChar c : text) search(events, QString(c));
  EXPECT_TRUE(events.currentIndex().data().toString().startsWith(text, Qt::CaseInsensitive));
}

TEST_F(UpkeepTest, RunsKeptOnDiskAreListedAndDeleted) {
  const QString folder = QDir::current().absoluteFilePath(QStringLiteral("upkeep-runs"));
  QDir(folder).removeRecursively();
  {
    const RunsFolder none(folder);
    EXPECT_EQ(none.table()->model()->rowCount(), 0);
    EXPECT_FALSE(none.deleteButton()->isEnabled());
  }
  QDir().mkpath(folder);
  writeText((folder + "/small.h5").toStdString(), std::string(500, 'x'));
  writeText((folder + "/large.h5").toStdString(), std::string(3'000'000, 'x'));
  writeText((folder + "/middle.h5").toStdString(), std::string(20'000, 'x'));
  writeText((folder + "/notes.txt").toStdString(), "no run");
  RunsFolder dialog(folder);
  dialog.show();
  auto& model = *dialog.table()->model();
  ASSERT_EQ(model.rowCount(), 3);
  EXPECT_TRUE(dialog.text().startsWith(QStringLiteral("3 files, 3.02")))
      << dialog.text().toStdString();
  // By size, not by its letters.
  dialog.table()->sortByColumn(1, Qt::AscendingOrder);
  EXPECT_EQ(model.index(0, 0).data(), QStringLiteral("small.h5"));
  EXPECT_EQ(model.index(2, 0).data(), QStringLiteral("large.h5"));
  QStringList opened;
  QObject::connect(&dialog, &RunsFolder::openWanted, [&](const QStringList& f) { opened = f; });
  dialog.table()->selectRow(2);
  ASSERT_TRUE(dialog.deleteButton()->isEnabled());
  QTest::mouseClick(dialog.deleteButton(), Qt::LeftButton);
  auto* ask = dialog.findChild<QMessageBox*>();
  ASSERT_NE(ask, nullptr);
  EXPECT_TRUE(QFile::exists(folder + "/large.h5")) << "not before it is asked";
  auto* yes = ask->findChild<QPushButton*>(QStringLiteral("reallyDelete"));
  ASSERT_NE(yes, nullptr);
  QTest::mouseClick(yes, Qt::LeftButton);
  EXPECT_FALSE(QFile::exists(folder + "/large.h5"));
  EXPECT_EQ(model.rowCount(), 2);
  EXPECT_TRUE(QFile::exists(folder + "/notes.txt"));
  dialog.table()->selectRow(0);
  QTest::mouseClick(dialog.openButton(), Qt::LeftButton);
  EXPECT_EQ(opened, QStringList{folder + "/small.h5"});
  EXPECT_NE(action("Runs kept on &disk…"), nullptr);
}

TEST_F(UpkeepTest, HealthHasABarAndCanBeCancelledAndReadAgain) {
  std::atomic<bool> stopped{false};
  std::atomic<int> asked{0};
  window.health()->setJudge([&](const RunStore&, const std::atomic<bool>& stop) {
    ++asked;
    while (!stop && asked == 1) std::this_thread::yield();
    if (stop) stopped = true;
    HealthReport report;
    report.watched.columns = {"signal", "mean"};
    report.watched.rows = {{"a", "10 us"}, {"b", "9.5 us"}, {"c", "-"}};
    return report;
  });
  open(stored(demoRun(20)));
  window.dock(QStringLiteral("health"))->raise();
  ReadingBar& bar = *window.health()->readingBar();
  ASSERT_TRUE(wait([&] { return window.health()->busy() && bar.isVisible(); }, 5000));
  EXPECT_EQ(bar.button()->text(), QStringLiteral("Cancel"));
  QTest::mouseClick(bar.button(), Qt::LeftButton);
  EXPECT_FALSE(window.health()->busy());
  EXPECT_TRUE(wait([&] { return stopped.load(); }, 5000));
  EXPECT_TRUE(wait([&] { return window.health()->threads() == 0; }, 5000));
  EXPECT_TRUE(window.health()->table(0)->model()->index(0, 0).data().toString().startsWith(
      QStringLiteral("stopped")));
  EXPECT_EQ(asked, 1) << "not read again by itself";
  EXPECT_EQ(bar.button()->text(), QStringLiteral("Read"));
  QTest::mouseClick(bar.button(), Qt::LeftButton);
  ASSERT_TRUE(wait([&] { return window.health()->table(0)->model()->rowCount() == 3; }, 5000));
  EXPECT_FALSE(bar.isVisible());
  // Sorted by value: 9.5 is less than 10, and what is no number less than both.
  TableView& table = *window.health()->table(0);
  table.sortByColumn(1, Qt::AscendingOrder);
  QStringList order;
  for (int r = 0; r < 3; ++r) order << table.model()->index(r, 0).data().toString();
  EXPECT_EQ(order, (QStringList{"c", "b", "a"}));
}

TEST_F(UpkeepTest, TheMemoryPaneHasABarAndCanBeCancelledAndReadAgain) {
  run::RunData data = demoRun(3000);
  run::write_run("upkeep_memory.h5", data);
  open(std::make_shared<const RunStore>(fs::path("upkeep_memory.h5")));
  auto* pane = dynamic_cast<MemoryPane*>(window.panes()->pane(QStringLiteral("memory")));
  ASSERT_NE(pane, nullptr);
  pane->setReadSteps(100);
  window.findChild<QAction*>(QStringLiteral("pane:memory"))->setChecked(true);
  pane->grab();  // begins to read
  ASSERT_TRUE(pane->reading());
  emit pane->readingBar()->cancelled();
  EXPECT_FALSE(pane->reading());
  pane->grab();
  EXPECT_FALSE(pane->reading()) << "not read again by itself";
  ASSERT_TRUE(wait([&] { return pane->readingBar()->isVisible(); }, 2000));
  EXPECT_EQ(pane->readingBar()->button()->text(), QStringLiteral("Read"));
  EXPECT_TRUE(pane->rect().contains(pane->readingBar()->geometry()));
  bool said = false;
  for (const TimePane::Label& l : pane->labels()) said = said || l.text.startsWith("stopped");
  EXPECT_TRUE(said);
  QTest::mouseClick(pane->readingBar()->button(), Qt::LeftButton);
  EXPECT_TRUE(pane->reading());
  ASSERT_TRUE(wait([&] { return !pane->reading(); }, 20000));
  EXPECT_TRUE(wait([&] { return !pane->readingBar()->isVisible(); }, 2000));
}

TEST_F(UpkeepTest, AnImpossibleValueIsNotSavedWithoutAWord) {
  writeText("upkeep_bad.toml", kTinyScenario);
  window.openScenario(QStringLiteral("upkeep_bad.toml"));
  ASSERT_EQ(window.page(), MainWindow::Page::kScenario);
  EXPECT_EQ(window.windowTitle(), QStringLiteral("upkeep_bad.toml — Switchyard"));
  window.form()->setValue(QStringLiteral("workload.batch"), QStringLiteral("-3"));
  EXPECT_EQ(window.windowTitle(), QStringLiteral("upkeep_bad.toml (changed) — Switchyard"));
  const auto onDisk = [] {
    std::ifstream in("upkeep_bad.toml");
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  window.form()->saveButton()->click();
  EXPECT_EQ(onDisk(), kTinyScenario);
  EXPECT_TRUE(window.form()->problemText().contains(QStringLiteral("Save once more")))
      << window.form()->problemText().toStdString();
  window.form()->saveButton()->click();
  EXPECT_NE(onDisk().find("batch = -3"), std::string::npos) << "asked for twice";
  window.form()->setValue(QStringLiteral("workload.batch"), QStringLiteral("16"));
  window.form()->saveButton()->click();
  EXPECT_NE(onDisk().find("batch = 16"), std::string::npos) << "a sound one at once";
}

TEST_F(UpkeepTest, ACapacityFactorBringsALimitWhereTheScenarioHasNone) {
  const QString rule = QStringLiteral("policy.capacity.rule=share");
  const QString factor = QStringLiteral("policy.capacity.factor=1.5");
  WhatIf strip;
  strip.factor()->setText(QStringLiteral("1.5"));
  // Explorations without a limit, and one with: what the strip sends resolves.
  for (const char* name : {"mixed_fabric", "offload_lru", "gpu_failure", "serving_mixtral"}) {
    const QString file = qs((scenariosFolder() / (std::string(name) + ".toml")).string());
    strip.setScenario(file, {});
    const QStringList sent = strip.settings();
    EXPECT_EQ(sent, (QStringList{rule, factor})) << name;
    ScenarioDocument document(file.toStdString());
    for (const QString& s : sent) {
      document.set(s.section('=', 0, 0).toStdString(), s.section('=', 1).toStdString());
    }
    EXPECT_EQ(document.problem().value_or(""), "") << name;
  }
  strip.setScenario(qs((scenariosFolder() / "overloaded_expert.toml").string()), {});
  EXPECT_EQ(strip.settings(), QStringList{factor}) << "its limit stays as it is";
  // Of a run whose own settings took the limit away, or brought one.
  writeText("upkeep_factor.toml", kTinyScenario);
  const QString tiny = QStringLiteral("upkeep_factor.toml");
  strip.setScenario(tiny, {});
  EXPECT_EQ(strip.settings(), QStringList{factor});
  const QStringList own = {QStringLiteral("policy.capacity.factor=1"),
                           QStringLiteral("policy.capacity.rule=none")};
  strip.setScenario(tiny, own);
  EXPECT_EQ(strip.settings(), own + QStringList({rule, factor}));
  const QString fabric = qs((scenariosFolder() / "mixed_fabric.toml").string());
  strip.setScenario(fabric, {QStringLiteral("policy.capacity.rule=megatron")});
  EXPECT_EQ(strip.settings(),
            (QStringList{QStringLiteral("policy.capacity.rule=megatron"), factor}));
  // A policy with a limit of its own, chosen in the strip.
  strip.setScenario(fabric, {});
  strip.policy()->setCurrentIndex(strip.policy()->findText(QStringLiteral("capacity_2.0")));
  ASSERT_GT(strip.policy()->currentIndex(), 0);
  EXPECT_EQ(strip.settings().size(), 2);
  EXPECT_FALSE(strip.settings().contains(rule)) << strip.settings().join(' ').toStdString();
  EXPECT_TRUE(strip.settings().contains(factor));
  // Limits without a factor are refused in words of the strip.
  strip.policy()->setCurrentIndex(0);
  const auto refused = [&](const QStringList& settings) {
    strip.setScenario(fabric, settings);
    try {
      (void)strip.settings();
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refused({QStringLiteral("policy.capacity.absolute=8"),
                     QStringLiteral("policy.capacity.rule=absolute")})
                .find("policy.capacity.rule = absolute, has no factor"),
            std::string::npos);
  EXPECT_NE(refused({QStringLiteral("policy.capacity.rule=share"),
                     QStringLiteral("policy.capacity.dynamic=log2")})
                .find("policy.capacity.dynamic = log2"),
            std::string::npos);
}

TEST_F(UpkeepTest, TheLossOfAGpuIsAddedToTheFaultsOfTheScenario) {
  WhatIf strip;
  strip.setGpus({QStringLiteral("gpu0"), QStringLiteral("gpu5")});
  strip.lost()->setCurrentIndex(2);
  strip.setStep(7);
  const auto faults = [&] {
    QString out;
    for (const QString& s : strip.settings()) {
      if (s.startsWith(QStringLiteral("faults.events="))) out = s;
    }
    return out;
  };
  const QString lost = QStringLiteral("gpu = \"gpu5\", step = 7");
  const QString scenarios = QString(SWITCHYARD_SOURCE_DIR) + QStringLiteral("/scenarios/");
  strip.setScenario(scenarios + QStringLiteral("gpu_failure.toml"), {});
  const QString all = faults();
  EXPECT_EQ(all.count(QStringLiteral("kind")), 3) << all.toStdString();
  EXPECT_TRUE(all.contains(lost)) << all.toStdString();
  // After a run that had such a list itself.
  strip.setScenario(
      scenarios + QStringLiteral("gpu_failure.toml"),
      {QStringLiteral("faults.events=[{ kind = \"gpu_loss\", gpu = \"gpu1\", step = 2 }]")});
  EXPECT_EQ(faults().count(QStringLiteral("kind")), 2) << faults().toStdString();
  EXPECT_TRUE(faults().contains(QStringLiteral("gpu1")));
  strip.setScenario(scenarios + QStringLiteral("gpu_failure.toml"),
                    {QStringLiteral("faults.events[0].step=11")});
  EXPECT_EQ(faults().count(QStringLiteral("kind")), 3);
  EXPECT_TRUE(faults().contains(QStringLiteral("step = 11"))) << faults().toStdString();
  writeText("upkeep_none.toml", kTinyScenario);
  strip.setScenario(QStringLiteral("upkeep_none.toml"), {});
  EXPECT_EQ(faults().count(QStringLiteral("kind")), 1);
}

TEST_F(UpkeepTest, FitShowsTheChosenPhaseAndTheTreeOfRunsCanBeCopied) {
  open(stored(demoRun()));
  window.state()->setCursor(200);
  action("Fit selection")->trigger();
  EXPECT_EQ(window.state()->window().length(), 400) << "a cursor alone chooses nothing";
  window.state()->setGpu(3);
  action("Fit selection")->trigger();
  const TimeWindow w = window.state()->window();
  EXPECT_EQ(w.length(), 4);
  EXPECT_LE(w.first, 200);
  EXPECT_GE(w.end, 201);
  auto* tree = window.findChild<QTreeView*>();
  ASSERT_NE(tree, nullptr);
  tree->setCurrentIndex(tree->model()->index(0, 0));
  QApplication::clipboard()->clear();
  tree->setFocus();
  for (QAction* a : tree->actions()) {
    if (a->shortcut() == QKeySequence(QKeySequence::Copy)) a->trigger();
  }
  const QString copied = QApplication::clipboard()->text();
  EXPECT_TRUE(copied.startsWith(QStringLiteral("run\tdemo.h5\nscenario\t")))
      << copied.toStdString();
  EXPECT_TRUE(copied.contains(QStringLiteral("\nGPUs\t8\n")));
}

TEST_F(UpkeepTest, AHiddenNameComesBackWithAnotherComparison) {
  run::RunData one = demoRun(60);
  one.inventory.moe_layers = {1};
  one.inventory.placement.resize(64);
  one.meta.detail = run::Detail::kSteps;
  open(stored(one, "a.h5"));
  window.compareWith(stored(demoRun(50), "b.h5"));
  auto* pane = dynamic_cast<LinePane*>(window.panes()->pane(QStringLiteral("imbalance")));
  const auto click = [&](const QString& name) {
    pane->grab();
    for (const TimePane::Label& l : pane->labels()) {
      if (l.text == name) QTest::mouseClick(pane, Qt::LeftButton, {}, l.rect.center());
    }
  };
  // One layer: the two runs have names all the same.
  click(QStringLiteral("A"));
  click(QStringLiteral("B"));
  EXPECT_TRUE(pane->hidden(QStringLiteral("A")));
  EXPECT_TRUE(pane->hidden(QStringLiteral("B")));
  window.compareWith(stored(demoRun(40), "c.h5"));
  EXPECT_FALSE(pane->hidden(QStringLiteral("B")));
}

TEST_F(UpkeepTest, NamesInTheComparisonHaveTheRoomThatIsLeft) {
  run::RunData b = demoRun(30);
  b.meta.scenario_text = "policy.capacity.factor_of_a_long_name = 2\n";
  run::RunData a = demoRun(30);
  a.meta.scenario_text = "policy.capacity.factor_of_a_long_name = 1\n";
  open(stored(std::move(a), "a.h5"));
  window.compareWith(stored(std::move(b), "b.h5"));
  window.dock(QStringLiteral("compare"))->raise();
  QApplication::processEvents();
  window.resize(1681, 1020);
  QApplication::processEvents();
  const TableView& table = *window.compare()->table();
  const QString name = table.model()->index(0, CompareModel::kName).data().toString();
  EXPECT_EQ(name, QStringLiteral("policy.capacity.factor_of_a_long_name"));
  EXPECT_GE(table.columnWidth(CompareModel::kName), table.fontMetrics().horizontalAdvance(name));
  int all = 0;
  for (int c = 0; c < CompareModel::kColumns; ++c) all += table.columnWidth(c);
  EXPECT_LE(all, table.viewport()->width());
}

TEST_F(UpkeepTest, NumbersOfTheComparisonAreWholeBesideLongNames) {
  run::RunData b = demoRun(30);
  b.meta.scenario_text = "workload.arrivals.name_of_a_key_that_is_long_indeed = \"hierarchical\"\n";
  run::RunData a = demoRun(40);
  a.meta.scenario_text = "workload.arrivals.name_of_a_key_that_is_long_indeed = \"ring\"\n";
  open(stored(std::move(a), "run_of_a_scenario_with_a_name_that_is_long_indeed_a.h5"));
  window.compareWith(stored(std::move(b), "run_of_a_scenario_with_a_name_that_is_long_indeed_b.h5"));
  window.dock(QStringLiteral("compare"))->raise();
  const TableView& table = *window.compare()->table();
  const auto layOut = [&](const QSize& size) {
    window.resize(size);
    QApplication::processEvents();
    window.restoreDefaultLayout();
    window.dock(QStringLiteral("compare"))->raise();
    QApplication::processEvents();
    QApplication::processEvents();
  };
  layOut(QSize(1280, 800));
  int all = 0;
  for (int c = 0; c < CompareModel::kColumns; ++c) all += table.columnWidth(c);
  EXPECT_LE(all, table.viewport()->width()) << "all columns are on screen";
  layOut(QSize(1680, 1020));
  all = 0;
  for (int c = 0; c < CompareModel::kColumns; ++c) {
    all += table.columnWidth(c);
    for (int r = 0; r < table.model()->rowCount(); ++r) {
      const QModelIndex at = table.model()->index(r, c);
      if (at.data(kSortRole).userType() != QMetaType::Double) continue;
      const QString text = at.data().toString();
      EXPECT_LE(table.fontMetrics().horizontalAdvance(text) + 4, table.columnWidth(c))
          << c << ": " << text.toStdString();
    }
  }
  EXPECT_LE(all, table.viewport()->width());
  EXPECT_GE(table.columnWidth(CompareModel::kName), 14 * table.fontMetrics().averageCharWidth());
}

TEST_F(UpkeepTest, TheColourBarIsShortenedBeforeItGoes) {
  open(stored(demoRun()));
  auto* heat = dynamic_cast<HeatPane*>(window.panes()->pane(QStringLiteral("heatmap")));
  for (const int width : {900, 640, 520, 460}) {
    PaneStack stack(window.state(), {QStringLiteral("heatmap")});
    stack.resize(width, 300);
    stack.show();
    QApplication::processEvents();
    TimePane* pane = stack.pane(QStringLiteral("heatmap"));
    pane->grab();
    bool low = false;
    bool high = false;
    for (const TimePane::Label& l : pane->labels()) {
      low = low || l.text == QStringLiteral("0 %");
      high = high || l.text == QStringLiteral("100 %");
    }
    EXPECT_TRUE(low && high) << width << ": the numbers of the colour bar are gone";
  }
  EXPECT_NE(heat, nullptr);
}

TEST(Arcs, AreFoundWhereTheyAreDrawn) {
  // Two pairs of GPUs joined side by side.
  run::RunData data = demoRun(4);
  data.inventory.links.clear();
  for (const auto& [a, b] : {std::pair("gpu0", "gpu7"), std::pair("gpu1", "gpu2")}) {
    data.inventory.links.push_back({std::string(a) + ">" + b, a, b, "nvlink4", {450e9}});
  }
  run::RunData shown = run::make_run(data.meta, data.inventory);
  for (int s = 0; s < 4; ++s) {
    run::StepRecord r = run::make_step(data.inventory);
    r.scalars.start_ps = s * 1000;
    r.scalars.end_ps = (s + 1) * 1000;
    run::append_step(shown, r);
  }
  ViewState state;
  TopologyView view(&state);
  state.setRun(stored(std::move(shown)));
  view.resize(500, 300);
  const QImage image = view.grab().toImage();
  const QPoint on = view.pointOnLink(0);
  QTest::mouseClick(&view, Qt::LeftButton, {}, on);
  EXPECT_EQ(state.link(), 0U);
  // The point is on the drawn curve, above the straight line between the two.
  EXPECT_NE(image.pixelColor(on), state.theme().base);
}

std::string textOf(const QString& file) {
  std::ifstream in(file.toStdString());
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(RenderDocks, AsPicturesAndNumbers) {
  run::write_run("upkeep_docks.h5", demoRun(280));
  run::write_run("upkeep_docks_b.h5", demoRun(200));
  const RunStore run{fs::path("upkeep_docks.h5")};
  RenderOptions o;
  o.run = "upkeep_docks.h5";
  o.size = QSize(500, 320);
  for (const QString& panel : {QStringLiteral("topology"), QStringLiteral("reroutes"),
                               QStringLiteral("capacity"), QStringLiteral("compare")}) {
    o.panel = panel;
    o.compare = panel == QStringLiteral("compare") ? "upkeep_docks_b.h5" : "";
    for (const bool dark : {false, true}) {
      o.dark = dark;
      o.output = panel + QStringLiteral(".png");
      render(o);
      const QImage image(o.output);
      ASSERT_EQ(image.size(), o.size) << panel.toStdString();
      std::set<QRgb> colours;
      for (int y = 0; y < image.height(); ++y) {
        for (int x = 0; x < image.width(); ++x) colours.insert(image.pixel(x, y));
      }
      EXPECT_GT(colours.size(), 20U) << panel.toStdString();
    }
    o.output = panel + QStringLiteral(".svg");
    render(o);
    EXPECT_NE(textOf(o.output).find("<title>upkeep_docks.h5</title>"), std::string::npos);
    o.output = panel + QStringLiteral(".csv");
    render(o);
    EXPECT_GT(textOf(o.output).size(), 60U) << panel.toStdString();
  }
  EXPECT_NE(textOf(QStringLiteral("compare.csv")).find("tokens"), std::string::npos);
  // The numbers are the run's: reroutes of one step, added up.
  o.compare.clear();
  o.panel = QStringLiteral("reroutes");
  o.output = QStringLiteral("one.csv");
  o.cursor = 250;
  render(o);
  std::uint64_t sum = 0;
  std::istringstream lines(textOf(o.output));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "from expert,to expert,assignments");
  while (std::getline(lines, line)) sum += std::stoull(line.substr(line.rfind(',') + 1));
  EXPECT_EQ(sum, run.data().steps[250].rerouted);
  EXPECT_GT(sum, 0U);
  // Capacity: what all experts kept is what the step kept.
  o.panel = QStringLiteral("capacity");
  render(o);
  std::istringstream bars(textOf(o.output));
  std::getline(bars, line);
  double kept = 0;
  while (std::getline(bars, line)) {
    std::istringstream cells(line);
    std::string cell;
    std::getline(cells, cell, ',');
    for (int i = 0; i < 2; ++i) {
      std::getline(cells, cell, ',');
      kept += std::stod(cell);
    }
  }
  const run::StepScalars& s = run.data().steps[250];
  EXPECT_EQ(kept, static_cast<double>(s.kept + s.rerouted));
  // Links at a step.
  o.panel = QStringLiteral("topology");
  render(o);
  std::istringstream links(textOf(o.output));
  std::getline(links, line);
  for (std::size_t k = 0; k < run.links(); ++k) {
    ASSERT_TRUE(std::getline(links, line));
    EXPECT_NEAR(std::stod(line.substr(line.rfind(',') + 1)), run.linkUse(250, k), 1e-6);
  }
  // Memory: a row per step and GPU.
  o.cursor.reset();
  o.window = TimeWindow{3, 5};
  o.panel = QStringLiteral("memory");
  render(o);
  const std::string memory = textOf(o.output);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), '\n'), 1 + 2 * 8);
  const auto refused = [&](const char* why) {
    try {
      render(o);
      ADD_FAILURE() << why;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
  };
  o.panel = QStringLiteral("compare");
  refused("--panel: compare shows two runs");
  o.compare = "upkeep_docks_b.h5";
  refused("--window: unsupported: compare is of whole runs");
  o.compare.clear();
  o.panel = QStringLiteral("topology");
  o.timeAxis = true;
  refused("--axis: unsupported: topology has no axis of steps");
  o.timeAxis = false;
  o.layer = 2;
  refused("--layer: unsupported: topology is of all layers");
}

}  // namespace
}  // namespace switchyard::gui
