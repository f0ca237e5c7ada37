// SPDX-License-Identifier: Apache-2.0
// What is wrong with the texts that a widget and its children paint: cut, one on another, or too
// pale to be read. And a run that has something to say in every dock.
#pragma once
#include <map>
#include <string>
#include <vector>

#include <QAbstractScrollArea>
#include <QImage>
#include <QLineEdit>
#include <QScrollBar>

#include <fmt/format.h>

#include "gui/theme.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/text_recorder.hpp"

namespace switchyard::gui::testing {

inline std::string described(const PaintedText& t) {
  return fmt::format("\"{}\" at {:.0f}, {:.0f}, {:.0f} x {:.0f}", t.text.toStdString(), t.rect.x(),
                     t.rect.y(), t.rect.width(), t.rect.height());
}

/// Texts of the widget that break the rule.
inline std::vector<std::string> faults(QWidget& widget, std::size_t* seen = nullptr) {
  const std::vector<PaintedText> texts = textsOf(widget);
  if (seen != nullptr) *seen = texts.size();
  std::vector<std::string> out;
  std::vector<QRectF> shown;
  for (const PaintedText& t : texts) {
    shown.push_back(t.rect.intersected(t.clip).adjusted(1, 2, -1, -2));
    const QPoint middle = t.rect.intersected(t.clip).center().toPoint();
    const QWidget* w = widget.childAt(middle);
    // What scrolls ends at its view's edge, and a field's text scrolls sideways.
    bool scrolls = false;
    bool field = false;
    for (; w != nullptr && w != &widget; w = w->parentWidget()) {
      field = field || qobject_cast<const QLineEdit*>(w) != nullptr;
      if (const auto* area = qobject_cast<const QAbstractScrollArea*>(w)) {
        scrolls = true;
        field = field || area->horizontalScrollBar()->maximum() > 0;
      }
    }
    const bool sideways =
        t.clip.left() > t.rect.left() + 1.5 || t.clip.right() < t.rect.right() - 1.5;
    const bool high = t.clip.top() > t.rect.top() + 3 || t.clip.bottom() < t.rect.bottom() - 3;
    if ((sideways && !field) || (high && !scrolls)) {
      out.push_back(described(t) + fmt::format(" is cut by {:.0f}, {:.0f}, {:.0f} x {:.0f}",
                                               t.clip.x(), t.clip.y(), t.clip.width(),
                                               t.clip.height()));
    }
  }
  for (std::size_t a = 0; a < texts.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (shown[a].isValid() && shown[b].isValid() && shown[a].intersects(shown[b])) {
        out.push_back(described(texts[a]) + " lies on " + described(texts[b]));
      }
    }
  }
  return out;
}

/// Texts whose colour is not clear of what lies under them: contrast below 4.5, of what is disabled
/// below 4. The ground is the most frequent colour where the text stands: letters cover less.
inline std::vector<std::string> paleTexts(QWidget& widget) {
  constexpr double kLeast = 4.5, kLeastDisabled = 4;
  const std::vector<PaintedText> texts = textsOf(widget);
  const QImage picture = widget.grab().toImage().convertToFormat(QImage::Format_RGB32);
  const double scale = picture.devicePixelRatio();
  std::vector<std::string> out;
  for (const PaintedText& t : texts) {
    const QRectF r = t.rect.intersected(t.clip);
    const QRect pixels =
        QRectF(r.topLeft() * scale, r.size() * scale).toAlignedRect().intersected(picture.rect());
    std::map<QRgb, int> colors;
    for (int y = pixels.top(); y <= pixels.bottom(); ++y) {
      const auto* line = reinterpret_cast<const QRgb*>(picture.constScanLine(y));
      for (int x = pixels.left(); x <= pixels.right(); ++x) ++colors[line[x]];
    }
    if (colors.empty()) continue;
    const auto ground = std::max_element(colors.begin(), colors.end(), [](auto& a, auto& b) {
      return a.second < b.second;
    });
    const QWidget* below = widget.childAt(r.center().toPoint());
    const bool enabled = (below != nullptr ? below : &widget)->isEnabled();
    const double c = contrast(t.color, QColor::fromRgb(ground->first));
    if (c >= (enabled ? kLeast : kLeastDisabled)) continue;
    out.push_back(described(t) + fmt::format(" has contrast {:.2f}: {} on {}", c,
                                             t.color.name().toStdString(),
                                             QColor::fromRgb(ground->first).name().toStdString()));
  }
  return out;
}

/// With an overflow, requests, replicas of some experts, events of several kinds.
inline run::RunData fullRun(std::uint32_t steps) {
  run::RunData data = demoRun(steps);
  for (std::uint32_t s = 5; s + 30 < steps; ++s) {
    run::RequestRecord q;
    q.id = s;
    q.arrival_ps = data.steps[s - 3].start_ps;
    q.scheduled_ps = data.steps[s - 1].start_ps;
    q.first_token_ps = data.steps[s + s % 7].end_ps;
    q.end_ps = data.steps[s + 20].end_ps;
    q.prompt_tokens = 100 + s;
    q.output_tokens = 9;
    q.outcome = run::RequestOutcome::kFinished;
    q.met_slo = s % 2;
    data.requests.push_back(q);
  }
  data.serving = true;
  data.meta.scenario_text += "workload.slo.ttft = \"500 ms\"\nworkload.slo.tpot = \"50 ms\"\n";
  data.metrics = run::compute_metrics(data);
  return data;
}

}  // namespace switchyard::gui::testing

#define EXPECT_CLEAR(widget, what) \
  for (const std::string& fault : faults(widget)) ADD_FAILURE() << (what) << ": " << fault
