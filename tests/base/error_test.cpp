// SPDX-License-Identifier: Apache-2.0
#include "engine/base/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/base/version.hpp"

namespace switchyard {
namespace {

TEST(InputError, IsOneLineOfPlaceMessageAndHint) {
  const InputError full("a.toml:17:13", "network.bandwith: unknown key",
                        "did you mean \"bandwidth\"?");
  EXPECT_STREQ(full.what(),
               "a.toml:17:13: network.bandwith: unknown key; did you mean \"bandwidth\"?");
  EXPECT_EQ(full.where(), "a.toml:17:13");
  EXPECT_EQ(full.message(), "network.bandwith: unknown key");
  EXPECT_EQ(full.hint(), "did you mean \"bandwidth\"?");
  EXPECT_STREQ(InputError("", "two\nlines").what(), "two lines");
}

TEST(Assert, PrintsTheConditionAndTheValues) {
  SWITCHYARD_ASSERT(1 + 1 == 2, "never built");
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(SWITCHYARD_ASSERT(1 > 2, "one 1, two 2"), "1 > 2 is false \\(one 1, two 2\\)");
}

TEST(Version, HasThreeNumbers) {
  const std::string v = version();
  EXPECT_EQ(std::count(v.begin(), v.end(), '.'), 2) << v;
}

}  // namespace
}  // namespace switchyard
