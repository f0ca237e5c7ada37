// SPDX-License-Identifier: Apache-2.0
// The verb `inspect`: what a file holds. Traces and runs are told apart by their first bytes,
// hardware files by their ending.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/base/table.hpp"

namespace switchyard::cli {

struct InspectOptions {
  std::filesystem::path file;
  bool topology = false;    ///< Only for hardware files, where it is what is shown anyway.
  bool activation = false;  ///< Traces only: every activation rate and routing statistic.
  bool profile = false;     ///< Runs only: where time and bytes went.
  bool requests = false;    ///< Runs only: a row a request, from `first` on, `rows` of them.
  std::uint64_t first = 0;
  std::uint64_t rows = 50;       ///< 0: all.
  bool layers = false;           ///< Runs: check single layers too, however long the run is.
  std::uint64_t window = 0;      ///< Traces: W of load_cv in tokens; 0: all tokens.
  std::filesystem::path policy;  ///< Traces without decisions: the policy file of the run.
  std::string model;             ///< --activation: the trace's model, for parameters and bytes.
  std::filesystem::path root;    ///< The scenarios folder.
  bool no_verify = false;        ///< Traces and runs above 4 GiB only.
  std::filesystem::path build_table;  ///< Traces: write a routing table (M14) of its prompts here.
  std::string table_prefix = "tokens";  ///< tokens, characters or bytes of the prompt make the key.
  std::uint32_t table_digest_bits = 256;  ///< 256, 64 or 32.
  std::filesystem::path use_table;  ///< Traces: what this table would do to the trace's requests.
  TableFormat format = TableFormat::kText;
};

/// 0; throws InputError for a file that is none of the three.
int run_inspect(const InspectOptions& options);

}  // namespace switchyard::cli
