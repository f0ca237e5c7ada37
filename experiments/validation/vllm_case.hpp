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
// Beside it the same case through the step loop of sim/ (run_vllm_loop): model preset
// qwen3_30b_a3b, two GPUs of the table's kind on one link with the figures above, one replica whose
// ranks step together, and the kernel table as a calibration (fit_tables() on its rows: decode and
// prefill attention, QKV, output and head GEMMs, MoE). There every kernel is timed on its own, at
// its own rows and distinct experts of drawn uniform routing. A point of t tokens in the MoE table
// is one of t · k / 2 rows where the masked rows of a gathered batch count (kGathered), of t · k
// rows where they do not (kOwn). Kernels without a table (norms, RoPE, gate, top-k, permutation,
// sum, sampling) take the roofline, none less than the smallest time of dense.csv. What differs
// from the loop above: no table of mixed attention, the router's and the sum's kernels beside
// the MoE table that may hold them, exchanges of bytes of real destinations, requests go to the
// rank with the fewest.
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
  std::vector<RequestTimes> loop, loop_own_rows;  ///< Of run_vllm_loop; empty: not run.
  std::uint64_t steps = 0;
};

/// Reads attention.csv, dense.csv, per_sequence.csv, moe.csv and requests.csv of `folder` and runs
/// the case. InputError with file:line.
VllmCase run_vllm_case(const std::filesystem::path& folder);

/// The same requests and kernel table through the step loop; `presets`: the scenarios folder.
/// InputError when the run breaks a conservation law or leaves a request unfinished.
std::vector<RequestTimes> run_vllm_loop(const std::filesystem::path& folder,
                                        const std::filesystem::path& presets, MoeRows rows);

/// Mean, median and percentiles beside each other, with the goal of simulation.md §6.
Table vllm_table(const VllmCase& result);

}  // namespace switchyard::validation
