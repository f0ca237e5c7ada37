// SPDX-License-Identifier: Apache-2.0
#include "kernels/grouped_library.hpp"

#include <dlfcn.h>

#include "kernels/cublas_names.hpp"
#include "kernels/toolkit_library.hpp"

namespace switchyard::gpu {
namespace {

struct Functions {
#define SWITCHYARD_MEMBER(f) decltype(&::f) f##_ = nullptr;
#define SWITCHYARD_EXPAND(f) SWITCHYARD_MEMBER(f)
  SWITCHYARD_CUBLAS_FUNCTIONS(SWITCHYARD_EXPAND)
#undef SWITCHYARD_EXPAND
#undef SWITCHYARD_MEMBER
  const char* load(void* library) {
#define SWITCHYARD_LOAD(f)                                     \
  f##_ = reinterpret_cast<decltype(f##_)>(dlsym(library, #f)); \
  if (f##_ == nullptr) {                                       \
    return #f;                                                 \
  }
    SWITCHYARD_CUBLAS_FUNCTIONS(SWITCHYARD_LOAD)
#undef SWITCHYARD_LOAD
    return nullptr;
  }
};

class CublasGrouped final : public GroupedLibrary {
 public:
  CublasGrouped(const Functions& f, cublasHandle_t handle) : f_(f), handle_(handle) {}
  CublasGrouped(const CublasGrouped&) = delete;
  CublasGrouped& operator=(const CublasGrouped&) = delete;
  ~CublasGrouped() override { f_.cublasDestroy_v2_(handle_); }

  std::string multiply(const std::vector<GroupProduct>& groups, std::uint32_t outputs,
                       std::uint32_t depth) override {
    // Column-major: out^T [N, rows] = w as stored [K, N], turned, times x^T [K, rows].
    const auto count = static_cast<int>(groups.size());
    const std::vector<cublasOperation_t> turned(groups.size(), CUBLAS_OP_T);
    const std::vector<cublasOperation_t> plain(groups.size(), CUBLAS_OP_N);
    const std::vector<int> m(groups.size(), static_cast<int>(outputs));
    const std::vector<int> k(groups.size(), static_cast<int>(depth));
    const std::vector<int> one_each(groups.size(), 1);
    const std::vector<float> one(groups.size(), 1.0F);
    const std::vector<float> zero(groups.size(), 0.0F);
    std::vector<int> n;
    std::vector<const void*> pointers;  // of w, then x, then out
    for (const GroupProduct& g : groups) {
      n.push_back(static_cast<int>(g.rows));
      pointers.push_back(g.w);
    }
    for (const GroupProduct& g : groups) {
      pointers.push_back(g.x);
    }
    for (const GroupProduct& g : groups) {
      pointers.push_back(g.out);
    }
    void** there = nullptr;  // the arrays of pointers are device memory
    if (cudaMalloc(&there, pointers.size() * sizeof(void*)) != cudaSuccess) {
      return "no memory for its pointers";
    }
    std::string answer;
    if (cudaMemcpy(there, pointers.data(), pointers.size() * sizeof(void*),
                   cudaMemcpyHostToDevice) != cudaSuccess) {
      answer = "its pointers could not be copied";
    }
    if (answer.empty()) {
      const cublasStatus_t status = f_.cublasGemmGroupedBatchedEx_(
          handle_, turned.data(), plain.data(), m.data(), n.data(), k.data(), one.data(), there,
          CUDA_R_16BF, k.data(), there + count, CUDA_R_16BF, k.data(), zero.data(),
          there + 2 * count, CUDA_R_16BF, m.data(), count, one_each.data(), CUBLAS_COMPUTE_32F);
      if (status != CUBLAS_STATUS_SUCCESS) {
        answer = "cublasGemmGroupedBatchedEx: status " + std::to_string(static_cast<int>(status));
      }
    }
    if (cudaDeviceSynchronize() != cudaSuccess && answer.empty()) {
      answer = "it failed on the device";
    }
    cudaFree(there);
    return answer;
  }

 private:
  Functions f_;
  cublasHandle_t handle_;
};

}  // namespace

std::unique_ptr<GroupedLibrary> open_cublas_grouped(Stream stream, std::string& why) {
  why.clear();
  void* const library = open_of_toolkit(SWITCHYARD_CUBLAS_FILE);
  if (library == nullptr) {
    why = SWITCHYARD_CUBLAS_FILE " is not on this machine";
    return nullptr;
  }
  Functions f;
  if (const char* const missing = f.load(library); missing != nullptr) {
    why = std::string(SWITCHYARD_CUBLAS_FILE " has no ") + missing;
    return nullptr;
  }
  cublasHandle_t handle = nullptr;
  cublasStatus_t status = f.cublasCreate_v2_(&handle);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = f.cublasSetStream_v2_(handle, stream);
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    why = "cublasCreate: status " + std::to_string(static_cast<int>(status));
    return nullptr;
  }
  return std::make_unique<CublasGrouped>(f, handle);
}

}  // namespace switchyard::gpu
