// SPDX-License-Identifier: Apache-2.0
// The kinds nccl-tests and expert-counts of the verb `import`.
#include <fmt/format.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/import.hpp"
#include "experiments/import/expert_counts.hpp"
#include "experiments/import/nccl_tests.hpp"

namespace switchyard::cli {

int import_nccl_tests(const ImportOptions& options) {
  importers::NcclTestsOptions o;
  o.collective = options.collective;
  if (!options.buffer.empty() && options.buffer != "in-place" && options.buffer != "out-of-place") {
    throw InputError("--buffer", fmt::format("unknown buffer \"{}\"", options.buffer),
                     "out-of-place or in-place");
  }
  o.in_place = options.buffer == "in-place";
  const importers::NcclTestsTable read = importers::read_nccl_tests(
      read_file(options.input), options.input.string(), options.input.filename().string(), o);
  write_file(options.output, read.csv);
  if (options.quiet) return 0;
  const auto point = [](const scenario::BandwidthPoint& p) {
    return fmt::format("{} B at {:.4g} GB/s", p.bytes, p.bandwidth.value / 1e9);
  };
  Table table;
  table.name = "import";
  table.title = "Measured links";
  table.columns = {"quantity", "value"};
  table.rows = {{"collective", read.collective},
                {"ranks", std::to_string(read.ranks)},
                {"buffers", o.in_place ? "in-place" : "out-of-place"},
                {"points", std::to_string(read.points.size())},
                {"rows of size 0, left out", std::to_string(read.left_out)},
                {"rows of a size that stood before, averaged", std::to_string(read.repeated)},
                {"smallest", point(read.points.front())},
                {"largest", point(read.points.back())}};
  table.notes = {
      "bytes are those on the link of one GPU and the rate is busbw: the algorithm's rate algbw "
      "would count bytes that never leave the GPU",
      fmt::format("next: [network] measured = {{ file = \"{}\", class = \"…\" }}",
                  options.output.filename().string())};
  fmt::print("{}", render(table, options.format));
  return 0;
}

int import_expert_counts(const ImportOptions& options) {
  const importers::ExpertCounts read = importers::read_expert_counts(
      read_file(options.input), options.input.string(), options.first_layer);
  write_file(options.output, read.csv);
  if (options.quiet) return 0;
  Table table;
  table.name = "import";
  table.title = "Loads of experts";
  table.columns = {"quantity", "value"};
  const double mean = read.total / read.layers / read.experts;
  table.rows = {{"MoE layers", std::to_string(read.layers)},
                {"experts per layer", std::to_string(read.experts)},
                {"assignments", fmt::format("{:.10g}", read.total)},
                {"largest / mean load of an expert", fmt::format("{:.4g}", read.largest / mean)}};
  table.notes = {
      fmt::format("next: [parallel] placement = \"eplb\", placement_options = {{ loads "
                  "= \"{}\" }}; or memory.residency.loads",
                  options.output.filename().string())};
  fmt::print("{}", render(table, options.format));
  return 0;
}

}  // namespace switchyard::cli
