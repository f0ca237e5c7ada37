// SPDX-License-Identifier: Apache-2.0
// `import deepep`: the text of DeepEP's low-latency test as rows that `fit --measured` reads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/import/deepep.hpp"
#include "tests/cli/process.hpp"

namespace fs = std::filesystem;

namespace switchyard {
namespace {

using importers::DeepEpShape;
using importers::DeepEpTimes;
using importers::read_deepep;

/// One rank's line of a run, as the script computes it.
std::string line(int rank, double choices, double hidden, double dispatch_us, double combine_us) {
  const double out = choices * (hidden + hidden / 128 * 4 + 16), back = choices * hidden * 2;
  return fmt::format(
      "[rank {}] Dispatch bandwidth: {:.2f} GB/s, avg_t={:.2f} us | Combine bandwidth: {:.2f} "
      "GB/s, "
      "avg_t={:.2f} us\n",
      rank, out / 1e3 / dispatch_us, dispatch_us, back / 1e3 / combine_us, combine_us);
}

/// Rank r has r choices masked and takes r / 8 us longer; the ranks write in any order.
std::string run(std::uint64_t tokens, double hidden, double dispatch_us, double combine_us) {
  std::string text = "Allocating buffer size: 2116.290944 MB ...\n";
  for (const int rank : {3, 0, 1, 7, 2, 4, 6, 5}) {
    text += fmt::format(
        "[rank {}] Dispatch + combine bandwidth: 1.00 GB/s, avg_t=1.00 us, "
        "min_t=1.00 us, max_t=1.00 us\n",
        rank);
    text += line(rank, static_cast<double>(tokens * 8) - rank, hidden, dispatch_us + rank / 8.0,
                 combine_us);
    text += fmt::format(
        "[rank {}] Dispatch send/recv time: 1.00 + 2.00 us | Combine send/recv "
        "time: 1.00 + 2.00 us\n",
        rank);
  }
  return text;
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text, const DeepEpShape& shape) {
  try {
    (void)read_deepep(text, "t.log", "t.log", shape);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

const DeepEpShape kTwo{{16, 128}, 7168, 8, 288};

TEST(ImportDeepEp, TimesAreTheMeanOfTheRanksAndRunsStandInTheirOrder) {
  const DeepEpTimes t =
      read_deepep(run(16, 7168, 30, 40) + run(128, 7168, 77, 114), "t.log", "t.log", kTwo);
  ASSERT_EQ(t.runs.size(), 2U);
  EXPECT_EQ(t.runs[1].tokens, 128U);
  // Ranks 0 … 7 have 77, 77.125 (printed 77.12 or 77.13), … 77.875 us: 77.4375 in the mean.
  EXPECT_NEAR(t.runs[1].dispatch_us, 77.4375, 0.005);
  EXPECT_DOUBLE_EQ(t.runs[1].combine_us, 114);
  EXPECT_NEAR(t.runs[0].dispatch_us, 30.4375, 0.005);
  EXPECT_NEAR(t.runs[0].spread, 30.875 / 30.4375, 2e-4);
  // 1,024 choices, 3.5 masked in the mean, of 14,336 B back.
  EXPECT_NEAR(t.runs[1].combine_GBps, (1024 - 3.5) * 14336 / 114e3, 0.01);
  EXPECT_NE(t.csv.find("\nnodes,hidden,tokens,topk,experts,dispatch_us,dispatch_GBps,combine_us,"
                       "combine_GBps\n1,7168,16,8,288,"),
            std::string::npos)
      << t.csv;
}

TEST(ImportDeepEp, FitReadsWhatTheVerbWrites) {
  const fs::path f = test::fresh_folder("import_deepep");
  std::string log;
  for (const int tokens : {8, 16, 32, 64, 128, 256}) {
    log += run(static_cast<std::uint64_t>(tokens), 7168, 20 + tokens * 0.5, 30 + tokens * 0.7);
  }
  write_file(f / "t.log", log);
  const auto import = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"import", "deepep", "t.log"};
    all.insert(all.end(), more.begin(), more.end());
    return test::run_switchyard(all, {.folder = f, .environment = {}});
  };
  const std::vector<std::string> shape{
      "--tokens", "8,16,32,64,128,256", "--hidden", "7168", "--top-k", "8", "--experts", "288"};
  std::vector<std::string> good = shape;
  good.insert(good.end(), {"-o", "lab_deepep_ll_us.csv"});
  const test::ProcessResult r = import(good);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("84.44 us"), std::string::npos) << r.out;
  const test::ProcessResult fit =
      test::run_switchyard({"fit", "--measured", ".", "--device", "lab", "--hardware", "hgx_h800",
                            "--source", "a test", "--licence", "CC0-1.0", "-o", "lab.toml"},
                           {.folder = f, .environment = {}});
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  const std::string table = read_file(f / "lab.toml");
  EXPECT_NE(table.find("op = \"dispatch\""), std::string::npos) << table;
  EXPECT_NE(table.find("shape = [7168, 8, 288, 8, 0]"), std::string::npos) << table;

  std::vector<std::string> misnamed = shape;
  misnamed.insert(misnamed.end(), {"-o", "times.csv"});
  const test::ProcessResult name = import(misnamed);
  EXPECT_EQ(name.exit_code, 2);
  EXPECT_NE(name.err.find("-o: \"times.csv\" is no <device>_deepep_ll_us.csv"), std::string::npos)
      << name.err;
  EXPECT_FALSE(fs::exists(f / "times.csv"));
  const test::ProcessResult bare = import({"-o", "lab2_deepep_ll_us.csv"});
  EXPECT_EQ(bare.exit_code, 2);
  EXPECT_NE(bare.err.find("--hidden"), std::string::npos) << bare.err;
  std::vector<std::string> foreign = good;
  foreign.insert(foreign.end(), {"--buffer", "in-place"});
  EXPECT_EQ(import(foreign).err, "switchyard: --buffer: means nothing with deepep\n");
}

TEST(ImportDeepEp, BytesThatTheShapeDoesNotGiveAreRefused) {
  const std::string text = run(16, 7168, 30, 40);
  const auto shape = [](std::uint64_t tokens, std::uint64_t hidden, std::uint64_t k) {
    return DeepEpShape{{tokens}, hidden, k, 288};
  };
  EXPECT_EQ(refusal(text, shape(16, 7168, 8)), "accepted");
  EXPECT_EQ(refusal(text, shape(18, 7168, 8)).substr(0, 34), "t.log:6: dispatch of 948300 B, but")
      << refusal(text, shape(18, 7168, 8));
  for (const DeepEpShape& wrong : {shape(14, 7168, 8), shape(16, 4096, 8), shape(16, 7168, 6)}) {
    EXPECT_NE(refusal(text, wrong).find("name the run's --tokens, --hidden and --top-k"),
              std::string::npos)
        << refusal(text, wrong);
  }
  // One more choice than the shape has, on one rank.
  const std::string more = with(text, line(0, 128, 7168, 30, 40), line(0, 129, 7168, 30, 40));
  EXPECT_NE(refusal(more, shape(16, 7168, 8)).find("the shape has 128 choices of 7408 B"),
            std::string::npos);
}

TEST(ImportDeepEp, TextsThatAreNoneAreRefusedWithTheirLine) {
  const DeepEpShape one{{16}, 7168, 8, 288};
  const std::string text = run(16, 7168, 30, 40);
  EXPECT_EQ(refusal("nothing here\n", one).substr(0, 21), "t.log: no line \"[rank");
  EXPECT_NE(refusal(text, {{16, 32}, 7168, 8, 288}).find("2 numbers, but t.log has 1 runs"),
            std::string::npos);
  EXPECT_NE(refusal(with(text, "[rank 5] Dispatch bandwidth", "[rank 5] Dispatch width"), one)
                .find("run 1: rank 5 of 8 has no line"),
            std::string::npos);
  EXPECT_NE(refusal(with(text, "[rank 0] Dispatch bandwidth", "[rank 8] Dispatch bandwidth"), one)
                .find("t.log:6: unsupported: rank 8"),
            std::string::npos);
  EXPECT_NE(refusal(with(text, ", avg_t=30.38 us |", " |"), one)
                .find("t.log:3: expected \" GB/s, avg_t=\""),
            std::string::npos);
  EXPECT_NE(refusal(with(text, "avg_t=30.38 us | C", "avg_t=nan us | C"), one)
                .find("the time of dispatch is no number above 0"),
            std::string::npos);
  EXPECT_NE(refusal(with(text, "avg_t=30.38 us | C", "avg_t=-1 us | C"), one)
                .find("the time of dispatch is no number above 0"),
            std::string::npos);
  for (const DeepEpShape& wrong : {DeepEpShape{{16}, 7000, 8, 288}, DeepEpShape{{16}, 7168, 8, 100},
                                   DeepEpShape{{16}, 7168, 0, 288}, DeepEpShape{{0}, 7168, 8, 288},
                                   DeepEpShape{{}, 7168, 8, 288}}) {
    EXPECT_NE(refusal(text, wrong).find("Violated: "), std::string::npos);
  }
}

}  // namespace
}  // namespace switchyard
