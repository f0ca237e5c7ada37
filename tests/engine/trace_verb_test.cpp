// SPDX-License-Identifier: Apache-2.0
// The verbs `trace` and `generate` as functions, and prompt files.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/routing/static_table.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/cli/generate.hpp"
#include "experiments/cli/prompts.hpp"
#include "experiments/cli/trace.hpp"
#include "tests/engine/tokenizer_fixture.hpp"

namespace switchyard {
namespace {

using testing_support::checkpoint_with_tokenizer;
using testing_support::expect_contains;
using testing_support::fresh_folder;
using testing_support::input_error_of;

TEST(TraceVerb, WritesATraceOfAPromptFile) {
  const auto folder = checkpoint_with_tokenizer("verb");
  write_file(folder / "p.jsonl",
             "{\"text\": \"int main()\", \"id\": \"m\", \"domain\": \"code\", \"max_new\": 2}\n"
             "\n"
             "{\"text\": \"hello\", \"expert\": 5}\r\n");
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
  EXPECT_EQ(trace.sequences[0].text, "int main()");
  EXPECT_EQ(trace.sequences[0].expert, kNoExpert);
  EXPECT_EQ(trace.sequences[1].expert, 5);
  write_file(folder / "p.jsonl", "{\"text\": \"hello\", \"expert\": 8}\n");
  expect_contains(input_error_of([&] { (void)cli::run_trace(options); }),
                  "p.jsonl:1: expert \"8\" is not an id below 8");
  // A name of the policy's.
  write_file(folder / "p.jsonl", "{\"text\": \"hello\", \"expert\": \"code\"}\n");
  expect_contains(input_error_of([&] { (void)cli::run_trace(options); }), "expert \"code\"");
  write_file(folder / "pinned.toml", "[pinned]\nrequests = \"named\"\nnames = { code = 6 }\n");
  options.policy = folder / "pinned.toml";
  EXPECT_EQ(cli::run_trace(options), 0);
  const RoutingTrace pinned = read_trace(folder / "t.h5");
  EXPECT_EQ(pinned.sequences[0].expert, 6);
  EXPECT_EQ(pinned.routing.chosen[0], 6);
  EXPECT_EQ(pinned.routing.weights[0], 1.0F);
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
  expect_contains(refused([](auto& o) { o.signals = "s.h5"; }), "s.h5");
  expect_contains(refused([](auto& o) { o.dtype = "bf16"; }), "--dtype: unsupported");
  expect_contains(refused([](auto& o) { o.dtype = "f23"; }), "did you mean \"f32\"?");
  expect_contains(refused([](auto& o) { o.device = "cup"; }), "did you mean \"cpu\"?");
  expect_contains(refused([](auto& o) { o.batch = 0; }), "batch = 0. Violated: batch >= 1");
  expect_contains(refused([](auto& o) { o.progress = "xml"; }), "--progress");
  expect_contains(refused([](auto& o) { o.kv_block = 0; }), "--kv-block: block = 0");
  expect_contains(refused([](auto& o) { o.kv_memory = "64"; }), "--kv-memory");
  expect_contains(refused([](auto& o) { o.kv_memory = "0 B"; }), "--kv-memory: kv-memory = 0 B");
  expect_contains(refused([](auto& o) { o.kv_memory = "64 B"; }),
                  "--kv-memory makes 64 B available");
  expect_contains(refused([](auto& o) { o.top_p = 1.5; }), "top_p = 1.5");
  write_file(folder / "two_tier.toml",
             "[two_tier]\nfirst = \"rank\"\nrank = 64\nscorer = \"none.safetensors\"\n");
  expect_contains(refused([&](auto& o) { o.policy = folder / "two_tier.toml"; }), "two_tier.");
  expect_contains(refused([](auto& o) { o.model = o.model / "none"; }), "none");
  cli::TraceOptions cuda = good;
  cuda.device = "cuda";
  EXPECT_THROW((void)cli::run_trace(cuda), CapabilityError);
  EXPECT_FALSE(std::filesystem::exists(good.output));
}

TEST(TraceVerb, SaysInItsTableThatRouterRowsWereNaN) {
  TraceRunSummary summary;
  const std::size_t sound = cli::trace_summary_table(summary).notes.size();
  summary.nan_rows = 2;
  const Table table = cli::trace_summary_table(summary);
  ASSERT_EQ(table.notes.size(), sound + 1);
  expect_contains(table.notes.back(), "nan_router");
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
  expect_contains(error("l.jsonl", "{\"text\": \"x\", \"expert\": -1}\n"), "\"expert\"");
  expect_contains(error("f.jsonl", "{\"id\": \"x\"}\n"), "\"text\" is missing or empty");
  expect_contains(error("g.txt", "\n \n"), "there is no prompt in it");
  expect_contains(error("h.md", "x\n"), "not a prompt file");
  expect_contains(error("j.txt", "fine \xC3\xA9\nbad \xFF here\n"),
                  "j.txt:2:5: byte 0xff is not valid UTF-8");
  expect_contains(error("k.jsonl", "{\"text\": \"x\"}\n\n{\"text\": \"\xED\xA0\x80\"}\n"),
                  "k.jsonl:3:11: byte 0xed is not valid UTF-8");
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
  const std::string first = cli::generate_text(options);
  EXPECT_FALSE(first.empty());
  options.threads = 2;
  EXPECT_EQ(cli::generate_text(options), first);
  options.seed = 2;
  EXPECT_NE(cli::generate_text(options), first);
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

// Several prompts through the paged cache: each text is what it is alone, however many run
// together, and whatever part of the cache they may hold.
TEST(GenerateVerb, ContinuesEachOfManyPromptsAsItWouldAlone) {
  const auto folder = checkpoint_with_tokenizer("generate_many");
  const std::vector<std::string> texts{"hello", "int main", "a", "hello", "some more words"};
  std::string lines;
  for (const std::string& text : texts) {
    lines += nlohmann::json{{"text", text}, {"max_new", text.size() + 3}}.dump() + "\n";
  }
  write_file(folder / "p.jsonl", lines);
  cli::GenerateOptions options;
  options.model = folder;
  options.threads = 1;
  options.temperature = 1.5;
  std::vector<std::string> alone;
  for (const std::string& text : texts) {
    options.prompt = text;
    options.max_new = static_cast<std::uint32_t>(text.size() + 3);
    alone.push_back(text + cli::generate_text(options));
  }
  options.prompt.clear();
  options.prompts = folder / "p.jsonl";
  options.max_new = 1;
  for (const std::uint32_t batch : {1U, 2U, 8U}) {
    for (const char* memory : {"", "40 kB"}) {
      options.batch = batch;
      options.kv_block = batch + 2;
      options.kv_memory = memory;
      EXPECT_EQ(cli::generate_texts(options), alone) << batch << memory;
    }
  }
  options.kv_memory = "4 kB";
  expect_contains(input_error_of([&] { (void)cli::generate_texts(options); }),
                  "p.jsonl:1: 12 tokens need");
  options.kv_memory.clear();
  options.batch = 0;
  expect_contains(input_error_of([&] { (void)cli::generate_texts(options); }),
                  "batch = 0. Violated: batch >= 1");
  options.batch = 1;
  write_file(folder / "p.jsonl", "{\"text\": \"a\", \"expert\": 3}\n");
  expect_contains(input_error_of([&] { (void)cli::generate_texts(options); }),
                  "p.jsonl:1: \"expert\" has no effect here");
}

TEST(TraceVerb, RepairsWhatItWasToldToDamage) {
  const auto folder = checkpoint_with_tokenizer("verb_health");
  write_file(folder / "p.txt", "hello there\nint main\n");
  cli::TraceOptions options;
  options.model = folder;
  options.prompts = folder / "p.txt";
  options.output = folder / "sound.h5";
  options.max_new = 8;
  options.quiet = true;
  EXPECT_EQ(cli::run_trace(options), 0);
  options.flips = {"layers.1.experts.3.gate:17:30@1", "layers.0.router:40:22@3"};
  expect_contains(input_error_of([&] { (void)cli::run_trace(options); }),
                  "--flip: damages weights that nothing checks");
  options.health = 1;
  options.output = folder / "repaired.h5";
  EXPECT_EQ(cli::run_trace(options), 0);
  EXPECT_EQ(read_file(folder / "repaired.h5"), read_file(folder / "sound.h5"));
  options.health = 1000;  // only before step 0
  options.output = folder / "damaged.h5";
  EXPECT_EQ(cli::run_trace(options), 0);
  EXPECT_NE(read_file(folder / "damaged.h5"), read_file(folder / "sound.h5"));
  options.flips = {"layers.1.experts.3.gat:17:30@1"};
  expect_contains(input_error_of([&] { (void)cli::run_trace(options); }),
                  "did you mean \"layers.1.experts.3.gate\"?");
  options.flips.clear();
  options.quantise = "experts=int3";
  expect_contains(input_error_of([&] { (void)cli::run_trace(options); }),
                  "--quantise: experts = int3: unknown format");
}

TEST(GenerateVerb, ContinuesAlikeThroughADamagedExpert) {
  const auto folder = checkpoint_with_tokenizer("generate_health");
  cli::GenerateOptions options;
  options.model = folder;
  options.prompt = "hello";
  options.max_new = 12;
  options.threads = 1;
  const std::string sound = cli::generate_text(options);
  options.health = 1;
  options.flips = {"layers.0.experts.2.down:3:30@5", "embedding:100:30@2"};
  EXPECT_EQ(cli::generate_text(options), sound);
  options.flips.clear();
  options.quantise = "router=int4,experts=int4,group=16";
  EXPECT_NE(cli::generate_text(options), sound);
}

TEST(GenerateVerb, ANanOfDamagedWeightsIsRepairedAndTheTextGoesOn) {
  const auto folder = checkpoint_with_tokenizer("verb_nan");
  cli::GenerateOptions options;
  options.model = folder;
  options.prompt = "hello";
  options.max_new = 12;
  options.temperature = 0;
  options.threads = 1;
  const std::string undisturbed = cli::generate_text(options);
  options.health = 1000;
  options.flips = {"layers.0.post_attention_norm:3:30@2"};
  EXPECT_EQ(cli::generate_text(options), undisturbed);
}

TEST(TraceVerb, RefusesATableOfOtherWeights) {
  const auto folder = checkpoint_with_tokenizer("verb_table");
  const Engine engine = Engine::load(folder, {});
  write_file(folder / "p.txt", "hello\n");
  write_file(folder / "table.toml", "[table]\nfile = \"t.table\"\n");
  cli::TraceOptions options;
  options.model = folder;
  options.prompts = folder / "p.txt";
  options.policy = folder / "table.toml";
  options.output = folder / "t.h5";
  options.max_new = 0;
  options.quiet = true;
  TableSpec spec;
  spec.layers = static_cast<std::uint32_t>(engine.config().num_moe_layers());
  spec.experts = engine.gate().experts;
  spec.top_k = engine.gate().top_k;
  spec.model = "verb_table";
  for (const std::string& hash :
       {std::string("0123456789abcdef"), std::string("any"), engine.weight_hash().hex()}) {
    spec.weight_hash = hash;
    write_file(folder / "t.table", RoutingTable(spec).to_text());
    if (hash.size() == 16) {
      expect_contains(input_error_of([&] { (void)cli::run_trace(options); }),
                      "t.table: the table was built with the weights 0123456789abcdef");
    } else {
      EXPECT_EQ(cli::run_trace(options), 0) << hash;
    }
  }
}

TEST(TraceVerb, RecordsThatItsRoutersWereComputedInBf16) {
  const auto folder = checkpoint_with_tokenizer("verb_bf16");
  write_file(folder / "p.txt", "hello\n");
  cli::TraceOptions options;
  options.model = folder;
  options.prompts = folder / "p.txt";
  options.output = folder / "t.h5";
  options.router_dtype = "bf16";
  options.quiet = true;
  EXPECT_EQ(cli::run_trace(options), 0);
  EXPECT_EQ(read_trace(folder / "t.h5").header.precision, "f32 (router computed in bf16)");
  options.router_dtype = "fp16";
  expect_contains(input_error_of([&] { (void)cli::run_trace(options); }),
                  "--router-dtype: unknown type \"fp16\"");
}

}  // namespace
}  // namespace switchyard
