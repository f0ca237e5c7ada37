// SPDX-License-Identifier: Apache-2.0
// `inspect T.h5 --build-table` and `--use-table`: a static routing table (M14) from a trace, and
// what a table does to a trace. Model: engine/routing/static_table.hpp.
//
// Not modelled: the hidden states under the table (the report is a replay); p of experts outside
// the stored candidates counts as 0 in a build (M < E).
#pragma once
#include <cstdint>
#include <string>

#include "engine/base/table.hpp"
#include "engine/routing/static_table.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard {

struct BuiltTable {
  RoutingTable table;
  std::uint64_t prompts = 0, repeated = 0;  ///< Of the trace; those with an equal earlier entry.
  bool partial = false;                     ///< M < E.
};

/// The table of all prompts of a trace, in order of arrival. `prefix` is tokens, characters or
/// bytes. InputError: another prefix or digest, prompts (or their texts) that the trace does not
/// hold in full.
[[nodiscard]] BuiltTable build_routing_table(const RoutingTrace& trace, const std::string& prefix,
                                             std::uint32_t digest_bits);
/// Table "routing-table": prompts, entries, repeats, conflicts, collisions.
[[nodiscard]] Table built_table_summary(const BuiltTable& built);
/// Table "routing-table-report": hits, collisions, agreement@k by layer, load_cv, top share and
/// imbalance of the live router and under the table. `name` is the table's, for the title.
/// InputError: a table of another model.
[[nodiscard]] Table routing_table_report(const RoutingTrace& trace, const RoutingTable& table,
                                         const std::string& name);

}  // namespace switchyard
