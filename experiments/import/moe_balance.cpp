// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/moe_balance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/json_input.hpp"
#include "experiments/import/experts_only_trace.hpp"
#include "experiments/import/json_lines.hpp"

namespace switchyard::importers {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostLayers = 65535;
constexpr std::size_t kMostRows = 0xFFFFFFFF;

struct Line {
  std::size_t number = 0;
  std::vector<std::uint16_t> ids;  // [tokens][k]
};

struct Batch {
  std::string name;
  std::size_t first_line = 0, tokens = 0;
  std::map<std::uint32_t, Line> layers;
};

class Reader {
 public:
  Reader(const std::filesystem::path& input, const model::ModelConfig& model)
      : input_(input), model_(model), k_(static_cast<std::size_t>(model.top_k)) {}

  MoeBalanceTrace read() {
    if (model_.moe_layers().empty()) throw InputError("--model", "the model has no MoE layer");
    out_.trace = experts_only_trace(model_, "moe-balance trace");
    JsonLines in(input_);
    while (const auto text = in.next()) {
      read_line(model::parse_json_line(*text, in.place()), in.place(), in.line());
    }
    if (batches_.empty()) throw InputError(input_.string(), "no line in it");
    const std::vector<std::uint32_t> numbers = layers_of_file();
    for (std::size_t b = 0; b < batches_.size(); ++b) {
      take(b, numbers);
      batches_[b].layers.clear();
    }
    close_trace(out_.trace);
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::string place_of(std::size_t line) const {
    return fmt::format("{}:{}", input_.string(), line);
  }

  void read_line(const json& value, const std::string& place, std::size_t number) {
    const model::JsonObject o(value, place, "");
    o.only({"layer", "batch_id", "topk_experts", "origin_rows", "topk_weights", "request_id",
            "source_file"});
    const auto layer = static_cast<std::uint32_t>(o.count("layer", 0, kMostLayers - 1));
    const json& id = o.raw("batch_id");
    if (!id.is_string() && !id.is_number_integer()) {
      o.fail("batch_id", "expected a whole number or a text");
    }
    const std::string name = id.is_string() ? id.get<std::string>() : id.dump();
    const auto [at, fresh] = index_.emplace(id.dump(), batches_.size());
    if (fresh) batches_.push_back({name, number, 0, {}});
    Batch& batch = batches_[at->second];
    Line line{number, ids_of(o.raw("topk_experts"), place)};
    const std::size_t tokens = line.ids.size() / k_;
    if (fresh) {
      batch.tokens = tokens;
      rows_ += tokens;
      if (rows_ > kMostRows) throw InputError(place, "more than 2^32 tokens");
    } else if (tokens != batch.tokens) {
      throw InputError(place, fmt::format("{} tokens, batch {} has {} in line {}", tokens, name,
                                          batch.tokens, batch.first_line));
    }
    out_.origins |= beside(o, "origin_rows", tokens);
    out_.weights |= beside(o, "topk_weights", tokens);
    const auto [was, only] = batch.layers.emplace(layer, std::move(line));
    if (!only) {
      throw InputError(place, fmt::format("layer {} of batch {} stands in line {} already", layer,
                                          name, was->second.number));
    }
  }

  /// Whether the line has a list under `key`, of which each token must have one item.
  static bool beside(const model::JsonObject& o, const char* key, std::size_t tokens) {
    if (!o.has(key)) return false;
    if (!o.raw(key).is_array() || o.raw(key).size() != tokens) {
      o.fail(key, fmt::format("expected a list of {}, one for each token", tokens));
    }
    return true;
  }

  [[nodiscard]] std::vector<std::uint16_t> ids_of(const json& tokens,
                                                  const std::string& place) const {
    if (!tokens.is_array() || tokens.empty()) {
      throw InputError(place, "topk_experts is no list of tokens");
    }
    std::vector<std::uint16_t> ids;
    ids.reserve(tokens.size() * k_);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (!tokens[t].is_array() || tokens[t].size() != k_) {
        throw InputError(
            place,
            fmt::format("topk_experts[{}] is no list of the model's {} experts a token", t, k_),
            "name the model that ran with --model");
      }
      for (const json& id : tokens[t]) {
        if (!id.is_number_unsigned() ||
            id.get<std::uint64_t>() >= static_cast<std::uint64_t>(model_.num_experts)) {
          throw InputError(place,
                           fmt::format("topk_experts[{}] holds {}. Violated: a whole number below "
                                       "the model's {} experts",
                                       t, id.dump().substr(0, 40), model_.num_experts));
        }
        ids.push_back(static_cast<std::uint16_t>(id.get<std::uint64_t>()));
      }
    }
    return ids;
  }

  /// The file's numbers of the model's MoE layers, in their order.
  std::vector<std::uint32_t> layers_of_file() {
    std::set<std::uint32_t> have;
    for (const Batch& b : batches_) {
      for (const auto& [layer, line] : b.layers) have.insert(layer);
    }
    for (const Batch& b : batches_) {
      for (const std::uint32_t layer : have) {
        if (b.layers.contains(layer)) continue;
        throw InputError(place_of(b.first_line),
                         fmt::format("batch {} has no line of layer {}", b.name, layer),
                         "every batch needs all layers that one of them has");
      }
    }
    std::vector<std::uint32_t> moe = model_.moe_layers();
    const bool of_model = *have.rbegin() < static_cast<std::uint64_t>(model_.num_layers) &&
                          std::includes(have.begin(), have.end(), moe.begin(), moe.end());
    if (of_model) {
      out_.passed_over = static_cast<std::uint32_t>(have.size() - moe.size());
      return moe;
    }
    // No gap: the numbers are ascending.
    if (have.size() == moe.size() && *have.rbegin() + 1 == moe.size()) {
      return {have.begin(), have.end()};
    }
    throw InputError(
        input_.string(),
        fmt::format("{} layers from {} to {}; the model has {} layers, {} with experts from {} to "
                    "{}, and all of them are needed",
                    have.size(), *have.begin(), *have.rbegin(), model_.num_layers, moe.size(),
                    moe.front(), moe.back()),
        "name the model that ran with --model");
  }

  void take(std::size_t b, const std::vector<std::uint32_t>& numbers) {
    Batch& batch = batches_[b];
    std::vector<const Line*> lines;
    lines.reserve(numbers.size());
    for (const std::uint32_t layer : numbers) lines.push_back(&batch.layers.at(layer));
    const auto zero = [&](const Line* line) {
      return std::all_of(line->ids.end() - static_cast<std::ptrdiff_t>(k_), line->ids.end(),
                         [](std::uint16_t id) { return id == 0; });
    };
    if (k_ > 1 && batch.tokens > 1 && std::all_of(lines.begin(), lines.end(), zero)) {
      --batch.tokens;
      ++out_.never_ran;
    }
    RoutingTrace& t = out_.trace;
    t.step_begin.push_back(t.tokens.size());
    t.sequences.push_back(
        {static_cast<std::uint32_t>(batch.tokens), static_cast<std::uint32_t>(b), "", batch.name});
    std::vector<std::uint16_t> row(lines.size() * k_);
    for (std::size_t token = 0; token < batch.tokens; ++token) {
      for (std::size_t l = 0; l < lines.size(); ++l) {
        const std::uint16_t* const ids = lines[l]->ids.data() + token * k_;
        check_once(ids, k_, place_of(lines[l]->number), token, numbers[l]);
        std::copy_n(ids, k_, row.begin() + static_cast<std::ptrdiff_t>(l * k_));
      }
      append_token(t, b, token, 0, Phase::kPrefill, b, row.data());
    }
  }

  std::filesystem::path input_;
  const model::ModelConfig& model_;
  std::size_t k_;
  MoeBalanceTrace out_;
  std::map<std::string, std::size_t> index_;  // batch_id as JSON → place in batches_
  std::vector<Batch> batches_;
  std::size_t rows_ = 0;
};

}  // namespace

MoeBalanceTrace read_moe_balance(const std::filesystem::path& input,
                                 const model::ModelConfig& model) {
  return Reader(input, model).read();
}

}  // namespace switchyard::importers
