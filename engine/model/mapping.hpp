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

/// Share in [0, 1] of the address ranges that hold `mapped` (part of a Mapping) that is mapped by
/// huge pages now, by /proc/self/smaps; 0 where that cannot be read.
[[nodiscard]] double share_in_huge_pages(std::span<const std::byte> mapped);

/// Moves the whole 2 MiB blocks inside `mapped` (part of a Mapping) into huge pages of this
/// process: the same bytes at the same addresses, no longer shared with the page cache, which may
/// give its copy up. Weights are read from end to end for every token, and a file's pages are small
/// wherever memory was scattered when it was read (and always on file systems without large
/// folios). Takes a 64th more than it moves (2 to 32 MiB), for a moment. Returns the bytes moved;
/// where the kernel refuses, the rest stays as it was. Nobody else may read `mapped` meanwhile, nor
/// give it to release_pages later.
std::size_t into_huge_pages(std::span<const std::byte> mapped);

}  // namespace switchyard::model
