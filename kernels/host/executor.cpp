// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace switchyard::host {
namespace {

namespace context = boost::context;

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::size_t kSharedLimit = 48 * 1024;
constexpr std::size_t kGuardBytes = 64;
constexpr unsigned char kGuard = 0xC7;
constexpr unsigned kLanes = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kMaxArrays = 64;

/// Thrown in the waiting threads of a block that is given up.
struct Abandoned {};

bool same(Site a, Site b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

std::string text(Site site) {
  std::string_view file = site.file;
  const std::size_t folder = file.rfind("kernels/");
  return fmt::format("{}:{}", folder == std::string_view::npos ? file : file.substr(folder),
                     site.line);
}

const char* text(Collective kind) {
  constexpr std::array kNames{"warp barrier", "shuffle", "shuffle xor", "shuffle up",
                              "shuffle down", "ballot",  "match",       "mma"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// Stacks with a guard page, handed out again after use.
class StackPool {
 public:
  StackPool() = default;
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  ~StackPool() {
    for (auto& stack : free_) {
      source_.deallocate(stack);
    }
  }
  context::stack_context take() {
    if (free_.empty()) {
      return source_.allocate();
    }
    const context::stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give_back(const context::stack_context& stack) { free_.push_back(stack); }

 private:
  context::protected_fixedsize_stack source_{kStackBytes};
  std::vector<context::stack_context> free_;
};

/// The stack allocator as Boost.Context takes it, by value.
struct PooledStack {
  StackPool* pool;
  context::stack_context* made;  // lets the executor know the stack's bounds
  context::stack_context allocate() const {
    *made = pool->take();
    return *made;
  }
  void deallocate(context::stack_context& stack) const { pool->give_back(stack); }
};

enum class State : std::uint8_t { kReady, kAtBarrier, kAtCollective, kEnded };

struct AsyncCopy {
  void* to;
  const void* from;
  unsigned bytes, group;
};

/// d += a b over the registers of a warp.
void multiply_fragments(const std::array<std::uint64_t, kLanes>& lanes) {
  const auto of = [&](unsigned lane) { return reinterpret_cast<MmaOperands*>(lanes[lane]); };
  const auto half = [](std::uint32_t word, unsigned upper) {
    const std::uint32_t bits = upper != 0 ? word & 0xFFFF0000U : word << 16;
    return static_cast<double>(__builtin_bit_cast(float, bits));
  };
  // Element (row, k) of a: lane 4 (row % 8) + k % 8 / 2, register row / 8 + 2 (k / 8), half k % 2;
  // element (k, column) of b: lane 4 column + k % 8 / 2, register k / 8.
  std::array<std::array<double, 16>, 16> a{};
  std::array<std::array<double, 8>, 16> b{};
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned row = 0; row < 16; ++row) {
      a[row][k] = half(of(row % 8 * 4 + k % 8 / 2)->a[row / 8 + k / 8 * 2], k % 2);
    }
    for (unsigned column = 0; column < 8; ++column) {
      b[k][column] = half(of(column * 4 + k % 8 / 2)->b[k / 8], k % 2);
    }
  }
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned column = 0; column < 8; ++column) {
      float& d = of(row % 8 * 4 + column / 2)->d[row / 8 * 2 + column % 2];
      double sum = d;
      for (unsigned k = 0; k < 16; ++k) {
        sum += a[row][k] * b[k][column];
      }
      d = static_cast<float>(sum);
    }
  }
}

struct Thread {
  State state = State::kReady;
  Site site;
  Collective kind = Collective::kSync;
  unsigned mask = 0, argument = 0;
  std::uint64_t value = 0;  // in: the lane's operand; out: its result
  context::fiber fiber;
  context::stack_context stack;
  void* fake_stack = nullptr;
  std::vector<AsyncCopy> copies;  // on their way
  unsigned groups = 0;            // committed
};

struct SharedArray {
  Site site;
  std::size_t offset, bytes;
};

class Executor {
 public:
  bool run(const Launch& launch, Body body, void* argument) {
    if (running_) {
      fault("a launch inside a kernel");
      return false;
    }
    launch_ = launch;
    body_ = body;
    argument_ = argument;
    block_x_ = block_y_ = 0;
    faulted_ = false;
    if (launch.threads < 1 || launch.threads > kMaxThreads || launch.grid_x < 1 ||
        launch.grid_y < 1 || launch.grid_x > 0x7FFFFFFFU || launch.grid_y > 65535) {
      fault(fmt::format("launch of {} x {} blocks of {} threads", launch.grid_x, launch.grid_y,
                        launch.threads));
      return false;
    }
    running_ = true;
    for (block_y_ = 0; block_y_ < launch.grid_y && !faulted_; ++block_y_) {
      for (block_x_ = 0; block_x_ < launch.grid_x && !faulted_; ++block_x_) {
        run_block();
      }
    }
    running_ = false;
    return !faulted_;
  }

  void sync_block(Site site) {
    Thread& self = threads_[current_];
    self.state = State::kAtBarrier;
    self.site = site;
    wait();
  }

  std::uint64_t collective(Collective kind, unsigned mask, std::uint64_t value, unsigned argument,
                           Site site) {
    Thread& self = threads_[current_];
    self.state = State::kAtCollective;
    self.site = site;
    self.kind = kind;
    self.mask = mask;
    self.value = value;
    self.argument = argument;
    wait();
    return self.value;
  }

  void copy_async(void* to, const void* from, unsigned bytes, Site site) {
    Thread& self = threads_[current_];
    if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
        reinterpret_cast<std::uintptr_t>(from) % 16 != 0 || bytes > 16) {
      fault(fmt::format("cp.async at {}: {} bytes, addresses modulo 16: {} and {}", text(site),
                        bytes, reinterpret_cast<std::uintptr_t>(to) % 16,
                        reinterpret_cast<std::uintptr_t>(from) % 16));
      throw Abandoned{};
    }
    self.copies.push_back({to, from, bytes, self.groups});
    // A GPU's copy may arrive at any time up to the wait: here at the wait, or, with an even fill,
    // now, too, so that a stage filled while it is still read shows.
    if (schedule.fill % 2 == 0) {
      arrive(self.copies.back());
    }
  }
  static void arrive(const AsyncCopy& c) {
    std::memcpy(c.to, c.from, c.bytes);
    std::memset(static_cast<char*>(c.to) + c.bytes, 0, 16 - c.bytes);
  }
  void commit_async() { ++threads_[current_].groups; }
  void wait_async(unsigned groups) {
    Thread& self = threads_[current_];
    std::erase_if(self.copies, [&](const AsyncCopy& c) {
      if (c.group + groups >= self.groups) {
        return false;
      }
      arrive(c);
      return true;
    });
  }

  void* shared_bytes(std::size_t bytes, Site site) {
    for (const SharedArray& array : arrays_) {
      if (same(array.site, site)) {
        return shared_.data() + array.offset;
      }
    }
    add_array(bytes, site);
    if (faulted_) {
      throw Abandoned{};
    }
    return shared_.data() + arrays_.back().offset;
  }
  unsigned char* dynamic_shared() { return shared_.data() + arrays_.front().offset; }

  [[nodiscard]] unsigned thread_index() const { return current_; }
  [[nodiscard]] unsigned block_threads() const { return launch_.threads; }
  [[nodiscard]] std::uint64_t block_x() const { return block_x_; }
  [[nodiscard]] std::uint64_t block_y() const { return block_y_; }

  Schedule schedule;
  std::string first_fault;

 private:
  void fault(const std::string& what) {
    faulted_ = true;
    if (first_fault.empty()) {
      first_fault =
          fmt::format("kernel {}, block ({}, {}): {}", launch_.name, block_x_, block_y_, what);
    }
  }

  void add_array(std::size_t bytes, Site site) {
    if (used_ + bytes > kSharedLimit || arrays_.size() == kMaxArrays) {
      fault(fmt::format("{} + {} bytes of shared memory at {}; there are {} in at most {} arrays",
                        used_, bytes, text(site), kSharedLimit, kMaxArrays));
      return;
    }
    used_ += bytes;
    const std::size_t offset = end_;
    end_ = offset + (bytes + 15) / 16 * 16 + kGuardBytes;
    std::memset(shared_.data() + offset, schedule.fill, bytes);
    std::memset(shared_.data() + offset + bytes, kGuard, end_ - offset - bytes);
    arrays_.push_back({site, offset, bytes});
  }

  void check_guards() {
    if (std::any_of(shared_.begin(), shared_.begin() + kGuardBytes,
                    [](unsigned char b) { return b != kGuard; })) {
      fault("a write before the dynamic shared memory");
    }
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const std::size_t begin = arrays_[i].offset + arrays_[i].bytes;
      const std::size_t end = i + 1 < arrays_.size() ? arrays_[i + 1].offset : end_;
      for (std::size_t at = begin; at < end; ++at) {
        if (shared_[at] != kGuard) {
          fault(fmt::format("a write {} bytes behind the shared array of {}", at - begin + 1,
                            i == 0 ? std::string("the launch") : text(arrays_[i].site)));
          break;
        }
      }
    }
  }

  void run_block() {
    // Room for the arrays and their guards.
    shared_.assign(kSharedLimit + (kMaxArrays + 1) * (kGuardBytes + 16), kGuard);
    arrays_.clear();
    used_ = 0;
    end_ = kGuardBytes;
    abandon_ = false;
    add_array(launch_.dynamic_shared, {"dynamic", 0});
    if (faulted_) {
      return;
    }
    threads_.clear();
    threads_.resize(launch_.threads);
    for (unsigned i = 0; i < launch_.threads; ++i) {
      start(i);
    }
    live_ = launch_.threads;
    const unsigned warps = (launch_.threads + kLanes - 1) / kLanes;
    while (live_ > 0 && !faulted_) {
      bool moved = false;
      for (unsigned n = 0; n < warps && !faulted_; ++n) {
        moved = run_warp((schedule.reverse ? warps - 1 - n : n) * kLanes) || moved;
      }
      if (live_ > 0 && !faulted_ && !resolve_barrier() && !faulted_ && !moved) {
        fault(fmt::format("threads wait for each other forever: {}", waiting()));
      }
    }
    if (faulted_) {
      abandon_ = true;
      for (unsigned i = 0; i < launch_.threads; ++i) {
        while (threads_[i].state != State::kEnded) {
          resume(i);
        }
      }
    }
    check_guards();
  }

  void start(unsigned i) {
    Thread& t = threads_[i];
    t.fiber = context::fiber(std::allocator_arg, PooledStack{&pool_, &t.stack},
                             [this, i](context::fiber&& main) {
                               finish_switch(nullptr, true);
                               main_ = std::move(main);
                               if (!abandon_) {
                                 try {
                                   body_(argument_);
                                   if (!threads_[i].copies.empty()) {
                                     fault(fmt::format("thread {} ended before {} of its cp.async",
                                                       i, threads_[i].copies.size()));
                                   }
                                 } catch (const Abandoned&) {
                                   // The block was given up; the fault is recorded.
                                 } catch (const std::exception& e) {
                                   fault(fmt::format("thread {} threw: {}", i, e.what()));
                                 } catch (const context::detail::forced_unwind&) {
                                   throw;  // Boost.Context's own
                                 } catch (...) {
                                   fault(fmt::format("thread {} threw an unknown exception", i));
                                 }
                               }
                               threads_[i].state = State::kEnded;
                               --live_;
                               start_switch(nullptr, main_bottom_, main_size_);
                               return std::move(main_);
                             });
  }

  void resume(unsigned i) {
    Thread& t = threads_[i];
    current_ = i;
    t.state = State::kReady;
    void* fake = nullptr;
    start_switch(&fake, static_cast<char*>(t.stack.sp) - t.stack.size, t.stack.size);
    t.fiber = std::move(t.fiber).resume();
    finish_switch(fake, false);
  }

  void wait() {
    if (abandon_) {
      throw Abandoned{};  // a destructor of the kernel came here while unwinding, or a retry
    }
    const unsigned self = current_;
    start_switch(&threads_[self].fake_stack, main_bottom_, main_size_);
    main_ = std::move(main_).resume();
    finish_switch(threads_[self].fake_stack, true);
    if (abandon_) {
      throw Abandoned{};
    }
  }

  // AddressSanitizer wants to know which stack is in use.
  void start_switch([[maybe_unused]] void** fake, [[maybe_unused]] const void* bottom,
                    [[maybe_unused]] std::size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake, bottom, size);
#endif
  }
  void finish_switch([[maybe_unused]] void* fake, [[maybe_unused]] bool from_main) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, from_main ? &main_bottom_ : nullptr,
                                    from_main ? &main_size_ : nullptr);
#endif
  }

  /// Runs the warp that begins at thread `first` as far as it gets without the other warps; false:
  /// not a step.
  bool run_warp(unsigned first) {
    const unsigned lanes = std::min(kLanes, launch_.threads - first);
    bool moved = false;
    for (bool again = true; again && !faulted_;) {
      again = false;
      for (unsigned n = 0; n < lanes; ++n) {
        const unsigned i = first + (schedule.reverse ? lanes - 1 - n : n);
        if (threads_[i].state == State::kReady) {
          resume(i);
          moved = true;
        }
      }
      for (unsigned lane = 0; lane < lanes && !faulted_; ++lane) {
        again = resolve_collective(first, lane) || again;
      }
    }
    return moved;
  }

  /// Completes the collective at which this lane waits if all of its mask are there.
  bool resolve_collective(unsigned first, unsigned lane) {
    const Thread& t = threads_[first + lane];
    if (t.state != State::kAtCollective) {
      return false;
    }
    const auto here = [&] {
      return fmt::format("{} at {} by lane {} of warp {} with mask {:08x}", text(t.kind),
                         text(t.site), lane, first / kLanes, t.mask);
    };
    if ((t.mask >> lane & 1U) == 0) {
      fault(here() + ": the caller is not in the mask");
      return false;
    }
    const unsigned mask = t.mask;
    for (unsigned l = 0; l < kLanes; ++l) {
      if ((mask >> l & 1U) == 0) {
        continue;
      }
      if (first + l >= launch_.threads || threads_[first + l].state == State::kEnded) {
        fault(fmt::format("{}: lane {} has left the kernel", here(), l));
        return false;
      }
      const Thread& other = threads_[first + l];
      if (other.state != State::kAtCollective || other.kind != t.kind || other.mask != mask ||
          !same(other.site, t.site)) {
        return false;
      }
    }
    std::array<std::uint64_t, kLanes> result{};
    for (unsigned l = 0; l < kLanes; ++l) {
      if ((mask >> l & 1U) == 0) {
        continue;
      }
      const Thread& self = threads_[first + l];
      unsigned from = l;
      switch (self.kind) {
        case Collective::kSync:
          break;
        case Collective::kShuffle:
          from = self.argument % kLanes;
          break;
        case Collective::kShuffleXor:
          from = (l ^ self.argument) % kLanes;
          break;
        case Collective::kShuffleUp:
          from = self.argument <= l ? l - self.argument : l;
          break;
        case Collective::kShuffleDown:
          from = l + self.argument < kLanes ? l + self.argument : l;
          break;
        case Collective::kBallot:
        case Collective::kMatch:
          for (unsigned o = 0; o < kLanes; ++o) {
            const bool in = (mask >> o & 1U) != 0;
            const bool set =
                in && (self.kind == Collective::kBallot ? threads_[first + o].value != 0
                                                        : threads_[first + o].value == self.value);
            result[l] |= set ? std::uint64_t{1} << o : 0;
          }
          continue;
        case Collective::kMma:
          break;
      }
      if ((mask >> from & 1U) == 0) {
        fault(fmt::format("{}: lane {} reads lane {} outside the mask", here(), l, from));
        return false;
      }
      result[l] = threads_[first + from].value;
    }
    if (t.kind == Collective::kMma) {
      multiply_fragments(result);
    }
    for (unsigned l = 0; l < kLanes; ++l) {
      if ((mask >> l & 1U) != 0) {
        threads_[first + l].value = result[l];
        threads_[first + l].state = State::kReady;
      }
    }
    return true;
  }

  bool resolve_barrier() {
    const Thread* at = nullptr;
    unsigned ended = 0;
    for (const Thread& t : threads_) {
      if (t.state == State::kEnded) {
        ++ended;
      } else if (t.state != State::kAtBarrier) {
        return false;
      } else if (at == nullptr) {
        at = &t;
      }
    }
    for (const Thread& t : threads_) {
      if (t.state == State::kAtBarrier && !same(t.site, at->site)) {
        fault(fmt::format("divergent barrier: {}", waiting()));
        return false;
      }
    }
    if (ended > 0) {
      fault(fmt::format("barrier at {}: {} of {} threads have left the kernel", text(at->site),
                        ended, launch_.threads));
      return false;
    }
    for (Thread& t : threads_) {
      t.state = State::kReady;
    }
    return true;
  }

  /// "thread 0 (and 31 more) at barrier x.cu:5, …": the distinct places where threads wait.
  [[nodiscard]] std::string waiting() const {
    std::string out;
    std::vector<bool> told(threads_.size());
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      const Thread& t = threads_[i];
      if (told[i] || t.state == State::kEnded) {
        continue;
      }
      unsigned others = 0;
      for (std::size_t o = i + 1; o < threads_.size(); ++o) {
        if (threads_[o].state == t.state && same(threads_[o].site, t.site)) {
          told[o] = true;
          ++others;
        }
      }
      out += fmt::format("{}thread {} (and {} more) at {} {}", out.empty() ? "" : ", ", i, others,
                         t.state == State::kAtBarrier ? "barrier" : text(t.kind), text(t.site));
    }
    return out;
  }

  Launch launch_{};
  Body body_ = nullptr;
  void* argument_ = nullptr;
  std::uint64_t block_x_ = 0, block_y_ = 0;
  bool running_ = false, faulted_ = false, abandon_ = false;
  StackPool pool_;  // before the threads, whose stacks it holds
  std::vector<Thread> threads_;
  unsigned current_ = 0, live_ = 0;
  context::fiber main_;
  const void* main_bottom_ = nullptr;
  std::size_t main_size_ = 0;
  std::vector<unsigned char> shared_;
  std::vector<SharedArray> arrays_;
  std::size_t used_ = 0, end_ = 0;
};

Executor& executor() {
  static Executor instance;
  return instance;
}

}  // namespace

void set_schedule(Schedule s) { executor().schedule = s; }
Schedule schedule() { return executor().schedule; }
std::string take_fault() { return std::exchange(executor().first_fault, {}); }
bool run_body(const Launch& launch, Body body, void* context) {
  return executor().run(launch, body, context);
}
unsigned thread_index() { return executor().thread_index(); }
unsigned block_threads() { return executor().block_threads(); }
std::uint64_t block_x() { return executor().block_x(); }
std::uint64_t block_y() { return executor().block_y(); }
void sync_block(Site site) { executor().sync_block(site); }
std::uint64_t warp_collective(Collective kind, unsigned mask, std::uint64_t value,
                              unsigned argument, Site site) {
  return executor().collective(kind, mask, value, argument, site);
}
void mma(MmaOperands& mine, Site site) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  (void)executor().collective(Collective::kMma, kAll, reinterpret_cast<std::uint64_t>(&mine), 0,
                              site);
}
void copy_async(void* shared, const void* global, unsigned bytes, Site site) {
  executor().copy_async(shared, global, bytes, site);
}
void commit_async() { executor().commit_async(); }
void wait_async(unsigned groups) { executor().wait_async(groups); }
void* shared_bytes(std::size_t bytes, Site site) { return executor().shared_bytes(bytes, site); }
unsigned char* dynamic_shared() { return executor().dynamic_shared(); }

}  // namespace switchyard::host
