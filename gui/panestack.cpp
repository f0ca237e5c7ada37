// SPDX-License-Identifier: Apache-2.0
#include "gui/panestack.hpp"

#include <algorithm>

#include <QEvent>
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
    pane->setMinimumHeight(std::max(60, pane->minimumSizeHint().height()));
    m_panes.push_back(pane);
    if (panels.isEmpty() && hiddenAtFirst().contains(id)) pane->hide();
  }
  m_axis = new AxisPane(state, this);
  m_panes.push_back(m_axis);
  layout->addWidget(m_axis);
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

void PaneStack::alignGutters() {
  int gutter = 0;
  for (const TimePane* p : m_panes) gutter = std::max(gutter, p->gutterNeeded());
  for (TimePane* p : m_panes) p->setMargins(gutter, m_axis->halfLabel() + 4);
}

void PaneStack::changeEvent(QEvent* event) {
  if (event->type() == QEvent::FontChange) alignGutters();
  QWidget::changeEvent(event);
}

void PaneStack::showEvent(QShowEvent* event) {
  alignGutters();
  QWidget::showEvent(event);
}

}  // namespace switchyard::gui
