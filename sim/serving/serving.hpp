// SPDX-License-Identifier: Apache-2.0
// Serving: requests arrive, wait, are batched step by step, and leave. A BatchSource for the step
// loop; it knows how long a step took only from the loop.
//
// Front end. An arriving request goes to one rank (a GPU, or a tensor-parallel group) of a replica
// whose circuit breaker is closed: in turn (replicas first, then ranks), or to the rank with the
// fewest requests (waiting, running, and those whose pages travel there), the first one in that
// order. A tier over its rate, a rank with max_waiting requests, and a request that could never
// hold its pages reject it.
//
// Batch of a rank (iteration-level scheduling, Yu et al., Orca, OSDI 2022; the order is vLLM's): a
// step has at most token_budget tokens and max_sequences sequences. First those that run, oldest
// first: one token each in decode, or the next chunk of the prompt. One that lacks pages preempts
// the one of lowest priority that arrived last, itself at worst. If nobody was preempted, waiting
// requests follow by priority, then arrival, as long as budget, sequences and pages last. A chunk
// that completes the known tokens samples one. Preemption: recompute gives the pages back and
// starts the tokens anew as a prompt; swap moves them to host memory and back, or recomputes, too,
// where the memory that the hardware states for the server's cpus (all cxl pools together) has no
// room for them; no limit where none is stated, and with stages. With
// swap_bandwidth the whole replica waits bytes / swap_bandwidth each way; without, the pages travel
// over the links between GPU and host, beside expert loads (transfer_queue.hpp), and their GPU
// waits for them before its step.
//
// Watermark (memory.watermark_action). A GPU's level is what it held at most in its last step
// beside KV pages (each category by itself) plus the pages planned. stop_admission: a waiting
// request is admitted, and pages are handed to a decode rank, only while that keeps the level at or
// below the mark. preempt: those that run keep to it as well, so the last one is preempted as if
// pages had run out. A rank where nobody else holds pages goes on above the mark: nobody waits for
// ever.
//
// Pages on several GPUs, or tensor-parallel groups, whose first GPU stands for all
// (memory.kv.placement = by_token, by_expert; ServingMachine::kv_round): the
// ranks of a copy of the experts share its GPUs' pages. Those that run go on in one order, whatever
// their rank, and who waits is admitted in one order; a request is preempted when it is the last
// one with pages on a GPU that lacks them. A request goes on when every GPU has room for what may
// come to it. by_expert: before the router has decided, that is all new tokens of the step in every
// layer; after the step only what came counts. So no GPU ever has more pages than it has room for.
// With prefill replicas a decode rank takes a request when each of its GPUs has room for what comes
// to it; what the request had is there until all has arrived.
//
// Prefix caching (batching.prefix_caching; prefix_cache.hpp). Whole blocks of a prompt that a
// request of the rank has computed are the rank's from the end of that step on: others that are
// admitted later begin behind the leading ones they have in common; at least one token is computed.
// Of two requests that computed a block side by side one gives its pages back. A block without
// users makes place when pages are needed, below the watermark too, before anybody is preempted.
// Swapped pages come back as the request's own. A finished prompt goes to a decode rank without the
// blocks that are there, and needs no room for those. A lost GPU's cache is empty; a replica that
// does not answer keeps its own.
//
// Replicas step by themselves, in the order of simulated time. With prefill replicas, a finished
// prompt (its first token is out then) waits until a decode rank has pages and sequences for it,
// its KV pages travel, and it goes on there. Under auto, coflow and flow pages and the exchanges of
// all replicas share the links (ServingMachine::Pages): a step or a transfer under way ends later
// when traffic joins it; under flow the pairs of GPUs that share a link with it. Under
// bottleneck and with measured links they do not meet (kv_links.hpp).
//
// Health. Every health_interval a replica is asked while it has an outage; `failures` failed checks
// in a row open its breaker: what it has goes back to the front end as prompts (retry) or fails.
// The first check it answers closes it. A step under way when an outage begins ends as planned.
//
// Lost GPUs (sim/loop/healing.cpp). Requests with pages on one compute them again at other ranks,
// or fail (front_end.on_failure); its rank takes no requests until the GPU is back. Pages of
// healthy GPUs that leave service go along where the new rank has room. With several replicas the
// requests stay with their replica, pages lost, until it is back or its breaker opens. A room for
// pages that shrinks is made by preemption; a request that no longer fits its rank fails.
//
// Shedding (alarm action). While the alarm stands, new requests are rejected; when the action is
// taken, also the newest `drop` of those that wait and have never been in a step.
//
// Checks: ∫N dt = Σ time in system (Little's law of a finite run, exact) · arrived = finished +
// rejected + failed + unfinished · tokens computed = Σ prompt + answer − 1 + computed anew · tokens
// sampled = Σ answers.
//
// Not modelled: the time of tokenising, of the front end itself and of the answer's way to the
// user; experts (memory.residency.host_slots) beside swapped pages in host memory; a swap beside
// computation.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/cluster/route_table.hpp"
#include "sim/loop/step_plan.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// What the scheduler must know of the machine.
struct ServingMachine {
  std::uint32_t gpus = 1;
  /// A replica's GPUs, and how many divide the heads of a sequence: a rank, whose first GPU is the
  /// home. Replicas of one kind (those that prefill, the others) are alike.
  struct Replica {
    std::uint32_t first_gpu = 0, gpus = 1, width = 1;
  };
  std::vector<Replica> replicas;  ///< Empty: equal shares of the GPUs, parallel.tp wide.
  /// The first step of a replica begins no earlier (weights are loading); ps. Requests that arrive
  /// until then are planned together.
  std::int64_t ready_ps = 0;
  std::vector<std::uint64_t> kv_capacity;  ///< [G] bytes for KV pages.
  /// Bytes of the pages of that many tokens, on each GPU of the sequence's home; ascending.
  /// With a kv_round: the most that any one GPU may have to hold of them.
  std::function<std::uint64_t(std::uint64_t)> kv_bytes;
  /// The same of prefill replicas, which may have other shards; empty: kv_bytes.
  std::function<std::uint64_t(std::uint64_t)> prefill_kv_bytes;
  /// Where the shards differ: what takes `bytes` to each GPU of a decode home from a prefill home
  /// (sim/serving/kv_shards.hpp). Empty: each GPU sends its own to its counterpart.
  std::function<std::vector<KvTransfer>(std::uint32_t from, std::uint32_t to, std::uint64_t bytes)>
      kv_shards;
  /// Pages lie on the kv_round GPUs, or tensor-parallel groups, of the home's copy of the experts;
  /// 0: on the home.
  std::uint32_t kv_round = 0;
  /// With a kv_round: bytes that `gpu` may have to hold of request `id` when it has `tokens` > 0
  /// tokens in the cache, of which `had` <= tokens are there; exact when these are equal, also for
  /// a home in another replica. `gpu`: first of its group.
  std::function<std::uint64_t(std::uint32_t id, std::uint32_t gpu, std::uint32_t home,
                              std::uint64_t had, std::uint64_t tokens)>
      kv_on;
  /// With a kv_round: what takes the request's pages from one home to another, each copy between
  /// the first GPUs of two groups.
  std::function<std::vector<KvTransfer>(std::uint32_t id, std::uint32_t from, std::uint32_t to,
                                        std::uint64_t tokens)>
      kv_moves;
  /// Pages of prefill replicas on links that exchanges use too; times in ps of simulated time.
  struct Pages {
    /// Bytes from one GPU to another from `now` on; returns the number of the transfer.
    std::function<std::uint64_t(std::uint32_t from, std::uint32_t to, std::uint64_t bytes,
                                std::int64_t now)>
        send;
    std::function<std::int64_t(std::uint64_t transfer)> arrival;  ///< As known now.
    std::function<void(std::uint64_t transfer)> forget;           ///< It has arrived.
    /// End of the step that a replica computes, as known now; not before its done(). Also without
    /// pages where exchanges of replicas share links; empty: as done() was told.
    std::function<std::int64_t(std::uint32_t engine)> step_end;
  };
  Pages pages;                                ///< Empty: `routes` times them.
  std::optional<cluster::RouteTable> routes;  ///< Needed with prefill replicas and no `pages`.
  /// [G] bytes of the watermark; empty with watermark_action = "record".
  std::vector<std::uint64_t> watermark;
  /// What a GPU held at most in its last step beside KV pages; asked with a watermark only.
  std::function<std::uint64_t(std::uint32_t)> other_bytes;
};

/// `scenario` is borrowed. Throws InputError when a rank has no room for KV pages.
std::unique_ptr<BatchSource> make_serving(const scenario::Scenario& scenario,
                                          ServingMachine machine);

}  // namespace switchyard::sim
