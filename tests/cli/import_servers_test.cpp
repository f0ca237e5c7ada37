// SPDX-License-Identifier: Apache-2.0
// What serving systems say: routed experts of vLLM and SGLang as a routing trace that the simulator
// reads, and a vllm serve command as a scenario.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/model_config.hpp"
#include "engine/trace/experts_only.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/import/routing_dump.hpp"
#include "experiments/import/vllm_args.hpp"
#include "tests/cli/process.hpp"

namespace fs = std::filesystem;

namespace switchyard {
namespace {

using importers::DumpKind;
using importers::read_routing_dump;
using importers::RoutingDump;
using nlohmann::json;
using test::fresh_folder;
using test::ProcessResult;
using test::run_switchyard;
using test::source_path;

/// Mixtral's family with `experts` of which `k`, in `layers` layers.
std::string config(int experts, int k, int layers) {
  return json{{"model_type", "mixtral"},
              {"architectures", {"MixtralForCausalLM"}},
              {"hidden_size", 64},
              {"intermediate_size", 128},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"num_hidden_layers", layers},
              {"num_local_experts", experts},
              {"num_experts_per_tok", k},
              {"vocab_size", 512},
              {"max_position_embeddings", 4096},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 1e6},
              {"hidden_act", "silu"},
              {"tie_word_embeddings", false}}
      .dump();
}

model::ModelConfig small() {
  return model::parse_model_config(config(4, 2, 2), "config.json", "small");
}

std::string base64(const std::string& bytes) {
  static const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t v = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      v = v << 8U | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += i + j > bytes.size() ? '=' : digits[v >> (18 - 6 * j) & 63U];
    }
  }
  return out;
}

template <class T>
std::string bytes_of(const std::vector<int>& values) {
  std::string out;
  for (const int v : values) {
    const T t = static_cast<T>(v);
    char raw[sizeof(T)];
    std::memcpy(raw, &t, sizeof(T));
    out.append(raw, sizeof(T));
  }
  return out;
}

std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string out = "\x93NUMPY\x01";
  out += '\0';
  out += static_cast<char>(header.size() & 0xFFU);
  out += static_cast<char>(header.size() >> 8U);
  return out + header + data;
}

// Two prompt tokens and two answers: three rows, since the last token is not fed back.
const std::vector<int> kIds{0, 1, 2, 3, /**/ 1, 0, 3, 2, /**/ 2, 0, 1, 3};

json vllm_response() {
  return {{"id", "cmpl-1"},
          {"prompt_token_ids", {11, 12}},
          {"usage", {{"prompt_tokens", 2}, {"completion_tokens", 2}}},
          {"choices",
           json::array({{{"token_ids", {13, 14}},
                         {"routed_experts",
                          base64(npy("<i2", "(3, 2, 2)", bytes_of<std::int16_t>(kIds)))}}})}};
}

json sglang_response() {
  return {{"output_ids", {13, 14}},
          {"meta_info",
           {{"id", "r1"},
            {"prompt_tokens", 2},
            {"completion_tokens", 2},
            {"routed_experts", base64(bytes_of<std::int32_t>(kIds))}}}};
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

std::string refused(const json& response, DumpKind kind) {
  return refusal(
      [&] { static_cast<void>(read_routing_dump(response.dump(), "d.json", kind, small())); });
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void expect_three_rows(const RoutingTrace& t) {
  ASSERT_EQ(t.rows(), 3U);
  EXPECT_EQ(t.steps(), 2U);
  EXPECT_EQ(t.tokens.phase, (std::vector<std::uint8_t>{0, 0, 1}));
  EXPECT_EQ(t.tokens.position, (std::vector<std::uint32_t>{0, 1, 2}));
  const std::vector<std::uint16_t> want(kIds.begin(), kIds.end());
  EXPECT_EQ(t.routing.chosen, want);
  EXPECT_EQ(t.routing.first, want);
  EXPECT_TRUE(is_experts_only(t.header));
  // E = 4 candidates, of which the dump knows two.
  EXPECT_EQ(t.header.candidates, 4U);
  EXPECT_EQ(t.routing.candidates[0], 0);
  EXPECT_EQ(t.routing.candidates[1], 1);
  EXPECT_EQ(t.routing.candidates[2], kNoExpert);
  EXPECT_EQ(t.nan_rows, 6U);
}

}  // namespace

TEST(RoutingDump, VllmSendsANumpyFileForEachChoice) {
  const RoutingDump d =
      read_routing_dump(vllm_response().dump(), "d.json", DumpKind::kVllm, small());
  expect_three_rows(d.trace);
  EXPECT_TRUE(d.token_ids);
  EXPECT_EQ(d.trace.tokens.token, (std::vector<std::uint32_t>{11, 12, 13}));
  EXPECT_EQ(d.trace.sequences[0].name, "cmpl-1");
  for (const auto& [type, data] : {std::pair{"|u1", bytes_of<std::uint8_t>(kIds)},
                                   {"<u2", bytes_of<std::uint16_t>(kIds)},
                                   {"<i4", bytes_of<std::int32_t>(kIds)},
                                   {"<i8", bytes_of<std::int64_t>(kIds)}}) {
    json r = vllm_response();
    r["choices"][0]["routed_experts"] = base64(npy(type, "(3, 2, 2)", data));
    expect_three_rows(read_routing_dump(r.dump(), "d.json", DumpKind::kVllm, small()).trace);
  }
}

TEST(RoutingDump, VllmMaySendListsAndThePromptApart) {
  json r = vllm_response();
  r["prompt_routed_experts"] = {{{0, 1}, {2, 3}}, {{1, 0}, {3, 2}}};
  r["choices"][0]["routed_experts"] = json::array({{{2, 0}, {1, 3}}});
  expect_three_rows(read_routing_dump(r.dump(), "d.json", DumpKind::kVllm, small()).trace);
  // A row of zeros for the last token, which never ran.
  r["choices"][0]["routed_experts"] = {{{2, 0}, {1, 3}}, {{0, 0}, {0, 0}}};
  r["prompt_token_ids"] = nullptr;
  const RoutingDump d = read_routing_dump(r.dump(), "d.json", DumpKind::kVllm, small());
  expect_three_rows(d.trace);
  EXPECT_FALSE(d.token_ids);
}

TEST(RoutingDump, SglangSendsNumbersWithoutAShape) {
  expect_three_rows(
      read_routing_dump(sglang_response().dump(), "d.json", DumpKind::kSglang, small()).trace);
  json chat{
      {"id", "c"},
      {"usage", {{"prompt_tokens", 2}, {"completion_tokens", 2}}},
      {"choices",
       json::array({{{"meta_info", {{"routed_experts", base64(bytes_of<std::int32_t>(kIds))}}}}})}};
  expect_three_rows(read_routing_dump(chat.dump(), "d.json", DumpKind::kSglang, small()).trace);
}

TEST(RoutingDump, ManyResponsesAreSequencesOfOneTrace) {
  const std::string line = vllm_response().dump();
  for (const std::string& text : {line + "\n\n" + line + "\n", "[" + line + "," + line + "]"}) {
    const RoutingDump d = read_routing_dump(text, "d.jsonl", DumpKind::kVllm, small());
    EXPECT_EQ(d.trace.sequences.size(), 2U);
    EXPECT_EQ(d.trace.rows(), 6U);
    EXPECT_EQ(d.trace.tokens.step, (std::vector<std::uint32_t>{0, 0, 0, 0, 1, 1}));
  }
}

TEST(RoutingDump, ARecordingOfSimllmIsRead) {
  const std::string golden =
      read_file(source_path("tests/fixtures/routing_dumps/simllm_writer_golden.jsonl"));
  const RoutingDump d = read_routing_dump(golden, "g.jsonl", DumpKind::kSglang, small());
  ASSERT_EQ(d.trace.rows(), 1U);
  EXPECT_EQ(d.trace.routing.chosen, (std::vector<std::uint16_t>{0, 1, 1, 2}));
  EXPECT_EQ(d.trace.tokens.token[0], 10U);
  EXPECT_EQ(d.trace.sequences[0].name, "request-golden");
  const model::ModelConfig other = model::parse_model_config(config(8, 2, 2), "c", "other");
  EXPECT_TRUE(has(refusal([&] {
                    static_cast<void>(
                        read_routing_dump(golden, "g.jsonl", DumpKind::kSglang, other));
                  }),
                  "g.jsonl:1: 4 experts of which 2; the model has 8 and 2"));
}

TEST(RoutingDump, BadInputNamesThePlace) {
  const auto vllm = [](const char* pointer, const json& value) {
    json r = vllm_response();
    r[json::json_pointer(pointer)] = value;
    return refused(r, DumpKind::kVllm);
  };
  const char* const experts = "/choices/0/routed_experts";
  EXPECT_TRUE(has(vllm(experts, nullptr), "d.json: no routed experts; start vLLM with"));
  EXPECT_TRUE(has(vllm(experts, "???"), "is no base64"));
  EXPECT_TRUE(has(vllm(experts, base64("hello!")), "is no .npy"));
  EXPECT_TRUE(has(vllm(experts, base64(npy("<f4", "(3, 2, 2)", "0000"))), "of type '<f4'"));
  EXPECT_TRUE(has(vllm(experts, base64(npy("<i2", "(3, 2, 2)", "00"))), "1 ids for the shape"));
  EXPECT_TRUE(has(vllm(experts, base64(npy("<i2", "(3, 2)", "00"))), "whose shape is not"));
  EXPECT_TRUE(has(vllm(experts, base64(npy("|u1", "(99999999999999, 2, 2)", "00"))), "2 ids for"));
  EXPECT_TRUE(has(vllm(experts, {{{0, 4}, {2, 3}}, {{1, 0}, {3, 2}}, {{2, 0}, {1, 3}}}),
                  "d.json: token 0, layer 0: expert 4 of 4"));
  EXPECT_TRUE(has(vllm(experts, {{{0, 1}, {2, 2}}, {{1, 0}, {3, 2}}, {{2, 0}, {1, 3}}}),
                  "d.json: token 0, layer 1: expert 2 twice"));
  EXPECT_TRUE(has(vllm(experts, {{{0, 1}, {2, 3}}}),
                  "d.json: 1 rows of experts for 2 prompt and 2 generated tokens"));
  EXPECT_TRUE(has(vllm(experts, {{{0, 1}}, {{1, 0}}, {{2, 0}}}),
                  "1 layers of 2 experts a token; the model has 2 layers"));
  EXPECT_TRUE(has(vllm("/choices/0/token_ids", {-1}), "token_ids holds -1"));
  EXPECT_TRUE(has(refused(json{{"text", "x"}}, DumpKind::kVllm), "it has no choices"));
  EXPECT_TRUE(has(refused(json::array(), DumpKind::kVllm), "no response in it"));
  EXPECT_TRUE(has(refused(json{{"text", "x"}}, DumpKind::kSglang), "no meta_info"));
  json r = sglang_response();
  r["meta_info"]["completion_tokens"] = 9;
  EXPECT_TRUE(has(refused(r, DumpKind::kSglang),
                  "d.json: 12 ids do not fit [tokens][layers][k] of 2 prompt and 9"));
  EXPECT_TRUE(has(refusal([] {
                    static_cast<void>(read_routing_dump(vllm_response().dump() + "\n{\"a\":\n",
                                                        "d.jsonl", DumpKind::kVllm, small()));
                  }),
                  "d.jsonl:2: no JSON"));
  EXPECT_TRUE(has(refusal([] {
                    static_cast<void>(
                        read_routing_dump(std::string(300'000, '[') + std::string(300'000, ']'),
                                          "d.json", DumpKind::kVllm, small()));
                  }),
                  "d.json: JSON nested deeper than 64 levels"));
}

TEST(RoutingDump, TheSimulatorReadsTheTraceAndRefusesToDecideOnIt) {
  const fs::path f = fresh_folder("routing_dump");
  const auto verb = [&](std::vector<std::string> arguments) {
    return run_switchyard(std::move(arguments), {.folder = f, .environment = {}});
  };
  write_file(f / "config.json", config(4, 2, 2));
  write_file(f / "d.jsonl", vllm_response().dump() + "\n" + vllm_response().dump() + "\n");
  const ProcessResult import =
      verb({"import", "routing-vllm", "d.jsonl", "--model", "config.json", "-o", "t.h5"});
  ASSERT_EQ(import.exit_code, 0) << import.err;
  EXPECT_TRUE(has(import.out, "experts only")) << import.out;
  const ProcessResult inspect = verb({"inspect", "t.h5"});
  ASSERT_EQ(inspect.exit_code, 0) << inspect.err;
  EXPECT_TRUE(has(inspect.out, "experts only, no logits")) << inspect.out;
  ASSERT_EQ(verb({"inspect", "t.h5", "--activation"}).exit_code, 0);
  write_file(f / "s.toml", "[model]\nfile = \"config.json\"\n[hardware]\nfile = \"" +
                               source_path("scenarios/hardware/a100x2.toml").string() +
                               "\"\n[workload]\nkind = \"decode\"\nbatch = 2\ncontext = 2\nrouting "
                               "= { trace = \"t.h5\" }\n");
  const ProcessResult sim = verb({"sim", "s.toml", "-o", "r.h5"});
  ASSERT_EQ(sim.exit_code, 0) << sim.err;
  EXPECT_TRUE(has(sim.out, "all hold")) << sim.out;
  // Two tokens of two experts in two layers; what the dump does not know is not counted.
  const ProcessResult steps = verb({"export", "csv", "r.h5", "--what", "steps", "-o", "steps.csv"});
  ASSERT_EQ(steps.exit_code, 0);
  EXPECT_TRUE(has(read_file(f / "steps.csv"), ",2,2,8,8,0,0,0,0,")) << read_file(f / "steps.csv");
  EXPECT_FALSE(has(sim.out, "gate entropy 0")) << sim.out;
  const ProcessResult policy =
      verb({"sim", "s.toml", "-o", "q.h5", "--set", "policy.capacity.rule=\"share\"", "--set",
            "policy.capacity.factor=1.0"});
  EXPECT_EQ(policy.exit_code, 2);
  EXPECT_TRUE(has(policy.err, "unsupported: the routing trace states the experts taken"))
      << policy.err;
  // `explain` refuses what `sim` and `sweep` do, in the same words.
  const ProcessResult explained =
      verb({"explain", "s.toml", "--set", "policy.capacity.rule=\"share\"", "--set",
            "policy.capacity.factor=1.0"});
  EXPECT_EQ(explained.exit_code, 2);
  EXPECT_EQ(explained.err, policy.err);
  EXPECT_EQ(verb({"explain", "s.toml"}).exit_code, 0);
  const std::string axis =
      "[[sweep]]\nkey = \"policy.capacity.rule\"\nvalues = [\"none\", \"share\"]\n";
  write_file(f / "w.toml", read_file(f / "s.toml") + axis);
  const ProcessResult points = verb({"explain", "w.toml"});
  EXPECT_EQ(points.exit_code, 2);
  EXPECT_TRUE(has(points.err, "unsupported: the routing trace states the experts taken"))
      << points.err;
  const ProcessResult gone = verb({"explain", "s.toml", "--trace", "gone.h5"});
  EXPECT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_TRUE(has(gone.out, "the routing trace is not there: nothing is checked that needs it"));
  RoutingTrace trace = read_trace(f / "t.h5");
  EXPECT_TRUE(has(refusal([&] { replay(trace, ReplayOptions::recorded(trace.header)); }),
                  "replay: unsupported: the routing trace states the experts taken"));
  const ProcessResult missing = verb({"import", "routing-vllm", "d.jsonl", "-o", "x.h5"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(has(missing.err, "--model: is missing")) << missing.err;
}

TEST(VllmArgs, ACommandIsAScenarioThatRuns) {
  const fs::path f = fresh_folder("vllm_args");
  const auto verb = [&](std::vector<std::string> arguments) {
    return run_switchyard(std::move(arguments), {.folder = f, .environment = {}});
  };
  write_file(f / "serve.sh",
             "#!/bin/sh\nVLLM_USE_V1=1 vllm serve mistralai/Mixtral_8x7B \\\n  -tp 2 "
             "--data-parallel-size=4 \\\n  --enable-expert-parallel --max-num-seqs 64 "
             "--max_num_batched_tokens 2K \\\n  --gpu-memory-utilization 0.85 --block-size 32 "
             "--kv-cache-dtype fp8 --port 8000 --served-model-name \"my model\"  # here\n");
  write_file(f / "r.csv", "arrival_ns,prompt_tokens,output_tokens\n0,64,2\n1000000,32,2\n");
  const ProcessResult r = verb({"import", "vllm-args", "serve.sh", "--like", "hgx_h100",
                                "--requests", "r.csv", "-o", "s.toml"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "--served-model-name my model")) << r.out;
  const std::string text = read_file(f / "s.toml");
  for (const char* line :
       {"# not taken over: --port 8000\n", "attention = \"tp\"\n", "dp = 4\n", "tp = 2\n",
        "ep = 8\n", "max_sequences = 64\n", "token_budget = 2048\n", "memory_share = \"85 %\"\n",
        "block = 32", "kv = \"fp8\"", "file = \"r.csv\"\n", "launch = \"graph\"\n"}) {
    EXPECT_TRUE(has(text, line)) << line << text;
  }
  const ProcessResult sim = verb({"sim", "s.toml", "-o", "x.h5"});
  ASSERT_EQ(sim.exit_code, 0) << sim.err;
  EXPECT_TRUE(has(sim.out, "all hold")) << sim.out;

  // Eight GPUs and a command for two: the scenario could not run, so none is written.
  write_file(f / "two.sh", "vllm serve mixtral_8x7b -tp 2 --enable-expert-parallel\n");
  const ProcessResult two = verb({"import", "vllm-args", "two.sh", "--like", "hgx_h100",
                                  "--requests", "r.csv", "-o", "two.toml"});
  EXPECT_EQ(two.exit_code, 2) << two.out;
  EXPECT_TRUE(has(two.err, "two.sh: what the command describes cannot be simulated")) << two.err;
  EXPECT_FALSE(fs::exists(f / "two.toml"));
  const ProcessResult model = verb({"import", "vllm-args", "two.sh", "--like", "hgx_h100",
                                    "--requests", "r.csv", "--model", "mixtrol", "-o", "m.toml"});
  EXPECT_EQ(model.exit_code, 2);
  EXPECT_TRUE(has(model.err, "--model: ")) << model.err;
}

TEST(VllmArgs, EagerFp8AndRefusedFlagsNameTheirKeys) {
  const auto made = [](const std::string& flags) {
    return importers::scenario_from_vllm_args("vllm serve m " + flags + "\n", "s.sh",
                                              {"m.json", "h.toml", "r.csv"});
  };
  const importers::VllmArgs eager = made("--enforce-eager --quantization fp8");
  EXPECT_FALSE(has(eager.scenario, "launch")) << eager.scenario;
  EXPECT_TRUE(eager.left_out.empty());
  EXPECT_TRUE(has(eager.scenario, "gemm_inputs = \"fp8\"")) << eager.scenario;
  EXPECT_FALSE(has(made("--quantization fp8 --quantization awq").scenario, "gemm_inputs"));
  try {
    static_cast<void>(made("--enable-eplb"));
    FAIL();
  } catch (const InputError& e) {
    EXPECT_TRUE(has(e.what(), "s.sh:1: unsupported: --enable-eplb changes what runs")) << e.what();
    EXPECT_TRUE(has(e.what(), "parallel.placement = \"eplb\"")) << e.what();
  }
  // A folder's name keeps its capitals.
  const fs::path f = fresh_folder("vllm_folder");
  fs::create_directories(f / "My-Model");
  fs::copy_file(source_path("scenarios/models/mixtral_8x7b.json"), f / "My-Model" / "config.json");
  write_file(f / "serve.sh", "vllm serve ./My-Model -tp 8 --enable-expert-parallel\n");
  write_file(f / "r.csv", "arrival_ns,prompt_tokens,output_tokens\n0,64,2\n");
  const ProcessResult r = run_switchyard({"import", "vllm-args", "serve.sh", "--like", "hgx_h100",
                                          "--requests", "r.csv", "-o", "made/here/s.toml"},
                                         {.folder = f, .environment = {}});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(fs::exists(f / "made/here/s.toml"));
}

TEST(VllmArgs, OfAFlagGivenTwiceTheLastCountsAndNoWordEndsTheComment) {
  const importers::VllmArgs out = importers::scenario_from_vllm_args(
      "vllm serve 'x\n[economics]\npue = 1.5' --max-num-seqs 256 --max-num-seqs 128\n", "s.sh",
      {"m.json", "h.toml", "r.csv"});
  EXPECT_TRUE(has(out.scenario, "# From vllm serve x [economics] pue = 1.5\n")) << out.scenario;
  EXPECT_TRUE(has(out.scenario, "[workload.batching]\nmax_sequences = 128\n")) << out.scenario;
  EXPECT_FALSE(has(out.scenario, "256")) << out.scenario;
}

TEST(VllmArgs, BadInputNamesTheLine) {
  const auto args = [](const std::string& text) {
    return refusal([&] {
      static_cast<void>(
          importers::scenario_from_vllm_args(text, "s.sh", {"m.json", "h.toml", "r.csv"}));
    });
  };
  EXPECT_TRUE(has(args("python train.py\n"), "s.sh:1: no command \"vllm serve MODEL …\""));
  EXPECT_TRUE(has(args("vllm serve --port 1\n"), "s.sh:1: the command names no model"));
  EXPECT_TRUE(has(args("vllm serve m \\\n -tp zwei\n"),
                  "s.sh:2: --tensor-parallel-size = \"zwei\". Violated: a whole number > 0"));
  EXPECT_TRUE(has(args("vllm serve m -tp 0\n"), "Violated: a whole number > 0"));
  EXPECT_TRUE(has(args("vllm serve m --gpu-memory-utilization 1.5\n"), "0 < share <= 1"));
  EXPECT_TRUE(has(args("vllm serve m --gpu-memory-utilization nan\n"), "0 < share <= 1"));
  EXPECT_TRUE(has(args("vllm serve m --quantization exl2\n"), "unsupported: --quantization exl2"));
  EXPECT_TRUE(has(args("vllm serve m --speculative-config '{\"a\": 1}'\n"),
                  "unsupported: --speculative-config changes what runs"));
  EXPECT_TRUE(has(args("vllm serve m -dp 2\n"), "data parallel without expert parallel"));
  EXPECT_TRUE(has(args("vllm serve m 'x\n"), "s.sh:1: a quote is not closed"));
  EXPECT_EQ(args("python3 -m vllm.entrypoints.openai.api_server --model m\n"), "accepted");
}

}  // namespace switchyard
