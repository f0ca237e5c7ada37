// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/fixed_batch.hpp"

namespace switchyard::sim {
namespace {

using scenario::WorkloadKind;

class FixedBatch final : public BatchSource {
 public:
  explicit FixedBatch(const scenario::Scenario& s)
      : s_(s),
        decode_(s.workload.kind == WorkloadKind::kDecode),
        gpus_(static_cast<std::uint32_t>(s.hardware.gpu_count())) {}

  bool next(std::uint64_t step, StepPlan& plan) override {
    if (step == steps()) return false;
    const scenario::Workload& w = s_.workload;
    plan = StepPlan{};
    plan.last_gpu = gpus_;
    plan.kind = decode_ ? run::StepKind::kDecode : run::StepKind::kPrefill;
    plan.warmup = step < w.warmup_steps;
    const std::uint64_t had = w.context + step * w.tokens;
    for (std::uint32_t b = 0; b < w.batch; ++b) {
      PlannedSequence q;
      q.id = b;
      q.gpu = home(b);
      q.fresh = w.tokens;
      q.had = had;
      q.origin = w.context;
      q.prompt = decode_ ? w.context : UINT64_MAX;
      q.prefill = !decode_;
      plan.sequences.push_back(q);
      plan.kv.push_back({q.gpu, step == 0 ? 0 : had, had + w.tokens});
    }
    held_ = had + w.tokens;
    return true;
  }

  void done(std::uint64_t step, const StepPlan& plan, std::int64_t start, std::int64_t end,
            run::RunData& data) override {
    if (plan.warmup) return;
    if (first_start_ps_ < 0) {
      first_start_ps_ = start;
      first_end_ps_ = end;
    }
    if (s_.run.detail != scenario::Detail::kTokens || !decode_) return;
    for (const PlannedSequence& q : plan.sequences) {
      run::TokenRecord t;
      t.request = q.id;
      t.index = static_cast<std::uint32_t>(step - s_.workload.warmup_steps);
      t.step = static_cast<std::uint32_t>(step);
      t.time_ps = end;
      data.tokens.push_back(t);
    }
  }

  void holders(std::uint32_t gpu, std::vector<std::uint64_t>& tokens) const override {
    tokens.clear();
    for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
      if (home(b) == gpu) tokens.push_back(held_);
    }
  }

  [[nodiscard]] std::uint64_t steps() const override {
    return std::uint64_t{s_.workload.warmup_steps} + s_.workload.steps;
  }

  void finish(std::int64_t end, run::RunData& data, std::vector<std::string>&,
              std::vector<std::string>&) override {
    const scenario::Workload& w = s_.workload;
    for (std::uint32_t b = 0; b < w.batch; ++b) {
      run::RequestRecord r;
      r.id = b;
      r.arrival_ps = decode_ ? -1 : first_start_ps_;
      r.first_token_ps = decode_ ? first_end_ps_ : end;
      r.end_ps = end;
      r.prompt_tokens = decode_ ? w.context : w.tokens * w.steps;
      r.output_tokens = decode_ ? w.steps : 1;
      r.outcome = run::RequestOutcome::kFinished;
      data.requests.push_back(r);
    }
  }

 private:
  [[nodiscard]] std::uint32_t home(std::uint32_t b) const {
    const scenario::Parallel& p = s_.parallel;
    if (p.attention == scenario::AttentionPlacement::kHub) return p.hub;
    return b % (gpus_ / p.tp) * p.tp;
  }

  const scenario::Scenario& s_;
  bool decode_;
  std::uint32_t gpus_;
  std::uint64_t held_ = 0;
  std::int64_t first_start_ps_ = -1, first_end_ps_ = -1;  // first measured step
};

}  // namespace

std::unique_ptr<BatchSource> make_fixed_batch(const scenario::Scenario& scenario) {
  return std::make_unique<FixedBatch>(scenario);
}

}  // namespace switchyard::sim
