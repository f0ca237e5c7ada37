// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/trace_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "engine/nn/prompt_run.hpp"
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
  std::string rounded = to_text(engine.quantisation());
  if (engine.config().gate.bf16_linear) {
    rounded += rounded.empty() ? "router computed in bf16" : ", router computed in bf16";
  }
  const std::string precision = engine.backend().precision();
  header.precision = rounded.empty() ? precision : fmt::format("{} ({})", precision, rounded);
  if (options.router_input) {
    header.hidden = static_cast<std::uint32_t>(engine.config().hidden_size);
  }
  return header;
}

/// [L][E] of all MoE layers, or empty when the family has none.
std::vector<float> selection_bias(const Engine& engine) {
  std::vector<float> out;
  for (const LayerWeights& layer : engine.weights().layers) {
    out.insert(out.end(), layer.gate_bias().begin(), layer.gate_bias().end());
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
                          .sampling = options.sampling,
                          .kv = options.kv,
                          .weights = options.weights,
                          .signals = options.signals,
                          .table = options.table,
                          .tiers = options.tiers,
                          .may_redo = options.monitor != nullptr}),
        monitor_(options.monitor),
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
    const std::uint64_t redone = monitor_ == nullptr ? 0 : monitor_->report().redone;
    const StepResult& r = monitor_ == nullptr
                              ? session_.step(work, Phase::kPrefill)
                              : monitor_->step(session_, work, Phase::kPrefill,
                                               static_cast<std::uint32_t>(summary.steps));
    step_.begin(header_, r.step, r.sequence, r.position, r.token, r.phase);
    for (std::uint32_t l = 0; l < summary.layers; ++l) {
      const LayerRouting& routing = r.layers[l];
      const LayerDecision& d = routing.decision;
      step_.set_layer(l, routing.candidates.view(), routing.candidates.nan_rows, d);
      if (header_.candidates < header_.experts()) {
        const std::size_t cells = r.tokens() * header_.experts();
        step_.set_gate(l, header_.gate, std::span(r.router_logits).subspan(l * cells, cells));
      }
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
    // A step gives blocks back at its end only, so before that all of these were held; unless it
    // was run again, in this process alone.
    const KvLedger kv = session_.kv_pool().ledger();
    const bool once = monitor_ == nullptr || monitor_->report().redone == redone;
    const auto [bytes, blocks] =
        over_ranks(session_.kv_bytes(), once ? kv.live + kv.freed - freed : kv.peak);
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
  HealthMonitor* monitor_;
  Communicator* job_;
  std::optional<TraceWriter> writer_;  // rank 0's
  TraceStep step_;
};

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
  if (prompts.empty()) {
    throw InputError("--prompts", "there is no prompt", "write one prompt a line");
  }
  std::vector<RunPrompt> all;
  std::uint64_t total = 0;
  for (const TracePrompt& p : prompts) {
    all.push_back({"prompt " + p.name, p.tokens, p.max_new});
    total += all.back().fed_tokens();
  }
  require_fit(engine, *engine.backend().make_pool(engine.attention_shape(), options.kv), all,
              options.chunk);
  const TraceHeader header = make_header(engine, options);
  Recorder recorder(engine, options, header, output);
  TraceRunSummary& summary = recorder.summary;
  // Replicas run one after the other, each with batches of its own prompts; a sequence's number is
  // its prompt's all the same.
  const SignalCursor signals(options.signals);
  std::map<std::uint32_t, std::vector<std::size_t>> of_replica;
  for (std::size_t i = 0; i < all.size(); ++i) {
    of_replica[signals.replica_of(static_cast<std::uint32_t>(i))].push_back(i);
  }
  if (of_replica.size() > 1) {
    for (const TracePrompt& p : prompts) (void)recorder.add(p);
  }
  std::uint64_t saved_before = 0, saved_now = 0;
  for (const auto& [replica, mine] : of_replica) {
    std::vector<RunPrompt> run;
    for (const std::size_t i : mine) run.push_back(all[i]);
    PromptRunHooks hooks;
    hooks.begin = [&](std::size_t i) {
      return of_replica.size() > 1 ? static_cast<std::uint32_t>(mine[i]) : recorder.add(prompts[i]);
    };
    hooks.step = [&](std::span<const SequenceTokens> work) -> const StepResult& {
      return recorder.step(work);
    };
    hooks.end = [&](std::uint32_t sequence) { recorder.end(sequence); };
    hooks.token = [&](std::size_t, std::uint32_t) { ++summary.generated; };
    hooks.after_step = [&](bool prefill, std::uint64_t saved) {
      saved_now = saved_before + saved;
      if (progress) {
        progress(prefill ? "prefill" : "decode",
                 summary.prefill_tokens + summary.decode_tokens + saved_now, total);
      }
    };
    run_prompts(recorder.kv_pool(), run,
                {options.batch, options.chunk, options.sampling, engine.config().eos_tokens},
                hooks);
    saved_before = saved_now;
  }
  recorder.finish();
  return summary;
}

}  // namespace switchyard
