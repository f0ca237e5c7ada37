// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/signals.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::cli {

SignalTable read_signals(const std::filesystem::path& path, std::uint32_t layers,
                         std::uint32_t experts) {
  run::RunParts parts = run::RunParts::none();
  parts.steps = parts.gpus = true;
  const run::RunData data = run::read_run(path, parts);
  const run::Inventory& inv = data.inventory;
  const std::string where = "--signals";
  if (inv.experts != experts || inv.moe_layers.size() != layers) {
    throw InputError(
        where,
        fmt::format("{} is of a model with {} MoE layers of {} experts, this one has {} "
                    "of {}",
                    path.filename().string(), inv.moe_layers.size(), inv.experts, layers, experts),
        "simulate this model");
  }
  if (data.steps.empty() || data.gpus.memory.empty()) {
    throw InputError(where, fmt::format("{} holds no steps", path.filename().string()),
                     "simulate with run.detail = \"steps\" or more");
  }
  SignalTable t;
  t.gpus = static_cast<std::uint32_t>(inv.gpus.size());
  t.layers = layers;
  t.experts = experts;
  t.end = static_cast<double>(data.steps.back().end_ps) * 1e-12;
  for (std::size_t s = 0; s < data.steps.size(); ++s) {
    t.start.push_back(static_cast<double>(data.steps[s].start_ps) * 1e-12);
    for (std::size_t g = 0; g < t.gpus; ++g) {
      const std::size_t from = s == 0 ? 0 : s - 1;
      const auto bytes = [&](run::MemoryCategory c) {
        return static_cast<double>(data.gpus.memory[(from * t.gpus + g) * run::kMemoryCategories +
                                                    static_cast<std::size_t>(c)]);
      };
      const double fixed = bytes(run::MemoryCategory::kWeights) +
                           bytes(run::MemoryCategory::kExperts) +
                           bytes(run::MemoryCategory::kRuntime);
      const double kv = s == 0 ? 0 : bytes(run::MemoryCategory::kKv);
      const auto capacity = static_cast<double>(inv.gpus[g].memory_bytes);
      t.used.push_back((fixed + kv) / capacity);
      t.elastic.push_back(capacity > fixed ? kv / (capacity - fixed) : 1.0);
    }
  }
  for (std::size_t l = 0; l < layers; ++l) {
    for (std::size_t e = 0; e < experts; ++e) {
      t.first_gpu.push_back(static_cast<std::uint32_t>(t.gpu.size()));
      for (std::size_t r = 0; r < inv.replicas; ++r) {
        const std::uint32_t g = inv.placement[(l * experts + e) * inv.replicas + r];
        if (g != run::kNone) {
          t.gpu.push_back(g);
        }
      }
    }
    t.first_gpu.push_back(static_cast<std::uint32_t>(t.gpu.size()));
  }
  return t;
}

}  // namespace switchyard::cli
