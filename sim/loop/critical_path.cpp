// SPDX-License-Identifier: Apache-2.0
// The critical path of a step: the chain of activities that fixed its end.
//
// Every clock (of a GPU, of the wires, of an exchange under way) knows the way to it from the
// step's start. Work of a GPU extends its own way. An exchange that a GPU waited for replaces it by
// the way of the participant that came last, and the exchange; so does a wire that was still busy.
// Hence the pieces of the way to the last GPU's end follow each other without a gap and sum to the
// step's duration. What overlaps with them and nobody waited for is not among them.
//
// Not modelled: the way inside an exchange (which of its transfers ended last).
#include <fmt/format.h>

#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

void Simulator::extend(Path& path, const Activity& what, std::int64_t ps) {
  if (ps == 0) return;
  path.ps[at(what.phase)] += ps;
  pieces_.push_back({ps, what, path.last});
  path.last = static_cast<std::uint32_t>(pieces_.size() - 1);
}

std::vector<run::CriticalEntry> Simulator::critical_path(const Path& path, std::int64_t end) {
  std::vector<run::CriticalEntry> out;
  for (std::uint32_t i = path.last; i != run::kNone; i = pieces_[i].before) {
    const PathPiece& p = pieces_[i];
    end -= p.ps;
    run::CriticalEntry e;
    e.step = static_cast<std::uint32_t>(step_);
    e.layer = p.what.layer;
    e.phase = p.what.phase;
    e.gpu = p.what.gpu;
    e.reason = p.what.reason;
    e.start_ps = end;
    e.duration_ps = p.ps;
    if (!out.empty() && out.back().layer == e.layer && out.back().phase == e.phase &&
        out.back().gpu == e.gpu && out.back().reason == e.reason) {
      out.back().start_ps = end;
      out.back().duration_ps += p.ps;
    } else {
      out.push_back(e);
    }
  }
  std::reverse(out.begin(), out.end());
  if (end != record_.scalars.start_ps) {
    violation("time", fmt::format("step {}", step_),
              fmt::format("the critical path begins at {} ps, the step at {} ps", end,
                          record_.scalars.start_ps));
  }
  return out;
}

void Simulator::offer_critical(const run::StepScalars& step,
                               std::vector<run::CriticalEntry>&& path) {
  if (step.warmup || step.end_ps - step.start_ps <= slowest_step_ps_) return;
  slowest_step_ps_ = step.end_ps - step.start_ps;
  slowest_critical_ = std::move(path);
}

}  // namespace switchyard::sim
