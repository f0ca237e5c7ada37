// SPDX-License-Identifier: Apache-2.0
#include "sim/run/run_file.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/h5/container.hpp"
#include "sim/run/conservation.hpp"
#include "sim/run/metrics.hpp"
#include "tests/run/sample_run.hpp"

namespace switchyard::run {
namespace {

namespace fs = std::filesystem;
using testing::sample_inventory;
using testing::sample_meta;
using testing::sample_run;
using testing::sample_step;

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void put_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The message of the InputError that `body` throws, or "" when it throws none.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

/// Equality of doubles that takes NaN = NaN.
template <class T>
void expect_same(const std::vector<T>& a, const std::vector<T>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    }
    ASSERT_EQ(a[i], b[i]) << what << "[" << i << "]";
  }
}

void expect_same(const ExpertSteps& a, const ExpertSteps& b) {
  expect_same(a.kept, b.kept, "kept");
  expect_same(a.overflow, b.overflow, "overflow");
  expect_same(a.rerouted_in, b.rerouted_in, "rerouted_in");
  expect_same(a.queued, b.queued, "queued");
  expect_same(a.dropped, b.dropped, "dropped");
  expect_same(a.capacity, b.capacity, "capacity");
  expect_same(a.fill, b.fill, "fill");
}

template <class T, class Sum>
void expect_same(const Lod<T, Sum>& a, const Lod<T, Sum>& b, const char* what) {
  ASSERT_EQ(a.width(), b.width()) << what;
  ASSERT_EQ(a.steps(), b.steps()) << what;
  ASSERT_EQ(a.levels(), b.levels()) << what;
  for (std::size_t l = 1; l <= a.levels(); ++l) {
    expect_same(a.level(l).max, b.level(l).max, what);
    expect_same(a.level(l).sum, b.level(l).sum, what);
    expect_same(a.level(l).flag, b.level(l).flag, what);
  }
}

void expect_same(const ExpertLod& a, const ExpertLod& b) {
  expect_same(a.kept, b.kept, "kept");
  expect_same(a.overflow, b.overflow, "overflow");
  expect_same(a.fill, b.fill, "fill");
}

void expect_same_meta(const RunData& a, const RunData& b) {
  EXPECT_EQ(a.meta.product_version, b.meta.product_version);
  EXPECT_EQ(a.meta.scenario_name, b.meta.scenario_name);
  EXPECT_EQ(a.meta.scenario_text, b.meta.scenario_text);
  EXPECT_EQ(a.meta.scenario_hash, b.meta.scenario_hash);
  EXPECT_EQ(a.meta.model_name, b.meta.model_name);
  EXPECT_EQ(a.meta.model_hash, b.meta.model_hash);
  EXPECT_EQ(a.meta.hardware_name, b.meta.hardware_name);
  EXPECT_EQ(a.meta.hardware_hash, b.meta.hardware_hash);
  EXPECT_EQ(a.meta.trace_hash, b.meta.trace_hash);
  EXPECT_EQ(a.meta.routing_source, b.meta.routing_source);
  EXPECT_EQ(a.meta.policy_way, b.meta.policy_way);
  EXPECT_EQ(a.meta.network_model, b.meta.network_model);
  EXPECT_EQ(a.meta.seed, b.meta.seed);
  EXPECT_EQ(a.meta.detail, b.meta.detail);
  EXPECT_EQ(a.notes, b.notes);
  ASSERT_EQ(a.inventory.gpus.size(), b.inventory.gpus.size());
  for (std::size_t g = 0; g < a.inventory.gpus.size(); ++g) {
    EXPECT_EQ(a.inventory.gpus[g].name, b.inventory.gpus[g].name);
    EXPECT_EQ(a.inventory.gpus[g].node, b.inventory.gpus[g].node);
    EXPECT_EQ(a.inventory.gpus[g].memory_bytes, b.inventory.gpus[g].memory_bytes);
    EXPECT_EQ(a.inventory.gpus[g].hbm, b.inventory.gpus[g].hbm);
    EXPECT_EQ(a.inventory.gpus[g].peak, b.inventory.gpus[g].peak);
  }
  ASSERT_EQ(a.inventory.links.size(), b.inventory.links.size());
  for (std::size_t k = 0; k < a.inventory.links.size(); ++k) {
    EXPECT_EQ(a.inventory.links[k].name, b.inventory.links[k].name);
    EXPECT_EQ(a.inventory.links[k].from, b.inventory.links[k].from);
    EXPECT_EQ(a.inventory.links[k].to, b.inventory.links[k].to);
    EXPECT_EQ(a.inventory.links[k].link_class, b.inventory.links[k].link_class);
    EXPECT_EQ(a.inventory.links[k].bandwidth, b.inventory.links[k].bandwidth);
  }
  EXPECT_EQ(a.inventory.experts, b.inventory.experts);
  EXPECT_EQ(a.inventory.top_k, b.inventory.top_k);
  EXPECT_EQ(a.inventory.moe_layers, b.inventory.moe_layers);
  EXPECT_EQ(a.inventory.replicas, b.inventory.replicas);
  EXPECT_EQ(a.inventory.placement, b.inventory.placement);
}

void expect_same_totals(const Totals& a, const Totals& b) {
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.assignments, b.assignments);
  EXPECT_EQ(a.kept, b.kept);
  EXPECT_EQ(a.rerouted, b.rerouted);
  EXPECT_EQ(a.queued, b.queued);
  EXPECT_EQ(a.dropped, b.dropped);
  EXPECT_EQ(a.overflow, b.overflow);
  EXPECT_EQ(a.bytes_sent, b.bytes_sent);
  EXPECT_EQ(a.bytes_received, b.bytes_received);
  EXPECT_EQ(a.gpu_memory, b.gpu_memory);
  EXPECT_EQ(a.gpu_memory_peak, b.gpu_memory_peak);
  EXPECT_EQ(a.expert_kept, b.expert_kept);
  EXPECT_EQ(a.expert_overflow, b.expert_overflow);
  EXPECT_EQ(a.expert_time_ps, b.expert_time_ps);
  EXPECT_EQ(a.reroute_experts, b.reroute_experts);
  EXPECT_EQ(a.reroute_gpus, b.reroute_gpus);
  EXPECT_EQ(a.pair_bytes, b.pair_bytes);
  EXPECT_EQ(a.gpu_phase_ps, b.gpu_phase_ps);
  EXPECT_EQ(a.link_bytes, b.link_bytes);
  EXPECT_EQ(a.link_busy_ps, b.link_busy_ps);
}

void expect_same_steps(const std::vector<StepScalars>& a, const std::vector<StepScalars>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].start_ps, b[i].start_ps);
    EXPECT_EQ(a[i].end_ps, b[i].end_ps);
    EXPECT_EQ(a[i].kind, b[i].kind);
    EXPECT_EQ(a[i].warmup, b[i].warmup);
    EXPECT_EQ(a[i].tokens, b[i].tokens);
    EXPECT_EQ(a[i].sequences, b[i].sequences);
    EXPECT_EQ(a[i].phase_ps, b[i].phase_ps);
    EXPECT_EQ(a[i].assignments, b[i].assignments);
    EXPECT_EQ(a[i].kept, b[i].kept);
    EXPECT_EQ(a[i].rerouted, b[i].rerouted);
    EXPECT_EQ(a[i].queued, b[i].queued);
    EXPECT_EQ(a[i].dropped, b[i].dropped);
    EXPECT_EQ(a[i].overflow, b[i].overflow);
    EXPECT_EQ(a[i].longest_queue, b[i].longest_queue);
    expect_same(std::vector{a[i].gate_entropy}, std::vector{b[i].gate_entropy}, "gate_entropy");
    expect_same(std::vector{a[i].imbalance}, std::vector{b[i].imbalance}, "imbalance");
    expect_same(std::vector{a[i].imbalance_max}, std::vector{b[i].imbalance_max}, "imbalance_max");
    EXPECT_EQ(a[i].hbm_bytes, b[i].hbm_bytes);
    expect_same(std::vector{a[i].flops}, std::vector{b[i].flops}, "flops");
    EXPECT_EQ(a[i].kernels, b[i].kernels);
    EXPECT_EQ(a[i].bytes_sent, b[i].bytes_sent);
    EXPECT_EQ(a[i].bytes_received, b[i].bytes_received);
    EXPECT_EQ(a[i].straggler_gpu, b[i].straggler_gpu);
    EXPECT_EQ(a[i].straggler_reason, b[i].straggler_reason);
  }
}

void expect_same_rows(const RunData& a, const RunData& b) {
  ASSERT_EQ(a.requests.size(), b.requests.size());
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    EXPECT_EQ(a.requests[i].id, b.requests[i].id);
    EXPECT_EQ(a.requests[i].arrival_ps, b.requests[i].arrival_ps);
    EXPECT_EQ(a.requests[i].first_token_ps, b.requests[i].first_token_ps);
    EXPECT_EQ(a.requests[i].end_ps, b.requests[i].end_ps);
    EXPECT_EQ(a.requests[i].prompt_tokens, b.requests[i].prompt_tokens);
    EXPECT_EQ(a.requests[i].output_tokens, b.requests[i].output_tokens);
    EXPECT_EQ(a.requests[i].outcome, b.requests[i].outcome);
  }
  ASSERT_EQ(a.tokens.size(), b.tokens.size());
  for (std::size_t i = 0; i < a.tokens.size(); ++i) {
    EXPECT_EQ(a.tokens[i].request, b.tokens[i].request);
    EXPECT_EQ(a.tokens[i].index, b.tokens[i].index);
    EXPECT_EQ(a.tokens[i].step, b.tokens[i].step);
    EXPECT_EQ(a.tokens[i].time_ps, b.tokens[i].time_ps);
  }
  ASSERT_EQ(a.events.size(), b.events.size());
  for (std::size_t i = 0; i < a.events.size(); ++i) {
    EXPECT_EQ(a.events[i].time_ps, b.events[i].time_ps);
    EXPECT_EQ(a.events[i].step, b.events[i].step);
    EXPECT_EQ(a.events[i].kind, b.events[i].kind);
    EXPECT_EQ(a.events[i].layer, b.events[i].layer);
    EXPECT_EQ(a.events[i].gpu, b.events[i].gpu);
    EXPECT_EQ(a.events[i].expert, b.events[i].expert);
    EXPECT_EQ(a.events[i].link, b.events[i].link);
    EXPECT_EQ(a.events[i].text, b.events[i].text);
    expect_same(std::vector{a.events[i].value}, std::vector{b.events[i].value}, "event value");
  }
  ASSERT_EQ(a.critical_path.size(), b.critical_path.size());
  for (std::size_t i = 0; i < a.critical_path.size(); ++i) {
    EXPECT_EQ(a.critical_path[i].step, b.critical_path[i].step);
    EXPECT_EQ(a.critical_path[i].layer, b.critical_path[i].layer);
    EXPECT_EQ(a.critical_path[i].phase, b.critical_path[i].phase);
    EXPECT_EQ(a.critical_path[i].gpu, b.critical_path[i].gpu);
    EXPECT_EQ(a.critical_path[i].reason, b.critical_path[i].reason);
    EXPECT_EQ(a.critical_path[i].start_ps, b.critical_path[i].start_ps);
    EXPECT_EQ(a.critical_path[i].duration_ps, b.critical_path[i].duration_ps);
  }
  ASSERT_EQ(a.metrics.size(), b.metrics.size());
  for (std::size_t i = 0; i < a.metrics.size(); ++i) {
    EXPECT_EQ(a.metrics[i].name, b.metrics[i].name);
    EXPECT_EQ(a.metrics[i].unit, b.metrics[i].unit);
    expect_same(std::vector{a.metrics[i].value}, std::vector{b.metrics[i].value}, "metric");
  }
}

/// All blocks of `b`, which was read, against `a`, which was made.
void expect_same_run(const RunData& a, const RunData& b) {
  expect_same_meta(a, b);
  expect_same_totals(a.totals, b.totals);
  expect_same_rows(a, b);
  expect_same(a.lod.steps, b.lod.steps, "steps");
  expect_same(a.lod.step_start, b.lod.step_start, "step_start");
  expect_same(a.lod.gpu_phase, b.lod.gpu_phase, "gpu_phase");
  expect_same(a.lod.link_bytes, b.lod.link_bytes, "link_bytes");
  expect_same(a.lod.link_use, b.lod.link_use, "link_use");
  expect_same(a.lod.experts, b.lod.experts);
  ASSERT_EQ(a.lod.layers.size(), b.lod.layers.size());
  for (std::size_t l = 0; l < a.lod.layers.size(); ++l) {
    expect_same(a.lod.layers[l], b.lod.layers[l]);
  }
  if (a.meta.detail >= Detail::kSteps) {
    expect_same_steps(a.steps, b.steps);
  } else {
    EXPECT_TRUE(b.steps.empty());
  }
  expect_same(a.experts, b.experts);
  ASSERT_EQ(a.layer_experts.size(), b.layer_experts.size());
  for (std::size_t l = 0; l < a.layer_experts.size(); ++l) {
    expect_same(a.layer_experts[l], b.layer_experts[l]);
  }
  EXPECT_EQ(a.layer_steps.attention_ps, b.layer_steps.attention_ps);
  EXPECT_EQ(a.layer_steps.router_ps, b.layer_steps.router_ps);
  EXPECT_EQ(a.layer_steps.dispatch_ps, b.layer_steps.dispatch_ps);
  EXPECT_EQ(a.layer_steps.expert_ps, b.layer_steps.expert_ps);
  EXPECT_EQ(a.layer_steps.combine_ps, b.layer_steps.combine_ps);
  EXPECT_EQ(a.layer_steps.dispatch_floor_ps, b.layer_steps.dispatch_floor_ps);
  EXPECT_EQ(a.layer_steps.combine_floor_ps, b.layer_steps.combine_floor_ps);
  EXPECT_EQ(a.layer_steps.imbalance, b.layer_steps.imbalance);
  EXPECT_EQ(a.layer_steps.distinct_experts, b.layer_steps.distinct_experts);
  EXPECT_EQ(a.layer_steps.straggler_gpu, b.layer_steps.straggler_gpu);
  EXPECT_EQ(a.layer_steps.straggler_reason, b.layer_steps.straggler_reason);
  EXPECT_EQ(a.gpus.phase_ps, b.gpus.phase_ps);
  EXPECT_EQ(a.gpus.bytes_out, b.gpus.bytes_out);
  EXPECT_EQ(a.gpus.bytes_in, b.gpus.bytes_in);
  EXPECT_EQ(a.gpus.memory, b.gpus.memory);
  EXPECT_EQ(a.gpus.memory_peak, b.gpus.memory_peak);
  EXPECT_EQ(a.links.bytes, b.links.bytes);
  EXPECT_EQ(a.links.busy_ps, b.links.busy_ps);
  EXPECT_EQ(a.reroutes.step, b.reroutes.step);
  EXPECT_EQ(a.reroutes.layer, b.reroutes.layer);
  EXPECT_EQ(a.reroutes.from, b.reroutes.from);
  EXPECT_EQ(a.reroutes.to, b.reroutes.to);
  EXPECT_EQ(a.reroutes.count, b.reroutes.count);
}

TEST(RunFile, GivesBackWhatWasWrittenAtEveryDetailAndLength) {
  for (const std::uint32_t steps : {0U, 1U, 10U, 150U}) {
    for (const Detail detail :
         {Detail::kSummary, Detail::kSteps, Detail::kLayers, Detail::kTokens}) {
      RunData run = sample_run(steps, detail);
      run.metrics = compute_metrics(run);
      write_run("round.h5", run);
      SCOPED_TRACE(::testing::Message()
                   << steps << " steps, detail " << kDetailNames[static_cast<std::size_t>(detail)]);
      expect_same_run(run, read_run("round.h5"));
    }
  }
}

TEST(RunFile, TheStreamingWriterWritesTheSameBytesAsTheOneInMemory) {
  RunData run = sample_run(150, Detail::kTokens);
  run.metrics = compute_metrics(run);
  run.metrics.push_back({"own metric", 4, "s"});
  write_run("memory.h5", run);

  RunWriter writer("stream.h5", sample_meta(Detail::kTokens), sample_inventory());
  for (std::uint32_t s = 0; s < 150; ++s) writer.append(sample_step(sample_inventory(), s));
  testing::fill_sample_rest(writer.data());
  writer.data().metrics = {{"own metric", 4, "s"}};
  EXPECT_TRUE(writer.finish().empty());
  EXPECT_EQ(bytes_of("memory.h5"), bytes_of("stream.h5"));

  write_run("memory2.h5", run);
  EXPECT_EQ(bytes_of("memory.h5"), bytes_of("memory2.h5"));
}

Inventory wide_inventory(std::uint32_t layers, std::uint32_t experts) {
  Inventory inv = sample_inventory();
  inv.experts = experts;
  inv.moe_layers.clear();
  for (std::uint32_t l = 0; l < layers; ++l) inv.moe_layers.push_back(l);
  inv.replicas = 1;
  inv.placement.assign(std::size_t{layers} * experts, 0);
  return inv;
}

StepRecord wide_step(const Inventory& inv, std::uint32_t s) {
  StepRecord step = make_step(inv);
  for (LayerRecord& l : step.layers) l.imbalance = 1.5;
  step.scalars.start_ps = std::int64_t{s} * 1000;
  step.scalars.end_ps = step.scalars.start_ps + 1000;
  for (std::size_t i = 0; i < step.expert_kept.size(); ++i) {
    step.expert_kept[i] = static_cast<std::uint32_t>((s * 31 + i * 17) % 11);
    step.expert_overflow[i] = (s + i) % 97 == 0 ? 3 : 0;
    step.expert_capacity[i] = i % 5 == 0 ? kUnlimited : static_cast<std::uint32_t>(7 + i % 3);
  }
  if (s % 3 == 0) step.reroutes.push_back({1, s % 7, s % 5, 2});
  return step;
}

TEST(RunFile, TheStreamingWriterWritesTheSameBytesOfManyPackedPieces) {
  // 64 experts: 128 KiB are 512 steps.
  const Inventory inv = wide_inventory(3, 64);
  RunData run = make_run(sample_meta(Detail::kLayers), inv);
  RunWriter writer("stream.h5", sample_meta(Detail::kLayers), inv);
  for (std::uint32_t s = 0; s < 1100; ++s) {
    const StepRecord step = wide_step(inv, s);
    append_step(run, step);
    writer.append(step);
  }
  (void)writer.finish();
  run.metrics = compute_metrics(run);
  write_run("memory.h5", run);
  EXPECT_TRUE(bytes_of("memory.h5") == bytes_of("stream.h5"));
  expect_same_run(run, read_run("stream.h5"));
}

TEST(RunFile, TheStreamingWriterHoldsTheLevelsOfOneLayerAtATime) {
  // 256 experts: 128 KiB are 128 steps.
  const Inventory inv = wide_inventory(4, 256);
  std::vector<std::uint64_t> peaks;
  for (const std::uint32_t steps : {400U, 800U}) {
    RunWriter writer("stream.h5", sample_meta(Detail::kLayers), inv);
    for (std::uint32_t s = 0; s < steps; ++s) writer.append(wide_step(inv, s));
    (void)writer.finish();
    peaks.push_back(writer.peak_bytes());
  }
  // Bins of kept, overflow and fill: 13 B each, for 1/7 of the steps. All five (the layers' and the
  // sum's) would grow by 2.9 MB or more, the one that is held by at most twice a fifth of it; rows
  // of small datasets that wait to be packed, and levels of GPUs and links, by 1 kB a step.
  const double one = 400.0 / 7 * 256 * 39;
  const double grown = static_cast<double>(peaks[1]) - static_cast<double>(peaks[0]);
  EXPECT_LT(grown, 2.2 * one + 400.0 * 1024 * 2);
  EXPECT_LT(2.2 * one + 400.0 * 1024 * 2, 5 * one);
}

TEST(RunFile, TheStreamingWriterReportsViolationsAndWritesTheRun) {
  RunWriter writer("broken.h5", sample_meta(Detail::kSteps), sample_inventory());
  for (std::uint32_t s = 0; s < 100; ++s) {
    StepRecord step = sample_step(sample_inventory(), s);
    if (s == 70) step.scalars.bytes_received = 6999;
    writer.append(step);
  }
  const std::vector<Violation> violations = writer.finish();
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(violations[0].check, "bytes");
  EXPECT_EQ(violations[0].where, "step 70");
  EXPECT_EQ(violations[0].message, "sent = 7000, received = 6999");
  EXPECT_EQ(RunReader("broken.h5").steps(), 100U);
}

TEST(RunFile, AWriterThatDoesNotFinishLeavesNothingBehind) {
  fs::create_directory("unfinished");
  {
    RunWriter writer("unfinished/r.h5", sample_meta(Detail::kLayers), sample_inventory());
    writer.append(sample_step(sample_inventory(), 0));
  }
  EXPECT_TRUE(fs::is_empty("unfinished"));
  EXPECT_NE(error_of([] {
              RunWriter("no/such/folder/r.h5", sample_meta(Detail::kLayers), sample_inventory());
            }),
            "");
}

TEST(RunFile, ReadsRangesOnDemand) {
  const RunData run = sample_run(150, Detail::kLayers);
  write_run("range.h5", run);
  const RunReader reader("range.h5");
  const ExpertSteps window = reader.read_experts(100, 3);
  for (std::size_t i = 0; i < 3 * 4; ++i) {
    EXPECT_EQ(window.kept[i], run.experts.kept[100 * 4 + i]);
    EXPECT_EQ(window.fill[i], run.experts.fill[100 * 4 + i]);
  }
  EXPECT_EQ(reader.read_layer_experts(1, 5, 1).overflow, (std::vector<std::uint32_t>{1, 0, 0, 0}));
  EXPECT_EQ(reader.read_steps(149, 1)[0].end_ps, 150 * 100'000'000LL);
  EXPECT_EQ(reader.read_gpus(10, 1).memory_peak, (std::vector<std::uint64_t>{420, 410}));
  EXPECT_EQ(reader.read_links(10, 2).bytes, (std::vector<std::uint64_t>{4000, 3000, 4000, 3000}));
  EXPECT_EQ(reader.read_layers(5, 1).distinct_experts, (std::vector<std::uint32_t>{3, 3}));
  EXPECT_EQ(error_of([&] { (void)reader.read_experts(149, 2); }),
            "range.h5: steps 149 to 151 asked for; the run has 150");
  EXPECT_EQ(error_of([&] { (void)reader.read_layer_experts(2, 0, 1); }),
            "range.h5: MoE layer 2 asked for; the run has 2");
  EXPECT_EQ(error_of([&] { (void)reader.read_tokens(); }),
            "range.h5: tokens are not in a run with detail = \"layers\"; simulate with "
            "run.detail = \"tokens\"");
}

TEST(RunFile, TheFirstPictureOfALongRunReadsLessThanAMegabyte) {
  // 256 experts, 20 000 steps, one overflow in one step.
  constexpr std::uint32_t kSteps = 20'000;
  constexpr std::uint32_t kHot = 12'345;
  Inventory inv = sample_inventory();
  inv.experts = 256;
  inv.moe_layers = {0};
  inv.placement.assign(256, 0);
  RunWriter writer("long.h5", sample_meta(Detail::kSummary), inv);
  StepRecord step = make_step(inv);
  step.expert_capacity.assign(256, 8);
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    for (std::uint32_t e = 0; e < 256; ++e) step.expert_kept[e] = (s * 31 + e * 17) % 8;
    step.expert_overflow[200] = s == kHot ? 3 : 0;
    step.scalars.start_ps = s * 1000;
    step.scalars.end_ps = (s + 1) * 1000;
    writer.append(step);
  }
  (void)writer.finish();

  const RunReader reader("long.h5");
  const RunLod lod = reader.overview();
  EXPECT_LT(reader.bytes_read(), 1'000'000U);
  const std::size_t finest = reader.overview_level();
  EXPECT_GE(lod_bins(kSteps, finest), 30U) << "a picture needs columns";
  for (std::size_t l = finest; l <= lod.experts.overflow.levels(); ++l) {
    const auto view = lod.experts.overflow.query(l, 0, kSteps);
    for (std::uint64_t bin = 0; bin < view.bins; ++bin) {
      const bool hot = bin == kHot / lod_bin_steps(l);
      ASSERT_EQ(view.flag[bin * 256 + 200], hot ? 1 : 0) << "level " << l << " bin " << bin;
      ASSERT_EQ(view.max[bin * 256 + 200], hot ? 3U : 0U);
    }
  }
  EXPECT_FALSE(lod.experts.kept.loaded(finest - 1));
}

TEST(RunFile, FormatMdIsTheSchemaAndTheSchemaIsTheFile) {
  const std::string format = run_format_markdown();
  const std::string committed = bytes_of(fs::path(SWITCHYARD_SOURCE_DIR) / "sim/run/FORMAT.md");
  if (format != committed) put_bytes("FORMAT.md", format);
  EXPECT_EQ(format, committed) << "if meant, copy " << fs::absolute("FORMAT.md").string()
                               << " over sim/run/FORMAT.md and say why in the commit";
  RunData served = sample_run(10, Detail::kTokens);
  served.serving = true;
  served.inventory.gpus.back().engine = 1;
  served.requests[0].cached_tokens = 512;
  served.cohesion = true;
  write_run("schema.h5", served);
  const h5::FileReader file("schema.h5", run_schema());
  EXPECT_EQ(h5::schema_differences(run_schema(), file), std::vector<std::string>{});
  for (const h5::SchemaEntry& entry : run_schema().entries) {
    bool found = entry.name[0] == '@' && file.has(entry.name);
    for (const std::string& name : file.datasets()) {
      found = found || h5::name_matches(entry.name, name);
    }
    EXPECT_TRUE(found) << entry.name << " is in no file";
  }
}

TEST(RunFile, KeepsCohesionWhereTheTraceHadHiddenStates) {
  RunData run = sample_run(10, Detail::kSteps);
  write_run("plain.h5", run);
  EXPECT_FALSE(read_run("plain.h5").cohesion);
  EXPECT_TRUE(std::isnan(read_run("plain.h5").steps[2].cohesion));
  run.cohesion = true;
  run.steps[2].cohesion = -0.25;
  run.steps[2].cohesion_baseline = 0.125;
  write_run("cohesion.h5", run);
  const RunData back = read_run("cohesion.h5");
  EXPECT_TRUE(back.cohesion);
  EXPECT_EQ(back.steps[2].cohesion, -0.25);
  EXPECT_EQ(back.steps[2].cohesion_baseline, 0.125);
  EXPECT_TRUE(std::isnan(back.steps[3].cohesion)) << "no expert had two tokens";
  run.steps[4].cohesion_baseline = 1.5;
  write_run("cohesion.h5", run);
  try {
    (void)read_run("cohesion.h5");
    ADD_FAILURE() << "accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("step/cohesion_baseline[4]"), std::string::npos)
        << e.what();
  }
}

TEST(RunFile, KeepsReplicasAndWhatArrivedRequestsHave) {
  RunData run = sample_run(10, Detail::kTokens);
  run.serving = true;
  run.inventory.gpus.back().engine = 1;
  run.steps[3].engine = 1;
  // Steps of two replicas may overlap.
  run.steps[3].start_ps = run.steps[2].start_ps;
  RequestRecord& q = run.requests[0];
  q.tier = 2;
  q.replica = 1;
  q.scheduled_ps = 17;
  q.preemptions = 3;
  q.met_slo = 1;
  q.cached_tokens = 512;
  write_run("served.h5", run);
  const RunData back = read_run("served.h5");
  EXPECT_TRUE(back.serving);
  EXPECT_EQ(back.inventory.gpus.back().engine, 1U);
  EXPECT_EQ(back.steps[3].engine, 1U);
  EXPECT_EQ(back.steps[4].engine, 0U);
  EXPECT_EQ(back.requests[0].tier, 2U);
  EXPECT_EQ(back.requests[0].replica, 1U);
  EXPECT_EQ(back.requests[0].scheduled_ps, 17);
  EXPECT_EQ(back.requests[0].preemptions, 3U);
  EXPECT_EQ(back.requests[0].met_slo, 1);
  EXPECT_EQ(back.requests[0].cached_tokens, 512U);
  EXPECT_EQ(back.requests[1].replica, kNone);
  run.serving = false;
  run.inventory.gpus.back().engine = 0;
  write_run("batch.h5", run);
  EXPECT_THROW((void)read_run("batch.h5"), InputError);  // one replica: its steps overlap
}

TEST(RunFile, ReadsTheFileThatVersion1Wrote) {
  const fs::path kept = fs::path(SWITCHYARD_SOURCE_DIR) / "tests/run/data/run_v1.h5";
  RunData expected = sample_run(10, Detail::kTokens);
  expected.metrics = {{"span", 0.8, "ms"}, {"TPOT p50", 0.1, "ms"}};
  if (!fs::exists(kept)) write_run("run_v1.h5", expected);
  ASSERT_TRUE(fs::exists(kept)) << "made by write_run in the working folder of this test";
  expect_same_run(expected, read_run(kept));
}

// Damage.

TEST(RunFile, RefusesEveryTruncation) {
  write_run("whole.h5", sample_run(10, Detail::kLayers));
  const std::string whole = bytes_of("whole.h5");
  for (std::size_t length = 0; length < whole.size(); length += 1 + length / 13) {
    put_bytes("cut.h5", whole.substr(0, length));
    const std::string error = error_of([] { (void)read_run("cut.h5"); });
    EXPECT_EQ(error.rfind("cut.h5", 0), 0U) << length << ": " << error;
  }
  put_bytes("cut.h5", whole + "x");
  EXPECT_NE(error_of([] { (void)read_run("cut.h5"); }), "");
}

TEST(RunFile, RefusesFlippedBits) {
  write_run("whole.h5", sample_run(10, Detail::kLayers));
  const std::string whole = bytes_of("whole.h5");
  for (std::uint32_t i = 0; i < 300; ++i) {
    const std::uint64_t r = random_u64(11, random_purpose("flip"), {i, 0, 0, 0});
    std::string bad = whole;
    const std::size_t at = i < 64 ? i * 8 : static_cast<std::size_t>(r % whole.size());
    bad[at] = static_cast<char>(bad[at] ^ (1 << ((r >> 40) % 8)));
    put_bytes("flip.h5", bad);
    EXPECT_NE(error_of([] { (void)read_run("flip.h5"); }), "") << "byte " << at;
  }
}

TEST(RunFile, RefusesForeignAndMissingFiles) {
  put_bytes("foreign.h5", std::string(2000, 'x'));
  put_bytes("empty.h5", "");
  for (const char* name : {"foreign.h5", "empty.h5", "missing.h5", "."}) {
    const std::string error = error_of([name] { (void)read_run(name); });
    EXPECT_EQ(error.rfind(name, 0), 0U) << error;
  }
}

TEST(RunFile, RefusesANewerSchemaNamingBothVersions) {
  write_run("newer.h5", sample_run(2, Detail::kSteps));
  h5::seal_file("newer.h5", h5::FileKind::kRun, 2);
  const std::string error = error_of([] { (void)read_run("newer.h5"); });
  EXPECT_NE(error.find('2'), std::string::npos) << error;
  EXPECT_NE(error.find('1'), std::string::npos) << error;
  EXPECT_NE(error.find("newer.h5"), std::string::npos) << error;
}

TEST(RunFile, RefusesARoutingTrace) {
  write_run("trace.h5", sample_run(2, Detail::kSteps));
  h5::seal_file("trace.h5", h5::FileKind::kTrace, 1);
  const std::string error = error_of([] { (void)read_run("trace.h5"); });
  EXPECT_NE(error.find("routing trace"), std::string::npos) << error;
  EXPECT_NE(error.find("run file"), std::string::npos) << error;
}

/// Opens a sealed file with libhdf5, changes it, seals it again.
void tamper(const char* path, const std::function<void(hid_t)>& change) {
  const hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  change(file);
  ASSERT_GE(H5Fclose(file), 0);
  h5::seal_file(path, h5::FileKind::kRun, 1);
}

TEST(RunFile, NamesABlockThatIsMissing) {
  for (const char* name : {"step/start", "expert/layer_00001/fill", "lod/steps_flag",
                           "lod_expert/layer_00000/kept_sum", "totals/link_busy", "gpu/name"}) {
    write_run("hole.h5", sample_run(10, Detail::kLayers));
    tamper("hole.h5", [name](hid_t file) { ASSERT_GE(H5Ldelete(file, name, H5P_DEFAULT), 0); });
    const std::string error = error_of([] { (void)read_run("hole.h5"); });
    EXPECT_EQ(error.rfind(std::string("hole.h5: ") + name, 0), 0U) << error;
    EXPECT_NE(error.find("missing"), std::string::npos) << error;
  }
}

TEST(RunFile, RefusesCountsThatTheBlocksDoNotHave) {
  for (const std::uint64_t steps : {std::uint64_t{9}, std::uint64_t{11}, std::uint64_t{1} << 31,
                                    std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    for (const Detail detail : {Detail::kSummary, Detail::kLayers}) {
      write_run("count.h5", sample_run(10, detail));
      tamper("count.h5", [steps](hid_t file) {
        const hid_t attribute = H5Aopen(file, "steps", H5P_DEFAULT);
        ASSERT_GE(H5Awrite(attribute, H5T_NATIVE_UINT64, &steps), 0);
        H5Aclose(attribute);
      });
      // 9 and 11 steps have as many bins as 10: only the totals and the blocks tell.
      if (detail == Detail::kSummary && steps < 12) continue;
      EXPECT_NE(error_of([] { (void)read_run("count.h5"); }), "") << steps;
    }
  }
}

TEST(RunFile, NamesDatasetAndRowOfAValueOutOfRange) {
  const auto error_with = [](const std::function<void(RunData&)>& spoil) {
    RunData run = sample_run(10, Detail::kTokens);
    spoil(run);
    write_run("range.h5", run);
    return error_of([] { (void)read_run("range.h5"); });
  };
  EXPECT_EQ(error_with([](RunData& r) { r.steps[3].end_ps = 5; }),
            "range.h5: step/end[3]: 5 is before the start, 300000000");
  EXPECT_EQ(error_with([](RunData& r) { r.steps[4].start_ps -= 1; }),
            "range.h5: step/start[4]: 399999999 is before the end of the step before, 400000000");
  EXPECT_EQ(error_with([](RunData& r) { r.steps[2].straggler_gpu = 2; }),
            "range.h5: step/straggler_gpu[2]: 2; expected less than 2 (GPUs)");
  EXPECT_EQ(error_with([](RunData& r) { r.steps[2].kind = static_cast<StepKind>(3); }),
            "range.h5: step/kind[2]: 3; expected less than 3 (step kinds)");
  EXPECT_EQ(error_with([](RunData& r) { r.steps[2].phase_ps[1] = -1; }),
            "range.h5: step/phase[2]: -1; expected a number that is not negative");
  EXPECT_EQ(error_with([](RunData& r) { r.steps[9].flops = INFINITY; }),
            "range.h5: step/flops[9]: inf; expected a finite number that is not negative, or NaN");
  EXPECT_EQ(error_with([](RunData& r) { r.events[1].gpu = 9; }),
            "range.h5: event/gpu[1]: 9; expected less than 2 (GPUs)");
  EXPECT_EQ(error_with([](RunData& r) { r.events[0].kind = static_cast<EventKind>(12); }),
            "range.h5: event/kind[0]: 12; expected less than 12 (event kinds)");
  EXPECT_EQ(error_with([](RunData& r) { r.tokens[2].step = 10; }),
            "range.h5: token/step[2]: 10; expected less than 10 (steps)");
  EXPECT_EQ(error_with([](RunData& r) { r.critical_path[1].layer = 2; }),
            "range.h5: critical/layer[1]: 2; expected less than 2 (MoE layers)");
  EXPECT_EQ(error_with([](RunData& r) { r.requests[1].end_ps = -2; }),
            "range.h5: request/end[1]: -2; expected a time, or -1 for none");
  EXPECT_EQ(error_with([](RunData& r) { r.reroutes.to[0] = 4; }),
            "range.h5: reroute/to[0]: 4; expected less than 4 (experts)");
  EXPECT_EQ(error_with([](RunData& r) { r.inventory.placement[5] = 2; }),
            "range.h5: placement[1]: 2; expected less than 2 (GPUs)");
  EXPECT_EQ(error_with([](RunData& r) { r.inventory.placement[5] = kNone; }),
            "range.h5: placement[1]: an expert without a GPU");
  EXPECT_EQ(error_with([](RunData& r) { r.inventory.moe_layers[1] = 1; }),
            "range.h5: moe_layers[1]: 1 does not ascend");
  EXPECT_EQ(error_with([](RunData& r) { r.layer_steps.straggler_reason[7] = 5; }),
            "range.h5: layer/straggler_reason[3]: 5; expected less than 5 (reasons)");
  EXPECT_EQ(error_with([](RunData& r) {
              r.metrics = {{"x", 1, ""}, {"x", 2, ""}};
            }),
            "range.h5: metric/name[1]: \"x\" stands twice");
  EXPECT_EQ(error_with([](RunData& r) { r.experts.fill[8] = -1; }),
            "range.h5: expert/all/fill[2]: -1; expected a finite number that is not negative, or "
            "NaN");
}

TEST(RunFile, KeepsTimesOfRequestsThatAreNotKnown) {
  // A decode run: its requests arrived before the run began; one has no token yet.
  RunData run = sample_run(10, Detail::kTokens);
  for (RequestRecord& r : run.requests) r.arrival_ps = -1;
  run.requests[3].first_token_ps = -1;
  EXPECT_TRUE(check_conservation(run).empty());
  write_run("unknown.h5", run);
  expect_same_run(run, read_run("unknown.h5"));
  run.requests[2].arrival_ps = -2;
  write_run("unknown.h5", run);
  EXPECT_EQ(error_of([] { (void)read_run("unknown.h5"); }),
            "unknown.h5: request/arrival[2]: -2; expected a time, or -1 for none");
}

TEST(RunFile, WorksWithoutLinksAndWithoutExperts) {
  Inventory inv;
  inv.gpus = {{"only", 0, 1000, {0}, {0}}};
  RunData run = make_run(sample_meta(Detail::kLayers), inv);
  StepRecord step = make_step(inv);
  step.scalars.end_ps = 10;
  append_step(run, step);
  write_run("alone.h5", run);
  const RunData back = read_run("alone.h5");
  expect_same_run(run, back);
}

TEST(Detail, AMisspeltNameGetsASuggestion) {
  EXPECT_EQ(parse_detail("tokens", "--set"), Detail::kTokens);
  const std::string error = error_of([] { (void)parse_detail("layer", "x.toml:3:1"); });
  EXPECT_EQ(error.rfind("x.toml:3:1: unknown detail \"layer\"", 0), 0U) << error;
  EXPECT_NE(error.find("layers"), std::string::npos) << error;
}

TEST(AppendStep, SumsLayersAndKeepsTheWorstFill) {
  const RunData run = sample_run(6, Detail::kLayers);
  // Step 5: layer 0 keeps 3 3 2 0 (one refused at expert 0), layer 1 keeps 3 2 2 0 (one refused).
  const std::size_t at = 5 * 4;
  EXPECT_EQ(run.experts.kept[at], 6U);
  EXPECT_EQ(run.experts.kept[at + 1], 5U);
  EXPECT_EQ(run.experts.overflow[at], 2U);
  EXPECT_EQ(run.experts.capacity[at], 6U);
  EXPECT_FLOAT_EQ(run.experts.fill[at], 4.0F / 3);  // (3 + 1) / 3 in either layer
  EXPECT_FLOAT_EQ(run.experts.fill[at + 1], 1.0F);  // 3 / 3 in layer 0
  EXPECT_FLOAT_EQ(run.experts.fill[at + 3], 0.0F);
  EXPECT_EQ(run.lod.experts.overflow.level(1).max[0], 2U);
  EXPECT_EQ(run.lod.experts.overflow.level(1).sum[0], 3U);  // steps 1 and 5
  EXPECT_EQ(run.lod.experts.overflow.level(1).flag[0], 1);
  EXPECT_EQ(run.lod.experts.overflow.level(1).flag[1], 0);
  // Totals leave warm-up (steps 0, 1) out of the matrices, not out of the counters.
  EXPECT_EQ(run.totals.rerouted, 2U);
  EXPECT_EQ(run.totals.reroute_experts[0 * 4 + 1], 1U);
  EXPECT_EQ(run.totals.reroute_gpus[0], 1U);
  EXPECT_EQ(run.totals.assignments, 96U);
  EXPECT_EQ(run.totals.link_bytes[0], 4U * 4000);
}

TEST(AppendStep, AnUnlimitedCapacityStaysUnlimitedInTheSum) {
  Inventory inv = sample_inventory();
  RunData run = make_run(sample_meta(Detail::kSteps), inv);
  StepRecord step = sample_step(inv, 0);
  step.expert_capacity[4] = kUnlimited;
  append_step(run, step);
  EXPECT_EQ(run.experts.capacity[0], kUnlimited);
  EXPECT_EQ(run.experts.capacity[1], 6U);
  EXPECT_FLOAT_EQ(run.experts.fill[0], 2.0F / 3);  // layer 0 has a limit
}

}  // namespace
}  // namespace switchyard::run
