// SPDX-License-Identifier: Apache-2.0
// The verb `doctor`: what this machine and build can do, and what is missing, with package names.
#pragma once
#include "engine/base/table.hpp"

namespace switchyard::cli {

struct DoctorOptions {
  TableFormat format = TableFormat::kText;
};

/// Prints the table; 0 even when something optional is missing.
int run_doctor(const DoctorOptions& options);

}  // namespace switchyard::cli
