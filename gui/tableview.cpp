// SPDX-License-Identifier: Apache-2.0
#include "gui/tableview.hpp"

#include <algorithm>

#include <QApplication>
#include <QClipboard>
#include <QContextMenuEvent>
#include <QHeaderView>
#include <QKeyEvent>
#include <QMenu>
#include <QPainter>
#include <QStyle>

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

void TableView::fitColumns(int most) {
  if (model() == nullptr) return;
  constexpr int kPad = 12;
  const int mark = style()->pixelMetric(QStyle::PM_HeaderMarkSize) + 6;
  for (int c = 0; c < horizontalHeader()->count(); ++c) {
    const QString name = model()->headerData(c, Qt::Horizontal).toString();
    int header = fontMetrics().horizontalAdvance(name);
    if (isSortingEnabled() && horizontalHeader()->sortIndicatorSection() == c) header += mark;
    const int wanted = std::max(header, sizeHintForColumn(c)) + kPad;
    setColumnWidth(c, std::min(wanted, fontMetrics().averageCharWidth() * most));
  }
}

void TableView::setEmptyText(const QString& text) {
  m_emptyText = text;
  viewport()->update();
}

void TableView::paintEvent(QPaintEvent* event) {
  QTableView::paintEvent(event);
  if (m_emptyText.isEmpty() || model() == nullptr || model()->rowCount() > 0) return;
  QPainter painter(viewport());
  painter.setPen(palette().color(QPalette::PlaceholderText));
  painter.drawText(viewport()->rect().adjusted(8, 4, -8, -4), Qt::AlignCenter | Qt::TextWordWrap,
                   m_emptyText);
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

void SparkDelegate::paint(QPainter* painter, const QStyleOptionViewItem& option,
                          const QModelIndex& index) const {
  QStyledItemDelegate::paint(painter, option, index);
  const auto values = index.data(kSparkRole).value<QList<float>>();
  if (values.isEmpty()) return;
  const float most = *std::max_element(values.begin(), values.end());
  const QRect r = option.rect.adjusted(3, 2, -3, -2);
  if (!(most > 0) || r.width() < 2 || r.height() < 2) return;
  const bool selected = option.state.testFlag(QStyle::State_Selected);
  const QColor color =
      option.palette.color(selected ? QPalette::HighlightedText : QPalette::Highlight);
  const auto n = static_cast<int>(values.size());
  for (int i = 0; i < n; ++i) {
    const int x0 = r.left() + i * r.width() / n;
    const int x1 = r.left() + (i + 1) * r.width() / n;
    const int h = qRound(values[i] / most * static_cast<float>(r.height()));
    if (h > 0) painter->fillRect(QRect(x0, r.bottom() + 1 - h, std::max(1, x1 - x0), h), color);
  }
}

}  // namespace switchyard::gui
