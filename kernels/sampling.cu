// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling.hpp"

#include <cstring>

#include "engine/base/random.hpp"
#include "kernels/cuda_compat.hpp"
#include "kernels/philox.hpp"

namespace switchyard::SWITCHYARD_KERNELS {
namespace {

using gpu::kAllLanes;
using gpu::kInfinity;
using gpu::kWarp;
using gpu::Status;

constexpr unsigned kSampleThreads = 512;
constexpr unsigned kSampleWarps = kSampleThreads / kWarp;
constexpr std::uint32_t kSamplePurpose = random_purpose("sample");

/// A token's place in the order: probability falling, then id rising; smaller is earlier.
struct OrderKey {
  std::uint64_t value;  // complement of the probability's bits
  std::uint32_t id;
};
SWITCHYARD_DEVICE bool up_to(const OrderKey& a, const OrderKey& bound) {
  return a.value < bound.value || (a.value == bound.value && a.id <= bound.id);
}

/// What one row's block works with.
struct SampleRow {
  const double* p;  // [V]
  std::uint32_t vocab;
  unsigned thread, threads;
  double* weights;        // shared [warps]
  std::uint64_t* counts;  // shared [warps]
};

SWITCHYARD_DEVICE OrderKey key_of(const SampleRow& row, std::uint32_t i) {
  std::uint64_t bits = 0;
  const double p = row.p[i];
  memcpy(&bits, &p, sizeof bits);
  return {~bits, i};
}

/// Sum over the block of a weight and a count, the same in all threads: a tree in each warp, then
/// the warps in order.
SWITCHYARD_DEVICE void sum_block(const SampleRow& row, double& weight, std::uint64_t& count) {
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    weight = weight + gpu::shuffle_xor(kAllLanes, weight, offset);
    count += gpu::shuffle_xor(kAllLanes, count, offset);
  }
  if (row.thread % kWarp == 0) {
    row.weights[row.thread / kWarp] = weight;
    row.counts[row.thread / kWarp] = count;
  }
  gpu::sync_block();
  weight = 0;
  count = 0;
  for (unsigned w = 0; w < row.threads / kWarp; ++w) {
    weight = weight + row.weights[w];
    count += row.counts[w];
  }
  gpu::sync_block();  // read before the next sum
}

enum class Border : std::uint8_t {
  kCount,    // the target-th token
  kReaches,  // the first at which the running sum is >= target
  kExceeds   // the first at which it is > target; the last if none
};

/// The token, among those up to `bound`, at which the border lies. At least one is up to it.
SWITCHYARD_DEVICE OrderKey find_border(const SampleRow& row, const OrderKey& bound, Border border,
                                       double target) {
  OrderKey found{0, 0};
  OrderKey known{0, 0};  // bits of `found` that are settled
  double before = 0;     // measure of what comes before all that `found` can still be
  for (unsigned bit = 96; bit-- > 0;) {
    const bool in_value = bit >= 32;
    const std::uint64_t mask = std::uint64_t{1} << (in_value ? bit - 32 : bit);
    double low_weight = 0;
    std::uint64_t counts = 0;  // low half: with bit 0; high half: with bit 1
    for (std::uint32_t i = row.thread; i < row.vocab; i += row.threads) {
      const OrderKey key = key_of(row, i);
      if (!up_to(key, bound) || (key.value & known.value) != found.value ||
          (key.id & known.id) != found.id) {
        continue;
      }
      const bool high = ((in_value ? key.value : std::uint64_t{key.id}) & mask) != 0;
      counts += high ? std::uint64_t{1} << 32 : 1;
      low_weight = high ? low_weight : low_weight + row.p[i];
    }
    sum_block(row, low_weight, counts);
    const std::uint64_t low = counts & 0xFFFFFFFFU;
    const std::uint64_t high = counts >> 32;
    const double measure =
        before + (border == Border::kCount ? static_cast<double>(low) : low_weight);
    const bool inside = border == Border::kExceeds ? measure > target : measure >= target;
    const bool take_low = high == 0 || (low > 0 && inside);
    if (in_value) {
      known.value |= mask;
      found.value |= take_low ? 0 : mask;
    } else {
      known.id |= static_cast<std::uint32_t>(mask);
      found.id |= take_low ? 0 : static_cast<std::uint32_t>(mask);
    }
    before = take_low ? before : measure;
    if ((take_low ? low : high) == 1) {
      break;
    }
  }
  // The one token that is left has the settled bits.
  for (std::uint32_t i = row.thread; i < row.vocab; i += row.threads) {
    const OrderKey key = key_of(row, i);
    if (up_to(key, bound) && (key.value & known.value) == found.value &&
        (key.id & known.id) == found.id) {
      row.counts[0] = i;
    }
  }
  gpu::sync_block();
  found = key_of(row, static_cast<std::uint32_t>(row.counts[0]));
  gpu::sync_block();  // read before the next sum
  return found;
}

/// Sum of the probabilities up to a token.
SWITCHYARD_DEVICE double sum_up_to(const SampleRow& row, const OrderKey& bound) {
  double sum = 0;
  std::uint64_t unused = 0;
  for (std::uint32_t i = row.thread; i < row.vocab; i += row.threads) {
    sum = up_to(key_of(row, i), bound) ? sum + row.p[i] : sum;
  }
  sum_block(row, sum, unused);
  return sum;
}

SWITCHYARD_KERNEL(kSampleThreads)
sample_kernel(SamplingParams a) {
  SWITCHYARD_SHARED(double, weights, kSampleWarps);
  SWITCHYARD_SHARED(std::uint64_t, counts, kSampleWarps);
  const std::uint64_t r = gpu::block_x();
  const unsigned thread = gpu::thread_index();
  const unsigned threads = gpu::block_threads();
  const float* const logits = a.logits + r * a.vocab;
  // The highest logit, ties to the lower id; NaN never wins. 64 bits: logit in order, then id.
  std::uint64_t best = 0;
  bool bad = false;
  for (std::uint32_t i = thread; i < a.vocab; i += threads) {
    const float z = logits[i];
    bad = bad || z != z;
    if (z > -kInfinity) {
      const std::uint32_t bits = gpu::float_bits(z == 0.0F ? 0.0F : z);
      const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
      const std::uint64_t key = (std::uint64_t{ordered} << 32) | (0xFFFFFFFFU - i);
      best = key > best ? key : best;
    }
  }
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    const std::uint64_t other = gpu::shuffle_xor(kAllLanes, best, offset);
    best = other > best ? other : best;
  }
  bad = gpu::any(kAllLanes, bad);
  if (thread % kWarp == 0) {
    counts[thread / kWarp] = best;
    weights[thread / kWarp] = bad ? 1.0 : 0.0;
  }
  gpu::sync_block();
  double bad_warps = 0;
  for (unsigned w = 0; w < threads / kWarp; ++w) {
    best = counts[w] > best ? counts[w] : best;
    bad_warps += weights[w];
  }
  if (thread == 0 && a.nan_row != nullptr) {
    a.nan_row[r] = bad_warps > 0 ? 1 : 0;
  }
  gpu::sync_block();
  const std::uint32_t id = best == 0 ? 0 : 0xFFFFFFFFU - static_cast<std::uint32_t>(best);
  const float top = best == 0 ? -kInfinity : logits[id];
  if (a.temperature == 0 || top == kInfinity || top == -kInfinity) {
    if (thread == 0) {
      a.token[r] = id;
    }
    return;  // the whole block
  }
  double* const p = static_cast<double*>(a.workspace) + r * a.vocab;
  for (std::uint32_t i = thread; i < a.vocab; i += threads) {
    const float z = logits[i];
    p[i] = z != z ? 0.0 : exp((static_cast<double>(z) - static_cast<double>(top)) / a.temperature);
  }
  gpu::sync_block();  // all p are there
  const SampleRow row{p, a.vocab, thread, threads, weights, counts};
  OrderKey bound{~std::uint64_t{0}, 0xFFFFFFFFU};
  if (a.top_k > 0 && a.top_k < a.vocab) {
    bound = find_border(row, bound, Border::kCount, a.top_k);
  }
  double kept = sum_up_to(row, bound);
  if (a.top_p < 1) {
    bound = find_border(row, bound, Border::kReaches, a.top_p * kept);
    kept = sum_up_to(row, bound);
  }
  const std::uint64_t bits =
      gpu::random_u64(a.seed, kSamplePurpose, a.sequence[r], 0, a.position[r], 0);
  const double u = kept * ((static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53);
  const OrderKey chosen = find_border(row, bound, Border::kExceeds, u);
  if (thread == 0) {
    a.token[r] = chosen.id;
  }
}

}  // namespace

Status can_run(const SamplingParams& p) {
  if (p.vocab == 0 || !(p.temperature >= 0) || !(p.top_p > 0 && p.top_p <= 1) ||
      (p.rows > 0 && p.temperature > 0 && (p.sequence == nullptr || p.position == nullptr))) {
    return Status::kInvalidShape;
  }
  return p.rows > gpu::kMaxGridX ? Status::kUnsupported : Status::kOk;
}

std::size_t workspace_bytes(const SamplingParams& p) {
  return p.temperature > 0 ? (std::size_t{p.rows} * p.vocab * sizeof(double) + 15) / 16 * 16 : 0;
}

Status launch(const SamplingParams& p, gpu::Stream stream) {
  const Status status = can_run(p);
  if (status != Status::kOk || p.rows == 0) {
    return status;
  }
  if (p.workspace_size < workspace_bytes(p)) {
    return Status::kWorkspaceTooSmall;
  }
  const unsigned threads =
      p.vocab < kSampleThreads ? (p.vocab + kWarp - 1) / kWarp * kWarp : kSampleThreads;
  return gpu::launch_kernel("sample", sample_kernel, {p.rows, 1}, threads, 0, stream, p);
}

}  // namespace switchyard::SWITCHYARD_KERNELS
