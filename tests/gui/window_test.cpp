// SPDX-License-Identifier: Apache-2.0
// The window, driven by mouse and keys without a screen.
#include <fstream>
#include <map>
#include <set>

#include <QAbstractItemModelTester>
#include <QApplication>
#include <QClipboard>
#include <QDockWidget>
#include <QDropEvent>
#include <QHeaderView>
#include <QLineEdit>
#include <QMimeData>
#include <QPushButton>
#include <QSignalSpy>
#include <QSortFilterProxyModel>
#include <QStandardItemModel>
#include <QTableView>
#include <QTest>
#include <QUrl>
#include <QWheelEvent>

#include <gtest/gtest.h>

#include "engine/h5/container.hpp"
#include "gui/mainwindow.hpp"
#include "gui/text.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;

std::shared_ptr<const RunStore> demo() {
  static const auto store =
      std::make_shared<const RunStore>(std::make_shared<const run::RunData>(demoRun()), "demo.h5");
  return store;
}

int luminanceOf(const QColor& c) { return qGray(c.rgb()); }

class WindowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    window.resize(1680, 1020);
    window.showRun(demo());
    window.show();
    QApplication::processEvents();
    window.restoreDefaultLayout();
    QApplication::processEvents();
    // A move to where the mouse already is sends no event.
    QTest::mouseMove(&window, QPoint(1, 1));
    QApplication::processEvents();
  }
  TimePane* pane(const char* id) {
    TimePane* p = window.panes()->pane(QString::fromLatin1(id));
    EXPECT_NE(p, nullptr) << id;
    return p;
  }
  HeatPane* heat() { return static_cast<HeatPane*>(pane("heatmap")); }
  /// Middle of a step's column in a pane.
  QPoint at(TimePane* p, std::uint64_t step, int y = -1) {
    const int x = static_cast<int>(p->axis().xOf(static_cast<double>(step) + 0.5));
    return {x, y < 0 ? p->plotRect().center().y() : y};
  }
  static bool shows(const TimePane* p, const QString& text) {
    for (const TimePane::Label& l : p->labels()) {
      if (l.text.contains(text)) return true;
    }
    return false;
  }
  QString inspector(const QString& name) {
    const InspectorModel& m = *window.inspector();
    for (int r = 0; r < m.rowCount(); ++r) {
      if (m.index(r, 0).data().toString() == name) return m.index(r, 1).data().toString();
    }
    return QStringLiteral("no such row");
  }
  MainWindow window{false};
};

TEST_F(WindowTest, OneMouseMoveGivesOneCursorChangeAndAllPanesShowTheStep) {
  ViewState* state = window.state();
  QSignalSpy spy(state, &ViewState::cursorChanged);
  std::map<QString, int> drawn;
  for (TimePane* p : window.panes()->panes()) drawn[p->id()] = p->contentDraws();
  QTest::mouseMove(heat(), at(heat(), 231));
  QApplication::processEvents();
  ASSERT_EQ(spy.count(), 1);
  ASSERT_EQ(state->cursor(), 231U);
  const run::StepScalars& s = demo()->data().steps[231];
  EXPECT_TRUE(shows(pane("axis"), QStringLiteral("step 231")));
  EXPECT_TRUE(shows(pane("imbalance"), QString::number(s.imbalance, 'f', 2)));
  EXPECT_TRUE(shows(pane("steptime"), qs(timeText(static_cast<double>(s.end_ps - s.start_ps)))));
  EXPECT_EQ(inspector(QStringLiteral("step")), QStringLiteral("231"));
  EXPECT_EQ(inspector(QStringLiteral("over capacity")).section(' ', 0, 0), count(s.overflow));
  EXPECT_TRUE(window.topology()->when().contains(QStringLiteral("231")));
  EXPECT_TRUE(window.hoverText().contains(QStringLiteral("step 231")));
  for (TimePane* p : window.panes()->panes()) {
    EXPECT_EQ(p->contentDraws(), drawn[p->id()])
        << p->id().toStdString() << " drew its content again for a cursor move";
  }
}

TEST_F(WindowTest, WheelZoomsAtTheMouse) {
  TimePane* p = heat();
  const QPoint position = at(p, 100);
  const double before = p->axis().tOf(position.x());
  QWheelEvent wheel(position, p->mapToGlobal(position), {}, {0, 120}, Qt::NoButton, Qt::NoModifier,
                    Qt::NoScrollPhase, false);
  QApplication::sendEvent(p, &wheel);
  EXPECT_NEAR(window.state()->window().length(), 320, 1e-6);
  EXPECT_NEAR(p->axis().tOf(position.x()), before, 1e-6);
  QWheelEvent pan(position, p->mapToGlobal(position), {}, {0, -120}, Qt::NoButton,
                  Qt::ShiftModifier, Qt::NoScrollPhase, false);
  const double first = window.state()->window().first;
  QApplication::sendEvent(p, &pan);
  EXPECT_NEAR(window.state()->window().first, first + 32, 1e-6);
  EXPECT_NEAR(window.state()->window().length(), 320, 1e-6);
}

TEST_F(WindowTest, DragSelectsAndFitZooms) {
  TimePane* p = pane("imbalance");
  QTest::mousePress(p, Qt::LeftButton, {}, at(p, 100));
  QTest::mouseMove(p, at(p, 120));
  QTest::mouseMove(p, at(p, 149));
  QTest::mouseRelease(p, Qt::LeftButton, {}, at(p, 149));
  ASSERT_TRUE(window.state()->selection());
  EXPECT_EQ(*window.state()->selection(), (StepRange{100, 150}));
  EXPECT_EQ(window.inspector()->heading(), QStringLiteral("Steps 100–149"));
  std::uint64_t overflow = 0;
  for (std::size_t s = 100; s < 150; ++s) overflow += demo()->data().steps[s].overflow;
  EXPECT_EQ(inspector(QStringLiteral("over capacity")).section(' ', 0, 0), count(overflow));
  // The menu that asks what to do with the selection.
  QWidget* menu = QApplication::activePopupWidget();
  ASSERT_NE(menu, nullptr);
  menu->close();
  p->setFocus();
  QTest::keyClick(p, Qt::Key_F);
  EXPECT_EQ(window.state()->window(), (TimeWindow{100, 150}));
  QTest::keyClick(p, Qt::Key_Escape);
  EXPECT_FALSE(window.state()->selection());
  QTest::keyClick(p, Qt::Key_Backspace);
  EXPECT_EQ(window.state()->window(), (TimeWindow{0, 400}));
}

// The inspector of a range: sums over its steps, who stands out, and the chosen expert and GPU.
TEST_F(WindowTest, TheInspectorSumsOverTheSelection) {
  const RunStore& run = *demo();
  constexpr std::uint64_t kFirst = 240, kEnd = 260;  // expert 40 overflows in step 250
  window.state()->setSelection(StepRange{kFirst, kEnd});
  window.state()->setExpert(testing::kSpikeExpert);
  window.state()->setGpu(3);
  double sent = 0, time = 0, entropy = 0, moe = 0, busiest = 0;
  std::uint64_t kept = 0, overflow = 0, queue = 0;
  std::vector<double> bytes(run.links(), 0);
  std::map<std::uint32_t, int> waitedFor;
  for (std::uint64_t i = kFirst; i < kEnd; ++i) {
    const run::StepScalars& s = run.data().steps[i];
    sent += static_cast<double>(s.bytes_sent);
    time += static_cast<double>(s.end_ps - s.start_ps);
    entropy += s.gate_entropy;
    queue = std::max<std::uint64_t>(queue, s.longest_queue);
    ++waitedFor[s.straggler_gpu];
    const ExpertRow row = run.expertRow(kAllLayers, i);
    kept += row.kept[testing::kSpikeExpert];
    overflow += row.overflow[testing::kSpikeExpert];
    moe += static_cast<double>(
        run.gpuPhases(i)[3 * run::kPhases + static_cast<std::size_t>(run::Phase::kExpert)]);
    for (std::size_t k = 0; k < bytes.size(); ++k) {
      bytes[k] += static_cast<double>(run.linkBytes(i)[k]);
    }
  }
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    busiest = std::max(busiest,
                       bytes[k] / run.data().inventory.links[k].bandwidth.value / (time * 1e-12));
  }
  EXPECT_EQ(inspector(QStringLiteral("sent")), qs(bytesText(sent)));
  EXPECT_EQ(inspector(QStringLiteral("longest queue")), count(queue));
  EXPECT_EQ(inspector(QStringLiteral("gate entropy")),
            qs(shortNumber(entropy / (kEnd - kFirst))) + QStringLiteral(" bit"));
  EXPECT_EQ(inspector(QStringLiteral("  use")), qs(percentText(busiest)));
  EXPECT_EQ(inspector(QStringLiteral("e40")), count(kept) + QStringLiteral(" tokens"));
  EXPECT_GT(overflow, 0U);
  EXPECT_EQ(inspector(QStringLiteral("e40 overflow")), count(overflow));
  EXPECT_TRUE(inspector(QStringLiteral("GPU 3 expert")).startsWith(qs(timeText(moe))))
      << inspector(QStringLiteral("GPU 3 expert")).toStdString();
  const auto most =
      std::max_element(waitedFor.begin(), waitedFor.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  EXPECT_EQ(inspector(QStringLiteral("straggler")),
            QStringLiteral("GPU %1 (%2 of 20 steps)").arg(most->first).arg(most->second));
  // Its values are links, too.
  const InspectorModel& m = *window.inspector();
  for (int r = 0; r < m.rowCount(); ++r) {
    if (m.index(r, 0).data().toString() == QStringLiteral("straggler")) {
      EXPECT_EQ(m.index(r, 1).data(kTargetRole).toString(),
                QStringLiteral("gpu:%1").arg(most->first));
    }
  }
}

// Beside the title, or over the small plot where that is too wide for the gutter.
TEST_F(WindowTest, AFoldedPaneKeepsItsValueAtTheCursor) {
  constexpr std::uint64_t kStep = 100;
  for (const char* id : {"steptime", "imbalance", "links", "timeline"}) {
    window.panes()->setFold(QString::fromLatin1(id), PaneStack::Fold::kFolded);
  }
  QApplication::processEvents();
  window.state()->setCursor(kStep);
  const run::StepScalars& s = demo()->data().steps[kStep];
  double all = 0, wait = 0;
  for (std::size_t g = 0; g < demo()->gpus(); ++g) {
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      const auto ps = static_cast<double>(demo()->gpuPhases(kStep)[g * run::kPhases + p]);
      all += ps;
      if (p == static_cast<std::size_t>(run::Phase::kWait)) wait += ps;
    }
  }
  const auto says = [&](const char* id, const QString& value) {
    bool found = false;
    QString said;
    pane(id)->grab();
    for (const TimePane::Label& l : pane(id)->labels()) {
      found = found || l.text == value;
      said += l.text + QStringLiteral(" | ");
    }
    EXPECT_TRUE(found) << id << ": " << value.toStdString() << " is not in " << said.toStdString();
  };
  says("steptime", qs(timeText(static_cast<double>(s.end_ps - s.start_ps))));
  says("imbalance", QString::number(s.imbalance, 'f', 2));
  says("timeline", QStringLiteral("wait %1 %").arg(qRound(wait / all * 100)));
}

TEST_F(WindowTest, EscapeInADockClearsTheSelection) {
  window.state()->setSelection(StepRange{10, 20});
  auto* table = window.findChild<QTableView*>();
  ASSERT_NE(table, nullptr);
  table->setFocus();
  ASSERT_TRUE(table->hasFocus());
  QTest::keyClick(table, Qt::Key_Escape);
  EXPECT_FALSE(window.state()->selection());
}

TEST_F(WindowTest, MiddleDragPans) {
  TimePane* p = heat();
  window.state()->setWindow({100, 200}, ViewState::Move::kJump);
  const double perStep = p->axis().pixelsPerStep();
  QTest::mousePress(p, Qt::MiddleButton, {}, at(p, 150));
  const QPoint to = at(p, 150) + QPoint(static_cast<int>(10 * perStep), 0);
  QMouseEvent move(QEvent::MouseMove, to, p->mapToGlobal(to), Qt::NoButton, Qt::MiddleButton, {});
  QApplication::sendEvent(p, &move);
  QTest::mouseRelease(p, Qt::MiddleButton, {}, to);
  EXPECT_NEAR(window.state()->window().first, 90, 0.2);
  EXPECT_FALSE(window.state()->selection());
}

TEST_F(WindowTest, KeysMoveZoomAndStep) {
  ViewState* s = window.state();
  QWidget* p = heat();
  p->setFocus();
  QTest::keyClick(p, Qt::Key_W);
  EXPECT_LT(s->window().length(), 400);
  const double length = s->window().length();
  const double first = s->window().first;
  QTest::keyClick(p, Qt::Key_D);
  EXPECT_GT(s->window().first, first);
  QTest::keyClick(p, Qt::Key_A);
  EXPECT_NEAR(s->window().first, first, 1e-9);
  QTest::keyClick(p, Qt::Key_S);
  EXPECT_GT(s->window().length(), length);
  QTest::keyClick(p, Qt::Key_W);
  QTest::keyClick(p, Qt::Key_0);
  EXPECT_EQ(s->window(), (TimeWindow{0, 400}));
  s->setCursor(50);
  QTest::keyClick(p, Qt::Key_Right);
  EXPECT_EQ(s->cursor(), 51U);
  QTest::keyClick(p, Qt::Key_Left);
  QTest::keyClick(p, Qt::Key_Left);
  EXPECT_EQ(s->cursor(), 49U);
  QTest::keyClick(p, Qt::Key_Escape);
  EXPECT_FALSE(s->cursor());
  QTest::keyClick(p, Qt::Key_Period);
  ASSERT_TRUE(s->cursor());
  const std::uint64_t event = *s->cursor();
  EXPECT_TRUE(std::any_of(demo()->events().begin(), demo()->events().end(),
                          [&](const run::Event& e) { return e.step == event; }));
  QTest::keyClick(p, Qt::Key_Period);
  EXPECT_GT(*s->cursor(), event);
  QTest::keyClick(p, Qt::Key_Comma);
  EXPECT_EQ(*s->cursor(), event);
  QTest::keyClick(p, Qt::Key_W);
  QTest::keyClick(p, Qt::Key_Home);
  EXPECT_EQ(s->window(), (TimeWindow{0, 400}));
}

TEST_F(WindowTest, EveryActionIsNamedAndNoShortcutIsTwice) {
  std::set<QString> keys;
  for (const QAction* a : window.findChildren<QAction*>()) {
    if (a->isSeparator() || a->text().isEmpty()) continue;
    for (const QKeySequence& k : a->shortcuts()) {
      EXPECT_FALSE(a->statusTip().isEmpty()) << a->text().toStdString();
      EXPECT_TRUE(keys.insert(k.toString()).second) << k.toString().toStdString() << " twice";
    }
  }
  EXPECT_GT(keys.size(), 15U);
  for (const TimePane* p : window.panes()->panes()) {
    EXPECT_FALSE(p->accessibleName().isEmpty()) << p->id().toStdString();
  }
}

// Tab walks through the panes; the one that has the keys shows it.
TEST_F(WindowTest, TabGoesFromPaneToPaneAndTheFocusIsSeen) {
  window.activateWindow();
  heat()->setFocus();
  QApplication::processEvents();
  ASSERT_TRUE(heat()->hasFocus());
  const auto frame = [](TimePane* p) {
    const QRect plot = p->plotRect();
    return p->grab().toImage().pixelColor(plot.left() + plot.width() / 2, plot.top() - 1);
  };
  const QColor seen = window.state()->theme().highlight;
  EXPECT_EQ(frame(heat()), seen);
  EXPECT_NE(frame(pane("imbalance")), seen);
  QTest::keyClick(heat(), Qt::Key_Tab);
  EXPECT_FALSE(heat()->hasFocus());
  EXPECT_TRUE(pane("imbalance")->hasFocus());
  EXPECT_EQ(frame(pane("imbalance")), seen);
  EXPECT_NE(frame(heat()), seen);
  QTest::keyClick(pane("imbalance"), Qt::Key_Backtab, Qt::ShiftModifier);
  EXPECT_TRUE(heat()->hasFocus());
}

TEST_F(WindowTest, ExpertsTableAndHeatMapChooseTheSameExpertOnce) {
  QSignalSpy spy(window.state(), &ViewState::expertChanged);
  QTest::mouseClick(heat(), Qt::LeftButton, {}, at(heat(), 10, heat()->yOfExpert(19)));
  EXPECT_EQ(spy.count(), 1);
  EXPECT_EQ(window.state()->expert(), 19U);
  EXPECT_EQ(window.expertsTable()->currentIndex().data(kIdRole).toUInt(), 19U);
  // And back.
  const QModelIndex row = window.expertsTable()->model()->index(5, 0);
  window.expertsTable()->setCurrentIndex(row);
  EXPECT_EQ(spy.count(), 2);
  EXPECT_EQ(window.state()->expert(), row.data(kIdRole).toUInt());
}

TEST_F(WindowTest, ChoosingAnEventMovesAndCentresTheCursor) {
  window.state()->setWindow({0, 100}, ViewState::Move::kJump);
  QSignalSpy spy(window.state(), &ViewState::cursorChanged);
  TableView* table = window.eventsTable();
  for (int r = 0; r < table->model()->rowCount(); ++r) {
    if (table->model()->index(r, EventsModel::kKind).data().toString() !=
        QLatin1String("overflow")) {
      continue;
    }
    table->setCurrentIndex(table->model()->index(r, 0));
    break;
  }
  EXPECT_EQ(spy.count(), 1);
  EXPECT_EQ(window.state()->cursor(), testing::kSpikeStep);
  const TimeWindow w = window.state()->window();
  EXPECT_NEAR((w.first + w.end) / 2, testing::kSpikeStep + 0.5, 1e-9);
}

TEST_F(WindowTest, FindChoosesAnExpertOrFiltersTheEvents) {
  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  ASSERT_NE(find, nullptr);
  heat()->setFocus();
  QTest::keyClick(heat(), Qt::Key_F, Qt::ControlModifier);
  EXPECT_TRUE(find->hasFocus());
  QTest::keyClicks(find, QStringLiteral("e19"));
  QTest::keyClick(find, Qt::Key_Return);
  EXPECT_EQ(window.state()->expert(), 19U);
  find->selectAll();
  QTest::keyClicks(find, QStringLiteral("over capacity"));
  const QAbstractItemModel& events = *window.eventsTable()->model();
  ASSERT_EQ(events.rowCount(), 1);
  QTest::keyClick(find, Qt::Key_Return);
  EXPECT_EQ(window.state()->cursor(), testing::kSpikeStep);
  EXPECT_EQ(window.dock(QStringLiteral("events"))->windowTitle(),
            QStringLiteral("Events (1 of %1)").arg(demo()->events().size()));
  heat()->setFocus();
  QTest::keyClick(heat(), Qt::Key_Escape);
  EXPECT_TRUE(find->text().isEmpty());
  EXPECT_EQ(events.rowCount(), static_cast<int>(demo()->events().size()));
}

TEST_F(WindowTest, TheExpertsTableSortsNumbersBySize) {
  // The shipped table: by overflow, largest first.
  const QAbstractItemModel* experts = window.expertsTable()->model();
  ASSERT_EQ(experts->rowCount(), 64);
  double before = 1e9;
  for (int r = 0; r < experts->rowCount(); ++r) {
    const double v = experts->index(r, ExpertsModel::kOverflowShare).data().toDouble();
    EXPECT_LE(v, before);
    before = v;
  }
  EXPECT_EQ(experts->index(0, 0).data().toString(), QStringLiteral("e19"));
  window.expertsTable()->sortByColumn(ExpertsModel::kMean, Qt::AscendingOrder);
  before = -1;
  for (int r = 0; r < experts->rowCount(); ++r) {
    const double v = experts->index(r, ExpertsModel::kMean).data().toDouble();
    EXPECT_GE(v, before);
    before = v;
  }
}

TEST(Models, KeepTheContractThroughSetAndClear) {
  ViewState state;
  ExpertsModel experts(&state);
  EventsModel events(&state);
  InspectorModel inspector(&state);
  QSortFilterProxyModel proxy;
  proxy.setSourceModel(&experts);
  using Tester = QAbstractItemModelTester;
  const Tester a(&experts, Tester::FailureReportingMode::Fatal);
  const Tester b(&events, Tester::FailureReportingMode::Fatal);
  const Tester c(&inspector, Tester::FailureReportingMode::Fatal);
  const Tester d(&proxy, Tester::FailureReportingMode::Fatal);
  state.setRun(demo());
  EXPECT_EQ(experts.rowCount(), 64);
  EXPECT_EQ(events.rowCount(), static_cast<int>(demo()->events().size()));
  state.setCursor(20);
  state.setExpert(3);
  state.setSelection(StepRange{3, 30});
  state.setLayer(2);
  proxy.setFilterFixedString(QStringLiteral("e0"));
  EXPECT_EQ(proxy.rowCount(), 10);
  state.setRun(nullptr);
  EXPECT_EQ(experts.rowCount(), 0);
  EXPECT_EQ(events.rowCount(), 0);
  EXPECT_EQ(inspector.rowCount(), 0);
}

TEST_F(WindowTest, TablesCopyAsTsvMarkdownAndCsv) {
  TableView* table = window.expertsTable();
  table->selectRow(0);
  QTest::keyClick(table, Qt::Key_C, Qt::ControlModifier);
  const QStringList lines = QApplication::clipboard()->text().split('\n', Qt::SkipEmptyParts);
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0],
            QStringLiteral("expert\tGPU\tmean\tp99\tover %\tmoved\tlost\tcopies\tmin\tmax\tstd"));
  EXPECT_EQ(lines[1].split('\t').first(), QStringLiteral("e19"));
  const QString markdown = tableText(*table->model(), {0, 1}, TableText::kMarkdown);
  EXPECT_EQ(markdown.split('\n')[1],
            QStringLiteral(
                "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"));
  QStandardItemModel odd(1, 1);
  odd.setHorizontalHeaderLabels({QStringLiteral("a")});
  odd.setItem(0, 0, new QStandardItem(QStringLiteral("x,\"y\"|z")));
  EXPECT_EQ(tableText(odd, {0}, TableText::kCsv), QStringLiteral("a\n\"x,\"\"y\"\"|z\"\n"));
  EXPECT_TRUE(tableText(odd, {0}, TableText::kMarkdown).contains(QStringLiteral("x,\"y\"\\|z")));
}

TEST_F(WindowTest, GoToAcceptsARangeAndShowsWhatIsWrong) {
  auto* field = window.findChild<QLineEdit*>(QStringLiteral("goto"));
  ASSERT_NE(field, nullptr);
  field->setText(QStringLiteral("100..140"));
  QTest::keyClick(field, Qt::Key_Return);
  EXPECT_EQ(window.state()->window(), (TimeWindow{100, 141}));
  field->setText(QStringLiteral("4000"));
  QTest::keyClick(field, Qt::Key_Return);
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("beyond the last step 399")));
  EXPECT_EQ(window.state()->window(), (TimeWindow{100, 141}));
}

TEST_F(WindowTest, ABadFileShowsAMessageAndKeepsTheOldRun) {
  run::write_run("whole.h5", demoRun(30));
  std::ifstream in("whole.h5", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto put = [](const char* name, const std::string& content) {
    std::ofstream(name, std::ios::binary) << content;
  };
  put("truncated.h5", bytes.substr(0, bytes.size() / 2));
  put("foreign.h5", "solid, plain text, and nothing else\n");
  std::string damaged = bytes;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x40);
  put("damaged.h5", damaged);
  put("newer.h5", bytes);
  h5::seal_file("newer.h5", h5::FileKind::kRun, 2);
  for (const char* name : {"truncated.h5", "foreign.h5", "damaged.h5", "newer.h5", "missing.h5"}) {
    window.openFiles({QString::fromLatin1(name)});
    ASSERT_TRUE(testing::wait([&] { return !window.busy(); }, 10000));
    EXPECT_TRUE(window.messageBar()->text().startsWith(QString::fromLatin1(name)))
        << window.messageBar()->text().toStdString();
    EXPECT_EQ(window.state()->run(), demo().get()) << name;
  }
  window.openFiles({QStringLiteral("whole.h5")});
  ASSERT_TRUE(testing::wait([&] { return !window.busy(); }, 10000));
  EXPECT_TRUE(window.messageBar()->text().isEmpty());
  EXPECT_EQ(window.state()->steps(), 30U);
}

TEST_F(WindowTest, OneDroppedFileOpensTwoAreComparedAndThreeScenariosAreRefused) {
  run::write_run("dropped.h5", demoRun(25));
  run::RunData other = demoRun(10);
  other.meta.scenario_text += "workload.note = 1\n";
  run::write_run("second.h5", other);
  other.meta.scenario_text += "workload.more = 2\n";
  run::write_run("third.h5", other);
  const auto drop = [&](const QList<QUrl>& urls) {
    QMimeData mime;
    mime.setUrls(urls);
    QDragEnterEvent enter(QPoint(10, 10), Qt::CopyAction, &mime, Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(&window, &enter);
    EXPECT_TRUE(enter.isAccepted());
    QDropEvent event(QPointF(10, 10), Qt::CopyAction, &mime, Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(&window, &event);
  };
  const QUrl url = QUrl::fromLocalFile(qs(std::filesystem::absolute("dropped.h5").string()));
  const auto settled = [&] { return testing::wait([&] { return !window.busy(); }, 10000); };
  const auto named = [](const char* name) {
    return QUrl::fromLocalFile(qs(std::filesystem::absolute(name).string()));
  };
  drop({url, named("second.h5"), named("third.h5")});
  ASSERT_TRUE(settled());
  EXPECT_EQ(window.state()->steps(), 400U);
  EXPECT_EQ(window.state()->other(), nullptr);
  EXPECT_TRUE(
      window.messageBar()->text().contains(QStringLiteral("third.h5 is of a third scenario")))
      << window.messageBar()->text().toStdString();
  drop({url, url, url});
  ASSERT_TRUE(settled());
  EXPECT_EQ(window.state()->steps(), 25U);
  EXPECT_EQ(window.state()->other(), nullptr) << "the same file thrice is one run";
  EXPECT_EQ(window.messageBar()->text(), QString());
  drop({url});
  ASSERT_TRUE(settled());
  EXPECT_EQ(window.state()->steps(), 25U);
  EXPECT_EQ(window.state()->other(), nullptr);
  run::write_run("dropped2.h5", demoRun(35));
  drop({url, QUrl::fromLocalFile(qs(std::filesystem::absolute("dropped2.h5").string()))});
  ASSERT_TRUE(settled());
  EXPECT_EQ(window.state()->steps(), 25U);
  ASSERT_NE(window.state()->other(), nullptr);
  EXPECT_EQ(window.state()->other()->steps(), 35U);
}

TEST_F(WindowTest, TickLabelsStandUnderAllOfTheAxis) {
  window.grab();
  const TimePane* axis = pane("axis");
  for (const char* step : {"0", "50", "200", "350"}) {
    EXPECT_TRUE(shows(axis, QString::fromLatin1(step))) << step;
  }
}

TEST_F(WindowTest, ARunWithoutStepsShowsItsLevels) {
  window.showRun(std::make_shared<const RunStore>(
      std::make_shared<const run::RunData>(demoRun(100, run::Detail::kSummary)), "summary.h5"));
  QApplication::processEvents();
  QTest::mouseMove(heat(), at(heat(), 50));
  EXPECT_EQ(window.inspector()->heading(), QStringLiteral("Steps 48–55"));
  EXPECT_TRUE(window.hoverText().contains(QStringLiteral("steps 48–55, largest")));
  window.grab();
}

TEST_F(WindowTest, WithoutARunTheWindowSaysHowToOpenOne) {
  window.showRun(nullptr);
  window.grab();
  EXPECT_EQ(window.page(), MainWindow::Page::kWelcome);
  EXPECT_EQ(window.inspector()->rowCount(), 0);
}

TEST_F(WindowTest, TheStatusBarSaysWhatTheNextClickOnATitleDoes) {
  TimePane* p = pane("imbalance");
  const auto click = [&] {
    const bool folded = p->folded();
    QTest::mouseMove(p, p->foldRect().center());
    QTest::mouseClick(p, Qt::LeftButton, {}, p->foldRect().center());
    QApplication::processEvents();
    ASSERT_NE(p->folded(), folded);
    EXPECT_TRUE(window.hoverText().contains(folded ? QStringLiteral("Space folds")
                                                   : QStringLiteral("Space unfolds")))
        << window.hoverText().toStdString();
  };
  click();
  click();
  click();
}

/// Names in the legend of the pane at that width.
QStringList legendAt(TimelinePane& pane, int width) {
  pane.resize(width, 120);
  (void)pane.grab();
  QStringList names;
  for (const TimePane::Label& l : pane.labels()) {
    if (l.rect.bottom() < 24 && !l.text.contains(' ')) names << l.text;
  }
  return names;
}

TEST(Legend, OfTheTimeOfGpusHasShortNamesBeforeItCutsAny) {
  // The demo has no dense layers.
  const QStringList whole = {"host",    "attention",  "router", "dispatch", "expert",
                             "combine", "collective", "head",   "wait"};
  const QStringList brief = {"host", "attn", "router", "disp", "expert",
                             "comb", "coll", "head",   "wait"};
  ViewState state;
  state.setRun(demo());
  TimelinePane pane(&state);
  pane.setMargins(100, 30);
  int width = 1400;
  ASSERT_EQ(legendAt(pane, width), whole);
  while (legendAt(pane, width) == whole) width -= 5;
  // What does not fit whole is short, and nothing is cut as long as that fits.
  const int first = width;
  ASSERT_EQ(legendAt(pane, width), brief);
  while (legendAt(pane, width) == brief) width -= 5;
  EXPECT_GE(first - width, 100) << "attn, disp, comb and coll save more than that";
  // Even narrower the short names are cut, at their ends, and stay different.
  for (const int narrow : {width, width - 20, width - 40}) {
    const QStringList cut = legendAt(pane, narrow);
    ASSERT_EQ(cut.size(), brief.size()) << narrow;
    EXPECT_EQ(QSet<QString>(cut.begin(), cut.end()).size(), brief.size());
    for (qsizetype i = 0; i < cut.size(); ++i) {
      const QString name = QString(cut[i]).remove(QChar(0x2026));
      EXPECT_TRUE(brief[i].startsWith(name)) << cut[i].toStdString();
    }
  }
}

TEST(WelcomePage, RecentFilesAreLegibleInBothThemesWhetherTheyCanBeOpenedOrNot) {
  const std::filesystem::path none = std::filesystem::absolute("no_scenarios_here");
  for (const bool created : {false, true}) {
    applyTheme(created);
    Welcome page(none);
    page.setAttribute(Qt::WA_DontShowOnScreen);
    page.resize(900, 500);
    page.setRecent({QStringLiteral("/runs/gpu_failure.h5")});
    page.show();
    QApplication::processEvents();
    QPushButton* button = nullptr;
    for (QPushButton* b : page.findChildren<QPushButton*>()) {
      if (b->text() == QStringLiteral("gpu_failure.h5")) button = b;
    }
    ASSERT_NE(button, nullptr);
    for (const bool dark : {created, !created}) {
      applyTheme(dark);
      for (const bool enabled : {true, false}) {
        button->setEnabled(enabled);
        QApplication::processEvents();
        const QImage image =
            page.grab(QRect(button->mapTo(&page, QPoint()), button->size())).toImage();
        double most = 1;
        for (int y = 0; y < image.height(); ++y) {
          for (int x = 0; x < image.width(); ++x) {
            const QColor c = image.pixelColor(x, y);
            // Of the text, not of a shadow that is darker than a dark window.
            if ((luminanceOf(c) > luminanceOf(themeFor(dark).window)) != dark) continue;
            most = std::max(most, contrast(c, themeFor(dark).window));
          }
        }
        EXPECT_GE(most, enabled ? 4.5 : 2.5)
            << (dark ? "dark" : "light") << (enabled ? " enabled" : " disabled");
      }
    }
  }
  applyTheme(false);
}

TEST(Themes, AreLegible) {
  for (const bool dark : {false, true}) {
    const Theme& t = themeFor(dark);
    for (const QColor& text : {t.text, t.muted, t.accent, t.saturated}) {
      for (const QColor& ground : {t.window, t.base, t.alternate}) {
        EXPECT_GE(contrast(text, ground), 4.5)
            << (dark ? "dark " : "light ") << text.name().toStdString() << " on "
            << ground.name().toStdString();
      }
    }
    EXPECT_GE(contrast(t.text, t.button), 4.5);
    EXPECT_GE(contrast(t.highlightedText, t.highlight), 4.5);
    const QPalette p = t.palette();
    EXPECT_GE(contrast(p.color(QPalette::ToolTipText), p.color(QPalette::ToolTipBase)), 4.5);
    EXPECT_GE(contrast(p.color(QPalette::PlaceholderText), p.color(QPalette::Base)), 4.5);
    for (const QColor& line : t.series) {
      EXPECT_GE(contrast(line, t.base), 3.0) << line.name().toStdString();
    }
  }
  EXPECT_NEAR(contrast(Qt::black, Qt::white), 21, 1e-6);
}

TEST(Fonts, AreInstalledAndHaveLetters) {
  EXPECT_EQ(missingFonts(), QString());
  const QFontMetrics m(QApplication::font());
  EXPECT_NE(m.horizontalAdvance('i'), m.horizontalAdvance('W'));
}

}  // namespace
}  // namespace switchyard::gui
