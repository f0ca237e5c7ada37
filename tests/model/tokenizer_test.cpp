// SPDX-License-Identifier: Apache-2.0
// Ids come from Hugging Face's tokenizers library (tests/fixtures/make_tokenizer_cases.py and
// make_tokenizer_pipelines.py), published ones from make_tokenizer_parity.py.
#include "engine/model/tokenizer.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/random.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kShipped =
    fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios" / "checkpoints" / "sy-16x2" / "tokenizer.json";

const Tokenizer& shipped() {
  static const Tokenizer t = Tokenizer::load(kShipped);
  return t;
}

/// a, b, c, space, the merges "a b" → ab, "ab c" → abc, "b c" → bc, and a special token.
json small() {
  return json::parse(R"({
    "added_tokens": [{"id": 8, "content": "<s>", "special": true, "normalized": false},
                     {"id": 9, "content": "<s>x", "special": false, "normalized": false}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE",
              "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "abc": 5, "bc": 6, "Ġa": 7},
              "merges": ["a b", "ab c", ["b", "c"], "Ġ a"]}})");
}

Tokenizer parse(const json& j) { return Tokenizer::parse(j.dump(), "tokenizer.json"); }

std::string error_of(const json& j) {
  try {
    parse(j);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

using Ids = std::vector<std::uint32_t>;

TEST(Tokenizer, EveryFixtureCaseMatchesHuggingFace) {
  const auto cases = json::parse(
      read_file(fs::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/tokenizer/cases.json"));
  ASSERT_GE(cases.size(), 60U);
  for (const auto& c : cases) {
    const auto text = c.at("text").get<std::string>();
    SCOPED_TRACE(text);
    const auto ids = shipped().encode(text);
    EXPECT_EQ(ids, c.at("ids").get<Ids>());
    EXPECT_EQ(shipped().decode(ids, false), c.at("decoded").get<std::string>());
  }
}

/// Every text of pipelines.json with every tokenizer beside it.
TEST(Tokenizer, EveryKindOfPipelineMatchesHuggingFace) {
  const fs::path folder = fs::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/tokenizer";
  const auto all = json::parse(read_file(folder / "pipelines.json"));
  const auto texts = all.at("texts").get<std::vector<std::string>>();
  ASSERT_EQ(all.at("tokenizers").size(), 7U);
  for (const auto& [name, want] : all.at("tokenizers").items()) {
    const Tokenizer t = Tokenizer::load(folder / (name + ".json"));
    const auto ids = want.at("ids").get<std::vector<Ids>>();
    ASSERT_EQ(ids.size(), texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(name + ": " + texts[i]);
      const auto text_or = [&](const char* key) {
        const json& value = want.at(key).at(i);
        return value.is_null() ? texts[i] : value.get<std::string>();
      };
      EXPECT_EQ(t.encode(texts[i]), ids[i]);
      EXPECT_EQ(t.decode(ids[i]), text_or("decoded"));
      EXPECT_EQ(t.decode(ids[i], false), text_or("kept"));
    }
    const auto special = want.at("special").get<std::vector<Ids>>();
    for (std::size_t i = 0; i < special.size(); ++i) {
      EXPECT_EQ(t.encode(texts[i], true, true), special[i]) << name;
    }
  }
}

TEST(Tokenizer, TheRealGpt2VocabularyGivesThePublishedIds) {
  const fs::path folder = fs::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/tokenizer";
  const Tokenizer t = Tokenizer::load(folder / "gpt2.json");
  const auto cases = json::parse(read_file(folder / "gpt2_cases.json"));
  ASSERT_EQ(cases.size(), 47U);
  for (const auto& c : cases) {
    const auto text = c.at("text").get<std::string>();
    EXPECT_EQ(t.encode(text), c.at("ids").get<Ids>()) << text;
    EXPECT_EQ(t.decode(c.at("ids").get<Ids>()), text);
  }
}

TEST(Tokenizer, RealVocabulariesOfDeepSeekQwenAndGptOssGiveThePublishedIds) {
  const fs::path folder = fs::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/tokenizer";
  std::map<std::string, Tokenizer> tokenizers;
  std::map<std::string, int> published;
  for (const auto& c : json::parse(read_file(folder / "parity_cases.json"))) {
    const auto name = c.at("tokenizer").get<std::string>();
    const auto text = c.at("text").get<std::string>();
    SCOPED_TRACE(name + ", " + c.at("source").get<std::string>() + ": " + text);
    auto t = tokenizers.find(name);
    if (t == tokenizers.end()) {
      t = tokenizers.emplace(name, Tokenizer::load(folder / (name + ".json"))).first;
    }
    const auto ids = c.at("ids").get<Ids>();
    EXPECT_EQ(t->second.encode(text), ids);
    if (c.at("source") != "tokenizers") {
      ++published[name];
      EXPECT_EQ(t->second.decode(ids, false), text);
    }
  }
  EXPECT_EQ(published, (std::map<std::string, int>{
                           {"real_deepseek_v3", 3}, {"real_gpt_oss", 3}, {"real_qwen3", 3}}));
}

/// A space is U+2581 and stands before the text; a, b, ▁, ▁a, ab and the byte tokens.
json sentencepiece() {
  json vocab{{"<unk>", 0}, {"<s>", 1}, {"a", 2}, {"b", 3}, {"▁", 4}, {"▁a", 5}, {"ab", 6}};
  for (int b = 0; b < 256; ++b) {
    vocab[fmt::format("<0x{:02X}>", b)] = 7 + b;
  }
  auto j = json::parse(R"({
    "added_tokens": [{"id": 1, "content": "<s>", "special": true, "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,
              "vocab": {}, "merges": ["▁ a", "a b"]}})");
  j["model"]["vocab"] = vocab;
  return j;
}

TEST(Tokenizer, SentencePieceStyleFollowsAHandCalculation) {
  const auto t = parse(sentencepiece());
  // "ab a": ▁ab▁a; "▁ a" ranks before "a b".
  EXPECT_EQ(t.encode("ab a"), (Ids{5, 3, 5}));
  EXPECT_EQ(t.encode("bab"), (Ids{4, 3, 6}));
  EXPECT_EQ(t.encode("ab", true, true), (Ids{1, 5, 3}));
  EXPECT_EQ(t.encode(""), Ids{});
  EXPECT_EQ(t.encode("", true, true), (Ids{1}));
  EXPECT_EQ(t.encode("é"), (Ids{4, 7 + 0xc3, 7 + 0xa9}));
  EXPECT_EQ(t.decode(Ids{1, 5, 3, 4, 7 + 0xc3, 7 + 0xa9}), "ab é");
  EXPECT_EQ(t.token_bytes(5), " a");
  EXPECT_EQ(t.token_bytes(7 + 0xc3), "\xc3");
}

TEST(Tokenizer, SentencePieceStyleKeepsInvalidBytes) {
  const auto t = parse(sentencepiece());
  for (const std::string bad : {"\xff", "a\xff", "a\xff b",
                                "\x80\x80"
                                "ab",
                                "a\xe4\xb8"}) {
    EXPECT_EQ(t.decode(t.encode(bad)), bad);
  }
  EXPECT_EQ(t.encode("a\xff"
                     "a"),
            (Ids{5, 7 + 0xff, 2}));  // no ▁ after the byte
}

TEST(Tokenizer, UnknownCharactersFuseOnlyWhenAsked) {
  auto j = sentencepiece();
  j["model"]["byte_fallback"] = false;
  EXPECT_EQ(parse(j).encode("xyazz"), (Ids{4, 0, 2, 0}));
  j["model"]["fuse_unk"] = false;
  EXPECT_EQ(parse(j).encode("xyazz"), (Ids{4, 0, 0, 2, 0, 0}));
  j["model"]["unk_token"] = nullptr;
  try {
    (void)parse(j).encode("aé");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "tokenizer.json: no token for \"é\"");
  }
}

TEST(Tokenizer, TextThatANormalizerBlowsUpIsRefused) {
  auto j = sentencepiece();
  const json twice{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  j["normalizer"]["normalizers"] = std::vector<json>(40, twice);
  try {
    (void)parse(j).encode("banana");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(
        e.what(),
        "tokenizer.json: /normalizer: 6 bytes of text grow to more than 4288; supported: at most "
        "32 times");
  }
  // One replacement alone, by a megabyte: it ends where the bound is passed.
  j = sentencepiece();
  j["normalizer"]["normalizers"] = std::vector<json>{{{"type", "Replace"},
                                                      {"pattern", {{"String", "a"}}},
                                                      {"content", std::string(1U << 20U, 'b')}}};
  EXPECT_THROW((void)parse(j).encode(std::string(100'000, 'a')), InputError);
  j = sentencepiece();
  j["decoder"]["decoders"] = std::vector<json>(40, twice);
  EXPECT_EQ(
      error_of(j),
      "tokenizer.json: /decoder: 1 bytes of tokens grow to 8192; supported: at most 32 times");
}

TEST(Tokenizer, AddedTokensTakeTheSpacesTheyAskFor) {
  auto j = small();
  j["added_tokens"][0]["lstrip"] = true;
  j["added_tokens"][0]["rstrip"] = true;
  const auto t = parse(j);
  EXPECT_EQ(t.encode("a  <s>\n b"), (Ids{0, 8, 1}));
  EXPECT_EQ(t.encode(" <s> <s> "), (Ids{8, 8}));
  EXPECT_EQ(t.encode(" a <s>xb"), (Ids{7, 3, 9, 1}));  // the other token takes none
}

TEST(Tokenizer, AnyBytesComeBack) {
  const auto purpose = random_purpose("tokenizer bytes");
  for (std::uint32_t i = 0; i < 500; ++i) {
    std::string text;
    for (std::uint32_t k = 0; k < i % 40; ++k) {
      const auto r = random_u64(1, purpose, {i, k, 0, 0});
      text += (r & 1U) != 0 ? static_cast<char>(r >> 8U) : " aé中\n\xe2\x80"[(r >> 8U) % 10];
    }
    EXPECT_EQ(shipped().decode(shipped().encode(text), false), text);
  }
  std::string all;
  for (int b = 0; b < 256; ++b) {
    all += static_cast<char>(b);
  }
  EXPECT_EQ(shipped().decode(shipped().encode(all), false), all);
}

TEST(Tokenizer, InvalidUtf8IsTakenByteByByte) {
  // 0xff, a lone continuation byte, an overlong slash, a surrogate, a cut-off character.
  for (const std::string bad : {"\xff", "\x80", "\xc0\xaf", "\xed\xa0\x80", "\xe4\xb8"}) {
    const auto ids = shipped().encode(bad);
    EXPECT_EQ(ids.size(), bad.size());
    EXPECT_EQ(shipped().decode(ids), bad);
  }
}

TEST(Tokenizer, MergesByRankThenLeftToRight) {
  const auto t = parse(small());
  EXPECT_EQ(t.encode("abc"), (Ids{5}));
  EXPECT_EQ(t.encode("bc"), (Ids{6}));
  EXPECT_EQ(t.encode("ab"), (Ids{4}));
  EXPECT_EQ(t.encode("aabcb"), (Ids{0, 5, 1}));
  EXPECT_EQ(t.encode(" a"), (Ids{7}));
  EXPECT_EQ(t.encode("  a"), (Ids{3, 7}));
  EXPECT_EQ(t.encode(""), Ids{});
  EXPECT_EQ(t.vocab_size(), 10U);
  EXPECT_EQ(t.token_id("abc"), 5U);
  EXPECT_FALSE(t.token_id("zz").has_value());
  EXPECT_EQ(t.token_bytes(7), " a");
}

TEST(Tokenizer, OverlappingPairsMergeLeftmostFirst) {
  auto j = small();
  j["model"]["vocab"] = {{"a", 0}, {"aa", 1}, {"aaaa", 2}};
  j["model"]["merges"] = {"a a", "aa aa"};
  const auto t = parse(j);
  EXPECT_EQ(t.encode("aaa"), (Ids{1, 0}));
  EXPECT_EQ(t.encode("aaaa"), (Ids{2}));
  EXPECT_EQ(t.encode("aaaaaaa"), (Ids{2, 1, 0}));
  // A long piece takes no quadratic time.
  EXPECT_EQ(t.encode(std::string(400'000, 'a')).size(), 100'000U);
}

TEST(Tokenizer, AddedTokensAreCutOutLongestFirst) {
  const auto t = parse(small());
  EXPECT_EQ(t.encode("ab<s>c"), (Ids{4, 8, 2}));
  EXPECT_EQ(t.encode("a<s>xa"), (Ids{0, 9, 0}));
  EXPECT_EQ(t.decode(Ids{4, 8, 2}), "abc");
  EXPECT_EQ(t.decode(Ids{4, 8, 2}, false), "ab<s>c");
  EXPECT_EQ(t.decode(Ids{9}), "<s>x");                        // added, not special
  EXPECT_THROW((void)t.encode("ab<s>c", false), InputError);  // no token for '<'
}

TEST(Tokenizer, MissingBytesAndIdsAreNamed) {
  const auto t = parse(small());
  try {
    (void)t.encode("abz");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "tokenizer.json: no token for byte 0x7a");
  }
  try {
    (void)t.decode(Ids{10});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "tokenizer.json: id 10 is not below the vocabulary size 10");
  }
}

TEST(Tokenizer, UnsupportedFeaturesAreRefusedByName) {
  const auto expect = [](const std::function<void(json&)>& edit, const std::string& message) {
    auto j = small();
    edit(j);
    EXPECT_EQ(error_of(j), "tokenizer.json: " + message);
  };
  EXPECT_EQ(error_of(small()), "accepted");
  expect([](json& j) { j["model"]["type"] = "Unigram"; },
         "/model/type: unsupported tokenizer model \"Unigram\"; supported: BPE");
  expect([](json& j) { j["model"]["dropout"] = 0.1; }, "/model/dropout: unsupported");
  expect([](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
         "/model/end_of_word_suffix: unsupported");
  expect(
      [](json& j) {
        j["truncation"] = {{"max_length", 5}};
      },
      "/truncation: unsupported: the tokenizer has a truncation");
  const auto typed = [](const char* type) { return json{{"type", type}}; };
  expect([&](json& j) { j["normalizer"] = typed("Lowercase"); },
         "/normalizer/type: unsupported normalizer \"Lowercase\"; supported: NFC, NFD, NFKC, NFKD, "
         "Prepend, Replace, Sequence");
  expect(
      [&](json& j) {
        j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {typed("NFC"), typed("Nmt")}}};
      },
      "/normalizer/normalizers/1/type: unsupported normalizer \"Nmt\"; supported: NFC, NFD, NFKC, "
      "NFKD, Prepend, Replace, Sequence");
  expect(
      [&](json& j) { j["pre_tokenizer"] = typed("BertPreTokenizer"); },
      "/pre_tokenizer/type: unsupported pre_tokenizer \"BertPreTokenizer\"; supported: ByteLevel, "
      "Metaspace, Split, Digits, Sequence");
  expect(
      [&](json& j) {
        j["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers", {typed("ByteLevel"), typed("Digits")}}};
      },
      "/pre_tokenizer/pretokenizers/1/type: unsupported: Digits after ByteLevel");
  expect(
      [&](json& j) { j["post_processor"] = typed("BertProcessing"); },
      "/post_processor/type: unsupported post_processor \"BertProcessing\"; supported: ByteLevel, "
      "TemplateProcessing, Sequence");
  expect([&](json& j) { j["decoder"] = typed("WordPiece"); },
         "/decoder/type: unsupported decoder \"WordPiece\"; supported: ByteLevel, Replace, "
         "ByteFallback, Fuse, Strip, Metaspace, Sequence");
  expect([](json& j) { j["added_tokens"][0]["single_word"] = true; },
         "/added_tokens/0/single_word: unsupported: true");
}

TEST(Tokenizer, PatternsThatPcre2WouldReadOtherwiseAreRefused) {
  const auto error = [](const std::string& regex) {
    auto j = small();
    j["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers",
                           {{{"type", "Split"},
                             {"pattern", {{"Regex", regex}}},
                             {"behavior", "Isolated"},
                             {"invert", false}},
                            {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
    return error_of(j);
  };
  const std::string at = "tokenizer.json: /pre_tokenizer/pretokenizers/0/pattern: ";
  EXPECT_EQ(error(R"(\p{L}+|\s+(?!\S))"), "accepted");
  EXPECT_EQ(error(R"(\h+)"), at + "unsupported in a pattern: \\h");
  EXPECT_EQ(error(R"(\bx)"), at + "unsupported in a pattern: \\b");
  EXPECT_EQ(error(R"([a[bc]])"), at + "unsupported in a pattern: a set within a set");
  EXPECT_EQ(error(R"([a-z&&b])"), at + "unsupported in a pattern: && in a set");
  EXPECT_EQ(error(R"(\p{N}{1,3}+)"), at + "unsupported in a pattern: a + after {n,m}");
  EXPECT_EQ(error(R"((?m:x))"), at + "unsupported in a pattern: the option (?m)");
  EXPECT_TRUE(error(R"(\p{Greekish})").starts_with(at + "unsupported pattern")) << error("\\p{Q}");
  EXPECT_TRUE(error("(").starts_with(at + "unsupported pattern"));
}

TEST(Tokenizer, MistakesNameFileAndPointer) {
  const auto expect = [](const std::function<void(json&)>& edit, const std::string& message) {
    auto j = small();
    edit(j);
    EXPECT_EQ(error_of(j), "tokenizer.json: " + message);
  };
  expect([](json& j) { j["model"]["vocab"]["b"] = 0; }, "/model/vocab/b: id 0 is also \"a\"");
  expect([](json& j) { j["model"]["vocab"]["b"] = -1; },
         "/model/vocab/b: -1 is outside [0, 4194303]");
  expect([](json& j) { j["model"]["vocab"]["b"] = 4294967296; },
         "/model/vocab/b: 4294967296 is outside [0, 4194303]");
  expect([](json& j) { j["model"]["vocab"] = {1}; },
         "/model/vocab: expected an object, found a list");
  expect([](json& j) { j["model"].erase("vocab"); }, "/model/vocab: missing");
  expect([](json& j) { j["model"]["merges"][1] = "ab z"; },
         "/model/merges/1: \"z\" is not in the vocabulary");
  expect([](json& j) { j["model"]["merges"][1] = "a b"; }, "/model/merges/1: duplicate merge");
  expect([](json& j) { j["model"]["merges"][1] = "abc"; },
         "/model/merges/1: expected \"left right\" or [left, right]");
  expect([](json& j) { j["model"]["merges"][1] = 5; },
         "/model/merges/1: expected \"left right\" or [left, right]");
  expect([](json& j) { j["added_tokens"][0]["id"] = 2; }, "/added_tokens/0/id: 2 is also \"c\"");
  expect([](json& j) { j["added_tokens"][0]["content"] = ""; }, "/added_tokens/0/content: empty");
  expect([](json& j) { j["added_tokens"][0]["content"] = "ab"; },
         "/added_tokens/0/id: 8, but the vocabulary has 4 for \"ab\"");
  expect([](json& j) { j["model"]["unk_token"] = "zz"; },
         "/model/unk_token: \"zz\" is not in the vocabulary");
  expect(
      [](json& j) {
        j["pre_tokenizer"] = nullptr;
        j["model"]["byte_fallback"] = true;
      },
      "/model/byte_fallback: the vocabulary lacks <0x00>");
  EXPECT_THROW(Tokenizer::parse("{", "tokenizer.json"), InputError);
  EXPECT_THROW(Tokenizer::parse("[]", "tokenizer.json"), InputError);
  EXPECT_THROW(Tokenizer::parse("{\"model\":" + std::string(100000, '['), "t"), InputError);
}

TEST(Tokenizer, LoadsFromTheFolder) {
  EXPECT_EQ(Tokenizer::load(kShipped.parent_path()).vocab_size(), shipped().vocab_size());
  fs::create_directories("sentencepiece");
  write_file("sentencepiece/tokenizer.model", "x");
  try {
    Tokenizer::load("sentencepiece");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(),
                 "sentencepiece: no tokenizer.json; tokenizer.model (SentencePiece) is "
                 "unsupported");
  }
}

}  // namespace
}  // namespace switchyard::model
