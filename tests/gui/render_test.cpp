// SPDX-License-Identifier: Apache-2.0
// --render: pictures, numbers, and what happens with bad input.
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include <QApplication>
#include <QDir>
#include <QFile>
#include <QFileInfo>
#include <QImage>
#include <QProcess>
#include <QTemporaryDir>
#include <QXmlStreamReader>

#include <gtest/gtest.h>

#include "engine/base/error.hpp"
#include "gui/mainwindow.hpp"
#include "gui/render.hpp"
#include "gui/stepspanes.hpp"
#include "gui/theme.hpp"
#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"

namespace switchyard::gui {
namespace {

using testing::demoRun;

const char* demoFile() {
  static const char* name = [] {
    run::write_run("render_demo.h5", demoRun());
    return "render_demo.h5";
  }();
  return name;
}

QByteArray bytesOf(const QString& name) {
  QFile file(name);
  EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << name.toStdString();
  return file.readAll();
}

RenderOptions options(const QString& output) {
  RenderOptions o;
  o.run = demoFile();
  o.output = output;
  return o;
}

std::string errorOf(const RenderOptions& o) {
  try {
    render(o);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

/// Three runs of different kinds: a long one, one with requests, one of which only levels are kept.
const char* fileOf(int run) {
  static const std::array<const char*, 3> names = [] {
    (void)demoFile();
    run::RunData served = demoRun(60);
    for (std::uint32_t s = 5; s < 40; ++s) {
      run::RequestRecord q;
      q.id = s;
      q.arrival_ps = q.scheduled_ps = served.steps[s - 3].start_ps;
      q.first_token_ps = served.steps[s].end_ps;
      q.end_ps = served.steps[s + 10].end_ps;
      q.output_tokens = 9;
      q.outcome = run::RequestOutcome::kFinished;
      served.requests.push_back(q);
    }
    served.serving = true;
    run::write_run("render_served.h5", served);
    run::write_run("render_summary.h5", demoRun(120, run::Detail::kSummary));
    return std::array<const char*, 3>{"render_demo.h5", "render_served.h5", "render_summary.h5"};
  }();
  return names[static_cast<std::size_t>(run)];
}

TEST(Render, ThreeRunsTwiceGiveTheSameBytes) {
  std::set<QByteArray> pictures;
  int made = 0;
  for (const int run : {0, 1, 2}) {
    for (const bool dark : {false, true}) {
      for (const char* kind : {"png", "svg"}) {
        // Light: the whole run; dark: zoomed, on an axis of time where there are steps.
        RenderOptions o = options(QStringLiteral("a.") + kind);
        o.run = fileOf(run);
        o.size = QSize(1280, 800);
        o.dark = dark;
        if (dark) {
          o.window = run == 0 ? TimeWindow{170, 260} : TimeWindow{20, 44};
          o.cursor = run == 0 ? 200 : 31;
          o.timeAxis = run != 2;
        }
        render(o);
        const QByteArray a = bytesOf(o.output);
        o.output = QStringLiteral("b.") + kind;
        render(o);
        EXPECT_EQ(a, bytesOf(o.output)) << o.run << " " << kind << (dark ? " dark" : " light");
        EXPECT_GT(a.size(), 10000);
        pictures.insert(a);
        ++made;
      }
    }
  }
  EXPECT_EQ(pictures.size(), static_cast<std::size_t>(made)) << "two pictures are the same";
}

TEST(Render, OneLayerIsDrawnAndNamed) {
  RenderOptions all = options(QStringLiteral("layers_all.png"));
  RenderOptions one = options(QStringLiteral("layers_one.png"));
  const auto run = switchyard::run::read_run(all.run, switchyard::run::RunParts::none());
  one.layer = run.inventory.moe_layers.back();
  render(all);
  render(one);
  EXPECT_NE(bytesOf(all.output), bytesOf(one.output));
  one.layer = 999;
  EXPECT_THROW(render(one), switchyard::InputError);
}

TEST(Render, PictureHasTheSizeTheThemeAndManyColours) {
  for (const bool dark : {false, true}) {
    RenderOptions o = options(QStringLiteral("picture.png"));
    o.dark = dark;
    o.size = QSize(1280, 800);
    render(o);
    const QImage image(o.output);
    ASSERT_EQ(image.size(), QSize(1280, 800));
    std::set<QRgb> colours;
    std::uint64_t ground = 0, red = 0;
    for (int y = 0; y < image.height(); ++y) {
      for (int x = 0; x < image.width(); ++x) {
        const QRgb c = image.pixel(x, y);
        colours.insert(c);
        if (c == themeFor(dark).window.rgb()) ++ground;
        if (c == themeFor(dark).overflow.rgb()) ++red;
      }
    }
    EXPECT_GT(colours.size(), 300U);
    EXPECT_GT(ground, 100000U);
    EXPECT_GT(red, 100U);
    EXPECT_TRUE(image.text(QStringLiteral("Source")).contains(QStringLiteral("seed 42")));
  }
}

TEST(Render, EveryPanelAloneFillsItsPicture) {
  for (const QString& panel : PaneStack::panelNames()) {
    RenderOptions o = options(panel + QStringLiteral(".png"));
    o.size = QSize(800, 300);
    o.panel = panel;
    o.cursor = 12;
    render(o);
    const QImage image(o.output);
    ASSERT_EQ(image.size(), QSize(800, 300));
    std::set<QRgb> colours;
    for (int x = 0; x < image.width(); ++x) {
      for (int y = 0; y < image.height(); ++y) colours.insert(image.pixel(x, y));
    }
    EXPECT_GT(colours.size(), 20U) << panel.toStdString();
  }
}

TEST(Render, SvgIsXmlWithATitleAndTextAsText) {
  RenderOptions o = options(QStringLiteral("panel.svg"));
  o.panel = QStringLiteral("imbalance");
  o.size = QSize(800, 240);
  render(o);
  QXmlStreamReader xml(bytesOf(o.output));
  QString title, text;
  while (!xml.atEnd()) {
    if (xml.readNext() != QXmlStreamReader::StartElement) continue;
    if (xml.name() == QLatin1String("title")) title = xml.readElementText();
    if (xml.name() == QLatin1String("text")) {
      text += xml.readElementText(QXmlStreamReader::IncludeChildElements).trimmed() + '\n';
    }
  }
  EXPECT_FALSE(xml.hasError()) << xml.errorString().toStdString();
  EXPECT_EQ(title, QStringLiteral("render_demo.h5"));
  EXPECT_TRUE(text.contains(QStringLiteral("Load imbalance"))) << text.toStdString();
}

TEST(Render, CsvHoldsTheStepsOfTheWindow) {
  RenderOptions o = options(QStringLiteral("steps.csv"));
  o.window = TimeWindow{100, 110};
  render(o);
  std::istringstream in(bytesOf(o.output).toStdString());
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line.rfind("step,start [ps],", 0), 0U) << line;
  int rows = 0;
  while (std::getline(in, line)) {
    EXPECT_EQ(line.substr(0, 4), std::to_string(100 + rows) + ",");
    ++rows;
  }
  EXPECT_EQ(rows, 10);
}

// Memory over so many steps is read in the background: the picture waits for it.
TEST(Render, AMemoryPictureOfALongRunIsComplete) {
  run::Inventory inv;
  inv.gpus.push_back({"gpu", 0, 1, {1}, {1}});
  run::RunMeta meta;
  meta.detail = run::Detail::kSteps;
  run::RunData data = run::make_run(meta, inv);
  run::StepRecord step = run::make_step(inv);
  for (std::uint32_t s = 0; s < static_cast<std::uint32_t>(kReadSteps) + 100; ++s) {
    step.scalars.start_ps = s;
    step.scalars.end_ps = s + 1;
    step.gpu_memory[0] = 1000;
    step.gpu_memory_peak[0] = 1000;
    run::append_step(data, step);
  }
  run::write_run("memory_long.h5", data);
  RenderOptions o = options(QStringLiteral("memory_long.png"));
  o.run = "memory_long.h5";
  o.panel = QStringLiteral("memory");
  o.size = QSize(600, 200);
  render(o);
  const QImage image(o.output);
  const QRgb filled = themeFor(false).series[0].rgb() & 0xffffffU;
  int pixels = 0;
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width(); ++x) {
      pixels += (image.pixel(x, y) & 0xffffffU) == filled ? 1 : 0;
    }
  }
  EXPECT_GT(pixels, 600 * 200 / 4) << "the picture was taken before the numbers were read";
}

TEST(Render, RefusesWhatMakesNoSenseAndLeavesNoFile) {
  QFile::remove(QStringLiteral("none.png"));
  RenderOptions o = options(QStringLiteral("none.png"));
  o.window = TimeWindow{300, 500};
  EXPECT_EQ(errorOf(o), "--window: 300,500 ends beyond the 400 steps of render_demo.h5");
  o = options(QStringLiteral("none.png"));
  o.cursor = 400;
  EXPECT_NE(errorOf(o).find("--cursor: step 400 is beyond"), std::string::npos);
  o = options(QStringLiteral("none.png"));
  o.panel = QStringLiteral("fuel");
  EXPECT_NE(errorOf(o).find("--panel: unknown panel \"fuel\""), std::string::npos);
  o = options(QStringLiteral("none.png"));
  o.size = QSize(300, 200);
  EXPECT_NE(errorOf(o).find("too small for the window"), std::string::npos) << errorOf(o);
  o = options(QStringLiteral("none.gif"));
  EXPECT_NE(errorOf(o).find("none.gif: unsupported kind of file"), std::string::npos);
  o = options(QStringLiteral("no/such/folder/none.png"));
  EXPECT_NE(errorOf(o).find("cannot write"), std::string::npos);
  o = options(QStringLiteral("none.csv"));
  o.panel = QStringLiteral("timeline");
  EXPECT_NE(errorOf(o).find("unsupported: CSV of the panel"), std::string::npos);
  EXPECT_FALSE(QFile::exists(QStringLiteral("none.png")));
  EXPECT_FALSE(QFile::exists(QStringLiteral("none.csv")));
}

TEST(Render, ExportHasTwiceTheResolutionAndIsNotBlownUp) {
  MainWindow window(false);
  window.resize(1400, 900);
  window.showRun(
      std::make_shared<const RunStore>(std::make_shared<const run::RunData>(demoRun(100)), "demo"));
  window.show();
  QApplication::processEvents();
  exportWindow(window, QStringLiteral("export.png"));
  const QImage image(QStringLiteral("export.png"));
  ASSERT_EQ(image.size(), window.size() * 2);
  const TimePane* heat = window.panes()->pane(QStringLiteral("heatmap"));
  const QPoint at = heat->mapTo(&window, QPoint(0, 0));
  int mixed = 0;  // blocks of 2 x 2 pixels that are not one pixel made large
  for (int y = at.y(); y < at.y() + heat->height(); ++y) {
    for (int x = at.x(); x < at.x() + heat->width(); ++x) {
      const QRgb c = image.pixel(2 * x, 2 * y);
      if (c != image.pixel(2 * x + 1, 2 * y) || c != image.pixel(2 * x, 2 * y + 1)) ++mixed;
    }
  }
  EXPECT_GT(mixed, 500);
  exportWindow(window, QStringLiteral("export.csv"));
  EXPECT_EQ(bytesOf(QStringLiteral("export.csv")).count('\n'), 101);  // numbers: checks_test
}

TEST(Render, OptionsAreParsedStrictly) {
  EXPECT_EQ(parseSize(QStringLiteral("1680x1020")), QSize(1680, 1020));
  EXPECT_EQ(parseWindow(QStringLiteral("12, 60")), (TimeWindow{12, 60}));
  for (const char* bad : {"1680", "1680x", "10x10", "1680X1020", "99999x100"}) {
    EXPECT_THROW(parseSize(QString::fromLatin1(bad)), InputError) << bad;
  }
  for (const char* bad : {"12", "60,12", "a,b", "5,5", "-1,4"}) {
    EXPECT_THROW(parseWindow(QString::fromLatin1(bad)), InputError) << bad;
  }
}

// A run of 100 000 steps and 256 experts, of which only levels of detail are kept, with five
// single steps of overflow: at 640, 1200 and 3840 columns each shows in the overflow colour within
// one pixel of where it belongs, and nothing else does.
TEST(NothingVanishes, OneStepOfOverflowInAHundredThousandIsRed) {
  constexpr std::uint32_t kSteps = 100000, kExperts = 256;
  struct Spike {
    std::uint32_t step, expert;
  };
  constexpr std::array<Spike, 5> kSpikes = {
      {{3, 0}, {20011, 17}, {49999, 128}, {70004, 200}, {99998, 255}}};
  run::Inventory inv;
  for (std::uint32_t g = 0; g < 8; ++g) inv.gpus.push_back({"gpu", 0, 1, {1}, {1}});
  inv.experts = kExperts;
  inv.top_k = 1;
  inv.moe_layers = {0};
  for (std::uint32_t e = 0; e < kExperts; ++e) inv.placement.push_back(e / 32);
  run::RunMeta meta;
  meta.detail = run::Detail::kSummary;
  run::RunData data = run::make_run(meta, inv);
  run::StepRecord quiet = run::make_step(inv);
  quiet.expert_kept.assign(kExperts, 40);
  quiet.expert_capacity.assign(kExperts, 100);
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    quiet.scalars.start_ps = s;
    quiet.scalars.end_ps = s + 1;
    const auto spike =
        std::find_if(kSpikes.begin(), kSpikes.end(), [s](const Spike& k) { return k.step == s; });
    if (spike != kSpikes.end()) {
      run::StepRecord loud = quiet;
      loud.expert_kept[spike->expert] = 100;
      loud.expert_overflow[spike->expert] = 1;
      run::append_step(data, loud);
    } else {
      run::append_step(data, quiet);
    }
  }
  ViewState state;
  HeatPane pane(&state);
  pane.setMargins(200, 40);
  state.setRun(std::make_shared<const RunStore>(
      std::make_shared<const run::RunData>(std::move(data)), "long"));
  for (const int columns : {640, 1200, 3840}) {
    for (const int height : {900, 150}) {  // 150: several experts in one row of pixels
      pane.resize(columns + 240, height);
      const QRect plot = pane.plotRect();
      ASSERT_EQ(plot.width(), columns);
      const QImage image = pane.grab().toImage();
      const QRgb red = state.theme().overflow.rgb();
      std::set<int> expected;
      for (const Spike& s : kSpikes) {
        const int x =
            plot.left() + static_cast<int>((s.step + 0.5) * columns / static_cast<double>(kSteps));
        const int y = pane.yOfExpert(s.expert);
        bool found = false;
        bool tick = false;
        for (int dx = -1; dx <= 1; ++dx) {
          expected.insert(x + dx);
          for (int dy = -1; dy <= 1; ++dy) {
            if (!plot.contains(x + dx, y + dy)) continue;
            found = found || (image.pixel(x + dx, y + dy) & 0xffffffU) == (red & 0xffffffU);
          }
          if (x + dx >= plot.left() && x + dx <= plot.right()) {
            tick = tick || (image.pixel(x + dx, plot.top() - 6) & 0xffffffU) == (red & 0xffffffU);
          }
        }
        EXPECT_TRUE(found) << "step " << s.step << " at " << columns << " x " << height;
        EXPECT_TRUE(tick) << "tick of step " << s.step << " at " << columns;
      }
      for (int x = plot.left(); x <= plot.right(); ++x) {
        if (expected.count(x) != 0) continue;
        for (int y = plot.top(); y <= plot.bottom(); ++y) {
          ASSERT_NE(image.pixel(x, y) & 0xffffffU, red & 0xffffffU)
              << "red where nothing overflowed: " << x << ", " << y;
        }
      }
    }
  }
}

class Program : public ::testing::Test {
 protected:
  struct Result {
    int code = -1;
    QString out, err;
  };
  static Result start(const QStringList& arguments, const QProcessEnvironment& environment =
                                                        QProcessEnvironment::systemEnvironment()) {
    QProcess process;
    process.setProcessEnvironment(environment);
    process.start(QStringLiteral(SWITCHYARD_GUI_BINARY), arguments);
    Result r;
    if (!process.waitForFinished(60000)) return r;
    r.code = process.exitStatus() == QProcess::NormalExit ? process.exitCode() : -2;
    r.out = QString::fromUtf8(process.readAllStandardOutput());
    r.err = QString::fromUtf8(process.readAllStandardError());
    return r;
  }
};

TEST_F(Program, RendersWithoutADisplay) {
  QProcessEnvironment bare = QProcessEnvironment::systemEnvironment();
  for (const char* name : {"QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY", "QT_FONT_DPI"}) {
    bare.remove(QString::fromLatin1(name));
  }
  const Result r = start({"--render", "program.png", "--size", "1680x1020", "--window", "170,260",
                          "--cursor", "200", demoFile()},
                         bare);
  EXPECT_EQ(r.code, 0) << r.err.toStdString();
  EXPECT_EQ(r.err, QString());
  // The same picture as from inside this process, whatever the environment says.
  RenderOptions o = options(QStringLiteral("inside.png"));
  o.window = TimeWindow{170, 260};
  o.cursor = 200;
  render(o);
  EXPECT_EQ(bytesOf(QStringLiteral("program.png")), bytesOf(o.output));
}

TEST_F(Program, BadRunsEndInOneLineAndCodeTwo) {
  demoFile();
  std::ifstream in(demoFile(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::ofstream("cut.h5", std::ios::binary) << bytes.substr(0, 4000);
  std::ofstream("text.h5") << "not a run\n";
  for (const char* name : {"cut.h5", "text.h5", "missing.h5"}) {
    const Result r = start({"--render", "bad.png", name});
    EXPECT_EQ(r.code, 2) << name;
    EXPECT_EQ(r.err.count('\n'), 1) << r.err.toStdString();
    EXPECT_TRUE(r.err.startsWith(QString::fromLatin1(name))) << r.err.toStdString();
    EXPECT_FALSE(QFile::exists(QStringLiteral("bad.png"))) << name;
  }
}

// As root every folder is writable, so another user tries, with a copy of the program where that
// user may go (a build folder may be closed to others).
TEST_F(Program, AFolderThatCannotBeWrittenIsNamedAndLeavesNothing) {
  const bool root = geteuid() == 0;
  if (root && !QFileInfo(QStringLiteral("/usr/sbin/runuser")).isExecutable()) {
    GTEST_SKIP() << "as root this needs runuser to become another user";
  }
  QTemporaryDir open(QDir::tempPath() + QStringLiteral("/switchyard_readonly_XXXXXX"));
  ASSERT_TRUE(open.isValid()) << open.errorString().toStdString();
  constexpr auto kReadable = QFileDevice::ReadOwner | QFileDevice::ReadGroup |
                             QFileDevice::ReadOther | QFileDevice::ExeOwner |
                             QFileDevice::ExeGroup | QFileDevice::ExeOther;
  const QString program = open.filePath(QStringLiteral("switchyard-gui"));
  ASSERT_TRUE(QFile::copy(QStringLiteral(SWITCHYARD_GUI_BINARY), program));
  ASSERT_TRUE(QFile::copy(QString::fromLatin1(demoFile()), open.filePath(QStringLiteral("r.h5"))));
  for (const QString& f : {program, open.filePath(QStringLiteral("r.h5")), open.path()}) {
    ASSERT_TRUE(QFile::setPermissions(f, kReadable));
  }
  const QString target = open.filePath(QStringLiteral("picture.png"));
  QStringList words = {program,
                       QStringLiteral("--render"),
                       target,
                       QStringLiteral("--panel"),
                       QStringLiteral("heatmap"),
                       open.filePath(QStringLiteral("r.h5"))};
  if (root) {
    words = QStringList{QStringLiteral("runuser"), QStringLiteral("-u"), QStringLiteral("nobody"),
                        QStringLiteral("--")} +
            words;
  }
  QProcess process;
  process.start(words.first(), words.mid(1));
  ASSERT_TRUE(process.waitForFinished(60000));
  const QString err = QString::fromUtf8(process.readAllStandardError());
  EXPECT_EQ(process.exitCode(), 2) << err.toStdString();
  EXPECT_TRUE(err.startsWith(target + QStringLiteral(": cannot write"))) << err.toStdString();
  EXPECT_FALSE(QFile::exists(target));
  // So that it can be removed.
  QFile::setPermissions(open.path(), kReadable | QFileDevice::WriteOwner);
}

TEST_F(Program, UnknownOptionsAndNamesAreRefused) {
  QFile::remove(QStringLiteral("x.png"));
  EXPECT_EQ(start({"--render", "x.png", "--colour", "red", demoFile()}).code, 2);
  EXPECT_EQ(start({"--render", "x.png", "--theme", "blue", demoFile()}).code, 2);
  EXPECT_EQ(start({"--render", "x.png"}).code, 2);
  EXPECT_EQ(start({"--render", "x.png", "--axis", "frames", demoFile()}).code, 2);
  EXPECT_EQ(start({"--axis", "time", demoFile()}).code, 2);
  EXPECT_EQ(start({"--render", "x.png", demoFile(), demoFile(), demoFile()}).code, 2);
  EXPECT_EQ(start({"--render", "x.png", "--compare", demoFile()}).code, 2);
  EXPECT_EQ(start({"--render", "x.csv", "--compare", demoFile(), demoFile()}).code, 2);
  EXPECT_EQ(start({"--cursor", "3", demoFile()}).code, 2);
  EXPECT_FALSE(QFile::exists(QStringLiteral("x.png")));
}

TEST_F(Program, HelpAndVersionWork) {
  const Result help = start({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(help.out.contains(QStringLiteral("--render")));
  EXPECT_TRUE(start({"--version"}).out.startsWith(QStringLiteral("switchyard-gui ")));
}

TEST_F(Program, WithoutFontsFailsAndNamesThePackage) {
  QFile config(QStringLiteral("nofonts.conf"));
  ASSERT_TRUE(config.open(QIODevice::WriteOnly));
  config.write(
      "<?xml version=\"1.0\"?><!DOCTYPE fontconfig SYSTEM \"fonts.dtd\">"
      "<fontconfig><dir>nowhere</dir></fontconfig>\n");
  config.close();
  QProcessEnvironment env = QProcessEnvironment::systemEnvironment();
  env.insert(QStringLiteral("FONTCONFIG_FILE"), QFileInfo(config.fileName()).absoluteFilePath());
  const Result r = start({"--render", "boxes.png", demoFile()}, env);
  EXPECT_EQ(r.code, 3) << r.err.toStdString();
  EXPECT_TRUE(r.err.contains(QStringLiteral("fonts-dejavu-core"))) << r.err.toStdString();
  EXPECT_FALSE(QFile::exists(QStringLiteral("boxes.png")));
}

TEST_F(Program, WithoutADisplayTheWindowSaysSo) {
  QProcessEnvironment bare = QProcessEnvironment::systemEnvironment();
  for (const char* name : {"QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"}) {
    bare.remove(QString::fromLatin1(name));
  }
  const Result r = start({demoFile()}, bare);
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(r.err.contains(QStringLiteral("no display"))) << r.err.toStdString();
}

}  // namespace
}  // namespace switchyard::gui
