// SPDX-License-Identifier: Apache-2.0
// Which synthetic law draws loads like a trace's (simulation.md §5 of the specification).
//
// The trace's first choices (before capacity, warm-up left out) give a load per MoE layer and
// expert; each layer's loads are sorted and divided by their sum, and the shares averaged over the
// layers. A law's shares come from as many draws as the trace has tokens (top-k of ln p + Gumbel,
// the simulator's own rule), so counting noise is alike. distance = ½ Σ |share − share|. The
// parameter with the least distance is found on a grid and refined by golden section; draws are the
// same for every parameter (Philox), so the answer does not depend on anything but the trace.
//
// Not modelled: which expert is hot, how layers and tokens hang together: a trace itself has that.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard::validation {

struct LawFit {
  std::string law;       ///< "uniform", "zipf", "lognormal"
  double parameter = 0;  ///< s or sigma; 0 for uniform.
  double distance = 0;   ///< [0, 1]
  double top_share = 0;  ///< Share of the busiest expert, mean over layers.
};
struct RoutingFit {
  double top_share = 0;      ///< Of the trace.
  std::uint64_t tokens = 0;  ///< Rows used: at most 2,048, evenly spaced.
  std::vector<LawFit> laws;  ///< uniform, zipf, lognormal.
  [[nodiscard]] const LawFit& best() const;
};

/// InputError when the trace has no row outside warm-up.
RoutingFit fit_routing(const RoutingTrace& trace, const std::string& where);
Table routing_fit_table(const RoutingFit& fit);
/// A [workload] file with only `routing`, to be named by workload.file.
std::string workload_text(const RoutingFit& fit, const std::string& trace_name);

}  // namespace switchyard::validation
