// SPDX-License-Identifier: Apache-2.0
#include "engine/h5/schema.hpp"

#include <gtest/gtest.h>

namespace switchyard::h5 {
namespace {

TEST(NameMatches, TreatsAStarAsAnyCharactersOfOneComponent) {
  EXPECT_TRUE(name_matches("lod/*/max", "lod/expert/max"));
  EXPECT_TRUE(name_matches("lod/*/max", "lod//max"));
  EXPECT_TRUE(name_matches("lod/level*", "lod/level12"));
  EXPECT_TRUE(name_matches("a*b*c", "axxbyyc"));
  EXPECT_TRUE(name_matches("*", "x"));
  EXPECT_TRUE(name_matches("a*ab", "aaab"));
  EXPECT_FALSE(name_matches("lod/*/max", "lod/a/b/max"));
  EXPECT_FALSE(name_matches("lod/*", "lod/a/b"));
  EXPECT_FALSE(name_matches("lod/level*", "lod/leve"));
  EXPECT_FALSE(name_matches("abc", "abcd"));
  EXPECT_FALSE(name_matches("abc", "ab"));
  EXPECT_FALSE(name_matches("", "a"));
}

TEST(SplitShape, SeparatesAtCommas) {
  EXPECT_EQ(split_shape("T,L,M"), (std::vector<std::string>{"T", "L", "M"}));
  EXPECT_EQ(split_shape("T"), (std::vector<std::string>{"T"}));
  EXPECT_TRUE(split_shape("").empty());
}

TEST(FormatMarkdown, ListsEveryEntryWithShapeTypeAndUnit) {
  SchemaTable table;
  table.kind = FileKind::kRun;
  table.version = 7;
  table.title = "Run";
  table.entries = {{"@seed", "", ElementType::kU64, "", "Seed", false},
                   {"step/start", "S", ElementType::kI64, "ps", "Start", true}};
  const std::string text = format_markdown(table);
  EXPECT_NE(text.find("Schema version 7."), std::string::npos);
  EXPECT_NE(text.find("`SWYRUN\\0\\0`"), std::string::npos);
  EXPECT_NE(text.find("| `seed` | u64 | – | Seed |"), std::string::npos);
  EXPECT_NE(text.find("| `step/start` | [S] | i64 | ps | Optional. Start |"), std::string::npos);
}

}  // namespace
}  // namespace switchyard::h5
