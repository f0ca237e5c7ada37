// SPDX-License-Identifier: Apache-2.0
#include "engine/base/thread_pool.hpp"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace switchyard {

struct ThreadPool::Impl {
  std::mutex mutex;
  std::condition_variable start, finish;
  const std::function<void(std::size_t)>* body = nullptr;
  std::size_t count = 0;
  std::uint64_t generation = 0;
  unsigned size = 1;
  unsigned running = 0;
  bool stop = false;
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
      {
        std::unique_lock lock(mutex);
        start.wait(lock, [&] { return stop || generation != seen; });
        if (stop) {
          return;
        }
        seen = generation;
      }
      run_share(thread_index);
      const std::lock_guard lock(mutex);
      if (--running == 0) {
        finish.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(unsigned threads) : impl_(std::make_unique<Impl>()) {
  if (threads == 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    threads = sched_getaffinity(0, sizeof set, &set) == 0
                  ? static_cast<unsigned>(std::max(1, CPU_COUNT(&set)))
                  : 1U;
  }
  impl_->size = threads;
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
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->body = &body;
    impl_->count = count;
    impl_->running = impl_->size - 1;
    impl_->error = nullptr;
    impl_->error_index = SIZE_MAX;
    ++impl_->generation;
  }
  impl_->start.notify_all();
  impl_->run_share(0);
  std::exception_ptr error;
  {
    std::unique_lock lock(impl_->mutex);
    impl_->finish.wait(lock, [&] { return impl_->running == 0; });
    error = impl_->error;
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace switchyard
