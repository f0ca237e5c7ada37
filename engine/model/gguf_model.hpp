// SPDX-License-Identifier: Apache-2.0
// What a GGUF file says about its model, in both directions: metadata <-> ModelConfig, metadata <->
// tokenizer.json. Architectures as llama.cpp defines them:
//
//   llama (with experts)  Mixtral       softmax, renormalised; q and k rows permuted (rope on
//   pairs) qwen2moe              Qwen2-MoE     softmax, never renormalised; shared expert with gate
//   qwen3moe              Qwen3-MoE     softmax, renormalised; q and k norm per head
//   olmoe                 OLMoE         softmax, never renormalised; q and k norm over all heads
//   deepseek2             DeepSeek-V2/V3 by expert_gating_func (softmax/sigmoid); MLA, kv_b split
//   gpt-oss               GPT-OSS       window on even layers, swiglu limit 7; experts unfused
//
// Not modelled: other architectures and dense models (refused by name), lora adapters, control
// vectors. A feature that an architecture cannot say (OLMoE's clip_qkv, a window in Mixtral, dense
// layers in Qwen) is refused on writing.
#pragma once
#include <string>

#include "engine/model/gguf.hpp"
#include "engine/model/model_config.hpp"
#include "engine/model/tokenizer.hpp"

namespace switchyard::model {

/// InputError names the key, or the architecture when it is not one of the above.
[[nodiscard]] ModelConfig read_gguf_config(const Gguf& file);

/// The tokenizer.json that the metadata stands for: byte-level BPE (tokenizer.ggml.model "gpt2")
/// with the pre-tokenizers gpt-2, olmo, qwen2, llama-bpe, gpt-4o and deepseek-v3, or SentencePiece
/// BPE
/// ("llama": merges follow from the scores, as in transformers). Others are refused by name.
[[nodiscard]] std::string gguf_tokenizer_json(const Gguf& file);

/// Tokenizer::load() for a checkpoint folder, a tokenizer.json or a .gguf file.
[[nodiscard]] Tokenizer load_tokenizer(const std::filesystem::path& path);

/// "llama", "qwen2moe", … InputError(where) names the feature that GGUF cannot express.
[[nodiscard]] std::string gguf_architecture(const ModelConfig& config, const std::string& where);
/// Metadata of the architecture; gguf_architecture() accepted the model.
void write_gguf_config(GgufWriter& out, const ModelConfig& config);
/// Metadata of the tokenizer in `folder`, padded to the model's vocabulary; says "no_vocab" when
/// the folder has none or it is no byte-level BPE with one of those pre-tokenizers. Returns whether
/// it was written.
bool write_gguf_tokenizer(GgufWriter& out, const ModelConfig& config,
                          const std::filesystem::path& folder);

/// The tokenizer's metadata of another GGUF file, or "no_vocab"; returns whether it has one.
bool copy_gguf_tokenizer(GgufWriter& out, const Gguf& file);

}  // namespace switchyard::model
