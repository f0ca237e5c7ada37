// SPDX-License-Identifier: Apache-2.0
// Acceptance checks of the window that look at every place where a number, a name or a key stands.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <set>

#include <QAbstractItemModelTester>
#include <QApplication>
#include <QCheckBox>
#include <QClipboard>
#include <QComboBox>
#include <QDir>
#include <QDockWidget>
#include <QDropEvent>
#include <QFile>
#include <QFileInfo>
#include <QHeaderView>
#include <QHelpEvent>
#include <QLabel>
#include <QLineEdit>
#include <QMenu>
#include <QMenuBar>
#include <QMimeData>
#include <QPushButton>
#include <QScreen>
#include <QScrollBar>
#include <QSettings>
#include <QSignalSpy>
#include <QSortFilterProxyModel>
#include <QStandardItemModel>
#include <QStatusBar>
#include <QStringListModel>
#include <QTest>
#include <QToolTip>
#include <QUrl>
#include <QXmlStreamReader>

#include <gtest/gtest.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "gui/application.hpp"
#include "gui/mainwindow.hpp"
#include "gui/render.hpp"
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

run::RunData withRequests(std::uint32_t steps) {
  run::RunData data = demoRun(steps);
  for (std::uint32_t s = 5; s + 12 < steps; ++s) {
    run::RequestRecord q;
    q.id = (s * 37) % 1000;
    q.arrival_ps = data.steps[s - 3].start_ps;
    q.scheduled_ps = data.steps[s - 1 - s % 2].start_ps;
    q.first_token_ps = data.steps[s + s % 7].end_ps;
    q.end_ps = data.steps[s + 10].end_ps;
    q.prompt_tokens = 9 + (s * 91) % 1000;
    q.output_tokens = 2 + s % 11;
    q.outcome = s % 5 == 0 ? run::RequestOutcome::kRunning : run::RequestOutcome::kFinished;
    if (s % 5 == 0) q.end_ps = -1;
    q.met_slo = s % 2;
    data.requests.push_back(q);
  }
  data.serving = true;
  data.metrics = run::compute_metrics(data);
  return data;
}

class ChecksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    window.resize(1680, 1020);
    window.show();
    QApplication::processEvents();
  }
  void open(std::shared_ptr<const RunStore> run) {
    window.showRun(std::move(run));
    QApplication::processEvents();
    window.restoreDefaultLayout();
    QApplication::processEvents();
    QTest::mouseMove(&window, QPoint(1, 1));
    QApplication::processEvents();
  }
  void openFiles(const QStringList& files) {
    window.openFiles(files);
    ASSERT_TRUE(wait([&] { return !window.busy(); }, 20000));
    ASSERT_EQ(window.messageBar()->text(), QString());
  }
  TimePane* pane(const char* id) {
    TimePane* p = window.panes()->pane(QString::fromLatin1(id));
    EXPECT_NE(p, nullptr) << id;
    return p;
  }
  void show(const char* id) {
    auto* a = window.findChild<QAction*>(QStringLiteral("pane:") + QString::fromLatin1(id));
    ASSERT_NE(a, nullptr) << id;
    a->setChecked(true);
    QApplication::processEvents();
  }
  static QPoint at(const TimePane* p, std::uint64_t step, int y = -1) {
    return {static_cast<int>(p->axis().xOf(static_cast<double>(step) + 0.5)),
            y < 0 ? p->plotRect().center().y() : y};
  }
  /// Texts of the pane's gutter whose middle lies between two heights.
  static QStringList gutter(TimePane* p, int top, int bottom) {
    QStringList out;
    for (const TimePane::Label& l : p->labels()) {
      const int y = l.rect.center().y();
      if (l.rect.right() <= p->plotRect().left() && y >= top && y <= bottom) out << l.text;
    }
    return out;
  }
  QAction* action(const char* text) {
    for (QAction* a : window.findChildren<QAction*>()) {
      if (QString(a->text()).remove('&') == QString::fromUtf8(text)) return a;
    }
    ADD_FAILURE() << "no action " << text;
    return nullptr;
  }
  QString cursorLabel() {
    for (const QLabel* l : window.statusBar()->findChildren<QLabel*>()) {
      if (l->text().contains(QStringLiteral("cursor"))) return l->text();
    }
    return {};
  }
  MainWindow window{false};
};

// ---- check 4: one step, everywhere
// ---------------------------------------------------------------

TEST_F(ChecksTest, EveryPlaceShowsTheNumbersOfTheStepUnderTheCursor) {
  open(stored(withRequests(300)));
  const run::RunData& d = window.state()->run()->data();
  const run::Inventory& inv = d.inventory;
  auto* heat = static_cast<HeatPane*>(pane("heatmap"));
  for (const std::uint64_t step : {231U, 190U, 250U, 0U, 299U}) {
    QTest::mouseMove(heat, QPoint(1, 1));
    QSignalSpy spy(window.state(), &ViewState::cursorChanged);
    QTest::mouseMove(heat, at(heat, step));
    QApplication::processEvents();
    ASSERT_EQ(spy.count(), 1) << step;
    ASSERT_EQ(window.state()->cursor(), step);
    (void)window.panes()->grab();
    // Heat map: the fullest expert of each GPU, in percent of its capacity.
    for (std::uint32_t g = 0; g < testing::kDemoGpus; ++g) {
      float top = 0;
      for (std::uint32_t e = g * 8; e < g * 8 + 8; ++e) {
        top = std::max(top, d.experts.fill[step * 64 + e]);
      }
      const int y0 = heat->yOfExpert(g * 8);
      const int y1 = heat->yOfExpert(g * 8 + 7);
      EXPECT_TRUE(gutter(heat, std::min(y0, y1), std::max(y0, y1))
                      .contains(QStringLiteral("%1 %").arg(qRound(top * 100.0))))
          << "GPU " << g << " at step " << step;
    }
    // Link use: the busiest link.
    double busiest = 0;
    const run::StepScalars& s = d.steps[step];
    for (std::size_t k = 0; k < inv.links.size(); ++k) {
      const double use =
          static_cast<double>(d.links.bytes[step * inv.links.size() + k]) /
          (inv.links[k].bandwidth.value * 1e-12 * static_cast<double>(s.end_ps - s.start_ps));
      busiest = std::max(busiest, use);
    }
    const QString percent = busiest < 0.0995
                                ? QString::number(busiest * 100, 'f', 1) + QStringLiteral(" %")
                                : QStringLiteral("%1 %").arg(qRound(busiest * 100));
    EXPECT_TRUE(gutter(pane("links"), 0, 10000).contains(percent))
        << gutter(pane("links"), 0, 10000).join(';').toStdString() << " for "
        << percent.toStdString();
    // GPU time: the share of waiting of each lane.
    auto* timeline = static_cast<TimelinePane*>(pane("timeline"));
    for (std::uint32_t g = 0; g < testing::kDemoGpus; ++g) {
      const std::int64_t* phase = d.gpus.phase_ps.data() + (step * 8 + g) * run::kPhases;
      const double all = static_cast<double>(std::accumulate(phase, phase + run::kPhases, 0LL));
      const double waited = static_cast<double>(phase[static_cast<std::size_t>(run::Phase::kWait)]);
      const QRect plot = timeline->plotRect();
      const int y = plot.top() + (2 * static_cast<int>(g) + 1) * plot.height() / 16;
      ASSERT_EQ(timeline->gpuAt(y), g) << "a lane per GPU";
      EXPECT_TRUE(gutter(timeline, y - 7, y + 7)
                      .contains(QStringLiteral("%1 %").arg(qRound(waited / all * 100))))
          << "GPU " << g << " at step " << step << ": "
          << gutter(timeline, y - 7, y + 7).join(';').toStdString();
    }
    // Minimap: a line in the cursor's colour over its whole height.
    TimePane* map = pane("minimap");
    const QImage image = map->grab().toImage();
    const int x = static_cast<int>(map->axis().xOf(static_cast<double>(step) + 0.5));
    EXPECT_EQ(image.pixelColor(x, map->plotRect().center().y()), window.state()->theme().accent);
    // Status bar: step and time.
    EXPECT_EQ(cursorLabel(),
              QStringLiteral("cursor %1 (%2)")
                  .arg(count(step), qs(timeText(static_cast<double>(d.steps[step].start_ps)))));
    // Topology: the use of every link, as its tool tip says.
    TopologyView& topology = *window.topology();
    for (const std::size_t k : {0UL, 3UL, 8UL, 16UL, 40UL}) {
      const QPoint on = topology.pointOnLink(k);
      QHelpEvent help(QEvent::ToolTip, on, topology.mapToGlobal(on));
      QApplication::sendEvent(&topology, &help);
      const double use = window.state()->run()->linkUse(step, k);
      EXPECT_TRUE(QToolTip::text().contains(qs(inv.links[k].name + ":")) &&
                  QToolTip::text().contains(qs(percentText(use))))
          << QToolTip::text().toStdString() << " of " << inv.links[k].name;
    }
  }
}

TEST_F(ChecksTest, EveryPaneThatIsShownMovesTheCursor) {
  open(stored(withRequests(300)));
  for (const char* id : {"latency", "memory", "entropy", "metric"}) show(id);
  window.resize(1680, 1400);
  QApplication::processEvents();
  std::uint64_t step = 20;
  for (TimePane* p : window.panes()->panes()) {
    if (p->id() == QLatin1String("minimap")) continue;  // a drag there moves the window
    ASSERT_TRUE(p->isVisible()) << p->id().toStdString();
    QTest::mouseMove(p, at(p, step));
    EXPECT_EQ(window.state()->cursor(), step) << p->id().toStdString();
    step += 13;
  }
}

// ---- check 5: numbers of the hover and the gutter
// -------------------------------------------------

TEST_F(ChecksTest, HoverSaysTheNumbersOfTheFileInEveryLayer) {
  run::write_run("hover.h5", demoRun(300));
  openFiles({QStringLiteral("hover.h5")});
  const run::RunData d = run::read_run("hover.h5");
  auto* heat = static_cast<HeatPane*>(pane("heatmap"));
  QTest::mouseMove(&window, QPoint(1, 1));
  // A layer after the other: a change of it draws everything again.
  for (std::uint64_t i = 0; i < 200; ++i) {
    const bool hot = i % 4 == 0;
    const auto step = static_cast<std::uint64_t>(hot ? 180 + testing::unit(31, i, 0) * 30
                                                     : testing::unit(31, i, 0) * 300);
    const auto expert = hot ? 19U : static_cast<std::uint32_t>(testing::unit(32, i, 0) * 64);
    const std::uint32_t layer = i / 40 == 4 ? kAllLayers : static_cast<std::uint32_t>(i / 40);
    window.state()->setLayer(layer);
    const std::size_t k = step * 64 + expert;
    const run::ExpertSteps& x = layer == kAllLayers ? d.experts : d.layer_experts[layer];
    // Demand: what was wanted of the expert, run there or not.
    const auto fill = [&](const run::ExpertSteps& l) {
      return static_cast<double>(l.kept[k] - l.rerouted_in[k] + l.overflow[k]) / l.capacity[k];
    };
    double demand = 0;
    if (layer == kAllLayers) {
      for (const run::ExpertSteps& l : d.layer_experts) demand = std::max(demand, fill(l));
    } else {
      demand = fill(x);
    }
    QTest::mouseMove(heat, QPoint(1, 1));
    QTest::mouseMove(heat, at(heat, step, heat->yOfExpert(expert)));
    QString wanted =
        QStringLiteral("%1 @ GPU %2, step %3: %4 tokens, capacity %5, demand %6 % of it")
            .arg(qs(expertName(expert, 64)))
            .arg(expert / 8)
            .arg(step)
            .arg(count(x.kept[k]), count(x.capacity[k]))
            .arg(qRound(demand * 100));
    if (layer == kAllLayers) wanted += QStringLiteral(" in the fullest layer");
    const auto add = [&](std::uint32_t n, const char* what) {
      if (n > 0) wanted += QStringLiteral(", %1 %2").arg(count(n), QString::fromLatin1(what));
    };
    add(x.overflow[k], "over capacity");
    add(x.rerouted_in[k], "rerouted in");
    add(x.dropped[k], "dropped");
    ASSERT_EQ(window.hoverText().toStdString(), wanted.toStdString());
  }
  window.state()->setLayer(kAllLayers);
}

TEST_F(ChecksTest, TheHeatMapsGutterHoldsTheNumbersOfEveryScale) {
  open(stored(demoRun(300)));
  const run::RunData& d = window.state()->run()->data();
  auto* heat = static_cast<HeatPane*>(pane("heatmap"));
  for (const Scale scale : {Scale::kTokens, Scale::kFairShare, Scale::kCapacity}) {
    window.state()->setScale(scale);
    for (const std::uint64_t step : {12U, 200U, 250U}) {
      window.state()->setCursor(step);
      (void)heat->grab();
      double sum = 0;
      for (std::size_t e = 0; e < 64; ++e) sum += d.experts.kept[step * 64 + e];
      for (std::uint32_t g = 0; g < testing::kDemoGpus; ++g) {
        double top = 0;
        for (std::size_t e = g * 8; e < g * 8 + 8; ++e) {
          const std::size_t k = step * 64 + e;
          const double v = scale == Scale::kTokens      ? d.experts.kept[k]
                           : scale == Scale::kFairShare ? d.experts.kept[k] * 64 / sum
                                                        : static_cast<double>(d.experts.fill[k]);
          top = std::max(top, v);
        }
        const QString wanted = scale == Scale::kTokens ? qs(shortNumber(top))
                               : scale == Scale::kFairShare
                                   ? QString::number(top, 'f', 2) + QStringLiteral("×")
                                   : QStringLiteral("%1 %").arg(qRound(top * 100));
        const int y0 = heat->yOfExpert(g * 8);
        const int y1 = heat->yOfExpert(g * 8 + 7);
        const QStringList said = gutter(heat, std::min(y0, y1), std::max(y0, y1));
        EXPECT_TRUE(said.contains(wanted))
            << wanted.toStdString() << " of " << said.join(';').toStdString();
      }
    }
  }
}

// ---- check 10: what goes out comes back
// -----------------------------------------------------------

/// Fields of RFC 4180.
std::vector<QStringList> parseCsv(const QString& text) {
  std::vector<QStringList> rows(1);
  QString field;
  bool quoted = false;
  for (qsizetype i = 0; i < text.size(); ++i) {
    const QChar c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      field += c;
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == ',' || c == '\n')) {
      rows.back() << field;
      field.clear();
      if (c == '\n') rows.emplace_back();
    } else {
      field += c;
    }
  }
  rows.pop_back();
  return rows;
}

QByteArray bytesOf(const QString& name) {
  QFile file(name);
  EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << name.toStdString();
  return file.readAll();
}

TEST_F(ChecksTest, ExportedNumbersAreThoseOfTheRun) {
  open(stored(demoRun(300)));
  const run::RunData& d = window.state()->run()->data();
  window.state()->setWindow({200, 260}, ViewState::Move::kJump);
  exportWindow(window, QStringLiteral("checks.csv"));
  const auto rows = parseCsv(QString::fromUtf8(bytesOf(QStringLiteral("checks.csv"))));
  ASSERT_EQ(rows.size(), 61U);
  const auto column = [&](const char* name) {
    const qsizetype c = rows[0].indexOf(QString::fromLatin1(name));
    EXPECT_GE(c, 0) << name;
    return c;
  };
  for (std::size_t r = 1; r < rows.size(); ++r) {
    const run::StepScalars& s = d.steps[199 + r];
    ASSERT_EQ(rows[r].size(), rows[0].size());
    EXPECT_EQ(rows[r][column("step")].toULongLong(), 199 + r);
    EXPECT_EQ(rows[r][column("start [ps]")].toLongLong(), s.start_ps);
    EXPECT_EQ(rows[r][column("end [ps]")].toLongLong(), s.end_ps);
    EXPECT_EQ(rows[r][column("kind")], QStringLiteral("decode"));
    EXPECT_EQ(rows[r][column("tokens")].toULongLong(), s.tokens);
    EXPECT_EQ(rows[r][column("assignments")].toULongLong(), s.assignments);
    EXPECT_EQ(rows[r][column("kept")].toULongLong(), s.kept);
    EXPECT_EQ(rows[r][column("rerouted")].toULongLong(), s.rerouted);
    EXPECT_EQ(rows[r][column("dropped")].toULongLong(), s.dropped);
    EXPECT_EQ(rows[r][column("overflow")].toULongLong(), s.overflow);
    EXPECT_EQ(rows[r][column("imbalance (max/mean) largest layer")].toDouble(), s.imbalance_max);
  }
  const RunStore& run = *window.state()->run();
  const auto links = parseCsv(qs(csvOf(run, "links", kAllLayers, {100, 110})));
  ASSERT_EQ(links.size(), 11U);
  ASSERT_EQ(links[0].size(), static_cast<qsizetype>(d.inventory.links.size()) + 1);
  const auto imbalance = parseCsv(qs(csvOf(run, "imbalance", kAllLayers, {100, 110})));
  ASSERT_EQ(imbalance.size(), 11U);
  for (std::size_t r = 1; r < links.size(); ++r) {
    for (std::size_t k = 0; k < d.inventory.links.size(); ++k) {
      EXPECT_EQ(links[r][static_cast<qsizetype>(k) + 1].toDouble(), run.linkUse(99 + r, k));
    }
    EXPECT_EQ(imbalance[r][1].toDouble(), d.steps[99 + r].imbalance);
    EXPECT_EQ(imbalance[r][2].toDouble(), d.steps[99 + r].imbalance_max);
  }
}

TEST_F(ChecksTest, CopiedTablesHoldEveryCell) {
  open(stored(withRequests(260), "a,b \"quoted\".h5"));
  window.compareWith(stored(withRequests(80), "b.h5"));
  for (const TableView* table : {window.expertsTable(), window.eventsTable(),
                                 window.requests()->table(), window.compare()->table()}) {
    const QAbstractItemModel& m = *table->model();
    std::vector<int> all(static_cast<std::size_t>(m.rowCount()));
    std::iota(all.begin(), all.end(), 0);
    ASSERT_GT(all.size(), 5U);
    std::vector<int> columns;
    for (int c = 0; c < m.columnCount(); ++c) {
      if (!m.headerData(c, Qt::Horizontal, kSparkRole).toBool()) columns.push_back(c);
    }
    const auto csv = parseCsv(tableText(m, all, TableText::kCsv));
    const QStringList tsv = tableText(m, all, TableText::kTsv).split('\n', Qt::SkipEmptyParts);
    const QStringList md = tableText(m, all, TableText::kMarkdown).split('\n', Qt::SkipEmptyParts);
    ASSERT_EQ(csv.size(), all.size() + 1);
    ASSERT_EQ(tsv.size(), m.rowCount() + 1);
    ASSERT_EQ(md.size(), m.rowCount() + 2);
    for (int r = 0; r < m.rowCount(); ++r) {
      const QStringList cells = tsv[r + 1].split('\t');
      ASSERT_EQ(csv[static_cast<std::size_t>(r) + 1].size(),
                static_cast<qsizetype>(columns.size()));
      ASSERT_EQ(cells.size(), static_cast<qsizetype>(columns.size()));
      for (std::size_t c = 0; c < columns.size(); ++c) {
        const QString shown = m.index(r, columns[c]).data().toString();
        EXPECT_EQ(csv[static_cast<std::size_t>(r) + 1][static_cast<qsizetype>(c)], shown);
        EXPECT_EQ(cells[static_cast<qsizetype>(c)], shown);
      }
    }
    // A table of Markdown has as many bars in every line.
    for (QString line : md) {
      EXPECT_EQ(line.remove(QStringLiteral("\\|")).count('|'),
                static_cast<qsizetype>(columns.size()) + 1)
          << line.toStdString();
    }
  }
}

TEST_F(ChecksTest, TheWindowIsExportedAsSvgWithItsTexts) {
  open(stored(demoRun(300), "a <run> & more.h5"));
  window.state()->setCursor(231);
  exportWindow(window, QStringLiteral("checks.svg"));
  QXmlStreamReader xml(bytesOf(QStringLiteral("checks.svg")));
  QString title;
  QString text;
  while (!xml.atEnd()) {
    if (xml.readNext() != QXmlStreamReader::StartElement) continue;
    if (xml.name() == QLatin1String("title")) title = xml.readElementText();
    if (xml.name() == QLatin1String("text")) {
      text += xml.readElementText(QXmlStreamReader::IncludeChildElements).trimmed() + '\n';
    }
  }
  EXPECT_FALSE(xml.hasError()) << xml.errorString().toStdString();
  EXPECT_EQ(title.toStdString(), "a <run> & more.h5");
  for (const char* wanted : {"Load imbalance", "GPU 3", "step 231"}) {
    EXPECT_TRUE(text.contains(QString::fromLatin1(wanted))) << wanted;
  }
  EXPECT_TRUE(window.panes()->scrollBar()->parentWidget()->isVisible());
}

TEST_F(ChecksTest, ABadFileDroppedOnAComparisonKeepsBothRuns) {
  run::write_run("keep_a.h5", demoRun(40));
  run::write_run("keep_b.h5", demoRun(50));
  testing::writeText("keep_bad.h5", "no run at all, only a text of some length\n");
  openFiles({QStringLiteral("keep_a.h5"), QStringLiteral("keep_b.h5")});
  const auto a = window.state()->runPointer();
  const auto b = window.state()->otherPointer();
  ASSERT_NE(b, nullptr);
  const int rows = window.compare()->table()->model()->rowCount();
  for (const QStringList& files :
       {QStringList{QStringLiteral("keep_bad.h5")},
        QStringList{QStringLiteral("keep_b.h5"), QStringLiteral("keep_bad.h5")},
        QStringList{QStringLiteral("keep_gone.h5")}}) {
    QMimeData mime;
    QList<QUrl> urls;
    for (const QString& f : files) urls << QUrl::fromLocalFile(QFileInfo(f).absoluteFilePath());
    mime.setUrls(urls);
    QDragEnterEvent enter(QPoint(10, 10), Qt::CopyAction, &mime, Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(&window, &enter);
    QDropEvent drop(QPointF(10, 10), Qt::CopyAction, &mime, Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(&window, &drop);
    ASSERT_TRUE(wait([&] { return !window.busy(); }, 20000));
    EXPECT_TRUE(window.messageBar()->text().contains(QFileInfo(files.back()).fileName()))
        << window.messageBar()->text().toStdString();
    EXPECT_EQ(window.state()->runPointer(), a);
    EXPECT_EQ(window.state()->otherPointer(), b);
    EXPECT_EQ(window.compare()->table()->model()->rowCount(), rows);
  }
}

// ---- check 11: keys
// -------------------------------------------------------------------------------

TEST_F(ChecksTest, EveryEntryOfTheMenusHasATextAndSaysWhatItDoes) {
  open(stored(demoRun(30)));
  int entries = 0;
  std::function<void(QMenu*)> walk = [&](QMenu* menu) {
    emit menu->aboutToShow();  // menus that are filled when they open
    for (const QAction* a : menu->actions()) {
      if (a->isSeparator()) continue;
      if (a->menu() != nullptr) {
        walk(a->menu());
        continue;
      }
      ++entries;
      EXPECT_FALSE(a->text().isEmpty()) << menu->title().toStdString();
      EXPECT_TRUE(!a->statusTip().isEmpty())
          << menu->title().toStdString() << " > " << a->text().toStdString();
      EXPECT_NE(a->statusTip(), a->text());
    }
  };
  for (const QAction* top : window.menuBar()->actions()) {
    ASSERT_NE(top->menu(), nullptr) << top->text().toStdString();
    walk(top->menu());
  }
  EXPECT_GT(entries, 60);
  // The keys of the acceptance script, each with an entry of its own.
  for (const char* key :
       {"W", "S", "A", "D", "F", "0", ".", ",", "Esc", "Ctrl+F", "Ctrl+G", "Ctrl+E", "/", "?"}) {
    int found = 0;
    for (const QAction* a : window.findChildren<QAction*>()) {
      found += a->shortcuts().contains(QKeySequence(QString::fromLatin1(key))) ? 1 : 0;
    }
    EXPECT_EQ(found, 1) << key;
  }
  // Everything that takes the keys has a name for a screen reader.
  for (const QWidget* w : window.findChildren<QWidget*>()) {
    if ((w->focusPolicy() & Qt::TabFocus) == 0 || !w->isVisible()) continue;
    if (qobject_cast<const QAbstractItemView*>(w) == nullptr &&
        qobject_cast<const QLineEdit*>(w) == nullptr &&
        qobject_cast<const QComboBox*>(w) == nullptr &&
        dynamic_cast<const TimePane*>(w) == nullptr) {
      continue;
    }
    EXPECT_FALSE(w->accessibleName().isEmpty())
        << w->metaObject()->className() << " " << w->objectName().toStdString() << " in "
        << w->parentWidget()->metaObject()->className();
  }
}

TEST_F(ChecksTest, DigitsWithCtrlShowAndHideTheirDocks) {
  open(stored(demoRun(30)));
  const QList<QDockWidget*> docks = window.findChildren<QDockWidget*>();
  ASSERT_EQ(docks.size(), 10);
  static const std::array<const char*, 10> kDocks = {"health",    "runs",    "experts", "topology",
                                                     "inspector", "events",  "compare", "reroutes",
                                                     "capacity",  "requests"};
  std::set<QString> hidden;
  int behind = 0;
  for (int i = 0; i < 10; ++i) {
    const auto press = [&] {
      QTest::keyClick(pane("heatmap"), static_cast<Qt::Key>(Qt::Key_0 + i), Qt::ControlModifier);
      QApplication::processEvents();
    };
    // One that lies behind another tab comes to the front first.
    QDockWidget* dock = window.dock(QLatin1String(kDocks[i]));
    ASSERT_NE(dock, nullptr) << kDocks[i];
    if (dock->visibleRegion().isEmpty()) {
      press();
      EXPECT_FALSE(dock->isHidden()) << kDocks[i];
      EXPECT_FALSE(dock->visibleRegion().isEmpty()) << kDocks[i] << " is in front";
      ++behind;
    }
    EXPECT_TRUE(dock->toggleViewAction()->isChecked());
    press();
    EXPECT_FALSE(dock->toggleViewAction()->isChecked());
    int gone = 0;
    for (const QDockWidget* d : docks) {
      if (!d->isHidden()) continue;
      ++gone;
      hidden.insert(d->objectName());
    }
    EXPECT_EQ(gone, 1) << "Ctrl+" << i;
    press();
    EXPECT_FALSE(dock->visibleRegion().isEmpty()) << kDocks[i] << " is back in front";
    EXPECT_TRUE(std::none_of(docks.begin(), docks.end(),
                             [](const QDockWidget* d) { return d->isHidden(); }));
  }
  EXPECT_EQ(hidden.size(), 10U);
  EXPECT_GE(behind, 4) << "tabs beside Events, Topology";
}

TEST_F(ChecksTest, TheMenuOfADragDoesWhatItsEntriesSay) {
  open(stored(demoRun(300)));
  TimePane* p = pane("imbalance");
  const auto drag = [&](const QString& entry) {
    QTest::mousePress(p, Qt::LeftButton, {}, at(p, 100));
    QTest::mouseMove(p, at(p, 120));
    QTest::mouseMove(p, at(p, 149));
    QTest::mouseRelease(p, Qt::LeftButton, {}, at(p, 149));
    auto* menu = qobject_cast<QMenu*>(QApplication::activePopupWidget());
    ASSERT_NE(menu, nullptr);
    ASSERT_TRUE(window.state()->selection());
    EXPECT_EQ(*window.state()->selection(), (StepRange{100, 150}));
    EXPECT_EQ(window.state()->window(), (TimeWindow{0, 300})) << "a drag alone zooms nothing";
    for (QAction* a : menu->actions()) {
      if (a->text() == entry) a->trigger();
    }
    menu->close();
    QApplication::processEvents();
  };
  drag(QStringLiteral("Zoom in"));
  EXPECT_EQ(window.state()->window(), (TimeWindow{100, 150}));
  EXPECT_EQ(window.eventsTable()->model()->rowCount(),
            static_cast<int>(window.state()->run()->events().size()))
      << "a zoom filters nothing";
  window.state()->showAll();
  drag(QStringLiteral("Filter events to it"));
  EXPECT_EQ(window.state()->window(), (TimeWindow{0, 300})) << "a filter zooms nothing";
  const auto inside =
      std::count_if(window.state()->run()->events().begin(), window.state()->run()->events().end(),
                    [](const run::Event& e) { return e.step >= 100 && e.step < 150; });
  EXPECT_EQ(window.eventsTable()->model()->rowCount(), static_cast<int>(inside));
  QApplication::clipboard()->clear();
  drag(QStringLiteral("Copy statistics"));
  const QStringList lines = QApplication::clipboard()->text().split('\n', Qt::SkipEmptyParts);
  ASSERT_EQ(lines.size(), window.inspector()->rowCount() + 1);
  for (int r = 0; r < window.inspector()->rowCount(); ++r) {
    EXPECT_EQ(lines[r + 1].split('\t')[1], window.inspector()->index(r, 1).data().toString());
  }
  drag(QStringLiteral("Clear selection"));
  EXPECT_FALSE(window.state()->selection());
}

// ---- check 1: models
// ------------------------------------------------------------------------------

int modelFaults = 0;
QtMessageHandler otherMessages = nullptr;
void countFaults(QtMsgType type, const QMessageLogContext& context, const QString& text) {
  if (QLatin1String(context.category) == QLatin1String("qt.modeltest")) {
    ++modelFaults;
    ADD_FAILURE_AT(context.file != nullptr ? context.file : "model", context.line)
        << text.toStdString();
  }
  if (otherMessages != nullptr) otherMessages(type, context, text);
}

TEST_F(ChecksTest, EveryModelOfTheWindowKeepsItsContract) {
  modelFaults = 0;
  otherMessages = qInstallMessageHandler(countFaults);
  std::vector<std::unique_ptr<QAbstractItemModelTester>> testers;
  std::set<QAbstractItemModel*> models;
  for (auto* m : window.findChildren<QAbstractItemModel*>()) models.insert(m);
  for (auto* v : window.findChildren<QAbstractItemView*>()) {
    if (v->model() != nullptr) models.insert(v->model());
  }
  std::set<std::string> kinds;
  for (QAbstractItemModel* m : models) {
    kinds.insert(m->metaObject()->className());
    testers.push_back(std::make_unique<QAbstractItemModelTester>(
        m, QAbstractItemModelTester::FailureReportingMode::Warning));
  }
  EXPECT_EQ(kinds.count("switchyard::gui::ExpertsModel"), 1U);
  for (const char* kind : {"EventsModel", "EventsFilter", "InspectorModel", "RequestsModel",
                           "CompareModel", "ReportModel"}) {
    EXPECT_EQ(kinds.count(std::string("switchyard::gui::") + kind), 1U) << kind;
  }
  // Set, more of it, filter, sort, other layer, B, swap, clear.
  open(stored(withRequests(60), "a.h5"));
  open(stored(withRequests(120), "longer.h5"));
  window.compareWith(stored(withRequests(80), "b.h5"));
  window.dock(QStringLiteral("health"))->raise();
  ASSERT_TRUE(wait([&] { return window.health()->table(0)->model()->rowCount() > 5; }, 20000));
  auto* find = window.findChild<QLineEdit*>(QStringLiteral("find"));
  for (const char* text : {"o", "over", "e19", "none of them", ""}) {
    find->setText(QString::fromLatin1(text));
  }
  for (TableView* table : {window.expertsTable(), window.eventsTable(), window.requests()->table(),
                           window.compare()->table()}) {
    for (int c = 0; c < table->model()->columnCount(); ++c) {
      table->setCurrentIndex(table->model()->index(1, 0));
      table->sortByColumn(c, c % 2 == 0 ? Qt::AscendingOrder : Qt::DescendingOrder);
    }
  }
  window.state()->setLayer(2);
  window.state()->setSelection(StepRange{10, 30});
  window.state()->setCursor(40);
  window.state()->setExpert(3);
  window.compare()->perTokenBox()->setChecked(true);
  action("Swap A and B")->trigger();
  window.compareWith(nullptr);
  window.showRun(nullptr);
  QApplication::processEvents();
  qInstallMessageHandler(otherMessages);
  EXPECT_EQ(modelFaults, 0);
}

/// Says that it has two rows when it has one.
class BrokenModel : public QStringListModel {
 public:
  void grow() {
    beginInsertRows({}, 0, 1);
    insertRow(0);
    endInsertRows();
  }
};

TEST(Models, ThatBreakTheirContractAreSeen) {
  static int seen = 0;
  const QtMessageHandler before =
      qInstallMessageHandler([](QtMsgType, const QMessageLogContext& context, const QString&) {
        seen += QLatin1String(context.category) == QLatin1String("qt.modeltest") ? 1 : 0;
      });
  BrokenModel broken;
  const QAbstractItemModelTester tester(&broken,
                                        QAbstractItemModelTester::FailureReportingMode::Warning);
  broken.grow();
  qInstallMessageHandler(before);
  EXPECT_GT(seen, 0);
}

// Numbers by size, the same order from every order before it.
TEST_F(ChecksTest, ColumnsOfRequestsAndCompareSortWithOneOrder) {
  open(stored(withRequests(120), "a.h5"));
  run::RunData other = withRequests(80);
  other.meta.scenario_text += "policy.more = 10\npolicy.note = \"z\"\n";
  window.compareWith(stored(std::move(other), "b.h5"));
  for (TableView* table : {window.requests()->table(), window.compare()->table()}) {
    const QAbstractItemModel& m = *table->model();
    ASSERT_GT(m.rowCount(), 12);
    const auto column = [&](int c) {
      QStringList out;
      for (int r = 0; r < m.rowCount(); ++r) out << m.index(r, c).data().toString();
      return out;
    };
    for (int c = 0; c < m.columnCount(); ++c) {
      QStringList first;
      for (const int before : {0, 1, m.columnCount() - 1}) {
        table->sortByColumn(before, Qt::DescendingOrder);
        table->sortByColumn(c, Qt::AscendingOrder);
        if (first.isEmpty()) first = column(c);
        EXPECT_TRUE(column(c) == first) << "column " << c << " after column " << before;
      }
      // Numbers that stand together grow.
      for (int r = 1; r < m.rowCount(); ++r) {
        const QVariant a = m.index(r - 1, c).data(kSortRole);
        const QVariant b = m.index(r, c).data(kSortRole);
        if (a.userType() == QMetaType::QString || b.userType() == QMetaType::QString) continue;
        EXPECT_LE(a.toDouble(), b.toDouble()) << "column " << c << ", row " << r;
      }
    }
  }
}

// ---- bad input
// ------------------------------------------------------------------------------------

TEST_F(ChecksTest, ARunWhoseFileVanishesStaysUsable) {
  run::write_run("vanish_a.h5", demoRun(400));
  run::write_run("vanish_b.h5", demoRun(300));
  openFiles({QStringLiteral("vanish_a.h5"), QStringLiteral("vanish_b.h5")});
  const auto a = window.state()->runPointer();
  const auto b = window.state()->otherPointer();
  std::filesystem::remove("vanish_a.h5");
  std::filesystem::remove("vanish_b.h5");
  for (const char* id : {"memory", "entropy", "latency"}) show(id);
  auto* heat = static_cast<HeatPane*>(pane("heatmap"));
  for (const TimeWindow w : {TimeWindow{10, 30}, TimeWindow{180, 215}, TimeWindow{396, 400}}) {
    window.state()->setWindow(w, ViewState::Move::kJump);
    window.state()->setCursor(static_cast<std::uint64_t>(w.first) + 1);
    QTest::mouseMove(heat, at(heat, static_cast<std::uint64_t>(w.first) + 1));
    EXPECT_FALSE(window.grab().isNull());
    EXPECT_TRUE(window.hoverText().contains(QStringLiteral(" tokens"))) << w.first;
  }
  window.state()->setLayer(3);
  EXPECT_FALSE(window.grab().isNull());
  for (const char* dock : {"health", "capacity", "reroutes", "compare"}) {
    window.dock(QLatin1String(dock))->raise();
    QApplication::processEvents();
    EXPECT_FALSE(window.grab().isNull());
  }
  ASSERT_TRUE(wait([&] { return !window.health()->busy(); }, 20000));
  EXPECT_GT(window.health()->table(0)->model()->rowCount(), 0) << "signals, or why there are none";
  heat->setFocus();
  QTest::keyClick(heat, Qt::Key_F5);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 20000));
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("vanish_a.h5")))
      << window.messageBar()->text().toStdString();
  EXPECT_EQ(window.state()->runPointer(), a);
  EXPECT_EQ(window.state()->otherPointer(), b);
  EXPECT_EQ(window.state()->layer(), 3U);
}

// Cut in place, as by a disk that fills while the file is copied over itself: what was not read yet
// cannot be read any more.
TEST_F(ChecksTest, ARunThatIsCutWhileItIsOpenSaysSoWhereItIsDrawn) {
  run::write_run("cut_open.h5", demoRun(400));
  openFiles({QStringLiteral("cut_open.h5")});
  const auto run = window.state()->runPointer();
  // A click may be about what cannot be read: a message, as in the application.
  auto* app = static_cast<Application*>(qApp);
  app->setProblem([&](const QString& text) { window.messageBar()->showMessage(text); });
  std::filesystem::resize_file("cut_open.h5", std::filesystem::file_size("cut_open.h5") / 20);
  ::testing::internal::CaptureStderr();
  ViewState& state = *window.state();
  for (const std::uint32_t layer : {0U, 3U}) {
    EXPECT_NO_THROW(state.setLayer(layer));
    for (const Scale scale : {Scale::kTokens, Scale::kFairShare, Scale::kCapacity}) {
      EXPECT_NO_THROW(state.setScale(scale));
      EXPECT_NO_THROW(state.setWindow({30.0 + layer, 60}, ViewState::Move::kJump));
      EXPECT_NO_THROW(state.setCursor(40 + layer));
      EXPECT_FALSE(window.grab().isNull());
    }
    EXPECT_NO_THROW(state.setSelection(StepRange{30, 50 + layer}));
    EXPECT_NO_THROW(state.setTimeAxis(layer == 0));
    for (const char* dock : {"health", "capacity", "reroutes", "requests", "topology"}) {
      window.dock(QLatin1String(dock))->raise();
      QApplication::processEvents();
      EXPECT_FALSE(window.grab().isNull());
    }
    TimePane* heat = pane("heatmap");
    QTest::mouseMove(heat, QPoint(1, 1));
    QTest::mouseMove(heat, at(heat, 35));
    EXPECT_TRUE(window.hoverText().contains(QStringLiteral("cut_open.h5")))
        << window.hoverText().toStdString();
    QTest::mouseClick(heat, Qt::LeftButton, {}, at(heat, 36));
    QTest::mouseDClick(heat, Qt::LeftButton, {}, at(heat, 36));
  }
  ASSERT_TRUE(wait([&] { return !window.health()->busy(); }, 20000));
  (void)window.grab();
  const auto labels = pane("heatmap")->labels();
  EXPECT_TRUE(std::any_of(labels.begin(), labels.end(), [](const TimePane::Label& l) {
    return l.text.contains(QStringLiteral("cut_open.h5"));
  }));
  QTest::keyClick(pane("heatmap"), Qt::Key_F5);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 20000));
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("cut_open.h5")))
      << window.messageBar()->text().toStdString();
  EXPECT_EQ(window.state()->runPointer(), run);
  app->setProblem({});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("HDF5"), std::string::npos) << said.substr(0, 400);
}

/// While it lives this process may not write into a folder of its own making: as root it acts as
/// another user.
class ReadOnlyFolder {
 public:
  explicit ReadOnlyFolder(const char* name) : m_name(name) {
    std::filesystem::remove_all(name);
    std::filesystem::create_directories(name);
  }
  ~ReadOnlyFolder() { open(); }
  void close() {
    std::filesystem::permissions(m_name, std::filesystem::perms(0555));
    if (geteuid() == 0) m_root = seteuid(65534) == 0;
  }
  void open() {
    if (m_root) m_root = seteuid(0) != 0;
    std::filesystem::permissions(m_name, std::filesystem::perms(0755));
  }

 private:
  std::filesystem::path m_name;
  bool m_root = false;
};

TEST_F(ChecksTest, AFolderThatMayNotBeWrittenIsNamedAndNothingIsLost) {
  open(stored(demoRun(30)));
  ReadOnlyFolder folder("checks_readonly");
  testing::writeText("checks_readonly/s.toml", testing::kTinyScenario);
  window.openScenario(QStringLiteral("checks_readonly/s.toml"));
  ASSERT_NE(window.form()->document(), nullptr) << window.messageBar()->text().toStdString();
  window.form()->setValue(QStringLiteral("run.seed"), QStringLiteral("77"));
  ASSERT_TRUE(window.form()->document()->changed());
  folder.close();
  QTest::mouseClick(window.form()->saveButton(), Qt::LeftButton);
  const QString said = window.form()->problemText() + window.messageBar()->text();
  EXPECT_TRUE(said.contains(QStringLiteral("s.toml"))) << said.toStdString();
  EXPECT_TRUE(window.form()->document()->changed());
  qputenv("SWITCHYARD_RUNS", "checks_readonly/runs");
  window.simulate(
      {{QStringLiteral("checks_readonly/s.toml"), {}, QStringLiteral("s"), false, false}},
      MainWindow::Role::kShow);
  EXPECT_FALSE(window.busy());
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("checks_readonly/runs")))
      << window.messageBar()->text().toStdString();
  for (const char* name : {"out.png", "out.svg", "out.csv"}) {
    try {
      exportWindow(window, QStringLiteral("checks_readonly/") + QString::fromLatin1(name));
      ADD_FAILURE() << name << " was written";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
  folder.open();
  EXPECT_EQ(read_file("checks_readonly/s.toml"), testing::kTinyScenario);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator("checks_readonly"),
                          std::filesystem::directory_iterator()),
            1)
      << "something was left in the folder";
  // Writable again, the same click saves.
  QTest::mouseClick(window.form()->saveButton(), Qt::LeftButton);
  EXPECT_NE(read_file("checks_readonly/s.toml").find("seed = 77"), std::string::npos);
}

/// Geometry of a window that was left at `placed`, after each of three further starts.
std::vector<QRect> afterStarts(const QRect& placed, const char* folder) {
  const QString config = QDir(QLatin1String(folder)).absolutePath();
  QDir(config).removeRecursively();
  QSettings::setPath(QSettings::NativeFormat, QSettings::UserScope, config);
  std::vector<QRect> out;
  for (int start = 0; start < 4; ++start) {
    MainWindow window(true);
    window.show();
    QApplication::processEvents();
    if (start == 0) window.setGeometry(placed);
    QApplication::processEvents();
    if (start > 0) out.push_back(window.geometry());
    window.close();
  }
  return out;
}

TEST(Geometry, StaysTheSameFromStartToStart) {
  // The screen without a display may be narrower than the window: its sides are left alone here.
  const QRect screen = QGuiApplication::primaryScreen()->availableGeometry();
  const QRect placed(screen.left() + 30, screen.top() + 50, 640,
                     MainWindow(false).minimumSizeHint().expandedTo({640, 480}).height());
  ASSERT_LE(placed.bottom() + 40, screen.bottom()) << "the window does not fit the test's screen";
  const std::vector<QRect> same = afterStarts(placed, "geometry_same");
  EXPECT_EQ(same, std::vector<QRect>(3, same.front()));
  EXPECT_EQ(same.front().top(), placed.top());
  EXPECT_EQ(same.front().height(), placed.height());
  // Partly off the screen: it is brought back once, with room for a frame, and stays there.
  const QRect off = placed.translated(0, screen.bottom() - 100);
  const std::vector<QRect> back = afterStarts(off, "geometry_off");
  EXPECT_EQ(back, std::vector<QRect>(3, back.front()));
  EXPECT_EQ(back.front().height(), placed.height());
  EXPECT_LT(back.front().bottom(), screen.bottom());
}

TEST(Geometry, OfAnotherScreenOrNoneAtAllGivesAUsableWindow) {
  const QString config = QDir(QStringLiteral("geometry_config")).absolutePath();
  QDir(config).removeRecursively();
  QSettings::setPath(QSettings::NativeFormat, QSettings::UserScope, config);
  QByteArray far;
  {
    QWidget w;
    w.setGeometry(-9000, 70000, 30000, 20000);
    far = w.saveGeometry();
  }
  for (const QByteArray& geometry :
       {far, QByteArray("garbage"), QByteArray(), QByteArray(4000, 'x')}) {
    {
      QSettings settings;
      settings.setValue(QStringLiteral("geometry"), geometry);
      settings.setValue(QStringLiteral("layout"), QByteArray(200, '\x7f'));
      settings.setValue(QStringLiteral("paneSizes"), QByteArray(100, '\x01'));
      settings.setValue(QStringLiteral("panes"), QStringList{QStringLiteral("no such pane")});
      settings.setValue(QStringLiteral("colors"), 77);
      settings.setValue(QStringLiteral("rows"), -3);
    }
    MainWindow window(true);
    window.showRun(stored(demoRun(30)));
    window.show();
    QApplication::processEvents();
    const QRect screen = QGuiApplication::primaryScreen()->availableGeometry();
    // The title bar can be reached, and the window is no larger than what Qt needs for it.
    EXPECT_TRUE(screen.intersects(QRect(window.frameGeometry().topLeft(), QSize(200, 20))))
        << window.x() << ", " << window.y();
    EXPECT_LE(window.width(), std::max(screen.width(), window.minimumSizeHint().width()));
    EXPECT_LE(window.height(), std::max(screen.height(), window.minimumSizeHint().height()));
    EXPECT_FALSE(window.grab().isNull());
  }
  QDir(config).removeRecursively();
}

}  // namespace
}  // namespace switchyard::gui
