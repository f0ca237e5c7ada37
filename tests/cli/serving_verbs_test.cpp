// SPDX-License-Identifier: Apache-2.0
// Serving through the command line: a published request trace in, a simulation of it, the summary,
// and two runs compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace fs = std::filesystem;

namespace {

using switchyard::read_file;
using switchyard::write_file;
using switchyard::test::fresh_folder;
using switchyard::test::ProcessResult;
using switchyard::test::run_switchyard;
using switchyard::test::source_path;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(ServingVerbs, AnImportedTraceKeepsItsHashIdsAndSharesPrefixes) {
  const fs::path f = fresh_folder("prefixes");
  const std::string trace =
      source_path("tests/fixtures/requests/mooncake_conversation_head.jsonl").string();
  const ProcessResult import = run_switchyard({"import", "requests-mooncake", trace, "-o", "r.csv"},
                                              {.folder = f, .environment = {}});
  ASSERT_EQ(import.exit_code, 0) << import.err;
  EXPECT_TRUE(read_file(f / "r.csv")
                  .starts_with("arrival_ns,prompt_tokens,output_tokens,hash_ids\n"
                               "0,6758,500,0 1 2 3 4 5 6 7 8 9 10 11 12 13\n"));
  const std::string scenarios = source_path("scenarios").string();
  write_file(f / "s.toml",
             "[model]\nfile = \"" + scenarios +
                 "/models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" + scenarios +
                 "/hardware/hgx_h100.toml\"\n[workload]\nkind = \"trace\"\n"
                 "routing = { synthetic = \"uniform\" }\narrivals = { file = \"r.csv\" }\n"
                 "batching = { prefix_caching = true, max_sequences = 1 }\n"
                 "[parallel]\nattention = \"tp\"\ntp = 8\ndp = 1\n");
  const ProcessResult a =
      run_switchyard({"sim", "s.toml", "--set", "workload.arrivals.requests=2", "-o", "a.h5"},
                     {.folder = f, .environment = {}});
  ASSERT_EQ(a.exit_code, 0) << a.err;
  EXPECT_TRUE(has(a.out, "all hold")) << a.out;
  EXPECT_TRUE(has(a.out, "prefix tokens not computed")) << a.out;
  const ProcessResult rows = run_switchyard({"inspect", "a.h5", "--requests", "--format", "csv"},
                                            {.folder = f, .environment = {}});
  ASSERT_EQ(rows.exit_code, 0) << rows.err;
  EXPECT_TRUE(has(rows.out, "from cache [tokens]")) << rows.out;
  // The second prompt begins with the first one's first block of 512 tokens.
  EXPECT_TRUE(has(rows.out, ",512\n")) << rows.out;
  const ProcessResult bad =
      run_switchyard({"sim", "s.toml", "--set", "workload.arrivals.hash_block=256", "-o", "b.h5"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_TRUE(has(bad.err, "r.csv:2: 14 hash_ids for a prompt of 6758 tokens")) << bad.err;
  EXPECT_FALSE(fs::exists(f / "b.h5"));
}

TEST(ServingVerbs, APublishedTraceIsImportedAndServed) {
  const fs::path f = fresh_folder("serving");
  const std::string azure = source_path("tests/fixtures/requests/azure2023_conv_head.csv").string();
  const ProcessResult import = run_switchyard({"import", "requests-azure", azure, "-o", "r.csv"},
                                              {.folder = f, .environment = {}});
  ASSERT_EQ(import.exit_code, 0) << import.err;
  EXPECT_TRUE(has(import.out, "requests")) << import.out;
  EXPECT_TRUE(
      read_file(f / "r.csv")
          .starts_with("arrival_ns,prompt_tokens,output_tokens\n0,374,44\n4314579000,396,109\n"));
  const std::string scenarios = source_path("scenarios").string();
  write_file(f / "s.toml",
             "[model]\nfile = \"" + scenarios +
                 "/models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" + scenarios +
                 "/hardware/hgx_h100.toml\"\n[workload]\nkind = \"trace\"\nrouting = { "
                 "synthetic = \"uniform\" }\narrivals = { file = \"r.csv\", requests = 3, "
                 "speedup = 1000.0 }\nslo = { ttft = \"1 s\" }\n");
  const ProcessResult a =
      run_switchyard({"sim", "s.toml", "-o", "a.h5"}, {.folder = f, .environment = {}});
  ASSERT_EQ(a.exit_code, 0) << a.err;
  for (const char* metric :
       {"requests finished", "TTFT p99", "ITL jitter", "goodput", "SLO attainment", "all hold"}) {
    EXPECT_TRUE(has(a.out, metric)) << metric << "\n" << a.out;
  }
  const ProcessResult b =
      run_switchyard({"sim", "s.toml", "--set", "workload.batching.token_budget=256", "-o", "b.h5"},
                     {.folder = f, .environment = {}});
  ASSERT_EQ(b.exit_code, 0) << b.err;
  const ProcessResult diff =
      run_switchyard({"diff", "a.h5", "b.h5"}, {.folder = f, .environment = {}});
  ASSERT_EQ(diff.exit_code, 0) << diff.err;
  EXPECT_TRUE(has(diff.out, "workload.batching.token_budget")) << diff.out;
  EXPECT_TRUE(has(diff.out, "queue wait p99")) << diff.out;
  const ProcessResult inspect =
      run_switchyard({"inspect", "a.h5"}, {.folder = f, .environment = {}});
  ASSERT_EQ(inspect.exit_code, 0) << inspect.err;
  EXPECT_TRUE(has(inspect.out, "requests per second")) << inspect.out;

  // Row by row: a page of them, and all as CSV.
  const auto verb = [&](std::vector<std::string> arguments) {
    return run_switchyard(arguments, {.folder = f, .environment = {}});
  };
  const ProcessResult page = verb({"inspect", "a.h5", "--requests", "--first", "1", "--rows", "1"});
  ASSERT_EQ(page.exit_code, 0) << page.err;
  EXPECT_TRUE(has(page.out, "requests 1 to 1 of 3; --first 2 goes on")) << page.out;
  EXPECT_TRUE(has(page.out, "finished")) << page.out;
  const ProcessResult all = verb({"inspect", "a.h5", "--requests", "--format", "csv"});
  const ProcessResult csv = verb({"export", "csv", "a.h5", "-o", "rows.csv"});
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  EXPECT_EQ(read_file(f / "rows.csv"), all.out);
  EXPECT_TRUE(
      all.out.starts_with("request,arrival [ms],queue wait [ms],TTFT [ms],TPOT [ms],"
                          "latency [ms],prompt [tokens],answer [tokens],outcome,"))
      << all.out;
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'), 4);
  EXPECT_TRUE(has(all.out, ",374,44,finished,0,0,0,yes\n")) << all.out;
  for (const char* what : {"steps", "events"}) {
    ASSERT_EQ(verb({"export", "csv", "a.h5", "--what", what, "-o", "more.csv"}).exit_code, 0);
    EXPECT_GT(read_file(f / "more.csv").size(), 40U) << what;
  }
  EXPECT_TRUE(has(verb({"inspect", "a.h5", "--requests", "--first", "3"}).err,
                  "--first: 3: the run has 3 requests"));
  EXPECT_TRUE(has(verb({"inspect", "a.h5", "--rows", "3"}).err, "say which requests"));
  EXPECT_TRUE(has(verb({"inspect", "a.h5", "--requests", "--profile"}).err, "cannot be joined"));
  EXPECT_TRUE(has(verb({"export", "csv", "a.h5", "--what", "step", "-o", "z.csv"}).err,
                  "unknown rows \"step\""));
  EXPECT_FALSE(fs::exists(f / "z.csv"));
}

TEST(ServingVerbs, TheIndexOfASweepHasTheServingMetrics) {
  const fs::path f = fresh_folder("serving_sweep");
  const std::string scenarios = source_path("scenarios").string();
  write_file(f / "s.toml",
             "[model]\nfile = \"" + scenarios +
                 "/models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" + scenarios +
                 "/hardware/hgx_h100.toml\"\n[workload]\nkind = \"closed\"\nrouting = { "
                 "synthetic = \"uniform\" }\narrivals = { users = 1, requests = 3 }\nlengths = { "
                 "prompt = 16, "
                 "output = 4 }\nslo = { ttft = \"1 s\" }\n[[sweep]]\nkey = "
                 "\"workload.arrivals.users\"\nvalues = [1, 2]\n");
  const ProcessResult r =
      run_switchyard({"sweep", "s.toml", "-o", "out"}, {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::string index = read_file(f / "out/index.csv");
  for (const char* column : {"TTFT p99 [ms]", "TPOT p50 [ms]", "SLO attainment", "goodput [1/s]"}) {
    EXPECT_TRUE(has(index.substr(0, index.find('\n')), column)) << index;
  }
}

TEST(ServingVerbs, ABadTraceIsRefusedAndNothingIsWritten) {
  const fs::path f = fresh_folder("serving_bad");
  write_file(f / "bad.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,1\n");
  const ProcessResult r = run_switchyard({"import", "requests-azure", "bad.csv", "-o", "r.csv"},
                                         {.folder = f, .environment = {}});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_TRUE(has(r.err, "bad.csv:1: there is no column \"GeneratedTokens\"")) << r.err;
  EXPECT_FALSE(fs::exists(f / "r.csv"));
}

TEST(ServingVerbs, PrefillAndDecodeOfDifferentShapeThroughEveryVerb) {
  const fs::path f = fresh_folder("prefill_layout");
  const std::string scenarios = source_path("scenarios").string();
  const auto scenario = [&](const std::string& prefill) {
    return "[model]\nfile = \"" + scenarios + "/models/mixtral_8x7b.json\"\n[hardware]\nfile = \"" +
           scenarios + "/hardware/hgx_h100.toml\"\n[parallel]\nep = 4\n[parallel.prefill]\n" +
           prefill +
           "[workload]\nkind = \"open\"\nrouting = { synthetic = \"uniform\" }\n"
           "arrivals = { per_second = 50.0, requests = 6 }\nlengths = { prompt = 256, output = 4 "
           "}\n"
           "front_end = { replicas = 2, prefill_replicas = 1 }\n";
  };
  const auto verb = [&](std::vector<std::string> arguments) {
    return run_switchyard(std::move(arguments), {.folder = f, .environment = {}});
  };
  write_file(f / "s.toml", scenario("gpus = 4\nattention = \"tp\"\ntp = 4\nep = 2\n"));
  const ProcessResult explain = verb({"explain", "s.toml"});
  ASSERT_EQ(explain.exit_code, 0) << explain.err;
  EXPECT_TRUE(has(explain.out, "parallel.prefill.tp")) << explain.out;
  EXPECT_TRUE(has(explain.out, "s.toml:10:")) << explain.out;  // tp = 4
  const ProcessResult sim = verb({"sim", "s.toml", "-o", "r.h5"});
  ASSERT_EQ(sim.exit_code, 0) << sim.err;
  EXPECT_TRUE(has(sim.out, "all hold")) << sim.out;
  EXPECT_TRUE(has(sim.out, "experts of prefill replicas: cut into columns over 2")) << sim.out;
  for (const char* v : {"inspect", "diagnose", "monitor"}) {
    const ProcessResult r = verb({v, "r.h5"});
    EXPECT_EQ(r.exit_code, 0) << v << ": " << r.err;
  }
  // The decode replicas' places: two experts on each of four ranks, which are GPUs 4 to 7.
  ASSERT_EQ(verb({"export", "placement", "r.h5", "-o", "p.csv"}).exit_code, 0);
  const std::string places = read_file(f / "p.csv");
  EXPECT_TRUE(
      places.starts_with("layer,expert,rank\n0,0,0\n0,1,0\n0,2,1\n0,3,1\n0,4,2\n0,5,2\n"
                         "0,6,3\n0,7,3\n1,0,0\n"))
      << places;
  write_file(f / "bad.toml", scenario("gpus = 4\nattention = \"tp\"\ntp = 3\n"));
  const ProcessResult bad = verb({"sim", "bad.toml", "-o", "b.h5"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_TRUE(has(bad.err, "bad.toml:10:")) << bad.err;
  EXPECT_FALSE(fs::exists(f / "b.h5"));
}
