// SPDX-License-Identifier: Apache-2.0
// Table `conflicts`: where the articles contradict each other, position by position, with what the
// presets give for each. Table `out-of-scope`: numbers that people, private services or a GPU
// decide.
//
// Not modelled: which position is right where it is a matter of definition; then the value of each
// definition is shown.
#pragma once
#include <filesystem>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/claims/claims.hpp"

namespace switchyard::tables {

/// `scenarios` has models/. One row per position; column "computed" from the models.
[[nodiscard]] Table conflicts_table(const std::filesystem::path& scenarios);
/// "out-of-scope" and "out-of-scope-verdicts". Every claim is decided by people or by silicon
/// (asserted).
[[nodiscard]] std::vector<Table> out_of_scope_tables(const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
