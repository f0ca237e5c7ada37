// SPDX-License-Identifier: Apache-2.0
// Claim C21 (`switchyard table mixed-fabric`): 16 GPUs, all-to-all of S bytes per GPU, fabric ×
// algorithm. Fluid: latencies are 0, only bytes and bandwidths count.
//
// The fabrics, bandwidths per direction:
//   mixed_server   GPUs 0–7 on an NVSwitch, every GPU also on one PCIe root; NVLink to PCIe GPUs
//                  and PCIe GPUs among themselves go over the root. One "server" of two groups.
//   nvlink_domain  16 GPUs on one NVSwitch, in two groups of 8.
//   mixed_nic      8 NVLink GPUs and 8 PCIe GPUs, each group by itself, joined by one NIC per GPU.
//   nvlink_nic     the same with two NVLink groups.
// At S = 0.512 GB, NVLink 300, PCIe 32, NIC 25 GB/s: ring 120.0 ms on mixed_server and 12.8 ms on
// nvlink_domain (load S·15/2 = 3.84 GB on the slowest link); hierarchical 24.24 ms on mixed_nic
// (7 + 7 ms inside over PCIe, 256 MB / 25 GB/s = 10.24 ms between) and 11.73 ms on nvlink_nic.
// A NIC-joined ring is slower than either (153.6 ms): the two links between the groups carry as
// much as every other. The bidirectional ring sends S·n/8 = 1.024 GB to each neighbour, but all
// fabrics here give a GPU one port per switch that carries both: 64 ms on mixed_server (a ring of
// cables, one per neighbour, would need 32).
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "engine/base/units.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/network/algorithms.hpp"

namespace switchyard::network {

enum class Fabric : std::uint8_t { kMixedServer, kNvlinkDomain, kMixedNic, kNvlinkNic };
inline constexpr std::array<Fabric, 4> kFabrics{Fabric::kMixedServer, Fabric::kNvlinkDomain,
                                                Fabric::kMixedNic, Fabric::kNvlinkNic};
[[nodiscard]] const char* name_of(Fabric fabric);

/// Per direction. Defaults: NVLink 3, PCIe 4 x16 and a 200 Gbit/s NIC.
struct FabricRates {
  BytesPerSecond nvlink{300e9};
  BytesPerSecond pcie{32e9};
  BytesPerSecond nic{25e9};
};

/// 16 GPUs; node 0 = GPUs 0–7, node 1 = GPUs 8–15 (the two groups of the hierarchical algorithm).
cluster::ClusterGraph fabric_graph(Fabric fabric, const FabricRates& rates = {});

/// One cell of the table.
struct FabricCell {
  SimTime duration;  ///< Closed form, phase after phase, latency 0.
  std::uint32_t phases = 0;
  std::uint64_t busiest_link_bytes = 0;  ///< Over all phases.
  std::string bottleneck_link;           ///< Of the longest phase.
};
/// Uniform matrix: every GPU sends `bytes_per_gpu` / 16 to each GPU (its own share stays at home).
/// bytes_per_gpu must be a multiple of 16 and > 0 (InputError otherwise).
FabricCell fabric_all_to_all(Fabric fabric, Algorithm algorithm, std::uint64_t bytes_per_gpu,
                             const FabricRates& rates = {});

}  // namespace switchyard::network
