// SPDX-License-Identifier: Apache-2.0
// A table whose selected rows (all rows, if none is selected) can be copied: Ctrl+C as TSV, the
// context menu as Markdown and CSV.
#pragma once
#include <QStyledItemDelegate>
#include <QTableView>

#include "gui/models.hpp"

namespace switchyard::gui {

class TableView : public QTableView {
  Q_OBJECT
 public:
  explicit TableView(QWidget* parent = nullptr);
  void copy(TableText format);
  /// Each column as wide as its content, with room between right- and left-aligned ones; none wider
  /// than `most` letters, so that the columns after a long text stay on screen.
  void fitColumns(int most = 40);
  /// Said in place of rows where there are none.
  void setEmptyText(const QString& text);
  [[nodiscard]] const QString& emptyText() const { return m_emptyText; }
  /// For two columns, name and value: values keep their width up to 62 % of the view, names get the
  /// rest. Holds from now on, also when the values change.
  void fitValues();

 protected:
  void keyPressEvent(QKeyEvent* event) override;
  void contextMenuEvent(QContextMenuEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void paintEvent(QPaintEvent* event) override;

 private:
  void placeValues();
  bool m_fitValues = false;
  QString m_emptyText;
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
