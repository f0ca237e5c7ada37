// SPDX-License-Identifier: Apache-2.0
#include "engine/model/accounting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.hpp"

namespace switchyard::model {
namespace {

std::uint64_t ffn_matrices(const ModelConfig& c) {
  return c.expert_kind == ExpertKind::kTwoMatrix ? 2 : 3;
}

std::uint64_t ffn_weights(const ModelConfig& c, std::uint64_t intermediate) {
  return ffn_matrices(c) * c.hidden_size * intermediate;
}

/// Projections, biases and sinks of one layer; norms apart.
struct AttentionCount {
  std::uint64_t weights = 0, biases = 0, norms = 0;
};

AttentionCount attention_of_layer(const ModelConfig& c) {
  AttentionCount a;
  const std::uint64_t h = c.hidden_size;
  if (c.attention == AttentionKind::kMla) {
    const std::uint64_t q_width = c.num_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
    if (c.q_lora_rank > 0) {
      a.weights += h * c.q_lora_rank + c.q_lora_rank * q_width;
      a.norms += c.q_lora_rank;
    } else {
      a.weights += h * q_width;
    }
    a.weights += h * (c.kv_lora_rank + c.qk_rope_head_dim);
    a.norms += c.kv_lora_rank;
    a.weights += c.kv_lora_rank * c.num_heads * (c.qk_nope_head_dim + c.v_head_dim);
    a.weights += c.num_heads * c.v_head_dim * h;
    return a;
  }
  const std::uint64_t q = c.num_heads * c.head_dim;
  const std::uint64_t kv = c.num_kv_heads * c.head_dim;
  a.weights = h * q + 2 * h * kv + q * h;
  a.biases = (c.qkv_bias ? q + 2 * kv : 0) + (c.output_bias ? h : 0) +
             (c.attention_sinks ? c.num_heads : 0);
  a.norms = c.qk_norm_per_head ? 2 * c.head_dim : c.qk_norm_full ? q + kv : 0;
  return a;
}

/// One MoE layer's router; a token_mlp router is one for all layers and counted elsewhere.
std::uint64_t router_of_layer(const ModelConfig& c) {
  switch (c.router) {
    case RouterKind::kLinear:
      return c.num_experts * c.hidden_size + (c.gate.linear_bias ? c.num_experts : 0) +
             (c.gate.correction_bias ? c.num_experts : 0);
    case RouterKind::kHiddenMlp: {
      const std::uint64_t w = c.router_hidden[0];
      return c.hidden_size * w + w + w * c.num_experts + c.num_experts;
    }
    case RouterKind::kTokenMlp:
      return 0;
  }
  return 0;
}

std::uint64_t router_weights_of_layer(const ModelConfig& c) {
  if (c.router == RouterKind::kHiddenMlp) {
    return c.router_hidden[0] * (c.hidden_size + c.num_experts);
  }
  return c.router == RouterKind::kTokenMlp ? 0 : c.num_experts * c.hidden_size;
}

/// Token embedding [V,d], LayerNorm (weight, bias), d → w, w → E with biases.
std::uint64_t token_router(const ModelConfig& c) {
  const std::uint64_t d = c.router_hidden[0];
  const std::uint64_t w = c.router_hidden[1];
  return c.vocab_size * d + 2 * d + d * w + w + w * c.num_experts + c.num_experts;
}

std::uint64_t biases_of_expert(const ModelConfig& c) {
  return c.expert_kind == ExpertKind::kSwiGluClamped ? 2 * c.expert_intermediate + c.hidden_size
                                                     : 0;
}

ParameterCount layer_with(const ModelConfig& c, std::size_t layer, std::uint64_t experts) {
  ParameterCount p;
  const auto a = attention_of_layer(c);
  p.attention = a.weights + a.biases;
  p.norms = a.norms + 2 * c.hidden_size;
  switch (c.layers[layer].ffn) {
    case FfnKind::kDense:
      p.dense_ffn = ffn_weights(c, c.dense_intermediate);
      break;
    case FfnKind::kMoe:
      p.router = router_of_layer(c);
      p.experts = experts * expert_parameters(c);
      p.expert_biases = experts * biases_of_expert(c);
      p.shared_experts =
          ffn_weights(c, c.shared_intermediate) + (c.shared_expert_gate ? c.hidden_size : 0);
      break;
    case FfnKind::kNone:
      break;
  }
  return p;
}

ParameterCount count_with(const ModelConfig& c, std::uint64_t experts) {
  ParameterCount p;
  p.embedding = c.vocab_size * c.hidden_size;
  p.head = c.tie_word_embeddings ? 0 : c.vocab_size * c.hidden_size;
  p.norms = c.final_norm ? c.hidden_size : 0;
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    const auto x = layer_with(c, l, experts);
    p.attention += x.attention;
    p.norms += x.norms;
    p.router += x.router;
    p.experts += x.experts;
    p.expert_biases += x.expert_biases;
    p.shared_experts += x.shared_experts;
    p.dense_ffn += x.dense_ffn;
  }
  if (c.router == RouterKind::kTokenMlp) {
    p.router = token_router(c);
  }
  const auto stated = [&](const char* key) {
    const auto it = c.stated.find(key);
    return it == c.stated.end() ? std::optional<std::uint64_t>() : it->second;
  };
  if (const auto v = stated("expert")) {
    p.experts = *v * experts;
    p.expert_biases = 0;
  }
  if (const auto v = stated("embedding")) {
    p.embedding = *v;
  }
  if (const auto v = stated("attention")) {
    p.attention = *v;
  }
  if (const auto v = stated("backbone")) {
    p.embedding = p.attention = p.norms = p.shared_experts = p.dense_ffn = p.head = 0;
    p.stated_backbone = *v;
  }
  return p;
}

double ratio(std::uint64_t a, std::uint64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

}  // namespace

std::uint64_t ParameterCount::total() const {
  return embedding + attention + norms + router + experts + shared_experts + dense_ffn + head +
         stated_backbone;
}

ParameterCount count_parameters(const ModelConfig& config) {
  return count_with(config, config.num_experts);
}

ParameterCount count_active(const ModelConfig& config) { return count_with(config, config.top_k); }

std::uint64_t active_without_input_embedding(const ModelConfig& config) {
  const auto active = count_active(config);
  return config.tie_word_embeddings ? active.total() : active.total() - active.embedding;
}

ParameterCount count_layer(const ModelConfig& config, std::size_t layer) {
  SWITCHYARD_ASSERT(layer < config.layers.size(), fmt::format("layer {}", layer));
  return layer_with(config, layer, config.num_experts);
}

std::uint64_t expert_matrix_elements(const ModelConfig& config) {
  return ffn_weights(config, config.expert_intermediate);
}

std::uint64_t expert_parameters(const ModelConfig& config) {
  return expert_matrix_elements(config) + biases_of_expert(config);
}

std::uint64_t expert_parameters_all_layers(const ModelConfig& config) {
  const auto it = config.stated.find("expert");
  return it != config.stated.end() ? it->second
                                   : expert_parameters(config) * config.num_moe_layers();
}

DTypeChoice default_dtypes(const ModelConfig& config) {
  DTypeChoice d;
  d.experts = config.expert_dtype;
  d.shared = config.stored_dtype;
  d.router = config.stored_dtype;
  if (config.quantization == "fp8_block") {
    d.shared = DType::kF8E4M3;
    d.embedding = config.stored_dtype;
  }
  return d;
}

std::uint64_t weight_bytes(const ParameterCount& count, const DTypeChoice& dtype) {
  const std::uint64_t kept = count.embedding + count.norms + count.head;
  const std::uint64_t rest =
      count.total() - count.experts + count.expert_biases - count.router - kept;
  return dtype_bytes(dtype.experts, count.experts - count.expert_biases) +
         dtype_bytes(dtype.router, count.router) + dtype_bytes(dtype.shared, rest) +
         dtype_bytes(dtype.embedding.value_or(dtype.shared), kept);
}

std::uint64_t expert_bytes(const ModelConfig& config, DType dtype) {
  const DType bias = dtype_bits_x32(dtype) < 512 ? config.stored_dtype : dtype;
  return dtype_bytes(dtype, expert_matrix_elements(config)) +
         dtype_bytes(bias, biases_of_expert(config));
}

std::uint64_t routed_bytes_per_layer(const ModelConfig& config, DType dtype) {
  const DType bias = dtype_bits_x32(dtype) < 512 ? config.stored_dtype : dtype;
  return dtype_bytes(dtype, config.num_experts * expert_matrix_elements(config)) +
         dtype_bytes(bias, config.num_experts * biases_of_expert(config));
}

std::uint64_t kv_values_per_token_layer(const ModelConfig& config) {
  return config.attention == AttentionKind::kMla ? config.kv_lora_rank + config.qk_rope_head_dim
                                                 : 2 * config.num_kv_heads * config.head_dim;
}

std::uint64_t kv_bytes_per_token(const ModelConfig& config, DType dtype) {
  return dtype_bytes(dtype, config.num_layers * kv_values_per_token_layer(config));
}

std::uint64_t kv_bytes_per_token_naive(const ModelConfig& config, DType dtype) {
  if (config.attention != AttentionKind::kMla) {
    return kv_bytes_per_token(config, dtype);
  }
  return dtype_bytes(dtype,
                     config.num_layers * config.num_heads * (config.head_dim + config.v_head_dim));
}

std::uint64_t kv_bytes(const ModelConfig& config, DType dtype, std::uint64_t context) {
  if (context > 1ULL << 40U) {
    throw InputError("context", fmt::format("{} tokens is beyond 2^40", context));
  }
  unsigned __int128 values = 0;
  for (const auto& layer : config.layers) {
    const std::uint64_t held =
        layer.sliding_window > 0 ? std::min(context, layer.sliding_window) : context;
    values += static_cast<unsigned __int128>(held) * kv_values_per_token_layer(config);
  }
  if (values >> 63U != 0) {
    throw InputError("context",
                     fmt::format("the KV cache of {} tokens exceeds 2^63 values", context));
  }
  return dtype_bytes(dtype, static_cast<std::uint64_t>(values));
}

std::uint64_t FlopCount::total() const {
  return projections + scores + router + experts + shared_experts + dense_ffn + head;
}

FlopCount flops_per_token(const ModelConfig& config, std::uint64_t context) {
  if (context > 1ULL << 32U) {
    throw InputError("context", fmt::format("{} tokens is beyond 2^32", context));
  }
  FlopCount f;
  unsigned __int128 scores = 0;
  const auto a = attention_of_layer(config);
  for (const auto& layer : config.layers) {
    f.projections += 2 * a.weights;
    const std::uint64_t attended =
        layer.sliding_window > 0 ? std::min(context, layer.sliding_window) : context;
    scores += static_cast<unsigned __int128>(2 * config.num_heads) *
              (config.head_dim + config.v_head_dim) * attended;
    switch (layer.ffn) {
      case FfnKind::kDense:
        f.dense_ffn += 2 * ffn_weights(config, config.dense_intermediate);
        break;
      case FfnKind::kMoe:
        f.router += 2 * router_weights_of_layer(config);
        f.experts += 2 * config.top_k * expert_matrix_elements(config);
        f.shared_experts += 2 * (ffn_weights(config, config.shared_intermediate) +
                                 (config.shared_expert_gate ? config.hidden_size : 0));
        break;
      case FfnKind::kNone:
        break;
    }
  }
  if (scores >> 62U != 0) {
    throw InputError("context",
                     fmt::format("attention over {} tokens exceeds 2^62 FLOPs per token", context));
  }
  f.scores = static_cast<std::uint64_t>(scores);
  if (config.router == RouterKind::kTokenMlp) {
    // The embedding row is a look-up; the two maps run once per token.
    f.router = 2 * config.router_hidden[1] * (config.router_hidden[0] + config.num_experts);
  }
  f.head = 2 * config.vocab_size * config.hidden_size;
  return f;
}

const std::vector<ActivationDefinition>& activation_definitions() {
  static const std::vector<ActivationDefinition> rows = {
      {"expert_fraction", "k/E", &ActivationRates::expert_fraction},
      {"touched_fraction", "experts with >= 1 token / E", &ActivationRates::touched_fraction},
      {"slot_occupancy", "accepted/(E*C)", &ActivationRates::slot_occupancy},
      {"kept_fraction", "accepted/(T*E)", &ActivationRates::kept_fraction},
      {"param_narrow", "expert parameters used per token / P_total",
       &ActivationRates::param_narrow},
      {"param_wide", "(dense + expert used per token) / P_total", &ActivationRates::param_wide},
      {"layer_fraction", "one layer's used expert parameters / P_total",
       &ActivationRates::layer_fraction},
      {"traffic_share", "weight bytes read in the step / all weight bytes",
       &ActivationRates::traffic_share},
  };
  return rows;
}

ActivationRates activation_rates(const ModelConfig& config, const DTypeChoice& dtype,
                                 const StepActivity& step, std::uint64_t total_parameters) {
  if (step.tokens == 0) {
    throw InputError("tokens", "a step needs at least one token");
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto all = count_parameters(config);
  const auto active = count_active(config);
  const std::uint64_t total = total_parameters != 0 ? total_parameters : all.total();
  const std::uint64_t moe = config.num_moe_layers();
  ActivationRates r{kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};
  r.param_wide = ratio(active.total(), total);
  // Bytes read: everything but the experts once, touched experts only, min(T, V) embedding rows.
  const std::uint64_t rows = std::min(step.tokens, config.vocab_size);
  const std::uint64_t row_parameters =
      config.tie_word_embeddings || config.stated.count("embedding") != 0
          ? all.embedding
          : std::min(all.embedding, rows * config.hidden_size);
  ParameterCount read = all;
  read.embedding = row_parameters;
  read.experts = read.expert_biases = 0;
  const auto stated = config.stated.find("expert");
  const double per_touched =
      moe == 0 ? 0
      : stated != config.stated.end()
          ? static_cast<double>(stated->second) / static_cast<double>(moe) *
                static_cast<double>(dtype_bits_x32(dtype.experts)) / 256.0
          : static_cast<double>(dtype_bytes(dtype.experts, expert_matrix_elements(config)) +
                                dtype_bytes(dtype.shared, biases_of_expert(config)));
  const double expert_read = static_cast<double>(step.touched_experts) * per_touched;
  r.traffic_share = (static_cast<double>(weight_bytes(read, dtype)) + expert_read) /
                    static_cast<double>(weight_bytes(all, dtype));
  if (moe == 0) {
    return r;
  }
  const std::uint64_t slots = config.num_experts * moe;
  r.expert_fraction = ratio(config.top_k, config.num_experts);
  r.touched_fraction = ratio(step.touched_experts, slots);
  if (step.capacity > 0) {
    r.slot_occupancy = static_cast<double>(step.accepted) /
                       (static_cast<double>(slots) * static_cast<double>(step.capacity));
  }
  r.kept_fraction = static_cast<double>(step.accepted) /
                    (static_cast<double>(slots) * static_cast<double>(step.tokens));
  r.param_narrow = ratio(active.experts, total);
  r.layer_fraction =
      static_cast<double>(active.experts) / static_cast<double>(moe) / static_cast<double>(total);
  return r;
}

double expected_distinct_experts(std::uint64_t experts, std::uint64_t top_k, std::uint64_t tokens) {
  if (experts == 0) {
    return 0;
  }
  const double missed = 1.0 - ratio(top_k, experts);
  return static_cast<double>(experts) * (1.0 - std::pow(missed, static_cast<double>(tokens)));
}

StepActivity expected_step(const ModelConfig& config, std::uint64_t tokens) {
  StepActivity s;
  s.tokens = tokens;
  const std::uint64_t moe = config.num_moe_layers();
  if (tokens > 1ULL << 32U) {
    throw InputError("tokens", fmt::format("{} is beyond 2^32", tokens));
  }
  s.accepted = tokens * config.top_k * moe;
  s.touched_experts = static_cast<std::uint64_t>(
      std::llround(expected_distinct_experts(config.num_experts, config.top_k, tokens) *
                   static_cast<double>(moe)));
  return s;
}

}  // namespace switchyard::model
