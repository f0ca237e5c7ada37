// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
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

/// keys and values: [layer][kv head][capacity][head_dim] float32.
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
    regrow(values_, wider);
    capacity_ = wider;
  }
  float* key(std::size_t layer, std::size_t head, std::size_t position) {
    return keys_.data() + offset(layer, head, position, capacity_);
  }
  float* value(std::size_t layer, std::size_t head, std::size_t position) {
    return values_.data() + offset(layer, head, position, capacity_);
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

  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape) override {
    return std::make_unique<CpuKvCache>(shape);
  }
  void advance(KvCache& cache, std::size_t tokens) override {
    static_cast<CpuKvCache&>(cache).advance(tokens);
  }

  void attention(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                 std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                 std::span<const float> inverse_frequency, float* out) override {
    if (rows == 0) {
      return;
    }
    const AttentionShape& shape = static_cast<CpuKvCache*>(caches[0])->shape();
    const std::size_t d = shape.head_dim;
    prepare_rotation(inverse_frequency, *std::max_element(positions.begin(), positions.end()));
    std::size_t seen = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      auto& cache = *static_cast<CpuKvCache*>(caches[r]);
      cache.reserve(positions[r] + std::size_t{1});
      seen += positions[r] + std::size_t{1};
      const float* cosine = cosine_.data() + positions[r] * (d / 2);
      const float* sine = sine_.data() + positions[r] * (d / 2);
      for (std::size_t h = 0; h < shape.heads; ++h) {
        cpu::rope(q + (r * shape.heads + h) * d, d, cosine, sine);
      }
      for (std::size_t h = 0; h < shape.kv_heads; ++h) {
        float* key = k + (r * shape.kv_heads + h) * d;
        cpu::rope(key, d, cosine, sine);
        std::copy_n(key, d, cache.key(layer, h, positions[r]));
        std::copy_n(v + (r * shape.kv_heads + h) * d, d, cache.value(layer, h, positions[r]));
      }
    }
    // A unit of work: one row and the query heads that share one KV head.
    const std::size_t group = shape.heads / shape.kv_heads;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    share(rows * shape.kv_heads, seen * shape.heads * d * 2, [&](std::size_t item) {
      const std::size_t r = item / shape.kv_heads;
      const std::size_t h = item % shape.kv_heads;
      auto& cache = *static_cast<CpuKvCache*>(caches[r]);
      const std::size_t end = positions[r] + std::size_t{1};
      const std::size_t begin =
          shape.sliding_window > 0 && end > shape.sliding_window ? end - shape.sliding_window : 0;
      const std::size_t n = end - begin;
      thread_local std::vector<float> score;  // [group][n]
      if (score.size() < group * n) {
        score.resize(std::max(group * n, score.size() * 2));
      }
      const std::size_t first = (r * shape.heads + h * group) * d;
      cpu::linear_block(q + first, d, group, {cache.key(layer, h, begin), WeightType::kF32, n, d},
                        0, n, score.data(), n);
      for (std::size_t j = 0; j < group; ++j) {
        cpu::softmax(score.data() + j * n, n, scale);
        cpu::weighted_sum(score.data() + j * n, cache.value(layer, h, begin), n, d,
                          out + first + j * d);
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
      for (std::size_t r = 0; r < n; ++r) {
        cpu::swiglu(gate + r * inner + first, up + r * inner + first, last - first);
      }
    });
    share(active_.size() * outer_blocks, total * hidden * inner, [&](std::size_t item) {
      const std::size_t e = active_[item / outer_blocks];
      const std::size_t first = item % outer_blocks * cpu::kBlockOutputs;
      cpu::linear_block(gate_.data() + start_[e] * inner, inner, start_[e + 1] - start_[e],
                        experts[e].down, first, std::min(hidden, first + cpu::kBlockOutputs),
                        expert_out_.data() + start_[e] * hidden, hidden);
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
  void prepare_rotation(std::span<const float> inverse_frequency, std::size_t last) {
    const std::size_t half = inverse_frequency.size();
    if (!std::equal(frequency_.begin(), frequency_.end(), inverse_frequency.begin(),
                    inverse_frequency.end())) {
      frequency_.assign(inverse_frequency.begin(), inverse_frequency.end());
      cosine_.clear();
      sine_.clear();
    }
    for (std::size_t p = half > 0 ? cosine_.size() / half : 0; p <= last; ++p) {
      for (std::size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(p) * inverse_frequency[i];
        cosine_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
        sine_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
      }
    }
  }

  ThreadPool pool_;
  std::vector<float> frequency_, cosine_, sine_;
  std::vector<float> norm_, gathered_, gate_, up_, expert_out_;
  std::vector<std::size_t> start_, cursor_, where_, active_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(unsigned threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace switchyard
