// SPDX-License-Identifier: Apache-2.0
// The kinds nccl-tests, expert-counts and deepep of the verb `import`.
#include <fmt/format.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/import.hpp"
#include "experiments/import/deepep.hpp"
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

int import_deepep(const ImportOptions& options) {
  const importers::DeepEpTimes read = importers::read_deepep(
      read_file(options.input), options.input.string(), options.input.filename().string(),
      {options.tokens, options.hidden, options.top_k, options.experts});
  constexpr std::string_view kEnd = "_deepep_ll_us.csv";
  const std::string name = options.output.filename().string();
  if (!name.ends_with(kEnd) || name.size() == kEnd.size()) {
    throw InputError("-o", fmt::format("\"{}\" is no <device>{}", name, kEnd),
                     "switchyard fit --measured finds its files by these names");
  }
  write_file(options.output, read.csv);
  if (options.quiet) return 0;
  Table table;
  table.name = "import";
  table.title = "Times of dispatch and combine";
  table.columns = {"tokens of a rank", "dispatch", "combine", "slowest rank / mean"};
  for (const importers::DeepEpRun& r : read.runs) {
    table.rows.push_back({std::to_string(r.tokens), fmt::format("{:.4g} us", r.dispatch_us),
                          fmt::format("{:.4g} us", r.combine_us), fmt::format("{:.3f}", r.spread)});
  }
  table.notes = {fmt::format("8 GPUs of one node, hidden {}, top-{} of {} experts; low-latency "
                             "kernels alone, mean of the ranks",
                             options.hidden, options.top_k, options.experts),
                 fmt::format("next: switchyard fit --measured FOLDER --device {} --hardware … "
                             "--source … --licence … -o {}.toml",
                             name.substr(0, name.size() - kEnd.size()),
                             name.substr(0, name.size() - kEnd.size()))};
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
