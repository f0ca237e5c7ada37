// SPDX-License-Identifier: Apache-2.0
// Tensors that a policy names by file (M03, M47), and what they compute. Files are read by
// engine/model/policy_weights.hpp.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

/// M03: z' = W2 gelu(W1 x + b1) + b2, x = the E logits or the router's input. All row-major.
struct SemanticWeights {
  std::uint32_t inputs = 0, hidden = 0, outputs = 0;  ///< E or H, D, E.
  std::vector<float> w1, b1;                          ///< [D][inputs], [D]
  std::vector<float> w2, b2;                          ///< [E][D], [E]
};

/// M47: the router becomes W + B A; z += B (A x).
struct AdapterWeights {
  std::uint32_t rank = 0, inputs = 0, outputs = 0;  ///< r, H, E.
  std::vector<float> a, b;                          ///< [r][H], [E][r]
};

/// Of one MoE layer; parts that the policy does not use are empty.
struct LayerPolicyWeights {
  SemanticWeights semantic;
  AdapterWeights adapter;
};

struct PolicyWeights {
  std::vector<LayerPolicyWeights> layers;  ///< [L] MoE layers, or empty: none is needed.
  [[nodiscard]] const LayerPolicyWeights* layer(std::size_t l) const {
    return l < layers.size() ? &layers[l] : nullptr;
  }
};

/// GELU by the error function: x / 2 (1 + erf(x / sqrt 2)).
[[nodiscard]] double gelu(double x);

/// out[outputs] = M03 of x[inputs]; sums in double in index order. `scratch` is resized to D.
void semantic_gate(const SemanticWeights& weights, std::span<const double> x,
                   std::vector<double>& scratch, std::span<double> out);

}  // namespace switchyard
