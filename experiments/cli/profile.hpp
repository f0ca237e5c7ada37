// SPDX-License-Identifier: Apache-2.0
// The verb `profile`: times of the engine's own operations as a calibration.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/model/model_config.hpp"
#include "sim/scenario/calibration.hpp"

namespace switchyard::cli {

struct ProfileOptions {
  std::string device = "cpu";    ///< cpu or cuda.
  std::string dtype = "f32";     ///< Of products: f32, or with cuda bf16.
  std::string model;             ///< Shapes: config.json, preset or checkpoint.
  std::filesystem::path root;    ///< Folder of scenarios, for presets.
  std::filesystem::path output;  ///< Calibration (.toml).
  std::string name;              ///< Device name in the calibration; "": `device`.
  unsigned threads = 1;
  bool quiet = false;
};

/// How much is measured.
struct ProfileScope {
  std::uint64_t most_bytes = 0;       ///< Weights of one operation.
  std::size_t most_rows = 0;          ///< Of products and experts; a power of two.
  std::vector<std::size_t> contexts;  ///< Positions that a decoding row sees; ascending, >= 1.
  std::vector<std::size_t> batches;   ///< Sequences that decode together; ascending, >= 1.
  std::vector<std::size_t> prompts;   ///< Tokens of a prefill.
  int calls = 1;  ///< Between two looks at the clock: a device works off a queue.
};
[[nodiscard]] ProfileScope profile_scope(const std::string& device);

/// Times of `backend` at the shapes of `model`, which was found runnable here (GQA, three-matrix
/// experts): GEMMs (QKV, output, head with bf16 weights, gate exact), expert layers (bf16) and
/// attention (decode and prefill, for each window of the model; keys and values are fp32), the
/// least of several repetitions; random weights. Peaks are the best rates seen, of any operation.
/// `library` is what the tables name. InputError: weights beyond scope.most_bytes.
[[nodiscard]] scenario::Calibration measure_operations(Backend& backend,
                                                       const model::ModelConfig& model,
                                                       const ProfileScope& scope,
                                                       const std::string& library, bool quiet);

/// Measures and writes the calibration. 0. CapabilityError: --device cuda without a GPU.
int run_profile(const ProfileOptions& options);

}  // namespace switchyard::cli
