// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/vllm_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "engine/base/error.hpp"
#include "engine/trace/trace.hpp"
#include "experiments/validation/csv.hpp"
#include "experiments/validation/drawn_routing.hpp"
#include "sim/cost/calibrated.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/run/metrics.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::validation {
namespace {

constexpr std::size_t kEngines = 2, kMostRunning = 128, kLayers = 48;
constexpr double kBudget = 2048, kExperts = 128, kTopK = 8, kHidden = 2048;
constexpr double kExchangeUs = 20, kLinkBytesPerUs = 16e3;

/// Times on a grid of N arguments, read linearly in each. Below the grid its edge, above it the
/// last two points go on. Grid points that were not measured are left out of the weighted sum.
template <std::size_t N>
class Grid {
 public:
  using Key = std::array<double, N>;
  void add(const Key& key, double us) {
    points_[key] = us;
    for (std::size_t i = 0; i < N; ++i) {
      auto& axis = axes_[i];
      const auto it = std::lower_bound(axis.begin(), axis.end(), key[i]);
      if (it == axis.end() || *it != key[i]) axis.insert(it, key[i]);
    }
  }
  [[nodiscard]] double operator()(const Key& at) const {
    double sum = 0, weight = 0;
    Key corner{};
    walk(at, 0, 1, corner, sum, weight);
    SWITCHYARD_ASSERT(weight > 0, fmt::format("{} points", points_.size()));
    return std::max(sum / weight, 0.0);
  }

 private:
  void walk(const Key& at, std::size_t i, double w, Key& corner, double& sum,
            double& weight) const {
    if (w == 0) return;
    if (i == N) {
      const auto it = points_.find(corner);
      if (it != points_.end()) {
        sum += w * it->second;
        weight += w;
      }
      return;
    }
    const std::vector<double>& axis = axes_[i];
    const double x = std::max(at[i], axis.front());
    if (axis.size() == 1) {
      corner[i] = axis.front();
      walk(at, i + 1, w, corner, sum, weight);
      return;
    }
    std::size_t k =
        static_cast<std::size_t>(std::upper_bound(axis.begin(), axis.end(), x) - axis.begin());
    k = std::clamp<std::size_t>(k, 1, axis.size() - 1);
    const double f = (x - axis[k - 1]) / (axis[k] - axis[k - 1]);
    corner[i] = axis[k - 1];
    walk(at, i + 1, w * (1 - f), corner, sum, weight);
    corner[i] = axis[k];
    walk(at, i + 1, w * f, corner, sum, weight);
  }
  std::map<Key, double> points_;
  std::array<std::vector<double>, N> axes_;
};

struct Request {
  double arrival_us = 0, input = 0, output = 0;
  double filled = 0, made = 0;  // prompt tokens in the cache, tokens made
  double first_us = -1, end_us = -1;
};

struct Tables {
  Grid<2> decode, prefill;  // (sequences, positions), (chunk, cached)
  Grid<4> mixed;            // (chunk, cached, sequences, positions)
  std::map<std::string, Grid<1>> dense, per_sequence;
  std::map<double, Grid<1>> moe;  // by tokens, over distinct experts
};

Tables read_tables(const std::filesystem::path& folder) {
  Tables t;
  const Csv attention =
      read_csv(folder / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us");
  for (std::size_t r = 0; r < attention.rows.size(); ++r) {
    std::array<double, 4> at{};
    for (std::size_t i = 0; i < 4; ++i) at[i] = number(attention, r, i, 0);
    const double us = number(attention, r, 4, 1e-9);
    if (at[0] > 0 && at[2] > 0) {
      t.mixed.add(at, us);
    } else if (at[0] > 0) {
      t.prefill.add({at[0], at[1]}, us);
    } else {
      t.decode.add({at[2], at[3]}, us);
    }
  }
  const auto by_layer = [&](const char* file, const char* header,
                            std::map<std::string, Grid<1>>& out,
                            std::initializer_list<const char*> wanted) {
    const Csv csv = read_csv(folder / file, header);
    for (std::size_t r = 0; r < csv.rows.size(); ++r) {
      out[csv.rows[r][0]].add({number(csv, r, 1, 1)}, number(csv, r, 2, 1e-9));
    }
    for (const char* name : wanted) {
      if (out.count(name) == 0) {
        throw InputError((folder / file).string(), fmt::format("there is no row of {}", name));
      }
    }
  };
  by_layer(
      "dense.csv", "layer,tokens,time_us", t.dense,
      {"embedding", "layernorm", "qkv_proj", "qk_norm", "rotary_emb", "o_proj", "final_layernorm"});
  by_layer("per_sequence.csv", "layer,sequences,time_us", t.per_sequence, {"lm_head", "sampler"});
  const Csv moe = read_csv(folder / "moe.csv", "tokens,activated_experts,time_us");
  for (std::size_t r = 0; r < moe.rows.size(); ++r) {
    t.moe[number(moe, r, 0, 1)].add({number(moe, r, 1, 1)}, number(moe, r, 2, 1e-9));
  }
  return t;
}

/// Linear in the tokens between the tables of two token counts; in proportion beyond the last.
double moe_us(const Tables& t, double tokens, double distinct) {
  const auto at = [&](const Grid<1>& g) { return g({distinct}); };
  auto above = t.moe.lower_bound(tokens);
  if (above == t.moe.end()) {
    const auto last = std::prev(above);
    return at(last->second) * tokens / last->first;
  }
  if (above == t.moe.begin() || above->first == tokens) return at(above->second);
  const auto below = std::prev(above);
  const double f = (tokens - below->first) / (above->first - below->first);
  return at(below->second) * (1 - f) + at(above->second) * f;
}

struct Engine {
  std::deque<std::size_t> waiting;
  std::vector<std::size_t> running;
};
struct Part {
  std::size_t request;
  double tokens;
};
struct Plan {
  std::vector<Part> decode, prefill;
  [[nodiscard]] double tokens() const {
    double n = static_cast<double>(decode.size());
    for (const Part& p : prefill) n += p.tokens;
    return n;
  }
};

Plan schedule(Engine& engine, const std::vector<Request>& requests) {
  Plan plan;
  double budget = kBudget;
  for (const std::size_t i : engine.running) {
    if (budget <= 0) break;
    const Request& r = requests[i];
    const bool prompt = r.filled < r.input;
    const double n = prompt ? std::min(budget, r.input - r.filled) : 1;
    (prompt ? plan.prefill : plan.decode).push_back({i, n});
    budget -= n;
  }
  while (!engine.waiting.empty() && budget > 0 && engine.running.size() < kMostRunning) {
    const std::size_t i = engine.waiting.front();
    engine.waiting.pop_front();
    engine.running.push_back(i);
    const double n = std::min(budget, requests[i].input);
    plan.prefill.push_back({i, n});
    budget -= n;
  }
  return plan;
}

double attention_us(const Tables& t, const Plan& plan, const std::vector<Request>& requests) {
  double positions = 0;
  for (const Part& p : plan.decode)
    positions += requests[p.request].input + requests[p.request].made;
  const auto n = static_cast<double>(plan.decode.size());
  if (n > 0) positions /= n;
  if (plan.prefill.empty()) return n > 0 ? t.decode({n, positions}) : 0;
  // The first prompt shares its kernel with the decoding sequences; each further one adds its own
  // time without what a kernel takes at least.
  double us = 0;
  const double least = t.prefill({1, 0});
  for (std::size_t i = 0; i < plan.prefill.size(); ++i) {
    const Part& p = plan.prefill[i];
    const double cached = requests[p.request].filled;
    if (i == 0) {
      us = n > 0 ? t.mixed({p.tokens, cached, n, positions}) : t.prefill({p.tokens, cached});
    } else {
      us += std::max(0.0, t.prefill({p.tokens, cached}) - least);
    }
  }
  return us;
}

double step_us(const Tables& t, const std::array<Plan, kEngines>& plans,
               const std::vector<Request>& requests, MoeRows rows) {
  double total = 0, layer = 0, ends = 0;
  for (const Plan& plan : plans) {
    const double tokens = std::max(plan.tokens(), 1.0);
    total += plan.tokens();
    const auto dense = [&](const char* name) { return t.dense.at(name)({tokens}); };
    layer = std::max(layer, attention_us(t, plan, requests) + 2 * dense("layernorm") +
                                dense("qkv_proj") + dense("qk_norm") + dense("rotary_emb") +
                                dense("o_proj"));
    auto sampled = static_cast<double>(plan.decode.size());
    for (const Part& p : plan.prefill) {
      const Request& r = requests[p.request];
      sampled += r.filled + p.tokens >= r.input ? 1 : 0;
    }
    sampled = std::max(sampled, 1.0);
    ends = std::max(ends, dense("embedding") + dense("final_layernorm") +
                              t.per_sequence.at("lm_head")({sampled}) +
                              t.per_sequence.at("sampler")({sampled}));
  }
  const double distinct = kExperts * (1 - std::pow(1 - kTopK / kExperts, total)) / kEngines;
  const double moe = moe_us(t, rows == MoeRows::kGathered ? total : total / kEngines, distinct);
  const double exchange = kExchangeUs + total / kEngines * kHidden * 2 / kLinkBytesPerUs;
  return kLayers * (layer + moe + 2 * exchange) + ends;
}

std::vector<RequestTimes> simulate(const Tables& t, std::vector<Request> requests, MoeRows rows,
                                   std::uint64_t& steps) {
  std::array<Engine, kEngines> engines;
  std::size_t next = 0;
  double now = 0;
  steps = 0;
  while (true) {
    for (; next < requests.size() && requests[next].arrival_us <= now; ++next) {
      const auto load = [](const Engine& e) { return 4 * e.waiting.size() + e.running.size(); };
      std::min_element(engines.begin(), engines.end(), [&](const Engine& a, const Engine& b) {
        return load(a) < load(b);
      })->waiting.push_back(next);
    }
    std::array<Plan, kEngines> plans;
    double tokens = 0;
    for (std::size_t e = 0; e < kEngines; ++e) {
      plans[e] = schedule(engines[e], requests);
      tokens += plans[e].tokens();
    }
    if (tokens == 0) {
      if (next == requests.size()) break;
      now = requests[next].arrival_us;
      continue;
    }
    now += step_us(t, plans, requests, rows);
    ++steps;
    for (std::size_t e = 0; e < kEngines; ++e) {
      for (const Part& p : plans[e].decode) requests[p.request].made += 1;
      for (const Part& p : plans[e].prefill) {
        Request& r = requests[p.request];
        r.filled += p.tokens;
        if (r.filled >= r.input) {
          r.first_us = now;
          r.made = 1;
        }
      }
      std::erase_if(engines[e].running, [&](std::size_t i) {
        Request& r = requests[i];
        if (r.made >= r.output) r.end_us = now;
        return r.end_us >= 0;
      });
    }
  }
  std::vector<RequestTimes> out;
  for (const Request& r : requests) {
    out.push_back({(r.first_us - r.arrival_us) * 1e-3,
                   (r.end_us - r.first_us) * 1e-3 / std::max(r.output - 1, 1.0),
                   (r.end_us - r.arrival_us) * 1e-3});
  }
  return out;
}

/// Rows of requests.csv, measured times in milliseconds.
std::vector<Request> read_requests(const std::filesystem::path& folder,
                                   std::vector<RequestTimes>& measured) {
  const Csv csv =
      read_csv(folder / "requests.csv",
               "arrival_ns,input_tokens,output_tokens,queued_s,first_token_s,last_token_s");
  std::vector<Request> requests;
  for (std::size_t i = 0; i < csv.rows.size(); ++i) {
    Request r;
    r.arrival_us = number(csv, i, 0, 0) * 1e-3;
    r.input = number(csv, i, 1, 1);
    r.output = number(csv, i, 2, 1);
    if (!requests.empty() && r.arrival_us < requests.back().arrival_us) {
      throw InputError(csv.where[i], "the arrival is before that of the line above");
    }
    const double queued = number(csv, i, 3, 0), first = number(csv, i, 4, queued),
                 last = number(csv, i, 5, first);
    measured.push_back({(first - queued) * 1e3, (last - first) * 1e3 / std::max(r.output - 1, 1.0),
                        (last - queued) * 1e3});
    requests.push_back(r);
  }
  return requests;
}

// ---- through the step loop ----

/// NVIDIA's figures of the RTX PRO 6000 (1.792 TB/s, 467.8 TFLOP/s in BF16, as ai-dynamo/
/// aiconfigurator lists them, Apache-2.0); the link's are those of the published case.
constexpr std::string_view kLoopScenario = R"(
[model]
file = "qwen3_30b_a3b"
[hardware]
name = "rtx_pro_6000_x2"
[hardware.gpu_types.rtx_pro_6000]
memory = "96 GB"
hbm = "1792 GB/s"
sms = 188
kernel_launch = "2 us"
tdp = "600 W"
peak = { fp32 = "117 TFLOP/s", bf16 = "467.8 TFLOP/s" }
[[hardware.devices]]
name = "gpu"
count = 2
kind = "gpu"
type = "rtx_pro_6000"
[[hardware.links]]
from = "gpu0"
to = "gpu1"
class = "pcie5"
bandwidth = "16 GB/s"
latency = "20 us"
[parallel]
dp = 2
ep = 2
[workload]
kind = "open"
routing = { trace = "drawn", layers = "cycle" }
arrivals = { per_second = 1.0, requests = 1 }
lengths = { prompt = 1, output = 1 }
batching = { token_budget = 2048, max_sequences = 128 }
[run]
detail = "summary"
)";

/// The kernel table as a calibration, and the smallest time of dense.csv in us.
scenario::Calibration as_calibration(const std::filesystem::path& folder,
                                     const scenario::Scenario& s, MoeRows rows, double& least_us) {
  using scenario::OpKind;
  const scenario::GpuType& gpu = s.hardware.gpu_type(0);
  scenario::Calibration c;
  c.device = gpu.name;
  c.hbm = gpu.hbm;
  c.link.value = kLinkBytesPerUs * 1e6;
  c.peak = gpu.peak;
  c.source = "casys-kaist/LLMServingSim 5daddb2";
  c.licence = "MIT";
  const std::uint64_t heads = s.model.num_heads, kv = s.model.num_kv_heads, d = s.model.head_dim,
                      h = s.model.hidden_size;
  const auto table = [&](OpKind kind, std::vector<std::uint64_t> shape) {
    scenario::OpTable t;
    t.kind = kind;
    t.library = "vllm0.19";
    t.shape = std::move(shape);
    t.where = folder.string();
    return t;
  };
  scenario::OpTable decode = table(OpKind::kAttentionDecode, {heads, kv, d, 0});
  scenario::OpTable prefill = table(OpKind::kAttentionPrefill, {heads, kv, d, 0});
  const Csv attention =
      read_csv(folder / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us");
  for (std::size_t r = 0; r < attention.rows.size(); ++r) {
    const double chunk = number(attention, r, 0, 0), cached = number(attention, r, 1, 0),
                 n = number(attention, r, 2, 0), positions = number(attention, r, 3, 0),
                 us = number(attention, r, 4, 1e-9);
    if (chunk == 0) decode.points.push_back({{n, positions, 0}, us});
    if (n == 0) prefill.points.push_back({{1, chunk, cached}, us});
  }
  scenario::OpTable qkv = table(OpKind::kGemm, {(heads + 2 * kv) * d, h});
  scenario::OpTable out = table(OpKind::kGemm, {h, heads * d});
  scenario::OpTable head = table(OpKind::kGemm, {s.model.vocab_size, h});
  const Csv dense = read_csv(folder / "dense.csv", "layer,tokens,time_us");
  least_us = std::numeric_limits<double>::infinity();
  for (std::size_t r = 0; r < dense.rows.size(); ++r) {
    const double us = number(dense, r, 2, 1e-9);
    least_us = std::min(least_us, us);
    const scenario::OpPoint point{{number(dense, r, 1, 1), 0, 0}, us};
    if (dense.rows[r][0] == "qkv_proj") qkv.points.push_back(point);
    if (dense.rows[r][0] == "o_proj") out.points.push_back(point);
  }
  const Csv ends = read_csv(folder / "per_sequence.csv", "layer,sequences,time_us");
  for (std::size_t r = 0; r < ends.rows.size(); ++r) {
    if (ends.rows[r][0] != "lm_head") continue;
    head.points.push_back({{number(ends, r, 1, 1), 0, 0}, number(ends, r, 2, 1e-9)});
  }
  scenario::OpTable moe = table(OpKind::kExperts, {h, s.model.expert_intermediate, 3});
  const Csv experts = read_csv(folder / "moe.csv", "tokens,activated_experts,time_us");
  const double per_token = rows == MoeRows::kGathered ? kTopK / kEngines : kTopK;
  for (std::size_t r = 0; r < experts.rows.size(); ++r) {
    const double n = number(experts, r, 0, 1) * per_token, distinct = number(experts, r, 1, 1);
    moe.points.push_back({{n, distinct, std::ceil(n / distinct)}, number(experts, r, 2, 1e-9)});
  }
  c.tables = {std::move(decode), std::move(prefill), std::move(qkv),
              std::move(out),    std::move(head),    std::move(moe)};
  for (const scenario::OpTable& t : c.tables) {
    if (t.points.empty()) throw InputError(folder.string(), "a kernel of the table has no row");
  }
  sim::fit_tables(c);
  return c;
}

}  // namespace

std::vector<RequestTimes> run_vllm_loop(const std::filesystem::path& folder,
                                        const std::filesystem::path& presets, MoeRows rows) {
  scenario::ReadOptions options;
  options.require_trace = false;
  options.presets_root = presets.string();
  scenario::Scenario s =
      scenario::read_scenario_text(kLoopScenario, (presets / "vllm_case.toml").string(), options);
  double least_us = 0;
  s.cost.calibration =
      std::make_shared<const scenario::Calibration>(as_calibration(folder, s, rows, least_us));
  s.hardware.gpu_types.at(0).kernel_launch = SimTime::from_seconds(least_us * 1e-6);
  std::vector<RequestTimes> measured, out;
  auto trace = std::make_shared<scenario::RequestTrace>();
  for (const Request& r : read_requests(folder, measured)) {
    trace->requests.push_back({SimTime::from_seconds(r.arrival_us * 1e-6),
                               static_cast<std::uint32_t>(r.input),
                               static_cast<std::uint32_t>(r.output)});
  }
  s.workload.kind = scenario::WorkloadKind::kTrace;
  s.workload.serving.arrivals.trace = trace;
  s.workload.serving.arrivals.requests = 0;
  const RoutingTrace routing = drawn_routing(s.gate);
  const auto sink = sim::memory_sink();
  const sim::SimulationResult result = sim::simulate(s, &routing, "", *sink);
  if (!result.violations.empty()) {
    throw InputError(folder.string(), "the step loop: " + result.violations.front().message);
  }
  for (const run::RequestRecord& r : sink->data().requests) {
    if (r.outcome != run::RequestOutcome::kFinished) {
      throw InputError(folder.string(), fmt::format("request {} did not finish", r.id));
    }
    out.push_back({static_cast<double>(r.first_token_ps - r.arrival_ps) * 1e-9,
                   static_cast<double>(r.end_ps - r.first_token_ps) * 1e-9 /
                       std::max(static_cast<double>(r.output_tokens) - 1, 1.0),
                   static_cast<double>(r.end_ps - r.arrival_ps) * 1e-9});
  }
  return out;
}

VllmCase run_vllm_case(const std::filesystem::path& folder) {
  const Tables tables = read_tables(folder);
  VllmCase out;
  const std::vector<Request> requests = read_requests(folder, out.measured);
  std::uint64_t ignored = 0;
  out.simulated = simulate(tables, requests, MoeRows::kGathered, out.steps);
  out.simulated_own_rows = simulate(tables, requests, MoeRows::kOwn, ignored);
  return out;
}

Table vllm_table(const VllmCase& result) {
  Table table;
  table.name = "validate-end-to-end";
  table.title =
      "End to end: vLLM 0.19, Qwen3-30B-A3B, 2 x RTX PRO 6000, DP2 + EP2, 300 ShareGPT requests";
  table.columns = {"metric",    "measured [ms]",    "simulated [ms]",
                   "error [%]", "goal |error| [%]", "error, own rows only [%]"};
  const bool loop = !result.loop.empty();
  if (loop) {
    table.columns.emplace_back("step loop, error [%]");
    table.columns.emplace_back("step loop, own rows only [%]");
  }
  struct Quantity {
    const char* name;
    double RequestTimes::*member;
    double goal;
  };
  for (const Quantity& q :
       {Quantity{"TTFT", &RequestTimes::ttft_ms, 10}, Quantity{"TPOT", &RequestTimes::tpot_ms, 2},
        Quantity{"latency", &RequestTimes::latency_ms, 2}}) {
    const auto values = [&](const std::vector<RequestTimes>& times) {
      std::vector<double> v;
      for (const RequestTimes& t : times) v.push_back(t.*q.member);
      return v;
    };
    const std::vector<double> a = values(result.measured), b = values(result.simulated),
                              c = values(result.simulated_own_rows);
    const auto row = [&](const std::string& name, auto&& of, const std::string& goal) {
      const double m = of(a), s = of(b), own = of(c);
      table.rows.push_back({fmt::format("{} {}", q.name, name), fmt::format("{:.2f}", m),
                            fmt::format("{:.2f}", s), fmt::format("{:.1f}", 100 * (s / m - 1)),
                            goal, fmt::format("{:.1f}", 100 * (own / m - 1))});
      for (const auto* times : {&result.loop, &result.loop_own_rows}) {
        if (loop)
          table.rows.back().push_back(fmt::format("{:.1f}", 100 * (of(values(*times)) / m - 1)));
      }
    };
    row(
        "mean",
        [](const std::vector<double>& v) {
          return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
        },
        fmt::format("{}", q.goal));
    for (const int p : {50, 90, 95, 99}) {
      row(
          fmt::format("p{}", p),
          [&](const std::vector<double>& v) { return run::nearest_rank(v, p); }, "n/a");
    }
  }
  table.notes.push_back(
      fmt::format("{} requests, {} steps; times from the kernel table of that GPU and model, none "
                  "fitted to the "
                  "requests; arrivals, lengths and the scheduler's limits are the measured run's",
                  result.measured.size(), result.steps));
  table.notes.push_back(
      "own rows only: the MoE kernel takes the time of the rows of its own experts, not of all "
      "gathered rows");
  if (loop) {
    table.notes.push_back(
        "step loop: the same requests through the simulator's own loop and scheduler, the kernel "
        "table as its calibration; attention of mixed steps as decode and prefill apart");
  }
  if (!loop) {
    table.notes.push_back("validate --step-loop: the same through the simulator's own step loop");
  }
  table.notes.push_back(
      "published simulator on this case (LLMServingSim): TTFT -13.6, TPOT -1.7, latency -2.2 %");
  table.notes.push_back("measured by casys-kaist/LLMServingSim 5daddb2 (MIT)");
  return table;
}

}  // namespace switchyard::validation
