// SPDX-License-Identifier: Apache-2.0
// Reads one table of a scenario: known keys only, each value checked and written down with its
// origin. Errors name the place and the key as the user wrote it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::scenario {

/// What has been resolved so far.
struct Context {
  std::vector<ResolvedValue> values;
  void record(std::string key, std::string value, std::string origin, bool in_hash = true);
  /// Place of a key for messages: its origin, or `otherwise` for a default.
  [[nodiscard]] std::string where(std::string_view key, const std::string& otherwise) const;
};

/// Canonical texts: exact, with the largest unit that keeps them short.
std::string show_bytes(std::uint64_t bytes);
std::string show_time(SimTime t);
std::string show_rate(BytesPerSecond r);
std::string show_flops(FlopsPerSecond r);
std::string show_percent(double share);

struct NumberRange {
  double low = 0, high = 0;
  bool low_open = false;  ///< true: value > low, false: value >= low.
};

class Section {
 public:
  /// `table` may be null (the section is absent: only defaults); `parent` gives the place then.
  /// Throws for a key that is not in `known`, or when `table` is no table.
  Section(Context& context, const Node* table, std::string path, std::vector<std::string> known,
          const Node& parent);

  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] const Node* find(std::string_view key) const;
  /// The node that stands for this section in messages.
  [[nodiscard]] const Node& node() const { return table_ != nullptr ? *table_ : parent_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string full_key(std::string_view key) const;
  /// Key as shown to the user for a value that stands in `at`'s file.
  [[nodiscard]] std::string shown_key(std::string_view key, const Node& at) const;
  /// Place of `key`, or of the section when it is absent.
  [[nodiscard]] std::string where(std::string_view key) const;

  // Each reads `key`; without a fallback the key must be there.
  std::string text(std::string_view key, std::optional<std::string> fallback = {});
  std::uint64_t count(std::string_view key, std::uint64_t low, std::uint64_t high,
                      std::optional<std::uint64_t> fallback = {});
  double number(std::string_view key, NumberRange range, std::optional<double> fallback = {});
  bool boolean(std::string_view key, std::optional<bool> fallback = {});
  std::uint64_t bytes(std::string_view key, std::optional<std::uint64_t> fallback = {});
  SimTime duration(std::string_view key, std::optional<SimTime> fallback = {});
  BytesPerSecond rate(std::string_view key, std::optional<BytesPerSecond> fallback = {});
  FlopsPerSecond flops(std::string_view key, std::optional<FlopsPerSecond> fallback = {});
  double percent(std::string_view key, std::optional<double> fallback = {});
  double power(std::string_view key, std::optional<double> fallback = {});
  model::DType dtype(std::string_view key, std::optional<model::DType> fallback = {});
  /// Index into `names`. A value in `unsupported` is refused by that word.
  std::size_t choice(std::string_view key, std::span<const std::string_view> names,
                     std::optional<std::size_t> fallback = {},
                     std::span<const std::string_view> unsupported = {});
  /// A sub-table, absent or not.
  Section section(std::string_view key, std::vector<std::string> known);
  /// `source = "…"` or `source = { key = "…" }`: written down, no part of the hash.
  void sources();

  /// Throws "key = value. Violated: rule" at the place of the key.
  [[noreturn]] void violated(std::string_view key, const std::string& rule) const;
  [[noreturn]] void fail(std::string_view key, const std::string& message,
                         const std::string& hint = {}) const;

 private:
  const Node* need(std::string_view key, bool optional) const;
  std::string unit_text(std::string_view key, const Node& node) const;
  void record(std::string_view key, std::string value, const Node* node,
              ValueKind kind = ValueKind::kText, std::span<const std::string_view> choices = {});

  Context& context_;
  const Node* table_;
  std::string path_;
  const Node& parent_;
};

}  // namespace switchyard::scenario
