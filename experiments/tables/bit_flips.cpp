// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/bit_flips.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/health.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::tables {
namespace {

constexpr unsigned kBits = 16;
constexpr std::uint32_t kDraws = 200;
constexpr std::uint32_t kRuns = 40;
constexpr std::uint32_t kQuickDraws = 40;
constexpr std::uint32_t kQuickRuns = 4;
constexpr std::size_t kTokens = 32;
constexpr double kNormTolerance = HealthOptions{}.norm_tolerance;

double median(std::vector<double> values) {
  if (values.empty()) {
    return NAN;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What the model computes over the tokens.
struct Output {
  std::vector<float> logits;
  std::vector<std::uint16_t> chosen;  // [layer][row][k], each sorted
  std::vector<std::size_t> best;      // [row]
};

Output run(const Engine& engine, std::span<const std::uint32_t> tokens) {
  Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
  const SequenceTokens work{session.add_sequence(), tokens};
  const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
  Output out;
  out.logits = r.logits;
  const std::size_t k = engine.gate().top_k;
  for (const LayerRouting& layer : r.layers) {
    const Candidates& c = layer.candidates;
    for (std::size_t t = 0; t < r.tokens(); ++t) {
      const auto first = c.ids.begin() + static_cast<std::ptrdiff_t>(t * c.width);
      out.chosen.insert(out.chosen.end(), first, first + static_cast<std::ptrdiff_t>(k));
      std::sort(out.chosen.end() - static_cast<std::ptrdiff_t>(k), out.chosen.end());
    }
  }
  for (std::size_t t = 0; t < r.tokens(); ++t) {
    const auto row = r.logits_of(t);
    out.best.push_back(
        static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  return out;
}

double largest_change(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(worst, d);
  }
  return worst;
}

std::string share(std::uint32_t part, std::uint32_t of) {
  return fmt::format("{:.1f}", 100.0 * part / of);
}

std::string field_of(const FlipRow& row) {
  const unsigned fraction = row.dtype == "bf16" ? 7 : 10;
  if (row.bit == 15) {
    return "sign";
  }
  return row.bit >= fraction ? fmt::format("exponent {}", row.bit - fraction)
                             : fmt::format("fraction {}", row.bit);
}

}  // namespace

std::vector<FlipRow> flip_bits(Engine& engine, const std::string& dtype,
                               std::span<const std::uint32_t> tokens, std::uint32_t draws,
                               std::uint32_t runs) {
  std::vector<WeightView*> experts;
  for_each_named_view(engine.weights_for_repair(), engine.config().tie_word_embeddings,
                      [&](const std::string& name, WeightView& view) {
                        if (name.find(".experts.") != std::string::npos) {
                          SWITCHYARD_ASSERT(flippable_bits(view) == kBits, name);
                          experts.push_back(&view);
                        }
                      });
  SWITCHYARD_ASSERT(!experts.empty(), "a model with routed experts");
  const Output sound = run(engine, tokens);
  std::vector<FlipRow> out;
  for (unsigned bit = kBits; bit-- > 0;) {
    FlipRow row{dtype, bit, draws};
    for (std::uint32_t i = 0; i < draws; ++i) {
      const auto random = [&](std::uint32_t what, std::size_t below) {
        return random_u64(1, random_purpose("bit flip"), {bit, what, i, 0}) % below;
      };
      WeightView& view = *experts[random(0, experts.size())];
      const WeightView before = view;
      const auto damaged = flip_bit(view, random(1, view.rows * view.cols), bit);
      const WeightState was = state_of(before);
      const WeightState now = state_of(view);
      const double change =
          now.finite ? std::abs(now.norm / was.norm - 1) : std::numeric_limits<double>::infinity();
      row.norm_change.push_back(change);
      row.not_finite += now.finite ? 0 : 1;
      row.by_norm += now.finite && change > kNormTolerance ? 1 : 0;
      row.by_crc += now.crc != was.crc ? 1 : 0;
      if (i < runs) {
        const Output harmed = run(engine, tokens);
        ++row.runs;
        row.logit_change.push_back(largest_change(sound.logits, harmed.logits));
        row.rerouted += sound.chosen != harmed.chosen ? 1 : 0;
        row.other_token += sound.best != harmed.best ? 1 : 0;
      }
      view = before;
    }
    out.push_back(std::move(row));
  }
  return out;
}

claims::Measurements measure_bit_flips(const std::vector<FlipRow>& rows) {
  claims::Measurements out;
  std::vector<std::string> dtypes;
  for (const FlipRow& row : rows) {
    if (std::find(dtypes.begin(), dtypes.end(), row.dtype) == dtypes.end()) {
      dtypes.push_back(row.dtype);
    }
  }
  for (const std::string& dtype : dtypes) {
    std::uint32_t draws = 0;
    std::uint32_t norm = 0;
    std::uint32_t crc = 0;
    std::vector<double> change;
    for (const FlipRow& row : rows) {
      if (row.dtype == dtype) {
        draws += row.draws;
        norm += row.by_norm;
        crc += row.by_crc;
        change.insert(change.end(), row.norm_change.begin(), row.norm_change.end());
      }
    }
    const std::string how = fmt::format("{} draws over 16 bit positions", draws);
    out.add("norm." + dtype, 100.0 * norm / draws, how);
    out.add("norm_change." + dtype, 100 * median(change), how);
    out.add("crc." + dtype, 100.0 * crc / draws, how);
  }
  return out;
}

std::vector<Table> bit_flip_tables(const std::vector<FlipRow>& rows,
                                   const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "bit-flips";
  t.title = "one flipped bit of an expert weight: who notices, and what it does";
  t.columns = {"stored as",
               "bit",
               "field",
               "draws",
               "norm > 5 % off [%]",
               "NaN or infinite [%]",
               "CRC-32C [%]",
               "norm change, median [%]",
               "runs",
               "logit change, median",
               "logit change, largest",
               "experts changed [%]",
               "best token changed [%]"};
  for (const FlipRow& r : rows) {
    const double worst = r.logit_change.empty()
                             ? NAN
                             : *std::max_element(r.logit_change.begin(), r.logit_change.end());
    t.rows.push_back({r.dtype, fmt::to_string(r.bit), field_of(r), fmt::to_string(r.draws),
                      share(r.by_norm, r.draws), share(r.not_finite, r.draws),
                      share(r.by_crc, r.draws), fmt::format("{:.3g}", 100 * median(r.norm_change)),
                      fmt::to_string(r.runs), fmt::format("{:.3g}", median(r.logit_change)),
                      fmt::format("{:.3g}", worst), share(r.rerouted, r.runs),
                      share(r.other_token, r.runs)});
  }
  t.notes.emplace_back(
      "a tensor of norm n hides a weight w that becomes w' from a 5 % check while |w'^2 - w^2| < "
      "0.1025 n^2 (growing): only a weight beyond about a third of the whole norm is seen");
  t.notes.emplace_back(
      "a flip acts only where the expert is chosen; its tensor and value are drawn evenly; logit "
      "change over all positions of the text, inf: NaN or infinite logits");
  const auto judged = claims::judge(claims, measure_bit_flips(rows));
  return {std::move(t), claims_table("bit-flips", judged), verdicts_table("bit-flips", judged)};
}

std::vector<Table> make_bit_flips(const TableContext& context) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
  const auto prompts = cli::read_prompts(context.scenarios / "prompts" / "mixed.jsonl");
  std::vector<std::uint32_t> tokens = tokenizer.encode(prompts.front().text);
  tokens.resize(std::min(tokens.size(), kTokens));
  std::vector<FlipRow> rows;
  for (const char* dtype : {"bf16", "fp16"}) {
    Engine engine = Engine::load(
        folder, {.threads = context.threads,
                 .quantise = parse_quantise(fmt::format("experts={}", dtype), "table")});
    auto part = flip_bits(engine, dtype, tokens, context.quick ? kQuickDraws : kDraws,
                          context.quick ? kQuickRuns : kRuns);
    rows.insert(rows.end(), part.begin(), part.end());
  }
  auto tables = bit_flip_tables(rows, claims::claims_of("bit-flips"));
  if (context.quick) {
    tables.front().notes.emplace_back("quick: fewer draws and runs");
  }
  return tables;
}

}  // namespace switchyard::tables
