// SPDX-License-Identifier: Apache-2.0
#include "gui/core/colormap.hpp"

#include <cmath>

namespace switchyard::gui {
namespace {

constexpr std::array<std::uint32_t, 10> kViridisStops = {0x440154, 0x482878, 0x3e4a89, 0x31688e,
                                                         0x26828e, 0x1f9e89, 0x35b779, 0x6dcd59,
                                                         0xb4de2c, 0xfde725};
constexpr std::array<std::uint32_t, 10> kCividisStops = {0x00204d, 0x00336f, 0x39486b, 0x575c6d,
                                                         0x707173, 0x8a8779, 0xa69d75, 0xc4b56c,
                                                         0xe4cf5b, 0xffea46};
constexpr std::array<std::uint32_t, 10> kGreyStops = {0x1c1c1c, 0x343434, 0x4c4c4c, 0x646464,
                                                      0x7c7c7c, 0x949494, 0xacacac, 0xc4c4c4,
                                                      0xdcdcdc, 0xf4f4f4};

std::array<std::uint32_t, 256> spread(const std::array<std::uint32_t, 10>& stops) {
  std::array<std::uint32_t, 256> table{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    const double x = static_cast<double>(i) / 255.0 * 9.0;
    const std::size_t k = i == 255 ? 8 : static_cast<std::size_t>(x);
    const double f = x - static_cast<double>(k);
    std::uint32_t rgb = 0xff000000U;
    for (const unsigned shift : {0U, 8U, 16U}) {
      const double a = (stops[k] >> shift) & 0xffU;
      const double b = (stops[k + 1] >> shift) & 0xffU;
      rgb |= static_cast<std::uint32_t>(std::lround(a + (b - a) * f)) << shift;
    }
    table[i] = rgb;
  }
  return table;
}

}  // namespace

const std::array<std::uint32_t, 256>& colorTable(ColorMap map) {
  static const std::array<std::uint32_t, 256> viridis = spread(kViridisStops);
  static const std::array<std::uint32_t, 256> cividis = spread(kCividisStops);
  static const std::array<std::uint32_t, 256> grey = spread(kGreyStops);
  switch (map) {
    case ColorMap::kCividis:
      return cividis;
    case ColorMap::kGrey:
      return grey;
    case ColorMap::kViridis:
      break;
  }
  return viridis;
}

}  // namespace switchyard::gui
