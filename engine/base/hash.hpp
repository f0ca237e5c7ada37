// SPDX-License-Identifier: Apache-2.0
// Content hashes (XXH3). Not cryptographic; used to notice damage and to name inputs. SHA-256 where a
// specification asks for it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
  /// 32 lower-case hex digits, high word first.
  [[nodiscard]] std::string hex() const;
};

std::uint64_t hash64(std::span<const std::byte> data);
std::uint64_t hash64(std::string_view text);
Hash128 hash128(std::span<const std::byte> data);

/// Streaming XXH3-128: update() any number of times, then digest().
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(const Hasher128&) = delete;
  Hasher128& operator=(const Hasher128&) = delete;
  void update(std::span<const std::byte> data);
  void update(std::string_view text);
  [[nodiscard]] Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// SHA-256 (FIPS 180-4), through OpenSSL.
std::array<std::uint8_t, 32> sha256(std::span<const std::byte> data);

/// 16 lower-case hex digits.
std::string hex64(std::uint64_t value);

}  // namespace switchyard
