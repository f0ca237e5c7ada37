// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

/// First variable of the list that is set, as a number; -1 when none is.
long first_number(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* text = std::getenv(name)) {
      const std::string_view view(text);
      long value = -1;
      std::from_chars(view.data(), view.data() + view.size(), value);
      return value;
    }
  }
  return -1;
}

}  // namespace

bool launched_as_job() {
  const long ranks = first_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  return ranks > 0 || first_number({"PMIX_RANK"}) >= 0;
}

bool launched_alone() {
  const long ranks = first_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
  return ranks == 1 || !launched_as_job();
}

unsigned launched_rank() {
  return static_cast<unsigned>(
      std::max(0L, first_number({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})));
}

void let_rank_0_speak() {
  if (launched_as_job() && launched_rank() != 0) {
    // mpirun takes a second to end the others when rank 0 leaves before MPI has started.
    std::this_thread::sleep_for(std::chrono::seconds(3));
  }
}

void Communicator::all_to_all_device(std::span<const std::span<const std::byte>> /*send*/,
                                     std::span<const std::span<std::byte>> /*receive*/) {
  SWITCHYARD_ASSERT(moves_device_memory(), "this job moves host memory only");
}

void Communicator::exchange_counts(std::span<const std::uint64_t> send,
                                   std::span<std::uint64_t> receive, std::size_t width) {
  const std::size_t ranks = size();
  SWITCHYARD_ASSERT(send.size() == ranks * width && receive.size() == ranks * width, "counts");
  std::vector<std::span<const std::byte>> from;
  std::vector<std::span<std::byte>> to;
  for (std::size_t q = 0; q < ranks; ++q) {
    from.push_back(std::as_bytes(send.subspan(q * width, width)));
    to.push_back(std::as_writable_bytes(receive.subspan(q * width, width)));
  }
  all_to_all(from, to);
}

void Communicator::all_gather(std::span<const std::byte> mine,
                              std::span<const std::span<std::byte>> blocks) {
  const std::vector<std::span<const std::byte>> from(size(), mine);
  all_to_all(from, blocks);
}

std::vector<std::string> Communicator::all_gather(const std::string& mine) {
  const std::vector<std::uint64_t> length(size(), mine.size());
  std::vector<std::uint64_t> lengths(size());
  exchange_counts(length, lengths);
  std::vector<std::string> all(size());
  std::vector<std::span<std::byte>> to;
  for (std::size_t q = 0; q < all.size(); ++q) {
    all[q].resize(lengths[q]);
    to.push_back(std::as_writable_bytes(std::span(all[q])));
  }
  all_gather(std::as_bytes(std::span(mine)), to);
  return all;
}

std::uint64_t Communicator::sum(std::uint64_t mine) {
  const std::vector<std::uint64_t> send(size(), mine);
  std::vector<std::uint64_t> all(size());
  exchange_counts(send, all);
  std::uint64_t total = 0;
  for (const std::uint64_t value : all) {
    total += value;
  }
  return total;
}

void require_agreement(Communicator& job,
                       std::span<const std::pair<std::string, std::string>> items) {
  // Lines "name\tvalue"; neither holds a tab or a line feed.
  std::string mine;
  for (const auto& [name, value] : items) {
    mine += fmt::format("{}\t{}\n", name, value);
  }
  const std::vector<std::string> all = job.all_gather(mine);
  const auto next_line = [](std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
  };
  for (std::size_t q = 1; q < all.size(); ++q) {
    std::string_view ours = all[0];
    std::string_view theirs = all[q];
    while (!ours.empty() || !theirs.empty()) {
      const std::string_view a = next_line(ours);
      const std::string_view b = next_line(theirs);
      if (a == b) {
        continue;
      }
      const std::size_t tab = a.find('\t');
      const bool same_name =
          tab != std::string_view::npos && a.substr(0, tab + 1) == b.substr(0, tab + 1);
      throw InputError(fmt::format("rank {}", q),
                       same_name
                           ? fmt::format("{} differs from rank 0's: {} and {}", a.substr(0, tab),
                                         b.substr(tab + 1), a.substr(tab + 1))
                           : std::string("it runs another program or verb than rank 0"),
                       "every rank needs the same program, files and options");
    }
  }
}

}  // namespace switchyard
