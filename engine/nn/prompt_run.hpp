// SPDX-License-Identifier: Apache-2.0
// File: prompt_run.hpp. Prompts through a session, several at a time: what `trace` and `generate`
// share. A step holds the next tokens of some prompts beside one new token of others; when a
// sequence ends, the next prompt takes its place, in order.
//
// A prompt starts only when all KV blocks that it can come to need are left beside what those that
// run can come to need, so no step fails half-way; one that cannot fit alone is refused before
// anything runs. A row's results depend on its own sequence only (session.hpp), so a text is the
// same alone and beside any others.
//
// Not modelled: arrival times, preemption, priorities (the simulator's business).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/sampling.hpp"
#include "engine/nn/session.hpp"

namespace switchyard {

struct RunPrompt {
  std::string where;                      ///< For messages, e.g. "prompt 3".
  std::span<const std::uint32_t> tokens;  ///< >= 1, borrowed.
  std::uint32_t max_new = 0;              ///< 0: the prompt only.
  /// Rows that go through the model: the last new token is not fed back.
  [[nodiscard]] std::uint64_t fed_tokens() const {
    return tokens.size() + (max_new > 0 ? max_new - std::uint64_t{1} : std::uint64_t{0});
  }
};

struct PromptRunOptions {
  std::uint32_t batch = 1;  ///< Prompts that run together, >= 1.
  std::uint32_t chunk = 0;  ///< Prompt tokens per sequence and step; 0: whole prompts.
  SamplingOptions sampling{};
  std::vector<std::uint32_t> end_of_text{};  ///< Each ends a sequence when it is sampled.
  /// Every prompt draws as sequence 0, as it would alone; else as its own sequence.
  bool alike = false;
};

/// What the caller does on the way. `step`, `begin` and `end` are needed.
struct PromptRunHooks {
  std::function<std::uint32_t(std::size_t prompt)> begin;  ///< A new sequence for it.
  std::function<const StepResult&(std::span<const SequenceTokens>)> step;
  std::function<void(std::uint32_t sequence)> end;
  /// Each new token, the end of text too. May be empty.
  std::function<void(std::size_t prompt, std::uint32_t token)> token;
  /// After each step: whether it had prompt tokens, and how many rows of fed_tokens() an early end
  /// of text has saved so far. May be empty.
  std::function<void(bool prefill, std::uint64_t saved)> after_step;
};

/// InputError(where, …): no tokens, more tokens than the model has positions, more KV cache than
/// the pool may lend with steps of `chunk` prompt tokens.
void require_fit(const Engine& engine, const KvPool& pool, std::span<const RunPrompt> prompts,
                 std::uint32_t chunk);

/// Runs all prompts, which fit. `pool` is that of the session behind the hooks.
void run_prompts(const KvPool& pool, std::span<const RunPrompt> prompts,
                 const PromptRunOptions& options, const PromptRunHooks& hooks);

}  // namespace switchyard
