// SPDX-License-Identifier: Apache-2.0
// Exchanges per second: closed form against SimGrid `flow` (optim:Full) and `coflow`, same
// matrices, same run. Every timed result is compared with the definition; a wrong one makes the
// exit code 1. Targets (simulation.md §6), one core: closed form ≥ 1,000,000/s at 8 GPUs, ≥
// 100,000/s at 64.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "sim/network/collectives.hpp"
#include "tests/sim/network_util.hpp"

namespace switchyard::network {
namespace {

bool g_failed = false;
/// Processor seconds of one closed form on 8 servers of 8 GPUs, measured in this run; 0: not yet.
double g_closed_64 = 0;

void fail(benchmark::State& state, const std::string& why) {
  g_failed = true;
  state.SkipWithError(why.c_str());
}

enum class Shape { kStar, kServers };

cluster::RouteTable shape_routes(Shape shape, std::uint32_t n) {
  return shape == Shape::kStar ? test::star(n, 450e9, SimTime::from_us(6)).routes()
                               : test::two_tier(n / 8, true).routes();
}

std::vector<std::vector<std::uint64_t>> matrices(std::uint32_t n, int count) {
  test::Draw draw(n);
  std::vector<std::vector<std::uint64_t>> m;
  for (int i = 0; i < count; ++i) {
    m.push_back(test::random_matrix(draw, n, 0.9, 1e8, 1e9));
  }
  return m;
}

/// max over links of bytes/bandwidth, plus the largest latency: the definition, in seconds.
double definition(const cluster::RouteTable& t, const std::vector<std::uint64_t>& bytes) {
  std::vector<double> load(t.links(), 0);
  double alpha = 0, worst = 0;
  for (std::uint32_t i = 0; i < t.endpoints; ++i) {
    for (std::uint32_t j = 0; j < t.endpoints; ++j) {
      if (i != j && bytes[t.pair(i, j)] != 0) {
        alpha = std::max(alpha, t.latency(i, j).seconds());
        for (const std::uint32_t l : t.links_of(i, j)) {
          load[l] += static_cast<double>(bytes[t.pair(i, j)]);
        }
      }
    }
  }
  for (std::size_t l = 0; l < t.links(); ++l) {
    worst = std::max(worst, load[l] / t.bandwidth[l]);
  }
  return worst + alpha;
}

void closed_form(benchmark::State& state, Shape shape, std::uint32_t n, double target) {
  const auto routes = shape_routes(shape, n);
  const auto input = matrices(n, 16);
  std::vector<std::uint64_t> links(routes.links());
  BottleneckModel model(routes);
  for (const auto& bytes : input) {
    const double expected = definition(routes, bytes);
    if (std::abs(model.evaluate(bytes, links).duration.seconds() - expected) > expected * 1e-9) {
      return fail(state, "the closed form differs from its definition");
    }
  }
  std::int64_t sum = 0, expected = 0;
  for (const auto& bytes : input) {
    expected += model.evaluate(bytes, links).duration.ps();
  }
  std::size_t i = 0;
  const std::clock_t begin = std::clock();
  for (auto _ : state) {
    const BottleneckTime t = model.evaluate(input[i % 16], links);
    sum += t.duration.ps();
    benchmark::DoNotOptimize(links.data());
    if (++i % 16 == 0) {
      if (sum != expected) {
        return fail(state, "results change from pass to pass");
      }
      sum = 0;
    }
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  const auto count = static_cast<double>(state.iterations());
  state.counters["exchanges/s"] = benchmark::Counter(count, benchmark::Counter::kIsRate);
  if (shape == Shape::kServers && n == 64 && seconds > 0.01) g_closed_64 = seconds / count;
  if (seconds > 0.01 && count / seconds < target) {
    fail(state, fmt::format("{:.0f} exchanges/s, wanted {:.0f}", count / seconds, target));
  }
}

/// SimGrid allows one engine per process, so each repetition is a child process.
void simgrid(benchmark::State& state, Model kind, Shape shape, std::uint32_t n, int exchanges) {
  const auto routes = shape_routes(shape, n);
  const auto input = matrices(n, exchanges);
  for (auto _ : state) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) {
      return fail(state, "pipe failed");
    }
    const pid_t child = fork();
    if (child == 0) {
      std::vector<double> out;
      NetworkModel model(kind, Algorithm::kDirect, routes);
      ExchangeResult result;
      const std::vector<SimTime> ready(n);
      // Processor time: other programs on the machine do not count.
      const std::clock_t begin = std::clock();
      for (const auto& bytes : input) {
        model.exchange(bytes, ready, result);
        out.push_back(result.duration.seconds());
      }
      out.push_back(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
      const auto size = out.size() * sizeof(double);
      _exit(write(pipe_ends[1], out.data(), size) == static_cast<ssize_t>(size) ? 0 : 1);
    }
    close(pipe_ends[1]);
    std::vector<double> out(input.size() + 1);
    const auto size = out.size() * sizeof(double);
    const bool complete = read(pipe_ends[0], out.data(), size) == static_cast<ssize_t>(size);
    close(pipe_ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (!complete || status != 0) {
      return fail(state, "the child process failed");
    }
    double gap = 0;
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double ratio = out[i] / definition(routes, input[i]);
      if (kind == Model::kCoflow ? std::abs(ratio - 1) > 1e-9 : ratio < 1 - 1e-9) {
        return fail(state, fmt::format("duration / bottleneck = {:.12f}", ratio));
      }
      gap = std::max(gap, ratio - 1);
    }
    state.SetIterationTime(out.back() / static_cast<double>(exchanges));
    state.counters["over bottleneck"] = gap;
    if (n == 64 && g_closed_64 > 0) {
      const double times = out.back() / static_cast<double>(exchanges) / g_closed_64;
      state.counters["x closed form"] = times;
      if (kind == Model::kFlow && times < 1000) {
        return fail(state, fmt::format("flow / closed form = {:.0f}, wanted 1000", times));
      }
    }
  }
  state.counters["exchanges/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

/// Collectives in closed form: n GPUs of one switch, or of servers of 8. Bytes are checked against
/// the formulas of collectives.hpp.
void collectives(benchmark::State& state, Collective what, CollectiveAlgorithm how, Shape shape,
                 std::uint32_t n) {
  constexpr std::uint64_t kBytes = 64U << 20;
  const auto routes = shape_routes(shape, n);
  BottleneckModel model(routes);
  std::vector<std::uint64_t> links(routes.links());
  std::vector<std::uint32_t> members(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    members[i] = i;
  }
  SimTime time;
  std::uint64_t sent = 0;
  for (auto _ : state) {
    time = SimTime();
    sent = 0;
    for (const Phase& phase : collective(what, how, kBytes, members, routes.node)) {
      const BottleneckTime t = model.evaluate(phase, links);
      time += t.duration;
      sent += t.bytes;
    }
  }
  const std::uint64_t once = kBytes * (n - 1);  // Blocks are equal: n is a power of two.
  const std::uint64_t want = what == Collective::kAllReduce ? 2 * once : once;
  if (how != CollectiveAlgorithm::kHierarchical && sent != want) {
    return fail(state, fmt::format("{} bytes sent, the formula says {}", sent, want));
  }
  state.counters["simulated us"] = time.us();
}

/// max-min fair over closed form, on random matrices of several densities: the distribution.
void flow_gap(benchmark::State& state) {
  constexpr int kMatrices = 200;
  constexpr std::uint32_t kGpus = 8;
  const auto routes = test::star(kGpus, 450e9, SimTime()).routes();
  for (auto _ : state) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) {
      return fail(state, "pipe failed");
    }
    const pid_t child = fork();
    if (child == 0) {
      NetworkModel flow(Model::kFlow, Algorithm::kDirect, routes);
      BottleneckModel closed(routes);
      std::vector<std::uint64_t> links(routes.links());
      test::Draw draw(11);
      std::vector<double> ratio;
      ExchangeResult r;
      for (int i = 0; i < kMatrices; ++i) {
        const auto bytes = i == 0
                               ? test::uniform_matrix(kGpus, 1 << 20)
                               : test::random_matrix(draw, kGpus, draw.between(0.2, 1), 1e6, 1e9);
        flow.exchange(bytes, std::vector<SimTime>(kGpus), r);
        ratio.push_back(r.duration.seconds() / closed.evaluate(bytes, links).duration.seconds());
      }
      const auto size = ratio.size() * sizeof(double);
      _exit(write(pipe_ends[1], ratio.data(), size) == static_cast<ssize_t>(size) ? 0 : 1);
    }
    close(pipe_ends[1]);
    std::vector<double> ratio(kMatrices);
    const auto size = ratio.size() * sizeof(double);
    const bool complete = read(pipe_ends[0], ratio.data(), size) == static_cast<ssize_t>(size);
    close(pipe_ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (!complete || status != 0) {
      return fail(state, "the child process failed");
    }
    if (std::abs(ratio[0] - 1) > 1e-9) {
      return fail(state, fmt::format("uniform: flow / bottleneck = {:.12f}", ratio[0]));
    }
    std::sort(ratio.begin(), ratio.end());
    if (ratio.front() < 1 - 1e-9) {
      return fail(state, fmt::format("flow / bottleneck = {:.12f}", ratio.front()));
    }
    state.counters["min"] = ratio.front();
    state.counters["median"] = ratio[kMatrices / 2];
    state.counters["p95"] = ratio[kMatrices * 95 / 100];
    state.counters["max"] = ratio.back();
  }
}

/// Graph and all 1,048,576 routes of 128 servers of 8 GPUs.
void build_thousand(benchmark::State& state) {
  std::uint32_t longest = 0;
  for (auto _ : state) {
    const cluster::RouteTable t = test::two_tier(128, true).routes();
    longest = static_cast<std::uint32_t>(t.links_of(0, 1023).size());
    if (t.endpoints != 1024 || longest != 4) {
      return fail(state, fmt::format("{} GPUs, {} hops", t.endpoints, longest));
    }
  }
}

void add_simgrid(const char* name, Model kind, Shape shape, std::uint32_t n, int exchanges) {
  benchmark::RegisterBenchmark(name, simgrid, kind, shape, n, exchanges)
      ->UseManualTime()
      ->Iterations(1)
      ->Repetitions(3)
      ->ReportAggregatesOnly()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace switchyard::network

int main(int argc, char** argv) {
  using switchyard::network::Model;
  using switchyard::network::Shape;
  namespace net = switchyard::network;
  const auto closed = [](const char* name, Shape shape, std::uint32_t n, double target) {
    benchmark::RegisterBenchmark(name, net::closed_form, shape, n, target)
        ->Repetitions(5)
        ->ReportAggregatesOnly()
        ->Unit(benchmark::kMicrosecond);
  };
  closed("bottleneck/star/8", Shape::kStar, 8, 1e6);
  closed("bottleneck/star/64", Shape::kStar, 64, 1e5);
  closed("bottleneck/8_servers_of_8/64", Shape::kServers, 64, 1e5);
  using switchyard::network::Collective;
  using switchyard::network::CollectiveAlgorithm;
  const auto collective = [](const char* name, Collective what, CollectiveAlgorithm how,
                             Shape shape, std::uint32_t n) {
    benchmark::RegisterBenchmark(name, net::collectives, what, how, shape, n)
        ->Unit(benchmark::kMicrosecond);
  };
  collective("all_reduce/ring/star/8", Collective::kAllReduce, CollectiveAlgorithm::kRing,
             Shape::kStar, 8);
  collective("all_reduce/direct/star/8", Collective::kAllReduce, CollectiveAlgorithm::kDirect,
             Shape::kStar, 8);
  collective("all_reduce/hierarchical/8_servers_of_8/64", Collective::kAllReduce,
             CollectiveAlgorithm::kHierarchical, Shape::kServers, 64);
  collective("all_gather/ring/8_servers_of_8/64", Collective::kAllGather,
             CollectiveAlgorithm::kRing, Shape::kServers, 64);
  collective("broadcast/tree/star/64", Collective::kBroadcast, CollectiveAlgorithm::kTree,
             Shape::kStar, 64);
  benchmark::RegisterBenchmark("build/1024_gpus", net::build_thousand)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("flow over bottleneck/star/8", net::flow_gap)
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond);
  net::add_simgrid("coflow/star/8", Model::kCoflow, Shape::kStar, 8, 20);
  net::add_simgrid("flow/star/8", Model::kFlow, Shape::kStar, 8, 20);
  net::add_simgrid("coflow/8_servers_of_8/64", Model::kCoflow, Shape::kServers, 64, 2);
  net::add_simgrid("flow/8_servers_of_8/64", Model::kFlow, Shape::kServers, 64, 1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return net::g_failed ? 1 : 0;
}
