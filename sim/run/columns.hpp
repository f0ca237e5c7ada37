// SPDX-License-Identifier: Apache-2.0
// Internal to sim/run: which member of RunData is which dataset, said once for writer and reader.
#pragma once
#include <string_view>

#include "sim/run/run_data.hpp"

namespace switchyard::run::internal {

/// f(name, vector) for every expert × step column.
template <class Steps, class F>
void expert_columns(Steps& x, F&& f) {
  f("kept", x.kept);
  f("overflow", x.overflow);
  f("rerouted_in", x.rerouted_in);
  f("queued", x.queued);
  f("dropped", x.dropped);
  f("capacity", x.capacity);
  f("fill", x.fill);
}
template <class Steps, class F>
void layer_columns(Steps& x, F&& f) {
  f("attention", x.attention_ps);
  f("router", x.router_ps);
  f("dispatch", x.dispatch_ps);
  f("expert", x.expert_ps);
  f("combine", x.combine_ps);
  f("dispatch_floor", x.dispatch_floor_ps);
  f("combine_floor", x.combine_floor_ps);
  f("imbalance", x.imbalance);
  f("distinct_experts", x.distinct_experts);
  f("straggler_gpu", x.straggler_gpu);
  f("straggler_reason", x.straggler_reason);
}
template <class Steps, class F>
void reroute_columns(Steps& x, F&& f) {
  f("step", x.step);
  f("layer", x.layer);
  f("from", x.from);
  f("to", x.to);
  f("count", x.count);
}
/// f(name, pointer to member) for every scalar of a step but phase_ps.
template <class F>
void step_columns(F&& f) {
  f("start", &StepScalars::start_ps);
  f("end", &StepScalars::end_ps);
  f("kind", &StepScalars::kind);
  f("warmup", &StepScalars::warmup);
  f("tokens", &StepScalars::tokens);
  f("sequences", &StepScalars::sequences);
  f("assignments", &StepScalars::assignments);
  f("kept", &StepScalars::kept);
  f("rerouted", &StepScalars::rerouted);
  f("queued", &StepScalars::queued);
  f("dropped", &StepScalars::dropped);
  f("overflow", &StepScalars::overflow);
  f("longest_queue", &StepScalars::longest_queue);
  f("gate_entropy", &StepScalars::gate_entropy);
  f("imbalance", &StepScalars::imbalance);
  f("imbalance_max", &StepScalars::imbalance_max);
  f("hbm_bytes", &StepScalars::hbm_bytes);
  f("flops", &StepScalars::flops);
  f("kernels", &StepScalars::kernels);
  f("bytes_sent", &StepScalars::bytes_sent);
  f("bytes_received", &StepScalars::bytes_received);
  f("straggler_gpu", &StepScalars::straggler_gpu);
  f("straggler_reason", &StepScalars::straggler_reason);
}
template <class F>
void request_columns(F&& f) {
  f("id", &RequestRecord::id);
  f("arrival", &RequestRecord::arrival_ps);
  f("first_token", &RequestRecord::first_token_ps);
  f("end", &RequestRecord::end_ps);
  f("prompt_tokens", &RequestRecord::prompt_tokens);
  f("output_tokens", &RequestRecord::output_tokens);
  f("outcome", &RequestRecord::outcome);
}
/// What requests have in runs whose requests arrive.
template <class F>
void served_columns(F&& f) {
  f("tier", &RequestRecord::tier);
  f("replica", &RequestRecord::replica);
  f("scheduled", &RequestRecord::scheduled_ps);
  f("preemptions", &RequestRecord::preemptions);
  f("met_slo", &RequestRecord::met_slo);
}
/// What requests have besides where some found tokens in a prefix cache.
template <class F>
void prefix_columns(F&& f) {
  f("cached_tokens", &RequestRecord::cached_tokens);
}
template <class F>
void token_columns(F&& f) {
  f("request", &TokenRecord::request);
  f("index", &TokenRecord::index);
  f("step", &TokenRecord::step);
  f("time", &TokenRecord::time_ps);
}
/// All but the text.
template <class F>
void event_columns(F&& f) {
  f("time", &Event::time_ps);
  f("step", &Event::step);
  f("kind", &Event::kind);
  f("layer", &Event::layer);
  f("gpu", &Event::gpu);
  f("expert", &Event::expert);
  f("link", &Event::link);
  f("value", &Event::value);
}
template <class F>
void critical_columns(F&& f) {
  f("step", &CriticalEntry::step);
  f("layer", &CriticalEntry::layer);
  f("phase", &CriticalEntry::phase);
  f("gpu", &CriticalEntry::gpu);
  f("reason", &CriticalEntry::reason);
  f("start", &CriticalEntry::start_ps);
  f("duration", &CriticalEntry::duration_ps);
}
/// f(name, counter) for the whole-run counters, attributes of the file.
template <class T, class F>
void counters(T& t, F&& f) {
  f("steps", t.steps);
  f("assignments", t.assignments);
  f("kept", t.kept);
  f("rerouted", t.rerouted);
  f("queued", t.queued);
  f("dropped", t.dropped);
  f("overflow", t.overflow);
  f("bytes_sent", t.bytes_sent);
  f("bytes_received", t.bytes_received);
}
/// f(name, text) for the texts of RunMeta that are attributes (the scenario itself is a dataset).
template <class M, class F>
void meta_texts(M& m, F&& f) {
  f("product_version", m.product_version);
  f("scenario_name", m.scenario_name);
  f("scenario_hash", m.scenario_hash);
  f("model_name", m.model_name);
  f("model_hash", m.model_hash);
  f("hardware_name", m.hardware_name);
  f("hardware_hash", m.hardware_hash);
  f("trace_hash", m.trace_hash);
  f("routing_source", m.routing_source);
  f("policy_way", m.policy_way);
  f("network_model", m.network_model);
}
/// f(name, lod) for the series of the whole run but the experts'.
template <class L, class F>
void run_lods(L& lod, F&& f) {
  f("steps", lod.steps);
  f("step_start", lod.step_start);
  f("gpu_phase", lod.gpu_phase);
  f("link_bytes", lod.link_bytes);
  f("link_use", lod.link_use);
}
template <class L, class F>
void expert_lods(L& lod, F&& f) {
  f("kept", lod.kept);
  f("overflow", lod.overflow);
  f("fill", lod.fill);
}

}  // namespace switchyard::run::internal
