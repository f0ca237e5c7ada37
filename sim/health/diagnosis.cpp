// SPDX-License-Identifier: Apache-2.0
#include "sim/health/diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "engine/base/units.hpp"
#include "sim/health/exchange_share.hpp"
#include "sim/health/health_series.hpp"
#include "sim/run/diff.hpp"
#include "sim/run/metrics.hpp"

namespace switchyard::health {
namespace {

using run::Phase;

// Thresholds of the rules; where an article states one it is that.
constexpr double kFlat = 0.1;
constexpr double kDominantExpert = 0.9;  // S0: one expert has more than 90 % of the tokens.
constexpr double kSick = 2.5;            // S2: step time of one expert above 2.5 times the mean.
constexpr double kCollapse = 0.3;        // S3: load CV of a collapsed router.
constexpr double kRouterTuning = 0.1;    // S1: load CV that asks for router tuning.
constexpr double kIdleGpu = 0.4;         // S0, S4: GPUs busy with less than 40 %.
constexpr double kFullLink = 0.95;       // S0: PCIe above 95 %.
constexpr double kNoticed = 0.05;        // A share of the time that is worth a line.
constexpr double kTail = 1.5;            // p99 of step time above 1.5 times the median.
constexpr std::size_t kPathRows = 12;

std::size_t at(Phase p) { return static_cast<std::size_t>(p); }
std::string percent(double share) {
  return std::isnan(share) ? "n/a" : fmt::format("{:.1f} %", 100 * share);
}
std::string time(double ps) { return fmt::format("{:.3f}", ps * 1e-6); }

/// Neighbouring GPUs that divide the columns of each expert (attention = "tp" and ep < tp), by the
/// run's scenario: those of the prefill replicas' own layout, which are the first GPUs, and others.
struct ExpertColumns {
  std::uint32_t prefill_gpus = 0, prefill = 1, others = 1;
  [[nodiscard]] std::uint32_t of(std::uint32_t gpu) const {
    return gpu < prefill_gpus ? prefill : others;
  }
};
ExpertColumns gpus_of_an_expert(const run::RunData& run) {
  const auto entries = run::scenario_entries(run.meta.scenario_text);
  const auto number = [&](std::string_view key, std::uint32_t otherwise) {
    for (const auto& [name, value] : entries) {
      if (name == key) {
        return static_cast<std::uint32_t>(std::strtoul(value.c_str(), nullptr, 10));
      }
    }
    return otherwise;
  };
  const auto columns = [&](const std::string& layout) {
    const std::uint32_t tp = std::max(number(layout + ".tp", 1), 1U);
    return std::max(tp / std::max(number(layout + ".ep", 1), 1U), 1U);
  };
  return {number("parallel.prefill.gpus", 0), columns("parallel.prefill"), columns("parallel")};
}

class Examiner {
 public:
  Examiner(const run::RunData& run, const std::string& name)
      : run_(run), inv_(run.inventory), name_(name), exchange_(exchange_share(run)) {
    const run::Totals& t = run.totals;
    for (std::size_t g = 0; g < inv_.gpus.size(); ++g) {
      for (std::size_t p = 0; p < run::kPhases; ++p) {
        gpu_total_ += static_cast<double>(t.gpu_phase_ps[g * run::kPhases + p]);
      }
    }
    std::int64_t begin = 0, end = 0;
    for (const run::StepScalars& s : run.steps) {
      if (s.warmup) continue;
      begin = steps_ == 0 ? s.start_ps : std::min(begin, s.start_ps);
      end = steps_ == 0 ? s.end_ps : std::max(end, s.end_ps);
      ++steps_;
      const auto d = static_cast<double>(s.end_ps - s.start_ps);
      time_ += d;
      durations_.push_back(d);
      for (std::size_t p = 0; p < run::kPhases; ++p) {
        phase_[p] += static_cast<double>(s.phase_ps[p]);
      }
    }
    if (!inv_.gpus.empty()) {
      balance_gain_ = std::max(0.0, phase_[at(Phase::kExpert)] - mean_of_gpus(at(Phase::kExpert)));
    }
    // Without steps (detail "summary") a step's time is only known through the GPUs' clocks.
    if (steps_ == 0 && !inv_.gpus.empty()) {
      time_ = gpu_total_ / static_cast<double>(inv_.gpus.size());
    }
    span_ = steps_ == 0 ? time_ : static_cast<double>(end - begin);
  }

  Diagnosis examine() {
    memory();
    expert_loads();
    faults();
    capacity();
    experts();
    flat_router();
    imbalance();
    links();
    exchanges();
    exchange_bound();
    host();
    tail();
    requests();
    std::stable_sort(out_.findings.begin(), out_.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
    time_table();
    path_table();
    straggler_table();
    link_table();
    finding_table();
    return std::move(out_);
  }

 private:
  /// [replicas] GPUs of each. A step is of one: the others' GPUs have no time in it.
  [[nodiscard]] std::vector<std::size_t> gpus_of_steps() const {
    std::vector<std::size_t> n(1, 0);
    for (const run::GpuInfo& g : inv_.gpus) {
      if (g.engine >= n.size()) n.resize(g.engine + 1, 0);
      ++n[g.engine];
    }
    return n;
  }
  /// Of the largest replica.
  [[nodiscard]] std::size_t gpus_of_a_step() const {
    const std::vector<std::size_t> n = gpus_of_steps();
    return *std::max_element(n.begin(), n.end());
  }
  /// A phase in all steps, mean of the GPUs that were in each; ps.
  [[nodiscard]] double mean_of_gpus(std::size_t phase) const {
    const std::vector<std::size_t> n = gpus_of_steps();
    std::map<std::size_t, double> sum;  // by GPUs of the replica
    for (std::size_t g = 0; g < inv_.gpus.size(); ++g) {
      sum[n[inv_.gpus[g].engine]] +=
          static_cast<double>(run_.totals.gpu_phase_ps[g * run::kPhases + phase]);
    }
    double mean = 0;
    for (const auto& [gpus, ps] : sum) mean += ps / static_cast<double>(gpus);
    return mean;
  }
  [[nodiscard]] double share(Phase p) const {
    return time_ > 0 ? phase_[at(p)] / time_ : run::kNoData;
  }
  /// Shares of the time that an even spread of the assignments would save.
  [[nodiscard]] double even_experts() const { return time_ > 0 ? balance_gain_ / time_ : 0; }
  [[nodiscard]] double even_exchanges() const {
    return time_ > 0 ? exchange_.even_gain / time_ : 0;
  }
  /// Sorted by the bound; what loses results stands before all that only costs time.
  void find(std::string id, std::string symptom, std::string cause, std::string check,
            std::string cure, double bound, bool loses = false) {
    Finding f{std::move(id),
              std::move(symptom),
              std::move(cause),
              std::move(check),
              std::move(cure),
              bound,
              0};
    f.severity = (loses ? 2 : 0) + (std::isnan(bound) ? 0 : bound);
    out_.findings.push_back(std::move(f));
  }
  [[nodiscard]] std::string gpu(std::uint32_t g) const {
    return g < inv_.gpus.size() ? inv_.gpus[g].name : "-";
  }
  [[nodiscard]] std::size_t events(run::EventKind kind) const {
    return static_cast<std::size_t>(
        std::count_if(run_.events.begin(), run_.events.end(),
                      [&](const run::Event& e) { return e.kind == kind; }));
  }
  [[nodiscard]] double link_share(std::size_t k) const {
    return span_ > 0 ? static_cast<double>(run_.totals.link_busy_ps[k]) / span_ : 0;
  }

  void memory() {
    std::uint32_t fullest = 0;
    double most = 0, least = 2;
    for (std::uint32_t g = 0; g < inv_.gpus.size(); ++g) {
      const double used = static_cast<double>(run_.totals.gpu_memory_peak[g]) /
                          static_cast<double>(inv_.gpus[g].memory_bytes);
      if (used > most) {
        most = used;
        fullest = g;
      }
      least = std::min(least, used);
    }
    const auto part = [&](std::uint32_t g, run::MemoryCategory c) {
      return static_cast<double>(
          run_.totals.gpu_memory[g * run::kMemoryCategories + static_cast<std::size_t>(c)]);
    };
    std::size_t largest = 0;
    for (std::size_t c = 1; c < run::kMemoryCategories; ++c) {
      if (part(fullest, static_cast<run::MemoryCategory>(c)) >
          part(fullest, static_cast<run::MemoryCategory>(largest))) {
        largest = c;
      }
    }
    if (const run::Event* oom = first_event(run::EventKind::kOutOfMemory)) {
      const bool at_load = oom->step == run::kNone || oom->step == 0;
      const double largest_share = part(fullest, static_cast<run::MemoryCategory>(largest)) /
                                   static_cast<double>(inv_.gpus[fullest].memory_bytes);
      find("out of memory",
           fmt::format("{}: {} ({} of its memory in {})", gpu(oom->gpu), oom->text,
                       percent(largest_share), run::kMemoryCategoryNames[largest]),
           at_load ? "all experts are resident and do not fit beside the rest"
                   : "what a step needs grows beyond what is left",
           fmt::format("switchyard inspect {}, events: out of memory", name_),
           largest == static_cast<std::size_t>(run::MemoryCategory::kKv)
               ? "a smaller batch or context, or KV in a smaller format (model.dtype.kv)"
               : "more GPUs per copy (parallel.ep), or experts in a smaller format "
                 "(model.dtype.experts)",
           run::kNoData, true);
    } else if (const run::Event* mark = first_event(run::EventKind::kWatermark)) {
      find("watermark",
           fmt::format("{} reaches {} of its memory; the largest part is {}", gpu(fullest),
                       percent(most), run::kMemoryCategoryNames[largest]),
           mark->text, fmt::format("switchyard monitor {}", name_),
           "room before the batch grows: see the largest part", 0.0);
    }
    if (most > 0.5 && least < 0.5 * most && inv_.gpus.size() > 1) {
      find("mis-sharding",
           fmt::format("{} holds {} of its memory, the emptiest GPU {}", gpu(fullest),
                       percent(most), percent(least)),
           run_.inventory.experts > 0 && part(fullest, run::MemoryCategory::kExperts) >
                                             part(fullest, run::MemoryCategory::kKv)
               ? "experts are not spread over all GPUs"
               : "weights or KV pages sit on one GPU (hub)",
           fmt::format("switchyard export placement {} -o placement.csv", name_),
           "parallel.placement = \"contiguous\" with ep = all GPUs, or attention = \"dp\"",
           run::kNoData);
    }
    // A leak: memory that no category explains, larger at the end of each third of the run.
    const std::size_t n = run_.gpus.memory_peak.size() / std::max<std::size_t>(inv_.gpus.size(), 1);
    if (n >= 6) {
      for (std::uint32_t g = 0; g < inv_.gpus.size(); ++g) {
        const auto runtime = [&](std::size_t s) {
          return static_cast<double>(
              run_.gpus.memory[(s * inv_.gpus.size() + g) * run::kMemoryCategories +
                               static_cast<std::size_t>(run::MemoryCategory::kRuntime)]);
        };
        const double a = runtime(0), b = runtime(n / 3), c = runtime(2 * n / 3), d = runtime(n - 1);
        if (!(a < b && b < c && c < d)) continue;
        const double hours = time_all() / 3.6e15;
        find("leak",
             fmt::format(
                 "{}: memory that no category explains grows from {} to {} ({:.3g} GB an hour)",
                 gpu(g), format_bytes(a), format_bytes(d), hours > 0 ? (d - a) * 1e-9 / hours : 0),
             "pages or buffers are not given back (a failed gather)",
             fmt::format("switchyard monitor {}, rule \"leak\"", name_),
             "a watchdog: monitor.alarms on runtime_memory with action = \"reclaim\"", run::kNoData,
             true);
        break;
      }
    }
  }

  [[nodiscard]] double time_all() const {
    if (run_.steps.empty()) return time_;
    // Replicas record their steps as they are planned: the last one need not end last.
    std::int64_t begin = run_.steps.front().start_ps, end = run_.steps.front().end_ps;
    for (const run::StepScalars& s : run_.steps) {
      begin = std::min(begin, s.start_ps);
      end = std::max(end, s.end_ps);
    }
    return static_cast<double>(end - begin);
  }
  [[nodiscard]] const run::Event* first_event(run::EventKind kind) const {
    const auto it = std::find_if(run_.events.begin(), run_.events.end(),
                                 [&](const run::Event& e) { return e.kind == kind; });
    return it == run_.events.end() ? nullptr : &*it;
  }

  void faults() {
    for (const run::Event& e : run_.events) {
      if (e.kind != run::EventKind::kFault) continue;
      if (e.text.ends_with(": over")) continue;
      const Place place{e.gpu, e.link, e.layer, e.expert};
      const auto is = [&](std::string_view kind) { return e.text.starts_with(kind); };
      std::string cure =
          "a time-out that takes the GPU out of service (gpu_loss heals, this lasts)";
      if (is("gpu_loss") || is("link_down")) {
        cure = "redundant copies (parallel.placement_options.redundant) need no load from the host";
      } else if (is("slow_expert")) {
        cure = "monitor.alarms on expert_latency with action = \"reload\"";
      } else if (is("bit_flip")) {
        cure = "checks of the weights more often (faults.check_every)";
      } else if (is("kv_leak")) {
        cure = "monitor.alarms on runtime_memory with action = \"reclaim\"";
      } else if (is("hot_gpu")) {
        cure =
            "fewer tokens on the GPU (monitor.alarms on gpu_busy with action = \"migrate_kv\") "
            "until it has cooled";
      } else if (is("gather_failure")) {
        cure = "a shorter time-out; where tries go on failing, the GPU out of service";
      } else if (is("mis_sharding")) {
        cure = "checks of weights and places more often (faults.check_every), and before the start";
      } else if (is("host_stall")) {
        cure = "launches that do not wait for the host (captured graphs)";
      } else if (is("link_degraded")) {
        cure =
            "experts that are chosen often away from the link (parallel.placement = "
            "\"topology_hot\")";
      }
      std::string symptom = fmt::format("step {}: {}", e.step, e.text);
      for (const run::Event& healing : run_.events) {
        if (healing.kind == run::EventKind::kPolicyAction && healing.step == e.step &&
            healing.text.starts_with("healing")) {
          symptom += "; " + healing.text;
        }
      }
      find("fault", std::move(symptom), describe(place, inv_),
           fmt::format("switchyard monitor {}", name_), std::move(cure), run::kNoData, true);
    }
  }

  void capacity() {
    const run::Totals& t = run_.totals;
    if (t.assignments == 0) return;
    const auto lost = static_cast<double>(t.dropped) / static_cast<double>(t.assignments);
    if (t.overflow == 0) return;
    // The largest demand in units of capacity says which factor would have held everything.
    double fill = 0;
    for (const run::ExpertSteps& l : run_.layer_experts) {
      for (const float f : l.fill) {
        if (!std::isnan(f)) fill = std::max(fill, static_cast<double>(f));
      }
    }
    for (const float f : run_.experts.fill) {
      if (!std::isnan(f)) fill = std::max(fill, static_cast<double>(f));
    }
    const double factor = setting("policy.capacity.factor");
    std::string cure = "a larger policy.capacity.factor";
    if (fill > 1 && factor > 0) {
      cure = fmt::format(
          "policy.capacity.factor = {:.3g} holds the largest demand seen ({:.3g} times "
          "its capacity)",
          std::ceil(factor * fill * 100 - 1e-3) / 100, fill);
    } else if (fill > 1) {
      cure = fmt::format("{:.3g} times the capacity holds the largest demand seen", fill);
    }
    if (t.dropped > 0) {
      find("drops",
           fmt::format("{} of {} assignments dropped ({}), {} overflowed", t.dropped, t.assignments,
                       percent(lost), t.overflow),
           t.rerouted > 0
               ? fmt::format("expert {} fills first; {} of what was refused was rerouted, the rest "
                             "found every candidate full",
                             busiest_overflow(),
                             percent(static_cast<double>(t.rerouted) /
                                     static_cast<double>(std::max<std::uint64_t>(t.overflow, 1))))
               : fmt::format("expert {} fills first and nothing takes what it refuses",
                             busiest_overflow()),
           fmt::format("switchyard inspect {}, overflow share", name_),
           t.rerouted > 0 ? cure + ", or more candidates (policy.capacity.reroute)"
                          : cure + ", or reroute = \"next\"",
           run::kNoData, true);
    } else {
      find(
          "overflow",
          fmt::format("{} of {} first choices found the expert full ({}); {} rerouted, {} queued",
                      t.overflow, t.assignments,
                      percent(static_cast<double>(t.overflow) / static_cast<double>(t.assignments)),
                      t.rerouted, t.queued),
          fmt::format("expert {} fills first", busiest_overflow()),
          fmt::format("switchyard inspect {}, overflow share", name_), cure, 0.0);
    }
  }

  [[nodiscard]] double setting(std::string_view key) const {
    const std::string& text = run_.meta.scenario_text;
    const std::string line = std::string(key) + " = ";
    const std::size_t i = text.starts_with(line) ? 0 : text.find("\n" + line);
    if (i == std::string::npos) return 0;
    const std::size_t value = text.find(" = ", i) + 3;
    try {
      return std::stod(text.substr(value, text.find('\n', value) - value));
    } catch (const std::exception&) {
      return 0;
    }
  }

  [[nodiscard]] std::string busiest_overflow() const {
    const auto& o = run_.totals.expert_overflow;
    if (o.empty() || inv_.experts == 0) return "-";
    const auto i = static_cast<std::size_t>(std::max_element(o.begin(), o.end()) - o.begin());
    return fmt::format("{} of MoE layer {}", i % inv_.experts,
                       inv_.moe_layers[i / inv_.experts]);
  }

  void experts() {
    const std::size_t e = inv_.experts;
    if (e == 0 || run_.totals.expert_kept.empty()) return;
    ExpertSums sums;
    for (const std::uint64_t k : run_.totals.expert_kept)
      sums.kept.push_back(static_cast<double>(k));
    for (const std::int64_t t : run_.totals.expert_time_ps) {
      sums.time_ps.push_back(static_cast<double>(t));
    }
    // One expert that nearly every token takes.
    double top = 0;
    Place who;
    for (std::size_t l = 0; l < sums.kept.size() / e; ++l) {
      const auto row = std::span(sums.kept).subspan(l * e, e);
      const double sum = std::accumulate(row.begin(), row.end(), 0.0);
      const auto most = std::max_element(row.begin(), row.end());
      if (sum > 0 && *most * inv_.top_k / sum > top) {
        top = *most * inv_.top_k / sum;
        who = {.layer = static_cast<std::uint32_t>(l),
               .expert = static_cast<std::uint32_t>(most - row.begin())};
      }
    }
    if (top > kDominantExpert && inv_.top_k < e) {
      find("one expert",
           fmt::format("{} of the tokens choose {}", percent(top), describe(who, inv_)),
           "a sampling temperature far below 1 or a skewed router",
           fmt::format("switchyard monitor {}, gate_entropy", name_),
           "policy.temperature, policy.noise, or a capacity with reroute = \"next\"", run::kNoData);
    }
    const SummedValue cv = summed_signal(HealthSignal::kLoadCv, sums, inv_);
    if (!std::isnan(cv.value) && cv.value > kRouterTuning && cv.value > 2 * cv.floor) {
      find(cv.value > kCollapse ? "collapse" : "uneven router",
           fmt::format("load_cv {:.3g} (counting alone gives {:.3g})", cv.value, cv.floor),
           cv.value > kCollapse ? "the router prefers few experts" : "the router is not balanced",
           fmt::format("switchyard inspect {}, load_cv, top3_share", name_),
           fmt::format("balance in training (auxiliary loss), policy.load_aware{}",
                       gpus_of_a_step() > 1
                           ? ", or copies of hot experts (parallel.placement = \"eplb\")"
                           : ""),
           even_experts() + even_exchanges());
    }
    const SummedValue slow = summed_signal(HealthSignal::kExpertLatency, sums, inv_);
    if (!std::isnan(slow.value) && slow.value > kSick) {
      const std::size_t row =
          std::size_t{slow.place.layer == run::kNone ? 0 : slow.place.layer} * e;
      const auto kept = std::span(sums.kept).subspan(row, e);
      const double mean = std::accumulate(kept.begin(), kept.end(), 0.0) / static_cast<double>(e);
      const double load = mean > 0 ? kept[slow.place.expert] / mean : 0;
      const bool sick = slow.value > 1.5 * std::max(load, 1.0);
      // A CPU takes longer than a GPU for experts that are well: expert_loads() tells.
      if (sick && experts_on_cpu() > 0) return;
      find(
          sick ? "sick expert" : "hot expert",
          fmt::format("{}: kernel time {:.3g} times its layer's mean at {:.3g} times the mean load",
                      describe(slow.place, inv_), slow.value, load),
          sick ? "its kernel is slow: its load does not explain the time" : "its load",
          fmt::format("switchyard monitor {}, expert_latency", name_),
          sick ? std::string("monitor.alarms on expert_latency with action = \"reload\"")
               : std::string(copies()),
          sick ? share(Phase::kExpert) * (1 - 1 / slow.value)
               : std::max(share(Phase::kExpert) * (1 - 1 / slow.value), even_experts()) +
                     even_exchanges(),
          sick);
    }
  }

  [[nodiscard]] bool ring() const {
    return run_.meta.scenario_text.find("network.algorithm = ring") != std::string::npos;
  }

  /// Logits whose variance is below kFlat: to second order the entropy is log2 E less that over
  /// 2 ln 2. A synthetic law may be meant to be flat.
  void flat_router() {
    if (inv_.experts < 2 || run_.meta.routing_source.find("synthetic") != std::string::npos) return;
    double sum = 0, n = 0;
    for (const run::StepScalars& s : run_.steps) {
      if (s.warmup || std::isnan(s.gate_entropy)) continue;
      sum += s.gate_entropy;
      ++n;
    }
    if (n == 0) return;
    const double most = std::log2(static_cast<double>(inv_.experts)), entropy = sum / n;
    const double variance = 2 * std::log(2.0) * (most - entropy);
    if (variance >= kFlat) return;
    find(
        "flat router",
        fmt::format("gate_entropy {:.4g} of {:.4g} bit: the variance of the logits is about {:.2g}",
                    entropy, most, std::max(variance, 0.0)),
        "the router hardly tells the experts apart (prompts too short, hidden states alike)",
        fmt::format("switchyard monitor {}, gate_entropy", name_),
        "longer prompts, or the router's input norm (policy.condition.layer_norm)", run::kNoData);
  }

  void imbalance() {
    if (time_ <= 0 || steps_ == 0) return;
    // The cure spreads assignments: experts and exchanges gain by it.
    const double bound = even_experts() + even_exchanges();
    if (even_experts() < kNoticed) return;
    double mean = 0;
    std::size_t n = 0;
    for (const run::StepScalars& s : run_.steps) {
      if (!s.warmup && !std::isnan(s.imbalance)) {
        mean += s.imbalance;
        ++n;
      }
    }
    mean /= static_cast<double>(std::max<std::size_t>(n, 1));
    const auto [who, steps] = usual_straggler();
    find("imbalance",
         fmt::format("experts take {} of a step, {} if all GPUs took the mean; max/mean of "
                     "assignments {:.3g}",
                     percent(share(Phase::kExpert)),
                     percent(share(Phase::kExpert) - even_experts()), mean),
         who < inv_.gpus.size()
             ? fmt::format("others wait for {} in {} of {} steps", gpu(who), steps, steps_)
             : "uneven load",
         fmt::format("switchyard diff {} OTHER.h5 after --set parallel.placement=eplb", name_),
         "parallel.placement = \"eplb\" with redundant copies, or parallel.rebalance", bound);
  }

  /// Duration of the step whose critical path was recorded [ps]; its pieces' sum where no step was.
  [[nodiscard]] double critical_step() const {
    if (run_.critical_path.empty()) return 0;
    const std::uint32_t step = run_.critical_path.front().step;
    if (step < run_.steps.size()) {
      return static_cast<double>(run_.steps[step].end_ps - run_.steps[step].start_ps);
    }
    double sum = 0;
    for (const run::CriticalEntry& e : run_.critical_path)
      sum += static_cast<double>(e.duration_ps);
    return sum;
  }

  /// Experts a step that the CPU computes (memory.residency.miss).
  [[nodiscard]] double experts_on_cpu() const {
    for (const run::Metric& m : run_.metrics) {
      if (m.name == "experts on the CPU per step") return m.value;
    }
    return 0;
  }

  /// Experts that are not on the GPU when tokens want them.
  void expert_loads() {
    const double all = critical_step();
    double loads = 0;
    for (const run::CriticalEntry& e : run_.critical_path) {
      if (e.reason == run::StragglerReason::kExpertLoadFromHost && e.phase == Phase::kWait) {
        loads += static_cast<double>(e.duration_ps);
      }
    }
    if (all <= 0 || loads / all < kNoticed) return;
    const double computed = experts_on_cpu();
    double rate = run::kNoData, best = run::kNoData;
    for (const run::Metric& m : run_.metrics) {
      if (m.name == "expert hit rate") rate = m.value;
      if (m.name == "expert hit rate, Belady bound") best = m.value;
    }
    const double bound = std::min(loads / all, share(Phase::kWait));
    std::string symptom =
        fmt::format("{} of the slowest step waits for weights of experts", percent(loads / all));
    std::string cure =
        "more memory.residency.slots, fewer bytes per expert (model.dtype.experts), "
        "memory.residency.prefetch, or a faster link to where the experts are";
    if (computed > 0) {
      symptom = fmt::format(
          "{} of the slowest step waits for experts that are not on the GPU, {:.4g} a step "
          "computed by the CPU",
          percent(loads / all), computed);
      cure =
          "more memory.residency.slots, fewer bytes per expert (model.dtype.experts), or a CPU "
          "with more memory bandwidth (memory.residency.cpu); many rows an expert: miss = "
          "\"cheaper\"";
    }
    if (!std::isnan(rate)) {
      symptom += fmt::format("; {} of the experts asked for were there", percent(rate));
    }
    if (computed == 0 && !std::isnan(best) && !std::isnan(rate)) {
      cure += fmt::format("; the best order of evictions would reach {}", percent(best));
    }
    find("expert loads", std::move(symptom), "the GPUs hold too few of the experts that are chosen",
         fmt::format("switchyard inspect {}, expert hit rate", name_), std::move(cure), bound);
  }

  /// Copies of experts need another GPU to lie on.
  [[nodiscard]] std::string_view copies() const {
    return gpus_of_a_step() > 1 ? "copies of hot experts (parallel.placement = \"eplb\")"
                                : "fewer assignments of the hot expert (policy.load_aware)";
  }

  [[nodiscard]] std::pair<std::uint32_t, std::size_t> usual_straggler() const {
    std::map<std::uint32_t, std::size_t> count;
    for (const run::StepScalars& s : run_.steps) {
      if (!s.warmup && s.straggler_gpu < inv_.gpus.size()) ++count[s.straggler_gpu];
    }
    std::pair<std::uint32_t, std::size_t> best{run::kNone, 0};
    for (const auto& [g, n] : count) {
      if (n > best.second) best = {g, n};
    }
    return best;
  }

  void links() {
    if (inv_.links.empty() || time_ <= 0) return;
    const double exchange =
        share(Phase::kDispatch) + share(Phase::kCombine) + share(Phase::kCollective);
    const auto& busy = run_.totals.link_busy_ps;
    const auto k =
        static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
    if (busy[k] <= 0) return;
    // Links that could have carried more: mean over those of the same class, and over all.
    double same = 0, n = 0, fastest_use = 2;
    double fastest = 0;
    for (std::size_t i = 0; i < busy.size(); ++i) {
      if (inv_.links[i].link_class == inv_.links[k].link_class) {
        same += static_cast<double>(busy[i]);
        ++n;
      }
      if (inv_.links[i].bandwidth.value > fastest) {
        fastest = inv_.links[i].bandwidth.value;
        fastest_use = link_share(i);
      } else if (inv_.links[i].bandwidth.value == fastest) {
        fastest_use = std::max(fastest_use, link_share(i));
      }
    }
    const double mean = same / n;
    const double use = link_share(k);
    double compute = 0;
    for (std::size_t g = 0; g < inv_.gpus.size(); ++g) {
      for (const Phase p :
           {Phase::kAttention, Phase::kRouter, Phase::kExpert, Phase::kDense, Phase::kHead}) {
        compute += static_cast<double>(run_.totals.gpu_phase_ps[g * run::kPhases + at(p)]);
      }
    }
    const double compute_busy = gpu_total_ > 0 ? compute / gpu_total_ : 0;
    const bool slow = inv_.links[k].bandwidth.value < 0.5 * fastest;
    if (slow && use > kNoticed && fastest_use < 0.5 * use) {
      const bool saturated = use > kFullLink && compute_busy < kIdleGpu;
      find(saturated ? "broadcast over the slow link" : "slow link",
           fmt::format(
               "{} ({}) carries data for {} of the time, the fastest links {}; GPUs compute {}",
               inv_.links[k].name, format_rate(inv_.links[k].bandwidth), percent(use),
               percent(fastest_use), percent(compute_busy)),
           ring() ? fmt::format("the {} link is a member of the ring: every round waits for it "
                                "while {} links idle",
                                inv_.links[k].link_class, format_rate({fastest}))
                  : fmt::format("exchanges wait for the {} link while {} links idle",
                                inv_.links[k].link_class, format_rate({fastest})),
           "switchyard inspect HARDWARE.toml --topology",
           "network.algorithm = \"hierarchical\", dispatch = \"per_node\", or keep the groups of "
           "experts inside the fast domain (parallel.ep)",
           std::min(exchange, use) * (1 - inv_.links[k].bandwidth.value / fastest));
    } else if (exchange > kNoticed && mean < 0.8 * static_cast<double>(busy[k])) {
      find("hot link",
           fmt::format("{} carries data for {} of the time, links of its class {} on average",
                       inv_.links[k].name, percent(use), percent(mean / span_)),
           "the traffic is uneven: experts that are chosen often share a GPU",
           fmt::format("switchyard monitor {}, link_use, link_spread", name_),
           "parallel.placement = \"topology_hot\" or \"affinity\"",
           // Evened out, the link carries data for the mean time; latency stays. Where another link
           // is the busiest in each layer, the layers' own loads say more; experts even out, too.
           std::max(std::min(exchange, use - mean / span_), even_exchanges()) + even_experts());
    }
    if (use > kFullLink && compute_busy < 0.45 && !slow) {
      find("batch too small",
           fmt::format("links full ({}), GPUs compute {}", percent(use), percent(compute_busy)),
           "too little work per byte sent",
           fmt::format("switchyard inspect {}, compute_busy", name_),
           "a larger batch, or a smaller payload (network.payload)", exchange);
    }
  }

  void exchanges() {
    if (time_ <= 0) return;
    if (run_.layer_steps.dispatch_ps.empty()) {
      out_.not_decidable.emplace_back(
          "latency or bandwidth of exchanges: needs detail = \"layers\"");
      return;
    }
    const double took = exchange_.took, floor = exchange_.floor;
    const auto measured = static_cast<double>(std::max<std::size_t>(steps_, 1));
    // What other work hides would not be gone.
    const double visible =
        share(Phase::kDispatch) + share(Phase::kCombine) + share(Phase::kCollective);
    const double latency = std::min((took - floor) / time_, visible);
    if (latency < kNoticed || floor > 0.5 * took) return;
    find(
        "latency",
        fmt::format("{:.4g} us of {:.4g} us of exchanges a step are path latency, not bytes",
                    (took - floor) * 1e-6 / measured, took * 1e-6 / measured),
        "many small exchanges", fmt::format("switchyard inspect {}, bytes sent per token", name_),
        "a larger batch, or fewer exchanges (parallel.attention = \"tp\")", latency);
  }

  /// Exchanges that take more of a step than any other phase.
  void exchange_bound() {
    double exchange = 0, other = 0;
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      if (p == at(Phase::kDispatch) || p == at(Phase::kCombine) || p == at(Phase::kCollective)) {
        exchange += phase_[p];
      } else {
        other = std::max(other, phase_[p]);
      }
    }
    if (time_ <= 0 || exchange <= other) return;
    const double part = exchange / time_;
    if (part < kNoticed) return;
    std::string symptom = fmt::format(
        "dispatch {}, combine {} and collectives {} are {} of a step, more than any other phase",
        percent(share(Phase::kDispatch)), percent(share(Phase::kCombine)),
        percent(share(Phase::kCollective)), percent(part));
    if (!inv_.links.empty()) {
      const auto& busy = run_.totals.link_busy_ps;
      const auto k =
          static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
      if (busy[k] > 0) {
        symptom += fmt::format("; most of it on {} links (busiest {}: {} of the time)",
                               inv_.links[k].link_class, inv_.links[k].name,
                               percent(link_share(k)));
      }
    }
    std::string cause = "the bytes of the exchanges";
    if (exchange_.took > 0 && !std::isnan(exchange_.unevenness)) {
      cause = fmt::format(
          "of dispatch and combine {} is path latency, {} uneven loads: the fullest GPU has {:.3g} "
          "times the mean in a layer, {:.3g} in {}",
          percent((exchange_.took - exchange_.floor) / exchange_.took),
          percent(exchange_.even_gain / exchange_.took), exchange_.unevenness,
          exchange_.unevenness_max, describe({.layer = exchange_.most_uneven}, inv_));
    }
    find("exchange-bound", std::move(symptom), std::move(cause),
         fmt::format("switchyard inspect {}, bytes sent per token", name_),
         "fewer bytes (network.payload, network.dispatch = \"per_node\"), an even spread of the "
         "assignments (parallel.placement), or exchanges beside other work (network.two_batch)",
         part);
  }

  void host() {
    const double h = share(Phase::kHost);
    if (std::isnan(h) || h < kNoticed) return;
    find("host", fmt::format("the host takes {} of a step", percent(h)),
         "scheduling and launching on the CPU", "switchyard explain SCENARIO, host.per_step",
         "captured graphs, a larger batch, or scheduling beside the GPU's work", h);
  }

  void tail() {
    if (durations_.size() < 4) return;
    const double p50 = run::nearest_rank(durations_, 50), p99 = run::nearest_rank(durations_, 99);
    if (p99 < kTail * p50) return;
    const bool overflow = run_.totals.overflow > 0;
    const auto worst =
        std::max_element(run_.steps.begin(), run_.steps.end(), [](const auto& a, const auto& b) {
          return (a.warmup ? -1 : a.end_ps - a.start_ps) < (b.warmup ? -1 : b.end_ps - b.start_ps);
        });
    const auto step = worst - run_.steps.begin();
    std::size_t phase = 0;
    double most = 0;
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      const double excess =
          static_cast<double>(worst->phase_ps[p]) - phase_[p] / static_cast<double>(steps_);
      if (excess > most) {
        most = excess;
        phase = p;
      }
    }
    find("tail", fmt::format("p99 of step time is {:.3g} times the median", p99 / p50),
         fmt::format("step {}: {:.4g} us more {} than on average{}", step, most * 1e-6,
                     run::kPhaseNames[phase],
                     overflow ? "" : "; no expert was full, so not capacity"),
         fmt::format("switchyard monitor {}, step_time", name_), "see the events of that step",
         1 - p50 * static_cast<double>(steps_) / std::max(time_, 1.0));
  }

  void requests() {
    std::size_t waiting = 0;
    for (const run::RequestRecord& r : run_.requests) {
      waiting += r.first_token_ps < 0 ? 1 : 0;
    }
    if (waiting == 0 || waiting < run_.requests.size()) return;
    find("hang", fmt::format("none of {} requests has a first token", waiting),
         "the KV pool holds no prompt", fmt::format("switchyard inspect {}", name_),
         "more KV memory, or shorter prompts", run::kNoData, true);
  }

  void time_table() {
    Table t;
    t.name = "time";
    t.title = fmt::format("{}: {} on {}, {} measured steps", run_.meta.scenario_name,
                          run_.meta.model_name, run_.meta.hardware_name, steps_);
    t.columns = {"phase", "critical path [us/step]", "share", "mean of GPUs [us/step]"};
    const auto n = static_cast<double>(std::max<std::size_t>(steps_, 1));
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      const double own = mean_of_gpus(p);
      if (phase_[p] == 0 && own == 0) continue;
      t.rows.push_back({std::string(run::kPhaseNames[p]), time(phase_[p] / n),
                        percent(time_ > 0 ? phase_[p] / time_ : run::kNoData), time(own / n)});
    }
    t.rows.push_back({"step", time(time_ / n), time_ > 0 ? "100.0 %" : "n/a", time(time_ / n)});
    t.notes.push_back(fmt::format(
        "{}; applied by {}; network model {}; seed {}; scenario {}", run_.meta.routing_source,
        run_.meta.policy_way, run_.meta.network_model, run_.meta.seed, run_.meta.scenario_hash));
    out_.tables.push_back(std::move(t));
  }

  void path_table() {
    Table t;
    t.name = "critical path";
    t.columns = {"phase", "GPU", "reason", "entries", "time [us]", "share"};
    using Key = std::tuple<std::size_t, std::uint32_t, std::size_t>;
    std::map<Key, std::pair<double, std::size_t>> sums;
    const double total = critical_step();
    for (const run::CriticalEntry& e : run_.critical_path) {
      auto& s = sums[{at(e.phase), e.gpu, static_cast<std::size_t>(e.reason)}];
      s.first += static_cast<double>(e.duration_ps);
      ++s.second;
    }
    std::vector<std::pair<Key, std::pair<double, std::size_t>>> order(sums.begin(), sums.end());
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
    double rest = 0;
    std::size_t rest_entries = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto& [key, sum] = order[i];
      if (i >= kPathRows) {
        rest += sum.first;
        rest_entries += sum.second;
        continue;
      }
      t.rows.push_back({std::string(run::kPhaseNames[std::get<0>(key)]), gpu(std::get<1>(key)),
                        std::string(run::kStragglerReasonNames[std::get<2>(key)]),
                        std::to_string(sum.second), time(sum.first), percent(sum.first / total)});
    }
    if (rest_entries > 0) {
      t.rows.push_back(
          {"others", "-", "-", std::to_string(rest_entries), time(rest), percent(rest / total)});
    }
    t.title = run_.critical_path.empty()
                  ? "Critical path of the slowest step: none recorded"
                  : fmt::format(
                        "Critical path of the slowest step (step {}): who worked, or whom the "
                        "others waited for",
                        run_.critical_path.front().step);
    out_.tables.push_back(std::move(t));
  }

  void straggler_table() {
    Table t;
    t.name = "stragglers";
    t.title = "Who others wait for";
    t.columns = {"GPU",
                 "steps",
                 "by load",
                 "by link",
                 "by fault",
                 "assignments / mean",
                 "expert time / mean",
                 "memory"};
    std::vector<std::array<std::size_t, 5>> count(inv_.gpus.size(), {0, 0, 0, 0, 0});
    for (const run::StepScalars& s : run_.steps) {
      if (s.warmup || s.straggler_gpu >= inv_.gpus.size()) continue;
      ++count[s.straggler_gpu][static_cast<std::size_t>(s.straggler_reason)];
    }
    const ExpertColumns cut = gpus_of_an_expert(run_);
    std::vector<double> load(inv_.gpus.size(), 0);
    for (std::size_t i = 0; i < run_.totals.expert_kept.size(); ++i) {
      // Split evenly over an expert's copies.
      std::size_t copies = 0;
      for (std::uint32_t r = 0; r < inv_.replicas; ++r) {
        copies += inv_.placement[i * inv_.replicas + r] != run::kNone ? 1 : 0;
      }
      for (std::uint32_t r = 0; r < inv_.replicas; ++r) {
        const std::uint32_t g = inv_.placement[i * inv_.replicas + r];
        // The placement names the first of the GPUs that divide an expert's columns.
        for (std::uint32_t c = g; g != run::kNone && c < g + cut.of(g) && c < load.size(); ++c) {
          load[c] += static_cast<double>(run_.totals.expert_kept[i]) / static_cast<double>(copies);
        }
      }
    }
    const double sum = std::accumulate(load.begin(), load.end(), 0.0);
    double expert = 0;
    const auto own = [&](std::size_t g) {
      return static_cast<double>(run_.totals.gpu_phase_ps[g * run::kPhases + at(Phase::kExpert)]);
    };
    for (std::size_t g = 0; g < inv_.gpus.size(); ++g) expert += own(g);
    const auto n = static_cast<double>(inv_.gpus.size());
    for (std::size_t g = 0; g < inv_.gpus.size(); ++g) {
      const auto& c = count[g];
      const std::size_t all = std::accumulate(c.begin(), c.end(), std::size_t{0});
      t.rows.push_back({inv_.gpus[g].name, std::to_string(all), std::to_string(c[1]),
                        std::to_string(c[2]), std::to_string(c[3]),
                        sum > 0 ? fmt::format("{:.3f}", load[g] * n / sum) : "n/a",
                        expert > 0 ? fmt::format("{:.3f}", own(g) * n / expert) : "n/a",
                        percent(static_cast<double>(run_.totals.gpu_memory_peak[g]) /
                                static_cast<double>(inv_.gpus[g].memory_bytes))});
    }
    out_.tables.push_back(std::move(t));
  }

  void link_table() {
    Table t;
    t.name = "links";
    t.title = "Busiest links";
    t.columns = {"link", "class", "bandwidth", "busy share", "bytes [MB/step]"};
    std::vector<std::size_t> order(inv_.links.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return run_.totals.link_busy_ps[a] > run_.totals.link_busy_ps[b];
    });
    const auto n = static_cast<double>(std::max<std::size_t>(steps_, 1));
    for (std::size_t i = 0; i < order.size() && i < 6; ++i) {
      const std::size_t k = order[i];
      if (run_.totals.link_bytes[k] == 0) break;
      t.rows.push_back(
          {inv_.links[k].name, inv_.links[k].link_class, format_rate(inv_.links[k].bandwidth),
           percent(link_share(k)),
           fmt::format("{:.3f}", static_cast<double>(run_.totals.link_bytes[k]) * 1e-6 / n)});
    }
    out_.tables.push_back(std::move(t));
  }

  void finding_table() {
    Table t;
    t.name = "findings";
    t.title = "Findings: symptom, cause, check, cure";
    t.columns = {"finding", "symptom", "cause", "check", "cure", "saves at most"};
    for (const Finding& f : out_.findings) {
      t.rows.push_back({f.id, f.symptom, f.cause, f.check, f.cure,
                        std::isnan(f.bound) ? "-" : percent(f.bound)});
    }
    if (t.rows.empty()) {
      t.notes.emplace_back("no rule found anything");
    }
    if (run_.steps.empty()) {
      out_.not_decidable.emplace_back(
          "step times, stragglers by step, tail: the run's detail is \"summary\"");
    }
    for (const std::string& line : out_.not_decidable)
      t.notes.push_back("not decided here: " + line);
    for (const std::string& line : undecidable_rules()) t.notes.push_back("no rule for: " + line);
    out_.tables.push_back(std::move(t));
  }

  const run::RunData& run_;
  const run::Inventory& inv_;
  const std::string& name_;
  const ExchangeShare exchange_;
  Diagnosis out_;
  std::size_t steps_ = 0;
  /// Sum of the steps, in which replicas step beside each other; first start to last end; ps.
  double time_ = 0, span_ = 0;
  double gpu_total_ = 0, balance_gain_ = 0;
  std::array<double, run::kPhases> phase_{};
  std::vector<double> durations_;
};

}  // namespace

const std::vector<std::string>& undecidable_rules() {
  static const std::vector<std::string> kRules{
      "gradients, device mismatch, un-awaited coroutines (no training, no framework is simulated)",
      "tail span of a PCA, style breaks, NaN logits (properties of activations: switchyard trace "
      "and "
      "inspect --activation)",
      "same prompt, different experts (logits beyond 100, weights whose norm or CRC moved: health "
      "checks of the engine, switchyard generate)",
      "a knee of QPS against all-to-all time (needs several runs: switchyard sweep)"};
  return kRules;
}

Diagnosis diagnose(const run::RunData& run, const std::string& name) {
  return Examiner(run, name).examine();
}

}  // namespace switchyard::health
