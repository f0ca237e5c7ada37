// SPDX-License-Identifier: Apache-2.0
#include "gui/tour.hpp"

#include <algorithm>

#include <QComboBox>
#include <QLabel>
#include <QPainter>
#include <QPushButton>
#include <QVBoxLayout>

#include "gui/choicebox.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {

void TourBoard::show(const TourStage& stage, std::uint32_t placed, const Theme& theme) {
  m_stage = stage;
  m_placed = placed;
  m_theme = &theme;
  update();
}

void TourBoard::paintEvent(QPaintEvent*) {
  if (m_theme == nullptr) return;
  QPainter p(this);
  const Theme& t = *m_theme;
  p.fillRect(rect(), t.base);
  const QFontMetrics m = fontMetrics();
  const int left = m.horizontalAdvance(tr("token 00")) + 16;
  const int top = m.height() + 12;
  const int bottom = m.height() + 12;
  const double w = (width() - left - 8) / static_cast<double>(kTourExperts);
  const double h = (height() - top - bottom) / static_cast<double>(kTourTokens);
  const auto cell = [&](std::uint32_t token, std::uint32_t expert) {
    return QRectF(left + expert * w + 1, top + token * h + 1, w - 2, h - 2);
  };
  p.setPen(t.muted);
  for (std::uint32_t e = 0; e < kTourExperts; ++e) {
    p.drawText(QRectF(left + e * w, 2, w, m.height() + 6), Qt::AlignCenter, QString::number(e));
    // Places taken so far, against the limit.
    const std::uint32_t load = m_stage.load(e, m_placed);
    const bool full = m_stage.capacity > 0 && load >= m_stage.capacity;
    p.setPen(full ? t.saturated : t.muted);
    p.drawText(QRectF(left + e * w, height() - bottom + 2, w, m.height() + 6), Qt::AlignCenter,
               m_stage.capacity > 0 ? QStringLiteral("%1/%2").arg(load).arg(m_stage.capacity)
                                    : QString::number(load));
    p.setPen(t.muted);
  }
  p.drawText(QRect(4, 2, left - 8, m.height() + 6), Qt::AlignRight | Qt::AlignVCenter,
             tr("expert"));
  p.drawText(QRect(4, height() - bottom + 2, left - 8, m.height() + 6),
             Qt::AlignRight | Qt::AlignVCenter, tr("load"));
  for (std::uint32_t token = 0; token < kTourTokens; ++token) {
    const bool now = token + 1 == m_placed;
    p.setPen(now ? t.accent : t.text);
    p.drawText(QRectF(4, top + token * h, left - 12, h), Qt::AlignRight | Qt::AlignVCenter,
               tr("token %1").arg(token));
    p.setPen(t.grid);
    p.drawLine(QPointF(left, top + token * h), QPointF(width() - 8, top + token * h));
    for (const TourSlot& slot : m_stage.tokens[token]) {
      const QRectF wanted = cell(token, slot.wanted);
      p.setBrush(Qt::NoBrush);
      p.setPen(QPen(t.frame, 1, Qt::DashLine));
      p.drawRect(wanted);
      if (token >= m_placed) continue;
      if (slot.ran == slot.wanted) {
        p.fillRect(wanted, t.series[2]);
      } else if (slot.ran == kTourNowhere) {
        p.setPen(QPen(t.overflow, 2));
        p.drawLine(wanted.topLeft(), wanted.bottomRight());
        p.drawLine(wanted.topRight(), wanted.bottomLeft());
      } else {
        const QRectF to = cell(token, slot.ran);
        p.fillRect(to, t.series[0]);
        p.setPen(QPen(t.series[0], 2));
        p.drawLine(wanted.center(), to.center());
      }
    }
  }
}

Tour::Tour(const Theme& theme, QWidget* parent)
    : QDialog(parent),
      m_theme(theme),
      m_stages(tourStages()),
      m_board(new TourBoard(this)),
      m_stage(new ChoiceBox(this)),
      m_text(new QLabel(this)),
      m_back(new QPushButton(tr("Back"), this)),
      m_next(new QPushButton(tr("Next"), this)) {
  setWindowTitle(tr("Twelve tokens"));
  auto* layout = new QVBoxLayout(this);
  auto* top = new QHBoxLayout;
  auto* label = new QLabel(tr("Policy"), this);
  label->setBuddy(m_stage);
  for (const TourStage& s : m_stages) m_stage->addItem(qs(s.title));
  m_stage->setAccessibleName(tr("Policy of the tour"));
  top->addWidget(label);
  top->addWidget(m_stage, 1);
  layout->addLayout(top);
  m_board->setAccessibleName(tr("Tokens and the experts that run them"));
  layout->addWidget(m_board, 1);
  auto* legend = new QLabel(tr("dashed: wanted; green: kept; blue: rerouted, with a line from "
                               "the full expert; red cross: dropped"),
                            this);
  legend->setWordWrap(true);
  layout->addWidget(legend);
  m_text->setWordWrap(true);
  m_text->setTextFormat(Qt::PlainText);
  m_text->setMinimumHeight(3 * fontMetrics().height());
  layout->addWidget(m_text);
  auto* bottom = new QHBoxLayout;
  bottom->addStretch(1);
  bottom->addWidget(m_back);
  bottom->addWidget(m_next);
  layout->addLayout(bottom);
  connect(m_stage, &QComboBox::currentIndexChanged, this, [this] {
    m_placed = 0;
    refresh();
  });
  connect(m_back, &QPushButton::clicked, this, [this] {
    if (m_placed > 0) --m_placed;
    refresh();
  });
  connect(m_next, &QPushButton::clicked, this, [this] {
    if (m_placed < kTourTokens) ++m_placed;
    refresh();
  });
  m_next->setDefault(true);
  resize(720, 560);
  refresh();
}

QString Tour::sentence() const { return m_text->text(); }

void Tour::refresh() {
  const TourStage& s = m_stages[static_cast<std::size_t>(m_stage->currentIndex())];
  m_board->show(s, m_placed, m_theme);
  m_text->setText(
      m_placed == 0 ? tr("%1\nNo token is placed yet: Next places one after the other.").arg(qs(s.text))
      : m_placed == kTourTokens ? qs(s.sentence(m_placed - 1) + "\n" + s.outcome())
                                : qs(s.sentence(m_placed - 1)));
  m_back->setEnabled(m_placed > 0);
  m_next->setEnabled(m_placed < kTourTokens);
}

}  // namespace switchyard::gui
