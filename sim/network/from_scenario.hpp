// SPDX-License-Identifier: Apache-2.0
// The names a scenario uses, as the network models understand them.
#pragma once
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "sim/cluster/cluster_graph.hpp"
#include "sim/network/collectives.hpp"
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

[[nodiscard]] constexpr CollectiveAlgorithm collective_of(scenario::ReduceAlgorithm algorithm) {
  switch (algorithm) {
    case scenario::ReduceAlgorithm::kDirect:
      return CollectiveAlgorithm::kDirect;
    case scenario::ReduceAlgorithm::kOneShot:
      return CollectiveAlgorithm::kOneShot;
    case scenario::ReduceAlgorithm::kHierarchical:
      return CollectiveAlgorithm::kHierarchical;
    case scenario::ReduceAlgorithm::kTree:
      return CollectiveAlgorithm::kTree;
    case scenario::ReduceAlgorithm::kRing:
      break;
  }
  return CollectiveAlgorithm::kRing;
}

[[nodiscard]] constexpr CollectiveAlgorithm broadcast_of(scenario::BroadcastAlgorithm algorithm) {
  switch (algorithm) {
    case scenario::BroadcastAlgorithm::kRing:
      return CollectiveAlgorithm::kRing;
    case scenario::BroadcastAlgorithm::kTree:
      return CollectiveAlgorithm::kTree;
    case scenario::BroadcastAlgorithm::kHierarchical:
      return CollectiveAlgorithm::kHierarchical;
    case scenario::BroadcastAlgorithm::kDirect:
      break;
  }
  return CollectiveAlgorithm::kDirect;
}

/// The cluster of a scenario. The latency of measured links is in their table, so it is 0 here, and
/// their rate the nominal one.
[[nodiscard]] inline cluster::ClusterGraph cluster_of(const scenario::Scenario& s) {
  if (s.network.measured.points.empty()) {
    return cluster::build_cluster(s.hardware);
  }
  scenario::HardwareSpec hardware = s.hardware;
  for (scenario::Link& link : hardware.links) {
    if (link.link_class == s.network.measured.link_class) {
      link.latency = SimTime();
      link.phase_latency.reset();
      link.achievable = 1;
    }
  }
  return cluster::build_cluster(hardware);
}

/// The measured links of a scenario on `graph`, or nothing.
[[nodiscard]] inline std::optional<MeasuredLinks> measured_of(const scenario::Scenario& s,
                                                              const cluster::ClusterGraph& graph) {
  if (s.network.measured.points.empty()) {
    return std::nullopt;
  }
  MeasuredLinks m{MeasuredCurve(s.network.measured.points, "network.measured"), {}};
  for (const cluster::DirectedLink& l : graph.links()) {
    m.on_link.push_back(l.link_class == s.network.measured.link_class ? 1 : 0);
  }
  return m;
}

/// The network of a scenario among its first `gpus` GPUs (0: all): endpoint r is GPU rank r.
[[nodiscard]] inline NetworkModel make_network(const scenario::Scenario& s,
                                               std::uint32_t gpus = 0) {
  const cluster::ClusterGraph graph = cluster_of(s);
  const std::optional<MeasuredLinks> measured = measured_of(s, graph);
  cluster::RouteTable routes = graph.routes();
  if (gpus > 0) {
    std::vector<std::uint32_t> chosen(gpus);
    std::iota(chosen.begin(), chosen.end(), 0U);
    routes = routes.subset(chosen);
  }
  return {model_of(s.network.model), algorithm_of(s.network.algorithm), std::move(routes),
          measured ? &*measured : nullptr};
}

}  // namespace switchyard::network
