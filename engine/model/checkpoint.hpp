// SPDX-License-Identifier: Apache-2.0
// A checkpoint: a folder with config.json + safetensors (+ tokenizer.json, read apart), or one
// .gguf file. Every tensor of the file is used exactly once or ignored by a listed rule, so that an
// expert can never be skipped in silence. Not modelled: what quantised tensors mean (the backend
// widens them).
#pragma once
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/hash.hpp"
#include "engine/model/gguf.hpp"
#include "engine/model/model_config.hpp"
#include "engine/model/safetensors.hpp"

namespace switchyard::model {

/// Movable. Views it hands out live as long as it does.
class Checkpoint {
 public:
  /// A folder or a .gguf file. InputError when it, its config.json (or metadata) or its weights are
  /// missing or broken.
  static Checkpoint open(const std::filesystem::path& path);

  /// The same for a file that is GGUF whatever its name.
  static Checkpoint open_gguf(const std::filesystem::path& path);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  /// As given to open().
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Where messages about the configuration point to: the config.json, or the .gguf file.
  [[nodiscard]] std::string config_place() const;
  /// Null for a folder.
  [[nodiscard]] const Gguf* gguf() const { return gguf_ ? &*gguf_ : nullptr; }
  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const;
  /// Null when absent.
  [[nodiscard]] const TensorView* find(const std::string& name) const;
  /// Which file holds the tensor (for messages).
  [[nodiscard]] std::string file_of(const std::string& name) const;
  /// Bytes of all tensors.
  [[nodiscard]] std::uint64_t total_bytes() const;
  /// Called for every tensor that is taken from now on.
  void on_take(std::function<void(const TensorView&)> call) { on_take_ = std::move(call); }

  [[nodiscard]] bool has(const std::string& name) const;
  /// The tensor, marked as used. InputError: missing, another shape, taken before, or a dtype other
  /// than F32/F16/BF16.
  TensorView take(const std::string& name, std::span<const std::uint64_t> shape);
  TensorView take(const std::string& name, std::initializer_list<std::uint64_t> shape);
  /// The same, and GGUF's block formats too.
  TensorView take_any(const std::string& name, std::initializer_list<std::uint64_t> shape);
  /// The same for a tensor stored as `dtype` and nothing else (parts of quantised weights).
  TensorView take_stored(const std::string& name, std::initializer_list<std::uint64_t> shape,
                         DType dtype);
  /// Marks tensors whose name starts with `prefix` as deliberately unused; returns how many.
  std::size_t ignore_prefix(const std::string& prefix, const std::string& reason);
  /// InputError naming the first unused tensors (and how many more). MTP layers
  /// (model.layers.<num_layers + i>.*) and `*.rotary_emb.inv_freq` are ignored by rule; with tied
  /// embeddings, a stored lm_head.weight equal to the embedding too.
  void finish();
  /// "prefix: reason (n tensors)" for each rule that matched.
  [[nodiscard]] const std::vector<std::string>& ignored() const { return ignored_; }

  /// XXH3-128 over name, dtype, shape and bytes of every tensor in name order. Reads the whole
  /// file; independent of sharding.
  [[nodiscard]] Hash128 weight_hash() const;
  /// XXH3-128 of the bytes of config.json, or of the .gguf file's metadata.
  [[nodiscard]] Hash128 config_hash() const { return config_hash_; }

 private:
  const TensorView& find_unused(const std::string& name, std::span<const std::uint64_t> shape);
  TensorView mark_used(const TensorView& view);
  Checkpoint(std::filesystem::path path, ModelConfig config, std::optional<Safetensors> weights,
             std::optional<Gguf> gguf, Hash128 hash);
  std::filesystem::path path_;
  ModelConfig config_;
  std::optional<Safetensors> weights_;  // one of the two
  std::optional<Gguf> gguf_;
  Hash128 config_hash_;
  std::function<void(const TensorView&)> on_take_;
  std::map<std::string, bool> used_;
  std::vector<std::string> ignored_;
};

/// XXH3-128 over name, dtype, shape and bytes of tensors, in the order they come.
class TensorHasher {
 public:
  void add(const TensorView& tensor);
  [[nodiscard]] Hash128 digest() const { return hasher_.digest(); }

 private:
  Hasher128 hasher_;
};
/// Hash of a set of tensors as weight_hash does it.
Hash128 hash_tensors(const std::map<std::string, TensorView>& tensors);

}  // namespace switchyard::model
