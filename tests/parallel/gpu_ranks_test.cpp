// SPDX-License-Identifier: Apache-2.0
// --device cuda under mpirun: the same bytes for 1, 2 and 4 ranks, rows through host memory where
// there is no NCCL. The CUDA library is the one over the host executor, found by its name.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace {

using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// A folder with prompts and the library.
fs::path prepared(const std::string& name) {
  const fs::path folder = fresh_folder(name);
  switchyard::write_file(folder / "p.txt", "The router\nA\nfor (i\n");
  fs::create_directories(folder / "lib");
  fs::create_symlink(EXECUTOR_LIBRARY, folder / "lib" / "libswitchyard_cuda.so");
  return folder;
}

/// Runs in the folder, with its libraries before those of the machine.
ProcessOptions in(const fs::path& folder) {
  const char* const old = std::getenv("LD_LIBRARY_PATH");
  return {.folder = folder,
          .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                          {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                          {"LD_LIBRARY_PATH", (folder / "lib").string() +
                                                  (old == nullptr ? "" : ":" + std::string(old))}}};
}

/// `switchyard` with `--device cuda` on so many ranks; 0: without mpirun.
ProcessResult run(const fs::path& folder, int ranks, const Words& arguments) {
  Words words{SWITCHYARD_MPIRUN, "--oversubscribe", "-n", std::to_string(ranks)};
  if (ranks == 0) {
    words.clear();
  }
  words.emplace_back(SWITCHYARD_BINARY);
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (const char* word : {"--device", "cuda", "--model"}) {
    words.emplace_back(word);
  }
  words.push_back(source_path("scenarios/checkpoints/sy-16x2").string());
  return run_process(words, in(folder));
}

ProcessResult trace(const fs::path& folder, int ranks, const std::string& output,
                    const Words& more) {
  Words words{"trace", "--prompts", "p.txt", "--max-new", "2", "--batch", "3", "-o", output};
  words.insert(words.end(), more.begin(), more.end());
  return run(folder, ranks, words);
}

TEST(GpuRanks, WriteTheTraceOfOneRank) {
  const fs::path f = prepared("gpu_ranks");
  const Words tight{"--policy", source_path("scenarios/policies/capacity_1.0.toml").string()};
  const auto alone = trace(f, 0, "0.h5", tight);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(alone.out.find("rows go by"), std::string::npos);
  const std::string bytes = switchyard::read_file(f / "0.h5");
  EXPECT_NE(bytes.find("cuda host executor"), std::string::npos) << "the backend under test ran";
  for (const auto& [ranks, tp] : std::vector<std::pair<int, std::string>>{{2, "1"}, {4, "2"}}) {
    const std::string name = std::to_string(ranks) + ".h5";
    Words options = tight;
    options.insert(options.end(), {"--tp", tp});
    const auto r = trace(f, ranks, name, options);
    ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
    EXPECT_TRUE(switchyard::read_file(f / name) == bytes) << ranks << " ranks";
    EXPECT_NE(r.out.find("MPI, through host memory"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("NCCL is not used: rank 0: libnccl_of_the_executor.so.2 is not on this "
                         "machine"),
              std::string::npos)
        << r.out;
  }
}

TEST(GpuRanks, GenerateTheSameText) {
  const fs::path f = prepared("gpu_ranks_text");
  const Words generate{"generate", "--prompt", "The ", "--max-new", "6"};
  const auto alone = run(f, 0, generate);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto r = run(f, 2, generate);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, alone.out);
  EXPECT_GT(r.out.size(), 4U);
}

TEST(GpuRanks, DoctorSaysWhatCarriesTheirRows) {
  const fs::path f = prepared("gpu_ranks_doctor");
  fs::create_symlink(EXECUTOR_LIBRARY, f / "lib" / "libnccl.so.2");  // any library of that name
  const auto r = run_process({SWITCHYARD_BINARY, "doctor", "--format", "csv"}, in(f));
  EXPECT_NE(r.out.find("NCCL,ok,libnccl.so.2 is there: ranks on GPUs of their own"),
            std::string::npos)
      << r.out;
}

TEST(GpuRanks, RefuseByNameWhatTheyCannot) {
  const fs::path f = prepared("gpu_ranks_refuse");
  const auto bf16 = trace(f, 2, "t.h5", {"--dtype", "bf16"});
  EXPECT_EQ(bf16.exit_code, 2) << bf16.err;
  EXPECT_NE(bf16.err.find("--dtype: unsupported: bf16 on several ranks"), std::string::npos)
      << bf16.err;
  const auto health = trace(f, 2, "t.h5", {"--health", "1"});
  EXPECT_EQ(health.exit_code, 2) << health.err;
  EXPECT_NE(health.err.find("--health: unsupported with --device cuda"), std::string::npos)
      << health.err;
  const auto parts = trace(f, 0, "t.h5", {"--tp", "2"});
  EXPECT_EQ(parts.exit_code, 2) << parts.err;
  EXPECT_NE(parts.err.find("--tp: tp = 2 on 1 rank"), std::string::npos) << parts.err;
  EXPECT_FALSE(fs::exists(f / "t.h5"));
}

}  // namespace
