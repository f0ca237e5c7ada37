// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/routing_dump.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/model/json_input.hpp"
#include "experiments/import/experts_only_trace.hpp"

namespace switchyard::importers {
namespace {

using nlohmann::json;

/// Experts [rows][layers][k] as a dump has them.
struct Block {
  std::size_t rows = 0, layers = 0, k = 0;
  std::vector<std::int64_t> ids;
};

struct Sequence {
  std::string name, place;
  std::uint32_t prompt = 0;           // tokens
  std::vector<std::uint32_t> tokens;  // ids, as far as they are known
  Block experts;
};

std::string decode_base64(const std::string& text, const std::string& place) {
  static const std::array<std::int8_t, 256> kValue = [] {
    std::array<std::int8_t, 256> v{};
    v.fill(-1);
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::size_t i = 0; i < kDigits.size(); ++i) {
      v[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
    }
    return v;
  }();
  std::size_t digits = text.size();
  while (digits > 0 && text.size() - digits < 2 && text[digits - 1] == '=') --digits;
  if (text.size() % 4 != 0 || digits % 4 == 1) {
    throw InputError(place, "routed_experts is no base64");
  }
  std::string out;
  out.reserve(digits * 3 / 4);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    const std::int8_t v = kValue[static_cast<unsigned char>(text[i])];
    if (v < 0) throw InputError(place, "routed_experts is no base64");
    bits = bits << 6U | static_cast<std::uint32_t>(v);
    const std::size_t have = (i % 4) * 6 + 6;  // bits since the last whole group of four
    if (i % 4 != 0) out += static_cast<char>(bits >> (have % 8) & 0xFFU);
  }
  return out;
}

template <class T>
void take(const std::string& bytes, std::size_t from, std::vector<std::int64_t>& out) {
  for (std::size_t at = from; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T v{};
    std::memcpy(&v, bytes.data() + at, sizeof(T));  // Little-endian, as this program's machines.
    out.push_back(static_cast<std::int64_t>(v));
  }
}

/// The text after "'key':" in a .npy header, blanks skipped.
std::string_view npy_field(std::string_view header, const std::string& key,
                           const std::string& place) {
  const std::size_t at = header.find("'" + key + "':");
  if (at == std::string_view::npos) {
    throw InputError(place, fmt::format("routed_experts: a .npy header without {}", key));
  }
  std::string_view rest = header.substr(at + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

Block from_npy(const std::string& bytes, const std::string& place) {
  if (!bytes.starts_with("\x93NUMPY") || bytes.size() < 12) {
    throw InputError(place, "routed_experts is no .npy",
                     "vLLM sends base64 of a NumPy file; SGLang: import routing-sglang");
  }
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const bool long_header = byte(6) >= 2;
  const std::size_t begin = long_header ? 12 : 10;
  const std::size_t length =
      byte(8) + byte(9) * 256U + (long_header ? byte(10) * 65536U + byte(11) * 16777216U : 0U);
  if (length > bytes.size() - begin) throw InputError(place, "routed_experts: a cut .npy");
  const std::string_view header = std::string_view(bytes).substr(begin, length);
  if (!npy_field(header, "fortran_order", place).starts_with("False")) {
    throw InputError(place, "unsupported: a .npy in Fortran order");
  }
  Block b;
  std::array<std::size_t, 3> shape{};
  std::string_view dims = npy_field(header, "shape", place);
  bool good = dims.starts_with("(");
  for (std::size_t i = 0; good && i < 3; ++i) {
    dims.remove_prefix(1);
    dims.remove_prefix(std::min(dims.find_first_not_of(' '), dims.size()));
    const auto [end, ec] = std::from_chars(dims.data(), dims.data() + dims.size(), shape[i]);
    dims.remove_prefix(static_cast<std::size_t>(end - dims.data()));
    good = ec == std::errc{} && dims.starts_with(i < 2 ? "," : ")");
  }
  if (!good)
    throw InputError(place, "routed_experts: a .npy whose shape is not [tokens][layers][k]");
  b.rows = shape[0];
  b.layers = shape[1];
  b.k = shape[2];
  const std::string_view type = npy_field(header, "descr", place).substr(0, 5);
  const std::size_t at = begin + length;
  if (type == "'|u1'") {
    take<std::uint8_t>(bytes, at, b.ids);
  } else if (type == "'<i2'") {
    take<std::int16_t>(bytes, at, b.ids);
  } else if (type == "'<u2'") {
    take<std::uint16_t>(bytes, at, b.ids);
  } else if (type == "'<i4'") {
    take<std::int32_t>(bytes, at, b.ids);
  } else if (type == "'<i8'") {
    take<std::int64_t>(bytes, at, b.ids);
  } else {
    throw InputError(place, fmt::format("unsupported: a .npy of type {}", type),
                     "known: |u1, <i2, <u2, <i4, <i8");
  }
  // Divided, not multiplied: a shape cannot overflow what the file holds.
  if (b.rows > 0 && (b.layers == 0 || b.k == 0 || b.ids.size() / b.layers / b.k != b.rows ||
                     b.ids.size() % (b.layers * b.k) != 0)) {
    throw InputError(place, fmt::format("routed_experts: {} ids for the shape [{}][{}][{}]",
                                        b.ids.size(), b.rows, b.layers, b.k));
  }
  return b;
}

Block from_lists(const json& value, const std::string& place) {
  Block b;
  b.rows = value.size();
  for (std::size_t t = 0; t < value.size(); ++t) {
    const json& row = value[t];
    if (!row.is_array() || row.empty() || (t > 0 && row.size() != b.layers)) {
      throw InputError(place, fmt::format("routed_experts[{}] is no list of layers", t));
    }
    b.layers = row.size();
    for (std::size_t l = 0; l < row.size(); ++l) {
      if (!row[l].is_array() || row[l].empty() || ((t > 0 || l > 0) && row[l].size() != b.k)) {
        throw InputError(place,
                         fmt::format("routed_experts[{}][{}] is no list of k experts", t, l));
      }
      b.k = row[l].size();
      for (const json& id : row[l]) {
        if (!id.is_number_integer()) {
          throw InputError(
              place, fmt::format("routed_experts[{}][{}] holds {}", t, l, id.dump().substr(0, 40)));
        }
        b.ids.push_back(id.get<std::int64_t>());
      }
    }
  }
  return b;
}

Block vllm_block(const json& value, const std::string& place) {
  if (value.is_string()) {
    return from_npy(decode_base64(value.get_ref<const std::string&>(), place), place);
  }
  if (value.is_array()) return from_lists(value, place);
  throw InputError(place, "no routed experts", "start vLLM with --enable-return-routed-experts");
}

std::vector<std::uint32_t> token_ids(const json& owner, const char* key, const std::string& place) {
  std::vector<std::uint32_t> out;
  if (!owner.is_object() || !owner.contains(key) || owner[key].is_null()) return out;
  if (!owner[key].is_array()) throw InputError(place, fmt::format("{} is no list", key));
  for (const json& id : owner[key]) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max()) {
      throw InputError(place, fmt::format("{} holds {}", key, id.dump().substr(0, 40)));
    }
    out.push_back(id.get<std::uint32_t>());
  }
  return out;
}

/// A count of tokens in `owner`, or nothing.
std::optional<std::uint64_t> count(const json& owner, const char* key, const std::string& place) {
  if (!owner.is_object() || !owner.contains(key) || owner[key].is_null()) return std::nullopt;
  if (!owner[key].is_number_unsigned() || owner[key].get<std::uint64_t>() > 100'000'000) {
    throw InputError(place, fmt::format("{} is no count of tokens", key));
  }
  return owner[key].get<std::uint64_t>();
}

std::string name_of(const json& response, std::size_t choice, std::size_t choices) {
  std::string name;
  for (const char* key : {"id", "request_id"}) {
    if (response.contains(key) && response[key].is_string()) {
      name = response[key].get<std::string>();
      break;
    }
  }
  return choices > 1 ? fmt::format("{}#{}", name, choice) : name;
}

void check_rows(const Sequence& s, std::size_t prompt, std::size_t answer) {
  const std::size_t rows = s.experts.rows;
  // An answer's last token is not fed back, but for servers that run one step more.
  const std::size_t least = prompt + (answer > 0 ? answer - 1 : 0);
  if (prompt == 0 || rows < least || rows > prompt + answer) {
    throw InputError(s.place,
                     fmt::format("{} rows of experts for {} prompt and {} generated tokens", rows,
                                 prompt, answer),
                     "ask for the experts of all tokens, the prompt's too");
  }
}

void append(Block& to, const Block& more, const std::string& place) {
  if (to.rows == 0) {
    to = more;
    return;
  }
  if (more.rows == 0) return;
  if (to.layers != more.layers || to.k != more.k) {
    throw InputError(place, "prompt_routed_experts and routed_experts have different shapes");
  }
  to.rows += more.rows;
  to.ids.insert(to.ids.end(), more.ids.begin(), more.ids.end());
}

void read_vllm(const json& response, const std::string& place, std::vector<Sequence>& out) {
  if (!response.is_object() || !response.contains("choices") || !response["choices"].is_array()) {
    throw InputError(place, "is no response of vLLM: it has no choices");
  }
  const json& choices = response["choices"];
  for (std::size_t c = 0; c < choices.size(); ++c) {
    const json& choice = choices[c];
    const std::string where = choices.size() > 1 ? fmt::format("{}, choice {}", place, c) : place;
    if (!choice.is_object() || !choice.contains("routed_experts")) {
      throw InputError(where, "no routed experts",
                       "start vLLM with --enable-return-routed-experts");
    }
    Sequence s;
    s.place = where;
    s.name = name_of(response, c, choices.size());
    std::vector<std::uint32_t> prompt = token_ids(response, "prompt_token_ids", where);
    if (prompt.empty()) prompt = token_ids(choice, "prompt_token_ids", where);
    const std::vector<std::uint32_t> answer = token_ids(choice, "token_ids", where);
    const json usage = response.contains("usage") ? response["usage"] : json();
    constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t prompts = count(usage, "prompt_tokens", where).value_or(kUnknown);
    std::uint64_t answers = count(usage, "completion_tokens", where).value_or(kUnknown);
    if (choices.size() > 1) answers = kUnknown;  // The sum over choices.
    if (!prompt.empty()) prompts = prompt.size();
    if (!answer.empty()) answers = answer.size();
    const bool split =
        response.contains("prompt_routed_experts") && !response["prompt_routed_experts"].is_null();
    if (split) {
      s.experts = vllm_block(response["prompt_routed_experts"], where);
      if (prompts != kUnknown && prompts != s.experts.rows) {
        throw InputError(where, fmt::format("prompt_routed_experts of {} tokens, the prompt has {}",
                                            s.experts.rows, prompts));
      }
      prompts = s.experts.rows;
    }
    append(s.experts, vllm_block(choice["routed_experts"], where), where);
    if (prompts == kUnknown || answers == kUnknown) {
      throw InputError(where, "does not say how many tokens prompt and answer have",
                       "it needs usage, or prompt_token_ids and token_ids");
    }
    // Some servers fill the row of the last token, which never ran, with zeros.
    Block& b = s.experts;
    const std::size_t width = b.layers * b.k;
    if (b.k > 1 && b.rows > 0 && b.rows == prompts + answers &&
        std::all_of(b.ids.end() - static_cast<std::ptrdiff_t>(width), b.ids.end(),
                    [](std::int64_t id) { return id == 0; })) {
      b.ids.resize(b.ids.size() - width);
      --b.rows;
    }
    check_rows(s, prompts, answers);
    s.prompt = static_cast<std::uint32_t>(prompts);
    s.tokens = prompt;
    if (!prompt.empty()) s.tokens.insert(s.tokens.end(), answer.begin(), answer.end());
    out.push_back(std::move(s));
  }
}

/// int32 without a shape: rows and layers must follow from the counts of tokens.
void read_sglang_meta(const json& meta, const json& usage, const std::string& name,
                      std::vector<std::uint32_t> prompt_ids, std::vector<std::uint32_t> output_ids,
                      const std::string& place, const model::ModelConfig& model,
                      std::vector<Sequence>& out) {
  if (!meta.is_object() || !meta.contains("routed_experts") ||
      !meta["routed_experts"].is_string()) {
    throw InputError(place, "no routed experts",
                     "start SGLang with --enable-return-routed-experts and ask with "
                     "return_routed_experts");
  }
  Sequence s;
  s.place = place;
  s.name = name;
  std::optional<std::uint64_t> prompt = count(meta, "prompt_tokens", place);
  std::optional<std::uint64_t> answer = count(meta, "completion_tokens", place);
  if (!prompt) prompt = count(usage, "prompt_tokens", place);
  if (!answer) answer = count(usage, "completion_tokens", place);
  if (!prompt || !answer || *prompt == 0) {
    throw InputError(place, "does not say how many tokens prompt and answer have",
                     "it needs prompt_tokens and completion_tokens");
  }
  const std::string bytes =
      decode_base64(meta["routed_experts"].get_ref<const std::string&>(), place);
  if (bytes.size() % 4 != 0) throw InputError(place, "routed_experts holds no whole int32");
  take<std::int32_t>(bytes, 0, s.experts.ids);
  s.experts.k = static_cast<std::size_t>(model.top_k);
  const std::size_t experts = static_cast<std::size_t>(model.num_moe_layers());
  const std::size_t all = static_cast<std::size_t>(model.num_layers);
  std::vector<std::pair<std::size_t, std::size_t>> fits;  // rows, layers
  for (const std::size_t layers : {experts, all}) {
    const std::size_t rows = s.experts.ids.size() / (layers * s.experts.k);
    const bool whole = s.experts.ids.size() % (layers * s.experts.k) == 0;
    const std::size_t least = *prompt + (*answer > 0 ? *answer - 1 : 0);
    if (whole && rows >= least && rows <= *prompt + *answer &&
        (fits.empty() || fits[0].second != layers)) {
      fits.emplace_back(rows, layers);
    }
  }
  if (fits.size() != 1) {
    throw InputError(
        place,
        fmt::format("{} ids {} [tokens][layers][k] of {} prompt and {} generated tokens, {} MoE "
                    "layers of {}, k = {}",
                    s.experts.ids.size(), fits.empty() ? "do not fit" : "fit twice", *prompt,
                    *answer, experts, all, s.experts.k),
        "ask for the experts of all tokens, the prompt's too, and name the model that ran");
  }
  s.experts.rows = fits[0].first;
  s.experts.layers = fits[0].second;
  s.prompt = static_cast<std::uint32_t>(*prompt);
  if (prompt_ids.size() == *prompt) {
    s.tokens = std::move(prompt_ids);
    s.tokens.insert(s.tokens.end(), output_ids.begin(), output_ids.end());
  }
  out.push_back(std::move(s));
}

void read_sglang(const json& response, const std::string& place, const model::ModelConfig& model,
                 std::vector<Sequence>& out) {
  if (!response.is_object()) throw InputError(place, "is no response of SGLang");
  const json usage = response.contains("usage") ? response["usage"] : json();
  if (response.contains("meta_info")) {
    const json& meta = response["meta_info"];
    const std::string name = meta.is_object() && meta.contains("id") && meta["id"].is_string()
                                 ? meta["id"].get<std::string>()
                                 : name_of(response, 0, 1);
    read_sglang_meta(meta, usage, name, token_ids(response, "input_ids", place),
                     token_ids(response, "output_ids", place), place, model, out);
    return;
  }
  if (!response.contains("choices") || !response["choices"].is_array()) {
    throw InputError(place, "is no response of SGLang: it has no meta_info and no choices");
  }
  const json& choices = response["choices"];
  for (std::size_t c = 0; c < choices.size(); ++c) {
    const std::string where = choices.size() > 1 ? fmt::format("{}, choice {}", place, c) : place;
    const json meta = choices[c].is_object() && choices[c].contains("meta_info")
                          ? choices[c]["meta_info"]
                          : json();
    read_sglang_meta(meta, choices.size() == 1 ? usage : json(),
                     name_of(response, c, choices.size()), {}, {}, where, model, out);
  }
}

/// simllm's recording: token rows in any order between requests, in order within one.
void read_preplay(const std::vector<std::pair<std::string, json>>& lines,
                  const model::ModelConfig& model, std::vector<Sequence>& out) {
  std::map<std::string, std::size_t> index;
  std::vector<std::size_t> prompts, answers;
  const auto text = [](const json& row, const char* key, const std::string& place) {
    if (!row.contains(key) || !row[key].is_string()) {
      throw InputError(place, fmt::format("{} is no text", key));
    }
    return row[key].get<std::string>();
  };
  for (const auto& [place, row] : lines) {
    if (!row.is_object()) throw InputError(place, "is no row");
    const std::string type = text(row, "row_type", place);
    if (type == "header") {
      const json& p = row.contains("provenance") ? row["provenance"] : row;
      const std::uint64_t e = count(p, "expert_count", place).value_or(0);
      const std::uint64_t k = count(p, "top_k", place).value_or(0);
      if (e != static_cast<std::uint64_t>(model.num_experts) ||
          k != static_cast<std::uint64_t>(model.top_k)) {
        throw InputError(place,
                         fmt::format("{} experts of which {}; the model has {} and {}", e, k,
                                     model.num_experts, model.top_k),
                         "name the model that ran with --model");
      }
    } else if (type == "request") {
      Sequence s;
      s.name = text(row, "request_id", place);
      s.place = place;
      if (!index.emplace(s.name, out.size()).second) {
        throw InputError(place, fmt::format("request {} comes twice", s.name));
      }
      s.tokens = token_ids(row, "input_token_ids", place);
      s.prompt = static_cast<std::uint32_t>(s.tokens.size());
      const std::vector<std::uint32_t> answer = token_ids(row, "output_token_ids", place);
      prompts.push_back(s.tokens.size());
      answers.push_back(answer.size());
      s.tokens.insert(s.tokens.end(), answer.begin(), answer.end());
      s.experts.k = static_cast<std::size_t>(model.top_k);
      out.push_back(std::move(s));
    } else if (row.contains("routing")) {
      const auto at = index.find(text(row, "request_id", place));
      if (at == index.end()) throw InputError(place, "a token of a request that is not stated");
      Sequence& s = out[at->second];
      // Counted within the prompt and within the answer.
      const bool answer = text(row, "phase", place) == "decode";
      const std::size_t want = s.experts.rows - (answer ? s.prompt : 0);
      if (answer != (s.experts.rows >= s.prompt) || count(row, "token_index", place) != want) {
        throw InputError(place,
                         fmt::format("not token {} of the {} of request {}", want,
                                     answer ? "answer" : "prompt", s.name),
                         "the tokens of a request stand in order, the prompt's first");
      }
      const json& routing = row["routing"];
      const std::vector<std::uint32_t> layers = model.moe_layers();
      if (!routing.is_array() || routing.size() != layers.size()) {
        throw InputError(place, fmt::format("routing of {} layers; the model has {} with experts",
                                            routing.size(), layers.size()));
      }
      for (std::size_t l = 0; l < layers.size(); ++l) {
        if (count(routing[l], "layer_index", place) != layers[l]) {
          throw InputError(place, fmt::format("layer {} is not layer {}", l, layers[l]));
        }
        const std::vector<std::uint32_t> ids = token_ids(routing[l], "expert_ids", place);
        if (ids.size() != s.experts.k) {
          throw InputError(place, fmt::format("{} experts in layer {}", ids.size(), layers[l]));
        }
        s.experts.ids.insert(s.experts.ids.end(), ids.begin(), ids.end());
      }
      s.experts.layers = layers.size();
      ++s.experts.rows;
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) check_rows(out[i], prompts[i], answers[i]);
}

/// The documents of a text: one JSON, the items of a list, or a JSON on each line.
std::vector<std::pair<std::string, json>> documents(std::string_view text,
                                                    const std::string& where) {
  std::vector<std::pair<std::string, json>> out;
  if (json::accept(text)) {
    const json whole = model::parse_json_line(text, where);
    if (!whole.is_array()) return {{where, whole}};
    for (std::size_t i = 0; i < whole.size(); ++i) {
      out.emplace_back(fmt::format("{}: response {}", where, i), whole[i]);
    }
    return out;
  }
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string at = fmt::format("{}:{}", where, number);
    out.emplace_back(at, model::parse_json_line(line, at));
  }
  return out;
}

/// One sequence's experts of the model's MoE layers, checked, into [rows][L][k].
std::vector<std::uint16_t> checked(const Sequence& s, const model::ModelConfig& model,
                                   const std::vector<std::uint32_t>& layers) {
  const Block& b = s.experts;
  const auto k = static_cast<std::size_t>(model.top_k);
  const bool all = b.layers == static_cast<std::size_t>(model.num_layers);
  if (b.k != k || (b.layers != layers.size() && !all)) {
    throw InputError(
        s.place,
        fmt::format("{} layers of {} experts a token; the model has {} layers, {} with "
                    "experts, and takes {}",
                    b.layers, b.k, model.num_layers, layers.size(), k),
        "name the model that ran with --model");
  }
  std::vector<std::uint16_t> out;
  out.reserve(b.rows * layers.size() * k);
  for (std::size_t row = 0; row < b.rows; ++row) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::size_t layer = b.layers == layers.size() ? l : layers[l];
      const auto ids = b.ids.begin() + static_cast<std::ptrdiff_t>((row * b.layers + layer) * k);
      for (std::size_t j = 0; j < k; ++j) {
        if (ids[static_cast<std::ptrdiff_t>(j)] < 0 ||
            ids[static_cast<std::ptrdiff_t>(j)] >= static_cast<std::int64_t>(model.num_experts)) {
          throw InputError(s.place,
                           fmt::format("token {}, layer {}: expert {} of {}", row, layers[l],
                                       ids[static_cast<std::ptrdiff_t>(j)], model.num_experts));
        }
        out.push_back(static_cast<std::uint16_t>(ids[static_cast<std::ptrdiff_t>(j)]));
      }
      check_once(out.data() + out.size() - k, k, s.place, row, layers[l]);
    }
  }
  return out;
}

}  // namespace

RoutingDump read_routing_dump(std::string_view text, const std::string& where, DumpKind kind,
                              const model::ModelConfig& model) {
  const std::vector<std::uint32_t> layers = model.moe_layers();
  if (layers.empty()) throw InputError("--model", "the model has no MoE layer");
  const std::vector<std::pair<std::string, json>> docs = documents(text, where);
  std::vector<Sequence> sequences;
  const bool preplay =
      kind == DumpKind::kSglang && !docs.empty() && docs[0].second.is_object() &&
      docs[0].second.contains("schema") && docs[0].second["schema"].is_string() &&
      docs[0].second["schema"].get<std::string>().starts_with("simllm-preplay-trace-v");
  if (preplay) {
    read_preplay(docs, model, sequences);
  } else {
    for (const auto& [place, doc] : docs) {
      if (kind == DumpKind::kVllm) {
        read_vllm(doc, place, sequences);
      } else {
        read_sglang(doc, place, model, sequences);
      }
    }
  }
  if (sequences.empty()) throw InputError(where, "no response in it");

  RoutingDump out;
  RoutingTrace& t = out.trace;
  t = experts_only_trace(model, kind == DumpKind::kVllm ? "vLLM dump" : "SGLang dump");
  const auto k = static_cast<std::size_t>(model.top_k);
  std::vector<std::vector<std::uint16_t>> experts;
  std::size_t steps = 1;
  out.token_ids = true;
  for (std::size_t q = 0; q < sequences.size(); ++q) {
    const Sequence& s = sequences[q];
    experts.push_back(checked(s, model, layers));
    if (s.experts.layers != layers.size()) {
      out.passed_over = static_cast<std::uint32_t>(s.experts.layers - layers.size());
    }
    t.sequences.push_back({s.prompt, static_cast<std::uint32_t>(q), "", s.name});
    if (s.experts.rows > s.prompt) steps = std::max(steps, s.experts.rows - s.prompt + 1);
    out.token_ids = out.token_ids && s.tokens.size() >= s.experts.rows;
  }
  const auto add = [&](std::size_t q, std::size_t row, std::size_t step) {
    const Sequence& s = sequences[q];
    append_token(t, q, row, row < s.tokens.size() ? s.tokens[row] : 0,
                 row < s.prompt ? Phase::kPrefill : Phase::kDecode, step,
                 experts[q].data() + row * layers.size() * k);
  };
  for (std::size_t step = 0; step < steps; ++step) {
    t.step_begin.push_back(t.tokens.size());
    for (std::size_t q = 0; q < sequences.size(); ++q) {
      const Sequence& s = sequences[q];
      if (step == 0) {
        for (std::size_t row = 0; row < std::min<std::size_t>(s.prompt, s.experts.rows); ++row) {
          add(q, row, 0);
        }
      } else if (s.prompt + step - 1 < s.experts.rows) {
        add(q, s.prompt + step - 1, step);
      }
    }
  }
  close_trace(t);
  return out;
}

}  // namespace switchyard::importers
