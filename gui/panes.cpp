// SPDX-License-Identifier: Apache-2.0
#include "gui/panes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <QFontMetrics>
#include <QImage>
#include <QMouseEvent>
#include <QPaintEngine>
#include <QPainter>
#include <QPainterPath>

#include "engine/base/error.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

/// The step alone, as a window.
TimeWindow oneStep(std::uint64_t step) {
  return {static_cast<double>(step), static_cast<double>(step) + 1};
}

QString stepText(const RunStore& run, std::uint64_t step) {
  if (run.hasSteps()) return QStringLiteral("step %1").arg(count(step));
  const std::uint64_t first = step / run::kLodFactor * run::kLodFactor;
  const std::uint64_t last = std::min(first + run::kLodFactor, run.steps()) - 1;
  return QStringLiteral("steps %1–%2, largest").arg(count(first), count(last));
}

/// For lines of GPUs with copies that have no room.
QString moreCopies(std::size_t gpus) { return QObject::tr("%1 more GPUs: copies").arg(gpus); }

/// "GPU 0, GPU 3": where the expert stands, of many the first ones.
QString gpuList(const std::vector<std::uint32_t>& places) {
  constexpr std::size_t kMost = 4;
  QStringList names;
  for (std::size_t i = 0; i < std::min(kMost, places.size()); ++i) names << gpuName(places[i]);
  if (places.size() > kMost) names << QObject::tr("%1 more").arg(places.size() - kMost);
  return names.join(QStringLiteral(", "));
}

/// "e3", "e0–3", "6 experts" of ascending numbers.
QString expertsText(const std::vector<std::uint32_t>& which, std::uint32_t experts) {
  if (which.empty()) return {};
  const QString first = qs(expertName(which.front(), experts));
  if (which.size() == 1) return first;
  if (which.back() - which.front() + 1 == which.size()) {
    return first + QStringLiteral("–") + qs(expertName(which.back(), experts)).mid(1);
  }
  return QObject::tr("%1 experts").arg(which.size());
}

/// There is more inside these pixel columns than is drawn: a zigzag from `left`, four pixels high.
void drawZigzag(QPainter& painter, const std::vector<std::uint8_t>& more, int left, int top,
                const QColor& color) {
  constexpr int kLeast = 6;  // a shorter one is a dot
  const auto n = static_cast<int>(more.size());
  painter.setPen(color);
  for (int x = 0; x < n; ++x) {
    if (!more[static_cast<std::size_t>(x)]) continue;
    int end = x + 1;
    // Gaps of a few pixels are no gaps.
    for (int i = end; i < n && i < end + kLeast; ++i) {
      if (more[static_cast<std::size_t>(i)]) end = i + 1;
    }
    const int from = std::max(0, std::min(x - std::max(0, kLeast - (end - x)) / 2, n - kLeast));
    const int to = std::min(n, std::max(end, from + kLeast));
    QPolygon line;
    for (int i = from; i < to; i += 3) line << QPoint(left + i, top + ((i - from) / 3 % 2) * 3);
    painter.drawPolyline(line);
    x = end;
  }
}

void fillRun(QRgb* line, int from, int to, QRgb color) {
  for (int i = from; i < to; ++i) line[i] = color;
}

}  // namespace

// ---- heat map ----------------------------------------------------------------------------------

HeatPane::HeatPane(ViewState* state, QWidget* parent)
    : TimePane(state, QStringLiteral("heatmap"), parent) {
  setAccessibleName(tr("Expert load: expert by step"));
  connect(state, &ViewState::optionsChanged, this, [this] {
    refresh();
    invalidate();
  });
  connect(state, &ViewState::runChanged, this, [this] {
    m_rowFirst = m_rowEnd = 0;
    refresh();
  });
  connect(state, &ViewState::expertChanged, this, qOverload<>(&QWidget::update));
  refresh();
}

void HeatPane::refresh() {
  m_order.clear();
  m_groups.clear();
  m_copies.clear();
  m_mixed = false;
  const RunStore* run = m_state->run();
  if (run == nullptr) return;
  m_order = rowsByGpu(*run, m_state->layer());
  m_lost = lostGpus(*run);
  m_movedSince = movedSince(*run);
  findCopies();
  m_top = m_overTop = 1;
  try {
    m_top = heatTop(*run, m_state->layer(), m_state->scale());
    if (m_state->scale() == Scale::kCapacity) m_overTop = overTop(*run, m_state->layer());
  } catch (const InputError&) {
    // The file was cut since it was opened: the pane draws why, and nobody else goes without what
    // this slot would have told them.
  }
  const RowOrder order = m_state->rowOrder();
  // A row by number or by load is an expert, wherever it stands.
  if (order != RowOrder::kGpu) std::erase_if(m_order, [](const HeatRow& r) { return r.copy; });
  if (order == RowOrder::kId) {
    std::sort(m_order.begin(), m_order.end(),
              [](const HeatRow& a, const HeatRow& b) { return a.expert < b.expert; });
  } else if (order == RowOrder::kLoad) {
    std::vector<std::uint64_t> load(run->experts(), 0);
    const auto& kept = run->data().totals.expert_kept;
    for (std::size_t l = 0; l < run->data().inventory.moe_layers.size(); ++l) {
      if (m_state->layer() != kAllLayers && l != m_state->layer()) continue;
      for (std::size_t e = 0; e < load.size(); ++e) load[e] += kept[l * load.size() + e];
    }
    std::sort(m_order.begin(), m_order.end(), [&](const HeatRow& a, const HeatRow& b) {
      return load[a.expert] != load[b.expert] ? load[a.expert] > load[b.expert]
                                              : a.expert < b.expert;
    });
  }
  m_allRows = m_order.size();
  std::size_t skipped = 0;
  if (m_rowEnd > 0) {
    const auto all = static_cast<double>(m_order.size());
    skipped = static_cast<std::size_t>(std::floor(m_rowFirst * all + 1e-6));
    const auto end =
        std::min(m_order.size(), static_cast<std::size_t>(std::ceil(m_rowEnd * all - 1e-6)));
    m_order = {m_order.begin() + static_cast<std::ptrdiff_t>(skipped),
               m_order.begin() + static_cast<std::ptrdiff_t>(std::max(end, skipped))};
  }
  const std::size_t chunk = std::max<std::size_t>(1, (m_order.size() + 7) / 8);
  for (std::size_t i = 0; i < m_order.size();) {
    Group g;
    g.first = i;
    if (order == RowOrder::kGpu) {
      g.gpu = m_order[i].gpu;
      while (i < m_order.size() && m_order[i].gpu == g.gpu) ++i;
    } else {
      i = std::min(i + chunk, m_order.size());
    }
    g.end = i;
    if (order == RowOrder::kLoad) {
      g.text = g.end - g.first == 1
                   ? tr("rank %1").arg(skipped + g.end)
                   : tr("rank %1–%2").arg(skipped + g.first + 1).arg(skipped + g.end);
      m_groups.push_back(g);
      continue;
    }
    std::vector<std::uint32_t> members;
    std::vector<std::uint32_t> copies;
    for (std::size_t r = g.first; r < g.end; ++r) {
      (m_order[r].copy ? copies : members).push_back(m_order[r].expert);
    }
    const QString which = expertsText(members, run->experts());
    g.text =
        order == RowOrder::kGpu ? groupName(g.gpu, members) + QStringLiteral("  ") + which : which;
    if (copies.size() == 1) {
      g.text += QStringLiteral(" +") + expertsText(copies, run->experts());
    } else if (!copies.empty()) {
      g.text += QStringLiteral(" +%1").arg(copies.size());
    }
    m_groups.push_back(g);
  }
}

QString HeatPane::groupName(std::uint32_t gpu, const std::vector<std::uint32_t>& experts) {
  const RunStore& run = *m_state->run();
  constexpr std::size_t kMost = 3;
  const auto named = [&](const std::vector<std::uint32_t>& places) {
    QString text = gpuName(gpu);
    for (std::size_t i = 1; i < std::min(kMost, places.size()); ++i) {
      text += QStringLiteral(", %1").arg(places[i]);
    }
    return places.size() > kMost ? text + QStringLiteral(" …") : text;
  };
  if (gpu < m_replicas.size() && !m_replicas[gpu].empty()) {
    std::vector<std::uint32_t> places = {gpu};
    places.insert(places.end(), m_replicas[gpu].begin(), m_replicas[gpu].end());
    return named(places);
  }
  if (m_state->layer() != kAllLayers || !run.placementVaries() || experts.empty()) {
    return gpuName(gpu);
  }
  // With stages the layers of the others stand on GPUs of their own, the same for all experts of a
  // GPU. What a placement per layer mixes up is named by the first layer.
  const std::vector<std::uint32_t> places = firstPlaces(run.data().inventory, experts.front());
  for (const std::uint32_t e : experts) {
    if (firstPlaces(run.data().inventory, e) == places) continue;
    m_mixed = true;
    return gpuName(gpu);
  }
  return named(places);
}

void HeatPane::findCopies() {
  m_copies.clear();
  m_replicas.clear();
  const RunStore* run = m_state->run();
  const run::Inventory& inv = run->data().inventory;
  const std::size_t layer = m_state->layer() == kAllLayers ? 0 : m_state->layer();
  if (m_state->rowOrder() != RowOrder::kGpu || inv.replicas < 2 || layer >= inv.moe_layers.size()) {
    return;
  }
  // Per GPU the experts whose first copy stands elsewhere.
  std::vector<std::vector<std::uint32_t>> copies(run->gpus());
  std::vector<std::uint8_t> first(run->gpus(), 0);
  for (std::uint32_t e = 0; e < inv.experts; ++e) {
    const std::uint32_t* places = inv.placement.data() + (layer * inv.experts + e) * inv.replicas;
    if (places[0] < first.size()) first[places[0]] = 1;
    for (std::uint32_t r = 1; r < inv.replicas; ++r) {
      if (places[r] < copies.size() && places[r] != places[0]) copies[places[r]].push_back(e);
    }
  }
  // One that holds what a GPU of the first replica does has its steps in that one's rows.
  std::vector<std::vector<std::uint32_t>> members(run->gpus());
  for (std::uint32_t e = 0; e < inv.experts; ++e) {
    const std::uint32_t at = inv.placement[(layer * inv.experts + e) * inv.replicas];
    if (at < members.size()) members[at].push_back(e);
  }
  m_replicas.resize(run->gpus());
  for (std::uint32_t g = 0; g < copies.size(); ++g) {
    if (first[g] || copies[g].empty() || enginesOf(inv) < 2) continue;
    for (std::size_t of = 0; of < members.size(); ++of) {
      if (members[of] != copies[g] || inv.gpus[of].engine == inv.gpus[g].engine) continue;
      m_replicas[of].push_back(g);
      copies[g].clear();
      break;
    }
  }
  // A replica that steps by itself has steps of its own in the rows of the first one.
  const auto why = [&](std::size_t gpu) {
    const std::uint32_t engine = inv.gpus[gpu].engine;
    return enginesOf(inv) > 1 && engine > 0
               ? tr("replica %1: its steps are in the rows above").arg(engine)
               : tr("no load per copy in this run: counted above");
  };
  for (std::size_t g = 0; g < copies.size(); ++g) {
    if (first[g] || copies[g].empty()) continue;
    m_copies.push_back({gpuName(static_cast<std::uint32_t>(g)) + QStringLiteral("  ") +
                            tr("copies of %1").arg(expertsText(copies[g], inv.experts)),
                        why(g)});
  }
  constexpr std::size_t kMostLines = 8;
  if (m_copies.size() > kMostLines) {
    const QString some = tr("%1 GPUs  copies only").arg(m_copies.size());
    m_copies = {{some, tr("no load per copy in this run: counted above")}};
  }
}

QStringList HeatPane::copyNames() const {
  QStringList names;
  for (const CopyLine& c : m_copies) names << c.name;
  return names;
}

int HeatPane::copyLines(const QRect& plot) const {
  // The rows keep most of the pane.
  const int most = folded() ? 0 : plot.height() * 2 / 5 / lineHeight();
  return std::min(most, static_cast<int>(m_copies.size()));
}

QRect HeatPane::rowsOf(const QRect& plot) const {
  return plot.adjusted(0, 0, 0, -copyLines(plot) * lineHeight());
}

void HeatPane::drawCopies(QPainter& painter, const QRect& plot) {
  const Theme& theme = m_state->theme();
  const int lines = copyLines(plot);
  if (lines == 0) return;
  const QRect below(plot.left(), rowsOf(plot).bottom() + 1, plot.width(), lines * lineHeight());
  painter.fillRect(below, theme.alternate);
  for (int i = 0; i < lines; ++i) {
    const QRect line(below.left(), below.top() + i * lineHeight(), below.width(), lineHeight());
    painter.setPen(theme.frame);
    painter.drawLine(plot.left() - 12, line.top(), plot.right(), line.top());
    const auto at = static_cast<std::size_t>(i);
    // The last line that has room speaks for those that have none.
    const bool more = i + 1 == lines && m_copies.size() > at + 1;
    const QString name = more ? moreCopies(m_copies.size() - at) : m_copies[at].name;
    label(painter, QRect(4, line.top(), gutter() - 4 - 14, lineHeight()),
          Qt::AlignLeft | Qt::AlignVCenter,
          fontMetrics().elidedText(name, Qt::ElideRight, gutter() - 4 - 14), theme.text);
    label(painter, line.adjusted(6, 0, -6, 0), Qt::AlignLeft | Qt::AlignVCenter,
          fontMetrics().elidedText(m_copies[at].says, Qt::ElideRight, line.width() - 12),
          theme.muted);
  }
}

void HeatPane::showAllRows() {
  if (m_rowEnd == 0) return;
  m_rowFirst = m_rowEnd = 0;
  refresh();
  invalidate();
}

void HeatPane::wheelEvent(QWheelEvent* event) {
  constexpr Qt::KeyboardModifiers kRows = Qt::ControlModifier | Qt::ShiftModifier;
  const QPoint d = event->angleDelta();
  const double notches = (d.y() != 0 ? d.y() : d.x()) / 120.0;
  if ((event->modifiers() & kRows) != kRows || m_state->run() == nullptr || notches == 0) {
    TimePane::wheelEvent(event);
    return;
  }
  const double experts = m_state->run()->experts();
  const QRect plot = rowsOf(plotRect());
  const double first = m_rowFirst;
  const double span = m_rowEnd > 0 ? m_rowEnd - m_rowFirst : 1;
  const double share = std::clamp((event->position().y() - plot.top()) / plot.height(), 0.0, 1.0);
  const double least = std::min(1.0, 4 / std::max(1.0, experts));
  const double now = std::clamp(span * std::pow(0.8, notches), least, 1.0);
  if (now >= 1) {
    m_rowFirst = m_rowEnd = 0;
  } else {
    m_rowFirst = std::clamp(first + share * (span - now), 0.0, 1 - now);
    m_rowEnd = m_rowFirst + now;
  }
  refresh();
  invalidate();
  event->accept();
}

QString HeatPane::valueText(double value) const {
  if (!(value == value)) return tr("n/a");
  switch (m_state->scale()) {
    case Scale::kCapacity:
      return QStringLiteral("%1 %").arg(qRound(value * 100));
    case Scale::kFairShare:
      return QString::number(value, 'f', 2) + QStringLiteral("×");
    case Scale::kTokens:
      break;
  }
  return qs(shortNumber(value));
}

int HeatPane::gutterNeeded() const {
  const QFontMetrics m = fontMetrics();
  int w = 0;
  for (const Group& g : m_groups) w = std::max(w, m.horizontalAdvance(g.text));
  // A line of copies needs no value beside it.
  int copies = 0;
  for (const CopyLine& c : m_copies) copies = std::max(copies, m.horizontalAdvance(c.name));
  if (m_copies.size() > 1) {
    copies = std::max(copies, m.horizontalAdvance(moreCopies(m_copies.size())));
  }
  const int value = std::max({m.horizontalAdvance(QStringLiteral("1000 %")),
                              m.horizontalAdvance(valueText(m_top)),
                              m.horizontalAdvance(QStringLiteral("00.00×"))});
  return std::max(4 + w + 10 + value + 4 + 8 + 8, 4 + copies + 14 + 4);
}

QString HeatPane::title() const { return tr("Expert load"); }

QString HeatPane::detail() const {
  const RunStore* run = m_state->run();
  if (run == nullptr) return {};
  QString what;
  switch (m_state->scale()) {
    case Scale::kCapacity:
      what = tr("demand / capacity");
      break;
    case Scale::kFairShare:
      what = tr("tokens / mean tokens of an expert");
      break;
    case Scale::kTokens:
      what = tr("tokens run per step");
      break;
  }
  const auto& layers = run->data().inventory.moe_layers;
  const QString layer = m_state->layer() == kAllLayers
                            ? (m_state->scale() == Scale::kCapacity && layers.size() > 1
                                   ? tr("largest of %1 layers").arg(layers.size())
                                   : tr("all layers"))
                            : tr("layer %1").arg(layers[m_state->layer()]);
  const QString how = m_state->aggregate() == Aggregate::kMax ? tr("largest step of a pixel")
                                                              : tr("mean of a pixel");
  QString text = QStringLiteral("%1, %2, %3").arg(what, layer, how);
  if (m_rowEnd > 0) {
    text = m_allRows > run->experts()
               ? tr("%1 of %2 rows; %3").arg(m_order.size()).arg(m_allRows).arg(text)
               : tr("%1 of %2 experts; %3").arg(m_order.size()).arg(run->experts()).arg(text);
  }
  if (std::any_of(m_order.begin(), m_order.end(), [](const HeatRow& r) { return r.copy; })) {
    text += tr("; hatched: a copy, with the expert's numbers (all copies together)");
  }
  if (m_state->layer() == kAllLayers && m_mixed) {
    text += tr("; GPUs as in layer %1").arg(layers.front());
  }
  return text;
}

namespace {
constexpr int kBar = 96;
}

int HeatPane::legendWidth() const { return widthOf({kBar, overText()}); }

int HeatPane::widthOf(const LegendParts& parts) const {
  const QFontMetrics m = fontMetrics();
  const int texts = m.horizontalAdvance(valueText(0)) + m.horizontalAdvance(valueText(m_top));
  const int over = parts.over.isEmpty() ? 0 : 4 + m.horizontalAdvance(parts.over);
  return texts + 4 + parts.bar + 4 + 14 + overBar() + over;
}

int HeatPane::overBar() const { return m_overTop > 1.005 ? kBar / 2 : 14; }

QString HeatPane::overText() const {
  return m_overTop > 1.005 ? tr("over capacity, to %1").arg(valueText(m_overTop))
                           : tr("over capacity");
}

QRgb HeatPane::overColor(double fill) const {
  const double span = m_overTop - 1;
  const double t = span > 0 ? std::clamp((fill - 1) / span, 0.0, 1.0) : 0;
  const QColor from = m_state->theme().overflow, to(0x7d, 0x00, 0x10);
  const auto mix = [t](int a, int b) { return qRound(a + (b - a) * t); };
  return qRgb(mix(from.red(), to.red()), mix(from.green(), to.green()),
              mix(from.blue(), to.blue()));
}

void HeatPane::drawLegend(QPainter& painter, const QRect& rect) {
  if (m_state->run() == nullptr) return;
  const Theme& theme = m_state->theme();
  const QFontMetrics m = fontMetrics();
  // In little room first the words go, then the bar shrinks; the numbers with their unit stay.
  const LegendParts choices[] = {{kBar, overText()},
                                 {kBar, tr("over capacity")},
                                 {kBar / 2, tr("over capacity")},
                                 {kBar / 2, tr("over")},
                                 {kBar / 4, {}}};
  const auto fits = std::find_if(std::begin(choices), std::end(choices),
                                 [&](const auto& parts) { return widthOf(parts) <= rect.width(); });
  if (fits == std::end(choices)) return;
  const int bar = fits->bar;
  int x = rect.left();
  const auto text = [&](const QString& s) {
    const int w = m.horizontalAdvance(s);
    label(painter, QRect(x, rect.top(), w, rect.height()), Qt::AlignLeft | Qt::AlignVCenter, s,
          theme.text);
    x += w;
  };
  text(valueText(0));
  x += 4;
  const auto& table = colorTable(m_state->colorMap());
  const int y = rect.center().y() - 5;
  for (int i = 0; i < bar; ++i) {
    painter.fillRect(QRect(x + i, y, 1, 10),
                     QColor::fromRgb(table[static_cast<std::size_t>(i * 255 / (bar - 1))]));
  }
  x += bar + 4;
  text(valueText(m_top));
  x += 14;
  const int over = overBar();
  for (int i = 0; i < over; ++i) {
    painter.fillRect(QRect(x + i, y, 1, 10),
                     QColor::fromRgb(overColor(1 + (m_overTop - 1) * i / (over - 1))));
  }
  x += over + 4;
  text(fits->over);
}

std::size_t HeatPane::rowAt(int y) const {
  const QRect plot = rowsOf(plotRect());
  const auto rows = static_cast<double>(m_order.size());
  const double row = (y - plot.top() + 0.5) * rows / plot.height();
  return static_cast<std::size_t>(std::clamp(row, 0.0, rows - 1));
}

std::uint32_t HeatPane::expertAt(int y) const {
  const QRect plot = rowsOf(plotRect());
  if (m_order.empty() || y < plot.top() || y > plot.bottom()) return run::kNone;
  return m_order[rowAt(y)].expert;
}

int HeatPane::yOfExpert(std::uint32_t expert) const {
  const QRect plot = rowsOf(plotRect());
  for (std::size_t i = 0; i < m_order.size(); ++i) {
    if (m_order[i].expert == expert && !m_order[i].copy) {
      return plot.top() + static_cast<int>((static_cast<double>(i) + 0.5) * plot.height() /
                                           static_cast<double>(m_order.size()));
    }
  }
  return -1;
}

void HeatPane::drawContent(QPainter& painter, const QRect& whole) {
  const QRect plot = rowsOf(whole);
  const RunStore& run = *m_state->run();
  const Theme& theme = m_state->theme();
  if (m_order.empty() || run.steps() == 0) {
    label(painter, plot, Qt::AlignCenter,
          run.steps() == 0 ? tr("the run has no steps") : tr("the model has no routed experts"),
          theme.muted);
    return;
  }
  const qreal dpr = pixelRatio();
  const int w = std::max(1, qRound(plot.width() * dpr));
  const int h = std::max(1, qRound(plot.height() * dpr));
  const auto columns = static_cast<std::size_t>(w);
  const std::size_t experts = m_order.size();
  const HeatColumns c = overColumns(
      m_state->timeScale(), m_state->window(), columns, [&](TimeWindow w, std::size_t n) {
        return heatColumns(run, m_state->layer(), m_state->scale(), m_state->aggregate(), w, n);
      });

  // [row][column]; from kOver on = over capacity, -1 = no value: the largest wins where rows merge.
  constexpr float kOver = 1e6F;
  std::vector<float> cells(experts * columns);
  std::vector<std::uint8_t> overColumn(columns), overRow(experts);
  for (std::size_t col = 0; col < columns; ++col) {
    for (std::size_t row = 0; row < experts; ++row) {
      const std::size_t i = col * c.experts + m_order[row].expert;
      const float v = c.value[i];
      const float known = v == v ? v : -1.0F;
      cells[row * columns + col] = c.over[i] ? kOver + std::max(known, 0.0F) : known;
      if (c.over[i]) overColumn[col] = overRow[row] = 1;
    }
  }
  const auto& table = colorTable(m_state->colorMap());
  const QRgb none = theme.noData.rgb();
  const auto scale = static_cast<float>(255.0 / m_top);
  const auto colorOf = [&](float v) -> QRgb {
    if (v >= kOver) return overColor(static_cast<double>(v - kOver));
    if (v < 0) return none;
    return table[static_cast<std::size_t>(std::clamp(v * scale, 0.0F, 255.0F))];
  };
  QImage image(w, h, QImage::Format_RGB32);
  image.setDevicePixelRatio(dpr);
  std::vector<float> merged(columns);
  std::size_t drawn = experts;  // row that the line above shows
  for (int y = 0; y < h; ++y) {
    auto* line = reinterpret_cast<QRgb*>(image.scanLine(y));
    const auto rows = static_cast<double>(experts);
    if (experts <= static_cast<std::size_t>(h)) {
      const auto row = std::min(experts - 1, static_cast<std::size_t>((y + 0.5) * rows / h));
      if (row == drawn) {
        std::copy_n(reinterpret_cast<const QRgb*>(image.constScanLine(y - 1)), w, line);
        continue;
      }
      drawn = row;
      for (std::size_t col = 0; col < columns; ++col)
        line[col] = colorOf(cells[row * columns + col]);
    } else {
      const auto from = static_cast<std::size_t>(y * rows / h);
      const auto to = std::min(experts, static_cast<std::size_t>(std::ceil((y + 1) * rows / h)));
      std::copy_n(cells.begin() + static_cast<std::ptrdiff_t>(from * columns), columns,
                  merged.begin());
      for (std::size_t row = from + 1; row < to; ++row) {
        for (std::size_t col = 0; col < columns; ++col) {
          merged[col] = std::max(merged[col], cells[row * columns + col]);
        }
      }
      for (std::size_t col = 0; col < columns; ++col) line[col] = colorOf(merged[col]);
    }
  }
  painter.drawImage(plot.topLeft(), image);

  for (int x = 0; x < plot.width(); ++x) {
    const auto from = static_cast<std::size_t>(x * dpr);
    const auto to =
        std::clamp<std::size_t>(static_cast<std::size_t>((x + 1) * dpr), from + 1, columns);
    if (std::any_of(overColumn.begin() + static_cast<std::ptrdiff_t>(from),
                    overColumn.begin() + static_cast<std::ptrdiff_t>(to),
                    [](std::uint8_t v) { return v != 0; })) {
      drawStripTick(painter, plot.left() + x);
    }
  }

  const double rowHeight = plot.height() / static_cast<double>(experts);
  drawHatch(painter, plot, rowHeight);
  drawLost(painter, plot, rowHeight);
  if (folded()) return;
  // Triangles beside rows that are over capacity somewhere in the window.
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setPen(Qt::NoPen);
  painter.setBrush(theme.overflow);
  const double size = std::clamp(rowHeight * 0.5, 1.5, 4.0);
  for (std::size_t row = 0; row < experts; ++row) {
    if (!overRow[row] || m_order[row].copy) continue;
    const double y = plot.top() + (static_cast<double>(row) + 0.5) * rowHeight;
    const double x = plot.left() - 3;
    painter.drawPolygon(QPolygonF({{x - 6, y - size}, {x, y}, {x - 6, y + size}}));
  }
  // Beside experts that several GPUs hold: a dot at the first, a ring at each copy.
  const run::Inventory& inv = run.data().inventory;
  for (std::size_t row = 0; row < experts && inv.replicas > 1; ++row) {
    if (placesOf(inv, m_state->layer(), m_order[row].expert).size() < 2) continue;
    const double y = plot.top() + (static_cast<double>(row) + 0.5) * rowHeight;
    const double r = std::clamp(rowHeight * 0.3, 1.0, 2.5);
    painter.setPen(m_order[row].copy ? QPen(theme.text, 1) : QPen(Qt::NoPen));
    painter.setBrush(m_order[row].copy ? QBrush(Qt::NoBrush) : QBrush(theme.text));
    painter.drawEllipse(QPointF(plot.right() + 5, y), r, r);
  }
  painter.setRenderHint(QPainter::Antialiasing, false);

  drawCopies(painter, whole);
  int lastBottom = -1000;
  for (const Group& g : m_groups) {
    const int y0 = plot.top() + qRound(static_cast<double>(g.first) * rowHeight);
    const int y1 = plot.top() + qRound(static_cast<double>(g.end) * rowHeight);
    // A line between GPUs, only where it cannot hide a row.
    if (g.first > 0) {
      painter.setPen(theme.frame);
      painter.drawLine(plot.left() - 12, y0, plot.left() - 2, y0);
      if (rowHeight >= 3) {
        QColor line = theme.base;
        line.setAlpha(150);
        painter.setPen(line);
        painter.drawLine(plot.left(), y0, plot.right(), y0);
      }
    }
    const QRect where(4, (y0 + y1) / 2 - lineHeight() / 2, gutter() - 4, lineHeight());
    if (where.top() >= lastBottom && where.top() >= plot.top() - 2 &&
        where.bottom() <= plot.bottom() + 2) {
      label(painter, where, Qt::AlignLeft | Qt::AlignVCenter, g.text, theme.text);
      lastBottom = where.bottom();
    }
  }
}

void HeatPane::drawHatch(QPainter& painter, const QRect& plot, double rowHeight) const {
  constexpr double kLeast = 3;  // a lower row is all hatch
  if (rowHeight < kLeast) return;
  QColor line = m_state->theme().base;
  line.setAlpha(150);
  painter.setPen(QPen(line, 1));
  for (std::size_t row = 0; row < m_order.size(); ++row) {
    if (!m_order[row].copy) continue;
    const int top = plot.top() + qRound(static_cast<double>(row) * rowHeight);
    const int bottom = plot.top() + qRound(static_cast<double>(row + 1) * rowHeight) - 1;
    painter.setClipRect(QRect(plot.left(), top, plot.width(), bottom - top + 1));
    const int height = bottom - top;
    for (int x = plot.left() - height; x <= plot.right(); x += 6) {
      painter.drawLine(x, bottom, x + height, top);
    }
  }
  painter.setClipping(false);
}

void HeatPane::drawLost(QPainter& painter, const QRect& plot, double rowHeight) const {
  QColor line = m_state->theme().base;
  line.setAlpha(190);
  const TimeAxis a = axis();
  for (const LostGpu& l : m_lost) {
    const int left = std::max(plot.left(), qRound(a.xOf(static_cast<double>(l.from))));
    const int right = std::min(plot.right(), qRound(a.xOf(static_cast<double>(l.to))) - 1);
    for (const Group& g : m_groups) {
      if (g.gpu != l.gpu || left > right) continue;
      const int top = plot.top() + qRound(static_cast<double>(g.first) * rowHeight);
      const int bottom = plot.top() + qRound(static_cast<double>(g.end) * rowHeight) - 1;
      painter.setClipRect(QRect(left, top, right - left + 1, bottom - top + 1));
      painter.setPen(QPen(line, 1));
      const int height = bottom - top;
      for (int x = left - height; x <= right; x += 5) painter.drawLine(x, bottom, x + height, top);
      painter.setClipping(false);
    }
  }
}

QString HeatPane::placeText(const HeatRow& row, std::uint64_t step) const {
  QString name = gpuName(row.gpu);
  const RunStore& run = *m_state->run();
  if (run.hasSteps() && row.gpu < m_replicas.size()) {
    // A step is one replica's: its GPU.
    for (const std::uint32_t g : m_replicas[row.gpu]) {
      if (run.data().inventory.gpus[g].engine ==
          run.data().steps[static_cast<std::size_t>(step)].engine) {
        name = gpuName(g);
      }
    }
  }
  for (const LostGpu& l : m_lost) {
    if (l.gpu == row.gpu && step >= l.from && step < l.to) {
      return tr("%1 (lost since step %2: it stands elsewhere)").arg(name).arg(l.from);
    }
  }
  if (m_movedSince && step >= *m_movedSince) {
    return tr("%1 (at the start; experts moved at step %2)").arg(name).arg(*m_movedSince);
  }
  return row.copy ? tr("%1 (a copy)").arg(name) : name;
}

void HeatPane::drawOverlay(QPainter& painter, const QRect& whole) {
  const QRect plot = rowsOf(whole);
  if (m_state->expert() != run::kNone && !m_order.empty()) {
    const double rowHeight = plot.height() / static_cast<double>(m_order.size());
    for (std::size_t i = 0; i < m_order.size(); ++i) {
      if (m_order[i].expert != m_state->expert()) continue;
      const double y = plot.top() + static_cast<double>(i) * rowHeight;
      const QRectF row(plot.left() - 1, y - 1, plot.width() + 1, std::max(rowHeight, 1.0) + 1);
      painter.setBrush(Qt::NoBrush);
      painter.setPen(QPen(Qt::black, 3));
      painter.drawRect(row);
      painter.setPen(QPen(Qt::white, 1));
      painter.drawRect(row);
    }
  }
  TimePane::drawOverlay(painter, whole);
}

void HeatPane::drawCursorValues(QPainter& painter, const QRect& whole, std::uint64_t step) {
  const QRect plot = rowsOf(whole);
  const RunStore& run = *m_state->run();
  if (m_order.empty()) return;
  const HeatColumns c =
      heatColumns(run, m_state->layer(), m_state->scale(), Aggregate::kMax, oneStep(step), 1);
  if (folded()) {
    float most = -1;
    for (const HeatRow& place : m_order) {
      const float v = c.value[place.expert];
      if (v == v) most = std::max(most, v);
    }
    foldedValue(painter, most < 0 ? tr("n/a") : valueText(static_cast<double>(most)));
    return;
  }
  const double rowHeight = plot.height() / static_cast<double>(m_order.size());
  const QRect right(0, 0, gutter() - 14, lineHeight());
  int lastBottom = -1000;
  for (const Group& g : m_groups) {
    float top = -1;
    bool over = false;
    for (std::size_t row = g.first; row < g.end; ++row) {
      if (m_order[row].copy) continue;
      const std::uint32_t e = m_order[row].expert;
      if (c.value[e] == c.value[e]) top = std::max(top, c.value[e]);
      over = over || c.over[e] != 0;
    }
    const int y = plot.top() + qRound(static_cast<double>(g.first + g.end) / 2 * rowHeight);
    const QRect where = right.translated(0, y - lineHeight() / 2);
    if (where.top() < lastBottom || where.top() < plot.top() - 2 ||
        where.bottom() > plot.bottom() + 2) {
      continue;
    }
    lastBottom = where.bottom();
    const QString text = top < 0 ? tr("n/a") : valueText(static_cast<double>(top));
    label(painter, where, Qt::AlignRight | Qt::AlignVCenter, text,
          over ? m_state->theme().saturated : m_state->theme().accent);
  }
}

QString HeatPane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr || !plotRect().contains(position)) return {};
  if (const QRect rows = rowsOf(plotRect()); position.y() > rows.bottom()) {
    const auto line = static_cast<std::size_t>((position.y() - rows.bottom() - 1) / lineHeight());
    if (line >= m_copies.size()) return {};
    return QStringLiteral("%1: %2").arg(m_copies[line].name, m_copies[line].says);
  }
  const auto step = axis().stepAt(position.x(), run->steps());
  if (!step || m_order.empty()) return {};
  const HeatRow& place = m_order[rowAt(position.y())];
  const std::uint32_t e = place.expert;
  const QString name =
      QStringLiteral("%1 @ %2, %3: ")
          .arg(qs(expertName(e, run->experts())), placeText(place, *step), stepText(*run, *step));
  if (!run->hasSteps()) {
    const auto kept =
        heatColumns(*run, m_state->layer(), Scale::kTokens, Aggregate::kMax, oneStep(*step), 1);
    return name + tr("%1 tokens%2")
                      .arg(qs(shortNumber(static_cast<double>(kept.value[e]))),
                           kept.over[e] ? tr(", over capacity") : QString());
  }
  const ExpertRow r = run->expertRow(m_state->layer(), *step);
  QString text = name + tr("%1 tokens").arg(count(r.kept[e]));
  if (r.capacity[e] != run::kUnlimited) {
    text += tr(", capacity %1, demand %2 % of it")
                .arg(count(r.capacity[e]))
                .arg(qRound(static_cast<double>(r.fill[e]) * 100));
    if (m_state->layer() == kAllLayers && run->data().inventory.moe_layers.size() > 1) {
      text += tr(" in the fullest layer");
    }
  }
  if (r.overflow[e] > 0) text += tr(", %1 over capacity").arg(count(r.overflow[e]));
  if (r.rerouted_in[e] > 0) text += tr(", %1 rerouted in").arg(count(r.rerouted_in[e]));
  if (r.dropped[e] > 0) text += tr(", %1 dropped").arg(count(r.dropped[e]));
  const std::vector<std::uint32_t> places = placesOf(run->data().inventory, m_state->layer(), e);
  if (places.size() > 1) {
    text += tr(", all %1 copies together: first on %2").arg(places.size()).arg(gpuList(places));
  }
  return text;
}

void HeatPane::clicked(const QPoint& position) {
  const std::uint32_t e = plotRect().contains(position) ? expertAt(position.y()) : run::kNone;
  if (e != run::kNone) m_state->setExpert(e);
}

void HeatPane::doubleClicked(const QPoint& position) {
  const std::uint32_t e = expertAt(position.y());
  if (e != run::kNone) zoomToHottest(e);
}

void HeatPane::zoomToHottest(std::uint32_t e) {
  const RunStore* run = m_state->run();
  if (run == nullptr || e >= run->experts() || run->steps() == 0) return;
  const auto columns = static_cast<std::size_t>(std::min<std::uint64_t>(run->steps(), 4096));
  const double all = static_cast<double>(run->steps());
  const Scale scale = run->hasCapacity() ? Scale::kCapacity : Scale::kTokens;
  const HeatColumns c =
      heatColumns(*run, m_state->layer(), scale, Aggregate::kMax, {0, all}, columns);
  std::size_t hottest = 0;
  for (std::size_t i = 1; i < columns; ++i) {
    if (c.value[i * c.experts + e] > c.value[hottest * c.experts + e]) hottest = i;
  }
  const double at = (static_cast<double>(hottest) + 0.5) * all / static_cast<double>(columns);
  const double half = std::max(20.0, all / static_cast<double>(columns) * 20);
  m_state->setExpert(e);
  m_state->setWindow({at - half, at + half}, ViewState::Move::kJump);
}

namespace {
constexpr int kLegendReach = 16;  // the sample beside a name belongs to it
}

// ---- lines -------------------------------------------------------------------------------------

int LinePane::gutterNeeded() const {
  const QFontMetrics m = fontMetrics();
  return std::max({m.horizontalAdvance(axisText(m_low)), m.horizontalAdvance(axisText(m_high)),
                   m.horizontalAdvance(QStringLiteral("000.0 ms"))}) +
         14;
}

QSize LinePane::openMinimum() const {
  // Header, and three lines of text beside the plot; of large text the two at its ends.
  constexpr int kThreeLines = 45;
  const int lines = std::max(2 * lineHeight(), std::min(kThreeLines, 3 * lineHeight()));
  return {200, headerHeight() + stripHeight() + lines + 4};
}

void LinePane::setRange(double low, double high) {
  m_low = low;
  m_high = high > low ? high : low + 1;
}

double LinePane::yOf(const QRect& plot, double value) const {
  const double share = (value - m_low) / (m_high - m_low);
  return plot.bottom() - std::clamp(share, 0.0, 1.0) * (plot.height() - 1);
}

void LinePane::drawRange(QPainter& painter, const QRect& plot) {
  const Theme& theme = m_state->theme();
  const QRect g(2, plot.top(), gutter() - 8, plot.height());
  label(painter, QRect(g.left(), g.top() - 1, g.width(), lineHeight()),
        Qt::AlignRight | Qt::AlignVCenter, axisText(m_high), theme.muted);
  label(painter, QRect(g.left(), g.bottom() - lineHeight() + 2, g.width(), lineHeight()),
        Qt::AlignRight | Qt::AlignVCenter, axisText(m_low), theme.muted);
  painter.setPen(theme.grid);
  const int middle = qRound(yOf(plot, (m_low + m_high) / 2));
  painter.drawLine(plot.left(), middle, plot.right(), middle);
}

void LinePane::drawReference(QPainter& painter, const QRect& plot, double value) {
  if (value < m_low || value > m_high) return;
  painter.setPen(QPen(m_state->theme().saturated, 1, Qt::DashLine));
  const int y = std::clamp(qRound(yOf(plot, value)), plot.top(), plot.bottom());
  painter.drawLine(plot.left(), y, plot.right(), y);
}

namespace {

/// A line that moves by more than this many pixels per pixel is drawn as one bar per pixel: Qt's
/// outlining of a thousand small bends takes ten milliseconds, and the picture is the same.
constexpr double kDense = 0.5;

/// From y0 to y1 in the pixel column x, both ends blended.
void drawBar(QPainter& painter, const QRect& plot, int x, double y0, double y1, QColor color) {
  y0 = std::clamp<double>(y0, plot.top(), plot.bottom() + 1);
  y1 = std::clamp<double>(y1, plot.top(), plot.bottom() + 1);
  const int top = static_cast<int>(std::floor(y0));
  const int end = static_cast<int>(std::floor(y1));
  const int alpha = color.alpha();
  const auto part = [&](int y, double share) {
    color.setAlpha(qRound(alpha * share));
    painter.fillRect(x, y, 1, 1, color);
  };
  if (top == end) {
    part(top, y1 - y0);
    return;
  }
  part(top, top + 1 - y0);
  color.setAlpha(alpha);
  painter.fillRect(x, top + 1, 1, end - top - 1, color);
  if (y1 > end) part(end, y1 - end);
}

bool isDense(const QPainter& painter, const QRect& plot, const std::vector<double>& y) {
  const auto type = painter.paintEngine()->type();
  if (type == QPaintEngine::SVG || type == QPaintEngine::Pdf) return false;
  if (y.size() < 2 || static_cast<int>(y.size()) != plot.width()) return false;
  double moved = 0;
  for (std::size_t i = 1; i < y.size(); ++i) moved += std::abs(y[i] - y[i - 1]);
  return moved > kDense * static_cast<double>(y.size());
}

/// Dash and gap in pixels along x; {1, 0}: solid.
std::pair<int, int> dashOf(Qt::PenStyle style) {
  switch (style) {
    case Qt::DashLine:
      return {6, 3};
    case Qt::DotLine:
      return {1, 2};
    case Qt::DashDotLine:
      return {4, 2};
    default:
      return {1, 0};
  }
}

/// Part of a line that ascends in x: what to draw of it to have it right inside `clip`.
struct Strip {
  QRect clip;
  qsizetype first = 0, count = 0;
  double before = 0;  // length of the line up to `first`
};

/// Qt fills the outline of a line from lists of the pixels it touches, sorted by insertion: for a
/// flat line of a thousand points some 5 ms. Of strips of the plot one after the other the picture
/// is the same, but for a pixel here and there where a strip ends, and each list is short. A vector picture has the line whole.
std::vector<Strip> stripsOf(const QPainter& painter, const QRect& plot, const QPolygonF& line) {
  constexpr int kWide = 48;     // pixels
  constexpr double kReach = 4;  // of a joint or an end beyond its point, pixels, and to spare
  const auto type = painter.paintEngine()->type();
  if (type == QPaintEngine::SVG || type == QPaintEngine::Pdf) return {{plot, 0, line.size(), 0}};
  std::vector<Strip> strips;
  qsizetype first = 0;
  double before = 0;
  for (int x = plot.left(); x <= plot.right(); x += kWide) {
    const QRect clip = QRect(x, plot.top(), kWide, plot.height()).intersected(plot);
    while (first + 1 < line.size() && line[first + 1].x() < x - kReach) {
      before += QLineF(line[first], line[first + 1]).length();
      ++first;
    }
    qsizetype end = first;
    while (end < line.size() && (end == 0 || line[end - 1].x() <= clip.right() + 1 + kReach)) ++end;
    strips.push_back({clip, first, end - first, before});
  }
  return strips;
}

}  // namespace

void LinePane::drawLine(QPainter& painter, const QRect& plot, const std::vector<double>& y,
                        const QColor& color, Qt::PenStyle style) {
  if (y.empty()) return;
  std::vector<double> at;
  at.reserve(y.size());
  for (const double v : y) at.push_back(yOf(plot, v));
  if (isDense(painter, plot, at)) {
    // From the middle of the way from the pixel before to the middle of the way to the next one.
    const auto [dash, gap] = dashOf(style);
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (static_cast<int>(i) % (dash + gap) >= dash) continue;
      const double before = i > 0 ? (at[i - 1] + at[i]) / 2 : at[i];
      const double after = i + 1 < at.size() ? (at[i] + at[i + 1]) / 2 : at[i];
      drawBar(painter, plot, plot.left() + static_cast<int>(i),
              std::min({before, at[i], after}) - 0.7, std::max({before, at[i], after}) + 0.7,
              color);
    }
    return;
  }
  const double dx = plot.width() / static_cast<double>(y.size());
  QPolygonF line;
  line.reserve(static_cast<qsizetype>(y.size()));
  for (std::size_t i = 0; i < y.size(); ++i) {
    line << QPointF(plot.left() + (static_cast<double>(i) + 0.5) * dx, at[i]);
  }
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setPen(QPen(color, 1.4, style, Qt::FlatCap, Qt::RoundJoin));
  painter.setBrush(Qt::NoBrush);
  for (const Strip& s : stripsOf(painter, plot, line)) {
    painter.setClipRect(s.clip);
    if (style != Qt::SolidLine) {
      QPen pen = painter.pen();
      pen.setDashOffset(s.before / pen.widthF());  // Qt counts in widths of the pen
      painter.setPen(pen);
    }
    painter.drawPolyline(line.constData() + s.first, static_cast<int>(s.count));
  }
  painter.setRenderHint(QPainter::Antialiasing, false);
  painter.setClipping(false);
}

namespace {

/// A band over the plot's ground, as one colour.
QColor bandColor(QColor color) {
  color.setAlpha(80);
  return color;
}

}  // namespace

void LinePane::drawBand(QPainter& painter, const QRect& plot, const std::vector<double>& low,
                        const std::vector<double>& high, QColor color) {
  if (low.empty()) return;
  color = bandColor(color);
  std::vector<double> top, bottom;
  for (const double v : high) top.push_back(yOf(plot, v));
  for (const double v : low) bottom.push_back(yOf(plot, v));
  if (isDense(painter, plot, top) || isDense(painter, plot, bottom)) {
    for (std::size_t i = 0; i < top.size(); ++i) {
      drawBar(painter, plot, plot.left() + static_cast<int>(i), top[i], std::max(top[i], bottom[i]),
              color);
    }
    return;
  }
  const double dx = plot.width() / static_cast<double>(low.size());
  QPolygonF band;
  for (std::size_t i = 0; i < low.size(); ++i) {
    band << QPointF(plot.left() + (static_cast<double>(i) + 0.5) * dx, top[i]);
  }
  for (std::size_t i = low.size(); i-- > 0;) {
    band << QPointF(plot.left() + (static_cast<double>(i) + 0.5) * dx, bottom[i]);
  }
  painter.setClipRect(plot);
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setPen(Qt::NoPen);
  painter.setBrush(color);
  painter.drawPolygon(band);
  painter.setRenderHint(QPainter::Antialiasing, false);
  painter.setClipping(false);
}

void LinePane::drawPoints(QPainter& painter, const QRect& plot, const std::vector<QPointF>& points,
                          const QColor& color, Qt::PenStyle style) {
  QPolygonF line;
  for (const QPointF& p : points) line << QPointF(p.x(), yOf(plot, p.y()));
  painter.setClipRect(plot);
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setPen(QPen(color, 1.4, style, Qt::FlatCap, Qt::RoundJoin));
  painter.setBrush(Qt::NoBrush);
  painter.drawPolyline(line);
  painter.setRenderHint(QPainter::Antialiasing, false);
  painter.setClipping(false);
}

Columns<double> LinePane::series(const QRect& plot) const {
  return overColumns(
      m_state->timeScale(), m_state->window(), static_cast<std::size_t>(plot.width()),
      [this](TimeWindow w, std::size_t n) { return seriesColumns(*m_state->run(), w, n); });
}

std::vector<double> LinePane::otherSeries(const QRect& plot, run::StepSeries series) const {
  if (m_state->other() == nullptr || hidden(tr("B"))) return {};
  return gui::otherSeries(*m_state->other(), m_state->timeScale(), m_state->otherTimeScale(),
                          m_state->window(), static_cast<std::size_t>(plot.width()), series);
}

namespace {

/// `label` is `name`, perhaps cut in its middle.
bool shownAs(const QString& name, const QString& label) {
  const qsizetype cut = label.indexOf(QChar(0x2026));
  return cut < 0 ? label == name
                 : name.startsWith(label.left(cut)) && name.endsWith(label.mid(cut + 1));
}

}  // namespace

void LinePane::clicked(const QPoint& position) {
  if (folded() || position.y() >= headerHeight()) return;
  // The label under the mouse is an item's name, perhaps cut in its middle.
  for (const Label& l : labels()) {
    if (!l.rect.adjusted(-kLegendReach, 0, 2, 0).contains(position)) continue;
    for (const LegendItem& item : legend()) {
      if (!shownAs(item.text, l.text)) continue;
      if (!m_hidden.remove(item.text)) m_hidden.insert(item.text);
      invalidate();
      return;
    }
  }
}

void LinePane::drawLegend(QPainter& painter, const QRect& rect) {
  TimePane::drawLegend(painter, rect);
  // A hidden line's name is struck out.
  for (const Label& l : labels()) {
    if (l.rect.top() < rect.top() || l.rect.left() < rect.left() ||
        l.rect.bottom() > rect.bottom()) {
      continue;
    }
    if (std::none_of(m_hidden.begin(), m_hidden.end(),
                     [&](const QString& name) { return shownAs(name, l.text); })) {
      continue;
    }
    painter.setPen(m_state->theme().text);
    painter.drawLine(l.rect.left(), l.rect.center().y(), l.rect.right(), l.rect.center().y());
  }
}

void LinePane::mousePressEvent(QMouseEvent* event) {
  if (event->button() == Qt::RightButton) m_rightPressed = event->pos();
  TimePane::mousePressEvent(event);
}

void LinePane::mouseReleaseEvent(QMouseEvent* event) {
  TimePane::mouseReleaseEvent(event);
  // A right drag pans; a right click asks.
  if (event->button() == Qt::RightButton && (event->pos() - m_rightPressed).manhattanLength() < 4 &&
      m_state->run() != nullptr) {
    emit menuWanted(event->globalPosition().toPoint());
  }
}

void LinePane::drawCursorValues(QPainter& painter, const QRect& plot, std::uint64_t step) {
  if (folded()) {
    foldedValue(painter, valueText(valueAt(step)));
    return;
  }
  if (plot.height() < 3 * lineHeight() - 4) return;  // it would overlap the two other labels
  label(painter, QRect(2, plot.center().y() - lineHeight() / 2, gutter() - 8, lineHeight()),
        Qt::AlignRight | Qt::AlignVCenter, valueText(valueAt(step)), m_state->theme().accent);
}

namespace {

struct Curve {
  std::vector<double> mean, max;
};
Curve curveOf(const Columns<double>& c, std::size_t i, double factor = 1) {
  Curve out;
  for (std::size_t col = 0; col < c.columns; ++col) {
    out.mean.push_back(c.mean(col, i) * factor);
    out.max.push_back(c.max[col * c.width + i] * factor);
  }
  return out;
}
double largest(const std::vector<double>& v) {
  return v.empty() ? 0 : *std::max_element(v.begin(), v.end());
}
double smallest(const std::vector<double>& v) {
  return v.empty() ? 0 : *std::min_element(v.begin(), v.end());
}
constexpr auto kDuration = static_cast<std::size_t>(run::StepSeries::kDurationPs);
constexpr auto kImbalance = static_cast<std::size_t>(run::StepSeries::kImbalance);
constexpr auto kImbalanceMax = static_cast<std::size_t>(run::StepSeries::kImbalanceMax);
constexpr auto kOverflow = static_cast<std::size_t>(run::StepSeries::kOverflow);

}  // namespace

void LinePane::drawOther(QPainter& painter, const QRect& plot, const std::vector<double>& y) {
  // Part of the plot's width that B fills.
  QRect part = plot;
  part.setWidth(static_cast<int>(y.size()));
  drawLine(painter, part, y, m_state->theme().text, Qt::DashLine);
}

ImbalancePane::ImbalancePane(ViewState* state, QWidget* parent)
    : LinePane(state, QStringLiteral("imbalance"), parent), m_worker(new Worker(this)) {
  setAccessibleName(tr("Load imbalance over steps"));
  connect(state, &ViewState::runChanged, this, [this] {
    m_worker->stop();
    m_spread.reset();
    m_problem.clear();
  });
}

bool ImbalancePane::hasSpread() const {
  const RunStore* run = m_state->run();
  return run != nullptr && run->hasLayers() && run->data().inventory.moe_layers.size() > 1;
}

void ImbalancePane::startReading() {
  if (!hasSpread() || m_worker->busy() || m_spread || !m_problem.isEmpty()) return;
  m_worker->run(
      [this, run = m_state->runPointer()](const std::atomic<bool>& stop) -> std::function<void()> {
        auto spread = std::make_shared<LayerSpread>();
        const std::size_t layers = run->data().inventory.moe_layers.size();
        if (run->path().empty()) {
          spread->append(run->data().layer_steps.imbalance, layers);
        } else {
          // A reader of its own, as for the memory: the store is the window's.
          const run::RunReader reader(run->path());
          if (run->replacedOnDisk()) {
            throw InputError(run->path().string(), "is another run now", "reload it (F5)");
          }
          constexpr std::uint64_t kPart = 4096;
          for (std::uint64_t first = 0; first < reader.steps() && !stop; first += kPart) {
            const std::uint64_t n = std::min(kPart, reader.steps() - first);
            spread->append(reader.read_layers(first, n).imbalance, layers);
          }
        }
        return [this, spread] {
          m_spread = spread;
          invalidate();
        };
      },
      [this](const QString& text) {
        m_problem = text;
        invalidate();
      });
}

QString ImbalancePane::title() const { return tr("Load imbalance"); }
QString ImbalancePane::detail() const {
  const QString what = tr("max GPU / mean GPU; dashed: 1 = balanced; ");
  if (!hasSpread()) return what + tr("band: up to the largest step of a pixel");
  if (m_problem.isEmpty()) return what + tr("band: all steps of a pixel");
  return what + tr("no percentiles: %1").arg(m_problem);
}

std::vector<TimePane::LegendItem> ImbalancePane::legend() const {
  const RunStore* run = m_state->run();
  if (run == nullptr) return {};
  std::vector<LegendItem> items;
  if (run->data().inventory.moe_layers.size() > 1) {
    items = {{tr("mean over layers"), m_state->theme().series[0]},
             {tr("largest layer"), m_state->theme().series[1]}};
  } else if (m_state->other() != nullptr) {
    items = {{tr("A"), m_state->theme().series[0]}};
  }
  if (hasSpread()) {
    items.push_back({tr("5–95 % of layers"), bandColor(m_state->theme().series[0]), Qt::NoPen});
  }
  if (m_state->other() != nullptr) items.push_back({tr("B"), m_state->theme().text, Qt::DashLine});
  return items;
}

void ImbalancePane::drawContent(QPainter& painter, const QRect& plot) {
  const RunStore& run = *m_state->run();
  const Columns<double> c = series(plot);
  const Curve mean = curveOf(c, kImbalance);
  const Curve layer = curveOf(c, kImbalanceMax);
  const bool many = run.data().inventory.moe_layers.size() > 1;
  const std::vector<double> other = otherSeries(plot, run::StepSeries::kImbalance);
  double top = std::max({largest(mean.max), many ? largest(layer.mean) : 1.0, largest(other)});
  // The percentiles of the steps of each pixel, from the lowest to the highest.
  startReading();
  std::vector<double> low, high;
  if (m_spread && m_spread->low.size() == run.steps() && !hidden(tr("5–95 % of layers"))) {
    const std::vector<double> edges = columnEdges(m_state->timeScale(), m_state->window(),
                                                  static_cast<std::size_t>(plot.width()));
    for (std::size_t x = 0; x + 1 < edges.size(); ++x) {
      const auto first =
          std::min(run.steps() - 1, static_cast<std::uint64_t>(std::max(0.0, edges[x] + 1e-9)));
      const auto end = std::clamp(static_cast<std::uint64_t>(std::ceil(edges[x + 1] - 1e-9)),
                                  first + 1, run.steps());
      float least = std::numeric_limits<float>::max();
      float most = 0;
      for (std::uint64_t s = first; s < end; ++s) {
        const auto i = static_cast<std::size_t>(s);
        if (std::isnan(m_spread->low[i])) continue;
        least = std::min(least, m_spread->low[i]);
        most = std::max(most, m_spread->high[i]);
      }
      // Without any assignment: at the bottom, as the line.
      low.push_back(most > 0 ? static_cast<double>(least) : 0);
      high.push_back(static_cast<double>(most));
    }
    top = std::max(top, largest(high));
  }
  if (top <= 0) {
    setRange(1, 2);
    label(painter, plot, Qt::AlignCenter, tr("no imbalance in this run: no routed experts"),
          m_state->theme().muted);
    return;
  }
  // A step without assignments has no imbalance and is drawn at the bottom.
  setRange(1, 1 + niceCeiling(std::max(top - 1, 0.01)));
  drawRange(painter, plot);
  const bool shown = !hidden(many ? tr("mean over layers") : tr("A"));
  if (shown && !hasSpread()) {
    drawBand(painter, plot, mean.mean, mean.max, m_state->theme().series[0]);
  }
  drawBand(painter, plot, low, high, m_state->theme().series[0]);
  if (many && !hidden(tr("largest layer"))) {
    drawLine(painter, plot, layer.mean, m_state->theme().series[1]);
  }
  if (shown) drawLine(painter, plot, mean.mean, m_state->theme().series[0]);
  drawOther(painter, plot, other);
  drawReference(painter, plot, 1);
}

QString ImbalancePane::valueText(double value) const { return QString::number(value, 'f', 2); }

double ImbalancePane::valueAt(std::uint64_t step) const {
  return seriesColumns(*m_state->run(), oneStep(step), 1).mean(0, kImbalance);
}

QString ImbalancePane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr) return {};
  const auto step = axis().stepAt(position.x(), run->steps());
  if (!step) return {};
  const Columns<double> c = seriesColumns(*run, oneStep(*step), 1);
  QString text = tr("%1: imbalance (max/mean) %2, largest layer %3")
                     .arg(stepText(*run, *step), qs(shortNumber(c.max[kImbalance])),
                          qs(shortNumber(c.max[kImbalanceMax])));
  const auto i = static_cast<std::size_t>(*step);
  if (m_spread && i < m_spread->low.size() && !std::isnan(m_spread->low[i])) {
    const auto number = [](float v) { return qs(shortNumber(static_cast<double>(v))); };
    text +=
        tr("; layers p5 %1, p50 %2, p95 %3")
            .arg(number(m_spread->low[i]), number(m_spread->middle[i]), number(m_spread->high[i]));
  }
  return text;
}

StepTimePane::StepTimePane(ViewState* state, QWidget* parent)
    : LinePane(state, QStringLiteral("steptime"), parent) {
  setAccessibleName(tr("Time of a step over steps"));
}

QString StepTimePane::title() const { return tr("Step time"); }
QString StepTimePane::detail() const {
  return tr("in decode steps: time per output token; band: up to the largest step of a pixel");
}

void StepTimePane::drawContent(QPainter& painter, const QRect& plot) {
  const Columns<double> c = series(plot);
  const Curve ps = curveOf(c, kDuration);
  const std::vector<double> other = otherSeries(plot, run::StepSeries::kDurationPs);
  const double most = std::max(largest(ps.max), largest(other));
  const double least =
      other.empty() ? smallest(ps.mean) : std::min(smallest(ps.mean), smallest(other));
  const double top = niceCeiling(most);
  double low = 0;
  if (least > 0.6 * most) {
    // Little variation: start the axis below the smallest value, at a round number.
    const double span = niceCeiling((most - least) * 1.25 + top * 1e-6);
    low = std::max(0.0, std::floor(least / span * 2) * span / 2);
    setRange(low, std::max(low + span, std::ceil(most / span * 2) * span / 2));
  } else {
    setRange(0, top);
  }
  drawRange(painter, plot);
  const std::uint32_t engines = replicas();
  for (std::uint32_t e = 0; e < engines && engines > 1; ++e) {
    if (!hidden(tr("replica %1").arg(e))) drawReplica(painter, plot, e);
  }
  if (engines < 2 && !hidden(tr("A"))) {
    drawBand(painter, plot, ps.mean, ps.max, m_state->theme().series[2]);
    drawLine(painter, plot, ps.mean, m_state->theme().series[2]);
  }
  drawOther(painter, plot, other);
}

std::uint32_t StepTimePane::replicas() const {
  const RunStore* run = m_state->run();
  // Of more replicas than colours, and of many steps, the mean of all is drawn.
  if (run == nullptr || !run->hasSteps() || m_state->window().length() > kReplicaSteps) return 1;
  const std::uint32_t n = enginesOf(run->data().inventory);
  return n <= m_state->theme().series.size() ? n : 1;
}

void StepTimePane::drawReplica(QPainter& painter, const QRect& plot, std::uint32_t engine) {
  const auto& steps = m_state->run()->data().steps;
  const TimeAxis a = axis();
  const TimeWindow w = m_state->window();
  const auto first = static_cast<std::size_t>(std::max(0.0, std::floor(w.first)));
  const std::size_t end = std::min(steps.size(), static_cast<std::size_t>(std::ceil(w.end)));
  // One point per pixel and replica, the longest step there.
  std::vector<QPointF> points;
  for (std::size_t s = first; s < end; ++s) {
    if (steps[s].engine != engine) continue;
    const double x = a.xOf(static_cast<double>(s) + 0.5);
    const auto ps = static_cast<double>(steps[s].end_ps - steps[s].start_ps);
    if (!points.empty() && std::floor(points.back().x()) == std::floor(x)) {
      points.back().setY(std::max(points.back().y(), ps));
    } else {
      points.emplace_back(x, ps);
    }
  }
  drawPoints(painter, plot, points, m_state->theme().series[engine]);
}

std::vector<TimePane::LegendItem> StepTimePane::legend() const {
  std::vector<LegendItem> items;
  const std::uint32_t engines = replicas();
  for (std::uint32_t e = 0; e < engines && engines > 1; ++e) {
    items.push_back({tr("replica %1").arg(e), m_state->theme().series[e]});
  }
  if (m_state->other() == nullptr) return items;
  if (engines < 2) items.push_back({tr("A"), m_state->theme().series[2]});
  items.push_back({tr("B"), m_state->theme().text, Qt::DashLine});
  return items;
}

QString StepTimePane::valueText(double value) const { return qs(timeText(value)); }
QString StepTimePane::axisText(double value) const { return qs(tickText(value)); }

double StepTimePane::valueAt(std::uint64_t step) const {
  return seriesColumns(*m_state->run(), oneStep(step), 1).mean(0, kDuration);
}

QString StepTimePane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr) return {};
  const auto step = axis().stepAt(position.x(), run->steps());
  if (!step) return {};
  return tr("%1: %2").arg(stepText(*run, *step),
                          valueText(seriesColumns(*run, oneStep(*step), 1).max[kDuration]));
}

LinkPane::LinkPane(ViewState* state, QWidget* parent)
    : LinePane(state, QStringLiteral("links"), parent) {
  setAccessibleName(tr("Link use over steps"));
  connect(state, &ViewState::runChanged, this, &LinkPane::refresh);
  connect(state, &ViewState::linkChanged, this, [this] {
    refresh();
    invalidate();
  });
  refresh();
}

void LinkPane::refresh() {
  m_links = m_state->run() != nullptr ? busiestLinks(*m_state->run(), kLines)
                                      : std::vector<std::size_t>();
  const std::uint32_t chosen = m_state->link();
  if (chosen != run::kNone &&
      std::find(m_links.begin(), m_links.end(), std::size_t{chosen}) == m_links.end()) {
    m_links.push_back(chosen);
  }
}

QString LinkPane::title() const { return tr("Link use"); }
QString LinkPane::detail() const {
  return tr("% of capacity; band: busiest of %1; ticks: at least 90 %")
      .arg(m_state->run() != nullptr ? m_state->run()->links() : 0);
}

namespace {
/// The last is that of the chosen link where it is none of the busiest.
constexpr std::array<Qt::PenStyle, LinkPane::kLines + 1> kLineStyles = {
    Qt::SolidLine, Qt::DashLine, Qt::DotLine, Qt::DashDotLine, Qt::SolidLine};
}  // namespace

std::vector<TimePane::LegendItem> LinkPane::legend() const {
  std::vector<LegendItem> items;
  const RunStore* run = m_state->run();
  for (std::size_t i = 0; i < m_links.size(); ++i) {
    items.push_back({qs(run->data().inventory.links[m_links[i]].name), m_state->theme().series[i],
                     kLineStyles[i]});
  }
  if (m_state->other() != nullptr) {
    items.push_back({tr("B, busiest"), m_state->theme().text, Qt::DashLine});
  }
  return items;
}

void LinkPane::drawContent(QPainter& painter, const QRect& plot) {
  const RunStore& run = *m_state->run();
  if (run.links() == 0) {
    setRange(0, 1);
    label(painter, plot, Qt::AlignCenter, tr("the hardware of this run has no links"),
          m_state->theme().muted);
    return;
  }
  const auto columns = static_cast<std::size_t>(plot.width());
  const Columns<float> c =
      overColumns(m_state->timeScale(), m_state->window(), columns,
                  [&](TimeWindow w, std::size_t n) { return linkColumns(run, w, n); });
  std::vector<double> zero(columns, 0.0), envelope(columns, 0.0);
  std::vector<std::uint8_t> saturated(columns, 0);
  for (std::size_t col = 0; col < columns; ++col) {
    for (std::size_t k = 0; k < c.width; ++k) {
      envelope[col] = std::max(envelope[col], static_cast<double>(c.max[col * c.width + k]));
      if (c.flag[col * c.width + k]) saturated[col] = 1;
    }
  }
  std::vector<double> other;
  if (m_state->other() != nullptr && !hidden(tr("B, busiest"))) {
    other = otherLinkUse(*m_state->other(), m_state->timeScale(), m_state->otherTimeScale(),
                         m_state->window(), columns);
  }
  const double most = std::max(largest(envelope), largest(other));
  setRange(0, std::min(niceCeiling(most), std::max(1.0, most)));
  drawRange(painter, plot);
  drawBand(painter, plot, zero, envelope, m_state->theme().noData);
  for (std::size_t i = m_links.size(); i-- > 0;) {
    if (hidden(qs(run.data().inventory.links[m_links[i]].name))) continue;
    std::vector<double> y;
    for (std::size_t col = 0; col < columns; ++col) {
      y.push_back(m_state->aggregate() == Aggregate::kMax
                      ? static_cast<double>(c.max[col * c.width + m_links[i]])
                      : c.mean(col, m_links[i]));
    }
    drawLine(painter, plot, y, m_state->theme().series[i], kLineStyles[i]);
  }
  drawOther(painter, plot, other);
  if (m_high >= 1) drawReference(painter, plot, 1);
  for (std::size_t col = 0; col < columns; ++col) {
    if (saturated[col]) drawStripTick(painter, plot.left() + static_cast<int>(col));
  }
}

QString LinkPane::valueText(double value) const {
  return value < 0.0995 && value > 0 ? QString::number(value * 100, 'f', 1) + QStringLiteral(" %")
                                     : QStringLiteral("%1 %").arg(qRound(value * 100));
}

double LinkPane::valueAt(std::uint64_t step) const {
  const Columns<float> c = linkColumns(*m_state->run(), oneStep(step), 1);
  return c.max.empty() ? 0 : static_cast<double>(*std::max_element(c.max.begin(), c.max.end()));
}

QString LinkPane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr || run->links() == 0) return {};
  const auto step = axis().stepAt(position.x(), run->steps());
  if (!step) return {};
  const Columns<float> c = linkColumns(*run, oneStep(*step), 1);
  const auto busiest =
      static_cast<std::size_t>(std::max_element(c.max.begin(), c.max.end()) - c.max.begin());
  QString text = tr("%1: busiest link %2 %3")
                     .arg(stepText(*run, *step), qs(run->data().inventory.links[busiest].name),
                          qs(percentText(static_cast<double>(c.max[busiest]))));
  for (const std::size_t k : m_links) {
    text += QStringLiteral(" · %1 %2")
                .arg(qs(run->data().inventory.links[k].name),
                     qs(percentText(static_cast<double>(c.max[k]))));
  }
  return text;
}

namespace {

/// Pixels: from here on a step is drawn as phases in turn, and with arrows.
constexpr double kWideStep = 24, kArrowStep = 160;
/// Steps on screen up to which lanes of an axis of time follow their replica's own steps.
constexpr double kOwnSteps = 20000;

/// [top, bottom) of a lane in pixels of the plot, with a gap below where it is thick enough.
std::pair<int, int> laneRows(std::size_t lane, std::size_t lanes, int height, int gap) {
  const auto n = static_cast<double>(lanes);
  const int y0 = static_cast<int>(static_cast<double>(lane) * height / n);
  int y1 = static_cast<int>(static_cast<double>(lane + 1) * height / n);
  if (y1 - y0 >= 6) y1 -= gap;
  return {y0, y1};
}

}  // namespace

// ---- timeline ----------------------------------------------------------------------------------

TimelinePane::TimelinePane(ViewState* state, QWidget* parent)
    : TimePane(state, QStringLiteral("timeline"), parent) {
  setAccessibleName(tr("Phases of each GPU over steps"));
  connect(state, &ViewState::runChanged, this, &TimelinePane::refresh);
  connect(state, &ViewState::gpuChanged, this, qOverload<>(&QWidget::update));
  refresh();
}

void TimelinePane::refresh() {
  m_steps.clear();
  const RunStore* run = m_state->run();
  if (run == nullptr || !run->hasSteps()) return;
  m_steps.resize(enginesOf(run->data().inventory));
  for (std::uint32_t s = 0; s < run->data().steps.size(); ++s) {
    const std::uint32_t engine = run->data().steps[s].engine;
    if (engine < m_steps.size()) m_steps[engine].push_back(s);
  }
}

QString TimelinePane::title() const { return tr("GPU time"); }
QString TimelinePane::detail() const {
  if (m_state->run() != nullptr && axis().pixelsPerStep() >= kWideStep &&
      lanes(plotRect()).per == 1) {
    return tr(
        "phases in turn (sums over layers); at the cursor: share waiting; outlined: the GPU that "
        "others waited for; zigzag: phases thinner than a pixel");
  }
  return tr("share by phase; at the cursor: share waiting; zigzag: several steps in a pixel");
}

namespace {

/// Phases of run::kPhaseNames where all names do not fit: no two look alike.
constexpr std::array<std::string_view, run::kPhases> kPhaseBriefs = {
    "host", "attn", "router", "disp", "expert", "comb", "dense", "coll", "head", "wait"};

}  // namespace

std::vector<TimePane::LegendItem> TimelinePane::legend() const {
  std::vector<LegendItem> items;
  const RunStore* run = m_state->run();
  if (run == nullptr) return items;
  if (run->levels() == 0) return items;
  const auto top = run->bins<std::int64_t, std::int64_t>(run::LodSeries::kGpuPhase, kAllLayers,
                                                         run::LodPart::kSum, run->levels(), 0);
  const std::int64_t* all = top.sum;
  for (std::size_t p = 0; p < run::kPhases; ++p) {
    bool used = false;
    for (std::size_t g = 0; g < run->gpus(); ++g) used = used || all[g * run::kPhases + p] > 0;
    if (!used) continue;
    items.push_back(
        {qs(run::kPhaseNames[p]), m_state->theme().phases[p], Qt::NoPen, qs(kPhaseBriefs[p])});
  }
  if (criticalStep()) items.push_back({tr("critical"), m_state->theme().accent});
  return items;
}

std::optional<std::uint32_t> TimelinePane::criticalStep() const {
  const RunStore* run = m_state->run();
  if (run == nullptr || run->data().critical_path.empty()) return std::nullopt;
  const std::uint32_t step = run->data().critical_path.front().step;
  const TimeWindow w = m_state->window();
  if (step >= run->steps() || static_cast<double>(step) + 1 <= w.first ||
      static_cast<double>(step) >= w.end) {
    return std::nullopt;
  }
  return step;
}

void TimelinePane::drawStrip(QPainter& painter, const QRect& plot) {
  const Theme& theme = m_state->theme();
  const auto columns = static_cast<std::size_t>(plot.width());
  const std::vector<double> edges = columnEdges(m_state->timeScale(), m_state->window(), columns);
  std::vector<std::uint8_t> more = m_thin;
  more.resize(columns, 0);
  for (std::size_t x = 0; x < columns; ++x) {
    if (edges[x + 1] - edges[x] > 1 + 1e-9) more[x] = 1;
  }
  m_drawn.moreInside =
      static_cast<std::size_t>(std::count(more.begin(), more.end(), std::uint8_t{1}));
  drawZigzag(painter, more, plot.left(), plot.top() - 6, theme.muted);
  if (const auto step = criticalStep()) {
    const TimeAxis a = axis();
    const auto s = static_cast<double>(*step);
    const double x0 = std::max<double>(plot.left(), a.xOf(s));
    const double x1 = std::min<double>(plot.right(), std::max(a.xOf(s + 1), x0 + 3));
    painter.fillRect(QRectF(x0, plot.top() - 6, x1 - x0, 4), theme.window);
    painter.fillRect(QRectF(x0, plot.top() - 5, x1 - x0, 3), theme.accent);
  }
}

QSize TimelinePane::openMinimum() const {
  // Eight GPUs have a lane each.
  return {200, headerHeight() + stripHeight() + 8 * 6 + 4};
}

std::size_t TimelinePane::namedLanes(double height) const {
  const auto line = static_cast<double>(lineHeight()) - 1;
  return height > 0 ? std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(line / height)))
                    : 1;
}

std::size_t TimelinePane::gpusPerLane(int height) const {
  const std::size_t gpus = m_state->run() != nullptr ? m_state->run()->gpus() : 0;
  if (folded()) return std::max<std::size_t>(1, gpus);  // one lane: the mean of all
  const auto lanes = static_cast<std::size_t>(std::max(1, height / 6));
  return std::max<std::size_t>(1, (gpus + lanes - 1) / lanes);
}

TimelinePane::Lanes TimelinePane::lanes(const QRect& plot) const {
  Lanes l;
  const std::size_t gpus = m_state->run() != nullptr ? m_state->run()->gpus() : 0;
  l.per = gpusPerLane(plot.height());
  l.count = (gpus + l.per - 1) / l.per;
  l.height = l.count > 0 ? plot.height() / static_cast<double>(l.count) : 0;
  return l;
}

std::size_t TimelinePane::gpuAt(int y) const {
  const QRect plot = plotRect();
  const Lanes l = lanes(plot);
  if (l.count == 0) return 0;
  const double lane =
      std::clamp((y - plot.top()) / l.height, 0.0, static_cast<double>(l.count) - 1);
  return static_cast<std::size_t>(lane) * l.per;
}

QString TimelinePane::laneName(std::size_t lane, std::size_t per) const {
  const run::Inventory& inv = m_state->run()->data().inventory;
  const std::size_t first = lane * per;
  const std::size_t last = std::min(first + per, m_state->run()->gpus()) - 1;
  const QString replica =
      enginesOf(inv) > 1 ? QStringLiteral("R%1 ").arg(inv.gpus[first].engine) : QString();
  return replica + (first == last ? QStringLiteral("GPU %1").arg(first)
                                  : QStringLiteral("GPU %1–%2").arg(first).arg(last));
}

int TimelinePane::gutterNeeded() const {
  const std::size_t gpus = m_state->run() != nullptr ? m_state->run()->gpus() : 0;
  const QFontMetrics m = fontMetrics();
  QString widest =
      gpus > 16 ? QStringLiteral("GPU %1–%1").arg(gpus - 1) : QStringLiteral("GPU %1").arg(gpus);
  if (m_state->run() != nullptr) {
    const std::uint32_t engines = enginesOf(m_state->run()->data().inventory);
    if (engines > 1) widest = QStringLiteral("R%1 ").arg(engines - 1) + widest;
  }
  return 4 + m.horizontalAdvance(widest) + 10 + m.horizontalAdvance(QStringLiteral("100 %")) + 10;
}

void TimelinePane::drawContent(QPainter& painter, const QRect& plot) {
  const RunStore& run = *m_state->run();
  const Theme& theme = m_state->theme();
  m_drawn = {};
  m_thin.assign(static_cast<std::size_t>(plot.width()), 0);
  const Lanes l = lanes(plot);
  if (l.count == 0 || run.steps() == 0) return;
  const qreal dpr = pixelRatio();
  const int w = std::max(1, qRound(plot.width() * dpr));
  const auto columns = static_cast<std::size_t>(w);
  const TimeScale* times = m_state->timeScale();
  const TimeWindow window = m_state->window();
  // [lane][column][phase]: time, or on an axis of time the share of the column's width.
  std::vector<double> time(l.count * columns * run::kPhases, 0.0);
  const auto cell = [&](std::size_t lane, std::size_t x) {
    return time.data() + (lane * columns + x) * run::kPhases;
  };
  const bool own = times != nullptr && !m_steps.empty() && window.length() <= kOwnSteps;
  if (own) {
    const double p0 = times->psOf(window.first);
    const double k = w / std::max(1.0, times->psOf(window.end) - p0);
    const auto& steps = run.data().steps;
    for (std::size_t engine = 0; engine < m_steps.size(); ++engine) {
      // Steps of one engine follow each other: the first that ends inside the window, and on.
      auto it = std::partition_point(
          m_steps[engine].begin(), m_steps[engine].end(),
          [&](std::uint32_t s) { return static_cast<double>(steps[s].end_ps) <= p0; });
      for (; it != m_steps[engine].end(); ++it) {
        const run::StepScalars& s = steps[*it];
        const double x0 = (static_cast<double>(s.start_ps) - p0) * k;
        const double x1 = (static_cast<double>(s.end_ps) - p0) * k;
        if (x0 >= w) break;
        if (!(x1 > x0)) continue;
        const std::int64_t* phases = run.gpuPhases(*it);
        const auto duration = static_cast<double>(s.end_ps - s.start_ps);
        const auto from = static_cast<std::size_t>(std::max(0.0, std::floor(x0)));
        const auto to = std::min(columns, static_cast<std::size_t>(std::ceil(x1)));
        for (std::size_t g = 0; g < run.gpus(); ++g) {
          if (run.data().inventory.gpus[g].engine != engine) continue;
          for (std::size_t x = from; x < to; ++x) {
            const double width =
                std::min(x1, static_cast<double>(x) + 1) - std::max(x0, static_cast<double>(x));
            double* c = cell(g / l.per, x);
            // The last lane may hold fewer GPUs.
            const std::size_t here = std::min(l.per, run.gpus() - g / l.per * l.per);
            for (std::size_t p = 0; p < run::kPhases; ++p) {
              c[p] += static_cast<double>(phases[g * run::kPhases + p]) / duration * width /
                      static_cast<double>(here);
            }
          }
        }
      }
    }
  } else {
    const Columns<std::int64_t> c =
        overColumns(times, window, columns,
                    [&](TimeWindow part, std::size_t n) { return phaseColumns(run, part, n); });
    for (std::size_t x = 0; x < columns; ++x) {
      for (std::size_t g = 0; g < run.gpus(); ++g) {
        double* to = cell(g / l.per, x);
        for (std::size_t p = 0; p < run::kPhases; ++p) {
          to[p] += c.sum[x * c.width + g * run::kPhases + p];
        }
      }
    }
    // Whatever the time, a lane is full where its GPUs had a part.
    for (std::size_t i = 0; i < l.count * columns; ++i) {
      double* t = time.data() + i * run::kPhases;
      double all = 0;
      for (std::size_t p = 0; p < run::kPhases; ++p) all += t[p];
      for (std::size_t p = 0; p < run::kPhases && all > 0; ++p) t[p] /= all;
    }
  }
  drawShares(painter, plot, l, time);
  if (l.per == 1 && run.hasSteps()) drawSteps(painter, plot, l);
  if (!folded()) drawStrip(painter, plot);
  // Between replicas.
  painter.setPen(theme.frame);
  for (std::size_t lane = 1; lane < l.count; ++lane) {
    const auto& gpus = run.data().inventory.gpus;
    if (gpus[lane * l.per].engine == gpus[lane * l.per - 1].engine) continue;
    const int y = plot.top() + laneRows(lane, l.count, plot.height(), 0).first - 1;
    painter.drawLine(plot.left() - 12, y, plot.right(), y);
  }
  for (std::size_t lane = 0; lane < l.count; lane += namedLanes(l.height)) {
    const int y = plot.top() + static_cast<int>((static_cast<double>(lane) + 0.5) * l.height);
    const QRect where(4, y - lineHeight() / 2, gutter() - 4, lineHeight());
    label(painter, where, Qt::AlignLeft | Qt::AlignVCenter, laneName(lane, l.per), theme.text);
  }
}

void TimelinePane::drawShares(QPainter& painter, const QRect& plot, const Lanes& l,
                              const std::vector<double>& time) {
  const Theme& theme = m_state->theme();
  const qreal dpr = pixelRatio();
  const int w = std::max(1, qRound(plot.width() * dpr));
  const int h = std::max(1, qRound(plot.height() * dpr));
  QImage image(w, h, QImage::Format_RGB32);
  image.setDevicePixelRatio(dpr);
  image.fill(theme.base);
  std::vector<QRgb> column(static_cast<std::size_t>(h));
  for (int x = 0; x < w; ++x) {
    std::fill(column.begin(), column.end(), theme.base.rgb());
    for (std::size_t lane = 0; lane < l.count; ++lane) {
      const auto [y0, y1] = laneRows(lane, l.count, h, qRound(dpr));
      const double* t =
          time.data() +
          (lane * static_cast<std::size_t>(w) + static_cast<std::size_t>(x)) * run::kPhases;
      double before = 0;
      for (std::size_t p = 0; p < run::kPhases; ++p) {
        const int from = y0 + static_cast<int>(std::lround(std::min(before, 1.0) * (y1 - y0)));
        before += t[p];
        const int to = y0 + static_cast<int>(std::lround(std::min(before, 1.0) * (y1 - y0)));
        fillRun(column.data(), from, to, theme.phases[p].rgb());
      }
    }
    for (int y = 0; y < h; ++y) {
      reinterpret_cast<QRgb*>(image.scanLine(y))[x] = column[static_cast<std::size_t>(y)];
    }
  }
  painter.drawImage(plot.topLeft(), image);
}

void TimelinePane::drawSteps(QPainter& painter, const QRect& plot, const Lanes& l) {
  const RunStore& run = *m_state->run();
  const Theme& theme = m_state->theme();
  const TimeAxis a = axis();
  const TimeWindow window = m_state->window();
  const bool time = m_state->timeScale() != nullptr;
  const auto& steps = run.data().steps;
  // So many steps cannot all be wide; on an axis of time single ones may be.
  if (!time && a.pixelsPerStep() < kWideStep) return;
  if (window.length() > kOwnSteps) return;
  const auto extent = [&](std::size_t s) -> std::pair<double, double> {
    if (time) {
      return {a.xOfPs(static_cast<double>(steps[s].start_ps)),
              a.xOfPs(static_cast<double>(steps[s].end_ps))};
    }
    return {a.xOf(static_cast<double>(s)), a.xOf(static_cast<double>(s) + 1)};
  };
  painter.setClipRect(plot);
  const auto box = [&](std::size_t gpu, double x0, double x1) {
    const auto [y0, y1] = laneRows(gpu, l.count, plot.height(), 1);
    return QRectF(x0, plot.top() + y0, x1 - x0, y1 - y0);
  };
  const auto middle = [&](std::size_t gpu) { return box(gpu, 0, 1).center().y(); };
  const auto head = [&](double x, double y, double direction) {
    painter.drawPolygon(
        QPolygonF({{x - 3, y - 5 * direction}, {x + 3, y - 5 * direction}, {x, y}}));
  };
  for (const std::vector<std::uint32_t>& engineSteps : m_steps) {
    // On an axis of time a step that began before the window may reach into it.
    auto it = std::partition_point(engineSteps.begin(), engineSteps.end(), [&](std::uint32_t s) {
      return time ? a.xOfPs(static_cast<double>(steps[s].end_ps)) <= plot.left()
                  : static_cast<double>(s) + 1 <= window.first;
    });
    for (; it != engineSteps.end(); ++it) {
      const std::size_t s = *it;
      const auto [x0, x1] = extent(s);
      if (x0 > plot.right() + 1) break;
      const auto duration = static_cast<double>(steps[s].end_ps - steps[s].start_ps);
      if (x1 - x0 < kWideStep || !(duration > 0)) continue;
      ++m_drawn.wideSteps;
      const std::int64_t* phases = run.gpuPhases(s);
      const double perPs = (x1 - x0) / duration;
      for (std::size_t g = 0; g < run.gpus(); ++g) {
        if (run.data().inventory.gpus[g].engine != steps[s].engine) continue;
        painter.fillRect(box(g, x0, x1), theme.base);
        double x = x0;
        for (std::size_t p = 0; p < run::kPhases; ++p) {
          const double next = x + static_cast<double>(phases[g * run::kPhases + p]) * perPs;
          if (next > x) painter.fillRect(box(g, x, next), theme.phases[p]);
          x = next;
        }
        // What is thinner than a pixel is drawn as one, over its neighbours, and marked.
        x = x0;
        for (std::size_t p = 0; p < run::kPhases; ++p) {
          const double width = static_cast<double>(phases[g * run::kPhases + p]) * perPs;
          const double at = std::floor(x);
          x += width;
          if (!(width > 0) || width >= 1 || at < plot.left() || at > plot.right()) continue;
          painter.fillRect(box(g, at, at + 1), theme.phases[p]);
          m_thin[static_cast<std::size_t>(at) - static_cast<std::size_t>(plot.left())] = 1;
        }
      }
      const std::uint32_t last = steps[s].straggler_gpu;
      if (last >= run.gpus()) continue;
      painter.setBrush(Qt::NoBrush);
      painter.setPen(QPen(theme.text, 1));
      const QRectF outline = box(last, x0, x1).adjusted(0.5, 0.5, -1.5, -0.5);
      if (l.height >= 10) {
        painter.drawRect(outline);
      } else {
        painter.drawLine(outline.bottomLeft(),
                         outline.bottomRight());  // a frame would hide the lane
      }
      ++m_drawn.outlines;
      if (x1 - x0 < kArrowStep || l.height < 10) continue;
      // Where an exchange ends: the others go on when the last one is done.
      std::size_t top = last;
      std::size_t bottom = last;
      for (std::size_t g = 0; g < run.gpus(); ++g) {
        if (run.data().inventory.gpus[g].engine != steps[s].engine) continue;
        top = std::min(top, g);
        bottom = std::max(bottom, g);
      }
      painter.setRenderHint(QPainter::Antialiasing);
      double x = x0;
      for (std::size_t p = 0; p < run::kPhases; ++p) {
        const auto t = static_cast<double>(phases[last * run::kPhases + p]);
        x += t * perPs;
        const auto phase = static_cast<run::Phase>(p);
        if (t <= 0 || (phase != run::Phase::kDispatch && phase != run::Phase::kCombine &&
                       phase != run::Phase::kCollective)) {
          continue;
        }
        painter.setPen(QPen(theme.text, 1.2));
        painter.setBrush(theme.text);
        painter.drawEllipse(QPointF(x, middle(last)), 2.5, 2.5);
        for (const std::size_t to : {top, bottom}) {
          if (to == last) continue;
          painter.drawLine(QPointF(x, middle(last)), QPointF(x, middle(to)));
          head(x, middle(to), to > last ? 1 : -1);
          ++m_drawn.arrows;
        }
      }
      painter.setRenderHint(QPainter::Antialiasing, false);
    }
  }
  drawCritical(painter, plot, l);
  painter.setClipping(false);
}

std::vector<TimelinePane::Critical> TimelinePane::criticalOn(const QRect& plot) const {
  // Pieces of one GPU that touch are one; then the narrowest one goes to a neighbour until each is
  // wide enough to be told from the next: what is lost is shorter than what is shown.
  constexpr double kLeast = 7;
  std::vector<Critical> all;
  const RunStore* run = m_state->run();
  if (run == nullptr || !run->hasSteps()) return all;
  const auto& steps = run->data().steps;
  const TimeAxis a = axis();
  const bool time = m_state->timeScale() != nullptr;
  if ((!time && a.pixelsPerStep() < kWideStep) || m_state->window().length() > kOwnSteps) {
    return all;
  }
  for (const run::CriticalEntry& e : run->data().critical_path) {
    if (e.gpu >= run->gpus() || e.step >= steps.size() || e.duration_ps <= 0) continue;
    const run::StepScalars& s = steps[e.step];
    const auto duration = static_cast<double>(s.end_ps - s.start_ps);
    const double x0 = time ? a.xOfPs(static_cast<double>(s.start_ps)) : a.xOf(e.step);
    const double x1 = time ? a.xOfPs(static_cast<double>(s.end_ps)) : a.xOf(e.step + 1.0);
    if (x1 - x0 < kWideStep || !(duration > 0) || x1 < plot.left() || x0 > plot.right()) continue;
    Critical c;
    c.step = e.step;
    c.gpu = e.gpu;
    c.pieces = 1;
    c.left = x0 + static_cast<double>(e.start_ps - s.start_ps) / duration * (x1 - x0);
    c.right = c.left + static_cast<double>(e.duration_ps) / duration * (x1 - x0);
    c.ps[static_cast<std::size_t>(e.phase)] = e.duration_ps;
    const auto same = [&](const Critical& b) {
      return b.step == c.step && b.gpu == c.gpu && c.left - b.right < 1;
    };
    if (!all.empty() && same(all.back())) {
      all.back().take(c);
    } else {
      all.push_back(c);
    }
  }
  while (all.size() > 1) {
    const auto width = [](const Critical& c) { return c.right - c.left; };
    const auto narrowest = std::min_element(all.begin(), all.end(),
                                            [&](auto& x, auto& y) { return width(x) < width(y); });
    if (width(*narrowest) >= kLeast) break;
    const auto at = static_cast<std::size_t>(narrowest - all.begin());
    // The wider neighbour of the same step.
    const bool before = at > 0 && all[at - 1].step == all[at].step;
    const bool after = at + 1 < all.size() && all[at + 1].step == all[at].step;
    if (!before && !after) break;
    const bool left = before && (!after || width(all[at - 1]) >= width(all[at + 1]));
    std::size_t into = left ? at - 1 : at + 1;
    const std::uint32_t gpu = all[into].gpu;
    all[into].take(all[at]);
    all[into].gpu = gpu;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
    if (!left) --into;
    // It may touch another one of its GPU now.
    if (into + 1 < all.size() && all[into + 1].step == all[into].step &&
        all[into + 1].gpu == all[into].gpu) {
      all[into].take(all[into + 1]);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(into + 1));
    }
    if (into > 0 && all[into - 1].step == all[into].step && all[into - 1].gpu == all[into].gpu) {
      all[into - 1].take(all[into]);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(into));
    }
  }
  return all;
}

void TimelinePane::Critical::take(const Critical& other) {
  left = std::min(left, other.left);
  right = std::max(right, other.right);
  pieces += other.pieces;
  for (std::size_t p = 0; p < run::kPhases; ++p) ps[p] += other.ps[p];
}

std::int64_t TimelinePane::Critical::total() const {
  return std::accumulate(ps.begin(), ps.end(), std::int64_t{0});
}

/// The chain of activities that fixed the end of the slowest step: an outline per GPU that held it,
/// and thin lines from each to the next one.
void TimelinePane::drawCritical(QPainter& painter, const QRect& plot, const Lanes& l) {
  const Theme& theme = m_state->theme();
  const std::vector<Critical> all = criticalOn(plot);
  const auto box = [&](const Critical& c) {
    const auto [y0, y1] = laneRows(c.gpu, l.count, plot.height(), 1);
    return QRectF(c.left, plot.top() + y0, c.right - c.left, y1 - y0);
  };
  QColor halo = theme.base;
  halo.setAlpha(200);
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setBrush(Qt::NoBrush);
  const auto both = [&](double width, auto&& draw) {
    painter.setPen(QPen(halo, width + 2, Qt::SolidLine, Qt::FlatCap, Qt::MiterJoin));
    draw();
    painter.setPen(QPen(theme.accent, width, Qt::SolidLine, Qt::FlatCap, Qt::MiterJoin));
    draw();
  };
  // Light: it is the outlines that say where the time went.
  QColor ground = theme.base;
  ground.setAlpha(110);
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].step != all[i - 1].step || all[i].gpu == all[i - 1].gpu) continue;
    const QRectF a = box(all[i - 1]);
    const QRectF b = box(all[i]);
    const bool down = b.top() > a.top();
    const double x = std::round((a.right() + b.left()) / 2) + 0.5;
    const QLineF line(x, down ? a.bottom() : a.top(), x, down ? b.top() : b.bottom());
    painter.setPen(QPen(ground, 2));
    painter.drawLine(line);
    painter.setPen(QPen(theme.accent, 1));
    painter.drawLine(line);
  }
  const double width = l.height >= 12 ? 1.6 : 1;
  for (const Critical& c : all) {
    const QRectF outline = box(c).adjusted(0.8, 0.8, -0.8, -0.8);
    both(width, [&] { painter.drawRect(outline); });
    ++m_drawn.criticalOutlines;
    m_drawn.criticalPieces += c.pieces;
  }
  painter.setRenderHint(QPainter::Antialiasing, false);
  // How long, where there is room for it.
  for (const Critical& c : all) {
    const QString text = qs(timeText(static_cast<double>(c.total())));
    const QRectF shown = box(c).intersected(QRectF(plot));
    const int wanted = fontMetrics().horizontalAdvance(text) + 8;
    if (shown.width() < wanted + 6 || shown.height() < lineHeight() - 3) continue;
    const QRect where(qRound(shown.center().x()) - wanted / 2,
                      qRound(shown.center().y()) - lineHeight() / 2, wanted, lineHeight());
    painter.fillRect(where.adjusted(0, 2, 0, -2), halo);
    label(painter, where, Qt::AlignCenter, text, theme.accent);
  }
}

void TimelinePane::drawOverlay(QPainter& painter, const QRect& plot) {
  const Lanes l = lanes(plot);
  if (m_state->gpu() != run::kNone && l.count > 0 && m_state->gpu() < m_state->run()->gpus() &&
      !folded()) {
    const auto [y0, y1] = laneRows(m_state->gpu() / l.per, l.count, plot.height(), 0);
    const QRect lane(plot.left() - 1, plot.top() + y0 - 1, plot.width() + 1, y1 - y0 + 1);
    painter.setBrush(Qt::NoBrush);
    painter.setPen(QPen(Qt::black, 3));
    painter.drawRect(lane);
    painter.setPen(QPen(Qt::white, 1));
    painter.drawRect(lane);
  }
  TimePane::drawOverlay(painter, plot);
}

void TimelinePane::clicked(const QPoint& position) {
  const RunStore* run = m_state->run();
  if (run == nullptr || run->gpus() == 0 || !plotRect().contains(position)) return;
  if (const auto step = axis().stepAt(position.x(), run->steps())) m_state->setCursor(step);
  m_state->setGpu(static_cast<std::uint32_t>(gpuAt(position.y())));
}

namespace {

/// "40 %" of the time of these GPUs.
QString waitShare(const Columns<std::int64_t>& c, std::size_t begin, std::size_t end) {
  constexpr auto kWait = static_cast<std::size_t>(run::Phase::kWait);
  double all = 0;
  double wait = 0;
  for (std::size_t g = begin; g < end; ++g) {
    for (std::size_t p = 0; p < run::kPhases; ++p) all += c.sum[g * run::kPhases + p];
    wait += c.sum[g * run::kPhases + kWait];
  }
  return all > 0 ? QStringLiteral("%1 %").arg(qRound(wait / all * 100)) : QObject::tr("n/a");
}

}  // namespace

void TimelinePane::drawCursorValues(QPainter& painter, const QRect& plot, std::uint64_t step) {
  const RunStore& run = *m_state->run();
  if (run.gpus() == 0) return;
  const Columns<std::int64_t> c = phaseColumns(run, oneStep(step), 1);
  const std::size_t per = gpusPerLane(plot.height());
  const std::size_t lanes = (run.gpus() + per - 1) / per;
  const double height = plot.height() / static_cast<double>(lanes);
  if (folded()) {
    foldedValue(painter, tr("wait %1").arg(waitShare(c, 0, run.gpus())));
    return;
  }
  for (std::size_t lane = 0; lane < lanes; lane += namedLanes(height)) {
    const int y = plot.top() + static_cast<int>((static_cast<double>(lane) + 0.5) * plot.height() /
                                                static_cast<double>(lanes));
    const QRect where(2, y - lineHeight() / 2, gutter() - 8, lineHeight());
    const QString text = waitShare(c, lane * per, std::min(run.gpus(), (lane + 1) * per));
    label(painter, where, Qt::AlignRight | Qt::AlignVCenter, text, m_state->theme().accent);
  }
}

QString TimelinePane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  const QRect plot = plotRect();
  if (run == nullptr || run->gpus() == 0 || !plot.united(besidePlot()).contains(position)) {
    return {};
  }
  // Beside the plot stand the cursor's numbers.
  const bool beside = !plot.contains(position);
  const auto step = beside ? m_state->cursor() : axis().stepAt(position.x(), run->steps());
  if (!step) return {};
  const std::size_t per = gpusPerLane(plot.height());
  const std::size_t lanes = (run->gpus() + per - 1) / per;
  const auto lane =
      std::min(lanes - 1, static_cast<std::size_t>((position.y() - plot.top()) *
                                                   static_cast<double>(lanes) / plot.height()));
  const Columns<std::int64_t> c = phaseColumns(*run, oneStep(*step), 1);
  if (beside) {
    return tr("%1: %2 of %3 waiting, the share at the cursor")
        .arg(laneName(lane, per), waitShare(c, lane * per, std::min(run->gpus(), (lane + 1) * per)),
             stepText(*run, *step));
  }
  QString text = QStringLiteral("%1, %2:").arg(laneName(lane, per), stepText(*run, *step));
  for (std::size_t p = 0; p < run::kPhases; ++p) {
    double t = 0;
    double n = 0;
    for (std::size_t g = lane * per; g < std::min(run->gpus(), (lane + 1) * per); ++g) {
      t += c.mean(0, g * run::kPhases + p);
      n += 1;
    }
    if (t > 0) text += QStringLiteral(" %1 %2").arg(qs(run::kPhaseNames[p]), qs(timeText(t / n)));
  }
  for (const Critical& c : criticalOn(plot)) {
    if (per != 1 || c.gpu != lane || position.x() < c.left || position.x() > c.right) continue;
    text += tr("; critical path %1:").arg(qs(timeText(static_cast<double>(c.total()))));
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      if (c.ps[p] == 0) continue;
      text += QStringLiteral(" %1 %2").arg(qs(run::kPhaseNames[p]),
                                           qs(timeText(static_cast<double>(c.ps[p]))));
    }
  }
  // On an axis of time the step that began last need not be this GPU's.
  if (run->hasSteps() && enginesOf(run->data().inventory) > 1 && lane * per < run->gpus()) {
    const std::uint32_t mine = run->data().inventory.gpus[lane * per].engine;
    const std::uint32_t its = run->data().steps[static_cast<std::size_t>(*step)].engine;
    if (mine != its) text += tr(" (a step of replica %1)").arg(its);
  }
  return text;
}

// ---- minimap -----------------------------------------------------------------------------------

MinimapPane::MinimapPane(ViewState* state, QWidget* parent)
    : TimePane(state, QStringLiteral("minimap"), parent) {
  connect(state, &ViewState::bookmarksChanged, this, qOverload<>(&QWidget::update));
  connect(state, &ViewState::runChanged, this, [this] { m_perColumn.clear(); });
  setAccessibleName(tr("Whole run, with the steps on screen as a handle"));
  setToolTip(tr(
      "Whole run: overflow per step (bars), events (ticks; zigzag: several in a pixel). Drag the "
      "frame or its edges; click to centre."));
  setFixedHeight(sizeHint().height());
}

int MinimapPane::gutterNeeded() const {
  return fontMetrics().horizontalAdvance(tr("whole run")) + 14;
}
QSize MinimapPane::sizeHint() const { return {400, std::max(30, lineHeight() + 8)}; }

TimeWindow MinimapPane::shownWindow() const { return {0, static_cast<double>(m_state->steps())}; }

void MinimapPane::drawContent(QPainter& painter, const QRect& plot) {
  const RunStore& run = *m_state->run();
  const Theme& theme = m_state->theme();
  label(painter, gutterLine(plot.center().y()), Qt::AlignRight | Qt::AlignVCenter, tr("whole run"),
        theme.muted);
  const auto columns = static_cast<std::size_t>(plot.width());
  const Columns<double> c =
      overColumns(m_state->timeScale(), shownWindow(), columns,
                  [&](TimeWindow w, std::size_t n) { return seriesColumns(run, w, n); });
  double top = 0;
  for (std::size_t col = 0; col < columns; ++col)
    top = std::max(top, c.max[col * c.width + kOverflow]);
  m_outlineTop = 0;
  if (top == 0) {
    // No overflow: how long steps take tells the parts of the run from each other.
    for (std::size_t col = 0; col < columns; ++col) {
      m_outlineTop = std::max(m_outlineTop, c.max[col * c.width + kDuration]);
    }
    int before = -1;
    for (std::size_t col = 0; col < columns && m_outlineTop > 0; ++col) {
      const double share = c.max[col * c.width + kDuration] / m_outlineTop;
      const int y = plot.bottom() - qRound(share * (plot.height() - 10));
      const int from = before < 0 ? y : std::min(before, y);
      painter.fillRect(QRect(plot.left() + static_cast<int>(col), from, 1,
                             before < 0 ? 1 : std::abs(y - before) + 1),
                       theme.muted);
      before = y;
    }
  }
  for (std::size_t col = 0; col < columns && top > 0; ++col) {
    const double v = c.max[col * c.width + kOverflow];
    if (v <= 0) continue;
    const int height = std::max(2, qRound(v / top * (plot.height() - 7)));
    painter.fillRect(
        QRect(plot.left() + static_cast<int>(col), plot.bottom() + 1 - height, 1, height),
        theme.overflow);
  }
  const std::vector<std::uint32_t>& events = eventsPerColumn(plot);
  std::vector<std::uint8_t> several(columns, 0);
  m_more = 0;
  for (std::size_t col = 0; col < columns; ++col) {
    if (events[col] == 0) continue;
    painter.fillRect(QRect(plot.left() + static_cast<int>(col), plot.top(), 1, 5), theme.text);
    several[col] = events[col] > 1 ? 1 : 0;
    m_more += several[col];
  }
  drawZigzag(painter, several, plot.left(), plot.top() + 7, theme.text);
}

const std::vector<std::uint32_t>& MinimapPane::eventsPerColumn(const QRect& plot) const {
  const auto columns = static_cast<std::size_t>(plot.width());
  if (m_perColumn.size() == columns && m_perColumnLeft == plot.left() &&
      m_perColumnScale == m_state->timeScale()) {
    return m_perColumn;
  }
  const RunStore& run = *m_state->run();
  m_perColumn.assign(columns, 0);
  m_perColumnLeft = plot.left();
  m_perColumnScale = m_state->timeScale();
  m_placed += run.events().size();
  const TimeAxis a = axis();
  for (const run::Event& e : run.events()) {
    if (e.step >= run.steps()) continue;
    const int x = static_cast<int>(a.xOf(static_cast<double>(e.step) + 0.5)) - plot.left();
    ++m_perColumn[static_cast<std::size_t>(std::clamp(x, 0, plot.width() - 1))];
  }
  return m_perColumn;
}

void MinimapPane::drawOverlay(QPainter& painter, const QRect& plot) {
  const Theme& theme = m_state->theme();
  const TimeAxis a = axis();
  const TimeWindow w = m_state->window();
  const double x0 = a.xOf(w.first);
  const double x1 = a.xOf(w.end);
  QColor veil = theme.window;
  veil.setAlpha(170);
  painter.fillRect(QRectF(plot.left(), plot.top(), x0 - plot.left(), plot.height()), veil);
  painter.fillRect(QRectF(x1, plot.top(), plot.left() + plot.width() - x1, plot.height()), veil);
  painter.setPen(QPen(theme.highlight, 2));
  painter.setBrush(Qt::NoBrush);
  painter.drawRect(QRectF(x0, plot.top(), std::max(2.0, x1 - x0 - 1), plot.height() - 1));
  for (const Bookmark& b : m_state->bookmarks()) {
    const double x = a.xOf(static_cast<double>(b.step) + 0.5);
    painter.setPen(Qt::NoPen);
    painter.setBrush(theme.highlight);
    painter.drawPolygon(
        QPolygonF({{x - 4, plot.top() + 0.0}, {x + 4, plot.top() + 0.0}, {x, plot.top() + 7.0}}));
  }
  if (const auto step = m_state->cursor()) {
    const int x = static_cast<int>(a.xOf(static_cast<double>(*step) + 0.5));
    painter.fillRect(QRect(x, plot.top(), 1, plot.height()), theme.accent);
  }
}

QString MinimapPane::describe(const QPoint& position) const {
  const RunStore* run = m_state->run();
  if (run == nullptr) return {};
  const auto step = axis().stepAt(position.x(), run->steps());
  if (!step) return {};
  const Columns<double> c = seriesColumns(*run, oneStep(*step), 1);
  const QRect plot = plotRect();
  const auto column =
      static_cast<std::size_t>(std::clamp(position.x() - plot.left(), 0, plot.width() - 1));
  const std::uint32_t events = eventsPerColumn(plot)[column];
  QString text =
      tr("%1: %2 assignments over capacity")
          .arg(stepText(*run, *step), count(static_cast<std::uint64_t>(c.max[kOverflow])));
  if (m_outlineTop > 0) {
    text += tr(", %1 long; line: step time, up to %2")
                .arg(qs(timeText(c.max[kDuration])), qs(timeText(m_outlineTop)));
  }
  if (events > 0) text += tr("; events in this pixel: %1").arg(events);
  return text;
}

void MinimapPane::mousePressEvent(QMouseEvent* event) {
  if (event->button() != Qt::LeftButton || m_state->steps() == 0) return;
  const TimeAxis a = axis();
  const TimeWindow w = m_state->window();
  const double x = event->position().x();
  const double t = a.tOf(x);
  const double x0 = a.xOf(w.first);
  const double x1 = a.xOf(w.end);
  if (std::abs(x - x0) <= 5 && x1 - x0 > 12) {
    m_grip = Grip::kLeft;
  } else if (std::abs(x - x1) <= 5 && x1 - x0 > 12) {
    m_grip = Grip::kRight;
  } else {
    m_grip = Grip::kBody;
    m_grabbed = x;
    m_grabbedWindow = w;
    if (t < w.first || t > w.end) {
      const double middle = (x0 + x1) / 2;
      const double share = x1 > x0 ? (x - middle) / (x1 - x0) : 0;
      m_grabbedWindow = m_state->panned(w, share);
      m_state->setWindow(m_grabbedWindow, ViewState::Move::kJump);
    }
  }
}

void MinimapPane::mouseMoveEvent(QMouseEvent* event) {
  const double t =
      std::clamp(axis().tOf(event->position().x()), 0.0, static_cast<double>(m_state->steps()));
  const TimeWindow w = m_state->window();
  switch (m_grip) {
    case Grip::kNone:
      setCursor(Qt::ArrowCursor);
      emit hovered(describe(event->pos()));
      break;
    case Grip::kBody: {
      // The width on screen stays, on either axis.
      const double width = axis().xOf(m_grabbedWindow.end) - axis().xOf(m_grabbedWindow.first);
      if (width > 0) {
        m_state->setWindow(
            m_state->panned(m_grabbedWindow, (event->position().x() - m_grabbed) / width),
            ViewState::Move::kContinuous);
      }
      break;
    }
    case Grip::kLeft:
      m_state->setWindow({std::min(t, w.end - kMinWindowSteps), w.end},
                         ViewState::Move::kContinuous);
      break;
    case Grip::kRight:
      m_state->setWindow({w.first, std::max(t, w.first + kMinWindowSteps)},
                         ViewState::Move::kContinuous);
      break;
  }
}

void MinimapPane::mouseReleaseEvent(QMouseEvent*) { m_grip = Grip::kNone; }

// ---- axis --------------------------------------------------------------------------------------

AxisPane::AxisPane(ViewState* state, QWidget* parent)
    : TimePane(state, QStringLiteral("axis"), parent) {
  connect(state, &ViewState::bookmarksChanged, this, qOverload<>(&QWidget::update));
  setAccessibleName(tr("Step numbers and simulated times"));
  setFixedHeight(sizeHint().height());
}

QSize AxisPane::sizeHint() const { return {400, 2 * lineHeight() + 10}; }

int AxisPane::halfLabel() const {
  const QFontMetrics m = fontMetrics();
  const QString step = count(std::max<std::uint64_t>(m_state->steps(), 1));
  return std::max(m.horizontalAdvance(step), m.horizontalAdvance(QStringLiteral("000.0 ms"))) / 2 +
         4;
}

int AxisPane::gutterNeeded() const {
  const QFontMetrics m = fontMetrics();
  const QString step = tr("step %1").arg(count(std::max<std::uint64_t>(m_state->steps(), 1)));
  return 4 +
         std::max(m.horizontalAdvance(step), m.horizontalAdvance(QStringLiteral("at 000.0 ms"))) +
         6 + halfLabel();
}

void AxisPane::drawContent(QPainter& painter, const QRect& plot) {
  const RunStore& run = *m_state->run();
  if (run.steps() == 0) return;
  const Theme& theme = m_state->theme();
  const TimeAxis a = axis();
  const int room = 2 * halfLabel() + 16;
  const int most = std::max(2, plot.width() / room);
  const auto tick = [&](double at, const QString& above, const QString& below) {
    const int x = qRound(at);
    painter.setPen(theme.frame);
    painter.drawLine(x, plot.top() - 2, x, plot.top() + 2);
    const QRect where(x - halfLabel(), plot.top() + 3, 2 * halfLabel(), lineHeight());
    label(painter, where, Qt::AlignHCenter | Qt::AlignVCenter, above, theme.text);
    label(painter, where.translated(0, lineHeight()), Qt::AlignHCenter | Qt::AlignVCenter, below,
          theme.muted);
  };
  if (const TimeScale* times = m_state->timeScale()) {
    const TimeWindow w = m_state->window();
    for (const double ps : timeTicks(times->psOf(w.first), times->psOf(w.end), most)) {
      const auto step = std::min(run.steps() - 1, static_cast<std::uint64_t>(times->stepOf(ps)));
      tick(a.xOfPs(ps), qs(tickText(ps)), count(step));
    }
    return;
  }
  for (const std::uint64_t s : stepTicks(m_state->window(), run.steps(), most)) {
    // The step after the last one is a place, not a step.
    if (s >= run.steps()) continue;
    tick(a.xOf(static_cast<double>(s)), count(s),
         qs(roundedTickText(static_cast<double>(run.startPs(s)))));
  }
}

void AxisPane::drawNames(QPainter& painter, const QRect& plot, const QString& step,
                         const QString& time, const QColor& color) {
  const int right = gutter() - halfLabel() - 6;
  const QRect where(2, plot.top() + 3, right - 2, lineHeight());
  label(painter, where, Qt::AlignRight | Qt::AlignVCenter, step, color);
  label(painter, where.translated(0, lineHeight()), Qt::AlignRight | Qt::AlignVCenter, time, color);
}

void AxisPane::drawOverlay(QPainter& painter, const QRect& plot) {
  const Theme& theme = m_state->theme();
  const bool time = m_state->timeScale() != nullptr;
  const TimeAxis a = axis();
  const TimeWindow w = m_state->window();
  for (const Bookmark& b : m_state->bookmarks()) {
    const double t = static_cast<double>(b.step) + 0.5;
    if (t < w.first || t > w.end) continue;
    const double x = a.xOf(t);
    painter.setPen(Qt::NoPen);
    painter.setBrush(theme.highlight);
    painter.drawPolygon(
        QPolygonF({{x - 4, plot.top() - 2.0}, {x + 4, plot.top() - 2.0}, {x, plot.top() + 5.0}}));
  }
  QString step = tr("step");
  QString at = time ? tr("time") : tr("starts at");
  if (const auto cursor = m_state->cursor()) {
    step = tr("step %1").arg(count(*cursor));
    at = tr("at %1").arg(qs(timeText(static_cast<double>(m_state->run()->startPs(*cursor)))));
  }
  drawNames(painter, plot, time ? at : step, time ? step : at,
            m_state->cursor() ? theme.accent : theme.muted);
}

QString AxisPane::describe(const QPoint& position) const {
  const TimeAxis a = axis();
  for (const Bookmark& b : m_state->bookmarks()) {
    if (std::abs(a.xOf(static_cast<double>(b.step) + 0.5) - position.x()) > 5) continue;
    return tr("bookmark: step %1%2")
        .arg(count(b.step), b.name.isEmpty() ? QString() : QStringLiteral(", ") + b.name);
  }
  return {};
}

}  // namespace switchyard::gui
