// SPDX-License-Identifier: Apache-2.0
#include "engine/base/units.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/base/error.hpp"
#include "engine/base/ids.hpp"

namespace switchyard {
namespace {

const std::string kWhere = "h.toml:3:7";

template <class F>
std::string error_of(F&& body) {
  try {
    (void)body();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}
std::string rate_error(const char* text) {
  return error_of([&] { return parse_rate(text, kWhere, "network.bandwidth"); });
}

TEST(Units, BytesKnowDecimalAndBinaryPrefixes) {
  const auto bytes = [](const char* text) { return parse_bytes(text, kWhere, "memory"); };
  EXPECT_EQ(bytes("80 GiB"), 85899345920U);
  EXPECT_EQ(bytes("80 GB"), 80000000000U);
  EXPECT_EQ(bytes("512MB"), 512000000U);
  EXPECT_EQ(bytes(" 1024 B "), 1024U);
  EXPECT_EQ(bytes("1.5 KiB"), 1536U);
  EXPECT_EQ(bytes("0 B"), 0U);
  EXPECT_EQ(bytes("2 TiB"), 2199023255552U);
}

TEST(Units, RatesTellBitsFromBytes) {
  const auto rate = [](const char* text) { return parse_rate(text, kWhere, "bandwidth").value; };
  EXPECT_EQ(rate("400 Gbit/s"), 50e9);  // 400e9 / 8
  EXPECT_EQ(rate("50 GB/s"), 50e9);
  EXPECT_EQ(rate("1 GiB/s"), 1073741824.0);
  EXPECT_EQ(rate("8 bit/s"), 1.0);
  EXPECT_EQ(rate("3.35 TB/s"), 3.35e12);
}

TEST(Units, OtherDimensions) {
  EXPECT_EQ(parse_duration("6 us", kWhere, "latency").ps(), 6000000);
  EXPECT_EQ(parse_duration("1.5 ms", kWhere, "latency").ps(), 1500000000);
  EXPECT_EQ(parse_duration("20 ps", kWhere, "latency").ps(), 20);
  EXPECT_EQ(parse_duration("1 h", kWhere, "latency").ps(), 3600000000000000);
  EXPECT_DOUBLE_EQ(parse_percent("92 %", kWhere, "memory.watermark"), 0.92);
  EXPECT_EQ(parse_flops("989 TFLOP/s", kWhere, "peak").value, 989e12);
  EXPECT_EQ(parse_flops("989 TFLOPS", kWhere, "peak").value, 989e12);
  EXPECT_EQ(parse_power("1.2 kW", kWhere, "tdp"), 1200.0);
  EXPECT_EQ(parse_money("10000 USD", kWhere, "price"), 10000.0);
}

TEST(Units, ABareNumberIsRefusedWithAnExample) {
  EXPECT_EQ(rate_error("400"),
            "h.toml:3:7: network.bandwidth = 400 has no unit; write e.g. \"400 Gbit/s\" or \"50 "
            "GB/s\"");
  EXPECT_EQ(error_of([] { return parse_bytes("80", kWhere, "memory"); }),
            "h.toml:3:7: memory = 80 has no unit; write e.g. \"80 GiB\" or \"80 GB\"");
}

TEST(Units, UnknownUnitsGetASuggestionOrAnExample) {
  EXPECT_EQ(rate_error("50 GB/sec"),
            "h.toml:3:7: network.bandwidth = \"50 GB/sec\": unknown unit \"GB/sec\"; did you mean "
            "\"GB/s\"?");
  EXPECT_EQ(error_of([] { return parse_duration("6 usec", kWhere, "latency"); }),
            "h.toml:3:7: latency = \"6 usec\": unknown unit \"usec\"; write e.g. \"6 us\"");
}

// IO500/io500#8: "Gb/s" means bits to some and bytes to others; suggesting one would be a factor 8.
TEST(Units, AnAmbiguousLetterBIsNotGuessed) {
  for (const char* unit : {"Gb/s", "Gbps", "GBps", "gb/s"}) {
    EXPECT_EQ(rate_error((std::string("400 ") + unit).c_str()),
              std::string("h.toml:3:7: network.bandwidth = \"400 ") + unit + "\": unknown unit \"" +
                  unit + "\"; write \"Gbit/s\" for bits or \"GB/s\" for bytes");
  }
}

TEST(Units, NegativeInfiniteAndHugeValuesAreRefused) {
  EXPECT_EQ(error_of([] { return parse_bytes("-1 GB", kWhere, "memory"); }),
            "h.toml:3:7: memory = \"-1 GB\". Violated: finite and >= 0");
  EXPECT_EQ(rate_error("nan GB/s"),
            "h.toml:3:7: network.bandwidth = \"nan GB/s\". Violated: finite and >= 0");
  EXPECT_EQ(rate_error("inf GB/s"),
            "h.toml:3:7: network.bandwidth = \"inf GB/s\". Violated: finite and >= 0");
  EXPECT_EQ(rate_error("1e308 TB/s"),
            "h.toml:3:7: network.bandwidth = \"1e308 TB/s\". Violated: finite and >= 0");
  EXPECT_EQ(error_of([] { return parse_bytes("1e10 TiB", kWhere, "memory"); }),
            "h.toml:3:7: memory = \"1e10 TiB\". Violated: < 2^63 bytes");
  EXPECT_EQ(error_of([] { return parse_duration("1e6 h", kWhere, "step"); }),
            "h.toml:3:7: step = \"1e6 h\". Violated: < 106 days");
  EXPECT_EQ(error_of([] { return parse_percent("1e7 %", kWhere, "watermark"); }),
            "h.toml:3:7: watermark = \"1e7 %\". Violated: <= 1e6 %");
}

TEST(Units, TextThatIsNoNumberIsRefused) {
  for (const char* text : {"", " ", "GB/s", "fast", "+5 GB/s", "five GB/s"}) {
    EXPECT_EQ(rate_error(text), std::string("h.toml:3:7: network.bandwidth = \"") + text +
                                    "\" is not a number with a unit; write e.g. \"400 Gbit/s\" or "
                                    "\"50 GB/s\"");
  }
}

TEST(SimTime, IsExactAndRoundsDurationsToTheNearestPicosecond) {
  EXPECT_EQ(SimTime::from_us(3), SimTime::from_ns(3000));
  EXPECT_EQ(SimTime::from_seconds(1e-12 * 2.4).ps(), 2);
  EXPECT_EQ(SimTime::from_seconds(1e-12 * 2.5).ps(), 3);
  EXPECT_EQ(SimTime::from_seconds(-1e-12 * 2.5).ps(), -3);
  // As std::round(), whatever the size; in picoseconds also what lies just beside a half.
  for (double ps = 1e-3; ps < 4e18; ps *= 1.37) {
    const double whole = std::floor(ps);
    for (const double near : {ps, whole + 0.5, std::nextafter(whole + 0.5, 0.0),
                              std::nextafter(whole + 0.5, 1e19), whole}) {
      for (const double signed_ps : {near, -near}) {
        const double seconds = signed_ps / 1e12;
        EXPECT_EQ(SimTime::from_seconds(seconds).ps(),
                  static_cast<std::int64_t>(std::round(seconds * 1e12)))
            << signed_ps;
      }
    }
  }
  EXPECT_EQ((SimTime::from_us(2) - SimTime::from_us(5)).ps(), -3000000);
  SimTime t = SimTime::from_ps(1);
  t += SimTime::from_ps(2);
  EXPECT_EQ(t, SimTime::from_ps(3));
  EXPECT_LT(SimTime::from_ps(2), t);
  EXPECT_DOUBLE_EQ(SimTime::from_us(7).seconds(), 7e-6);
}

TEST(Format, IsForPeopleAndInTheCLocale) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1610612736.0), "1.50 GiB");
  EXPECT_EQ(format_time(SimTime::from_ps(999)), "999 ps");
  EXPECT_EQ(format_time(SimTime::from_ns(2350)), "2.350 us");
  EXPECT_EQ(format_time(SimTime::from_us(2500000)), "2.500 s");
  EXPECT_EQ(format_rate({50e9}), "50 GB/s");
  EXPECT_EQ(format_rate({3.35e12}), "3.35 TB/s");
  EXPECT_EQ(format_count(46702792704), "46,702,792,704");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
}

TEST(Ids, CompareByValueAndDoNotMix) {
  EXPECT_EQ(ExpertId(3), ExpertId(3));
  EXPECT_LT(ExpertId(3), ExpertId(4));
  static_assert(!std::is_convertible_v<ExpertId, LayerId>);
  static_assert(!std::is_convertible_v<std::uint32_t, ExpertId>);
}

}  // namespace
}  // namespace switchyard
