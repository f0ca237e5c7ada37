// SPDX-License-Identifier: Apache-2.0
// Times from a calibration table (sim/scenario/calibration.hpp), and how a table is fitted.
//
//   time = base · exp(r),   base = overhead + max( bytes / (rate_share · rate),
//                                                  flops / (compute_share · peak) )
//
// r = ln(measured / base) at the asked place: a straight-line fit to the nearest points, weighted
// by exp(−2 d² / h²) with d the distance in the logarithms of the arguments and h² that of the
// (2n + 2)-th nearest, within the range of r in the table. Where the arguments lie outside the
// points' box, r is the one at the box's edge, so the time goes on as the roofline does, and the
// answer says `extrapolated`. No time is below the physical floor: bytes and flops at peak rates.
//
// Bytes and flops (w bytes per weight or cached value, a = 2 bytes per activation):
//   experts            distinct·M·H·I·w + rows·(2H + M·I)·a;          2·M·rows·H·I
//   attention_decode   B·(128·tiles·2·g·d·w + 2·h·d·a);               4·B·h·d·128·tiles
//                      tiles = ceil(min(positions, window + 127) / 128): caches are read in tiles
//   attention_prefill  B·((n + c)·2·g·d·w + 2·n·h·d·a);               4·B·h·d·pairs
//   mla_decode         B·(s·(r + rope)·w + h·(2r + rope)·a), s positions, rank r;
//                                                                     2·B·h·s·(2r + rope)
//   gemm               n·k·w + m·(n + k)·a;                           2·m·n·k
//   collective         all_reduce 2(G−1)/G·S, others (G−1)/G·S on each GPU's link (S: the buffer
//                      as NCCL counts it)
//   dispatch, combine  low_latency: T·k copies, (G−1)/G of them remote; normal: T·(G−1)·p copies
//   with
//                      p = 1 − C(E−E/G, k)/C(E, k). A copy: low-latency dispatch H + 4H/128 + 16 B
//                      (fp8), else 2H
//   host               none: its time is overhead + per_sequence · sequences, fitted by the least
//                      squares of relative errors (times of one number of sequences only: all of it
//                      is the step's)
//
// Not modelled: other traffic on the links, clocks and power, batches whose sequences differ in
// length (their mean stands for them).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sim/scenario/calibration.hpp"

namespace switchyard::sim {

/// What one operation asks of the hardware.
struct OpUse {
  double rate_us = 0;             ///< Bytes at the peak rate of memory or link.
  double compute_us = 0;          ///< FLOPs at peak.
  double floor_us = 0;            ///< No machine with these peaks is faster.
  std::array<double, 3> place{};  ///< Logarithms of the arguments, scaled; kPointArguments of them.
};
/// `at` as in OpPoint::at. The peaks are the calibration's.
OpUse use_of(const scenario::Calibration& calibration, const scenario::OpTable& table,
             std::span<const double> at);

struct OpTime {
  double us = 0;
  bool extrapolated = false;
};

/// One table, ready to be asked. Borrows both arguments for its life.
class OpTimer {
 public:
  OpTimer(const scenario::Calibration& calibration, const scenario::OpTable& table);
  [[nodiscard]] OpTime time(std::span<const double> at) const;
  [[nodiscard]] const scenario::OpTable& table() const { return table_; }

 private:
  struct Known {
    std::array<double, 3> place;
    double ratio;  // ln(measured / base)
  };
  const scenario::Calibration& calibration_;
  const scenario::OpTable& table_;
  std::vector<Known> known_;
  std::array<double, 3> low_{}, high_{};
  double least_ = 0, most_ = 0;
};

/// The table for a shape: exact when there is one of this operation, variant, format and shape
/// whose library begins with `library`; else, with `exact` = false, the one with the nearest shape.
/// table = nullptr when there is none of the operation, variant and format.
struct TableMatch {
  const scenario::OpTable* table = nullptr;
  bool exact = false;
};
TableMatch find_table(const scenario::Calibration& calibration, scenario::OpKind kind,
                      std::string_view library, std::string_view variant, model::DType dtype,
                      std::span<const std::uint64_t> shape);

/// Sets overhead and shares of each table by the smallest sum of |ln(measured / base)| over its
/// points; a table with fewer than four takes points of the nearest shapes of its library and
/// format too, up to 24, or without those the ones of all tables of its operation and variant.
/// Deterministic. Collectives: times below 1 MiB are made monotone in the bytes first (pool of
/// adjacent violators), because single ones are noise.
void fit_tables(scenario::Calibration& calibration);
/// The same of one table, without smoothing. index < calibration.tables.size().
void fit_table(scenario::Calibration& calibration, std::size_t index);

}  // namespace switchyard::sim
