// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/backend/cpu_kernels.hpp"
#include "engine/backend/cpu_path.hpp"
#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "engine/model/model_config.hpp"
#include "sim/cost/calibrated.hpp"

namespace switchyard::cli {
namespace {

using scenario::OpKind;
using scenario::OpTable;

constexpr std::uint64_t kMostBytes = 1'500'000'000;  // Weights in memory at once.
constexpr std::size_t kMostRows = 64;

/// The least time of at least three runs and 20 ms; microseconds.
template <class F>
double least_us(F&& run) {
  using Clock = std::chrono::steady_clock;
  run();  // First touch of the pages.
  double best = 0, sum = 0;
  for (int i = 0; i < 200 && (i < 3 || sum < 2e4); ++i) {
    const auto begin = Clock::now();
    run();
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    best = i == 0 ? us : std::min(best, us);
    sum += us;
  }
  return std::max(best, 1e-3);
}

/// Values that are no denormals and no constants; a timing does not depend on them otherwise.
void fill(std::vector<float>& x) {
  std::uint32_t s = 1;
  for (float& v : x) {
    s = s * 1664525U + 1013904223U;
    v = static_cast<float>(s >> 8U) / static_cast<float>(1U << 24U) - 0.5F;
  }
}
void fill(std::vector<std::uint16_t>& x) {
  std::uint32_t s = 1;
  for (std::uint16_t& v : x) {
    s = s * 1664525U + 1013904223U;
    v = static_cast<std::uint16_t>(0x3C00U | ((s >> 16U) & 0x80FFU));  // bf16 of about ±0.01
  }
}

class Profiler {
 public:
  Profiler(const ProfileOptions& options, scenario::Calibration& out)
      : backend_(make_cpu_backend(options.threads)), quiet_(options.quiet), out_(out) {}

  void gemm(const char* what, std::uint64_t n, std::uint64_t k, bool fp32) {
    OpTable t = table(OpKind::kGemm, {n, k}, fp32);
    for (const OpTable& o : out_.tables) {
      if (o.kind == t.kind && o.shape == t.shape && o.dtype == t.dtype) return;
    }
    require(n * k * (fp32 ? 4 : 2), what);
    std::vector<float> wide(fp32 ? n * k : 0), x(kMostRows * k), y(kMostRows * n);
    std::vector<std::uint16_t> narrow(fp32 ? 0 : n * k);
    fill(wide);
    fill(narrow);
    fill(x);
    const WeightView w{.data = fp32 ? static_cast<const void*>(wide.data()) : narrow.data(),
                       .type = fp32 ? WeightType::kF32 : WeightType::kBf16,
                       .rows = n,
                       .cols = k};
    for (std::size_t m = 1; m <= kMostRows; m *= 2) {
      const double us = least_us([&] { backend_->linear(x.data(), m, w, y.data()); });
      t.points.push_back({{static_cast<double>(m), 0, 0}, us});
    }
    done(what, std::move(t));
  }

  void experts(const model::ModelConfig& c) {
    const std::uint64_t h = c.hidden_size, i = c.expert_intermediate, each = 3 * h * i;
    const std::uint64_t count = std::min<std::uint64_t>(c.num_experts, kMostBytes / (2 * each));
    if (count < c.top_k) require(2 * each * c.top_k, "experts");
    std::vector<std::uint16_t> weights(count * each);
    fill(weights);
    std::vector<ExpertView> views;
    for (std::uint64_t e = 0; e < count; ++e) {
      const auto view = [&](std::uint64_t at, std::uint64_t rows, std::uint64_t cols) {
        return WeightView{
            .data = &weights[e * each + at], .type = WeightType::kBf16, .rows = rows, .cols = cols};
      };
      views.push_back(
          {.gate = view(0, i, h), .up = view(h * i, i, h), .down = view(2 * h * i, h, i)});
    }
    const std::size_t k = c.top_k;
    OpTable t = table(OpKind::kExperts, {h, i, 3}, false);
    std::vector<float> x(kMostRows * h), y(kMostRows * h),
        shares(kMostRows * k, 1.0F / static_cast<float>(k));
    fill(x);
    std::vector<std::uint16_t> chosen(kMostRows * k);
    for (std::size_t tokens = 1; tokens <= kMostRows; tokens *= 2) {
      std::uint64_t last = 0;
      for (std::uint64_t spread = k;; spread *= 2) {
        const std::uint64_t d = std::min<std::uint64_t>({spread, count, tokens * k});
        if (d == last) break;
        last = d;
        for (std::size_t a = 0; a < tokens * k; ++a) chosen[a] = static_cast<std::uint16_t>(a % d);
        const double us = least_us([&] {
          backend_->moe(x.data(), tokens, views, {chosen.data(), tokens * k},
                        {shares.data(), tokens * k}, k, y.data());
        });
        t.points.push_back({{static_cast<double>(tokens * k), static_cast<double>(d),
                             std::ceil(static_cast<double>(tokens * k) / static_cast<double>(d))},
                            us});
      }
    }
    done("experts", std::move(t));
  }

  /// Peaks are the best rates that any point shows (of a cache, where the weights fit into one), so
  /// that no share exceeds 1.
  void finish() {
    double bytes_per_us = 0, flops_per_us = 0;
    for (const OpTable& t : out_.tables) {
      for (const scenario::OpPoint& p : t.points) {
        const sim::OpUse use = sim::use_of(out_, t, p.at);
        bytes_per_us = std::max(bytes_per_us, use.rate_us * out_.hbm.value * 1e-6 / p.us);
        flops_per_us = std::max(flops_per_us, use.compute_us * rate_ * 1e-6 / p.us);
      }
    }
    out_.hbm.value = bytes_per_us * 1e6;
    out_.link = out_.hbm;
    set_peak(flops_per_us * 1e6);
    sim::fit_tables(out_);
  }
  void set_peak(double rate) {
    rate_ = rate;
    out_.peak = {};
    for (const model::DType d : {model::DType::kF32, model::DType::kBf16}) {
      out_.peak[static_cast<std::size_t>(d)].value = rate;
    }
  }

 private:
  OpTable table(OpKind kind, std::vector<std::uint64_t> shape, bool fp32) {
    OpTable t;
    t.kind = kind;
    t.library = fmt::format("switchyard {} {}", version(), cpu::path().name);
    t.dtype = fp32 ? model::DType::kF32 : model::DType::kBf16;
    t.shape = std::move(shape);
    return t;
  }
  static void require(std::uint64_t bytes, const char* what) {
    if (bytes > kMostBytes) {
      throw InputError("--model",
                       fmt::format("{} need {} bytes of weights, at most {} are measured", what,
                                   bytes, kMostBytes),
                       "profile a smaller model");
    }
  }
  void done(const char* what, OpTable t) {
    if (!quiet_) {
      fmt::print("{:<8} {:<9} {:>3} points, {:.4g} to {:.4g} us\n", what,
                 model::dtype_name(t.dtype), t.points.size(), t.points.front().us,
                 t.points.back().us);
    }
    out_.tables.push_back(std::move(t));
  }

  std::unique_ptr<Backend> backend_;
  bool quiet_;
  scenario::Calibration& out_;
  double rate_ = 0;
};

}  // namespace

int run_profile(const ProfileOptions& options) {
  if (options.device == "cuda") {
    throw CapabilityError("unsupported: profile --device cuda is not in this version");
  }
  if (options.device != "cpu") {
    throw InputError("--device", fmt::format("unknown device \"{}\"", options.device),
                     "known: cpu");
  }
  if (options.threads == 0 || options.threads > 4096) {
    throw InputError("--threads", "Violated: 1 <= threads <= 4096");
  }
  const model::ModelConfig c =
      model::read_model_config(model::find_model(options.model, options.root));
  if (c.attention == model::AttentionKind::kMla) {
    throw InputError("--model", "profile of latent attention is unsupported", "name a GQA model");
  }
  if (c.num_moe_layers() > 0 && c.expert_kind == model::ExpertKind::kTwoMatrix) {
    throw InputError("--model", "profile of two-matrix experts is unsupported");
  }
  scenario::Calibration out;
  out.device = options.name;
  out.source = fmt::format("switchyard {} profile, {} thread{}", version(), options.threads,
                           options.threads == 1 ? "" : "s");
  out.licence = "Apache-2.0";
  out.hbm.value = 1e9;  // Until finish() has seen what there is.
  out.link.value = 1e9;
  Profiler profiler(options, out);
  profiler.set_peak(1e9);
  const std::uint64_t q = c.num_heads * c.head_dim, kv = 2 * c.num_kv_heads * c.head_dim;
  profiler.gemm("QKV", q + kv, c.hidden_size, false);
  profiler.gemm("output", c.hidden_size, q, false);
  if (c.num_moe_layers() > 0) {
    profiler.gemm("gate", c.num_experts, c.hidden_size, true);
    profiler.experts(c);
  }
  profiler.gemm("head", c.vocab_size, c.hidden_size, false);
  profiler.finish();
  write_file(options.output, scenario::calibration_text(out));
  if (!options.quiet) {
    fmt::print("{}: best rates {} and {:.4g} GFLOP/s\n", options.output.string(),
               format_rate(out.hbm),
               out.peak[static_cast<std::size_t>(model::DType::kBf16)].value * 1e-9);
  }
  return 0;
}

}  // namespace switchyard::cli
