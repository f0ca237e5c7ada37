// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/account.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/base/units.hpp"
#include "engine/model/gguf.hpp"

namespace switchyard {
namespace {

using model::DType;
using model::DTypeChoice;
using model::ModelConfig;
using model::ParameterCount;

std::string percent(double fraction) {
  return std::isnan(fraction) ? std::string("n/a") : fmt::format("{:.4f}", 100.0 * fraction);
}

std::string share(std::uint64_t part, std::uint64_t whole) {
  return percent(static_cast<double>(part) / static_cast<double>(whole));
}

/// Formats and bytes of a part as a GGUF file holds them.
struct StoredPart {
  std::vector<std::string> formats;  // In order of first appearance.
  std::uint64_t bytes = 0;
};
using StoredParts = std::map<std::string, StoredPart>;

/// The part that llama.cpp's name of a tensor belongs to, as in parts_table.
std::string part_of(const std::string& name) {
  const auto has = [&](const char* text) { return name.find(text) != std::string::npos; };
  if (has("norm")) return "norms";
  if (name.starts_with("token_embd")) return "input embedding";
  if (name.starts_with("output")) return "LM head";
  if (has("_exps")) return "routed experts";
  if (has("_shexp")) return "shared experts";
  if (has("ffn_gate_inp") || has("exp_probs")) return "router";
  if (has("attn_")) return "attention";
  if (has("ffn_")) return "dense FFN";
  return "other tensors";
}

StoredParts stored_parts(const model::Gguf& file) {
  StoredParts out;
  for (const auto& [name, tensor] : file.tensors()) {
    StoredPart& part = out[part_of(name)];
    const std::string format(dtype_name(tensor.dtype));
    if (std::find(part.formats.begin(), part.formats.end(), format) == part.formats.end()) {
      part.formats.push_back(format);
    }
    part.bytes += tensor.data.size();
  }
  return out;
}

/// `stored`: the formats and bytes of a file in place of `dtype`'s; may be null.
Table parts_table(const ModelConfig& config, const DTypeChoice& dtype, const StoredParts* stored) {
  const auto all = model::count_parameters(config);
  const auto active = model::count_active(config);
  Table t;
  t.name = "account";
  t.title = fmt::format("{}: parameters and bytes by part", config.name);
  t.columns = {"part",   "parameters", "active per token",
               "format", "bytes [B]",  "share of parameters [%]"};
  const auto row = [&](const char* part, std::uint64_t ParameterCount::*field, DType format) {
    const std::uint64_t n = all.*field;
    if (n == 0) {
      return;
    }
    ParameterCount one;
    one.*field = n;
    if (field == &ParameterCount::experts) {
      one.expert_biases = all.expert_biases;
    }
    t.rows.push_back({part, fmt::to_string(n), fmt::to_string(active.*field),
                      std::string(dtype_name(format)),
                      fmt::to_string(model::weight_bytes(one, dtype)), share(n, all.total())});
    if (stored == nullptr) return;
    const auto it = stored->find(part);
    t.rows.back()[3] =
        it == stored->end() ? "" : fmt::format("{}", fmt::join(it->second.formats, ", "));
    t.rows.back()[4] = fmt::to_string(it == stored->end() ? 0 : it->second.bytes);
  };
  const DType kept = dtype.embedding.value_or(dtype.shared);
  row("input embedding", &ParameterCount::embedding, kept);
  row("attention", &ParameterCount::attention, dtype.shared);
  row("norms", &ParameterCount::norms, kept);
  row("router", &ParameterCount::router, dtype.router);
  row("routed experts", &ParameterCount::experts, dtype.experts);
  row("shared experts", &ParameterCount::shared_experts, dtype.shared);
  row("dense FFN", &ParameterCount::dense_ffn, dtype.shared);
  row("LM head", &ParameterCount::head, kept);
  row("backbone (stated)", &ParameterCount::stated_backbone, dtype.shared);
  std::uint64_t bytes = 0;
  if (stored == nullptr) {
    bytes = model::weight_bytes(all, dtype);
  } else {
    for (const auto& [part, held] : *stored) bytes += held.bytes;
    if (const auto it = stored->find("other tensors"); it != stored->end()) {
      t.rows.push_back({"other tensors", "0", "0",
                        fmt::format("{}", fmt::join(it->second.formats, ", ")),
                        fmt::to_string(it->second.bytes), "0.0000"});
    }
  }
  t.rows.push_back({"total", fmt::to_string(all.total()), fmt::to_string(active.total()), "",
                    fmt::to_string(bytes), "100.0000"});
  const std::uint64_t look_up = config.tie_word_embeddings ? 0 : all.embedding;
  t.rows.push_back({"total without input embedding", fmt::to_string(all.total() - look_up),
                    fmt::to_string(model::active_without_input_embedding(config)), "", "",
                    share(all.total() - look_up, all.total())});
  if (config.tie_word_embeddings) {
    t.notes.emplace_back("input embedding and LM head are one matrix");
  }
  if (stored != nullptr) {
    t.notes.emplace_back(
        "formats and bytes are of the file's tensors; --dtype counts the parts in others, and the "
        "tables below count each part in one format");
  }
  if (config.num_experts > 0 && config.router == model::RouterKind::kLinear) {
    t.notes.push_back(fmt::format(
        "router: its weights are counted as stored (--dtype router=fp32 counts them otherwise); "
        "its logits are computed in {}",
        config.gate.bf16_linear ? "bf16" : "fp32"));
  }
  for (const auto& [key, value] : config.stated) {
    t.notes.push_back(fmt::format("stated by the article: {} {}", key, format_count(value)));
  }
  t.notes.insert(t.notes.end(), config.notes.begin(), config.notes.end());
  return t;
}

Table derived_table(const ModelConfig& config, const DTypeChoice& dtype, std::uint64_t context) {
  Table t;
  t.name = "account-derived";
  t.title = fmt::format("{}: experts, KV cache, FLOPs", config.name);
  t.columns = {"quantity", "value", "unit"};
  const auto row = [&](const std::string& name, std::uint64_t value, const char* unit) {
    t.rows.push_back({name, fmt::to_string(value), unit});
  };
  row("layers", config.num_layers, "");
  row("MoE layers", config.num_moe_layers(), "");
  if (config.num_experts > 0) {
    row("routed experts per MoE layer (E)", config.num_experts, "");
    row("experts per token (k)", config.top_k, "");
    row("parameters of one expert, one layer", model::expert_parameters(config), "");
    row("parameters of one expert, all layers", model::expert_parameters_all_layers(config), "");
    row("one expert, one layer", model::expert_bytes(config, dtype.experts), "B");
    row("routed experts of one layer", model::routed_bytes_per_layer(config, dtype.experts), "B");
  }
  row("KV cache per token", model::kv_bytes_per_token(config, dtype.kv), "B");
  if (config.attention == model::AttentionKind::kMla) {
    row("KV cache per token if cached per head (naive)",
        model::kv_bytes_per_token_naive(config, dtype.kv), "B");
  }
  if (context > 0) {
    row(fmt::format("KV cache of a sequence of {} tokens", context),
        model::kv_bytes(config, dtype.kv, context), "B");
  }
  const auto f = model::flops_per_token(config, context);
  row("attention projections", f.projections, "FLOP/token");
  if (context > 0) {
    row(fmt::format("attention scores over {} tokens", context), f.scores, "FLOP/token");
  }
  if (config.num_experts > 0) {
    row("router", f.router, "FLOP/token");
    row("routed experts", f.experts, "FLOP/token");
  }
  if (f.shared_experts > 0) {
    row("shared experts", f.shared_experts, "FLOP/token");
  }
  if (f.dense_ffn > 0) {
    row("dense FFN", f.dense_ffn, "FLOP/token");
  }
  row("LM head", f.head, "FLOP/token");
  row("all", f.total(), "FLOP/token");
  if (!config.stated.empty()) {
    t.notes.emplace_back(
        "FLOPs, KV cache and the bytes of one layer follow the shape, not the "
        "stated totals");
  }
  return t;
}

Table activation_table(const ModelConfig& config, const DTypeChoice& dtype, std::uint64_t tokens) {
  Table t;
  t.name = "account-activation";
  t.title = fmt::format("{}: eight activation rates of a step of {} token{}", config.name, tokens,
                        tokens == 1 ? "" : "s");
  t.columns = {"rate", "definition", "value [%]"};
  const auto step = model::expected_step(config, tokens);
  const auto own = model::activation_rates(config, dtype, step);
  const auto stated = config.stated.find("total");
  const bool two = stated != config.stated.end();
  auto other = own;
  if (two) {
    t.columns.emplace_back("of the stated total [%]");
    other = model::activation_rates(config, dtype, step, stated->second);
  }
  for (const auto& d : model::activation_definitions()) {
    t.rows.push_back({d.name, d.formula, percent(own.*d.value)});
    if (two) {
      const bool of_parameters = d.formula.find("P_total") != std::string::npos;
      t.rows.back().push_back(of_parameters ? percent(other.*d.value) : std::string("n/a"));
    }
  }
  if (config.num_experts > 0) {
    t.notes.push_back(fmt::format(
        "uniform routing, no capacity: all {}*k assignments per layer accepted, "
        "E(1-(1-k/E)^T) = {:.4f} experts touched per MoE layer; slot_occupancy needs a "
        "capacity C",
        tokens, model::expected_distinct_experts(config.num_experts, config.top_k, tokens)));
  }
  if (two && config.stated.count("active") != 0) {
    t.notes.push_back(fmt::format("stated active / stated total = {} %",
                                  share(config.stated.at("active"), stated->second)));
  }
  return t;
}

}  // namespace

DTypeChoice parse_dtype_choice(const std::string& text, DTypeChoice base) {
  const std::string where = "--dtype";
  if (text.empty()) {
    return base;
  }
  if (text.find('=') == std::string::npos) {
    base.experts = base.shared = base.router = model::parse_dtype(text, where);
    base.embedding.reset();
    return base;
  }
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, comma - at);
    at = comma + 1;
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos) {
      throw InputError(where, fmt::format("\"{}\" is not part=format", item),
                       "e.g. experts=int4,router=fp32");
    }
    const std::string part = item.substr(0, equals);
    static const std::array<std::string, 4> kParts{"experts", "shared", "router", "kv"};
    if (std::find(kParts.begin(), kParts.end(), part) == kParts.end()) {
      throw InputError(where, fmt::format("unknown part \"{}\"", part), suggest_name(part, kParts));
    }
    const DType format = model::parse_dtype(item.substr(equals + 1), where);
    if (part == "experts") {
      base.experts = format;
    } else if (part == "shared") {
      base.shared = format;
      base.embedding.reset();
    } else if (part == "router") {
      base.router = format;
    } else {
      base.kv = format;
    }
  }
  return base;
}

std::vector<Table> account(const AccountOptions& options) {
  if (options.tokens == 0) {
    throw InputError("--tokens", "a step needs at least one token");
  }
  const auto path = model::find_model(options.model, options.root);
  const auto config = model::read_model_config(path);
  const auto dtype = parse_dtype_choice(options.dtype, model::default_dtypes(config));
  StoredParts stored;
  if (options.dtype.empty() && model::is_gguf_path(path)) {
    stored = stored_parts(model::Gguf::open(path));
  }
  return {parts_table(config, dtype, stored.empty() ? nullptr : &stored),
          derived_table(config, dtype, options.context),
          activation_table(config, dtype, options.tokens)};
}

}  // namespace switchyard
