// SPDX-License-Identifier: Apache-2.0
// A checkpoint folder: config.json + safetensors (+ tokenizer.json, read apart). Every tensor of
// the file is used exactly once or ignored by a listed rule, so that an expert can never be skipped
// in silence.
// Not modelled: what quantised tensors mean (engine/nn widens them).
#pragma once
#include <filesystem>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/base/hash.hpp"
#include "engine/model/model_config.hpp"
#include "engine/model/safetensors.hpp"

namespace switchyard::model {

/// Movable. Views it hands out live as long as it does.
class Checkpoint {
 public:
  /// InputError when the folder, its config.json or its weights are missing or broken.
  static Checkpoint open(const std::filesystem::path& folder);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const Safetensors& weights() const { return weights_; }

  [[nodiscard]] bool has(const std::string& name) const;
  /// The tensor, marked as used. InputError: missing, another shape, taken before, or a dtype other
  /// than F32/F16/BF16.
  TensorView take(const std::string& name, std::span<const std::uint64_t> shape);
  TensorView take(const std::string& name, std::initializer_list<std::uint64_t> shape);
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
  /// XXH3-128 of config.json's bytes.
  [[nodiscard]] Hash128 config_hash() const { return config_hash_; }

 private:
  const TensorView& find_unused(const std::string& name, std::span<const std::uint64_t> shape);
  Checkpoint(std::filesystem::path folder, ModelConfig config, Safetensors weights, Hash128 hash);
  std::filesystem::path folder_;
  ModelConfig config_;
  Safetensors weights_;
  Hash128 config_hash_;
  std::map<std::string, bool> used_;
  std::vector<std::string> ignored_;
};

/// Hash of a set of tensors as weight_hash does it.
Hash128 hash_tensors(const std::map<std::string, TensorView>& tensors);

}  // namespace switchyard::model
