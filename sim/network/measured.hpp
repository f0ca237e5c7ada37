// SPDX-License-Identifier: Apache-2.0
// Measured bandwidth by message size (simulation.md §2, measured-link mode): a table of (bytes,
// bytes/s) read as a curve that is straight between its points in log–log. A line through latency
// and bandwidth errs by up to 22 % on NCCL's all-to-all; the curve meets every point.
//
//   inside      bandwidth(b) = exp( interpolation of ln bandwidth over ln b ),  time = b /
//   bandwidth below       time of the first point: such messages are bound by latency above time of
//   the last point + (b − last) / limit: what more there is travels at the
//               link's nominal rate, the only bound known there
// Below and above are extrapolations and say so. The times hold the start-up of the measurement:
// no path latency is added to them.
//
// Beside other traffic (flow, coflow): sim/memory/transfer_queue.hpp.
//
// Not modelled: dependence on the number of peers or on other traffic (measure again for those),
// noise.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/scenario/bandwidth_table.hpp"

namespace switchyard::network {

using MeasuredPoint = scenario::BandwidthPoint;

class MeasuredCurve {
 public:
  /// At least two points, bytes strictly ascending, bandwidths positive and finite;
  /// InputError(where) otherwise.
  MeasuredCurve(std::vector<MeasuredPoint> points, const std::string& where);

  struct Time {
    double seconds = 0;
    bool extrapolated = false;
  };
  /// `limit`: nominal rate used above the table, > 0. 0 bytes take no time.
  [[nodiscard]] Time time(std::uint64_t bytes, BytesPerSecond limit) const;
  [[nodiscard]] const std::vector<MeasuredPoint>& points() const { return points_; }

 private:
  std::vector<MeasuredPoint> points_;
  std::vector<double> log_bytes_, log_rate_;
};

}  // namespace switchyard::network
