// SPDX-License-Identifier: Apache-2.0
// switchyard-device: everything a GPU has to confirm, in one program without other needs.
//   --model DIR   compares this checkpoint on both backends
//   --out F.json  results; --calibration F.toml  times of the experts
//   --small       few shapes, for compute-sanitizer and for the host executor
//   --device, --hbm, --peak   of the calibration, e.g. h200, "4.8 TB/s", "989 TFLOP/s"
// Exit 0: all agreed; 1: something did not; 2: a mistake in the arguments; 3: no GPU.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/units.hpp"
#include "engine/base/version.hpp"
#include "engine/nn/session.hpp"
#include "kernels/cuda_backend.hpp"
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
  good = run_checks("sort", sort_shapes(), n, out) && good;
  good = run_checks("combine", combine_shapes(), n, out) && good;
  good = run_checks("linear", linear_shapes(), n, out) && good;
  good = run_checks("moe", moe_shapes(), n, out) && good;
  good = run_checks("grouped", grouped_shapes(), small ? 2 : 1, out) && good;
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

/// The checkpoint on both backends, teacher-forced; experts may differ at near ties only. A run
/// whose logits were never compared does not agree.
bool compare_model(const Options& options, ordered_json& out) {
  std::string why;
  const Engine cpu = Engine::load(options.model, {});
  const Engine gpu = Engine::load_on(options.model, gpu::make_cuda_backend(gpu::open_device(why)));
  Session expected(cpu, {});
  Session got(gpu, {});
  (void)expected.add_sequence();
  (void)got.add_sequence();
  std::vector<std::uint32_t> prompt;
  const auto vocab = static_cast<std::uint32_t>(cpu.config().vocab_size);
  for (std::uint32_t i = 0; i < (options.small ? 4U : 64U); ++i) {
    prompt.push_back((i * 37 + 11) % vocab);
  }
  std::size_t slots = 0, differing = 0, steps = 0, compared = 0;
  double largest_margin = 0, worst = 0, cold = 0, warm = 0;
  for (std::uint32_t step = 0; step < (options.small ? 2U : 16U); ++step, ++steps) {
    const std::vector<std::uint32_t> next =
        step == 0 ? prompt : std::vector<std::uint32_t>{(step * 53 + 7) % vocab};
    const SequenceTokens work{0, next};
    const Phase phase = step == 0 ? Phase::kPrefill : Phase::kDecode;
    const StepResult& e = expected.step({&work, 1}, phase);
    const double start = seconds();
    const StepResult& g = got.step({&work, 1}, phase);
    (step == 0 ? cold : warm) = seconds() - start;
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
  const bool good = compared > 0 && worst < 1e-9 && largest_margin < 1e-4;
  out = {{"steps", steps},
         {"steps compared", compared},
         {"slots", slots},
         {"slots on other experts", differing},
         {"largest margin of those", largest_margin},
         {"logits NMSE", worst},
         {"first token cold [ms]", cold * 1e3},
         {"token warm [ms]", warm * 1e3},
         {"agrees", good}};
  fmt::print("model        {} slots, {} on other experts (margin {:.2e}), NMSE {:.2e}: {}\n", slots,
             differing, largest_margin, worst, good ? "agrees" : "DIFFERS");
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
    double best = 0;
    if (t <= kFewTokens) {
      best = time_us(device, combine.out, small, whole(few));
      row["few rows [us]"] = best;
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

/// Form: sim/scenario/calibration.hpp. The shares are the best that was reached.
void write_calibration(const Options& options, const std::string& device,
                       const std::vector<Layer>& layers,
                       const std::vector<std::vector<Point>>& points) {
  const double hbm = parse_rate(options.hbm, "--hbm", "hbm").value;
  const double peak = parse_flops(options.peak, "--peak", "peak").value;
  std::string text = fmt::format(
      "# SPDX-License-Identifier: Apache-2.0\n# Written by switchyard-device.\n"
      "schema = \"switchyard-calibration 1\"\ndevice = \"{}\"\nsource = \"kernels/device_check.sh "
      "on {}\"\nlicence = \"Apache-2.0\"\nhbm = \"{} GB/s\"\nlink = \"450 GB/s\"\npeak = {{ bf16 = "
      "\"{} TFLOP/s\" }}\n",
      options.device, device, hbm / 1e9, peak / 1e12);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& l = layers[i];
    const double matrix = static_cast<double>(l.hidden) * l.inner;
    double rate = 0, compute = 0;
    std::string list;
    for (const Point& p : points[i]) {
      rate = std::max(rate, 6 * matrix * static_cast<double>(p.distinct) / (p.us * 1e-6) / hbm);
      compute = std::max(compute, 6 * matrix * static_cast<double>(p.rows) / (p.us * 1e-6) / peak);
      list += fmt::format("{}[{}, {}, {}, {:.2f}]", list.empty() ? "" : ", ", p.rows, p.distinct,
                          p.most, std::max(p.us, 0.01));
    }
    const auto share = [](double v) { return std::clamp(v, 1e-6, 1.0); };
    text += fmt::format(
        "\n[[tables]]\nop = \"experts\"\nlibrary = \"switchyard/{}\"\ndtype = \"bf16\"\nshape = "
        "[{}, "
        "{}, 3]\noverhead = 0\nrate_share = {:.6f}\ncompute_share = {:.6f}\npoints = [{}]\n",
        version(), l.hidden, l.inner, share(rate), share(compute), list);
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
    good = compare_model(options, out["model"]) && good;
  }
  const std::vector<Layer> layers = options.small
                                        ? std::vector<Layer>{{"toy", 64, 32, 8, 2}}
                                        : std::vector<Layer>{{"Mixtral-8x7B", 4096, 14336, 8, 2},
                                                             {"Qwen3-30B-A3B", 2048, 768, 128, 8}};
  const std::vector<std::uint32_t> tokens =
      options.small ? std::vector<std::uint32_t>{1, 4}
                    : std::vector<std::uint32_t>{1,   2,   4,   8,    16,   32,   64,
                                                 128, 256, 512, 1024, 2048, 4096, 8192};
  std::vector<std::vector<Point>> points(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    out["experts"][layers[i].name] =
        time_layer(*device, layers[i], tokens, options.small, points[i]);
  }
  out["agrees"] = good;
  if (!options.calibration.empty()) {
    write_calibration(options, device->name(), layers, points);
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
