// SPDX-License-Identifier: Apache-2.0
// CPU time of the router for one request beside that of a lookup in a static routing table (M14):
// what scenarios/validation/cpu_router/router_lookup.csv holds and claim C13 asks.
//
//   router_bench [seconds]      at least so long per measurement, default 1
//
// One request: 64 tokens through the routers of 4 MoE layers, 16 experts, top-2, hidden 128 (the
// shipped checkpoint's shape): gate product and ranking. A lookup: SHA-256 of the first 32 token
// ids and the search among 10,000 entries, once per request. Processor time of one thread, the
// median of 15 rounds. The ranking and what the lookup finds are checked; exit 1 when one is wrong.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/base/random.hpp"
#include "engine/routing/candidates.hpp"
#include "engine/routing/static_table.hpp"

namespace switchyard {
namespace {

constexpr std::size_t kTokens = 64, kLayers = 4, kExperts = 16, kTopK = 2, kHidden = 128;
constexpr std::uint32_t kEntries = 10'000;
constexpr std::uint32_t kPurpose = random_purpose("router_bench");

double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Median over 15 rounds of the CPU nanoseconds of one call.
double nanoseconds(double seconds, const std::function<void(std::uint32_t)>& call) {
  constexpr int kRounds = 15;
  std::vector<double> rounds;
  std::uint32_t n = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = cpu_seconds();
    double spent = 0;
    std::uint32_t calls = 0;
    for (; spent < seconds / kRounds; spent = cpu_seconds() - begin) {
      for (int i = 0; i < 16; ++i, ++calls) {
        call(n++);
      }
    }
    rounds.push_back(1e9 * spent / calls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

std::vector<float> drawn(std::size_t count, std::uint32_t what) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(
        random_normal(1, kPurpose, {.sequence = static_cast<std::uint32_t>(i), .layer = what}));
  }
  return out;
}

std::vector<std::uint32_t> prompt(std::uint32_t n) {
  std::vector<std::uint32_t> tokens(kTablePrefixLength);
  for (std::uint32_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = (n * 2654435761U + i * 40503U) % 4096U;
  }
  tokens.front() = n;
  return tokens;
}

int run(double seconds) {
  const auto backend = make_cpu_backend(1);
  const GateSpec gate = gate_mixtral(kExperts, kTopK);
  const auto x = drawn(kTokens * kHidden, 0);
  std::vector<std::vector<float>> routers;
  for (std::size_t l = 0; l < kLayers; ++l) {
    routers.push_back(drawn(kExperts * kHidden, static_cast<std::uint32_t>(l + 1)));
  }
  std::vector<float> z(kTokens * kExperts);
  RankWorkspace workspace;
  Candidates ranked;
  bool right = true;
  const double live = nanoseconds(seconds, [&](std::uint32_t) {
    for (const auto& w : routers) {
      backend->linear(x.data(), kTokens, {w.data(), WeightType::kF32, kExperts, kHidden}, z.data());
      rank_candidates(gate, z, {}, kExperts, workspace, ranked);
    }
  });
  for (std::size_t t = 0; t < kTokens; ++t) {
    const auto row = std::span(z).subspan(t * kExperts, kExperts);
    right =
        right && ranked.ids[t * kExperts] == std::max_element(row.begin(), row.end()) - row.begin();
  }

  TableSpec spec;
  spec.layers = kLayers;
  spec.experts = kExperts;
  spec.top_k = kTopK;
  spec.model = "bench";
  spec.weight_hash = "any";
  RoutingTable table(spec);
  std::vector<std::uint16_t> entry;
  for (std::size_t l = 0; l < kLayers; ++l) {
    entry.insert(entry.end(), {1, 2});
  }
  const std::vector<float> p(kLayers * kTopK, 0.5F);
  std::vector<std::vector<std::uint32_t>> prompts;
  for (std::uint32_t n = 0; n < kEntries; ++n) {
    prompts.push_back(prompt(n));
    right = right && table.add(table_key(TablePrefix::kTokens, prompts[n], ""), entry, p) ==
                         RoutingTable::Added::kNew;
  }
  const double lookup = nanoseconds(seconds, [&](std::uint32_t n) {
    const std::uint32_t which = n * 7919U % kEntries;
    const auto hit = table.find(table_key(TablePrefix::kTokens, prompts[which], ""));
    right = right && hit && hit->entry == which;
  });
  fmt::print("what,tokens,layers,experts,hidden,nanoseconds\n");
  fmt::print("live,{},{},{},{},{:.0f}\n", kTokens, kLayers, kExperts, kHidden, live);
  fmt::print("lookup,{},{},{},{},{:.0f}\n", kTokens, kLayers, kExperts, kHidden, lookup);
  if (!right) {
    fmt::print(stderr, "a ranking or a lookup is wrong\n");
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  if (!(seconds > 0)) {
    fmt::print(stderr, "router_bench [seconds]\n");
    return 2;
  }
  return switchyard::run(seconds);
}
