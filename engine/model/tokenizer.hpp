// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding from a Hugging Face tokenizer.json, byte level (GPT-2, Qwen, DeepSeek,
// GPT-OSS, Llama 3) or SentencePiece style (Llama 2, Mistral, Mixtral: U+2581 for a space,
// byte_fallback, fuse_unk). Added tokens are cut out first; the rest is normalized, split (PCRE2)
// and merged by rank. Stages and their names: tokenizer_text.hpp.
//
// Invalid UTF-8 is not an error: each offending byte becomes a piece of its own (its byte token,
// else the unknown token), and nothing is put before the text that follows it. With all 256 bytes
// in a byte-level vocabulary encode/decode is lossless on any bytes. Where Hugging Face decodes
// bytes that are not UTF-8 to U+FFFD, the bytes themselves come out.
//
// Not modelled: Unigram, WordPiece and tokenizer.model files, other normalizers and pre-tokenizers,
// dropout, affixes of subwords, single_word, truncation and padding (each refused by name); pairs
// of texts. Letters and digits are those of PCRE2's Unicode tables (14 in Debian 12), normal forms
// those of utf8proc (Unicode 15): a letter added later may be split or composed otherwise than by
// Hugging Face. A character without token, byte tokens or unk_token is an error, where Hugging Face
// leaves it out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::model {

/// Length in bytes of the valid UTF-8 character at `at`, 0 when the byte there begins none (RFC
/// 3629: no surrogates, no overlong forms, at most U+10FFFF).
[[nodiscard]] std::size_t utf8_length(std::string_view text, std::size_t at);

class Tokenizer {
 public:
  /// tokenizer.json itself or the folder that holds it. InputError names the file and JSON pointer;
  /// unsupported features are refused by name.
  static Tokenizer load(const std::filesystem::path& path);
  static Tokenizer parse(std::string_view json, const std::string& where);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Ids of `text`. Special tokens in the text are recognised unless `parse_special` is false;
  /// those of the file's template (a begin of text) are put around it when `add_special`.
  /// InputError when a character has no token.
  [[nodiscard]] std::vector<std::uint32_t> encode(std::string_view text, bool parse_special = true,
                                                  bool add_special = false) const;
  /// Bytes of the ids, special tokens left out when `skip_special`. InputError for an unknown id.
  [[nodiscard]] std::string decode(std::span<const std::uint32_t> ids,
                                   bool skip_special = true) const;
  /// Highest id + 1.
  [[nodiscard]] std::size_t vocab_size() const;
  [[nodiscard]] std::optional<std::uint32_t> token_id(std::string_view token) const;
  /// Bytes of one token in the middle of a text ("" for an unused id).
  [[nodiscard]] std::string token_bytes(std::uint32_t id) const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::model
