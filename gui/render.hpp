// SPDX-License-Identifier: Apache-2.0
// The non-interactive twin of the window: the same widgets, drawn into a file. Same run, same
// options → the same bytes (PNG, SVG, CSV), on one machine with one set of fonts.
#pragma once
#include <filesystem>
#include <optional>

#include <QByteArray>
#include <QImage>
#include <QSize>
#include <QString>

#include "gui/core/colormap.hpp"
#include "gui/core/timeaxis.hpp"

class QWidget;

namespace switchyard::gui {

class MainWindow;

struct RenderOptions {
  std::filesystem::path run;
  std::filesystem::path compare;        ///< B, drawn dashed; empty: none. Not in a CSV.
  QString output;                       ///< Ends in .png, .svg or .csv.
  QSize size{1680, 1020};               ///< Logical pixels; at least 200 x 120.
  double scale = 1;                     ///< Pixels of a PNG per logical pixel, 1 … 4.
  std::optional<TimeWindow> window;     ///< Steps; the whole run without.
  std::optional<std::uint64_t> cursor;  ///< Step; none without.
  std::optional<std::uint32_t> layer;   ///< Number of a MoE layer in the model; all without.
  bool timeAxis = false;                ///< Equal widths are equal simulated times.
  bool dark = false;
  ColorMap colors = ColorMap::kViridis;   ///< Of the heat map.
  QString panel = QStringLiteral("all");  ///< "all" or one of panels().
};

/// PaneStack::panelNames(), and the docks topology, reroutes, capacity and compare. A dock shows
/// the steps of `window`, else the step of `cursor`, else the whole run.
QStringList panels();

/// "1680x1020". InputError("--size", …) otherwise.
QSize parseSize(const QString& text);
/// "12200,12260": two steps, first < second. InputError("--window", …) otherwise.
TimeWindow parseWindow(const QString& text);

/// A PNG of "all" is the whole window; an SVG of it holds the panes over steps, without the docks.
/// Checks the options against each other and the run, then writes the file (to a temporary name,
/// renamed at the end). InputError on any failure: no file is left then.
void render(const RenderOptions& options);
/// What the window shows now. The format follows from the file's name.
void exportWindow(MainWindow& window, const QString& output);
/// What the widget shows, with `scale` pixels per logical pixel.
QImage imageOf(QWidget& widget, qreal scale);

}  // namespace switchyard::gui
