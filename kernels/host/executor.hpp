// SPDX-License-Identifier: Apache-2.0
// The host executor: runs a kernel's source on the CPU, one fiber per CUDA thread, one block after
// another. For tests only. A warp runs as far as it gets before the next one starts, and its lanes
// one after another up to the next warp operation; the Schedule gives both orders. So of two
// accesses that no barrier orders, either comes first under one of the two orders: a kernel whose
// result depends on a missing barrier, or on the garbage that fills shared memory, gives different
// results under different schedules.
//
// Found and reported as a fault, with kernel, block, and source line:
//  - a block barrier that some threads left the kernel without reaching, or that threads reach at
//    different source lines (stricter than CUDA, which counts threads that have ended as arrived);
//  - a warp operation whose mask lacks the caller, names a lane that has ended, or reads a lane
//    outside the mask; threads that wait for each other forever;
//  - a write just outside a shared array; more shared memory than a GPU gives without opting in;
//  - an exception that would leave the kernel.
// After a fault all fibers of the block are unwound and the launch ends.
// Not modelled: several OS threads, timing, memory that is not coherent between warps (races that
// need two warps in the middle of an interval between barriers), and launches inside kernels.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

namespace switchyard::host {

/// A place in the kernel's source; two sites are the same if file and line are.
struct Site {
  const char* file = "";
  int line = 0;
};

struct Schedule {
  /// Every byte of shared memory at the start of a block. Even: copies of copy_async arrive at
  /// once, too, as a GPU's may.
  std::uint8_t fill = 0xA5;
  /// Warps and lanes run in falling order of their index.
  bool reverse = false;
};

/// For all later launches of this process.
void set_schedule(Schedule schedule);
[[nodiscard]] Schedule schedule();

/// The text of the first fault since the last call; empty if there was none.
[[nodiscard]] std::string take_fault();

/// Takes launches that do not run at once (the Stream of the host executor; null: at once). False
/// of a launch: there was a fault.
class LaunchQueue {
 public:
  virtual ~LaunchQueue() = default;
  virtual void push(std::function<bool()> launch) = 0;
};

struct Launch {
  const char* name;
  std::uint64_t grid_x;
  std::uint32_t grid_y;
  std::uint32_t threads;  ///< Per block, 1…1024.
  std::size_t dynamic_shared;
};

using Body = void (*)(void*);
/// Runs the launch; false: there was a fault. Never throws what a kernel threw.
[[nodiscard]] bool run_body(const Launch& launch, Body body, void* context);

template <class F>
[[nodiscard]] bool run(const Launch& launch, F&& body) {
  return run_body(
      launch, [](void* f) { (*static_cast<std::remove_reference_t<F>*>(f))(); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// What follows may only be called by the threads of a running kernel.

[[nodiscard]] unsigned thread_index();
[[nodiscard]] unsigned block_threads();
[[nodiscard]] std::uint64_t block_x();
[[nodiscard]] std::uint64_t block_y();

void sync_block(Site site);

enum class Collective : std::uint8_t {
  kSync,
  kShuffle,
  kShuffleXor,
  kShuffleUp,
  kShuffleDown,
  kBallot,
  kMatch,
  kMma
};
/// Waits until all lanes of the mask are here, then returns this lane's result.
std::uint64_t warp_collective(Collective kind, unsigned mask, std::uint64_t value,
                              unsigned argument, Site site);

/// mma.sync.m16n8k16 with BF16 operands: d += a b, fragments in the registers of the 32 lanes as
/// PTX lays them out (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Each sum is made in double and
/// rounded once; the order of a GPU's sums is not documented.
struct MmaOperands {
  float d[4];
  std::uint32_t a[4], b[2];
};
void mma(MmaOperands& mine, Site site);

/// cp.async of 16 bytes, the first `bytes` of them copied, the others zero. They arrive when the
/// thread waits, not before; so a wait too few shows. Faults: an address that is not a multiple of
/// 16, a copy that is never waited for.
void copy_async(void* shared, const void* global, unsigned bytes, Site site);
void commit_async();
/// All but the last `groups` groups arrive.
void wait_async(unsigned groups);

/// Shared memory of the block, one array per source line.
[[nodiscard]] void* shared_bytes(std::size_t bytes, Site site);
template <class T>
[[nodiscard]] T* shared_array(std::size_t count, const char* file, int line) {
  return static_cast<T*>(shared_bytes(count * sizeof(T), {file, line}));
}
[[nodiscard]] unsigned char* dynamic_shared();

}  // namespace switchyard::host
