// SPDX-License-Identifier: Apache-2.0
// The option --progress of the verbs that take long, and the place of an error in its last event.
#pragma once
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/error.hpp"

namespace switchyard::cli {

/// Event lines on stdout? True for "json", false for "" (not given), InputError otherwise.
inline bool progress_as_json(const std::string& progress) {
  if (!progress.empty() && progress != "json") {
    throw InputError("--progress", fmt::format("unknown form \"{}\"", progress),
                     "write --progress json");
  }
  return progress == "json";
}

/// A place taken apart: "x.toml:17:13" is line 17 of x.toml. Without numbers at its end the whole
/// text is the file.
struct Place {
  std::string file;
  std::optional<std::uint64_t> line, column;  ///< From 1.
};
[[nodiscard]] inline Place split_place(std::string_view where) {
  std::array<std::optional<std::uint64_t>, 2> numbers;  // From the right.
  for (auto& number : numbers) {
    const std::size_t colon = where.rfind(':');
    if (colon == std::string_view::npos || colon == 0) break;
    std::uint64_t value = 0;
    const char* const end = where.data() + where.size();
    const auto [stop, error] = std::from_chars(where.data() + colon + 1, end, value);
    if (error != std::errc{} || stop != end || value == 0) break;
    number = value;
    where = where.substr(0, colon);
  }
  Place place{std::string(where), numbers[0], std::nullopt};
  if (numbers[1]) {
    place.line = numbers[1];
    place.column = numbers[0];
  }
  return place;
}

}  // namespace switchyard::cli
