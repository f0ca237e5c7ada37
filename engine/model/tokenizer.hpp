// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE from a Hugging Face tokenizer.json: added tokens are cut out first, the rest is
// split by the GPT-2 pattern (PCRE2, UTF), each piece is mapped byte by byte to the 256 GPT-2
// characters and merged by rank. Invalid UTF-8 is not an error: each offending byte becomes a piece
// of its own, so encode/decode is lossless on any bytes when the vocabulary has all 256 bytes.
//
// Not modelled: SentencePiece and Unigram models, normalizers, templates that insert tokens (a
// post-processor other than ByteLevel is refused by name), truncation and padding. Letters and
// digits are those of PCRE2's Unicode tables (14 in Debian 12): a letter added later splits off a
// piece of its own where Hugging Face joins it to its neighbours. The bytes stay the same.
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

  /// Ids of `text`. No begin-of-text is added. Special tokens in the text are recognised unless
  /// `parse_special` is false. InputError when a byte has no token.
  [[nodiscard]] std::vector<std::uint32_t> encode(std::string_view text,
                                                  bool parse_special = true) const;
  /// Bytes of the ids, special tokens left out when `skip_special`. InputError for an unknown id.
  [[nodiscard]] std::string decode(std::span<const std::uint32_t> ids,
                                   bool skip_special = true) const;
  /// Highest id + 1.
  [[nodiscard]] std::size_t vocab_size() const;
  [[nodiscard]] std::optional<std::uint32_t> token_id(std::string_view token) const;
  /// Text of one token's bytes ("" for an unused id).
  [[nodiscard]] std::string token_bytes(std::uint32_t id) const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::model
