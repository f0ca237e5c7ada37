// SPDX-License-Identifier: Apache-2.0
// The command line. The only file that includes CLI11 (it costs seconds of compile time). Each
// verb's options are a struct in its own header; this file fills them and catches errors once.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cpu_kernels.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/base/table.hpp"
#include "engine/base/version.hpp"
#include "engine/parallel/communicator.hpp"
#include "experiments/cli/account.hpp"
#include "experiments/cli/couple.hpp"
#include "experiments/cli/diagnose.hpp"
#include "experiments/cli/diff.hpp"
#include "experiments/cli/doctor.hpp"
#include "experiments/cli/explain.hpp"
#include "experiments/cli/export.hpp"
#include "experiments/cli/generate.hpp"
#include "experiments/cli/import.hpp"
#include "experiments/cli/inspect.hpp"
#include "experiments/cli/interrupt.hpp"
#include "experiments/cli/monitor.hpp"
#include "experiments/cli/profile.hpp"
#include "experiments/cli/progress.hpp"
#include "experiments/cli/ranks.hpp"
#include "experiments/cli/say.hpp"
#include "experiments/cli/sim.hpp"
#include "experiments/cli/sweep.hpp"
#include "experiments/cli/table.hpp"
#include "experiments/cli/trace.hpp"
#include "experiments/cli/validate.hpp"

namespace switchyard::cli {
namespace {

constexpr int kInputWrong = 2;
constexpr int kCapabilityMissing = 3;
constexpr int kReaderLeft = 128 + SIGPIPE;  // As if the signal had ended it.

constexpr const char* kThreeCommands =
    R"(switchyard: a real Mixture-of-Experts engine and the cluster under it

  switchyard trace --model scenarios/checkpoints/sy-16x2 --prompts scenarios/prompts/mixed.jsonl -o t.h5
  switchyard sim scenarios/demo.toml --trace t.h5 -o r.h5
  switchyard table --list

switchyard --help lists every verb.
)";

/// CLI11 takes "-1" as 2^64 - 1 and cuts what is larger.
CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) {
        std::uint64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc{} && stop == end) return std::string();
        return fmt::format("{} is not a whole number from 0 to 2^64 - 1", text);
      },
      "");
}

/// Format options shared by every verb that prints a table.
struct FormatOption {
  std::string text = "text";
  bool json = false;
  void add(CLI::App& verb) {
    verb.add_option("--format", text, "text, md, csv, tex or json")->capture_default_str();
    verb.add_flag("--json", json, "short for --format json");
  }
  [[nodiscard]] TableFormat get() const {
    return json ? TableFormat::kJson : parse_table_format(text);
  }
};

/// Names a misspelt verb or option could have meant.
std::string suggestion(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  const CLI::App* scope = &app;
  for (const CLI::App* verb : app.get_subcommands()) scope = verb;
  if (word.starts_with("-")) {
    for (const CLI::Option* option : scope->get_options()) {
      for (const std::string& n : option->get_lnames()) names.push_back("--" + n);
      for (const std::string& n : option->get_snames()) names.push_back("-" + n);
    }
  } else {
    for (const CLI::Option* option : scope->get_options()) {
      if (option->get_positional() || option->count() == 0 ||
          option->get_items_expected_max() < 2) {
        continue;
      }
      return fmt::format("{} takes one word; say {} again for another one", option->get_name(),
                         option->get_name());
    }
    for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(verb->get_name());
    }
  }
  return suggest_name(word, names);
}

int run(int argc, char** argv) {
  CLI::App app{
      "A real Mixture-of-Experts engine and a deterministic simulator of the cluster under it"};
  app.name("switchyard");
  app.set_version_flag("--version",
                       fmt::format("switchyard {} (cpu {})", version(), cpu::path().name));
  app.require_subcommand(0, 1);

  const auto rank_options = [](CLI::App* verb, RankOptions& ranks) {
    verb->add_option("--tp", ranks.tp,
                     "parts of each expert, of which every rank of a group computes one; the other "
                     "factor of the ranks spreads the experts")
        ->capture_default_str();
    verb->add_option("--rank-timeout", ranks.timeout,
                     "how long ranks wait for each other, e.g. \"30 s\"; else 10 min");
  };

  FormatOption format;
  bool quiet = false;
  const auto quiet_flag = [&](CLI::App* verb) {
    verb->add_flag("--quiet", quiet, "print nothing but errors");
  };

  TraceOptions trace;
  auto* v_trace = app.add_subcommand("trace", "run the engine and write the routing trace");
  v_trace->add_option("--model", trace.model, "checkpoint folder or .gguf file")->required();
  v_trace
      ->add_option("--prompts", trace.prompts,
                   ".txt (one prompt a line) or .jsonl (text, id, domain, max_new, expert)")
      ->required();
  v_trace
      ->add_option("--max-new", trace.max_new, "new tokens per prompt; 0 traces the prefill only")
      ->capture_default_str();
  v_trace
      ->add_option("--batch", trace.batch,
                   "prompts that run together; when one ends the next takes its place")
      ->capture_default_str();
  v_trace->add_option("--chunk", trace.chunk, "prefill chunk in tokens; 0: whole prompts")
      ->capture_default_str();
  v_trace->add_option("--policy", trace.policy,
                      "routing policy, e.g. scenarios/policies/capacity_1.0.toml");
  v_trace->add_option("--signals", trace.signals,
                      "signals file (.h5) of a simulation, written by sim --signals-out: memory "
                      "levels, queues, placement and step times; without it a policy that needs "
                      "them is refused, and queues are the engine's own");
  v_trace->add_option("--seed", trace.seed, "seed of every random choice")->capture_default_str();
  v_trace->add_flag("--router-input", trace.router_input,
                    "store what each router sees, 2 H bytes per token and layer");
  v_trace->add_option("--temperature", trace.temperature, "0: greedy")->capture_default_str();
  v_trace->add_option("--top-p", trace.top_p, "nucleus sampling")->capture_default_str();
  v_trace->add_option("--top-k", trace.top_k, "sample from the k best tokens; 0: all")
      ->capture_default_str();
  v_trace->add_option("--kv-block", trace.kv_block, "tokens per KV cache block; changes no output")
      ->capture_default_str();
  v_trace->add_option("--kv-memory", trace.kv_memory,
                      "KV cache limit, e.g. \"2 GiB\"; prompts wait until theirs fits");
  v_trace->add_option(
      "--quantise", trace.quantise,
      "round weights, e.g. router=int8,experts=int4,backbone=bf16,group=128,keep=0.1");
  v_trace->add_option("--router-dtype", trace.router_dtype,
                      "routers in f32 or bf16; without it as config.json says (router_dtype), else "
                      "f32");
  v_trace
      ->add_option("--health", trace.health,
                   "check and repair the weights before every N-th step; 0: never")
      ->capture_default_str();
  v_trace->add_option("--flip", trace.flips,
                      "damage on purpose: TENSOR:VALUE:BIT@STEP, e.g. "
                      "layers.1.experts.3.gate:17:14@2; may be repeated");
  v_trace->add_option("--dtype", trace.dtype, "of products: f32, or with --device cuda bf16")
      ->capture_default_str();
  v_trace->add_option("--device", trace.device, "cpu or cuda")->capture_default_str();
  v_trace->add_option("--threads", trace.threads, "0: all cores; changes no output")
      ->capture_default_str();
  rank_options(v_trace, trace.ranks);
  v_trace->add_option("-o,--output", trace.output, "trace file (.h5)")->required();
  v_trace->add_option("--progress", trace.progress, "json: event lines on stdout");
  quiet_flag(v_trace);
  format.add(*v_trace);
  v_trace->footer(
      "Example: switchyard trace --model scenarios/checkpoints/sy-16x2 --prompts "
      "scenarios/prompts/mixed.jsonl --max-new 32 -o t.h5\n"
      "On several processes, with the same result: mpirun -n 4 switchyard trace … --tp 2");

  GenerateOptions generate;
  auto* v_generate = app.add_subcommand("generate", "continue a text, or score texts");
  v_generate->add_option("--model", generate.model, "checkpoint folder or .gguf file")->required();
  v_generate->add_option("--prompt", generate.prompt, "text to continue");
  v_generate->add_option("--prompts", generate.prompts,
                         "in place of --prompt: continue the texts of a .txt or .jsonl file "
                         "(text, id, max_new)");
  v_generate->add_option("--perplexity", generate.perplexity,
                         "in place of --prompt: score the texts of a .txt or .jsonl file");
  v_generate->add_option("--policy", generate.policy, "--perplexity: routing policy");
  v_generate
      ->add_option("--batch", generate.batch,
                   "--prompts, --perplexity: texts that run together; without a policy it changes "
                   "none")
      ->capture_default_str();
  v_generate
      ->add_option("--oracle", generate.oracle,
                   "--perplexity: compare the router with the sets of least loss, on this "
                   "many tokens (claims: 512)")
      ->check(CLI::PositiveNumber);
  v_generate->add_flag("--per-token", generate.per_token, "--perplexity: a row for every token");
  v_generate->add_option("--max-new", generate.max_new, "new tokens")->capture_default_str();
  v_generate->add_option("--temperature", generate.temperature, "0: greedy")->capture_default_str();
  v_generate->add_option("--top-p", generate.top_p, "nucleus sampling")->capture_default_str();
  v_generate->add_option("--top-k", generate.top_k, "sample from the k best tokens; 0: all")
      ->capture_default_str();
  v_generate
      ->add_option("--kv-block", generate.kv_block, "tokens per KV cache block; changes no output")
      ->capture_default_str();
  v_generate->add_option("--kv-memory", generate.kv_memory, "KV cache limit, e.g. \"2 GiB\"");
  v_generate->add_option("--seed", generate.seed, "seed of sampling")->capture_default_str();
  v_generate->add_option(
      "--quantise", generate.quantise,
      "round weights, e.g. router=int8,experts=int4,backbone=bf16,group=128,keep=0.1");
  v_generate->add_option(
      "--router-dtype", generate.router_dtype,
      "routers in f32 or bf16; without it as config.json says (router_dtype), else "
      "f32");
  v_generate
      ->add_option("--health", generate.health,
                   "check and repair the weights before every N-th step; 0: never")
      ->capture_default_str();
  v_generate->add_option("--flip", generate.flips,
                         "damage on purpose: TENSOR:VALUE:BIT@STEP, e.g. "
                         "layers.1.experts.3.gate:17:14@2; may be repeated");
  v_generate->add_option("--dtype", generate.dtype, "of products: f32, or with --device cuda bf16")
      ->capture_default_str();
  v_generate->add_option("--device", generate.device, "cpu or cuda")->capture_default_str();
  v_generate->add_option("--threads", generate.threads, "0: all cores")->capture_default_str();
  rank_options(v_generate, generate.ranks);
  format.add(*v_generate);
  for (const char* name : {"--prompt", "--max-new", "--temperature", "--top-p", "--top-k",
                           "--kv-block", "--kv-memory", "--health", "--flip"}) {
    v_generate->get_option("--perplexity")->excludes(v_generate->get_option(name));
  }
  v_generate->get_option("--perplexity")->excludes(v_generate->get_option("--prompts"));
  v_generate->get_option("--prompt")->excludes(v_generate->get_option("--prompts"));
  for (const char* name : {"--policy", "--per-token", "--oracle"}) {
    v_generate->get_option(name)->needs(v_generate->get_option("--perplexity"));
  }
  for (const char* name : {"--batch", "--format", "--json"}) {
    v_generate->get_option("--prompt")->excludes(v_generate->get_option(name));
  }
  v_generate->footer(
      "Example: switchyard generate --model scenarios/checkpoints/sy-16x2 --prompt \"The \"");

  SimOptions sim;
  auto* v_sim = app.add_subcommand("sim", "simulate a scenario and write the run");
  v_sim->add_option("scenario", sim.scenario, "scenario file (.toml)")->required();
  v_sim->add_option("--trace", sim.trace, "routing trace in place of workload.routing");
  v_sim->add_option("--set", sim.settings, "key=value, overrides the scenario; may be repeated");
  v_sim->add_option("-o,--output", sim.output, "run file (.h5)")->required();
  v_sim->add_option("--signals-out", sim.signals,
                    "also write what the policy saw in each step, for trace --signals");
  v_sim->add_option("--memory-out", sim.memory,
                    "also write every allocation and free with its cause (.csv); of long runs that "
                    "is much");
  v_sim->add_option("--progress", sim.progress, "json: event lines on stdout");
  quiet_flag(v_sim);
  format.add(*v_sim);
  v_sim->footer(
      "Example: switchyard sim scenarios/demo.toml --trace t.h5 --set policy.capacity.factor=2.0 "
      "-o r.h5");

  CoupleOptions couple;
  auto* v_couple =
      app.add_subcommand("couple", "engine and simulator in turns until the decisions are stable");
  v_couple->add_option("scenario", couple.scenario, "scenario file (.toml), with the policy")
      ->required();
  v_couple->add_option("--model", couple.model, "checkpoint folder or .gguf file")->required();
  v_couple->add_option("--prompts", couple.prompts, ".txt (one prompt a line) or .jsonl")
      ->required();
  v_couple
      ->add_option("--rounds", couple.rounds,
                   "engine runs under signals, at most; stops earlier when no decision changes")
      ->capture_default_str();
  v_couple->add_option("--max-new", couple.max_new, "new tokens per prompt")->capture_default_str();
  v_couple->add_option("--batch", couple.batch, "prompts that run together; 0: all")
      ->capture_default_str();
  v_couple->add_option("--chunk", couple.chunk, "prefill chunk in tokens; 0: whole prompts")
      ->capture_default_str();
  v_couple->add_option("--set", couple.settings,
                       "key=value, overrides the scenario; may be repeated");
  v_couple->add_option("--keep", couple.keep,
                       "folder: roundN/trace.h5 and roundN/signals.h5 of every round");
  v_couple->add_flag("--router-input", couple.router_input,
                     "keep the routers' inputs in the traces: the run then has the cohesion of its "
                     "experts' tokens, which alarms may watch");
  v_couple->add_option("--threads", couple.threads, "0: all cores; changes no output")
      ->capture_default_str();
  v_couple->add_option("-o,--output", couple.output, "run file (.h5) of the last round")
      ->required();
  v_couple->add_option("--progress", couple.progress, "json: event lines on stdout");
  quiet_flag(v_couple);
  format.add(*v_couple);
  v_couple->footer(
      "Round 0: the engine alone; then the simulation of its trace says what the machine was like "
      "(memory, queues, placement, time), and the engine runs again under the scenario's policy. "
      "Exit code 1: not converged; the run is written and says so.\n"
      "Example: switchyard couple scenarios/coupled_queue.toml --model "
      "scenarios/checkpoints/sy-16x2 "
      "--prompts scenarios/prompts/mixed.jsonl -o r.h5");

  SweepOptions sweep;
  auto* v_sweep =
      app.add_subcommand("sweep", "simulate every point of a scenario's [[sweep]]; resumable");
  v_sweep->add_option("scenario", sweep.scenario, "scenario file (.toml)")->required();
  v_sweep->add_option("--trace", sweep.trace, "routing trace in place of workload.routing");
  v_sweep->add_option("--set", sweep.settings,
                      "key=value, overrides the scenario; may be repeated");
  v_sweep->add_option("-j,--jobs", sweep.jobs, "points that run at once, of each rank")
      ->capture_default_str();
  v_sweep->add_option("-o,--output", sweep.output, "folder: points/<index>-<hash8>.h5, index.csv")
      ->required();
  quiet_flag(v_sweep);
  format.add(*v_sweep);
  v_sweep->footer(
      "Example: switchyard sweep scenarios/normative.toml -j 2 -o sweep/\n"
      "Over machines with one file system: mpirun -n 4 switchyard sweep SCENARIO -o DIR");

  TableOptions table;
  auto* v_table =
      app.add_subcommand("table", "paper-style tables beside the published claims, with verdicts");
  v_table->add_option("names", table.names, "tables to print (--list shows them)");
  v_table->add_flag("--all", table.all, "every table");
  v_table->add_flag("--list", table.list, "name every table");
  v_table->add_flag("--quick", table.quick,
                    "smaller inputs where a table runs engine or simulator");
  v_table->add_option("-o,--output", table.output, "folder for one file per table");
  format.add(*v_table);
  quiet_flag(v_table);
  v_table->footer("Example: switchyard table account mixed-fabric --format md");

  std::string explain_path;
  scenario::ReadOptions explain;
  auto* v_explain =
      app.add_subcommand("explain", "every resolved value of a scenario with its origin");
  v_explain->add_option("scenario", explain_path, "scenario file (.toml)")->required();
  v_explain->add_option("--trace", explain.trace, "routing trace in place of workload.routing");
  v_explain->add_option("--set", explain.settings,
                        "key=value, overrides the scenario; may be repeated");
  format.add(*v_explain);
  v_explain->footer("Example: switchyard explain scenarios/normative.toml");

  InspectOptions inspect;
  auto* v_inspect = app.add_subcommand("inspect", "what a trace, run or hardware file holds");
  v_inspect
      ->add_option("file", inspect.file, "trace or run (.h5), hardware file (.toml), .gguf file")
      ->required();
  v_inspect->add_flag("--topology", inspect.topology,
                      "routes, bottlenecks and bisection of a hardware file");
  v_inspect->add_flag("--activation", inspect.activation,
                      "traces: the eight activation rates and every routing statistic");
  v_inspect->add_flag("--profile", inspect.profile,
                      "runs: time by kernel, memory and communication rates, largest copies");
  v_inspect->add_flag("--requests", inspect.requests, "runs: a row a request");
  v_inspect->add_option("--first", inspect.first, "--requests: first one listed")
      ->capture_default_str();
  v_inspect->add_option("--rows", inspect.rows, "--requests: how many, 0: all")
      ->capture_default_str();
  v_inspect->add_flag("--layers", inspect.layers,
                      "runs: check the blocks of single layers too, however many they are");
  v_inspect->add_option("--window", inspect.window, "traces: W of load_cv in tokens; 0: all tokens")
      ->capture_default_str();
  v_inspect->add_option("--model", inspect.model,
                        "--activation: the trace's model (config.json, preset or checkpoint)");
  v_inspect->add_option("--policy", inspect.policy,
                        "traces without decisions: policy file of the run, for weights and tables");
  v_inspect->add_flag("--no-verify", inspect.no_verify,
                      "skip the content hash (files above 4 GiB only)");
  v_inspect->add_option(
      "--build-table", inspect.build_table,
      "write a static routing table of a trace's prompts (policy key table.file)");
  v_inspect
      ->add_option("--table-prefix", inspect.table_prefix,
                   "what makes a key: the first 32 tokens, characters or bytes of the prompt")
      ->capture_default_str();
  v_inspect->add_option("--table-digest-bits", inspect.table_digest_bits, "256, 64 or 32")
      ->capture_default_str();
  v_inspect->add_option("--use-table", inspect.use_table,
                        "hit rate, agreement and load of a trace under a routing table");
  format.add(*v_inspect);
  v_inspect->footer("Example: switchyard inspect t.h5 --activation");

  DiffOptions diff;
  auto* v_diff = app.add_subcommand("diff", "two runs side by side: what differed, what changed");
  v_diff->add_option("a", diff.a, "run A")->required();
  v_diff->add_option("b", diff.b, "run B")->required();
  v_diff->add_option("more", diff.more,
                     "the same scenarios with other seeds: medians and ranges are printed, and "
                     "\"noise\" where the ranges touch");
  bool diff_no_verify = false;
  v_diff->add_flag("--no-verify", diff_no_verify, "skip the content hash (files above 4 GiB only)");
  format.add(*v_diff);
  v_diff->footer("Example: switchyard diff a.h5 b.h5 --format csv");

  DiagnoseOptions diagnose;
  auto* v_diagnose =
      app.add_subcommand("diagnose", "what limits a run: symptom, cause, check and cure");
  v_diagnose->add_option("run", diagnose.run, "run file (.h5)")->required();
  bool diagnose_no_verify = false;
  v_diagnose->add_flag("--no-verify", diagnose_no_verify,
                       "skip the content hash (files above 4 GiB only)");
  format.add(*v_diagnose);
  v_diagnose->footer("Example: switchyard diagnose r.h5");

  MonitorOptions monitor;
  auto* v_monitor = app.add_subcommand("monitor", "health read-outs of a run with alarms");
  v_monitor->add_option("input", monitor.input, "run (.h5), or scenario (.toml) to simulate first")
      ->required();
  v_monitor->add_option(
      "--alarms", monitor.alarms,
      "file of [[alarms]] in place of the scenario's own rules, or the default ones "
      "(scenarios/README.md)");
  v_monitor->add_option("--trace", monitor.trace, "scenarios: routing trace, as for sim");
  v_monitor->add_option("--set", monitor.settings, "scenarios: key=value; may be repeated");
  v_monitor->add_flag("--fail-on-alarm", monitor.fail_on_alarm, "exit 1 when an alarm is raised");
  bool monitor_no_verify = false;
  v_monitor->add_flag("--no-verify", monitor_no_verify,
                      "skip the content hash (files above 4 GiB only)");
  format.add(*v_monitor);
  v_monitor->footer("Example: switchyard monitor r.h5 --alarms scenarios/alarms/healthy.toml");

  AccountOptions account_options;
  auto* v_account =
      app.add_subcommand("account", "parameters, bytes, FLOPs, KV per token, activation rates");
  v_account
      ->add_option("model", account_options.model,
                   "config.json, preset name, checkpoint folder or .gguf file")
      ->required();
  v_account->add_option("--dtype", account_options.dtype,
                        "one format for all, or experts=…,shared=…,router=…,kv=…");
  v_account
      ->add_option("--tokens", account_options.tokens,
                   "tokens of the step for the activation rates")
      ->capture_default_str();
  v_account
      ->add_option("--context", account_options.context,
                   "tokens each one attends to, for FLOPs and KV bytes")
      ->capture_default_str();
  format.add(*v_account);
  v_account->footer("Example: switchyard account mixtral_8x7b --tokens 16");

  ExportOptions export_options;
  auto* v_export = app.add_subcommand(
      "export", "write other tools' files: gguf, placement, csv, perfetto, dot, svg");
  v_export
      ->add_option("kind", export_options.kind,
                   "gguf: a checkpoint for llama.cpp; placement, csv: where a run put its experts, "
                   "its rows; perfetto: a run for ui.perfetto.dev; svg: its picture, drawn by "
                   "switchyard-gui; dot: a topology for Graphviz")
      ->required();
  v_export
      ->add_option("input", export_options.input,
                   "gguf: checkpoint folder or .gguf file; dot: scenario or hardware file "
                   "(.toml); the others: run file")
      ->required();
  v_export->add_option("-o,--output", export_options.output, "file to write")->required();
  v_export->add_option("--what", export_options.what,
                       "csv: requests (default), steps or events of a run");
  v_export->add_option("--first", export_options.first, "perfetto: first step")
      ->capture_default_str();
  v_export->add_option("--steps", export_options.steps, "perfetto: steps; 0: all that follow")
      ->capture_default_str();
  v_export->add_option("--type", export_options.type,
                       "gguf: format of the matrices, f32, bf16 (default), f16, q8_0, q4_0 or "
                       "q4_k");
  quiet_flag(v_export);
  format.add(*v_export);
  v_export->footer(
      "Example: switchyard export gguf scenarios/checkpoints/sy-16x2 -o sy-16x2.gguf --type q8_0\n"
      "Example: switchyard export perfetto r.h5 -o r.json --first 100 --steps 50");

  ImportOptions import_options;
  auto* v_import = app.add_subcommand(
      "import",
      "read other tools' files: eplb, topo-m, nccl-xml, requests-azure, "
      "requests-burstgpt, requests-mooncake, nccl-tests, expert-counts, megatron-jsonl, "
      "routing-vllm, routing-sglang, moe-balance, vllm-args, deepep");
  v_import
      ->add_option(
          "kind", import_options.kind,
          "eplb: an expert placement, as the CSV that parallel.placement reads; topo-m: "
          "nvidia-smi topo -m as a hardware file; nccl-xml: what NCCL_TOPO_DUMP_FILE "
          "wrote, likewise; requests-*: a request trace, as the CSV "
          "that workload.arrivals.file reads; nccl-tests: what alltoall_perf and its kin "
          "print, as the CSV that network.measured reads; expert-counts: assignments per "
          "layer and expert (CSV or JSON), as the CSV that placement_options.loads reads; "
          "megatron-jsonl: Megatron-LM's folder tokens_per_expert, likewise; "
          "routing-vllm, routing-sglang: experts per token that a response holds, as a "
          "routing trace without logits; moe-balance: a JSONL trace of johanna-rock/moe-balance, "
          "likewise; vllm-args: a vllm serve command as a scenario; "
          "deepep: what DeepEP's tests/test_low_latency.py prints, as "
          "<device>_deepep_ll_us.csv of fit --measured")
      ->required();
  v_import
      ->add_option("input", import_options.input,
                   "eplb: JSON with physical_to_logical_map or phy2log, CSV layer,device,experts, "
                   "or omni-infer's zeros and ones; else the file of the kind's name")
      ->required();
  v_import->add_option("-o,--output", import_options.output, "file to write")->required();
  v_import
      ->add_option("--gpus", import_options.gpus, "EP ranks, when a JSON map does not state them")
      ->transform(whole_number());
  v_import
      ->add_option("--first-layer", import_options.first_layer,
                   "layer number of the model for the file's first row")
      ->transform(whole_number())
      ->capture_default_str();
  v_import->add_option("--like", import_options.like,
                       "topo-m, nccl-xml: hardware (a name of scenarios/hardware, or a file) that "
                       "the figures of GPU and "
                       "cables come from; vllm-args: hardware that the server runs on");
  v_import->add_option(
      "--numa", import_options.numa,
      "topo-m, nccl-xml: rate per direction between two sockets, e.g. \"67.2 GB/s\"");
  v_import->add_option(
      "--model", import_options.model,
      "routing-*, moe-balance: preset or config.json of the model that ran; megatron-jsonl: "
      "checks layers and experts against it; vllm-args: in place of the command's");
  v_import->add_option("--requests", import_options.requests,
                       "vllm-args: CSV of requests, which the command does not hold");
  v_import->add_option("--collective", import_options.collective,
                       "nccl-tests: which table, e.g. alltoall; where the text has several or does "
                       "not say");
  v_import->add_option("--buffer", import_options.buffer,
                       "nccl-tests: out-of-place (default) or in-place");
  v_import
      ->add_option("--tokens", import_options.tokens,
                   "deepep: tokens of a rank, one number for each run of the text, e.g. 1,8,128")
      ->delimiter(',')
      ->transform(whole_number());
  v_import->add_option("--hidden", import_options.hidden, "deepep: hidden size of all runs")
      ->transform(whole_number());
  v_import->add_option("--top-k", import_options.top_k, "deepep: experts per token of all runs")
      ->transform(whole_number());
  v_import->add_option("--experts", import_options.experts, "deepep: experts of all runs")
      ->transform(whole_number());
  v_import->add_option("--ep", import_options.ep, "megatron-jsonl: expert parallel size; else 1");
  v_import->add_option("--etp", import_options.etp,
                       "megatron-jsonl: expert tensor parallel size, which Megatron takes from the "
                       "tensor parallel size unless told; else 1");
  v_import->add_option("--edp", import_options.edp,
                       "megatron-jsonl: copies of each expert that saw other tokens; else 1");
  v_import
      ->add_option("--stage-layers", import_options.stage_layers,
                   "megatron-jsonl: transformer layers of each pipeline stage, e.g. 16,16; without "
                   "it one stage")
      ->delimiter(',')
      ->transform(whole_number());
  v_import->add_option("--iterations", import_options.iterations,
                       "megatron-jsonl: e.g. 100 or 100-200; else all of the files");
  quiet_flag(v_import);
  format.add(*v_import);
  v_import->footer(
      "Example: switchyard import eplb map.json --gpus 32 --first-layer 3 -o p.csv\n"
      "Example: switchyard import megatron-jsonl tokens_per_expert/ --ep 8 --edp 2 -o loads.csv\n"
      "Example: switchyard import moe-balance trace.jsonl --model deepseek_v3 -o t.h5");

  ValidateOptions validate;
  auto* v_validate =
      app.add_subcommand("validate", "simulated against measured operation times, row by row");
  v_validate
      ->add_option("--hardware", validate.hardware,
                   "calibration: a name of scenarios/calibrations, or a file")
      ->capture_default_str();
  v_validate->add_option(
      "--data", validate.data,
      "folder of <device>_*_us.csv to judge (default: the shipped excerpt, and the "
      "end-to-end case of vLLM)");
  v_validate->add_flag("--rows", validate.rows, "the error of every row");
  v_validate->add_flag("--step-loop", validate.step_loop,
                       "end-to-end cases through the simulator's step loop as well (a minute)");
  format.add(*v_validate);
  v_validate->footer("Example: switchyard validate --hardware h200 --rows --format csv");

  FitOptions fit;
  auto* v_fit = app.add_subcommand(
      "fit", "fit a calibration to measured operation times, or synthetic routing to a trace");
  v_fit->add_option("trace", fit.trace,
                    "routing trace (.h5): which synthetic law is nearest, how tokens and "
                    "layers hang together");
  v_fit->add_option("--measured", fit.measured, "folder of <device>_*_us.csv");
  v_fit->add_option("--device", fit.device,
                    "--measured: prefix of the files, name of the calibration");
  v_fit->add_option("--hardware", fit.hardware,
                    "--measured: hardware file or name whose first GPU type has the peak rates");
  v_fit->add_option("--source", fit.source, "--measured: who measured, which version");
  v_fit->add_option("--licence", fit.licence, "--measured: licence of the measurements");
  v_fit->add_option("-o,--output", fit.output, "calibration or workload file to write (.toml)")
      ->required();
  quiet_flag(v_fit);
  format.add(*v_fit);
  v_fit->footer(
      "Example: switchyard fit t.h5 -o workload.toml\n"
      "Example: switchyard fit --measured rows/ --device h200 --hardware hgx_h200 --source lab "
      "--licence CC-BY-4.0 -o h200.toml");

  ProfileOptions profile;
  auto* v_profile = app.add_subcommand(
      "profile",
      "measure the engine's operations and its own time per step: a calibration of this machine");
  v_profile->add_option("--device", profile.device, "cpu or cuda")->capture_default_str();
  v_profile->add_option("--dtype", profile.dtype, "of products: f32, or with --device cuda bf16")
      ->capture_default_str();
  v_profile
      ->add_option("--model", profile.model,
                   "whose shapes to measure: config.json, preset or checkpoint")
      ->required();
  v_profile->add_option("--name", profile.name, "device name in the calibration; else --device");
  v_profile->add_option("--threads", profile.threads, "threads of the engine")
      ->transform(whole_number())
      ->capture_default_str();
  v_profile->add_option("-o,--output", profile.output, "calibration to write (.toml)")->required();
  quiet_flag(v_profile);
  v_profile->footer(
      "Example: switchyard profile --device cpu --model scenarios/checkpoints/sy-16x2 -o cpu.toml");

  DoctorOptions doctor;
  auto* v_doctor = app.add_subcommand("doctor", "what this machine can do, and what is missing");
  format.add(*v_doctor);
  v_doctor->footer("Example: switchyard doctor");

  for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (CLI::Option* option : verb->get_options()) {
      if (option->get_type_name() == "UINT") option->check(whole_number());
      // One argument a time: a list would take the words behind it, the positional ones too.
      if (!option->get_positional()) option->allow_extra_args(false);
    }
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::ExtrasError& e) {
    const std::vector<std::string> extra = app.remaining(true);
    const std::string word = extra.empty() ? std::string() : extra.front();
    throw InputError("command line", fmt::format("\"{}\" is not known here", word),
                     suggestion(app, word));
  } catch (const CLI::ParseError& e) {
    // CLI11 names what is missing before what it does not know; a misspelt option is both.
    for (const std::string& word : app.remaining(true)) {
      if (!word.starts_with("-") || word == "-") continue;
      throw InputError("command line", fmt::format("\"{}\" is not known here", word),
                       suggestion(app, word));
    }
    std::string verb;
    for (const CLI::App* v : app.get_subcommands()) verb = " " + v->get_name();
    throw InputError("command line", e.what(), fmt::format("see switchyard{} --help", verb));
  }

  const auto parsed = [](const CLI::App* verb) { return verb->parsed(); };
  if (parsed(v_trace)) {
    trace.quiet = quiet;
    trace.format = format.get();
    return run_trace(trace);
  }
  if (parsed(v_generate)) {
    generate.format = format.get();
    return run_generate(generate);
  }
  if (parsed(v_sim)) {
    sim.quiet = quiet;
    sim.format = format.get();
    return run_sim(sim);
  }
  if (parsed(v_couple)) {
    couple.quiet = quiet;
    couple.format = format.get();
    return run_couple(couple);
  }
  if (parsed(v_sweep)) {
    sweep.quiet = quiet;
    sweep.format = format.get();
    return run_sweep(sweep);
  }
  if (parsed(v_table)) {
    table.quiet = quiet;
    table.format = format.get();
    return run_table(table);
  }
  if (parsed(v_explain)) {
    explain.presets_root = scenarios_root().string();
    fmt::print("{}", render(explain_file(explain_path, explain), format.get()));
    return 0;
  }
  if (parsed(v_inspect)) {
    inspect.format = format.get();
    inspect.root = scenarios_root();
    return run_inspect(inspect);
  }
  if (parsed(v_diff)) {
    diff.format = format.get();
    diff.verify = !diff_no_verify;
    return run_diff(diff);
  }
  if (parsed(v_diagnose)) {
    diagnose.format = format.get();
    diagnose.verify = !diagnose_no_verify;
    return run_diagnose(diagnose);
  }
  if (parsed(v_monitor)) {
    monitor.format = format.get();
    monitor.verify = !monitor_no_verify;
    return run_monitor(monitor);
  }
  if (parsed(v_account)) {
    account_options.root = scenarios_root();
    fmt::print("{}", render_all(account(account_options), format.get()));
    return 0;
  }
  if (parsed(v_export)) {
    export_options.quiet = quiet;
    export_options.format = format.get();
    return run_export(export_options);
  }
  if (parsed(v_import)) {
    import_options.quiet = quiet;
    import_options.format = format.get();
    return run_import(import_options);
  }
  if (parsed(v_validate)) {
    validate.format = format.get();
    return run_validate(validate);
  }
  if (parsed(v_fit)) {
    fit.quiet = quiet;
    fit.format = format.get();
    return run_fit(fit);
  }
  if (parsed(v_profile)) {
    profile.quiet = quiet;
    profile.root = scenarios_root();
    return run_profile(profile);
  }
  if (parsed(v_doctor)) {
    doctor.format = format.get();
    return run_doctor(doctor);
  }
  fmt::print("{}", kThreeCommands);
  return 0;
}

/// With --progress json, errors are an event on stdout too.
bool wants_json_progress(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--progress=json") return true;
    if (word == "--progress" && i + 1 < argc && std::string(argv[i + 1]) == "json") return true;
  }
  return false;
}

/// The last line of --progress json. `where` is the place of an InputError; "line" is null when it
/// has none.
nlohmann::ordered_json error_event(const std::string& message, const std::string& where) {
  const Place place = split_place(where);
  nlohmann::ordered_json event{{"event", "error"}, {"message", message}, {"file", place.file}};
  event["line"] = place.line ? nlohmann::ordered_json(*place.line) : nlohmann::ordered_json();
  return event;
}

}  // namespace
}  // namespace switchyard::cli

int main(int argc, char** argv) {
  using switchyard::CapabilityError;
  using switchyard::InputError;
  // Under mpirun an error of one rank ends them all; one that all see is printed once.
  const auto report = [&](const std::string& line, const nlohmann::ordered_json& event, int code) {
    switchyard::let_rank_0_speak();
    switchyard::cli::say("switchyard: {}\n", line);
    if (std::ferror(stdout) == 0 && switchyard::cli::wants_json_progress(argc, argv)) {
      const std::string last =
          event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
      (void)std::fwrite(last.data(), 1, last.size(), stdout);
    }
    std::fflush(nullptr);
    switchyard::end_job(code);
    return code;
  };
  const auto report_plain = [&](const std::string& message, int code) {
    return report(message, switchyard::cli::error_event(message, ""), code);
  };
  const auto report_stdout = [&] {
    if (switchyard::cli::reader_has_left(STDOUT_FILENO)) {  // `| head`: it has what it wanted.
      switchyard::end_job(switchyard::cli::kReaderLeft);
      return switchyard::cli::kReaderLeft;
    }
    return report_plain("cannot write to standard output", switchyard::cli::kInputWrong);
  };
  switchyard::cli::reserve_standard_streams();
  switchyard::cli::watch_interrupts();
  try {
    const int code = switchyard::cli::run(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return report_stdout();
    }
    return code;
  } catch (const InputError& e) {
    const std::string message =
        e.hint().empty() ? e.message() : fmt::format("{}; {}", e.message(), e.hint());
    return report(e.what(), switchyard::cli::error_event(message, e.where()),
                  switchyard::cli::kInputWrong);
  } catch (const CapabilityError& e) {
    return report_plain(e.what(), switchyard::cli::kCapabilityMissing);
  } catch (const std::bad_alloc&) {
    return report_plain("out of memory on this machine", switchyard::cli::kCapabilityMissing);
  } catch (const std::exception& e) {
    // fmt throws what stdio says, e.g. that the disk behind a redirection is full.
    if (std::ferror(stdout) != 0) return report_stdout();
    return report_plain(fmt::format("internal error: {}", e.what()), 1);
  }
}
