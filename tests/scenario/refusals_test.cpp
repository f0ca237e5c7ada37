// SPDX-License-Identifier: Apache-2.0
// What the scenario reader refuses, a row a rule: settings on the worked example and a part of the
// message. Rules with tests of their own stand there (serving, faults, residency, KV placement).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::scenario {
namespace {

std::string message(const std::vector<std::string>& settings) {
  ReadOptions options;
  options.settings = {R"(workload.routing={ synthetic = "uniform" })"};
  options.settings.insert(options.settings.end(), settings.begin(), settings.end());
  options.require_trace = false;
  options.presets_root = std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios";
  try {
    (void)read_scenario(std::string(SWITCHYARD_SOURCE_DIR) + "/tests/sim/data/worked.toml",
                        options);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

struct Refusal {
  std::vector<std::string> settings;
  const char* part;
};

void expect_all(const std::vector<Refusal>& rows) {
  for (const Refusal& r : rows) {
    const std::string got = message(r.settings);
    EXPECT_NE(got.find(r.part), std::string::npos) << "wanted: " << r.part << "\ngot: " << got;
  }
}

std::string serve(const std::string& more = "") {
  return R"(workload={ kind = "open", routing = { synthetic = "uniform" }, arrivals = { per_second =)"
         R"( 4.0, requests = 3 }, lengths = { prompt = 8, output = 2 })" +
         more + " }";
}
std::string fault(const std::string& text) { return "faults.events=[{ " + text + " }]"; }
std::string gpus(const std::string& text) {
  return "hardware.devices=[{ name = \"gpu\", count = 8, kind = \"gpu\", type = \"toy\" }, { name "
         "= "
         "\"switch\", kind = \"nvswitch\" }" +
         text + "]";
}
std::string cables(const std::string& text) {
  return R"(hardware.links=[{ from = "gpu[0-7]", to = "switch", type = "cable" })" + text + "]";
}

}  // namespace

TEST(Refusals, OfTheParallelLayout) {
  expect_all({
      {{"parallel.pp=2"}, "stages need attention = \"pp\""},
      {{"parallel.router=cpu"}, "hardware worked has no cpu device"},
      {{"parallel.tp=2"}, "divides attention over GPUs"},
      {{"parallel.dp=4"}, "dp * tp * pp = 8 GPUs"},
      {{"parallel.attention=tp", "parallel.dp=1", "parallel.tp=8", "parallel.ep=4",
        "network.chunks=2"},
       "attention = \"tp\" and ep <= tp: there is no dispatch"},
      {{"parallel.attention=hub", "parallel.ep=4", "memory.kv.placement=hub"},
       "attention = \"hub\" with ep = 4 of 8 GPUs is unsupported"},
      {{"parallel.placement=eplb", "parallel.placement_options={ groups = 3 }"},
       "groups divides the 8 experts"},
      {{"parallel.placement=eplb", "parallel.placement_options={ groups = 4, nodes = 3 }"},
       "nodes divides ep = 8"},
      {{"parallel.rebalance={ signal = \"load\", threshold = 1.5 }"},
       "this placement does not follow loads"},
      {{"parallel.rebalance={ signal = \"off\", window = 2 }"}, "means nothing with signal"},
      {{"parallel.rebalance={ signal = \"load\", threshold = 1.5, to = \"contiguous\" }"},
       "eplb, topology_hot"},
      {{"parallel.placement=eplb",
        "parallel.rebalance={ signal = \"load\", threshold = 1.5, to = \"eplb\" }"},
       "means nothing: this placement is made anew in its own way"},
      {{"parallel.attention=pp", "parallel.ep=1"},
       "pp <= 2 layers of worked_model; the default here is 8"},
  });
}

TEST(Refusals, OfTheNetwork) {
  write_file("measured.csv", "bytes,GB/s\n1000,1\n1000000,9\n");
  expect_all({
      {{"network.chunks=2", "parallel.attention=tp", "parallel.dp=1", "parallel.tp=8"},
       "chunks = 2: unsupported with attention = \"tp\""},
      {{"network.chunks=2", "memory.loading={ from = \"host\", start = \"by_layer\" }",
        gpus(", { name = \"cpu\", kind = \"cpu\", memory = \"1 TB\" }"),
        cables(", { from = \"cpu\", to = \"switch\", type = \"cable\" }")},
       "network.chunks is unsupported with memory.residency and loading by layer"},
      {{"network.chunks=2", "policy.soft={ requests = \"all\", experts = 2, cost = \"stacked\" }"},
       "stacked"},
      {{"network.algorithm=ring_bidirectional", "network.dispatch=per_node", "parallel.ep=4"},
       "unsupported with network.dispatch = \"per_node\""},
      {{"policy.capacity={ rule = \"share\", factor = 1.0, exhausted = \"queue\", "
        "queue = \"defer\" }",
        "network.two_batch=true"},
       "policy.capacity.queue = \"defer\" is unsupported with network.two_batch"},
      {{"policy.capacity={ rule = \"share\", factor = 1.0, exhausted = \"queue\", "
        "queue = \"defer\" }",
        "workload.kind=prefill", "workload.tokens=4"},
       "only decode tokens wait"},
      {{"policy.capacity={ rule = \"share\", factor = 1.0, exhausted = \"queue\", "
        "queue = \"defer\" }",
        "memory.kv.placement=by_expert"},
       "unsupported with memory.kv.placement = \"by_expert\""},
      {{"network.broadcast=tree"}, "network.broadcast means nothing"},
      {{"network.collective=tree", "parallel.attention=tp", "parallel.dp=1", "parallel.tp=8",
        "parallel.sequence_parallel=true"},
       "there is no such reduce-scatter and all-gather"},
      {{"network.payload.header=\"2 MiB\""}, "header <= 1 MiB"},
      {{"network.payload.combine_header=\"2 MiB\""}, "combine_header <= 1 MiB"},
      {{"network.measured={ file = \"none.csv\", class = \"nvlink4\" }", "network.model=auto"},
       "none.csv"},
  });
}

TEST(Refusals, OfMemory) {
  expect_all({
      {{"memory.reserve=\"90 GB\""}, "reserve < "},
      {{"memory.allocator=paged", "memory.page=\"2 GiB\""}, "0 B < page <= 1 GiB"},
      {{"memory.page=\"2 MiB\""}, "memory.page = \"2 MiB\": means nothing"},
      {{"memory.kv.placement=hub"}, "there is no hub"},
      {{"memory.watermark_action=stop_admission"}, "a fixed batch admits and preempts nobody"},
      {{"memory.watermark_action=evict"}, "record, stop_admission, preempt"},
      {{"memory.loading={ from = \"host\", checksum = \"0 B/s\" }",
        gpus(", { name = \"cpu\", kind = \"cpu\", memory = \"1 TB\" }"),
        cables(", { from = \"cpu\", to = \"switch\", type = \"cable\" }")},
       "checksum"},
  });
}

TEST(Refusals, OfFaultsAndAlarms) {
  expect_all({
      {{"faults.events=1"}, "write [[faults.events]]"},
      {{"faults.reload=\"0 B/s\"",
        fault(R"(kind = "slow_gpu", gpu = "gpu1", factor = 2, step = 0)")},
       "reload > 0"},
      {{fault(R"(kind = "host_stall", stall = "2 h", step = 0)")}, "stall <= 1 h"},
      {{fault(R"(kind = "slow_gpu", gpu = "gpu1", factor = 2, step = 0)"), "faults.check_every=4"},
       "means nothing without a bit_flip or a mis_sharding"},
      {{fault(R"(kind = "slow_gpu", gpu = "gpu1", factor = 2, step = 0)"), "faults.detection=1 ms"},
       "faults.detection = \"1 ms\": means nothing without a gpu_loss or a link_down"},
      {{fault(R"(kind = "slow_gpu", gpu = "gpu1", factor = 2, step = 0)"),
        "faults.reload=\"1 GB/s\""},
       "no fault here has weights loaded again"},
      {{fault(R"(kind = "slow_gpu", gpu = "gpu1", factor = 2, step = 0)"),
        "faults.recompute_chunk=4"},
       "means nothing without a gpu_loss or a link_down"},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0, lasts = 2)"),
        "faults.reload=\"1 GB/s\"", "faults.reaction=restart", "faults.restart=1 s"},
       "the restart brings the GPU back"},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0)"), "faults.reload=\"1 GB/s\"",
        "memory.kv.placement=by_token"},
       "--set: memory.kv.placement = \"by_token\" is unsupported with faults gpu_loss"},
      {{fault(R"(kind = "link_down", link = "gpu1--switch", step = 0)"), "faults.reload=\"1 GB/s\"",
        "memory.kv.placement=by_expert"},
       "--set: memory.kv.placement = \"by_expert\" is unsupported with faults gpu_loss and "
       "link_down"},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0)"), "faults.reload=\"1 GB/s\"",
        "parallel.ep=4", serve(", front_end = { replicas = 2 }")},
       "each has its own copy of all"},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0)"), "faults.reload=\"1 GB/s\"",
        "faults.recompute_chunk=64", serve()},
       "means nothing with requests that arrive"},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0)"), "faults.reload=\"1 GB/s\"",
        "network.algorithm=ring"},
       "its relays may be the lost GPU"},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0)"), "faults.reload=\"1 GB/s\"",
        "network.dispatch=per_node"},
       "its relays may be the lost GPU"},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0)"), "faults.reload=\"1 GB/s\"",
        "memory.kv.placement=replicated"},
       "unsupported with memory.kv.placement = \"replicated\""},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0)"), "faults.reload=\"1 GB/s\"",
        "parallel.attention=hub"},
       "nobody can take the hub's place"},
      {{fault(R"(kind = "gpu_loss", gpu = "gpu1", step = 0)"), "faults.reload=\"1 GB/s\"",
        "parallel.attention=tp", "parallel.dp=1", "parallel.tp=8"},
       "one group of GPUs that need each other: nobody is left"},
      {{"monitor.alarms=1"}, "write [[monitor.alarms]]"},
      {{"monitor.alarms=[{ signal = \"memory\", above = \"95 %\", action = \"shed\" }]"},
       "needs requests that arrive"},
      {{"monitor.alarms=[{ signal = \"memory\", above = \"95 %\", action = \"migrate_kv\" }]",
        "memory.kv.placement=by_expert"},
       "needs memory.kv.placement = \"by_sequence\""},
      {{"monitor.alarms=[{ signal = \"memory\", above = \"95 %\", action = \"migrate_kv\" }]",
        "parallel.attention=tp", "parallel.dp=1", "parallel.tp=8"},
       "has no other GPU to move to"},
  });
}

TEST(Refusals, OfRequestsThatArrive) {
  expect_all({
      {{serve(", batching = { kv = \"1 GB\", memory_share = \"50 %\" }")},
       "memory_share is given as well"},
      {{serve(", batching = { kv = \"0 B\" }")}, "kv > 0"},
      {{serve(", batching = { swap_bandwidth = \"1 GB/s\" }")}, "means nothing with preemption"},
      {{serve(", batching = { preemption = \"swap\", swap_bandwidth = \"0 GB/s\" }")},
       "swap_bandwidth > 0"},
      {{serve(", front_end = { outages = 1 }")}, "outages = 1: expected a list"},
      {{serve(", front_end = { outages = [{ replica = 0, from = \"2 s\", until = \"1 s\" }] }")},
       "from < until"},
      {{serve(", front_end = { outages = [{ replica = 0, from = \"1 s\", until = \"3 s\" }, { "
              "replica = 0, from = \"2 s\", until = \"4 s\" }] }")},
       "overlaps another outage of replica 0"},
      {{serve(", batching = { max_waiting = 0 }")}, "1 <= max_waiting"},
      {{serve(", max_steps = 0")}, "1 <= max_steps"},
      {{serve(", tiers = 1")}, "write [[workload.tiers]] once per tier"},
      {{serve(", front_end = { replicas = 2 }"), "parallel.attention=hub", "parallel.ep=8"},
       "replicas with parallel.attention = \"hub\" is unsupported"},
      {{serve(", front_end = { replicas = 2 }"), "parallel.ep=4", "parallel.placement=eplb",
        "parallel.rebalance={ signal = \"load\", threshold = 1.5 }"},
       "replicas with parallel.rebalance is unsupported"},
      {{"workload.routing={ synthetic = \"uniform\" }", "parallel.ep=1",
        "memory.kv.placement=by_token"},
       "means nothing with parallel.ep = 1"},
      {{serve(), "parallel.ep=8", "memory.kv.placement=replicated"},
       "requests that arrive with this memory.kv.placement are unsupported"},
  });
}

TEST(Refusals, OfTheHardware) {
  expect_all({
      {{"hardware.gpu_types.toy.memory=\"0 B\""}, "memory > 0"},
      {{"hardware.gpu_types.toy.hbm=\"0 B/s\""}, "hbm > 0"},
      {{"hardware.gpu_types.toy.tdp=\"0 W\""}, "tdp > 0"},
      {{"hardware.gpu_types.toy.idle=\"800 W\""}, "idle <= tdp"},
      {{"hardware.gpu_types.toy.peak={ bf16 = \"0 FLOP/s\" }"}, "peak > 0"},
      {{"hardware.devices=1"}, "write [[devices]]"},
      {{"hardware.links=1"}, "write [[links]]"},
      {{gpus(", { name = \"gpu[0-1]\", count = 2, kind = \"cpu\" }")},
       "the name has a range already"},
      {{"hardware.devices=[{ name = \"gpu\", kind = \"gpu\", type = \"none\" }]"},
       "no such [gpu_types] entry"},
      {{gpus(", { name = \"cpu\", kind = \"cpu\", type = \"toy\" }")}, "only a GPU has a type"},
      {{gpus(", { name = \"s2\", kind = \"nvswitch\", memory = \"1 GB\" }")}, "has no memory"},
      {{"hardware.devices=[{ name = \"gpu\", kind = \"gpu\", type = \"toy\", memory = \"1 GB\" }]"},
       "a GPU has the memory of its type"},
      {{cables(", { from = \"gpu0\", to = \"nobody\", type = \"cable\" }")},
       "there is no device \"nobody\""},
      {{cables(", { from = \"gpu0\", to = \"gpu1\", type = \"none\" }")},
       "no such [link_types] entry"},
      {{cables(", { from = \"gpu0\", to = \"switch\", type = \"cable\" }")},
       "a second link between gpu0 and switch"},
      {{cables(", { from = \"gpu[0-\", to = \"switch\", type = \"cable\" }")}, "malformed pattern"},
  });
}

TEST(Refusals, OfSweepsAndSettings) {
  expect_all({
      {{"sweep=1"}, "sweep: expected a list of tables"},
      {{"sweep=[{ key = \"sweep\", values = [1] }]"}, "a sweep cannot sweep itself"},
      {{"sweep=[{ key = \"run.seed\", values = [1] }, { key = \"run.seed\", values = [2] }]"},
       "is swept twice"},
      {{"hardware.links[0=1"}, "\"[\" without \"]\""},
      {{"hardware.links[x]=1"}, "[x] is no list position"},
      {{"model.file=\"no_such_model\""}, "no_such_model"},
  });
}

TEST(Refusals, OfAmountsOfMoneyNameAUnitOfTheirOwn) {
  const auto prices = [](const std::string& electricity, const std::string& gpu) {
    return std::vector<std::string>{"economics={ electricity = " + electricity +
                                    ", gpu_price = " + gpu + " }"};
  };
  expect_all({
      {prices("0.1", "\"1 USD\""), "write e.g. \"0.1 USD/kWh\""},
      {prices("\"0.1\"", "\"1 USD\""), "write e.g. \"0.1 USD/kWh\""},
      {prices("\"0.1 USD/kWh\"", "5"), "write e.g. \"30000 USD\""},
      {prices("\"0.1 USD/kWh\"", "\"5 USD/kWh\""), "unknown unit"},
      // A format may be swept beside it.
      {{"network.payload={ scale_block = 32 }"}, "accepted"},
  });
}

}  // namespace switchyard::scenario
