// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/routing_statistics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/trace/trace_stats.hpp"

namespace switchyard::tables {
namespace {

constexpr std::uint64_t kShuffleSeed = 1;

double as_double(std::uint64_t v) { return static_cast<double>(v); }

std::uint64_t sum_of(std::span<const std::uint64_t> load) {
  return std::accumulate(load.begin(), load.end(), std::uint64_t{0});
}

double entropy_bits(std::span<const double> p) {
  double h = 0;
  for (const double x : p) {
    h -= x > 0 ? x * std::log2(x) : 0;
  }
  return std::max(h, 0.0);
}

std::vector<double> shares(std::span<const std::uint64_t> load) {
  const double sum = as_double(sum_of(load));
  std::vector<double> p;
  for (const std::uint64_t x : load) {
    p.push_back(sum > 0 ? as_double(x) / sum : 0);
  }
  return p;
}

double top3_share(std::span<const std::uint64_t> load) {
  Loads sorted(load.begin(), load.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  sorted.resize(std::min<std::size_t>(3, sorted.size()));
  return as_double(sum_of(sorted)) / as_double(sum_of(load));
}

std::uint64_t dead(std::span<const std::uint64_t> load) {
  return static_cast<std::uint64_t>(std::count(load.begin(), load.end(), 0U));
}

std::string share(std::optional<double> v) { return v ? fmt::format("{:.3f}", *v) : "n/a"; }
std::string bits(double v) { return fmt::format("{:.4f}", v); }

std::optional<double> mean_of(const RoutingSource& s, std::optional<double> LayerChoices::*field) {
  double sum = 0;
  for (const LayerChoices& l : s.layers) {
    if (!(l.*field)) return std::nullopt;
    sum += *(l.*field);
  }
  return sum / static_cast<double>(s.layers.size());
}

template <typename F>
double mean_of(const RoutingSource& s, const F& f) {
  double sum = 0;
  for (const LayerChoices& l : s.layers) sum += f(l);
  return sum / static_cast<double>(s.layers.size());
}

/// "17: 8.2 % of code, 2.1 % of all": the expert with the most load above its mean over texts.
std::string specialist(const RoutingSource& s, const LayerChoices& layer) {
  std::vector<std::vector<double>> p;
  p.reserve(layer.by_text.size());
  for (const Loads& load : layer.by_text) p.push_back(shares(load));
  double most = -1;
  std::string out = "n/a";
  for (std::size_t e = 0; e < s.experts && p.size() > 1; ++e) {
    double mean = 0;
    for (const auto& text : p) mean += text[e] / static_cast<double>(p.size());
    for (std::size_t d = 0; d < p.size(); ++d) {
      if (p[d][e] - mean > most) {
        most = p[d][e] - mean;
        out = fmt::format("{}: {:.1f} % of {}, {:.1f} % in the mean", e, 100 * p[d][e], s.texts[d],
                          100 * mean);
      }
    }
  }
  return out;
}

std::string divergence_cell(const RoutingSource& s, double value) {
  return s.texts.size() > 1 ? bits(value) : "n/a";
}

Table models_table(const std::vector<RoutingSource>& sources) {
  Table t;
  t.name = "routing-statistics";
  t.title = "how evenly real routers choose: means over layers, beside an even router's chance";
  t.columns = {"model",
               "data",
               "E",
               "k",
               "layers",
               "tokens",
               "entropy_load / log2 E",
               "load_cv",
               "load_cv by chance",
               "top-3 share",
               "top-3 largest",
               "top-3 even",
               "dead experts",
               "dead by chance",
               "switch_rate",
               "set_switch",
               "set_switch by chance",
               "gate entropy / log2 E",
               "texts",
               "specialisation [bits]",
               "specialisation by chance"};
  for (const RoutingSource& s : sources) {
    const double e = s.experts, k = s.top_k, tokens = as_double(s.all_tokens());
    double largest = 0;
    std::uint64_t none = 0;
    for (const LayerChoices& l : s.layers) {
      largest = std::max(largest, top3_share(l.load()));
      none += dead(l.load());
    }
    const auto gate = mean_of(s, &LayerChoices::entropy_gate);
    t.rows.push_back(
        {s.model,
         s.data,
         fmt::to_string(s.experts),
         fmt::to_string(s.top_k),
         fmt::to_string(s.layers.size()),
         fmt::to_string(s.all_tokens()),
         share(mean_of(s, [](const auto& l) { return entropy_bits(shares(l.load())); }) /
               std::log2(e)),
         share(mean_of(s, [](const auto& l) { return load_cv(l.load()); })),
         share(load_cv_floor(e, k, tokens)),
         share(mean_of(s, [](const auto& l) { return top3_share(l.load()); })),
         share(largest),
         share(std::min(3.0, e) / e),
         fmt::to_string(none),
         fmt::format("{:.2f}",
                     static_cast<double>(s.layers.size()) * e * std::pow(1 - k / e, tokens)),
         share(mean_of(s, &LayerChoices::switch_rate)),
         share(mean_of(s, &LayerChoices::set_switch)),
         share(s.layers.front().set_switch ? std::optional(1 - k / e) : std::nullopt),
         share(gate ? std::optional(*gate / std::log2(e)) : std::nullopt),
         fmt::format("{}", fmt::join(s.texts, ", ")),
         divergence_cell(s, mean_of(s, [](const auto& l) { return divergence_bits(l.by_text); })),
         divergence_cell(s, divergence_by_chance(e, k, s.tokens))});
  }
  t.notes.emplace_back(
      "load: all texts together; dead experts: of all layers, without a choice; switch_rate: first "
      "choices of neighbouring tokens differ; set_switch: 1 - common experts / k");
  t.notes.emplace_back(
      "by chance: an even router with independent tokens; neighbours choose alike, so true chance "
      "is higher (windowed-imbalance)");
  t.notes.emplace_back(
      "specialisation: Jensen-Shannon divergence of the texts' loads, 0 to log2(texts), mean over "
      "layers; with one text of a kind (gpt_oss_20b) it cannot tell the kind from the text");
  t.notes.emplace_back(
      "n/a: counts have no order of tokens; granite's source does not say how it orders a token's "
      "experts; excerpts have no logits (gate entropy). Sources and licences: "
      "scenarios/routing/PROVENANCE.md");
  return t;
}

Table layers_table(const std::vector<RoutingSource>& sources) {
  Table t;
  t.name = "routing-statistics-layers";
  t.title = "the same, layer by layer";
  t.columns = {"model",
               "data",
               "layer",
               "entropy_load [bits]",
               "load_cv",
               "load_cv by chance",
               "top-3 share",
               "max/mean",
               "dead experts",
               "switch_rate",
               "set_switch",
               "specialisation [bits]",
               "specialisation by chance",
               "expert: of one text"};
  for (const RoutingSource& s : sources) {
    const double e = s.experts, k = s.top_k;
    for (const LayerChoices& l : s.layers) {
      const Loads load = l.load();
      t.rows.push_back(
          {s.model, s.data, fmt::to_string(l.layer),
           fmt::format("{:.3f}", entropy_bits(shares(load))), share(load_cv(load)),
           share(load_cv_floor(e, k, as_double(s.all_tokens()))), share(top3_share(load)),
           fmt::format("{:.2f}", as_double(*std::max_element(load.begin(), load.end())) * e /
                                     as_double(sum_of(load))),
           fmt::to_string(dead(load)), share(l.switch_rate), share(l.set_switch),
           divergence_cell(s, divergence_bits(l.by_text)),
           divergence_cell(s, divergence_by_chance(e, k, s.tokens)), specialist(s, l)});
    }
  }
  t.notes.emplace_back(
      "last column: the expert whose share of one text is furthest above its mean share");
  return t;
}

Table gates_table(const std::vector<GateEntropy>& gates) {
  Table t;
  t.name = "routing-statistics-gates";
  t.title = "published entropy of large models' gates over all experts, divided by log E";
  t.columns = {"model",
               "E",
               "k",
               "layers",
               "tokens",
               "mean",
               "lowest",
               "lowest in layer",
               "highest",
               "highest in layer",
               "experts that entropy is worth, mean"};
  for (std::size_t i = 0; i < gates.size();) {
    std::size_t end = i;
    double sum = 0;
    std::size_t low = i, high = i;
    for (; end < gates.size() && gates[end].model == gates[i].model; ++end) {
      sum += gates[end].normalised;
      low = gates[end].normalised < gates[low].normalised ? end : low;
      high = gates[end].normalised > gates[high].normalised ? end : high;
    }
    const double mean = sum / static_cast<double>(end - i);
    t.rows.push_back({gates[i].model, fmt::to_string(gates[i].experts),
                      fmt::to_string(gates[i].top_k), fmt::to_string(end - i),
                      fmt::to_string(gates[i].tokens), share(mean), share(gates[low].normalised),
                      fmt::to_string(gates[low].layer), share(gates[high].normalised),
                      fmt::to_string(gates[high].layer),
                      fmt::format("{:.1f}", std::pow(gates[i].experts, mean))});
    i = end;
  }
  t.notes.emplace_back(
      "jeffreywilliamportfolio/moe-routing-experiments (MIT), prefill of 6 prompts; measured "
      "there, "
      "not by us; E to the power of the mean is the number of equally likely experts");
  return t;
}

std::vector<std::uint64_t> windows(std::uint64_t tokens) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t w = 1; w < tokens; w *= 4) out.push_back(w);
  out.push_back(tokens);
  return out;
}

}  // namespace

Loads LayerChoices::load() const {
  Loads sum = by_text.front();
  for (std::size_t d = 1; d < by_text.size(); ++d) {
    std::transform(sum.begin(), sum.end(), by_text[d].begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

std::uint64_t RoutingSource::all_tokens() const { return sum_of(tokens); }

RoutingSource source_of(const RoutingTrace& trace, bool ranked, std::string data) {
  const TraceHeader& h = trace.header;
  RoutingSource s{h.model, std::move(data), h.experts(), h.top_k(), {}, {}, {}};
  std::vector<std::size_t> text_of;
  for (const TraceSequence& q : trace.sequences) {
    const auto it = std::find(s.texts.begin(), s.texts.end(), q.domain);
    text_of.push_back(static_cast<std::size_t>(it - s.texts.begin()));
    if (it == s.texts.end()) s.texts.push_back(q.domain);
  }
  s.tokens.assign(s.texts.size(), 0);
  const TraceStats stats = trace_stats(trace);
  for (const LayerStats& l : stats.layers) {
    s.layers.push_back({l.layer, std::vector<Loads>(s.texts.size(), Loads(h.experts(), 0)),
                        ranked ? l.switch_rate : std::nullopt, l.set_switch, l.entropy_gate_mean});
  }
  for (const std::uint32_t row : rows_by_sequence(trace)) {
    const std::size_t d = text_of[trace.tokens.sequence[row]];
    ++s.tokens[d];
    for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
      for (std::uint32_t j = 0; j < h.slots; ++j) {
        const std::uint16_t e = trace.routing.chosen[trace.slot_at(row, l, j)];
        if (e != kNoExpert) ++s.layers[l].by_text[d][e];
      }
    }
  }
  return s;
}

std::vector<RoutingSource> sources_of(const std::vector<ExpertCounts>& counts) {
  std::vector<RoutingSource> out;
  for (const ExpertCounts& c : counts) {
    if (out.empty() || out.back().model != c.model) {
      out.push_back(
          {c.model, "counts", static_cast<std::uint32_t>(c.load.size()), c.top_k, {}, {}, {}});
    }
    RoutingSource& s = out.back();
    if (s.texts.empty() || s.texts.back() != c.text) {
      s.texts.push_back(c.text);
      s.tokens.push_back(c.tokens());
    }
    SWITCHYARD_ASSERT(s.tokens.back() == c.tokens(), "layers of one text see the same tokens");
    const auto it = std::find_if(s.layers.begin(), s.layers.end(),
                                 [&](const LayerChoices& l) { return l.layer == c.layer; });
    LayerChoices& layer =
        it != s.layers.end() ? *it : s.layers.emplace_back(LayerChoices{c.layer, {}, {}, {}, {}});
    layer.by_text.push_back(c.load);
    SWITCHYARD_ASSERT(layer.by_text.size() == s.texts.size(), "every text has every layer");
  }
  return out;
}

double load_cv(std::span<const std::uint64_t> load) {
  const double mean = as_double(sum_of(load)) / static_cast<double>(load.size());
  double squares = 0;
  for (const std::uint64_t x : load) {
    squares += (as_double(x) - mean) * (as_double(x) - mean);
  }
  return mean > 0 ? std::sqrt(squares / static_cast<double>(load.size())) / mean : 0;
}

double load_cv_floor(double experts, double top_k, double tokens) {
  return std::sqrt((experts / top_k - 1) / tokens);
}

double divergence_bits(std::span<const Loads> by_text) {
  std::vector<double> mean(by_text.front().size(), 0);
  double apart = 0;
  const auto n = static_cast<double>(by_text.size());
  for (const Loads& load : by_text) {
    const auto p = shares(load);
    for (std::size_t e = 0; e < p.size(); ++e) mean[e] += p[e] / n;
    apart += entropy_bits(p) / n;
  }
  return std::max(entropy_bits(mean) - apart, 0.0);
}

double divergence_by_chance(double experts, double top_k, std::span<const std::uint64_t> tokens) {
  const auto n = static_cast<double>(tokens.size());
  double sum = 0;
  for (const std::uint64_t t : tokens) sum += 1 / (as_double(t) * top_k);
  return (experts - top_k) / (2 * std::log(2.0)) * (1 / n) * (1 - 1 / n) * sum;
}

std::optional<double> windowed_load_cv(const RoutingTrace& trace,
                                       std::span<const std::uint32_t> order, std::uint64_t window) {
  const TraceHeader& h = trace.header;
  double sum = 0;
  std::uint64_t n = 0;
  for (std::size_t first = 0; window > 0 && first + window <= order.size(); first += window) {
    for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
      Loads load(h.experts(), 0);
      for (const std::uint32_t row : order.subspan(first, window)) {
        for (std::uint32_t j = 0; j < h.slots; ++j) {
          const std::uint16_t e = trace.routing.chosen[trace.slot_at(row, l, j)];
          if (e != kNoExpert) ++load[e];
        }
      }
      sum += load_cv(load);
      ++n;
    }
  }
  return n > 0 ? std::optional(sum / as_double(n)) : std::nullopt;
}

std::vector<std::uint32_t> rows_by_sequence(const RoutingTrace& trace) {
  std::vector<std::uint32_t> rows;
  for (std::uint32_t row = 0; row < trace.rows(); ++row) {
    if (trace.tokens.phase[row] != static_cast<std::uint8_t>(Phase::kWarmUp)) rows.push_back(row);
  }
  const TraceTokens& t = trace.tokens;
  std::stable_sort(rows.begin(), rows.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(t.sequence[a], t.position[a]) < std::pair(t.sequence[b], t.position[b]);
  });
  return rows;
}

std::vector<std::uint32_t> shuffled(std::vector<std::uint32_t> rows, std::uint64_t seed) {
  for (std::size_t i = rows.size(); i > 1; --i) {
    const std::uint64_t word =
        random_u64(seed, random_purpose("shuffle rows"), {0, 0, static_cast<std::uint32_t>(i), 0});
    std::swap(rows[i - 1], rows[word % i]);
  }
  return rows;
}

std::vector<Table> routing_statistics_tables(const std::vector<RoutingSource>& sources,
                                             const std::vector<GateEntropy>& gates) {
  return {models_table(sources), layers_table(sources), gates_table(gates)};
}

std::vector<Table> windowed_imbalance_tables(
    const std::vector<std::pair<std::string, RoutingTrace>>& traces,
    const std::vector<RoutingSource>& counted) {
  Table t;
  t.name = "windowed-imbalance";
  t.title = "load_cv over windows of W tokens, against the counting noise of an even router";
  t.columns = {"model",           "data",    "W",
               "windows",         "load_cv", "noise floor",
               "load_cv / floor", "skew",    "tokens shuffled",
               "shuffled / floor"};
  Table all;
  all.name = "windowed-imbalance-skew";
  all.title = "from how many tokens on an uneven load is skew of the router rather than noise";
  all.columns = {"model", "data", "tokens", "load_cv", "skew", "W where floor = skew"};
  const auto add = [&](const std::string& model, const std::string& data, double e, double k,
                       std::uint64_t w, std::uint64_t n, double cv, std::optional<double> mixed) {
    const double floor = load_cv_floor(e, k, as_double(w));
    const double skew = std::sqrt(std::max(cv * cv - floor * floor, 0.0));
    t.rows.push_back({model, data, fmt::to_string(w), fmt::to_string(n), fmt::format("{:.4f}", cv),
                      fmt::format("{:.4f}", floor), fmt::format("{:.2f}", cv / floor),
                      fmt::format("{:.4f}", skew), mixed ? fmt::format("{:.4f}", *mixed) : "n/a",
                      mixed ? fmt::format("{:.2f}", *mixed / floor) : "n/a"});
    return skew;
  };
  const auto close = [&](const std::string& model, const std::string& data, double e, double k,
                         std::uint64_t tokens, double cv, double skew) {
    all.rows.push_back(
        {model, data, fmt::to_string(tokens), fmt::format("{:.4f}", cv),
         fmt::format("{:.4f}", skew),
         skew > 0 ? fmt::format("{:.0f}", std::ceil((e / k - 1) / (skew * skew))) : "n/a"});
  };
  for (const auto& [data, trace] : traces) {
    const auto rows = rows_by_sequence(trace);
    const auto mixed = shuffled(rows, kShuffleSeed);
    const double e = trace.header.experts(), k = trace.header.top_k();
    double cv = 0, skew = 0;
    for (const std::uint64_t w : windows(rows.size())) {
      cv = windowed_load_cv(trace, rows, w).value();
      skew = add(trace.header.model, data, e, k, w, rows.size() / w, cv,
                 windowed_load_cv(trace, mixed, w));
    }
    close(trace.header.model, data, e, k, rows.size(), cv, skew);
  }
  for (const RoutingSource& s : counted) {
    const double e = s.experts, k = s.top_k;
    for (std::size_t d = 0; d < s.texts.size(); ++d) {
      (void)add(s.model, s.texts[d], e, k, s.tokens[d], 1,
                mean_of(s, [&](const auto& l) { return load_cv(l.by_text[d]); }), std::nullopt);
    }
    const double cv = mean_of(s, [](const auto& l) { return load_cv(l.load()); });
    close(s.model, "all texts", e, k, s.all_tokens(), cv,
          add(s.model, "all texts", e, k, s.all_tokens(), 1, cv, std::nullopt));
  }
  t.notes.emplace_back(
      "mean over layers and whole windows, sequence after sequence; floor sqrt((E/k - 1) / W): an "
      "even router with independent tokens; skew = sqrt(load_cv^2 - floor^2)");
  t.notes.emplace_back(
      "W = 1 is the floor whatever the router does; shuffled: the same tokens in an order drawn "
      "with seed 1. Above shuffled, neighbours choose alike; shuffled above the floor is skew");
  t.notes.emplace_back("counts without an order of tokens give one window per text and one of all");
  all.notes.emplace_back(
      "whole trace or counts as one window; below that W a window's load_cv is mostly noise");
  return {std::move(t), std::move(all)};
}

std::vector<Table> make_routing_statistics(const TableContext& context) {
  ShortRuns runs(context);
  std::vector<RoutingSource> sources = {source_of(runs.shipped(), true, "mixed prompts, ours")};
  for (const std::string& name : excerpt_names()) {
    const RoutingExcerpt x = read_excerpt(context.scenarios, name);
    sources.push_back(source_of(x.trace, x.ranked, "excerpt"));
  }
  for (RoutingSource& s : sources_of(read_counts(context.scenarios))) {
    sources.push_back(std::move(s));
  }
  return routing_statistics_tables(sources, read_gate_entropy(context.scenarios));
}

std::vector<Table> make_windowed_imbalance(const TableContext& context) {
  ShortRuns runs(context);
  std::vector<std::pair<std::string, RoutingTrace>> traces = {
      {"mixed prompts, ours", runs.shipped()}};
  for (const std::string& name : excerpt_names()) {
    traces.emplace_back("excerpt", read_excerpt(context.scenarios, name).trace);
  }
  return windowed_imbalance_tables(traces, sources_of(read_counts(context.scenarios)));
}

}  // namespace switchyard::tables
