// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/account.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::tables {
namespace {

using model::DType;
using model::DTypeChoice;
using model::ModelConfig;

constexpr double kGB = 1e9, kTB = 1e12, kGiB = 1073741824.0, kKiB = 1024.0;
constexpr std::array<const char*, 19> kModels{
    "gpt4_s0",      "gpt4_s0_literal", "gpt4_s1",      "gpt4_s1_110", "gpt4_s2",
    "gpt4_s3",      "gpt4_s4",         "gpt4_s4_int4", "r1_s2",       "ds_moe_16b_s3",
    "moe_70b_s3",   "qwen2_57b_s1",    "dense_28b",    "dense_70b",   "dense_active",
    "mixtral_8x7b", "qwen2_57b_a14b",  "deepseek_v3",  "deepseek_r1"};
/// S0 2.2: capacity of an expert, in tokens; its buffers (S0 3.3) are sized by it.
constexpr double kS0Capacity = 64;
/// S2 2.2 counts an expert of GPT-4 as 18 B, two of them per token.
constexpr double kS2PrintedExpert = 18;  // B

double as_double(std::uint64_t v) { return static_cast<double>(v); }
double percent(std::uint64_t part, std::uint64_t whole) {
  return 100.0 * as_double(part) / as_double(whole);
}

DTypeChoice uniform(DType dtype) {
  DTypeChoice d;
  d.experts = d.shared = d.router = d.kv = dtype;
  return d;
}

const ModelConfig& get(const AccountInputs& inputs, const std::string& name) {
  const auto it = inputs.models.find(name);
  SWITCHYARD_ASSERT(it != inputs.models.end(), name);
  return it->second;
}

std::uint64_t stated(const ModelConfig& config, const char* key) {
  const auto it = config.stated.find(key);
  SWITCHYARD_ASSERT(it != config.stated.end(), fmt::format("{} states no {}", config.name, key));
  return it->second;
}

/// 16-bit bytes of `values`, as a double.
double fp16(std::uint64_t values) { return as_double(model::dtype_bytes(DType::kF16, values)); }

void measure_s0(const AccountInputs& inputs, const std::vector<claims::Claim>& claims,
                FigureReader& figures, claims::Measurements& out) {
  const auto printed = [&](const char* row) {
    const claims::Claim& claim = claims::claim_by_row(claims, row);
    return figures.value(printed_figure(claim));
  };
  const ModelConfig& s0 = get(inputs, "gpt4_s0");
  const auto count = model::count_parameters(s0);
  const std::uint64_t trillion = stated(get(inputs, "gpt4_s4"), "total");  // the articles' 1.8 T

  const double whole = fp16(trillion);
  out.add("total_fp16", whole / kTB, fmt::format("{} x 2 bytes", trillion));
  const double fp8 = as_double(model::dtype_bytes(DType::kF8E4M3, trillion));
  out.add("total_fp8", fp8 / kTB, fmt::format("{} x 1 byte", trillion));
  out.add("cards_188", std::ceil(fp8 / as_double(inputs.card_188)),
          fmt::format("{:.2f} rounded up; {} of {} GB", fp8 / as_double(inputs.card_188),
                      std::ceil(fp8 / as_double(inputs.card_80)),
                      show(as_double(inputs.card_80) / kGB)));
  out.add("memory_8x188", as_double(inputs.memory_8x188) / kGB,
          "sum over the GPUs of whatif_8x188");

  const auto context =
      static_cast<std::uint64_t>(figures.value({"tokens of the KV cache (S0 2.1)", 32768, true}));
  const std::uint64_t kv = model::kv_bytes(s0, DType::kF16, context);
  out.add("kv_32k", as_double(kv) / kTB,
          fmt::format("{} tokens x {} B = {} GiB", context,
                      model::kv_bytes_per_token(s0, DType::kF16), show(as_double(kv) / kGiB)));
  out.add("kv_32k_printed", as_double(kv) / 2.0 / kTB,
          fmt::format("half of it, {} GiB", show(as_double(kv) / 2.0 / kGiB)));

  const std::uint64_t h = s0.hidden_size;
  const std::uint64_t wide = s0.expert_intermediate;
  const double share_of_experts = printed("C04a") / 100.0;
  const double share_of_rest = printed("C04c") / 100.0;
  const auto experts = static_cast<double>(s0.num_experts);
  const std::string whole_tb = show(whole / kTB) + " TB";
  out.add("matrix", fp16(h * wide) / kGiB, fmt::format("{} values x 2 bytes", h * wide));
  out.add("expert_16th", whole / experts / kGB, fmt::format("{} / {}", whole_tb, s0.num_experts));
  out.add("expert_share", share_of_experts * whole / experts / kGB,
          fmt::format("{} x {} / {}", show(share_of_experts), whole_tb, s0.num_experts));
  out.add("expert_preset", fp16(model::expert_parameters_all_layers(s0)) / kGB,
          fmt::format("{} MoE layers x {} parameters x 2 bytes", s0.num_moe_layers(),
                      model::expert_parameters(s0)));
  out.add("shared_share", share_of_rest * whole / kGB,
          fmt::format("{} x {}", show(share_of_rest), whole_tb));
  const auto sum = [&](const char* quantity, std::initializer_list<const char*> rows) {
    double total = 0;
    std::string how;
    for (const char* row : rows) {
      const claims::Claim& claim = claims::claim_by_row(claims, row);
      total += printed(row);
      how += (how.empty() ? "" : " + ") + claim.printed;
    }
    out.add(quantity, total, how);
    return total;
  };
  sum("card_sum", {"C03b", "C03e"});

  const auto of_preset = [&](std::uint64_t part) {
    return fmt::format("{}: {} of {}", s0.name, part, count.total());
  };
  const std::uint64_t rest = count.dense() - count.router;
  out.add("share_experts", percent(count.experts, count.total()), of_preset(count.experts));
  out.add("share_router", percent(count.router, count.total()), of_preset(count.router));
  out.add("share_rest", percent(rest, count.total()), of_preset(rest));
  sum("share_sum", {"C04a", "C04b", "C04c"});
  out.add("router_parameters", as_double(count.router) / 1e9,
          fmt::format("{} x {}, {} x {}, {} x {}, biases and norm", s0.vocab_size,
                      s0.router_hidden.at(0), s0.router_hidden.at(0), s0.router_hidden.at(1),
                      s0.router_hidden.at(1), s0.num_experts));
  out.add("router_bytes", fp16(count.router) / kGB, fmt::format("{} x 2 bytes", count.router));
  out.add("router_bytes_printed", printed("C04e") * 2, fmt::format("{} x 2", printed("C04e")));

  const double attention_layer = fp16(4 * h * h);
  const double attention = attention_layer * static_cast<double>(s0.num_layers);
  const auto capacity = static_cast<std::uint64_t>(
      figures.value({"tokens of an expert's capacity (S0 2.2)", kS0Capacity, true}));
  const double buffer = fp16(capacity * s0.num_experts * h);
  const double activations = fp16(capacity * wide);
  out.add("attention", attention / kGiB,
          fmt::format("4 x {}^2 x 2 bytes x {} layers; {} is {:.1f} layers", h, s0.num_layers,
                      printed("C05a"), printed("C05a") * kGiB / attention_layer));
  out.add("norms", fp16(count.norms) / kGiB, fmt::format("{} x 2 bytes", count.norms));
  out.add("embedding", fp16(count.embedding) / kGiB,
          fmt::format("{} x {} x 2 bytes", s0.vocab_size, h));
  out.add("head", fp16(count.head) / kGiB, fmt::format("{} x {} x 2 bytes", s0.vocab_size, h));
  out.add("all_to_all_buffer", buffer / kGiB,
          fmt::format("{} tokens x {} experts x {} x 2 bytes", capacity, s0.num_experts, h));
  out.add("ffn_activations", activations / kGiB,
          fmt::format("{} tokens x {} x 2 bytes; {} x {} is a weight", capacity, wide, wide, h));
  out.add("routing_buffer",
          as_double(model::dtype_bytes(DType::kF32, capacity * s0.num_experts)) / kKiB,
          fmt::format("{} tokens x {} logits x 4 bytes", capacity, s0.num_experts));
  sum("items_sum", {"C05a", "C05b", "C05c", "C05d", "C05e", "C05f"});
  out.add(
      "items_right",
      (attention + fp16(count.norms + count.embedding + count.head) + buffer + activations) / kGB,
      "ours of C05a to C05f, in GB");
  const double total = sum("items_total", {"C05h", "C03b"});
  const double card = as_double(inputs.card_280) / kGB;
  out.add("items_left", card - total, fmt::format("{} - {}", show(card), show(total)));
  out.add("items_use", 100.0 * total / card, fmt::format("{} / {}", show(total), show(card)));
}

void measure_s2(const AccountInputs& inputs, FigureReader& figures, claims::Measurements& out) {
  const ModelConfig& r1 = get(inputs, "deepseek_r1");
  const ModelConfig& s2 = get(inputs, "gpt4_s2");
  const ModelConfig& printed = get(inputs, "r1_s2");
  const auto one = [](const ModelConfig& config, std::uint64_t total = 0) {
    return model::activation_rates(config, uniform(DType::kF16), model::expected_step(config, 1),
                                   total);
  };
  const auto all = model::count_parameters(r1);
  const auto active = model::count_active(r1);
  out.add("r1_wide", 100.0 * one(r1).param_wide,
          fmt::format("{:.2f} B of {:.2f} B; narrow {:.2f} %, with the shared expert {:.2f} %",
                      as_double(active.total()) / 1e9, as_double(all.total()) / 1e9,
                      percent(active.experts, all.total()),
                      percent(active.experts + active.shared_experts, all.total())));
  const std::uint64_t total = stated(s2, "total");
  const double expert =
      1e9 * figures.value({"B parameters of an expert (S2 2.2)", kS2PrintedExpert});
  out.add("s2_printed", 100.0 * static_cast<double>(s2.top_k) * expert / as_double(total),
          fmt::format("{} x {} B / {}: circular, no expert of it has that many", s2.top_k,
                      show(expert / 1e9), total));
  out.add("s2_narrow", 100.0 * one(s2, total).param_narrow,
          fmt::format("{} x {} / {}", s2.top_k, stated(s2, "expert"), total));
  out.add("s2_expert_fraction", 100.0 * one(s2).expert_fraction,
          fmt::format("{} / {}", s2.top_k, s2.num_experts));
  out.add("r1_expert", as_double(2 * printed.hidden_size * printed.expert_intermediate) / 1e9,
          fmt::format("{} x {} x 2", printed.hidden_size, printed.expert_intermediate));
  out.add("r1_attention", as_double(4 * printed.hidden_size * printed.hidden_size) / 1e9,
          fmt::format("4 x {}^2", printed.hidden_size));
  out.add("r1_embedding", as_double(r1.vocab_size * r1.hidden_size) / 1e9,
          fmt::format("{} x {}", r1.vocab_size, r1.hidden_size));
}

void measure_s4(const AccountInputs& inputs, claims::Measurements& out) {
  const ModelConfig& s4 = get(inputs, "gpt4_s4");
  const auto count = model::count_parameters(s4);
  const std::uint64_t total = stated(s4, "total");
  const std::uint64_t expert = model::expert_parameters(s4);
  const auto own = model::activation_rates(s4, uniform(DType::kF16), model::expected_step(s4, 1));
  const auto rates =
      model::activation_rates(s4, uniform(DType::kF16), model::expected_step(s4, 1), total);
  out.add("s4_expert", as_double(expert) / 1e9,
          fmt::format("2 x {} x {} = {}", s4.hidden_size, s4.expert_intermediate, expert));
  out.add("s4_layer", as_double(expert * s4.num_experts) / 1e9,
          fmt::format("{} experts: {}", s4.num_experts, expert * s4.num_experts));
  out.add("s4_experts", as_double(count.experts) / 1e12,
          fmt::format("{} layers: {}", s4.num_moe_layers(), count.experts));
  out.add("s4_expert_fraction", 100.0 * rates.expert_fraction,
          fmt::format("{} / {}", s4.top_k, s4.num_experts));
  out.add("s4_used_layer", as_double(expert * s4.top_k) / 1e9,
          fmt::format("{} x {}", s4.top_k, expert));
  out.add("s4_used", as_double(expert * s4.top_k * s4.num_moe_layers()) / 1e9,
          fmt::format("{} x {} x {} layers", s4.top_k, expert, s4.num_moe_layers()));
  out.add("s4_layer_fraction", 100.0 * rates.layer_fraction,
          fmt::format("one layer of {}", s4.num_moe_layers()));
  out.add("s4_narrow", 100.0 * rates.param_narrow,
          fmt::format("{:.2f} % of its own {:.4f} T; wide {:.2f} %", 100.0 * own.param_narrow,
                      as_double(count.total()) / 1e12, 100.0 * own.param_wide));
}

Table models_table(const AccountInputs& inputs) {
  Table t;
  t.name = "account";
  t.title = "models: parameters, bytes, KV cache";
  t.columns = {"model",
               "layers",
               "MoE layers",
               "E",
               "k",
               "total [B]",
               "active [B]",
               "experts [%]",
               "router [%]",
               "rest [%]",
               "formats",
               "weights [GB]",
               "one expert, all layers [GB]",
               "KV [B/token]"};
  for (const char* name : kModels) {
    const ModelConfig& c = get(inputs, name);
    const auto all = model::count_parameters(c);
    const auto dtype = model::default_dtypes(c);
    const bool moe = c.num_experts > 0;
    const auto share = [&](std::uint64_t part) {
      return moe ? show(percent(part, all.total())) : std::string("-");
    };
    std::string formats(model::dtype_name(dtype.shared));
    if (dtype.embedding) {
      formats = fmt::format("{} (file: embeddings, norms, head, router {})", formats,
                            model::dtype_name(*dtype.embedding));
    }
    if (moe && dtype.experts != dtype.shared) {
      formats = fmt::format("{}, experts {}", formats, model::dtype_name(dtype.experts));
    }
    t.rows.push_back(
        {name, fmt::to_string(c.num_layers), fmt::to_string(c.num_moe_layers()),
         moe ? fmt::to_string(c.num_experts) : "-", moe ? fmt::to_string(c.top_k) : "-",
         show(as_double(all.total()) / 1e9), show(as_double(model::count_active(c).total()) / 1e9),
         share(all.experts), share(all.router), share(all.dense() - all.router), formats,
         show(as_double(model::weight_bytes(all, dtype)) / kGB),
         moe ? show(as_double(model::expert_bytes(c, dtype.experts) * c.num_moe_layers()) / kGB)
             : "-",
         fmt::to_string(model::kv_bytes_per_token(c, dtype.kv))});
  }
  t.notes.emplace_back("rest = everything but routed experts and router; B = 1e9, GB = 1e9 bytes");
  return t;
}

Table activation_table(const AccountInputs& inputs) {
  constexpr std::uint64_t kTokens = 64;
  Table t;
  t.name = "account-activation";
  t.title = fmt::format("the eight activation rates of a step of {} tokens, in %", kTokens);
  t.columns = {"model", "P_total"};
  for (const auto& d : model::activation_definitions()) {
    t.columns.push_back(d.name);
  }
  const auto row = [&](const ModelConfig& c, const std::string& of, std::uint64_t total) {
    auto step = model::expected_step(c, kTokens);
    step.capacity = kTokens;
    const auto rates = model::activation_rates(c, model::default_dtypes(c), step, total);
    std::vector<std::string> cells = {c.name, of};
    for (const auto& d : model::activation_definitions()) {
      cells.push_back(show(100.0 * (rates.*d.value)));
    }
    t.rows.push_back(std::move(cells));
  };
  for (const char* name : kModels) {
    const ModelConfig& c = get(inputs, name);
    if (c.num_experts == 0) {
      continue;
    }
    row(c, "own", 0);
    if (c.stated.contains("total")) {
      row(c, "stated", stated(c, "total"));
    }
  }
  for (const auto& d : model::activation_definitions()) {
    t.notes.push_back(fmt::format("{} = {}", d.name, d.formula));
  }
  t.notes.push_back(
      fmt::format("T = {} with uniform independent choices, capacity C = T", kTokens));
  const ModelConfig& s3 = get(inputs, "gpt4_s3");
  t.notes.push_back(fmt::format("gpt4_s3 states {} active of {}: {:.2f} %", stated(s3, "active"),
                                stated(s3, "total"),
                                percent(stated(s3, "active"), stated(s3, "total"))));
  return t;
}

}  // namespace

AccountInputs account_inputs(const std::filesystem::path& scenarios) {
  AccountInputs inputs;
  for (const char* name : kModels) {
    inputs.models[name] =
        model::read_model_config(scenarios / "models" / fmt::format("{}.json", name));
  }
  const auto hardware = [&](const char* name) {
    return scenario::read_hardware(
        (scenarios / "hardware" / fmt::format("{}.toml", name)).string());
  };
  inputs.card_80 = hardware("hgx_h100").gpu_type(0).memory_bytes;
  const auto nvl = hardware("whatif_8x188");
  inputs.card_188 = nvl.gpu_type(0).memory_bytes;
  for (std::size_t r = 0; r < nvl.gpu_count(); ++r) {
    inputs.memory_8x188 += nvl.gpu_type(r).memory_bytes;
  }
  inputs.card_280 = hardware("whatif_16x280").gpu_type(0).memory_bytes;
  return inputs;
}

claims::Measurements measure_account(const AccountInputs& inputs,
                                     const std::vector<claims::Claim>& claims,
                                     std::vector<Figure>* figures) {
  claims::Measurements out;
  FigureReader reader(inputs.figures, figures);
  measure_s0(inputs, claims, reader, out);
  measure_s2(inputs, reader, out);
  measure_s4(inputs, out);
  return out;
}

std::vector<Table> account_tables(const AccountInputs& inputs,
                                  const std::vector<claims::Claim>& claims) {
  const auto judged = claims::judge(claims, measure_account(inputs, claims));
  return {models_table(inputs), activation_table(inputs), claims_table("account", judged),
          verdicts_table("account", judged)};
}

std::vector<Table> make_account(const TableContext& context) {
  return account_tables(account_inputs(context.scenarios), claims::claims_of("account"));
}

}  // namespace switchyard::tables
