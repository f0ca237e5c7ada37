// SPDX-License-Identifier: Apache-2.0
// Which sample of a simulation an engine step sees, and what the policies make of its queues.
#include "engine/routing/signal_table.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "engine/base/error.hpp"
#include "tests/routing/helpers.hpp"

namespace switchyard {
namespace {

/// Six steps of 100 ms: prompts, decoding, decoding, prompts, decoding, decoding. GPU 0's memory in
/// step s is s tenths full. Experts 0 and 1 are on GPU 0, 2 and 3 on GPU 1, from step 4 on the
/// other way round, expert 3 on both.
SignalTable six_steps() {
  SignalTable t;
  t.gpus = 2;
  t.layers = 1;
  t.experts = 4;
  t.decodes = {0, 1, 1, 0, 1, 1};
  for (std::int64_t s = 0; s < 6; ++s) {
    t.start_ps.push_back(s * 100'000'000'000);
    t.end_ps.push_back((s + 1) * 100'000'000'000);
    t.used.insert(t.used.end(), {0.1 * static_cast<double>(s), 0.5});
    t.elastic.insert(t.elastic.end(), {0.05 * static_cast<double>(s), 0.25});
    t.placement.push_back(s < 4 ? 0 : 1);
  }
  t.first_gpu = {0, 1, 2, 3, 4, 4, 5, 6, 7, 9};
  t.gpu = {0, 0, 1, 1, 1, 1, 0, 0, 1};
  return t;
}

TEST(SignalCursor, PairsTheNthDecodingStepWithTheNthSimulatedOne) {
  const SignalTable t = six_steps();
  validate_signals(t, "test");
  SignalCursor c(&t);
  c.begin_step(false);  // prompts: step 0
  EXPECT_EQ(c.sample(), 0U);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0);
  c.begin_step(true);
  EXPECT_EQ(c.sample(), 1U);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.1);
  EXPECT_DOUBLE_EQ(c.view(0).used[0], 0.1);
  EXPECT_DOUBLE_EQ(c.view(0).free(1), 0.5);
  c.begin_step(true);
  EXPECT_EQ(c.sample(), 2U);
  EXPECT_EQ(c.view(0).gpu[c.view(0).first_gpu[2]], 1U);
  c.begin_step(true);  // over the prompts of step 3
  EXPECT_EQ(c.sample(), 4U);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.4);
  EXPECT_DOUBLE_EQ(c.view(0).elastic[0], 0.2);
  // The second placement: expert 2 on GPU 0, expert 3 on both, of which the emptier counts.
  EXPECT_EQ(c.view(0).gpu[c.view(0).first_gpu[2]], 0U);
  EXPECT_DOUBLE_EQ(c.view(0).least(c.view(0).used, 3), 0.4);
  c.begin_step(false);  // the second step of prompts is step 3, but the clock is at 0.4 s already
  EXPECT_EQ(c.sample(), 3U);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.4);
}

TEST(SignalCursor, HoldsTheLastSampleAndLetsTheClockGoOn) {
  const SignalTable t = six_steps();
  SignalCursor c(&t);
  for (int s = 0; s < 4; ++s) c.begin_step(true);
  EXPECT_EQ(c.sample(), 5U);
  c.begin_step(true);
  EXPECT_EQ(c.sample(), 5U);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.6);  // its end
  c.begin_step(true);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.7);  // and a mean step of 100 ms
  EXPECT_DOUBLE_EQ(c.view(0).used[0], 0.5);
}

// Rows 0, 1, 4 are of replica 0, rows 2, 3, 5 of replica 2; there is no replica 1.
TEST(SignalCursor, CountsTheStepsOfEachReplicaByItself) {
  SignalTable t = six_steps();
  t.gpus = 3;
  t.used.clear();
  t.elastic.assign(18, 0);
  for (int s = 0; s < 6; ++s) t.used.insert(t.used.end(), {0.1 * s, 0.5, 0.5});
  t.replica = {0, 0, 2, 2, 0, 2};
  t.sequence_replica = {2, kNoReplica, 0};
  validate_signals(t, "test");
  SignalCursor c(&t);
  EXPECT_EQ(c.replicas(), 3U);
  EXPECT_EQ(c.replica_of(0), 2U);
  EXPECT_EQ(c.replica_of(2), 0U);
  // Numbers that the simulation never computed go round those that stepped: 0, 2.
  EXPECT_EQ(c.replica_of(1), 2U);
  EXPECT_EQ(c.replica_of(10), 0U);
  c.begin_step(true, 2);
  EXPECT_EQ(c.sample(), 2U);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.2);
  c.begin_step(true, 0);
  EXPECT_EQ(c.sample(), 1U);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.1) << "clocks are of replicas";
  c.begin_step(true, 0);
  EXPECT_EQ(c.sample(), 4U);
  c.begin_step(false, 2);
  EXPECT_EQ(c.sample(), 3U);
  c.begin_step(true, 2);
  EXPECT_EQ(c.sample(), 5U);
  // Over: replica 0's three steps took from 0 to 0.5 s, a mean of 1/6 s.
  c.begin_step(true, 0);
  EXPECT_EQ(c.sample(), 4U);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.5);
  c.begin_step(true, 0);
  EXPECT_DOUBLE_EQ(c.view(0).start, 0.5 + 0.5 / 3);
}

TEST(SignalCursor, SeesTheFirstOrTheLastSampleOfASimulationWithoutStepsOfItsKind) {
  SignalTable t = six_steps();
  t.decodes.assign(6, 1);
  SignalCursor prompts(&t);
  prompts.begin_step(false);
  prompts.begin_step(false);
  EXPECT_EQ(prompts.sample(), 0U);
  EXPECT_DOUBLE_EQ(prompts.view(0).start, 0);
  t.decodes.assign(6, 0);
  SignalCursor decoding(&t);
  decoding.begin_step(true);
  EXPECT_EQ(decoding.sample(), 5U);
  EXPECT_DOUBLE_EQ(decoding.view(0).start, 0.6);
  SignalCursor none(nullptr);
  none.begin_step(true);
  EXPECT_FALSE(none.on());
}

TEST(SignalTable, NamesTheArrayAndThePlaceOfWhatIsWrong) {
  const auto refused = [](const std::function<void(SignalTable&)>& change) {
    SignalTable t = six_steps();
    change(t);
    try {
      validate_signals(t, "s.h5");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused([](auto&) {}), "accepted");
  EXPECT_EQ(refused([](auto& t) { t.used[3] = 1.5; }), "accepted");  // out of memory
  EXPECT_EQ(refused([](auto& t) { t.start_ps[2] = 5; }),
            "s.h5: start[2]: 5 ps: times ascend from 0");
  EXPECT_EQ(refused([](auto& t) { t.end_ps[2] = 5; }),
            "s.h5: end[2]: 5 ps is before the step's start at 200000000000 ps");
  EXPECT_EQ(refused([](auto& t) { t.decodes[1] = 2; }), "s.h5: decodes[1]: 2 is neither 0 nor 1");
  EXPECT_EQ(refused([](auto& t) { t.placement[5] = 2; }), "s.h5: placement[5]: 2 of 2");
  EXPECT_EQ(refused([](auto& t) { t.used[4] = std::nan(""); }),
            "s.h5: used[4]: nan is no share of a memory");
  EXPECT_EQ(refused([](auto& t) { t.elastic[4] = -0.1; }),
            "s.h5: elastic[4]: -0.1 is no share of a memory");
  EXPECT_EQ(refused([](auto& t) { t.first_gpu[1] = 0; }),
            "s.h5: first_gpu[0]: offsets ascend, so that every expert has a GPU, and end with the "
            "list");
  EXPECT_EQ(refused([](auto& t) { t.first_gpu.back() = 10; }),
            "s.h5: first_gpu[9]: offsets ascend, so that every expert has a GPU, and end with the "
            "list");
  EXPECT_EQ(refused([](auto& t) { t.gpu[8] = 2; }), "s.h5: gpu[8]: GPU 2 of 2");
  EXPECT_EQ(refused([](auto& t) { t.used.pop_back(); }), "s.h5: used has 11 values, expected 12");
  EXPECT_EQ(refused([](auto& t) { t.queue.assign(23, 0.0F); }),
            "s.h5: queue has 23 values, expected 24");
  EXPECT_EQ(refused([](auto& t) {
              t.queue.assign(24, 0.0F);
              t.queue[7] = -1;
            }),
            "s.h5: queue[7]: -1 is no length of a queue");
  EXPECT_EQ(refused([](auto& t) { t.longest_queue.assign(5, 0); }),
            "s.h5: longest_queue has 5 values, expected 6");
  EXPECT_EQ(refused([](auto& t) { t = SignalTable{}; }),
            "s.h5: 0 steps of 0 GPUs, 0 MoE layers, 0 experts: each is at least 1");
}

TEST(SignalTable, WithoutQueuesIsRefusedForPoliciesThatReadThem) {
  SignalTable t = six_steps();
  const auto refused = [&](const char* policy) {
    try {
      require_queues(t, policy_of(policy), "s.h5");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("load_aware.u=total"), "accepted");
  EXPECT_EQ(
      refused("load_aware.u=queue capacity.rule=share"),
      "s.h5: holds no queues, which policy.load_aware.u = queue reads: the simulation's policy "
      "read none; simulate with the policy that the engine runs with");
  EXPECT_NE(refused("soft_balance.limit=128").find("soft_balance.batch_limit"), std::string::npos);
  t.queue.assign(24, 0.0F);
  t.longest_queue.assign(6, 0);
  EXPECT_EQ(refused("load_aware.u=queue capacity.rule=share"), "accepted");
  EXPECT_EQ(refused("soft_balance.limit=128"), "accepted");
}

// M04 with lambda 1: z = (1, 0.8, 0, 0) - queue (0.5, 0, 0, 0): expert 1 first.
TEST(LoadAware, ReadsTheQueuesOfTheMachineWhenItHasThem) {
  SignalTable t = six_steps();
  t.queue.assign(24, 0.0F);
  t.queue[4] = 0.5F;  // step 1, expert 0
  SignalCursor c(&t);
  c.begin_step(true);
  const Signals signals = c.view(0);
  Router r(gate_mixtral(4, 1),
           "load_aware.u=queue load_aware.lambda=1 capacity.rule=share "
           "capacity.factor=4");
  const std::vector<float> logits{1.0F, 0.8F, 0, 0};
  EXPECT_EQ(r.step(logits).chosen[0], 0);  // its own queues: nothing ran yet
  r.signals = &signals;
  EXPECT_EQ(r.step(logits).chosen[0], 1);
  // Its own queue of expert 1 is longer now, but it is the machine's that counts.
  EXPECT_EQ(r.step(logits).chosen[0], 1);
}

TEST(SoftBalance, TakesAThirdExpertWhenAQueueOfTheMachineWasLong) {
  SignalTable t = six_steps();
  t.longest_queue = {0, 65, 64, 0, 0, 0};
  SignalCursor c(&t);
  Router r(gate_mixtral(4, 2),
           "soft_balance.limit=128 soft_balance.low_memory=0 "
           "soft_balance.k3_memory=0");
  const std::vector<float> logits{3, 2, 1, 0};
  c.begin_step(true);
  const Signals after_65 = c.view(0);
  r.signals = &after_65;
  EXPECT_EQ(r.step(logits).chosen[2], 2);
  c.begin_step(true);
  const Signals after_64 = c.view(0);
  r.signals = &after_64;
  EXPECT_EQ(r.step(logits).chosen[2], kNoExpert);  // 64 is not above 64
}

}  // namespace
}  // namespace switchyard
