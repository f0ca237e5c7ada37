// SPDX-License-Identifier: Apache-2.0
#include "gui/compareview.hpp"

#include <algorithm>
#include <array>

#include <QCheckBox>
#include <QComboBox>
#include <QHeaderView>
#include <QLabel>
#include <QResizeEvent>
#include <QSortFilterProxyModel>
#include <QToolButton>
#include <QVBoxLayout>

#include "gui/choicebox.hpp"

namespace switchyard::gui {
namespace {

/// One order whatever came before: texts (of inputs) before numbers, and what is equal as in the
/// table.
class CompareOrder : public QSortFilterProxyModel {
 public:
  using QSortFilterProxyModel::QSortFilterProxyModel;

 protected:
  [[nodiscard]] bool lessThan(const QModelIndex& a, const QModelIndex& b) const override {
    const QVariant x = a.data(kSortRole);
    const QVariant y = b.data(kSortRole);
    const bool textX = x.userType() == QMetaType::QString;
    const bool textY = y.userType() == QMetaType::QString;
    if (textX != textY) return textX;
    const int order = textX                           ? QString::compare(x.toString(), y.toString())
                      : (x.toDouble() < y.toDouble()) ? -1
                      : (y.toDouble() < x.toDouble()) ? 1
                                                      : 0;
    return order != 0 ? order < 0 : a.row() < b.row();
  }
};

}  // namespace

CompareView::CompareView(ViewState* state, QWidget* parent)
    : QWidget(parent),
      m_a(new ChoiceBox(this)),
      m_b(new ChoiceBox(this)),
      m_swap(new QToolButton(this)),
      m_perToken(new QCheckBox(tr("per token"), this)),
      m_hint(new QLabel(this)),
      m_seeds(new QLabel(this)),
      m_table(new TableView(this)) {
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(2, 2, 2, 0);
  layout->setSpacing(2);
  auto* bar = new QHBoxLayout;
  for (const auto& [text, box, name] : {std::tuple(tr("A"), m_a, tr("Run A")),
                                        std::tuple(tr("B"), m_b, tr("Run B, drawn dashed"))}) {
    auto* label = new QLabel(text, this);
    label->setBuddy(box);
    box->setAccessibleName(name);
    box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    box->setMinimumContentsLength(12);
    bar->addWidget(label);
    bar->addWidget(box, 1);
  }
  m_swap->setText(tr("Swap"));
  m_swap->setToolTip(tr("A becomes B and B becomes A"));
  bar->addWidget(m_swap);
  m_perToken->setToolTip(
      tr("Span and energy divided by the tokens of the run, step times by the tokens of a step"));
  bar->addWidget(m_perToken);
  layout->addLayout(bar);
  m_seeds->setTextFormat(Qt::PlainText);
  m_seeds->setWordWrap(true);
  m_seeds->setContentsMargins(2, 0, 2, 0);
  m_seeds->hide();
  layout->addWidget(m_seeds);
  m_hint->setText(
      tr("Open a second run to compare: drop two files, or File > Add run to compare."));
  m_hint->setWordWrap(true);
  m_hint->setAlignment(Qt::AlignCenter);
  layout->addWidget(m_hint, 1);
  m_model = new CompareModel(state, this);
  auto* model = m_model;
  connect(m_perToken, &QCheckBox::toggled, model, &CompareModel::setPerToken);
  auto* sorted = new CompareOrder(this);
  sorted->setSourceModel(model);
  sorted->setSortRole(kSortRole);
  m_table->setModel(sorted);
  m_table->setSortingEnabled(true);
  // In the table's own order, differing inputs on top, until a header is clicked.
  m_table->sortByColumn(-1, Qt::AscendingOrder);
  m_table->setTextElideMode(Qt::ElideMiddle);
  m_table->setAccessibleName(tr("Differences of A and B"));
  layout->addWidget(m_table, 1);
  const auto shown = [this, model] {
    const bool some = model->rowCount() > 0;
    m_table->setVisible(some);
    m_hint->setVisible(!some);
    if (!some) return;
    fit();
  };
  connect(model, &QAbstractItemModel::modelReset, this, shown);
  shown();
  const auto tell = [this] { emit chosen(m_a->currentIndex(), m_b->currentIndex() - 1); };
  connect(m_a, &QComboBox::activated, this, tell);
  connect(m_b, &QComboBox::activated, this, tell);
  connect(m_swap, &QToolButton::clicked, this,
          [this] { emit chosen(m_b->currentIndex() - 1, m_a->currentIndex()); });
  setRuns({}, -1, -1);
}

void CompareView::fit() {
  // A text that differs (a scenario's path, a list) must not push the numbers out of sight.
  m_table->horizontalHeader()->setStretchLastSection(false);
  const int letter = fontMetrics().averageCharWidth();
  using C = CompareModel;
  constexpr int kPad = 12;
  // Numbers and words of the comparison stay whole; names and inputs give way.
  std::array<int, C::kColumns> number{}, whole{};
  const QAbstractItemModel& model = *m_table->model();
  for (int c = 0; c < C::kColumns; ++c) {
    const auto i = static_cast<std::size_t>(c);
    whole[i] = m_table->horizontalHeader()->sectionSizeHint(c);
    for (int r = 0; r < model.rowCount(); ++r) {
      const QModelIndex at = model.index(r, c);
      const int width = fontMetrics().horizontalAdvance(at.data().toString()) + kPad;
      whole[i] = std::max(whole[i], width);
      if (at.data(kSortRole).userType() == QMetaType::Double) number[i] = std::max(number[i], width);
    }
  }
  int room = 0;
  const auto place = [&](bool kind, int name, int value, int most, bool numbers = true) {
    m_table->setColumnHidden(C::kKind, !kind);
    room = m_table->viewport()->width();
    for (int c = 0; c < C::kColumns; ++c) {
      const auto i = static_cast<std::size_t>(c);
      int width = std::min(whole[i], letter * most);
      if (c == C::kName) width = std::min(width, letter * name);
      if (c == C::kA || c == C::kB) {
        width = std::min(width, std::max(letter * value, numbers ? number[i] : 0));
      }
      m_table->setColumnWidth(c, width);
      room -= m_table->columnWidth(c);
    }
    return room >= 0;
  };
  // The kind goes before names are cut to stumps: what has no difference is an input. Numbers are
  // cut only where nothing else is left.
  constexpr int kAny = 1000;
  (void)(place(true, 28, 18, kAny) || place(true, 22, 13, kAny) || place(false, 28, 18, kAny) ||
         place(false, 22, 13, kAny) || place(false, 16, 11, kAny) || place(false, 14, 9, kAny) ||
         place(false, 14, 9, 14) || place(false, 14, 9, 14, false));
  // What is left goes to numbers, then to the names, then to inputs.
  const auto widen = [&](int c, int to) {
    const int now = m_table->columnWidth(c);
    const int more = std::min(to - now, room);
    if (more <= 0) return;
    m_table->setColumnWidth(c, now + more);
    room -= more;
  };
  const auto wholeOf = [&](int c) { return whole[static_cast<std::size_t>(c)]; };
  for (const int c : {C::kA, C::kB}) widen(c, number[static_cast<std::size_t>(c)]);
  for (const int c : {C::kDifference, C::kRatio, C::kName, C::kA, C::kB}) widen(c, wholeOf(c));
  m_table->horizontalHeader()->setStretchLastSection(true);
}

void CompareView::resizeEvent(QResizeEvent* event) {
  QWidget::resizeEvent(event);
  if (event->oldSize().width() != event->size().width()) {
    // Once the table has its new width.
    QMetaObject::invokeMethod(this, &CompareView::fit, Qt::QueuedConnection);
  }
}

void CompareView::setSeeds(std::vector<std::shared_ptr<const RunStore>> a,
                           std::vector<std::shared_ptr<const RunStore>> b) {
  const bool several = !b.empty() && a.size() + b.size() > 2;
  const bool oneScenario = several && a == b;
  m_seeds->setText(
      !several      ? QString()
      : oneScenario ? tr("A and B are two of %1 seeds of one scenario: all differences are noise.")
                          .arg(a.size())
                    : tr("Seeds open: A %1, B %2. Grey: their ranges touch, so the seeds alone "
                         "explain the difference.")
                          .arg(a.size())
                          .arg(b.size()));
  m_seeds->setVisible(several);
  m_model->setSeeds(std::move(a), std::move(b));
}

QString CompareView::seedsText() const { return m_seeds->text(); }

void CompareView::setRuns(const QStringList& names, int a, int b) {
  m_a->clear();
  m_a->addItems(names);
  m_a->setCurrentIndex(a);
  m_b->clear();
  m_b->addItem(tr("none"));
  m_b->addItems(names);
  m_b->setCurrentIndex(b + 1);
  m_a->setEnabled(names.size() > 1);
  m_b->setEnabled(names.size() > 1);
  m_swap->setEnabled(a >= 0 && b >= 0);
  m_perToken->setEnabled(a >= 0 && b >= 0);
}

}  // namespace switchyard::gui
