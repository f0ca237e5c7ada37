// SPDX-License-Identifier: Apache-2.0
#include "gui/core/tour.hpp"

#include <cmath>

#include <fmt/format.h>

#include "engine/routing/decide.hpp"
#include "engine/routing/policy.hpp"

namespace switchyard::gui {
namespace {

struct Wishes {
  std::uint16_t first, second, third;
};
constexpr std::array<Wishes, kTourTokens> kTokens{{{3, 7, 11},
                                                   {3, 11, 7},
                                                   {5, 9, 3},
                                                   {3, 7, 5},
                                                   {7, 3, 11},
                                                   {11, 3, 7},
                                                   {0, 3, 7},
                                                   {5, 7, 9},
                                                   {9, 5, 3},
                                                   {14, 2, 3},
                                                   {3, 5, 9},
                                                   {7, 11, 3}}};

/// Logits of p = .48, .24, .12 for the three wishes; the other experts share the rest, lower
/// numbers more.
std::vector<float> logits() {
  std::vector<float> out;
  for (const Wishes& t : kTokens) {
    double left = 0.16;
    for (std::uint32_t e = 0; e < kTourExperts; ++e) {
      double p = 0;
      if (e == t.first) {
        p = 0.48;
      } else if (e == t.second) {
        p = 0.24;
      } else if (e == t.third) {
        p = 0.12;
      } else {
        p = left * 0.25;
        left -= p;
      }
      out.push_back(static_cast<float>(std::log(p)));
    }
  }
  return out;
}

TourStage stage(std::string title, std::string policy, std::string text) {
  GateSpec gate;
  gate.experts = kTourExperts;
  gate.top_k = kTourTopK;
  gate.renorm = true;
  const std::vector<float> z = logits();
  RankWorkspace ranking;
  Candidates candidates;
  rank_candidates(gate, z, {}, stored_candidates(kTourExperts, kTourTopK), ranking, candidates);
  std::vector<std::uint32_t> sequence, position;
  for (std::uint32_t t = 0; t < kTourTokens; ++t) {
    sequence.push_back(t);
    position.push_back(0);
  }
  const std::vector<std::uint8_t> phase(kTourTokens, static_cast<std::uint8_t>(Phase::kDecode));
  const StepContext context = make_step(sequence, position, phase, 1, 0, 0);
  DecideWorkspace deciding;
  LayerDecision decision;
  decide(gate, policy_from_text(policy, "tour"), context, candidates.view(), {}, deciding,
         decision);
  TourStage s;
  s.title = std::move(title);
  s.policy = std::move(policy);
  s.text = std::move(text);
  s.capacity = s.policy.empty() ? 0 : decision.capacity;
  for (std::uint32_t t = 0; t < kTourTokens; ++t) {
    for (std::uint32_t j = 0; j < kTourTopK; ++j) {
      const std::uint16_t ran = decision.chosen[t * kTourTopK + j];
      s.tokens[t][j] = {j == 0 ? kTokens[t].first : kTokens[t].second,
                        ran == kNoExpert ? kTourNowhere : ran};
    }
  }
  return s;
}

}  // namespace

std::string TourStage::sentence(std::uint32_t token) const {
  std::string out = fmt::format("Token {} wants experts {} and {}.", token, tokens[token][0].wanted,
                                tokens[token][1].wanted);
  for (const TourSlot& slot : tokens[token]) {
    if (slot.ran == slot.wanted) {
      out += fmt::format(" Expert {} takes it.", slot.wanted);
    } else if (slot.ran == kTourNowhere) {
      out += fmt::format(" Expert {} is full: the slot is dropped.", slot.wanted);
    } else {
      out += fmt::format(" Expert {} is full: it goes to expert {}.", slot.wanted, slot.ran);
    }
  }
  return out;
}

std::uint32_t TourStage::load(std::uint32_t expert, std::uint32_t count) const {
  std::uint32_t n = 0;
  for (std::uint32_t t = 0; t < count && t < kTourTokens; ++t) {
    for (const TourSlot& slot : tokens[t]) n += slot.ran == expert ? 1 : 0;
  }
  return n;
}

std::string TourStage::outcome() const {
  std::uint32_t fullest = 0;
  for (std::uint32_t e = 1; e < kTourExperts; ++e) {
    if (load(e, kTourTokens) > load(fullest, kTourTokens)) fullest = e;
  }
  std::uint32_t moved = 0;
  std::uint32_t dropped = 0;
  for (const auto& slots : tokens) {
    for (const TourSlot& slot : slots) {
      moved += slot.moved() ? 1 : 0;
      dropped += slot.ran == kTourNowhere ? 1 : 0;
    }
  }
  return fmt::format("All are placed: expert {} runs {}, {} slots are rerouted, {} dropped.",
                     fullest, load(fullest, kTourTokens), moved, dropped);
}

std::vector<TourStage> tourStages() {
  return {stage("No limit", "", "Every token gets its two experts, however many want the same."),
          stage("A fair share, reroute", "capacity.rule=share",
                "Each expert has ceil(12 · 2 / 16) = 2 places. Who comes late goes to the next "
                "candidate."),
          stage("A fair share, no reroute", "capacity.rule=share capacity.reroute=none",
                "Two places each, and no second chance: who comes late loses the slot.")};
}

}  // namespace switchyard::gui
