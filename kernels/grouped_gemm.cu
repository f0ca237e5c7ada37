// SPDX-License-Identifier: Apache-2.0
#include "kernels/grouped_gemm.hpp"

#include "kernels/cuda_compat.hpp"
#include "kernels/few_rows.hpp"
#include "kernels/tiles.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::Bf16;
using gpu::kWarp;
using gpu::Status;

constexpr unsigned kGemmThreads = 256;
constexpr std::uint32_t kGemmRows = 128;          // of a block
constexpr std::uint32_t kGemmColumns = 128;       // weight rows of a block
constexpr std::uint32_t kGemmDepth = 32;          // of a stage
constexpr unsigned kGemmStride = kGemmDepth + 8;  // halves; keeps the fragments' banks apart
constexpr unsigned kGemmStages = 2;
constexpr unsigned kChunk = 8;        // halves of one cp.async
constexpr unsigned kRowTiles = 2;     // m16 tiles of a warp
constexpr unsigned kColumnTiles = 8;  // n8 tiles of a warp

struct GemmArguments {
  std::uint32_t slots, outputs, depth;  // outputs: I or H
  float limit;
  const ExpertPointers* weights;
  const Bf16* x;               // rows by token (gate and up), or by place (down)
  const std::uint32_t* order;  // null: by place
  Bf16* h;
  float* y;
  const Tile* tiles;
  const std::uint32_t* count;
  std::uint32_t step;
};

SWITCHYARD_DEVICE std::uint32_t pair_at(const Bf16* p) {
  return *reinterpret_cast<const std::uint32_t*>(p);
}

/// Row of the weights' tile at which n8 tile j of a warp begins. Gate and up: a warp has 32 columns
/// of gate (tiles 0…3) and the same of up (4…7), which lie 64 rows further.
template <bool kDown>
SWITCHYARD_DEVICE unsigned column_of(unsigned warp_column, unsigned j) {
  return kDown ? warp_column * 64 + j * 8 : warp_column * 32 + j % 4 * 8 + j / 4 * 64;
}

template <bool kDown>
SWITCHYARD_KERNEL(kGemmThreads)
grouped_gemm_kernel(GemmArguments a) {
  SWITCHYARD_SHARED(Bf16, rows_tile, kGemmStages * kGemmRows * kGemmStride);
  SWITCHYARD_SHARED(Bf16, weights_tile, kGemmStages * kGemmColumns * kGemmStride);
  const unsigned thread = gpu::thread_index();
  const unsigned lane = thread % kWarp;
  const unsigned warp = thread / kWarp;
  const unsigned warp_row = warp % 4 * 32;
  const unsigned warp_column = warp / 4;
  const unsigned group = lane / 4;
  const unsigned in_group = lane % 4;
  // Columns of outputs per block: gate and up share the 128 weight rows.
  const std::uint64_t first_column = gpu::block_x() * (kDown ? kGemmColumns : kGemmColumns / 2);
  const std::uint32_t steps = (a.depth + kGemmDepth - 1) / kGemmDepth;

  for (std::uint32_t t = static_cast<std::uint32_t>(gpu::block_y()); t < *a.count; t += a.step) {
    const Tile tile = a.tiles[t];
    const ExpertPointers expert = a.weights[tile.expert];
    float sum[kRowTiles][kColumnTiles][4];
    SWITCHYARD_UNROLL
    for (unsigned m = 0; m < kRowTiles; ++m) {
      SWITCHYARD_UNROLL
      for (unsigned j = 0; j < kColumnTiles; ++j) {
        SWITCHYARD_UNROLL
        for (unsigned i = 0; i < 4; ++i) {
          sum[m][j][i] = 0.0F;
        }
      }
    }
    // One group of copies: K from `step` * 32 of all rows and weight rows.
    const auto fetch = [&](std::uint32_t step) {
      const unsigned stage = step % kGemmStages;
      constexpr unsigned kPerRow = kGemmDepth / kChunk;
      for (unsigned at = thread; at < kGemmRows * kPerRow; at += kGemmThreads) {
        const unsigned r = at / kPerRow;
        const std::uint64_t k = step * std::uint64_t{kGemmDepth} + at % kPerRow * kChunk;
        const bool there = r < tile.rows && k < a.depth;
        const std::uint32_t place = tile.first + (r < tile.rows ? r : 0);
        const std::uint64_t row = a.order == nullptr ? place : a.order[place] / a.slots;
        gpu::async_copy(rows_tile + (stage * kGemmRows + r) * kGemmStride + at % kPerRow * kChunk,
                        a.x + row * a.depth + (there ? k : 0), there ? 16 : 0);
      }
      for (unsigned at = thread; at < kGemmColumns * kPerRow; at += kGemmThreads) {
        const unsigned n = at / kPerRow;
        const std::uint64_t k = step * std::uint64_t{kGemmDepth} + at % kPerRow * kChunk;
        const bool up = !kDown && n >= kGemmColumns / 2;
        const std::uint64_t column = first_column + (up ? n - kGemmColumns / 2 : n);
        const bool there = column < a.outputs && k < a.depth;
        const Bf16* const w = static_cast<const Bf16*>(kDown ? expert.down
                                                       : up  ? expert.up
                                                             : expert.gate);
        gpu::async_copy(
            weights_tile + (stage * kGemmColumns + n) * kGemmStride + at % kPerRow * kChunk,
            w + (there ? column * a.depth + k : 0), there ? 16 : 0);
      }
      gpu::async_commit();
    };

    fetch(0);
    for (std::uint32_t step = 0; step < steps; ++step) {
      if (step + 1 < steps) {
        fetch(step + 1);
      } else {
        gpu::async_commit();  // an empty group, so that the wait below means this step
      }
      gpu::async_wait<1>();
      gpu::sync_block();  // everybody's part of the stage is there
      const unsigned stage = step % kGemmStages;
      const Bf16* const rows = rows_tile + stage * kGemmRows * kGemmStride;
      const Bf16* const weights = weights_tile + stage * kGemmColumns * kGemmStride;
      SWITCHYARD_UNROLL
      for (unsigned k = 0; k < kGemmDepth; k += 16) {
        std::uint32_t left[kRowTiles][4];
        SWITCHYARD_UNROLL
        for (unsigned m = 0; m < kRowTiles; ++m) {
          const Bf16* const at =
              rows + (warp_row + m * 16 + group) * kGemmStride + k + in_group * 2;
          left[m][0] = pair_at(at);
          left[m][1] = pair_at(at + 8 * kGemmStride);
          left[m][2] = pair_at(at + 8);
          left[m][3] = pair_at(at + 8 * kGemmStride + 8);
        }
        SWITCHYARD_UNROLL
        for (unsigned j = 0; j < kColumnTiles; ++j) {
          const Bf16* const at =
              weights + (column_of<kDown>(warp_column, j) + group) * kGemmStride + k + in_group * 2;
          const std::uint32_t right[2] = {pair_at(at), pair_at(at + 8)};
          SWITCHYARD_UNROLL
          for (unsigned m = 0; m < kRowTiles; ++m) {
            gpu::mma_bf16(sum[m][j], left[m], right);
          }
        }
      }
      gpu::sync_block();  // all have read the stage, before it is filled again
    }
    gpu::async_wait<0>();

    // Register i of a tile: row group + 8 (i / 2), column 2 in_group + i % 2.
    SWITCHYARD_UNROLL
    for (unsigned m = 0; m < kRowTiles; ++m) {
      SWITCHYARD_UNROLL
      for (unsigned j = 0; j < (kDown ? kColumnTiles : kColumnTiles / 2); ++j) {
        SWITCHYARD_UNROLL
        for (unsigned i = 0; i < 4; ++i) {
          const std::uint32_t r = warp_row + m * 16 + group + i / 2 * 8;
          const std::uint64_t n =
              first_column + column_of<kDown>(warp_column, j) + in_group * 2 + i % 2;
          if (r >= tile.rows || n >= a.outputs) {
            continue;
          }
          const std::uint64_t at = (std::uint64_t{tile.first} + r) * a.outputs + n;
          if constexpr (kDown) {
            a.y[at] =
                expert.down_bias == nullptr ? sum[m][j][i] : sum[m][j][i] + expert.down_bias[n];
          } else {
            const float gate =
                expert.gate_bias == nullptr ? sum[m][j][i] : sum[m][j][i] + expert.gate_bias[n];
            const float plain = sum[m][j + kColumnTiles / 2][i];
            const float up = expert.up_bias == nullptr ? plain : plain + expert.up_bias[n];
            gpu::store(a.h + at, gpu::gated(gate, up, a.limit));
          }
        }
      }
    }
  }
}

std::uint64_t gemm_tiles(const GroupedGemmParams& p) {
  return most_tiles(std::uint64_t{p.tokens} * p.slots, p.experts, kGemmRows);
}

}  // namespace

Status can_run(const GroupedGemmParams& p) {
  if (p.slots == 0 || p.experts == 0 || p.hidden == 0 || p.inner == 0) {
    return Status::kInvalidShape;
  }
  return p.experts > kTileExperts || p.hidden % kChunk != 0 || p.inner % kChunk != 0 ||
                 std::uint64_t{p.tokens} * p.slots >= 0xFFFFFFFFU
             ? Status::kUnsupported
             : Status::kOk;
}

std::size_t workspace_bytes(const GroupedGemmParams& p) {
  return (gemm_tiles(p) * sizeof(Tile) + sizeof(std::uint32_t) + 15) / 16 * 16;
}

Status launch(const GroupedGemmParams& p, gpu::Stream stream) {
  Status status = can_run(p);
  if (status != Status::kOk || p.tokens == 0) {
    return status;
  }
  if (p.workspace_size < workspace_bytes(p)) {
    return Status::kWorkspaceTooSmall;
  }
  const std::uint64_t most = gemm_tiles(p);
  auto* const count = static_cast<std::uint32_t*>(p.workspace);
  auto* const tiles = reinterpret_cast<Tile*>(count + 1);
  const auto step = static_cast<std::uint32_t>(most < gpu::kMaxGridY ? most : gpu::kMaxGridY);
  status = launch_tile_list(p.offsets, p.experts, kGemmRows, tiles, count, stream);
  GemmArguments a{p.slots, p.inner, p.hidden, p.limit, p.weights, p.x,
                  p.order, p.h,     p.y,      tiles,   count,     step};
  if (status == Status::kOk) {
    constexpr std::uint32_t kColumns = kGemmColumns / 2;
    status =
        gpu::launch_kernel("grouped_gate_up", grouped_gemm_kernel<false>,
                           {(p.inner + kColumns - 1) / kColumns, step}, kGemmThreads, 0, stream, a);
  }
  if (status == Status::kOk) {
    a.outputs = p.hidden;
    a.depth = p.inner;
    a.x = p.h;
    a.order = nullptr;
    status = gpu::launch_kernel("grouped_down", grouped_gemm_kernel<true>,
                                {(p.hidden + kGemmColumns - 1) / kGemmColumns, step}, kGemmThreads,
                                0, stream, a);
  }
  return status;
}

}  // namespace switchyard::SWITCHYARD_KERNELS
