// SPDX-License-Identifier: Apache-2.0
// File: gate.hpp. The routing rule of a model, as the routing library takes it: the one conversion
// that the engine, the simulator and the trace tools share.
// Not modelled: the router itself (its matrix, biases and jitter).
#pragma once
#include "engine/model/model_config.hpp"
#include "engine/routing/gate.hpp"

namespace switchyard::model {

/// GateFields, num_experts and top_k of `config`, field by field. For a dense model all fields keep
/// their defaults (experts = 0). Not validated: call switchyard::validate() with the caller's
/// place.
[[nodiscard]] GateSpec gate_spec(const ModelConfig& config);

}  // namespace switchyard::model
