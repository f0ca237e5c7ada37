// SPDX-License-Identifier: Apache-2.0
#include "sim/loop/host_experts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/loop/step_loop.hpp"

namespace switchyard::sim {

SimTime HostExperts::alone(std::uint64_t experts, std::uint64_t rows) const {
  const auto n = static_cast<double>(experts), r = static_cast<double>(rows);
  const double bytes =
      n * static_cast<double>(shape_.bytes) + 2 * r * static_cast<double>(shape_.row_bytes);
  return SimTime::from_seconds(
      std::max(bytes / cpu_.bandwidth.value,
               2 * r * static_cast<double>(shape_.weights) / cpu_.flops.value));
}

std::unique_ptr<HostExperts> Simulator::make_host_experts(
    const std::vector<std::uint32_t>& host) const {
  const scenario::ResidencySpec& spec = s_.memory.residency;
  if (spec.miss == scenario::MissKind::kLoad) return nullptr;
  if (exchange_.ends_move()) {
    throw InputError(
        scenario::origin_of(s_, "memory.residency.miss"),
        "memory.residency.miss = \"cpu\" and \"cheaper\" are unsupported where several "
        "groups of GPUs exchange over the same links: rows on their way to the CPU "
        "would arrive later than it was told",
        "use miss = \"load\", or groups with links of their own");
  }
  auto x = std::make_unique<HostExperts>(
      spec.cpu,
      HostExperts::Shape{.weights = model::expert_matrix_elements(pool_->shard),
                         .bytes = expert_bytes(*pool_),
                         .row_bytes = model::dtype_bytes(s_.activations, s_.model.hidden_size)});
  for (const std::uint32_t h : host) {
    const auto at = std::find_if(x->units.begin(), x->units.end(),
                                 [h](const HostExperts::Unit& u) { return u.endpoint == h; });
    x->unit_of.push_back(static_cast<std::uint32_t>(at - x->units.begin()));
    if (at == x->units.end()) {
      x->units.push_back({h, s_.hardware.devices[exchange_.device_of(h)].name});
    }
  }
  x->missed.resize(gpus_);
  x->back.resize(gpus_);
  return x;
}

/// One copy, by itself on its links.
SimTime Simulator::copy_alone(std::uint32_t from, std::uint32_t to, std::uint64_t bytes) const {
  const cluster::RouteTable& routes = loads_->queue.routes();
  double seconds = 0;
  for (const std::uint32_t link : routes.links_of(from, to)) {
    seconds = std::max(seconds, static_cast<double>(bytes) / routes.bandwidth[link]);
  }
  return routes.latency(from, to) + SimTime::from_seconds(seconds);
}

/// Of the experts that a GPU lacks, those that the CPU computes; the others stay in `found`.
/// rows: [E] of this GPU.
void Simulator::leave_to_host(std::uint32_t gpu, std::span<const std::uint32_t> rows,
                              LayerLoads& found) {
  HostExperts& x = *loads_->on_host;
  const std::uint32_t host = loads_->host[gpu];
  const bool all = s_.memory.residency.miss == scenario::MissKind::kCpu;
  std::vector<ExpertLoad> rest;
  for (const ExpertLoad& load : found.loads) {
    const std::uint32_t n = rows[load.expert];
    const std::uint64_t bytes = n * x.shape().row_bytes;
    if (all || copy_alone(gpu, host, bytes) + x.job(1, n) + copy_alone(host, gpu, bytes) <=
                   copy_alone(host, gpu, x.shape().bytes)) {
      x.missed[gpu].push_back({load.expert, n});
    } else {
      rest.push_back(load);
    }
  }
  found.loads = std::move(rest);
}

/// The GPUs have the layer's rows since `there_ps` [G]: those of experts that they lack travel, are
/// computed and come back.
void Simulator::compute_on_host(std::span<const std::int64_t> there_ps) {
  HostExperts& x = *loads_->on_host;
  const bool measured = !record_.scalars.warmup;
  struct Job {
    std::int64_t arrival_ps;
    std::uint32_t gpu;
    std::uint64_t rows;
    TransferQueue::Id id;
  };
  std::vector<Job> jobs;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    x.back[g].clear();
    if (x.missed[g].empty()) continue;
    std::uint64_t rows = 0;
    for (const HostExperts::Miss& m : x.missed[g]) rows += m.rows;
    jobs.push_back(
        {0, g, rows, copy(gpus_ + g, g, loads_->host[g], rows * x.shape().row_bytes, there_ps[g])});
    if (!measured) continue;
    x.experts += x.missed[g].size();
    x.rows += rows;
    x.bytes += 2 * rows * x.shape().row_bytes;
  }
  for (Job& j : jobs) j.arrival_ps = loads_->queue.end(j.id);
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return a.arrival_ps != b.arrival_ps ? a.arrival_ps < b.arrival_ps : a.gpu < b.gpu;
  });
  for (const Job& j : jobs) {
    HostExperts::Unit& u = x.units[x.unit_of[j.gpu]];
    const std::int64_t length = x.job(x.missed[j.gpu].size(), j.rows).ps();
    check_time(length);
    const std::int64_t end = u.calendar.take(j.arrival_ps, length) + length;
    check_time(end);
    u.busy_ps += length;
    x.back[j.gpu].push_back(copy(j.gpu, u.endpoint, j.gpu, j.rows * x.shape().row_bytes, end));
  }
}

/// Whether the CPU computes an expert of the layer under way for a GPU.
bool Simulator::on_host(std::uint32_t gpu, std::uint32_t expert) const {
  if (loads_ == nullptr || loads_->on_host == nullptr) return false;
  const std::vector<HostExperts::Miss>& missed = loads_->on_host->missed[gpu];
  return std::any_of(missed.begin(), missed.end(),
                     [&](const HostExperts::Miss& m) { return m.expert == expert; });
}

/// [local experts] rows that the GPU computes itself: of a wave, without what it left to the CPU.
std::span<const std::uint32_t> Simulator::own_rows(std::uint32_t moe, std::uint32_t gpu,
                                                   const std::vector<std::uint32_t>& wave) {
  if (loads_ == nullptr || loads_->on_host == nullptr || loads_->on_host->missed[gpu].empty()) {
    return wave;
  }
  own_rows_ = wave;
  const ExpertMap::Row& row = map().row(moe);
  for (const std::uint32_t c : row.of_rank[layout().rank_of(gpu)]) {
    if (on_host(gpu, row.expert[c])) own_rows_[row.local[c]] = 0;
  }
  return own_rows_;
}

/// The GPUs have computed their own experts; those whose results are still away wait for them.
void Simulator::await_host(std::uint32_t moe) {
  HostExperts& x = *loads_->on_host;
  std::int64_t longest = 0;
  std::uint32_t latest = 0;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    for (const HostExperts::Miss& m : x.missed[g]) {
      record_.expert_time_ps[std::size_t{moe} * experts_ + m.expert] += x.alone(1, m.rows).ps();
    }
    x.missed[g].clear();
    std::int64_t there = ready_[g];
    for (const TransferQueue::Id id : x.back[g]) there = std::max(there, loads_->queue.end(id));
    const std::int64_t wait = there - ready_[g];
    if (wait > longest) latest = g;
    longest = std::max(longest, wait);
    wait_for_expert(moe, g, wait);
  }
  if (longest == 0) return;
  note_expert_wait(moe, latest, longest);
  if (!record_.scalars.warmup) x.wait_ps += longest;
}

void Simulator::note_host_experts(SimulationResult& result) {
  const HostExperts& x = *loads_->on_host;
  std::int64_t begin = 0, end = 0;
  for (const run::StepScalars& step : sink_.data().steps) {
    begin = end == 0 ? step.start_ps : std::min(begin, step.start_ps);
    end = std::max(end, step.end_ps);
  }
  double most = 0;
  std::string text;
  for (const HostExperts::Unit& u : x.units) {
    const double use =
        end > begin ? static_cast<double>(u.busy_ps) / static_cast<double>(end - begin) : 0;
    most = std::max(most, use);
    text += fmt::format("{}{} {:.3g} %", text.empty() ? "" : ", ", u.name, 100 * use);
  }
  const double steps = static_cast<double>(std::max<std::uint64_t>(loads_->steps, 1));
  const auto a_step = [&](auto v) { return static_cast<double>(v) / steps; };
  std::vector<run::Metric>& metrics = sink_.data().metrics;
  metrics.push_back({"experts on the CPU per step", a_step(x.experts), ""});
  metrics.push_back({"rows to the CPU per step", a_step(x.rows), ""});
  metrics.push_back({"expert CPU transfers per step", a_step(x.bytes), "B"});
  metrics.push_back({"expert CPU wait per step", a_step(x.wait_ps) * 1e-9, "ms"});
  metrics.push_back({"expert CPU use", most, ""});
  result.notes.push_back(
      fmt::format("experts on the CPU: {:.4g} a step, {} a step there and back; busy {}",
                  a_step(x.experts), format_bytes(a_step(x.bytes)), text));
}

}  // namespace switchyard::sim
