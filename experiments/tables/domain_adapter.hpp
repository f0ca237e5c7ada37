// SPDX-License-Identifier: Apache-2.0
// The table `domain-adapter` (M47, C75): a low-rank adapter of the router on a domain that the
// shipped checkpoint was not trained on, beside a router fine-tuned there as a whole.
//
// The domain is our e-commerce Chinese; experiments/training/domain_router.py made both changes of
// the router on 1000 texts that are in none of the prompt sets. Right = the reference's choice for
// the same token and layer, each router in closed loop; set: the k experts, first: the best one.
//
// Not modelled: quality of answers (people judge it; loss is printed); other ways to adapt.
#pragma once
#include <string>
#include <vector>

#include "experiments/claims/claims.hpp"
#include "experiments/tables/router_noise.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {

/// Shares of decisions like the reference's, and the perplexity.
struct DomainScore {
  double set = 0, first = 0, perplexity = 0;
};
struct DomainRow {
  std::string router;      ///< "original", "adapter", "reference"
  DomainScore fresh, old;  ///< On the new domain, and on what the checkpoint was trained for.
};
/// Of two runs over the same texts, k choices each. Sets do not depend on the order of choices.
[[nodiscard]] DomainScore domain_score(const RoutingEffect& run, const RoutingEffect& reference,
                                       std::size_t k);

struct DomainRun {
  std::string subject;
  std::uint64_t fresh_tokens = 0, old_tokens = 0;
  std::vector<DomainRow> rows;
};
[[nodiscard]] claims::Measurements measure_domain_adapter(const DomainRun& run);
[[nodiscard]] std::vector<Table> domain_adapter_tables(const DomainRun& run,
                                                       const std::vector<claims::Claim>& claims);

}  // namespace switchyard::tables
