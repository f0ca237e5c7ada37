// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/memory_limit.hpp"
#include "engine/base/units.hpp"
#include "engine/model/dtype.hpp"
#include "engine/model/gate.hpp"
#include "engine/model/mapping.hpp"
#include "engine/routing/condition.hpp"

namespace switchyard {
namespace {

/// YaRN's temperature: 0.1 m ln(factor) + 1.
double yarn_gain(double factor, double m) {
  return factor > 1 ? 0.1 * m * std::log(factor) + 1 : 1;
}

/// theta^(-2i/d), i < d/2; with YaRN blended with the same over `factor`, as far as the wavelength
/// does not fit the original context.
std::vector<float> inverse_frequencies(const model::ModelConfig& c, std::size_t d) {
  const model::RopeScaling& s = c.rope_scaling;
  const auto width = static_cast<double>(d);
  // The entry whose wavelength makes `turns` turns within the original context.
  const auto entry_of = [&](double turns) {
    return width * std::log(static_cast<double>(s.original_max_position) / (turns * 2 * M_PI)) /
           (2 * std::log(c.rope_theta));
  };
  const bool yarn = s.type == "yarn";
  double low = yarn ? entry_of(s.beta_fast) : 0;
  double high = yarn ? entry_of(s.beta_slow) : 0;
  if (yarn && s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) {
    high += 0.001;
  }
  std::vector<float> out;
  for (std::size_t i = 0; i < d / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(d);
    const double plain = 1.0 / std::pow(c.rope_theta, static_cast<double>(exponent));
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double kept = yarn ? 1 - ramp : 1;
    out.push_back(static_cast<float>(plain / s.factor * (1 - kept) + plain * kept));
  }
  return out;
}

/// What YaRN multiplies cosine and sine by. DeepSeek: the ratio of two temperatures; others: that
/// ratio if both are given, else the plain temperature.
double rotation_gain(const model::ModelConfig& c) {
  const model::RopeScaling& s = c.rope_scaling;
  if (s.type != "yarn") {
    return 1;
  }
  if (c.attention == model::AttentionKind::kMla || (s.mscale != 0 && s.mscale_all_dim != 0)) {
    return yarn_gain(s.factor, s.mscale) / yarn_gain(s.factor, s.mscale_all_dim);
  }
  return yarn_gain(s.factor, 1);
}

/// DeepSeek: 1/sqrt(head_dim), with YaRN times the square of the temperature of mscale_all_dim.
double latent_scale(const model::ModelConfig& c) {
  const model::RopeScaling& s = c.rope_scaling;
  const double gain = s.type == "yarn" ? yarn_gain(s.factor, s.mscale_all_dim) : 1;
  return gain * gain / std::sqrt(static_cast<double>(c.head_dim));
}

/// Slope of head j of h: 2^(-8 (j + 1) / h).
std::vector<float> alibi_slopes(std::uint64_t heads) {
  std::vector<float> out;
  for (std::uint64_t j = 1; j <= heads; ++j) {
    out.push_back(
        static_cast<float>(std::exp2(-8 * static_cast<double>(j) / static_cast<double>(heads))));
  }
  return out;
}

/// gain * sin and gain * cos, alternating, of position * theta^(-2i/H): [rows, H].
std::vector<float> sinusoids(const model::ModelConfig& c,
                             std::span<const std::uint32_t> positions) {
  const std::size_t h = c.hidden_size;
  std::vector<float> out(positions.size() * h);
  for (std::size_t i = 0; i < h / 2; ++i) {
    const double frequency =
        std::pow(c.rope_theta, -static_cast<double>(2 * i) / static_cast<double>(h));
    for (std::size_t r = 0; r < positions.size(); ++r) {
      const double angle = positions[r] * frequency;
      out[r * h + 2 * i] = static_cast<float>(c.position_gain * std::sin(angle));
      out[r * h + 2 * i + 1] = static_cast<float>(c.position_gain * std::cos(angle));
    }
  }
  return out;
}

/// Moves matrices that lie in the checkpoint's files into huge pages where the page cache holds the
/// files in small ones. Packed matrices stay: widening them costs more than reading them. Moving
/// costs more than loading (a copy), and pays after some hundred tokens; files that loading itself
/// read are in huge pages already.
void settle(ModelWeights& weights, const model::Checkpoint& checkpoint) {
  const auto before = [](const std::span<const std::byte>& a, const std::span<const std::byte>& b) {
    return std::less<>()(a.data(), b.data());
  };
  std::vector<std::span<const std::byte>> held;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    held.push_back(tensor.data);
  }
  std::sort(held.begin(), held.end(), before);
  std::vector<std::span<const std::byte>> kept;
  for_each_view(weights, checkpoint.config().tie_word_embeddings, [&](WeightView& view) {
    if (is_packed(view)) {
      return;
    }
    const std::span bytes{static_cast<const std::byte*>(view.data),
                          view.rows * view.cols * weight_bytes(view.type)};
    const auto next = std::upper_bound(held.begin(), held.end(), bytes, before);
    if (next == held.begin()) {
      return;
    }
    const auto& holder = *std::prev(next);
    if (!std::less<>()(holder.data() + holder.size(), bytes.data() + bytes.size())) {
      kept.push_back(bytes);
    }
  });
  std::sort(kept.begin(), kept.end(), before);
  for (std::size_t i = 0; i < kept.size();) {
    std::span<const std::byte> run = kept[i];
    // Files pad between tensors.
    for (++i; i < kept.size() && kept[i].data() - run.data() < std::ssize(run) + 4096; ++i) {
      const std::byte* end = std::max(run.data() + run.size(), kept[i].data() + kept[i].size());
      run = {run.data(), end};
    }
    constexpr std::size_t kWorth = std::size_t{64} << 20U;
    if (run.size() >= kWorth && model::share_in_huge_pages(run) < 0.75) {
      (void)model::into_huge_pages(run);
    }
  }
}

void round_to_bf16(std::span<float> values) {
  for (float& v : values) {
    v = model::bf16_to_float(model::float_to_bf16(v));
  }
}

/// Norms of the latents keep their class's own default, whatever rms_norm_eps says.
constexpr float kLatentEps = 1e-6F;

}  // namespace

Engine Engine::load(const std::filesystem::path& folder, const EngineOptions& options) {
  return load_on(folder, make_cpu_backend(options.threads), options);
}

Engine Engine::load_on(const std::filesystem::path& folder, std::unique_ptr<Backend> backend,
                       const EngineOptions& options) {
  const RankGrid grid = make_grid(options.job != nullptr ? options.job->size() : 1,
                                  options.job != nullptr ? options.job->rank() : 0, options.tp);
  const bool alone = grid.ranks() == 1;
  Reread source = read(folder, options, grid, true);
  const bool router_bf16 =
      options.router_bf16.value_or(source.checkpoint->config().gate.bf16_linear);
  Engine engine(std::move(source), std::move(backend), options.quantise, router_bf16);
  // Ranks on one machine share the page cache's copy, so only a process alone takes its own; the
  // cache may hold the file beside it until it needs the room. Views that a backend has placed
  // elsewhere are not in the files and stay.
  const auto total = static_cast<double>(engine.checkpoint_->total_bytes());
  if (alone && total < 0.5 * static_cast<double>(memory_limit()) &&
      total < 0.8 * static_cast<double>(memory_available())) {
    settle(engine.weights_, *engine.checkpoint_);
  }
  if (!alone) {  // reads what this rank holds
    engine.weight_hash_ =
        require_same_checkpoint(*options.job, grid, *engine.checkpoint_, options.progress);
    merge_quantised(*options.job, engine.quantised_);
  }
  engine.job_ = options.job;
  engine.grid_ = grid;
  return engine;
}

Engine::Reread Engine::read(const std::filesystem::path& folder, const EngineOptions& options,
                            const RankGrid& grid, bool page_in) {
  Reread out;
  out.checkpoint = std::make_unique<model::Checkpoint>(model::Checkpoint::open(folder));
  model::Checkpoint& checkpoint = *out.checkpoint;
  require_runnable(checkpoint.config(), checkpoint.config_place());
  const std::uint64_t total = checkpoint.total_bytes();
  const bool fits =
      page_in && static_cast<double>(total) < 0.8 * static_cast<double>(memory_limit());
  std::uint64_t done = 0;
  if (grid.ranks() == 1) {
    checkpoint.on_take([&](const model::TensorView& tensor) {
      if (fits) {
        model::page_in(tensor.data);
      }
      done += tensor.data.size();
      if (options.progress) {
        options.progress(done, total);
      }
    });
  }
  // Rounding looks at whole matrices, so that parts are those of what one process would round.
  const ExpertShare share = expert_share(grid, checkpoint.config().num_experts);
  const bool rounded = options.quantise.any();
  out.weights = take_weights(checkpoint, rounded ? ExpertShare{share.experts} : share);
  checkpoint.on_take({});
  out.quantised = quantise(out.weights, checkpoint.config().tie_word_embeddings, options.quantise);
  if (rounded) {
    cut_experts(out.weights, share);
  }
  if (options.router_bf16.value_or(checkpoint.config().gate.bf16_linear)) {
    round_routers_to_bf16(out.weights);
  }
  return out;
}

Hash128 Engine::weight_hash() const {
  SWITCHYARD_ASSERT(checkpoint_ != nullptr && (weight_hash_ || grid_.ranks() == 1), "weight_hash");
  return weight_hash_ ? *weight_hash_ : checkpoint_->weight_hash();
}

Engine::Reread Engine::read_again() const {
  SWITCHYARD_ASSERT(checkpoint_ != nullptr, "the engine has no checkpoint");
  return read(checkpoint_->path(), {.quantise = quantise_, .router_bf16 = config_.gate.bf16_linear},
              grid_, false);
}

Engine::Engine(Reread source, std::unique_ptr<Backend> backend, const QuantiseOptions& quantise,
               bool router_bf16)
    : checkpoint_(std::move(source.checkpoint)),
      quantise_(quantise),
      quantised_(std::move(source.quantised)),
      backend_(std::move(backend)),
      config_(checkpoint_->config()),
      weights_(std::move(source.weights)) {
  config_.gate.bf16_linear = router_bf16;
  prepare(checkpoint_->config_place());
}

Engine::Engine(model::ModelConfig config, const ModelWeights& weights,
               std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)), config_(std::move(config)), weights_(weights) {
  require_runnable(config_, config_.name);
  if (config_.gate.bf16_linear) {
    round_routers_to_bf16(weights_);
  }
  prepare(config_.name);
}

void Engine::prepare(const std::string& where) {
  if (config_.num_moe_layers() > 0) {
    gate_ = model::gate_spec(config_);
    validate(gate_, where);
  }
  for_each_named_view(
      weights_, config_.tie_word_embeddings, [&](const std::string& name, WeightView& view) {
        if (!name.ends_with(".selection_bias")) {  // stays on the host
          view = name.ends_with(".router") ? backend_->place_exact(view) : backend_->place(view);
        }
      });
  if (config_.tie_word_embeddings) {
    weights_.head = weights_.embedding;
  }
  const bool latent = config_.attention == model::AttentionKind::kMla;
  if (config_.positions == model::PositionKind::kRope) {
    inverse_frequency_ = inverse_frequencies(
        config_, static_cast<std::size_t>(latent ? config_.qk_rope_head_dim : config_.head_dim));
  } else if (config_.positions == model::PositionKind::kAlibi) {
    slopes_ = alibi_slopes(config_.num_heads);
  }
  AttentionRule rule;
  rule.inverse_frequency = inverse_frequency_;
  rule.rotation_gain = static_cast<float>(rotation_gain(config_));
  rule.slopes = slopes_;
  if (latent) {
    rule.scale = static_cast<float>(latent_scale(config_));
  }
  for (std::size_t l = 0; l < config_.num_layers; ++l) {
    rule.sliding_window = config_.layers[l].sliding_window;
    attention_.push_back(rule);
  }
}

AttentionShape Engine::attention_shape() const {
  AttentionShape shape{config_.num_layers, config_.num_heads, config_.num_kv_heads,
                       config_.head_dim};
  if (config_.attention == model::AttentionKind::kMla) {
    shape.kv_heads = 1;
    shape.head_dim = config_.kv_lora_rank + config_.qk_rope_head_dim;
    shape.latent = config_.kv_lora_rank;
  }
  shape.interleaved = config_.rope_interleaved;
  for (const AttentionRule& rule : attention_) {
    shape.windows.push_back(rule.sliding_window);
  }
  return shape;
}

Session::Session(const Engine& engine, const SessionOptions& options)
    : engine_(engine),
      options_(options),
      width_(engine.config().num_moe_layers() > 0
                 ? stored_candidates(engine.gate().experts,
                                     policy_slots(options.policy, engine.gate()))
                 : 0),
      signals_(options.signals) {
  state_ = RoutingState(engine.config().num_moe_layers() * signals_.replicas());
  if (engine.config().num_moe_layers() > 0) {
    validate(options.policy, engine.gate().experts, engine.gate().top_k, "policy");
    require_supply(options.policy,
                   {.signals = options.signals != nullptr,
                    .all_logits = true,
                    .hidden = true,
                    .weights = options.weights != nullptr},
                   "policy");
    prepare_policy();
  } else if (options.policy != RoutingPolicy{}) {
    throw InputError("policy", "the model is dense: there is no expert to choose");
  }
  const CapacityPolicy& capacity = options.policy.capacity;
  if (capacity.rule != CapacityRule::kNone && capacity.queue == QueueMode::kDefer) {
    throw InputError("policy", "unsupported by the engine: capacity.queue = defer",
                     "use capacity.queue = wave, or replay the trace with defer in the simulator");
  }
  if (capacity.scope == CapacityScope::kRank) {
    throw InputError("policy", "unsupported by the engine: capacity.scope = rank",
                     "the engine decides a step's tokens as one rank's, on any number of "
                     "processes; use scope = global, or simulate the trace with scope = rank");
  }
  plain_ = options.policy == RoutingPolicy{} && !options.router_input && !options.after_routing &&
           options.tiers == nullptr && !engine.config().gate.bf16_linear &&
           engine.grid().ranks() == 1;
  routed_.resize(engine.config().num_moe_layers());
  pool_ = engine.backend().make_pool(engine.attention_shape(), options.kv);
  result_.vocab = engine.config().vocab_size;
  result_.layers.resize(engine.config().num_moe_layers());
  if (engine.grid().ranks() > 1) {
    exchange_ = std::make_unique<ExpertExchange>(*engine.job(), engine.grid(), engine.backend());
  }
}

void Session::prepare_policy() {
  const RoutingPolicy& p = options_.policy;
  if (p.table.on() != (options_.table != nullptr)) {
    throw InputError("policy", "policy.table.file needs its table");
  }
  if (p.two_tier.on() != (options_.tiers != nullptr)) {
    throw InputError("policy", "policy.two_tier.scorer needs its weights");
  }
  const bool bf16 = engine_.config().gate.bf16_linear;
  if (bf16 && p.two_tier.on()) {
    throw InputError("policy", "unsupported with a router in BF16: two_tier, which has its own");
  }
  conditioned_ = p.condition.layer_norm || p.noise.jitter > 0 || bf16;
  needs_hidden_ = !policy_needs(p).hidden.empty();
  if (!p.condition.adapter.empty()) {
    if (options_.weights == nullptr) {
      throw InputError("policy", "policy.condition.adapter needs its weights");
    }
    for (const LayerPolicyWeights& layer : options_.weights->layers) {
      const AdapterWeights& w = layer.adapter;
      adapter_.push_back(
          {engine_.backend().place_exact({w.a.data(), WeightType::kF32, w.rank, w.inputs}),
           engine_.backend().place_exact({w.b.data(), WeightType::kF32, w.outputs, w.rank})});
    }
  }
}

const float* Session::condition(const StepContext& context, std::size_t rows, const float* normed) {
  if (!conditioned_ && !needs_hidden_ && !options_.router_input) {
    return normed;
  }
  const std::size_t h = engine_.config().hidden_size;
  Backend& b = engine_.backend();
  router_rows_.resize(result_.tokens() * h);
  download_rows(normed, row_owner_, h, ExpertExchange::What::kRouter, router_rows_);
  if (!conditioned_) {
    return normed;
  }
  if (options_.policy.condition.layer_norm) {
    layer_norm_rows(router_rows_, h);
  }
  if (options_.policy.noise.jitter > 0) {
    jitter_rows(router_rows_, h, options_.policy.noise.jitter, context);
  }
  if (engine_.config().gate.bf16_linear) {
    round_to_bf16(router_rows_);
  }
  float* out = scratch(kGate, rows * h);
  if (!exchange_) {
    b.upload(router_rows_, out);
    return out;
  }
  own_values_.clear();
  for (std::size_t i = 0; i < row_owner_.size(); ++i) {
    if (row_owner_[i] == engine_.grid().rank) {
      const auto row = std::span(router_rows_).subspan(i * h, h);
      own_values_.insert(own_values_.end(), row.begin(), row.end());
    }
  }
  b.upload(own_values_, out);
  return out;
}

void Session::describe(std::uint32_t sequence, std::span<const std::uint32_t> prompt,
                       std::string_view text, std::uint16_t expert, const std::string& where) {
  require_text(options_.policy, options_.table, text, where);
  state_.request(sequence) = request_info(options_.policy, options_.table, prompt, text, expert);
}

std::uint32_t Session::add_sequence() {
  caches_.push_back(pool_->make_cache());
  lengths_.push_back(0);
  history_.emplace_back();
  return static_cast<std::uint32_t>(caches_.size() - 1);
}

void Session::end_sequence(std::uint32_t sequence) {
  caches_.at(sequence).reset();
  state_.end_sequence(sequence);
  lengths_[sequence] = 0;
  history_[sequence] = {};
}

std::size_t Session::length(std::uint32_t sequence) const { return lengths_.at(sequence); }

std::optional<ExchangeTotals> Session::exchanged() {
  return exchange_ ? std::optional(exchange_->totals()) : std::nullopt;
}

std::size_t Session::kv_bytes() const {
  std::size_t sum = 0;
  for (const auto& cache : caches_) {
    sum += cache ? cache->bytes() : 0;
  }
  return sum;
}

std::size_t Session::kv_blocks() const {
  std::size_t sum = 0;
  for (const auto& cache : caches_) {
    sum += cache ? cache->blocks() : 0;
  }
  return sum;
}

float* Session::scratch(Slot slot, std::size_t floats) {
  auto& buffer = scratch_[slot];
  if (!buffer || buffer->size() < floats) {
    buffer = engine_.backend().allocate(floats);
  }
  return buffer->data();
}

const StepResult& Session::step(std::span<const SequenceTokens> work, Phase phase) {
  const model::ModelConfig& c = engine_.config();
  std::uint64_t more = 0;  // bytes of KV blocks that this step needs
  for (std::size_t i = 0; i < work.size(); ++i) {
    const std::uint32_t s = work[i].sequence;
    SWITCHYARD_ASSERT(s < caches_.size() && caches_[s] && !work[i].tokens.empty(),
                      fmt::format("sequence {}", s));
    SWITCHYARD_ASSERT(i == 0 || work[i - 1].sequence < s, "sequences of a step ascend");
    if (length(s) + work[i].tokens.size() > c.max_position_embeddings) {
      throw InputError(fmt::format("sequence {}", s),
                       fmt::format("{} tokens, but the model has {} positions",
                                   length(s) + work[i].tokens.size(), c.max_position_embeddings),
                       "shorten the prompt or generate fewer tokens");
    }
    for (const std::uint32_t token : work[i].tokens) {
      if (token >= c.vocab_size) {
        throw InputError(
            fmt::format("sequence {}", s),
            fmt::format("token id {} is outside the model's vocabulary of {}", token, c.vocab_size),
            "does the tokenizer belong to this checkpoint?");
      }
    }
    if (engine_.grid().owner(s) == engine_.grid().rank) {
      more += pool_->bytes_to_append(*caches_[s], work[i].tokens.size());
    }
  }
  const std::uint64_t limit = pool_->options().memory;
  const std::uint64_t live = pool_->ledger().live_bytes;
  if (limit > 0 && live + more > limit) {
    throw InputError(
        "--kv-memory",
        fmt::format("step {} needs {} more of KV cache; {} of {} is available", next_step_,
                    format_bytes(static_cast<double>(more)),
                    format_bytes(static_cast<double>(limit - live)),
                    format_bytes(static_cast<double>(limit))),
        "raise --kv-memory, run fewer sequences together, or prefill in smaller chunks");
  }

  if (options_.may_redo) {
    before_ = state_;
    signals_before_ = signals_;
  }
  StepResult& r = result_;
  r.step = next_step_++;
  r.sequence.clear();
  r.position.clear();
  r.token.clear();
  r.phase.clear();
  row_cache_.clear();
  row_owner_.clear();
  own_token_.clear();
  own_position_.clear();
  std::vector<std::uint32_t> wanted;        // of this rank's rows
  std::vector<std::uint16_t> wanted_owner;  // of all rows
  for (const SequenceTokens& w : work) {
    const auto start = static_cast<std::uint32_t>(length(w.sequence));
    for (std::size_t i = 0; i < w.tokens.size(); ++i) {
      r.sequence.push_back(w.sequence);
      r.position.push_back(start + static_cast<std::uint32_t>(i));
      r.token.push_back(w.tokens[i]);
      r.phase.push_back(static_cast<std::uint8_t>(w.phase.value_or(phase)));
      const auto owner = static_cast<std::uint16_t>(engine_.grid().owner(w.sequence));
      row_owner_.push_back(owner);
      const bool want = options_.all_logits || i + 1 == w.tokens.size();
      if (want) {
        wanted_owner.push_back(owner);
      }
      if (owner != engine_.grid().rank) {
        continue;
      }
      own_token_.push_back(r.token.back());
      own_position_.push_back(r.position.back());
      row_cache_.push_back(caches_[w.sequence].get());
      if (want) {
        wanted.push_back(static_cast<std::uint32_t>(own_token_.size() - 1));
      }
    }
  }
  replica_ = work.empty() ? 0 : signals_.replica_of(work.front().sequence);
  for (const SequenceTokens& w : work) {
    SWITCHYARD_ASSERT(signals_.replica_of(w.sequence) == replica_,
                      fmt::format("sequence {} is not of replica {}", w.sequence, replica_));
  }
  if (work.empty() && signals_.on()) replica_ = signals_.replica_of(0);
  signals_.begin_step(std::find(r.phase.begin(), r.phase.end(),
                                static_cast<std::uint8_t>(Phase::kDecode)) != r.phase.end(),
                      replica_);
  const std::size_t rows = own_token_.size();  // of this rank
  if (exchange_) {
    exchange_->begin_step(row_owner_);
  }
  r.nan_rows = 0;
  r.nan_logits = 0;
  r.tier1_agreed = r.tier2_agreed = 0;

  Backend& b = engine_.backend();
  const ModelWeights& weights = engine_.weights();
  const std::size_t h = c.hidden_size;
  const auto eps = static_cast<float>(c.rms_norm_eps);
  float* x = scratch(kX, rows * h);
  float* normed = scratch(kNormed, rows * h);
  float* delta = scratch(kDelta, rows * h);
  r.router_logits.resize(r.layers.size() * r.tokens() * engine_.gate().experts);
  r.router_input.resize(options_.router_input ? r.layers.size() * r.tokens() * h : 0);

  b.embed(weights.embedding, own_token_, x);
  if (c.positions == model::PositionKind::kAbsolute) {
    b.upload(sinusoids(c, own_position_), delta);
    b.add(x, delta, rows * h);
  }
  // After an error nothing may be written any more.
  struct Drop {
    Session& session;
    ~Drop() {
      session.engine_.backend().drop_routed();
      session.unsettled_.clear();
    }
  } const drop{*this};
  std::size_t moe_layer = 0;
  for (std::size_t l = 0; l < c.num_layers; ++l) {
    const LayerWeights& layer = weights.layers[l];
    b.rms_norm(x, rows, layer.input_norm, eps, normed);
    attend(l, rows, normed, delta);
    b.add(x, delta, rows * h);

    b.rms_norm(x, rows, layer.post_attention_norm, eps, normed);
    if (!layer.experts.empty()) {
      route(layer, moe_layer, rows, normed, delta);
      b.add(x, delta, rows * h);
      ++moe_layer;
    }
    if (!layer.shared.empty()) {
      feed_all(layer, rows, normed, delta);
      b.add(x, delta, rows * h);
    }
  }
  for (const SequenceTokens& w : peeking_ ? std::span<const SequenceTokens>() : work) {
    if (engine_.grid().owner(w.sequence) == engine_.grid().rank) {
      b.advance(*caches_[w.sequence], w.tokens.size());
    }
    lengths_[w.sequence] += w.tokens.size();
    if (options_.may_redo) {
      history_[w.sequence].insert(history_[w.sequence].end(), w.tokens.begin(), w.tokens.end());
    }
  }

  b.gather(x, wanted, h, normed);
  b.rms_norm(normed, wanted.size(), weights.final_norm, eps, normed);
  float* logits = scratch(kWide, wanted.size() * r.vocab);
  b.linear(normed, wanted.size(), weights.head, logits);
  settle_routed();
  if (sampled_there(logits, wanted)) {
    return r;
  }
  r.logits.resize(wanted_owner.size() * r.vocab);
  download_rows(logits, wanted_owner, r.vocab, ExpertExchange::What::kLogits, r.logits);
  for (std::size_t i = 0; i < wanted_owner.size(); ++i) {
    const auto row = r.logits_of(i);
    r.nan_logits +=
        std::any_of(row.begin(), row.end(), [](float value) { return std::isnan(value); }) ? 1 : 0;
  }
  return r;
}

void Session::settle_routed() {
  if (unsettled_.empty()) {
    return;
  }
  StepResult& r = result_;
  engine_.backend().finish_routed();
  std::size_t moe_layer = 0;
  for (const LayerWeights& layer : engine_.weights().layers) {
    if (layer.experts.empty()) {
      continue;
    }
    const std::size_t m = moe_layer++;
    if (std::find(unsettled_.begin(), unsettled_.end(), m) == unsettled_.end()) {
      continue;
    }
    LayerRouting& routing = r.layers[m];
    r.nan_rows += routing.candidates.nan_rows;
    RouteInput input;
    input.candidates = routing.candidates.view();
    input.gate_bias = layer.gate_bias();
    input.requests = state_.requests();
    const StepContext context = make_step(r.sequence, r.position, r.phase, options_.seed,
                                          static_cast<std::uint32_t>(m), r.step);
    route_layer(engine_.gate(), options_.policy, context, input, layer_state(m), route_,
                routing.decision);
    SWITCHYARD_ASSERT(routing.decision.chosen == routed_[m].chosen,
                      fmt::format("layer {}: the backend chose other experts", m));
  }
  unsettled_.clear();
}

bool Session::sampled_there(const float* logits, std::span<const std::uint32_t> wanted) {
  StepResult& r = result_;
  r.sampled.clear();
  if (!options_.sampling || exchange_) {
    return false;
  }
  std::vector<std::uint32_t> sequence;
  std::vector<std::uint32_t> position;  // of the tokens to be chosen
  for (const std::uint32_t row : wanted) {
    sequence.push_back(options_.sample_alike ? 0 : r.sequence[row]);
    position.push_back(r.position[row] + 1);
  }
  r.sampled.resize(wanted.size());
  if (!engine_.backend().sample(logits, r.vocab, *options_.sampling, sequence, position, r.sampled,
                                r.nan_logits)) {
    r.sampled.clear();
    return false;
  }
  r.logits.clear();
  return true;
}

const StepResult& Session::peek(std::span<const SequenceTokens> work, Phase phase) {
  peeking_ = true;
  const StepResult* r = nullptr;
  try {
    r = &step(work, phase);
  } catch (...) {
    peeking_ = false;
    throw;
  }
  peeking_ = false;
  return *r;
}

const StepResult& Session::redo(std::span<const SequenceTokens> work, Phase phase) {
  SWITCHYARD_ASSERT(options_.may_redo && !exchange_ && next_step_ > 0, "nothing to redo");
  const std::uint32_t step_number = next_step_ - 1;
  const RoutingState before = before_;
  const SignalCursor signals = signals_before_;
  state_ = before;
  // A prefill may hold more blocks at once than the steps it stands for; under a limit it takes no
  // more at a time than they did.
  const std::size_t most = pool_->options().memory > 0 ? 1 : 256;
  for (const SequenceTokens& w : work) {
    std::vector<std::uint32_t> past = std::move(history_[w.sequence]);
    SWITCHYARD_ASSERT(past.size() >= w.tokens.size() &&
                          std::equal(w.tokens.rbegin(), w.tokens.rend(), past.rbegin()),
                      fmt::format("sequence {}: not the last step", w.sequence));
    past.resize(past.size() - w.tokens.size());
    caches_[w.sequence] = pool_->make_cache();
    lengths_[w.sequence] = 0;
    history_[w.sequence].clear();
    for (std::size_t at = 0; at < past.size(); at += most) {
      const SequenceTokens piece{w.sequence,
                                 std::span(past).subspan(at, std::min(most, past.size() - at))};
      next_step_ = step_number;
      signals_ = signals;
      (void)step({&piece, 1}, Phase::kPrefill);
    }
  }
  state_ = before;
  signals_ = signals;
  next_step_ = step_number;
  return step(work, phase);
}

void Session::download_rows(const float* mine, std::span<const std::uint16_t> owner,
                            std::size_t columns, ExpertExchange::What what, std::span<float> all) {
  Backend& b = engine_.backend();
  if (!exchange_) {
    b.download(mine, all);
    return;
  }
  const auto rows = static_cast<std::size_t>(
      std::count(owner.begin(), owner.end(), static_cast<std::uint16_t>(engine_.grid().rank)));
  own_values_.resize(rows * columns);
  b.download(mine, own_values_);
  exchange_->gather_rows(what, owner, columns, own_values_, all);
}

void Session::attend(std::size_t l, std::size_t rows, const float* normed, float* out) {
  const model::ModelConfig& c = engine_.config();
  const LayerWeights& layer = engine_.weights().layers[l];
  Backend& b = engine_.backend();
  const auto eps = static_cast<float>(c.rms_norm_eps);
  if (c.attention == model::AttentionKind::kMla) {
    attend_latent(l, rows, normed, out);
    return;
  }
  float* q = scratch(kQ, rows * c.num_heads * c.head_dim);
  float* k = scratch(kK, rows * c.num_kv_heads * c.head_dim);
  float* v = scratch(kV, rows * c.num_kv_heads * c.head_dim);
  float* mixed = scratch(kMixed, rows * c.num_heads * c.head_dim);
  const auto project = [&](const WeightView& w, const WeightView& bias, float* to) {
    b.linear(normed, rows, w, to);
    if (bias.data != nullptr) {
      b.add_bias(to, rows, bias);
    }
  };
  project(layer.q, layer.q_bias, q);
  project(layer.k, layer.k_bias, k);
  project(layer.v, layer.v_bias, v);
  if (layer.q_norm.data != nullptr) {  // per head, or over all heads at once
    b.rms_norm(q, rows * layer.q.rows / layer.q_norm.cols, layer.q_norm, eps, q);
    b.rms_norm(k, rows * layer.k.rows / layer.k_norm.cols, layer.k_norm, eps, k);
  }
  if (c.clip_qkv) {
    const auto limit = static_cast<float>(*c.clip_qkv);
    b.clamp(q, rows * layer.q.rows, limit);
    b.clamp(k, rows * layer.k.rows, limit);
    b.clamp(v, rows * layer.v.rows, limit);
  }
  b.attention(l, q, k, v, rows, row_cache_, own_position_, engine_.attention_rule(l), mixed);
  b.linear(mixed, rows, layer.o, out);
  if (layer.o_bias.data != nullptr) {
    b.add_bias(out, rows, layer.o_bias);
  }
}

void Session::attend_latent(std::size_t l, std::size_t rows, const float* normed, float* out) {
  const model::ModelConfig& c = engine_.config();
  const LayerWeights& layer = engine_.weights().layers[l];
  Backend& b = engine_.backend();
  const std::size_t heads = c.num_heads;
  const std::size_t plain = c.qk_nope_head_dim;
  const std::size_t turned = c.qk_rope_head_dim;
  const std::size_t latent = c.kv_lora_rank;
  const std::size_t width = latent + turned;  // of an absorbed query and of a cached row
  float* direct = scratch(kWide, rows * heads * c.head_dim);
  float* narrow = scratch(kV, rows * std::max<std::size_t>(c.q_lora_rank, latent));
  float* q = scratch(kQ, rows * heads * width);
  float* k = scratch(kK, rows * width);
  float* mixed = scratch(kMixed, rows * heads * latent);
  if (layer.q.data != nullptr) {
    b.linear(normed, rows, layer.q, direct);
  } else {
    b.linear(normed, rows, layer.q_a, narrow);
    b.rms_norm(narrow, rows, layer.q_a_norm, kLatentEps, narrow);
    b.linear(narrow, rows, layer.q_b, direct);
  }
  b.linear_heads(direct, rows, c.head_dim, layer.k_absorbed, width, q);
  b.copy_columns(direct + plain, rows * heads, c.head_dim, turned, q + latent, width);
  b.linear(normed, rows, layer.kv_a, k);
  b.copy_columns(k, rows, width, latent, narrow, latent);
  b.rms_norm(narrow, rows, layer.kv_a_norm, kLatentEps, narrow);
  b.copy_columns(narrow, rows, latent, latent, k, width);
  b.attention(l, q, k, nullptr, rows, row_cache_, own_position_, engine_.attention_rule(l), mixed);
  float* value = scratch(kWide, rows * heads * c.v_head_dim);
  b.linear_heads(mixed, rows, latent, layer.v_absorbed, c.v_head_dim, value);
  b.linear(value, rows, layer.o, out);
}

void Session::route(const LayerWeights& layer, std::size_t moe_layer, std::size_t rows,
                    const float* normed, float* out) {
  Backend& b = engine_.backend();
  StepResult& r = result_;
  const std::size_t experts = engine_.gate().experts;
  const StepContext context = make_step(r.sequence, r.position, r.phase, options_.seed,
                                        static_cast<std::uint32_t>(moe_layer), r.step);
  const float* gate_input = condition(context, rows, normed);
  if (options_.router_input) {
    const std::size_t cells = r.tokens() * engine_.config().hidden_size;
    std::transform(router_rows_.begin(), router_rows_.end(),
                   r.router_input.begin() + static_cast<std::ptrdiff_t>(moe_layer * cells),
                   model::float_to_bf16);
  }
  const auto logits =
      std::span(r.router_logits).subspan(moe_layer * r.tokens() * experts, r.tokens() * experts);
  LayerRouting& routing = r.layers[moe_layer];
  // What changes logits before they are ranked (adapters, tiers, rounding) happens on the host.
  const GateCall gate{&engine_.gate(), layer.router, layer.router_bias, layer.gate_bias(), width_};
  if (plain_) {
    RoutedLayer& routed = routed_[moe_layer];
    routed.logits = logits;
    routed.candidates = &routing.candidates;
    if (b.routed_moe(gate, layer.experts, normed, rows, out, routed)) {
      unsettled_.push_back(moe_layer);
      return;
    }
  }
  const bool ranked = adapter_.empty() && options_.tiers == nullptr && !exchange_ &&
                      !engine_.config().gate.bf16_linear &&
                      b.gate(gate, gate_input, rows, logits, routing.candidates);
  if (!ranked) {
    float* router = scratch(kWide, rows * experts);
    b.linear(gate_input, rows, layer.router, router);
    if (layer.router_bias.data != nullptr) {
      b.add_bias(router, rows, layer.router_bias);
    }
    if (!adapter_.empty()) {
      // Attention is done with its keys and values.
      float* low = scratch(kK, rows * adapter_[moe_layer][0].rows);
      float* more = scratch(kV, rows * experts);
      b.linear(gate_input, rows, adapter_[moe_layer][0], low);
      b.linear(low, rows, adapter_[moe_layer][1], more);
      b.add(router, more, rows * experts);
    }
    download_rows(router, row_owner_, experts, ExpertExchange::What::kRouter, logits);
    if (engine_.config().gate.bf16_linear) {
      round_to_bf16(logits);
    }
    if (options_.tiers != nullptr) {
      exact_.assign(logits.begin(), logits.end());
      options_.tiers->propose(moe_layer, router_rows_, logits);
      tier2_.resize(logits.size());
      options_.tiers->score(moe_layer, router_rows_, tier2_);
    }
    rank_candidates(engine_.gate(), logits, layer.gate_bias(), width_, rank_, routing.candidates);
  }
  r.nan_rows += routing.candidates.nan_rows;
  RouteInput input;
  input.candidates = routing.candidates.view();
  input.logits = logits;
  input.gate_bias = layer.gate_bias();
  input.requests = state_.requests();
  input.table = options_.table;
  input.tier2 = tier2_;
  input.hidden = router_rows_;
  input.weights = options_.weights == nullptr ? nullptr : options_.weights->layer(moe_layer);
  Signals signals;
  if (signals_.on()) {
    signals = signals_.view(static_cast<std::uint32_t>(moe_layer));
    input.signals = &signals;
  }
  route_layer(engine_.gate(), options_.policy, context, input, layer_state(moe_layer), route_,
              routing.decision);
  if (options_.tiers != nullptr) {
    count_agreement(layer, routing);
  }
  if (options_.after_routing) {
    options_.after_routing(moe_layer, routing.candidates, routing.decision);
  }
  if (exchange_) {
    exchange_->moe(normed, layer.experts, engine_.config().hidden_size,
                   engine_.config().expert_intermediate, routing.decision.chosen,
                   routing.decision.weights, routing.decision.slots, out);
  } else {
    b.moe(normed, rows, layer.experts, routing.decision.chosen, routing.decision.weights,
          routing.decision.slots, out);
  }
}

void Session::count_agreement(const LayerWeights& layer, const LayerRouting& routing) {
  const std::uint32_t k = engine_.gate().top_k;
  rank_candidates(engine_.gate(), exact_, layer.gate_bias(), width_, rank_, exact_candidates_);
  const auto same = [k](const std::uint16_t* a, const std::uint16_t* b) {
    return std::all_of(a, a + k, [&](std::uint16_t e) { return std::find(b, b + k, e) != b + k; });
  };
  for (std::uint32_t t = 0; t < routing.candidates.tokens; ++t) {
    const std::uint16_t* exact = exact_candidates_.ids.data() + row_offset(t, width_);
    const std::uint16_t* tier1 = routing.candidates.ids.data() + row_offset(t, width_);
    const std::uint16_t* tier2 =
        routing.decision.first.data() + row_offset(t, routing.decision.slots);
    result_.tier1_agreed += same(exact, tier1) ? 1 : 0;
    result_.tier2_agreed += same(exact, tier2) ? 1 : 0;
  }
}

void Session::feed_all(const LayerWeights& layer, std::size_t rows, const float* normed,
                       float* out) {
  Backend& b = engine_.backend();
  every_chosen_.assign(rows, 0);
  every_weight_.assign(rows, 1.0F);
  if (layer.shared_gate.data != nullptr) {
    float* gate = scratch(kWide, rows);
    b.linear(normed, rows, layer.shared_gate, gate);
    b.download(gate, every_weight_);
    for (float& w : every_weight_) {
      w = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(w))));
    }
  }
  b.moe(normed, rows, layer.shared, every_chosen_, every_weight_, 1, out);
}

}  // namespace switchyard
