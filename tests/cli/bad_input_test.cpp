// SPDX-License-Identifier: Apache-2.0
// Every mistake of a user gives one clear line with the place and a hint, exit code 2, and leaves
// nothing half written.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace {

using switchyard::read_file;
using switchyard::write_file;
using namespace switchyard::test;  // NOLINT(google-build-using-namespace): test helpers

namespace fs = std::filesystem;

/// Runs `arguments` inside `folder`; expects exit 2, one line on stderr with every text of
/// `wanted`, nothing on stdout, and no new file in the folder.
void expect_refused(const fs::path& folder, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& wanted) {
  const std::vector<std::string> before = listing(folder);
  const ProcessResult r = run_switchyard(arguments, {.folder = folder, .environment = {}});
  EXPECT_EQ(r.exit_code, 2) << r.out << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_EQ(r.out, "");
  for (const std::string& text : wanted) {
    EXPECT_NE(r.err.find(text), std::string::npos) << "wanted: " << text << "\ngot: " << r.err;
  }
  EXPECT_EQ(listing(folder), before);
}

/// A scenario of our own beside a hardware file that `edit` has changed.
fs::path folder_with_hardware(const std::string& name, const std::string& from,
                              const std::string& to) {
  const fs::path folder = fresh_folder(name);
  std::string hardware = read_file(source_path("scenarios/hardware/hgx_h100.toml"));
  const std::size_t at = hardware.find(from);
  EXPECT_NE(at, std::string::npos) << "the hardware file no longer holds: " << from;
  hardware.replace(at, from.size(), to);
  write_file(folder / "hardware.toml", hardware);
  std::string scenario = read_file(source_path("scenarios/normative.toml"));
  const std::string file = "hardware/hgx_h100.toml";
  const std::size_t where = scenario.find(file);
  EXPECT_NE(where, std::string::npos);
  scenario.replace(where, file.size(), "hardware.toml");
  const std::string model = "models/mixtral_8x7b.json";
  const std::size_t model_at = scenario.find(model);
  EXPECT_NE(model_at, std::string::npos);
  scenario.replace(model_at, model.size(), source_path("scenarios/" + model).string());
  write_file(folder / "scenario.toml", scenario);
  return folder;
}

/// A copy of the shipped checkpoint whose weights file `edit` may damage.
template <class Edit>
fs::path folder_with_weights(const std::string& name, Edit edit) {
  const fs::path folder = fresh_folder(name);
  const fs::path checkpoint = folder / "ckpt";
  fs::copy(source_path("tests/fixtures/mixtral_tiny/f32"), checkpoint, fs::copy_options::recursive);
  // The tiny fixture has no tokenizer of its own; weights are read before it matters.
  fs::copy_file(source_path("scenarios/checkpoints/sy-16x2/tokenizer.json"),
                checkpoint / "tokenizer.json", fs::copy_options::overwrite_existing);
  std::string bytes = read_file(checkpoint / "model.safetensors");
  edit(bytes);
  write_file(checkpoint / "model.safetensors", bytes);
  write_file(folder / "prompts.txt", "hello\n");
  return folder;
}

std::string header_of(const std::string& bytes) {
  std::uint64_t n = 0;
  std::memcpy(&n, bytes.data(), 8);
  return bytes.substr(8, n);
}

std::string with_header(const std::string& bytes, std::string header) {
  std::uint64_t old = 0;
  std::memcpy(&old, bytes.data(), 8);
  const std::uint64_t n = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + header + bytes.substr(8 + old);
}

const std::vector<std::string> kTrace{"trace",       "--model", "ckpt", "--prompts",
                                      "prompts.txt", "-o",      "t.h5"};

}  // namespace

TEST(BadInput, BandwidthWithoutUnit) {
  const fs::path f = folder_with_hardware("no_unit", "bandwidth = \"450 GB/s\"", "bandwidth = 400");
  expect_refused(f, {"sim", "scenario.toml", "-o", "r.h5"},
                 {"hardware.toml:", "bandwidth = 400 has no unit", "400 Gbit/s"});
}

TEST(BadInput, UnknownKeySuggestsTheNearestOne) {
  const fs::path f =
      folder_with_hardware("unknown_key", "bandwidth = \"450 GB/s\"", "bandwith = \"450 GB/s\"");
  expect_refused(f, {"sim", "scenario.toml", "-o", "r.h5"},
                 {"hardware.toml:", "bandwith: unknown key", "did you mean \"bandwidth\"?"});
}

TEST(BadInput, NegativeMemory) {
  const fs::path f = folder_with_hardware("negative", "memory = \"80 G", "memory = \"-80 G");
  expect_refused(f, {"sim", "scenario.toml", "-o", "r.h5"}, {"hardware.toml:", "memory", ">= 0"});
}

TEST(BadInput, MissingFiles) {
  const fs::path f = fresh_folder("missing");
  expect_refused(f, {"sim", "nowhere.toml", "-o", "r.h5"}, {"nowhere.toml", "No such file"});
  expect_refused(f, {"inspect", "nowhere.h5"}, {"nowhere.h5", "No such file"});
  expect_refused(f, {"trace", "--model", "nowhere", "--prompts", "p.txt", "-o", "t.h5"},
                 {"nowhere"});
  expect_refused(f, {"account", "no_such_model"}, {"no_such_model"});
}

TEST(BadInput, SetErrorsNameTheOption) {
  const fs::path f = fresh_folder("set");
  const std::string scenario = source_path("scenarios/normative.toml").string();
  expect_refused(f, {"sim", scenario, "--set", "policy.capacity.facto=2", "-o", "r.h5"},
                 {"--set", "did you mean", "factor"});
  expect_refused(f, {"sim", scenario, "--set", "workload.batch=-3", "-o", "r.h5"}, {"--set"});
}

TEST(BadInput, SafetensorsCutInHalf) {
  const fs::path f = folder_with_weights("half", [](std::string& b) { b.resize(b.size() / 2); });
  expect_refused(f, kTrace, {"model.safetensors"});
}

TEST(BadInput, SafetensorsHeaderLengthTwoToThe63) {
  const fs::path f = folder_with_weights("header63", [](std::string& b) {
    const std::uint64_t n = std::uint64_t{1} << 63;
    std::memcpy(b.data(), &n, 8);
  });
  expect_refused(f, kTrace, {"model.safetensors", "header"});
}

TEST(BadInput, SafetensorsOverlappingOffsets) {
  const fs::path f = folder_with_weights("overlap", [](std::string& b) {
    std::string h = header_of(b);
    // The second tensor's range starts where the first one's does.
    const std::size_t first = h.find("\"data_offsets\":[");
    ASSERT_NE(first, std::string::npos);
    const std::size_t second = h.find("\"data_offsets\":[", first + 1);
    ASSERT_NE(second, std::string::npos);
    const auto range = [&](std::size_t at) {
      const std::size_t open = h.find('[', at) + 1;
      return std::pair(open, h.find(']', open) - open);
    };
    const auto [a, an] = range(first);
    const std::string copy = h.substr(a, an);
    const auto [s, sn] = range(second);
    h.replace(s, sn, copy);
    b = with_header(b, h);
  });
  expect_refused(f, kTrace, {"model.safetensors"});
}

TEST(BadInput, SafetensorsWrongDtype) {
  const fs::path f = folder_with_weights("dtype", [](std::string& b) {
    std::string h = header_of(b);
    const std::size_t at = h.find("\"F32\"");
    ASSERT_NE(at, std::string::npos);
    h.replace(at, 5, "\"I64\"");
    b = with_header(b, h);
  });
  expect_refused(f, kTrace, {"model.safetensors"});
}

TEST(BadInput, UnsupportedArchitecture) {
  const fs::path f = folder_with_weights("arch", [](std::string&) {});
  std::string config = read_file(f / "ckpt/config.json");
  const std::size_t at = config.find("\"mixtral\"");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 9, "\"mamba2\"");
  write_file(f / "ckpt/config.json", config);
  expect_refused(f, kTrace, {"config.json", "mamba2", "mixtral"});
}

TEST(BadInput, DamagedTraces) {
  const fs::path f = fresh_folder("traces");
  write_file(f / "prompts.txt", "The quick brown fox\n");
  const ProcessResult made =
      run_switchyard({"trace", "--model", source_path("scenarios/checkpoints/sy-16x2").string(),
                      "--prompts", "prompts.txt", "--max-new", "4", "-o", "good.h5"},
                     {.folder = f, .environment = {}});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string good = read_file(f / "good.h5");
  const std::string scenario = source_path("scenarios/demo.toml").string();
  const auto refuse = [&](const std::string& name, const std::string& bytes) {
    write_file(f / name, bytes);
    expect_refused(f, {"sim", scenario, "--trace", name, "-o", "r.h5"}, {name});
    expect_refused(f, {"inspect", name}, {name});
  };
  refuse("truncated.h5", good.substr(0, good.size() - 100));
  refuse("stump.h5", good.substr(0, 100));
  refuse("empty.h5", "");
  for (const std::size_t at : {std::size_t{0}, std::size_t{9}, std::size_t{600}, good.size() / 2}) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    refuse("flipped" + std::to_string(at) + ".h5", flipped);
  }
  refuse("foreign.h5", std::string(4096, 'x'));
}

TEST(BadInput, CommandLineMistakes) {
  const fs::path f = fresh_folder("usage");
  const ProcessResult verb = run_switchyard({"tabel"}, {.folder = f, .environment = {}});
  EXPECT_EQ(verb.exit_code, 2);
  EXPECT_NE(verb.err.find("table"), std::string::npos) << verb.err;
  const ProcessResult option = run_switchyard({"table", "--lst"}, {.folder = f, .environment = {}});
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_NE(option.err.find("--list"), std::string::npos) << option.err;
  const ProcessResult name = run_switchyard({"table", "acount"}, {.folder = f, .environment = {}});
  EXPECT_EQ(name.exit_code, 2);
  EXPECT_NE(name.err.find("account"), std::string::npos) << name.err;
  const ProcessResult format =
      run_switchyard({"table", "account", "--format", "pdf"}, {.folder = f, .environment = {}});
  EXPECT_EQ(format.exit_code, 2);
}

TEST(BadInput, UnwritableOutput) {
  const fs::path f = fresh_folder("unwritable");
  expect_refused(f, {"sim", source_path("scenarios/hub.toml").string(), "-o", "no/such/r.h5"},
                 {"no/such/r.h5", "the output folder does not exist"});
}

TEST(Capability, CudaWithoutAGpuIsExitThreeAndOneLine) {
  if (fs::exists("/dev/nvidia0")) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  const fs::path f = fresh_folder("cuda");
  write_file(f / "prompts.txt", "hello\n");
  const ProcessResult r =
      run_switchyard({"trace", "--model", source_path("scenarios/checkpoints/sy-16x2").string(),
                      "--prompts", "prompts.txt", "--device", "cuda", "-o", "t.h5"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(r.exit_code, 3) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_FALSE(fs::exists(f / "t.h5"));
}
