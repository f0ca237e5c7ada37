// SPDX-License-Identifier: Apache-2.0
// The functions of cuBLASLt and cuBLAS that are looked up by name: one list for the look-up and for
// the program that links them (cublas_link_check.cpp), so that a name that does not exist, or has
// another type, fails the build.
#pragma once
#include <cublasLt.h>
#include <cublas_v2.h>

#define SWITCHYARD_CUBLAS_LT_FUNCTIONS(X) \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtGetVersion)                   \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)

// cublas_v2.h names these by macros.
#define SWITCHYARD_CUBLAS_FUNCTIONS(X) \
  X(cublasCreate_v2)                   \
  X(cublasDestroy_v2)                  \
  X(cublasSetStream_v2)                \
  X(cublasGemmGroupedBatchedEx)

#define SWITCHYARD_CUBLAS_LT_FILE "libcublasLt.so.13"
#define SWITCHYARD_CUBLAS_FILE "libcublas.so.13"
