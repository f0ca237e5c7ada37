// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/loading.hpp"

#include <algorithm>
#include <numeric>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {

std::int64_t time_ps(double bytes, double rate) {
  return rate > 0 && bytes > 0 ? SimTime::from_seconds(bytes / rate).ps() : 0;
}

}  // namespace

LoadTimeline load_timeline(const scenario::LoadingSpec& spec, const LoadJob& job) {
  SWITCHYARD_ASSERT(job.copy > 0 && spec.shards > 0 && spec.in_flight > 0, "loading at no rate");
  LoadTimeline out;
  const std::uint64_t experts =
      std::accumulate(job.layers.begin(), job.layers.end(), std::uint64_t{0});
  const std::uint64_t total = job.backbone + experts;
  // Shard i holds bytes [total i / n, total (i + 1) / n).
  const auto edge = [&](std::uint64_t i) {
    return static_cast<std::uint64_t>(static_cast<unsigned __int128>(total) * i / spec.shards);
  };
  std::vector<std::int64_t> copied(spec.shards, 0);
  std::int64_t read = 0, checked = 0, copy = 0;
  for (std::uint32_t i = 0; i < spec.shards; ++i) {
    const auto bytes = static_cast<double>(edge(i + 1) - edge(i));
    if (job.read > 0) {
      if (i >= spec.in_flight) read = std::max(read, copied[i - spec.in_flight]);
      read += job.read_latency_ps + time_ps(bytes, job.read);
    }
    checked = std::max(read, checked) + time_ps(bytes, spec.checksum.value);
    copy = std::max(checked, copy) + job.copy_latency_ps + time_ps(bytes, job.copy);
    copied[i] = copy;
    out.host_buffers = std::max<std::uint64_t>(
        out.host_buffers, std::min(spec.in_flight, spec.shards) * (edge(i + 1) - edge(i)));
  }
  if (job.read <= 0) out.host_buffers = 0;
  const auto whole = static_cast<double>(total);
  out.stream_alone_ps = std::max(
      {time_ps(whole, job.read), time_ps(whole, spec.checksum.value), time_ps(whole, job.copy)});

  // The shard that holds the byte before `end`.
  const auto there = [&](std::uint64_t end) -> std::int64_t {
    if (end == 0) return 0;
    std::uint32_t i = 0;
    while (edge(i + 1) < end) ++i;
    return copied[i];
  };
  std::uint64_t sum = job.backbone;
  out.backbone_ps = there(sum);
  for (const std::uint64_t bytes : job.layers) {
    sum += bytes;
    out.layer_ps.push_back(there(sum));
  }
  out.experts_ps = there(total);
  const std::int64_t warm_up =
      spec.warm_up_per_expert.ps() * static_cast<std::int64_t>(job.experts);
  const std::int64_t table =
      spec.table > 0 ? job.copy_latency_ps + time_ps(static_cast<double>(spec.table), job.copy) : 0;
  out.warm_up_begin_ps = out.experts_ps;
  out.warm_up_end_ps = out.experts_ps + warm_up;
  out.table_begin_ps = spec.parallel ? out.experts_ps : out.warm_up_end_ps;
  out.table_end_ps = out.table_begin_ps + table;
  out.ready_ps = std::max(out.warm_up_end_ps, out.table_end_ps);
  return out;
}

}  // namespace switchyard::sim
