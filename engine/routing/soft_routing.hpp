// SPDX-License-Identifier: Apache-2.0
// M17 soft routing: requests whose prompt holds a keyword run N experts per token instead of k,
// weighted by their raw probabilities. Decided once per request, from its prompt.
//
//   soft(request) = some keyword is a substring of the prompt, ignoring the case of A-Z
//   soft tokens:  k_t = N,  w = p of each (their sum stays below 1), or renormalised on request
//
// Source: routing.md M17. Not modelled: case folding beyond ASCII (other letters match exactly).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

/// How the simulator computes the first product of a soft token's experts. gathered: the weights of
/// the experts it runs. stacked: one product over the weights of all experts of the GPU (mechanisms
/// M66), of which the chosen experts' part is used.
enum class SoftCost : std::uint8_t { kGathered, kStacked };

struct SoftRoutingPolicy {
  std::uint32_t experts = 0;  ///< N, 1…E; 0: M17 is off.
  bool renorm = false;        ///< Divide the N weights by their sum.
  SoftCost cost = SoftCost::kGathered;
  bool all_requests = false;          ///< Every request is soft, whatever its prompt.
  std::vector<std::string> keywords;  ///< None empty; looked for in the prompt.
  bool operator==(const SoftRoutingPolicy&) const = default;
  [[nodiscard]] bool on() const { return experts > 0; }
};

/// Does the prompt hold one of the keywords?
[[nodiscard]] bool holds_keyword(std::span<const std::string> keywords, std::string_view prompt);

}  // namespace switchyard
