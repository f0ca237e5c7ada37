// SPDX-License-Identifier: Apache-2.0
// A table whose selected rows (all rows, if none is selected) can be copied: Ctrl+C as TSV, the
// context menu as Markdown and CSV.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <QElapsedTimer>
#include <QStyledItemDelegate>
#include <QTableView>

#include "gui/models.hpp"

class QMenu;

namespace switchyard::gui {

class TableView : public QTableView {
  Q_OBJECT
 public:
  explicit TableView(QWidget* parent = nullptr);
  void copy(TableText format);
  /// Each column as wide as its content, with room between right- and left-aligned ones; none wider
  /// than `most` letters, so that the columns after a long text stay on screen.
  void fitColumns(int most = 40);
  /// Texts laid out so far to know their width.
  [[nodiscard]] std::uint64_t textsMeasured() const { return m_measured; }
  /// Said in place of rows where there are none.
  void setEmptyText(const QString& text);
  [[nodiscard]] const QString& emptyText() const { return m_emptyText; }
  /// For two columns, name and value: parted where the fewest texts are cut, values within
  /// [25 %, 62 %] of the view. Holds from now on, also when the values change.
  void fitValues();
  /// From now on only whole columns stand side by side, as many as the width has room for: those of
  /// `order` first. A column for which `says` is false waits until a person asks for it. What a
  /// person chose in columnsMenu() stays, and a scroll bar reaches it.
  void fitWhole(std::vector<int> order, std::function<bool(int)> says);
  /// From now on each column is as wide as its content and the last one, a text, gets the rest of
  /// the view; where that is little, long texts of other columns give way. Columns for which `says`
  /// is false are hidden.
  void fitLast(std::function<bool(int)> says);
  /// Fills a menu with a check mark per column, and "Automatic".
  void columnsMenu(QMenu* menu);

 protected:
  void showEvent(QShowEvent* event) override;
  bool event(QEvent* event) override;
  void changeEvent(QEvent* event) override;
  /// Looks in every visible column, the first with a match first: not only in the one that was
  /// clicked last.
  void keyboardSearch(const QString& search) override;
  void keyPressEvent(QKeyEvent* event) override;
  void contextMenuEvent(QContextMenuEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void paintEvent(QPaintEvent* event) override;

 private:
  void fitText();
  void placeValues();
  void placeWhole();
  /// Of the widest texts, as the delegate draws them.
  [[nodiscard]] int contentWidth(int column);
  void placeLast();
  /// m_widths, of the first rows and the header.
  void measure();
  void connectPlaces();
  void place();
  QString m_typed;
  QElapsedTimer m_sinceTyped;
  bool m_fitValues = false, m_fitLast = false;
  std::vector<int> m_order;  // empty: columns are not chosen here
  std::function<bool(int)> m_says;
  std::vector<int> m_widths;  // by column, of header and content; empty: not measured
  std::map<int, bool> m_chosen;
  QString m_emptyText;
  std::uint64_t m_measured = 0;
};

/// Draws kSparkRole as a line of bars from 0 to the largest value of the row.
class SparkDelegate : public QStyledItemDelegate {
  Q_OBJECT
 public:
  using QStyledItemDelegate::QStyledItemDelegate;
  void paint(QPainter* painter, const QStyleOptionViewItem& option,
             const QModelIndex& index) const override;
};

}  // namespace switchyard::gui
