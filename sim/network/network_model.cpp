// SPDX-License-Identifier: Apache-2.0
#include "sim/network/network_model.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.hpp"

namespace switchyard::network {

const char* name_of(Model model) {
  switch (model) {
    case Model::kAuto:
      return "auto";
    case Model::kFlow:
      return "flow";
    case Model::kCoflow:
      return "coflow";
    case Model::kBottleneck:
      break;
  }
  return "bottleneck";
}

NetworkModel::NetworkModel(Model model, Algorithm algorithm, cluster::RouteTable routes,
                           const MeasuredLinks* measured)
    : model_(model),
      algorithm_(algorithm),
      routes_(std::make_unique<cluster::RouteTable>(std::move(routes))),
      closed_(*routes_),
      measured_(measured != nullptr ? std::make_unique<MeasuredLinks>(*measured) : nullptr),
      scratch_(routes_->links()),
      takes_part_(routes_->endpoints) {
  if (measured != nullptr) {
    if (model == Model::kFlow || model == Model::kCoflow) {
      throw InputError("network.model",
                       fmt::format("\"{}\" with measured links is unsupported", name_of(model)),
                       "use model = \"auto\" or \"bottleneck\"");
    }
    closed_.measure(measured->curve, measured->on_link);
  }
  if (model == Model::kFlow || model == Model::kCoflow) {
    session();
  }
}
NetworkModel::~NetworkModel() = default;
NetworkModel::NetworkModel(NetworkModel&&) noexcept = default;

ContentionSession& NetworkModel::session() {
  if (session_ == nullptr) {
    session_ = std::make_unique<ContentionSession>(
        model_ == Model::kFlow ? ContentionKind::kFlow : ContentionKind::kCoflow, *routes_);
  }
  return *session_;
}

BottleneckModel& NetworkModel::later() {
  if (routes_->phase_latency_ps.empty()) return closed_;
  if (later_ == nullptr) {
    cluster::RouteTable routes = *routes_;
    routes.latency_ps = routes.phase_latency_ps;
    later_ = std::make_unique<BottleneckModel>(routes);
    if (measured_ != nullptr) later_->measure(measured_->curve, measured_->on_link);
  }
  return *later_;
}

void NetworkModel::exchange(std::span<const std::uint64_t> bytes, std::span<const SimTime> ready,
                            ExchangeResult& result, bool continues) {
  const std::size_t n = routes_->endpoints;
  SWITCHYARD_ASSERT(
      bytes.size() == n * n && ready.size() == n,
      fmt::format("{} bytes, {} ready times, {} GPUs", bytes.size(), ready.size(), n));
  result.link_bytes.resize(routes_->links());
  result.end.assign(ready.begin(), ready.end());
  result.extrapolated = false;
  const bool closed = model_ == Model::kBottleneck || model_ == Model::kAuto;

  // Loads, floor, bottleneck and straggler are the same question under every model.
  std::vector<Phase> phases;
  SimTime closed_duration, longest;
  if (algorithm_ == Algorithm::kDirect) {
    BottleneckModel& form = continues ? later() : closed_;
    const BottleneckTime t = form.evaluate(bytes, result.link_bytes);
    take(form, t, result);
    closed_duration = t.duration;
    if (!closed) {
      phases = all_to_all(Algorithm::kDirect, bytes, routes_->node);
    }
  } else {
    phases = all_to_all(algorithm_, bytes, routes_->node);
    std::fill(result.link_bytes.begin(), result.link_bytes.end(), 0);
    std::fill(takes_part_.begin(), takes_part_.end(), std::uint8_t{0});
    result.floor = SimTime();
    result.alpha = SimTime();
    result.bytes = 0;
    result.bottleneck_link = result.straggler = kNone;
    result.reason = StragglerReason::kNone;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        result.bytes += i == j ? 0 : bytes[i * n + j];
      }
    }
    for (const Phase& phase : phases) {
      BottleneckModel& form = continues || &phase != phases.data() ? later() : closed_;
      const BottleneckTime t = form.evaluate(phase, scratch_);
      closed_duration += t.duration;
      result.floor += t.floor;
      result.alpha += t.alpha;
      result.extrapolated = result.extrapolated || t.extrapolated;
      for (std::size_t l = 0; l < scratch_.size(); ++l) {
        result.link_bytes[l] += scratch_[l];
      }
      for (std::size_t i = 0; i < n; ++i) {
        takes_part_[i] |= form.participants()[i];
      }
      if (t.duration > longest) {
        longest = t.duration;
        result.bottleneck_link = t.link;
        result.straggler = t.straggler;
        result.reason = t.reason;
      }
    }
  }
  result.participates.assign(takes_part_.begin(), takes_part_.end());
  result.last_ready = kNone;
  if (result.bytes == 0) {
    result.start = n == 0 ? SimTime() : *std::max_element(ready.begin(), ready.end());
    result.duration = SimTime();
    return;
  }

  const SimTime first_ready = find_ready(ready, result);
  if (closed) {
    end_together(closed_duration, result);
  } else {
    // The batch's zero is the first ready time: SimGrid never sees an absolute time.
    std::vector<Activity> batch(phases.size());
    for (std::size_t p = 0; p < phases.size(); ++p) {
      batch[p].transfers = std::move(phases[p]);
      batch[p].continues = continues || p > 0;
      if (p > 0) {
        batch[p].after.push_back(static_cast<std::uint32_t>(p - 1));
      }
    }
    batch.front().ready.assign(n, SimTime());
    for (std::size_t i = 0; i < n; ++i) {
      if (takes_part_[i] != 0) {
        batch.front().ready[i] = ready[i] - first_ready;
      }
    }
    if (batch.size() > 1) {
      batch.front().start = result.start - first_ready;  // A phase is a barrier of all.
    }
    const std::vector<ActivityResult> done = session().run(batch);
    const SimTime end = first_ready + done.back().end;
    result.duration = end - result.start;
    if (batch.size() == 1 && model_ == Model::kFlow) {
      // GPUs that are ready send before the last one is: the bytes need the floor's time since the
      // first was ready, so less of it may be left.
      const SimTime early = result.start - first_ready;
      result.floor = result.floor > early ? result.floor - early : SimTime();
      for (std::size_t t = 0; t < batch.front().transfers.size(); ++t) {
        const Transfer& transfer = batch.front().transfers[t];
        const SimTime own = first_ready + done.front().transfer_end[t];
        result.end[transfer.src] = std::max(result.end[transfer.src], own);
        result.end[transfer.dst] = std::max(result.end[transfer.dst], own);
      }
      if (result.end[result.straggler] < end) {
        // Max-min sharing can make another GPU the last one.
        result.straggler = static_cast<std::uint32_t>(
            std::find(result.end.begin(), result.end.end(), end) - result.end.begin());
      }
    } else {
      for (std::size_t i = 0; i < n; ++i) {
        if (takes_part_[i] != 0) {
          result.end[i] = end;
        }
      }
    }
  }
  blame_late(first_ready, result);
}

void NetworkModel::exchange_copies(std::uint64_t bytes, bool back, std::span<const SimTime> ready,
                                   ExchangeResult& result) {
  SWITCHYARD_ASSERT(ready.size() == routes_->endpoints, fmt::format("{} ready", ready.size()));
  result.link_bytes.resize(routes_->links());
  result.end.assign(ready.begin(), ready.end());
  const BottleneckTime t = closed_.evaluate_copies(bytes, back, result.link_bytes);
  take(closed_, t, result);
  result.participates.assign(takes_part_.begin(), takes_part_.end());
  result.last_ready = kNone;
  if (result.bytes == 0) {
    result.start = *std::max_element(ready.begin(), ready.end());
    result.duration = SimTime();
    return;
  }
  const SimTime first_ready = find_ready(ready, result);
  end_together(t.duration, result);
  blame_late(first_ready, result);
}

void NetworkModel::take(const BottleneckModel& form, const BottleneckTime& time,
                        ExchangeResult& result) {
  std::copy(form.participants().begin(), form.participants().end(), takes_part_.begin());
  result.floor = time.floor;
  result.alpha = time.alpha;
  result.bytes = time.bytes;
  result.bottleneck_link = time.link;
  result.straggler = time.straggler;
  result.reason = time.reason;
  result.extrapolated = time.extrapolated;
}

SimTime NetworkModel::find_ready(std::span<const SimTime> ready, ExchangeResult& result) const {
  std::uint32_t last = kNone;
  SimTime first;
  for (std::uint32_t i = 0; i < ready.size(); ++i) {
    if (takes_part_[i] == 0) continue;
    if (last == kNone || ready[i] < first) first = ready[i];
    if (last == kNone || ready[i] > ready[last]) last = i;
  }
  result.start = ready[last];
  result.last_ready = last;
  return first;
}

void NetworkModel::end_together(SimTime duration, ExchangeResult& result) const {
  result.duration = duration;
  for (std::size_t i = 0; i < takes_part_.size(); ++i) {
    if (takes_part_[i] != 0) result.end[i] = result.start + duration;
  }
}

void NetworkModel::blame_late(SimTime first_ready, ExchangeResult& result) {
  if (result.start - first_ready > result.duration) {
    result.straggler = result.last_ready;
    result.reason = StragglerReason::kLate;
  }
}

std::vector<ActivityResult> NetworkModel::run(std::span<const Activity> activities) {
  if (model_ == Model::kFlow || model_ == Model::kCoflow) {
    return session().run(activities);
  }
  std::vector<ActivityResult> results;
  std::string meeting;
  if (run_closed(activities, results, meeting)) {
    return results;
  }
  if (measured_ != nullptr) {
    throw InputError("network.measured", meeting + "; a measured link is known only alone",
                     "drop network.measured, or keep the traffic apart");
  }
  if (model_ == Model::kBottleneck) {
    throw InputError("network.model",
                     meeting +
                         "; the closed form holds only for traffic alone on "
                         "its links",
                     "use model = \"auto\", \"coflow\" or \"flow\"");
  }
  return session().run(activities);
}

bool NetworkModel::run_closed(std::span<const Activity> activities,
                              std::vector<ActivityResult>& results, std::string& meeting) {
  const std::size_t count = activities.size();
  const auto name = [&](std::size_t a) {
    return activities[a].name.empty() ? fmt::format("activity {}", a) : activities[a].name;
  };
  results.assign(count, {});
  std::vector<std::uint8_t> done(count, 0);
  struct Use {
    std::size_t activity;
    SimTime begin, end;
  };
  std::vector<std::vector<Use>> uses(routes_->links());
  for (std::size_t finished = 0; finished < count;) {
    const std::size_t before = finished;
    for (std::size_t a = 0; a < count; ++a) {
      const Activity& activity = activities[a];
      if (done[a] != 0 ||
          !std::all_of(activity.after.begin(), activity.after.end(), [&](std::uint32_t p) {
            SWITCHYARD_ASSERT(p < count, fmt::format("after = {} of {}", p, count));
            return done[p] != 0;
          })) {
        continue;
      }
      SimTime base = activity.start;
      for (const std::uint32_t p : activity.after) {
        base = std::max(base, results[p].end);
      }
      const auto ready = [&](std::uint32_t e) {
        return activity.ready.empty() ? base : std::max(base, activity.ready[e]);
      };
      ActivityResult& r = results[a];
      BottleneckModel& form = activity.continues ? later() : closed_;
      const BottleneckTime t = form.evaluate(activity.transfers, scratch_);
      r.start = base;
      for (const Transfer& x : activity.transfers) {
        if (x.src != x.dst && x.bytes != 0) {
          r.start = std::max({r.start, ready(x.src), ready(x.dst)});
        }
      }
      r.end = r.start + t.duration;
      for (const Transfer& x : activity.transfers) {
        r.transfer_end.push_back(
            x.src == x.dst || x.bytes == 0 ? std::max(ready(x.src), ready(x.dst)) : r.end);
      }
      for (std::size_t l = 0; l < scratch_.size(); ++l) {
        if (scratch_[l] == 0) {
          continue;
        }
        const Use use{a, r.start + t.alpha, r.end};
        for (const Use& other : uses[l]) {
          if (other.begin < use.end && use.begin < other.end) {
            meeting = fmt::format("{} and {} use link {} at the same time", name(other.activity),
                                  name(a), routes_->link_name[l]);
            return false;
          }
        }
        uses[l].push_back(use);
      }
      done[a] = 1;
      ++finished;
    }
    if (finished == before) {
      std::vector<DeadlockError::Entry> table;
      for (std::size_t a = 0; a < count; ++a) {
        if (done[a] != 0) {
          continue;
        }
        DeadlockError::Entry e{name(a), "", SimTime()};
        for (const std::uint32_t p : activities[a].after) {
          if (done[p] == 0) {
            e.waits_for += (e.waits_for.empty() ? "" : ", ") + name(p);
          } else {
            e.since = std::max(e.since, results[p].end);
          }
        }
        table.push_back(std::move(e));
      }
      throw DeadlockError(std::move(table));
    }
  }
  return true;
}

}  // namespace switchyard::network
