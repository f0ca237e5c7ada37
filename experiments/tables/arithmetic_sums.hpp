// SPDX-License-Identifier: Apache-2.0
// What the files of table `arithmetic` share: values collected with the text of their arithmetic.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"
#include "experiments/tables/arithmetic.hpp"

namespace switchyard::tables::sums {

using model::DType;
using model::DTypeChoice;
using model::ModelConfig;

inline constexpr double kGB = 1e9, kTB = 1e12, kMB = 1e6, kB = 1e9, kT = 1e12, kMiB = 1048576.0;

inline double as_double(std::uint64_t v) { return static_cast<double>(v); }
inline double fp16(double values) { return 2.0 * values; }

inline DTypeChoice uniform(DType dtype) {
  DTypeChoice d;
  d.experts = d.shared = d.router = d.kv = dtype;
  return d;
}

/// Collects values with the text of their arithmetic.
class Sums {
 public:
  Sums(const ArithmeticInputs& inputs, const std::vector<claims::Claim>& claims,
       claims::Measurements& out, std::vector<Figure>* figures)
      : inputs_(inputs), claims_(claims), out_(out), figures_(inputs.figures, figures) {}
  [[nodiscard]] const ModelConfig& model(const char* name) const {
    const auto it = inputs_.models.find(name);
    SWITCHYARD_ASSERT(it != inputs_.models.end(), name);
    return it->second;
  }
  [[nodiscard]] double printed(const char* row) {
    return figures_.value(printed_figure(claims::claim_by_row(claims_, row)));
  }
  void add(const std::string& quantity, double value, std::string how) {
    out_.add(quantity, value, std::move(how));
  }
  void undecided(const char* quantity, std::string why) {
    out_.add_undecided(quantity, std::move(why));
  }
  const ArithmeticInputs& in() const { return inputs_; }
  /// A figure of an article, or one that we state, as printed unless the inputs change it.
  [[nodiscard]] double figure(const std::string& name, double printed) {
    return figures_.value({name, printed});
  }
  /// The same, a whole number.
  [[nodiscard]] double count(const std::string& name, double printed) {
    return figures_.value({name, printed, true});
  }
  /// The same, a share (0…1).
  [[nodiscard]] double share(const std::string& name, double printed) {
    return figures_.value({name, printed, false, 1});
  }

 private:
  const ArithmeticInputs& inputs_;
  const std::vector<claims::Claim>& claims_;
  claims::Measurements& out_;
  FigureReader figures_;
};

/// C07-C19, C61-C69, C95, C96: article S0 (arithmetic_s0.cpp).
void measure_s0(Sums& s);

}  // namespace switchyard::tables::sums
