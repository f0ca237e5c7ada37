// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/routing_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace_stats.hpp"

namespace switchyard {
namespace {

TablePrefix parse_prefix(const std::string& text) {
  static const std::array<std::string, 3> kNames{"tokens", "characters", "bytes"};
  const auto at = std::find(kNames.begin(), kNames.end(), text);
  if (at == kNames.end()) {
    throw InputError("--table-prefix", fmt::format("unknown prefix \"{}\"", text),
                     suggest_name(text, kNames));
  }
  return static_cast<TablePrefix>(at - kNames.begin());
}

/// Keys of all prompts. InputError when the trace does not hold what they are made of.
std::vector<TableKey> prompt_keys(const RoutingTrace& trace, TablePrefix prefix) {
  std::vector<std::vector<std::uint32_t>> tokens(trace.sequences.size());
  if (prefix == TablePrefix::kTokens) {
    tokens = prompt_prefixes(trace, "trace");
  }
  std::vector<TableKey> out;
  for (std::size_t s = 0; s < trace.sequences.size(); ++s) {
    if (prefix != TablePrefix::kTokens && trace.sequences[s].text.empty()) {
      throw InputError("trace", "the prompts' texts are not recorded",
                       "trace the prompts again, or make the keys of tokens");
    }
    out.push_back(table_key(prefix, tokens[s], trace.sequences[s].text));
  }
  return out;
}

std::string number(const std::optional<double>& v, int digits = 4) {
  return v ? fmt::format("{:.{}f}", *v, digits) : "n/a";
}

std::string share(std::uint64_t part, std::uint64_t whole) {
  return whole > 0 ? fmt::format("{:.4f}", static_cast<double>(part) / static_cast<double>(whole))
                   : "n/a";
}

/// Largest share of one expert in its layer's load, mean over layers.
std::optional<double> top_share(const TraceStats& stats) {
  double sum = 0;
  std::size_t counted = 0;
  for (const LayerStats& layer : stats.layers) {
    const std::uint64_t all =
        std::accumulate(layer.load.begin(), layer.load.end(), std::uint64_t{0});
    if (all > 0) {
      sum += static_cast<double>(*std::max_element(layer.load.begin(), layer.load.end())) /
             static_cast<double>(all);
      ++counted;
    }
  }
  return counted > 0 ? std::optional(sum / static_cast<double>(counted)) : std::nullopt;
}

}  // namespace

BuiltTable build_routing_table(const RoutingTrace& trace, const std::string& prefix,
                               std::uint32_t digest_bits) {
  const TraceHeader& h = trace.header;
  TableSpec spec;
  spec.prefix = parse_prefix(prefix);
  spec.digest_bits = digest_bits;
  spec.layers = h.layer_count();
  spec.experts = h.experts();
  spec.top_k = h.top_k();
  spec.model = h.model.empty() ? "unnamed" : h.model;
  std::replace_if(
      spec.model.begin(), spec.model.end(), [](unsigned char c) { return c <= ' '; }, '_');
  spec.weight_hash = h.weight_hash;
  validate(spec, "--build-table");
  const std::vector<TableKey> keys = prompt_keys(trace, spec.prefix);

  std::vector<TableEntryBuilder> builders(trace.sequences.size(),
                                          TableEntryBuilder(spec.layers, spec.experts));
  std::vector<std::uint64_t> seen(trace.sequences.size(), 0);
  std::vector<float> p(h.candidates);
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    const std::uint32_t s = trace.tokens.sequence[row];
    if (trace.tokens.position[row] >= trace.sequences[s].prompt_length) {
      continue;
    }
    ++seen[s];
    for (std::uint32_t l = 0; l < spec.layers; ++l) {
      const std::uint64_t at = trace.candidate_at(row, l);
      const float lse = trace.routing.lse[trace.layer_at(row, l)];
      for (std::uint32_t m = 0; m < h.candidates; ++m) {
        p[m] = gate_probability(h.gate, trace.routing.logit[at + m], lse);
      }
      builders[s].add(l, std::span(trace.routing.candidates).subspan(at, h.candidates), p);
    }
  }
  std::vector<std::uint32_t> order(trace.sequences.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return trace.sequences[a].arrival < trace.sequences[b].arrival;
  });
  BuiltTable out{RoutingTable(spec)};
  out.partial = h.candidates < h.experts();
  std::vector<std::uint16_t> ids;
  std::vector<float> mean;
  for (const std::uint32_t s : order) {
    if (seen[s] < trace.sequences[s].prompt_length) {
      throw InputError("trace", fmt::format("holds {} of the {} tokens of prompt {}", seen[s],
                                            trace.sequences[s].prompt_length, s));
    }
    builders[s].finish(spec.top_k, ids, mean);
    ++out.prompts;
    out.repeated += out.table.add(keys[s], ids, mean) == RoutingTable::Added::kRepeated ? 1 : 0;
  }
  return out;
}

Table built_table_summary(const BuiltTable& built) {
  Table table;
  table.name = "routing-table";
  table.title = "Static routing table";
  table.columns = {"quantity", "value"};
  table.rows = {{"prompts", std::to_string(built.prompts)},
                {"entries", std::to_string(built.table.size())},
                {"repeated prompts", std::to_string(built.repeated)},
                {"conflicts", std::to_string(built.table.conflicts())},
                {"digest collisions", std::to_string(built.table.collisions())}};
  table.notes = {"conflict = a key again with another entry; the first entry stays"};
  if (built.partial) {
    table.notes.emplace_back("p of experts outside the stored candidates counted as 0");
  }
  return table;
}

Table routing_table_report(const RoutingTrace& trace, const RoutingTable& table,
                           const std::string& name) {
  const TraceHeader& h = trace.header;
  const TableSpec& spec = table.spec();
  if (spec.experts != h.experts() || spec.top_k != h.top_k() || spec.layers != h.layer_count()) {
    throw InputError(name, fmt::format("the table is of {} MoE layers, {} experts, top-{}; the "
                                       "trace has {}, {}, {}",
                                       spec.layers, spec.experts, spec.top_k, h.layer_count(),
                                       h.experts(), h.top_k()));
  }
  // The recorded capacity with and without the table, everything else plain.
  ReplayOptions live;
  live.seed = h.seed;
  live.policy.capacity = h.policy.capacity;
  live.policy.renorm = h.policy.renorm;
  ReplayOptions with = live;
  with.policy.table.file = name;
  with.table = &table;
  const std::vector<RequestInfo> requests = trace_requests(trace, with.policy, &table, name);
  std::uint64_t hits = 0;
  std::uint64_t collisions = 0;
  for (const RequestInfo& r : requests) {
    hits += r.table_entry != kNoTableEntry ? 1 : 0;
    collisions += r.table_collision ? 1 : 0;
  }
  std::vector<SetCounts> by_layer(h.layer_count());
  Replayer replayer(trace, with);
  std::vector<LayerDecision> decisions;
  for (std::uint32_t step = 0; step < trace.steps(); ++step) {
    replayer.next_step(decisions);
    for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
      by_layer[l] += decisions[l].sets;
    }
  }
  RoutingTrace a = trace;
  replay(a, live);
  const TraceStats plain = trace_stats(a);
  replay(a, with);
  const TraceStats under = trace_stats(a);

  Table out;
  out.name = "routing-table-report";
  out.title = fmt::format("The trace under the routing table {}", name);
  out.columns = {"quantity", "live router", "with the table"};
  const auto row = [&](std::string what, std::string live_value, std::string value) {
    out.rows.push_back({std::move(what), std::move(live_value), std::move(value)});
  };
  row("requests", std::to_string(requests.size()), std::to_string(requests.size()));
  row("hit rate of requests", "n/a", share(hits, requests.size()));
  row("requests with another prompt's entry", "n/a", std::to_string(collisions));
  SetCounts all;
  for (std::uint32_t l = 0; l < h.layer_count(); ++l) {
    row(fmt::format("agreement@k, layer {}", h.layers[l]), "1.0000",
        share(by_layer[l].table_agreed, by_layer[l].table_slots));
    all += by_layer[l];
  }
  row("agreement@k", "1.0000", share(all.table_agreed, all.table_slots));
  row("load_cv", number(plain.load_cv), number(under.load_cv));
  row("top share", number(top_share(plain)), number(top_share(under)));
  row("top-3 share", number(plain.top3_share), number(under.top3_share));
  row("imbalance = max/mean", number(plain.imbalance, 3), number(under.imbalance, 3));
  row("router passes per token and layer", "1.0000",
      share(trace.rows() * h.layer_count() - all.table_tokens, trace.rows() * h.layer_count()));
  out.notes = {
      "way: replay with the recorded capacity policy, with and without the table",
      "agreement@k = slots of a hit's tokens whose expert the live router would have taken / k",
      "top share = of the busiest expert in its layer's load, mean over layers",
      "a hit costs no router pass"};
  if (spec.weight_hash != h.weight_hash) {
    out.notes.emplace_back("the table was built with other weights than the trace");
  }
  return out;
}

}  // namespace switchyard
