// SPDX-License-Identifier: Apache-2.0
// The gate of a Mixture-of-Experts layer as data: how logits become scores, which experts may be
// chosen, and how the weights of the chosen ones are formed. One router covers all families
// (engines.md 1.0):
//
//   score = softmax(z) | sigmoid(z) | z                    z[E] = W h (+ linear bias), fp32
//   sel   = score + bias                                   selection only
//   groups: keep topk_group groups by max | sum of top 2 of sel, others := -inf (V2: 0.0)
//   idx   = the k best of sel; ties: lower expert id; NaN and +inf logits count as -inf
//   w     = score[idx]; identity: softmax over idx; renorm: w / (sum w + eps); w *= scale
//
// Sources: the Hugging Face and vendor files cited in engines.md 1.1-1.7.
// Not modelled: the model dtype casts of the weights that some references do after this step;
// router GEMM precision (the caller's business: logits arrive as fp32).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard {

/// "No expert": an empty slot (dropped, padding) in every id array.
inline constexpr std::uint16_t kNoExpert = 65535;

enum class GateScore : std::uint8_t { kSoftmax, kSigmoid, kIdentity };
enum class GroupScore : std::uint8_t { kMax, kSumTop2 };
enum class GroupMask : std::uint8_t { kMinusInfinity, kZero };

/// All fields are checked by validate(). Two specs are equal iff all fields are.
struct GateSpec {
  std::uint32_t experts = 0;  ///< E, 1…65534.
  std::uint32_t top_k = 0;    ///< k, 1…min(255, experts that the group limit leaves).
  GateScore score = GateScore::kSoftmax;
  /// Divide the weights by their sum + eps. Ignored by identity, which always is a softmax over the
  /// chosen logits.
  bool renorm = false;
  float eps = 0.0F;    ///< >= 0.
  float scale = 1.0F;  ///< routed_scaling_factor, > 0; applied last.
  /// DeepSeek-V2 remote code: renormalise *or* scale, never both ("if k > 1 and renorm … else").
  bool exclusive_scale = false;
  std::uint32_t n_group = 1;     ///< Contiguous blocks of E / n_group experts; divides E.
  std::uint32_t topk_group = 1;  ///< Groups kept, 1…n_group. n_group = 1: no group limit.
  GroupScore group_score = GroupScore::kMax;
  /// Selection value of experts outside the kept groups. Whatever it is, they are never reroute
  /// targets.
  GroupMask group_mask = GroupMask::kMinusInfinity;
  bool operator==(const GateSpec&) const = default;
  [[nodiscard]] bool grouped() const { return n_group > 1 && topk_group < n_group; }
};

/// Mixtral: softmax over all E, always renormalised.
[[nodiscard]] GateSpec gate_mixtral(std::uint32_t experts, std::uint32_t top_k);
/// Qwen2-MoE, Qwen3-MoE, OLMoE: softmax over all E, renormalised only if norm_topk_prob.
[[nodiscard]] GateSpec gate_qwen(std::uint32_t experts, std::uint32_t top_k, bool norm_topk_prob);
/// DeepSeek-V2: softmax, group max with 0.0 mask, renorm and scale exclusive. V2-Lite: n_group = 1.
[[nodiscard]] GateSpec gate_deepseek_v2(std::uint32_t experts, std::uint32_t top_k,
                                        std::uint32_t n_group, std::uint32_t topk_group,
                                        float scale, bool norm_topk_prob = false);
/// DeepSeek-V3/R1: sigmoid, bias in the selection, sum of top 2 per group, renorm then scale.
[[nodiscard]] GateSpec gate_deepseek_v3(std::uint32_t experts, std::uint32_t top_k,
                                        std::uint32_t n_group, std::uint32_t topk_group,
                                        float scale = 2.5F);
/// GPT-OSS: top-k of the raw logits, softmax over the k chosen.
[[nodiscard]] GateSpec gate_gpt_oss(std::uint32_t experts, std::uint32_t top_k);

/// Throws InputError(where, …) when a field is outside its range, when n_group does not divide
/// experts, or when top_k exceeds the experts of the kept groups.
void validate(const GateSpec& gate, const std::string& where);

/// One line, fixed key order: "experts=8 top_k=2 score=softmax renorm=true …". gate_from_text is
/// its exact inverse and throws InputError(where, …) otherwise; the result is validated.
[[nodiscard]] std::string gate_to_text(const GateSpec& gate);
[[nodiscard]] GateSpec gate_from_text(std::string_view text, const std::string& where);

/// Probability p of an expert from its raw logit and the log-sum-exp over all E, in one fixed way:
/// computed in double, rounded once to float. softmax and identity: exp(logit - lse); sigmoid:
/// 1 / (1 + exp(-logit)). A logit of -inf (NaN on input) gives 0. Range [0, 1]. For identity gates
/// this is the softmax over all experts, which ranks as the logit does and is comparable between
/// tokens.
[[nodiscard]] float gate_probability(const GateSpec& gate, float logit, float lse);

/// Offset of (row, column) in a row-major array of `width` columns, 64 bit throughout: 131072 rows
/// of 16384 already need 2^31 (engines.md 5, row 12).
[[nodiscard]] constexpr std::uint64_t row_offset(std::uint64_t row, std::uint64_t width,
                                                 std::uint64_t column = 0) {
  return row * width + column;
}

}  // namespace switchyard
