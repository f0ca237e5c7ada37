// SPDX-License-Identifier: Apache-2.0
// A table of measured link bandwidths by bytes on the link (network.measured): CSV with the header
// "bytes,GB/s", GB decimal, lines that begin with # are comments. Read as a curve by
// sim/network/measured.hpp.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.hpp"

namespace switchyard::scenario {

struct BandwidthPoint {
  std::uint64_t bytes = 0;   ///< > 0
  BytesPerSecond bandwidth;  ///< > 0, finite
};

/// 2 … 4,096 points, bytes strictly ascending, 0 < GB/s <= 1e9. InputError with file:line for
/// anything else; `name` stands for the file.
std::vector<BandwidthPoint> parse_bandwidth_table(std::string_view text, const std::string& name);

}  // namespace switchyard::scenario
