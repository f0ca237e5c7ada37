// SPDX-License-Identifier: Apache-2.0
// Closed form of one exchange alone on its links (simulation.md §2, model "bottleneck").
//
//   duration = α + max over links ℓ of bytes(ℓ) / bandwidth(ℓ)
//   bytes(ℓ) = Σ over ordered pairs (i, j), i ≠ j, of bytes[i][j] · (times ℓ lies on the route i →
//   j) α        = max over the pairs that carry bytes of the latency of their route
// rounded once to the nearest picosecond; 0 without bytes, at least 1 ps with any.
//
// It equals one ptask_L07 parallel task (model "coflow"). With one path latency for all pairs it is
// never above the max-min fair "flow" and equal to it when every ordered pair carries the same
// bytes; with mixed latencies it may exceed "flow" by at most the difference of the latencies.
//
// Speed. A byte matrix has n² entries, but a star needs only row and column sums and a two-tier
// cluster only those of each block of servers. The constructor writes each link's load as a sum of
// such terms (block, row strip, column strip, or single pair) when the routes allow it; otherwise
// the route of each pair is walked. Both give the same integers.
//
// Measured links: measure() gives a link a curve (measured.hpp); its term is then the curve's time
// of bytes(ℓ), and never less than bytes(ℓ) / bandwidth(ℓ). The curve holds the start-up, so the
// caller leaves the latency of such links out of the routes.
//
// Bandwidths are those that exchanges reach. `floor` is at the nominal rates
// (RouteTable::achievable).
//
// Not modelled: any other traffic on the links, message size dependence of links without a curve,
// start-up cost per pair, ordering of the pairs.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/cluster/route_table.hpp"
#include "sim/network/measured.hpp"

namespace switchyard::network {

/// "No such GPU or link".
inline constexpr std::uint32_t kNone = UINT32_MAX;

/// Bytes from one endpoint to another.
struct Transfer {
  std::uint32_t src = 0, dst = 0;
  std::uint64_t bytes = 0;
};

/// Why the straggler was last.
enum class StragglerReason : std::uint8_t {
  kNone,  ///< No bytes.
  kLate,  ///< It became ready last, by more than the exchange itself takes.
  kLoad,  ///< Its link carries the most bytes (or as many as any link, at the same bandwidth).
  kLink   ///< Its link is the slowest although another link carries as many bytes or more.
};
[[nodiscard]] const char* name_of(StragglerReason reason);

struct BottleneckTime {
  SimTime duration;
  SimTime alpha;                    ///< 0 without bytes.
  SimTime floor;                    ///< max bytes / nominal rate, rounded down less 1e-9 of it.
  std::uint64_t bytes = 0;          ///< Σ over i ≠ j.
  std::uint32_t link = kNone;       ///< The bottleneck; lowest index among equals.
  std::uint32_t straggler = kNone;  ///< Endpoint with the most bytes on it; lowest among equals.
  StragglerReason reason = StragglerReason::kNone;  ///< kNone, kLoad or kLink.
  bool extrapolated = false;  ///< A measured link carried fewer or more bytes than its table knows.
};

/// Not thread-safe (it owns scratch memory): one per thread.
class BottleneckModel {
 public:
  /// Copies what it needs of `routes`. Cost O(n² · path length).
  explicit BottleneckModel(const cluster::RouteTable& routes);

  /// bytes: [n][n] row-major, row = source; the diagonal is ignored. The sum must stay ≤ 2^53
  /// (9 PB; asserted). link_bytes: [links], overwritten.
  BottleneckTime evaluate(std::span<const std::uint64_t> bytes,
                          std::span<std::uint64_t> link_bytes);
  /// evaluate() in two parts, where tiered(): copies that all have one size, [n][n] as above, are
  /// summed once; then the exchange of `bytes` per copy, or (back) of what each copy brings back to
  /// its sender. Same results as of the matrix copies · bytes. `copies` must outlive the questions.
  void sum_copies(std::span<const std::uint32_t> copies);
  BottleneckTime evaluate_copies(std::uint64_t bytes, bool back,
                                 std::span<std::uint64_t> link_bytes);
  /// The same from a list; transfers with src = dst or no bytes are ignored.
  BottleneckTime evaluate(std::span<const Transfer> transfers, std::span<std::uint64_t> link_bytes);

  /// Links with on_link[l] = 1 take the time of `curve`; nominal bandwidth above its table.
  /// on_link: [links].
  void measure(const MeasuredCurve& curve, std::span<const std::uint8_t> on_link);

  /// 1 where the last evaluation had bytes from or to the endpoint. [n]
  [[nodiscard]] std::span<const std::uint8_t> participants() const { return participants_; }
  [[nodiscard]] std::uint32_t endpoints() const { return n_; }
  [[nodiscard]] std::size_t links() const { return seconds_per_byte_.size(); }
  /// false: the routes fit no tiers and every pair is walked.
  [[nodiscard]] bool tiered() const { return !terms_.empty(); }

 private:
  BottleneckTime finish(std::span<std::uint64_t> link_bytes, std::uint64_t total,
                        std::int64_t alpha_ps) const;
  std::uint32_t straggler_on(std::uint32_t link) const;
  template <class Bytes>
  void sum_tiers(const Bytes* bytes);
  /// The place in sums_ of the same strip, block or pair of the transposed matrix.
  [[nodiscard]] std::uint32_t transposed(std::uint32_t sum) const;
  void find_participants();
  /// Latest of the latencies of pairs that carry bytes; pair(i, j) > 0 where they do. `back`: the
  /// sums are of the transposed matrix.
  template <class Pair>
  [[nodiscard]] std::int64_t find_alpha(bool back, const Pair& pair) const;
  bool find_tiers(const cluster::RouteTable& routes);

  std::uint32_t n_ = 0;
  std::vector<double> bandwidth_, seconds_per_byte_;  // [links]
  std::vector<double> achievable_;                    // [links], or empty: all 1.
  std::vector<MeasuredCurve> curve_;                  // One or none.
  std::vector<std::uint8_t> measured_;                // [links], or empty without a curve.
  std::vector<std::uint32_t> offset_, route_;         // As in RouteTable.
  std::vector<std::int64_t> latency_ps_;              // [n][n]
  std::vector<std::uint32_t> owner_;  // [links] endpoint common to all pairs of the link, or kNone.
  // Pairs over each link without an owner: [links + 1] offsets, then src · n + dst.
  std::vector<std::uint32_t> shared_offset_, shared_pair_;

  // Tiers: groups of consecutive endpoints [first_[g], first_[g+1]).
  std::uint32_t groups_ = 0;
  std::uint32_t width_ = 0;                  // Common size of the groups, 0 if they differ.
  std::vector<std::uint32_t> first_;         // [groups + 1]
  std::vector<std::uint32_t> group_;         // [n]
  std::vector<std::int64_t> block_latency_;  // [groups][groups] largest latency of a pair.
  std::vector<std::uint8_t> block_uniform_;  // [groups][groups] all pairs have that latency.
  /// Indices into sums_: bytes[plus] − bytes[minus].
  struct Term {
    std::uint32_t plus, minus;
  };
  std::vector<std::uint32_t> term_offset_;  // [links + 1]
  std::vector<Term> terms_, back_terms_;    // The latter of the transposed matrix.
  std::vector<std::uint32_t> single_pair_;  // Pairs summed as themselves.
  // Scratch: bytes from each endpoint to the groups before a group [n][groups + 1]; to each from
  // the groups before a group [groups + 1][n]; blocks [groups][groups]; pairs.
  std::vector<std::uint64_t> sums_, block_sums_;
  std::vector<std::uint8_t> participants_;  // [n]
  // Of the evaluation in progress, one of: bytes, copies (`back_`: of the transposed), a list.
  const std::uint64_t* matrix_ = nullptr;
  const std::uint32_t* copies_ = nullptr;
  bool back_ = false;
  std::span<const Transfer> list_;
};

}  // namespace switchyard::network
