// SPDX-License-Identifier: Apache-2.0
// A TOML document as a plain tree in which every value knows where it stands. toml++ is used in
// tree.cpp only; merging, `--set` and reading work on this tree.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::scenario {

/// The text a value came from.
struct Source {
  std::string name;              ///< As shown: "scenarios/x.toml" or "--set".
  std::filesystem::path folder;  ///< Relative paths of this source start here.
  bool is_setting = false;       ///< --set or --trace: the place is `name` without line numbers.
  /// Prefix of the full key that is not shown, because the file holds only this part ("hardware").
  std::string mount;
};

struct Node {
  enum class Kind : std::uint8_t { kTable, kArray, kString, kInteger, kFloat, kBoolean, kOther };
  Kind kind = Kind::kTable;
  std::shared_ptr<const Source> source;
  std::uint32_t line = 0, column = 0;  ///< Of the value.
  std::string key;                     ///< Key under which a table holds this node.
  std::uint32_t key_line = 0, key_column = 0;
  std::vector<Node> children;  ///< Members of a table in file order, or items of an array.
  std::string text;
  std::int64_t integer = 0;
  double number = 0;
  bool boolean = false;

  /// "file:line:column", or "--set".
  [[nodiscard]] std::string where() const;
  [[nodiscard]] std::string key_where() const;
  [[nodiscard]] const Node* find(std::string_view name) const;
  [[nodiscard]] Node* find(std::string_view name);
  /// One line of TOML that reads back as the same value.
  [[nodiscard]] std::string toml() const;
  /// "text", "a whole number", "a table", …
  [[nodiscard]] std::string_view kind_name() const;
};

/// toml() for a message: cut after 80 characters.
std::string brief(const Node& node);

/// InputError("name:line:column", …) on malformed TOML.
Node parse_toml(std::string_view text, const std::shared_ptr<const Source>& source);
/// The value of `--set key=TEXT`: TOML if it is one TOML value, else a bare word taken as text.
Node parse_setting_value(std::string_view text, const std::shared_ptr<const Source>& source);
/// Reads a file of at most 16 MiB. Errors name `where` (the place that names the file, or the
/// file).
Node load_toml(const std::filesystem::path& path, const std::string& mount,
               const std::string& where);

/// Lays `over` on `base`: tables merge member by member, anything else is replaced.
void merge(Node& base, const Node& over);
/// Puts `value` at a dotted path ("hardware.links[0].bandwidth"), making tables on the way.
/// InputError when the path is malformed or passes through something that is not a table.
void set_path(Node& root, std::string_view path, Node value);

}  // namespace switchyard::scenario
