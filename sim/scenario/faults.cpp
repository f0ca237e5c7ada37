// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/faults.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "sim/scenario/fault_reader.hpp"

namespace switchyard::scenario {
namespace {

constexpr std::uint64_t kMaxStep = std::uint64_t{1} << 24U;
constexpr std::size_t kMostFaults = 10000;
constexpr double kLargestFactor = 1e6;

std::uint32_t named(const Section& s, std::string_view key, const std::string& text,
                    const std::vector<std::string>& names, std::string_view what) {
  const auto it = std::find(names.begin(), names.end(), text);
  if (it == names.end()) {
    s.fail(key, fmt::format("the hardware has no {} of that name", what),
           suggest_name(text, names));
  }
  return static_cast<std::uint32_t>(it - names.begin());
}

/// What moves sequences or experts cannot follow every layout; each refusal says which.
void check_loss(const Section& s, const Scenario& out) {
  const Parallel& p = out.parallel;
  const auto refuse = [&](bool on, const std::string& what, const std::string& hint) {
    if (on) s.fail("kind", fmt::format("unsupported with {}", what), hint);
  };
  const FrontEnd& f = out.workload.serving.front_end;
  const bool replicas = out.workload.serves() && f.replicas > 1;
  refuse(replicas && out.faults.reaction == FaultReaction::kMigrate,
         "several replicas and reaction = \"migrate\": each has its own copy of all",
         "use faults.reaction = \"restart\"");
  refuse(out.network.algorithm != ExchangeAlgorithm::kDirect,
         "network.algorithm other than \"direct\": its relays may be the lost GPU", "use direct");
  refuse(out.network.dispatch == DispatchKind::kPerNode,
         "network.dispatch = \"per_node\": its relays may be the lost GPU", "use per_rank");
  refuse(out.memory.kv_placement == KvPlacement::kReplicated,
         "memory.kv.placement = \"replicated\"", "use by_sequence");
  refuse(out.parallel.rebalance.signal != RebalanceSignal::kOff, "parallel.rebalance",
         "set rebalance.signal = \"off\"");
  refuse(out.policy.groups.by == GroupBy::kPlacement, "policy.groups.by = \"placement\"",
         "use groups by id");
  const bool caches = out.memory.residency.on();
  refuse(caches && out.memory.residency.policy == ResidencyPolicy::kStatic &&
             out.faults.reaction == FaultReaction::kMigrate,
         "memory.residency.policy = \"static\" and reaction = \"migrate\": a static cache never "
         "keeps what moves",
         "use lru or lfu");
  refuse(p.pp > 1 && out.faults.reaction == FaultReaction::kMigrate,
         "parallel.pp and reaction = \"migrate\": no other GPU has the layers of the stage",
         "use faults.reaction = \"restart\"");
  refuse(caches && p.ep < out.hardware.gpu_count() && !replicas,
         "memory.residency and ep below the number of GPUs", "use ep = GPUs");
  if (out.faults.reaction != FaultReaction::kMigrate) return;
  const std::string restart = "use faults.reaction = \"restart\"";
  refuse(p.attention == AttentionPlacement::kHub,
         "reaction = \"migrate\" and attention = \"hub\": nobody can take the hub's place",
         restart);
  refuse(out.hardware.gpu_count() < 2 || (p.attention == AttentionPlacement::kTp &&
                                          std::max(p.tp, p.ep) == out.hardware.gpu_count()),
         "reaction = \"migrate\" and one group of GPUs that need each other: nobody is left",
         restart);
}

/// What leaves out the owner of an expert.
void check_exchange_fault(const Section& s, const FaultRule& r, const Scenario& out) {
  const Parallel& p = out.parallel;
  const auto refuse = [&](bool on, const std::string& what, const std::string& hint) {
    if (on) s.fail("kind", fmt::format("unsupported with {}", what), hint);
  };
  if (r.kind != FaultKind::kMisSharding) return;
  refuse(p.attention == AttentionPlacement::kTp && p.ep <= p.tp,
         "attention = \"tp\" and ep not above tp: nothing is dispatched", "use attention = \"dp\"");
  refuse(p.rebalance.signal != RebalanceSignal::kOff, "parallel.rebalance",
         "set rebalance.signal = \"off\"");
  refuse(out.memory.residency.on(), "memory.residency: experts have no fixed GPU",
         "keep all experts on the GPUs");
  refuse(out.policy.soft.on() && out.policy.soft.cost == SoftCost::kStacked,
         "policy.soft.cost = \"stacked\"", "use cost = \"gathered\"");
  refuse(out.workload.serves() && out.workload.serving.front_end.replicas > 1, "several replicas",
         "use workload.front_end.replicas = 1");
}

}  // namespace

void read_faults(Context& context, const Node& root, Scenario& out) {
  const Node* table = root.find("faults");
  if (table == nullptr) return;
  Section s(context, table, "faults",
            {"detection", "reaction", "restart", "reload", "recompute_chunk", "check_every",
             "retries", "events"},
            root);
  if (out.memory.residency.miss != MissKind::kLoad) {
    throw InputError(table->where(),
                     "faults is unsupported with memory.residency.miss = \"cpu\" and \"cheaper\"",
                     "use miss = \"load\"");
  }
  FaultSpec& f = out.faults;
  f.detection = s.duration("detection", SimTime());
  f.reaction = static_cast<FaultReaction>(s.choice("reaction", kFaultReactionNames, 0));
  if (f.reaction == FaultReaction::kRestart) {
    f.restart = s.duration("restart");
  } else if (s.has("restart")) {
    s.fail("restart", "means nothing with reaction = \"migrate\"");
  }
  if (s.has("reload")) {
    f.reload = s.rate("reload");
    if (!(f.reload.value > 0)) s.violated("reload", "reload > 0");
  } else {
    context.record("faults.reload", "over the hardware's links", "default");
  }
  if (s.has("recompute_chunk") && out.workload.serves()) {
    s.fail("recompute_chunk", "means nothing with requests that arrive",
           "workload.batching.token_budget bounds a step");
  }
  f.recompute_chunk =
      static_cast<std::uint32_t>(s.count("recompute_chunk", 1, kMaxStep, f.recompute_chunk));
  f.check_every = static_cast<std::uint32_t>(s.count("check_every", 1, kMaxStep, f.check_every));
  constexpr std::uint64_t kMostRetries = 1000;
  f.retries = static_cast<std::uint32_t>(s.count("retries", 0, kMostRetries, f.retries));
  const Node* list = s.find("events");
  if (list == nullptr) s.fail("events", "is missing", "write [[faults.events]]");
  if (list->kind != Node::Kind::kArray || list->children.empty()) {
    s.fail("events", "expected a list of tables", "write [[faults.events]]");
  }
  if (list->children.size() > kMostFaults) {
    s.fail("events", fmt::format("more than {} faults", kMostFaults));
  }
  std::vector<std::string> gpus, links;
  for (std::size_t g = 0; g < out.hardware.gpu_count(); ++g)
    gpus.push_back(out.hardware.gpu(g).name);
  for (const Link& l : out.hardware.links) links.push_back(l.name);
  const std::uint64_t layers = out.model.num_moe_layers();
  for (std::size_t i = 0; i < list->children.size(); ++i) {
    Section e(context, &list->children[i], fmt::format("faults.events[{}]", i),
              {"kind", "step", "time", "probability", "lasts", "gpu", "link", "layer", "expert",
               "factor", "stall", "bytes", "timeout", "tries"},
              *table);
    FaultRule r;
    r.where = list->children[i].where();
    r.kind = static_cast<FaultKind>(e.choice("kind", kFaultKindNames));
    const int whens =
        (e.has("step") ? 1 : 0) + (e.has("time") ? 1 : 0) + (e.has("probability") ? 1 : 0);
    if (whens != 1) {
      e.fail(whens == 0 ? "step" : "kind",
             whens == 0 ? "is missing" : "has more than one of step, time and probability",
             "say when: step, time or probability");
    }
    if (e.has("step")) r.step = static_cast<std::uint32_t>(e.count("step", 0, kMaxStep));
    if (e.has("time")) r.time = e.duration("time");
    if (e.has("probability")) r.probability = e.number("probability", {0, 1, true});
    const auto takes = [&](std::string_view key, bool used) {
      if (e.has(key) && !used) {
        const bool back = key == "lasts" && r.kind == FaultKind::kGpuLoss;
        e.fail(key,
               fmt::format("means nothing for a {}{}",
                           kFaultKindNames[static_cast<std::size_t>(r.kind)],
                           back ? " with faults.reaction = \"restart\"" : ""),
               back ? "the restart brings the GPU back; or use reaction = \"migrate\"" : "");
      }
      return used;
    };
    using K = FaultKind;
    const bool random = r.probability > 0;
    const bool of_gpu = r.kind == K::kGpuLoss || r.kind == K::kSlowGpu || r.kind == K::kHostStall ||
                        r.kind == K::kKvLeak || r.kind == K::kHotGpu || r.kind == K::kGatherFailure;
    const bool of_link = r.kind == K::kLinkDown || r.kind == K::kLinkDegraded;
    const bool astray = r.kind == K::kMisSharding;
    const bool of_expert = r.kind == K::kSlowExpert || r.kind == K::kBitFlip || astray;
    if (takes("lasts", r.kind != K::kBitFlip && !astray &&
                           !(r.kind == K::kGpuLoss && f.reaction == FaultReaction::kRestart)) &&
        e.has("lasts")) {
      r.lasts = static_cast<std::uint32_t>(e.count("lasts", 1, kMaxStep));
    }
    if (r.kind == K::kHostStall && r.lasts == 0) r.lasts = 1;
    if (takes("gpu", of_gpu || astray)) {
      // A random fault may hit every GPU; a stall of the host without a GPU is one of all.
      if (e.has("gpu")) {
        r.gpu = named(e, "gpu", e.text("gpu"), gpus, "GPU");
      } else if (astray || (!random && r.kind != K::kHostStall)) {
        e.fail("gpu", "is missing");
      }
    }
    if (takes("link", of_link)) {
      if (e.has("link")) {
        r.link = named(e, "link", e.text("link"), links, "link");
      } else if (!random) {
        e.fail("link", "is missing",
               fmt::format("e.g. \"{}\"", links.empty() ? "" : links.front()));
      }
    }
    const bool of_layer = of_expert || r.kind == K::kGatherFailure;
    takes("layer", of_layer);
    takes("expert", of_expert);
    if (of_layer) {
      if (layers == 0) e.fail("kind", "the model has no MoE layer");
      if (of_expert) {
        r.expert = static_cast<std::uint32_t>(e.count("expert", 0, out.model.num_experts - 1));
      }
      if (e.has("layer")) r.layer = static_cast<std::uint32_t>(e.count("layer", 0, layers - 1));
    }
    const bool share = r.kind == K::kLinkDegraded || r.kind == K::kHotGpu;
    if (takes("factor", share || r.kind == K::kSlowGpu || r.kind == K::kSlowExpert)) {
      r.factor = share ? e.number("factor", {0, 1, true}) : e.number("factor", {1, kLargestFactor});
      if (r.kind == K::kHotGpu && r.factor == 1) e.violated("factor", "factor < 1");
    }
    if (takes("timeout", r.kind == K::kGatherFailure)) {
      r.timeout = e.duration("timeout");
      if (r.timeout.ps() <= 0) e.violated("timeout", "timeout > 0");
      if (r.timeout > SimTime::from_us(3'600'000'000)) e.violated("timeout", "timeout <= 1 h");
    }
    if (takes("tries", r.kind == K::kGatherFailure)) {
      r.tries = static_cast<std::uint32_t>(e.count("tries", 1, kMostRetries + 1, 1));
    }
    if (r.kind == K::kGatherFailure || astray) check_exchange_fault(e, r, out);
    if (r.kind == K::kHotGpu && out.cost.calibration) {
      e.fail("kind", "unsupported with cost.calibration: its times are of the full clock",
             "use slow_gpu, or no calibration");
    }
    if (takes("stall", r.kind == K::kHostStall)) {
      r.stall = e.duration("stall");
      if (r.stall > SimTime::from_us(3'600'000'000)) e.violated("stall", "stall <= 1 h");
    }
    if (takes("bytes", r.kind == K::kKvLeak)) {
      r.bytes = e.bytes("bytes");
      if (r.bytes == 0) e.violated("bytes", "bytes > 0");
    }
    if (r.kind == K::kGpuLoss || r.kind == K::kLinkDown) check_loss(e, out);
    if ((r.kind == K::kGpuLoss || of_link) && out.cost.exchange == ExchangeCost::kCalibrated) {
      e.fail("kind",
             "unsupported with cost.exchange = \"calibrated\": its times are of whole links and "
             "groups",
             "use cost.exchange = \"model\"");
    }
    if (of_link && out.workload.serves() && out.workload.serving.front_end.prefill_replicas > 0 &&
        (out.network.model == NetworkModelKind::kBottleneck ||
         !out.network.measured.points.empty())) {
      e.fail("kind",
             "unsupported with workload.front_end.prefill_replicas and network.model = "
             "\"bottleneck\" or network.measured: pages travel by themselves there and would not "
             "feel it",
             "use network.model = \"auto\", or prefill_replicas = 0");
    }
    if (r.kind == K::kBitFlip && out.memory.residency.on() &&
        out.parallel.ep < out.hardware.gpu_count()) {
      e.fail("kind",
             "unsupported with memory.residency and ep below the number of GPUs: each copy is "
             "loaded, and mended, at a time of its own",
             "use ep = GPUs");
    }
    f.events.push_back(std::move(r));
  }
  const auto has = [&](FaultKind k) {
    return std::any_of(f.events.begin(), f.events.end(),
                       [&](const FaultRule& r) { return r.kind == k; });
  };
  if (s.has("retries") && !has(FaultKind::kGatherFailure)) {
    s.fail("retries", "means nothing without a gather_failure");
  }
  if (s.has("check_every") && !has(FaultKind::kBitFlip) && !has(FaultKind::kMisSharding)) {
    s.fail("check_every", "means nothing without a bit_flip or a mis_sharding");
  }
  if (s.has("recompute_chunk") && !has(FaultKind::kGpuLoss) && !has(FaultKind::kLinkDown)) {
    s.fail("recompute_chunk", "means nothing without a gpu_loss or a link_down");
  }
  const bool loses = has(FaultKind::kGpuLoss) || has(FaultKind::kLinkDown);
  if (s.has("detection") && !loses) {
    s.fail("detection", "means nothing without a gpu_loss or a link_down");
  }
  const bool mends = loses || has(FaultKind::kBitFlip) || has(FaultKind::kMisSharding);
  // An alarm may reload an expert.
  if (s.has("reload") && !mends && root.find("monitor") == nullptr) {
    s.fail("reload", "means nothing: no fault here has weights loaded again");
  }
  for (const FaultRule& r : f.events) {
    if (r.kind == FaultKind::kMisSharding &&
        (has(FaultKind::kGpuLoss) || has(FaultKind::kLinkDown))) {
      throw InputError(r.where,
                       "mis_sharding beside gpu_loss or link_down is unsupported: experts move "
                       "then",
                       "use scenarios of their own");
    }
  }
  const bool reloads = std::any_of(f.events.begin(), f.events.end(), [](const FaultRule& r) {
    return r.kind == FaultKind::kGpuLoss || r.kind == FaultKind::kLinkDown ||
           r.kind == FaultKind::kBitFlip;
  });
  const bool host = std::any_of(out.hardware.devices.begin(), out.hardware.devices.end(),
                                [](const Device& d) { return d.kind == DeviceKind::kCpu; });
  if (reloads && f.reload.value == 0 && !host) {
    s.fail("reload", "is missing: the hardware has no cpu that weights could come from",
           "write e.g. reload = \"25 GB/s\"");
  }
}

}  // namespace switchyard::scenario
