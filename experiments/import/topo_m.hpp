// SPDX-License-Identifier: Apache-2.0
// A hardware file from the text of `nvidia-smi topo -m` (M30).
//
// The text says who is how far from whom, not what the links carry. Those figures come from a
// hardware file of the same kind of GPU (`like`): its first GPU's type, and the rate and latency of
// its NVLink and PCIe cables. Only the lane count of NVLink comes from the text.
//
//   NV<k>      k NVLink lanes. In a group whose members all see each other with the same k: cables
//              pair by pair if k·(members − 1) lanes fit on a GPU, else one NVSwitch and a cable of
//              k lanes each. Other patterns: cables pair by pair.
//   PIX        one PCIe switch              PXB   several PCIe switches under one port
//   PHB        one root complex             NODE  several root complexes of one NUMA node
//   SYS        other NUMA nodes: the sockets are joined by a cable of `numa` bandwidth
// "At most PIX", "… PXB", … must be equivalences; where NVLink hides the PCIe distance, the NUMA
// column decides the socket. NICs are leaves on the PCIe tree; their outer ports are not connected,
// since the text knows one server only.
//
// Refused with file:line: anything that is not such a text, rows or columns missing or twice, a
// matrix that is not symmetric, distances that fit no tree, more lanes than the GPU has, more than
// 64 GPUs or 128 devices, lines beyond 64 KiB.
//
// Not modelled: which lanes are bonded, PCIe generation and width of the machine itself, MIG.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/units.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::importers {

struct TopoMOptions {
  std::string name;  ///< Of the hardware; letters, digits, _, -, .
  /// Source of the figures; needs a PCIe cable, and an NVLink cable if the text has NV<k>.
  scenario::HardwareSpec like;
  /// Per direction between two sockets; needed when the text has more than one NUMA node and `like`
  /// has no cable of class numa.
  std::optional<BytesPerSecond> numa;
};

/// The hardware file's text (TOML). `where` stands for the input in messages.
std::string hardware_from_topo_m(std::string_view text, const std::string& where,
                                 const TopoMOptions& options);

}  // namespace switchyard::importers
