// SPDX-License-Identifier: Apache-2.0
// Pictures that were looked at by a person: light, dark and zoomed, twice the resolution, overflow,
// a comparison. At most 0.1 % of the pixels may differ by more than 16 of 255. A failing case
// leaves its picture and the difference in the working folder and says how to replace the golden (a
// commit that does says `golden:` and why).
#include <cstdlib>

#include <QApplication>
#include <QDockWidget>
#include <QFile>
#include <QImage>
#include <QPainter>

#include <gtest/gtest.h>

#include "gui/mainwindow.hpp"
#include "gui/render.hpp"
#include "gui/theme.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"

namespace switchyard::gui {
namespace {

constexpr int kTolerance = 16;
constexpr double kMostDiffering = 0.001;

/// Experts over their capacity in steps 180 to 210, one more in step 250.
const char* spikes() {
  static const bool written = [] {
    run::write_run("golden_spikes.h5", testing::demoRun(280));
    return true;
  }();
  (void)written;
  return "golden_spikes.h5";
}

RenderOptions options() {
  static const bool written = [] {
    run::write_run("golden_demo.h5", testing::demoRun(60));
    return true;
  }();
  (void)written;
  RenderOptions o;
  o.run = "golden_demo.h5";
  return o;
}

int differs(QRgb a, QRgb b) {
  return std::max({std::abs(qRed(a) - qRed(b)), std::abs(qGreen(a) - qGreen(b)),
                   std::abs(qBlue(a) - qBlue(b))});
}

/// The picture `name`.png in the test's folder with the golden of that name.
void compareFile(const QString& name) {
  const QString output = name + QStringLiteral(".png");
  const QImage actual = QImage(output).convertToFormat(QImage::Format_RGB32);
  const QString golden =
      (QString(SWITCHYARD_SOURCE_DIR) + QStringLiteral("/tests/gui/golden/")) + output;
  const std::string mend = "; if meant, copy " + output.toStdString() +
                           " from the test's folder over " + golden.toStdString() +
                           " and say golden: and why in the commit";
  ASSERT_TRUE(QFile::exists(golden)) << golden.toStdString() << " is missing" << mend;
  const QImage wanted = QImage(golden).convertToFormat(QImage::Format_RGB32);
  ASSERT_EQ(actual.size(), wanted.size()) << mend;
  QImage difference(actual.size(), QImage::Format_RGB32);
  std::int64_t count = 0;
  for (int y = 0; y < actual.height(); ++y) {
    for (int x = 0; x < actual.width(); ++x) {
      const bool bad = differs(actual.pixel(x, y), wanted.pixel(x, y)) > kTolerance;
      count += bad ? 1 : 0;
      difference.setPixel(x, y, bad ? 0xffff0000U : 0xffffffffU);
    }
  }
  const double share =
      static_cast<double>(count) / (static_cast<double>(actual.width()) * actual.height());
  if (share > kMostDiffering) {
    difference.save(name + QStringLiteral("_difference.png"));
  }
  EXPECT_LE(share, kMostDiffering)
      << count << " pixels differ; see " << name.toStdString() << "_difference.png" << mend;
}

void compare(RenderOptions o, const QString& name) {
  o.output = name + QStringLiteral(".png");
  render(o);
  compareFile(name);
}

TEST(Golden, TheWindowInTheLightTheme) {
  RenderOptions o = options();
  o.size = QSize(1280, 800);
  compare(o, QStringLiteral("light"));
}

TEST(Golden, TheWindowInTheDarkThemeZoomedWithACursor) {
  RenderOptions o = options();
  o.size = QSize(1280, 800);
  o.dark = true;
  o.window = TimeWindow{20, 44};
  o.cursor = 31;
  compare(o, QStringLiteral("dark"));
}

TEST(Golden, TheHeatMapAtTwiceTheResolution) {
  RenderOptions o = options();
  o.size = QSize(600, 320);
  o.scale = 2;
  o.panel = QStringLiteral("heatmap");
  o.layer = 3;
  o.cursor = 31;
  compare(o, QStringLiteral("twice"));
}

// Reds, ticks above the plot, triangles in the gutter.
TEST(Golden, OverflowInTheDarkTheme) {
  RenderOptions o = options();
  o.run = spikes();
  o.size = QSize(620, 260);
  o.dark = true;
  o.panel = QStringLiteral("heatmap");
  o.window = TimeWindow{176, 256};
  o.cursor = 250;
  compare(o, QStringLiteral("overflow"));
}

// B dashed over A and the table of differences; overflow and events in the minimap.
TEST(Golden, ComparisonInTheLightTheme) {
  run::RunData second = testing::demoRun(240);
  for (std::uint64_t& bytes : second.links.bytes) bytes = bytes * 3 / 4;
  for (run::StepScalars& s : second.steps) {
    s.imbalance *= 1.05;
    s.imbalance_max *= 1.1;
  }
  second.meta.scenario_text += "policy.capacity.rule = \"share\"\n";
  second.metrics = run::compute_metrics(second);
  applyTheme(false);
  MainWindow window(false);
  window.setAttribute(Qt::WA_DontShowOnScreen);
  window.resize(1280, 800);
  window.showRun(std::make_shared<const RunStore>(spikes()));
  window.compareWith(std::make_shared<const RunStore>(
      std::make_shared<const run::RunData>(std::move(second)), "second.h5"));
  window.show();
  QApplication::processEvents();
  window.restoreDefaultLayout();
  QApplication::processEvents();
  window.dock(QStringLiteral("compare"))->raise();
  window.state()->setCursor(200);
  QApplication::processEvents();
  // The first paint begins the reading of the spread over the layers.
  (void)window.grab();
  for (const TimePane* pane : window.panes()->panes()) {
    while (pane->isVisible() && pane->reading()) {
      QApplication::processEvents(QEventLoop::WaitForMoreEvents, 50);
    }
  }
  std::vector<QImage> parts;
  for (const char* id : {"minimap", "imbalance", "links"}) {
    parts.push_back(imageOf(*window.panes()->pane(QString::fromLatin1(id)), 1));
  }
  parts.push_back(imageOf(*window.compare(), 1));
  QSize size(0, 0);
  for (const QImage& p : parts) {
    size = QSize(std::max(size.width(), p.width()), size.height() + p.height());
  }
  QImage all(size, QImage::Format_RGB32);
  all.fill(Qt::white);
  QPainter painter(&all);
  int y = 0;
  for (const QImage& p : parts) {
    painter.drawImage(0, y, p);
    y += p.height();
  }
  painter.end();
  ASSERT_TRUE(all.save(QStringLiteral("compare.png")));
  compareFile(QStringLiteral("compare"));
}

}  // namespace
}  // namespace switchyard::gui
