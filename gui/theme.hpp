// SPDX-License-Identifier: Apache-2.0
// Light and dark colours, the palette made of them, and the one font. Qt 6.4 has no colorScheme(),
// so the choice is ours. Contrast (tests/gui): text roles >= 4.5:1, lines >= 3:1.
#pragma once
#include <array>

#include <QColor>
#include <QFont>
#include <QPalette>
#include <QString>

#include "sim/run/run_data.hpp"

class QLabel;

namespace switchyard::gui {

struct Theme {
  bool dark = false;
  QColor window, base, alternate, button, text, muted, frame, grid, highlight, highlightedText;
  QColor accent;     ///< Cursor, and values at the cursor.
  QColor overflow;   ///< Over capacity; reserved.
  QColor saturated;  ///< Text and lines about overload, legible on `base`.
  QColor noData;     ///< A cell without a value.
  QColor selection;  ///< Translucent.
  std::array<QColor, 6> series;
  std::array<QColor, run::kPhases> phases;
  [[nodiscard]] QPalette palette() const;
};

const Theme& themeFor(bool dark);

/// WCAG 2 contrast ratio, 1 … 21.
double contrast(const QColor& a, const QColor& b);

/// Points of the usual text, on screens and in pictures.
inline constexpr double kTextPoints = 9;

/// Fusion, the theme's palette, DejaVu Sans of `points`, for the whole application.
void applyTheme(bool dark, double points = kTextPoints);

/// A label with this property is a heading: bold, so many points larger than the text around it.
inline constexpr const char* kHeadingProperty = "headingPoints";
QFont headingFont(double larger);
void makeHeading(QLabel* label, double larger);

/// Empty if text can be drawn; else one line that names the package to install.
QString missingFonts();

}  // namespace switchyard::gui
