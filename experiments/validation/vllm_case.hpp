// SPDX-License-Identifier: Apache-2.0
// The end-to-end case of simulation.md §6: 300 ShareGPT requests on vLLM 0.19, Qwen3-30B-A3B, two
// RTX PRO 6000 with data-parallel attention and the experts divided over both (DP2 + EP2), measured
// by casys-kaist/LLMServingSim (MIT) with a kernel table of the same GPU and model.
//
// A loop of its own, not the step loop of sim/: it schedules as vLLM does and takes every time from
// the kernel table; nothing is fitted to the measured requests.
//   request → the engine with the least 4·waiting + running; per engine and step up to 2,048
//   tokens: running requests first (a decode token each, or the rest of a prompt), then waiting
//   ones, at most 128 running; both engines step together. step = 48 · ( max over engines (norms,
//   QKV, QK norm, RoPE, attention, output) + MoE + 2 · exchange )
//          + embedding, norm, head, sampling
//   MoE: both engines gather all T rows and run their 64 experts, D/2 of the
//   D = E (1 − (1 − k/E)^T) distinct ones of uniform routing. exchange = 20 µs + T/2 · H · 2 B / 16
//   GB/s (the figures of the published case's cluster file).
// Tables are read piecewise linearly in each argument; grid points that are not there are left out.
//
// Not modelled: the host's time between steps, the API server, the routing of the real text.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::validation {

/// Which rows an engine's MoE kernel works on: all gathered ones, the masked ones too (vLLM's fused
/// kernels align, activate and sum them), or only as many as its experts get. The truth lies
/// between; the first is the model, the second is printed beside it.
enum class MoeRows { kGathered, kOwn };

struct RequestTimes {
  double ttft_ms = 0, tpot_ms = 0, latency_ms = 0;  ///< TPOT: (last − first) / (output − 1).
};
struct VllmCase {
  std::vector<RequestTimes> measured, simulated, simulated_own_rows;  ///< By request.
  std::uint64_t steps = 0;
};

/// Reads attention.csv, dense.csv, per_sequence.csv, moe.csv and requests.csv of `folder` and runs
/// the case. InputError with file:line.
VllmCase run_vllm_case(const std::filesystem::path& folder);

/// Mean, median and percentiles beside each other, with the goal of simulation.md §6.
Table vllm_table(const VllmCase& result);

}  // namespace switchyard::validation
