// SPDX-License-Identifier: Apache-2.0
// A hardware file from NCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes, or a cloud's
// NCCL_TOPO_FILE (M30).
//
//   elements: system, cpu (numaid), pci (class busid link_speed link_width), gpu (dev),
//             nvlink (target count tclass)
//   classes:  0x0604.. a PCIe switch, 0x0302.. and 0x0300.. a GPU, 0x02.... a NIC, others left out
// A pci element's link_speed and link_width are those of its link to its parent:
//   bytes/s per direction = GT/s · width / 8 · coding
//   coding: 2.5 and 5 GT/s 8/10; 8, 16 and 32 GT/s 128/130; 64 GT/s 242/256
//
// NVLink: `count` lanes to a GPU (tclass 0x0302.., or the bus id of one) are a cable between the
// two, as both sides must state; lanes to NVSwitches (0x0680..) add up to one cable to one
// nvswitch. Sockets are joined by a cable of `numa` bandwidth, each with each. From a hardware file
// of the same kind of GPU (`like`): the GPU's figures, the rate of an NVLink lane, all latencies,
// and the rate of PCIe links that the XML does not state. GPUs are numbered by `dev` when all have
// it, else in the order of the file.
//
// Refused: more than one system, 64 GPUs or 256 pci elements; NVLink that only one side states or
// with more lanes than the GPU has; unknown link speeds. A place is file:line for what is no XML,
// and the bus id for the rest, which the XML library keeps without lines.
//
// Not modelled: NICs' outer ports and their speed (one server only), NICs that hang on no PCIe
// device, C2C links, AMD's xgmi.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "experiments/import/topo_m.hpp"

namespace switchyard::importers {

struct NcclXml {
  std::string toml;
  bool nvlink = false;         ///< The XML states NVLink.
  std::uint32_t left_out = 0;  ///< pci elements that are no switch, GPU or NIC.
  std::uint32_t unstated = 0;  ///< PCIe links whose rate is that of `like`.
};

NcclXml hardware_from_nccl_xml(std::string_view text, const std::string& where,
                               const TopoMOptions& options);

}  // namespace switchyard::importers
