// SPDX-License-Identifier: Apache-2.0
// C45: a random part of every expert's weights is set to zero, and the perplexity of held-out texts
// is measured. "Effective" is the smallest kept share whose median over the seeds rises by less
// than 5 %.
//
//   weight i of matrix m of expert e in layer l is kept iff u(seed; l, e, m, i) < kept share,
//   u uniform in [0, 1), philox(seed, "expert mask"): a larger share keeps what a smaller one kept.
//
// Not modelled: masks chosen by size or by use (they need less); weights scaled up for what is
// missing; training with the mask. Packed weights (FP8, MXFP4, GGUF) are refused.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/session.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

struct MaskRow {
  double kept = 1;                 ///< Share of the expert weights, 0…1.
  std::vector<double> perplexity;  ///< One per seed.
  [[nodiscard]] double median() const;
};

struct MaskRun {
  std::vector<MaskRow> rows;  ///< Kept shares descending; the first is 1.
  std::string subject;        ///< Model and weight hash.
  std::uint64_t tokens = 0;   ///< Scored.
  std::uint64_t texts = 0;
};

/// Perplexity of `texts` for each kept share (descending, the first is 1) and each seed 1…seeds.
[[nodiscard]] MaskRun run_masks(const Engine& engine,
                                std::span<const std::vector<std::uint32_t>> texts,
                                std::span<const double> kept, std::uint32_t seeds,
                                unsigned threads);

/// Smallest kept share of the run, as far as every larger one costs < 5 % too.
[[nodiscard]] double effective_share(const MaskRun& run);

[[nodiscard]] claims::Measurements measure_effective_parameters(const MaskRun& run);
[[nodiscard]] std::vector<Table> effective_parameters_tables(
    const MaskRun& run, const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
