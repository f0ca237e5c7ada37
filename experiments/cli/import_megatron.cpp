// SPDX-License-Identifier: Apache-2.0
// The kind megatron-jsonl of the verb `import`.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/model_config.hpp"
#include "experiments/cli/import.hpp"
#include "experiments/cli/own_output.hpp"
#include "experiments/cli/sim.hpp"
#include "experiments/import/megatron_counts.hpp"

namespace switchyard::cli {
namespace {

/// "100" or "100-200".
std::pair<std::uint64_t, std::uint64_t> iterations_of(const std::string& text) {
  std::pair<std::uint64_t, std::uint64_t> out;
  const char* const end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, out.first);
  out.second = out.first;
  if (error == std::errc{} && stop != end && *stop == '-') {
    std::tie(stop, error) = [&] {
      const auto r = std::from_chars(stop + 1, end, out.second);
      return std::pair(r.ptr, r.ec);
    }();
  }
  if (error != std::errc{} || stop != end || out.first > out.second) {
    throw InputError("--iterations", fmt::format("\"{}\" is no iteration or range", text),
                     "e.g. 100 or 100-200");
  }
  return out;
}

/// InputError (where) when the loads do not name `model`'s MoE layers and experts.
void check_model(const importers::MegatronCounts& read, const model::ModelConfig& model,
                 const std::string& where) {
  if (read.counts.experts != static_cast<std::uint64_t>(model.num_experts)) {
    throw InputError(
        where, fmt::format("{} experts, the model has {}", read.counts.experts, model.num_experts),
        "every EP rank lists its own experts: see --ep");
  }
  const std::vector<std::uint32_t> want = model.moe_layers();
  for (const std::uint32_t layer : want) {
    if (std::find(read.layers.begin(), read.layers.end(), layer) == read.layers.end()) {
      throw InputError(where, fmt::format("no counts of layer {} of the model", layer),
                       "layers are numbered within their pipeline stage: see --stage-layers");
    }
  }
  for (const std::uint32_t layer : read.layers) {
    if (std::find(want.begin(), want.end(), layer) == want.end()) {
      throw InputError(where,
                       fmt::format("counts of layer {}, which has no experts in the model", layer),
                       "see --stage-layers");
    }
  }
}

}  // namespace

int import_megatron(const ImportOptions& options) {
  importers::MegatronJob job{options.ep.value_or(1), options.etp.value_or(1),
                             options.edp.value_or(1), options.stage_layers, std::nullopt};
  if (!options.iterations.empty()) job.iterations = iterations_of(options.iterations);
  for (const std::filesystem::path& file : importers::megatron_rank_files(options.input)) {
    require_own_output("-o", options.output, {{"an input", file}});
  }
  const importers::MegatronCounts read = importers::read_megatron_counts(options.input, job);
  if (!options.model.empty()) {
    check_model(read, model::read_model_config(model::find_model(options.model, scenarios_root())),
                options.input.string());
  }
  write_file(options.output, read.counts.csv);
  if (options.quiet) return 0;
  Table table;
  table.name = "import";
  table.title = "Loads of experts";
  table.columns = {"quantity", "value"};
  const double mean = read.counts.total / read.counts.layers / read.counts.experts;
  table.rows = {
      {"ranks", fmt::format("{}: etp {} x ep {} x edp {} x {} stages", read.ranks, job.etp, job.ep,
                            job.edp, std::max<std::size_t>(1, job.stage_layers.size()))},
      {"iterations", fmt::format("{}, {} to {}", read.iterations, read.first, read.last)},
      {"micro-batches of an EDP rank", std::to_string(read.micro_batches)},
      {"MoE layers", std::to_string(read.counts.layers)},
      {"experts per layer", std::to_string(read.counts.experts)},
      {"assignments", fmt::format("{:.10g}", read.counts.total)},
      {"largest / mean load of an expert", fmt::format("{:.4g}", read.counts.largest / mean)},
      {"lines of multi-token prediction, left out", std::to_string(read.mtp_lines)}};
  if (!read.gaps.empty()) {
    table.notes.push_back(
        fmt::format("layers without counts between others: {}", fmt::join(read.gaps, ", ")));
  }
  table.notes.push_back(
      fmt::format("next: [parallel] placement = \"eplb\", placement_options = {{ loads "
                  "= \"{}\" }}; or memory.residency.loads",
                  options.output.filename().string()));
  fmt::print("{}", render(table, options.format));
  return 0;
}

}  // namespace switchyard::cli
