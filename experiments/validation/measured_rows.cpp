// SPDX-License-Identifier: Apache-2.0
#include "experiments/validation/measured_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"

namespace switchyard::validation {
namespace {

using scenario::OpKind;

/// One CSV line with its header.
class Line {
 public:
  Line(const std::vector<std::string>& columns, std::vector<std::string> fields, std::string where)
      : columns_(columns), fields_(std::move(fields)), where_(std::move(where)) {}
  [[nodiscard]] const std::string& text(std::string_view column) const {
    const auto it = std::find(columns_.begin(), columns_.end(), column);
    if (it == columns_.end()) {
      throw InputError(where_, fmt::format("there is no column {}", column));
    }
    return fields_[static_cast<std::size_t>(it - columns_.begin())];
  }
  [[nodiscard]] bool has(std::string_view column) const {
    return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
  }
  [[nodiscard]] std::uint64_t count(std::string_view column, std::uint64_t low) const {
    const std::string& t = text(column);
    std::uint64_t v = 0;
    const auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
    if (ec != std::errc{} || end != t.data() + t.size() || v < low || v > 1'000'000'000'000) {
      throw InputError(where_, fmt::format("{} = \"{}\"", column, t),
                       fmt::format("a whole number from {} to 1e12", low));
    }
    return v;
  }
  [[nodiscard]] double time(std::string_view column) const {
    const std::string& t = text(column);
    double v = 0;
    const auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
    if (ec != std::errc{} || end != t.data() + t.size() || !(v > 0) || v > 1e12) {
      throw InputError(where_, fmt::format("{} = \"{}\"", column, t),
                       "microseconds, 0 < time <= 1e12");
    }
    return v;
  }
  /// The key: every column that `measured` does not name.
  [[nodiscard]] std::string key(const std::vector<std::string_view>& measured) const {
    std::string out;
    bool first = true;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (std::find(measured.begin(), measured.end(), columns_[i]) != measured.end()) continue;
      out += (first ? "" : ",") + fields_[i];
      first = false;
    }
    return out;
  }
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  const std::vector<std::string>& columns_;
  std::vector<std::string> fields_;
  std::string where_;
};

std::vector<std::string> split(std::string_view line) {
  std::vector<std::string> out;
  while (true) {
    const std::size_t comma = line.find(',');
    out.emplace_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return out;
    line.remove_prefix(comma + 1);
  }
}

/// Block-scaled FP8 runs other kernels than FP8 with one scale per tensor.
std::pair<model::DType, std::string> format_of(const std::string& text, const Line& line) {
  if (text == "fp8_block") return {model::DType::kF8E4M3, "/fp8_block"};
  if (text == "half") return {model::DType::kF16, ""};
  return {model::parse_dtype(text, line.where()), ""};
}

void moe_row(const Line& l, std::vector<MeasuredRow>& out) {
  MeasuredRow r;
  r.group = "MoE layer";
  r.label = l.key({"latency_us"});
  const auto [dtype, suffix] = format_of(l.text("dtype"), l);
  r.dtype = dtype;
  r.library = l.text("engine") + "/" + l.text("kernel_source") + suffix;
  const std::uint64_t experts = l.count("experts", 1), k = l.count("topk", 1);
  const std::uint64_t tokens = l.count("tokens", 1);
  r.shape = {l.count("hidden", 1), l.count("inter", 1), 3};
  const std::vector<std::uint64_t> loads =
      expected_loads(l.text("distribution"), experts, tokens, k, l.where());
  const auto distinct = std::count_if(loads.begin(), loads.end(), [](auto n) { return n > 0; });
  r.point.at = {static_cast<double>(tokens * k), static_cast<double>(distinct),
                static_cast<double>(*std::max_element(loads.begin(), loads.end()))};
  r.point.us = l.time("latency_us");
  out.push_back(std::move(r));
}

void attention_row(const Line& l, bool decode, std::vector<MeasuredRow>& out) {
  MeasuredRow r;
  r.kind = decode ? OpKind::kAttentionDecode : OpKind::kAttentionPrefill;
  r.group = decode ? "attention, decode" : "attention, prefill";
  r.label = l.key({"latency_us"});
  r.library = "attention";
  r.dtype = model::parse_dtype(l.text("kv_dtype"), l.where());
  if (model::parse_dtype(l.text("attn_dtype"), l.where()) != model::DType::kBf16) {
    throw InputError(l.where(), "attention in another format than bfloat16 is unsupported");
  }
  r.shape = {l.count("heads", 1), l.count("kv_heads", 1), l.count("head_dim", 1),
             l.count("window", 0)};
  const auto batch = static_cast<double>(l.count("batch", 1));
  const auto isl = static_cast<double>(l.count("isl", 1));
  const auto step = static_cast<double>(l.count("step", 0));
  if (decode) {
    r.point.at = {batch, isl + step, 0};
  } else {
    r.point.at = {batch, isl, step};
  }
  r.point.us = l.time("latency_us");
  out.push_back(std::move(r));
}

void nccl_row(const Line& l, const std::string& version, std::vector<MeasuredRow>& out) {
  MeasuredRow r;
  r.kind = OpKind::kCollective;
  const std::uint64_t bytes = l.count("bytes", 1);
  r.group = bytes < (1U << 20U) ? "NCCL, below 1 MiB" : "NCCL, 1 MiB and more";
  r.label = l.key({"latency_us"});
  r.library = "nccl" + version;
  r.variant = l.text("op");
  r.dtype = model::DType::kBf16;  // Bytes are what counts: one table for all formats.
  r.shape = {l.count("num_gpus", 2)};
  r.point.at[0] = static_cast<double>(bytes);
  r.point.us = l.time("latency_us");
  out.push_back(std::move(r));
}

void custom_row(const Line& l, std::vector<MeasuredRow>& out) {
  MeasuredRow r;
  r.kind = OpKind::kCollective;
  r.group = "all-reduce of engines";
  r.label = l.key({"latency_us"});
  r.library = l.text("backend");
  r.variant = "all_reduce";
  r.dtype = model::DType::kBf16;
  const model::DType dtype = format_of(l.text("dtype"), l).first;
  r.shape = {l.count("num_gpus", 2)};
  r.point.at[0] = static_cast<double>(model::dtype_bytes(dtype, l.count("message_elements", 1)));
  r.point.us = l.time("latency_us");
  out.push_back(std::move(r));
}

void grouped_gemm_row(const Line& l, std::vector<MeasuredRow>& out) {
  MeasuredRow r;
  r.kind = OpKind::kExperts;
  r.group = "grouped GEMM";
  r.label = l.key({"up_us", "down_us", "up_rows", "down_rows"});
  r.library = l.text("kernel_source");
  for (const std::string_view variant : {scenario::kMasked, scenario::kContiguous}) {
    const std::string ending = fmt::format("_{}", variant);
    if (r.library.size() > ending.size() && r.library.ends_with(ending)) {
      r.library.resize(r.library.size() - ending.size());
      r.variant = variant;
    }
  }
  r.dtype = format_of(l.text("dtype"), l).first;
  r.shape = {l.count("hidden", 1), l.count("inter", 1), 3};
  const auto experts = static_cast<double>(l.count("local_experts", 1));
  const auto tokens = static_cast<double>(l.count("tokens_per_expert", 1));
  r.point.at = {experts * tokens, experts, tokens};
  if (l.has("up_rows") || l.has("down_rows")) {
    r.point.at = grouped_rows(experts, tokens, static_cast<double>(l.count("up_rows", 1)),
                              static_cast<double>(l.count("down_rows", 1)));
  }
  r.point.us = l.time("up_us") + l.time("down_us");
  out.push_back(std::move(r));
}

void gemm_row(const Line& l, std::vector<MeasuredRow>& out) {
  MeasuredRow r;
  r.kind = OpKind::kGemm;
  r.group = "GEMM";
  r.label = l.key({"latency_us"});
  r.library = l.text("kernel_source");
  r.dtype = format_of(l.text("dtype"), l).first;
  r.shape = {l.count("n", 1), l.count("k", 1)};
  r.point.at[0] = static_cast<double>(l.count("m", 1));
  r.point.us = l.time("latency_us");
  out.push_back(std::move(r));
}

void mla_row(const Line& l, std::vector<MeasuredRow>& out) {
  MeasuredRow r;
  r.kind = OpKind::kMlaDecode;
  r.group = "MLA, decode";
  r.label = l.key({"latency_us"});
  r.library = l.text("kernel_source");
  r.dtype = format_of(l.text("kv_dtype"), l).first;
  r.shape = {l.count("heads", 1), l.count("rank", 1), l.count("rope", 1)};
  r.point.at[0] = static_cast<double>(l.count("batch", 1));
  r.point.at[1] = static_cast<double>(l.count("positions", 1));
  r.point.us = l.time("latency_us");
  out.push_back(std::move(r));
}

void host_row(const Line& l, std::vector<MeasuredRow>& out) {
  MeasuredRow r;
  r.kind = OpKind::kHost;
  r.group = "host";
  r.label = l.key({"latency_us"});
  r.library = l.text("library");
  const std::string& launch = l.text("launch");
  if (launch != "eager" && launch != "graph" && launch != "fused" && launch != "any") {
    throw InputError(l.where(), fmt::format("launch = \"{}\"", launch),
                     "eager, graph, fused or any");
  }
  r.variant = launch == "any" ? "" : launch;
  r.point.at[0] = static_cast<double>(l.count("sequences", 1));
  r.point.us = l.time("latency_us");
  out.push_back(std::move(r));
}

constexpr std::uint64_t kGpusOfANode = 8;

void deepep_rows(const Line& l, bool low_latency, std::vector<MeasuredRow>& out) {
  static const std::vector<std::string_view> kMeasured{"dispatch_us",        "dispatch_GBps",
                                                       "combine_us",         "combine_GBps",
                                                       "dispatch_notify_us", "combine_notify_us"};
  for (const bool dispatch : {true, false}) {
    MeasuredRow r;
    r.kind = dispatch ? OpKind::kDispatch : OpKind::kCombine;
    r.group = low_latency ? "DeepEP, low latency" : "DeepEP, normal";
    r.label = l.key(kMeasured) + (dispatch ? ",dispatch" : ",combine");
    r.library = "deepep";
    r.variant = low_latency ? "low_latency" : "normal";
    r.dtype = model::DType::kBf16;
    if (l.count("nodes", 1) != 1) {
      throw InputError(l.where(), "nodes above 1 are unsupported", "leave these rows out");
    }
    const std::uint64_t experts = l.count("experts", kGpusOfANode), k = l.count("topk", 1);
    if (experts % kGpusOfANode != 0 || k > experts) {
      throw InputError(l.where(), fmt::format("{} experts, top-{}", experts, k),
                       "8 GPUs share the experts evenly");
    }
    const std::uint64_t sms =
        low_latency ? 0 : l.count(dispatch ? "dispatch_sms" : "combine_sms", 1);
    r.shape = {l.count("hidden", 1), k, experts, kGpusOfANode, sms};
    r.point.at[0] = static_cast<double>(l.count("tokens", 1));
    r.point.us = l.time(dispatch ? "dispatch_us" : "combine_us");
    r.hash = fnv1a(l.key(kMeasured));
    out.push_back(std::move(r));
  }
}

/// Reads one file; `kind` is its name without device and "_us.csv". false: no known kind.
bool read_file_rows(const std::filesystem::path& path, const std::string& kind,
                    std::vector<MeasuredRow>& out) {
  const bool nccl = kind.starts_with("nccl_");
  const std::vector<std::string_view> kinds{
      "moe_layer",    "grouped_gemm",     "gemm",      "mla_decode",    "attn_decode",
      "attn_prefill", "custom_allreduce", "deepep_ll", "deepep_normal", "host"};
  if (!nccl && std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) return false;
  const std::string content = read_file(path);
  std::string_view text = content;
  std::vector<std::string> columns;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> fields = split(line);
    if (columns.empty()) {
      columns = std::move(fields);
      continue;
    }
    const std::string where = fmt::format("{}:{}", path.string(), number);
    if (fields.size() != columns.size()) {
      throw InputError(where,
                       fmt::format("{} fields, the header has {}", fields.size(), columns.size()));
    }
    const Line l(columns, std::move(fields), where);
    const std::size_t first = out.size();
    if (kind == "moe_layer") {
      moe_row(l, out);
    } else if (kind == "grouped_gemm") {
      grouped_gemm_row(l, out);
    } else if (kind == "gemm") {
      gemm_row(l, out);
    } else if (kind == "mla_decode") {
      mla_row(l, out);
    } else if (kind == "attn_decode" || kind == "attn_prefill") {
      attention_row(l, kind == "attn_decode", out);
    } else if (nccl) {
      nccl_row(l, kind.substr(5), out);
    } else if (kind == "custom_allreduce") {
      custom_row(l, out);
    } else if (kind == "host") {
      host_row(l, out);
    } else {
      deepep_rows(l, kind == "deepep_ll", out);
    }
    for (std::size_t i = first; i < out.size(); ++i) {
      if (out[i].kind < OpKind::kDispatch || kind == "host") out[i].hash = fnv1a(out[i].label);
    }
  }
  return true;
}

}  // namespace

std::array<double, 3> grouped_rows(double experts, double tokens, double up, double down) {
  const double rows = std::round((2 * up + down) / 3), distinct = std::min(experts, rows);
  if (experts <= 1) return {rows, 1, rows};
  const double largest = std::floor(tokens * (0.7 + 0.6 * experts / (experts + 1)));
  return {rows, distinct, std::max(std::ceil(rows / distinct), std::min(largest, rows))};
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return h;
}

std::vector<std::uint64_t> expected_loads(const std::string& distribution, std::uint64_t experts,
                                          std::uint64_t tokens, std::uint64_t top_k,
                                          const std::string& where) {
  if (top_k > experts) {
    throw InputError(where, fmt::format("top-{} of {} experts", top_k, experts));
  }
  const std::uint64_t n = tokens * top_k;
  std::vector<std::uint64_t> loads(experts, n / experts);
  if (distribution == "balanced") {
    for (std::uint64_t e = 0; e < n % experts; ++e) ++loads[e];
    return loads;
  }
  constexpr std::string_view kPrefix = "power_law_";
  double a = 0;
  const char* const begin = distribution.data() + std::min(distribution.size(), kPrefix.size());
  const char* const end = distribution.data() + distribution.size();
  const auto [stop, ec] = std::from_chars(begin, end, a);
  if (!distribution.starts_with(kPrefix) || ec != std::errc{} || stop != end || !(a > 1) ||
      a > 10) {
    throw InputError(where, fmt::format("distribution = \"{}\"", distribution),
                     "balanced, or power_law_A with 1 < A <= 10");
  }
  const bool few = n <= experts;
  const double low = few ? 0.01 : 1,
               high = few ? 2 : std::max(0.8 * static_cast<double>(tokens), 1.0001);
  const double x = std::pow(low, 1 - a), y = std::pow(high, 1 - a);
  std::vector<double> raw;
  for (std::uint64_t e = 0; e < experts; ++e) {
    const double u = (static_cast<double>(e) + 0.5) / static_cast<double>(experts);
    raw.push_back(std::pow((y - x) * u + x, 1 / (1 - a)));
  }
  std::reverse(raw.begin(), raw.end());  // The heaviest first.
  const double sum = std::accumulate(raw.begin(), raw.end(), 0.0);
  std::uint64_t total = 0;
  for (std::uint64_t e = 0; e < experts; ++e) {
    loads[e] = static_cast<std::uint64_t>(std::llround(raw[e] / sum * static_cast<double>(n)));
    loads[e] = std::min(loads[e], tokens);
    total += loads[e];
  }
  // Too few: one more each, from the heaviest on. Too many: one less each, from the lightest on.
  for (std::uint64_t i = 0; total < n; ++i) {
    if (loads[i % experts] < tokens) {
      ++loads[i % experts];
      ++total;
    }
  }
  for (std::uint64_t i = 0; total > n; ++i) {
    std::uint64_t& load = loads[experts - 1 - i % experts];
    if (load > 0) {
      --load;
      --total;
    }
  }
  return loads;
}

MeasuredRows read_measured(const std::filesystem::path& folder, const std::string& device) {
  std::error_code ec;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
    if (entry.path().extension() == ".csv") files.push_back(entry.path());
  }
  if (ec) throw InputError(folder.string(), "cannot read this folder", ec.message());
  std::sort(files.begin(), files.end());
  MeasuredRows out;
  constexpr std::string_view kEnd = "_us.csv";
  for (const auto& file : files) {
    const std::string name = file.filename().string();
    const bool ours = name.starts_with(device + "_") && name.ends_with(kEnd) &&
                      name.size() > device.size() + 1 + kEnd.size();
    if (!ours ||
        !read_file_rows(
            file, name.substr(device.size() + 1, name.size() - device.size() - 1 - kEnd.size()),
            out.rows)) {
      out.ignored.push_back(name);
    }
  }
  if (out.rows.empty()) {
    throw InputError(folder.string(),
                     fmt::format("there is no measured time of {} in this folder", device),
                     fmt::format("files are named {}_moe_layer_us.csv and so on", device));
  }
  return out;
}

}  // namespace switchyard::validation
