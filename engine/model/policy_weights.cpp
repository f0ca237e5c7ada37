// SPDX-License-Identifier: Apache-2.0
#include "engine/model/policy_weights.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/model/safetensors.hpp"

namespace switchyard::model {
namespace {

/// Takes tensors out of one file; every one must be taken.
class File {
 public:
  File(std::filesystem::path path) : path_(std::move(path)), file_(Safetensors::open(path_)) {}

  /// dims: expected sizes; 0 takes what the file says and writes it back.
  std::vector<float> take(const std::string& name, std::vector<std::uint64_t>& dims) {
    const TensorView* t = file_.find(name);
    if (t == nullptr) {
      throw InputError(path_.string(), fmt::format("tensor {} is missing", name),
                       "every MoE layer needs its own");
    }
    bool fits = t->shape.size() == dims.size();
    for (std::size_t i = 0; fits && i < dims.size(); ++i) {
      fits = dims[i] == 0 ? t->shape[i] > 0 && t->shape[i] <= 65536 : t->shape[i] == dims[i];
    }
    if (!fits) {
      throw InputError(path_.string(),
                       fmt::format("{} has shape [{}], expected [{}] (0: any up to 65536)", name,
                                   fmt::join(t->shape, ", "), fmt::join(dims, ", ")));
    }
    dims = t->shape;
    std::vector<float> values = t->to_float();
    for (const float v : values) {
      if (!std::isfinite(v)) {
        throw InputError(path_.string(), fmt::format("{} has a value that is not finite", name));
      }
    }
    taken_.insert(name);
    return values;
  }

  /// XXH3-64 over names, formats, shapes and bytes, after all was taken.
  std::string finish() {
    Hasher128 hash;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (!taken_.contains(name)) {
        throw InputError(path_.string(), fmt::format("tensor {} is unknown", name));
      }
      hash.update(
          fmt::format("{} {} [{}] ", name, dtype_name(tensor.dtype), fmt::join(tensor.shape, ",")));
      hash.update(tensor.data);
    }
    return hash.digest().hex().substr(0, 16);
  }

 private:
  std::filesystem::path path_;
  Safetensors file_;
  std::set<std::string> taken_;
};

File open(const PolicyFiles& files, const std::string& key, const std::string& name) {
  const auto at = files.find(key);
  if (at == files.end() && !std::filesystem::exists(name)) {
    throw InputError(
        "policy." + key, fmt::format("where is {}?", name),
        "a trace records the name alone; state the policy in the scenario, or run where "
        "the file lies");
  }
  return {at == files.end() ? std::filesystem::path(name) : at->second};
}

void settle_hash(std::string& stated, const std::string& found, const std::string& key,
                 const std::string& file) {
  if (stated != "any" && stated != found) {
    throw InputError("policy." + key,
                     fmt::format("{} has the hash {}, the policy states {}", file, found, stated),
                     "the file was replaced since, or another one was meant");
  }
  stated = found;
}

}  // namespace

PolicyWeights load_policy_weights(RoutingPolicy& policy, const PolicyFiles& files,
                                  const GateSpec& gate, std::span<const std::uint32_t> layers,
                                  std::uint64_t hidden) {
  PolicyWeights out;
  const auto layer = [&](std::size_t l) -> LayerPolicyWeights& {
    out.layers.resize(layers.size());
    return out.layers[l];
  };
  SemanticPolicy& s = policy.semantic;
  if (!s.file.empty()) {
    File file = open(files, "semantic.file", s.file);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      SemanticWeights& w = layer(l).semantic;
      const std::string head = fmt::format("layers.{}.semantic.", layers[l]);
      w.inputs = s.on == SemanticInput::kInput ? static_cast<std::uint32_t>(hidden) : gate.experts;
      w.outputs = gate.experts;
      std::vector<std::uint64_t> shape{0, w.inputs};
      w.w1 = file.take(head + "w1", shape);
      w.hidden = static_cast<std::uint32_t>(shape[0]);
      shape = {w.hidden};
      w.b1 = file.take(head + "b1", shape);
      shape = {w.outputs, w.hidden};
      w.w2 = file.take(head + "w2", shape);
      shape = {w.outputs};
      w.b2 = file.take(head + "b2", shape);
    }
    settle_hash(s.hash, file.finish(), "semantic.hash", s.file);
  }
  ConditionPolicy& c = policy.condition;
  if (!c.adapter.empty()) {
    File file = open(files, "condition.adapter", c.adapter);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      AdapterWeights& w = layer(l).adapter;
      const std::string head = fmt::format("layers.{}.router.", layers[l]);
      w.inputs = static_cast<std::uint32_t>(hidden);
      w.outputs = gate.experts;
      std::vector<std::uint64_t> shape{0, w.inputs};
      w.a = file.take(head + "lora_a", shape);
      w.rank = static_cast<std::uint32_t>(shape[0]);
      shape = {w.outputs, w.rank};
      w.b = file.take(head + "lora_b", shape);
    }
    settle_hash(c.adapter_hash, file.finish(), "condition.adapter_hash", c.adapter);
  }
  return out;
}

}  // namespace switchyard::model
