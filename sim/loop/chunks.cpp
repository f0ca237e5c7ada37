// SPDX-License-Identifier: Apache-2.0
// network.chunks = k: dispatch, experts and combine of a layer in k equal chunks (M42).
//
// Every pair's bytes and every expert's rows are divided by k (chunk i gets those from ⌊i·n/k⌋ to
// ⌊(i+1)·n/k⌋). The exchanges follow each other in the order dispatch 0 … k−1, combine 0 … k−1 and
// pay the path latency each; a GPU works on chunk i once it has arrived and chunk i − 1 is done,
// and reads the weights of the experts of every chunk anew; combine i waits for the experts of
// chunk i. While chunks overlap the GPU's kernels have 1 − comm_sms of the SMs: what they take
// beside their launches is divided by that, also where memory bounds them. For equal stages without
// fixed costs the time is Σ c + (k − 1) max c of the chunk times c.
//
// A chunk has all exchanges of its dispatch, one after another on the wires: the relays' fan-out
// (network.dispatch = "per_node") after the way to them, the second INT2 halves after the first.
//
// network.payload.wire: the sender packs chunk by chunk, dispatch i leaves when chunk i is packed
// (chunk 0 travels while chunk 1 is packed); a chunk is unpacked before its experts, and what they
// gave is packed behind them; combine i is unpacked when it has arrived and the GPU is through with
// what came before. Each is a kernel a chunk, of ⌊(i+1)·n/k⌋ − ⌊i·n/k⌋ of a GPU's n rows.
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

std::vector<std::uint64_t> chunk_of(const std::vector<std::uint64_t>& matrix, std::uint64_t i,
                                    std::uint64_t k) {
  std::vector<std::uint64_t> out(matrix.size());
  for (std::size_t x = 0; x < matrix.size(); ++x) out[x] = part_of_chunk(matrix[x], i, k);
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

Simulator::Matrices Simulator::chunk_of_layer(run::Phase phase, std::uint32_t chunk) const {
  const bool out = phase == run::Phase::kDispatch;
  if (!traffic_.group_dispatch.empty()) {
    return (out ? traffic_.group_dispatch : traffic_.group_combine)[chunk];
  }
  Matrices all;
  for (const std::vector<std::uint64_t>& m : out ? traffic_.dispatch : traffic_.combine) {
    all.push_back(chunk_of(m, chunk, s_.network.chunks));
  }
  return all;
}

std::vector<std::uint64_t> Simulator::astray_chunk(run::Phase phase, std::uint32_t chunk) const {
  const bool out = phase == run::Phase::kDispatch;
  if (!group_there_.empty()) return (out ? group_there_ : group_back_)[chunk];
  return chunk_of(out ? there_ : back_, chunk, s_.network.chunks);
}

/// Rows of a GPU's expert that are of a chunk.
std::uint32_t Simulator::rows_of_chunk(std::uint32_t moe, std::uint32_t gpu,
                                       const std::vector<std::uint32_t>& rows, std::size_t local,
                                       std::uint32_t chunk) const {
  const std::uint32_t k = s_.network.chunks;
  if (s_.network.chunk_by != scenario::ChunkBy::kExperts) {
    return static_cast<std::uint32_t>(part_of_chunk(rows[local], chunk, k));
  }
  // Experts astray stand behind the GPU's own and keep their group.
  const std::uint32_t own = map().row(moe).count[layout().rank_of(gpu)];
  std::uint32_t group = 0;
  if (local < own) {
    group = expert_group(local, own, k);
  } else {
    const auto x = std::find_if(sent_on_.begin(), sent_on_.end(),
                                [&](const SentOn& e) { return e.gpu == gpu && e.local == local; });
    SWITCHYARD_ASSERT(x != sent_on_.end(), "rows of no expert");
    group = x->group;
  }
  return group == chunk ? rows[local] : 0;
}

/// How much longer a chunk's slow experts hold the GPU: the kernel of each takes its factor, and
/// every chunk runs one.
SimTime Simulator::slow_extra(std::uint32_t moe, std::uint32_t gpu, std::uint32_t chunk) const {
  SimTime more;
  if (!map().has(gpu)) return {};  // Of replicas with another layout.
  const ExpertMap::Row& row = map().row(moe);
  for (std::size_t c = 0; c < row.rank.size(); ++c) {
    if (row.rank[c] != layout().rank_of(gpu)) continue;
    const double factor = faults_->expert_factor(moe, row.expert[c]);
    if (factor == 1) continue;
    for (const auto& wave : traffic_.waves) {
      const std::uint32_t n = rows_of_chunk(moe, gpu, wave[gpu], row.local[c], chunk);
      const SimTime alone = cost_[gpu].expert_alone(n);
      more += SimTime::from_seconds(alone.seconds() * (factor - 1));
    }
  }
  for (const SentOn& x : sent_on_) {
    if (x.gpu != gpu) continue;
    const double factor = faults_->expert_factor(moe, x.expert);
    for (const auto& wave : traffic_.waves) {
      const SimTime alone =
          cost_[gpu].expert_alone(rows_of_chunk(moe, gpu, wave[gpu], x.local, chunk));
      more += SimTime::from_seconds(alone.seconds() * (factor - 1));
    }
  }
  return more;
}

/// A GPU's experts of a chunk, slow ones with their factor.
OpCost Simulator::chunk_experts(std::uint32_t moe, std::uint32_t gpu, std::uint32_t chunk) const {
  OpCost cost;
  std::vector<std::uint32_t> rows;
  for (const auto& wave : traffic_.waves) {
    rows.clear();
    for (std::size_t e = 0; e < wave[gpu].size(); ++e) {
      rows.push_back(rows_of_chunk(moe, gpu, wave[gpu], e, chunk));
    }
    cost += cost_[gpu].experts(rows);
  }
  if (faults_ != nullptr && faults_->any_slow_expert()) cost.time += slow_extra(moe, gpu, chunk);
  return cost;
}

void Simulator::chunked_layer(std::uint32_t moe) {
  const std::uint32_t k = s_.network.chunks;
  run::LayerRecord& out = record_.layers[moe];
  const bool packs = s_.network.payload.wire != scenario::WireFormat::kNative;
  // Rows of an expert that lies elsewhere travel on behind their chunk, and back before it.
  const bool astray = !sent_on_.empty();
  const double slowdown = 1 / (1 - s_.network.comm_sms);
  std::vector<std::int64_t> wire, before = before_dispatch_;
  std::vector<Path> wire_path;
  const auto there = [&](std::uint32_t i) {
    Matrices all = chunk_of_layer(run::Phase::kDispatch, i);
    if (astray) all.push_back(astray_chunk(run::Phase::kDispatch, i));
    return all;
  };
  const auto send = [&](run::Phase phase, const Matrices& matrices) {
    const bool to = phase == run::Phase::kDispatch;
    for (const std::vector<std::uint64_t>& m : matrices) {
      beside(phase, moe, m, wire, wire_path, to ? out.dispatch_ps : out.combine_ps,
             to ? out.dispatch_floor_ps : out.combine_floor_ps);
    }
  };
  /// A GPU that the wires reach later than its own clock waits for them.
  const auto await = [&](const std::vector<std::int64_t>& arrival, const std::vector<Path>& path,
                         run::Phase phase) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (arrival[g] <= ready_[g]) continue;
      check_time(arrival[g]);
      gpu_phase_[g][at(phase)] += arrival[g] - ready_[g];
      path_[g] = path[g];
      ready_[g] = arrival[g];
    }
  };
  /// The wires go on when these GPUs are through.
  const auto wires_after_work = [&] {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (ready_[g] <= wire[g]) continue;
      wire[g] = ready_[g];
      wire_path[g] = path_[g];
    }
  };

  // Dispatch: [k] when each chunk is there.
  std::vector<std::vector<std::int64_t>> there_at;
  std::vector<std::vector<Path>> there_path;
  if (packs) {
    pack(run::Phase::kDispatch, true, 0);
    wire = ready_;
    wire_path = path_;
    // Chunk by chunk, each beside the way of the one before it.
    std::vector<std::vector<std::int64_t>> packed_at{ready_};
    std::vector<std::vector<Path>> packed_path{path_};
    slowdown_ = slowdown;
    for (std::uint32_t i = 1; i < k; ++i) {
      pack(run::Phase::kDispatch, true, i);
      packed_at.push_back(ready_);
      packed_path.push_back(path_);
    }
    slowdown_ = 1;
    before = ready_;
    // No exchange of this layer begins before chunk 0 is packed.
    ready_ = packed_at[0];
    for (std::uint32_t i = 0; i < k; ++i) {
      for (std::uint32_t g = 0; g < gpus_; ++g) {
        if (packed_at[i][g] <= wire[g]) continue;
        wire[g] = packed_at[i][g];
        wire_path[g] = packed_path[i][g];
      }
      send(run::Phase::kDispatch, there(i));
      there_at.push_back(wire);
      there_path.push_back(wire_path);
    }
    ready_ = before;
    await(there_at[0], there_path[0], run::Phase::kDispatch);
  } else {
    exchange(run::Phase::kDispatch, moe, there(0), out.dispatch_ps, out.dispatch_floor_ps);
    wire = ready_;
    wire_path = path_;
    there_at.push_back(wire);
    there_path.push_back(wire_path);
    for (std::uint32_t i = 1; i < k; ++i) {
      send(run::Phase::kDispatch, there(i));
      there_at.push_back(wire);
      there_path.push_back(wire_path);
    }
  }
  shared_experts(before);

  // Experts: chunk by chunk, each when it is there; what they gave leaves beside the next one.
  std::vector<std::int64_t> busy(gpus_, 0);
  const bool fails = faults_ != nullptr && faults_->any_bad_gather();
  std::vector<std::vector<std::int64_t>> home_at;
  std::vector<std::vector<Path>> home_path;
  const auto go_home = [&](std::uint32_t i) {
    if (astray) send(run::Phase::kCombine, {astray_chunk(run::Phase::kCombine, i)});
    Matrices chunk = chunk_of_layer(run::Phase::kCombine, i);
    if (fails) {
      failed_gathers(
          moe, chunk, [&](const auto& part) { send(run::Phase::kCombine, part); },
          [&](std::uint32_t g, std::int64_t ps, std::uint32_t culprit) {
            wire[g] += ps;
            check_time(wire[g]);
            extend(wire_path[g], {run::Phase::kWait, moe, culprit, StragglerReason::kFault}, ps);
          },
          i == 0);
    }
    send(run::Phase::kCombine, chunk);
    home_at.push_back(wire);
    home_path.push_back(wire_path);
  };
  for (std::uint32_t i = 0; i < k; ++i) {
    slowdown_ = slowdown;
    if (i > 0) await(there_at[i], there_path[i], run::Phase::kWait);
    if (packs) pack(run::Phase::kDispatch, false, i);
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      busy[g] += work(g, run::Phase::kExpert, chunk_experts(moe, g, i));
    }
    if (packs) pack(run::Phase::kCombine, true, i);
    slowdown_ = 1;
    if (i + 1 == k && !packs) break;
    wires_after_work();
    go_home(i);
  }
  out.expert_ps += *std::max_element(busy.begin(), busy.end());
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    // What each expert takes in one piece: how its time compares with others'.
    static_cast<void>(expert_work(moe, g));
  }
  if (packs) {
    for (std::uint32_t i = 0; i < k; ++i) {
      await(home_at[i], home_path[i], run::Phase::kCombine);
      pack(run::Phase::kCombine, false, i);
    }
    return;
  }
  // The GPUs wait for the last chunk.
  await(wire, wire_path, run::Phase::kCombine);
  const auto last = [&](const Matrices& matrices) {
    exchange(run::Phase::kCombine, moe, matrices, out.combine_ps, out.combine_floor_ps);
  };
  if (astray) last({astray_chunk(run::Phase::kCombine, k - 1)});
  Matrices chunk = chunk_of_layer(run::Phase::kCombine, k - 1);
  if (fails) {
    failed_gathers(
        moe, chunk, last,
        [&](std::uint32_t g, std::int64_t ps, std::uint32_t culprit) {
          wait(g, ps, culprit, StragglerReason::kFault);
        },
        false);
  }
  last(chunk);
}

}  // namespace switchyard::sim
