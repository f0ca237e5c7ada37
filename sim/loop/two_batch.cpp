// SPDX-License-Identifier: Apache-2.0
// network.two_batch: two halves of the batch, the exchanges of one beside the work of the other.
//
// Sequence i of a GPU is of half i mod 2. A GPU does one thing at a time and its wires carry one
// exchange at a time, both in this order, l = layer:
//
//   work   front A(l)  front B(l)  experts A(l)  experts B(l)  front A(l+1) …
//   wires            dispatch A(l)  dispatch B(l)  combine A(l)  combine B(l) …
//
// front = weighted sum of the layer before, attention, router, shared experts (and dense layers);
// work begins when the one before has ended and its half's exchange has arrived; an exchange when
// its half's work has ended on all participants and the wires are free. Kernels of the layers have
// 1 − comm_sms of the SMs and, but for their launches, take so much longer. Head and embedding are
// of the whole batch. A step in which one half would have no token is not divided.
//
// What a GPU shows: its work, and as dispatch or combine the exchanges it had to wait for from
// their begin on; before, it waits. Each half is a batch to the policy (capacities, windows), reads
// the weights it touches, and has its own buffers in memory.
//
// Not modelled: dispatch and combine at the same time, more than two parts, tensor-parallel groups.
#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

void Simulator::swap_half() {
  std::swap(tokens_, other_.tokens);
  sequences_.swap(other_.sequences);
  tokens_of_.swap(other_.tokens_of);
  routed_of_.swap(other_.routed_of);
  sampled_of_.swap(other_.sampled_of);
  rows_of_.swap(other_.rows_of);
  routed_rows_of_.swap(other_.routed_rows_of);
  buffers_.swap(other_.buffers);
  activations_.swap(other_.activations);
  before_dispatch_.swap(other_.before_dispatch);
  std::swap(decision_, other_.decision);
  std::swap(traffic_, other_.traffic);
  begin_.swap(other_.begin);
  arrival_.swap(other_.arrival);
  arrival_path_.swap(other_.path);
}

/// An exchange on the wires' clock; nobody waits here. It begins when the work of all participants
/// has ended, or with only_senders that of those who send; only the others await it then.
void Simulator::issue(run::Phase phase, std::uint32_t moe,
                      const std::vector<std::vector<std::uint64_t>>& matrices,
                      std::int64_t& duration, std::int64_t& floor, Among among, bool only_senders) {
  arrival_.assign(gpus_, 0);
  begin_.assign(gpus_, 0);
  arrival_path_ = path_;
  std::vector<std::int64_t> clock(gpus_);
  std::vector<Path> paths(gpus_);  // To the clocks.
  std::vector<std::uint8_t> starts(gpus_, 1), under_way(gpus_, 0);
  bool first = true;
  for (const std::vector<std::uint64_t>& matrix : matrices) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      const auto row = matrix.begin() + static_cast<std::ptrdiff_t>(std::size_t{g} * gpus_);
      starts[g] =
          !only_senders || std::any_of(row, row + gpus_, [](std::uint64_t b) { return b > 0; });
      // Between stages a GPU may still receive what it will need later while it sends.
      const std::int64_t free = starts[g] != 0 ? wire_[g] : wire_in_[g];
      const Path& to_free = starts[g] != 0 ? wire_path_[g] : wire_in_path_[g];
      if (first) {
        const bool works = starts[g] != 0 && ready_[g] >= free;
        clock[g] = works ? ready_[g] : free;
        paths[g] = works ? path_[g] : to_free;
      } else if (free > clock[g]) {
        clock[g] = free;
        paths[g] = to_free;
      }
    }
    first = false;
    exchange_.run(matrix, clock, timings_, among, ready_);
    std::int64_t longest = 0, highest = 0;
    for (const ExchangeTiming& t : timings_) {
      longest = std::max(longest, t.duration_ps);
      highest = std::max(highest, t.floor_ps);
      ++exchanges_;
      extrapolated_ += t.extrapolated ? 1 : 0;
      count_links(t);
      // The way to the end: that of the one that came last, its work or its busy wires, and this.
      const Activity what = note_straggler(moe, phase, t);
      const Path path_of_last = paths[t.last_ready];
      Path joint;
      std::int64_t joint_end = -1;
      for (std::uint32_t g = 0; g < gpus_; ++g) {
        if (t.participates[g] == 0) continue;
        check_time(t.end_ps[g]);
        if (under_way[g] == 0) begin_[g] = t.begin_ps;
        under_way[g] = 1;
        if (t.end_ps[g] != joint_end) {
          joint = path_of_last;
          joint_end = t.end_ps[g];
          extend(joint, what, joint_end - t.begin_ps);
        }
        clock[g] = t.end_ps[g];
        paths[g] = joint;
        (starts[g] != 0 ? wire_ : wire_in_)[g] = t.end_ps[g];
        (starts[g] != 0 ? wire_path_ : wire_in_path_)[g] = joint;
        if (only_senders && starts[g] != 0) continue;  // Goes on with its work.
        arrival_[g] = t.end_ps[g];
        arrival_path_[g] = joint;
      }
    }
    duration += longest;
    keep_times(moe, duration);
    floor += highest;
    count_bytes(matrix);
  }
}

/// Every GPU that the exchange has not reached yet waits for it.
void Simulator::await_exchange(run::Phase phase) {
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (arrival_[g] <= ready_[g]) continue;
    const std::int64_t begin = std::clamp(begin_[g], ready_[g], arrival_[g]);
    gpu_phase_[g][at(run::Phase::kWait)] += begin - ready_[g];
    gpu_phase_[g][at(phase)] += arrival_[g] - begin;
    path_[g] = arrival_path_[g];
    ready_[g] = arrival_[g];
  }
}

bool Simulator::two_batch() {
  compose_part(1, 2, 0);
  bool halves = tokens_.size() > 0;
  arrival_.assign(gpus_, 0);
  swap_half();
  compose_part(0, 2, 0);
  halves = halves && tokens_.size() > 0;
  if (!halves) {
    compose_part(0, 1, 0);
    return false;
  }
  arrival_.assign(gpus_, 0);
  wire_.assign(gpus_, 0);
  wire_in_.assign(gpus_, 0);
  wire_path_.assign(gpus_, Path{});
  wire_in_path_.assign(gpus_, Path{});
  slowdown_ = 1 / (1 - s_.network.comm_sms);
  std::uint32_t moe = 0, unfinished = run::kNone;
  const auto finish = [&] {
    await_exchange(run::Phase::kCombine);
    if (unfinished != run::kNone) moe_finish(unfinished);
  };
  for (std::size_t layer = 0; layer < s_.model.layers.size(); ++layer) {
    const bool is_moe = s_.model.is_moe(layer);
    for (int half = 0; half < 2; ++half) {
      finish();
      attention(layer, moe);
      if (!is_moe) {
        dense_layer(layer);
        arrival_.assign(gpus_, 0);
      } else {
        moe_front(moe);
        add_entropy();
        for (std::uint32_t g = 0; g < gpus_; ++g) {
          work(g, run::Phase::kDense, cost_[g].shared(rows_of_[g]));
        }
        run::LayerRecord& out = record_.layers[moe];
        issue(run::Phase::kDispatch, moe, traffic_.dispatch, out.dispatch_ps,
              out.dispatch_floor_ps);
      }
      swap_half();
    }
    unfinished = run::kNone;
    if (!is_moe) continue;
    for (int half = 0; half < 2; ++half) {
      at_layer_ = moe;
      await_exchange(run::Phase::kDispatch);
      std::int64_t slowest = 0;
      for (std::uint32_t g = 0; g < gpus_; ++g) {
        slowest = std::max(slowest, work(g, run::Phase::kExpert, expert_work(moe, g)));
      }
      run::LayerRecord& out = record_.layers[moe];
      out.expert_ps += slowest;
      issue(run::Phase::kCombine, moe, traffic_.combine, out.combine_ps, out.combine_floor_ps);
      swap_half();
    }
    unfinished = moe++;
  }
  for (int half = 0; half < 2; ++half) {
    finish();
    swap_half();
  }
  slowdown_ = 1;
  at_layer_ = run::kNone;
  compose_part(0, 1, 0);
  return true;
}

}  // namespace switchyard::sim
