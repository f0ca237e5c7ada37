// SPDX-License-Identifier: Apache-2.0
// File: gguf_export.hpp. Writes a checkpoint (a folder, or another .gguf file) as one GGUF file
// that llama.cpp loads: names, shapes and metadata of its architectures
// (engine/model/gguf_model.hpp).
//
// Matrices are stored as `type`; vectors (norms, biases, sinks) and the router always as F32, as
// llama.cpp expects. A matrix whose rows do not fill the blocks of `type` is stored as Q8_0 if its
// rows are multiples of 32, else as F32, and counted. Quantised sources are widened first.
//
// Not modelled: importance matrices, mixed recipes (Q4_K_M), split files, MXFP4.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "engine/model/dtype.hpp"

namespace switchyard {

struct GgufExportSummary {
  std::string architecture;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;                       ///< Of the tensors.
  std::map<std::string, std::uint64_t> by_type;  ///< "F32" -> tensors.
  std::uint64_t fallbacks = 0;  ///< Matrices whose rows do not fill the blocks asked for.
  bool tokenizer = false;       ///< Written; otherwise llama.cpp takes token ids only.
};

/// "f32", "bf16", "f16", "q8_0", "q4_0", "q4_k"; InputError("--type", …) otherwise.
[[nodiscard]] model::DType parse_gguf_type(const std::string& text);

/// Holds a few rows of each tensor at a time; `progress` gets bytes written so far and in all. The
/// output appears whole or not at all. InputError: see Checkpoint and take_weights; a feature that
/// GGUF cannot say; NaN or infinite weights where blocks were asked for.
GgufExportSummary export_gguf(
    const std::filesystem::path& model, const std::filesystem::path& output, model::DType type,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace switchyard
