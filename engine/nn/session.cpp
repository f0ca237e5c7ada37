// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/model/gate.hpp"

namespace switchyard {

Engine Engine::load(const std::filesystem::path& folder, const EngineOptions& options) {
  return load_on(folder, make_cpu_backend(options.threads));
}

Engine Engine::load_on(const std::filesystem::path& folder, std::unique_ptr<Backend> backend) {
  auto checkpoint = std::make_unique<model::Checkpoint>(model::Checkpoint::open(folder));
  require_runnable(checkpoint->config(), (folder / "config.json").string());
  const ModelWeights weights = take_weights(*checkpoint);
  return {std::move(checkpoint), weights, std::move(backend)};
}

Engine::Engine(std::unique_ptr<model::Checkpoint> checkpoint, const ModelWeights& weights,
               std::unique_ptr<Backend> backend)
    : checkpoint_(std::move(checkpoint)),
      backend_(std::move(backend)),
      config_(checkpoint_->config()),
      weights_(weights) {
  prepare((checkpoint_->folder() / "config.json").string());
}

Engine::Engine(model::ModelConfig config, const ModelWeights& weights,
               std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)), config_(std::move(config)), weights_(weights) {
  require_runnable(config_, config_.name);
  prepare(config_.name);
}

void Engine::prepare(const std::string& where) {
  gate_ = model::gate_spec(config_);
  validate(gate_, where);
  const auto place = [&](WeightView& view) { view = backend_->place(view); };
  place(weights_.embedding);
  for (LayerWeights& layer : weights_.layers) {
    for (WeightView* view : {&layer.input_norm, &layer.q, &layer.k, &layer.v, &layer.o,
                             &layer.post_attention_norm, &layer.router}) {
      place(*view);
    }
    for (ExpertView& expert : layer.experts) {
      place(expert.gate);
      place(expert.up);
      place(expert.down);
    }
  }
  place(weights_.final_norm);
  if (config_.tie_word_embeddings) {
    weights_.head = weights_.embedding;
  } else {
    place(weights_.head);
  }
  const std::size_t d = config_.head_dim;
  for (std::size_t i = 0; i < d; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(d);
    inverse_frequency_.push_back(
        static_cast<float>(1.0 / std::pow(config_.rope_theta, static_cast<double>(exponent))));
  }
}

Session::Session(const Engine& engine, const SessionOptions& options)
    : engine_(engine),
      options_(options),
      width_(stored_candidates(engine.gate().experts, engine.gate().top_k)) {
  validate(options.policy, engine.gate().experts, engine.gate().top_k, "policy");
  const CapacityPolicy& capacity = options.policy.capacity;
  if (capacity.rule != CapacityRule::kNone && capacity.exhausted == Exhausted::kQueue &&
      capacity.queue == QueueMode::kDefer) {
    throw InputError("policy", "unsupported by the engine: capacity.queue = defer",
                     "use capacity.queue = wave, or replay the trace with defer in the simulator");
  }
  result_.vocab = engine.config().vocab_size;
  result_.layers.resize(engine.config().num_layers);
}

std::uint32_t Session::add_sequence() {
  const model::ModelConfig& c = engine_.config();
  caches_.push_back(engine_.backend().make_cache(
      {c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, c.layers[0].sliding_window}));
  return static_cast<std::uint32_t>(caches_.size() - 1);
}

void Session::end_sequence(std::uint32_t sequence) { caches_.at(sequence).reset(); }

std::size_t Session::length(std::uint32_t sequence) const {
  return caches_.at(sequence) ? caches_[sequence]->length() : 0;
}

std::size_t Session::kv_bytes() const {
  std::size_t sum = 0;
  for (const auto& cache : caches_) {
    sum += cache ? cache->bytes() : 0;
  }
  return sum;
}

float* Session::scratch(std::size_t slot, std::size_t floats) {
  auto& buffer = scratch_[slot];
  if (!buffer || buffer->size() < floats) {
    buffer = engine_.backend().allocate(floats);
  }
  return buffer->data();
}

const StepResult& Session::step(std::span<const SequenceTokens> work, Phase phase) {
  const model::ModelConfig& c = engine_.config();
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
  }

  StepResult& r = result_;
  r.step = next_step_++;
  r.sequence.clear();
  r.position.clear();
  r.token.clear();
  row_cache_.clear();
  std::vector<std::uint32_t> wanted;
  for (const SequenceTokens& w : work) {
    const auto start = static_cast<std::uint32_t>(length(w.sequence));
    for (std::size_t i = 0; i < w.tokens.size(); ++i) {
      r.sequence.push_back(w.sequence);
      r.position.push_back(start + static_cast<std::uint32_t>(i));
      r.token.push_back(w.tokens[i]);
      row_cache_.push_back(caches_[w.sequence].get());
      if (options_.all_logits || i + 1 == w.tokens.size()) {
        wanted.push_back(static_cast<std::uint32_t>(r.token.size() - 1));
      }
    }
  }
  const std::size_t rows = r.token.size();
  r.phase.assign(rows, static_cast<std::uint8_t>(phase));
  r.nan_rows = 0;
  r.nan_logits = 0;

  Backend& b = engine_.backend();
  const ModelWeights& weights = engine_.weights();
  const std::size_t h = c.hidden_size;
  const std::size_t experts = engine_.gate().experts;
  const auto eps = static_cast<float>(c.rms_norm_eps);
  float* x = scratch(0, rows * h);
  float* normed = scratch(1, rows * h);
  float* q = scratch(2, rows * c.num_heads * c.head_dim);
  float* k = scratch(3, rows * c.num_kv_heads * c.head_dim);
  float* v = scratch(4, rows * c.num_kv_heads * c.head_dim);
  float* mixed = scratch(5, rows * c.num_heads * c.head_dim);
  float* delta = scratch(6, rows * h);
  float* router = scratch(7, std::max(rows * experts, wanted.size() * r.vocab));
  r.router_logits.resize(c.num_layers * rows * experts);

  b.embed(weights.embedding, r.token, x);
  for (std::size_t l = 0; l < c.num_layers; ++l) {
    const LayerWeights& layer = weights.layers[l];
    b.rms_norm(x, rows, layer.input_norm, eps, normed);
    b.linear(normed, rows, layer.q, q);
    b.linear(normed, rows, layer.k, k);
    b.linear(normed, rows, layer.v, v);
    b.attention(l, q, k, v, rows, row_cache_, r.position, engine_.inverse_frequency(), mixed);
    b.linear(mixed, rows, layer.o, delta);
    b.add(x, delta, rows * h);

    b.rms_norm(x, rows, layer.post_attention_norm, eps, normed);
    b.linear(normed, rows, layer.router, router);
    const auto logits = std::span(r.router_logits).subspan(l * rows * experts, rows * experts);
    b.download(router, logits);
    LayerRouting& routing = r.layers[l];
    rank_candidates(engine_.gate(), logits, {}, width_, rank_, routing.candidates);
    r.nan_rows += routing.candidates.nan_rows;
    const StepContext context = make_step(r.sequence, r.position, r.phase, options_.seed,
                                          static_cast<std::uint32_t>(l), r.step);
    decide(engine_.gate(), options_.policy, context, routing.candidates.view(), {}, decide_,
           routing.decision);
    b.moe(normed, rows, layer.experts, routing.decision.chosen, routing.decision.weights,
          routing.decision.slots, delta);
    b.add(x, delta, rows * h);
  }
  for (const SequenceTokens& w : work) {
    b.advance(*caches_[w.sequence], w.tokens.size());
  }

  b.gather(x, wanted, h, normed);
  b.rms_norm(normed, wanted.size(), weights.final_norm, eps, normed);
  b.linear(normed, wanted.size(), weights.head, router);
  r.logits.resize(wanted.size() * r.vocab);
  b.download(router, r.logits);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto row = r.logits_of(i);
    r.nan_logits +=
        std::any_of(row.begin(), row.end(), [](float value) { return std::isnan(value); }) ? 1 : 0;
  }
  return r;
}

}  // namespace switchyard
