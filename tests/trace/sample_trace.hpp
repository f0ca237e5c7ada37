// SPDX-License-Identifier: Apache-2.0
// A small run of a made-up router, decided step by step as the engine does it: random logits with a
// drift, rank_candidates, route_layer, backlog carried over. Shared by the trace tests.
#pragma once
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/base/random.hpp"
#include "engine/routing/candidates.hpp"
#include "engine/routing/decide.hpp"
#include "engine/routing/route.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard::testing_trace {

struct SampleOptions {
  GateSpec gate = gate_mixtral(8, 2);
  RoutingPolicy policy;
  std::vector<std::uint32_t> layers = {1, 3, 5};
  std::vector<std::uint32_t> prompts = {3, 1, 4};  ///< Lengths, in order of the table.
  std::uint32_t decode_steps = 3;
  std::uint64_t seed = 7;
  bool bias = false;
  std::uint32_t hidden = 0;
  std::uint32_t extra_slots = 0;        ///< K - k.
  const RoutingTable* table = nullptr;  ///< Of policy.table.
  bool requests = false;  ///< Sequences carry their prompt's text; some name an expert.
  const PolicyWeights* weights = nullptr;
  bool gates = false;    ///< The sums of the gate's probabilities are recorded.
  bool one_nan = false;  ///< A NaN logit at row 0, layer 0, expert 0 of step 0.
};

inline TraceHeader sample_header(const SampleOptions& o) {
  TraceHeader h;
  h.model = "sample";
  h.gate = o.gate;
  h.policy = o.policy;
  h.layers = o.layers;
  h.slots = policy_slots(o.policy, o.gate) + o.extra_slots;
  h.candidates = stored_candidates(o.gate.experts, policy_slots(o.policy, o.gate));
  h.hidden = o.hidden;
  h.config_hash = "00112233445566778899aabbccddeeff";
  h.weight_hash = "0123456789abcdef";
  h.seed = o.seed;
  h.engine = "switchyard test";
  h.precision = "f32";
  return h;
}

inline std::vector<float> sample_bias(const SampleOptions& o) {
  std::vector<float> bias;
  if (o.bias) {
    for (std::uint32_t i = 0; i < o.layers.size() * o.gate.experts; ++i) {
      bias.push_back(
          0.1F * static_cast<float>(random_normal(o.seed, random_purpose("bias"), {i, 0, 0, 0})));
    }
  }
  return bias;
}

/// Writes the run through TraceWriter and returns what a reader should find. Step 0 is the prefill
/// of all prompts (the first prompt as warm-up), then decode steps.
inline RoutingTrace write_sample(const std::filesystem::path& path, const SampleOptions& o) {
  RoutingTrace out;
  out.header = sample_header(o);
  out.gate_bias = sample_bias(o);
  const TraceHeader& h = out.header;
  const std::uint32_t layers = h.layer_count();
  const std::uint32_t experts = h.experts();
  TraceWriter writer(path, h, out.gate_bias);
  for (std::uint32_t s = 0; s < o.prompts.size(); ++s) {
    out.sequences.push_back(
        {o.prompts[s], s, s % 2 == 0 ? "prose" : "code", "p" + std::to_string(s)});
    if (o.requests) {
      out.sequences.back().text = "prompt é " + std::to_string(s);
      out.sequences.back().expert = s == 2 ? static_cast<std::uint16_t>(5) : kNoExpert;
    }
    (void)writer.add_sequence(out.sequences.back());
  }
  std::vector<std::vector<std::uint32_t>> backlog(layers);
  RouteWorkspace workspace;
  RoutingState state(layers);
  for (std::uint32_t s = 0; s < o.prompts.size(); ++s) {
    std::vector<std::uint32_t> prompt(o.prompts[s]);
    std::iota(prompt.begin(), prompt.end(), 100 * s);
    state.request(s) =
        request_info(o.policy, o.table, prompt, out.sequences[s].text, out.sequences[s].expert);
  }
  RankWorkspace rank;
  Candidates candidates;
  LayerDecision decision;
  TraceStep recorder;
  const std::size_t per_sequence = std::size_t{layers} * experts;
  out.gate_sum.assign(o.gates ? o.prompts.size() * per_sequence : 0, 0.0);
  for (std::uint32_t step = 0; step <= o.decode_steps; ++step) {
    std::vector<std::uint32_t> sequence;
    std::vector<std::uint32_t> position;
    std::vector<std::uint32_t> token;
    std::vector<std::uint8_t> phase;
    for (std::uint32_t s = 0; s < o.prompts.size(); ++s) {
      const std::uint32_t begin = step == 0 ? 0 : o.prompts[s] + step - 1;
      const std::uint32_t end = step == 0 ? o.prompts[s] : begin + 1;
      for (std::uint32_t p = begin; p < end; ++p) {
        sequence.push_back(s);
        position.push_back(p);
        token.push_back(100 * s + p);
        phase.push_back(static_cast<std::uint8_t>(step > 0 ? Phase::kDecode
                                                  : s == 0 ? Phase::kWarmUp
                                                           : Phase::kPrefill));
      }
    }
    const std::size_t rows = sequence.size();
    recorder.begin(h, step, sequence, position, token, phase);
    std::vector<double> step_sum(out.gate_sum.size(), 0.0);
    for (std::uint32_t l = 0; l < layers; ++l) {
      std::vector<float> logits;
      for (std::size_t t = 0; t < rows; ++t) {
        for (std::uint32_t e = 0; e < experts; ++e) {
          logits.push_back(static_cast<float>(
              random_normal(o.seed, random_purpose("logit"), {sequence[t], l, position[t], e}) -
              2.0 * e / experts));
        }
      }
      if (o.one_nan && step == 0 && l == 0) {
        logits[0] = std::nanf("");
      }
      const std::span<const float> bias = out.bias_of(l);
      rank_candidates(o.gate, logits, bias, h.candidates, rank, candidates);
      StepContext context = make_step(sequence, position, phase, o.seed, l, step);
      context.backlog = backlog[l];
      RouteInput input;
      input.candidates = candidates.view();
      input.logits = logits;
      input.gate_bias = bias;
      input.requests = state.requests();
      input.table = o.table;
      input.weights = o.weights == nullptr ? nullptr : o.weights->layer(l);
      route_layer(o.gate, o.policy, context, input, state.layer(l), workspace, decision);
      backlog[l] = decision.deferred;
      recorder.set_layer(l, candidates.view(), candidates.nan_rows, decision);
      if (o.gates) {
        recorder.set_gate(l, o.gate, logits);
        std::vector<double> p(experts);
        for (std::size_t t = 0; t < rows; ++t) {
          if (phase[t] == static_cast<std::uint8_t>(Phase::kWarmUp)) {
            continue;
          }
          gate_probabilities(o.gate, std::span(logits).subspan(t * experts, experts),
                             candidates.lse[t], p);
          for (std::uint32_t e = 0; e < experts; ++e) {
            step_sum[sequence[t] * per_sequence + l * experts + e] += p[e];
          }
        }
      }
      out.nan_rows += candidates.nan_rows;
      out.truncated_slots += decision.truncated_slots;
      if (o.hidden > 0) {
        std::vector<std::uint16_t> input(rows * o.hidden);
        for (std::size_t i = 0; i < input.size(); ++i) {
          input[i] = static_cast<std::uint16_t>(i * 31 + l);
        }
        recorder.set_router_input(l, input);
      }
    }
    writer.append(recorder);
    for (std::size_t i = 0; i < step_sum.size(); ++i) {
      out.gate_sum[i] += step_sum[i];
    }
    out.step_begin.push_back(out.tokens.size());
    const auto extend = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    const TraceRouting& r = recorder.routing();
    extend(out.tokens.sequence, sequence);
    extend(out.tokens.position, position);
    extend(out.tokens.token, token);
    extend(out.tokens.phase, phase);
    extend(out.tokens.step, recorder.tokens().step);
    extend(out.routing.candidates, r.candidates);
    extend(out.routing.logit, r.logit);
    extend(out.routing.lse, r.lse);
    extend(out.routing.first, r.first);
    extend(out.routing.chosen, r.chosen);
    extend(out.routing.weights, r.weights);
    extend(out.routing.outcome, r.outcome);
    extend(out.routing.router_input, r.router_input);
  }
  out.step_begin.push_back(out.tokens.size());
  out.minus_inf_rows = o.one_nan ? 1 : 0;
  writer.finish();
  return out;
}

}  // namespace switchyard::testing_trace
