// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/fit_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "engine/base/error.hpp"
#include "sim/loop/synthetic_routing.hpp"

namespace switchyard::validation {
namespace {

constexpr std::uint64_t kMostTokens = 2048, kMostRows = 8192;
constexpr std::uint64_t kMostDraws = 1'000'000;  // Tokens x layers.
constexpr std::uint32_t kMostDomains = 16, kShortest = 8;
constexpr std::uint64_t kSeed = 1;
constexpr double kMostParameter = 6, kMostCorrelation = 0.99;

/// One token of the trace.
struct Place {
  std::uint32_t sequence = 0, position = 0;
  std::uint64_t row = 0;
};
/// Best experts of some tokens: [places][layers][k], kNoExpert where there are fewer.
struct Choices {
  std::uint32_t layers = 0, k = 0;
  std::vector<std::uint16_t> ids;
  [[nodiscard]] std::span<const std::uint16_t> of(std::size_t place, std::uint32_t layer) const {
    return std::span(ids).subspan((place * layers + layer) * k, k);
  }
};

/// Adds the sorted shares of one layer's loads.
void add_shares(std::vector<double> loads, std::vector<double>& shares) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (sum <= 0) return;
  std::sort(loads.rbegin(), loads.rend());
  for (std::size_t e = 0; e < loads.size(); ++e) shares[e] += loads[e] / sum;
}

std::vector<double> shares_of(const Choices& c, std::uint32_t experts) {
  std::vector<double> shares(experts, 0.0), loads;
  const std::size_t places = c.ids.size() / (std::size_t{c.layers} * c.k);
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    loads.assign(experts, 0.0);
    for (std::size_t i = 0; i < places; ++i) {
      for (const std::uint16_t e : c.of(i, l)) {
        if (e != kNoExpert) loads[e] += 1;
      }
    }
    add_shares(loads, shares);
  }
  for (double& v : shares) v /= c.layers;
  return shares;
}

Choices traced(const RoutingTrace& trace, const std::vector<Place>& places) {
  Choices c;
  c.layers = trace.header.layer_count();
  c.k = trace.header.slots;
  for (const Place& p : places) {
    for (std::uint32_t l = 0; l < c.layers; ++l) {
      for (std::uint32_t j = 0; j < c.k; ++j) {
        c.ids.push_back(trace.routing.first[trace.slot_at(p.row, l, j)]);
      }
    }
  }
  return c;
}

Choices drawn(const scenario::RoutingSpec& law, std::uint32_t experts, std::uint32_t layers,
              std::uint32_t k, const std::vector<Place>& places) {
  sim::SyntheticRouting routing(law, layers, experts, kSeed);
  Choices c;
  c.layers = layers;
  c.k = k;
  c.ids.resize(places.size() * layers * k);
  std::size_t at = 0;
  for (const Place& p : places) {
    for (std::uint32_t l = 0; l < layers; ++l, at += k) {
      routing.draw(p.sequence, l, p.position, k, std::span(c.ids).subspan(at, k));
    }
  }
  return c;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / 2;
}

struct Mean {
  double sum = 0;
  std::uint64_t n = 0;
  void add(double v) {
    sum += v;
    ++n;
  }
  [[nodiscard]] double value() const {
    return n == 0 ? RoutingFit::kUnknown : sum / static_cast<double>(n);
  }
};

/// Mean over the layers.
double overlap(const Choices& c, std::size_t a, std::size_t b) {
  std::uint32_t same = 0;
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    const auto x = c.of(a, l), y = c.of(b, l);
    for (const std::uint16_t e : x) {
      same += e != kNoExpert && std::find(y.begin(), y.end(), e) != y.end() ? 1 : 0;
    }
  }
  return static_cast<double>(same) / (static_cast<double>(c.layers) * c.k);
}

struct Overlaps {
  double neighbours = RoutingFit::kUnknown, distant = neighbours, across = neighbours;
  [[nodiscard]] double token_overlap() const {
    return distant < 1 ? (neighbours - distant) / (1 - distant) : RoutingFit::kUnknown;
  }
};

/// `places` are sorted by sequence and position.
Overlaps measure_tokens(const std::vector<Place>& places, const Choices& c) {
  Mean next, far, across;
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (i == 0 || places[i].sequence != places[i - 1].sequence) begins.push_back(i);
  }
  begins.push_back(places.size());
  for (std::size_t q = 0; q + 1 < begins.size(); ++q) {
    const std::size_t begin = begins[q], n = begins[q + 1] - begin;
    for (std::size_t i = begin + 1; n >= kShortest && i < begin + n; ++i) {
      if (places[i].position == places[i - 1].position + 1) next.add(overlap(c, i - 1, i));
    }
    for (std::size_t i = begin; n >= kShortest && i + n / 2 < begin + n; ++i) {
      far.add(overlap(c, i, i + n / 2));
    }
    if (q + 2 < begins.size()) {
      const std::size_t other = begins[q + 1], m = std::min(n, begins[q + 2] - other);
      for (std::size_t i = 0; i < m; ++i) across.add(overlap(c, begin + i, other + i));
    }
  }
  return {next.value(), far.value(), across.value()};
}

/// Of pairs of tokens of different sequences: how many have equal values.
double equal_pairs(const std::vector<Place>& places, const std::vector<std::uint64_t>& values) {
  std::map<std::uint64_t, std::uint64_t> all;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> own;
  for (std::size_t i = 0; i < places.size(); ++i) {
    ++all[values[i]];
    ++own[{places[i].sequence, values[i]}];
  }
  double sum = 0;
  for (const auto& [value, n] : all) sum += static_cast<double>(n) * static_cast<double>(n);
  for (const auto& [value, n] : own) sum -= static_cast<double>(n) * static_cast<double>(n);
  return sum;
}

double layer_dependence(const std::vector<Place>& places, const Choices& c) {
  double both = 0, before = 0, after = 0;
  std::vector<std::uint64_t> here(places.size()), next(places.size()), pair(places.size());
  const double pairs = equal_pairs(places, std::vector<std::uint64_t>(places.size(), 0));
  for (std::uint32_t l = 0; l + 1 < c.layers; ++l) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      here[i] = c.of(i, l)[0];
      next[i] = c.of(i, l + 1)[0];
      pair[i] = here[i] << 16U | next[i];
    }
    both += equal_pairs(places, pair);
    before += equal_pairs(places, here);
    after += equal_pairs(places, next);
  }
  if (!(before > 0) || !(pairs > 0)) return RoutingFit::kUnknown;
  const double a = both / before, b = after / (pairs * (c.layers - 1));
  return b < 1 ? (a - b) / (1 - b) : RoutingFit::kUnknown;
}

/// A law as a function of one number in [0, 1]; 0 is uniform, or nearly.
struct Family {
  const char* name;
  scenario::SyntheticLaw law;
  double (*parameter)(double);
};
double linear(double x) { return std::round(kMostParameter * x * 100) / 100; }
/// Three digits.
double falling(double x) {
  const double value = std::pow(10.0, 2 - 4 * x);
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 2);
  return std::round(value / unit) * unit;
}
constexpr std::array kFamilies{
    Family{"zipf", scenario::SyntheticLaw::kZipf, linear},
    Family{"lognormal", scenario::SyntheticLaw::kLognormal, linear},
    Family{"dirichlet", scenario::SyntheticLaw::kDirichlet, falling},
};

scenario::RoutingSpec spec_of(scenario::SyntheticLaw law, double parameter, const RoutingFit& f) {
  scenario::RoutingSpec r;
  r.law = law;
  r.zipf_s = r.sigma = r.alpha = parameter;
  r.domains = law == scenario::SyntheticLaw::kUniform ? 1 : f.domains;
  r.token_correlation = f.token_correlation;
  return r;
}

scenario::SyntheticLaw law_named(const std::string& name) {
  for (const Family& f : kFamilies) {
    if (name == f.name) return f.law;
  }
  return scenario::SyntheticLaw::kUniform;
}

}  // namespace

const LawFit& RoutingFit::best() const {
  return *std::min_element(laws.begin(), laws.end(), [](const LawFit& a, const LawFit& b) {
    return a.distance < b.distance;
  });
}

RoutingFit fit_routing(const RoutingTrace& trace, const std::string& where) {
  const std::uint32_t experts = trace.header.experts(), layers = trace.header.layer_count();
  const std::uint32_t k = trace.header.top_k();
  std::vector<Place> rows;
  for (std::uint64_t r = 0; r < trace.rows(); ++r) {
    if (trace.tokens.phase[r] != 2) {
      rows.push_back({trace.tokens.sequence[r], trace.tokens.position[r], r});
    }
  }
  if (rows.empty()) {
    throw InputError(where, "every token is a warm-up token", "trace some prompts");
  }
  RoutingFit out;
  out.tokens = std::min<std::uint64_t>(
      rows.size(), std::max<std::uint64_t>(1, std::min(kMostTokens, kMostDraws / layers)));
  std::vector<Place> sample;
  for (std::uint64_t i = 0; i < out.tokens; ++i) {
    sample.push_back(rows[i * rows.size() / out.tokens]);
  }
  const std::vector<double> shares = shares_of(traced(trace, sample), experts);
  out.top_share = shares[0];

  // The beginnings of all sequences.
  std::stable_sort(rows.begin(), rows.end(), [](const Place& a, const Place& b) {
    return std::pair(a.sequence, a.position) < std::pair(b.sequence, b.position);
  });
  std::uint32_t sequences = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sequences += i == 0 || rows[i].sequence != rows[i - 1].sequence ? 1 : 0;
  }
  const std::uint64_t most = std::max<std::uint64_t>(2 * kShortest, kMostRows / sequences);
  std::vector<Place> runs;
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < rows.size() && runs.size() < kMostRows; ++i) {
    length = i == 0 || rows[i].sequence != rows[i - 1].sequence ? 1 : length + 1;
    if (length <= most) runs.push_back(rows[i]);
  }
  const Choices seen = traced(trace, runs);
  const Overlaps overlaps = measure_tokens(runs, seen);
  out.neighbours = overlaps.neighbours;
  out.distant = overlaps.distant;
  out.across = overlaps.across;
  out.token_overlap = overlaps.token_overlap();
  const double chance = static_cast<double>(k) / experts;
  if (out.token_overlap > 0) {
    out.token_correlation = std::round(std::min(kMostCorrelation, out.token_overlap) * 1000) / 1000;
  }
  // Below a hundredth there is no common law to tell apart.
  if (out.distant - chance > 0.01 && std::isfinite(out.across)) {
    const double limit = std::min(kMostDomains, sequences);
    const double same = (out.across - chance) / (out.distant - chance);
    out.domains = static_cast<std::uint32_t>(
        std::clamp(same * limit <= 1 ? limit : std::round(1 / same), 1.0, limit));
  }

  const auto fit_of = [&](const char* name, scenario::SyntheticLaw law, double parameter) {
    const std::vector<double> own =
        shares_of(drawn(spec_of(law, parameter, out), experts, layers, k, sample), experts);
    return LawFit{name, parameter, distance(shares, own), own[0]};
  };
  out.laws.push_back(fit_of("uniform", scenario::SyntheticLaw::kUniform, 0));
  for (const Family& family : kFamilies) {
    const auto cost = [&](double x) {
      return fit_of(family.name, family.law, family.parameter(x)).distance;
    };
    // The grid keeps the search out of side valleys that noise makes.
    constexpr int kSteps = 24;
    double best = cost(0);
    int at = 0;
    for (int i = 1; i <= kSteps; ++i) {
      const double c = cost(static_cast<double>(i) / kSteps);
      if (c < best) {
        best = c;
        at = i;
      }
    }
    double low = static_cast<double>(std::max(at - 1, 0)) / kSteps;
    double high = static_cast<double>(std::min(at + 1, kSteps)) / kSteps;
    const double ratio = (std::sqrt(5.0) - 1) / 2;
    double a = high - ratio * (high - low), b = low + ratio * (high - low);
    double cost_a = cost(a), cost_b = cost(b);
    while (high - low > 0.001) {
      if (cost_a <= cost_b) {
        high = b;
        b = a;
        cost_b = cost_a;
        a = high - ratio * (high - low);
        cost_a = cost(a);
      } else {
        low = a;
        a = b;
        cost_a = cost_b;
        b = low + ratio * (high - low);
        cost_b = cost(b);
      }
    }
    out.laws.push_back(fit_of(family.name, family.law, family.parameter((low + high) / 2)));
  }

  out.layer_dependence = layer_dependence(runs, seen);
  scenario::RoutingSpec law = spec_of(law_named(out.best().law), out.best().parameter, out);
  const auto choices = [&] { return drawn(law, experts, layers, k, runs); };
  // What is shown grows with the correlation.
  const auto match = [&](double& correlation, double wanted, const auto& shown) {
    correlation = 0;
    if (!(shown() < wanted)) return;
    double low = 0, high = kMostCorrelation;
    for (int i = 0; i < 8; ++i) {
      correlation = (low + high) / 2;
      (shown() < wanted ? low : high) = correlation;
    }
    correlation = std::round((low + high) / 2 * 1000) / 1000;
  };
  const auto dependence = [&] { return layer_dependence(runs, choices()); };
  const auto overlap_drawn = [&] { return measure_tokens(runs, choices()).token_overlap(); };
  if (std::isfinite(out.layer_dependence)) {
    match(law.layer_correlation, out.layer_dependence, dependence);
    if (law.layer_correlation > 0 && law.token_correlation > 0) {
      match(law.token_correlation, out.token_overlap, overlap_drawn);
      match(law.layer_correlation, out.layer_dependence, dependence);
    }
    out.drawn_dependence = dependence();
  }
  out.token_correlation = law.token_correlation;
  out.layer_correlation = law.layer_correlation;
  if (std::isfinite(out.token_overlap)) out.drawn_token_overlap = overlap_drawn();
  return out;
}

Table routing_fit_table(const RoutingFit& fit) {
  Table table;
  table.name = "fit";
  table.title = "Synthetic laws beside the trace's loads";
  table.columns = {"law", "parameter", "distance of sorted loads", "busiest expert, share"};
  table.rows.push_back({"the trace", "n/a", "0", fmt::format("{:.4f}", fit.top_share)});
  for (const LawFit& f : fit.laws) {
    table.rows.push_back({f.law, f.law == "uniform" ? "n/a" : fmt::format("{:.4g}", f.parameter),
                          fmt::format("{:.4f}", f.distance), fmt::format("{:.4f}", f.top_share)});
  }
  table.notes.push_back(
      fmt::format("distance = half the sum of |share - share| over experts sorted by load, mean "
                  "over layers; {} "
                  "tokens; nearest: {}",
                  fit.tokens, fit.best().law));
  const auto shown = [](double v) {
    return std::isfinite(v) ? fmt::format("{:.3f}", v) : std::string("n/a");
  };
  table.notes.push_back(fmt::format(
      "overlap = common experts of two tokens / k: neighbours {}, half a sequence apart {}, of two "
      "sequences {}; domains: {}",
      shown(fit.neighbours), shown(fit.distant), shown(fit.across),
      fit.best().law == "uniform" ? 1 : fit.domains));
  table.notes.push_back(fmt::format(
      "token overlap = (neighbours - apart) / (1 - apart): trace {}, {} with token_correlation "
      "{:.3f}: {}",
      shown(fit.token_overlap), fit.best().law, fit.token_correlation,
      shown(fit.drawn_token_overlap)));
  table.notes.push_back(fmt::format(
      "layer dependence = how much likelier tokens with the same best expert agree in the next "
      "layer, 1 is always: trace {}, {} with layer_correlation {:.3f}: {}",
      shown(fit.layer_dependence), fit.best().law, fit.layer_correlation,
      shown(fit.drawn_dependence)));
  return table;
}

std::string workload_text(const RoutingFit& fit, const std::string& trace_name) {
  const LawFit& f = fit.best();
  std::string more = f.law == "uniform" ? ""
                                        : fmt::format(", {} = {:.4g}",
                                                      f.law == "zipf"        ? "s"
                                                      : f.law == "lognormal" ? "sigma"
                                                                             : "alpha",
                                                      f.parameter);
  if (f.law != "uniform" && fit.domains > 1) more += fmt::format(", domains = {}", fit.domains);
  if (fit.token_correlation > 0) {
    more += fmt::format(", token_correlation = {:.3f}", fit.token_correlation);
  }
  if (fit.layer_correlation > 0) {
    more += fmt::format(", layer_correlation = {:.3f}", fit.layer_correlation);
  }
  return fmt::format(
      "# SPDX-License-Identifier: Apache-2.0\n"
      "# Written by switchyard fit from {}: distance of sorted loads {:.4f}. Name it by "
      "workload.file\n"
      "# and state kind, batch, … beside it.\n"
      "routing = {{ synthetic = \"{}\"{} }}\n",
      trace_name, f.distance, f.law, more);
}

}  // namespace switchyard::validation
