// SPDX-License-Identifier: Apache-2.0
// Internal: hardware from a merged tree, so that a scenario can override the file's figures.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "sim/scenario/hardware.hpp"
#include "sim/scenario/section.hpp"

namespace switchyard::scenario {

/// "gpu[0-3,8]" → gpu0 … gpu3, gpu8; a name without brackets stands for itself. At most 65,536
/// names. `shown` = key as the user wrote it.
std::vector<std::string> expand_pattern(std::string_view pattern, const std::string& where,
                                        const std::string& shown);

/// `table` holds the keys of a hardware file; full keys begin with "hardware.". `name` is used when
/// the table does not state one.
HardwareSpec hardware_from(Context& context, const Node& table, const std::string& name);

}  // namespace switchyard::scenario
