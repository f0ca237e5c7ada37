// SPDX-License-Identifier: Apache-2.0
// Pictures that were looked at by a person: light, dark and zoomed, twice the resolution. At most
// 0.1 % of the pixels may differ by more than 16 of 255. A failing case leaves its picture and the
// difference in the working folder and says how to replace the golden (a commit that does says
// `golden:` and why).
#include <cstdlib>

#include <QFile>
#include <QImage>

#include <gtest/gtest.h>

#include "gui/render.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"

namespace switchyard::gui {
namespace {

constexpr int kTolerance = 16;
constexpr double kMostDiffering = 0.001;

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

void compare(RenderOptions o, const QString& name) {
  o.output = name + QStringLiteral(".png");
  render(o);
  const QImage actual = QImage(o.output).convertToFormat(QImage::Format_RGB32);
  const QString golden =
      (QString(SWITCHYARD_SOURCE_DIR) + QStringLiteral("/tests/gui/golden/")) + o.output;
  const std::string mend = "; if meant, copy " + o.output.toStdString() +
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

}  // namespace
}  // namespace switchyard::gui
