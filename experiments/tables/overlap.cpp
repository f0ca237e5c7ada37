// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "experiments/tables/research_costs.hpp"
#include "experiments/tables/table_text.hpp"

namespace switchyard::tables {
namespace {

constexpr std::uint64_t kGpus = 32;

struct Exchange {
  const char *name, *keys;
};
constexpr std::array<Exchange, 4> kExchanges{
    {{"direct", ""},
     {"direct, one copy per server", "dispatch = \"per_node\"\n"},
     {"hierarchical", "algorithm = \"hierarchical\"\n"},
     {"ring", "algorithm = \"ring\"\n"}}};

double step_us(ShortRuns& runs, const std::string& workload, const std::string& network,
               bool free_links) {
  // kRunTail opens [network], so keys of ours stand behind it as dotted ones.
  std::string text = fmt::format(
      "[model]\nfile = \"deepseek_v3\"\n[hardware]\nfile = \"hardware/h100_4x8_rail.toml\"\n"
      "[parallel]\ndp = {}\nep = {}\n[workload]\n{}{}",
      kGpus, kGpus, workload, kRunTail);
  const std::string head = "[network]\n";
  text.insert(text.find(head) + head.size(),
              "payload = { dispatch = \"fp8\", combine = \"bf16\" }\n" + network);
  const auto run = runs.run(text, [&](scenario::Scenario& s) {
    for (scenario::Link& link : s.hardware.links) {
      if (free_links) {
        link.bandwidth.value *= 1e9;
        link.latency = SimTime();
        link.phase_latency.reset();
      }
    }
  });
  return metric(run, "step time mean");
}

}  // namespace

Table overlap_table(ShortRuns& runs) {
  Table t;
  t.name = "overlap";
  t.title =
      "deepseek_v3 (FP8) on 4 servers of 8 H100 with NICs, dp 32, ep 32: exchanges beside the work "
      "of another micro-batch";
  t.columns = {"step",
               "exchange",
               "micro-batches",
               "SMs for exchanges [%]",
               "time [ms]",
               "work [ms]",
               "exchange, exposed [ms]",
               "hidden [%]",
               "hidden at best [%]",
               "speed-up"};
  struct Step {
    std::string name, workload;
  };
  std::vector<Step> steps = {{"decode, 64 sequences a GPU, 4096 of context",
                              fmt::format("kind = \"decode\"\nbatch = {}\ncontext = 4096\nsteps = "
                                          "{}\nwarmup_steps = 0\n{}",
                                          64 * kGpus, runs.quick() ? 1 : 4, kDrawnRouting)}};
  if (!runs.quick()) {
    steps.push_back({"prefill, 2 prompts of 1024 a GPU",
                     fmt::format("kind = \"prefill\"\nbatch = {}\ntokens = 1024\nsteps = 1\n"
                                 "warmup_steps = 0\n{}",
                                 2 * kGpus, kDrawnRouting)});
  }
  for (const Step& step : steps) {
    struct Mode {
      bool two = false;
      int sms = 0;
      std::string keys;
      double work = 0;  // µs with free links
    };
    std::vector<Mode> modes = {{}};
    for (const int sms : {0, 10, 20, 30}) {
      if (!runs.quick() || sms % 20 == 0) {
        modes.push_back({true, sms, fmt::format("two_batch = true\ncomm_sms = \"{} %\"\n", sms)});
      }
    }
    for (Mode& mode : modes) {
      mode.work = step_us(runs, step.workload, mode.keys, true);
    }
    for (const Exchange& e : kExchanges) {
      if (runs.quick() && std::string(e.keys).find("algorithm") != std::string::npos) {
        continue;
      }
      double serial = 0;
      for (const Mode& mode : modes) {
        const double time = step_us(runs, step.workload, e.keys + mode.keys, false);
        serial = mode.two ? serial : time;
        const double exchange = serial - modes.front().work;
        t.rows.push_back({step.name, e.name, mode.two ? "2" : "1",
                          mode.two ? fmt::to_string(mode.sms) : "-", ms(time), ms(mode.work),
                          ms(time - mode.work), percent(1 - (time - mode.work) / exchange),
                          percent(std::min(1.0, mode.work / exchange)),
                          fmt::format("{:.3f}", serial / time)});
      }
    }
  }
  t.notes.emplace_back(
      "work: the same step with free links (direct). Two halves read the weights of the layers "
      "twice "
      "and run slower by the SMs given away, but fill waits for the GPU with most rows. Exposed: "
      "time "
      "- work; hidden: 1 - exposed / that of one micro-batch; at best: the smaller of work and "
      "that "
      "exchange / that exchange; speed-up: over one micro-batch");
  t.notes.emplace_back(
      "dispatch FP8, combine BF16, one copy per GPU a token goes to unless said; routing drawn, "
      "lognormal with sigma 0.9, seed 1; host 500 us a step and 10 us a sequence, assumed");
  t.notes.emplace_back(
      "not modelled: the rate of an exchange by the SMs it gets (DeepEP's kernels: 20 to 24 of "
      "132, "
      "15 to 18 %), finer orders of the parts than front A, front B, experts A, experts B");
  return t;
}

std::vector<Table> make_overlap(const TableContext& context) {
  ShortRuns runs(context);
  return {overlap_table(runs)};
}

}  // namespace switchyard::tables
