// SPDX-License-Identifier: Apache-2.0
// A long run: 256 experts in 58 layers on 8 GPUs. What writing costs per step, and what a reader
// pays to open it, see the first picture, look at 60 steps, and check the conservation laws.
//   run_bench STEPS summary|steps|layers [FILE]    FILE is kept
// Exit code 1: the first picture needs more than 1 MB, or a law does not hold (those of single
// layers are checked up to 10 000 steps).
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>

#include "engine/base/error.hpp"
#include "sim/run/conservation.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::run {
namespace {

constexpr std::uint32_t kLayers = 58, kExperts = 256, kGpus = 8;

Inventory inventory() {
  Inventory inv;
  for (std::uint32_t g = 0; g < kGpus; ++g) {
    inv.gpus.push_back({fmt::format("gpu{}", g), 0, 141'000'000'000, {4.8e12}, {989e12}});
    inv.links.push_back(
        {fmt::format("up{}", g), fmt::format("gpu{}", g), "switch", "nvlink4", {450e9}});
  }
  inv.experts = kExperts;
  inv.top_k = 8;
  inv.replicas = 1;
  for (std::uint32_t l = 0; l < kLayers; ++l) {
    inv.moe_layers.push_back(l + 3);
    for (std::uint32_t e = 0; e < kExperts; ++e) inv.placement.push_back(e / (kExperts / kGpus));
  }
  return inv;
}

/// Loads that look like routing: a few hot experts, noise from a fixed sequence.
void fill(StepRecord& r, std::uint64_t step, std::uint64_t& state) {
  StepScalars& x = r.scalars;
  constexpr std::int64_t kStep = 20'000'000'000;
  x.start_ps = static_cast<std::int64_t>(step) * kStep;
  x.end_ps = x.start_ps + kStep;
  x.tokens = 256;
  x.sequences = 256;
  x.phase_ps = {};
  x.phase_ps[static_cast<std::size_t>(Phase::kExpert)] = kStep;
  x.assignments = 0;
  for (std::size_t i = 0; i < r.expert_kept.size(); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto noise = static_cast<std::uint32_t>(state >> 61U);
    r.expert_kept[i] = 4 + noise + (i % 37 == 0 ? 30 : 0);
    x.assignments += r.expert_kept[i];
  }
  x.kept = x.assignments;
  for (std::uint32_t g = 0; g < kGpus; ++g) {
    r.gpu_phase_ps[g * kPhases + static_cast<std::size_t>(Phase::kExpert)] = kStep;
  }
}

double cpu() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

int run(std::uint64_t steps, Detail detail, const std::filesystem::path& kept) {
  const std::filesystem::path path = kept.empty() ? "long.h5" : kept;
  const auto print = [](const std::string& what, double value, const char* unit) {
    fmt::print("{:<44} {:>12.4g} {}\n", what, value, unit);
  };
  RunMeta meta;
  meta.product_version = "bench";
  meta.detail = detail;
  double begin = cpu();
  {
    const Inventory inv = inventory();
    RunWriter writer(path, meta, inv);
    StepRecord record = make_step(inv);
    std::uint64_t state = 1;
    for (std::uint64_t s = 0; s < steps; ++s) {
      fill(record, s, state);
      writer.append(record);
    }
    if (!writer.finish().empty()) {
      fmt::print("the run breaks a conservation law\n");
      return 1;
    }
    print("blocks, rows and levels held at once", static_cast<double>(writer.peak_bytes()) * 1e-6,
          "MB");
  }
  print("write, per step", (cpu() - begin) * 1e3 / static_cast<double>(steps), "ms");
  print("file", static_cast<double>(std::filesystem::file_size(path)) * 1e-6, "MB");
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  print("memory of the writer", static_cast<double>(usage.ru_maxrss) * 1e-3, "MB");
  begin = cpu();
  const RunReader reader(path);
  print("open (reads and hashes all of it)", (cpu() - begin) * 1e3, "ms");
  begin = cpu();
  const std::uint64_t before = reader.bytes_read();
  (void)reader.overview();
  const double picture = static_cast<double>(reader.bytes_read() - before);
  print("first picture", (cpu() - begin) * 1e3, "ms");
  print("first picture", picture * 1e-6, "MB");
  if (detail >= Detail::kSteps && steps > 60) {
    begin = cpu();
    (void)reader.read_experts(steps / 2, 60);
    print("60 steps of all experts", (cpu() - begin) * 1e3, "ms");
  }
  begin = cpu();
  const bool sound = check_conservation(reader, 0, steps <= 10'000).empty();
  print("all conservation laws (inspect)", cpu() - begin, "s");
  getrusage(RUSAGE_SELF, &usage);
  print("memory in all", static_cast<double>(usage.ru_maxrss) * 1e-3, "MB");
  if (kept.empty()) std::filesystem::remove(path);
  if (picture > 1e6 || !sound) {
    fmt::print("FAILED: {}\n",
               sound ? "the first picture needs more than 1 MB" : "a law is broken");
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace switchyard::run

int main(int argc, char** argv) {
  try {
    const std::uint64_t steps = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 500;
    return switchyard::run::run(
        steps, switchyard::run::parse_detail(argc > 2 ? argv[2] : "layers", "run_bench"),
        argc > 3 ? argv[3] : "");
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
