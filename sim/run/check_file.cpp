// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/run/conservation.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::run {

std::vector<Violation> check_conservation(const RunReader& reader, std::uint64_t window,
                                          bool layers) {
  constexpr std::uint64_t kValues = 8'000'000;  // Of the widest block in memory at once.
  constexpr std::uint64_t kChunk = 64;          // Steps that are packed together in the file.
  RunData run = reader.base();
  run.totals = reader.read_totals();
  run.requests = reader.read_requests();
  run.events = reader.read_events();
  const bool steps = reader.has(Detail::kSteps);
  layers = layers && reader.has(Detail::kLayers);
  const std::uint64_t n = reader.steps();
  const auto moe = static_cast<std::uint32_t>(run.inventory.moe_layers.size());
  const std::uint64_t width =
      std::max<std::uint64_t>({std::uint64_t{run.inventory.experts} * (layers ? moe + 1 : 1),
                               run.inventory.gpus.size() * kPhases, run.inventory.links.size(), 1});
  if (window == 0) window = std::max<std::uint64_t>(kValues / width / kChunk, 1) * kChunk;
  std::vector<Violation> out;
  for (std::uint64_t first = 0; steps && first < n; first += window) {
    const std::uint64_t count = std::min(window, n - first);
    const std::vector<StepScalars> scalars = reader.read_steps(first, count);
    run.steps.insert(run.steps.end(), scalars.begin(), scalars.end());
    run.experts = reader.read_experts(first, count);
    run.gpus = reader.read_gpus(first, count);
    run.links = reader.read_links(first, count);
    if (layers) {
      run.layer_steps = reader.read_layers(first, count);
      run.layer_experts.clear();
      for (std::uint32_t l = 0; l < moe; ++l) {
        run.layer_experts.push_back(reader.read_layer_experts(l, first, count));
      }
    }
    check_steps(run, first, out);
  }
  check_whole_run(run, out);
  return shorten(std::move(out));
}

}  // namespace switchyard::run
