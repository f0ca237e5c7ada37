// SPDX-License-Identifier: Apache-2.0
#include "engine/base/nearest_name.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace switchyard {
namespace {

const std::vector<std::string> kKeys{"bandwidth", "latency", "model", "mode"};

TEST(NearestName, FindsMissingWrongExtraAndSwappedLetters) {
  EXPECT_EQ(nearest_name("bandwith", kKeys), "bandwidth");
  EXPECT_EQ(nearest_name("bandwidht", kKeys), "bandwidth");
  EXPECT_EQ(nearest_name("Latency", kKeys), "latency");
  EXPECT_EQ(nearest_name("lattency", kKeys), "latency");
  EXPECT_EQ(nearest_name("latancy", kKeys), "latency");
}

TEST(NearestName, TiesGoToTheEarlierAndFarNamesGetNothing) {
  const std::vector<std::string> pair{"modex", "modey"};
  EXPECT_EQ(nearest_name("modez", pair), "modex");
  EXPECT_EQ(nearest_name("zzzzzzzz", kKeys), "");
  EXPECT_EQ(nearest_name("x", kKeys), "");
  EXPECT_EQ(nearest_name("", kKeys), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), kKeys), "");
}

TEST(SuggestName, FallsBackToTheList) {
  EXPECT_EQ(suggest_name("bandwith", kKeys), "did you mean \"bandwidth\"?");
  EXPECT_EQ(suggest_name("zzzzzzzz", kKeys), "known: bandwidth, latency, model, mode");
  EXPECT_EQ(suggest_name("a", {}), "");
}

}  // namespace
}  // namespace switchyard
