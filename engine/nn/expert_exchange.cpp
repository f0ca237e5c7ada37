// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/expert_exchange.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/model/mapping.hpp"

namespace switchyard {
namespace {

constexpr std::uint16_t kNoExpert = 0xFFFF;
constexpr std::uint32_t kNowhere = 0xFFFFFFFF;

/// The expert that a tensor of this name belongs to; kAll when it holds all of them, one after the
/// other; no value for any other tensor.
constexpr std::size_t kAll = static_cast<std::size_t>(-1);
std::optional<std::size_t> expert_in_name(const std::string& name) {
  if (name.find("_exps.") != std::string::npos) {  // GGUF
    return kAll;
  }
  const std::string key = ".experts.";
  const std::size_t at = name.find(key);
  if (at == std::string::npos) {
    return std::nullopt;
  }
  std::size_t i = at + key.size();
  std::size_t number = 0;
  const std::size_t digits = i;
  while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0) {
    number = number * 10 + static_cast<std::size_t>(name[i++] - '0');
  }
  return i > digits ? number : kAll;
}

std::uint16_t group_of(std::size_t expert, std::size_t experts, std::size_t groups) {
  const std::size_t small = experts / groups;
  const std::size_t larger = experts % groups;  // groups of small + 1 experts, which come first
  const std::size_t edge = larger * (small + 1);
  return static_cast<std::uint16_t>(expert < edge ? expert / (small + 1)
                                                  : larger + (expert - edge) / small);
}

}  // namespace

RankGrid make_grid(unsigned ranks, unsigned rank, unsigned tp) {
  if (tp == 0 || ranks % tp != 0) {
    throw InputError("--tp",
                     fmt::format("tp = {} on {} rank{}. Violated: tp >= 1 divides the ranks", tp,
                                 ranks, ranks == 1 ? "" : "s"),
                     ranks == 1 ? "start several ranks: mpirun -n N switchyard …" : "");
  }
  return {ranks / tp, tp, rank};
}

ExpertShare expert_share(const RankGrid& grid, std::size_t experts) {
  return {block_of(experts, grid.ep, grid.group()), grid.tp, grid.part()};
}

std::optional<Hash128> require_same_checkpoint(
    Communicator& job, const RankGrid& grid, const model::Checkpoint& checkpoint,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  const std::size_t experts = checkpoint.config().num_experts;
  Hasher128 rest;
  std::vector<std::unique_ptr<Hasher128>> groups(grid.ep);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (grid.rank == 0 || g == grid.group()) {
      groups[g] = std::make_unique<Hasher128>();
    }
  }
  const auto add = [&](std::size_t expert, std::span<const std::byte> bytes) {
    const std::size_t group = group_of(expert, experts, grid.ep);
    if (const auto& hasher = groups[group]) {
      hasher->update(bytes);
    }
    if (group != grid.group()) {
      model::release_pages(bytes);
    }
  };
  std::uint64_t done = 0;
  model::TensorHasher whole;
  for (const auto& [name, view] : checkpoint.tensors()) {
    if (grid.rank == 0) {
      whole.add(view);
    }
    rest.update(
        fmt::format("{}:{}:{}:", name, static_cast<int>(view.dtype), fmt::join(view.shape, ",")));
    const auto expert = expert_in_name(name);
    if (expert && *expert < experts) {
      add(*expert, view.data);
    } else if (expert == kAll && !view.shape.empty() && view.shape[0] == experts) {
      const std::size_t each = view.data.size() / experts;
      for (std::size_t e = 0; e < experts; ++e) {
        add(e, view.data.subspan(e * each, each));
      }
    } else {
      rest.update(view.data);
    }
    done += view.data.size();
    if (progress) {
      progress(done, checkpoint.total_bytes());
    }
  }
  std::string mine = fmt::format("{} {}", checkpoint.config_hash().hex(), rest.digest().hex());
  for (const auto& hasher : groups) {
    mine += hasher ? fmt::format(" {}", hasher->digest().hex()) : fmt::format(" {:32}", "");
  }
  const std::vector<std::string> all = job.all_gather(mine);
  for (std::size_t q = 1; q < all.size(); ++q) {
    const std::size_t g = q / grid.tp;
    const auto differs = [&](std::size_t field) {
      return all[q].size() != all[0].size() ||
             all[q].compare(field * 33, 32, all[0], field * 33, 32) != 0;
    };
    std::string what;
    if (differs(0)) {
      what = "configuration";
    } else if (differs(1)) {
      what = "weights";
    } else if (differs(2 + g)) {
      const Block held = block_of(experts, grid.ep, g);
      what = fmt::format("weights of experts {} to {}", held.first, held.last - 1);
    } else {
      continue;
    }
    throw InputError(fmt::format("rank {}", q),
                     fmt::format("the checkpoint's {} differ{} from rank 0's", what,
                                 what == "configuration" ? "s" : ""),
                     "every rank needs the same checkpoint");
  }
  return grid.rank == 0 ? std::optional(whole.digest()) : std::nullopt;
}

ExpertExchange::ExpertExchange(Communicator& job, const RankGrid& grid, Backend& backend)
    : job_(job), grid_(grid), backend_(backend) {
  const std::size_t ranks = grid.ranks();
  SWITCHYARD_ASSERT(job.size() == ranks && job.rank() == grid.rank, "grid");
  send_rows_.resize(grid.ep);
  send_outputs_.resize(grid.ep);
  incoming_rows_.resize(ranks);
  incoming_.resize(ranks);
  start_.resize(ranks);
  send_length_.resize(ranks);
  receive_length_.resize(ranks);
  sent_.resize(ranks * 2);
  received_.resize(ranks * 2);
}

void ExpertExchange::begin_step(std::span<const std::uint16_t> owner) { owner_ = owner; }

float* ExpertExchange::scratch(Slot slot, std::size_t floats) {
  auto& buffer = scratch_[slot];
  if (!buffer || buffer->size() < floats) {
    buffer = backend_.allocate(std::max(floats, buffer ? buffer->size() * 2 : floats));
  }
  return buffer->data();
}

std::uint64_t ExpertExchange::exchange(std::span<const float> send,
                                       std::span<const std::size_t> start,
                                       std::span<const std::size_t> send_length,
                                       std::span<const std::size_t> receive_length) {
  std::size_t total = 0;
  for (const std::size_t n : receive_length) {
    total += n;
  }
  host_in_.resize(total);
  std::vector<std::span<const std::byte>> from;
  std::vector<std::span<std::byte>> to;
  std::uint64_t left = 0;
  std::size_t at = 0;
  for (std::size_t q = 0; q < grid_.ranks(); ++q) {
    from.push_back(std::as_bytes(send.subspan(start[q], send_length[q])));
    to.push_back(std::as_writable_bytes(std::span(host_in_).subspan(at, receive_length[q])));
    at += receive_length[q];
    left += q == grid_.rank ? 0 : from.back().size();
  }
  job_.all_to_all(from, to);
  return left;
}

const float* ExpertExchange::carry(const float* from, std::size_t floats, Slot slot,
                                   std::uint64_t& bytes) {
  float* const to = scratch(
      slot, std::accumulate(receive_length_.begin(), receive_length_.end(), std::size_t{0}));
  if (!job_.moves_device_memory()) {
    host_out_.resize(floats);
    backend_.download(from, host_out_);
    bytes += exchange(host_out_, start_, send_length_, receive_length_);
    backend_.upload(host_in_, to);
    return to;
  }
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  std::size_t at = 0;
  for (std::size_t q = 0; q < grid_.ranks(); ++q) {
    SWITCHYARD_ASSERT(start_[q] + send_length_[q] <= floats, "block to send");
    send.push_back(std::as_bytes(std::span(from + start_[q], send_length_[q])));
    receive.push_back(std::as_writable_bytes(std::span(to + at, receive_length_[q])));
    at += receive_length_[q];
    bytes += q == grid_.rank ? 0 : send.back().size();
  }
  job_.all_to_all_device(send, receive);
  return to;
}

void ExpertExchange::join_parts(const float* from, std::span<const std::size_t> rows,
                                std::size_t columns, float* out) {
  for (const std::size_t n : rows) {
    for (std::size_t t = 0; t < grid_.tp; ++t) {
      const Block part = block_of(columns, grid_.tp, t);
      if (n > 0 && part.size() > 0) {
        backend_.copy_columns(from, n, part.size(), part.size(), out + part.first, columns);
      }
      from += n * part.size();
    }
    out += n * columns;
  }
}

void ExpertExchange::gather_rows(What what, std::span<const std::uint16_t> owner,
                                 std::size_t columns, std::span<const float> mine,
                                 std::span<float> all) {
  std::fill(receive_length_.begin(), receive_length_.end(), 0);
  for (const std::uint16_t q : owner) {
    receive_length_[q] += columns;
  }
  SWITCHYARD_ASSERT(
      mine.size() == receive_length_[grid_.rank] && all.size() == owner.size() * columns,
      "rows to gather");
  std::fill(start_.begin(), start_.end(), 0);
  std::fill(send_length_.begin(), send_length_.end(), mine.size());
  (what == What::kRouter ? mine_.router_bytes : mine_.logits_bytes) +=
      exchange(mine, start_, send_length_, receive_length_);
  std::exclusive_scan(receive_length_.begin(), receive_length_.end(), start_.begin(),
                      std::size_t{0});
  for (std::size_t i = 0; i < owner.size(); ++i) {
    std::copy_n(host_in_.data() + start_[owner[i]], columns, all.data() + i * columns);
    start_[owner[i]] += columns;
  }
}

void ExpertExchange::plan(std::span<const std::uint16_t> chosen, std::size_t slots,
                          std::size_t experts) {
  group_of_.resize(experts);
  for (std::size_t e = 0; e < experts; ++e) {
    group_of_[e] = group_of(e, experts, grid_.ep);
  }
  const std::size_t first = block_of(experts, grid_.ep, grid_.group()).first;
  for (auto& rows : send_rows_) {
    rows.clear();
  }
  std::fill(send_outputs_.begin(), send_outputs_.end(), 0);
  std::fill(incoming_rows_.begin(), incoming_rows_.end(), 0);
  for (auto& list : incoming_) {
    list.clear();
  }
  where_.clear();
  std::uint32_t own_rows = 0;
  for (std::size_t row = 0; row < owner_.size(); ++row) {
    const std::uint16_t source = owner_[row];
    const bool own = source == grid_.rank;
    bool served_here = false;
    for (std::size_t j = 0; j < slots; ++j) {
      const std::uint16_t e = chosen[row * slots + j];
      if (e == kNoExpert) {
        if (own) {
          where_.push_back(kNowhere);
        }
        continue;
      }
      SWITCHYARD_ASSERT(e < experts, fmt::format("expert {}", e));
      const std::uint16_t g = group_of_[e];
      if (g == grid_.group()) {
        if (!served_here) {
          served_here = true;
          ++incoming_rows_[source];
        }
        incoming_[source].push_back({static_cast<std::uint32_t>(incoming_rows_[source] - 1),
                                     static_cast<std::uint16_t>(e - first)});
      }
      if (own) {
        if (send_rows_[g].empty() || send_rows_[g].back() != own_rows) {
          send_rows_[g].push_back(own_rows);
        }
        where_.push_back(static_cast<std::uint32_t>(send_outputs_[g]++));
      }
    }
    own_rows += own ? 1 : 0;
  }
  // Returned outputs lie group after group; received rows rank after rank.
  std::vector<std::uint32_t> base(grid_.ep);
  std::uint32_t sum = 0;
  for (std::size_t g = 0; g < grid_.ep; ++g) {
    base[g] = sum;
    sum += static_cast<std::uint32_t>(send_outputs_[g]);
  }
  std::size_t i = 0;
  for (std::size_t row = 0; row < owner_.size(); ++row) {
    for (std::size_t j = 0; owner_[row] == grid_.rank && j < slots; ++j, ++i) {
      if (where_[i] != kNowhere) {
        where_[i] += base[group_of_[chosen[row * slots + j]]];
      }
    }
  }
  assignments_.clear();
  std::uint32_t before = 0;
  for (std::size_t q = 0; q < incoming_.size(); ++q) {
    for (const Assignment& a : incoming_[q]) {
      assignments_.push_back({before + a.row, a.expert});
    }
    before += static_cast<std::uint32_t>(incoming_rows_[q]);
  }
}

void ExpertExchange::compare_counts(std::span<const std::uint16_t> chosen) {
  const std::size_t ranks = grid_.ranks();
  const std::uint64_t decision = hash64(std::as_bytes(chosen));
  std::vector<std::uint64_t> mine(ranks * 2);
  std::vector<std::uint64_t> theirs(ranks * 2);
  for (std::size_t q = 0; q < ranks; ++q) {
    mine[q * 2] = send_rows_[q / grid_.tp].size();
    mine[q * 2 + 1] = decision;
  }
  job_.exchange_counts(mine, theirs, 2);
  for (std::size_t q = 0; q < ranks; ++q) {
    if (theirs[q * 2 + 1] != decision || theirs[q * 2] != incoming_rows_[q]) {
      throw InputError(
          fmt::format("rank {}", q),
          fmt::format("its routing decision differs from rank {}'s ({} rows sent, {} expected)",
                      grid_.rank, theirs[q * 2], incoming_rows_[q]),
          "every rank needs the same program, options and type of CPU");
    }
    sent_[q * 2] += mine[q * 2];
    received_[q * 2] += theirs[q * 2];
    mine_.rows_sent += q == grid_.rank ? 0 : mine[q * 2];
  }
}

void ExpertExchange::moe(const float* x, std::span<const ExpertView> experts, std::size_t hidden,
                         std::size_t inner, std::span<const std::uint16_t> chosen,
                         std::span<const float> weights, std::size_t slots, float* out) {
  const std::size_t ranks = grid_.ranks();
  SWITCHYARD_ASSERT(chosen.size() == owner_.size() * slots && weights.size() == chosen.size(),
                    "decision of all rows");
  plan(chosen, slots, experts.size());
  compare_counts(chosen);
  ++mine_.layers;

  // Dispatch: the rows of a group lie together, and go to each of its parts.
  index_.clear();
  for (std::size_t g = 0; g < grid_.ep; ++g) {
    for (std::size_t q = g * grid_.tp; q < (g + 1) * grid_.tp; ++q) {
      start_[q] = index_.size() * hidden;
      send_length_[q] = send_rows_[g].size() * hidden;
    }
    index_.insert(index_.end(), send_rows_[g].begin(), send_rows_[g].end());
    mine_.rows += send_rows_[g].size();
  }
  for (std::size_t q = 0; q < ranks; ++q) {
    receive_length_[q] = incoming_rows_[q] * hidden;
  }
  float* sending = scratch(kSend, index_.size() * hidden);
  backend_.gather(x, index_, hidden, sending);
  const float* received = carry(sending, index_.size() * hidden, kReceived, mine_.dispatch_bytes);

  const Block block = block_of(experts.size(), grid_.ep, grid_.group());
  const auto held = experts.subspan(block.first, block.size());
  const float* y = grid_.tp == 1 ? compute(received, held, hidden, inner)
                                 : compute_slices(received, held, hidden, inner);

  // Return: each part sends its columns.
  const std::size_t width = block_of(hidden, grid_.tp, grid_.part()).size();
  std::size_t at = 0;
  for (std::size_t q = 0; q < ranks; ++q) {
    start_[q] = at;
    send_length_[q] = incoming_[q].size() * width;
    at += send_length_[q];
    receive_length_[q] =
        send_outputs_[q / grid_.tp] * block_of(hidden, grid_.tp, q % grid_.tp).size();
    sent_[q * 2 + 1] += incoming_[q].size();
    received_[q * 2 + 1] += send_outputs_[q / grid_.tp];
  }
  const float* returned = carry(y, at, kReturned, mine_.return_bytes);
  if (grid_.tp > 1) {
    const std::size_t outputs =
        std::accumulate(send_outputs_.begin(), send_outputs_.end(), std::size_t{0});
    float* whole = scratch(kResult, outputs * hidden);
    join_parts(returned, send_outputs_, hidden, whole);
    returned = whole;
  }

  // Combine, in slot order.
  own_weights_.clear();
  std::size_t own_rows = 0;
  for (std::size_t row = 0; row < owner_.size(); ++row) {
    if (owner_[row] == grid_.rank) {
      const auto of_row = weights.subspan(row * slots, slots);
      own_weights_.insert(own_weights_.end(), of_row.begin(), of_row.end());
      ++own_rows;
    }
  }
  for (const std::uint32_t place : where_) {
    mine_.outputs += place == kNowhere ? 0 : 1;
  }
  backend_.combine(returned, where_, own_weights_, own_rows, slots, hidden, out);
}

const float* ExpertExchange::compute(const float* received, std::span<const ExpertView> held,
                                     std::size_t hidden, std::size_t inner) {
  static_cast<void>(inner);
  const std::size_t n = assignments_.size();
  index_.resize(n);
  local_chosen_.resize(n);
  ones_.assign(n, 1.0F);
  for (std::size_t i = 0; i < n; ++i) {
    index_[i] = assignments_[i].row;
    local_chosen_[i] = assignments_[i].expert;
  }
  float* rows = scratch(kSorted, n * hidden);
  float* y = scratch(kOut, n * hidden);
  backend_.gather(received, index_, hidden, rows);
  backend_.moe(rows, n, held, local_chosen_, ones_, 1, y);  // 0 + 1 * output: the output itself
  return y;
}

const float* ExpertExchange::compute_slices(const float* received, std::span<const ExpertView> held,
                                            std::size_t hidden, std::size_t inner) {
  const std::size_t n = assignments_.size();
  const std::size_t own_inner = block_of(inner, grid_.tp, grid_.part()).size();
  const std::size_t own_hidden = block_of(hidden, grid_.tp, grid_.part()).size();
  // Stable counting sort by expert.
  std::vector<std::size_t> begin(held.size() + 1, 0);
  for (const Assignment& a : assignments_) {
    ++begin[a.expert + std::size_t{1}];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::size_t> next(begin.begin(), begin.end() - 1);
  std::vector<std::uint32_t> sorted(n);  // place after sorting, by assignment
  index_.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t place = next[assignments_[i].expert]++;
    sorted[i] = static_cast<std::uint32_t>(place);
    index_[place] = assignments_[i].row;
  }
  float* rows = scratch(kSorted, n * hidden);
  float* gate = scratch(kGate, n * own_inner);
  float* up = scratch(kUp, n * own_inner);
  backend_.gather(received, index_, hidden, rows);
  const auto project = [&](const float* in, std::size_t count, const WeightView& w,
                           const WeightView& bias, float* to) {
    backend_.linear(in, count, w, to);
    if (bias.data != nullptr && bias.cols > 0) {
      backend_.add_bias(to, count, bias);
    }
  };
  for (std::size_t e = 0; e < held.size(); ++e) {
    const std::size_t count = begin[e + 1] - begin[e];
    if (count > 0 && own_inner > 0) {
      const float* in = rows + begin[e] * hidden;
      float* g = gate + begin[e] * own_inner;
      float* u = up + begin[e] * own_inner;
      project(in, count, held[e].gate, held[e].gate_bias, g);
      project(in, count, held[e].up, held[e].up_bias, u);
      backend_.swiglu(g, u, count * own_inner, held[e].limit);
    }
  }

  // All parts of the group sorted the same assignments alike; each needs all inner columns.
  for (std::size_t q = 0; q < grid_.ranks(); ++q) {
    const bool of_group = q / grid_.tp == grid_.group();
    start_[q] = 0;
    send_length_[q] = of_group ? n * own_inner : 0;
    receive_length_[q] = of_group ? n * block_of(inner, grid_.tp, q % grid_.tp).size() : 0;
  }
  const float* parts = carry(gate, n * own_inner, kParts, mine_.inner_bytes);
  float* wide = scratch(kInner, n * inner);
  join_parts(parts, {&n, 1}, inner, wide);
  float* down = scratch(kGate, n * own_hidden);
  for (std::size_t e = 0; e < held.size(); ++e) {
    const std::size_t count = begin[e + 1] - begin[e];
    if (count > 0 && own_hidden > 0) {
      project(wide + begin[e] * inner, count, held[e].down, held[e].down_bias,
              down + begin[e] * own_hidden);
    }
  }
  float* y = scratch(kOut, n * own_hidden);
  backend_.gather(down, sorted, own_hidden, y);
  return y;
}

ExchangeTotals ExpertExchange::totals() {
  // Everything as one list of numbers a rank: the pairs, then the sums.
  const std::size_t ranks = grid_.ranks();
  std::vector<std::uint64_t> numbers = sent_;
  numbers.insert(numbers.end(), received_.begin(), received_.end());
  for (const std::uint64_t n :
       {mine_.layers, mine_.rows, mine_.rows_sent, mine_.outputs, mine_.dispatch_bytes,
        mine_.inner_bytes, mine_.return_bytes, mine_.router_bytes, mine_.logits_bytes}) {
    numbers.push_back(n);
  }
  const std::size_t width = numbers.size();
  std::vector<std::uint64_t> all(ranks * width);
  std::vector<std::span<std::byte>> blocks;
  for (std::size_t q = 0; q < ranks; ++q) {
    blocks.push_back(std::as_writable_bytes(std::span(all).subspan(q * width, width)));
  }
  job_.all_gather(std::as_bytes(std::span(numbers)), blocks);
  ExchangeTotals t;
  t.ep = grid_.ep;
  t.tp = grid_.tp;
  t.transport = job_.transport();
  for (std::size_t a = 0; a < ranks; ++a) {
    for (std::size_t b = 0; b < ranks; ++b) {
      for (std::size_t kind = 0; kind < 2; ++kind) {
        const std::uint64_t gone = all[a * width + b * 2 + kind];
        const std::uint64_t come = all[b * width + ranks * 2 + a * 2 + kind];
        if (gone != come) {
          throw std::runtime_error(
              fmt::format("exchange from rank {} to rank {}: {} {} sent, {} received", a, b, gone,
                          kind == 0 ? "rows" : "outputs", come));
        }
      }
    }
    const std::uint64_t* sums = all.data() + a * width + ranks * 4;
    t.layers = sums[0];  // alike on all ranks
    std::size_t i = 1;
    for (std::uint64_t* total :
         {&t.rows, &t.rows_sent, &t.outputs, &t.dispatch_bytes, &t.inner_bytes, &t.return_bytes,
          &t.router_bytes, &t.logits_bytes}) {
      *total += sums[i++];
    }
  }
  return t;
}

}  // namespace switchyard
