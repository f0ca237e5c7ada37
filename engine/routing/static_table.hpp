// SPDX-License-Identifier: Apache-2.0
// M14 static routing table: a request whose prompt begins like one seen before takes that one's
// experts, in every layer and for every token, prefill and decode; others go to the live router.
//
//   key    = SHA-256(first min(32, n) token ids, each u32 little endian)
//            variants: the first 32 characters, or 32 bytes, of the prompt's UTF-8 text
//   entry  = per MoE layer: argtop-k_e of sum_t p[t,e] over the prompt's tokens in the build pass,
//            ties to the lower id, with the mean p of each as its p
//   lookup = by the first digest_bits bits of the key
//
// A build that meets a key again keeps the first entry; a different second one is a conflict. With
// fewer than 256 bits two keys can share a digest: the first keeps it, the second is a collision
// (in the build: left out; in a lookup: it gets the other prefix's experts, and is counted).
// Source: routing.md M14.
// Not modelled: the time of hash and lookup; updates while serving.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/routing/gate.hpp"

namespace switchyard {

enum class TablePrefix : std::uint8_t { kTokens, kCharacters, kBytes };

/// How many tokens, characters or bytes of a prompt make its key.
inline constexpr std::size_t kTablePrefixLength = 32;

using TableKey = std::array<std::uint8_t, 32>;

/// Key of a prompt. `tokens` is read for kTokens, `text` (UTF-8) for the other two; a character is
/// one code point, and a byte that is no valid start counts as one.
[[nodiscard]] TableKey table_key(TablePrefix prefix, std::span<const std::uint32_t> tokens,
                                 std::string_view text);

struct TableSpec {
  TablePrefix prefix = TablePrefix::kTokens;
  std::uint32_t digest_bits = 256;  ///< 256, 64 or 32.
  std::uint32_t layers = 0;         ///< L, MoE layers, >= 1.
  std::uint32_t experts = 0;        ///< E
  std::uint32_t top_k = 0;          ///< k
  std::string model;                ///< Model id of the build pass.
  std::string weight_hash;          ///< Of the model of the build pass; "any": of whatever model.
  bool operator==(const TableSpec&) const = default;
};

/// Throws InputError(where, …) when a field is out of range.
void validate(const TableSpec& spec, const std::string& where);

/// Mean p of one prompt in the build pass.
class TableEntryBuilder {
 public:
  TableEntryBuilder(std::uint32_t layers, std::uint32_t experts);
  /// Adds one prompt token's p in layer l; experts[i] has probability p[i]. Experts not named add
  /// 0 (they were not among the stored candidates).
  void add(std::uint32_t l, std::span<const std::uint16_t> experts, std::span<const float> p);
  /// The entry so far: ids and p, each [L][k]. Every layer got the same number of tokens, >= 1.
  void finish(std::uint32_t top_k, std::vector<std::uint16_t>& ids, std::vector<float>& p) const;

 private:
  std::uint32_t layers_, experts_;
  std::vector<double> sum_;            // [L][E]
  std::vector<std::uint64_t> tokens_;  // [L]
};

class RoutingTable {
 public:
  explicit RoutingTable(TableSpec spec);
  /// Result of add().
  enum class Added : std::uint8_t { kNew, kRepeated, kConflict, kCollision };
  /// ids and p are [L][k]: distinct ids < E within a layer, finite p >= 0.
  Added add(const TableKey& key, std::span<const std::uint16_t> ids, std::span<const float> p);

  struct Hit {
    std::uint32_t entry = 0;
    bool collision = false;  ///< The entry belongs to another key with the same digest.
  };
  [[nodiscard]] std::optional<Hit> find(const TableKey& key) const;
  /// Experts and their p in layer l; [k] each, borrowed.
  [[nodiscard]] std::span<const std::uint16_t> ids(std::uint32_t entry, std::uint32_t l) const;
  [[nodiscard]] std::span<const float> p(std::uint32_t entry, std::uint32_t l) const;

  [[nodiscard]] const TableSpec& spec() const { return spec_; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  [[nodiscard]] std::uint64_t conflicts() const { return conflicts_; }
  [[nodiscard]] std::uint64_t collisions() const { return collisions_; }

  /// The table as text: a header line of key=value, then one line per entry,
  /// "<64 hex digits> id:p,id:p;id:p,…" with layers between semicolons, in order of addition.
  [[nodiscard]] std::string to_text() const;
  /// Exact inverse. InputError("where:line", …) for anything else; the counts start at 0.
  [[nodiscard]] static RoutingTable from_text(std::string_view text, const std::string& where);
  [[nodiscard]] static RoutingTable read(const std::filesystem::path& path);

 private:
  [[nodiscard]] TableKey digest(const TableKey& key) const;
  TableSpec spec_;
  std::vector<TableKey> keys_;
  std::map<TableKey, std::uint32_t> by_digest_;
  std::vector<std::uint16_t> ids_;  // [entries][L][k]
  std::vector<float> p_;            // [entries][L][k]
  std::uint64_t conflicts_ = 0, collisions_ = 0;
};

}  // namespace switchyard
