// SPDX-License-Identifier: Apache-2.0
// `switchyard explain SCENARIO`: every resolved value with its origin, the routing pipeline that is
// active, and the hash that names the scenario.
#pragma once
#include <string>

#include "engine/base/table.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard {

/// Columns key, value, origin, source of the figure; one row per resolved value in canonical order,
/// sweeps last. Notes: the active routing steps, the number of sweep points, the scenario hash.
Table explain_scenario(const scenario::Scenario& scenario);

/// Reads the scenario (a trace that does not exist yet is no error here) and explains it.
Table explain_file(const std::string& path, scenario::ReadOptions options);

}  // namespace switchyard
