// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/export.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/nn/gguf_export.hpp"

namespace switchyard::cli {

int run_export(const ExportOptions& options) {
  static const std::array<std::string, 6> kKinds{"gguf",      "perfetto", "csv",
                                                 "placement", "dot",      "svg"};
  if (std::find(kKinds.begin(), kKinds.end(), options.kind) == kKinds.end()) {
    throw InputError("export", fmt::format("unknown kind \"{}\"", options.kind),
                     suggest_name(options.kind, kKinds));
  }
  if (options.kind != "gguf") {
    throw CapabilityError(
        fmt::format("unsupported: export {} is not in this version", options.kind));
  }
  const model::DType type = parse_gguf_type(options.type);
  const bool terminal = !options.quiet && isatty(STDERR_FILENO) == 1;
  auto shown = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  const GgufExportSummary s = export_gguf(
      options.input, options.output, type, [&](std::uint64_t done, std::uint64_t total) {
        const auto now = std::chrono::steady_clock::now();
        if (terminal && (done == total || now - shown > std::chrono::milliseconds(100))) {
          shown = now;
          fmt::print(stderr, "\rexport: {}/{} MiB{}", done >> 20U, total >> 20U,
                     done == total ? "\n" : "");
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
                                        s.fallbacks, options.type));
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
