// SPDX-License-Identifier: Apache-2.0
// Options of the verbs that run on several ranks (`mpirun -n N switchyard trace …`).
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/parallel/communicator.hpp"

namespace switchyard::cli {

struct RankOptions {
  std::uint32_t tp = 1;  ///< Parts of each expert; divides the ranks.
  std::string timeout;   ///< "10 min", the default; how long ranks wait for each other.
};

/// The ranks of this process's job, null when it was started alone. InputError: a time-out without
/// a unit, not positive, or given to a process alone. CapabilityError: under mpirun without MPI.
[[nodiscard]] std::unique_ptr<Communicator> open_ranks(const RankOptions& options);

/// How long ranks wait for each other. InputError: a time without a unit or not positive.
[[nodiscard]] std::chrono::milliseconds rank_timeout(const RankOptions& options);

/// Is this the rank that prints and writes? True without a job.
[[nodiscard]] inline bool speaks(const Communicator* job) {
  return job == nullptr || job->rank() == 0;
}

/// InputError on every rank when one runs another program or verb, or has another value of an item
/// (name, value) than rank 0.
void require_same_program(Communicator& job, const std::string& verb,
                          std::vector<std::pair<std::string, std::string>> items);

/// `threads`, but for 0 in a job: this rank's share of the cores that it may use, >= 1.
[[nodiscard]] unsigned threads_of_rank(unsigned threads, const Communicator* job);

}  // namespace switchyard::cli
