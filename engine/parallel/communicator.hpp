// SPDX-License-Identifier: Apache-2.0
// File: communicator.hpp. Processes of one job ("ranks") that exchange bytes.
//
//   const auto job = open_job({});            // null unless mpirun (or srun) started this process
//   job->all_to_all(send, receive);           // every rank calls the same operations in order
//   job->finish();                            // all ranks are done
//
// Bytes are moved, never added up: no operation here changes an order of summation, so results can
// be the same to the bit for any number of ranks.
//
// Failure: an operation throws InputError when a rank does not answer in time or the connection
// breaks. A rank that fails alone leaves the others waiting, so main() ends the whole job with
// end_job(). A rank that dies is noticed by mpirun, which ends the others.
//
// Not modelled: several threads that communicate at once (one thread only), restart of a lost rank,
// a topology of the ranks (messages go straight from sender to receiver).
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace switchyard {

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual unsigned rank() const = 0;  ///< 0 … size() - 1
  [[nodiscard]] virtual unsigned size() const = 0;  ///< >= 1
  /// Ranks on this machine, this one included.
  [[nodiscard]] virtual unsigned local_size() const = 0;
  /// This rank among those of its machine, 0 … local_size() - 1.
  [[nodiscard]] virtual unsigned local_rank() const = 0;

  /// Rank q gets send[q], and receive[q] is filled with what rank q sent here (all-to-all-v). Both
  /// have size() blocks; empty blocks move nothing. The two sides of a pair give the same length
  /// (exchange_counts() beforehand where they may not know it). Blocks do not overlap.
  virtual void all_to_all(std::span<const std::span<const std::byte>> send,
                          std::span<const std::span<std::byte>> receive) = 0;
  /// Whether the job takes blocks where a backend keeps them; else they go through host memory.
  [[nodiscard]] virtual bool moves_device_memory() const { return false; }
  /// all_to_all() of blocks in the memory of this rank's backend, behind the work that it was given
  /// before; they are there at the return. Only where moves_device_memory().
  virtual void all_to_all_device(std::span<const std::span<const std::byte>> send,
                                 std::span<const std::span<std::byte>> receive);
  /// What carries a backend's rows, for people: "MPI, through host memory".
  [[nodiscard]] virtual std::string transport() const = 0;
  /// Waits for all ranks, then leaves the job. No operation may follow.
  virtual void finish() = 0;

  /// receive[q] = send[this rank] of rank q; both hold size() * width values, `width` a rank.
  void exchange_counts(std::span<const std::uint64_t> send, std::span<std::uint64_t> receive,
                       std::size_t width = 1);
  /// blocks[q] is filled with rank q's `mine`; blocks[q].size() is known to all.
  void all_gather(std::span<const std::byte> mine, std::span<const std::span<std::byte>> blocks);
  /// [size()] the texts of all ranks, by rank; lengths need not be known.
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& mine);
  /// Sum over ranks of whole numbers.
  [[nodiscard]] std::uint64_t sum(std::uint64_t mine);
};

struct JobOptions {
  /// How long an operation waits for the other ranks before it gives the job up.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Started by mpirun, or by srun with PMIx? Looks at the environment only.
[[nodiscard]] bool launched_as_job();
/// The only process of its job, or of none? By the environment as well.
[[nodiscard]] bool launched_alone();
/// This process's rank by the environment, 0 outside a job; needs no open job.
[[nodiscard]] unsigned launched_rank();
/// Built with MPI? The library's name and version, or empty.
[[nodiscard]] std::string mpi_version();

/// The ranks of this job; null when the process was not launched as one. At most once per process.
/// CapabilityError: launched as a job by a build without MPI.
[[nodiscard]] std::unique_ptr<Communicator> open_job(const JobOptions& options);

/// Called before an error is printed: gives rank 0 three seconds to end the job with the same
/// message, so that a mistake that all ranks see is printed once. Returns at once on rank 0 or
/// outside a job.
void let_rank_0_speak();
/// Ends all ranks with `code` when a job is open (MPI_Abort); returns otherwise.
void end_job(int code);

/// InputError("rank q", "NAME differs from rank 0's: … and …") on every rank, when some rank's
/// items are not those of rank 0. Items are (name, value) pairs; values are short (numbers,
/// hashes).
void require_agreement(Communicator& job,
                       std::span<const std::pair<std::string, std::string>> items);

}  // namespace switchyard
