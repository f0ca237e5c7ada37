// SPDX-License-Identifier: Apache-2.0
// Experts in host memory: what a cache of them on the GPU costs per token, by PCIe generation, by
// the share that stays resident and by batch; the same where the CPU computes what is missing
// (memory.residency.miss = "cpu"), simulated and by arithmetic; and, by arithmetic alone, up to
// which batch the host would rather compute a missing expert than copy it (Fiddler, KTransformers).
//
// Not modelled: copies that begin before the router has decided (memory.residency.prefetch: table
// `locality`), staging through pageable memory.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

/// A host: bytes/s it reads and FLOP/s it computes.
struct HostRates {
  double bandwidth = 307.2e9, flops = 21e12;
};
/// Seconds of `rows` tokens in one expert of `parameters` weights and `bytes` on the host: max of
/// reading it once and 2 · parameters · rows FLOPs.
[[nodiscard]] double host_expert_seconds(const HostRates& host, double bytes, double parameters,
                                         double rows);
/// Rows of an expert from which a copy over a link of `rate` bytes/s takes less than the host; 1
/// when it always does.
[[nodiscard]] double copy_wins_from(const HostRates& host, double bytes, double parameters,
                                    double rate);

/// `routing`: gpt_oss_20b's, decode rows (scenarios/routing).
[[nodiscard]] Table offload_table(ShortRuns& runs, const RoutingTrace& routing);
[[nodiscard]] Table offload_host_table(const std::filesystem::path& scenarios);

}  // namespace switchyard::tables
