// SPDX-License-Identifier: Apache-2.0
#include "engine/model/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/model/ggml_blocks.hpp"
#include "engine/model/gguf_model.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

Checkpoint::Checkpoint(fs::path path, ModelConfig config, std::optional<Safetensors> weights,
                       std::optional<Gguf> gguf, Hash128 hash)
    : path_(std::move(path)),
      config_(std::move(config)),
      weights_(std::move(weights)),
      gguf_(std::move(gguf)),
      config_hash_(hash) {
  for (const auto& [name, view] : tensors()) {
    used_[name] = false;
  }
}

Checkpoint Checkpoint::open(const fs::path& path) {
  std::error_code ignored;
  if (is_gguf_path(path)) {
    return open_gguf(path);
  }
  if (!fs::is_directory(path, ignored)) {
    throw InputError(path.string(), "no such checkpoint folder",
                     "a checkpoint is a folder with config.json and model.safetensors, or a .gguf "
                     "file");
  }
  auto config = read_model_config(path);
  const auto text = read_file(path / "config.json");
  auto weights = Safetensors::open(path);
  return {path, std::move(config), std::move(weights), std::nullopt, hash128(bytes_of(text))};
}

Checkpoint Checkpoint::open_gguf(const fs::path& path) {
  auto file = Gguf::open(path);
  auto config = read_gguf_config(file);
  const Hash128 hash = file.metadata_hash();
  return {path, std::move(config), std::nullopt, std::move(file), hash};
}

std::string Checkpoint::config_place() const {
  return (gguf_ ? path_ : path_ / "config.json").string();
}

const std::map<std::string, TensorView>& Checkpoint::tensors() const {
  return gguf_ ? gguf_->tensors() : weights_->tensors();
}

const TensorView* Checkpoint::find(const std::string& name) const {
  const auto it = tensors().find(name);
  return it == tensors().end() ? nullptr : &it->second;
}

std::string Checkpoint::file_of(const std::string& name) const {
  return gguf_ ? path_.string() : weights_->file_of(name);
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, view] : tensors()) {
    sum += view.data.size();
  }
  return sum;
}

TensorView Checkpoint::mark_used(const TensorView& view) {
  used_[view.name] = true;
  if (on_take_) {
    on_take_(view);
  }
  return view;
}

bool Checkpoint::has(const std::string& name) const { return used_.find(name) != used_.end(); }

const TensorView& Checkpoint::find_unused(const std::string& name,
                                          std::span<const std::uint64_t> shape) {
  const auto it = used_.find(name);
  if (it == used_.end()) {
    std::vector<std::string> near;
    for (const auto& [other, used] : used_) {
      if (!used) {
        near.push_back(other);
      }
    }
    const auto guess = nearest_name(name, near);
    throw InputError(path_.string(), fmt::format("tensor \"{}\" is missing", name),
                     guess.empty() ? std::string() : fmt::format("did you mean \"{}\"?", guess));
  }
  const TensorView& view = *find(name);
  if (it->second) {
    throw InputError(file_of(name), fmt::format("tensor \"{}\" is used twice", name));
  }
  if (!std::equal(shape.begin(), shape.end(), view.shape.begin(), view.shape.end())) {
    throw InputError(file_of(name),
                     fmt::format("tensor \"{}\" has shape [{}], the config asks for [{}]", name,
                                 fmt::join(view.shape, ", "), fmt::join(shape, ", ")));
  }
  return view;
}

TensorView Checkpoint::take(const std::string& name, std::span<const std::uint64_t> shape) {
  const TensorView& view = find_unused(name, shape);
  if (!is_float_weight(view.dtype)) {
    throw InputError(file_of(name),
                     fmt::format("tensor \"{}\": unsupported weight dtype {}", name,
                                 file_dtype_name(view.dtype)),
                     "supported: F32, F16, BF16");
  }
  return mark_used(view);
}

TensorView Checkpoint::take_any(const std::string& name,
                                std::initializer_list<std::uint64_t> shape) {
  const TensorView& view = find_unused(name, {shape.begin(), shape.size()});
  return is_block_format(view.dtype) ? mark_used(view) : take(name, shape);
}

TensorView Checkpoint::take_stored(const std::string& name,
                                   std::initializer_list<std::uint64_t> shape, DType dtype) {
  const TensorView& view = find_unused(name, {shape.begin(), shape.size()});
  if (view.dtype != dtype) {
    throw InputError(file_of(name),
                     fmt::format("tensor \"{}\" has dtype {}, the config asks for {}", name,
                                 file_dtype_name(view.dtype), file_dtype_name(dtype)));
  }
  return mark_used(view);
}

TensorView Checkpoint::take(const std::string& name, std::initializer_list<std::uint64_t> shape) {
  return take(name, std::span<const std::uint64_t>(shape.begin(), shape.size()));
}

std::size_t Checkpoint::ignore_prefix(const std::string& prefix, const std::string& reason) {
  std::size_t n = 0;
  for (auto it = used_.lower_bound(prefix); it != used_.end() && it->first.rfind(prefix, 0) == 0;
       ++it) {
    if (!it->second) {
      it->second = true;
      ++n;
    }
  }
  if (n > 0) {
    ignored_.push_back(fmt::format("{}: {} ({} tensor{})", prefix, reason, n, n == 1 ? "" : "s"));
  }
  return n;
}

void Checkpoint::finish() {
  for (std::uint64_t i = 0; i < config_.num_nextn_layers; ++i) {
    ignore_prefix(fmt::format("{}.{}.", gguf_ ? "blk" : "model.layers", config_.num_layers + i),
                  "multi-token prediction module, not modelled");
  }
  const std::string suffix = ".rotary_emb.inv_freq";
  std::size_t rotary = 0;
  for (auto& [name, used] : used_) {
    if (!used && name.size() > suffix.size() &&
        name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
      used = true;
      ++rotary;
    }
  }
  if (rotary > 0) {
    ignored_.push_back(fmt::format("*{}: computed from the config ({} tensors)", suffix, rotary));
  }
  if (config_.tie_word_embeddings && has("lm_head.weight") && !used_["lm_head.weight"]) {
    const TensorView* head = find("lm_head.weight");
    const TensorView* embedding = find("model.embed_tokens.weight");
    if (embedding == nullptr || embedding->dtype != head->dtype ||
        embedding->shape != head->shape ||
        !std::equal(head->data.begin(), head->data.end(), embedding->data.begin(),
                    embedding->data.end())) {
      throw InputError(file_of("lm_head.weight"),
                       "tensor \"lm_head.weight\" differs from the embedding although the config "
                       "ties them",
                       "set tie_word_embeddings to false");
    }
    used_["lm_head.weight"] = true;
    ignored_.emplace_back("lm_head.weight: equal to the tied embedding (1 tensor)");
  }
  std::vector<std::string> unused;
  for (const auto& [name, used] : used_) {
    if (!used) {
      unused.push_back(name);
    }
  }
  if (!unused.empty()) {
    const std::size_t shown = std::min<std::size_t>(unused.size(), 3);
    const std::vector<std::string> first(unused.begin(),
                                         unused.begin() + static_cast<std::ptrdiff_t>(shown));
    throw InputError(
        file_of(unused.front()),
        fmt::format("{} tensor{} the config has no place for: \"{}\"{}", unused.size(),
                    unused.size() == 1 ? "" : "s", fmt::join(first, "\", \""),
                    unused.size() > shown ? fmt::format(" and {} more", unused.size() - shown)
                                          : std::string()),
        "config.json belongs to another checkpoint, or the layout is unsupported");
  }
}

Hash128 Checkpoint::weight_hash() const { return hash_tensors(tensors()); }

void TensorHasher::add(const TensorView& tensor) {
  // Lengths go in first, so that no two different sets give the same stream.
  hasher_.update(fmt::format("{}:{}:{}:{}:[{}]:{}:", tensor.name.size(), tensor.name,
                             file_dtype_name(tensor.dtype), tensor.shape.size(),
                             fmt::join(tensor.shape, ","), tensor.data.size()));
  hasher_.update(tensor.data);
}

Hash128 hash_tensors(const std::map<std::string, TensorView>& tensors) {
  TensorHasher hasher;
  for (const auto& [name, view] : tensors) {
    hasher.add(view);
  }
  return hasher.digest();
}

}  // namespace switchyard::model
