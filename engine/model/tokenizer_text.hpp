// SPDX-License-Identifier: Apache-2.0
// The stages of a tokenizer.json around its BPE model, with the meaning Hugging Face's `tokenizers`
// gives them: normalizer, pre-tokenizer, decoder. Internal to engine/model.
//
// A pattern is written for Oniguruma; PCRE2 runs it. \s \S \w \W are spelt out as Oniguruma's
// Unicode sets. What the two read differently (\h, \b, nested sets, {n,m}+, (?m)) is refused.
//
// Not modelled: normalizers, pre-tokenizers and decoders other than those listed below: refused by
// name. Offsets into the original text.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/json_input.hpp"

namespace switchyard::model {

/// A compiled pattern. Copies share it; safe to use from several threads.
class Pattern {
 public:
  /// InputError(where) names what is unsupported or wrong.
  Pattern(const std::string& oniguruma, const std::string& where);
  /// A pattern that matches `text` itself.
  static Pattern literal(const std::string& text, const std::string& where);
  /// Splits valid UTF-8 into [begin, end) of matches and gaps, in order; empty matches are skipped.
  struct Part {
    std::size_t begin = 0, end = 0;
    bool match = false;
  };
  [[nodiscard]] std::vector<Part> parts(std::string_view text) const;
  /// `text` with every match replaced.
  /// Ends early once the result is longer than `most` bytes.
  [[nodiscard]] std::string replace(std::string_view text, const std::string& by,
                                    std::size_t most) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

/// A piece of text on its way to the model. `continues`: it follows an invalid byte, so nothing may
/// be put before it. `start`: it begins the whole text.
struct TextPiece {
  std::string text;
  bool start = false, continues = false;
};

/// null, Sequence, NFC, NFD, NFKC, NFKD (utf8proc), Prepend, Replace.
class Normalizer {
 public:
  static Normalizer parse(const nlohmann::json& value, const std::string& where,
                          const std::string& pointer);
  /// `text` is valid UTF-8. InputError when it grows to more than 32 times its bytes.
  [[nodiscard]] std::string apply(std::string_view text, bool continues = false) const;
  [[nodiscard]] bool empty() const { return steps_.empty(); }

 private:
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kPrepend, kReplace };
  struct Step {
    Kind kind;
    std::string text;  // what is put in front or in place
    std::optional<Pattern> pattern;
  };
  void add(const nlohmann::json& value, const std::string& where, const std::string& pointer);
  std::string where_;
  std::vector<Step> steps_;
};

/// null, Sequence, Split, Digits, Metaspace, ByteLevel (last). ByteLevel's mapping of bytes to
/// characters is left to the model: pieces stay text.
class PreTokenizer {
 public:
  static PreTokenizer parse(const nlohmann::json& value, const std::string& where,
                            const std::string& pointer);
  [[nodiscard]] std::vector<TextPiece> apply(TextPiece piece) const;
  [[nodiscard]] bool byte_level() const { return byte_level_; }

 private:
  enum class Behaviour { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prefix { kNever, kFirst, kAlways };
  struct Step {
    std::optional<Pattern> pattern;  // none: no split
    Behaviour behaviour = Behaviour::kIsolated;
    bool invert = false;
    std::string space;   // Metaspace: what stands for ' '
    std::string prefix;  // put before a piece that does not begin with it
    Prefix when = Prefix::kNever;
  };
  void add(const nlohmann::json& value, const std::string& where, const std::string& pointer);
  static std::vector<std::pair<std::size_t, std::size_t>> cut(const Step& step,
                                                              std::string_view text);
  std::vector<Step> steps_;
  bool byte_level_ = false;
};

/// null, Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace. Where Hugging Face
/// would put U+FFFD for bytes that are not UTF-8, the bytes themselves come out.
class TokenDecoder {
 public:
  static TokenDecoder parse(const nlohmann::json& value, const std::string& where,
                            const std::string& pointer);
  /// Texts of the tokens as the vocabulary spells them → bytes. InputError when they grow to more
  /// than 32 times their size.
  [[nodiscard]] std::string apply(std::vector<std::string> tokens) const;
  /// Bytes of one token in the middle of a text: nothing is stripped.
  [[nodiscard]] std::string one(const std::string& token) const;
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  /// The decoder of a file that has none.
  void use_byte_level() { steps_ = {{Kind::kByteLevel, {}, {}, 0, 0}}; }

 private:
  enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace };
  struct Step {
    Kind kind;
    std::string from, to;
    std::size_t head = 0, tail = 0;  // Strip: at most so many; Metaspace: head = 1 drops the first
  };
  void add(const nlohmann::json& value, const std::string& where, const std::string& pointer);
  static void run(const Step& step, std::vector<std::string>& tokens, bool middle);
  void run_all(std::vector<std::string>& tokens, bool middle) const;
  std::string where_;
  std::vector<Step> steps_;
};

/// GPT-2's reversible byte → character table: printable Latin-1 bytes stand for themselves, the
/// other 68 for U+0100, U+0101, … in byte order. The character as UTF-8.
const std::string& byte_character(unsigned char byte);
/// Bytes that a token of a byte-level vocabulary stands for; one with other characters stands for
/// its own text.
std::string bytes_of_characters(const std::string& token);

/// Length in bytes of the White_Space character at `at`, 0 when there is none.
std::size_t space_length(std::string_view text, std::size_t at);

}  // namespace switchyard::model
