// SPDX-License-Identifier: Apache-2.0
#include "gui/core/firstpictures.hpp"

#include "engine/base/error.hpp"
#include "gui/core/columns.hpp"
#include "gui/core/views.hpp"

namespace switchyard::gui {

void readFirstPictures(const RunStore& run, std::size_t columns,
                       const std::function<void()>& stop) {
  if (run.steps() == 0 || columns == 0) return;
  const TimeWindow whole{0, static_cast<double>(run.steps())};
  const auto read = [&](auto&& what) {
    if (stop) stop();
    try {
      what();
    } catch (const InputError&) {
      // Nobody has asked for it yet.
    }
  };
  bool capacity = false;
  read([&] { capacity = run.hasCapacity(); });
  const Scale scale = capacity ? Scale::kCapacity : Scale::kFairShare;
  read([&] { (void)heatTop(run, kAllLayers, scale); });
  if (capacity) read([&] { (void)overTop(run, kAllLayers); });
  read([&] { (void)expertNumbers(run, kAllLayers); });
  read([&] { (void)busiestLinks(run, 1); });
  if (run.levels() > 0) {
    // Which phases there are.
    read([&] {
      (void)run.bins<std::int64_t, std::int64_t>(run::LodSeries::kGpuPhase, kAllLayers,
                                                 run::LodPart::kSum, run.levels(), 0);
    });
  }
  // One column is what the docks say of the whole run.
  for (const std::size_t n : {std::size_t{1}, columns}) {
    read([&] { (void)heatColumns(run, kAllLayers, scale, Aggregate::kMax, whole, n); });
    read([&] { (void)seriesColumns(run, whole, n); });
    read([&] { (void)linkColumns(run, whole, n); });
    read([&] { (void)phaseColumns(run, whole, n); });
  }
}

}  // namespace switchyard::gui
