// SPDX-License-Identifier: Apache-2.0
// The verb `diagnose`: symptom, cause, check and cure of a run.
#pragma once
#include <string>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct DiagnoseOptions {
  std::string run;  ///< Run file (.h5).
  bool verify = true;
  TableFormat format = TableFormat::kText;
};

/// 0 whatever it finds. Throws InputError.
int run_diagnose(const DiagnoseOptions& options);

}  // namespace switchyard::cli
