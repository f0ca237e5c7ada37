// SPDX-License-Identifier: Apache-2.0
#include "sim/network/bottleneck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.hpp"

namespace switchyard::network {
namespace {

constexpr std::uint64_t kLargestTotal = 1ULL << 53;

/// Running sums over groups of W columns: sums[g] = Σ of bytes in the groups before g.
template <std::uint32_t W, class Bytes>
void sum_strips(const Bytes* bytes, std::uint64_t* sums, std::size_t groups) {
  std::uint64_t sum = 0;
  for (std::size_t g = 0; g < groups; ++g, bytes += W) {
    sums[g] = sum;
    std::uint64_t strip = 0;
    for (std::uint32_t k = 0; k < W; ++k) {
      strip += bytes[k];
    }
    sum += strip;
  }
  sums[groups] = sum;
}

/// A part of a link's bytes: [first, last) of a row of running sums. `line`: which row.
struct Strip {
  std::uint32_t line, first, last;
};

/// Joins strips that follow each other: each link of a regular cluster has a handful.
std::vector<Strip> joined(std::vector<Strip> parts) {
  std::vector<Strip> out, again;
  while (!parts.empty()) {
    std::sort(parts.begin(), parts.end(), [](const Strip& a, const Strip& b) {
      return a.line != b.line ? a.line < b.line : a.first < b.first;
    });
    const std::size_t begin = out.size();
    for (const Strip& p : parts) {
      if (out.size() > begin && out.back().line == p.line && p.first < out.back().last) {
        again.push_back(p);  // A path may hold a link twice.
      } else if (out.size() > begin && out.back().line == p.line && p.first == out.back().last) {
        out.back().last = p.last;
      } else {
        out.push_back(p);
      }
    }
    parts.swap(again);
    again.clear();
  }
  return out;
}

}  // namespace

const char* name_of(StragglerReason reason) {
  switch (reason) {
    case StragglerReason::kLate:
      return "late";
    case StragglerReason::kLoad:
      return "load";
    case StragglerReason::kLink:
      return "link";
    case StragglerReason::kNone:
      break;
  }
  return "none";
}

BottleneckModel::BottleneckModel(const cluster::RouteTable& routes)
    : n_(routes.endpoints),
      bandwidth_(routes.bandwidth),
      achievable_(routes.achievable),
      offset_(routes.offset),
      route_(routes.link),
      latency_ps_(routes.latency_ps),
      participants_(routes.endpoints, 0) {
  const auto links = static_cast<std::uint32_t>(routes.links());
  for (const double b : bandwidth_) {
    seconds_per_byte_.push_back(1.0 / b);
  }
  // The endpoint that all pairs of a link share, source first.
  std::vector<std::uint32_t> src(links, kNone), dst(links, kNone);
  std::vector<std::uint8_t> many_src(links, 0), many_dst(links, 0);
  for (std::uint32_t i = 0; i < n_; ++i) {
    for (std::uint32_t j = 0; j < n_; ++j) {
      for (const std::uint32_t l : routes.links_of(i, j)) {
        many_src[l] |= static_cast<std::uint8_t>(src[l] != kNone && src[l] != i);
        many_dst[l] |= static_cast<std::uint8_t>(dst[l] != kNone && dst[l] != j);
        src[l] = i;
        dst[l] = j;
      }
    }
  }
  owner_.assign(links, kNone);
  for (std::uint32_t l = 0; l < links; ++l) {
    owner_[l] = many_src[l] == 0 ? src[l] : many_dst[l] == 0 ? dst[l] : kNone;
  }
  std::vector<std::vector<std::uint32_t>> shared(links);
  for (std::uint32_t p = 0; p + 1 < offset_.size(); ++p) {
    for (std::uint32_t k = offset_[p]; k < offset_[p + 1]; ++k) {
      if (owner_[route_[k]] == kNone) {
        shared[route_[k]].push_back(p);
      }
    }
  }
  shared_offset_.push_back(0);
  for (const auto& pairs : shared) {
    shared_pair_.insert(shared_pair_.end(), pairs.begin(), pairs.end());
    shared_offset_.push_back(static_cast<std::uint32_t>(shared_pair_.size()));
  }
  // Groups: runs of consecutive endpoints on one server; failing that, all endpoints as one group.
  for (const bool by_server : {true, false}) {
    first_.assign(1, 0);
    group_.assign(n_, 0);
    for (std::uint32_t i = 1; by_server && i < n_; ++i) {
      if (routes.node[i] != routes.node[i - 1]) {
        first_.push_back(i);
      }
      group_[i] = static_cast<std::uint32_t>(first_.size() - 1);
    }
    first_.push_back(n_);
    groups_ = static_cast<std::uint32_t>(first_.size() - 1);
    if (find_tiers(routes)) {
      return;
    }
  }
  terms_.clear();
}

bool BottleneckModel::find_tiers(const cluster::RouteTable& routes) {
  const auto links = static_cast<std::uint32_t>(routes.links());
  width_ = first_[1];
  for (std::uint32_t g = 0; g < groups_; ++g) {
    width_ = first_[g + 1] - first_[g] == width_ ? width_ : 0;
  }
  block_latency_.assign(static_cast<std::size_t>(groups_) * groups_, -1);
  block_uniform_.assign(block_latency_.size(), 1);
  // Pairs of each link, sorted by pair; a pair may come twice.
  std::vector<std::vector<std::uint32_t>> pairs(links);
  for (std::uint32_t i = 0; i < n_; ++i) {
    for (std::uint32_t j = 0; j < n_; ++j) {
      if (i == j) {
        continue;
      }
      const std::size_t b = static_cast<std::size_t>(group_[i]) * groups_ + group_[j];
      const std::int64_t latency = latency_ps_[routes.pair(i, j)];
      if (block_latency_[b] >= 0 && block_latency_[b] != latency) {
        block_uniform_[b] = 0;
      }
      block_latency_[b] = std::max(block_latency_[b], latency);
      for (const std::uint32_t l : routes.links_of(i, j)) {
        pairs[l].push_back(static_cast<std::uint32_t>(routes.pair(i, j)));
      }
    }
  }
  const std::uint32_t columns = n_ * (groups_ + 1), blocks = 2 * columns;
  const std::uint32_t singles = blocks + groups_ * groups_;
  std::size_t parts = 0;  // Strips, blocks and pairs of all links.
  std::vector<Strip> rows, cols;
  single_pair_.clear();
  terms_.clear();
  term_offset_.assign(1, 0);
  std::vector<std::uint16_t> count(static_cast<std::size_t>(n_) * n_, 0);
  for (std::uint32_t l = 0; l < links; ++l) {
    for (const std::uint32_t p : pairs[l]) {
      ++count[p];
    }
    // True if every off-diagonal pair of the rectangle has at least one use left; then takes it.
    const auto take = [&](std::uint32_t i0, std::uint32_t i1, std::uint32_t j0, std::uint32_t j1) {
      std::uint32_t cells = 0;
      for (std::uint32_t i = i0; i < i1; ++i) {
        for (std::uint32_t j = j0; j < j1; ++j) {
          if (i != j && count[static_cast<std::size_t>(i) * n_ + j] == 0) {
            return false;
          }
          cells += i != j ? 1 : 0;
        }
      }
      for (std::uint32_t i = i0; cells > 0 && i < i1; ++i) {
        for (std::uint32_t j = j0; j < j1; ++j) {
          if (i != j) {
            --count[static_cast<std::size_t>(i) * n_ + j];
          }
        }
      }
      return cells > 0;
    };
    rows.clear();
    cols.clear();
    for (const std::uint32_t p : pairs[l]) {
      if (count[p] == 0) {
        continue;
      }
      ++parts;
      const std::uint32_t i = p / n_, j = p % n_, gi = group_[i], gj = group_[j];
      if (take(first_[gi], first_[gi + 1], first_[gj], first_[gj + 1])) {
        terms_.push_back({blocks + gi * groups_ + gj, 0});
      } else if (take(i, i + 1, first_[gj], first_[gj + 1])) {
        rows.push_back({i, gj, gj + 1});
      } else if (take(first_[gi], first_[gi + 1], j, j + 1)) {
        cols.push_back({j, gi, gi + 1});
      } else {
        --count[p];
        terms_.push_back({singles + static_cast<std::uint32_t>(single_pair_.size()), 0});
        single_pair_.push_back(p);
      }
    }
    for (const Strip& r : joined(rows)) {
      const std::uint32_t line = r.line * (groups_ + 1);
      terms_.push_back({line + r.last, line + r.first});
    }
    for (const Strip& c : joined(cols)) {
      terms_.push_back({columns + c.last * n_ + c.line, columns + c.first * n_ + c.line});
    }
    term_offset_.push_back(static_cast<std::uint32_t>(terms_.size()));
  }
  sums_.assign(singles + single_pair_.size(), 0);
  // Worth it only when there are clearly fewer terms than links of all the routes together.
  return parts * 2 < route_.size();
}

template <class Bytes>
void BottleneckModel::sum_tiers(const Bytes* bytes) {
  const std::size_t n = n_, groups = groups_;
  // Every running sum begins at 0, so sums_[0] is 0.
  std::uint64_t* const rows = sums_.data();
  std::uint64_t* const columns = rows + n * (groups + 1);
  std::uint64_t* const blocks = columns + n * (groups + 1);
  // Row by row, so that each is read from memory once.
  std::vector<std::uint64_t>& below = block_sums_;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::uint64_t* const before = columns + g * n;
    std::uint64_t* const column = columns + (g + 1) * n;
    below.assign(groups + 1, 0);
    for (std::size_t i = first_[g]; i < first_[g + 1]; ++i) {
      const Bytes* const row = bytes + i * n;
      std::uint64_t* const sums = rows + i * (groups + 1);
      if (width_ == 8) {
        sum_strips<8>(row, sums, groups);
      } else if (width_ == 4) {
        sum_strips<4>(row, sums, groups);
      } else {
        for (std::size_t h = 0; h < groups; ++h) {
          sums[h + 1] = std::accumulate(row + first_[h], row + first_[h + 1], sums[h]);
        }
      }
      const std::uint64_t* const from = i == first_[g] ? before : column;
      for (std::size_t j = 0; j < n; ++j) column[j] = from[j] + row[j];
      if (const std::uint64_t own = row[i]; own != 0) {
        column[i] -= own;
        for (std::size_t h = g + 1; h <= groups; ++h) sums[h] -= own;
      }
      for (std::size_t h = 0; h <= groups; ++h) below[h] += sums[h];
    }
    for (std::size_t h = 0; h < groups; ++h) blocks[g * groups + h] = below[h + 1] - below[h];
  }
  std::uint64_t* const singles = blocks + groups * groups;
  for (std::size_t s = 0; s < single_pair_.size(); ++s) {
    singles[s] = bytes[single_pair_[s]];
  }
}

void BottleneckModel::find_participants() {
  const std::size_t n = n_, groups = groups_;
  const std::uint64_t* const rows = sums_.data();
  const std::uint64_t* const all = rows + n * (groups + 1) + groups * n;  // Sums of columns.
  for (std::size_t i = 0; i < n; ++i) {
    participants_[i] = static_cast<std::uint8_t>((rows[i * (groups + 1) + groups] | all[i]) != 0);
  }
}

template <class Pair>
std::int64_t BottleneckModel::find_alpha(bool back, const Pair& pair) const {
  const std::size_t n = n_, groups = groups_;
  const std::uint64_t* const blocks = sums_.data() + 2 * n * (groups + 1);
  std::int64_t alpha = -1;
  for (std::size_t g = 0; g < groups; ++g) {
    for (std::size_t h = 0; h < groups; ++h) {
      const std::size_t b = g * groups + h;
      if (blocks[back ? h * groups + g : b] == 0 || block_latency_[b] <= alpha) continue;
      if (block_uniform_[b] != 0) {
        alpha = block_latency_[b];
        continue;
      }
      for (std::size_t i = first_[g]; i < first_[g + 1]; ++i) {
        for (std::size_t j = first_[h]; j < first_[h + 1]; ++j) {
          if (i != j && pair(i, j)) alpha = std::max(alpha, latency_ps_[i * n + j]);
        }
      }
    }
  }
  return alpha;
}

std::uint32_t BottleneckModel::transposed(std::uint32_t sum) const {
  const std::uint32_t each = groups_ + 1, columns = n_ * each, blocks = 2 * columns;
  if (sum < columns) return columns + sum % each * n_ + sum / each;
  if (sum < blocks) return (sum - columns) % n_ * each + (sum - columns) / n_;
  if (sum >= blocks + groups_ * groups_) return sum;  // sum_copies() takes pairs as they are asked.
  return blocks + (sum - blocks) % groups_ * groups_ + (sum - blocks) / groups_;
}

void BottleneckModel::sum_copies(std::span<const std::uint32_t> copies) {
  SWITCHYARD_ASSERT(copies.size() == static_cast<std::size_t>(n_) * n_ && tiered(),
                    fmt::format("{} copies, {} endpoints", copies.size(), n_));
  matrix_ = nullptr;
  list_ = {};
  copies_ = copies.data();
  sum_tiers(copies.data());
  find_participants();
  if (!back_terms_.empty()) return;
  for (const Term& t : terms_) back_terms_.push_back({transposed(t.plus), transposed(t.minus)});
}

BottleneckTime BottleneckModel::evaluate_copies(std::uint64_t bytes, bool back,
                                                std::span<std::uint64_t> link_bytes) {
  SWITCHYARD_ASSERT(copies_ != nullptr && link_bytes.size() == bandwidth_.size(),
                    fmt::format("{} links", link_bytes.size()));
  const std::size_t n = n_;
  back_ = back;
  const auto of = [&](std::size_t i, std::size_t j) {
    return copies_[back_ ? j * n + i : i * n + j];
  };
  const std::uint64_t* const blocks = sums_.data() + 2 * n * (groups_ + 1);
  const std::uint64_t total =
      std::accumulate(blocks, blocks + std::size_t{groups_} * groups_, std::uint64_t{0}) * bytes;
  const std::int64_t alpha =
      find_alpha(back, [&](std::size_t i, std::size_t j) { return of(i, j) != 0; });
  std::uint64_t* const singles = sums_.data() + 2 * n * (groups_ + 1) + groups_ * groups_;
  for (std::size_t s = 0; s < single_pair_.size(); ++s) {
    singles[s] = of(single_pair_[s] / n, single_pair_[s] % n);
  }
  const std::vector<Term>& terms = back ? back_terms_ : terms_;
  for (std::size_t l = 0; l < link_bytes.size(); ++l) {
    std::uint64_t sum = 0;
    for (std::uint32_t k = term_offset_[l]; k < term_offset_[l + 1]; ++k) {
      sum += sums_[terms[k].plus] - sums_[terms[k].minus];
    }
    link_bytes[l] = sum * bytes;
  }
  return finish(link_bytes, total, alpha);
}

BottleneckTime BottleneckModel::evaluate(std::span<const std::uint64_t> bytes,
                                         std::span<std::uint64_t> link_bytes) {
  SWITCHYARD_ASSERT(
      bytes.size() == static_cast<std::size_t>(n_) * n_ && link_bytes.size() == bandwidth_.size(),
      fmt::format("{} bytes, {} links", bytes.size(), link_bytes.size()));
  matrix_ = bytes.data();
  copies_ = nullptr;
  list_ = {};
  std::uint64_t total = 0;
  const std::size_t n = n_;
  if (!terms_.empty()) {
    sum_tiers(bytes.data());
    const std::uint64_t* const blocks = sums_.data() + 2 * n * (groups_ + 1);
    total = std::accumulate(blocks, blocks + std::size_t{groups_} * groups_, std::uint64_t{0});
    const std::int64_t latest = find_alpha(
        false, [&](std::size_t i, std::size_t j) { return matrix_[i * n + j] != 0; });
    find_participants();
    for (std::size_t l = 0; l < link_bytes.size(); ++l) {
      std::uint64_t sum = 0;
      for (std::uint32_t k = term_offset_[l]; k < term_offset_[l + 1]; ++k) {
        sum += sums_[terms_[k].plus] - sums_[terms_[k].minus];
      }
      link_bytes[l] = sum;
    }
    return finish(link_bytes, total, latest);
  }
  std::int64_t alpha = -1;
  std::fill(link_bytes.begin(), link_bytes.end(), 0);
  std::fill(participants_.begin(), participants_.end(), std::uint8_t{0});
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const std::size_t p = i * n + j;
      if (i == j || bytes[p] == 0) {
        continue;
      }
      total += bytes[p];
      participants_[i] = participants_[j] = 1;
      alpha = std::max(alpha, latency_ps_[p]);
      for (std::uint32_t k = offset_[p]; k < offset_[p + 1]; ++k) {
        link_bytes[route_[k]] += bytes[p];
      }
    }
  }
  return finish(link_bytes, total, alpha);
}

BottleneckTime BottleneckModel::evaluate(std::span<const Transfer> transfers,
                                         std::span<std::uint64_t> link_bytes) {
  SWITCHYARD_ASSERT(link_bytes.size() == bandwidth_.size(),
                    fmt::format("{} links", link_bytes.size()));
  matrix_ = nullptr;
  copies_ = nullptr;
  list_ = transfers;
  std::fill(link_bytes.begin(), link_bytes.end(), 0);
  std::fill(participants_.begin(), participants_.end(), std::uint8_t{0});
  std::uint64_t total = 0;
  std::int64_t alpha = -1;
  for (const Transfer& t : transfers) {
    SWITCHYARD_ASSERT(t.src < n_ && t.dst < n_, fmt::format("{} > {} of {}", t.src, t.dst, n_));
    if (t.src == t.dst || t.bytes == 0) {
      continue;
    }
    const std::size_t p = static_cast<std::size_t>(t.src) * n_ + t.dst;
    total += t.bytes;
    participants_[t.src] = participants_[t.dst] = 1;
    alpha = std::max(alpha, latency_ps_[p]);
    for (std::uint32_t k = offset_[p]; k < offset_[p + 1]; ++k) {
      link_bytes[route_[k]] += t.bytes;
    }
  }
  return finish(link_bytes, total, alpha);
}

void BottleneckModel::measure(const MeasuredCurve& curve, std::span<const std::uint8_t> on_link) {
  SWITCHYARD_ASSERT(on_link.size() == links(),
                    fmt::format("{} marks, {} links", on_link.size(), links()));
  curve_.assign(1, curve);
  measured_.assign(on_link.begin(), on_link.end());
}

BottleneckTime BottleneckModel::finish(std::span<std::uint64_t> link_bytes, std::uint64_t total,
                                       std::int64_t alpha_ps) const {
  BottleneckTime result;
  result.bytes = total;
  if (total == 0) {
    return result;
  }
  SWITCHYARD_ASSERT(total <= kLargestTotal, fmt::format("{} bytes in one exchange", total));
  double worst = -1;
  const auto share_of = [&](std::uint32_t l) { return achievable_.empty() ? 1.0 : achievable_[l]; };
  const auto measured_time = [&](std::uint32_t l) {
    const auto t = curve_.front().time(link_bytes[l], BytesPerSecond{bandwidth_[l]});
    result.extrapolated = result.extrapolated || t.extrapolated;
    // Whatever was measured, no link is faster than its rate.
    return std::max(t.seconds, static_cast<double>(link_bytes[l]) * seconds_per_byte_[l]);
  };
  std::uint64_t most = 0;
  double most_bandwidth = 0;  // Largest bandwidth among the links that carry `most`.
  for (std::uint32_t l = 0; l < link_bytes.size(); ++l) {
    const double time = !measured_.empty() && measured_[l] != 0
                            ? measured_time(l)
                            : static_cast<double>(link_bytes[l]) * seconds_per_byte_[l];
    if (time > worst) {
      worst = time;
      result.link = l;
    }
    if (link_bytes[l] > most || (link_bytes[l] == most && bandwidth_[l] > most_bandwidth)) {
      most = link_bytes[l];
      most_bandwidth = bandwidth_[l];
    }
  }
  const double seconds = static_cast<double>(link_bytes[result.link]) / bandwidth_[result.link];
  const bool curve = !measured_.empty() && measured_[result.link] != 0;
  const SimTime transfer = SimTime::from_seconds(curve ? worst : seconds);
  result.alpha = SimTime::from_ps(alpha_ps);
  result.duration = std::max(result.alpha + transfer, SimTime::from_ps(1));
  // What no link may beat is its nominal rate, whatever was measured or reached elsewhere.
  double least = seconds * share_of(result.link);
  if (!measured_.empty() || !achievable_.empty()) {
    for (std::uint32_t l = 0; l < link_bytes.size(); ++l) {
      least =
          std::max(least, static_cast<double>(link_bytes[l]) * seconds_per_byte_[l] * share_of(l));
    }
  }
  result.floor = SimTime::from_ps(static_cast<std::int64_t>(std::floor(least * 1e12 * (1 - 1e-9))));
  result.straggler = straggler_on(result.link);
  result.reason = link_bytes[result.link] < most || bandwidth_[result.link] < most_bandwidth
                      ? StragglerReason::kLink
                      : StragglerReason::kLoad;
  return result;
}

std::uint32_t BottleneckModel::straggler_on(std::uint32_t link) const {
  if (owner_[link] != kNone) {
    return owner_[link];
  }
  std::vector<std::uint64_t> own(n_, 0);
  if (matrix_ != nullptr) {
    for (std::uint32_t k = shared_offset_[link]; k < shared_offset_[link + 1]; ++k) {
      const std::uint32_t p = shared_pair_[k];
      own[p / n_] += matrix_[p];
      own[p % n_] += matrix_[p];
    }
  } else if (copies_ != nullptr) {
    // All of one size: whose are most has most bytes.
    for (std::uint32_t k = shared_offset_[link]; k < shared_offset_[link + 1]; ++k) {
      const std::uint32_t i = shared_pair_[k] / n_, j = shared_pair_[k] % n_;
      const std::uint32_t count = copies_[back_ ? j * n_ + i : i * n_ + j];
      own[i] += count;
      own[j] += count;
    }
  } else {
    for (const Transfer& t : list_) {
      if (t.src == t.dst) {
        continue;
      }
      const std::size_t p = static_cast<std::size_t>(t.src) * n_ + t.dst;
      for (std::uint32_t k = offset_[p]; k < offset_[p + 1]; ++k) {
        if (route_[k] == link) {
          own[t.src] += t.bytes;
          own[t.dst] += t.bytes;
        }
      }
    }
  }
  return static_cast<std::uint32_t>(std::max_element(own.begin(), own.end()) - own.begin());
}

}  // namespace switchyard::network
