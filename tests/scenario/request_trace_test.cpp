// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/request_trace.hpp"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"

namespace {

using switchyard::InputError;
using namespace switchyard::scenario;  // NOLINT(google-build-using-namespace): the unit under test

RequestTrace fixture(const std::string& name, RequestFormat format) {
  return parse_request_trace(switchyard::read_file(std::string(SWITCHYARD_SOURCE_DIR) +
                                                   "/tests/fixtures/requests/" + name),
                             name, format);
}

std::string error(const std::string& text, RequestFormat format = RequestFormat::kCsv) {
  try {
    (void)parse_request_trace(text, "r", format);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST(RequestTrace, ReadsAzuresWallClockFromItsFirstRow) {
  const RequestTrace t = fixture("azure2023_conv_head.csv", RequestFormat::kAzure);
  ASSERT_EQ(t.requests.size(), 8U);
  EXPECT_EQ(t.requests[0].arrival.ps(), 0);
  // 18:15:46.6805900 to 18:15:50.9951690.
  EXPECT_EQ(t.requests[1].arrival.ps(), 4'314'579'000'000);
  EXPECT_EQ(t.requests[1].prompt_tokens, 396U);
  EXPECT_EQ(t.requests[1].output_tokens, 109U);
}

TEST(RequestTrace, AMonthEndsAndAYearToo) {
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const RequestTrace leap = parse_request_trace(
      head + "2024-02-28 23:59:59.5,1,1\n2024-03-01 00:00:00,1,1\n", "r", RequestFormat::kAzure);
  EXPECT_EQ(leap.requests[1].arrival.ps(), (86'400LL * 1000 + 500) * 1'000'000'000);
  const RequestTrace year = parse_request_trace(
      head + "2023-12-31 23:59:59,1,1\n2024-01-01 00:00:01,1,1\n", "r", RequestFormat::kAzure);
  EXPECT_EQ(year.requests[1].arrival.ps(), 2'000'000'000'000);
}

TEST(RequestTrace, ReadsMooncakeAndSaysThatItHasHashIds) {
  const RequestTrace t = fixture("mooncake_conversation_head.jsonl", RequestFormat::kMooncake);
  ASSERT_EQ(t.requests.size(), 6U);
  EXPECT_TRUE(t.hash_ids);
  EXPECT_EQ(t.requests[0].prompt_tokens, 6758U);
  EXPECT_EQ(t.requests[0].output_tokens, 500U);
  // ⌈6758 / 512⌉ blocks, the first one that of every request here.
  ASSERT_EQ(t.hashes_of(0).size(), 14U);
  EXPECT_EQ(t.hashes_of(1)[0], 0U);
  EXPECT_EQ(t.hashes_of(1)[1], 14U);
  EXPECT_EQ(t.lines[5], 6U);
  const RequestTrace back = parse_request_trace(request_trace_csv(t), "r", RequestFormat::kCsv);
  EXPECT_TRUE(back.hash_ids);
  EXPECT_EQ(back.hashes, t.hashes);
  EXPECT_EQ(back.hash_begin, t.hash_begin);
  EXPECT_FALSE(parse_request_trace(request_trace_csv(t, false), "r", RequestFormat::kCsv).hash_ids);
}

TEST(RequestTrace, ReadsLlmServingSim) {
  const RequestTrace t = fixture("llmservingsim_example.jsonl", RequestFormat::kLlmServingSim);
  ASSERT_EQ(t.requests.size(), 4U);
  EXPECT_EQ(t.requests[0].arrival.ps(), 46'926'808'000);
  EXPECT_EQ(t.requests[0].prompt_tokens, 10U);
  EXPECT_FALSE(t.hash_ids);
}

TEST(RequestTrace, LeavesOutBurstGptsFailedRequests) {
  const RequestTrace t = parse_request_trace(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45,ChatGPT,1087,0,1087,Conversation log\n"
      "118.5,GPT-4,417,276,693,API log\n",
      "r", RequestFormat::kBurstGpt);
  ASSERT_EQ(t.requests.size(), 2U);
  EXPECT_EQ(t.left_out, 1U);
  EXPECT_EQ(t.requests[1].arrival.ps(), 118'500'000'000'000);
}

TEST(RequestTrace, WhatIsWrittenReadsBack) {
  const RequestTrace t = fixture("azure2023_conv_head.csv", RequestFormat::kAzure);
  const RequestTrace back = parse_request_trace(request_trace_csv(t), "r", RequestFormat::kCsv);
  ASSERT_EQ(back.requests.size(), t.requests.size());
  for (std::size_t i = 0; i < t.requests.size(); ++i) {
    EXPECT_EQ(back.requests[i].arrival, t.requests[i].arrival);
    EXPECT_EQ(back.requests[i].prompt_tokens, t.requests[i].prompt_tokens);
    EXPECT_EQ(back.requests[i].output_tokens, t.requests[i].output_tokens);
  }
}

TEST(RequestTrace, RefusesHostileRowsWithTheirLine) {
  const std::string head = "arrival_ns,prompt_tokens,output_tokens\n";
  EXPECT_EQ(error(head + "1,2\n"), "r:2: 2 fields; the first line names 3");
  EXPECT_EQ(error(head + "1,2,3\n\nx,2,3\n"), "r:4: arrival_ns = \"x\" is no whole number");
  EXPECT_EQ(error(head + "1,-2,3\n"), "r:2: prompt_tokens = \"-2\" is no whole number >= 0");
  EXPECT_NE(error(head + "1,0,3\n").find("r:2: 0 and 3 tokens"), std::string::npos);
  EXPECT_NE(error(head + "1,3,99999999\n").find("r:2: 3 and 99999999"), std::string::npos);
  EXPECT_NE(error(head + "9223372036854775807,3,9\n").find("46 days"), std::string::npos);
  EXPECT_NE(error(head + "99999999999999999999,3,9\n").find("no whole number"), std::string::npos);
  EXPECT_NE(error(head).find("no request"), std::string::npos);
  EXPECT_NE(error("").find("no request"), std::string::npos);
  for (const char* bad :
       {"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}",
        "{\"timestamp\": 1.5, \"input_length\": 1, \"output_length\": 1}",
        "{\"timestamp\": 1, \"input_length\": -1, \"output_length\": 1}",
        "{\"timestamp\": 1, \"input_length\": 1}", "[1, 2, 3]", "{", "nan",
        "{\"timestamp\": 18446744073709551615, \"input_length\": 1, \"output_length\": 1}"}) {
    EXPECT_TRUE(error(bad, RequestFormat::kMooncake).starts_with("r:1: ")) << bad;
  }
  for (const char* bad : {"3", "[1, -2]", "[1.5]", "[\"a\"]", "{}"}) {
    // Only prefix caching asks for them, and refuses a row without (serving_test).
    const RequestTrace t = parse_request_trace(
        std::string(
            "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": ") +
            bad + "}",
        "r", RequestFormat::kMooncake);
    EXPECT_EQ(t.requests.size(), 1U) << bad;
    EXPECT_TRUE(t.hash_ids) << bad;
    EXPECT_TRUE(t.hashes_of(0).empty()) << bad;
  }
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const char* bad :
       {"2023-13-16 18:15:46.68,1,1", "yesterday,1,1", "2023-11-16T18,1,1", ",1,1",
        "2023-11-16 18:15:46.,1x,1", "2023-11-16 18:15:46.12345678901234567890,1,1"}) {
    EXPECT_TRUE(error(azure + bad + "\n", RequestFormat::kAzure).starts_with("r:2: ")) << bad;
  }
  EXPECT_NE(
      error(azure + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n", RequestFormat::kAzure)
          .find("r:3: TIMESTAMP goes back"),
      std::string::npos);
}
