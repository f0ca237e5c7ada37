// SPDX-License-Identifier: Apache-2.0
// Exchanges and transfers that share links, timed by SimGrid 3.32 (simulation.md §2).
//
//   flow    one Comm per ordered pair, max-min fair (CM02 engine). A pair starts once the activity,
//           its sender and its receiver are ready, plus the latency of its own route.
//   coflow  one ptask_L07 parallel task per activity. It starts once all its endpoints are ready,
//           plus the largest latency among its pairs, and all its pairs end together. Tasks that
//           meet on a link get equal shares of its bandwidth (max-min fair among tasks).
//
// SimGrid sees no latency at all (with one inside, CM02 shares links in inverse proportion to it)
// and no absolute time of ours: every batch starts at its own zero, durations are converted to
// integer picoseconds one by one, rounded to nearest, at least 1 ps for a non-empty transfer.
//
// One process can have one SimGrid engine, hence one ContentionSession. `flow` costs about 10 ms of
// wall time per exchange at 16 GPUs and seconds at 64; use `coflow` for large groups.
//
// Not modelled: packets, protocol start-up, rate limits of single streams.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/cluster/route_table.hpp"
#include "sim/network/bottleneck.hpp"

namespace switchyard::network {

/// One exchange (or one phase of it, or a single copy) within a batch. All times count from the
/// origin of the batch.
struct Activity {
  std::string name;                 ///< For the deadlock report; empty: "activity <index>".
  std::vector<Transfer> transfers;  ///< Bytes of one pair given twice are added up first.
  SimTime start;                    ///< Not before this. ≥ 0.
  std::vector<SimTime> ready;  ///< Empty, or [endpoints]: when each endpoint takes part. ≥ 0.
  std::vector<std::uint32_t> after;  ///< Activities of the batch that must have ended before.
  bool continues = false;  ///< A later phase of a call: it pays RouteTable::phase_latency().
};

struct ActivityResult {
  SimTime start;  ///< When the first of its transfers could start, latency not counted.
  SimTime end;    ///< When the last ended; = start without bytes.
  std::vector<SimTime>
      transfer_end;  ///< Per transfer as given; empty ones end when they could start.
};

/// A batch whose activities wait for each other for ever. what() lists each: who waits, for whom,
/// since when.
class DeadlockError : public std::runtime_error {
 public:
  struct Entry {
    std::string who, waits_for;
    SimTime since;
  };
  explicit DeadlockError(std::vector<Entry> table);
  [[nodiscard]] const std::vector<Entry>& table() const { return table_; }

 private:
  std::vector<Entry> table_;
};

enum class ContentionKind : std::uint8_t { kFlow, kCoflow };

class ContentionSession {
 public:
  /// Throws std::logic_error if this process has had one before. `routes` must outlive it.
  ContentionSession(ContentionKind kind, const cluster::RouteTable& routes);
  ~ContentionSession();
  ContentionSession(const ContentionSession&) = delete;
  ContentionSession& operator=(const ContentionSession&) = delete;

  /// Runs the batch to its end. Indices must be in range (asserted). Throws DeadlockError for a
  /// cycle in `after`; the session cannot be used after that (std::logic_error).
  std::vector<ActivityResult> run(std::span<const Activity> activities);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::network
