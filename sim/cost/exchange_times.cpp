// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/exchange_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

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

/// What can be a dispatch or combine of the MoE layers.
bool all_to_all(const OpTable& t) {
  return t.kind == OpKind::kDispatch || t.kind == OpKind::kCombine ||
         (t.kind == OpKind::kCollective && t.variant == "alltoall");
}

std::string of_library(const std::string& named) {
  return named.empty() ? std::string() : fmt::format(" of \"{}\"", named);
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

ExchangeTimes::ExchangeTimes(const scenario::Scenario& s)
    : calibration_(s.cost.calibration), named_(s.cost.exchange_library), sms_(s.cost.exchange_sms) {
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
  const std::string& library = named_.empty() ? s.cost.library : named_;
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
  const std::array<std::uint64_t, 4> shape{hidden, s.model.top_k, s.model.num_experts, gpus};
  const std::string layout = fmt::format("hidden {}, top {} of {} experts, {} GPUs", hidden,
                                         s.model.top_k, s.model.num_experts, gpus);
  const OpKind op = dispatch ? OpKind::kDispatch : OpKind::kCombine;
  const std::vector<OpTable>& tables = calibration_->tables;
  // Where the library has no such exchange at all, the only other that has it gives it.
  const bool serves = std::any_of(tables.begin(), tables.end(), [&](const OpTable& t) {
    return t.library.starts_with(library) && (named_.empty() ? t.kind == op : all_to_all(t));
  });
  std::vector<const OpTable*> fitting;
  for (const OpTable& t : tables) {
    if (t.kind == op && t.variant == variant && t.dtype == model::DType::kBf16 &&
        std::equal(shape.begin(), shape.end(), t.shape.begin()) &&
        (!serves || t.library.starts_with(library))) {
      fitting.push_back(&t);
    }
  }
  if (sms_ > 0 && !fitting.empty()) {
    std::set<std::uint64_t> there;
    for (const OpTable* t : fitting) there.insert(t->shape[4]);
    std::erase_if(fitting, [&](const OpTable* t) { return t->shape[4] != sms_; });
    if (fitting.empty()) {
      throw InputError(
          "cost.exchange_sms",
          fmt::format("no {} table of {} SMs for {}: there are those of {} SMs",
                      kNames[static_cast<std::size_t>(kind)], sms_, layout, fmt::join(there, ", ")),
          "name one of these, or leave it out for the most");
    }
  }
  const OpTable* table = nullptr;
  for (const OpTable* t : fitting) {
    if (table != nullptr && t->library != table->library) {
      if (!serves) {
        table = nullptr;
        break;
      }
      throw InputError(
          std::string(library.empty() ? "cost.calibration" : kLibraryKey),
          fmt::format("the calibration has {} of {} and {} for {}",
                      kNames[static_cast<std::size_t>(kind)], table->library, t->library, layout),
          fmt::format("name one of them with {}: their kernels differ", kLibraryKey));
    }
    if (table == nullptr || t->shape[4] > table->shape[4]) table = t;
  }
  if (table != nullptr && copy == measured) {
    of.timer = std::make_unique<OpTimer>(*calibration_, *table);
    const double token = use_of(*calibration_, *table, std::array<double, 1>{1}).rate_us * 1e-6 *
                         calibration_->link.value;
    of.scale = 1 / token;
    return;
  }
  const OpTable* all = collective_table(s, library, "alltoall", gpus);
  if (all != nullptr && (named_.empty() || !serves || all->library.starts_with(named_))) {
    of.timer = std::make_unique<OpTimer>(*calibration_, *all);
    of.scale = static_cast<double>(gpus) / static_cast<double>(gpus - 1);
    return;
  }
  const std::string whose = serves ? of_library(named_) : "";
  of.why_not = table != nullptr ? fmt::format("copies have {} B, those of the {} tables {} B", copy,
                                              variant, measured)
                                : fmt::format("no {} table{} of {}", variant, whose, layout);
  of.why_not += fmt::format(", and no alltoall{} of {} GPUs", whose, gpus);
}

void ExchangeTimes::find_collective(const scenario::Scenario& s, Kind kind,
                                    const std::string& library) {
  Of& of = of_[static_cast<std::size_t>(kind)];
  const std::string_view variant = kind == Kind::kAllReduce       ? "all_reduce"
                                   : kind == Kind::kReduceScatter ? "reduce_scatter"
                                                                  : "all_gather";
  const OpTable* table = collective_table(s, library, variant, s.parallel.tp);
  if (table == nullptr) {
    // Another library's is taken only where the named one has no collective at all.
    const bool own = std::any_of(
        calibration_->tables.begin(), calibration_->tables.end(), [&](const OpTable& t) {
          return t.kind == OpKind::kCollective && t.library.starts_with(named_);
        });
    of.why_not =
        fmt::format("no {}{} of {} GPUs", variant, own ? of_library(named_) : "", s.parallel.tp);
    return;
  }
  of.timer = std::make_unique<OpTimer>(*calibration_, *table);
}

void ExchangeTimes::leave(Kind kind, std::string why) {
  Of& of = of_[static_cast<std::size_t>(kind)];
  of.timer.reset();
  of.why_not = std::move(why);
}

std::string ExchangeTimes::taken() const {
  std::string all;
  for (std::size_t k = 0; k < kKinds; ++k) {
    const Of& of = of_[k];
    if (!of.wanted) continue;
    all += fmt::format("{}{}: ", all.empty() ? "" : "; ", kNames[k]);
    all += of.timer == nullptr
               ? of.why_not
               : fmt::format("by {} {}", of.timer->table().library, of.timer->table().variant);
  }
  return all;
}

void ExchangeTimes::require_used() const {
  const auto any = [&](const auto& like) {
    return std::any_of(of_.begin(), of_.end(), [&](const Of& of) {
      return of.timer != nullptr && like(of.timer->table());
    });
  };
  if (!any([](const OpTable&) { return true; })) {
    const std::string why = taken();
    throw InputError("cost.exchange",
                     why.empty()
                         ? "\"calibrated\" means nothing: the layout has no dispatch, combine "
                           "or collective of tensor parallelism"
                         : fmt::format("no table of the calibration fits ({})", why),
                     "use \"model\"");
  }
  if (!any([&](const OpTable& t) { return t.library.starts_with(named_); })) {
    throw InputError(
        std::string(kLibraryKey),
        fmt::format("means nothing: no exchange takes a table of \"{}\" ({})", named_, taken()),
        "leave it out, or name a library that has tables of the layout");
  }
  if (sms_ > 0 &&
      !any([&](const OpTable& t) { return t.kind != OpKind::kCollective && t.shape[4] == sms_; })) {
    throw InputError(
        "cost.exchange_sms",
        fmt::format("means nothing: no exchange takes a table of its SMs ({})", taken()),
        "leave it out");
  }
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
