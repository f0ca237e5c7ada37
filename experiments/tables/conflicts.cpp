// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/conflicts.hpp"

#include <fmt/format.h>

#include <string>

#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"
#include "experiments/tables/arithmetic.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {
namespace {

using model::DType;
using model::ModelConfig;

double as_double(std::uint64_t v) { return static_cast<double>(v); }

model::DTypeChoice fp16() {
  model::DTypeChoice d;
  d.experts = d.shared = d.router = d.kv = DType::kF16;
  return d;
}

std::string percent(double fraction) { return fmt::format("{:.4g} %", 100 * fraction); }

model::ActivationRates rates(const ModelConfig& m, std::uint64_t tokens, std::uint64_t total = 0) {
  return model::activation_rates(m, fp16(), model::expected_step(m, tokens), total);
}

std::string shape(const ModelConfig& m) {
  return fmt::format("{}: {} experts, top-{}, {} MoE layers of {}", m.name, m.num_experts, m.top_k,
                     m.num_moe_layers(), m.num_layers);
}

}  // namespace

Table conflicts_table(const std::filesystem::path& scenarios) {
  const auto get = [&](const char* name) {
    return model::read_model_config(scenarios / "models" / fmt::format("{}.json", name));
  };
  const ModelConfig s0 = get("gpt4_s0"), s1 = get("gpt4_s1"), s2 = get("gpt4_s2"),
                    s3 = get("gpt4_s3"), s4 = get("gpt4_s4");
  Table t;
  t.name = "conflicts";
  t.title = "where the articles contradict each other";
  t.columns = {"topic", "source", "position", "computed"};
  const auto row = [&](const char* topic, const char* source, const char* position,
                       std::string computed) {
    t.rows.push_back({topic, source, position, std::move(computed)});
  };

  const char* topic = "what 2 % is";
  row(topic, "S0 3.2", "observed average of capacity-limited activation",
      fmt::format("gpt4_s0: k/E {}; less only by dropping assignments (arithmetic, C68)",
                  percent(rates(s0, 1).expert_fraction)));
  row(topic, "S1 1", "experts used, at the end compute",
      fmt::format("gpt4_s1: k/E {}, active parameters {}", percent(rates(s1, 1).expert_fraction),
                  percent(rates(s1, 1).param_wide)));
  row(topic, "S2 2.2", "expert parameters over all, fixed by k",
      fmt::format("gpt4_s2: {} of the stated total, k/E {}",
                  percent(rates(s2, 1, s2.stated.at("total")).param_narrow),
                  percent(rates(s2, 1).expert_fraction)));
  row(topic, "S3 3.1", "active = k x expert + router = 36 B",
      fmt::format("gpt4_s3: stated {} of stated {} T, {}; its shape has {} B active",
                  show(as_double(s3.stated.at("active")) / 1e9),
                  show(as_double(s3.stated.at("total")) / 1e12),
                  percent(as_double(s3.stated.at("active")) / as_double(s3.stated.at("total"))),
                  show(as_double(model::count_active(s3).total()) / 1e9)));
  row(topic, "S4 2.2", "FLOPs, 0.145 %",
      fmt::format("gpt4_s4: one layer over all {}, all layers {}",
                  percent(rates(s4, 1, s4.stated.at("total")).layer_fraction),
                  percent(rates(s4, 1, s4.stated.at("total")).param_narrow)));

  topic = "experts, layers";
  row(topic, "S0", "16 experts, 128 layers", shape(s0));
  row(topic, "S1", "16 experts in the last 32 of 64 layers", shape(s1));
  row(topic, "S2", "128 experts", shape(s2));
  row(topic, "S3", "128 experts, 32 layers of 4096, KV with 96 layers of 8192", shape(s3));
  row(topic, "S4", "16 experts, 96 layers", shape(s4));

  topic = "does MoE save memory";
  const auto resident = [](const ModelConfig& m) {
    const auto count = model::count_parameters(m);
    const auto active = model::count_active(m);
    return fmt::format("{}: {} GB resident, {} GB read by one token", m.name,
                       show(2e-9 * as_double(count.total())),
                       show(2e-9 * as_double(active.total())));
  };
  row(topic, "S0 3.2", "yes: saves 98.9 to 96.3 %", resident(s0));
  row(topic, "S1 1, 4.1", "no: all experts resident", resident(s1));
  row(topic, "S1 3.1", "vLLM keeps only the 2 active ones", resident(get("qwen2_57b_a14b")));
  row(topic, "S2 4.1", "vLLM keeps all", resident(get("deepseek_r1")));
  row(topic, "S4 2.1", "no: all experts resident", resident(s4));

  topic = "KV cache";
  const double once = as_double(model::kv_bytes(s0, DType::kF16, 32768)) / 1e9;
  row(topic, "S0 3.3, S3 3.2", "once",
      fmt::format("gpt4_s0, 32 K tokens: {} GB; attention is outside the experts", show(once)));
  row(topic, "S1 4.1", "16 times",
      fmt::format("the same 16 times: {} GB", show(once * as_double(s0.num_experts))));
  row(topic, "S2 5.2", "once per expert",
      fmt::format("gpt4_s2, 32 K tokens: {} GB once, {} GB by {} experts",
                  show(as_double(model::kv_bytes(s2, DType::kF16, 32768)) / 1e9),
                  show(as_double(model::kv_bytes(s2, DType::kF16, 32768) * s2.num_experts) / 1e9),
                  s2.num_experts));

  topic = "larger batch";
  const auto touched = [&](const ModelConfig& m, std::uint64_t tokens) {
    return percent(rates(m, tokens).touched_fraction);
  };
  row(topic, "S0 3.2, S4 3.3", "raises imbalance and activation",
      fmt::format("gpt4_s0, experts touched by 1, 8, 64 tokens: {}, {}, {}; a token's own share "
                  "stays {}; imbalance falls (batch-activation)",
                  touched(s0, 1), touched(s0, 8), touched(s0, 64),
                  percent(rates(s0, 64).expert_fraction)));
  row(topic, "S4 2.3", "amortises routing",
      fmt::format("fixed and per-token parts through its two shares: {} at batch 32, {} at 256",
                  percent(RoutingOverhead{}.share(32)), percent(RoutingOverhead{}.share(256))));

  topic = "router";
  const auto router = [](const ModelConfig& m) {
    return fmt::format("{}: {} M parameters in the router", m.name,
                       show(as_double(model::count_parameters(m).router) / 1e6));
  };
  row(topic, "S0", "on the CPU or a ninth card, softmax", router(s0));
  row(topic, "S1", "on the GPU, no softmax, FP8", router(s1));
  row(topic, "S2", "on the GPU", router(s2));
  row(topic, "S3 2.3", "softmax, INT4 does no harm", router(s3) + "; see table quantisation");
  row(topic, "S3 3.3", "INT4 does harm", router(s3) + "; see table quantisation");
  row(topic, "S4", "on the GPU, softmax", router(s4));

  topic = "KV growth to out of memory";
  const double room = 80 - 45;
  row(topic, "S4 5.3", "+1 to 2 GB/h from 45 GB fill 80 GB in 6 to 8 h",
      fmt::format("{} to {} h; 6 to 8 h need {} to {} GB/h", show(room / 2), show(room),
                  show(room / 8), show(room / 6)));
  t.notes.emplace_back(
      "GB = 1e9 bytes, FP16; expected distinct experts of even and independent choices");
  return t;
}

std::vector<Table> out_of_scope_tables(const std::vector<claims::Claim>& claims) {
  for (const claims::Claim& claim : claims) {
    SWITCHYARD_ASSERT(claim.decided_by == claims::DecidedBy::kHuman ||
                          claim.decided_by == claims::DecidedBy::kSilicon,
                      claim.row);
  }
  const auto judged = claims::judge(claims, {});
  Table t;
  t.name = "out-of-scope";
  t.title = "numbers that nothing here can decide, and why";
  t.columns = {"row", "source", "claim", "claimed", "unit", "verdict", "why, or how a GPU decides"};
  for (const auto& j : judged) {
    t.rows.push_back({j.claim.row, j.claim.source, j.claim.text, j.claim.printed, j.claim.unit,
                      std::string(name_of(j.verdict)), j.claim.reading});
  }
  t.notes.emplace_back("source S0-S4: the list of such numbers does not name the article");
  t.notes.emplace_back("the other rows that need a GPU: C12f-i in table arithmetic");
  return {t, verdicts_table("out-of-scope", judged)};
}

std::vector<Table> make_conflicts(const TableContext& context) {
  return {conflicts_table(context.scenarios)};
}

std::vector<Table> make_out_of_scope(const TableContext&) {
  return out_of_scope_tables(claims::claims_of("out-of-scope"));
}

}  // namespace switchyard::tables
