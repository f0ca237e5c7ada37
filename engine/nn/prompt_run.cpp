// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/prompt_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.hpp"
#include "engine/base/units.hpp"

namespace switchyard {
namespace {

/// A sequence that runs.
struct Running {
  std::size_t prompt;
  std::uint32_t sequence;
  std::uint64_t kv_bytes;  // the most it may hold
  std::size_t fed = 0;     // prompt tokens that went through the model
  std::uint32_t made = 0;
  std::uint32_t next = 0;  // last generated token
  bool done = false;
};

/// The most KV bytes that a prompt holds at once.
std::uint64_t kv_need(const KvPool& pool, const RunPrompt& p, std::uint32_t chunk) {
  return pool.peak_bytes(p.fed_tokens(), chunk == 0 ? p.tokens.size() : chunk);
}

}  // namespace

void require_fit(const Engine& engine, const KvPool& pool, std::span<const RunPrompt> prompts,
                 std::uint32_t chunk) {
  const std::uint64_t positions = engine.config().max_position_embeddings;
  const std::uint64_t limit = pool.options().memory;
  for (const RunPrompt& p : prompts) {
    if (p.tokens.empty()) {
      throw InputError(p.where, "has no tokens");
    }
    if (p.fed_tokens() > positions) {
      throw InputError(p.where,
                       fmt::format("{} tokens and {} new ones exceed the model's {} positions",
                                   p.tokens.size(), p.max_new, positions),
                       "shorten the prompt or lower --max-new");
    }
  }
  for (const RunPrompt& p : prompts) {
    const std::uint64_t need = kv_need(pool, p, chunk);
    if (limit > 0 && need > limit) {
      throw InputError(p.where,
                       fmt::format("{} tokens need {} of KV cache; --kv-memory makes {} available",
                                   p.fed_tokens(), format_bytes(static_cast<double>(need)),
                                   format_bytes(static_cast<double>(limit))),
                       "raise --kv-memory, shorten the prompt or lower --max-new");
    }
  }
}

void run_prompts(const KvPool& pool, std::span<const RunPrompt> prompts,
                 const PromptRunOptions& options, const PromptRunHooks& hooks) {
  SWITCHYARD_ASSERT(options.batch >= 1, "batch");
  const std::uint64_t limit = pool.options().memory;
  std::vector<Running> running;  // in order of arrival, so sequence numbers ascend
  std::size_t waiting = 0;       // the next prompt
  std::uint64_t promised = 0;    // KV bytes that those running may come to hold
  std::uint64_t saved = 0;       // rows that an early end of text saved
  std::vector<SequenceTokens> work;
  const auto in_prompt = [&](const Running& run) {
    return run.fed < prompts[run.prompt].tokens.size();
  };
  const auto accept = [&](Running& run, const StepResult& r, std::size_t i) {
    const RunPrompt& prompt = prompts[run.prompt];
    if (prompt.max_new == 0) {
      run.done = true;
      return;
    }
    const auto position = static_cast<std::uint32_t>(run.fed) + run.made;
    run.next = r.sampled.empty() ? sample(r.logits_of(i), options.sampling,
                                          options.alike ? 0 : run.sequence, position)
                                 : r.sampled[i];
    ++run.made;
    if (hooks.token) {
      hooks.token(run.prompt, run.next);
    }
    const auto& ends = options.end_of_text;
    if (run.made == prompt.max_new || std::find(ends.begin(), ends.end(), run.next) != ends.end()) {
      run.done = true;
      saved += prompt.max_new - run.made;
    }
  };
  for (;;) {
    while (waiting < prompts.size() && running.size() < options.batch) {
      const std::uint64_t need = kv_need(pool, prompts[waiting], options.chunk);
      if (limit > 0 && promised + need > limit) {
        break;  // its turn comes when another has ended
      }
      promised += need;
      running.push_back({waiting, hooks.begin(waiting), need});
      ++waiting;
    }
    if (running.empty()) {
      return;
    }
    work.clear();
    bool prefill = false;
    for (const Running& run : running) {
      if (in_prompt(run)) {
        const auto rest = prompts[run.prompt].tokens.subspan(run.fed);
        const std::size_t take =
            options.chunk == 0 ? rest.size() : std::min<std::size_t>(options.chunk, rest.size());
        work.push_back({run.sequence, rest.first(take), Phase::kPrefill});
        prefill = true;
      } else {
        work.push_back({run.sequence, {&run.next, 1}, Phase::kDecode});
      }
    }
    const StepResult& r = hooks.step(work);
    for (std::size_t i = 0; i < running.size(); ++i) {
      Running& run = running[i];
      if (in_prompt(run)) {
        run.fed += work[i].tokens.size();
        if (in_prompt(run)) {
          continue;
        }
      }
      accept(run, r, i);
    }
    for (const Running& run : running) {
      if (run.done) {
        hooks.end(run.sequence);
        promised -= run.kv_bytes;
      }
    }
    std::erase_if(running, [](const Running& run) { return run.done; });
    if (hooks.after_step) {
      hooks.after_step(prefill, saved);
    }
  }
}

}  // namespace switchyard
