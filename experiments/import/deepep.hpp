// SPDX-License-Identifier: Apache-2.0
// What DeepEP's tests/test_low_latency.py prints as measured times of dispatch and combine, the CSV
// <device>_deepep_ll_us.csv of `switchyard fit --measured`
// (experiments/validation/measured_rows.hpp).
//
// Each rank prints, once a run (deepseek-ai/DeepEP at 058d696):
//   [rank R] Dispatch bandwidth: B GB/s, avg_t=T us | Combine bandwidth: B GB/s, avg_t=T us
// The times are of the kernels alone, FP8 copies with a scale per 128 values and a header of 16 B
// out, BF16 back. The text does not say the shape, so the caller does; what a rank sent can be
// computed from its line and must agree:
//   B · T = (tokens · top_k − m) · (hidden + hidden / 32 + 16)   dispatch, 2 · hidden combine
// with m of 0 … 10, the choices that the script masks at random. A row's time is the mean of the
// ranks: they wait for each other inside the kernels.
//
// Runs follow each other in one text; a rank's second line begins the next run.
//
// Not read: the sums of both ("Dispatch + combine bandwidth"), send and receive times of the hooks,
// the [tuning] lines of test_intranode.py and test_internode.py; more than one node of 8 GPUs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::importers {

struct DeepEpShape {
  std::vector<std::uint64_t> tokens;  ///< Per rank, one for each run of the text, in its order.
  std::uint64_t hidden = 0, top_k = 0, experts = 0;
};

struct DeepEpRun {
  std::uint64_t tokens = 0;
  double dispatch_us = 0, combine_us = 0;      ///< Mean of the ranks.
  double dispatch_GBps = 0, combine_GBps = 0;  ///< Mean of the ranks, as printed.
  double spread = 0;                           ///< Slowest rank over the mean, the larger of both.
};

struct DeepEpTimes {
  std::vector<DeepEpRun> runs;
  std::string csv;  ///< What to write: comments, header, rows.
};

/// InputError with `where`:line for anything that is no such line, for a rank that is missing, and
/// for bytes that disagree with the shape; with an option's name for a shape that cannot be.
/// `source`: what the comment of the table names, e.g. the file's name.
DeepEpTimes read_deepep(std::string_view text, const std::string& where, const std::string& source,
                        const DeepEpShape& shape);

}  // namespace switchyard::importers
