// SPDX-License-Identifier: Apache-2.0
#include "gui/core/columns.hpp"

#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace switchyard::gui {

std::size_t levelForColumns(TimeWindow window, std::size_t columns, std::size_t finest,
                            std::size_t levels) {
  const double perColumn = window.length() / static_cast<double>(std::max<std::size_t>(columns, 1));
  std::size_t level = 0;
  while (level < levels && static_cast<double>(run::lod_bin_steps(level + 1)) <= perColumn) {
    ++level;
  }
  return std::min(std::max(level, finest), levels);
}

HeatColumns heatColumns(const RunStore& run, std::uint32_t layer, Scale scale, Aggregate how,
                        TimeWindow window, std::size_t columns) {
  HeatColumns out;
  out.columns = columns;
  out.experts = run.experts();
  if (columns == 0 || run.experts() == 0) return out;
  const std::size_t experts = out.experts;
  const auto flagsOf = [experts](const ExpertRow& r, std::uint8_t* flags) {
    for (std::size_t e = 0; e < experts; ++e) flags[e] = r.overflow[e] > 0 ? 1 : 0;
  };
  if (scale == Scale::kCapacity) {
    // The levels take a missing capacity (NaN) as 0; do the same here, and mark it below.
    auto c = aggregate<float, double>(run, run::LodSeries::kExpertFill, layer, window, columns,
                                      how == Aggregate::kMax ? Wanted::kMax : Wanted::kBoth,
                                      [&](std::uint64_t step, float* v, std::uint8_t* f) {
                                        const ExpertRow r = run.expertRow(
                                            layer, step, kFillColumn | kOverflowColumn);
                                        for (std::size_t e = 0; e < experts; ++e)
                                          v[e] = r.fill[e] == r.fill[e] ? r.fill[e] : 0;
                                        flagsOf(r, f);
                                      });
    if (!run.hasCapacity()) {
      out.value.assign(columns * experts, std::numeric_limits<float>::quiet_NaN());
    } else if (how == Aggregate::kMax) {
      out.value = std::move(c.max);
    } else {
      out.value.resize(columns * experts);
      for (std::size_t i = 0; i < out.value.size(); ++i) {
        out.value[i] = static_cast<float>(c.mean(i / experts, i % experts));
      }
    }
    out.over = std::move(c.flag);
    out.level = c.level;
    return out;
  }
  out.value.resize(columns * experts);
  const bool sums = how == Aggregate::kMean;
  auto c = aggregate<std::uint32_t, std::uint64_t>(
      run, run::LodSeries::kExpertKept, layer, window, columns, sums ? Wanted::kBoth : Wanted::kMax,
      [&](std::uint64_t step, std::uint32_t* v, std::uint8_t* f) {
        const ExpertRow r = run.expertRow(layer, step, kKeptColumn | kOverflowColumn);
        std::copy_n(r.kept, experts, v);
        flagsOf(r, f);
      });
  for (std::size_t col = 0; col < columns; ++col) {
    double unit = 1;
    if (scale == Scale::kFairShare) {
      // Largest steps are compared with largest steps: over the mean of all steps a step with many
      // tokens would make every expert hot.
      const std::size_t at = col * experts;
      double all = 0;
      for (std::size_t e = 0; e < experts; ++e) {
        all += sums ? c.sum[at + e] : static_cast<double>(c.max[at + e]);
      }
      const double share =
          all / (static_cast<double>(experts) * (sums ? std::max(c.steps[col], 1.0) : 1));
      unit = share > 0 ? share : 1;
    }
    for (std::size_t e = 0; e < experts; ++e) {
      const std::size_t i = col * experts + e;
      const double v = how == Aggregate::kMax ? static_cast<double>(c.max[i]) : c.mean(col, e);
      out.value[i] = static_cast<float>(v / unit);
    }
  }
  out.over = std::move(c.flag);
  out.level = c.level;
  return out;
}

double heatTop(const RunStore& run, std::uint32_t layer, Scale scale) {
  if (scale == Scale::kCapacity || run.steps() == 0 || run.experts() == 0) return 1;
  // Finest resolution that is cheap: at most 512 columns over the whole run.
  const auto columns = static_cast<std::size_t>(std::min<std::uint64_t>(run.steps(), 512));
  const HeatColumns c = heatColumns(run, layer, scale, Aggregate::kMax,
                                    {0, static_cast<double>(run.steps())}, columns);
  return niceCeiling(static_cast<double>(*std::max_element(c.value.begin(), c.value.end())));
}

double overTop(const RunStore& run, std::uint32_t layer) {
  const std::size_t experts = run.experts();
  double top = 0;
  const auto see = [&](float v) { top = std::max(top, v == v ? static_cast<double>(v) : 0.0); };
  if (experts == 0 || run.steps() == 0 || !run.hasCapacity()) return 1;
  if (run.levels() > 0) {
    const auto rows = run.bins<float, double>(run::LodSeries::kExpertFill, layer,
                                              run::LodPart::kMaxAndFlag, run.levels(), 0);
    std::for_each(rows.max, rows.max + rows.count * experts, see);
  } else {
    for (std::uint64_t s = 0; s < run.steps(); ++s) {
      const ExpertRow r = run.expertRow(layer, s, kFillColumn);
      std::for_each(r.fill, r.fill + experts, see);
    }
  }
  return std::max(1.0, top);
}

Columns<double> seriesColumns(const RunStore& run, TimeWindow window, std::size_t columns) {
  return aggregate<double, double>(
      run, run::LodSeries::kSteps, kAllLayers, window, columns, Wanted::kBoth,
      [&](std::uint64_t step, double* v, std::uint8_t* f) {
        const run::StepScalars& s = run.data().steps[static_cast<std::size_t>(step)];
        const auto number = [](double x) { return x == x ? x : 0.0; };
        v[0] = static_cast<double>(s.end_ps - s.start_ps);
        v[1] = static_cast<double>(s.tokens);
        v[2] = static_cast<double>(s.overflow);
        v[3] = static_cast<double>(s.rerouted);
        v[4] = static_cast<double>(s.queued);
        v[5] = static_cast<double>(s.dropped);
        v[6] = number(s.imbalance);
        v[7] = number(s.imbalance_max);
        std::fill_n(f, run::kStepSeries, static_cast<std::uint8_t>(s.overflow > 0 ? 1 : 0));
      });
}

Columns<float> linkColumns(const RunStore& run, TimeWindow window, std::size_t columns) {
  const auto& links = run.data().inventory.links;
  return aggregate<float, double>(
      run, run::LodSeries::kLinkUse, kAllLayers, window, columns, Wanted::kBoth,
      [&](std::uint64_t step, float* v, std::uint8_t* f) {
        const run::StepScalars& s = run.data().steps[static_cast<std::size_t>(step)];
        const std::uint64_t* bytes = run.linkBytes(step);
        for (std::size_t k = 0; k < links.size(); ++k) {
          const double use = run::link_use(bytes[k], links[k].bandwidth, s.end_ps - s.start_ps);
          v[k] = static_cast<float>(use);
          f[k] = use >= 0.9 ? 1 : 0;
        }
      });
}

Columns<std::int64_t> phaseColumns(const RunStore& run, TimeWindow window, std::size_t columns) {
  return aggregate<std::int64_t, std::int64_t>(
      run, run::LodSeries::kGpuPhase, kAllLayers, window, columns, Wanted::kSum,
      [&](std::uint64_t step, std::int64_t* v, std::uint8_t*) {
        std::copy_n(run.gpuPhases(step), run.gpus() * run::kPhases, v);
      });
}

void LayerSpread::append(const std::vector<float>& imbalance, std::size_t layers) {
  std::vector<float> known;
  for (std::size_t at = 0; layers > 0 && at + layers <= imbalance.size(); at += layers) {
    known.clear();
    for (std::size_t l = 0; l < layers; ++l) {
      if (!std::isnan(imbalance[at + l])) known.push_back(imbalance[at + l]);
    }
    std::sort(known.begin(), known.end());
    const auto rank = [&](std::size_t percent) {
      if (known.empty()) return std::numeric_limits<float>::quiet_NaN();
      return known[std::max<std::size_t>(1, (percent * known.size() + 99) / 100) - 1];
    };
    low.push_back(rank(5));
    middle.push_back(rank(50));
    high.push_back(rank(95));
  }
}

std::vector<std::size_t> busiestLinks(const RunStore& run, std::size_t most) {
  std::vector<std::size_t> links(run.links());
  std::iota(links.begin(), links.end(), std::size_t{0});
  if (run.levels() == 0 || links.empty()) return {};
  const auto copy = [&](run::LodPart part) {
    const auto rows =
        run.bins<float, double>(run::LodSeries::kLinkUse, kAllLayers, part, run.levels(), 0);
    return part == run::LodPart::kSum ? std::vector<double>(rows.sum, rows.sum + links.size())
                                      : std::vector<double>(rows.max, rows.max + links.size());
  };
  const std::vector<double> sum = copy(run::LodPart::kSum);
  const std::vector<double> max = copy(run::LodPart::kMaxAndFlag);
  std::stable_sort(links.begin(), links.end(), [&](std::size_t a, std::size_t b) {
    if (sum[a] != sum[b]) return sum[a] > sum[b];
    return max[a] > max[b];
  });
  links.resize(std::min(most, links.size()));
  return links;
}

namespace {

/// Quoted where the text needs it (RFC 4180).
std::string csvText(const std::string& s) {
  if (s.find_first_of(",\"\n\r") == std::string::npos) return s;
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string csvNumber(double v) { return v == v ? fmt::format("{}", v) : std::string(); }

}  // namespace

std::string csvOf(const RunStore& run, const std::string& panel, std::uint32_t layer,
                  TimeWindow window) {
  if (!run.hasSteps()) {
    throw InputError(
        run.name(),
        fmt::format("unsupported: CSV of a run with detail \"{}\"",
                    run::kDetailNames[static_cast<std::size_t>(run.data().meta.detail)]),
        "it holds no single steps; simulate with run.detail = \"steps\" or finer");
  }
  const auto first = static_cast<std::uint64_t>(std::max(0.0, std::floor(window.first)));
  const auto end =
      std::min(run.steps(), static_cast<std::uint64_t>(std::max(0.0, std::ceil(window.end))));
  const run::Inventory& inv = run.data().inventory;
  std::string out;
  if (panel == "heatmap") {
    out = "step,expert,gpu,kept,overflow,rerouted_in,queued,dropped,capacity,fill\n";
    const std::vector<ExpertPlace> order = run.expertOrder(layer);
    for (std::uint64_t s = first; s < end; ++s) {
      const ExpertRow r = run.expertRow(layer, s);
      for (const ExpertPlace& p : order) {
        const std::uint32_t e = p.expert;
        const std::string gpu = p.gpu == run::kNone ? "" : fmt::format("{}", p.gpu);
        const std::string capacity =
            r.capacity[e] == run::kUnlimited ? "" : fmt::format("{}", r.capacity[e]);
        out += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", s, e, gpu, r.kept[e], r.overflow[e],
                           r.rerouted_in[e], r.queued[e], r.dropped[e], capacity,
                           csvNumber(static_cast<double>(r.fill[e])));
      }
    }
    return out;
  }
  if (panel == "links") {
    out = "step";
    for (const run::LinkInfo& k : inv.links) out += "," + csvText(k.name + " [share of capacity]");
    out += "\n";
    for (std::uint64_t s = first; s < end; ++s) {
      out += fmt::format("{}", s);
      for (std::size_t k = 0; k < inv.links.size(); ++k) {
        out += "," + csvNumber(run.linkUse(s, k));
      }
      out += "\n";
    }
    return out;
  }
  if (panel == "imbalance") {
    out = "step,imbalance (max/mean) mean over layers,imbalance (max/mean) largest layer\n";
    for (std::uint64_t s = first; s < end; ++s) {
      const run::StepScalars& x = run.data().steps[static_cast<std::size_t>(s)];
      out += fmt::format("{},{},{}\n", s, csvNumber(x.imbalance), csvNumber(x.imbalance_max));
    }
    return out;
  }
  if (panel == "memory") {
    out = "step,GPU";
    for (const auto& name : run::kMemoryCategoryNames) out += fmt::format(",{} [bytes]", name);
    out += ",high water [bytes]\n";
    for (std::uint64_t s = first; s < end; ++s) {
      for (std::size_t g = 0; g < run.gpus(); ++g) {
        const std::uint64_t* m = run.gpuMemory(s) + g * run::kMemoryCategories;
        out += fmt::format("{},{}", s, g);
        for (std::size_t c = 0; c < run::kMemoryCategories; ++c) out += fmt::format(",{}", m[c]);
        out += fmt::format(",{}\n", run.gpuMemoryPeak(s)[g]);
      }
    }
    return out;
  }
  SWITCHYARD_ASSERT(panel == "all", panel);
  out =
      "step,start [ps],end [ps],kind,warmup,tokens,assignments,kept,rerouted,queued,dropped,"
      "overflow,imbalance (max/mean) mean over layers,imbalance (max/mean) largest layer\n";
  for (std::uint64_t s = first; s < end; ++s) {
    const run::StepScalars& x = run.data().steps[static_cast<std::size_t>(s)];
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", s, x.start_ps, x.end_ps,
                       run::kStepKindNames[static_cast<std::size_t>(x.kind)], x.warmup ? 1 : 0,
                       x.tokens, x.assignments, x.kept, x.rerouted, x.queued, x.dropped, x.overflow,
                       csvNumber(x.imbalance), csvNumber(x.imbalance_max));
  }
  return out;
}

std::string groupDigits(std::uint64_t n) {
  const std::string digits = fmt::format("{}", n);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += "\u00a0";
    out += digits[i];
  }
  return out;
}

std::string shortNumber(double v) {
  if (!std::isfinite(v)) return "n/a";
  const double a = std::abs(v);
  if (a == 0) return "0";
  if (a >= 9999.5) {
    const std::string whole = groupDigits(static_cast<std::uint64_t>(std::llround(a)));
    return v < 0 ? "-" + whole : whole;
  }
  const int before = a >= 1 ? static_cast<int>(std::floor(std::log10(a))) + 1 : 1;
  return fmt::format("{:.{}f}", v, std::max(0, 4 - before));
}

std::string timeText(double ps) {
  const double a = std::abs(ps);
  if (a == 0) return "0 s";
  if (a < 1e3) return fmt::format("{:.0f} ps", ps);
  if (a < 1e6) return fmt::format("{} ns", shortNumber(ps * 1e-3));
  if (a < 1e9) return fmt::format("{} us", shortNumber(ps * 1e-6));
  if (a < 1e12) return fmt::format("{} ms", shortNumber(ps * 1e-9));
  return fmt::format("{} s", shortNumber(ps * 1e-12));
}

std::string expertName(std::uint32_t e, std::uint32_t experts) {
  const std::size_t digits = fmt::format("{}", experts > 0 ? experts - 1 : 0).size();
  return fmt::format("e{:0{}}", e, digits);
}

std::string percentText(double share) {
  if (!std::isfinite(share)) return "n/a";
  const double p = share * 100;
  // Few are not none.
  if (p > 0 && p < 0.095) return p < 0.0001 ? "<0.0001 %" : fmt::format("{:.2g} %", p);
  return p >= 99.95 ? fmt::format("{:.0f} %", p) : fmt::format("{:.1f} %", p);
}

std::string bytesText(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return shortNumber(bytes * 1e-3) + " kB";
  if (bytes < 1e9) return shortNumber(bytes * 1e-6) + " MB";
  if (bytes < 1e12) return shortNumber(bytes * 1e-9) + " GB";
  return shortNumber(bytes * 1e-12) + " TB";
}

}  // namespace switchyard::gui
