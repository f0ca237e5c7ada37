// SPDX-License-Identifier: Apache-2.0
// The lab checkpoints: what sets them apart shows, and the weights that policies name do what their
// training says. Text: the shipped prompts, which no training saw.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "engine/model/accounting.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/session.hpp"
#include "experiments/cli/prompts.hpp"
#include "experiments/tables/long_context.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using tables::TailComparison;
using tables::TailRun;

fs::path source(const std::string& path) { return fs::path(SWITCHYARD_SOURCE_DIR) / path; }
fs::path checkpoint(const std::string& name) { return source("scenarios/checkpoints/" + name); }

/// Every `stride`-th of the shipped prompts.
std::vector<std::vector<std::uint32_t>> prompts(std::size_t stride) {
  const auto tokenizer = model::Tokenizer::load(checkpoint("lab-aux-0"));
  const auto texts = cli::read_prompts(source("scenarios/prompts/mixed.jsonl"));
  std::vector<std::vector<std::uint32_t>> out;
  for (std::size_t i = 0; i < texts.size(); i += stride) {
    out.push_back(tokenizer.encode(texts[i].text));
  }
  return out;
}

struct Outcome {
  double loss = 0;                    ///< nats per token
  double load_cv = 0;                 ///< all tokens as one window, mean over layers
  double top5 = 0;                    ///< of the five busiest experts, mean over layers
  std::vector<std::uint16_t> chosen;  ///< every decision, for comparisons
};

/// Prefills all prompts together under a policy.
Outcome outcome(const Engine& engine, const SessionOptions& base, std::size_t stride = 2) {
  SessionOptions options = base;
  options.all_logits = true;
  Session session(engine, options);
  const auto texts = prompts(stride);
  std::vector<SequenceTokens> work;
  for (const auto& tokens : texts) {
    work.push_back({session.add_sequence(), tokens});
  }
  const StepResult& r = session.step(work, Phase::kPrefill);
  Outcome out;
  std::size_t predicted = 0;
  for (std::size_t t = 0; t + 1 < r.tokens(); ++t) {
    if (r.sequence[t + 1] != r.sequence[t]) {
      continue;
    }
    const auto logits = r.logits_of(t);
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float z : logits) {
      sum += std::exp(static_cast<double>(z) - top);
    }
    out.loss += top + std::log(sum) - static_cast<double>(logits[r.token[t + 1]]);
    ++predicted;
  }
  out.loss /= static_cast<double>(predicted);
  const auto layers = static_cast<double>(r.layers.size());
  for (const LayerRouting& layer : r.layers) {
    std::vector<double> load(layer.decision.load.begin(), layer.decision.load.end());
    std::sort(load.rbegin(), load.rend());
    const double all = std::accumulate(load.begin(), load.end(), 0.0);
    const double mean = all / static_cast<double>(load.size());
    double squares = 0;
    for (const double n : load) {
      squares += (n - mean) * (n - mean);
    }
    out.load_cv += std::sqrt(squares / static_cast<double>(load.size())) / mean / layers;
    out.top5 += std::accumulate(load.begin(), load.begin() + 5, 0.0) / all / layers;
    out.chosen.insert(out.chosen.end(), layer.decision.chosen.begin(), layer.decision.chosen.end());
  }
  return out;
}

const std::vector<std::string> kAll{"lab-aux-0",      "lab-aux-0.01", "lab-aux-0.05",
                                    "lab-alibi",      "lab-absolute", "lab-dense-active",
                                    "lab-dense-total"};

TEST(Lab, EveryCheckpointIsSmallAndReadsText) {
  for (const std::string& name : kAll) {
    std::uintmax_t bytes = 0;
    for (const auto& file : fs::directory_iterator(checkpoint(name))) {
      bytes += file.file_size();
    }
    EXPECT_LE(bytes, 1'500'000U) << name;
    const Outcome o = outcome(Engine::load(checkpoint(name), {}), {}, 8);
    // ln 4096 = 8.32 is guessing; the frequencies of tokens alone give more than 6.
    EXPECT_LT(o.loss, 5.9) << name;
  }
}

TEST(Lab, BalanceLossDecidesWhetherTheRouterCollapses) {
  const Outcome none = outcome(Engine::load(checkpoint("lab-aux-0"), {}), {});
  const Outcome small = outcome(Engine::load(checkpoint("lab-aux-0.01"), {}), {});
  const Outcome large = outcome(Engine::load(checkpoint("lab-aux-0.05"), {}), {});
  EXPECT_GT(none.load_cv, 1.2);
  EXPECT_GT(none.top5, 0.75);
  EXPECT_LT(small.load_cv, 0.6);
  EXPECT_LT(large.load_cv, small.load_cv);
}

TEST(Lab, DenseTwinsHaveTheParametersTheirNamesSay) {
  const auto config = [](const std::string& name) {
    return model::read_model_config(checkpoint(name));
  };
  const auto moe = config("lab-aux-0.01");
  const std::uint64_t router = 4 * 16 * 64;
  EXPECT_EQ(model::count_parameters(config("lab-dense-total")).total() + router,
            model::count_parameters(moe).total());
  EXPECT_EQ(model::count_active(config("lab-dense-active")).total() + router,
            model::count_active(moe).total());
}

/// The outcome under a shipped policy file, its weights included.
Outcome under(const Engine& engine, const std::string& policy) {
  PolicyFiles files;
  SessionOptions options;
  options.policy =
      scenario::read_policy_file(source("scenarios/policies/" + policy).string(), &files);
  const auto layers = engine.config().moe_layers();
  const PolicyWeights weights = model::load_policy_weights(options.policy, files, engine.gate(),
                                                           layers, engine.config().hidden_size);
  options.weights = &weights;
  return outcome(engine, options);
}

TEST(Lab, FineTuningTheRouterEvensTheLoadAtLittleLoss) {
  const Engine engine = Engine::load(checkpoint("lab-aux-0"), {});
  const Outcome before = outcome(engine, {});
  const Outcome after = under(engine, "router_finetuned.toml");
  EXPECT_LT(after.load_cv, 0.9 * before.load_cv);
  EXPECT_LE(after.loss, 1.01 * before.loss);
  EXPECT_NE(after.chosen, before.chosen);
}

TEST(Lab, TheSemanticGateImitatesTheRouterItWasTrainedOn) {
  const Engine engine = Engine::load(checkpoint("sy-16x2"), {});
  const Outcome router = outcome(engine, {});
  const Outcome gate = under(engine, "semantic_gate.toml");
  std::size_t same = 0;
  for (std::size_t i = 0; i < router.chosen.size(); i += 2) {
    same += router.chosen[i] == gate.chosen[i] ? 1U : 0U;
  }
  const double share = static_cast<double>(same) / static_cast<double>(router.chosen.size() / 2);
  EXPECT_GT(share, 0.95);
  EXPECT_LT(share, 1.0);
  EXPECT_NEAR(gate.loss, router.loss, 0.01 * router.loss);
}

/// Rows on the axes of a plane: (x, 0) and (0, y).
TailRun plane(const std::vector<std::pair<float, float>>& points,
              const std::vector<std::uint16_t>& chosen) {
  TailRun run;
  run.rows = points.size();
  for (const auto& [x, y] : points) {
    run.states.insert(run.states.end(), {x, y});
  }
  run.chosen = {chosen};
  return run;
}

TEST(LongContext, MeasuresByHand) {
  // Fresh: variance 2 along x and 1/2 along y; the tail: everything at (1, 0) or (1.1, 0).
  const TailRun fresh = plane({{2, 0}, {-2, 0}, {0, 1}, {0, -1}}, {0, 1, 1, 0, 2, 3, 3, 2});
  const TailRun tail = plane({{1, 0}, {1, 0}, {1.1F, 0}, {1, 0}}, {0, 1, 0, 2, 0, 1, 3, 1});
  const TailComparison c = tables::compare(tail, fresh, 4, 2);
  EXPECT_DOUBLE_EQ(c.fresh.dimensions, 2.5 * 2.5 / (4 + 0.25));
  EXPECT_NEAR(c.tail.dimensions, 1, 1e-12);
  EXPECT_NEAR(c.fresh.span, 4 / std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(c.tail.span, 0.1 / std::sqrt(2.0), 1e-6);
  EXPECT_EQ(c.tail.within, 1.0);   // 0.1 / sqrt(2) is near
  EXPECT_EQ(c.fresh.within, 0.5);  // the two at 0
  EXPECT_NEAR(c.moved, 1.025 / std::sqrt(2.5), 1e-6);
  EXPECT_EQ(c.tail.top1_share, 0.75);  // expert 0 of the top-1 0, 0, 0, 3
  EXPECT_EQ(c.fresh.top1_share, 0.25);
  EXPECT_EQ(c.fresh.load_cv, 0.0);
  EXPECT_DOUBLE_EQ(c.tail.load_cv, std::sqrt((1 + 1 + 1 + 1) / 4.0) / 2);  // loads 3, 3, 1, 1
  EXPECT_EQ(c.kept, 0.5);                                                  // tokens 0 and 3
}

/// The last tokens of one text at the end of a long context and in fresh short ones.
TailComparison at_tail(const std::string& name, std::size_t length, std::size_t tail) {
  const Engine engine = Engine::load(checkpoint(name), {});
  std::vector<std::uint32_t> text;
  for (const auto& tokens : prompts(1)) {
    text.insert(text.end(), tokens.begin(), tokens.end());
    text.push_back(0);
  }
  text.resize(length);
  const auto all = std::span<const std::uint32_t>(text);
  return tables::compare(tables::run_tail(engine, all, length, tail),
                         tables::run_tail(engine, all.last(tail), 256, tail), engine.gate().experts,
                         engine.gate().top_k);
}

TEST(LongContext, AlibiKeepsTheRoutingOfTheSameTokensBetterThanRotationDoes) {
  const TailComparison rope = at_tail("lab-aux-0.01", 1536, 256);
  const TailComparison alibi = at_tail("lab-alibi", 1536, 256);
  EXPECT_GT(alibi.kept, rope.kept);
  EXPECT_LT(alibi.moved, rope.moved);
  EXPECT_LT(alibi.loss - alibi.fresh_loss, rope.loss - rope.fresh_loss);
}

}  // namespace
}  // namespace switchyard
