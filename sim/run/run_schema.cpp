// SPDX-License-Identifier: Apache-2.0
#include "sim/run/run_file.hpp"

namespace switchyard::run {
namespace {
using h5::ElementType;
using h5::SchemaEntry;

std::vector<SchemaEntry> entries() {
  constexpr auto kU8 = ElementType::kU8;
  constexpr auto kU32 = ElementType::kU32;
  constexpr auto kU64 = ElementType::kU64;
  constexpr auto kI64 = ElementType::kI64;
  constexpr auto kF32 = ElementType::kF32;
  constexpr auto kF64 = ElementType::kF64;
  constexpr auto kText = ElementType::kText;
  std::vector<SchemaEntry> all;
  const auto add = [&all](const char* name, const char* shape, ElementType type, const char* unit,
                          const char* meaning) {
    all.push_back({name, shape, type, unit, meaning, false});
  };
  // Absent when the detail leaves the block out or one of its dimensions is 0.
  const auto block = [&all](const char* name, const char* shape, ElementType type, const char* unit,
                            const char* meaning) {
    all.push_back({name, shape, type, unit, meaning, true});
  };
  const auto lod = [&all](const std::string& name, const char* width, ElementType max,
                          ElementType sum, const char* unit, const std::string& meaning,
                          const std::string& flag) {
    const std::string shape = std::string("bins,") + width;
    all.push_back({name + "_max", shape, max, unit, meaning + ": largest value in the bin", true});
    all.push_back({name + "_sum", shape, sum, unit, meaning + ": sum over the bin", true});
    all.push_back({name + "_flag", shape, kU8, "", "1 = " + flag, true});
  };

  add("@product_version", "", kText, "", "version of the program that wrote the file");
  add("@scenario_name", "", kText, "", "name for people");
  add("@scenario_hash", "", kText, "", "hash of the canonical scenario text, hex");
  add("@model_name", "", kText, "", "model");
  add("@model_hash", "", kText, "", "hash of the model's configuration, hex");
  add("@hardware_name", "", kText, "", "hardware");
  add("@hardware_hash", "", kText, "", "hash of the hardware description, hex");
  add("@trace_hash", "", kText, "", "hash of the routing trace; empty for synthetic routing");
  add("@routing_source", "", kText, "", "where the decisions come from, one line");
  add("@policy_way", "", kText, "", "replay, closed loop, coupled or synthetic");
  add("@network_model", "", kText, "", "flow, coflow, bottleneck or auto");
  add("@detail", "", kText, "", "summary, steps, layers or tokens: which blocks the file has");
  add("@seed", "", kU64, "", "seed of the run");
  add("@experts", "", kU64, "", "E, routed experts of one MoE layer");
  add("@top_k", "", kU64, "", "experts per token of the model");
  add("@steps", "", kU64, "", "S, steps of the run, warm-up included");
  add("@assignments", "", kU64, "", "token-expert assignments, all steps and layers");
  add("@kept", "", kU64, "", "assignments that ran on their first choice");
  add("@rerouted", "", kU64, "", "assignments that ran elsewhere");
  add("@queued", "", kU64, "", "assignments that waited");
  add("@dropped", "", kU64, "", "assignments lost");
  add("@overflow", "", kU64, "", "first choices that found the expert full");
  add("@bytes_sent", "", kU64, "B", "bytes sent by all GPUs");
  add("@bytes_received", "", kU64, "B", "bytes received by all GPUs");

  add("scenario", "", kText, "", "the scenario as resolved: canonical text, `key = value` lines");
  add("notes", "notes", kText, "", "lines that a reader of the results should know");
  add("names/phases", "10", kText, "", "names of the phases, in the order of the P dimension");
  add("names/memory_categories", "6", kText, "", "names of the memory categories");
  add("names/step_kinds", "3", kText, "", "names of step/kind");
  add("names/straggler_reasons", "5", kText, "", "names of straggler_reason");
  add("names/request_outcomes", "4", kText, "", "names of request/outcome");
  add("names/event_kinds", "12", kText, "", "names of event/kind");
  add("names/step_series", "8", kText, "", "names of the columns of lod/steps");

  add("gpu/name", "G", kText, "", "GPUs");
  add("gpu/node", "G", kU32, "", "node index");
  add("gpu/memory", "G", kU64, "B", "memory");
  block("gpu/engine", "G", kU32, "", "replica of the GPU; absent when there is one");
  add("gpu/hbm", "G", kF64, "B/s", "peak HBM rate; 0 = not known");
  add("gpu/peak", "G", kF64, "FLOP/s", "peak at the experts' dtype; 0 = not known");
  add("link/name", "K", kText, "", "directed links");
  add("link/from", "K", kText, "", "device at the sending end");
  add("link/to", "K", kText, "", "device at the receiving end");
  add("link/class", "K", kText, "", "nvlink4, pcie5, …");
  add("link/bandwidth", "K", kF64, "B/s",
      "per direction, what exchanges reach (nominal · `achievable` of the hardware file)");
  add("moe_layers", "L", kU32, "", "real numbers of the MoE layers, ascending");
  add("placement", "L,E,R", kU32, "",
      "GPU of each expert's replicas when the run begins (a rebalanced placement: events), "
      "with `[parallel.prefill]` those of prefill replicas first; "
      "4294967295 = no further replica");

  add("totals/gpu_memory", "G,6", kU64, "B", "high water of each category");
  add("totals/gpu_memory_peak", "G", kU64, "B", "high water of the sum");
  add("totals/expert_kept", "L,E", kU64, "assignments", "run there, without warm-up");
  add("totals/expert_overflow", "L,E", kU64, "assignments",
      "first choices that found it full, without warm-up");
  block("totals/expert_time", "L,E", kI64, "ps", "kernel time, without warm-up");
  add("totals/reroute_experts", "E,E", kU64, "assignments",
      "from, to; over layers, without warm-up");
  add("totals/reroute_gpus", "G,G", kU64, "assignments",
      "from, to (GPU of the first replica), without warm-up");
  add("totals/pair_bytes", "G,G", kU64, "B", "sent from, to; without warm-up");
  add("totals/gpu_phase", "G,10", kI64, "ps", "time by phase, without warm-up");
  add("totals/link_bytes", "K", kU64, "B", "carried, without warm-up");
  add("totals/link_busy", "K", kI64, "ps", "busy time, without warm-up");
  add("metric/name", "Metrics", kText, "",
      "summary metrics; their definitions: `switchyard inspect`");
  add("metric/value", "Metrics", kF64, "", "NaN = n/a");
  add("metric/unit", "Metrics", kText, "", "unit of the value");

  block("step/start", "S", kI64, "ps", "start of the step");
  block("step/end", "S", kI64, "ps", "end of the step");
  block("step/kind", "S", kU8, "", "index into names/step_kinds");
  block("step/warmup", "S", kU8, "", "1 = warm-up, in no statistic");
  block("step/engine", "S", kU32, "", "replica that stepped; absent when there is one");
  block("step/tokens", "S", kU64, "tokens", "tokens processed");
  block("step/sequences", "S", kU64, "", "sequences in the batch");
  block("step/phase", "S,10", kI64, "ps", "time by phase along the critical path");
  block("step/assignments", "S", kU64, "assignments", "over all layers");
  block("step/kept", "S", kU64, "assignments", "ran on their first choice");
  block("step/rerouted", "S", kU64, "assignments", "ran elsewhere");
  block("step/queued", "S", kU64, "assignments", "waited");
  block("step/dropped", "S", kU64, "assignments", "lost");
  block("step/overflow", "S", kU64, "assignments", "first choices that found the expert full");
  block("step/longest_queue", "S", kU64, "assignments", "most beyond capacity at one expert");
  block("step/gate_entropy", "S", kF64, "bit", "mean over tokens and layers; NaN = n/a");
  block("step/cohesion", "S", kF64, "",
        "mean cosine of the hidden states of an expert's tokens in the last MoE layer, mean over "
        "experts; NaN = no expert has two; absent when the trace has no hidden states");
  block("step/cohesion_baseline", "S", kF64, "", "the same of as many random tokens of the step");
  block("step/imbalance", "S", kF64, "", "max/mean over GPUs, mean over layers; NaN = n/a");
  block("step/imbalance_max", "S", kF64, "", "max/mean over GPUs, largest layer; NaN = n/a");
  block("step/hbm_bytes", "S", kU64, "B", "HBM traffic of all GPUs");
  block("step/flops", "S", kF64, "FLOP", "arithmetic of all GPUs");
  block("step/kernels", "S", kU64, "", "kernels launched on all GPUs");
  block("step/bytes_sent", "S", kU64, "B", "sent by all GPUs");
  block("step/bytes_received", "S", kU64, "B", "received by all GPUs");
  block("step/straggler_gpu", "S", kU32, "", "GPU waited for longest; 4294967295 = none");
  block("step/straggler_reason", "S", kU8, "", "index into names/straggler_reasons");

  block("layer/attention", "S,L", kI64, "ps", "attention");
  block("layer/router", "S,L", kI64, "ps", "router");
  block("layer/dispatch", "S,L", kI64, "ps", "dispatch exchange");
  block("layer/expert", "S,L", kI64, "ps", "experts, slowest GPU");
  block("layer/combine", "S,L", kI64, "ps", "combine exchange");
  block("layer/dispatch_floor", "S,L", kI64, "ps", "physical floor of the dispatch");
  block("layer/combine_floor", "S,L", kI64, "ps", "physical floor of the combine");
  block("layer/imbalance", "S,L", kF32, "", "max/mean over GPUs of assignments; NaN = n/a");
  block("layer/distinct_experts", "S,L", kU32, "", "experts with at least one token");
  block("layer/straggler_gpu", "S,L", kU32, "", "last GPU; 4294967295 = none");
  block("layer/straggler_reason", "S,L", kU8, "", "index into names/straggler_reasons");

  block("expert/*/kept", "S,E", kU32, "assignments",
        "run there. `*` = all (sum over layers) or layer_NNNNN (NNNNN indexes moe_layers)");
  block("expert/*/overflow", "S,E", kU32, "assignments", "first choices that found it full");
  block("expert/*/rerouted_in", "S,E", kU32, "assignments", "run there though not first choice");
  block("expert/*/queued", "S,E", kU32, "assignments", "waited for it");
  block("expert/*/dropped", "S,E", kU32, "assignments", "lost at it");
  block("expert/*/capacity", "S,E", kU32, "assignments", "capacity C; 4294967295 = no limit");
  block("expert/*/fill", "S,E", kF32, "",
        "(kept + overflow) / max(C, 1), largest layer; NaN = no limit");

  block("gpu_step/phase", "S,G,10", kI64, "ps", "time by phase");
  block("gpu_step/bytes_out", "S,G", kU64, "B", "sent");
  block("gpu_step/bytes_in", "S,G", kU64, "B", "received");
  block("gpu_step/memory", "S,G,6", kU64, "B", "high water of each category");
  block("gpu_step/memory_peak", "S,G", kU64, "B", "high water of the sum");
  block("link_step/bytes", "S,K", kU64, "B", "carried");
  block("link_step/busy", "S,K", kI64, "ps", "busy time");
  block("reroute/step", "Reroutes", kU32, "", "step");
  block("reroute/layer", "Reroutes", kU32, "",
        "index into moe_layers; 4294967295 = summed over layers (detail steps)");
  block("reroute/from", "Reroutes", kU32, "", "first choice");
  block("reroute/to", "Reroutes", kU32, "", "expert that ran");
  block("reroute/count", "Reroutes", kU32, "assignments", "how many");

  add("request/id", "Requests", kU64, "", "requests");
  add("request/arrival", "Requests", kI64, "ps",
      "arrival; -1 = not known (a decode batch begins in the middle)");
  add("request/first_token", "Requests", kI64, "ps", "first token out; -1 = none");
  add("request/end", "Requests", kI64, "ps", "last token out; -1 = not finished");
  add("request/prompt_tokens", "Requests", kU32, "tokens", "length of the prompt");
  add("request/output_tokens", "Requests", kU32, "tokens", "tokens produced");
  add("request/outcome", "Requests", kU8, "", "index into names/request_outcomes");
  // In runs whose requests arrive.
  block("request/tier", "Requests", kU32, "", "index into workload.tiers");
  block("request/replica", "Requests", kU32, "", "where it was last; 4294967295 = nowhere");
  block("request/scheduled", "Requests", kI64, "ps", "its first step began; -1 = none");
  block("request/preemptions", "Requests", kU32, "", "how often it lost its pages");
  block("request/met_slo", "Requests", kU8, "", "1 = finished within its tier's TTFT and TPOT");
  block("request/cached_tokens", "Requests", kU32, "tokens",
        "found in a prefix cache; left out where no request found any");
  block("token/request", "Tokens", kU64, "", "id of the request");
  block("token/index", "Tokens", kU32, "", "0 = first token of the answer");
  block("token/step", "Tokens", kU32, "", "step that produced it");
  block("token/time", "Tokens", kI64, "ps", "when it was out");
  add("event/time", "Events", kI64, "ps", "events");
  add("event/step", "Events", kU32, "", "step; 4294967295 = none");
  add("event/kind", "Events", kU8, "", "index into names/event_kinds");
  add("event/layer", "Events", kU32, "", "index into moe_layers; 4294967295 = none");
  add("event/gpu", "Events", kU32, "", "GPU; 4294967295 = none");
  add("event/expert", "Events", kU32, "", "expert; 4294967295 = none");
  add("event/link", "Events", kU32, "", "link; 4294967295 = none");
  add("event/value", "Events", kF64, "", "meaning and unit: see the text; NaN = n/a");
  add("event/text", "Events", kText, "", "one line for people");
  add("critical/step", "Critical", kU32, "",
      "critical path of the slowest step that is no warm-up: pieces that follow each other from "
      "its "
      "start to its end");
  add("critical/layer", "Critical", kU32, "", "index into moe_layers; 4294967295 = none");
  add("critical/phase", "Critical", kU8, "", "index into names/phases");
  add("critical/gpu", "Critical", kU32, "",
      "who worked, or whom the others waited for; 4294967295 = none");
  add("critical/reason", "Critical", kU8, "", "index into names/straggler_reasons");
  add("critical/start", "Critical", kI64, "ps", "start");
  add("critical/duration", "Critical", kI64, "ps", "duration");

  lod("lod/steps", "8", kF64, kF64, "", "scalars of steps (names/step_series)",
      "overflow in one of the steps");
  lod("lod/step_start", "1", kI64, kI64, "ps", "start of steps", "never set");
  lod("lod/gpu_phase", "GP", kI64, kI64, "ps", "time by GPU and phase (10 per GPU)",
      "the GPU is the straggler of one of the steps");
  lod("lod/link_bytes", "K", kU64, kU64, "B", "bytes carried", "use >= 0.9 in one of the steps");
  lod("lod/link_use", "K", kF32, kF64, "", "share of capacity", "use >= 0.9 in one of the steps");
  lod("lod_expert/*/kept", "E", kU32, kU64, "assignments", "expert/*/kept",
      "overflow in one of the steps and layers");
  lod("lod_expert/*/overflow", "E", kU32, kU64, "assignments", "expert/*/overflow",
      "overflow in one of the steps and layers");
  lod("lod_expert/*/fill", "E", kF32, kF64, "", "expert/*/fill (NaN counts as 0)",
      "overflow in one of the steps and layers");
  return all;
}
}  // namespace

const h5::SchemaTable& run_schema() {
  static const h5::SchemaTable kTable = [] {
    h5::SchemaTable t;
    t.kind = h5::FileKind::kRun;
    t.version = 1;
    t.title = "Run file";
    t.introduction =
        "What one simulation produced: `switchyard sim … -o run.h5`. All times are integer "
        "picoseconds of simulated time.\n\n"
        "Dimensions: S steps, L MoE layers, E experts of a layer, R most replicas of an expert, G "
        "GPUs, K directed links, GP = 10 G.\n\n"
        "`@detail` decides which blocks exist: `summary` has totals, metrics, requests, events, "
        "critical path and the levels of detail of the whole run; `steps` adds `step/`, "
        "`expert/all/`, `gpu_step/`, `link_step/` and `reroute/`; `layers` adds `layer/`, "
        "`expert/layer_*/` and `lod_expert/layer_*/`; `tokens` adds `token/`. A block with a "
        "dimension of 0 (no links, no MoE layers) is left out.\n\n"
        "Levels of detail: level l >= 1 has one bin per 8^l steps, the coarsest has one bin. The "
        "`lod` datasets hold the bins of all levels one after the other, coarsest level first, so "
        "that a first picture reads only the beginning. Mean = sum / steps in the bin; the last "
        "bin of a level may be shorter.\n\n"
        "Replicas (`gpu/engine`) step by themselves: steps ascend by their start, those of one "
        "replica do not overlap. `request/tier` and the four after it exist when requests arrive "
        "(workload.kind = open, closed, trace), `request/cached_tokens` where a request found some "
        "of its prompt in a prefix cache.";
    t.entries = entries();
    return t;
  }();
  return kTable;
}

std::string run_format_markdown() { return h5::format_markdown(run_schema()); }

}  // namespace switchyard::run
