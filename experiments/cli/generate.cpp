// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/perplexity.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/nn/session.hpp"
#include "engine/nn/two_tier_router.hpp"
#include "experiments/cli/prompts.hpp"
#include "experiments/cli/trace.hpp"
#include "sim/scenario/scenario.hpp"

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
  const KvPool& pool = session.kv_pool();
  const std::uint64_t need = pool.peak_bytes(prompt.size() + options.max_new - 1, prompt.size());
  if (const std::uint64_t limit = pool.options().memory; limit > 0 && need > limit) {
    throw InputError(
        "--prompt",
        fmt::format("{} tokens need {} of KV cache; --kv-memory makes {} available",
                    prompt.size() + options.max_new - 1, format_bytes(static_cast<double>(need)),
                    format_bytes(static_cast<double>(limit))),
        "raise --kv-memory, shorten the prompt or lower --max-new");
  }
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
  std::unique_ptr<Backend> backend = device_backend(options.device, "f32", options.threads);
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
  Engine engine = load_engine(options.model, std::move(backend),
                              {.threads = threads_of_rank(options.threads, job.get()),
                               .job = job.get(),
                               .tp = options.ranks.tp,
                               .quantise = quantise_options(options.quantise)},
                              options.health);
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

/// Bytes as a table cell: printable ASCII as it is, the rest of invalid or control bytes as \xNN.
std::string visible(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = model::utf8_length(bytes, at);
    const auto b = static_cast<unsigned char>(bytes[at]);
    if (n == 0 || b < 0x20 || b == 0x7f || b == '\\') {
      out += fmt::format("\\x{:02x}", b);
      ++at;
    } else {
      out += bytes.substr(at, n);
      at += n;
    }
  }
  return out;
}

/// Texts that are scored are no requests, and nothing tells the machine's state beside them.
void require_scorable(const RoutingPolicy& p) {
  if (p.soft.on() || p.pinned.on() || p.table.on()) {
    throw InputError("--policy",
                     fmt::format("unsupported with --perplexity: {}.*", p.soft.on()     ? "soft"
                                                                        : p.pinned.on() ? "pinned"
                                                                                        : "table"),
                     "it looks at requests, and texts are scored without; use trace");
  }
  const PolicyNeeds needs = policy_needs(p);
  const std::string key = !needs.memory.empty()      ? needs.memory
                          : !needs.placement.empty() ? needs.placement
                          : p.step_time > 0          ? std::string()
                                                     : needs.clock;
  if (!key.empty()) {
    throw InputError("--policy",
                     fmt::format("unsupported with --perplexity: policy.{} = {}, which looks at a "
                                 "cluster's memory, placement or clock",
                                 key, get_policy_field(p, key)),
                     key == needs.clock ? "set step_time (seconds per step), or use trace --signals"
                                        : "use trace --signals");
  }
}

}  // namespace

std::vector<Table> perplexity_tables(const GenerateOptions& options) {
  std::unique_ptr<Backend> backend = device_backend(options.device, "f32", options.threads);
  if (open_ranks(options.ranks)) {
    throw InputError("--perplexity", "unsupported on several processes", "run it without mpirun");
  }
  if (options.ranks.tp != 1) {
    throw InputError("--tp", "unsupported with --perplexity", "it runs in one process");
  }
  if (options.batch == 0) {
    throw InputError("--batch", "batch = 0. Violated: batch >= 1");
  }
  PerplexityOptions run;
  run.batch = options.batch;
  run.seed = options.seed;
  PolicyFiles files;
  if (!options.policy.empty()) {
    run.policy = scenario::read_policy_file(options.policy.string(), &files);
    require_scorable(run.policy);
  }
  const std::vector<PromptText> texts = read_prompts(options.perplexity);
  const Engine engine =
      load_engine(options.model, std::move(backend),
                  {.threads = options.threads, .quantise = quantise_options(options.quantise)}, 0);
  const std::vector<std::uint32_t> layers = engine.config().moe_layers();
  if (!layers.empty()) {  // before anything is made of the policy's values
    validate(run.policy, engine.gate().experts, engine.gate().top_k, "policy");
  }
  const PolicyWeights weights = model::load_policy_weights(run.policy, files, engine.gate(), layers,
                                                           engine.config().hidden_size);
  run.weights = weights.layers.empty() ? nullptr : &weights;
  std::optional<TwoTierRouter> tiers;
  if (run.policy.two_tier.on()) {
    if (options.device != "cpu") {
      throw InputError("--policy",
                       "unsupported with --device cuda: two_tier, whose first tier reads the "
                       "router's weights in host memory",
                       "use --device cpu");
    }
    tiers = TwoTierRouter::load(run.policy, files, engine.weights(), engine.config());
    run.tiers = &*tiers;
  }
  const model::Tokenizer tokenizer = model::load_tokenizer(options.model);
  std::vector<std::vector<std::uint32_t>> ids;
  ids.reserve(texts.size());
  for (const PromptText& text : texts) {
    ids.push_back(tokenizer.encode(text.text, true, true));
  }
  const std::vector<TextScore> scores = score_texts(engine, ids, run);

  Table t;
  t.name = "perplexity";
  t.title = "Perplexity of texts";
  t.columns = {"text",       "domain",       "tokens", "scored", "NLL [nats/token]",
               "perplexity", "bits per byte"};
  Table tokens;
  tokens.name = "perplexity-tokens";
  tokens.title = "-ln p of every token but the first";
  tokens.columns = {"text", "position", "token", "bytes", "NLL [nats]"};
  double sum = 0;
  std::uint64_t all = 0;
  std::uint64_t scored = 0;
  std::uint64_t all_bytes = 0;
  const auto row = [&](const std::string& name, const std::string& domain, std::uint64_t count,
                       std::uint64_t n, double nll, std::uint64_t bytes) {
    const double mean = nll / static_cast<double>(n);
    t.rows.push_back(
        {name, domain, std::to_string(count), std::to_string(n),
         n == 0 ? "n/a" : fmt::format("{:.6f}", mean),
         n == 0 ? "n/a" : fmt::format("{:.4f}", std::exp(mean)),
         n == 0 ? "n/a" : fmt::format("{:.4f}", nll / std::log(2.0) / static_cast<double>(bytes))});
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::uint64_t bytes = 0;  // of the tokens scored
    for (std::size_t k = 1; k < ids[i].size(); ++k) {
      const std::string piece = tokenizer.token_bytes(ids[i][k]);
      bytes += piece.size();
      if (options.per_token) {
        tokens.rows.push_back({texts[i].name, std::to_string(k), std::to_string(ids[i][k]),
                               visible(piece), fmt::format("{:.6f}", scores[i].nll[k - 1])});
      }
    }
    row(texts[i].name, texts[i].domain, ids[i].size(), scores[i].nll.size(), scores[i].sum(),
        bytes);
    sum += scores[i].sum();
    all += ids[i].size();
    scored += scores[i].nll.size();
    all_bytes += bytes;
  }
  row("all", "", all, scored, sum, all_bytes);
  t.notes.emplace_back(
      "NLL = mean of -ln p(token | what stands before it in its text); perplexity = exp(NLL); the "
      "first token of a text is not scored");
  if (!options.policy.empty()) {
    t.notes.push_back(fmt::format("policy in closed loop, {} texts together: {}", options.batch,
                                  policy_to_text(run.policy)));
  }
  if (!options.quantise.empty()) {
    t.notes.push_back("weights rounded: " + options.quantise);
  }
  std::vector<Table> out{std::move(t)};
  if (options.per_token) {
    out.push_back(std::move(tokens));
  }
  return out;
}

std::string generate_text(const GenerateOptions& options) {
  std::string out;
  generate(options, [&](std::string_view text) { out += text; });
  return out;
}

int run_generate(const GenerateOptions& options) {
  if (!options.perplexity.empty()) {
    fmt::print("{}", render_all(perplexity_tables(options), options.format));
    return 0;
  }
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
