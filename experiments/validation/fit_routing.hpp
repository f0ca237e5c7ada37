// SPDX-License-Identifier: Apache-2.0
// Which synthetic law draws loads like a trace's (simulation.md §5 of the specification), and how
// the trace's tokens, layers and sequences hang together.
//
// Loads. The trace's first choices (before capacity, warm-up left out) give a load per MoE layer
// and expert; each layer's loads are sorted and divided by their sum, and the shares averaged over
// the layers. A law's shares come from the simulator's own draws (sim/loop/synthetic_routing.hpp)
// for the same sequences and positions, so counting noise is alike. distance = ½ Σ |share − share|.
// The parameter with the least distance is found on a grid and refined by golden section; draws are
// the same for every parameter (Philox), so the answer does not depend on anything but the trace.
//
// Tokens. overlap = common experts of two tokens of a layer / k. Of neighbours in a sequence: a; of
// tokens half a sequence apart: b; of tokens of two sequences: x.
//   token overlap t = (a − b) / (1 − b), what token_correlation alone would be
//   domains = (b − k/E) / (x − k/E), rounded: D domains share a law in 1 of D pairs of sequences
// Layers. A: how likely two tokens of different sequences with the same best expert in a layer have
// the same in the next one; B: how likely any two have it. dependence = (A − B) / (1 − B), over all
// neighbouring layers.
// token_correlation and layer_correlation are what the nearest law has to be drawn with to show the
// same t and dependence; found by halving, in turns, since either adds a little to the other.
//
// Not modelled: which expert is hot; a token that keeps a part of its neighbour's experts counts as
// that share of tokens that keep all; hot experts that all sequences share lower the number of
// domains.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard::validation {

struct LawFit {
  std::string law;       ///< "uniform", "zipf", "lognormal", "dirichlet"
  double parameter = 0;  ///< s, sigma or alpha; 0 for uniform.
  double distance = 0;   ///< [0, 1]
  double top_share = 0;  ///< Share of the busiest expert, mean over layers.
};
struct RoutingFit {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  double top_share = 0;      ///< Of the trace.
  std::uint64_t tokens = 0;  ///< Rows used for the loads: at most 2,048, evenly spaced.
  std::vector<LawFit> laws;  ///< uniform, zipf, lognormal, dirichlet.
  /// Of the trace, above; NaN when no sequence has 8 tokens in a row, or there is only one
  /// sequence.
  double neighbours = kUnknown, distant = kUnknown, across = kUnknown;
  double token_overlap = kUnknown, layer_dependence = kUnknown;
  /// What the nearest law shows with the two correlations; NaN where the trace's is.
  double drawn_token_overlap = kUnknown, drawn_dependence = kUnknown;
  // What the workload states.
  std::uint32_t domains = 1;                            ///< 1 … 16; 1 with the uniform law.
  double token_correlation = 0, layer_correlation = 0;  ///< [0, 0.99]; 0 where unknown.
  [[nodiscard]] const LawFit& best() const;
};

/// InputError when the trace has no row outside warm-up.
RoutingFit fit_routing(const RoutingTrace& trace, const std::string& where);
Table routing_fit_table(const RoutingFit& fit);
/// A [workload] file with only `routing`, to be named by workload.file.
std::string workload_text(const RoutingFit& fit, const std::string& trace_name);

}  // namespace switchyard::validation
