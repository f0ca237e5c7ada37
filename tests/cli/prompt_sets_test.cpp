// SPDX-License-Identifier: Apache-2.0
// The shipped prompt sets hold what scenarios/prompts/PROVENANCE.md says.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "engine/model/tokenizer.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::cli {
namespace {

const std::filesystem::path kScenarios = std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios";

struct Set {
  const char* name;
  std::size_t prompts, domains;
  double mean;  // tokens
  std::size_t least, most;
};

TEST(PromptSets, HaveTheCountsAndLengthsOfTheirTable) {
  const model::Tokenizer tokenizer = model::Tokenizer::load(kScenarios / "checkpoints/sy-16x2");
  const Set sets[] = {{"shop_complaint", 32, 1, 42.00, 37, 47},
                      {"shop_product", 32, 1, 18.00, 13, 23},
                      {"shop_promotion", 32, 1, 25.00, 20, 30},
                      {"shop_after_sales", 32, 1, 36.00, 31, 41},
                      {"dots", 1, 1, 128, 128, 128},
                      {"paraphrase", 100, 2, 14.35, 8, 19},
                      {"vague_clear", 80, 2, 13.64, 4, 26},
                      {"lengths", 64, 4, 76.08, 4, 230},
                      {"code_prefix", 64, 2, 121.73, 36, 225},
                      {"style", 32, 4, 17.75, 14, 21},
                      {"factual", 30, 2, 16.40, 12, 22},
                      {"warm_up", 100, 4, 31.96, 29, 34},
                      {"long_32k", 1, 1, 32768, 32768, 32768},
                      {"zh_poetry", 14, 1, 146.71, 66, 226}};
  for (const Set& set : sets) {
    SCOPED_TRACE(set.name);
    const auto prompts = read_prompts(kScenarios / "prompts" / (std::string(set.name) + ".jsonl"));
    EXPECT_EQ(prompts.size(), set.prompts);
    std::set<std::string> names;
    std::map<std::string, std::size_t> domains;
    double sum = 0;
    for (const PromptText& p : prompts) {
      names.insert(p.name);
      ++domains[p.domain];
      const std::size_t n = tokenizer.encode(p.text).size();
      EXPECT_GE(n, set.least) << p.name;
      EXPECT_LE(n, set.most) << p.name;
      sum += static_cast<double>(n);
    }
    EXPECT_EQ(names.size(), set.prompts);  // no id twice
    EXPECT_EQ(domains.size(), set.domains);
    for (const auto& [domain, count] : domains) {
      EXPECT_EQ(count, set.prompts / set.domains) << domain;
    }
    EXPECT_NEAR(sum / static_cast<double>(prompts.size()), set.mean, 0.005);
  }
}

TEST(PromptSets, DotsAreOneTokenAndBucketsKeepTheirBounds) {
  const model::Tokenizer tokenizer = model::Tokenizer::load(kScenarios / "checkpoints/sy-16x2");
  const auto dots = read_prompts(kScenarios / "prompts/dots.jsonl");
  const auto ids = tokenizer.encode(dots.front().text);
  EXPECT_EQ(std::set<std::uint32_t>(ids.begin(), ids.end()).size(), 1U);
  const std::map<std::string, std::pair<std::size_t, std::size_t>> bounds{
      {"4-15", {4, 15}}, {"16-64", {16, 64}}, {"65-128", {65, 128}}, {"over-128", {129, 1000}}};
  for (const PromptText& p : read_prompts(kScenarios / "prompts/lengths.jsonl")) {
    const std::size_t n = tokenizer.encode(p.text).size();
    EXPECT_GE(n, bounds.at(p.domain).first) << p.name;
    EXPECT_LE(n, bounds.at(p.domain).second) << p.name;
  }
}

}  // namespace
}  // namespace switchyard::cli
