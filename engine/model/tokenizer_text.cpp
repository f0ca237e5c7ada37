// SPDX-License-Identifier: Apache-2.0
#include "engine/model/tokenizer_text.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <unordered_map>

#include "engine/base/error.hpp"
#include "engine/model/tokenizer.hpp"

namespace switchyard::model {
namespace {

// Unicode's White_Space property spelt out: PCRE2's own \s also takes U+180E, which Hugging Face's
// engine does not. Then its complement, for use inside a set.
constexpr const char* kSpace =
    R"(\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNotSpace =
    R"(\x{00}-\x{08}\x{0e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";
constexpr std::size_t kMostGrowth = 32;  // U+FDFA grows 11 times under NFKC
constexpr const char* kWord = R"(\p{L}\p{M}\p{N}\p{Pc})";
// ByteLevel's own split.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw InputError(where, "unsupported in a pattern: " + what);
}

/// Oniguruma (Ruby syntax, as Hugging Face uses it) → PCRE2.
std::string to_pcre2(const std::string& p, const std::string& where) {
  std::string out;
  bool set = false;
  bool interval = false;  // the last thing was {n,m}
  for (std::size_t i = 0; i < p.size(); ++i) {
    const char c = p[i];
    const char next = i + 1 < p.size() ? p[i + 1] : '\0';
    if (interval && c == '+') {
      refuse(where, "a + after {n,m}");
    }
    interval = false;
    if (c == '\\') {
      ++i;
      switch (next) {
        case 's':
          out += set ? std::string(kSpace) : fmt::format("[{}]", kSpace);
          continue;
        case 'S':
          out += set ? std::string(kNotSpace) : fmt::format("[^{}]", kSpace);
          continue;
        case 'w':
          out += set ? std::string(kWord) : fmt::format("[{}]", kWord);
          continue;
        case 'W':
          if (set) {
            refuse(where, "\\W in a set");
          }
          out += fmt::format("[^{}]", kWord);
          continue;
        case 'p':
        case 'P':
        case 'x': {
          const std::size_t close = i + 1 < p.size() && p[i + 1] == '{' ? p.find('}', i) : i;
          if (close == std::string::npos) {
            refuse(where, "an open brace");
          }
          out += p.substr(i - 1, close - i + 2);
          i = close;
          continue;
        }
        default:
          break;
      }
      const bool letter = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') ||
                          (next >= '0' && next <= '9') || next == '\0';
      if (letter && std::string_view("dDnrtfaeAzZ").find(next) == std::string_view::npos) {
        refuse(where, next == '\0' ? "a final backslash" : fmt::format("\\{}", next));
      }
      out += {c, next};
      continue;
    }
    if (set) {
      if (c == '[') {
        refuse(where, "a set within a set");
      }
      if (c == '&' && next == '&') {
        refuse(where, "&& in a set");
      }
      set = c != ']';
      out += c;
      continue;
    }
    if (c == '[') {
      set = true;
      out += c;
      if (next == '^') {
        out += next;
        ++i;
      }
      continue;
    }
    if (c == '(' && next == '?') {
      for (std::size_t k = i + 2; k < p.size() && p[k] >= 'a' && p[k] <= 'z'; ++k) {
        if (p[k] != 'i') {
          refuse(where, fmt::format("the option (?{})", p[k]));
        }
      }
    }
    if (c == '{') {
      const auto close = p.find('}', i);
      interval = close != std::string::npos;
      out += p.substr(i, close == std::string::npos ? close : close - i + 1);
      i = close == std::string::npos ? p.size() : close;
      continue;
    }
    out += c;
  }
  return out;
}

std::string type_of(const JsonObject& o) { return o.text("type"); }

const nlohmann::json& list_of(const JsonObject& o, const char* key) {
  const auto& list = o.raw(key);
  if (!list.is_array()) {
    o.fail(key, "expected a list");
  }
  return list;
}

/// {"String": …} or {"Regex": …} of `key`.
Pattern pattern_of(const JsonObject& o, const char* key, const std::string& pointer) {
  const JsonObject p = o.object(key);
  const std::string where = fmt::format("{}: {}/{}", o.where(), pointer, key);
  p.only({"String", "Regex"});
  if (p.has("Regex")) {
    return {p.text("Regex"), where};
  }
  return Pattern::literal(p.text("String"), where);
}

struct CodeDeleter {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};

bool ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string unicode_form(std::string_view text, unsigned options) {
  if (ascii(text)) {
    return std::string(text);
  }
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &out,
      static_cast<utf8proc_option_t>(options | static_cast<unsigned>(UTF8PROC_STABLE)));
  if (n == UTF8PROC_ERROR_NOMEM) {
    throw std::bad_alloc();
  }
  SWITCHYARD_ASSERT(n >= 0, utf8proc_errmsg(n));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  return {reinterpret_cast<const char*>(out), static_cast<std::size_t>(n)};
}

std::string replace_all(std::string_view text, const std::string& from, const std::string& to) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t hit = from.empty() ? std::string_view::npos : text.find(from, at);
    out += text.substr(at, hit - at);
    if (hit == std::string_view::npos) {
      return out;
    }
    out += to;
    at = hit + from.size();
  }
}

}  // namespace

struct Pattern::Code {
  std::string where;
  std::unique_ptr<pcre2_code, CodeDeleter> code;
};

Pattern::Pattern(const std::string& oniguruma, const std::string& where) {
  const std::string text = to_pcre2(oniguruma, where);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto code = std::make_shared<Code>();
  code->where = where;
  // Ruby syntax: ^ and $ are those of a line.
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, nullptr));
  if (code->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    throw InputError(where, fmt::format("unsupported pattern \"{}\": {}", oniguruma,
                                        reinterpret_cast<const char*>(message.data())));
  }
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);  // without JIT: the interpreter
  code_ = std::move(code);
}

Pattern Pattern::literal(const std::string& text, const std::string& where) {
  std::string escaped;
  for (const char c : text) {
    const auto b = static_cast<unsigned char>(c);
    const bool plain =
        b >= 0x80 || (b >= '0' && b <= '9') || (b >= 'A' && b <= 'Z') || (b >= 'a' && b <= 'z');
    escaped += plain ? std::string(1, c) : fmt::format("\\x{{{:02x}}}", b);
  }
  return {escaped, where};
}

std::vector<Pattern::Part> Pattern::parts(std::string_view text) const {
  std::vector<Part> out;
  const std::unique_ptr<pcre2_match_data, MatchDeleter> match(
      pcre2_match_data_create_from_pattern(code_->code.get(), nullptr));
  std::size_t done = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const int rc = pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                               text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (rc < 0) {  // PCRE2's own limits
      throw InputError(code_->where, fmt::format("PCRE2 gave up on the text (error {})", rc));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[1] <= range[0]) {
      at = range[0] < text.size() ? range[0] + utf8_length(text, range[0]) : text.size();
      continue;
    }
    if (range[0] > done) {
      out.push_back({done, range[0], false});
    }
    out.push_back({range[0], range[1], true});
    done = at = range[1];
  }
  if (done < text.size()) {
    out.push_back({done, text.size(), false});
  }
  return out;
}

std::string Pattern::replace(std::string_view text, const std::string& by, std::size_t most) const {
  std::string out;
  for (const Part& p : parts(text)) {
    if (out.size() > most) {
      break;
    }
    out += p.match ? std::string_view(by) : text.substr(p.begin, p.end - p.begin);
  }
  return out;
}

// --- Normalizer ---

Normalizer Normalizer::parse(const nlohmann::json& value, const std::string& where,
                             const std::string& pointer) {
  Normalizer out;
  out.where_ = where + ": " + pointer;
  if (!value.is_null()) {
    out.add(value, where, pointer);
  }
  return out;
}

void Normalizer::add(const nlohmann::json& value, const std::string& where,
                     const std::string& pointer) {
  static const std::unordered_map<std::string, Kind> kForms{
      {"NFC", Kind::kNfc}, {"NFD", Kind::kNfd}, {"NFKC", Kind::kNfkc}, {"NFKD", Kind::kNfkd}};
  const JsonObject o(value, where, pointer);
  const std::string type = type_of(o);
  if (type == "Sequence") {
    const auto& list = list_of(o, "normalizers");
    for (std::size_t i = 0; i < list.size(); ++i) {
      add(list[i], where, fmt::format("{}/normalizers/{}", pointer, i));
    }
  } else if (const auto form = kForms.find(type); form != kForms.end()) {
    steps_.push_back({form->second, {}, {}});
  } else if (type == "Prepend") {
    steps_.push_back({Kind::kPrepend, o.text("prepend"), {}});
  } else if (type == "Replace") {
    steps_.push_back({Kind::kReplace, o.text("content"), pattern_of(o, "pattern", pointer)});
  } else {
    o.fail("type", fmt::format("unsupported normalizer \"{}\"", type),
           "supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
  }
}

std::string Normalizer::apply(std::string_view text, bool continues) const {
  std::string out(text);
  // A chain of Replace can grow without end, and one step by the length of its content.
  const std::size_t most = kMostGrowth * text.size() + 4096;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kNfc:
        out = unicode_form(out, UTF8PROC_COMPOSE);
        break;
      case Kind::kNfd:
        out = unicode_form(out, UTF8PROC_DECOMPOSE);
        break;
      case Kind::kNfkc:
        out = unicode_form(
            out, static_cast<unsigned>(UTF8PROC_COMPOSE) | static_cast<unsigned>(UTF8PROC_COMPAT));
        break;
      case Kind::kNfkd:
        out = unicode_form(out, static_cast<unsigned>(UTF8PROC_DECOMPOSE) |
                                    static_cast<unsigned>(UTF8PROC_COMPAT));
        break;
      case Kind::kPrepend:
        if (!out.empty() && !continues) {
          out.insert(0, step.text);
        }
        break;
      case Kind::kReplace:
        out = step.pattern->replace(out, step.text, most);
        break;
    }
    if (out.size() > most) {
      throw InputError(where_,
                       fmt::format("{} bytes of text grow to more than {}", text.size(), most),
                       fmt::format("supported: at most {} times", kMostGrowth));
    }
  }
  return out;
}

// --- Pre-tokenizer ---

PreTokenizer PreTokenizer::parse(const nlohmann::json& value, const std::string& where,
                                 const std::string& pointer) {
  PreTokenizer out;
  if (!value.is_null()) {
    out.add(value, where, pointer);
  }
  return out;
}

void PreTokenizer::add(const nlohmann::json& value, const std::string& where,
                       const std::string& pointer) {
  static const std::unordered_map<std::string, Behaviour> kBehaviours{
      {"Removed", Behaviour::kRemoved},
      {"Isolated", Behaviour::kIsolated},
      {"MergedWithPrevious", Behaviour::kMergedWithPrevious},
      {"MergedWithNext", Behaviour::kMergedWithNext},
      {"Contiguous", Behaviour::kContiguous}};
  const JsonObject o(value, where, pointer);
  const std::string at = fmt::format("{}: {}", where, pointer);
  const std::string type = type_of(o);
  if (type == "Sequence") {
    const auto& list = list_of(o, "pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i) {
      add(list[i], where, fmt::format("{}/pretokenizers/{}", pointer, i));
    }
    return;
  }
  if (byte_level_) {
    o.fail("type", fmt::format("unsupported: {} after ByteLevel", type));
  }
  Step step;
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (o.flag_or("add_prefix_space", true)) {
      step.prefix = " ";
      step.when = Prefix::kAlways;
    }
    if (o.flag_or("use_regex", true)) {
      step.pattern = Pattern(kGpt2, at);
    }
  } else if (type == "Split") {
    step.pattern = pattern_of(o, "pattern", pointer);
    const auto behaviour = kBehaviours.find(o.text("behavior"));
    if (behaviour == kBehaviours.end()) {
      o.fail("behavior", fmt::format("unsupported behavior \"{}\"", o.text("behavior")));
    }
    step.behaviour = behaviour->second;
    step.invert = o.flag_or("invert", false);
  } else if (type == "Digits") {
    step.pattern = Pattern(R"(\p{N})", at);
    step.behaviour =
        o.flag_or("individual_digits", false) ? Behaviour::kIsolated : Behaviour::kContiguous;
  } else if (type == "Metaspace") {
    step.space = step.prefix = o.text("replacement");
    if (utf8_length(step.space, 0) != step.space.size() || step.space.empty()) {
      o.fail("replacement", "expected one character");
    }
    // Older files have add_prefix_space in place of prepend_scheme.
    const std::string scheme =
        o.text_or("prepend_scheme", o.flag_or("add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      o.fail("prepend_scheme", fmt::format("unknown \"{}\"", scheme), "always, first or never");
    }
    step.when = scheme == "always"  ? Prefix::kAlways
                : scheme == "first" ? Prefix::kFirst
                                    : Prefix::kNever;
    if (o.flag_or("split", true)) {
      step.pattern = Pattern::literal(step.space, at);
      step.behaviour = Behaviour::kMergedWithNext;
    }
  } else {
    o.fail("type", fmt::format("unsupported pre_tokenizer \"{}\"", type),
           "supported: ByteLevel, Metaspace, Split, Digits, Sequence");
  }
  steps_.push_back(std::move(step));
}

std::vector<std::pair<std::size_t, std::size_t>> PreTokenizer::cut(const Step& step,
                                                                   std::string_view text) {
  std::vector<Pattern::Part> parts = step.pattern->parts(text);
  if (step.invert) {
    for (Pattern::Part& p : parts) {
      p.match = !p.match;
    }
  }
  std::vector<std::pair<std::size_t, std::size_t>> out;
  if (step.behaviour == Behaviour::kMergedWithNext) {
    // From the right: a match takes what stands after it, unless that is a match's piece.
    bool next_match = false;
    for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
      if (p->match && !next_match && !out.empty()) {
        out.back().first = p->begin;
      } else {
        out.emplace_back(p->begin, p->end);
      }
      next_match = p->match;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }
  bool before = false;
  bool first = true;
  for (const Pattern::Part& p : parts) {
    const bool join =
        !first && ((step.behaviour == Behaviour::kContiguous && p.match == before) ||
                   (step.behaviour == Behaviour::kMergedWithPrevious && p.match && !before));
    if (join) {
      out.back().second = p.end;
    } else if (!(step.behaviour == Behaviour::kRemoved && p.match)) {
      out.emplace_back(p.begin, p.end);
    }
    before = p.match;
    first = false;
  }
  return out;
}

std::vector<TextPiece> PreTokenizer::apply(TextPiece piece) const {
  std::vector<TextPiece> now;
  if (!piece.text.empty()) {
    now.push_back(std::move(piece));
  }
  for (const Step& step : steps_) {
    std::vector<TextPiece> then;
    for (TextPiece& p : now) {
      if (!step.space.empty()) {
        p.text = replace_all(p.text, " ", step.space);
      }
      if (!p.text.starts_with(step.prefix) && !p.continues &&
          (step.when == Prefix::kAlways || (step.when == Prefix::kFirst && p.start))) {
        p.text.insert(0, step.prefix);
      }
      if (!step.pattern) {
        then.push_back(std::move(p));
        continue;
      }
      for (const auto& [begin, end] : cut(step, p.text)) {
        then.push_back(
            {p.text.substr(begin, end - begin), p.start && begin == 0, p.continues && begin == 0});
      }
    }
    now = std::move(then);
  }
  return now;
}

// --- Decoder ---

TokenDecoder TokenDecoder::parse(const nlohmann::json& value, const std::string& where,
                                 const std::string& pointer) {
  TokenDecoder out;
  out.where_ = where + ": " + pointer;
  if (!value.is_null()) {
    out.add(value, where, pointer);
  }
  return out;
}

void TokenDecoder::add(const nlohmann::json& value, const std::string& where,
                       const std::string& pointer) {
  const JsonObject o(value, where, pointer);
  const std::string type = type_of(o);
  if (type == "Sequence") {
    const auto& list = list_of(o, "decoders");
    for (std::size_t i = 0; i < list.size(); ++i) {
      add(list[i], where, fmt::format("{}/decoders/{}", pointer, i));
    }
  } else if (type == "ByteLevel") {
    steps_.push_back({Kind::kByteLevel, {}, {}, 0, 0});
  } else if (type == "ByteFallback") {
    steps_.push_back({Kind::kByteFallback, {}, {}, 0, 0});
  } else if (type == "Fuse") {
    steps_.push_back({Kind::kFuse, {}, {}, 0, 0});
  } else if (type == "Replace") {
    const JsonObject pattern = o.object("pattern");
    if (!pattern.has("String")) {
      o.fail("pattern", "unsupported: a decoder's Replace by a pattern", "supported: String");
    }
    steps_.push_back({Kind::kReplace, pattern.text("String"), o.text("content"), 0, 0});
  } else if (type == "Strip") {
    steps_.push_back({Kind::kStrip,
                      o.text("content"),
                      {},
                      static_cast<std::size_t>(o.count("start", 0, 1U << 20U)),
                      static_cast<std::size_t>(o.count("stop", 0, 1U << 20U))});
  } else if (type == "Metaspace") {
    const std::string scheme =
        o.text_or("prepend_scheme", o.flag_or("add_prefix_space", true) ? "always" : "never");
    steps_.push_back(
        {Kind::kMetaspace, o.text("replacement"), " ", scheme == "never" ? 0U : 1U, 0});
  } else {
    o.fail("type", fmt::format("unsupported decoder \"{}\"", type),
           "supported: ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence");
  }
}

void TokenDecoder::run(const Step& step, std::vector<std::string>& tokens, bool middle) {
  switch (step.kind) {
    case Kind::kByteLevel: {
      std::string all;
      for (const std::string& t : tokens) {
        all += bytes_of_characters(t);
      }
      tokens.assign(1, std::move(all));
      return;
    }
    case Kind::kReplace:
      for (std::string& t : tokens) {
        t = replace_all(t, step.from, step.to);
      }
      return;
    case Kind::kByteFallback:
      for (std::string& t : tokens) {
        if (t.size() == 6 && t.starts_with("<0x") && t.back() == '>') {
          const auto digit = [](char c) {
            return c >= '0' && c <= '9'   ? c - '0'
                   : c >= 'A' && c <= 'F' ? c - 'A' + 10
                   : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                          : -1;
          };
          const int high = digit(t[3]);
          const int low = digit(t[4]);
          if (high >= 0 && low >= 0) {
            t.assign(1, static_cast<char>(high * 16 + low));
          }
        }
      }
      return;
    case Kind::kFuse: {
      std::string all;
      for (const std::string& t : tokens) {
        all += t;
      }
      tokens.assign(1, std::move(all));
      return;
    }
    case Kind::kStrip:
      for (std::string& t : tokens) {
        if (middle || step.from.empty()) {
          continue;
        }
        for (std::size_t i = 0; i < step.head && t.starts_with(step.from); ++i) {
          t.erase(0, step.from.size());
        }
        for (std::size_t i = 0; i < step.tail && t.ends_with(step.from); ++i) {
          t.resize(t.size() - step.from.size());
        }
      }
      return;
    case Kind::kMetaspace:
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const bool drop = i == 0 && step.head > 0 && !middle;
        tokens[i] = replace_all(tokens[i], step.from, drop ? std::string() : step.to);
      }
      return;
  }
}

void TokenDecoder::run_all(std::vector<std::string>& tokens, bool middle) const {
  const auto bytes = [&] {
    std::size_t n = 0;
    for (const std::string& t : tokens) {
      n += t.size();
    }
    return n;
  };
  const std::size_t given = bytes();
  for (const Step& step : steps_) {
    run(step, tokens, middle);
    if (const std::size_t now = bytes(); now > kMostGrowth * given + 4096) {
      throw InputError(where_, fmt::format("{} bytes of tokens grow to {}", given, now),
                       fmt::format("supported: at most {} times", kMostGrowth));
    }
  }
}

std::string TokenDecoder::apply(std::vector<std::string> tokens) const {
  run_all(tokens, false);
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (steps_.empty() && i > 0) {
      out += ' ';
    }
    out += tokens[i];
  }
  return out;
}

std::string TokenDecoder::one(const std::string& token) const {
  std::vector<std::string> tokens{token};
  run_all(tokens, true);
  return tokens.front();
}

const std::string& byte_character(unsigned char byte) {
  static const std::array<std::string, 256> table = [] {
    std::array<std::string, 256> out;
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      const std::uint32_t c = printable ? b : next++;
      if (c < 0x80) {
        out[b] = static_cast<char>(c);
      } else {
        out[b] = {static_cast<char>(0xc0U | (c >> 6U)), static_cast<char>(0x80U | (c & 0x3fU))};
      }
    }
    return out;
  }();
  return table[byte];
}

std::string bytes_of_characters(const std::string& token) {
  static const std::unordered_map<std::string_view, char> bytes = [] {
    std::unordered_map<std::string_view, char> out;
    for (unsigned b = 0; b < 256; ++b) {
      out[byte_character(static_cast<unsigned char>(b))] = static_cast<char>(b);
    }
    return out;
  }();
  std::string out;
  for (std::size_t i = 0; i < token.size();) {
    const std::size_t n = utf8_length(token, i);
    const auto it = bytes.find(std::string_view(token).substr(i, std::max<std::size_t>(n, 1)));
    if (it == bytes.end()) {
      return token;
    }
    out += it->second;
    i += n;
  }
  return out;
}

std::size_t space_length(std::string_view text, std::size_t at) {
  static const std::vector<std::string> kSpaces{"\t",           "\n",           "\v",
                                                "\f",           "\r",           " ",
                                                "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
                                                "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82",
                                                "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85",
                                                "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88",
                                                "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
                                                "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F",
                                                "\xE3\x80\x80"};
  for (const std::string& s : kSpaces) {
    if (text.substr(at).starts_with(s)) {
      return s.size();
    }
  }
  return 0;
}

}  // namespace switchyard::model
