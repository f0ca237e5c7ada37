// SPDX-License-Identifier: Apache-2.0
// The text that NVIDIA's nccl-tests print (all_reduce_perf, alltoall_perf, …) as a table of
// measured links (sim/scenario/bandwidth_table.hpp, network.measured).
//
// A row of nccl-tests has a buffer size in bytes, a time in us, and two rates in GB/s (decimal):
//   algbw = size / time                what a caller sees
//   busbw = algbw · factor             what the link of one GPU carries; of n ranks
//     all_reduce 2(n − 1)/n · all_gather, reduce_scatter, alltoall (n − 1)/n ·
//     sendrecv, broadcast, reduce 1    (nccl-tests, doc/PERFORMANCE.md)
// A simulated link asks for bytes on the link, so a point is
//   bytes = size · factor, GB/s = bytes / time     (= busbw, with the digits that the print cuts)
// and the printed algbw and busbw must agree with size, time and factor: a file whose unit or
// collective is another than named is refused, not read wrongly.
//
// Rows of size 0 are left out; of a size that comes again (-N) the mean time is taken. Older and
// newer headers are read (with and without the columns redop and root, "error" or "#wrong").
// A link takes one time for its bytes whatever is sent, so a table of alltoall stands for
// all-to-all exchanges and one of all_reduce for all-reduces.
//
// Not modelled: the median or spread of iterations (nccl-tests print one mean), several
// collectives in one table.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scenario/bandwidth_table.hpp"

namespace switchyard::importers {

struct NcclTestsOptions {
  std::string collective;  ///< "alltoall", …; "" = the only one in the text, which must name it
  bool in_place = false;   ///< Else out-of-place.
};

struct NcclTestsTable {
  std::string collective;
  std::uint32_t ranks = 0;
  std::uint32_t left_out = 0;  ///< Rows of size 0.
  std::uint32_t repeated = 0;  ///< Rows whose size stood before.
  std::vector<scenario::BandwidthPoint> points;
  std::string csv;  ///< What to write: comments, header, rows.
};

/// InputError with `where`:line for anything that is no such text, for rows that failed their own
/// check (#wrong > 0), and for rates that do not agree; without a line for a collective that is not
/// there. `source`: what the comment of the table names, e.g. the file's name.
NcclTestsTable read_nccl_tests(std::string_view text, const std::string& where,
                               const std::string& source, const NcclTestsOptions& options);

}  // namespace switchyard::importers
