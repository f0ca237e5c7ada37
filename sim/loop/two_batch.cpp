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
// its half's work has ended on all participants and the wires are free. With attention = "hub" the
// hub alone has attention and router; the other GPUs have experts A while it prepares B. In a
// pipeline (parallel.pp) the layers of a stage run so for each of its micro-batches, whose
// sequences are dealt to the halves in turn; what passes between stages is of the whole micro-batch
// and takes its turn on the wires. With network.chunks each half's dispatch, experts and combine
// are those of chunks.cpp, on the wires dispatch A 0 … k−1, dispatch B 0 … k−1, combine A 0 …
// Collectives of tensor-parallel groups (after attention, after the experts) take their turn on the
// wires, too, and their GPUs wait for them; without a dispatch (ep <= tp) the all-reduce after the
// experts of one half runs beside the other half's work. Packing and unpacking
// (network.payload.wire) is work of the half. Tries of a combine that fail (gather_failure) stand
// on the wires, with their time-outs; rows of an expert that lies elsewhere (mis_sharding) travel
// on at the end of its half's dispatch and come back at the begin of its combine. Kernels of the
// layers have 1 − comm_sms of the SMs and, but for their launches, take so much longer. Head and
// embedding are of the whole batch. A step in which one half would have no token is not divided.
//
// What a GPU shows: its work, and as dispatch or combine the exchanges it had to wait for from
// their begin on; before, it waits. Each half is a batch to the policy (capacities, windows), reads
// the weights it touches, and has its own buffers in memory.
//
// Not modelled: dispatch and combine at the same time, more than two parts of a micro-batch.
#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

void Simulator::swap_half() {
  std::swap(tokens_, other_.tokens);
  std::swap(micro_, other_.micro);
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
  reduce_.swap(other_.reduce);
  scatter_.swap(other_.scatter);
  gather_.swap(other_.gather);
  sent_on_.swap(other_.sent_on);
  there_.swap(other_.there);
  back_.swap(other_.back);
  relay_bytes_.swap(other_.relay_bytes);
  group_there_.swap(other_.group_there);
  group_back_.swap(other_.group_back);
  arrivals_.swap(other_.arrivals);
}

/// An exchange on the wires' clock; nobody waits here. It begins when the work of all participants
/// has ended, or with only_senders that of those who send; only the others await it then.
void Simulator::issue(run::Phase phase, std::uint32_t moe,
                      const std::vector<std::vector<std::uint64_t>>& matrices,
                      std::int64_t& duration, std::int64_t& floor, Among among, bool only_senders,
                      const GroupTime* time, const OneCall& call) {
  const GroupTime own = time == nullptr ? all_to_all_time(phase, among) : GroupTime();
  if (time == nullptr) time = &own;
  arrival_.assign(gpus_, 0);
  begin_.assign(gpus_, 0);
  arrival_path_ = path_;
  std::vector<std::int64_t> clock(gpus_);
  std::vector<Path> paths(gpus_);  // To the clocks.
  std::vector<std::uint8_t> starts(gpus_, 1), under_way(gpus_, 0);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const std::vector<std::uint64_t>& matrix = matrices[i];
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      const auto row = matrix.begin() + static_cast<std::ptrdiff_t>(std::size_t{g} * gpus_);
      starts[g] =
          !only_senders || std::any_of(row, row + gpus_, [](std::uint64_t b) { return b > 0; });
      // Between stages a GPU may still receive what it will need later while it sends.
      const std::int64_t free = starts[g] != 0 ? wire_[g] : wire_in_[g];
      const Path& to_free = starts[g] != 0 ? wire_path_[g] : wire_in_path_[g];
      if (i == 0) {
        const bool works = starts[g] != 0 && ready_[g] >= free;
        clock[g] = works ? ready_[g] : free;
        paths[g] = works ? path_[g] : to_free;
      } else if (free > clock[g]) {
        clock[g] = free;
        paths[g] = to_free;
      }
    }
    exchange_.run(matrix, clock, timings_, among, ready_, time, call.continues(i));
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

/// What was issued last is of this chunk.
void Simulator::keep_arrival(std::uint32_t chunk) {
  arrivals_.resize(std::max<std::size_t>(arrivals_.size(), chunk + 1));
  arrivals_[chunk] = {begin_, arrival_, arrival_path_};
}

void Simulator::await_chunk(run::Phase phase, std::uint32_t chunk) {
  begin_ = arrivals_[chunk].begin;
  arrival_ = arrivals_[chunk].end;
  arrival_path_ = arrivals_[chunk].path;
  await_exchange(phase);
}

/// Dispatch of the half under way: issued chunk by chunk, with what rows that lie elsewhere need.
void Simulator::issue_dispatch(std::uint32_t moe, run::Phase phase) {
  run::LayerRecord& out = record_.layers[moe];
  const bool packs = s_.network.payload.wire != scenario::WireFormat::kNative;
  const bool astray = !sent_on_.empty();
  if (s_.network.chunks == 1) {
    if (packs) pack(run::Phase::kDispatch, true);
    const bool inside = phase == run::Phase::kCollective;
    const OneCall call = inside ? inside_call(traffic_.dispatch.size()) : OneCall{};
    if (astray) traffic_.dispatch.push_back(there_);
    const GroupTime time = inside ? inside_time(run::Phase::kDispatch, traffic_.dispatch)
                                  : all_to_all_time(phase, Among::kGroups);
    issue(phase, moe, traffic_.dispatch, out.dispatch_ps, out.dispatch_floor_ps, Among::kGroups,
          false, &time, call);
    if (astray) traffic_.dispatch.pop_back();
    keep_arrival(0);
    return;
  }
  for (std::uint32_t i = 0; i < s_.network.chunks; ++i) {
    if (packs) pack(run::Phase::kDispatch, true, i);
    Matrices chunk = chunk_of_layer(run::Phase::kDispatch, i);
    if (astray) chunk.push_back(astray_chunk(run::Phase::kDispatch, i));
    issue(phase, moe, chunk, out.dispatch_ps, out.dispatch_floor_ps);
    keep_arrival(i);
  }
}

/// The same of its combine or of one chunk of it, after the tries of it that fail.
void Simulator::issue_combine(std::uint32_t moe, run::Phase phase, std::uint32_t chunk) {
  run::LayerRecord& out = record_.layers[moe];
  const bool whole = s_.network.chunks == 1;
  Matrices part;
  if (!whole) part = chunk_of_layer(run::Phase::kCombine, chunk);
  Matrices& combine = whole ? traffic_.combine : part;
  if (s_.network.payload.wire != scenario::WireFormat::kNative) {
    pack(run::Phase::kCombine, true, whole ? run::kNone : chunk);
  }
  const bool astray = !sent_on_.empty();
  std::vector<std::uint64_t> back;
  if (astray) back = whole ? back_ : astray_chunk(run::Phase::kCombine, chunk);
  const auto send = [&](const Matrices& matrices, std::size_t before = 0) {
    const bool inside = phase == run::Phase::kCollective;
    const GroupTime time = inside ? inside_time(run::Phase::kCombine, matrices)
                                  : all_to_all_time(phase, Among::kGroups);
    issue(phase, moe, matrices, out.combine_ps, out.combine_floor_ps, Among::kGroups, false, &time,
          inside ? inside_call(matrices.size() - before, before) : OneCall{});
  };
  if (faults_ == nullptr || !faults_->any_bad_gather()) {
    if (astray) combine.insert(combine.begin(), back);
    send(combine, astray ? 1 : 0);
    if (astray) combine.erase(combine.begin());
    keep_arrival(chunk);
    return;
  }
  // When a GPU is through with what came before the combine that does not fail.
  std::vector<std::int64_t> until(gpus_, 0);
  std::vector<Path> until_path(gpus_);
  if (astray) {
    issue(phase, moe, {back}, out.combine_ps, out.combine_floor_ps);
    until = arrival_;
    until_path = arrival_path_;
  }
  const Attempt attempt = [&](const auto& tried) { send(tried); };
  const Pause pause = [&](std::uint32_t g, std::int64_t ps, std::uint32_t culprit) {
    wire_[g] += ps;
    check_time(wire_[g]);
    extend(wire_path_[g], {run::Phase::kWait, moe, culprit, StragglerReason::kFault}, ps);
    until[g] = wire_[g];
    until_path[g] = wire_path_[g];
  };
  if (failed_gathers(moe, combine, attempt, pause, chunk == 0) && whole) sum_traffic();
  send(combine);
  // Who takes part in nothing any more has waited all the same.
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (until[g] <= arrival_[g]) continue;
    begin_[g] = arrival_[g] = until[g];
    arrival_path_[g] = until_path[g];
  }
  keep_arrival(chunk);
}

bool Simulator::two_batch(std::uint32_t micro, std::uint32_t micros, std::uint32_t stage,
                          std::size_t first, std::size_t beyond) {
  // Sequences i of a home with i mod m = micro: of the first half where i mod 2m is micro, too.
  const auto compose = [&](std::uint32_t half, std::uint32_t halves) {
    compose_part(micro + half * micros, halves * micros, stage);
    compose_reduce();
    return tokens_.size() > 0;
  };
  other_.relay_bytes.assign(gpus_, 0);
  bool divided = compose(1, 2);
  arrival_.assign(gpus_, 0);
  swap_half();
  divided = compose(0, 2) && divided;
  if (!divided) {
    compose(0, 1);
    return false;
  }
  arrival_.assign(gpus_, 0);
  std::uint32_t moe = 0;
  for (std::size_t layer = 0; layer < first; ++layer) moe += s_.model.is_moe(layer) ? 1 : 0;
  slowdown_ = 1 / (1 - s_.network.comm_sms);
  in_halves_ = true;
  halves(first, beyond, moe);
  slowdown_ = 1;
  in_halves_ = false;
  at_layer_ = run::kNone;
  compose(0, 1);
  return true;
}

/// Layers [first, beyond), the first of which is or follows MoE layer `moe`, in two halves.
void Simulator::halves(std::size_t first, std::size_t beyond, std::uint32_t moe) {
  const bool inside = sharded() && !wide();  // The group's collectives in place of all-to-alls.
  const bool packs = s_.network.payload.wire != scenario::WireFormat::kNative;
  const run::Phase out_phase = inside ? run::Phase::kCollective : run::Phase::kDispatch;
  const run::Phase home_phase = inside ? run::Phase::kCollective : run::Phase::kCombine;
  const std::uint32_t k = s_.network.chunks;
  const auto name = [k](std::uint32_t chunk) { return k == 1 ? run::kNone : chunk; };
  std::uint32_t unfinished = run::kNone;
  const auto finish = [&] {
    if (unfinished == run::kNone) return;
    at_layer_ = unfinished;
    for (std::uint32_t i = 0; i < k; ++i) {
      await_chunk(home_phase, i);
      if (packs) pack(run::Phase::kCombine, false, name(i));
    }
    moe_finish(unfinished);
  };
  for (std::size_t layer = first; layer < beyond; ++layer) {
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
        issue_dispatch(moe, out_phase);
      }
      swap_half();
    }
    unfinished = run::kNone;
    if (!is_moe) continue;
    for (int half = 0; half < 2; ++half) {
      at_layer_ = moe;
      std::vector<std::int64_t> busy(gpus_, 0);
      for (std::uint32_t i = 0; i < k; ++i) {
        await_chunk(out_phase, i);
        if (packs) pack(run::Phase::kDispatch, false, name(i));
        for (std::uint32_t g = 0; g < gpus_; ++g) {
          busy[g] +=
              work(g, run::Phase::kExpert, k == 1 ? expert_work(moe, g) : chunk_experts(moe, g, i));
        }
        issue_combine(moe, home_phase, i);
      }
      for (std::uint32_t g = 0; k > 1 && g < gpus_; ++g) {
        // What each expert takes in one piece: how its time compares with others'.
        static_cast<void>(expert_work(moe, g));
      }
      record_.layers[moe].expert_ps += *std::max_element(busy.begin(), busy.end());
      swap_half();
    }
    unfinished = moe++;
  }
  for (int half = 0; half < 2; ++half) {
    finish();
    swap_half();
  }
}

}  // namespace switchyard::sim
