// SPDX-License-Identifier: Apache-2.0
// How close the engine comes to the machine: a synthetic Mixture-of-Experts model of 0.4 billion
// parameters in BF16, several times the cache, in memory.
//   read     bandwidth of reading the same weights from end to end and doing nothing with them
//   decode   one sequence; GB/s of the weights a token uses, and `of_read`: over the bandwidth
//            measured in turns with it
//   prefill  256 tokens in one step; GFLOP/s of the products with weights
//   product  GFLOP/s of one matrix product on one core, for each arithmetic path, beside Eigen's
//            (compiled for AVX2) on float32 weights, in turns
//   tracing  the same steps with and without a trace, in turns; `cost`: share of the time, without
//            opening and closing the file, which take `file_ms` once
// Counters come from the fastest of the repetitions in this run, because other programs only slow a
// run down. Every timed result is checked.
#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <sys/mman.h>

#include <Eigen/Core>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/random.hpp"
#include "engine/base/thread_pool.hpp"
#include "engine/nn/session.hpp"
#include "engine/trace/trace.hpp"

namespace switchyard {
namespace {

constexpr std::size_t kHidden = 1024;
constexpr std::size_t kInner = 1024;
constexpr std::size_t kExperts = 16;
constexpr std::size_t kLayers = 6;
constexpr std::size_t kVocab = 4096;
constexpr std::size_t kKvHeads = 4;
constexpr std::size_t kHeadDim = 64;
constexpr std::uint32_t kPrompt = 256;
constexpr std::uint32_t kDecode = 32;

std::uint16_t bf16(double value) {
  const auto f = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void require(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "benchmark result is wrong: %s\n", what);
    std::exit(1);
  }
}

/// Weights in one mapping with huge pages, as a checkpoint file has them on a recent kernel. Values
/// repeat with a period of a million, which no kernel can notice.
class Weights {
 public:
  Weights() {
    period_.resize(std::size_t{1} << 20);
    for (std::size_t i = 0; i < period_.size(); ++i) {
      period_[i] = bf16(3.4 * (random_uniform(1, random_purpose("bench"),
                                              {0, 0, static_cast<std::uint32_t>(i), 0}) -
                               0.5));
    }
    const std::size_t kv = kKvHeads * kHeadDim;
    const std::size_t layer =
        kHidden * (2 * kHidden + 2 * kv + kExperts + 2) + 3 * kExperts * kHidden * kInner;
    size_ = kLayers * layer + (2 * kVocab + 1) * kHidden;
    void* p = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(p != MAP_FAILED, "memory for the weights");
    data_ = static_cast<std::uint16_t*>(p);
    (void)::madvise(p, bytes(), MADV_HUGEPAGE);
    model.embedding = matrix(kVocab, kHidden);
    for (std::size_t l = 0; l < kLayers; ++l) {
      LayerWeights w;
      w.input_norm = ones(kHidden);
      w.q = matrix(kHidden, kHidden);
      w.k = matrix(kv, kHidden);
      w.v = matrix(kv, kHidden);
      w.o = matrix(kHidden, kHidden);
      w.post_attention_norm = ones(kHidden);
      w.router = matrix(kExperts, kHidden);
      for (std::size_t e = 0; e < kExperts; ++e) {
        const WeightView gate = matrix(kInner, kHidden);
        const WeightView up = matrix(kInner, kHidden);
        w.experts.push_back({gate, up, matrix(kHidden, kInner)});
      }
      model.layers.push_back(w);
    }
    model.final_norm = ones(kHidden);
    model.head = matrix(kVocab, kHidden);
    require(used_ == size_, "size of the weights");
  }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;
  ~Weights() { ::munmap(data_, bytes()); }

  [[nodiscard]] std::size_t bytes() const { return size_ * 2; }
  [[nodiscard]] const std::byte* data() const { return reinterpret_cast<const std::byte*>(data_); }
  ModelWeights model;

 private:
  WeightView matrix(std::size_t rows, std::size_t cols) {
    std::uint16_t* to = data_ + used_;
    const std::size_t n = rows * cols;
    for (std::size_t i = 0, at = (used_ * 7) % period_.size(); i < n; at = 0) {
      const std::size_t take = std::min(n - i, period_.size() - at);
      std::copy_n(period_.data() + at, take, to + i);
      i += take;
    }
    // Scale by an exact power of two near 1/sqrt(cols).
    const auto down = static_cast<std::uint16_t>(
        static_cast<unsigned>(std::lround(std::log2(static_cast<double>(cols)) / 2)) << 7U);
    for (std::size_t i = 0; i < n; ++i) {
      to[i] = (to[i] & 0x7F80U) > down ? static_cast<std::uint16_t>(to[i] - down) : 0;
    }
    used_ += n;
    return {to, WeightType::kBf16, rows, cols};
  }
  WeightView ones(std::size_t n) {
    std::uint16_t* to = data_ + used_;
    std::fill_n(to, n, bf16(1.0));
    used_ += n;
    return {to, WeightType::kBf16, 1, n};
  }

  std::vector<std::uint16_t> period_;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
  std::uint16_t* data_ = nullptr;
};

const Weights& weights() {
  static const Weights all;
  return all;
}

Engine make_engine(unsigned threads) {
  return {model::parse_model_config(
              R"({"model_type": "mixtral", "vocab_size": 4096, "hidden_size": 1024,
                  "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
                  "num_key_value_heads": 4, "head_dim": 64, "num_local_experts": 16,
                  "num_experts_per_tok": 2, "max_position_embeddings": 4096})",
              "synthetic", "synthetic"),
          weights().model, make_cpu_backend(threads)};
}

std::vector<std::uint32_t> tokens_of(const Engine& engine, std::uint32_t count) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    out.push_back(static_cast<std::uint32_t>(random_u64(2, random_purpose("prompt"), {0, 0, i, 0}) %
                                             engine.config().vocab_size));
  }
  return out;
}

/// Elements of the matrices that every token meets, and of one expert.
std::size_t common_elements(const ModelWeights& w) {
  std::size_t sum = 0;
  for (const LayerWeights& l : w.layers) {
    for (const WeightView* v : {&l.q, &l.k, &l.v, &l.o, &l.router}) {
      sum += v->rows * v->cols;
    }
  }
  return sum;
}
constexpr std::size_t kExpertElements = 3 * kHidden * kInner;

/// Sum of all 64-bit words, four vectors at a time.
std::uint64_t read_all(const std::byte* data, std::size_t bytes) {
  __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
  for (std::size_t i = 0; i + 128 <= bytes; i += 128) {
    for (std::size_t j = 0; j < 4; ++j) {
      sum[j] = _mm256_add_epi64(
          sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  const __m256i all =
      _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  std::uint64_t words[4];
  std::memcpy(words, &all, sizeof words);
  return words[0] + words[1] + words[2] + words[3];
}

/// GB/s of one pass over the weights.
double read_rate(ThreadPool& pool) {
  static const std::uint64_t expected = read_all(weights().data(), weights().bytes() / 128 * 128);
  const std::size_t lines = weights().bytes() / 128;
  const std::size_t n = pool.size();
  std::vector<std::uint64_t> sums(n);
  const double start = now();
  pool.for_each(n, [&](std::size_t i) {
    const std::size_t first = lines * i / n;
    sums[i] = read_all(weights().data() + first * 128, (lines * (i + 1) / n - first) * 128);
  });
  const double seconds = now() - start;
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) {
    sum += s;
  }
  require(sum == expected, "sum of the weights");
  return static_cast<double>(lines * 128) / seconds * 1e-9;
}

void read(benchmark::State& state, unsigned threads) {
  ThreadPool pool(threads);
  double best = 0;
  for (auto _ : state) {
    best = std::max(best, read_rate(pool));
  }
  state.counters["GB/s"] = best;
}

void decode(benchmark::State& state, unsigned threads) {
  const Engine engine = make_engine(threads);
  ThreadPool pool(threads);
  const auto tokens = tokens_of(engine, 64 + kDecode);
  Session whole(engine, {});
  const SequenceTokens all{whole.add_sequence(), tokens};
  const auto expected = whole.step({&all, 1}, Phase::kPrefill).logits_of(0);
  const std::size_t common = common_elements(engine.weights()) + kVocab * kHidden;
  double best = 0;
  double best_read = 0;
  for (auto _ : state) {
    state.PauseTiming();
    best_read = std::max(best_read, read_rate(pool));
    Session session(engine, {});
    SequenceTokens work{session.add_sequence(), std::span(tokens).first(64)};
    (void)session.step({&work, 1}, Phase::kPrefill);
    state.ResumeTiming();
    double bytes = 0;
    const double start = now();
    for (std::uint32_t t = 64; t < 64 + kDecode; ++t) {
      work.tokens = std::span(tokens).subspan(t, 1);
      const StepResult& r = session.step({&work, 1}, Phase::kDecode);
      std::size_t elements = common;
      for (const LayerRouting& layer : r.layers) {
        for (const std::uint32_t load : layer.decision.load) {
          elements += load > 0 ? kExpertElements : 0;
        }
      }
      bytes += 2.0 * static_cast<double>(elements);
    }
    best = std::max(best, bytes / (now() - start) * 1e-9);
    state.PauseTiming();
    const auto got = session.last().logits_of(0);
    require(std::equal(expected.begin(), expected.end(), got.begin()), "decode equals prefill");
    state.ResumeTiming();
  }
  state.counters["GB/s"] = best;
  state.counters["of_read"] = best / best_read;
}

void prefill(benchmark::State& state, unsigned threads) {
  const Engine engine = make_engine(threads);
  const auto tokens = tokens_of(engine, kPrompt);
  const double products =
      static_cast<double>(kPrompt * (common_elements(engine.weights()) +
                                     kLayers * engine.gate().top_k * kExpertElements) +
                          kVocab * kHidden);
  double best = 0;
  std::vector<float> first;
  for (auto _ : state) {
    Session session(engine, {});
    const SequenceTokens work{session.add_sequence(), tokens};
    const double start = now();
    const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
    best = std::max(best, 2 * products / (now() - start) * 1e-9);
    require(r.layers[0].decision.kept == std::uint64_t{kPrompt} * engine.gate().top_k,
            "assignments of prefill");
    if (first.empty()) {
      first = r.logits;
    }
    require(first == r.logits, "prefill repeats itself");
  }
  state.counters["GFLOP/s"] = best;
  state.counters["tokens/s"] = best * kPrompt / (2 * products) * 1e9;
}

struct ProductCase {
  std::size_t depth, outputs, rows;
};

/// Units of work as the backend cuts them, on one thread.
void product(benchmark::State& state, const cpu::Path& path, const ProductCase& c) {
  using Matrix = Eigen::Matrix<float, -1, -1, Eigen::RowMajor>;
  const auto index = [](std::size_t n) { return static_cast<Eigen::Index>(n); };
  std::vector<std::uint16_t> half(c.outputs * c.depth);
  for (std::size_t i = 0; i < half.size(); ++i) {
    half[i] = bf16(
        random_uniform(3, random_purpose("bench"), {0, 0, static_cast<std::uint32_t>(i), 0}) - 0.5);
  }
  Matrix w(index(c.outputs), index(c.depth));
  cpu::widen({half.data(), WeightType::kBf16, c.outputs, c.depth}, 0, half.size(), w.data());
  const Matrix x = Matrix::Constant(index(c.rows), index(c.depth), 0.25F);
  Matrix out(index(c.rows), index(c.outputs));
  Matrix expected(index(c.rows), index(c.outputs));
  const double flop = 2.0 * static_cast<double>(c.depth * c.outputs * c.rows);
  const auto rate = [&](const auto& run) {
    // Long enough for the clock.
    const int repeats = 1 + static_cast<int>(2e7 / flop);
    const double start = now();
    for (int i = 0; i < repeats; ++i) {
      run();
      benchmark::ClobberMemory();
    }
    return flop * repeats / (now() - start) * 1e-9;
  };
  const auto ours = [&](const void* data, WeightType type) {
    const std::size_t size = weight_bytes(type);
    const std::size_t block = c.rows > path.few_rows ? cpu::kBlockOutputs : c.outputs;
    for (std::size_t n = 0; n < c.outputs; n += block) {
      cpu::multiply(path, {x.data(), c.depth, c.rows,
                           static_cast<const std::byte*>(data) + n * c.depth * size, type, c.depth,
                           std::min(block, c.outputs - n), out.data() + n, c.outputs});
    }
  };
  double f32 = 0;
  double narrow = 0;
  double eigen = 0;
  for (auto _ : state) {
    eigen = std::max(eigen, rate([&] { expected.noalias() = x * w.transpose(); }));
    f32 = std::max(f32, rate([&] { ours(w.data(), WeightType::kF32); }));
    require((out - expected).squaredNorm() < 1e-8F * expected.squaredNorm(), "product");
    narrow = std::max(narrow, rate([&] { ours(half.data(), WeightType::kBf16); }));
    require((out - expected).squaredNorm() < 1e-8F * expected.squaredNorm(), "product, bf16");
  }
  state.counters["f32_GFLOP/s"] = f32;
  state.counters["bf16_GFLOP/s"] = narrow;
  state.counters["eigen_GFLOP/s"] = eigen;
}

struct RunTime {
  double steps, file;  // seconds
};
/// 64 tokens of prompt and kDecode more, traced or not.
RunTime traced_run(const Engine& engine, const std::filesystem::path& file, bool traced) {
  const auto tokens = tokens_of(engine, 64 + kDecode);
  TraceHeader header;
  header.model = "synthetic";
  header.gate = engine.gate();
  header.layers = engine.config().moe_layers();
  header.candidates = stored_candidates(engine.gate().experts, engine.gate().top_k);
  header.slots = engine.gate().top_k;
  header.config_hash = header.weight_hash = "0123456789abcdef";
  header.engine = "bench";
  header.precision = "f32";
  TraceStep step;
  const double begin = now();
  std::unique_ptr<TraceWriter> writer;
  if (traced) {
    writer = std::make_unique<TraceWriter>(file, header, std::span<const float>());
    (void)writer->add_sequence({64, 0, "prose", "bench"});
  }
  const double start = now();
  Session session(engine, {});
  SequenceTokens work{session.add_sequence(), std::span(tokens).first(64)};
  for (std::uint32_t t = 64; t <= 64 + kDecode; ++t) {
    const StepResult& r = session.step({&work, 1}, t == 64 ? Phase::kPrefill : Phase::kDecode);
    if (traced) {
      step.begin(header, r.step, r.sequence, r.position, r.token, r.phase);
      for (std::uint32_t l = 0; l < header.layer_count(); ++l) {
        step.set_layer(l, r.layers[l].candidates.view(), r.layers[l].candidates.nan_rows,
                       r.layers[l].decision);
      }
      writer->append(step);
    }
    if (t < 64 + kDecode) {
      work.tokens = std::span(tokens).subspan(t, 1);
    }
  }
  const double end = now();
  if (traced) {
    writer->finish();
  }
  return {end - start, start - begin + now() - end};
}

void tracing(benchmark::State& state, const Engine& engine) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("speed_bench." + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::filesystem::path file = folder / "trace.h5";
  double with = 1e9;
  double without = 1e9;
  double around = 1e9;
  for (auto _ : state) {
    for (int i = 0; i < 3; ++i) {
      without = std::min(without, traced_run(engine, file, false).steps);
      const RunTime traced = traced_run(engine, file, true);
      with = std::min(with, traced.steps);
      around = std::min(around, traced.file);
    }
    require(read_trace(file).tokens.size() == 64 + kDecode, "rows of the trace");
  }
  std::filesystem::remove_all(folder);
  state.counters["cost"] = (with - without) / without;
  state.counters["file_ms"] = 1e3 * around;
}

void register_all() {
  for (const unsigned threads : {1U, 2U}) {
    const std::string end = "/threads:" + std::to_string(threads);
    benchmark::RegisterBenchmark(("read" + end).c_str(),
                                 [threads](benchmark::State& s) { read(s, threads); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
    benchmark::RegisterBenchmark(("decode" + end).c_str(),
                                 [threads](benchmark::State& s) { decode(s, threads); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
    benchmark::RegisterBenchmark(("prefill" + end).c_str(),
                                 [threads](benchmark::State& s) { prefill(s, threads); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
  for (const cpu::Path* path : cpu::paths()) {
    for (const ProductCase& c : {ProductCase{128, 192, 1}, ProductCase{128, 192, 16},
                                 ProductCase{128, 4096, 64}, ProductCase{1024, 1024, 64},
                                 ProductCase{1024, 1024, 256}, ProductCase{4096, 1024, 256}}) {
      benchmark::RegisterBenchmark(
          (std::string("product/") + path->name + "/" + std::to_string(c.depth) + "x" +
           std::to_string(c.outputs) + "/rows:" + std::to_string(c.rows))
              .c_str(),
          [path, c](benchmark::State& s) { product(s, *path, c); })
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::RegisterBenchmark("tracing/synthetic",
                               [](benchmark::State& s) {
                                 const Engine engine = make_engine(1);
                                 tracing(s, engine);
                               })
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  const std::filesystem::path shipped =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios/checkpoints/sy-16x2";
  if (std::filesystem::exists(shipped / "model.safetensors")) {
    benchmark::RegisterBenchmark("tracing/shipped",
                                 [shipped](benchmark::State& s) {
                                   const Engine engine = Engine::load(shipped, {.threads = 1});
                                   tracing(s, engine);
                                 })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  switchyard::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
