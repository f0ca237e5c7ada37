// SPDX-License-Identifier: Apache-2.0
// Tables of real routing: excerpts, statistics, windows. Values by hand and in closed form.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/trace/trace_stats.hpp"
#include "experiments/tables/routing_statistics.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;

fs::path scenarios() { return fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios"; }

/// E = 4, k = 2, layers 3 and 4; text a has three tokens, text b two, of which one is a prompt.
constexpr const char* kTiny =
    "# model tiny\n# experts 4\n# top_k 2\n# layers 3 2\n# order probability\n"
    "# sequence a 3 0\n0123\n0132\n1023\n# sequence b 1 0\n2301\n2310\n";

std::string error_of(std::string text) {
  try {
    (void)parse_excerpt(text, "x.txt");
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

std::string with(std::string from, const std::string& to) {
  std::string text = kTiny;
  return text.replace(text.find(from), from.size(), to);
}

TEST(Excerpt, ReadsTokensLayersAndSequences) {
  const RoutingExcerpt x = parse_excerpt(kTiny, "x.txt");
  EXPECT_TRUE(x.ranked);
  EXPECT_EQ(x.trace.header.layers, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(x.trace.rows(), 5U);
  EXPECT_EQ(x.trace.step_begin, (std::vector<std::uint64_t>{0, 3, 4, 5}));
  EXPECT_EQ(x.trace.tokens.phase, (std::vector<std::uint8_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(x.trace.routing.chosen[x.trace.slot_at(2, 0, 0)], 1);
  EXPECT_EQ(x.trace.routing.chosen[x.trace.slot_at(4, 1, 0)], 1);
}

TEST(Excerpt, RefusesWhatDoesNotFit) {
  EXPECT_NE(error_of(with("0132", "013")).find("x.txt:8"), std::string::npos);
  EXPECT_NE(error_of(with("0132", "0144")).find("x.txt:8"), std::string::npos);  // twice
  EXPECT_NE(error_of(with("0132", "0154")).find("no expert below 4"), std::string::npos);
  EXPECT_NE(error_of(with("# experts 4\n", "")).find("come before"), std::string::npos);
  EXPECT_NE(error_of(with("# top_k 2", "# top_q 2")).find("x.txt:3"), std::string::npos);
  EXPECT_NE(error_of("# model tiny\n").find("no token"), std::string::npos);
  EXPECT_NE(error_of("0123\n").find("before the first"), std::string::npos);
}

TEST(Excerpt, ShippedOnesHaveTheReferenceSwitchRates) {
  const auto rate = [](const char* name) {
    return *trace_stats(read_excerpt(scenarios(), name).trace).switch_rate;
  };
  // claims.md, section 1: real gpt-oss-20b 0.767, DeepSeek-V2-Lite 0.826.
  EXPECT_NEAR(rate("gpt_oss_20b"), 0.767, 0.0015);
  EXPECT_NEAR(rate("deepseek_v2_lite"), 0.826, 0.0005);
  // derived_reference_values.csv: repeat_next_token 0.459793 (206 + 1 pairs) and 0.412240 (40).
  EXPECT_NEAR(1 - *trace_stats(read_excerpt(scenarios(), "gpt_oss_20b").trace).set_switch,
              (207 * 0.459793 + 40 * 0.412240) / 247, 1e-6);
}

TEST(Statistics, SourceCountsByTextAndLayer) {
  const RoutingSource s = source_of(parse_excerpt(kTiny, "x.txt").trace, true, "by hand");
  EXPECT_EQ(s.texts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.tokens, (std::vector<std::uint64_t>{3, 2}));
  ASSERT_EQ(s.layers.size(), 2U);
  EXPECT_EQ(s.layers[0].by_text[0], (Loads{3, 3, 0, 0}));
  EXPECT_EQ(s.layers[0].by_text[1], (Loads{0, 0, 2, 2}));
  EXPECT_EQ(s.layers[0].load(), (Loads{3, 3, 2, 2}));
  // Firsts of layer 3: 0 0 1 | 2 2, so one switch in three pairs; sets never change.
  EXPECT_DOUBLE_EQ(*s.layers[0].switch_rate, 1.0 / 3);
  EXPECT_DOUBLE_EQ(*s.layers[0].set_switch, 0.0);
  // The texts share no expert: log2 2 = 1 bit.
  EXPECT_DOUBLE_EQ(divergence_bits(s.layers[0].by_text), 1.0);
}

TEST(Statistics, DivergenceOfEqualTextsIsZeroAndByHand) {
  EXPECT_DOUBLE_EQ(divergence_bits(std::vector<Loads>{{2, 6}, {1, 3}}), 0.0);
  // (3/4, 1/4) and (1/4, 3/4): 1 - H(1/4) = 1 - 0.811278.
  EXPECT_NEAR(divergence_bits(std::vector<Loads>{{3, 1}, {1, 3}}), 0.188722, 1e-6);
  EXPECT_DOUBLE_EQ(load_cv(Loads{5, 5, 5}), 0.0);
  EXPECT_DOUBLE_EQ(load_cv(Loads{4, 0}), 1.0);
  EXPECT_DOUBLE_EQ(load_cv(Loads{0, 0}), 0.0);
}

/// Even router by hand: each token takes k of E experts by a Fisher-Yates shuffle.
RoutingTrace even(std::uint32_t experts, std::uint32_t k, std::uint32_t tokens) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "# model even\n# experts " + std::to_string(experts) + "\n# top_k " +
                     std::to_string(k) + "\n# layers 0 1\n# order probability\n# sequence a " +
                     std::to_string(tokens) + " 0\n";
  std::vector<std::uint32_t> ids(experts);
  std::iota(ids.begin(), ids.end(), 0U);
  std::uint64_t state = 12345;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::uint32_t j = 0; j < k; ++j) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      std::swap(ids[j], ids[j + (state >> 33) % (experts - j)]);
      text += kDigits[ids[j]];
    }
    text += '\n';
  }
  return parse_excerpt(text, "even").trace;
}

TEST(Statistics, ChanceIsWhatAnEvenRouterShows) {
  const RoutingTrace trace = even(16, 2, 40000);
  const auto rows = rows_by_sequence(trace);
  // claims.md: E = 16, k = 2: 23.4 % at W = 128, 8.37 % at 1000.
  EXPECT_NEAR(load_cv_floor(16, 2, 128), 0.234, 5e-4);
  EXPECT_NEAR(load_cv_floor(16, 2, 1000), 0.0837, 5e-5);
  // The mean of load_cv lies 1 / (4 (E - 1)) below the root of its mean square.
  const double low = 1 - 1.0 / (4 * 15);
  EXPECT_NEAR(*windowed_load_cv(trace, rows, 128), 0.234 * low, 0.003);
  EXPECT_NEAR(*windowed_load_cv(trace, rows, 1000), 0.0837 * low, 0.004);
  // One token: k experts of load 1, E - k of 0.
  EXPECT_NEAR(*windowed_load_cv(trace, rows, 1), std::sqrt(7.0), 1e-11);
  EXPECT_DOUBLE_EQ(load_cv_floor(16, 2, 1), std::sqrt(7.0));
  EXPECT_FALSE(windowed_load_cv(trace, rows, 40001));
  EXPECT_DOUBLE_EQ(*windowed_load_cv(trace, rows, 128), *trace_stats(trace, 128).load_cv);

  // Divergence between halves of it, over windows of 250 tokens: the mean is the chance.
  double sum = 0;
  std::size_t n = 0;
  for (std::size_t first = 0; first + 500 <= rows.size(); first += 500, ++n) {
    std::vector<Loads> two(2, Loads(16, 0));
    for (std::size_t i = first; i < first + 500; ++i) {
      for (std::uint32_t j = 0; j < 2; ++j) {
        ++two[i < first + 250 ? 0 : 1][trace.routing.chosen[trace.slot_at(rows[i], 0, j)]];
      }
    }
    sum += divergence_bits(two);
  }
  const double chance = divergence_by_chance(16, 2, std::vector<std::uint64_t>{250, 250});
  EXPECT_NEAR(chance, 14 / (2 * std::log(2.0)) * 0.25 * 2 / 500, 1e-12);
  EXPECT_NEAR(sum / static_cast<double>(n), chance, 0.1 * chance);
}

TEST(Statistics, ShuffledIsAPermutationAndTakesCorrelationAway) {
  // Blocks of 50 tokens that all choose alike: experts 0, 1 then 2, 3, and so on.
  std::string text =
      "# model b\n# experts 8\n# top_k 2\n# layers 0 1\n# order probability\n"
      "# sequence a 400 0\n";
  for (int t = 0; t < 400; ++t) {
    const char e = static_cast<char>('0' + t / 50 % 4 * 2);
    text += std::string{e, static_cast<char>(e + 1), '\n'};
  }
  const RoutingTrace trace = parse_excerpt(text, "b").trace;
  const auto rows = rows_by_sequence(trace);
  auto mixed = shuffled(rows, 1);
  // In order a window of 50 has 2 of 8 experts; of 400 all are even.
  EXPECT_DOUBLE_EQ(*windowed_load_cv(trace, rows, 50), std::sqrt(3.0));
  EXPECT_DOUBLE_EQ(*windowed_load_cv(trace, rows, 400), 0.0);
  // Drawn without replacement: floor x sqrt((400 - 50) / 399).
  EXPECT_NEAR(*windowed_load_cv(trace, mixed, 50), load_cv_floor(8, 2, 50), 0.06);
  EXPECT_NE(mixed, rows);
  std::sort(mixed.begin(), mixed.end());
  EXPECT_EQ(mixed, rows);
}

TEST(Statistics, CountsAreReadWhole) {
  const auto sources = sources_of(read_counts(scenarios()));
  ASSERT_EQ(sources.size(), 3U);
  // PROVENANCE of the data: 208,896 tokens a text; DeepSeek 8,327 and 8,479.
  EXPECT_EQ(sources[0].tokens, (std::vector<std::uint64_t>{8327, 8479}));
  EXPECT_EQ(sources[0].layers.size(), 26U);
  for (const std::size_t i : {1U, 2U}) {
    EXPECT_EQ(sources[i].tokens, std::vector<std::uint64_t>(5, 208896)) << sources[i].model;
    EXPECT_EQ(sources[i].layers.size(), 3U);
  }
  // 26 layers x 6 choices x 8,327 tokens: derived_reference_values.csv.
  std::uint64_t law = 0;
  for (const LayerChoices& l : sources[0].layers) {
    law += std::accumulate(l.by_text[0].begin(), l.by_text[0].end(), std::uint64_t{0});
  }
  EXPECT_EQ(law, 1299012U);
  const auto gates = read_gate_entropy(scenarios());
  EXPECT_EQ(gates.front().model, "deepseek_r1");
}

TEST(Statistics, TablesHaveARowPerModelLayerAndWindow) {
  const RoutingTrace tiny = parse_excerpt(kTiny, "x.txt").trace;
  const auto stats =
      routing_statistics_tables({source_of(tiny, true, "by hand")}, {{"g", 4, 2, 7, 10, 0.5}});
  ASSERT_EQ(stats.size(), 3U);
  EXPECT_EQ(stats[0].rows.size(), 1U);
  EXPECT_EQ(stats[1].rows.size(), 2U);
  EXPECT_EQ(stats[2].rows[0].back(), "2.0");  // 4 to the power of 1/2
  const auto windows = windowed_imbalance_tables({{"by hand", tiny}}, {});
  ASSERT_EQ(windows[0].rows.size(), 3U);  // 1, 4 and all 5 tokens
  EXPECT_EQ(windows[0].rows[0][4], "1.0000");
  for (const auto& t : {stats[0], stats[1], stats[2], windows[0], windows[1]}) {
    for (const auto& row : t.rows) EXPECT_EQ(row.size(), t.columns.size()) << t.name;
  }
}

}  // namespace
}  // namespace switchyard::tables
