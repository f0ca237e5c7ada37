// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "engine/model/accounting.hpp"
#include "sim/loop/step_loop.hpp"
#include "sim/network/collectives.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {

void Simulator::compose_step(std::uint64_t step) {
  const std::uint32_t fresh = s_.workload.tokens;
  const std::size_t n = std::size_t{s_.workload.batch} * fresh;
  tokens_.sequence.resize(n);
  tokens_.position.resize(n);
  tokens_.phase.assign(n, s_.workload.kind == WorkloadKind::kDecode ? 1 : 0);
  tokens_.rank.resize(n);
  tokens_.ordinal.resize(n);
  sequences_.assign(gpus_, {});
  tokens_of_.assign(gpus_, 0);
  routed_of_.assign(gpus_, 0);
  std::size_t i = 0;
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    const std::uint32_t g = home(b);
    const std::uint64_t had = s_.workload.context + step * fresh;
    for (std::uint32_t member = g; member < g + s_.parallel.tp; ++member) {
      sequences_[member].push_back({fresh, had});
      tokens_of_[member] += fresh;
      routed_of_[member] += uses_router(b) ? fresh : 0;
    }
    for (std::uint32_t j = 0; j < fresh; ++j, ++i) {
      tokens_.sequence[i] = b;
      tokens_.position[i] = static_cast<std::uint32_t>(had + j);
      tokens_.rank[i] = static_cast<std::uint16_t>(g);
      tokens_.ordinal[i] = static_cast<std::uint32_t>(step * fresh + j);
    }
  }
}

/// The all-reduce of one hidden state per token of each group, side by side.
void Simulator::compose_reduce() {
  reduce_.clear();
  if (!sharded()) return;
  std::vector<std::uint32_t> members(s_.parallel.tp);
  for (std::uint32_t first = 0; first < gpus_; first += s_.parallel.tp) {
    std::iota(members.begin(), members.end(), first);
    const auto phases = network::collective(
        network::Collective::kAllReduce, network::collective_of(s_.network.collective),
        model::dtype_bytes(s_.activations, tokens_of_[first] * s_.model.hidden_size), members,
        node_);
    if (reduce_.size() < phases.size()) {
      reduce_.resize(phases.size(), std::vector<std::uint64_t>(std::size_t{gpus_} * gpus_, 0));
    }
    for (std::size_t p = 0; p < phases.size(); ++p) {
      for (const network::Transfer& t : phases[p]) {
        reduce_[p][std::size_t{t.src} * gpus_ + t.dst] += t.bytes;
      }
    }
  }
}

std::uint64_t Simulator::kv_bytes_of(std::uint64_t tokens) const {
  // Whole pages of kv.block tokens; windowed layers keep what model::kv_bytes says.
  const std::uint64_t block = s_.memory.kv_block;
  const std::uint64_t held = (tokens + block - 1) / block * block;
  std::uint64_t values = 0;
  const std::uint64_t per_token = model::kv_values_per_token_layer(shard_);
  for (const model::LayerSpec& l : s_.model.layers) {
    values += per_token * (l.sliding_window == 0 ? held : std::min(held, l.sliding_window));
  }
  return model::dtype_bytes(s_.dtype.kv, values);
}

void Simulator::grow_kv(std::uint64_t step) {
  const std::int64_t now = *std::max_element(ready_.begin(), ready_.end());
  const auto index = static_cast<std::uint32_t>(step);
  kv_tokens_.resize(s_.workload.batch, 0);
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    const std::uint64_t want = s_.workload.context + (step + 1) * s_.workload.tokens;
    const std::uint64_t have = kv_tokens_[b] == 0 ? 0 : kv_bytes_of(kv_tokens_[b]);
    const std::uint64_t more = kv_bytes_of(want) - have;
    kv_tokens_[b] = want;
    if (more == 0) continue;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (holds_kv(g, b)) ledger_.allocate(g, MemoryCategory::kKv, more, now, index, "KV pages");
    }
  }
}

void Simulator::note_tokens(std::uint64_t step) {
  const run::StepScalars& sc = record_.scalars;
  if (first_start_ps_ < 0) {
    first_start_ps_ = sc.start_ps;
    first_end_ps_ = sc.end_ps;
  }
  if (s_.run.detail != scenario::Detail::kTokens || s_.workload.kind != WorkloadKind::kDecode) {
    return;
  }
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    run::TokenRecord t;
    t.request = b;
    t.index = static_cast<std::uint32_t>(step - s_.workload.warmup_steps);
    t.step = static_cast<std::uint32_t>(step);
    t.time_ps = sc.end_ps;
    sink_.data().tokens.push_back(t);
  }
}

void Simulator::note_requests() {
  // Decode: the batch is caught in the middle of its answers, so the first token here is not the
  // answer's first and the arrival is unknown. Prefill: the chunks of all steps make one prompt.
  const bool decode = s_.workload.kind == WorkloadKind::kDecode;
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    run::RequestRecord r;
    r.id = b;
    r.arrival_ps = decode ? -1 : first_start_ps_;
    r.first_token_ps = decode ? first_end_ps_ : ready_[0];
    r.end_ps = ready_[0];
    r.prompt_tokens = decode ? s_.workload.context : s_.workload.tokens * s_.workload.steps;
    r.output_tokens = decode ? s_.workload.steps : 1;
    r.outcome = run::RequestOutcome::kFinished;
    sink_.data().requests.push_back(r);
  }
}

}  // namespace switchyard::sim
