// SPDX-License-Identifier: Apache-2.0
// The verb `profile`: times of the engine's own operations as a calibration.
#pragma once
#include <filesystem>
#include <string>

namespace switchyard::cli {

struct ProfileOptions {
  std::string device = "cpu";    ///< cpu; cuda is refused as a missing capability.
  std::string model;             ///< Shapes: config.json, preset or checkpoint.
  std::filesystem::path root;    ///< Folder of scenarios, for presets.
  std::filesystem::path output;  ///< Calibration (.toml).
  std::string name = "cpu";      ///< Device name in the calibration.
  unsigned threads = 1;
  bool quiet = false;
};

/// Measures GEMMs (QKV, output, head with bf16 weights, gate with fp32) and expert layers (bf16) of
/// the model's shapes, 1 to 64 rows, the least of several repetitions; random weights. Peaks of the
/// calibration are the best rates seen. 0.
int run_profile(const ProfileOptions& options);

}  // namespace switchyard::cli
