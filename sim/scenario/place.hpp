// SPDX-License-Identifier: Apache-2.0
// Where a key stands, for errors that are found after the scenario has been read.
#pragma once
#include "engine/base/error.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::scenario {

/// An error whose where() is a key ("memory.residency.host_slots") or a section that is written
/// down ("workload.batching"): the same one at the place of that key, with the key in front of its
/// message. A message that begins with a key of the section ("policy.soft.keywords needs …") is
/// placed at that one. "simulated time" gets the scenario's file. Any other error, and
/// that of a key with its default, comes back as it is.
[[nodiscard]] InputError with_place(const Scenario& scenario, const InputError& error);

}  // namespace switchyard::scenario
