// SPDX-License-Identifier: Apache-2.0
#include "gui/models.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <QColor>
#include <QFont>

#include "engine/base/error.hpp"
#include "gui/core/places.hpp"
#include "gui/rangerows.hpp"
#include "gui/text.hpp"
#include "sim/run/diff.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::gui {
namespace {

constexpr auto kLeft = static_cast<int>(Qt::AlignLeft | Qt::AlignVCenter);
constexpr auto kRight = static_cast<int>(Qt::AlignRight | Qt::AlignVCenter);
constexpr auto kMiddle = static_cast<int>(Qt::AlignCenter);
/// Sorts below every number.
constexpr double kBottom = -std::numeric_limits<double>::infinity();

QString none() { return QStringLiteral("–"); }

/// "0", "0, 5", of more than three "0 +7".
QString placesText(const std::vector<std::uint32_t>& places) {
  constexpr std::size_t kMost = 3;
  QString text = QString::number(places.front());
  if (places.size() > kMost) return text + QStringLiteral(" +%1").arg(places.size() - 1);
  for (std::size_t i = 1; i < places.size(); ++i) text += QStringLiteral(", %1").arg(places[i]);
  return text;
}

}  // namespace

// ---- experts -----------------------------------------------------------------------------------

ExpertsModel::ExpertsModel(ViewState* state, QObject* parent)
    : QAbstractTableModel(parent), m_state(state) {
  connect(state, &ViewState::runChanged, this, &ExpertsModel::refresh);
  connect(state, &ViewState::optionsChanged, this, &ExpertsModel::refresh);
  refresh();
}

void ExpertsModel::refresh() {
  std::vector<Row> rows;
  if (const RunStore* run = m_state->run()) {
    const run::RunData& d = run->data();
    const std::size_t experts = run->experts();
    rows.resize(experts);
    double steps = static_cast<double>(run->steps());
    if (run->hasSteps()) {
      steps = static_cast<double>(std::count_if(
          d.steps.begin(), d.steps.end(), [](const run::StepScalars& s) { return !s.warmup; }));
    }
    for (const ExpertPlace& p : run->expertOrder(m_state->layer())) rows[p.expert].gpu = p.gpu;
    for (std::size_t e = 0; e < experts; ++e) {
      std::uint64_t kept = 0;
      for (std::size_t l = 0; l < d.inventory.moe_layers.size(); ++l) {
        if (m_state->layer() != kAllLayers && l != m_state->layer()) continue;
        kept += d.totals.expert_kept[l * experts + e];
        rows[e].overflow += d.totals.expert_overflow[l * experts + e];
      }
      const double demand = static_cast<double>(kept + rows[e].overflow);
      rows[e].mean = steps > 0 ? static_cast<double>(kept) / steps : 0;
      rows[e].overflowShare = demand > 0 ? static_cast<double>(rows[e].overflow) / demand : 0;
      for (std::size_t to = 0; to < experts; ++to) {
        rows[e].rerouted += d.totals.reroute_experts[e * experts + to];
      }
      rows[e].places = placesOf(d.inventory, m_state->layer(), static_cast<std::uint32_t>(e));
    }
  }
  beginResetModel();
  m_rows = std::move(rows);
  m_numbers.reset();
  endResetModel();
}

const ExpertNumbers& ExpertsModel::numbers() const {
  if (!m_numbers) {
    m_numbers.emplace();
    try {
      if (m_state->run() != nullptr) *m_numbers = expertNumbers(*m_state->run(), m_state->layer());
    } catch (const InputError&) {
      // A block that cannot be read: the panes say why, the cells are n/a.
    }
  }
  return *m_numbers;
}

int ExpertsModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(m_rows.size());
}
int ExpertsModel::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : kColumns;
}

bool ExpertsModel::says(int column) const {
  switch (column) {
    case kRerouted:
      return std::any_of(m_rows.begin(), m_rows.end(), [](const Row& r) { return r.rerouted > 0; });
    case kDropped: {
      const auto& dropped = numbers().dropped;
      return std::any_of(dropped.begin(), dropped.end(), [](std::uint64_t n) { return n > 0; });
    }
    case kCopies:
      return std::any_of(m_rows.begin(), m_rows.end(),
                         [](const Row& r) { return r.places.size() > 1; });
    default:
      return true;
  }
}

QVariant ExpertsModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid() || index.row() >= rowCount()) return {};
  const auto e = static_cast<std::uint32_t>(index.row());
  const Row& r = m_rows[e];
  if (role == kIdRole) return e;
  if (role == Qt::TextAlignmentRole) return index.column() == kExpert ? kLeft : kRight;
  if (role == Qt::ForegroundRole && index.column() == kOverflowShare && r.overflow > 0) {
    return m_state->theme().saturated;
  }
  if (role == Qt::ToolTipRole && index.column() == kOverflowShare) {
    return tr("%1 assignments found the expert full").arg(count(r.overflow));
  }
  if (role == Qt::ToolTipRole && r.places.size() > 1 &&
      (index.column() == kGpu || index.column() == kCopies)) {
    QStringList names;
    for (std::size_t i = 1; i < r.places.size(); ++i) names << gpuName(r.places[i]);
    return tr("First on %1, copies on %2; the numbers are of all copies together")
        .arg(gpuName(r.places.front()), names.join(QStringLiteral(", ")));
  }
  if (index.column() == kSpark) {
    if (role != kSparkRole && role != kSortRole) return {};
    const ExpertNumbers& n = numbers();
    if (n.spark.empty()) return {};
    const auto first = n.spark.begin() + static_cast<std::ptrdiff_t>(e * kSparkColumns);
    if (role == kSortRole) {
      return static_cast<double>(*std::max_element(first, first + kSparkColumns));
    }
    return QVariant::fromValue(QList<float>(first, first + kSparkColumns));
  }
  if (role == Qt::ToolTipRole && index.column() == kP99 && numbers().bound) {
    return tr("At most this: the run has too many steps (or none) to look at each");
  }
  if (role == Qt::ToolTipRole && index.column() == kDropped && numbers().dropped.empty()) {
    return tr("n/a: known per expert only for runs of up to %1 single steps").arg(kExactSteps);
  }
  const auto number = [&](const std::vector<double>& v) {
    return e < v.size() ? v[e] : run::kNoData;
  };
  const auto p99 = [&] { return e < numbers().p99.size() ? numbers().p99[e] : run::kNoData; };
  if (role == kSortRole) {
    switch (index.column()) {
      case kP99:
        return std::isnan(p99()) ? kBottom : p99();
      case kDropped:
        return e < numbers().dropped.size() ? static_cast<double>(numbers().dropped[e]) : kBottom;
      case kMin:
      case kMax:
      case kStd: {
        const ExpertNumbers& n = numbers();
        const double v = number(index.column() == kMin   ? n.least
                                : index.column() == kMax ? n.most
                                                         : n.deviation);
        return std::isnan(v) ? kBottom : v;
      }
      case kCopies:
        return static_cast<double>(r.places.size());
      case kExpert:
        return static_cast<double>(e);
      case kGpu:
        return r.gpu == run::kNone ? kBottom : static_cast<double>(r.gpu);
      case kMean:
        return r.mean;
      case kOverflowShare:
        return r.overflowShare;
      case kRerouted:
        return static_cast<double>(r.rerouted);
      default:
        return {};
    }
  }
  if (role != Qt::DisplayRole) return {};
  switch (index.column()) {
    case kExpert:
      return qs(expertName(e, static_cast<std::uint32_t>(m_rows.size())));
    case kGpu:
      return r.gpu == run::kNone ? none() : placesText(r.places);
    case kMean:
      return r.mean < 1000 ? QString::number(r.mean, 'f', 1)
                           : count(static_cast<std::uint64_t>(std::llround(r.mean)));
    case kOverflowShare:
      return QString::number(r.overflowShare * 100, 'f', 2);
    case kRerouted:
      return count(r.rerouted);
    case kP99:
      if (std::isnan(p99())) return none();
      return (numbers().bound ? QStringLiteral("≤") : QString()) +
             count(static_cast<std::uint64_t>(p99()));
    case kDropped:
      return e < numbers().dropped.size() ? count(numbers().dropped[e]) : tr("n/a");
    case kCopies:
      return QString::number(r.places.size());
    case kMin:
    case kMax: {
      const double v = number(index.column() == kMin ? numbers().least : numbers().most);
      return std::isnan(v) ? tr("n/a") : count(static_cast<std::uint64_t>(v));
    }
    case kStd: {
      const double v = number(numbers().deviation);
      return std::isnan(v) ? tr("n/a") : QString::number(v, 'f', v < 1000 ? 1 : 0);
    }
    default:
      return {};
  }
}

QVariant ExpertsModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  if (role == Qt::TextAlignmentRole) return section == kExpert ? kLeft : kRight;
  static const std::array<const char*, kColumns> names = {
      QT_TR_NOOP("expert"), QT_TR_NOOP("GPU"),   QT_TR_NOOP("mean"), QT_TR_NOOP("p99"),
      QT_TR_NOOP("over %"), QT_TR_NOOP("moved"), QT_TR_NOOP("lost"), QT_TR_NOOP("copies"),
      QT_TR_NOOP("min"),    QT_TR_NOOP("max"),   QT_TR_NOOP("std"),  QT_TR_NOOP("load")};
  static const std::array<const char*, kColumns> tips = {
      QT_TR_NOOP("Number of the expert"),
      QT_TR_NOOP("GPUs that hold it, the first replica first"),
      QT_TR_NOOP("Mean tokens run there per step, without warm-up"),
      QT_TR_NOOP("99th percentile over steps of the tokens run there, without warm-up"),
      QT_TR_NOOP("overflow / (kept + overflow): share of its demand that found it full, without "
                 "warm-up"),
      QT_TR_NOOP("Assignments rerouted from it to another expert, all layers, without warm-up"),
      QT_TR_NOOP("Assignments dropped there, without warm-up"),
      QT_TR_NOOP("Replicas: GPUs that hold it"),
      QT_TR_NOOP("Fewest tokens run there in a step, without warm-up"),
      QT_TR_NOOP("Most tokens run there in a step, without warm-up"),
      QT_TR_NOOP("Standard deviation over steps of the tokens run there, without warm-up"),
      QT_TR_NOOP("Tokens run there over the whole run, each part by its largest step")};
  if (role == kSparkRole) return section == kSpark;
  const auto i = static_cast<std::size_t>(section);
  if (role == Qt::DisplayRole && i < names.size()) return tr(names[i]);
  if (role == Qt::ToolTipRole && i < tips.size()) return tr(tips[i]);
  return {};
}

// ---- events ------------------------------------------------------------------------------------

EventsModel::EventsModel(ViewState* state, QObject* parent) : QAbstractTableModel(parent) {
  const auto refresh = [this, state] {
    beginResetModel();
    m_run = state->runPointer();
    m_saysKnown = false;
    endResetModel();
  };
  connect(state, &ViewState::runChanged, this, refresh);
  refresh();
}

bool EventsModel::says(int column) const {
  if (!m_saysKnown) {
    m_saysKnown = true;
    const bool some = rowCount() > 0;
    m_says.fill(true);
    for (const Column c : {kLayer, kGpu, kExpert, kLink}) m_says[c] = !some;
    for (int row = 0; row < rowCount(); ++row) {
      const run::Event& e = m_run->events()[static_cast<std::size_t>(row)];
      m_says[kLayer] = m_says[kLayer] || e.layer != run::kNone;
      m_says[kGpu] = m_says[kGpu] || e.gpu != run::kNone;
      m_says[kExpert] = m_says[kExpert] || e.expert != run::kNone;
      m_says[kLink] = m_says[kLink] || e.link != run::kNone;
      if (m_says[kLayer] && m_says[kGpu] && m_says[kExpert] && m_says[kLink]) break;
    }
  }
  return m_says[static_cast<std::size_t>(column)];
}

int EventsModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() || m_run == nullptr ? 0 : static_cast<int>(m_run->events().size());
}
int EventsModel::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : kColumns;
}

QVariant EventsModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid() || index.row() >= rowCount()) return {};
  const run::Event& e = m_run->events()[static_cast<std::size_t>(index.row())];
  const bool words = index.column() == kKind || index.column() == kLink || index.column() == kText;
  const auto number = [](std::uint32_t v) {
    return v == run::kNone ? kBottom : static_cast<double>(v);
  };
  if (role == kIdRole) return index.row();
  // Between a number and a word: clear of both.
  if (role == Qt::TextAlignmentRole && index.column() == kExpert) return kMiddle;
  if (role == Qt::TextAlignmentRole) return words ? kLeft : kRight;
  const run::Inventory& inv = m_run->data().inventory;
  if (role == kSortRole) {
    switch (index.column()) {
      case kStep:
        return number(e.step);
      case kTime:
        return static_cast<double>(e.time_ps);
      case kLayer:
        return number(e.layer);
      case kGpu:
        return number(e.gpu);
      case kExpert:
        return number(e.expert);
      default:
        return data(index, Qt::DisplayRole);
    }
  }
  if (role != Qt::DisplayRole && role != Qt::ToolTipRole) return {};
  switch (index.column()) {
    case kStep:
      return e.step == run::kNone ? none() : count(e.step);
    case kTime:
      return qs(timeText(static_cast<double>(e.time_ps)));
    case kKind:
      return qs(run::kEventKindNames[static_cast<std::size_t>(e.kind)]);
    case kLayer:
      return e.layer < inv.moe_layers.size() ? QString::number(inv.moe_layers[e.layer]) : none();
    case kGpu:
      return e.gpu == run::kNone ? none() : QString::number(e.gpu);
    case kExpert:
      return e.expert == run::kNone ? none() : qs(expertName(e.expert, inv.experts));
    case kLink:
      return e.link < inv.links.size() ? qs(inv.links[e.link].name) : none();
    case kText:
      return qs(e.text);
    default:
      return {};
  }
}

QVariant EventsModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  if (role == Qt::TextAlignmentRole) {
    return section == kKind || section == kLink || section == kText ? kLeft
           : section == kExpert                                     ? kMiddle
                                                                    : kRight;
  }
  static const std::array<const char*, kColumns> names = {
      QT_TR_NOOP("step"), QT_TR_NOOP("time"),   QT_TR_NOOP("kind"), QT_TR_NOOP("layer"),
      QT_TR_NOOP("GPU"),  QT_TR_NOOP("expert"), QT_TR_NOOP("link"), QT_TR_NOOP("what")};
  const auto i = static_cast<std::size_t>(section);
  if (role == Qt::DisplayRole && i < names.size()) return tr(names[i]);
  return {};
}

namespace {

/// Whether texts hold a needle, without regard to capitals. Plain ASCII is compared as it lies, as
/// there may be millions.
class Needle {
 public:
  explicit Needle(const QString& text)
      : m_text(text),
        m_ascii(std::all_of(text.begin(), text.end(), [](QChar c) { return c.unicode() < 128; })),
        m_bytes(text.toLower().toStdString()),
        m_digit(std::any_of(text.begin(), text.end(), [](QChar c) { return c.isDigit(); })) {}
  [[nodiscard]] bool hasDigit() const { return m_digit; }
  [[nodiscard]] bool in(std::string_view text) const {
    const auto plain = [](char c) { return static_cast<unsigned char>(c) < 128; };
    if (!std::all_of(text.begin(), text.end(), plain)) {
      return qs(text).contains(m_text, Qt::CaseInsensitive);
    }
    if (!m_ascii) return false;
    const auto low = [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    return std::search(text.begin(), text.end(), m_bytes.begin(), m_bytes.end(),
                       [&](char a, char b) { return low(a) == b; }) != text.end();
  }

 private:
  QString m_text;
  bool m_ascii;
  std::string m_bytes;
  bool m_digit;
};

/// Place of each name among them all: names are compared once, not once per event.
template <class Names>
std::vector<std::int64_t> places(const Names& names) {
  std::vector<std::size_t> order(names.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return names[a] < names[b]; });
  std::vector<std::int64_t> place(names.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<std::int64_t>(i);
  return place;
}

}  // namespace

EventsFilter::EventsFilter(EventsModel* events, QObject* parent)
    : QAbstractTableModel(parent), m_events(events) {
  connect(events, &QAbstractItemModel::modelAboutToBeReset, this, [this] { beginResetModel(); });
  connect(events, &QAbstractItemModel::modelReset, this, [this] {
    makeOrder();
    filter(allInOrder());
    endResetModel();
  });
  makeOrder();
  filter(allInOrder());
}

std::vector<std::uint32_t> EventsFilter::allInOrder() const {
  if (!m_order.empty()) return m_order;
  std::vector<std::uint32_t> all(static_cast<std::size_t>(m_events->rowCount()));
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

void EventsFilter::makeOrder() {
  m_order.clear();
  if (m_events->run() == nullptr) return;
  const std::vector<run::Event>& events = m_events->run()->events();
  const run::Inventory& inv = m_events->run()->data().inventory;
  const bool down = m_direction == Qt::DescendingOrder;
  const auto earlier = [](const run::Event& a, const run::Event& b) {
    return a.time_ps < b.time_ps;
  };
  if (m_column == EventsModel::kTime && !down &&
      std::is_sorted(events.begin(), events.end(), earlier)) {
    return;
  }
  m_order = allInOrder();
  ++m_sorts;
  const auto sortBy = [&](const auto& key) {
    std::stable_sort(m_order.begin(), m_order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return down ? key(events[b]) < key(events[a]) : key(events[a]) < key(events[b]);
    });
  };
  // What is missing comes before every number and every name.
  const auto number = [](std::uint32_t v) {
    return v == run::kNone ? std::int64_t{-1} : static_cast<std::int64_t>(v);
  };
  switch (m_column) {
    case EventsModel::kStep:
      return sortBy([&](const run::Event& e) { return number(e.step); });
    case EventsModel::kKind:
      return sortBy([place = places(run::kEventKindNames)](const run::Event& e) {
        return place[static_cast<std::size_t>(e.kind)];
      });
    case EventsModel::kLayer:
      return sortBy([&](const run::Event& e) { return number(e.layer); });
    case EventsModel::kGpu:
      return sortBy([&](const run::Event& e) { return number(e.gpu); });
    case EventsModel::kExpert:
      return sortBy([&](const run::Event& e) { return number(e.expert); });
    case EventsModel::kLink: {
      std::vector<std::string_view> names;
      for (const run::LinkInfo& l : inv.links) names.emplace_back(l.name);
      return sortBy([place = places(names)](const run::Event& e) {
        return e.link < place.size() ? place[e.link] : std::int64_t{-1};
      });
    }
    case EventsModel::kText:
      return sortBy([](const run::Event& e) -> const std::string& { return e.text; });
    default:
      return sortBy([](const run::Event& e) { return e.time_ps; });
  }
}

void EventsFilter::filter(std::vector<std::uint32_t> from) {
  if (m_events->run() == nullptr || (m_text.isEmpty() && !m_range)) {
    m_rows = std::move(from);
    return;
  }
  const std::vector<run::Event>& events = m_events->run()->events();
  const run::Inventory& inv = m_events->run()->data().inventory;
  const Needle needle(m_text);
  // Names and numbers of which there are few are compared once.
  std::vector<bool> kinds, layers, gpus, experts, links;
  for (const std::string_view name : run::kEventKindNames) kinds.push_back(needle.in(name));
  for (const auto layer : inv.moe_layers) layers.push_back(needle.in(std::to_string(layer)));
  for (std::size_t g = 0; g < inv.gpus.size(); ++g) gpus.push_back(needle.in(std::to_string(g)));
  for (std::uint32_t e = 0; e < inv.experts; ++e) {
    experts.push_back(needle.in(expertName(e, inv.experts)));
  }
  for (const run::LinkInfo& l : inv.links) links.push_back(needle.in(l.name));
  const auto marked = [](const std::vector<bool>& v, std::size_t i) {
    return i < v.size() && v[i];
  };
  // Events of one step follow each other.
  std::optional<std::uint32_t> step;
  std::optional<std::int64_t> time;
  bool stepHas = false;
  bool timeHas = false;
  const auto passes = [&](const run::Event& e) {
    if (m_range && (e.step == run::kNone || e.step < m_range->first || e.step >= m_range->end)) {
      return false;
    }
    if (m_text.isEmpty() || marked(kinds, static_cast<std::size_t>(e.kind)) ||
        marked(layers, e.layer) || marked(gpus, e.gpu) || marked(experts, e.expert) ||
        marked(links, e.link) || needle.in(e.text)) {
      return true;
    }
    if (!needle.hasDigit()) return false;
    if (step != e.step) {
      step = e.step;
      stepHas = e.step != run::kNone && needle.in(groupDigits(e.step));
    }
    if (!stepHas && time != e.time_ps) {
      time = e.time_ps;
      timeHas = needle.in(timeText(static_cast<double>(e.time_ps)));
    }
    return stepHas || timeHas;
  };
  m_compared += from.size();
  from.erase(std::remove_if(from.begin(), from.end(),
                            [&](std::uint32_t event) { return !passes(events[event]); }),
             from.end());
  m_rows = std::move(from);
}

void EventsFilter::setRange(std::optional<StepRange> range) {
  if (range == m_range) return;
  beginResetModel();
  m_range = range;
  filter(allInOrder());
  endResetModel();
}

void EventsFilter::setText(const QString& text) {
  if (text == m_text) return;
  const auto digit = [](const QString& t) {
    return std::any_of(t.begin(), t.end(), [](QChar c) { return c.isDigit(); });
  };
  // What has "over c" has "over" too; but a text without a digit was not sought in steps and times.
  const bool narrower = text.contains(m_text, Qt::CaseInsensitive) &&
                        (m_text.isEmpty() || digit(m_text) || !digit(text));
  beginResetModel();
  m_text = text;
  filter(narrower ? std::move(m_rows) : allInOrder());
  endResetModel();
}

int EventsFilter::rowOf(int event) const {
  const auto found = std::find(m_rows.begin(), m_rows.end(), static_cast<std::uint32_t>(event));
  return found == m_rows.end() ? -1 : static_cast<int>(found - m_rows.begin());
}

int EventsFilter::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(m_rows.size());
}
int EventsFilter::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : EventsModel::kColumns;
}

QVariant EventsFilter::data(const QModelIndex& index, int role) const {
  if (!index.isValid() || index.row() >= rowCount()) return {};
  const auto event = static_cast<int>(m_rows[static_cast<std::size_t>(index.row())]);
  return m_events->data(m_events->index(event, index.column()), role);
}

QVariant EventsFilter::headerData(int section, Qt::Orientation orientation, int role) const {
  return m_events->headerData(section, orientation, role);
}

void EventsFilter::sort(int column, Qt::SortOrder order) {
  if (column < 0 || (column == m_column && order == m_direction)) return;
  emit layoutAboutToBeChanged({}, VerticalSortHint);
  const QModelIndexList before = persistentIndexList();
  std::vector<std::uint32_t> chosen;
  for (const QModelIndex& i : before) chosen.push_back(m_rows[static_cast<std::size_t>(i.row())]);
  std::vector<bool> shown(static_cast<std::size_t>(m_events->rowCount()), false);
  for (const std::uint32_t event : m_rows) shown[event] = true;
  m_column = column;
  m_direction = order;
  makeOrder();
  m_rows = allInOrder();
  std::erase_if(m_rows, [&](std::uint32_t event) { return !shown[event]; });
  if (!before.isEmpty()) {
    std::vector<int> rowOfEvent(shown.size(), -1);
    for (std::size_t r = 0; r < m_rows.size(); ++r) rowOfEvent[m_rows[r]] = static_cast<int>(r);
    QModelIndexList after;
    for (qsizetype i = 0; i < before.size(); ++i) {
      after << index(rowOfEvent[chosen[static_cast<std::size_t>(i)]], before[i].column());
    }
    changePersistentIndexList(before, after);
  }
  emit layoutChanged({}, VerticalSortHint);
}

// ---- inspector ---------------------------------------------------------------------------------

InspectorModel::InspectorModel(ViewState* state, QObject* parent)
    : QAbstractTableModel(parent), m_state(state) {
  connect(state, &ViewState::runChanged, this, &InspectorModel::refresh);
  connect(state, &ViewState::cursorChanged, this, &InspectorModel::refresh);
  connect(state, &ViewState::selectionChanged, this, &InspectorModel::refresh);
  connect(state, &ViewState::expertChanged, this, &InspectorModel::refresh);
  connect(state, &ViewState::gpuChanged, this, &InspectorModel::refresh);
  connect(state, &ViewState::optionsChanged, this, &InspectorModel::refresh);
  refresh();
}

void InspectorModel::refresh() {
  QString heading;
  std::vector<Row> rows = this->rows(heading);
  const bool renamed = heading != m_heading;
  m_heading = heading;
  if (rows.size() == m_rows.size() && !rows.empty()) {
    m_rows = std::move(rows);
    emit dataChanged(index(0, 0), index(rowCount() - 1, 1));
  } else {
    beginResetModel();
    m_rows = std::move(rows);
    endResetModel();
  }
  if (renamed) emit headerDataChanged(Qt::Horizontal, 0, 1);
}

namespace {

/// As in the panes: 1253 → "1 253", 8016.84 ms → "8.017 s", a share of 0.1526 → "15.3 %". Compare
/// has the numbers as `switchyard diff` prints them.
QString metricText(const run::Metric& m) {
  if (!(m.value == m.value)) return QObject::tr("n/a");
  static const std::array<std::pair<const char*, double>, 5> times = {
      {{"ps", 1.0}, {"ns", 1e3}, {"us", 1e6}, {"ms", 1e9}, {"s", 1e12}}};
  for (const auto& [unit, ps] : times) {
    if (m.unit == unit) return qs(timeText(m.value * ps));
  }
  static const std::array<std::pair<const char*, double>, 5> sizes = {
      {{"B", 1.0}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}};
  for (const auto& [unit, bytes] : sizes) {
    if (m.unit == unit) return qs(bytesText(m.value * bytes));
  }
  const QString name = qs(m.name);
  const bool share = name.contains(QStringLiteral("share")) ||
                     name.startsWith(QStringLiteral("link use ")) || m.name == "busy" ||
                     m.name == "compute_busy" || m.name == "MBU" || m.name == "MFU";
  if (m.unit.empty() && share) return qs(percentText(m.value));
  constexpr double kExact = 1e15;
  const bool whole = m.value >= 0 && m.value < kExact && m.value == std::floor(m.value);
  const QString number =
      whole ? count(static_cast<std::uint64_t>(m.value)) : qs(shortNumber(m.value));
  return m.unit.empty() ? number : number + QStringLiteral(" ") + qs(m.unit);
}

std::vector<InspectorModel::Row> wholeRun(const RunStore& run) {
  std::vector<InspectorModel::Row> rows;
  const run::Totals& t = run.data().totals;
  rows.push_back({QObject::tr("steps"), count(t.steps), {}});
  rows.push_back({QObject::tr("assignments"), count(t.assignments), {}});
  rows.push_back({QObject::tr("over capacity"), withShare(t.overflow, t.assignments),
                  QObject::tr("First choices that found the expert full")});
  rows.push_back({QObject::tr("rerouted"), withShare(t.rerouted, t.assignments), {}});
  rows.push_back({QObject::tr("queued"), withShare(t.queued, t.assignments), {}});
  rows.push_back({QObject::tr("dropped"), withShare(t.dropped, t.assignments), {}});
  const auto measured =
      std::find_if(run.data().metrics.begin(), run.data().metrics.end(),
                   [](const run::Metric& m) { return m.name == "measured steps"; });
  if (measured != run.data().metrics.end() && measured->value < static_cast<double>(t.steps)) {
    rows.push_back({QObject::tr("below: no warm-up"),
                    QObject::tr("%1 steps").arg(count(static_cast<std::uint64_t>(measured->value))),
                    QObject::tr("The numbers above are of all steps; those below leave the warm-up "
                                "out")});
  }
  for (const run::Metric& m : run.data().metrics) {
    const run::MetricDefinition* d = run::find_metric(m.name);
    rows.push_back({qs(m.name), metricText(m), d != nullptr ? qs(d->definition) : QString()});
  }
  return rows;
}

/// A run file without steps: what its first level of detail says about the bin.
std::vector<InspectorModel::Row> atBin(const RunStore& run, std::uint64_t step) {
  const double s = static_cast<double>(step);
  const Columns<double> c = seriesColumns(run, {s, s + 1}, 1);
  std::vector<InspectorModel::Row> rows;
  for (std::size_t i = 0; i < run::kStepSeries; ++i) {
    const double mean = c.mean(0, i);
    const bool time = i == 0;
    const auto text = [time](double v) { return qs(time ? timeText(v) : shortNumber(v)); };
    rows.push_back({qs(run::kStepSeriesNames[i]),
                    QObject::tr("mean %1, largest %2").arg(text(mean), text(c.max[i])),
                    {}});
  }
  return rows;
}

std::vector<InspectorModel::Row> atStep(const RunStore& run, std::uint64_t step,
                                        std::uint32_t expert, std::uint32_t layer,
                                        std::uint32_t gpu) {
  const run::StepScalars& s = run.data().steps[static_cast<std::size_t>(step)];
  const double duration = static_cast<double>(s.end_ps - s.start_ps);
  std::vector<InspectorModel::Row> rows;
  const auto add = [&](const QString& name, const QString& value, const QString& tip = {},
                       const QString& target = {}) {
    rows.push_back({name, value, tip, target});
  };
  add(QObject::tr("step"), count(step) + (s.warmup ? QObject::tr(" (warm-up)") : QString()));
  add(QObject::tr("kind"), qs(run::kStepKindNames[static_cast<std::size_t>(s.kind)]));
  add(QObject::tr("starts at"), qs(timeText(static_cast<double>(s.start_ps))),
      QObject::tr("Simulated time"));
  add(QObject::tr("step time"), qs(timeText(duration)), {}, QStringLiteral("pane:steptime"));
  add(QObject::tr("tokens"), count(s.tokens));
  add(QObject::tr("assignments"), count(s.assignments),
      QObject::tr("Token-expert pairs, all layers = kept + rerouted + queued + dropped"));
  const QString capacity = QStringLiteral("dock:capacity");
  add(QObject::tr("over capacity"), withShare(s.overflow, s.assignments),
      QObject::tr("First choices that found the expert full"), capacity);
  add(QObject::tr("rerouted"), withShare(s.rerouted, s.assignments), {},
      QStringLiteral("dock:reroutes"));
  add(QObject::tr("queued"), withShare(s.queued, s.assignments), {}, capacity);
  add(QObject::tr("dropped"), withShare(s.dropped, s.assignments), {}, capacity);
  add(QObject::tr("imbalance (max/mean)"), qs(shortNumber(s.imbalance)),
      QObject::tr(kImbalanceTip) + QObject::tr("; mean over layers"),
      QStringLiteral("pane:imbalance"));
  add(QObject::tr("  largest layer"), qs(shortNumber(s.imbalance_max)), QObject::tr(kImbalanceTip));
  if (run.links() > 0) {
    std::size_t busiest = 0;
    for (std::size_t k = 1; k < run.links(); ++k) {
      if (run.linkUse(step, k) > run.linkUse(step, busiest)) busiest = k;
    }
    const QString name = qs(run.data().inventory.links[busiest].name);
    add(QObject::tr("busiest link"), name, QObject::tr("Largest share of capacity in this step"),
        QStringLiteral("link:%1").arg(busiest));
    add(QObject::tr("  use"), qs(percentText(run.linkUse(step, busiest))));
  }
  add(QObject::tr("straggler"),
      s.straggler_gpu == run::kNone
          ? none()
          : QStringLiteral("%1 (%2)").arg(
                gpuName(s.straggler_gpu),
                qs(run::kStragglerReasonNames[static_cast<std::size_t>(s.straggler_reason)])),
      QObject::tr("The GPU that others waited for longest, and why"),
      s.straggler_gpu == run::kNone ? QString() : QStringLiteral("gpu:%1").arg(s.straggler_gpu));
  add(QObject::tr("longest queue"), count(s.longest_queue),
      QObject::tr("Most assignments beyond capacity at one expert"));
  add(QObject::tr("gate entropy"),
      s.gate_entropy == s.gate_entropy ? qs(shortNumber(s.gate_entropy)) + QObject::tr(" bit")
                                       : QObject::tr("n/a"),
      {}, QStringLiteral("pane:entropy"));
  add(QObject::tr("sent"), qs(bytesText(static_cast<double>(s.bytes_sent))), {},
      QStringLiteral("pane:links"));
  add(QObject::tr("HBM traffic"), qs(bytesText(static_cast<double>(s.hbm_bytes))));
  // What was chosen stands directly below the step's own rows, where a click shows at once.
  constexpr std::ptrdiff_t kOwn = 4;
  const auto ofAll = static_cast<std::ptrdiff_t>(rows.size());
  if (expert != run::kNone && expert < run.experts()) {
    const ExpertRow r = run.expertRow(layer, step);
    const QString name = qs(expertName(expert, run.experts()));
    add(name, QObject::tr("%1 tokens").arg(count(r.kept[expert])), {},
        QStringLiteral("expert:%1").arg(expert));
    add(name + QObject::tr(" capacity"), r.capacity[expert] == run::kUnlimited
                                             ? QObject::tr("no limit")
                                             : count(r.capacity[expert]));
    add(name + QObject::tr(" overflow"), count(r.overflow[expert]));
    const std::vector<std::uint32_t> places = placesOf(run.data().inventory, layer, expert);
    if (places.size() > 1) {
      add(name + QObject::tr(" stands on"), QObject::tr("GPU %1").arg(placesText(places)),
          QObject::tr("The first replica first; the numbers are of all copies together"));
    }
  }
  if (gpu != run::kNone && gpu < run.gpus()) {
    // The chosen lane: what its GPU did in this step, and its memory.
    const std::int64_t* phases = run.gpuPhases(step) + gpu * run::kPhases;
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      if (phases[p] == 0) continue;
      add(QStringLiteral("%1 %2").arg(gpuName(gpu), qs(run::kPhaseNames[p])),
          QStringLiteral("%1 (%2)").arg(
              qs(timeText(static_cast<double>(phases[p]))),
              qs(percentText(duration > 0 ? static_cast<double>(phases[p]) / duration : 0))),
          {}, QStringLiteral("gpu:%1").arg(gpu));
    }
    add(gpuName(gpu) + QObject::tr(" memory"),
        qs(bytesText(static_cast<double>(run.gpuMemoryPeak(step)[gpu]))),
        QObject::tr("High water in this step"), QStringLiteral("pane:memory"));
  }
  std::rotate(rows.begin() + kOwn, rows.begin() + ofAll, rows.end());
  return rows;
}

}  // namespace

std::vector<InspectorModel::Row> InspectorModel::rows(QString& heading) const {
  const RunStore* run = m_state->run();
  if (run == nullptr) {
    heading = tr("no run open");
    return {};
  }
  try {
    if (const auto range = m_state->selection(); range && run->hasSteps()) {
      heading = tr("Steps %1–%2").arg(count(range->first), count(range->end - 1));
      return rowsOverRange(*run, *range, m_state->expert(), m_state->layer(), m_state->gpu());
    }
    if (const auto step = m_state->cursor()) {
      if (run->hasSteps()) {
        heading = tr("At cursor");
        return atStep(*run, *step, m_state->expert(), m_state->layer(), m_state->gpu());
      }
      const std::uint64_t first = *step / run::kLodFactor * run::kLodFactor;
      heading = tr("Steps %1–%2")
                    .arg(count(first), count(std::min(first + run::kLodFactor, run->steps()) - 1));
      return atBin(*run, *step);
    }
    heading = tr("Whole run");
    return wholeRun(*run);
  } catch (const InputError& e) {
    heading = tr("cannot be read");
    return {{tr("reason"), QString::fromUtf8(e.what()), {}}};
  }
}

int InspectorModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(m_rows.size());
}
int InspectorModel::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : 2;
}

QVariant InspectorModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid() || index.row() >= rowCount()) return {};
  const Row& r = m_rows[static_cast<std::size_t>(index.row())];
  if (role == Qt::TextAlignmentRole) return index.column() == 0 ? kLeft : kRight;
  if (role == kTargetRole) return r.target;
  if (role == Qt::FontRole && index.column() == 1 && !r.target.isEmpty()) {
    QFont font;
    font.setUnderline(true);
    return font;
  }
  if (role == Qt::ToolTipRole) {
    QString text = index.column() == 0 ? r.name.trimmed() : r.value;
    if (index.column() == 1 && !r.target.isEmpty()) text += tr("\nClick: show where it comes from");
    return r.tip.isEmpty() ? text : text + '\n' + r.tip;
  }
  if (role != Qt::DisplayRole && role != kSortRole) return {};
  return index.column() == 0 ? r.name : r.value;
}

QVariant InspectorModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  if (role == Qt::TextAlignmentRole) return section == 0 ? kLeft : kRight;
  if (role == Qt::DisplayRole) return section == 0 ? m_heading : tr("value");
  return {};
}

// ---- comparison --------------------------------------------------------------------------------

CompareModel::CompareModel(ViewState* state, QObject* parent)
    : QAbstractTableModel(parent), m_state(state) {
  connect(state, &ViewState::runChanged, this, &CompareModel::refresh);
  connect(state, &ViewState::otherChanged, this, &CompareModel::refresh);
  refresh();
}

void CompareModel::refresh() {
  const RunStore* a = m_state->run();
  const RunStore* b = m_state->other();
  Table table;
  if (a != nullptr && b != nullptr) {
    table = m_perToken ? run::diff_runs(perToken(a->data()), perToken(b->data()))
                       : run::diff_runs(a->data(), b->data());
  }
  // What the seeds make of each metric.
  std::vector<Seeds> seeds(table.rows.size());
  if (!table.rows.empty() && m_seedsA.size() + m_seedsB.size() > 2) {
    std::vector<run::RunData> scaled;  // reserved: pointers into it are kept
    scaled.reserve(m_seedsA.size() + m_seedsB.size());
    const auto side = [&](const std::vector<std::shared_ptr<const RunStore>>& runs) {
      std::vector<const run::RunData*> out;
      for (const auto& r : runs) {
        if (m_perToken) scaled.push_back(perToken(r->data()));
        out.push_back(m_perToken ? &scaled.back() : &r->data());
      }
      return out;
    };
    const auto ofA = side(m_seedsA);
    const auto ofB = side(m_seedsB);
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      if (table.rows[i][kKind] != "metric") continue;
      const run::Spread x = run::spread_of(ofA, table.rows[i][kName]);
      const run::Spread y = run::spread_of(ofB, table.rows[i][kName]);
      if (x.runs + y.runs < 3) continue;
      seeds[i].noise = run::within_noise(x, y);
      const auto text = [&](const run::Spread& s) {
        if (s.runs == 0) return tr("n/a");
        return tr("%1 … %2 (seeds: %3)")
            .arg(qs(run::format_value(s.least)), qs(run::format_value(s.most)))
            .arg(s.runs);
      };
      seeds[i].ranges = tr("A: %1, B: %2").arg(text(x), text(y));
    }
  }
  beginResetModel();
  m_table = std::move(table);
  m_rowSeeds = std::move(seeds);
  endResetModel();
}

void CompareModel::setSeeds(std::vector<std::shared_ptr<const RunStore>> a,
                            std::vector<std::shared_ptr<const RunStore>> b) {
  if (a == m_seedsA && b == m_seedsB) return;
  m_seedsA = std::move(a);
  m_seedsB = std::move(b);
  refresh();
}

bool CompareModel::noise(int row) const {
  return row >= 0 && row < rowCount() && m_rowSeeds[static_cast<std::size_t>(row)].noise;
}

void CompareModel::setPerToken(bool on) {
  if (on == m_perToken) return;
  m_perToken = on;
  refresh();
}

int CompareModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(m_table.rows.size());
}
int CompareModel::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : kColumns;
}

double changeSize(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b) || a == b) return 0;
  if (a == 0 || b == 0 || (a < 0) != (b < 0)) return 1;
  return std::min(1.0, std::abs(std::log2(b / a)));
}

QString changeWords(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return {};
  if (a == b) return CompareModel::tr("= equal");
  const bool more = b > a;
  const QString sign = more ? QStringLiteral("▲ ") : QStringLiteral("▼ ");
  if (a == 0 || (a < 0) != (b < 0)) {
    return sign + (more ? CompareModel::tr("more") : CompareModel::tr("less"));
  }
  if (std::abs(b / a) >= 3) {
    const QString times = QString::number(std::abs(b / a), 'g', 3);
    return sign +
           (more ? CompareModel::tr("more: × %1") : CompareModel::tr("less: × %1")).arg(times);
  }
  const double percent = std::abs(b - a) / std::abs(a) * 100;
  const QString size =
      percent < 0.1 ? QStringLiteral("< 0.1")
                    : QString::number(percent, percent < 10 ? 'g' : 'f', percent < 10 ? 2 : 0);
  return sign + (more ? CompareModel::tr("%1 % more") : CompareModel::tr("%1 % less")).arg(size);
}

QVariant CompareModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid() || index.row() >= rowCount()) return {};
  const std::vector<std::string>& row = m_table.rows[static_cast<std::size_t>(index.row())];
  const int c = index.column();
  const auto value = [&](Column column) {
    bool ok = false;
    const double v = qs(row[column]).toDouble(&ok);
    return ok && row[kKind] == "metric" ? v : run::kNoData;
  };
  if (c == kChange) {
    const double a = value(kA);
    const double b = value(kB);
    if (role == Qt::DisplayRole) return changeWords(a, b);
    if (role == kSortRole) {
      const double size = changeSize(a, b);
      return std::isfinite(a) && std::isfinite(b) ? (b < a ? -size : size) : kBottom;
    }
    if (role == Qt::TextAlignmentRole) return kLeft;
    if (role == Qt::ForegroundRole && row[kKind] == "metric") {
      const Theme& theme = m_state->theme();
      if (noise(index.row())) return theme.muted;
      const QColor& full = row[kBetter] == "B"   ? theme.series[2]
                           : row[kBetter] == "A" ? theme.accent
                                                 : theme.text;
      const double t = changeSize(a, b);
      const auto mix = [t](int from, int to) { return qRound(from + (to - from) * t); };
      return QColor(mix(theme.muted.red(), full.red()), mix(theme.muted.green(), full.green()),
                    mix(theme.muted.blue(), full.blue()));
    }
    if (role != kIdRole && role != Qt::ToolTipRole) return {};
  }
  const QString text = c < kChange ? qs(row[static_cast<std::size_t>(c)]) : QString();
  const bool number = c >= kA && c <= kRatio && row[kKind] == "metric";
  switch (role) {
    case Qt::DisplayRole:
      return text;
    case kSortRole: {
      if (!number) return text;
      bool ok = false;
      const double v = text.toDouble(&ok);
      return ok ? v : kBottom;
    }
    case kIdRole:
      return index.row();
    case Qt::TextAlignmentRole:
      return number ? kRight : c == kBetter ? static_cast<int>(Qt::AlignCenter) : kLeft;
    case Qt::ToolTipRole: {
      const run::MetricDefinition* d = run::find_metric(row[kName]);
      QString tip = d != nullptr ? qs(d->definition) : text;
      const Seeds& s = m_rowSeeds[static_cast<std::size_t>(index.row())];
      if (!s.ranges.isEmpty()) tip += QLatin1Char('\n') + s.ranges;
      if (s.noise) tip += tr("\nThe ranges touch: the seeds alone explain the difference.");
      return tip;
    }
    case Qt::ForegroundRole:
      // Equal results, and those that other seeds would turn round, stand back; the better side's
      // value is marked in its own column.
      if (row[kKind] != "metric") return {};
      if (row[kBetter] == "same" || noise(index.row())) return m_state->theme().muted;
      if ((c == kA && row[kBetter] == "A") || (c == kB && row[kBetter] == "B")) {
        return m_state->theme().series[2];
      }
      return {};
    default:
      return {};
  }
}

QVariant CompareModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  if (role == Qt::TextAlignmentRole) {
    return section >= kA && section <= kRatio ? kRight
           : section == kBetter               ? static_cast<int>(Qt::AlignCenter)
                                              : kLeft;
  }
  static const std::array<const char*, kColumns> names = {
      QT_TR_NOOP("kind"), QT_TR_NOOP("name"),   QT_TR_NOOP("unit"),
      QT_TR_NOOP("A"),    QT_TR_NOOP("B"),      QT_TR_NOOP("B-A"),
      QT_TR_NOOP("B/A"),  QT_TR_NOOP("better"), QT_TR_NOOP("B is")};
  static const std::array<const char*, kColumns> tips = {
      QT_TR_NOOP("input: what was put in differently; metric: what came out"),
      QT_TR_NOOP("Key of the scenario, or the metric"),
      QT_TR_NOOP("Unit of the metric"),
      QT_TR_NOOP("The run in the panes"),
      QT_TR_NOOP("The run drawn dashed over it"),
      QT_TR_NOOP("Difference"),
      QT_TR_NOOP("Ratio"),
      QT_TR_NOOP("Which run is better; - where neither direction is"),
      QT_TR_NOOP(
          "Less or more than A, of A; the stronger the colour, the larger the change: grey is "
          "equal or noise, full is half or double; teal is better, orange is worse")};
  if (role == kSparkRole) return section == kChange;
  const auto i = static_cast<std::size_t>(section);
  if (role == Qt::DisplayRole && i < names.size()) return tr(names[i]);
  if (role == Qt::ToolTipRole && i < tips.size()) return tr(tips[i]);
  return {};
}

// ---- text of tables ----------------------------------------------------------------------------

QString tableText(const QAbstractItemModel& model, const std::vector<int>& rows, TableText format) {
  const auto cell = [&](QString text) {
    switch (format) {
      case TableText::kTsv:
        return text.replace('\t', ' ').replace('\n', ' ');
      case TableText::kCsv:
        if (text.contains(',') || text.contains('"') || text.contains('\n')) {
          text = '"' + text.replace('"', QStringLiteral("\"\"")) + '"';
        }
        return text;
      case TableText::kMarkdown:
        return text.replace('|', QStringLiteral("\\|")).replace('\n', ' ');
    }
    return text;
  };
  const auto join = [&](const QStringList& cells) {
    switch (format) {
      case TableText::kTsv:
        return cells.join('\t') + '\n';
      case TableText::kCsv:
        return cells.join(',') + '\n';
      case TableText::kMarkdown:
        break;
    }
    return QStringLiteral("| ") + cells.join(QStringLiteral(" | ")) + QStringLiteral(" |\n");
  };
  QStringList line;
  QStringList rule;
  std::vector<int> columns;  // without pictures
  for (int c = 0; c < model.columnCount(); ++c) {
    if (!model.headerData(c, Qt::Horizontal, kSparkRole).toBool()) columns.push_back(c);
  }
  for (const int c : columns) {
    line << cell(model.headerData(c, Qt::Horizontal, Qt::DisplayRole).toString());
    const int align = model.headerData(c, Qt::Horizontal, Qt::TextAlignmentRole).toInt();
    rule << (align & Qt::AlignRight ? QStringLiteral("---:") : QStringLiteral("---"));
  }
  QString text = join(line);
  if (format == TableText::kMarkdown) text += join(rule);
  for (const int r : rows) {
    line.clear();
    for (const int c : columns) {
      line << cell(model.index(r, c).data(Qt::DisplayRole).toString());
    }
    text += join(line);
  }
  return text;
}

}  // namespace switchyard::gui
