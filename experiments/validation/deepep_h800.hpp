// SPDX-License-Identifier: Apache-2.0
// DeepEP's published exchanges on H800 servers (DeepEP dd758ca, docs/legacy.md, MIT: 8 to 256 GPUs,
// CX7 NICs) against the network model (closed form over the links of the cluster).
//
//   time = alpha + (largest bytes / rate of a link) / share
//
// One alpha, and a share for each kind of kernel, by the smallest sum of |ln(simulated /
// measured)| over the rows whose key (kernel,ep,tokens,phase) has an even FNV-1a; the others are
// judged. Rates per direction: NVLink 160 GB/s ("~160 GB/s NVLink maximum bandwidth" of these H800,
// same file; 200 nominal), NIC 50 GB/s. Bytes for T tokens of hidden
// 7168, top-8 of 256 experts, uniform:
//
//   low_latency  a copy for each chosen expert: T·8/G · (7408 dispatch, 14336 combine) to each GPU
//   normal       a copy for each server hit, to the GPU of the same place there, which passes it on
//                to each GPU hit, both at once; at most four servers hold a token's experts. A
//                copy: 7392 B dispatch, 14336 B combine (engines.md 3.2 of the specification). Its
//                rows print a rate; the time is the bytes it is of (own server included) over it.
//
// Not modelled: SMs of the kernels, and the cost of passing copies on between NIC and NVLink, which
// shows on two servers, where both are busy alike.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::validation {

struct DeepEpRow {
  std::string kernel, phase;             ///< "normal" or "low_latency"; "dispatch" or "combine".
  std::uint32_t ep = 0;                  ///< GPUs, 8 a server.
  double measured_us = 0, floor_us = 0;  ///< Floor: bytes at the nominal rates.
  double simulated_us = 0;
  bool judged = false;
  [[nodiscard]] double error() const { return simulated_us / measured_us - 1; }
};

struct DeepEpCase {
  std::vector<DeepEpRow> rows;    ///< As in the file.
  double alpha_us = 0;            ///< Start-up of an exchange.
  std::array<double, 2> share{};  ///< Of the link rates: low_latency, normal.
};

/// Reads <scenarios>/validation/h800_deepep/published.csv. InputError with file:line for bad rows,
/// and when a kind has no row with an even hash.
DeepEpCase run_deepep_h800(const std::filesystem::path& scenarios);
Table deepep_table(const DeepEpCase& result);

}  // namespace switchyard::validation
