// SPDX-License-Identifier: Apache-2.0
// Every mistake of a user gives one clear line with the place and a hint, exit code 2, and leaves
// nothing half written.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "engine/base/atomic_file.hpp"
#include "engine/h5/container.hpp"
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
  expect_refused(f, {"sim", "", "-o", "r.h5"}, {"SCENARIO: names no file"});
  const std::string missing = "nowhere.h5: cannot open: No such file or directory\n";
  expect_refused(f, {"inspect", "nowhere.h5"}, {missing});
  expect_refused(f, {"diff", "nowhere.h5", "nowhere.h5"}, {missing});
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
  expect_refused(f, kTrace,
                 {"model.safetensors: tensor \"", "ends at byte", "the file has", "(truncated?)"});
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
    // Of two tensors of one size, the second gets the bytes of the first.
    std::map<std::uint64_t, std::string> seen;
    static const std::regex range(R"(\[(\d+), *(\d+)\]\})");
    for (std::sregex_iterator it(h.begin(), h.end(), range), end; it != end; ++it) {
      const std::uint64_t size = std::stoull((*it)[2]) - std::stoull((*it)[1]);
      const auto [first, fresh] = seen.try_emplace(size, it->str());
      if (!fresh) {
        h.replace(static_cast<std::size_t>(it->position()), it->str().size(), first->second);
        break;
      }
    }
    ASSERT_NE(h, header_of(b));
    b = with_header(b, h);
  });
  expect_refused(f, kTrace, {"model.safetensors: tensor \"", "overlap another tensor's"});
}

TEST(BadInput, SafetensorsWrongDtype) {
  const fs::path f = folder_with_weights("dtype", [](std::string& b) {
    std::string h = header_of(b);
    const std::size_t at = h.find("\"F32\"");
    ASSERT_NE(at, std::string::npos);
    h.replace(at, 5, "\"I64\"");
    b = with_header(b, h);
  });
  expect_refused(f, kTrace, {"model.safetensors: tensor \"", "I64 of shape", "data_offsets give"});
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

/// Damages `good` in every way that the sealed header notices; `refuse(name, message)` is called
/// with each file written.
void damage(const fs::path& folder, const std::string& good,
            const std::function<void(const std::string&, const std::string&)>& refuse) {
  const auto write = [&](const std::string& name, const std::string& bytes,
                         const std::string& message) {
    std::ofstream(folder / name, std::ios::binary) << bytes;  // Without the fsync of write_file.
    refuse(name, message);
  };
  write("truncated.h5", good.substr(0, good.size() - 100), "cut short: it has ");
  write("stump.h5", good.substr(0, 100), "");
  write("empty.h5", "", "");
  write("longer.h5", good + "x", "too long: it has ");
  for (const std::size_t at : {std::size_t{9}, std::size_t{600}, good.size() / 2}) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write("flipped" + std::to_string(at) + ".h5", flipped, "damaged: ");
  }
  std::string magic = good;
  magic[0] = 'X';
  write("magic.h5", magic, "not a Switchyard file");
  write("foreign.h5", std::string(4096, 'x'), "not a Switchyard file");
}

/// Overwrites one element of a dataset of a sealed file and seals it again: only the checks behind
/// the hash can notice.
template <class T>
void poke(const fs::path& from, const fs::path& to, switchyard::h5::FileKind kind,
          const std::string& dataset, hid_t type, std::size_t index, T value) {
  fs::copy_file(from, to, fs::copy_options::overwrite_existing);
  const hid_t file = H5Fopen(to.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  const hid_t set = H5Dopen2(file, dataset.c_str(), H5P_DEFAULT);
  ASSERT_GE(set, 0) << dataset;
  const hid_t space = H5Dget_space(set);
  std::vector<T> all(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  ASSERT_LT(index, all.size()) << dataset;
  ASSERT_GE(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
  all[index] = value;
  ASSERT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(file);
  switchyard::h5::seal_file(to, kind, 1);
}

/// A short trace "good.h5" in a fresh folder.
fs::path folder_with_trace(const std::string& name) {
  const fs::path f = fresh_folder(name);
  write_file(f / "prompts.txt", "The quick brown fox\n");
  const ProcessResult made =
      run_switchyard({"trace", "--model", source_path("scenarios/checkpoints/sy-16x2").string(),
                      "--prompts", "prompts.txt", "--max-new", "4", "-o", "good.h5"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return f;
}

/// A short decode run "good.h5" in a fresh folder.
fs::path folder_with_run(const std::string& name) {
  const fs::path f = fresh_folder(name);
  const ProcessResult made =
      run_switchyard({"sim", source_path("scenarios/hub.toml").string(), "--set",
                      "workload.steps=4", "--set", "workload.warmup_steps=1", "-o", "good.h5"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return f;
}

}  // namespace

TEST(Output, SimMakesTheFoldersAboveItsFile) {
  const fs::path f = folder_with_run("new_folders");
  const std::string scenario = source_path("scenarios/hub.toml").string();
  const ProcessResult made = run_switchyard({"sim", scenario, "--set", "workload.steps=4", "--set",
                                             "workload.warmup_steps=1", "-o", "a/b/r.h5"},
                                            {.folder = f, .environment = {}});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(read_file(f / "a/b/r.h5"), read_file(f / "good.h5"));
  expect_refused(f, {"sim", scenario, "-o", "good.h5/r.h5"},
                 {"-o: cannot make the folder good.h5"});
}

TEST(BadInput, DamagedTraces) {
  const fs::path f = folder_with_trace("traces");
  const std::string scenario = source_path("scenarios/demo.toml").string();
  damage(f, read_file(f / "good.h5"), [&](const std::string& name, const std::string& message) {
    expect_refused(f, {"sim", scenario, "--trace", name, "-o", "r.h5"}, {name + ": " + message});
    expect_refused(f, {"inspect", name}, {name + ": " + message});
  });
}

TEST(BadInput, TracesDamagedBehindTheirHash) {
  using switchyard::h5::FileKind;
  const fs::path f = folder_with_trace("resealed_traces");
  const std::string scenario = source_path("scenarios/demo.toml").string();
  const auto refuse = [&](const std::string& message) {
    expect_refused(f, {"inspect", "bad.h5"}, {"bad.h5: " + message});
    expect_refused(f, {"sim", scenario, "--trace", "bad.h5", "-o", "r.h5"}, {"bad.h5: " + message});
  };
  poke<std::uint16_t>(f / "good.h5", f / "bad.h5", FileKind::kTrace, "candidates",
                      H5T_NATIVE_UINT16, 0, 16);
  refuse("candidates[0]: layer ");
  poke<float>(f / "good.h5", f / "bad.h5", FileKind::kTrace, "logit", H5T_NATIVE_FLOAT, 0,
              std::nanf(""));
  refuse("logit[0]: layer ");
  poke<std::uint8_t>(f / "good.h5", f / "bad.h5", FileKind::kTrace, "outcome", H5T_NATIVE_UINT8, 1,
                     7);
  refuse("outcome[0]: layer ");
  poke<std::uint32_t>(f / "good.h5", f / "bad.h5", FileKind::kTrace, "token/sequence",
                      H5T_NATIVE_UINT32, 0, 5);
  refuse("token/sequence[0]: sequence 5 of a table of 1");
}

TEST(BadInput, DamagedRuns) {
  const fs::path f = folder_with_run("runs");
  damage(f, read_file(f / "good.h5"), [&](const std::string& name, const std::string& message) {
    expect_refused(f, {"inspect", name}, {name + ": " + message});
    expect_refused(f, {"diff", "good.h5", name}, {name + ": " + message});
    expect_refused(f, {"diff", name, "good.h5"}, {name + ": " + message});
  });
  // A trace in a run's place and the other way round.
  const fs::path t = folder_with_trace("runs_trace");
  fs::copy_file(t / "good.h5", f / "trace.h5");
  expect_refused(f, {"diff", "good.h5", "trace.h5"},
                 {"trace.h5: this is a routing trace, expected a run file"});
  expect_refused(
      f, {"sim", source_path("scenarios/demo.toml").string(), "--trace", "good.h5", "-o", "r.h5"},
      {"good.h5: this is a run file, expected a routing trace"});
}

TEST(BadInput, RunsDamagedBehindTheirHash) {
  using switchyard::h5::FileKind;
  const fs::path f = folder_with_run("resealed_runs");
  const auto refuse = [&](const std::string& message) {
    expect_refused(f, {"inspect", "bad.h5"}, {"bad.h5: " + message});
  };
  poke<std::int64_t>(f / "good.h5", f / "bad.h5", FileKind::kRun, "request/arrival",
                     H5T_NATIVE_INT64, 3, -2);
  refuse("request/arrival[3]: -2; expected a time, or -1 for none");
  poke<std::int64_t>(f / "good.h5", f / "bad.h5", FileKind::kRun, "step/start", H5T_NATIVE_INT64, 2,
                     -5);
  refuse("step/start[2]: -5; expected a number that is not negative");
  poke<double>(f / "good.h5", f / "bad.h5", FileKind::kRun, "link/bandwidth", H5T_NATIVE_DOUBLE, 0,
               0.0);
  refuse("link/bandwidth[0]: 0; expected a finite positive rate");
  poke<std::uint32_t>(f / "good.h5", f / "bad.h5", FileKind::kRun, "placement", H5T_NATIVE_UINT32,
                      0, 8);
  refuse("placement[0]: 8; expected less than 8 (GPUs)");
  expect_refused(f, {"diff", "good.h5", "bad.h5"}, {"bad.h5: placement[0]: 8; expected less than"});
}

TEST(BadInput, AScenarioIsNoHardwareFile) {
  const fs::path f = fresh_folder("inspect_scenario");
  expect_refused(f, {"inspect", source_path("scenarios/hub.toml").string()},
                 {"hub.toml: is a scenario, not a hardware file; switchyard explain "});
  const ProcessResult hardware =
      run_switchyard({"inspect", source_path("scenarios/hardware/hgx_h100.toml").string()});
  EXPECT_EQ(hardware.exit_code, 0) << hardware.err;
}

TEST(BadInput, NumbersThatDoNotFit) {
  const fs::path f = fresh_folder("numbers");
  const std::string scenario = source_path("scenarios/hub.toml").string();
  expect_refused(f, {"sim", scenario, "--set", "run.seed=9223372036854775808", "-o", "r.h5"},
                 {"--set: 9223372036854775808 is out of range", "2^63 - 1"});
  expect_refused(f, {"account", "mixtral_8x7b", "--tokens", "-1"},
                 {"--tokens: -1 is not a whole number from 0 to 2^64 - 1"});
  std::vector<std::string> trace = kTrace;
  trace.insert(trace.end(), {"--seed", "-1"});
  expect_refused(f, trace, {"--seed: -1 is not a whole number"});
  trace.back() = "18446744073709551616";
  expect_refused(f, trace, {"--seed: 18446744073709551616 is not a whole number"});
  expect_refused(f, {"account", "mixtral_8x7b", "--dtype", "exprts=nonsense"},
                 {"--dtype: unknown part \"exprts\"", "experts"});
  const std::string swept = source_path("scenarios/normative.toml").string();
  for (const char* jobs : {"0", "257"}) {
    expect_refused(f, {"sweep", swept, "-j", jobs, "-o", "out"},
                   {"-j: jobs = ", "1 <= jobs <= 256"});
  }
}

TEST(BadInput, PromptsThatAreNotUtf8) {
  const fs::path f = fresh_folder("utf8");
  write_file(f / "prompts.txt", "good\nbad \xFF\n");
  std::vector<std::string> command = kTrace;
  command[2] = source_path("scenarios/checkpoints/sy-16x2").string();
  expect_refused(f, command, {"prompts.txt:2:5: byte 0xff is not valid UTF-8"});
}

TEST(BadInput, ProgressTakesJsonOnly) {
  const fs::path f = fresh_folder("progress");
  expect_refused(
      f, {"sim", source_path("scenarios/hub.toml").string(), "--progress", "foo", "-o", "r.h5"},
      {"--progress: unknown form \"foo\""});
  std::vector<std::string> trace = kTrace;
  trace.insert(trace.end(), {"--progress", "foo"});
  expect_refused(f, trace, {"--progress: unknown form \"foo\""});
}

// One object a line: bytes read, then tokens, then the file's name; nothing else on stdout.
TEST(Progress, OfATraceIsOneJsonObjectALine) {
  const fs::path f = fresh_folder("progress_json");
  write_file(f / "prompts.txt", "one prompt\nanother prompt\n");
  const ProcessResult r = run_switchyard(
      {"trace", "--model", source_path("scenarios/checkpoints/sy-16x2").string(), "--prompts",
       "prompts.txt", "--max-new", "3", "--progress", "json", "-o", "t.h5"},
      {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  std::istringstream lines(r.out);
  std::map<std::string, std::uint64_t> done;
  std::map<std::string, std::uint64_t> total;
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json event = nlohmann::json::parse(line);
    last = event.at("event");
    if (last == "progress") {
      const std::string phase = event.at("phase") == "load" ? "load" : "tokens";
      EXPECT_GE(event.at("done").get<std::uint64_t>(), done[phase]) << line;
      done[phase] = event.at("done");
      total[phase] = event.at("total");
    } else {
      EXPECT_EQ(event.at("output"), "t.h5");
    }
  }
  EXPECT_EQ(last, "done");
  EXPECT_EQ(done.size(), 2U);
  EXPECT_EQ(done, total);
  EXPECT_GT(total["load"], total["tokens"]);
}

TEST(BadInput, TheErrorEventHasFileAndLineApart) {
  const fs::path f = folder_with_hardware("event", "bandwidth = \"450 GB/s\"", "bandwidth = 400");
  const auto event_of = [&](const std::vector<std::string>& command) {
    const ProcessResult r = run_switchyard(command, {.folder = f, .environment = {}});
    EXPECT_EQ(r.exit_code, 2);
    return nlohmann::json::parse(r.out);
  };
  nlohmann::json event = event_of({"sim", "scenario.toml", "--progress", "json", "-o", "r.h5"});
  EXPECT_EQ(event["event"], "error");
  EXPECT_TRUE(event["file"].get<std::string>().ends_with("hardware.toml")) << event;
  const std::string text = read_file(f / "hardware.toml");
  const auto line =
      1 + std::count(text.begin(),
                     text.begin() + static_cast<std::ptrdiff_t>(text.find("bandwidth = 400")),
                     '\n');
  EXPECT_EQ(event["line"], line) << event;
  const std::string message = event["message"];
  EXPECT_NE(message.find("bandwidth = 400 has no unit"), std::string::npos) << event;
  EXPECT_EQ(message.find("hardware.toml"), std::string::npos) << event;
  event = event_of({"sim", "nowhere.toml", "--progress", "json", "-o", "r.h5"});
  EXPECT_EQ(event["file"], "nowhere.toml");
  EXPECT_TRUE(event["line"].is_null()) << event;
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

// An option that may be repeated takes one word, so that the words behind it are what they are
// without it.
TEST(BadInput, OptionsThatMayBeRepeatedLeaveTheWordsBehindThem) {
  const fs::path f = fresh_folder("repeated_options");
  const std::string scenario = source_path("scenarios/normative.toml").string();
  const ProcessResult r = run_switchyard(
      {"explain", "--set", "run.seed=7", "--set", "workload.batch=8", scenario, "--format", "csv"},
      {.folder = f, .environment = {}});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("\nrun.seed,7,"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("\nworkload.batch,8,"), std::string::npos) << r.out;
  for (const char* verb : {"sim", "sweep"}) {
    expect_refused(f, {verb, "--set", "run.seed=7", "none.toml", "-o", "o"},
                   {"none.toml: No such file"});
  }
  expect_refused(f, {"monitor", "--set", "run.seed=7", "none.toml"}, {"none.toml"});
  expect_refused(f,
                 {"couple", "--set", "run.seed=7", "none.toml", "--model",
                  source_path("scenarios/checkpoints/sy-16x2").string(), "--prompts",
                  source_path("scenarios/prompts/mixed.jsonl").string(), "-o", "o.h5"},
                 {"none.toml"});
  expect_refused(f,
                 {"import", "--tokens", "8,16", "deepep", "none.log", "--hidden", "7168", "--top-k",
                  "8", "--experts", "288", "-o", "x_deepep_ll_us.csv"},
                 {"none.log: cannot open"});
  expect_refused(f, {"import", "--stage-layers", "2,2", "megatron-jsonl", "none", "-o", "x.csv"},
                 {"none"});
  expect_refused(f, {"explain", scenario, "--set", "run.seed=7", "run.steps=2"},
                 {"\"run.steps=2\" is not known here; --set takes one word; say --set again"});
  expect_refused(f, {"import", "deepep", "none.log", "-o", "x.csv", "--tokens", "8", "16"},
                 {"\"16\" is not known here; --tokens takes one word"});
}

TEST(BadInput, UnwritableOutput) {
  const fs::path f = fresh_folder("unwritable");
  expect_refused(f, {"sim", source_path("scenarios/hub.toml").string(), "-o", "/proc/no/r.h5"},
                 {"-o: cannot make the folder /proc/no"});
}

TEST(BadInput, KindsOfExport) {
  const fs::path f = fresh_folder("export_kinds");
  expect_refused(f, {"export", "gguff", "x", "-o", "z"}, {"unknown kind \"gguff\"", "gguf"});
  expect_refused(f, {"export", "gguf", "nowhere", "-o", "z"}, {"nowhere: no such checkpoint"});
  expect_refused(f,
                 {"export", "gguf", source_path("scenarios/checkpoints/sy-16x2").string(), "-o",
                  "z", "--type", "q5_0"},
                 {"--type: unknown type \"q5_0\""});
}

TEST(Capability, ProfilingWithoutAGpuIsExitThreeAndOneLine) {
  if (fs::exists("/dev/nvidia0")) {
    GTEST_SKIP() << "there is a GPU";
  }
  const fs::path f = fresh_folder("profile");
  const ProcessResult r =
      run_switchyard({"profile", "--device", "cuda", "--model", "mixtral_8x7b", "-o", "c.toml"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(r.exit_code, 3) << r.err;
  EXPECT_TRUE(r.err.starts_with("switchyard: --device cuda: ")) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_EQ(listing(f), std::vector<std::string>{});
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

// A full disk behind a redirection is no fault of the program, whichever verb prints.
TEST(BadInput, AFullStandardOutputIsNamed) {
  const fs::path scenario = source_path("scenarios/normative.toml");
  for (const std::string& verb :
       {"explain '" + scenario.string() + "'", std::string("table account")}) {
    const ProcessResult r =
        run_process({"/bin/sh", "-c", "'" + switchyard_binary() + "' " + verb + " > /dev/full"});
    EXPECT_EQ(r.exit_code, 2) << r.err;
    EXPECT_EQ(r.err, "switchyard: cannot write to standard output\n") << verb;
  }
}

// Whoever cannot be told gets the exit code all the same.
TEST(BadInput, AStandardErrorThatIsClosedOrFullChangesNoExitCode) {
  for (const char* where : {"2>&-", "2>/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full"}) {
    const ProcessResult r = run_process(
        {"/bin/sh", "-c", "'" + switchyard_binary() + "' sim no_such_scenario.toml " + where});
    EXPECT_EQ(r.exit_code, 2) << where;
  }
  // A closed stream's number is no file's: nothing is printed into the run.
  const fs::path f = fresh_folder("closed_streams");
  const fs::path scenario = source_path("tests/sim/data/residency/offload.toml");
  const std::string sim = "'" + switchyard_binary() + "' sim '" + scenario.string() +
                          "' --set 'workload.routing={synthetic=\"uniform\"}' -o ";
  const ProcessResult open = run_process({"/bin/sh", "-c", sim + (f / "a.h5").string()});
  ASSERT_EQ(open.exit_code, 0) << open.err;
  const ProcessResult closed =
      run_process({"/bin/sh", "-c", sim + (f / "b.h5").string() + " --quiet <&- 2>&-"});
  EXPECT_EQ(closed.exit_code, 0);
  EXPECT_EQ(run_switchyard({"diff", (f / "a.h5").string(), (f / "b.h5").string()}).exit_code, 0);
}

// Text comes out of a model whose router has gone wrong, but not without a word; a figure does not.
TEST(BadInput, ARouterThatIsNotANumberIsSaid) {
  const fs::path f = fresh_folder("nan_router");
  fs::copy(source_path("scenarios/checkpoints/sy-16x2"), f / "ckpt");
  std::string bytes = read_file(f / "ckpt" / "model.safetensors");
  const std::string header = header_of(bytes), name = "model.layers.1.block_sparse_moe.gate.weight";
  const std::string key = "\"data_offsets\":[";
  const std::size_t at = header.find(key, header.find(name));
  ASSERT_NE(at, std::string::npos);
  const std::size_t first = 8 + header.size() + std::stoul(header.substr(at + key.size()));
  for (std::size_t i = 0; i < 32; ++i) {
    bytes[first + 2 * i] = '\xc0';  // BF16 0x7fc0
    bytes[first + 2 * i + 1] = '\x7f';
  }
  write_file(f / "ckpt" / "model.safetensors", bytes);
  write_file(f / "text.txt", "Once upon a time there was a model.\n");
  const ProcessResult said =
      run_switchyard({"generate", "--model", "ckpt", "--prompt", "Once upon", "--max-new", "2"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_NE(said.err.find("router rows"), std::string::npos) << said.err;
  const ProcessResult figure =
      run_switchyard({"generate", "--model", "ckpt", "--perplexity", "text.txt"},
                     {.folder = f, .environment = {}});
  EXPECT_EQ(figure.exit_code, 2) << figure.out;
  EXPECT_NE(figure.err.find("router logits are not numbers"), std::string::npos) << figure.err;
}

// `| head -1` ends the program as SIGPIPE would, but for what it has begun to write.
TEST(BadInput, AReaderThatHasLeftEndsItWithoutAWord) {
  const fs::path f = fresh_folder("no_reader");
  const fs::path scenario = source_path("tests/sim/data/residency/offload.toml");
  const ProcessResult r =
      run_process({"/bin/sh", "-c",
                   "{ '" + switchyard_binary() + "' sim '" + scenario.string() +
                       "' --set 'workload.routing={synthetic=\"uniform\"}' --progress json -o '" +
                       (f / "r.h5").string() + "'; echo $? > '" + (f / "code").string() +
                       "'; } | sh -c 'exec 0<&-; sleep 1'"});
  EXPECT_EQ(r.err, "");
  std::ifstream in(f / "code");
  int code = -1;
  in >> code;
  EXPECT_EQ(code, 141);
  for (const auto& file : fs::directory_iterator(f)) {
    EXPECT_NE(file.path().extension(), ".tmp") << file.path();
  }
}

TEST(BadInput, AnOutputIsNoInput) {
  const fs::path f = fresh_folder("own_output");
  const fs::path scenario = source_path("tests/sim/data/residency/offload.toml");
  const std::string run = (f / "r.h5").string();
  ASSERT_EQ(run_switchyard({"sim", scenario.string(), "--set",
                            "workload.routing={synthetic=\"uniform\"}", "-o", run, "--quiet"})
                .exit_code,
            0);
  for (const char* kind : {"csv", "placement", "perfetto"}) {
    const ProcessResult r = run_switchyard({"export", kind, run, "-o", run});
    EXPECT_EQ(r.exit_code, 2) << kind;
    EXPECT_NE(r.err.find("is the input itself"), std::string::npos) << r.err;
  }
  EXPECT_EQ(run_switchyard({"inspect", run}).exit_code, 0);
  fs::copy(source_path("scenarios/checkpoints/sy-16x2"), f / "model");
  const ProcessResult gguf = run_switchyard(
      {"export", "gguf", (f / "model").string(), "-o", (f / "model" / "config.json").string()});
  EXPECT_EQ(gguf.exit_code, 2);
  EXPECT_NE(gguf.err.find("is a file of the input"), std::string::npos) << gguf.err;
  EXPECT_EQ(run_switchyard({"export", "gguf", (f / "model").string(), "-o",
                            (f / "model" / "sy.gguf").string(), "--quiet"})
                .exit_code,
            0);
}

TEST(BadInput, ALimitOnTheSizeOfFilesIsAnErrorAndLeavesNothing) {
  const fs::path folder = fs::absolute("limit");
  fs::remove_all(folder);
  fs::create_directories(folder);
  const ProcessResult r = run_process(
      {"/bin/sh", "-c",
       "cd '" + folder.string() + "' && ulimit -f 8 && '" + switchyard_binary() + "' sim '" +
           source_path("scenarios/offload_cpu.toml").string() + "' -o r.h5"});
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_EQ(r.err, "switchyard: r.h5: cannot write: File too large\n");
  EXPECT_TRUE(fs::is_empty(folder));
}
