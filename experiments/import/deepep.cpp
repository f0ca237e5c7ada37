// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/deepep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "engine/base/error.hpp"

namespace switchyard::importers {
namespace {

constexpr std::uint32_t kRanks = 8;
constexpr std::uint64_t kMasked = 10;  // Choices that the script takes away, at most.

struct Printed {
  double value = 0, step = 0;  ///< Half of the last digit printed.
};

/// What one rank printed.
struct RankLine {
  std::size_t line = 0;
  Printed dispatch_GBps, dispatch_us, combine_GBps, combine_us;
};
using Run = std::array<RankLine, kRanks>;

/// Takes text off the front of a line.
class Reader {
 public:
  Reader(std::string_view line, std::string where) : rest_(line), where_(std::move(where)) {}
  [[nodiscard]] bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void need(std::string_view text) {
    if (!take(text)) {
      throw InputError(where_, fmt::format("expected \"{}\"", text),
                       "give what test_low_latency.py prints: … GB/s, avg_t=… us");
    }
  }
  Printed number(const char* what) {
    Printed p;
    const auto [end, ec] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), p.value,
                                           std::chars_format::fixed);
    if (ec != std::errc{} || !std::isfinite(p.value) || !(p.value > 0)) {
      throw InputError(where_, fmt::format("{} is no number above 0", what));
    }
    const std::string_view digits(rest_.data(), static_cast<std::size_t>(end - rest_.data()));
    const std::size_t dot = digits.find('.');
    const std::size_t decimals = dot == std::string_view::npos ? 0 : digits.size() - dot - 1;
    p.step = 0.5 * std::pow(10.0, -static_cast<double>(decimals));
    rest_.remove_prefix(digits.size());
    return p;
  }

 private:
  std::string_view rest_;
  std::string where_;
};

/// Ranks that have printed their line in the last run are those with a line number.
std::vector<Run> parse(std::string_view text, const std::string& where) {
  std::vector<Run> runs;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    // Ranks write to one terminal: something may stand before the bracket.
    const std::size_t at = line.find("] Dispatch bandwidth: ");
    if (at == std::string_view::npos) continue;
    const std::size_t open = line.substr(0, at).rfind("[rank ");
    const std::string place = fmt::format("{}:{}", where, number);
    std::uint32_t rank = 0;
    const char* const first = line.data() + open + 6;
    const char* const last = line.data() + at;
    if (open == std::string_view::npos || std::from_chars(first, last, rank).ptr != last) {
      throw InputError(place, "a bandwidth without its rank");
    }
    if (rank >= kRanks) {
      throw InputError(place,
                       fmt::format("unsupported: rank {}, more than one node of 8 GPUs", rank));
    }
    RankLine r;
    r.line = number;
    Reader reader(line.substr(at + 2), place);
    reader.need("Dispatch bandwidth: ");
    r.dispatch_GBps = reader.number("the rate of dispatch");
    reader.need(" GB/s, avg_t=");
    r.dispatch_us = reader.number("the time of dispatch");
    reader.need(" us | Combine bandwidth: ");
    r.combine_GBps = reader.number("the rate of combine");
    reader.need(" GB/s, avg_t=");
    r.combine_us = reader.number("the time of combine");
    reader.need(" us");
    if (runs.empty() || runs.back()[rank].line > 0) runs.emplace_back();
    runs.back()[rank] = r;
  }
  if (runs.empty()) {
    throw InputError(where, "no line \"[rank …] Dispatch bandwidth: … GB/s, avg_t=… us | Combine\"",
                     "give what tests/test_low_latency.py of DeepEP prints");
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      if (runs[i][rank].line == 0) {
        throw InputError(where, fmt::format("run {}: rank {} of 8 has no line", i + 1, rank),
                         "the processes of one node of 8 GPUs are read");
      }
    }
  }
  return runs;
}

/// Bytes of a line against those of the shape.
void check_bytes(const Printed& rate, const Printed& us, std::uint64_t choices, double copy,
                 const char* what, const std::string& place) {
  const double bytes = rate.value * us.value * 1e3;
  const double blur = 1.01 * bytes * (rate.step / rate.value + us.step / us.value);
  const double most = static_cast<double>(choices) * copy;
  const double least = static_cast<double>(choices - std::min(choices, kMasked)) * copy;
  if (bytes + blur < least || bytes - blur > most) {
    throw InputError(
        place,
        fmt::format("{} of {:.0f} B, but the shape has {} choices of {:.0f} B, of which the script "
                    "masks at most {}",
                    what, bytes, choices, copy, kMasked),
        "name the run's --tokens, --hidden and --top-k");
  }
}

void check_shape(const DeepEpShape& s) {
  const auto need = [](const char* option, bool holds, const char* wanted) {
    if (!holds) throw InputError(option, fmt::format("Violated: {}", wanted));
  };
  need("--hidden", s.hidden > 0 && s.hidden <= 1'000'000 && s.hidden % 128 == 0,
       "a multiple of 128, a scale per 128 values");
  need("--experts", s.experts > 0 && s.experts <= 100'000 && s.experts % kRanks == 0,
       "a multiple of 8, the GPUs of the node share them evenly");
  need("--top-k", s.top_k > 0 && s.top_k <= s.experts, "1 to the number of experts");
  need("--tokens", !s.tokens.empty(), "a number for each run of the text");
  for (const std::uint64_t t : s.tokens)
    need("--tokens", t > 0 && t <= 1'000'000, "1 to 1,000,000");
}

}  // namespace

DeepEpTimes read_deepep(std::string_view text, const std::string& where, const std::string& source,
                        const DeepEpShape& shape) {
  check_shape(shape);
  const std::vector<Run> runs = parse(text, where);
  if (runs.size() != shape.tokens.size()) {
    throw InputError(
        "--tokens",
        fmt::format("{} numbers, but {} has {} runs", shape.tokens.size(), where, runs.size()),
        "one for each, in their order");
  }
  const auto hidden = static_cast<double>(shape.hidden);
  DeepEpTimes out;
  out.csv = fmt::format(
      "# DeepEP tests/test_low_latency.py, 8 ranks, from {}; times of the kernels, mean of the "
      "ranks\nnodes,hidden,tokens,topk,experts,dispatch_us,dispatch_GBps,combine_us,combine_GBps\n",
      source);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    DeepEpRun run;
    run.tokens = shape.tokens[i];
    double slowest_dispatch = 0, slowest_combine = 0;
    for (const RankLine& r : runs[i]) {
      const std::string place = fmt::format("{}:{}", where, r.line);
      const std::uint64_t choices = run.tokens * shape.top_k;
      check_bytes(r.dispatch_GBps, r.dispatch_us, choices, hidden + hidden / 32 + 16, "dispatch",
                  place);
      check_bytes(r.combine_GBps, r.combine_us, choices, 2 * hidden, "combine", place);
      run.dispatch_us += r.dispatch_us.value / kRanks;
      run.combine_us += r.combine_us.value / kRanks;
      run.dispatch_GBps += r.dispatch_GBps.value / kRanks;
      run.combine_GBps += r.combine_GBps.value / kRanks;
      slowest_dispatch = std::max(slowest_dispatch, r.dispatch_us.value);
      slowest_combine = std::max(slowest_combine, r.combine_us.value);
    }
    run.spread = std::max(slowest_dispatch / run.dispatch_us, slowest_combine / run.combine_us);
    out.csv += fmt::format("1,{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g}\n", shape.hidden, run.tokens,
                           shape.top_k, shape.experts, run.dispatch_us, run.dispatch_GBps,
                           run.combine_us, run.combine_GBps);
    out.runs.push_back(run);
  }
  return out;
}

}  // namespace switchyard::importers
