// SPDX-License-Identifier: Apache-2.0
// File: expert_exchange.hpp. Expert parallelism: the routed experts of a layer spread over ranks,
// tokens sent to them and their outputs brought back (M26), on an EP x TP grid (M44).
//
// Who holds what, of R = ep * tp ranks; rank r is part t = r mod tp of group g = r / tp:
//   sequences   s belongs to rank s mod R: its embedding, attention, KV cache, shared experts, head
//   experts     group g holds a block of consecutive experts; the first E mod ep groups one more
//   an expert   part t holds the t-th slice of the rows of gate and up (inner width I) and of the
//               rows of down (hidden width H); the first I mod tp (H mod tp) slices one row more
// Outputs are split, never the sums: every dot product is computed whole, on one rank.
//
// One MoE layer:
//   router logits of all rows to all ranks; each rank then decides for all rows, in canonical
//   order, so that capacity, ties and every policy see what one rank alone would see
//   counts: how many rows go from each rank to each other, and a hash of the decision; a rank that
//   decided otherwise is found here
//   dispatch: a row goes once to each rank that holds a part of one of its experts
//   experts; tp > 1: inner activations to the tp - 1 other parts of the group in between
//   return: one output per (row, slot) to the owner, H / tp values from each part
//   combine: the owner adds w_j * output_j in slot order, as one rank alone does
// Rows, inner activations and outputs go from one backend's memory to another's where the job can
// (Communicator::moves_device_memory), else through host memory; counts and logits, which the host
// reads, always through host memory.
// So logits, decisions and traces are the same to the bit for any grid.
//
// Not modelled: overlap of exchange and compute, low-precision messages, replicas of experts,
// attention split over heads (sequences are spread over all ranks instead).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/model/checkpoint.hpp"
#include "engine/nn/weights.hpp"
#include "engine/parallel/communicator.hpp"

namespace switchyard {

struct RankGrid {
  unsigned ep = 1, tp = 1, rank = 0;
  [[nodiscard]] unsigned ranks() const { return ep * tp; }
  [[nodiscard]] unsigned group() const { return rank / tp; }
  [[nodiscard]] unsigned part() const { return rank % tp; }
  [[nodiscard]] unsigned owner(std::uint32_t sequence) const { return sequence % ranks(); }
};

/// The grid of `ranks` ranks with `tp` parts per expert. InputError("--tp", …) unless tp >= 1
/// divides the ranks.
[[nodiscard]] RankGrid make_grid(unsigned ranks, unsigned rank, unsigned tp);

/// What this rank holds of E experts.
[[nodiscard]] ExpertShare expert_share(const RankGrid& grid, std::size_t experts);

/// Hashes of what the ranks must have alike: the configuration, every tensor that is not a routed
/// expert, and the experts of each group. Rank 0 reads all, another rank what it holds; of what a
/// rank does not hold it gives the pages back. InputError on every rank when one differs.
/// `progress`, when not empty, gets the bytes seen and those of all tensors. Returns on rank 0
/// Checkpoint::weight_hash(), made of the same bytes while they are there; no value elsewhere.
std::optional<Hash128> require_same_checkpoint(
    Communicator& job, const RankGrid& grid, const model::Checkpoint& checkpoint,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

/// What was exchanged. Rows and bytes that stay on their rank are not counted as sent.
struct ExchangeTotals {
  unsigned ep = 1, tp = 1;      ///< The grid.
  std::string transport;        ///< Of rows and outputs: Communicator::transport().
  std::uint64_t layers = 0;     ///< Exchanges: MoE layers x steps.
  std::uint64_t rows = 0;       ///< Row x group pairs to serve, local ones included.
  std::uint64_t rows_sent = 0;  ///< Rows that went to another rank (to each part of a group).
  std::uint64_t outputs = 0;    ///< (Row, slot) pairs computed: slots that ran.
  std::uint64_t dispatch_bytes = 0, inner_bytes = 0, return_bytes = 0;
  std::uint64_t router_bytes = 0;  ///< Router logits (and inputs, when recorded) to all.
  std::uint64_t logits_bytes = 0;  ///< Output logits to all ranks.
  bool operator==(const ExchangeTotals&) const = default;
};

class ExpertExchange {
 public:
  /// Borrows both for its life.
  ExpertExchange(Communicator& job, const RankGrid& grid, Backend& backend);

  [[nodiscard]] const RankGrid& grid() const { return grid_; }
  /// Begins a step; owner[t] is the rank of row t, rows in canonical order. Borrowed until the next
  /// call.
  void begin_step(std::span<const std::uint16_t> owner);

  enum class What : std::uint8_t { kRouter, kLogits };
  /// all[i] = row i, from the rank owner[i]; `mine` are this rank's rows in order, `columns` floats
  /// each, in host memory.
  void gather_rows(What what, std::span<const std::uint16_t> owner, std::size_t columns,
                   std::span<const float> mine, std::span<float> all);

  /// Backend::moe over all ranks. x and out hold this rank's rows (backend memory, H columns);
  /// experts as take_weights() left them on this rank, [E]; chosen and weights are those of all
  /// rows [T, slots], the same on every rank. `inner` is I. InputError when a rank decided
  /// otherwise.
  void moe(const float* x, std::span<const ExpertView> experts, std::size_t hidden,
           std::size_t inner, std::span<const std::uint16_t> chosen, std::span<const float> weights,
           std::size_t slots, float* out);

  /// Totals over all ranks; every rank calls it. Checks that for each pair of ranks the rows and
  /// outputs sent are those received (an internal error otherwise).
  [[nodiscard]] ExchangeTotals totals();

 private:
  struct Assignment {
    std::uint32_t row;     // among the rows received
    std::uint16_t expert;  // 0 = first of this rank's block
  };
  enum Slot : std::uint8_t {
    kSend,
    kReceived,
    kSorted,
    kGate,
    kUp,
    kParts,
    kInner,
    kOut,
    kReturned,
    kResult,
    kSlots
  };
  float* scratch(Slot slot, std::size_t floats);
  /// From the decision for all rows: what this rank sends, receives and computes.
  void plan(std::span<const std::uint16_t> chosen, std::size_t slots, std::size_t experts);
  void compare_counts(std::span<const std::uint16_t> chosen);
  /// y[i] = this rank's slice of expert(assignments_[i].expert)(received[assignments_[i].row]).
  const float* compute(const float* received, std::span<const ExpertView> held, std::size_t hidden,
                       std::size_t inner);
  const float* compute_slices(const float* received, std::span<const ExpertView> held,
                              std::size_t hidden, std::size_t inner);
  /// Block q of `send` to rank q, block q of host_in_ from rank q; lengths in floats, blocks of
  /// `send` begin at start[q]. Returns the bytes that left this rank.
  std::uint64_t exchange(std::span<const float> send, std::span<const std::size_t> start,
                         std::span<const std::size_t> send_length,
                         std::span<const std::size_t> receive_length);
  /// The same of start_, send_length_ and receive_length_ for `floats` values in the backend's
  /// memory, past host memory where the job can; adds what left this rank to `bytes`. Returns what
  /// came, rank after rank, in `slot`.
  const float* carry(const float* from, std::size_t floats, Slot slot, std::uint64_t& bytes);
  /// Puts the parts of rows side by side: `from` holds for each of `rows` (a count per group) the
  /// columns of part 0 of all rows, then those of part 1, …; out rows of `columns` values.
  void join_parts(const float* from, std::span<const std::size_t> rows, std::size_t columns,
                  float* out);

  Communicator& job_;
  RankGrid grid_;
  Backend& backend_;
  std::span<const std::uint16_t> owner_;

  // Plan of one layer. "Own" rows are those of this rank, in canonical order.
  std::vector<std::uint16_t> group_of_;                // [E]
  std::vector<std::vector<std::uint32_t>> send_rows_;  // [ep] own rows that a group needs
  std::vector<std::size_t> send_outputs_;              // [ep] outputs that come back from a group
  std::vector<std::uint32_t> where_;                   // [own rows * slots] place among those
  std::vector<float> own_weights_;                     // [own rows * slots]
  std::vector<std::size_t> incoming_rows_;             // [R] rows that come from a rank
  std::vector<std::vector<Assignment>> incoming_;      // [R] what to compute for a rank
  std::vector<Assignment> assignments_;                // all of these

  std::vector<float> host_out_, host_in_;
  std::vector<std::size_t> start_, send_length_, receive_length_;
  std::vector<std::uint32_t> index_;
  std::vector<std::uint16_t> local_chosen_;
  std::vector<float> ones_;
  std::array<std::unique_ptr<DeviceBuffer>, kSlots> scratch_;

  ExchangeTotals mine_;
  std::vector<std::uint64_t> sent_, received_;  // [R][2] rows, outputs; own ones included
};

}  // namespace switchyard
