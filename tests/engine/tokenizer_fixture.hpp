// SPDX-License-Identifier: Apache-2.0
// A tiny checkpoint that the verbs of the command line can read prompts with.
#pragma once
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

#include "tests/engine/fixture_model.hpp"

namespace switchyard::testing_support {

/// The f32 fixture with a byte-level tokenizer of the printable ASCII characters.
inline std::filesystem::path checkpoint_with_tokenizer(const std::string& name) {
  const auto folder = changed_checkpoint("f32", name, [](Tensors&) {});
  nlohmann::json vocab = nlohmann::json::object();
  int id = 1;
  for (char c = '!'; c <= '~'; ++c) {
    vocab[std::string(1, c)] = id++;
  }
  vocab["\u0120"] = id++;  // space
  vocab["\u010A"] = id++;  // newline
  const nlohmann::json level = {{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", true}};
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array({{{"id", 0},
                                               {"content", "<|endoftext|>"},
                                               {"single_word", false},
                                               {"lstrip", false},
                                               {"rstrip", false},
                                               {"normalized", false},
                                               {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer", level},
      {"post_processor", nullptr},
      {"decoder", level},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  write_file(folder / "tokenizer.json", tokenizer.dump());
  return folder;
}

}  // namespace switchyard::testing_support
