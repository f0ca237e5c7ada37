// SPDX-License-Identifier: Apache-2.0
// `import megatron-jsonl`: what Megatron-LM's ranks log of their experts as loads. The lines are
// written here in the form of NVIDIA/Megatron-LM#3842 (megatron/training/activation_logging.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/import/json_lines.hpp"
#include "experiments/import/megatron_counts.hpp"
#include "tests/cli/process.hpp"

namespace fs = std::filesystem;

namespace switchyard {
namespace {

using importers::JsonLines;
using importers::MegatronCounts;
using importers::MegatronJob;
using importers::read_megatron_counts;
using test::fresh_folder;
using test::ProcessResult;
using test::run_switchyard;
using test::source_path;

std::string line(int iteration, int layer, const std::string& tpe) {
  return fmt::format("{{\"iter\": {}, \"block\": \"decoder\", \"layer\": {}, \"tpe\": {}}}\n",
                     iteration, layer, tpe);
}

std::string mtp(int iteration) {
  return fmt::format(
      "{{\"iter\": {}, \"block\": \"mtp\", \"mtp_idx\": 0, \"layer\": 1, \"tpe\": [[50, 50]]}}\n",
      iteration);
}

/// Files of ranks 0, 1, … in a fresh folder.
fs::path ranks(const std::string& name, const std::vector<std::string>& texts) {
  const fs::path f = fresh_folder(name);
  for (std::size_t r = 0; r < texts.size(); ++r) {
    write_file(f / fmt::format("rank{}.jsonl", r), texts[r]);
  }
  return f;
}

std::string refused(const fs::path& input, const MegatronJob& job = {}) {
  try {
    (void)read_megatron_counts(input, job);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(MegatronCounts, OneRankHoldsAllExpertsAndMicroBatchesAndIterationsAddUp) {
  const fs::path f = ranks("megatron_one", {line(100, 3, "[[128, 64], [96, 80]]") + mtp(100) +
                                            line(200, 3, "[[1, 0]]") + mtp(200)});
  for (const fs::path& input : {f, f / "rank0.jsonl"}) {
    const MegatronCounts c = read_megatron_counts(input, {});
    EXPECT_EQ(c.counts.csv, "layer,expert,load\n3,0,225\n3,1,144\n");
    EXPECT_EQ(c.mtp_lines, 2U);
    EXPECT_EQ(c.iterations, 2U);
    EXPECT_EQ(c.first, 100U);
    EXPECT_EQ(c.last, 200U);
    EXPECT_EQ(c.micro_batches, 3U);
  }
  MegatronJob one;
  one.iterations = {200, 200};
  const MegatronCounts c = read_megatron_counts(f, one);
  EXPECT_EQ(c.counts.csv, "layer,expert,load\n3,0,1\n3,1,0\n");
  EXPECT_EQ(c.mtp_lines, 1U);
  one.iterations = {101, 199};
  EXPECT_TRUE(has(refused(f, one), "no line of a decoder layer in it; other --iterations"));
}

// Order tp-cp-ep-dp-pp: rank = etp + 2 (ep + 2 (edp + 2 stage)), 16 ranks of 2 × 2 × 2 × 2 stages.
TEST(MegatronCounts, RanksStandInMegatronsOrder) {
  std::vector<std::string> texts;
  for (int stage = 0; stage < 2; ++stage) {
    for (int edp = 0; edp < 2; ++edp) {
      for (int ep = 0; ep < 2; ++ep) {
        for (int etp = 0; etp < 2; ++etp) {
          // Of each stage's three layers the second and the third have experts.
          std::string text;
          for (const int layer : {1, 2}) {
            const int base = 1000 * stage + 100 * layer + 10 * ep + 1;
            text += line(7, layer, fmt::format("[[{}, {}]]", base, edp == 0 ? 1 : 4));
          }
          texts.push_back(text);
        }
      }
    }
  }
  const fs::path f = ranks("megatron_order", texts);
  const MegatronJob job{2, 2, 2, {3, 3}, {}};
  const MegatronCounts c = read_megatron_counts(f, job);
  // Both data parallel copies add up, the tensor parallel ones count once: 2 (1000 s + 100 l +
  // 10 ep + 1) and 1 + 4.
  EXPECT_EQ(c.counts.csv,
            "layer,expert,load\n"
            "1,0,202\n1,1,5\n1,2,222\n1,3,5\n2,0,402\n2,1,5\n2,2,422\n2,3,5\n"
            "4,0,2202\n4,1,5\n4,2,2222\n4,3,5\n5,0,2402\n5,1,5\n5,2,2422\n5,3,5\n");
  EXPECT_EQ(c.ranks, 16U);
  EXPECT_EQ(c.gaps, (std::vector<std::uint32_t>{3}));
  EXPECT_TRUE(has(refused(f, {2, 2, 1, {3, 3}, {}}),
                  "16 rank files, but --ep 2 x --etp 2 x --edp 1 x 2 of --stage-layers make 8"));
  EXPECT_TRUE(
      has(refused(f, {2, 2, 2, {2, 3}, {}}), "rank0.jsonl:2: layer 2, but stage 0 has 2 layers"));
  // Copies that are none: ranks 0 and 2 have other counts.
  EXPECT_TRUE(has(refused(f, {1, 4, 2, {3, 3}, {}}),
                  "rank2.jsonl:1: other counts than rank0.jsonl:1, which has the same experts "
                  "under --etp 4"));
}

TEST(MegatronCounts, AFolderAboveAndFilesOfOneRankAreRecognised) {
  const fs::path f = fresh_folder("megatron_folder");
  EXPECT_TRUE(has(refused(f), "holds no rank0.jsonl, rank1.jsonl, …"));
  write_file(f / "tokens_per_expert.log", "Rank=0 iter=1 layer=3 tokens_per_expert=[1, 2]\n");
  EXPECT_TRUE(has(refused(f), "tokens_per_expert.log: unsupported: the text of an early version"));
  EXPECT_TRUE(has(refused(f / "tokens_per_expert.log"),
                  "tokens_per_expert.log:1: unsupported: the text tokens_per_expert.log"));
  fs::create_directories(f / "tokens_per_expert");
  write_file(f / "tokens_per_expert" / "rank0.jsonl", line(1, 0, "[[1, 2]]"));
  EXPECT_EQ(read_megatron_counts(f, {}).counts.csv, "layer,expert,load\n0,0,1\n0,1,2\n");
  write_file(f / "tokens_per_expert" / "rank1.jsonl", line(1, 0, "[[3, 4]]"));
  EXPECT_EQ(read_megatron_counts(f, {.ep = 2, .stage_layers = {}, .iterations = {}}).counts.csv,
            "layer,expert,load\n0,0,1\n0,1,2\n0,2,3\n0,3,4\n");
  for (const char* name : {"rank0.jsonl", "rank1.jsonl"}) {
    EXPECT_TRUE(
        has(refused(f / "tokens_per_expert" / name), "is the file of one of several ranks"));
  }
  write_file(f / "tokens_per_expert" / "rank3.jsonl", line(1, 0, "[[3, 4]]"));
  EXPECT_TRUE(has(refused(f), "rank2.jsonl is missing of 4 ranks"));
  EXPECT_TRUE(has(refused(f / "none"), "none: cannot open"));
}

TEST(MegatronCounts, LinesThatAreNoneAreRefusedWithTheirPlace) {
  const fs::path f = fresh_folder("megatron_bad");
  const auto one = [&](const std::string& text) {
    write_file(f / "a.jsonl", text);
    return refused(f / "a.jsonl");
  };
  const std::string good = line(1, 0, "[[1, 2]]");
  EXPECT_EQ(one(good), "accepted");
  EXPECT_TRUE(has(one(""), "a.jsonl: no line of a decoder layer in it"));
  EXPECT_TRUE(has(one("\n \r\n\n"), "no line of a decoder layer in it"));
  EXPECT_TRUE(has(one(mtp(1)), "no line of a decoder layer in it"));
  EXPECT_TRUE(has(one("\n" + good.substr(0, good.size() - 6)), "a.jsonl:2: no JSON"));
  EXPECT_TRUE(has(one(good + good), "a.jsonl:2: iteration 1, layer 0 stands in line 1 already"));
  EXPECT_TRUE(has(one("[1]"), "a.jsonl:1: is no object"));
  EXPECT_TRUE(has(one(line(1, 0, "[[1, -2]]")), "a.jsonl:1: tpe[0][1] = -2. Violated: a whole"));
  EXPECT_TRUE(has(one(line(1, 0, "[[1.5, 2]]")), "a.jsonl:1: tpe[0][0] = 1.5"));
  EXPECT_TRUE(has(one(line(1, 0, "[[1, 99999999999999999999]]")), "tpe[0][1] = 1e+20"));
  EXPECT_TRUE(has(one(line(1, 0, "[[1, 1e999]]")), "a.jsonl:1: no JSON"));
  EXPECT_TRUE(
      has(one(line(1, 0, "[[1, 2], [1]]")), "tpe[1] has 1 experts, the lines before have 2"));
  EXPECT_TRUE(has(one(good + line(1, 1, "[[1, 2, 3]]")), "a.jsonl:2: tpe[0] has 3 experts"));
  EXPECT_TRUE(has(one(line(1, 0, "[]")), "tpe is no list of micro-batches"));
  EXPECT_TRUE(has(one(line(1, 0, "[[]]")), "tpe[0] is no list of experts"));
  EXPECT_TRUE(has(one(line(1, 0, "[7]")), "tpe[0] is no list of experts"));
  EXPECT_TRUE(has(one(line(1, 0, "[[0, 0]]")), "all counts are 0"));
  EXPECT_TRUE(has(one(line(1, -1, "[[1]]")), "a.jsonl:1: /layer: -1 is outside"));
  EXPECT_TRUE(has(one("{\"iter\":1,\"block\":\"encoder\",\"layer\":0,\"tpe\":[[1]]}"),
                  "a.jsonl:1: unsupported: block \"encoder\""));
  EXPECT_TRUE(has(one("{\"iter\":1,\"block\":\"decoder\",\"layer\":0}"), "/tpe: missing"));
  EXPECT_TRUE(has(one("{\"iter\":1,\"block\":\"decoder\",\"mtp_idx\":0,\"layer\":0,\"tpe\":[[1]]}"),
                  "mtp_idx"));
  EXPECT_TRUE(has(one("{\"iter\":1,\"iter\":2,\"block\":\"decoder\",\"layer\":0,\"tpe\":[[1]]}"),
                  "duplicate key \"iter\""));
  EXPECT_TRUE(has(one(std::string(300'000, '[')), "a.jsonl:1: JSON nested deeper than 64 levels"));
  // Layer 5 is not in iteration 2.
  EXPECT_TRUE(has(one(good + line(1, 5, "[[1, 2]]") + line(2, 0, "[[1, 2]]")),
                  "layer 5 has a line in iteration 1 and none in 2"));
  EXPECT_TRUE(has(one(good + line(2, 0, "[[1, 2]]") + line(2, 5, "[[1, 2]]")),
                  "layer 5 has a line in iteration 2 and none in 1"));
}

TEST(MegatronCounts, RanksThatDoNotFitEachOtherAreRefused) {
  const std::string two = line(1, 0, "[[1, 2]]") + line(2, 0, "[[1, 2]]");
  const MegatronJob ep2{2, 1, 1, {}, {}};
  EXPECT_TRUE(has(refused(ranks("megatron_less", {two, line(1, 0, "[[1, 2]]")}), ep2),
                  "rank1.jsonl: no line of iteration 2, layer 0, which rank0.jsonl:2 has"));
  EXPECT_TRUE(has(refused(ranks("megatron_more", {line(1, 0, "[[1, 2]]"), two}), ep2),
                  "rank1.jsonl:2: iteration 2, layer 0, which rank0.jsonl has not"));
  EXPECT_TRUE(has(refused(ranks("megatron_micro",
                                {two, line(1, 0, "[[1, 2], [0, 0]]") + line(2, 0, "[[1, 2]]")}),
                          ep2),
                  "rank1.jsonl:1: 2 micro-batches, rank0.jsonl:1 has 1"));
  EXPECT_TRUE(has(refused(ranks("megatron_wide", {two, line(1, 0, "[[1, 2, 3]]")}), ep2),
                  "rank1.jsonl:1: tpe[0] has 3 experts, the lines before have 2"));
  EXPECT_TRUE(
      has(refused(ranks("megatron_stage", {two, line(1, 0, "[[1, 2]]")}), {1, 1, 1, {1, 1}, {}}),
          "rank1.jsonl: its iterations are not those of the first stage"));
  EXPECT_TRUE(has(refused(ranks("megatron_zero", {two}), {1, 1, 1, {0}, {}}),
                  "--stage-layers: a stage of 0 layers"));
  EXPECT_TRUE(has(refused(ranks("megatron_ep0", {two}), {0, 1, 1, {}, {}}), "--ep: 0. Violated"));
}

TEST(JsonLines, MarksCarriageReturnsAndEmptyLinesAreTakenOff) {
  const fs::path f = fresh_folder("json_lines");
  write_file(f / "a", "\xEF\xBB\xBF{}\r\n\r\n\n  \n[1]\n7");
  JsonLines in(f / "a");
  EXPECT_EQ(in.next(), "{}");
  EXPECT_EQ(in.next(), "[1]");
  EXPECT_EQ(in.place(), (f / "a:5").string());
  EXPECT_EQ(in.next(), "7");
  EXPECT_EQ(in.line(), 6U);
  EXPECT_EQ(in.next(), std::nullopt);
  // Lines that end within, at and behind the parts that are read at once (1 MiB).
  std::string text;
  std::vector<std::string> want;
  for (const std::size_t size : {std::size_t{1} << 20U, (std::size_t{1} << 20U) - 2,
                                 std::size_t{3} << 20U, std::size_t{5}}) {
    want.emplace_back(size, static_cast<char>('a' + want.size()));
    text += want.back() + "\n";
  }
  write_file(f / "b", text);
  JsonLines parts(f / "b");
  for (const std::string& w : want) EXPECT_TRUE(parts.next() == w);
  EXPECT_EQ(parts.next(), std::nullopt);
  EXPECT_THROW(JsonLines{f}, InputError);
}

TEST(MegatronCounts, ThePlacementActsOnTheLoads) {
  const fs::path f = fresh_folder("megatron_verb");
  fs::create_directories(f / "in");
  // Mixtral: 32 layers of 8 experts over two EP ranks; expert 4 has most of the work.
  for (int rank = 0; rank < 2; ++rank) {
    std::string text;
    for (int layer = 0; layer < 32; ++layer) {
      text += line(10, layer, rank == 0 ? "[[10, 10, 10, 10]]" : "[[900, 10, 10, 20]]");
    }
    write_file(f / "in" / fmt::format("rank{}.jsonl", rank), text);
  }
  const auto verb = [&](std::vector<std::string> arguments) {
    return run_switchyard(std::move(arguments), {.folder = f, .environment = {}});
  };
  const ProcessResult r = verb({"import", "megatron-jsonl", "in", "--ep", "2", "--model",
                                "mixtral_8x7b", "-o", "loads.csv"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "31360")) << r.out;  // 32 · 980 assignments
  const std::string scenarios = source_path("scenarios").string();
  write_file(f / "s.toml",
             "[model]\nfile = \"" + scenarios +
                 "/models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" + scenarios +
                 "/hardware/hgx_h100.toml\"\n[parallel]\nep = 4\ntp = 1\nplacement = \"eplb\"\n"
                 "placement_options = { loads = \"loads.csv\", redundant = 4 }\n[workload]\n"
                 "kind = \"decode\"\nbatch = 16\ncontext = 128\n"
                 "routing = { synthetic = \"uniform\" }\n");
  ASSERT_EQ(verb({"sim", "s.toml", "-o", "r.h5"}).exit_code, 0);
  ASSERT_EQ(verb({"export", "placement", "r.h5", "-o", "p.csv"}).exit_code, 0);
  // All four further slots go to expert 4: 900 / 5 = 180 is still the largest share.
  const std::string placement = read_file(f / "p.csv");
  for (int e = 0; e < 8; ++e) {
    std::size_t copies = 0;
    for (std::size_t at = 0;
         (at = placement.find(fmt::format("\n7,{},", e), at)) != std::string::npos; ++at) {
      ++copies;
    }
    EXPECT_EQ(copies, e == 4 ? 5U : 1U) << e << placement;
  }

  const auto fails = [&](std::vector<std::string> more, const std::string& message) {
    std::vector<std::string> all{"import", "megatron-jsonl", "in", "-o", "x.csv"};
    all.insert(all.end(), more.begin(), more.end());
    const ProcessResult bad = verb(all);
    EXPECT_EQ(bad.exit_code, 2);
    EXPECT_TRUE(has(bad.err, message)) << bad.err;
    EXPECT_FALSE(fs::exists(f / "x.csv"));
  };
  fails({}, "2 rank files, but --ep 1");
  fails({"--ep", "2", "--model", "deepseek_v3"}, "in: 8 experts, the model has 256");
  // Said to be two stages of 32 layers: Mixtral has no layer 32, and a rank four experts.
  fails({"--stage-layers", "32,32", "--model", "mixtral_8x7b"}, "in: 4 experts, the model has 8");
  fails({"--ep", "2", "--iterations", "20-10"}, "--iterations: \"20-10\" is no iteration or range");
  fails({"--ep", "2", "--iterations", "x"}, "--iterations: \"x\" is no iteration or range");
  fails({"--ep", "2", "--iterations", "11-12"}, "no line of a decoder layer in it");
  fails({"--ep", "0"}, "--ep: 0. Violated: 1 to");
  fails({"--ep", "2", "--gpus", "4"}, "--gpus: means nothing with megatron-jsonl");
  const ProcessResult over =
      verb({"import", "megatron-jsonl", "in", "--ep", "2", "-o", "in/rank1.jsonl"});
  EXPECT_EQ(over.exit_code, 2);
  EXPECT_TRUE(has(over.err, "is an input itself")) << over.err;
}

}  // namespace
}  // namespace switchyard
