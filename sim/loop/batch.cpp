// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/model/accounting.hpp"
#include "sim/loop/step_loop.hpp"
#include "sim/network/collectives.hpp"
#include "sim/network/from_scenario.hpp"

namespace switchyard::sim {

void Simulator::compose_step() {
  record_.scalars.tokens = 0;
  for (const PlannedSequence& q : plan_.sequences) {
    record_.scalars.tokens += q.fresh;
  }
  record_.scalars.sequences = plan_.sequences.size();
  compose_part(0, 1, 0);
}

void Simulator::compose_part(std::uint32_t micro, std::uint32_t micros, std::uint32_t stage) {
  stage_ = stage;
  // The group's ranks run one kind of kernel: a prompt on any of them sets it.
  const bool only_decode = std::all_of(plan_.sequences.begin(), plan_.sequences.end(),
                                       [](const PlannedSequence& q) { return q.fresh <= 1; });
  for (CostModel& c : cost_) c.use_decode(only_decode);
  sequences_.assign(gpus_, {});
  tokens_of_.assign(gpus_, 0);
  routed_of_.assign(gpus_, 0);
  sampled_of_.assign(gpus_, 0);
  const std::uint32_t tp = layout().tp, first = stage * homes();
  // Sequence i of a home is of micro-batch i mod micros.
  std::vector<std::uint32_t> dealt(gpus_, 0);
  micro_of_.assign(plan_.sequences.size(), 0);
  micro_ = micro;
  std::vector<const PlannedSequence*> part;
  std::size_t n = 0;
  for (std::size_t p = 0; p < plan_.sequences.size(); ++p) {
    const PlannedSequence& q = plan_.sequences[p];
    if (!part_of_.empty() && part_of_[p] == 0) continue;
    micro_of_[p] = dealt[q.gpu]++ % micros;
    if (micro_of_[p] != micro) continue;
    part.push_back(&q);
    n += q.fresh;
    for (std::uint32_t member = first + q.gpu; member < first + q.gpu + tp; ++member) {
      sequences_[member].push_back({q.fresh, q.had});
      tokens_of_[member] += q.fresh;
      routed_of_[member] += uses_router(q.id) ? q.fresh : 0;
      sampled_of_[member] += q.samples ? 1 : 0;
    }
  }
  tokens_.sequence.resize(n);
  tokens_.position.resize(n);
  tokens_.phase.resize(n);
  tokens_.rank.resize(n);
  tokens_.ordinal.resize(n);
  tokens_.answer.resize(n);
  rows_of_ = tokens_of_;
  routed_rows_of_ = routed_of_;
  if (wide()) {
    rows_of_.assign(gpus_, 0);
    routed_rows_of_.assign(gpus_, 0);
  }
  std::vector<std::uint64_t> before(gpus_, 0);  // [home] tokens of the group so far
  std::size_t i = 0;
  for (const PlannedSequence* const p : part) {
    const PlannedSequence& q = *p;
    const bool routed = wide() && uses_router(q.id);
    for (std::uint32_t j = 0; j < q.fresh; ++j, ++i) {
      const std::uint64_t position = q.had + j;
      const bool answer = position >= q.prompt;
      tokens_.sequence[i] = q.id;
      tokens_.position[i] = static_cast<std::uint32_t>(position);
      tokens_.phase[i] = q.prefill ? 0 : 1;
      std::uint32_t owner = first + q.gpu;
      if (wide()) {
        // Token x of a group's T is of the member s with ⌊s·T/tp⌋ <= x < ⌊(s+1)·T/tp⌋.
        const std::uint64_t all = tokens_of_[owner];
        owner += static_cast<std::uint32_t>(((before[q.gpu]++ + 1) * tp - 1) / all);
        ++rows_of_[owner];
        routed_rows_of_[owner] += routed ? 1 : 0;
      }
      tokens_.rank[i] = static_cast<std::uint16_t>(owner);
      tokens_.answer[i] = answer ? 1 : 0;
      tokens_.ordinal[i] = static_cast<std::uint32_t>(position - (answer ? q.prompt : q.origin));
    }
  }
}

std::vector<std::vector<std::uint64_t>> Simulator::group_collective(
    network::Collective what, const std::vector<std::uint64_t>& rows, std::uint64_t values) const {
  if (values == 0) values = s_.model.hidden_size;
  std::vector<std::vector<std::uint64_t>> out;
  const scenario::Parallel& p = layout();
  std::vector<std::uint32_t> members(p.tp);
  for (std::uint32_t first = p.first_gpu; p.has(first); first += p.tp) {
    std::iota(members.begin(), members.end(), first);
    const auto phases = network::collective(
        what, network::collective_of(s_.network.collective),
        model::dtype_bytes(s_.activations, rows[first] * values), members, node_);
    if (out.size() < phases.size()) {
      out.resize(phases.size(), std::vector<std::uint64_t>(std::size_t{gpus_} * gpus_, 0));
    }
    for (std::size_t i = 0; i < phases.size(); ++i) {
      for (const network::Transfer& t : phases[i]) {
        out[i][std::size_t{t.src} * gpus_ + t.dst] += t.bytes;
      }
    }
  }
  return out;
}

/// The collectives of one hidden state per token of each group, side by side.
void Simulator::compose_reduce() {
  reduce_.clear();
  scatter_.clear();
  gather_.clear();
  if (!sharded()) return;
  if (layout().sequence_parallel) {
    scatter_ = group_collective(network::Collective::kReduceScatter, tokens_of_);
  } else {
    reduce_ = group_collective(network::Collective::kAllReduce, tokens_of_);
  }
  if (layout().sequence_parallel || wide()) {
    gather_ = group_collective(network::Collective::kAllGather, tokens_of_);
  }
}

/// Sequence parallelism: every GPU of a group computes the head for all rows that sample.
void Simulator::gather_samples() {
  collective(run::kNone, group_collective(network::Collective::kAllGather, sampled_of_),
             {network::Collective::kAllGather, &sampled_of_});
}

/// parallel.vocab_parallel: every GPU of a group gets the logits of the whole vocabulary.
void Simulator::gather_logits() {
  const std::uint64_t before = record_.scalars.bytes_sent;
  const std::uint64_t values = shard().vocab_size * layout().tp;
  collective(run::kNone, group_collective(network::Collective::kAllGather, sampled_of_, values),
             {network::Collective::kAllGather, &sampled_of_, values});
  logit_bytes_ += record_.scalars.bytes_sent - before;
}

void Simulator::note_vocabulary(std::uint64_t steps) {
  const auto each = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(steps);
  };
  sink_.data().metrics.push_back({"embedding collective per step", each(embedding_bytes_), "B"});
  sink_.data().metrics.push_back({"logits all-gather per step", each(logit_bytes_), "B"});
}

std::uint64_t Simulator::kv_bytes_of(const Pool& pool, std::uint64_t tokens) const {
  return kv_bytes_of(pool, tokens, 0, s_.model.layers.size());
}

std::uint64_t Simulator::kv_bytes_of(const Pool& pool, std::uint64_t tokens,
                                     std::size_t first_layer, std::size_t beyond) const {
  // Whole pages of kv.block tokens; windowed layers keep what model::kv_bytes says.
  const std::uint64_t block = s_.memory.kv_block;
  const std::uint64_t held = (tokens + block - 1) / block * block;
  std::uint64_t values = 0;
  const std::uint64_t per_token = model::kv_values_per_token_layer(pool.shard);
  if (!windows_) values = per_token * held * (beyond - first_layer);
  for (std::size_t layer = first_layer; windows_ && layer < beyond; ++layer) {
    const std::uint64_t window = s_.model.layers[layer].sliding_window;
    values += per_token * (window == 0 ? held : std::min(held, window));
  }
  return model::dtype_bytes(s_.dtype.kv, values);
}

std::uint64_t Simulator::kv_tokens_on(std::uint32_t gpu, std::uint32_t home,
                                      std::uint64_t n) const {
  // Block i of the sequence is i places after its home among the GPUs, or tensor-parallel groups,
  // of one copy of the experts.
  const std::uint64_t round = kv_round();
  if (kv_copy(gpu) != kv_copy(home)) return 0;
  const std::uint64_t block = s_.memory.kv_block;
  const std::uint64_t whole = n / block, place = (kv_place(gpu) + round - kv_place(home)) % round;
  const std::uint64_t mine = whole / round + (place < whole % round ? 1 : 0);
  return mine * block + (place == whole % round ? n % block : 0);
}

std::uint64_t Simulator::kv_layer_page() const {
  return model::dtype_bytes(s_.dtype.kv,
                            s_.memory.kv_block * model::kv_values_per_token_layer(shard()));
}

std::uint64_t Simulator::expert_kv_bytes(std::uint32_t gpu) {
  std::uint64_t bytes = 0;
  for (const auto& [sequence, kept] : kv_on_) {
    if (!kept.out && kept.first == kv_copy(gpu)) bytes += kept_bytes(kept, gpu, 0);
  }
  for (const auto& [name, kept] : kv_left_) {
    if (kept.first == kv_copy(gpu)) bytes += kept_bytes(kept, gpu, 0);
  }
  return bytes;
}

Simulator::KeptKv& Simulator::kept_kv(std::uint32_t sequence, std::uint32_t gpu) {
  KeptKv& kept = kv_on_[sequence];
  if (kept.n.empty()) {
    kept.first = kv_copy(gpu);
    kept.n.assign(std::size_t{layers_} * kv_round(), 0);
  }
  return kept;
}

std::uint64_t Simulator::kept_bytes(const KeptKv& kept, std::uint32_t gpu,
                                    std::uint64_t more) const {
  const std::uint64_t block = s_.memory.kv_block;
  std::uint64_t pages = 0;
  for (std::uint32_t m = 0; m < layers_; ++m) {
    if (staged() && stage_of_moe(m) != stage_of_gpu(gpu)) continue;
    pages += (kept.n[std::size_t{m} * kv_round() + kv_place(gpu)] + more + block - 1) / block;
  }
  return pages * kv_layer_page();
}

std::uint64_t Simulator::kv_most_on(std::uint32_t id, std::uint32_t gpu, std::uint32_t home,
                                    std::uint64_t had, std::uint64_t tokens) const {
  if (!kv_by_expert()) return kv_bytes_on(gpu, home, tokens);
  // Without pages so far each layer may bring all tokens here.
  const std::uint64_t block = s_.memory.kv_block;
  const auto it = had > 0 ? kv_on_.find(id) : kv_on_.end();
  const std::uint64_t of_experts =
      it != kv_on_.end() ? kept_bytes(it->second, gpu, tokens - had)
                         : (tokens - had + block - 1) / block *
                               moe_layers_of(staged() ? stage_of_gpu(gpu) : 0) * kv_layer_page();
  return kv_bytes_on(gpu, home, tokens) + of_experts;
}

std::uint64_t Simulator::moe_layers_of(std::uint32_t stage) const {
  if (!staged()) return layers_;
  std::uint64_t n = 0;
  for (std::uint32_t m = 0; m < layers_; ++m) n += stage_of_moe(m) == stage ? 1 : 0;
  return n;
}

bool Simulator::keeps_kv(std::uint32_t gpu, std::uint32_t id, std::uint32_t home,
                         std::uint64_t tokens) const {
  if (kv_bytes_on(gpu, home, tokens) > 0) return true;
  const auto it = kv_on_.find(id);
  return it != kv_on_.end() && !it->second.out && it->second.first == kv_copy(gpu) &&
         kept_bytes(it->second, gpu, 0) > 0;
}

std::vector<KvTransfer> Simulator::kv_moves(std::uint32_t id, std::uint32_t from, std::uint32_t to,
                                            std::uint64_t tokens) const {
  std::vector<KvTransfer> moves;
  const auto move = [&](std::uint32_t a, std::uint32_t b, std::uint64_t bytes) {
    if (bytes > 0) moves.push_back({a, b, bytes, s_.parallel.tp});
  };
  const std::uint32_t round = kv_round(), tp = layout().tp;
  if (!kv_by_expert()) {
    for (std::uint32_t i = 0; i < round; ++i) {
      const std::uint32_t source = kv_copy(from) + (kv_place(from) + i) % round * tp;
      move(source, kv_copy(to) + (kv_place(to) + i) % round * tp,
           kv_bytes_on(source, from, tokens));
    }
    return moves;
  }
  // Where an expert is in its copy, there it is in the other one.
  const auto it = kv_on_.find(id);
  for (std::uint32_t i = 0; i < round && it != kv_on_.end(); ++i) {
    const std::uint32_t source = kv_copy(from) + i * tp;
    move(source, kv_copy(to) + i * tp, kept_bytes(it->second, source, 0));
  }
  move(from, to, kv_bytes_on(from, from, tokens));
  return moves;
}

/// A request that arrived gives its pages of the MoE layers back, or has them again.
void Simulator::change_kept_kv(const KvChange& c, std::int64_t now) {
  const auto release = [&](const KeptKv& kept) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      if (kv_copy(g) != kept.first) continue;
      ledger_.release(g, MemoryCategory::kKv, kept_bytes(kept, g, 0), now,
                      static_cast<std::uint32_t>(step_), "KV pages are given back");
    }
  };
  if (c.left) {
    const auto left = kv_left_.find({c.id, kv_copy(c.gpu)});
    if (left == kv_left_.end()) return;
    release(left->second);
    kv_left_.erase(left);
    return;
  }
  const auto it = kv_on_.find(c.id);
  if (it == kv_on_.end()) return;
  KeptKv& kept = it->second;
  const bool moves = c.after > 0 && kept.first != kv_copy(c.gpu);
  if (moves) {
    // To another replica: what it had stays behind until all has arrived.
    kv_left_.emplace(std::pair{c.id, kept.first}, kept);
    kept.first = kv_copy(c.gpu);
  }
  if (c.after == 0 && !kept.out) release(kept);
  for (std::uint32_t g = 0; g < gpus_ && c.after > 0 && (moves || kept.out); ++g) {
    if (kv_copy(g) != kept.first) continue;
    ledger_.allocate(g, MemoryCategory::kKv, kept_bytes(kept, g, 0), now,
                     static_cast<std::uint32_t>(step_), "KV pages");
  }
  kept.out = c.after == 0;
  if (c.after == 0 && !c.keep) kv_on_.erase(it);
}

std::uint64_t Simulator::kv_bytes_on(std::uint32_t gpu, std::uint32_t home,
                                     std::uint64_t tokens) const {
  const std::uint32_t stage = staged() ? stage_of_gpu(gpu) : 0;
  const std::size_t layers = s_.model.layers.size();
  const std::size_t first = stage_begin(layers, s_.parallel.pp, stage);
  const std::size_t beyond = stage_begin(layers, s_.parallel.pp, stage + 1);
  if (kv_by_expert()) {
    // Layers without experts keep theirs at home; keep_kv() sees to the others.
    const std::uint64_t pages = (tokens + s_.memory.kv_block - 1) / s_.memory.kv_block;
    return holds_kv(gpu, home) ? pages * (beyond - first - moe_layers_of(stage)) * kv_layer_page()
                               : 0;
  }
  if (!spread_kv())
    return holds_kv(gpu, home) ? kv_bytes_of(pool_of(gpu), tokens, first, beyond) : 0;
  const std::uint64_t block = s_.memory.kv_block;
  const std::uint64_t held = (tokens + block - 1) / block * block;
  std::uint64_t values = 0;
  const std::uint64_t per_token = model::kv_values_per_token_layer(shard());
  for (std::size_t layer = first; layer < beyond; ++layer) {
    const std::uint64_t window = s_.model.layers[layer].sliding_window;
    values += per_token * kv_tokens_on(gpu, home, window == 0 ? held : std::min(held, window));
  }
  return model::dtype_bytes(s_.dtype.kv, values);
}

const std::vector<std::uint32_t>& Simulator::kv_holders(std::uint32_t home) {
  kv_holders_.resize(gpus_);
  std::vector<std::uint32_t>& out = kv_holders_[home];
  if (!out.empty()) return out;
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    if (spread_kv() || holds_kv(g, home)) out.push_back(g);
  }
  return out;
}

void Simulator::grow_kv(std::uint64_t step) {
  const std::int64_t now = ready_[plan_.first_gpu];
  const auto index = static_cast<std::uint32_t>(step);
  if (kv_by_expert() && step == 0) {
    for (std::uint32_t g = 0; g < gpus_; ++g) {
      ledger_.allocate(g, MemoryCategory::kKv, expert_kv_bytes(g), now, index, "KV pages");
    }
  }
  for (const KvChange& c : plan_.kv) {
    if (kv_by_expert()) change_kept_kv(c, now);
    for (const std::uint32_t g : kv_holders(c.gpu)) {
      const std::uint64_t have = c.before == 0 ? 0 : kv_bytes_on(g, c.gpu, c.before);
      const std::uint64_t want = c.after == 0 ? 0 : kv_bytes_on(g, c.gpu, c.after);
      if (want > have) {
        ledger_.allocate(g, MemoryCategory::kKv, want - have, now, index, "KV pages");
      } else if (want < have) {
        ledger_.release(g, MemoryCategory::kKv, have - want, now, index, "KV pages are given back");
      }
    }
  }
}

void Simulator::place_context_kv(const RoutingTrace* trace) {
  // Requests that arrive have nothing cached.
  if (!kv_by_expert() || s_.workload.serves() || s_.workload.context == 0) return;
  // A source of its own: these rows do not count as taken.
  const auto source = make_routing_source(s_, trace);
  const bool decode = s_.workload.kind == WorkloadKind::kDecode;
  StepTokens tokens;
  Candidates found;
  for (std::uint32_t b = 0; b < s_.workload.batch; ++b) {
    const std::uint32_t width = homes();
    const std::uint32_t home = hub() ? layout().hub : b % (width / layout().tp) * layout().tp;
    const std::size_t n = s_.workload.context;
    tokens.sequence.assign(n, b);
    tokens.position.resize(n);
    std::iota(tokens.position.begin(), tokens.position.end(), 0U);
    tokens.ordinal = tokens.position;
    tokens.phase.assign(n, 0);
    tokens.rank.assign(n, static_cast<std::uint16_t>(home));
    // The rows that a trace has for this workload: the answers' in decode.
    tokens.answer.assign(n, decode ? 1 : 0);
    for (std::uint32_t m = 0; m < layers_; ++m) {
      source->candidates(tokens, m, found, RoutingSource::Need::kChosen);
      const std::uint32_t here = home + stage_of_moe(m) * width;
      for (std::size_t t = 0; t < n; ++t) {
        const std::uint16_t e = found.ids[t * found.width];
        ++kv_count(b, m, e < experts_ ? map().gpu_of(m, e, here) : here);
      }
    }
  }
}

void Simulator::keep_kv(std::uint32_t moe) {
  const std::uint64_t block = s_.memory.kv_block;
  const std::uint64_t each =
      model::dtype_bytes(s_.dtype.kv, model::kv_values_per_token_layer(shard()));
  std::vector<std::uint64_t> bytes(std::size_t{gpus_} * gpus_, 0), pages(gpus_, 0);
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    // A tensor-parallel group keeps its shards of the heads together.
    const std::uint32_t home = group_first(tokens_.rank[t]);
    const std::uint32_t served = slots_ > 0 ? traffic_.gpu[t * slots_] : kNoGpu;
    // Dropped: it stays at home.
    const std::uint32_t to = served == kNoGpu ? home : group_first(served);
    std::uint32_t& n = kv_count(tokens_.sequence[t], moe, to);
    for (std::uint32_t i = 0; i < layout().tp; ++i) {
      pages[to + i] += n % block == 0 ? 1 : 0;
      if (to != home) bytes[std::size_t{home + i} * gpus_ + to + i] += each;
    }
    ++n;
  }
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    ledger_.allocate(g, MemoryCategory::kKv, pages[g] * kv_layer_page(), ready_[g],
                     static_cast<std::uint32_t>(step_), "KV pages");
  }
  move_values(run::kNone, {bytes});
}

/// Keys, values and what else attention sends; in two halves they take their turn on the wires.
void Simulator::move_values(std::uint32_t moe, const Matrices& matrices, Among among) {
  std::int64_t duration = 0, floor = 0;
  // Several matrices are the phases of broadcasts, one call of each home.
  const OneCall call{0, matrices.size(), 1};
  if (!in_halves_) {
    exchange(run::Phase::kCollective, moe, matrices, duration, floor, among, nullptr, nullptr,
             call);
    return;
  }
  issue(run::Phase::kCollective, moe, matrices, duration, floor, among, false, nullptr, call);
  await_exchange(run::Phase::kCollective);
}

void Simulator::move_kv(std::size_t layer, std::uint32_t moe) {
  if (kv_by_expert()) {
    if (moe == run::kNone) return;
    const std::uint64_t each = model::kv_values_per_token_layer(shard());
    std::vector<std::uint64_t> bytes(std::size_t{gpus_} * gpus_, 0), pulled(gpus_, 0);
    for (std::size_t p = 0; p < plan_.sequences.size(); ++p) {
      const PlannedSequence& q = plan_.sequences[p];
      if (!in_part(p)) continue;
      std::uint64_t kept = 0;
      const std::uint32_t ep = layout().ep, home = home_of(q), first = home / ep * ep;
      for (std::uint32_t g = first; g < first + ep; g += layout().tp) {
        const std::uint64_t here = kv_count(q.id, moe, g);
        kept += here;
        if (g == home) continue;
        if (merges(q)) {
          merge_with(q, g, here);
          continue;
        }
        const std::uint64_t pull = model::dtype_bytes(s_.dtype.kv, each * here);
        for (std::uint32_t i = 0; i < layout().tp; ++i) {
          bytes[std::size_t{g + i} * gpus_ + home + i] += pull;
          pulled[home + i] += pull;
        }
      }
      keep_at_home(q, kv_count(q.id, moe, home));
      if (kept != q.had) {
        violation("memory", fmt::format("step {}, MoE layer {}", step_, s_.model.moe_layers()[moe]),
                  fmt::format("sequence {} has {} tokens cached, {} are kept", q.id, q.had, kept));
      }
    }
    pull_kv(bytes, pulled);
    return;
  }
  const std::uint64_t window = s_.model.layers[layer].sliding_window;
  const std::uint64_t per_token = model::kv_values_per_token_layer(shard());
  const auto kept = [&](std::uint64_t n) { return window == 0 ? n : std::min(n, window); };
  std::vector<std::uint64_t> bytes(std::size_t{gpus_} * gpus_, 0), pulled(gpus_, 0);
  if (s_.memory.kv_placement == KvPlacement::kReplicated) {
    // Every home sends its new tokens' to all others.
    std::vector<std::uint64_t> fresh(gpus_, 0);
    for (std::size_t p = 0; p < plan_.sequences.size(); ++p) {
      const PlannedSequence& q = plan_.sequences[p];
      if (in_part(p)) fresh[q.gpu] += per_token * q.fresh;
    }
    std::vector<std::uint32_t> members(gpus_);
    std::iota(members.begin(), members.end(), 0U);
    std::vector<std::vector<std::uint64_t>> phases;
    for (std::uint32_t home = 0; home < gpus_; ++home) {
      const std::vector<network::Phase> one = network::collective(
          network::Collective::kBroadcast, network::broadcast_of(s_.network.broadcast),
          model::dtype_bytes(s_.dtype.kv, fresh[home]), members, node_, home);
      if (phases.size() < one.size()) phases.resize(one.size(), bytes);
      for (std::size_t p = 0; p < one.size(); ++p) {
        for (const network::Transfer& t : one[p]) {
          phases[p][std::size_t{t.src} * gpus_ + t.dst] += t.bytes;
        }
      }
    }
    move_values(run::kNone, phases, Among::kAll);
    return;
  }
  for (std::size_t p = 0; p < plan_.sequences.size(); ++p) {
    const PlannedSequence& q = plan_.sequences[p];
    if (!in_part(p)) continue;
    keep_at_home(q, kv_tokens_on(q.gpu, q.gpu, kept(q.had)));
    const std::uint32_t ep = layout().ep, home = home_of(q), first = home / ep * ep;
    for (std::uint32_t g = first; g < first + ep; g += layout().tp) {
      if (g == home) continue;
      const std::uint64_t here = kv_tokens_on(g, q.gpu, kept(q.had));
      const std::uint64_t pull = merges(q) ? 0 : model::dtype_bytes(s_.dtype.kv, per_token * here);
      if (merges(q)) merge_with(q, g, here);
      const std::uint64_t fresh = model::dtype_bytes(
          s_.dtype.kv,
          per_token * (kv_tokens_on(g, q.gpu, q.had + q.fresh) - kv_tokens_on(g, q.gpu, q.had)));
      for (std::uint32_t i = 0; i < layout().tp; ++i) {
        bytes[std::size_t{g + i} * gpus_ + home + i] += pull;
        pulled[home + i] += pull;
        bytes[std::size_t{home + i} * gpus_ + g + i] += fresh;
      }
    }
  }
  pull_kv(bytes, pulled);
}

void Simulator::pull_kv(const std::vector<std::uint64_t>& bytes,
                        const std::vector<std::uint64_t>& pulled) {
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    ledger_.allocate(g, MemoryCategory::kBuffers, pulled[g], ready_[g],
                     static_cast<std::uint32_t>(step_), "pulled keys and values");
  }
  move_values(run::kNone, {bytes});
  for (std::uint32_t g = 0; g < gpus_; ++g) {
    ledger_.release(g, MemoryCategory::kBuffers, pulled[g], ready_[g],
                    static_cast<std::uint32_t>(step_), "pulled keys and values have been used");
  }
}

}  // namespace switchyard::sim
