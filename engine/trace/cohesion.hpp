// SPDX-License-Identifier: Apache-2.0
// How alike the tokens of an expert are.
//
//   cohesion(e)  mean cosine of pairs of the vectors of tokens routed to e: of all pairs where there
//                are at most 2000, else of 2000 drawn by philox(seed, "cohesion"; e, pair)
//   baseline     the same of as many tokens drawn without regard to routing
//   vector       the router's input of the last MoE layer (what a trace holds nearest to the final
//                hidden state; recorded with --router-input), minus the mean over all tokens of the
//                trace that are no warm-up
//
// Range: -1 to 1. Not modelled: hidden states behind the last layer.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/trace/trace.hpp"

namespace switchyard {

/// Whether the trace was read with the router's input of its last MoE layer.
[[nodiscard]] bool has_token_vectors(const RoutingTrace& trace);

/// The vectors of a trace's tokens. Borrows the trace.
class TokenVectors {
 public:
  /// has_token_vectors(trace) (asserted).
  explicit TokenVectors(const RoutingTrace& trace);
  [[nodiscard]] std::size_t width() const { return mean_.size(); }
  /// Appends the row's vector at length 1; a vector of length 0 stays one.
  void append_unit(std::uint64_t row, std::vector<float>& out) const;

 private:
  [[nodiscard]] std::span<const std::uint16_t> input(std::uint64_t row) const;

  const RoutingTrace& trace_;
  std::vector<double> mean_;  // [width]
};

struct ExpertCohesion {
  std::vector<std::optional<double>> experts;  ///< [E]; no value for fewer than two tokens.
  std::optional<double> mean, baseline;        ///< Mean over experts with a value.
};
/// Of `units` [tokens][width], each of length 1 or 0; members[e]: the tokens of expert e, each at
/// most once. `draw` tells the draws of one step from another's.
[[nodiscard]] ExpertCohesion expert_cohesion(std::span<const float> units, std::size_t width,
                                             std::span<const std::vector<std::uint64_t>> members,
                                             std::uint64_t seed, std::uint32_t draw = 0);

}  // namespace switchyard
