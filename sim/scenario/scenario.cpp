// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/scenario.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/model/gate.hpp"
#include "sim/scenario/alarm_reader.hpp"
#include "sim/scenario/fault_reader.hpp"
#include "sim/scenario/hardware_reader.hpp"
#include "sim/scenario/replicas.hpp"
#include "sim/scenario/section.hpp"
#include "sim/scenario/serving_reader.hpp"
#include "sim/scenario/sweep_limit.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::scenario {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 24U;
constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 26U;

constexpr std::array<std::string_view, 4> kAttentionNames{"dp", "hub", "tp", "pp"};
constexpr std::array<std::string_view, 3> kRouterNames{"gpu", "cpu", "card"};
constexpr std::array<std::string_view, 2> kChunkByNames{"rows", "experts"};
constexpr std::array<std::string_view, 6> kPlacementNames{
    "contiguous", "round_robin", "replicated", "eplb", "affinity", "topology_hot"};
constexpr std::array<PlacementKind, 6> kPlacementKinds{
    PlacementKind::kContiguous, PlacementKind::kRoundRobin, PlacementKind::kReplicated,
    PlacementKind::kEplb,       PlacementKind::kAffinity,   PlacementKind::kTopologyHot};
constexpr std::array<std::string_view, 4> kReplicaChoiceNames{"hash", "round_robin", "nearest",
                                                              "least_loaded"};
constexpr std::array<std::string_view, 3> kRebalanceNames{"off", "load", "congestion"};
constexpr std::uint64_t kMaxProfileSteps = 4096;
constexpr std::array<std::string_view, 5> kWorkloadNames{"decode", "prefill", "open", "closed",
                                                         "trace"};
constexpr std::array<std::string_view, 2> kLayersNames{"exact", "cycle"};
constexpr std::array<std::string_view, 4> kLawNames{"uniform", "zipf", "lognormal", "dirichlet"};
constexpr std::array<std::string_view, 4> kNetworkNames{"auto", "flow", "coflow", "bottleneck"};
constexpr std::array<std::string_view, 4> kAlgorithmNames{"direct", "ring", "ring_bidirectional",
                                                          "hierarchical"};
constexpr std::array<std::string_view, 3> kWireNames{"native", "int4", "int2_halves"};
constexpr std::array<std::string_view, 5> kReduceNames{"ring", "direct", "one_shot", "hierarchical",
                                                       "tree"};
constexpr std::array<std::string_view, 4> kBroadcastNames{"direct", "ring", "tree", "hierarchical"};
constexpr std::array<std::string_view, 2> kKvDecodeNames{"pull", "merge"};
constexpr std::array<std::string_view, 2> kStoreNames{"ssd", "cxl"};
constexpr std::array<std::string_view, 3> kMissNames{"load", "cpu", "cheaper"};
constexpr std::array<std::string_view, 3> kDispatchNames{"per_expert", "per_rank", "per_node"};
constexpr std::array<std::string_view, 5> kKvNames{"by_sequence", "replicated", "hub", "by_token",
                                                   "by_expert"};
constexpr std::array<std::string_view, 4> kResidencyNames{"all", "lru", "lfu", "static"};
constexpr std::array<std::string_view, 3> kPrefetchNames{"none", "trace", "frequency"};
constexpr std::array<std::string_view, 4> kAllocatorNames{"pool", "caching", "paged", "bump"};
constexpr std::array<std::string_view, 3> kLoadingNames{"resident", "host", "ssd"};
constexpr std::array<std::string_view, 2> kOrderNames{"serial", "parallel"};
constexpr std::array<std::string_view, 2> kStartNames{"ready", "by_layer"};
constexpr std::array<std::string_view, 2> kInitialNames{"empty", "hot"};
constexpr std::array<std::string_view, 3> kActionNames{"record", "stop_admission", "preempt"};
constexpr std::array<std::string_view, 4> kDetailNames{"summary", "steps", "layers", "tokens"};

std::shared_ptr<const Source> setting_source(const std::string& option) {
  auto source = std::make_shared<Source>();
  source->name = option;
  source->is_setting = true;
  return source;
}

/// A path named by `node`: relative to the file that names it; from the command line relative to
/// the working folder, or else to the scenario's folder.
fs::path named_path(const std::string& text, const Node& node, const fs::path& scenario_folder) {
  const fs::path path(text);
  if (path.is_absolute()) {
    return path.lexically_normal();
  }
  if (node.source->is_setting) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) {
      return path.lexically_normal();
    }
    return (scenario_folder / path).lexically_normal();
  }
  return (node.source->folder / path).lexically_normal();
}

/// A file that ships or lies beside the scenario, of the kind that `subfolder` holds: "hgx_h100" is
/// hardware/hgx_h100.toml, first beside the scenario, then among the presets;
/// "hardware/hgx_h100.toml" is looked for among the presets. `path` when there is none.
fs::path or_preset(const fs::path& path, const std::string& written, const fs::path& subfolder,
                   const fs::path& scenario_folder, const std::string& presets_root) {
  std::error_code ignored;
  if (written.empty() || fs::exists(path, ignored)) return path;
  std::vector<fs::path> places;
  if (written.find('/') != std::string::npos) {
    if (!presets_root.empty()) places.push_back(fs::path(presets_root) / written);
  } else {
    const std::string name =
        fs::path(written).extension() == ".toml" ? written : written + ".toml";
    places.push_back(scenario_folder / subfolder / name);
    if (!presets_root.empty()) places.push_back(fs::path(presets_root) / subfolder / name);
  }
  for (const fs::path& place : places) {
    if (fs::is_regular_file(place, ignored)) return place.lexically_normal();
  }
  return path;
}

/// "no such file", with the nearest name of the folder it should be in, or of the presets.
[[noreturn]] void no_such_file(const std::string& where, const std::string& key,
                               const std::string& written, const fs::path& path,
                               const std::string& hint = {}, const fs::path& presets = {}) {
  std::vector<std::string> names;
  std::error_code ignored;
  if (!presets.empty() && written.find('/') == std::string::npos) {
    for (const auto& entry : fs::directory_iterator(presets, ignored)) {
      names.push_back(entry.path().stem().string());
    }
    std::sort(names.begin(), names.end());
    if (const std::string near = nearest_name(fs::path(written).stem().string(), names);
        !near.empty()) {
      throw InputError(where, fmt::format("{} = \"{}\": No such file or preset", key, written),
                       fmt::format("did you mean \"{}\"?", near));
    }
    names.clear();
  }
  const fs::path folder = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  const std::string near = nearest_name(path.filename().string(), names);
  throw InputError(
      where, fmt::format("{} = \"{}\": No such file ({})", key, written, path.generic_string()),
      near.empty() ? hint : fmt::format("did you mean \"{}\"?", near));
}

/// Replaces the section's table by the content of its `file`, with the keys beside `file` laid over
/// it. Returns the path, or empty when the section names no file.
fs::path merge_file(Context& context, Node& root, const std::string& section,
                    const fs::path& folder, const std::string& presets_root) {
  Node* table = root.find(section);
  const Node* file = table == nullptr ? nullptr : table->find("file");
  if (file == nullptr) {
    return {};
  }
  const std::string key = section + ".file";
  if (file->kind != Node::Kind::kString) {
    throw InputError(file->where(), fmt::format("{} = {} is {}; expected text", key, brief(*file),
                                                file->kind_name()));
  }
  const std::string written = file->text;
  const std::string where = file->where();
  const fs::path subfolder = section == "policy"     ? "policies"
                             : section == "workload" ? "workloads"
                                                     : section;
  const fs::path path = or_preset(named_path(written, *file, folder), written, subfolder, folder,
                                  presets_root);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    no_such_file(where, key, written, path, {},
                 presets_root.empty() ? fs::path() : fs::path(presets_root) / subfolder);
  }
  context.record(key, path.generic_string(), where, false);
  Node merged = load_toml(path, section, where);
  Node over = *table;
  std::erase_if(over.children, [](const Node& child) { return child.key == "file"; });
  merge(merged, over);
  merged.key = table->key;
  merged.key_line = table->key_line;
  merged.key_column = table->key_column;
  *table = std::move(merged);
  return path;
}

// ---- model ----

void read_model(Context& context, const Node& root, const fs::path& folder,
                const ReadOptions& options, Scenario& out) {
  const Node* table = root.find("model");
  if (table == nullptr) {
    throw InputError(root.where(), "model is missing",
                     "write [model] with file = \"models/mixtral_8x7b.json\"");
  }
  Section s(context, table, "model",
            {"file", "name", "dtype", "num_experts", "top_k", "expert_intermediate"}, root);
  if (!s.has("file")) {
    s.fail("file", "is missing", "write file = \"models/mixtral_8x7b.json\"");
  }
  const Node& file = *s.find("file");
  if (file.kind != Node::Kind::kString) {
    throw InputError(file.where(), fmt::format("model.file = {} is {}; expected text", brief(file),
                                               file.kind_name()));
  }
  fs::path path = named_path(file.text, file, folder);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    // A preset's name is looked up beside the scenario, then in the caller's folder.
    const bool is_name = file.text.find('/') == std::string::npos && !file.text.empty();
    std::optional<fs::path> found;
    for (const fs::path& place :
         {folder.empty() ? fs::path(".") : folder, fs::path(options.presets_root)}) {
      if (!is_name || found || place.empty() || !fs::is_directory(place, ignored)) {
        continue;
      }
      try {
        found = model::find_model(file.text, place);
      } catch (const InputError&) {
        // Not here; the message below names the file that was asked for.
      } catch (const fs::filesystem_error&) {
        // A name no file system accepts.
      }
    }
    if (!is_name && !options.presets_root.empty() &&
        fs::exists(fs::path(options.presets_root) / file.text, ignored)) {
      found = fs::path(options.presets_root) / file.text;  // "models/mixtral_8x7b.json"
    }
    if (!found) {
      std::vector<std::string> presets;
      if (is_name) {
        presets = model::model_preset_names(folder.empty() ? fs::path(".") : folder);
      }
      if (const std::string near = nearest_name(file.text, presets); !near.empty()) {
        throw InputError(file.where(),
                         fmt::format("model.file = \"{}\": no such file or preset", file.text),
                         fmt::format("did you mean \"{}\"?", near));
      }
      no_such_file(file.where(), "model.file", file.text, path);
    }
    path = found->lexically_normal();
  }
  context.record("model.file", path.generic_string(), file.where(), false);
  out.model = model::read_model_config(path);
  model::ModelConfig& m = out.model;
  const std::string origin = path.generic_string();
  const auto from_model = [&](const std::string& key, std::uint64_t value) {
    context.record("model." + key, fmt::format("{}", value), origin);
  };
  if (s.has("name")) {
    m.name = s.text("name");
  } else {
    context.record("model.name", m.name, origin);
  }

  context.record("model.family", std::string(model::family_name(m.family)), origin);
  from_model("num_layers", m.num_layers);
  from_model("hidden_size", m.hidden_size);
  from_model("vocab_size", m.vocab_size);
  context.record("model.attention", m.attention == model::AttentionKind::kMla ? "mla" : "gqa",
                 origin);
  from_model("num_heads", m.num_heads);
  from_model("num_kv_heads", m.num_kv_heads);
  from_model("head_dim", m.head_dim);
  if (m.attention == model::AttentionKind::kMla) {
    from_model("q_lora_rank", m.q_lora_rank);
    from_model("kv_lora_rank", m.kv_lora_rank);
    from_model("qk_nope_head_dim", m.qk_nope_head_dim);
    from_model("qk_rope_head_dim", m.qk_rope_head_dim);
    from_model("v_head_dim", m.v_head_dim);
  }
  from_model("dense_intermediate", m.dense_intermediate);
  from_model("shared_intermediate", m.shared_intermediate);
  if (m.tie_word_embeddings) {
    context.record("model.tie_word_embeddings", "true", origin);
  }
  if (std::any_of(m.layers.begin(), m.layers.end(),
                  [](const model::LayerSpec& l) { return l.sliding_window > 0; })) {
    std::string windows;
    for (const model::LayerSpec& l : m.layers) {
      windows += fmt::format("{}{}", windows.empty() ? "" : " ", l.sliding_window);
    }
    context.record("model.sliding_window", windows, origin);
  }
  // What else the cost model and the ledger read; only where it is not the usual form, so that the
  // canonical text of the usual models stays short.
  const auto differs = [&](const std::string& key, bool unusual, const std::string& value) {
    if (unusual) context.record("model." + key, value, origin);
  };
  differs("expert_kind", m.expert_kind != model::ExpertKind::kSwiGlu,
          m.expert_kind == model::ExpertKind::kTwoMatrix ? "two_matrix" : "swiglu_clamped");
  differs(
      "router", m.router != model::RouterKind::kLinear,
      fmt::format("{} {}", m.router == model::RouterKind::kHiddenMlp ? "hidden_mlp" : "token_mlp",
                  fmt::join(m.router_hidden, " ")));
  differs("final_norm", !m.final_norm, "false");
  differs("qkv_bias", m.qkv_bias, "true");
  differs("output_bias", m.output_bias, "true");
  differs("qk_norm", m.qk_norm_per_head || m.qk_norm_full,
          m.qk_norm_per_head ? "per_head" : "full");
  differs("shared_expert_gate", m.shared_expert_gate, "true");
  differs("v_head_dim", m.attention != model::AttentionKind::kMla && m.v_head_dim != m.head_dim,
          fmt::format("{}", m.v_head_dim));
  if (m.layers.size() > m.num_moe_layers()) {
    // Which of the layers without experts have an FFN.
    std::string bare;
    for (std::size_t l = 0; l < m.layers.size(); ++l) {
      if (m.layers[l].ffn == model::FfnKind::kNone)
        bare += fmt::format("{}{}", bare.empty() ? "" : " ", l);
    }
    differs("layers_without_ffn", !bare.empty(), bare);
  }
  const bool moe = m.num_moe_layers() > 0;
  struct Override {
    const char* key;
    std::uint64_t& value;
    std::uint64_t high;
  };
  for (const Override& o :
       {Override{"num_experts", m.num_experts, 65534}, Override{"top_k", m.top_k, 255},
        Override{"expert_intermediate", m.expert_intermediate, kMaxTokens}}) {
    if (!s.has(o.key)) {
      from_model(o.key, o.value);
    } else if (!moe) {
      s.fail(o.key, "the model has no MoE layer");
    } else {
      o.value = s.count(o.key, 1, o.high);
    }
  }
  if (moe) {
    const std::string where = context.where("model.top_k", file.where());
    if (m.top_k > m.num_experts) {
      throw InputError(s.has("top_k") ? where : context.where("model.num_experts", file.where()),
                       fmt::format("model.top_k = {}. Violated: top_k <= num_experts = {}", m.top_k,
                                   m.num_experts));
    }
    out.gate = model::gate_spec(m);
    validate(out.gate, s.has("num_experts") ? s.where("num_experts") : where);
    std::string layers;
    for (const std::uint32_t layer : m.moe_layers()) {
      layers += fmt::format("{}{}", layers.empty() ? "" : " ", layer);
    }
    context.record("model.moe_layers", layers, origin);
    context.record("model.gate", gate_to_text(out.gate), origin);
  }
  for (const auto& [name, value] : m.stated) {
    from_model("stated." + name, value);
  }
  Section dtype = s.section(
      "dtype", {"experts", "shared", "router", "kv", "activations", "gemm_inputs"});
  // What the model's file says it is stored in (quantised experts, FP8 blocks), else bf16. The
  // block formats of GGUF have no rate on any hardware file: bf16 as well.
  if (m.expert_dtype == model::DType::kF8E4M3 || m.expert_dtype == model::DType::kI8 ||
      m.expert_dtype == model::DType::kInt4 || m.expert_dtype == model::DType::kInt4G128 ||
      m.expert_dtype == model::DType::kMxfp4) {
    out.dtype.experts = m.expert_dtype;
  }
  if (m.quantization == "fp8_block") {
    out.dtype.shared = model::DType::kF8E4M3;
  }
  out.dtype.experts = dtype.dtype("experts", out.dtype.experts);
  out.dtype.shared = dtype.dtype("shared", out.dtype.shared);
  out.dtype.router = dtype.dtype("router", out.dtype.router);
  out.dtype.kv = dtype.dtype("kv", out.dtype.kv);
  out.activations = dtype.dtype("activations", out.activations);
  if (dtype.has("gemm_inputs")) {
    out.cost.gemm_inputs = dtype.dtype("gemm_inputs", out.activations);
    if (model::dtype_bits_x32(*out.cost.gemm_inputs) > model::dtype_bits_x32(out.activations)) {
      dtype.fail("gemm_inputs", "is wider than the activations it is made of");
    }
  }
}

// ---- parallel ----

std::uint32_t whole_field(std::string_view text, std::string_view name, std::uint64_t limit,
                          const std::function<void(const std::string&)>& fail) {
  std::uint64_t v = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (ec != std::errc{} || end != text.data() + text.size() || text.empty() || v >= limit) {
    fail(fmt::format("{} = {}. Violated: 0 <= {} < {}", name, text, name, limit));
  }
  return static_cast<std::uint32_t>(v);
}

/// Rows of a CSV "layer,expert,<third>"; layer is a layer number of the model or * for all. `take`
/// gets the row (0 for *), the expert, the third field and a function that fails at the line.
/// Returns the place of the last line, for messages about what is missing.
using FailAtLine = std::function<void(const std::string&)>;
template <typename Take>
std::string read_expert_csv(const fs::path& path, const std::string& where,
                            const model::ModelConfig& m, std::string_view third, Take take) {
  std::ifstream in(path, std::ios::binary);
  std::error_code ignored;
  if (!in || fs::is_directory(path, ignored)) {
    throw InputError(where, fmt::format("cannot read \"{}\"", path.generic_string()));
  }
  const std::vector<std::uint32_t> layers = m.moe_layers();
  std::string line;
  std::size_t number = 0;
  std::optional<bool> per_layer;
  const FailAtLine fail = [&](const std::string& message) {
    throw InputError(fmt::format("{}:{}", path.generic_string(), number), message);
  };
  const std::string header = fmt::format("layer,expert,{}", third);
  while (std::getline(in, line)) {
    ++number;
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (number == 1) {
      if (line != header) {
        fail(fmt::format("the first line must be \"{}\"", header));
      }
      continue;
    }
    if (line.empty()) {
      continue;
    }
    std::array<std::string_view, 3> field;
    std::string_view rest = line;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      field[i] = rest.substr(0, comma);
      if ((i < 2) == (comma == rest.size())) {
        fail(fmt::format("expected three fields: {}", header));
      }
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    const bool all = field[0] == "*";
    if (per_layer && *per_layer == all) {
      fail("\"*\" and layer numbers cannot be mixed");
    }
    per_layer = !all;
    std::size_t row = 0;
    if (!all) {
      const std::uint32_t layer = whole_field(field[0], "layer", m.num_layers, fail);
      const auto it = std::find(layers.begin(), layers.end(), layer);
      if (it == layers.end()) {
        fail(fmt::format("layer {} of the model is no MoE layer", layer));
      }
      row = static_cast<std::size_t>(it - layers.begin());
    }
    take(row, whole_field(field[1], "expert", m.num_experts, fail), field[2], fail,
         all ? std::size_t{1} : layers.size());
  }
  return fmt::format("{}:{}", path.generic_string(), number);
}

template <typename Value>
void need_every_expert(const std::string& where, const model::ModelConfig& m,
                       const std::vector<std::vector<Value>>& rows, Value none,
                       std::string_view what) {
  if (rows.empty()) {
    throw InputError(where, fmt::format("the file names no {}", what));
  }
  const std::vector<std::uint32_t> layers = m.moe_layers();
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::size_t e = 0; e < rows[row].size(); ++e) {
      if (rows[row][e] == none) {
        throw InputError(
            where,
            fmt::format("expert {}{} has no {}", e,
                        rows.size() > 1 ? fmt::format(" of layer {}", layers[row]) : std::string(),
                        what));
      }
    }
  }
}

/// CSV "layer,expert,rank": a line per copy; every expert has one at least.
void read_placement(const fs::path& path, const std::string& where, const model::ModelConfig& m,
                    Parallel& p) {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::vector<std::uint32_t>>& rows = p.expert_rank;
  const std::string end = read_expert_csv(
      path, where, m, "rank",
      [&](std::size_t row, std::uint32_t expert, std::string_view field, const FailAtLine& fail,
          std::size_t count) {
        if (rows.empty()) {
          rows.assign(count,
                      std::vector<std::uint32_t>(static_cast<std::size_t>(m.num_experts), kNone));
        }
        const std::uint32_t rank = whole_field(field, "rank", p.ep, fail);
        if (rows[row][expert] == kNone) {
          rows[row][expert] = rank;
        } else if (p.replicas.size() == kMaxCount) {
          fail("more copies of experts than this version reads");
        } else {
          p.replicas.push_back({static_cast<std::uint32_t>(row), expert, rank});
        }
      });
  need_every_expert(end, m, rows, kNone, "place");
}

/// CSV "layer,expert,load": how much work each expert had, any unit.
std::vector<std::vector<double>> read_loads(const fs::path& path, const std::string& where,
                                            const model::ModelConfig& m) {
  std::vector<std::vector<double>> rows;
  const std::string end_of_file = read_expert_csv(
      path, where, m, "load",
      [&](std::size_t row, std::uint32_t expert, std::string_view field, const FailAtLine& fail,
          std::size_t count) {
        if (rows.empty()) {
          rows.assign(count, std::vector<double>(static_cast<std::size_t>(m.num_experts), -1.0));
        }
        double v = 0;
        const auto [end, ec] = std::from_chars(field.data(), field.data() + field.size(), v);
        if (ec != std::errc{} || end != field.data() + field.size() || field.empty() || !(v >= 0) ||
            v > 1e18) {
          fail(fmt::format("load = {}. Violated: 0 <= load <= 1e18", field));
        }
        if (rows[row][expert] >= 0) {
          fail(fmt::format("expert {} has a load already", expert));
        }
        rows[row][expert] = v;
      });
  need_every_expert(end_of_file, m, rows, -1.0, "load");
  return rows;
}

/// Servers of the first EP group, if its ranks fill them evenly and in order; else 1.
std::uint32_t servers_of_a_group(const Scenario& out, const Parallel& p) {
  const std::uint32_t ep = p.ep;
  const auto node = [&](std::uint32_t r) { return out.hardware.gpu(p.first_gpu + r).node; };
  std::uint32_t servers = 1;
  for (std::uint32_t r = 1; r < ep; ++r) {
    if (node(r) != node(r - 1)) ++servers;
  }
  bool even = ep % servers == 0;
  for (std::uint32_t r = 0; even && r < ep; ++r) {
    const std::uint32_t first = r / (ep / servers) * (ep / servers);
    even = node(r) == node(first);
  }
  return even ? servers : 1;
}

/// The file that the key `loads` of a section names, and what is written down of it.
std::vector<std::vector<double>> read_loads_file(Context& context, const Section& s,
                                                 const fs::path& folder,
                                                 const model::ModelConfig& model) {
  const Node* node = s.find("loads");
  if (node->kind != Node::Kind::kString || node->text.empty()) {
    s.fail("loads", "expected the name of a CSV file layer,expert,load");
  }
  const fs::path path = named_path(node->text, *node, folder);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    no_such_file(node->where(), s.full_key("loads"), node->text, path);
  }
  std::vector<std::vector<double>> loads = read_loads(path, node->where(), model);
  std::string text;
  for (const auto& row : loads) text += fmt::format("{}\n", fmt::join(row, " "));
  context.record(s.full_key("loads"), fmt::format("file {}", hex64(hash64(std::string_view(text)))),
                 node->where());
  context.record(s.full_key("loads_file"), path.generic_string(), node->where(), false);
  return loads;
}

/// `parallel.placement_options`: each kind takes its own keys and refuses the others.
void read_placement_options(Context& context, Section& parallel, const fs::path& folder,
                            std::string_view kind, const Scenario& out, Parallel& p) {
  PlacementOptions& o = p.placement_options;
  Section s = parallel.section("placement_options", {"redundant", "groups", "nodes", "loads",
                                                     "profile_steps", "max_imbalance", "choice"});
  const bool eplb = p.placement == PlacementKind::kEplb;
  const bool copies = eplb || p.placement == PlacementKind::kReplicated;
  const bool affinity = p.placement == PlacementKind::kAffinity;
  const bool hot = p.placement == PlacementKind::kTopologyHot;
  const auto only = [&](std::string_view key, bool applies) {
    if (!applies && s.has(key)) {
      s.fail(key, fmt::format("means nothing with placement = \"{}\"", kind));
    }
    return applies;
  };
  const auto experts = static_cast<std::uint32_t>(out.model.num_experts);
  if (only("redundant", copies)) {
    const auto most = std::uint64_t{experts} * (p.ep - 1);
    o.redundant = static_cast<std::uint32_t>(
        s.count("redundant", 0, std::max<std::uint64_t>(most, 1),
                eplb ? std::optional<std::uint64_t>(0) : std::optional<std::uint64_t>()));
    if ((experts + o.redundant) % p.ep != 0) {
      s.violated("redundant", fmt::format("ep = {} divides the {} experts and the redundant slots",
                                          p.ep, experts));
    }
  } else if ((affinity || hot) && experts % p.ep != 0) {
    parallel.violated("ep",
                      fmt::format("ep divides the {} experts of {}", experts, out.model.name));
  }
  if (only("groups", eplb)) {
    o.groups = static_cast<std::uint32_t>(
        s.count("groups", 1, experts, std::max<std::uint32_t>(out.model.gate.n_group, 1)));
    if (experts % o.groups != 0) {
      s.violated("groups", fmt::format("groups divides the {} experts", experts));
    }
  }
  if (only("nodes", eplb)) {
    o.nodes = static_cast<std::uint32_t>(s.count("nodes", 1, p.ep, servers_of_a_group(out, p)));
    if (p.ep % o.nodes != 0) {
      s.violated("nodes", fmt::format("nodes divides ep = {}", p.ep));
    }
  }
  const Node* loads = s.find("loads");
  const bool loads_file =
      loads != nullptr && (loads->kind != Node::Kind::kString || loads->text != "profile");
  if (only("loads", copies || hot) && loads_file) {
    if (loads->kind != Node::Kind::kString || loads->text.empty()) {
      s.fail("loads", "expected \"profile\" or the name of a CSV file layer,expert,load");
    }
    o.loads = read_loads_file(context, s, folder, out.model);
    if (s.has("profile_steps")) {
      s.fail("profile_steps", "means nothing with loads from a file");
    }
  } else if (copies || hot || affinity) {
    if (!affinity) {
      context.record(s.full_key("loads"), "profile",
                     loads != nullptr ? loads->where() : std::string("default"));
    }
    o.profile_steps = static_cast<std::uint32_t>(
        s.count("profile_steps", 1, kMaxProfileSteps,
                out.workload.warmup_steps > 0
                    ? std::min<std::uint64_t>(out.workload.warmup_steps, kMaxProfileSteps)
                    : 16));
  } else {
    only("profile_steps", false);
  }
  if (only("max_imbalance", affinity) && s.has("max_imbalance")) {
    o.max_imbalance = s.number("max_imbalance", {1, 1e6});
  }
  const bool has_copies = o.redundant > 0 || !p.replicas.empty();
  if (s.has("choice") && !has_copies) {
    s.fail("choice", "means nothing where every expert has one copy");
  }
  if (has_copies) {
    o.choice = static_cast<ReplicaChoice>(s.choice("choice", kReplicaChoiceNames, 0));
  }
}

/// [parallel.prefill] with the placement of [parallel] and without options of its own: the same
/// ones, as far as its ep allows.
void inherit_placement_options(const Section& prefill, Parallel& p, const Scenario& out) {
  PlacementOptions& o = p.placement_options;
  o = out.parallel.placement_options;
  const auto experts = static_cast<std::uint32_t>(out.model.num_experts);
  const bool loads =
      p.placement == PlacementKind::kReplicated || p.placement == PlacementKind::kEplb ||
      p.placement == PlacementKind::kAffinity || p.placement == PlacementKind::kTopologyHot;
  if (!loads) return;
  if ((experts + o.redundant) % p.ep != 0) {
    throw InputError(prefill.where("ep"),
                     fmt::format("parallel.prefill.ep = {}. Violated: ep divides the {} experts "
                                 "and the {} redundant slots of parallel.placement_options",
                                 p.ep, experts, o.redundant),
                     "state parallel.prefill.placement_options");
  }
  if (p.placement == PlacementKind::kEplb) o.nodes = servers_of_a_group(out, p);
}

std::vector<std::string> parallel_keys() {
  return {"attention",
          "dp",
          "tp",
          "pp",
          "ep",
          "router",
          "hub",
          "placement",
          "rebalance",
          "placement_options",
          "router_cpu",
          "card",
          "micro_batches",
          "sequence_parallel",
          "vocab_parallel",
          "prefill"};
}

/// Of [parallel.prefill]; those that are refused by name among them.
std::vector<std::string> prefill_keys() {
  return {"gpus",           "attention",         "dp",         "tp",     "ep",
          "placement",      "placement_options", "pp",         "router", "rebalance",
          "vocab_parallel", "sequence_parallel", "router_cpu", "card",   "micro_batches"};
}

/// What tensor parallelism divides must divide: heads, KV heads (or each is held by several GPUs),
/// the widths of the dense FFN and of the shared experts.
void check_shards(const Section& s, const model::ModelConfig& m, std::uint32_t tp) {
  const auto divides = [&](std::uint64_t value, std::string_view what) {
    if (value % tp != 0) {
      s.violated("tp", fmt::format("tp divides the {} {} of {}", value, what, m.name));
    }
  };
  divides(m.num_heads, "heads");
  if (m.attention != model::AttentionKind::kMla && m.num_kv_heads % tp != 0 &&
      tp % m.num_kv_heads != 0) {
    s.violated("tp", fmt::format("tp and the {} KV heads of {}: one divides the other",
                                 m.num_kv_heads, m.name));
  }
  for (const model::LayerSpec& layer : m.layers) {
    if (layer.ffn == model::FfnKind::kDense) {
      divides(m.dense_intermediate, "columns of the dense FFN");
      break;
    }
  }
  divides(m.shared_intermediate, "columns of the shared experts");
  if (model::count_parameters(m).stated_backbone > 0) {
    s.fail("tp",
           fmt::format("{} states its backbone as one number, which cannot be divided", m.name),
           "use a model with all its sizes, or attention = \"dp\"");
  }
}

/// parallel.router = "card": one GPU of the hardware only routes. It leaves the ranks before
/// anything counts them; the others keep their order.
void take_router_card(Section& s, Scenario& out) {
  HardwareSpec& h = out.hardware;
  const std::size_t gpus = h.gpu_count();
  if (gpus < 2) {
    s.fail("router", fmt::format("hardware {} has one GPU: none is left to be the card", h.name),
           "use hardware/hgx_h100_router_card.toml");
  }
  // Without the key: the one GPU that is wired by other cables than all the others.
  std::vector<std::set<LinkClass>> wires(gpus);
  for (const Link& l : h.links) {
    for (std::size_t g = 0; g < gpus; ++g) {
      if (h.gpus[g] == l.a || h.gpus[g] == l.b) wires[g].insert(l.link_class);
    }
  }
  std::vector<std::size_t> odd;
  for (std::size_t g = 0; g < gpus; ++g) {
    if (std::count(wires.begin(), wires.end(), wires[g]) == 1) odd.push_back(g);
  }
  if (!s.has("card") && (odd.size() != 1 || gpus == 2)) {
    s.fail("router",
           fmt::format("hardware {} has no card besides its GPUs: {}", h.name,
                       gpus == 2 ? "it has two" : "they are wired alike"),
           "use hardware/hgx_h100_router_card.toml, or name a GPU with parallel.card");
  }
  const auto card = static_cast<std::size_t>(
      s.count("card", 0, gpus - 1, odd.empty() ? std::optional<std::uint64_t>() : odd.front()));
  out.parallel.router_card = h.gpus[card];
  h.devices[h.gpus[card]].kind = DeviceKind::kRouterCard;
  h.gpus.erase(h.gpus.begin() + static_cast<std::ptrdiff_t>(card));
}

/// What the CPUs can do. Their memory's bandwidth, when it is not stated, is that of the devices.
CpuRates read_cpu_rates(Section r, const HardwareSpec& h) {
  std::vector<double> known;
  for (const Device& d : h.devices) {
    if (d.kind == DeviceKind::kCpu) known.push_back(d.memory_rate.value);
  }
  const bool same =
      std::all_of(known.begin(), known.end(), [&](double v) { return v == known[0]; });
  if (!same && !r.has("bandwidth")) {
    r.fail("bandwidth", fmt::format("the cpus of hardware {} differ in theirs", h.name),
           "state the one that counts");
  }
  CpuRates c;
  c.flops = r.flops("flops");
  if (!(c.flops.value > 0)) r.violated("flops", "flops > 0");
  const bool stated = !known.empty() && known[0] > 0;
  c.bandwidth =
      r.rate("bandwidth", stated ? std::optional(BytesPerSecond{known[0]}) : std::nullopt);
  if (!(c.bandwidth.value > 0)) r.violated("bandwidth", "bandwidth > 0");
  c.per_batch = r.duration("per_batch", SimTime());
  if (c.per_batch.ps() > 3'600'000'000'000'000) r.violated("per_batch", "per_batch <= 1 h");
  r.sources();
  return c;
}

void read_router(Section& s, Scenario& out) {
  Parallel& p = out.parallel;
  const HardwareSpec& h = out.hardware;
  p.router = static_cast<RouterPlacement>(s.choice("router", kRouterNames, 0));
  if (p.router != RouterPlacement::kGpu && out.model.num_moe_layers() == 0) {
    s.fail("router", "the model has no MoE layer");
  }
  if (p.router != RouterPlacement::kCard && s.has("card")) {
    s.fail("card", "there is no card", "set parallel.router = \"card\"");
  }
  if (p.router != RouterPlacement::kCpu && s.has("router_cpu")) {
    s.fail("router_cpu", "the router does not run on the CPU", "set parallel.router = \"cpu\"");
  }
  if (p.router != RouterPlacement::kCpu) return;
  if (std::none_of(h.devices.begin(), h.devices.end(),
                   [](const Device& d) { return d.kind == DeviceKind::kCpu; })) {
    s.fail("router", fmt::format("hardware {} has no cpu device", h.name),
           "add [[devices]] kind = \"cpu\" and its links to the GPUs");
  }
  if (!s.has("router_cpu")) {
    s.fail("router", "the speed of the CPU is not stated",
           "write router_cpu = { flops = \"2 TFLOP/s\", bandwidth = \"200 GB/s\", per_batch = "
           "\"10 us\" }");
  }
  p.router_cpu =
      read_cpu_rates(s.section("router_cpu", {"flops", "bandwidth", "per_batch", "source"}), h);
}

/// Stages of a pipeline and the parts of the batch that pass through them.
void read_stages(Section& s, std::uint64_t gpus, Scenario& out) {
  Parallel& p = out.parallel;
  const bool alone = p.attention == AttentionPlacement::kPp;
  p.pp = static_cast<std::uint32_t>(s.count("pp", 1, kMaxCount, alone ? gpus : 1));
  if (p.pp == 1) {
    if (alone) {
      s.fail("pp", "attention = \"pp\" needs at least two stages", "use attention = \"dp\"");
    }
    if (s.has("micro_batches")) {
      s.fail("micro_batches", "there is no pipeline",
             "set parallel.pp; for halves of a batch that overlap: network.two_batch");
    }
    return;
  }
  if (!alone && p.attention != AttentionPlacement::kTp) {
    s.fail("pp", "stages need attention = \"pp\", or \"tp\" inside the stages",
           "set parallel.attention, or pp = 1");
  }
  if (p.pp > out.model.num_layers) {
    s.violated("pp", fmt::format("pp <= {} layers of {}{}", out.model.num_layers, out.model.name,
                                 s.has("pp") ? "" : fmt::format("; the default here is {}", p.pp)));
  }
  if (model::count_parameters(out.model).stated_backbone > 0 ||
      out.model.router == model::RouterKind::kTokenMlp) {
    s.fail("pp", fmt::format("{} has parts that belong to no layer", out.model.name),
           "use a model with all its sizes, or pp = 1");
  }
  p.micro_batches = static_cast<std::uint32_t>(s.count("micro_batches", 1, 4096, p.pp));
}

/// Copies of the experts and what divides them: ep, expert_tp. `fallback`: ep without the key.
void read_ep(Section& s, Parallel& p, std::uint64_t gpus, std::uint64_t fallback,
             const Scenario& out) {
  const bool moe = out.model.num_moe_layers() > 0;
  const bool sharded = p.attention == AttentionPlacement::kTp;
  const std::uint32_t stage = p.stage_gpus();
  p.ep = static_cast<std::uint32_t>(s.count("ep", 1, kMaxCount, fallback));
  if (stage % p.ep != 0) {
    s.violated("ep", p.pp == 1 ? fmt::format("ep divides the {} GPUs", gpus)
                               : fmt::format("ep divides the {} GPUs of a stage", stage));
  }
  if (!moe && p.ep != 1) {
    s.violated("ep", "ep = 1 for a model without MoE layers");
  }
  if (moe && sharded && p.ep % p.tp != 0) {
    if (p.tp % p.ep != 0) {
      s.violated("ep", fmt::format("ep divides tp = {} (experts cut into tp / ep parts) or is a "
                                   "multiple of it",
                                   p.tp));
    }
    p.expert_tp = p.tp / p.ep;
    if (out.model.expert_intermediate % p.expert_tp != 0) {
      s.violated("ep", fmt::format("tp / ep = {} divides the {} columns of the experts of {}",
                                   p.expert_tp, out.model.expert_intermediate, out.model.name));
    }
  }
}

/// What tensor-parallel groups may divide besides: without the keys nothing is recorded, so
/// scenarios that do not know them keep their hash.
void read_shared_tokens(Section& s, Parallel& p, const Scenario& out) {
  if (s.has("sequence_parallel")) {
    p.sequence_parallel = s.boolean("sequence_parallel");
    if (p.sequence_parallel && p.tp == 1) {
      s.fail("sequence_parallel", "there is no group of GPUs that shares tokens",
             fmt::format("set {}.attention = \"tp\"", s.path()));
    }
  }

  if (s.has("vocab_parallel")) {
    p.vocab_parallel = s.boolean("vocab_parallel");
    if (p.vocab_parallel && p.tp == 1) {
      s.fail("vocab_parallel", "there is no group of GPUs that shares tokens",
             fmt::format("set {}.attention = \"tp\"", s.path()));
    }
    if (p.vocab_parallel && out.model.stated.contains("embedding")) {
      s.fail("vocab_parallel",
             fmt::format("{} states its embedding as one number, which cannot be divided",
                         out.model.name),
             "use a model with all its sizes");
    }
  }
}

/// Which rank has which expert, where arithmetic says it. `default_ep`: what the message calls an
/// ep that is not stated.
void place_by_arithmetic(const Section& s, Parallel& p, const std::string& default_ep,
                         const Scenario& out) {
  if (p.placement != PlacementKind::kContiguous && p.placement != PlacementKind::kRoundRobin) {
    return;
  }
  if (out.model.num_experts % p.ep != 0) {
    const std::string rule =
        fmt::format("ep divides the {} experts of {}", out.model.num_experts, out.model.name);
    if (!s.has("ep")) {
      throw InputError(
          s.node().where(),
          fmt::format("{} = {} ({}). Violated: {}", s.full_key("ep"), p.ep, default_ep, rule),
          "state ep, or name a placement file");
    }
    s.violated("ep", rule + ", or placement names a file");
  }
  const auto experts = static_cast<std::uint32_t>(out.model.num_experts);
  std::vector<std::uint32_t> row(experts);
  for (std::uint32_t e = 0; e < experts; ++e) {
    row[e] = p.placement == PlacementKind::kContiguous ? e / (experts / p.ep) : e % p.ep;
  }
  p.expert_rank.assign(1, std::move(row));
}

/// `fallback`: the placement without the key.
void read_placement_kind(Context& context, Section& s, const fs::path& folder, Parallel& p,
                         std::size_t fallback, const std::string& default_ep, const Scenario& out) {
  const bool moe = out.model.num_moe_layers() > 0;
  const Node* placement = s.find("placement");
  const bool is_file = placement != nullptr && placement->kind == Node::Kind::kString &&
                       placement->text.find_first_of("./") != std::string::npos;
  if (is_file) {
    p.placement = PlacementKind::kExplicit;
    const fs::path path = named_path(placement->text, *placement, folder);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      no_such_file(placement->where(), s.full_key("placement"), placement->text, path);
    }
    if (!moe) {
      s.fail("placement", "the model has no MoE layer");
    }
    read_placement(path, placement->where(), out.model, p);
    std::string text;
    for (const auto& row : p.expert_rank) {
      text += fmt::format("{}{}", text.empty() ? "" : " | ", fmt::join(row, " "));
    }
    for (const ReplicaPlace& r : p.replicas) {
      text += fmt::format("; {}:{}:{}", r.row, r.expert, r.rank);
    }
    context.record(s.full_key("placement"), text, placement->where());
    context.record(s.full_key("placement_file"), path.generic_string(), placement->where(), false);
    return;
  }
  p.placement = kPlacementKinds[s.choice("placement", kPlacementNames, fallback)];
  if (!moe) {
    if (p.placement != PlacementKind::kContiguous && p.placement != PlacementKind::kRoundRobin) {
      s.fail("placement", "the model has no MoE layer");
    }
    return;
  }
  place_by_arithmetic(s, p, default_ep, out);
}

/// [parallel.prefill]: the layout of the prefill replicas. What it leaves out is as in [parallel];
/// dp is what the GPUs and tp make it.
void read_prefill(Context& context, Section& s, const fs::path& folder, std::uint64_t gpus,
                  Scenario& out) {
  const Parallel& like = out.parallel;
  Parallel& p = out.prefill.emplace();
  for (const std::string_view key :
       {"pp", "router", "rebalance", "router_cpu", "card", "micro_batches"}) {
    if (s.has(key)) {
      s.fail(key, "is unsupported for prefill replicas",
             "they have one stage, the router on the GPUs and a fixed placement");
    }
  }
  constexpr std::array<std::string_view, 2> kNames{"dp", "tp"};
  constexpr std::array<std::string_view, 2> kOthers{"hub", "pp"};
  const bool like_tp = like.attention == AttentionPlacement::kTp;
  p.attention = s.choice("attention", kNames, like_tp ? 1 : 0, kOthers) == 1
                    ? AttentionPlacement::kTp
                    : AttentionPlacement::kDp;
  const bool sharded = p.attention == AttentionPlacement::kTp;
  p.tp = static_cast<std::uint32_t>(s.count("tp", 1, kMaxCount,
                                            !sharded  ? 1
                                            : like_tp ? like.tp
                                                      : gpus));
  if (p.tp != 1 && !sharded) {
    s.fail("tp", "divides attention over GPUs",
           "set parallel.prefill.attention = \"tp\", or tp = 1");
  }
  if (sharded) check_shards(s, out.model, p.tp);
  p.dp = static_cast<std::uint32_t>(
      s.count("dp", 1, kMaxCount, std::max<std::uint64_t>(gpus / p.tp, 1)));
  if (std::uint64_t{p.dp} * p.tp != gpus) {
    s.violated("dp", fmt::format("dp * tp = parallel.prefill.gpus = {}", gpus));
  }
  read_ep(s, p, gpus, like.ep, out);
  p.sequence_parallel = like.sequence_parallel && p.tp > 1;
  p.vocab_parallel = like.vocab_parallel && p.tp > 1;
  read_shared_tokens(s, p, out);
  if (like.placement == PlacementKind::kExplicit && !s.has("placement")) {
    if (p.ep != like.ep) {
      throw InputError(s.node().where(),
                       fmt::format("parallel.prefill.placement is missing: the file of "
                                   "parallel.placement is of ep = {} ranks, not {}",
                                   like.ep, p.ep),
                       "name another file, or e.g. placement = \"contiguous\"");
    }
    p.placement = like.placement;
    p.expert_rank = like.expert_rank;
    p.replicas = like.replicas;
    return;
  }
  const auto kind = std::find(kPlacementKinds.begin(), kPlacementKinds.end(), like.placement);
  const std::size_t fallback =
      kind == kPlacementKinds.end() ? 0 : static_cast<std::size_t>(kind - kPlacementKinds.begin());
  read_placement_kind(context, s, folder, p, fallback, "default: that of parallel.ep", out);
}

void read_parallel(Context& context, const Node& root, const fs::path& folder, Scenario& out) {
  Section s(context, root.find("parallel"), "parallel", parallel_keys(), root);
  Parallel& p = out.parallel;
  // The card is no GPU of the layout.
  const Node* router = s.find("router");
  if (router != nullptr && router->kind == Node::Kind::kString && router->text == "card") {
    take_router_card(s, out);
  }
  const std::uint64_t all = out.hardware.gpu_count();
  std::optional<Section> prefill;
  if (s.has("prefill")) {
    prefill.emplace(s.section("prefill", prefill_keys()));
    if (!prefill->has("gpus")) {
      prefill->fail("gpus", "is missing",
                    "write gpus = how many GPUs all prefill replicas have together");
    }
    p.first_gpu = static_cast<std::uint32_t>(prefill->count("gpus", 1, kMaxCount));
    if (p.first_gpu >= all) {
      prefill->violated(
          "gpus", fmt::format("gpus < {} GPUs of {}: the rest decode", all, out.hardware.name));
    }
  }
  const std::uint64_t gpus = all - p.first_gpu;
  p.attention = static_cast<AttentionPlacement>(s.choice("attention", kAttentionNames, 0));
  const bool sharded = p.attention == AttentionPlacement::kTp;
  const Node* stages = s.find("pp");
  const std::uint64_t stated_pp =
      stages != nullptr && stages->kind == Node::Kind::kInteger && stages->integer > 0
          ? static_cast<std::uint64_t>(stages->integer)
          : 1;
  p.tp = static_cast<std::uint32_t>(
      s.count("tp", 1, kMaxCount, sharded ? std::max<std::uint64_t>(gpus / stated_pp, 1) : 1));
  read_stages(s, gpus, out);
  if (p.tp != 1 && !sharded) {
    s.fail("tp", "divides attention over GPUs", "set parallel.attention = \"tp\", or tp = 1");
  }
  if (sharded) {
    check_shards(s, out.model, p.tp);
  }
  p.dp = static_cast<std::uint32_t>(
      s.count("dp", 1, kMaxCount, std::max<std::uint64_t>(gpus / (std::uint64_t{p.tp} * p.pp), 1)));
  if (std::uint64_t{p.dp} * p.tp * p.pp != gpus) {
    const std::string whose = prefill ? fmt::format("left: {} of {} less {} of parallel.prefill",
                                                    all, out.hardware.name, p.first_gpu)
                                      : fmt::format("of {}", out.hardware.name);
    s.violated("dp", fmt::format("dp * tp * pp = {} GPUs {}", gpus, whose));
  }
  const bool moe = out.model.num_moe_layers() > 0;
  read_ep(s, p, gpus, !moe ? 1 : sharded ? p.tp : p.stage_gpus(), out);
  read_router(s, out);
  if (p.attention == AttentionPlacement::kHub) {
    if (p.ep != gpus) {
      // A dense model has ep = 1: there is nothing that other GPUs could do.
      s.fail(moe ? "ep" : "attention",
             fmt::format("attention = \"hub\" with ep = {} of {} GPUs is unsupported", p.ep, gpus),
             moe ? "set ep to the number of GPUs" : "use attention = \"dp\" or \"tp\"");
    }
    p.hub = static_cast<std::uint32_t>(s.count("hub", 0, gpus - 1, 0));
  } else if (s.has("hub")) {
    s.fail("hub",
           fmt::format("means nothing with attention = \"{}\"",
                       kAttentionNames[static_cast<std::size_t>(p.attention)]),
           "remove it or set attention = \"hub\"");
  }
  read_shared_tokens(s, p, out);
  read_placement_kind(context, s, folder, p, 0, "default: the number of GPUs", out);
  if (prefill) read_prefill(context, *prefill, folder, p.first_gpu, out);
}

// ---- workload ----

void read_routing(Context& context, Section& workload, const fs::path& folder,
                  const ReadOptions& options, Scenario& out) {
  RoutingSpec& r = out.workload.routing;
  const bool moe = out.model.num_moe_layers() > 0;
  Section s = workload.section("routing", {"trace", "layers", "synthetic", "s", "sigma", "alpha",
                                           "domains", "token_correlation", "layer_correlation"});
  if (!moe) {
    if (workload.has("routing")) {
      workload.fail("routing", "the model has no MoE layer");
    }
    return;
  }
  if (!workload.has("routing") || (!s.has("trace") && !s.has("synthetic"))) {
    throw InputError(s.node().where(), "workload.routing names no source",
                     "write routing = { trace = \"x.h5\" } or { synthetic = \"lognormal\", sigma = "
                     "0.9 }");
  }
  if (s.has("trace") && s.has("synthetic")) {
    s.fail("synthetic", "there is a trace already", "give trace or synthetic, not both");
  }
  if (s.has("trace")) {
    r.source = RoutingSource::kTrace;
    const Node& trace = *s.find("trace");
    if (trace.kind != Node::Kind::kString || trace.text.empty()) {
      s.fail("trace", "expected the name of a trace file");
    }
    const fs::path path = named_path(trace.text, trace, folder);
    std::error_code ignored;
    if (options.require_trace && !fs::exists(path, ignored)) {
      no_such_file(trace.where(), "workload.routing.trace", trace.text, path,
                   "give --trace T.h5; switchyard trace writes one, scripts/demo that of the demo");
    }
    r.trace_path = path.string();
    // The name names the input; the folder it lies in is no part of the experiment.
    context.record("workload.routing.trace", path.filename().string(), trace.where());
    context.record("workload.routing.trace_path", path.generic_string(), trace.where(), false);
    r.layers = static_cast<TraceLayers>(s.choice("layers", kLayersNames, 0));
    for (const std::string_view key :
         {"s", "sigma", "alpha", "domains", "token_correlation", "layer_correlation"}) {
      if (s.has(key)) {
        s.fail(key, "means nothing with a trace");
      }
    }
    return;
  }
  r.source = RoutingSource::kSynthetic;
  if (s.has("layers")) {
    s.fail("layers", "means nothing without a trace");
  }
  r.law = static_cast<SyntheticLaw>(s.choice("synthetic", kLawNames));
  const auto own = [&](std::string_view key, SyntheticLaw law, double& value, double low,
                       double high) {
    if (r.law == law) {
      if (!s.has(key)) {
        s.fail(
            key, "is missing",
            fmt::format("synthetic = \"{}\" needs it", kLawNames[static_cast<std::size_t>(law)]));
      }
      value = s.number(key, {low, high});
    } else if (s.has(key)) {
      s.fail(key, fmt::format("means nothing with synthetic = \"{}\"",
                              kLawNames[static_cast<std::size_t>(r.law)]));
    }
  };
  own("s", SyntheticLaw::kZipf, r.zipf_s, 0, 10);
  own("sigma", SyntheticLaw::kLognormal, r.sigma, 0, 10);
  own("alpha", SyntheticLaw::kDirichlet, r.alpha, 0.001, 1000);
  if (s.has("domains")) {
    if (r.law == SyntheticLaw::kUniform) {
      s.fail("domains", "means nothing with synthetic = \"uniform\"");
    }
  }
  if (s.has("domains") || r.law == SyntheticLaw::kDirichlet) {
    r.domains = static_cast<std::uint32_t>(s.count("domains", 1, 256, 1));
  }
  for (const auto& [key, value] : {std::pair{"token_correlation", &r.token_correlation},
                                   std::pair{"layer_correlation", &r.layer_correlation}}) {
    if (s.has(key)) *value = s.number(key, {0, 0.99});
  }
}

void read_rebalance(Section& parallel, Scenario& out) {
  if (!parallel.has("rebalance")) {
    return;
  }
  Section s = parallel.section("rebalance", {"signal", "threshold", "window", "cooldown", "to"});
  RebalanceSpec& r = out.parallel.rebalance;
  r.signal = static_cast<RebalanceSignal>(s.choice("signal", kRebalanceNames));
  if (r.signal == RebalanceSignal::kOff) {
    for (const std::string_view key : {"threshold", "window", "cooldown", "to"}) {
      if (s.has(key)) {
        s.fail(key, "means nothing with signal = \"off\"");
      }
    }
    return;
  }
  const PlacementKind kind = out.parallel.placement;
  const bool follows = kind == PlacementKind::kReplicated || kind == PlacementKind::kEplb ||
                       kind == PlacementKind::kTopologyHot;
  r.to = kind;
  // Without the key nothing is recorded, so scenarios that do not know it keep their hash.
  if (s.has("to")) {
    if (follows) {
      s.fail("to", "means nothing: this placement is made anew in its own way", "leave it out");
    }
    constexpr std::array<std::string_view, 2> kNames{"eplb", "topology_hot"};
    r.to = s.choice("to", kNames) == 0 ? PlacementKind::kEplb : PlacementKind::kTopologyHot;
    const auto experts = static_cast<std::uint32_t>(out.model.num_experts);
    if (!out.parallel.replicas.empty()) {
      s.fail("to", "unsupported with a placement file that has several copies of an expert",
             "use placement = \"eplb\" with placement_options.redundant");
    }
    if (experts % out.parallel.ep != 0) {
      s.violated("to", fmt::format("ep = {} divides the {} experts", out.parallel.ep, experts));
    }
    if (r.to == PlacementKind::kEplb) {
      PlacementOptions& o = out.parallel.placement_options;
      o.groups = std::max<std::uint32_t>(out.model.gate.n_group, 1);
      o.nodes = servers_of_a_group(out, out.parallel);
    }
  } else if (!follows) {
    s.fail("signal", "this placement does not follow loads",
           "set rebalance.to, or use placement = \"eplb\", \"replicated\" or \"topology_hot\"");
  }
  r.threshold = r.signal == RebalanceSignal::kLoad ? s.number("threshold", {1, 1e6})
                                                   : s.number("threshold", {0, 1});
  r.window = static_cast<std::uint32_t>(s.count("window", 1, kMaxProfileSteps, 8));
  r.cooldown = static_cast<std::uint32_t>(s.count("cooldown", 1, kMaxCount, r.window));
}

void read_placement_section(Context& context, const Node& root, const fs::path& folder,
                            Scenario& out) {
  const Node* parallel = root.find("parallel");
  if (out.model.num_moe_layers() == 0) {
    for (const std::string_view key : {"placement_options", "rebalance"}) {
      const Node* node = parallel == nullptr ? nullptr : parallel->find(key);
      if (node != nullptr) {
        throw InputError(node->where(),
                         fmt::format("parallel.{}: the model has no MoE layer", key));
      }
    }
    return;
  }
  Section s(context, parallel, "parallel", parallel_keys(), root);
  const auto name_of = [](PlacementKind placement) -> std::string_view {
    const auto kind = std::find(kPlacementKinds.begin(), kPlacementKinds.end(), placement);
    return kind == kPlacementKinds.end()
               ? "a file"
               : kPlacementNames[static_cast<std::size_t>(kind - kPlacementKinds.begin())];
  };
  read_placement_options(context, s, folder, name_of(out.parallel.placement), out, out.parallel);
  read_rebalance(s, out);
  if (!out.prefill) return;
  Section prefill = s.section("prefill", prefill_keys());
  Parallel& p = *out.prefill;
  if (p.placement == out.parallel.placement && !prefill.has("placement_options")) {
    inherit_placement_options(prefill, p, out);
    return;
  }
  read_placement_options(context, prefill, folder, name_of(p.placement), out, p);
}

void read_workload(Context& context, const Node& root, const fs::path& folder,
                   const ReadOptions& options, Scenario& out) {
  std::vector<std::string> keys{"kind",  "batch",        "context", "tokens",
                                "steps", "warmup_steps", "routing"};
  for (std::string& key : serving_keys()) keys.push_back(std::move(key));
  Section s(context, root.find("workload"), "workload", std::move(keys), root);
  Workload& w = out.workload;
  w.kind = static_cast<WorkloadKind>(s.choice("kind", kWorkloadNames, {}));
  if (w.serves()) {
    const auto place = [&](const Node& file) {
      const fs::path path = named_path(file.text, file, folder);
      std::error_code ignored;
      if (!fs::exists(path, ignored)) {
        no_such_file(file.where(), "workload.arrivals.file", file.text, path);
      }
      return path;
    };
    read_serving(context, s, place, out);
    w.warmup_steps = static_cast<std::uint32_t>(s.count("warmup_steps", 0, kMaxCount, 0));
    read_routing(context, s, folder, options, out);
    return;
  }
  for (const std::string& key : serving_keys()) {
    if (s.has(key)) {
      s.fail(key,
             fmt::format("means nothing with kind = \"{}\"",
                         kWorkloadNames[static_cast<std::size_t>(w.kind)]),
             "use kind = \"open\", \"closed\" or \"trace\"");
    }
  }
  const bool decode = w.kind == WorkloadKind::kDecode;
  w.batch = static_cast<std::uint32_t>(
      s.count("batch", 1, kMaxCount,
              decode ? std::optional<std::uint64_t>() : std::optional<std::uint64_t>(1)));
  if (decode) {
    w.context = static_cast<std::uint32_t>(s.count("context", 1, kMaxTokens));
    if (s.has("tokens")) {
      s.fail("tokens", "a decode step has one token per sequence", "use kind = \"prefill\"");
    }
    w.tokens = 1;
  } else {
    w.context = static_cast<std::uint32_t>(s.count("context", 0, kMaxTokens, 0));
    w.tokens = static_cast<std::uint32_t>(s.count("tokens", 1, kMaxTokens));
  }
  w.steps = static_cast<std::uint32_t>(s.count("steps", 1, kMaxCount, 1));
  w.warmup_steps = static_cast<std::uint32_t>(s.count("warmup_steps", 0, kMaxCount, 0));
  if (std::uint64_t{w.batch} * w.tokens > kMaxTokens) {
    s.violated(decode ? "batch" : "tokens",
               fmt::format("batch * tokens = {} <= {} tokens a step",
                           std::uint64_t{w.batch} * w.tokens, kMaxTokens));
  }
  read_routing(context, s, folder, options, out);
}

// ---- policy ----

/// Value of a policy key as set_policy_field takes it.
std::string policy_value(const Node& node, const std::string& shown, bool list) {
  const bool parts = node.kind == Node::Kind::kArray || node.kind == Node::Kind::kTable;
  switch (parts && !list ? Node::Kind::kOther : node.kind) {
    case Node::Kind::kString:
      return node.text;
    case Node::Kind::kInteger:
      return fmt::format("{}", node.integer);
    case Node::Kind::kFloat:
      return fmt::format("{}", node.number);
    case Node::Kind::kBoolean:
      return node.boolean ? "true" : "false";
    case Node::Kind::kArray: {  // ["a poem", "a story"]
      std::string list;
      for (const Node& item : node.children) {
        if (item.kind != Node::Kind::kString) {
          throw InputError(item.where(), fmt::format("{}: {} is {}; expected text", shown,
                                                     brief(item), item.kind_name()));
        }
        list += (list.empty() ? "" : "|") + policy_word(item.text);
      }
      return list.empty() ? "off" : list;
    }
    case Node::Kind::kTable: {  // { code = 3, poetry = 5 }
      std::string list;
      for (const Node& item : node.children) {
        if (item.kind != Node::Kind::kInteger) {
          throw InputError(item.where(),
                           fmt::format("{}.{} = {} is {}; expected a whole number", shown, item.key,
                                       brief(item), item.kind_name()));
        }
        list +=
            fmt::format("{}{}:{}", list.empty() ? "" : "|", policy_word(item.key), item.integer);
      }
      return list.empty() ? "off" : list;
    }
    default:
      throw InputError(node.where(), fmt::format("{} = {} is {}; expected a number or text", shown,
                                                 brief(node), node.kind_name()));
  }
}

/// Legal values of a policy field; where they are plain words, the words are its choices.
void describe_policy_field(ResolvedValue& value, std::string_view key) {
  for (const PolicyField& field : policy_fields()) {
    if (field.key != key) continue;
    value.legal = field.legal;
    std::vector<std::string> words;
    std::string_view rest = field.legal;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(", "), rest.size());
      const std::string_view word = rest.substr(0, end);
      if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != word.npos) return;
      words.emplace_back(word);
      rest.remove_prefix(std::min(end + 2, rest.size()));
    }
    if (words.size() < 2) return;
    value.kind = ValueKind::kChoice;
    value.choices = std::move(words);
  }
}

std::string content_of(const fs::path& path, const std::string& where) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  std::error_code ignored;
  if (fs::is_directory(path, ignored) || !in || !(text << in.rdbuf())) {
    throw InputError(where, fmt::format("cannot read \"{}\"", path.generic_string()));
  }
  return std::move(text).str();
}

/// Reads the fields of `table` (null: all defaults) whose full keys begin with "policy.".
/// Files they name are looked for beside the text that names them, their places go to `files`.
RoutingPolicy policy_from(Context& context, const Node* table, const Node& parent,
                          const fs::path& folder, PolicyFiles& files) {
  std::vector<std::string> top;
  for (const PolicyField& field : policy_fields()) {
    const std::string head(field.key.substr(0, field.key.find('.')));
    if (std::find(top.begin(), top.end(), head) == top.end()) {
      top.push_back(head);
    }
  }
  Section s(context, table, "policy", top, parent);
  RoutingPolicy policy;
  const auto is = [](bool PolicyField::*kind, const std::string& key) {
    const auto fields = policy_fields();
    return std::any_of(fields.begin(), fields.end(),
                       [&](const PolicyField& f) { return f.*kind && f.key == key; });
  };
  for (const std::string& head : top) {
    std::vector<std::string> members;
    bool leaf = false;
    for (const PolicyField& field : policy_fields()) {
      if (field.key == head) {
        leaf = true;
      } else if (field.key.starts_with(head + ".")) {
        members.emplace_back(field.key.substr(head.size() + 1));
      }
    }
    const auto take = [&](const Section& in, std::string_view key, const std::string& field) {
      const Node* node = in.find(key);
      if (node != nullptr) {
        const std::string shown = in.shown_key(key, *node);
        try {
          const std::string value = policy_value(*node, shown, is(&PolicyField::list, field));
          set_policy_field(policy, field, value, node->where());
          if (is(&PolicyField::file, field) && value != "off") {
            const fs::path path = named_path(value, *node, folder);
            std::error_code ignored;
            if (!fs::exists(path, ignored)) {
              no_such_file(node->where(), shown, value, path);
            }
            files[field] = path;
            // In the hash by content: the same name may hold something else tomorrow.
            context.record("policy." + field + ".content",
                           hex64(hash64(std::string_view(content_of(path, node->where())))),
                           node->where());
          }
        } catch (const InputError& e) {
          // The library names the key its own way; say it as the user wrote it.
          const std::string library_key = "policy." + field;
          std::string message = e.message();
          if (shown != library_key && message.starts_with(library_key)) {
            message = shown + message.substr(library_key.size());
          }
          throw InputError(node->where(), message, e.hint());
        }
      }
      context.record("policy." + field, get_policy_field(policy, field),
                     node != nullptr ? node->where() : "default");
      describe_policy_field(context.values.back(), field);
    };
    if (leaf) {
      take(s, head, head);
      continue;
    }
    const Section sub = s.section(head, members);
    for (const std::string& member : members) {
      take(sub, member, fmt::format("{}.{}", head, member));
    }
  }
  return policy;
}

/// Cross-checks of the policy, with the place of the key the message is about.
void validate_policy(const Context& context, const RoutingPolicy& policy, std::uint32_t experts,
                     std::uint32_t top_k, const std::string& otherwise) {
  try {
    validate(policy, experts, top_k, otherwise);
  } catch (const InputError& e) {
    const std::string key = e.message().substr(0, e.message().find_first_of(" :="));
    throw InputError(context.where(key, otherwise), e.message(), e.hint());
  }
}

// ---- network, memory, host, run ----

/// Tokens that wait for the next step.
bool defers(const RoutingPolicy& policy) {
  return policy.capacity.queue == QueueMode::kDefer &&
         (policy.capacity.exhausted == Exhausted::kQueue || policy.pinned.on());
}

/// A hierarchical all-reduce needs equally many members of a group on each of its servers.
void check_servers(const Section& s, const Scenario& out) {
  for (const Parallel* p : out.layouts()) {
    for (std::uint32_t first = p->first_gpu; p->has(first); first += p->tp) {
      std::map<std::uint32_t, std::uint32_t> members;
      for (std::size_t g = first; g < first + p->tp; ++g) {
        ++members[out.hardware.gpu(g).node];
      }
      for (const auto& [node, count] : members) {
        if (count != members.begin()->second) {
          s.fail("collective",
                 fmt::format("\"hierarchical\" with {} and {} GPUs of a group on its servers",
                             members.begin()->second, count),
                 "use \"ring\"");
        }
      }
    }
  }
}

/// [network.measured]: file = "table.csv", class = "nvlink4".
void read_measured(Context& context, Section& network, const fs::path& folder, Scenario& out) {
  if (!network.has("measured")) {
    return;
  }
  Section s = network.section("measured", {"file", "class", "source"});
  MeasuredSpec& m = out.network.measured;
  if (!s.has("file")) {
    s.fail("file", "is missing", "name a CSV table with the header bytes,GB/s");
  }
  const Node& file = *s.find("file");
  if (file.kind != Node::Kind::kString) {
    s.fail("file", "expected text");
  }
  const fs::path path = named_path(file.text, file, folder);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    no_such_file(s.where("file"), "network.measured.file", file.text, path);
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (fs::is_directory(path, ignored) || !in || !(text << in.rdbuf())) {
    throw InputError(s.where("file"),
                     fmt::format("cannot read the table \"{}\"", path.generic_string()));
  }
  m.points = parse_bandwidth_table(text.str(), path.generic_string());
  context.record("network.measured.file", path.generic_string(), s.where("file"), false);
  m.link_class = static_cast<LinkClass>(s.choice("class", kLinkClassNames));
  if (std::none_of(out.hardware.links.begin(), out.hardware.links.end(),
                   [&](const Link& l) { return l.link_class == m.link_class; })) {
    s.violated("class", fmt::format("{} has a link of that class", out.hardware.name));
  }
  // In the hash by content; a comment or the file's place changes nothing.
  std::string points;
  for (const BandwidthPoint& p : m.points) {
    points += fmt::format("{} {}\n", p.bytes, p.bandwidth.value);
  }
  context.record("network.measured.points",
                 fmt::format("{} points, {} to {}, {}", m.points.size(),
                             show_bytes(m.points.front().bytes), show_bytes(m.points.back().bytes),
                             hash128(std::as_bytes(std::span(points.data(), points.size()))).hex()),
                 s.where("file"));
  s.sources();
}

void read_network(Context& context, const Node& root, const fs::path& folder, Scenario& out) {
  Section s(context, root.find("network"), "network",
            {"model", "algorithm", "dispatch", "payload", "collective", "measured", "chunks",
             "comm_sms", "chunk_by", "two_batch", "broadcast"},
            root);
  NetworkSpec& n = out.network;
  n.model = static_cast<NetworkModelKind>(s.choice("model", kNetworkNames, 0));
  n.algorithm = static_cast<ExchangeAlgorithm>(s.choice("algorithm", kAlgorithmNames, 0));
  n.dispatch = static_cast<DispatchKind>(s.choice("dispatch", kDispatchNames, 1));
  Section p = s.section("payload",
                        {"dispatch", "combine", "scale_block", "header", "combine_header", "wire"});
  n.payload.dispatch = p.dtype("dispatch", out.activations);
  n.payload.combine = p.dtype("combine", out.activations);
  n.payload.scale_block = static_cast<std::uint32_t>(p.count("scale_block", 0, kMaxCount, 128));
  n.payload.header = p.bytes("header", 0);
  n.payload.combine_header = p.bytes("combine_header", 0);
  constexpr std::uint64_t kMaxHeader = std::uint64_t{1} << 20U;
  if (n.payload.header > kMaxHeader) {
    p.violated("header", "header <= 1 MiB");
  }
  if (n.payload.combine_header > kMaxHeader) {
    p.violated("combine_header", "combine_header <= 1 MiB");
  }
  n.payload.wire = static_cast<WireFormat>(p.choice("wire", kWireNames, 0));
  if (n.payload.wire != WireFormat::kNative) {
    for (const auto& [key, format] :
         {std::pair("dispatch", n.payload.dispatch), std::pair("combine", n.payload.combine)}) {
      if (model::dtype_bits_x32(format) <= 4 * 32) {
        p.fail("wire", fmt::format("packs to 4 bits what {} has at 4 bits already", key),
               "drop one of the two");
      }
    }
  }
  const auto any_layout = [&](const std::function<bool(const Parallel&)>& is) {
    const std::vector<const Parallel*> layouts = out.layouts();
    return std::any_of(layouts.begin(), layouts.end(), [&](const Parallel* p) { return is(*p); });
  };
  if (any_layout([](const Parallel& p) { return p.attention == AttentionPlacement::kTp; })) {
    n.collective = static_cast<ReduceAlgorithm>(s.choice("collective", kReduceNames, 0));
    const std::string hint = "the experts are divided inside each group: all-reduces only";
    const bool dispatches = any_layout([](const Parallel& p) { return p.ep > p.tp; });
    if (!dispatches && n.algorithm != ExchangeAlgorithm::kDirect) {
      s.fail("algorithm", "means nothing with attention = \"tp\"", hint);
    }
    if (!dispatches && n.dispatch != DispatchKind::kPerRank) {
      s.fail("dispatch", "means nothing with attention = \"tp\"", hint);
    }
    if (!dispatches && s.has("payload")) {
      s.fail("payload", "means nothing with attention = \"tp\"", hint);
    }
    if (n.collective == ReduceAlgorithm::kHierarchical) {
      check_servers(s, out);
    }
    const bool halves =
        n.collective == ReduceAlgorithm::kRing || n.collective == ReduceAlgorithm::kDirect;
    const bool gathers = any_layout([](const Parallel& p) {
      return p.sequence_parallel || p.vocab_parallel || (p.tp > 1 && p.ep > p.tp);
    });
    if (!halves && gathers) {
      s.fail("collective", "there is no such reduce-scatter and all-gather",
             "use \"ring\" or \"direct\"");
    }
  } else if (s.has("collective")) {
    s.fail("collective", "there is no all-reduce", "set parallel.attention = \"tp\"");
  }
  if (s.has("broadcast")) {
    n.broadcast = static_cast<BroadcastAlgorithm>(s.choice("broadcast", kBroadcastNames));
  }
  read_measured(context, s, folder, out);
  const bool ring = n.algorithm == ExchangeAlgorithm::kRing ||
                    n.algorithm == ExchangeAlgorithm::kRingBidirectional;
  const std::uint32_t group = out.parallel.exchange_gpus();
  const auto whole = static_cast<std::uint32_t>(out.hardware.gpu_count()) / out.parallel.pp;
  if (ring && group < whole && n.dispatch == DispatchKind::kPerNode) {
    s.fail("algorithm",
           fmt::format("\"ring\" with {} groups of {} of the {} GPUs is unsupported with "
                       "network.dispatch = \"per_node\": the exchanges of the groups are one "
                       "there, whose ring would go round all GPUs",
                       whole / group, group, whole),
           "use algorithm = \"direct\" or \"hierarchical\"");
  }
  // Without the keys nothing is recorded, so scenarios that do not know them keep their hash.
  if (s.has("chunks")) {
    n.chunks = static_cast<std::uint32_t>(s.count("chunks", 1, 64));
    const auto refuse = [&](bool on, const std::string& what) {
      if (on && n.chunks > 1) s.fail("chunks", "unsupported with " + what, "use chunks = 1");
    };
    refuse(out.model.num_moe_layers() == 0, "a model without MoE layers");
    refuse(any_layout([](const Parallel& p) {
             return p.attention == AttentionPlacement::kTp && p.ep <= p.tp;
           }),
           "attention = \"tp\" and ep <= tp: there is no dispatch");
    refuse(out.policy.soft.on() && out.policy.soft.cost == SoftCost::kStacked,
           "policy.soft.cost = \"stacked\"");
  }
  if (s.has("chunk_by")) {
    n.chunk_by = static_cast<ChunkBy>(s.choice("chunk_by", kChunkByNames));
    if (n.chunks == 1) {
      s.fail("chunk_by", "means nothing with chunks = 1", "set network.chunks");
    }
  }
  if (s.has("two_batch")) {
    n.two_batch = s.boolean("two_batch");
    const auto refuse = [&](bool on, const std::string& what, const std::string& hint) {
      if (on && n.two_batch) s.fail("two_batch", "unsupported with " + what, hint);
    };
    refuse(out.model.num_moe_layers() == 0, "a model without MoE layers",
           "there is no exchange to hide");
    refuse(any_layout([](const Parallel& p) { return p.ep == 1 && p.tp == 1; }),
           "ep = 1: there is no exchange to hide", "set parallel.ep");
  }
  if (s.has("comm_sms")) {
    n.comm_sms = s.percent("comm_sms");
    if (n.comm_sms > 0.9) s.violated("comm_sms", "comm_sms <= 90 %");
    if (n.chunks == 1 && !n.two_batch) {
      s.fail("comm_sms", "means nothing with chunks = 1",
             "set network.chunks or network.two_batch");
    }
  }
}

/// Experts that the CPU computes (memory.residency.miss).
void read_miss(Section& s, Scenario& out) {
  ResidencySpec& r = out.memory.residency;
  // Without the key nothing is recorded, so scenarios that do not know it keep their hash.
  if (s.has("miss")) r.miss = static_cast<MissKind>(s.choice("miss", kMissNames));
  if (r.miss == MissKind::kLoad) {
    if (s.has("cpu")) {
      s.fail("cpu", "no expert is computed on the CPU",
             "set memory.residency.miss = \"cpu\" or \"cheaper\"");
    }
    return;
  }
  const auto refuse = [&](bool on, const std::string& what, const std::string& hint) {
    if (!on) return;
    s.fail("miss",
           fmt::format("\"{}\" is unsupported with {}",
                       kMissNames[static_cast<std::size_t>(r.miss)], what),
           hint);
  };
  refuse(r.policy != ResidencyPolicy::kStatic,
         fmt::format("policy = \"{}\": an expert that the CPU computes does not come in",
                     kResidencyNames[static_cast<std::size_t>(r.policy)]),
         "use policy = \"static\"");
  refuse(r.store == ExpertStore::kCxl, "store = \"cxl\": the CPU computes from its own memory",
         "use store = \"ssd\"");
  refuse(r.host_slots < out.model.num_experts,
         fmt::format("host_slots = {}: host memory must keep all {} experts", r.host_slots,
                     out.model.num_experts),
         "leave host_slots out");
  refuse(out.parallel.router != RouterPlacement::kGpu, "a router off the GPUs",
         "use parallel.router = \"gpu\"");
  const std::vector<const Parallel*> layouts = out.layouts();
  refuse(std::any_of(layouts.begin(), layouts.end(),
                     [](const Parallel* p) { return p->expert_tp > 1; }),
         "experts that several GPUs divide by columns", "use ep >= tp");
  if (!s.has("cpu")) {
    s.fail("miss", "the speed of the CPU is not stated",
           "write cpu = { flops = \"20 TFLOP/s\", bandwidth = \"200 GB/s\" }");
  }
  r.cpu =
      read_cpu_rates(s.section("cpu", {"flops", "bandwidth", "per_batch", "source"}), out.hardware);
}

void read_residency(Context& context, Section& memory, const fs::path& folder, Scenario& out) {
  if (!memory.has("residency")) {
    return;  // Every expert is resident.
  }
  Section s =
      memory.section("residency", {"policy", "slots", "host_slots", "prefetch", "prefetch_experts",
                                   "initial", "profile_steps", "loads", "store", "miss", "cpu"});
  ResidencySpec& r = out.memory.residency;
  r.policy = static_cast<ResidencyPolicy>(s.choice("policy", kResidencyNames, 0));
  if (!r.on()) {
    for (const char* key : {"slots", "host_slots", "prefetch", "prefetch_experts", "initial",
                            "profile_steps", "loads", "store", "miss", "cpu"}) {
      if (s.has(key)) {
        s.fail(key, "means nothing while every expert is resident",
               "set memory.residency.policy to lru, lfu or static");
      }
    }
    return;
  }
  const auto experts = static_cast<std::uint64_t>(out.model.num_experts);
  if (experts == 0) {
    s.fail("policy", "the model has no MoE layer");
  }
  if (out.parallel.rebalance.signal != RebalanceSignal::kOff &&
      r.policy == ResidencyPolicy::kStatic) {
    s.fail("policy", "unsupported with parallel.rebalance: a static cache never keeps what moves",
           "use lru or lfu");
  }
  if (!out.network.measured.points.empty()) {
    s.fail("policy", "unsupported with network.measured",
           "a measured link is known only for exchanges alone on it");
  }
  if (out.policy.soft.on() && out.policy.soft.cost == SoftCost::kStacked) {
    s.fail("policy", "unsupported with policy.soft.cost = \"stacked\": it reads every expert",
           "use soft.cost = \"gathered\"");
  }
  r.slots = static_cast<std::uint32_t>(s.count("slots", 1, experts));
  // Without the key nothing is recorded, so scenarios that do not know it keep their hash.
  if (s.has("store")) r.store = static_cast<ExpertStore>(s.choice("store", kStoreNames));
  const bool cxl = r.store == ExpertStore::kCxl;
  r.host_slots =
      static_cast<std::uint32_t>(s.count("host_slots", cxl ? 0 : 1, experts, cxl ? 0 : experts));
  if (cxl && r.host_slots == experts) {
    s.fail("store", "means nothing: host memory keeps every expert", "set host_slots below that");
  }
  const auto has = [&](DeviceKind kind) {
    return std::any_of(out.hardware.devices.begin(), out.hardware.devices.end(),
                       [&](const Device& d) { return d.kind == kind; });
  };
  if (r.host_slots > 0 && !has(DeviceKind::kCpu)) {
    s.fail(cxl ? "host_slots" : "policy",
           fmt::format("hardware {} has no cpu device to load experts from", out.hardware.name),
           "add [[devices]] kind = \"cpu\" and its links");
  }
  if (cxl && !has(DeviceKind::kCxl)) {
    s.fail("store", fmt::format("hardware {} has no cxl device", out.hardware.name),
           "add [[devices]] kind = \"cxl\" with its memory and its links to the cpus");
  }
  if (!cxl && r.host_slots < experts && !has(DeviceKind::kSsd)) {
    s.fail("host_slots",
           fmt::format("hardware {} has no ssd device for the other experts", out.hardware.name),
           "add [[devices]] kind = \"ssd\" with its link to a cpu, or use store = \"cxl\"");
  }
  read_miss(s, out);
  r.prefetch = static_cast<PrefetchKind>(s.choice("prefetch", kPrefetchNames, 0));
  if (r.policy == ResidencyPolicy::kStatic && r.prefetch != PrefetchKind::kNone) {
    s.fail("prefetch", "a static cache brings nothing in", "use policy = \"lru\" or \"lfu\"");
  }
  if (r.prefetch == PrefetchKind::kFrequency) {
    r.prefetch_experts = static_cast<std::uint32_t>(
        s.count("prefetch_experts", 1, r.slots,
                std::min<std::uint64_t>(r.slots, static_cast<std::uint64_t>(out.model.top_k))));
  } else if (s.has("prefetch_experts")) {
    s.fail("prefetch_experts", "means nothing", "set prefetch = \"frequency\"");
  }
  const bool fixed = r.policy == ResidencyPolicy::kStatic;
  r.hot = s.choice("initial", kInitialNames, fixed ? 1 : 0) == 1;
  if (fixed && !r.hot) {
    s.fail("initial", "a static cache that begins empty stays empty", "use initial = \"hot\"");
  }
  if (r.hot && s.has("loads")) {
    if (s.has("profile_steps")) {
      s.fail("profile_steps", "means nothing with loads from a file", "give one of them");
    }
    r.loads = read_loads_file(context, s, folder, out.model);
  } else if (r.hot) {
    r.profile_steps = static_cast<std::uint32_t>(
        s.count("profile_steps", 1, 1'000'000,
                out.workload.warmup_steps > 0 ? out.workload.warmup_steps : 16));
  } else {
    for (const char* key : {"profile_steps", "loads"}) {
      if (s.has(key)) s.fail(key, "means nothing", "set initial = \"hot\"");
    }
  }
}

void read_loading(Section& memory, Scenario& out) {
  if (!memory.has("loading")) {
    return;  // The weights are there.
  }
  using From = LoadingSpec::From;
  Section s =
      memory.section("loading", {"from", "shards", "in_flight", "checksum", "order", "start",
                                 "warm_up", "warm_up_per_expert", "workspace", "table"});
  LoadingSpec& l = out.memory.loading;
  l.from = static_cast<From>(s.choice("from", kLoadingNames, 0));
  if (!l.on()) {
    for (const char* key : {"shards", "in_flight", "checksum", "order", "start", "warm_up",
                            "warm_up_per_expert", "workspace", "table"}) {
      if (s.has(key)) {
        s.fail(key, "means nothing while the weights are there", "set from = \"ssd\" or \"host\"");
      }
    }
    return;
  }
  const auto has = [&](DeviceKind kind) {
    return std::any_of(out.hardware.devices.begin(), out.hardware.devices.end(),
                       [&](const Device& d) { return d.kind == kind; });
  };
  if (!has(DeviceKind::kCpu) || (l.from == From::kSsd && !has(DeviceKind::kSsd))) {
    s.fail("from",
           fmt::format("hardware {} has no {} device to load from", out.hardware.name,
                       has(DeviceKind::kCpu) ? "ssd" : "cpu"),
           "add it to [[devices]], with its links");
  }
  l.shards = static_cast<std::uint32_t>(s.count("shards", 1, 65536, 16));
  if (l.from == From::kSsd) {
    l.in_flight = static_cast<std::uint32_t>(
        s.count("in_flight", 1, l.shards, std::min<std::uint64_t>(2, l.shards)));
  } else if (s.has("in_flight")) {
    s.fail("in_flight", "there is one copy at a time from host memory", "set from = \"ssd\"");
  }
  if (s.has("checksum")) {
    l.checksum = s.rate("checksum");
    if (!(l.checksum.value > 0)) {
      s.violated("checksum", "checksum > 0 B/s");
    }
  }
  l.warm_up_per_expert = s.duration("warm_up_per_expert", SimTime());
  if (l.warm_up_per_expert.ps() < 0 || l.warm_up_per_expert.ps() > 3'600'000'000'000'000) {
    s.violated("warm_up_per_expert", "0 s <= warm_up_per_expert <= 1 h");
  }
  // Without the key nothing is recorded, so scenarios that do not know it keep their hash.
  if (s.has("warm_up")) {
    if (s.has("warm_up_per_expert")) {
      s.fail("warm_up", "there is a stated warm_up_per_expert beside it", "keep one of the two");
    }
    if (out.model.num_moe_layers() == 0) s.fail("warm_up", "the model has no MoE layer");
    Section w = s.section("warm_up", {"tokens"});
    constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 20U;
    l.warm_up_tokens = static_cast<std::uint32_t>(w.count("tokens", 1, kMostTokens));
  }
  l.workspace = s.bytes("workspace", 0);
  if (l.workspace > 0 && !l.warms_up()) {
    s.fail("workspace", "there is no warm-up", "state warm_up or warm_up_per_expert");
  }
  l.table = s.bytes("table", 0);
  l.parallel = s.choice("order", kOrderNames, 0) == 1;
  if (l.parallel && (l.table == 0 || !l.warms_up())) {
    s.fail("order", "warm-up and table can only be parallel when both are there",
           "state warm_up or warm_up_per_expert, and table");
  }
  l.by_layer = s.choice("start", kStartNames, 0) == 1;
  if (l.by_layer && (l.table > 0 || l.warms_up())) {
    s.fail("start", "a GPU that serves by layer has no warm-up and no table",
           "use start = \"ready\"");
  }
}

void read_memory(Context& context, const Node& root, const fs::path& folder, Scenario& out) {
  Section s(context, root.find("memory"), "memory",
            {"watermark", "watermark_action", "sample_every", "reserve", "kv", "allocator", "page",
             "residency", "loading"},
            root);
  MemorySpec& m = out.memory;
  m.watermark = s.percent("watermark", 0.92);
  if (!(m.watermark > 0) || m.watermark > 1) {
    s.violated("watermark", "0 % < watermark <= 100 %");
  }
  m.watermark_action = static_cast<WatermarkAction>(s.choice("watermark_action", kActionNames, 0));
  if (s.has("sample_every")) {
    m.sample_every = s.duration("sample_every");
    if (m.sample_every.ps() <= 0) s.violated("sample_every", "sample_every > 0");
    if (out.workload.serves() && out.workload.serving.front_end.replicas > 1) {
      s.fail("sample_every", "unsupported with several replicas: each has a clock of its own",
             "use workload.front_end.replicas = 1");
    }
  } else {
    context.record("memory.sample_every", "auto", "default");
  }
  if (m.watermark_action != WatermarkAction::kRecord && !out.workload.serves()) {
    s.fail("watermark_action", "means nothing: a fixed batch admits and preempts nobody",
           "set workload.kind to open, closed or trace, or use \"record\"");
  }
  m.reserve = s.bytes("reserve", 0);
  for (const GpuType& type : out.hardware.gpu_types) {
    if (m.reserve >= type.memory_bytes) {
      s.violated("reserve", fmt::format("reserve < {} of memory of {}",
                                        show_bytes(type.memory_bytes), type.name));
    }
  }
  Section kv = s.section("kv", {"placement", "block", "decode"});
  const bool hub = out.parallel.attention == AttentionPlacement::kHub;
  m.kv_placement = static_cast<KvPlacement>(
      kv.choice("placement", kKvNames,
                static_cast<std::size_t>(hub ? KvPlacement::kHub : KvPlacement::kBySequence)));
  const bool spread =
      m.kv_placement == KvPlacement::kByToken || m.kv_placement == KvPlacement::kByExpert;
  if (m.kv_placement == KvPlacement::kReplicated && out.parallel.tp > 1) {
    kv.fail("placement", "unsupported with parallel.tp > 1",
            "supported: by_sequence, by_token, by_expert");
  }
  if (spread && out.parallel.tp > 1 && out.parallel.ep <= out.parallel.tp) {
    kv.fail("placement",
            "means nothing with ep <= tp: pages go round the tensor-parallel groups of one copy of "
            "the experts, and there is one",
            "use by_sequence, or a parallel.ep that is a multiple of tp");
  }
  if (m.kv_placement == KvPlacement::kHub && !hub) {
    kv.fail("placement", "there is no hub", "set parallel.attention = \"hub\"");
  }
  if (m.kv_placement == KvPlacement::kByExpert) {
    if (out.model.num_moe_layers() == 0) {
      kv.fail("placement", "the model has no MoE layer", "use by_sequence");
    }
    if (std::any_of(out.model.layers.begin(), out.model.layers.end(),
                    [](const model::LayerSpec& l) { return l.sliding_window > 0; })) {
      kv.fail("placement", "unsupported with sliding-window attention",
              "use by_token or by_sequence");
    }
  }
  if (out.parallel.ep == 1 && spread) {
    kv.fail("placement",
            "means nothing with parallel.ep = 1: pages go round the GPUs of one copy "
            "of the experts",
            "use by_sequence, or a wider parallel.ep");
  }
  m.kv_block = static_cast<std::uint32_t>(
      kv.count("block", 1, 65536, m.kv_placement == KvPlacement::kByToken ? 4 : 16));
  if (kv.has("decode")) {
    m.kv_decode = static_cast<KvDecode>(kv.choice("decode", kKvDecodeNames));
    if (!spread) {
      kv.fail("decode", "means nothing: a sequence's keys and values lie at its home",
              "set memory.kv.placement to by_token or by_expert");
    }
    if (out.workload.kind == WorkloadKind::kPrefill) {
      kv.fail("decode", "means nothing: no token is decoded", "use workload.kind = \"decode\"");
    }
  }
  if (s.has("allocator")) {
    m.allocator = static_cast<AllocatorKind>(s.choice("allocator", kAllocatorNames));
  }
  if (m.allocator == AllocatorKind::kPaged) {
    m.page = s.bytes("page", 2 * 1024 * 1024);
    if (m.page == 0 || m.page > (1ULL << 30)) {
      s.violated("page", "0 B < page <= 1 GiB");
    }
  } else if (s.has("page")) {
    s.fail("page", "means nothing", "set allocator = \"paged\"; KV pages: kv.block");
  }
  read_residency(context, s, folder, out);
  read_loading(s, out);
}

void read_host(Context& context, const Node& root, Scenario& out) {
  Section s(context, root.find("host"), "host", {"per_step", "per_sequence", "source"}, root);
  out.host.per_step = s.duration("per_step", SimTime());
  out.host.per_sequence = s.duration("per_sequence", SimTime());
  s.sources();
}

constexpr std::array<std::string_view, 3> kLaunchNames{"eager", "graph", "fused"};
constexpr std::array<std::string_view, 3> kGroupedGemmNames{"auto", kMasked, kContiguous};

constexpr std::array<std::string_view, 2> kExchangeNames{"model", "calibrated"};

/// A whole name means that one, not the others that begin with it: these tables go.
template <typename Among>
void keep_whole_name(CostSpec& c, const std::string& library, const Among& among) {
  const std::vector<OpTable>& all = c.calibration->tables;
  if (std::none_of(all.begin(), all.end(),
                   [&](const OpTable& t) { return among(t) && t.library == library; })) {
    return;
  }
  auto only = std::make_shared<Calibration>(*c.calibration);
  std::erase_if(only->tables, [&](const OpTable& t) {
    return among(t) && t.library.starts_with(library) && t.library != library;
  });
  c.calibration = std::move(only);
}

/// cost.exchange: what times exchanges where a calibration is there.
void read_exchange_cost(Section& s, Scenario& out) {
  CostSpec& c = out.cost;
  c.exchange = static_cast<ExchangeCost>(s.choice("exchange", kExchangeNames, 0));
  if (c.exchange == ExchangeCost::kModel) {
    for (const char* key : {"exchange_library", "exchange_sms"}) {
      if (s.has(key)) {
        s.fail(key, "means nothing: the network model times exchanges",
               "set cost.exchange = \"calibrated\"");
      }
    }
    return;
  }
  const auto refuse = [&](bool on, const std::string& what) {
    if (on) {
      s.fail("exchange",
             fmt::format("unsupported with {}: the tables are of direct exchanges alone on links "
                         "as they were measured",
                         what),
             "use \"model\"");
    }
  };
  const NetworkSpec& n = out.network;
  const FrontEnd& f = out.workload.serving.front_end;
  refuse(n.model == NetworkModelKind::kFlow || n.model == NetworkModelKind::kCoflow,
         "network.model = \"flow\" or \"coflow\"");
  refuse(n.algorithm != ExchangeAlgorithm::kDirect, "network.algorithm other than \"direct\"");
  refuse(n.dispatch == DispatchKind::kPerNode, "network.dispatch = \"per_node\"");
  refuse(!n.measured.points.empty(), "network.measured");
  refuse(n.payload.wire != WireFormat::kNative, "network.payload.wire");
  refuse(out.parallel.attention == AttentionPlacement::kHub, "parallel.attention = \"hub\"");
  refuse(out.memory.residency.on(), "memory.residency");
  refuse(out.workload.serves() && out.workload.serving.batching.swaps_over_links(),
         "pages that swap over the links");
  refuse(out.workload.serves() && f.prefill_replicas > 0, "workload.front_end.prefill_replicas");
  c.exchange_library = s.text("exchange_library", std::string());
  if (!c.exchange_library.empty()) {
    std::vector<std::string> known;
    bool any = false;
    for (const OpTable& t : c.calibration->tables) {
      if (t.kind < OpKind::kCollective || t.kind == OpKind::kHost) continue;
      any = any || t.library.starts_with(c.exchange_library);
      if (std::find(known.begin(), known.end(), t.library) == known.end()) {
        known.push_back(t.library);
      }
    }
    if (!any) {
      s.fail("exchange_library",
             fmt::format("no library of the calibration's exchanges begins with \"{}\"",
                         c.exchange_library),
             suggest_name(c.exchange_library, known));
    }
    keep_whole_name(c, c.exchange_library, [](const OpTable& t) {
      return t.kind >= OpKind::kCollective && t.kind != OpKind::kHost;
    });
  }
  if (s.has("exchange_sms")) {
    c.exchange_sms = static_cast<std::uint32_t>(s.count("exchange_sms", 1, 1024));
    if (n.dispatch == DispatchKind::kPerExpert) {
      s.fail("exchange_sms",
             "means nothing with network.dispatch = \"per_expert\": low-latency "
             "exchanges take none",
             "leave it out");
    }
  }
}

/// host.per_step and per_sequence that the scenario does not state, from the calibration.
void host_from_calibration(Context& context, const Node& root, Scenario& out) {
  const CostSpec& c = out.cost;
  if (!c.calibration) return;
  // What is stated asks no table.
  if (std::none_of(context.values.begin(), context.values.end(), [](const ResolvedValue& v) {
        return (v.key == "host.per_step" || v.key == "host.per_sequence") && v.origin == "default";
      })) {
    return;
  }
  const OpTable* table = nullptr;
  try {
    table = choose_table(*c.calibration, OpKind::kHost, c.library,
                         kLaunchNames[static_cast<std::size_t>(c.launch)], model::DType::kBf16, {});
  } catch (const InputError& e) {
    throw InputError(context.where(e.where(), root.where()),
                     fmt::format("{}: {}", e.where(), e.message()), e.hint());
  }
  if (table == nullptr) return;
  const auto take = [&](std::string_view key, SimTime& value, double us) {
    const SimTime measured = SimTime::from_seconds(us * 1e-6);
    for (ResolvedValue& v : context.values) {
      if (v.key != key || v.origin != "default") continue;
      value = measured;
      v.value = show_time(measured);
      v.origin = table->where;
      out.host.measured = table;
    }
  };
  take("host.per_step", out.host.per_step, table->overhead_us);
  take("host.per_sequence", out.host.per_sequence, table->per_sequence_us);
}

void read_cost(Context& context, const Node& root, const fs::path& folder,
               const std::string& presets_root, Scenario& out) {
  Section s(context, root.find("cost"), "cost",
            {"calibration", "other_device", "library", "grouped_gemm", "exchange",
             "exchange_library", "exchange_sms", "launch", "graph_kernel", "source"},
            root);
  CostSpec& c = out.cost;
  // A model stored in FP8 blocks rounds its GEMMs' inputs to FP8 (its file: activation_scheme =
  // "dynamic"), where the GPUs have a rate for it.
  const auto computes_fp8 = [](const GpuType& g) {
    return g.peak_for(model::DType::kF8E4M3).value > 0;
  };
  if (!c.gemm_inputs && out.model.quantization == "fp8_block" &&
      out.dtype.experts == model::DType::kF8E4M3 && out.dtype.shared == model::DType::kF8E4M3 &&
      model::dtype_bits_x32(out.activations) > model::dtype_bits_x32(model::DType::kF8E4M3) &&
      std::all_of(out.hardware.gpu_types.begin(), out.hardware.gpu_types.end(), computes_fp8)) {
    c.gemm_inputs = model::DType::kF8E4M3;
    context.record("model.dtype.gemm_inputs", "fp8", "the model's FP8 blocks");
  }
  if (const Node* file = s.find("calibration")) {
    if (file->kind != Node::Kind::kString || file->text.empty()) {
      s.fail("calibration", "expected text", "name a calibration file (.toml)");
    }
    const fs::path path = or_preset(named_path(file->text, *file, folder), file->text,
                                    "calibrations", folder, presets_root);
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) {
      no_such_file(s.where("calibration"), "cost.calibration", file->text, path, {},
                   presets_root.empty() ? fs::path() : fs::path(presets_root) / "calibrations");
    }
    c.calibration = std::make_shared<const Calibration>(read_calibration(path.generic_string()));
    context.record("cost.calibration", path.generic_string(), s.where("calibration"), false);
    // In the hash by content.
    context.record("cost.calibration.content",
                   fmt::format("{}, {} tables, {}", c.calibration->device,
                               c.calibration->tables.size(), c.calibration->hash),
                   s.where("calibration"));
    // Times of one device say nothing of another's.
    const bool other = s.boolean("other_device", false);
    for (std::size_t g = 0; g < out.hardware.gpu_count() && !other; ++g) {
      const std::string& type = out.hardware.gpu_type(g).name;
      if (type != c.calibration->device) {
        s.fail("calibration",
               fmt::format("its times are of \"{}\", {} is a \"{}\"", c.calibration->device,
                           out.hardware.gpu(g).name, type),
               "cost.other_device = true takes them all the same");
      }
    }
    if (out.parallel.router == RouterPlacement::kCard && !other) {
      const Device& card = out.hardware.devices[out.parallel.router_card];
      const std::string& type =
          out.hardware.gpu_types[static_cast<std::size_t>(card.gpu_type)].name;
      if (type != c.calibration->device) {
        s.fail("calibration",
               fmt::format("its times are of \"{}\", the router card {} is a \"{}\"",
                           c.calibration->device, card.name, type),
               "cost.other_device = true takes them all the same");
      }
    }
    c.library = s.text("library", std::string());
    keep_whole_name(c, c.library, [](const OpTable&) { return true; });
    if (std::none_of(c.calibration->tables.begin(), c.calibration->tables.end(),
                     [&](const OpTable& t) { return t.library.starts_with(c.library); })) {
      std::vector<std::string> known;
      for (const OpTable& t : c.calibration->tables) {
        if (std::find(known.begin(), known.end(), t.library) == known.end()) {
          known.push_back(t.library);
        }
      }
      s.fail("library", fmt::format("no library of the calibration begins with \"{}\"", c.library),
             suggest_name(c.library, known));
    }
    // Which of them would run is not for the order of the file to say.
    const std::vector<std::uint64_t> experts{
        out.model.hidden_size, out.model.expert_intermediate,
        out.model.expert_kind == model::ExpertKind::kTwoMatrix ? 2U : 3U};
    std::vector<std::string> fitting;
    for (const OpTable& t : c.calibration->tables) {
      if (t.kind == OpKind::kExperts && t.dtype == out.dtype.experts && t.shape == experts &&
          t.library.starts_with(c.library) &&
          std::find(fitting.begin(), fitting.end(), t.library) == fitting.end()) {
        fitting.push_back(t.library);
      }
    }
    if (fitting.size() > 1) {
      s.fail(s.has("library") ? "library" : "calibration",
             fmt::format("{} libraries have times of this model's experts: {}", fitting.size(),
                         fmt::join(fitting, ", ")),
             "name one with cost.library");
    }
    c.grouped_gemm = static_cast<GroupedGemm>(s.choice("grouped_gemm", kGroupedGemmNames, 0));
    const std::string_view grouped = kGroupedGemmNames[static_cast<std::size_t>(c.grouped_gemm)];
    if (c.grouped_gemm != GroupedGemm::kAuto &&
        std::none_of(c.calibration->tables.begin(), c.calibration->tables.end(),
                     [&](const OpTable& t) {
                       return t.variant == grouped && t.kind == OpKind::kExperts &&
                              t.dtype == out.dtype.experts && t.shape == experts &&
                              t.library.starts_with(c.library);
                     })) {
      s.fail("grouped_gemm",
             fmt::format("the calibration has no {} grouped GEMM of this model's experts{}",
                         grouped, c.library.empty() ? "" : fmt::format(" of \"{}\"", c.library)),
             "leave it out");
    }
    read_exchange_cost(s, out);
  } else {
    for (const char* key : {"library", "other_device", "grouped_gemm", "exchange",
                            "exchange_library", "exchange_sms"}) {
      if (s.has(key)) s.fail(key, "there is no calibration", "set cost.calibration");
    }
  }
  c.launch = static_cast<LaunchMode>(s.choice("launch", kLaunchNames, 0));
  if (c.launch != LaunchMode::kEager) {
    c.graph_kernel = s.duration("graph_kernel");
  } else if (s.has("graph_kernel")) {
    s.fail("graph_kernel", "has no effect with launch = \"eager\"",
           "set cost.launch to graph or fused");
  }
  s.sources();
}

void read_economics(Context& context, const Node& root, Scenario& out) {
  const Node* table = root.find("economics");
  if (table == nullptr) return;
  Section s(context, table, "economics",
            {"electricity", "pue", "gpu_price", "years", "host_power", "api_price", "source"},
            root);
  EconomicsSpec& e = out.economics;
  e.stated = true;
  const auto money_text = [&](std::string_view key, const std::string& example) {
    const Node* node = s.find(key);
    if (node != nullptr && node->kind != Node::Kind::kString) {
      s.fail(key, "expected an amount with its unit", "write e.g. " + example);
    }
    return s.text(key);
  };
  const auto money = [&](std::string_view key, const std::string& example) {
    return parse_money(money_text(key, example), s.where(key), s.full_key(key));
  };
  e.usd_per_kwh = parse_energy_price(money_text("electricity", "\"0.1 USD/kWh\""),
                                     s.where("electricity"), s.full_key("electricity"));
  e.gpu_usd = money("gpu_price", "\"30000 USD\"");
  e.pue = s.number("pue", {1, 100, false}, 1.0);
  e.years = s.number("years", {0, 1000, true}, 3.0);
  e.host_w = s.power("host_power", 0.0);
  if (s.has("api_price")) {
    e.api_usd = money("api_price", "\"0.5 USD\"");
    if (!(e.api_usd > 0)) s.violated("api_price", "api_price > 0 USD");
  }
  for (const GpuType& t : out.hardware.gpu_types) {
    if (t.idle_w <= 0) {
      s.fail(
          "electricity",
          fmt::format("hardware.gpu_types.{}.idle is not stated: energy cannot be counted", t.name),
          "state the idle power of the GPU, e.g. idle = \"70 W\"");
    }
  }
  s.sources();
}

/// [[monitor.alarms]]: rules, and what each action needs of the rest of the scenario.
void read_monitor(Context& context, const Node& root, const fs::path& folder, Scenario& out) {
  const Node* table = root.find("monitor");
  if (table == nullptr) return;
  Section s(context, table, "monitor", {"alarms"}, root);
  if (!s.has("alarms")) s.fail("alarms", "is missing", "write [[monitor.alarms]]");
  // The rules themselves, or a file of them as for `monitor --alarms`.
  const Node* list = s.find("alarms");
  Node file_root;
  fs::path base = folder;
  if (list->kind == Node::Kind::kString) {
    const fs::path path = named_path(list->text, *list, folder);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      no_such_file(list->where(), "monitor.alarms", list->text, path);
    }
    file_root = load_toml(path, "monitor", list->where());
    base = path.parent_path();
    Context none;
    const Section top(none, &file_root, "", {"alarms"}, file_root);
    if (!top.has("alarms")) {
      throw InputError(list->where(), fmt::format("{} holds no [[alarms]]", list->text),
                       "see scenarios/alarms/healthy.toml");
    }
    list = top.find("alarms");
    context.record("monitor.file", path.generic_string(), s.where("alarms"), false);
  }
  const auto load = [&](const Node& node, const std::string& key) {
    if (node.kind != Node::Kind::kString) {
      throw InputError(node.where(), fmt::format("{}: expected the name of a policy file", key));
    }
    if (out.gate.experts == 0) throw InputError(node.where(), key + ": the model has no MoE layer");
    fs::path path = named_path(node.text, node, base);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) no_such_file(node.where(), key, node.text, path);
    const Node file = load_toml(path, "policy", node.where());
    Context own;
    PolicyFiles files;
    RoutingPolicy policy = policy_from(own, &file, file, path.parent_path(), files);
    if (!files.empty()) {
      throw InputError(node.where(), key + ": a policy that names files is unsupported here");
    }
    validate_policy(own, policy, out.gate.experts, out.gate.top_k, node.where());
    if (const auto why = no_deferral(out); why && defers(policy)) {
      throw InputError(own.where("policy.capacity.queue", node.where()),
                       fmt::format("{}: capacity.queue = \"defer\" is unsupported {}", key, *why),
                       "use queue = \"wave\"");
    }
    // In the hash by content.
    std::string text;
    for (const ResolvedValue& v : own.values) {
      if (v.origin != "default")
        text += fmt::format("{}{} = {}", text.empty() ? "" : "; ", v.key, v.value);
    }
    context.record(key, text, node.where());
    return policy;
  };
  out.alarms = alarms_from(context, list, "monitor.alarms", *table, load);
  for (std::size_t i = 0; i < out.alarms.size(); ++i) {
    const AlarmRule& r = out.alarms[i];
    const auto refuse = [&](bool on, const std::string& why, const std::string& hint) {
      if (on) {
        throw InputError(r.where,
                         fmt::format("monitor.alarms[{}].action = \"{}\" {}", i,
                                     kAlarmActionNames[static_cast<std::size_t>(r.action)], why),
                         hint);
      }
    };
    if (r.action == AlarmAction::kPolicy) {
      // As for the scenario's own policy: experts move when a GPU goes, its groups with them.
      const bool loses =
          std::any_of(out.faults.events.begin(), out.faults.events.end(), [](const FaultRule& f) {
            return f.kind == FaultKind::kGpuLoss || f.kind == FaultKind::kLinkDown;
          });
      refuse(loses && r.policy.groups.by == GroupBy::kPlacement,
             "with groups.by = \"placement\" is unsupported with gpu_loss and link_down",
             "use groups by block");
    }
    if (r.action == AlarmAction::kMigrateKv) {
      refuse(out.memory.kv_placement != KvPlacement::kBySequence,
             "needs memory.kv.placement = \"by_sequence\"", "");
      const std::vector<GpuRange> replicas = replica_gpus(out);
      refuse(std::none_of(replicas.begin(), replicas.end(),
                          [&](const GpuRange& r) {
                            const Parallel& p = out.layout_of(r.first);
                            return (r.beyond - r.first) / p.pp / p.tp >= 2;
                          }),
             "has no other GPU to move to", "");
    }
    if (r.action == AlarmAction::kReclaim) {
      refuse(std::none_of(out.faults.events.begin(), out.faults.events.end(),
                          [](const FaultRule& f) { return f.kind == FaultKind::kKvLeak; }),
             "means nothing: nothing leaks", "add a fault of kind = \"kv_leak\"");
    }
    if (r.action == AlarmAction::kShed) {
      refuse(!out.workload.serves(), "needs requests that arrive",
             "use workload.kind = open, closed or trace");
    }
    if (r.action == AlarmAction::kReload) {
      refuse(!out.faults.on(), "means nothing without faults", "add e.g. kind = \"slow_expert\"");
      refuse(out.memory.residency.on(), "is unsupported with memory.residency",
             "keep all experts on the GPUs");
      refuse(out.faults.reload.value == 0 &&
                 std::none_of(out.hardware.devices.begin(), out.hardware.devices.end(),
                              [](const Device& d) { return d.kind == DeviceKind::kCpu; }),
             "needs faults.reload: the hardware has no cpu", "write e.g. reload = \"25 GB/s\"");
    }
  }
}

/// What a layout of the prefill replicas' own needs and does not go with. That layouts and replicas
/// divide: check_serving().
void check_prefill(const Node& root, const Scenario& out) {
  if (!out.prefill) return;
  const std::string where = root.find("parallel")->find("prefill")->where();
  const auto refuse = [&](bool on, const std::string& message, const std::string& hint) {
    if (on) throw InputError(where, "parallel.prefill " + message, hint);
  };
  const FrontEnd& f = out.workload.serving.front_end;
  refuse(!out.workload.serves() || f.prefill_replicas == 0,
         "means nothing: no replica only computes prompts",
         "set workload.front_end.prefill_replicas, with requests that arrive");
  const KvPlacement kv = out.memory.kv_placement;
  refuse(kv == KvPlacement::kByToken || kv == KvPlacement::kByExpert,
         "is unsupported with memory.kv.placement = \"by_token\" and \"by_expert\": pages go to "
         "the same places of another copy of the experts",
         "use by_sequence");
  refuse(out.memory.residency.on(), "is unsupported with memory.residency",
         "keep all experts on the GPUs");
  refuse(out.memory.loading.on(), "is unsupported with memory.loading",
         "use loading.from = \"resident\"");
  refuse(out.parallel.router != RouterPlacement::kGpu,
         "is unsupported with a router off the GPUs", "use parallel.router = \"gpu\"");
  const std::uint32_t first = out.parallel.first_gpu;
  refuse(out.network.dispatch == DispatchKind::kPerNode &&
             out.hardware.gpu(first - 1).node == out.hardware.gpu(first).node,
         "is unsupported with network.dispatch = \"per_node\" where both kinds of replicas have "
         "GPUs of one server: a relay may be of the other kind",
         "use per_rank, or whole servers");
}

/// What stages, routers off the GPUs, a wider ep and overlapping halves do not go with.
void check_layout(const Context& context, const Node& root, const Scenario& out) {
  const Parallel& p = out.parallel;
  const auto refuse = [&](bool on, std::string_view key, const std::string& shown,
                          const std::string& what, const std::string& hint) {
    if (on) {
      throw InputError(context.where(key, root.where()),
                       fmt::format("{} is unsupported with {}", shown, what), hint);
    }
  };
  struct Feature {
    bool on;
    std::string key, shown;
  };
  const bool off_gpu = p.router != RouterPlacement::kGpu;
  const std::vector<const Parallel*> layouts = out.layouts();
  const auto wide = std::find_if(layouts.begin(), layouts.end(),
                                 [](const Parallel* l) { return l->tp > 1 && l->ep > l->tp; });
  const bool by_tokens = std::any_of(layouts.begin(), layouts.end(),
                                     [](const Parallel* l) { return l->sequence_parallel; });
  for (const Feature& f :
       {Feature{p.pp > 1, "parallel.pp", fmt::format("parallel.pp = {}", p.pp)},
        Feature{off_gpu, "parallel.router",
                fmt::format("parallel.router = \"{}\"",
                            kRouterNames[static_cast<std::size_t>(p.router)])},
        Feature{wide != layouts.end(), "parallel.ep",
                wide == layouts.end()
                    ? std::string()
                    : fmt::format("ep = {} and tp = {}", (*wide)->ep, (*wide)->tp)},
        Feature{by_tokens, "parallel.sequence_parallel", "parallel.sequence_parallel"},
        Feature{out.network.two_batch, "network.two_batch", "network.two_batch"}}) {
    refuse(f.on && out.memory.residency.on() && f.key != "parallel.router", f.key, f.shown,
           "memory.residency", "keep all experts on the GPUs");
    refuse(f.on && out.memory.loading.by_layer, f.key, f.shown,
           "memory.loading.start = \"by_layer\"", "use start = \"ready\"");
    refuse(f.on && out.workload.serves() && out.workload.serving.batching.swaps_over_links(), f.key,
           f.shown, "pages that swap over the links", "state workload.batching.swap_bandwidth");
  }
  refuse(p.pp > 1 && out.workload.serves() && out.workload.serving.front_end.replicas > 1,
         "parallel.pp", fmt::format("parallel.pp = {}", p.pp), "several replicas",
         "use front_end.replicas = 1");
  refuse(p.pp > 1 && out.memory.loading.on(), "parallel.pp", fmt::format("parallel.pp = {}", p.pp),
         "memory.loading", "use loading.from = \"resident\"");
  refuse(p.pp > 1 && p.rebalance.signal != RebalanceSignal::kOff, "parallel.pp",
         fmt::format("parallel.pp = {}", p.pp), "parallel.rebalance", "use signal = \"off\"");
  refuse(p.pp > 1 && out.memory.kv_placement == KvPlacement::kReplicated, "parallel.pp",
         fmt::format("parallel.pp = {}", p.pp), "memory.kv.placement = \"replicated\"",
         "use by_sequence, by_token or by_expert");
  const bool nodes = out.network.dispatch == DispatchKind::kPerNode;
  refuse(p.pp > 1 && nodes, "network.dispatch", "network.dispatch = \"per_node\"",
         fmt::format("parallel.pp = {}: a relay may be of another stage", p.pp),
         "use per_rank or per_expert");
  const NetworkModelKind model = out.network.model;
  refuse(off_gpu && out.memory.residency.on() && model == NetworkModelKind::kBottleneck,
         "parallel.router", "a router off the GPUs",
         "memory.residency and network.model = \"bottleneck\": tokens and loads meet on the links "
         "of the hosts",
         "use model = \"auto\", \"coflow\" or \"flow\"");
  refuse(off_gpu && !out.network.measured.points.empty() &&
             (model == NetworkModelKind::kAuto || model == NetworkModelKind::kBottleneck),
         "parallel.router", "a router off the GPUs",
         "network.measured and this network.model: its transfers are no exchanges of the table",
         "use model = \"coflow\" or \"flow\", or leave the table out");
}

void check_layout_with_faults(const Context& context, const Node& root, const Scenario& out) {
  using K = FaultKind;
  const KvPlacement kv = out.memory.kv_placement;
  const bool spread = kv == KvPlacement::kByToken || kv == KvPlacement::kByExpert;
  const bool loses = std::any_of(
      out.faults.events.begin(), out.faults.events.end(),
      [](const FaultRule& r) { return r.kind == K::kGpuLoss || r.kind == K::kLinkDown; });
  const bool handed_over =
      out.workload.serves() && out.workload.serving.front_end.prefill_replicas > 0;
  if (spread && loses && (handed_over || out.faults.reaction == FaultReaction::kMigrate)) {
    throw InputError(
        context.where("memory.kv.placement", root.where()),
        fmt::format(
            "memory.kv.placement = \"{}\" is unsupported with faults gpu_loss and link_down "
            "and {}",
            kv == KvPlacement::kByToken ? "by_token" : "by_expert",
            handed_over ? "prefill replicas" : "faults.reaction = \"migrate\""),
        handed_over ? "use by_sequence, or one kind of replicas" : "use reaction = \"restart\"");
  }
}

void read_run(Context& context, const Node& root, Scenario& out) {
  Section s(context, root.find("run"), "run", {"seed", "detail"}, root);
  out.run.seed =
      s.count("seed", 0, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()), 1);
  out.run.detail = static_cast<Detail>(s.choice("detail", kDetailNames, 2));
}

/// [[sweep]] entries; the values keep their place for messages.
struct Axis {
  std::string key;
  std::vector<Node> values;
  std::string where;
};

/// An axis whose key one of `settings` sets is fixed by it, and not swept.
std::vector<Axis> read_axes(Context& context, const Node& root,
                            const std::vector<std::pair<std::string, Node>>& settings) {
  std::vector<Axis> axes;
  const Node* list = root.find("sweep");
  if (list == nullptr) {
    return axes;
  }
  if (list->kind != Node::Kind::kArray) {
    throw InputError(list->where(), "sweep: expected a list of tables", "write [[sweep]]");
  }
  for (std::size_t i = 0; i < list->children.size(); ++i) {
    const Node& entry = list->children[i];
    Section s(context, &entry, fmt::format("sweep[{}]", i), {"key", "values"}, root);
    Axis axis;
    if (!s.has("key") || !s.has("values")) {
      s.fail(s.has("key") ? "values" : "key", "is missing");
    }
    const Node& key = *s.find("key");
    const Node& values = *s.find("values");
    if (key.kind != Node::Kind::kString) {
      s.fail("key", "expected the name of a key", "write e.g. \"policy.capacity.factor\"");
    }
    if (key.text == "sweep" || key.text.starts_with("sweep.") || key.text.starts_with("sweep[")) {
      s.fail("key", "a sweep cannot sweep itself");
    }
    if (values.kind != Node::Kind::kArray || values.children.empty()) {
      s.fail("values", "expected a list of at least one value");
    }
    for (const Axis& other : axes) {
      if (other.key == key.text) {
        s.fail("key", "is swept twice");
      }
    }
    axis.key = key.text;
    axis.values = values.children;
    axis.where = key.where();
    axes.push_back(std::move(axis));
  }
  std::erase_if(axes, [&](const Axis& axis) {
    return std::any_of(settings.begin(), settings.end(),
                       [&](const auto& setting) { return setting.first == axis.key; });
  });
  return axes;
}

/// A file as read, before settings: shared by all points of a sweep.
struct Document {
  Node root;
  std::string path;
  fs::path folder;
};

using Setting = std::pair<std::string, Node>;

std::vector<Setting> parse_settings(const ReadOptions& options) {
  const auto source = setting_source("--set");
  std::vector<Setting> out;
  for (const std::string& text : options.settings) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError("--set", fmt::format("\"{}\" is not key=value", text),
                       "write e.g. --set policy.capacity.factor=1.25");
    }
    const auto trimmed = [](std::string_view s) {
      const std::size_t first = s.find_first_not_of(" \t");
      return first == std::string_view::npos
                 ? std::string_view()
                 : s.substr(first, s.find_last_not_of(" \t") - first + 1);
    };
    const std::string_view view(text);
    const std::string key(trimmed(view.substr(0, equals)));
    Node value = parse_setting_value(trimmed(view.substr(equals + 1)), source);
    // The last setting of a key counts, also one that states it inside a whole section.
    std::erase_if(out, [&](const Setting& earlier) {
      if (!earlier.first.starts_with(key + ".")) return false;
      const std::string rest = earlier.first.substr(key.size() + 1);
      return value.find(rest.substr(0, rest.find('.'))) != nullptr;
    });
    out.emplace_back(key, std::move(value));
  }
  if (options.trace) {
    const auto trace_source = setting_source("--trace");
    Node value;
    value.kind = Node::Kind::kString;
    value.source = trace_source;
    value.text = *options.trace;
    out.emplace_back("--trace", std::move(value));
  }
  return out;
}

/// Settings that decide which file is merged; the others come after merging.
bool names_file(std::string_view key) {
  return key == "hardware" || key == "policy" || key == "workload" || key == "hardware.file" ||
         key == "policy.file" || key == "workload.file";
}

void apply(Node& root, const std::vector<Setting>& settings, bool files_only) {
  for (const auto& [key, value] : settings) {
    if (key == "--trace") {
      if (files_only) {
        continue;
      }
      // Another trace replaces whatever the scenario named; how layers map stays.
      Node routing;
      routing.source = value.source;
      Node trace = value;
      trace.key = "trace";
      routing.children.push_back(trace);
      const Node* workload = root.find("workload");
      const Node* old = workload == nullptr ? nullptr : workload->find("routing");
      if (const Node* layers = old == nullptr ? nullptr : old->find("layers")) {
        routing.children.push_back(*layers);
      }
      set_path(root, "workload.routing", std::move(routing));
    } else if (files_only == names_file(key)) {
      set_path(root, key, value);
    }
  }
}

Scenario resolve(const Document& document, const std::vector<Setting>& settings,
                 const ReadOptions& options) {
  Node root = document.root;
  Context context;
  Scenario out;
  out.path = document.path;
  apply(root, settings, true);
  // The order of sections in the canonical text is the order of these calls.
  Context file_values;
  const auto merged = [&](const char* section) {
    return merge_file(file_values, root, section, document.folder, options.presets_root);
  };
  const fs::path hardware_path = merged("hardware");
  merged("policy");
  merged("workload");
  apply(root, settings, false);
  const auto place_file = [&](std::string_view key) {
    for (const ResolvedValue& v : file_values.values) {
      if (v.key == key) {
        context.values.push_back(v);
      }
    }
  };

  Section top(context, &root, "",
              {"model", "hardware", "parallel", "workload", "policy", "network", "memory", "host",
               "cost", "faults", "monitor", "economics", "run", "sweep"},
              root);
  const std::vector<Axis> axes = read_axes(context, root, settings);
  read_model(context, root, document.folder, options, out);
  place_file("hardware.file");
  const Node* hardware = root.find("hardware");
  if (hardware == nullptr) {
    throw InputError(root.where(), "hardware is missing",
                     "write [hardware] with file = \"hardware/hgx_h100.toml\"");
  }
  out.hardware =
      hardware_from(context, *hardware,
                    hardware_path.empty() ? std::string("inline") : hardware_path.stem().string());
  read_parallel(context, root, document.folder, out);
  place_file("workload.file");
  read_workload(context, root, document.folder, options, out);
  read_placement_section(context, root, document.folder, out);
  place_file("policy.file");
  const Node* policy = root.find("policy");
  out.policy = policy_from(context, policy, root, document.folder, out.policy_files);
  if (out.gate.experts > 0) {
    validate_policy(context, out.policy, out.gate.experts, out.gate.top_k,
                    policy != nullptr ? policy->where() : root.where());
  } else if (out.policy != RoutingPolicy{}) {
    throw InputError(policy->where(), "policy: the model has no MoE layer");
  }
  read_network(context, root, document.folder, out);
  read_memory(context, root, document.folder, out);
  if (const Node* network = root.find("network");
      network != nullptr && network->find("broadcast") != nullptr &&
      out.memory.kv_placement != KvPlacement::kReplicated) {
    throw InputError(network->find("broadcast")->where(),
                     "network.broadcast means nothing: nothing is sent to all",
                     "set memory.kv.placement = \"replicated\"");
  }
  check_prefill(root, out);
  if (out.workload.serves()) {
    Context none;
    check_serving(Section(none, root.find("workload"), "workload",
                          {"kind", "routing", "warmup_steps", "file", "arrivals", "lengths",
                           "batching", "front_end", "slo", "tiers", "max_steps"},
                          root),
                  out);
  }
  if (out.network.chunks > 1 && (out.memory.residency.on() || out.memory.loading.by_layer)) {
    throw InputError(context.where("network.chunks", root.where()),
                     "network.chunks is unsupported with memory.residency and loading by layer",
                     "use chunks = 1");
  }
  read_host(context, root, out);
  check_layout(context, root, out);
  if (const auto why = no_deferral(out); why && defers(out.policy)) {
    throw InputError(context.where("policy.capacity.queue", root.where()),
                     fmt::format("policy.capacity.queue = \"defer\" is unsupported {}", *why),
                     "use queue = \"wave\"");
  }
  read_cost(context, root, document.folder, options.presets_root, out);
  host_from_calibration(context, root, out);
  read_economics(context, root, out);
  read_faults(context, root, out);
  read_monitor(context, root, document.folder, out);
  check_layout_with_faults(context, root, out);
  read_run(context, root, out);
  out.values = std::move(context.values);
  for (const Axis& axis : axes) {
    SweepAxis shown;
    shown.key = axis.key;
    shown.where = axis.where;
    for (const Node& value : axis.values) {
      shown.values.push_back(value.toml());
    }
    out.sweep.push_back(std::move(shown));
  }
  return out;
}

Document open_document(const std::string& path) {
  Document document;
  const fs::path file(path);
  document.path = path;
  document.folder = file.parent_path();
  document.root = load_toml(file, "", file.generic_string());
  return document;
}

}  // namespace

namespace {

std::uint64_t copy_bytes(const Payload& p, model::DType format, std::uint64_t hidden) {
  std::uint64_t values = model::dtype_bytes(format, hidden);
  bool small = model::dtype_bits_x32(format) <= 8 * 32;
  if (p.wire != WireFormat::kNative) {
    values = p.wire == WireFormat::kInt4 ? (hidden + 1) / 2 : 2 * ((hidden + 3) / 4);
    small = true;
  }
  const bool scaled = small && p.scale_block > 0;
  return values + (scaled ? 4 * ((hidden + p.scale_block - 1) / p.scale_block) : 0);
}

}  // namespace

std::optional<std::string> no_deferral(const Scenario& s) {
  if (s.parallel.pp > 1) {
    return "with parallel.pp: the stages of a micro-batch would wait for a token that stays behind";
  }
  if (s.network.two_batch) {
    return "with network.two_batch: the halves of a step have their capacities one after the other";
  }
  if (s.memory.kv_placement == KvPlacement::kByExpert) {
    return "with memory.kv.placement = \"by_expert\": keys and values go with the first expert, "
           "which would run a step later";
  }
  if (s.workload.kind == WorkloadKind::kPrefill) {
    return "with workload.kind = \"prefill\": only decode tokens wait for the next step";
  }
  return {};
}

std::uint64_t Payload::dispatch_bytes(std::uint64_t hidden) const {
  return copy_bytes(*this, dispatch, hidden) + header;
}
std::uint64_t Payload::combine_bytes(std::uint64_t hidden) const {
  return copy_bytes(*this, combine, hidden) + combine_header;
}
std::uint64_t Payload::second_half(std::uint64_t hidden) const {
  return wire == WireFormat::kInt2Halves ? (hidden + 3) / 4 : 0;
}

Scenario read_scenario(const std::string& path, const ReadOptions& options) {
  const std::vector<Setting> settings = parse_settings(options);
  return resolve(open_document(path), settings, options);
}

Scenario read_scenario_text(std::string_view text, const std::string& name,
                            const ReadOptions& options) {
  const std::vector<Setting> settings = parse_settings(options);
  auto source = std::make_shared<Source>();
  source->name = name;
  source->folder = fs::path(name).parent_path();
  Document document;
  document.path = name;
  document.folder = source->folder;
  document.root = parse_toml(text, source);
  return resolve(document, settings, options);
}

std::vector<SweepPoint> read_sweep(const std::string& path, const ReadOptions& options) {
  const std::vector<Setting> settings = parse_settings(options);
  const Document document = open_document(path);
  Node root = document.root;
  Context context;
  const std::vector<Axis> axes = read_axes(context, root, settings);
  std::size_t count = 1;
  for (const Axis& axis : axes) {
    if (count > kMaxPoints / axis.values.size()) {
      throw InputError(axis.where, fmt::format("the sweep has more than {} points", kMaxPoints));
    }
    count *= axis.values.size();
  }
  std::vector<SweepPoint> points;
  points.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    SweepPoint point;
    point.index = i;
    std::vector<Setting> all = settings;
    std::size_t stride = count;
    for (const Axis& axis : axes) {
      stride /= axis.values.size();
      const Node& value = axis.values[i / stride % axis.values.size()];
      point.settings.emplace_back(axis.key, value.toml());
      all.emplace_back(axis.key, value);
    }
    point.scenario = resolve(document, all, options);
    points.push_back(std::move(point));
  }
  return points;
}

std::string origin_of(const Scenario& scenario, std::string_view key) {
  for (const ResolvedValue& v : scenario.values) {
    if (v.key == key && v.origin != "default") return v.origin;
  }
  return std::string(key);
}

std::string canonical_text(const Scenario& scenario) {
  std::string out;
  for (const ResolvedValue& v : scenario.values) {
    if (v.in_hash) {
      std::string value = v.value;
      std::replace_if(
          value.begin(), value.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
      out += fmt::format("{} = {}\n", v.key, value);
    }
  }
  return out;
}

std::string scenario_hash(const Scenario& scenario) {
  const std::string text = canonical_text(scenario);
  return hash128(std::as_bytes(std::span(text.data(), text.size()))).hex();
}

RoutingPolicy read_policy_file(const std::string& path, PolicyFiles* files) {
  const fs::path file(path);
  const Node table = load_toml(file, "policy", file.generic_string());
  Context context;
  PolicyFiles found;
  RoutingPolicy policy = policy_from(context, &table, table, file.parent_path(), found);
  if (files != nullptr) {
    *files = std::move(found);
  }
  return policy;
}

}  // namespace switchyard::scenario
