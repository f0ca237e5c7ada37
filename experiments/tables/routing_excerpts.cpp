// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/routing_excerpts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/routing/candidates.hpp"
#include "engine/trace/experts_only.hpp"
#include "experiments/validation/csv.hpp"

namespace switchyard::tables {
namespace {

constexpr std::string_view kDigits =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-";

/// Reads header and lines into a trace.
class Parser {
 public:
  explicit Parser(std::string where) : where_(std::move(where)) {}

  void line(std::size_t number, const std::string& text) {
    at_ = fmt::format("{}:{}", where_, number);
    if (text.starts_with("# ")) {
      header(text.substr(2));
    } else {
      token(text);
    }
  }
  RoutingExcerpt finish() {
    if (out_.trace.tokens.size() == 0) {
      throw InputError(where_, "has no token");
    }
    RoutingTrace& t = out_.trace;
    t.step_begin.push_back(t.tokens.size());
    t.nan_rows = t.minus_inf_rows = t.rows() * t.header.layer_count();
    return std::move(out_);
  }

 private:
  void header(const std::string& text) {
    TraceHeader& h = out_.trace.header;
    std::istringstream in(text);
    std::string key;
    std::uint32_t first = 0, count = 0;
    in >> key;
    if (key == "model") {
      in >> h.model;
    } else if (key == "experts") {
      in >> experts_;
    } else if (key == "top_k") {
      in >> top_k_;
    } else if (key == "order") {
      std::string order;
      in >> order;
      out_.ranked = order == "probability";
    } else if (key == "layers" && in >> first >> count) {
      for (std::uint32_t l = 0; l < count; ++l) h.layers.push_back(first + l);
    } else if (key == "sequence") {
      begin(in);
    } else {
      in.setstate(std::ios::failbit);
    }
    if (in.fail()) {
      throw InputError(at_, fmt::format("no header line: \"# {}\"", text));
    }
  }
  void begin(std::istringstream& in) {
    RoutingTrace& t = out_.trace;
    if (experts_ == 0 || experts_ > kDigits.size() || top_k_ == 0 || top_k_ > experts_ ||
        t.header.layers.empty()) {
      throw InputError(at_, "experts (1 to 64), top_k and layers come before a sequence");
    }
    if (t.sequences.empty()) {
      t.header.gate = gate_mixtral(experts_, top_k_);
      t.header.candidates = stored_candidates(experts_, top_k_);
      t.header.slots = top_k_;
      t.header.config_hash = t.header.weight_hash = std::string(16, '0');
      t.header.engine = "excerpt";
      t.header.precision = std::string(kExpertsOnly);
    }
    TraceSequence s;
    in >> s.domain >> s.prompt_length >> position_;
    s.arrival = static_cast<std::uint32_t>(t.sequences.size());
    t.sequences.push_back(std::move(s));
    begins_ = true;
  }
  void token(const std::string& text) {
    RoutingTrace& t = out_.trace;
    if (t.sequences.empty()) {
      throw InputError(at_, "a token before the first \"# sequence\"");
    }
    const std::size_t layers = t.header.layer_count();
    if (text.size() != layers * top_k_) {
      throw InputError(at_, fmt::format("{} characters; {} layers of {} experts take {}",
                                        text.size(), layers, top_k_, layers * top_k_));
    }
    const bool prompt = position_ < t.sequences.back().prompt_length;
    if (begins_ || !prompt) {
      t.step_begin.push_back(t.tokens.size());
    }
    begins_ = false;
    t.tokens.sequence.push_back(static_cast<std::uint32_t>(t.sequences.size() - 1));
    t.tokens.position.push_back(position_++);
    t.tokens.token.push_back(0);
    t.tokens.phase.push_back(static_cast<std::uint8_t>(prompt ? Phase::kPrefill : Phase::kDecode));
    t.tokens.step.push_back(static_cast<std::uint32_t>(t.step_begin.size() - 1));
    for (std::size_t l = 0; l < layers; ++l) {
      layer(std::string_view(text).substr(l * top_k_, top_k_), l);
    }
  }
  void layer(std::string_view ids, std::size_t l) {
    TraceRouting& r = out_.trace.routing;
    for (std::size_t j = 0; j < ids.size(); ++j) {
      const std::size_t e = kDigits.find(ids[j]);
      if (e >= experts_ || ids.find(ids[j]) != j) {
        throw InputError(at_, fmt::format("layer {}: \"{}\" is no expert below {} or one named "
                                          "twice",
                                          out_.trace.header.layers[l], ids[j], experts_));
      }
      for (const auto part : {&r.candidates, &r.first, &r.chosen}) {
        part->push_back(static_cast<std::uint16_t>(e));
      }
    }
    constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
    r.candidates.resize(r.candidates.size() + out_.trace.header.candidates - top_k_, kNoExpert);
    r.logit.resize(r.logit.size() + out_.trace.header.candidates, kMinusInfinity);
    r.lse.push_back(kMinusInfinity);
    r.weights.resize(r.weights.size() + top_k_, 0.0F);
    r.outcome.resize(r.outcome.size() + top_k_, static_cast<std::uint8_t>(SlotOutcome::kKept));
  }

  std::string where_, at_;
  RoutingExcerpt out_;
  std::uint32_t experts_ = 0, top_k_ = 0, position_ = 0;
  bool begins_ = false;
};

std::uint32_t whole(const validation::Csv& csv, std::size_t row, std::size_t column, double low) {
  return static_cast<std::uint32_t>(validation::number(csv, row, column, low));
}

}  // namespace

RoutingExcerpt parse_excerpt(std::string_view text, const std::string& where) {
  Parser parser(where);
  std::istringstream in{std::string(text)};
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    parser.line(number, line);
  }
  return parser.finish();
}

RoutingExcerpt read_excerpt(const std::filesystem::path& scenarios, const std::string& name) {
  const auto file = scenarios / "routing" / (name + ".txt");
  return parse_excerpt(read_file(file), file.string());
}

const std::vector<std::string>& excerpt_names() {
  static const std::vector<std::string> names = {"gpt_oss_20b", "deepseek_v2_lite",
                                                 "granite_3_0_1b"};
  return names;
}

std::uint64_t ExpertCounts::choices() const {
  return std::accumulate(load.begin(), load.end(), std::uint64_t{0});
}

std::vector<ExpertCounts> read_counts(const std::filesystem::path& scenarios) {
  const auto csv = validation::read_csv(scenarios / "routing" / "expert_counts.csv",
                                        "model,experts,top_k,text,layer,counts");
  std::vector<ExpertCounts> out;
  for (std::size_t i = 0; i < csv.rows.size(); ++i) {
    ExpertCounts c;
    c.model = csv.rows[i][0];
    c.text = csv.rows[i][3];
    c.top_k = whole(csv, i, 2, 1);
    c.layer = whole(csv, i, 4, 0);
    std::istringstream in(csv.rows[i][5]);
    for (std::uint64_t n = 0; in >> n;) c.load.push_back(n);
    if (!in.eof() || c.load.size() != whole(csv, i, 1, 1) || c.choices() % c.top_k != 0 ||
        c.choices() == 0) {
      throw InputError(csv.where[i], "needs a count for each expert, in all a multiple of top_k");
    }
    out.push_back(std::move(c));
  }
  return out;
}

std::vector<GateEntropy> read_gate_entropy(const std::filesystem::path& scenarios) {
  const auto csv = validation::read_csv(scenarios / "routing" / "gate_entropy.csv",
                                        "model,experts,top_k,layer,tokens,entropy");
  std::vector<GateEntropy> out;
  for (std::size_t i = 0; i < csv.rows.size(); ++i) {
    out.push_back({csv.rows[i][0], whole(csv, i, 1, 2), whole(csv, i, 2, 1), whole(csv, i, 3, 0),
                   whole(csv, i, 4, 1), validation::number(csv, i, 5, 0)});
    if (out.back().normalised > 1) {
      throw InputError(csv.where[i], "an entropy over log E is at most 1");
    }
  }
  return out;
}

}  // namespace switchyard::tables
