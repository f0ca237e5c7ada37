// SPDX-License-Identifier: Apache-2.0
#include "gui/panestack.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <QEvent>
#include <QKeyEvent>
#include <QScrollBar>
#include <QSignalBlocker>
#include <QSplitter>
#include <QVBoxLayout>

#include "engine/base/error.hpp"
#include "gui/stepspanes.hpp"

namespace switchyard::gui {

const QStringList& PaneStack::panelNames() {
  static const QStringList names = {
      QStringLiteral("heatmap"), QStringLiteral("imbalance"), QStringLiteral("steptime"),
      QStringLiteral("latency"), QStringLiteral("links"),     QStringLiteral("timeline"),
      QStringLiteral("memory"),  QStringLiteral("entropy"),   QStringLiteral("metric")};
  return names;
}

const QStringList& PaneStack::hiddenAtFirst() {
  static const QStringList names = {QStringLiteral("latency"), QStringLiteral("memory"),
                                    QStringLiteral("entropy"), QStringLiteral("metric")};
  return names;
}

PaneStack::PaneStack(ViewState* state, const QStringList& panels, QWidget* parent)
    : QWidget(parent), m_state(state) {
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(0);
  if (panels.isEmpty()) {
    auto* map = new MinimapPane(state, this);
    m_panes.push_back(map);
    layout->addWidget(map);
  }
  m_splitter = new QSplitter(Qt::Vertical, this);
  m_splitter->setChildrenCollapsible(false);
  m_splitter->setHandleWidth(3);
  m_splitter->installEventFilter(this);
  m_foldable = panels.isEmpty();
  connect(m_splitter, &QSplitter::splitterMoved, this, [this] {
    for (Slot& s : m_slots) {
      if (!s.pane->isHidden() && !s.pane->folded()) s.dragged = s.pane->height();
    }
  });
  layout->addWidget(m_splitter, 1);
  for (const QString& id : panels.isEmpty() ? panelNames() : panels) {
    TimePane* pane = nullptr;
    int weight = 20;
    if (id == QLatin1String("heatmap")) {
      pane = new HeatPane(state, this);
      weight = 100;
    } else if (id == QLatin1String("imbalance")) {
      pane = new ImbalancePane(state, this);
    } else if (id == QLatin1String("steptime")) {
      pane = new StepTimePane(state, this);
    } else if (id == QLatin1String("links")) {
      pane = new LinkPane(state, this);
      weight = 24;
    } else if (id == QLatin1String("timeline")) {
      pane = new TimelinePane(state, this);
      weight = 46;
    } else if (id == QLatin1String("latency")) {
      pane = new LatencyPane(state, this);
      weight = 30;
    } else if (id == QLatin1String("metric")) {
      pane = new MetricPane(state, this);
    } else if (id == QLatin1String("memory")) {
      pane = new MemoryPane(state, this);
      weight = 30;
    } else if (id == QLatin1String("entropy")) {
      pane = new EntropyPane(state, this);
    }
    SWITCHYARD_ASSERT(pane != nullptr, id.toStdString());
    m_splitter->addWidget(pane);
    m_splitter->setStretchFactor(m_splitter->count() - 1, weight);
    m_slots.push_back({pane, weight});
    pane->setFoldable(m_foldable);
    pane->installEventFilter(this);
    connect(pane, &TimePane::foldWanted, this, [this, id] { toggle(id); });
    m_panes.push_back(pane);
    if (m_foldable && hiddenAtFirst().contains(id)) pane->hide();
  }
  m_axis = new AxisPane(state, this);
  m_panes.push_back(m_axis);
  layout->addWidget(m_axis);
  if (panels.isEmpty()) {
    // In a row of its own, so that it is as wide as the plots.
    m_scrollRow = new QWidget(this);
    auto* row = new QHBoxLayout(m_scrollRow);
    m_scroll = new QScrollBar(Qt::Horizontal, m_scrollRow);
    m_scroll->setAccessibleName(tr("Part of the run on screen"));
    m_scroll->setFocusPolicy(Qt::NoFocus);
    m_scroll->setFixedHeight(12);
    row->addWidget(m_scroll);
    layout->addWidget(m_scrollRow);
    connect(m_scroll, &QScrollBar::valueChanged, this, &PaneStack::scrolledTo);
    for (const auto signal : {&ViewState::runChanged, &ViewState::windowChanged}) {
      connect(state, signal, this, &PaneStack::showWindow);
    }
    showWindow();
  }
  for (TimePane* pane : m_panes) {
    connect(pane, &TimePane::hovered, this, &PaneStack::hovered);
    connect(pane, &TimePane::rangeSelected, this, &PaneStack::rangeSelected);
  }
  // After the panes' own slots: they were connected first, so their labels are up to date.
  connect(state, &ViewState::runChanged, this, &PaneStack::alignGutters);
  connect(state, &ViewState::optionsChanged, this, &PaneStack::alignGutters);
  alignGutters();
}

TimePane* PaneStack::pane(const QString& id) const {
  for (TimePane* p : m_panes) {
    if (p->id() == id) return p;
  }
  return nullptr;
}

void PaneStack::focusFirst() {
  for (TimePane* p : m_panes) {
    if (p->id() != QLatin1String("minimap")) {
      p->setFocus();
      return;
    }
  }
}

PaneStack::Slot* PaneStack::slot(const QString& id) {
  return const_cast<Slot*>(std::as_const(*this).slot(id));
}

const PaneStack::Slot* PaneStack::slot(const QString& id) const {
  const auto it = std::find_if(m_slots.begin(), m_slots.end(),
                               [&](const Slot& s) { return s.pane->id() == id; });
  return it == m_slots.end() ? nullptr : &*it;
}

PaneStack::Fold PaneStack::fold(const QString& id) const {
  const Slot* s = slot(id);
  return s != nullptr ? s->fold : Fold::kAuto;
}

void PaneStack::setFold(const QString& id, Fold fold) {
  Slot* s = slot(id);
  if (s == nullptr || !m_foldable) return;
  // The last open one has nobody to leave its room to.
  const auto open = [&](const Slot& o) {
    return &o != s && !o.pane->isHidden() && !o.pane->folded();
  };
  if (fold == Fold::kFolded && std::none_of(m_slots.begin(), m_slots.end(), open)) return;
  s->fold = fold;
  fit();
}

void PaneStack::setAllFolds(Fold fold) {
  if (!m_foldable) return;
  for (Slot& s : m_slots) {
    const bool heat = s.pane->id() == QLatin1String("heatmap");
    s.fold = heat && fold == Fold::kFolded ? Fold::kAuto : fold;
  }
  fit();
}

void PaneStack::toggle(const QString& id) {
  if (const Slot* s = slot(id)) setFold(id, s->pane->folded() ? Fold::kOpen : Fold::kFolded);
}

bool PaneStack::toggleFocused() {
  for (const Slot& s : m_slots) {
    if (!s.pane->hasFocus()) continue;
    toggle(s.pane->id());
    return true;
  }
  return false;
}

QStringList PaneStack::foldsByHand(Fold fold) const {
  QStringList names;
  for (const Slot& s : m_slots) {
    if (s.fold == fold) names << s.pane->id();
  }
  return names;
}

int PaneStack::leastOf(const Slot& slot) { return std::max(60, slot.pane->openMinimum().height()); }

int PaneStack::goalOf(const Slot& slot) {
  const int least = leastOf(slot);
  if (slot.pane->id() != QLatin1String("heatmap")) return least;
  const int goal = std::max(least, slot.pane->heightFor(kHeatPlot));
  return slot.dragged > 0 ? std::clamp(slot.dragged, least, goal) : goal;
}

void PaneStack::fit() {
  if (m_fitting) return;
  m_fitting = true;
  int shown = 0;
  int least = 0;
  for (const Slot& s : m_slots) {
    if (s.pane->isHidden()) continue;
    ++shown;
    least += m_foldable && s.pane->id() != QLatin1String("heatmap") ? s.pane->foldedHeight()
                                                                    : leastOf(s);
  }
  const int handles = std::max(0, shown - 1) * m_splitter->handleWidth();
  // Not what is open now: a lower window folds more.
  m_splitter->setMinimumHeight(least + handles);
  const int room = m_splitter->height() - handles;
  const std::vector<bool> folded =
      m_foldable ? chooseFolds(room) : std::vector<bool>(m_slots.size(), false);
  for (std::size_t i = 0; i < m_slots.size(); ++i) {
    const Slot& s = m_slots[i];
    s.pane->setFolded(folded[i]);
    if (folded[i]) {
      s.pane->setFixedHeight(s.pane->foldedHeight());
    } else {
      s.pane->setMinimumHeight(leastOf(s));
      s.pane->setMaximumHeight(QWIDGETSIZE_MAX);
    }
  }
  shareOut(room);
  m_fitting = false;
}

std::vector<bool> PaneStack::chooseFolds(int room) const {
  // Lines keep their shape in a line's height; the lanes of the GPUs do not. Panes that are hidden
  // at first are there because a person asked for them.
  static const QStringList kOrder = {QStringLiteral("steptime"), QStringLiteral("imbalance"),
                                     QStringLiteral("links"),    QStringLiteral("latency"),
                                     QStringLiteral("timeline"), QStringLiteral("metric"),
                                     QStringLiteral("entropy"),  QStringLiteral("memory")};
  std::vector<bool> folded;
  for (const Slot& s : m_slots) folded.push_back(s.fold == Fold::kFolded);
  const auto wanted = [&](auto&& heightOf) {
    int sum = 0;
    for (std::size_t i = 0; i < m_slots.size(); ++i) {
      const Slot& s = m_slots[i];
      if (!s.pane->isHidden()) sum += folded[i] ? s.pane->foldedHeight() : heightOf(s);
    }
    return sum;
  };
  const auto foldInTurn = [&](auto&& heightOf, bool opened) {
    for (const QString& id : kOrder) {
      if (wanted(heightOf) <= room) return;
      const Slot* s = slot(id);
      if (s == nullptr || (s->fold == Fold::kOpen && !opened)) continue;
      folded[static_cast<std::size_t>(s - m_slots.data())] = true;
    }
  };
  foldInTurn(goalOf, false);
  // Those that a person opened make the heat map smaller, down to its least height.
  foldInTurn(leastOf, true);
  // One is always open, the first that is shown: the heat map.
  std::size_t first = m_slots.size();
  for (std::size_t i = m_slots.size(); i-- > 0;) {
    if (m_slots[i].pane->isHidden()) continue;
    if (!folded[i]) return folded;
    first = i;
  }
  if (first < folded.size()) folded[first] = false;
  return folded;
}

void PaneStack::shareOut(int room) {
  // By weight, or by the heights that a person gave; a pane whose part is below its least (the heat
  // map's goal) gets that, and the others share the rest.
  const bool byHand =
      std::any_of(m_slots.begin(), m_slots.end(), [](const Slot& s) { return s.dragged > 0; });
  const std::size_t n = m_slots.size();
  QList<int> sizes(static_cast<qsizetype>(n), 0);
  std::vector<double> weights(n, 0.0);
  std::vector<int> least(n, 0);
  int rest = room;
  for (std::size_t i = 0; i < n; ++i) {
    const Slot& s = m_slots[i];
    if (s.pane->isHidden()) continue;
    if (s.pane->folded()) {
      sizes[static_cast<qsizetype>(i)] = s.pane->foldedHeight();
      rest -= s.pane->foldedHeight();
      continue;
    }
    least[i] = byHand ? leastOf(s) : goalOf(s);
    weights[i] = !byHand ? s.weight : s.dragged > 0 ? s.dragged : goalOf(s);
  }
  // Eight lanes with a name each, where nobody has to give way for it.
  const auto lanes = std::find_if(m_slots.begin(), m_slots.end(), [](const Slot& s) {
    return s.pane->id() == QLatin1String("timeline");
  });
  const auto at = static_cast<std::size_t>(lanes - m_slots.begin());
  if (at < n && weights[at] > 0 && !byHand) {
    const int named = lanes->pane->heightFor(8 * lanes->pane->fontMetrics().height());
    const int spare = rest - std::accumulate(least.begin(), least.end(), 0);
    if (named > least[at] && spare >= named - least[at]) least[at] = named;
  }
  double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (bool again = true; again;) {
    again = false;
    for (std::size_t i = 0; i < n; ++i) {
      if (!(weights[i] > 0) || rest * weights[i] / all >= least[i]) continue;
      sizes[static_cast<qsizetype>(i)] = least[i];
      rest -= least[i];
      all -= weights[i];
      weights[i] = 0;
      again = true;
    }
  }
  double before = 0;
  for (std::size_t i = 0; i < n && rest > 0; ++i) {
    if (!(weights[i] > 0)) continue;
    const int from = qRound(rest * before / all);
    before += weights[i];
    sizes[static_cast<qsizetype>(i)] = qRound(rest * before / all) - from;
  }
  m_splitter->setSizes(sizes);
}

bool PaneStack::eventFilter(QObject* watched, QEvent* event) {
  const QEvent::Type type = event->type();
  const bool resized = watched == m_splitter && type == QEvent::Resize;
  const bool shown =
      watched != m_splitter &&
      (type == QEvent::ShowToParent || type == QEvent::HideToParent || type == QEvent::FontChange);
  if (resized || shown) fit();
  if (m_foldable && watched != m_splitter && type == QEvent::KeyPress) {
    const auto* key = static_cast<const QKeyEvent*>(event);
    if (key->modifiers() == Qt::NoModifier &&
        (key->key() == Qt::Key_Space || key->key() == Qt::Key_Return)) {
      toggle(watched->objectName());
      return true;
    }
  }
  return QWidget::eventFilter(watched, event);
}

QByteArray PaneStack::sizesState() const {
  QStringList words;
  for (const Slot& s : m_slots) {
    if (s.dragged > 0) words << QStringLiteral("%1=%2").arg(s.pane->id()).arg(s.dragged);
  }
  return words.join(' ').toLatin1();
}

void PaneStack::restoreSizes(const QByteArray& state) {
  for (Slot& s : m_slots) s.dragged = 0;
  for (const QString& word : QString::fromLatin1(state).split(' ', Qt::SkipEmptyParts)) {
    Slot* s = slot(word.section('=', 0, 0));
    bool number = false;
    const int height = word.section('=', 1).toInt(&number);
    if (s != nullptr && number && height > 0 && height < 100000) s->dragged = height;
  }
  fit();
}

void PaneStack::showWindow() {
  if (m_scrolling) return;
  constexpr int kUnits = 1000000;  // of the whole run
  const auto steps = static_cast<double>(m_state->steps());
  const TimeWindow w = m_state->window();
  double first = 0;
  double length = 1;
  if (const TimeScale* times = m_state->timeScale()) {
    const double all = std::max(1.0, times->psOf(steps) - times->psOf(0));
    first = (times->psOf(w.first) - times->psOf(0)) / all;
    length = (times->psOf(w.end) - times->psOf(w.first)) / all;
  } else if (steps > 0) {
    first = w.first / steps;
    length = w.length() / steps;
  }
  const QSignalBlocker quiet(m_scroll);
  const int page = std::clamp(qRound(length * kUnits), 1, kUnits);
  m_scroll->setRange(0, kUnits - page);
  m_scroll->setPageStep(page);
  m_scroll->setSingleStep(std::max(1, page / 10));
  m_scroll->setValue(qRound(first * kUnits));
  m_scroll->setEnabled(page < kUnits);
}

void PaneStack::scrolledTo(int value) {
  const int all = m_scroll->maximum() + m_scroll->pageStep();
  const double first = static_cast<double>(value) / all;
  const auto steps = static_cast<double>(m_state->steps());
  const TimeWindow now = m_state->window();
  TimeWindow w{first * steps, first * steps + now.length()};
  if (const TimeScale* times = m_state->timeScale()) {
    const double start = times->psOf(0) + first * (times->psOf(steps) - times->psOf(0));
    const double length = times->psOf(now.end) - times->psOf(now.first);
    w = {times->stepOf(start), times->stepOf(start + length)};
  }
  m_scrolling = true;  // the bar stays where the mouse holds it
  m_state->setWindow(w, ViewState::Move::kContinuous);
  m_scrolling = false;
}

void PaneStack::alignGutters() {
  int gutter = 0;
  for (const TimePane* p : m_panes) {
    gutter = std::max({gutter, p->gutterNeeded(), p->foldedGutter()});
  }
  for (TimePane* p : m_panes) p->setMargins(gutter, m_axis->halfLabel() + 4);
  if (m_scrollRow != nullptr) {
    m_scrollRow->layout()->setContentsMargins(gutter, 0, m_axis->halfLabel() + 4, 1);
  }
}

void PaneStack::changeEvent(QEvent* event) {
  if (event->type() == QEvent::FontChange) {
    for (TimePane* pane : m_panes) {
      if (slot(pane->id()) == nullptr) pane->setFixedHeight(pane->sizeHint().height());
    }
    fit();
    alignGutters();
  }
  QWidget::changeEvent(event);
}

void PaneStack::showEvent(QShowEvent* event) {
  alignGutters();
  fit();
  QWidget::showEvent(event);
}

}  // namespace switchyard::gui
