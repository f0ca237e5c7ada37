// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/trace_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/base/units.hpp"
#include "engine/base/version.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard {
namespace {

TraceHeader make_header(const Engine& engine, const TraceRunOptions& options) {
  const model::Checkpoint* checkpoint = engine.checkpoint();
  SWITCHYARD_ASSERT(checkpoint != nullptr, "a trace names the checkpoint it was made from");
  TraceHeader header;
  header.model = engine.config().name;
  header.gate = engine.gate();
  header.policy = options.policy;
  header.layers = engine.config().moe_layers();
  header.slots = policy_slots(options.policy, engine.gate());
  header.candidates = stored_candidates(engine.gate().experts, header.slots);
  header.config_hash = checkpoint->config_hash().hex();
  if (engine.grid().rank == 0) {  // which writes the file; another rank reads its experts only
    header.weight_hash = engine.weight_hash().hex();
  }
  header.seed = options.seed;
  header.engine = fmt::format("switchyard {} ({})", version(), engine.backend().name());
  const std::string rounded = to_text(engine.quantisation());
  header.precision = rounded.empty() ? "f32" : fmt::format("f32 ({})", rounded);
  if (options.router_input) {
    header.hidden = static_cast<std::uint32_t>(engine.config().hidden_size);
  }
  return header;
}

/// Rows of the trace: the last new token is not fed back.
std::uint64_t fed_tokens(const TracePrompt& p) {
  return p.tokens.size() + (p.max_new > 0 ? p.max_new - std::uint64_t{1} : std::uint64_t{0});
}

void require_fit(const Engine& engine, std::span<const TracePrompt> prompts) {
  if (prompts.empty()) {
    throw InputError("--prompts", "there is no prompt", "write one prompt a line");
  }
  const std::uint64_t positions = engine.config().max_position_embeddings;
  for (const TracePrompt& p : prompts) {
    if (p.tokens.empty()) {
      throw InputError("prompt " + p.name, "has no tokens");
    }
    if (fed_tokens(p) > positions) {
      throw InputError("prompt " + p.name,
                       fmt::format("{} tokens and {} new ones exceed the model's {} positions",
                                   p.tokens.size(), p.max_new, positions),
                       "shorten the prompt or lower --max-new");
    }
  }
}

/// [L][E] of all MoE layers, or empty when the family has none.
std::vector<float> selection_bias(const Engine& engine) {
  std::vector<float> out;
  for (const LayerWeights& layer : engine.weights().layers) {
    out.insert(out.end(), layer.selection_bias.begin(), layer.selection_bias.end());
  }
  return out;
}

/// One run: the session, the file, and the counts that grow with every step.
class Recorder {
 public:
  Recorder(const Engine& engine, const TraceRunOptions& options, const TraceHeader& header,
           const std::filesystem::path& output)
      : header_(header),
        session_(engine, {.policy = options.policy,
                          .seed = options.seed,
                          .router_input = options.router_input,
                          .kv = options.kv,
                          .weights = options.weights,
                          .signals = options.signals,
                          .table = options.table,
                          .tiers = options.tiers}),
        job_(engine.job()) {
    if (engine.grid().rank == 0) {
      writer_.emplace(output, header, selection_bias(engine));
    }
    summary.layers = header.layer_count();
    summary.experts = header.experts();
    summary.top_k = header.top_k();
    summary.load.assign(std::size_t{summary.layers} * summary.experts, 0);
  }

  std::uint32_t add(const TracePrompt& prompt) {
    const std::uint32_t s = session_.add_sequence();
    if (writer_) {
      const std::uint32_t index =
          writer_->add_sequence({static_cast<std::uint32_t>(prompt.tokens.size()), s, prompt.domain,
                                 prompt.name, prompt.text, prompt.expert});
      SWITCHYARD_ASSERT(index == s, fmt::format("sequence {} is row {} of the table", s, index));
    }
    session_.describe(s, prompt.tokens, prompt.text, prompt.expert, "prompt " + prompt.name);
    const RequestInfo& request = session_.request(s);
    summary.table_hits += request.table_entry != kNoTableEntry ? 1 : 0;
    summary.collisions += request.table_collision ? 1 : 0;
    ++summary.sequences;
    return s;
  }

  const StepResult& step(std::span<const SequenceTokens> work) {
    const std::uint64_t freed = session_.kv_pool().ledger().freed;
    const StepResult& r = session_.step(work, Phase::kPrefill);
    step_.begin(header_, r.step, r.sequence, r.position, r.token, r.phase);
    for (std::uint32_t l = 0; l < summary.layers; ++l) {
      const LayerRouting& routing = r.layers[l];
      const LayerDecision& d = routing.decision;
      step_.set_layer(l, routing.candidates.view(), routing.candidates.nan_rows, d);
      if (header_.hidden > 0) {
        const std::size_t cells = r.tokens() * header_.hidden;
        step_.set_router_input(l, std::span(r.router_input).subspan(l * cells, cells));
      }
      summary.assignments += d.assignments;
      summary.kept += d.kept;
      summary.rerouted += d.rerouted;
      summary.queued += d.queued_slots;
      summary.dropped += d.dropped;
      summary.overflowed += d.overflowed;
      summary.truncated += d.truncated_slots;
      summary.linear_fallbacks += d.linear_fallbacks;
      summary.sets += d.sets;
      for (std::uint32_t e = 0; e < summary.experts; ++e) {
        summary.load[std::size_t{l} * summary.experts + e] += d.load[e];
      }
    }
    if (writer_) {
      writer_->append(step_);
    }
    ++summary.steps;
    for (const std::uint8_t phase : r.phase) {
      ++(phase == static_cast<std::uint8_t>(Phase::kDecode) ? summary.decode_tokens
                                                            : summary.prefill_tokens);
    }
    summary.nan_rows += r.nan_rows;
    summary.nan_logits += r.nan_logits;
    // A step gives blocks back at its end only, so before that all of these were held.
    const KvLedger kv = session_.kv_pool().ledger();
    const auto [bytes, blocks] = over_ranks(session_.kv_bytes(), kv.live + kv.freed - freed);
    summary.peak_kv_bytes = std::max(summary.peak_kv_bytes, bytes);
    summary.kv_peak = std::max(summary.kv_peak, blocks);
    summary.tier1_agreed += r.tier1_agreed;
    summary.tier2_agreed += r.tier2_agreed;
    return r;
  }

  void end(std::uint32_t sequence) { session_.end_sequence(sequence); }
  [[nodiscard]] const KvPool& kv_pool() const { return session_.kv_pool(); }
  void finish() {
    const KvLedger kv = session_.kv_pool().ledger();
    SWITCHYARD_ASSERT(kv.live == session_.kv_blocks() && kv.allocated == kv.freed + kv.live,
                      fmt::format("KV blocks: {} allocated, {} freed, {} live", kv.allocated,
                                  kv.freed, session_.kv_blocks()));
    summary.kv_block = session_.kv_pool().options().block;
    std::tie(summary.kv_allocated, summary.kv_freed) = over_ranks(kv.allocated, kv.freed);
    SWITCHYARD_ASSERT(job_ != nullptr || summary.kv_peak == kv.peak,
                      fmt::format("KV blocks: peak {}, {}", summary.kv_peak, kv.peak));
    summary.exchanged = session_.exchanged();
    if (summary.exchanged) {
      const std::uint64_t ran = summary.kept + summary.rerouted + summary.queued;
      SWITCHYARD_ASSERT(
          summary.exchanged->outputs == ran,
          fmt::format("{} slots ran, {} outputs came back", ran, summary.exchanged->outputs));
    }
    if (writer_) {
      writer_->finish();
    }
  }

  TraceRunSummary summary;

 private:
  /// Two numbers, each summed over the ranks.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> over_ranks(std::uint64_t a,
                                                                   std::uint64_t b) const {
    return job_ != nullptr ? std::pair{job_->sum(a), job_->sum(b)} : std::pair{a, b};
  }

  const TraceHeader& header_;
  Session session_;
  Communicator* job_;
  std::optional<TraceWriter> writer_;  // rank 0's
  TraceStep step_;
};

/// A sequence that runs.
struct Running {
  const TracePrompt* prompt;
  std::uint32_t sequence;
  std::uint64_t kv_bytes;  // the most it may hold
  std::size_t fed = 0;     // prompt tokens that went through the model
  std::uint32_t made = 0;
  std::uint32_t next = 0;  // last generated token
  bool done = false;
  [[nodiscard]] bool in_prompt() const { return fed < prompt->tokens.size(); }
};

/// The most KV bytes that a prompt holds at once.
std::uint64_t kv_need(const KvPool& pool, const TracePrompt& p, std::uint32_t chunk) {
  return pool.peak_bytes(fed_tokens(p), chunk == 0 ? p.tokens.size() : chunk);
}

void require_memory(const KvPool& pool, std::span<const TracePrompt> prompts, std::uint32_t chunk) {
  const std::uint64_t limit = pool.options().memory;
  for (const TracePrompt& p : prompts) {
    const std::uint64_t need = kv_need(pool, p, chunk);
    if (limit > 0 && need > limit) {
      throw InputError("prompt " + p.name,
                       fmt::format("{} tokens need {} of KV cache; --kv-memory makes {} available",
                                   fed_tokens(p), format_bytes(static_cast<double>(need)),
                                   format_bytes(static_cast<double>(limit))),
                       "raise --kv-memory, shorten the prompt or lower --max-new");
    }
  }
}

}  // namespace

std::optional<double> TraceRunSummary::load_cv() const {
  double sum = 0;
  std::uint32_t counted = 0;
  for (std::uint32_t l = 0; l < layers; ++l) {
    double total = 0;
    double squares = 0;
    for (std::uint32_t e = 0; e < experts; ++e) {
      const auto n = static_cast<double>(load[std::size_t{l} * experts + e]);
      total += n;
      squares += n * n;
    }
    if (total > 0) {
      const double mean = total / experts;
      sum += std::sqrt(std::max(0.0, squares / experts - mean * mean)) / mean;
      ++counted;
    }
  }
  return counted > 0 ? std::optional(sum / counted) : std::nullopt;
}

std::optional<double> TraceRunSummary::top_share() const {
  double sum = 0;
  std::uint32_t counted = 0;
  for (std::uint32_t l = 0; l < layers; ++l) {
    const auto row = std::span(load).subspan(std::size_t{l} * experts, experts);
    std::uint64_t total = 0;
    for (const std::uint64_t n : row) {
      total += n;
    }
    if (total > 0) {
      sum += static_cast<double>(*std::max_element(row.begin(), row.end())) /
             static_cast<double>(total);
      ++counted;
    }
  }
  return counted > 0 ? std::optional(sum / counted) : std::nullopt;
}

TraceRunSummary record_trace(const Engine& engine, std::span<const TracePrompt> prompts,
                             const TraceRunOptions& options, const std::filesystem::path& output,
                             const TraceProgress& progress) {
  SWITCHYARD_ASSERT(options.batch >= 1, "batch");
  if (engine.config().num_moe_layers() == 0) {
    throw InputError(engine.config().name, "the model is dense: it has no router to trace",
                     "`switchyard generate` runs it");
  }
  validate(options.sampling, "sampling");
  require_fit(engine, prompts);
  require_memory(*engine.backend().make_pool(engine.attention_shape(), options.kv), prompts,
                 options.chunk);
  const TraceHeader header = make_header(engine, options);
  Recorder recorder(engine, options, header, output);
  const std::optional<std::uint32_t> end_of_text = engine.config().eos_token;

  std::uint64_t total = 0;
  for (const TracePrompt& p : prompts) {
    total += fed_tokens(p);
  }
  std::uint64_t skipped = 0;  // decode rows that an early end of text saved
  const auto accept = [&](Running& run, std::span<const float> logits, std::uint32_t position) {
    if (run.prompt->max_new == 0) {
      run.done = true;
      return;
    }
    run.next = sample(logits, options.sampling, run.sequence, position);
    ++run.made;
    ++recorder.summary.generated;
    if (run.made == run.prompt->max_new || run.next == end_of_text) {
      run.done = true;
      skipped += run.prompt->max_new - run.made;
    }
  };

  std::vector<Running> running;  // in order of arrival, so sequence numbers ascend
  std::size_t waiting = 0;       // the next prompt
  std::uint64_t promised = 0;    // KV bytes that those running may come to hold
  std::vector<SequenceTokens> work;
  for (;;) {
    while (waiting < prompts.size() && running.size() < options.batch) {
      const TracePrompt& prompt = prompts[waiting];
      const std::uint64_t need = kv_need(recorder.kv_pool(), prompt, options.chunk);
      if (options.kv.memory > 0 && promised + need > options.kv.memory) {
        break;  // its turn comes when another has ended
      }
      promised += need;
      running.push_back({&prompt, recorder.add(prompt), need});
      ++waiting;
    }
    if (running.empty()) {
      break;
    }
    work.clear();
    bool prefill = false;
    for (const Running& run : running) {
      if (run.in_prompt()) {
        const auto rest = std::span(run.prompt->tokens).subspan(run.fed);
        const std::size_t take =
            options.chunk == 0 ? rest.size() : std::min<std::size_t>(options.chunk, rest.size());
        work.push_back({run.sequence, rest.first(take), Phase::kPrefill});
        prefill = true;
      } else {
        work.push_back({run.sequence, {&run.next, 1}, Phase::kDecode});
      }
    }
    if (options.before_step) {
      options.before_step(static_cast<std::uint32_t>(recorder.summary.steps));
    }
    const StepResult& r = recorder.step(work);
    if (options.after_step) {
      options.after_step(r);
    }
    for (std::size_t i = 0; i < running.size(); ++i) {
      Running& run = running[i];
      if (run.in_prompt()) {
        run.fed += work[i].tokens.size();
        if (run.in_prompt()) {
          continue;
        }
      }
      accept(run, r.logits_of(i), static_cast<std::uint32_t>(run.fed) + run.made);
    }
    for (const Running& run : running) {
      if (run.done) {
        recorder.end(run.sequence);
        promised -= run.kv_bytes;
      }
    }
    std::erase_if(running, [](const Running& run) { return run.done; });
    if (progress) {
      progress(prefill ? "prefill" : "decode",
               recorder.summary.prefill_tokens + recorder.summary.decode_tokens + skipped, total);
    }
  }
  recorder.finish();
  return recorder.summary;
}

}  // namespace switchyard
