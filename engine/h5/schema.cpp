// SPDX-License-Identifier: Apache-2.0
#include "engine/h5/schema.hpp"

#include <fmt/format.h>

#include <array>

#include "engine/base/error.hpp"

namespace switchyard::h5 {
namespace {
constexpr std::array<std::string_view, 9> kTypeNames = {"u8",  "u16", "u32", "u64", "i32",
                                                        "i64", "f32", "f64", "text"};
constexpr std::array<std::size_t, 9> kTypeSizes = {1, 2, 4, 8, 4, 8, 4, 8, 0};
}  // namespace

std::string_view kind_name(FileKind kind) {
  switch (kind) {
    case FileKind::kTrace:
      return "routing trace";
    case FileKind::kSignals:
      return "signals file";
    case FileKind::kRun:
      break;
  }
  return "run file";
}
std::string_view type_name(ElementType type) { return kTypeNames[static_cast<std::size_t>(type)]; }
std::size_t type_size(ElementType type) { return kTypeSizes[static_cast<std::size_t>(type)]; }

const SchemaEntry* SchemaTable::find(std::string_view name) const {
  for (const SchemaEntry& entry : entries) {
    if (name_matches(entry.name, name)) {
      return &entry;
    }
  }
  return nullptr;
}

bool name_matches(std::string_view pattern, std::string_view name) {
  // Greedy matching with one point of return: linear for the short patterns used here.
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos && name[resume] != '/') {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

std::vector<std::string> split_shape(std::string_view shape) {
  std::vector<std::string> parts;
  while (!shape.empty()) {
    const std::size_t comma = shape.find(',');
    parts.emplace_back(shape.substr(0, comma));
    shape = comma == std::string_view::npos ? std::string_view{} : shape.substr(comma + 1);
  }
  return parts;
}

std::string format_markdown(const SchemaTable& table) {
  std::string out = fmt::format("# {}\n\n", table.title);
  out +=
      "Generated from the schema table in the code; a test compares this text and the table with "
      "a real file.\n\n";
  if (!table.introduction.empty()) {
    out += table.introduction + "\n\n";
  }
  out += fmt::format(
      "## Container\n\n"
      "Schema version {}. An ordinary HDF5 file behind a user block of 512 bytes, all "
      "little-endian:\n\n"
      "| byte | holds |\n|---|---|\n"
      "| 0 | magic, 8 bytes: `{}` |\n"
      "| 8 | schema version, u32 |\n"
      "| 12 | container version, u32: 1 |\n"
      "| 16 | length of everything after the user block, u64 |\n"
      "| 24 | XXH3-128 of everything after the user block: low word, high word, 2 × u64 |\n"
      "| 40 | zero bytes |\n"
      "| 504 | XXH3-64 of bytes 0 to 503, u64 |\n\n"
      "Arrays are row-major, outermost dimension first. An upper-case dimension is the same number "
      "everywhere in the file. Text has a fixed length, is UTF-8 and padded with zero bytes. Each "
      "dataset carries the attributes `unit` and `dimensions`.\n\n",
      table.version,
      table.kind == FileKind::kTrace     ? "SWYTRACE"
      : table.kind == FileKind::kSignals ? "SWYSIGNL"
                                         : "SWYRUN\\0\\0");
  const auto row = [&out](const SchemaEntry& entry, std::string_view name, bool shape) {
    out += fmt::format("| `{}` |", name);
    if (shape) {
      out += entry.shape.empty() ? " scalar |" : fmt::format(" [{}] |", entry.shape);
    }
    out += fmt::format(" {} | {} | {}{} |\n", type_name(entry.type),
                       entry.unit.empty() ? "–" : entry.unit, entry.optional ? "Optional. " : "",
                       entry.meaning);
  };
  out += "## Attributes of the file\n\n| name | type | unit | meaning |\n|---|---|---|---|\n";
  for (const SchemaEntry& entry : table.entries) {
    if (entry.name.starts_with('@')) {
      row(entry, std::string_view(entry.name).substr(1), false);
    }
  }
  out += "\n## Datasets\n\n| name | shape | type | unit | meaning |\n|---|---|---|---|---|\n";
  for (const SchemaEntry& entry : table.entries) {
    if (!entry.name.starts_with('@')) {
      row(entry, entry.name, true);
    }
  }
  return out;
}

}  // namespace switchyard::h5
