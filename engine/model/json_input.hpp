// SPDX-License-Identifier: Apache-2.0
// Strict reading of JSON that came from elsewhere: bounded depth, no duplicate keys, every value
// checked for type and range, every message with file and JSON pointer.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::model {

/// Deepest nesting accepted.
inline constexpr int kMaxJsonDepth = 64;

/// Parses text. InputError "file:line:column: …" for bad syntax or UTF-8, nesting beyond
/// kMaxJsonDepth, a duplicate key, or a number out of range.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// The same for one line of a file, or a text whose place is `where` whole: "where: no JSON: …".
nlohmann::json parse_json_line(std::string_view text, const std::string& where);

/// A view of one JSON object with checked accessors. Missing keys: the *_or forms give a default
/// and record the key in `defaults`; the plain forms throw. null counts as missing.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& value, std::string where, std::string pointer);

  [[nodiscard]] bool has(const std::string& key) const;       ///< present and not null
  [[nodiscard]] bool contains(const std::string& key) const;  ///< present, null or not
  [[nodiscard]] const nlohmann::json& raw(const std::string& key) const;
  [[nodiscard]] JsonObject object(const std::string& key) const;
  [[nodiscard]] std::uint64_t count(const std::string& key, std::uint64_t lowest,
                                    std::uint64_t highest) const;
  [[nodiscard]] std::uint64_t count_or(const std::string& key, std::uint64_t fallback,
                                       std::uint64_t lowest, std::uint64_t highest) const;
  /// Finite number within [lowest, highest].
  [[nodiscard]] double number(const std::string& key, double lowest, double highest) const;
  [[nodiscard]] double number_or(const std::string& key, double fallback, double lowest,
                                 double highest) const;
  [[nodiscard]] bool flag_or(const std::string& key, bool fallback) const;
  [[nodiscard]] std::string text(const std::string& key) const;
  [[nodiscard]] std::string text_or(const std::string& key, const std::string& fallback) const;
  [[nodiscard]] std::vector<std::string> texts(const std::string& key) const;
  [[nodiscard]] std::vector<std::uint64_t> counts(const std::string& key, std::uint64_t lowest,
                                                  std::uint64_t highest) const;
  /// InputError naming the first key that is not in `known`, with a suggestion.
  void only(const std::vector<std::string>& known) const;
  [[noreturn]] void fail(const std::string& key, const std::string& message,
                         const std::string& hint = {}) const;
  [[nodiscard]] const std::vector<std::string>& defaults() const { return defaults_; }
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  const nlohmann::json* value_;
  std::string where_, pointer_;
  mutable std::vector<std::string> defaults_;
};

}  // namespace switchyard::model
