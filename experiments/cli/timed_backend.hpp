// SPDX-License-Identifier: Apache-2.0
// A backend that does what another one does and adds up how long its calls took. What a step takes
// beyond that is the host's own: scheduling, batches, routing decisions, bookkeeping. On a device
// that works off a queue, a call takes what it takes to queue it, and a download waits for all that
// was queued before; so there, too, the rest is the time that the host works outside of calls.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/backend/backend.hpp"

namespace switchyard::cli {

class TimedBackend : public Backend {
 public:
  /// `inner` is borrowed.
  explicit TimedBackend(Backend& inner) : inner_(inner) {}
  /// Microseconds in calls since the last time this was asked.
  double take_us() { return std::exchange(us_, 0.0); }

  [[nodiscard]] std::string name() const override { return inner_.name(); }
  [[nodiscard]] std::string precision() const override { return inner_.precision(); }
  std::unique_ptr<DeviceBuffer> allocate(std::size_t floats) override {
    return timed([&] { return inner_.allocate(floats); });
  }
  void upload(std::span<const float> host, float* device) override {
    timed([&] { inner_.upload(host, device); });
  }
  void download(const float* device, std::span<float> host) override {
    timed([&] { inner_.download(device, host); });
  }
  WeightView place(const WeightView& host) override { return inner_.place(host); }
  WeightView place_exact(const WeightView& host) override { return inner_.place_exact(host); }
  void embed(const WeightView& table, std::span<const std::uint32_t> tokens, float* out) override {
    timed([&] { inner_.embed(table, tokens, out); });
  }
  void rms_norm(const float* x, std::size_t rows, const WeightView& weight, float eps,
                float* out) override {
    timed([&] { inner_.rms_norm(x, rows, weight, eps, out); });
  }
  void linear(const float* x, std::size_t rows, const WeightView& w, float* out) override {
    timed([&] { inner_.linear(x, rows, w, out); });
  }
  void gather(const float* x, std::span<const std::uint32_t> index, std::size_t columns,
              float* out) override {
    timed([&] { inner_.gather(x, index, columns, out); });
  }
  void add(float* x, const float* y, std::size_t count) override {
    timed([&] { inner_.add(x, y, count); });
  }
  void add_bias(float* x, std::size_t rows, const WeightView& bias) override {
    timed([&] { inner_.add_bias(x, rows, bias); });
  }
  void swiglu(float* gate, const float* up, std::size_t count, float limit) override {
    timed([&] { inner_.swiglu(gate, up, count, limit); });
  }
  void clamp(float* x, std::size_t count, float limit) override {
    timed([&] { inner_.clamp(x, count, limit); });
  }
  void linear_heads(const float* x, std::size_t rows, std::size_t in_stride,
                    std::span<const WeightView> w, std::size_t out_stride, float* out) override {
    timed([&] { inner_.linear_heads(x, rows, in_stride, w, out_stride, out); });
  }
  void copy_columns(const float* x, std::size_t rows, std::size_t in_stride, std::size_t columns,
                    float* out, std::size_t out_stride) override {
    timed([&] { inner_.copy_columns(x, rows, in_stride, columns, out, out_stride); });
  }
  std::unique_ptr<KvPool> make_pool(const AttentionShape& shape,
                                    const KvOptions& options) override {
    return inner_.make_pool(shape, options);
  }
  void attention(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                 std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                 const AttentionRule& rule, float* out) override {
    timed([&] { inner_.attention(layer, q, k, v, rows, caches, positions, rule, out); });
  }
  void advance(KvCache& cache, std::size_t tokens) override { inner_.advance(cache, tokens); }
  void moe(const float* x, std::size_t rows, std::span<const ExpertView> experts,
           std::span<const std::uint16_t> chosen, std::span<const float> weights, std::size_t slots,
           float* out) override {
    timed([&] { inner_.moe(x, rows, experts, chosen, weights, slots, out); });
  }
  void combine(const float* y, std::span<const std::uint32_t> where, std::span<const float> weights,
               std::size_t rows, std::size_t slots, std::size_t columns, float* out) override {
    timed([&] { inner_.combine(y, where, weights, rows, slots, columns, out); });
  }
  bool gate(const GateCall& call, const float* x, std::size_t rows, std::span<float> logits,
            Candidates& out) override {
    return timed([&] { return inner_.gate(call, x, rows, logits, out); });
  }
  bool routed_moe(const GateCall& call, std::span<const ExpertView> experts, const float* x,
                  std::size_t rows, float* out, RoutedLayer& layer) override {
    return timed([&] { return inner_.routed_moe(call, experts, x, rows, out, layer); });
  }
  void finish_routed() override {
    timed([&] { inner_.finish_routed(); });
  }
  void drop_routed() noexcept override { inner_.drop_routed(); }
  bool sample(const float* logits, std::size_t vocab, const SamplingOptions& options,
              std::span<const std::uint32_t> sequence, std::span<const std::uint32_t> position,
              std::span<std::uint32_t> tokens, std::uint64_t& nan_rows) override {
    return timed([&] {
      return inner_.sample(logits, vocab, options, sequence, position, tokens, nan_rows);
    });
  }

 private:
  /// Adds the time until it goes.
  struct Watch {
    double& us;
    std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    ~Watch() {
      us += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                .count();
    }
  };
  template <class F>
  std::invoke_result_t<F> timed(F&& call) {
    const Watch watch{us_};
    return call();
  }

  Backend& inner_;
  double us_ = 0;
};

}  // namespace switchyard::cli
