// SPDX-License-Identifier: Apache-2.0
#include "gui/tableview.hpp"

#include <algorithm>

#include <QApplication>
#include <QClipboard>
#include <QContextMenuEvent>
#include <QHeaderView>
#include <QKeyEvent>
#include <QMenu>

namespace switchyard::gui {

TableView::TableView(QWidget* parent) : QTableView(parent) {
  setAlternatingRowColors(true);
  setSelectionBehavior(QAbstractItemView::SelectRows);
  setShowGrid(false);
  setWordWrap(false);
  setEditTriggers(QAbstractItemView::NoEditTriggers);
  setTabKeyNavigation(false);
  verticalHeader()->hide();
  verticalHeader()->setDefaultSectionSize(fontMetrics().height() + 4);
  verticalHeader()->setMinimumSectionSize(fontMetrics().height() + 4);
  horizontalHeader()->setHighlightSections(false);
  horizontalHeader()->setMinimumSectionSize(24);
  horizontalHeader()->setFixedHeight(fontMetrics().height() + 8);
}

void TableView::fitColumns() {
  resizeColumnsToContents();
  for (int c = 0; c < horizontalHeader()->count(); ++c) setColumnWidth(c, columnWidth(c) + 12);
}

void TableView::fitValues() {
  m_fitValues = true;
  setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  horizontalHeader()->setSectionResizeMode(QHeaderView::Fixed);
  connect(model(), &QAbstractItemModel::dataChanged, this, &TableView::placeValues);
  connect(model(), &QAbstractItemModel::modelReset, this, &TableView::placeValues);
  placeValues();
}

void TableView::placeValues() {
  const int room = viewport()->width();
  const int value =
      std::clamp(sizeHintForColumn(1) + 4, room / 4, std::max(room / 4, room * 62 / 100));
  setColumnWidth(0, room - value);
  setColumnWidth(1, value);
}

void TableView::resizeEvent(QResizeEvent* event) {
  QTableView::resizeEvent(event);
  if (m_fitValues) placeValues();
}

void TableView::copy(TableText format) {
  if (model() == nullptr) return;
  std::vector<int> rows;
  for (const QModelIndex& i : selectionModel()->selectedRows()) rows.push_back(i.row());
  if (rows.empty()) {
    for (int r = 0; r < model()->rowCount(); ++r) rows.push_back(r);
  }
  std::sort(rows.begin(), rows.end());
  QApplication::clipboard()->setText(tableText(*model(), rows, format));
}

void TableView::keyPressEvent(QKeyEvent* event) {
  if (event->matches(QKeySequence::Copy)) {
    copy(TableText::kTsv);
    event->accept();
    return;
  }
  QTableView::keyPressEvent(event);
}

void TableView::contextMenuEvent(QContextMenuEvent* event) {
  auto* menu = new QMenu(this);
  menu->setAttribute(Qt::WA_DeleteOnClose);
  menu->addAction(tr("Copy"), this, [this] { copy(TableText::kTsv); });
  menu->addAction(tr("Copy as Markdown"), this, [this] { copy(TableText::kMarkdown); });
  menu->addAction(tr("Copy as CSV"), this, [this] { copy(TableText::kCsv); });
  menu->popup(event->globalPos());
}

}  // namespace switchyard::gui
