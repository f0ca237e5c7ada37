// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "engine/base/error.hpp"
#include "engine/trace/trace.hpp"
#include "engine/trace/trace_losses.hpp"
#include "engine/trace/trace_margins.hpp"
#include "engine/trace/trace_parts.hpp"
#include "engine/trace/trace_stats.hpp"

namespace switchyard {
namespace {

std::string number(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "n/a";
}

std::string percent(const std::optional<double>& value) {
  return value ? fmt::format("{:.2f}", *value * 100.0) : "n/a";
}

std::string text_or_none(const std::string& text) { return text.empty() ? "(none)" : text; }

Table summary(const RoutingTrace& trace, const TraceStats& stats, bool decided) {
  const TraceHeader& h = trace.header;
  Table table;
  table.name = "trace";
  table.title = "Routing trace";
  table.columns = {"quantity", "value"};
  const auto row = [&table](std::string quantity, std::string value) {
    table.rows.push_back({std::move(quantity), std::move(value)});
  };
  row("model", text_or_none(h.model));
  row("config hash", h.config_hash);
  row("weight hash", h.weight_hash);
  row("made by", text_or_none(h.engine));
  row("precision", text_or_none(h.precision));
  row("seed", std::to_string(h.seed));
  row("gate", gate_to_text(h.gate));
  row("policy", policy_to_text(h.policy));
  row("experts E", std::to_string(h.experts()));
  row("experts per token k", std::to_string(h.top_k()));
  row("slots K", std::to_string(h.slots));
  row("stored candidates M", std::to_string(h.candidates));
  row("MoE layers", std::to_string(h.layer_count()));
  row("sequences", std::to_string(trace.sequences.size()));
  std::map<std::string, std::size_t> domains;
  for (const TraceSequence& sequence : trace.sequences) {
    ++domains[text_or_none(sequence.domain)];
  }
  for (const auto& [domain, count] : domains) {
    row("sequences of domain " + domain, std::to_string(count));
  }
  row("steps", std::to_string(trace.steps()));
  row("token rows", std::to_string(trace.rows()));
  row("prefill rows", std::to_string(stats.prefill));
  row("decode rows", std::to_string(stats.decode));
  row("warm-up rows (not in statistics)", std::to_string(stats.warm_up));
  row("selection bias", trace.gate_bias.empty() ? "no" : "yes");
  row("decisions in the file", decided ? "yes" : "no");
  row("truncated slots", std::to_string(trace.truncated_slots));
  row("rows with NaN or +inf logits", std::to_string(trace.nan_rows));
  if (!decided) {
    table.notes.emplace_back(
        "way: replay with the recorded policy and seed, because the file has no decisions");
  }
  return table;
}

Table by_layer(const RoutingTrace& trace, const TraceStats& stats) {
  Table table;
  table.name = "trace-layers";
  table.title = "Routing by MoE layer";
  table.columns = {"layer",
                   "assignments",
                   "kept",
                   "rerouted",
                   "queued",
                   "dropped",
                   "overflow [%]",
                   "load_cv [%]",
                   "top3_share [%]",
                   "imbalance = max/mean",
                   "entropy_load [bit]",
                   "entropy_gate mean [bit]",
                   "entropy_gate p95 [bit]",
                   "switch_rate",
                   "set_switch"};
  const auto row = [&table](std::string name, const auto& s) {
    const auto share =
        s.assignments == 0
            ? std::nullopt
            : std::optional(static_cast<double>(s.overflow()) / static_cast<double>(s.assignments));
    table.rows.push_back({std::move(name), std::to_string(s.assignments), std::to_string(s.kept),
                          std::to_string(s.rerouted), std::to_string(s.queued),
                          std::to_string(s.dropped), percent(share), percent(s.load_cv),
                          percent(s.top3_share), number(s.imbalance, 3), number(s.entropy_load, 3),
                          number(s.entropy_gate_mean, 3), number(s.entropy_gate_p95, 3),
                          number(s.switch_rate, 3), number(s.set_switch, 3)});
  };
  for (const LayerStats& layer : stats.layers) {
    row(std::to_string(layer.layer), layer);
  }
  row("all", stats);
  table.notes.push_back(
      fmt::format("load_cv over windows of W = {} tokens; counting floor of an even router {} %",
                  stats.window, percent(stats.load_cv_floor)));
  table.notes.push_back(
      fmt::format("top3_share of an even router {:.2f} %; largest of a layer {} %",
                  stats.top3_fair * 100.0, percent(stats.top3_share_max)));
  table.notes.push_back(
      fmt::format("largest imbalance = max/mean of a layer {}", number(stats.imbalance_max, 3)));
  table.notes.emplace_back("overflow = rerouted + queued + dropped; row \"all\": sums and means");
  if (trace.header.candidates < trace.header.experts()) {
    table.notes.push_back(
        fmt::format("entropy_gate needs the logits of all {} experts; this trace has {}",
                    trace.header.experts(), trace.header.candidates));
  }
  return table;
}

}  // namespace

Table margins_table(const RoutingTrace& trace) {
  Table t;
  t.name = "trace-margins";
  t.title = "Margin between the last expert chosen and the next candidate";
  t.columns = {"layer", "rows", "least", "p1", "p50", fmt::format("below {}", kNearTie)};
  const auto value = [](const std::optional<float>& v) {
    return v ? fmt::format("{:.3g}", *v) : "n/a";
  };
  const std::vector<LayerMargins> layers = trace_margins(trace);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerMargins& m = layers[i];
    t.rows.push_back({i + 1 < layers.size() ? std::to_string(m.layer) : "all",
                      std::to_string(m.rows), value(m.least), value(m.p1), value(m.p50),
                      std::to_string(m.near_ties)});
  }
  t.notes.push_back(fmt::format(
      "candidate k minus candidate k + 1 by {}, before any policy; a router in another precision "
      "may choose otherwise where this is about its rounding",
      trace.gate_bias.empty() ? "logit" : "score + bias"));
  return t;
}

Table losses_table(const RoutingTrace& trace) {
  const TraceLosses losses = trace_losses(trace);
  Table t;
  t.name = "trace-losses";
  t.title = "Balancing losses of the router, coefficient 1";
  t.columns = {"layer", "switch",         "megatron", "deepseek_seq", "hugging_face",
               "z",     "importance_cv2", "load_cv2", "max_violation"};
  const auto mean = [&](std::optional<double> LayerLosses::*field) {
    double sum = 0;
    std::uint64_t n = 0;
    for (const LayerLosses& layer : losses.layers) {
      if (layer.*field) {
        sum += *(layer.*field);
        ++n;
      }
    }
    return number(n == 0 ? std::nullopt : std::optional(sum / static_cast<double>(n)), 4);
  };
  for (const LayerLosses& l : losses.layers) {
    t.rows.push_back({std::to_string(l.layer), number(l.switch_loss, 4), number(l.megatron, 4),
                      number(l.deepseek_seq, 4), "n/a", number(l.z, 4), number(l.importance_cv2, 4),
                      number(l.load_cv2, 4), number(l.max_violation, 4)});
  }
  t.rows.push_back({"all", mean(&LayerLosses::switch_loss), mean(&LayerLosses::megatron),
                    mean(&LayerLosses::deepseek_seq), number(losses.hugging_face, 4),
                    mean(&LayerLosses::z), mean(&LayerLosses::importance_cv2),
                    mean(&LayerLosses::load_cv2), mean(&LayerLosses::max_violation)});
  t.notes.push_back(fmt::format(
      "an even router: switch, megatron, deepseek_seq 1; hugging_face k = {}; cv2, violation 0",
      trace.header.top_k()));
  t.notes.emplace_back(
      "switch: E sum f P with f of the first choice; megatron: of all k, / k; hugging_face: all "
      "layers' rows as one; deepseek_seq: per sequence, then mean; row \"all\": mean of layers");
  t.notes.push_back(
      fmt::format("{} tokens, choices before capacity; training adds coefficient x "
                  "loss (0.01 for the first four, 1e-3 for z)",
                  losses.tokens));
  if (trace.header.candidates < trace.header.experts() && trace.gate_sum.empty()) {
    t.notes.push_back(fmt::format("n/a: needs the logits of all {} experts; this trace has {}",
                                  trace.header.experts(), trace.header.candidates));
  }
  return t;
}

std::vector<Table> inspect_trace(const std::filesystem::path& path,
                                 const InspectTraceOptions& options) {
  RoutingTrace trace = open_trace(path, options.verify, options.most_bytes);
  const bool decided = trace.decisions_present;
  if (decided && options.policy != nullptr) {
    throw InputError("--policy", "has no effect: the file holds its decisions");
  }
  if (!decided) {
    // Its decisions need as much room as the rest of it.
    if (trace.parts != nullptr) trace = read_trace(path, {options.verify, false});
    replay_recorded(trace, options.policy, path.string());
  }
  const TraceStats stats = trace_stats(trace, options.window);
  return {summary(trace, stats, decided), by_layer(trace, stats), losses_table(trace),
          margins_table(trace)};
}

}  // namespace switchyard
