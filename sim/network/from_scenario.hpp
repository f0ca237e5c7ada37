// SPDX-License-Identifier: Apache-2.0
// The names a scenario uses, as the network models understand them.
#pragma once
#include "sim/cluster/cluster_graph.hpp"
#include "sim/network/network_model.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::network {

[[nodiscard]] constexpr Model model_of(scenario::NetworkModelKind kind) {
  switch (kind) {
    case scenario::NetworkModelKind::kFlow:
      return Model::kFlow;
    case scenario::NetworkModelKind::kCoflow:
      return Model::kCoflow;
    case scenario::NetworkModelKind::kBottleneck:
      return Model::kBottleneck;
    case scenario::NetworkModelKind::kAuto:
      break;
  }
  return Model::kAuto;
}

[[nodiscard]] constexpr Algorithm algorithm_of(scenario::ExchangeAlgorithm algorithm) {
  switch (algorithm) {
    case scenario::ExchangeAlgorithm::kRing:
      return Algorithm::kRing;
    case scenario::ExchangeAlgorithm::kRingBidirectional:
      return Algorithm::kRingBidirectional;
    case scenario::ExchangeAlgorithm::kHierarchical:
      return Algorithm::kHierarchical;
    case scenario::ExchangeAlgorithm::kDirect:
      break;
  }
  return Algorithm::kDirect;
}

/// The network of a scenario: endpoint r is GPU rank r.
[[nodiscard]] inline NetworkModel make_network(const scenario::Scenario& s) {
  return {model_of(s.network.model), algorithm_of(s.network.algorithm),
          cluster::build_cluster(s.hardware).routes()};
}

}  // namespace switchyard::network
