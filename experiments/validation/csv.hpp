// SPDX-License-Identifier: Apache-2.0
// Small tables of measured numbers with a fixed header, for the end-to-end cases.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::validation {

struct Csv {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> where;  ///< "file:line" of each row.
};

/// InputError with file:line: another header, another number of fields, no row.
Csv read_csv(const std::filesystem::path& path, std::string_view header);
/// A field as a number >= low. InputError.
double number(const Csv& csv, std::size_t row, std::size_t column, double low);

}  // namespace switchyard::validation
