// SPDX-License-Identifier: Apache-2.0
// What must hold in every run, whatever the scenario. A violation is a defect of the simulator, not
// of the user's input: `sim` prints them and exits with 1.
//
//   assignments      assignments = kept + rerouted + queued + dropped, per step and over the run;
//                    per expert: Σ kept in [kept + rerouted, kept + rerouted + queued], and
//                    overflow, rerouted_in, queued, dropped sum to the step's; layers sum to the
//                    whole
//   bytes            sent = received per step; GPUs' out and in sum to them
//   memory           high water of a GPU ≤ its memory unless it has an out-of-memory event; and
//                    max of the categories ≤ high water of the sum ≤ sum of the categories' high
//                    waters
//   time             end ≥ start, steps in order without overlap; phases sum to the duration along
//                    the critical path and for each GPU
//   floor            each exchange takes at least its physical floor; no link carries more than
//                    bandwidth · duration of the step (within 1e-9, one picosecond and one byte of
//                    rounding)
//   requests         arrival ≤ first token ≤ end
// Checked here as far as the blocks are there. Not checked here (the simulator does, it has the
// data): pages allocated = freed + live, actors left waiting, ∫N dt = Σ sojourn times.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sim/run/run_data.hpp"

namespace switchyard::run {

struct Violation {
  std::string check;    ///< "assignments", "bytes", "memory", "time", "floor", "requests".
  std::string where;    ///< "step 12", "step 12, GPU 3", "run".
  std::string message;  ///< Both numbers.
};

/// All checks; at most 20 violations per check are listed, the last one then says how many more.
std::vector<Violation> check_conservation(const RunData& run);

/// The checks of steps first … end of run.steps whose blocks start at step `first`; for RunWriter,
/// which lets go of blocks. Appends to `out`, no limit.
void check_steps(const RunData& run, std::size_t first, std::vector<Violation>& out);
/// The checks that need only totals, scalars, requests and events.
void check_whole_run(const RunData& run, std::vector<Violation>& out);
/// Keeps 20 per check.
std::vector<Violation> shorten(std::vector<Violation> violations);

}  // namespace switchyard::run
