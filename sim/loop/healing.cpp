// SPDX-License-Identifier: Apache-2.0
// What a fault does to the step loop, and how it heals.
//
// Loss of a GPU (or of the cable that connects it). The step that was to begin hangs for
// faults.detection and is run again: its tokens count as lost once. Then
//   migrate  one group of experts (ep = GPUs): every expert whose only copy is gone gets one on the
//            survivor with the fewest copies in that layer, from host memory; sequences go to the
//            survivors with the fewest, whose KV pages are lost and computed again. Several groups:
//            the group of the GPU is taken out of service, the others take its sequences; pages of
//            its healthy GPUs travel over the links.
//            When the GPU is back it loads its weights from host memory, then its experts and
//            sequences return over the links.
//   restart  everybody waits for faults.restart and until the GPU's weights are loaded; GPUs lost
//            in the same step restart side by side. A cable without which the GPU is cut off is
//            repaired meanwhile.
// Requests that arrive: those with pages on a lost GPU compute them again on the survivors, or fail
// (workload.front_end.on_failure); those that only wait go to the others; pages that healthy GPUs
// of the group hold travel where there is room. Experts that arrive take room from KV pages:
// requests lose theirs as if pages had run out, and those that no longer fit at all fail. When the
// GPU is back, new requests go there. With several replicas only restart: the GPU's replica does
// not work for detection + restart + load, the others go on, and the front end's health checks
// decide what becomes of its requests; those with pages on the GPU compute them again wherever they
// go on. So do those whose pages are on their way from the GPU or to it (prefill replicas), in the
// decode replica. A broken cable holds up the replicas that have a route over it. With stages only
// restart: a GPU's layers are nowhere else, and its sequences' pages are lost in all stages. With
// memory.residency the survivors load what they have now when it is asked for. A GPU is back when
// the last of its causes is over (its loss, every cable that cut it off). Loads from host memory
// run side by side: bytes / faults.reload each, or in closed form over the links from the nearest
// CPU of each GPU. They delay the GPUs that load, so the next exchange.
//
// A damaged expert (bit_flip) is found by the check of every faults.check_every steps and loaded
// anew by its holders; one on a wrong GPU (mis_sharding, exchange_faults.cpp) goes to its own. A
// step checks before its faults begin, so damage runs in one step at least. Of several replicas the
// one whose step comes first checks for all; every other one goes on with its step and begins its
// own load after it: what is left of that when it goes on, its next step waits for.
//
// A host without room for what a lost GPU loads from it is an error (weight_sources.cpp); a stated
// faults.reload is the rate of wherever the weights are.
//
// Not modelled: loads from host memory beside other traffic, spare GPUs, time to agree on the new
// layout (part of faults.detection).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "engine/model/accounting.hpp"
#include "sim/loop/step_loop.hpp"
#include "sim/network/bottleneck.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {

using scenario::FaultKind;
using scenario::FaultReaction;
using scenario::FaultRule;

void Simulator::event(run::EventKind kind, std::int64_t time, std::uint64_t step, std::uint32_t gpu,
                      double value, std::string text) {
  run::Event e;
  e.time_ps = time;
  e.step = static_cast<std::uint32_t>(step);
  e.kind = kind;
  e.gpu = gpu;
  e.value = value;
  e.text = std::move(text);
  sink_.data().events.push_back(std::move(e));
}

std::vector<std::uint32_t> Simulator::unit_of(std::uint32_t gpu) const {
  // Shards need each other even where one group is all GPUs; copies of whole experts do not.
  const scenario::Parallel& p = layout_of(gpu);
  const std::uint32_t size = p.tp > 1 ? p.exchange_gpus() : p.ep < gpus_ && layers_ > 0 ? p.ep : 1;
  std::vector<std::uint32_t> members(size);
  std::iota(members.begin(), members.end(), gpu - (gpu - p.first_gpu) % size);
  return members;
}

std::string Simulator::describe(const FaultChange& c) const {
  const FaultRule& r = s_.faults.events[c.rule];
  std::string text(scenario::kFaultKindNames[static_cast<std::size_t>(r.kind)]);
  const auto layer = [&](const char* before) {
    if (r.layer == scenario::kAnyTarget) return;
    text += fmt::format("{}MoE layer {}", before, s_.model.moe_layers()[r.layer]);
  };
  switch (r.kind) {
    case FaultKind::kLinkDown:
      return fmt::format("{} {}", text, s_.hardware.links[c.target].name);
    case FaultKind::kLinkDegraded:
      return fmt::format("{} {}: {:.4g} of its bandwidth", text, s_.hardware.links[c.target].name,
                         r.factor);
    case FaultKind::kSlowExpert:
    case FaultKind::kBitFlip:
      text += fmt::format(" expert {}", r.expert);
      layer(" of ");
      return r.kind == FaultKind::kBitFlip ? text : fmt::format("{}: x {:.4g}", text, r.factor);
    case FaultKind::kSlowGpu:
      return fmt::format("{} {}: x {:.4g}", text, s_.hardware.gpu(c.target).name, r.factor);
    case FaultKind::kHostStall:
      return fmt::format("{} {}: {}", text,
                         c.target < gpus_ ? s_.hardware.gpu(c.target).name : "of all GPUs",
                         format_time(r.stall));
    case FaultKind::kKvLeak:
      return fmt::format("{} {}: {} B a step", text, s_.hardware.gpu(c.target).name, r.bytes);
    case FaultKind::kHotGpu:
      return fmt::format("{} {}: {:.4g} of its clock", text, s_.hardware.gpu(c.target).name,
                         r.factor);
    case FaultKind::kGatherFailure:
      text += fmt::format(" {}", s_.hardware.gpu(c.target).name);
      layer(", ");
      return fmt::format("{}: {} tr{} of a combine fail{}, {} each", text, r.tries,
                         r.tries == 1 ? "y" : "ies", r.tries == 1 ? "s" : "",
                         format_time(r.timeout));
    case FaultKind::kMisSharding:
      text += fmt::format(" expert {}", r.expert);
      layer(" of ");
      return fmt::format("{}: its weights lie on {}", text, s_.hardware.gpu(r.gpu).name);
    case FaultKind::kGpuLoss:
      break;
  }
  return fmt::format("{} {}", text, s_.hardware.gpu(c.target).name);
}

void Simulator::reset_healing() {
  hang_ps_ = 0;
  healing_since_ = -1;
  hang_gpu_ = run::kNone;
  host_load_.assign(gpus_, 0);
  travel_.assign(std::size_t{gpus_} * gpus_, 0);
  leaving_.assign(gpus_, 0);
  arriving_.assign(gpus_, 0);
  healing_.clear();
}

std::int64_t Simulator::engine_time() const {
  return *std::max_element(ready_.begin() + plan_.first_gpu, ready_.begin() + plan_.last_gpu);
}

void Simulator::note_healing() {
  const bool loads =
      std::any_of(host_load_.begin(), host_load_.end(), [](std::uint64_t b) { return b > 0; });
  if (healing_since_ < 0 && (hang_ps_ > 0 || loads)) healing_since_ = engine_time();
}

void Simulator::begin_faults(std::uint64_t step) {
  const std::int64_t now = engine_time();
  std::vector<std::uint32_t> lost, back;
  bool wires = false;
  if ((faults_->any_damaged() || !astray_.empty()) && step % s_.faults.check_every == 0 &&
      checked_step_ != step) {
    checked_step_ = step;
    check_weights(step, now);
  }
  for (const FaultChange& c : faults_->advance(step, now)) {
    const FaultRule& r = s_.faults.events[c.rule];
    faults_seen_ += c.begins ? 1 : 0;
    run::Event e;
    e.time_ps = now;
    e.step = static_cast<std::uint32_t>(step);
    e.kind = run::EventKind::kFault;
    const bool of_link = r.kind == FaultKind::kLinkDown || r.kind == FaultKind::kLinkDegraded;
    if (of_link) {
      const scenario::Link& l = s_.hardware.links[c.target];
      for (std::uint32_t k = 0; k < exchange_.links().size() && e.link == run::kNone; ++k) {
        const LinkDescription& d = exchange_.links()[k];
        const std::string &a = s_.hardware.devices[l.a].name, &b = s_.hardware.devices[l.b].name;
        if ((d.from == a && d.to == b) || (d.from == b && d.to == a)) e.link = k;
      }
    }
    if (!of_link && c.target < gpus_ && r.expert == scenario::kAnyTarget) e.gpu = c.target;
    if (r.kind == FaultKind::kMisSharding) {
      e.gpu = r.gpu;
      for (std::uint32_t l = 0; l < layers_ && c.begins; ++l) {
        if (staged() && stage_of_moe(l) != stage_of_gpu(r.gpu)) continue;
        if (r.layer == scenario::kAnyTarget || r.layer == l) mislay(l, r.expert, r.gpu);
      }
    }
    bool touched = true;  // Some of it is in GPU memory.
    if (r.kind == FaultKind::kBitFlip && c.begins && loads_) {
      touched = false;
      for (std::uint32_t l = 0; l < layers_; ++l) {
        if (r.layer != scenario::kAnyTarget && r.layer != l) continue;
        if (resident(l, r.expert)) {
          touched = true;
        } else {
          faults_->load_sound(l, r.expert);
        }
      }
    }
    if (r.expert != scenario::kAnyTarget) e.expert = r.expert;
    if (r.layer != scenario::kAnyTarget) e.layer = r.layer;
    e.value = r.factor;
    e.text = describe(c) + (c.begins ? "" : ": over");
    if (!touched) e.text += ": no GPU has it, the next load is sound";
    sink_.data().events.push_back(std::move(e));
    wires = wires || of_link;
    if (r.kind == FaultKind::kGpuLoss) (c.begins ? lost : back).push_back(c.target);
    if (r.kind == FaultKind::kLinkDown && c.begins && replicas() == 1) {
      hang_ps_ = std::max(hang_ps_, s_.faults.detection.ps());
    } else if (r.kind == FaultKind::kLinkDown && c.begins) {
      for (const std::uint32_t engine : engines_over(c.target)) {
        // A step under way ends; the next one is the one that hangs.
        const scenario::GpuRange of = engine_gpus_[engine];
        const std::int64_t from =
            std::max(now, *std::max_element(ready_.begin() + of.first, ready_.begin() + of.beyond));
        hang_until_[engine] = std::max(hang_until_[engine], from + s_.faults.detection.ps());
      }
    }
  }
  set_clocks();
  if (wires) rewire(lost, back);
  // Losses first: sequences that come home must not leave pages behind on a GPU that goes now.
  const std::vector<std::uint8_t> before = lost_;
  std::vector<MovedSequence> moved;
  if (s_.faults.reaction == FaultReaction::kRestart) {
    restart_gpus(step, lost);
  } else {
    lose_gpus(step, lost, moved);
  }
  for (const std::uint32_t g : back) return_gpu(step, g, moved);
  // A sequence that a loss and a return both move travels once, from where its pages are.
  std::map<std::uint32_t, MovedSequence> trips;
  for (const MovedSequence& m : moved) trips.try_emplace(m.id, m).first->second.to = m.to;
  for (const auto& [id, trip] : trips) carry_kv(trip);
  if (lost_ != before) {
    place_again();
    batch_->set_kv_rooms(kv_rooms());
  }
}

std::vector<std::uint32_t> Simulator::engines_over(std::uint32_t cable) const {
  const scenario::Link& l = s_.hardware.links[cable];
  const std::string &a = s_.hardware.devices[l.a].name, &b = s_.hardware.devices[l.b].name;
  const cluster::ClusterGraph graph = network::cluster_of(s_);
  const cluster::RouteTable routes = graph.routes();
  std::vector<std::uint32_t> found;
  for (std::uint32_t engine = 0; engine < replicas(); ++engine) {
    const scenario::GpuRange of = engine_gpus_[engine];
    bool uses = false;
    for (std::uint32_t from = of.first; from < of.beyond && !uses; ++from) {
      for (std::uint32_t to = of.first; to < of.beyond && !uses; ++to) {
        if (from == to) continue;
        for (const std::uint32_t k : routes.links_of(from, to)) {
          const std::string& x = graph.devices()[graph.links()[k].from].name;
          const std::string& y = graph.devices()[graph.links()[k].to].name;
          uses = uses || (x == a && y == b) || (x == b && y == a);
        }
      }
    }
    if (uses) found.push_back(engine);
  }
  return found;
}

bool Simulator::resident(std::uint32_t layer, std::uint32_t expert) const {
  return !loads_ || loads_->residency.resident(layer, map().gpu_of(layer, expert, 0),
                                               static_cast<std::uint16_t>(expert));
}

/// Routes over what the cables are now. A cable without which a GPU is cut off takes it out.
void Simulator::rewire(std::vector<std::uint32_t>& lost, std::vector<std::uint32_t>& back) {
  const std::vector<double>& factor = faults_->link_factor();
  const auto ends_at = [&](std::size_t k, std::uint32_t g) {
    const scenario::Link& l = s_.hardware.links[k];
    return l.a == s_.hardware.gpus[g] || l.b == s_.hardware.gpus[g];
  };
  const auto all_down = [&](std::uint32_t g) {
    for (std::size_t k = 0; k < factor.size(); ++k) {
      if (factor[k] > 0 && ends_at(k, g)) return false;
    }
    return true;
  };
  const auto without_cable = [&](std::uint32_t g) {
    return std::any_of(cut_off_.begin(), cut_off_.end(), [&](auto& c) { return c.second == g; });
  };
  // A cable that is up again brings its GPU back.
  for (auto it = cut_off_.begin(); it != cut_off_.end();) {
    if (!all_down(it->second)) {
      back.push_back(it->second);
      it = cut_off_.erase(it);
    } else {
      ++it;
    }
  }
  for (;;) {
    scenario::Scenario now = s_;
    std::vector<scenario::Link> up;
    for (std::size_t k = 0; k < factor.size(); ++k) {
      scenario::Link l = s_.hardware.links[k];
      // A GPU that is cut off uses no cable; leaving one keeps the graph connected.
      if (factor[k] == 0 && !cut_off_.contains(k)) continue;
      // Its share, not its rate: routes go by nominal rates and stay.
      if (factor[k] > 0) l.achievable *= factor[k];
      up.push_back(std::move(l));
    }
    now.hardware.links = std::move(up);
    try {
      if (router_units_) router_units_->rewire(now);
      exchange_.rewire(now, earliest());
      if (transfer_routes_ && exchange_.carries_pages()) {
        transfer_routes_ = exchange_.copies()->routes();
      }
      return;
    } catch (const CutError& e) {
      bool cut = false;
      for (std::size_t k = 0; k < factor.size() && !cut; ++k) {
        if (factor[k] > 0 || cut_off_.contains(k)) continue;
        for (std::uint32_t g = 0; g < gpus_; ++g) {
          // Another GPU at this cable may have more of them: it is not the one that is cut off.
          if (!ends_at(k, g) || !all_down(g) || without_cable(g)) continue;
          if (s_.faults.reaction == FaultReaction::kRestart) {
            // The GPU comes back with the restart, so its cable must.
            faults_->repair(FaultKind::kLinkDown, static_cast<std::uint32_t>(k));
            healing_.push_back(fmt::format("{} is repaired", s_.hardware.links[k].name));
          } else {
            cut_off_[k] = g;
          }
          lost.push_back(g);
          cut = true;
          break;
        }
      }
      if (!cut) {
        throw InputError("faults.events", "link_down cuts the cluster in two: " + e.message(),
                         "unsupported; fail GPUs instead");
      }
    }
  }
}

void Simulator::restart_gpus(std::uint64_t step, const std::vector<std::uint32_t>& lost) {
  std::vector<std::uint32_t> gpus;
  for (const std::uint32_t g : lost) {  // Some of two causes.
    if (std::find(gpus.begin(), gpus.end(), g) == gpus.end()) gpus.push_back(g);
  }
  const std::vector<std::uint64_t> before = host_load_;
  for (const std::uint32_t g : gpus) {
    host_load_[g] =
        ledger_.live(g, MemoryCategory::kWeights) + ledger_.live(g, MemoryCategory::kExperts);
  }
  // Replicas wait by themselves, but their weights come over the same links.
  const std::vector<std::int64_t> loads =
      replicas() > 1 && !gpus.empty() ? host_load_ps() : std::vector<std::int64_t>();
  std::map<std::uint32_t, std::int64_t> outages;  // Of replicas, by this step's losses.
  for (const std::uint32_t gpu : gpus) {
    // The shards of a sequence's pages are of no use without the lost one, nor are those of other
    // stages: its tokens pass through all layers again. So they do for pages on several GPUs, even
    // if the lost one had a few.
    const std::uint32_t home = group_first(gpu % homes());
    if (spread_kv() || kv_by_expert()) {
      batch_->lose_pages([&](std::uint32_t id, std::uint32_t at, std::uint64_t tokens) {
        return keeps_kv(gpu, id, at, tokens);
      });
    } else {
      for (std::uint32_t first = home; first < gpus_; first += homes()) {
        for (std::uint32_t g = first; g < first + layout_of(gpu).tp; ++g) {
          ledger_.release(g, MemoryCategory::kKv, ledger_.live(g, MemoryCategory::kKv), ready_[g],
                          static_cast<std::uint32_t>(step), "the cache is lost with a GPU");
        }
      }
      batch_->lose_kv(home);
    }
    faults_->repair(FaultKind::kGpuLoss, gpu);
    const std::int64_t hang = s_.faults.detection.ps() + s_.faults.restart.ps();
    if (replicas() > 1) {
      // Its replica goes on when the GPU has its weights; the others, and the front end, find out
      // by themselves.
      const std::int64_t load = loads[gpu], now = engine_time();
      host_load_[gpu] = before[gpu];
      const std::uint32_t engine = engine_of(gpu);
      batch_->outage(engine, now + hang + load);
      hang_until_[engine] = 0;  // The outage has it.
      // GPUs of a replica that restart side by side keep it away once, for the longest of them.
      std::int64_t& away = outages[engine];
      recovery_ps_ += std::max<std::int64_t>(hang + load - away, 0);
      away = std::max(away, hang + load);
      event(
          run::EventKind::kPolicyAction, now, step, gpu, 0,
          fmt::format("healing: {} restarts, replica {} is away for {}", s_.hardware.gpu(gpu).name,
                      engine, format_time(SimTime::from_ps(hang + load))));
      continue;
    }
    hang_ps_ = std::max(hang_ps_, hang);
    hang_gpu_ = gpu;
    healing_.push_back(fmt::format("{} restarts", s_.hardware.gpu(gpu).name));
  }
}

void Simulator::lose_gpus(std::uint64_t step, const std::vector<std::uint32_t>& gpus,
                          std::vector<MovedSequence>& moved) {
  // First all that go, so that nothing moves to one of them and no pages travel from one.
  std::vector<std::uint32_t> gone;
  for (const std::uint32_t gpu : gpus) {
    if (lost_[gpu] != 0) continue;
    lost_[gpu] = 1;
    gone.push_back(gpu);
    for (const std::uint32_t g : unit_of(gpu)) out_[g] = 1;
    hang_ps_ = std::max(hang_ps_, s_.faults.detection.ps());
    hang_gpu_ = gpu;
    host_load_[gpu] = 0;  // A check may have asked for a load.
  }
  if (gone.empty()) return;
  std::vector<std::uint32_t> others;
  for (std::uint32_t g = 0; g < gpus_; g += layout().tp) {
    if (out_[g] == 0) others.push_back(g);
  }
  if (others.empty()) {
    throw InputError("faults.events",
                     fmt::format("step {}: no GPU is left that could take over", step),
                     "use faults.reaction = \"restart\"");
  }
  for (const std::uint32_t gpu : gone) {
    std::size_t sequences = 0;
    for (const std::uint32_t g : unit_of(gpu)) {
      // The shards of a sequence's pages are of no use without the lost one.
      const bool keep = lost_[g] == 0 && !sharded();
      if (!keep) {
        // Nothing is left of it when the unit's next lost GPU comes by here.
        ledger_.release(g, MemoryCategory::kKv, ledger_.live(g, MemoryCategory::kKv), ready_[g],
                        static_cast<std::uint32_t>(step), "the cache is lost with a GPU");
      }
      const std::vector<MovedSequence> leave = batch_->evacuate(g, others, keep);
      sequences += leave.size();
      moved.insert(moved.end(), leave.begin(), leave.end());
    }
    for (std::size_t c = 0; c < run::kMemoryCategories; ++c) {
      const auto category = static_cast<MemoryCategory>(c);
      ledger_.release(gpu, category, ledger_.live(gpu, category), ready_[gpu],
                      static_cast<std::uint32_t>(step), "the GPU is lost");
    }
    leaked_[gpu] = 0;
    healing_.push_back(fmt::format("{} sequences leave {}", sequences, s_.hardware.gpu(gpu).name));
  }
}

void Simulator::return_gpu(std::uint64_t step, std::uint32_t gpu,
                           std::vector<MovedSequence>& moved) {
  if (lost_[gpu] == 0) return;
  // It stays away while another of its causes holds.
  if (faults_->active(FaultKind::kGpuLoss, gpu)) return;
  for (const auto& [cable, without] : cut_off_) {
    if (without == gpu) return;
  }
  lost_[gpu] = 0;
  const std::uint64_t weights = backbone_bytes(*pool_);
  ledger_.allocate(gpu, MemoryCategory::kWeights, weights, ready_[gpu],
                   static_cast<std::uint32_t>(step), "weights");
  ledger_.allocate(gpu, MemoryCategory::kRuntime, s_.memory.reserve, ready_[gpu],
                   static_cast<std::uint32_t>(step), "memory.reserve");
  host_load_[gpu] += weights;
  const std::vector<std::uint32_t> unit = unit_of(gpu);
  if (unit.size() > 1 && layers_ > 0) {
    // Its experts are those of its place in the group; other groups keep theirs.
    std::uint64_t held = 0;
    for (std::uint32_t l = 0; l < layers_; ++l) held += map().row(l).count[layout().rank_of(gpu)];
    ledger_.allocate(gpu, MemoryCategory::kExperts, held * expert_bytes(*pool_), ready_[gpu],
                     static_cast<std::uint32_t>(step), fmt::format("{} expert weights", held));
    host_load_[gpu] += held * expert_bytes(*pool_);
  }
  if (std::any_of(unit.begin(), unit.end(), [&](std::uint32_t g) { return lost_[g] != 0; })) return;
  std::size_t sequences = 0;
  for (const std::uint32_t g : unit) {
    out_[g] = 0;
    const std::vector<MovedSequence> home = batch_->come_home(g);
    sequences += home.size();
    moved.insert(moved.end(), home.begin(), home.end());
  }
  healing_.push_back(
      fmt::format("{} is back, {} sequences return", s_.hardware.gpu(gpu).name, sequences));
}

/// The pages of a sequence travel to its new home; of a tensor-parallel group each shard does.
void Simulator::carry_kv(const MovedSequence& m) {
  if (m.tokens == 0) return;
  const std::uint32_t pp = layout().pp;
  const std::size_t layers = s_.model.layers.size();
  for (std::uint32_t stage = 0; stage < pp; ++stage) {
    const std::uint64_t bytes =
        kv_bytes_of(pool_of(m.from), m.tokens, stage_begin(layers, pp, stage),
                    stage_begin(layers, pp, stage + 1));
    for (std::uint32_t i = 0; i < layout().tp; ++i) {
      const std::uint32_t shard = stage * homes() + i;
      travel_[std::size_t{m.from + shard} * gpus_ + m.to + shard] += bytes;
    }
  }
}

/// Copies of experts for the GPUs that are there: those of the first placement, and for an expert
/// without any one more.
void Simulator::place_again() {
  if (layers_ == 0 || layout().ep != gpus_ || s_.faults.reaction == FaultReaction::kRestart) return;
  placement::Placement next = whole_;
  // One row may stand for all layers; lost experts go to other GPUs in each.
  if (next.rows.size() == 1) next.rows.resize(layers_, placement::Row(next.rows.front()));
  std::vector<std::size_t> taken(gpus_, 0);  // over all layers, so that ties go round
  for (placement::Row& row : next.rows) {
    std::vector<std::size_t> held(gpus_, 0);
    for (std::vector<std::uint32_t>& copies : row) {
      std::erase_if(copies, [&](std::uint32_t r) { return lost_[r] != 0; });
      for (const std::uint32_t r : copies) ++held[r];
    }
    for (std::vector<std::uint32_t>& copies : row) {
      if (!copies.empty()) continue;
      std::uint32_t best = run::kNone;
      for (std::uint32_t r = 0; r < gpus_; ++r) {
        if (lost_[r] != 0) continue;
        if (best == run::kNone ||
            std::pair(held[r], taken[r]) < std::pair(held[best], taken[best])) {
          best = r;
        }
      }
      copies.push_back(best);
      ++held[best];
      ++taken[best];
    }
  }
  if (loads_) {
    // Nothing moves: a GPU asks for what it has now when it is asked for it.
    pool_->place(std::move(next));
    ++moves_;
    relocate_experts();
    healing_.push_back("experts are loaded by the GPUs that have them now when asked for");
    return;
  }
  const std::uint64_t each = expert_bytes(*pool_);
  std::uint64_t from_host = 0, over_links = 0;
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      const std::vector<std::uint32_t>& had = pool_->places.row(l)[e];
      const std::vector<std::uint32_t>& wants = next.row(l)[e];
      const auto copies = [](const std::vector<std::uint32_t>& v, std::uint32_t r) {
        return std::count(v.begin(), v.end(), r);
      };
      std::uint32_t source = run::kNone;
      for (const std::uint32_t r : had) {
        if (lost_[r] == 0 && (source == run::kNone || r < source)) source = r;
      }
      for (std::uint32_t r = 0; r < gpus_; ++r) {
        if (lost_[r] != 0) continue;
        const auto more = copies(wants, r) - copies(had, r);
        if (more < 0) leaving_[r] += static_cast<std::uint64_t>(-more) * each;
        if (more <= 0) continue;
        arriving_[r] += static_cast<std::uint64_t>(more) * each;
        if (source == run::kNone) {
          host_load_[r] += each;
          ++from_host;
        } else if (source != r) {
          travel_[std::size_t{source} * gpus_ + r] += each;
          ++over_links;
        }
      }
    }
  }
  pool_->place(std::move(next));
  ++moves_;
  healing_.push_back(
      fmt::format("{} copies of experts from host memory, {} over links", from_host, over_links));
}

void Simulator::check_weights(std::uint64_t step, std::int64_t now) {
  std::uint64_t found = 0, misplaced = 0;
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      misplaced += bring_home(l, e, true) ? 1 : 0;
      if (!faults_->damaged(l, e)) continue;
      if (!resident(l, e)) continue;  // Given up meanwhile: the next load is sound.
      ++found;
      reload_expert(l, e);
    }
  }
  for (std::uint32_t e = 0; e < experts_; ++e) {
    faults_->repair(FaultKind::kBitFlip, e);
    faults_->repair(FaultKind::kMisSharding, e);
  }
  if (misplaced > 0) {
    healing_.push_back(fmt::format("{} misplaced expert{} (layer x expert) brought to {} own GPU",
                                   misplaced, misplaced == 1 ? "" : "s",
                                   misplaced == 1 ? "its" : "their"));
  }
  if (found == 0) return;
  event(run::EventKind::kPolicyAction, now, step, run::kNone, static_cast<double>(found),
        fmt::format("check of weights: {} damaged expert{} (layer x expert) loaded anew", found,
                    found == 1 ? "" : "s"));
}

void Simulator::reload_expert(std::uint32_t layer, std::uint32_t expert) {
  bring_home(layer, expert, false);
  for (const auto& pool : pools_) {
    const scenario::Parallel& p = pool->layout;
    const std::uint32_t first = p.first_gpu + stage_of_moe(layer) * p.stage_gpus();
    for (std::uint32_t i = 0; i < pool->map.row(layer).copies(expert); ++i) {
      for (std::uint32_t q = first; q < first + p.stage_gpus(); q += p.copy_gpus()) {
        const std::uint32_t holder = pool->map.gpu_of(layer, expert, q, i);
        for (std::uint32_t g = holder; g < holder + p.expert_tp; ++g) {
          if (lost_[g] == 0) host_load_[g] += expert_bytes(*pool);
        }
      }
    }
  }
}

/// How long each GPU loads from host memory.
std::vector<std::int64_t> Simulator::host_load_ps() const {
  std::vector<std::int64_t> ps(gpus_, 0);
  if (s_.faults.reload.value > 0) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      ps[g] =
          SimTime::from_seconds(static_cast<double>(host_load_[g]) / s_.faults.reload.value).ps();
    }
    return ps;
  }
  // All loads side by side over the links: they end together, which is no worse for anybody than
  // the busiest link allows.
  const cluster::ClusterGraph graph = network::cluster_of(s_);
  const std::vector<std::uint32_t> host = hosts_to_reload_from();
  std::vector<std::uint32_t> endpoints = graph.gpus();
  std::vector<network::Transfer> transfers;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (host_load_[g] == 0) continue;
    require_room(host[g], host_load_[g], {g}, "faults.reload",
                 "state the rate at which weights come from elsewhere");
    const auto at = std::find(endpoints.begin() + gpus_, endpoints.end(), host[g]);
    transfers.push_back({static_cast<std::uint32_t>(at - endpoints.begin()), g, host_load_[g]});
    if (at == endpoints.end()) endpoints.push_back(host[g]);
  }
  network::BottleneckModel model(graph.routes(endpoints));
  std::vector<std::uint64_t> link_bytes(model.links());
  const std::int64_t t = model.evaluate(transfers, link_bytes).duration.ps();
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (host_load_[g] > 0) ps[g] = t;
  }
  return ps;
}

void Simulator::wait(std::uint32_t gpu, std::int64_t ps, std::uint32_t whose,
                     StragglerReason reason) {
  check_time(ps);
  ready_[gpu] += ps;
  check_time(ready_[gpu]);
  extend(path_[gpu], {run::Phase::kWait, at_layer_, whose, reason}, ps);
  gpu_phase_[gpu][at(run::Phase::kWait)] += ps;
}

/// The time of what begin_faults() found out, before the step's own work.
void Simulator::pay_faults(std::uint64_t step) {
  const std::int64_t begin = engine_time();
  // What another replica's check of the weights asked this one's GPUs for.
  for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
    const std::int64_t left = loads_until_[g] - ready_[g];
    if (left <= 0) continue;
    wait(g, left, g, StragglerReason::kExpertLoadFromHost);
    straggler_ps_[kByFault][g] += left;
  }
  // What passed while there was nothing to compute.
  std::int64_t passed =
      healing_since_ < 0 ? 0 : std::max<std::int64_t>(0, record_.scalars.start_ps - healing_since_);
  const std::int64_t in_hang = std::min(passed, hang_ps_);
  hang_ps_ -= in_hang;
  passed -= in_hang;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    // After the plan gave up the pages that no longer fit.
    if (arriving_[g] == 0) continue;
    ledger_.allocate(g, MemoryCategory::kExperts, arriving_[g], ready_[g],
                     static_cast<std::uint32_t>(step),
                     fmt::format("{} experts arrive", arriving_[g] / expert_bytes(pool_of(g))));
  }
  if (replicas() > 1 && faults_ != nullptr) {
    hang_ps_ = std::max<std::int64_t>(0, hang_until_[plan_.engine] - engine_time());
  }
  if (hang_ps_ > 0) {
    for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
      wait(g, hang_ps_, hang_gpu_, StragglerReason::kFault);
    }
    // What the step would have computed; the recomputation is no part of it. Of requests that
    // arrive the step is planned when the hang is over.
    for (const PlannedSequence& q : plan_.sequences) {
      if (!s_.workload.serves()) lost_tokens_ += std::min(q.fresh, s_.workload.tokens);
    }
    if (hang_gpu_ < gpus_) straggler_ps_[kByFault][hang_gpu_] += hang_ps_;
  }
  if (std::any_of(host_load_.begin(), host_load_.end(), [](std::uint64_t b) { return b > 0; })) {
    std::vector<std::int64_t> ps = host_load_ps();
    for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
      ps[g] = std::max<std::int64_t>(0, ps[g] - passed);
    }
    const auto last =
        static_cast<std::uint32_t>(std::max_element(ps.begin(), ps.end()) - ps.begin());
    const std::int64_t since = healing_since_ < 0 ? begin : healing_since_;
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      // Another replica: it goes on as planned, and its next step waits for what is left of this.
      if (of_engine(g) || ps[g] == 0) continue;
      loads_until_[g] = std::max({loads_until_[g], ready_[g], since}) + ps[g];
    }
    for (std::uint32_t g = plan_.first_gpu; g < plan_.last_gpu; ++g) {
      if (ps[g] == 0) continue;
      wait(g, ps[g], g, StragglerReason::kExpertLoadFromHost);
      straggler_ps_[kByFault][g] += ps[g];
    }
    healing_.push_back(fmt::format("{} from host memory in {}",
                                   format_bytes(static_cast<double>(std::accumulate(
                                       host_load_.begin(), host_load_.end(), std::uint64_t{0}))),
                                   format_time(SimTime::from_ps(ps[last]))));
  }
  const std::uint64_t bytes = std::accumulate(travel_.begin(), travel_.end(), std::uint64_t{0});
  if (bytes > 0) {
    std::int64_t duration = 0, floor = 0;
    exchange(run::Phase::kCollective, run::kNone, {travel_}, duration, floor, Among::kAll);
    healing_.push_back(fmt::format("{} over links in {}", format_bytes(static_cast<double>(bytes)),
                                   format_time(SimTime::from_ps(duration))));
  }
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (leaving_[g] > 0)
      ledger_.release(g, MemoryCategory::kExperts, leaving_[g], ready_[g],
                      static_cast<std::uint32_t>(step), "experts have left");
  }
  const std::int64_t end = engine_time();
  recovery_ps_ += end - begin;
  if (!healing_.empty()) {
    event(run::EventKind::kPolicyAction, begin, step, hang_gpu_, static_cast<double>(bytes),
          fmt::format("healing: {}; {} in all", fmt::join(healing_, ", "),
                      format_time(SimTime::from_ps(end - begin))));
  }
}

/// What a step leaves behind: leaked pages, assignments that ran on damaged weights.
void Simulator::end_faults(std::uint64_t step) {
  end_gathers(step);
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (faults_->leak(g) == 0 || out_[g] != 0 || !of_engine(g)) continue;
    ledger_.allocate(g, MemoryCategory::kRuntime, faults_->leak(g), ready_[g],
                     static_cast<std::uint32_t>(step), "KV pages not given back");
    leaked_[g] += faults_->leak(g);
  }
  if (faults_->any_damaged()) {
    for (std::uint32_t l = 0; l < layers_; ++l) {
      for (std::uint32_t e = 0; e < experts_; ++e) {
        if (faults_->damaged(l, e)) damaged_ += record_.expert_kept[std::size_t{l} * experts_ + e];
      }
    }
  }
}

void Simulator::note_faults(SimulationResult& result) {
  std::vector<run::Metric>& m = sink_.data().metrics;
  m.push_back({"faults", static_cast<double>(faults_seen_), ""});
  if (!s_.workload.serves()) {
    m.push_back({"tokens lost", static_cast<double>(lost_tokens_), ""});
  }
  m.push_back({"recovery time", static_cast<double>(recovery_ps_) * 1e-9, "ms"});
  m.push_back({"assignments on damaged weights", static_cast<double>(damaged_), ""});
  const auto any = [&](FaultKind k) {
    return std::any_of(s_.faults.events.begin(), s_.faults.events.end(),
                       [&](const FaultRule& r) { return r.kind == k; });
  };
  if (any(FaultKind::kGatherFailure)) {
    m.push_back({"failed gathers", static_cast<double>(failed_tries_), ""});
    m.push_back({"time of failed gathers", static_cast<double>(gather_ps_) * 1e-9, "ms"});
    m.push_back({"assignments lost in gathers", static_cast<double>(lost_in_gathers_), ""});
    if (lost_in_gathers_ > 0) {
      result.notes.push_back(
          fmt::format("{} assignments were computed and came to nothing: their gathers failed more "
                      "than {} times",
                      lost_in_gathers_, s_.faults.retries));
    }
  }
  if (any(FaultKind::kMisSharding)) {
    m.push_back({"assignments sent on", static_cast<double>(rows_sent_on_), ""});
  }
  if (faults_seen_ > 0) {
    const std::string twice =
        s_.workload.serves()
            ? std::string()
            : fmt::format(" {} tokens of steps that hung were computed twice,", lost_tokens_);
    result.notes.push_back(fmt::format("{} fault{}:{} {} of recovery", faults_seen_,
                                       faults_seen_ == 1 ? "" : "s", twice,
                                       format_time(SimTime::from_ps(recovery_ps_))));
  }
  if (damaged_ > 0) {
    result.notes.push_back(
        fmt::format("{} assignments ran on damaged weights before a check found them", damaged_));
  }
}

}  // namespace switchyard::sim
