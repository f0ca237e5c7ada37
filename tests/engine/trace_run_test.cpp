// SPDX-License-Identifier: Apache-2.0
// Traces written by the engine: layout of steps, byte identity, replay, bad input; and the verbs
// `trace` and `generate` as functions.
#include "engine/nn/trace_run.hpp"

#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/cli/generate.hpp"
#include "experiments/cli/prompts.hpp"
#include "experiments/cli/trace.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

using testing_support::changed_checkpoint;
using testing_support::fixture;
using testing_support::fresh_folder;
using testing_support::ids_of;
using testing_support::set_value;
using testing_support::Tensors;

std::string input_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  ADD_FAILURE() << "no InputError";
  return {};
}
void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

std::vector<TracePrompt> some_prompts(std::uint32_t max_new) {
  const auto expected = model::Safetensors::open(fixture("bf16") / "expected.safetensors");
  std::vector<TracePrompt> out;
  for (int n = 0; n < 3; ++n) {
    out.push_back({"p" + std::to_string(n), n == 1 ? "code" : "",
                   ids_of(expected, "seq" + std::to_string(n) + ".ids"), max_new});
  }
  return out;
}

TraceRunOptions with_policy(const std::string& text) {
  TraceRunOptions options;
  options.policy = policy_from_text(text, "test");
  options.seed = 7;
  return options;
}

TEST(RecordTrace, LaysStepsOutAsItsHeaderSays) {
  const auto folder = fresh_folder("layout");
  const Engine engine = Engine::load(fixture("bf16"), {});
  // Lengths 1, 7, 33; groups of 2; chunks of 4; up to 3 new tokens each.
  const auto prompts = some_prompts(3);
  TraceRunOptions options;
  options.batch = 2;
  options.chunk = 4;
  const TraceRunSummary summary = record_trace(engine, prompts, options, folder / "t.h5");
  const RoutingTrace trace = read_trace(folder / "t.h5");
  EXPECT_EQ(trace.sequences[1].prompt_length, 7U);
  EXPECT_EQ(trace.sequences[1].domain, "code");
  EXPECT_EQ(trace.sequences[2].name, "p2");
  EXPECT_EQ(trace.header.gate, engine.gate());
  EXPECT_EQ(trace.header.precision, "f32");
  EXPECT_EQ(summary.prefill_tokens, 41U);
  EXPECT_EQ(summary.decode_tokens + summary.prefill_tokens, trace.rows());
  EXPECT_EQ(summary.steps, trace.steps());
  // Group 1: prefill steps of 1 + 4 and 0 + 3 tokens. Group 2: 33 tokens in 9 steps.
  const auto size = [&](std::uint32_t step) {
    const auto [a, b] = trace.step_rows(step);
    return b - a;
  };
  EXPECT_EQ(size(0), 5U);
  EXPECT_EQ(size(1), 3U);
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    const bool decode = trace.tokens.phase[row] == static_cast<std::uint8_t>(Phase::kDecode);
    const auto& sequence = trace.sequences[trace.tokens.sequence[row]];
    EXPECT_EQ(decode, trace.tokens.position[row] >= sequence.prompt_length);
    if (!decode) {
      EXPECT_EQ(trace.tokens.token[row],
                prompts[trace.tokens.sequence[row]].tokens[trace.tokens.position[row]]);
    }
  }
  EXPECT_EQ(summary.assignments, trace.rows() * 2 * 2);
  EXPECT_EQ(summary.assignments, summary.kept);
}

TEST(RecordTrace, WritesTheSameBytesForAnyThreadsFolderAndEnvironment) {
  const std::string policy = "capacity.rule=share capacity.factor=1.0 capacity.order=random";
  std::vector<std::string> files;
  for (const unsigned threads : {1U, 2U, 3U}) {
    const auto folder = fresh_folder("identity" + std::to_string(threads));
    if (threads == 2) {
      setenv("TZ", "Asia/Shanghai", 1);
      setenv("HOME", "/nonexistent", 1);
      std::setlocale(LC_ALL, "C.UTF-8");
    }
    const Engine engine = Engine::load(fixture("bf16"), {.threads = threads});
    (void)record_trace(engine, some_prompts(6), with_policy(policy), folder / "t.h5");
    files.push_back(read_file(folder / "t.h5"));
  }
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
  // And the bytes do depend on what they should depend on.
  TraceRunOptions other = with_policy(policy);
  other.seed = 8;
  const auto folder = fresh_folder("identity_other");
  const Engine engine = Engine::load(fixture("bf16"), {});
  (void)record_trace(engine, some_prompts(6), other, folder / "t.h5");
  EXPECT_NE(files[0], read_file(folder / "t.h5"));
}

TEST(RecordTrace, IsReplayedToTheSameDecisions) {
  const auto folder = fresh_folder("replay");
  const Engine engine = Engine::load(fixture("bf16"), {});
  for (const char* text :
       {"", "capacity.rule=share capacity.factor=1.0",
        "capacity.rule=share capacity.factor=0.8 capacity.mode=rounds capacity.order=prob",
        "capacity.rule=share capacity.factor=0.8 capacity.order=random capacity.exhausted=queue",
        "capacity.rule=share capacity.factor=0.5 capacity.reroute=none "
        "capacity.exhausted=drop_token"}) {
    (void)record_trace(engine, some_prompts(8), with_policy(text), folder / "t.h5");
    const RoutingTrace recorded = read_trace(folder / "t.h5");
    RoutingTrace stripped = recorded;
    stripped.routing.first.clear();
    stripped.routing.chosen.clear();
    stripped.routing.weights.clear();
    stripped.routing.outcome.clear();
    stripped.decisions_present = false;
    write_trace(folder / "stripped.h5", stripped);
    RoutingTrace again = read_trace(folder / "stripped.h5");
    ASSERT_FALSE(again.decisions_present);
    replay(again, ReplayOptions::recorded(again.header));
    EXPECT_TRUE(again.routing == recorded.routing) << text;
  }
}

TEST(RecordTrace, ChangesWithTheCapacityFactorAndConservesAssignments) {
  const auto folder = fresh_folder("factor");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto tight =
      record_trace(engine, some_prompts(4), with_policy("capacity.rule=share"), folder / "a.h5");
  const auto wide =
      record_trace(engine, some_prompts(4), with_policy("capacity.rule=share capacity.factor=2"),
                   folder / "b.h5");
  EXPECT_GT(tight.overflowed, wide.overflowed);
  EXPECT_GT(tight.rerouted, wide.rerouted);
  for (const auto& s : {tight, wide}) {
    EXPECT_EQ(s.assignments, s.kept + s.rerouted + s.queued + s.dropped);
  }
}

TEST(RecordTrace, FlagsNanRows) {
  const auto checkpoint = changed_checkpoint("f32", "nan_trace", [](Tensors& tensors) {
    set_value(tensors["model.embed_tokens.weight"], 7 * 32, NAN);
  });
  const Engine engine = Engine::load(checkpoint, {});
  const std::vector<TracePrompt> prompts{{"a", "", {8, 7}, 0}};
  const auto summary = record_trace(engine, prompts, {}, checkpoint / "t.h5");
  EXPECT_EQ(summary.nan_rows, 2U);
  EXPECT_EQ(read_trace(checkpoint / "t.h5").nan_rows, 2U);
  EXPECT_EQ(cli::trace_summary_table(summary).notes.size(), 4U);
}

TEST(RecordTrace, RefusesWhatItCannotRunAndLeavesNoFile) {
  const auto folder = fresh_folder("refuse");
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto out = folder / "t.h5";
  expect_contains(input_error_of([&] { (void)record_trace(engine, {}, {}, out); }),
                  "there is no prompt");
  const std::vector<TracePrompt> empty{{"e", "", {}, 1}};
  expect_contains(input_error_of([&] { (void)record_trace(engine, empty, {}, out); }),
                  "prompt e: has no tokens");
  const std::vector<TracePrompt> lengthy{{"l", "", std::vector<std::uint32_t>(60, 1), 6}};
  expect_contains(input_error_of([&] { (void)record_trace(engine, lengthy, {}, out); }),
                  "60 tokens and 6 new ones exceed the model's 64 positions");
  expect_contains(input_error_of([&] {
                    (void)record_trace(engine, some_prompts(1), {}, folder / "missing" / "t.h5");
                  }),
                  "missing");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

/// The f32 fixture with a byte-level tokenizer of the printable ASCII characters.
std::filesystem::path checkpoint_with_tokenizer(const std::string& name) {
  const auto folder = changed_checkpoint("f32", name, [](Tensors&) {});
  nlohmann::json vocab = nlohmann::json::object();
  int id = 1;
  for (char c = '!'; c <= '~'; ++c) {
    vocab[std::string(1, c)] = id++;
  }
  vocab["\u0120"] = id++;  // space
  vocab["\u010A"] = id++;  // newline
  const nlohmann::json level = {{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", true}};
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array({{{"id", 0},
                                               {"content", "<|endoftext|>"},
                                               {"single_word", false},
                                               {"lstrip", false},
                                               {"rstrip", false},
                                               {"normalized", false},
                                               {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer", level},
      {"post_processor", nullptr},
      {"decoder", level},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  write_file(folder / "tokenizer.json", tokenizer.dump());
  return folder;
}

TEST(TraceVerb, WritesATraceOfAPromptFile) {
  const auto folder = checkpoint_with_tokenizer("verb");
  write_file(folder / "p.jsonl",
             "{\"text\": \"int main()\", \"id\": \"m\", \"domain\": \"code\", \"max_new\": 2}\n"
             "\n"
             "{\"text\": \"hello\"}\r\n");
  cli::TraceOptions options;
  options.model = folder;
  options.prompts = folder / "p.jsonl";
  options.output = folder / "t.h5";
  options.max_new = 0;
  options.quiet = true;
  EXPECT_EQ(cli::run_trace(options), 0);
  const RoutingTrace trace = read_trace(folder / "t.h5");
  ASSERT_EQ(trace.sequences.size(), 2U);
  EXPECT_EQ(trace.sequences[0].name, "m");
  EXPECT_EQ(trace.sequences[0].prompt_length, 10U);
  EXPECT_EQ(trace.sequences[1].name, "3");
  EXPECT_EQ(trace.header.model, "verb");
  EXPECT_LE(trace.rows(), 10U + 5U + 1U);
}

TEST(TraceVerb, NamesEveryOptionItCannotServe) {
  const auto folder = checkpoint_with_tokenizer("verb_refuse");
  write_file(folder / "p.txt", "hello\n");
  cli::TraceOptions good;
  good.model = folder;
  good.prompts = folder / "p.txt";
  good.output = folder / "t.h5";
  good.quiet = true;
  const auto refused = [&](const std::function<void(cli::TraceOptions&)>& change) {
    cli::TraceOptions bad = good;
    change(bad);
    return input_error_of([&] { (void)cli::run_trace(bad); });
  };
  expect_contains(refused([](auto& o) { o.signals = "s.h5"; }), "--signals: unsupported");
  expect_contains(refused([](auto& o) { o.dtype = "bf16"; }), "--dtype: unsupported");
  expect_contains(refused([](auto& o) { o.dtype = "f23"; }), "did you mean \"f32\"?");
  expect_contains(refused([](auto& o) { o.device = "cup"; }), "did you mean \"cpu\"?");
  expect_contains(refused([](auto& o) { o.batch = 0; }), "batch = 0. Violated: batch >= 1");
  expect_contains(refused([](auto& o) { o.progress = "xml"; }), "--progress");
  expect_contains(refused([](auto& o) { o.model = o.model / "none"; }), "none");
  cli::TraceOptions cuda = good;
  cuda.device = "cuda";
  EXPECT_THROW((void)cli::run_trace(cuda), CapabilityError);
  EXPECT_FALSE(std::filesystem::exists(good.output));
}

TEST(Prompts, SayFileAndLineOfAMistake) {
  const auto folder = fresh_folder("prompts");
  const auto error = [&](const std::string& name, const std::string& content) {
    write_file(folder / name, content);
    return input_error_of([&] { (void)cli::read_prompts(folder / name); });
  };
  expect_contains(error("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \n"),
                  "a.jsonl:2: not valid JSON");
  expect_contains(error("b.jsonl", "{\"txt\": \"x\"}\n"), "did you mean \"text\"?");
  expect_contains(error("c.jsonl", "[1]\n"), "c.jsonl:1: not a JSON object");
  expect_contains(error("d.jsonl", "{\"text\": 3}\n"), "\"text\" is not a string");
  expect_contains(error("e.jsonl", "{\"text\": \"x\", \"max_new\": -1}\n"), "\"max_new\"");
  expect_contains(error("f.jsonl", "{\"id\": \"x\"}\n"), "\"text\" is missing or empty");
  expect_contains(error("g.txt", "\n \n"), "there is no prompt in it");
  expect_contains(error("h.md", "x\n"), "not a prompt file");
  write_file(folder / "i.txt", "\xEF\xBB\xBFone\n\ntwo");
  const auto prompts = cli::read_prompts(folder / "i.txt");
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].text, "one");
  EXPECT_EQ(prompts[1].name, "3");
}

TEST(GenerateVerb, ContinuesDeterministicallyAndChecksItsInput) {
  const auto folder = checkpoint_with_tokenizer("generate");
  cli::GenerateOptions options;
  options.model = folder;
  options.prompt = "hello";
  options.max_new = 12;
  options.threads = 1;
  const auto text = [&] {
    try {
      return cli::generate_text(options);
    } catch (const InputError& e) {
      // A random model may emit an id the little tokenizer has no text for.
      return std::string(e.what());
    }
  };
  const std::string first = text();
  options.threads = 2;
  EXPECT_EQ(text(), first);
  options.prompt.clear();
  expect_contains(input_error_of([&] { (void)cli::generate_text(options); }),
                  "--prompt: the prompt is empty");
  options.prompt = "hello";
  options.max_new = 61;
  expect_contains(input_error_of([&] { (void)cli::generate_text(options); }),
                  "5 tokens and 61 new ones exceed the model's 64 positions");
  options.max_new = 1;
  options.top_p = 2;
  expect_contains(input_error_of([&] { (void)cli::generate_text(options); }), "top_p = 2");
}

}  // namespace
}  // namespace switchyard
