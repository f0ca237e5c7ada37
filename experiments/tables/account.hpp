// SPDX-License-Identifier: Apache-2.0
// Table `account`: C01-C05, C35 and C51 by arithmetic on the articles' models, beside real ones.
// Every value follows from a model file, a hardware file and switchyard::model's accounting; the
// articles' own figures enter only where a claim adds them up.
//
// Not modelled: quantisation scales, optimizer states, MTP modules (see
// engine/model/accounting.hpp).
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/model/model_config.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/figures.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

struct AccountInputs {
  std::map<std::string, model::ModelConfig> models;       ///< By preset name.
  std::uint64_t card_80 = 0, card_188 = 0, card_280 = 0;  ///< Bytes of one GPU.
  std::uint64_t memory_8x188 = 0;                         ///< Bytes of all GPUs.
  ChangedFigures figures;                                 ///< Empty: all as printed.
};

/// Reads scenarios/models and scenarios/hardware; no figure changed.
[[nodiscard]] AccountInputs account_inputs(const std::filesystem::path& scenarios);
/// `figures`, if not null, gets every figure that entered, once, in order of use.
[[nodiscard]] claims::Measurements measure_account(const AccountInputs& inputs,
                                                   const std::vector<claims::Claim>& claims,
                                                   std::vector<Figure>* figures = nullptr);
[[nodiscard]] std::vector<Table> account_tables(const AccountInputs& inputs,
                                                const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
