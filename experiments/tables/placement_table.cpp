// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/placement_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "engine/base/error.hpp"
#include "engine/trace/experts_only.hpp"
#include "experiments/tables/table_text.hpp"
#include "sim/loop/placement_source.hpp"
#include "sim/placement/placement.hpp"

namespace switchyard::tables {
namespace {

constexpr std::uint32_t kEp = 16;
constexpr double kAffinityBound = 1.2;

struct Way {
  const char* name;
  scenario::PlacementKind kind;
  std::uint32_t redundant;
  bool quick;
};
using enum scenario::PlacementKind;
constexpr std::array<Way, 8> kWays{{{"contiguous", kContiguous, 0, true},
                                    {"round_robin", kRoundRobin, 0, true},
                                    {"eplb", kEplb, 0, true},
                                    {"eplb, 16 replicas", kEplb, 16, false},
                                    {"eplb, 32 replicas", kEplb, 32, true},
                                    {"eplb, 64 replicas", kEplb, 64, false},
                                    {"affinity", kAffinity, 0, false},
                                    {"topology_hot", kTopologyHot, 0, false}}};

bool follows_loads(const Way& way) { return way.kind != kContiguous && way.kind != kRoundRobin; }

placement::Placement place(const scenario::Scenario& s, const Way& way,
                           const PlacementSource& from) {
  const auto experts = static_cast<std::uint32_t>(s.model.num_experts);
  placement::Placement out;
  out.ranks = kEp;
  switch (way.kind) {
    case kContiguous:
      out.rows.assign(from.load.size(), placement::contiguous(experts, kEp));
      return out;
    case kRoundRobin:
      out.rows.assign(from.load.size(), placement::round_robin(experts, kEp));
      return out;
    case kAffinity:
      for (std::size_t l = 0; l < from.load.size(); ++l) {
        out.rows.push_back(
            placement::affinity(from.load[l], from.together.at(l), kEp, kAffinityBound));
      }
      return out;
    default: {
      scenario::Parallel layout = s.parallel;
      layout.placement_options.redundant = way.redundant;
      layout.placement_options.nodes = 2;
      return sim::place_by_loads(s, layout, way.kind, from.load, sim::rank_speeds(s, layout));
    }
  }
}

/// As a placement file would say it.
void use(scenario::Parallel& layout, const placement::Placement& p) {
  layout.placement = kExplicit;
  layout.placement_options = {};
  layout.expert_rank.clear();
  layout.replicas.clear();
  for (std::uint32_t l = 0; l < p.rows.size(); ++l) {
    std::vector<std::uint32_t> first;
    for (std::uint32_t e = 0; e < p.rows[l].size(); ++e) {
      first.push_back(p.rows[l][e].front());
      for (std::size_t c = 1; c < p.rows[l][e].size(); ++c) {
        layout.replicas.push_back({l, e, p.rows[l][e][c]});
      }
    }
    layout.expert_rank.push_back(std::move(first));
  }
}

double between_servers(const run::RunData& run) {
  const std::size_t gpus = run.inventory.gpus.size();
  double bytes = 0;
  for (std::size_t a = 0; a < gpus; ++a) {
    for (std::size_t b = 0; b < gpus; ++b) {
      if (run.inventory.gpus[a].node != run.inventory.gpus[b].node) {
        bytes += static_cast<double>(run.totals.pair_bytes[a * gpus + b]);
      }
    }
  }
  return bytes;
}

std::vector<PlacementSource> sources(const std::filesystem::path& scenarios,
                                     const RoutingTrace& law, const RoutingTrace& evaluated) {
  std::vector<PlacementSource> out = {
      source_of("the same tokens (hindsight)", evaluated),
      source_of("other requests of the domain", some_sequences(law, 0, 2)),
      source_of("another domain", read_excerpt(scenarios, "deepseek_v2_lite_summary").trace)};
  for (const auto& [text, age] :
       {std::pair{"law", "the domain, long window"}, {"summary", "another domain, long window"}}) {
    PlacementSource s;
    s.age = age;
    for (const ExpertCounts& c : read_counts(scenarios)) {
      if (c.model == "deepseek_v2_lite" && c.text == text) {
        s.load.emplace_back(c.load.begin(), c.load.end());
        s.tokens = c.tokens();
      }
    }
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace

RoutingTrace some_sequences(const RoutingTrace& trace, std::uint32_t from, std::uint32_t count) {
  SWITCHYARD_ASSERT(from + count <= trace.sequences.size() && count > 0, "sequences of the trace");
  RoutingTrace out;
  out.header = trace.header;
  out.gate_bias = trace.gate_bias;
  out.decisions_present = trace.decisions_present;
  out.sequences.assign(trace.sequences.begin() + from, trace.sequences.begin() + from + count);
  const auto copy = [](const auto& in, auto& to, std::uint64_t at, std::uint64_t n) {
    if (!in.empty()) {
      const auto begin = in.begin() + static_cast<std::ptrdiff_t>(at);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(n));
    }
  };
  const std::uint64_t layers = trace.header.layer_count();
  const std::uint64_t m = layers * trace.header.candidates;
  const std::uint64_t k = layers * trace.header.slots;
  for (std::uint32_t step = 0; step < trace.steps(); ++step) {
    const auto [begin, end] = trace.step_rows(step);
    const std::uint64_t before = out.tokens.size();
    for (std::uint64_t row = begin; row < end; ++row) {
      const std::uint32_t sequence = trace.tokens.sequence[row];
      if (sequence < from || sequence >= from + count) {
        continue;
      }
      out.tokens.sequence.push_back(sequence - from);
      out.tokens.position.push_back(trace.tokens.position[row]);
      out.tokens.token.push_back(trace.tokens.token[row]);
      out.tokens.phase.push_back(trace.tokens.phase[row]);
      out.tokens.step.push_back(static_cast<std::uint32_t>(out.step_begin.size()));
      copy(trace.routing.candidates, out.routing.candidates, row * m, m);
      copy(trace.routing.logit, out.routing.logit, row * m, m);
      copy(trace.routing.lse, out.routing.lse, row * layers, layers);
      copy(trace.routing.first, out.routing.first, row * k, k);
      copy(trace.routing.chosen, out.routing.chosen, row * k, k);
      copy(trace.routing.weights, out.routing.weights, row * k, k);
      copy(trace.routing.outcome, out.routing.outcome, row * k, k);
    }
    if (out.tokens.size() > before) {
      out.step_begin.push_back(before);
    }
  }
  out.step_begin.push_back(out.tokens.size());
  if (is_experts_only(trace.header)) {
    out.nan_rows = out.minus_inf_rows = out.rows() * layers;  // As its reader counts them.
  }
  return out;
}

PlacementSource source_of(const std::string& age, const RoutingTrace& trace) {
  const std::uint32_t experts = trace.header.experts();
  const std::uint32_t k = trace.header.top_k();
  PlacementSource out;
  out.age = age;
  out.tokens = trace.rows();
  out.load.assign(trace.header.layer_count(), std::vector<double>(experts, 0));
  out.together.assign(trace.header.layer_count(),
                      std::vector<double>(std::size_t{experts} * experts, 0));
  for (std::uint64_t row = 0; row < trace.rows(); ++row) {
    for (std::uint32_t l = 0; l < trace.header.layer_count(); ++l) {
      for (std::uint32_t i = 0; i < k; ++i) {
        const std::uint32_t e = trace.routing.candidates[trace.candidate_at(row, l, i)];
        out.load[l][e] += 1;
        for (std::uint32_t j = 0; j < k; ++j) {
          const std::uint32_t f = trace.routing.candidates[trace.candidate_at(row, l, j)];
          out.together[l][std::size_t{e} * experts + f] += j == i ? 0 : 1;
        }
      }
    }
  }
  return out;
}

Table placement_table(ShortRuns& runs, const std::filesystem::path& scenarios) {
  const RoutingTrace law = read_excerpt(scenarios, "deepseek_v2_lite").trace;
  const RoutingTrace evaluated = some_sequences(law, 2, 2);
  const auto from = sources(scenarios, law, evaluated);
  const std::uint32_t tokens = runs.quick() ? 128 : 1024;
  Table t;
  t.name = "placement";
  t.title = fmt::format(
      "deepseek_v2_lite on 4 servers of 8 H100 with NICs, dp 32, ep 16 (two copies of the experts "
      "over two servers each), prefill of {} tokens a GPU: experts placed by one set of tokens, "
      "run "
      "on another",
      tokens);
  t.columns = {"placement",
               "made from",
               "tokens it saw",
               "slots a GPU",
               "imbalance on what it saw",
               "imbalance",
               "worst layer",
               "step [ms]",
               "over contiguous [%]",
               "gain kept [%]",
               "between servers [kB/token]"};
  std::optional<double> contiguous;
  for (const Way& way : kWays) {
    if (runs.quick() && !way.quick) {
      continue;
    }
    std::optional<double> hindsight;
    for (const PlacementSource& source : from) {
      if ((way.kind == kAffinity && source.together.empty()) ||
          (!follows_loads(way) && &source != from.data())) {
        continue;
      }
      double promised = 0;
      std::uint32_t slots = 0;
      const auto run = runs.run(
          fixed_batch(
              "deepseek_v2_lite", "h100_4x8_rail", "dp = 32\nep = 16\n",
              fmt::format("kind = \"prefill\"\nbatch = 32\ntokens = {}\nsteps = 1\nrouting = "
                          "{{ trace = \"shipped.h5\", layers = \"exact\" }}\n",
                          tokens)),
          [&](scenario::Scenario& s) {
            const placement::Placement p = place(s, way, source);
            for (std::size_t l = 0; l < p.rows.size(); ++l) {
              promised += placement::imbalance(p.row(l), source.load[l], kEp) /
                          static_cast<double>(p.rows.size());
            }
            slots = (static_cast<std::uint32_t>(s.model.num_experts) + way.redundant) / kEp;
            use(s.parallel, p);
          },
          &evaluated);
      const double step = metric(run, "step time mean");
      contiguous = contiguous.value_or(step);
      hindsight = hindsight.value_or(step);
      const double gain = *contiguous - *hindsight;
      t.rows.push_back(
          {way.name, follows_loads(way) ? source.age : "-",
           follows_loads(way) ? fmt::to_string(source.tokens) : "-", fmt::to_string(slots),
           follows_loads(way) ? fmt::format("{:.3f}", promised) : "-",
           fmt::format("{:.3f}", metric(run, "imbalance mean")),
           fmt::format("{:.3f}", metric(run, "imbalance max")), ms(step),
           percent(step / *contiguous - 1),
           follows_loads(way) && gain > 0 ? percent((*contiguous - step) / gain) : "-",
           fmt::format("{:.2f}", 1e-3 * between_servers(run) / metric(run, "tokens"))});
    }
  }
  t.notes.emplace_back(
      "imbalance: max / mean of assignments per GPU of a copy of the experts, mean over the 26 "
      "layers; on what it saw: of the loads it was made from, what it promised; gain kept: (step "
      "of "
      "contiguous - step) / (step of contiguous - step of the same way by hindsight)");
  t.notes.push_back(fmt::format(
      "run on: two prompts of legal texts, {} tokens, which all GPUs repeat from places of their "
      "own "
      "(ESFT, scenarios/routing/PROVENANCE.md); made from: these; two other prompts of the domain; "
      "as many tokens of a summary; long windows: all tokens of the source, counts only, so "
      "without "
      "affinity",
      evaluated.rows()));
  t.notes.push_back(
      fmt::format("eplb packs no expert groups (the model has one) over 2 servers; affinity: a GPU "
                  "at most {} of "
                  "the mean; a copy serves by hash of the token; routing recorded, no policy; host "
                  "500 us a step "
                  "and 10 us a sequence, assumed; not modelled: the cost of moving experts, decode",
                  kAffinityBound));
  return t;
}

std::vector<Table> make_placement(const TableContext& context) {
  ShortRuns runs(context);
  return {placement_table(runs, context.scenarios)};
}

}  // namespace switchyard::tables
