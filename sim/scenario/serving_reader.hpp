// SPDX-License-Identifier: Apache-2.0
// Internal to the scenario reader: the part of [workload] that open, closed and trace workloads
// have beside `kind`, `routing` and `warmup_steps`.
#pragma once
#include <filesystem>
#include <functional>

#include "sim/scenario/scenario.hpp"
#include "sim/scenario/section.hpp"

namespace switchyard::scenario {

/// Keys of [workload] that read_serving reads.
std::vector<std::string> serving_keys();
/// `place` turns the node that names a file into its path and fails when there is none.
void read_serving(Context& context, Section& workload,
                  const std::function<std::filesystem::path(const Node&)>& place, Scenario& out);
/// What depends on the parallel layout and the memory section, once they are known.
void check_serving(const Section& workload, const Scenario& scenario);

}  // namespace switchyard::scenario
