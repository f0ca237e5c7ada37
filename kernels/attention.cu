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
constexpr std::uint32_t kPart = 128;                                 // positions of a part, 2 tiles
constexpr std::uint64_t kEnoughBlocks = 1024;                        // that fill a GPU
constexpr std::uint64_t kMostWorkspace = std::uint64_t{128} << 20U;  // bytes; more: one block a row

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

/// Shared memory of a block.
struct AttendShared {
  float* query;         // [kMostDims]
  float* keys;          // [kTilePositions][kTileStride]
  float* part;          // [kAttendThreads]
  float* score;         // [kTilePositions]
  const float** start;  // [kTilePositions] key of each position of the tile
};

/// What is known of the softmax over some positions: exp(score - top), summed, and times the values
/// of the dimensions thread, thread + 128, ….
struct Partial {
  float top, sum;
  float value[kOwnValues];
};

/// The positions that a row sees: begin … end - 1.
SWITCHYARD_DEVICE std::uint32_t row_end(const AttentionParams& a, std::uint64_t row) {
  return a.position[row] + 1;
}
SWITCHYARD_DEVICE std::uint32_t row_begin(const AttentionParams& a, std::uint32_t end) {
  return a.window > 0 && end > a.window ? end - a.window : 0;
}

SWITCHYARD_DEVICE void load_query(const AttentionParams& a, const AttendShared& s,
                                  std::uint64_t row, std::uint32_t head) {
  for (std::uint32_t i = gpu::thread_index(); i < a.head_dim; i += kAttendThreads) {
    s.query[i] = a.q[(row * a.heads + head) * a.head_dim + i];
  }
}

/// The positions from … to - 1 of a row. Thread t: scores of position t % 64 of a tile (its part of
/// the dimensions), then values of its dimensions.
SWITCHYARD_DEVICE void attend_part(const AttentionParams& a, const AttendShared& s,
                                   std::uint64_t row, std::uint32_t head, std::uint32_t from,
                                   std::uint32_t to, Partial& out) {
  const unsigned thread = gpu::thread_index();
  const std::uint32_t d = a.head_dim;
  const std::uint64_t kv_offset = head / (a.heads / a.kv_heads) * head_stride(a);
  const std::uint64_t value_offset = a.latent ? 0 : std::uint64_t{a.block} * d;
  const std::uint32_t end = row_end(a, row);
  const unsigned mine = thread % kTilePositions;
  const unsigned piece = thread / kTilePositions;
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < kOwnValues; ++i) {
    out.value[i] = 0.0F;
  }
  float top = -kInfinity;
  float sum = 0.0F;
  for (std::uint32_t tile = from; tile < to; tile += kTilePositions) {
    const std::uint32_t count = to - tile < kTilePositions ? to - tile : kTilePositions;
    gpu::sync_block();  // the last tile's scores and starts are read
    if (thread < count) {
      s.start[thread] = cached(a, row, tile + thread) + kv_offset;
    }
    float dot = 0.0F;
    for (std::uint32_t first = 0; first < d; first += kTileDims) {
      gpu::sync_block();  // starts are there; the last keys are read
      for (unsigned at = thread; at < kTilePositions * kTileDims; at += kAttendThreads) {
        const unsigned j = at / kTileDims;
        const std::uint32_t i = first + at % kTileDims;
        s.keys[j * kTileStride + at % kTileDims] = j < count && i < d ? s.start[j][i] : 0.0F;
      }
      gpu::sync_block();
      for (unsigned i = piece; i < kTileDims; i += kTileParts) {
        if (first + i < d) {
          dot = fmaf(s.query[first + i], s.keys[mine * kTileStride + i], dot);
        }
      }
    }
    s.part[thread] = dot;
    gpu::sync_block();
    if (thread < kTilePositions) {
      float z = s.part[thread];
      for (unsigned p = 1; p < kTileParts; ++p) {
        z = z + s.part[p * kTilePositions + thread];
      }
      z = z * a.scale;
      if (a.slopes != nullptr) {
        z = z - a.slopes[head] * static_cast<float>(end - 1 - (tile + thread));
      }
      s.score[thread] = z;
    }
    gpu::sync_block();
    float high = top;
    for (unsigned j = 0; j < count; ++j) {
      high = s.score[j] > high ? s.score[j] : high;
    }
    // A row of -inf or NaN scores: the weights are NaN, as they are on the CPU.
    const float keep = sum > 0.0F ? expf(top - high) : 0.0F;
    gpu::sync_block();  // all have read the scores
    if (thread < count) {
      s.score[thread] = expf(s.score[thread] - high);
    }
    gpu::sync_block();
    top = high;
    sum = sum * keep;
    for (unsigned j = 0; j < count; ++j) {
      sum = sum + s.score[j];
    }
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kOwnValues; ++i) {
      const std::uint32_t at = thread + i * kAttendThreads;
      if (at < a.value_dim) {
        float v = out.value[i] * keep;
        for (unsigned j = 0; j < count; ++j) {
          v = fmaf(s.score[j], s.start[j][value_offset + at], v);
        }
        out.value[i] = v;
      }
    }
  }
  out.top = top;
  out.sum = sum;
}

/// Adds the positions of `more`, which follow those of `all`.
SWITCHYARD_DEVICE void merge(Partial& all, const Partial& more) {
  const float high = more.top > all.top ? more.top : all.top;
  const float keep = all.sum > 0.0F ? expf(all.top - high) : 0.0F;
  const float scale = more.sum > 0.0F ? expf(more.top - high) : 0.0F;
  all.top = high;
  all.sum = all.sum * keep + more.sum * scale;
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < kOwnValues; ++i) {
    all.value[i] = all.value[i] * keep + more.value[i] * scale;
  }
}

/// The sink, the division, and the output.
SWITCHYARD_DEVICE void finish_row(const AttentionParams& a, std::uint64_t row, std::uint32_t head,
                                  Partial& all) {
  if (a.sinks != nullptr) {
    const float sink = a.sinks[head];
    const float high = sink > all.top ? sink : all.top;
    const float keep = expf(all.top - high);
    all.sum = all.sum * keep + expf(sink - high);
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kOwnValues; ++i) {
      all.value[i] = all.value[i] * keep;
    }
  }
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < kOwnValues; ++i) {
    const std::uint32_t at = gpu::thread_index() + i * kAttendThreads;
    if (at < a.value_dim) {
      a.out[(row * a.heads + head) * a.value_dim + at] = all.value[i] / all.sum;
    }
  }
}

/// One block per row and query head: its parts one after another.
SWITCHYARD_KERNEL(kAttendThreads)
attend_kernel(AttentionParams a) {
  SWITCHYARD_SHARED(float, query, kMostDims);
  SWITCHYARD_SHARED(float, keys, kTilePositions* kTileStride);
  SWITCHYARD_SHARED(float, part, kAttendThreads);
  SWITCHYARD_SHARED(float, score, kTilePositions);
  SWITCHYARD_SHARED(const float*, start, kTilePositions);
  const AttendShared s{query, keys, part, score, start};
  const std::uint64_t row = gpu::block_x();
  const auto head = static_cast<std::uint32_t>(gpu::block_y());
  load_query(a, s, row, head);
  const std::uint32_t end = row_end(a, row);
  const std::uint32_t begin = row_begin(a, end);
  Partial all;
  attend_part(a, s, row, head, begin, end - begin > kPart ? begin + kPart : end, all);
  for (std::uint32_t from = begin + kPart; from < end && from > begin; from += kPart) {
    Partial more;
    attend_part(a, s, row, head, from, end - from > kPart ? from + kPart : end, more);
    merge(all, more);
  }
  finish_row(a, row, head, all);
}

/// One block per row, part and query head; what it found goes to the workspace:
/// [row][head][part][value_dim + 2], top and sum last.
SWITCHYARD_KERNEL(kAttendThreads)
attend_part_kernel(AttentionParams a, std::uint32_t parts) {
  SWITCHYARD_SHARED(float, query, kMostDims);
  SWITCHYARD_SHARED(float, keys, kTilePositions* kTileStride);
  SWITCHYARD_SHARED(float, part, kAttendThreads);
  SWITCHYARD_SHARED(float, score, kTilePositions);
  SWITCHYARD_SHARED(const float*, start, kTilePositions);
  const AttendShared s{query, keys, part, score, start};
  const std::uint64_t row = gpu::block_x() / parts;
  const auto number = static_cast<std::uint32_t>(gpu::block_x() % parts);
  const auto head = static_cast<std::uint32_t>(gpu::block_y());
  const std::uint32_t end = row_end(a, row);
  const std::uint32_t begin = row_begin(a, end);
  const std::uint64_t from = begin + std::uint64_t{number} * kPart;
  if (from >= end) {
    return;  // the whole block: the row has fewer parts
  }
  load_query(a, s, row, head);
  Partial found;
  attend_part(a, s, row, head, static_cast<std::uint32_t>(from),
              end - from > kPart ? static_cast<std::uint32_t>(from) + kPart : end, found);
  float* const out = static_cast<float*>(a.workspace) +
                     ((row * a.heads + head) * parts + number) * (a.value_dim + 2);
  SWITCHYARD_UNROLL
  for (unsigned i = 0; i < kOwnValues; ++i) {
    const std::uint32_t at = gpu::thread_index() + i * kAttendThreads;
    if (at < a.value_dim) {
      out[at] = found.value[i];
    }
  }
  if (gpu::thread_index() == 0) {
    out[a.value_dim] = found.top;
    out[a.value_dim + 1] = found.sum;
  }
}

/// One block per row and query head: merges its parts in order.
SWITCHYARD_KERNEL(kAttendThreads)
attend_merge_kernel(AttentionParams a, std::uint32_t parts) {
  const std::uint64_t row = gpu::block_x();
  const auto head = static_cast<std::uint32_t>(gpu::block_y());
  const std::uint32_t end = row_end(a, row);
  const std::uint32_t seen = end - row_begin(a, end);
  const float* from =
      static_cast<const float*>(a.workspace) + (row * a.heads + head) * parts * (a.value_dim + 2);
  Partial all{};
  for (std::uint32_t first = 0; first < seen; first += kPart, from += a.value_dim + 2) {
    Partial more;
    more.top = from[a.value_dim];
    more.sum = from[a.value_dim + 1];
    SWITCHYARD_UNROLL
    for (unsigned i = 0; i < kOwnValues; ++i) {
      const std::uint32_t at = gpu::thread_index() + i * kAttendThreads;
      more.value[i] = at < a.value_dim ? from[at] : 0.0F;
    }
    if (first == 0) {
      all = more;
    } else {
      merge(all, more);
    }
    if (seen - first <= kPart) {
      break;  // first + kPart may not fit 32 bits
    }
  }
  finish_row(a, row, head, all);
}

/// Parts that blocks share out, 1: none. Few rows would leave most of a GPU idle.
std::uint32_t parts_of(const AttentionParams& p) {
  const std::uint64_t blocks = std::uint64_t{p.rows} * p.heads;
  const std::uint32_t sees = p.window > 0 && p.longest > p.window ? p.window : p.longest;
  const std::uint32_t parts = blocks >= kEnoughBlocks || sees <= kPart ? 1 : (sees - 1) / kPart + 1;
  const std::uint64_t bytes = blocks * parts * (p.value_dim + std::uint64_t{2}) * sizeof(float);
  return bytes > kMostWorkspace ? 1 : parts;
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

std::size_t workspace_bytes(const AttentionParams& p) {
  const std::uint32_t parts = parts_of(p);
  return parts == 1 ? 0
                    : (std::size_t{p.rows} * p.heads * parts * (p.value_dim + std::size_t{2}) *
                           sizeof(float) +
                       15) /
                          16 * 16;
}

Status launch(const AttentionParams& p, gpu::Stream stream) {
  Status status = can_run(p);
  if (status != Status::kOk || p.rows == 0) {
    return status;
  }
  if (p.workspace_size < workspace_bytes(p)) {
    return Status::kWorkspaceTooSmall;
  }
  const std::uint32_t parts = parts_of(p);
  status = gpu::launch_kernel("rotate_append", rotate_append_kernel, {p.rows, 1}, kAttendThreads, 0,
                              stream, p);
  if (status == Status::kOk && parts == 1) {
    return gpu::launch_kernel("attend", attend_kernel, {p.rows, p.heads}, kAttendThreads, 0, stream,
                              p);
  }
  if (status == Status::kOk) {
    status = gpu::launch_kernel("attend_part", attend_part_kernel,
                                {std::uint64_t{p.rows} * parts, p.heads}, kAttendThreads, 0, stream,
                                p, parts);
  }
  if (status == Status::kOk) {
    status = gpu::launch_kernel("attend_merge", attend_merge_kernel, {p.rows, p.heads},
                                kAttendThreads, 0, stream, p, parts);
  }
  return status;
}

}  // namespace switchyard::SWITCHYARD_KERNELS
