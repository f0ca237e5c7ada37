// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/experts_only_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "engine/model/gate.hpp"
#include "engine/routing/candidates.hpp"
#include "engine/trace/experts_only.hpp"

namespace switchyard::importers {

RoutingTrace experts_only_trace(const model::ModelConfig& model, const std::string& engine) {
  RoutingTrace t;
  t.header.model = model.name;
  t.header.gate = model::gate_spec(model);
  validate(t.header.gate, "--model");
  t.header.layers = model.moe_layers();
  const auto k = static_cast<std::uint32_t>(model.top_k);
  t.header.candidates = stored_candidates(t.header.gate.experts, k);
  t.header.slots = k;
  // Neither the configuration that ran nor its weights were seen.
  t.header.config_hash = t.header.weight_hash = std::string(16, '0');
  t.header.engine = fmt::format("{}, imported by switchyard {}", engine, version());
  t.header.precision = std::string(kExpertsOnly);
  return t;
}

void append_token(RoutingTrace& t, std::size_t sequence, std::size_t position, std::uint32_t token,
                  Phase phase, std::size_t step, const std::uint16_t* ids) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  t.tokens.sequence.push_back(static_cast<std::uint32_t>(sequence));
  t.tokens.position.push_back(static_cast<std::uint32_t>(position));
  t.tokens.token.push_back(token);
  t.tokens.phase.push_back(static_cast<std::uint8_t>(phase));
  t.tokens.step.push_back(static_cast<std::uint32_t>(step));
  const std::uint32_t k = t.header.slots;
  TraceRouting& r = t.routing;
  for (std::uint32_t l = 0; l < t.header.layer_count(); ++l, ids += k) {
    for (const auto part : {&r.candidates, &r.first, &r.chosen}) {
      part->insert(part->end(), ids, ids + k);
    }
    r.candidates.resize(r.candidates.size() + t.header.candidates - k, kNoExpert);
    r.logit.resize(r.logit.size() + t.header.candidates, kMinusInfinity);
    r.lse.push_back(kMinusInfinity);
    r.weights.resize(r.weights.size() + k, 0.0F);
    r.outcome.resize(r.outcome.size() + k, static_cast<std::uint8_t>(SlotOutcome::kKept));
  }
}

void close_trace(RoutingTrace& t) {
  t.step_begin.push_back(t.tokens.size());
  t.nan_rows = t.minus_inf_rows = t.rows() * t.header.layer_count();
}

void check_once(const std::uint16_t* ids, std::size_t k, const std::string& place,
                std::size_t token, std::uint32_t layer) {
  for (std::size_t j = 1; j < k; ++j) {
    if (std::find(ids, ids + j, ids[j]) == ids + j) continue;
    throw InputError(place,
                     fmt::format("token {}, layer {}: expert {} twice", token, layer, ids[j]),
                     "a row of zeros is a token that never ran: leave it out");
  }
}

}  // namespace switchyard::importers
