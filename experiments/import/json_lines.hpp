// SPDX-License-Identifier: Apache-2.0
// A file of JSON, one document a line, read line by line: never more than one line is in memory.
// Empty lines are passed over; a byte order mark at the beginning and a carriage return at the end
// of a line are taken off.
#pragma once
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::importers {

class JsonLines {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{256} << 20U;  ///< Of a line.
  /// InputError names the file when it is missing, a folder, or unreadable.
  explicit JsonLines(std::filesystem::path path);
  /// The next line that holds something, valid until the next call; nothing at the end. InputError
  /// for a line above kMostBytes or a disk that fails.
  [[nodiscard]] std::optional<std::string_view> next();
  /// "file:line" of the line that next() gave, and its number, from 1.
  [[nodiscard]] std::string place() const;
  [[nodiscard]] std::size_t line() const { return number_; }

 private:
  bool fill(std::string& line);
  std::filesystem::path path_;
  std::ifstream in_;
  std::string line_, buffer_;
  std::size_t at_ = 0, number_ = 0;
};

}  // namespace switchyard::importers
