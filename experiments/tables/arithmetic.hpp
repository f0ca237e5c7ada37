// SPDX-License-Identifier: Apache-2.0
// Table `arithmetic`: what arithmetic decides about C07-C96, beside the rows of `account`. Three
// kinds of rows: presets (model files) against an article's number, bounds that hold for any
// hardware (bytes over bandwidth, Little's law, a mean below its maximum), and an article's own
// figures held against each other. Every value is computed from model and hardware files, the
// routing library's capacity rules, and figures that the articles print.
//
// Not modelled: anything that needs a run; those rows are in the tables of the engine and the
// simulator.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/model/model_config.hpp"
#include "experiments/claims/claims.hpp"
#include "experiments/tables/figures.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

struct ArithmeticInputs {
  std::map<std::string, model::ModelConfig> models;  ///< By preset name.
  double card = 0;                                   ///< Bytes of an A100 with 80 GB.
  double hbm_a100 = 0;                               ///< Bytes per second.
  double hbm_h100 = 0;                               ///< Bytes per second.
  double nvlink3 = 0;       ///< Bytes per second and direction, as all links here.
  double nvlink4 = 0;       ///< Of an H100.
  double pcie4 = 0;         ///< Nominal.
  double optical = 0;       ///< S1 5.1.
  double nccl_largest = 0;  ///< All-to-all on 8 H100, largest message of the shipped measurement.
  ChangedFigures figures;   ///< Empty: all as printed.
};

/// S4 2.3: routing takes 18 % of a step at batch 128 and 6 % at 1024. Overhead over the rest of the
/// step = per token + fixed / batch, through both points.
struct RoutingOverhead {
  double at128 = 0.18, at1024 = 0.06;  ///< Shares of the step, 0…1.
  double fixed = (at128 / (1 - at128) - at1024 / (1 - at1024)) / (1.0 / 128 - 1.0 / 1024);
  double token = at128 / (1 - at128) - fixed / 128;
  [[nodiscard]] double odds(double batch) const { return token + fixed / batch; }
  [[nodiscard]] double share(double batch) const { return odds(batch) / (1 + odds(batch)); }
};

/// Reads scenarios/models, scenarios/hardware and scenarios/network; no figure changed.
[[nodiscard]] ArithmeticInputs arithmetic_inputs(const std::filesystem::path& scenarios);
/// `figures`, if not null, gets every figure that entered, once, in order of use.
[[nodiscard]] claims::Measurements measure_arithmetic(const ArithmeticInputs& inputs,
                                                      const std::vector<claims::Claim>& claims,
                                                      std::vector<Figure>* figures = nullptr);
/// First the contradicted rows with the factor that separates claim and arithmetic, then all rows.
[[nodiscard]] std::vector<Table> arithmetic_tables(const ArithmeticInputs& inputs,
                                                   const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
