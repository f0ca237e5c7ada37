// SPDX-License-Identifier: Apache-2.0
#include "gui/tableview.hpp"

#include <algorithm>
#include <array>

#include <QApplication>
#include <QClipboard>
#include <QContextMenuEvent>
#include <QHeaderView>
#include <QKeyEvent>
#include <QMenu>
#include <QPainter>
#include <QStyle>

namespace switchyard::gui {
namespace {

/// Rows with the widest texts of a column among its first `rows`, by the sum of their letters'
/// widths: what a line of text really takes costs some hundred times as much to find out, so only
/// these are asked. Kerning may make another row a pixel wider.
std::vector<int> widestRows(const QAbstractItemModel& model, int column, int rows,
                            const QFontMetrics& metrics) {
  constexpr std::size_t kMost = 6;
  std::array<int, 128> letters{};
  const auto widthOf = [&](QChar letter) {
    const char16_t code = letter.unicode();
    if (code >= letters.size()) return metrics.horizontalAdvance(letter);
    int& known = letters[code];
    if (known == 0) known = metrics.horizontalAdvance(letter);
    return known;
  };
  struct Candidate {
    int width = 0, row = 0;
    QString text;
  };
  std::vector<Candidate> most;  // widest first
  for (int r = 0; r < std::min(model.rowCount(), rows); ++r) {
    const QString text = model.index(r, column).data().toString();
    int width = 0;
    for (const QChar letter : text) width += widthOf(letter);
    if (most.size() == kMost && width <= most.back().width) continue;
    if (std::any_of(most.begin(), most.end(), [&](const auto& c) { return c.text == text; })) {
      continue;
    }
    const auto at =
        std::find_if(most.begin(), most.end(), [&](const Candidate& c) { return c.width < width; });
    most.insert(at, {width, r, text});
    if (most.size() > kMost) most.pop_back();
  }
  std::vector<int> out;
  for (const Candidate& c : most) out.push_back(c.row);
  return out;
}

}  // namespace

TableView::TableView(QWidget* parent) : QTableView(parent) {
  setAlternatingRowColors(true);
  setSelectionBehavior(QAbstractItemView::SelectRows);
  setShowGrid(false);
  setWordWrap(false);
  setEditTriggers(QAbstractItemView::NoEditTriggers);
  setTabKeyNavigation(false);
  verticalHeader()->hide();
  horizontalHeader()->setHighlightSections(false);
  horizontalHeader()->setMinimumSectionSize(24);
  fitText();
}

void TableView::fitText() {
  verticalHeader()->setMinimumSectionSize(fontMetrics().height() + 4);
  verticalHeader()->setDefaultSectionSize(fontMetrics().height() + 4);
  horizontalHeader()->setFixedHeight(fontMetrics().height() + 8);
  m_widths.clear();
  place();
}

void TableView::place() {
  placeWhole();
  placeLast();
  if (m_fitValues) placeValues();
}

void TableView::changeEvent(QEvent* event) {
  QTableView::changeEvent(event);
  if (event->type() == QEvent::FontChange) fitText();
}

void TableView::fitColumns(int most) {
  if (model() == nullptr) return;
  constexpr int kPad = 12;
  const int mark = style()->pixelMetric(QStyle::PM_HeaderMarkSize) + 6;
  for (int c = 0; c < horizontalHeader()->count(); ++c) {
    const QString name = model()->headerData(c, Qt::Horizontal).toString();
    int header = fontMetrics().horizontalAdvance(name);
    if (isSortingEnabled() && horizontalHeader()->sortIndicatorSection() == c) header += mark;
    const int wanted = std::max(header, contentWidth(c)) + kPad;
    setColumnWidth(c, std::min(wanted, fontMetrics().averageCharWidth() * most));
  }
}

int TableView::contentWidth(int column) {
  constexpr int kRows = 1000;  // as many as Qt looks at
  QStyleOptionViewItem option;
  initViewItemOption(&option);
  int width = 0;
  for (const int r : widestRows(*model(), column, kRows, fontMetrics())) {
    const QModelIndex at = model()->index(r, column);
    width = std::max(width, itemDelegateForIndex(at)->sizeHint(option, at).width());
    ++m_measured;
  }
  return width;
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
  constexpr int kRowsMeasured = 512;
  constexpr int kPad = 10;
  std::vector<int> names;
  std::vector<int> values;
  for (int r = 0; r < std::min(model()->rowCount(), kRowsMeasured); ++r) {
    for (const int c : {0, 1}) {
      const QString text = model()->index(r, c).data().toString();
      (c == 0 ? names : values).push_back(fontMetrics().horizontalAdvance(text) + kPad);
    }
  }
  // The width of the values that cuts the fewest texts: names as they are, or values.
  int value = std::clamp(values.empty() ? 0 : *std::max_element(values.begin(), values.end()),
                         room / 4, std::max(room / 4, room * 62 / 100));
  std::ptrdiff_t least = std::ptrdiff_t{kRowsMeasured} * 2 + 1;
  std::vector<int> tries = {value};
  for (const int name : names) tries.push_back(std::clamp(room - name, room / 4, value));
  std::sort(tries.begin(), tries.end());
  for (const int width : tries) {
    const auto cut =
        std::count_if(values.begin(), values.end(), [&](int v) { return v > width; }) +
        std::count_if(names.begin(), names.end(), [&](int n) { return n > room - width; });
    if (cut >= least) continue;
    least = cut;
    value = width;
  }
  setColumnWidth(0, room - value);
  setColumnWidth(1, value);
}

void TableView::fitWhole(std::vector<int> order, std::function<bool(int)> says) {
  m_order = std::move(order);
  m_says = std::move(says);
  connectPlaces();
  horizontalHeader()->setContextMenuPolicy(Qt::CustomContextMenu);
  connect(horizontalHeader(), &QWidget::customContextMenuRequested, this, [this](const QPoint& at) {
    auto* menu = new QMenu(this);
    menu->setAttribute(Qt::WA_DeleteOnClose);
    columnsMenu(menu);
    menu->popup(horizontalHeader()->mapToGlobal(at));
  });
  placeWhole();
}

void TableView::connectPlaces() {
  const auto again = [this] {
    m_widths.clear();
    place();
  };
  connect(model(), &QAbstractItemModel::modelReset, this, again);
  connect(horizontalHeader(), &QHeaderView::sortIndicatorChanged, this, again);
}

void TableView::fitLast(std::function<bool(int)> says) {
  m_fitLast = true;
  m_says = std::move(says);
  setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  connectPlaces();
  placeLast();
}

void TableView::placeLast() {
  if (!m_fitLast || model() == nullptr || !isVisible()) return;
  const int columns = model()->columnCount();
  if (columns == 0) return;
  if (static_cast<int>(m_widths.size()) != columns) measure();
  const int letter = fontMetrics().averageCharWidth();
  const int bar = style()->pixelMetric(QStyle::PM_ScrollBarExtent);
  const int room = width() - 2 * frameWidth() - bar;
  const int last = columns - 1;
  const int wanted = std::min(m_widths[static_cast<std::size_t>(last)], 24 * letter);
  int most = 0;
  int rest = 0;
  for (const int letters : {40, 28, 20, 16}) {
    most = letters * letter;
    rest = room;
    for (int c = 0; c < last; ++c) {
      if (m_says(c)) rest -= std::min(m_widths[static_cast<std::size_t>(c)], most);
    }
    if (rest >= wanted) break;
  }
  horizontalHeader()->setStretchLastSection(false);
  // What the last one does not need goes to those that are cut.
  int spare = std::max(0, rest - m_widths[static_cast<std::size_t>(last)]);
  for (int c = 0; c < last; ++c) {
    const int whole = m_widths[static_cast<std::size_t>(c)];
    const int more = m_says(c) ? std::min(spare, std::max(0, whole - most)) : 0;
    spare -= more;
    setColumnHidden(c, !m_says(c));
    setColumnWidth(c, std::min(whole, most) + more);
  }
  horizontalHeader()->setStretchLastSection(true);
  if (wordWrap()) resizeRowsToContents();
}

void TableView::columnsMenu(QMenu* menu) {
  menu->clear();
  QAction* automatic = menu->addAction(tr("Automatic: what fits"), this, [this] {
    m_chosen.clear();
    placeWhole();
  });
  automatic->setCheckable(true);
  automatic->setStatusTip(tr("Show the columns that fit, those that say most first"));
  automatic->setChecked(m_chosen.empty());
  menu->addSeparator();
  for (int c = 0; c < model()->columnCount(); ++c) {
    QAction* action =
        menu->addAction(model()->headerData(c, Qt::Horizontal).toString(), this, [this, c] {
          m_chosen[c] = isColumnHidden(c);
          placeWhole();
        });
    const QString tip = model()->headerData(c, Qt::Horizontal, Qt::ToolTipRole).toString();
    action->setToolTip(tip);
    action->setStatusTip(tip.isEmpty() ? tr("Show or hide this column")
                                       : tr("Show or hide the column: %1").arg(tip));
    action->setCheckable(true);
    action->setChecked(!isColumnHidden(c));
  }
}

void TableView::measure() {
  constexpr int kRowsMeasured = 512;
  constexpr int kPad = 10;
  const int mark = style()->pixelMetric(QStyle::PM_HeaderMarkSize) + 6;
  m_widths.clear();
  for (int c = 0; c < model()->columnCount(); ++c) {
    const QString name = model()->headerData(c, Qt::Horizontal).toString();
    int wanted = fontMetrics().horizontalAdvance(name);
    if (isSortingEnabled() && horizontalHeader()->sortIndicatorSection() == c) wanted += mark;
    const bool picture = model()->headerData(c, Qt::Horizontal, kSparkRole).toBool();
    const std::vector<int> rows =
        picture ? std::vector<int>() : widestRows(*model(), c, kRowsMeasured, fontMetrics());
    for (const int r : rows) {
      wanted = std::max(wanted,
                        fontMetrics().horizontalAdvance(model()->index(r, c).data().toString()));
      ++m_measured;
    }
    m_widths.push_back(wanted + kPad);
  }
}

void TableView::placeWhole() {
  if (m_order.empty() || model() == nullptr || !isVisible()) return;
  const int columns = model()->columnCount();
  if (static_cast<int>(m_widths.size()) != columns) measure();
  // Room for the scroll bar of many rows, whether it is there now or not: else columns would come
  // and go with it.
  const int bar = style()->pixelMetric(QStyle::PM_ScrollBarExtent);
  int room = width() - 2 * frameWidth() - bar;
  std::vector<bool> shown(static_cast<std::size_t>(columns), false);
  const auto take = [&](int c) {
    shown[static_cast<std::size_t>(c)] = true;
    room -= m_widths[static_cast<std::size_t>(c)];
  };
  for (const auto& [c, yes] : m_chosen) {
    if (yes) take(c);
  }
  const bool scrolls = room < 0;
  for (const int c : m_order) {
    const auto i = static_cast<std::size_t>(c);
    if (shown[i] || m_chosen.contains(c)) continue;
    if (m_widths[i] <= room && m_says(c)) take(c);
  }
  setHorizontalScrollBarPolicy(scrolls ? Qt::ScrollBarAsNeeded : Qt::ScrollBarAlwaysOff);
  // A picture at the end gets what is left; a number would stand far from its neighbours.
  int last = -1;
  for (int c = 0; c < columns; ++c) {
    if (shown[static_cast<std::size_t>(c)]) last = c;
  }
  horizontalHeader()->setStretchLastSection(
      !scrolls && last >= 0 && model()->headerData(last, Qt::Horizontal, kSparkRole).toBool());
  for (int c = 0; c < columns; ++c) {
    setColumnHidden(c, !shown[static_cast<std::size_t>(c)]);
    if (shown[static_cast<std::size_t>(c)]) {
      setColumnWidth(c, m_widths[static_cast<std::size_t>(c)]);
    }
  }
}

void TableView::showEvent(QShowEvent* event) {
  QTableView::showEvent(event);
  placeWhole();
  placeLast();
}

void TableView::resizeEvent(QResizeEvent* event) {
  QTableView::resizeEvent(event);
  if (m_fitValues) placeValues();
  // Its own doing when only the height or the scroll bar changed.
  if (event->oldSize().width() != event->size().width()) {
    placeWhole();
    placeLast();
  }
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

bool TableView::event(QEvent* event) {
  // Letters and digits find a row here; as shortcuts of the window they act where a pane has the
  // focus.
  if (event->type() == QEvent::ShortcutOverride) {
    const auto* key = static_cast<const QKeyEvent*>(event);
    const bool plain = (key->modifiers() & ~(Qt::ShiftModifier | Qt::KeypadModifier)) == 0;
    if (plain && key->text().size() == 1 && key->text().front().isLetterOrNumber()) {
      event->accept();
      return true;
    }
  }
  return QTableView::event(event);
}

void TableView::keyboardSearch(const QString& search) {
  if (model() == nullptr || model()->rowCount() == 0 || search.isEmpty()) return;
  const bool goesOn =
      m_sinceTyped.isValid() && m_sinceTyped.elapsed() < QApplication::keyboardInputInterval();
  m_typed = goesOn ? m_typed + search : search;
  m_sinceTyped.start();
  // The same letter again means the next row.
  const bool next = m_typed.size() > 1 && m_typed.count(m_typed.front()) == m_typed.size();
  const QString wanted = next ? m_typed.left(1) : m_typed;
  const int rows = model()->rowCount();
  const int now = currentIndex().isValid() ? currentIndex().row() : -1;
  const int first = now < 0 ? 0 : now + (next || m_typed.size() == 1 ? 1 : 0);
  // Of millions of rows as many as a person would wait for.
  constexpr int kPatienceMs = 150;
  QElapsedTimer patience;
  patience.start();
  for (int visual = 0; visual < horizontalHeader()->count(); ++visual) {
    const int c = horizontalHeader()->logicalIndex(visual);
    if (isColumnHidden(c)) continue;
    for (int i = 0; i < rows; ++i) {
      if (i % 1024 == 1023 && patience.elapsed() > kPatienceMs) return;
      const QModelIndex at = model()->index((first + i) % rows, c);
      if (!at.data().toString().startsWith(wanted, Qt::CaseInsensitive)) continue;
      setCurrentIndex(at);
      return;
    }
  }
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
