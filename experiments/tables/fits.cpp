// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/fits.hpp"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/error.hpp"
#include "sim/scenario/hardware.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::tables {
namespace {

using model::DType;
using model::DTypeChoice;

DTypeChoice formats(DType experts, DType rest, DType kv) {
  DTypeChoice d;
  d.experts = experts;
  d.shared = d.router = rest;
  d.kv = kv;
  return d;
}
DTypeChoice all(DType dtype, DType kv) { return formats(dtype, dtype, kv); }

double stated(const model::ModelConfig& config, const char* key, DType dtype) {
  const auto it = config.stated.find(key);
  SWITCHYARD_ASSERT(it != config.stated.end(), fmt::format("{} states no {}", config.name, key));
  return static_cast<double>(model::dtype_bytes(dtype, it->second));
}

}  // namespace

const std::vector<Recipe>& recipes() {
  constexpr DType kF16 = DType::kF16;
  constexpr DType kBf16 = DType::kBf16;
  constexpr DType kInt4 = DType::kInt4;
  static const std::vector<Recipe> list = {
      {"F01a", "gpt4_s4", "hgx_h100", all(kF16, kF16), Needs::kStatedTotal},
      {"F01b", "gpt4_s4", "whatif_8x188", all(kF16, kF16), Needs::kStatedTotal},
      {"F02a", "gpt4_s0", "whatif_16x280", all(kF16, kF16), Needs::kReplicatedShared},
      {"F02b", "gpt4_s0", "whatif_16x280", all(kF16, kF16), Needs::kWeights},
      {"F03a", "gpt4_s1", "hgx_h100", formats(kInt4, kBf16, kBf16), Needs::kWeights},
      {"F04a", "qwen2_57b_a14b", "a100x2", all(kBf16, kBf16), Needs::kWeights},
      {"F04b", "qwen2_57b_a14b", "a100x1", all(kBf16, kBf16), Needs::kWeights},
      {"F04c", "qwen2_57b_a14b", "a100x1", all(DType::kInt4G128, kBf16), Needs::kWeights},
      {"F05a", "deepseek_r1", "a100x4", all(DType::kF8E4M3, kBf16), Needs::kWeights},
      {"F05b", "deepseek_r1", "a100x4", all(kInt4, kBf16), Needs::kWeights},
      {"F06a", "gpt4_s3", "a100x1", all(kF16, kF16), Needs::kStatedActive},
      {"F06b", "dense_28b", "a100x1", all(kF16, kF16), Needs::kWeights},
      {"F07a", "deepseek_moe_16b", "a100x4", all(kBf16, kBf16), Needs::kWeights},
      {"F07b", "ds_moe_16b_s3", "a100x4", all(kBf16, kBf16), Needs::kWeights},
      {"F08a", "gpt4_s4", "a100x16", all(kF16, kF16), Needs::kWeights},
      {"F08b", "gpt4_s4", "a100x16", formats(kInt4, kF16, kF16), Needs::kWeights},
  };
  return list;
}

FitsInputs fits_inputs(const std::filesystem::path& scenarios, double watermark) {
  FitsInputs inputs;
  inputs.watermark = watermark;
  for (const Recipe& recipe : recipes()) {
    inputs.models[recipe.model] =
        model::read_model_config(scenarios / "models" / fmt::format("{}.json", recipe.model));
    const auto hardware = scenario::read_hardware(
        (scenarios / "hardware" / fmt::format("{}.toml", recipe.hardware)).string());
    for (std::size_t r = 1; r < hardware.gpu_count(); ++r) {
      SWITCHYARD_ASSERT(hardware.gpu(r).gpu_type == hardware.gpu(0).gpu_type, hardware.name);
    }
    inputs.hardware[recipe.hardware] = {hardware.gpu_count(),
                                        static_cast<double>(hardware.gpu_type(0).memory_bytes)};
  }
  return inputs;
}

Fit fit(const Recipe& recipe, const FitsInputs& inputs) {
  const model::ModelConfig& config = inputs.models.at(recipe.model);
  Fit f;
  f.gpus = inputs.hardware.at(recipe.hardware).count;
  f.card = inputs.hardware.at(recipe.hardware).bytes;
  f.kv_token = model::kv_bytes_per_token(config, recipe.dtype.kv);
  const auto count = model::count_parameters(config);
  f.what = model::dtype_name(recipe.dtype.shared);
  if (model::default_dtypes(config).embedding && !recipe.dtype.embedding) {
    f.what = "all " + f.what;  // The model's own file keeps some parts in a wider format.
  }
  if (recipe.dtype.experts != recipe.dtype.shared) {
    f.what = fmt::format("experts {}, rest {}", model::dtype_name(recipe.dtype.experts), f.what);
  }
  switch (recipe.needs) {
    case Needs::kWeights:
      f.needs = static_cast<double>(model::weight_bytes(count, recipe.dtype));
      break;
    case Needs::kReplicatedShared: {
      auto rest = count;
      rest.experts = rest.expert_biases = 0;
      const double shared = static_cast<double>(model::weight_bytes(rest, recipe.dtype));
      f.needs = static_cast<double>(model::weight_bytes(count, recipe.dtype)) +
                static_cast<double>(f.gpus - 1) * shared;
      f.what += fmt::format(", shared layers x {}", f.gpus);
      break;
    }
    case Needs::kStatedTotal:
      f.needs = stated(config, "total", recipe.dtype.shared);
      f.what += ", stated total";
      break;
    case Needs::kStatedActive:
      f.needs = stated(config, "active", recipe.dtype.shared);
      f.what += ", stated active set";
      break;
  }
  return f;
}

claims::Measurements measure_fits(const FitsInputs& inputs) {
  claims::Measurements measured;
  for (const Recipe& recipe : recipes()) {
    const Fit f = fit(recipe, inputs);
    measured.add(recipe.row, f.fits(inputs.watermark) ? 1 : 0,
                 fmt::format("{} GB of {} GB", show(f.needs / 1e9), show(f.has() / 1e9)));
  }
  return measured;
}

std::vector<Table> fits_tables(const FitsInputs& inputs, const std::vector<claims::Claim>& claims) {
  const double watermark = inputs.watermark;
  std::map<std::string, Fit> fit_of;
  std::map<std::string, const Recipe*> recipe_of;
  for (const Recipe& recipe : recipes()) {
    fit_of[recipe.row] = fit(recipe, inputs);
    recipe_of[recipe.row] = &recipe;
  }
  const auto judged = claims::judge(claims, measure_fits(inputs));
  Table t;
  t.name = "fits";
  t.title = fmt::format("does the recipe fit: weights against memory, watermark {} %",
                        show(100 * watermark));
  t.columns = {"row",      "source",     "recipe",   "read as",   "model",        "formats",
               "hardware", "needs [GB]", "has [GB]", "use [%]",   "cards needed", "KV tokens left",
               "fits",     "claimed",    "verdict",  "decided_by"};
  for (const auto& j : judged) {
    const Fit& f = fit_of.at(j.claim.quantity);
    const Recipe& recipe = *recipe_of.at(j.claim.quantity);
    const double room = watermark * f.has() - f.needs;
    t.rows.push_back(
        {j.claim.row, j.claim.source, j.claim.text, j.claim.reading, recipe.model, f.what,
         recipe.hardware, show(f.needs / 1e9), show(f.has() / 1e9),
         fmt::format("{:.1f}", 100 * f.use()),
         recipe.needs == Needs::kReplicatedShared ? "n/a"
                                                  : fmt::to_string(static_cast<std::uint64_t>(
                                                        std::ceil(f.needs / (watermark * f.card)))),
         fmt::to_string(room <= 0 ? 0
                                  : static_cast<std::uint64_t>(
                                        std::floor(room / static_cast<double>(f.kv_token)))),
         *j.measured.value != 0 ? "yes" : "no", j.claim.printed, std::string(name_of(j.verdict)),
         std::string(name_of(j.claim.decided_by))});
  }
  t.notes.emplace_back("fits = weights <= watermark x memory; GB = 1e9 bytes");
  t.notes.emplace_back(
      "cards needed = needs / (watermark x memory of a card); KV tokens left = room under the "
      "watermark / KV bytes per token, in the format of the recipe");
  return {t, verdicts_table("fits", judged)};
}

std::vector<Table> make_fits(const TableContext& context) {
  return fits_tables(fits_inputs(context.scenarios, scenario::MemorySpec{}.watermark),
                     claims::claims_of("fits"));
}

}  // namespace switchyard::tables
