// SPDX-License-Identifier: Apache-2.0
// Starting up (M35): how the weights get onto a GPU, and when it may serve.
//
//   router and shared weights → experts, layer by layer → warm-up → table → ready
//
// The weights of the first two states travel as one stream of `shards` equal parts. A shard is read
// from the SSD into a host buffer, its checksum is taken, and it is copied to the GPU; `in_flight`
// buffers let these three work on different shards at the same time:
//
//   read_i  begins at max(read_{i−1}, copy_{i−in_flight});  + latency + bytes / read rate
//   check_i begins at max(read_i, check_{i−1});             + bytes / checksum rate
//   copy_i  begins at max(check_i, copy_{i−1});             + latency + bytes / copy rate
//
// From host memory there is only the copy. A rate is what the GPU gets while all GPUs load at once:
// its bytes over the longest time that a link of the path needs for the bytes of all of them.
// A layer is ready when the shard with its last byte has been copied.
//
// Warm-up takes `warm_up_per_expert` (stated, or what the cost model says of warm_up.tokens) for
// each expert of the GPU, one after another, and `workspace` bytes; the table takes `table` bytes
// and its copy. Serial: the workspace is given back before the table comes. Parallel: both begin
// when the experts are there, so both take memory at once, which is how a start-up runs out of it.
//
// Not modelled: page faults, compilation and file caches (they are inside the stated per_expert),
// disk throttling, shards of unequal size.
#pragma once
#include <cstdint>
#include <vector>

#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

/// What a GPU loads and how fast.
struct LoadJob {
  std::uint64_t backbone = 0;         ///< Bytes of router and shared weights.
  std::vector<std::uint64_t> layers;  ///< [L] bytes of the experts it holds.
  std::uint64_t experts = 0;          ///< How many those are.
  double read = 0;                    ///< Bytes per second from the SSD; 0: from host memory.
  double copy = 0;                    ///< Bytes per second from the host to the GPU, > 0.
  std::int64_t read_latency_ps = 0, copy_latency_ps = 0;
};

/// Times in ps since the start.
struct LoadTimeline {
  std::int64_t backbone_ps = 0;        ///< Router and shared weights are there.
  std::vector<std::int64_t> layer_ps;  ///< [L] the layer's experts are there.
  std::int64_t experts_ps = 0;         ///< All of them.
  std::int64_t warm_up_begin_ps = 0, warm_up_end_ps = 0;
  std::int64_t table_begin_ps = 0, table_end_ps = 0;
  std::int64_t ready_ps = 0;
  std::int64_t stream_alone_ps = 0;  ///< Bytes over the slowest of the three rates: a floor.
  std::uint64_t host_buffers = 0;    ///< Bytes of shards in host memory at once.
};

/// Throws nothing; spec must be valid (scenario.hpp).
LoadTimeline load_timeline(const scenario::LoadingSpec& spec, const LoadJob& job);

}  // namespace switchyard::sim
