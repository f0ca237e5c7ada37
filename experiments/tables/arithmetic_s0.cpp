// SPDX-License-Identifier: Apache-2.0
// Table `arithmetic`: article S0.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/routing/capacity.hpp"
#include "experiments/tables/arithmetic_sums.hpp"

namespace switchyard::tables::sums {
namespace {

// Figures of the article that are not the value of a row here.
constexpr double kS0Tokens = 128, kS0CacheTokens = 32768;  // S0 2.3, 2.1
constexpr double kS0Cards = 16;                            // S0 3.1

/// kept_fraction of `tokens` tokens under a rule, in %: even load over E experts, or all tokens
/// alike (`alike`: k experts get every token).
double kept(const CapacityPolicy& policy, std::uint64_t tokens, std::uint64_t sequences,
            const ModelConfig& m, bool alike) {
  ScopeCounts counts;
  counts.tokens[static_cast<std::size_t>(Phase::kPrefill)] = tokens;
  counts.sequences[static_cast<std::size_t>(Phase::kPrefill)] = sequences;
  counts.step_sequences = sequences;
  const double capacity = expert_capacity(policy, counts, static_cast<std::uint32_t>(m.num_experts),
                                          static_cast<std::uint32_t>(m.top_k));
  const double experts = as_double(alike ? m.top_k : m.num_experts);
  const double wanted = as_double(tokens * m.top_k);
  return 100.0 * std::min(wanted, experts * capacity) / as_double(tokens * m.num_experts);
}

std::uint32_t limit(const CapacityPolicy& policy, std::uint64_t tokens, const ModelConfig& m,
                    std::uint64_t sequences = 1) {
  ScopeCounts counts;
  counts.tokens[static_cast<std::size_t>(Phase::kPrefill)] = tokens;
  counts.sequences[static_cast<std::size_t>(Phase::kPrefill)] = sequences;
  counts.step_sequences = sequences;
  return expert_capacity(policy, counts, static_cast<std::uint32_t>(m.num_experts),
                         static_cast<std::uint32_t>(m.top_k));
}

CapacityPolicy rule(CapacityRule rule, double factor, std::uint32_t absolute = 0) {
  CapacityPolicy p;
  p.rule = rule;
  p.factor = factor;
  p.absolute = absolute;
  return p;
}

/// The four rows of S0's day: hours, batch, length, and the claim's row.
struct DayRow {
  double hours, batch, length;
  const char *row, *name;
};
// The hours are the only whole ones that give the averages 2.09, 2.61 and 2.44 % of its text.
constexpr std::array<DayRow, 4> kDay{{{6, 8, 42, "C07a", "complaints"},
                                      {5, 32, 18, "C07b", "product"},
                                      {2, 64, 25, "C07c", "promotion"},
                                      {8, 16, 36, "C07d", "after-sales"}}};

}  // namespace

void measure_s0(Sums& s) {
  const ModelConfig& m = s.model("gpt4_s0");
  const std::uint64_t h = m.hidden_size;
  const std::uint64_t wide = m.expert_intermediate;

  std::array<DayRow, 4> day = kDay;
  for (DayRow& d : day) {
    d.hours = s.count(fmt::format("hours of {} (S0 3.2)", d.name), d.hours);
    d.batch = s.count(fmt::format("batch of {} (S0 3.2)", d.name), d.batch);
    d.length = s.count(fmt::format("length of {} (S0 3.2)", d.name), d.length);
    const auto sequences = static_cast<std::uint64_t>(d.batch);
    const auto tokens = static_cast<std::uint64_t>(d.batch * d.length);
    s.add(fmt::format("c07.{}", d.name),
          kept(rule(CapacityRule::kBatchSeqs, 1), tokens, sequences, m, false),
          fmt::format("{} sequences of {} tokens, {} slots per expert", sequences, d.length,
                      sequences));
  }
  double hours = 0, sum = 0, batch = 0, sum_batch = 0, length = 0, sum_length = 0;
  for (const DayRow& d : day) {
    const double v = s.printed(d.row);
    hours += d.hours, sum += d.hours * v;
    batch += d.hours * d.batch, sum_batch += d.hours * d.batch * v;
    length += d.hours * d.batch * d.length, sum_length += d.hours * d.batch * d.length * v;
  }
  s.add("c63.hours", sum / hours, "rows C07a-d for 6, 5, 2 and 8 h");
  s.add("c63.batch", sum_batch / batch, "the same, weighted by the batch too");
  s.add("c63.length", sum_length / length, "the same, weighted by batch and length");
  s.add("c63.covered", hours, "6 + 5 + 2 + 8 h");

  const double activations = fp16(as_double(2 * (h + wide)));
  const double run = s.count("tokens in a row on one expert (S0 2.2)", 5);
  s.add("c08.rise", 100.0 * run * activations / s.in().card,
        fmt::format("5 x 2 x ({} + {}) x 2 bytes = {} MB of {} GB", h, wide,
                    show(5 * activations / kMB), show(s.in().card / kGB)));
  s.add("c09.ratio",
        s.count("switches without the gate (S0 2.3)", 11) /
            s.count("switches with the gate (S0 2.3)", 2),
        "11 / 2");

  const double prompt = s.count("tokens of the prompt (S0 2.3, 5.2)", kS0Tokens);
  const auto t = static_cast<std::uint64_t>(prompt);
  const auto hot = [&](const char* quantity, const CapacityPolicy& p, const char* how) {
    const double c = limit(p, t, m);
    s.add(quantity, prompt - std::min(prompt, c), fmt::format("{} - min({}, {})", t, t, how));
  };
  const double factor_1 = s.figure("capacity factor 1.0", 1);
  const double factor_125 = s.figure("capacity factor 1.25 (S0 2.3)", 1.25);
  const double capacity = s.count("capacity of an expert (S0 2.2)", 64);
  hot("c10.batch_tokens", rule(CapacityRule::kBatchTokens, factor_125), "floor(1.25 x 128)");
  hot("c10.absolute", rule(CapacityRule::kAbsolute, 1, static_cast<std::uint32_t>(capacity)), "64");
  hot("c10.share_1", rule(CapacityRule::kShare, factor_1), "ceil(1.0 x 128 x k / E)");
  hot("c10.share_125", rule(CapacityRule::kShare, factor_125), "ceil(1.25 x 128 x k / E)");

  const double load = s.printed("C12c");
  s.add("c12.pcie", load * kGB / s.in().pcie4,
        fmt::format("{} GB / {} GB/s", load, show(s.in().pcie4 / kGB)));
  s.add("c12.ssd", load / s.figure("GB/s of the SSD, ours", 3.5),
        fmt::format("{} GB / 3.5 GB/s", load));
  s.add("c12.sum", 1.2 + 40.8, "1.2 + 40.8");
  s.add("c12.warm", 16 * 3.2, "16 x 3.2");
  s.add("c12.silicon.unified", 1e3 * 224.0 / 25.0,
        "first touch of one expert, 224 GB / 25 GB/s; 112 ms move 2.8 GB");

  const double low = s.figure("lower logit (S0 4.3)", 2.1);
  const double high = s.figure("higher logit (S0 4.3)", 3.7);
  s.add("c14.linear_low", low / (low + high), "2.1 / (2.1 + 3.7)");
  s.add("c14.linear_high", high / (low + high), "3.7 / (2.1 + 3.7)");
  s.add("c14.softmax_low", 1.0 / (1.0 + std::exp(high - low)), "1 / (1 + exp(3.7 - 2.1))");
  s.add("c14.softmax_high", 1.0 / (1.0 + std::exp(low - high)), "1 / (1 + exp(2.1 - 3.7))");

  const double cache = as_double(model::kv_bytes(m, DType::kF16, t));
  const double cards = s.count("cards (S0 3.1)", kS0Cards);
  const double copies = cards - 1;
  const auto ms = [&](double rate) { return 1e3 * copies * cache / rate; };
  s.add("c17.p2p", ms(s.in().pcie4) - ms(s.in().nvlink3),
        fmt::format("15 x {} GB: {} - {} ms", show(cache / kGB), show(ms(s.in().pcie4)),
                    show(ms(s.in().nvlink3))));
  s.add("c17.staged", 2 * ms(s.in().pcie4) - ms(s.in().nvlink3),
        fmt::format("2 x {} - {} ms; the claim needs {} GB/s", show(ms(s.in().pcie4)),
                    show(ms(s.in().nvlink3)),
                    show(copies * cache / kGB / (1.780 + 1e-3 * ms(s.in().nvlink3)))));
  s.add("c17.busy",
        s.share("busy share over PCIe (S0 5.2)", 0.88) *
            s.figure("ms of the prefill over PCIe (S0 5.2)", 320),
        "0.88 x 320 ms");

  s.add("c19.factor", log2_capacity_factor(32), "1 + 0.01 x log2(32)");
  const CapacityPolicy factor = rule(CapacityRule::kBatchSeqs, log2_capacity_factor(32));
  const double raised = limit(factor, 32, m, 32);
  s.add("c19.limit", raised, "floor(32 x 1.05)");
  const double peak = s.count("peak of the queue (S0 5.4)", 28);
  s.add("c19.moved", std::min(peak, raised) > std::min(peak, 32.0) ? 1 : 0,
        fmt::format(
            "min(28, 33) = min(28, 32): no token is over either limit; its QPS rise {} %, its "
            "P99 {} %",
            show(100.0 * (180.0 / 120 - 1)), show(100.0 * (680.0 / 410 - 1))));

  const double per_card = s.figure("GB of a card (S0 3.1)", 262);
  s.add("c61.sixteen", per_card * 8 / 1e3, "262 GB x 8");
  const double more = s.count("cards of 32 experts (S0 3.1)", 32);
  s.add("c61.thirtytwo", per_card * more / 1e3, "262 GB x 32");
  s.add("c61.growth", per_card * more / (per_card * cards),
        "262 x 32 / (262 x 16); the claim takes 8");
  s.add("c61.balance", 224.0 / 38.0, "224 / 38");

  const double whole = as_double(model::kv_bytes(
      m, DType::kF16,
      static_cast<std::uint64_t>(s.count("tokens of the KV cache (S0 2.1)", kS0CacheTokens))));
  const auto move = [&](const char* quantity, double bytes, double rate) {
    s.add(quantity, 1e3 * bytes / rate,
          fmt::format("{} GB / {} GB/s", show(bytes / kGB), show(rate / kGB)));
  };
  move("c64.nvlink", whole / cards, s.in().nvlink3);
  move("c64.pcie", whole / cards, s.in().pcie4);
  move("c64.whole", whole, s.in().nvlink3);
  const double others = (cards - 1) / cards;
  move("c65.short", others * cache, s.in().nvlink3);
  move("c65.long", others * whole, s.in().nvlink3);
  s.add("c65.room",
        s.figure("GB on GPU 0 (S0 3.3)", 255.2) + whole / kGB <=
                s.figure("GB of a card (S0 3.3)", 280)
            ? 1
            : 0,
        fmt::format("255.2 + {} GB", show(whole / kGB)));

  const CapacityPolicy share = rule(CapacityRule::kShare, factor_1);
  const double fraction = 100.0 * as_double(m.top_k) / as_double(m.num_experts);
  s.add("c68.even", kept(share, t, 1, m, false),
        fmt::format("C = ceil(128 x k / E): nothing is dropped; 2 % need {} % dropped",
                    show(100.0 * (1.0 - s.printed("C68a") / fraction))));
  s.add("c68.same", kept(share, t, 1, m, true),
        "k experts keep C each, over 128 x E: 87.5 % are dropped");

  s.add("c69.limit", std::floor(1.2 * 64), "floor(1.2 x 64)");
  const auto slots = [&](double k) {
    return 100.0 * 64 * k / (capacity * as_double(m.num_experts));
  };
  s.add("c69.slots_1", slots(1), "64 x 1 / (16 x 64), whatever the batch");
  s.add("c69.slots_2", slots(s.count("experts per token (S0 2.2)", 2)),
        "64 x 2 / (16 x 64), whatever the batch");
  s.add("c69.top1", 100.0 / as_double(m.num_experts), "1 / 16");

  const double prompts = s.count("prompts in the table (S0 4.1)", 10000);
  const double bits = s.count("bits of the digest's first part", 32);
  const auto share_of = [&](double of) { return 100.0 * (prompts - 1) * std::exp2(-of); };
  s.add("c95.digest", share_of(256), "9,999 / 2^256");
  s.add("c95.share32", share_of(bits), "9,999 / 2^32");
  const double pairs = prompts * (prompts - 1) / 2 * std::exp2(-bits);
  s.add("c95.any32", -100.0 * std::expm1(-pairs),
        fmt::format("1 - exp(-{}): that many pairs are expected", show(pairs)));
  s.add("c96.own", s.figure("ms around the latency (S0 4.1)", 5), "+- 5 ms");
}

}  // namespace switchyard::tables::sums
