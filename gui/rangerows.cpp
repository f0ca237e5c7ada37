// SPDX-License-Identifier: Apache-2.0
#include "gui/rangerows.hpp"

#include <algorithm>
#include <map>

#include "gui/core/views.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

using Rows = std::vector<InspectorModel::Row>;

QString tr(const char* text) { return QObject::tr(text); }

/// What the scalars of the steps sum to.
struct Sums {
  std::uint64_t assignments = 0, overflow = 0, rerouted = 0, queued = 0, dropped = 0, tokens = 0;
  std::uint64_t queue = 0;
  double sent = 0, hbm = 0;
  double imbalance = 0, worst = 0, measured = 0;
  double entropy = 0, entropySteps = 0;
  double longest = 0;                                // ps
  std::map<std::uint32_t, std::uint64_t> straggler;  // GPU → steps
};

Sums sumsOf(const RunStore& run, StepRange range) {
  Sums t;
  for (std::uint64_t i = range.first; i < range.end; ++i) {
    const run::StepScalars& s = run.data().steps[static_cast<std::size_t>(i)];
    const auto duration = static_cast<double>(s.end_ps - s.start_ps);
    t.tokens += s.tokens;
    t.assignments += s.assignments;
    t.overflow += s.overflow;
    t.rerouted += s.rerouted;
    t.queued += s.queued;
    t.dropped += s.dropped;
    t.queue = std::max<std::uint64_t>(t.queue, s.longest_queue);
    t.sent += static_cast<double>(s.bytes_sent);
    t.hbm += static_cast<double>(s.hbm_bytes);
    t.longest = std::max(t.longest, duration);
    if (s.imbalance == s.imbalance) {
      t.imbalance += s.imbalance;
      t.measured += 1;
      t.worst = std::max(t.worst, static_cast<double>(s.imbalance_max));
    }
    if (s.gate_entropy == s.gate_entropy) {
      t.entropy += s.gate_entropy;
      t.entropySteps += 1;
    }
    if (s.straggler_gpu != run::kNone) ++t.straggler[s.straggler_gpu];
  }
  return t;
}

/// Time-weighted use of each link: the share of its capacity over the time of the steps.
void addBusiestLink(Rows& rows, const RunStore& run, StepRange range) {
  if (run.links() == 0) return;
  std::vector<double> use(run.links(), 0);
  double time = 0;
  for (std::uint64_t i = range.first; i < range.end; ++i) {
    const run::StepScalars& s = run.data().steps[static_cast<std::size_t>(i)];
    const auto duration = static_cast<double>(s.end_ps - s.start_ps);
    time += duration;
    for (std::size_t k = 0; k < use.size(); ++k) use[k] += run.linkUse(i, k) * duration;
  }
  const auto busiest =
      static_cast<std::size_t>(std::max_element(use.begin(), use.end()) - use.begin());
  rows.push_back({tr("busiest link"), qs(run.data().inventory.links[busiest].name),
                  tr("Largest share of capacity over the time of these steps"),
                  QStringLiteral("link:%1").arg(busiest)});
  rows.push_back({tr("  use"), qs(percentText(time > 0 ? use[busiest] / time : 0)), {}});
}

void addExpert(Rows& rows, const RunStore& run, StepRange range, std::uint32_t layer,
               std::uint32_t expert) {
  std::uint64_t kept = 0, overflow = 0, capacity = 0;
  bool limited = true;
  for (std::uint64_t i = range.first; i < range.end; ++i) {
    const ExpertRow r = run.expertRow(layer, i);
    kept += r.kept[expert];
    overflow += r.overflow[expert];
    limited = limited && r.capacity[expert] != run::kUnlimited;
    if (limited) capacity += r.capacity[expert];
  }
  const QString name = qs(expertName(expert, run.experts()));
  rows.push_back({name, tr("%1 tokens").arg(count(kept)), tr("Sum over the steps"),
                  QStringLiteral("expert:%1").arg(expert)});
  rows.push_back({name + tr(" capacity"), limited ? count(capacity) : tr("no limit"),
                  tr("Sum over the steps")});
  rows.push_back({name + tr(" overflow"), count(overflow), tr("Sum over the steps")});
}

void addGpu(Rows& rows, const RunStore& run, StepRange range, std::uint32_t gpu) {
  std::vector<double> phases(run::kPhases, 0);
  double time = 0;
  std::uint64_t memory = 0;
  for (std::uint64_t i = range.first; i < range.end; ++i) {
    const run::StepScalars& s = run.data().steps[static_cast<std::size_t>(i)];
    const std::int64_t* row = run.gpuPhases(i) + gpu * run::kPhases;
    for (std::size_t p = 0; p < run::kPhases; ++p) phases[p] += static_cast<double>(row[p]);
    time += static_cast<double>(s.end_ps - s.start_ps);
    memory = std::max(memory, run.gpuMemoryPeak(i)[gpu]);
  }
  for (std::size_t p = 0; p < run::kPhases; ++p) {
    if (phases[p] == 0) continue;
    rows.push_back({QStringLiteral("%1 %2").arg(gpuName(gpu), qs(run::kPhaseNames[p])),
                    QStringLiteral("%1 (%2)").arg(qs(timeText(phases[p])),
                                                  qs(percentText(time > 0 ? phases[p] / time : 0))),
                    tr("Sum over the steps, and its share of their time"),
                    QStringLiteral("gpu:%1").arg(gpu)});
  }
  rows.push_back({gpuName(gpu) + tr(" memory"), qs(bytesText(static_cast<double>(memory))),
                  tr("High water in these steps"), QStringLiteral("pane:memory")});
}

}  // namespace

QString withShare(std::uint64_t n, std::uint64_t all) {
  if (all == 0) return count(n);
  return QStringLiteral("%1 (%2)").arg(
      count(n), qs(percentText(static_cast<double>(n) / static_cast<double>(all))));
}

Rows rowsOverRange(const RunStore& run, StepRange range, std::uint32_t expert, std::uint32_t layer,
                   std::uint32_t gpu) {
  Rows rows;
  const Sums t = sumsOf(run, range);
  const auto& first = run.data().steps[static_cast<std::size_t>(range.first)];
  const auto& last = run.data().steps[static_cast<std::size_t>(range.end - 1)];
  const auto span = static_cast<double>(last.end_ps - first.start_ps);
  const auto n = static_cast<double>(range.end - range.first);
  const auto add = [&](const QString& name, const QString& value, const QString& tip = {},
                       const QString& target = {}) {
    rows.push_back({name, value, tip, target});
  };
  const QString capacity = QStringLiteral("dock:capacity");
  add(tr("steps"), count(range.end - range.first));
  add(tr("simulated time"), qs(timeText(span)));
  add(tr("mean step time"), qs(timeText(span / n)),
      tr("Time from the first to the last step / steps"), QStringLiteral("pane:steptime"));
  add(tr("longest step"), qs(timeText(t.longest)), {}, QStringLiteral("pane:steptime"));
  add(tr("tokens"), count(t.tokens));
  add(tr("tokens/s"),
      span > 0 ? qs(shortNumber(static_cast<double>(t.tokens) / (span * 1e-12))) : tr("n/a"));
  add(tr("assignments"), count(t.assignments));
  add(tr("over capacity"), withShare(t.overflow, t.assignments), {}, capacity);
  add(tr("rerouted"), withShare(t.rerouted, t.assignments), {}, QStringLiteral("dock:reroutes"));
  add(tr("queued"), withShare(t.queued, t.assignments), {}, capacity);
  add(tr("dropped"), withShare(t.dropped, t.assignments), {}, capacity);
  add(tr("imbalance (max/mean)"),
      t.measured > 0 ? qs(shortNumber(t.imbalance / t.measured)) : tr("n/a"),
      tr(kImbalanceTip) + tr("; mean over layers and steps"), QStringLiteral("pane:imbalance"));
  add(tr("  largest layer"), t.measured > 0 ? qs(shortNumber(t.worst)) : tr("n/a"),
      tr(kImbalanceTip));
  const bool few = range.end - range.first <= kCapacitySteps;
  if (few) addBusiestLink(rows, run, range);
  const auto most =
      std::max_element(t.straggler.begin(), t.straggler.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  add(tr("straggler"),
      most == t.straggler.end()
          ? QStringLiteral("–")
          : tr("%1 (%2 of %3 steps)")
                .arg(gpuName(most->first), count(most->second), count(range.end - range.first)),
      tr("The GPU that others waited for longest, in most steps"),
      most == t.straggler.end() ? QString() : QStringLiteral("gpu:%1").arg(most->first));
  add(tr("longest queue"), count(t.queue), tr("Most assignments beyond capacity at one expert"));
  add(tr("gate entropy"),
      t.entropySteps > 0 ? qs(shortNumber(t.entropy / t.entropySteps)) + tr(" bit") : tr("n/a"),
      tr("Mean over the steps"), QStringLiteral("pane:entropy"));
  add(tr("sent"), qs(bytesText(t.sent)), {}, QStringLiteral("pane:links"));
  add(tr("HBM traffic"), qs(bytesText(t.hbm)));
  const bool oneExpert = expert != run::kNone && expert < run.experts();
  const bool oneGpu = gpu != run::kNone && gpu < run.gpus();
  // What was chosen stands directly below the range's own rows, where a click shows at once.
  constexpr std::ptrdiff_t kOwn = 4;
  const auto ofAll = static_cast<std::ptrdiff_t>(rows.size());
  if (few && oneExpert) addExpert(rows, run, range, layer, expert);
  if (few && oneGpu) addGpu(rows, run, range, gpu);
  std::rotate(rows.begin() + kOwn, rows.begin() + ofAll, rows.end());
  if (!few) {
    add(tr("links, expert, GPU"), tr("n/a"),
        tr("Summed over at most %1 steps; select fewer").arg(kCapacitySteps));
  }
  return rows;
}

}  // namespace switchyard::gui
