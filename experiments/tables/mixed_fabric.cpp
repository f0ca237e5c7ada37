// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/mixed_fabric.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace switchyard::tables {
namespace {

using network::Algorithm;
using network::Fabric;
using network::FabricRates;

constexpr std::array<std::uint64_t, 7> kPayloads{1'000'000,   4'000'000,   16'000'000,   64'000'000,
                                                 256'000'000, 512'000'000, 1'000'000'000};
constexpr std::array<Algorithm, 4> kAlgorithms{
    Algorithm::kDirect, Algorithm::kRing, Algorithm::kRingBidirectional, Algorithm::kHierarchical};

double seconds(Fabric fabric, Algorithm algorithm, std::uint64_t bytes, const FabricRates& rates) {
  return network::fabric_all_to_all(fabric, algorithm, bytes, rates).duration.seconds();
}

/// Bytes per GPU (a multiple of 16) at which the ring over the mixed server takes 120 ms.
std::uint64_t payload_of_the_claim(const FabricRates& rates) {
  constexpr std::uint64_t kProbe = 1'000'000'000;
  const double probe = seconds(Fabric::kMixedServer, Algorithm::kRing, kProbe, rates);
  return static_cast<std::uint64_t>(std::llround(0.120 / probe * kProbe / 16.0)) * 16;
}

Table fabric_table(const FabricRates& rates) {
  Table t;
  t.name = "mixed-fabric";
  t.title = "uniform all-to-all of 16 GPUs, time in ms by fabric and algorithm";
  t.columns = {"payload [MB/GPU]", "fabric"};
  for (const Algorithm a : kAlgorithms) {
    t.columns.push_back(fmt::format("{} [ms]", network::name_of(a)));
  }
  t.columns.emplace_back("ring / hierarchical");
  t.columns.emplace_back("bottleneck of the ring");
  for (const std::uint64_t bytes : kPayloads) {
    for (const Fabric fabric : network::kFabrics) {
      std::vector<std::string> row = {fmt::to_string(bytes / 1'000'000), network::name_of(fabric)};
      double ring = 0;
      double hierarchical = 0;
      std::string bottleneck;
      for (const Algorithm a : kAlgorithms) {
        const auto cell = network::fabric_all_to_all(fabric, a, bytes, rates);
        row.push_back(show(cell.duration.seconds() * 1e3));
        if (a == Algorithm::kRing) {
          ring = cell.duration.seconds();
          bottleneck = cell.bottleneck_link;
        } else if (a == Algorithm::kHierarchical) {
          hierarchical = cell.duration.seconds();
        }
      }
      row.push_back(show(ring / hierarchical));
      row.push_back(bottleneck);
      t.rows.push_back(std::move(row));
    }
  }
  t.notes.push_back(fmt::format(
      "per direction: NVLink {} GB/s, PCIe {} GB/s, NIC {} GB/s; the article prints 600 and 64 for "
      "both directions",
      show(rates.nvlink.value / 1e9), show(rates.pcie.value / 1e9), show(rates.nic.value / 1e9)));
  t.notes.emplace_back(
      "payload = bytes a GPU sends in all; latency 0, so times grow with the payload and ratios do "
      "not depend on it");
  t.notes.push_back(
      fmt::format("the ring over the mixed server takes 120 ms at {} MB/GPU; the article states no "
                  "payload, and its AllReduce is an all-to-all",
                  show(static_cast<double>(payload_of_the_claim(rates)) / 1e6)));
  return t;
}

}  // namespace

claims::Measurements measure_mixed_fabric(const FabricRates& rates) {
  const std::uint64_t bytes = payload_of_the_claim(rates);
  const auto time = [&](Fabric fabric, Algorithm algorithm) {
    return seconds(fabric, algorithm, bytes, rates) * 1e3;
  };
  const double ring = time(Fabric::kMixedServer, Algorithm::kRing);
  const double ring_nvlink = time(Fabric::kNvlinkDomain, Algorithm::kRing);
  const double local = time(Fabric::kMixedServer, Algorithm::kHierarchical);
  const double nvlink = time(Fabric::kNvlinkNic, Algorithm::kHierarchical);
  const double mixed = time(Fabric::kMixedNic, Algorithm::kHierarchical);
  claims::Measurements out;
  const auto ratio = [&](const char* quantity, double slow, double quick) {
    out.add(quantity, slow / quick, fmt::format("{:.2f} ms / {:.2f} ms", slow, quick));
  };
  ratio("ratio.both", ring, nvlink);
  ratio("ratio.mixed_nic", ring, mixed);
  ratio("ratio.mixed_server", ring, local);
  ratio("ratio.fabric", ring, ring_nvlink);
  ratio("ratio.nvlink", ring_nvlink, nvlink);
  const auto at = fmt::format("at {} MB/GPU", show(static_cast<double>(bytes) / 1e6));
  out.add("hierarchical.nvlink_nic", nvlink, at);
  out.add("hierarchical.mixed_nic", mixed, at);
  return out;
}

std::vector<Table> mixed_fabric_tables(const FabricRates& rates,
                                       const std::vector<claims::Claim>& claims) {
  const auto judged = claims::judge(claims, measure_mixed_fabric(rates));
  return {fabric_table(rates), claims_table("mixed-fabric", judged),
          verdicts_table("mixed-fabric", judged)};
}

std::vector<Table> make_mixed_fabric(const TableContext&) {
  return mixed_fabric_tables({}, claims::claims_of("mixed-fabric"));
}

}  // namespace switchyard::tables
