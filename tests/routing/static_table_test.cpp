// SPDX-License-Identifier: Apache-2.0
// M14: keys, build, lookup, the table as text.
#include "engine/routing/static_table.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

std::string hex(const TableKey& key) {
  std::string out;
  for (const std::uint8_t b : key) {
    out += fmt::format("{:02x}", b);
  }
  return out;
}

TableSpec spec(std::uint32_t bits = 256) {
  return {TablePrefix::kTokens, bits, 2, 4, 2, "tiny", "0123456789abcdef"};
}

TableKey key_of(std::uint8_t first, std::uint8_t last = 0) {
  TableKey key{};
  key[0] = first;
  key[31] = last;
  return key;
}

const std::vector<std::uint16_t> kIds{0, 1, 3, 2};
const std::vector<float> kP{.5F, .25F, .7F, .1F};

// printf '\x01\0\0\0\x02\x01\0\0' | sha256sum: token ids 1 and 258 as u32 little endian.
TEST(TableKey, HashesTokenIdsAsLittleEndianWords) {
  const std::vector<std::uint32_t> tokens{1, 258};
  EXPECT_EQ(hex(table_key(TablePrefix::kTokens, tokens, "")),
            "fb8bbe2ad3ab5292f19bc5d75bbab9b5fbddc5a78ce47ab41b2d3d59bca08596");
}

TEST(TableKey, ReadsTheFirstThirtyTwoOnly) {
  std::vector<std::uint32_t> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 0U);
  const auto key = [&](std::size_t n) {
    return table_key(TablePrefix::kTokens, std::span(tokens).first(n), "");
  };
  EXPECT_EQ(key(32), key(33));
  EXPECT_EQ(key(32), key(40));
  EXPECT_NE(key(31), key(32));
  // A short prompt is its own key: min(32, n).
  EXPECT_NE(key(1), key(2));
}

// 31 times "a", then "é" (two bytes), then "b": 32 characters end after é, 32 bytes inside it.
// printf 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaé' | sha256sum, and the same | head -c 32 | sha256sum.
TEST(TableKey, CountsCharactersOrBytes) {
  const std::string text = std::string(31, 'a') + "\xC3\xA9" + "b";
  EXPECT_EQ(hex(table_key(TablePrefix::kCharacters, {}, text)),
            "921e283b689d3199effee2668655149bbe3bae8885e380efd65c378226a22f6f");
  EXPECT_EQ(hex(table_key(TablePrefix::kBytes, {}, text)),
            "694bc1c659c6495779e2c914313590cfbbef7df7c9f229822ae059e76c00f973");
}

// Layer 0, two tokens: p sums 0: .5+.1, 1: .3+.6, 2: .2+.3 -> 1 (.45), 0 (.30). Layer 1: 2 and 3
// tie at .5 (lower id first), mean .25.
TEST(TableEntry, IsTheTopOfTheSummedProbabilities) {
  TableEntryBuilder builder(2, 4);
  const std::vector<std::uint16_t> all{0, 1, 2, 3};
  builder.add(0, all, std::vector<float>{.5F, .3F, .2F, 0});
  builder.add(0, all, std::vector<float>{.1F, .6F, .3F, 0});
  builder.add(1, all, std::vector<float>{.125F, .125F, .5F, .25F});
  builder.add(1, all, std::vector<float>{.25F, .25F, 0, .25F});
  std::vector<std::uint16_t> ids;
  std::vector<float> p;
  builder.finish(2, ids, p);
  EXPECT_EQ(ids, (std::vector<std::uint16_t>{1, 0, 2, 3}));
  EXPECT_NEAR(p[0], .45, 1e-6);
  EXPECT_NEAR(p[1], .30, 1e-6);
  EXPECT_EQ(p[2], .25F);
  EXPECT_EQ(p[3], .25F);
}

TEST(RoutingTable, TheFirstEntryOfAKeyWinsAndConflictsAreCounted) {
  RoutingTable table(spec());
  const std::vector<std::uint16_t> other{2, 1, 3, 2};
  EXPECT_EQ(table.add(key_of(1), kIds, kP), RoutingTable::Added::kNew);
  EXPECT_EQ(table.add(key_of(1), kIds, kP), RoutingTable::Added::kRepeated);
  EXPECT_EQ(table.add(key_of(1), other, kP), RoutingTable::Added::kConflict);
  EXPECT_EQ(table.add(key_of(2), other, kP), RoutingTable::Added::kNew);
  EXPECT_EQ(table.conflicts(), 1U);
  EXPECT_EQ(table.collisions(), 0U);
  EXPECT_EQ(table.size(), 2U);
  const auto hit = table.find(key_of(1));
  ASSERT_TRUE(hit);
  EXPECT_FALSE(hit->collision);
  EXPECT_EQ(table.ids(hit->entry, 0)[0], 0);
  EXPECT_EQ(table.ids(hit->entry, 1)[0], 3);
  EXPECT_EQ(table.p(hit->entry, 1)[1], .1F);
  EXPECT_FALSE(table.find(key_of(3)));
}

// Keys that differ in their last byte only: distinct with 256 bits, one digest with 64 or 32.
TEST(RoutingTable, ShortDigestsCollideAndSaySo) {
  for (const std::uint32_t bits : {256U, 64U, 32U}) {
    RoutingTable table(spec(bits));
    EXPECT_EQ(table.add(key_of(1, 1), kIds, kP), RoutingTable::Added::kNew);
    const auto hit = table.find(key_of(1, 2));
    EXPECT_EQ(hit.has_value(), bits < 256) << bits;
    if (hit) {
      EXPECT_TRUE(hit->collision);
    }
    EXPECT_FALSE(table.find(key_of(1, 1))->collision);
    const auto added = table.add(key_of(1, 2), kIds, kP);
    EXPECT_EQ(added, bits < 256 ? RoutingTable::Added::kCollision : RoutingTable::Added::kNew);
    EXPECT_EQ(table.collisions(), bits < 256 ? 1U : 0U);
  }
}

TEST(RoutingTable, TextRoundTripIsExact) {
  RoutingTable table(spec(64));
  (void)table.add(key_of(7, 9), kIds, std::vector<float>{1.0F / 3, 1e-30F, 0, 1});
  (void)table.add(key_of(8), kIds, kP);
  const std::string text = table.to_text();
  const RoutingTable back = RoutingTable::from_text(text, "t");
  EXPECT_EQ(back.spec(), table.spec());
  EXPECT_EQ(back.to_text(), text);
  EXPECT_EQ(back.p(0, 0)[0], 1.0F / 3);
  EXPECT_TRUE(back.find(key_of(7, 3))->collision);
}

TEST(RoutingTable, RefusesDamagedTextNamingTheLine) {
  RoutingTable table(spec());
  (void)table.add(key_of(7), kIds, kP);
  const std::string good = table.to_text();
  const std::string entry = good.substr(good.find('\n') + 1);
  const std::string header = good.substr(0, good.find('\n') + 1);
  const auto message = [](const std::string& text) -> std::string {
    try {
      (void)RoutingTable::from_text(text, "t.table");
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return message(text.replace(at, from.size(), to));
  };
  EXPECT_EQ(message(good), "accepted");
  EXPECT_NE(message("").find("t.table:1: not a routing table"), std::string::npos);
  EXPECT_NE(message(good + entry).find("t.table:3: a second entry"), std::string::npos);
  EXPECT_NE(changed("digest_bits=256", "digest_bits=128").find("digest_bits"), std::string::npos);
  EXPECT_NE(changed(" experts=4", "").find("the header needs"), std::string::npos);
  EXPECT_NE(changed("1:0.25", "0:0.25").find("t.table:2: expert 0"), std::string::npos);
  EXPECT_NE(changed("1:0.25", "4:0.25").find("expert 4"), std::string::npos);
  EXPECT_NE(changed("1:0.25", "1:-1").find("p >= 0"), std::string::npos);
  EXPECT_NE(changed("1:0.25", "1:nan").find("t.table:2"), std::string::npos);
  EXPECT_NE(changed(";3:0.7,2:0.1", "").find("2 layers of 2"), std::string::npos);
  EXPECT_NE(changed(";3:0.7,2:0.1", ";3:0.7,2:0.1;").find("after the 2 layers"), std::string::npos);
  EXPECT_NE(changed("0700", "07g0").find("64 hex digits"), std::string::npos);
  for (std::size_t cut = header.size() + 1; cut + 2 < good.size(); ++cut) {
    const std::string m = message(good.substr(0, cut));
    EXPECT_TRUE(m.find("t.table:2") != std::string::npos || m == "accepted") << cut << " " << m;
  }
}

}  // namespace
}  // namespace switchyard
