// SPDX-License-Identifier: Apache-2.0
#include "gui/topologyview.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QPainterPath>
#include <QToolTip>

#include "engine/base/error.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

double distanceToLine(const QPointF& p, const QPointF& a, const QPointF& b) {
  const QPointF d = b - a;
  const double length2 = QPointF::dotProduct(d, d);
  const double t =
      length2 > 0 ? std::clamp(QPointF::dotProduct(p - a, d) / length2, 0.0, 1.0) : 0.0;
  const QPointF q = p - (a + t * d);
  return std::hypot(q.x(), q.y());
}

qsizetype trailingDigits(const QString& name) {
  qsizetype n = 0;
  while (n < name.size() && name[name.size() - 1 - n].isDigit()) ++n;
  return n;
}

/// "node1/nic3" is a "nic".
QString kindOf(const QString& name) {
  const qsizetype cut =
      std::max({name.lastIndexOf('/'), name.lastIndexOf('.'), name.lastIndexOf(':')});
  QString kind = name.mid(cut + 1);
  kind.chop(trailingDigits(kind));
  return kind.isEmpty() ? name : kind;
}

}  // namespace

TopologyView::TopologyView(ViewState* state, QWidget* parent) : QWidget(parent), m_state(state) {
  setAccessibleName(tr("Topology with link use"));
  setMinimumSize(160, 120);
  connect(state, &ViewState::runChanged, this, &TopologyView::rebuild);
  connect(state, &ViewState::cursorChanged, this, &TopologyView::refresh);
  connect(state, &ViewState::selectionChanged, this, &TopologyView::refresh);
  connect(state, &ViewState::themeChanged, this, qOverload<>(&QWidget::update));
  connect(state, &ViewState::linkChanged, this, qOverload<>(&QWidget::update));
  rebuild();
}

void TopologyView::rebuild() {
  m_nodes.clear();
  m_edges.clear();
  m_rows.clear();
  m_perRow.clear();
  const RunStore* run = m_state->run();
  if (run != nullptr) {
    const run::Inventory& inv = run->data().inventory;
    std::map<std::string, std::size_t> index;
    const auto node = [&](const std::string& name, bool gpu) {
      const auto [it, fresh] = index.emplace(name, m_nodes.size());
      if (fresh) m_nodes.push_back({qs(name), gpu ? 0 : -1, 0, 0, gpu});
      return it->second;
    };
    for (const run::GpuInfo& g : inv.gpus) node(g.name, true);
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> edges;
    for (std::size_t k = 0; k < inv.links.size(); ++k) {
      const std::size_t a = node(inv.links[k].from, false);
      const std::size_t b = node(inv.links[k].to, false);
      const auto key = std::minmax(a, b);
      const auto [it, fresh] = edges.emplace(std::pair(key.first, key.second), m_edges.size());
      if (fresh) m_edges.push_back({key.first, key.second, {}, {}});
      Edge& e = m_edges[it->second];
      (a == e.a ? e.forward : e.backward).push_back(k);
    }
    // Tiers: distance from the nearest GPU. Devices that no GPU reaches stand on top.
    int tiers = 1;
    for (int tier = 0;; ++tier) {
      bool any = false;
      for (const Edge& e : m_edges) {
        for (const auto& [from, to] : {std::pair(e.a, e.b), std::pair(e.b, e.a)}) {
          if (m_nodes[from].tier == tier && m_nodes[to].tier < 0) {
            m_nodes[to].tier = tier + 1;
            any = true;
          }
        }
      }
      if (!any) break;
      tiers = tier + 2;
    }
    for (Node& n : m_nodes) {
      if (n.tier < 0) n.tier = tiers - 1;
    }
    for (int tier = 0; tier < tiers; ++tier) {
      std::map<QString, std::vector<std::size_t>> kinds;
      for (std::size_t i = 0; i < m_nodes.size(); ++i) {
        if (m_nodes[i].tier == tier) kinds[kindOf(m_nodes[i].name)].push_back(i);
      }
      // The kind with the most devices next to the tier below.
      std::vector<std::pair<QString, std::vector<std::size_t>>> rows(kinds.begin(), kinds.end());
      std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
        return a.second.size() > b.second.size();
      });
      for (auto& [kind, row] : rows) {
        for (const std::size_t i : row) {
          // Above the mean of what it joins in the tier below.
          double sum = 0;
          double n = 0;
          for (const Edge& e : m_edges) {
            if (e.a != i && e.b != i) continue;
            const Node& other = m_nodes[e.a == i ? e.b : e.a];
            if (other.tier == tier - 1) sum += other.x, n += 1;
          }
          m_nodes[i].x = n > 0 ? sum / n : 0.5;
          m_nodes[i].row = static_cast<int>(m_rows.size());
        }
        if (tier > 0) {
          std::stable_sort(row.begin(), row.end(), [this](std::size_t a, std::size_t b) {
            return m_nodes[a].x < m_nodes[b].x;
          });
        }
        const auto count = static_cast<double>(row.size());
        // Above what they join where that keeps them apart, else side by side.
        bool apart = tier > 0;
        for (std::size_t i = 1; i < row.size(); ++i) {
          apart = apart && m_nodes[row[i]].x - m_nodes[row[i - 1]].x >= 0.8 / count;
        }
        for (std::size_t i = 0; i < row.size() && !apart; ++i) {
          m_nodes[row[i]].x = (static_cast<double>(i) + 0.5) / count;
        }
        m_rows.push_back(kind);
        m_perRow.push_back(row.size());
      }
    }
  }
  refresh();
}

QString TopologyView::when() const {
  if (const auto range = m_state->selection()) {
    return tr("mean of steps %1–%2").arg(count(range->first), count(range->end - 1));
  }
  if (const auto step = m_state->cursor()) return tr("at step %1").arg(count(*step));
  return tr("mean of the run");
}

void TopologyView::refresh() {
  const RunStore* run = m_state->run();
  m_use.assign(run != nullptr ? run->links() : 0, 0.0);
  if (run != nullptr && run->steps() > 0) {
    TimeWindow w{0, static_cast<double>(run->steps())};
    if (const auto range = m_state->selection()) {
      w = {static_cast<double>(range->first), static_cast<double>(range->end)};
    } else if (const auto step = m_state->cursor()) {
      w = {static_cast<double>(*step), static_cast<double>(*step) + 1};
    }
    try {
      const Columns<float> c = linkColumns(*run, w, 1);
      for (std::size_t k = 0; k < m_use.size(); ++k) m_use[k] = c.mean(0, k);
    } catch (const InputError&) {
      m_use.assign(m_use.size(), 0.0);  // the panes show why
    }
  }
  update();
}

int TopologyView::captionWidth() const {
  int w = 0;
  for (const QString& kind : m_rows) w = std::max(w, fontMetrics().horizontalAdvance(kind));
  return std::min(w, width() / 4) + 10;
}

double TopologyView::spacing(std::size_t row) const {
  return (width() - captionWidth() - 6.0) /
         static_cast<double>(std::max<std::size_t>(1, m_perRow[row]));
}

TopologyView::Numbers TopologyView::numbers() const {
  Numbers n;
  const std::size_t gpus = m_state->run() != nullptr ? m_state->run()->gpus() : 0;
  if (gpus == 0 || m_perRow.empty()) return n;
  const double room = spacing(0);
  const double text = fontMetrics().horizontalAdvance(QString::number(gpus - 1));
  if (text + 6 <= room) return n;
  // Every one in two lines in turn; or one line with every second, fourth, eighth …
  n.lines = text + 6 <= 2 * room ? 2 : 1;
  while (n.lines == 1 && static_cast<double>(n.every) * room < text + 8) n.every *= 2;
  return n;
}

QPointF TopologyView::place(const Node& node) const {
  const double top = fontMetrics().height() + 22;
  const double bottom = height() - 16 - numbers().lines * fontMetrics().height();
  const auto rows = static_cast<double>(m_rows.size());
  const double y = rows > 1 ? bottom - node.row * (bottom - top) / (rows - 1) : (top + bottom) / 2;
  return {captionWidth() + node.x * (width() - captionWidth() - 6), y};
}

QPainterPath TopologyView::pathOf(const Edge& edge) const {
  const QPointF a = place(m_nodes[edge.a]);
  const QPointF b = place(m_nodes[edge.b]);
  QPainterPath path(a);
  if (m_nodes[edge.a].row == m_nodes[edge.b].row) {
    // Between neighbours of a row a line would pass through others: an arc goes above them.
    const double lift = std::min(40.0, std::abs(a.x() - b.x()) * 0.3);
    path.quadTo((a + b) / 2 - QPointF(0, 2 * lift), b);
  } else {
    path.lineTo(b);
  }
  return path;
}

double TopologyView::useOf(const Edge& edge) const {
  double use = 0;
  for (const auto* links : {&edge.forward, &edge.backward}) {
    for (const std::size_t k : *links) use = std::max(use, m_use[k]);
  }
  return use;
}

void TopologyView::paintEvent(QPaintEvent*) {
  QPainter p(this);
  const Theme& theme = m_state->theme();
  m_labels.clear();
  p.fillRect(rect(), theme.base);
  const RunStore* run = m_state->run();
  if (run == nullptr) return;
  const int h = fontMetrics().height();
  const auto text = [&](const QRect& where, int flags, const QString& s, const QColor& color) {
    p.setPen(color);
    p.drawText(where, flags | Qt::TextSingleLine, s);
    m_labels.push_back({fontMetrics().boundingRect(where, flags | Qt::TextSingleLine, s), s});
  };
  text(QRect(6, 2, width() - 12, h), Qt::AlignLeft | Qt::AlignVCenter,
       fontMetrics().elidedText(tr("Link use, %1").arg(when()), Qt::ElideRight, width() - 12),
       theme.muted);
  p.setRenderHint(QPainter::Antialiasing);
  // Idle links are pale, busy ones wide and coloured.
  const auto color = [&](double use) {
    if (use >= 0.9) return theme.saturated;
    if (use >= 0.5) return theme.accent;
    return use >= 0.1 ? theme.series[0] : theme.muted;
  };
  for (const Edge& e : m_edges) {
    const double use = useOf(e);
    const auto holds = [this](const std::vector<std::size_t>& links) {
      return std::find(links.begin(), links.end(), std::size_t{m_state->link()}) != links.end();
    };
    if (holds(e.forward) || holds(e.backward)) {
      QColor halo = theme.highlight;
      halo.setAlpha(110);
      p.setPen(QPen(halo, 9));
      p.setBrush(Qt::NoBrush);
      p.drawPath(pathOf(e));
    }
    p.setPen(QPen(color(use), 1 + 4 * std::min(use, 1.0)));
    p.setBrush(Qt::NoBrush);
    p.drawPath(pathOf(e));
  }
  p.setRenderHint(QPainter::Antialiasing, false);
  for (std::size_t row = 0; row < m_rows.size(); ++row) {
    Node any;
    any.row = static_cast<int>(row);
    const QRect where(4, qRound(place(any).y()) - h / 2, captionWidth() - 6, h);
    text(where, Qt::AlignLeft | Qt::AlignVCenter,
         fontMetrics().elidedText(m_rows[row], Qt::ElideRight, where.width()), theme.muted);
  }
  const Numbers numbering = numbers();
  std::vector<QRect> taken;
  for (std::size_t i = 0; i < m_nodes.size(); ++i) {
    const Node& n = m_nodes[i];
    const double room = spacing(static_cast<std::size_t>(n.row));
    const QString number = n.name.mid(n.name.size() - trailingDigits(n.name));
    // GPUs by the number that all of the window calls them by.
    const QString shown = n.gpu ? QString::number(i) : number.isEmpty() ? n.name : number;
    const int most = std::max(2, static_cast<int>(room) - (room > 12 ? 4 : 1));
    const int w = std::min(fontMetrics().horizontalAdvance(shown) + 10, most);
    const QPointF c = place(n);
    const QRect box(qRound(c.x()) - w / 2, qRound(c.y()) - h / 2 - 2, w, h + 4);
    taken.push_back(box.adjusted(-3, -2, 3, 2));
    p.setPen(n.gpu ? theme.highlight : theme.frame);
    p.setBrush(n.gpu ? theme.highlight : theme.button);
    p.drawRect(box);
    if (n.gpu && numbering.lines > 0) {
      if (i % numbering.every != 0) continue;
      const int line = numbering.lines == 2 ? static_cast<int>(i % 2) : 0;
      const int half = fontMetrics().horizontalAdvance(shown) / 2 + 1;
      const int x = std::clamp(qRound(c.x()), half + 1, width() - half - 1);
      text(QRect(x - half, box.bottom() + 1 + line * h, 2 * half, h), Qt::AlignCenter, shown,
           theme.text);
    } else if (fontMetrics().horizontalAdvance(shown) <= w - 2) {
      text(box, Qt::AlignCenter, shown, n.gpu ? theme.highlightedText : theme.text);
    }
  }
  // Percentages where they find room; the busiest first.
  std::vector<const Edge*> order;
  for (const Edge& e : m_edges) order.push_back(&e);
  std::stable_sort(order.begin(), order.end(),
                   [this](const Edge* a, const Edge* b) { return useOf(*a) > useOf(*b); });
  for (const Label& l : m_labels) taken.push_back(l.rect.adjusted(-8, -3, 8, 3));
  // Between two rows with more lines than labels fit side by side, each number stands once.
  std::map<std::pair<int, int>, std::size_t> lines;
  const auto rowsOf = [this](const Edge& e) {
    return std::minmax({m_nodes[e.a].row, m_nodes[e.b].row});
  };
  for (const Edge& e : m_edges) ++lines[rowsOf(e)];
  const int widest = fontMetrics().horizontalAdvance(QStringLiteral("100 %")) + 8;
  std::set<std::pair<std::pair<int, int>, QString>> said;
  for (const Edge* e : order) {
    // As in the pane of links: a little is not nothing.
    const double share = useOf(*e);
    const QString s = share > 0 && share < 0.0995
                          ? QString::number(share * 100, 'f', 1) + QStringLiteral(" %")
                          : QStringLiteral("%1 %").arg(qRound(share * 100));
    const QPointF a = place(m_nodes[e->a]);
    const QPointF b = place(m_nodes[e->b]);
    if (m_nodes[e->a].row == m_nodes[e->b].row) continue;
    const std::pair<int, int> rows = rowsOf(*e);
    const bool crowded = lines[rows] * static_cast<std::size_t>(widest) >
                         static_cast<std::size_t>(std::max(1, width() - captionWidth()));
    if (crowded && said.contains({rows, s})) continue;
    // A line that passes another row has its number above it, away from that row's lines.
    const bool passes = rows.second - rows.first > 1;
    const std::array<double, 5> places =
        passes ? std::array{0.8, 0.72, 0.62, 0.5, 0.38} : std::array{0.5, 0.38, 0.62, 0.28, 0.72};
    for (const double along : places) {
      const double at = m_nodes[e->a].row < m_nodes[e->b].row ? along : 1 - along;
      const QPointF c = a + (b - a) * at;
      const int w = fontMetrics().horizontalAdvance(s) + 4;
      const QRect box(qRound(c.x()) - w / 2, qRound(c.y()) - h / 2, w, h);
      if (!rect().contains(box) || std::any_of(taken.begin(), taken.end(),
                                               [&](const QRect& r) { return r.intersects(box); })) {
        continue;
      }
      p.fillRect(box, theme.base);
      text(box, Qt::AlignCenter, s, useOf(*e) >= 0.9 ? theme.saturated : theme.text);
      taken.push_back(box.adjusted(-2, -1, 2, 1));
      said.insert({rows, s});
      break;
    }
  }
}

const TopologyView::Edge* TopologyView::edgeAt(const QPoint& position) const {
  const Edge* nearest = nullptr;
  double best = 6;
  for (const Edge& e : m_edges) {
    // A curve is measured by short straight parts of it.
    const QPainterPath path = pathOf(e);
    const int parts = m_nodes[e.a].row == m_nodes[e.b].row ? 16 : 1;
    double d = best;
    for (int i = 0; i < parts; ++i) {
      d = std::min(d, distanceToLine(position, path.pointAtPercent(static_cast<double>(i) / parts),
                                     path.pointAtPercent((i + 1.0) / parts)));
    }
    if (d < best) best = d, nearest = &e;
  }
  return nearest;
}

const TopologyView::Node* TopologyView::nodeAt(const QPoint& position) const {
  const Node* nearest = nullptr;
  double best = 14;
  for (const Node& n : m_nodes) {
    const QPointF d = place(n) - position;
    if (std::abs(d.y()) >= 10 || std::abs(d.x()) >= best) continue;
    best = std::abs(d.x());
    nearest = &n;
  }
  return nearest;
}

QPoint TopologyView::pointOnLink(std::size_t link) const {
  for (const Edge& e : m_edges) {
    for (const auto* links : {&e.forward, &e.backward}) {
      if (std::find(links->begin(), links->end(), link) == links->end()) continue;
      return pathOf(e).pointAtPercent(0.25).toPoint();
    }
  }
  return {};
}

void TopologyView::mousePressEvent(QMouseEvent* event) {
  const RunStore* run = m_state->run();
  if (run == nullptr || event->button() != Qt::LeftButton) return;
  if (const Node* node = nodeAt(event->pos())) {
    // Nodes begin with the GPUs, in the run's order.
    if (node->gpu) m_state->setGpu(static_cast<std::uint32_t>(node - m_nodes.data()));
    return;
  }
  const Edge* edge = edgeAt(event->pos());
  if (edge == nullptr) {
    m_state->setLink(run::kNone);
    return;
  }
  std::size_t busiest = edge->forward.empty() ? edge->backward.front() : edge->forward.front();
  for (const auto* links : {&edge->forward, &edge->backward}) {
    for (const std::size_t k : *links) {
      if (m_use[k] > m_use[busiest]) busiest = k;
    }
  }
  m_state->setLink(static_cast<std::uint32_t>(busiest));
}

QString TopologyView::tip(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr) return {};
  if (const Node* node = nodeAt(position)) {
    return node->gpu ? gpuName(static_cast<std::uint32_t>(node - m_nodes.data())) +
                           QStringLiteral(": ") + node->name
                     : node->name;
  }
  const Edge* nearest = edgeAt(position);
  if (nearest == nullptr) return {};
  QString text;
  for (const auto* links : {&nearest->forward, &nearest->backward}) {
    for (const std::size_t k : *links) {
      const run::LinkInfo& l = run->data().inventory.links[k];
      if (!text.isEmpty()) text += '\n';
      text += tr("%1: %2 → %3, %4, %5")
                  .arg(qs(l.name), qs(l.from), qs(l.to), qs(format_rate(l.bandwidth)),
                       qs(percentText(m_use[k])));
    }
  }
  return text;
}

bool TopologyView::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    auto* help = static_cast<QHelpEvent*>(event);
    const QString text = tip(help->pos());
    if (text.isEmpty()) {
      QToolTip::hideText();
    } else {
      QToolTip::showText(help->globalPos(), text, this);
    }
    return true;
  }
  return QWidget::event(event);
}

}  // namespace switchyard::gui
