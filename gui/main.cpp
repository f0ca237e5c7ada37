// SPDX-License-Identifier: Apache-2.0
// switchyard-gui: the desktop app and its headless twin (--render).
#include <cstdio>
#include <string_view>

#include <QApplication>
#include <QCommandLineParser>
#include <QIcon>
#include <QMessageLogContext>

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "gui/application.hpp"
#include "gui/mainwindow.hpp"
#include "gui/render.hpp"

namespace {

using switchyard::CapabilityError;
using switchyard::InputError;

constexpr int kOk = 0, kFailed = 1, kInput = 2, kCapability = 3;

bool given(int argc, char** argv, std::string_view option) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view a = argv[i];
    if (a == option || (a.substr(0, option.size()) == option && a.size() > option.size() &&
                        a[option.size()] == '=')) {
      return true;
    }
  }
  return false;
}

/// One line: the caller's log shows what is wrong, not how Qt is doing.
void quiet(QtMsgType type, const QMessageLogContext&, const QString& text) {
  if (type == QtFatalMsg || type == QtCriticalMsg) {
    std::fprintf(stderr, "%s\n", text.toUtf8().constData());
  }
}

int start(int argc, char** argv) {
  const bool rendering = given(argc, argv, "--render");
  const bool asking = given(argc, argv, "--help") || given(argc, argv, "-h") ||
                      given(argc, argv, "--version") || given(argc, argv, "-v");
  const bool screen =
      qEnvironmentVariableIsSet("DISPLAY") || qEnvironmentVariableIsSet("WAYLAND_DISPLAY") ||
      qEnvironmentVariableIsSet("QT_QPA_PLATFORM") || given(argc, argv, "-platform");
  if (rendering || asking) {
    // Pictures must not depend on the screen.
    if (!qEnvironmentVariableIsSet("QT_QPA_PLATFORM")) qputenv("QT_QPA_PLATFORM", "offscreen");
    qputenv("QT_FONT_DPI", "96");
    qputenv("QT_SCALE_FACTOR", "1");
    qInstallMessageHandler(quiet);
  } else if (!screen) {
    throw CapabilityError(
        "switchyard-gui: no display here; use --render OUT.png RUN, or set DISPLAY");
  }
  switchyard::gui::Application app(argc, argv);
  QApplication::setOrganizationName(QStringLiteral("switchyard"));
  QApplication::setApplicationName(QStringLiteral("switchyard-gui"));
  QApplication::setWindowIcon(QIcon(QStringLiteral(":/desktop/switchyard.svg")));
  QGuiApplication::setDesktopFileName(QStringLiteral("switchyard-gui"));
  QApplication::setApplicationVersion(QString::fromStdString(switchyard::version()));

  QCommandLineParser parser;
  parser.setApplicationDescription(
      QStringLiteral("Shows run files of switchyard sim, edits scenarios and runs them.\n"
                     "Example: switchyard-gui --render out.png --window 100,160 --cursor 131 "
                     "--theme dark run.h5"));
  parser.addHelpOption();
  parser.addVersionOption();
  parser.addPositionalArgument(QStringLiteral("RUN"),
                               QStringLiteral("A run file (.h5); two to compare; more: the same "
                                              "scenarios with other seeds"),
                               QStringLiteral("[RUN [RUN ...]]"));
  const QCommandLineOption renderTo(QStringLiteral("render"),
                                    QStringLiteral("Write a picture or the numbers and exit"),
                                    QStringLiteral("OUT.png|svg|csv"));
  const QCommandLineOption size(QStringLiteral("size"), QStringLiteral("Size of the picture"),
                                QStringLiteral("WxH"), QStringLiteral("1680x1020"));
  const QCommandLineOption window(
      QStringLiteral("window"), QStringLiteral("Steps to show: first, and the one after the last"),
      QStringLiteral("a,b"));
  const QCommandLineOption cursor(QStringLiteral("cursor"), QStringLiteral("Step under the cursor"),
                                  QStringLiteral("s"));
  const QCommandLineOption layer(QStringLiteral("layer"),
                                 QStringLiteral("Number of one MoE layer in place of all"),
                                 QStringLiteral("n"));
  const QCommandLineOption scale(QStringLiteral("scale"),
                                 QStringLiteral("Pixels of a PNG per unit of --size, 1 to 4"),
                                 QStringLiteral("f"), QStringLiteral("1"));
  const QCommandLineOption theme(QStringLiteral("theme"), QStringLiteral("light or dark"),
                                 QStringLiteral("NAME"));
  const QCommandLineOption panel(
      QStringLiteral("panel"),
      QStringLiteral("all or one of ") + switchyard::gui::panels().join(QStringLiteral(", ")) +
          QStringLiteral("; the last four show the steps of --window, else of --cursor"),
      QStringLiteral("NAME"), QStringLiteral("all"));
  const QCommandLineOption base(
      {QStringLiteral("d"), QStringLiteral("compare")},
      QStringLiteral("A second run, compared with the first and drawn dashed"),
      QStringLiteral("B.h5"));
  const QCommandLineOption scenario(QStringLiteral("scenario"),
                                    QStringLiteral("Open a scenario in the form"),
                                    QStringLiteral("S.toml"));
  const QCommandLineOption axis(
      QStringLiteral("axis"),
      QStringLiteral("steps (of equal width) or time (simulated; widths are times)"),
      QStringLiteral("NAME"), QStringLiteral("steps"));
  const QCommandLineOption colors(QStringLiteral("colors"),
                                  QStringLiteral("Of the heat map: viridis, cividis or grey"),
                                  QStringLiteral("NAME"), QStringLiteral("viridis"));
  parser.addOptions(
      {axis, colors, renderTo, base, scenario, scale, size, window, cursor, layer, theme, panel});
  if (!parser.parse(QApplication::arguments())) {
    throw InputError("switchyard-gui", parser.errorText().toStdString(), "see --help");
  }
  if (parser.isSet(QStringLiteral("help"))) {
    std::fputs(parser.helpText().toUtf8().constData(), stdout);
    return kOk;
  }
  if (parser.isSet(QStringLiteral("version"))) {
    std::printf("switchyard-gui %s\n", switchyard::version().c_str());
    return kOk;
  }
  const QString missing = switchyard::gui::missingFonts();
  if (!missing.isEmpty()) throw CapabilityError("switchyard-gui: " + missing.toStdString());

  QStringList runs = parser.positionalArguments();
  if (parser.isSet(base)) {
    if (runs.size() != 1) {
      throw InputError("--compare", "needs one other run file",
                       "switchyard-gui A.h5 --compare B.h5");
    }
    runs << parser.value(base);
  }
  constexpr auto kMost = static_cast<qsizetype>(switchyard::gui::MainWindow::kOpenMost);
  if (runs.size() > (rendering ? 2 : kMost)) {
    throw InputError("switchyard-gui",
                     fmt::format("unsupported: {} run files at once", runs.size()),
                     rendering ? "name one to draw it, two to compare them"
                               : "name one, two to compare, or more seeds of the two; at most 12");
  }
  bool dark = false;
  if (parser.isSet(theme)) {
    const QString name = parser.value(theme);
    if (name != QLatin1String("light") && name != QLatin1String("dark")) {
      throw InputError("--theme", fmt::format("unknown theme \"{}\"", name.toStdString()),
                       "use light or dark");
    }
    dark = name == QLatin1String("dark");
  }
  if (rendering && parser.isSet(scenario)) {
    throw InputError("--scenario", "is only for the window", "--render draws run files");
  }
  if (rendering) {
    if (runs.isEmpty()) {
      throw InputError("--render", "no run file is named", "switchyard-gui --render OUT.png RUN");
    }
    switchyard::gui::RenderOptions o;
    o.run = runs.first().toStdString();
    if (runs.size() == 2) o.compare = runs.last().toStdString();
    o.output = parser.value(renderTo);
    o.size = switchyard::gui::parseSize(parser.value(size));
    if (parser.isSet(window)) o.window = switchyard::gui::parseWindow(parser.value(window));
    if (parser.isSet(cursor)) {
      bool ok = false;
      o.cursor = parser.value(cursor).toULongLong(&ok);
      if (!ok) {
        throw InputError("--cursor",
                         fmt::format("\"{}\" is no step", parser.value(cursor).toStdString()));
      }
    }
    if (parser.isSet(layer)) {
      bool ok = false;
      o.layer = parser.value(layer).toUInt(&ok);
      if (!ok) {
        throw InputError("--layer",
                         fmt::format("\"{}\" is no layer", parser.value(layer).toStdString()));
      }
    }
    bool number = false;
    o.scale = parser.value(scale).toDouble(&number);
    if (!number || !(o.scale >= 1) || !(o.scale <= 4)) {
      throw InputError("--scale", fmt::format("\"{}\" is no number from 1 to 4",
                                              parser.value(scale).toStdString()));
    }
    const QString axisName = parser.value(axis);
    if (axisName != QLatin1String("steps") && axisName != QLatin1String("time")) {
      throw InputError("--axis", fmt::format("unknown axis \"{}\"", axisName.toStdString()),
                       "use steps or time");
    }
    o.timeAxis = axisName == QLatin1String("time");
    const QString map = parser.value(colors);
    if (map == QLatin1String("cividis")) {
      o.colors = switchyard::gui::ColorMap::kCividis;
    } else if (map == QLatin1String("grey")) {
      o.colors = switchyard::gui::ColorMap::kGrey;
    } else if (map != QLatin1String("viridis")) {
      throw InputError("--colors", fmt::format("unknown colours \"{}\"", map.toStdString()),
                       "use viridis, cividis or grey");
    }
    o.dark = dark;
    o.panel = parser.value(panel);
    switchyard::gui::render(o);
    return kOk;
  }
  if (parser.isSet(scenario) && !runs.isEmpty()) {
    throw InputError("--scenario", "unsupported together with run files", "open them from File");
  }
  for (const QCommandLineOption* option :
       {&size, &scale, &window, &cursor, &layer, &panel, &axis, &colors}) {
    if (parser.isSet(*option)) {
      throw InputError("--" + option->names().first().toStdString(), "is only for --render",
                       "the window has its own keys: F1");
    }
  }
  if (!parser.isSet(theme)) {
    dark = QApplication::palette().color(QPalette::Window).lightness() < 128;
  }
  switchyard::gui::applyTheme(dark);
  switchyard::gui::MainWindow w(true);
  app.setProblem([&w](const QString& message) { w.messageBar()->showMessage(message); });
  if (parser.isSet(theme)) w.setDark(dark);
  w.show();
  if (parser.isSet(scenario)) {
    w.openScenario(parser.value(scenario));
  } else {
    w.openFiles(runs);
  }
  return QApplication::exec();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return start(argc, argv);
  } catch (const InputError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return kInput;
  } catch (const CapabilityError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return kCapability;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "switchyard-gui: %s\n", e.what());
    return kFailed;
  }
}
