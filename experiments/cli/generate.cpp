// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string_view>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/nn/session.hpp"
#include "experiments/cli/trace.hpp"

namespace switchyard::cli {
namespace {

/// Emits the continuation of `prompt`, token by token.
void continue_prompt(const GenerateOptions& options, Engine& engine,
                     const model::Tokenizer& tokenizer, const std::vector<std::uint32_t>& prompt,
                     const SamplingOptions& sampling,
                     const std::function<void(std::string_view)>& emit) {
  if (options.max_new == 0) {
    return;
  }
  const auto monitor = make_monitor(engine, options.health, options.flips);
  Session session(engine, {.policy = {}, .kv = kv_options(options.kv_block, options.kv_memory)});
  const std::uint32_t s = session.add_sequence();
  const SequenceTokens all{s, prompt};
  std::uint32_t steps = 0;
  std::size_t told = 0;  // of the monitor's events
  const auto step = [&](const SequenceTokens& work, Phase phase) {
    if (monitor) {
      monitor->before_step(steps++);
    }
    const StepResult* result = &session.step({&work, 1}, phase);
    if (monitor) {
      monitor->after_step(*result);
      for (; told < monitor->report().events.size(); ++told) {
        fmt::print(stderr, "health: {}\n", monitor->report().events[told]);
      }
    }
    return result;
  };
  const StepResult* r = step(all, Phase::kPrefill);
  for (std::uint32_t made = 0; made < options.max_new; ++made) {
    if (r->nan_logits > 0) {
      throw InputError(options.model.string(), "the model's logits are not numbers (NaN)",
                       "the weights are broken; `inspect` shows their hash");
    }
    const std::uint32_t token =
        sample(r->logits_of(0), sampling, s, static_cast<std::uint32_t>(session.length(s)));
    if (token == engine.config().eos_token) {
      return;
    }
    emit(tokenizer.token_bytes(token));
    if (made + 1 < options.max_new) {
      const SequenceTokens one{s, {&token, 1}};
      r = step(one, Phase::kDecode);
    }
  }
}

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit) {
  require_device(options.device, "f32", options.threads);
  const SamplingOptions sampling{options.temperature, options.top_p, options.seed, options.top_k};
  validate(sampling, "generate");
  if (options.prompt.empty()) {
    throw InputError("--prompt", "the prompt is empty");
  }
  const auto job = open_ranks(options.ranks);
  if (job) {
    require_same_program(*job, "generate",
                         {{"--tp", std::to_string(options.ranks.tp)},
                          {"--max-new", std::to_string(options.max_new)},
                          {"--seed", std::to_string(options.seed)},
                          {"--temperature", fmt::format("{}", options.temperature)},
                          {"--top-p", fmt::format("{}", options.top_p)},
                          {"--top-k", std::to_string(options.top_k)},
                          {"--kv-block", std::to_string(options.kv_block)},
                          {"--kv-memory", options.kv_memory},
                          {"--quantise", options.quantise},
                          {"--health", std::to_string(options.health)},
                          {"--prompt", hash128(std::as_bytes(std::span(options.prompt))).hex()}});
  }
  Engine engine =
      Engine::load(options.model, {.threads = threads_of_rank(options.threads, job.get()),
                                   .job = job.get(),
                                   .tp = options.ranks.tp,
                                   .quantise = quantise_options(options.quantise)});
  const model::Tokenizer tokenizer = model::load_tokenizer(options.model);
  const std::vector<std::uint32_t> prompt = tokenizer.encode(options.prompt, true, true);
  const std::uint64_t positions = engine.config().max_position_embeddings;
  if (prompt.size() + std::uint64_t{options.max_new} > positions + 1) {
    throw InputError("--prompt",
                     fmt::format("{} tokens and {} new ones exceed the model's {} positions",
                                 prompt.size(), options.max_new, positions),
                     "shorten the prompt or lower --max-new");
  }
  if (job) {
    require_same_program(
        *job, "generate",
        {{"the prompt's tokens", hash128(std::as_bytes(std::span(prompt))).hex()}});
  }
  continue_prompt(options, engine, tokenizer, prompt, sampling, emit);
  if (job) {
    job->finish();
  }
}

}  // namespace

std::string generate_text(const GenerateOptions& options) {
  std::string out;
  generate(options, [&](std::string_view text) { out += text; });
  return out;
}

int run_generate(const GenerateOptions& options) {
  bool started = false;
  const auto write = [&](std::string_view text) {
    if (launched_rank() == 0) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
  };
  generate(options, [&](std::string_view text) {
    if (!started) {
      started = true;
      write(options.prompt);
    }
    write(text);
  });
  if (!started) {
    write(options.prompt);
  }
  write("\n");
  return 0;
}

}  // namespace switchyard::cli
