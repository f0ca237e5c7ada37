// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/profile_host.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "engine/nn/prompt_run.hpp"
#include "engine/nn/session.hpp"
#include "engine/nn/weights.hpp"
#include "sim/cost/calibrated.hpp"

namespace switchyard::cli {
namespace {

constexpr std::uint64_t kWidth = 32;  // hidden size, head size and inner width
constexpr std::size_t kPrompt = 4;    // tokens

/// The same model for the host, and next to nothing to compute.
model::ModelConfig small(model::ModelConfig c) {
  const auto& types = runnable_model_types();
  if (std::find(types.begin(), types.end(), c.model_type) == types.end()) c.model_type = "mixtral";
  c.quantization = "none";
  c.attention = model::AttentionKind::kGqa;
  c.hidden_size = c.head_dim = c.v_head_dim = kWidth;
  c.num_heads = c.num_kv_heads = 1;
  c.expert_intermediate = kWidth;
  if (c.dense_intermediate > 0) c.dense_intermediate = kWidth;
  if (c.shared_intermediate > 0) c.shared_intermediate = kWidth;
  c.max_position_embeddings = 1 << 20;
  c.eos_tokens.clear();  // no text ends early
  c.gate.bf16_linear = false;
  return c;
}

/// Random weights; matrices of one shape share their values.
class SmallWeights {
 public:
  explicit SmallWeights(const model::ModelConfig& c) {
    ModelWeights& w = weights;
    w.embedding = matrix(c.vocab_size, kWidth);
    const ExpertView expert{matrix(kWidth, kWidth), matrix(kWidth, kWidth),
                            matrix(kWidth, kWidth)};
    for (std::size_t l = 0; l < c.num_layers; ++l) {
      LayerWeights layer;
      layer.input_norm = layer.post_attention_norm = ones();
      layer.q = layer.k = layer.v = layer.o = matrix(kWidth, kWidth);
      if (c.is_moe(l)) {
        layer.router = matrix(c.num_experts, kWidth);
        layer.experts.assign(c.num_experts, expert);
        if (c.shared_intermediate > 0) layer.shared = {expert};
        if (c.shared_expert_gate) layer.shared_gate = matrix(1, kWidth);
      } else if (c.layers[l].ffn == model::FfnKind::kDense) {
        layer.shared = {expert};
      }
      w.layers.push_back(std::move(layer));
    }
    w.final_norm = ones();
    w.head = c.tie_word_embeddings ? w.embedding : matrix(c.vocab_size, kWidth);
  }
  ModelWeights weights;

 private:
  WeightView matrix(std::size_t rows, std::size_t cols) {
    auto& values = store_[{rows, cols}];
    std::uint32_t s = static_cast<std::uint32_t>(rows + 31 * cols);
    while (values.size() < rows * cols) {
      s = s * 1664525U + 1013904223U;
      values.push_back((static_cast<float>(s >> 8U) / static_cast<float>(1U << 24U) - 0.5F) * 0.5F);
    }
    return {.data = values.data(), .type = WeightType::kF32, .rows = rows, .cols = cols};
  }
  WeightView ones() {
    if (ones_.empty()) ones_.assign(kWidth, 1.0F);
    return {.data = ones_.data(), .type = WeightType::kF32, .rows = 1, .cols = kWidth};
  }
  std::map<std::pair<std::size_t, std::size_t>, std::vector<float>> store_;
  std::vector<float> ones_;
};

/// Median over decoding steps of `count` sequences, microseconds outside of the backend's calls.
double host_us(const Engine& engine, TimedBackend& backend, std::size_t count, std::size_t steps) {
  const SamplingOptions sampling{};
  Session session(engine, {.policy = {}, .sampling = sampling});
  std::vector<std::uint32_t> tokens(kPrompt * count);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::uint32_t>(i * 7919 % engine.config().vocab_size);
  }
  std::vector<RunPrompt> prompts;
  for (std::size_t i = 0; i < count; ++i) {
    prompts.push_back({"host", std::span(tokens).subspan(i * kPrompt, kPrompt),
                       static_cast<std::uint32_t>(steps + 1)});
  }
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  Clock::time_point begin = Clock::now();
  PromptRunHooks hooks;
  hooks.begin = [&](std::size_t) { return session.add_sequence(); };
  hooks.step = [&](std::span<const SequenceTokens> work) -> const StepResult& {
    return session.step(work, Phase::kPrefill);
  };
  hooks.end = [&](std::uint32_t sequence) { session.end_sequence(sequence); };
  hooks.after_step = [&](bool prefill, std::uint64_t) {
    const double all =
        std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    const double inside = backend.take_us();
    if (!prefill) times.push_back(std::max(all - inside, 0.0));
    begin = Clock::now();
  };
  (void)backend.take_us();
  run_prompts(session.kv_pool(), prompts,
              {.batch = static_cast<std::uint32_t>(count), .sampling = sampling}, hooks);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return std::max(*middle, 1e-3);
}

}  // namespace

scenario::OpTable measure_host(Backend& backend, const model::ModelConfig& model,
                               const HostScope& scope, const std::string& library) {
  const model::ModelConfig c = small(model);
  const SmallWeights weights(c);
  auto owned = std::make_unique<TimedBackend>(backend);
  TimedBackend& timed = *owned;
  const Engine engine(c, weights.weights, std::move(owned));
  scenario::OpTable table;
  table.kind = scenario::OpKind::kHost;
  table.library = library;
  for (const std::size_t n : scope.sequences) {
    table.points.push_back(
        {{static_cast<double>(n), 0, 0}, host_us(engine, timed, n, scope.steps)});
  }
  scenario::Calibration line;
  line.tables = {std::move(table)};
  sim::fit_tables(line);
  return line.tables.front();
}

}  // namespace switchyard::cli
