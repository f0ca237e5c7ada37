// SPDX-License-Identifier: Apache-2.0
#include "engine/h5/container.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/base/random.hpp"
#include "engine/h5/file_reader.hpp"
#include "engine/h5/file_writer.hpp"

namespace switchyard::h5 {
namespace {
namespace fs = std::filesystem;

SchemaTable make_schema() {
  SchemaTable t;
  t.kind = FileKind::kTrace;
  t.version = 3;
  t.title = "Test";
  t.entries = {{"@text", "", ElementType::kText, "", "", false},
               {"@seed", "", ElementType::kU64, "", "", false},
               {"@offset", "", ElementType::kI64, "", "", false},
               {"@ratio", "", ElementType::kF64, "", "", false},
               {"rows/u16", "T,L", ElementType::kU16, "tokens", "", false},
               {"rows/f32", "T", ElementType::kF32, "", "", false},
               {"rows/i64", "T", ElementType::kI64, "ps", "", true},
               {"wide", "L,n", ElementType::kF64, "", "", true},
               {"names", "n", ElementType::kText, "", "", true},
               {"story", "", ElementType::kText, "", "", true},
               {"level/*/max", "n", ElementType::kU32, "", "", true}};
  return t;
}
const SchemaTable kSchema = make_schema();

std::uint64_t noise(std::uint64_t i) {
  return random_u64(11, random_purpose("h5-test"), {static_cast<std::uint32_t>(i), 0, 0, 0});
}

/// Attributes and `rows` rows of incompressible numbers in blocks of `block`.
/// `back`: a few rows are read back after each block.
void write_sample(const fs::path& path, std::uint64_t rows, std::uint64_t block,
                  const WriteOptions& options = {}, bool back = false) {
  FileWriter file(path, kSchema, options);
  file.attribute("text", "größer");
  file.attribute("seed", std::uint64_t{1} << 63);
  file.attribute("offset", std::int64_t{-5});
  file.attribute("ratio", 0.1);
  file.rows<std::uint16_t>("rows/u16", {3});
  file.rows<float>("rows/f32", {});
  for (std::uint64_t r = 0; r < rows; r += block) {
    std::vector<std::uint16_t> a;
    std::vector<float> b;
    for (std::uint64_t i = r; i < std::min(rows, r + block); ++i) {
      for (std::uint64_t j = 0; j < 3; ++j) {
        a.push_back(static_cast<std::uint16_t>(noise(3 * i + j)));
      }
      b.push_back(static_cast<float>(i) * 0.5F);
    }
    file.append("rows/u16", a);
    file.append("rows/f32", b);
    if (back) {
      const std::uint64_t end = std::min(rows, r + block);
      for (const std::uint64_t first : {std::uint64_t{0}, end / 2, end - std::min(end, block)}) {
        const auto some = file.read_back<std::uint16_t>("rows/u16", first, end - first);
        ASSERT_EQ(some.size(), 3 * (end - first));
        for (std::uint64_t i = 0; i < some.size(); ++i) {
          ASSERT_EQ(some[i], static_cast<std::uint16_t>(noise(3 * first + i))) << first;
        }
        EXPECT_EQ(file.read_back<float>("rows/f32", first, 1).at(0),
                  static_cast<float>(first) * 0.5F);
      }
      // Less than a packed piece waits in memory per dataset, and the room it took before.
      EXPECT_LT(file.buffered_bytes(), 2U * (2 * 131072 + 2 * 6 * block));
    }
  }
  file.strings("names", std::vector<std::string>{"", "zwei", "drei und mehr"});
  file.text("story", std::string(100000, 'x'));
  file.write("level/a/max", std::vector<std::uint32_t>{1, 2});
  file.write("level/b/max", std::vector<std::uint32_t>{});
  file.finish();
}

/// Without the fsync of write_file: hundreds of damaged files are written below.
void quick_write(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}
std::string read_message(const fs::path& path, const ReadOptions& options = {}) {
  return message_of([&] { (void)FileReader(path, kSchema, options); });
}

/// Tests run in their own working folder; each gets a fresh folder in it.
class Container : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] fs::path at(const std::string& name) const { return folder_ / name; }
  fs::path folder_;
};

TEST_F(Container, GivesBackWhatWasWritten) {
  write_sample(at("a.h5"), 100, 7);
  const FileReader file(at("a.h5"), kSchema);
  EXPECT_EQ(file.text_attribute("text"), "größer");
  EXPECT_EQ(file.u64_attribute("seed"), std::uint64_t{1} << 63);
  EXPECT_EQ(file.i64_attribute("offset"), -5);
  EXPECT_EQ(file.f64_attribute("ratio"), 0.1);
  EXPECT_EQ(file.extent("T"), 100U);
  EXPECT_EQ(file.extent("L"), 3U);
  EXPECT_EQ(file.shape("rows/u16"), (std::vector<std::uint64_t>{100, 3}));
  const auto a = file.read<std::uint16_t>("rows/u16");
  ASSERT_EQ(a.size(), 300U);
  for (std::uint64_t i = 0; i < 300; ++i) {
    ASSERT_EQ(a[i], static_cast<std::uint16_t>(noise(i))) << i;
  }
  EXPECT_EQ(file.read_rows<float>("rows/f32", 98, 2), (std::vector<float>{49.0F, 49.5F}));
  EXPECT_TRUE(file.read_rows<float>("rows/f32", 100, 0).empty());
  EXPECT_EQ(file.strings("names"), (std::vector<std::string>{"", "zwei", "drei und mehr"}));
  EXPECT_EQ(file.text("story"), std::string(100000, 'x'));
  EXPECT_EQ(file.read<std::uint32_t>("level/a/max"), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_TRUE(file.read<std::uint32_t>("level/b/max").empty());
  EXPECT_FALSE(file.has("wide"));
  EXPECT_TRUE(file.has("@ratio"));
  EXPECT_EQ(file.described("rows/u16"), std::pair(std::string("tokens"), std::string("T,L")));
  EXPECT_TRUE(schema_differences(kSchema, file).empty());
  EXPECT_EQ(message_of([&] { (void)file.read_rows<float>("rows/f32", 99, 2); }),
            at("a.h5").string() + ": rows/f32: rows 99 to 101 of 100 asked for");
  EXPECT_EQ(file.file_bytes(), fs::file_size(at("a.h5")));
}

TEST_F(Container, StreamsManyChunksAndReadsAnyRowRange) {
  constexpr std::uint64_t rows = 100000;  // 600 KB of u16: five chunks of 128 KiB.
  write_sample(at("a.h5"), rows, 977);
  const FileReader file(at("a.h5"), kSchema);
  const auto all = file.read<std::uint16_t>("rows/u16");
  ASSERT_EQ(all.size(), 3 * rows);
  for (std::uint64_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i], static_cast<std::uint16_t>(noise(i))) << i;
  }
  const auto some = file.read_rows<std::uint16_t>("rows/u16", 21000, 1500);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 3 * 21000));
  EXPECT_EQ(some.size(), 4500U);
}

TEST_F(Container, ReadsEmptyRowsAndWideRows) {
  {
    FileWriter file(at("a.h5"), kSchema);
    file.attribute("text", "");
    file.attribute("seed", std::uint64_t{0});
    file.attribute("offset", std::int64_t{0});
    file.attribute("ratio", -0.0);
    file.rows<std::uint16_t>("rows/u16", {1});
    file.rows<float>("rows/f32", {});
    // One row of 4 MB: a chunk may not grow with it.
    file.write("wide", std::vector<double>(500000, 1.5), {1, 500000});
    file.finish();
  }
  const FileReader file(at("a.h5"), kSchema);
  EXPECT_EQ(file.text_attribute("text"), "");
  EXPECT_EQ(file.shape("rows/u16"), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_TRUE(file.read<std::uint16_t>("rows/u16").empty());
  EXPECT_EQ(file.read<double>("wide"), std::vector<double>(500000, 1.5));
  EXPECT_LT(file.file_bytes(), 50000U);
}

TEST_F(Container, HasTheSameBytesForTheSameContent) {
  fs::create_directories(at("elsewhere"));
  write_sample(at("a.h5"), 50000, 100);
  // Times in HDF5 have a resolution of one second.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  // Padding that was not initialised would differ now. (Under a sanitizer, whose allocator fills
  // by itself, the call does nothing.)
  (void)mallopt(M_PERTURB, 0xA5);
  write_sample(at("elsewhere/b.h5"), 50000, 100);
  (void)mallopt(M_PERTURB, 0);
  EXPECT_TRUE(read_file(at("a.h5")) == read_file(at("elsewhere/b.h5")));
}

TEST_F(Container, ReadsBackWhatWasAppendedWithoutChangingTheFile) {
  constexpr WriteOptions kDirect{.chunk_cache = false};
  write_sample(at("a.h5"), 90000, 30011, kDirect);
  write_sample(at("b.h5"), 90000, 30011, kDirect, true);
  EXPECT_TRUE(read_file(at("a.h5")) == read_file(at("b.h5")));
  const FileReader file(at("b.h5"), kSchema);
  EXPECT_EQ(file.read<std::uint16_t>("rows/u16").size(), 3U * 90000);
}

TEST_F(Container, LeavesNothingBehindWhenItIsNotFinished) {
  {
    FileWriter file(at("a.h5"), kSchema);
    file.attribute("text", "x");
    file.rows<float>("rows/f32", {});
    file.append("rows/f32", std::vector<float>(200000, 1.0F));
    EXPECT_FALSE(fs::is_empty(folder_));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Container, RefusesTextsItCannotHold) {
  FileWriter file(at("a.h5"), kSchema);
  EXPECT_EQ(message_of([&] { file.attribute("text", std::string(60001, 'x')); }),
            at("a.h5").string() + ": @text: the text has 60001 bytes, an attribute holds 60000");
  EXPECT_EQ(message_of([&] { file.text("story", std::string_view("a\0b", 3)); }),
            at("a.h5").string() + ": story: the text has a NUL byte");
}

TEST_F(Container, SaysWhatAForeignFileIs) {
  const auto message = [&](const std::string& content) {
    quick_write(at("x"), content);
    const std::string prefix = at("x").string() + ": ";
    const std::string text = read_message(at("x"));
    EXPECT_TRUE(text.starts_with(prefix)) << text;
    return text.substr(prefix.size());
  };
  EXPECT_EQ(read_message(at("none")),
            at("none").string() + ": cannot open: No such file or directory");
  EXPECT_EQ(read_message(folder_), folder_.string() + ": is a folder, not a file");
  EXPECT_EQ(read_message("/dev/null"), "/dev/null: is not a regular file");
  EXPECT_EQ(message(""), "the file is empty");
  EXPECT_EQ(message("hello"), "not a Switchyard file");
  EXPECT_EQ(message(std::string(5000, 'x')), "not a Switchyard file");
  EXPECT_EQ(message("SWYTRACE"), "cut short: 8 bytes, the header alone has 512");
  EXPECT_EQ(message(std::string(2000, '\0')),
            "unfinished: its header is empty; the program that wrote it was stopped; write it "
            "again");
  EXPECT_EQ(message("\x89HDF\r\n\x1a\n" + std::string(1000, '\0')),
            "an HDF5 file, but not one written by Switchyard; `switchyard import` reads other "
            "tools' files");
}

TEST_F(Container, NoticesTruncationAtEveryLength) {
  write_sample(at("a.h5"), 3000, 1000);
  const std::string whole = read_file(at("a.h5"));
  for (std::size_t n = 0; n < whole.size(); n += n < 600 ? 1 : 997) {
    quick_write(at("b.h5"), whole.substr(0, n));
    const std::string text = read_message(at("b.h5"));
    const std::string_view expected = n == 0  ? "the file is empty"
                                      : n < 8 ? "not a Switchyard file"
                                              : "cut short: ";
    ASSERT_NE(text.find(expected), std::string::npos) << n << ": " << text;
  }
  quick_write(at("b.h5"), whole + "x");
  EXPECT_NE(read_message(at("b.h5")).find("too long: "), std::string::npos);
}

TEST_F(Container, NoticesEveryFlippedBitItIsShown) {
  write_sample(at("a.h5"), 3000, 1000);
  const std::string whole = read_file(at("a.h5"));
  for (std::size_t i = 0; i < whole.size(); i += i < 512 + 200 ? 1 : 211) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    quick_write(at("b.h5"), damaged);
    const std::string text = read_message(at("b.h5"));
    const std::string_view expected = i < 8 ? "not a Switchyard file"
                                      : i < 512
                                          ? "damaged: the checksum of its header does not match"
                                          : "damaged: the checksum of its content does not match";
    ASSERT_NE(text.find(expected), std::string::npos) << i << ": " << text;
  }
}

TEST_F(Container, NamesTheKindAndBothVersions) {
  write_sample(at("a.h5"), 10, 10);
  SchemaTable other = kSchema;
  other.kind = FileKind::kRun;
  EXPECT_EQ(message_of([&] { (void)FileReader(at("a.h5"), other); }),
            at("a.h5").string() + ": this is a routing trace, expected a run file");
  seal_file(at("a.h5"), FileKind::kRun, 3);
  EXPECT_EQ(read_message(at("a.h5")),
            at("a.h5").string() + ": this is a run file, expected a routing trace");
  seal_file(at("a.h5"), FileKind::kTrace, 4);
  EXPECT_EQ(read_message(at("a.h5")),
            at("a.h5").string() +
                ": routing trace of schema version 4; this program reads up to version 3; a newer "
                "Switchyard wrote it; read it with that one");
  seal_file(at("a.h5"), FileKind::kTrace, 2);
  EXPECT_EQ(FileReader(at("a.h5"), kSchema).header().schema_version, 2U);
}

TEST_F(Container, ChecksTheHashUnlessTheFileIsLargeAndTheUserSaysSo) {
  write_sample(at("a.h5"), 10, 10);
  EXPECT_EQ(read_message(at("a.h5"), {false}),
            at("a.h5").string() +
                ": --no-verify is only for files above 4 GiB; leave it out; checking this file is "
                "quick");
  // A sparse file of 4 GiB + 1 byte with a matching length and the old hash.
  std::string head = read_file(at("a.h5")).substr(0, 512);
  const std::uint64_t size = kNoVerifyAbove + 1;
  fs::resize_file(at("a.h5"), size);
  const std::uint64_t length = size - 512;
  std::memcpy(head.data() + 16, &length, 8);
  const std::uint64_t sum = hash64(std::string_view(head).substr(0, 504));
  std::memcpy(head.data() + 504, &sum, 8);
  std::FILE* f = std::fopen(at("a.h5").c_str(), "r+b");
  ASSERT_NE(f, nullptr);
  ASSERT_EQ(std::fwrite(head.data(), 1, 512, f), 512U);
  ASSERT_EQ(std::fclose(f), 0);
  EXPECT_EQ(FileReader(at("a.h5"), kSchema, {false}).extent("T"), 10U);
}

/// Opens a good file with libhdf5 for writing, changes it, seals it again.
class HostileContent : public Container {
 protected:
  void SetUp() override {
    Container::SetUp();
    write_sample(at("a.h5"), 10, 10);
  }
  std::string after(const std::function<void(hid_t)>& change) {
    const hid_t file = H5Fopen(at("a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    EXPECT_GE(file, 0);
    change(file);
    EXPECT_GE(H5Fclose(file), 0);
    seal_file(at("a.h5"), FileKind::kTrace, 3);
    const std::string text = read_message(at("a.h5"));
    const std::string prefix = at("a.h5").string() + ": ";
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }
  /// Replaces a dataset by one of this shape without data.
  static void replace(hid_t file, const char* name, hid_t type, std::vector<hsize_t> dims,
                      std::vector<hsize_t> chunk) {
    (void)H5Ldelete(file, name, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    if (!chunk.empty()) {
      H5Pset_chunk(plist, static_cast<int>(chunk.size()), chunk.data());
      H5Pset_alloc_time(plist, H5D_ALLOC_TIME_INCR);
    } else {
      H5Pset_alloc_time(plist, H5D_ALLOC_TIME_LATE);
    }
    const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    EXPECT_GE(set, 0);
    H5Dclose(set);
    H5Pclose(plist);
    H5Sclose(space);
  }
};

TEST_F(HostileContent, CannotMakeTheReaderAllocateMoreThanTheFileHolds) {
  constexpr hsize_t huge = 1ULL << 40;
  EXPECT_EQ(after([&](hid_t f) {
              replace(f, "rows/u16", H5T_STD_U16LE, {huge, 3}, {1000, 3});
            }),
            "rows/u16: [1099511627776, 3] elements cannot come from the 0 bytes stored for them");
  EXPECT_EQ(after([&](hid_t f) {
              replace(f, "rows/u16", H5T_STD_U16LE, {huge, huge}, {1000, 1000});
            }),
            "rows/u16: [1099511627776, 1099511627776] elements cannot come from the 0 bytes "
            "stored for them");
  EXPECT_EQ(after([&](hid_t f) {
              replace(f, "rows/u16", H5T_STD_U16LE, {huge, 3}, {});
            }),
            "rows/u16: [1099511627776, 3] elements cannot come from the 0 bytes stored for them");
  EXPECT_EQ(after([&](hid_t f) {
              replace(f, "rows/u16", H5T_STD_U16LE, {0, 3}, {1U << 20, 3});
            }),
            "rows/u16: its chunks of 6291456 bytes are larger than its data");
}

TEST_F(HostileContent, IsHeldAgainstTheSchema) {
  EXPECT_EQ(after([](hid_t f) {
              replace(f, "rows/u16", H5T_STD_U32LE, {10, 3}, {10, 3});
            }),
            "rows/u16: expected elements of type u16");
  EXPECT_EQ(after([](hid_t f) {
              replace(f, "rows/u16", H5T_STD_U16BE, {10, 3}, {10, 3});
            }),
            "rows/u16: expected elements of type u16");
  EXPECT_EQ(after([](hid_t f) { replace(f, "rows/u16", H5T_STD_U16LE, {10}, {10}); }),
            "rows/u16: has the shape [10], expected [T,L]");
  EXPECT_EQ(after([](hid_t f) {
              replace(f, "rows/u16", H5T_STD_U16LE, {0, 3}, {});
              replace(f, "rows/f32", H5T_IEEE_F32LE, {0}, {});
              replace(f, "rows/i64", H5T_STD_I64LE, {1, 1}, {});
            }),
            "rows/i64: has the shape [1, 1], expected [T]");
  EXPECT_EQ(after([](hid_t f) { H5Ldelete(f, "rows/u16", H5P_DEFAULT); }),
            "rows/u16: the dataset is missing");
  EXPECT_EQ(after([](hid_t f) { H5Adelete(f, "seed"); }), "attribute seed: missing");
}

TEST_F(HostileContent, MustGiveOneNumberPerDimension) {
  EXPECT_EQ(after([](hid_t f) { replace(f, "rows/f32", H5T_IEEE_F32LE, {0}, {}); }),
            "rows/f32: has the shape [0], expected [T] with T = 10 as in rows/u16");
}

TEST_F(HostileContent, CannotReachOutOfTheFile) {
  EXPECT_EQ(after([](hid_t f) {
              H5Ldelete(f, "rows/u16", H5P_DEFAULT);
              H5Lcreate_external("other.h5", "/x", f, "rows/u16", H5P_DEFAULT, H5P_DEFAULT);
            }),
            "rows/u16: a link out of its place; such files are refused");
  EXPECT_EQ(
      after([](hid_t f) {
        H5Ldelete(f, "rows/u16", H5P_DEFAULT);
        const std::array<hsize_t, 2> dims{10, 3};
        const hid_t space = H5Screate_simple(2, dims.data(), nullptr);
        const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_external(plist, "/etc/hostname", 0, 60);
        H5Dclose(H5Dcreate2(f, "rows/u16", H5T_STD_U16LE, space, H5P_DEFAULT, plist, H5P_DEFAULT));
        H5Pclose(plist);
        H5Sclose(space);
      }),
      "rows/u16: its data lie in another file; such files are refused");
  EXPECT_EQ(after([](hid_t f) {
              H5Ldelete(f, "rows/u16", H5P_DEFAULT);
              H5Ldelete(f, "story", H5P_DEFAULT);
              const hid_t type = H5Tcopy(H5T_C_S1);
              H5Tset_size(type, H5T_VARIABLE);
              const hid_t space = H5Screate(H5S_SCALAR);
              H5Dclose(H5Dcreate2(f, "story", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
              H5Sclose(space);
              H5Tclose(type);
              replace(f, "rows/u16", H5T_STD_U16LE, {0, 3}, {});
              replace(f, "rows/f32", H5T_IEEE_F32LE, {0}, {});
            }),
            "story: expected text of a fixed length");
}

TEST_F(HostileContent, ThatTheSchemaDoesNotKnowIsReportedAsADifference) {
  EXPECT_EQ(after([](hid_t f) { replace(f, "extra", H5T_STD_U16LE, {0}, {}); }), "no error");
  const FileReader file(at("a.h5"), kSchema);
  EXPECT_EQ(schema_differences(kSchema, file),
            (std::vector<std::string>{"dataset extra is not in the schema"}));
}

TEST_F(Container, NamesAFolderItCannotWriteTo) {
  EXPECT_EQ(message_of([&] { FileWriter(at("no/a.h5"), kSchema); }),
            at("no/a.h5").string() +
                ": the output folder does not exist; make it first: mkdir -p " + at("no").string());
  // Nobody, root included, can make files there.
  EXPECT_NE(message_of([&] {
              FileWriter("/proc/self/a.h5", kSchema);
            }).find("/proc/self/a.h5: cannot write here: "),
            std::string::npos);
}

TEST_F(Container, FailsCleanlyWhenTheDiskIsFull) {
  write_sample(at("whole.h5"), 60000, 500);
  const auto size = static_cast<rlim_t>(fs::file_size(at("whole.h5")));
  fs::remove(at("whole.h5"));
  // A file size limit fails as a full disk does: in the middle of write(), wherever that falls.
  int failures = 0;
  for (const rlim_t limit : {rlim_t{0}, rlim_t{300}, rlim_t{512}, rlim_t{700}, rlim_t{3000},
                             size / 4, size / 2, size - 20000, size - 3000, size - 1, size}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      (void)std::signal(SIGXFSZ, SIG_IGN);
      (void)::alarm(60);
      const rlimit bound{limit, limit};
      (void)::setrlimit(RLIMIT_FSIZE, &bound);
      const std::string text = message_of([&] { write_sample(at("a.h5"), 60000, 500); });
      // exit() and not _exit(): the library's way out must not hang or write either.
      if (text == "no error") {
        std::exit(10);
      }
      std::exit(text.find("a.h5: cannot write: File too large") != std::string::npos ? 11 : 12);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "limit " << limit << ": signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), limit < size ? 11 : 10) << "limit " << limit;
    failures += limit < size ? 1 : 0;
    if (limit < size) {
      EXPECT_TRUE(fs::is_empty(folder_)) << "limit " << limit;
    } else {
      EXPECT_EQ(read_message(at("a.h5")), "no error");
    }
  }
  EXPECT_EQ(failures, 10);
}

}  // namespace
}  // namespace switchyard::h5
