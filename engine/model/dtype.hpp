// SPDX-License-Identifier: Apache-2.0
// Number formats of weights, KV cache and activations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace switchyard::model {

/// A storage format. The first group can appear in safetensors files; of the packed formats the
/// last four are GGUF's block formats (kMxfp4 is one too), the others exist for accounting and for
/// the cost model only.
enum class DType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBf16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kInt4,      ///< 4 bits per value, no scales counted.
  kInt4G128,  ///< 4 bits, FP16 scale and 4-bit zero point per group of 128: 4.15625 bits.
  kMxfp4,     ///< OCP MX: 4 bits, one 8-bit scale per 32 values: 4.25 bits.
  kQ8_0,      ///< 32 values in 34 bytes: FP16 scale, 8-bit values.
  kQ4_0,      ///< 32 values in 18 bytes: FP16 scale, 4-bit values minus 8.
  kQ4K,       ///< 256 values in 144 bytes: eight 6-bit scales and minima, 4-bit values.
  kQ6K,       ///< 256 values in 210 bytes: sixteen 8-bit scales, 6-bit values minus 32.
};

/// Lower-case name used in scenarios and tables: "bf16", "fp32", "fp8", "int4", "int4_g128",
/// "q8_0", …
std::string_view dtype_name(DType dtype);
/// Accepts the names of dtype_name plus "f32", "float32", "bfloat16", "f16", "float16",
/// "f8_e4m3", "fp8_e4m3". InputError(where, …) with a suggestion otherwise.
DType parse_dtype(std::string_view text, const std::string& where);
/// Bits per value × 32, exact (bf16 → 512, int4_g128 → 133, mxfp4 → 136).
std::uint64_t dtype_bits_x32(DType dtype);
/// Bytes of `count` values, rounded up to a whole byte; InputError when that exceeds 2^63.
std::uint64_t dtype_bytes(DType dtype, std::uint64_t count);
/// True for F32, F16 and BF16: the formats `widen` can read.
bool is_float_weight(DType dtype);

/// Upper-case name for messages about files: the safetensors spelling, or GGUF's ("Q4_K").
std::string file_dtype_name(DType dtype);
/// The safetensors spelling ("BF16", "F8_E4M3", …); empty for the packed formats.
std::string_view safetensors_name(DType dtype);

/// Exact widening of little-endian BF16/F16/F32 values to f32. `source` holds out.size() values;
/// size and format are asserted. `source` need not be aligned.
void widen(DType dtype, std::span<const std::byte> source, std::span<float> out);
/// One BF16 value; the exact inverse of truncation.
float bf16_to_float(std::uint16_t bits);
/// Round to nearest, ties to even; NaN stays NaN.
std::uint16_t float_to_bf16(float value);
float f16_to_float(std::uint16_t bits);
/// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN.
std::uint16_t float_to_f16(float value);

}  // namespace switchyard::model
