// SPDX-License-Identifier: Apache-2.0
// GGUF, the file format of llama.cpp: "GGUF", version, counts, typed key/value metadata, tensor
// infos, then tensor bytes, each aligned to general.alignment (32 by default). Little endian,
// versions 2 and 3, read by mmap; every count, length and offset is checked before it is used.
//
// A model in several files (llama.cpp's gguf-split) is opened by its first; the others must lie
// beside it. Metadata are those of the first.
//
// Not modelled: version 1, big-endian files, arrays of arrays, tensor types other than F32, F16,
// BF16, Q8_0, Q4_0, Q4_K, Q6_K and MXFP4 (each refused by name).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/hash.hpp"
#include "engine/model/safetensors.hpp"

namespace switchyard::model {

/// A metadata value. float32 is given as the double with the same shortest decimal text (1e-05F is
/// 1e-05), so that a number written from a config.json comes back as the same double.
using GgufValue =
    std::variant<std::uint64_t, std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<std::string>>;

/// One mapped file, or all parts of one. Movable; views live as long as it does.
class Gguf {
 public:
  /// InputError (file, key or tensor named): not GGUF, unsupported version or type, counts or
  /// lengths beyond the file, duplicate keys or names, misaligned or overlapping tensors; a part
  /// that is not the first, or that is missing.
  static Gguf open(const std::filesystem::path& path);
  Gguf(Gguf&&) noexcept;
  Gguf& operator=(Gguf&&) noexcept;
  ~Gguf();

  [[nodiscard]] const std::filesystem::path& path() const;
  [[nodiscard]] const std::map<std::string, GgufValue>& metadata() const;
  /// By name; shapes row-major, so the reverse of the file's order.
  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const;
  /// XXH3-128 of the metadata's bytes as stored.
  [[nodiscard]] Hash128 metadata_hash() const;

  [[nodiscard]] bool has(const std::string& key) const;
  /// InputError names the key when it is missing, has another type, or is out of range.
  [[nodiscard]] std::uint64_t count(const std::string& key) const;
  [[nodiscard]] std::uint64_t count_or(const std::string& key, std::uint64_t fallback) const;
  [[nodiscard]] double number(const std::string& key) const;
  [[nodiscard]] double number_or(const std::string& key, double fallback) const;
  [[nodiscard]] bool flag_or(const std::string& key, bool fallback) const;
  [[nodiscard]] const std::string& text(const std::string& key) const;
  [[nodiscard]] const std::vector<std::string>& texts(const std::string& key) const;
  [[nodiscard]] const std::vector<std::int64_t>& integers(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, const std::string& message,
                         const std::string& hint = {}) const;

 private:
  Gguf();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// True for a path that ends in .gguf (whether or not it exists).
[[nodiscard]] bool is_gguf_path(const std::filesystem::path& path);

/// Collects metadata and tensor infos, then writes the file while the caller makes the bytes, so
/// that no tensor has to be held whole.
class GgufWriter {
 public:
  void u32(const std::string& key, std::uint64_t value);  ///< < 2^32, asserted
  void f32(const std::string& key, double value);
  void flag(const std::string& key, bool value);
  void text(const std::string& key, std::string_view value);
  void texts(const std::string& key, std::span<const std::string> values);
  void integers(const std::string& key, std::span<const std::int32_t> values);
  void numbers(const std::string& key, std::span<const double> values);  ///< stored as float32
  /// shape row-major; its last extent fills whole blocks of `dtype` (asserted).
  void tensor(const std::string& name, std::vector<std::uint64_t> shape, DType dtype);

  using Sink = std::function<void(std::span<const std::byte>)>;
  /// Writes version 3 atomically. `produce(i, sink)` gives the bytes of tensor i, in as many pieces
  /// as it likes; their sum is asserted. InputError when the file cannot be written.
  void write(const std::filesystem::path& path,
             const std::function<void(std::size_t, const Sink&)>& produce) const;

 private:
  struct Info {
    std::string name;
    std::vector<std::uint64_t> shape;
    DType dtype;
  };
  void key(const std::string& name, std::uint32_t type);
  std::uint64_t keys_ = 0;
  std::string metadata_;
  std::vector<Info> tensors_;
};

/// Bytes of a tensor of that shape and format. InputError when that exceeds 2^63 or the last extent
/// does not fill whole blocks.
[[nodiscard]] std::uint64_t tensor_bytes(const std::string& where, DType dtype,
                                         std::span<const std::uint64_t> shape);

}  // namespace switchyard::model
