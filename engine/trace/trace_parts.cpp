// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

constexpr std::size_t kLeastParts = 4;

std::uint64_t bytes_of(const TraceRouting& r) {
  return r.candidates.size() * 2 + r.logit.size() * 4 + r.lse.size() * 4 + r.first.size() * 2 +
         r.chosen.size() * 2 + r.weights.size() * 4 + r.outcome.size() + r.router_input.size() * 2;
}

TracePart view(const TraceHeader& h, std::uint64_t first, std::uint64_t end,
               const TraceRouting& routing) {
  return {first, end, &routing, h.layer_count(), h.candidates, h.slots};
}

}  // namespace

TraceParts::TraceParts(std::uint64_t rows, std::uint64_t rows_each, std::uint64_t budget, Read read)
    : rows_(rows), rows_each_(rows_each), budget_(budget), read_(std::move(read)) {
  SWITCHYARD_ASSERT(rows_each >= 1, "parts of no rows");
}

TracePart TraceParts::part(const TraceHeader& header, std::uint64_t row, bool decisions) {
  SWITCHYARD_ASSERT(row < rows_, fmt::format("row {} of {}", row, rows_));
  const std::uint64_t key = row / rows_each_ * 2 + (decisions ? 1 : 0);
  if (parts_.empty() || parts_.front().key != key) {
    const auto it = index_.find(key);
    if (it != index_.end()) {
      parts_.splice(parts_.begin(), parts_, it->second);
    } else {
      Part p;
      p.key = key;
      p.first = row / rows_each_ * rows_each_;
      p.end = std::min(p.first + rows_each_, rows_);
      p.routing = read_(p.first, p.end, decisions);
      p.bytes = bytes_of(p.routing);
      ++reads_;
      held_ += p.bytes;
      parts_.push_front(std::move(p));
      index_[key] = parts_.begin();
      while (held_ > budget_ && parts_.size() > kLeastParts) {
        held_ -= parts_.back().bytes;
        index_.erase(parts_.back().key);
        parts_.pop_back();
      }
    }
  }
  const Part& p = parts_.front();
  return view(header, p.first, p.end, p.routing);
}

void for_each_part(const RoutingTrace& trace, const std::function<void(const TracePart&)>& f) {
  if (trace.parts == nullptr) {
    f(view(trace.header, 0, trace.rows(), trace.routing));
    return;
  }
  for (std::uint64_t row = 0; row < trace.rows(); row += trace.parts->rows_each()) {
    f(trace.parts->part(trace.header, row, true));
  }
}

TraceCell trace_cell(const RoutingTrace& trace, std::uint64_t row, std::uint32_t l) {
  const TracePart p = trace.parts != nullptr ? trace.parts->part(trace.header, row, false)
                                             : view(trace.header, 0, trace.rows(), trace.routing);
  const std::size_t at = p.candidate_at(row, l);
  return {std::span(p.routing->candidates).subspan(at, p.candidates),
          std::span(p.routing->logit).subspan(at, p.candidates),
          p.routing->lse[p.layer_at(row, l)]};
}

}  // namespace switchyard
