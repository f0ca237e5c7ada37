// SPDX-License-Identifier: Apache-2.0
// What a run file holds, for the verb `inspect`.
#pragma once
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct InspectRunOptions {
  bool verify = true;       ///< false: --no-verify, only for files above 4 GiB.
  bool definitions = true;  ///< A column with the definition of each metric.
  bool layers = false;      ///< --layers: check the blocks of single layers, however many they are.
  /// Steps x layers x experts up to which they are checked anyway (some 15 s of reading).
  double most_layer_numbers = 3e8;
};

/// Three tables: "run" (what was simulated and what the file holds), "metrics", and "conservation"
/// (the laws of sim/run/conservation.hpp, checked on the blocks the file has). InputError when the
/// file is not a sound run.
std::vector<Table> inspect_run(const std::string& path, const InspectRunOptions& options = {});

}  // namespace switchyard::cli
