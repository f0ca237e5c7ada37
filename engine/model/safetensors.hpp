// SPDX-License-Identifier: Apache-2.0
// Safetensors: 8 bytes little-endian header length N, N bytes of JSON, then tensor bytes. Read by
// mmap; every header field is checked before any tensor byte is touched.
// Not modelled: sub-byte dtypes (F4, F6), big-endian machines, a file that another process shortens
// while it is mapped (the system then ends the process).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/dtype.hpp"

namespace switchyard::model {

/// A tensor inside a mapped file. Valid while the file (or checkpoint) it came from lives.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;  ///< row-major; empty = scalar.
  std::span<const std::byte> data;   ///< little-endian, maybe unaligned.
  [[nodiscard]] std::uint64_t count() const;
  /// All values as f32, exact (BF16, F16, F32 only; InputError names the tensor otherwise).
  [[nodiscard]] std::vector<float> to_float() const;
};

/// One file or a set of shards, mapped read-only. Movable.
/// InputError (file and tensor named) for: missing file, header length 0, above 100 MB or beyond
/// the file, invalid JSON or UTF-8, unknown dtype, shape whose product overflows, offsets that
/// overlap, leave gaps, or do not match dtype × shape, duplicate names, a truncated file, an index
/// that names a tensor its shard lacks (or a shard tensor the index lacks).
class Safetensors {
 public:
  /// A .safetensors file, a model.safetensors.index.json, or a folder holding either.
  static Safetensors open(const std::filesystem::path& path);
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;
  ~Safetensors();
  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const;
  /// nullptr when absent.
  [[nodiscard]] const TensorView* find(const std::string& name) const;
  /// Which file holds the tensor (for messages).
  [[nodiscard]] std::string file_of(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;

 private:
  Safetensors();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A tensor to write; bytes are little-endian and match dtype × shape (asserted).
struct TensorData {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
  /// Converts f32 values to F32 or BF16 storage.
  static TensorData from_floats(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                                std::span<const float> values);
};

/// The file's bytes: tensors in the order given, header padded with spaces to 8 bytes.
std::string safetensors_bytes(std::span<const TensorData> tensors,
                              const std::map<std::string, std::string>& metadata = {});
/// Writes atomically.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace switchyard::model
