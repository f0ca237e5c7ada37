// SPDX-License-Identifier: Apache-2.0
// Words for standard error that must not end the work: it may be closed, or its disk full.
#pragma once
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace switchyard::cli {

/// fmt::print(stderr, …) that throws nothing when nothing can be written.
template <typename... T>
void say(fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace switchyard::cli
