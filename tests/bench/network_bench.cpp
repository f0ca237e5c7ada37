// SPDX-License-Identifier: Apache-2.0
// Exchanges per second: closed form against SimGrid `flow` (optim:Full) and `coflow`, same
// matrices, same run. Every timed result is compared with the definition; a wrong one makes the
// exit code 1. Targets (simulation.md §6), one core: closed form ≥ 1,000,000/s at 8 GPUs, ≥
// 100,000/s at 64.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <ctime>

#include "tests/sim/network_util.hpp"

namespace switchyard::network {
namespace {

bool g_failed = false;

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
      const auto begin = std::chrono::steady_clock::now();
      for (const auto& bytes : input) {
        model.exchange(bytes, ready, result);
        out.push_back(result.duration.seconds());
      }
      out.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
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
  }
  state.counters["exchanges/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
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
