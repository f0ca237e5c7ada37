// SPDX-License-Identifier: Apache-2.0
// Builds the routing trace of another program's dump, which states the experts that each token took
// and nothing else (engine/trace/experts_only.hpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/model/model_config.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard::importers {

/// A trace without tokens of `model`'s MoE layers; `engine` is who made the dump. InputError
/// (--model) where routing cannot hold the model's gate.
RoutingTrace experts_only_trace(const model::ModelConfig& model, const std::string& engine);

/// Appends a token of sequence `sequence` and, after it, its experts `ids`, [layers][k], each below
/// E. The caller states where steps begin.
void append_token(RoutingTrace& trace, std::size_t sequence, std::size_t position,
                  std::uint32_t token, Phase phase, std::size_t step, const std::uint16_t* ids);

/// To be called once, after the last token.
void close_trace(RoutingTrace& trace);

/// Throws InputError (place) when one of the k experts stands twice in `ids`. `token` and `layer`
/// are those of the message.
void check_once(const std::uint16_t* ids, std::size_t k, const std::string& place,
                std::size_t token, std::uint32_t layer);

}  // namespace switchyard::importers
