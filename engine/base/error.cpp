// SPDX-License-Identifier: Apache-2.0
#include "engine/base/error.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace switchyard {
namespace {
std::string one_line(const std::string& where, const std::string& message,
                     const std::string& hint) {
  std::string text = where.empty() ? message : fmt::format("{}: {}", where, message);
  if (!hint.empty()) {
    text += "; " + hint;
  }
  for (char& c : text) {
    // Line breaks, and whatever a terminal would obey: names come from files.
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      c = ' ';
    }
  }
  return text;
}
}  // namespace

InputError::InputError(std::string where, std::string message, std::string hint)
    : std::runtime_error(one_line(where, message, hint)),
      where_(std::move(where)),
      message_(std::move(message)),
      hint_(std::move(hint)) {}

void assert_failed(const char* expression, const char* file, int line, const std::string& values) {
  fmt::print(stderr, "switchyard: internal error at {}:{}: {} is false ({})\n", file, line,
             expression, values);
  std::abort();
}

}  // namespace switchyard
