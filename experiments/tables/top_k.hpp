// SPDX-License-Identifier: Apache-2.0
// Table `top-k`: routed against shared experts, and few large against many small experts, at equal
// FLOPs per token: bytes that a token sends, distinct experts of a step, time per token. By
// simulation of a real model whose shape is changed, without a claim to judge.
//
// Not modelled: quality (which shape learns better is a question of training), a learned router of
// each shape (all rows draw from one law), shared experts split over the GPUs.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/model/model_config.hpp"
#include "experiments/tables/short_run.hpp"

namespace switchyard::tables {

/// Routed and shared experts of every MoE layer; each count ≥ 1, k ≤ E, shared ≥ 0.
struct ExpertShape {
  std::uint64_t experts = 64, top_k = 6, shared = 2;
  std::uint64_t width = 1408;         ///< Inner width of a routed expert.
  std::uint64_t shared_width = 1408;  ///< Of a shared one.
  bool operator==(const ExpertShape&) const = default;
};
/// The shape that deepseek_v2_lite has.
inline constexpr ExpertShape kOwnShape{};
/// k + shared = 8 experts of one width.
inline constexpr std::array<ExpertShape, 4> kSharedShapes{
    {{.top_k = 8, .shared = 0}, {.top_k = 7, .shared = 1}, kOwnShape, {.top_k = 4, .shared = 4}}};
/// E · width and k · width constant.
inline constexpr std::array<ExpertShape, 3> kGrainShapes{
    {{.experts = 32, .top_k = 3, .width = 2816},
     kOwnShape,
     {.experts = 128, .top_k = 12, .width = 704}}};

/// One run of deepseek_v2_lite with a shape: decode, 512 tokens of context, 8 x H100, dp 8, ep 8.
/// Means over the measured steps (and layers).
struct ShapePoint {
  model::ModelConfig model;
  double ffn_flops = 0;         ///< Of the MoE layers for a token: routed and shared experts.
  double flops = 0;             ///< Of all its matrices and scores.
  double expert_bytes = 0;      ///< Routed weights, all GPUs together.
  double shared_bytes = 0;      ///< Shared weights; every GPU has them all.
  double sent_per_token = 0;    ///< Bytes, dispatch and combine.
  double distinct_experts = 0;  ///< Of a layer and step, 0…E.
  double hbm_bytes = 0;         ///< Per step, read and written, all GPUs.
  double imbalance = 0;         ///< max/mean over GPUs of assignments.
  double tpot_s = 0;
  double routed = 0, exchange = 0, dense = 0;  ///< Shares of the time, 0…1.
};
/// `batch` sequences over the eight GPUs; `routing` is the key of [workload].
[[nodiscard]] ShapePoint measure_shape(ShortRuns& runs, const ExpertShape& shape,
                                       std::uint64_t batch,
                                       std::string_view routing = kDrawnRouting);

[[nodiscard]] Table top_k_table(ShortRuns& runs);

}  // namespace switchyard::tables
