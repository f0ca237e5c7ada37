// SPDX-License-Identifier: Apache-2.0
// File: crc32c.hpp. CRC-32C (Castagnoli, RFC 3720 B.4): reflected polynomial 0x82F63B78, initial
// value and final XOR 0xFFFFFFFF; the crc32 instruction of SSE 4.2. It detects every change of one
// bit, every burst up to 32 bits, and others but one in 2^32.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace switchyard {

/// CRC-32C of `data`; "123456789" gives 0xE3069283. `before` is the CRC of what comes before it:
/// crc32c(b, crc32c(a)) is the CRC of a and b together.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0);

}  // namespace switchyard
