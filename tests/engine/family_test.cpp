// SPDX-License-Identifier: Apache-2.0
// Every family but Mixtral: the forward pass against transformers (DeepSeek-V2: against the forward
// pass in tests/fixtures/make_family_fixtures.py), against itself in chunks, and on checkpoints
// with a tensor too few or too many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/nn/session.hpp"
#include "engine/nn/trace_run.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

using testing_support::family;
using testing_support::floats_of;
using testing_support::fresh_folder;
using testing_support::ids_of;

constexpr double kTolerance = 1e-4;

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

/// What one sequence got, by layer where routing is meant: [L][T][...].
struct Record {
  std::vector<float> logits;
  std::vector<std::vector<float>> router, weights;
  std::vector<std::vector<std::uint32_t>> chosen;
  bool operator==(const Record&) const = default;
};

template <class T>
std::vector<T> joined(const std::vector<std::vector<T>>& parts) {
  std::vector<T> out;
  for (const auto& part : parts) {
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

/// Runs one sequence, `chunk` tokens a step.
Record run(const Engine& engine, const std::vector<std::uint32_t>& ids, std::size_t chunk,
           Phase phase) {
  Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
  const std::uint32_t s = session.add_sequence();
  Record out;
  for (std::size_t at = 0; at < ids.size(); at += chunk) {
    const SequenceTokens work{s, std::span(ids).subspan(at, std::min(chunk, ids.size() - at))};
    const StepResult& r = session.step({&work, 1}, phase);
    const std::size_t layers = r.layers.size();  // none in a dense model
    const std::size_t per_layer = layers > 0 ? r.router_logits.size() / layers : 0;
    out.logits.insert(out.logits.end(), r.logits.begin(), r.logits.end());
    out.router.resize(layers);
    out.weights.resize(layers);
    out.chosen.resize(layers);
    for (std::size_t l = 0; l < layers; ++l) {
      const auto rows = std::span(r.router_logits).subspan(l * per_layer, per_layer);
      const LayerDecision& d = r.layers[l].decision;
      out.router[l].insert(out.router[l].end(), rows.begin(), rows.end());
      out.weights[l].insert(out.weights[l].end(), d.weights.begin(), d.weights.end());
      out.chosen[l].insert(out.chosen[l].end(), d.chosen.begin(), d.chosen.end());
    }
  }
  return out;
}

/// Without the flush to disk of write_file(), which would take most of the test's time.
void write_plain(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string load_error(const std::filesystem::path& folder) {
  try {
    (void)Engine::load(folder, {});
  } catch (const InputError& e) {
    return e.what();
  }
  return "no InputError";
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder_ = family(GetParam());
  Engine engine_ = Engine::load(folder_, {});
  model::Safetensors expected_ = model::Safetensors::open(folder_ / "expected.safetensors");
};

TEST_P(Family, LogitsAndRoutingAgreeWithTheReference) {
  for (int n = 0; n < 3; ++n) {
    const std::string prefix = "seq" + std::to_string(n) + ".";
    const auto ids = ids_of(expected_, prefix + "ids");
    const Record got = run(engine_, ids, ids.size(), Phase::kPrefill);
    EXPECT_LE(largest_difference(got.logits, floats_of(expected_, prefix + "logits")), kTolerance);
    if (engine_.config().num_moe_layers() == 0) {
      EXPECT_TRUE(got.chosen.empty());
      continue;
    }
    EXPECT_LE(
        largest_difference(joined(got.router), floats_of(expected_, prefix + "router_logits")),
        kTolerance);
    const auto chosen = ids_of(expected_, prefix + "chosen");
    EXPECT_EQ(joined(got.chosen), chosen)
        << testing_support::margins_of_differences(joined(got.router), joined(got.chosen), chosen,
                                                   engine_.gate().experts, engine_.gate().top_k);
    EXPECT_LE(largest_difference(joined(got.weights), floats_of(expected_, prefix + "weights")),
              2e-5);
  }
}

TEST_P(Family, GivesTheSameBitsPrefilledChunkedAndDecoded) {
  const auto ids = ids_of(expected_, "seq2.ids");
  const Record whole = run(engine_, ids, ids.size(), Phase::kPrefill);
  for (const std::size_t chunk : {1U, 2U, 5U, 16U}) {
    EXPECT_TRUE(run(engine_, ids, chunk, chunk == 1 ? Phase::kDecode : Phase::kPrefill) == whole)
        << "chunk " << chunk;
  }
  const Engine threaded = Engine::load(folder_, {.threads = 2});
  EXPECT_TRUE(run(threaded, ids, ids.size(), Phase::kPrefill) == whole);
}

TEST_P(Family, GreedyDecodingAgreesWithTheReference) {
  const auto prompt = ids_of(expected_, "decode.prompt");
  const auto continuation = ids_of(expected_, "decode.ids");
  const auto logits = floats_of(expected_, "decode.logits");
  const std::size_t vocab = engine_.config().vocab_size;
  Session session(engine_, {});
  const std::uint32_t s = session.add_sequence();
  const SequenceTokens all{s, prompt};
  const StepResult* r = &session.step({&all, 1}, Phase::kPrefill);
  for (std::size_t i = 0; i < continuation.size(); ++i) {
    EXPECT_LE(largest_difference(r->logits_of(0), std::span(logits).subspan(i * vocab, vocab)),
              kTolerance);
    const std::uint32_t token = sample(r->logits_of(0), {}, s, 0);
    ASSERT_EQ(token, continuation[i]) << "at new token " << i;
    const SequenceTokens one{s, {&token, 1}};
    r = &session.step({&one, 1}, Phase::kDecode);
  }
}

TEST_P(Family, NamesATensorThatIsMissingOrUnknown) {
  const auto weights = model::Safetensors::open(folder_ / "model.safetensors");
  std::vector<model::TensorData> all;
  for (const auto& [key, view] : weights.tensors()) {
    all.push_back({key, view.dtype, view.shape, {view.data.begin(), view.data.end()}});
  }
  const auto copy = fresh_folder(std::string("family_") + GetParam());
  write_plain(copy / "config.json", read_file(folder_ / "config.json"));
  for (std::size_t i = 0; i < all.size(); i += 7) {
    auto fewer = all;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    write_plain(copy / "model.safetensors", model::safetensors_bytes(fewer));
    const std::string text = load_error(copy);
    EXPECT_NE(text.find('"' + all[i].name + "\" is missing"), std::string::npos) << text;
  }
  auto more = all;
  more.push_back(all.front());
  more.back().name = "model.layers.0.mlp.surplus.weight";
  write_plain(copy / "model.safetensors", model::safetensors_bytes(more));
  EXPECT_NE(load_error(copy).find("model.layers.0.mlp.surplus.weight"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Family,
                         testing::Values("qwen3_moe", "olmoe", "qwen2_moe", "deepseek_v3",
                                         "deepseek_v2", "deepseek_v2_lite", "gpt_oss",
                                         "deepseek_v3_fp8", "gpt_oss_mxfp4", "lab_absolute",
                                         "lab_alibi", "lab_dense"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '_');
                           return name;
                         });

/// Logits of the longest sequence after `from` became `to` in the fixture's config.json.
std::vector<float> logits_with(const std::string& name, const std::string& from,
                               const std::string& to) {
  std::string config = read_file(family(name) / "config.json");
  const std::size_t at = config.find(from);
  if (at == std::string::npos) {
    ADD_FAILURE() << name << " has no " << from;
    return {};
  }
  config.replace(at, from.size(), to);
  const auto copy = fresh_folder("family_changed");
  write_plain(copy / "config.json", config);
  std::filesystem::copy_file(family(name) / "model.safetensors", copy / "model.safetensors");
  const auto expected = model::Safetensors::open(family(name) / "expected.safetensors");
  const auto ids = ids_of(expected, "seq2.ids");
  return run(Engine::load(copy, {}), ids, ids.size(), Phase::kPrefill).logits;
}

TEST(Families, EachFeatureShowsInTheLogitsOfItsFixture) {
  struct Change {
    const char *fixture, *from, *to;
  };
  for (const Change& c :
       {Change{"olmoe", "\"clip_qkv\": 1.25", "\"clip_qkv\": 100.0"},
        Change{"qwen3_moe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false"},
        Change{"deepseek_v3", "\"topk_group\": 2", "\"topk_group\": 4"},
        Change{"deepseek_v3", "factor\": 2.5", "factor\": 1.0"},
        Change{"deepseek_v3", "\"mscale_all_dim\": 1.0", "\"mscale_all_dim\": 0.5"},
        Change{"deepseek_v2", "group_limited_greedy", "greedy"},
        Change{"deepseek_v2", "scaling_factor\": 4.0", "scaling_factor\": 1.0"},
        Change{"deepseek_v2", "\"beta_slow\": 1.0", "\"beta_slow\": 0.25"},
        Change{"lab_absolute", "\"position_gain\": 0.7", "\"position_gain\": 0.6"},
        Change{"lab_absolute", "\"rope_theta\": 100.0", "\"rope_theta\": 90.0"},
        Change{"lab_alibi", "\"alibi\"", "\"rope\""},
        Change{"gpt_oss", "\"swiglu_limit\": 1.5", "\"swiglu_limit\": 100.0"},
        Change{"gpt_oss", "\"sliding_window\": 5", "\"sliding_window\": 64"},
        Change{"gpt_oss", "\"truncate\": false", "\"truncate\": true"}}) {
    const auto expected = model::Safetensors::open(family(c.fixture) / "expected.safetensors");
    EXPECT_GT(largest_difference(logits_with(c.fixture, c.from, c.to),
                                 floats_of(expected, "seq2.logits")),
              10 * kTolerance)
        << c.fixture << ' ' << c.to;
  }
}

/// Rows of a rotated part of d entries from pairs (2i, 2i + 1) to pairs (i, i + d/2), for each head
/// of `width` rows whose last d are rotated.
void rows_to_halves(model::TensorData& tensor, std::size_t width, std::size_t d) {
  const std::size_t row_bytes = tensor.bytes.size() / tensor.shape[0];
  const std::vector<std::byte> old = tensor.bytes;
  for (std::size_t r = 0; r < tensor.shape[0]; ++r) {
    if (r % width < width - d) {
      continue;
    }
    const std::size_t i = r % width - (width - d);
    const std::size_t from = r - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
    std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(from * row_bytes), row_bytes,
                tensor.bytes.begin() + static_cast<std::ptrdiff_t>(r * row_bytes));
  }
}

// engines.md 1.6: halves and interleaved pairs are equal once the rows are permuted.
TEST(Families, RotationOfHalvesOnPermutedRowsGivesTheSameLogits) {
  const auto source = family("deepseek_v3");
  const auto expected = model::Safetensors::open(source / "expected.safetensors");
  const auto ids = ids_of(expected, "seq2.ids");
  const auto copy = fresh_folder("family_halves");
  std::string config = read_file(source / "config.json");
  config.insert(config.find('{') + 1, "\"rope_interleave\": false, ");
  write_plain(copy / "config.json", config);
  const auto weights = model::Safetensors::open(source / "model.safetensors");
  for (const bool permuted : {false, true}) {
    std::vector<model::TensorData> all;
    for (const auto& [key, view] : weights.tensors()) {
      all.push_back({key, view.dtype, view.shape, {view.data.begin(), view.data.end()}});
      if (permuted && key.ends_with("q_b_proj.weight")) {
        rows_to_halves(all.back(), 14, 8);
      } else if (permuted && key.ends_with("kv_a_proj_with_mqa.weight")) {
        rows_to_halves(all.back(), 20, 8);
      }
    }
    write_plain(copy / "model.safetensors", model::safetensors_bytes(all));
    const double d =
        largest_difference(run(Engine::load(copy, {}), ids, ids.size(), Phase::kPrefill).logits,
                           floats_of(expected, "seq2.logits"));
    if (permuted) {
      EXPECT_LE(d, kTolerance);
    } else {
      EXPECT_GT(d, 10 * kTolerance);
    }
  }
}

TEST(Families, TheMarginsOfOtherChoicesAreReported) {
  const std::vector<float> router{3, 2, 1.75F, 0, 5, 1, 4, 2};
  const std::vector<std::uint32_t> oracle{0, 1, 0, 2};
  const auto text = [&](const std::vector<std::uint32_t>& chosen) {
    return testing_support::margins_of_differences(router, chosen, oracle, 4, 2);
  };
  EXPECT_EQ(text({0, 2, 0, 2}),
            "1 rows chose other experts; margins of their logits from 0.25 to 0.25");
  EXPECT_EQ(text({0, 2, 0, 3}),
            "2 rows chose other experts; margins of their logits from 0.25 to 2");
  EXPECT_EQ(text({1, 0, 0, 2}), "the same sets in another order");
}

TEST(Families, ADenseModelRefusesAPolicyAndATrace) {
  const Engine engine = Engine::load(family("lab_dense"), {});
  SessionOptions options;
  options.policy.capacity.rule = CapacityRule::kShare;
  EXPECT_THROW(Session(engine, options), InputError);
  const TracePrompt prompt{"a", "", {1, 2}, 0};
  const auto output = fresh_folder("family_dense") / "t.h5";
  try {
    (void)record_trace(engine, {&prompt, 1}, {}, output);
    FAIL() << "traced";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("no router to trace"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(std::filesystem::exists(output));
}

TEST(Families, DeepSeekV2ScalesOnlyWhereItDoesNotRenormalise) {
  const auto expected =
      model::Safetensors::open(family("deepseek_v2_lite") / "expected.safetensors");
  EXPECT_LE(largest_difference(
                logits_with("deepseek_v2_lite", "scaling_factor\": 3.0", "scaling_factor\": 1.0"),
                floats_of(expected, "seq2.logits")),
            kTolerance);
}

TEST(Families, AQuantisationThatAFamilyHasNotIsRefusedByName) {
  model::ModelConfig config = Engine::load(family("olmoe"), {}).config();
  config.quantization = "mxfp4";
  try {
    require_runnable(config, "config.json");
    ADD_FAILURE() << "no InputError";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("quantization \"mxfp4\""), std::string::npos) << e.what();
  }
}

TEST(Families, LatentAttentionCachesTheLatentAndTheSharedKeyOnly) {
  const Engine engine = Engine::load(family("deepseek_v3"), {});
  Session session(engine, {});
  const std::uint32_t s = session.add_sequence();
  const std::vector<std::uint32_t> ids(64, 1);
  const SequenceTokens work{s, ids};
  (void)session.step({&work, 1}, Phase::kPrefill);
  const auto& c = engine.config();
  EXPECT_EQ(session.kv_bytes(),
            64 * c.num_layers * (c.kv_lora_rank + c.qk_rope_head_dim) * sizeof(float));
}

}  // namespace
}  // namespace switchyard
