// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/two_tier_router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "engine/backend/packed_weights.hpp"
#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/model/safetensors.hpp"

namespace switchyard {
namespace {

constexpr std::size_t kGroup = 128;

std::vector<float> widened(const WeightView& view) {
  if (view.data == nullptr) {
    return {};
  }
  std::vector<float> out(view.rows * view.cols);
  widen_rows(view, 0, view.rows, out.data());
  return out;
}

/// out[t][r] = bias[r] + sum_i w[r][i] x[t][i].
void linear(std::span<const float> w, std::span<const float> bias, std::size_t cols,
            std::span<const float> x, std::span<float> out) {
  const std::size_t rows = w.size() / cols;
  const std::size_t tokens = x.size() / cols;
  SWITCHYARD_ASSERT(out.size() == tokens * rows,
                    fmt::format("{} of {}", out.size(), tokens * rows));
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t r = 0; r < rows; ++r) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[r]);
      for (std::size_t i = 0; i < cols; ++i) {
        sum += static_cast<double>(w[r * cols + i]) * static_cast<double>(x[t * cols + i]);
      }
      out[t * rows + r] = static_cast<float>(sum);
    }
  }
}

/// Eigenvectors of a symmetric matrix by cyclic Jacobi rotations: columns of the result, with
/// `values` beside them. n is an expert count: hundreds.
std::vector<double> eigenvectors(std::vector<double> a, std::size_t n,
                                 std::vector<double>& values) {
  std::vector<double> v(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    v[i * n + i] = 1;
  }
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0;
    double all = 0;
    for (std::size_t i = 0; i < n * n; ++i) {
      all += a[i] * a[i];
      off += i / n == i % n ? 0.0 : a[i] * a[i];
    }
    if (off <= all * 1e-28) {
      break;
    }
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (a[p * n + q] == 0) {
          continue;
        }
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
        const double t =
            (theta >= 0 ? 1.0 : -1.0) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1);
        const double s = t * c;
        for (std::size_t i = 0; i < n; ++i) {
          const double ip = a[i * n + p];
          const double iq = a[i * n + q];
          a[i * n + p] = c * ip - s * iq;
          a[i * n + q] = s * ip + c * iq;
        }
        for (std::size_t i = 0; i < n; ++i) {
          const double pi = a[p * n + i];
          const double qi = a[q * n + i];
          a[p * n + i] = c * pi - s * qi;
          a[q * n + i] = s * pi + c * qi;
        }
        for (std::size_t i = 0; i < n; ++i) {
          const double ip = v[i * n + p];
          const double iq = v[i * n + q];
          v[i * n + p] = c * ip - s * iq;
          v[i * n + q] = s * ip + c * iq;
        }
      }
    }
  }
  values.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = a[i * n + i];
  }
  return v;
}

}  // namespace

std::vector<float> int4_router(std::span<const float> w, std::size_t cols) {
  std::vector<float> out(w.size());
  for (std::size_t row = 0; row < w.size(); row += cols) {
    for (std::size_t begin = 0; begin < cols; begin += kGroup) {
      const std::size_t end = std::min(cols, begin + kGroup);
      float most = 0;
      for (std::size_t i = begin; i < end; ++i) {
        most = std::max(most, std::abs(w[row + i]));
      }
      const float scale = most / 7.0F;
      for (std::size_t i = begin; i < end; ++i) {
        const float q = scale > 0 ? std::clamp(std::nearbyint(w[row + i] / scale), -7.0F, 7.0F) : 0;
        out[row + i] = q * scale;
      }
    }
  }
  return out;
}

std::vector<float> low_rank_router(std::span<const float> w, std::size_t cols, std::uint32_t rank) {
  const std::size_t n = w.size() / cols;
  SWITCHYARD_ASSERT(rank >= 1 && rank <= n, fmt::format("rank {} of {}", rank, n));
  std::vector<double> gram(n * n);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double sum = 0;
      for (std::size_t i = 0; i < cols; ++i) {
        sum += static_cast<double>(w[a * cols + i]) * static_cast<double>(w[b * cols + i]);
      }
      gram[a * n + b] = gram[b * n + a] = sum;
    }
  }
  std::vector<double> values;
  const std::vector<double> v = eigenvectors(std::move(gram), n, values);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  std::vector<float> out(w.size());
  std::vector<double> row(cols);
  std::vector<double> inner(rank * cols, 0.0);  // U^T W
  for (std::size_t r = 0; r < rank; ++r) {
    for (std::size_t a = 0; a < n; ++a) {
      const double u = v[a * n + order[r]];
      for (std::size_t i = 0; i < cols; ++i) {
        inner[r * cols + i] += u * static_cast<double>(w[a * cols + i]);
      }
    }
  }
  for (std::size_t a = 0; a < n; ++a) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t r = 0; r < rank; ++r) {
      const double u = v[a * n + order[r]];
      for (std::size_t i = 0; i < cols; ++i) {
        row[i] += u * inner[r * cols + i];
      }
    }
    for (std::size_t i = 0; i < cols; ++i) {
      out[a * cols + i] = static_cast<float>(row[i]);
    }
  }
  return out;
}

TwoTierRouter::TwoTierRouter(FirstTier first, std::uint32_t rank,
                             const std::filesystem::path& scorer, const ModelWeights& weights,
                             const model::ModelConfig& config)
    : hidden_(config.hidden_size), experts_(config.num_experts) {
  const std::string where = scorer.string();
  const model::Safetensors file = model::Safetensors::open(scorer);
  std::set<std::string> used;
  const auto take = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    const model::TensorView* tensor = file.find(name);
    if (tensor == nullptr) {
      throw InputError(where, fmt::format("tensor {} is missing", name),
                       "a scorer holds layers.N.w1, b1, w2 and b2 of every MoE layer N");
    }
    if (shape[0] == 0 && !tensor->shape.empty()) {
      shape[0] = tensor->shape[0];  // the scorer's own width
    }
    if (tensor->shape != shape || tensor->count() == 0) {
      throw InputError(where, fmt::format("tensor {} has shape [{}], not [{}]", name,
                                          fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
    }
    used.insert(name);
    std::vector<float> values = tensor->to_float();
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      throw InputError(where, fmt::format("tensor {} holds a value that is not finite", name));
    }
    return values;
  };
  for (std::size_t l = 0; l < config.num_layers; ++l) {
    const LayerWeights& w = weights.layers[l];
    if (w.router.data == nullptr) {
      continue;
    }
    Layer layer;
    const std::vector<float> exact = widened(w.router);
    layer.router = first == FirstTier::kInt4 ? int4_router(exact, hidden_)
                                             : low_rank_router(exact, hidden_, rank);
    layer.bias = widened(w.router_bias);
    const std::string prefix = fmt::format("layers.{}.", l);
    layer.w1 = take(prefix + "w1", {0, hidden_});
    const std::size_t width = layer.w1.size() / hidden_;
    layer.b1 = take(prefix + "b1", {width});
    layer.w2 = take(prefix + "w2", {experts_, width});
    layer.b2 = take(prefix + "b2", {experts_});
    layers_.push_back(std::move(layer));
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (!used.contains(name)) {
      throw InputError(where, fmt::format("tensor {} belongs to no MoE layer of the model", name));
    }
  }
}

TwoTierRouter TwoTierRouter::load(RoutingPolicy& policy, const PolicyFiles& files,
                                  const ModelWeights& weights, const model::ModelConfig& config) {
  TwoTierPolicy& t = policy.two_tier;
  const auto at = files.find("two_tier.scorer");
  const std::filesystem::path path =
      at == files.end() ? std::filesystem::path(t.scorer) : at->second;
  const std::string hash = hex64(hash64(read_file(path)));
  if (t.hash != "any" && t.hash != hash) {
    throw InputError(
        "policy.two_tier.hash",
        fmt::format("{} has the hash {}, the policy states {}", t.scorer, hash, t.hash),
        "the file was replaced since, or another one was meant");
  }
  t.hash = hash;
  return {t.first, t.rank, path, weights, config};
}

void TwoTierRouter::propose(std::size_t moe_layer, std::span<const float> x,
                            std::span<float> logits) const {
  const Layer& layer = layers_[moe_layer];
  linear(layer.router, layer.bias, hidden_, x, logits);
}

void TwoTierRouter::score(std::size_t moe_layer, std::span<const float> x,
                          std::span<float> scores) const {
  const Layer& layer = layers_[moe_layer];
  const std::size_t width = layer.b1.size();
  std::vector<float> inner(x.size() / hidden_ * width);
  linear(layer.w1, layer.b1, hidden_, x, inner);
  for (float& v : inner) {
    const auto d = static_cast<double>(v);
    v = static_cast<float>(0.5 * d * (1 + std::erf(d / std::sqrt(2.0))));
  }
  linear(layer.w2, layer.b2, width, inner, scores);
}

}  // namespace switchyard
