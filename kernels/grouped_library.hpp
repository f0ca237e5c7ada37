// SPDX-License-Identifier: Apache-2.0
// Grouped products by cuBLAS (cublasGemmGroupedBatchedEx), against which switchyard-device compares
// grouped_gemm. libcublas.so.13 is opened by dlopen where the machine has it. Not used by the
// backend.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda_compat.hpp"

namespace switchyard::gpu {

/// out[r, n] = sum_k x[r, k] w[n, k] of one group: BF16 in and out, float32 sums, rows dense.
struct GroupProduct {
  std::uint32_t rows = 0;   ///< >= 1.
  const Bf16* w = nullptr;  ///< [N, K]
  const Bf16* x = nullptr;  ///< [rows, K]
  Bf16* out = nullptr;      ///< Out [rows, N].
};

class GroupedLibrary {
 public:
  virtual ~GroupedLibrary() = default;
  /// Queues all groups. Empty: done; else what the library answered.
  [[nodiscard]] virtual std::string multiply(const std::vector<GroupProduct>& groups,
                                             std::uint32_t outputs, std::uint32_t depth) = 0;
};

/// The machine's cuBLAS on `stream`, or null with the reason in `why` (one line). The stream
/// outlives it.
[[nodiscard]] std::unique_ptr<GroupedLibrary> open_cublas_grouped(Stream stream, std::string& why);

}  // namespace switchyard::gpu
