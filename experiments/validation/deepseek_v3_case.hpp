// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 on H800 through the step loop, against the throughput that alibaba/InferSim lists as
// measured (from deepseek-ai/profile-data): prefill 7,839 and decode 2,324 tokens/s and GPU.
//
//   prefill  EP32 (4 servers): prompts of 4,096 tokens; the profile has four a GPU, here one, since
//            the times per token are nearly the same. Dispatch FP8, one copy per server with a
//            fan-out; combine BF16.
//   decode   EP128 (16 servers): 128 sequences a GPU with 4,096 cached tokens. One copy per expert,
//            FP8 out and BF16 back, over the NICs.
//
// Experts: InferSim's grouped GEMMs (DeepGEMM, FP8, H800) as a calibration, fit_tables() on its
// rows. All else is the roofline with 69 % of HBM (median of DeepGEMM's rates at 64 and 128 rows)
// and 55 % of peak (between the medians of InferSim's FlashMLA rows, 52 %, and DeepGEMM's dense
// GEMMs at 4,096 rows, 58 %). Links as DeepEP states them: NVLink 160 GB/s, NIC 50 GB/s. Routing
// is uniform. Nothing is fitted to the two figures.
//
// Not modelled here: the two micro-batches that overlap attention and exchanges in the profile. The
// run is without; `overlapped` says what would be if everything but the exchanges hid them
// perfectly, so the two bracket it. Prefill attention runs in MLA's absorbed form here, which takes
// more FLOPs than the kernel of the profile.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::validation {

struct Throughput {
  std::string phase;
  double measured = 0;    ///< Tokens per second and GPU.
  double simulated = 0;   ///< One after the other.
  double overlapped = 0;  ///< max(exchanges, all else) of the critical path.
  double attention = 0, experts = 0, exchange = 0;  ///< Shares of the step.
};

/// `scenarios`: the folder with models/ and validation/h800_deepseek_v3/. InputError when a file is
/// bad or the run breaks a conservation law.
Throughput run_deepseek_prefill(const std::filesystem::path& scenarios);
Throughput run_deepseek_decode(const std::filesystem::path& scenarios);

Table deepseek_table(const std::vector<Throughput>& results);

}  // namespace switchyard::validation
