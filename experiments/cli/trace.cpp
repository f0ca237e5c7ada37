// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/trace.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/base/units.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/trace/signals_file.hpp"
#include "experiments/cli/device.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/cli/own_output.hpp"
#include "experiments/cli/progress.hpp"
#include "experiments/cli/prompts.hpp"
#include "experiments/cli/say.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::cli {
namespace {

/// Phase of the progress that counts bytes, not tokens.
constexpr std::string_view kLoading = "load";

/// The expert that a prompt names by id or by a name of the policy, kNoExpert for an empty text.
std::uint16_t named_expert(const std::string& text, const PinnedPolicy& policy,
                           std::uint32_t experts, const std::string& where) {
  if (text.empty()) {
    return kNoExpert;
  }
  for (const auto& [name, expert] : policy.names) {
    if (name == text) {
      return static_cast<std::uint16_t>(expert);
    }
  }
  std::uint32_t id = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (ec != std::errc{} || end != text.data() + text.size() || id >= experts) {
    throw InputError(where, fmt::format("expert \"{}\" is not an id below {}", text, experts),
                     "names come from pinned.names of the policy");
  }
  return static_cast<std::uint16_t>(id);
}

/// What a rank is about to do with the prompts, as one hash.
std::string hash_of(const std::vector<TracePrompt>& prompts) {
  Hasher128 hasher;
  for (const TracePrompt& p : prompts) {
    hasher.update(fmt::format("{}:{}{}:{}{}:{}{}:{}:{}:", p.name.size(), p.name, p.domain.size(),
                              p.domain, p.text.size(), p.text, p.expert, p.max_new,
                              p.tokens.size()));
    hasher.update(std::as_bytes(std::span(p.tokens)));
  }
  return hasher.digest().hex();
}

/// What the mechanisms of step 10 did; only those that did something.
void set_rows(const TraceRunSummary& s, Table& table) {
  const auto row = [&](std::string name, std::uint64_t n) {
    if (n > 0) {
      table.rows.push_back({std::move(name), std::to_string(n)});
    }
  };
  const auto share = [&](std::string name, std::uint64_t part, std::uint64_t whole) {
    if (whole > 0) {
      table.rows.push_back(
          {std::move(name),
           fmt::format("{:.4f}", static_cast<double>(part) / static_cast<double>(whole))});
    }
  };
  const SetCounts& c = s.sets;
  row("soft balance: slots moved", c.balanced);
  row("soft balance: slots without a free expert", c.unbalanced);
  row("soft balance: tokens with a third expert", c.third);
  row("decode rebalance: slots moved", c.rebalanced);
  row("soft routing: tokens x layers", c.soft_tokens);
  row("pinned: tokens x layers", c.pinned_tokens);
  if (c.table_tokens > 0 || s.table_hits > 0) {
    share("table: hit rate of requests", s.table_hits, s.sequences);
    row("table: requests with another prompt's entry", s.collisions);
    share("table: agreement@k with the live router", c.table_agreed, c.table_slots);
  }
  if (c.reranked + s.tier1_agreed + s.tier2_agreed > 0) {
    const std::uint64_t rows = (s.prefill_tokens + s.decode_tokens) * s.layers;
    share("two-tier: sets changed by tier 2", c.reranked, rows);
    share("two-tier: sets of tier 1 = FP32 router", s.tier1_agreed, rows);
    share("two-tier: sets of tier 2 = FP32 router", s.tier2_agreed, rows);
  }
}

void print_json(const nlohmann::ordered_json& event) {
  fmt::print("{}\n", event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::fflush(stdout);
}

}  // namespace

std::vector<TracePrompt> read_trace_prompts(const std::filesystem::path& file,
                                            std::uint32_t max_new, const RoutingPolicy& policy,
                                            const Engine& engine,
                                            const model::Tokenizer& tokenizer) {
  std::vector<TracePrompt> out;
  for (PromptText& p : read_prompts(file)) {
    TracePrompt prompt{std::move(p.name),
                       std::move(p.domain),
                       tokenizer.encode(p.text, true, true),
                       p.max_new.value_or(max_new),
                       std::move(p.text),
                       named_expert(p.expert, policy.pinned, engine.gate().experts,
                                    fmt::format("{}:{}", file.string(), p.line))};
    for (const std::uint32_t token : prompt.tokens) {
      if (token >= engine.config().vocab_size) {
        throw InputError(fmt::format("{}:{}", file.string(), p.line),
                         fmt::format("token id {} is outside the model's vocabulary of {}", token,
                                     engine.config().vocab_size),
                         "does tokenizer.json belong to this checkpoint?");
      }
    }
    out.push_back(std::move(prompt));
  }
  return out;
}

void check_device(const std::string& device, const std::string& dtype, unsigned threads) {
  static const std::array<std::string, 2> kDevices{"cpu", "cuda"};
  static const std::array<std::string, 2> kTypes{"f32", "bf16"};
  if (device != "cpu" && device != "cuda") {
    throw InputError("--device", fmt::format("unknown device \"{}\"", device),
                     suggest_name(device, kDevices));
  }
  if (dtype != "f32" && dtype != "bf16") {
    throw InputError("--dtype", fmt::format("unknown type \"{}\"", dtype),
                     suggest_name(dtype, kTypes));
  }
  if (dtype == "bf16" && device == "cpu") {
    throw InputError("--dtype", "unsupported: the CPU engine computes in f32",
                     "weights stored as BF16 are read as they are and widened exactly; or use "
                     "--device cuda");
  }
  if (threads > 1024) {
    throw InputError("--threads", fmt::format("threads = {}. Violated: threads <= 1024", threads));
  }
}

std::unique_ptr<Backend> device_backend(const std::string& device, const std::string& dtype,
                                        unsigned threads, const Communicator* job) {
  check_device(device, dtype, threads);
  if (device != "cuda") {
    return nullptr;
  }
  if (dtype == "bf16" && job != nullptr && job->size() > 1) {
    throw InputError("--dtype",
                     "unsupported: bf16 on several ranks, whose results would depend on their "
                     "number (which kernel adds a product up depends on the rows of a rank)",
                     "use f32; weights stored as BF16 stay BF16 there");
  }
  return open_cuda(dtype == "bf16", cuda_library(), job != nullptr ? job->local_rank() : 0);
}

std::unique_ptr<Communicator> gpu_ranks(Backend* backend, Communicator* job,
                                        const RankOptions& options, std::string& why) {
  why.clear();
  return backend != nullptr && job != nullptr && job->size() > 1
             ? join_gpus(*backend, *job, rank_timeout(options), why)
             : nullptr;
}

Engine load_engine(const std::filesystem::path& model, std::unique_ptr<Backend> backend,
                   const EngineOptions& options, std::uint32_t health) {
  if (backend == nullptr) {
    return Engine::load(model, options);
  }
  if (health > 0) {
    throw InputError("--health", "unsupported with --device cuda: it reads weights on the host",
                     "use --device cpu");
  }
  return Engine::load_on(model, std::move(backend), options);
}

KvOptions kv_options(std::uint32_t block, const std::string& memory) {
  KvOptions out;
  out.block = block;
  if (!memory.empty()) {
    out.memory = parse_bytes(memory, "--kv-memory", "kv-memory");
    if (out.memory == 0) {
      throw InputError("--kv-memory", "kv-memory = 0 B. Violated: kv-memory > 0",
                       "leave it out for no limit");
    }
  }
  return out;
}

QuantiseOptions quantise_options(const std::string& text) {
  return text.empty() ? QuantiseOptions{} : parse_quantise(text, "--quantise");
}

std::optional<bool> router_bf16(const std::string& text) {
  static const std::array<std::string, 2> kTypes{"f32", "bf16"};
  if (text.empty()) {
    return std::nullopt;
  }
  if (text != "f32" && text != "bf16") {
    throw InputError("--router-dtype", fmt::format("unknown type \"{}\"", text),
                     suggest_name(text, kTypes));
  }
  return text == "bf16";
}

std::unique_ptr<HealthMonitor> make_monitor(Engine& engine, std::uint32_t every,
                                            const std::vector<std::string>& flips) {
  if (every == 0) {
    if (!flips.empty()) {
      throw InputError("--flip", "damages weights that nothing checks", "add --health 1");
    }
    return nullptr;
  }
  auto monitor = std::make_unique<HealthMonitor>(engine, HealthOptions{.every = every});
  for (const std::string& flip : flips) {
    monitor->inject(parse_bit_flip(flip, "--flip"));
  }
  return monitor;
}

void add_health(Table& table, const HealthReport& r) {
  const auto row = [&](std::string name, std::uint64_t value) {
    table.rows.push_back({std::move(name), std::to_string(value)});
  };
  row("health: checks of all weights", r.checks);
  row("health: tensors", r.tensors);
  row("health: bits flipped on purpose", r.flips);
  row("health: tensors not finite", r.not_finite);
  row("health: tensors with another norm", r.norm);
  row("health: tensors with another CRC", r.crc);
  row("health: steps with a router logit beyond 100", r.router_alarms);
  row("health: steps with a logit not finite", r.nan_alarms);
  row("health: read again", r.reloads);
  row("health: steps on damaged weights", r.damaged_steps);
  row("health: steps run again", r.redone);
  for (const std::string& event : r.events) {
    table.notes.push_back(event);
  }
}

void add_quantised(Table& table, const std::vector<QuantisedPart>& parts) {
  for (const QuantisedPart& p : parts) {
    table.rows.push_back({fmt::format("{} as {}: error [%]", p.name, name_of(p.format)),
                          fmt::format("{:.3f}", 100 * p.relative_error())});
    table.rows.push_back({fmt::format("{} as {}: bits per value", p.name, name_of(p.format)),
                          fmt::format("{:.3f}", p.bits_per_value())});
  }
  if (!parts.empty()) {
    table.notes.emplace_back("error = |rounded - w| / |w| (L2); arithmetic stays f32");
  }
}

Table trace_summary_table(const TraceRunSummary& s) {
  Table table;
  table.name = "trace";
  table.title = "Routing trace";
  table.columns = {"quantity", "value"};
  const auto row = [&](std::string name, std::uint64_t value) {
    table.rows.push_back({std::move(name), std::to_string(value)});
  };
  row("sequences", s.sequences);
  row("steps", s.steps);
  row("prefill tokens", s.prefill_tokens);
  row("decode tokens", s.decode_tokens);
  row("generated tokens", s.generated);
  row("MoE layers", s.layers);
  row("experts per layer", s.experts);
  row("experts per token", s.top_k);
  row("assignments", s.assignments);
  row("kept", s.kept);
  row("rerouted", s.rerouted);
  row("queued", s.queued);
  row("dropped", s.dropped);
  row("overflow", s.overflowed);
  row("truncated", s.truncated);
  if (s.linear_fallbacks > 0) {
    row("linear scores made a softmax", s.linear_fallbacks);
  }
  set_rows(s, table);
  const auto cv = s.load_cv();
  table.rows.push_back({"load_cv", cv ? fmt::format("{:.4f}", *cv) : "n/a"});
  const auto top = s.top_share();
  table.rows.push_back({"top share", top ? fmt::format("{:.4f}", *top) : "n/a"});
  row("router rows with NaN", s.nan_rows);
  row("output rows with NaN", s.nan_logits);
  row("KV cache peak [B]", s.peak_kv_bytes);
  row("KV blocks peak", s.kv_peak);
  row("KV blocks allocated", s.kv_allocated);
  row("KV blocks freed", s.kv_freed);
  if (s.exchanged) {
    const ExchangeTotals& x = *s.exchanged;
    table.rows.push_back({"ranks", fmt::format("{} x {}", x.ep, x.tp)});
    table.rows.push_back({"rows go by", x.transport});
    row("rows for experts", x.rows);
    row("rows sent", x.rows_sent);
    row("expert outputs", x.outputs);
    row("dispatch [B]", x.dispatch_bytes);
    row("inner activations [B]", x.inner_bytes);
    row("return [B]", x.return_bytes);
    row("router logits [B]", x.router_bytes);
    row("output logits [B]", x.logits_bytes);
  }
  table.notes = {"assignments = kept + rerouted + queued + dropped, over tokens x layers x slots",
                 "overflow = first choices that found their expert full",
                 "load_cv = std/mean of kept + rerouted per expert, whole run, mean over layers",
                 "top share = of the busiest expert in its layer's load, mean over layers",
                 fmt::format("a KV block holds {} tokens", s.kv_block)};
  if (s.exchanged) {
    table.notes.emplace_back(
        "ranks = groups of experts x parts of an expert; a row goes once to each group that has "
        "one of its experts");
    table.notes.emplace_back(
        "bytes are those that left their rank; sent = received for every pair of ranks (checked)");
  }
  if (s.nan_rows > 0) {
    table.notes.emplace_back(
        "nan_router: NaN or +inf router logits count as -inf; the weights or the state are broken");
  }
  return table;
}

int run_trace(const TraceOptions& options) {
  check_device(options.device, options.dtype, options.threads);
  const bool json = progress_as_json(options.progress);
  if (options.batch == 0) {
    throw InputError("--batch", "batch = 0. Violated: batch >= 1");
  }
  TraceRunOptions run;
  run.batch = options.batch;
  run.chunk = options.chunk;
  run.seed = options.seed;
  PolicyFiles policy_files;
  run.router_input = options.router_input;
  run.sampling = {options.temperature, options.top_p, options.seed, options.top_k};
  validate(run.sampling, "trace");
  run.kv = kv_options(options.kv_block, options.kv_memory);
  if (!options.policy.empty()) {
    run.policy = scenario::read_policy_file(options.policy.string(), &policy_files);
  }
  const auto job = open_ranks(options.ranks);
  if (job) {
    require_same_program(*job, "trace",
                         {{"--tp", std::to_string(options.ranks.tp)},
                          {"--seed", std::to_string(options.seed)},
                          {"--batch", std::to_string(options.batch)},
                          {"--chunk", std::to_string(options.chunk)},
                          {"--temperature", fmt::format("{}", options.temperature)},
                          {"--top-p", fmt::format("{}", options.top_p)},
                          {"--top-k", std::to_string(options.top_k)},
                          {"--kv-block", std::to_string(options.kv_block)},
                          {"--kv-memory", std::to_string(run.kv.memory)},
                          {"--quantise", options.quantise},
                          {"--router-dtype", options.router_dtype},
                          {"--health", std::to_string(options.health)},
                          {"--router-input", options.router_input ? "yes" : "no"},
                          {"--device", options.device},
                          {"--dtype", options.dtype}});
  }
  std::unique_ptr<Backend> backend =
      device_backend(options.device, options.dtype, options.threads, job.get());
  std::string no_nccl;
  const auto gpus = gpu_ranks(backend.get(), job.get(), options.ranks, no_nccl);
  Communicator* const ranks = gpus ? gpus.get() : job.get();
  const bool speaking = speaks(job.get());
  const bool terminal = speaking && !options.quiet && !json && isatty(STDERR_FILENO) == 1;
  auto shown = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  const TraceProgress progress = [&](std::string_view phase, std::uint64_t done,
                                     std::uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown < std::chrono::milliseconds(100) && done != total) {
      return;
    }
    shown = now;
    if (json && speaking) {
      print_json({{"event", "progress"},
                  {"phase", phase},
                  {"done", done},
                  {"total", total},
                  {"sim_time_ps", 0}});
    } else if (terminal && phase == kLoading) {
      say("\rtrace: {} {}/{} MiB", phase, done >> 20U, total >> 20U);
    } else if (terminal) {
      say("\rtrace: {} {}/{} tokens", phase, done, total);
    }
  };
  const bool on_gpu = backend != nullptr;
  Engine engine =
      load_engine(options.model, std::move(backend),
                  {.threads = threads_of_rank(options.threads, job.get()),
                   .progress = [&](std::uint64_t done,
                                   std::uint64_t total) { progress(kLoading, done, total); },
                   .job = ranks,
                   .tp = options.ranks.tp,
                   .quantise = quantise_options(options.quantise),
                   .router_bf16 = router_bf16(options.router_dtype)},
                  options.health);
  const std::vector<std::uint32_t> layers = engine.config().moe_layers();
  if (!layers.empty()) {  // before anything is made of the policy's values
    validate(run.policy, engine.gate().experts, engine.gate().top_k, "policy");
  }
  const PolicyWeights weights = model::load_policy_weights(run.policy, policy_files, engine.gate(),
                                                           layers, engine.config().hidden_size);
  run.weights = weights.layers.empty() ? nullptr : &weights;
  // The hash reads the whole file; of several ranks the first knows it.
  remove_stale_temporaries(options.output);
  require_own_output("-o", options.output,
                     {{"the prompt file", options.prompts},
                      {"the model", options.model},
                      {"the policy", options.policy},
                      {"the signals file", options.signals}});
  ParentFolders folders;
  if (engine.grid().rank == 0) folders.make("-o", options.output);
  const bool compare = run.policy.table.on() && engine.grid().rank == 0;
  const std::optional<RoutingTable> table =
      load_table(run.policy, policy_files, engine.gate(), static_cast<std::uint32_t>(layers.size()),
                 compare ? engine.weight_hash().hex() : std::string());
  run.table = table ? &*table : nullptr;
  std::optional<TwoTierRouter> tiers;
  if (run.policy.two_tier.on()) {
    if (on_gpu) {
      throw InputError("--policy",
                       "unsupported with --device cuda: two_tier, whose first tier reads the "
                       "router's weights on the host",
                       "use --device cpu");
    }
    tiers = TwoTierRouter::load(run.policy, policy_files, engine.weights(), engine.config());
    run.tiers = &*tiers;
  }
  std::optional<SignalsFile> signals;
  if (!options.signals.empty()) {
    signals = read_signals_for(options.signals, static_cast<std::uint32_t>(layers.size()),
                               engine.gate().experts, run.policy, "--signals");
    run.signals = &signals->table;
  }
  const auto monitor = make_monitor(engine, options.health, options.flips);
  run.monitor = monitor.get();
  const model::Tokenizer tokenizer = model::load_tokenizer(options.model);
  const std::vector<TracePrompt> prompts =
      read_trace_prompts(options.prompts, options.max_new, run.policy, engine, tokenizer);
  if (job) {
    require_same_program(
        *job, "trace",
        {{"the prompts (tokens and --max-new)", hash_of(prompts)},
         {"--policy", hex64(hash64(policy_to_text(run.policy)))},  // with its files' hashes
         {"--signals",
          options.signals.empty() ? "none" : hex64(hash64(read_file(options.signals)))}});
  }
  const auto begin = std::chrono::steady_clock::now();
  const TraceRunSummary summary = record_trace(engine, prompts, run, options.output, progress);
  if (terminal) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto tokens = static_cast<double>(summary.prefill_tokens + summary.decode_tokens);
    say("\rtrace: {} tokens in {:.1f} s ({:.0f} tokens/s)\n", tokens, seconds, tokens / seconds);
  }
  if (json && speaking) {
    print_json({{"event", "done"}, {"output", options.output.string()}});
  } else if (!options.quiet && speaking) {
    Table table = trace_summary_table(summary);
    if (!no_nccl.empty()) {
      table.notes.push_back("NCCL is not used: " + no_nccl);
    }
    add_quantised(table, engine.quantised());
    if (monitor) {
      add_health(table, monitor->report());
      for (const BitFlip& flip : monitor->pending()) {
        table.notes.push_back(
            fmt::format("no step {}: {} was not damaged", flip.step, flip.tensor));
      }
    }
    fmt::print("{}", render(table, options.format));
  }
  if (ranks != nullptr) {
    ranks->finish();
  }
  return 0;
}

}  // namespace switchyard::cli
