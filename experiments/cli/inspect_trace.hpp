// SPDX-License-Identifier: Apache-2.0
// `switchyard inspect T.h5` for routing traces: what the file holds and how balanced its routing
// is.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/trace/trace_parts.hpp"
#include "experiments/cli/recorded_policy.hpp"

namespace switchyard {

struct InspectTraceOptions {
  bool verify = true;        ///< false (--no-verify): skip the content hash; only above 4 GiB.
  std::uint64_t window = 0;  ///< W of load_cv in tokens; 0: all tokens as one window.
  /// The recorded policy with its files, for a trace without decisions; null: not named. Borrowed.
  const NamedPolicy* policy = nullptr;
  /// A trace above this many bytes is read by parts, if it has its decisions.
  std::uint64_t most_bytes = kTraceBytesInMemory;
};

/// Four tables: "trace" (what it is of, sizes, flags), "trace-layers" (per MoE layer and over all,
/// definitions in engine/trace/trace_stats.hpp), "trace-losses" and "trace-margins". Decisions
/// missing from the file are replayed with the recorded policy and seed, and a note says so.
/// InputError as read_trace and replay_recorded.
[[nodiscard]] std::vector<Table> inspect_trace(const std::filesystem::path& path,
                                               const InspectTraceOptions& options = {});

/// "trace-losses" (M23): one row per MoE layer and one for the model; definitions in
/// engine/trace/trace_losses.hpp. The trace must have its decisions.
[[nodiscard]] Table losses_table(const RoutingTrace& trace);
/// "trace-margins": how close the choices were (trace_margins.hpp).
[[nodiscard]] Table margins_table(const RoutingTrace& trace);

}  // namespace switchyard
