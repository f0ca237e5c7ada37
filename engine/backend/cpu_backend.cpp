// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/error.hpp"
#include "engine/base/thread_pool.hpp"

namespace switchyard {
namespace {

constexpr std::uint16_t kNoExpert = 0xFFFF;
/// Below this many multiply-adds (or their like) a call is not worth waking the other threads.
constexpr std::size_t kWorthSharing = std::size_t{1} << 18;

class HostBuffer final : public DeviceBuffer {
 public:
  explicit HostBuffer(std::size_t n) : data_(n) {}
  float* data() override { return data_.data(); }
  [[nodiscard]] std::size_t size() const override { return data_.size(); }

 private:
  std::vector<float> data_;
};

/// keys and values: [layer][kv head][capacity][head_dim] float32; no values when latent.
class CpuKvCache final : public KvCache {
 public:
  explicit CpuKvCache(const AttentionShape& shape) : shape_(shape) {}
  [[nodiscard]] std::size_t length() const override { return length_; }
  [[nodiscard]] std::size_t bytes() const override {
    return (keys_.size() + values_.size()) * sizeof(float);
  }
  [[nodiscard]] const AttentionShape& shape() const { return shape_; }
  void advance(std::size_t tokens) { length_ += tokens; }
  /// Makes room for `tokens` positions; keeps what is stored.
  void reserve(std::size_t tokens) {
    if (tokens <= capacity_) {
      return;
    }
    const std::size_t wider = std::max({tokens, capacity_ * 2, std::size_t{64}});
    regrow(keys_, wider);
    if (shape_.latent == 0) {
      regrow(values_, wider);
    }
    capacity_ = wider;
  }
  float* key(std::size_t layer, std::size_t head, std::size_t position) {
    return keys_.data() + offset(layer, head, position, capacity_);
  }
  float* value(std::size_t layer, std::size_t head, std::size_t position) {
    return (shape_.latent > 0 ? keys_ : values_).data() + offset(layer, head, position, capacity_);
  }

 private:
  [[nodiscard]] std::size_t offset(std::size_t layer, std::size_t head, std::size_t position,
                                   std::size_t capacity) const {
    return ((layer * shape_.kv_heads + head) * capacity + position) * shape_.head_dim;
  }
  void regrow(std::vector<float>& store, std::size_t wider) const {
    std::vector<float> next(shape_.layers * shape_.kv_heads * wider * shape_.head_dim);
    // Rows beyond length_ may hold the layers done so far of the current step, so copy them all.
    for (std::size_t i = 0; i < shape_.layers * shape_.kv_heads && capacity_ > 0; ++i) {
      std::copy_n(store.data() + i * capacity_ * shape_.head_dim, capacity_ * shape_.head_dim,
                  next.data() + i * wider * shape_.head_dim);
    }
    store = std::move(next);
  }
  AttentionShape shape_;
  std::size_t length_ = 0;
  std::size_t capacity_ = 0;
  std::vector<float> keys_, values_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(unsigned threads) : pool_(threads) {}

  [[nodiscard]] std::string name() const override { return fmt::format("cpu {}", cpu::kPathName); }

  std::unique_ptr<DeviceBuffer> allocate(std::size_t floats) override {
    return std::make_unique<HostBuffer>(floats);
  }
  void upload(std::span<const float> host, float* device) override {
    std::copy(host.begin(), host.end(), device);
  }
  void download(const float* device, std::span<float> host) override {
    std::copy_n(device, host.size(), host.begin());
  }

  WeightView place(const WeightView& host) override { return host; }

  void embed(const WeightView& table, std::span<const std::uint32_t> tokens, float* out) override {
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      SWITCHYARD_ASSERT(tokens[r] < table.rows, fmt::format("token {}", tokens[r]));
      cpu::widen(table, tokens[r] * table.cols, table.cols, out + r * table.cols);
    }
  }

  void rms_norm(const float* x, std::size_t rows, const WeightView& weight, float eps,
                float* out) override {
    const std::size_t n = weight.cols;
    norm_.resize(n);
    cpu::widen(weight, 0, n, norm_.data());
    for (std::size_t r = 0; r < rows; ++r) {
      const float* in = x + r * n;
      float* to = out + r * n;
      const float mean = cpu::dot(in, in, n) / static_cast<float>(n);
      const float scale = 1.0F / std::sqrt(mean + eps);
      for (std::size_t i = 0; i < n; ++i) {
        to[i] = norm_[i] * (in[i] * scale);
      }
    }
  }

  void linear(const float* x, std::size_t rows, const WeightView& w, float* out) override {
    const std::size_t blocks = (w.rows + cpu::kBlockOutputs - 1) / cpu::kBlockOutputs;
    const std::size_t tiles = (rows + cpu::kTileRows - 1) / cpu::kTileRows;
    share(blocks * tiles, rows * w.rows * w.cols, [&](std::size_t item) {
      const std::size_t first = item / tiles * cpu::kBlockOutputs;
      const std::size_t row = item % tiles * cpu::kTileRows;
      cpu::linear_block(x + row * w.cols, w.cols, std::min(cpu::kTileRows, rows - row), w, first,
                        std::min(w.rows, first + cpu::kBlockOutputs), out + row * w.rows, w.rows);
    });
  }

  void gather(const float* x, std::span<const std::uint32_t> index, std::size_t columns,
              float* out) override {
    for (std::size_t i = 0; i < index.size(); ++i) {
      std::copy_n(x + index[i] * columns, columns, out + i * columns);
    }
  }
  void add(float* x, const float* y, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      x[i] += y[i];
    }
  }
  void add_bias(float* x, std::size_t rows, const WeightView& bias) override {
    norm_.resize(bias.cols);
    cpu::widen(bias, 0, bias.cols, norm_.data());
    for (std::size_t r = 0; r < rows; ++r) {
      add(x + r * bias.cols, norm_.data(), bias.cols);
    }
  }
  void clamp(float* x, std::size_t count, float limit) override {
    for (std::size_t i = 0; i < count; ++i) {
      x[i] = std::isnan(x[i]) ? x[i] : std::clamp(x[i], -limit, limit);
    }
  }
  void linear_heads(const float* x, std::size_t rows, std::size_t in_stride,
                    std::span<const WeightView> w, std::size_t out_stride, float* out) override {
    if (w.empty()) {
      return;
    }
    share(w.size(), rows * w.size() * w[0].rows * w[0].cols, [&](std::size_t j) {
      for (std::size_t n = 0; n < w[j].rows; n += cpu::kBlockOutputs) {
        cpu::linear_block(x + j * in_stride, w.size() * in_stride, rows, w[j], n,
                          std::min(w[j].rows, n + cpu::kBlockOutputs), out + j * out_stride,
                          w.size() * out_stride);
      }
    });
  }
  void copy_columns(const float* x, std::size_t rows, std::size_t in_stride, std::size_t columns,
                    float* out, std::size_t out_stride) override {
    for (std::size_t r = 0; r < rows; ++r) {
      std::copy_n(x + r * in_stride, columns, out + r * out_stride);
    }
  }

  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape) override {
    return std::make_unique<CpuKvCache>(shape);
  }
  void advance(KvCache& cache, std::size_t tokens) override {
    static_cast<CpuKvCache&>(cache).advance(tokens);
  }

  void attention(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                 std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                 const AttentionRule& rule, float* out) override {
    if (rows == 0) {
      return;
    }
    const AttentionShape& shape = static_cast<CpuKvCache*>(caches[0])->shape();
    const std::size_t d = shape.head_dim;
    const std::size_t value_dim = shape.value_dim();
    const std::size_t half = rule.inverse_frequency.size();
    const std::size_t still = d - 2 * half;  // leading entries that are not rotated
    prepare_rotation(rule, *std::max_element(positions.begin(), positions.end()));
    const auto rotate = [&](float* head, std::size_t position) {
      const float* cosine = cosine_.data() + position * half;
      const float* sine = sine_.data() + position * half;
      (shape.interleaved ? cpu::rope_interleaved : cpu::rope)(head + still, 2 * half, cosine, sine);
    };
    std::size_t seen = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      auto& cache = *static_cast<CpuKvCache*>(caches[r]);
      cache.reserve(positions[r] + std::size_t{1});
      seen += positions[r] + std::size_t{1};
      for (std::size_t h = 0; h < shape.heads; ++h) {
        rotate(q + (r * shape.heads + h) * d, positions[r]);
      }
      for (std::size_t h = 0; h < shape.kv_heads; ++h) {
        float* key = k + (r * shape.kv_heads + h) * d;
        rotate(key, positions[r]);
        std::copy_n(key, d, cache.key(layer, h, positions[r]));
        if (shape.latent == 0) {
          std::copy_n(v + (r * shape.kv_heads + h) * d, d, cache.value(layer, h, positions[r]));
        }
      }
    }
    // A unit of work: one row and the query heads that share one KV head.
    const std::size_t group = shape.heads / shape.kv_heads;
    const float scale = rule.scale > 0 ? rule.scale : 1.0F / std::sqrt(static_cast<float>(d));
    const bool sinks = rule.sinks.data != nullptr;
    if (sinks) {
      norm_.resize(shape.heads);
      cpu::widen(rule.sinks, 0, shape.heads, norm_.data());
    }
    share(rows * shape.kv_heads, seen * shape.heads * d * 2, [&](std::size_t item) {
      const std::size_t r = item / shape.kv_heads;
      const std::size_t h = item % shape.kv_heads;
      auto& cache = *static_cast<CpuKvCache*>(caches[r]);
      const std::size_t end = positions[r] + std::size_t{1};
      const std::size_t begin =
          rule.sliding_window > 0 && end > rule.sliding_window ? end - rule.sliding_window : 0;
      const std::size_t n = end - begin;
      const std::size_t terms = n + (sinks ? 1 : 0);  // of one softmax
      thread_local std::vector<float> score;          // [group][terms]
      if (score.size() < group * terms) {
        score.resize(std::max(group * terms, score.size() * 2));
      }
      const std::size_t first = (r * shape.heads + h * group) * d;
      cpu::linear_block(q + first, d, group, {cache.key(layer, h, begin), WeightType::kF32, n, d},
                        0, n, score.data(), terms);
      for (std::size_t j = 0; j < group; ++j) {
        float* p = score.data() + j * terms;
        if (!rule.slopes.empty()) {  // softmax() multiplies by scale
          const float slope = rule.slopes[h * group + j] / scale;
          for (std::size_t i = 0; i < n; ++i) {
            p[i] -= slope * static_cast<float>(n - 1 - i);
          }
        }
        if (sinks) {
          p[n] = norm_[h * group + j] / scale;  // softmax() multiplies by scale
        }
        cpu::softmax(p, terms, scale);
        cpu::weighted_sum(p, cache.value(layer, h, begin), n, value_dim, d,
                          out + (r * shape.heads + h * group + j) * value_dim);
      }
    });
  }

  void moe(const float* x, std::size_t rows, std::span<const ExpertView> experts,
           std::span<const std::uint16_t> chosen, std::span<const float> weights, std::size_t slots,
           float* out) override {
    if (rows == 0) {
      return;
    }
    // Stable counting sort of the assignments (row, slot) by expert.
    const std::size_t count = rows * slots;
    SWITCHYARD_ASSERT(chosen.size() == count && weights.size() == count, "moe shapes");
    start_.assign(experts.size() + 1, 0);
    for (const std::uint16_t e : chosen) {
      if (e != kNoExpert) {
        SWITCHYARD_ASSERT(e < experts.size(), fmt::format("expert {}", e));
        ++start_[e + std::size_t{1}];
      }
    }
    for (std::size_t e = 0; e < experts.size(); ++e) {
      start_[e + 1] += start_[e];
    }
    const std::size_t total = start_[experts.size()];
    const std::size_t hidden = experts.empty() ? 0 : experts[0].gate.cols;
    const std::size_t inner = experts.empty() ? 0 : experts[0].gate.rows;
    cursor_.assign(start_.begin(), start_.end() - 1);
    where_.resize(count);
    gathered_.resize(total * hidden);
    for (std::size_t i = 0; i < count; ++i) {
      if (chosen[i] != kNoExpert) {
        where_[i] = cursor_[chosen[i]]++;
        std::copy_n(x + i / slots * hidden, hidden, gathered_.data() + where_[i] * hidden);
      }
    }
    gate_.resize(total * inner);
    up_.resize(total * inner);
    expert_out_.resize(total * hidden);
    // Two rounds of fixed units of work: (expert, block of inner outputs), (expert, block of H).
    const std::size_t inner_blocks = (inner + cpu::kBlockOutputs - 1) / cpu::kBlockOutputs;
    const std::size_t outer_blocks = (hidden + cpu::kBlockOutputs - 1) / cpu::kBlockOutputs;
    active_.clear();
    for (std::size_t e = 0; e < experts.size(); ++e) {
      if (start_[e + 1] > start_[e]) {
        active_.push_back(e);
      }
    }
    share(active_.size() * inner_blocks, total * hidden * inner * 2, [&](std::size_t item) {
      const std::size_t e = active_[item / inner_blocks];
      const std::size_t first = item % inner_blocks * cpu::kBlockOutputs;
      const std::size_t last = std::min(inner, first + cpu::kBlockOutputs);
      const std::size_t n = start_[e + 1] - start_[e];
      const float* in = gathered_.data() + start_[e] * hidden;
      float* gate = gate_.data() + start_[e] * inner;
      float* up = up_.data() + start_[e] * inner;
      cpu::linear_block(in, hidden, n, experts[e].gate, first, last, gate, inner);
      cpu::linear_block(in, hidden, n, experts[e].up, first, last, up, inner);
      add_part_of_bias(gate, inner, n, experts[e].gate_bias, first, last);
      add_part_of_bias(up, inner, n, experts[e].up_bias, first, last);
      for (std::size_t r = 0; r < n; ++r) {
        const std::size_t at = r * inner + first;
        if (experts[e].limit > 0) {
          cpu::swiglu_clamped(gate + at, up + at, last - first, experts[e].limit);
        } else {
          cpu::swiglu(gate + at, up + at, last - first);
        }
      }
    });
    share(active_.size() * outer_blocks, total * hidden * inner, [&](std::size_t item) {
      const std::size_t e = active_[item / outer_blocks];
      const std::size_t first = item % outer_blocks * cpu::kBlockOutputs;
      const std::size_t last = std::min(hidden, first + cpu::kBlockOutputs);
      const std::size_t n = start_[e + 1] - start_[e];
      float* to = expert_out_.data() + start_[e] * hidden;
      cpu::linear_block(gate_.data() + start_[e] * inner, inner, n, experts[e].down, first, last,
                        to, hidden);
      add_part_of_bias(to, hidden, n, experts[e].down_bias, first, last);
    });
    std::fill_n(out, rows * hidden, 0.0F);
    for (std::size_t i = 0; i < count; ++i) {
      if (chosen[i] != kNoExpert) {
        cpu::axpy(weights[i], expert_out_.data() + where_[i] * hidden, out + i / slots * hidden,
                  hidden);
      }
    }
  }

 private:
  /// out[r * ldo + i] += bias[i], i in [first, last), last - first <= kBlockOutputs; null: nothing.
  static void add_part_of_bias(float* out, std::size_t ldo, std::size_t rows,
                               const WeightView& bias, std::size_t first, std::size_t last) {
    if (bias.data == nullptr) {
      return;
    }
    std::array<float, cpu::kBlockOutputs> wide;
    cpu::widen(bias, first, last - first, wide.data());
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t i = first; i < last; ++i) {
        out[r * ldo + i] += wide[i - first];
      }
    }
  }

  template <class Body>
  void share(std::size_t items, std::size_t work, const Body& body) {
    if (pool_.size() == 1 || items < 2 || work < kWorthSharing) {
      for (std::size_t i = 0; i < items; ++i) {
        body(i);
      }
      return;
    }
    pool_.for_each(items, body);
  }

  /// Cosines and sines of all positions up to `last`, [position][d/2]. The angle is rounded to
  /// float32 as transformers does, its cosine computed in double and rounded once.
  void prepare_rotation(const AttentionRule& rule, std::size_t last) {
    const std::span<const float> inverse_frequency = rule.inverse_frequency;
    const std::size_t half = inverse_frequency.size();
    if (rotation_gain_ != rule.rotation_gain ||
        !std::equal(frequency_.begin(), frequency_.end(), inverse_frequency.begin(),
                    inverse_frequency.end())) {
      frequency_.assign(inverse_frequency.begin(), inverse_frequency.end());
      rotation_gain_ = rule.rotation_gain;
      cosine_.clear();
      sine_.clear();
    }
    for (std::size_t p = half > 0 ? cosine_.size() / half : 0; p <= last; ++p) {
      for (std::size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(p) * inverse_frequency[i];
        cosine_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))) *
                          rotation_gain_);
        sine_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))) * rotation_gain_);
      }
    }
  }

  ThreadPool pool_;
  float rotation_gain_ = 1;
  std::vector<float> frequency_, cosine_, sine_;
  std::vector<float> norm_, gathered_, gate_, up_, expert_out_;
  std::vector<std::size_t> start_, cursor_, where_, active_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(unsigned threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace switchyard
