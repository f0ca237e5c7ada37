// SPDX-License-Identifier: Apache-2.0
// Engine speed on one thread: prefill and decode tokens/s of a synthetic model in memory and of the
// shipped checkpoint, beside the plain alternative: the same products, one token at a time, as
// Eigen matrix-vector products over weights already widened to float32 (the alternative gets that
// for free). Counter `vs_eigen_gemv` is our tokens/s over the alternative's, measured in this run.
// Each timed result is checked: decode must repeat the bits of prefill.
#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <vector>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/random.hpp"
#include "engine/nn/session.hpp"

namespace switchyard {
namespace {

constexpr std::uint32_t kPrompt = 128;
constexpr std::uint32_t kDecode = 32;

std::uint16_t bf16(double value) {
  const auto f = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/// Random BF16 weights in memory: 4 layers, 16 experts, top 2, hidden 256, inner 512.
struct Synthetic {
  std::vector<std::vector<std::uint16_t>> store;
  std::unique_ptr<Engine> engine;

  WeightView matrix(std::size_t rows, std::size_t cols) {
    std::vector<std::uint16_t>& data = store.emplace_back(rows * cols);
    const auto stream = static_cast<std::uint32_t>(store.size());
    for (std::size_t i = 0; i < data.size(); ++i) {
      const double u =
          random_uniform(1, random_purpose("bench"), {stream, 0, static_cast<std::uint32_t>(i), 0});
      data[i] = bf16((u - 0.5) * 3.4 / std::sqrt(static_cast<double>(cols)));
    }
    return {data.data(), WeightType::kBf16, rows, cols};
  }
  WeightView ones(std::size_t n) {
    return {store.emplace_back(n, bf16(1.0)).data(), WeightType::kBf16, 1, n};
  }

  Synthetic() {
    model::ModelConfig c = model::parse_model_config(
        R"({"model_type": "mixtral", "vocab_size": 4096, "hidden_size": 256,
            "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 2, "head_dim": 32, "num_local_experts": 16,
            "num_experts_per_tok": 2, "max_position_embeddings": 4096})",
        "synthetic", "synthetic");
    ModelWeights w;
    w.embedding = matrix(4096, 256);
    for (int l = 0; l < 4; ++l) {
      LayerWeights layer;
      layer.input_norm = ones(256);
      layer.q = matrix(256, 256);
      layer.k = matrix(64, 256);
      layer.v = matrix(64, 256);
      layer.o = matrix(256, 256);
      layer.post_attention_norm = ones(256);
      layer.router = matrix(16, 256);
      for (int e = 0; e < 16; ++e) {
        layer.experts.push_back({matrix(512, 256), matrix(512, 256), matrix(256, 512)});
      }
      w.layers.push_back(layer);
    }
    w.final_norm = ones(256);
    w.head = matrix(4096, 256);
    engine = std::make_unique<Engine>(c, w, make_cpu_backend(1));
  }
};

const Engine& synthetic() {
  static const Synthetic model;
  return *model.engine;
}

const Engine* shipped() {
  static const std::unique_ptr<Engine> engine = []() -> std::unique_ptr<Engine> {
    const std::filesystem::path folder =
        std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios/checkpoints/sy-16x2";
    if (!std::filesystem::exists(folder / "model.safetensors")) {
      return nullptr;
    }
    return std::make_unique<Engine>(Engine::load(folder, {.threads = 1}));
  }();
  return engine.get();
}

std::vector<std::uint32_t> prompt_of(const Engine& engine, std::uint32_t sequence) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < kPrompt; ++i) {
    out.push_back(static_cast<std::uint32_t>(
        random_u64(2, random_purpose("prompt"), {sequence, 0, i, 0}) % engine.config().vocab_size));
  }
  return out;
}

/// Every product of one token as Eigen GEMV over float32 weights: attention projections, router, k
/// experts with SwiGLU, head. No attention scores, norms or routing, which favours it.
class EigenGemv {
 public:
  explicit EigenGemv(const Engine& engine) : engine_(engine) {
    const ModelWeights& w = engine.weights();
    for (const LayerWeights& l : w.layers) {
      for (const WeightView* v : {&l.q, &l.k, &l.v, &l.o, &l.router}) {
        add(*v);
      }
      for (const ExpertView& e : l.experts) {
        add(e.gate);
        add(e.up);
        add(e.down);
      }
    }
    add(w.head);
  }
  /// `with_head`: decode produces logits for every token, prefill for the last only.
  float token(std::uint32_t number, bool with_head) {
    const auto& c = engine_.config();
    const std::size_t per_layer = 5 + 3 * c.num_experts;
    Vector x = Vector::Constant(static_cast<Eigen::Index>(c.hidden_size), 0.01F);
    for (std::size_t l = 0; l < c.num_layers; ++l) {
      const Matrix* m = &matrices_[l * per_layer];
      const Vector q = m[0] * x;
      const Vector k = m[1] * x;
      const Vector v = m[2] * x;
      x += m[3] * q + Vector::Constant(x.size(), 1e-6F * (k[0] + v[0]));
      const Vector router = m[4] * x;
      x[0] += 1e-6F * router[0];
      for (std::size_t j = 0; j < c.top_k; ++j) {
        const Matrix* e = m + 5 + 3 * ((number * 7 + j * 5 + l) % c.num_experts);
        Vector gate = e[0] * x;
        const Vector up = e[1] * x;
        gate = gate.array() / (1.0F + (-gate.array()).exp()) * up.array();
        x += 0.5F * (e[2] * gate);
      }
    }
    if (with_head) {
      return (matrices_.back() * x)[0];
    }
    return x[0];
  }

 private:
  using Matrix = Eigen::Matrix<float, -1, -1, Eigen::RowMajor>;
  using Vector = Eigen::VectorXf;
  void add(const WeightView& v) {
    Matrix m(static_cast<Eigen::Index>(v.rows), static_cast<Eigen::Index>(v.cols));
    cpu::widen(v, 0, v.rows * v.cols, m.data());
    matrices_.push_back(std::move(m));
  }
  const Engine& engine_;
  std::vector<Matrix> matrices_;
};

/// Processor time of this process, in seconds: with one thread this is elapsed time on an idle
/// machine, and it stays honest on a busy one.
double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Tokens/s of the alternative, best of three.
double gemv_rate(const Engine& engine, std::uint32_t tokens, bool head_each) {
  EigenGemv gemv(engine);
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const double start = processor_seconds();
    float sum = 0;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      sum += gemv.token(t, head_each || t + 1 == tokens);
    }
    benchmark::DoNotOptimize(sum);
    best = std::max(best, tokens / (processor_seconds() - start));
  }
  return best;
}

void require(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "benchmark result is wrong: %s\n", what);
    std::exit(1);
  }
}

/// `batch` prompts of kPrompt tokens in one step.
void prefill(benchmark::State& state, const Engine& engine, std::uint32_t batch) {
  std::vector<std::vector<std::uint32_t>> prompts;
  for (std::uint32_t s = 0; s < batch; ++s) {
    prompts.push_back(prompt_of(engine, s));
  }
  double seconds = 0;
  for (auto _ : state) {
    state.PauseTiming();
    Session session(engine, {});
    std::vector<SequenceTokens> work;
    for (const auto& p : prompts) {
      work.push_back({session.add_sequence(), p});
    }
    state.ResumeTiming();
    const double start = processor_seconds();
    const StepResult& r = session.step(work, Phase::kPrefill);
    seconds += (processor_seconds() - start);
    require(r.layers[0].decision.kept == std::uint64_t{batch} * kPrompt * engine.gate().top_k,
            "assignments of prefill");
  }
  const double rate = static_cast<double>(state.iterations()) * batch * kPrompt / seconds;
  state.counters["tokens/s"] = rate;
  state.counters["vs_eigen_gemv"] = rate / gemv_rate(engine, kPrompt, false);
}

/// kDecode steps of one token for each of `batch` sequences, after a prompt.
void decode(benchmark::State& state, const Engine& engine, std::uint32_t batch) {
  std::vector<std::vector<std::uint32_t>> prompts;
  for (std::uint32_t s = 0; s < batch; ++s) {
    prompts.push_back(prompt_of(engine, s));
  }
  double seconds = 0;
  for (auto _ : state) {
    state.PauseTiming();
    Session session(engine, {});
    std::vector<SequenceTokens> work;
    for (const auto& p : prompts) {
      work.push_back({session.add_sequence(), std::span(p).first(kPrompt - kDecode)});
    }
    (void)session.step(work, Phase::kPrefill);
    state.ResumeTiming();
    const double start = processor_seconds();
    for (std::uint32_t t = kPrompt - kDecode; t < kPrompt; ++t) {
      for (std::uint32_t s = 0; s < batch; ++s) {
        work[s].tokens = std::span(prompts[s]).subspan(t, 1);
      }
      (void)session.step(work, Phase::kDecode);
    }
    seconds += (processor_seconds() - start);
    state.PauseTiming();
    Session whole(engine, {});
    const SequenceTokens all{whole.add_sequence(), prompts[0]};
    const auto expected = whole.step({&all, 1}, Phase::kPrefill).logits_of(0);
    const auto got = session.last().logits_of(0);
    require(std::equal(expected.begin(), expected.end(), got.begin()), "decode equals prefill");
    state.ResumeTiming();
  }
  const double rate = static_cast<double>(state.iterations()) * batch * kDecode / seconds;
  state.counters["tokens/s"] = rate;
  state.counters["vs_eigen_gemv"] = rate / gemv_rate(engine, kDecode, true);
}

void register_all(const char* name, const Engine& engine) {
  const std::string prefix = std::string(name) + "/";
  for (const std::uint32_t batch : {1U, 8U}) {
    benchmark::RegisterBenchmark(
        (prefix + "prefill/batch:" + std::to_string(batch)).c_str(),
        [&engine, batch](benchmark::State& s) { prefill(s, engine, batch); })
        ->Unit(benchmark::kMillisecond);
  }
  for (const std::uint32_t batch : {1U, 4U, 16U}) {
    benchmark::RegisterBenchmark(
        (prefix + "decode/batch:" + std::to_string(batch)).c_str(),
        [&engine, batch](benchmark::State& s) { decode(s, engine, batch); })
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  switchyard::register_all("synthetic", switchyard::synthetic());
  if (const switchyard::Engine* engine = switchyard::shipped()) {
    switchyard::register_all("shipped", *engine);
  } else {
    std::fprintf(stderr, "shipped checkpoint not found: its rows are left out\n");
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
