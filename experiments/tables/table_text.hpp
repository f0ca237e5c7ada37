// SPDX-License-Identifier: Apache-2.0
// Texts that the tables of research share: scenarios of a fixed batch, and cells.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

/// [model] … [workload] of a fixed batch; `workload` is further keys of [workload], then sections.
inline std::string fixed_batch(const std::string& model, const std::string& hardware,
                               const std::string& parallel, const std::string& workload,
                               const std::string& sections = "") {
  return fmt::format(
      "[model]\nfile = \"{}\"\n[hardware]\nfile = \"hardware/{}.toml\"\n[parallel]\n{}[workload]\n"
      "{}{}{}",
      model, hardware, parallel, workload, sections, kRunTail);
}

/// Keys of [workload]: 32 steps (quick: 4) of decode after one of warm-up.
inline std::string decode_steps(std::uint64_t batch, std::uint64_t context, bool quick,
                                std::string_view routing = kDrawnRouting) {
  return fmt::format(
      "kind = \"decode\"\nbatch = {}\ncontext = {}\nsteps = {}\nwarmup_steps = 1\n{}", batch,
      context, quick ? 4 : 32, routing);
}

/// "12.34" of 0.1234.
inline std::string percent(double share) { return fmt::format("{:.2f}", 100 * share); }
/// Milliseconds of microseconds.
inline std::string ms(double microseconds) { return fmt::format("{:.3f}", 1e-3 * microseconds); }

}  // namespace switchyard::tables
