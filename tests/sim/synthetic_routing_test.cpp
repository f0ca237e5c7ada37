// SPDX-License-Identifier: Apache-2.0
// Synthetic laws against their definitions: probabilities of ordered choices, the Dirichlet's
// moments, correlations measured back, and the same choices whatever is asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "sim/loop/synthetic_routing.hpp"

namespace {

namespace scenario = switchyard::scenario;
using scenario::SyntheticLaw;
using switchyard::sim::SyntheticRouting;

scenario::RoutingSpec law_of(SyntheticLaw law, double parameter = 0) {
  scenario::RoutingSpec r;
  r.law = law;
  r.zipf_s = r.sigma = r.alpha = parameter;
  return r;
}

using Ids = std::vector<std::uint16_t>;
Ids draw(SyntheticRouting& r, std::uint32_t sequence, std::uint32_t layer, std::uint32_t position,
         std::uint32_t k) {
  Ids ids(k);
  r.draw(sequence, layer, position, k, ids);
  return ids;
}

double overlap(const Ids& a, const Ids& b) {
  double same = 0;
  for (const std::uint16_t e : a) same += std::count(b.begin(), b.end(), e) > 0 ? 1 : 0;
  return same / static_cast<double>(a.size());
}

double within(double p, double n) { return 5 * std::sqrt(p * (1 - p) / n); }

}  // namespace

TEST(SyntheticRoutingLaw, OrderedPairsHaveTheProbabilitiesOfDrawingWithoutReplacement) {
  // P(a, then b) = p_a p_b / (1 − p_a), each cell at five standard deviations. Zipf(3) over 4
  // experts is so skewed that the rest is ranked by clocks often.
  for (const double s : {0.5, 3.0}) {
    SyntheticRouting r(law_of(SyntheticLaw::kZipf, s), 1, 4, 3);
    const auto p = r.p(0, 0);
    EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), 1, 1e-12);
    constexpr std::uint32_t kTokens = 200'000;
    double seen[4][4] = {};
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      const Ids ids = draw(r, t, 0, 5, 2);
      seen[ids[0]][ids[1]] += 1.0 / kTokens;
    }
    for (std::uint32_t a = 0; a < 4; ++a) {
      for (std::uint32_t b = 0; b < 4; ++b) {
        const double want = a == b ? 0 : p[a] * p[b] / (1 - p[a]);
        EXPECT_NEAR(seen[a][b], want, within(want, kTokens)) << s << ": " << a << ", " << b;
      }
    }
  }
}

TEST(SyntheticRoutingLaw, TheLastExpertsOfASkewedLawAreDrawnAsOftenAsTheyShould) {
  // zipf(6): the busiest expert has 98 %; the second and third places of a token are nearly always
  // ranked by clocks. P(third is e | first two) = p_e / what is left.
  SyntheticRouting r(law_of(SyntheticLaw::kZipf, 6), 1, 8, 5);
  const auto p = r.p(0, 0);
  std::vector<std::uint32_t> order(8);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return p[a] > p[b]; });
  double usual = 0, third = 0;
  for (std::uint32_t t = 0; t < 50'000; ++t) {
    const Ids ids = draw(r, t, 0, 0, 3);
    if (ids[0] != order[0] || ids[1] != order[1]) continue;
    usual += 1;
    third += ids[2] == order[2] ? 1 : 0;
  }
  const double want = p[order[2]] / (1 - p[order[0]] - p[order[1]]);
  EXPECT_GT(usual, 40'000);
  EXPECT_NEAR(third / usual, want, within(want, usual));
}

TEST(SyntheticRoutingLaw, AUniformLawHitsRanksAndDistinctExpertsAsCombinatoricsSay) {
  // simulation.md §5: P(hit) = 1 − C(E − E/R, k) / C(E, k); distinct experts E (1 − (1 − k/E)^T).
  struct Case {
    std::uint32_t experts, k, ranks, batch;
    double hit, distinct;
  };
  for (const Case& x : {Case{8, 2, 2, 16, 0.785714, 7.9198}, Case{128, 8, 4, 32, 0.907253, 111.771},
                        Case{256, 8, 8, 128, 0.661832, 251.601}}) {
    SyntheticRouting r(law_of(SyntheticLaw::kUniform), 1, x.experts, 1);
    constexpr std::uint32_t kTokens = 25'600;
    double hits = 0, distinct = 0, squares = 0;
    std::set<std::uint16_t> seen;
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      const Ids ids = draw(r, t, 0, 9, x.k);
      // One rank: independent from token to token, so the binomial bound holds.
      hits += std::any_of(ids.begin(), ids.end(),
                          [&](std::uint16_t e) { return e < x.experts / x.ranks; })
                  ? 1
                  : 0;
      seen.insert(ids.begin(), ids.end());
      if (t % x.batch + 1 < x.batch) continue;
      distinct += static_cast<double>(seen.size());
      squares += static_cast<double>(seen.size() * seen.size());
      seen.clear();
    }
    EXPECT_NEAR(hits / kTokens, x.hit, within(x.hit, kTokens)) << x.experts;
    const double n = kTokens / x.batch, mean = distinct / n;
    EXPECT_NEAR(mean, x.distinct, 5 * std::sqrt((squares / n - mean * mean) / n)) << x.experts;
  }
}

TEST(SyntheticRoutingLaw, DirichletHasItsMeanAndVariance) {
  // E p = 1/E, Var p = (1/E)(1 − 1/E) / (E alpha + 1), over 200 layers of 64 experts.
  for (const double alpha : {0.05, 0.5, 5.0}) {
    constexpr std::uint32_t kLayers = 200, kExperts = 64;
    const SyntheticRouting r(law_of(SyntheticLaw::kDirichlet, alpha), kLayers, kExperts, 11);
    std::vector<double> variance;
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      const auto p = r.p(l, 0);
      EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), 1, 1e-12);
      double v = 0;
      for (const double x : p) v += (x - 1.0 / kExperts) * (x - 1.0 / kExperts) / kExperts;
      variance.push_back(v);
    }
    const double want = (1.0 / kExperts) * (1 - 1.0 / kExperts) / (kExperts * alpha + 1);
    const double mean = std::accumulate(variance.begin(), variance.end(), 0.0) / kLayers;
    double spread = 0;
    for (const double v : variance) spread += (v - mean) * (v - mean) / kLayers;
    EXPECT_NEAR(mean, want, 5 * std::sqrt(spread / kLayers)) << alpha;
  }
}

TEST(SyntheticRoutingLaw, ChoicesAreTheSameWhateverIsAskedFor) {
  for (const double s : {0.8, 5.0}) {
    SyntheticRouting r(law_of(SyntheticLaw::kZipf, s), 2, 96, 7);
    std::vector<float> logits(96);
    for (std::uint32_t t = 0; t < 500; ++t) {
      Ids all(10), few(8), scored(10);
      r.draw(t, 1, 3, 10, all);
      r.draw(t, 1, 3, 10, few);
      r.draw(t, 1, 3, 10, scored, logits);
      EXPECT_EQ(all, scored);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
      // The logits rank the experts in this order.
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(std::isfinite(logits[all[i]]));
        EXPECT_GE(logits[all[i == 0 ? 0 : i - 1]], logits[all[i]]);
      }
      for (std::uint16_t e = 0; e < 96; ++e) {
        const bool chosen = std::count(all.begin(), all.end(), e) > 0;
        EXPECT_LE(logits[e], chosen ? logits[all[0]] : logits[all[9]]);
      }
    }
  }
}

TEST(SyntheticRoutingLaw, AStepDrawnAtOnceHasTheChoicesOfItsTokens) {
  // Even and skewed laws (the skewed ones end by clocks), below and above eight experts a token,
  // more and fewer ids than drawn ones, correlated or not, with domains; 200 is no multiple of a
  // block.
  constexpr std::uint32_t kTokens = 200;
  std::vector<std::uint32_t> sequence, position;
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    sequence.push_back(t / 3);
    position.push_back(t * 7 % 50);
  }
  for (const std::uint32_t experts : {8U, 40U, 256U}) {
    for (const double s : {0.0, 1.0, 4.0}) {
      for (const double c : {0.0, 0.5}) {
        scenario::RoutingSpec law = law_of(SyntheticLaw::kZipf, s);
        law.token_correlation = law.layer_correlation = c;
        law.domains = c > 0 ? 3 : 1;
        SyntheticRouting r(law, 2, experts, 7);
        std::vector<std::uint16_t> domains;
        for (const std::uint32_t q : sequence) {
          if (c > 0) domains.push_back(static_cast<std::uint16_t>(r.domain_of(q)));
        }
        for (const auto& [first, width] :
             {std::pair{1U, 1U}, std::pair{2U, 2U}, std::pair{6U, 6U}, std::pair{8U, 8U},
              std::pair{6U, 8U}, std::pair{9U, 9U}}) {
          if (width > experts) continue;
          Ids all(std::size_t{kTokens} * width);
          r.draw_all(sequence, 1, position, domains, first, width, all);
          for (std::uint32_t t = 0; t < kTokens; ++t) {
            Ids one(width);
            r.draw(sequence[t], 1, position[t], first, one);
            ASSERT_TRUE(std::equal(one.begin(), one.end(), all.begin() + t * width))
                << experts << " experts, zipf " << s << ", token " << t << ", " << first << " of "
                << width;
          }
        }
      }
    }
  }
}

TEST(SyntheticRoutingLaw, LogitsAreLnPPlusGumbel) {
  // E(ln p + G) = ln p + 0.5772 for every expert; the variance of G is π²/6.
  SyntheticRouting r(law_of(SyntheticLaw::kLognormal, 1), 1, 16, 2);
  const auto p = r.p(0, 0);
  constexpr std::uint32_t kTokens = 20'000;
  std::vector<double> sum(16, 0);
  Ids ids(16);
  std::vector<float> logits(16);
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    r.draw(t, 0, 0, 2, ids, logits);
    EXPECT_EQ(std::set<std::uint16_t>(ids.begin(), ids.end()).size(), 16U);
    for (std::size_t e = 0; e < 16; ++e) sum[e] += logits[e];
  }
  const double bound = 5 * std::sqrt(1.644934 / kTokens);
  for (std::size_t e = 0; e < 16; ++e) {
    EXPECT_NEAR(sum[e] / kTokens, std::log(p[e]) + 0.577216, bound) << e;
  }
}

TEST(SyntheticRoutingLaw, TokenCorrelationIsMeasuredBack) {
  // overlap(next) = c + (1 − c) · overlap(independent); n of it 256 · 200 tokens.
  for (const double c : {0.0, 0.4, 0.9}) {
    scenario::RoutingSpec law = law_of(SyntheticLaw::kLognormal, 1);
    law.token_correlation = c;
    SyntheticRouting r(law, 2, 64, 4);
    double next = 0, far = 0, loads[64] = {};
    constexpr std::uint32_t kSequences = 256, kPositions = 200;
    for (std::uint32_t q = 0; q < kSequences; ++q) {
      Ids last = draw(r, q, 1, 99, 4);
      for (std::uint32_t t = 100; t < 100 + kPositions; ++t) {
        const Ids now = draw(r, q, 1, t, 4);
        next += overlap(last, now);
        far += overlap(draw(r, q + kSequences, 1, t, 4), now);
        loads[now[0]] += 1;
        last = now;
      }
    }
    const double n = kSequences * kPositions;
    EXPECT_NEAR((next / n - far / n) / (1 - far / n), c, 0.02) << c;
    // The law of a single token is not touched: first choices follow p. A run of equal tokens
    // counts once, of (1 + c) / (1 − c) on average.
    for (std::uint32_t e = 0; e < 64; ++e) {
      const double p = r.p(1, 0)[e];
      EXPECT_NEAR(loads[e] / n, p, within(p, n * (1 - c) / (1 + c))) << c << " " << e;
    }
  }
}

TEST(SyntheticRoutingLaw, LayerCorrelationIsMeasuredBack) {
  // Uniform: two tokens that agree in layer 0 agree in layer 1 when both follow (c²), or else by
  // chance (1 / E).
  for (const double c : {0.0, 0.5, 0.95}) {
    scenario::RoutingSpec law = law_of(SyntheticLaw::kUniform);
    law.layer_correlation = c;
    constexpr std::uint32_t kExperts = 16, kTokens = 20'000;
    SyntheticRouting r(law, 2, kExperts, 9);
    double both[kExperts][kExperts] = {}, first[kExperts] = {}, second[kExperts] = {};
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      const std::uint16_t a = draw(r, t, 0, 0, 1)[0], b = draw(r, t, 1, 0, 1)[0];
      both[a][b] += 1;
      first[a] += 1;
      second[b] += 1;
    }
    double agree = 0, pairs = 0;
    for (std::uint32_t a = 0; a < kExperts; ++a) {
      pairs += first[a] * (first[a] - 1);
      for (std::uint32_t b = 0; b < kExperts; ++b) agree += both[a][b] * (both[a][b] - 1);
      EXPECT_NEAR(second[a] / kTokens, 1.0 / kExperts, within(1.0 / kExperts, kTokens));
    }
    const double measured = (agree / pairs - 1.0 / kExperts) / (1 - 1.0 / kExperts);
    EXPECT_NEAR(measured, c * c, 0.02) << c;
  }
}

TEST(SyntheticRoutingLaw, LayerCorrelationHoldsForWhatComesAfterTheDrawnExperts) {
  // Where the next candidates of a token stand in the popularity of their layers: the same place in
  // both with c, or else by chance. Uniform over 16 experts, 2 drawn, the third is the next one.
  constexpr std::uint32_t kExperts = 16, kTokens = 20'000;
  for (const double c : {0.0, 0.5, 0.95}) {
    scenario::RoutingSpec law = law_of(SyntheticLaw::kUniform);
    law.layer_correlation = c;
    SyntheticRouting r(law, 2, kExperts, 9);
    double both[kExperts][kExperts] = {}, first[kExperts] = {}, second[kExperts] = {};
    double number = 0;
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      Ids a(3), b(3);
      r.draw(t, 0, 0, 2, a);
      r.draw(t, 1, 0, 2, b);
      both[a[2]][b[2]] += 1;
      first[a[2]] += 1;
      second[b[2]] += 1;
      number += a[2] == b[2] ? 1.0 / kTokens : 0;
    }
    // Tokens that agree in layer 0 agree in layer 1 when both follow, as for the first choice.
    double agree = 0, pairs = 0;
    for (std::uint32_t a = 0; a < kExperts; ++a) {
      pairs += first[a] * (first[a] - 1);
      for (std::uint32_t b = 0; b < kExperts; ++b) agree += both[a][b] * (both[a][b] - 1);
      EXPECT_NEAR(second[a] / kTokens, 1.0 / kExperts, within(1.0 / kExperts, kTokens));
    }
    const double measured = (agree / pairs - 1.0 / kExperts) / (1 - 1.0 / kExperts);
    EXPECT_NEAR(measured, c * c, 0.02) << c;
    // Not because an expert's number follows itself: the layers shuffle them, so at most a few do.
    EXPECT_LT(number, 0.5) << c;
  }
}

TEST(SyntheticRoutingLaw, DomainsHaveLawsOfTheirOwn) {
  scenario::RoutingSpec law = law_of(SyntheticLaw::kDirichlet, 0.1);
  law.domains = 4;
  SyntheticRouting r(law, 1, 64, 1);
  std::vector<double> members(4, 0);
  double same = 0, other = 0, same_n = 0, other_n = 0;
  for (std::uint32_t q = 0; q < 4000; ++q) {
    members[r.domain_of(q)] += 1;
    const double x = overlap(draw(r, q, 0, 0, 4), draw(r, q + 1, 0, 0, 4));
    const bool equal = r.domain_of(q) == r.domain_of(q + 1);
    (equal ? same : other) += x;
    (equal ? same_n : other_n) += 1;
  }
  for (const double m : members) EXPECT_NEAR(m / 4000, 0.25, within(0.25, 4000));
  EXPECT_GT(same / same_n, 0.2);
  EXPECT_LT(other / other_n, 0.15);
  EXPECT_NE(std::vector<double>(r.p(0, 0).begin(), r.p(0, 0).end()),
            std::vector<double>(r.p(0, 1).begin(), r.p(0, 1).end()));
  EXPECT_EQ(r.description(), "dirichlet(0.1), 4 domains");
}

TEST(SyntheticRoutingLaw, EntropyIsThatOfTheLaw) {
  EXPECT_NEAR(SyntheticRouting(law_of(SyntheticLaw::kUniform), 1, 256, 1).entropy(0, 0), 8, 1e-12);
  const SyntheticRouting r(law_of(SyntheticLaw::kZipf, 1), 1, 2, 1);  // 2/3 and 1/3
  EXPECT_NEAR(r.entropy(0, 0), std::log2(3) - 2.0 / 3, 1e-12);
}
