// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

/// The candidate closest to `name` by Damerau–Levenshtein distance (case-insensitive), or "" when
/// none is within max(2, length/3) edits. Ties go to the earlier candidate.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// "; did you mean …" material: `did you mean "x"?` or "known: a, b, c" when nothing is near.
std::string suggest_name(std::string_view name, std::span<const std::string> candidates);

}  // namespace switchyard
