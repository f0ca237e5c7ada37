// SPDX-License-Identifier: Apache-2.0
// What one step computes, and who decides it: a BatchSource plans steps, the simulator times them.
//
// A plan is of one engine: the GPUs [first_gpu, last_gpu) that step together (replica groups that
// share nothing but links step by themselves). Its sequences are in ascending order of their
// number; the number is the sequence's for the whole run and is never used again, so it indexes the
// routing state and draws the random numbers of its tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/run/run_data.hpp"

namespace switchyard::sim {

/// One sequence of a step. Token i of the `fresh` ones has position had + i.
struct PlannedSequence {
  std::uint32_t id = 0;
  std::uint32_t gpu = 0;    ///< Home: the GPU, or the first of the tensor-parallel group.
  std::uint32_t fresh = 1;  ///< New tokens, > 0.
  std::uint64_t had = 0;    ///< Tokens in its KV cache before the step.
  /// Which rows of a routing trace its tokens follow: position p < prompt is row p − origin of the
  /// prompt, p ≥ prompt is row p − prompt of the answer.
  std::uint64_t origin = 0, prompt = 0;
  bool prefill = false;  ///< Phase of its tokens.
  bool samples = true;   ///< The last token passes through the head.
  /// queue = "defer". The source sets `resumes` when done() said `deferred` of the sequence's last
  /// plan and its pages are still there: the same new tokens again, no page more.
  bool resumes = false;
  bool deferred = false;  ///< Set by the simulator before done(): it gives no token in this step.
};

/// Pages of a sequence on its home GPU change from those of `before` tokens to those of `after` (0:
/// none) when the step begins. Any GPU of the cluster.
struct KvChange {
  std::uint32_t gpu = 0;  ///< Home.
  std::uint64_t before = 0, after = 0;
  std::uint32_t id = run::kNone;  ///< Sequence. Requests that arrive have one.
  bool keep = false;              ///< after = 0: the pages were swapped out and come back.
  bool left = false;  ///< after = 0: those that it left behind when it went to another replica.
};

/// Pages that go to host memory or come back when the step begins, over the links.
struct KvSwap {
  std::uint32_t gpu = 0;    ///< Home.
  std::uint64_t bytes = 0;  ///< Of each GPU of the home, > 0.
  bool out = false;
};

/// Pages that left one replica for another since the last plan. The source has timed them; the step
/// only counts their bytes. From GPU from + i to GPU to + i for i < width.
struct KvTransfer {
  std::uint32_t from = 0, to = 0;
  std::uint64_t bytes = 0;  ///< Of each of them, > 0.
  std::uint32_t width = 1;
};

struct StepPlan {
  std::uint32_t engine = 0;
  std::uint32_t first_gpu = 0, last_gpu = 0;
  std::int64_t earliest_ps = 0;  ///< The step does not begin before.
  std::int64_t host_ps = 0;      ///< On every GPU of the engine, before its host time.
  run::StepKind kind = run::StepKind::kDecode;
  bool warmup = false;
  std::vector<PlannedSequence> sequences;
  std::vector<KvChange> kv;
  std::vector<KvSwap> swaps;
  std::vector<KvTransfer> transfers;
  std::vector<std::uint32_t> ended;  ///< Numbers that no later plan has.
};

/// A sequence whose home changed. Its pages left `from`: to `to`, or nowhere (tokens = 0).
struct MovedSequence {
  std::uint32_t id = 0, from = 0, to = 0;
  std::uint64_t tokens = 0;  ///< Whose pages travel.
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // A step is found (await), then faults and alarms do what they do, then it is planned.
  /// Goes on to where the next step begins: engine, first_gpu, last_gpu and earliest_ps of the
  /// plan, which is reused. False when the run is over.
  virtual bool await(std::uint64_t step, StepPlan& plan) = 0;
  /// Plans the step that await() found; false when there is nothing to do for it after all.
  virtual bool plan(std::uint64_t step, StepPlan& plan) = 0;
  /// Both, where nothing comes between; false when the run is over.
  bool next(std::uint64_t step, StepPlan& plan) {
    do {
      if (!await(step, plan)) return false;
    } while (!this->plan(step, plan));
    return true;
  }

  // Faults and alarms, between await() and plan().
  /// The sequences at home on `gpu` go to the GPUs of `to`, each to the one with the fewest. With
  /// keep_kv their pages go with them (the plan frees and allocates them); without, the caller has
  /// freed them and the tokens are computed again. Until come_home() nobody goes to `gpu`.
  virtual std::vector<MovedSequence> evacuate(std::uint32_t gpu, std::span<const std::uint32_t> to,
                                              bool keep_kv) = 0;
  /// The pages of `gpu` are gone (the caller has freed them): its sequences compute them again.
  virtual void lose_kv(std::uint32_t gpu) = 0;
  /// Pages on several GPUs: every sequence with pages for which `lost` (number, home, tokens) is
  /// true loses all of them, and the next plan frees them.
  virtual void lose_pages(
      const std::function<bool(std::uint32_t, std::uint32_t, std::uint64_t)>& lost) = 0;
  /// `gpu` is back. Sequences that evacuate() took from it may come home with their pages.
  virtual std::vector<MovedSequence> come_home(std::uint32_t gpu) = 0;
  /// The longest sequence of `from` goes to `to` with its pages; empty: there is none.
  virtual std::vector<MovedSequence> move_one(std::uint32_t from, std::uint32_t to) = 0;
  /// Requests that arrive: bytes for KV pages on every GPU from now on, [G].
  virtual void set_kv_rooms(const std::vector<std::uint64_t>&) {}
  /// Requests that arrive: the engine does not work in [now, until).
  virtual void outage(std::uint32_t /*engine*/, std::int64_t /*until_ps*/) {}
  /// Requests that arrive: while on, the replica takes no new ones unless it is empty, and where no
  /// replica takes one it is rejected; `drop` of those that wait at the replica and have not begun
  /// are, too, the newest first. Returns how many of those.
  virtual std::uint64_t shed(std::uint32_t /*engine*/, bool /*on*/, std::uint64_t /*drop*/) {
    return 0;
  }
  /// The planned step ran from start to end (ps of simulated time). `data` takes tokens and events.
  virtual void done(std::uint64_t step, const StepPlan& plan, std::int64_t start, std::int64_t end,
                    run::RunData& data) = 0;
  /// Tokens of every sequence that holds pages with home `gpu`, in any order: a recount.
  virtual void holders(std::uint32_t gpu, std::vector<std::uint64_t>& tokens) const = 0;
  /// Steps of the whole run as far as known, > 0: for progress.
  [[nodiscard]] virtual std::uint64_t steps() const = 0;
  /// Requests, the source's own metrics, and what does not hold. `end`: of the last step.
  virtual void finish(std::int64_t end, run::RunData& data, std::vector<std::string>& notes,
                      std::vector<std::string>& violations) = 0;
};

}  // namespace switchyard::sim
