// SPDX-License-Identifier: Apache-2.0
#include "gui/theme.hpp"

#include <algorithm>
#include <cmath>

#include <QApplication>
#include <QFont>
#include <QFontDatabase>
#include <QFontMetrics>
#include <QLabel>
#include <QPainter>
#include <QProxyStyle>
#include <QStyleFactory>
#include <QStyleOption>

#include "gui/core/colormap.hpp"

namespace switchyard::gui {
namespace {

const QString kFontFamily = QStringLiteral("DejaVu Sans");

Theme light() {
  Theme t;
  t.window = "#f1f1f0";
  t.base = "#ffffff";
  t.alternate = "#f6f6f5";
  t.button = "#e9e9e8";
  t.text = "#16181b";
  t.muted = "#565b62";
  t.frame = "#9a9ea4";
  t.grid = "#e2e3e5";
  t.highlight = "#1a6fc4";
  t.highlightedText = "#ffffff";
  t.accent = "#b03a00";
  t.overflow = QColor::fromRgb(kOverflowColor);
  t.saturated = "#c2141b";
  t.noData = "#d5d6d8";
  t.selection = QColor(26, 111, 196, 50);
  t.series = {"#1a6fc4", "#8e2fa8", "#00796b", "#8d5a00", "#c2185b", "#51606e"};
  t.phases = {"#7d8187", "#4c6fe0", "#17a2b8", "#f2a03d", "#2e9e3f",
              "#cf5a1e", "#8e6bd1", "#d96bb8", "#8c564b", "#dcdee2"};
  return t;
}

Theme darkTheme() {
  Theme t;
  t.dark = true;
  t.window = "#26282c";
  t.base = "#1b1d20";
  t.alternate = "#212327";
  t.button = "#33363b";
  t.text = "#e6e8ea";
  t.muted = "#a6acb4";
  t.frame = "#62676e";
  t.grid = "#303338";
  t.highlight = "#2f76c0";
  t.highlightedText = "#ffffff";
  t.accent = "#ff8f47";
  t.overflow = QColor::fromRgb(kOverflowColor);
  t.saturated = "#ff6b70";
  t.noData = "#3a3d42";
  t.selection = QColor(90, 169, 245, 60);
  t.series = {"#5aa9f5", "#d08be8", "#3fc1ad", "#e0a040", "#f2719b", "#a3b3c2"};
  t.phases = {"#8f949b", "#5f83ee", "#2bb5ca", "#f2a03d", "#3fae50",
              "#dd6a30", "#a07fe0", "#e07fc2", "#a3695c", "#45494f"};
  return t;
}

/// Fusion draws the outlines of fields and boxes darker than the window, which nobody sees where
/// the window is dark.
class OutlinedFusion : public QProxyStyle {
 public:
  OutlinedFusion() : QProxyStyle(QStyleFactory::create(QStringLiteral("Fusion"))) {}
  void drawPrimitive(PrimitiveElement element, const QStyleOption* option, QPainter* painter,
                     const QWidget* widget) const override {
    QProxyStyle::drawPrimitive(element, option, painter, widget);
    if (element != PE_FrameLineEdit && element != PE_IndicatorCheckBox) return;
    // The field with the focus has its own outline.
    if (element == PE_FrameLineEdit && option->state.testFlag(State_HasFocus)) return;
    painter->save();
    painter->setRenderHint(QPainter::Antialiasing);
    painter->translate(0.5, 0.5);
    painter->setPen(themeFor(true).frame);
    painter->setBrush(Qt::NoBrush);
    painter->drawRoundedRect(option->rect.adjusted(0, 0, -1, -1), 2, 2);
    painter->restore();
  }
};

double luminance(const QColor& c) {
  const auto linear = [](double v) {
    return v <= 0.03928 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(c.redF()) + 0.7152 * linear(c.greenF()) + 0.0722 * linear(c.blueF());
}

}  // namespace

QPalette Theme::palette() const {
  QPalette p;
  p.setColor(QPalette::Window, window);
  p.setColor(QPalette::WindowText, text);
  p.setColor(QPalette::Base, base);
  p.setColor(QPalette::AlternateBase, alternate);
  p.setColor(QPalette::Text, text);
  p.setColor(QPalette::PlaceholderText, muted);
  p.setColor(QPalette::Button, button);
  p.setColor(QPalette::ButtonText, text);
  p.setColor(QPalette::BrightText, saturated);
  p.setColor(QPalette::ToolTipBase, dark ? button : QColor("#fffbe6"));
  p.setColor(QPalette::ToolTipText, text);
  p.setColor(QPalette::Highlight, highlight);
  p.setColor(QPalette::HighlightedText, highlightedText);
  p.setColor(QPalette::Link, series[0]);
  p.setColor(QPalette::LinkVisited, series[1]);
  p.setColor(QPalette::Light, dark ? QColor("#43474d") : QColor("#ffffff"));
  p.setColor(QPalette::Midlight, dark ? QColor("#3a3d43") : QColor("#f4f4f4"));
  p.setColor(QPalette::Mid, dark ? QColor("#1f2124") : QColor("#c3c5c8"));
  p.setColor(QPalette::Dark, dark ? QColor("#141517") : QColor("#a2a5a9"));
  p.setColor(QPalette::Shadow, dark ? QColor("#000000") : QColor("#707377"));
  // Greyed, and still to be read: a field that follows from others is disabled, too.
  for (const auto role : {QPalette::WindowText, QPalette::Text, QPalette::ButtonText,
                          QPalette::PlaceholderText}) {
    p.setColor(QPalette::Disabled, role, dark ? QColor("#979da5") : QColor("#696e75"));
  }
  p.setColor(QPalette::Disabled, QPalette::Base, window);
  if (dark) p.setColor(QPalette::Disabled, QPalette::Button, window);  // bevels are lighter
  return p;
}

const Theme& themeFor(bool dark) {
  static const Theme kLight = light();
  static const Theme kDark = darkTheme();
  return dark ? kDark : kLight;
}

double contrast(const QColor& a, const QColor& b) {
  const double x = luminance(a);
  const double y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

QFont headingFont(double larger) {
  QFont font = QApplication::font();
  font.setBold(true);
  font.setPointSizeF(font.pointSizeF() + larger);
  return font;
}

void makeHeading(QLabel* label, double larger) {
  label->setProperty(kHeadingProperty, larger);
  label->setFont(headingFont(larger));
}

void applyTheme(bool dark, double points) {
  QApplication::setStyle(dark ? static_cast<QStyle*>(new OutlinedFusion)
                              : QStyleFactory::create(QStringLiteral("Fusion")));
  QApplication::setPalette(themeFor(dark).palette());
  QFont font(kFontFamily);
  font.setPointSizeF(points);
  QApplication::setFont(font);
}

QString missingFonts() {
  const QString fix = QStringLiteral("install the package fonts-dejavu-core");
  if (!QFontDatabase::families().contains(kFontFamily)) {
    return QStringLiteral("no font \"%1\" on this machine: letters would be boxes; %2")
        .arg(kFontFamily, fix);
  }
  const QFontMetrics metrics((QFont(kFontFamily)));
  if (metrics.horizontalAdvance('i') == metrics.horizontalAdvance('W')) {
    return QStringLiteral("the font \"%1\" has no letters; %2").arg(kFontFamily, fix);
  }
  return {};
}

}  // namespace switchyard::gui
