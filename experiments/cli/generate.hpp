// SPDX-License-Identifier: Apache-2.0
// The verb `generate`: continue a text, so that a person sees it is a real model; or say how well
// the model predicts given texts.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/table.hpp"
#include "experiments/cli/ranks.hpp"

namespace switchyard::cli {

struct GenerateOptions {
  std::filesystem::path model;         ///< Checkpoint folder.
  std::string prompt;                  ///< Not empty, unless `prompts` or `perplexity` is given.
  std::filesystem::path prompts{};     ///< Prompt file whose texts are continued.
  std::filesystem::path perplexity{};  ///< Prompt file whose texts are scored in place of writing.
  std::filesystem::path policy{};      ///< --perplexity: routing policy in closed loop.
  /// --prompts, --perplexity: texts that run together; changes no text.
  std::uint32_t batch = 8;
  std::uint64_t oracle = 0;  ///< --perplexity: tokens for the loss oracle; 0: none.
  bool per_token = false;    ///< --perplexity: a row for every token too.
  TableFormat format = TableFormat::kText;
  std::uint32_t max_new = 64;  ///< Tokens; the end-of-text token ends earlier.
  double temperature = 0.8;    ///< 0: greedy.
  double top_p = 0.95;
  std::uint32_t top_k = 0;      ///< 0: all.
  std::uint32_t kv_block = 16;  ///< Tokens per block of the KV cache. No effect on the text.
  std::string kv_memory;        ///< "2 GiB"; empty: no limit.
  std::uint64_t seed = 1;
  std::string quantise;            ///< See parse_quantise(); empty: weights as stored.
  std::string router_dtype;        ///< See router_bf16().
  std::uint32_t health = 0;        ///< Check the weights before every n-th step; 0: never.
  std::vector<std::string> flips;  ///< See parse_bit_flip().
  std::string device = "cpu";
  std::string dtype = "f32";  ///< f32; bf16 with --device cuda only.
  unsigned threads = 0;       ///< 0: the cores this process may use. No effect on the text.
  RankOptions ranks;          ///< Under mpirun; no effect on the text.
};

/// Writes the prompt and its continuation to stdout as they come, and a final newline; of several
/// prompts a line "--- name" and the text of each, in order, or a table (format). What the health
/// checks found goes to stderr. Exit code 0, or throws InputError / CapabilityError. Under
/// mpirun every rank makes this call; rank 0 writes.
int run_generate(const GenerateOptions& options);

/// "perplexity": one row per text and one for all; with per_token also "perplexity-tokens", with
/// oracle "router-oracle".
[[nodiscard]] std::vector<Table> perplexity_tables(const GenerateOptions& options);

/// The continuation only, of --prompt.
[[nodiscard]] std::string generate_text(const GenerateOptions& options);
/// Each prompt with its continuation, in order.
[[nodiscard]] std::vector<std::string> generate_texts(const GenerateOptions& options);

}  // namespace switchyard::cli
