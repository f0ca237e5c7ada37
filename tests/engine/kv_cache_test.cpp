// SPDX-License-Identifier: Apache-2.0
// The paged KV cache: what it lends and takes back, and that no bit of a result depends on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/nn/session.hpp"
#include "tests/engine/fixture_model.hpp"

namespace switchyard {
namespace {

using testing_support::expect_contains;
using testing_support::family;
using testing_support::fixture;
using testing_support::input_error_of;

std::vector<float> random_floats(std::size_t n, std::uint32_t stream) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(2 * random_uniform(3, random_purpose("kv test"),
                                                   {stream, 0, static_cast<std::uint32_t>(i), 0}) -
                                1);
  }
  return out;
}

/// Appends `tokens` tokens: what a step does, without the arithmetic that others test.
void append(Backend& backend, const AttentionShape& shape, KvCache& cache, std::size_t tokens) {
  std::vector<float> q(tokens * shape.heads * shape.head_dim, 0.5F);
  std::vector<float> k(tokens * shape.kv_heads * shape.head_dim, 0.5F);
  std::vector<float> out(tokens * shape.heads * shape.value_dim());
  const std::vector<KvCache*> caches(tokens, &cache);
  std::vector<std::uint32_t> positions;
  for (std::size_t i = 0; i < tokens; ++i) {
    positions.push_back(static_cast<std::uint32_t>(cache.length() + i));
  }
  for (std::size_t l = 0; l < shape.layers; ++l) {
    AttentionRule rule;
    rule.sliding_window = shape.window(l);
    std::vector<float> v = k;
    backend.attention(l, q.data(), k.data(), v.data(), tokens, caches, positions, rule, out.data());
  }
  backend.advance(cache, tokens);
}

TEST(KvPool, LendsWholeBlocksAndTakesThemBackAtTheEnd) {
  const AttentionShape shape{.layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 8};
  const auto backend = make_cpu_backend(1);
  const auto pool = backend->make_pool(shape, {.block = 16});
  const std::uint64_t block = 16 * 3 * 2 * 8 * 2 * 4;  // keys and values, float32
  auto a = pool->make_cache();
  EXPECT_EQ(pool->bytes_to_append(*a, 17), 2 * block);
  append(*backend, shape, *a, 17);
  EXPECT_EQ(a->blocks(), 2U);
  EXPECT_EQ(a->bytes(), 2 * block);
  EXPECT_EQ(pool->bytes_to_append(*a, 15), 0U);
  EXPECT_EQ(pool->bytes_to_append(*a, 16), block);
  auto b = pool->make_cache();
  append(*backend, shape, *b, 16);
  EXPECT_EQ(pool->ledger().live, 3U);
  a.reset();
  EXPECT_EQ(pool->ledger().live, 1U);
  EXPECT_EQ(pool->ledger().freed, 2U);
  b.reset();
  const KvLedger end = pool->ledger();
  EXPECT_EQ(end.allocated, 3U);
  EXPECT_EQ(end.freed, 3U);
  EXPECT_EQ(end.live_bytes, 0U);
  EXPECT_EQ(end.peak, 3U);
  EXPECT_EQ(end.peak_bytes, 3 * block);
  EXPECT_EQ(pool->peak_bytes(17, 17), 2 * block);
}

TEST(KvPool, HoldsOneRowPerTokenWhenLatent) {
  const AttentionShape shape{.layers = 2, .heads = 4, .kv_heads = 1, .head_dim = 24, .latent = 16};
  const auto backend = make_cpu_backend(1);
  const auto pool = backend->make_pool(shape, {.block = 1});
  const auto cache = pool->make_cache();
  append(*backend, shape, *cache, 5);
  EXPECT_EQ(cache->bytes(), 5U * 2 * 24 * 4);
}

TEST(KvPool, FreesWhatFellOutOfTheWindow) {
  // Layers 0 and 2 see 5 tokens, layer 1 all.
  const AttentionShape shape{
      .layers = 3, .heads = 1, .kv_heads = 1, .head_dim = 2, .windows = {5, 0, 5}};
  const auto backend = make_cpu_backend(1);
  const auto pool = backend->make_pool(shape, {.block = 2});
  const auto cache = pool->make_cache();
  for (std::size_t length = 1; length <= 20; ++length) {
    append(*backend, shape, *cache, 1);
    // The next token sees positions length - 4 and later of the windowed layers.
    const std::size_t first = length >= 5 ? (length - 4) / 2 : 0;
    const std::size_t all = (length + 1) / 2;
    EXPECT_EQ(cache->blocks(), all + (all - first)) << length;
  }
  EXPECT_EQ(pool->ledger().allocated, 20U);
  EXPECT_EQ(pool->ledger().allocated, pool->ledger().freed + cache->blocks());
}

TEST(KvPool, KeepsItsLedgerOverManySequencesAndNeverExceedsWhatItForetold) {
  for (const std::size_t block : {1U, 3U, 16U}) {
    const AttentionShape shape{
        .layers = 2, .heads = 1, .kv_heads = 1, .head_dim = 2, .windows = {0, 7}};
    const auto backend = make_cpu_backend(1);
    const auto pool = backend->make_pool(shape, {.block = block});
    std::vector<std::unique_ptr<KvCache>> caches(4);
    std::uint32_t draw = 0;
    const auto random = [&](std::size_t below) {
      return random_u64(5, random_purpose("ledger"), {0, 0, draw++, 0}) % below;
    };
    std::size_t ended = 0;
    for (int i = 0; i < 400; ++i) {
      auto& cache = caches[random(caches.size())];
      if (!cache) {
        cache = pool->make_cache();
      } else if (random(6) == 0) {
        cache.reset();
        ++ended;
      } else {
        const std::size_t tokens = 1 + random(9);
        const std::uint64_t foretold = cache->bytes() + pool->bytes_to_append(*cache, tokens);
        const std::uint64_t allocated = pool->ledger().live_bytes;
        const std::uint64_t more = pool->bytes_to_append(*cache, tokens);
        append(*backend, shape, *cache, tokens);
        EXPECT_LE(cache->bytes(), foretold);
        EXPECT_GE(pool->ledger().peak_bytes, allocated + more);
        EXPECT_LE(foretold, pool->peak_bytes(cache->length(), 9));
      }
      std::uint64_t live = 0;
      std::uint64_t bytes = 0;
      for (const auto& c : caches) {
        live += c ? c->blocks() : 0;
        bytes += c ? c->bytes() : 0;
      }
      const KvLedger ledger = pool->ledger();
      ASSERT_EQ(ledger.live, live);
      ASSERT_EQ(ledger.live_bytes, bytes);
      ASSERT_EQ(ledger.allocated, ledger.freed + live);
    }
    EXPECT_GT(ended, 10U);
    EXPECT_GT(pool->ledger().freed, 50U / block);
  }
}

TEST(KvPool, RefusesABlockWithoutTokens) {
  const auto backend = make_cpu_backend(1);
  const AttentionShape shape{.layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 2};
  expect_contains(input_error_of([&] { (void)backend->make_pool(shape, {.block = 0}); }),
                  "--kv-block: block = 0. Violated: 1 <= block <= 65536");
}

/// What the paged attention must give, bit for bit: contiguous keys and values, one row and head at
/// a time, in the order of summation that cpu_attention.hpp states.
std::vector<float> contiguous(const AttentionShape& shape, const AttentionRule& rule,
                              const std::vector<float>& sinks, const std::vector<float>& q,
                              const std::vector<float>& k, const std::vector<float>& v,
                              std::size_t rows) {
  const std::size_t d = shape.head_dim;
  const std::size_t width = shape.value_dim();
  const std::size_t group = shape.heads / shape.kv_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  std::vector<float> out(rows * shape.heads * width, 0.0F);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const std::size_t window = rule.sliding_window;
      const std::size_t begin = window > 0 && r + 1 > window ? r + 1 - window : 0;
      const auto row_of = [&](const std::vector<float>& x, std::size_t t) {
        return x.data() + (t * shape.kv_heads + h / group) * d;
      };
      std::vector<float> p;
      for (std::size_t t = begin; t <= r; ++t) {
        p.push_back(cpu::dot(q.data() + (r * shape.heads + h) * d, row_of(k, t), d));
      }
      if (!sinks.empty()) {
        p.push_back(sinks[h] / scale);
      }
      cpu::softmax(p.data(), p.size(), scale);
      for (std::size_t t = begin; t <= r; ++t) {
        for (std::size_t i = 0; i < width; ++i) {
          float& to = out[(r * shape.heads + h) * width + i];
          to = std::fma(p[t - begin], row_of(shape.latent > 0 ? k : v, t)[i], to);
        }
      }
    }
  }
  return out;
}

struct AttentionCase {
  std::string name;
  AttentionShape shape;
  bool sinks = false;
};

TEST(PagedAttention, HasTheBitsOfContiguousAttentionForAnyBlockChunkAndThreads) {
  const std::vector<AttentionCase> cases{
      {"one head", {1, 1, 1, 8, 0, false, {0}}, false},
      {"grouped", {1, 8, 2, 36, 0, false, {0}}, false},
      {"window and sinks", {1, 6, 2, 32, 0, false, {11}}, true},
      {"window smaller than a unit", {1, 2, 2, 16, 0, false, {3}}, false},
      {"latent, many heads", {1, 29, 1, 40, 27, false, {0}}, false},
  };
  const std::size_t rows = 75;
  for (const AttentionCase& c : cases) {
    const AttentionShape& s = c.shape;
    const auto q = random_floats(rows * s.heads * s.head_dim, 1);
    const auto k = random_floats(rows * s.kv_heads * s.head_dim, 2);
    const auto v = random_floats(rows * s.kv_heads * s.head_dim, 3);
    const auto sinks = c.sinks ? random_floats(s.heads, 4) : std::vector<float>();
    AttentionRule rule;  // no rotation: RoPE has its own test
    rule.sliding_window = s.window(0);
    if (c.sinks) {
      rule.sinks = {sinks.data(), WeightType::kF32, 1, s.heads};
    }
    const auto expected = contiguous(s, rule, sinks, q, k, v, rows);
    for (const unsigned threads : {1U, 3U}) {
      const auto backend = make_cpu_backend(threads);
      for (const std::size_t block : {1U, 5U, 16U, 128U}) {
        for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, rows}) {
          const auto pool = backend->make_pool(s, {.block = block});
          const auto cache = pool->make_cache();
          std::vector<float> got(expected.size());
          for (std::size_t at = 0; at < rows; at += chunk) {
            const std::size_t n = std::min(chunk, rows - at);
            auto q_part =
                std::vector<float>(q.begin() + static_cast<long>(at * s.heads * s.head_dim),
                                   q.begin() + static_cast<long>((at + n) * s.heads * s.head_dim));
            auto k_part = std::vector<float>(
                k.begin() + static_cast<long>(at * s.kv_heads * s.head_dim),
                k.begin() + static_cast<long>((at + n) * s.kv_heads * s.head_dim));
            std::vector<std::uint32_t> positions;
            for (std::size_t i = 0; i < n; ++i) {
              positions.push_back(static_cast<std::uint32_t>(at + i));
            }
            const std::vector<KvCache*> caches(n, cache.get());
            backend->attention(0, q_part.data(), k_part.data(),
                               v.data() + at * s.kv_heads * s.head_dim, n, caches, positions, rule,
                               got.data() + at * s.heads * s.value_dim());
            backend->advance(*cache, n);
          }
          EXPECT_TRUE(got == expected)
              << c.name << ", block " << block << ", chunk " << chunk << ", threads " << threads;
        }
      }
    }
  }
}

std::vector<std::uint32_t> some_ids(std::size_t n, std::uint32_t stream, std::size_t vocab) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < n; ++i) {
    out.push_back(static_cast<std::uint32_t>(
        random_u64(9, random_purpose("ids"), {stream, 0, i, 0}) % vocab));
  }
  return out;
}

/// Logits of every row of a sequence that runs alone, `chunk` tokens a step.
std::vector<float> alone(const Engine& engine, const std::vector<std::uint32_t>& ids,
                         std::size_t chunk, const KvOptions& kv) {
  Session session(engine, {.policy = {}, .seed = 1, .all_logits = true, .kv = kv});
  const std::uint32_t s = session.add_sequence();
  std::vector<float> out;
  for (std::size_t at = 0; at < ids.size(); at += chunk) {
    const SequenceTokens work{s, std::span(ids).subspan(at, std::min(chunk, ids.size() - at))};
    const auto& logits = session.step({&work, 1}, Phase::kPrefill).logits;
    out.insert(out.end(), logits.begin(), logits.end());
  }
  session.end_sequence(s);
  EXPECT_EQ(session.kv_pool().ledger().live, 0U);
  return out;
}

/// Grouped heads; sliding window; window on every other layer, with sinks; latent attention.
std::vector<std::filesystem::path> models() {
  return {fixture("bf16"), fixture("window"), family("gpt_oss"), family("deepseek_v3")};
}

TEST(PagedSession, GivesTheSameLogitsForAnyBlockSize) {
  for (const auto& folder : models()) {
    const Engine engine = Engine::load(folder, {});
    const auto ids = some_ids(50, 1, engine.config().vocab_size);
    const auto expected = alone(engine, ids, ids.size(), {.block = 64});
    for (const std::size_t block : {1U, 7U, 16U}) {
      for (const std::size_t chunk : {1U, 9U, 50U}) {
        EXPECT_TRUE(alone(engine, ids, chunk, {.block = block}) == expected)
            << folder << " block " << block << " chunk " << chunk;
      }
    }
  }
}

TEST(PagedSession, MixesPromptRowsAndNewRowsInOneStep) {
  for (const auto& folder : models()) {
    for (const unsigned threads : {1U, 3U}) {
      const Engine engine = Engine::load(folder, {.threads = threads});
      const std::size_t vocab = engine.config().vocab_size;
      const std::vector<std::vector<std::uint32_t>> ids{
          some_ids(40, 1, vocab), some_ids(33, 2, vocab), some_ids(25, 3, vocab)};
      Session session(engine, {.policy = {}, .seed = 1, .all_logits = true, .kv = {.block = 4}});
      std::map<std::uint32_t, std::vector<float>> got;
      std::vector<std::size_t> at(ids.size());
      for (std::size_t i = 0; i < ids.size(); ++i) {
        (void)session.add_sequence();
      }
      // Sequence s starts at step 2 s with chunks of 11, 6, 5 tokens for 3 steps, then decodes.
      const std::array<std::size_t, 3> chunk{11, 6, 5};
      for (std::size_t step = 0; step < 40; ++step) {
        std::vector<SequenceTokens> work;
        for (std::uint32_t s = 0; s < ids.size(); ++s) {
          if (step >= 2 * s && at[s] < ids[s].size()) {
            const bool prompt = step < 2 * s + 3;
            const std::size_t n = std::min(prompt ? chunk[s] : 1, ids[s].size() - at[s]);
            work.push_back({s, std::span(ids[s]).subspan(at[s], n),
                            prompt ? Phase::kPrefill : Phase::kDecode});
            at[s] += n;
          }
        }
        if (work.empty()) {
          continue;
        }
        const StepResult& r = session.step(work, Phase::kWarmUp);
        for (std::size_t row = 0; row < r.tokens(); ++row) {
          const auto logits = r.logits_of(row);
          auto& to = got[r.sequence[row]];
          to.insert(to.end(), logits.begin(), logits.end());
          EXPECT_EQ(r.phase[row] == static_cast<std::uint8_t>(Phase::kPrefill),
                    r.position[row] < 3 * chunk[r.sequence[row]]);
        }
        if (step == 4) {  // 11 + 6 + 5 rows in chunks and decode rows have met
          EXPECT_GT(work.size(), 1U);
        }
      }
      for (std::uint32_t s = 0; s < ids.size(); ++s) {
        EXPECT_TRUE(got[s] == alone(engine, ids[s], ids[s].size(), {})) << folder << " " << s;
        session.end_sequence(s);
      }
      const KvLedger ledger = session.kv_pool().ledger();
      EXPECT_EQ(ledger.allocated, ledger.freed);
      EXPECT_EQ(session.kv_bytes(), 0U);
    }
  }
}

TEST(PagedSession, NamesWhatItNeedsAndWhatIsLeftAndChangesNothing) {
  const Engine engine = Engine::load(fixture("bf16"), {});
  const auto& c = engine.config();
  const std::uint64_t block = 16 * c.num_layers * c.num_kv_heads * c.head_dim * 2 * 4;
  Session session(engine, {.policy = {}, .seed = 1, .kv = {.block = 16, .memory = 3 * block}});
  const std::uint32_t a = session.add_sequence();
  const std::uint32_t b = session.add_sequence();
  const auto ids = some_ids(40, 1, c.vocab_size);
  const SequenceTokens first{a, std::span(ids).first(20)};  // two blocks
  (void)session.step({&first, 1}, Phase::kPrefill);
  const SequenceTokens second{b, std::span(ids).first(17)};  // two more
  const std::string text = input_error_of([&] {
    (void)session.step({&second, 1}, Phase::kPrefill);
  });
  expect_contains(text,
                  "--kv-memory: step 1 needs 8.00 KiB more of KV cache; 4.00 KiB of 12.00 KiB"
                  " is available");
  EXPECT_EQ(session.length(b), 0U);
  EXPECT_EQ(session.kv_bytes(), 2 * block);
  session.end_sequence(a);
  (void)session.step({&second, 1}, Phase::kPrefill);
  EXPECT_EQ(session.kv_pool().ledger().peak_bytes, 2 * block);
}

}  // namespace
}  // namespace switchyard
