// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect_activation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"
#include "engine/trace/trace_activity.hpp"
#include "engine/trace/trace_stats.hpp"
#include "experiments/cli/inspect_trace.hpp"

namespace switchyard {
namespace {

std::string number(const std::optional<double>& value, int digits = 3) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "n/a";
}

std::string percent(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? fmt::format("{:.2f}", *value * 100.0) : "n/a";
}

/// Mean of values, none when there are none.
struct Mean {
  double sum = 0;
  std::uint64_t n = 0;
  void add(double v) {
    sum += v;
    ++n;
  }
  [[nodiscard]] std::optional<double> value() const {
    return n == 0 ? std::nullopt : std::optional(sum / static_cast<double>(n));
  }
};

/// Columns of the per-step tables.
constexpr std::array<const char*, 4> kMixes{"prefill", "decode", "mixed", "all"};

template <class F>
std::array<Mean, 4> by_mix(const TraceActivity& activity, const F& value) {
  std::array<Mean, 4> out;
  for (const StepActivityRow& row : activity.steps) {
    if (const std::optional<double> v = value(row); v && std::isfinite(*v)) {
      out[static_cast<std::size_t>(row.mix)].add(*v);
      out[3].add(*v);
    }
  }
  return out;
}

/// The eight rates of one step, NaN where there is nothing to compute from.
model::ActivationRates rates_of(const RoutingTrace& trace, const StepActivityRow& row,
                                const std::optional<model::ModelConfig>& config) {
  if (config) {
    return model::activation_rates(
        *config, model::default_dtypes(*config),
        {row.tokens, row.accepted, row.touched, row.capacity.value_or(0)});
  }
  const double nan = std::nan("");
  const double e = trace.header.experts();
  const double layers = trace.header.layer_count();
  model::ActivationRates r{nan, nan, nan, nan, nan, nan, nan, nan};
  if (layers > 0) {
    r.expert_fraction = trace.header.top_k() / e;
    r.touched_fraction = static_cast<double>(row.touched) / (e * layers);
    r.kept_fraction =
        static_cast<double>(row.accepted) / (static_cast<double>(row.tokens) * e * layers);
    if (row.capacity) {
      r.slot_occupancy =
          static_cast<double>(row.accepted) / (e * static_cast<double>(*row.capacity) * layers);
    }
  }
  return r;
}

Table rates_table(const RoutingTrace& trace, const TraceActivity& activity,
                  const std::optional<model::ModelConfig>& config) {
  Table t;
  t.name = "activation";
  t.title = "Eight activation rates, mean over steps";
  t.columns = {"rate", "definition"};
  for (const char* mix : kMixes) {
    t.columns.push_back(fmt::format("{} [%]", mix));
  }
  for (const auto& d : model::activation_definitions()) {
    std::vector<std::string> cells{d.name, d.formula};
    for (const Mean& mean : by_mix(activity, [&](const StepActivityRow& row) {
           return std::optional(rates_of(trace, row, config).*d.value);
         })) {
      cells.push_back(percent(mean.value()));
    }
    t.rows.push_back(std::move(cells));
  }
  std::array<std::uint64_t, 3> steps{};
  for (const StepActivityRow& row : activity.steps) {
    ++steps[static_cast<std::size_t>(row.mix)];
  }
  t.notes.push_back(fmt::format("steps: {} prefill, {} decode, {} mixed; E = {}, k = {}", steps[0],
                                steps[1], steps[2], trace.header.experts(), trace.header.top_k()));
  t.notes.push_back(config ? fmt::format("parameters and bytes of {}", config->name)
                           : std::string("parameters unknown: name the model with --model"));
  if (trace.header.policy.capacity.rule == CapacityRule::kNone) {
    t.notes.emplace_back("slot_occupancy needs a capacity; the recorded policy has none");
  }
  return t;
}

Table batch_table(const RoutingTrace& trace, const TraceActivity& activity,
                  const std::optional<model::ModelConfig>& config) {
  Table t;
  t.name = "activation-batch";
  t.title = "Experts and bytes of a batch (step), mean over steps";
  t.columns = {"quantity", "unit"};
  t.columns.insert(t.columns.end(), kMixes.begin(), kMixes.end());
  const auto layers = static_cast<double>(trace.header.layer_count());
  const auto row = [&](const char* name, const char* unit, int digits, const auto& value) {
    std::vector<std::string> cells{name, unit};
    for (const Mean& mean : by_mix(activity, value)) {
      cells.push_back(number(mean.value(), digits));
    }
    t.rows.push_back(std::move(cells));
  };
  using Row = const StepActivityRow&;
  using Value = std::optional<double>;
  row("tokens", "", 2, [](Row r) { return Value(r.tokens); });
  row("sequences", "", 2, [](Row r) { return Value(r.sequences); });
  if (layers > 0) {
    row("distinct experts of a layer, mean", "", 2,
        [&](Row r) { return static_cast<double>(r.touched) / layers; });
    row("distinct experts of a layer, fewest", "", 2, [](Row r) { return Value(r.fewest); });
    row("distinct experts of a layer, most", "", 2, [](Row r) { return Value(r.most); });
    row("tokens of the busiest expert", "", 2, [](Row r) { return Value(r.busiest); });
    row("tokens per touched expert", "", 2, [](Row r) {
      return r.touched == 0 ? Value()
                            : static_cast<double>(r.accepted) / static_cast<double>(r.touched);
    });
  }
  if (config) {
    const auto dtype = model::default_dtypes(*config);
    const auto all =
        static_cast<double>(model::weight_bytes(model::count_parameters(*config), dtype));
    const auto expert = static_cast<double>(model::expert_bytes(*config, dtype.experts));
    const auto weights = [&](Row r) { return rates_of(trace, r, config).traffic_share * all; };
    row("weight bytes read", "B", 0, [&](Row r) { return Value(weights(r)); });
    row("of them routed experts", "B", 0,
        [&](Row r) { return static_cast<double>(r.touched) * expert; });
    row("weight bytes read per token", "B", 0,
        [&](Row r) { return weights(r) / static_cast<double>(r.tokens); });
    std::vector<double> kv(trace.steps(), 0.0);
    for (std::uint64_t i = 0; i < trace.rows(); ++i) {
      if (trace.tokens.phase[i] != static_cast<std::uint8_t>(Phase::kWarmUp)) {
        kv[trace.tokens.step[i]] += static_cast<double>(
            model::kv_bytes(*config, dtype.kv, std::uint64_t{trace.tokens.position[i]} + 1));
      }
    }
    row("keys and values attended to per token", "B", 0,
        [&](Row r) { return kv[r.step] / static_cast<double>(r.tokens); });
  }
  std::uint64_t total = 0;
  for (const std::uint64_t n : activity.histogram) {
    total += n;
  }
  std::string text;
  for (std::size_t i = 0; i < activity.histogram.size(); ++i) {
    const std::uint64_t low = i == 0 ? 0 : std::uint64_t{1} << (i - 1);
    const std::uint64_t high = i == 0 ? 0 : (std::uint64_t{1} << i) - 1;
    text += fmt::format(
        "{}{}: {:.1f} %", text.empty() ? "" : ", ",
        low == high ? std::to_string(low) : fmt::format("{}-{}", low, high),
        100.0 * static_cast<double>(activity.histogram[i]) / static_cast<double>(total));
  }
  if (total > 0) {
    t.notes.push_back(
        fmt::format("tokens of an expert in a step, over steps, layers, experts: {}", text));
  }
  t.notes.emplace_back("an expert counts as touched when it ran a token (kept or rerouted to it)");
  if (config) {
    t.notes.emplace_back(
        "weights in the formats of the model's own file; each read once per step; the embedding's "
        "rows as far as they are looked up");
  }
  return t;
}

Table windows_table(const RoutingTrace& trace, const TraceStats& all) {
  Table t;
  t.name = "activation-windows";
  t.title =
      "load_cv(W): std / mean of the experts' tokens over W tokens, mean of layers and windows";
  t.columns = {"W [tokens]", "load_cv [%]", "floor of an even router [%]", "load_cv / floor"};
  std::vector<std::uint64_t> windows;
  for (const std::uint64_t w : {1U, 16U, 128U, 1000U, 10000U}) {
    if (w < all.tokens) {
      windows.push_back(w);
    }
  }
  windows.push_back(0);
  for (const std::uint64_t w : windows) {
    const TraceStats stats = w == 0 ? all : trace_stats(trace, w);
    const bool both = stats.load_cv && stats.load_cv_floor && *stats.load_cv_floor > 0;
    t.rows.push_back(
        {std::to_string(stats.window), percent(stats.load_cv), percent(stats.load_cv_floor),
         both ? fmt::format("{:.3f}", *stats.load_cv / *stats.load_cv_floor) : std::string("n/a")});
  }
  t.notes.emplace_back(
      "floor = sqrt((1 - k/E) / (W k/E)), counting noise of even, independent choices");
  if (all.load_cv) {
    t.notes.push_back(
        fmt::format("the alternative reading, std of shares = load_cv / E: {:.4f} at W = {}",
                    *all.load_cv / trace.header.experts(), all.window));
  }
  return t;
}

Table layers_table(const RoutingTrace& trace, const TraceStats& stats,
                   const std::optional<Cohesion>& cohesion) {
  Table t;
  t.name = "activation-layers";
  t.title = "Routing statistics by MoE layer";
  t.columns = {"layer",
               "load_cv [%]",
               "top3_share [%]",
               "index_variance",
               "entropy_load / log2 E",
               "entropy_gate mean [bit]",
               "p95 of tokens [bit]",
               "p95 of batches [bit]",
               "switch_rate",
               "set_switch"};
  const double bits = std::log2(static_cast<double>(trace.header.experts()));
  const auto row = [&](const std::string& name, const auto& s) {
    const auto normalised =
        s.entropy_load && bits > 0 ? std::optional(*s.entropy_load / bits) : std::nullopt;
    t.rows.push_back({name, percent(s.load_cv), percent(s.top3_share), number(s.index_variance),
                      number(normalised), number(s.entropy_gate_mean), number(s.entropy_gate_p95),
                      number(s.entropy_gate_batch_p95), number(s.switch_rate),
                      number(s.set_switch)});
  };
  for (const LayerStats& layer : stats.layers) {
    row(std::to_string(layer.layer), layer);
  }
  row("all", stats);
  const double e = trace.header.experts();
  const double k = trace.header.top_k();
  t.rows.push_back({"even router", percent(stats.load_cv_floor), percent(stats.top3_fair),
                    number((e * e - 1) / 12), "1.000", number(bits), number(bits), number(bits),
                    number(1 - 1 / e), number(1 - k / e)});
  t.notes.push_back(fmt::format("load_cv over windows of W = {} tokens", stats.window));
  t.notes.emplace_back(
      "index_variance depends on how experts are numbered: read it beside load_cv and entropy");
  t.notes.emplace_back(
      "p95 of batches: entropy averaged over a step's tokens, then p95 over steps: the default of "
      "the 3.2-bit alarm");
  t.notes.emplace_back(
      "switch_rate of real models, for comparison: gpt-oss-20b 0.767, DeepSeek-V2-Lite 0.826");
  if (cohesion) {
    t.notes.push_back(fmt::format(
        "cohesion of layer {} (mean cosine of centred router inputs of an expert's tokens): {}; as "
        "many random tokens: {}",
        cohesion->layer, number(cohesion->mean), number(cohesion->baseline)));
  } else {
    t.notes.emplace_back("cohesion: n/a, needs hidden states (trace --router-input)");
  }
  return t;
}

Table experts_table(const RoutingTrace& trace, const TraceStats& stats,
                    const std::optional<Cohesion>& cohesion) {
  Table t;
  t.name = "activation-experts";
  t.title = "Experts by MoE layer, share of the layer's kept assignments";
  t.columns = {"layer",          "busiest: id (share [%])",   "busiest share [%]",
               "fair share [%]", "cold (< 30 % of the mean)", "without any"};
  const double e = trace.header.experts();
  for (const LayerStats& layer : stats.layers) {
    double total = 0;
    for (const std::uint64_t n : layer.load) {
      total += static_cast<double>(n);
    }
    std::vector<std::size_t> order(layer.load.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return layer.load[a] > layer.load[b]; });
    std::string busiest;
    for (std::size_t i = 0; i < std::min<std::size_t>(5, order.size()) && total > 0; ++i) {
      busiest += fmt::format("{}{} ({:.1f})", i == 0 ? "" : ", ", order[i],
                             100.0 * static_cast<double>(layer.load[order[i]]) / total);
    }
    std::uint64_t cold = 0;
    std::uint64_t dead = 0;
    for (const std::uint64_t n : layer.load) {
      cold += static_cast<double>(n) < 0.3 * total / e ? 1U : 0U;
      dead += n == 0 ? 1U : 0U;
    }
    t.rows.push_back({std::to_string(layer.layer), busiest.empty() ? "n/a" : busiest,
                      total > 0 ? percent(static_cast<double>(layer.load[order[0]]) / total)
                                : std::string("n/a"),
                      percent(1 / e), std::to_string(cold), std::to_string(dead)});
  }
  if (cohesion) {
    std::string text;
    for (std::size_t i = 0; i < cohesion->experts.size(); ++i) {
      text += fmt::format("{}{}", i == 0 ? "" : " ", number(cohesion->experts[i], 2));
    }
    t.notes.push_back(fmt::format("cohesion of layer {} by expert id: {}", cohesion->layer, text));
  }
  return t;
}

}  // namespace

std::vector<Table> activation_tables(const RoutingTrace& trace,
                                     const std::optional<model::ModelConfig>& config,
                                     std::uint64_t window) {
  const TraceActivity activity = trace_activity(trace);
  const TraceStats all = trace_stats(trace);
  const TraceStats chosen = window == 0 ? all : trace_stats(trace, window);
  const auto cohesion = trace_cohesion(trace);
  return {rates_table(trace, activity, config),
          batch_table(trace, activity, config),
          windows_table(trace, all),
          layers_table(trace, chosen, cohesion),
          experts_table(trace, chosen, cohesion),
          losses_table(trace)};
}

std::vector<Table> inspect_activation(const std::filesystem::path& path,
                                      const InspectActivationOptions& options) {
  RoutingTrace trace = read_trace(path, {options.verify, true});
  const bool decided = trace.decisions_present;
  if (decided && options.policy != nullptr) {
    throw InputError("--policy", "has no effect: the file holds its decisions");
  }
  if (!decided) {
    replay_recorded(trace, options.policy, path.string());
  }
  std::optional<model::ModelConfig> config;
  const TraceHeader& h = trace.header;
  const auto fits = [&](const model::ModelConfig& c) {
    return c.num_experts == h.experts() && c.top_k == h.top_k() && c.moe_layers() == h.layers;
  };
  if (!options.model.empty()) {
    config = model::read_model_config(model::find_model(options.model, options.root));
    if (!fits(*config)) {
      throw InputError("--model", fmt::format("{} has {} experts, top-{}, {} MoE layers; the trace "
                                              "has {}, top-{}, {}",
                                              config->name, config->num_experts, config->top_k,
                                              config->num_moe_layers(), h.experts(), h.top_k(),
                                              h.layer_count()));
    }
  } else if (!h.model.empty() && h.model.size() < 100 && h.model.find('/') == std::string::npos) {
    for (const auto& name : {h.model, (options.root / "checkpoints" / h.model).string()}) {
      try {
        auto found = model::read_model_config(model::find_model(name, options.root));
        if (fits(found)) {
          config = std::move(found);
          break;
        }
      } catch (const InputError&) {  // not a model we ship
      }
    }
  }
  std::vector<Table> tables = activation_tables(trace, config, options.window);
  if (!decided) {
    tables.front().notes.emplace_back(
        "way: replay with the recorded policy and seed, because the file has no decisions");
  }
  return tables;
}

}  // namespace switchyard
