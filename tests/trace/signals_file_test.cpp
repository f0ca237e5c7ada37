// SPDX-License-Identifier: Apache-2.0
// The signals file: what is written comes back, its documentation agrees with it, and hostile files
// are refused with the place.
#include "engine/trace/signals_file.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <cmath>
#include <fstream>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/h5/container.hpp"
#include "engine/h5/file_reader.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

SignalsFile sample(bool queues = true) {
  SignalsFile f;
  f.model = "m";
  f.hardware = "h";
  f.scenario = "s";
  f.scenario_hash = "0123456789abcdef";
  f.trace_hash = "fedcba9876543210";
  RoutingPolicy policy;
  policy.load_aware.u = LoadLevel::kQueue;
  f.policy = policy_to_text(policy);
  f.program = "switchyard 0";
  f.seed = 7;
  SignalTable& t = f.table;
  t.gpus = 2;
  t.layers = 2;
  t.experts = 4;
  t.decodes = {0, 1, 1};
  // A picosecond beyond what a double of seconds keeps.
  t.start_ps = {0, 1, 3'600'000'000'000'001};
  t.end_ps = {1, 3'600'000'000'000'001, 3'600'000'000'000'002};
  t.used = {0.25, 0.5, 0.3, 0.5, 1.0 / 3, 0.5};
  t.elastic = {0, 0, 0.1, 0, 0.2, 0};
  t.placement = {0, 0, 1};
  t.first_gpu = {0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 13, 13, 14, 15, 16, 17};
  t.gpu = {0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0};
  if (queues) {
    t.queue.assign(24, 0.5F);
    t.longest_queue = {0, 1, 2, 3, 4, 5};
    t.replica = {0, 1, 0};
    t.sequence_replica = {1, kNoReplica, 0, 0};
  }
  return f;
}

std::string refusal(const fs::path& path) {
  try {
    (void)read_signals(path);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(SignalsFile, ComesBackAsItWasWritten) {
  for (const bool queues : {true, false}) {
    const SignalsFile f = sample(queues);
    write_signals("a.h5", f);
    EXPECT_EQ(read_signals("a.h5"), f);
  }
  write_signals("b.h5", sample(false));
  EXPECT_EQ(read_file("a.h5"), read_file("b.h5"));
}

TEST(SignalsFile, AgreesWithItsFormatText) {
  const fs::path committed = fs::path(SWITCHYARD_SOURCE_DIR) / "engine/trace/SIGNALS_FORMAT.md";
  write_file("SIGNALS_FORMAT.md", signals_format_text());
  EXPECT_EQ(fs::exists(committed) ? read_file(committed) : "", signals_format_text())
      << "differs from engine/trace/SIGNALS_FORMAT.md; if meant, copy SIGNALS_FORMAT.md of the "
         "test's working folder over it and say why in the commit";
  write_signals("a.h5", sample());
  const h5::FileReader file("a.h5", signals_schema());
  EXPECT_EQ(h5::schema_differences(signals_schema(), file), std::vector<std::string>{});
  for (const h5::SchemaEntry& entry : signals_schema().entries) {
    EXPECT_TRUE(file.has(entry.name)) << entry.name;
  }
}

/// write_file() without waiting for the disk.
void quick_write(const char* path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(SignalsFile, OfAnotherKindCutShortOrDamagedIsNamed) {
  write_signals("a.h5", sample());
  const std::string whole = read_file("a.h5");
  h5::seal_file("a.h5", h5::FileKind::kRun, 1);
  EXPECT_EQ(refusal("a.h5"), "a.h5: this is a run file, expected a signals file");
  h5::seal_file("a.h5", h5::FileKind::kSignals, 2);
  EXPECT_NE(refusal("a.h5").find("signals file of schema version 2"), std::string::npos);
  EXPECT_NE(refusal("none.h5").find("none.h5"), std::string::npos);
  for (std::size_t n = 0; n < whole.size(); n += 1 + n / 5) {
    quick_write("b.h5", whole.substr(0, n));
    EXPECT_NE(refusal("b.h5"), "accepted") << n;
  }
  for (std::size_t i = 0; i < whole.size(); i += 1 + i / 20) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    quick_write("b.h5", damaged);
    EXPECT_NE(refusal("b.h5"), "accepted") << i;
  }
}

/// Overwrites element `index` of a dataset and seals the file again.
template <class T>
std::string poked(const char* name, hid_t type, std::size_t index, T value) {
  write_signals("a.h5", sample());
  const hid_t file = H5Fopen("a.h5", H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
  EXPECT_GE(set, 0) << name;
  const hid_t space = H5Dget_space(set);
  std::vector<T> all(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  EXPECT_LT(index, all.size());
  EXPECT_GE(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
  all[index] = value;
  EXPECT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(file);
  h5::seal_file("a.h5", h5::FileKind::kSignals, 1);
  return refusal("a.h5");
}

TEST(SignalsFile, WithHostileValuesIsRefusedWithThePlace) {
  const auto u32 = [](const char* name, std::size_t i, std::uint32_t v) {
    return poked<std::uint32_t>(name, H5T_NATIVE_UINT32, i, v);
  };
  EXPECT_EQ(poked<double>("gpu/used", H5T_NATIVE_DOUBLE, 1, -1),
            "a.h5: used[1]: -1 is no share of a memory");
  EXPECT_EQ(poked<double>("gpu/elastic", H5T_NATIVE_DOUBLE, 0, std::nan("")),
            "a.h5: elastic[0]: nan is no share of a memory");
  EXPECT_EQ(poked<std::int64_t>("step/start", H5T_NATIVE_INT64, 0, -5),
            "a.h5: start[0]: -5 ps: times ascend from 0");
  EXPECT_EQ(poked<std::uint8_t>("step/decodes", H5T_NATIVE_UINT8, 0, 9),
            "a.h5: decodes[0]: 9 is neither 0 nor 1");
  EXPECT_EQ(u32("step/placement", 2, 4'000'000'000U), "a.h5: placement[2]: 4000000000 of 2");
  EXPECT_NE(u32("placement/first", 3, 4'000'000'000U).find("first_gpu["), std::string::npos);
  EXPECT_EQ(u32("placement/gpu", 0, 2), "a.h5: gpu[0]: GPU 2 of 2");
  EXPECT_EQ(u32("step/replica", 1, 2), "a.h5: replica[1]: replica 2 of 2 GPUs");
  EXPECT_EQ(u32("step/replica", 1, 0), "a.h5: sequence_replica[0]: replica 1 has no step");
  EXPECT_EQ(u32("sequence/replica", 3, 7), "a.h5: sequence_replica[3]: replica 7 has no step");
  EXPECT_NE(poked<float>("queue/level", H5T_NATIVE_FLOAT, 5, -1).find("queue[5]"),
            std::string::npos);
}

TEST(SignalsFile, OfAnotherModelOrWithoutTheQueuesThatAPolicyReadsIsRefused) {
  write_signals("a.h5", sample(false));
  const auto refused = [](std::uint32_t layers, std::uint32_t experts, const char* policy) {
    try {
      (void)read_signals_for("a.h5", layers, experts, policy_from_text(policy, "test"),
                             "--signals");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused(2, 4, "load_aware.u=total"), "accepted");
  EXPECT_EQ(refused(3, 4, "load_aware.u=total"),
            "--signals: a.h5 is of 2 MoE layers of 4 experts, the model has 3 of 4; simulate a "
            "trace of this model");
  EXPECT_NE(refused(2, 8, "").find("has 2 of 8"), std::string::npos);
  EXPECT_NE(refused(2, 4, "load_aware.u=queue capacity.rule=share")
                .find("--signals: a.h5: holds no queues"),
            std::string::npos);
}

}  // namespace
}  // namespace switchyard
