// SPDX-License-Identifier: Apache-2.0
// Rows of a run as tables: one a request, a step or an event (`inspect --requests`, `export csv`).
// Times are simulated time in milliseconds; what a run does not know is "n/a".
#pragma once
#include <cstdint>
#include <string>

#include "engine/base/table.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::cli {

/// Requests [first, first + count) in the order of their numbers; count 0: all that follow. The
/// note says which of how many. InputError when `first` is beyond the last one.
///
///   queue wait = first step began − arrival · TTFT = first token − arrival
///   TPOT = (last token − first token) / (answer − 1) · latency = last token − arrival
Table request_rows(const run::RunReader& reader, std::uint64_t first, std::uint64_t count);
/// All steps. InputError: a run of detail "summary".
Table step_rows(const run::RunReader& reader);
Table event_rows(const run::RunReader& reader);

/// The CSV of "requests", "steps" or "events"; InputError for another name.
Table run_rows(const run::RunReader& reader, const std::string& what);

}  // namespace switchyard::cli
