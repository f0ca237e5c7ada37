// SPDX-License-Identifier: Apache-2.0
// The few words in which the kernels are written, so that one source builds twice: by nvcc for a
// GPU and by g++ for the host executor (kernels/host), where each CUDA thread is a fiber. Under
// nvcc each name is the CUDA intrinsic it is named after; masks name the lanes that take part. One
// block dimension (x) and two grid dimensions (x, y) are all that the kernels use. Not modelled:
// textures, clusters, cooperative launches, more than 48 KiB of shared memory.
// Host code that only launches kernels is compiled by g++ for both: with SWITCHYARD_DEVICE_HOST for
// a GPU (then there are only the types and what converts them), without for the host executor.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/status.hpp"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define SWITCHYARD_KERNEL(threads) __global__ void __launch_bounds__(threads, 1)  // 1: no spills
// Registers for so many blocks on one multiprocessor.
#define SWITCHYARD_KERNEL_BLOCKS(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define SWITCHYARD_DEVICE __device__ __forceinline__
// 16: cp.async and loads of pairs go there, whatever the type.
#define SWITCHYARD_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define SWITCHYARD_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#define SWITCHYARD_UNROLL _Pragma("unroll")
#elif defined(SWITCHYARD_DEVICE_HOST)
struct CUstream_st;
#define SWITCHYARD_DEVICE inline
#define SWITCHYARD_UNROLL
#else
#include "kernels/host/executor.hpp"
#define SWITCHYARD_KERNEL(threads) inline void
#define SWITCHYARD_KERNEL_BLOCKS(threads, blocks) inline void
#define SWITCHYARD_DEVICE inline
#define SWITCHYARD_SHARED(type, name, count) \
  type* const name = ::switchyard::host::shared_array<type>(count, __FILE__, __LINE__)
#define SWITCHYARD_DYNAMIC_SHARED(name) \
  unsigned char* const name = ::switchyard::host::dynamic_shared()
#define SWITCHYARD_UNROLL
#endif

// The namespace of the kernels. The planted-bug tests compile changed copies under other names.
#ifndef SWITCHYARD_KERNELS
#define SWITCHYARD_KERNELS kernels
#endif

namespace switchyard::gpu {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Blocks of a launch: x up to 2^31 - 1, y up to 65535.
struct Grid {
  std::uint64_t x = 1;
  std::uint32_t y = 1;
};
inline constexpr std::uint64_t kMaxGridX = 0x7FFFFFFFU;
inline constexpr std::uint32_t kMaxGridY = 65535;
/// Shared memory a kernel may use without opting in, static and dynamic together.
inline constexpr std::size_t kMaxShared = 48 * 1024;

#ifdef __CUDACC__

SWITCHYARD_DEVICE unsigned thread_index() { return threadIdx.x; }
SWITCHYARD_DEVICE unsigned block_threads() { return blockDim.x; }
SWITCHYARD_DEVICE std::uint64_t block_x() { return blockIdx.x; }
SWITCHYARD_DEVICE std::uint64_t block_y() { return blockIdx.y; }
SWITCHYARD_DEVICE void sync_block() { __syncthreads(); }
SWITCHYARD_DEVICE void sync_warp(unsigned mask = kAllLanes) { __syncwarp(mask); }
template <class T>
SWITCHYARD_DEVICE T shuffle(unsigned mask, T v, unsigned lane) {
  return __shfl_sync(mask, v, static_cast<int>(lane));
}
template <class T>
SWITCHYARD_DEVICE T shuffle_xor(unsigned mask, T v, unsigned bits) {
  return __shfl_xor_sync(mask, v, static_cast<int>(bits));
}
template <class T>
SWITCHYARD_DEVICE T shuffle_up(unsigned mask, T v, unsigned by) {
  return __shfl_up_sync(mask, v, by);
}
template <class T>
SWITCHYARD_DEVICE T shuffle_down(unsigned mask, T v, unsigned by) {
  return __shfl_down_sync(mask, v, by);
}
SWITCHYARD_DEVICE unsigned ballot(unsigned mask, bool vote) { return __ballot_sync(mask, vote); }
SWITCHYARD_DEVICE bool any(unsigned mask, bool vote) { return __any_sync(mask, vote) != 0; }
SWITCHYARD_DEVICE bool all(unsigned mask, bool vote) { return __all_sync(mask, vote) != 0; }
/// The lanes of the mask that hold the same value.
SWITCHYARD_DEVICE unsigned match_any(unsigned mask, unsigned v) {
  return __match_any_sync(mask, v);
}
SWITCHYARD_DEVICE unsigned atomic_add(std::uint32_t* at, std::uint32_t v) {
  return atomicAdd(at, v);
}
SWITCHYARD_DEVICE unsigned count_bits(unsigned v) { return static_cast<unsigned>(__popc(v)); }
/// Index of the lowest set bit; v != 0.
SWITCHYARD_DEVICE unsigned lowest_bit(unsigned v) { return static_cast<unsigned>(__ffs(v)) - 1; }
SWITCHYARD_DEVICE std::uint32_t float_bits(float v) { return __float_as_uint(v); }
SWITCHYARD_DEVICE float bits_float(std::uint32_t v) { return __uint_as_float(v); }

/// 16 bytes from global to shared memory, both at multiples of 16: the first `bytes` are copied,
/// the others become zero. In flight until async_wait.
SWITCHYARD_DEVICE void async_copy(void* shared, const void* global, unsigned bytes) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}
/// Closes a group of copies.
SWITCHYARD_DEVICE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for all of this thread's groups but the last kGroups.
template <unsigned kGroups>
SWITCHYARD_DEVICE void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
/// d += a b with BF16 operands, m16n8k16; all lanes, registers as PTX lays them out.
SWITCHYARD_DEVICE void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

using Stream = cudaStream_t;

template <class... P, class... A>
Status launch_kernel(const char*, void (*kernel)(P...), Grid grid, unsigned threads,
                     std::size_t shared, Stream stream, A... arguments) {
  kernel<<<dim3(static_cast<unsigned>(grid.x), grid.y), threads, shared, stream>>>(arguments...);
  // Only a look: Device::error() takes the error with its text.
  return cudaPeekAtLastError() == cudaSuccess ? Status::kOk : Status::kLaunchFailed;
}

#elif defined(SWITCHYARD_DEVICE_HOST)

using Stream = CUstream_st*;  // cudaStream_t
inline std::uint32_t float_bits(float v) { return __builtin_bit_cast(std::uint32_t, v); }
inline float bits_float(std::uint32_t v) { return __builtin_bit_cast(float, v); }
template <class T>
T shuffle_xor(unsigned mask, T v, unsigned bits);  // named by templates that only kernels use

#else

inline unsigned thread_index() { return host::thread_index(); }
inline unsigned block_threads() { return host::block_threads(); }
inline std::uint64_t block_x() { return host::block_x(); }
inline std::uint64_t block_y() { return host::block_y(); }
inline void sync_block(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  host::sync_block({file, line});
}
inline void sync_warp(unsigned mask = kAllLanes, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  host::warp_collective(host::Collective::kSync, mask, 0, 0, {file, line});
}
template <class T>
T shuffle_as(host::Collective kind, unsigned mask, T v, unsigned argument, host::Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &v, sizeof(T));
  bits = host::warp_collective(kind, mask, bits, argument, site);
  __builtin_memcpy(&v, &bits, sizeof(T));
  return v;
}
template <class T>
T shuffle(unsigned mask, T v, unsigned lane, const char* file = __builtin_FILE(),
          int line = __builtin_LINE()) {
  return shuffle_as(host::Collective::kShuffle, mask, v, lane, {file, line});
}
template <class T>
T shuffle_xor(unsigned mask, T v, unsigned bits, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return shuffle_as(host::Collective::kShuffleXor, mask, v, bits, {file, line});
}
template <class T>
T shuffle_up(unsigned mask, T v, unsigned by, const char* file = __builtin_FILE(),
             int line = __builtin_LINE()) {
  return shuffle_as(host::Collective::kShuffleUp, mask, v, by, {file, line});
}
template <class T>
T shuffle_down(unsigned mask, T v, unsigned by, const char* file = __builtin_FILE(),
               int line = __builtin_LINE()) {
  return shuffle_as(host::Collective::kShuffleDown, mask, v, by, {file, line});
}
inline unsigned ballot(unsigned mask, bool vote, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  return static_cast<unsigned>(
      host::warp_collective(host::Collective::kBallot, mask, vote ? 1 : 0, 0, {file, line}));
}
inline bool any(unsigned mask, bool vote, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) {
  return ballot(mask, vote, file, line) != 0;
}
inline bool all(unsigned mask, bool vote, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) {
  return ballot(mask, vote, file, line) == mask;
}
inline unsigned match_any(unsigned mask, unsigned v, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  return static_cast<unsigned>(
      host::warp_collective(host::Collective::kMatch, mask, v, 0, {file, line}));
}
// Fibers change only at collectives, so plain memory operations are atomic.
inline std::uint32_t atomic_add(std::uint32_t* at, std::uint32_t v) {
  const std::uint32_t old = *at;
  *at = old + v;
  return old;
}
inline unsigned count_bits(unsigned v) { return static_cast<unsigned>(__builtin_popcount(v)); }
inline unsigned lowest_bit(unsigned v) { return static_cast<unsigned>(__builtin_ctz(v)); }
inline std::uint32_t float_bits(float v) { return __builtin_bit_cast(std::uint32_t, v); }
inline float bits_float(std::uint32_t v) { return __builtin_bit_cast(float, v); }

inline void async_copy(void* shared, const void* global, unsigned bytes,
                       const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  host::copy_async(shared, global, bytes, {file, line});
}
inline void async_commit() { host::commit_async(); }
template <unsigned kGroups>
void async_wait() {
  host::wait_async(kGroups);
}
inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  host::MmaOperands o{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  host::mma(o, {file, line});
  for (int i = 0; i < 4; ++i) {
    d[i] = o.d[i];
  }
}

using Stream = host::LaunchQueue*;

template <class... P, class... A>
Status launch_kernel(const char* name, void (*kernel)(P...), Grid grid, unsigned threads,
                     std::size_t shared, Stream stream, A... arguments) {
  const auto launch = [=] {
    return host::run({name, grid.x, grid.y, threads, shared}, [&] { kernel(arguments...); });
  };
  if (stream != nullptr) {
    stream->push(launch);
    return Status::kOk;
  }
  return launch() ? Status::kOk : Status::kLaunchFailed;
}

#endif

inline constexpr float kInfinity = __builtin_huge_valf();

/// A BF16 number: the upper half of a float.
struct Bf16 {
  std::uint16_t bits;
};
SWITCHYARD_DEVICE float to_float(Bf16 v) { return bits_float(std::uint32_t{v.bits} << 16); }
SWITCHYARD_DEVICE float to_float(float v) { return v; }
/// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
SWITCHYARD_DEVICE void store(Bf16* at, float v) {
  const std::uint32_t bits = float_bits(v);
  at->bits = v != v ? static_cast<std::uint16_t>((bits >> 16) | 0x40U)
                    : static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}
SWITCHYARD_DEVICE void store(float* at, float v) { *at = v; }
/// The BF16 number next to v, as a float.
SWITCHYARD_DEVICE float as_bf16(float v) {
  Bf16 half{};
  store(&half, v);
  return to_float(half);
}

}  // namespace switchyard::gpu
