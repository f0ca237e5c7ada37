// SPDX-License-Identifier: Apache-2.0
#include "engine/base/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

/// An empty folder below the test's working folder.
class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  template <class F>
  static std::string error_of(F&& body) {
    try {
      body();
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  }
  const fs::path folder_ = "atomic_file_test.dir";
};

TEST_F(AtomicFileTest, AnInterruptedProcessLeavesCommittedOutputsOnly) {
  AtomicFile of_parent(folder_ / "parent");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    write_file(folder_ / "whole", "content");
    const AtomicFile a(folder_ / "a");
    const AtomicFile b(folder_ / "b");
    exit_without_pending_outputs(130);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_EQ(entries(), 2U);  // The child's whole output and the parent's pending one.
  EXPECT_EQ(read_file(folder_ / "whole"), "content");
  of_parent.commit();
  EXPECT_TRUE(fs::exists(folder_ / "parent"));
}

TEST_F(AtomicFileTest, WritesAndReadsBackEveryByte) {
  std::string content(100000, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) {
    content[i] = static_cast<char>(i * 31);
  }
  write_file(folder_ / "a", content);
  EXPECT_EQ(read_file(folder_ / "a"), content);
  write_file(folder_ / "a", "");
  EXPECT_EQ(read_file(folder_ / "a"), "");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(AtomicFileTest, LeavesNothingBehindWithoutCommitAndKeepsTheOldFile) {
  write_file(folder_ / "a", "old");
  {
    AtomicFile file(folder_ / "a");
    EXPECT_TRUE(fs::exists(file.temporary()));
    EXPECT_EQ(entries(), 2U);
  }
  EXPECT_EQ(entries(), 1U);
  EXPECT_EQ(read_file(folder_ / "a"), "old");
}

TEST_F(AtomicFileTest, SaysWhyATargetIsImpossible) {
  EXPECT_EQ(error_of([] { AtomicFile file(""); }), "output: the file name is empty");
  EXPECT_EQ(
      error_of([&] { AtomicFile file(folder_ / "missing" / "a"); }),
      "atomic_file_test.dir/missing/a: the output folder does not exist; make it first: mkdir "
      "-p atomic_file_test.dir/missing");
  EXPECT_EQ(error_of([&] { AtomicFile file(folder_); }),
            "atomic_file_test.dir: is a folder, not a file");
}

// Renaming over a device node would replace it.
TEST_F(AtomicFileTest, RefusesATargetThatIsNoRegularFile) {
  EXPECT_EQ(error_of([] { write_file("/dev/null", "x"); }),
            "/dev/null: exists and is not a regular file");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFileTest, CommitFailsCleanlyWhenTheTemporaryHasGone) {
  EXPECT_EQ(error_of([&] {
              AtomicFile file(folder_ / "a");
              fs::remove(file.temporary());
              file.commit();
            }),
            "atomic_file_test.dir/a: cannot write: No such file or directory");
  EXPECT_EQ(entries(), 0U);
}

TEST_F(AtomicFileTest, AFullDiskIsAnErrorAndLeavesNothing) {
  // /dev/full accepts opens and fails writes with ENOSPC. The link stands where the temporary is.
  const fs::path target = folder_ / "a";
  fs::path temporary = target;
  temporary += "." + std::to_string(::getpid()) + ".tmp";
  if (!fs::exists("/dev/full")) {
    GTEST_SKIP() << "no /dev/full here";
  }
  fs::create_symlink("/dev/full", temporary);
  EXPECT_EQ(error_of([&] { write_file(target, std::string(1 << 20, 'x')); }),
            "atomic_file_test.dir/a: cannot write: No space left on device");
  EXPECT_EQ(entries(), 0U);
}

TEST_F(AtomicFileTest, ASymbolicLinkStaysAndTheFileBehindItIsWritten) {
  fs::create_directory(folder_ / "elsewhere");
  fs::create_symlink(fs::path("elsewhere") / "real", folder_ / "second");
  fs::create_symlink("second", folder_ / "link");
  for (const std::string text : {"new", "again"}) {  // First its end does not exist, then it does.
    write_file(folder_ / "link", text);
    EXPECT_EQ(read_file(folder_ / "elsewhere" / "real"), text);
    EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
    EXPECT_TRUE(fs::is_symlink(folder_ / "second"));
  }
  EXPECT_EQ(entries(), 3U);
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(error_of([&] { write_file(folder_ / "loop", "x"); }),
            "atomic_file_test.dir/loop: a symbolic link that leads to no end");
}

TEST_F(AtomicFileTest, ReadingNamesAMissingFileOrAFolder) {
  EXPECT_EQ(error_of([&] { (void)read_file(folder_ / "b"); }),
            "atomic_file_test.dir/b: cannot open: No such file or directory");
  EXPECT_EQ(error_of([&] { (void)read_file(folder_); }),
            "atomic_file_test.dir: is a folder, not a file");
}

}  // namespace
}  // namespace switchyard
