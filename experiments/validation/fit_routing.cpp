// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/fit_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard::validation {
namespace {

constexpr std::uint64_t kMostTokens = 2048;
constexpr std::uint64_t kMostDraws = 20'000'000;  // Tokens x layers x experts.
constexpr std::uint64_t kSeed = 1;
constexpr double kMostParameter = 6;

/// Adds the sorted shares of one layer's loads.
void add_shares(std::vector<double> loads, std::vector<double>& shares) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (sum <= 0) return;
  std::sort(loads.rbegin(), loads.rend());
  for (std::size_t e = 0; e < loads.size(); ++e) shares[e] += loads[e] / sum;
}

class Drawer {
 public:
  Drawer(std::uint32_t layers, std::uint32_t experts, std::uint32_t k, std::uint64_t tokens)
      : layers_(layers), experts_(experts), k_(k), tokens_(tokens) {
    const std::size_t n = std::size_t{layers} * tokens * experts;
    gumbel_.resize(n);
    normal_.resize(std::size_t{layers} * experts);
    std::size_t i = 0;
    for (std::uint32_t l = 0; l < layers; ++l) {
      for (std::uint32_t e = 0; e < experts; ++e) {
        normal_[std::size_t{l} * experts + e] =
            static_cast<float>(random_normal(kSeed, random_purpose("fit expert"), {0, l, 0, e}));
      }
      for (std::uint64_t t = 0; t < tokens; ++t) {
        for (std::uint32_t e = 0; e < experts; ++e, ++i) {
          gumbel_[i] = static_cast<float>(random_gumbel(kSeed, random_purpose("fit token"),
                                                        {static_cast<std::uint32_t>(t), l, 0, e}));
        }
      }
    }
  }
  [[nodiscard]] std::vector<double> shares(bool zipf, double parameter) const {
    std::vector<double> out(experts_, 0.0), loads;
    std::vector<std::pair<float, std::uint32_t>> row(experts_);
    for (std::uint32_t l = 0; l < layers_; ++l) {
      loads.assign(experts_, 0.0);
      for (std::uint64_t t = 0; t < tokens_; ++t) {
        const float* g = &gumbel_[(std::size_t{l} * tokens_ + t) * experts_];
        for (std::uint32_t e = 0; e < experts_; ++e) {
          const double z = zipf ? -parameter * std::log(e + 1.0)
                                : parameter * normal_[std::size_t{l} * experts_ + e];
          row[e] = {-(g[e] + static_cast<float>(z)), e};
        }
        std::partial_sort(row.begin(), row.begin() + k_, row.end());
        for (std::uint32_t j = 0; j < k_; ++j) loads[row[j].second] += 1;
      }
      add_shares(loads, out);
    }
    for (double& v : out) v /= layers_;
    return out;
  }

 private:
  std::uint32_t layers_, experts_, k_;
  std::uint64_t tokens_;
  std::vector<float> gumbel_, normal_;
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / 2;
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
  std::vector<std::uint64_t> rows;
  for (std::uint64_t r = 0; r < trace.rows(); ++r) {
    if (trace.tokens.phase[r] != 2) rows.push_back(r);
  }
  if (rows.empty()) {
    throw InputError(where, "every token is a warm-up token", "trace some prompts");
  }
  RoutingFit out;
  const std::uint64_t most = std::max<std::uint64_t>(
      1, std::min(kMostTokens, kMostDraws / (std::uint64_t{layers} * experts)));
  out.tokens = std::min<std::uint64_t>(rows.size(), most);
  std::vector<double> shares(experts, 0.0), loads;
  for (std::uint32_t l = 0; l < layers; ++l) {
    loads.assign(experts, 0.0);
    for (std::uint64_t i = 0; i < out.tokens; ++i) {
      const std::uint64_t r = rows[i * rows.size() / out.tokens];
      for (std::uint32_t j = 0; j < trace.header.slots; ++j) {
        const std::uint16_t e = trace.routing.first[trace.slot_at(r, l, j)];
        if (e != kNoExpert) loads[e] += 1;
      }
    }
    add_shares(loads, shares);
  }
  for (double& v : shares) v /= layers;
  out.top_share = shares[0];

  const Drawer drawer(layers, experts, k, out.tokens);
  const auto add = [&](const char* law, bool zipf, bool uniform) {
    LawFit f;
    f.law = law;
    const auto cost = [&](double p) { return distance(shares, drawer.shares(zipf, p)); };
    if (!uniform) {
      // The grid keeps the search out of side valleys that noise makes.
      constexpr int kSteps = 24;
      double best = cost(0);
      int at = 0;
      for (int i = 1; i <= kSteps; ++i) {
        const double c = cost(kMostParameter * i / kSteps);
        if (c < best) {
          best = c;
          at = i;
        }
      }
      double low = kMostParameter * std::max(at - 1, 0) / kSteps;
      double high = kMostParameter * std::min(at + 1, kSteps) / kSteps;
      const double ratio = (std::sqrt(5.0) - 1) / 2;
      while (high - low > 0.005) {
        const double a = high - ratio * (high - low), b = low + ratio * (high - low);
        (cost(a) <= cost(b) ? high : low) = cost(a) <= cost(b) ? b : a;
      }
      f.parameter = std::round((low + high) / 2 * 100) / 100;
    }
    const std::vector<double> own = drawer.shares(zipf, f.parameter);
    f.distance = distance(shares, own);
    f.top_share = own[0];
    out.laws.push_back(f);
  };
  add("uniform", false, true);
  add("zipf", true, false);
  add("lognormal", false, false);
  return out;
}

Table routing_fit_table(const RoutingFit& fit) {
  Table table;
  table.name = "fit";
  table.title = "Synthetic laws beside the trace's loads";
  table.columns = {"law", "parameter", "distance of sorted loads", "busiest expert, share"};
  table.rows.push_back({"the trace", "n/a", "0", fmt::format("{:.4f}", fit.top_share)});
  for (const LawFit& f : fit.laws) {
    table.rows.push_back({f.law, f.law == "uniform" ? "n/a" : fmt::format("{:.2f}", f.parameter),
                          fmt::format("{:.4f}", f.distance), fmt::format("{:.4f}", f.top_share)});
  }
  table.notes.push_back(
      fmt::format("distance = half the sum of |share - share| over experts sorted by load, mean "
                  "over layers; {} "
                  "tokens; nearest: {}",
                  fit.tokens, fit.best().law));
  return table;
}

std::string workload_text(const RoutingFit& fit, const std::string& trace_name) {
  const LawFit& f = fit.best();
  const std::string parameter = f.law == "uniform" ? ""
                                : f.law == "zipf"  ? fmt::format(", s = {:.2f}", f.parameter)
                                                   : fmt::format(", sigma = {:.2f}", f.parameter);
  return fmt::format(
      "# SPDX-License-Identifier: Apache-2.0\n"
      "# Written by switchyard fit from {}: distance of sorted loads {:.4f}. Name it by "
      "workload.file\n"
      "# and state kind, batch, … beside it.\n"
      "routing = {{ synthetic = \"{}\"{} }}\n",
      trace_name, f.distance, f.law, parameter);
}

}  // namespace switchyard::validation
