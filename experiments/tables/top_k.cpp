// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/top_k.hpp"

#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>

#include "engine/model/accounting.hpp"
#include "experiments/tables/table_text.hpp"

namespace switchyard::tables {
namespace {

constexpr std::uint64_t kGpus = 8, kContext = 512;

double as_double(std::uint64_t v) { return static_cast<double>(v); }

std::string name_of(const ExpertShape& s) { return fmt::format("{} + {}", s.top_k, s.shared); }

/// One sentence: what changes from the first shape of a sweep to the last.
std::string reading(const std::string& from, const std::string& to, const ShapePoint& a,
                    const ShapePoint& b) {
  return fmt::format(
      "{} to {}: sent x {:.2f}, distinct experts x {:.2f}, HBM x {:.2f}, TPOT x {:.3f}", from, to,
      b.sent_per_token / a.sent_per_token, b.distinct_experts / a.distinct_experts,
      b.hbm_bytes / a.hbm_bytes, b.tpot_s / a.tpot_s);
}

}  // namespace

ShapePoint measure_shape(ShortRuns& runs, const ExpertShape& shape, std::uint64_t batch,
                         std::string_view routing) {
  std::string text =
      fixed_batch("deepseek_v2_lite", "hgx_h100", fmt::format("dp = {0}\nep = {0}\n", kGpus),
                  decode_steps(batch, kContext, runs.quick(), routing));
  const std::string head = "[model]\n";
  text.insert(text.find(head) + head.size(),
              fmt::format("num_experts = {}\ntop_k = {}\nexpert_intermediate = {}\n", shape.experts,
                          shape.top_k, shape.width));
  ShapePoint out;
  const auto run = runs.run(text, [&](scenario::Scenario& s) {
    s.model.num_shared_experts = shape.shared;
    s.model.shared_intermediate = shape.shared * shape.shared_width;
    s.run.detail = scenario::Detail::kLayers;
    out.model = s.model;
  });
  const model::FlopCount flops = model::flops_per_token(out.model, kContext);
  out.ffn_flops = as_double(flops.experts + flops.shared_experts);
  out.flops = as_double(flops.total());
  const model::ParameterCount count = model::count_parameters(out.model);
  out.expert_bytes = as_double(model::dtype_bytes(model::DType::kBf16, count.experts));
  out.shared_bytes = as_double(model::dtype_bytes(model::DType::kBf16, count.shared_experts));
  const std::size_t layers = run.inventory.moe_layers.size();
  double steps = 0;
  for (std::size_t s = 0; s < run.steps.size(); ++s) {
    if (run.steps[s].warmup) {
      continue;
    }
    steps += 1;
    out.hbm_bytes += as_double(run.steps[s].hbm_bytes);
    for (std::size_t l = 0; l < layers; ++l) {
      out.distinct_experts += run.layer_steps.distinct_experts[s * layers + l];
    }
  }
  out.hbm_bytes /= steps;
  out.distinct_experts /= steps * static_cast<double>(layers);
  out.sent_per_token = 1e3 * metric(run, "bytes sent per token");
  out.imbalance = metric(run, "imbalance mean");
  out.tpot_s = 1e-6 * metric(run, "step time mean");
  out.routed = metric(run, "expert share");
  out.exchange = metric(run, "dispatch share") + metric(run, "combine share");
  out.dense = metric(run, "dense share");
  return out;
}

Table top_k_table(ShortRuns& runs) {
  Table t;
  t.name = "top-k";
  t.title = fmt::format(
      "deepseek_v2_lite (BF16) with other experts of equal FLOPs on 8 x H100, dp 8, ep 8, decode, "
      "{} of context",
      kContext);
  t.columns = {"varied",
               "E",
               "k + shared",
               "expert width",
               "batch",
               "expert GFLOP/token",
               "all GFLOP/token",
               "routed [GB]",
               "shared [GB/GPU]",
               "sent [kB/token]",
               "distinct experts per GPU and layer",
               "HBM [GB/step]",
               "imbalance",
               "TPOT [ms]",
               "over the model's own",
               "routed experts [%]",
               "dispatch + combine [%]",
               "dense [%]"};
  const std::vector<std::uint64_t> batches =
      runs.quick() ? std::vector<std::uint64_t>{64} : std::vector<std::uint64_t>{64, 1024};
  for (const std::uint64_t batch : batches) {
    const ShapePoint own = measure_shape(runs, kOwnShape, batch);
    const auto add = [&](const char* varied, std::span<const ExpertShape> shapes) {
      std::vector<ShapePoint> points;
      for (const ExpertShape& s : shapes) {
        points.push_back(s == kOwnShape ? own : measure_shape(runs, s, batch));
        const ShapePoint& p = points.back();
        t.rows.push_back(
            {varied, fmt::to_string(s.experts), name_of(s), fmt::to_string(s.width),
             fmt::to_string(batch), fmt::format("{:.4f}", 1e-9 * p.ffn_flops),
             fmt::format("{:.4f}", 1e-9 * p.flops), fmt::format("{:.3f}", 1e-9 * p.expert_bytes),
             fmt::format("{:.3f}", 1e-9 * p.shared_bytes),
             fmt::format("{:.1f}", 1e-3 * p.sent_per_token),
             fmt::format("{:.2f}", p.distinct_experts / as_double(kGpus)),
             fmt::format("{:.2f}", 1e-9 * p.hbm_bytes), fmt::format("{:.3f}", p.imbalance),
             ms(1e6 * p.tpot_s), fmt::format("{:.3f}", p.tpot_s / own.tpot_s), percent(p.routed),
             percent(p.exchange), percent(p.dense)});
      }
      return std::pair{points.front(), points.back()};
    };
    const auto shared = add("shared experts", kSharedShapes);
    const auto grain = add("granularity", kGrainShapes);
    t.notes.push_back(fmt::format(
        "batch {}: k + shared from {}; E from {}", batch,
        reading(name_of(kSharedShapes.front()), name_of(kSharedShapes.back()), shared.first,
                shared.second),
        reading(fmt::to_string(kGrainShapes.front().experts),
                fmt::to_string(kGrainShapes.back().experts), grain.first, grain.second)));
  }
  t.notes.emplace_back(
      "shared experts: k + shared = 8 of width 1408; granularity: E x width and k x width "
      "constant, "
      "2 shared of 1408. Expert FLOPs: routed and shared, 26 MoE layers; all FLOPs: equal but for "
      "the router's E columns. Every GPU has the shared experts whole and E/8 of the routed");
  t.notes.emplace_back(
      "sent: dispatch and combine in BF16, one copy per GPU a token goes to; distinct experts: "
      "with at least one token, mean over layers and steps; shared experts run on the token's own "
      "GPU beside dispatch, and what outlasts it is in dense, with the dense first layer; "
      "imbalance: max/mean over GPUs of assignments");
  t.notes.emplace_back(
      "routing drawn, lognormal with sigma 0.9 for every shape, seed 1; host 500 us a step and 10 "
      "us a sequence, assumed; not modelled: quality, which the shapes do not share");
  return t;
}

std::vector<Table> make_top_k(const TableContext& context) {
  ShortRuns runs(context);
  return {top_k_table(runs)};
}

}  // namespace switchyard::tables
