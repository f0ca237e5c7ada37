// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/couple.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/model/policy_weights.hpp"
#include "engine/nn/trace_run.hpp"
#include "engine/parallel/communicator.hpp"
#include "experiments/cli/interrupt.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/cli/own_output.hpp"
#include "experiments/cli/progress.hpp"
#include "experiments/cli/say.hpp"
#include "experiments/cli/signals.hpp"
#include "experiments/cli/sim.hpp"
#include "experiments/cli/trace.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/run/run_file.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::uint32_t kMostRounds = 100;
constexpr const char* kTraceName = "trace.h5";  // the run names its trace so
constexpr const char* kSignalsName = "signals.h5";

/// Where the rounds' files lie: --keep, or a folder of its own that goes when this does.
class RoundFolder {
 public:
  explicit RoundFolder(const fs::path& keep) : kept_(!keep.empty()), root_(keep) {
    std::error_code ec;
    if (kept_) {
      fs::create_directories(root_, ec);
      if (ec) throw InputError(keep.string(), "cannot make this folder", ec.message());
      return;
    }
    std::string name = (fs::temp_directory_path(ec) / "switchyard-couple-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw InputError(name, fmt::format("cannot make a folder: {}", std::strerror(errno)),
                       "name one with --keep");
    }
    root_ = name;
  }
  ~RoundFolder() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(root_, ignored);
  }
  RoundFolder(const RoundFolder&) = delete;
  RoundFolder& operator=(const RoundFolder&) = delete;
  [[nodiscard]] fs::path file(std::uint32_t round, const char* name) const {
    const fs::path folder = root_ / fmt::format("round{}", round);
    std::error_code ec;
    fs::create_directories(folder, ec);
    if (ec) throw InputError(folder.string(), "cannot make this folder", ec.message());
    return folder / name;
  }

 private:
  bool kept_;
  fs::path root_;
};

/// Runs a simulation in a process of its own, because SimGrid allows one engine per process, and
/// gives back what it says. Its exceptions come out of this call.
ordered_json in_child(const std::function<ordered_json()>& work) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw CapabilityError(fmt::format("cannot open a pipe: {}", std::strerror(errno)));
  }
  const pid_t pid = start_child([&] {
    ordered_json answer;
    try {
      answer = work();
    } catch (const InputError& e) {
      answer = {
          {"error", "input"}, {"where", e.where()}, {"message", e.message()}, {"hint", e.hint()}};
    } catch (const CapabilityError& e) {
      answer = {{"error", "capability"}, {"message", e.what()}};
    } catch (const std::exception& e) {
      answer = {{"error", "internal"}, {"message", e.what()}};
    }
    const std::string text = answer.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t n = ::write(ends[1], text.data() + at, text.size() - at);
      if (n < 0 && errno != EINTR) return 4;
      at += n > 0 ? static_cast<std::size_t>(n) : 0;
    }
    return 0;
  });
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t n = ::read(ends[0], buffer.data(), buffer.size());
    if (n == 0 || (n < 0 && errno != EINTR)) break;
    if (n > 0) text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  EndedChild ended = wait_for_child();
  while (ended.pid != pid) ended = wait_for_child();
  if (ended.signal != 0) {
    throw std::runtime_error(fmt::format("the simulation was killed by signal {}", ended.signal));
  }
  const ordered_json answer = ordered_json::parse(text, nullptr, false);
  if (ended.exit_code != 0 || answer.is_discarded()) {
    throw std::runtime_error("the simulation ended without an answer");
  }
  if (answer.contains("error")) {
    const std::string message = answer["message"];
    if (answer["error"] == "input") {
      throw InputError(answer["where"], message, answer["hint"]);
    }
    if (answer["error"] == "capability") throw CapabilityError(message);
    throw std::runtime_error(message);
  }
  return answer;
}

}  // namespace

Table couple_table(const coupled::Outcome& outcome, const RoutingPolicy& policy) {
  Table table;
  table.name = "couple";
  table.title = "Coupled mode, round by round";
  table.columns = {"round", "engine ran with", "changed decisions", "of"};
  table.rows.push_back(
      {"0",
       coupled::needs_signals(policy) ? "no policy (it needs signals)" : "the policy, no signals",
       "n/a", "n/a"});
  for (std::size_t r = 0; r < outcome.rounds.size(); ++r) {
    table.rows.push_back({fmt::to_string(r + 1), fmt::format("the policy, signals of round {}", r),
                          fmt::to_string(outcome.rounds[r].changed),
                          fmt::to_string(outcome.rounds[r].compared)});
  }
  table.notes = {coupled::describe(outcome),
                 "a decision is the set of experts of one token row in one MoE layer"};
  return table;
}

int run_couple(const CoupleOptions& options) {
  const bool json = progress_as_json(options.progress);
  if (options.rounds == 0 || options.rounds > kMostRounds) {
    throw InputError("--rounds", fmt::format("rounds = {}. Violated: 1 <= rounds <= {}",
                                             options.rounds, kMostRounds));
  }
  if (launched_as_job()) {
    throw InputError("couple", "unsupported on several processes", "run it without mpirun");
  }
  require_own_output("-o", options.output,
                     {{"the scenario", options.scenario},
                      {"the prompt file", options.prompts},
                      {"the model", options.model}});
  ParentFolders folders;
  folders.make("-o", options.output);
  const RoundFolder folder(options.keep);
  const auto read_for = [&](std::uint32_t round) {
    scenario::ReadOptions read;
    read.settings = options.settings;
    read.trace = folder.file(round, kTraceName).string();
    read.require_trace = false;
    read.presets_root = scenarios_root().string();
    return scenario::read_scenario(options.scenario, read);
  };
  const scenario::Scenario first = read_for(0);
  if (!first.sweep.empty()) {
    throw InputError(first.sweep.front().where, "the scenario has a [[sweep]]",
                     "take one point: --set KEY=VALUE for each swept key");
  }
  RoutingPolicy policy = first.policy;
  if (policy.two_tier.on()) {
    throw InputError("policy.two_tier", "unsupported in coupled mode: the simulator refuses it",
                     "run switchyard trace");
  }
  const bool terminal = !json && !options.quiet && isatty(STDERR_FILENO) == 1;
  const auto tell = [&](std::uint32_t round, std::string_view who) {
    if (json) {
      fmt::print("{}\n", ordered_json{{"event", "progress"},
                                      {"phase", fmt::format("round {} {}", round, who)},
                                      {"done", round},
                                      {"total", options.rounds},
                                      {"sim_time_ps", 0}}
                             .dump());
      std::fflush(stdout);
    } else if (terminal) {
      say("\rcouple: round {}, {:<9}", round, who);
    }
  };
  const Engine engine = load_engine(options.model, device_backend("cpu", "f32", options.threads),
                                    {.threads = threads_of_rank(options.threads, nullptr)}, 0);
  const std::vector<std::uint32_t> layers = engine.config().moe_layers();
  if (layers.empty()) {
    throw InputError(options.model.string(), "the model is dense: it has no router");
  }
  const auto moe_layers = static_cast<std::uint32_t>(layers.size());
  const GateSpec& gate = engine.gate();
  if (gate.experts != first.model.num_experts || gate.top_k != first.model.top_k) {
    throw InputError("--model",
                     fmt::format("{} has E = {}, k = {}; the scenario's model has E = {}, k = {}",
                                 options.model.string(), gate.experts, gate.top_k,
                                 first.model.num_experts, first.model.top_k),
                     "use a scenario of this model, or --set model.file=…");
  }
  validate(policy, engine.gate().experts, engine.gate().top_k, "policy");
  const PolicyWeights weights = model::load_policy_weights(
      policy, first.policy_files, engine.gate(), layers, engine.config().hidden_size);
  const std::optional<RoutingTable> routing_table =
      load_table(policy, first.policy_files, engine.gate(), moe_layers);
  const model::Tokenizer tokenizer = model::load_tokenizer(options.model);
  const std::vector<TracePrompt> prompts =
      read_trace_prompts(options.prompts, options.max_new, policy, engine, tokenizer);
  std::uint32_t last_round = 0;
  coupled::Hooks hooks;
  hooks.engine = [&](std::uint32_t round, const SignalTable* signals) {
    tell(round, "engine");
    TraceRunOptions run;
    run.batch = options.batch == 0
                    ? static_cast<std::uint32_t>(std::max<std::size_t>(prompts.size(), 1))
                    : options.batch;
    run.chunk = options.chunk;
    run.seed = first.run.seed;
    run.sampling.seed = first.run.seed;
    run.router_input = options.router_input;
    if (signals != nullptr || !coupled::needs_signals(policy)) {
      run.policy = policy;
      run.weights = weights.layers.empty() ? nullptr : &weights;
      run.table = routing_table ? &*routing_table : nullptr;
      run.signals = signals;
    }
    const fs::path file = folder.file(round, kTraceName);
    (void)record_trace(engine, prompts, run, file);
    last_round = round;
    return read_trace(file, {.last_input = options.router_input});
  };
  hooks.simulate = [&](std::uint32_t round, const RoutingTrace& trace) {
    tell(round, "simulator");
    scenario::Scenario s = read_for(round);
    s.run.detail = scenario::Detail::kSummary;  // only the signals are looked at
    const fs::path file = folder.file(round, kSignalsName);
    (void)in_child([&] {
      const auto sink = sim::memory_sink();
      SignalTable table;
      sim::SimulationExtras extras;
      extras.signals = &table;
      const std::string hash = trace_file_hash(s.workload.routing.trace_path);
      const sim::SimulationResult result = sim::simulate(s, &trace, hash, *sink, {}, extras);
      write_signals(file, signals_file(sink->data().meta, result.policy, std::move(table)));
      return ordered_json::object();
    });
    return read_signals_for(file, moe_layers, engine.gate().experts, policy, "couple").table;
  };
  const coupled::Outcome outcome = coupled::couple(hooks, options.rounds);

  tell(last_round, "the run");
  const scenario::Scenario last = read_for(last_round);
  sim::SimulationExtras extras;
  extras.policy_way = "coupled";
  extras.routing_note =
      fmt::format("; decided by {} under the signals of this model on this cluster, {}",
                  engine.config().name, coupled::describe(outcome));
  extras.metrics.push_back({"coupled rounds", static_cast<double>(outcome.rounds.size()), ""});
  extras.metrics.push_back({"coupled converged", outcome.converged ? 1.0 : 0.0, ""});
  for (std::size_t r = 0; r < outcome.rounds.size(); ++r) {
    extras.metrics.push_back({fmt::format("coupled changed decisions, round {}", r + 1),
                              static_cast<double>(outcome.rounds[r].changed), ""});
  }
  const ordered_json answer = in_child([&] {
    const auto sink = sim::file_sink(options.output);
    const std::string hash = trace_file_hash(last.workload.routing.trace_path);
    const sim::SimulationResult result =
        sim::simulate(last, &outcome.trace, hash, *sink, {}, extras);
    ordered_json said{{"notes", result.notes}, {"violations", ordered_json::array()}};
    for (const run::Violation& v : result.violations) {
      said["violations"].push_back(fmt::format("({}) at {}: {}", v.check, v.where, v.message));
    }
    return said;
  });
  if (terminal) say("\r                                \r");
  for (const std::string& v : answer["violations"].get<std::vector<std::string>>()) {
    say("conservation violated {}\n", v);
  }
  const bool sound = answer["violations"].empty();
  if (json) {
    fmt::print("{}\n", ordered_json{{"event", "done"}, {"output", options.output.string()}}.dump());
  } else if (!options.quiet) {
    run::RunParts parts = run::RunParts::none();
    const run::RunData run = run::read_run(options.output, parts);
    fmt::print("{}", render_all({couple_table(outcome, policy),
                                 sim_summary_table(run, answer["notes"], sound)},
                                options.format));
  }
  return sound && outcome.converged ? 0 : 1;
}

}  // namespace switchyard::cli
