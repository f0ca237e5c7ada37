// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/fixed_batch.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard::sim {
namespace {

using scenario::WorkloadKind;

class FixedBatch final : public BatchSource {
 public:
  explicit FixedBatch(const scenario::Scenario& s)
      : s_(s),
        decode_(s.workload.kind == WorkloadKind::kDecode),
        gpus_(static_cast<std::uint32_t>(s.hardware.gpu_count())),
        sequences_(s.workload.batch),
        at_home_(gpus_) {
    for (std::uint32_t b = 0; b < s.workload.batch; ++b) {
      sequences_[b].first_home = sequences_[b].home = home(b);
      sequences_[b].cached = sequences_[b].wanted = s.workload.context;
      at_home_[home(b)].push_back(b);
    }
  }

  bool await(std::uint64_t step, StepPlan& plan) override {
    if (step == steps()) return false;
    plan.engine = plan.first_gpu = 0;
    plan.last_gpu = gpus_;
    plan.earliest_ps = 0;
    return true;
  }

  bool plan(std::uint64_t step, StepPlan& plan) override {
    const scenario::Workload& w = s_.workload;
    plan = StepPlan{};
    plan.last_gpu = gpus_;
    plan.kind = decode_ ? run::StepKind::kDecode : run::StepKind::kPrefill;
    plan.warmup = step < w.warmup_steps;
    plan.kv = std::move(freed_);
    freed_.clear();
    for (std::uint32_t b = 0; b < w.batch; ++b) {
      Sequence& have = sequences_[b];
      PlannedSequence q;
      q.id = b;
      q.gpu = have.home;
      q.had = have.cached;
      have.lags = have.cached < have.wanted;
      if (have.waits) {
        // The same new tokens go on where they had to stop.
        q.fresh = w.tokens;
        q.had = have.cached - w.tokens;
        q.origin = q.prompt = w.context;
        q.resumes = true;
        have.cached -= w.tokens;
      } else if (have.lags) {
        q.fresh = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(s_.faults.recompute_chunk, have.wanted - have.cached));
        q.prefill = true;
        q.samples = false;
        if (!decode_) q.prompt = UINT64_MAX;
        recomputed_ += q.fresh;
        if (decode_) plan.kind = run::StepKind::kMixed;
      } else {
        q.fresh = w.tokens;
        q.origin = w.context;
        q.prompt = decode_ ? w.context : UINT64_MAX;
        q.prefill = !decode_;
        // Steps of a prefill are chunks of one prompt: the last one samples.
        q.samples = decode_ || step + 1 == steps();
        have.wanted += q.fresh;
      }
      have.cached += q.fresh;
      plan.sequences.push_back(q);
      plan.kv.push_back({q.gpu, have.paged, have.cached});
      have.paged = have.cached;
    }
    return true;
  }

  void done(std::uint64_t step, const StepPlan& plan, std::int64_t start, std::int64_t end,
            run::RunData& data) override {
    for (const PlannedSequence& q : plan.sequences) sequences_[q.id].waits = q.deferred;
    if (plan.warmup) return;
    if (first_start_ps_ < 0) first_start_ps_ = start;
    for (const PlannedSequence& q : plan.sequences) {
      Sequence& have = sequences_[q.id];
      if (have.lags || q.deferred) continue;
      if (s_.run.detail == scenario::Detail::kTokens && decode_) {
        run::TokenRecord t;
        t.request = q.id;
        t.index = have.made;
        t.step = static_cast<std::uint32_t>(step);
        t.time_ps = end;
        data.tokens.push_back(t);
      }
      ++have.made;
      if (have.first_ps < 0) have.first_ps = end;
      have.last_ps = end;
    }
  }

  void holders(std::uint32_t gpu, std::vector<std::uint64_t>& tokens) const override {
    tokens.clear();
    for (const std::uint32_t b : at_home_[gpu]) {
      if (sequences_[b].paged > 0) tokens.push_back(sequences_[b].paged);
    }
  }

  [[nodiscard]] std::uint64_t steps() const override {
    return std::uint64_t{s_.workload.warmup_steps} + s_.workload.steps;
  }

  void finish(std::int64_t end, run::RunData& data, std::vector<std::string>& notes,
              std::vector<std::string>&) override {
    const scenario::Workload& w = s_.workload;
    for (std::uint32_t b = 0; b < w.batch; ++b) {
      run::RequestRecord r;
      r.id = b;
      r.arrival_ps = decode_ ? -1 : first_start_ps_;
      // With queue = "defer" not every step gives a token of every sequence.
      r.first_token_ps = decode_ ? sequences_[b].first_ps : end;
      r.end_ps = decode_ && sequences_[b].made > 0 ? sequences_[b].last_ps : end;
      r.prompt_tokens = decode_ ? w.context : w.tokens * sequences_[b].made;
      r.output_tokens = decode_ ? sequences_[b].made : 1;
      r.outcome = decode_ && sequences_[b].made == 0 ? run::RequestOutcome::kRunning
                                                     : run::RequestOutcome::kFinished;
      data.requests.push_back(r);
    }
    if (s_.faults.on()) {
      data.metrics.push_back({"tokens recomputed", static_cast<double>(recomputed_), ""});
      if (recomputed_ > 0) {
        notes.push_back(fmt::format(
            "{} tokens of lost KV pages were computed again; their routing is that of the trace's "
            "first rows, or synthetic",
            recomputed_));
      }
    }
  }

  std::vector<MovedSequence> evacuate(std::uint32_t gpu, std::span<const std::uint32_t> to,
                                      bool keep_kv) override {
    std::vector<MovedSequence> moved;
    for (std::uint32_t b = 0; b < sequences_.size(); ++b) {
      if (sequences_[b].home != gpu) continue;
      const auto busy = [&](std::uint32_t g) {
        return std::count_if(sequences_.begin(), sequences_.end(),
                             [&](const Sequence& x) { return x.home == g; });
      };
      std::uint32_t best = to[0];
      auto fewest = busy(best);
      for (const std::uint32_t g : to) {
        const auto n = busy(g);
        if (n < fewest) {
          best = g;
          fewest = n;
        }
      }
      moved.push_back(move(b, best, keep_kv));
    }
    return moved;
  }

  void lose_kv(std::uint32_t gpu) override {
    for (Sequence& have : sequences_) {
      if (have.home == gpu) lose(have);
    }
  }

  void lose_pages(
      const std::function<bool(std::uint32_t, std::uint32_t, std::uint64_t)>& lost) override {
    for (std::uint32_t b = 0; b < sequences_.size(); ++b) {
      Sequence& have = sequences_[b];
      if (have.paged == 0 || !lost(b, have.home, have.paged)) continue;
      freed_.push_back({have.home, have.paged, 0, b});
      lose(have);
    }
  }

  std::vector<MovedSequence> come_home(std::uint32_t gpu) override {
    std::vector<MovedSequence> moved;
    for (std::uint32_t b = 0; b < sequences_.size(); ++b) {
      if (sequences_[b].first_home == gpu && sequences_[b].home != gpu) {
        moved.push_back(move(b, gpu, true));
      }
    }
    return moved;
  }

  std::vector<MovedSequence> move_one(std::uint32_t from, std::uint32_t to) override {
    std::uint32_t longest = UINT32_MAX;
    for (std::uint32_t b = 0; b < sequences_.size(); ++b) {
      if (sequences_[b].home == from &&
          (longest == UINT32_MAX || sequences_[b].paged > sequences_[longest].paged)) {
        longest = b;
      }
    }
    if (longest == UINT32_MAX) return {};
    return {move(longest, to, true)};
  }

 private:
  struct Sequence {
    std::uint32_t home = 0, first_home = 0;
    std::uint64_t cached = 0;  // Tokens in its KV cache.
    std::uint64_t wanted = 0;  // Tokens it has; more than cached: those are computed again.
    std::uint64_t paged = 0;   // Tokens whose pages its home holds.
    std::uint32_t made = 0;    // Measured steps that brought it new tokens.
    bool lags = false;         // Computes lost tokens in the step under way.
    bool waits = false;        // Its new tokens have not passed all layers (queue = defer).
    std::int64_t first_ps = -1, last_ps = -1;  // Its first and last measured token.
  };

  /// Nothing of its cache is left. A token on its way through the layers begins anew.
  void lose(Sequence& have) {
    if (have.waits) have.wanted -= s_.workload.tokens;
    have.waits = false;
    have.cached = have.paged = 0;
  }

  MovedSequence move(std::uint32_t b, std::uint32_t to, bool keep_kv) {
    Sequence& have = sequences_[b];
    const MovedSequence moved{b, have.home, to, keep_kv ? have.paged : 0};
    if (!keep_kv) lose(have);
    if (keep_kv && have.paged > 0) freed_.push_back({have.home, have.paged, 0});
    have.paged = 0;
    std::erase(at_home_[have.home], b);
    at_home_[to].push_back(b);
    have.home = to;
    return moved;
  }

  [[nodiscard]] std::uint32_t home(std::uint32_t b) const {
    const scenario::Parallel& p = s_.parallel;
    if (p.attention == scenario::AttentionPlacement::kHub) return p.hub;
    return b % p.dp * p.tp;  // Of the first stage.
  }

  const scenario::Scenario& s_;
  bool decode_;
  std::uint32_t gpus_;
  std::vector<Sequence> sequences_;
  std::vector<std::vector<std::uint32_t>> at_home_;  // [G] sequences, in any order
  std::vector<KvChange> freed_;  // Of sequences that moved; the next plan says so.
  std::uint64_t recomputed_ = 0;
  std::int64_t first_start_ps_ = -1;  // first measured step
};

}  // namespace

std::unique_ptr<BatchSource> make_fixed_batch(const scenario::Scenario& scenario) {
  return std::make_unique<FixedBatch>(scenario);
}

}  // namespace switchyard::sim
