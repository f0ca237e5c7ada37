// SPDX-License-Identifier: Apache-2.0
#include "gui/capacityview.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>

#include "engine/base/error.hpp"
#include "gui/matrixview.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

/// Tokens are counted in whole numbers; only a mean over steps has digits behind the point.
QString tokensText(double v) {
  constexpr double kExact = 1e15;
  return v >= 0 && v < kExact && v == std::floor(v) ? count(static_cast<std::uint64_t>(v))
                                                    : qs(shortNumber(v));
}

}  // namespace

CapacityView::CapacityView(ViewState* state, QWidget* parent) : QWidget(parent), m_state(state) {
  setMinimumHeight(80);
  const auto changed = [this] {
    m_stale = true;
    update();
  };
  for (const auto signal :
       {&ViewState::runChanged, &ViewState::cursorChanged, &ViewState::selectionChanged,
        &ViewState::optionsChanged, &ViewState::expertChanged, &ViewState::themeChanged}) {
    connect(state, signal, this, changed);
  }
}

void CapacityView::showEvent(QShowEvent* event) {
  m_stale = true;
  QWidget::showEvent(event);
}

void CapacityView::refresh() {
  // Only when it is drawn: a hidden dock must not read the run.
  if (!m_stale) return;
  m_stale = false;
  m_bars = {};
  m_when.clear();
  if (m_state->run() == nullptr) return;
  try {
    m_bars = capacityBars(*m_state->run(), m_state->layer(), spanOf(*m_state, m_when));
  } catch (const InputError& e) {
    m_bars.missing = e.what();
  }
  m_top = 1;
  for (const CapacityBar& b : m_bars.bars) {
    m_top = std::max({m_top, b.own + b.rerouted + b.queued + b.dropped, b.capacity});
  }
}

QRect CapacityView::plot() const {
  const QFontMetrics m = fontMetrics();
  const int left = m.horizontalAdvance(tokensText(m_top)) + 12;
  const int top = m.height() + 8;
  return {left, top, std::max(1, width() - left - 8), std::max(1, height() - top - m.height() - 6)};
}

int CapacityView::expertAt(const QPoint& position) const {
  const QRect r = plot();
  const int n = static_cast<int>(m_bars.bars.size());
  if (n == 0 || position.x() < r.left() || position.x() > r.right()) return -1;
  return std::min(n - 1, (position.x() - r.left()) * n / r.width());
}

QString CapacityView::tip(const QPoint& position) const {
  const int e = expertAt(position);
  if (e < 0) return {};
  const CapacityBar& b = m_bars.bars[static_cast<std::size_t>(e)];
  const auto n = [](double v) { return tokensText(v); };
  return tr("%1, %2: %3 kept, %4 taken over, %5 queued, %6 dropped; %7")
      .arg(qs(expertName(static_cast<std::uint32_t>(e),
                         static_cast<std::uint32_t>(m_bars.bars.size()))),
           m_when, n(b.own), n(b.rerouted), n(b.queued), n(b.dropped),
           b.capacity < 0 ? tr("no limit") : tr("capacity %1").arg(n(b.capacity)));
}

void CapacityView::paintEvent(QPaintEvent*) {
  refresh();
  QPainter p(this);
  const Theme& theme = m_state->theme();
  p.fillRect(rect(), theme.base);
  const QFontMetrics m = fontMetrics();
  if (m_bars.bars.empty()) {
    p.setPen(theme.text);
    p.drawText(rect().adjusted(8, 8, -8, -8), Qt::AlignCenter | Qt::TextWordWrap,
               qs(m_bars.missing));
    return;
  }
  const auto any = [&](auto&& test) {
    return std::any_of(m_bars.bars.begin(), m_bars.bars.end(), test);
  };
  // Only what the bars show is named.
  const std::array<bool, 4> there = {true, any([](const CapacityBar& b) { return b.rerouted > 0; }),
                                     any([](const CapacityBar& b) { return b.queued > 0; }),
                                     any([](const CapacityBar& b) { return b.dropped > 0; })};
  const bool limited = any([](const CapacityBar& b) { return b.capacity >= 0; });
  const QString limit = limited ? tr("capacity") : tr("no capacity limit");
  const std::array<std::pair<QString, QColor>, 4> parts = {{{tr("kept"), theme.series[2]},
                                                            {tr("taken over"), theme.series[0]},
                                                            {tr("queued"), theme.series[3]},
                                                            {tr("dropped"), theme.overflow}}};
  const QRect r = plot();
  int x = r.left();
  p.setPen(theme.text);
  int wanted = 16 + m.horizontalAdvance(limit);
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (there[k]) wanted += 25 + m.horizontalAdvance(parts[k].first);
  }
  // The names of the colours go before the words, the unit before the steps.
  const int room = width() - x - wanted - 18 - 4;
  QString what;
  for (const QString& words :
       {tr("tokens per step, %1").arg(m_when), tr("tokens/step, %1").arg(m_when),
        tr("tokens per step"), tr("tokens/step"), tr("tokens")}) {
    if (!what.isEmpty() || m.horizontalAdvance(words) > room) continue;
    what = words;
  }
  p.drawText(QRect(x, 2, width(), m.height()), Qt::AlignLeft | Qt::AlignVCenter, what);
  x += m.horizontalAdvance(what) + 18;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const auto& [name, color] = parts[k];
    if (!there[k]) continue;
    p.fillRect(QRect(x, 2 + m.height() / 2 - 4, 9, 9), color);
    p.drawText(QRect(x + 13, 2, width(), m.height()), Qt::AlignLeft | Qt::AlignVCenter, name);
    x += 13 + m.horizontalAdvance(name) + 12;
  }
  if (limited) {
    p.setPen(QPen(theme.text, 2));
    p.drawLine(x, 2 + m.height() / 2, x + 12, 2 + m.height() / 2);
    x += 16;
  } else {
    p.setPen(theme.muted);
  }
  p.drawText(QRect(x, 2, width(), m.height()), Qt::AlignLeft | Qt::AlignVCenter, limit);

  const int n = static_cast<int>(m_bars.bars.size());
  const auto yOf = [&](double v) {
    return r.bottom() + 1 - static_cast<int>(v / m_top * (r.height() - 1));
  };
  for (int e = 0; e < n; ++e) {
    const CapacityBar& b = m_bars.bars[static_cast<std::size_t>(e)];
    const int x0 = r.left() + e * r.width() / n;
    const int x1 =
        std::max(x0 + 1, r.left() + (e + 1) * r.width() / n - (r.width() > 4 * n ? 1 : 0));
    double below = 0;
    const std::array<double, 4> values = {b.own, b.rerouted, b.queued, b.dropped};
    for (std::size_t k = 0; k < values.size(); ++k) {
      const int y0 = yOf(below);
      below += values[k];
      p.fillRect(QRect(x0, yOf(below), x1 - x0, y0 - yOf(below)), parts[k].second);
    }
    if (b.capacity >= 0) {
      p.fillRect(QRect(x0, yOf(b.capacity) - 1, x1 - x0, 2), theme.text);
    }
    if (m_state->expert() == static_cast<std::uint32_t>(e)) {
      p.setPen(theme.accent);
      p.drawRect(QRect(x0 - 1, r.top(), x1 - x0 + 1, r.height()));
    }
  }
  p.setPen(theme.frame);
  p.drawRect(r.adjusted(-1, -1, 0, 0));
  p.setPen(theme.muted);
  p.drawText(QRect(2, r.top() - 2, r.left() - 8, m.height()), Qt::AlignRight | Qt::AlignVCenter,
             tokensText(m_top));
  p.drawText(QRect(2, r.bottom() - m.height() + 2, r.left() - 8, m.height()),
             Qt::AlignRight | Qt::AlignVCenter, QStringLiteral("0"));
  const QString widest =
      qs(expertName(static_cast<std::uint32_t>(n - 1), static_cast<std::uint32_t>(n)));
  const int per = std::max(1, ((m.horizontalAdvance(widest) + 8) * n + r.width() - 1) / r.width());
  for (int e = 0; e < n; e += per) {
    const int middle = r.left() + (2 * e + 1) * r.width() / (2 * n);
    const int w = m.horizontalAdvance(widest) + 8;
    if (middle + w / 2 - 4 > width()) continue;
    p.drawText(QRect(middle - w / 2, r.bottom() + 2, w, m.height()), Qt::AlignCenter,
               qs(expertName(static_cast<std::uint32_t>(e), static_cast<std::uint32_t>(n))));
  }
}

bool CapacityView::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const QString text = tip(help->pos());
    if (text.isEmpty()) {
      QToolTip::hideText();
    } else {
      QToolTip::showText(help->globalPos(), text, this);
    }
    return true;
  }
  return QWidget::event(event);
}

void CapacityView::mousePressEvent(QMouseEvent* event) {
  const int e = expertAt(event->pos());
  if (e >= 0) m_state->setExpert(static_cast<std::uint32_t>(e));
}

}  // namespace switchyard::gui
