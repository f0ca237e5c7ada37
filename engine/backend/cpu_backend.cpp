// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/backend/cpu_attention.hpp"
#include "engine/backend/cpu_kernels.hpp"
#include "engine/backend/cpu_kv.hpp"
#include "engine/backend/packed_weights.hpp"
#include "engine/base/error.hpp"
#include "engine/base/thread_pool.hpp"

namespace switchyard {
namespace {

constexpr std::uint16_t kNoExpert = 0xFFFF;
constexpr std::uint32_t kNowhere = 0xFFFFFFFF;
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

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(unsigned threads) : pool_(threads) {}

  [[nodiscard]] std::string name() const override {
    return fmt::format("cpu {}", cpu::path().name);
  }

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
      widen_rows(table, tokens[r], tokens[r] + std::size_t{1}, out + r * table.cols);
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
    const std::size_t block = block_outputs(rows, w.rows);
    const std::size_t blocks = (w.rows + block - 1) / block;
    const std::size_t tiles = (rows + cpu::kTileRows - 1) / cpu::kTileRows;
    share(blocks * tiles, rows * w.rows * w.cols, [&](std::size_t item) {
      const std::size_t first = item / tiles * block;
      const std::size_t row = item % tiles * cpu::kTileRows;
      cpu::linear_block(x + row * w.cols, w.cols, std::min(cpu::kTileRows, rows - row), w, first,
                        std::min(w.rows, first + block), out + row * w.rows, w.rows,
                        cpu::weight_row(w, (item + pool_.size()) / tiles * block));
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
      const std::size_t block = block_outputs(rows, w[j].rows);
      for (std::size_t n = 0; n < w[j].rows; n += block) {
        cpu::linear_block(x + j * in_stride, w.size() * in_stride, rows, w[j], n,
                          std::min(w[j].rows, n + block), out + j * out_stride,
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

  std::unique_ptr<KvPool> make_pool(const AttentionShape& shape,
                                    const KvOptions& options) override {
    return std::make_unique<cpu::CpuKvPool>(shape, options);
  }
  void advance(KvCache& cache, std::size_t tokens) override {
    static_cast<cpu::CpuKvCache&>(cache).advance(tokens);
  }
  void attention(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                 std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                 const AttentionRule& rule, float* out) override {
    attention_.run(
        layer, q, k, v, rows, caches, positions, rule, out,
        [this](std::size_t items, std::size_t work, const std::function<void(std::size_t)>& body) {
          share(items, work, body);
        });
  }

  void swiglu(float* gate, const float* up, std::size_t count, float limit) override {
    if (limit > 0) {
      cpu::swiglu_clamped(gate, up, count, limit);
    } else {
      cpu::swiglu(gate, up, count);
    }
  }
  void combine(const float* y, std::span<const std::uint32_t> where, std::span<const float> weights,
               std::size_t rows, std::size_t slots, std::size_t columns, float* out) override {
    SWITCHYARD_ASSERT(where.size() == rows * slots && weights.size() == where.size(), "combine");
    std::fill_n(out, rows * columns, 0.0F);
    for (std::size_t i = 0; i < where.size(); ++i) {
      if (where[i] != kNowhere) {
        cpu::axpy(weights[i], y + std::size_t{where[i]} * columns, out + i / slots * columns,
                  columns);
      }
    }
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
    // Two rounds of units of work: (expert, block of inner outputs), (expert, block of H).
    unit_.clear();
    for (std::size_t e = 0; e < experts.size(); ++e) {
      add_units(e, start_[e + 1] - start_[e], inner);
    }
    share(unit_.size(), total * hidden * inner * 2, [&](std::size_t item) {
      const auto [e, first, last] = unit_[item];
      const std::size_t n = start_[e + 1] - start_[e];
      const float* in = gathered_.data() + start_[e] * hidden;
      float* gate = gate_.data() + start_[e] * inner;
      float* up = up_.data() + start_[e] * inner;
      const Unit* after =
          item + pool_.size() < unit_.size() ? &unit_[item + pool_.size()] : nullptr;
      cpu::linear_block(in, hidden, n, experts[e].gate, first, last, gate, inner,
                        cpu::weight_row(experts[e].up, first));
      cpu::linear_block(
          in, hidden, n, experts[e].up, first, last, up, inner,
          after != nullptr ? cpu::weight_row(experts[after->expert].gate, after->first) : nullptr);
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
    unit_.clear();
    for (std::size_t e = 0; e < experts.size(); ++e) {
      add_units(e, start_[e + 1] - start_[e], hidden);
    }
    share(unit_.size(), total * hidden * inner, [&](std::size_t item) {
      const auto [e, first, last] = unit_[item];
      const std::size_t n = start_[e + 1] - start_[e];
      float* to = expert_out_.data() + start_[e] * hidden;
      const Unit* after =
          item + pool_.size() < unit_.size() ? &unit_[item + pool_.size()] : nullptr;
      cpu::linear_block(
          gate_.data() + start_[e] * inner, inner, n, experts[e].down, first, last, to, hidden,
          after != nullptr ? cpu::weight_row(experts[after->expert].down, after->first) : nullptr);
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
  /// Outputs per unit of work: few rows stream the weights, in one piece for each thread; many rows
  /// widen a block at a time.
  [[nodiscard]] std::size_t block_outputs(std::size_t rows, std::size_t outputs) const {
    if (rows > cpu::path().few_rows) {
      return cpu::kBlockOutputs;
    }
    constexpr std::size_t kStep = 8;  // of the widest tile of few rows
    const std::size_t piece = (outputs + pool_.size() - 1) / pool_.size();
    return (piece + kStep - 1) / kStep * kStep;
  }

  /// Outputs [first, last) of one expert.
  struct Unit {
    std::size_t expert, first, last;
  };
  void add_units(std::size_t expert, std::size_t rows, std::size_t outputs) {
    if (rows == 0) {
      return;
    }
    const std::size_t block = block_outputs(rows, outputs);
    for (std::size_t n = 0; n < outputs; n += block) {
      unit_.push_back({expert, n, std::min(outputs, n + block)});
    }
  }

  /// out[r * ldo + i] += bias[i], i in [first, last); a null bias adds nothing.
  static void add_part_of_bias(float* out, std::size_t ldo, std::size_t rows,
                               const WeightView& bias, std::size_t first, std::size_t last) {
    if (bias.data == nullptr) {
      return;
    }
    std::array<float, cpu::kBlockOutputs> wide;
    for (std::size_t begin = first; begin < last; begin += wide.size()) {
      const std::size_t end = std::min(last, begin + wide.size());
      cpu::widen(bias, begin, end - begin, wide.data());
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t i = begin; i < end; ++i) {
          out[r * ldo + i] += wide[i - begin];
        }
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
    pool_.for_each(items, std::ref(body));  // a reference needs no memory
  }

  ThreadPool pool_;
  cpu::CpuAttention attention_;
  std::vector<float> norm_, gathered_, gate_, up_, expert_out_;
  std::vector<std::size_t> start_, cursor_, where_;
  std::vector<Unit> unit_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(unsigned threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace switchyard
