// SPDX-License-Identifier: Apache-2.0
// `switchyard inspect T.h5 --activation` (M59): every definition of claims.md §1 that a routing
// trace can answer, side by side, each with what an even router would show.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/model/model_config.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/cli/recorded_policy.hpp"

namespace switchyard {

struct InspectActivationOptions {
  bool verify = true;
  std::uint64_t window = 0;  ///< W of load_cv in the per-layer table; 0: all tokens.
  /// config.json, preset or checkpoint folder for parameters and bytes; empty: a preset or shipped
  /// checkpoint of the trace's model name, if there is one.
  std::string model;
  std::filesystem::path root;           ///< The scenarios folder.
  const NamedPolicy* policy = nullptr;  ///< As InspectTraceOptions::policy.
};

/// Tables "activation" (the eight rates), "activation-batch" (experts and bytes per step),
/// "activation-windows" (load_cv(W) beside its floor), "activation-layers", "activation-experts",
/// "trace-losses" (M23). InputError: as read_trace; `model` is not the trace's model (layers, E,
/// k).
[[nodiscard]] std::vector<Table> inspect_activation(const std::filesystem::path& path,
                                                    const InspectActivationOptions& options);

/// The same of a trace in memory that has its decisions; without `config` what needs parameters is
/// n/a.
[[nodiscard]] std::vector<Table> activation_tables(const RoutingTrace& trace,
                                                   const std::optional<model::ModelConfig>& config,
                                                   std::uint64_t window = 0);

}  // namespace switchyard
