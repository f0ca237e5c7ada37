// SPDX-License-Identifier: Apache-2.0
#include "engine/model/tokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/json_input.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxId = (1U << 22U) - 1;

// The GPT-2 pattern. White space is Unicode's White_Space property spelt out: PCRE2's own \s also
// takes U+180E, which Hugging Face's engine does not.
constexpr const char* kSpace =
    R"(\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string gpt2_pattern() {
  return fmt::format(
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^{0}\p{{L}}\p{{N}}]+|[{0}]+(?![^{0}])|[{0}]+)",
      kSpace);
}

/// GPT-2's reversible byte → character table: printable Latin-1 bytes stand for themselves, the
/// other 68 for U+0100, U+0101, … in byte order.
std::array<std::uint32_t, 256> byte_characters() {
  std::array<std::uint32_t, 256> table{};
  std::uint32_t next = 256;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    table[b] = printable ? b : next++;
  }
  return table;
}

void append_utf8(std::string& out, std::uint32_t c) {  // c < 0x800 here
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else {
    out += static_cast<char>(0xc0U | (c >> 6U));
    out += static_cast<char>(0x80U | (c & 0x3fU));
  }
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
  const unsigned b = byte(0);
  if (b < 0x80) {
    return 1;
  }
  if (b >= 0xc2 && b <= 0xdf) {
    return tail(1) ? 2 : 0;
  }
  if (b >= 0xe0 && b <= 0xef) {
    const bool second = tail(1) && !(b == 0xe0 && byte(1) < 0xa0) && !(b == 0xed && byte(1) > 0x9f);
    return second && tail(2) ? 3 : 0;
  }
  if (b >= 0xf0 && b <= 0xf4) {
    const bool second = tail(1) && !(b == 0xf0 && byte(1) < 0x90) && !(b == 0xf4 && byte(1) > 0x8f);
    return second && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

namespace {

struct PatternDeleter {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};

struct Added {
  std::string content;
  std::uint32_t id = 0;
  bool special = false, normalized = false;
};

std::uint64_t pair_key(std::uint32_t a, std::uint32_t b) {
  return (static_cast<std::uint64_t>(a) << 32U) | b;
}

}  // namespace

struct Tokenizer::Impl {
  std::string where;
  std::vector<std::string> bytes_of;  // [id] decoded bytes, "" when unused
  std::vector<bool> special;          // [id]
  std::unordered_map<std::string, std::uint32_t> ids;
  struct Merge {
    std::uint32_t rank, id;
  };
  std::unordered_map<std::uint64_t, Merge> merges;
  std::array<std::int64_t, 256> byte_id{};  // −1: none
  std::vector<Added> added;                 // longest first
  std::unique_ptr<pcre2_code, PatternDeleter> pattern;

  void compile() {
    const auto text = gpt2_pattern();
    int error = 0;
    PCRE2_SIZE at = 0;
    pattern.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &at, nullptr));
    SWITCHYARD_ASSERT(pattern != nullptr, fmt::format("PCRE2 error {} at {}", error, at));
    pcre2_jit_compile(pattern.get(), PCRE2_JIT_COMPLETE);  // without JIT: the interpreter
  }

  void add_id(std::uint32_t id, const std::string& token, const std::string& bytes) {
    if (bytes_of.size() <= id) {
      bytes_of.resize(id + 1);
      special.resize(id + 1, false);
    }
    bytes_of[id] = bytes;
    ids[token] = id;
  }

  /// Merges one piece (raw bytes) by rank, lowest first, leftmost on ties.
  void bpe(std::string_view piece, std::vector<std::uint32_t>& out) const {
    struct Node {
      std::uint32_t id;
      std::int32_t previous, next;
    };
    std::vector<Node> nodes(piece.size());
    for (std::size_t i = 0; i < piece.size(); ++i) {
      const auto b = static_cast<unsigned char>(piece[i]);
      if (byte_id[b] < 0) {
        throw InputError(where, fmt::format("no token for byte 0x{:02x}", b));
      }
      nodes[i] = {static_cast<std::uint32_t>(byte_id[b]), static_cast<std::int32_t>(i) - 1,
                  i + 1 < piece.size() ? static_cast<std::int32_t>(i) + 1 : -1};
    }
    struct Candidate {
      std::uint32_t rank;
      std::int32_t left;
      std::uint32_t a, b;  // the ids it was made for: stale otherwise
      std::uint32_t id;
      bool operator>(const Candidate& o) const {
        return rank != o.rank ? rank > o.rank : left > o.left;
      }
    };
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto push = [&](std::int32_t left) {
      const auto& node = nodes[static_cast<std::size_t>(left)];
      if (node.next < 0) {
        return;
      }
      const std::uint32_t b = nodes[static_cast<std::size_t>(node.next)].id;
      const auto it = merges.find(pair_key(node.id, b));
      if (it != merges.end()) {
        queue.push({it->second.rank, left, node.id, b, it->second.id});
      }
    };
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      push(static_cast<std::int32_t>(i));
    }
    constexpr std::uint32_t kGone = UINT32_MAX;
    while (!queue.empty()) {
      const auto c = queue.top();
      queue.pop();
      auto& left = nodes[static_cast<std::size_t>(c.left)];
      if (left.id != c.a || left.next < 0 || nodes[static_cast<std::size_t>(left.next)].id != c.b) {
        continue;
      }
      auto& right = nodes[static_cast<std::size_t>(left.next)];
      left.id = c.id;
      left.next = right.next;
      right.id = kGone;
      if (left.next >= 0) {
        nodes[static_cast<std::size_t>(left.next)].previous = c.left;
        push(c.left);
      }
      if (left.previous >= 0) {
        push(left.previous);
      }
    }
    for (std::int32_t i = nodes.empty() ? -1 : 0; i >= 0;
         i = nodes[static_cast<std::size_t>(i)].next) {
      out.push_back(nodes[static_cast<std::size_t>(i)].id);
    }
  }

  /// Splits valid UTF-8 by the pattern.
  void encode_valid(std::string_view text, std::vector<std::uint32_t>& out) const {
    const std::unique_ptr<pcre2_match_data, MatchDeleter> match(
        pcre2_match_data_create_from_pattern(pattern.get(), nullptr));
    std::size_t at = 0;
    while (at < text.size()) {
      const int rc =
          pcre2_match(pattern.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                      PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, match.get(), nullptr);
      // Every character matches one alternative, so only PCRE2's own limits can end up here.
      if (rc < 0) {
        throw InputError(where, fmt::format("PCRE2 gave up on the text (error {})", rc));
      }
      const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
      bpe(text.substr(at, end - at), out);
      at = end;
    }
  }

  void encode_plain(std::string_view text, std::vector<std::uint32_t>& out) const {
    std::size_t begin = 0;
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t n = utf8_length(text, at);
      if (n > 0) {
        at += n;
        continue;
      }
      encode_valid(text.substr(begin, at - begin), out);
      bpe(text.substr(at, 1), out);
      begin = ++at;
    }
    encode_valid(text.substr(begin), out);
  }

  /// Cuts out added tokens of one class (Hugging Face does the not-normalized ones first), leftmost
  /// and longest, and hands the rest to `rest`.
  template <class Rest>
  void cut(std::string_view text, bool normalized, bool parse_special,
           std::vector<std::uint32_t>& out, const Rest& rest) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      const Added* hit = nullptr;
      for (const auto& a : added) {
        if (a.normalized == normalized && (parse_special || !a.special) &&
            text.compare(at, a.content.size(), a.content) == 0) {
          hit = &a;
          break;
        }
      }
      if (hit == nullptr) {
        ++at;
        continue;
      }
      rest(text.substr(begin, at - begin));
      out.push_back(hit->id);
      at += hit->content.size();
      begin = at;
    }
    rest(text.substr(begin));
  }
};

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

void check_pipeline(const JsonObject& top) {
  const std::string only_byte_level = "supported: ByteLevel";
  for (const char* key : {"normalizer", "truncation", "padding"}) {
    if (top.has(key)) {
      top.fail(key, fmt::format("unsupported: the tokenizer has a {}", key));
    }
  }
  if (!top.has("pre_tokenizer")) {
    top.fail("pre_tokenizer", "missing", only_byte_level);
  }
  for (const char* key : {"pre_tokenizer", "decoder", "post_processor"}) {
    if (!top.has(key)) {
      continue;
    }
    const JsonObject part = top.object(key);
    if (const auto type = part.text("type"); type != "ByteLevel") {
      part.fail("type", fmt::format("unsupported {} \"{}\"", key, type), only_byte_level);
    }
    if (std::string_view(key) == "pre_tokenizer") {
      if (part.flag_or("add_prefix_space", true)) {
        part.fail("add_prefix_space", "unsupported: true", "supported: false");
      }
      if (!part.flag_or("use_regex", true)) {
        part.fail("use_regex", "unsupported: false", "supported: true");
      }
    }
  }
}

void check_model(const JsonObject& m) {
  if (const auto type = m.text_or("type", "BPE"); type != "BPE") {
    m.fail("type", fmt::format("unsupported tokenizer model \"{}\"", type),
           "supported: BPE (byte level)");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (m.has(key) && m.raw(key) != "") {
      m.fail(key, "unsupported");
    }
  }
  for (const char* key : {"byte_fallback", "ignore_merges"}) {
    if (m.flag_or(key, false)) {
      m.fail(key, "unsupported: true",
             std::string_view(key) == "byte_fallback"
                 ? "this looks like a SentencePiece model; supported: byte-level BPE"
                 : "");
    }
  }
}

std::pair<std::string, std::string> read_merge(const JsonObject& m, const nlohmann::json& merge,
                                               std::size_t row) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const auto space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  throw InputError(fmt::format("{}: /model/merges/{}", m.where(), row),
                   "expected \"left right\" or [left, right]");
}

}  // namespace

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  const auto parsed = parse_json(json, where);
  const JsonObject top(parsed, where, "");
  check_pipeline(top);
  const JsonObject m = top.object("model");
  check_model(m);

  Tokenizer t;
  Impl& s = *t.impl_;
  s.where = where;
  s.compile();

  const auto characters = byte_characters();
  std::unordered_map<std::uint32_t, unsigned char> byte_of;
  for (std::size_t b = 0; b < 256; ++b) {
    byte_of[characters[b]] = static_cast<unsigned char>(b);
  }
  // Bytes a vocabulary entry stands for; an entry with other characters stands for its own text.
  const auto decode_entry = [&](const std::string& token) {
    std::string bytes;
    for (std::size_t i = 0; i < token.size();) {
      const auto b = static_cast<unsigned char>(token[i]);
      std::uint32_t c = b;
      std::size_t n = 1;
      if (b >= 0x80) {
        if (b >= 0xe0 || i + 1 >= token.size()) {
          return token;
        }
        c = ((b & 0x1fU) << 6U) | (static_cast<unsigned char>(token[i + 1]) & 0x3fU);
        n = 2;
      }
      const auto it = byte_of.find(c);
      if (it == byte_of.end()) {
        return token;
      }
      bytes += static_cast<char>(it->second);
      i += n;
    }
    return bytes;
  };

  const JsonObject vocab = m.object("vocab");
  std::vector<std::string> owner;
  for (const auto& item : m.raw("vocab").items()) {
    const auto id = static_cast<std::uint32_t>(vocab.count(item.key(), 0, kMaxId));
    if (owner.size() <= id) {
      owner.resize(id + 1);
    }
    if (!owner[id].empty()) {
      vocab.fail(item.key(), fmt::format("id {} is also \"{}\"", id, owner[id]));
    }
    owner[id] = item.key().empty() ? std::string(" ") : item.key();
    s.add_id(id, item.key(), decode_entry(item.key()));
  }
  for (std::size_t b = 0; b < 256; ++b) {
    std::string key;
    append_utf8(key, characters[b]);
    const auto it = s.ids.find(key);
    s.byte_id[b] = it == s.ids.end() ? -1 : static_cast<std::int64_t>(it->second);
    if (it == s.ids.end() && m.has("unk_token")) {
      m.fail("unk_token", fmt::format("unsupported: byte 0x{:02x} has no token", b));
    }
  }

  const auto& merges = m.raw("merges");
  if (!merges.is_array()) {
    m.fail("merges", "expected a list");
  }
  for (std::size_t row = 0; row < merges.size(); ++row) {
    const auto [left, right] = read_merge(m, merges[row], row);
    const auto a = s.ids.find(left);
    const auto b = s.ids.find(right);
    const auto ab = s.ids.find(left + right);
    if (a == s.ids.end() || b == s.ids.end() || ab == s.ids.end()) {
      throw InputError(
          fmt::format("{}: /model/merges/{}", where, row),
          fmt::format("\"{}\" is not in the vocabulary", a == s.ids.end()   ? left
                                                         : b == s.ids.end() ? right
                                                                            : left + right));
    }
    const bool fresh = s.merges
                           .emplace(pair_key(a->second, b->second),
                                    Impl::Merge{static_cast<std::uint32_t>(row), ab->second})
                           .second;
    if (!fresh) {
      throw InputError(fmt::format("{}: /model/merges/{}", where, row), "duplicate merge");
    }
  }

  if (top.has("added_tokens")) {
    const auto& list = top.raw("added_tokens");
    if (!list.is_array()) {
      top.fail("added_tokens", "expected a list");
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const JsonObject a(list[i], where, fmt::format("/added_tokens/{}", i));
      Added added;
      added.content = a.text("content");
      added.id = static_cast<std::uint32_t>(a.count("id", 0, kMaxId));
      added.special = a.flag_or("special", false);
      added.normalized = a.flag_or("normalized", !added.special);
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (a.flag_or(key, false)) {
          a.fail(key, "unsupported: true");
        }
      }
      if (added.content.empty()) {
        a.fail("content", "empty");
      }
      if (const auto it = s.ids.find(added.content); it != s.ids.end() && it->second != added.id) {
        a.fail("id", fmt::format("{}, but the vocabulary has {} for \"{}\"", added.id, it->second,
                                 added.content));
      }
      if (added.id < owner.size() && !owner[added.id].empty() && owner[added.id] != added.content) {
        a.fail("id", fmt::format("{} is also \"{}\"", added.id, owner[added.id]));
      }
      if (owner.size() <= added.id) {
        owner.resize(added.id + 1);
      }
      owner[added.id] = added.content;
      s.add_id(added.id, added.content, added.content);
      s.special[added.id] = added.special;
      s.added.push_back(std::move(added));
    }
    std::stable_sort(s.added.begin(), s.added.end(), [](const Added& a, const Added& b) {
      return a.content.size() > b.content.size();
    });
  }
  return t;
}

Tokenizer Tokenizer::load(const fs::path& path) {
  std::error_code ignored;
  const fs::path file = fs::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  if (fs::is_directory(path, ignored) && !fs::exists(file, ignored)) {
    const bool sentencepiece = fs::exists(path / "tokenizer.model", ignored);
    throw InputError(path.string(), "no tokenizer.json",
                     sentencepiece ? "tokenizer.model (SentencePiece) is unsupported" : "");
  }
  if (const auto size = fs::file_size(file, ignored); !ignored && size > std::uintmax_t{1} << 27U) {
    throw InputError(file.string(), fmt::format("{} bytes is too large for a tokenizer", size));
  }
  return parse(read_file(file), file.string());
}

std::vector<std::uint32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<std::uint32_t> out;
  if (text.size() > std::size_t{1} << 30U) {
    throw InputError("text", fmt::format("{} bytes is too long to encode at once", text.size()));
  }
  const Impl& s = *impl_;
  s.cut(text, false, parse_special, out, [&](std::string_view raw) {
    s.cut(raw, true, parse_special, out,
          [&](std::string_view plain) { s.encode_plain(plain, out); });
  });
  return out;
}

std::string Tokenizer::decode(std::span<const std::uint32_t> ids, bool skip_special) const {
  std::string out;
  for (const auto id : ids) {
    if (id >= impl_->bytes_of.size()) {
      throw InputError(impl_->where, fmt::format("id {} is not below the vocabulary size {}", id,
                                                 impl_->bytes_of.size()));
    }
    if (!(skip_special && impl_->special[id])) {
      out += impl_->bytes_of[id];
    }
  }
  return out;
}

std::size_t Tokenizer::vocab_size() const { return impl_->bytes_of.size(); }

std::optional<std::uint32_t> Tokenizer::token_id(std::string_view token) const {
  const auto it = impl_->ids.find(std::string(token));
  return it == impl_->ids.end() ? std::nullopt : std::optional(it->second);
}

std::string Tokenizer::token_bytes(std::uint32_t id) const {
  return id < impl_->bytes_of.size() ? impl_->bytes_of[id] : std::string();
}

}  // namespace switchyard::model
