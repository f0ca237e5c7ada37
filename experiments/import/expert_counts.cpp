// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/expert_counts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/json_input.hpp"

namespace switchyard::importers {
namespace {

constexpr std::uint32_t kMostLayers = 65535, kMostExperts = 65535;
constexpr std::size_t kMostCells = 16'000'000;  ///< layers × experts of a table: 128 MB.
constexpr double kMostLoad = 1e18;

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> out;
  for (std::size_t at = 0;;) {
    const std::size_t end = std::min(line.find(',', at), line.size());
    out.push_back(line.substr(at, end - at));
    if (end == line.size()) return out;
    at = end + 1;
  }
}

template <class T>
bool whole(std::string_view field, T& value) {
  const auto [end, ec] = std::from_chars(field.data(), field.data() + field.size(), value);
  return ec == std::errc{} && end == field.data() + field.size() && !field.empty();
}

ExpertCounts from_csv(std::string_view text, const std::string& where) {
  ExpertLoads loads;
  std::vector<std::string> names;
  std::vector<std::string> first;  // The other columns of the first row.
  std::size_t layer_at = 0, expert_at = 0, count_at = 0, number = 0, cells = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    const auto fail = [&](const std::string& message, const std::string& hint = {}) {
      throw InputError(fmt::format("{}:{}", where, number), message, hint);
    };
    const std::vector<std::string_view> fields = fields_of(line);
    if (names.empty()) {
      names.assign(fields.begin(), fields.end());
      const auto column = [&](std::string_view name) {
        const auto at = std::find(names.begin(), names.end(), name);
        if (at != names.end() && std::find(at + 1, names.end(), name) != names.end()) {
          fail(fmt::format("column {} comes twice", name));
        }
        return static_cast<std::size_t>(at - names.begin());
      };
      layer_at = column("layer");
      expert_at = column("expert");
      const std::size_t count = column("count"), load = column("load");
      count_at = std::min(count, load);
      if (std::max({layer_at, expert_at, count_at}) == names.size()) {
        fail("the header has no columns layer, expert and count",
             "a CSV layer,expert,count, or a JSON matrix [layers][experts]");
      }
      if (count != names.size() && load != names.size()) fail("both a column count and one load");
      continue;
    }
    if (fields.size() != names.size()) {
      fail(fmt::format("{} fields, the header has {}", fields.size(), names.size()));
    }
    std::uint32_t layer = 0, expert = 0;
    double count = 0;
    if (!whole(fields[layer_at], layer) || layer >= kMostLayers) {
      fail(fmt::format("layer = {}. Violated: a whole number below 65535", fields[layer_at]));
    }
    if (!whole(fields[expert_at], expert) || expert >= kMostExperts) {
      fail(fmt::format("expert = {}. Violated: a whole number below 65535", fields[expert_at]));
    }
    if (!whole(fields[count_at], count) || !(count >= 0 && count <= kMostLoad)) {
      fail(fmt::format("{} = {}. Violated: 0 <= {} <= 1e18", names[count_at], fields[count_at],
                       names[count_at]));
    }
    std::vector<double>& row = loads[layer];
    if (row.size() <= expert) {
      cells += expert + 1 - row.size();
      if (cells > kMostCells) {
        fail(fmt::format("layers times experts are beyond {} here", kMostCells),
             "every layer needs a row for each of its experts");
      }
      row.resize(expert + 1, -1.0);
    }
    if (row[expert] >= 0) {
      fail(fmt::format("expert {} of layer {} has a count already", expert, layer),
           "keep the rows of one table");
    }
    row[expert] = count;
    // Sums of loss or weight differ row by row; a name of a model or text must not.
    if (first.empty()) first.assign(fields.begin(), fields.end());
    for (std::size_t c = 0; c < fields.size(); ++c) {
      double ignored = 0;
      if (c == layer_at || c == expert_at || c == count_at || whole(fields[c], ignored)) continue;
      if (fields[c] != first[c]) {
        fail(fmt::format("{} = {}, the rows above have {}: two tables in one file", names[c],
                         fields[c], first[c]),
             "keep the rows of one table");
      }
    }
  }
  if (loads.empty()) throw InputError(where, "the file has no row of counts");
  return expert_counts(loads, where);
}

/// Adds a matrix [layers][experts] to `sum`, which it must fit.
void add_matrix(const nlohmann::json& matrix, const std::string& name, const std::string& where,
                std::vector<std::vector<double>>& sum) {
  if (!matrix.is_array() || matrix.empty() || matrix.size() >= kMostLayers) {
    throw InputError(where, fmt::format("{} is no list of layers", name));
  }
  if (sum.empty()) sum.resize(matrix.size());
  if (sum.size() != matrix.size()) {
    throw InputError(where, fmt::format("{} has {} layers, the pass before {}", name, matrix.size(),
                                        sum.size()));
  }
  for (std::size_t l = 0; l < matrix.size(); ++l) {
    const nlohmann::json& row = matrix[l];
    if (!row.is_array() || row.empty() || row.size() >= kMostExperts) {
      throw InputError(where, fmt::format("{}[{}] is no list of experts", name, l));
    }
    if (sum[l].empty()) sum[l].resize(row.size(), 0.0);
    if (row.size() != sum[l].size() || row.size() != matrix[0].size()) {
      throw InputError(where, fmt::format("{}[{}] has {} experts, others have {}", name, l,
                                          row.size(), matrix[0].size()));
    }
    for (std::size_t e = 0; e < row.size(); ++e) {
      const double v = row[e].is_number() ? row[e].get<double>() : -1;
      if (!(v >= 0 && v <= kMostLoad)) {
        throw InputError(where, fmt::format("{}[{}][{}] = {}. Violated: a number from 0 to 1e18",
                                            name, l, e, row[e].dump().substr(0, 40)));
      }
      sum[l][e] += v;
    }
  }
}

ExpertCounts from_json(std::string_view text, const std::string& where, std::uint32_t first_layer) {
  const nlohmann::json root = model::parse_json_line(text, where);
  const nlohmann::json* matrix = &root;
  std::string name = "the matrix";
  if (root.is_object()) {
    matrix = nullptr;
    for (const char* key : {"logical_count", "weight"}) {
      if (!root.contains(key)) continue;
      if (matrix != nullptr) {
        throw InputError(where, "both \"logical_count\" and \"weight\"", "keep one of them");
      }
      matrix = &root[key];
      name = key;
    }
    if (matrix == nullptr) {
      throw InputError(where, "no key \"logical_count\" or \"weight\"",
                       "a matrix [layers][experts] of counts");
    }
  }
  std::vector<std::vector<double>> sum;
  const bool passes = matrix->is_array() && !matrix->empty() && (*matrix)[0].is_array() &&
                      !(*matrix)[0].empty() && (*matrix)[0][0].is_array();
  if (passes) {
    for (std::size_t p = 0; p < matrix->size(); ++p) {
      add_matrix((*matrix)[p], fmt::format("{}[{}]", name, p), where, sum);
    }
  } else {
    add_matrix(*matrix, name, where, sum);
  }
  if (first_layer > kMostLayers - sum.size()) {
    throw InputError("--first-layer", fmt::format("layer {} is beyond this version", first_layer));
  }
  ExpertLoads loads;
  for (std::size_t l = 0; l < sum.size(); ++l) {
    loads[first_layer + static_cast<std::uint32_t>(l)] = std::move(sum[l]);
  }
  return expert_counts(loads, where);
}

}  // namespace

ExpertCounts expert_counts(const ExpertLoads& loads, const std::string& where) {
  ExpertCounts out;
  out.layers = static_cast<std::uint32_t>(loads.size());
  std::size_t experts = 0;
  for (const auto& [layer, row] : loads) experts = std::max(experts, row.size());
  out.experts = static_cast<std::uint32_t>(experts);
  out.csv = "layer,expert,load\n";
  for (const auto& [layer, row] : loads) {
    for (std::size_t e = 0; e < experts; ++e) {
      if (e >= row.size() || row[e] < 0) {
        throw InputError(where, fmt::format("layer {} states no count of expert {}", layer, e),
                         "write 0 where an expert had no token");
      }
      out.total += row[e];
      out.largest = std::max(out.largest, row[e]);
      out.csv += fmt::format("{},{},{}\n", layer, e, row[e]);
    }
  }
  if (!(out.total > 0)) throw InputError(where, "all counts are 0");
  return out;
}

ExpertCounts read_expert_counts(std::string_view text, const std::string& where,
                                std::uint32_t first_layer) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != std::string_view::npos && (text[begin] == '{' || text[begin] == '[')) {
    return from_json(text, where, first_layer);
  }
  if (text.starts_with("PK") || text.find('\0') != std::string_view::npos) {
    throw InputError(where, "unsupported: a binary file (.pt, .npy)",
                     "write the counts as JSON: a list [layers][experts]");
  }
  if (first_layer != 0) {
    throw InputError("--first-layer", "a CSV names its layers itself", "drop the option");
  }
  return from_csv(text, where);
}

}  // namespace switchyard::importers
