// SPDX-License-Identifier: Apache-2.0
#include "gui/requestsview.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include <QBoxLayout>
#include <QEvent>
#include <QHeaderView>
#include <QLabel>
#include <QPainter>
#include <QResizeEvent>
#include <QSortFilterProxyModel>

#include "gui/text.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::gui {
namespace {

QString timeOrNone(double ps) { return ps < 0 ? QStringLiteral("n/a") : qs(timeText(ps)); }

/// Parts one after the other, in as many lines of `width` pixels as they need, `most` at most; the
/// last line ends with an ellipsis where it has no room for the rest.
QStringList flowed(const QStringList& parts, const QFontMetrics& m, int width, int most) {
  QStringList lines;
  for (const QString& part : parts) {
    const QString longer =
        lines.isEmpty() ? part : QStringLiteral("%1 %2").arg(lines.last(), part);
    if (lines.isEmpty() || (lines.size() < most && m.horizontalAdvance(longer) > width)) {
      lines << part;
    } else {
      lines.last() = longer;
    }
  }
  for (QString& line : lines) line = m.elidedText(line, Qt::ElideRight, width);
  return lines;
}

}  // namespace

RequestsModel::RequestsModel(ViewState* state, QObject* parent)
    : QAbstractTableModel(parent), m_state(state) {
  connect(state, &ViewState::runChanged, this, &RequestsModel::refresh);
  refresh();
}

void RequestsModel::refresh() {
  beginResetModel();
  m_rows = m_state->run() != nullptr ? m_state->run()->data().requests
                                     : std::vector<run::RequestRecord>();
  endResetModel();
}

int RequestsModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(m_rows.size());
}
int RequestsModel::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : kColumns;
}

QVariant RequestsModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid() || index.row() >= rowCount()) return {};
  const run::RequestRecord& r = m_rows[static_cast<std::size_t>(index.row())];
  if (role == kIdRole) return index.row();
  if (role == Qt::TextAlignmentRole) {
    return static_cast<int>((index.column() == kOutcome ? Qt::AlignLeft : Qt::AlignRight) |
                            Qt::AlignVCenter);
  }
  if (role != Qt::DisplayRole && role != kSortRole) return {};
  const bool sort = role == kSortRole;
  const RequestTimes t = timesOf(r);
  const auto time = [&](double ps) { return sort ? QVariant(ps) : QVariant(timeOrNone(ps)); };
  switch (index.column()) {
    case kId:
      return sort ? QVariant(static_cast<double>(r.id)) : QVariant(count(r.id));
    case kArrival:
      return time(static_cast<double>(r.arrival_ps));
    case kWait:
      return time(r.scheduled_ps >= 0 && r.arrival_ps >= 0
                      ? static_cast<double>(r.scheduled_ps - r.arrival_ps)
                      : -1.0);
    case kTier:
      return sort ? QVariant(static_cast<double>(r.tier)) : QVariant(QString::number(r.tier));
    case kReplica:
      if (r.replica == run::kNone) return sort ? QVariant(-1.0) : QVariant(QStringLiteral("–"));
      return sort ? QVariant(static_cast<double>(r.replica)) : QVariant(QString::number(r.replica));
    case kPreempted:
      return sort ? QVariant(static_cast<double>(r.preemptions)) : QVariant(count(r.preemptions));
    case kSlo:
      return sort ? QVariant(static_cast<double>(r.met_slo))
                  : QVariant(r.met_slo != 0 ? tr("met") : tr("missed"));
    case kTtft:
      return time(static_cast<double>(t.ttft));
    case kTpot:
      return time(t.tpot);
    case kWhole:
      return time(static_cast<double>(t.whole));
    case kPrompt:
      return sort ? QVariant(static_cast<double>(r.prompt_tokens))
                  : QVariant(count(r.prompt_tokens));
    case kOutput:
      return sort ? QVariant(static_cast<double>(r.output_tokens))
                  : QVariant(count(r.output_tokens));
    case kOutcome:
      return qs(run::kRequestOutcomeNames[static_cast<std::size_t>(r.outcome)]);
    default:
      return {};
  }
}

bool RequestsModel::says(int column) const {
  const auto any = [this](auto&& test) { return std::any_of(m_rows.begin(), m_rows.end(), test); };
  using R = run::RequestRecord;
  switch (column) {
    case kTier:
      return any([](const R& r) { return r.tier > 0; });
    case kReplica:
      return any([](const R& r) { return r.replica != run::kNone && r.replica > 0; });
    case kPreempted:
      return any([](const R& r) { return r.preemptions > 0; });
    case kWait:
    case kSlo:
      return any([](const R& r) { return r.scheduled_ps >= 0; });
    default:
      return true;
  }
}

QVariant RequestsModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  static const std::array<const char*, kColumns> names = {
      QT_TR_NOOP("request"), QT_TR_NOOP("arrives at"), QT_TR_NOOP("waits"),
      QT_TR_NOOP("TTFT"),    QT_TR_NOOP("TPOT"),       QT_TR_NOOP("whole"),
      QT_TR_NOOP("prompt"),  QT_TR_NOOP("output"),     QT_TR_NOOP("tier"),
      QT_TR_NOOP("replica"), QT_TR_NOOP("preempted"),  QT_TR_NOOP("SLO"),
      QT_TR_NOOP("outcome")};
  static const std::array<const char*, kColumns> tips = {
      QT_TR_NOOP("Number of the request"),
      QT_TR_NOOP("Simulated time of its arrival; n/a: it was there when the run began"),
      QT_TR_NOOP("From its arrival to the first step that had it"),
      QT_TR_NOOP("Time to the first token: first token - arrival"),
      QT_TR_NOOP("Time per output token: (end - first token) / (tokens - 1)"),
      QT_TR_NOOP("End - arrival"),
      QT_TR_NOOP("Tokens of the prompt"),
      QT_TR_NOOP("Tokens of the answer"),
      QT_TR_NOOP("Index into workload.tiers"),
      QT_TR_NOOP("Replica that had it last"),
      QT_TR_NOOP("How often it lost its place to others"),
      QT_TR_NOOP("met: it finished within its tier's TTFT and TPOT"),
      QT_TR_NOOP("What became of it")};
  const auto i = static_cast<std::size_t>(section);
  if (role == Qt::DisplayRole && i < names.size()) return tr(names[i]);
  if (role == Qt::ToolTipRole && i < tips.size()) return tr(tips[i]);
  return {};
}

HistogramView::HistogramView(ViewState* state, const QString& title, QWidget* parent)
    : QWidget(parent), m_state(state), m_title(title) {
  setMinimumSize(120, 40);
  connect(state, &ViewState::themeChanged, this, qOverload<>(&QWidget::update));
}

void HistogramView::setValues(std::vector<double> values) {
  const std::size_t all = values.size();
  std::erase_if(values, [](double v) { return !(v >= 0); });
  m_bins = values.empty() ? std::vector<std::uint32_t>() : histogram(values, 40, m_top);
  m_p50 = run::nearest_rank(values, 50);
  m_p99 = run::nearest_rank(values, 99);
  // A request that has not ended, or began before the run, has no such time.
  const QString others = values.size() == all ? QString()
                         : values.empty()     ? tr(" for %1").arg(count(all))
                                              : tr(" of %1").arg(count(all));
  m_words = values.empty()
                ? QStringList{tr("%1:").arg(m_title), tr("no data%1").arg(others)}
                : QStringList{tr("%1:").arg(m_title), tr("p50 %1,").arg(qs(timeText(m_p50))),
                              tr("p99 %1,").arg(qs(timeText(m_p99))),
                              tr("n = %1%2").arg(count(values.size()), others)};
  m_caption = m_words.join(QLatin1Char(' '));
  setAccessibleName(m_caption);
  setToolTip(m_caption);
  update();
}

void HistogramView::paintEvent(QPaintEvent*) {
  QPainter p(this);
  const Theme& t = m_state->theme();
  p.fillRect(rect(), t.base);
  const QFontMetrics m = fontMetrics();
  // In little height the ends of the axis stand beside the caption.
  const bool low = height() < 4 * m.height() + 4;
  const QString ends = tr("0–%1").arg(qs(timeText(m_top)));
  const int aside = low && !m_bins.empty() ? m.horizontalAdvance(ends) + 10 : 0;
  const QRect top(4, 0, width() - 8, m.height() + 2);
  // A narrow caption takes a second and a third line where they leave the bars two lines' height.
  const int lines = low ? 1 : std::clamp((height() - 8) / m.height() - 3, 1, 3);
  const QStringList words = flowed(m_words, m, top.width() - aside, lines);
  p.setPen(t.text);
  for (int i = 0; i < words.size(); ++i) {
    p.drawText(top.translated(0, i * m.height()), Qt::AlignLeft | Qt::AlignVCenter, words[i]);
  }
  if (m_bins.empty()) return;
  const int above = static_cast<int>(words.size()) * m.height();
  const QRect r(6, above + 4, width() - 12, height() - above - (low ? 6 : m.height() + 8));
  const std::uint32_t most = *std::max_element(m_bins.begin(), m_bins.end());
  const int n = static_cast<int>(m_bins.size());
  for (int i = 0; i < n; ++i) {
    const std::uint32_t v = m_bins[static_cast<std::size_t>(i)];
    if (v == 0) continue;
    const int x0 = r.left() + i * r.width() / n;
    const int x1 = r.left() + (i + 1) * r.width() / n;
    const int h = std::max(1, static_cast<int>(static_cast<double>(v) / most * r.height()));
    p.fillRect(QRect(x0, r.bottom() + 1 - h, std::max(1, x1 - x0 - 1), h), t.series[0]);
  }
  for (const double v : {m_p50, m_p99}) {
    if (!(m_top > 0)) break;
    const int x = r.left() + static_cast<int>(v / m_top * (r.width() - 1));
    p.setPen(QPen(t.accent, 1, v == m_p50 ? Qt::SolidLine : Qt::DashLine));
    p.drawLine(x, r.top(), x, r.bottom());
  }
  p.setPen(t.muted);
  if (low) {
    p.drawText(top, Qt::AlignRight | Qt::AlignVCenter, ends);
    return;
  }
  const QRect below(r.left(), r.bottom() + 2, r.width(), m.height());
  p.drawText(below, Qt::AlignLeft, QStringLiteral("0"));
  p.drawText(below, Qt::AlignRight, qs(timeText(m_top)));
}

void LifeView::changeEvent(QEvent* event) {
  QWidget::changeEvent(event);
  if (event->type() == QEvent::FontChange) fitCaption();
}

void LifeView::resizeEvent(QResizeEvent* event) {
  QWidget::resizeEvent(event);
  if (event->oldSize().width() != event->size().width()) fitCaption();
}

void LifeView::fitCaption() {
  constexpr int kLines = 2;
  m_lines = flowed(m_words, fontMetrics(), width() - 12, kLines);
  if (minimumHeight() != sizeHint().height()) {
    setMinimumHeight(sizeHint().height());
    updateGeometry();
  }
  update();
}

LifeView::LifeView(ViewState* state, QWidget* parent) : QWidget(parent), m_state(state) {
  connect(state, &ViewState::themeChanged, this, qOverload<>(&QWidget::update));
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Fixed);
  setRequest(nullptr, {});
}

QSize LifeView::sizeHint() const {
  const int lines = std::max(1, static_cast<int>(m_lines.size()));
  return {240, lines * fontMetrics().height() + 24};
}

void LifeView::setRequest(const run::RequestRecord* request, std::vector<std::int64_t> tokens) {
  m_request = request != nullptr ? std::optional(*request) : std::nullopt;
  m_tokens = std::move(tokens);
  m_words = {tr("Choose a request: its life is drawn here.")};
  if (request != nullptr) {
    QStringList parts;
    const auto add = [&](const QString& what, std::int64_t from, std::int64_t to) {
      if (from >= 0 && to >= from) parts << what.arg(qs(timeText(static_cast<double>(to - from))));
    };
    add(tr("waits %1"), request->arrival_ps, request->scheduled_ps);
    if (request->scheduled_ps >= 0) {
      add(tr("prefill %1"), request->scheduled_ps, request->first_token_ps);
    } else {
      add(tr("first token after %1"), request->arrival_ps, request->first_token_ps);
    }
    if (request->end_ps > request->first_token_ps) {
      add(tr("answers for %1"), request->first_token_ps, request->end_ps);
    }
    parts << (request->output_tokens == 1 ? tr("1 token")
                                          : tr("%1 tokens").arg(count(request->output_tokens)));
    if (request->preemptions > 0) parts << tr("%1 times preempted").arg(request->preemptions);
    parts << qs(run::kRequestOutcomeNames[static_cast<std::size_t>(request->outcome)]);
    for (qsizetype i = 0; i + 1 < parts.size(); ++i) parts[i] += QLatin1Char(',');
    parts.first() = tr("Request %1: %2").arg(count(request->id), parts.first());
    m_words = parts;
  }
  m_caption = m_words.join(QLatin1Char(' '));
  setAccessibleName(m_caption);
  setToolTip(m_caption);
  fitCaption();
}

void LifeView::paintEvent(QPaintEvent*) {
  QPainter p(this);
  const Theme& t = m_state->theme();
  const QFontMetrics m = fontMetrics();
  p.fillRect(rect(), t.base);
  p.setPen(m_request ? t.text : t.muted);
  for (int i = 0; i < m_lines.size(); ++i) {
    p.drawText(QRect(6, i * m.height(), width() - 12, m.height() + 2),
               Qt::AlignLeft | Qt::AlignVCenter, m_lines[i]);
  }
  m_parts.clear();
  if (!m_request) return;
  const run::RequestRecord& r = *m_request;
  // A batch that is there from the beginning does not wait.
  const std::array<std::int64_t, 4> times = {
      r.arrival_ps, r.scheduled_ps >= 0 ? r.scheduled_ps : r.arrival_ps, r.first_token_ps,
      r.end_ps};
  std::int64_t first = -1;
  std::int64_t last = m_tokens.empty() ? -1 : m_tokens.back();
  for (const std::int64_t at : times) {
    if (at < 0) continue;
    if (first < 0) first = at;
    last = std::max(last, at);
  }
  if (first < 0 || last <= first) return;
  const int above = static_cast<int>(m_lines.size()) * m.height();
  const QRect bar(6, above + 5, width() - 12, 14);
  const auto xOf = [&](std::int64_t at) {
    return bar.left() + qRound(static_cast<double>(at - first) / static_cast<double>(last - first) *
                               (bar.width() - 1));
  };
  const std::array<QColor, 3> colors = {t.phases[static_cast<std::size_t>(run::Phase::kWait)],
                                        t.series[0], t.series[3]};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t to = i == 2 && times[3] < 0 ? last : times[i + 1];
    QRect part;
    if (times[i] >= 0 && to > times[i]) {
      part = QRect(xOf(times[i]), bar.top(), std::max(1, xOf(to) - xOf(times[i])), bar.height());
      p.fillRect(part, colors[i]);
    }
    m_parts.push_back(part);
  }
  // Each token; of more than there are pixels each pixel one.
  p.setPen(t.base);
  int before = -1;
  for (const std::int64_t at : m_tokens) {
    const int x = xOf(at);
    if (x <= before + 1) continue;
    p.drawLine(x, bar.bottom() - 5, x, bar.bottom());
    before = x;
  }
  p.setPen(t.frame);
  p.setBrush(Qt::NoBrush);
  p.drawRect(bar.adjusted(-1, -1, 0, 0));
}

void RequestsView::fitText() {
  m_table->setMinimumHeight(m_table->horizontalHeader()->height() +
                            m_table->fontMetrics().height());
}

QSize RequestsView::minimumSizeHint() const {
  // Of the charts side by side: a dock may become as low as that.
  const int requests = m_table->minimumHeight() + 2 + m_life->minimumHeight();
  return {2 * m_ttft->minimumWidth(), 2 + std::max(requests, m_ttft->minimumHeight())};
}

void RequestsView::resizeEvent(QResizeEvent* event) {
  const bool low = height() < 2 * (4 * fontMetrics().height() + 10);
  m_charts->setDirection(low ? QBoxLayout::LeftToRight : QBoxLayout::TopToBottom);
  QWidget::resizeEvent(event);
}

void RequestsView::changeEvent(QEvent* event) {
  QWidget::changeEvent(event);
  if (event->type() == QEvent::FontChange && m_table != nullptr) fitText();
}

RequestsView::RequestsView(ViewState* state, QWidget* parent)
    : QWidget(parent),
      m_state(state),
      m_table(new TableView(this)),
      m_ttft(new HistogramView(state, tr("TTFT"), this)),
      m_tpot(new HistogramView(state, tr("TPOT"), this)),
      m_life(new LifeView(state, this)),
      m_hint(new QLabel(this)),
      m_content(new QWidget(this)) {
  auto* outer = new QVBoxLayout(this);
  outer->setContentsMargins(2, 2, 2, 0);
  m_hint->setText(tr("This run has no requests: it simulates a batch of fixed size."));
  m_hint->setWordWrap(true);
  m_hint->setAlignment(Qt::AlignCenter);
  outer->addWidget(m_hint, 1);
  outer->addWidget(m_content, 1);
  auto* layout = new QHBoxLayout(m_content);
  layout->setContentsMargins(0, 0, 0, 0);
  auto* sorted = new QSortFilterProxyModel(this);
  auto* model = new RequestsModel(state, this);
  sorted->setSourceModel(model);
  sorted->setSortRole(kSortRole);
  m_table->setModel(sorted);
  m_table->setSortingEnabled(true);
  m_table->sortByColumn(RequestsModel::kTtft, Qt::DescendingOrder);
  using R = RequestsModel;
  m_table->fitWhole({R::kId, R::kTtft, R::kTpot, R::kWait, R::kOutcome, R::kWhole, R::kSlo,
                     R::kArrival, R::kReplica, R::kTier, R::kPreempted, R::kPrompt, R::kOutput},
                    [model](int column) { return model->says(column); });
  m_table->setAccessibleName(tr("Requests"));
  // The life lies beside the charts: a window of 1280 x 800 has no room for it below both.
  fitText();
  auto* requests = new QVBoxLayout;
  requests->setSpacing(2);
  requests->addWidget(m_table, 1);
  requests->addWidget(m_life);
  layout->addLayout(requests, 3);
  m_charts = new QBoxLayout(QBoxLayout::TopToBottom);
  m_charts->addWidget(m_ttft);
  m_charts->addWidget(m_tpot);
  layout->addLayout(m_charts, 2);
  connect(m_table->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
          [this](const QModelIndex& current) {
            const RunStore* run = m_state->run();
            if (!current.isValid() || run == nullptr) return;
            const auto row = static_cast<std::size_t>(current.data(kIdRole).toInt());
            const run::RequestRecord& request = run->data().requests.at(row);
            std::vector<std::int64_t> tokens;
            for (const run::TokenRecord& token : run->data().tokens) {
              if (token.request == request.id) tokens.push_back(token.time_ps);
            }
            std::sort(tokens.begin(), tokens.end());
            m_life->setRequest(&request, std::move(tokens));
            // Its sentence may have taken a line from the table.
            QMetaObject::invokeMethod(
                this, [this] { m_table->scrollTo(m_table->currentIndex()); }, Qt::QueuedConnection);
            const auto span = stepsOf(*run, run->data().requests.at(row));
            if (!span) return;
            m_state->setSelection(StepRange{span->first, span->end});
            m_state->bringIntoView({span->first, span->end});
          });
  connect(state, &ViewState::runChanged, this, &RequestsView::refresh);
  refresh();
}

void RequestsView::refresh() {
  std::vector<double> ttft, tpot;
  if (m_state->run() != nullptr) {
    for (const run::RequestRecord& r : m_state->run()->data().requests) {
      const RequestTimes t = timesOf(r);
      ttft.push_back(static_cast<double>(t.ttft));
      tpot.push_back(t.tpot);
    }
  }
  m_life->setRequest(nullptr, {});
  const bool some = !ttft.empty();
  m_hint->setVisible(!some);
  m_content->setVisible(some);
  m_ttft->setValues(std::move(ttft));
  m_tpot->setValues(std::move(tpot));
}

}  // namespace switchyard::gui
