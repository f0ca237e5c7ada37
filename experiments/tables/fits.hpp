// SPDX-License-Identifier: Apache-2.0
// Table `fits`: does each article's recipe fit into the memory it names? Weights by
// switchyard::model's accounting against the GPUs of a hardware file; the watermark (92 %) is the
// share that weights may take. Needs are pooled: the GPUs of a recipe are alike and hold equal
// parts.
//
// Not modelled: KV cache and buffers (the column shows how many tokens of KV would be left),
// fragmentation, the framework's own memory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/model/accounting.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// What has to be in memory.
enum class Needs : std::uint8_t {
  kWeights,           ///< All weights once.
  kReplicatedShared,  ///< Everything but the routed experts on every GPU.
  kStatedTotal,       ///< The article's total, in the `shared` format.
  kStatedActive       ///< The article's active parameters, in the `shared` format.
};

struct Recipe {
  std::string row;              ///< Quantity of the claim.
  std::string model, hardware;  ///< Stems of files below scenarios/.
  model::DTypeChoice dtype;
  Needs needs = Needs::kWeights;
};
[[nodiscard]] const std::vector<Recipe>& recipes();

/// The GPUs of a hardware file, all alike.
struct Cards {
  std::uint64_t count = 0;
  double bytes = 0;  ///< Of one.
};
struct FitsInputs {
  std::map<std::string, model::ModelConfig> models;  ///< By preset name, as all recipes ask.
  std::map<std::string, Cards> hardware;             ///< Likewise.
  double watermark = 0.92;                           ///< Share of the memory, (0, 1].
};
/// Reads scenarios/models and scenarios/hardware.
[[nodiscard]] FitsInputs fits_inputs(const std::filesystem::path& scenarios, double watermark);

struct Fit {
  std::string what;  ///< Formats, in words.
  double needs = 0;  ///< Bytes, over all GPUs.
  std::uint64_t gpus = 0;
  double card = 0;  ///< Bytes of one GPU.
  [[nodiscard]] double has() const { return static_cast<double>(gpus) * card; }
  [[nodiscard]] double use() const { return needs / has(); }
  [[nodiscard]] bool fits(double watermark) const { return use() <= watermark; }
  std::uint64_t kv_token = 0;  ///< Bytes of KV cache per token.
};
[[nodiscard]] Fit fit(const Recipe& recipe, const FitsInputs& inputs);

/// One quantity per recipe, 1 where it fits.
[[nodiscard]] claims::Measurements measure_fits(const FitsInputs& inputs);
[[nodiscard]] std::vector<Table> fits_tables(const FitsInputs& inputs,
                                             const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
