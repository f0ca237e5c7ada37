// SPDX-License-Identifier: Apache-2.0
// The verb `couple`: engine and simulator in turns until the decisions of a policy that reads the
// machine are stable (experiments/coupled), then the run of the last round.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/coupled/coupled.hpp"

namespace switchyard::cli {

struct CoupleOptions {
  std::string scenario;
  std::vector<std::string> settings;  ///< --set key=value
  std::filesystem::path model;        ///< Checkpoint folder or .gguf file.
  std::filesystem::path prompts;      ///< .txt or .jsonl
  std::filesystem::path output;       ///< -o, the run of the last round.
  std::filesystem::path keep;         ///< Folder for the trace and signals of each round, or empty.
  std::uint32_t rounds = 5;           ///< Engine runs after round 0, 1…100.
  std::uint32_t max_new = 32;         ///< Per prompt, unless the prompt says otherwise.
  std::uint32_t batch = 0;            ///< Prompts that run together; 0: all.
  std::uint32_t chunk = 0;            ///< 0: whole prompts.
  bool router_input = false;          ///< Traces keep hidden states: the run has its cohesion.
  unsigned threads = 0;               ///< 0: the cores. No effect on any output.
  std::string progress;               ///< "" or "json".
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};

/// 0: converged; 1: not, or a conservation law does not hold (the run is written all the same, and
/// says so). The policy, its files and the seed are the scenario's. InputError: the scenario has a
/// sweep, the checkpoint does not fit its model, what engine or simulator refuse.
int run_couple(const CoupleOptions& options);

/// One row per round, as run_couple prints it.
[[nodiscard]] Table couple_table(const coupled::Outcome& outcome, const RoutingPolicy& policy);

}  // namespace switchyard::cli
