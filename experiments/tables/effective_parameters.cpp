// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/effective_parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/perplexity.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::tables {
namespace {

constexpr std::array<double, 15> kKept{1.0, 0.99, 0.98, 0.95, 0.9, 0.8,  0.7, 0.6,
                                       0.5, 0.4,  0.3,  0.2,  0.1, 0.05, 0.01};
constexpr std::array<double, 3> kQuickKept{1.0, 0.9, 0.1};
constexpr std::uint32_t kSeeds = 3;
constexpr std::size_t kTexts = 64, kQuickTexts = 8;
constexpr double kMostRise = 0.05;

/// The weights of an engine with a random part of the expert matrices zero; owns the copies.
class Masked {
 public:
  explicit Masked(const ModelWeights& weights, std::uint64_t seed) : weights_(weights) {
    for (std::size_t l = 0; l < weights_.layers.size(); ++l) {
      auto& experts = weights_.layers[l].experts;
      for (std::size_t e = 0; e < experts.size(); ++e) {
        std::uint32_t matrix = 0;
        for (WeightView* view : {&experts[e].gate, &experts[e].up, &experts[e].down}) {
          add(*view, seed, l, e, matrix++);
        }
      }
    }
  }

  /// Zero where u >= kept. Pass descending shares: what was zeroed stays so.
  const ModelWeights& keep(double kept) {
    for (Part& part : parts_) {
      const std::size_t size = weight_bytes(part.type);
      for (std::size_t i = 0; i < part.draw.size(); ++i) {
        if (static_cast<double>(part.draw[i]) >= kept) {
          std::memset(part.bytes.data() + i * size, 0, size);
        }
      }
    }
    return weights_;
  }

 private:
  struct Part {
    WeightType type;
    std::vector<std::byte> bytes;
    std::vector<float> draw;  // u of each weight
  };

  void add(WeightView& view, std::uint64_t seed, std::size_t l, std::size_t e,
           std::uint32_t matrix) {
    if (is_packed(view)) {
      throw InputError("effective-parameters", "unsupported: packed expert weights",
                       "use a checkpoint in BF16, F16 or F32");
    }
    const std::size_t n = view.rows * view.cols;
    Part part{view.type, std::vector<std::byte>(n * weight_bytes(view.type)),
              std::vector<float>(n)};
    std::memcpy(part.bytes.data(), view.data, part.bytes.size());
    // Four draws of 32 bits a call; 24 of them make a float exactly.
    for (std::size_t i = 0; i < n; i += 4) {
      const auto draws = philox(seed, random_purpose("expert mask"),
                                {static_cast<std::uint32_t>(i / 4), static_cast<std::uint32_t>(l),
                                 matrix, static_cast<std::uint32_t>(e)});
      for (std::size_t k = 0; k < 4 && i + k < n; ++k) {
        part.draw[i + k] = static_cast<float>(draws[k] >> 8U) * 0x1p-24F;
      }
    }
    parts_.push_back(std::move(part));
    view.data = parts_.back().bytes.data();  // a vector's memory stays when the list grows
  }

  ModelWeights weights_;
  std::vector<Part> parts_;
};

}  // namespace

double MaskRow::median() const {
  std::vector<double> sorted = perplexity;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

MaskRun run_masks(const Engine& engine, std::span<const std::vector<std::uint32_t>> texts,
                  std::span<const double> kept, std::uint32_t seeds, unsigned threads) {
  SWITCHYARD_ASSERT(seeds >= 1 && !kept.empty() && kept.front() == 1.0, "kept shares");
  MaskRun run;
  run.subject = engine.config().name;
  if (engine.checkpoint() != nullptr) {
    run.subject += fmt::format(", weights {}", engine.checkpoint()->weight_hash().hex());
  }
  run.texts = texts.size();
  for (const auto& text : texts) {
    run.tokens += text.size() - 1;
  }
  for (const double share : kept) {
    run.rows.push_back({share, {}});
  }
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Masked masked(engine.weights(), seed);
    for (MaskRow& row : run.rows) {
      const Engine part(engine.config(), masked.keep(row.kept), make_cpu_backend(threads));
      row.perplexity.push_back(perplexity(score_texts(part, texts)).value_or(std::nan("")));
    }
  }
  return run;
}

double effective_share(const MaskRun& run) {
  double share = 1.0;
  for (const MaskRow& row : run.rows) {
    if (!(row.median() < run.rows.front().median() * (1 + kMostRise))) {
      break;
    }
    share = row.kept;
  }
  return share;
}

claims::Measurements measure_effective_parameters(const MaskRun& run) {
  claims::Measurements out;
  out.add("effective share", 100.0 * effective_share(run),
          "smallest kept share with < 5 % more perplexity, random masks");
  for (const MaskRow& row : run.rows) {
    if (row.kept == 0.1) {
      out.add("perplexity rise at 90 %", 100.0 * (row.median() / run.rows.front().median() - 1.0),
              "median over seeds against no mask");
    }
  }
  out.add("30 % of 36 B", 0.3 * 36, "0.3 x 36");
  out.add("left of 36 B after masking 90 %", 0.1 * 36, "0.1 x 36");
  return out;
}

std::vector<Table> effective_parameters_tables(const MaskRun& run,
                                               const std::vector<claims::Claim>& claims) {
  Table t;
  t.name = "effective-parameters";
  t.title = "perplexity with a random part of every expert's weights set to zero";
  t.columns = {"masked [%]", "kept [%]"};
  for (std::size_t s = 0; s < run.rows.front().perplexity.size(); ++s) {
    t.columns.push_back(fmt::format("perplexity, seed {}", s + 1));
  }
  t.columns.emplace_back("median");
  t.columns.emplace_back("rise [%]");
  const double base = run.rows.front().median();
  for (const MaskRow& row : run.rows) {
    std::vector<std::string> cells{show(100.0 - 100.0 * row.kept), show(100.0 * row.kept)};
    for (const double p : row.perplexity) {
      cells.push_back(fmt::format("{:.3f}", p));
    }
    cells.push_back(fmt::format("{:.3f}", row.median()));
    cells.push_back(fmt::format("{:.2f}", 100.0 * (row.median() / base - 1.0)));
    t.rows.push_back(std::move(cells));
  }
  t.notes.push_back(
      fmt::format("{}; {} texts of prompts/mixed.jsonl, {} tokens scored; engine in "
                  "closed loop",
                  run.subject, run.texts, run.tokens));
  t.notes.push_back(fmt::format("effective share of the expert weights, of the shares tried: {} %",
                                show(100.0 * effective_share(run))));
  t.notes.emplace_back(
      "masks are random, not chosen; a trained model of this size has little to spare: a large one "
      "may keep less");
  const auto judged = claims::judge(claims, measure_effective_parameters(run));
  return {std::move(t), claims_table("effective-parameters", judged),
          verdicts_table("effective-parameters", judged)};
}

std::vector<Table> make_effective_parameters(const TableContext& context) {
  const auto folder = context.scenarios / "checkpoints" / "sy-16x2";
  const Engine engine = Engine::load(folder, {.threads = context.threads});
  const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
  const auto prompts = cli::read_prompts(context.scenarios / "prompts" / "mixed.jsonl");
  const std::size_t wanted = context.quick ? kQuickTexts : kTexts;
  if (prompts.size() < wanted) {
    throw InputError("prompts/mixed.jsonl",
                     fmt::format("has {} prompts; the table needs {}", prompts.size(), wanted));
  }
  std::vector<std::vector<std::uint32_t>> texts;
  for (std::size_t i = 0; i < wanted; ++i) {
    texts.push_back(tokenizer.encode(prompts[i].text));
  }
  const std::span<const double> kept =
      context.quick ? std::span<const double>(kQuickKept) : std::span<const double>(kKept);
  auto tables = effective_parameters_tables(
      run_masks(engine, texts, kept, context.quick ? 1 : kSeeds, context.threads),
      claims::claims_of("effective-parameters"));
  if (context.quick) {
    tables.front().notes.emplace_back("quick: fewer texts, shares and seeds");
  }
  return tables;
}

}  // namespace switchyard::tables
