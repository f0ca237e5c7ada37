// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/signal_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.hpp"

namespace switchyard {

Signals SignalTable::view(std::uint32_t step, std::uint32_t layer) const {
  SWITCHYARD_ASSERT(steps() > 0 && layer < layers,
                    fmt::format("{} steps, layer {}", steps(), layer));
  const std::uint32_t last = steps() - 1;
  const std::uint32_t row = std::min(step, last);
  Signals s;
  s.start = start[row];
  if (step > last) {
    const double mean = (end - start[0]) / steps();
    s.start = end + mean * (step - last - 1);
  }
  s.used = std::span(used).subspan(std::size_t{row} * gpus, gpus);
  s.elastic = std::span(elastic).subspan(std::size_t{row} * gpus, gpus);
  s.first_gpu = std::span(first_gpu).subspan(std::size_t{layer} * (experts + 1), experts + 1);
  s.gpu = gpu;
  return s;
}

}  // namespace switchyard
