// SPDX-License-Identifier: Apache-2.0
// Time to the first token and time per output token of the requests of a run, over its steps. A
// request counts where its first token appeared (TTFT) or its last one (TPOT): in the last step
// that had begun by then. Percentiles are nearest rank over the requests of a bin. No Qt. Not
// modelled: with several replicas a request counts in the step of whichever began last.
#pragma once
#include <cstdint>
#include <vector>

#include "gui/core/runstore.hpp"

namespace switchyard::gui {

class LatencySeries {
 public:
  LatencySeries() = default;
  explicit LatencySeries(const RunStore& run);

  /// Of the requests of one bin, ps; NaN where there is none.
  struct Bin {
    double ttft50 = run::kNoData, ttft99 = run::kNoData;
    double tpot50 = run::kNoData, tpot99 = run::kNoData;
    std::size_t first = 0, ended = 0;  ///< Requests behind the two.
  };
  /// Bin i covers the steps [edges[i], edges[i + 1]); the middle of a step decides.
  [[nodiscard]] std::vector<Bin> bins(const std::vector<double>& edges) const;
  [[nodiscard]] bool empty() const { return m_ttft.empty() && m_tpot.empty(); }
  /// Whether any request has a TTFT (a decode batch begins in the middle: none has).
  [[nodiscard]] bool hasTtft() const { return !m_ttft.empty(); }
  /// Requests that have the time.
  [[nodiscard]] std::size_t ttfts() const { return m_ttft.size(); }
  [[nodiscard]] std::size_t tpots() const { return m_tpot.size(); }
  /// Over all values, ps; 0 when empty.
  [[nodiscard]] double smallest() const { return m_smallest; }
  [[nodiscard]] double largest() const { return m_largest; }

 private:
  struct Value {
    std::uint64_t step = 0;
    double ps = 0;
  };
  std::vector<Value> m_ttft, m_tpot;  // by step
  double m_smallest = 0, m_largest = 0;
};

/// The targets of workload.slo and workload.tiers that the run's scenario names, ascending, each
/// once, in ps. `which`: "ttft" or "tpot". Empty without targets.
std::vector<double> sloTargets(const run::RunData& run, const std::string& which);

}  // namespace switchyard::gui
