// SPDX-License-Identifier: Apache-2.0
#include "gui/palette.hpp"

#include <algorithm>
#include <functional>

#include <QAction>
#include <QKeyEvent>
#include <QLineEdit>
#include <QListWidget>
#include <QMenu>
#include <QMenuBar>
#include <QVBoxLayout>

namespace switchyard::gui {

int paletteScore(const QString& wanted, const QString& text) {
  int score = 1;
  qsizetype at = 0;
  qsizetype before = -2;
  for (const QChar c : wanted) {
    if (c.isSpace()) continue;
    // A beginning of a word that is still ahead is meant before a letter inside one.
    qsizetype found = -1;
    for (qsizetype i = at; i < text.size(); ++i) {
      if (text[i].toCaseFolded() != c.toCaseFolded()) continue;
      if (found < 0) found = i;
      if (i == before + 1) {
        found = i;
        break;
      }
      if (i == 0 || !text[i - 1].isLetterOrNumber()) {
        found = i;
        break;
      }
    }
    if (found < 0) return 0;
    score += 1;
    if (found == before + 1) score += 4;
    if (found == 0 || !text[found - 1].isLetterOrNumber()) score += 6;
    before = found;
    at = found + 1;
  }
  return score;
}

QList<QAction*> actionsInOrder(const QWidget* window) {
  QList<QAction*> out;
  const std::function<void(const QWidget*)> walk = [&](const QWidget* menu) {
    for (QAction* a : menu->actions()) {
      if (a->menu() != nullptr) {
        walk(a->menu());
      } else if (!a->isSeparator() && !a->text().isEmpty() && !out.contains(a)) {
        out << a;
      }
    }
  };
  if (const auto* bar = window->findChild<QMenuBar*>()) walk(bar);
  for (QAction* a : window->findChildren<QAction*>()) {
    if (!a->isSeparator() && !a->text().isEmpty() && a->menu() == nullptr && !out.contains(a)) {
      out << a;
    }
  }
  return out;
}

Palette::Palette(QWidget* window)
    : QDialog(window), m_field(new QLineEdit(this)), m_list(new QListWidget(this)) {
  setObjectName(QStringLiteral("palette"));
  setWindowTitle(tr("Commands"));
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(6, 6, 6, 6);
  m_field->setPlaceholderText(tr("What to do: some letters of it"));
  m_field->setAccessibleName(tr("Find a command"));
  m_field->installEventFilter(this);
  m_list->setAccessibleName(tr("Commands"));
  m_list->setFocusPolicy(Qt::NoFocus);
  m_list->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  layout->addWidget(m_field);
  layout->addWidget(m_list, 1);
  resize(fontMetrics().averageCharWidth() * 84, fontMetrics().height() * 22);
  for (QAction* a : actionsInOrder(window)) {
    if (!a->isEnabled()) continue;
    // "Grey" alone says little: the menu's name goes before it.
    QString text = a->text();
    for (const QObject* o : a->associatedObjects()) {
      const auto* menu = qobject_cast<const QMenu*>(o);
      if (menu != nullptr && !menu->title().isEmpty()) {
        text = menu->title() + QStringLiteral(": ") + text;
        break;
      }
    }
    text.remove('&');
    if (a->isCheckable()) text += a->isChecked() ? tr(" (on)") : tr(" (off)");
    m_entries.push_back({a, text, a->statusTip(),
                         QKeySequence::listToString(a->shortcuts(), QKeySequence::NativeText)});
  }
  connect(m_field, &QLineEdit::textChanged, this, &Palette::fill);
  connect(m_field, &QLineEdit::returnPressed, this, &Palette::runCurrent);
  connect(m_list, &QListWidget::itemClicked, this, &Palette::runCurrent);
  fill();
  m_field->setFocus();
}

void Palette::fill() {
  std::vector<std::pair<int, int>> order;  // -score, entry
  for (int i = 0; i < static_cast<int>(m_entries.size()); ++i) {
    const int score = paletteScore(m_field->text(), m_entries[static_cast<std::size_t>(i)].text);
    if (score > 0) order.emplace_back(-score, i);
  }
  std::sort(order.begin(), order.end());
  m_list->clear();
  for (const auto& [score, i] : order) {
    const Entry& e = m_entries[static_cast<std::size_t>(i)];
    auto* item = new QListWidgetItem(
        e.keys.isEmpty() ? e.text : QStringLiteral("%1    [%2]").arg(e.text, e.keys), m_list);
    item->setData(Qt::UserRole, i);
    item->setToolTip(e.tip);
  }
  m_list->setCurrentRow(0);
}

bool Palette::eventFilter(QObject* watched, QEvent* event) {
  if (event->type() == QEvent::KeyPress) {
    const int key = static_cast<QKeyEvent*>(event)->key();
    const int by = key == Qt::Key_Down ? 1 : key == Qt::Key_Up ? -1 : 0;
    if (by != 0 && m_list->count() > 0) {
      m_list->setCurrentRow(std::clamp(m_list->currentRow() + by, 0, m_list->count() - 1));
      return true;
    }
  }
  return QDialog::eventFilter(watched, event);
}

void Palette::runCurrent() {
  const QListWidgetItem* item = m_list->currentItem();
  if (item == nullptr) return;
  const QPointer<QAction> action =
      m_entries[static_cast<std::size_t>(item->data(Qt::UserRole).toInt())].action;
  accept();
  // After the dialog has gone: an action may open another one, or move the focus.
  QMetaObject::invokeMethod(
      parent(),
      [action] {
        if (action) action->trigger();
      },
      Qt::QueuedConnection);
}

}  // namespace switchyard::gui
