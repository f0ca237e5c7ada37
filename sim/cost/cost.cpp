// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {
using model::DType;

/// Whether DType has an enumerator of this value: the compiler then prints its name for it, else
/// "(switchyard::model::DType)19".
template <DType kValue>
consteval bool is_named() {
  return std::string_view(__PRETTY_FUNCTION__).find("kValue = (") == std::string_view::npos;
}

double width_of(DType p) { return static_cast<double>(model::dtype_bits_x32(p)) / 256.0; }
double real(std::uint64_t v) { return static_cast<double>(v); }
DType wider(DType a, DType b) {
  return model::dtype_bits_x32(a) >= model::dtype_bits_x32(b) ? a : b;
}
}  // namespace

GateShape gate_shape(const model::ModelConfig& model) {
  const double hidden = real(model.hidden_size), experts = real(model.num_experts);
  switch (model.router) {
    case model::RouterKind::kHiddenMlp: {
      const double width = real(model.router_hidden[0]);
      return {width * (hidden + experts), hidden, width};
    }
    case model::RouterKind::kTokenMlp: {
      const double width = real(model.router_hidden[0]), wide = real(model.router_hidden[1]);
      const double layers = real(std::max<std::uint64_t>(model.num_moe_layers(), 1));
      return {wide * (width + experts) / layers, width / layers, wide / layers};
    }
    case model::RouterKind::kLinear:
      break;
  }
  return {hidden * experts, hidden, 0};
}

CostModel::CostModel(const model::ModelConfig& model, const model::DTypeChoice& dtype,
                     model::DType activations, const scenario::GpuType& gpu,
                     const scenario::CostSpec& cost)
    : model_(model),
      dtype_(dtype),
      activations_(activations),
      inputs_(cost.gemm_inputs.value_or(activations)),
      gpu_(gpu),
      spec_(cost),
      gate_(gate_shape(model)),
      a_(width_of(activations)),
      w_(width_of(dtype.shared)),
      expert_w_(width_of(dtype.experts)),
      slots_(static_cast<std::uint32_t>(model.top_k)),
      expert_matrices_(model.expert_kind == model::ExpertKind::kTwoMatrix ? 2 : 3) {
  for (const DType stored : {dtype.experts, dtype.shared, dtype.router, dtype.kv, activations, inputs_}) {
    const DType p = compute_format(stored);
    if (gpu_.peak_for(p).value <= 0) {
      throw InputError(
          "hardware",
          fmt::format("GPU type \"{}\" has no peak rate for {}", gpu.name, model::dtype_name(p)),
          "add gpu_types.<name>.peak or choose another model.dtype");
    }
  }
  static_assert(is_named<DType::kQ6K>() && !is_named<static_cast<DType>(kFormats)>(),
                "a DType was added at the end: peak_ has no place for it, see kFormats");
  for (std::size_t d = 0; d < kFormats; ++d) {
    peak_[d] = gpu_.peak_for(compute_format(static_cast<DType>(d))).value;
  }
  const double hidden = real(model.hidden_size);
  expert_bytes_ = expert_matrices_ * hidden * real(model.expert_intermediate) * expert_w_;
  const double heads = real(model.num_heads);
  if (model.attention == model::AttentionKind::kMla) {
    const double qk = real(model.qk_nope_head_dim + model.qk_rope_head_dim);
    const double rank = real(model.kv_lora_rank);
    qkv_weights_ = model.q_lora_rank == 0
                       ? hidden * heads * qk
                       : hidden * real(model.q_lora_rank) + real(model.q_lora_rank) * heads * qk;
    qkv_weights_ += hidden * (rank + real(model.qk_rope_head_dim)) +
                    rank * heads * (real(model.qk_nope_head_dim) + real(model.v_head_dim));
    out_weights_ = heads * real(model.v_head_dim) * hidden;
  } else {
    qkv_weights_ = hidden * real(model.head_dim) * (heads + 2 * real(model.num_kv_heads));
    out_weights_ = heads * real(model.head_dim) * hidden;
  }
}

DType CostModel::compute_format(DType stored) const { return wider(stored, inputs_); }

OpCost CostModel::roofline(double bytes, double flops, DType p, double share,
                           std::uint32_t kernels) const {
  const double memory = bytes / (gpu_.mbu * gpu_.hbm.value);
  const double arithmetic = flops / (share * peak(p));
  OpCost cost;
  cost.time = SimTime::from_ps(launch().ps() * kernels) +
              SimTime::from_seconds(std::max(memory, arithmetic));
  cost.bytes = bytes;
  cost.flops = flops;
  cost.kernels = kernels;
  return cost;
}

OpCost CostModel::step_launch() const {
  OpCost cost;
  if (spec_.launch != scenario::LaunchMode::kEager) cost.time = gpu_.kernel_launch;
  return cost;
}

OpCost CostModel::group(std::initializer_list<Part> parts) const {
  OpCost cost;
  if (!fused()) {
    for (const Part& p : parts) cost += roofline(p.bytes, p.flops, p.format, p.share, 1);
    return cost;
  }
  double arithmetic = 0;
  for (const Part& p : parts) {
    cost.bytes += p.bytes - p.inside;
    cost.flops += p.flops;
    arithmetic += p.flops / (p.share * peak(p.format));
  }
  cost.time = launch() +
              SimTime::from_seconds(std::max(cost.bytes / (gpu_.mbu * gpu_.hbm.value), arithmetic));
  cost.kernels = 1;
  return cost;
}

CostModel::Asked* CostModel::table_of(scenario::OpKind kind, DType format,
                                      std::initializer_list<std::uint64_t> shape) const {
  if (!spec_.calibration) return nullptr;
  std::string_view variant;
  if (kind == scenario::OpKind::kExperts) {
    const bool masked = spec_.grouped_gemm == scenario::GroupedGemm::kAuto
                            ? only_decode_
                            : spec_.grouped_gemm == scenario::GroupedGemm::kMasked;
    variant = masked ? scenario::kMasked : scenario::kContiguous;
  }
  auto& asked = tables_[{kind, variant, format, std::vector<std::uint64_t>(shape)}];
  if (!asked) {
    asked = std::make_shared<Asked>();
    const scenario::OpTable* table =
        scenario::choose_table(*spec_.calibration, kind, spec_.library, variant, format,
                               {shape.begin(), shape.size()});
    if (table != nullptr) asked->timer = std::make_unique<OpTimer>(*spec_.calibration, *table);
  }
  return asked->timer ? asked.get() : nullptr;
}

bool CostModel::has_product(double n, double k) const {
  return table_of(scenario::OpKind::kGemm, dtype_.shared,
                  {static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(k)}) != nullptr;
}

bool CostModel::measured(scenario::OpKind kind, DType format,
                         std::initializer_list<std::uint64_t> shape,
                         const std::array<double, 3>& at, OpCost& cost) const {
  Asked* const asked = table_of(kind, format, shape);
  if (asked == nullptr) return false;
  asked->used = true;
  auto known = asked->known.find(at);
  if (known == asked->known.end()) {
    constexpr std::size_t kMostKnown = 65536;
    if (asked->known.size() >= kMostKnown) asked->known.clear();
    known = asked->known.emplace(at, asked->timer->time(at)).first;
  }
  cost.time = SimTime::from_seconds(known->second.us * 1e-6);
  cost.measured = 1;
  cost.extrapolated = known->second.extrapolated ? 1 : 0;
  return true;
}

OpCost CostModel::embedding(std::uint64_t tokens) const {
  if (tokens == 0) return {};
  const double share = real(model_.vocab_size) / real(std::max(vocabulary_, model_.vocab_size));
  return roofline(real(tokens) * real(model_.hidden_size) * (w_ * share + a_), 0, dtype_.shared,
                  gpu_.mfu, 1);
}

OpCost CostModel::core_of(std::size_t layer, std::span<const SequenceWork> work) const {
  const bool mla = model_.attention == model::AttentionKind::kMla;
  const double heads = real(model_.num_heads), rank = real(model_.kv_lora_rank);
  const double qk = real(model_.qk_nope_head_dim + model_.qk_rope_head_dim);
  const double per_head = qk + real(model_.v_head_dim);
  // Absorbed form: scores over rank + rope, values over rank.
  const double absorbed = 2 * heads * (2 * rank + real(model_.qk_rope_head_dim));
  double tokens = 0, cached = 0, pairs_flops = 0, expanded_values = 0;
  const double kv_values = mla ? rank + real(model_.qk_rope_head_dim)
                               : 2 * real(model_.num_kv_heads) * real(model_.head_dim);
  const double q_values = heads * (mla ? qk : real(model_.head_dim));
  const std::uint64_t window = model_.layers[layer].sliding_window;
  for (const SequenceWork& s : work) {
    tokens += real(s.new_tokens);
    if (s.new_tokens == 0) continue;
    double pairs = 0;
    if (window == 0 || s.context + s.new_tokens <= window) {
      pairs =
          real(s.new_tokens) * real(s.context) + real(s.new_tokens) * (real(s.new_tokens) + 1) / 2;
      cached += real(s.context) + real(s.new_tokens);
    } else {
      // Token at position q attends min(q + 1, window) positions.
      const std::uint64_t first = s.context, last = s.context + s.new_tokens;
      const std::uint64_t growing_end = std::clamp(window, first, last);
      const double grow = real(growing_end - first);
      pairs = grow * real(first) + grow * (grow + 1) / 2 + real(last - growing_end) * real(window);
      cached += real(std::min(last, window + s.new_tokens - 1));
    }
    if (!mla) {
      pairs_flops += pairs * 4 * heads * real(model_.head_dim);
      continue;
    }
    // Several new tokens: keys and values per head, when that takes fewer FLOPs although those of
    // the cached tokens are made again (the new ones' are among the projections).
    const double expanded = pairs * 2 * heads * per_head +
                            2 * real(s.context) * heads * rank *
                                (real(model_.qk_nope_head_dim) + real(model_.v_head_dim));
    if (s.new_tokens > 1 && expanded < pairs * absorbed) {
      pairs_flops += expanded;
      expanded_values += (real(s.context) + real(s.new_tokens)) * heads * per_head;
    } else {
      pairs_flops += pairs * absorbed;
    }
  }
  if (tokens == 0) return {};
  // Expanded keys and values are written and read once.
  return roofline(
      cached * kv_values * width_of(dtype_.kv) + 2 * (tokens * q_values + expanded_values) * a_,
      pairs_flops, wider(dtype_.kv, activations_), gpu_.mfu, 1);
}

OpCost CostModel::partial_attention(std::span<const SequenceWork> work) const {
  double tokens = 0, pairs = 0, cached = 0;
  for (const SequenceWork& s : work) {
    tokens += real(s.new_tokens);
    pairs += real(s.new_tokens) * real(s.context);
    cached += real(s.context);
  }
  if (tokens == 0) return {};
  const double heads = real(model_.num_heads);
  const bool mla = model_.attention == model::AttentionKind::kMla;
  const double rank = real(model_.kv_lora_rank), rope = real(model_.qk_rope_head_dim);
  const double dim = real(model_.head_dim);
  const double kv_values = mla ? rank + rope : 2 * real(model_.num_kv_heads) * dim;
  const double per_pair = 2 * heads * (mla ? 2 * rank + rope : 2 * dim);
  const double query = heads * (mla ? rank + rope : dim), part = heads * ((mla ? rank : dim) + 2);
  return roofline(cached * kv_values * width_of(dtype_.kv) + tokens * (query * a_ + part * 4),
                  pairs * per_pair, wider(dtype_.kv, activations_), gpu_.mfu, 1);
}

OpCost CostModel::merge_parts(std::uint64_t parts, std::uint64_t values) const {
  if (parts == 0) return {};
  // Each part is read, weighed and added.
  const double n = real(parts) * real(values);
  return roofline(n * 4, 2 * n, DType::kF32, gpu_.mfu, 1);
}

/// The attention core: decode and prefill apart, since they run other kernels.
OpCost CostModel::core(std::size_t layer, std::span<const SequenceWork> work) const {
  if (!spec_.calibration) return core_of(layer, work);
  std::vector<SequenceWork> decode, prefill;
  for (const SequenceWork& s : work) {
    if (s.new_tokens > 0) (s.new_tokens == 1 ? decode : prefill).push_back(s);
  }
  OpCost cost;
  for (const auto* part : {&decode, &prefill}) {
    if (part->empty()) continue;
    OpCost c = core_of(layer, *part);
    double fresh = 0, context = 0;
    for (const SequenceWork& s : *part) {
      fresh += real(s.new_tokens);
      context += real(s.context);
    }
    const double n = static_cast<double>(part->size());
    const std::initializer_list<std::uint64_t> shape{
        model_.num_heads, model_.num_kv_heads, model_.head_dim,
        model_.layers[layer].sliding_window};
    if (model_.attention == model::AttentionKind::kMla) {
      if (part == &decode) {
        measured(scenario::OpKind::kMlaDecode, dtype_.kv,
                 {model_.num_heads, model_.kv_lora_rank, model_.qk_rope_head_dim},
                 {n, std::round(context / n) + 1, 0}, c);
      }
    } else {
      if (part == &decode) {
        measured(scenario::OpKind::kAttentionDecode, dtype_.kv, shape,
                 {n, std::round(context / n) + 1, 0}, c);
      } else {
        measured(scenario::OpKind::kAttentionPrefill, dtype_.kv, shape,
                 {n, std::round(fresh / n), std::round(context / n)}, c);
      }
    }
    cost += c;
  }
  return cost;
}

OpCost CostModel::attention(std::size_t layer, std::span<const SequenceWork> work,
                            std::uint32_t shares) const {
  double tokens = 0;
  for (const SequenceWork& s : work) tokens += real(s.new_tokens);
  if (tokens == 0) return {};
  const double hidden = real(model_.hidden_size), heads = real(model_.num_heads);
  double kv_values = 0, q_values = 0;
  if (model_.attention == model::AttentionKind::kMla) {
    kv_values = real(model_.kv_lora_rank + model_.qk_rope_head_dim);
    q_values = heads * real(model_.qk_nope_head_dim + model_.qk_rope_head_dim);
  } else {
    kv_values = 2 * real(model_.num_kv_heads) * real(model_.head_dim);
    q_values = heads * real(model_.head_dim);
  }
  const double c = width_of(dtype_.kv);
  const double own = tokens / real(shares);  // What norm and residual are of.
  const Part norm{2 * own * hidden * a_, 2 * own * hidden * a_, 0, dtype_.shared, gpu_.mfu};
  const Part qkv{qkv_weights_ * w_ + tokens * (hidden + q_values + kv_values) * a_,
                 tokens * (q_values + kv_values) * a_, 2 * tokens * qkv_weights_, dtype_.shared,
                 gpu_.mfu};
  const Part rope{tokens * (2 * q_values * a_ + kv_values * (a_ + c)),
                  tokens * (q_values + kv_values) * a_, 0, dtype_.shared, gpu_.mfu};
  const bool dense_qkv = model_.attention != model::AttentionKind::kMla;
  OpCost cost, projections;
  OpCost gemm = roofline(qkv.bytes, qkv.flops, qkv.format, qkv.share, 1);
  if (dense_qkv && measured(scenario::OpKind::kGemm, dtype_.shared,
                            {static_cast<std::uint64_t>(q_values + kv_values), model_.hidden_size},
                            {tokens, 0, 0}, gemm)) {
    cost += roofline(norm.bytes, 0, dtype_.shared, gpu_.mfu, 1);
    cost += gemm;
    cost += roofline(rope.bytes, 0, dtype_.shared, gpu_.mfu, 1);
  } else if (!dense_qkv && measured_mla(work, projections)) {
    cost += roofline(norm.bytes, 0, dtype_.shared, gpu_.mfu, 1);
    cost += projections;
    cost += roofline(rope.bytes, 0, dtype_.shared, gpu_.mfu, 1);
  } else {
    cost += group({norm, qkv, rope});
  }
  cost += core(layer, work);
  OpCost out = roofline(out_weights_ * w_ + tokens * (q_values + hidden) * a_ + own * hidden * a_,
                        2 * tokens * out_weights_, dtype_.shared, gpu_.mfu, 1);
  const double answers = dense_qkv ? q_values : heads * real(model_.v_head_dim);
  measured(scenario::OpKind::kGemm, dtype_.shared,
           {model_.hidden_size, static_cast<std::uint64_t>(answers)}, {tokens, 0, 0}, out);
  cost += out;
  return cost;
}

OpCost CostModel::product(double m, double n, double k) const {
  if (m == 0) return {};
  OpCost cost = roofline(n * k * w_ + m * (n + k) * a_, 2 * m * n * k, dtype_.shared, gpu_.mfu, 1);
  measured(scenario::OpKind::kGemm, dtype_.shared,
           {static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(k)}, {m, 0, 0}, cost);
  return cost;
}

bool CostModel::measured_mla(std::span<const SequenceWork> work, OpCost& cost) const {
  if (!spec_.calibration) return false;
  double tokens = 0, expanded = 0;  // All; those of sequences with several new tokens.
  for (const SequenceWork& s : work) {
    tokens += real(s.new_tokens);
    if (s.new_tokens > 1) expanded += real(s.new_tokens);
  }
  const double hidden = real(model_.hidden_size), heads = real(model_.num_heads);
  const double rank = real(model_.kv_lora_rank), latent = rank + real(model_.qk_rope_head_dim);
  const double q_rank = real(model_.q_lora_rank);
  const double queries = heads * (real(model_.qk_nope_head_dim) + real(model_.qk_rope_head_dim));
  const double values = heads * (real(model_.qk_nope_head_dim) + real(model_.v_head_dim));
  // Only those that are taken are asked for their times: the tables in use are counted.
  const double down = q_rank > 0 ? q_rank : queries;
  const bool joint = q_rank > 0 && (has_product(q_rank + latent, hidden) ||
                                    (!has_product(down, hidden) && !has_product(latent, hidden)));
  OpCost all = product(tokens, joint ? q_rank + latent : down, hidden);
  if (!joint) all += product(tokens, latent, hidden);
  if (q_rank > 0) all += product(tokens, queries, q_rank);
  all += product(expanded, values, rank);
  if (tokens > expanded) {
    // Absorbed: the same weights and FLOPs, head by head.
    const double m = tokens - expanded;
    all += roofline(values * rank * w_ + m * (values + 2 * heads * rank) * a_,
                    2 * m * values * rank, dtype_.shared, gpu_.mfu, 1);
  }
  if (all.measured == 0) return false;
  cost = all;
  return true;
}

void CostModel::ask_all(bool decode, bool prefill) const {
  const std::uint32_t one[] = {1};
  const SequenceWork answer{1, 1}, prompt{2, 0};
  CostModel of = *this;
  for (const bool decodes : {true, false}) {
    if (!(decodes ? decode : prefill)) continue;
    of.use_decode(decodes);
    for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
      static_cast<void>(of.attention(layer, std::span(decodes ? &answer : &prompt, 1)));
      static_cast<void>(of.dense(layer, 1));
    }
    if (model_.num_moe_layers() > 0) {
      static_cast<void>(of.router(1, 1));
      static_cast<void>(of.experts(one));
      static_cast<void>(of.shared(1));
    }
    static_cast<void>(of.head(1));
  }
}

void CostModel::add_used(std::set<const scenario::OpTable*>& tables) const {
  for (const auto& [key, asked] : tables_) {
    if (asked->used) tables.insert(&asked->timer->table());
  }
}

OpCost CostModel::router(std::uint64_t tokens, std::uint64_t routed) const {
  if (tokens == 0) return {};
  const double t = real(tokens), hidden = real(model_.hidden_size), e = real(model_.num_experts);
  const double r = real(routed);
  const double router_w = width_of(dtype_.router);
  // The normalised rows go on to the experts: written also when fused.
  const Part norm{2 * t * hidden * a_, 0, 0, dtype_.shared, gpu_.mfu};
  OpCost cost;
  if (routed > 0) {
    const Part gate{gate_.weights * router_w + r * (gate_.input + 2 * gate_.inner) * a_ + r * e * 4,
                    r * ((gate_.input + 2 * gate_.inner) * a_ + e * 4), 2 * r * gate_.weights,
                    dtype_.router, gpu_.mfu};
    const Part top{r * e * 4, r * e * 4, 0, dtype_.router, gpu_.mfu};
    OpCost gemm = roofline(gate.bytes, gate.flops, gate.format, gate.share, 1);
    if (model_.router == model::RouterKind::kLinear &&
        measured(scenario::OpKind::kGemm, dtype_.router, {model_.num_experts, model_.hidden_size},
                 {r, 0, 0}, gemm)) {
      cost += roofline(norm.bytes, 0, dtype_.shared, gpu_.mfu, 1);
      cost += gemm;
      cost += roofline(top.bytes, 0, dtype_.router, gpu_.mfu, 1);
    } else {
      cost += group({norm, gate, top});
    }
  } else {
    cost += roofline(norm.bytes, 0, dtype_.shared, gpu_.mfu, 1);
  }
  cost += roofline(t * (1 + real(slots_)) * hidden * a_, 0, dtype_.shared, gpu_.mfu, 1);
  return cost;
}

OpCost CostModel::router_norm(std::uint64_t tokens) const {
  if (tokens == 0) return {};
  return roofline(2 * real(tokens) * real(model_.hidden_size) * a_, 0, dtype_.shared, gpu_.mfu, 1);
}

OpCost CostModel::router_gate(std::uint64_t rows) const {
  if (rows == 0) return {};
  const double r = real(rows), e = real(model_.num_experts);
  const Part gate{gate_.weights * width_of(dtype_.router) +
                      r * (gate_.input + 2 * gate_.inner) * a_ + r * e * 4,
                  r * (2 * gate_.inner * a_ + e * 4), 2 * r * gate_.weights, dtype_.router,
                  gpu_.mfu};
  const Part top{r * e * 4, r * e * 4, 0, dtype_.router, gpu_.mfu};
  OpCost gemm = roofline(gate.bytes, gate.flops, gate.format, gate.share, 1);
  if (model_.router != model::RouterKind::kLinear ||
      !measured(scenario::OpKind::kGemm, dtype_.router, {model_.num_experts, model_.hidden_size},
                {r, 0, 0}, gemm)) {
    return group({gate, top});
  }
  gemm += roofline(top.bytes, 0, dtype_.router, gpu_.mfu, 1);
  return gemm;
}

OpCost CostModel::router_permute(std::uint64_t tokens) const {
  if (tokens == 0) return {};
  return roofline(real(tokens) * (1 + real(slots_)) * real(model_.hidden_size) * a_, 0,
                  dtype_.shared, gpu_.mfu, 1);
}

OpCost CostModel::experts(std::span<const std::uint32_t> rows) const {
  return experts_stacked(rows, {}, 0);
}

OpCost CostModel::experts_stacked(std::span<const std::uint32_t> rows,
                                  std::span<const std::uint32_t> soft,
                                  std::uint64_t soft_tokens) const {
  double assignments = 0, distinct = 0, grouped = 0, grouped_distinct = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::uint32_t others = rows[i] - (soft.empty() ? 0 : soft[i]);
    assignments += rows[i];
    distinct += rows[i] > 0 ? 1 : 0;
    grouped += others;
    grouped_distinct += others > 0 ? 1 : 0;
  }
  if (assignments == 0) return {};
  const double hidden = real(model_.hidden_size), width = real(model_.expert_intermediate);
  // The first kernel holds all matrices but the last one (the down projection).
  const double up = (expert_matrices_ - 1) / expert_matrices_;
  OpCost cost;
  if (soft_tokens == 0) {
    const Part first{distinct * expert_bytes_ * up + assignments * (hidden + width) * a_,
                     assignments * width * a_,
                     2 * assignments * hidden * width * (expert_matrices_ - 1), dtype_.experts,
                     gpu_.mfu_grouped};
    const Part second{distinct * expert_bytes_ * (1 - up) + assignments * (hidden + width) * a_,
                      assignments * width * a_, 2 * assignments * hidden * width, dtype_.experts,
                      gpu_.mfu_grouped};
    cost = group({first, second});
    std::uint32_t most = 0;
    for (const std::uint32_t n : rows) most = std::max(most, n);
    measured(scenario::OpKind::kExperts, dtype_.experts,
             {model_.hidden_size, model_.expert_intermediate,
              static_cast<std::uint64_t>(expert_matrices_)},
             {assignments, distinct, static_cast<double>(most)}, cost);
    return cost;
  }
  if (grouped > 0) {
    cost += roofline(grouped_distinct * expert_bytes_ * up + grouped * (hidden + width) * a_,
                     2 * grouped * hidden * width * (expert_matrices_ - 1), dtype_.experts,
                     gpu_.mfu_grouped, 1);
  }
  const double s = real(soft_tokens), stack = static_cast<double>(rows.size()) * width;
  cost +=
      roofline(static_cast<double>(rows.size()) * expert_bytes_ * up + s * (hidden + stack) * a_,
               2 * s * hidden * stack * (expert_matrices_ - 1), dtype_.experts, gpu_.mfu, 1);
  cost += roofline(distinct * expert_bytes_ * (1 - up) + assignments * (hidden + width) * a_,
                   2 * assignments * hidden * width, dtype_.experts, gpu_.mfu_grouped, 1);
  return cost;
}

SimTime CostModel::expert_alone(std::uint32_t rows) const {
  if (rows == 0) return {};
  const std::uint32_t one[] = {rows};
  // A measured time includes its launch, which cannot be told apart.
  const OpCost cost = experts(one);
  return cost.measured > 0 ? cost.time : cost.time - SimTime::from_ps(launch().ps() * cost.kernels);
}

OpCost CostModel::combine_sum(std::uint64_t tokens, std::uint32_t shares) const {
  if (tokens == 0) return {};
  const double rows = real(tokens) * (real(slots_) + 1) + real(tokens) / real(shares);
  return roofline(rows * real(model_.hidden_size) * a_, 0, dtype_.shared, gpu_.mfu, 1);
}

OpCost CostModel::ffn(std::uint64_t tokens, std::uint64_t width, std::uint32_t shares) const {
  const bool norm = shares > 0;
  const double t = real(tokens), hidden = real(model_.hidden_size), i = real(width);
  const Part first{(expert_matrices_ - 1) * hidden * i * w_ + t * (hidden + i) * a_,
                   t * (norm ? hidden + i : i) * a_, 2 * t * hidden * i * (expert_matrices_ - 1),
                   dtype_.shared, gpu_.mfu};
  const Part second{hidden * i * w_ + t * (hidden + i) * a_, t * i * a_, 2 * t * hidden * i,
                    dtype_.shared, gpu_.mfu};
  const double own = norm ? t / real(shares) : 0;
  if (spec_.calibration) {
    const double parts = expert_matrices_ - 1;
    OpCost up = product(t, parts * i, hidden);
    if (up.measured == 0 && parts > 1) {
      OpCost each = product(t, i, hidden);
      if (each.measured > 0) {
        each += each;
        up = each;
      }
    }
    const OpCost down = product(t, hidden, i);
    if (up.measured + down.measured > 0) {
      if (up.measured == 0) {
        up = roofline(first.bytes, first.flops, first.format, first.share, 1);
      } else {
        up += roofline(t * (parts + 1) * i * a_, 0, dtype_.shared, gpu_.mfu, 1);
      }
      OpCost cost;
      if (norm) cost += roofline(2 * own * hidden * a_, 0, dtype_.shared, gpu_.mfu, 1);
      cost += up;
      cost += down;
      return cost;
    }
  }
  if (!norm) return group({first, second});
  return group(
      {{2 * own * hidden * a_, own * hidden * a_, 0, dtype_.shared, gpu_.mfu}, first, second});
}

OpCost CostModel::shared(std::uint64_t tokens) const {
  if (tokens == 0 || model_.shared_intermediate == 0) return {};
  return ffn(tokens, model_.shared_intermediate, 0);
}

OpCost CostModel::dense(std::size_t layer, std::uint64_t tokens, std::uint32_t shares) const {
  if (tokens == 0 || model_.layers[layer].ffn != model::FfnKind::kDense) return {};
  return ffn(tokens, model_.dense_intermediate, shares);
}

OpCost CostModel::head(std::uint64_t rows) const {
  if (rows == 0) return {};
  const double t = real(rows), hidden = real(model_.hidden_size), v = real(model_.vocab_size);
  const Part norm{2 * t * hidden * a_, t * hidden * a_, 0, dtype_.shared, gpu_.mfu};
  const bool part = vocabulary_ > model_.vocab_size;
  // Logits that leave the GPU are not kept on the chip.
  const double logits = t * v * (part ? a_ : 4), inside = t * hidden * a_ + (part ? 0 : logits);
  const Part product{hidden * v * w_ + t * hidden * a_ + logits, inside, 2 * t * hidden * v,
                     dtype_.shared, gpu_.mfu};
  const Part sample{t * v * 4, t * v * 4, 0, dtype_.shared, gpu_.mfu};
  OpCost gemm = roofline(product.bytes, product.flops, product.format, product.share, 1);
  if (!measured(scenario::OpKind::kGemm, dtype_.shared, {model_.vocab_size, model_.hidden_size},
                {t, 0, 0}, gemm)) {
    return part ? group({norm, product}) : group({norm, product, sample});
  }
  OpCost cost = roofline(norm.bytes, 0, dtype_.shared, gpu_.mfu, 1);
  cost += gemm;
  if (!part) cost += sampling(rows);
  return cost;
}

OpCost CostModel::sampling(std::uint64_t rows) const {
  if (rows == 0) return {};
  return roofline(real(rows) * real(std::max(vocabulary_, model_.vocab_size)) * 4, 0, dtype_.shared,
                  gpu_.mfu, 1);
}

}  // namespace switchyard::sim
