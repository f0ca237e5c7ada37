// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/backend/cpu_path.hpp"
#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/cli/own_output.hpp"
#include "experiments/cli/profile_host.hpp"
#include "experiments/cli/trace.hpp"
#include "sim/cost/calibrated.hpp"

namespace switchyard::cli {
namespace {

using scenario::OpKind;
using scenario::OpTable;

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
  Profiler(Backend& backend, const ProfileScope& scope, const std::string& library, bool quiet,
           scenario::Calibration& out)
      : backend_(backend), scope_(scope), library_(library), quiet_(quiet), out_(out) {}

  void gemm(const char* what, std::uint64_t n, std::uint64_t k, bool exact) {
    OpTable t = table(OpKind::kGemm, {n, k}, exact);
    for (const OpTable& o : out_.tables) {
      if (o.kind == t.kind && o.shape == t.shape && o.dtype == t.dtype) return;
    }
    require(n * k * (exact ? 4 : 2), what);
    std::vector<float> wide(exact ? n * k : 0);
    std::vector<std::uint16_t> narrow(exact ? 0 : n * k);
    fill(wide);
    fill(narrow);
    const WeightView host{.data = exact ? static_cast<const void*>(wide.data()) : narrow.data(),
                          .type = exact ? WeightType::kF32 : WeightType::kBf16,
                          .rows = n,
                          .cols = k};
    const WeightView w = exact ? backend_.place_exact(host) : backend_.place(host);
    const std::size_t most = std::min<std::size_t>(scope_.most_rows, kMostOutputs / n);
    const auto x = filled(std::max<std::size_t>(most, 1) * k);
    const auto y = backend_.allocate(std::max<std::size_t>(most, 1) * n);
    for (std::size_t m = 1; m == 1 || m <= most; m *= 2) {
      const double us = least_us(y->data(), [&] { backend_.linear(x->data(), m, w, y->data()); });
      t.points.push_back({{static_cast<double>(m), 0, 0}, us});
    }
    done(what, std::move(t));
  }

  void experts(const model::ModelConfig& c) {
    const std::uint64_t h = c.hidden_size, i = c.expert_intermediate, each = 3 * h * i;
    const std::uint64_t count =
        std::min<std::uint64_t>(c.num_experts, scope_.most_bytes / (2 * each));
    if (count < c.top_k) require(2 * each * c.top_k, "experts");
    std::vector<std::uint16_t> weights(count * each);
    fill(weights);
    std::vector<ExpertView> views;
    for (std::uint64_t e = 0; e < count; ++e) {
      const auto view = [&](std::uint64_t at, std::uint64_t rows, std::uint64_t cols) {
        return backend_.place(WeightView{.data = &weights[e * each + at],
                                         .type = WeightType::kBf16,
                                         .rows = rows,
                                         .cols = cols});
      };
      views.push_back(
          {.gate = view(0, i, h), .up = view(h * i, i, h), .down = view(2 * h * i, h, i)});
    }
    const std::size_t k = c.top_k, most = scope_.most_rows;
    OpTable t = table(OpKind::kExperts, {h, i, 3}, false);
    const auto x = filled(most * h);
    const auto y = backend_.allocate(most * h);
    const std::vector<float> shares(most * k, 1.0F / static_cast<float>(k));
    std::vector<std::uint16_t> chosen(most * k);
    for (std::size_t tokens = 1; tokens <= most; tokens *= 2) {
      std::uint64_t last = 0;
      for (std::uint64_t spread = k;; spread *= 2) {
        const std::uint64_t d = std::min<std::uint64_t>({spread, count, tokens * k});
        if (d == last) break;
        last = d;
        for (std::size_t a = 0; a < tokens * k; ++a) chosen[a] = static_cast<std::uint16_t>(a % d);
        const double us = least_us(y->data(), [&] {
          backend_.moe(x->data(), tokens, views, {chosen.data(), tokens * k},
                       {shares.data(), tokens * k}, k, y->data());
        });
        t.points.push_back({{static_cast<double>(tokens * k), static_cast<double>(d),
                             std::ceil(static_cast<double>(tokens * k) / static_cast<double>(d))},
                            us});
      }
    }
    done("experts", std::move(t));
  }

  /// Decode and prefill of one layer with this window (0: none).
  void attention(const model::ModelConfig& c, std::uint64_t window) {
    const std::uint64_t h = c.num_heads, g = c.num_kv_heads, d = c.head_dim;
    std::vector<float> frequency;
    for (std::uint64_t i = 0; i < d / 2; ++i) {
      frequency.push_back(std::pow(1e-4F, static_cast<float>(i) / static_cast<float>(d / 2)));
    }
    AttentionRule rule;
    rule.inverse_frequency = frequency;
    rule.sliding_window = window;
    AttentionShape shape{1, h, g, d};
    shape.windows = {window};
    const std::size_t most =
        std::max({scope_.contexts.back(), scope_.batches.back(),
                  *std::max_element(scope_.prompts.begin(), scope_.prompts.end())});
    const auto q = filled(most * h * d), k = filled(most * g * d), v = filled(most * g * d);
    const auto out = backend_.allocate(most * h * d);
    std::vector<KvCache*> rows;
    std::vector<std::uint32_t> positions;
    const auto attend = [&] {
      backend_.attention(0, q->data(), k->data(), v->data(), rows.size(), rows, positions, rule,
                         out->data());
    };
    /// n rows of one sequence, from `first` on.
    const auto row_of = [&](KvCache& cache, std::size_t first, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) {
        rows.push_back(&cache);
        positions.push_back(static_cast<std::uint32_t>(first + i));
      }
    };
    OpTable prefill = table(OpKind::kAttentionPrefill, {h, g, d, window}, true);
    for (const std::size_t n : scope_.prompts) {
      const auto pool = backend_.make_pool(shape, {});
      const auto cache = pool->make_cache();
      rows.clear();
      positions.clear();
      row_of(*cache, 0, n);
      prefill.points.push_back({{1, static_cast<double>(n), 0}, least_us(out->data(), attend)});
    }
    done("prefill", std::move(prefill));
    OpTable decode = table(OpKind::kAttentionDecode, {h, g, d, window}, true);
    const auto pool = backend_.make_pool(shape, {});
    std::vector<std::unique_ptr<KvCache>> caches;
    for (std::size_t b = 0; b < scope_.batches.back(); ++b) {
      caches.push_back(pool->make_cache());
    }
    std::size_t held = 0;  // tokens in each cache
    for (const std::size_t context : scope_.contexts) {
      for (const auto& cache : caches) {
        if (context - 1 == held) {
          break;
        }
        rows.clear();
        positions.clear();
        row_of(*cache, held, context - 1 - held);
        attend();
        backend_.advance(*cache, context - 1 - held);
      }
      held = context - 1;
      for (const std::size_t batch : scope_.batches) {
        rows.clear();
        positions.clear();
        for (std::size_t b = 0; b < batch; ++b) {
          row_of(*caches[b], held, 1);
        }
        decode.points.push_back({{static_cast<double>(batch), static_cast<double>(context), 0},
                                 least_us(out->data(), attend)});
      }
    }
    done("decode", std::move(decode));
  }

  /// Peaks are the best rates that any point shows (of a cache, where the weights fit into one): of
  /// the bytes and FLOPs that the operation cannot do without, not of the whole tiles by which a
  /// table's times go on.
  void finish() {
    double bytes_per_s = 0, flops_per_s = 0;
    for (const OpTable& t : out_.tables) {
      for (const scenario::OpPoint& p : t.points) {
        bytes_per_s = std::max(bytes_per_s, least_us_at(t, p, 1, kNoLimit) / p.us);
        flops_per_s = std::max(flops_per_s, least_us_at(t, p, kNoLimit, 1) / p.us);
      }
    }
    out_.hbm.value = bytes_per_s;
    out_.link = out_.hbm;
    set_peak(flops_per_s);
    sim::fit_tables(out_);
  }
  void set_peak(double rate) {
    out_.peak = {};
    for (const model::DType d : {model::DType::kF32, model::DType::kBf16}) {
      out_.peak[static_cast<std::size_t>(d)].value = rate;
    }
  }

 private:
  static constexpr double kNoLimit = 1e300;

  /// Microseconds of a point on a machine of `bytes` B/s and `flops` FLOP/s, nothing wasted: with 1
  /// and no limit 1e6 times the bytes it needs at least, with no limit and 1 the FLOPs.
  static double least_us_at(const OpTable& t, const scenario::OpPoint& p, double bytes,
                            double flops) {
    scenario::Calibration c;
    c.hbm.value = c.link.value = bytes;
    for (auto& rate : c.peak) rate.value = flops;
    return sim::use_of(c, t, p.at).floor_us;
  }

  static constexpr std::size_t kMostOutputs = std::size_t{1} << 28;  // floats of one result

  /// The least time of a call, of at least three rounds and 20 ms; microseconds. `any`: a float
  /// that the calls write; reading it waits for them.
  template <class F>
  double least_us(const float* any, F&& run) {
    using Clock = std::chrono::steady_clock;
    float word = 0;
    const auto wait = [&] { backend_.download(any, {&word, 1}); };
    run();  // First touch of the pages.
    wait();
    double best = 0, sum = 0;
    for (int i = 0; i < 200 && (i < 3 || sum < 2e4); ++i) {
      const auto begin = Clock::now();
      for (int n = 0; n < scope_.calls; ++n) {
        run();
      }
      wait();
      const double us =
          std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / scope_.calls;
      best = i == 0 ? us : std::min(best, us);
      sum += us * scope_.calls;
    }
    return std::max(best, 1e-3);
  }
  std::unique_ptr<DeviceBuffer> filled(std::size_t count) {
    std::vector<float> values(count);
    fill(values);
    auto buffer = backend_.allocate(count);
    backend_.upload(values, buffer->data());
    return buffer;
  }
  OpTable table(OpKind kind, std::vector<std::uint64_t> shape, bool fp32) {
    OpTable t;
    t.kind = kind;
    t.library = library_;
    t.dtype = fp32 ? model::DType::kF32 : model::DType::kBf16;
    t.shape = std::move(shape);
    return t;
  }
  void require(std::uint64_t bytes, const char* what) const {
    if (bytes > scope_.most_bytes) {
      throw InputError("--model",
                       fmt::format("{} need {} bytes of weights, at most {} are measured", what,
                                   bytes, scope_.most_bytes),
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

  Backend& backend_;
  const ProfileScope& scope_;
  const std::string& library_;
  bool quiet_;
  scenario::Calibration& out_;
};

}  // namespace

ProfileScope profile_scope(const std::string& device) {
  if (device == "cuda") {
    return {6'000'000'000,
            4096,
            {128, 512, 1024, 2048, 4096},
            {1, 8, 32},
            {64, 128, 256, 512, 1024, 2048, 4096},
            20};
  }
  return {1'500'000'000, 64, {16, 64, 128, 256, 512}, {1, 2, 4}, {4, 8, 16, 32, 64, 128, 256}, 1};
}

scenario::Calibration measure_operations(Backend& backend, const model::ModelConfig& c,
                                         const ProfileScope& scope, const std::string& library,
                                         bool quiet) {
  scenario::Calibration out;
  out.licence = "Apache-2.0";
  Profiler profiler(backend, scope, library, quiet, out);
  const std::uint64_t q = c.num_heads * c.head_dim, kv = 2 * c.num_kv_heads * c.head_dim;
  profiler.gemm("QKV", q + kv, c.hidden_size, false);
  profiler.gemm("output", c.hidden_size, q, false);
  std::set<std::uint64_t> windows;
  for (const auto& layer : c.layers) {
    windows.insert(layer.sliding_window);
  }
  for (const std::uint64_t window : windows) {
    profiler.attention(c, window);
  }
  if (c.num_moe_layers() > 0) {
    profiler.gemm("gate", c.num_experts, c.hidden_size, true);
    profiler.experts(c);
  }
  profiler.gemm("head", c.vocab_size, c.hidden_size, false);
  profiler.finish();
  return out;
}

int run_profile(const ProfileOptions& options) {
  require_own_output("-o", options.output, {{"the model", options.model}});
  ParentFolders folders;
  folders.make("-o", options.output);
  if (options.threads == 0 || options.threads > 4096) {
    throw InputError("--threads", "Violated: 1 <= threads <= 4096");
  }
  std::unique_ptr<Backend> backend = device_backend(options.device, options.dtype, 1);
  const bool on_gpu = backend != nullptr;
  if (!on_gpu) {
    backend = make_cpu_backend(options.threads);
  }
  const model::ModelConfig c =
      model::read_model_config(model::find_model(options.model, options.root));
  if (c.attention == model::AttentionKind::kMla) {
    throw InputError("--model", "profile of latent attention is unsupported", "name a GQA model");
  }
  if (c.num_moe_layers() > 0 && c.expert_kind == model::ExpertKind::kTwoMatrix) {
    throw InputError("--model", "profile of two-matrix experts is unsupported");
  }
  const std::string library =
      fmt::format("switchyard {} {}", version(),
                  on_gpu ? backend->name() + " " + backend->precision() : cpu::path().name);
  scenario::Calibration out =
      measure_operations(*backend, c, profile_scope(options.device), library, options.quiet);
  out.tables.push_back(measure_host(*backend, c, {}, library));
  if (!options.quiet) {
    const OpTable& host = out.tables.back();
    fmt::print("{:<8} {:<9} {:>3} points, {:.4g} us a step, {:.4g} us a sequence\n", "host", "-",
               host.points.size(), host.overhead_us, host.per_sequence_us);
  }
  out.device = options.name.empty() ? options.device : options.name;
  out.source = fmt::format(
      "switchyard {} profile, {}", version(),
      on_gpu ? backend->name()
             : fmt::format("{} thread{}", options.threads, options.threads == 1 ? "" : "s"));
  write_file(options.output, scenario::calibration_text(out));
  if (!options.quiet) {
    fmt::print("{}: best rates {} and {:.4g} GFLOP/s\n", options.output.string(),
               format_rate(out.hbm),
               out.peak[static_cast<std::size_t>(model::DType::kBf16)].value * 1e-9);
  }
  return 0;
}

}  // namespace switchyard::cli
