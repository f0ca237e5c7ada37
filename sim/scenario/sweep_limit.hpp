// SPDX-License-Identifier: Apache-2.0
// How many points a sweep may have.
#pragma once
#include <cstddef>

namespace switchyard::scenario {

inline constexpr std::size_t kMaxPoints = 100000;

}  // namespace switchyard::scenario
