// SPDX-License-Identifier: Apache-2.0
// memory.kv.decode = "merge": decode attention goes to the keys and values (M33).
//
// A decode token of a sequence whose cache lies on h GPUs beside its home: the home computes its
// own part as before, sends the query to each of them (heads · d_qk values in the activations'
// format), each computes attention over the tokens it holds and returns, per head, the part's
// weighted sum, its maximum and its sum of exponentials in FP32: heads · (d_v + 2) · 4 bytes. The
// home adds the h parts to its own. d_qk and d_v are head_dim; with MLA in the absorbed form d_qk =
// rank + rope and d_v = rank. Against that, pull moves the keys and values of every token.
//
// A tensor-parallel group holds and answers together, each GPU for its shard of the heads.
//
// Chunks of prompts in the same step pull: their keys and values serve many queries.
//
// Not modelled: the home's own part beside the way of the queries (it comes before it), holders
// that merge among each other before they answer.
#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

std::uint64_t Simulator::part_values() const {
  const std::uint64_t d =
      shard().attention == model::AttentionKind::kMla ? shard().kv_lora_rank : shard().head_dim;
  return shard().num_heads * (d + 2);
}

void Simulator::begin_merge() {
  merge_on_ = s_.memory.kv_decode == scenario::KvDecode::kMerge;
  if (!merge_on_) return;
  merge_work_.assign(gpus_, {});
  merge_parts_.assign(gpus_, 0);
  merge_seen_.assign(gpus_, 0);
  merge_queries_.assign(std::size_t{gpus_} * gpus_, 0);
  merge_results_.assign(std::size_t{gpus_} * gpus_, 0);
  merge_home_ = sequences_;
}

void Simulator::keep_at_home(const PlannedSequence& q, std::uint64_t tokens) {
  if (!merge_on_) return;
  // The sequences of a home stand in the order of the plan.
  const std::uint32_t home = home_of(q);
  const std::size_t place = merge_seen_[home]++;
  for (std::uint32_t i = 0; merges(q) && i < layout().tp; ++i) {
    merge_home_[home + i][place].context = tokens;
  }
}

void Simulator::merge_with(const PlannedSequence& q, std::uint32_t holder, std::uint64_t tokens) {
  if (tokens == 0) return;
  const bool mla = shard().attention == model::AttentionKind::kMla;
  const std::uint64_t query =
      shard().num_heads *
      (mla ? shard().kv_lora_rank + shard().qk_rope_head_dim : shard().head_dim);
  const std::uint32_t home = home_of(q);
  for (std::uint32_t i = 0; i < layout().tp; ++i) {  // Each with its shard of the heads.
    merge_queries_[std::size_t{home + i} * gpus_ + holder + i] +=
        model::dtype_bytes(s_.activations, q.fresh * query);
    merge_results_[std::size_t{holder + i} * gpus_ + home + i] += q.fresh * part_values() * 4;
    merge_parts_[home + i] += q.fresh;
    merge_work_[holder + i].push_back({q.fresh, tokens});
  }
}

void Simulator::finish_merge(std::uint32_t moe, std::int64_t& slowest) {
  if (std::all_of(merge_parts_.begin(), merge_parts_.end(), [](auto n) { return n == 0; })) return;
  std::int64_t longest = 0;
  move_values(moe, {merge_queries_});
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    longest = std::max(longest,
                       work(g, run::Phase::kAttention, cost_[g].partial_attention(merge_work_[g])));
  }
  slowest += longest;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    ledger_.allocate(g, MemoryCategory::kBuffers, merge_parts_[g] * part_values() * 4, ready_[g],
                     static_cast<std::uint32_t>(step_), "parts of the softmax");
  }
  move_values(moe, {merge_results_});
  longest = 0;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    longest = std::max(longest, work(g, run::Phase::kAttention,
                                     cost_[g].merge_parts(merge_parts_[g], part_values())));
    ledger_.release(g, MemoryCategory::kBuffers, merge_parts_[g] * part_values() * 4, ready_[g],
                    static_cast<std::uint32_t>(step_), "parts of the softmax are added up");
  }
  slowest += longest;
}

}  // namespace switchyard::sim
