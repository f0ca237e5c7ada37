// SPDX-License-Identifier: Apache-2.0
#include "engine/base/thread_pool.hpp"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace switchyard {
namespace {

/// A decode step wakes the pool every few microseconds, much less than the system needs to wake a
/// thread: so both sides look again for this long before they sleep. Not when threads outnumber
/// cores, where looking takes the core from the thread that is waited for.
constexpr std::chrono::microseconds kPatience{100};

unsigned cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0
             ? static_cast<unsigned>(std::max(1, CPU_COUNT(&set)))
             : 1U;
}

/// True as soon as ready() is, false when patience ends.
template <class Ready>
bool spin_until(bool patient, const Ready& ready) {
  if (ready()) {
    return true;
  }
  if (!patient) {
    return false;
  }
  const auto end = std::chrono::steady_clock::now() + kPatience;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) {
        return true;
      }
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

struct ThreadPool::Impl {
  // Written by for_each() before `generation` grows, read by workers after they saw it.
  const std::function<void(std::size_t)>* body = nullptr;
  std::size_t count = 0;
  unsigned size = 1;
  bool patient = false;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<unsigned> running{0};
  std::atomic<unsigned> sleeping{0};  // workers in or before start.wait()
  std::atomic<bool> waiting{false};   // the caller is in or before finish.wait()
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable start, finish;
  std::exception_ptr error;
  std::size_t error_index = SIZE_MAX;
  std::vector<std::jthread> workers;

  void run_share(unsigned thread_index) {
    for (std::size_t i = thread_index; i < count; i += size) {
      try {
        (*body)(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < error_index) {
          error_index = i;
          error = std::current_exception();
        }
      }
    }
  }

  void work(unsigned thread_index) {
    std::uint64_t seen = 0;
    for (;;) {
      // Every access below is sequentially consistent: either the sleeper sees the new generation,
      // or the caller sees the sleeper and takes the mutex to wake it.
      const auto called = [&] { return stop || generation != seen; };
      if (!spin_until(patient, called)) {
        std::unique_lock lock(mutex);
        ++sleeping;
        start.wait(lock, called);
        --sleeping;
      }
      if (stop) {
        return;
      }
      ++seen;  // for_each() returns only when every worker is done, so none is ever left out
      run_share(thread_index);
      if (--running == 0 && waiting) {
        const std::lock_guard lock(mutex);
        finish.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(unsigned threads) : impl_(std::make_unique<Impl>()) {
  if (threads == 0) {
    threads = cores();
  }
  impl_->size = threads;
  impl_->patient = threads <= cores();
  for (unsigned t = 1; t < threads; ++t) {
    impl_->workers.emplace_back([this, t] { impl_->work(t); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->start.notify_all();
}

unsigned ThreadPool::size() const { return impl_->size; }

void ThreadPool::for_each(std::size_t count, const std::function<void(std::size_t)>& body) {
  if (impl_->size == 1 || count <= 1) {
    for (std::size_t i = 0; i < count; ++i) {
      body(i);
    }
    return;
  }
  impl_->body = &body;
  impl_->count = count;
  impl_->error = nullptr;
  impl_->error_index = SIZE_MAX;
  impl_->running = impl_->size - 1;
  ++impl_->generation;
  if (impl_->sleeping > 0) {
    const std::lock_guard lock(impl_->mutex);
    impl_->start.notify_all();
  }
  impl_->run_share(0);
  const auto done = [&] { return impl_->running == 0; };
  if (!spin_until(impl_->patient, done)) {
    std::unique_lock lock(impl_->mutex);
    impl_->waiting = true;
    impl_->finish.wait(lock, done);
    impl_->waiting = false;
  }
  const std::exception_ptr error = std::exchange(impl_->error, nullptr);
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace switchyard
