// SPDX-License-Identifier: Apache-2.0
// The command palette (Ctrl+P): every action of the window that is enabled, found by typing some of
// its letters in order; Enter runs it.
#pragma once
#include <QDialog>
#include <QPointer>
#include <vector>

class QAction;
class QLineEdit;
class QListWidget;

namespace switchyard::gui {

/// How well the letters of `wanted` stand in `text` in order, whatever their case: 0 not at all,
/// the more the closer together and the nearer to beginnings of words; 1 for an empty `wanted`.
int paletteScore(const QString& wanted, const QString& text);

/// The window's actions that do something, in the order of its menus, then those outside of them.
QList<QAction*> actionsInOrder(const QWidget* window);

class Palette : public QDialog {
  Q_OBJECT
 public:
  /// Offers the actions of `window` that have a text, are enabled and open no menu.
  explicit Palette(QWidget* window);
  [[nodiscard]] QLineEdit* field() const { return m_field; }
  [[nodiscard]] QListWidget* list() const { return m_list; }

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override;

 private:
  struct Entry {
    QPointer<QAction> action;
    QString text, tip, keys;
  };
  void fill();
  void runCurrent();
  QLineEdit* m_field;
  QListWidget* m_list;
  std::vector<Entry> m_entries;
};

}  // namespace switchyard::gui
