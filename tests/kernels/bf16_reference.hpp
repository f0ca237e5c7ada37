// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend's BF16 means, on the CPU: the float32 backend with matrices rounded when
// placed and the operands of their products rounded when used. Products and sums are the CPU's, so
// what the kernels may differ by is the order of sums, and a rounding of an operand that lands on
// the other side because of it.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/backend/packed_weights.hpp"
#include "engine/model/dtype.hpp"

namespace switchyard {

class Bf16Reference final : public Backend {
 public:
  std::string name() const override { return "cpu, BF16 operands"; }
  std::string precision() const override { return "bf16"; }
  std::unique_ptr<DeviceBuffer> allocate(std::size_t n) override { return cpu_->allocate(n); }
  void upload(std::span<const float> host, float* to) override { cpu_->upload(host, to); }
  void download(const float* from, std::span<float> host) override { cpu_->download(from, host); }

  WeightView place(const WeightView& host) override {
    if (host.data == nullptr || host.rows <= 1) {
      return host;
    }
    std::vector<float> wide = rounded(widened(host).data(), host.rows * host.cols);
    held_.push_back(std::move(wide));
    return {held_.back().data(), WeightType::kF32, host.rows, host.cols};
  }
  WeightView place_exact(const WeightView& host) override {
    held_.push_back(widened(host));
    exact_.push_back(held_.back().data());
    return {held_.back().data(), WeightType::kF32, host.rows, host.cols};
  }

  void embed(const WeightView& t, std::span<const std::uint32_t> tokens, float* out) override {
    cpu_->embed(t, tokens, out);
  }
  void rms_norm(const float* x, std::size_t rows, const WeightView& w, float eps,
                float* out) override {
    cpu_->rms_norm(x, rows, w, eps, out);
  }
  void linear(const float* x, std::size_t rows, const WeightView& w, float* out) override {
    const bool exact =
        w.rows <= 1 || std::find(exact_.begin(), exact_.end(), w.data) != exact_.end();
    cpu_->linear(exact ? x : rounded(x, rows * w.cols).data(), rows, w, out);
  }
  void gather(const float* x, std::span<const std::uint32_t> index, std::size_t columns,
              float* out) override {
    cpu_->gather(x, index, columns, out);
  }
  void add(float* x, const float* y, std::size_t n) override { cpu_->add(x, y, n); }
  void add_bias(float* x, std::size_t rows, const WeightView& bias) override {
    cpu_->add_bias(x, rows, bias);
  }
  void swiglu(float* gate, const float* up, std::size_t n, float limit) override {
    cpu_->swiglu(gate, up, n, limit);
  }
  void clamp(float* x, std::size_t n, float limit) override { cpu_->clamp(x, n, limit); }
  void linear_heads(const float* x, std::size_t rows, std::size_t in_stride,
                    std::span<const WeightView> w, std::size_t out_stride, float* out) override {
    cpu_->linear_heads(rounded(x, rows * w.size() * in_stride).data(), rows, in_stride, w,
                       out_stride, out);
  }
  void copy_columns(const float* x, std::size_t rows, std::size_t in_stride, std::size_t columns,
                    float* out, std::size_t out_stride) override {
    cpu_->copy_columns(x, rows, in_stride, columns, out, out_stride);
  }
  std::unique_ptr<KvPool> make_pool(const AttentionShape& shape, const KvOptions& o) override {
    return cpu_->make_pool(shape, o);
  }
  void attention(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                 std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                 const AttentionRule& rule, float* out) override {
    cpu_->attention(layer, q, k, v, rows, caches, positions, rule, out);
  }
  void advance(KvCache& cache, std::size_t tokens) override { cpu_->advance(cache, tokens); }
  void moe(const float* x, std::size_t rows, std::span<const ExpertView> experts,
           std::span<const std::uint16_t> chosen, std::span<const float> weights, std::size_t slots,
           float* out) override {
    const std::size_t h = experts[0].gate.cols;
    const std::size_t inner = experts[0].gate.rows;
    const std::vector<float> operand = rounded(x, rows * h);
    std::vector<float> y(chosen.size() * h), gate(inner), up(inner);
    std::vector<std::uint32_t> where(chosen.size(), 0xFFFFFFFFU);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] == 0xFFFF) {
        continue;
      }
      const ExpertView& e = experts[chosen[i]];
      const auto product = [&](const float* from, const WeightView& w, const WeightView& bias,
                               float* to) {
        cpu_->linear(from, 1, w, to);
        if (bias.data != nullptr) {
          cpu_->add_bias(to, 1, bias);
        }
      };
      const float* const row = operand.data() + i / slots * h;
      product(row, e.gate, e.gate_bias, gate.data());
      product(row, e.up, e.up_bias, up.data());
      cpu_->swiglu(gate.data(), up.data(), inner, e.limit);
      product(rounded(gate.data(), inner).data(), e.down, e.down_bias, y.data() + i * h);
      where[i] = static_cast<std::uint32_t>(i);
    }
    cpu_->combine(y.data(), where, weights, rows, slots, h, out);
  }
  void combine(const float* y, std::span<const std::uint32_t> where, std::span<const float> weights,
               std::size_t rows, std::size_t slots, std::size_t columns, float* out) override {
    cpu_->combine(y, where, weights, rows, slots, columns, out);
  }

 private:
  static std::vector<float> widened(const WeightView& host) {
    std::vector<float> out(host.rows * host.cols);
    widen_rows(host, 0, host.rows, out.data());
    return out;
  }
  static std::vector<float> rounded(const float* x, std::size_t count) {
    std::vector<float> out(x, x + count);
    for (float& v : out) {
      v = model::bf16_to_float(model::float_to_bf16(v));
    }
    return out;
  }
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
  std::vector<std::vector<float>> held_;
  std::vector<const void*> exact_;
};

}  // namespace switchyard
