// SPDX-License-Identifier: Apache-2.0
#include "kernels/expert_sort.hpp"

#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::kAllLanes;
using gpu::kWarp;
using gpu::Status;

constexpr unsigned kSortWarps = 8;
constexpr unsigned kSortThreads = kSortWarps * kWarp;
constexpr unsigned kSortChunk = 1024;                    // assignments per block
constexpr unsigned kSortPart = kSortChunk / kSortWarps;  // consecutive assignments per warp
constexpr std::uint32_t kSortExperts = 1024;

struct SortArguments {
  std::uint32_t assignments, experts, chunks;
  const std::uint16_t* chosen;
  std::uint32_t* offsets;
  std::uint32_t* order;
  std::uint32_t* place;
  std::uint32_t* counts;  // [chunk][E]; after the scan: assignments of e in earlier chunks
};

SWITCHYARD_KERNEL(kSortThreads)
sort_count_kernel(SortArguments a) {
  SWITCHYARD_DYNAMIC_SHARED(raw);
  std::uint32_t* const count = reinterpret_cast<std::uint32_t*>(raw);  // [E]
  for (std::uint32_t e = gpu::thread_index(); e < a.experts; e += kSortThreads) {
    count[e] = 0;
  }
  gpu::sync_block();
  const std::uint64_t begin = gpu::block_x() * kSortChunk;
  for (std::uint64_t i = begin + gpu::thread_index(); i < begin + kSortChunk; i += kSortThreads) {
    if (i < a.assignments && a.chosen[i] != kNoExpert) {
      gpu::atomic_add(&count[a.chosen[i]], 1);
    }
  }
  gpu::sync_block();
  for (std::uint32_t e = gpu::thread_index(); e < a.experts; e += kSortThreads) {
    a.counts[gpu::block_x() * a.experts + e] = count[e];
  }
}

SWITCHYARD_DEVICE std::uint32_t inclusive_scan(std::uint32_t v, unsigned lane) {
  for (unsigned by = 1; by < kWarp; by *= 2) {
    const std::uint32_t lower = gpu::shuffle_up(kAllLanes, v, by);
    v += lane >= by ? lower : 0;
  }
  return v;
}

/// One block, one thread per expert.
SWITCHYARD_KERNEL(kSortExperts)
sort_scan_kernel(SortArguments a) {
  SWITCHYARD_SHARED(std::uint32_t, warp_total, kWarp);
  const std::uint32_t e = gpu::thread_index();
  const unsigned lane = e % kWarp;
  const unsigned warp = e / kWarp;
  std::uint32_t total = 0;
  if (e < a.experts) {
    for (std::uint64_t c = 0; c < a.chunks; ++c) {
      const std::uint32_t n = a.counts[c * a.experts + e];
      a.counts[c * a.experts + e] = total;
      total += n;
    }
  }
  const std::uint32_t within = inclusive_scan(total, lane);
  if (lane == kWarp - 1) {
    warp_total[warp] = within;
  }
  gpu::sync_block();
  if (warp == 0) {
    const std::uint32_t own = lane < gpu::block_threads() / kWarp ? warp_total[lane] : 0;
    const std::uint32_t up_to = inclusive_scan(own, lane);
    warp_total[lane] = up_to - own;
  }
  gpu::sync_block();
  if (e < a.experts) {
    const std::uint32_t end = warp_total[warp] + within;
    a.offsets[e] = end - total;
    if (e == a.experts - 1) {
      a.offsets[a.experts] = end;
    }
  }
}

SWITCHYARD_KERNEL(kSortThreads)
sort_place_kernel(SortArguments a) {
  SWITCHYARD_DYNAMIC_SHARED(raw);
  std::uint32_t* const cursor = reinterpret_cast<std::uint32_t*>(raw);  // [warp][E]
  const unsigned lane = gpu::thread_index() % kWarp;
  const unsigned warp = gpu::thread_index() / kWarp;
  const unsigned lower_lanes = (1U << lane) - 1;
  const std::uint64_t begin = gpu::block_x() * kSortChunk + warp * kSortPart;
  std::uint32_t* const own = cursor + warp * a.experts;

  // How many of each expert this warp's part has.
  for (std::uint32_t at = gpu::thread_index(); at < kSortWarps * a.experts; at += kSortThreads) {
    cursor[at] = 0;
  }
  gpu::sync_block();
  for (std::uint64_t first = begin; first < begin + kSortPart; first += kWarp) {
    const std::uint64_t i = first + lane;
    const std::uint32_t e = i < a.assignments ? a.chosen[i] : kNoExpert;
    const unsigned peers = gpu::match_any(kAllLanes, e);
    if (e != kNoExpert && (peers & lower_lanes) == 0) {
      own[e] += gpu::count_bits(peers);
    }
    gpu::sync_warp();
  }
  gpu::sync_block();
  // Where each warp's first assignment of an expert goes.
  for (std::uint32_t e = gpu::thread_index(); e < a.experts; e += kSortThreads) {
    std::uint32_t next = a.offsets[e] + a.counts[gpu::block_x() * a.experts + e];
    for (unsigned w = 0; w < kSortWarps; ++w) {
      const std::uint32_t n = cursor[w * a.experts + e];
      cursor[w * a.experts + e] = next;
      next += n;
    }
  }
  gpu::sync_block();
  for (std::uint64_t first = begin; first < begin + kSortPart; first += kWarp) {
    const std::uint64_t i = first + lane;
    const std::uint32_t e = i < a.assignments ? a.chosen[i] : kNoExpert;
    const unsigned peers = gpu::match_any(kAllLanes, e);
    std::uint32_t place = kNoPlace;
    if (e != kNoExpert) {
      place = own[e] + gpu::count_bits(peers & lower_lanes);
      a.order[place] = static_cast<std::uint32_t>(i);
    }
    gpu::sync_warp();
    if (e != kNoExpert && (peers & lower_lanes) == 0) {
      own[e] += gpu::count_bits(peers);
    }
    gpu::sync_warp();
    if (i < a.assignments) {
      a.place[i] = place;
    }
  }
}

std::uint32_t chunks_of(const ExpertSortParams& p) {
  return static_cast<std::uint32_t>((std::uint64_t{p.assignments} + kSortChunk - 1) / kSortChunk);
}

}  // namespace

Status can_run(const ExpertSortParams& p) {
  if (p.experts == 0 || p.experts >= kNoExpert || p.assignments == kNoPlace) {
    return Status::kInvalidShape;
  }
  return p.experts > kSortExperts ? Status::kUnsupported : Status::kOk;
}

std::size_t workspace_bytes(const ExpertSortParams& p) {
  return (std::size_t{chunks_of(p)} * p.experts * sizeof(std::uint32_t) + 15) / 16 * 16;
}

Status launch(const ExpertSortParams& p, gpu::Stream stream) {
  Status status = can_run(p);
  if (status != Status::kOk) {
    return status;
  }
  if (p.workspace_size < workspace_bytes(p)) {
    return Status::kWorkspaceTooSmall;
  }
  const std::uint32_t chunks = chunks_of(p);
  const SortArguments a{
      p.assignments, p.experts, chunks,  p.chosen,
      p.offsets,     p.order,   p.place, static_cast<std::uint32_t*>(p.workspace)};
  const std::size_t row = p.experts * sizeof(std::uint32_t);
  if (chunks > 0) {
    status = gpu::launch_kernel("sort_count", sort_count_kernel, {chunks, 1}, kSortThreads, row,
                                stream, a);
  }
  if (status == Status::kOk) {
    status = gpu::launch_kernel("sort_scan", sort_scan_kernel, {1, 1},
                                (p.experts + kWarp - 1) / kWarp * kWarp, 0, stream, a);
  }
  if (status == Status::kOk && chunks > 0) {
    status = gpu::launch_kernel("sort_place", sort_place_kernel, {chunks, 1}, kSortThreads,
                                kSortWarps * row, stream, a);
  }
  return status;
}

}  // namespace switchyard::SWITCHYARD_KERNELS
