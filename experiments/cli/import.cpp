// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/model/json_input.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/cli/own_output.hpp"
#include "sim/placement/placement.hpp"

namespace switchyard::cli {
namespace {

using placement::Placement;
using placement::Row;

constexpr std::uint32_t kMostExperts = 65535, kMostRanks = 1U << 20U;

/// Rows of [expert] → ranks; every expert must have a place.
void check(const Placement& p, const std::string& where) {
  if (p.rows.empty()) throw InputError(where, "the file places no expert");
  for (std::size_t l = 0; l < p.rows.size(); ++l) {
    if (p.rows[l].size() != p.rows[0].size()) {
      throw InputError(where, fmt::format("row {} has {} experts, row 0 has {}", l,
                                          p.rows[l].size(), p.rows[0].size()));
    }
    for (std::size_t e = 0; e < p.rows[l].size(); ++e) {
      if (p.rows[l][e].empty()) {
        throw InputError(where, fmt::format("expert {} of row {} has no place", e, l));
      }
    }
  }
}

Placement from_json(const std::string& text, const ImportOptions& options) {
  const std::string where = options.input.string();
  const nlohmann::json root = model::parse_json_line(text, where);
  const nlohmann::json* map = nullptr;
  std::string key;
  for (const char* name : {"physical_to_logical_map", "phy2log", "expected_phy2log"}) {
    if (root.is_object() && root.contains(name)) {
      map = &root[name];
      key = name;
      break;
    }
  }
  if (map == nullptr || !map->is_array() || map->empty()) {
    throw InputError(where, "no physical_to_logical_map, phy2log or expected_phy2log",
                     "a map is a list per layer of the expert in each slot");
  }
  std::uint64_t ranks = options.gpus;
  if (root.contains("num_gpus")) {
    if (!root["num_gpus"].is_number_unsigned()) {
      throw InputError(where, "num_gpus is no whole number");
    }
    const auto stated = root["num_gpus"].get<std::uint64_t>();
    if (ranks != 0 && ranks != stated) {
      throw InputError(where, fmt::format("num_gpus = {}, --gpus says {}", stated, ranks));
    }
    ranks = stated;
  }
  if (ranks == 0 || ranks > kMostRanks) {
    throw InputError(where, "the number of GPUs is not stated, or is impossible", "give --gpus N");
  }
  Placement out;
  out.ranks = static_cast<std::uint32_t>(ranks);
  std::vector<std::vector<std::uint32_t>> slots;
  std::uint32_t experts = 0;
  for (const nlohmann::json& row : *map) {
    std::vector<std::uint32_t> line;
    for (const nlohmann::json& value : row) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMostExperts) {
        throw InputError(where,
                         fmt::format("{}[{}][{}] is no expert id", key, slots.size(), line.size()));
      }
      line.push_back(value.get<std::uint32_t>());
      experts = std::max(experts, line.back() + 1);
    }
    if (!row.is_array() || line.empty()) {
      throw InputError(where, fmt::format("{}[{}] is no list of slots", key, slots.size()));
    }
    slots.push_back(std::move(line));
  }
  for (std::size_t l = 0; l < slots.size(); ++l) {
    try {
      out.rows.push_back(placement::row_of_slots(slots[l], experts, out.ranks));
    } catch (const InputError& e) {
      throw InputError(where, fmt::format("{}[{}]: {}", key, l, e.what()));
    }
  }
  return out;
}

/// Whole numbers of a line separated by blanks.
std::vector<std::uint32_t> numbers(const std::string& text, const std::string& where) {
  std::vector<std::uint32_t> out;
  std::istringstream in(text);
  std::string word;
  while (in >> word) {
    if (word.size() > 7 || word.find_first_not_of("0123456789") != std::string::npos) {
      throw InputError(where, fmt::format("\"{}\" is no whole number below 10^7", word));
    }
    out.push_back(static_cast<std::uint32_t>(std::stoul(word)));
  }
  return out;
}

Placement from_lists(std::istringstream& in, const ImportOptions& options) {
  struct Line {
    std::uint32_t layer, device;
    std::vector<std::uint32_t> experts;
  };
  std::vector<Line> lines;
  std::string line;
  std::size_t number = 1;
  std::uint32_t layers = 0, devices = 0, experts = 0;
  while (std::getline(in, line)) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", options.input.string(), number);
    if (std::count(line.begin(), line.end(), ',') != 2) {
      throw InputError(where, "expected layer,device,experts");
    }
    std::replace(line.begin(), line.end(), ',', ' ');
    std::vector<std::uint32_t> v = numbers(line, where);
    if (v.size() < 2 || v[0] > 65535 || v[1] >= kMostRanks) {
      throw InputError(where, "expected layer,device,experts");
    }
    Line l{v[0], v[1], {v.begin() + 2, v.end()}};
    layers = std::max(layers, l.layer + 1);
    devices = std::max(devices, l.device + 1);
    for (const std::uint32_t e : l.experts) {
      if (e >= kMostExperts) throw InputError(where, fmt::format("expert {} is beyond 65534", e));
      experts = std::max(experts, e + 1);
    }
    lines.push_back(std::move(l));
  }
  if (std::uint64_t{layers} * experts > 50'000'000) {
    throw InputError(
        options.input.string(),
        fmt::format("{} layers of {} experts are beyond this version", layers, experts));
  }
  Placement out;
  out.ranks = devices;
  out.rows.assign(layers, Row(experts));
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.device < b.device; });
  for (const Line& l : lines) {
    for (const std::uint32_t e : l.experts) out.rows[l.layer][e].push_back(l.device);
  }
  return out;
}

Placement from_zeros_and_ones(const std::string& first, std::istringstream& in,
                              const ImportOptions& options) {
  const std::string where = options.input.string();
  const std::vector<std::uint32_t> head = numbers(first, where + ":1");
  if (head.size() != 3 || head[0] == 0 || head[1] == 0 || head[2] == 0 || head[0] > kMostRanks ||
      head[2] >= kMostExperts || std::uint64_t{head[0]} * head[1] * head[2] > 500'000'000) {
    throw InputError(where + ":1", "expected \"devices layers experts\"");
  }
  // A value takes two bytes; nothing is allocated for values that cannot be there.
  if (std::uint64_t{head[0]} * head[1] * head[2] > in.str().size()) {
    throw InputError(where + ":1",
                     fmt::format("{} values do not fit into a file of {} bytes",
                                 std::uint64_t{head[0]} * head[1] * head[2], in.str().size()));
  }
  Placement out;
  out.ranks = head[0];
  out.rows.assign(head[1], Row(head[2]));
  std::string word;
  for (std::uint32_t d = 0; d < head[0]; ++d) {
    for (std::uint32_t l = 0; l < head[1]; ++l) {
      for (std::uint32_t e = 0; e < head[2]; ++e) {
        if (!(in >> word) || (word != "0" && word != "1")) {
          throw InputError(where,
                           fmt::format("device {}, layer {}, expert {}: expected 0 or 1", d, l, e));
        }
        if (word == "1") out.rows[l][e].push_back(d);
      }
    }
  }
  if (in >> word) throw InputError(where, "more values than devices * layers * experts");
  return out;
}

Placement read_any(const ImportOptions& options) {
  const std::string text = read_file(options.input);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos && (text[begin] == '{' || text[begin] == '[')) {
    return from_json(text, options);
  }
  std::istringstream in(text);
  std::string first;
  std::getline(in, first);
  if (!first.empty() && first.back() == '\r') first.pop_back();
  if (options.gpus != 0) {
    throw InputError("--gpus", "the file states its devices itself", "drop the option");
  }
  if (first == "layer,device,experts") return from_lists(in, options);
  if (!first.empty() && first.find_first_not_of("0123456789 ") == std::string::npos) {
    return from_zeros_and_ones(first, in, options);
  }
  throw InputError(options.input.string() + ":1", "no placement that is known here",
                   "a JSON with physical_to_logical_map or phy2log, a CSV layer,device,experts, or "
                   "omni-infer's zeros and ones");
}

int import_eplb(const ImportOptions& options) {
  const Placement p = read_any(options);
  check(p, options.input.string());
  std::string csv = "layer,expert,rank\n";
  std::size_t most = 1, copies = 0;
  std::vector<std::uint32_t> held(p.ranks, 0);
  for (std::size_t l = 0; l < p.rows.size(); ++l) {
    for (std::size_t e = 0; e < p.rows[l].size(); ++e) {
      most = std::max(most, p.rows[l][e].size());
      for (const std::uint32_t r : p.rows[l][e]) {
        csv += fmt::format("{},{},{}\n", l + options.first_layer, e, r);
        ++held[r];
        ++copies;
      }
    }
  }
  write_file(options.output, csv);
  if (!options.quiet) {
    Table table;
    table.name = "import";
    table.title = "Expert placement";
    table.columns = {"quantity", "value"};
    table.rows = {
        {"MoE layers", std::to_string(p.rows.size())},
        {"experts per layer", std::to_string(p.rows[0].size())},
        {"EP ranks", std::to_string(p.ranks)},
        {"copies of experts, all layers", std::to_string(copies)},
        {"most copies of one expert", std::to_string(most)},
        {"copies on the fullest rank", std::to_string(*std::max_element(held.begin(), held.end()))},
        {"copies on the emptiest rank",
         std::to_string(*std::min_element(held.begin(), held.end()))}};
    if (const std::string line = placement::describe(placement::duplicates(p)); !line.empty()) {
      table.notes.push_back(line);
    }
    fmt::print("{}", render(table, options.format));
  }
  return 0;
}

struct Kind {
  const char* name;
  int (*run)(const ImportOptions&);
  const char* options;               ///< Those it takes beside -o, each between blanks.
};

constexpr std::array<Kind, 14> kKinds{
    {{"eplb", import_eplb, " --gpus --first-layer "},
     {"topo-m", import_topo_m, " --like --numa "},
     {"requests-azure", import_requests, ""},
     {"requests-burstgpt", import_requests, ""},
     {"requests-mooncake", import_requests, ""},
     {"nccl-tests", import_nccl_tests, " --collective --buffer "},
     {"expert-counts", import_expert_counts, " --first-layer "},
     {"routing-vllm", import_routing, " --model "},
     {"routing-sglang", import_routing, " --model "},
     {"megatron-jsonl", import_megatron, " --model --ep --etp --edp --stage-layers --iterations "},
     {"moe-balance", import_moe_balance, " --model "},
     {"nccl-xml", import_topo_m, " --like --numa "},
     {"deepep", import_deepep, " --tokens --hidden --top-k --experts "},
     {"vllm-args", import_vllm_args, " --model --like --requests "}}};

/// Options that were given, by name.
std::vector<std::string> given(const ImportOptions& o) {
  std::vector<std::string> out;
  const auto add = [&](const char* name, bool set) {
    if (set) out.emplace_back(name);
  };
  add("--gpus", o.gpus != 0);
  add("--first-layer", o.first_layer != 0);
  add("--like", !o.like.empty());
  add("--numa", !o.numa.empty());
  add("--collective", !o.collective.empty());
  add("--buffer", !o.buffer.empty());
  add("--model", !o.model.empty());
  add("--requests", !o.requests.empty());
  add("--tokens", !o.tokens.empty());
  add("--hidden", o.hidden != 0);
  add("--top-k", o.top_k != 0);
  add("--experts", o.experts != 0);
  add("--ep", o.ep.has_value());
  add("--etp", o.etp.has_value());
  add("--edp", o.edp.has_value());
  add("--stage-layers", !o.stage_layers.empty());
  add("--iterations", !o.iterations.empty());
  return out;
}

}  // namespace

int run_import(const ImportOptions& options) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&](const Kind& k) { return options.kind == k.name; });
  if (kind == kKinds.end()) {
    std::vector<std::string> names;
    for (const Kind& k : kKinds) names.emplace_back(k.name);
    throw InputError("import", fmt::format("unknown kind \"{}\"", options.kind),
                     suggest_name(options.kind, names));
  }
  for (const std::string& option : given(options)) {
    if (std::string_view(kind->options).find(" " + option + " ") == std::string_view::npos) {
      throw InputError(option, fmt::format("means nothing with {}", options.kind));
    }
  }
  require_own_output("-o", options.output, {{"the input", options.input}});
  ParentFolders folders;
  folders.make("-o", options.output);
  return kind->run(options);
}

}  // namespace switchyard::cli
