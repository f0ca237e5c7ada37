// SPDX-License-Identifier: Apache-2.0
// The files that a policy names: shapes, names, hashes.
#include "engine/model/policy_weights.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/safetensors.hpp"

namespace switchyard::model {
namespace {

constexpr std::uint32_t kLayers[] = {1, 3};

struct Entry {
  std::vector<std::uint64_t> shape;
  std::vector<float> values;
};
using Entries = std::map<std::string, Entry>;

std::vector<float> ramp(std::size_t n, float from) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) {
    v[i] = from + static_cast<float>(i) / 8;
  }
  return v;
}

/// E = 4, D = 3.
Entries semantic_file(std::uint64_t inputs = 4) {
  Entries out;
  for (const std::uint32_t l : kLayers) {
    const std::string head = "layers." + std::to_string(l) + ".semantic.";
    const auto f = static_cast<float>(l);
    out[head + "w1"] = {{3, inputs}, ramp(3 * inputs, f)};
    out[head + "b1"] = {{3}, ramp(3, f)};
    out[head + "w2"] = {{4, 3}, ramp(12, -f)};
    out[head + "b2"] = {{4}, ramp(4, 0)};
  }
  return out;
}

std::filesystem::path write(const std::string& name, const Entries& entries) {
  std::vector<TensorData> list;
  for (const auto& [key, e] : entries) {
    list.push_back(TensorData::from_floats(key, DType::kF32, e.shape, e.values));
  }
  write_safetensors(name, list);
  return name;
}

PolicyWeights load(RoutingPolicy& policy, const std::filesystem::path& path,
                   const std::string& key = "semantic.file") {
  return load_policy_weights(policy, {{key, path}}, gate_mixtral(4, 2), kLayers, 6);
}

RoutingPolicy semantic_policy(const std::string& more = "") {
  return policy_from_text("semantic.mode=mlp semantic.file=w.safetensors" + more, "test");
}

std::string refusal(const Entries& entries, RoutingPolicy policy = semantic_policy(),
                    const std::string& key = "semantic.file") {
  const auto path = write("w.safetensors", entries);
  try {
    (void)load(policy, path, key);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(PolicyWeights, AreReadLayerByLayerAndTheHashIsFilledIn) {
  RoutingPolicy policy = semantic_policy();
  const PolicyWeights w = load(policy, write("w.safetensors", semantic_file()));
  ASSERT_EQ(w.layers.size(), 2U);
  EXPECT_EQ(w.layers[1].semantic.inputs, 4U);
  EXPECT_EQ(w.layers[1].semantic.hidden, 3U);
  EXPECT_EQ(w.layers[1].semantic.outputs, 4U);
  EXPECT_EQ(w.layers[1].semantic.w1, ramp(12, 3));
  EXPECT_EQ(w.layers[0].semantic.w2, ramp(12, -1));
  EXPECT_TRUE(w.layers[0].adapter.a.empty());
  EXPECT_EQ(policy.semantic.hash.size(), 16U);
  // The hash that was filled in is accepted, another file under it is not.
  RoutingPolicy again = semantic_policy(" semantic.hash=" + policy.semantic.hash);
  EXPECT_NO_THROW((void)load(again, "w.safetensors"));
  Entries other = semantic_file();
  other["layers.1.semantic.b2"].values[0] += 1;
  EXPECT_NE(refusal(other, again).find("semantic.hash: w.safetensors has the hash"),
            std::string::npos);
  RoutingPolicy none;
  EXPECT_TRUE(load(none, "nowhere").layers.empty());
}

TEST(PolicyWeights, OfTheInputAndOfTheAdapterHaveTheModelsWidth) {
  RoutingPolicy on_input = semantic_policy(" semantic.on=input");
  EXPECT_EQ(load(on_input, write("w.safetensors", semantic_file(6))).layers[0].semantic.inputs, 6U);
  Entries adapter;
  for (const std::uint32_t l : kLayers) {
    const std::string head = "layers." + std::to_string(l) + ".router.";
    adapter[head + "lora_a"] = {{2, 6}, ramp(12, 0)};
    adapter[head + "lora_b"] = {{4, 2}, ramp(8, 1)};
  }
  RoutingPolicy policy = policy_from_text("condition.adapter=a.safetensors", "test");
  const PolicyWeights w = load(policy, write("a.safetensors", adapter), "condition.adapter");
  EXPECT_EQ(w.layers[1].adapter.rank, 2U);
  EXPECT_EQ(w.layers[1].adapter.b, ramp(8, 1));
  EXPECT_EQ(policy.condition.adapter_hash.size(), 16U);
}

TEST(PolicyWeights, ThatDoNotFitAreNamed) {
  Entries missing = semantic_file();
  missing.erase("layers.3.semantic.b1");
  EXPECT_EQ(refusal(missing),
            "w.safetensors: tensor layers.3.semantic.b1 is missing; every MoE layer needs its own");
  Entries extra = semantic_file();
  extra["layers.2.semantic.b1"] = {{3}, ramp(3, 0)};
  EXPECT_EQ(refusal(extra), "w.safetensors: tensor layers.2.semantic.b1 is unknown");
  Entries wide = semantic_file(5);
  EXPECT_EQ(refusal(wide),
            "w.safetensors: layers.1.semantic.w1 has shape [3, 5], expected [0, 4] (0: any up to "
            "65536)");
  Entries broken = semantic_file();
  broken["layers.1.semantic.b2"].values[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refusal(broken), "w.safetensors: layers.1.semantic.b2 has a value that is not finite");
  RoutingPolicy policy = semantic_policy();
  EXPECT_THROW((void)load(policy, "not_there.safetensors"), InputError);
  // From a trace only the name is known.
  RoutingPolicy recorded =
      policy_from_text("semantic.mode=mlp semantic.file=lost.safetensors", "t");
  try {
    (void)load_policy_weights(recorded, {}, gate_mixtral(4, 2), kLayers, 6);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(
        e.what(),
        "policy.semantic.file: where is lost.safetensors?; a trace records the name alone; "
        "state the policy in the scenario, or run where the file lies");
  }
}

}  // namespace
}  // namespace switchyard::model
