// SPDX-License-Identifier: Apache-2.0
// A run as Chrome trace JSON (Trace Event Format), which ui.perfetto.dev and chrome://tracing open.
//
// One process for the run, one per GPU:
//   run     steps (a thread per replica) · counters: tokens, longest queue of an expert, imbalance,
//           requests waiting and running · requests as async slices · events as instants
//   GPU     critical path: the entries of the recorded path on this GPU, at their times; arrows
//           (flow events) lead from GPU to GPU along it
//   GPU     compute, exchange, wait: what each phase took in the step. A run records these sums
//           over the layers and not when each layer ran, so they are laid end to end from the
//           step's start, and their names say "sum"
//   GPU     memory: counter by category [B], high water of the step
// Times are microseconds with six decimals: picoseconds exactly, though Perfetto keeps nanoseconds.
// Written as it is read, so that a long run needs little memory; same run → same bytes.
//
// Not written: links, experts, levels of detail; place of the layers of a step on a GPU (above).
#pragma once
#include <cstdint>
#include <cstdio>

#include "sim/run/run_file.hpp"

namespace switchyard::exporters {

struct PerfettoOptions {
  std::uint64_t first = 0;  ///< First step.
  std::uint64_t count = 0;  ///< Steps; 0 = all that follow.
};

struct PerfettoSummary {
  std::uint64_t steps = 0, slices = 0, arrows = 0, counters = 0, instants = 0, requests = 0;
};

/// More slices than this are refused while `count` is 0: no viewer opens them.
inline constexpr std::uint64_t kMostSlices = 3'000'000;

/// InputError: steps beyond the run, a run of detail "summary", more than kMostSlices of them. The
/// caller checks `out` for write errors.
PerfettoSummary write_perfetto(const run::RunReader& reader, const PerfettoOptions& options,
                               std::FILE* out);

}  // namespace switchyard::exporters
