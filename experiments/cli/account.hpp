// SPDX-License-Identifier: Apache-2.0
// `switchyard account MODEL`: parameters, bytes, KV cache, FLOPs and the eight activation rates.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/model/accounting.hpp"

namespace switchyard {

struct AccountOptions {
  std::string model;           ///< preset name, config.json, .gguf or checkpoint folder.
  std::string dtype;           ///< --dtype: "" = the file's own formats; see parse_dtype_choice.
  std::uint64_t tokens = 1;    ///< --tokens: T of the activation rates, ≥ 1.
  std::uint64_t context = 0;   ///< --context: tokens each one attends to, for FLOPs and KV bytes.
  std::filesystem::path root;  ///< folder that holds `scenarios` (presets are looked up there).
};

/// "int4" sets every part's weights (KV stays), "experts=int4,router=fp32" single parts (experts,
/// shared, router, kv). InputError("--dtype", …) with a suggestion for an unknown part or format.
model::DTypeChoice parse_dtype_choice(const std::string& text, model::DTypeChoice base);

/// Three tables: "account" (by part), "account-derived" (expert, KV, FLOPs), "account-activation"
/// (eight rates; with a second column when an article states another total).
std::vector<Table> account(const AccountOptions& options);

}  // namespace switchyard
