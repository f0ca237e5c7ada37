// SPDX-License-Identifier: Apache-2.0
// Levels of detail of a series of rows (one row per step): level l >= 1 has one bin per 8^l steps,
// and a bin holds for each column
//   max   the largest value (so that one step of overflow is visible however far out one zooms),
//   sum   the sum in step order (mean = sum / steps in the bin); a whole number stops at the
//         largest of its type (starts of 100 000 steps of 20 ms add up to more than 2^63 ps),
//   flag  the OR of the steps' flags (overflow, saturation: whatever the series' owner says).
// Level 0 is the data itself and is not kept here. The last bin of a level may be shorter. The
// coarsest level has one bin; a series of one step has level 1 only, an empty one has no level.
//
// Memory: levels together hold at most 1/7 of the rows, plus one row per level.
// Not modelled: minima, percentiles. A bin that straddles two pixels lights both.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace switchyard::run {

inline constexpr std::uint64_t kLodFactor = 8;

/// Steps in one bin of `level` (8^level); `level` <= 20.
constexpr std::uint64_t lod_bin_steps(std::size_t level) {
  std::uint64_t n = 1;
  for (std::size_t i = 0; i < level; ++i) n *= kLodFactor;
  return n;
}
/// Bins of `level` over `steps` steps.
constexpr std::uint64_t lod_bins(std::uint64_t steps, std::size_t level) {
  const std::uint64_t n = lod_bin_steps(level);
  return steps / n + (steps % n != 0 ? 1 : 0);
}
/// Number of levels (the largest level index): 0 for no steps, else the first l >= 1 with one bin.
constexpr std::size_t lod_levels(std::uint64_t steps) {
  if (steps == 0) return 0;
  std::size_t level = 1;
  while (lod_bins(steps, level) > 1) ++level;
  return level;
}
/// The finest level (0 = the data itself) with at most `most_bins` bins over `steps` steps; the
/// coarsest level when none has so few.
constexpr std::size_t lod_level_for(std::uint64_t steps, std::uint64_t most_bins) {
  const std::size_t top = lod_levels(steps);
  std::size_t level = 0;
  while (level < top && lod_bins(steps, level) > most_bins) ++level;
  return level;
}

template <class T, class Sum>
class Lod {
 public:
  struct Level {
    std::vector<T> max;              ///< [bins][width]
    std::vector<Sum> sum;            ///< [bins][width]
    std::vector<std::uint8_t> flag;  ///< [bins][width] 0 or 1
  };
  /// Bins first_bin … first_bin + bins − 1 of one level; borrowed until the Lod changes.
  struct View {
    std::size_t level = 0;
    std::uint64_t first_bin = 0, bins = 0;
    std::uint64_t first_step = 0, end_step = 0;  ///< Steps the bins cover, [first, end).
    std::size_t width = 0;
    std::span<const T> max;
    std::span<const Sum> sum;
    std::span<const std::uint8_t> flag;
  };

  explicit Lod(std::size_t width = 0) : width_(width) {}

  /// Appends one step. `values` and `flags` have `width` entries (asserted); `flags` empty = 0. A
  /// NaN counts as 0.
  void append(std::span<const T> values, std::span<const std::uint8_t> flags = {}) {
    SWITCHYARD_ASSERT(
        values.size() == width_ && (flags.empty() || flags.size() == width_),
        fmt::format("{} values, {} flags, width {}", values.size(), flags.size(), width_));
    // The step count grows past the coarsest level's single bin: that bin opens the next level.
    if (levels_.empty()) {
      levels_.emplace_back();
      make_room(1);
    } else if (steps_ == lod_bin_steps(levels_.size())) {
      levels_.push_back(levels_.back());
      make_room(levels_.size());
    }
    for (std::size_t l = 1; l <= levels_.size(); ++l) {
      Level& level = levels_[l - 1];
      const std::size_t bin = static_cast<std::size_t>(steps_ / lod_bin_steps(l));
      const std::size_t base = bin * width_;
      const bool fresh = level.max.size() == base;
      if (fresh) {
        level.max.resize(base + width_);
        level.sum.resize(base + width_);
        level.flag.resize(base + width_);
      }
      for (std::size_t i = 0; i < width_; ++i) {
        const T v = clean(values[i]);
        level.max[base + i] = fresh ? v : std::max(level.max[base + i], v);
        level.sum[base + i] = add(level.sum[base + i], static_cast<Sum>(v));
        if (!flags.empty() && flags[i] != 0) level.flag[base + i] = 1;
      }
    }
    ++steps_;
  }

  /// Room for the levels of so many steps: append() then moves nothing.
  void reserve(std::uint64_t steps) {
    reserved_ = steps;
    for (std::size_t l = 1; l <= levels_.size(); ++l) make_room(l);
  }

  [[nodiscard]] std::size_t width() const { return width_; }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  /// Largest level index; levels 1 … levels() exist.
  [[nodiscard]] std::size_t levels() const { return levels_.size(); }
  [[nodiscard]] const Level& level(std::size_t l) const { return levels_.at(l - 1); }
  /// Whether the bins of level l are in memory (a reader may have left fine levels out).
  [[nodiscard]] bool loaded(std::size_t l) const {
    return l >= 1 && l <= levels_.size() &&
           levels_[l - 1].max.size() == lod_bins(steps_, l) * width_;
  }

  /// The bins of `level` that overlap steps [first, end); clipped to the series. The level must be
  /// in 1 … levels() and loaded (asserted), unless the series is empty.
  [[nodiscard]] View query(std::size_t l, std::uint64_t first, std::uint64_t end) const {
    View v;
    v.level = l;
    v.width = width_;
    end = std::min(end, steps_);
    if (first >= end) return v;
    SWITCHYARD_ASSERT(loaded(l), fmt::format("level {} of {}", l, levels_.size()));
    const std::uint64_t n = lod_bin_steps(l);
    v.first_bin = first / n;
    v.bins = (end - 1) / n - v.first_bin + 1;
    v.first_step = v.first_bin * n;
    v.end_step = std::min((v.first_bin + v.bins) * n, steps_);
    const std::size_t base = static_cast<std::size_t>(v.first_bin) * width_;
    const std::size_t count = static_cast<std::size_t>(v.bins) * width_;
    const Level& lv = levels_[l - 1];
    v.max = std::span(lv.max).subspan(base, count);
    v.sum = std::span(lv.sum).subspan(base, count);
    v.flag = std::span(lv.flag).subspan(base, count);
    return v;
  }

  /// For readers: a series of `steps` steps whose levels are filled by set_level.
  static Lod restored(std::size_t width, std::uint64_t steps) {
    Lod lod(width);
    lod.steps_ = steps;
    lod.levels_.resize(lod_levels(steps));
    return lod;
  }
  /// Array lengths must be bins * width (asserted; the reader has checked the file's).
  void set_level(std::size_t l, Level level) {
    const std::size_t n = static_cast<std::size_t>(lod_bins(steps_, l)) * width_;
    SWITCHYARD_ASSERT(l >= 1 && l <= levels_.size() && level.max.size() == n &&
                          level.sum.size() == n && level.flag.size() == n,
                      fmt::format("level {}: {} values, {} expected", l, level.max.size(), n));
    levels_[l - 1] = std::move(level);
  }

 private:
  void make_room(std::size_t l) {
    const auto n = static_cast<std::size_t>(lod_bins(reserved_, l)) * width_;
    Level& level = levels_[l - 1];
    level.max.reserve(n);
    level.sum.reserve(n);
    level.flag.reserve(n);
  }
  static Sum add(Sum a, Sum b) {
    if constexpr (std::is_integral_v<Sum>) {
      constexpr Sum kMost = std::numeric_limits<Sum>::max();
      if (b > 0 && a > kMost - b) return kMost;
    }
    return a + b;
  }
  static T clean(T v) {
    if constexpr (std::is_floating_point_v<T>) {
      return v == v ? v : T{0};
    } else {
      return v;
    }
  }
  std::size_t width_ = 0;
  std::uint64_t steps_ = 0, reserved_ = 0;
  std::vector<Level> levels_;
};

}  // namespace switchyard::run
