// SPDX-License-Identifier: Apache-2.0
// Experts of tokens without a trace, drawn from a law (simulation.md §5 of the specification).
//
// Law. Every MoE layer l and domain d has probabilities p over the E experts:
//   uniform    1 / E
//   zipf       p ∝ r^−s, the order of the experts shuffled per layer and domain
//   lognormal  p ∝ exp(sigma · N), N a standard normal per layer, domain and expert
//   dirichlet  p ~ Dirichlet(alpha, …, alpha) per layer and domain
// A sequence belongs to one of the domains, each as likely.
//
// Choice. A token's experts are drawn one after the other, each from p without those before it
// (Plackett-Luce; the same distribution as the largest of ln p + Gumbel). A draw is looked up in
// the cumulative p, and drawn again when the expert is there already; a law so skewed that this
// takes long ranks the remaining experts by exponential clocks of rate p, which is the same
// distribution. Logits that give this order, for policies that read them: z of the r-th expert is
// −ln of the time at which the r-th clock rings; beyond the drawn ones the clocks start from the
// last of these times, since an exponential clock does not age.
//
// Correlation. With probability token_correlation a token takes the experts of the position before
// it in its sequence, in that layer. Otherwise, with probability layer_correlation, it takes the
// random numbers of its draw from the layer below, where experts are sorted by p: what is hot there
// is followed by what is as hot here, the candidates beyond the drawn ones too. p of a single token
// is the law's in either case. With both,
// neighbours that follow the same layer below agree there too, so they overlap a little more than
// token_correlation says.
//
// All numbers are functions of (seed; sequence, layer, position), whatever is asked for before.
//
// Not modelled: a token that keeps a part of the last one's experts; a domain that changes within a
// sequence; domains of different size; a popularity that all domains share.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

class SyntheticRouting {
 public:
  /// `law` is that of a checked scenario. Cost O(layers · domains · experts).
  SyntheticRouting(const scenario::RoutingSpec& law, std::uint32_t layers, std::uint32_t experts,
                   std::uint64_t seed);

  [[nodiscard]] std::uint32_t domain_of(std::uint32_t sequence) const;
  /// [E] probabilities by expert; they sum to 1.
  [[nodiscard]] std::span<const double> p(std::uint32_t layer, std::uint32_t domain) const;
  /// Of p, in bits.
  [[nodiscard]] double entropy(std::uint32_t layer, std::uint32_t domain) const {
    return tables_[index(layer, domain)].entropy;
  }

  /// Fills `ids` with distinct experts, best first; at most E. `first`: experts of them that are
  /// drawn one by one. A shorter `ids` gets the same beginning if `first` is the same.
  void draw(std::uint32_t sequence, std::uint32_t layer, std::uint32_t position,
            std::uint32_t first, std::span<std::uint16_t> ids);
  /// The same and a logit for each expert, [E], by which `ids` are ranked.
  void draw(std::uint32_t sequence, std::uint32_t layer, std::uint32_t position,
            std::uint32_t first, std::span<std::uint16_t> ids, std::span<float> logits);
  /// The same for the tokens of a step, ids [tokens][width], a multiple faster for up to eight
  /// experts of which none is drawn by clocks. `domains`: domain_of each token's sequence, or empty
  /// with one domain.
  void draw_all(std::span<const std::uint32_t> sequence, std::uint32_t layer,
                std::span<const std::uint32_t> position, std::span<const std::uint16_t> domains,
                std::uint32_t first, std::uint32_t width, std::span<std::uint16_t> ids);

  /// "dirichlet(0.3), 4 domains, token correlation 0.2".
  [[nodiscard]] const std::string& description() const { return description_; }

 private:
  struct Table {
    std::vector<double> p, log_p;           // [E] by expert
    std::vector<double> below;              // [E + 1] p of the experts before rank r, by falling p
    std::vector<std::uint16_t> expert;      // [E] by rank
    std::vector<std::uint16_t> first_rank;  // [slices] rank that the slice of [0, 1) begins in
    std::vector<std::uint16_t> only;        // [fine slices] its expert, or kSeveral
    double entropy = 0;
  };
  [[nodiscard]] std::size_t index(std::uint32_t layer, std::uint32_t domain) const {
    return std::size_t{layer} * law_.domains + domain;
  }
  [[nodiscard]] std::vector<double> log_weights(std::uint32_t layer, std::uint32_t domain) const;
  void make_table(std::uint32_t layer, std::uint32_t domain);
  /// The draw with these bits, before it is compared with the ones already drawn.
  [[nodiscard]] std::uint16_t look_up(const Table& table, std::uint64_t bits) const;
  bool eight(const Table& table, std::uint64_t key, const std::uint64_t* bits, std::uint32_t n,
             std::uint32_t patience, std::uint16_t* ids) const;
  [[nodiscard]] std::uint64_t key_of(std::uint32_t sequence, std::uint32_t layer,
                                     std::uint32_t position) const;
  std::uint32_t one_by_one(const Table& table, std::uint64_t key, std::uint32_t first,
                           std::span<std::uint16_t> ids);
  /// Ranks the experts that are not among the first `have` of ids by their clocks, from `from` on
  /// (ln of a time; −inf: 0); writes logits unless empty.
  void by_clocks(const Table& table, std::uint64_t key, double from, std::uint32_t have,
                 std::span<std::uint16_t> ids, std::span<float> logits);

  scenario::RoutingSpec law_;
  std::uint32_t experts_, slices_;
  unsigned slice_shift_, fine_shift_ = 64;  // Of 64 bits, to the slice.
  std::uint64_t seed_;
  std::uint64_t token_limit_, layer_limit_;  // of a 32-bit number, below: correlated
  std::vector<Table> tables_;                // [L][domains]
  std::string description_;
  // Scratch.
  std::vector<std::uint32_t> drawn_;  // [E] the draw in which the expert came last
  std::uint32_t stamp_ = 0;
  std::vector<std::pair<double, std::uint16_t>> clocks_;
};

}  // namespace switchyard::sim
