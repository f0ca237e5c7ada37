// SPDX-License-Identifier: Apache-2.0
#include "kernels/combine.hpp"

#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::Bf16;
using gpu::Status;

constexpr unsigned kCombineThreads = 256;
constexpr std::uint32_t kCombineNothing = 0xFFFFFFFFU;

struct CombineArguments {
  std::uint32_t slots, hidden;
  const void* y;
  const std::uint32_t* place;
  const float* weights;
  void* out;
  const void* residual;
  const void* shared;
  const float* shared_weight;
};

template <class In, class Out>
SWITCHYARD_KERNEL(kCombineThreads)
combine_kernel(CombineArguments a) {
  const std::uint64_t t = gpu::block_x();
  const std::uint64_t h = gpu::block_y() * kCombineThreads + gpu::thread_index();
  if (h >= a.hidden) {
    return;
  }
  const In* const y = static_cast<const In*>(a.y);
  float sum = 0.0F;
  for (std::uint32_t j = 0; j < a.slots; ++j) {
    const std::uint64_t p = a.place[t * a.slots + j];
    if (p != kCombineNothing) {
      sum = fmaf(a.weights[t * a.slots + j], gpu::to_float(y[p * a.hidden + h]), sum);
    }
  }
  const std::uint64_t at = t * a.hidden + h;
  if (a.residual != nullptr) {
    sum = gpu::to_float(static_cast<const Out*>(a.residual)[at]) + sum;
  }
  if (a.shared != nullptr) {
    const float own = a.shared_weight == nullptr ? 1.0F : a.shared_weight[t];
    sum = sum + own * gpu::to_float(static_cast<const In*>(a.shared)[at]);
  }
  gpu::store(static_cast<Out*>(a.out) + at, sum);
}

template <class In, class Out>
Status launch_combine(const CombineParams& p, gpu::Stream stream) {
  const CombineArguments a{p.slots, p.hidden,   p.y,      p.place,        p.weights,
                           p.out,   p.residual, p.shared, p.shared_weight};
  return gpu::launch_kernel("combine", combine_kernel<In, Out>,
                            {p.tokens, (p.hidden + kCombineThreads - 1) / kCombineThreads},
                            kCombineThreads, 0, stream, a);
}

}  // namespace

Status can_run(const CombineParams& p) {
  if (p.slots == 0 || p.hidden == 0) {
    return Status::kInvalidShape;
  }
  const std::uint64_t columns = std::uint64_t{gpu::kMaxGridY} * kCombineThreads;
  return p.hidden > columns || p.tokens > gpu::kMaxGridX ? Status::kUnsupported : Status::kOk;
}

std::size_t workspace_bytes(const CombineParams&) { return 0; }

Status launch(const CombineParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.tokens == 0) {
    return status;
  }
  const bool in_bf16 = p.y_type == Element::kBf16;
  if (p.out_type == Element::kBf16) {
    return in_bf16 ? launch_combine<Bf16, Bf16>(p, stream) : launch_combine<float, Bf16>(p, stream);
  }
  return in_bf16 ? launch_combine<Bf16, float>(p, stream) : launch_combine<float, float>(p, stream);
}

}  // namespace switchyard::SWITCHYARD_KERNELS
