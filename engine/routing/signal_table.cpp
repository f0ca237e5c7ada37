// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/signal_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

void check_size(std::size_t have, std::size_t want, std::string_view what,
                const std::string& where) {
  if (have != want) {
    throw InputError(where, fmt::format("{} has {} values, expected {}", what, have, want));
  }
}

}  // namespace

void validate_signals(const SignalTable& t, const std::string& where) {
  const auto fail = [&](std::string_view what, std::size_t i, std::string message) {
    throw InputError(where, fmt::format("{}[{}]: {}", what, i, message));
  };
  if (t.steps() == 0 || t.gpus == 0 || t.layers == 0 || t.experts == 0) {
    throw InputError(where,
                     fmt::format("{} steps of {} GPUs, {} MoE layers, {} experts: each is at "
                                 "least 1",
                                 t.steps(), t.gpus, t.layers, t.experts));
  }
  const std::size_t s = t.steps(), cells = std::size_t{t.layers} * t.experts;
  const std::size_t row = std::size_t{t.layers} * (t.experts + std::size_t{1});
  check_size(t.decodes.size(), s, "decodes", where);
  check_size(t.end_ps.size(), s, "end", where);
  check_size(t.used.size(), s * t.gpus, "used", where);
  check_size(t.elastic.size(), s * t.gpus, "elastic", where);
  check_size(t.placement.size(), s, "placement", where);
  check_size(t.first_gpu.size(), row * t.placements(), "first_gpu", where);
  if (!t.queue.empty()) check_size(t.queue.size(), s * cells, "queue", where);
  if (!t.longest_queue.empty()) {
    check_size(t.longest_queue.size(), s * t.layers, "longest_queue", where);
  }
  if (!t.replica.empty()) check_size(t.replica.size(), s, "replica", where);
  if (t.replica.empty() != t.sequence_replica.empty()) {
    throw InputError(where, "replicas of steps and of sequences are present together");
  }
  for (std::size_t i = 0; i < t.replica.size(); ++i) {
    if (t.replica[i] >= t.gpus) {
      fail("replica", i, fmt::format("replica {} of {} GPUs", t.replica[i], t.gpus));
    }
  }
  const std::set<std::uint32_t> stepping(t.replica.begin(), t.replica.end());
  for (std::size_t i = 0; i < t.sequence_replica.size(); ++i) {
    const std::uint32_t r = t.sequence_replica[i];
    if (r != kNoReplica && !stepping.contains(r)) {
      fail("sequence_replica", i, fmt::format("replica {} has no step", r));
    }
  }
  for (std::size_t i = 0; i < s; ++i) {
    if (t.decodes[i] > 1) fail("decodes", i, fmt::format("{} is neither 0 nor 1", t.decodes[i]));
    if (t.start_ps[i] < (i == 0 ? 0 : t.start_ps[i - 1])) {
      fail("start", i, fmt::format("{} ps: times ascend from 0", t.start_ps[i]));
    }
    if (t.end_ps[i] < t.start_ps[i]) {
      fail("end", i,
           fmt::format("{} ps is before the step's start at {} ps", t.end_ps[i], t.start_ps[i]));
    }
    if (t.placement[i] >= t.placements()) {
      fail("placement", i, fmt::format("{} of {}", t.placement[i], t.placements()));
    }
  }
  for (std::size_t i = 0; i < t.used.size(); ++i) {
    // More than 1 is a simulated machine that is out of memory.
    if (!(t.used[i] >= 0) || !std::isfinite(t.used[i])) {
      fail("used", i, fmt::format("{} is no share of a memory", t.used[i]));
    }
    if (!(t.elastic[i] >= 0) || !std::isfinite(t.elastic[i])) {
      fail("elastic", i, fmt::format("{} is no share of a memory", t.elastic[i]));
    }
  }
  for (std::size_t i = 0; i < t.first_gpu.size(); ++i) {
    const bool last = (i + 1) % (t.experts + std::size_t{1}) == 0;
    if (t.first_gpu[i] > t.gpu.size() || (!last && t.first_gpu[i + 1] <= t.first_gpu[i])) {
      fail("first_gpu", i, "offsets ascend, so that every expert has a GPU, and end with the list");
    }
  }
  for (std::size_t i = 0; i < t.gpu.size(); ++i) {
    if (t.gpu[i] >= t.gpus) fail("gpu", i, fmt::format("GPU {} of {}", t.gpu[i], t.gpus));
  }
  for (std::size_t i = 0; i < t.queue.size(); ++i) {
    if (!(t.queue[i] >= 0) || !std::isfinite(t.queue[i])) {
      fail("queue", i, fmt::format("{} is no length of a queue", t.queue[i]));
    }
  }
}

bool reads_queue_levels(const RoutingPolicy& policy) {
  return policy.load_aware.u == LoadLevel::kQueue;
}

bool reads_longest_queue(const RoutingPolicy& policy) {
  return policy.soft_balance.on() && policy.soft_balance.batch_limit.has_value();
}

void require_queues(const SignalTable& table, const RoutingPolicy& policy,
                    const std::string& where) {
  const auto refuse = [&](bool missing, std::string_view key) {
    if (missing) {
      throw InputError(
          where,
          fmt::format("holds no queues, which policy.{} reads: the simulation's policy "
                      "read none",
                      key),
          "simulate with the policy that the engine runs with");
    }
  };
  refuse(reads_queue_levels(policy) && table.queue.empty(), "load_aware.u = queue");
  refuse(reads_longest_queue(policy) && table.longest_queue.empty(), "soft_balance.batch_limit");
}

std::uint32_t SignalTable::replicas() const {
  return replica.empty() ? 1 : 1 + *std::max_element(replica.begin(), replica.end());
}

SignalCursor::SignalCursor(const SignalTable* table) : table_(table) {
  if (table == nullptr) return;
  replicas_ = table->replicas();
  for (std::uint32_t s = 0; s < table->steps(); ++s) {
    Replica& of = stepping_[table->replica.empty() ? 0 : table->replica[s]];
    of.steps[table->decodes[s]].push_back(s);
    of.all.push_back(s);
  }
}

std::uint32_t SignalCursor::replica_of(std::uint32_t sequence) const {
  if (replicas_ == 1) return 0;
  if (sequence < table_->sequence_replica.size()) {
    const std::uint32_t r = table_->sequence_replica[sequence];
    if (r != kNoReplica) return r;
  }
  return std::next(stepping_.begin(), static_cast<std::ptrdiff_t>(sequence % stepping_.size()))
      ->first;
}

void SignalCursor::begin_step(bool decodes, std::uint32_t replica) {
  if (table_ == nullptr) return;
  const auto found = stepping_.find(replica);
  SWITCHYARD_ASSERT(found != stepping_.end(), fmt::format("replica {} has no step", replica));
  Replica& of = found->second;
  const std::vector<std::uint32_t>& mine = of.steps[decodes ? 1 : 0];
  const std::uint32_t n = of.count[decodes ? 1 : 0]++;
  const std::uint32_t first = of.all.front(), last = of.all.back();
  const auto seconds = [](std::int64_t ps) { return static_cast<double>(ps) * 1e-12; };
  const double mean = (seconds(table_->end_ps[last]) - seconds(table_->start_ps[first])) /
                      static_cast<double>(of.all.size());
  double start = 0;
  if (mine.empty()) {
    sample_ = decodes ? last : first;
    start = decodes ? seconds(table_->end_ps[last]) + mean * n : seconds(table_->start_ps[first]);
  } else if (n < mine.size()) {
    sample_ = mine[n];
    start = seconds(table_->start_ps[sample_]);
  } else {
    sample_ = mine.back();
    start = seconds(table_->end_ps[sample_]) + mean * static_cast<double>(n - mine.size());
  }
  of.clock = std::max(of.clock, start);
  clock_ = of.clock;
}

Signals SignalCursor::view(std::uint32_t layer) const {
  SWITCHYARD_ASSERT(table_ != nullptr && layer < table_->layers, fmt::format("layer {}", layer));
  const SignalTable& t = *table_;
  const std::size_t row = t.experts + std::size_t{1};
  Signals s;
  s.start = clock_;
  s.used = std::span(t.used).subspan(std::size_t{sample_} * t.gpus, t.gpus);
  s.elastic = std::span(t.elastic).subspan(std::size_t{sample_} * t.gpus, t.gpus);
  s.first_gpu = std::span(t.first_gpu)
                    .subspan((std::size_t{t.placement[sample_]} * t.layers + layer) * row, row);
  s.gpu = t.gpu;
  const std::size_t cell = std::size_t{sample_} * t.layers + layer;
  if (!t.queue.empty()) s.queue = std::span(t.queue).subspan(cell * t.experts, t.experts);
  if (!t.longest_queue.empty()) s.longest_queue = t.longest_queue[cell];
  return s;
}

}  // namespace switchyard
