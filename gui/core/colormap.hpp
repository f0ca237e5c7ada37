// SPDX-License-Identifier: Apache-2.0
// Perceptual colour maps, 256 entries each, from ten evenly spaced samples with linear
// interpolation. viridis (S. van der Walt, N. Smith, 2015, CC0), cividis (Nunez, Anderton, Renslow,
// 2018), and a grey ramp. Red is in none of them: it is reserved for "over capacity".
#pragma once
#include <array>
#include <cstdint>

namespace switchyard::gui {

enum class ColorMap { kViridis, kCividis, kGrey };

/// 0xffRRGGBB, lowest value first.
const std::array<std::uint32_t, 256>& colorTable(ColorMap map);

/// Over capacity, in both themes and all maps.
inline constexpr std::uint32_t kOverflowColor = 0xffe8232aU;

}  // namespace switchyard::gui
