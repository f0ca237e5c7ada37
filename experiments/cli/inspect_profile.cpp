// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/run/run_file.hpp"

namespace switchyard::cli {
namespace {

constexpr std::size_t kCopies = 10;

std::string share(double part, double whole) {
  return whole > 0 ? fmt::format("{:.2f}", 100.0 * part / whole) : "n/a";
}

/// Sums over the steps that are not warm-up.
struct Measured {
  std::uint64_t steps = 0, tokens = 0, hbm_bytes = 0, kernels = 0, bytes_sent = 0;
  double seconds = 0;      ///< Sum of the steps; replicas step beside each other.
  double span_s = 0;       ///< First start to last end.
  double gpu_seconds = 0;  ///< Sum over GPUs of their own time in steps.
  std::array<double, run::kPhases> phase_s{};
};

Measured measure(const run::RunData& run) {
  Measured m;
  std::int64_t begin = 0, end = 0;
  for (const run::StepScalars& s : run.steps) {
    if (s.warmup) continue;
    begin = m.steps == 0 ? s.start_ps : std::min(begin, s.start_ps);
    end = m.steps == 0 ? s.end_ps : std::max(end, s.end_ps);
    ++m.steps;
    m.tokens += s.tokens;
    m.hbm_bytes += s.hbm_bytes;
    m.kernels += s.kernels;
    m.bytes_sent += s.bytes_sent;
    m.seconds += static_cast<double>(s.end_ps - s.start_ps) * 1e-12;
    for (std::size_t p = 0; p < run::kPhases; ++p) {
      m.phase_s[p] += static_cast<double>(s.phase_ps[p]) * 1e-12;
    }
  }
  m.span_s = static_cast<double>(end - begin) * 1e-12;
  for (const auto ps : run.totals.gpu_phase_ps) m.gpu_seconds += static_cast<double>(ps) * 1e-12;
  return m;
}

double phase(const Measured& m, run::Phase p) { return m.phase_s[static_cast<std::size_t>(p)]; }

Table time_table(const run::RunData& run, const Measured& m) {
  Table t;
  t.name = "profile";
  t.title = "Time by kind of kernel";
  t.columns = {"kernels", "critical path [ms]", "of the step time [%]", "all GPUs [ms]",
               "of GPU time [%]"};
  const auto gpus = run.inventory.gpus.size();
  for (std::size_t p = 0; p < run::kPhases; ++p) {
    double all = 0;
    for (std::size_t g = 0; (g + 1) * run::kPhases <= run.totals.gpu_phase_ps.size(); ++g) {
      all += static_cast<double>(run.totals.gpu_phase_ps[g * run::kPhases + p]) * 1e-12;
    }
    const bool known = m.steps > 0;
    t.rows.push_back({std::string(run::kPhaseNames[p]),
                      known ? fmt::format("{:.4f}", m.phase_s[p] * 1e3) : "n/a",
                      share(m.phase_s[p], m.seconds),
                      known ? fmt::format("{:.4f}", all * 1e3) : "n/a", share(all, m.gpu_seconds)});
  }
  t.notes.push_back(
      fmt::format("{} steps, {:.4f} ms in sum, {:.4f} ms from first to last, {} GPUs; "
                  "warm-up left out",
                  m.steps, m.seconds * 1e3, m.span_s * 1e3, gpus));
  t.notes.emplace_back(
      "critical path: sums to the step time; all GPUs: each GPU's own time, host and wait "
      "included");
  return t;
}

Table rates_table(const run::RunData& run, const Measured& m) {
  Table t;
  t.name = "profile-rates";
  t.title = "Memory, communication and launches";
  t.columns = {"quantity", "value", "unit"};
  const auto add = [&](const char* name, bool known, double value, const char* unit) {
    t.rows.push_back(
        {name, known && std::isfinite(value) ? fmt::format("{:.4f}", value) : "n/a", unit});
  };
  const auto gpus = static_cast<double>(run.inventory.gpus.size());
  double hbm = 0;
  bool peak_known = !run.inventory.gpus.empty();
  for (const run::GpuInfo& g : run.inventory.gpus) {
    hbm += g.hbm.value;
    peak_known = peak_known && g.hbm.value > 0;
  }
  const bool time = m.span_s > 0;
  const auto bytes = static_cast<double>(m.hbm_bytes);
  add("HBM read and written, per GPU", time && m.hbm_bytes > 0, bytes / (gpus * m.span_s) * 1e-9,
      "GB/s");
  add("of the peak", time && peak_known && m.hbm_bytes > 0, 100.0 * bytes / (hbm * m.span_s), "%");
  add("HBM bytes per token, all GPUs", m.tokens > 0 && m.hbm_bytes > 0,
      bytes / static_cast<double>(m.tokens) * 1e-6, "MB");
  const double exchange = phase(m, run::Phase::kDispatch) + phase(m, run::Phase::kCombine);
  const double collective = phase(m, run::Phase::kCollective);
  add("communication share of the step time", time, 100.0 * (exchange + collective) / m.seconds,
      "%");
  add("of it dispatch and combine", time, 100.0 * exchange / m.seconds, "%");
  add("of it collectives", time, 100.0 * collective / m.seconds, "%");
  add("sent from GPU to GPU, per step", m.steps > 0,
      static_cast<double>(m.bytes_sent) / static_cast<double>(m.steps) * 1e-6, "MB");
  add("kernels launched per step, all GPUs", m.steps > 0 && m.kernels > 0,
      static_cast<double>(m.kernels) / static_cast<double>(m.steps), "");
  add("GPU time per kernel", m.kernels > 0, m.gpu_seconds / static_cast<double>(m.kernels) * 1e6,
      "us");
  t.notes.emplace_back(
      "GB = 1e9 B; communication: dispatch, combine and collectives on the critical path; sent: "
      "what relays pass on and loads of weights are not in it");
  return t;
}

Table histogram_table(const run::RunData& run) {
  Table t;
  t.name = "profile-histogram";
  t.title = "Lengths of the MoE layers' kernels, count by length";
  t.columns = {"length [us]", "attention", "router", "dispatch", "expert", "combine"};
  const std::array<const std::vector<std::int64_t>*, 5> series{
      &run.layer_steps.attention_ps, &run.layer_steps.router_ps, &run.layer_steps.dispatch_ps,
      &run.layer_steps.expert_ps, &run.layer_steps.combine_ps};
  const std::size_t layers = run.inventory.moe_layers.size();
  // Bin i >= 1: [2^(i-1), 2^i) ns; bin 0: nothing ran.
  std::vector<std::array<std::uint64_t, 5>> bins;
  for (std::size_t s = 0; s < run.steps.size() && layers > 0; ++s) {
    if (run.steps[s].warmup) continue;
    for (std::size_t k = 0; k < series.size(); ++k) {
      for (std::size_t l = 0; l < layers && (s + 1) * layers <= series[k]->size(); ++l) {
        std::int64_t ns = (*series[k])[s * layers + l] / 1000;
        std::size_t bin = 0;
        for (; ns > 0; ns /= 2) ++bin;
        if (bins.size() <= bin) bins.resize(bin + 1);
        ++bins[bin][k];
      }
    }
  }
  const auto first = std::find_if(bins.begin(), bins.end(), [](const auto& b) {
    return std::accumulate(b.begin(), b.end(), std::uint64_t{0}) > 0;
  });
  for (auto bin = first; bin != bins.end(); ++bin) {
    const auto i = static_cast<std::size_t>(bin - bins.begin());
    const double high = std::ldexp(1.0, static_cast<int>(i)) * 1e-3;
    std::vector<std::string> row{i == 0 ? std::string("< 0.001")
                                        : fmt::format("{:g} to {:g}", high / 2, high)};
    for (const std::uint64_t n : *bin) row.push_back(std::to_string(n));
    t.rows.push_back(std::move(row));
  }
  if (t.rows.empty()) {
    t.notes.push_back(fmt::format("n/a: needs run.detail = \"layers\", this run has \"{}\"",
                                  run::kDetailNames[static_cast<std::size_t>(run.meta.detail)]));
  } else {
    t.notes.emplace_back("one entry per step and MoE layer; expert: all GEMMs of a layer together");
  }
  return t;
}

Table copies_table(const run::RunData& run, const Measured& m) {
  Table t;
  t.name = "profile-copies";
  t.title = "Largest copies";
  t.columns = {"what", "from", "to", "bytes [MB]", "of all [%]", "rate [GB/s]", "of capacity [%]"};
  const auto list = [&](const char* what, std::vector<std::pair<std::uint64_t, std::size_t>> items,
                        const auto& ends, const auto& capacity) {
    double total = 0;
    for (const auto& [bytes, i] : items) total += static_cast<double>(bytes);
    std::stable_sort(items.begin(), items.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (std::size_t n = 0; n < std::min(kCopies, items.size()) && items[n].first > 0; ++n) {
      const auto bytes = static_cast<double>(items[n].first);
      const auto [from, to] = ends(items[n].second);
      const double peak = capacity(items[n].second);
      t.rows.push_back({what, from, to, fmt::format("{:.4f}", bytes * 1e-6), share(bytes, total),
                        m.span_s > 0 ? fmt::format("{:.4f}", bytes / m.span_s * 1e-9) : "n/a",
                        peak > 0 ? share(bytes, peak * m.span_s) : "n/a"});
    }
  };
  const std::size_t gpus = run.inventory.gpus.size();
  std::vector<std::pair<std::uint64_t, std::size_t>> pairs;
  for (std::size_t i = 0; i < run.totals.pair_bytes.size(); ++i) {
    pairs.emplace_back(run.totals.pair_bytes[i], i);
  }
  list(
      "GPU pair", std::move(pairs),
      [&](std::size_t i) {
        return std::pair(run.inventory.gpus[i / gpus].name, run.inventory.gpus[i % gpus].name);
      },
      [](std::size_t) { return 0.0; });
  std::vector<std::pair<std::uint64_t, std::size_t>> links;
  for (std::size_t i = 0; i < run.totals.link_bytes.size(); ++i) {
    links.emplace_back(run.totals.link_bytes[i], i);
  }
  list(
      "link", std::move(links),
      [&](std::size_t i) {
        return std::pair(run.inventory.links[i].from, run.inventory.links[i].to);
      },
      [&](std::size_t i) { return run.inventory.links[i].bandwidth.value; });
  if (t.rows.empty()) {
    t.notes.emplace_back("n/a: nothing was sent");
  } else {
    t.notes.emplace_back(
        "rate: over the time from the first measured step to the end of the last, idle included");
  }
  return t;
}

}  // namespace

std::vector<Table> profile_tables(const run::RunData& run) {
  const Measured m = measure(run);
  return {time_table(run, m), rates_table(run, m), histogram_table(run), copies_table(run, m)};
}

std::vector<Table> inspect_profile(const std::string& path, bool verify) {
  run::RunParts parts = run::RunParts::none();
  parts.steps = parts.layers = true;
  return profile_tables(run::read_run(path, parts, h5::ReadOptions{verify}));
}

}  // namespace switchyard::cli
