// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/export.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/nn/gguf_export.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/cli/own_output.hpp"
#include "experiments/cli/run_rows.hpp"
#include "experiments/cli/say.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::cli {
namespace {

/// The placement of a run as the CSV that parallel.placement reads; of its first EP group, since
/// all groups are alike. With [parallel.prefill]: of the decode replicas.
int export_placement(const ExportOptions& options) {
  const run::RunReader reader(options.input);
  const run::Inventory& inv = reader.base().inventory;
  const std::string& text = reader.base().meta.scenario_text;
  const auto number = [&](std::string_view key) {
    std::uint32_t n = 0;
    if (const std::size_t found = text.find(key); found != std::string::npos) {
      std::from_chars(text.data() + found + key.size(), text.data() + text.size(), n);
    }
    return n;
  };
  const std::uint32_t ep = number("parallel.ep = ");
  const std::uint32_t before = number("parallel.prefill.gpus = ");
  // Experts cut into columns: a rank is so many GPUs, of which the run names the first.
  const std::uint32_t cut = ep == 0 ? 1 : std::max(number("parallel.tp = ") / ep, 1U);
  if (ep == 0 || inv.moe_layers.empty()) {
    throw InputError(options.input.string(), "the run places no experts on EP ranks");
  }
  std::string csv = "layer,expert,rank\n";
  std::uint64_t copies = 0;
  for (std::size_t l = 0; l < inv.moe_layers.size(); ++l) {
    // The first EP group of the layer's stage.
    const auto places =
        inv.placement.begin() + static_cast<std::ptrdiff_t>(l * inv.experts * inv.replicas);
    std::uint32_t lowest = run::kNone;
    for (std::size_t i = 0; i < std::size_t{inv.experts} * inv.replicas; ++i) {
      if (places[static_cast<std::ptrdiff_t>(i)] >= before) {
        lowest = std::min(lowest, places[static_cast<std::ptrdiff_t>(i)]);
      }
    }
    const std::uint32_t first = before + (lowest - before) / (ep * cut) * (ep * cut);
    for (std::size_t e = 0; e < inv.experts; ++e) {
      for (std::size_t i = 0; i < inv.replicas; ++i) {
        const std::uint32_t gpu = inv.placement[(l * inv.experts + e) * inv.replicas + i];
        // Of another EP group, or no further copy.
        if (gpu < first || gpu >= first + ep * cut) continue;
        csv += fmt::format("{},{},{}\n", inv.moe_layers[l], e, (gpu - first) / cut);
        ++copies;
      }
    }
  }
  write_file(options.output, csv);
  if (!options.quiet) {
    Table table;
    table.name = "export";
    table.title = "Expert placement";
    table.columns = {"quantity", "value"};
    table.rows = {{"MoE layers", std::to_string(inv.moe_layers.size())},
                  {"experts per layer", std::to_string(inv.experts)},
                  {"EP ranks", std::to_string(ep)},
                  {"copies of experts, all layers", std::to_string(copies)}};
    fmt::print("{}", render(table, options.format));
  }
  return 0;
}

/// Rows of a run, for spreadsheets and data frames.
int export_csv(const ExportOptions& options) {
  const run::RunReader reader(options.input);
  const Table rows = run_rows(reader, options.what.empty() ? "requests" : options.what);
  write_file(options.output, render(rows, TableFormat::kCsv));
  if (!options.quiet) {
    Table table;
    table.name = "export";
    table.title = "Rows of a run";
    table.columns = {"quantity", "value"};
    table.rows = {{rows.name, std::to_string(rows.rows.size())},
                  {"columns", std::to_string(rows.columns.size())}};
    fmt::print("{}", render(table, options.format));
  }
  return 0;
}

}  // namespace

int run_export(const ExportOptions& options) {
  require_own_output("-o", options.output, {{"the input", options.input}});
  ParentFolders folders;
  folders.make("-o", options.output);
  static const std::array<std::string, 6> kKinds{"gguf",      "perfetto", "csv",
                                                 "placement", "dot",      "svg"};
  if (std::find(kKinds.begin(), kKinds.end(), options.kind) == kKinds.end()) {
    throw InputError("export", fmt::format("unknown kind \"{}\"", options.kind),
                     suggest_name(options.kind, kKinds));
  }
  if (!options.type.empty() && options.kind != "gguf") {
    throw InputError("--type", fmt::format("means nothing with {}", options.kind),
                     "it is the format of a GGUF's matrices");
  }
  if ((options.first != 0 || options.steps != 0) && options.kind != "perfetto") {
    throw InputError("--first, --steps", fmt::format("mean nothing with {}", options.kind),
                     "they name a part of a run for export perfetto");
  }
  if (!options.what.empty() && options.kind != "csv") {
    throw InputError("--what", fmt::format("means nothing with {}", options.kind),
                     "it names the rows of export csv");
  }
  if (options.kind == "placement") return export_placement(options);
  if (options.kind == "csv") return export_csv(options);
  if (options.kind == "perfetto") return export_perfetto(options);
  if (options.kind == "dot") return export_dot(options);
  if (options.kind == "svg") return export_svg(options);
  const std::string type_name = options.type.empty() ? "bf16" : options.type;
  const model::DType type = parse_gguf_type(type_name);
  const bool terminal = !options.quiet && isatty(STDERR_FILENO) == 1;
  auto shown = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  const GgufExportSummary s = export_gguf(
      options.input, options.output, type, [&](std::uint64_t done, std::uint64_t total) {
        const auto now = std::chrono::steady_clock::now();
        if (terminal && (done == total || now - shown > std::chrono::milliseconds(100))) {
          shown = now;
          say("\rexport: {}/{} MiB{}", done >> 20U, total >> 20U, done == total ? "\n" : "");
        }
      });
  if (!options.quiet) {
    Table table;
    table.name = "export";
    table.title = "GGUF file";
    table.columns = {"quantity", "value"};
    table.rows = {{"architecture", s.architecture},
                  {"tensors", std::to_string(s.tensors)},
                  {"tensor bytes [B]", std::to_string(s.bytes)}};
    for (const auto& [name, count] : s.by_type) {
      table.rows.push_back({"tensors in " + name, std::to_string(count)});
    }
    table.rows.push_back({"tokenizer", s.tokenizer ? "written" : "none"});
    table.notes = {"vectors and routers are F32"};
    if (s.fallbacks > 0) {
      table.notes.push_back(fmt::format("{} matrices have rows that do not fill blocks of {}",
                                        s.fallbacks, type_name));
    }
    if (!s.tokenizer) {
      table.notes.emplace_back(
          "no byte-level BPE tokenizer.json: the file takes token ids, not text");
    }
    fmt::print("{}", render(table, options.format));
  }
  return 0;
}

}  // namespace switchyard::cli
