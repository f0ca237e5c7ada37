// SPDX-License-Identifier: Apache-2.0
// Table `mixed-fabric` (C21): uniform all-to-all of 16 GPUs, fabric x algorithm x payload, in
// closed form (sim/network/mixed_fabric.hpp). The article changes fabric and algorithm at once and
// states no payload, so the ratio is judged, with each change also by itself.
//
// Not modelled: latencies and software overheads (0 here), pipelining between phases.
#pragma once
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"
#include "sim/network/mixed_fabric.hpp"

namespace switchyard::tables {

[[nodiscard]] claims::Measurements measure_mixed_fabric(const network::FabricRates& rates);
[[nodiscard]] std::vector<Table> mixed_fabric_tables(const network::FabricRates& rates,
                                                     const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
