// SPDX-License-Identifier: Apache-2.0
// generate --perplexity: the tables, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/generate.hpp"
#include "tests/cli/process.hpp"

namespace switchyard::cli {
namespace {

using test::source_path;

GenerateOptions options_of(const std::string& texts) {
  GenerateOptions o;
  o.model = source_path("scenarios/checkpoints/sy-16x2");
  o.perplexity = texts;
  o.threads = 1;
  return o;
}

TEST(PerplexityVerb, PrintsTheSurpriseOfTransformersPerTextAndToken) {
  const auto cases =
      nlohmann::json::parse(read_file(source_path("tests/fixtures/shipped/perplexity.json")));
  std::string lines;
  double sum = 0;
  double count = 0;
  for (const auto& c : cases) {
    lines += nlohmann::json{{"text", c.at("text")}, {"domain", "d"}}.dump() + "\n";
    for (const auto& v : c.at("nll")) {
      sum += v.get<double>();
      count += 1;
    }
  }
  write_file("texts.jsonl", lines);
  GenerateOptions o = options_of("texts.jsonl");
  o.per_token = true;
  const auto tables = perplexity_tables(o);
  ASSERT_EQ(tables.size(), 2U);
  ASSERT_EQ(tables[0].rows.size(), cases.size() + 1);
  const auto& all = tables[0].rows.back();
  EXPECT_EQ(all[0], "all");
  EXPECT_EQ(std::stod(all[3]), count);
  EXPECT_NEAR(std::stod(all[4]), sum / count, 1e-4);
  EXPECT_NEAR(std::stod(all[5]), std::exp(sum / count), 1e-4 * std::exp(sum / count));
  std::size_t row = 0;
  for (const auto& c : cases) {
    for (const auto& v : c.at("nll")) {
      EXPECT_NEAR(std::stod(tables[1].rows.at(row++)[4]), v.get<double>(), 1e-4);
    }
  }
  EXPECT_EQ(row, tables[1].rows.size());
  // Bits per byte of the first text: all of it but its first token, " free operating …".
  const std::string& first = cases[0].at("text").get_ref<const std::string&>();
  double nll = 0;
  for (const auto& v : cases[0].at("nll")) {
    nll += v.get<double>();
  }
  const std::size_t left_out = first.find(tables[1].rows[0][3]);  // where the second token begins
  EXPECT_NEAR(std::stod(tables[0].rows[0][6]),
              nll / std::log(2.0) / static_cast<double>(first.size() - left_out), 1e-3);
}

// Policies with files of weights: the semantic gate and the second tier of this checkpoint change
// the score, and what looks at a machine is refused by its key.
TEST(PerplexityVerb, RunsPoliciesThatNameFiles) {
  write_file("three.txt", "The first text of three.\nint main() { return 0; }\nA third text.\n");
  GenerateOptions o = options_of("three.txt");
  const std::string plain = perplexity_tables(o)[0].rows.back()[4];
  for (const char* name : {"semantic_gate", "two_tier_int4"}) {
    o.policy = source_path(std::string("scenarios/policies/") + name + ".toml");
    const auto tables = perplexity_tables(o);
    EXPECT_NE(tables[0].rows.back()[4], plain) << name;
    EXPECT_NEAR(std::stod(tables[0].rows.back()[4]), std::stod(plain), 0.5) << name;
  }
  const std::pair<const char*, const char*> refused[] = {
      {"load_aware_total", "policy.load_aware.u = total"},
      {"decode_rebalance", "policy.decode_rebalance.level = 0.85"},
      {"static_table", "table.*"}};
  for (const auto& [name, part] : refused) {
    o.policy = source_path(std::string("scenarios/policies/") + name + ".toml");
    try {
      (void)perplexity_tables(o);
      ADD_FAILURE() << name;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("--perplexity"), std::string::npos) << e.what();
    }
  }
}

// claims.md "router accuracy": the best of the 120 pairs, layer by layer.
TEST(PerplexityVerb, ComparesTheRouterWithTheLossOracle) {
  write_file("four.txt", "The first text of three and more words.\n");
  GenerateOptions o = options_of("four.txt");
  o.oracle = 6;
  const auto tables = perplexity_tables(o);
  ASSERT_EQ(tables.size(), 2U);
  const Table& t = tables[1];
  ASSERT_EQ(t.rows.size(), 4U);  // MoE layers
  for (const auto& row : t.rows) {
    EXPECT_EQ(row[1], "6");
    EXPECT_EQ(row[2], t.rows[0][2]);  // the router's loss is that of the model
    EXPECT_LE(std::stod(row[3]), std::stod(row[2]));
    EXPECT_LT(std::stod(row[3]), std::stod(row[4]));
    EXPECT_GE(std::stod(row[6]), std::stod(row[5]));
    EXPECT_LT(std::stod(row[7]), 60);  // better than chance would be
  }
  o.policy = source_path("scenarios/policies/semantic_gate.toml");
  EXPECT_THROW((void)perplexity_tables(o), InputError);
}

TEST(PerplexityVerb, RefusesOptionsThatWouldDoNothing) {
  write_file("two.txt", "one text\nanother text\n");
  const std::string model = source_path("scenarios/checkpoints/sy-16x2").string();
  const std::string soft = source_path("scenarios/policies/soft_all.toml").string();
  const std::vector<std::vector<std::string>> bad{
      {"--perplexity", "two.txt", "--prompt", "x"},
      {"--perplexity", "two.txt", "--temperature", "0"},
      {"--prompt", "x", "--per-token"},
      {"--prompt", "x", "--json"},
      {"--prompt", "x", "--batch", "2"},
      {"--prompt", "x", "--prompts", "two.txt"},
      {"--perplexity", "two.txt", "--prompts", "two.txt"},
      {"--perplexity", "missing.txt"},
      {"--perplexity", "two.txt", "--batch", "0"},
      {"--perplexity", "two.txt", "--tp", "2"},
      {"--perplexity", "two.txt", "--policy", soft},
      {"--prompt", "some words", "--kv-memory", "1 kB"},
      {}};
  for (const auto& extra : bad) {
    std::vector<std::string> arguments{"generate", "--model", model};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    const auto r = test::run_switchyard(arguments);
    EXPECT_EQ(r.exit_code, 2) << r.err;
    EXPECT_TRUE(r.out.empty()) << r.out;
  }
  const auto good =
      test::run_switchyard({"generate", "--model", model, "--perplexity", "two.txt", "--json"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(nlohmann::json::parse(good.out).size(), 1U);
}

// Blocks of text in the order of the file, or a table; a text is that of --prompt alone.
TEST(GenerateVerb, PrintsManyTextsInOrder) {
  write_file("many.jsonl",
             "{\"text\": \"The cat\", \"id\": \"cat\", \"max_new\": 9}\n"
             "{\"text\": \"int\", \"max_new\": 2}\n");
  const std::string model = source_path("scenarios/checkpoints/sy-16x2").string();
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"generate", "--model", model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto r = test::run_switchyard(arguments);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  };
  const std::string cat = run({"--prompt", "The cat", "--max-new", "9"});
  const std::string c = run({"--prompt", "int", "--max-new", "2"});
  EXPECT_EQ(run({"--prompts", "many.jsonl"}), "--- cat\n" + cat + "--- 2\n" + c);
  EXPECT_EQ(run({"--prompts", "many.jsonl", "--batch", "1"}), "--- cat\n" + cat + "--- 2\n" + c);
  const auto table = nlohmann::json::parse(run({"--prompts", "many.jsonl", "--json"}));
  EXPECT_EQ(table.dump().find("\"cat\"") != std::string::npos, true) << table;
}

}  // namespace
}  // namespace switchyard::cli
