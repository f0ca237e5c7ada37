// SPDX-License-Identifier: Apache-2.0
// Helpers of the engine's tests: the committed Hugging Face fixtures, and copies of them with some
// tensors changed.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/safetensors.hpp"

namespace switchyard::testing_support {

inline std::filesystem::path fixture(const std::string& variant) {
  return std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/mixtral_tiny" / variant;
}

/// The committed checkpoint of one family, by name of its folder.
inline std::filesystem::path family(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/family_tiny" / name;
}

/// The text of the InputError that `body` throws; fails the test if it throws none.
inline std::string input_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  ADD_FAILURE() << "no InputError";
  return {};
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

/// A folder below the test's working folder, emptied.
inline std::filesystem::path fresh_folder(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::current_path() / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

using Tensors = std::map<std::string, model::TensorData>;

/// Copies a fixture checkpoint into a fresh folder after `change` had its way with the tensors.
inline std::filesystem::path changed_checkpoint(const std::string& variant, const std::string& name,
                                                const std::function<void(Tensors&)>& change) {
  const auto folder = fresh_folder(name);
  write_file(folder / "config.json", read_file(fixture(variant) / "config.json"));
  const auto weights = model::Safetensors::open(fixture(variant) / "model.safetensors");
  Tensors tensors;
  for (const auto& [key, view] : weights.tensors()) {
    tensors[key] = {key, view.dtype, view.shape, {view.data.begin(), view.data.end()}};
  }
  change(tensors);
  std::vector<model::TensorData> list;
  for (auto& [key, tensor] : tensors) {
    tensor.name = key;
    list.push_back(tensor);
  }
  model::write_safetensors(folder / "model.safetensors", list);
  return folder;
}

/// Overwrites value `index` of an F32 tensor.
inline void set_value(model::TensorData& tensor, std::size_t index, float value) {
  ASSERT_EQ(tensor.dtype, model::DType::kF32);
  ASSERT_LE((index + 1) * sizeof value, tensor.bytes.size());
  std::memcpy(tensor.bytes.data() + index * sizeof value, &value, sizeof value);
}

/// Integers of an I32 tensor of an expectation file.
inline std::vector<std::uint32_t> ids_of(const model::Safetensors& file, const std::string& name) {
  const model::TensorView* t = file.find(name);
  if (t == nullptr || t->dtype != model::DType::kI32) {
    ADD_FAILURE() << name << " is missing or not I32";
    return {};
  }
  std::vector<std::uint32_t> out(t->count());
  std::memcpy(out.data(), t->data.data(), out.size() * sizeof out[0]);
  return out;
}

inline std::vector<float> floats_of(const model::Safetensors& file, const std::string& name) {
  const model::TensorView* t = file.find(name);
  if (t == nullptr) {
    ADD_FAILURE() << name << " is missing";
    return {};
  }
  return t->to_float();
}

/// For a failed comparison with an oracle: how many rows chose other experts, and the smallest and
/// largest margin (logit k minus logit k + 1) among them. Small ones are near ties, where rounding
/// decides; a large one is a bug. `router` is [rows][E], the others [rows][k].
inline std::string margins_of_differences(std::span<const float> router,
                                          std::span<const std::uint32_t> chosen,
                                          std::span<const std::uint32_t> expected,
                                          std::size_t experts, std::size_t k) {
  std::size_t rows = 0;
  float least = INFINITY;
  float most = 0;
  for (std::size_t r = 0; (r + 1) * k <= std::min(chosen.size(), expected.size()); ++r) {
    const std::set<std::uint32_t> a(chosen.begin() + static_cast<std::ptrdiff_t>(r * k),
                                    chosen.begin() + static_cast<std::ptrdiff_t>((r + 1) * k));
    const std::set<std::uint32_t> b(expected.begin() + static_cast<std::ptrdiff_t>(r * k),
                                    expected.begin() + static_cast<std::ptrdiff_t>((r + 1) * k));
    if (a == b) {
      continue;
    }
    ++rows;
    const auto row = router.subspan(r * experts, experts);
    std::vector<float> sorted(row.begin(), row.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const float margin = k < experts ? sorted[k - 1] - sorted[k] : 0;
    least = std::min(least, margin);
    most = std::max(most, margin);
  }
  return rows == 0 ? "the same sets in another order"
                   : fmt::format(
                         "{} rows chose other experts; margins of their logits from {:.3g} to "
                         "{:.3g}",
                         rows, least, most);
}

}  // namespace switchyard::testing_support
