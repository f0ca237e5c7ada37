// SPDX-License-Identifier: Apache-2.0
#include "gui/timepane.hpp"

#include <algorithm>
#include <cmath>

#include <QFontMetrics>
#include <QMouseEvent>
#include <QPaintEngine>
#include <QPainter>
#include <QSet>
#include <QWheelEvent>

#include "engine/base/error.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

constexpr int kGap = 6;         // between gutter text and plot
constexpr int kDragPixels = 4;  // less is a click
constexpr int kSwatch = 10;     // width of a legend's sample
constexpr int kLegendGap = 10;
constexpr int kSlack = 2;     // an advance is rounded down
constexpr int kTriangle = 8;  // of a pane that can be folded

bool isVector(const QPainter& painter) {
  const auto type = painter.paintEngine()->type();
  return type == QPaintEngine::SVG || type == QPaintEngine::Pdf;
}

}  // namespace

TimePane::TimePane(ViewState* state, const QString& id, QWidget* parent)
    : QWidget(parent), m_state(state), m_id(id) {
  setMouseTracking(true);
  setFocusPolicy(Qt::StrongFocus);
  setObjectName(id);
  setAttribute(Qt::WA_OpaquePaintEvent);
  connect(state, &ViewState::runChanged, this, &TimePane::invalidate);
  // What was pressed in one run chooses nothing in another.
  connect(state, &ViewState::runChanged, this, [this] { m_drag = Drag::kNone; });
  connect(state, &ViewState::otherChanged, this, &TimePane::invalidate);
  connect(state, &ViewState::windowChanged, this, &TimePane::invalidate);
  connect(state, &ViewState::themeChanged, this, &TimePane::invalidate);
  connect(state, &ViewState::cursorChanged, this, qOverload<>(&QWidget::update));
  connect(state, &ViewState::selectionChanged, this, qOverload<>(&QWidget::update));
}

int TimePane::lineHeight() const { return fontMetrics().height(); }
int TimePane::headerHeight() const { return hasHeader() ? lineHeight() + 5 : 0; }
int TimePane::titleLeft() const { return m_foldable ? 6 + kTriangle + 4 : 6; }

int TimePane::titleWidth() const {
  QFont bold = font();
  bold.setBold(true);
  return QFontMetrics(bold).horizontalAdvance(title());
}

void TimePane::setFoldable(bool foldable) {
  if (foldable == m_foldable) return;
  m_foldable = foldable;
  invalidate();
}

void TimePane::setFolded(bool folded) {
  if (folded == m_folded) return;
  m_folded = folded;
  setAccessibleDescription(folded ? tr("folded") : QString());
  invalidate();
  updateGeometry();
}

int TimePane::foldedGutter() const {
  return m_foldable ? titleLeft() + titleWidth() + 2 + kGap : 0;
}

int TimePane::heightFor(int plot) const {
  return headerHeight() + stripHeight() + (hasHeader() ? 0 : 2) + plot + 3;
}

QRect TimePane::foldRect() const {
  if (!m_foldable) return {};
  if (m_folded) return {0, 0, m_gutter, height()};
  return {0, 0, titleLeft() + titleWidth() + 4, headerHeight()};
}

QSize TimePane::minimumSizeHint() const {
  return m_folded ? QSize(200, foldedHeight()) : openMinimum();
}

void TimePane::setMargins(int gutter, int right) {
  if (gutter == m_gutter && right == m_right) return;
  m_gutter = gutter;
  m_right = right;
  invalidate();
}

QRect TimePane::plotRect() const {
  const int top = m_folded ? 1 : headerHeight() + stripHeight() + (hasHeader() ? 0 : 2);
  return {m_gutter, top, std::max(1, width() - m_gutter - m_right),
          std::max(1, height() - top - 3)};
}

QRect TimePane::besidePlot() const {
  const QRect plot = plotRect();
  return {0, plot.top(), plot.left(), plot.height()};
}

TimeAxis TimePane::axis() const {
  const QRect plot = plotRect();
  return {shownWindow(), static_cast<double>(plot.left()), static_cast<double>(plot.width()),
          m_state->timeScale()};
}

QString TimePane::drawnText() const {
  const auto pixels = static_cast<double>(plotRect().width());
  const TimeWindow w = shownWindow();
  if (!hasFrame() || m_state->run() == nullptr || !(w.length() > pixels)) return {};
  const double per = w.length() / pixels;
  // Each point is a pixel wide and holds all steps that fall on it: none is left out.
  return tr("%1 points drawn, each of %2 steps")
      .arg(count(static_cast<std::uint64_t>(pixels)),
           per < 100 ? QString::number(per, 'g', 3)
                     : count(static_cast<std::uint64_t>(std::llround(per))));
}

QString TimePane::headerText() const {
  QStringList parts;
  for (const QString& s : {detail(), drawnText()}) {
    if (!s.isEmpty()) parts << s;
  }
  return parts.join(QStringLiteral("; "));
}

void TimePane::invalidate() {
  m_dirty = true;
  update();
}

std::vector<TimePane::Label> TimePane::labels() const {
  std::vector<Label> all = m_staticLabels;
  all.insert(all.end(), m_cursorLabels.begin(), m_cursorLabels.end());
  return all;
}

void TimePane::label(QPainter& painter, const QRect& where, int flags, const QString& text,
                     const QColor& color, bool bold) {
  if (text.isEmpty()) return;
  // A folded pane has room for its title and one number only.
  if (m_folded && m_inContent && where.left() < m_gutter) return;
  QFont font = this->font();
  font.setBold(bold);
  painter.setFont(font);
  painter.setPen(color);
  painter.drawText(where, flags | Qt::TextSingleLine, text);
  if (m_sink != nullptr) {
    m_sink->push_back(
        {QFontMetrics(font).boundingRect(where, flags | Qt::TextSingleLine, text), text});
  }
}

QRect TimePane::gutterLine(int y) const {
  const int h = lineHeight();
  return {2, y - h / 2, m_gutter - 2 - kGap, h};
}

int TimePane::legendWidth() const { return widthOf(legend(), kLegendGap); }

int TimePane::widthOf(const std::vector<LegendItem>& items, int gap) const {
  int w = 0;
  for (const LegendItem& item : items) {
    w += kSwatch + 4 + fontMetrics().horizontalAdvance(item.text) + kSlack + gap;
  }
  return std::max(0, w - gap);
}

std::vector<TimePane::LegendItem> TimePane::legendIn(int width) const {
  std::vector<LegendItem> items = legend();
  if (widthOf(items, kLegendGap / 2) <= width) return items;
  for (LegendItem& item : items) {
    if (!item.brief.isEmpty()) item.text = item.brief;
  }
  return items;
}

void TimePane::drawLegend(QPainter& painter, const QRect& rect) {
  const std::vector<LegendItem> items = legendIn(rect.width());
  if (items.empty()) return;
  // If the names do not fit they share the room that is left, each cut with an ellipsis.
  const int n = static_cast<int>(items.size());
  std::vector<int> widths;
  int wanted = 0;
  for (const LegendItem& item : items) {
    widths.push_back(fontMetrics().horizontalAdvance(item.text) + kSlack);
    wanted += widths.back();
  }
  // Before names are cut, the gaps between them shrink.
  const auto roomWith = [&](int gap) { return rect.width() - n * (kSwatch + 4) - (n - 1) * gap; };
  const int gap = wanted > roomWith(kLegendGap) ? kLegendGap / 2 : kLegendGap;
  const int room = roomWith(gap);
  if (wanted > room) {
    // Short names keep their width.
    int left = room;
    int count = n;
    std::vector<int> order(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) order[static_cast<std::size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return widths[static_cast<std::size_t>(a)] < widths[static_cast<std::size_t>(b)];
    });
    for (const int i : order) {
      int& w = widths[static_cast<std::size_t>(i)];
      w = std::max(0, std::min(w, left / count));
      left -= w;
      --count;
    }
  }
  // Cut at the end, where the names stay different; names of links differ at their ends.
  QStringList texts;
  for (const Qt::TextElideMode mode : {Qt::ElideRight, Qt::ElideMiddle}) {
    texts.clear();
    for (std::size_t i = 0; i < items.size(); ++i) {
      texts << fontMetrics().elidedText(items[i].text, mode, widths[i]);
    }
    if (QSet<QString>(texts.begin(), texts.end()).size() == texts.size()) break;
  }
  int x = rect.left();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const int y = rect.center().y();
    if (items[i].line == Qt::NoPen) {
      painter.fillRect(QRect(x, y - 4, kSwatch, 9), items[i].color);
    } else {
      painter.setPen(QPen(items[i].color, 2, items[i].line));
      painter.drawLine(x, y, x + kSwatch, y);
    }
    x += kSwatch + 4;
    label(painter, QRect(x, rect.top(), widths[i], rect.height()), Qt::AlignLeft | Qt::AlignVCenter,
          texts[static_cast<int>(i)], m_state->theme().text);
    x += widths[i] + gap;
  }
}

void TimePane::drawHeader(QPainter& painter) {
  const Theme& theme = m_state->theme();
  const int left = titleLeft();
  const int right = plotRect().right();
  const int h = headerHeight();
  const int words = titleWidth();
  if (m_foldable) drawTriangle(painter, h / 2);
  label(painter, QRect(left, 0, words + 2, h), Qt::AlignLeft | Qt::AlignVCenter, title(),
        theme.text, true);
  int x = left + words + 10;
  const int room = std::max(0, right - x);
  int wanted = legendWidth();
  // Short names leave room for other text.
  if (const auto items = legendIn(room); wanted > room && !items.empty()) {
    wanted = std::min(wanted, widthOf(items, kLegendGap));
  }
  const int legendRoom = std::min(wanted, room);
  if (wanted > 0) {
    drawLegend(painter, QRect(right - legendRoom, 0, legendRoom, h));
  }
  const int detailRoom = room - legendRoom - (wanted > 0 ? kLegendGap : 0);
  const QString whole = headerText();
  const QString text = fontMetrics().elidedText(whole, Qt::ElideRight, detailRoom);
  // A detail of a few letters says nothing.
  if (detailRoom >= fontMetrics().averageCharWidth() * 12 || text == whole) {
    label(painter, QRect(x, 0, std::max(0, detailRoom), h), Qt::AlignLeft | Qt::AlignVCenter, text,
          theme.muted);
  }
}

void TimePane::drawTriangle(QPainter& painter, int middle) {
  const QPointF at(6 + kTriangle / 2.0, middle + 0.5);
  constexpr double kHalf = kTriangle / 2.0, kDepth = kTriangle / 3.0;
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setPen(Qt::NoPen);
  painter.setBrush(m_state->theme().muted);
  if (m_folded) {
    painter.drawPolygon(QPolygonF(
        {at + QPointF(-kDepth, -kHalf), at + QPointF(kDepth, 0), at + QPointF(-kDepth, kHalf)}));
  } else {
    painter.drawPolygon(QPolygonF(
        {at + QPointF(-kHalf, -kDepth), at + QPointF(kHalf, -kDepth), at + QPointF(0, kDepth)}));
  }
  painter.setRenderHint(QPainter::Antialiasing, false);
}

void TimePane::drawFoldedTitle(QPainter& painter) {
  drawTriangle(painter, height() / 2);
  const QRect where(titleLeft(), 0, m_gutter - titleLeft() - kGap, height());
  QFont bold = font();
  bold.setBold(true);
  label(painter, where, Qt::AlignLeft | Qt::AlignVCenter,
        QFontMetrics(bold).elidedText(title(), Qt::ElideRight, where.width()),
        m_state->theme().text, true);
}

void TimePane::foldedValue(QPainter& painter, const QString& text) {
  const int left = titleLeft() + titleWidth() + 6;
  const int room = m_gutter - kGap - 2 - left;
  const int width = fontMetrics().horizontalAdvance(text);
  if (width <= room) {
    label(painter, QRect(left, 0, room, height()), Qt::AlignRight | Qt::AlignVCenter, text,
          m_state->theme().accent);
    return;
  }
  // Too wide beside the title: on the plot's near end, or on the far one where the cursor is.
  const QRect plot = plotRect();
  QRect where(plot.left() + 1, 0, width + 2 * kGap, height());
  if (const auto step = m_state->cursor()) {
    const double at = axis().xOf(static_cast<double>(*step) + 0.5);
    if (at < where.right() + kGap) where.moveRight(plot.right() - 1);
  }
  painter.fillRect(where.adjusted(0, 1, 0, -1), m_state->theme().base);
  label(painter, where, Qt::AlignCenter, text, m_state->theme().accent);
}

void TimePane::drawStatic(QPainter& painter) {
  m_staticLabels.clear();
  m_sink = &m_staticLabels;
  ++m_contentDraws;
  const Theme& theme = m_state->theme();
  painter.fillRect(rect(), theme.window);
  if (m_folded) {
    drawFoldedTitle(painter);
  } else if (hasHeader()) {
    try {
      drawHeader(painter);
    } catch (const InputError&) {
      // A legend that reads a damaged page; the content says what is wrong.
    }
  }
  const QRect plot = plotRect();
  if (hasFrame()) painter.fillRect(plot, theme.base);
  if (m_state->run() != nullptr) {
    painter.save();
    m_inContent = true;
    try {
      drawContent(painter, plot);
    } catch (const InputError& e) {
      painter.setClipping(false);
      painter.fillRect(plot, theme.base);
      label(
          painter, plot.adjusted(6, 0, -6, 0), Qt::AlignLeft | Qt::AlignVCenter,
          fontMetrics().elidedText(QString::fromUtf8(e.what()), Qt::ElideMiddle, plot.width() - 12),
          theme.saturated);
    }
    m_inContent = false;
    painter.restore();
  }
  if (hasFrame()) {
    painter.setPen(theme.frame);
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(plot.adjusted(-1, -1, 0, 0));
  }
  m_sink = nullptr;
}

void TimePane::fillCache() {
  const QSize size = this->size() * m_ratio;
  if (!m_dirty && m_cache.size() == size) return;
  m_cache = QPixmap(size);
  m_cache.setDevicePixelRatio(m_ratio);
  QPainter cached(&m_cache);
  drawStatic(cached);
  m_dirty = false;
}

void TimePane::drawAhead() {
  if (!isVisible()) return;
  m_ratio = std::max(1.0, std::round(devicePixelRatioF() * 8) / 8);
  fillCache();
}

void TimePane::draw(QPainter& painter) {
  if (isVector(painter)) {
    m_ratio = 1;
    m_dirty = true;
    drawStatic(painter);
  } else {
    // Of the device, not of the widget: an export draws at twice the screen's resolution.
    m_ratio = std::max(1.0, std::round(painter.deviceTransform().m11() * 8) / 8);
    fillCache();
    painter.drawPixmap(0, 0, m_cache);
  }
  m_cursorLabels.clear();
  if (m_state->run() == nullptr || m_state->steps() == 0) return;
  m_sink = &m_cursorLabels;
  painter.save();
  try {
    drawOverlay(painter, plotRect());
  } catch (const InputError&) {
    // The content says why already: both read the same blocks.
  }
  painter.restore();
  m_sink = nullptr;
}

void TimePane::drawOverlay(QPainter& painter, const QRect& plot) {
  const Theme& theme = m_state->theme();
  const TimeAxis a = axis();
  const QRect strip(plot.left(), plot.top() - this->strip(), plot.width(),
                    plot.height() + this->strip());
  painter.setClipRect(strip);
  if (const auto range = m_state->selection()) {
    const double x0 = a.xOf(static_cast<double>(range->first));
    const double x1 = a.xOf(static_cast<double>(range->end));
    painter.fillRect(QRectF(x0, plot.top(), x1 - x0, plot.height()), theme.selection);
    painter.setPen(theme.highlight);
    painter.drawLine(QPointF(x0, plot.top()), QPointF(x0, plot.bottom()));
    painter.drawLine(QPointF(x1, plot.top()), QPointF(x1, plot.bottom()));
  }
  const auto step = m_state->cursor();
  if (!step) return;
  const double s = static_cast<double>(*step);
  const double x0 = a.xOf(s);
  const double x1 = a.xOf(s + 1);
  QColor halo = theme.base;
  halo.setAlpha(170);
  if (x1 - x0 >= 6) {
    const QRectF band(x0, strip.top() - 1, x1 - x0, strip.height() + 2);
    painter.setBrush(Qt::NoBrush);
    painter.setPen(QPen(halo, 3));
    painter.drawRect(band);
    painter.setPen(QPen(theme.accent, 1));
    painter.drawRect(band);
  } else {
    const int x = static_cast<int>(std::floor((x0 + x1) / 2));
    painter.fillRect(QRect(x - 1, strip.top(), 3, strip.height()), halo);
    painter.fillRect(QRect(x, strip.top(), 1, strip.height()), theme.accent);
  }
  painter.setClipping(false);
  drawCursorValues(painter, plot, *step);
}

void TimePane::drawCursorValues(QPainter&, const QRect&, std::uint64_t) {}

QString TimePane::describe(const QPoint&) const { return {}; }
void TimePane::clicked(const QPoint&) {}
void TimePane::doubleClicked(const QPoint&) {}

void TimePane::drawStripTick(QPainter& painter, int x) const {
  if (strip() == 0) return;
  const QRect plot = plotRect();
  painter.fillRect(QRect(x, plot.top() - stripHeight(), 1, stripHeight() - 2),
                   m_state->theme().overflow);
}

void TimePane::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  draw(painter);
  // Where the keys go; not in pictures.
  if (hasFocus() && !window()->testAttribute(Qt::WA_DontShowOnScreen)) {
    painter.setPen(m_state->theme().highlight);
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(plotRect().adjusted(-1, -1, 0, 0));
  }
}

void TimePane::resizeEvent(QResizeEvent* event) {
  m_dirty = true;
  QWidget::resizeEvent(event);
}

void TimePane::changeEvent(QEvent* event) {
  if (event->type() == QEvent::FontChange || event->type() == QEvent::StyleChange) invalidate();
  QWidget::changeEvent(event);
}

void TimePane::wheelEvent(QWheelEvent* event) {
  const QPoint d = event->angleDelta();
  const double notches = (d.y() != 0 ? d.y() : d.x()) / 120.0;
  if (notches == 0 || m_state->steps() == 0) return;
  if (event->modifiers() & Qt::ShiftModifier) {
    m_state->pan(-notches * m_state->window().length() * 0.1);
  } else {
    const double base = event->modifiers() & Qt::ControlModifier ? 0.95 : 0.8;
    const QRect plot = plotRect();
    const double x = std::clamp(event->position().x(), static_cast<double>(plot.left()),
                                static_cast<double>(plot.left() + plot.width()));
    m_state->zoom(axis().tOf(x), std::pow(base, notches));
  }
  event->accept();
}

void TimePane::mousePressEvent(QMouseEvent* event) {
  m_pressed = event->pos();
  m_pressedWindow = m_state->window();
  m_moved = false;
  m_drag = event->button() == Qt::LeftButton ? Drag::kSelect : Drag::kPan;
  event->accept();
}

void TimePane::mouseMoveEvent(QMouseEvent* event) {
  const QPoint at = event->pos();
  const TimeAxis a = axis();
  const QRect plot = plotRect();
  if (m_drag != Drag::kNone && std::abs(at.x() - m_pressed.x()) >= kDragPixels) m_moved = true;
  const double left = plot.left();
  const double right = plot.left() + plot.width();
  if (m_drag == Drag::kPan && m_moved && a.pixelsPerStep() > 0) {
    const double share = (m_pressed.x() - at.x()) / static_cast<double>(plot.width());
    m_state->setWindow(m_state->panned(m_pressedWindow, share), ViewState::Move::kContinuous);
    return;
  }
  if (m_drag == Drag::kSelect && m_moved) {
    const double x0 = std::clamp<double>(std::min(at.x(), m_pressed.x()), left, right);
    const double x1 = std::clamp<double>(std::max(at.x(), m_pressed.x()), left, right);
    const double t0 = std::max(0.0, std::floor(a.tOf(x0)));
    const double t1 = std::max(t0 + 1, std::ceil(a.tOf(x1)));
    m_state->setSelection(
        StepRange{static_cast<std::uint64_t>(t0), static_cast<std::uint64_t>(t1)});
  }
  const auto step = a.stepAt(std::clamp<double>(at.x(), left, right), m_state->steps());
  if (step && (plot.contains(at) || m_drag == Drag::kSelect)) m_state->setCursor(step);
  // The header is cut where it has no room: all of it stands in the status bar.
  QString said;
  try {
    said = describe(at);
  } catch (const InputError& e) {
    said = QString::fromUtf8(e.what());  // a page that cannot be read any more
  }
  const bool fold = foldRect().contains(at);
  setCursor(fold ? Qt::PointingHandCursor : Qt::ArrowCursor);
  if (fold && m_drag == Drag::kNone) {
    sayFold();
    return;
  }
  const bool header =
      !m_folded && hasHeader() && at.y() < headerHeight() && m_state->run() != nullptr;
  emit hovered(said.isEmpty() && header ? title() + QStringLiteral(": ") + headerText() : said);
}

void TimePane::sayFold() {
  emit hovered(
      (m_folded ? tr("%1: click or Space unfolds; %2") : tr("%1: click or Space folds; %2"))
          .arg(title(), headerText()));
}

void TimePane::mouseReleaseEvent(QMouseEvent* event) {
  const Drag drag = m_drag;
  m_drag = Drag::kNone;
  if (drag == Drag::kSelect && m_moved) {
    emit rangeSelected(event->globalPosition().toPoint());
  } else if (drag == Drag::kSelect && foldRect().contains(event->pos())) {
    emit foldWanted();
    sayFold();  // what the next click does
  } else if (drag == Drag::kSelect) {
    clicked(event->pos());
  }
}

void TimePane::mouseDoubleClickEvent(QMouseEvent* event) {
  if (event->button() == Qt::LeftButton) doubleClicked(event->pos());
}

void TimePane::focusInEvent(QFocusEvent* event) {
  update();
  QWidget::focusInEvent(event);
}

void TimePane::focusOutEvent(QFocusEvent* event) {
  update();
  QWidget::focusOutEvent(event);
}

void TimePane::leaveEvent(QEvent* event) {
  emit hovered({});
  QWidget::leaveEvent(event);
}

}  // namespace switchyard::gui
