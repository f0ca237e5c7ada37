// SPDX-License-Identifier: Apache-2.0
#include "kernels/expert_ffn.hpp"

#include "kernels/cuda_compat.hpp"
#include "kernels/few_rows.hpp"
#include "kernels/tiles.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::kAllLanes;
using gpu::kWarp;
using gpu::Status;
using gpu::Stored;

constexpr unsigned kFfnWarps = 4;
constexpr unsigned kFfnThreads = kFfnWarps * kWarp;
constexpr unsigned kInnerOutputs = 2;  // of one warp: as many rows of gate and of up
constexpr unsigned kDownOutputs = 4;
constexpr std::uint32_t kMostRows = 8;

struct FfnArguments {
  std::uint32_t slots, hidden, inner;
  float limit;
  const ExpertPointers* weights;
  const float* x;
  const std::uint32_t* order;
  float* h;
  float* y;
  const Tile* tiles;
  const std::uint32_t* count;
  std::uint32_t step;  // tiles from one pass of a block to the next
  bool round_inner;
};

template <class W, unsigned R, bool kAligned>
SWITCHYARD_KERNEL(kFfnThreads)
expert_gate_up_kernel(FfnArguments a) {
  constexpr unsigned kSums = 2 * kInnerOutputs * R;
  const unsigned lane = gpu::thread_index() % kWarp;
  const unsigned warp = gpu::thread_index() / kWarp;
  const std::uint64_t first = (gpu::block_x() * kFfnWarps + warp) * kInnerOutputs;
  if (first >= a.inner) {
    return;  // the whole warp, and no barrier of the block follows
  }
  for (std::uint32_t t = static_cast<std::uint32_t>(gpu::block_y()); t < *a.count; t += a.step) {
    const Tile tile = a.tiles[t];
    const ExpertPointers expert = a.weights[tile.expert];
    const W* w[2 * kInnerOutputs];
    const float* x[R];
    SWITCHYARD_UNROLL
    for (unsigned n = 0; n < kInnerOutputs; ++n) {
      const std::uint64_t at = first + n < a.inner ? first + n : a.inner - 1;
      w[n] = static_cast<const W*>(expert.gate) + at * a.hidden;
      w[kInnerOutputs + n] = static_cast<const W*>(expert.up) + at * a.hidden;
    }
    SWITCHYARD_UNROLL
    for (unsigned r = 0; r < R; ++r) {
      const std::uint32_t place = tile.first + (r < tile.rows ? r : 0);
      x[r] = a.x + std::uint64_t{a.order[place] / a.slots} * a.hidden;
    }
    float sum[kSums];
    gpu::dot_tile<W, R, 2 * kInnerOutputs, kAligned>(w, x, a.hidden, lane, sum);
    const float dot = gpu::sum_lanes(sum, lane);
    // Lanes 0…15 hold the sums of gate, lane + 16 the same of up.
    const float other = gpu::shuffle_xor(kAllLanes, dot, kWarp / 2);
    constexpr unsigned kHolders = kWarp / kSums;
    const unsigned n = lane / kHolders / R;
    const unsigned r = lane / kHolders % R;
    const std::uint64_t i = first + n;
    if (n < kInnerOutputs && lane % kHolders == 0 && i < a.inner && r < tile.rows) {
      const float gate = expert.gate_bias == nullptr ? dot : dot + expert.gate_bias[i];
      const float up = expert.up_bias == nullptr ? other : other + expert.up_bias[i];
      const float inner = gpu::gated(gate, up, a.limit);
      a.h[std::uint64_t{tile.first + r} * a.inner + i] =
          a.round_inner ? gpu::as_bf16(inner) : inner;
    }
  }
}

template <class W, unsigned R, bool kAligned>
SWITCHYARD_KERNEL(kFfnThreads)
expert_down_kernel(FfnArguments a) {
  constexpr unsigned kSums = kDownOutputs * R;
  const unsigned lane = gpu::thread_index() % kWarp;
  const unsigned warp = gpu::thread_index() / kWarp;
  const std::uint64_t first = (gpu::block_x() * kFfnWarps + warp) * kDownOutputs;
  if (first >= a.hidden) {
    return;
  }
  for (std::uint32_t t = static_cast<std::uint32_t>(gpu::block_y()); t < *a.count; t += a.step) {
    const Tile tile = a.tiles[t];
    const ExpertPointers expert = a.weights[tile.expert];
    const W* w[kDownOutputs];
    const float* h[R];
    SWITCHYARD_UNROLL
    for (unsigned n = 0; n < kDownOutputs; ++n) {
      const std::uint64_t at = first + n < a.hidden ? first + n : a.hidden - 1;
      w[n] = static_cast<const W*>(expert.down) + at * a.inner;
    }
    SWITCHYARD_UNROLL
    for (unsigned r = 0; r < R; ++r) {
      h[r] = a.h + std::uint64_t{tile.first + (r < tile.rows ? r : 0)} * a.inner;
    }
    float sum[kSums];
    gpu::dot_tile<W, R, kDownOutputs, kAligned>(w, h, a.inner, lane, sum);
    const float dot = gpu::sum_lanes(sum, lane);
    constexpr unsigned kHolders = kWarp / kSums;
    const unsigned r = lane / kHolders % R;
    const std::uint64_t n = first + lane / kHolders / R;
    if (lane % kHolders == 0 && n < a.hidden && r < tile.rows) {
      a.y[std::uint64_t{tile.first + r} * a.hidden + n] =
          expert.down_bias == nullptr ? dot : dot + expert.down_bias[n];
    }
  }
}

std::uint32_t tile_rows(const ExpertFfnParams& p) {
  return p.tokens <= 1 ? 1 : p.tokens == 2 ? 2 : p.tokens <= 4 ? 4 : kMostRows;
}
std::uint64_t tiles_of(const ExpertFfnParams& p) {
  return most_tiles(std::uint64_t{p.tokens} * p.slots, p.experts, tile_rows(p));
}

template <class W, unsigned R>
Status launch_gate_up(const FfnArguments& a, bool aligned, gpu::Stream stream) {
  const gpu::Grid grid{(a.inner + kFfnWarps * kInnerOutputs - 1) / (kFfnWarps * kInnerOutputs),
                       a.step};
  return aligned ? gpu::launch_kernel("expert_gate_up", expert_gate_up_kernel<W, R, true>, grid,
                                      kFfnThreads, 0, stream, a)
                 : gpu::launch_kernel("expert_gate_up", expert_gate_up_kernel<W, R, false>, grid,
                                      kFfnThreads, 0, stream, a);
}
template <class W, unsigned R>
Status launch_down(const FfnArguments& a, bool aligned, gpu::Stream stream) {
  const gpu::Grid grid{(a.hidden + kFfnWarps * kDownOutputs - 1) / (kFfnWarps * kDownOutputs),
                       a.step};
  return aligned ? gpu::launch_kernel("expert_down", expert_down_kernel<W, R, true>, grid,
                                      kFfnThreads, 0, stream, a)
                 : gpu::launch_kernel("expert_down", expert_down_kernel<W, R, false>, grid,
                                      kFfnThreads, 0, stream, a);
}

template <class W>
Status launch_part(const FfnArguments& a, std::uint32_t rows, bool down, bool aligned,
                   gpu::Stream stream) {
  switch (rows) {
    case 1:
      return down ? launch_down<W, 1>(a, aligned, stream)
                  : launch_gate_up<W, 1>(a, aligned, stream);
    case 2:
      return down ? launch_down<W, 2>(a, aligned, stream)
                  : launch_gate_up<W, 2>(a, aligned, stream);
    case 4:
      return down ? launch_down<W, 4>(a, aligned, stream)
                  : launch_gate_up<W, 4>(a, aligned, stream);
    default:
      return down ? launch_down<W, 8>(a, aligned, stream)
                  : launch_gate_up<W, 8>(a, aligned, stream);
  }
}

Status launch_part(const FfnArguments& a, Stored type, std::uint32_t rows, bool down, bool aligned,
                   gpu::Stream stream) {
  switch (type) {
    case Stored::kF32:
      return launch_part<float>(a, rows, down, aligned, stream);
    case Stored::kBf16:
      return launch_part<gpu::Bf16>(a, rows, down, aligned, stream);
    case Stored::kF16:
      return launch_part<gpu::F16>(a, rows, down, aligned, stream);
  }
  return Status::kUnsupported;
}

}  // namespace

Status can_run(const ExpertFfnParams& p) {
  if (p.slots == 0 || p.experts == 0 || p.hidden == 0 || p.inner == 0) {
    return Status::kInvalidShape;
  }
  return p.experts > kTileExperts || std::uint64_t{p.tokens} * p.slots >= 0xFFFFFFFFU
             ? Status::kUnsupported
             : Status::kOk;
}

std::size_t workspace_bytes(const ExpertFfnParams& p) {
  return (tiles_of(p) * sizeof(Tile) + sizeof(std::uint32_t) + 15) / 16 * 16;
}

Status launch(const ExpertFfnParams& p, gpu::Stream stream) {
  Status status = can_run(p);
  if (status != Status::kOk || p.tokens == 0) {
    return status;
  }
  if (p.workspace_size < workspace_bytes(p)) {
    return Status::kWorkspaceTooSmall;
  }
  const std::uint64_t most = tiles_of(p);
  auto* const count = static_cast<std::uint32_t*>(p.workspace);
  auto* const tiles = reinterpret_cast<Tile*>(count + 1);
  const auto step = static_cast<std::uint32_t>(most < gpu::kMaxGridY ? most : gpu::kMaxGridY);
  const FfnArguments a{p.slots, p.hidden, p.inner, p.limit, p.weights, p.x,          p.order,
                       p.h,     p.y,      tiles,   count,   step,      p.round_inner};
  const std::uint32_t rows = tile_rows(p);
  const bool wide = p.aligned && p.hidden % 8 == 0 && p.inner % 8 == 0;
  status = launch_tile_list(p.offsets, p.experts, rows, tiles, count, stream);
  if (status == Status::kOk) {
    status = launch_part(a, p.gate_type, rows, false, wide, stream);
  }
  if (status == Status::kOk) {
    status = launch_part(a, p.down_type, rows, true, wide, stream);
  }
  return status;
}

}  // namespace switchyard::SWITCHYARD_KERNELS
