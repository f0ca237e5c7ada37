// SPDX-License-Identifier: Apache-2.0
// parallel.pp > 1: stages of a pipeline (M41).
//
// Stage s has the layers ⌊s·L/pp⌋ … ⌊(s+1)·L/pp⌋ − 1 and the GPUs from s·dp·tp on; the first one
// also embeds, the last one has the head. The batch is dealt into micro-batches, sequence i of a
// home to micro-batch i mod m. GPU g of a stage sends T·H·a bytes of a micro-batch to its
// counterpart in the next stage when it has computed them, beside its work on the next
// micro-batch: a GPU's port carries one after the other, path latency + bytes / bandwidth each. The
// receiver begins when they are there and it is free. Sampled tokens travel back, 4 bytes each. The
// step ends when the last stage has ended the last micro-batch and its tokens are back; the next
// one begins then, so for equal stages and free transfers pp stages wait (pp−1)/(m+pp−1) of the
// time.
//
// Each micro-batch is a batch to the policy: capacities and windows count it by itself. Weights are
// read once per micro-batch.
//
// Transfers between stages and the exchanges inside them share links (auto, coflow, flow).
//
// Not modelled: steps that follow each other without draining, interleaved (virtual) stages, stages
// with a stated share of the layers.
#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

std::uint32_t Simulator::stage_of_moe(std::uint32_t moe) const {
  if (!staged()) return 0;
  const std::size_t layers = s_.model.layers.size();
  const std::uint32_t layer = s_.model.moe_layers()[moe];
  std::uint32_t stage = 0;
  while (stage_begin(layers, layout().pp, stage + 1) <= layer) ++stage;
  return stage;
}

void Simulator::pipeline() {
  const std::uint32_t pp = layout().pp, m = layout().micro_batches;
  const std::uint32_t width = layout().stage_gpus();
  const std::size_t layers = s_.model.layers.size();
  std::vector<std::uint64_t> matrix(std::size_t{gpus_} * gpus_), received(gpus_, 0);
  const auto at_pair = [&](std::uint32_t from, std::uint32_t to) -> std::uint64_t& {
    return matrix[std::size_t{from} * gpus_ + to];
  };
  const auto send = [&] {
    std::int64_t duration = 0, floor = 0;
    issue(run::Phase::kCollective, run::kNone, {matrix}, duration, floor, Among::kDirect, true);
  };
  wire_.assign(gpus_, 0);
  wire_in_.assign(gpus_, 0);
  wire_path_.assign(gpus_, Path{});
  wire_in_path_.assign(gpus_, Path{});
  // Sampled tokens on their way to the first stage, which goes on meanwhile.
  std::vector<std::int64_t> back_begin, back_arrival;
  std::vector<Path> back_path;
  bool first = true;
  for (std::uint32_t micro = 0; micro < m; ++micro) {
    for (std::uint32_t stage = 0; stage < pp; ++stage) {
      compose_part(micro, m, stage);
      if (tokens_.size() == 0) break;
      compose_reduce();
      const std::uint32_t begin = stage * width;
      if (stage > 0) {
        std::fill(matrix.begin(), matrix.end(), 0);
        for (std::uint32_t g = begin; g < begin + width; ++g) {
          // Sequence parallelism: a GPU has its share of the group's tokens.
          const std::uint64_t t = tokens_of_[g], n = shares(), i = g % n;
          const std::uint64_t rows = t * (i + 1) / n - t * i / n;
          received[g] = at_pair(g - width, g) =
              model::dtype_bytes(s_.activations, rows * s_.model.hidden_size);
        }
        send();
        await_exchange(run::Phase::kCollective);
        for (std::uint32_t g = begin; g < begin + width; ++g) {
          ledger_.allocate(g, MemoryCategory::kBuffers, received[g], ready_[g],
                           static_cast<std::uint32_t>(step_), "hidden states of a micro-batch");
        }
      }
      for (std::uint32_t g = begin; !first && g < begin + width; ++g) {
        work(g, run::Phase::kHost, cost_[g].step_launch());
      }
      if (stage == 0) embed();
      const std::size_t from = stage_begin(layers, pp, stage);
      const std::size_t beyond = stage_begin(layers, pp, stage + 1);
      if (!s_.network.two_batch || !two_batch(micro, m, stage, from, beyond)) {
        run_layers(from, beyond);
      }
      for (std::uint32_t g = begin; stage > 0 && g < begin + width; ++g) {
        ledger_.release(g, MemoryCategory::kBuffers, received[g], ready_[g],
                        static_cast<std::uint32_t>(step_), "the stage ends");
      }
      if (stage + 1 < pp) continue;
      head();
      std::fill(matrix.begin(), matrix.end(), 0);
      for (std::uint32_t g = begin; g < begin + width; g += layout().tp) {
        for (std::uint32_t i = 0; i < layout().tp; ++i) {
          at_pair(g + i, g + i - begin) = 4 * sampled_of_[g];
        }
      }
      send();
      back_begin = begin_;
      back_arrival = arrival_;
      back_path = arrival_path_;
    }
    first = first && tokens_.size() == 0;
  }
  // The ports keep the order, so what was sent last arrives last.
  for (std::uint32_t g = 0; g < width; ++g) {
    begin_[g] = back_begin[g];
    arrival_[g] = back_arrival[g];
    arrival_path_[g] = back_path[g];
  }
  std::fill(arrival_.begin() + width, arrival_.end(), 0);
  await_exchange(run::Phase::kCollective);
}

}  // namespace switchyard::sim
