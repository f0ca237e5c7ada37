// SPDX-License-Identifier: Apache-2.0
// Traces larger than memory: header, sequences and token rows are in memory (17 B a row), what the
// routers saw and decided stays in the file and is read some hundred rows at a time.
//
//   RoutingTrace trace = open_trace("t.h5");            // small: all in memory, as read_trace
//   for_each_part(trace, [&](const TracePart& p) {      // one part, or many
//     for (row = p.first; row < p.end; ++row) p.routing->lse[p.layer_at(row, l)] …
//   });
//   TraceCell cell = trace_cell(trace, row, l);         // any row, in any order
//
// open_trace checks every row once, as read_trace does, with the same errors; parts that are read
// later were checked then. Parts are kept up to a byte budget, the one longest unused goes first.
// Not modelled: router_input by parts; threads (one at a time, the parts change behind const);
// replay() of a trace by parts (it holds all decisions).
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>

#include "engine/trace/trace.hpp"

namespace switchyard {

/// Traces whose routing has more bytes than this are read by parts.
inline constexpr std::uint64_t kTraceBytesInMemory = 256ULL << 20;

/// As read_trace; the routing of a trace above `most_bytes` stays in the file: `routing` is empty
/// and `parts` is set, which holds at most about `most_bytes` (at least four parts). `last_input`:
/// as TraceReadOptions; it is in memory whatever its size (2 H bytes a row).
[[nodiscard]] RoutingTrace open_trace(const std::filesystem::path& path, bool verify = true,
                                      std::uint64_t most_bytes = kTraceBytesInMemory,
                                      bool last_input = false);

/// What the routers saw and decided for rows [first, end); borrowed until the next part is read.
struct TracePart {
  std::uint64_t first = 0, end = 0;
  const TraceRouting* routing = nullptr;
  std::uint32_t layers = 0, candidates = 0, slots = 0;
  [[nodiscard]] std::uint64_t layer_at(std::uint64_t row, std::uint32_t l) const {
    return (row - first) * layers + l;
  }
  [[nodiscard]] std::uint64_t candidate_at(std::uint64_t row, std::uint32_t l,
                                           std::uint32_t m = 0) const {
    return layer_at(row, l) * candidates + m;
  }
  [[nodiscard]] std::uint64_t slot_at(std::uint64_t row, std::uint32_t l,
                                      std::uint32_t j = 0) const {
    return layer_at(row, l) * slots + j;
  }
};

/// All rows in order. Decisions are empty when the trace has none.
void for_each_part(const RoutingTrace& trace, const std::function<void(const TracePart&)>& f);

/// Candidates of one row and layer; borrowed until the next call for a trace by parts.
struct TraceCell {
  std::span<const std::uint16_t> candidates;  ///< [M]
  std::span<const float> logit;               ///< [M]
  float lse = 0;
};
[[nodiscard]] TraceCell trace_cell(const RoutingTrace& trace, std::uint64_t row, std::uint32_t l);

/// The file behind a trace that is read by parts.
class TraceParts {
 public:
  /// Reads rows first … end − 1; `decisions` too, or candidates, logits and log-sum-exps only.
  using Read = std::function<TraceRouting(std::uint64_t first, std::uint64_t end, bool decisions)>;
  /// Parts of `rows_each` >= 1 rows of `rows`; keeps at most `budget` bytes, at least four parts.
  TraceParts(std::uint64_t rows, std::uint64_t rows_each, std::uint64_t budget, Read read);

  /// The part that holds `row`, for trace_cell (without decisions) and for_each_part (with).
  TracePart part(const TraceHeader& header, std::uint64_t row, bool decisions);
  [[nodiscard]] std::uint64_t rows_each() const { return rows_each_; }
  [[nodiscard]] std::uint64_t held_bytes() const { return held_; }
  /// Parts read so far.
  [[nodiscard]] std::uint64_t reads() const { return reads_; }

 private:
  struct Part {
    std::uint64_t key = 0;  // 2 * number + (with decisions)
    std::uint64_t first = 0, end = 0, bytes = 0;
    TraceRouting routing;
  };
  std::uint64_t rows_, rows_each_, budget_;
  Read read_;
  std::list<Part> parts_;  // most recently used first
  std::map<std::uint64_t, std::list<Part>::iterator> index_;
  std::uint64_t held_ = 0, reads_ = 0;
};

}  // namespace switchyard
