// SPDX-License-Identifier: Apache-2.0
// The CUDA backend on the host executor against the CPU backend: whole models, step by step. Logits
// agree within rounding; experts are the same but where two candidates' logits nearly tie, which is
// reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/nn/session.hpp"
#include "kernels/cuda_backend.hpp"
#include "kernels/host/device_host.hpp"
#include "kernels/host/executor.hpp"

namespace switchyard {
namespace {

constexpr std::uint64_t kMemory = std::uint64_t{1} << 30;
/// Of gate logits: rounding of float32 sums in another order moves them by far less.
constexpr double kNearTie = 1e-4;
constexpr double kNmse = 1e-9;

std::filesystem::path source(const char* path) {
  return std::filesystem::path(SWITCHYARD_SOURCE_DIR) / path;
}

std::unique_ptr<gpu::CudaBackend> host_backend(std::uint64_t memory = kMemory) {
  return gpu::make_cuda_backend(host::make_device(memory));
}

double nmse(std::span<const float> got, std::span<const float> expected) {
  EXPECT_EQ(got.size(), expected.size());
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    error += d * d;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return size > 0 ? error / size : error;
}

/// Whether all rows of all layers run on the same experts; a difference at a near tie is reported
/// and only says that what follows cannot be compared.
bool same_experts(const StepResult& got, const StepResult& expected, std::uint32_t experts) {
  for (std::size_t l = 0; l < expected.layers.size(); ++l) {
    const LayerDecision& g = got.layers[l].decision;
    const LayerDecision& e = expected.layers[l].decision;
    for (std::size_t i = 0; i < e.chosen.size(); ++i) {
      if (g.chosen[i] == e.chosen[i]) {
        continue;
      }
      const std::size_t row = (l * expected.tokens() + i / e.slots) * experts;
      const double margin =
          std::abs(static_cast<double>(expected.router_logits[row + e.chosen[i]]) -
                   expected.router_logits[row + g.chosen[i]]);
      EXPECT_LT(margin, kNearTie) << "layer " << l << " slot " << i << ": experts " << g.chosen[i]
                                  << " and " << e.chosen[i];
      std::cout << "near tie: layer " << l << ", slot " << i << ", experts " << e.chosen[i]
                << " and " << g.chosen[i] << ", margin " << margin << "\n";
      return false;
    }
  }
  return true;
}

/// Two sequences prefilled together, then decoded together, on both backends.
void expect_agreement(const std::filesystem::path& model, std::size_t steps) {
  const Engine cpu = Engine::load(model, {});
  const Engine gpu = Engine::load_on(model, host_backend());
  const auto vocab = static_cast<std::uint32_t>(cpu.config().vocab_size);
  const auto token = [&](std::uint32_t n) { return (n * 37 + 11) % vocab; };
  const SessionOptions options{.policy = {}, .kv = {.block = 3}};
  Session expected(cpu, options);
  Session got(gpu, options);
  for (Session* s : {&expected, &got}) {
    EXPECT_EQ(s->add_sequence(), 0U);
    EXPECT_EQ(s->add_sequence(), 1U);
  }
  const std::vector<std::uint32_t> prompt{token(1), token(2), token(3), token(4), token(5)};
  const std::vector<std::uint32_t> other{token(6), token(7)};
  for (std::size_t step = 0; step < steps; ++step) {
    const std::vector<std::uint32_t> next{token(static_cast<std::uint32_t>(10 + step))};
    const std::vector<SequenceTokens> work{{0, step == 0 ? prompt : next},
                                           {1, step == 0 ? other : next}};
    const Phase phase = step == 0 ? Phase::kPrefill : Phase::kDecode;
    const StepResult& e = expected.step(work, phase);
    const StepResult& g = got.step(work, phase);
    if (!same_experts(g, e, cpu.gate().experts)) {
      return;
    }
    EXPECT_LT(nmse(g.router_logits, e.router_logits), kNmse) << model << " step " << step;
    EXPECT_LT(nmse(g.logits, e.logits), kNmse) << model << " step " << step;
  }
  EXPECT_EQ(host::take_fault(), "");
  EXPECT_EQ(got.kv_bytes(), expected.kv_bytes());
}

TEST(CudaBackend, RunsTheShippedCheckpointAsTheCpu) {
  expect_agreement(source("scenarios/checkpoints/sy-16x2"), 3);
}

class EveryFamily : public testing::TestWithParam<const char*> {};
TEST_P(EveryFamily, RunsAsOnTheCpu) {
  expect_agreement(source("tests/fixtures/family_tiny") / GetParam(), 3);
}
INSTANTIATE_TEST_SUITE_P(Families, EveryFamily,
                         testing::Values("deepseek_v2", "deepseek_v2_lite", "deepseek_v3",
                                         "deepseek_v3_fp8", "gpt_oss", "gpt_oss_mxfp4",
                                         "lab_absolute", "lab_alibi", "lab_dense", "olmoe",
                                         "qwen2_moe", "qwen3_moe"));

// The promise of every backend: prefilled at once, in chunks, or decoded, a row has the same bits.
TEST(CudaBackend, GivesTheSameBitsPrefilledChunkedAndDecoded) {
  const Engine engine =
      Engine::load_on(source("tests/fixtures/family_tiny/qwen3_moe"), host_backend());
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < 11; ++i) {
    ids.push_back((i * 29 + 3) % static_cast<std::uint32_t>(engine.config().vocab_size));
  }
  const auto logits = [&](std::size_t chunk) {
    Session session(engine, {.policy = {}, .all_logits = true});
    const std::uint32_t s = session.add_sequence();
    std::vector<float> out;
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const SequenceTokens work{s, std::span(ids).subspan(at, std::min(chunk, ids.size() - at))};
      const StepResult& r = session.step({&work, 1}, Phase::kPrefill);
      out.insert(out.end(), r.logits.begin(), r.logits.end());
    }
    return out;
  };
  const std::vector<float> whole = logits(ids.size());
  EXPECT_EQ(logits(1), whole);
  EXPECT_EQ(logits(4), whole);
}

TEST(CudaBackend, SaysWhatDidNotFitAndGivesAllOfItBack) {
  const auto model = source("tests/fixtures/family_tiny/qwen3_moe");
  try {
    (void)Engine::load_on(model, host_backend(20000));
    ADD_FAILURE() << "no InputError";
  } catch (const InputError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("out of GPU memory: "), std::string::npos) << text;
    EXPECT_NE(text.find("weights"), std::string::npos) << text;
    EXPECT_NE(text.find("are free; held so far"), std::string::npos) << text;
  }
  auto backend = host_backend();
  const gpu::CudaBackend& observed = *backend;
  const Engine engine = Engine::load_on(model, std::move(backend));
  const std::uint64_t weights = observed.ledger().weights;
  EXPECT_GT(weights, 0U);
  EXPECT_EQ(observed.ledger().kv, 0U);
  {
    Session session(engine, {.policy = {}, .kv = {.block = 4}});
    const std::uint32_t s = session.add_sequence();
    const std::vector<std::uint32_t> ids{1, 2, 3, 4, 5};
    const SequenceTokens work{s, ids};
    (void)session.step({&work, 1}, Phase::kPrefill);
    EXPECT_EQ(observed.ledger().kv, session.kv_bytes());
    EXPECT_GT(observed.ledger().activations, 0U);
  }
  EXPECT_EQ(observed.ledger().weights, weights);
  EXPECT_EQ(observed.ledger().activations, 0U);
  EXPECT_EQ(observed.ledger().kv, 0U) << "blocks of ended sequences go back with their pool";
}

TEST(CudaBackend, NamesWhatItCannotRun) {
  const auto backend = host_backend();
  const std::vector<float> wide(8 * 16, 1.0F);
  std::vector<std::uint16_t> half(8 * 16, 0x3F80);
  const WeightView f32 = backend->place({wide.data(), WeightType::kF32, 8, 16});
  const WeightView bf16 = backend->place({half.data(), WeightType::kBf16, 8, 16});
  const WeightView down = backend->place({wide.data(), WeightType::kF32, 16, 8});
  const std::vector<ExpertView> experts{{f32, f32, down}, {bf16, bf16, down}};
  const auto x = backend->allocate(16);
  const auto out = backend->allocate(16);
  const std::vector<std::uint16_t> chosen{1};
  const std::vector<float> weights{1.0F};
  try {
    backend->moe(x->data(), 1, experts, chosen, weights, 1, out->data());
    ADD_FAILURE() << "no InputError";
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(),
                 "--device cuda: unsupported: the experts of a layer are stored in several types; "
                 "use --device cpu");
  }
}

}  // namespace
}  // namespace switchyard
