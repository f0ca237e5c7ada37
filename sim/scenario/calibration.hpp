// SPDX-License-Identifier: Apache-2.0
// A calibration: measured times of operations on one device, by kernel library. A scenario names
// one with cost.calibration; `switchyard validate` judges it; `switchyard fit` and `profile` write
// it.
//
//   schema = "switchyard-calibration 1"
//   device = "h200"   hbm = "4.8 TB/s"   link = "450 GB/s"   # per direction
//   peak = { bf16 = "989 TFLOP/s" }      source = "…"        licence = "Apache-2.0"
//   [[tables]]
//   op = "experts"  library = "vllm0.24.0/…"  dtype = "bf16"  shape = [4096, 14336, 3]
//   overhead = 12.5             # us
//   rate_share = 0.87           # of hbm (collective, dispatch, combine: of link)
//   compute_share = 0.7         # of peak
//   points = [[64, 8, 16, 673.1]]   # arguments, then microseconds
//
//   op                  shape                                    arguments of a point
//   experts             hidden, width, matrices                  rows, distinct experts, most rows
//                       (variant, if any: masked, the kernel of steps that only decode;
//                       contiguous, that of all others)
//   attention_decode    heads, KV heads, head size, window       sequences, positions attended to
//   attention_prefill   heads, KV heads, head size, window       sequences, new tokens, cached
//                                                                tokens
//   mla_decode          heads, latent rank, rope                 sequences, positions attended to
//   gemm                n, k                                     m
//   collective          GPUs (variant: all_reduce, …)            bytes (per GPU, as NCCL counts)
//   dispatch, combine   hidden, top-k, experts, GPUs, SMs        tokens per GPU
//                       (variant: low_latency, normal)
//   host                no dtype, shape or shares; variant: eager,   sequences
//                       graph or fused (cost.launch), none: any;
//                       overhead: us of a step, per_sequence: us of
//                       each of its sequences
// window 0: none. How a time between the points comes about: sim/cost/calibrated.hpp.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.hpp"
#include "engine/model/dtype.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::scenario {

enum class OpKind : std::uint8_t {
  kExperts,
  kAttentionDecode,
  kAttentionPrefill,
  kMlaDecode,
  kGemm,
  kCollective,
  kDispatch,
  kCombine,
  kHost
};
inline constexpr std::size_t kOpKinds = 9;
inline constexpr std::array<std::string_view, kOpKinds> kOpKindNames{
    "experts",    "attention_decode", "attention_prefill", "mla_decode", "gemm",
    "collective", "dispatch",         "combine",           "host"};
/// Grouped GEMMs: rows in fixed places per expert, or one after the other.
inline constexpr std::string_view kMasked = "masked", kContiguous = "contiguous";
/// Numbers in a table's shape and before the time of a point.
inline constexpr std::array<std::size_t, kOpKinds> kShapeNumbers{3, 4, 4, 3, 2, 1, 5, 5, 0};
inline constexpr std::array<std::size_t, kOpKinds> kPointArguments{3, 2, 3, 2, 1, 1, 1, 1, 1};

struct OpPoint {
  std::array<double, 3> at{};  ///< As many as kPointArguments says; whole numbers.
  double us = 0;               ///< > 0.
};

struct OpTable {
  OpKind kind = OpKind::kExperts;
  std::string library;  ///< Kernel library and version.
  /// collective, dispatch, combine; experts: kMasked, kContiguous or ""; host: launch mode or "".
  std::string variant;
  model::DType dtype = model::DType::kBf16;
  std::vector<std::uint64_t> shape;
  double overhead_us = 0;      ///< ≥ 0; host: of a step.
  double rate_share = 1;       ///< (0, 1]
  double compute_share = 1;    ///< (0, 1]
  double per_sequence_us = 0;  ///< host: ≥ 0.
  std::vector<OpPoint> points;
  std::string where;  ///< "file:line:column" of its entry.
};

struct Calibration {
  std::string device;
  BytesPerSecond hbm, link;  ///< Peaks, per direction.
  std::array<FlopsPerSecond, kDTypeCount> peak{};
  std::string source, licence;
  std::vector<OpTable> tables;
  std::string hash;  ///< Of the file's text; names the calibration in runs and scenarios.
};

/// Throws InputError with file:line:column: unknown keys, wrong counts, values that are not > 0.
Calibration read_calibration(const std::string& path);
Calibration parse_calibration(std::string_view text, const std::string& name);
/// The text that reads back as the same calibration (shares to 6 digits).
std::string calibration_text(const Calibration& calibration);

/// The table of the very shape for a scenario: variant `variant` or none, library `library…`; where
/// such a library has no table of the operation at all, that of the only library that has this one.
/// nullptr when there is none. InputError when several libraries begin so: at `key` (the scenario's
/// key for the library), or at cost.calibration when `library` is empty.
const OpTable* choose_table(const Calibration& calibration, OpKind kind, std::string_view library,
                            std::string_view variant, model::DType dtype,
                            std::span<const std::uint64_t> shape,
                            std::string_view key = "cost.library");

}  // namespace switchyard::scenario
