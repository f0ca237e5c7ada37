// SPDX-License-Identifier: Apache-2.0
#include "gui/render.hpp"

#include <memory>
#include <numeric>

#include <QBuffer>
#include <QCoreApplication>
#include <QFileInfo>
#include <QImage>
#include <QPainter>
#include <QSaveFile>
#include <QScrollBar>
#include <QSvgGenerator>

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "gui/capacityview.hpp"
#include "gui/compareview.hpp"
#include "gui/core/views.hpp"
#include "gui/mainwindow.hpp"
#include "gui/matrixview.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

enum class Format { kPng, kSvg, kCsv };

Format formatOf(const QString& output) {
  const QString suffix = QFileInfo(output).suffix().toLower();
  if (suffix == QLatin1String("png")) return Format::kPng;
  if (suffix == QLatin1String("svg")) return Format::kSvg;
  if (suffix == QLatin1String("csv")) return Format::kCsv;
  throw InputError(output.toStdString(), "unsupported kind of file",
                   "the name must end in .png, .svg or .csv");
}

void write(const QString& output, const QByteArray& bytes) {
  QSaveFile file(output);
  if (!file.open(QIODevice::WriteOnly) || file.write(bytes) != bytes.size() || !file.commit()) {
    throw InputError(output.toStdString(), "cannot write: " + file.errorString().toStdString());
  }
}

/// What was drawn, so that a figure can be made again.
QString source(const RunStore& run) {
  const run::RunMeta& m = run.data().meta;
  return QStringLiteral("Switchyard %1; run %2; scenario %3 %4; seed %5")
      .arg(qs(version()), qs(run.name()), qs(m.scenario_name), qs(m.scenario_hash))
      .arg(m.seed);
}

/// Lays out everything inside a widget that is not on a screen.
void settle(QWidget& widget) {
  widget.setAttribute(Qt::WA_DontShowOnScreen);
  widget.show();
  QCoreApplication::sendPostedEvents();
  QCoreApplication::processEvents();
  // Painting once begins what is read in the background; a picture waits for it.
  (void)widget.grab();
  for (const TimePane* pane : widget.findChildren<TimePane*>()) {
    while (pane->isVisible() && pane->reading()) {
      QCoreApplication::processEvents(QEventLoop::WaitForMoreEvents, 50);
    }
  }
  QCoreApplication::processEvents();
}

QByteArray picture(QWidget& widget, const RunStore& run, Format format, qreal scale) {
  QByteArray bytes;
  QBuffer buffer(&bytes);
  buffer.open(QIODevice::WriteOnly);
  if (format == Format::kSvg) {
    QSvgGenerator svg;
    svg.setOutputDevice(&buffer);
    svg.setSize(widget.size());
    svg.setViewBox(QRect(QPoint(0, 0), widget.size()));
    // Points of fonts are counted as on the screen.
    svg.setResolution(96);
    // Qt writes them as they are.
    svg.setTitle(qs(run.name()).toHtmlEscaped());
    svg.setDescription(source(run).toHtmlEscaped());
    QPainter painter(&svg);
    widget.render(&painter);
    painter.end();
  } else {
    QImage image = imageOf(widget, scale);
    image.setText(QStringLiteral("Source"), source(run));
    image.save(&buffer, "PNG");
  }
  return bytes;
}

const QStringList& dockNames() {
  static const QStringList names = {QStringLiteral("topology"), QStringLiteral("reroutes"),
                                    QStringLiteral("capacity"), QStringLiteral("compare")};
  return names;
}

/// The dock's content, with the state's run in it.
std::unique_ptr<QWidget> dockOf(const QString& name, ViewState* state) {
  if (name == QLatin1String("topology")) return std::make_unique<TopologyView>(state);
  if (name == QLatin1String("reroutes")) {
    auto matrix = std::make_unique<MatrixView>(state);
    matrix->setKind(MatrixKind::kReroutesExperts);  // the dock shows traffic where nothing moved
    return matrix;
  }
  if (name == QLatin1String("capacity")) return std::make_unique<CapacityView>(state);
  auto compare = std::make_unique<CompareView>(state);
  compare->setRuns({qs(state->run()->name()), qs(state->other()->name())}, 0, 1);
  return compare;
}

QByteArray csv(const RunStore& run, const QString& panel, std::uint32_t layer, TimeWindow window) {
  static const QStringList known = {QStringLiteral("all"), QStringLiteral("heatmap"),
                                    QStringLiteral("imbalance"), QStringLiteral("links"),
                                    QStringLiteral("memory")};
  if (!known.contains(panel)) {
    throw InputError("--panel",
                     fmt::format("unsupported: CSV of the panel \"{}\"", panel.toStdString()),
                     "use " + (known + dockNames()).join(QStringLiteral(", ")).toStdString());
  }
  return QByteArray::fromStdString(csvOf(run, panel.toStdString(), layer, window));
}

}  // namespace

QStringList panels() { return PaneStack::panelNames() + dockNames(); }

QImage imageOf(QWidget& widget, qreal scale) {
  QImage image(widget.size() * scale, QImage::Format_RGB32);
  image.setDevicePixelRatio(scale);
  image.fill(Qt::white);
  widget.render(&image);
  return image;
}

QSize parseSize(const QString& text) {
  const QStringList parts = text.split('x');
  bool w = false;
  bool h = false;
  if (parts.size() == 2) {
    const QSize size(parts[0].toInt(&w), parts[1].toInt(&h));
    if (w && h && size.width() >= 200 && size.height() >= 120 && size.width() <= 16384 &&
        size.height() <= 16384) {
      return size;
    }
  }
  throw InputError("--size", fmt::format("\"{}\" is no size of a picture", text.toStdString()),
                   "write e.g. 1680x1020; from 200x120 to 16384x16384");
}

TimeWindow parseWindow(const QString& text) {
  const QStringList parts = text.split(',');
  bool a = false;
  bool b = false;
  if (parts.size() == 2) {
    const auto first = parts[0].trimmed().toULongLong(&a);
    const auto end = parts[1].trimmed().toULongLong(&b);
    if (a && b && first < end) return {static_cast<double>(first), static_cast<double>(end)};
  }
  throw InputError("--window", fmt::format("\"{}\" is no range of steps", text.toStdString()),
                   "write e.g. 12200,12260: first step, and the step after the last");
}

void render(const RenderOptions& o) {
  const Format format = formatOf(o.output);
  if (o.panel != QLatin1String("all") && !panels().contains(o.panel)) {
    throw InputError("--panel", fmt::format("unknown panel \"{}\"", o.panel.toStdString()),
                     "use all, " + panels().join(", ").toStdString());
  }
  const bool dock = dockNames().contains(o.panel);
  const bool comparing = o.panel == QLatin1String("compare");
  if (comparing && o.compare.empty()) {
    throw InputError("--panel", "compare shows two runs", "name the second one with --compare");
  }
  const auto refuse = [&](bool given, const char* option, const char* why) {
    if (given) {
      throw InputError(option, fmt::format("unsupported: {} {}", o.panel.toStdString(), why),
                       "leave the option out");
    }
  };
  refuse(dock && o.timeAxis, "--axis", "has no axis of steps");
  refuse(o.layer && (comparing || o.panel == QLatin1String("topology")), "--layer",
         "is of all layers");
  refuse(comparing && o.window, "--window", "is of whole runs");
  refuse(comparing && o.cursor, "--cursor", "is of whole runs");
  const auto run = std::make_shared<const RunStore>(o.run);
  const auto other = o.compare.empty() ? nullptr : std::make_shared<const RunStore>(o.compare);
  const std::uint64_t steps = run->steps();
  if (o.window && o.window->end > static_cast<double>(steps)) {
    throw InputError("--window",
                     fmt::format("{:.0f},{:.0f} ends beyond the {} steps of {}", o.window->first,
                                 o.window->end, steps, o.run.string()));
  }
  if (o.cursor && *o.cursor >= steps) {
    throw InputError("--cursor", fmt::format("step {} is beyond the last of the {} steps of {}",
                                             *o.cursor, steps, o.run.string()));
  }
  std::uint32_t layer = kAllLayers;
  if (o.layer) {
    const auto& numbers = run->data().inventory.moe_layers;
    const auto found = std::find(numbers.begin(), numbers.end(), *o.layer);
    if (found == numbers.end() || !run->hasLayers()) {
      throw InputError(
          "--layer", fmt::format("{} has no numbers of a MoE layer {}", o.run.string(), *o.layer),
          numbers.empty() || !run->hasLayers()
              ? "simulate with --set run.detail=layers"
              : fmt::format("its MoE layers are {} to {}", numbers.front(), numbers.back()));
    }
    layer = static_cast<std::uint32_t>(found - numbers.begin());
  }
  if (format == Format::kCsv && other != nullptr && !comparing) {
    throw InputError("--compare", "unsupported: CSV of two runs",
                     "switchyard diff A B --format csv, or --panel compare");
  }
  if (dock) {
    applyTheme(o.dark);
    ViewState state;
    state.setDark(o.dark);
    state.setColorMap(o.colors);
    state.setRun(run);
    state.setOther(other);
    state.setLayer(layer);
    if (o.cursor) state.setCursor(o.cursor);
    if (o.window) {
      state.setSelection(StepRange{static_cast<std::uint64_t>(o.window->first),
                                   static_cast<std::uint64_t>(o.window->end)});
    }
    if (format == Format::kCsv && comparing) {
      const CompareModel model(&state);
      std::vector<int> rows(static_cast<std::size_t>(model.rowCount()));
      std::iota(rows.begin(), rows.end(), 0);
      write(o.output, tableText(model, rows, TableText::kCsv).toUtf8());
      return;
    }
    if (format == Format::kCsv) {
      QString when;
      write(o.output, QByteArray::fromStdString(
                          dockCsv(*run, o.panel.toStdString(), layer, spanOf(state, when))));
      return;
    }
    const std::unique_ptr<QWidget> widget = dockOf(o.panel, &state);
    widget->resize(o.size);
    settle(*widget);
    write(o.output, picture(*widget, *run, format, o.scale));
    return;
  }
  if (format == Format::kCsv) {
    const TimeWindow all{0, static_cast<double>(steps)};
    write(o.output, csv(*run, o.panel, layer, o.window.value_or(all)));
    return;
  }
  applyTheme(o.dark);
  const auto show = [&](ViewState& state) {
    state.setTimeAxis(o.timeAxis);
    state.setColorMap(o.colors);
    if (o.window) state.setWindow(*o.window, ViewState::Move::kJump);
    if (o.cursor) state.setCursor(o.cursor);
    state.setLayer(layer);
  };
  if (o.panel == QLatin1String("all") && format == Format::kPng) {
    MainWindow window(false);
    window.setDark(o.dark);
    window.resize(o.size);
    window.showRun(run);
    window.compareWith(other);
    settle(window);
    window.restoreDefaultLayout();
    show(*window.state());
    settle(window);
    if (window.size() != o.size) {
      throw InputError(
          "--size",
          fmt::format("{}x{} is too small for the window", o.size.width(), o.size.height()),
          fmt::format("it needs {}x{}; or choose one panel with --panel", window.width(),
                      window.height()));
    }
    write(o.output, picture(window, *run, format, o.scale));
    return;
  }
  ViewState state;
  state.setDark(o.dark);
  PaneStack stack(&state, o.panel == QLatin1String("all") ? QStringList() : QStringList{o.panel});
  if (stack.scrollBar() != nullptr) stack.scrollBar()->parentWidget()->hide();
  state.setRun(run);
  state.setOther(other);
  stack.resize(o.size);
  settle(stack);
  show(state);
  settle(stack);
  write(o.output, picture(stack, *run, format, o.scale));
}

void exportWindow(MainWindow& window, const QString& output) {
  const Format format = formatOf(output);
  const RunStore* run = window.state()->run();
  SWITCHYARD_ASSERT(run != nullptr, "no run");
  if (format == Format::kCsv) {
    write(output,
          csv(*run, QStringLiteral("all"), window.state()->layer(), window.state()->window()));
  } else {
    QWidget& shown = format == Format::kSvg ? static_cast<QWidget&>(*window.panes()) : window;
    // A figure needs no bar to drag.
    QWidget& bar = *window.panes()->scrollBar()->parentWidget();
    if (format == Format::kSvg) bar.hide();
    const QByteArray bytes = picture(shown, *run, format, 2);
    bar.show();
    write(output, bytes);
  }
}

}  // namespace switchyard::gui
