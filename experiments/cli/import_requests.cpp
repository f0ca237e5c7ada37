// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/import.hpp"
#include "sim/scenario/request_trace.hpp"

namespace switchyard::cli {

int import_requests(const ImportOptions& options) {
  using scenario::RequestFormat;
  const RequestFormat format = options.kind == "requests-azure"      ? RequestFormat::kAzure
                               : options.kind == "requests-burstgpt" ? RequestFormat::kBurstGpt
                                                                     : RequestFormat::kMooncake;
  const scenario::RequestTrace trace =
      scenario::parse_request_trace(read_file(options.input), options.input.string(), format);
  write_file(options.output, scenario::request_trace_csv(trace));
  if (options.quiet) return 0;
  double prompt = 0, output = 0;
  for (const scenario::TracedRequest& r : trace.requests) {
    prompt += r.prompt_tokens;
    output += r.output_tokens;
  }
  const auto n = static_cast<double>(trace.requests.size());
  const double span = (trace.requests.back().arrival - trace.requests.front().arrival).seconds();
  Table table;
  table.name = "import";
  table.title = "Requests";
  table.columns = {"quantity", "value", "unit"};
  table.rows = {
      {"requests", std::to_string(trace.requests.size()), ""},
      {"rows left out", std::to_string(trace.left_out), ""},
      {"first to last arrival", fmt::format("{:.6g}", span), "s"},
      {"arrivals per second", span > 0 ? fmt::format("{:.6g}", (n - 1) / span) : "n/a", "1/s"},
      {"prompt tokens mean", fmt::format("{:.6g}", prompt / n), ""},
      {"output tokens mean", fmt::format("{:.6g}", output / n), ""}};
  std::size_t without = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) without += trace.hashes_of(i).empty();
  if (trace.hash_ids && without == 0) {
    table.notes.push_back(
        "hash_ids are in the file: workload.batching.prefix_caching = true uses them");
  } else if (trace.hash_ids) {
    table.notes.push_back(fmt::format(
        "hash_ids of {} rows are no whole numbers >= 0: prefix_caching is refused", without));
  }
  fmt::print("{}", render(table, options.format));
  return 0;
}

}  // namespace switchyard::cli
