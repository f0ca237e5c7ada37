// SPDX-License-Identifier: Apache-2.0
// File: cpu_path.hpp. Matrix products of the CPU backend in one instruction set ("path"), chosen
// when the process starts. Every path has the same order of summation (cpu_kernels.hpp), hence the
// same bits: a faster machine gives the results of a slower one.
//
// Not modelled: products of BF16 pairs (avx512_bf16, AMX), which round activations.
#pragma once
#include <cstddef>
#include <span>

#include "engine/backend/backend.hpp"

namespace switchyard::cpu {

/// x [rows, depth] times the transpose of w [outputs, depth] (contiguous), into out; leading
/// dimensions ldx >= depth and ldo >= outputs, in floats.
struct Product {
  const float* x;
  std::size_t ldx, rows;
  const void* w;
  WeightType type;  ///< kF32, kBf16 or kF16
  std::size_t depth, outputs;
  float* out;
  std::size_t ldo;
  /// Weights of the same type and shape that this thread multiplies next, or null: they are fetched
  /// meanwhile.
  const void* next = nullptr;
};

struct Path {
  const char* name;  ///< "avx512", "avx2"
  float (*dot)(const float* a, const float* b, std::size_t n);
  /// Streams the weights once, as they are stored, for up to few_rows rows.
  void (*few)(const Product& p);
  std::size_t few_rows;
  std::size_t pass_rows;  ///< The number of rows, up to few_rows, at which few() is most efficient.
  /// Any rows: widens the weights into `packed` first, in panels that fit the register tile.
  void (*many)(const Product& p, float* packed, float* sums);
  /// Floats that many() needs there, each aligned to 64 bytes.
  std::size_t (*packed_floats)(std::size_t outputs, std::size_t depth);
  std::size_t (*sums_floats)(std::size_t outputs, std::size_t rows, std::size_t depth);
};

/// The paths this processor can run, fastest first; never empty.
[[nodiscard]] std::span<const Path* const> paths();

/// The path in use: the first of paths(), or the one that the environment variable
/// SWITCHYARD_CPU_PATH names (InputError when it is none of them).
[[nodiscard]] const Path& path();

extern const Path kAvx2Path;
extern const Path kAvx512Path;  ///< To be called only when paths() lists it.

}  // namespace switchyard::cpu
