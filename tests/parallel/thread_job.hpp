// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: the exchange of the engine without mpirun. As MpiJob it refuses
// blocks whose lengths disagree and gives up when a rank does not come.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/parallel/communicator.hpp"

namespace switchyard::testing_support {

/// What the threads share: each round, every rank lays its send blocks out, copies what is for it,
/// and waits until all have copied.
struct Room {
  explicit Room(unsigned ranks) : send(ranks) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::span<const std::span<const std::byte>>> send;
  std::size_t arrived = 0;
  std::uint64_t round = 0;
};

class ThreadJob final : public Communicator {
 public:
  ThreadJob(Room& room, unsigned rank) : room_(room), rank_(rank) {}
  [[nodiscard]] unsigned rank() const override { return rank_; }
  [[nodiscard]] unsigned size() const override { return static_cast<unsigned>(room_.send.size()); }
  [[nodiscard]] unsigned local_size() const override { return size(); }
  [[nodiscard]] unsigned local_rank() const override { return rank(); }
  [[nodiscard]] std::string transport() const override { return "threads"; }
  void all_to_all(std::span<const std::span<const std::byte>> send,
                  std::span<const std::span<std::byte>> receive) override {
    room_.send[rank_] = send;
    meet();
    std::string trouble;
    for (unsigned q = 0; q < size(); ++q) {
      const auto from = room_.send[q][rank_];
      if (from.size() != receive[q].size()) {
        trouble =
            fmt::format("{} bytes from rank {}, {} expected", from.size(), q, receive[q].size());
      } else if (!from.empty()) {
        std::memcpy(receive[q].data(), from.data(), from.size());
      }
    }
    meet();
    if (!trouble.empty()) {
      throw InputError(fmt::format("rank {}", rank_), trouble);
    }
  }
  void finish() override { meet(); }

 private:
  void meet() {
    std::unique_lock lock(room_.mutex);
    const std::uint64_t round = room_.round;
    if (++room_.arrived == room_.send.size()) {
      room_.arrived = 0;
      ++room_.round;
      room_.changed.notify_all();
    } else if (!room_.changed.wait_for(lock, std::chrono::seconds(60),
                                       [&] { return room_.round != round; })) {
      throw InputError(fmt::format("rank {}", rank_), "another rank does not come");
    }
  }
  Room& room_;
  unsigned rank_;
};

/// Runs body(job) on each of `ranks` threads; returns what each threw ("" for nothing).
inline std::vector<std::string> run_ranks(unsigned ranks,
                                          const std::function<void(Communicator&)>& body) {
  Room room(ranks);
  std::vector<std::string> thrown(ranks);
  std::vector<std::thread> threads;
  for (unsigned r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      ThreadJob job(room, r);
      try {
        body(job);
      } catch (const std::exception& e) {
        thrown[r] = e.what();
      }
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
  return thrown;
}

}  // namespace switchyard::testing_support
