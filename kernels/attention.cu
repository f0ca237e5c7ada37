// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.hpp"

#include "kernels/cuda_compat.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::kInfinity;
using gpu::Status;

constexpr unsigned kAttendThreads = 128;
constexpr unsigned kTilePositions = 64;
constexpr unsigned kTileParts = kAttendThreads / kTilePositions;  // threads per position
constexpr unsigned kTileDims = 32;                                // of the keys at a time
constexpr unsigned kTileStride = kTileDims + 1;                   // another bank for each position
constexpr std::uint32_t kMostDims = 1024;
constexpr unsigned kOwnValues = kMostDims / kAttendThreads;

/// Key of `position` of a row's sequence, KV head 0.
SWITCHYARD_DEVICE float* cached(const AttentionParams& a, std::uint64_t row,
                                std::uint32_t position) {
  const std::uint64_t s = a.sequence[row];
  const std::uint32_t b = position / a.block - a.first_block[s];
  return a.table[s * a.table_width + b] + a.layer + std::uint64_t{position % a.block} * a.head_dim;
}
/// Floats from the keys of one KV head to those of the next, in a block.
SWITCHYARD_DEVICE std::uint64_t head_stride(const AttentionParams& a) {
  return std::uint64_t{a.block} * a.head_dim * (a.latent ? 1 : 2);
}

/// One block per row; one thread per rotated pair or plain entry, over all heads.
SWITCHYARD_KERNEL(kAttendThreads)
rotate_append_kernel(AttentionParams a) {
  const std::uint64_t row = gpu::block_x();
  const std::uint32_t position = a.position[row];
  float* const key = cached(a, row, position);
  const std::uint64_t stride = head_stride(a);
  const std::uint32_t d = a.head_dim;
  const std::uint32_t still = d - 2 * a.half;
  float* const q = a.q + row * a.heads * d;
  const float* const k = a.k + row * a.kv_heads * d;
  for (std::uint32_t i = gpu::thread_index(); i < a.half; i += kAttendThreads) {
    const float angle = static_cast<float>(position) * a.frequency[i];
    const float c = static_cast<float>(cos(static_cast<double>(angle))) * a.gain;
    const float s = static_cast<float>(sin(static_cast<double>(angle))) * a.gain;
    const std::uint32_t one = still + (a.interleaved ? 2 * i : i);
    const std::uint32_t two = a.interleaved ? one + 1 : one + a.half;
    for (std::uint32_t h = 0; h < a.heads; ++h) {
      float* const at = q + std::uint64_t{h} * d;
      const float x = at[one];
      const float y = at[two];
      at[one] = x * c - y * s;
      at[two] = y * c + x * s;
    }
    for (std::uint32_t h = 0; h < a.kv_heads; ++h) {
      const float x = k[std::uint64_t{h} * d + one];
      const float y = k[std::uint64_t{h} * d + two];
      key[h * stride + one] = x * c - y * s;
      key[h * stride + two] = y * c + x * s;
    }
  }
  for (std::uint32_t i = gpu::thread_index(); i < still; i += kAttendThreads) {
    for (std::uint32_t h = 0; h < a.kv_heads; ++h) {
      key[h * stride + i] = k[std::uint64_t{h} * d + i];
    }
  }
  if (!a.latent) {
    float* const value = key + std::uint64_t{a.block} * d;
    for (std::uint32_t i = gpu::thread_index(); i < d; i += kAttendThreads) {
      for (std::uint32_t h = 0; h < a.kv_heads; ++h) {
        value[h * stride + i] = a.v[(row * a.kv_heads + h) * d + i];
      }
    }
  }
}

/// One block per row and query head. Thread t: scores of position t % 64 of a tile (its part of the
/// dimensions), then values of the dimensions t, t + 128, ….
SWITCHYARD_KERNEL(kAttendThreads)
attend_kernel(AttentionParams a) {
  SWITCHYARD_SHARED(float, query, kMostDims);
  SWITCHYARD_SHARED(float, keys, kTilePositions* kTileStride);
  SWITCHYARD_SHARED(float, part, kAttendThreads);
  SWITCHYARD_SHARED(float, score, kTilePositions);
  SWITCHYARD_SHARED(const float*, start, kTilePositions);  // key of each position of the tile
  const unsigned thread = gpu::thread_index();
  const std::uint64_t row = gpu::block_x();
  const auto head = static_cast<std::uint32_t>(gpu::block_y());
  const std::uint32_t d = a.head_dim;
  const std::uint64_t kv_offset = head / (a.heads / a.kv_heads) * head_stride(a);
  const std::uint64_t value_offset = a.latent ? 0 : std::uint64_t{a.block} * d;
  const std::uint32_t end = a.position[row] + 1;
  const std::uint32_t begin = a.window > 0 && end > a.window ? end - a.window : 0;
  for (std::uint32_t i = thread; i < d; i += kAttendThreads) {
    query[i] = a.q[(row * a.heads + head) * d + i];
  }
  const unsigned mine = thread % kTilePositions;
  const unsigned piece = thread / kTilePositions;
  float value[kOwnValues];
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < kOwnValues; ++i) {
    value[i] = 0.0F;
  }
  float top = -kInfinity;
  float sum = 0.0F;
  for (std::uint32_t tile = begin; tile < end; tile += kTilePositions) {
    const std::uint32_t count = end - tile < kTilePositions ? end - tile : kTilePositions;
    gpu::sync_block();  // the last tile's scores and starts are read
    if (thread < count) {
      start[thread] = cached(a, row, tile + thread) + kv_offset;
    }
    float dot = 0.0F;
    for (std::uint32_t first = 0; first < d; first += kTileDims) {
      gpu::sync_block();  // starts are there; the last keys are read
      for (unsigned at = thread; at < kTilePositions * kTileDims; at += kAttendThreads) {
        const unsigned j = at / kTileDims;
        const std::uint32_t i = first + at % kTileDims;
        keys[j * kTileStride + at % kTileDims] = j < count && i < d ? start[j][i] : 0.0F;
      }
      gpu::sync_block();
      for (unsigned i = piece; i < kTileDims; i += kTileParts) {
        if (first + i < d) {
          dot = fmaf(query[first + i], keys[mine * kTileStride + i], dot);
        }
      }
    }
    part[thread] = dot;
    gpu::sync_block();
    if (thread < kTilePositions) {
      float z = part[thread];
      for (unsigned p = 1; p < kTileParts; ++p) {
        z = z + part[p * kTilePositions + thread];
      }
      z = z * a.scale;
      if (a.slopes != nullptr) {
        z = z - a.slopes[head] * static_cast<float>(end - 1 - (tile + thread));
      }
      score[thread] = z;
    }
    gpu::sync_block();
    float high = top;
    for (unsigned j = 0; j < count; ++j) {
      high = score[j] > high ? score[j] : high;
    }
    // A row of -inf or NaN scores: the weights are NaN, as they are on the CPU.
    const float keep = sum > 0.0F ? expf(top - high) : 0.0F;
    gpu::sync_block();  // all have read the scores
    if (thread < count) {
      score[thread] = expf(score[thread] - high);
    }
    gpu::sync_block();
    top = high;
    sum = sum * keep;
    for (unsigned j = 0; j < count; ++j) {
      sum = sum + score[j];
    }
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kOwnValues; ++i) {
      const std::uint32_t at = thread + i * kAttendThreads;
      if (at < a.value_dim) {
        float v = value[i] * keep;
        for (unsigned j = 0; j < count; ++j) {
          v = fmaf(score[j], start[j][value_offset + at], v);
        }
        value[i] = v;
      }
    }
  }
  if (a.sinks != nullptr) {
    const float sink = a.sinks[head];
    const float high = sink > top ? sink : top;
    const float keep = expf(top - high);
    sum = sum * keep + expf(sink - high);
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kOwnValues; ++i) {
      value[i] = value[i] * keep;
    }
  }
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < kOwnValues; ++i) {
    const std::uint32_t at = thread + i * kAttendThreads;
    if (at < a.value_dim) {
      a.out[(row * a.heads + head) * a.value_dim + at] = value[i] / sum;
    }
  }
}

}  // namespace

Status can_run(const AttentionParams& p) {
  if (p.heads == 0 || p.kv_heads == 0 || p.heads % p.kv_heads != 0 || p.head_dim == 0 ||
      p.value_dim == 0 || p.value_dim > p.head_dim || (!p.latent && p.value_dim != p.head_dim) ||
      2 * std::uint64_t{p.half} > p.head_dim || p.block == 0) {
    return Status::kInvalidShape;
  }
  return p.head_dim > kMostDims || p.heads > gpu::kMaxGridY || p.rows > gpu::kMaxGridX
             ? Status::kUnsupported
             : Status::kOk;
}

std::size_t workspace_bytes(const AttentionParams&) { return 0; }

Status launch(const AttentionParams& p, gpu::Stream stream) {
  Status status = can_run(p);
  if (status != Status::kOk || p.rows == 0) {
    return status;
  }
  status = gpu::launch_kernel("rotate_append", rotate_append_kernel, {p.rows, 1}, kAttendThreads, 0,
                              stream, p);
  if (status == Status::kOk) {
    status = gpu::launch_kernel("attend", attend_kernel, {p.rows, p.heads}, kAttendThreads, 0,
                                stream, p);
  }
  return status;
}

}  // namespace switchyard::SWITCHYARD_KERNELS
