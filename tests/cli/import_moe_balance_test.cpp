// SPDX-License-Identifier: Apache-2.0
// `import moe-balance`: traces of johanna-rock/moe-balance as routing traces. The lines are written
// here in the form of its sim/trace_format.md and sim/convert_npz_to_trace.py at feb96fe.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/model_config.hpp"
#include "engine/trace/experts_only.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/import/moe_balance.hpp"
#include "tests/cli/process.hpp"

namespace fs = std::filesystem;

namespace switchyard {
namespace {

using importers::MoeBalanceTrace;
using importers::read_moe_balance;
using nlohmann::json;
using test::fresh_folder;
using test::ProcessResult;
using test::run_switchyard;
using test::source_path;

/// Mixtral's family: 2 layers of 4 experts, 2 of them for a token.
std::string config() {
  return json{{"model_type", "mixtral"},
              {"architectures", {"MixtralForCausalLM"}},
              {"hidden_size", 64},
              {"intermediate_size", 128},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"num_hidden_layers", 2},
              {"num_local_experts", 4},
              {"num_experts_per_tok", 2},
              {"vocab_size", 512},
              {"max_position_embeddings", 4096},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 1e6},
              {"hidden_act", "silu"},
              {"tie_word_embeddings", false}}
      .dump();
}

model::ModelConfig small() { return model::parse_model_config(config(), "config.json", "small"); }

std::string line(int layer, const std::string& batch, const std::string& experts,
                 const std::string& more = "") {
  return fmt::format("{{\"layer\": {}, \"batch_id\": {}, {}\"topk_experts\": {}}}\n", layer, batch,
                     more, experts);
}

MoeBalanceTrace read(const std::string& text, const model::ModelConfig& model = small()) {
  const fs::path f = fresh_folder("moe_balance_text");
  write_file(f / "t.jsonl", text);
  return read_moe_balance(f / "t.jsonl", model);
}

std::string refused(const std::string& text, const model::ModelConfig& model = small()) {
  try {
    (void)read(text, model);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(MoeBalance, ABatchIsASequenceWhoseTokensRunInOneStep) {
  // Layer by layer, as generate_trace.py writes; with a mark, carriage returns and empty lines.
  const MoeBalanceTrace r = read(
      "\xEF\xBB\xBF" + line(0, "7", "[[0, 1], [1, 0], [2, 3]]", "\"origin_rows\": [0, 5, 0], ") +
      "\r\n\n" + line(0, "\"b\"", "[[3, 2]]") + line(1, "\"b\"", "[[1, 3]]") +
      line(1, "7", "[[2, 3], [3, 2], [1, 3]]"));
  const RoutingTrace& t = r.trace;
  ASSERT_EQ(t.rows(), 4U);
  EXPECT_EQ(t.steps(), 2U);
  EXPECT_EQ(t.step_begin, (std::vector<std::uint64_t>{0, 3, 4}));
  ASSERT_EQ(t.sequences.size(), 2U);
  EXPECT_EQ(t.sequences[0].name, "7");
  EXPECT_EQ(t.sequences[0].prompt_length, 3U);
  EXPECT_EQ(t.sequences[1].name, "b");
  EXPECT_EQ(t.tokens.position, (std::vector<std::uint32_t>{0, 1, 2, 0}));
  EXPECT_EQ(t.tokens.phase, (std::vector<std::uint8_t>(4, 0)));
  // [tokens][layers][k]
  EXPECT_EQ(t.routing.chosen,
            (std::vector<std::uint16_t>{0, 1, 2, 3, 1, 0, 3, 2, 2, 3, 1, 3, 3, 2, 1, 3}));
  EXPECT_TRUE(is_experts_only(t.header));
  EXPECT_EQ(t.header.layers, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_TRUE(r.origins);
  EXPECT_FALSE(r.weights);
  EXPECT_EQ(r.passed_over, 0U);
  EXPECT_EQ(t.nan_rows, 8U);
}

TEST(MoeBalance, LayersAreTheModelsOrItsMoeLayersFromZero) {
  // DeepSeek-V3: 61 layers, the first three without experts; k = 8 of 256.
  const model::ModelConfig v3 =
      model::read_model_config(source_path("scenarios/models/deepseek_v3.json"));
  const auto text = [](int first, int count, int dense) {
    std::string out;
    for (int l = first; l < first + count; ++l) {
      std::string ids;
      for (int j = 0; j < 8; ++j) {
        ids += fmt::format("{}{}", j > 0 ? ", " : "", l < dense ? 0 : (l - first + j) % 256);
      }
      out += line(l, "0", "[[" + ids + "]]");
    }
    return out;
  };
  // All layers: vLLM's rows of zeros for those without experts; the first kept one is layer 3.
  const MoeBalanceTrace all = read(text(0, 61, 3), v3);
  EXPECT_EQ(all.passed_over, 3U);
  EXPECT_EQ(all.trace.header.layer_count(), 58U);
  EXPECT_EQ(all.trace.header.layers.front(), 3U);
  EXPECT_EQ(all.trace.routing.chosen[0], 3U);
  // --layers 3-60 of the converter, and 58 layers from 0.
  EXPECT_EQ(read(text(3, 58, 0), v3).trace.routing.chosen[0], 0U);
  EXPECT_EQ(read(text(0, 58, 0), v3).trace.routing.chosen[8], 1U);
  EXPECT_EQ(read(text(2, 59, 3), v3).passed_over, 1U);
  EXPECT_TRUE(
      has(refused(text(3, 57, 0), v3),
          "t.jsonl: 57 layers from 3 to 59; the model has 61 layers, 58 with experts from 3 "
          "to 60, and all of them are needed"));
  EXPECT_TRUE(has(refused(text(4, 58, 0), v3), "58 layers from 4 to 61"));
}

TEST(MoeBalance, ALastTokenOfZerosNeverRan) {
  const std::string two = line(0, "0", "[[0, 1], [0, 0]]");
  const MoeBalanceTrace r = read(two + line(1, "0", "[[2, 1], [0, 0]]"));
  EXPECT_EQ(r.trace.rows(), 1U);
  EXPECT_EQ(r.trace.sequences[0].prompt_length, 1U);
  EXPECT_EQ(r.never_ran, 1U);
  // Zeros in one layer only are a token with an expert twice.
  EXPECT_TRUE(has(refused(two + line(1, "0", "[[2, 1], [2, 1]]")),
                  "t.jsonl:1: token 1, layer 0: expert 0 twice"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 0]]") + line(1, "0", "[[0, 0]]")),
                  "t.jsonl:1: token 0, layer 0: expert 0 twice"));
}

TEST(MoeBalance, BadInputNamesThePlace) {
  const std::string good = line(0, "0", "[[0, 1]]") + line(1, "0", "[[2, 1]]");
  EXPECT_EQ(refused(good), "accepted");
  EXPECT_TRUE(has(refused(""), "t.jsonl: no line in it"));
  EXPECT_TRUE(has(refused("\n\r\n"), "t.jsonl: no line in it"));
  EXPECT_TRUE(has(refused(good.substr(0, good.size() - 4)), "t.jsonl:2: no JSON"));
  EXPECT_TRUE(has(refused("[]"), "t.jsonl:1: /: expected an object"));
  EXPECT_TRUE(has(refused(std::string(300'000, '[')), "t.jsonl:1: JSON nested deeper than 64"));
  EXPECT_TRUE(
      has(refused(line(0, "0", "[[0, 4]]")), "t.jsonl:1: topk_experts[0] holds 4. Violated"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, -1]]")), "topk_experts[0] holds -1"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 1.0]]")), "topk_experts[0] holds 1.0"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 1e99]]")), "topk_experts[0] holds 1e+99"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 1], [1]]")),
                  "t.jsonl:1: topk_experts[1] is no list of the model's 2 experts a token"));
  EXPECT_TRUE(
      has(refused(line(0, "0", "[[0, 1, 2]]")), "topk_experts[0] is no list of the model's 2"));
  EXPECT_TRUE(has(refused(line(0, "0", "[]")), "topk_experts is no list of tokens"));
  EXPECT_TRUE(has(refused(line(0, "1.5", "[[0, 1]]")), "/batch_id: expected a whole number"));
  EXPECT_TRUE(has(refused(line(-1, "0", "[[0, 1]]")), "/layer: -1 is outside"));
  EXPECT_TRUE(has(refused("{\"layer\": 0, \"batch_id\": 0}"), "/topk_experts: missing"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 1]]", "\"topk\": [], ")), "topk"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 1]]", "\"origin_rows\": [0, 1], ")),
                  "t.jsonl:1: /origin_rows: expected a list of 1, one for each token"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 1]]", "\"topk_weights\": 3, ")),
                  "/topk_weights: expected a list of 1"));
  EXPECT_TRUE(has(refused(good + line(1, "0", "[[2, 1]]")),
                  "t.jsonl:3: layer 1 of batch 0 stands in line 2 already"));
  EXPECT_TRUE(
      has(refused(good + line(0, "1", "[[2, 1]]")), "t.jsonl:3: batch 1 has no line of layer 1"));
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 1]]") + line(1, "0", "[[2, 1], [0, 1]]")),
                  "t.jsonl:2: 2 tokens, batch 0 has 1 in line 1"));
  // A number and a text are two batches.
  EXPECT_TRUE(has(refused(line(0, "0", "[[0, 1]]") + line(1, "\"0\"", "[[2, 1]]")),
                  "t.jsonl:1: batch 0 has no line of layer 1"));
}

TEST(MoeBalance, TheSimulatorReplaysTheTrace) {
  const fs::path f = fresh_folder("moe_balance_verb");
  const auto verb = [&](std::vector<std::string> arguments) {
    return run_switchyard(std::move(arguments), {.folder = f, .environment = {}});
  };
  write_file(f / "config.json", config());
  // Layer 0: expert 0 gets 3 of 4 tokens, 1 two, 2 two, 3 one; layer 1: 4, 2, 1, 1.
  write_file(f / "t.jsonl", line(0, "0", "[[0, 1], [0, 2]]", "\"origin_rows\": [0, 1], ") +
                                line(1, "0", "[[0, 1], [0, 1]]", "\"topk_weights\": [0, 0], ") +
                                line(0, "1", "[[0, 1], [2, 3]]") +
                                line(1, "1", "[[0, 2], [0, 3]]"));
  const ProcessResult import =
      verb({"import", "moe-balance", "t.jsonl", "--model", "config.json", "-o", "t.h5"});
  ASSERT_EQ(import.exit_code, 0) << import.err;
  EXPECT_TRUE(has(import.out, "origin_rows are not kept")) << import.out;
  EXPECT_TRUE(has(import.out, "topk_weights are not kept")) << import.out;
  const ProcessResult inspect = verb({"inspect", "t.h5"});
  ASSERT_EQ(inspect.exit_code, 0) << inspect.err;
  EXPECT_TRUE(has(inspect.out, "experts only, no logits")) << inspect.out;
  EXPECT_TRUE(has(inspect.out, "moe-balance trace, imported by switchyard")) << inspect.out;
  const ProcessResult csv = verb({"inspect", "t.h5", "--format", "csv"});
  // load_cv of 3, 2, 2, 1: sqrt(1/2) / 2; of 4, 2, 1, 1: sqrt(3/2) / 2. imbalance 3/2 and 4/2.
  EXPECT_TRUE(has(csv.out, "\n0,8,8,0,0,0,0.00,35.36,87.50,1.500,")) << csv.out;
  EXPECT_TRUE(has(csv.out, "\n1,8,8,0,0,0,0.00,61.24,87.50,2.000,")) << csv.out;
  write_file(f / "s.toml", "[model]\nfile = \"config.json\"\n[hardware]\nfile = \"" +
                               source_path("scenarios/hardware/a100x2.toml").string() +
                               "\"\n[workload]\nkind = \"prefill\"\nbatch = 2\ntokens = 2\n"
                               "routing = { trace = \"t.h5\" }\n");
  const ProcessResult sim = verb({"sim", "s.toml", "-o", "r.h5", "--format", "csv"});
  ASSERT_EQ(sim.exit_code, 0) << sim.err;
  const ProcessResult steps = verb({"export", "csv", "r.h5", "--what", "steps", "-o", "steps.csv"});
  ASSERT_EQ(steps.exit_code, 0) << steps.err;
  // 2 sequences of 2 tokens, 2 experts in 2 layers: 16 assignments, all kept. GPUs 0 and 1 hold
  // experts 0, 1 and 2, 3 and a sequence each: 5 and 3 assignments in layer 0, 6 and 2 in layer 1,
  // max/mean 1.25 and 1.5. Rows that leave their GPU: 2 and 2, of 64 values in BF16, there and
  // back.
  EXPECT_TRUE(has(read_file(f / "steps.csv"), ",4,2,16,16,0,0,0,0,1.375,1024,"))
      << read_file(f / "steps.csv");
  const ProcessResult missing = verb({"import", "moe-balance", "t.jsonl", "-o", "x.h5"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(has(missing.err, "--model: is missing")) << missing.err;
  EXPECT_FALSE(fs::exists(f / "x.h5"));
}

}  // namespace
}  // namespace switchyard
