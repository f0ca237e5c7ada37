// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/long_context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/model/dtype.hpp"
#include "engine/model/tokenizer.hpp"
#include "experiments/cli/prompts.hpp"

namespace switchyard::tables {
namespace {

constexpr std::size_t kTrained = 256;  // tokens of a training sequence (experiments/training)
constexpr std::size_t kChunk = 256;    // of prefill: bounds the logits held at once
constexpr double kNear = 0.1;

using Vector = std::vector<double>;

Vector mean_of(const TailRun& run, std::size_t width) {
  Vector mean(width, 0.0);
  for (std::size_t r = 0; r < run.rows; ++r) {
    for (std::size_t i = 0; i < width; ++i) {
      mean[i] += static_cast<double>(run.states[r * width + i]);
    }
  }
  for (double& v : mean) {
    v /= static_cast<double>(run.rows);
  }
  return mean;
}

/// [H][H], population.
Vector covariance_of(const TailRun& run, const Vector& mean) {
  const std::size_t width = mean.size();
  Vector c(width * width, 0.0);
  Vector d(width);
  for (std::size_t r = 0; r < run.rows; ++r) {
    for (std::size_t i = 0; i < width; ++i) {
      d[i] = static_cast<double>(run.states[r * width + i]) - mean[i];
    }
    for (std::size_t i = 0; i < width; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        c[i * width + j] += d[i] * d[j];
      }
    }
  }
  for (std::size_t i = 0; i < width; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      c[i * width + j] /= static_cast<double>(run.rows);
      c[j * width + i] = c[i * width + j];
    }
  }
  return c;
}

double trace_of(const Vector& c, std::size_t width) {
  double sum = 0;
  for (std::size_t i = 0; i < width; ++i) {
    sum += c[i * width + i];
  }
  return sum;
}

double dimensions_of(const Vector& c, std::size_t width) {
  double squares = 0;
  for (const double v : c) {
    squares += v * v;
  }
  const double trace = trace_of(c, width);
  return squares > 0 ? trace * trace / squares : 0;
}

/// Unit vector of the largest eigenvalue, 500 steps of the
/// power method from the column of the largest variance.
Vector principal_axis(const Vector& c, std::size_t width) {
  std::size_t start = 0;
  for (std::size_t i = 1; i < width; ++i) {
    start = c[i * width + i] > c[start * width + start] ? i : start;
  }
  Vector v(c.begin() + static_cast<std::ptrdiff_t>(start * width),
           c.begin() + static_cast<std::ptrdiff_t>((start + 1) * width));
  Vector next(width);
  for (int step = 0; step < 500; ++step) {
    double norm = 0;
    for (std::size_t i = 0; i < width; ++i) {
      next[i] = std::inner_product(v.begin(), v.end(),
                                   c.begin() + static_cast<std::ptrdiff_t>(i * width), 0.0);
      norm += next[i] * next[i];
    }
    norm = std::sqrt(norm);
    if (norm == 0) {
      return Vector(width, 0.0);
    }
    for (std::size_t i = 0; i < width; ++i) {
      v[i] = next[i] / norm;
    }
  }
  return v;
}

/// Coordinates on the axis, ascending.
Vector projected(const TailRun& run, const Vector& mean, const Vector& axis, double unit) {
  const std::size_t width = mean.size();
  Vector out(run.rows, 0.0);
  for (std::size_t r = 0; r < run.rows; ++r) {
    for (std::size_t i = 0; i < width; ++i) {
      out[r] += (static_cast<double>(run.states[r * width + i]) - mean[i]) * axis[i] / unit;
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Nearest rank.
double quantile(const Vector& sorted, double q) {
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[std::min(sorted.size(), std::max<std::size_t>(rank, 1)) - 1];
}

void routing_of(const TailRun& run, std::uint32_t experts, std::uint32_t top_k, Spread& out) {
  for (const auto& layer : run.chosen) {
    std::vector<std::uint64_t> top(experts, 0);
    std::vector<double> load(experts, 0.0);
    for (std::size_t i = 0; i < layer.size(); ++i) {
      load[layer[i]] += 1;
      top[layer[i]] += i % top_k == 0 ? 1U : 0U;
    }
    const double mean = static_cast<double>(layer.size()) / experts;
    double squares = 0;
    for (const double n : load) {
      squares += (n - mean) * (n - mean);
    }
    const auto layers = static_cast<double>(run.chosen.size());
    out.load_cv += std::sqrt(squares / experts) / mean / layers;
    out.top1_share += static_cast<double>(*std::max_element(top.begin(), top.end())) /
                      static_cast<double>(run.rows) / layers;
  }
}

double near_median(const Vector& sorted) {
  const double median = quantile(sorted, 0.5);
  const auto near = std::count_if(sorted.begin(), sorted.end(),
                                  [&](double u) { return std::abs(u - median) <= kNear; });
  return static_cast<double>(near) / static_cast<double>(sorted.size());
}

double cross_entropy(std::span<const float> logits, std::uint32_t next) {
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float z : logits) {
    sum += std::exp(static_cast<double>(z) - top);
  }
  return top + std::log(sum) - static_cast<double>(logits[next]);
}

}  // namespace

TailRun run_tail(const Engine& engine, std::span<const std::uint32_t> tokens, std::size_t span,
                 std::size_t tail) {
  SWITCHYARD_ASSERT(tail >= 2 && tail <= tokens.size() && span >= 2,
                    fmt::format("{} of {} tokens, sequences of {}", tail, tokens.size(), span));
  const std::size_t h = engine.config().hidden_size;
  const std::size_t layers = engine.config().num_moe_layers();
  const std::size_t k = engine.gate().top_k;
  TailRun out;
  out.chosen.resize(layers);
  std::size_t predicted = 0;
  SessionOptions options;
  options.all_logits = true;
  options.router_input = true;
  Session session(engine, options);
  for (std::size_t begin = 0; begin < tokens.size(); begin += span) {
    const auto sequence = tokens.subspan(begin, std::min(span, tokens.size() - begin));
    const std::uint32_t s = session.add_sequence();
    for (std::size_t at = 0; at < sequence.size(); at += kChunk) {
      const auto part = sequence.subspan(at, std::min(kChunk, sequence.size() - at));
      const SequenceTokens work{s, part};
      const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (begin + at + i + tail < tokens.size()) {
          continue;
        }
        ++out.rows;
        for (std::size_t l = 0; l < layers; ++l) {
          const auto& chosen = r.layers[l].decision.chosen;
          out.chosen[l].insert(out.chosen[l].end(),
                               chosen.begin() + static_cast<std::ptrdiff_t>(i * k),
                               chosen.begin() + static_cast<std::ptrdiff_t>((i + 1) * k));
        }
        const std::size_t row = ((layers - 1) * part.size() + i) * h;
        for (std::size_t j = 0; j < h; ++j) {
          out.states.push_back(model::bf16_to_float(r.router_input[row + j]));
        }
        if (at + i + 1 < sequence.size()) {
          out.loss += cross_entropy(r.logits_of(i), sequence[at + i + 1]);
          ++predicted;
        }
      }
    }
    session.end_sequence(s);
  }
  out.loss /= static_cast<double>(predicted);
  return out;
}

TailComparison compare(const TailRun& tail, const TailRun& fresh, std::uint32_t experts,
                       std::uint32_t top_k) {
  SWITCHYARD_ASSERT(tail.rows == fresh.rows && tail.rows >= 2 &&
                        tail.states.size() == fresh.states.size() &&
                        tail.chosen.size() == fresh.chosen.size() && !tail.chosen.empty(),
                    fmt::format("{} and {} rows", tail.rows, fresh.rows));
  TailComparison out;
  out.loss = tail.loss;
  out.fresh_loss = fresh.loss;
  routing_of(tail, experts, top_k, out.tail);
  routing_of(fresh, experts, top_k, out.fresh);
  for (std::size_t l = 0; l < tail.chosen.size(); ++l) {
    std::size_t same = 0;
    for (std::size_t i = 0; i < tail.chosen[l].size(); i += top_k) {
      same += tail.chosen[l][i] == fresh.chosen[l][i] ? 1U : 0U;
    }
    out.kept += static_cast<double>(same) / static_cast<double>(tail.rows) /
                static_cast<double>(tail.chosen.size());
  }
  const std::size_t width = tail.states.size() / tail.rows;
  const Vector centre = mean_of(fresh, width);
  const Vector spread = covariance_of(fresh, centre);
  const Vector axis = principal_axis(spread, width);
  double variance = 0;
  for (std::size_t i = 0; i < width; ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      variance += axis[i] * spread[i * width + j] * axis[j];
    }
  }
  const Vector moved = mean_of(tail, width);
  double distance = 0;
  for (std::size_t i = 0; i < width; ++i) {
    distance += (moved[i] - centre[i]) * (moved[i] - centre[i]);
  }
  const double size = trace_of(spread, width);
  out.moved = size > 0 ? std::sqrt(distance / size) : 0;
  const double unit = variance > 0 ? std::sqrt(variance) : 1;
  for (auto [run, mean, to] :
       {std::tuple{&tail, &moved, &out.tail}, std::tuple{&fresh, &centre, &out.fresh}}) {
    const Vector u = projected(*run, centre, axis, unit);
    to->span = quantile(u, 0.95) - quantile(u, 0.05);
    to->within = near_median(u);
    to->dimensions = dimensions_of(covariance_of(*run, *mean), width);
  }
  return out;
}

std::vector<Table> make_long_context(const TableContext& context) {
  struct Subject {
    const char *folder, *positions;
  };
  constexpr std::array kSubjects{Subject{"lab-absolute", "absolute"},
                                 Subject{"lab-aux-0.01", "rope"}, Subject{"lab-alibi", "alibi"}};
  const std::vector<std::size_t> lengths =
      context.quick ? std::vector<std::size_t>{768} : std::vector<std::size_t>{1280, 2048, 4096};
  const std::size_t tail = context.quick ? 256 : 1000;

  Table t;
  t.name = "long-context";
  t.title = "the last tokens of a long context against the same tokens in contexts of 256";
  t.columns = {"positions",      "context",   "loss",       "loss fresh", "top-1 share",
               "fresh",          "load_cv",   "fresh",      "top-1 kept", "PCA1 span",
               "within 0.1 [%]", "fresh [%]", "dimensions", "fresh",      "moved"};
  claims::Measurements measured;
  for (const Subject& subject : kSubjects) {
    const auto folder = context.scenarios / "checkpoints" / subject.folder;
    const Engine engine = Engine::load(folder, {context.threads});
    const model::Tokenizer tokenizer = model::Tokenizer::load(folder);
    std::vector<std::uint32_t> text;
    for (const auto& p : cli::read_prompts(context.scenarios / "prompts" / "mixed.jsonl")) {
      const auto ids = tokenizer.encode(p.text);
      text.insert(text.end(), ids.begin(), ids.end());
      text.push_back(engine.config().eos_tokens.empty() ? 0 : engine.config().eos_tokens.front());
    }
    if (text.size() < lengths.back()) {
      throw InputError("prompts/mixed.jsonl", fmt::format("has {} tokens; the table needs {}",
                                                          text.size(), lengths.back()));
    }
    text.resize(lengths.back());
    const auto all = std::span<const std::uint32_t>(text);
    const TailRun fresh = run_tail(engine, all.last(tail), kTrained, tail);
    for (const std::size_t length : lengths) {
      TailComparison c = compare(run_tail(engine, all.last(length), length, tail), fresh,
                                 engine.gate().experts, engine.gate().top_k);
      c.length = length;
      t.rows.push_back(
          {subject.positions, fmt::to_string(length), fmt::format("{:.3f}", c.loss),
           fmt::format("{:.3f}", c.fresh_loss), fmt::format("{:.3f}", c.tail.top1_share),
           fmt::format("{:.3f}", c.fresh.top1_share), fmt::format("{:.3f}", c.tail.load_cv),
           fmt::format("{:.3f}", c.fresh.load_cv), fmt::format("{:.3f}", c.kept),
           fmt::format("{:.3f}", c.tail.span / c.fresh.span),
           fmt::format("{:.1f}", 100 * c.tail.within), fmt::format("{:.1f}", 100 * c.fresh.within),
           fmt::format("{:.1f}", c.tail.dimensions), fmt::format("{:.1f}", c.fresh.dimensions),
           fmt::format("{:.3f}", c.moved)});
      if (std::string_view(subject.positions) == "rope" && length == lengths.back()) {
        measured.add("within_tail", 100 * c.tail.within,
                     fmt::format("{}, last {} of {} tokens", subject.folder, tail, length));
      }
    }
  }
  t.notes = {
      fmt::format("lab checkpoints, trained on sequences of {} tokens; the tail is the last {} "
                  "tokens of the prompts in mixed.jsonl, the same for every context",
                  kTrained, tail),
      "loss in nats per token; top-1 share and load_cv: mean over layers; kept: top-1 equal to "
      "that "
      "of the fresh run",
      "PCA1: first axis of the fresh rows' router input in the last layer, in their standard "
      "deviations; span: 5th to 95th percentile, against fresh; within 0.1 of the median",
      "dimensions: participation ratio of the covariance; moved: distance of the means / root of "
      "the fresh rows' total variance"};
  const auto heads = static_cast<double>(
      model::read_model_config(context.scenarios / "models" / "gpt4_s0.json").num_heads);
  measured.add("alibi_slopes", heads * 4 / 1e6, fmt::format("{} heads x 4 B", heads));
  measured.add("alibi_bias", 32768.0 * 32768.0 * 2 / 1e6, "32768 x 32768 x 2 B");
  const auto judged = claims::judge(claims::claims_of("long-context"), measured);
  return {std::move(t), claims_table("long-context", judged),
          verdicts_table("long-context", judged)};
}

}  // namespace switchyard::tables
