// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_parts.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "engine/base/error.hpp"
#include "engine/trace/replay.hpp"
#include "engine/trace/trace_losses.hpp"
#include "engine/trace/trace_stats.hpp"
#include "tests/trace/sample_trace.hpp"

namespace switchyard {
namespace {
using testing_trace::SampleOptions;
using testing_trace::write_sample;

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

SampleOptions many_steps() {
  SampleOptions o;
  o.policy.capacity.rule = CapacityRule::kShare;
  o.policy.capacity.factor = 1.0;
  o.prompts = {3, 1, 4, 7};
  o.decode_steps = 40;
  return o;
}

/// So small that a part holds a few rows and only four parts fit.
constexpr std::uint64_t kTiny = 4000;

TEST(TraceParts, HoldTheSameRowsAsTheWholeTrace) {
  write_sample("parts.h5", many_steps());
  const RoutingTrace whole = read_trace("parts.h5");
  const RoutingTrace parts = open_trace("parts.h5", true, kTiny);
  ASSERT_NE(parts.parts, nullptr);
  EXPECT_TRUE(parts.routing.lse.empty());
  EXPECT_EQ(parts.header, whole.header);
  EXPECT_EQ(parts.tokens, whole.tokens);
  EXPECT_EQ(parts.step_begin, whole.step_begin);
  EXPECT_GT(whole.rows(), 10 * parts.parts->rows_each());
  const std::uint32_t m = whole.header.candidates;
  const auto look = [&](std::uint64_t row) {
    for (std::uint32_t l = 0; l < whole.header.layer_count(); ++l) {
      const TraceCell a = trace_cell(whole, row, l);
      const TraceCell b = trace_cell(parts, row, l);
      EXPECT_TRUE(std::equal(a.candidates.begin(), a.candidates.end(), b.candidates.begin()));
      EXPECT_TRUE(std::equal(a.logit.begin(), a.logit.end(), b.logit.begin()));
      EXPECT_EQ(b.candidates.size(), m);
      EXPECT_EQ(a.lse, b.lse);
    }
  };
  for (std::uint64_t row = 0; row < whole.rows(); ++row) look(row);
  // Back and forth; what is held does not grow with the trace.
  for (std::uint64_t i = 0; i < whole.rows(); ++i) look(i * 37 % whole.rows());
  EXPECT_LE(parts.parts->held_bytes(), kTiny);
  EXPECT_LT(parts.parts->reads(), 3 * whole.rows());

  TraceRouting joined;
  std::uint64_t next = 0;
  for_each_part(parts, [&](const TracePart& p) {
    EXPECT_EQ(p.first, next);
    next = p.end;
    const auto add = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    add(joined.candidates, p.routing->candidates);
    add(joined.logit, p.routing->logit);
    add(joined.lse, p.routing->lse);
    add(joined.first, p.routing->first);
    add(joined.chosen, p.routing->chosen);
    add(joined.weights, p.routing->weights);
    add(joined.outcome, p.routing->outcome);
  });
  EXPECT_EQ(next, whole.rows());
  EXPECT_EQ(joined, whole.routing);
  // A trace that fits is in memory.
  EXPECT_EQ(open_trace("parts.h5").parts, nullptr);
  EXPECT_EQ(open_trace("parts.h5").routing, whole.routing);
}

TEST(TraceParts, GiveTheSameStatisticsLossesAndReplay) {
  write_sample("parts.h5", many_steps());
  const RoutingTrace whole = read_trace("parts.h5");
  const RoutingTrace parts = open_trace("parts.h5", true, kTiny);
  for (const std::uint64_t window : {std::uint64_t{0}, std::uint64_t{16}}) {
    const TraceStats a = trace_stats(whole, window);
    const TraceStats b = trace_stats(parts, window);
    EXPECT_EQ(a.tokens, b.tokens);
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      EXPECT_EQ(a.layers[l].load, b.layers[l].load);
      EXPECT_EQ(a.layers[l].load_cv, b.layers[l].load_cv);
      EXPECT_EQ(a.layers[l].entropy_gate_p95, b.layers[l].entropy_gate_p95);
      EXPECT_EQ(a.layers[l].entropy_gate_batch_p95, b.layers[l].entropy_gate_batch_p95);
      EXPECT_EQ(a.layers[l].switch_rate, b.layers[l].switch_rate);
      EXPECT_EQ(a.layers[l].set_switch, b.layers[l].set_switch);
      EXPECT_EQ(a.layers[l].index_variance, b.layers[l].index_variance);
    }
    EXPECT_EQ(a.overflow(), b.overflow());
    EXPECT_GT(a.overflow(), 0U);
  }
  const TraceLosses a = trace_losses(whole);
  const TraceLosses b = trace_losses(parts);
  EXPECT_EQ(a.hugging_face, b.hugging_face);
  EXPECT_TRUE(a.hugging_face.has_value());
  for (std::size_t l = 0; l < a.layers.size(); ++l) {
    EXPECT_EQ(a.layers[l].switch_loss, b.layers[l].switch_loss);
    EXPECT_EQ(a.layers[l].deepseek_seq, b.layers[l].deepseek_seq);
    EXPECT_EQ(a.layers[l].z, b.layers[l].z);
    EXPECT_EQ(a.layers[l].max_violation, b.layers[l].max_violation);
  }
  const ReplayOptions options = ReplayOptions::recorded(whole.header);
  Replayer one(whole, options);
  Replayer two(parts, options);
  std::vector<LayerDecision> x, y;
  for (std::uint32_t s = 0; s < whole.steps(); ++s) {
    one.next_step(x);
    two.next_step(y);
    for (std::size_t l = 0; l < x.size(); ++l) {
      EXPECT_EQ(x[l].chosen, y[l].chosen);
      EXPECT_EQ(x[l].outcome, y[l].outcome);
      EXPECT_EQ(x[l].weights, y[l].weights);
    }
  }
}

TEST(TraceParts, AreCheckedWithTheSameErrorsBeforeAnyIsUsed) {
  RoutingTrace good = write_sample("good.h5", many_steps());
  const std::uint64_t late = good.rows() - 2;  // in the last parts
  const auto both = [&](const std::function<void(RoutingTrace&)>& harm) {
    RoutingTrace bad = good;
    harm(bad);
    write_trace("bad.h5", bad);
    const std::string whole = message_of([] { (void)read_trace("bad.h5"); });
    EXPECT_EQ(message_of([] { (void)open_trace("bad.h5", true, kTiny); }), whole);
    return whole;
  };
  EXPECT_EQ(both([](RoutingTrace&) {}), "no error");
  EXPECT_NE(both([&](RoutingTrace& t) {
              t.routing.candidates[t.candidate_at(late, 1)] = 99;
            }).find("expert 99 of 8"),
            std::string::npos);
  EXPECT_NE(both([&](RoutingTrace& t) {
              t.routing.candidates[t.candidate_at(late, 1, 1)] =
                  t.routing.candidates[t.candidate_at(late, 1, 0)];
            }).find("stands twice"),
            std::string::npos);
  EXPECT_NE(
      both([&](RoutingTrace& t) { t.routing.outcome[t.slot_at(late, 2)] = 7; }).find("outcome 7"),
      std::string::npos);
  EXPECT_NE(both([&](RoutingTrace& t) { t.minus_inf_rows = 3; }).find("minus_inf_rows says 3"),
            std::string::npos);
  EXPECT_NE(both([&](RoutingTrace& t) { t.tokens.step.back() += 5; }).find("token/step"),
            std::string::npos);
}

TEST(TraceParts, HaveNoDecisionsWhereTheFileHasNone) {
  RoutingTrace trace = write_sample("good.h5", many_steps());
  trace.decisions_present = false;
  write_trace("undecided.h5", trace);
  const RoutingTrace parts = open_trace("undecided.h5", true, kTiny);
  EXPECT_FALSE(parts.decisions_present);
  for_each_part(parts, [](const TracePart& p) {
    EXPECT_TRUE(p.routing->first.empty());
    EXPECT_FALSE(p.routing->candidates.empty());
  });
}

}  // namespace
}  // namespace switchyard
