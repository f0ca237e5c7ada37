// SPDX-License-Identifier: Apache-2.0
#include "engine/base/hash.hpp"

#include <fmt/format.h>
#include <openssl/sha.h>
#include <xxhash.h>

#include <new>

namespace switchyard {

struct Hasher128::State {
  XXH3_state_t* xxh = nullptr;
};

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }
std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t hash64(std::span<const std::byte> data) {
  return XXH3_64bits(data.data(), data.size());
}
std::uint64_t hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }
Hash128 hash128(std::span<const std::byte> data) {
  const XXH128_hash_t h = XXH3_128bits(data.data(), data.size());
  return {h.low64, h.high64};
}

Hasher128::Hasher128() : state_(std::make_unique<State>()) {
  state_->xxh = XXH3_createState();
  if (state_->xxh == nullptr) {
    throw std::bad_alloc();
  }
  XXH3_128bits_reset(state_->xxh);
}
Hasher128::~Hasher128() { XXH3_freeState(state_->xxh); }
void Hasher128::update(std::span<const std::byte> data) {
  XXH3_128bits_update(state_->xxh, data.data(), data.size());
}
void Hasher128::update(std::string_view text) {
  XXH3_128bits_update(state_->xxh, text.data(), text.size());
}
Hash128 Hasher128::digest() const {
  const XXH128_hash_t h = XXH3_128bits_digest(state_->xxh);
  return {h.low64, h.high64};
}

std::array<std::uint8_t, 32> sha256(std::span<const std::byte> data) {
  std::array<std::uint8_t, 32> out{};
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(), out.data());
  return out;
}

}  // namespace switchyard
