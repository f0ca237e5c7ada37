// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/device_host.hpp"

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "kernels/dense_library.hpp"
#include "kernels/grouped_library.hpp"
#include "kernels/host/executor.hpp"

namespace switchyard::host {
namespace {

constexpr std::align_val_t kAlignment{256};

/// Two queues that run when somebody waits.
class Queues final : public LaunchQueue {
 public:
  explicit Queues(QueueOrder order)
      : first_(order == QueueOrder::kComputeFirst ? gpu::Queue::kCompute : gpu::Queue::kCapture) {}

  struct Mark {
    std::uint64_t given = 0, reached = 0;  // records
  };
  /// What a launch of a kernel queues.
  void push(std::function<bool()> work) override { push(gpu::Queue::kCompute, std::move(work)); }
  void push(gpu::Queue queue, std::function<bool()> work) {
    of(queue).push_back({std::move(work), nullptr, 0});
  }
  void record(Mark& mark, gpu::Queue queue) {
    ++mark.given;
    of(queue).push_back({[&mark] { return ++mark.reached > 0; }, nullptr, 0});
  }
  void wait(const Mark& mark, gpu::Queue queue) { of(queue).push_back({{}, &mark, mark.given}); }
  [[nodiscard]] bool idle() const { return queues_[0].empty() && queues_[1].empty(); }

  /// Runs until `mark` reaches its last record. False: a fault, or it never comes.
  bool run_to(const Mark& mark) {
    const std::uint64_t target = mark.given;
    while (mark.reached < target && step()) {
    }
    return mark.reached >= target && !std::exchange(failed_, false);
  }
  /// Runs all.
  bool run() {
    while (!idle() && step()) {
    }
    return idle() && !std::exchange(failed_, false);
  }

 private:
  struct Work {
    std::function<bool()> run;  // empty: a wait
    const Mark* mark;
    std::uint64_t target;
  };
  std::deque<Work>& of(gpu::Queue queue) { return queues_[static_cast<std::size_t>(queue)]; }
  /// One piece of work, of the preferred queue if it may go on. False: neither may.
  bool step() {
    const bool compute_first = first_ == gpu::Queue::kCompute;
    return step(of(compute_first ? gpu::Queue::kCompute : gpu::Queue::kCapture)) ||
           step(of(compute_first ? gpu::Queue::kCapture : gpu::Queue::kCompute));
  }
  bool step(std::deque<Work>& queue) {
    if (queue.empty() ||
        (queue.front().mark != nullptr && queue.front().mark->reached < queue.front().target)) {
      return false;
    }
    const Work work = std::move(queue.front());
    queue.pop_front();
    if (work.run && !work.run()) {
      failed_ = true;
    }
    return true;
  }
  gpu::Queue first_;
  std::array<std::deque<Work>, 2> queues_;
  bool failed_ = false;
};

class HostDevice final : public gpu::Device {
 public:
  HostDevice(std::uint64_t memory, QueueOrder order) : free_(memory), queues_(order) {}
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;
  ~HostDevice() override {
    while (!taken_.empty()) {
      give_back(taken_.begin()->first);
    }
  }
  std::string name() const override { return "host executor"; }
  std::string identity() const override { return name(); }
  void* take(std::size_t bytes) override {
    if (bytes > free_) {
      return nullptr;
    }
    void* const memory = ::operator new(bytes, kAlignment);
    std::memset(memory, 0xFF, bytes);
    free_ -= bytes;
    taken_[memory] = bytes;
    return memory;
  }
  void give_back(void* memory) noexcept override {
    const auto it = taken_.find(memory);
    if (it != taken_.end()) {
      (void)queues_.run();
      free_ += it->second;
      taken_.erase(it);
      ::operator delete(memory, kAlignment);
    }
  }
  std::uint64_t free_bytes() const override { return free_; }
  bool copy_in(void* device, const void* host, std::size_t bytes) override {
    if (queues_.idle()) {
      std::memcpy(device, host, bytes);
      return true;
    }
    const auto* const from = static_cast<const std::byte*>(host);
    queues_.push(gpu::Queue::kCompute,
                 [device, staged = std::vector<std::byte>(from, from + bytes)] {
                   std::memcpy(device, staged.data(), staged.size());
                   return true;
                 });
    return true;
  }
  bool copy_out(void* host, const void* device, std::size_t bytes) override {
    Queues::Mark there;
    queues_.push(gpu::Queue::kCompute, [=] {
      std::memcpy(host, device, bytes);
      return true;
    });
    queues_.record(there, gpu::Queue::kCompute);
    return queues_.run_to(there);
  }
  bool copy(void* to, const void* from, std::size_t bytes) override {
    queues_.push(gpu::Queue::kCompute, [=] {
      std::memcpy(to, from, bytes);
      return true;
    });
    return true;
  }
  gpu::Stream stream() override { return &queues_; }
  std::string error() override { return take_fault(); }

  void* take_pinned(std::size_t bytes) override {
    void* const memory = ::operator new(bytes, kAlignment);
    std::memset(memory, 0xFF, bytes);
    return memory;
  }
  void give_back_pinned(void* memory) noexcept override {
    (void)queues_.run();
    ::operator delete(memory, kAlignment);
  }
  gpu::Event make_event() override { return new Queues::Mark; }
  void give_back_event(gpu::Event event) noexcept override {
    (void)queues_.run();
    delete static_cast<Queues::Mark*>(event);
  }
  bool record(gpu::Event event, gpu::Queue queue) override {
    queues_.record(*static_cast<Queues::Mark*>(event), queue);
    return true;
  }
  bool wait(gpu::Event event, gpu::Queue queue) override {
    queues_.wait(*static_cast<Queues::Mark*>(event), queue);
    return true;
  }
  bool finish(gpu::Event event) override {
    return queues_.run_to(*static_cast<Queues::Mark*>(event));
  }
  bool reached(gpu::Event event, bool& there) override {
    there = finish(event);  // nobody else runs the queues
    return there;
  }
  bool capture(void* pinned, const void* device, std::size_t bytes) override {
    queues_.push(gpu::Queue::kCapture, [=] {
      std::memcpy(pinned, device, bytes);
      return true;
    });
    return true;
  }

 private:
  std::uint64_t free_;
  std::map<void*, std::size_t> taken_;
  Queues queues_;
};

}  // namespace

std::unique_ptr<gpu::Device> make_device(std::uint64_t memory, QueueOrder order) {
  return std::make_unique<HostDevice>(memory, order);
}

}  // namespace switchyard::host

namespace switchyard::gpu {

std::unique_ptr<Device> open_device(std::string& why, unsigned /*number*/) {
  why.clear();
  constexpr std::uint64_t kMemory = std::uint64_t{1} << 30;
  return host::make_device(kMemory);
}

// NVIDIA's libraries do not run on the host.
std::unique_ptr<DenseLibrary> open_cublas_lt(std::string& why) {
  why = "the host executor runs our own kernels only";
  return nullptr;
}
std::unique_ptr<GroupedLibrary> open_cublas_grouped(Stream, std::string& why) {
  why = "the host executor runs our own kernels only";
  return nullptr;
}

}  // namespace switchyard::gpu
