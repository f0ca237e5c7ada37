// SPDX-License-Identifier: Apache-2.0
// main() of the test binaries whose cases run each in a process of its own (switchyard_test
// PER_CASE). CTest runs such cases side by side: each gets a folder of its own to write in, so that
// two cases that use the same file name do not meet. The folder is kept where a case fails.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  char folder[] = "case.XXXXXX";
  if (::mkdtemp(folder) == nullptr || ::chdir(folder) != 0) {
    std::perror("a folder for this test case");
    return 1;
  }
  const std::filesystem::path own = std::filesystem::current_path();
  const int failed = RUN_ALL_TESTS();
  std::error_code ignored;
  if (failed == 0) {
    std::filesystem::current_path(own.parent_path(), ignored);
    std::filesystem::remove_all(own, ignored);
  }
  return failed;
}
