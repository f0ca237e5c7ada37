// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard::tables {
namespace {

/// "+ / +1.00": expected, seen (Spearman's rho, or the sign of ours - reference).
std::string signs(const claims::Judged& j) {
  if (j.claim.sign == claims::Sign::kNone) {
    return "";
  }
  const char* expected = j.claim.sign == claims::Sign::kUp ? "+" : "-";
  if (!j.measured.trend) {
    return fmt::format("{} / n/a", expected);
  }
  if (j.claim.at) {
    return fmt::format("{} / {:+.2f}", expected, *j.measured.trend);
  }
  const double trend = *j.measured.trend;
  return fmt::format("{} / {}", expected, trend > 0 ? "+" : trend < 0 ? "-" : "0");
}

}  // namespace

std::string ours_text(const claims::Judged& j) {
  if (!j.measured.value) {
    return "n/a";
  }
  return j.claim.yes_no() ? (*j.measured.value != 0 ? "yes" : "no") : show(*j.measured.value);
}

std::string claimed_text(const claims::Claim& claim) {
  switch (claim.relation) {
    case claims::Relation::kAtMost:
      return "<= " + claim.printed;
    case claims::Relation::kAtLeast:
      return ">= " + claim.printed;
    case claims::Relation::kWithin:  // "35 to 40"
    case claims::Relation::kEqual:
      break;
  }
  return claim.printed;
}

std::string show(double value) {
  return std::isnan(value) ? std::string("n/a") : fmt::format("{:.6g}", value);
}

const std::vector<TableEntry>& table_entries() {
  static const std::vector<TableEntry> entries = {
      {"account", "C01-C05, C35, C51: parameters, bytes, KV cache and activation rates of models",
       make_account},
      {"arithmetic",
       "C07-C96: what presets, bounds and an article's own figures decide, with the factor between",
       make_arithmetic},
      {"batch-activation", "C06: batch size against activation and expert variance, by the engine",
       make_batch_activation},
      {"batch-serving",
       "C52, C55, C56, C58, C59, C90, C91: S4's model on 16 x H200 by batch, hub and dp",
       make_batch_serving},
      {"bit-flips",
       "C18: which flipped bits of a weight the norm and the CRC notice, and their harm",
       make_bit_flips},
      {"capacity", "capacity rules: overflow, reroutes, drops, p99, on the shipped routing",
       make_capacity, false},
      {"claim-sensitivity",
       "contradicted claims of account, arithmetic, fits: the one assumption that makes each true",
       make_claim_sensitivity, false},
      {"conflicts", "where the articles contradict each other, with what the models give",
       make_conflicts, false},
      {"context-length",
       "1 k to 128 k of context: KV bytes, attention share, batch that fits; MHA, GQA, MLA",
       make_context_length, false},
      {"cost",
       "USD per million tokens by GPU type and utilisation; break-even against an API's price",
       make_cost, false},
      {"coverage", "C01-C96: which table judges each claim, and what is missing where none does",
       make_coverage, false},
      {"decode-rebalance", "C15: M13 under load, coupled: variation of the time between tokens",
       make_decode_rebalance},
      {"domain-adapter",
       "C75: a low-rank adapter on a new domain against a router fine-tuned there, by the engine",
       make_domain_adapter},
      {"effective-parameters",
       "C45: perplexity with part of the expert weights masked, by the engine",
       make_effective_parameters},
      {"energy", "joules per token by batch and phase: idle, compute, exchange; per request",
       make_energy, false},
      {"ep-scaling",
       "EP 1 to 32 on four servers: bytes, imbalance, efficiency; per GPU and per server",
       make_ep_scaling, false},
      {"failure", "faults with and without spare experts: time lost, recovery, steady p99",
       make_failure, false},
      {"fits", "does the recipe of each article fit into its memory", make_fits},
      {"frontier", "tokens per second per GPU against per user, by layout and batch", make_frontier,
       false},
      {"goodput", "requests/s within TTFT and TPOT limits: aggregated, and P:D ratios, on 8 GPUs",
       make_goodput, false},
      {"gumbel", "C22: noise and Gumbel numbers on the router's logits, by the engine",
       make_gumbel},
      {"load-aware", "C11: M04, coupled: memory of the GPUs under a load penalty", make_load_aware},
      {"locality",
       "real routing: repeated experts, reuse distance, caches by slots, prefetch by look-ahead",
       make_locality, false},
      {"long-context",
       "C66: routing at the tail of a context beyond the trained length, by the engine",
       make_long_context},
      {"mixed-fabric", "C21: all-to-all over NVLink and PCIe GPUs, fabric x algorithm x payload",
       make_mixed_fabric},
      {"network-sensitivity", "latency and bandwidth x 0.5 to 4: change of the time per token",
       make_network_sensitivity, false},
      {"offload",
       "experts in host memory: PCIe x resident share x batch; copy or compute on the host",
       make_offload, false},
      {"out-of-scope", "numbers that people decided, and rows that need a GPU, with the reason",
       make_out_of_scope},
      {"overlap",
       "two micro-batches x SMs for exchanges x algorithm: how much of an exchange hides",
       make_overlap, false},
      {"placement",
       "experts placed by fresh and by stale routing of a real model: imbalance, step time",
       make_placement, false},
      {"prompt-routing",
       "C30, C62, C67, C89, C92: routing of short, paraphrased, vague, shop prompts; noise",
       make_prompt_routing},
      {"quantisation", "C44, C87: rounded routers and experts: agreement and perplexity",
       make_quantisation},
      {"queue-limits", "C23: M12 under load, coupled: activation with a third expert",
       make_queue_limits},
      {"requests", "C34, C57, C78: tiers, a code prefix, warm-up: short simulations with requests",
       make_requests},
      {"router-precision",
       "the router in FP32 to INT4: sets, margins, perplexity, batch invariance, by the engine",
       make_router_precision, false},
      {"routing-statistics",
       "how evenly real routers choose, by layer and text: entropy, load_cv, dead experts, "
       "switches",
       make_routing_statistics, false},
      {"simulated", "C17, C26, C36, C41, C43, C60, C74, C81-C83, C94, C96: short simulations",
       make_simulated},
      {"simulators", "ours and published simulators against the same measurements, error per row",
       make_simulators, false},
      {"skew-cost", "skew of the router x batch: imbalance, expert time, memory traffic",
       make_skew_cost, false},
      {"static-table", "C13: what a static routing table hits and saves, by traffic",
       make_static_table},
      {"step-breakdown",
       "where the time of a step goes, by batch, decode and prefill, with MFU and MBU",
       make_step_breakdown, false},
      {"temperature", "C16: the router's temperature, before and after, and its controller",
       make_temperature},
      {"top-k",
       "routed against shared experts, few large against many small, at equal FLOPs: bytes, TPOT",
       make_top_k, false},
      {"windowed-imbalance",
       "load_cv over windows of 1 to 1e6 tokens of real routing, against counting noise",
       make_windowed_imbalance, false},
  };
  return entries;
}

const TableEntry& table_by_name(const std::string& name) {
  std::vector<std::string> names;
  for (const TableEntry& entry : table_entries()) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  throw InputError("table", fmt::format("unknown table \"{}\"", name), suggest_name(name, names));
}

Table claims_table(const std::string& table, const std::vector<claims::Judged>& judged) {
  Table t;
  t.name = table + "-claims";
  t.title = "the claim beside our value";
  bool with_sign = false;
  for (const auto& j : judged) {
    with_sign = with_sign || j.claim.sign != claims::Sign::kNone;
  }
  t.columns = {"row", "source", "claim", "read as", "unit", "claimed", "ours"};
  if (with_sign) {
    t.columns.emplace_back("sign expected / seen");
  }
  for (const char* column : {"verdict", "decided_by", "tolerance", "ours is"}) {
    t.columns.emplace_back(column);
  }
  for (const auto& j : judged) {
    std::vector<std::string> row = {j.claim.row,     j.claim.source, j.claim.text,
                                    j.claim.reading, j.claim.unit,   claimed_text(j.claim),
                                    ours_text(j)};
    if (with_sign) {
      row.push_back(signs(j));
    }
    row.emplace_back(name_of(j.verdict));
    row.emplace_back(name_of(j.claim.decided_by));
    row.emplace_back(name_of(j.claim.tolerance));
    row.push_back(j.how);
    t.rows.push_back(std::move(row));
  }
  t.notes.emplace_back(
      "tolerance: arithmetic = half a unit of the last printed digit or 2 %, the larger; ratio = "
      "20 %; absolute = 25 %");
  if (with_sign) {
    t.notes.emplace_back(
        "sign seen: over a series Spearman's rank correlation, else ours against the reference; "
        "value and sign hold: reproduced; sign only: direction; no trend at all: not-decided; else "
        "contradicted");
  }
  return t;
}

Table verdicts_table(const std::string& table, const std::vector<claims::Judged>& judged) {
  Table t;
  t.name = table + "-verdicts";
  t.title = "verdicts: atomic rows per claim";
  t.columns = {"claim", "rows"};
  std::vector<std::string> order;
  std::map<std::string, std::array<std::uint64_t, claims::kVerdictCount>> counts;
  for (const auto& j : judged) {
    if (!counts.contains(j.claim.id)) {
      order.push_back(j.claim.id);
    }
    ++counts[j.claim.id][static_cast<std::size_t>(j.verdict)];
  }
  // not-decided is the last verdict; its column is there when a row has it.
  const bool undecided = std::any_of(judged.begin(), judged.end(), [](const claims::Judged& j) {
    return j.verdict == claims::Verdict::kNotDecided;
  });
  const std::size_t shown = undecided ? claims::kVerdictCount : claims::kVerdictCount - 1;
  for (std::size_t v = 0; v < shown; ++v) {
    t.columns.emplace_back(name_of(static_cast<claims::Verdict>(v)));
  }
  if (undecided) {
    t.notes.emplace_back(
        "not-decided: read this way, the quantity is the same at every point, so there is no trend "
        "(sign n/a) to hold against the claim's; or the run cannot tell it (\"ours is\" says why)");
  }
  for (const std::string& id : order) {
    std::uint64_t sum = 0;
    std::vector<std::string> row = {id, ""};
    for (std::size_t v = 0; v < shown; ++v) {
      row.push_back(fmt::to_string(counts[id][v]));
      sum += counts[id][v];
    }
    row[1] = fmt::to_string(sum);
    t.rows.push_back(std::move(row));
  }
  return t;
}

}  // namespace switchyard::tables
