// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 on H800 through the step loop, against the throughput that alibaba/InferSim lists as
// measured (from deepseek-ai/profile-data): prefill 7,839 and decode 2,324 tokens/s and GPU.
//
//   prefill  EP32 (4 servers): four prompts of 4,096 tokens a GPU. Dispatch FP8, one copy per
//            server with a fan-out; combine BF16. 24 of 132 SMs are for communication.
//   decode   EP128 (16 servers): 128 sequences a GPU with 4,096 cached tokens. One copy per expert,
//            FP8 out and BF16 back, over the NICs; no SMs for communication.
//
// Both run in two micro-batches whose exchanges hide behind the other's work, as the profile does
// (network.two_batch). Experts: InferSim's grouped GEMMs (DeepGEMM, FP8, H800) as a calibration,
// fit_tables() on its rows. All else is the roofline with 69 % of HBM (median of DeepGEMM's rates
// at 64 and 128 rows) and 55 % of peak (between the medians of InferSim's FlashMLA rows, 52 %, and
// DeepGEMM's dense GEMMs at 4,096 rows, 58 %) and 3 us a kernel (scenarios/hardware/hgx_h800.toml).
// Activations are BF16; GEMMs of the FP8 model take FP8 inputs (model.dtype.gemm_inputs, its
// default), the attention core BF16 ones. NVLink 160 GB/s as DeepEP states it; NICs at what its
// tables measure on the wire: 45 GB/s in normal mode (docs/legacy.md: EP32 58 · 3/4 = 43.5, EP64 51
// · 7/8 = 44.6; README: EP 8x2 90/2 = 45, EP 8x4 61 · 3/4 = 45.8), 39 GB/s in low-latency mode
// (EP128 39). Routing is uniform. Nothing is fitted to the two figures.
//
// Not modelled here: the profile's exact order of the parts (it hides a combine behind attention
// and experts of the other half, which network.two_batch does in a fixed order of its own),
// quantisation kernels, copies of experts.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "sim/run/run_data.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::validation {

struct Throughput {
  std::string phase;
  double measured = 0;   ///< Tokens per second and GPU.
  double simulated = 0;  ///< Two micro-batches that overlap, as in the profile.
  double serial = 0;     ///< The same without overlap.
  /// Critical path of that step, by phase (run::kPhaseNames); seconds.
  std::array<double, run::kPhases> seconds{};
};

/// `scenarios`: the folder with models/ and validation/h800_deepseek_v3/. InputError when a file is
/// bad or the run breaks a conservation law.
Throughput run_deepseek_prefill(const std::filesystem::path& scenarios);
Throughput run_deepseek_decode(const std::filesystem::path& scenarios);

/// Servers of eight H800, a NIC of each GPU on one switch; rates per direction, "50 GB/s".
scenario::HardwareSpec h800_servers(const std::filesystem::path& scenarios, std::uint32_t gpus,
                                    const std::string& nvlink, const std::string& nic);

Table deepseek_table(const std::vector<Throughput>& results);

}  // namespace switchyard::validation
