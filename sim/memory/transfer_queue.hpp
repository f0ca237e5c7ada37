// SPDX-License-Identifier: Apache-2.0
// Copies between a GPU and host memory or an SSD (experts, M34; pages of a KV cache) on the links
// of the cluster, beside the exchanges of the step loop.
//
// Copies of one lane (a GPU's copy engine) follow each other in the order added: each begins when
// it may (`ready`) and the one before it has ended; it pays its path's latency and then moves its
// bytes. A path from an SSD through host memory to a GPU is a pipeline of chunks: its slowest link
// decides. Copies of different lanes and exchanges that use a link at the same time share it as the
// parallel tasks of SimGrid's ptask_L07 do (network model `coflow`): every task on a link gets an
// equal part of its bandwidth, and what a task held back elsewhere cannot use is shared out again,
// until each task has a full link. An exchange is one task per phase, or with Sharing::kPairs
// (model `flow`) one task per pair. Where nothing is shared this is bytes / bandwidth; tests
// compare it with SimGrid to 1e-9.
//
// A queue that keeps exchanges remembers every one and not only those that meet a copy, so that
// exchanges of different groups share links as well, and traffic that is added later slows down
// what was timed before. An exchange then tells after which others it begins, and how long after:
// exchange_end() is what is known now, as end() is for copies.
//
// Measured links (measure()): an exchange moves what it carries over such a link at no more than
// the table's rate for that many bytes, all its pairs of a phase there together; a copy is a
// message by itself. The bound is a link of its own beside the others: alone an exchange takes the
// closed form's time (max over links of the table's time of their bytes, to 1e-9), and what it
// leaves of the link's nominal rate others may use, as the start-up of a message keeps no link
// busy.
//
// Times are absolute, integer picoseconds ≥ 0; progress is kept exactly between them. end() is what
// is known so far: an exchange that is run later on the same link makes a copy end later.
//
// Not modelled: priorities (a copy that is wanted now waits for those before it in its lane), the
// host's memory bandwidth (PCIe links are narrower); without keeping exchanges: slowing down an
// exchange by copies that are added after it was timed.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/cluster/route_table.hpp"
#include "sim/network/algorithms.hpp"
#include "sim/network/network_model.hpp"

namespace switchyard::sim {

/// How an exchange takes part: as one task per phase, as one per pair, or not at all (a meeting is
/// an InputError, network model `bottleneck`).
enum class Sharing : std::uint8_t { kTask, kPairs, kRefused };

class TransferQueue {
 public:
  using Id = std::uint64_t;
  static constexpr std::uint32_t kAll = UINT32_MAX;  ///< Of an exchange, not of one of its GPUs.

  /// `routes`: endpoints of add() and run(). Exchanges are kept with kTask and kPairs only.
  TransferQueue(cluster::RouteTable routes, std::uint32_t lanes, Sharing sharing,
                bool keeps_exchanges = false);

  [[nodiscard]] const cluster::RouteTable& routes() const { return routes_; }
  /// Of what is added or run from now on. on_link: [links] of the routes. The rate beyond the table
  /// is that of the links when an exchange is run.
  void measure(network::MeasuredLinks links);

  /// Other bandwidths and routes from the time of the last advance() on; the links are the same
  /// ones (asserted). Copies and exchanges under way keep their routes, at the new bandwidths.
  void rewire(cluster::RouteTable routes);
  /// Appends a copy of `bytes` > 0 to a lane; it begins at `ready_ps` at the earliest. `keep_end`:
  /// its end is known until forget_copy(), also when it has been counted and is over.
  Id add(std::uint32_t lane, std::uint32_t src, std::uint32_t dst, std::uint64_t bytes,
         std::int64_t ready_ps, bool keep_end = false);
  /// Takes a copy back if it has not begun before `now_ps`; true if so.
  bool cancel(Id id, std::int64_t now_ps);
  /// When the copy begins and ends as far as is known now. Not for copies taken back, nor for those
  /// that ended before the last count_bytes(), unless their end is kept.
  [[nodiscard]] std::int64_t begin(Id id);
  [[nodiscard]] std::int64_t end(Id id);
  /// Keeps the end of a copy that may still end at another time, as keep_end does; false: it is
  /// over, and its end is what end() says.
  bool hold_end(Id id);
  void forget_copy(Id id);
  /// Ends of copies that are over and may still be asked for.
  [[nodiscard]] std::size_t kept_ends() const { return ended_copies_.size(); }

  /// An exchange; endpoints beyond ready_ps are not used by it.
  struct Exchange {
    std::vector<network::Phase> phases;  ///< One after another, a barrier between them.
    std::vector<std::int64_t> ready_ps;  ///< [≤ endpoints] read by Sharing::kPairs in phase 0.
    std::int64_t begin_ps = 0;           ///< Latest ready time of its participants.
    /// Kept: it begins `gap_ps` ≥ 0 after the end of each of these, not before `floor_ps`. Empty:
    /// at begin_ps.
    struct After {
      Id id = 0;                              ///< Of a kept exchange, or of a copy.
      std::int64_t gap_ps = 0, ready_ps = 0;  ///< ready_ps: if it is forgotten.
      bool copy = false;
      std::uint32_t gpu = kAll;  ///< kPairs, one phase: when its pairs of this GPU have ended.
    };
    std::vector<After> after = {};
    std::int64_t floor_ps = 0;
    /// kPairs, kept, one phase, in place of after and floor_ps: [≤ endpoints] the same of each GPU;
    /// a pair begins when both may. Empty: at ready_ps.
    struct Clock {
      std::vector<After> after;
      std::int64_t floor_ps = 0;
    };
    std::vector<Clock> clocks = {};
    bool continues = false;  ///< Its first phase is a later one of a call, as all others are.
  };
  struct Timed {
    /// Something else was on one of its links. Only then, or when exchanges are kept, the rest says
    /// something.
    bool met = false;
    Id id = 0;
    std::int64_t end_ps = 0;
    std::vector<std::int64_t> transfer_end_ps;  ///< Of the last phase, per transfer as given.
  };
  /// Times exchanges that run beside each other and beside the copies.
  std::vector<Timed> run(std::span<const Exchange> exchanges);

  /// When a kept exchange ends as far as is known now, until it is forgotten; or, kPairs and one
  /// phase, its pairs of a GPU.
  [[nodiscard]] std::int64_t exchange_end(Id id, std::uint32_t gpu = kAll);
  /// The same of its begin; of pairs the last one.
  [[nodiscard]] std::int64_t exchange_begin(Id id);
  /// What its bytes need at least at the best bandwidth that each link has had since it was run; no
  /// value: bandwidths have not changed since.
  [[nodiscard]] std::optional<std::int64_t> exchange_floor(Id id);
  /// Exchanges below `id` that have ended are not asked for any more.
  void forget_exchanges(Id id);

  /// Promises that nothing will be added or run that begins before `now_ps`.
  void advance(std::int64_t now_ps);
  /// advance(), then adds to link_bytes ([links]) what copies moved and was not counted yet, and
  /// forgets copies that have ended.
  void count_bytes(std::int64_t now_ps, std::span<std::uint64_t> link_bytes);
  /// Copies that have not ended by the time of the last advance().
  [[nodiscard]] std::size_t in_flight() const;

 private:
  struct Use {
    std::uint32_t link;
    double bytes;
  };
  struct Bound {  // What tasks of the same key may take together of a measured link.
    Id key;
    double bytes, rate;
  };
  struct Task {
    // Links by index, bytes of the whole task. Shared by the copies of a state.
    std::shared_ptr<const std::vector<Use>> use;
    std::shared_ptr<const std::vector<Bound>> bounds;  // Null: none.
    double path_bytes = 0;      // Bytes of the last pair; the only one of a copy.
    std::int64_t move_ps = -1;  // Bytes move from here on; −1: not known yet.
    double left = 1;            // Share of the task.
    std::int64_t begin_ps = -1, end_ps = -1;
    std::int64_t latency_ps = 0;
    std::uint32_t src = 0, dst = 0;  // Of a pair.
    bool told = false;               // Its end, to those that wait for its GPUs.
  };
  struct Copy {
    Id id = 0;
    std::uint32_t lane = 0;
    std::uint64_t bytes = 0, counted = 0;
    std::int64_t ready_ps = 0;
    Task task;
    bool keep_end = false;
  };
  struct Running {  // An exchange that is on its way.
    Id id = 0;
    std::vector<std::vector<Task>> phases;
    std::size_t phase = 0;
    std::int64_t begin_ps = 0;  // −1: not known yet.
    std::int64_t end_ps = -1;
    struct Before {  // One that runs, and how long after its end.
      Id id;
      std::int64_t gap_ps;
      bool copy;
      std::uint32_t gpu;
    };
    struct Gate {
      std::vector<Before> after;
      std::int64_t floor_ps = 0;
    };
    std::vector<Gate> gates;  // One before phase 0, or one before each of its pairs; or none.
    // [links] the best bandwidth since it was run; null: it has not changed.
    std::shared_ptr<const std::vector<double>> best;

    /// End of the pairs of a GPU (kAll: of everything); −1: not known yet.
    [[nodiscard]] std::int64_t end_of(std::uint32_t gpu) const;
  };
  struct Ended {
    std::int64_t begin_ps = 0, end_ps = 0;
    std::vector<std::pair<std::uint32_t, std::int64_t>> gpus;  // Of pairs.
    std::optional<std::int64_t> floor_ps;
    [[nodiscard]] std::int64_t end_of(std::uint32_t gpu) const;
  };
  struct State {
    std::int64_t now_ps = 0;
    std::vector<std::int64_t> lane_free;
    std::deque<Copy> copies;  // By id.
    std::vector<Running> exchanges;
    std::map<Id, Ended> ended;  // Of the cursor: since the committed state, and not in it.
  };

  static void start(Running& exchange, std::size_t gate, std::int64_t begin_ps);
  static void release(State& state, Id id, bool copy, std::uint32_t gpu, std::int64_t end_ps);
  [[nodiscard]] std::optional<std::int64_t> end_in(const State& state,
                                                   const Exchange::After& one) const;
  void append(State& state, Running exchange, const Exchange& given) const;
  static void tell_pairs(State& state);
  [[nodiscard]] bool by_pairs(std::size_t phases) const {
    return sharing_ == Sharing::kPairs && phases == 1;
  }
  [[nodiscard]] Running running_of(const Exchange& e);
  std::vector<Timed> run_kept(std::span<const Exchange> exchanges);
  [[nodiscard]] Ended ended_of(const Running& x) const;
  [[nodiscard]] std::optional<std::int64_t> floor_of(const Running& x) const;
  [[nodiscard]] Timed result_of(const Running& r, const Exchange& e, bool met) const;
  Task task_of(std::span<const network::Transfer> transfers, std::int64_t begin_ps,
               bool continues) const;
  /// The tasks of a phase, or a copy, which begin together.
  void bound(std::span<Task> tasks);
  /// Moves a state on to `until_ps`, or until everything has ended, or the exchanges from
  /// `last_of` on have.
  void simulate(State& state, std::int64_t until_ps, const Id* last_of = nullptr);
  void rates(const std::vector<Task*>& active);
  void max_min(const std::vector<Task*>& active);
  void fair_tasks(const std::vector<Task*>& active);
  void settle();
  [[nodiscard]] const Running& settled_exchange(Id id);
  [[nodiscard]] const Copy& find(const State& state, Id id) const;

  cluster::RouteTable routes_;
  Sharing sharing_;
  bool keeps_;
  State state_;   // Committed.
  State cursor_;  // The same at the begin of the exchanges run last, when has_cursor_.
  bool has_cursor_ = false;
  std::map<Id, Ended> ended_;                // Kept exchanges that have ended.
  std::map<Id, std::int64_t> ended_copies_;  // The same of copies whose end is kept.
  Id next_exchange_ = 0;
  State settled_;  // The same at the end of all things, when not stale_.
  bool stale_ = false;
  Id next_ = 0;
  std::optional<network::MeasuredLinks> measured_;
  Id next_bound_ = 0;
  // Scratch of rates(). Bounds are links behind those of the routes.
  std::vector<double> bandwidth_;             // [links, bounds] while there are bounds
  std::vector<const std::vector<Use>*> use_;  // [active]
  std::vector<std::vector<Use>> joint_;       // [active] of those with bounds
  std::vector<double> rest_, weight_;         // [links] bandwidth left, tasks that want more of it
  std::vector<double> rate_, step_;           // [active]
  std::vector<std::uint8_t> fixed_;           // [active]
  std::vector<std::vector<std::uint32_t>> on_link_;  // [links] active flows, ascending
  std::vector<std::uint32_t> links_;                 // Those in use.
};

}  // namespace switchyard::sim
