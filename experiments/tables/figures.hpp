// SPDX-License-Identifier: Apache-2.0
// Figures that enter a table's arithmetic beside model and hardware files: what an article prints,
// or what we state in its place. Each has a name and can be changed, so that a table can ask which
// of them a claim needs to be another (table `claim-sensitivity`).
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "experiments/claims/claims.hpp"

namespace switchyard::tables {

struct Figure {
  std::string name;    ///< With its unit where it has one, and where it is printed.
  double value = 0;    ///< As printed.
  bool whole = false;  ///< It counts things.
  double most = std::numeric_limits<double>::infinity();  ///< 1 for a share, 100 for one in %.
};
/// By name; a name that no arithmetic asks for has no effect.
using ChangedFigures = std::map<std::string, double>;

/// A claim's value where other rows build on it.
[[nodiscard]] inline Figure printed_figure(const claims::Claim& claim) {
  const bool percent = claim.unit == "%";
  return {fmt::format("{}, {} [{}]", claim.row, claim.text, claim.unit), claim.value, false,
          percent ? 100 : std::numeric_limits<double>::infinity()};
}

/// Reads figures and notes which were asked for, in order.
class FigureReader {
 public:
  /// Both must outlive the reader; `seen` may be null.
  FigureReader(const ChangedFigures& changed, std::vector<Figure>* seen)
      : changed_(changed), seen_(seen) {}
  /// The figure's own value, unless it was changed. One name has one value (asserted).
  [[nodiscard]] double value(const Figure& figure) {
    if (seen_ != nullptr) {
      const auto known = std::find_if(seen_->begin(), seen_->end(),
                                      [&](const Figure& f) { return f.name == figure.name; });
      SWITCHYARD_ASSERT(known == seen_->end() || known->value == figure.value, figure.name);
      if (known == seen_->end()) {
        seen_->push_back(figure);
      }
    }
    const auto it = changed_.find(figure.name);
    return it == changed_.end() ? figure.value : it->second;
  }

 private:
  const ChangedFigures& changed_;
  std::vector<Figure>* seen_;
};

}  // namespace switchyard::tables
