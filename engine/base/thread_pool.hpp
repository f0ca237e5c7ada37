// SPDX-License-Identifier: Apache-2.0
// A small pool with a fixed partition. Which thread runs an item depends only on the item's index
// and the pool's size, and no result may depend on that: items write to places of their own.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace switchyard {

class ThreadPool {
 public:
  /// `threads` ≥ 1, the caller included; 0 means the number of cores this process may use.
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  [[nodiscard]] unsigned size() const;
  /// Calls body(i) for i in [0, count), item i on thread i mod size(); returns when all are done.
  /// The first exception (lowest index) is rethrown here. Not reentrant.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
