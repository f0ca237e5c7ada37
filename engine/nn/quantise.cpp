// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/quantise.hpp"

#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "engine/backend/packed_weights.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/model/dtype.hpp"

namespace switchyard {
namespace {

constexpr std::array<std::pair<const char*, QuantFormat>, 6> kFormats{
    {{"none", QuantFormat::kNone},
     {"bf16", QuantFormat::kBf16},
     {"fp16", QuantFormat::kFp16},
     {"fp8", QuantFormat::kFp8},
     {"int8", QuantFormat::kInt8},
     {"int4", QuantFormat::kInt4}}};

QuantFormat parse_format(std::string_view text, const std::string& where, const std::string& key) {
  std::vector<std::string> names;
  for (const auto& [name, format] : kFormats) {
    if (text == name) {
      return format;
    }
    names.emplace_back(name);
  }
  throw InputError(where, fmt::format("{} = {}: unknown format", key, text),
                   suggest_name(std::string(text), names));
}

double parse_number(std::string_view text, const std::string& where, const std::string& key) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    throw InputError(where, fmt::format("{} = {} is not a number", key, text));
  }
  return value;
}

float largest(const float* row, std::size_t n) {
  float top = 0;
  for (std::size_t i = 0; i < n; ++i) {
    top = std::max(top, std::abs(row[i]));
  }
  return top;
}

/// Rounds the columns [first, last) of a row that are not kept.
void round_group(float* row, std::size_t first, std::size_t last, const std::vector<bool>& kept) {
  float low = 0;
  float high = 0;
  for (std::size_t i = first; i < last; ++i) {
    if (kept.empty() || !kept[i]) {
      low = std::min(low, row[i]);
      high = std::max(high, row[i]);
    }
  }
  const float scale = round_fp16((high - low) / 15);
  const float zero = scale > 0 ? std::clamp(std::nearbyint(-low / scale), 0.0F, 15.0F) : 0;
  for (std::size_t i = first; i < last; ++i) {
    if (!kept.empty() && kept[i]) {
      row[i] = round_fp16(row[i]);
    } else if (!std::isnan(row[i])) {
      row[i] = scale > 0
                   ? scale * (std::clamp(std::nearbyint(row[i] / scale) + zero, 0.0F, 15.0F) - zero)
                   : 0;
    }
  }
}

/// The ceil(keep * cols) columns of the largest norm.
std::vector<bool> salient_columns(std::span<const float> values, std::size_t rows, std::size_t cols,
                                  double keep) {
  const auto count = static_cast<std::size_t>(std::ceil(keep * static_cast<double>(cols)));
  if (count == 0) {
    return {};
  }
  std::vector<double> norm(cols);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      const double w = values[r * cols + c];
      norm[c] += w * w;
    }
  }
  std::vector<std::size_t> order(cols);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return norm[a] > norm[b]; });
  std::vector<bool> out(cols);
  for (std::size_t i = 0; i < std::min(count, cols); ++i) {
    out[order[i]] = true;
  }
  return out;
}

/// Float32 values as `type`, which holds them exactly.
std::shared_ptr<const std::vector<std::byte>> stored_as(WeightType type,
                                                        std::span<const float> values) {
  auto bytes = std::make_shared<std::vector<std::byte>>(values.size() * weight_bytes(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == WeightType::kF32) {
      std::memcpy(bytes->data() + 4 * i, &values[i], 4);
    } else {
      const std::uint16_t half = type == WeightType::kBf16
                                     ? model::float_to_bf16(values[i])
                                     : static_cast<std::uint16_t>(_cvtss_sh(values[i], 0));
      std::memcpy(bytes->data() + 2 * i, &half, 2);
    }
  }
  return bytes;
}

class Quantiser {
 public:
  Quantiser(ModelWeights& weights, const QuantiseOptions& options)
      : weights_(weights), options_(options) {}

  void round(const std::string& name, WeightView& view, QuantisedPart& part, double keep) {
    std::vector<float> before(view.rows * view.cols);
    widen_rows(view, 0, view.rows, before.data());
    std::vector<float> after = before;
    const bool int4 = part.format == QuantFormat::kInt4;
    const auto kept = int4 && keep > 0 ? salient_columns(before, view.rows, view.cols, keep)
                                       : std::vector<bool>();
    QuantisedPart::Tensor& did = part.by_tensor[name];
    did.bits = round_matrix(after, view.rows, view.cols, part.format, options_.group, kept);
    did.values = before.size();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double w = before[i];
      const double d = static_cast<double>(after[i]) - w;
      did.squared_weight += w * w;
      did.squared_error += d * d;
    }
    const WeightType type = part.format == QuantFormat::kBf16   ? WeightType::kBf16
                            : part.format == QuantFormat::kFp16 ? WeightType::kF16
                                                                : WeightType::kF32;
    if (type == view.type && !is_packed(view) && after == before) {
      return;  // it already is what it would become
    }
    auto bytes = stored_as(type, after);
    view = {bytes->data(), type, view.rows, view.cols};
    weights_.owned.push_back(std::move(bytes));
  }

 private:
  ModelWeights& weights_;
  const QuantiseOptions& options_;
};

}  // namespace

const char* name_of(QuantFormat format) {
  for (const auto& [name, f] : kFormats) {
    if (f == format) {
      return name;
    }
  }
  return "none";
}

QuantiseOptions parse_quantise(std::string_view text, const std::string& where) {
  static const std::vector<std::string> kKeys{"router", "experts", "backbone", "group", "keep"};
  QuantiseOptions out;
  std::set<std::string> seen;
  bool group = false;
  bool keep = false;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, comma - at);
    at = comma + 1;
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw InputError(where, fmt::format("\"{}\" is no key=value", item),
                       "e.g. router=int8,experts=int4,backbone=bf16");
    }
    const std::string key(item.substr(0, equals));
    const std::string_view value = item.substr(equals + 1);
    if (!seen.insert(key).second) {
      throw InputError(where, fmt::format("\"{}\" stands twice", key));
    }
    if (key == "router") {
      out.router = parse_format(value, where, key);
    } else if (key == "experts") {
      out.experts = parse_format(value, where, key);
    } else if (key == "backbone") {
      out.backbone = parse_format(value, where, key);
    } else if (key == "group") {
      const double n = parse_number(value, where, key);
      if (!(n >= 8 && n <= 65536) || n != std::floor(n)) {
        throw InputError(where,
                         fmt::format("group = {}. Violated: 8 <= group <= 65536, whole", value));
      }
      out.group = static_cast<std::size_t>(n);
      group = true;
    } else if (key == "keep") {
      out.keep = parse_number(value, where, key);
      if (!(out.keep >= 0 && out.keep < 1)) {
        throw InputError(where, fmt::format("keep = {}. Violated: 0 <= keep < 1", value));
      }
      keep = true;
    } else {
      throw InputError(where, fmt::format("unknown key \"{}\"", key), suggest_name(key, kKeys));
    }
  }
  if (out.backbone != QuantFormat::kNone && out.backbone != QuantFormat::kBf16 &&
      out.backbone != QuantFormat::kFp16) {
    throw InputError(where, fmt::format("unsupported: backbone = {}", name_of(out.backbone)),
                     "the backbone can be bf16 or fp16");
  }
  if (keep && out.experts != QuantFormat::kInt4) {
    throw InputError(where, "keep has an effect on experts=int4 only");
  }
  if (group && out.experts != QuantFormat::kInt4 && out.router != QuantFormat::kInt4) {
    throw InputError(where, "group has an effect on int4 only");
  }
  return out;
}

std::string to_text(const QuantiseOptions& o) {
  std::string out;
  const auto add = [&](const char* key, const std::string& value) {
    out += fmt::format("{}{}={}", out.empty() ? "" : ",", key, value);
  };
  for (const auto& [key, format] : {std::pair{"router", o.router}, std::pair{"experts", o.experts},
                                    std::pair{"backbone", o.backbone}}) {
    if (format != QuantFormat::kNone) {
      add(key, name_of(format));
    }
  }
  if (o.router == QuantFormat::kInt4 || o.experts == QuantFormat::kInt4) {
    add("group", fmt::to_string(o.group));
  }
  if (o.experts == QuantFormat::kInt4) {
    add("keep", fmt::format("{}", o.keep));
  }
  return out;
}

double QuantisedPart::relative_error() const {
  return squared_weight > 0 ? std::sqrt(squared_error / squared_weight) : 0;
}

double QuantisedPart::bits_per_value() const {
  return values > 0 ? bits / static_cast<double>(values) : 0;
}

float round_fp16(float value) { return _cvtsh_ss(_cvtss_sh(value, 0)); }

float round_e4m3(float value) {
  const float size = std::abs(value);
  if (!(size > 0)) {
    return value;  // zero or NaN
  }
  if (size >= 448) {
    return std::copysign(448.0F, value);
  }
  // Steps of 2^-9 below the smallest normal number 2^-6, else of 2^(e-3).
  const int exponent = std::max(std::ilogb(size), -6);
  const float step = std::ldexp(1.0F, exponent - 3);
  return std::copysign(std::min(std::nearbyint(size / step) * step, 448.0F), value);
}

double round_matrix(std::span<float> values, std::size_t rows, std::size_t cols, QuantFormat format,
                    std::size_t group, const std::vector<bool>& kept) {
  SWITCHYARD_ASSERT(values.size() == rows * cols, "round_matrix");
  const auto count = static_cast<double>(values.size());
  const auto per_row = static_cast<double>(rows);
  switch (format) {
    case QuantFormat::kNone:
      return 32 * count;
    case QuantFormat::kBf16:
      for (float& w : values) {
        w = model::bf16_to_float(model::float_to_bf16(w));
      }
      return 16 * count;
    case QuantFormat::kFp16:
      for (float& w : values) {
        w = round_fp16(w);
      }
      return 16 * count;
    case QuantFormat::kFp8:
    case QuantFormat::kInt8: {
      const float top = format == QuantFormat::kFp8 ? 448.0F : 127.0F;
      for (std::size_t r = 0; r < rows; ++r) {
        float* row = values.data() + r * cols;
        const float scale = largest(row, cols) / top;
        for (std::size_t c = 0; c < cols && scale > 0; ++c) {
          const float x = row[c] / scale;
          row[c] = scale * (format == QuantFormat::kFp8 ? round_e4m3(x) : std::nearbyint(x));
        }
      }
      return 8 * count + 32 * per_row;
    }
    case QuantFormat::kInt4: {
      double bits = 0;
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t first = 0; first < cols; first += group) {
          round_group(values.data() + r * cols, first, std::min(cols, first + group), kept);
          bits += 20;
        }
      }
      const auto in_fp16 = static_cast<double>(std::count(kept.begin(), kept.end(), true));
      return bits + per_row * (16 * in_fp16 + 4 * (static_cast<double>(cols) - in_fp16));
    }
  }
  return 0;
}

std::vector<QuantisedPart> quantise(ModelWeights& weights, bool tied,
                                    const QuantiseOptions& options) {
  Quantiser quantiser(weights, options);
  QuantisedPart router{"router", options.router};
  QuantisedPart experts{"experts", options.experts};
  QuantisedPart backbone{"backbone", options.backbone};
  for_each_named_view(weights, tied, [&](const std::string& name, WeightView& view) {
    const bool expert = name.find(".experts.") != std::string::npos;
    if (name.ends_with(".router")) {
      if (router.format != QuantFormat::kNone) {
        quantiser.round(name, view, router, 0);
      }
    } else if (expert && !name.ends_with("_bias")) {
      if (experts.format != QuantFormat::kNone) {
        quantiser.round(name, view, experts, options.keep);
      }
    } else if (backbone.format != QuantFormat::kNone && !name.ends_with(".selection_bias")) {
      quantiser.round(name, view, backbone, 0);
    }
  });
  if (tied) {
    weights.head = weights.embedding;
  }
  std::vector<QuantisedPart> out;
  for (QuantisedPart* part : {&router, &experts, &backbone}) {
    if (part->format != QuantFormat::kNone) {
      part->add_up();
      out.push_back(std::move(*part));
    }
  }
  return out;
}

void QuantisedPart::add_up() {
  tensors = values = 0;
  bits = squared_error = squared_weight = 0;
  for (const auto& [tensor, did] : by_tensor) {
    ++tensors;
    values += did.values;
    bits += did.bits;
    squared_error += did.squared_error;
    squared_weight += did.squared_weight;
  }
}

void merge_quantised(Communicator& job, std::vector<QuantisedPart>& parts) {
  for (QuantisedPart& part : parts) {
    std::string mine;
    for (const auto& [tensor, did] : part.by_tensor) {
      mine += fmt::format("{} {} {:a} {:a} {:a}\n", tensor, did.values, did.bits, did.squared_error,
                          did.squared_weight);
    }
    for (const std::string& text : job.all_gather(mine)) {
      std::istringstream lines(text);
      std::string tensor;
      std::string bits;
      std::string error;
      std::string weight;
      for (QuantisedPart::Tensor did; lines >> tensor >> did.values >> bits >> error >> weight;) {
        // Exact both ways; operator>> does not read hexadecimal floats.
        did.bits = std::strtod(bits.c_str(), nullptr);
        did.squared_error = std::strtod(error.c_str(), nullptr);
        did.squared_weight = std::strtod(weight.c_str(), nullptr);
        part.by_tensor[tensor] = did;
      }
    }
    part.add_up();
  }
}

}  // namespace switchyard
