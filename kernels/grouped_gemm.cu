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

/// What a launch multiplies.
enum class Part : std::uint8_t { kGateUp, kDown, kDense };

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

struct DenseArguments {
  std::uint32_t rows, outputs, depth, blocks;  // blocks of one head
  const Bf16* w;
  const void* const* w_of;
  const Bf16* x;
  std::uint64_t x_stride, x_head;
  float* out;
  std::uint64_t out_stride, out_head;
};

SWITCHYARD_DEVICE std::uint32_t pair_at(const Bf16* p) {
  return *reinterpret_cast<const std::uint32_t*>(p);
}

/// Row of the weights' tile at which n8 tile j of a warp begins. Gate and up: a warp has 32 columns
/// of gate (tiles 0…3) and the same of up (4…7), which lie 64 rows further.
template <Part kPart>
SWITCHYARD_DEVICE unsigned column_of(unsigned warp_column, unsigned j) {
  return kPart == Part::kGateUp ? warp_column * 32 + j % 4 * 8 + j / 4 * 64
                                : warp_column * 64 + j * 8;
}

constexpr unsigned kOwnRows = kGemmRows * kGemmDepth / kChunk / kGemmThreads;  // of a thread
constexpr unsigned kPerRow = kGemmDepth / kChunk;                              // threads of a row
static_assert(kGemmRows == kGemmColumns && kOwnRows * kGemmThreads == kGemmRows * kPerRow);

/// The row, or weight row, of the block that a thread copies in pass i of kOwnRows.
SWITCHYARD_DEVICE unsigned own_row(unsigned thread, unsigned i) {
  return (thread + i * kGemmThreads) / kPerRow;
}

/// sum += the products of a block of 128 rows and 128 weight rows over `depth`. row[i], weight[i]:
/// where this thread's row own_row(thread, i) begins, or null: zeros. `readable`: any 16 bytes.
template <Part kPart>
SWITCHYARD_DEVICE void multiply_block(const Bf16* const (&row)[kOwnRows],
                                      const Bf16* const (&weight)[kOwnRows], const Bf16* readable,
                                      std::uint32_t depth, Bf16* rows_tile, Bf16* weights_tile,
                                      float (&sum)[kRowTiles][kColumnTiles][4]) {
  const unsigned thread = gpu::thread_index();
  const unsigned lane = thread % kWarp;
  const unsigned warp = thread / kWarp;
  const unsigned warp_row = warp % 4 * 32;
  const unsigned warp_column = warp / 4;
  const unsigned group = lane / 4;
  const unsigned in_group = lane % 4;
  const std::uint32_t steps = (depth + kGemmDepth - 1) / kGemmDepth;
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
    const unsigned chunk = thread % kPerRow * kChunk;
    const std::uint64_t k = step * std::uint64_t{kGemmDepth} + chunk;
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kOwnRows; ++i) {
      const unsigned at = (stage * kGemmRows + own_row(thread, i)) * kGemmStride + chunk;
      const bool row_there = row[i] != nullptr && k < depth;
      gpu::async_copy(rows_tile + at, row_there ? row[i] + k : readable, row_there ? 16 : 0);
      const bool weight_there = weight[i] != nullptr && k < depth;
      gpu::async_copy(weights_tile + at, weight_there ? weight[i] + k : readable,
                      weight_there ? 16 : 0);
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
        const Bf16* const at = rows + (warp_row + m * 16 + group) * kGemmStride + k + in_group * 2;
        left[m][0] = pair_at(at);
        left[m][1] = pair_at(at + 8 * kGemmStride);
        left[m][2] = pair_at(at + 8);
        left[m][3] = pair_at(at + 8 * kGemmStride + 8);
      }
      SWITCHYARD_UNROLL
      for (unsigned j = 0; j < kColumnTiles; ++j) {
        const Bf16* const at =
            weights + (column_of<kPart>(warp_column, j) + group) * kGemmStride + k + in_group * 2;
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
}

/// f(row of the block, column, m, j, i) for each sum of this thread. Register i of a tile: row
/// group + 8 (i / 2), column 2 in_group + i % 2.
template <Part kPart, class F>
SWITCHYARD_DEVICE void for_sums(const F& f) {
  const unsigned lane = gpu::thread_index() % kWarp;
  const unsigned warp = gpu::thread_index() / kWarp;
  SWITCHYARD_UNROLL
  for (unsigned m = 0; m < kRowTiles; ++m) {
    SWITCHYARD_UNROLL
    for (unsigned j = 0; j < (kPart == Part::kGateUp ? kColumnTiles / 2 : kColumnTiles); ++j) {
      SWITCHYARD_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        f(warp % 4 * 32 + m * 16 + lane / 4 + i / 2 * 8,
          column_of<kPart>(warp / 4, j) + lane % 4 * 2 + i % 2, m, j, i);
      }
    }
  }
}

template <Part kPart>
SWITCHYARD_KERNEL_BLOCKS(kGemmThreads, 2)
grouped_gemm_kernel(GemmArguments a) {
  SWITCHYARD_SHARED(Bf16, rows_tile, kGemmStages * kGemmRows * kGemmStride);
  SWITCHYARD_SHARED(Bf16, weights_tile, kGemmStages * kGemmColumns * kGemmStride);
  constexpr bool kDown = kPart == Part::kDown;
  const unsigned thread = gpu::thread_index();
  // Columns of outputs per block: gate and up share the 128 weight rows.
  const std::uint64_t first_column = gpu::block_x() * (kDown ? kGemmColumns : kGemmColumns / 2);

  for (std::uint32_t t = static_cast<std::uint32_t>(gpu::block_y()); t < *a.count; t += a.step) {
    const Tile tile = a.tiles[t];
    const ExpertPointers expert = a.weights[tile.expert];
    const Bf16* row[kOwnRows];
    const Bf16* weight[kOwnRows];
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kOwnRows; ++i) {
      const unsigned r = own_row(thread, i);
      const std::uint32_t place = tile.first + (r < tile.rows ? r : 0);
      const std::uint64_t token = a.order == nullptr ? place : a.order[place] / a.slots;
      row[i] = r < tile.rows ? a.x + token * a.depth : nullptr;
      const bool up = !kDown && r >= kGemmColumns / 2;
      const std::uint64_t column = first_column + (up ? r - kGemmColumns / 2 : r);
      const auto* const w = static_cast<const Bf16*>(kDown ? expert.down
                                                     : up  ? expert.up
                                                           : expert.gate);
      weight[i] = column < a.outputs ? w + column * a.depth : nullptr;
    }
    float sum[kRowTiles][kColumnTiles][4];
    multiply_block<kPart>(row, weight, a.x, a.depth, rows_tile, weights_tile, sum);
    for_sums<kPart>([&](std::uint32_t r, std::uint64_t column, unsigned m, unsigned j, unsigned i) {
      const std::uint64_t n = first_column + column;
      if (r >= tile.rows || n >= a.outputs) {
        return;
      }
      const std::uint64_t at = (std::uint64_t{tile.first} + r) * a.outputs + n;
      if constexpr (kDown) {
        a.y[at] = expert.down_bias == nullptr ? sum[m][j][i] : sum[m][j][i] + expert.down_bias[n];
      } else {
        const float gate =
            expert.gate_bias == nullptr ? sum[m][j][i] : sum[m][j][i] + expert.gate_bias[n];
        const float plain = sum[m][j + kColumnTiles / 2][i];
        const float up = expert.up_bias == nullptr ? plain : plain + expert.up_bias[n];
        gpu::store(a.h + at, gpu::gated(gate, up, a.limit));
      }
    });
  }
}

SWITCHYARD_KERNEL_BLOCKS(kGemmThreads, 2)
dense_gemm_kernel(DenseArguments a) {
  SWITCHYARD_SHARED(Bf16, rows_tile, kGemmStages * kGemmRows * kGemmStride);
  SWITCHYARD_SHARED(Bf16, weights_tile, kGemmStages * kGemmColumns * kGemmStride);
  const unsigned thread = gpu::thread_index();
  const std::uint64_t head = gpu::block_x() / a.blocks;
  const std::uint64_t first_column = gpu::block_x() % a.blocks * kGemmColumns;
  const std::uint64_t first_row = gpu::block_y() * kGemmRows;
  const auto* const w = a.w_of == nullptr ? a.w : static_cast<const Bf16*>(a.w_of[head]);
  const Bf16* row[kOwnRows];
  const Bf16* weight[kOwnRows];
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < kOwnRows; ++i) {
    const std::uint64_t r = first_row + own_row(thread, i);
    row[i] = r < a.rows ? a.x + r * a.x_stride + head * a.x_head : nullptr;
    const std::uint64_t n = first_column + own_row(thread, i);
    weight[i] = n < a.outputs ? w + n * a.depth : nullptr;
  }
  float sum[kRowTiles][kColumnTiles][4];
  multiply_block<Part::kDense>(row, weight, a.x, a.depth, rows_tile, weights_tile, sum);
  for_sums<Part::kDense>(
      [&](std::uint64_t in_block, std::uint64_t column, unsigned m, unsigned j, unsigned i) {
        const std::uint64_t r = first_row + in_block;
        const std::uint64_t n = first_column + column;
        if (r < a.rows && n < a.outputs) {
          a.out[r * a.out_stride + head * a.out_head + n] = sum[m][j][i];
        }
      });
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
        gpu::launch_kernel("grouped_gate_up", grouped_gemm_kernel<Part::kGateUp>,
                           {(p.inner + kColumns - 1) / kColumns, step}, kGemmThreads, 0, stream, a);
  }
  if (status == Status::kOk) {
    a.outputs = p.hidden;
    a.depth = p.inner;
    a.x = p.h;
    a.order = nullptr;
    status = gpu::launch_kernel("grouped_down", grouped_gemm_kernel<Part::kDown>,
                                {(p.hidden + kGemmColumns - 1) / kGemmColumns, step}, kGemmThreads,
                                0, stream, a);
  }
  return status;
}

Status can_run(const DenseGemmParams& p) {
  if (p.outputs == 0 || p.depth == 0 || p.heads == 0 || (p.heads > 1 && p.w_of == nullptr)) {
    return Status::kInvalidShape;
  }
  const std::uint64_t blocks =
      (std::uint64_t{p.outputs} + kGemmColumns - 1) / kGemmColumns * p.heads;
  return p.depth % kChunk != 0 || p.x_stride % kChunk != 0 || p.x_head % kChunk != 0 ||
                 blocks > gpu::kMaxGridX || p.rows > gpu::kMaxGridY * kGemmRows
             ? Status::kUnsupported
             : Status::kOk;
}

std::size_t workspace_bytes(const DenseGemmParams&) { return 0; }

Status launch(const DenseGemmParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.rows == 0) {
    return status;
  }
  const std::uint32_t blocks = (p.outputs + kGemmColumns - 1) / kGemmColumns;
  const DenseArguments a{p.rows, p.outputs,  p.depth,  blocks, p.w,          p.w_of,
                         p.x,    p.x_stride, p.x_head, p.out,  p.out_stride, p.out_head};
  const gpu::Grid grid{std::uint64_t{blocks} * p.heads, (p.rows + kGemmRows - 1) / kGemmRows};
  return gpu::launch_kernel("dense_gemm", dense_gemm_kernel, grid, kGemmThreads, 0, stream, a);
}

}  // namespace switchyard::SWITCHYARD_KERNELS
