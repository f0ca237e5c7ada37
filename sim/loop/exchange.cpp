// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

std::unique_ptr<ExchangeTimes> make_exchange_times(const scenario::Scenario& s,
                                                   ExchangeTimer& timer) {
  if (s.cost.exchange != scenario::ExchangeCost::kCalibrated) return nullptr;
  auto times = std::make_unique<ExchangeTimes>(s);
  using Kind = ExchangeTimes::Kind;
  for (std::size_t k = 0; k < ExchangeTimes::kKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    const bool experts = kind <= Kind::kCombine;
    if (!times->has(kind)) continue;
    if (!timer.alone(experts ? Among::kGroups : Among::kShards,
                     experts ? s.parallel.ep : s.parallel.tp)) {
      times->leave(kind, "groups, stages or copies of experts share links");
    }
  }
  times->require_used();
  return times;
}

/// What a calibration says of a dispatch or combine by its busiest port; empty: nothing.
GroupTime Simulator::all_to_all_time(run::Phase phase, Among among) {
  if (among != Among::kGroups ||
      (phase != run::Phase::kDispatch && phase != run::Phase::kCombine)) {
    return {};
  }
  const auto kind = phase == run::Phase::kDispatch ? ExchangeTimes::Kind::kDispatch
                                                   : ExchangeTimes::Kind::kCombine;
  if (!exchange_times_ || !exchange_times_->has(kind)) return {};
  return
      [this, kind](std::span<const std::uint64_t> bytes, std::span<const std::uint32_t> members) {
        const std::size_t n = members.size();
        std::uint64_t most = 0;
        for (std::size_t i = 0; i < n; ++i) {
          std::uint64_t out = 0, in = 0;
          for (std::size_t j = 0; j < n; ++j) {
            if (j == i) continue;
            out += bytes[i * n + j];
            in += bytes[j * n + i];
          }
          most = std::max({most, out, in});
        }
        return count_time(kind, most);
      };
}

std::int64_t Simulator::count_time(ExchangeTimes::Kind kind, std::uint64_t bytes) {
  const OpTime t = exchange_times_->time(kind, bytes);
  TimedExchanges& n = timed_exchanges_[static_cast<std::size_t>(kind)];
  ++n.all;
  n.extrapolated += t.extrapolated ? 1 : 0;
  return SimTime::from_seconds(t.us * 1e-6).ps();
}

/// The same of a collective, divided over the phases of each group.
GroupTime Simulator::collective_time(const Buffers& of,
                                     const std::vector<std::vector<std::uint64_t>>& phases) {
  using Kind = ExchangeTimes::Kind;
  const Kind kind = of.what == network::Collective::kReduceScatter ? Kind::kReduceScatter
                    : of.what == network::Collective::kAllGather   ? Kind::kAllGather
                                                                   : Kind::kAllReduce;
  if (!exchange_times_ || !exchange_times_->has(kind)) return {};
  struct Left {
    std::int64_t ps = 0, phases = 0;
  };
  // Refused with prefill replicas, so the layout has all GPUs.
  const std::uint32_t tp = layout().tp;
  std::vector<Left> left(gpus_ / tp);
  for (std::uint32_t q = 0; q < gpus_ / tp; ++q) {
    const std::uint64_t values = of.values > 0 ? of.values : s_.model.hidden_size;
    const std::uint64_t bytes =
        model::dtype_bytes(s_.activations, (*of.rows)[std::size_t{q} * tp] * values);
    if (bytes == 0) continue;
    for (const std::vector<std::uint64_t>& m : phases) {
      bool any = false;
      for (std::uint32_t g = q * tp; g < (q + 1) * tp && !any; ++g) {
        for (std::uint32_t d = q * tp; d < (q + 1) * tp && !any; ++d) {
          any = g != d && m[std::size_t{g} * gpus_ + d] > 0;
        }
      }
      left[q].phases += any ? 1 : 0;
    }
    if (left[q].phases > 0) left[q].ps = count_time(kind, bytes);
  }
  return [left = std::move(left), tp](std::span<const std::uint64_t>,
                                      std::span<const std::uint32_t> members) mutable {
    Left& l = left[members.front() / tp];
    const std::int64_t share = l.ps / l.phases;
    l.ps -= share;
    --l.phases;
    return share;
  };
}

/// The same of a group's collective in place of its dispatch or combine.
GroupTime Simulator::inside_time(run::Phase phase,
                                 const std::vector<std::vector<std::uint64_t>>& phases) {
  using network::Collective;
  const Collective what = phase == run::Phase::kDispatch ? Collective::kAllGather
                          : layout().sequence_parallel   ? Collective::kReduceScatter
                                                         : Collective::kAllReduce;
  const std::vector<std::uint64_t> rows = defers_ ? with_late() : tokens_of_;
  return collective_time({what, &rows}, phases);
}

void Simulator::collective(std::uint32_t moe, const std::vector<std::vector<std::uint64_t>>& phases,
                           const Buffers& of) {
  std::int64_t duration = 0, floor = 0;
  const GroupTime time = collective_time(of, phases);
  if (in_halves_) {
    // The wires carry one exchange after another, whichever half's.
    issue(run::Phase::kCollective, moe, phases, duration, floor, Among::kShards, false, &time,
          {0, phases.size(), 1});
    await_exchange(run::Phase::kCollective);
    return;
  }
  exchange(run::Phase::kCollective, moe, phases, duration, floor, Among::kShards, nullptr, &time,
           {0, phases.size(), 1});
}

Simulator::OneCall Simulator::inside_call(std::size_t phases, std::size_t first) const {
  const bool halved = s_.network.payload.wire != scenario::WireFormat::kNative &&
                      s_.network.payload.second_half(s_.model.hidden_size) > 0;
  return {first, phases, halved ? std::size_t{2} : std::size_t{1}};
}

/// The collectives of a group's hidden states before and after its operations.
void Simulator::gather_hidden(std::uint32_t moe) {
  collective(moe, gather_, {network::Collective::kAllGather, &tokens_of_});
}
void Simulator::reduce_hidden(std::uint32_t moe) {
  if (layout().sequence_parallel) {
    collective(moe, scatter_, {network::Collective::kReduceScatter, &tokens_of_});
  } else {
    collective(moe, reduce_, {network::Collective::kAllReduce, &tokens_of_});
  }
}

/// What the kernels cost that pack the rows a GPU sends or unpack those it received: the row in its
/// own format and as it travels, once each. What the relay of a dispatch passes on stays packed;
/// that of a combine adds what it gets and packs the sum. Of a chunk (kNone: of all) its rows.
void Simulator::pack(run::Phase phase, bool sender, std::uint32_t chunk) {
  const bool out = phase == run::Phase::kDispatch;
  const scenario::Payload& p = s_.network.payload;
  const std::uint64_t hidden = s_.model.hidden_size;
  const std::uint64_t copy = out ? p.dispatch_bytes(hidden) : p.combine_bytes(hidden);
  const std::uint64_t own = model::dtype_bytes(out ? p.dispatch : p.combine, hidden);
  // A group's collectives in place of its dispatch have no relays.
  const bool relayed = out && !traffic_.passed_on.empty() && !(sharded() && !wide());
  const bool grouped = chunk != run::kNone && !traffic_.group_dispatch.empty();
  const Matrices& matrices = grouped
                                 ? (out ? traffic_.group_dispatch : traffic_.group_combine)[chunk]
                             : out ? traffic_.dispatch
                                   : traffic_.combine;
  const auto passed_on = [&](std::uint32_t g) {
    return grouped ? traffic_.group_passed_on[chunk][g] : traffic_.passed_on[g];
  };
  // The first half of a relayed dispatch's exchanges is what the tokens' own GPUs send.
  const std::size_t own_exchanges = relayed && sender ? matrices.size() / 2 : matrices.size();
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < own_exchanges; ++i) {
      const std::vector<std::uint64_t>& m = matrices[i];
      for (std::uint32_t d = 0; d < gpus_; ++d) {
        if (d != g) {
          bytes += sender ? m[std::size_t{g} * gpus_ + d] : m[std::size_t{d} * gpus_ + g];
        }
      }
    }
    std::uint64_t packed = bytes / copy - (relayed && !sender ? passed_on(g) : std::uint64_t{0});
    if (chunk != run::kNone && !grouped) packed = part_of_chunk(packed, chunk, s_.network.chunks);
    if (packed == 0) continue;
    const auto rows = static_cast<double>(packed);
    const OpCost c =
        cost_[g].roofline(rows * static_cast<double>(own + copy), 0, s_.activations, 1.0, 1);
    pack_ps_ += c.time.ps();
    work(g, phase, c);
  }
}

/// Each exchange becomes two: the first half of every copy with scales and header, then the second.
void Simulator::halve(std::vector<std::vector<std::uint64_t>>& matrices, std::uint64_t copy) const {
  const std::uint64_t second = s_.network.payload.second_half(s_.model.hidden_size);
  if (second == 0) return;
  std::vector<std::vector<std::uint64_t>> halves;
  for (std::vector<std::uint64_t>& m : matrices) {
    std::vector<std::uint64_t> rest(m.size());
    for (std::size_t i = 0; i < m.size(); ++i) {
      rest[i] = m[i] / copy * second;
      m[i] -= rest[i];
    }
    halves.push_back(std::move(m));
    halves.push_back(std::move(rest));
  }
  matrices = std::move(halves);
}

void Simulator::exchange(run::Phase phase, std::uint32_t moe,
                         const std::vector<std::vector<std::uint64_t>>& matrices,
                         std::int64_t& duration, std::int64_t& floor, Among among,
                         const std::vector<PortBytes>* ports, const GroupTime* time,
                         const OneCall& call) {
  const GroupTime own = time == nullptr ? all_to_all_time(phase, among) : GroupTime();
  if (time == nullptr) time = &own;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const std::vector<std::uint64_t>& matrix = matrices[i];
    exchange_.run(matrix, ready_, timings_, among, {}, time, call.continues(i));
    apply_timings(phase, moe, duration, floor);
    count_bytes(matrix, ports == nullptr ? nullptr : &(*ports)[i]);
  }
}

void Simulator::apply_timings(run::Phase phase, std::uint32_t moe, std::int64_t& duration,
                              std::int64_t& floor) {
  std::int64_t longest = 0, highest_floor = 0;
  for (const ExchangeTiming& t : timings_) {
    longest = std::max(longest, t.duration_ps);
    highest_floor = std::max(highest_floor, t.floor_ps);
    ++exchanges_;
    extrapolated_ += t.extrapolated ? 1 : 0;
    const Activity what = note_straggler(moe, phase, t);
    const Path path_of_last = path_[t.last_ready];
    Path joint;  // To `joint_end`, the end of most.
    std::int64_t joint_end = -1;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (t.participates[g] == 0) continue;
      const std::int64_t end = t.end_ps[g];
      check_time(end);
      const std::int64_t begin = std::clamp(t.begin_ps, ready_[g], end);
      gpu_phase_[g][at(run::Phase::kWait)] += begin - ready_[g];
      gpu_phase_[g][at(phase)] += end - begin;
      if (end >= t.begin_ps) {
        // The path to this GPU's end goes through the GPU that was ready last.
        if (end != joint_end) {
          joint = path_of_last;
          extend(joint, what, end - t.begin_ps);
          joint_end = end;
        }
        path_[g] = joint;
      } else {
        extend(path_[g], what, end - ready_[g]);
      }
      ready_[g] = end;
    }
    count_links(t);
  }
  duration += longest;
  keep_times(moe, duration);
  floor += highest_floor;
}

bool Simulator::copies_suffice() {
  const scenario::NetworkSpec& n = s_.network;
  // Bytes are counted at the end of the step; a count of 32 bits must hold until then.
  const std::uint64_t most = record_.scalars.tokens * slots_ * layers_;
  return pool_->traffic.one_phase() && n.chunks == 1 && !n.two_batch &&
         n.payload.wire == scenario::WireFormat::kNative && faults_ == nullptr &&
         !exchange_times_ && !defers_ && (!sharded() || wide()) && most < UINT32_MAX &&
         exchange_.takes_copies();
}

void Simulator::exchange_copies(run::Phase phase, std::uint32_t moe, bool back,
                                std::int64_t& duration, std::int64_t& floor) {
  const TrafficBuilder& traffic = pool_->traffic;
  const PortBytes& ports = back ? traffic_.combine_ports[0] : traffic_.dispatch_ports[0];
  if (!back) {
    exchange_.sum_copies(traffic_.copies);
    step_copies_.resize(traffic_.copies.size(), 0);
    for (std::size_t i = 0; i < step_copies_.size(); ++i) step_copies_[i] += traffic_.copies[i];
  }
  exchange_.run_copies(back ? traffic.combine_bytes() : traffic.dispatch_bytes(), back, ports.out,
                       ready_, timings_);
  apply_timings(phase, moe, duration, floor);
  count_ports(ports);
}

/// Their bytes, at the end of the step: each went there and came back.
void Simulator::count_copies_sent() {
  if (step_copies_.empty()) return;
  const std::uint64_t there = pool_->traffic.dispatch_bytes();
  const std::uint64_t back = pool_->traffic.combine_bytes();
  for (std::size_t i = 0; i < gpus_; ++i) {
    for (std::size_t j = 0; j < gpus_; ++j) {
      const std::uint64_t n = step_copies_[i * gpus_ + j];
      if (n == 0) continue;
      record_.pair_bytes[i * gpus_ + j] += n * there;
      record_.pair_bytes[j * gpus_ + i] += n * back;
    }
  }
  step_copies_.clear();
}

Activity Simulator::note_straggler(std::uint32_t moe, run::Phase phase, const ExchangeTiming& t) {
  const bool fault = faults_ != nullptr && t.straggler < gpus_ &&
                     (faults_->touches(t.straggler) || host_load_[t.straggler] > 0);
  const StragglerReason reason = fault          ? StragglerReason::kFault
                                 : t.link_bound ? StragglerReason::kLink
                                                : StragglerReason::kLoad;
  if (t.straggler < gpus_) {
    straggler_ps_[fault          ? kByFault
                  : t.link_bound ? kByLink
                                 : kByLoad][t.straggler] += t.straggler_ps;
    if (moe != run::kNone) {
      run::LayerRecord& layer = record_.layers[moe];
      if (layer.straggler_gpu == run::kNone || t.straggler_ps > layer_straggler_ps_[moe]) {
        layer_straggler_ps_[moe] = t.straggler_ps;
        layer.straggler_gpu = t.straggler;
        layer.straggler_reason = reason;
      }
    }
  }
  if (t.straggler >= gpus_) return {phase, moe, t.last_ready, StragglerReason::kNone};
  return {phase, moe, t.straggler, reason};
}

void Simulator::count_links(const ExchangeTiming& t) {
  for (std::size_t k = 0; k < t.link_bytes.size(); ++k) {
    record_.link_bytes[k] += t.link_bytes[k];
    record_.link_busy_ps[k] +=
        SimTime::from_seconds(static_cast<double>(t.link_bytes[k]) / exchange_.bandwidth(k).value)
            .ps();
  }
}

void Simulator::count_bytes(const std::vector<std::uint64_t>& matrix, const PortBytes* ports) {
  if (ports == nullptr) {
    sum_ports(matrix, ports_);
    ports = &ports_;
  }
  std::uint64_t* const pairs = record_.pair_bytes.data();
  for (std::size_t i = 0; i < matrix.size(); ++i) pairs[i] += matrix[i];
  for (std::uint32_t g = 0; g < gpus_; ++g) pairs[std::size_t{g} * (gpus_ + 1)] = 0;
  count_ports(*ports);
}

void Simulator::count_ports(const PortBytes& ports) {
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    record_.gpu_bytes_out[g] += ports.out[g];
    record_.gpu_bytes_in[g] += ports.in[g];
  }
  record_.scalars.bytes_sent += ports.total;
}

void Simulator::count_transfers() {
  for (const KvTransfer& t : plan_.transfers) {
    for (std::uint32_t i = 0; i < t.width; ++i) {
      moving_.push_back({t.from + i, t.to + i, t.bytes});
    }
  }
  if (moving_.empty()) return;
  // A step's links take what they can carry while it lasts; the rest counts on the next ones.
  const double seconds =
      static_cast<double>(record_.scalars.end_ps - record_.scalars.start_ps) * 1e-12;
  const auto room = [&](std::uint32_t k) {
    const auto most = static_cast<std::uint64_t>(transfer_routes_->bandwidth[k] * seconds);
    return most - std::min(most, record_.link_bytes[k]);
  };
  std::vector<std::uint64_t> matrix(std::size_t{gpus_} * gpus_, 0);
  std::map<std::uint32_t, std::uint64_t> uses;  // A staged path may hold a link twice.
  for (KvTransfer& t : moving_) {
    uses.clear();
    for (const std::uint32_t k : transfer_routes_->links_of(t.from, t.to)) ++uses[k];
    std::uint64_t now = t.bytes;
    for (const auto& [k, n] : uses) now = std::min(now, room(k) / n);
    for (const auto& [k, n] : uses) {
      record_.link_bytes[k] += now * n;
      record_.link_busy_ps[k] +=
          SimTime::from_seconds(static_cast<double>(now * n) / transfer_routes_->bandwidth[k]).ps();
    }
    matrix[std::size_t{t.from} * gpus_ + t.to] += now;
    record_.scalars.bytes_received += now;
    t.bytes -= now;
  }
  std::erase_if(moving_, [](const KvTransfer& t) { return t.bytes == 0; });
  count_bytes(matrix);
}

}  // namespace switchyard::sim
