// SPDX-License-Identifier: Apache-2.0
#include "kernels/dense_library.hpp"

#include <dlfcn.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kernels/cublas_names.hpp"
#include "kernels/toolkit_library.hpp"

namespace switchyard::gpu {
namespace {

/// The library's functions by their own names.
struct Functions {
#define SWITCHYARD_MEMBER(f) decltype(&::f) f = nullptr;
  SWITCHYARD_CUBLAS_LT_FUNCTIONS(SWITCHYARD_MEMBER)
#undef SWITCHYARD_MEMBER
  /// The name that is missing, or null.
  const char* load(void* library) {
#define SWITCHYARD_LOAD(f)                               \
  f = reinterpret_cast<decltype(f)>(dlsym(library, #f)); \
  if (f == nullptr) {                                    \
    return #f;                                           \
  }
    SWITCHYARD_CUBLAS_LT_FUNCTIONS(SWITCHYARD_LOAD)
#undef SWITCHYARD_LOAD
    return nullptr;
  }
};

bool good(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

class CublasLt final : public DenseLibrary {
 public:
  CublasLt(const Functions& f, cublasLtHandle_t handle) : f_(f), handle_(handle) {}
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt() override { f_.cublasLtDestroy(handle_); }

  std::string name() const override {
    const std::size_t v = f_.cublasLtGetVersion();  // major 10000 + minor 100 + patch
    return "cuBLASLt " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
           std::to_string(v % 100);
  }

  Status multiply(const DenseProduct& p, Stream stream) override {
    if (reinterpret_cast<std::uintptr_t>(p.out) % 16 != 0 || p.out_stride % 4 != 0) {
      return Status::kUnsupported;
    }
    const auto [it, added] = plans_.try_emplace({p.outputs, p.depth});
    if (added) {
      it->second = plan(p);
    }
    if (!it->second || refused_.count(it->first) > 0) {
      return Status::kUnsupported;
    }
    const Matrices m(f_, p, p.rows);
    const float one = 1;
    const float zero = 0;
    const cublasStatus_t status =
        !m.good ? CUBLAS_STATUS_ALLOC_FAILED
                : f_.cublasLtMatmul(handle_, m.product, &one, p.w, m.w, p.x, m.x, &zero, p.out,
                                    m.out, p.out, m.out, &*it->second, nullptr, 0, stream);
    if (good(status)) {
      return Status::kOk;
    }
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
        status == CUBLAS_STATUS_ARCH_MISMATCH || status == CUBLAS_STATUS_ALLOC_FAILED) {
      refused_.insert(it->first);  // this shape stays with our kernel, whatever the rows
      return Status::kUnsupported;
    }
    return Status::kLaunchFailed;
  }

 private:
  /// Row-major out = x w^T is column-major out^T = w^T-as-stored x^T: [N, rows] = [K, N]^T [K,
  /// rows].
  struct Matrices {
    Matrices(const Functions& functions, const DenseProduct& p, std::uint32_t rows) : f(functions) {
      const cublasOperation_t turned = CUBLAS_OP_T;
      good = gpu::good(f.cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
             gpu::good(f.cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                        &turned, sizeof turned)) &&
             gpu::good(f.cublasLtMatrixLayoutCreate(&w, CUDA_R_16BF, p.depth, p.outputs,
                                                    static_cast<std::int64_t>(p.depth))) &&
             gpu::good(f.cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, p.depth, rows,
                                                    static_cast<std::int64_t>(p.x_stride))) &&
             gpu::good(f.cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, p.outputs, rows,
                                                    static_cast<std::int64_t>(p.out_stride)));
    }
    Matrices(const Matrices&) = delete;
    Matrices& operator=(const Matrices&) = delete;
    ~Matrices() {
      for (const cublasLtMatrixLayout_t layout : {w, x, out}) {
        if (layout != nullptr) {
          f.cublasLtMatrixLayoutDestroy(layout);
        }
      }
      if (product != nullptr) {
        f.cublasLtMatmulDescDestroy(product);
      }
    }
    const Functions& f;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
    bool good = false;
  };

  /// The algorithm of this weight shape; none: there is no such.
  std::optional<cublasLtMatmulAlgo_t> plan(const DenseProduct& p) {
    const Matrices m(f_, p, kPlanRows);
    cublasLtMatmulPreference_t wish = nullptr;
    const std::uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
    const std::uint64_t workspace = 0;
    const std::uint32_t alignment = 16;
    bool fine = m.good && good(f_.cublasLtMatmulPreferenceCreate(&wish));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      fine =
          fine && good(f_.cublasLtMatmulPreferenceSetAttribute(wish, what, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_split);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    for (const auto what :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(what, alignment);
    }
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    fine = fine && good(f_.cublasLtMatmulAlgoGetHeuristic(handle_, m.product, m.w, m.x, m.out,
                                                          m.out, wish, 1, &found, &count));
    if (wish != nullptr) {
      f_.cublasLtMatmulPreferenceDestroy(wish);
    }
    return fine && count > 0 && good(found.state) ? std::optional(found.algo) : std::nullopt;
  }

  Functions f_;
  cublasLtHandle_t handle_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::optional<cublasLtMatmulAlgo_t>> plans_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> refused_;  // shapes whose plan failed once
};

}  // namespace

std::unique_ptr<DenseLibrary> open_cublas_lt(std::string& why) {
  why.clear();
  // Stays open, as the library's threads and caches may outlive a backend.
  void* const library = open_of_toolkit(SWITCHYARD_CUBLAS_LT_FILE);
  if (library == nullptr) {
    why = SWITCHYARD_CUBLAS_LT_FILE " is not on this machine";
    return nullptr;
  }
  Functions f;
  if (const char* const missing = f.load(library); missing != nullptr) {
    why = std::string(SWITCHYARD_CUBLAS_LT_FILE " has no ") + missing;
    return nullptr;
  }
  cublasLtHandle_t handle = nullptr;
  if (const cublasStatus_t status = f.cublasLtCreate(&handle); !good(status)) {
    why = "cublasLtCreate: status " + std::to_string(static_cast<int>(status));
    return nullptr;
  }
  return std::make_unique<CublasLt>(f, handle);
}

}  // namespace switchyard::gpu
