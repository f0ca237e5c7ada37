// SPDX-License-Identifier: Apache-2.0
// File: quantise.hpp. Rounds the weights of a loaded model to a smaller format (mechanism M27):
// what a quantised router or quantised experts do to routing and perplexity.
//
// A part of the model is one of: the routers; the routed experts (gate, up and down matrices); the
// backbone, which is everything else with shared experts and norms. Weights w of one output (row):
//   bf16, fp16   nearest, ties to even
//   fp8          OCP E4M3 with one float32 scale per row: s = max|w| / 448, s * e4m3(w / s)
//   int8         symmetric, one float32 scale per row: s = max|w| / 127, s * round(w / s)
//   int4         groups of `group` inputs with a scale and a zero point (20 bits) each, as AWQ and
//                GPTQ store them: s = fp16((max - min) / 15), z = round(-min / s),
//                s * (clamp(round(w / s) + z, 0, 15) - z); min <= 0 <= max
//   experts as int4 keep the share `keep` of their input channels (columns) in fp16: those of the
//   largest L2 norm over all rows, ties to the lower column. They take no part in min and max.
//
// Values are rounded, then widened again: arithmetic stays float32.
//
// Not modelled: what quantised kernels cost or save in time; quantised activations; channels ranked
// by the size of activations (AWQ's own rule needs calibration text; the norm needs none);
// calibrated rounding (GPTQ).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/weights.hpp"
#include "engine/parallel/communicator.hpp"

namespace switchyard {

enum class QuantFormat : std::uint8_t { kNone, kBf16, kFp16, kFp8, kInt8, kInt4 };

[[nodiscard]] const char* name_of(QuantFormat format);

struct QuantiseOptions {
  QuantFormat router = QuantFormat::kNone;
  QuantFormat experts = QuantFormat::kNone;
  QuantFormat backbone = QuantFormat::kNone;  ///< kNone, kBf16 or kFp16.
  std::size_t group = 128;                    ///< Inputs per int4 scale, >= 8.
  double keep = 0.1;  ///< [0, 1): share of the inputs of int4 experts that stay fp16, rounded up.
  [[nodiscard]] bool any() const {
    return router != QuantFormat::kNone || experts != QuantFormat::kNone ||
           backbone != QuantFormat::kNone;
  }
};

/// "router=int4,experts=int4,backbone=bf16,group=128,keep=0.1" in any order; what is not named
/// keeps its default. InputError(where, …): an unknown key or format, a value out of range, a key
/// that would have no effect (group without int4, keep without experts=int4).
[[nodiscard]] QuantiseOptions parse_quantise(std::string_view text, const std::string& where);
/// "router=int4,experts=int4,group=128,keep=0.1": what has an effect; empty when nothing has.
[[nodiscard]] std::string to_text(const QuantiseOptions& options);

/// What rounding one part did.
struct QuantisedPart {
  std::string name;  ///< "router", "experts", "backbone"
  QuantFormat format = QuantFormat::kNone;
  std::uint64_t tensors = 0, values = 0;
  double bits = 0;            ///< Stored bits, scales and kept channels included.
  double squared_error = 0;   ///< Sum of (rounded - w)^2.
  double squared_weight = 0;  ///< Sum of w^2.
  /// The same by tensor; the sums above run in the order of names, whoever rounded which.
  struct Tensor {
    std::uint64_t values = 0;
    double bits = 0, squared_error = 0, squared_weight = 0;
  };
  std::map<std::string, Tensor> by_tensor = {};
  /// Sets the sums from by_tensor.
  void add_up();
  /// sqrt(squared_error / squared_weight); 0 for a part of zeros.
  [[nodiscard]] double relative_error() const;
  [[nodiscard]] double bits_per_value() const;
};

/// Rounds `weights` in place: views of a rounded tensor point to copies in `weights.owned`. `tied`:
/// the head is the embedding. One entry per part that has a format.
std::vector<QuantisedPart> quantise(ModelWeights& weights, bool tied,
                                    const QuantiseOptions& options);

/// Joins what the ranks of a job rounded, so that `parts` are those of one process, on every rank.
void merge_quantised(Communicator& job, std::vector<QuantisedPart>& parts);

/// Rounds a matrix [rows, cols] in float32 in place; returns the stored bits. `kept` [cols]:
/// columns that become fp16 instead; empty: none. Only int4 looks at `group` and `kept`.
double round_matrix(std::span<float> values, std::size_t rows, std::size_t cols, QuantFormat format,
                    std::size_t group, const std::vector<bool>& kept);

/// The nearest OCP E4M3 value, ties to even, saturating at 448; NaN stays.
[[nodiscard]] float round_e4m3(float value);
/// The nearest IEEE half, ties to even; beyond 65519: infinity.
[[nodiscard]] float round_fp16(float value);

}  // namespace switchyard
