// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/serving.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/model/accounting.hpp"
#include "sim/scenario/serving_reader.hpp"
#include "sim/scenario/shard.hpp"

namespace switchyard::scenario {
namespace {

constexpr std::uint64_t kMaxRequests = 20'000'000, kMaxSteps = 100'000'000;
constexpr std::uint64_t kMaxLength = 1'000'000, kMaxBudget = std::uint64_t{1} << 22U;
constexpr std::array<std::string_view, 2> kProcessNames{"poisson", "gamma"};
constexpr std::array<std::string_view, 2> kThinkNames{"exponential", "fixed"};
constexpr std::array<std::string_view, 5> kFormatNames{"csv", "azure", "burstgpt", "mooncake",
                                                       "llmservingsim"};
constexpr std::array<std::string_view, 2> kPreemptionNames{"recompute", "swap"};
constexpr std::array<std::string_view, 2> kBalanceNames{"round_robin", "least_queue"};
constexpr std::array<std::string_view, 2> kFailureNames{"retry", "fail"};
constexpr std::int64_t kLongestPs = 3'900'000'000'000'000'000;  // 45 days

SimTime time_of(Section& s, std::string_view key, std::optional<SimTime> fallback,
                bool zero = true) {
  const SimTime t = s.duration(key, fallback);
  if (t.ps() > kLongestPs || t.ps() < (zero ? 0 : 1)) {
    s.violated(key, fmt::format("0 {} {} <= 45 days", zero ? "<=" : "<", key));
  }
  return t;
}

void read_arrivals(Context& context, Section& workload,
                   const std::function<std::filesystem::path(const Node&)>& place, Scenario& out) {
  Arrivals& a = out.workload.serving.arrivals;
  std::vector<std::string> keys{"requests", "duration"};
  const WorkloadKind kind = out.workload.kind;
  const auto allow = [&](std::initializer_list<const char*> more) {
    keys.insert(keys.end(), more.begin(), more.end());
  };
  if (kind == WorkloadKind::kOpen) allow({"process", "per_second", "cv"});
  if (kind == WorkloadKind::kClosed) allow({"users", "think", "think_law"});
  if (kind == WorkloadKind::kTrace) allow({"file", "format", "speedup", "hash_block"});
  Section s = workload.section("arrivals", keys);
  if (kind == WorkloadKind::kOpen) {
    a.process = static_cast<ArrivalProcess>(s.choice("process", kProcessNames, 0));
    a.per_second = s.number("per_second", {0, 1e9, true});
    if (a.process == ArrivalProcess::kGamma) {
      a.cv = s.number("cv", {0.01, 100});
    } else if (s.has("cv")) {
      s.fail("cv", "means nothing with process = \"poisson\"", "its cv is 1; use \"gamma\"");
    }
  } else if (kind == WorkloadKind::kClosed) {
    a.users = static_cast<std::uint32_t>(s.count("users", 1, 1'000'000));
    a.think = time_of(s, "think", SimTime());
    a.think_law = static_cast<ThinkLaw>(s.choice("think_law", kThinkNames, 0));
  } else {
    if (!s.has("file")) {
      s.fail("file", "is missing", "name a CSV with arrival_ns,prompt_tokens,output_tokens");
    }
    const Node& file = *s.find("file");
    if (file.kind != Node::Kind::kString) s.fail("file", "expected text");
    const std::filesystem::path path = place(file);
    const auto format = static_cast<RequestFormat>(s.choice("format", kFormatNames, 0));
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored) || !in) s.fail("file", "cannot be read");
    if (in.peek() == std::ifstream::traits_type::eof()) {
      s.fail("file", "is empty", "the first line names the columns; one request a line");
    }
    if (!(text << in.rdbuf())) s.fail("file", "cannot be read");
    a.file = path.generic_string();
    a.trace = std::make_shared<const RequestTrace>(parse_request_trace(text.str(), a.file, format));
    context.record("workload.arrivals.file", a.file, s.where("file"), false);
    // In the hash by content; the file's place and other columns change nothing.
    const std::string content = request_trace_csv(*a.trace, false);
    context.record(
        "workload.arrivals.trace",
        fmt::format("{} requests, {}", a.trace->requests.size(),
                    hash128(std::as_bytes(std::span(content.data(), content.size()))).hex()),
        s.where("file"));
    a.speedup = s.number("speedup", {0, 1e6, true}, 1.0);
    if (s.has("hash_block")) {
      a.hash_block = static_cast<std::uint32_t>(s.count("hash_block", 1, kMaxLength));
      const Node* batching = workload.find("batching");
      const Node* on = batching == nullptr ? nullptr : batching->find("prefix_caching");
      if (on == nullptr || on->kind != Node::Kind::kBoolean || !on->boolean) {
        s.fail("hash_block", "means nothing without workload.batching.prefix_caching = true");
      }
    }
    if (static_cast<double>(a.trace->requests.back().arrival.ps()) / a.speedup >
        static_cast<double>(kLongestPs)) {
      s.violated("speedup", "the last request arrives within 45 days");
    }
  }
  a.requests = s.count("requests", 0, kMaxRequests, 0);
  if (s.has("duration")) a.duration = time_of(s, "duration", {}, false);
  if (kind != WorkloadKind::kTrace && a.requests == 0 && !a.duration) {
    s.fail("requests", "is missing", "give requests or duration, or both: arrivals must end");
  }
}

void read_lengths(Section& workload, Scenario& out) {
  Lengths& l = out.workload.serving.lengths;
  if (out.workload.kind == WorkloadKind::kTrace) {
    if (workload.has("lengths")) {
      workload.fail("lengths", "means nothing with a trace, which has its own");
    }
    return;
  }
  Section s = workload.section("lengths", {"prompt", "output", "prompt_cv", "output_cv"});
  l.prompt = static_cast<std::uint32_t>(s.count("prompt", 1, kMaxLength));
  l.output = static_cast<std::uint32_t>(s.count("output", 1, kMaxLength));
  l.prompt_cv = s.number("prompt_cv", {0, 100}, 0.0);
  l.output_cv = s.number("output_cv", {0, 100}, 0.0);
}

/// A limit that is 0, none, by default; 0 written down would read as "nothing may".
std::uint64_t limit_of(Section& s, std::string_view key, std::uint64_t most) {
  return s.count(key, s.has(key) ? 1 : 0, most, 0);
}

/// The ids of the trace's blocks are there, and as many as its prompts have blocks.
void read_prefixes(Context& context, Section& s, const Scenario& out) {
  const Arrivals& a = out.workload.serving.arrivals;
  if (!a.trace || !a.trace->hash_ids) {
    s.fail("prefix_caching",
           a.trace ? "the request trace has no hash_ids: nothing says which prompts begin alike"
                   : "needs a request trace with hash_ids",
           "use workload.kind = \"trace\" and arrivals.format = \"mooncake\", or a csv with "
           "hash_ids");
  }
  const RequestTrace& t = *a.trace;
  for (std::size_t i = 0; i < t.requests.size(); ++i) {
    const std::uint64_t prompt = t.requests[i].prompt_tokens;
    const std::uint64_t want = (prompt + a.hash_block - 1) / a.hash_block;
    if (t.hashes_of(i).size() == want) continue;
    throw InputError(fmt::format("{}:{}", a.file, t.lines[i]),
                     fmt::format("{} hash_ids{} for a prompt of {} tokens. Violated: one for each "
                                 "block of {} tokens, {} in all",
                                 t.hashes_of(i).size(),
                                 t.hashes_of(i).empty() ? " that are whole numbers >= 0" : "",
                                 prompt, a.hash_block, want),
                     "workload.arrivals.hash_block says how many tokens an id stands for");
  }
  Hash128 hash = hash128(std::as_bytes(std::span(t.hashes)));
  context.record(
      "workload.arrivals.hash_ids",
      fmt::format("{} blocks of {} tokens, {}", t.hashes.size(), a.hash_block, hash.hex()),
      s.where("prefix_caching"));
}

void read_batching(Context& context, Section& workload, Scenario& out) {
  Batching& b = out.workload.serving.batching;
  Section s = workload.section(
      "batching", {"token_budget", "max_sequences", "chunked_prefill", "memory_share", "kv",
                   "max_waiting", "preemption", "swap_bandwidth", "swap_tier", "prefix_caching"});
  b.token_budget = static_cast<std::uint32_t>(s.count("token_budget", 1, kMaxBudget, 8192));
  b.max_sequences = static_cast<std::uint32_t>(s.count("max_sequences", 1, kMaxBudget, 256));
  b.chunked_prefill = s.boolean("chunked_prefill", true);
  if (s.has("kv")) {
    if (s.has("memory_share")) s.fail("kv", "memory_share is given as well", "give one of them");
    b.kv = s.bytes("kv");
    if (b.kv == 0) s.violated("kv", "kv > 0");
  } else {
    b.memory_share = s.percent("memory_share", 0.9);
    if (!(b.memory_share > 0) || b.memory_share > 1) {
      s.violated("memory_share", "0 < memory_share <= 100 %");
    }
  }
  b.max_waiting = static_cast<std::uint32_t>(limit_of(s, "max_waiting", kMaxRequests));
  b.preemption = static_cast<Preemption>(s.choice("preemption", kPreemptionNames, 0));
  if (b.preemption == Preemption::kSwap) {
    if (s.has("swap_bandwidth")) {
      b.swap_bandwidth = s.rate("swap_bandwidth");
      if (!(b.swap_bandwidth.value > 0)) s.violated("swap_bandwidth", "swap_bandwidth > 0");
    } else if (std::none_of(out.hardware.devices.begin(), out.hardware.devices.end(),
                            [](const Device& d) { return d.kind == DeviceKind::kCpu; })) {
      s.fail("swap_bandwidth", "is missing: the hardware has no cpu to swap to over its links",
             "write e.g. swap_bandwidth = \"25 GB/s\"");
    }
  } else if (s.has("swap_bandwidth")) {
    s.fail("swap_bandwidth", "means nothing with preemption = \"recompute\"");
  }
  if (s.has("swap_tier")) {
    constexpr std::array<std::string_view, 2> kTiers{"cpu", "cxl"};
    b.swap_to_pool = s.choice("swap_tier", kTiers) == 1;
    if (!b.swaps_over_links()) {
      s.fail("swap_tier", "means nothing: no pages swap over the links",
             "set preemption = \"swap\" and no swap_bandwidth");
    }
    if (b.swap_to_pool &&
        std::none_of(out.hardware.devices.begin(), out.hardware.devices.end(),
                     [](const Device& d) { return d.kind == DeviceKind::kCxl; })) {
      s.fail("swap_tier", fmt::format("hardware {} has no cxl device", out.hardware.name),
             "add [[devices]] kind = \"cxl\" and its links");
    }
  }
  b.prefix_caching = s.boolean("prefix_caching", false);
  if (b.prefix_caching) read_prefixes(context, s, out);
}

void read_front_end(Context& context, Section& workload, Scenario& out) {
  FrontEnd& f = out.workload.serving.front_end;
  Section s =
      workload.section("front_end", {"replicas", "prefill_replicas", "balance", "health_interval",
                                     "failures", "on_failure", "outages"});
  f.replicas = static_cast<std::uint32_t>(s.count("replicas", 1, 65536, 1));
  f.prefill_replicas = static_cast<std::uint32_t>(s.count("prefill_replicas", 0, 65535, 0));
  if (f.prefill_replicas >= f.replicas) {
    s.violated("prefill_replicas", fmt::format("prefill_replicas < replicas = {}", f.replicas));
  }
  f.balance = static_cast<Balance>(s.choice("balance", kBalanceNames, 1));
  f.health_interval = time_of(s, "health_interval", SimTime::from_us(1'000'000), false);
  f.failures = static_cast<std::uint32_t>(s.count("failures", 1, 1000, 3));
  f.on_failure = static_cast<OnFailure>(s.choice("on_failure", kFailureNames, 0));
  const Node* outages = s.find("outages");
  if (outages == nullptr) return;
  if (outages->kind != Node::Kind::kArray) {
    s.fail("outages", "expected a list", "[{ replica = 1, from = \"2 s\", until = \"5 s\" }]");
  }
  for (std::size_t i = 0; i < outages->children.size(); ++i) {
    Section o(context, &outages->children[i], fmt::format("workload.front_end.outages[{}]", i),
              {"replica", "from", "until"}, *outages);
    Outage outage;
    outage.replica = static_cast<std::uint32_t>(o.count("replica", 0, f.replicas - 1));
    outage.from = time_of(o, "from", {});
    outage.until = time_of(o, "until", {}, false);
    if (outage.until <= outage.from) o.violated("until", "from < until");
    for (const Outage& other : f.outages) {
      if (other.replica == outage.replica && outage.from < other.until &&
          other.from < outage.until) {
        o.fail("from", fmt::format("overlaps another outage of replica {}", outage.replica));
      }
    }
    f.outages.push_back(outage);
  }
  std::stable_sort(f.outages.begin(), f.outages.end(),
                   [](const Outage& a, const Outage& b) { return a.from < b.from; });
}

void read_tiers(Context& context, Section& workload, Scenario& out) {
  std::vector<Tier>& tiers = out.workload.serving.tiers;
  Section slo = workload.section("slo", {"ttft", "tpot"});
  const SimTime ttft = time_of(slo, "ttft", SimTime()), tpot = time_of(slo, "tpot", SimTime());
  const Node* list = workload.find("tiers");
  if (list == nullptr) {
    tiers.push_back({"all", 1, 0, 0, 1, ttft, tpot});
    return;
  }
  if (list->kind != Node::Kind::kArray || list->children.empty()) {
    workload.fail("tiers", "expected a list of tables", "write [[workload.tiers]] once per tier");
  }
  double sum = 0;
  for (std::size_t i = 0; i < list->children.size(); ++i) {
    Section s(context, &list->children[i], fmt::format("workload.tiers[{}]", i),
              {"name", "share", "priority", "per_second", "burst", "ttft", "tpot"}, *list);
    Tier tier;
    tier.name = s.text("name");
    for (const Tier& other : tiers) {
      if (other.name == tier.name) s.fail("name", "is there already");
    }
    tier.share = s.number("share", {0, 1});
    tier.priority = static_cast<std::uint32_t>(s.count("priority", 0, 1000, 0));
    tier.per_second = s.number("per_second", {0, 1e9}, 0.0);
    if (tier.per_second > 0) {
      tier.burst = static_cast<std::uint32_t>(s.count("burst", 1, 1'000'000, 1));
    } else if (s.has("burst")) {
      s.fail("burst", "means nothing without per_second");
    }
    tier.ttft = time_of(s, "ttft", ttft);
    tier.tpot = time_of(s, "tpot", tpot);
    sum += tier.share;
    tiers.push_back(std::move(tier));
  }
  if (tiers.size() > 250) workload.fail("tiers", "more than 250");
  if (std::abs(sum - 1) > 1e-9) {
    workload.fail("tiers", fmt::format("the shares add up to {}. Violated: = 1", sum));
  }
}

}  // namespace

std::vector<std::string> serving_keys() {
  return {"arrivals", "lengths", "batching", "front_end", "slo", "tiers", "max_steps"};
}

void read_serving(Context& context, Section& workload,
                  const std::function<std::filesystem::path(const Node&)>& place, Scenario& out) {
  for (const std::string_view key : {"batch", "context", "tokens", "steps"}) {
    if (workload.has(key)) {
      workload.fail(key, "means nothing when requests arrive",
                    "use workload.lengths, workload.batching and workload.max_steps");
    }
  }
  read_arrivals(context, workload, place, out);
  read_lengths(workload, out);
  read_batching(context, workload, out);
  read_front_end(context, workload, out);
  read_tiers(context, workload, out);
  out.workload.serving.max_steps = limit_of(workload, "max_steps", kMaxSteps);
}

void check_serving(const Section& workload, const Scenario& scenario) {
  const Parallel& p = scenario.parallel;
  const FrontEnd& f = scenario.workload.serving.front_end;
  const auto gpus = static_cast<std::uint32_t>(scenario.hardware.gpu_count());
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    throw InputError(workload.where("front_end"), message, hint);
  };
  const bool hub = p.attention == AttentionPlacement::kHub;
  if (f.replicas > 1 && hub) {
    refuse("workload.front_end.replicas with parallel.attention = \"hub\" is unsupported",
           "use attention = \"dp\" or \"tp\"");
  }
  const auto divides = [&](std::uint32_t replicas, std::uint32_t all, const Parallel& layout,
                           const std::string& kind, const std::string& key) {
    const std::uint32_t unit = layout.exchange_gpus();
    if (all % replicas == 0 && all / replicas % unit == 0) return;
    refuse(
        fmt::format("{} {}replicas of {} GPUs. Violated: a replica has a whole number of groups of "
                    "{} GPUs (ep, tp)",
                    replicas, kind, all, unit),
        fmt::format("set {} to the GPUs of a replica, or a divisor of them", key));
  };
  if (scenario.prefill && f.prefill_replicas > 0) {
    divides(f.prefill_replicas, scenario.prefill->gpus(), *scenario.prefill, "prefill ",
            "parallel.prefill.ep");
    divides(f.replicas - f.prefill_replicas, p.gpus(), p, "decode ", "parallel.ep");
  } else {
    divides(f.replicas, gpus, p, "", "parallel.ep");
  }
  if (f.replicas > 1 && p.rebalance.signal != RebalanceSignal::kOff) {
    refuse("workload.front_end.replicas with parallel.rebalance is unsupported",
           "use one replica, or a fixed placement");
  }
  if (scenario.workload.serving.batching.swaps_over_links()) {
    const auto alone = [&](bool on, const std::string& with) {
      if (on) {
        throw InputError(workload.where("batching"),
                         "workload.batching.preemption = \"swap\" over the links is unsupported "
                         "with " +
                             with,
                         "state batching.swap_bandwidth");
      }
    };
    alone(!scenario.network.measured.points.empty(), "network.measured");
    alone(scenario.network.chunks > 1, "network.chunks");
  }
  const KvPlacement kv = scenario.memory.kv_placement;
  const bool spread = kv == KvPlacement::kByToken || kv == KvPlacement::kByExpert;
  if (!spread && kv != (hub ? KvPlacement::kHub : KvPlacement::kBySequence)) {
    throw InputError(workload.where("kind"),
                     "requests that arrive with this memory.kv.placement are unsupported",
                     hub ? "use placement = \"hub\", \"by_token\" or \"by_expert\""
                         : "use placement = \"by_sequence\", \"by_token\" or \"by_expert\"");
  }
  if (scenario.workload.serving.batching.prefix_caching) {
    const auto alone = [&](bool on, const std::string& message, const std::string& hint) {
      const Node* key = workload.find("batching")->find("prefix_caching");
      if (on) throw InputError(key->where(), message, hint);
    };
    alone(spread,
          "workload.batching.prefix_caching is unsupported with memory.kv.placement = \"by_token\" "
          "and \"by_expert\"",
          "use placement = \"by_sequence\" or \"hub\"");
    alone(std::any_of(scenario.model.layers.begin(), scenario.model.layers.end(),
                      [](const model::LayerSpec& l) { return l.sliding_window > 0; }),
          "workload.batching.prefix_caching is unsupported with sliding-window attention, whose "
          "layers give the pages of a prefix away",
          "use a model without windows");
    const std::uint32_t block = scenario.workload.serving.arrivals.hash_block;
    alone(block % scenario.memory.kv_block != 0,
          fmt::format("workload.batching.prefix_caching: blocks of {} tokens are no whole number "
                      "of pages of memory.kv.block = {} tokens",
                      block, scenario.memory.kv_block),
          "use a memory.kv.block that divides workload.arrivals.hash_block");
    // Of the stage with most layers, the last one; with tp of one GPU of the group.
    const std::size_t layers = scenario.model.layers.size();
    for (const Parallel* l : scenario.layouts()) {
      const std::uint64_t values =
          block * (layers - stage_begin(layers, l->pp, l->pp - 1)) *
          model::kv_values_per_token_layer(shard_of(scenario.model, l->tp));
      alone(model::dtype_bytes(scenario.dtype.kv, 2 * values) !=
                2 * model::dtype_bytes(scenario.dtype.kv, values),
            fmt::format("workload.batching.prefix_caching: the pages of blocks of {} tokens do not "
                        "add up to whole bytes",
                        block),
            "use a larger workload.arrivals.hash_block or another model.dtype.kv");
    }
  }
}

}  // namespace switchyard::scenario
