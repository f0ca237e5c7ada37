// SPDX-License-Identifier: Apache-2.0
// Table `claim-sensitivity`: for each row of `account`, `arithmetic` and `fits` whose verdict is
// contradicted, the one assumption which, if it were x and all else as it is, makes the row true.
// An assumption is one number that enters the row's arithmetic: a field of a model file, a figure
// of a hardware file, or a figure of an article. The verdict at x comes from claims::verdict, as
// all verdicts do.
//
// Search: from the assumption's value outwards over a grid of factors up to kWidest both ways; the
// first step over which the row's side changes (below, true, above) is bisected. A solution that
// lies within one step of the grid together with its way back is not seen.
//
// Not modelled: two assumptions changed together; whether a real model or card could be so; rows
// of tables that run the engine or the simulator.
#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/tables/account.hpp"
#include "experiments/tables/arithmetic.hpp"
#include "experiments/tables/fits.hpp"

namespace switchyard::tables {

/// An assumption is changed by a factor of 1/kWidest … kWidest.
inline constexpr double kWidest = 100;

struct Assumption {
  std::string name;                                       ///< "layers of gpt4_s0".
  double value = 0;                                       ///< As it is, > 0.
  bool whole = false;                                     ///< Whole numbers only.
  double most = std::numeric_limits<double>::infinity();  ///< Largest that makes sense.
};

/// What a table measures, as a function of one changed assumption.
struct Sensible {
  std::vector<claims::Claim> claims;
  std::vector<Assumption> assumptions;
  /// With assumption `index` at `value` > 0, the others as they are; no value where the model makes
  /// no sense (k > E).
  std::function<std::optional<claims::Measurements>(std::size_t index, double value)> measure;
};
[[nodiscard]] Sensible sensible_account(const AccountInputs& inputs,
                                        const std::vector<claims::Claim>& claims);
[[nodiscard]] Sensible sensible_arithmetic(const ArithmeticInputs& inputs,
                                           const std::vector<claims::Claim>& claims);
[[nodiscard]] Sensible sensible_fits(const FitsInputs& inputs,
                                     const std::vector<claims::Claim>& claims);

/// One assumption that makes a row true.
struct Cure {
  std::size_t assumption = 0;
  /// Where ours is the claimed value (the nearest whole number that makes the row true); the first
  /// value that makes it true for yes/no, bounds and ranges. Rounded to the digits that are shown.
  double needed = 0;
  double enough = 0;  ///< First value within the claim's tolerance, between value and needed.
  [[nodiscard]] double factor(const Sensible& of) const {
    return needed / of.assumptions[assumption].value;
  }
};
/// A contradicted row and its cures, smallest |log factor| first; those within 1 % of each other
/// stand in the order of `assumptions`.
struct Sensitivity {
  claims::Judged row;
  bool depends = false;  ///< Any assumption changes its value.
  std::vector<Cure> cures;
};
/// All contradicted rows of `of`, in the order of its claims.
[[nodiscard]] std::vector<Sensitivity> sensitivities(const Sensible& of);

[[nodiscard]] Table claim_sensitivity_table(const std::vector<Sensible>& all);

}  // namespace switchyard::tables
