// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/signals_file.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/h5/file_reader.hpp"
#include "engine/h5/file_writer.hpp"

namespace switchyard {
namespace {

using h5::ElementType;

constexpr std::uint64_t kMost = 1U << 20;  // GPUs, layers, experts: beyond any model

h5::SchemaTable make_schema() {
  h5::SchemaTable t;
  t.kind = h5::FileKind::kSignals;
  t.version = 1;
  t.title = "Signals file, version 1";
  t.introduction =
      "What a simulation tells the engine of the machine, step by step, so that policies which "
      "look "
      "at memory, queues, placement and time can run in the engine (`switchyard trace --signals`, "
      "`switchyard couple`). S simulated steps, G GPUs, L MoE layers of the routing trace, E "
      "experts, P placements, N entries of them, Q simulated sequences.\n\n"
      "Every value is what the simulator's own policy saw in that step. Which step of an engine "
      "run "
      "sees which row: `engine/routing/signal_table.hpp`.";
  const auto add = [&t](std::string name, std::string shape, ElementType type, std::string unit,
                        std::string meaning, bool optional = false) {
    t.entries.push_back(
        {std::move(name), std::move(shape), type, std::move(unit), std::move(meaning), optional});
  };
  add("@schema", "", ElementType::kU64, "", "Schema version, as in the user block");
  add("@program", "", ElementType::kText, "", "Program and version that wrote the file");
  add("@model", "", ElementType::kText, "", "Simulated model");
  add("@hardware", "", ElementType::kText, "", "Simulated cluster");
  add("@scenario", "", ElementType::kText, "", "Name of the scenario");
  add("@scenario_hash", "", ElementType::kText, "", "Hash of the resolved scenario, hex");
  add("@trace_hash", "", ElementType::kText, "",
      "Hash of the simulated routing trace, hex; empty: synthetic routing");
  add("@policy", "", ElementType::kText, "", "Routing policy of the simulation, key=value");
  add("@seed", "", ElementType::kU64, "", "Seed of the scenario");
  add("step/decodes", "S", ElementType::kU8, "",
      "1: the step has a decoding token, 0: prompts only");
  add("step/start", "S", ElementType::kI64, "ps", "Start of the step, ascending");
  add("step/end", "S", ElementType::kI64, "ps", "End of the step");
  add("step/placement", "S", ElementType::kU32, "", "Placement in force, < P");
  add("gpu/used", "S,G", ElementType::kF64, "", "Memory in use / capacity at the step's start");
  add("gpu/elastic", "S,G", ElementType::kF64, "",
      "Memory beside weights and runtime / what weights and runtime leave, at the step's start");
  add("placement/first", "P,L,row", ElementType::kU32, "",
      "E + 1 offsets into placement/gpu: the GPUs of expert e are those from offset e to e + 1");
  add("placement/gpu", "N", ElementType::kU32, "", "GPU of each copy");
  add("queue/level", "S,L,E", ElementType::kF32, "",
      "Length / capacity of the expert's queue as the step before left it; absent when the policy "
      "reads none",
      true);
  add("queue/longest", "S,L", ElementType::kU32, "assignments",
      "Longest queue of the layer as the step before left it; absent when the policy reads none",
      true);
  add("step/replica", "S", ElementType::kU32, "",
      "Replica that stepped, whose copies of the experts placement and queues are of; absent when "
      "there is one",
      true);
  add("sequence/replica", "Q", ElementType::kU32, "",
      "Replica that computed the simulated sequence last; 4294967295 = none; absent when there is "
      "one",
      true);
  return t;
}

std::uint32_t small(const h5::FileReader& file, std::string_view what, std::uint64_t value) {
  if (value == 0 || value > kMost) {
    throw InputError(file.path().string(), fmt::format("{} {}", value, what));
  }
  return static_cast<std::uint32_t>(value);
}

}  // namespace

const h5::SchemaTable& signals_schema() {
  static const h5::SchemaTable table = make_schema();
  return table;
}

std::string signals_format_text() { return h5::format_markdown(signals_schema()); }

void write_signals(const std::filesystem::path& path, const SignalsFile& f) {
  const SignalTable& t = f.table;
  try {
    validate_signals(t, "signals");
  } catch (const InputError& e) {
    SWITCHYARD_ASSERT(false, e.what());
  }
  h5::FileWriter file(path, signals_schema());
  file.attribute("schema", std::uint64_t{signals_schema().version});
  file.attribute("program", f.program);
  file.attribute("model", f.model);
  file.attribute("hardware", f.hardware);
  file.attribute("scenario", f.scenario);
  file.attribute("scenario_hash", f.scenario_hash);
  file.attribute("trace_hash", f.trace_hash);
  file.attribute("policy", f.policy);
  file.attribute("seed", f.seed);
  file.write("step/decodes", t.decodes);
  file.write("step/start", t.start_ps);
  file.write("step/end", t.end_ps);
  file.write("step/placement", t.placement);
  file.write("gpu/used", t.used, {t.steps(), t.gpus});
  file.write("gpu/elastic", t.elastic, {t.steps(), t.gpus});
  file.write("placement/first", t.first_gpu,
             {t.placements(), t.layers, std::uint64_t{t.experts} + 1});
  file.write("placement/gpu", t.gpu);
  if (!t.queue.empty()) file.write("queue/level", t.queue, {t.steps(), t.layers, t.experts});
  if (!t.longest_queue.empty()) {
    file.write("queue/longest", t.longest_queue, {t.steps(), t.layers});
  }
  if (!t.replica.empty()) {
    file.write("step/replica", t.replica);
    file.write("sequence/replica", t.sequence_replica);
  }
  file.finish();
}

SignalsFile read_signals(const std::filesystem::path& path) {
  const h5::FileReader file(path, signals_schema());
  const std::string where = path.string();
  if (file.u64_attribute("schema") != file.header().schema_version) {
    file.fail("attribute schema", "differs from the version in the user block");
  }
  SignalsFile f;
  f.program = file.text_attribute("program");
  f.model = file.text_attribute("model");
  f.hardware = file.text_attribute("hardware");
  f.scenario = file.text_attribute("scenario");
  f.scenario_hash = file.text_attribute("scenario_hash");
  f.trace_hash = file.text_attribute("trace_hash");
  f.policy = file.text_attribute("policy");
  (void)policy_from_text(f.policy, where + ": attribute policy");
  f.seed = file.u64_attribute("seed");
  SignalTable& t = f.table;
  t.gpus = small(file, "GPUs", file.extent("G"));
  t.layers = small(file, "MoE layers", file.extent("L"));
  const std::vector<std::uint64_t> shape = file.shape("placement/first");
  if (shape[2] < 2) file.fail("placement/first", fmt::format("{} offsets of a layer", shape[2]));
  t.experts = small(file, "experts", shape[2] - 1);
  if (file.has("queue/level") && file.extent("E") != t.experts) {
    file.fail("queue/level",
              fmt::format("{} experts, placement/first has {}", file.extent("E"), t.experts));
  }
  t.decodes = file.read<std::uint8_t>("step/decodes");
  t.start_ps = file.read<std::int64_t>("step/start");
  t.end_ps = file.read<std::int64_t>("step/end");
  t.placement = file.read<std::uint32_t>("step/placement");
  t.used = file.read<double>("gpu/used");
  t.elastic = file.read<double>("gpu/elastic");
  t.first_gpu = file.read<std::uint32_t>("placement/first");
  t.gpu = file.read<std::uint32_t>("placement/gpu");
  if (file.has("queue/level")) t.queue = file.read<float>("queue/level");
  if (file.has("queue/longest")) t.longest_queue = file.read<std::uint32_t>("queue/longest");
  if (file.has("step/replica")) t.replica = file.read<std::uint32_t>("step/replica");
  if (file.has("sequence/replica")) {
    t.sequence_replica = file.read<std::uint32_t>("sequence/replica");
  }
  validate_signals(t, where);
  return f;
}

SignalsFile read_signals_for(const std::filesystem::path& path, std::uint32_t layers,
                             std::uint32_t experts, const RoutingPolicy& policy,
                             const std::string& where) {
  SignalsFile f = read_signals(path);
  const SignalTable& t = f.table;
  const std::string name = path.filename().string();
  if (t.experts != experts || t.layers != layers) {
    throw InputError(where,
                     fmt::format("{} is of {} MoE layers of {} experts, the model has {} of {}",
                                 name, t.layers, t.experts, layers, experts),
                     "simulate a trace of this model");
  }
  require_queues(t, policy, where + ": " + name);
  return f;
}

}  // namespace switchyard
