// SPDX-License-Identifier: Apache-2.0
#include "gui/matrixview.hpp"

#include <algorithm>
#include <cmath>

#include <QComboBox>
#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>

#include "gui/choicebox.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {

namespace {

QString wholeRunName(const RunStore* run) {
  const bool warmup = run != nullptr && run->hasSteps() &&
                      std::any_of(run->data().steps.begin(), run->data().steps.end(),
                                  [](const run::StepScalars& s) { return s.warmup; });
  return warmup ? QObject::tr("whole run, no warm-up") : QObject::tr("whole run");
}

}  // namespace

StepSpan spanOf(const ViewState& state, QString& name) {
  // As in the inspector: a drag that selects moves the cursor, too.
  if (state.selection()) {
    name = QObject::tr("steps %1–%2")
               .arg(count(state.selection()->first), count(state.selection()->end - 1));
    return {state.selection()->first, state.selection()->end, false};
  }
  if (state.cursor()) {
    name = QObject::tr("at step %1").arg(count(*state.cursor()));
    return {*state.cursor(), *state.cursor() + 1, false};
  }
  name = wholeRunName(state.run());
  return {};
}

MatrixView::MatrixView(ViewState* state, QWidget* parent)
    : QWidget(parent), m_state(state), m_kind(new ChoiceBox(this)) {
  m_kind->addItem(tr("reroutes, expert to expert"), static_cast<int>(MatrixKind::kReroutesExperts));
  m_kind->addItem(tr("reroutes, GPU to GPU"), static_cast<int>(MatrixKind::kReroutesGpus));
  m_kind->addItem(tr("bytes, GPU to GPU"), static_cast<int>(MatrixKind::kGpuBytes));
  m_kind->setAccessibleName(tr("What the matrix shows"));
  m_kind->move(4, 2);
  setMinimumSize(160, 140);
  // Before refresh() hears of the run: one without reroutes shows its traffic.
  connect(state, &ViewState::runChanged, this, &MatrixView::chooseKind);
  connect(m_kind, &QComboBox::activated, this, [this] { m_chosen = true; });
  connect(m_kind, &QComboBox::currentIndexChanged, this, &MatrixView::refresh);
  for (const auto signal :
       {&ViewState::runChanged, &ViewState::cursorChanged, &ViewState::selectionChanged,
        &ViewState::optionsChanged, &ViewState::themeChanged}) {
    connect(state, signal, this, &MatrixView::refresh);
  }
  chooseKind();
  refresh();
}

void MatrixView::chooseKind() {
  const RunStore* run = m_state->run();
  if (m_chosen || run == nullptr) return;
  const run::Totals& totals = run->data().totals;
  const bool traffic = totals.rerouted == 0 && totals.bytes_sent > 0;
  m_kind->setCurrentIndex(m_kind->findData(
      static_cast<int>(traffic ? MatrixKind::kGpuBytes : MatrixKind::kReroutesExperts)));
}

void MatrixView::setKind(MatrixKind kind) {
  m_chosen = true;
  m_kind->setCurrentIndex(m_kind->findData(static_cast<int>(kind)));
}

void MatrixView::refresh() {
  m_matrix = {};
  m_when.clear();
  if (m_state->run() != nullptr) {
    const auto kind = static_cast<MatrixKind>(m_kind->currentData().toInt());
    const StepSpan span = spanOf(*m_state, m_when);
    m_matrix = matrixOf(*m_state->run(), kind, m_state->layer(), span);
    if (kind == MatrixKind::kGpuBytes) m_when = wholeRunName(m_state->run());
  }
  update();
}

QString MatrixView::caption() const {
  if (!m_matrix.missing.empty()) return qs(m_matrix.missing);
  if (m_matrix.n == 0) return {};
  const bool bytes = m_kind->currentData().toInt() == static_cast<int>(MatrixKind::kGpuBytes);
  return tr("%1, sum %2, largest %3; from row to column")
      .arg(m_when, bytes ? qs(bytesText(static_cast<double>(m_matrix.sum))) : count(m_matrix.sum),
           bytes ? qs(bytesText(static_cast<double>(m_matrix.most))) : count(m_matrix.most));
}

QString MatrixView::shortCaption(int room) const {
  // The largest value stands beside the colours too; what is left out is in the tool tip.
  const bool bytes = m_kind->currentData().toInt() == static_cast<int>(MatrixKind::kGpuBytes);
  const QString sum =
      bytes ? qs(bytesText(static_cast<double>(m_matrix.sum))) : count(m_matrix.sum);
  const QStringList all = {caption(), tr("%1, sum %2; from row to column").arg(m_when, sum),
                           tr("%1, sum %2; row to column").arg(m_when, sum),
                           tr("%1, sum %2").arg(m_when, sum)};
  for (const QString& words : all) {
    if (fontMetrics().horizontalAdvance(words) <= room) return words;
  }
  return all.last();
}

QRect MatrixView::plot() const {
  const QFontMetrics m = fontMetrics();
  const int top = m_kind->sizeHint().height() + 6 + 2 * m.height() + 8;
  const int left = m.horizontalAdvance(nameOf(m_matrix.n > 0 ? m_matrix.n - 1 : 0)) + 12;
  const int side = std::max(10, std::min(width() - left - 8, height() - top - 8));
  return {left, top, side, side};
}

QString MatrixView::nameOf(std::size_t i) const {
  const bool experts =
      m_kind->currentData().toInt() == static_cast<int>(MatrixKind::kReroutesExperts);
  return experts ? qs(expertName(static_cast<std::uint32_t>(i),
                                 static_cast<std::uint32_t>(std::max<std::size_t>(m_matrix.n, 1))))
                 : QString::number(i);
}

QRgb MatrixView::colorOf(double share) const {
  // Nothing at all is the ground; one assignment is already a colour.
  if (!(share > 0)) return m_state->theme().window.rgb();
  const auto& table = colorTable(m_state->colorMap());
  return table[static_cast<std::size_t>(40 + 215 * std::sqrt(std::min(share, 1.0)))];
}

void MatrixView::drawLegend(QPainter& p) const {
  // Beside the matrix, where the dock is wider than it: the caption has the largest value too.
  constexpr int kGap = 10, kBar = 10;
  const QFontMetrics m = fontMetrics();
  const bool bytes = m_kind->currentData().toInt() == static_cast<int>(MatrixKind::kGpuBytes);
  const QString most =
      bytes ? qs(bytesText(static_cast<double>(m_matrix.most))) : count(m_matrix.most);
  const QRect r = plot();
  const int left = r.right() + kGap;
  const QRect words(left + kBar + 4, r.top(), m.horizontalAdvance(most) + 2, r.height());
  if (m_matrix.sum == 0 || words.right() + 4 > width() || r.height() < 3 * m.height()) return;
  for (int y = 0; y < r.height(); ++y) {
    const double share = 1 - (y + 0.5) / r.height();
    p.fillRect(QRect(left, r.top() + y, kBar, 1), QColor::fromRgb(colorOf(share)));
  }
  p.setPen(m_state->theme().text);
  p.drawText(words, Qt::AlignLeft | Qt::AlignTop, most);
  p.drawText(words, Qt::AlignLeft | Qt::AlignBottom, QStringLiteral("0"));
}

bool MatrixView::cellAt(const QPoint& position, std::size_t& from, std::size_t& to) const {
  const QRect r = plot();
  if (m_matrix.cells.empty() || !r.contains(position)) return false;
  const auto n = static_cast<double>(m_matrix.n);
  from =
      std::min(m_matrix.n - 1, static_cast<std::size_t>((position.y() - r.top()) * n / r.height()));
  to =
      std::min(m_matrix.n - 1, static_cast<std::size_t>((position.x() - r.left()) * n / r.width()));
  return true;
}

QString MatrixView::tip(const QPoint& position) const {
  std::size_t from = 0;
  std::size_t to = 0;
  if (!cellAt(position, from, to)) {
    return m_matrix.missing.empty() && position.y() < plot().top() ? caption() : QString();
  }
  const std::uint64_t v = m_matrix.cells[from * m_matrix.n + to];
  const bool bytes = m_kind->currentData().toInt() == static_cast<int>(MatrixKind::kGpuBytes);
  return QStringLiteral("%1 → %2: %3")
      .arg(nameOf(from), nameOf(to),
           bytes ? qs(bytesText(static_cast<double>(v))) : tr("%1 assignments").arg(count(v)));
}

void MatrixView::paintEvent(QPaintEvent*) {
  QPainter p(this);
  const Theme& theme = m_state->theme();
  p.fillRect(rect(), theme.base);
  const QFontMetrics m = fontMetrics();
  p.setPen(m_matrix.missing.empty() ? theme.muted : theme.text);
  const int top = m_kind->sizeHint().height() + 4;
  if (!m_matrix.missing.empty() || m_matrix.n == 0) {
    p.drawText(QRect(6, top, width() - 12, height() - top), Qt::AlignCenter | Qt::TextWordWrap,
               caption());
    return;
  }
  p.drawText(QRect(6, top, width() - 12, m.height()), Qt::AlignLeft | Qt::AlignVCenter,
             m.elidedText(shortCaption(width() - 12), Qt::ElideRight, width() - 12));
  const QRect r = plot();
  const auto n = static_cast<int>(m_matrix.n);
  drawLegend(p);
  QImage image(n, n, QImage::Format_RGB32);
  for (int y = 0; y < n; ++y) {
    auto* line = reinterpret_cast<QRgb*>(image.scanLine(y));
    for (int x = 0; x < n; ++x) {
      const std::uint64_t v =
          m_matrix.cells[static_cast<std::size_t>(y) * m_matrix.n + static_cast<std::size_t>(x)];
      line[x] = v == 0 ? colorOf(0)
                       : colorOf(static_cast<double>(v) / static_cast<double>(m_matrix.most));
    }
  }
  p.drawImage(r, image);
  p.setPen(theme.frame);
  p.drawRect(r.adjusted(-1, -1, 0, 0));
  if (m_matrix.sum == 0) {
    p.setPen(theme.text);
    p.drawText(r.adjusted(4, 4, -4, -4), Qt::AlignCenter | Qt::TextWordWrap,
               m_kind->currentData().toInt() == static_cast<int>(MatrixKind::kGpuBytes)
                   ? tr("no bytes between GPUs")
                   : tr("no reroutes (%1)").arg(m_when));
  }
  // Names as far as there is room.
  const int per = std::max(1, (m.height() * n + r.height() - 1) / r.height());
  const int perX = std::max(
      1, ((m.horizontalAdvance(nameOf(m_matrix.n - 1)) + 6) * n + r.width() - 1) / r.width());
  p.setPen(theme.muted);
  for (int i = 0; i < n; i += per) {
    const int y = r.top() + r.height() * (2 * i + 1) / (2 * n);
    p.drawText(QRect(2, y - m.height() / 2, r.left() - 8, m.height()),
               Qt::AlignRight | Qt::AlignVCenter, nameOf(static_cast<std::size_t>(i)));
  }
  for (int i = 0; i < n; i += perX) {
    const int x = r.left() + r.width() * (2 * i + 1) / (2 * n);
    const int w = m.horizontalAdvance(nameOf(m_matrix.n - 1)) + 6;
    if (x + w / 2 > width()) continue;
    p.drawText(QRect(x - w / 2, r.top() - m.height() - 6, w, m.height()), Qt::AlignCenter,
               nameOf(static_cast<std::size_t>(i)));
  }
}

bool MatrixView::event(QEvent* event) {
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

void MatrixView::mousePressEvent(QMouseEvent* event) {
  std::size_t from = 0;
  std::size_t to = 0;
  const bool experts =
      m_kind->currentData().toInt() == static_cast<int>(MatrixKind::kReroutesExperts);
  if (experts && cellAt(event->pos(), from, to)) {
    m_state->setExpert(static_cast<std::uint32_t>(from));
  }
}

}  // namespace switchyard::gui
