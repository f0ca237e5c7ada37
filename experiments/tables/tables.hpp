// SPDX-License-Identifier: Apache-2.0
// The paper-style tables. Each is a list of Tables: what we compute and, where claims are judged,
// their atomic rows with verdicts and the count of verdicts per claim.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/claims/claims.hpp"

namespace switchyard::tables {

struct TableContext {
  std::filesystem::path scenarios;  ///< Folder with models/, hardware/, checkpoints/, prompts/.
  bool quick = false;               ///< Smaller inputs where the engine runs.
  unsigned threads = 0;             ///< Of the engine; 0: the cores. No effect on any value.
};

struct TableEntry {
  std::string name;  ///< "mixed-fabric"; the first Table has this name, the others start with it.
  std::string description;
  std::vector<Table> (*make)(const TableContext& context);
  bool judges = true;  ///< It has a claim file, and verdicts.
};

/// Every table, ordered by name.
[[nodiscard]] const std::vector<TableEntry>& table_entries();
/// InputError("table", …) with a suggestion when there is none.
[[nodiscard]] const TableEntry& table_by_name(const std::string& name);

/// "<= 20", "35 to 40", "1.8"; and our value: yes, no, a number or n/a.
[[nodiscard]] std::string claimed_text(const claims::Claim& claim);
[[nodiscard]] std::string ours_text(const claims::Judged& judged);
/// Atomic rows beside our values: "<table>-claims".
[[nodiscard]] Table claims_table(const std::string& table,
                                 const std::vector<claims::Judged>& judged);
/// How many atomic rows of each claim got which verdict: "<table>-verdicts".
[[nodiscard]] Table verdicts_table(const std::string& table,
                                   const std::vector<claims::Judged>& judged);
/// C01 to C96: the tables that judge each, and what is missing where none does.
[[nodiscard]] Table coverage_table();
/// Six significant digits, C locale; "n/a" for NaN.
[[nodiscard]] std::string show(double value);

std::vector<Table> make_account(const TableContext& context);
std::vector<Table> make_arithmetic(const TableContext& context);
std::vector<Table> make_batch_activation(const TableContext& context);
std::vector<Table> make_batch_serving(const TableContext& context);
std::vector<Table> make_bit_flips(const TableContext& context);
std::vector<Table> make_capacity(const TableContext& context);
std::vector<Table> make_claim_sensitivity(const TableContext& context);
std::vector<Table> make_conflicts(const TableContext& context);
std::vector<Table> make_context_length(const TableContext& context);
std::vector<Table> make_cost(const TableContext& context);
std::vector<Table> make_coverage(const TableContext& context);
std::vector<Table> make_decode_rebalance(const TableContext& context);
std::vector<Table> make_domain_adapter(const TableContext& context);
std::vector<Table> make_effective_parameters(const TableContext& context);
std::vector<Table> make_energy(const TableContext& context);
std::vector<Table> make_ep_scaling(const TableContext& context);
std::vector<Table> make_failure(const TableContext& context);
std::vector<Table> make_fits(const TableContext& context);
std::vector<Table> make_frontier(const TableContext& context);
std::vector<Table> make_goodput(const TableContext& context);
std::vector<Table> make_gumbel(const TableContext& context);
std::vector<Table> make_load_aware(const TableContext& context);
std::vector<Table> make_locality(const TableContext& context);
std::vector<Table> make_long_context(const TableContext& context);
std::vector<Table> make_mixed_fabric(const TableContext& context);
std::vector<Table> make_network_sensitivity(const TableContext& context);
std::vector<Table> make_offload(const TableContext& context);
std::vector<Table> make_out_of_scope(const TableContext& context);
std::vector<Table> make_overlap(const TableContext& context);
std::vector<Table> make_placement(const TableContext& context);
std::vector<Table> make_prompt_routing(const TableContext& context);
std::vector<Table> make_quantisation(const TableContext& context);
std::vector<Table> make_queue_limits(const TableContext& context);
std::vector<Table> make_requests(const TableContext& context);
std::vector<Table> make_router_precision(const TableContext& context);
std::vector<Table> make_routing_statistics(const TableContext& context);
std::vector<Table> make_simulated(const TableContext& context);
std::vector<Table> make_simulators(const TableContext& context);
std::vector<Table> make_skew_cost(const TableContext& context);
std::vector<Table> make_static_table(const TableContext& context);
std::vector<Table> make_step_breakdown(const TableContext& context);
std::vector<Table> make_temperature(const TableContext& context);
std::vector<Table> make_top_k(const TableContext& context);
std::vector<Table> make_windowed_imbalance(const TableContext& context);

}  // namespace switchyard::tables
