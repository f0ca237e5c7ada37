// SPDX-License-Identifier: Apache-2.0
// network.chunks = k: dispatch, experts and combine of a layer in k equal chunks (M42).
//
// Every pair's bytes and every expert's rows are divided by k (chunk i gets those from ⌊i·n/k⌋ to
// ⌊(i+1)·n/k⌋). The exchanges follow each other in the order dispatch 0 … k−1, combine 0 … k−1 and
// pay the path latency each; a GPU works on chunk i once it has arrived and chunk i − 1 is done,
// and reads the weights of the experts of every chunk anew; combine i waits for the experts of
// chunk i. While chunks overlap the experts have 1 − comm_sms of the SMs: what their kernels take
// beside their launches is divided by that, also where memory bounds them. For equal stages without
// fixed costs the time is Σ c + (k − 1) max c of network::pipelined().
//
// network.chunk_by = "experts": chunk i is the rows of group i of every GPU's experts
// (dispatch.hpp) in place of a part of all rows. Each weight is read once; a token that chose
// experts of two groups of one GPU travels twice.
//
// What a GPU shows: dispatch until chunk 0 has arrived, its experts' time, waits for chunks that
// are late, and combine from its last expert on.
//
// Not modelled: dispatch and combine at the same time. Overlap with attention: two_batch.cpp.
#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {
namespace {

std::uint64_t part(std::uint64_t n, std::uint64_t i, std::uint64_t k) {
  return n * (i + 1) / k - n * i / k;
}

std::vector<std::uint64_t> chunk_of(const std::vector<std::uint64_t>& matrix, std::uint64_t i,
                                    std::uint64_t k) {
  std::vector<std::uint64_t> out(matrix.size());
  for (std::size_t x = 0; x < matrix.size(); ++x) out[x] = part(matrix[x], i, k);
  return out;
}

}  // namespace

/// An exchange on the communication's own clocks, and the ways to them; nobody waits here.
void Simulator::beside(run::Phase phase, std::uint32_t moe,
                       const std::vector<std::uint64_t>& matrix, std::vector<std::int64_t>& clock,
                       std::vector<Path>& paths, std::int64_t& duration, std::int64_t& floor) {
  const GroupTime time = all_to_all_time(phase, Among::kGroups);
  exchange_.run(matrix, clock, timings_, Among::kGroups, ready_, &time);
  std::int64_t longest = 0, highest = 0;
  for (const ExchangeTiming& t : timings_) {
    longest = std::max(longest, t.duration_ps);
    highest = std::max(highest, t.floor_ps);
    ++exchanges_;
    extrapolated_ += t.extrapolated ? 1 : 0;
    count_links(t);
    const Activity what = note_straggler(moe, phase, t);
    const Path path_of_last = paths[t.last_ready];
    Path joint;
    std::int64_t joint_end = -1;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (t.participates[g] == 0) continue;
      if (t.end_ps[g] != joint_end) {
        joint = path_of_last;
        joint_end = t.end_ps[g];
        extend(joint, what, joint_end - t.begin_ps);
      }
      clock[g] = joint_end;
      paths[g] = joint;
    }
  }
  count_bytes(matrix);
  duration += longest;
  keep_times(moe, duration);
  floor += highest;
}

/// Rows of a GPU's expert that are of a chunk.
std::uint32_t Simulator::rows_of_chunk(const std::vector<std::uint32_t>& rows, std::size_t local,
                                       std::uint32_t chunk) const {
  const std::uint32_t k = s_.network.chunks;
  if (s_.network.chunk_by == scenario::ChunkBy::kExperts) {
    return expert_group(local, rows.size(), k) == chunk ? rows[local] : 0;
  }
  return static_cast<std::uint32_t>(part(rows[local], chunk, k));
}

/// How much longer a chunk's slow experts hold the GPU: the kernel of each takes its factor, and
/// every chunk runs one.
SimTime Simulator::slow_extra(std::uint32_t moe, std::uint32_t gpu, std::uint32_t chunk) const {
  SimTime more;
  const ExpertMap::Row& row = map_.row(moe);
  for (std::size_t c = 0; c < row.rank.size(); ++c) {
    if (row.rank[c] != s_.parallel.rank_of(gpu)) continue;
    const double factor = faults_->expert_factor(moe, row.expert[c]);
    if (factor == 1) continue;
    for (const auto& wave : traffic_.waves) {
      const std::uint32_t n = rows_of_chunk(wave[gpu], row.local[c], chunk);
      const SimTime alone = cost_[gpu].expert_alone(n);
      more += SimTime::from_seconds(alone.seconds() * (factor - 1));
    }
  }
  for (const SentOn& x : sent_on_) {
    if (x.gpu != gpu) continue;
    const double factor = faults_->expert_factor(moe, x.expert);
    for (const auto& wave : traffic_.waves) {
      const SimTime alone = cost_[gpu].expert_alone(rows_of_chunk(wave[gpu], x.local, chunk));
      more += SimTime::from_seconds(alone.seconds() * (factor - 1));
    }
  }
  return more;
}

void Simulator::chunked_layer(std::uint32_t moe, const std::vector<std::int64_t>& before) {
  const std::uint32_t k = s_.network.chunks;
  run::LayerRecord& out = record_.layers[moe];
  const bool grouped = !traffic_.group_dispatch.empty();
  const auto to = [&](std::uint32_t i) {
    return grouped ? traffic_.group_dispatch[i] : chunk_of(traffic_.dispatch.front(), i, k);
  };
  const auto back = [&](std::uint32_t i) {
    return grouped ? traffic_.group_combine[i] : chunk_of(traffic_.combine.front(), i, k);
  };
  // Rows of an expert that lies elsewhere travel on behind their chunk, and back before it.
  const bool astray = !sent_on_.empty();
  exchange(run::Phase::kDispatch, moe, {to(0)}, out.dispatch_ps, out.dispatch_floor_ps);
  if (astray) {
    exchange(run::Phase::kDispatch, moe, {chunk_of(there_, 0, k)}, out.dispatch_ps,
             out.dispatch_floor_ps);
  }
  std::vector<std::int64_t> wire = ready_;
  std::vector<Path> wire_path = path_;
  shared_experts(before);

  // Experts: chunk by chunk, each when it is there.
  std::vector<std::int64_t> done = ready_, busy(gpus_, 0);
  std::vector<std::vector<std::int64_t>> done_at;
  std::vector<std::vector<Path>> path_at;
  const double slowdown = 1 / (1 - s_.network.comm_sms);
  const bool slow = faults_ != nullptr && faults_->any_slow_expert();
  std::vector<std::uint32_t> rows;
  for (std::uint32_t i = 0; i < k; ++i) {
    if (i > 0) {
      beside(run::Phase::kDispatch, moe, to(i), wire, wire_path, out.dispatch_ps,
             out.dispatch_floor_ps);
      if (astray) {
        beside(run::Phase::kDispatch, moe, chunk_of(there_, i, k), wire, wire_path, out.dispatch_ps,
               out.dispatch_floor_ps);
      }
    }
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (out_[g] != 0) continue;
      OpCost cost;
      for (const auto& wave : traffic_.waves) {
        rows.clear();
        for (std::size_t e = 0; e < wave[g].size(); ++e) {
          rows.push_back(rows_of_chunk(wave[g], e, i));
        }
        cost += cost_[g].experts(rows);
      }
      if (slow) cost.time += slow_extra(moe, g, i);
      cost.time = stretched(g, cost, slowdown);
      std::int64_t start = done[g];
      if (i > 0 && wire[g] > start) {
        start = wire[g];
        path_[g] = wire_path[g];
      }
      // The record's time is that of all chunks; its place is kept by the clocks here.
      const std::int64_t now = ready_[g];
      const std::int64_t t = work(g, run::Phase::kExpert, cost);
      ready_[g] = now;
      busy[g] += t;
      done[g] = start + t;
    }
    done_at.push_back(done);
    path_at.push_back(path_);
  }
  std::int64_t slowest = 0;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    slowest = std::max(slowest, busy[g]);
    // What each expert takes in one piece: how its time compares with others'.
    static_cast<void>(expert_work(moe, g));
  }
  out.expert_ps += slowest;
  const bool fails = faults_ != nullptr && faults_->any_bad_gather();
  for (std::uint32_t i = 0; i + 1 < k; ++i) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (done_at[i][g] <= wire[g]) continue;
      wire[g] = done_at[i][g];
      wire_path[g] = path_at[i][g];
    }
    const auto send = [&](const std::vector<std::uint64_t>& matrix) {
      beside(run::Phase::kCombine, moe, matrix, wire, wire_path, out.combine_ps,
             out.combine_floor_ps);
    };
    if (astray) send(chunk_of(back_, i, k));
    std::vector<std::vector<std::uint64_t>> chunk{back(i)};
    if (fails) {
      failed_gathers(
          moe, chunk, [&](const auto& part) { send(part.front()); },
          [&](std::uint32_t g, std::int64_t ps, std::uint32_t culprit) {
            wire[g] += ps;
            check_time(wire[g]);
            extend(wire_path[g], {run::Phase::kWait, moe, culprit, StragglerReason::kFault}, ps);
          },
          i == 0);
    }
    send(chunk.front());
  }
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    const std::int64_t late = done[g] - ready_[g] - busy[g];  // Waiting for chunks.
    gpu_phase_[g][at(run::Phase::kWait)] += late;
    check_time(done[g]);
    ready_[g] = done[g];  // work() has charged the experts.
    if (wire[g] > ready_[g]) {
      const std::int64_t more = wire[g] - ready_[g];
      path_[g] = wire_path[g];
      gpu_phase_[g][at(run::Phase::kCombine)] += more;
      ready_[g] = wire[g];
    }
  }
  const auto send = [&](const std::vector<std::vector<std::uint64_t>>& matrices) {
    exchange(run::Phase::kCombine, moe, matrices, out.combine_ps, out.combine_floor_ps);
  };
  if (astray) send({chunk_of(back_, k - 1, k)});
  std::vector<std::vector<std::uint64_t>> chunk{back(k - 1)};
  if (fails) {
    failed_gathers(
        moe, chunk, send,
        [&](std::uint32_t g, std::int64_t ps, std::uint32_t culprit) {
          wait(g, ps, culprit, StragglerReason::kFault);
        },
        false);
  }
  send(chunk);
}

}  // namespace switchyard::sim
