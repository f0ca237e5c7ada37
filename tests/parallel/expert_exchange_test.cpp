// SPDX-License-Identifier: Apache-2.0
// Experts spread over ranks give the bits of one rank alone, for every family and grid; every rank
// holds its own experts only; a rank that disagrees is found. Ranks are threads here; the same over
// MPI: mpi_test.cpp.
#include "engine/nn/expert_exchange.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/nn/gguf_export.hpp"
#include "engine/nn/session.hpp"
#include "engine/nn/trace_run.hpp"
#include "tests/engine/fixture_model.hpp"
#include "tests/parallel/thread_job.hpp"

namespace switchyard {
namespace {

using testing_support::changed_checkpoint;
using testing_support::fixture;
using testing_support::fresh_folder;
using testing_support::run_ranks;
using testing_support::Tensors;

std::filesystem::path family(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/family_tiny" / name;
}

RoutingPolicy tight() {
  return policy_from_text("capacity.rule=share capacity.factor=0.8 capacity.order=random", "test");
}

/// Everything that a few steps compute: prefill in chunks, then decode, with five sequences of
/// different lengths, one of which ends early.
struct Steps {
  std::vector<float> numbers;  // logits, router logits, weights
  std::vector<std::uint16_t> chosen;
  std::vector<std::uint64_t> lengths;
  std::optional<ExchangeTotals> totals;
};

Steps run_steps(const Engine& engine, const RoutingPolicy& policy) {
  Session session(engine, {.policy = policy, .seed = 3});
  Steps out;
  const auto vocab = static_cast<std::uint32_t>(engine.config().vocab_size);
  std::vector<std::uint32_t> ids;
  std::vector<std::vector<std::uint32_t>> text(5);
  for (std::uint32_t s = 0; s < text.size(); ++s) {
    ids.push_back(session.add_sequence());
    for (std::uint32_t i = 0; i < 3 + 2 * s; ++i) {
      text[s].push_back((i * 7 + s * 13 + 1) % vocab);
    }
  }
  const auto keep = [&](const StepResult& r) {
    out.numbers.insert(out.numbers.end(), r.logits.begin(), r.logits.end());
    out.numbers.insert(out.numbers.end(), r.router_logits.begin(), r.router_logits.end());
    for (const LayerRouting& layer : r.layers) {
      const auto& d = layer.decision;
      out.numbers.insert(out.numbers.end(), d.weights.begin(), d.weights.end());
      out.chosen.insert(out.chosen.end(), d.chosen.begin(), d.chosen.end());
    }
  };
  std::vector<SequenceTokens> work;
  for (std::uint32_t s = 0; s < text.size(); ++s) {
    work.push_back({ids[s], std::span(text[s]).first(3)});
  }
  keep(session.step(work, Phase::kPrefill));
  work.clear();
  for (std::uint32_t s = 1; s < text.size(); ++s) {
    work.push_back({ids[s], std::span(text[s]).subspan(3)});
  }
  keep(session.step(work, Phase::kPrefill));
  session.end_sequence(ids[2]);
  keep(session.step({}, Phase::kDecode));
  for (std::uint32_t round = 0; round < 3; ++round) {
    const std::vector<std::uint32_t> token{5 + round, 9 + round, 2 + round, 17};
    work.clear();
    for (std::uint32_t i = 0; const std::uint32_t s : {0U, 1U, 3U, 4U}) {
      work.push_back({ids[s], {&token[i++], 1}});
    }
    keep(session.step(work, Phase::kDecode));
  }
  for (const std::uint32_t s : ids) {
    out.lengths.push_back(session.length(s));
  }
  out.totals = session.exchanged();
  return out;
}

void expect_same(const Steps& alone, const Steps& together, const std::string& what) {
  ASSERT_EQ(alone.numbers.size(), together.numbers.size()) << what;
  EXPECT_EQ(std::memcmp(alone.numbers.data(), together.numbers.data(),
                        alone.numbers.size() * sizeof(float)),
            0)
      << what;
  EXPECT_EQ(alone.chosen, together.chosen) << what;
  EXPECT_EQ(alone.lengths, together.lengths) << what;
}

/// Runs the steps on every rank of a grid; expects the bits of one rank alone on each.
ExchangeTotals expect_grid(const std::filesystem::path& folder, const RoutingPolicy& policy,
                           const Steps& alone, unsigned ranks, unsigned tp) {
  const std::string what = fmt::format("{} on {} ranks, tp {}", folder.string(), ranks, tp);
  std::vector<Steps> all(ranks);
  const auto thrown = run_ranks(ranks, [&](Communicator& job) {
    const Engine engine = Engine::load(folder, {.threads = 1, .job = &job, .tp = tp});
    all[job.rank()] = run_steps(engine, policy);
  });
  for (unsigned r = 0; r < ranks; ++r) {
    EXPECT_EQ(thrown[r], "") << what;
    expect_same(alone, all[r], fmt::format("{}: rank {}", what, r));
    EXPECT_TRUE(all[r].totals.has_value());
  }
  EXPECT_EQ(all[0].totals, all[ranks - 1].totals) << what;
  return all[0].totals.value_or(ExchangeTotals{});
}

TEST(ExpertExchange, GivesTheBitsOfOneRankForEveryFamily) {
  std::vector<std::filesystem::path> folders{fixture("f32"), fixture("bf16")};
  for (const char* name :
       {"qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3",
        "deepseek_v3_fp8", "gpt_oss", "gpt_oss_mxfp4", "lab_absolute", "lab_alibi"}) {
    folders.push_back(family(name));
  }
  folders.push_back(fresh_folder("gguf") / "m.gguf");
  (void)export_gguf(fixture("bf16"), folders.back(), model::DType::kQ8_0);
  for (const auto& folder : folders) {
    const Steps alone = run_steps(Engine::load(folder, {}), tight());
    ASSERT_FALSE(alone.totals.has_value());
    const auto ran = static_cast<std::uint64_t>(std::count_if(
        alone.chosen.begin(), alone.chosen.end(), [](std::uint16_t e) { return e != 0xFFFF; }));
    ASSERT_LT(ran, alone.chosen.size()) << "the policy drops something";
    std::vector<std::pair<unsigned, unsigned>> grids{{3, 1}, {4, 2}};
    if (folder == folders.front()) {
      grids.insert(grids.end(), {{2, 1}, {4, 1}, {2, 2}});
    }
    for (const auto& [ranks, tp] : grids) {
      const ExchangeTotals totals = expect_grid(folder, tight(), alone, ranks, tp);
      EXPECT_EQ(totals.outputs, ran);
      EXPECT_LE(totals.rows, totals.outputs);
      EXPECT_EQ(totals.inner_bytes > 0, tp > 1);
    }
  }
}

// Rounding looks at whole experts (the channels that INT4 keeps), whatever part a rank computes.
TEST(ExpertExchange, RoundsTheWeightsThatOneRankRounds) {
  const QuantiseOptions rounded =
      parse_quantise("router=int8,experts=int4,backbone=bf16,group=16,keep=0.2", "test");
  for (const auto& folder : {fixture("f32"), family("gpt_oss_mxfp4"), family("qwen2_moe")}) {
    const Engine one = Engine::load(folder, {.quantise = rounded});
    const Steps alone = run_steps(one, tight());
    for (const auto& [ranks, tp] : {std::pair{3U, 1U}, std::pair{4U, 2U}}) {
      std::vector<Steps> all(ranks);
      std::vector<std::vector<QuantisedPart>> parts(ranks);
      const auto thrown = run_ranks(ranks, [&, tp = tp](Communicator& job) {
        const Engine engine =
            Engine::load(folder, {.threads = 1, .job = &job, .tp = tp, .quantise = rounded});
        all[job.rank()] = run_steps(engine, tight());
        parts[job.rank()] = engine.quantised();
      });
      for (unsigned r = 0; r < ranks; ++r) {
        const std::string what = fmt::format("{}, rank {} of {}", folder.string(), r, ranks);
        EXPECT_EQ(thrown[r], "") << what;
        expect_same(alone, all[r], what);
        ASSERT_EQ(parts[r].size(), one.quantised().size()) << what;
        for (std::size_t i = 0; i < parts[r].size(); ++i) {
          EXPECT_EQ(parts[r][i].tensors, one.quantised()[i].tensors) << what;
          EXPECT_EQ(parts[r][i].values, one.quantised()[i].values) << what;
          EXPECT_EQ(parts[r][i].bits, one.quantised()[i].bits) << what;
          EXPECT_EQ(parts[r][i].squared_error, one.quantised()[i].squared_error) << what;
          EXPECT_EQ(parts[r][i].squared_weight, one.quantised()[i].squared_weight) << what;
        }
      }
    }
  }
}

TEST(ExpertExchange, SpreadsOnlyTheSequencesOfADenseModel) {
  const Steps alone = run_steps(Engine::load(family("lab_dense"), {}), {});
  const ExchangeTotals totals = expect_grid(family("lab_dense"), {}, alone, 3, 1);
  EXPECT_EQ(totals.outputs, 0U);
  EXPECT_EQ(totals.dispatch_bytes + totals.return_bytes + totals.router_bytes, 0U);
  EXPECT_GT(totals.logits_bytes, 0U);
}

TEST(ExpertExchange, GivesTheBitsOfOneRankWhenSomeRanksHoldNothing) {
  // More ranks than experts, than sequences, and parts of widths that the parts do not divide.
  const Steps alone = run_steps(Engine::load(fixture("bf16"), {}), {});
  const std::size_t experts = Engine::load(fixture("bf16"), {}).config().num_experts;
  (void)expect_grid(fixture("bf16"), {}, alone, static_cast<unsigned>(experts) + 1, 1);
  (void)expect_grid(fixture("bf16"), {}, alone, 6, 3);
  (void)expect_grid(fixture("bf16"), {}, alone, 5, 5);
}

// engines.md 5, row 23 (DeepEP#427): every row goes to the experts of one rank.
TEST(ExpertExchange, GivesTheBitsOfOneRankWhenAllRowsGoToOneRank) {
  // Equal logits choose the experts of the lowest ids, 0 and 1.
  const auto folder = changed_checkpoint("f32", "one_rank_serves", [](Tensors& tensors) {
    for (auto& [name, t] : tensors) {
      if (name.ends_with("block_sparse_moe.gate.weight")) {
        std::fill(t.bytes.begin(), t.bytes.end(), std::byte{0});
      }
    }
  });
  const Steps alone = run_steps(Engine::load(folder, {}), {});
  ASSERT_EQ(std::count_if(alone.chosen.begin(), alone.chosen.end(),
                          [](std::uint16_t e) { return e > 1; }),
            0);
  const std::uint64_t rows = alone.chosen.size() / 2;  // x layers
  for (const auto& [ranks, tp] :
       std::vector<std::pair<unsigned, unsigned>>{{2, 1}, {4, 1}, {4, 2}}) {
    const ExchangeTotals totals = expect_grid(folder, {}, alone, ranks, tp);
    EXPECT_EQ(totals.rows, rows) << "each row to one group";
    EXPECT_EQ(totals.outputs, 2 * rows);
    EXPECT_GT(totals.rows_sent, rows / 3) << "of the other ranks' sequences";
  }
}

TEST(ExpertExchange, GivesTheBitsOfOneRankUnderPoliciesWithMemoryAndNoise) {
  for (const char* text :
       {"condition.layer_norm=on noise.jitter=0.2", "gumbel.mode=tau_noise gumbel.tau=0.7",
        "semantic.mode=ema semantic.alpha=0.5", "window.beta=0.1 window.gamma=0.8"}) {
    const RoutingPolicy policy = policy_from_text(text, "test");
    const Steps plain = run_steps(Engine::load(fixture("bf16"), {}), {});
    const Steps alone = run_steps(Engine::load(fixture("bf16"), {}), policy);
    ASSERT_NE(alone.chosen, plain.chosen) << text;
    (void)expect_grid(fixture("bf16"), policy, alone, 3, 1);
  }
}

TEST(ExpertExchange, CountsBytesByHand) {
  // One MoE layer's traffic from the decisions: rows of H floats once to each other rank with an
  // expert of theirs, outputs of H floats back, logits of a row to each other rank.
  const auto folder = fixture("bf16");
  const Engine one = Engine::load(folder, {});
  const std::size_t h = one.config().hidden_size;
  const std::size_t e = one.config().num_experts;
  const std::size_t vocab = one.config().vocab_size;
  const std::vector<std::uint32_t> tokens{4, 9, 1, 7, 30, 2};
  const auto step = [&](Session& session) -> const StepResult& {
    const std::array<SequenceTokens, 3> work{
        SequenceTokens{session.add_sequence(), std::span(tokens).first(3)},
        SequenceTokens{session.add_sequence(), std::span(tokens).subspan(3, 2)},
        SequenceTokens{session.add_sequence(), std::span(tokens).last(1)}};
    return session.step(work, Phase::kPrefill);
  };
  Session alone(one, {});
  const StepResult& r = step(alone);
  const unsigned ranks = 3;
  ExchangeTotals expected;
  for (const LayerRouting& layer : r.layers) {
    ++expected.layers;
    const std::size_t k = layer.decision.slots;
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      const unsigned owner = r.sequence[row] % ranks;
      for (unsigned q = 0; q < ranks; ++q) {
        const Block held = block_of(e, ranks, q);
        std::uint64_t slots = 0;
        for (std::size_t j = 0; j < k; ++j) {
          const std::size_t chosen = layer.decision.chosen[row * k + j];
          slots += chosen >= held.first && chosen < held.last ? 1 : 0;
        }
        expected.outputs += slots;
        expected.rows += slots > 0 ? 1 : 0;
        if (q != owner && slots > 0) {
          ++expected.rows_sent;
          expected.dispatch_bytes += h * sizeof(float);
          expected.return_bytes += slots * h * sizeof(float);
        }
      }
      expected.router_bytes += (ranks - 1) * e * sizeof(float);
    }
  }
  expected.logits_bytes = 3 * (ranks - 1) * vocab * sizeof(float);  // last row of each sequence
  EXPECT_GT(expected.rows_sent, 0U);
  std::vector<std::optional<ExchangeTotals>> got(ranks);
  (void)run_ranks(ranks, [&](Communicator& job) {
    const Engine engine = Engine::load(folder, {.job = &job});
    Session session(engine, {});
    (void)step(session);
    got[job.rank()] = session.exchanged();
  });
  for (const auto& totals : got) {
    ASSERT_TRUE(totals.has_value());
    EXPECT_EQ(totals->transport, "threads");
    EXPECT_EQ(totals->layers, expected.layers);
    EXPECT_EQ(totals->rows, expected.rows);
    EXPECT_EQ(totals->rows_sent, expected.rows_sent);
    EXPECT_EQ(totals->outputs, expected.outputs);
    EXPECT_EQ(totals->dispatch_bytes, expected.dispatch_bytes);
    EXPECT_EQ(totals->return_bytes, expected.return_bytes);
    EXPECT_EQ(totals->router_bytes, expected.router_bytes);
    EXPECT_EQ(totals->logits_bytes, expected.logits_bytes);
  }
}

TEST(ExpertExchange, WritesTheTraceOfOneRank) {
  const auto folder = fresh_folder("trace_of_one_rank");
  std::vector<TracePrompt> prompts;
  for (std::uint32_t s = 0; s < 7; ++s) {
    TracePrompt prompt{"s" + std::to_string(s), "", {}, 4};
    for (std::uint32_t i = 0; i < 5 + s; ++i) {
      prompt.tokens.push_back((i * i * 7 + s * 31 + i) % 128);
    }
    prompts.push_back(prompt);
  }
  TraceRunOptions options;
  options.policy = tight();
  options.batch = 3;
  options.chunk = 4;
  options.router_input = true;
  const TraceRunSummary alone =
      record_trace(Engine::load(fixture("bf16"), {}), prompts, options, folder / "one.h5");
  for (const unsigned ranks : {1U, 2U, 4U}) {
    std::vector<TraceRunSummary> summary(ranks);
    const auto output = folder / fmt::format("{}.h5", ranks);
    const auto thrown = run_ranks(ranks, [&](Communicator& job) {
      const Engine engine = Engine::load(fixture("bf16"), {.job = &job});
      summary[job.rank()] = record_trace(engine, prompts, options, output);
    });
    for (unsigned r = 0; r < ranks; ++r) {
      EXPECT_EQ(thrown[r], "");
      EXPECT_EQ(summary[r].load, alone.load);
      EXPECT_EQ(summary[r].peak_kv_bytes, alone.peak_kv_bytes);
    }
    EXPECT_TRUE(read_file(output) == read_file(folder / "one.h5")) << ranks;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder),
                          std::filesystem::directory_iterator{}),
            4);
}

TEST(ExpertExchange, LeavesTheExpertsOfOthersAlone) {
  for (const char* name : {"deepseek_v3_fp8", "gpt_oss_mxfp4", "qwen3_moe"}) {
    const auto folder = family(name);
    const Engine whole = Engine::load(folder, {});
    const std::size_t experts = whole.config().num_experts;
    const std::size_t inner = whole.config().expert_intermediate;
    const std::size_t hidden = whole.config().hidden_size;
    std::mutex mutex;
    std::vector<unsigned> holders(experts, 0);  // of layer rows of gate, by expert
    const auto thrown = run_ranks(6, [&](Communicator& job) {
      const Engine engine = Engine::load(folder, {.job = &job, .tp = 2});
      const Block own = block_of(experts, 3, job.rank() / 2);
      const std::size_t rows = block_of(inner, 2, job.rank() % 2).size();
      const std::lock_guard lock(mutex);
      for (const LayerWeights& layer : engine.weights().layers) {
        for (std::size_t e = 0; e < layer.experts.size(); ++e) {
          const ExpertView& x = layer.experts[e];
          const bool mine = e >= own.first && e < own.last;
          EXPECT_EQ(x.gate.data != nullptr, mine);
          EXPECT_EQ(x.down.data != nullptr, mine);
          if (mine) {
            EXPECT_EQ(x.gate.rows, rows);
            EXPECT_EQ(x.up.rows, rows);
            EXPECT_EQ(x.down.rows, block_of(hidden, 2, job.rank() % 2).size());
            holders[e] += static_cast<unsigned>(x.gate.rows);
          }
        }
      }
    });
    EXPECT_EQ(thrown, std::vector<std::string>(6));
    for (const unsigned rows : holders) {
      EXPECT_EQ(rows, inner * whole.config().num_moe_layers());
    }
  }
}

TEST(ExpertExchange, FindsARankThatDisagrees) {
  // Another policy: the decisions differ in the first layer.
  auto thrown = run_ranks(3, [&](Communicator& job) {
    const Engine engine = Engine::load(fixture("bf16"), {.job = &job});
    (void)run_steps(engine, job.rank() == 2 ? tight() : RoutingPolicy{});
  });
  for (const std::string& what : thrown) {
    EXPECT_NE(what.find("its routing decision differs"), std::string::npos) << what;
  }
  EXPECT_EQ(thrown[0].substr(0, 6), "rank 2");

  // One value of an expert that rank 1 holds, of one that it does not, of the rest.
  const auto change = [](const std::string& name, const std::string& tensor) {
    return changed_checkpoint("bf16", name, [&](Tensors& tensors) {
      ASSERT_TRUE(tensors.count(tensor)) << tensor;
      tensors[tensor].bytes[10] ^= std::byte{1};
    });
  };
  const auto last = change("last", "model.layers.1.block_sparse_moe.experts.7.w2.weight");
  const auto first = change("first", "model.layers.1.block_sparse_moe.experts.0.w2.weight");
  const auto norm = change("norm", "model.norm.weight");
  const auto load = [&](const std::filesystem::path& of_rank_1) {
    return run_ranks(2, [&](Communicator& job) {
      (void)Engine::load(job.rank() == 1 ? of_rank_1 : fixture("bf16"), {.job = &job});
    });
  };
  for (const std::string& what : load(last)) {
    EXPECT_EQ(what,
              "rank 1: the checkpoint's weights of experts 4 to 7 differ from rank 0's; every rank "
              "needs the same checkpoint");
  }
  for (const std::string& what : load(norm)) {
    EXPECT_EQ(what.substr(0, 46), "rank 1: the checkpoint's weights differ from r");
  }
  // In a GGUF file the experts of a layer are one tensor; the last matrix of it is changed.
  const auto gguf = fresh_folder("gguf_disagrees");
  (void)export_gguf(fixture("bf16"), gguf / "a.gguf", model::DType::kF32);
  std::filesystem::copy(last, gguf / "bf16");  // its metadata names the folder
  (void)export_gguf(gguf / "bf16", gguf / "b.gguf", model::DType::kF32);
  const auto packed = run_ranks(2, [&](Communicator& job) {
    (void)Engine::load(gguf / (job.rank() == 1 ? "b.gguf" : "a.gguf"), {.job = &job});
  });
  EXPECT_NE(packed[0].find("rank 1: the checkpoint's weights of experts 4 to 7 differ"),
            std::string::npos)
      << packed[0];
  // Rank 1 never reads expert 0, so nothing that it computes can differ.
  EXPECT_EQ(load(first), std::vector<std::string>(2));
}

TEST(ExpertExchange, RefusesPartsThatDoNotDivideTheRanks) {
  for (const unsigned tp : {0U, 3U, 4U}) {
    EXPECT_THROW((void)make_grid(2, 0, tp), InputError) << tp;
  }
  EXPECT_EQ(make_grid(6, 5, 2).group(), 2U);
  EXPECT_EQ(make_grid(6, 5, 2).part(), 1U);
  // Blocks cover everything once, lengths differ by at most one.
  for (const std::size_t items : {0U, 1U, 7U, 8U, 64U}) {
    std::size_t next = 0;
    for (std::size_t p = 0; p < 5; ++p) {
      const Block b = block_of(items, 5, p);
      EXPECT_EQ(b.first, next);
      EXPECT_TRUE(b.size() == items / 5 || b.size() == items / 5 + 1);
      next = b.last;
    }
    EXPECT_EQ(next, items);
  }
}

TEST(Agreement, NamesTheItemAndTheRank) {
  const auto check = [](const std::function<std::string(unsigned)>& seed) {
    return run_ranks(3, [&](Communicator& job) {
      const std::vector<std::pair<std::string, std::string>> items{{"program", "a"},
                                                                   {"--seed", seed(job.rank())}};
      require_agreement(job, items);
    });
  };
  EXPECT_EQ(check([](unsigned) { return "7"; }), std::vector<std::string>(3));
  for (const std::string& what : check([](unsigned r) { return r == 2 ? "8" : "7"; })) {
    EXPECT_EQ(what,
              "rank 2: --seed differs from rank 0's: 8 and 7; every rank needs the same program, "
              "files and options");
  }
}

TEST(Communicator, MovesBlocksOfAnyLengthAndSumsWholeNumbers) {
  const auto thrown = run_ranks(3, [](Communicator& job) {
    EXPECT_EQ(job.sum(job.rank() + 1), 6U);
    const auto texts = job.all_gather(std::string(job.rank() * 2, 'x'));
    EXPECT_EQ(texts, (std::vector<std::string>{"", "xx", "xxxx"}));
    std::vector<std::uint64_t> send(6);
    std::vector<std::uint64_t> got(6);
    std::iota(send.begin(), send.end(), job.rank() * 10);
    job.exchange_counts(send, got, 2);
    for (unsigned q = 0; q < 3; ++q) {
      EXPECT_EQ(got[q * 2], q * 10 + job.rank() * 2);
      EXPECT_EQ(got[q * 2 + 1], q * 10 + job.rank() * 2 + 1);
    }
  });
  EXPECT_EQ(thrown, std::vector<std::string>(3));
}

}  // namespace
}  // namespace switchyard
