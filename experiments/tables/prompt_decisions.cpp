// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/prompt_decisions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/model/dtype.hpp"

namespace switchyard::tables {
namespace {

constexpr std::size_t kBatch = 16;
constexpr std::uint32_t kNoise = random_purpose("noise on a router's input (tables)");

double floor_of(const RouterShape& s, double window) {
  const double share = static_cast<double>(s.top_k) / static_cast<double>(s.experts);
  return std::sqrt((1 - share) / (window * share));
}

double cv_of(std::span<const std::uint64_t> load) {
  double sum = 0;
  for (const std::uint64_t n : load) {
    sum += static_cast<double>(n);
  }
  const double mean = sum / static_cast<double>(load.size());
  double squares = 0;
  for (const std::uint64_t n : load) {
    squares += (static_cast<double>(n) - mean) * (static_cast<double>(n) - mean);
  }
  return std::sqrt(squares / static_cast<double>(load.size())) / mean;
}

double largest_of(std::span<const std::uint64_t> counts, double of) {
  return static_cast<double>(*std::max_element(counts.begin(), counts.end())) / of;
}

double entropy_of(std::span<const double> p) {
  double bits = 0;
  for (const double v : p) {
    bits -= v > 0 ? v * std::log2(v) : 0;
  }
  return bits;
}

/// Choices per expert in a layer, added to `load`.
void count_choices(const PromptDecisions& p, const RouterShape& s, std::size_t layer,
                   std::span<std::uint64_t> load) {
  for (std::size_t t = 0; t < p.tokens; ++t) {
    for (const std::uint16_t e : best_experts(p.row(s, layer, t), s.top_k)) {
      ++load[e];
    }
  }
}

double rms(std::span<const float> x) {
  double squares = 0;
  for (const float v : x) {
    squares += static_cast<double>(v) * v;
  }
  return std::sqrt(squares / static_cast<double>(x.size()));
}

void normalise(std::span<float> x) {
  double mean = 0;
  for (const float v : x) {
    mean += v;
  }
  mean /= static_cast<double>(x.size());
  double variance = 0;
  for (const float v : x) {
    variance += (v - mean) * (v - mean);
  }
  variance /= static_cast<double>(x.size());
  const double scale = 1 / std::sqrt(variance + 1e-5);
  for (float& v : x) {
    v = static_cast<float>((v - mean) * scale);
  }
}

/// Numbers of the MoE layers in the model, ascending.
std::vector<std::size_t> moe_layers(const Engine& engine) {
  std::vector<std::size_t> out;
  for (std::size_t l = 0; l < engine.weights().layers.size(); ++l) {
    if (engine.weights().layers[l].router.data != nullptr) {
      out.push_back(l);
    }
  }
  return out;
}

/// Logits [T, E] of one layer for inputs [T, H] under `view`.
std::vector<float> logits_of(const Engine& engine, std::size_t layer, std::vector<float> input,
                             const RouterView& view) {
  const LayerWeights& w = engine.weights().layers[layer];
  const std::size_t h = w.router.cols;
  const std::size_t rows = input.size() / h;
  if (view.layer_norm) {
    for (std::size_t t = 0; t < rows; ++t) {
      normalise(std::span(input).subspan(t * h, h));
    }
  }
  std::vector<float> out(rows * w.router.rows);
  engine.backend().linear(input.data(), rows, w.router, out.data());
  for (float& z : out) {
    z = static_cast<float>(z * view.weights);
  }
  return out;
}

}  // namespace

RouterShape router_shape(const Engine& engine) {
  const GateSpec& gate = engine.gate();
  SWITCHYARD_ASSERT(!gate.grouped() && gate.experts > 0, "a gate without groups");
  for (const LayerWeights& layer : engine.weights().layers) {
    SWITCHYARD_ASSERT(layer.selection_bias.data == nullptr && layer.router_bias.data == nullptr,
                      "a gate without bias");
  }
  return {engine.config().num_moe_layers(), gate.experts, gate.top_k, engine.config().hidden_size};
}

std::vector<PromptDecisions> decide_prompts(const Engine& engine, const model::Tokenizer& tokenizer,
                                            std::span<const cli::PromptText> prompts,
                                            bool with_input) {
  std::vector<std::vector<std::uint32_t>> tokens;
  for (const cli::PromptText& p : prompts) {
    tokens.push_back(tokenizer.encode(p.text));
  }
  auto out = decide_tokens(engine, tokens, with_input);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    out[i].name = prompts[i].name;
    out[i].domain = prompts[i].domain;
  }
  return out;
}

std::vector<PromptDecisions> decide_tokens(const Engine& engine,
                                           std::span<const std::vector<std::uint32_t>> prompts,
                                           bool with_input) {
  const RouterShape s = router_shape(engine);
  std::vector<PromptDecisions> out(prompts.size());
  for (std::size_t begin = 0; begin < prompts.size(); begin += kBatch) {
    const std::size_t end = std::min(prompts.size(), begin + kBatch);
    Session session(engine, {.policy = {}, .seed = 1, .router_input = with_input});
    std::vector<SequenceTokens> work;
    for (std::size_t i = begin; i < end; ++i) {
      if (prompts[i].empty()) {
        throw InputError(fmt::format("prompt {}", i), "has no token");
      }
      work.push_back({session.add_sequence(), prompts[i]});
    }
    const StepResult& r = session.step(work, Phase::kPrefill);
    std::size_t at = 0;
    for (std::size_t i = begin; i < end; ++i) {
      PromptDecisions& p = out[i];
      p.tokens = prompts[i].size();
      for (std::size_t l = 0; l < s.layers; ++l) {
        const auto from = static_cast<std::ptrdiff_t>((l * r.tokens() + at) * s.experts);
        p.logits.insert(
            p.logits.end(), r.router_logits.begin() + from,
            r.router_logits.begin() + from + static_cast<std::ptrdiff_t>(p.tokens * s.experts));
        if (with_input) {
          const std::size_t first = (l * r.tokens() + at) * s.hidden;
          for (std::size_t n = 0; n < p.tokens * s.hidden; ++n) {
            p.input.push_back(model::bf16_to_float(r.router_input[first + n]));
          }
        }
      }
      at += p.tokens;
    }
  }
  return out;
}

std::vector<std::uint16_t> best_experts(std::span<const float> logits, std::size_t k) {
  SWITCHYARD_ASSERT(k <= logits.size(), "no more experts than there are");
  std::vector<std::uint16_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), std::uint16_t{0});
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(),
                    [&](std::uint16_t a, std::uint16_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  ids.resize(k);
  return ids;
}

std::vector<double> probabilities(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(logits.size());
  double sum = 0;
  for (std::size_t e = 0; e < p.size(); ++e) {
    p[e] = std::exp(static_cast<double>(logits[e]) - top);
    sum += p[e];
  }
  for (double& v : p) {
    v /= sum;
  }
  return p;
}

std::vector<double> mean_probability(const PromptDecisions& p, const RouterShape& s,
                                     std::size_t layer) {
  std::vector<double> mean(s.experts, 0.0);
  for (std::size_t t = 0; t < p.tokens; ++t) {
    const auto row = probabilities(p.row(s, layer, t));
    for (std::size_t e = 0; e < s.experts; ++e) {
      mean[e] += row[e] / static_cast<double>(p.tokens);
    }
  }
  return mean;
}

std::uint16_t top_expert(const PromptDecisions& p, const RouterShape& s, std::size_t layer) {
  const auto mean = mean_probability(p, s, layer);
  return static_cast<std::uint16_t>(std::max_element(mean.begin(), mean.end()) - mean.begin());
}

GateStatistics gate_statistics(std::span<const PromptDecisions> prompts, const RouterShape& s,
                               bool last_only) {
  GateStatistics out;
  double rows = 0;
  for (const PromptDecisions& p : prompts) {
    const std::size_t first = last_only ? p.tokens - 1 : 0;
    out.tokens += p.tokens - first;
    for (std::size_t l = 0; l < s.layers; ++l) {
      for (std::size_t t = first; t < p.tokens; ++t) {
        const auto z = p.row(s, l, t);
        double mean = 0;
        double squares = 0;
        for (const float v : z) {
          mean += v / static_cast<double>(s.experts);
        }
        for (const float v : z) {
          squares += (v - mean) * (v - mean) / static_cast<double>(s.experts);
        }
        out.logit_variance += squares;
        auto q = probabilities(z);
        out.entropy += entropy_of(q);
        std::sort(q.begin(), q.end(), std::greater<>());
        for (std::size_t n = 0; n < std::min(out.p.size(), q.size()); ++n) {
          out.p[n] += q[n];
        }
        if (s.top_k < s.experts) {
          const auto ids = best_experts(z, s.top_k + 1);
          out.margin += static_cast<double>(z[ids[s.top_k - 1]]) - z[ids[s.top_k]];
        }
        ++rows;
      }
    }
  }
  SWITCHYARD_ASSERT(rows > 0, "prompts");
  for (double* v :
       {&out.logit_variance, &out.entropy, &out.margin, &out.p[0], &out.p[1], &out.p[2]}) {
    *v /= rows;
  }
  return out;
}

LoadSpread load_spread(std::span<const PromptDecisions> prompts, const RouterShape& s, bool each) {
  LoadSpread out;
  std::size_t windows = 0;
  const auto window = [&](std::span<const PromptDecisions> part) {
    double tokens = 0;
    for (const PromptDecisions& p : part) {
      tokens += static_cast<double>(p.tokens);
    }
    for (std::size_t l = 0; l < s.layers; ++l) {
      std::vector<std::uint64_t> load(s.experts, 0);
      for (const PromptDecisions& p : part) {
        count_choices(p, s, l, load);
      }
      out.cv += cv_of(load) / static_cast<double>(s.layers);
    }
    out.floor += floor_of(s, tokens);
    ++windows;
  };
  if (each) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      window(prompts.subspan(i, 1));
    }
  } else {
    window(prompts);
  }
  out.cv /= static_cast<double>(windows);
  out.floor /= static_cast<double>(windows);
  return out;
}

LargestShare largest_share(std::span<const PromptDecisions> prompts, const RouterShape& s) {
  LargestShare out;
  double tokens = 0;
  for (const PromptDecisions& p : prompts) {
    tokens += static_cast<double>(p.tokens);
  }
  for (std::size_t l = 0; l < s.layers; ++l) {
    std::vector<std::uint64_t> requests(s.experts, 0);
    std::vector<std::uint64_t> first(s.experts, 0);
    std::vector<std::uint64_t> load(s.experts, 0);
    for (const PromptDecisions& p : prompts) {
      ++requests[top_expert(p, s, l)];
      count_choices(p, s, l, load);
      for (std::size_t t = 0; t < p.tokens; ++t) {
        ++first[best_experts(p.row(s, l, t), 1).front()];
      }
    }
    const double k = static_cast<double>(s.top_k);
    out.requests =
        std::max(out.requests, largest_of(requests, static_cast<double>(prompts.size())));
    out.first = std::max(out.first, largest_of(first, tokens));
    out.tokens = std::max(out.tokens, largest_of(load, tokens));
    out.assignments = std::max(out.assignments, largest_of(load, tokens * k));
  }
  return out;
}

NoiseEffect noise_effect(const Engine& engine, std::span<const PromptDecisions> prompts,
                         const RouterView& view, double noise, std::uint32_t draws,
                         std::uint64_t seed) {
  const RouterShape s = router_shape(engine);
  const auto layers = moe_layers(engine);
  SWITCHYARD_ASSERT(layers.size() == s.layers && draws >= 1, "routers of MoE layers");
  NoiseEffect out;
  out.lowest = std::numeric_limits<double>::infinity();
  out.highest = -out.lowest;
  std::uint64_t changed = 0;
  std::uint64_t all_differ = 0;
  const auto set_of = [&](const std::vector<float>& z, std::size_t t) {
    auto ids = best_experts(std::span(z).subspan(t * s.experts, s.experts), s.top_k);
    std::sort(ids.begin(), ids.end());
    return ids;
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const PromptDecisions& p = prompts[i];
    SWITCHYARD_ASSERT(p.input.size() == s.layers * p.tokens * s.hidden, p.name);
    for (std::size_t l = 0; l < s.layers; ++l) {
      const auto from = p.input.begin() + static_cast<std::ptrdiff_t>(l * p.tokens * s.hidden);
      std::vector<float> clean(from, from + static_cast<std::ptrdiff_t>(p.tokens * s.hidden));
      for (float& v : clean) {
        v = static_cast<float>(v * view.inputs);
      }
      const auto z = logits_of(engine, layers[l], clean, view);
      const auto [low, high] = std::minmax_element(z.begin(), z.end());
      out.lowest = std::min(out.lowest, static_cast<double>(*low));
      out.highest = std::max(out.highest, static_cast<double>(*high));
      std::vector<std::vector<float>> noisy;
      for (std::uint32_t d = 0; d < draws; ++d) {
        std::vector<float> x = clean;
        for (std::size_t t = 0; t < p.tokens; ++t) {
          const double size = noise * rms(std::span(clean).subspan(t * s.hidden, s.hidden));
          for (std::size_t n = 0; n < s.hidden; ++n) {
            const RandomCounter at{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(l),
                                   static_cast<std::uint32_t>(t),
                                   static_cast<std::uint32_t>(d * s.hidden + n)};
            x[t * s.hidden + n] = static_cast<float>(static_cast<double>(x[t * s.hidden + n]) +
                                                     size * random_normal(seed, kNoise, at));
          }
        }
        noisy.push_back(logits_of(engine, layers[l], std::move(x), view));
      }
      for (std::size_t t = 0; t < p.tokens; ++t) {
        const auto reference = set_of(z, t);
        std::vector<std::vector<std::uint16_t>> sets;
        for (const auto& rows : noisy) {
          sets.push_back(set_of(rows, t));
          changed += sets.back() != reference ? 1U : 0U;
        }
        std::sort(sets.begin(), sets.end());
        all_differ +=
            draws > 1 && std::adjacent_find(sets.begin(), sets.end()) == sets.end() ? 1U : 0U;
        ++out.decisions;
      }
    }
  }
  SWITCHYARD_ASSERT(out.decisions > 0, "prompts");
  out.changed = static_cast<double>(changed) / static_cast<double>(out.decisions * draws);
  out.all_differ = static_cast<double>(all_differ) / static_cast<double>(out.decisions);
  return out;
}

}  // namespace switchyard::tables
