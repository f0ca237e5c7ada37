// SPDX-License-Identifier: Apache-2.0
// --device cuda: every way in which the library or the GPU can be missing is one line.
#include "experiments/cli/device.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/nn/session.hpp"

namespace switchyard::cli {
namespace {

std::filesystem::path library(const char* name) {
  return std::filesystem::path(CUDA_DOUBLES) / (std::string(name) + ".so");
}

std::string refusal(const std::filesystem::path& path) {
  try {
    (void)open_cuda(false, path);
  } catch (const CapabilityError& e) {
    const std::string text = e.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("--device cuda: ")) << text;
    return text;
  }
  ADD_FAILURE() << "no CapabilityError";
  return {};
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(CudaDevice, SaysThatTheLibraryIsMissing) {
  expect_contains(refusal(library("no_such_library")), "libswitchyard_cuda.so is not here");
}

TEST(CudaDevice, SaysThatTheLibraryDoesNotLoad) {
  std::ofstream("broken.so") << "no library\n";
  expect_contains(refusal(std::filesystem::absolute("broken.so")), "does not load");
}

TEST(CudaDevice, SaysThatTheLibraryIsOfAnotherBuild) {
  expect_contains(refusal(library("cuda_double_bare")), "has no entry switchyard_cuda_abi");
  expect_contains(refusal(library("cuda_double_other")), "has interface 77, this program 4");
}

TEST(CudaDevice, SaysThatThereIsNoGpuOrNoDriver) {
  expect_contains(refusal(library("cuda_double_none")), "this machine has no CUDA GPU");
  expect_contains(refusal(library("cuda_double_broken")), "CUDA does not start: driver too old;");
}

TEST(CudaDevice, SaysThatTheGpuIsTooOld) {
  expect_contains(refusal(library("cuda_double_old")),
                  "Double 7 has compute capability 7.0, 8.0 is needed");
}

TEST(CudaDevice, FindsAGpuButNoLibraryOfItsVersion) {
  const CudaDevice device = probe_cuda(library("cuda_double_h200"));
  EXPECT_EQ(device.library_version, "double");
  EXPECT_EQ(device.count, 8);
  EXPECT_EQ(device.name, "Double 9");
  EXPECT_EQ(device.major, 9);
  EXPECT_EQ(device.minor, 0);
  EXPECT_EQ(device.memory_bytes, 1000U);
  expect_contains(refusal(library("cuda_double_h200")), "has version double, this program ");
  expect_contains(refusal(library("cuda_double_closed")),
                  "Double 9 does not open: it is a double of number 0;");
}

TEST(CudaDevice, GivesEachRankOfAMachineItsOwnGpu) {
  const auto number = [](unsigned local_rank) {
    try {
      (void)open_cuda(false, library("cuda_double_closed"), local_rank);
    } catch (const CapabilityError& e) {
      const std::string text = e.what();
      return text.substr(text.find("number "), 8);
    }
    return std::string();
  };
  EXPECT_EQ(number(3), "number 3");
  EXPECT_EQ(number(4), "number 0") << "more ranks than GPUs: they share";
}

#ifdef HAS_EXECUTOR_LIBRARY
TEST(CudaDevice, RunsAModelThroughTheLibrary) {
  const std::filesystem::path model =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/family_tiny/qwen3_moe";
  const Engine engine = Engine::load_on(model, open_cuda(false, library("cuda_double_executor")));
  EXPECT_EQ(engine.backend().name(), "cuda host executor");
  Session session(engine, {});
  const std::uint32_t s = session.add_sequence();
  const std::vector<std::uint32_t> ids{1, 2, 3};
  const SequenceTokens work{s, ids};
  const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
  EXPECT_EQ(r.logits.size(), engine.config().vocab_size);
  EXPECT_EQ(r.nan_logits, 0U);
}
// An error thrown in the library is caught by the program as what it is.
TEST(CudaDevice, ErrorsCrossTheBorder) {
  const auto backend = open_cuda(false, library("cuda_double_executor"));
  EXPECT_THROW((void)backend->allocate(std::size_t{1} << 40), InputError);
}
#endif

TEST(CudaDevice, IsLookedForBesideTheProgram) {
  EXPECT_EQ(cuda_library().filename(), "libswitchyard_cuda.so");
  EXPECT_TRUE(std::filesystem::exists(cuda_library().parent_path() / "cuda_device_test"));
}

}  // namespace
}  // namespace switchyard::cli
