// SPDX-License-Identifier: Apache-2.0
#include "sim/run/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"

namespace switchyard::run {
namespace {

struct Average {
  double sum = 0, max = kNoData;
  std::size_t n = 0;
  void add(double v) {
    if (std::isnan(v)) return;
    sum += v;
    max = n == 0 ? v : std::max(max, v);
    ++n;
  }
  [[nodiscard]] double mean() const { return n == 0 ? kNoData : sum / static_cast<double>(n); }
};

double ratio(double a, double b) { return b > 0 ? a / b : kNoData; }

/// Sums over the measured (not warm-up) steps.
struct Measured {
  std::size_t steps = 0;
  double tokens = 0, assignments = 0, kept = 0, rerouted = 0, queued = 0, dropped = 0, overflow = 0,
         bytes_sent = 0, hbm_bytes = 0, flops = 0, kernels = 0;
  double longest_queue = kNoData;
  double span_s = kNoData;  ///< First start to last end.
  double step_s = 0;        ///< Sum of durations.
  double step_ps = 0;       ///< The same, exact up to 2.5 hours: steps without a gap leave 0.
  double engines = 1;       ///< Replicas that step by themselves.
  std::array<double, kPhases> phase_s{};
  Average imbalance, imbalance_max, entropy;
  std::vector<double> durations_us;
  std::int64_t begin_ps = 0, end_ps = 0;
  [[nodiscard]] double span_ps() const { return static_cast<double>(end_ps - begin_ps); }
};

Measured measure(const RunData& run) {
  Measured m;
  for (const StepScalars& s : run.steps) {
    if (s.warmup) continue;
    if (m.steps++ == 0) m.begin_ps = s.start_ps;
    m.end_ps = std::max(m.end_ps, s.end_ps);
    m.tokens += static_cast<double>(s.tokens);
    m.assignments += static_cast<double>(s.assignments);
    m.kept += static_cast<double>(s.kept);
    m.rerouted += static_cast<double>(s.rerouted);
    m.queued += static_cast<double>(s.queued);
    m.dropped += static_cast<double>(s.dropped);
    m.overflow += static_cast<double>(s.overflow);
    m.bytes_sent += static_cast<double>(s.bytes_sent);
    m.hbm_bytes += static_cast<double>(s.hbm_bytes);
    m.flops += s.flops;
    m.kernels += static_cast<double>(s.kernels);
    m.longest_queue = std::fmax(m.longest_queue, static_cast<double>(s.longest_queue));
    const double us = static_cast<double>(s.end_ps - s.start_ps) * 1e-6;
    m.step_s += us * 1e-6;
    m.step_ps += static_cast<double>(s.end_ps - s.start_ps);
    m.engines = std::max(m.engines, static_cast<double>(s.engine) + 1);
    m.durations_us.push_back(us);
    for (std::size_t p = 0; p < kPhases; ++p) {
      m.phase_s[p] += static_cast<double>(s.phase_ps[p]) * 1e-12;
    }
    m.imbalance.add(s.imbalance);
    m.imbalance_max.add(s.imbalance_max);
    m.entropy.add(s.gate_entropy);
  }
  if (m.steps > 0) m.span_s = static_cast<double>(m.end_ps - m.begin_ps) * 1e-12;
  return m;
}

struct Load {
  Average cv, top3, peak;
};
/// Statistics of kept assignments per expert, one entry per layer with any.
Load load_statistics(const RunData& run) {
  Load load;
  const std::size_t experts = run.inventory.experts;
  if (experts == 0) return load;
  for (std::size_t l = 0; (l + 1) * experts <= run.totals.expert_kept.size(); ++l) {
    std::vector<double> kept(
        run.totals.expert_kept.begin() + static_cast<std::ptrdiff_t>(l * experts),
        run.totals.expert_kept.begin() + static_cast<std::ptrdiff_t>((l + 1) * experts));
    const double sum = std::accumulate(kept.begin(), kept.end(), 0.0);
    if (sum <= 0) continue;
    const double mean = sum / static_cast<double>(experts);
    double square = 0;
    for (const double v : kept) square += (v - mean) * (v - mean);
    load.cv.add(std::sqrt(square / static_cast<double>(experts)) / mean);
    std::sort(kept.rbegin(), kept.rend());
    load.top3.add(std::accumulate(
                      kept.begin(),
                      kept.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(3, experts)),
                      0.0) /
                  sum);
    load.peak.add(kept.front() / mean);
  }
  return load;
}

struct Requests {
  std::vector<double> ttft_ms, tpot_ms;
};
/// Requests that finished within the measured steps.
Requests request_times(const RunData& run, const Measured& m) {
  Requests r;
  if (m.steps == 0) return r;
  for (const RequestRecord& q : run.requests) {
    if (q.outcome != RequestOutcome::kFinished || q.first_token_ps < 0 || q.end_ps < m.begin_ps ||
        q.end_ps > m.end_ps) {
      continue;
    }
    if (q.arrival_ps >= 0) {
      r.ttft_ms.push_back(static_cast<double>(q.first_token_ps - q.arrival_ps) * 1e-9);
    }
    if (q.output_tokens > 1) {
      r.tpot_ms.push_back(static_cast<double>(q.end_ps - q.first_token_ps) * 1e-9 /
                          static_cast<double>(q.output_tokens - 1));
    }
  }
  return r;
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? kNoData
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

/// Share of GPU time in the given phases: Σ over GPUs / (G · span).
double gpu_share(const RunData& run, const Measured& m, std::initializer_list<Phase> phases) {
  double s = 0;
  for (std::size_t g = 0; (g + 1) * kPhases <= run.totals.gpu_phase_ps.size(); ++g) {
    for (const Phase p : phases) {
      s += static_cast<double>(run.totals.gpu_phase_ps[g * kPhases + static_cast<std::size_t>(p)]) *
           1e-12;
    }
  }
  return ratio(s, static_cast<double>(run.inventory.gpus.size()) * m.span_s);
}

/// Peak of all GPUs per second; NaN when one of them is not known.
template <class F>
double cluster_peak(const RunData& run, F&& value) {
  double s = 0;
  for (const GpuInfo& g : run.inventory.gpus) {
    if (!(value(g) > 0)) return kNoData;
    s += value(g);
  }
  return s;
}

std::vector<double> values_of(const RunData& run) {
  const Measured m = measure(run);
  const Load load = load_statistics(run);
  const Requests requests = request_times(run, m);
  const auto gpus = static_cast<double>(run.inventory.gpus.size());
  const auto phase = [&m](Phase p) { return m.phase_s[static_cast<std::size_t>(p)]; };

  Average link;
  for (std::size_t k = 0; k < run.totals.link_bytes.size() && m.steps > 0; ++k) {
    link.add(ratio(static_cast<double>(run.totals.link_bytes[k]),
                   run.inventory.links[k].bandwidth.value * m.span_s));
  }
  Average memory;
  Average memory_share;
  for (std::size_t g = 0; g < run.totals.gpu_memory_peak.size(); ++g) {
    const auto peak = static_cast<double>(run.totals.gpu_memory_peak[g]);
    memory.add(peak * 1e-9);
    memory_share.add(ratio(peak, static_cast<double>(run.inventory.gpus[g].memory_bytes)));
  }
  const double experts = run.inventory.experts;
  const double active = experts > 0 ? run.inventory.top_k / experts : kNoData;
  const double floor = experts > 0 && active > 0 && m.tokens > 0
                           ? std::sqrt((1 - active) / (m.tokens * active))
                           : kNoData;

  return {
      static_cast<double>(m.steps),
      m.tokens,
      m.span_s * 1e3,
      ratio(m.tokens, m.span_s),
      ratio(m.tokens, m.span_s * gpus),
      mean_of(m.durations_us),
      nearest_rank(m.durations_us, 50),
      nearest_rank(m.durations_us, 99),
      mean_of(requests.ttft_ms),
      nearest_rank(requests.ttft_ms, 50),
      nearest_rank(requests.ttft_ms, 99),
      mean_of(requests.tpot_ms),
      nearest_rank(requests.tpot_ms, 50),
      nearest_rank(requests.tpot_ms, 99),
      ratio(phase(Phase::kAttention), m.step_s),
      ratio(phase(Phase::kRouter), m.step_s),
      ratio(phase(Phase::kDispatch), m.step_s),
      ratio(phase(Phase::kExpert), m.step_s),
      ratio(phase(Phase::kCombine), m.step_s),
      ratio(phase(Phase::kDense), m.step_s),
      ratio(phase(Phase::kCollective), m.step_s),
      ratio(phase(Phase::kHead), m.step_s),
      ratio(phase(Phase::kHost), m.step_s),
      ratio(phase(Phase::kWait), m.step_s),
      m.span_s > 0 ? std::max(0.0, 1 - m.step_ps / (m.engines * m.span_ps())) : kNoData,
      gpu_share(run, m, {Phase::kWait}),
      m.imbalance.mean(),
      m.imbalance_max.max,
      load.cv.mean(),
      floor,
      load.top3.mean(),
      load.top3.max,
      load.peak.max,
      m.entropy.mean(),
      ratio(m.overflow, m.assignments),
      ratio(m.rerouted, m.assignments),
      ratio(m.queued, m.assignments),
      ratio(m.dropped, m.assignments),
      m.longest_queue,
      gpu_share(run, m,
                {Phase::kAttention, Phase::kRouter, Phase::kDispatch, Phase::kExpert,
                 Phase::kCombine, Phase::kDense, Phase::kCollective, Phase::kHead}),
      gpu_share(run, m,
                {Phase::kAttention, Phase::kRouter, Phase::kExpert, Phase::kDense, Phase::kHead}),
      ratio(m.hbm_bytes,
            cluster_peak(run, [](const GpuInfo& g) { return g.hbm.value; }) * m.span_s),
      ratio(m.flops, cluster_peak(run, [](const GpuInfo& g) { return g.peak.value; }) * m.span_s),
      link.mean(),
      link.max,
      ratio(m.bytes_sent * 1e-3, m.tokens),
      ratio(m.kernels, static_cast<double>(m.steps)),
      memory.max,
      memory_share.max,
  };
}

}  // namespace

const std::vector<MetricDefinition>& metric_definitions() {
  using enum Better;
  static const std::vector<MetricDefinition> kDefinitions = {
      {"measured steps", "", kNeither, "steps that are not warm-up"},
      {"tokens", "", kNeither, "tokens processed in measured steps"},
      {"span", "ms", kNeither, "end of the last measured step - start of the first"},
      {"tokens per second", "1/s", kHigher, "tokens / span"},
      {"tokens per second and GPU", "1/s", kHigher, "tokens / span / GPUs"},
      {"step time mean", "us", kLower, "mean duration of a measured step"},
      {"step time p50", "us", kLower, "nearest rank over measured steps"},
      {"step time p99", "us", kLower, "nearest rank over measured steps"},
      {"TTFT mean", "ms", kLower,
       "first token - arrival, over requests finished in the span whose arrival is known"},
      {"TTFT p50", "ms", kLower, "nearest rank over requests finished in the span"},
      {"TTFT p99", "ms", kLower, "nearest rank over requests finished in the span"},
      {"TPOT mean", "ms", kLower,
       "(end - first token) / (output tokens - 1), over requests finished in the span"},
      {"TPOT p50", "ms", kLower, "nearest rank over requests finished in the span"},
      {"TPOT p99", "ms", kLower, "nearest rank over requests finished in the span"},
      // Ten shares of the step that do not overlap: they sum to 1.
      {"attention share", "", kNeither, "attention time on the critical path / step time"},
      {"router share", "", kLower,
       "router and permutation on the critical path / step time; with the dispatch share: routing"},
      {"dispatch share", "", kLower,
       "dispatch on the critical path / step time; with the combine share: scatter and gather"},
      {"expert share", "", kNeither, "expert time on the critical path / step time"},
      {"combine share", "", kLower, "combine and weighted sum on the critical path / step time"},
      {"dense share", "", kNeither,
       "dense layers and the visible part of shared experts on the critical path / step time"},
      {"collective share", "", kLower,
       "all-reduces, stages, keys and values, moving experts on the critical path / step time"},
      {"head share", "", kNeither,
       "embedding, LM head and sampling on the critical path / step time"},
      {"host share", "", kLower, "host time on the critical path / step time"},
      {"step wait share", "", kLower,
       "waiting for loads, swaps and faults on the critical path / step time"},
      {"idle share", "", kLower, "time between steps / (replicas x span)"},
      {"GPU wait share", "", kLower, "GPU time spent waiting for others / (GPUs x span)"},
      {"imbalance mean", "", kLower,
       "max/mean over GPUs of the assignments run there, mean over layers and steps"},
      {"imbalance max", "", kLower, "max/mean over GPUs, largest over layers and steps"},
      {"load_cv", "", kLower,
       "population std / mean of kept assignments per expert over all tokens, mean over layers"},
      {"load_cv floor", "", kNeither, "what counting alone gives: sqrt((1 - k/E) / (tokens k/E))"},
      {"top3_share mean", "", kLower,
       "kept assignments of the 3 busiest experts / all, mean over layers"},
      {"top3_share max", "", kLower, "the same, largest over layers"},
      {"expert load max", "", kLower, "max/mean over experts of kept assignments, largest layer"},
      {"gate entropy", "bit", kNeither, "per token over all experts, mean over steps"},
      {"overflow share", "", kLower, "first choices that found the expert full / assignments"},
      {"reroute share", "", kLower, "rerouted / assignments"},
      {"queue share", "", kLower, "queued / assignments"},
      {"drop share", "", kLower, "dropped / assignments"},
      {"longest queue", "", kLower, "most assignments beyond capacity at one expert in one step"},
      {"busy", "", kHigher, "GPU time in kernels, communication included / (GPUs span)"},
      {"compute_busy", "", kHigher,
       "GPU time in attention, router, experts, dense layers and head / (GPUs span)"},
      {"MBU", "", kHigher, "HBM bytes / (sum of peak HBM rates span)"},
      {"MFU", "", kHigher, "FLOP / (sum of peak rates span)"},
      {"link use mean", "", kNeither, "bytes / (bandwidth span), mean over links"},
      {"link use max", "", kLower, "the same, busiest link"},
      {"bytes sent per token", "kB", kLower,
       "bytes from GPU to GPU (not what relays pass on, not loads) / tokens"},
      {"kernels per step", "", kLower, "kernels launched on all GPUs / measured steps"},
      {"memory high water", "GB", kLower, "largest over GPUs, 1 GB = 1e9 B"},
      {"memory high water share", "", kLower, "largest over GPUs of high water / memory"},
  };
  return kDefinitions;
}

double windowed_p99_std(const std::vector<std::int64_t>& time_ps, const std::vector<double>& values,
                        std::int64_t begin_ps, std::int64_t end_ps) {
  SWITCHYARD_ASSERT(time_ps.size() == values.size(), "a time for every value");
  if (end_ps <= begin_ps) return kNoData;
  const std::int64_t windows = (end_ps - begin_ps) / kP99WindowPs;
  std::vector<std::vector<double>> of(static_cast<std::size_t>(windows));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (time_ps[i] <= begin_ps) continue;
    const std::int64_t w = (time_ps[i] - begin_ps - 1) / kP99WindowPs;  // (begin, begin + 10 s]
    if (w < windows) of[static_cast<std::size_t>(w)].push_back(values[i]);
  }
  std::vector<double> p99;
  for (const std::vector<double>& w : of) {
    if (!w.empty()) p99.push_back(nearest_rank(w, 99));
  }
  if (p99.size() < kP99Windows) return kNoData;
  const auto n = static_cast<double>(p99.size());
  const double mean = std::accumulate(p99.begin(), p99.end(), 0.0) / n;
  double square = 0;
  for (const double v : p99) square += (v - mean) * (v - mean);
  return std::sqrt(square / n);
}

const std::vector<MetricDefinition>& serving_metric_definitions() {
  using enum Better;
  static const std::vector<MetricDefinition> kDefinitions = {
      {"requests arrived", "", kNeither, "all of the run, warm-up included"},
      {"requests finished", "", kNeither, "of those"},
      {"requests rejected", "", kLower, "of those: rate limit, full queue, too long"},
      {"requests failed", "", kLower, "of those: lost with their replica"},
      {"requests unfinished", "", kNeither, "of those: still there at the end of the run"},
      {"requests per second", "1/s", kHigher, "finished in the span / span"},
      {"output tokens per second", "1/s", kHigher, "tokens sampled in the span / span"},
      {"queue wait mean", "ms", kLower,
       "start of the first step - arrival, over requests finished in the span"},
      {"queue wait p50", "ms", kLower, "nearest rank over requests finished in the span"},
      {"queue wait p99", "ms", kLower, "nearest rank over requests finished in the span"},
      {"request latency mean", "ms", kLower, "last token - arrival, requests finished in the span"},
      {"request latency p50", "ms", kLower, "nearest rank over requests finished in the span"},
      {"request latency p99", "ms", kLower, "nearest rank over requests finished in the span"},
      {"ITL mean", "ms", kLower, "time between two tokens of an answer, over tokens in the span"},
      {"ITL p50", "ms", kLower, "nearest rank over tokens in the span"},
      {"ITL p99", "ms", kLower, "nearest rank over tokens in the span"},
      {"ITL max", "ms", kLower, "longest of them"},
      {"ITL p99 std", "ms", kLower,
       "population std over the span's whole 10 s windows of the window's ITL p99; n/a with fewer "
       "than 28 windows that have tokens"},
      {"ITL jitter", "ms", kLower,
       "population std of an answer's ITL, median over requests finished with >= 3 tokens"},
      {"SLO attainment", "", kHigher,
       "requests finished within their tier's TTFT and TPOT / requests that left in the span"},
      {"goodput", "1/s", kHigher, "requests finished within their tier's TTFT and TPOT / span"},
      {"preemptions", "", kLower, "times a request lost its pages to another"},
      {"tokens computed anew", "", kLower, "after preemptions by recomputation and failures"},
      {"KV swapped", "GB", kLower, "to and from host memory on each GPU, 1 GB = 1e9 B"},
      {"KV transferred", "GB", kNeither, "from prefill to decode replicas, 1 GB = 1e9 B"},
      {"KV transfer mean", "ms", kLower, "from the finished prompt's departure to its arrival"},
      {"requests in system mean", "", kNeither, "integral of their number / end of the run"},
      {"replica busy", "", kNeither, "time in measured steps / (replicas x span)"},
      {"KV use mean", "", kNeither, "pages / memory for pages, mean over measured steps and ranks"},
      {"KV use max", "", kNeither, "the largest of them"},
  };
  return kDefinitions;
}

const std::vector<MetricDefinition>& stated_metric_definitions() {
  static const std::vector<MetricDefinition> definitions = {
      {"SLO TTFT", "ms", Better::kNeither, "workload.slo.ttft or the tier's: what attainment asks"},
      {"SLO TPOT", "ms", Better::kNeither, "workload.slo.tpot or the tier's: what attainment asks"},
      {"prefix hit rate", "", Better::kHigher,
       "tokens found in a prefix cache / tokens of requests that began or began anew"},
      {"prefix tokens not computed", "", Better::kHigher, "tokens found in a prefix cache"},
      {"prefix blocks evicted", "", Better::kLower, "blocks of hash_ids that made place for pages"},
      {"prefix KV not sent", "GB", Better::kHigher,
       "pages that the decode rank's prefix cache had, 1 GB = 1e9 B"},
      {"mean power", "W", Better::kLower,
       "PUE x (GPUs: idle + (TDP - idle) x busy; servers: host power)"},
      {"energy", "J", Better::kLower, "mean power x span"},
      {"energy per token", "J", Better::kLower, "energy / tokens"},
      {"cost per million tokens", "USD", Better::kLower,
       "(energy x electricity + GPUs x GPU price x span / years) / tokens x 1e6"},
      {"electricity share of cost", "", Better::kNeither, "energy x electricity / cost"},
      {"GPU price per token rate", "USD s", Better::kLower,
       "GPU price / (tokens per second and GPU): of two cards the smaller one is the cheaper"},
      {"break-even rate", "1/s", Better::kLower, "(cost / span) / (API price per token)"},
      {"break-even utilisation", "", Better::kLower,
       "break-even rate / tokens per second; above 1 own machines never pay"},
      {"payback", "years", Better::kLower,
       "GPUs x GPU price / (tokens per second x API price - electricity per second)"},
      // Faults, alarms.
      {"faults", "", Better::kNeither, "faults that began"},
      {"tokens lost", "", Better::kLower, "tokens of steps that hung and ran again"},
      {"tokens recomputed", "", Better::kLower, "whose keys and values a fault had taken"},
      {"recovery time", "ms", Better::kLower,
       "detection, restart, loading and moving of weights and pages, summed over faults"},
      {"assignments on damaged weights", "", Better::kLower, "run before a check found the damage"},
      {"failed gathers", "", Better::kLower, "tries of a combine that came to nothing"},
      {"time of failed gathers", "ms", Better::kLower, "those tries and their time-outs"},
      {"assignments lost in gathers", "", Better::kLower,
       "computed, and given up after faults.retries"},
      {"assignments sent on", "", Better::kLower,
       "from the expert's own GPU to the one that has its weights"},
      {"requests that lost their pages", "", Better::kLower, "with a GPU or its replica"},
      {"alarms", "", Better::kLower, "times an alarm of monitor.alarms went off"},
      {"requests shed", "", Better::kLower, "turned away by an alarm's action"},
      {"steps without admission (watermark)", "", Better::kLower,
       "times that memory.watermark kept a rank from admitting in a step, over all ranks"},
      {"preemptions at the watermark", "", Better::kLower,
       "of the preemptions: there was room, but above memory.watermark"},
      // Experts that are loaded, or run by the CPU.
      {"expert hit rate", "", Better::kHigher,
       "distinct experts asked for that were on the GPU / asked for; with its layer: of that one"},
      {"expert hit rate, Belady bound", "", Better::kNeither,
       "the same with a cache that knows the future"},
      {"experts loaded per step", "", Better::kLower, "to all GPUs, mean over measured steps"},
      {"expert bytes loaded per step", "B", Better::kLower,
       "to all GPUs, mean over measured steps"},
      {"experts from SSD", "", Better::kLower, "of the experts loaded"},
      {"experts from CXL pool", "", Better::kLower, "of the experts loaded"},
      {"expert load wait per step", "ms", Better::kLower,
       "longest wait of a GPU, summed over MoE layers, mean over measured steps"},
      {"prefetched experts used", "", Better::kHigher,
       "prefetched and then asked for / prefetched"},
      {"experts on the CPU per step", "", Better::kNeither,
       "distinct experts of GPUs and layers that a CPU computed, mean over measured steps"},
      {"rows to the CPU per step", "", Better::kNeither, "assignments of those experts"},
      {"expert CPU transfers per step", "B", Better::kLower, "rows there and back"},
      {"expert CPU wait per step", "ms", Better::kLower,
       "longest wait of a GPU for the CPU, summed over MoE layers, mean over measured steps"},
      {"expert CPU use", "", Better::kNeither, "time in experts / time of the run, busiest CPU"},
      // Start-up.
      {"loading time", "ms", Better::kLower, "until the last GPU is ready, warm-up and table too"},
      {"loading time by bandwidth alone", "ms", Better::kNeither,
       "bytes / the slowest of SSD, checksum and copy, slowest GPU: a floor"},
      {"first token, cold", "ms", Better::kLower, "from the start to the end of the first step"},
      {"first token, warm", "ms", Better::kLower, "duration of the last step"},
      {"warm-up of an expert", "ms", Better::kLower,
       "warm_up.tokens in one expert by the cost model, slowest GPU type"},
      // Memory, layout, policies.
      {"memory reserved", "GB", Better::kLower,
       "most that the allocator held of a GPU, 1 GB = 1e9 B"},
      {"memory reserved and not in use", "", Better::kLower, "share of that, at that time"},
      {"pipeline idle share", "", Better::kLower, "GPU time spent waiting / GPU time"},
      {"embedding collective per step", "B", Better::kLower,
       "sent for the vocabulary-parallel embedding, mean over steps"},
      {"logits all-gather per step", "B", Better::kLower,
       "sent for the vocabulary-parallel head, mean over steps"},
      {"router card use", "", Better::kNeither, "time at work / time of the run, busiest card"},
      {"router CPU use", "", Better::kNeither, "time at work / time of the run, busiest CPU"},
      {"router transfers per step", "B", Better::kLower,
       "to the routers and back, mean over steps"},
      {"assignments deferred", "", Better::kLower,
       "run in a later step than they were asked for in"},
      {"tokens that came no further in a step", "", Better::kLower,
       "times a sequence gave no token because its experts were full"},
      {"cohesion", "", Better::kNeither,
       "mean cosine similarity of tokens that share an expert, mean over steps"},
      {"cohesion of random tokens", "", Better::kNeither,
       "the same for tokens put together at random"},
      {"coupled rounds", "", Better::kNeither, "rounds of the engine and the simulator"},
      {"coupled converged", "", Better::kHigher, "1: the last round changed no decision"},
      {"coupled changed decisions", "", Better::kLower,
       "tokens x layers whose experts a round changed"},
  };
  return definitions;
}

const MetricDefinition* find_metric(std::string_view name) {
  for (const std::string_view part : {", tier ", ", layer ", ", round "}) {
    name = name.substr(0, name.find(part));
  }
  for (const auto* definitions :
       {&metric_definitions(), &serving_metric_definitions(), &stated_metric_definitions()}) {
    for (const MetricDefinition& d : *definitions) {
      if (d.name == name) return &d;
    }
  }
  return nullptr;
}

std::vector<Metric> compute_metrics(const RunData& run) {
  const std::vector<double> values = values_of(run);
  const std::vector<MetricDefinition>& definitions = metric_definitions();
  SWITCHYARD_ASSERT(values.size() == definitions.size(),
                    fmt::format("{} values, {} definitions", values.size(), definitions.size()));
  std::vector<Metric> metrics;
  metrics.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    metrics.push_back({definitions[i].name, values[i], definitions[i].unit});
  }
  return metrics;
}

double nearest_rank(std::vector<double> values, double percent) {
  if (values.empty()) return kNoData;
  std::sort(values.begin(), values.end());
  // ceil with a guard against 0.99·100 = 99.00000000000001.
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()) - 1e-9);
  const auto i = static_cast<std::size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(i, values.size() - 1)];
}

std::string format_value(double value) {
  if (std::isnan(value)) return "n/a";
  // Counts and bytes as they are, not 6.9e+09.
  const double size = std::abs(value);
  return size >= 1e6 && size < 1e15 ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value);
}

}  // namespace switchyard::run
