// SPDX-License-Identifier: Apache-2.0
// workload.kind = "open", "closed" and "trace": requests arrive, wait, are batched and leave.
// Keys and defaults: scenarios/README.md; how they are simulated: sim/serving/serving.hpp.
//
// Not modelled, and refused by name: speculative decoding, priorities that change
// while a request waits, autoscaling.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.hpp"
#include "sim/scenario/request_trace.hpp"

namespace switchyard::scenario {

enum class ArrivalProcess : std::uint8_t { kPoisson, kGamma };
enum class ThinkLaw : std::uint8_t { kExponential, kFixed };

/// When requests arrive. They stop after `requests` of them or at `duration`, what comes first.
struct Arrivals {
  // open: gaps with mean 1 / per_second; gamma has the given coefficient of variation (1: Poisson).
  ArrivalProcess process = ArrivalProcess::kPoisson;
  double per_second = 0;  ///< > 0.
  double cv = 1;          ///< > 0.
  // closed: every user thinks, asks, waits for the whole answer, and thinks again.
  std::uint32_t users = 0;
  SimTime think;
  ThinkLaw think_law = ThinkLaw::kExponential;
  // trace
  std::string file;                           ///< Ready to open, for messages.
  std::shared_ptr<const RequestTrace> trace;  ///< Shared by the points of a sweep, read only.
  double speedup = 1;                         ///< Arrival times are divided by it. > 0.
  std::uint32_t hash_block = 512;             ///< Tokens that an id of hash_ids stands for, > 0.
  std::uint64_t requests = 0;                 ///< 0: no limit.
  std::optional<SimTime> duration;
};

/// Token counts of open and closed requests: lognormal with this mean and coefficient of variation,
/// rounded, between 1 and 20 means; cv = 0: always the mean.
struct Lengths {
  std::uint32_t prompt = 0, output = 0;
  double prompt_cv = 0, output_cv = 0;
};

enum class Preemption : std::uint8_t { kRecompute, kSwap };

/// Of one rank: a GPU, or a tensor-parallel group, with its own queue.
struct Batching {
  std::uint32_t token_budget = 8192;  ///< Tokens of a step, > 0.
  std::uint32_t max_sequences = 256;  ///< Of a step, > 0.
  bool chunked_prefill = true;        ///< false: a prompt goes whole or waits.
  double memory_share = 0.9;          ///< Of a GPU's memory; less weights and reserve: KV pages.
  std::uint64_t kv = 0;               ///< Bytes for KV pages of a GPU, in place of memory_share.
  std::uint32_t max_waiting = 0;      ///< Further requests are rejected. 0: no limit.
  Preemption preemption = Preemption::kRecompute;
  /// Of one GPU to and from host memory, per direction; 0: over the hardware's links, beside expert
  /// loads and exchanges.
  BytesPerSecond swap_bandwidth;
  /// Requests share the pages of equal leading blocks of their prompts; needs hash_ids.
  bool prefix_caching = false;
  bool swap_to_pool = false;  ///< Over the links: to a CXL pool in place of the host's memory.
  [[nodiscard]] bool swaps_over_links() const {
    return preemption == Preemption::kSwap && swap_bandwidth.value == 0;
  }
};

enum class Balance : std::uint8_t { kRoundRobin, kLeastQueue };
/// A replica answers nobody from `from` to `until`; what it holds stays.
struct Outage {
  std::uint32_t replica = 0;
  SimTime from, until;
};
enum class OnFailure : std::uint8_t { kRetry, kFail };

/// Replicas are equal shares of the GPUs that step by themselves. The first prefill_replicas of
/// them compute prompts and hand the KV pages to the others, when it is not 0; with
/// [parallel.prefill] each kind has equal shares of its own GPUs (sim/scenario/replicas.hpp).
struct FrontEnd {
  std::uint32_t replicas = 1, prefill_replicas = 0;
  Balance balance = Balance::kLeastQueue;
  SimTime health_interval = SimTime::from_us(1'000'000);
  std::uint32_t failures = 3;  ///< Failed checks in a row that open the circuit breaker.
  OnFailure on_failure = OnFailure::kRetry;
  std::vector<Outage> outages;  ///< By start.
};

/// A kind of customer.
struct Tier {
  std::string name;
  double share = 0;            ///< Of the requests; the shares add up to 1.
  std::uint32_t priority = 0;  ///< A higher one is admitted first and preempted last.
  double per_second = 0;       ///< Rate limit (token bucket of `burst`); 0: none.
  std::uint32_t burst = 1;
  SimTime ttft, tpot;  ///< Service level objective; 0: none.
};

struct Serving {
  Arrivals arrivals;
  Lengths lengths;
  Batching batching;
  FrontEnd front_end;
  std::vector<Tier> tiers;      ///< At least one.
  std::uint64_t max_steps = 0;  ///< The run ends there, finished or not. 0: no limit.
};

}  // namespace switchyard::scenario
