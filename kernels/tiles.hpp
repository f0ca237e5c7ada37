// SPDX-License-Identifier: Apache-2.0
// Private to the kernels: the list of tiles of rows of a layer's experts, built on the device by
// one block from the offsets that expert_sort gave. Tiles are in order of expert, then place.
#pragma once
#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

struct Tile {
  std::uint32_t expert, first, rows;  ///< Places first … first + rows - 1.
};

inline constexpr std::uint32_t kTileExperts = 1024;

/// Most tiles of `height` rows that `assignments` over `experts` can have.
inline std::uint64_t most_tiles(std::uint64_t assignments, std::uint32_t experts,
                                std::uint32_t height) {
  const std::uint64_t filled = assignments / height + experts;
  return filled < assignments ? filled : assignments;
}

namespace {  // a kernel belongs to the source file that launches it

/// One thread per expert, a multiple of 32.
SWITCHYARD_KERNEL(kTileExperts)
tile_list_kernel(const std::uint32_t* offsets, std::uint32_t experts, std::uint32_t height,
                 Tile* tiles, std::uint32_t* count) {
  SWITCHYARD_SHARED(std::uint32_t, warp_tiles, gpu::kWarp);
  const std::uint32_t e = gpu::thread_index();
  const unsigned lane = e % gpu::kWarp;
  const unsigned warp = e / gpu::kWarp;
  const std::uint32_t begin = e < experts ? offsets[e] : 0;
  const std::uint32_t rows = e < experts ? offsets[e + 1] - begin : 0;
  const std::uint32_t own = (rows + height - 1) / height;
  std::uint32_t up_to = own;
  for (unsigned by = 1; by < gpu::kWarp; by *= 2) {
    const std::uint32_t lower = gpu::shuffle_up(gpu::kAllLanes, up_to, by);
    up_to += lane >= by ? lower : 0;
  }
  if (lane == gpu::kWarp - 1) {
    warp_tiles[warp] = up_to;
  }
  gpu::sync_block();
  std::uint32_t at = up_to - own;
  for (unsigned w = 0; w < warp; ++w) {
    at += warp_tiles[w];
  }
  for (std::uint32_t i = 0; i < own; ++i) {
    const std::uint32_t left = rows - i * height;
    tiles[at + i] = {e, begin + i * height, left < height ? left : height};
  }
  if (e == gpu::block_threads() - 1) {
    *count = at + own;
  }
}

inline gpu::Status launch_tile_list(const std::uint32_t* offsets, std::uint32_t experts,
                                    std::uint32_t height, Tile* tiles, std::uint32_t* count,
                                    gpu::Stream stream) {
  return gpu::launch_kernel("tile_list", tile_list_kernel, {1, 1},
                            (experts + gpu::kWarp - 1) / gpu::kWarp * gpu::kWarp, 0, stream,
                            offsets, experts, height, tiles, count);
}

}  // namespace

}  // namespace switchyard::SWITCHYARD_KERNELS
