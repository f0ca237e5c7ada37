// SPDX-License-Identifier: Apache-2.0
// Strong indices: numbers of different things never mix. Each is a plain zero-based index.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>

namespace switchyard {

template <class Tag>
struct Id {
  std::uint32_t value = 0;
  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
};

using ExpertId = Id<struct ExpertTag>;  ///< Routed expert of one layer, 0…E−1.
using LayerId = Id<struct LayerTag>;    ///< Transformer layer of the model, counted from 0.
using RankId = Id<struct RankTag>;      ///< GPU (rank) of the cluster.
using LinkId = Id<struct LinkTag>;      ///< Directed link of the cluster graph.
using StepIndex = Id<struct StepTag>;   ///< Engine iteration.

}  // namespace switchyard
