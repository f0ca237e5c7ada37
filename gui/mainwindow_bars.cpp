// SPDX-License-Identifier: Apache-2.0
// The tool bars in a narrow window or with large letters: what gives way, and in which order.
#include <algorithm>

#include <QEvent>
#include <QFontMetrics>
#include <QLayout>
#include <QLineEdit>
#include <QStatusBar>
#include <QToolBar>

#include "gui/mainwindow.hpp"

namespace switchyard::gui {
namespace {

constexpr int kReserve = 8;  // pixels, so that no rounding hides the last item

/// The longest of `texts` that a field of that width shows whole; the last one in any case.
QString fitting(const QLineEdit& field, int width, const QStringList& texts) {
  constexpr int kFrame = 14;  // outline, margins and cursor
  for (const QString& text : texts) {
    if (field.fontMetrics().horizontalAdvance(text) + kFrame <= width) return text;
  }
  return texts.last();
}

}  // namespace

void MainWindow::fitBars() {
  if (m_barSeparator == nullptr) return;  // not all of it is there yet
  // First the fields give way, then the buttons whose entries the File menu has, the last first:
  // the bar stays whole, so that no key leads to a field that is not there. Nothing is set anew
  // that is as it should be, as each change calls this again.
  const int letter = QFontMetrics(font()).averageCharWidth();
  const int most = letter * 26;
  const int least = letter * 10;
  const auto spare = [&] {
    const int fields = m_goTo->minimumWidth() + m_find->minimumWidth();
    return width() - kReserve - (m_tools->sizeHint().width() - fields + 2 * least);
  };
  while (spare() < 0 && !m_barButtons.isEmpty()) {
    const int before = m_tools->sizeHint().width();
    QAction* last = m_barButtons.takeLast();
    m_tools->removeAction(last);
    m_barFitted = QSize();
    m_barDropped.push_back({last, before - m_tools->sizeHint().width()});
  }
  while (!m_barDropped.empty() && spare() >= m_barDropped.back().second) {
    m_tools->insertAction(m_barSeparator, m_barDropped.back().first);
    m_barButtons << m_barDropped.back().first;
    m_barDropped.pop_back();
    m_barFitted = QSize();
  }
  const int field = std::clamp(least + spare() / 2, least, most);
  if (m_goTo->minimumWidth() != field || m_find->minimumWidth() != field) {
    m_goTo->setFixedWidth(field);
    m_find->setFixedWidth(field);
    m_barFitted = QSize();
  }
  // The bar lays itself out before it hears of a width that is set while it does, and hides what
  // had no room by then. Once per width: in a window too narrow for them they stay hidden.
  const QSize fitted(width(), m_tools->sizeHint().width());
  const bool again = fitted != m_barFitted;
  m_barFitted = fitted;
  if (again && m_tools->isVisible() && (m_find->isHidden() || m_goTo->isHidden())) {
    m_tools->layout()->invalidate();
    m_tools->layout()->setGeometry(m_tools->rect());
  }
  m_goTo->setPlaceholderText(
      fitting(*m_goTo, field, {tr("500, 500..900, 10.4 ms"), tr("500, 10.4 ms"), tr("500")}));
  m_find->setPlaceholderText(
      fitting(*m_find, field, {tr("e19, GPU, link, event"), tr("e19, GPU"), tr("e19")}));
  m_whatIf->fitInto(width() - kReserve);
}

bool MainWindow::eventFilter(QObject* watched, QEvent* event) {
  if (watched == m_tools && event->type() == QEvent::LayoutRequest) fitBars();
  return QMainWindow::eventFilter(watched, event);
}

void MainWindow::focusField(QLineEdit* field) {
  if (!field->isVisible()) {
    statusBar()->showMessage(tr("the window is too narrow for this field"), 4000);
    return;
  }
  field->setFocus();
  field->selectAll();
}

void MainWindow::resizeEvent(QResizeEvent* event) {
  QMainWindow::resizeEvent(event);
  fitBars();
}

}  // namespace switchyard::gui
