// SPDX-License-Identifier: Apache-2.0
// The verb `import`: other tools' files as Switchyard's own. This version: eplb, an expert
// placement as the CSV `layer,expert,rank` that parallel.placement reads; topo-m, the text of
// nvidia-smi topo -m as a hardware file (experiments/import/topo_m.hpp); requests-azure,
// requests-burstgpt and requests-mooncake, published request traces as the CSV that
// workload.arrivals.file reads (sim/scenario/request_trace.hpp).
//
// Forms of a placement that are recognised by their content:
//   JSON      physical_to_logical_map (SGLang, vLLM), phy2log or expected_phy2log (EPLB):
//             [layers][slots] → expert; num_gpus, or --gpus
//   CSV       layer,device,experts with experts separated by blanks
//   text      "devices layers experts", then devices · layers · experts zeros and ones (omni-infer)
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct ImportOptions {
  std::string kind;  ///< eplb, topo-m, requests-*; the other kinds of the design are refused by name
  std::filesystem::path input, output;
  std::uint32_t gpus = 0;         ///< Ranks of a JSON map that does not state them; 0: not given.
  std::uint32_t first_layer = 0;  ///< Layer number of the model for row 0.
  std::string like;               ///< topo-m: hardware file the figures come from.
  std::string numa;               ///< topo-m: rate between two sockets, "" = from `like`.
  bool quiet = false;
  TableFormat format = TableFormat::kText;
};

/// Exit code 0, or throws InputError / CapabilityError.
int run_import(const ImportOptions& options);
/// The kind topo-m. The output appears only if it reads back as a hardware file.
int import_topo_m(const ImportOptions& options);
/// The kinds requests-azure, requests-burstgpt, requests-mooncake.
int import_requests(const ImportOptions& options);

}  // namespace switchyard::cli
