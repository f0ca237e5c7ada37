// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/ranks.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/error.hpp"
#include "engine/base/units.hpp"
#include "engine/base/version.hpp"

namespace switchyard::cli {

std::chrono::milliseconds rank_timeout(const RankOptions& options) {
  if (options.timeout.empty()) {
    return JobOptions{}.timeout;
  }
  const SimTime time = parse_duration(options.timeout, "--rank-timeout", "time");
  const std::chrono::milliseconds out(time.ps() / 1'000'000'000);
  if (out <= std::chrono::milliseconds(0)) {
    throw InputError("--rank-timeout", "time = " + options.timeout + ". Violated: time >= 1 ms");
  }
  return out;
}

std::unique_ptr<Communicator> open_ranks(const RankOptions& options) {
  JobOptions job;
  job.timeout = rank_timeout(options);
  if (!options.timeout.empty() && !launched_as_job()) {
    throw InputError("--rank-timeout", "this process runs alone and waits for no rank",
                     "start several ranks: mpirun -n N switchyard …");
  }
  return open_job(job);
}

void require_same_program(Communicator& job, const std::string& verb,
                          std::vector<std::pair<std::string, std::string>> items) {
  items.insert(
      items.begin(),
      {{"the program", fmt::format("{} (cpu {})", version(), cpu::path().name)}, {"the verb", verb}});
  require_agreement(job, items);
}

unsigned threads_of_rank(unsigned threads, const Communicator* job) {
  if (threads > 0 || job == nullptr) {
    return threads;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  const unsigned cores =
      ::sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set)) : 1;
  return std::max(1U, cores / job->local_size());
}

}  // namespace switchyard::cli
