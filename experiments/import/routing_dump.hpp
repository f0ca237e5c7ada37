// SPDX-License-Identifier: Apache-2.0
// Experts per token that vLLM and SGLang return with a completion, as a routing trace.
//
//   vLLM    --enable-return-routed-experts (docs.vllm.ai, training/routed_experts): choices[] with
//           "routed_experts", a base64 .npy [tokens][layers][k] or nested lists; of all tokens, or
//           of the generated ones beside "prompt_routed_experts" of the prompt (v0.21)
//   SGLang  --enable-return-routed-experts (sgl-project/sglang#12162): meta_info.routed_experts of
//           /generate, or of each of choices[]: base64 of int32 [tokens][layers][k] without a shape
//   SGLang  as recorded by openfabric-systems/simllm ("simllm-preplay-trace-v1", "-v2"): JSON lines
//           with a header, requests, and one row per token
// The first two: one response, a list of them, or one a line. The last generated token is never fed
// back, so of P prompt and C generated tokens there are P + C − 1 rows (P + C where the server ran
// one more); another count is refused. Layers are the model's MoE layers, or all its layers, of
// which those without experts are passed over. Experts are logical ids.
//
// What a dump does not say is not made up: no logits and no weights
// (engine/trace/experts_only.hpp); token ids are 0 where a dump has none. It does not say either
// which tokens ran together: all prompts are step 0, token n of every answer is step n.
//
// Not modelled: a prompt's start that a server left out (routed_experts_start_len,
// routed_experts_prompt_start: the count of rows is then another and refused); EPLB's physical ids.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model_config.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard::importers {

enum class DumpKind : std::uint8_t { kVllm, kSglang };

struct RoutingDump {
  RoutingTrace trace;
  bool token_ids = false;         ///< Of all rows; else those that are missing are 0.
  std::uint32_t passed_over = 0;  ///< Layers of the dump without experts.
};

/// InputError with `where` and the response (line, or index of a list): no JSON, no experts in it,
/// ids beyond the model's E, an expert twice in a row, counts that do not fit.
RoutingDump read_routing_dump(std::string_view text, const std::string& where, DumpKind kind,
                              const model::ModelConfig& model);

}  // namespace switchyard::importers
