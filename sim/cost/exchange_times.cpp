// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/exchange_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.hpp"

namespace switchyard::sim {
namespace {

using scenario::OpKind;
using scenario::OpTable;

constexpr std::string_view kLibraryKey = "cost.exchange_library";

/// Whether every group of so many neighbouring GPUs lies in one server.
bool in_one_server(const scenario::Scenario& s, std::uint32_t size) {
  for (std::size_t g = 0; g < s.hardware.gpu_count(); ++g) {
    if (s.hardware.gpu(g).node != s.hardware.gpu(g / size * size).node) return false;
  }
  return true;
}

/// Tables state the format that was measured; what travels are bytes.
const OpTable* collective_table(const scenario::Scenario& s, const std::string& library,
                                std::string_view variant, std::uint64_t gpus) {
  const std::array<std::uint64_t, 1> shape{gpus};
  const auto choose = [&](model::DType dtype) {
    return scenario::choose_table(*s.cost.calibration, OpKind::kCollective, library, variant, dtype,
                                  shape, kLibraryKey);
  };
  const OpTable* own = choose(s.activations);
  return own != nullptr ? own : choose(model::DType::kBf16);
}

}  // namespace

ExchangeTimes::ExchangeTimes(const scenario::Scenario& s) : calibration_(s.cost.calibration) {
  const scenario::Parallel& p = s.parallel;
  const auto want = [&](Kind kind, bool wanted) {
    of_[static_cast<std::size_t>(kind)].wanted = wanted;
  };
  const bool dispatches = s.model.num_moe_layers() > 0 && p.ep > p.tp;
  const bool sharded = p.tp > 1;
  want(Kind::kDispatch, dispatches);
  want(Kind::kCombine, dispatches);
  want(Kind::kAllReduce, sharded && !p.sequence_parallel);
  want(Kind::kReduceScatter, sharded && p.sequence_parallel);
  want(Kind::kAllGather, sharded && (p.sequence_parallel || dispatches || p.vocab_parallel));
  const std::string& library =
      s.cost.exchange_library.empty() ? s.cost.library : s.cost.exchange_library;
  for (std::size_t k = 0; k < kKinds; ++k) {
    if (!of_[k].wanted) continue;
    const auto kind = static_cast<Kind>(k);
    const std::uint32_t size = kind <= Kind::kCombine ? p.ep : p.tp;
    if (!in_one_server(s, size)) {
      leave(kind, fmt::format("groups of {} GPUs are of several servers", size));
    } else if (kind <= Kind::kCombine) {
      find_all_to_all(s, kind, library);
    } else {
      find_collective(s, kind, library);
    }
  }
}

void ExchangeTimes::find_all_to_all(const scenario::Scenario& s, Kind kind,
                                    const std::string& library) {
  Of& of = of_[static_cast<std::size_t>(kind)];
  const std::uint64_t hidden = s.model.hidden_size, gpus = s.parallel.ep;
  const bool dispatch = kind == Kind::kDispatch;
  const bool low_latency = s.network.dispatch == scenario::DispatchKind::kPerExpert;
  const std::string_view variant = low_latency ? "low_latency" : "normal";
  const scenario::Payload& payload = s.network.payload;
  const std::uint64_t copy =
      dispatch ? payload.dispatch_bytes(hidden) : payload.combine_bytes(hidden);
  const std::uint64_t measured =
      low_latency && dispatch ? hidden + 4 * ((hidden + 127) / 128) + 16 : 2 * hidden;
  std::vector<std::uint64_t> shape{hidden, s.model.top_k, s.model.num_experts, gpus, 0};
  const OpKind op = dispatch ? OpKind::kDispatch : OpKind::kCombine;
  bool any = false;
  if (!low_latency) {
    for (const OpTable& t : calibration_->tables) {
      if (t.kind != op || t.variant != variant ||
          !std::equal(shape.begin(), shape.end() - 1, t.shape.begin())) {
        continue;
      }
      any = true;
      shape[4] = std::max(shape[4], t.shape[4]);
    }
    if (s.cost.exchange_sms > 0) shape[4] = s.cost.exchange_sms;
  }
  const OpTable* table = scenario::choose_table(*calibration_, op, library, variant,
                                                model::DType::kBf16, shape, kLibraryKey);
  if (table != nullptr && copy == measured) {
    of.timer = std::make_unique<OpTimer>(*calibration_, *table);
    const double token = use_of(*calibration_, *table, std::array<double, 1>{1}).rate_us * 1e-6 *
                         calibration_->link.value;
    of.scale = 1 / token;
    return;
  }
  if (const OpTable* all = collective_table(s, library, "alltoall", gpus); all != nullptr) {
    of.timer = std::make_unique<OpTimer>(*calibration_, *all);
    of.scale = static_cast<double>(gpus) / static_cast<double>(gpus - 1);
    return;
  }
  of.why_not =
      table != nullptr
          ? fmt::format("copies have {} B, those of the {} tables {} B", copy, variant, measured)
          : fmt::format(
                "no {} table of hidden {}, top {} of {} experts, {} GPUs{}", variant, hidden,
                s.model.top_k, s.model.num_experts, gpus,
                any && s.cost.exchange_sms > 0 ? fmt::format(", {} SMs", s.cost.exchange_sms) : "");
  of.why_not += fmt::format(", and no alltoall of {} GPUs", gpus);
}

void ExchangeTimes::find_collective(const scenario::Scenario& s, Kind kind,
                                    const std::string& library) {
  Of& of = of_[static_cast<std::size_t>(kind)];
  const std::string_view variant = kind == Kind::kAllReduce       ? "all_reduce"
                                   : kind == Kind::kReduceScatter ? "reduce_scatter"
                                                                  : "all_gather";
  const OpTable* table = collective_table(s, library, variant, s.parallel.tp);
  if (table == nullptr) {
    of.why_not = fmt::format("no {} of {} GPUs", variant, s.parallel.tp);
    return;
  }
  of.timer = std::make_unique<OpTimer>(*calibration_, *table);
}

void ExchangeTimes::leave(Kind kind, std::string why) {
  Of& of = of_[static_cast<std::size_t>(kind)];
  of.timer.reset();
  of.why_not = std::move(why);
}

void ExchangeTimes::require_any() const {
  std::string why;
  for (std::size_t k = 0; k < kKinds; ++k) {
    if (of_[k].timer != nullptr) return;
    if (of_[k].wanted) {
      why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", kNames[k], of_[k].why_not);
    }
  }
  throw InputError("cost.exchange",
                   why.empty()
                       ? "\"calibrated\" means nothing: the layout has no dispatch, combine "
                         "or collective of tensor parallelism"
                       : fmt::format("no table of the calibration fits ({})", why),
                   "use \"model\"");
}

OpTime ExchangeTimes::time(Kind kind, std::uint64_t bytes) {
  Of& of = of_[static_cast<std::size_t>(kind)];
  SWITCHYARD_ASSERT(of.timer != nullptr, "an exchange with a table");
  // Whole tokens and bytes, as measured.
  const double at = std::max(1.0, std::round(static_cast<double>(bytes) * of.scale));
  constexpr std::size_t kMostKnown = 65536;
  if (of.known.size() >= kMostKnown) of.known.clear();
  const auto known = of.known.find(at);
  if (known != of.known.end()) return known->second;
  return of.known.emplace(at, of.timer->time(std::array<double, 1>{at})).first->second;
}

}  // namespace switchyard::sim
