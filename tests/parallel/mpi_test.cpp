// SPDX-License-Identifier: Apache-2.0
// The command line under mpirun: the same bytes for 1, 2 and 4 ranks; one line and exit code 2 when
// a rank disagrees, is stuck, or all make the same mistake; the end of the job when one dies.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace {

using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers
namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Root may run mpirun in a container; more ranks than cores are fine.
ProcessOptions in(const fs::path& folder) {
  return {.folder = folder,
          .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                          {"OMPI_MCA_rmaps_base_oversubscribe", "1"}}};
}

Words mpirun(int ranks, const Words& arguments) {
  return Words{SWITCHYARD_MPIRUN, "--oversubscribe", "-n", std::to_string(ranks),
               SWITCHYARD_BINARY} +
         arguments;
}

Words trace(const std::string& output, const Words& more = {}) {
  return Words{"trace",     "--model", source_path("scenarios/checkpoints/sy-16x2").string(),
               "--prompts", "p.txt",   "--threads",
               "1",         "-o",      output} +
         more;
}

void write_prompts(const fs::path& folder) {
  switchyard::write_file(folder / "p.txt",
                         "The router sends\nEach expert\nfor (int i = 0;\nQ: 12 + 7 =\nA\n");
}

/// Lines of the program among what mpirun prints.
Words our_lines(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("switchyard: ")) {
      lines.push_back(line);
    }
  }
  return lines;
}

TEST(Mpi, WritesTheSameTraceForAnyRanks) {
  const fs::path f = fresh_folder("same_trace");
  write_prompts(f);
  const Words tight{
      "--format",  "csv", "--policy", source_path("scenarios/policies/capacity_1.0.toml").string(),
      "--max-new", "3",   "--batch",  "4"};
  const auto alone = run_switchyard(trace("0.h5", tight), in(f));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(alone.out.find("dispatch"), std::string::npos);
  const std::string bytes = switchyard::read_file(f / "0.h5");
  for (const auto& [ranks, tp] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {4, 2}}) {
    const std::string name = std::to_string(ranks) + ".h5";
    const auto r =
        run_process(mpirun(ranks, trace(name, tight + Words{"--tp", std::to_string(tp)})), in(f));
    ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
    EXPECT_TRUE(switchyard::read_file(f / name) == bytes) << ranks << " ranks";
    // The summary is printed once, the same but for the exchange.
    std::istringstream lines(alone.out);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_NE(r.out.find(line + "\n"), std::string::npos) << line << r.out;
    }
    EXPECT_EQ(r.out.find("assignments,"), r.out.rfind("assignments,")) << r.out;
    EXPECT_EQ(r.out.find("dispatch [B]") != std::string::npos, ranks > 1) << r.out;
  }
  EXPECT_EQ(listing(f), (Words{"0.h5", "1.h5", "2.h5", "4.h5", "p.txt"}));
}

// What a policy remembers from step to step is the same on every rank.
TEST(Mpi, APolicyWithAStateGivesTheSameTraceOnTwoRanks) {
  const fs::path f = fresh_folder("state");
  write_prompts(f);
  switchyard::write_file(f / "window.toml",
                         "[window]\nbeta = 0.1\ngamma = 0.8\n[noise]\nmode = \"adaptive\"\n");
  const Words steps{"--max-new", "4", "--batch", "3", "--chunk", "2", "--format", "csv"};
  ASSERT_EQ(run_switchyard(trace("plain.h5", steps), in(f)).exit_code, 0);
  const Words with = steps + Words{"--policy", "window.toml"};
  const auto alone = run_switchyard(trace("1.h5", with), in(f));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto two = run_process(mpirun(2, trace("2.h5", with)), in(f));
  ASSERT_EQ(two.exit_code, 0) << two.out << two.err;
  EXPECT_TRUE(switchyard::read_file(f / "2.h5") == switchyard::read_file(f / "1.h5"));
  EXPECT_FALSE(switchyard::read_file(f / "1.h5") == switchyard::read_file(f / "plain.h5"));
}

TEST(Mpi, OneRankMayDoWhatAProcessAloneMay) {
  const fs::path f = fresh_folder("one_rank");
  write_prompts(f);
  const std::string model = source_path("scenarios/checkpoints/sy-16x2").string();
  const auto health = run_process(
      mpirun(1, trace("t.h5", {"--health", "1", "--max-new", "1", "--format", "csv"})), in(f));
  EXPECT_EQ(health.exit_code, 0) << health.err;
  EXPECT_NE(health.out.find("health: checks of all weights"), std::string::npos) << health.out;
  const Words score{"generate", "--model", model, "--perplexity", "p.txt", "--threads", "1"};
  const auto scored = run_process(mpirun(1, score), in(f));
  EXPECT_EQ(scored.exit_code, 0) << scored.err;
  EXPECT_EQ(scored.out, run_switchyard(score, in(f)).out);
  EXPECT_EQ(run_process(mpirun(2, score), in(f)).exit_code, 2);
}

TEST(Mpi, GeneratesTheSameText) {
  const fs::path f = fresh_folder("same_text");
  const Words generate{
      "generate", "--model",   source_path("scenarios/checkpoints/sy-16x2").string(),
      "--prompt", "The ",      "--max-new",
      "12",       "--threads", "1"};
  const auto alone = run_switchyard(generate, in(f));
  const auto r = run_process(mpirun(3, generate), in(f));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, alone.out);
  EXPECT_GT(r.out.size(), 10U);
}

/// Two ranks with different options.
ProcessResult run_pair(const fs::path& folder, const Words& first, const Words& second) {
  return run_process(mpirun(1, first) + Words{":", "-n", "1", SWITCHYARD_BINARY} + second,
                     in(folder));
}

TEST(Mpi, EndsWithOneLineWhenARankDisagrees) {
  const fs::path f = fresh_folder("disagree");
  write_prompts(f);
  const auto seed = run_pair(f, trace("t.h5"), trace("t.h5", {"--seed", "2"}));
  EXPECT_EQ(seed.exit_code, 2) << seed.out << seed.err;
  EXPECT_EQ(our_lines(seed.err),
            Words{"switchyard: rank 1: --seed differs from rank 0's: 2 and 1; every rank needs the "
                  "same program, files and options"});

  // A copy of the checkpoint with one bit of rank 1's last expert turned.
  const fs::path model = source_path("scenarios/checkpoints/sy-16x2");
  fs::create_directories(f / "other");
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"}) {
    fs::copy_file(model / file, f / "other" / file);
  }
  std::string bytes = switchyard::read_file(model / "model.safetensors");
  const std::string name = "\"model.layers.3.block_sparse_moe.experts.15.w3.weight\"";
  std::size_t begin = bytes.find("data_offsets\":[", bytes.find(name));
  ASSERT_NE(begin, std::string::npos);
  std::uint64_t header = 0;
  std::copy_n(bytes.data(), 8, reinterpret_cast<char*>(&header));
  const std::size_t at = 8 + header + std::stoull(bytes.substr(begin + 15)) + 100;
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  switchyard::write_file(f / "other/model.safetensors", bytes);
  Words other = trace("t.h5");
  other[2] = "other";
  const auto weights = run_pair(f, trace("t.h5"), other);
  EXPECT_EQ(weights.exit_code, 2) << weights.out << weights.err;
  EXPECT_EQ(our_lines(weights.err),
            Words{"switchyard: rank 1: the checkpoint's weights of experts 8 to 15 differ from "
                  "rank 0's; every rank needs the same checkpoint"});
  EXPECT_FALSE(fs::exists(f / "t.h5"));
}

TEST(Mpi, EndsWithOneLineWhenRanksCannotStart) {
  const fs::path f = fresh_folder("cannot_start");
  write_prompts(f);
  // All of them, before and after MPI starts; and one alone.
  Words missing = trace("t.h5");
  missing[2] = "nowhere";
  const auto all = run_process(mpirun(3, missing), in(f));
  EXPECT_EQ(all.exit_code, 2);
  ASSERT_EQ(our_lines(all.err).size(), 1U) << all.err;
  EXPECT_NE(all.err.find("switchyard: nowhere: no such checkpoint folder"), std::string::npos);
  const auto option = run_process(mpirun(3, {"trace", "--bogus"}), in(f));
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_EQ(our_lines(option.err).size(), 1U) << option.err;
  const auto parts = run_process(mpirun(3, trace("t.h5", {"--tp", "2"})), in(f));
  EXPECT_EQ(parts.exit_code, 2);
  ASSERT_EQ(our_lines(parts.err).size(), 1U) << parts.err;
  EXPECT_NE(parts.err.find("--tp: tp = 2 on 3 ranks. Violated: tp >= 1 divides the ranks"),
            std::string::npos);
  const auto one = run_pair(f, trace("t.h5"), missing);
  EXPECT_EQ(one.exit_code, 2);
  ASSERT_EQ(our_lines(one.err).size(), 1U) << one.err;
  EXPECT_EQ(listing(f), Words{"p.txt"});
  // Options of ranks mean nothing to a process alone.
  EXPECT_EQ(run_switchyard(trace("t.h5", {"--tp", "2"}), in(f)).exit_code, 2);
  EXPECT_EQ(run_switchyard(trace("t.h5", {"--rank-timeout", "3 s"}), in(f)).exit_code, 2);
}

/// Process ids of ranks that run in `folder`, by rank.
std::vector<pid_t> ranks_in(const fs::path& folder) {
  std::vector<pid_t> found(16, 0);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::error_code error;
    if (fs::read_symlink(entry.path() / "cwd", error) != folder) {
      continue;
    }
    std::ifstream in(entry.path() / "environ", std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::string key = std::string(1, '\0') + "OMPI_COMM_WORLD_RANK=";
    const std::size_t at = text.find(key);
    if (at != std::string::npos) {
      found.at(std::stoul(text.substr(at + key.size()))) = std::stoi(pid);
    }
  }
  return found;
}

/// KiB of the checkpoint's weights that a process has in its memory.
std::uint64_t resident_weights(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/smaps");
  bool inside = false;
  std::uint64_t sum = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.find('-') < 17 && line.find(' ') > line.find('-')) {  // "begin-end rights … path"
      inside = line.ends_with("/model.safetensors");
    } else if (inside && line.starts_with("Rss:")) {
      sum += std::stoull(line.substr(4));
    }
  }
  return sum;
}

/// Starts a long trace on three ranks, sends `signal` to one once the trace is being written, and
/// gives what mpirun says, with the seconds from the signal to the end.
std::pair<ProcessResult, double> disturb(const fs::path& folder, int rank, int signal,
                                         const Words& more) {
  write_prompts(folder);
  Clock::time_point sent{};
  std::atomic<bool> over = false;
  std::thread killer([&] {
    while (!over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto names = listing(folder);
      const bool writing = std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return name.ends_with(".tmp");
      });
      const auto pids = writing ? ranks_in(folder) : std::vector<pid_t>(16, 0);
      if (pids[static_cast<std::size_t>(rank)] > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // into the steps
        const std::uint64_t size =
            fs::file_size(source_path("scenarios/checkpoints/sy-16x2/model.safetensors")) / 1024;
        for (std::size_t r = 0; r < 3; ++r) {  // a fifth is common to all, a third of the experts
          const std::uint64_t resident = resident_weights(pids[r]);
          EXPECT_GT(resident, 0U) << r;
          EXPECT_LT(resident, size * 3 / 4) << r;
        }
        sent = Clock::now();
        kill(pids[static_cast<std::size_t>(rank)], signal);
        return;
      }
    }
  });
  const auto result = run_process(
      mpirun(3, trace("t.h5", Words{"--max-new", "1900", "--batch", "5"} + more)), in(folder));
  over = true;
  killer.join();
  EXPECT_NE(sent, Clock::time_point{}) << "ended before it was disturbed: " << result.err;
  return {result, std::chrono::duration<double>(Clock::now() - sent).count()};
}

TEST(Mpi, EndsWithinSecondsWhenARankDies) {
  const fs::path f = fs::canonical(fresh_folder("killed"));
  const auto [result, seconds] = disturb(f, 2, SIGKILL, {});
  // mpirun's own code for a rank that a signal killed, and its own paragraph that says so and names
  // the rank. It ends the others, which cannot know why and may say at most that they lost one.
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.out;
  EXPECT_LT(seconds, 20);
  EXPECT_EQ(listing(f), Words{"p.txt"}) << "no unfinished output stays";
  EXPECT_LE(our_lines(result.err).size(), 1U) << result.err;
  EXPECT_NE(result.err.find("exited on signal 9"), std::string::npos) << result.err;
  EXPECT_EQ(ranks_in(f), std::vector<pid_t>(16, 0));
}

TEST(Mpi, EndsWithOneLineWhenARankIsStuck) {
  const fs::path f = fs::canonical(fresh_folder("stuck"));
  const auto [result, seconds] = disturb(f, 1, SIGSTOP, {"--rank-timeout", "4 s"});
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_GT(seconds, 3.9);
  EXPECT_LT(seconds, 30);
  ASSERT_EQ(our_lines(result.err).size(), 1U) << result.err;
  EXPECT_NE(result.err.find("switchyard: rank 0: no answer from rank "), std::string::npos)
      << result.err;
  EXPECT_EQ(listing(f), Words{"p.txt"});
  EXPECT_EQ(ranks_in(f), std::vector<pid_t>(16, 0));
}

}  // namespace
