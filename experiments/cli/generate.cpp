// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/perplexity.hpp"
#include "engine/nn/prompt_run.hpp"
#include "engine/nn/router_oracle.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/nn/session.hpp"
#include "engine/nn/two_tier_router.hpp"
#include "experiments/cli/prompts.hpp"
#include "experiments/cli/say.hpp"
#include "experiments/cli/trace.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::cli {
namespace {

/// A text to continue.
struct Prompt {
  std::string name, where, text;
  std::uint32_t max_new = 0;
  std::vector<std::uint32_t> tokens{};
  std::uint32_t made = 0;      // new tokens, without the end of text
  std::string continuation{};  // their bytes
};

std::vector<Prompt> prompts_of(const GenerateOptions& options) {
  if (options.prompts.empty()) {
    if (options.prompt.empty()) {
      throw InputError("--prompt", "the prompt is empty");
    }
    return {{"1", "--prompt", options.prompt, options.max_new}};
  }
  if (options.batch == 0) {
    throw InputError("--batch", "batch = 0. Violated: batch >= 1");
  }
  std::vector<Prompt> out;
  for (PromptText& p : read_prompts(options.prompts)) {
    const std::string where = fmt::format("{}:{}", options.prompts.string(), p.line);
    if (!p.expert.empty()) {
      throw InputError(where, "\"expert\" has no effect here", "trace --policy pins requests");
    }
    out.push_back(
        {std::move(p.name), where, std::move(p.text), p.max_new.value_or(options.max_new)});
  }
  return out;
}

/// Steps of `session` as run_prompts() asks for them, with the health checks between.
class Stepper {
 public:
  Stepper(const GenerateOptions& options, Engine& engine, Session& session)
      : model_(options.model.string()),
        session_(session),
        monitor_(make_monitor(engine, options.health, options.flips)) {}

  const StepResult& step(std::span<const SequenceTokens> work) {
    const StepResult& r = monitor_ ? monitor_->step(session_, work, Phase::kPrefill, steps_++)
                                   : session_.step(work, Phase::kPrefill);
    if (monitor_) {
      for (; told_ < monitor_->report().events.size(); ++told_) {
        say("health: {}\n", monitor_->report().events[told_]);
      }
    }
    if (r.nan_rows > 0 && !warned_) {
      warned_ = true;
      say("warning: {}: {} router rows (tokens x layers) of a step are not numbers: the weights "
          "are broken, and so is the text\n",
          model_, r.nan_rows);
    }
    if (r.nan_logits > 0) {
      throw InputError(model_, "the model's logits are not numbers (NaN)",
                       "the weights are broken; compare them with their source");
    }
    return r;
  }

 private:
  std::string model_;
  Session& session_;
  std::unique_ptr<HealthMonitor> monitor_;
  bool warned_ = false;  // Of NaN in a router: once.
  std::uint32_t steps_ = 0;
  std::size_t told_ = 0;  // of the monitor's events
};

/// What a listener may hear while texts grow; either may be empty.
struct Listener {
  std::function<void(std::size_t prompt, std::string_view bytes)> token{};
  std::function<void(const std::vector<Prompt>&, std::size_t prompt)> finished{};
};

std::vector<Prompt> generate(const GenerateOptions& options, const Listener& listener) {
  check_device(options.device, options.dtype, options.threads);
  const SamplingOptions sampling{options.temperature, options.top_p, options.seed, options.top_k};
  validate(sampling, "generate");
  std::vector<Prompt> prompts = prompts_of(options);
  const auto job = open_ranks(options.ranks);
  if (job) {
    require_same_program(*job, "generate",
                         {{"--tp", std::to_string(options.ranks.tp)},
                          {"--max-new", std::to_string(options.max_new)},
                          {"--seed", std::to_string(options.seed)},
                          {"--temperature", fmt::format("{}", options.temperature)},
                          {"--top-p", fmt::format("{}", options.top_p)},
                          {"--top-k", std::to_string(options.top_k)},
                          {"--batch", std::to_string(options.batch)},
                          {"--kv-block", std::to_string(options.kv_block)},
                          {"--kv-memory", options.kv_memory},
                          {"--quantise", options.quantise},
                          {"--router-dtype", options.router_dtype},
                          {"--health", std::to_string(options.health)},
                          {"--device", options.device},
                          {"--dtype", options.dtype}});
  }
  std::unique_ptr<Backend> backend =
      device_backend(options.device, options.dtype, options.threads, job.get());
  std::string no_nccl;
  const auto gpus = gpu_ranks(backend.get(), job.get(), options.ranks, no_nccl);
  Communicator* const ranks = gpus ? gpus.get() : job.get();
  Engine engine = load_engine(options.model, std::move(backend),
                              {.threads = threads_of_rank(options.threads, job.get()),
                               .job = ranks,
                               .tp = options.ranks.tp,
                               .quantise = quantise_options(options.quantise),
                               .router_bf16 = router_bf16(options.router_dtype)},
                              options.health);
  const model::Tokenizer tokenizer = model::load_tokenizer(options.model);
  std::vector<RunPrompt> run;
  Hasher128 hasher;
  for (Prompt& p : prompts) {
    p.tokens = tokenizer.encode(p.text, true, true);
    run.push_back({p.where, p.tokens, p.max_new});
    hasher.update(fmt::format("{}:{}:", p.tokens.size(), p.max_new));
    hasher.update(std::as_bytes(std::span(p.tokens)));
  }
  Session session(engine, {.policy = {},
                           .sampling = sampling,
                           .sample_alike = true,
                           .kv = kv_options(options.kv_block, options.kv_memory),
                           .may_redo = options.health > 0});
  require_fit(engine, session.kv_pool(), run, 0);
  if (job) {
    require_same_program(*job, "generate", {{"the prompts' tokens", hasher.digest().hex()}});
  }
  Stepper stepper(options, engine, session);
  std::vector<std::size_t> prompt_of;  // by sequence
  PromptRunHooks hooks;
  hooks.begin = [&](std::size_t i) {
    prompt_of.push_back(i);
    return session.add_sequence();
  };
  hooks.step = [&](std::span<const SequenceTokens> work) -> const StepResult& {
    return stepper.step(work);
  };
  hooks.end = [&](std::uint32_t sequence) {
    session.end_sequence(sequence);
    if (listener.finished) {
      listener.finished(prompts, prompt_of[sequence]);
    }
  };
  hooks.token = [&](std::size_t i, std::uint32_t token) {
    if (engine.config().ends_text(token)) {
      return;
    }
    const std::string bytes = tokenizer.token_bytes(token);
    prompts[i].continuation += bytes;
    ++prompts[i].made;
    if (listener.token) {
      listener.token(i, bytes);
    }
  };
  PromptRunOptions how;
  how.batch = options.batch;
  how.sampling = sampling;
  how.end_of_text = engine.config().eos_tokens;
  how.alike = true;  // a text is the same alone and beside others
  run_prompts(session.kv_pool(), run, how, hooks);
  if (ranks != nullptr) {
    ranks->finish();
  }
  return prompts;
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

/// For programs: the text itself, with U+FFFD for each byte that is not UTF-8.
std::string as_utf8(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = model::utf8_length(bytes, at);
    out += n == 0 ? std::string_view("\xef\xbf\xbd") : bytes.substr(at, n);
    at += std::max<std::size_t>(n, 1);
  }
  return out;
}

/// claims.md "router accuracy" against the loss oracle.
Table oracle_table(const OracleRun& run, std::uint32_t k, std::uint32_t experts) {
  Table t;
  t.name = "router-oracle";
  t.title = "The router against the loss oracle";
  t.columns = {"MoE layer",
               "tokens",
               "NLL router [nats]",
               "NLL best sets [nats]",
               "NLL all sets, mean [nats]",
               "set = best [%]",
               "experts shared [%]",
               "sets better than the router's [%]"};
  for (const OracleLayer& o : run.layers) {
    const auto n = static_cast<double>(o.tokens);
    const auto mean = [&](double sum) {
      return o.tokens == 0 ? std::string("n/a") : fmt::format("{:.4f}", sum / n);
    };
    const auto share = [&](std::uint64_t part, double whole) {
      return o.tokens == 0 ? std::string("n/a")
                           : fmt::format("{:.2f}", 100 * static_cast<double>(part) / (n * whole));
    };
    t.rows.push_back({std::to_string(o.layer), std::to_string(o.tokens), mean(o.router),
                      mean(o.oracle), mean(o.every), share(o.same, 1), share(o.shared, k),
                      share(o.better, static_cast<double>(run.sets))});
  }
  t.notes.push_back(fmt::format(
      "best set = of the {} sets of {} experts the one with the smallest loss of the next token, "
      "this layer's alone changed; by chance {:.2f} % of the sets, {:.2f} % of the experts",
      run.sets, k, 100.0 / static_cast<double>(run.sets), 100.0 * k / experts));
  t.notes.emplace_back("at most the first 65 tokens of a text");
  return t;
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
  std::unique_ptr<Backend> backend = device_backend(options.device, options.dtype, options.threads);
  const auto job = open_ranks(options.ranks);
  if (job && job->size() > 1) {
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
  const Engine engine = load_engine(options.model, std::move(backend),
                                    {.threads = options.threads,
                                     .quantise = quantise_options(options.quantise),
                                     .router_bf16 = router_bf16(options.router_dtype)},
                                    0);
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
  if (engine.config().gate.bf16_linear) {
    t.notes.emplace_back("the routers are computed in bf16");
  }
  std::vector<Table> out{std::move(t)};
  if (options.oracle > 0) {
    out.push_back(oracle_table(router_oracle(engine, ids, options.oracle, run.policy, run.tiers),
                               engine.gate().top_k, engine.gate().experts));
  }
  if (options.per_token) {
    out.push_back(std::move(tokens));
  }
  if (job) {
    job->finish();
  }
  return out;
}

std::string generate_text(const GenerateOptions& options) {
  return generate(options, {}).front().continuation;
}

std::vector<std::string> generate_texts(const GenerateOptions& options) {
  std::vector<std::string> out;
  for (const Prompt& p : generate(options, {})) {
    out.push_back(p.text + p.continuation);
  }
  return out;
}

int run_generate(const GenerateOptions& options) {
  if (!options.perplexity.empty()) {
    fmt::print("{}", render_all(perplexity_tables(options), options.format));
    return 0;
  }
  const auto write = [&](std::string_view text) {
    if (launched_rank() == 0) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
  };
  if (options.prompts.empty()) {
    bool started = false;
    const auto start = [&] {
      if (!std::exchange(started, true)) {
        write(options.prompt);
      }
    };
    (void)generate(options, {.token = [&](std::size_t, std::string_view text) {
                     start();
                     write(text);
                   }});
    start();
    write("\n");
    return 0;
  }
  if (options.format != TableFormat::kText) {
    Table t;
    t.name = "generate";
    t.title = "Continued texts";
    t.columns = {"prompt", "tokens", "new tokens", "text"};
    for (const Prompt& p : generate(options, {})) {
      t.rows.push_back({p.name, std::to_string(p.tokens.size()), std::to_string(p.made),
                        options.format == TableFormat::kJson || options.format == TableFormat::kCsv
                            ? as_utf8(p.text + p.continuation)
                            : visible(p.text + p.continuation)});
    }
    write(render(t, options.format));
    return 0;
  }
  // In the order of the file, each as soon as those before it are there.
  std::vector<bool> finished;
  std::size_t printed = 0;
  (void)generate(options, {.finished = [&](const std::vector<Prompt>& all, std::size_t i) {
                   finished.resize(all.size());
                   finished[i] = true;
                   for (; printed < all.size() && finished[printed]; ++printed) {
                     const Prompt& p = all[printed];
                     write(fmt::format("--- {}\n{}{}\n", p.name, p.text, p.continuation));
                   }
                 }});
  return 0;
}

}  // namespace switchyard::cli
