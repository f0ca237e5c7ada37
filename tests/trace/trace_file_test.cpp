// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/h5/container.hpp"
#include "engine/h5/file_reader.hpp"
#include "engine/trace/trace.hpp"
#include "tests/trace/sample_trace.hpp"

namespace switchyard {
namespace {
namespace fs = std::filesystem;
using testing_trace::SampleOptions;
using testing_trace::write_sample;

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

/// Without the fsync of write_file: hundreds of damaged files are written below.
void quick_write(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

void expect_same(const RoutingTrace& a, const RoutingTrace& b) {
  EXPECT_EQ(a.header, b.header);
  EXPECT_EQ(a.sequences, b.sequences);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.step_begin, b.step_begin);
  EXPECT_EQ(a.gate_bias, b.gate_bias);
  EXPECT_EQ(a.gate_sum, b.gate_sum);
  EXPECT_EQ(a.routing, b.routing);
  EXPECT_EQ(a.decisions_present, b.decisions_present);
  EXPECT_EQ(a.truncated_slots, b.truncated_slots);
  EXPECT_EQ(a.nan_rows, b.nan_rows);
  EXPECT_EQ(a.minus_inf_rows, b.minus_inf_rows);
}

SampleOptions tight() {
  SampleOptions o;
  o.policy.capacity.rule = CapacityRule::kShare;
  o.policy.capacity.factor = 1.0;
  return o;
}

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] fs::path at(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::string read_message(const std::string& name) const {
    const std::string text = message_of([&] { (void)read_trace(at(name)); });
    const std::string prefix = at(name).string() + ": ";
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }
  fs::path folder_;
};

TEST_F(TraceFile, GivesBackWhatTheEngineRecorded) {
  const RoutingTrace written = write_sample(at("t.h5"), tight());
  EXPECT_EQ(written.rows(), 8U + 3 * 3);
  EXPECT_EQ(written.steps(), 4U);
  // The sample must have something to record.
  EXPECT_GT(std::count(written.routing.outcome.begin(), written.routing.outcome.end(), 2), 0);
  expect_same(read_trace(at("t.h5")), written);
}

TEST_F(TraceFile, KeepsBiasRouterInputExtraSlotsAndFlags) {
  SampleOptions o = tight();
  o.gate = gate_deepseek_v3(16, 4, 4, 2);
  o.bias = true;
  o.hidden = 6;
  o.extra_slots = 2;
  o.one_nan = true;
  RoutingTrace written = write_sample(at("t.h5"), o);
  EXPECT_EQ(written.nan_rows, 1U);
  expect_same(read_trace(at("t.h5"), {true, true}), written);
  const RoutingTrace lean = read_trace(at("t.h5"));
  EXPECT_TRUE(lean.routing.router_input.empty());
  EXPECT_EQ(lean.header.hidden, 0U);
  EXPECT_EQ(lean.routing.logit, written.routing.logit);
  EXPECT_EQ(lean.routing.first[written.slot_at(0, 0, 4)], kNoExpert);  // Slot 5 of 4 used.
}

TEST_F(TraceFile, StoresFewCandidatesOfManyExperts) {
  SampleOptions o = tight();
  o.gate = gate_qwen(128, 8, true);
  o.prompts = {40, 2};
  const RoutingTrace written = write_sample(at("t.h5"), o);
  EXPECT_EQ(written.header.candidates, 10U);
  EXPECT_GT(written.truncated_slots, 0U);  // Ten candidates do not always have room.
  expect_same(read_trace(at("t.h5")), written);
}

TEST_F(TraceFile, HasTheSameBytesTwiceAndFromMemory) {
  fs::create_directories(at("elsewhere"));
  const RoutingTrace trace = write_sample(at("a.h5"), tight());
  (void)write_sample(at("elsewhere/b.h5"), tight());
  write_trace(at("c.h5"), trace);
  const std::string a = read_file(at("a.h5"));
  EXPECT_TRUE(a == read_file(at("elsewhere/b.h5")));
  EXPECT_TRUE(a == read_file(at("c.h5")));
}

TEST_F(TraceFile, MayHaveNoDecisions) {
  RoutingTrace trace = write_sample(at("a.h5"), tight());
  trace.decisions_present = false;
  trace.routing.first.clear();
  trace.routing.chosen.clear();
  trace.routing.weights.clear();
  trace.routing.outcome.clear();
  write_trace(at("b.h5"), trace);
  expect_same(read_trace(at("b.h5")), trace);
}

TEST_F(TraceFile, MayHaveNoRows) {
  RoutingTrace trace;
  trace.header = testing_trace::sample_header({});
  trace.step_begin = {0};
  write_trace(at("a.h5"), trace);
  expect_same(read_trace(at("a.h5")), trace);
}

TEST_F(TraceFile, AgreesWithFormatMd) {
  const std::string generated = trace_format();
  const fs::path committed = fs::path(SWITCHYARD_SOURCE_DIR) / "engine/trace/FORMAT.md";
  write_file("FORMAT.md", generated);
  EXPECT_EQ(fs::exists(committed) ? read_file(committed) : "", generated)
      << "differs from engine/trace/FORMAT.md; if meant, copy FORMAT.md of the test's working "
         "folder over it and say why in the commit";
  SampleOptions o = tight();
  o.bias = true;
  o.hidden = 2;
  o.requests = true;
  o.gates = true;
  (void)write_sample(at("t.h5"), o);
  const h5::FileReader file(at("t.h5"), trace_schema());
  EXPECT_EQ(h5::schema_differences(trace_schema(), file), std::vector<std::string>{});
  // Every row of the table is in this file: nothing is documented that nobody writes.
  for (const h5::SchemaEntry& entry : trace_schema().entries) {
    EXPECT_TRUE(file.has(entry.name)) << entry.name;
    EXPECT_NE(generated.find("| `" + entry.name.substr(entry.name[0] == '@' ? 1 : 0) + "` |"),
              std::string::npos);
  }
}

TEST_F(TraceFile, KeepsTheSumsOfTheGatesProbabilities) {
  SampleOptions o = tight();
  o.gates = true;
  const RoutingTrace trace = write_sample(at("a.h5"), o);
  ASSERT_EQ(trace.gate_sum.size(), 3U * 3 * 8);
  // Sequence 0: its prompt was warm-up, so three decode rows count.
  EXPECT_NEAR(std::accumulate(trace.gate_sum.begin(), trace.gate_sum.begin() + 8, 0.0), 3, 1e-6);
  expect_same(read_trace(at("a.h5")), trace);
  write_trace(at("b.h5"), trace);
  EXPECT_TRUE(read_file(at("a.h5")) == read_file(at("b.h5")));
  RoutingTrace bad = trace;
  bad.gate_sum[3 * 8 + 8 + 2] += 0.01;
  write_trace(at("a.h5"), bad);
  EXPECT_EQ(
      read_message("a.h5").find("gate_sum[1]: layer 3: probabilities of 4 rows that add up to "
                                "4.0"),
      0U)
      << read_message("a.h5");
  bad.gate_sum = trace.gate_sum;
  bad.gate_sum[0] = std::nan("");  // a row that was not a number
  write_trace(at("a.h5"), bad);
  EXPECT_EQ(read_message("a.h5"), "no error");
  bad.gate_sum[1] = -0.5;
  write_trace(at("a.h5"), bad);
  EXPECT_NE(read_message("a.h5"), "no error");
}

TEST_F(TraceFile, KeepsWhatTheRequestsSaid) {
  SampleOptions o = tight();
  o.requests = true;
  RoutingTrace trace = write_sample(at("a.h5"), o);
  const RoutingTrace back = read_trace(at("a.h5"));
  expect_same(back, trace);
  EXPECT_EQ(back.sequences[0].text, "prompt é 0");
  EXPECT_EQ(back.sequences[1].text, "prompt é 1");
  EXPECT_EQ(back.sequences[2].expert, 5);
  EXPECT_EQ(back.sequences[0].expert, kNoExpert);
  trace.sequences[1].expert = 8;  // of 8
  write_trace(at("b.h5"), trace);
  EXPECT_NE(read_message("b.h5").find("sequence/expert"), std::string::npos)
      << read_message("b.h5");
  EXPECT_NE(read_message("b.h5").find("expert 8 of 8"), std::string::npos);
}

TEST_F(TraceFile, OfVersionOneStaysReadable) {
  SampleOptions o = tight();
  o.one_nan = true;
  const RoutingTrace now = write_sample("trace_v1.h5", o);
  // The kept file is a copy of trace_v1.h5 in this test's working folder, made by version 1.
  const RoutingTrace kept =
      read_trace(fs::path(SWITCHYARD_SOURCE_DIR) / "tests/trace/data/trace_v1.h5");
  EXPECT_EQ(kept.header, now.header);
  EXPECT_EQ(kept.sequences, now.sequences);
  EXPECT_EQ(kept.tokens, now.tokens);
  EXPECT_EQ(kept.step_begin, now.step_begin);
  EXPECT_EQ(kept.routing.candidates, now.routing.candidates);
  EXPECT_EQ(kept.routing.first, now.routing.first);
  EXPECT_EQ(kept.routing.chosen, now.routing.chosen);
  EXPECT_EQ(kept.routing.outcome, now.routing.outcome);
  EXPECT_EQ(kept.nan_rows, 1U);
  EXPECT_EQ(kept.minus_inf_rows, 1U);
  // Another C library may round logarithms differently.
  ASSERT_EQ(kept.routing.logit.size(), now.routing.logit.size());
  for (std::size_t i = 0; i < now.routing.logit.size(); ++i) {
    EXPECT_FLOAT_EQ(kept.routing.logit[i], now.routing.logit[i]) << i;
  }
  ASSERT_EQ(kept.routing.weights.size(), now.routing.weights.size());
  for (std::size_t i = 0; i < now.routing.weights.size(); ++i) {
    EXPECT_FLOAT_EQ(kept.routing.weights[i], now.routing.weights[i]) << i;
  }
}

TEST_F(TraceFile, ThatIsCutShortOrFlippedIsRefused) {
  (void)write_sample(at("a.h5"), tight());
  const std::string whole = read_file(at("a.h5"));
  for (std::size_t n = 0; n < whole.size(); n += 1 + n / 7) {
    quick_write(at("b.h5"), whole.substr(0, n));
    EXPECT_NE(read_message("b.h5"), "no error") << n;
  }
  for (std::size_t i = 0; i < whole.size(); i += 1 + i / 40) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    quick_write(at("b.h5"), damaged);
    const std::string text = read_message("b.h5");
    EXPECT_TRUE(text.starts_with("damaged: ") || (i < 8 && text == "not a Switchyard file")) << i;
  }
}

TEST_F(TraceFile, OfAnotherKindOrVersionIsNamed) {
  (void)write_sample(at("a.h5"), tight());
  h5::seal_file(at("a.h5"), h5::FileKind::kRun, 1);
  EXPECT_EQ(read_message("a.h5"), "this is a run file, expected a routing trace");
  h5::seal_file(at("a.h5"), h5::FileKind::kTrace, 2);
  EXPECT_EQ(read_message("a.h5"),
            "routing trace of schema version 2; this program reads up to version 1; a newer "
            "Switchyard wrote it; read it with that one");
}

/// Overwrites one element of a dataset, or an attribute, and seals the file again.
class TamperedTrace : public TraceFile {
 protected:
  void SetUp() override {
    TraceFile::SetUp();
    SampleOptions o = tight();
    o.one_nan = true;
    good_ = write_sample(at("good.h5"), o);
  }
  template <class Change>
  std::string after(const Change& change) {
    fs::copy_file(at("good.h5"), at("a.h5"), fs::copy_options::overwrite_existing);
    const hid_t file = H5Fopen(at("a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    EXPECT_GE(file, 0);
    change(file);
    EXPECT_GE(H5Fclose(file), 0);
    h5::seal_file(at("a.h5"), h5::FileKind::kTrace, 1);
    return read_message("a.h5");
  }
  template <class T>
  static void poke(hid_t file, const char* name, hid_t type, std::uint64_t index, T value) {
    const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    ASSERT_GE(set, 0) << name;
    const hid_t space = H5Dget_space(set);
    std::vector<T> all(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
    ASSERT_LT(index, all.size());
    ASSERT_GE(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
    all[index] = value;
    ASSERT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
    H5Sclose(space);
    H5Dclose(set);
  }
  template <class T>
  std::string poked(const char* name, hid_t type, std::uint64_t index, T value) {
    return after([&](hid_t file) { poke<T>(file, name, type, index, value); });
  }
  std::string u8(const char* name, std::uint64_t i, std::uint8_t v) {
    return poked<std::uint8_t>(name, H5T_NATIVE_UINT8, i, v);
  }
  std::string u16(const char* name, std::uint64_t i, std::uint16_t v) {
    return poked<std::uint16_t>(name, H5T_NATIVE_UINT16, i, v);
  }
  std::string u32(const char* name, std::uint64_t i, std::uint32_t v) {
    return poked<std::uint32_t>(name, H5T_NATIVE_UINT32, i, v);
  }
  std::string f32(const char* name, std::uint64_t i, float v) {
    return poked<float>(name, H5T_NATIVE_FLOAT, i, v);
  }
  std::string attribute(const char* name, std::uint64_t value) {
    return after([&](hid_t file) {
      const hid_t a = H5Aopen(file, name, H5P_DEFAULT);
      ASSERT_GE(H5Awrite(a, H5T_NATIVE_UINT64, &value), 0);
      H5Aclose(a);
    });
  }
  std::string text_attribute(const char* name, const std::string& value) {
    return after([&](hid_t file) {
      H5Adelete(file, name);
      const hid_t type = H5Tcopy(H5T_C_S1);
      H5Tset_size(type, value.size());
      const hid_t space = H5Screate(H5S_SCALAR);
      const hid_t a = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
      ASSERT_GE(H5Awrite(a, type, value.data()), 0);
      H5Aclose(a);
      H5Sclose(space);
      H5Tclose(type);
    });
  }
  RoutingTrace good_;  // Layers 1, 3, 5; M = E = 8; K = k = 2; rows 0-7 prefill, then 3 steps of 3.
};

TEST_F(TamperedTrace, HasItsTokenRowsChecked) {
  EXPECT_EQ(u32("token/sequence", 4, 3), "token/sequence[4]: sequence 3 of a table of 3");
  EXPECT_EQ(u8("token/phase", 4, 3), "token/phase[4]: phase 3; 0 prefill, 1 decode, 2 warm-up");
  EXPECT_EQ(u8("token/phase", 4, 1),
            "token/position[4]: a decode row at position 0 of a prompt of 4 tokens");
  EXPECT_EQ(u32("token/step", 0, 1), "token/step[0]: the first step is 1, not 0");
  EXPECT_EQ(u32("token/step", 8, 2), "token/step[8]: step 2 after step 0");
  EXPECT_EQ(u32("token/step", 12, 0), "token/step[12]: step 0 after step 2");
  EXPECT_EQ(u32("token/position", 5, 0),
            "token/position[5]: rows of a step ascend by (arrival of the sequence, position)");
  EXPECT_EQ(u32("sequence/arrival", 1, 5),
            "token/position[4]: rows of a step ascend by (arrival of the sequence, position)");
  EXPECT_EQ(u32("sequence/arrival", 1, 0), "sequence/arrival[1]: arrival 0 stands twice");
  EXPECT_EQ(u32("sequence/prompt_length", 2, 0),
            "sequence/prompt_length[2]: a prompt has at least one token");
}

TEST_F(TamperedTrace, HasItsCandidatesChecked) {
  const std::uint64_t at = good_.candidate_at(5, 1);
  const std::uint16_t best = good_.routing.candidates[at];
  EXPECT_EQ(u16("candidates", at, 8), "candidates[5]: layer 3: expert 8 of 8");
  EXPECT_EQ(u16("candidates", at + 3, best),
            fmt::format("candidates[5]: layer 3: expert {} stands twice", best));
  EXPECT_EQ(u16("candidates", at, kNoExpert), "candidates[5]: layer 3: no candidate at all");
  EXPECT_EQ(u16("candidates", at + 3, kNoExpert),
            "candidates[5]: layer 3: an expert after the end of the row");
  EXPECT_EQ(f32("logit", at, std::nanf("")),
            "logit[5]: layer 3: a logit that is NaN or +inf; they are stored as -inf");
  EXPECT_EQ(f32("logit", at, std::numeric_limits<float>::infinity()),
            "logit[5]: layer 3: a logit that is NaN or +inf; they are stored as -inf");
  EXPECT_EQ(f32("logit", at + 7, 100.0F), "logit[5]: layer 3: the candidates are not best first");
  EXPECT_EQ(f32("logit", at + 7, -std::numeric_limits<float>::infinity()),
            "logit: 2 rows have a logit of -inf, the attribute minus_inf_rows says 1");
  EXPECT_EQ(f32("lse", good_.layer_at(5, 1), -std::numeric_limits<float>::infinity()),
            "lse[5]: layer 3: not finite");
}

TEST_F(TamperedTrace, HasItsDecisionsChecked) {
  // A slot that was rerouted, so that first and chosen differ.
  const auto& outcome = good_.routing.outcome;
  const auto at =
      static_cast<std::uint64_t>(std::find(outcome.begin(), outcome.end(), 2) - outcome.begin());
  ASSERT_LT(at, outcome.size());
  const std::uint64_t row = at / 6;
  const std::uint32_t layer = good_.header.layers[at / 2 % 3];
  const std::string place = fmt::format("[{}]: layer {}: ", row, layer);
  const unsigned first = good_.routing.first[at];
  const unsigned chosen = good_.routing.chosen[at];
  EXPECT_EQ(u16("first", at, 8), "first" + place + "expert 8 of 8");
  EXPECT_EQ(u16("chosen", at, 9), "chosen" + place + "expert 9 of 8");
  EXPECT_EQ(u8("outcome", at, 5), "outcome" + place + "outcome 5; the largest is 4");
  for (const unsigned wrong : {0U, 1U, 3U, 4U}) {
    EXPECT_EQ(
        u8("outcome", at, static_cast<std::uint8_t>(wrong)),
        "outcome" + place +
            fmt::format("outcome {} does not fit first = {}, chosen = {}", wrong, first, chosen));
  }
  EXPECT_EQ(f32("weights", at, std::nanf("")), "weights" + place + "not finite");
  EXPECT_EQ(u16("chosen", at, kNoExpert), "weights" + place + "a weight where no expert runs");
  const std::uint16_t other = good_.routing.first[at ^ 1];
  EXPECT_EQ(u16("first", at, other),
            "first" + place + fmt::format("expert {} stands twice", other));
}

TEST_F(TamperedTrace, HasItsAttributesChecked) {
  EXPECT_EQ(attribute("experts", 9), "attribute experts: 9, but the gate says 8");
  EXPECT_EQ(attribute("top_k", 3), "attribute top_k: 3, but the gate says 2");
  EXPECT_EQ(attribute("candidates", 1ULL << 40),
            "attribute candidates: 1099511627776 is out of range");
  EXPECT_EQ(attribute("candidates", 7),
            "candidates = 7. Violated: 8 <= candidates <= 8 for 8 experts, 2 per token");
  EXPECT_EQ(attribute("slots", 3), "attribute slots: 3, but the dataset first says 2");
  EXPECT_EQ(attribute("slots", 1), "slots = 1. Violated: 2 <= slots <= 8");
  EXPECT_EQ(attribute("schema", 2), "attribute schema: differs from the version in the user block");
  EXPECT_EQ(attribute("minus_inf_rows", 0),
            "logit: 1 rows have a logit of -inf, the attribute minus_inf_rows says 0");
  EXPECT_EQ(text_attribute("config_hash", "xyz"),
            "config_hash = \"xyz\" is not 16 or 32 lower-case hex digits");
  EXPECT_TRUE(text_attribute("gate", "experts=0").starts_with("attribute gate: "));
  EXPECT_TRUE(text_attribute("policy", "capacity.rul=share").starts_with("attribute policy: "));
  EXPECT_EQ(u32("layer/number", 1, 1), "layer 1 after layer 1; layer numbers ascend");
}

TEST_F(TamperedTrace, HasItsDatasetsChecked) {
  EXPECT_EQ(after([](hid_t f) { H5Ldelete(f, "lse", H5P_DEFAULT); }),
            "lse: the dataset is missing");
  EXPECT_EQ(after([](hid_t f) { H5Ldelete(f, "weights", H5P_DEFAULT); }),
            "weights: first, chosen, weights and outcome are present together or not at all");
  EXPECT_EQ(
      after([](hid_t f) {
        H5Ldelete(f, "lse", H5P_DEFAULT);
        const std::vector<hsize_t> dims{1ULL << 50, 3};
        const hid_t space = H5Screate_simple(2, dims.data(), nullptr);
        const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
        const std::vector<hsize_t> chunk{64, 3};
        H5Pset_chunk(plist, 2, chunk.data());
        H5Dclose(H5Dcreate2(f, "lse", H5T_IEEE_F32LE, space, H5P_DEFAULT, plist, H5P_DEFAULT));
        H5Pclose(plist);
        H5Sclose(space);
      }),
      "lse: [1125899906842624, 3] elements cannot come from the 0 bytes stored for them");
}

TEST_F(TraceFile, CannotBeStartedWithAWrongHeader) {
  TraceHeader h = testing_trace::sample_header({});
  h.layers = {3, 1};
  EXPECT_EQ(message_of([&] { TraceWriter(at("a.h5"), h, {}); }),
            at("a.h5").string() + ": layer 1 after layer 3; layer numbers ascend");
  h.layers = {};
  EXPECT_EQ(message_of([&] { TraceWriter(at("a.h5"), h, {}); }),
            at("a.h5").string() + ": 0 MoE layers. Violated: 1 <= layers <= 4096");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(TraceFile, LeavesNothingOnAFullDisk) {
  SampleOptions o;
  o.prompts = {2000, 1500};
  (void)write_sample(at("whole.h5"), o);
  const auto size = static_cast<rlim_t>(fs::file_size(at("whole.h5")));
  fs::remove(at("whole.h5"));
  for (const rlim_t limit : {rlim_t{0}, rlim_t{600}, size / 8, size / 2, size - 1, size}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      (void)std::signal(SIGXFSZ, SIG_IGN);
      (void)::alarm(60);
      const rlimit bound{limit, limit};
      (void)::setrlimit(RLIMIT_FSIZE, &bound);
      const std::string text = message_of([&] { (void)write_sample(at("a.h5"), o); });
      std::exit(text == "no error"                                                     ? 10
                : text.find("a.h5: cannot write: File too large") != std::string::npos ? 11
                                                                                       : 12);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "limit " << limit << ": signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), limit < size ? 11 : 10) << "limit " << limit;
    EXPECT_EQ(fs::is_empty(folder_), limit < size);
  }
}

}  // namespace
}  // namespace switchyard
