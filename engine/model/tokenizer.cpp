// SPDX-License-Identifier: Apache-2.0
#include "engine/model/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/json_input.hpp"
#include "engine/model/tokenizer_text.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxId = (1U << 22U) - 1;

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

struct Added {
  std::string content;
  std::uint32_t id = 0;
  bool special = false, normalized = false, lstrip = false, rstrip = false;
  std::string matched;  // the content as the text shows it: normalized when `normalized`
};

std::uint64_t pair_key(std::uint32_t a, std::uint32_t b) {
  return (static_cast<std::uint64_t>(a) << 32U) | b;
}

}  // namespace

struct Tokenizer::Impl {
  std::string where;
  std::vector<std::string> token_of;  // [id] as the vocabulary spells it, "" when unused
  std::vector<std::string> bytes_of;  // [id] decoded bytes, "" when unused
  std::vector<bool> special;          // [id]
  std::unordered_map<std::string, std::uint32_t> vocab;  // the model's
  std::unordered_map<std::string, std::uint32_t> ids;    // with added tokens
  struct Merge {
    std::uint32_t rank, id;
  };
  std::unordered_map<std::uint64_t, Merge> merges;
  std::array<std::int64_t, 256> byte_id{};      // −1: none; byte level: of the byte's character
  std::array<std::int64_t, 256> fallback_id{};  // of <0x00> … <0xFF>
  bool fallback = false;                        // all 256 are there and byte_fallback is on
  bool fuse_unknown = false, ignore_merges = false;
  std::optional<std::uint32_t> unknown;
  Normalizer normalizer;
  PreTokenizer pre;
  TokenDecoder decoder;
  std::vector<Added> added;                                // longest first
  std::array<std::vector<const Added*>, 256> added_at[2];  // [normalized][first byte]
  std::vector<std::uint32_t> before, after;                // of the template

  void add_id(std::uint32_t id, const std::string& token) {
    if (bytes_of.size() <= id) {
      token_of.resize(id + 1);
      bytes_of.resize(id + 1);
      special.resize(id + 1, false);
    }
    token_of[id] = token;
    ids[token] = id;
  }

  /// What a piece is made of before any merge: bytes' characters (byte level), or characters, bytes
  /// of characters that have no token, the unknown token.
  void symbols(std::string_view piece, std::vector<std::uint32_t>& out) const {
    bool open = false;  // the last symbol is an unknown that the next one may join
    for (std::size_t i = 0; i < piece.size();) {
      const auto b = static_cast<unsigned char>(piece[i]);
      std::size_t n = 1;
      std::int64_t id = -1;
      if (pre.byte_level()) {
        id = byte_id[b];
      } else {
        n = std::max<std::size_t>(utf8_length(piece, i), 1);
        const auto it = vocab.find(std::string(piece.substr(i, n)));
        id = it == vocab.end() ? -1 : static_cast<std::int64_t>(it->second);
      }
      if (id >= 0) {
        out.push_back(static_cast<std::uint32_t>(id));
        open = false;
      } else if (fallback && !pre.byte_level()) {
        for (std::size_t k = i; k < i + n; ++k) {
          out.push_back(
              static_cast<std::uint32_t>(fallback_id[static_cast<unsigned char>(piece[k])]));
        }
        open = false;
      } else if (unknown) {
        if (!(open && fuse_unknown)) {
          out.push_back(*unknown);
        }
        open = true;
      } else if (n == 1) {
        throw InputError(where, fmt::format("no token for byte 0x{:02x}", b));
      } else {
        throw InputError(where, fmt::format("no token for \"{}\"", piece.substr(i, n)));
      }
      i += n;
    }
  }

  /// Merges one piece by rank, lowest first, leftmost on ties.
  void bpe(std::string_view piece, std::vector<std::uint32_t>& out) const {
    struct Node {
      std::uint32_t id;
      std::int32_t previous, next;
    };
    if (ignore_merges) {
      std::string whole;
      if (pre.byte_level()) {
        for (const char c : piece) {
          whole += byte_character(static_cast<unsigned char>(c));
        }
      } else {
        whole = piece;
      }
      if (const auto it = vocab.find(whole); it != vocab.end()) {
        out.push_back(it->second);
        return;
      }
    }
    std::vector<std::uint32_t> start;
    start.reserve(piece.size());
    symbols(piece, start);
    std::vector<Node> nodes(start.size());
    for (std::size_t i = 0; i < start.size(); ++i) {
      nodes[i] = {start[i], static_cast<std::int32_t>(i) - 1,
                  i + 1 < start.size() ? static_cast<std::int32_t>(i) + 1 : -1};
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

  /// Text without added tokens that match as they stand. Each byte that is no UTF-8 is taken by
  /// itself: its byte token, else the unknown token.
  void encode_plain(std::string_view text, bool start, bool parse_special,
                    std::vector<std::uint32_t>& out) const {
    bool continues = false;
    const auto run = [&](std::string_view valid) {
      if (valid.empty()) {
        return;
      }
      const std::string normal = normalizer.apply(valid, continues);
      cut(normal, true, parse_special, out, [&](std::string_view rest, std::size_t at) {
        if (rest.empty()) {
          return;
        }
        for (const TextPiece& p :
             pre.apply({std::string(rest), start && at == 0, continues && at == 0})) {
          bpe(p.text, out);
        }
      });
    };
    std::size_t begin = 0;
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t n = utf8_length(text, at);
      if (n > 0) {
        at += n;
        continue;
      }
      run(text.substr(begin, at - begin));
      bpe(text.substr(at, 1), out);
      begin = ++at;
      start = false;
      continues = true;
    }
    run(text.substr(begin));
  }

  /// Cuts out added tokens of one class (Hugging Face does the not-normalized ones first), leftmost
  /// and longest, and hands the rest with its place to `rest`.
  template <class Rest>
  void cut(std::string_view text, bool normalized, bool parse_special,
           std::vector<std::uint32_t>& out, const Rest& rest) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      const Added* hit = nullptr;
      for (const Added* a : added_at[normalized ? 1 : 0][static_cast<unsigned char>(text[at])]) {
        if ((parse_special || !a->special) && text.substr(at).starts_with(a->matched)) {
          hit = a;
          break;
        }
      }
      if (hit == nullptr) {
        ++at;
        continue;
      }
      std::size_t from = at;
      if (hit->lstrip) {
        from = begin;  // one past the last character that is no space
        for (std::size_t i = begin; i < at;) {
          const std::size_t space = space_length(text, i);
          i += space > 0 ? space : 1;
          from = space > 0 ? from : i;
        }
      }
      rest(text.substr(begin, from - begin), begin);
      out.push_back(hit->id);
      at += hit->matched.size();
      while (hit->rstrip && at < text.size() && space_length(text, at) > 0) {
        at += space_length(text, at);
      }
      begin = at;
    }
    rest(text.substr(begin), begin);
  }
};

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

/// Ids that TemplateProcessing puts before and after one text.
void read_template(const JsonObject& part, const std::string& pointer,
                   std::vector<std::uint32_t>& before, std::vector<std::uint32_t>& after) {
  const auto& list = part.raw("single");
  if (!list.is_array()) {
    part.fail("single", "expected a list");
  }
  bool text = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonObject item(list[i], part.where(), fmt::format("{}/single/{}", pointer, i));
    item.only({"SpecialToken", "Sequence"});
    if (item.has("Sequence")) {
      if (item.object("Sequence").text("id") != "A" || text) {
        item.fail("Sequence", "unsupported: a template of one text has it once, as A");
      }
      text = true;
      continue;
    }
    const JsonObject token =
        part.object("special_tokens").object(item.object("SpecialToken").text("id"));
    for (const std::uint64_t id : token.counts("ids", 0, kMaxId)) {
      (text ? after : before).push_back(static_cast<std::uint32_t>(id));
    }
  }
  if (!text) {
    part.fail("single", "the text itself is missing");
  }
}

void read_post_processor(const nlohmann::json& value, const std::string& where,
                         const std::string& pointer, std::vector<std::uint32_t>& before,
                         std::vector<std::uint32_t>& after) {
  const JsonObject part(value, where, pointer);
  const std::string type = part.text("type");
  if (type == "Sequence") {
    const auto& list = part.raw("processors");
    if (!list.is_array()) {
      part.fail("processors", "expected a list");
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      read_post_processor(list[i], where, fmt::format("{}/processors/{}", pointer, i), before,
                          after);
    }
  } else if (type == "TemplateProcessing") {
    if (!before.empty() || !after.empty()) {
      part.fail("type", "unsupported: a second template");
    }
    read_template(part, pointer, before, after);
  } else if (type != "ByteLevel") {  // ByteLevel's only trims offsets
    part.fail("type", fmt::format("unsupported post_processor \"{}\"", type),
              "supported: ByteLevel, TemplateProcessing, Sequence");
  }
}

void check_model(const JsonObject& m) {
  if (const auto type = m.text_or("type", "BPE"); type != "BPE") {
    m.fail("type", fmt::format("unsupported tokenizer model \"{}\"", type), "supported: BPE");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (m.has(key) && m.raw(key) != "") {
      m.fail(key, "unsupported");
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
  for (const char* key : {"truncation", "padding"}) {
    if (top.has(key)) {
      top.fail(key, fmt::format("unsupported: the tokenizer has a {}", key));
    }
  }
  const JsonObject m = top.object("model");
  check_model(m);

  Tokenizer t;
  Impl& s = *t.impl_;
  s.where = where;
  const auto stage = [&](const char* key) {
    return top.has(key) ? top.raw(key) : nlohmann::json();
  };
  s.normalizer = Normalizer::parse(stage("normalizer"), where, "/normalizer");
  s.pre = PreTokenizer::parse(stage("pre_tokenizer"), where, "/pre_tokenizer");
  s.decoder = TokenDecoder::parse(stage("decoder"), where, "/decoder");
  if (s.decoder.empty() && s.pre.byte_level()) {
    s.decoder.use_byte_level();  // Hugging Face would print the vocabulary's own spelling
  }
  if (top.has("post_processor")) {
    read_post_processor(top.raw("post_processor"), where, "/post_processor", s.before, s.after);
  }
  s.ignore_merges = m.flag_or("ignore_merges", false);
  s.fuse_unknown = m.flag_or("fuse_unk", false);

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
    s.add_id(id, item.key());
    s.vocab[item.key()] = id;
  }
  const auto id_of = [&](const std::string& token) {
    const auto it = s.vocab.find(token);
    return it == s.vocab.end() ? std::int64_t{-1} : static_cast<std::int64_t>(it->second);
  };
  for (unsigned b = 0; b < 256; ++b) {
    s.byte_id[b] = id_of(byte_character(static_cast<unsigned char>(b)));
    s.fallback_id[b] = id_of(fmt::format("<0x{:02X}>", b));
  }
  if (m.flag_or("byte_fallback", false)) {
    const auto none = std::find(s.fallback_id.begin(), s.fallback_id.end(), -1);
    s.fallback = none == s.fallback_id.end();
    if (!s.fallback && !s.pre.byte_level()) {
      m.fail("byte_fallback",
             fmt::format("the vocabulary lacks <0x{:02X}>", none - s.fallback_id.begin()));
    }
  }
  if (m.has("unk_token")) {
    const std::int64_t id = id_of(m.text("unk_token"));
    if (id < 0) {
      m.fail("unk_token", fmt::format("\"{}\" is not in the vocabulary", m.text("unk_token")));
    }
    s.unknown = static_cast<std::uint32_t>(id);
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
      added.lstrip = a.flag_or("lstrip", false);
      added.rstrip = a.flag_or("rstrip", false);
      if (a.flag_or("single_word", false)) {
        a.fail("single_word", "unsupported: true");
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
      s.add_id(added.id, added.content);
      added.matched = added.normalized ? s.normalizer.apply(added.content) : added.content;
      s.special[added.id] = added.special;
      s.added.push_back(std::move(added));
    }
    std::stable_sort(s.added.begin(), s.added.end(), [](const Added& a, const Added& b) {
      return a.matched.size() > b.matched.size();
    });
    for (const Added& a : s.added) {
      if (!a.matched.empty()) {
        s.added_at[a.normalized ? 1 : 0][static_cast<unsigned char>(a.matched[0])].push_back(&a);
      }
    }
  }
  for (const auto& list : {s.before, s.after}) {
    for (const std::uint32_t id : list) {
      if (id >= s.token_of.size() || s.token_of[id].empty()) {
        top.fail("post_processor", fmt::format("id {} of the template has no token", id));
      }
    }
  }
  for (std::size_t id = 0; id < s.token_of.size(); ++id) {
    if (!s.token_of[id].empty()) {
      s.bytes_of[id] = s.decoder.one(s.token_of[id]);
    }
  }
  // An added token decodes to what it matched: under Prepend and Replace the space before it too.
  for (const Added& a : s.added) {
    s.token_of[a.id] = a.matched;
    s.bytes_of[a.id] = s.pre.byte_level() ? a.matched : s.decoder.one(a.matched);
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

std::vector<std::uint32_t> Tokenizer::encode(std::string_view text, bool parse_special,
                                             bool add_special) const {
  if (text.size() > std::size_t{1} << 30U) {
    throw InputError("text", fmt::format("{} bytes is too long to encode at once", text.size()));
  }
  const Impl& s = *impl_;
  std::vector<std::uint32_t> out;
  if (add_special) {
    out = s.before;
  }
  s.cut(text, false, parse_special, out, [&](std::string_view raw, std::size_t at) {
    s.encode_plain(raw, at == 0, parse_special, out);
  });
  if (add_special) {
    out.insert(out.end(), s.after.begin(), s.after.end());
  }
  return out;
}

std::string Tokenizer::decode(std::span<const std::uint32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const auto id : ids) {
    if (id >= impl_->bytes_of.size()) {
      throw InputError(impl_->where, fmt::format("id {} is not below the vocabulary size {}", id,
                                                 impl_->bytes_of.size()));
    }
    if (!(skip_special && impl_->special[id]) && !impl_->token_of[id].empty()) {
      tokens.push_back(impl_->token_of[id]);
    }
  }
  return impl_->decoder.apply(std::move(tokens));
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
