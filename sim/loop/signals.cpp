// SPDX-License-Identifier: Apache-2.0
// What the policies of a simulation see, kept for the engine (SimulationExtras::signals).
#include <fmt/format.h>

#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

void Simulator::begin_signals(SignalTable* table) {
  signals_ = table;
  if (table == nullptr) return;
  if (layers_ == 0) {
    throw InputError("signals", "the model has no MoE layer, so nothing reads signals");
  }
  if (s_.workload.serves() && s_.workload.serving.front_end.prefill_replicas > 0) {
    throw InputError("signals",
                     "unsupported with prefill replicas: prompt and answer of a sequence see two "
                     "machines",
                     "use workload.front_end.prefill_replicas = 0");
  }
  if (defers_) {
    throw InputError("signals",
                     "unsupported with policy.capacity.queue = \"defer\": the engine has no token "
                     "that stays behind in the middle of the layers",
                     "use queue = \"wave\"");
  }
  if (staged() || s_.network.two_batch) {
    throw InputError("signals",
                     "unsupported with parallel.pp and network.two_batch: parts of a step decide "
                     "by themselves",
                     "use one part");
  }
  if (s_.memory.sample_every.ps() > 0) {
    throw InputError("signals",
                     "unsupported with memory.sample_every: the table has one sample a step",
                     "leave it out");
  }
  *table = SignalTable{};
  // An alarm may change the policy later; the table has one shape.
  signal_queues_ = reads_queue_levels(policy_);
  signal_longest_ = reads_longest_queue(policy_);
  table->gpus = gpus_;
  table->experts = experts_;
  const bool cycled =
      trace_ != nullptr && s_.workload.routing.layers == scenario::TraceLayers::kCycle;
  // A cycled trace has fewer layers than the model: the first ones that follow it speak for all.
  table->layers = cycled ? std::min(trace_->header.layer_count(), layers_) : layers_;
}

void Simulator::note_signals() {
  signalled_ = signals_ != nullptr && tokens_.size() > 0;
  if (!signalled_) return;
  SignalTable& t = *signals_;
  // Copies of the experts in the replica that steps.
  const scenario::Parallel& own = layout();
  const std::uint32_t all_copies = own.copies();
  const std::uint32_t first_copy = (plan_.first_gpu - own.first_gpu) / own.copy_gpus();
  const std::uint32_t last_copy = (plan_.last_gpu - own.first_gpu) / own.copy_gpus();
  if (replicas() > 1) {
    t.replica.push_back(plan_.engine);
    for (const PlannedSequence& q : plan_.sequences) {
      if (t.sequence_replica.size() <= q.id) t.sequence_replica.resize(q.id + 1, kNoReplica);
      t.sequence_replica[q.id] = plan_.engine;
    }
    signal_rows_[step_] = t.start_ps.size();
  }
  t.decodes.push_back(std::find(tokens_.phase.begin(), tokens_.phase.end(),
                                static_cast<std::uint8_t>(switchyard::Phase::kDecode)) !=
                              tokens_.phase.end()
                          ? 1
                          : 0);
  t.start_ps.push_back(record_.scalars.start_ps);  // step_start_ is what the policy saw
  t.used.insert(t.used.end(), memory_used_.begin(), memory_used_.end());
  t.elastic.insert(t.elastic.end(), memory_elastic_.begin(), memory_elastic_.end());
  // GPUs of each expert, all copies, layer by layer.
  std::vector<std::vector<std::uint32_t>> places;
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      std::vector<std::uint32_t> of;
      for (std::uint32_t q = first_copy; q < last_copy; ++q) {
        for (std::uint32_t i = 0; i < map().row(l).copies(e); ++i) {
          of.push_back(map().gpu_of(l, e, own.first_of_copy(q), i));
        }
      }
      const std::size_t first = std::size_t{l % t.layers} * experts_ + e;
      if (l < t.layers) {
        places.push_back(std::move(of));
      } else if (of != places[first]) {
        throw InputError(
            "signals",
            fmt::format("unsupported: MoE layers {} and {} follow one layer of the "
                        "trace, but place expert {} differently",
                        s_.model.moe_layers()[l % t.layers], s_.model.moe_layers()[l], e),
            "use a placement that is the same in every layer");
      }
    }
  }
  std::vector<std::uint32_t> first_gpu, gpu;
  for (std::uint32_t l = 0; l < t.layers; ++l) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      const std::vector<std::uint32_t>& of = places[std::size_t{l} * experts_ + e];
      first_gpu.push_back(static_cast<std::uint32_t>(gpu.size()));
      gpu.insert(gpu.end(), of.begin(), of.end());
    }
    first_gpu.push_back(static_cast<std::uint32_t>(gpu.size()));
  }
  // The last placement again, or a new one. Offsets are absolute, so a new one is shifted.
  const std::size_t row = first_gpu.size();
  const auto shift = t.first_gpu.empty() ? 0U : t.first_gpu[t.first_gpu.size() - row];
  const bool same = !t.first_gpu.empty() && t.gpu.size() - shift == gpu.size() &&
                    std::equal(gpu.begin(), gpu.end(), t.gpu.begin() + shift) &&
                    std::equal(first_gpu.begin(), first_gpu.end(),
                               t.first_gpu.end() - static_cast<std::ptrdiff_t>(row),
                               [&](std::uint32_t a, std::uint32_t b) { return a + shift == b; });
  if (!same) {
    const auto base = static_cast<std::uint32_t>(t.gpu.size());
    for (const std::uint32_t at : first_gpu) t.first_gpu.push_back(base + at);
    t.gpu.insert(t.gpu.end(), gpu.begin(), gpu.end());
  }
  t.placement.push_back(t.placements() - 1);
  // Queues of several copies of the experts: the shortest of an expert, as for memory levels, and
  // the longest of the layer.
  if (signal_queues_) {
    for (std::uint32_t l = 0; l < t.layers; ++l) {
      for (std::uint32_t e = 0; e < experts_; ++e) {
        float least = 0;
        for (std::uint32_t q = first_copy; q < last_copy; ++q) {
          const std::vector<float>& level =
              state_.layer(std::size_t{l} * all_copies + q).queue_level;
          const float here = level.empty() ? 0.0F : level[e];
          least = q == first_copy ? here : std::min(least, here);
        }
        t.queue.push_back(least);
      }
    }
  }
  if (signal_longest_) {
    for (std::uint32_t l = 0; l < t.layers; ++l) {
      std::uint32_t longest = 0;
      for (std::uint32_t q = first_copy; q < last_copy; ++q) {
        longest = std::max(longest, state_.layer(std::size_t{l} * all_copies + q).longest_queue);
      }
      t.longest_queue.push_back(longest);
    }
  }
}

void Simulator::end_signals(std::int64_t end_ps) {
  if (signalled_) signals_->end_ps.push_back(end_ps);
}

void Simulator::settle_signals(std::uint64_t step, std::int64_t end_ps) {
  const auto row = signal_rows_.find(step);
  if (row != signal_rows_.end()) signals_->end_ps[row->second] = end_ps;
}

}  // namespace switchyard::sim
