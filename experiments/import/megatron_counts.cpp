// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/megatron_counts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <numeric>
#include <span>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/model/json_input.hpp"
#include "experiments/import/json_lines.hpp"

namespace switchyard::importers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMostCount = 1'000'000'000'000;  // Rows of an expert in a micro-batch.
constexpr std::uint64_t kMostSum = 1'000'000'000'000'000'000;
constexpr std::uint32_t kMostLayers = 65535, kMostExperts = 65535;
constexpr std::uint64_t kMostRanks = 1U << 20U;

/// What a line of a rank says, but for the counts themselves.
struct Seen {
  std::uint64_t micro_batches = 0, hash = 0;
  std::size_t line = 0;
};
/// By iteration and the layer's number in the stage.
using Lines = std::map<std::pair<std::uint64_t, std::uint32_t>, Seen>;

/// Rank of "rank<N>.jsonl"; nothing for other names.
std::optional<std::uint64_t> rank_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (!name.starts_with("rank") || !name.ends_with(".jsonl")) return std::nullopt;
  const std::string digits = name.substr(4, name.size() - 10);
  std::uint64_t rank = 0;
  const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (ec != std::errc{} || end != digits.data() + digits.size() || rank >= kMostRanks ||
      digits != std::to_string(rank)) {
    return std::nullopt;
  }
  return rank;
}

class Reader {
 public:
  explicit Reader(const MegatronJob& job) : job_(job) {}

  MegatronCounts read(const fs::path& input) {
    const std::vector<fs::path> files = megatron_rank_files(input);
    check_job(files.size(), input);
    out_.ranks = static_cast<std::uint32_t>(files.size());
    for (std::size_t r = 0; r < files.size(); ++r) read_rank(files, r);
    if (sums_.empty()) {
      throw InputError(input.string(), "no line of a decoder layer in it",
                       job_.iterations ? "other --iterations" : "");
    }
    ExpertLoads loads;
    for (const auto& [layer, sum] : sums_) {
      out_.layers.push_back(layer);
      loads[layer].assign(sum.begin(), sum.end());
    }
    for (std::uint32_t l = out_.layers.front(); l < out_.layers.back(); ++l) {
      if (!sums_.contains(l)) out_.gaps.push_back(l);
    }
    out_.counts = expert_counts(loads, input.string());
    return out_;
  }

 private:
  [[nodiscard]] std::uint32_t stages() const {
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(job_.stage_layers.size()));
  }

  void check_job(std::size_t files, const fs::path& input) const {
    const std::uint64_t ranks = std::uint64_t{job_.ep} * job_.etp * job_.edp * stages();
    if (ranks == files) return;
    throw InputError(
        input.string(),
        fmt::format("{} rank files, but --ep {} x --etp {} x --edp {} x {} of --stage-layers "
                    "make {}",
                    files, job_.ep, job_.etp, job_.edp, stages(), ranks),
        "state the job: expert parallel, expert tensor parallel, copies of the experts, and the "
        "layers of each pipeline stage");
  }

  void read_rank(const std::vector<fs::path>& files, std::size_t rank) {
    const std::size_t etp = rank % job_.etp, ep = rank / job_.etp % job_.ep;
    const std::size_t of_stage = std::size_t{job_.etp} * job_.ep * job_.edp;
    const std::size_t stage = rank / of_stage;
    Lines lines;
    JsonLines in(files[rank]);
    while (const auto text = in.next()) {
      const std::string place = in.place();
      if (text->starts_with("Rank=")) {
        throw InputError(place, "unsupported: the text tokens_per_expert.log of an early version",
                         "log with a version that writes tokens_per_expert/rank<N>.jsonl");
      }
      read_line(model::parse_json_line(*text, place), place, in.line(), stage, ep, etp == 0, lines);
    }
    if (etp == 0) leader_ = lines;
    if (rank % of_stage == 0) {
      stage_ = std::move(lines);
      check_stage(files[rank], rank == 0);
      return;
    }
    same_lines(stage_, lines, files[stage * of_stage], files[rank]);
    if (etp > 0) same_counts(lines, files[rank - etp], files[rank]);
  }

  void read_line(const json& value, const std::string& place, std::size_t number, std::size_t stage,
                 std::size_t ep, bool counts, Lines& lines) {
    if (!value.is_object()) throw InputError(place, "is no object {\"iter\": …, \"tpe\": …}");
    const model::JsonObject o(value, place, "");
    const std::string block = o.text("block");
    if (block != "decoder" && block != "mtp") {
      throw InputError(place, fmt::format("unsupported: block \"{}\"", block), "decoder or mtp");
    }
    if (block == "mtp") {
      o.only({"iter", "block", "mtp_idx", "layer", "tpe"});
      static_cast<void>(o.count("mtp_idx", 0, kMostLayers));
    } else {
      o.only({"iter", "block", "layer", "tpe"});
    }
    const std::uint64_t iteration = o.count("iter", 0, kMostSum);
    const auto layer = static_cast<std::uint32_t>(o.count("layer", 0, kMostLayers - 1));
    if (job_.iterations &&
        (iteration < job_.iterations->first || iteration > job_.iterations->second)) {
      return;
    }
    if (block == "mtp") {
      ++out_.mtp_lines;
      return;
    }
    Seen seen;
    seen.line = number;
    take_counts(o.raw("tpe"), place);
    seen.micro_batches = o.raw("tpe").size();
    seen.hash = hash64(std::as_bytes(std::span<const std::uint64_t>(row_)));
    const auto [at, fresh] = lines.emplace(std::pair(iteration, layer), seen);
    if (!fresh) {
      throw InputError(place,
                       fmt::format("iteration {}, layer {} stands in line {} already", iteration,
                                   layer, at->second.line),
                       "a job that was started again appended to the file: keep the lines of one");
    }
    if (counts) add(place, stage, layer, ep, seen.micro_batches);
  }

  /// Puts the counts into row_, [micro-batches][own experts].
  void take_counts(const json& lists, const std::string& place) {
    if (!lists.is_array() || lists.empty())
      throw InputError(place, "tpe is no list of micro-batches");
    row_.clear();
    for (std::size_t m = 0; m < lists.size(); ++m) {
      const json& list = lists[m];
      if (!list.is_array() || list.empty()) {
        throw InputError(place, fmt::format("tpe[{}] is no list of experts", m));
      }
      if (own_ == 0) {
        own_ = list.size();
        if (own_ * job_.ep >= kMostExperts) {
          throw InputError(place, fmt::format("{} experts on each of {} EP ranks", own_, job_.ep));
        }
      }
      if (list.size() != own_) {
        throw InputError(
            place,
            fmt::format("tpe[{}] has {} experts, the lines before have {}", m, list.size(), own_),
            "every rank holds the same number of experts");
      }
      for (std::size_t e = 0; e < own_; ++e) {
        if (!list[e].is_number_unsigned() || list[e].get<std::uint64_t>() > kMostCount) {
          throw InputError(place,
                           fmt::format("tpe[{}][{}] = {}. Violated: a whole number from 0 to "
                                       "10^12",
                                       m, e, list[e].dump().substr(0, 40)));
        }
        row_.push_back(list[e].get<std::uint64_t>());
      }
    }
  }

  void add(const std::string& place, std::size_t stage, std::uint32_t layer, std::size_t ep,
           std::uint64_t micro_batches) {
    std::uint64_t of_model = layer;
    if (!job_.stage_layers.empty()) {
      if (layer >= job_.stage_layers[stage]) {
        throw InputError(place,
                         fmt::format("layer {}, but stage {} has {} layers", layer, stage,
                                     job_.stage_layers[stage]),
                         "a layer is numbered within its stage; see --stage-layers");
      }
      of_model += std::accumulate(job_.stage_layers.begin(),
                                  job_.stage_layers.begin() + static_cast<std::ptrdiff_t>(stage),
                                  std::uint64_t{0});
    }
    if (of_model >= kMostLayers) throw InputError(place, "a layer beyond 65534");
    std::vector<std::uint64_t>& sum = sums_[static_cast<std::uint32_t>(of_model)];
    sum.resize(own_ * job_.ep, 0);
    for (std::uint64_t m = 0; m < micro_batches; ++m) {
      for (std::size_t e = 0; e < own_; ++e) {
        std::uint64_t& s = sum[ep * own_ + e];
        s += row_[m * own_ + e];
        if (s > kMostSum)
          throw InputError(place, fmt::format("expert {}: more than 10^18 rows", e));
      }
    }
  }

  /// The first rank of a stage: every iteration must have every layer, and be there in all stages.
  void check_stage(const fs::path& file, bool first_stage) {
    std::map<std::uint64_t, std::vector<std::uint32_t>> layers;
    for (const auto& [key, seen] : stage_) layers[key.first].push_back(key.second);
    if (first_stage && !layers.empty()) {
      out_.iterations = layers.size();
      out_.first = layers.begin()->first;
      out_.last = layers.rbegin()->first;
      for (const auto& [key, seen] : stage_) {
        if (key.second == layers.begin()->second.front()) out_.micro_batches += seen.micro_batches;
      }
    }
    if (layers.size() != out_.iterations ||
        (!layers.empty() &&
         (layers.begin()->first != out_.first || layers.rbegin()->first != out_.last))) {
      throw InputError(file.string(), "its iterations are not those of the first stage");
    }
    for (const auto& [iteration, numbers] : layers) {
      const std::vector<std::uint32_t>& want = layers.begin()->second;
      std::vector<std::uint32_t> differ;
      std::set_symmetric_difference(numbers.begin(), numbers.end(), want.begin(), want.end(),
                                    std::back_inserter(differ));
      if (differ.empty()) continue;
      const bool missing = std::binary_search(want.begin(), want.end(), differ[0]);
      throw InputError(file.string(),
                       fmt::format("layer {} has a line in iteration {} and none in {}", differ[0],
                                   missing ? layers.begin()->first : iteration,
                                   missing ? iteration : layers.begin()->first),
                       "a job that was stopped while it wrote: leave the iteration out "
                       "(--iterations)");
    }
  }

  static void same_lines(const Lines& want, const Lines& have, const fs::path& of,
                         const fs::path& file) {
    for (const auto& [key, seen] : want) {
      const auto at = have.find(key);
      if (at == have.end()) {
        throw InputError(file.string(),
                         fmt::format("no line of iteration {}, layer {}, which {}:{} has",
                                     key.first, key.second, of.filename().string(), seen.line),
                         "leave the iteration out (--iterations), or see the sizes of the job");
      }
      if (at->second.micro_batches != seen.micro_batches) {
        throw InputError(fmt::format("{}:{}", file.string(), at->second.line),
                         fmt::format("{} micro-batches, {}:{} has {}", at->second.micro_batches,
                                     of.filename().string(), seen.line, seen.micro_batches));
      }
    }
    for (const auto& [key, seen] : have) {
      if (want.contains(key)) continue;
      throw InputError(fmt::format("{}:{}", file.string(), seen.line),
                       fmt::format("iteration {}, layer {}, which {} has not", key.first,
                                   key.second, of.filename().string()),
                       "leave the iteration out (--iterations), or see the sizes of the job");
    }
  }

  void same_counts(const Lines& have, const fs::path& of, const fs::path& file) const {
    for (const auto& [key, seen] : have) {
      const Seen& want = leader_.at(key);
      if (want.hash == seen.hash) continue;
      throw InputError(fmt::format("{}:{}", file.string(), seen.line),
                       fmt::format("other counts than {}:{}, which has the same experts under "
                                   "--etp {}",
                                   of.filename().string(), want.line, job_.etp),
                       "Megatron takes the tensor parallel size unless "
                       "--expert-tensor-parallel-size says otherwise");
    }
  }

  const MegatronJob& job_;
  MegatronCounts out_;
  std::map<std::uint32_t, std::vector<std::uint64_t>> sums_;  // layer of the model → [E]
  std::size_t own_ = 0;                                       // experts of a rank
  std::vector<std::uint64_t> row_;
  Lines stage_, leader_;  // of the first rank of the stage; of the first of the ETP ranks
};

}  // namespace

std::vector<fs::path> megatron_rank_files(const fs::path& input) {
  std::error_code failed;
  if (!fs::is_directory(input, failed)) {
    const std::optional<std::uint64_t> rank = rank_of(input);
    if (rank && (*rank > 0 || fs::exists(input.parent_path() / "rank1.jsonl", failed))) {
      throw InputError(input.string(), "is the file of one of several ranks",
                       "give the folder that holds them all");
    }
    return {input};
  }
  std::map<std::uint64_t, fs::path> found;
  for (const fs::path& folder : {input, input / "tokens_per_expert"}) {
    if (!found.empty() || !fs::is_directory(folder, failed)) continue;
    for (fs::directory_iterator at(folder, failed), end; !failed && at != end;
         at.increment(failed)) {
      if (const auto rank = rank_of(at->path())) found[*rank] = at->path();
    }
  }
  if (found.empty()) {
    if (fs::exists(input / "tokens_per_expert.log", failed)) {
      throw InputError((input / "tokens_per_expert.log").string(),
                       "unsupported: the text of an early version",
                       "log with a version that writes tokens_per_expert/rank<N>.jsonl");
    }
    throw InputError(input.string(), "holds no rank0.jsonl, rank1.jsonl, …",
                     "the folder tokens_per_expert of Megatron's --save, or one rank's file");
  }
  std::vector<fs::path> out;
  for (const auto& [rank, path] : found) {
    if (rank != out.size()) {
      throw InputError(path.parent_path().string(),
                       fmt::format("rank{}.jsonl is missing of {} ranks", out.size(),
                                   found.rbegin()->first + 1));
    }
    out.push_back(path);
  }
  return out;
}

MegatronCounts read_megatron_counts(const fs::path& input, const MegatronJob& job) {
  for (const auto& [option, value] :
       {std::pair("--ep", job.ep), {"--etp", job.etp}, {"--edp", job.edp}}) {
    if (value == 0 || value > kMostRanks) {
      throw InputError(option, fmt::format("{}. Violated: 1 to 1048576", value));
    }
  }
  for (const std::uint32_t layers : job.stage_layers) {
    if (layers == 0) throw InputError("--stage-layers", "a stage of 0 layers");
  }
  if (job.iterations && job.iterations->first > job.iterations->second) {
    throw InputError("--iterations", "the first is behind the last");
  }
  return Reader(job).read(input);
}

}  // namespace switchyard::importers
