// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only, and what its pages cost. Internal to engine/model and the loader.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace switchyard::model {

/// Unmapped by the destructor; neither copied nor moved, so that spans into it stay valid.
class Mapping {
 public:
  /// InputError: cannot be opened or mapped, or is not a regular file.
  explicit Mapping(const std::filesystem::path& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Takes the whole pages inside `mapped` (part of a Mapping) out of this process's memory. The
/// bytes stay readable: touching them reads the file again. For tensors that were copied.
void release_pages(std::span<const std::byte> mapped);

/// Reads `mapped` (part of a Mapping) into memory, front to back.
void page_in(std::span<const std::byte> mapped);

}  // namespace switchyard::model
