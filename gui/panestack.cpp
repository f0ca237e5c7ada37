// SPDX-License-Identifier: Apache-2.0
#include "gui/panestack.hpp"

#include <algorithm>

#include <QEvent>
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
  connect(m_splitter, &QSplitter::splitterMoved, this, [this] { m_sized = true; });
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
    m_weights << weight * 10;
    m_splitter->setStretchFactor(m_splitter->count() - 1, weight);
    pane->setMinimumHeight(std::max(60, pane->minimumSizeHint().height()));
    m_panes.push_back(pane);
    if (panels.isEmpty() && hiddenAtFirst().contains(id)) pane->hide();
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

QByteArray PaneStack::sizesState() const { return m_splitter->saveState(); }

void PaneStack::restoreSizes(const QByteArray& state) {
  if (!state.isEmpty()) {
    m_sized = m_splitter->restoreState(state) || m_sized;
  } else if (m_sized) {
    m_splitter->setSizes(m_weights);
    m_sized = false;
  }
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
  for (const TimePane* p : m_panes) gutter = std::max(gutter, p->gutterNeeded());
  for (TimePane* p : m_panes) p->setMargins(gutter, m_axis->halfLabel() + 4);
  if (m_scrollRow != nullptr) {
    m_scrollRow->layout()->setContentsMargins(gutter, 0, m_axis->halfLabel() + 4, 1);
  }
}

void PaneStack::changeEvent(QEvent* event) {
  if (event->type() == QEvent::FontChange) {
    for (TimePane* pane : m_panes) {
      if (m_splitter->indexOf(pane) >= 0) {
        pane->setMinimumHeight(std::max(60, pane->minimumSizeHint().height()));
      }
    }
    for (TimePane* pane : m_panes) {
      if (m_splitter->indexOf(pane) < 0) pane->setFixedHeight(pane->sizeHint().height());
    }
    alignGutters();
  }
  QWidget::changeEvent(event);
}

void PaneStack::showEvent(QShowEvent* event) {
  alignGutters();
  QWidget::showEvent(event);
}

}  // namespace switchyard::gui
