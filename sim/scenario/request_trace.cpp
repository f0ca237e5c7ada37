// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/request_trace.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.hpp"
#include "engine/model/json_input.hpp"

namespace switchyard::scenario {
namespace {

constexpr std::size_t kNoColumn = SIZE_MAX;
constexpr std::uint64_t kMostTokens = 10'000'000;
constexpr std::size_t kMostRequests = 20'000'000;
constexpr double kLongestSeconds = 4.0e6;  // 46 days

struct Fields {
  std::string_view time, prompt, output;
};

/// Names of the three columns; the file is CSV or JSONL.
Fields fields_of(RequestFormat f) {
  switch (f) {
    case RequestFormat::kAzure:
      return {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
    case RequestFormat::kBurstGpt:
      return {"Timestamp", "Request tokens", "Response tokens"};
    case RequestFormat::kMooncake:
      return {"timestamp", "input_length", "output_length"};
    case RequestFormat::kLlmServingSim:
      return {"arrival_time_ns", "input_toks", "output_toks"};
    case RequestFormat::kCsv:
      break;
  }
  return {"arrival_ns", "prompt_tokens", "output_tokens"};
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name, RequestFormat format)
      : text_(text), name_(name), format_(format), fields_(fields_of(format)) {}

  RequestTrace read() {
    const bool lines =
        format_ == RequestFormat::kMooncake || format_ == RequestFormat::kLlmServingSim;
    bool header = lines;
    while (!text_.empty()) {
      ++number_;
      const std::size_t end = std::min(text_.find('\n'), text_.size());
      std::string_view line = text_.substr(0, end);
      text_.remove_prefix(std::min(end + 1, text_.size()));
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.empty() || (line.front() == '#' && !lines)) continue;
      if (!header) {
        columns(line);
        header = true;
      } else if (lines) {
        json(line);
      } else {
        csv(line);
      }
    }
    if (out_.requests.empty()) {
      throw InputError(
          name_, "no request in the file",
          fmt::format("expected {}, {} and {}", fields_.time, fields_.prompt, fields_.output));
    }
    if (out_.hash_ids) {
      begins_.push_back(out_.hashes.size());
      out_.hash_begin = std::move(begins_);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& message, const std::string& hint = {}) const {
    throw InputError(fmt::format("{}:{}", name_, number_), message, hint);
  }

  static std::vector<std::string_view> split(std::string_view line) {
    std::vector<std::string_view> out;
    for (;;) {
      const std::size_t comma = line.find(',');
      out.push_back(line.substr(0, comma));
      if (comma == std::string_view::npos) return out;
      line.remove_prefix(comma + 1);
    }
  }

  void columns(std::string_view line) {
    if (line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    const std::vector<std::string_view> names = split(line);
    const std::array<std::string_view, 3> wanted{fields_.time, fields_.prompt, fields_.output};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      std::size_t found = names.size();
      for (std::size_t c = 0; c < names.size(); ++c) {
        if (names[c] == wanted[i] || (i == 0 && names[c] == std::string(wanted[i]) + "(s)")) {
          found = c;
        }
      }
      if (found == names.size()) {
        fail(
            fmt::format("there is no column \"{}\"", wanted[i]),
            fmt::format("the first line must name {}, {} and {}", wanted[0], wanted[1], wanted[2]));
      }
      column_[i] = found;
    }
    for (std::size_t c = 0; c < names.size() && format_ == RequestFormat::kCsv; ++c) {
      if (names[c] == "hash_ids") hash_column_ = c;
    }
    out_.hash_ids = hash_column_ != kNoColumn;
    width_ = names.size();
  }

  void csv(std::string_view line) {
    const std::vector<std::string_view> values = split(line);
    if (values.size() != width_) {
      fail(fmt::format("{} fields; the first line names {}", values.size(), width_));
    }
    const std::string_view time = values[column_[0]];
    const std::uint64_t prompt = tokens(values[column_[1]], fields_.prompt);
    const std::uint64_t output = tokens(values[column_[2]], fields_.output);
    row_hashes_.clear();
    if (hash_column_ != kNoColumn) hashes(values[hash_column_]);
    if (format_ == RequestFormat::kAzure) {
      add(wall_clock(time), prompt, output);
    } else if (format_ == RequestFormat::kBurstGpt) {
      double s = 0;
      const auto r = std::from_chars(time.data(), time.data() + time.size(), s);
      if (r.ec != std::errc{} || r.ptr != time.data() + time.size()) {
        fail(fmt::format("{} = \"{}\" is no number of seconds", fields_.time, time));
      }
      add(seconds(s), prompt, output);
    } else {
      std::int64_t ns = 0;
      const auto r = std::from_chars(time.data(), time.data() + time.size(), ns);
      if (r.ec != std::errc{} || r.ptr != time.data() + time.size()) {
        fail(fmt::format("{} = \"{}\" is no whole number", fields_.time, time));
      }
      add(nanoseconds(ns), prompt, output);
    }
  }

  void json(std::string_view line) {
    const nlohmann::json row = model::parse_json_line(line, fmt::format("{}:{}", name_, number_));
    const auto whole = [&](std::string_view key) -> std::int64_t {
      if (!row.is_object() || !row.contains(key)) fail(fmt::format("there is no \"{}\"", key));
      const nlohmann::json& v = row[std::string(key)];
      if (!v.is_number_integer() ||
          (v.is_number_unsigned() && v.get<std::uint64_t>() > INT64_MAX)) {
        fail(fmt::format("{} = {} is no whole number", key, v.dump()));
      }
      return v.get<std::int64_t>();
    };
    const std::int64_t time = whole(fields_.time);
    const std::int64_t prompt = whole(fields_.prompt), output = whole(fields_.output);
    row_hashes_.clear();
    if (format_ == RequestFormat::kMooncake && row.contains("hash_ids")) {
      out_.hash_ids = true;
      const nlohmann::json& ids = row["hash_ids"];
      // A row with others has none: only prefix caching asks for them, and refuses that.
      const bool all =
          ids.is_array() && std::all_of(ids.begin(), ids.end(), [](const nlohmann::json& id) {
            return id.is_number_unsigned();
          });
      for (std::size_t i = 0; all && i < ids.size(); ++i) {
        row_hashes_.push_back(ids[i].get<std::uint64_t>());
      }
    }
    if (prompt < 0 || output < 0) {
      fail(fmt::format("{} = {}. Violated: >= 0", prompt < 0 ? fields_.prompt : fields_.output,
                       std::min(prompt, output)));
    }
    add(format_ == RequestFormat::kMooncake ? milliseconds(time) : nanoseconds(time),
        static_cast<std::uint64_t>(prompt), static_cast<std::uint64_t>(output));
  }

  /// "12 7 9", or nothing; anything else counts as nothing.
  void hashes(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(' '), text.size());
      std::uint64_t v = 0;
      const auto r = std::from_chars(text.data(), text.data() + end, v);
      if (r.ec != std::errc{} || r.ptr != text.data() + end) return row_hashes_.clear();
      row_hashes_.push_back(v);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  std::uint64_t tokens(std::string_view text, std::string_view column) const {
    std::uint64_t v = 0;
    const auto r = std::from_chars(text.data(), text.data() + text.size(), v);
    if (r.ec != std::errc{} || r.ptr != text.data() + text.size()) {
      fail(fmt::format("{} = \"{}\" is no whole number >= 0", column, text));
    }
    return v;
  }

  SimTime seconds(double s) const {
    if (!std::isfinite(s) || s < 0 || s > kLongestSeconds) {
      fail(fmt::format("{} = {}. Violated: 0 <= arrival <= 46 days", fields_.time, s));
    }
    return SimTime::from_seconds(s);
  }
  SimTime nanoseconds(std::int64_t ns) const {
    if (ns < 0 || ns > static_cast<std::int64_t>(kLongestSeconds * 1e9)) {
      fail(fmt::format("{} = {}. Violated: 0 <= arrival <= 46 days", fields_.time, ns));
    }
    return SimTime::from_ps(ns * 1000);
  }
  SimTime milliseconds(std::int64_t ms) const {
    if (ms < 0 || ms > static_cast<std::int64_t>(kLongestSeconds * 1e3)) {
      fail(fmt::format("{} = {}. Violated: 0 <= arrival <= 46 days", fields_.time, ms));
    }
    return SimTime::from_ps(ms * 1'000'000'000);
  }

  /// "2023-11-16 18:17:03.9799600", less the first row's.
  SimTime wall_clock(std::string_view text) {
    const auto digits = [&](std::size_t from, std::size_t count) -> std::int64_t {
      std::int64_t v = 0;
      for (std::size_t i = from; i < from + count; ++i) {
        if (i >= text.size() || text[i] < '0' || text[i] > '9') {
          fail(fmt::format("{} = \"{}\" is no YYYY-MM-DD hh:mm:ss.fffffff", fields_.time, text));
        }
        v = v * 10 + (text[i] - '0');
      }
      return v;
    };
    std::int64_t year = digits(0, 4);
    const std::int64_t month = digits(5, 2), day = digits(8, 2), hour = digits(11, 2),
                       minute = digits(14, 2), second = digits(17, 2);
    std::int64_t fraction = 0, scale = 1'000'000'000'000;
    if (text.size() > 20 && text.size() <= 32 && text[19] == '.') {
      for (std::size_t i = 20; i < text.size(); ++i) {
        scale /= 10;
        fraction += digits(i, 1) * scale;
      }
    } else if (text.size() != 19) {
      fail(fmt::format("{} = \"{}\" is no YYYY-MM-DD hh:mm:ss.fffffff", fields_.time, text));
    }
    if (month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) {
      fail(fmt::format("{} = \"{}\" is no time of day", fields_.time, text));
    }
    // Days since 0000-03-01 (Howard Hinnant's days_from_civil).
    year -= month <= 2 ? 1 : 0;
    const std::int64_t in_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    const std::int64_t days = year * 365 + year / 4 - year / 100 + year / 400 + in_year;
    const std::int64_t s = ((days * 24 + hour) * 60 + minute) * 60 + second;
    if (first_second_ < 0) {
      first_second_ = s;
      first_fraction_ = fraction;
    }
    const std::int64_t since = s - first_second_;
    if (since > static_cast<std::int64_t>(kLongestSeconds)) {
      fail(fmt::format("{} = \"{}\" is more than 46 days after the first", fields_.time, text));
    }
    if (since < 0 || (since == 0 && fraction < first_fraction_)) unsorted();
    return SimTime::from_ps(since * 1'000'000'000'000 + fraction - first_fraction_);
  }

  [[noreturn]] void unsorted() const {
    fail(fmt::format("{} goes back. Violated: arrivals ascend", fields_.time), "sort the file");
  }

  void add(SimTime arrival, std::uint64_t prompt, std::uint64_t output) {
    if (!out_.requests.empty() && arrival < out_.requests.back().arrival) unsorted();
    if (format_ == RequestFormat::kBurstGpt && output == 0) {
      ++out_.left_out;
      return;
    }
    if (prompt == 0 || output == 0 || prompt > kMostTokens || output > kMostTokens) {
      fail(fmt::format("{} and {} tokens. Violated: 1 <= tokens <= {}", prompt, output,
                       kMostTokens));
    }
    if (out_.requests.size() == kMostRequests) {
      fail(fmt::format("more than {} requests", kMostRequests));
    }
    out_.requests.push_back(
        {arrival, static_cast<std::uint32_t>(prompt), static_cast<std::uint32_t>(output)});
    out_.lines.push_back(static_cast<std::uint32_t>(number_));
    begins_.push_back(out_.hashes.size());
    out_.hashes.insert(out_.hashes.end(), row_hashes_.begin(), row_hashes_.end());
  }

  std::string_view text_;
  const std::string& name_;
  RequestFormat format_;
  Fields fields_;
  std::size_t number_ = 0, width_ = 0;
  std::array<std::size_t, 3> column_{};
  std::size_t hash_column_ = kNoColumn;
  std::vector<std::uint64_t> row_hashes_;
  std::vector<std::size_t> begins_;
  std::int64_t first_second_ = -1, first_fraction_ = 0;
  RequestTrace out_;
};

}  // namespace

RequestTrace parse_request_trace(std::string_view text, const std::string& name,
                                 RequestFormat format) {
  return Reader(text, name, format).read();
}

std::string request_trace_csv(const RequestTrace& trace, bool with_hashes) {
  const bool hashes = with_hashes && trace.hash_ids;
  std::string out = "arrival_ns,prompt_tokens,output_tokens";
  out += hashes ? ",hash_ids\n" : "\n";
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const TracedRequest& r = trace.requests[i];
    out += fmt::format("{},{},{}", r.arrival.ps() / 1000, r.prompt_tokens, r.output_tokens);
    if (hashes) out += fmt::format(",{}", fmt::join(trace.hashes_of(i), " "));
    out += '\n';
  }
  return out;
}

}  // namespace switchyard::scenario
