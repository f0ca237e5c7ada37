// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/json_lines.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard::importers {

JsonLines::JsonLines(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code failed;
  if (std::filesystem::is_directory(path_, failed)) {
    throw InputError(path_.string(), "is a folder, not a file");
  }
  in_.open(path_, std::ios::binary);
  if (!in_) throw InputError(path_.string(), fmt::format("cannot open: {}", std::strerror(errno)));
}

std::string JsonLines::place() const { return fmt::format("{}:{}", path_.string(), number_); }

/// One line without its newline; false at the end of the file.
bool JsonLines::fill(std::string& line) {
  constexpr std::size_t kPart = std::size_t{1} << 20U;
  line.clear();
  for (;;) {
    if (at_ == buffer_.size()) {
      buffer_.resize(kPart);
      in_.read(buffer_.data(), static_cast<std::streamsize>(kPart));
      buffer_.resize(static_cast<std::size_t>(in_.gcount()));
      at_ = 0;
      if (in_.bad()) throw InputError(path_.string(), "cannot be read");
      if (buffer_.empty()) return !line.empty();
    }
    const std::size_t end = buffer_.find('\n', at_);
    const std::size_t stop = end == std::string::npos ? buffer_.size() : end;
    line.append(buffer_, at_, stop - at_);
    at_ = end == std::string::npos ? stop : stop + 1;
    if (line.size() > kMostBytes) {
      throw InputError(fmt::format("{}:{}", path_.string(), number_ + 1),
                       fmt::format("a line of more than {} MiB", kMostBytes >> 20U));
    }
    if (end != std::string::npos) return true;
  }
}

std::optional<std::string_view> JsonLines::next() {
  while (fill(line_)) {
    ++number_;
    std::string_view text = line_;
    if (number_ == 1 && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) return text;
  }
  return std::nullopt;
}

}  // namespace switchyard::importers
