// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/nccl_tests.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard::importers {
namespace {

constexpr std::array<std::string_view, 7> kCollectives{
    "alltoall", "all_reduce", "all_gather", "reduce_scatter", "sendrecv", "broadcast", "reduce"};

/// Bytes on a GPU's link per byte of the buffer.
double factor_of(std::string_view collective, std::uint32_t ranks) {
  const double n = ranks;
  if (collective == "all_reduce") return 2 * (n - 1) / n;
  if (collective == "alltoall" || collective == "all_gather" || collective == "reduce_scatter") {
    return (n - 1) / n;
  }
  return 1;
}

struct Row {
  std::size_t line = 0;
  std::uint64_t size = 0;
  double time_us = 0, algbw = 0, busbw = 0;
  double algbw_step = 0, busbw_step = 0, time_step = 0;  ///< Half of the last digit printed.
};

struct Section {
  std::string collective;  ///< "" = the text does not say.
  std::uint32_t ranks = 0;
  std::size_t line = 0;  ///< Of the header.
  std::vector<Row> rows;
};

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kBlank = " \t\r";
  for (std::size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlank, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlank, end);
  }
  return words;
}

bool number(std::string_view word, double& value, double& step) {
  const auto [end, ec] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (ec != std::errc{} || end != word.data() + word.size() || !std::isfinite(value)) return false;
  const std::size_t dot = word.find('.');
  const std::size_t decimals = dot == std::string_view::npos ? 0 : word.size() - dot - 1;
  step = 0.5 * std::pow(10.0, -static_cast<double>(decimals));
  return true;
}

std::string shown(std::string_view word) {
  std::string out;
  for (const char c : word.substr(0, 24)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

std::vector<Section> parse(std::string_view text, const std::string& where, bool in_place) {
  std::vector<Section> sections;
  std::string name;
  std::uint32_t ranks = 0;
  std::size_t line_number = 0;
  bool open = false, units = false;
  while (!text.empty()) {
    ++line_number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto fail = [&](const std::string& message, const std::string& hint = {}) {
      throw InputError(fmt::format("{}:{}", where, line_number), message, hint);
    };
    std::vector<std::string_view> words = words_of(line);
    if (words.empty()) continue;
    if (words[0].starts_with('#')) {
      if (words[0].size() > 1) {
        words[0].remove_prefix(1);
      } else {
        words.erase(words.begin());
      }
      if (words.empty()) continue;
      if (words.size() >= 4 && words[0] == "Collective" && words[1] == "test" &&
          words[2] == "starting:") {
        name = std::string(words[3]);
        if (name.ends_with("_perf")) name.resize(name.size() - 5);
        ranks = 0;
        open = false;
      } else if (words[0] == "nThread") {
        ranks = 0;
        open = false;
      } else if (words.size() >= 2 && words[0] == "Rank") {
        ++ranks;
      } else if (words[0] == "size" && words.size() >= 3 && words[1] == "count") {
        const auto first = std::find(words.begin(), words.end(), "time");
        constexpr std::array<std::string_view, 3> kRates{"time", "algbw", "busbw"};
        const auto at = static_cast<std::size_t>(first - words.begin());
        bool known = words.size() == at + 8;
        for (std::size_t i = 0; known && i < 3; ++i) {
          known = words[at + i] == kRates[i] && words[at + 4 + i] == kRates[i];
        }
        if (!known) {
          fail("unsupported: a header without time algbw busbw #wrong, out-of-place and in-place",
               "give what nccl-tests print, without extra columns");
        }
        if (ranks == 0) fail("no line \"# Rank …\" above the table: the ranks are not known");
        sections.push_back({name, ranks, line_number, {}});
        name.clear();
        open = true;
        units = false;
      } else if (open && words[0] == "(B)") {
        std::vector<std::string_view> rates(words.begin() + 2, words.end());
        const std::vector<std::string_view> want{"(us)", "(GB/s)", "(GB/s)",
                                                 "(us)", "(GB/s)", "(GB/s)"};
        if (rates != want) fail("unsupported: units other than B, us and GB/s");
        units = true;
      }
      continue;
    }
    if (!open || line.find_first_of("0123456789") == std::string_view::npos ||
        words[0].find_first_not_of("0123456789") != std::string_view::npos) {
      continue;  // What MPI or NCCL print between the tables.
    }
    if (!units) fail("a row before the line with the units");
    // size count type [redop] [root], then two times time algbw busbw wrong.
    if (words.size() < 11) fail(fmt::format("{} columns. Violated: at least 11", words.size()));
    Row row;
    row.line = line_number;
    const auto [stop, ec] =
        std::from_chars(words[0].data(), words[0].data() + words[0].size(), row.size);
    if (ec != std::errc{} || stop != words[0].data() + words[0].size()) {
      fail(fmt::format("size = {}. Violated: a whole number of bytes", shown(words[0])));
    }
    const std::size_t at = words.size() - (in_place ? 4 : 8);
    const bool numbers = number(words[at], row.time_us, row.time_step) &&
                         number(words[at + 1], row.algbw, row.algbw_step) &&
                         number(words[at + 2], row.busbw, row.busbw_step);
    if (!numbers || !(row.time_us > 0) || row.algbw < 0 || row.busbw < 0) {
      fail(fmt::format("time, algbw and busbw are {} {} {}. Violated: numbers, time > 0",
                       shown(words[at]), shown(words[at + 1]), shown(words[at + 2])));
    }
    // "N/A" where nothing was compared; older versions print the largest difference.
    const std::string_view wrong = words[at + 3];
    double difference = 0, step = 0;
    if (wrong != "N/A") {
      if (!number(wrong, difference, step)) {
        fail(fmt::format("\"{}\" is no count of wrong values", shown(wrong)));
      }
      if (wrong.find_first_not_of("0123456789") == std::string_view::npos && difference > 0) {
        fail(fmt::format("the test itself found {} wrong values", shown(wrong)),
             "leave the row out, or measure again");
      }
    }
    sections.back().rows.push_back(row);
  }
  if (sections.empty()) {
    throw InputError(where, "no table of nccl-tests",
                     "give the text that e.g. alltoall_perf prints, with its # lines");
  }
  return sections;
}

const Section& choose(const std::vector<Section>& sections, const std::string& wanted,
                      const std::string& where) {
  std::vector<std::string> names;
  names.reserve(sections.size());
  for (const Section& s : sections) names.push_back(s.collective.empty() ? "?" : s.collective);
  if (!wanted.empty()) {
    if (std::find(kCollectives.begin(), kCollectives.end(), wanted) == kCollectives.end()) {
      throw InputError("--collective", fmt::format("\"{}\" is not known; {}", wanted,
                                                   fmt::join(kCollectives, ", ")));
    }
    const Section* found = nullptr;
    for (const Section& s : sections) {
      // A text that does not say what it measured is what it is said to be; the rates are checked.
      const bool same = s.collective == wanted || (s.collective.empty() && sections.size() == 1);
      if (same && found != nullptr) {
        throw InputError(fmt::format("{}:{}", where, s.line),
                         fmt::format("a second table of {}", wanted), "give one of them alone");
      }
      if (same) found = &s;
    }
    if (found == nullptr) {
      throw InputError("--collective", fmt::format("{} has no table of {}", where, wanted),
                       fmt::format("it has {}", fmt::join(names, ", ")));
    }
    return *found;
  }
  if (sections.size() > 1) {
    throw InputError("--collective",
                     fmt::format("{} has tables of {}", where, fmt::join(names, ", ")),
                     "name one of them");
  }
  if (sections[0].collective.empty()) {
    throw InputError("--collective", fmt::format("{} does not say what was measured", where),
                     "name it, e.g. --collective alltoall");
  }
  if (std::find(kCollectives.begin(), kCollectives.end(), sections[0].collective) ==
      kCollectives.end()) {
    throw InputError(fmt::format("{}:{}", where, sections[0].line),
                     fmt::format("unsupported: {}", shown(sections[0].collective)),
                     fmt::format("known: {}", fmt::join(kCollectives, ", ")));
  }
  return sections[0];
}

}  // namespace

NcclTestsTable read_nccl_tests(std::string_view text, const std::string& where,
                               const std::string& source, const NcclTestsOptions& options) {
  const std::vector<Section> sections = parse(text, where, options.in_place);
  const Section& s = choose(sections, options.collective, where);
  NcclTestsTable out;
  out.collective = s.collective.empty() ? options.collective : s.collective;
  out.ranks = s.ranks;
  if (s.ranks < 2) {
    throw InputError(fmt::format("{}:{}", where, s.line), "one rank puts nothing on a link");
  }
  const double factor = factor_of(out.collective, s.ranks);
  struct Sum {
    double time_us = 0;
    std::uint32_t rows = 0;
  };
  std::map<std::uint64_t, Sum> sums;
  for (const Row& r : s.rows) {
    const std::string place = fmt::format("{}:{}", where, r.line);
    const double algbw = static_cast<double>(r.size) / r.time_us / 1000;
    // The last digits of the time and of the rates are rounded.
    const double blur = 1.01 * r.time_step / r.time_us;
    if (std::abs(r.algbw - algbw) > 1.01 * r.algbw_step + blur * algbw) {
      throw InputError(place, fmt::format("algbw = {} GB/s, but {} B in {} us are {:.4g} GB/s",
                                          r.algbw, r.size, r.time_us, algbw));
    }
    if (std::abs(r.busbw - algbw * factor) > 1.01 * r.busbw_step + blur * algbw * factor) {
      throw InputError(
          place,
          fmt::format("busbw = {} GB/s, but {} of {} ranks has {:.4g} · algbw = {:.4g} GB/s",
                      r.busbw, out.collective, s.ranks, factor, algbw * factor),
          "name the collective that was measured");
    }
    const auto bytes =
        static_cast<std::uint64_t>(std::llround(static_cast<double>(r.size) * factor));
    if (bytes == 0) {
      ++out.left_out;
      continue;
    }
    Sum& sum = sums[bytes];
    if (sum.rows > 0) ++out.repeated;
    sum.time_us += r.time_us;
    ++sum.rows;
  }
  if (sums.size() < 2) {
    throw InputError(fmt::format("{}:{}", where, s.line),
                     fmt::format("{} sizes above 0. Violated: at least 2", sums.size()));
  }
  out.csv = fmt::format(
      "# nccl-tests {}, {} ranks, {}, from {}\n"
      "# bytes = what a GPU puts on its link, {:.6g} of the buffer; GB/s = bytes / time (busbw), "
      "start-up included\nbytes,GB/s\n",
      out.collective, s.ranks, options.in_place ? "in-place" : "out-of-place", source, factor);
  for (const auto& [bytes, sum] : sums) {
    const double rate = static_cast<double>(bytes) / (sum.time_us / sum.rows) / 1000;
    out.csv += fmt::format("{},{:.9g}\n", bytes, rate);
  }
  // What is written is read back first.
  out.points = scenario::parse_bandwidth_table(out.csv, where);
  return out;
}

}  // namespace switchyard::importers
