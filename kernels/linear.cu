// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear.hpp"

#include "kernels/cuda_compat.hpp"
#include "kernels/few_rows.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::kWarp;
using gpu::Status;
using gpu::Stored;

constexpr unsigned kLinearWarps = 4;
constexpr unsigned kLinearThreads = kLinearWarps * kWarp;
constexpr unsigned kLinearOutputs = 4;  // of one warp
constexpr unsigned kLinearRows = 8;

struct LinearArguments {
  std::uint32_t rows, outputs, depth, blocks;  // blocks of one head
  const void* w;
  const void* const* w_of;
  const float* x;
  std::uint64_t x_stride, x_head;
  float* out;
  std::uint64_t out_stride, out_head;
  const float* bias;
};

template <class W, unsigned R, bool kAligned>
SWITCHYARD_KERNEL(kLinearThreads)
linear_kernel(LinearArguments a) {
  constexpr unsigned kSums = kLinearOutputs * R;
  const unsigned lane = gpu::thread_index() % kWarp;
  const unsigned warp = gpu::thread_index() / kWarp;
  const std::uint64_t head = gpu::block_x() / a.blocks;
  const std::uint64_t first =
      (gpu::block_x() % a.blocks * kLinearWarps + warp) * std::uint64_t{kLinearOutputs};
  const std::uint64_t row = gpu::block_y() * R;
  if (first >= a.outputs) {
    return;  // the whole warp, and no barrier of the block follows
  }
  const W* const matrix = static_cast<const W*>(a.w_of == nullptr ? a.w : a.w_of[head]);
  // Rows and outputs beyond the end repeat the last one and are not stored.
  const W* w[kLinearOutputs];
  const float* x[R];
  SWITCHYARD_UNROLL
  for (unsigned n = 0; n < kLinearOutputs; ++n) {
    const std::uint64_t at = first + n < a.outputs ? first + n : a.outputs - 1;
    w[n] = matrix + at * a.depth;
  }
  SWITCHYARD_UNROLL
  for (unsigned r = 0; r < R; ++r) {
    const std::uint64_t at = row + r < a.rows ? row + r : a.rows - 1;
    x[r] = a.x + at * a.x_stride + head * a.x_head;
  }
  float sum[kSums];
  gpu::dot_tile<W, R, kLinearOutputs, kAligned>(w, x, a.depth, lane, sum);
  const float dot = gpu::sum_lanes(sum, lane);
  constexpr unsigned kHolders = kWarp / kSums;  // lanes with the same sum
  const std::uint64_t n = first + lane / kHolders / R;
  const std::uint64_t r = row + lane / kHolders % R;
  if (lane % kHolders == 0 && n < a.outputs && r < a.rows) {
    a.out[r * a.out_stride + head * a.out_head + n] = a.bias == nullptr ? dot : dot + a.bias[n];
  }
}

template <class W, unsigned R>
Status launch_linear(const LinearArguments& a, const LinearParams& p, gpu::Stream stream) {
  const gpu::Grid grid{std::uint64_t{a.blocks} * p.heads, (p.rows + R - 1) / R};
  return p.aligned && p.depth % 8 == 0 ? gpu::launch_kernel("linear", linear_kernel<W, R, true>,
                                                            grid, kLinearThreads, 0, stream, a)
                                       : gpu::launch_kernel("linear", linear_kernel<W, R, false>,
                                                            grid, kLinearThreads, 0, stream, a);
}

template <class W>
Status launch_linear(const LinearArguments& a, const LinearParams& p, gpu::Stream stream) {
  switch (p.rows) {
    case 1:
      return launch_linear<W, 1>(a, p, stream);
    case 2:
      return launch_linear<W, 2>(a, p, stream);
    case 3:
    case 4:
      return launch_linear<W, 4>(a, p, stream);
    default:
      return launch_linear<W, kLinearRows>(a, p, stream);
  }
}

}  // namespace

Status can_run(const LinearParams& p) {
  if (p.outputs == 0 || p.depth == 0 || p.heads == 0 || (p.heads > 1 && p.w_of == nullptr)) {
    return Status::kInvalidShape;
  }
  const std::uint64_t blocks = (std::uint64_t{p.outputs} + kLinearWarps * kLinearOutputs - 1) /
                               (kLinearWarps * kLinearOutputs) * p.heads;
  return p.rows > gpu::kMaxGridY * kLinearRows || blocks > gpu::kMaxGridX ? Status::kUnsupported
                                                                          : Status::kOk;
}

std::size_t workspace_bytes(const LinearParams&) { return 0; }

Status launch(const LinearParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.rows == 0) {
    return status;
  }
  const std::uint32_t blocks =
      (p.outputs + kLinearWarps * kLinearOutputs - 1) / (kLinearWarps * kLinearOutputs);
  const LinearArguments a{p.rows,     p.outputs, p.depth, blocks,       p.w,        p.w_of, p.x,
                          p.x_stride, p.x_head,  p.out,   p.out_stride, p.out_head, p.bias};
  switch (p.type) {
    case Stored::kF32:
      return launch_linear<float>(a, p, stream);
    case Stored::kBf16:
      return launch_linear<gpu::Bf16>(a, p, stream);
    case Stored::kF16:
      return launch_linear<gpu::F16>(a, p, stream);
  }
  return Status::kUnsupported;
}

}  // namespace switchyard::SWITCHYARD_KERNELS
