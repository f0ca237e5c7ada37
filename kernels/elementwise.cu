// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.hpp"

#include "kernels/cuda_compat.hpp"
#include "kernels/few_rows.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::kAllLanes;
using gpu::kWarp;
using gpu::Status;
using gpu::Stored;

constexpr unsigned kRowThreads = 256;

/// f(row, column) for each element; one thread per column, a block per row and 256 columns.
template <class F>
SWITCHYARD_DEVICE void for_element(const RowParams& a, std::uint64_t blocks, const F& f) {
  const std::uint64_t r = gpu::block_x() / blocks;
  const std::uint64_t c = gpu::block_x() % blocks * kRowThreads + gpu::thread_index();
  if (c < a.columns) {
    f(r, c);
  }
}

template <class W>
SWITCHYARD_KERNEL(kRowThreads)
embed_kernel(RowParams a, std::uint64_t blocks) {
  for_element(a, blocks, [&](std::uint64_t r, std::uint64_t c) {
    static_cast<float*>(a.out)[r * a.out_stride + c] =
        gpu::to_float(static_cast<const W*>(a.w)[a.index[r] * a.columns + c]);
  });
}

SWITCHYARD_KERNEL(kRowThreads)
row_kernel(RowParams a, std::uint64_t blocks) {
  for_element(a, blocks, [&](std::uint64_t r, std::uint64_t c) {
    float* const out = static_cast<float*>(a.out) + r * a.out_stride + c;
    const std::uint64_t at = r * a.x_stride + c;
    switch (a.operation) {
      case RowOperation::kEmbed:
        break;
      case RowOperation::kGather:
        *out = a.x[a.index[r] * a.x_stride + c];
        break;
      case RowOperation::kCopy:
        *out = a.x[at];
        break;
      case RowOperation::kAdd:
        *out = *out + a.x[at];
        break;
      case RowOperation::kAddBias:
        *out = *out + a.x[c];
        break;
      case RowOperation::kSwiglu:
        *out = gpu::gated(*out, a.x[at], a.limit);
        break;
      case RowOperation::kClamp: {
        const float low = *out < -a.limit ? -a.limit : *out;
        *out = low > a.limit ? a.limit : low;
        break;
      }
      case RowOperation::kSigmoid:
        *out = static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(a.x[at]))));
        break;
      case RowOperation::kToBf16:
        gpu::store(static_cast<gpu::Bf16*>(a.out) + r * a.out_stride + c, a.x[at]);
        break;
      case RowOperation::kRound:
        *out = gpu::as_bf16(a.x[at]);
        break;
    }
  });
}

/// One block per row.
SWITCHYARD_KERNEL(kRowThreads)
rms_norm_kernel(RmsNormParams a) {
  SWITCHYARD_SHARED(float, warp_sum, kRowThreads / kWarp);
  const unsigned thread = gpu::thread_index();
  const unsigned threads = gpu::block_threads();
  const float* const x = a.x + gpu::block_x() * a.columns;
  float* const out = a.out + gpu::block_x() * a.columns;
  float sum = 0.0F;
  for (std::uint32_t c = thread; c < a.columns; c += threads) {
    sum = fmaf(x[c], x[c], sum);
  }
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    sum = sum + gpu::shuffle_xor(kAllLanes, sum, offset);
  }
  if (thread % kWarp == 0) {
    warp_sum[thread / kWarp] = sum;
  }
  gpu::sync_block();
  float total = 0.0F;
  for (unsigned w = 0; w < threads / kWarp; ++w) {
    total = total + warp_sum[w];
  }
  const float scale = 1.0F / sqrtf(total / static_cast<float>(a.columns) + a.eps);
  for (std::uint32_t c = thread; c < a.columns; c += threads) {
    out[c] = a.weight[c] * (x[c] * scale);
  }
}

}  // namespace

Status can_run(const RowParams& p) {
  const bool indexed = p.operation == RowOperation::kEmbed || p.operation == RowOperation::kGather;
  if (p.rows > 0 && indexed && p.index == nullptr) {
    return Status::kInvalidShape;
  }
  const std::uint64_t blocks = (p.columns + kRowThreads - 1) / kRowThreads;
  return p.rows > 0 && blocks > gpu::kMaxGridX / p.rows ? Status::kUnsupported : Status::kOk;
}

std::size_t workspace_bytes(const RowParams&) { return 0; }

Status launch(const RowParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.rows == 0 || p.columns == 0) {
    return status;
  }
  const std::uint64_t blocks = (p.columns + kRowThreads - 1) / kRowThreads;
  const unsigned threads = p.columns < kRowThreads
                               ? static_cast<unsigned>((p.columns + kWarp - 1) / kWarp * kWarp)
                               : kRowThreads;
  const gpu::Grid grid{p.rows * blocks, 1};
  if (p.operation != RowOperation::kEmbed) {
    return gpu::launch_kernel("row", row_kernel, grid, threads, 0, stream, p, blocks);
  }
  switch (p.type) {
    case Stored::kF32:
      return gpu::launch_kernel("embed", embed_kernel<float>, grid, threads, 0, stream, p, blocks);
    case Stored::kBf16:
      return gpu::launch_kernel("embed", embed_kernel<gpu::Bf16>, grid, threads, 0, stream, p,
                                blocks);
    case Stored::kF16:
      return gpu::launch_kernel("embed", embed_kernel<gpu::F16>, grid, threads, 0, stream, p,
                                blocks);
  }
  return Status::kUnsupported;
}

Status can_run(const RmsNormParams& p) {
  if (p.columns == 0) {
    return Status::kInvalidShape;
  }
  return p.rows > gpu::kMaxGridX ? Status::kUnsupported : Status::kOk;
}

std::size_t workspace_bytes(const RmsNormParams&) { return 0; }

Status launch(const RmsNormParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.rows == 0) {
    return status;
  }
  const unsigned threads =
      p.columns < kRowThreads ? (p.columns + kWarp - 1) / kWarp * kWarp : kRowThreads;
  return gpu::launch_kernel("rms_norm", rms_norm_kernel, {p.rows, 1}, threads, 0, stream, p);
}

}  // namespace switchyard::SWITCHYARD_KERNELS
