// SPDX-License-Identifier: Apache-2.0
// Dense products of many rows by a vendor's library, where the machine has it. The backend asks it
// first and takes its own kernel (DenseGemmParams) for what it refuses.
// cuBLASLt is opened by dlopen (libcublasLt.so.13: with 700 MB too large to carry, and a machine
// may have none). For each weight shape one algorithm is chosen, for kPlanRows rows and without
// split-K, and used for every number of rows, so that a row keeps its bits; whether it does is
// NVIDIA's to keep and compared by device_check.sh.
// Not modelled: heads apart, operands other than BF16, an algorithm for each number of rows.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda_compat.hpp"

namespace switchyard::gpu {

/// out[r, n] = sum_k x[r, k] w[n, k]; device memory, borrowed until the stream has passed.
struct DenseProduct {
  std::uint32_t rows = 0, outputs = 0, depth = 0;
  const Bf16* w = nullptr;  ///< [N, K], at a multiple of 16 bytes.
  const Bf16* x =
      nullptr;  ///< [rows], `x_stride` values from row to row; at a multiple of 16 bytes.
  std::uint64_t x_stride = 0;
  float* out = nullptr;  ///< Out [rows], `out_stride` from row to row.
  std::uint64_t out_stride = 0;
};

class DenseLibrary {
 public:
  virtual ~DenseLibrary() = default;
  /// "cuBLASLt 13.0.2"
  [[nodiscard]] virtual std::string name() const = 0;
  /// Queues the product. kUnsupported: nothing was queued, the caller multiplies itself.
  [[nodiscard]] virtual Status multiply(const DenseProduct& product, Stream stream) = 0;
};

/// Rows that an algorithm is chosen for.
inline constexpr std::uint32_t kPlanRows = 512;

/// The machine's cuBLASLt, or null with the reason in `why` (one line).
[[nodiscard]] std::unique_ptr<DenseLibrary> open_cublas_lt(std::string& why);

}  // namespace switchyard::gpu
