// SPDX-License-Identifier: Apache-2.0
// Features that overlap exchanges with work, beside each other: chunks with packed payloads and
// relays, two halves with a hub, stages, chunks and keys that travel, on the machine of the worked
// example (sim/README.md) against arithmetic. Terms in ps: attention 10,242,880 + 1,075,200 T;
// router 4,032,768 + 12,352 T; experts of one row 14,595,200, of two 14,607,488; weighted sum
// 1,000,000 + 8,192 T. A copy has 2,048 B, packed 544; packing or unpacking n rows takes 1 us + n ·
// 2,592 B at 1 B/ps. A path has 2 us and 100 GB/s.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "tests/sim/network_util.hpp"
#include "tests/sim/sim_fixture.hpp"

namespace switchyard::sim {
namespace {

using test::MemoryRun;
using Choices = std::vector<std::vector<std::uint16_t>>;
using Settings = std::vector<std::string>;

const std::string kLognormal = R"(workload.routing={ synthetic = "lognormal", sigma = 1.2 })";
/// Two servers of four GPUs.
const std::string kTwoServers =
    R"(hardware.devices=[{ name = "gpu", count = 8, per_node = 4, kind = "gpu", type = "toy" }, )"
    R"({ name = "switch", kind = "nvswitch" }])";

void expect_sound(const MemoryRun& r) {
  for (const run::Violation& v : r.result.violations) {
    ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message;
  }
}

MemoryRun traced(const Choices& tokens, Settings settings) {
  const RoutingTrace trace = test::decode_trace({tokens, tokens}, 8);
  settings.push_back("workload.batch=" + std::to_string(tokens.size()));
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(settings)), &trace);
  expect_sound(r);
  return r;
}

MemoryRun random_run(Settings settings) {
  settings.insert(settings.begin(), kLognormal);
  MemoryRun r = test::run_in_memory(test::worked_scenario(std::move(settings)), nullptr);
  expect_sound(r);
  return r;
}

std::int64_t duration(const MemoryRun& r, std::size_t step = 0) {
  return r.data.steps[step].end_ps - r.data.steps[step].start_ps;
}

/// n tokens; each GPU sends two copies and runs two rows of its expert for every eight of them.
Choices even(std::uint16_t n, std::uint16_t of_each = 1) {
  Choices tokens;
  for (std::uint16_t t = 0; t < n; ++t) {
    const auto x = static_cast<std::uint16_t>(t / of_each);
    tokens.push_back(
        {static_cast<std::uint16_t>((x + 1) % 8), static_cast<std::uint16_t>((x + 2) % 8)});
  }
  return tokens;
}

Settings with(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr std::int64_t kUs = 1'000'000, kOne = 14'595'200, kTwo = 14'607'488;

}  // namespace

// ---- chunks ----

TEST(PackedChunks, ArePackedBesideTheWayOfTheOneBefore) {
  // A layer whole: pack two rows, two copies there, unpack, experts, and the same way back.
  const std::int64_t p2 = kUs + 2 * 2592, x2 = 2 * kUs + 1088 * 10;
  const std::int64_t whole = 4 * p2 + 2 * x2 + kTwo;
  // In two chunks of one row. Chunk 1 is packed while chunk 0 travels and is there before the
  // experts of chunk 0 are through; combine 0 is back before chunk 1 has left, and is unpacked
  // while that travels:
  //   pack, there, 2 · (unpack, experts, pack), back, unpack
  // and one unpacking (of combine 0) is hidden by the way of combine 1, one packing by dispatch 0.
  const std::int64_t p = kUs + 2592, x = 2 * kUs + 544 * 10;
  const std::int64_t chunks = p + x + 2 * (p + kOne + p) + x + p;
  const MemoryRun one = traced(even(8), {"network.payload.wire=int4"});
  const MemoryRun two = traced(even(8), {"network.payload.wire=int4", "network.chunks=2"});
  EXPECT_EQ(duration(two) - duration(one), 2 * (chunks - whole));
  EXPECT_EQ(two.data.totals.bytes_sent, one.data.totals.bytes_sent);
  EXPECT_EQ(two.data.links.bytes, one.data.links.bytes);
  EXPECT_EQ(two.data.layer_steps.dispatch_ps[0], 2 * x);
  EXPECT_EQ(two.data.layer_steps.expert_ps[0], 2 * kOne);
}

TEST(PackedChunks, SendTheirHalvesOneAfterTheOther) {
  // Two INT2 halves: the same bytes, and 2 us more for each chunk's way.
  const std::int64_t p = kUs + 2592, x = 4 * kUs + 544 * 10;
  const std::int64_t chunks = p + x + 2 * (p + kOne + p) + x + p;
  const std::int64_t p2 = kUs + 2 * 2592, whole = 4 * p2 + 2 * (4 * kUs + 1088 * 10) + kTwo;
  const MemoryRun one = traced(even(8), {"network.payload.wire=int2_halves"});
  const MemoryRun two = traced(even(8), {"network.payload.wire=int2_halves", "network.chunks=2"});
  EXPECT_EQ(duration(two) - duration(one), 2 * (chunks - whole));
  EXPECT_EQ(two.data.totals.bytes_sent, one.data.totals.bytes_sent);
}

TEST(RelayedChunks, FanOutChunkByChunk) {
  // GPU 0's token goes to GPUs 5 and 6 through GPU 4. A chunk's half of the copy: 1,024 B to the
  // relay, twice that out of it. The one row of each expert is of chunk 1; combine 0 is back
  // before.
  const std::int64_t to = 2 * kUs + 1024 * 10, out = 2 * kUs + 2048 * 10;
  const std::int64_t chunks = 2 * (to + out) + kOne + (to + out);
  const std::int64_t whole = 2 * (2 * kUs + 2048 * 10 + 2 * kUs + 4096 * 10) + kOne;
  const MemoryRun one = traced({{5, 6}}, {kTwoServers, "network.dispatch=per_node"});
  const MemoryRun two =
      traced({{5, 6}}, {kTwoServers, "network.dispatch=per_node", "network.chunks=2"});
  EXPECT_EQ(duration(two) - duration(one), 2 * (chunks - whole));
  EXPECT_EQ(two.data.totals.bytes_sent, one.data.totals.bytes_sent);
  EXPECT_EQ(two.data.links.bytes, one.data.links.bytes);
}

TEST(RelayedChunks, GroupsOfExpertsReachANodeOnceEach) {
  // ep = 4 would have both experts on one GPU; here rank r has experts 2r and 2r + 1 of four ranks
  // over two servers. GPU 0's token chooses both experts of GPU 3, whose server's relay is GPU 2:
  // whole 0 → 2 → 3 once, in two groups twice.
  const Settings ep4{R"(hardware.devices=[{ name = "gpu", count = 4, per_node = 2, kind = "gpu", )"
                     R"(type = "toy" }, { name = "switch", kind = "nvswitch" }])",
                     R"(hardware.links=[{ from = "gpu[0-3]", to = "switch", type = "cable" }])",
                     "parallel.dp=4", "parallel.ep=4", "network.dispatch=per_node"};
  const MemoryRun whole = traced({{6, 7}}, ep4);
  const MemoryRun groups =
      traced({{6, 7}}, with(ep4, {"network.chunks=2", "network.chunk_by=experts"}));
  EXPECT_EQ(whole.data.totals.bytes_sent, 2U * 2 * 2 * 2048);
  EXPECT_EQ(groups.data.totals.bytes_sent, 2 * whole.data.totals.bytes_sent);
  EXPECT_EQ(groups.data.totals.pair_bytes[0 * 4 + 2], 2 * whole.data.totals.pair_bytes[0 * 4 + 2]);
  EXPECT_EQ(groups.data.totals.pair_bytes[2 * 4 + 3], 2 * whole.data.totals.pair_bytes[2 * 4 + 3]);
  // Experts of GPUs 2 and 3: the relay is a destination of the group of its own expert only.
  const MemoryRun both =
      traced({{4, 7}}, with(ep4, {"network.chunks=2", "network.chunk_by=experts"}));
  EXPECT_EQ(both.data.totals.pair_bytes[0 * 4 + 2], 2U * 2 * 2048);  // Two layers, two groups.
  EXPECT_EQ(both.data.totals.pair_bytes[2 * 4 + 3], 2U * 2048);
}

TEST(Chunks, ConserveBytesAndRowsInEveryCombination) {
  const Settings base{kTwoServers, "workload.batch=40", "workload.steps=2"};
  for (const char* ep : {"parallel.ep=8", "parallel.ep=4"}) {
    for (const char* wire : {"native", "int4", "int2_halves"}) {
      for (const char* dispatch : {"per_rank", "per_node", "per_expert"}) {
        const Settings all = with(base, {ep, std::string("network.payload.wire=") + wire,
                                         std::string("network.dispatch=") + dispatch});
        const MemoryRun one = random_run(all);
        for (const char* k : {"2", "5"}) {
          const MemoryRun r = random_run(with(all, {std::string("network.chunks=") + k}));
          EXPECT_EQ(r.data.totals.bytes_sent, one.data.totals.bytes_sent) << wire << dispatch << k;
          EXPECT_EQ(r.data.links.bytes, one.data.links.bytes) << wire << dispatch << k;
          EXPECT_EQ(r.data.totals.expert_kept, one.data.totals.expert_kept);
        }
        // Groups send at least as much, and compute the same rows.
        const MemoryRun groups =
            random_run(with(all, {"network.chunks=2", "network.chunk_by=experts"}));
        EXPECT_GE(groups.data.totals.bytes_sent, one.data.totals.bytes_sent);
        EXPECT_EQ(groups.data.totals.expert_kept, one.data.totals.expert_kept);
      }
    }
  }
}

TEST(ExpertGroups, KeepTheGroupOfAnExpertThatLiesElsewhere) {
  // Experts 2 and 3 are GPU 1's, in groups 0 and 1; 3 lies on GPU 0. GPU 2's token chooses both:
  // each group sends it a copy of its own, and the row of expert 3 travels on to GPU 0 and back in
  // group 1 alone: with its 2,020,480 twice in the layer's dispatch and combine beside the two
  // ways.
  const Settings on{"parallel.dp=4",
                    "parallel.ep=4",
                    R"(hardware.devices=[{ name = "gpu", count = 4, kind = "gpu", type = "toy" }, )"
                    R"({ name = "switch", kind = "nvswitch" }])",
                    R"(hardware.links=[{ from = "gpu[0-3]", to = "switch", type = "cable" }])",
                    "network.chunks=2",
                    "network.chunk_by=experts"};
  const Choices tokens{{0, 1}, {2, 3}, {2, 3}, {6, 7}};
  const MemoryRun well = traced(tokens, on);
  const MemoryRun astray = traced(
      tokens,
      with(on, {R"(faults.events=[{kind="mis_sharding",expert=3,layer=0,gpu="gpu0",step=0}])"}));
  // GPU 1's own token and GPU 2's: two rows to GPU 0 and back.
  EXPECT_EQ(astray.data.totals.bytes_sent - well.data.totals.bytes_sent, 2U * 2 * 2048);
  EXPECT_EQ(astray.data.totals.pair_bytes[1 * 4 + 0] - well.data.totals.pair_bytes[1 * 4 + 0],
            2U * 2048);
  EXPECT_EQ(astray.data.layer_steps.dispatch_ps[0] - well.data.layer_steps.dispatch_ps[0],
            2 * kUs + 4096 * 10);
  EXPECT_EQ(astray.data.layer_steps.combine_ps[0] - well.data.layer_steps.combine_ps[0],
            2 * kUs + 4096 * 10);
  EXPECT_EQ(astray.data.layer_steps.dispatch_ps[1], well.data.layer_steps.dispatch_ps[1]);
  EXPECT_EQ(astray.data.totals.expert_kept, well.data.totals.expert_kept);
}

// ---- two halves ----

TEST(TwoBatch, FeedsTheOthersFromAHub) {
  // 16 tokens on GPU 0, eight a half; every GPU has two rows of its expert in either. The hub sends
  // 14 copies: x. Its front of eight tokens is longer than anything the others do, so only the last
  // combine shows, beside the first half's weighted sum.
  const std::int64_t x = 2 * kUs + 14 * 20'480;
  const std::int64_t front = 10'242'880 + 8 * 1'075'200 + 4'032'768 + 8 * 12'352;
  const std::int64_t sum = kUs + 8 * 8192;
  const std::int64_t host = 26 * kUs, embedding = kUs + 16 * 4096;
  const std::int64_t head = 3 * kUs + 16'777'216 + 16 * 71'680;
  const Settings hub{"parallel.attention=hub", "memory.kv.placement=hub"};
  const MemoryRun r = traced(even(16, 2), with(hub, {"network.two_batch=true"}));
  EXPECT_EQ(duration(r), host + embedding + 4 * (front + kTwo) + 3 * sum + x + head);
  const MemoryRun whole = traced(even(16, 2), hub);
  EXPECT_EQ(r.data.totals.bytes_sent, whole.data.totals.bytes_sent);
  EXPECT_EQ(r.data.totals.expert_kept, whole.data.totals.expert_kept);
  EXPECT_EQ(r.data.layer_steps.dispatch_ps[0], 2 * x);
}

TEST(TwoBatch, OverlapsTheChunksOfEachHalf) {
  // As in HidesTheExchangesBehindTheOtherHalf, each half's two rows in two chunks of one: experts
  // read their weights twice, the exchange that shows at the end is the last chunk's.
  const std::int64_t front = 15'363'200, x = 2 * kUs + 20'480, sum = 1'008'192;
  const std::int64_t host = 12'000'000 + 1'008'192, head = 19'920'576;
  const Choices tokens = even(16);
  const MemoryRun r = traced(tokens, {"network.two_batch=true", "network.chunks=2"});
  EXPECT_EQ(duration(r), host + 4 * (front + 2 * kOne) + 3 * sum + x + head);
  EXPECT_EQ(r.data.layer_steps.dispatch_ps[0], 4 * x);
  EXPECT_EQ(r.data.totals.bytes_sent, traced(tokens, {}).data.totals.bytes_sent);
}

TEST(TwoBatch, DividesTheMicroBatchesOfStages) {
  // Two stages of one layer and four GPUs, two tokens a GPU, one a half: token of home h has one
  // expert of each of the next two GPUs. A stage: 2 · (front + experts) + sum + exchange + sum.
  Choices tokens;
  for (std::uint16_t t = 0; t < 8; ++t) {
    tokens.push_back(
        {static_cast<std::uint16_t>((t + 1) % 4 * 2), static_cast<std::uint16_t>((t + 2) % 4 * 2)});
  }
  const Settings stages{"parallel.attention=pp", "parallel.pp=2", "parallel.dp=4", "parallel.ep=4",
                        "parallel.micro_batches=1"};
  const std::int64_t front = 15'363'200, x = 2 * kUs + 2 * 20'480, sum = 1'008'192;
  const std::int64_t layer = 2 * (front + kTwo) + sum + x;  // The first half's sum hides in x.
  const MemoryRun r = traced(tokens, with(stages, {"network.two_batch=true"}));
  EXPECT_EQ(duration(r), 12'000'000 + 1'008'192 + 2 * layer + 2'040'960 + 19'920'576 + 2'000'080);
  const MemoryRun whole = traced(tokens, stages);
  EXPECT_EQ(r.data.totals.bytes_sent, whole.data.totals.bytes_sent);
  EXPECT_EQ(r.data.totals.expert_kept, whole.data.totals.expert_kept);
  // Of four sequences of a home two are of each micro-batch, one of either half: as many bytes.
  const Settings deep = with(stages, {"parallel.micro_batches=2", "workload.batch=19"});
  const MemoryRun two = random_run(with(deep, {"network.two_batch=true"})), one = random_run(deep);
  EXPECT_EQ(two.data.totals.bytes_sent, one.data.totals.bytes_sent);
  EXPECT_EQ(two.data.totals.expert_kept, one.data.totals.expert_kept);
  EXPECT_NEAR(two.data.steps[0].gate_entropy, one.data.steps[0].gate_entropy, 1e-9);
}

TEST(TwoBatch, IsNeverSlowerThanItsParts) {
  // What either half's slowest GPU takes in every phase, one after the other, is all there is.
  const std::vector<Settings> layouts{{},
                                      {"network.chunks=3"},
                                      {"network.payload.wire=int4", "network.chunks=2"},
                                      {kTwoServers, "network.dispatch=per_node"},
                                      {"parallel.attention=hub", "memory.kv.placement=hub"},
                                      {"parallel.ep=4"}};
  for (const Settings& layout : layouts) {
    const MemoryRun r = random_run(with(layout, {"workload.batch=48", "network.two_batch=true"}));
    std::int64_t parts = 0;
    for (std::size_t l = 0; l < 2; ++l) {
      const auto& x = r.data.layer_steps;
      parts +=
          x.attention_ps[l] + x.router_ps[l] + x.dispatch_ps[l] + x.expert_ps[l] + x.combine_ps[l];
    }
    // Beside the layers, and the weighted sums and packing kernels of the slowest GPU.
    std::int64_t most = 0;
    for (std::size_t g = 0; g < 8; ++g) {
      const auto phase = [&](run::Phase p) {
        return r.data.totals.gpu_phase_ps[g * run::kPhases + static_cast<std::size_t>(p)];
      };
      most = std::max(most, phase(run::Phase::kHost) + phase(run::Phase::kHead));
    }
    const std::int64_t sums = 4 * (kUs + 8192 * 48), packs = 2 * 2 * 3 * 4 * (kUs + 2592 * 48);
    EXPECT_LE(duration(r), parts + most + sums + packs) << testing::PrintToString(layout);
  }
}

TEST(TwoBatch, TakesKeysAndValuesOverTheWires) {
  // by_token: every home pulls 7 · 128 cached tokens a layer of each of its two sequences, one in
  // either half, before that half's attention; the other half's exchanges wait for the wires.
  const Settings kv{"memory.kv.placement=by_token", "workload.batch=16"};
  const MemoryRun whole = random_run(kv), halves = random_run(with(kv, {"network.two_batch=true"}));
  EXPECT_EQ(halves.data.totals.bytes_sent, whole.data.totals.bytes_sent);
  const Settings here{"memory.kv.placement=by_sequence", "workload.batch=16",
                      "network.two_batch=true"};
  // 896 tokens of 1,024 B in either half and layer, in turn on the wires.
  EXPECT_GE(duration(halves) - duration(random_run(here)), 4 * (7 * 128 * 1024 * 10));
  for (const char* more : {"memory.kv.decode=merge", "memory.kv.decode=pull"}) {
    for (const char* where : {"by_token", "by_expert"}) {
      const Settings all{std::string("memory.kv.placement=") + where, more, "workload.batch=24",
                         "workload.steps=3"};
      const MemoryRun one = random_run(all),
                      two = random_run(with(all, {"network.two_batch=true"}));
      EXPECT_EQ(two.data.totals.bytes_sent, one.data.totals.bytes_sent) << where << more;
      EXPECT_EQ(two.data.totals.gpu_memory.size(), one.data.totals.gpu_memory.size());
      const auto kv_of = [](const MemoryRun& r) {
        std::vector<std::uint64_t> bytes;
        for (std::size_t g = 0; g < 8; ++g) {
          bytes.push_back(
              r.data.totals.gpu_memory[g * run::kMemoryCategories +
                                       static_cast<std::size_t>(run::MemoryCategory::kKv)]);
        }
        return bytes;
      };
      EXPECT_EQ(kv_of(two), kv_of(one)) << where << more;
    }
  }
}

// ---- everything with everything ----

namespace {

/// One of `choices`, each a list of settings.
void pick(network::test::Draw& draw, const std::vector<Settings>& choices, Settings& settings) {
  const Settings& one = choices[draw.below(static_cast<std::uint32_t>(choices.size()))];
  settings.insert(settings.end(), one.begin(), one.end());
}

}  // namespace

TEST(Combinations, KeepEveryConservationLawOrAreRefusedByName) {
  // Laws are checked in every run (expect_sound). flow and coflow are the queue's here: a cable may
  // change (SimGrid has one session a process).
  const std::string never =
      R"(faults.events=[{ kind = "link_degraded", link = "gpu0--switch", factor = 0.5, step = 1 }])";
  const std::string cpu =
      R"(parallel.router_cpu={ flops = "1 TFLOP/s", bandwidth = "100 GB/s", per_batch = "10 us" })";
  std::size_t ran = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    network::test::Draw draw(seed);
    Settings s{kLognormal, "workload.steps=3", never};
    pick(draw,
         {{"hardware.file=worked_cpu.toml"},
          {"hardware.file=worked_cpu.toml", "parallel.router=cpu", cpu},
          {"hardware.file=worked_card.toml", "parallel.router=card"},
          {kTwoServers}},
         s);
    pick(draw,
         {{},
          {"parallel.ep=4"},
          {"parallel.attention=hub", "memory.kv.placement=hub"},
          {"parallel.attention=tp", "parallel.dp=4", "parallel.tp=2", "parallel.ep=8"},
          {"parallel.attention=tp", "parallel.dp=2", "parallel.tp=4", "parallel.ep=4"},
          {"parallel.attention=pp", "parallel.dp=4", "parallel.pp=2", "parallel.ep=4"},
          {"parallel.attention=pp", "parallel.dp=4", "parallel.pp=2", "parallel.ep=2",
           "parallel.micro_batches=3"}},
         s);
    pick(draw,
         {{"network.model=auto"},
          {"network.model=bottleneck"},
          {"network.model=flow"},
          {"network.model=coflow"}},
         s);
    pick(draw, {{}, {"network.payload.wire=int4"}, {"network.payload.wire=int2_halves"}}, s);
    pick(draw, {{}, {"network.dispatch=per_node"}, {"network.dispatch=per_expert"}}, s);
    pick(draw, {{}, {"network.chunks=2"}, {"network.chunks=3", "network.chunk_by=experts"}}, s);
    pick(draw, {{}, {"network.two_batch=true"}}, s);
    pick(draw,
         {{},
          {},
          {"memory.kv.placement=by_token"},
          {"memory.kv.placement=by_expert", "memory.kv.decode=merge"}},
         s);
    pick(draw, {{"workload.batch=1"}, {"workload.batch=8"}, {"workload.batch=43"}}, s);
    try {
      const MemoryRun r = test::run_in_memory(test::worked_scenario(s), nullptr);
      ++ran;
      for (const run::Violation& v : r.result.violations) {
        ADD_FAILURE() << v.check << " at " << v.where << ": " << v.message << " with "
                      << testing::PrintToString(s);
      }
    } catch (const InputError& e) {
      ++refused;
      const std::string text = e.what();
      EXPECT_TRUE(text.find("unsupported") != std::string::npos ||
                  text.find("means nothing") != std::string::npos)
          << text << " with " << testing::PrintToString(s);
    }
  }
  EXPECT_GT(ran, refused);
}

}  // namespace switchyard::sim
