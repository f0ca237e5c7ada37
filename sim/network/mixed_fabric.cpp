// SPDX-License-Identifier: Apache-2.0
#include "sim/network/mixed_fabric.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.hpp"
#include "sim/network/network_model.hpp"

namespace switchyard::network {
namespace {

constexpr std::uint32_t kGpus = 16, kGroup = 8;

}  // namespace

const char* name_of(Fabric fabric) {
  switch (fabric) {
    case Fabric::kMixedServer:
      return "8 NVLink + 8 PCIe, one server";
    case Fabric::kNvlinkDomain:
      return "16 NVLink, one domain";
    case Fabric::kMixedNic:
      return "8 NVLink | 8 PCIe, NICs between";
    case Fabric::kNvlinkNic:
      break;
  }
  return "8 NVLink | 8 NVLink, NICs between";
}

cluster::ClusterGraph fabric_graph(Fabric fabric, const FabricRates& rates) {
  using cluster::DeviceKind;
  cluster::ClusterGraph graph;
  for (std::uint32_t g = 0; g < kGpus; ++g) {
    graph.add_device(fmt::format("gpu{}", g), DeviceKind::kGpu, g / kGroup);
  }
  const auto star = [&](const char* name, DeviceKind kind, std::uint32_t node, std::uint32_t first,
                        std::uint32_t last, BytesPerSecond rate) {
    const std::uint32_t hub = graph.add_device(name, kind, node);
    for (std::uint32_t g = first; g < last; ++g) {
      graph.add_cable(g, hub, rate, SimTime());
    }
  };
  switch (fabric) {
    case Fabric::kMixedServer:
      star("nvswitch", DeviceKind::kNvSwitch, 0, 0, kGroup, rates.nvlink);
      star("root", DeviceKind::kRootComplex, 0, 0, kGpus, rates.pcie);
      return graph;
    case Fabric::kNvlinkDomain:
      star("nvswitch", DeviceKind::kNvSwitch, 0, 0, kGpus, rates.nvlink);
      return graph;
    case Fabric::kMixedNic:
      star("nvswitch", DeviceKind::kNvSwitch, 0, 0, kGroup, rates.nvlink);
      star("root", DeviceKind::kRootComplex, 1, kGroup, kGpus, rates.pcie);
      break;
    case Fabric::kNvlinkNic:
      star("nvswitch0", DeviceKind::kNvSwitch, 0, 0, kGroup, rates.nvlink);
      star("nvswitch1", DeviceKind::kNvSwitch, 1, kGroup, kGpus, rates.nvlink);
      break;
  }
  const std::uint32_t network = graph.add_device("switch", DeviceKind::kSwitch);
  for (std::uint32_t g = 0; g < kGpus; ++g) {
    const std::uint32_t nic =
        graph.add_device(fmt::format("nic{}", g), DeviceKind::kNic, g / kGroup);
    graph.add_cable(g, nic, rates.nic, SimTime());
    graph.add_cable(nic, network, rates.nic, SimTime());
  }
  return graph;
}

FabricCell fabric_all_to_all(Fabric fabric, Algorithm algorithm, std::uint64_t bytes_per_gpu,
                             const FabricRates& rates) {
  if (bytes_per_gpu == 0 || bytes_per_gpu % kGpus != 0) {
    throw InputError("mixed-fabric",
                     fmt::format("bytes per GPU = {}. Violated: a positive multiple "
                                 "of {}",
                                 bytes_per_gpu, kGpus));
  }
  const cluster::RouteTable routes = fabric_graph(fabric, rates).routes();
  const std::vector<std::uint64_t> bytes(std::size_t{kGpus} * kGpus, bytes_per_gpu / kGpus);
  const std::vector<SimTime> ready(kGpus);
  FabricCell cell;
  cell.phases = static_cast<std::uint32_t>(all_to_all(algorithm, bytes, routes.node).size());
  NetworkModel model(Model::kBottleneck, algorithm, routes);
  ExchangeResult result;
  model.exchange(bytes, ready, result);
  cell.duration = result.duration;
  cell.busiest_link_bytes = *std::max_element(result.link_bytes.begin(), result.link_bytes.end());
  cell.bottleneck_link = model.routes().link_name[result.bottleneck_link];
  return cell;
}

}  // namespace switchyard::network
