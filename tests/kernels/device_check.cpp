// SPDX-License-Identifier: Apache-2.0
// switchyard-device: everything a GPU has to confirm, in one program without other needs.
//   --model DIR   compares this checkpoint on both backends
//   --out F.json  results; --calibration F.toml  times of experts, dense products and attention
//   --small       few shapes, for compute-sanitizer and for the host executor
//   --device, --hbm, --peak   of the calibration, e.g. h200, "4.8 TB/s", "989 TFLOP/s"
// Exit 0: all agreed; 1: something did not; 2: a mistake in the arguments; 3: no GPU.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/units.hpp"
#include "engine/base/version.hpp"
#include "engine/nn/session.hpp"
#include "kernels/cuda_backend.hpp"
#include "kernels/dense_library.hpp"
#include "kernels/grouped_library.hpp"
#include "tests/kernels/model_checks.hpp"

namespace switchyard::kernels {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string model, out, calibration, device = "h200", hbm = "4.8 TB/s", peak = "989 TFLOP/s";
  bool small = false;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ------------------------------------------------------------------------------ correctness

/// Runs the shapes (in --small every `stride`-th) and says what failed first.
template <class Shape>
bool run_checks(const char* name, const std::vector<Shape>& shapes, std::size_t stride,
                ordered_json& out) {
  const double start = seconds();
  std::size_t run = 0;
  std::size_t failed = 0;
  std::string first;
  for (std::size_t i = 0; i < shapes.size(); i += stride) {
    const std::string what = check(shapes[i]);
    ++run;
    if (!what.empty()) {
      ++failed;
      first = first.empty() ? what : first;
    }
  }
  out[name] = {{"shapes", run}, {"failed", failed}, {"seconds", seconds() - start}};
  if (failed > 0) {
    out[name]["first"] = first;
  }
  fmt::print("{:<12} {:>4} shapes, {} failed{}{}\n", name, run, failed, failed > 0 ? ": " : "",
             first);
  return failed == 0;
}

bool check_kernels(bool small, ordered_json& out) {
  const std::size_t n = small ? 16 : 1;
  bool good = run_checks("router", router_shapes(), n, out);
  good = run_checks("capacity", capacity_shapes(), n, out) && good;
  good = run_checks("choose", choose_shapes(), n, out) && good;
  good = run_checks("sort", sort_shapes(), n, out) && good;
  good = run_checks("combine", combine_shapes(), n, out) && good;
  good = run_checks("linear", linear_shapes(), n, out) && good;
  good = run_checks("moe", moe_shapes(), n, out) && good;
  good = run_checks("grouped", grouped_shapes(), small ? 2 : 1, out) && good;
  good = run_checks("dense", dense_shapes(), small ? 2 : 1, out) && good;
  good = run_checks("gate", gate_shapes(), n, out) && good;
  good = run_checks("attention", attention_cases(), small ? 4 : 1, out) && good;
  good = run_checks("rows", rows_shapes(), small ? 4 : 1, out) && good;
  return run_checks("sampling", sampling_shapes(), n, out) && good;
}

// ------------------------------------------------------------------------------------ models

/// The larger; a NaN counts as infinite, so that it cannot pass a check from below.
double larger(double a, double b) {
  return std::isnan(b) ? std::numeric_limits<double>::infinity() : std::max(a, b);
}

/// Bounds of the logits' NMSE and of the distance of gate logits where other experts were taken;
/// those of backend_test.cpp.
struct Bounds {
  double nmse, near_tie;
};
constexpr Bounds kF32{1e-9, 1e-4};
constexpr Bounds kBf16{2e-5, 0.05};
constexpr Bounds kBf16Random{5e-3, 1.0};  // random weights, as --small may get

/// The checkpoint on both backends, teacher-forced; experts may differ at near ties only. A run
/// whose logits were never compared does not agree.
bool compare_model(const Options& options, bool bf16, ordered_json& out) {
  std::string why;
  const Engine cpu = Engine::load(options.model, {});
  const double loading = seconds();
  std::unique_ptr<gpu::DenseLibrary> dense = bf16 ? gpu::open_cublas_lt(why) : nullptr;
  const Engine gpu = Engine::load_on(
      options.model,
      gpu::make_cuda_backend(gpu::open_device(why), {.bf16 = bf16}, std::move(dense)));
  std::vector<std::uint32_t> prompt;
  const auto vocab = static_cast<std::uint32_t>(cpu.config().vocab_size);
  for (std::uint32_t i = 0; i < (options.small ? 4U : 64U); ++i) {
    prompt.push_back((i * 37 + 11) % vocab);
  }
  // The first token of a process, with loading and without, and of a later sequence.
  std::array<double, 2> first{};
  double loaded = 0;
  for (std::size_t run = 0; run < first.size(); ++run) {
    const double start = seconds();
    loaded = run == 0 ? start - loading : loaded;
    Session session(gpu, {.policy = {}, .sampling = SamplingOptions{}});
    const SequenceTokens work{session.add_sequence(), prompt};
    (void)session.step({&work, 1}, Phase::kPrefill);
    first[run] = seconds() - start;
  }
  Session expected(cpu, {});
  Session got(gpu, {});
  (void)expected.add_sequence();
  (void)got.add_sequence();
  std::size_t slots = 0, differing = 0, steps = 0, compared = 0;
  double largest_margin = 0, worst = 0;
  std::vector<double> tokens;
  for (std::uint32_t step = 0; step < (options.small ? 2U : 16U); ++step, ++steps) {
    const std::vector<std::uint32_t> next =
        step == 0 ? prompt : std::vector<std::uint32_t>{(step * 53 + 7) % vocab};
    const SequenceTokens work{0, next};
    const Phase phase = step == 0 ? Phase::kPrefill : Phase::kDecode;
    const StepResult& e = expected.step({&work, 1}, phase);
    const double start = seconds();
    const StepResult& g = got.step({&work, 1}, phase);
    if (step > 0) {
      tokens.push_back(seconds() - start);
    }
    bool same = true;
    for (std::size_t l = 0; l < e.layers.size(); ++l) {
      const LayerDecision& want = e.layers[l].decision;
      const LayerDecision& have = g.layers[l].decision;
      for (std::size_t i = 0; i < want.chosen.size(); ++i, ++slots) {
        if (want.chosen[i] != have.chosen[i]) {
          const std::size_t row = (l * e.tokens() + i / want.slots) * cpu.gate().experts;
          same = false;
          ++differing;
          largest_margin = larger(
              largest_margin, std::abs(static_cast<double>(e.router_logits[row + want.chosen[i]]) -
                                       e.router_logits[row + have.chosen[i]]));
        }
      }
    }
    if (!same) {
      break;  // what follows differs with the experts
    }
    double error = 0, size = 0;
    for (std::size_t i = 0; i < e.logits.size(); ++i) {
      const double d = static_cast<double>(g.logits[i]) - e.logits[i];
      error += d * d;
      size += static_cast<double>(e.logits[i]) * e.logits[i];
    }
    worst = larger(worst, error / size);
    ++compared;
  }
  const Bounds bound = !bf16 ? kF32 : options.small ? kBf16Random : kBf16;
  // In BF16 other experts at a near tie of the first step end the comparison, but not the
  // agreement.
  const bool good = (compared > 0 || (bf16 && differing > 0)) && worst < bound.nmse &&
                    largest_margin < bound.near_tie;
  std::sort(tokens.begin(), tokens.end());
  out = {{"backend", gpu.backend().name()},
         {"steps", steps},
         {"steps compared", compared},
         {"slots", slots},
         {"slots on other experts", differing},
         {"largest margin of those", largest_margin},
         {"logits NMSE", worst},
         {"loading [ms]", loaded * 1e3},
         {"first token cold [ms]", first[0] * 1e3},
         {"first token warm [ms]", first[1] * 1e3},
         {"token warm [ms]", tokens.empty() ? 0.0 : tokens[tokens.size() / 2] * 1e3},
         {"agrees", good}};
  fmt::print("model {} {} slots, {} on other experts (margin {:.2e}), NMSE {:.2e}: {}\n",
             bf16 ? "bf16" : "f32 ", slots, differing, largest_margin, worst,
             good ? "agrees" : "DIFFERS");
  return good;
}

// ------------------------------------------------------------------------------------- times

struct Layer {
  const char* name;
  std::uint32_t hidden, inner, experts, slots;
};

/// Device arrays of one measurement; given back together.
class Arena {
 public:
  explicit Arena(gpu::Device& device) : device_(device) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (void* p : taken_) {
      device_.give_back(p);
    }
  }
  template <class T>
  T* take(std::size_t count) {
    void* const p = device_.take(std::max<std::size_t>(count, 1) * sizeof(T));
    if (p == nullptr) {
      throw CapabilityError(fmt::format("out of GPU memory: {} bytes", count * sizeof(T)));
    }
    taken_.push_back(p);
    return static_cast<T*>(p);
  }
  template <class T>
  T* copy(const std::vector<T>& host) {
    T* const p = take<T>(host.size());
    if (!host.empty() && !device_.copy_in(p, host.data(), host.size() * sizeof(T))) {
      throw CapabilityError(device_.error());
    }
    return p;
  }

 private:
  gpu::Device& device_;
  std::vector<void*> taken_;
};

/// Median microseconds of `body` (which launches), after a warm-up.
template <class F>
double time_us(gpu::Device& device, const void* any, bool small, const F& body) {
  const int batch = small ? 1 : 20;
  std::vector<double> times;
  std::uint32_t word = 0;
  for (int round = 0; round < (small ? 2 : 6); ++round) {
    const double start = seconds();
    for (int i = 0; i < batch; ++i) {
      if (body() != gpu::Status::kOk) {
        throw CapabilityError("a launch failed: " + device.error());
      }
    }
    if (!device.copy_out(&word, any, sizeof word)) {
      throw CapabilityError(device.error());
    }
    if (round > 0) {
      times.push_back((seconds() - start) / batch * 1e6);
    }
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Point {
  std::uint64_t rows, distinct, most;
  double us;
};

/// A table of the calibration (sim/scenario/calibration.hpp): arguments and microseconds.
struct OpTimes {
  std::string op, dtype, shape;
  std::vector<std::array<double, 4>> points;  // up to three arguments, then the time
  std::size_t arguments;
  /// Bytes and FLOP of a point, as calibrated.hpp counts them.
  std::function<std::pair<double, double>(const std::array<double, 4>&)> use;
};

double error_of(const std::vector<float>& got, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    error = std::isnan(d) ? std::numeric_limits<double>::infinity() : error + d * d;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return size > 0 ? error / size : error;
}

std::vector<gpu::Bf16> noise_of(std::size_t count, Dice& dice) {
  std::vector<gpu::Bf16> out(count);
  const std::size_t own = std::min<std::size_t>(count, std::size_t{1} << 16);
  for (std::size_t i = 0; i < own; ++i) {
    gpu::store(&out[i], static_cast<float>(dice.normal() / 64));
  }
  for (std::size_t i = own; i < count; ++i) {
    out[i] = out[i - own];
  }
  return out;
}

/// Dense products: ours of few and of many rows, cuBLASLt's where it is there, and whether the two
/// agree. The table takes the faster of ours and the library's.
bool time_dense(gpu::Device& device, const Options& options, ordered_json& out,
                std::vector<OpTimes>& tables) {
  std::string why;
  const std::unique_ptr<gpu::DenseLibrary> library = gpu::open_cublas_lt(why);
  out["library"] = library != nullptr ? library->name() : "none: " + why;
  fmt::print("dense        {}\n", out["library"].get<std::string>());
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> shapes =
      options.small ? std::vector<std::pair<std::uint32_t, std::uint32_t>>{{24, 32}}
                    : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
                          {6144, 4096}, {4096, 4096}, {5120, 2048}, {2048, 4096}, {7168, 7168}};
  const std::vector<std::uint32_t> rows = options.small
                                              ? std::vector<std::uint32_t>{1, 9}
                                              : std::vector<std::uint32_t>{1, 8, 64, 512, 4096};
  bool good = true;
  for (const auto& [n, k] : shapes) {
    Arena arena(device);
    Dice dice(n + k);
    const std::uint32_t most = rows.back();
    const gpu::Bf16* const w = arena.copy(noise_of(std::size_t{n} * k, dice));
    const std::vector<gpu::Bf16> half = noise_of(std::size_t{most} * k, dice);
    std::vector<float> wide(half.size());
    std::transform(half.begin(), half.end(), wide.begin(), [](gpu::Bf16 v) { return to_float(v); });
    const gpu::Bf16* const x = arena.copy(half);
    const float* const x_wide = arena.copy(wide);
    auto* const y = arena.take<float>(std::size_t{most} * n);
    std::vector<float> first_rows;  // of the library, at its smallest number of rows
    OpTimes table{
        "gemm", "bf16", fmt::format("{}, {}", n, k), {}, 1, [n = n, k = k](const auto& p) {
          const double m = p[0], a = n, b = k;
          return std::pair{a * b * 2 + m * (a + b) * 2, 2 * m * a * b};
        }};
    ordered_json list = ordered_json::array();
    for (const std::uint32_t m : rows) {
      ordered_json row{{"rows", m}};
      double best = 0;
      const auto take = [&](const char* name, double us) {
        row[name] = us;
        best = best > 0 ? std::min(best, us) : us;
      };
      std::vector<float> ours(std::size_t{m} * n);
      if (m <= 64) {
        LinearParams few;
        few.rows = m;
        few.outputs = n;
        few.depth = k;
        few.type = gpu::Stored::kBf16;
        few.w = w;
        few.x = x_wide;
        few.x_stride = k;
        few.out = y;
        few.out_stride = n;
        few.aligned = true;
        take("few rows [us]",
             time_us(device, y, options.small, [&] { return launch(few, device.stream()); }));
      }
      DenseGemmParams many;
      many.rows = m;
      many.outputs = n;
      many.depth = k;
      many.w = w;
      many.x = x;
      many.x_stride = k;
      many.out = y;
      many.out_stride = n;
      take("tensor cores [us]",
           time_us(device, y, options.small, [&] { return launch(many, device.stream()); }));
      good = device.copy_out(ours.data(), y, ours.size() * sizeof(float)) && good;
      if (library != nullptr) {
        const gpu::DenseProduct product{m, n, k, w, x, k, y, n};
        if (library->multiply(product, device.stream()) == gpu::Status::kOk) {
          take("library [us]", time_us(device, y, options.small, [&] {
                 return library->multiply(product, device.stream());
               }));
          std::vector<float> theirs(ours.size());
          good = device.copy_out(theirs.data(), y, theirs.size() * sizeof(float)) && good;
          const double error = error_of(theirs, ours);
          row["library against ours, NMSE"] = error;
          good = good && error < 1e-9;
          if (first_rows.empty()) {
            first_rows.assign(theirs.begin(), theirs.begin() + n);
          }
          row["library keeps a row's bits"] =
              std::equal(first_rows.begin(), first_rows.end(), theirs.begin());
        } else {
          row["library"] = "refuses the shape";
        }
      }
      fmt::print("dense {}x{} {:>5} rows: {:.1f} us\n", n, k, m, best);
      table.points.push_back({static_cast<double>(m), best, 0, 0});
      list.push_back(row);
    }
    out[fmt::format("{} x {}", n, k)] = list;
    tables.push_back(std::move(table));
  }
  out["agrees"] = good;
  return good;
}

/// Attention of one layer, keys and values in float32: decode and prefill.
void time_attention(gpu::Device& device, const Options& options, ordered_json& out,
                    std::vector<OpTimes>& tables) {
  struct Heads {
    std::uint32_t heads, kv_heads, dim;
  };
  const std::vector<Heads> shapes = options.small ? std::vector<Heads>{{4, 2, 16}}
                                                  : std::vector<Heads>{{32, 8, 128}, {32, 4, 128}};
  constexpr std::uint32_t kBlock = 16;
  for (const Heads& s : shapes) {
    const auto measure = [&](std::uint32_t sequences, std::uint32_t rows, std::uint32_t context) {
      Arena arena(device);
      const std::uint32_t blocks = (context + kBlock - 1) / kBlock;
      const std::size_t block = std::size_t{2} * s.kv_heads * kBlock * s.dim;
      Dice dice(rows + context);
      const std::size_t floats = std::size_t{sequences} * blocks * block;
      auto* const cache = arena.take<float>(floats);
      const std::vector<float> noise = normals(std::min<std::size_t>(floats, 1U << 16), dice);
      for (std::size_t at = 0; at < floats; at += noise.size()) {
        const std::size_t n = std::min(noise.size(), floats - at);
        if (!device.copy_in(cache + at, noise.data(), n * sizeof(float))) {
          throw CapabilityError(device.error());
        }
      }
      std::vector<float*> held;
      std::vector<std::uint32_t> position, sequence;
      for (std::uint32_t q = 0; q < sequences; ++q) {
        for (std::uint32_t b = 0; b < blocks; ++b) {
          held.push_back(cache + (std::size_t{q} * blocks + b) * block);
        }
        for (std::uint32_t r = 0; r < rows; ++r) {
          position.push_back(context - rows + r);
          sequence.push_back(q);
        }
      }
      const std::vector<float> frequency(s.dim / 2, 0.01F);
      AttentionParams p;
      p.rows = sequences * rows;
      p.heads = s.heads;
      p.kv_heads = s.kv_heads;
      p.head_dim = p.value_dim = s.dim;
      p.half = s.dim / 2;
      p.block = kBlock;
      p.scale = 1.0F / std::sqrt(static_cast<float>(s.dim));
      p.frequency = arena.copy(frequency);
      p.position = arena.copy(position);
      p.sequence = arena.copy(sequence);
      p.table = arena.copy(held);
      p.table_width = blocks;
      p.first_block = arena.copy(std::vector<std::uint32_t>(sequences, 0));
      p.q = arena.copy(normals(std::size_t{p.rows} * s.heads * s.dim, dice));
      p.k = arena.copy(normals(std::size_t{p.rows} * s.kv_heads * s.dim, dice));
      p.v = arena.copy(normals(std::size_t{p.rows} * s.kv_heads * s.dim, dice));
      p.out = arena.take<float>(std::size_t{p.rows} * s.heads * s.dim);
      p.longest = context;
      p.workspace_size = workspace_bytes(p);
      p.workspace = arena.take<float>(p.workspace_size / sizeof(float));
      return time_us(device, p.out, options.small, [&] { return launch(p, device.stream()); });
    };
    const std::string shape = fmt::format("{}, {}, {}, 0", s.heads, s.kv_heads, s.dim);
    const double kv = 2.0 * s.kv_heads * s.dim * 4, qo = 2.0 * s.heads * s.dim * 2;
    const double pair = 4.0 * s.heads * s.dim;
    OpTimes decode{"attention_decode", "fp32", shape, {}, 2, [=](const auto& p) {
                     const double seen = std::ceil(p[1] / 128) * 128;
                     return std::pair{p[0] * (seen * kv + qo), pair * p[0] * seen};
                   }};
    OpTimes prefill{
        "attention_prefill", "fp32", shape, {}, 3, [=](const auto& p) {
          return std::pair{p[0] * (p[1] * kv + p[1] * qo), pair * p[0] * p[1] * (p[1] + 1) / 2};
        }};
    ordered_json& list = out[fmt::format("heads {}/{}, width {}", s.heads, s.kv_heads, s.dim)];
    for (const std::uint32_t context : options.small
                                           ? std::vector<std::uint32_t>{20}
                                           : std::vector<std::uint32_t>{128, 1024, 4096}) {
      for (const std::uint32_t batch :
           options.small ? std::vector<std::uint32_t>{2} : std::vector<std::uint32_t>{1, 8, 32}) {
        const double us = measure(batch, 1, context);
        decode.points.push_back({static_cast<double>(batch), static_cast<double>(context), us, 0});
        list["decode"].push_back({{"sequences", batch}, {"positions", context}, {"us", us}});
        fmt::print("attention {} x {} positions: {:.1f} us\n", batch, context, us);
      }
    }
    for (const std::uint32_t n : options.small ? std::vector<std::uint32_t>{6}
                                               : std::vector<std::uint32_t>{128, 512, 2048}) {
      const double us = measure(1, n, n);
      prefill.points.push_back({1, static_cast<double>(n), 0, us});
      list["prefill"].push_back({{"tokens", n}, {"us", us}});
      fmt::print("attention prefill {}: {:.1f} us\n", n, us);
    }
    tables.push_back(std::move(decode));
    tables.push_back(std::move(prefill));
  }
}

/// grouped_gemm's products against cuBLAS's, where it is there.
bool cross_check_grouped(gpu::Device& device, ordered_json& out) {
  std::string why;
  const std::unique_ptr<gpu::GroupedLibrary> library =
      gpu::open_cublas_grouped(device.stream(), why);
  if (library == nullptr) {
    out = {{"library", "none: " + why}};
    fmt::print("grouped      not compared with cuBLAS: {}\n", why);
    return true;
  }
  constexpr std::uint32_t kTokens = 300, kSlots = 2, kExperts = 4, kHidden = 512, kInner = 256;
  Arena arena(device);
  Dice dice(7);
  std::vector<ExpertPointers> experts;
  for (std::uint32_t e = 0; e < kExperts; ++e) {
    const auto matrix = [&] { return arena.copy(noise_of(std::size_t{kHidden} * kInner, dice)); };
    experts.push_back({matrix(), matrix(), matrix(), nullptr, nullptr, nullptr});
  }
  // By expert already: expert e has the slots e, e + 4, … of the list.
  std::vector<std::uint32_t> offsets{0}, order;
  for (std::uint32_t e = 0; e < kExperts; ++e) {
    for (std::uint32_t i = 0; i < kTokens * kSlots; ++i) {
      if ((i / kSlots + i % kSlots) % kExperts == e) {
        order.push_back(i);
      }
    }
    offsets.push_back(static_cast<std::uint32_t>(order.size()));
  }
  const std::vector<float> wide = normals(std::size_t{kTokens} * kHidden, dice);
  std::vector<gpu::Bf16> x(wide.size());
  for (std::size_t i = 0; i < wide.size(); ++i) {
    gpu::store(&x[i], wide[i]);
  }
  GroupedGemmParams p;
  p.tokens = kTokens;
  p.slots = kSlots;
  p.experts = kExperts;
  p.hidden = kHidden;
  p.inner = kInner;
  p.weights = arena.copy(experts);
  p.x = arena.copy(x);
  p.offsets = arena.copy(offsets);
  p.order = arena.copy(order);
  p.h = arena.take<gpu::Bf16>(order.size() * kInner);
  p.y = arena.take<float>(order.size() * kHidden);
  p.workspace_size = workspace_bytes(p);
  p.workspace = arena.take<std::uint64_t>(p.workspace_size / 8 + 1);
  auto* const theirs = arena.take<gpu::Bf16>(order.size() * kHidden);
  std::vector<gpu::GroupProduct> groups;
  for (std::uint32_t e = 0; e < kExperts; ++e) {
    groups.push_back({offsets[e + 1] - offsets[e], static_cast<const gpu::Bf16*>(experts[e].down),
                      p.h + std::size_t{offsets[e]} * kInner,
                      theirs + std::size_t{offsets[e]} * kHidden});
  }
  std::vector<float> ours(order.size() * kHidden), there(ours.size());
  std::vector<gpu::Bf16> half(ours.size());
  std::string answer = launch(p, device.stream()) == gpu::Status::kOk ? "" : device.error();
  answer = answer.empty() ? library->multiply(groups, kHidden, kInner) : answer;
  if (answer.empty() && !(device.copy_out(ours.data(), p.y, ours.size() * sizeof(float)) &&
                          device.copy_out(half.data(), theirs, half.size() * sizeof(gpu::Bf16)))) {
    answer = device.error();
  }
  std::transform(half.begin(), half.end(), there.begin(), [](gpu::Bf16 v) { return to_float(v); });
  const double error = answer.empty() ? error_of(there, ours) : 0;
  const bool good = answer.empty() && error < 1e-5;  // its results are rounded to BF16
  out = {{"library", "cuBLAS"}, {"NMSE", error}, {"agrees", good}};
  if (!answer.empty()) {
    out["error"] = answer;
  }
  fmt::print("grouped      cuBLAS: NMSE {:.2e} {}: {}\n", error, answer,
             good ? "agrees" : "DIFFERS");
  return good;
}

/// The gate's product and ranking in one kernel against two.
void time_gate(gpu::Device& device, bool small, ordered_json& out) {
  const std::uint32_t hidden = small ? 32 : 2048, experts = small ? 8 : 128;
  Arena arena(device);
  Dice dice(3);
  const std::vector<std::uint32_t> tokens =
      small ? std::vector<std::uint32_t>{2} : std::vector<std::uint32_t>{1, 4, 16, 64, 512, 4096};
  const std::uint32_t most = tokens.back();
  GateRouterParams p;
  p.router.gate = gate_qwen(experts, small ? 2 : 8, true);
  p.router.width = p.router.gate.top_k + 2;
  p.depth = hidden;
  p.type = gpu::Stored::kF32;
  p.w = arena.copy(normals(std::size_t{experts} * hidden, dice));
  p.x = arena.copy(normals(std::size_t{most} * hidden, dice));
  p.logits = arena.take<float>(std::size_t{most} * experts);
  p.router.ids = arena.take<std::uint16_t>(std::size_t{most} * p.router.width);
  p.router.logit = arena.take<float>(std::size_t{most} * p.router.width);
  p.router.lse = arena.take<float>(most);
  p.router.nan_row = arena.take<std::uint8_t>(most);
  p.aligned = true;
  for (const std::uint32_t t : tokens) {
    p.router.tokens = t;
    p.router.logits = nullptr;
    const double fused =
        time_us(device, p.router.lse, small, [&] { return launch(p, device.stream()); });
    LinearParams product;
    product.rows = t;
    product.outputs = experts;
    product.depth = hidden;
    product.w = p.w;
    product.x = p.x;
    product.x_stride = hidden;
    product.out = p.logits;
    product.out_stride = experts;
    product.aligned = true;
    RouterParams router = p.router;
    router.logits = p.logits;
    const double apart = time_us(device, p.router.lse, small, [&] {
      const gpu::Status status = launch(product, device.stream());
      return status != gpu::Status::kOk ? status : launch(router, device.stream());
    });
    out.push_back({{"tokens", t}, {"fused [us]", fused}, {"unfused [us]", apart}});
    fmt::print("gate {:>5} tokens: fused {:.1f} us, unfused {:.1f} us\n", t, fused, apart);
  }
}

/// The decision under a capacity by tokens, first choices and weights included: one warp in order
/// (sequential) and one block (rounds). Factor 1 on random logits: many experts are full.
ordered_json time_capacity(gpu::Device& device, const GateSpec& gate, std::uint32_t width,
                           const std::vector<std::uint32_t>& tokens, bool small) {
  Arena arena(device);
  Candidates candidates;
  RankWorkspace scratch;
  const std::uint32_t most = tokens.back();
  const std::size_t slots = std::size_t{most} * gate.top_k;
  rank_candidates(gate, make_logits(Logits::kRandom, most, gate.experts, 3),
                  make_bias(false, gate.experts), width, scratch, candidates);
  CapacityParams p;
  p.gate = gate;
  p.width = width;
  p.ids = arena.copy(candidates.ids);
  p.logit = arena.copy(candidates.logit);
  p.lse = arena.copy(candidates.lse);
  p.first = arena.take<std::uint16_t>(slots);
  p.chosen = arena.take<std::uint16_t>(slots);
  p.weights = arena.take<float>(slots);
  p.outcome = arena.take<std::uint8_t>(slots);
  p.demand = arena.take<std::uint32_t>(gate.experts);
  p.overflow = arena.take<std::uint32_t>(gate.experts);
  p.load = arena.take<std::uint32_t>(gate.experts);
  p.totals = arena.take<CapacityTotals>(1);
  ordered_json rows = ordered_json::array();
  for (const std::uint32_t t : tokens) {
    ordered_json row{{"tokens", t}};
    for (const char* const mode : {"sequential", "rounds"}) {
      p.policy =
          policy_from_text(std::string("capacity.rule=share capacity.mode=") + mode, "check");
      p.tokens = t;
      p.capacity = arena.copy(capacities(p.policy.capacity, gate, std::vector(t, 0U), 1));
      p.workspace_size = workspace_bytes(p);
      p.workspace = arena.take<std::byte>(p.workspace_size);
      row[fmt::format("{} [us]", mode)] =
          time_us(device, p.load, small, [&] { return launch(p, device.stream()); });
    }
    CapacityTotals totals{};
    if (!device.copy_out(&totals, p.totals, sizeof totals)) {
      throw CapabilityError(device.error());
    }
    row["slots kept"] = totals.kept;
    row["slots rerouted"] = totals.rerouted;
    row["slots dropped"] = totals.dropped;
    fmt::print("capacity E={} {:>5} tokens: sequential {:.1f} us, rounds {:.1f} us\n", gate.experts,
               t, row["sequential [us]"].get<double>(), row["rounds [us]"].get<double>());
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Times of one layer's experts by tokens, few rows and grouped; points: the faster of the two.
ordered_json time_layer(gpu::Device& device, const Layer& layer,
                        const std::vector<std::uint32_t>& tokens, bool small,
                        std::vector<Point>& points) {
  Arena weights_arena(device);
  Dice dice(layer.hidden);
  const std::size_t matrix = std::size_t{layer.hidden} * layer.inner;
  std::vector<std::uint16_t> noise(std::min<std::size_t>(matrix, std::size_t{1} << 16));
  for (std::uint16_t& half : noise) {
    const auto v = static_cast<float>(dice.normal() / 64);
    half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
  }
  std::vector<ExpertPointers> experts(layer.experts);
  for (ExpertPointers& e : experts) {
    std::array<std::uint16_t*, 3> part{};
    for (auto& p : part) {
      p = weights_arena.take<std::uint16_t>(matrix);
      for (std::size_t at = 0; at < matrix; at += noise.size()) {
        const std::size_t n = std::min(noise.size(), matrix - at);
        if (!device.copy_in(p + at, noise.data(), n * sizeof(std::uint16_t))) {
          throw CapabilityError(device.error());
        }
      }
    }
    e = {part[0], part[1], part[2], nullptr, nullptr, nullptr};
  }
  const ExpertPointers* const table = weights_arena.copy(experts);
  ordered_json rows = ordered_json::array();
  for (const std::uint32_t t : tokens) {
    Arena arena(device);
    const std::size_t n = std::size_t{t} * layer.slots;
    std::vector<std::uint16_t> chosen;
    std::vector<std::uint64_t> load(layer.experts);
    for (std::uint32_t i = 0; i < t; ++i) {
      const std::size_t begin = chosen.size();
      while (chosen.size() < begin + layer.slots) {
        const auto e = static_cast<std::uint16_t>(dice.below(layer.experts));
        if (std::find(chosen.begin() + static_cast<std::ptrdiff_t>(begin), chosen.end(), e) ==
            chosen.end()) {
          chosen.push_back(e);
          ++load[e];
        }
      }
    }
    const std::vector<float> x = normals(std::size_t{t} * layer.hidden, dice);
    std::vector<gpu::Bf16> half(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      gpu::store(&half[i], x[i]);
    }
    ExpertSortParams sort;
    sort.assignments = static_cast<std::uint32_t>(n);
    sort.experts = layer.experts;
    sort.chosen = arena.copy(chosen);
    sort.offsets = arena.take<std::uint32_t>(layer.experts + 1);
    sort.order = arena.take<std::uint32_t>(n);
    sort.place = arena.take<std::uint32_t>(n);
    sort.workspace_size = workspace_bytes(sort);
    sort.workspace = arena.take<std::uint64_t>(sort.workspace_size / 8 + 1);
    ExpertFfnParams few;
    few.tokens = t;
    few.slots = layer.slots;
    few.experts = layer.experts;
    few.hidden = layer.hidden;
    few.inner = layer.inner;
    few.weights = table;
    few.x = arena.copy(x);
    few.offsets = sort.offsets;
    few.order = sort.order;
    few.h = arena.take<float>(n * layer.inner);
    few.y = arena.take<float>(n * layer.hidden);
    few.aligned = true;
    few.workspace_size = workspace_bytes(few);
    few.workspace = arena.take<std::uint64_t>(few.workspace_size / 8 + 1);
    GroupedGemmParams many;
    many.tokens = t;
    many.slots = layer.slots;
    many.experts = layer.experts;
    many.hidden = layer.hidden;
    many.inner = layer.inner;
    many.weights = table;
    many.x = arena.copy(half);
    many.offsets = sort.offsets;
    many.order = sort.order;
    many.h = reinterpret_cast<gpu::Bf16*>(few.h);
    many.y = few.y;
    many.workspace_size = workspace_bytes(many);
    many.workspace = arena.take<std::uint64_t>(many.workspace_size / 8 + 1);
    CombineParams combine;
    combine.tokens = t;
    combine.slots = layer.slots;
    combine.hidden = layer.hidden;
    combine.y_type = combine.out_type = Element::kF32;
    combine.y = few.y;
    combine.place = sort.place;
    combine.weights = arena.copy(normals(n, dice));
    combine.out = arena.take<float>(x.size());
    const auto whole = [&](const auto& params) {
      return [&] {
        const gpu::Status a = launch(sort, device.stream());
        const gpu::Status b = launch(params, device.stream());
        const gpu::Status c = launch(combine, device.stream());
        return a != gpu::Status::kOk ? a : b != gpu::Status::kOk ? b : c;
      };
    };
    ordered_json row{{"tokens", t}};
    // Beyond this the few-row kernel reads the weights again and again.
    constexpr std::uint32_t kFewTokens = 256;
    constexpr std::uint32_t kUnfusedTokens = 64;
    double best = 0;
    if (t <= kFewTokens) {
      best = time_us(device, combine.out, small, whole(few));
      row["few rows [us]"] = best;
    }
    if (t <= kUnfusedTokens) {
      // The same with a launch for each operation of each expert: rows gathered, gate, up, SwiGLU,
      // down.
      std::vector<std::uint32_t> by_expert, first{0};
      for (std::uint32_t e = 0; e < layer.experts; ++e) {
        for (std::size_t i = 0; i < n; ++i) {
          if (chosen[i] == e) {
            by_expert.push_back(static_cast<std::uint32_t>(i / layer.slots));
          }
        }
        first.push_back(static_cast<std::uint32_t>(by_expert.size()));
      }
      const std::uint32_t* const rows_there = arena.copy(by_expert);
      auto* const gathered = arena.take<float>(n * layer.hidden);
      auto* const up = arena.take<float>(n * layer.inner);
      row["unfused [us]"] = time_us(device, combine.out, small, [&] {
        gpu::Status status = launch(sort, device.stream());
        const auto go = [&](const auto& params) {
          status = status == gpu::Status::kOk ? launch(params, device.stream()) : status;
        };
        RowParams gather;
        gather.operation = RowOperation::kGather;
        gather.rows = n;
        gather.columns = gather.x_stride = gather.out_stride = layer.hidden;
        gather.x = few.x;
        gather.index = rows_there;
        gather.out = gathered;
        go(gather);
        for (std::uint32_t e = 0; e < layer.experts; ++e) {
          const std::uint32_t count = first[e + 1] - first[e];
          if (count == 0) {
            continue;
          }
          const auto product = [&](const void* w, const float* from, std::uint32_t depth, float* to,
                                   std::uint32_t outputs) {
            LinearParams p;
            p.rows = count;
            p.outputs = outputs;
            p.depth = depth;
            p.type = gpu::Stored::kBf16;
            p.w = w;
            p.x = from + std::size_t{first[e]} * depth;
            p.x_stride = depth;
            p.out = to + std::size_t{first[e]} * outputs;
            p.out_stride = outputs;
            p.aligned = true;
            go(p);
          };
          product(experts[e].gate, gathered, layer.hidden, few.h, layer.inner);
          product(experts[e].up, gathered, layer.hidden, up, layer.inner);
          RowParams swiglu;
          swiglu.operation = RowOperation::kSwiglu;
          swiglu.rows = 1;
          swiglu.columns = std::uint64_t{count} * layer.inner;
          swiglu.x = up + std::size_t{first[e]} * layer.inner;
          swiglu.out = few.h + std::size_t{first[e]} * layer.inner;
          go(swiglu);
          product(experts[e].down, few.h, layer.inner, few.y, layer.hidden);
        }
        go(combine);
        return status;
      });
    }
    const double grouped = time_us(device, combine.out, small, whole(many));
    row["grouped [us]"] = grouped;
    best = best > 0 ? std::min(best, grouped) : grouped;
    const auto distinct = static_cast<std::uint64_t>(
        std::count_if(load.begin(), load.end(), [](std::uint64_t l) { return l > 0; }));
    const double bytes = 3.0 * static_cast<double>(matrix) * 2 * static_cast<double>(distinct);
    row["distinct experts"] = distinct;
    row["weights [GB/s]"] = bytes / best / 1e3;
    row["products [TFLOP/s]"] =
        6.0 * static_cast<double>(matrix) * static_cast<double>(n) / best / 1e6;
    rows.push_back(row);
    points.push_back({n, distinct, *std::max_element(load.begin(), load.end()), best});
    fmt::print("{} {:>5} tokens: {:.1f} us\n", layer.name, t, best);
  }
  return rows;
}

/// The experts of a layer as a table.
OpTimes expert_times(const Layer& l, const std::vector<Point>& points) {
  const double matrix = static_cast<double>(l.hidden) * l.inner;
  OpTimes out{"experts",
              "bf16",
              fmt::format("{}, {}, 3", l.hidden, l.inner),
              {},
              3,
              [matrix](const auto& p) {
                return std::pair{6 * matrix * p[1], 6 * matrix * p[0]};
              }};
  for (const Point& p : points) {
    out.points.push_back({static_cast<double>(p.rows), static_cast<double>(p.distinct),
                          static_cast<double>(p.most), p.us});
  }
  return out;
}

/// Form: sim/scenario/calibration.hpp. The shares are the best that was reached.
void write_calibration(const Options& options, const std::string& device,
                       const std::vector<OpTimes>& tables) {
  const double hbm = parse_rate(options.hbm, "--hbm", "hbm").value;
  const double peak = parse_flops(options.peak, "--peak", "peak").value;
  // Float32 products run outside the tensor cores, at a fifteenth of the BF16 peak on an H200.
  const double wide_peak = peak / 15;
  std::string text = fmt::format(
      "# SPDX-License-Identifier: Apache-2.0\n# Written by switchyard-device.\n"
      "schema = \"switchyard-calibration 1\"\ndevice = \"{}\"\nsource = \"kernels/device_check.sh "
      "on {}\"\nlicence = \"Apache-2.0\"\nhbm = \"{} GB/s\"\nlink = \"450 GB/s\"\npeak = {{ bf16 = "
      "\"{} TFLOP/s\", fp32 = \"{} TFLOP/s\" }}\n",
      options.device, device, hbm / 1e9, peak / 1e12, wide_peak / 1e12);
  for (const OpTimes& t : tables) {
    double rate = 0, compute = 0;
    std::string list;
    for (const std::array<double, 4>& p : t.points) {
      const auto [bytes, flops] = t.use(p);
      const double us = std::max(p[t.arguments], 0.01);
      rate = std::max(rate, bytes / (us * 1e-6) / hbm);
      compute = std::max(compute, flops / (us * 1e-6) / (t.dtype == "bf16" ? peak : wide_peak));
      std::string point;
      for (std::size_t i = 0; i < t.arguments; ++i) {
        point += fmt::format("{:.0f}, ", p[i]);
      }
      list += fmt::format("{}[{}{:.2f}]", list.empty() ? "" : ", ", point, us);
    }
    const auto share = [](double v) { return std::clamp(v, 1e-6, 1.0); };
    text += fmt::format(
        "\n[[tables]]\nop = \"{}\"\nlibrary = \"switchyard/{}\"\ndtype = \"{}\"\nshape = [{}]\n"
        "overhead = 0\nrate_share = {:.6f}\ncompute_share = {:.6f}\npoints = [{}]\n",
        t.op, version(), t.dtype, t.shape, share(rate), share(compute), list);
  }
  write_file(options.calibration, text);
}

int run(const Options& options) {
  std::string why;
  const std::unique_ptr<gpu::Device> device = gpu::open_device(why);
  if (device == nullptr) {
    fmt::print(stderr, "switchyard-device: no GPU: {}\n", why);
    return 3;
  }
  ordered_json out{{"device", device->name()}, {"version", version()}, {"small", options.small}};
  bool good = check_kernels(options.small, out["kernels"]);
  if (!options.model.empty()) {
    good = compare_model(options, false, out["model"]["f32"]) && good;
    good = compare_model(options, true, out["model"]["bf16"]) && good;
  }
  const std::vector<Layer> layers = options.small
                                        ? std::vector<Layer>{{"toy", 64, 32, 8, 2}}
                                        : std::vector<Layer>{{"Mixtral-8x7B", 4096, 14336, 8, 2},
                                                             {"Qwen3-30B-A3B", 2048, 768, 128, 8}};
  const std::vector<std::uint32_t> tokens =
      options.small ? std::vector<std::uint32_t>{1, 4}
                    : std::vector<std::uint32_t>{1,   2,   4,   8,    16,   32,   64,
                                                 128, 256, 512, 1024, 2048, 4096, 8192};
  good = cross_check_grouped(*device, out["grouped against cuBLAS"]) && good;
  std::vector<OpTimes> tables;
  for (const Layer& layer : layers) {
    std::vector<Point> points;
    out["experts"][layer.name] = time_layer(*device, layer, tokens, options.small, points);
    tables.push_back(expert_times(layer, points));
  }
  time_gate(*device, options.small, out["gate"]);
  const std::vector<std::uint32_t> of_capacity =
      options.small ? std::vector<std::uint32_t>{1, 16}
                    : std::vector<std::uint32_t>{1, 8, 64, 512, 2048, 8192};
  out["capacity"]["8 experts, 2 a token"] =
      time_capacity(*device, gate_qwen(8, 2, true), 8, of_capacity, options.small);
  out["capacity"]["128 experts, 8 a token"] =
      time_capacity(*device, gate_qwen(128, 8, true), 16, of_capacity, options.small);
  good = time_dense(*device, options, out["dense"], tables) && good;
  time_attention(*device, options, out["attention"], tables);
  out["agrees"] = good;
  if (!options.calibration.empty()) {
    write_calibration(options, device->name(), tables);
  }
  if (!options.out.empty()) {
    write_file(options.out, out.dump(2) + "\n");
  }
  fmt::print("{}\n", good ? "all agree" : "something differs");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace switchyard::kernels

int main(int argc, char** argv) {
  switchyard::kernels::Options options;
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string* const value = words[i] == "--model"         ? &options.model
                               : words[i] == "--out"         ? &options.out
                               : words[i] == "--calibration" ? &options.calibration
                               : words[i] == "--device"      ? &options.device
                               : words[i] == "--hbm"         ? &options.hbm
                               : words[i] == "--peak"        ? &options.peak
                                                             : nullptr;
    if (words[i] == "--small") {
      options.small = true;
    } else if (value == nullptr || i + 1 == words.size()) {
      fmt::print(stderr, "switchyard-device: {}: unknown, or without its value\n", words[i]);
      return 2;
    } else {
      *value = words[++i];
    }
  }
  try {
    return switchyard::kernels::run(options);
  } catch (const switchyard::InputError& e) {
    fmt::print(stderr, "switchyard-device: {}\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "switchyard-device: {}\n", e.what());
    return 1;
  }
}
