// SPDX-License-Identifier: Apache-2.0
// --device cuda: every way in which the library or the GPU can be missing is one line.
#include "experiments/cli/device.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/error.hpp"

namespace switchyard::cli {
namespace {

std::filesystem::path library(const char* name) {
  return std::filesystem::path(CUDA_DOUBLES) / (std::string(name) + ".so");
}

std::string refusal(const std::filesystem::path& path) {
  try {
    require_cuda(path);
  } catch (const CapabilityError& e) {
    const std::string text = e.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("--device cuda: ")) << text;
    return text;
  }
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
  expect_contains(refusal(library("cuda_double_other")), "has interface 77, this program 1");
}

TEST(CudaDevice, SaysThatThereIsNoGpuOrNoDriver) {
  expect_contains(refusal(library("cuda_double_none")), "this machine has no CUDA GPU");
  expect_contains(refusal(library("cuda_double_broken")), "CUDA does not start: driver too old;");
}

TEST(CudaDevice, SaysThatTheGpuIsTooOld) {
  expect_contains(refusal(library("cuda_double_old")),
                  "Double 7 has compute capability 7.0, 8.0 is needed");
}

TEST(CudaDevice, FindsAGpuAndIsHonestAboutTheBackend) {
  const CudaDevice device = probe_cuda(library("cuda_double_h200"));
  EXPECT_EQ(device.library_version, "double");
  EXPECT_EQ(device.count, 8);
  EXPECT_EQ(device.name, "Double 9");
  EXPECT_EQ(device.major, 9);
  EXPECT_EQ(device.minor, 0);
  EXPECT_EQ(device.memory_bytes, 1000U);
  expect_contains(refusal(library("cuda_double_h200")),
                  "unsupported: the CUDA backend does not run whole models yet (found 8 GPU, first "
                  "Double 9, compute capability 9.0)");
}

TEST(CudaDevice, IsLookedForBesideTheProgram) {
  EXPECT_EQ(cuda_library().filename(), "libswitchyard_cuda.so");
  EXPECT_TRUE(std::filesystem::exists(cuda_library().parent_path() / "cuda_device_test"));
}

}  // namespace
}  // namespace switchyard::cli
