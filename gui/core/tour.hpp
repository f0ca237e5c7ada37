// SPDX-License-Identifier: Apache-2.0
// The twelve-token tour (M68): twelve tokens want two of sixteen experts each; the routing library
// decides under three policies, and each token gets a sentence. The first three tokens are those of
// the article that tells it ([[3,7],[3,11],[5,9]…, cut off there), the other nine are chosen so
// that seven of twelve want expert 3 (as in tests/routing/walk_through_test.cpp). No Qt.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::gui {

inline constexpr std::uint32_t kTourTokens = 12, kTourExperts = 16, kTourTopK = 2;
inline constexpr std::uint32_t kTourNowhere = 0xFFFF;

struct TourSlot {
  std::uint32_t wanted = 0;          ///< Expert of first choice.
  std::uint32_t ran = kTourNowhere;  ///< Expert that ran it; kTourNowhere: dropped.
  [[nodiscard]] bool moved() const { return ran != kTourNowhere && ran != wanted; }
};
struct TourStage {
  std::string title, policy;
  std::string text;  ///< The rule, before any token is placed.
  std::uint32_t capacity = 0;  ///< Places per expert; 0: no limit.
  std::array<std::array<TourSlot, kTourTopK>, kTourTokens> tokens{};
  /// What happens to a token, with the reason.
  [[nodiscard]] std::string sentence(std::uint32_t token) const;
  /// Assignments that expert e runs once the first `tokens` tokens have been placed.
  [[nodiscard]] std::uint32_t load(std::uint32_t expert, std::uint32_t tokens) const;
  /// Once all are placed: the fullest expert (the lowest number of several), rerouted and dropped
  /// slots.
  [[nodiscard]] std::string outcome() const;
};
/// Without a limit; a fair share with reroute; a fair share without.
std::vector<TourStage> tourStages();

}  // namespace switchyard::gui
