// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.hpp"
#include "engine/base/random.hpp"
#include "engine/routing/batch_set.hpp"
#include "engine/routing/round_robin.hpp"
#include "engine/routing/selection.hpp"
#include "engine/routing/two_tier.hpp"

namespace switchyard {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// M10 adaptive.
constexpr std::uint32_t kNoiseWindow = 50;
constexpr double kNoiseShare = 0.40, kNoiseGrowth = 0.01, kNoiseMost = 0.2;
constexpr double kDoubleMinusInf = -std::numeric_limits<double>::infinity();

/// NaN and +inf count as -inf.
double clean(double z) { return z < std::numeric_limits<double>::infinity() ? z : kDoubleMinusInf; }

float to_logit(double z) {
  const auto f = static_cast<float>(z);
  return f < std::numeric_limits<float>::infinity() ? f : kMinusInf;
}

}  // namespace

double Signals::least(std::span<const double> level, std::uint32_t e) const {
  double low = level[gpu[first_gpu[e]]];
  for (std::uint32_t i = first_gpu[e] + 1; i < first_gpu[e + 1]; ++i) {
    low = std::min(low, level[gpu[i]]);
  }
  return low;
}

SequenceState& LayerState::of(std::uint32_t sequence) {
  if (sequence >= sequences.size()) {
    sequences.resize(std::size_t{sequence} + 1);
  }
  return sequences[sequence];
}

RequestInfo& RoutingState::request(std::uint32_t sequence) {
  if (sequence >= requests_.size()) {
    requests_.resize(std::size_t{sequence} + 1);
  }
  return requests_[sequence];
}

void RoutingState::end_sequence(std::uint32_t sequence) {
  for (LayerState& layer : layers_) {
    if (sequence < layer.sequences.size()) {
      layer.sequences[sequence] = {};
    }
  }
}

RouteWorkspace::RouteWorkspace() : pipeline_(std::make_unique<Pipeline>()) {}
RouteWorkspace::~RouteWorkspace() = default;
RouteWorkspace::RouteWorkspace(RouteWorkspace&&) noexcept = default;
RouteWorkspace& RouteWorkspace::operator=(RouteWorkspace&&) noexcept = default;

void route_layer(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
                 const RouteInput& input, LayerState& state, RouteWorkspace& workspace,
                 LayerDecision& out) {
  if (!has_policy_steps(policy)) {
    decide(gate, policy, step, input.candidates, input.gate_bias, workspace.decide, out);
    return;
  }
  workspace.pipeline().run(gate, policy, step, input, state, workspace.decide, out);
}

void Pipeline::run(const GateSpec& gate, const RoutingPolicy& policy, const StepContext& step,
                   const RouteInput& input, LayerState& state, DecideWorkspace& decide_workspace,
                   LayerDecision& out) {
  gate_ = &gate;
  policy_ = &policy;
  step_ = &step;
  input_ = &input;
  state_ = &state;
  experts_ = gate.experts;
  slots_ = policy_slots(policy, gate);
  const CandidatesView& c = input.candidates;
  const std::uint32_t tokens = c.tokens;
  const bool all_stored = c.width == experts_;
  partial_ = !all_stored && input.logits.empty();
  SWITCHYARD_ASSERT(
      slots_ <= c.width && step.sequence.size() == tokens && step.position.size() == tokens &&
          c.ids.size() == row_offset(tokens, c.width) && c.logit.size() == c.ids.size() &&
          c.lse.size() == tokens &&
          (input.logits.empty() || input.logits.size() == row_offset(tokens, experts_)) &&
          (input.gate_bias.empty() || input.gate_bias.size() == experts_),
      fmt::format("T {} K {} M {} E {} logits {} sequence {}", tokens, slots_, c.width, experts_,
                  input.logits.size(), step.sequence.size()));
  const std::uint64_t n = row_offset(tokens, experts_);
  z_.resize(n);
  p_.resize(n);
  ranking_.resize(n);
  top1_.assign(tokens, kNoExpert);
  for (auto* v : {&row_z_, &row_p_, &sel_, &key_}) {
    v->assign(experts_, 0.0F);
  }
  raw_.assign(experts_, 0.0);
  masked_.assign(experts_, 0);
  known_.assign(experts_, 1);
  order_.resize(experts_);
  set_.reserve(slots_);
  rows_.resize(tokens, partial_ ? c.width : experts_, slots_);
  unsure_slots_ = 0;

  begin_step();
  for (std::uint32_t t = 0; t < tokens; ++t) {
    load_logits(t);
    change_logits(t);
    score(t);
  }
  if (policy.set == SetRule::kBatch) {
    batch_set_.resize(gate.top_k);
    batch_level_set(p_, experts_, batch_sum_, batch_set_);
  }
  decide_rows(gate, policy, step, *this, decide_workspace, out);
  end_step(out);
}

void Pipeline::begin_step() {
  const RoutingPolicy& p = *policy_;
  const TemperaturePolicy& tp = p.temperature;
  temperature_ = tp.place == TemperaturePlace::kOff ? 1.0 : tp.value;
  if (tp.controller != TemperatureController::kOff) {
    if (state_->triggered) {  // in the last step, whose end is now
      state_->triggered = false;
      state_->raised = true;
      state_->until = now() + tp.hold;
    }
    if (state_->raised && now() >= state_->until) {
      state_->raised = false;
    }
    if (state_->raised) {
      temperature_ = tp.raise * tp.value;
    }
  }
  noise_std_ = p.noise.mode == NoiseMode::kOff ? 0 : p.noise.std;
  if (p.noise.mode == NoiseMode::kAdaptive) {
    if (state_->noise_std < 0) {
      state_->noise_std = p.noise.std;
      state_->noise_taken.assign(experts_, 0);
    }
    noise_std_ = state_->noise_std;
  }
  if (p.load_aware.u != LoadLevel::kOff) {
    const std::uint64_t batch = step_->batch_size();
    lambda_ = p.load_aware.lambda.value_or(load_aware_lambda(batch));
    if (p.load_aware.u == LoadLevel::kQueue && state_->queue_level.empty()) {
      state_->queue_level.assign(experts_, 0.0F);
    }
  }
  begin_sets();
  transformed_ = p.condition.clamp > 0 || noise_std_ > 0 || temperature_ != 1.0 ||
                 p.semantic.mode == SemanticMode::kMlp || p.semantic.mode == SemanticMode::kEma ||
                 p.gumbel.mode != GumbelMode::kOff || p.load_aware.u != LoadLevel::kOff;
  additive_ = !input_->gate_bias.empty() || p.bonus.lambda > 0 || p.window.beta > 0;
}

void Pipeline::begin_sets() {
  const RoutingPolicy& p = *policy_;
  counts_ = {};
  balance_ = {};
  rebalance_ = {};
  level_.clear();
  free_.clear();
  if (p.soft_balance.on()) {
    const std::uint32_t longest = input_->signals != nullptr && input_->signals->longest_queue
                                      ? *input_->signals->longest_queue
                                      : state_->longest_queue;
    third_for_all_ = third_in_next_step(p.soft_balance, {&longest, 1});
  }
  if ((p.soft_balance.needs_memory() || p.decode_rebalance.on()) && input_->signals != nullptr) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      level_.push_back(input_->signals->least(input_->signals->used, e));
      free_.push_back(std::round((1.0 - level_.back()) * 1e12) / 1e12);  // 1 - 0.8 is 0.2
    }
  }
  if (p.decode_rebalance.on()) {
    state_->rebalance.credit.resize(experts_, 0);
    if (step_->tokens[static_cast<std::size_t>(Phase::kDecode)] != 0) {
      begin_decode_step(p.decode_rebalance, level_, state_->rebalance);
    }
  }
}

void Pipeline::load_logits(std::uint32_t t) {
  const CandidatesView& c = input_->candidates;
  const std::uint64_t base = row_offset(t, c.width);
  if (c.width < experts_ && !partial_) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      raw_[e] = to_logit(input_->logits[row_offset(t, experts_, e)]);
    }
    return;
  }
  std::fill(raw_.begin(), raw_.end(), kDoubleMinusInf);
  if (partial_) {
    std::fill(known_.begin(), known_.end(), std::uint8_t{0});
  }
  std::uint32_t last = c.width;
  for (std::uint32_t r = 0; r < c.width; ++r) {
    const std::uint16_t e = c.ids[base + r];
    if (e == kNoExpert) {
      break;
    }
    SWITCHYARD_ASSERT(e < experts_, fmt::format("expert {} of {}", e, experts_));
    raw_[e] = c.logit[base + r];
    known_[e] = 1;
    last = r;
  }
  if (!partial_ || last == c.width || last + 1 < c.width) {
    return;
  }
  // The absent experts rank behind the last candidate: the largest logit that this allows.
  const std::uint16_t worst = c.ids[base + last];
  const std::span<const float> bias = input_->gate_bias;
  for (std::uint32_t e = 0; e < experts_; ++e) {
    if (known_[e] != 0) {
      continue;
    }
    double bound = raw_[worst];
    if (!bias.empty()) {
      const double p = gate_probability(*gate_, static_cast<float>(raw_[worst]), c.lse[t]);
      const double room = p + bias[worst] - bias[e];
      if (room <= 0) {
        bound = kDoubleMinusInf;
      } else if (gate_->score == GateScore::kSigmoid) {
        bound = room >= 1 ? std::numeric_limits<float>::max() : std::log(room / (1 - room));
      } else {
        bound = std::log(std::min(room, 1.0)) + c.lse[t];
      }
    }
    raw_[e] = bound;
  }
}

double Pipeline::u_of(std::uint32_t e) const {
  switch (policy_->load_aware.u) {
    case LoadLevel::kTotal:
      return input_->signals->least(input_->signals->used, e);
    case LoadLevel::kElastic:
      return input_->signals->least(input_->signals->elastic, e);
    case LoadLevel::kQueue:
      return input_->signals != nullptr && !input_->signals->queue.empty()
                 ? input_->signals->queue[e]
                 : state_->queue_level[e];
    case LoadLevel::kOff:
      break;
  }
  return 0;
}

void Pipeline::apply_semantic_gate(std::uint32_t t) {
  const SemanticPolicy& s = policy_->semantic;
  if (s.mode != SemanticMode::kMlp && s.mode != SemanticMode::kEma) {
    return;
  }
  SWITCHYARD_ASSERT(!partial_ || s.on == SemanticInput::kInput, "require_supply() was called");
  if (std::find(raw_.begin(), raw_.end(), kDoubleMinusInf) != raw_.end()) {
    return;
  }
  if (s.mode == SemanticMode::kEma) {
    std::vector<float>& smooth = state_->of(step_->sequence[t]).smooth;
    const bool first = smooth.empty();
    smooth.resize(experts_);
    for (std::uint32_t e = 0; e < experts_; ++e) {
      raw_[e] = first ? raw_[e] : s.alpha * raw_[e] + (1.0 - s.alpha) * double{smooth[e]};
      smooth[e] = static_cast<float>(raw_[e]);
      raw_[e] = smooth[e];
    }
    return;
  }
  const SemanticWeights& w = input_->weights->semantic;
  if (s.on == SemanticInput::kInput) {
    const auto x = input_->hidden.subspan(row_offset(t, w.inputs), w.inputs);
    gate_input_.assign(x.begin(), x.end());
  } else {
    gate_input_ = raw_;
  }
  semantic_gate(w, gate_input_, gate_hidden_, raw_);
}

void Pipeline::change_logits(std::uint32_t t) {
  const RoutingPolicy& p = *policy_;
  const std::uint32_t sequence = step_->sequence[t];
  const std::uint32_t position = step_->position[t];
  static constexpr std::uint32_t kNoise = random_purpose("noise");
  static constexpr std::uint32_t kGumbel = random_purpose("gumbel");
  if (p.condition.clamp > 0) {
    for (double& z : raw_) {
      z = z == kDoubleMinusInf ? z : std::clamp(z, -p.condition.clamp, p.condition.clamp);
    }
  }
  if (noise_std_ > 0) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      raw_[e] +=
          noise_std_ * random_normal(step_->seed, kNoise, {sequence, step_->layer, position, e});
    }
  }
  apply_semantic_gate(t);
  if (p.temperature.place == TemperaturePlace::kBefore && temperature_ != 1.0) {
    for (double& z : raw_) {
      z /= temperature_;
    }
  }
  if (p.gumbel.mode != GumbelMode::kOff) {
    const bool all = p.gumbel.mode == GumbelMode::kTauAll;
    for (std::uint32_t e = 0; e < experts_; ++e) {
      const double g = random_gumbel(step_->seed, kGumbel, {sequence, step_->layer, position, e});
      raw_[e] = all ? (raw_[e] + g) / p.gumbel.tau : raw_[e] / p.gumbel.tau + g;
    }
  }
  if (p.load_aware.u != LoadLevel::kOff) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      raw_[e] -= lambda_ * u_of(e);
    }
  }
  for (double& z : raw_) {
    z = clean(z);
  }
}

void Pipeline::score(std::uint32_t t) {
  const CandidatesView& c = input_->candidates;
  const std::uint64_t base = row_offset(t, experts_);
  const bool after = policy_->temperature.place == TemperaturePlace::kAfter && temperature_ != 1.0;
  const std::span<float> ranking = std::span(ranking_).subspan(base, experts_);
  const std::span<float> z = std::span(z_).subspan(base, experts_);
  for (std::uint32_t e = 0; e < experts_; ++e) {
    ranking[e] = to_logit(raw_[e]);
    z[e] = after ? to_logit(static_cast<double>(ranking[e]) / temperature_) : ranking[e];
  }
  float lse = c.lse[t];
  if (transformed_ && gate_->score != GateScore::kSigmoid) {
    if (partial_) {
      // The mass of the absent experts in the raw log-sum-exp, as equal experts whose logits take
      // the temperatures' way.
      double stored = 0;
      std::uint32_t count = 0;
      for (std::uint32_t r = 0; r < c.width; ++r) {
        const std::uint16_t e = c.ids[row_offset(t, c.width, r)];
        if (e == kNoExpert) {
          break;
        }
        stored += std::exp(static_cast<double>(c.logit[row_offset(t, c.width, r)]) - lse);
        ++count;
      }
      const double rest = std::max(0.0, 1.0 - stored);
      double scale = temperature_;
      if (policy_->gumbel.mode != GumbelMode::kOff) {
        scale *= policy_->gumbel.tau;
      }
      double top = kDoubleMinusInf;
      for (std::uint32_t e = 0; e < experts_; ++e) {
        top = known_[e] != 0 ? std::max(top, static_cast<double>(z[e])) : top;
      }
      double sum = 0;
      for (std::uint32_t e = 0; e < experts_; ++e) {
        sum += known_[e] != 0 && z[e] != kMinusInf ? std::exp(z[e] - top) : 0;
      }
      if (rest > 0 && count < experts_) {
        const double absent = experts_ - count;
        sum += absent * std::exp((std::log(rest / absent) + lse) / scale - top);
      }
      lse = top == kDoubleMinusInf ? kMinusInf : static_cast<float>(top + std::log(sum));
    } else {
      lse = log_sum_exp(z);
    }
  }
  for (std::uint32_t e = 0; e < experts_; ++e) {
    p_[base + e] = gate_probability(*gate_, z[e], lse);
  }
}

std::span<const std::uint16_t> Pipeline::previous_set(std::uint32_t t, std::uint32_t i,
                                                      std::span<const std::uint16_t> sets) {
  const std::uint32_t s = step_->sequence[t];
  std::uint32_t inside = 0;  // predecessors within this step
  while (inside < i && t > inside && step_->sequence[t - inside - 1] == s) {
    ++inside;
  }
  if (inside == i) {
    return sets.subspan(row_offset(t - i, slots_), slots_);
  }
  const SequenceState& past = state_->of(s);
  const std::uint32_t back = i - inside;
  if (back > std::min(past.past, kWindowLength)) {
    return {};
  }
  return std::span(past.history)
      .subspan(row_offset((past.past - back) % kWindowLength, slots_), slots_);
}

void Pipeline::add_bonuses(std::uint32_t t, std::span<const std::uint16_t> sets) {
  const RoutingPolicy& p = *policy_;
  if (p.bonus.lambda > 0) {
    for (const std::uint16_t e : previous_set(t, 1, sets)) {
      if (e != kNoExpert) {
        sel_[e] += static_cast<float>(p.bonus.lambda);
      }
    }
  }
  if (p.window.beta > 0) {
    double total = 0;
    double weight = 1;
    for (std::uint32_t i = 0; i < kWindowLength; ++i, weight *= p.window.gamma) {
      total += weight;
    }
    std::fill(raw_.begin(), raw_.end(), 0.0);  // h of each expert
    weight = 1;
    for (std::uint32_t i = 1; i <= kWindowLength; ++i, weight *= p.window.gamma) {
      for (const std::uint16_t e : previous_set(t, i, sets)) {
        if (e != kNoExpert) {
          raw_[e] += weight;
        }
      }
    }
    for (std::uint32_t e = 0; e < experts_; ++e) {
      if (raw_[e] > 0) {
        sel_[e] += static_cast<float>(p.window.beta * raw_[e] / total);
      }
    }
  }
}

void Pipeline::mask_groups(std::uint32_t t) {
  if (gate_->grouped()) {
    const std::uint32_t size = experts_ / gate_->n_group;
    group_score_.resize(gate_->n_group);
    group_kept_.assign(gate_->n_group, 0);
    if (partial_) {
      std::uint32_t seen = 0;
      const CandidatesView& c = input_->candidates;
      for (std::uint32_t r = 0; r < c.width && seen < gate_->topk_group; ++r) {
        const std::uint16_t e = c.ids[row_offset(t, c.width, r)];
        if (e != kNoExpert && group_kept_[e / size] == 0) {
          group_kept_[e / size] = 1;
          ++seen;
        }
      }
    } else {
      keep_groups(*gate_, gate_->score == GateScore::kIdentity && !additive_ ? key_ : sel_,
                  group_score_, group_kept_);
    }
    const bool zero = gate_->group_mask == GroupMask::kZero;
    for (std::uint32_t e = 0; e < experts_; ++e) {
      if (group_kept_[e / size] == 0) {
        masked_[e] = 1;
        key_[e] = zero && key_[e] != kMinusInf ? 0.0F : kMinusInf;
      }
    }
  }
  const GroupPolicy& g = policy_->groups;
  if (g.by == GroupBy::kOff) {
    return;
  }
  const Signals* signals = input_->signals;
  const std::uint32_t groups =
      g.by == GroupBy::kBlock ? g.count : static_cast<std::uint32_t>(signals->used.size());
  const auto in_group = [&](std::uint32_t e, std::uint32_t group) {
    if (g.by == GroupBy::kBlock) {
      return e / (experts_ / g.count) == group;
    }
    for (std::uint32_t i = signals->first_gpu[e]; i < signals->first_gpu[e + 1]; ++i) {
      if (signals->gpu[i] == group) {
        return true;
      }
    }
    return false;
  };
  const std::uint32_t k = gate_->top_k;
  std::uint32_t best_group = groups;
  double best_score = 0;
  for (std::uint32_t group = 0; group < groups; ++group) {
    best_.clear();
    for (std::uint32_t e = 0; e < experts_; ++e) {
      if (in_group(e, group)) {
        best_.push_back(p_[row_offset(t, experts_, e)]);
      }
    }
    if (best_.empty()) {
      continue;  // a GPU without experts of this layer
    }
    if (best_.size() < k) {
      throw InputError("policy.groups.by",
                       fmt::format("GPU {} holds {} experts of MoE layer {}, fewer than top_k = {}",
                                   group, best_.size(), step_->layer, k),
                       "use groups.by = \"block\", or fewer GPUs");
    }
    std::partial_sort(best_.begin(), best_.begin() + k, best_.end(), std::greater<>());
    double score = 0;
    for (std::uint32_t j = 0; j < k; ++j) {
      score += best_[j];
    }
    if (best_group == groups || score > best_score) {
      best_group = group;
      best_score = score;
    }
  }
  for (std::uint32_t e = 0; e < experts_; ++e) {
    if (!in_group(e, best_group)) {
      masked_[e] = 1;
      key_[e] = kMinusInf;
    }
  }
}

void Pipeline::select(std::uint32_t t, std::span<const std::uint16_t> sets) {
  const std::uint64_t base = row_offset(t, experts_);
  const bool identity =
      gate_->score == GateScore::kIdentity || policy_->score == ScoreRule::kLinear;
  const std::span<const float> bias = input_->gate_bias;
  for (std::uint32_t e = 0; e < experts_; ++e) {
    row_z_[e] = z_[base + e];
    row_p_[e] = p_[base + e];
    masked_[e] = row_z_[e] == kMinusInf ? 1 : 0;
    sel_[e] = bias.empty() ? row_p_[e] : row_p_[e] + bias[e];
    sel_[e] = masked_[e] != 0 || std::isnan(sel_[e]) ? kMinusInf : sel_[e];
    masked_[e] = sel_[e] == kMinusInf ? 1 : 0;
  }
  add_bonuses(t, sets);
  // Where the selection only grows with the logit, the logits order the candidates: scores that tie
  // by rounding keep their order, and the T of step 7 cannot change it.
  const bool zero_mask = gate_->grouped() && gate_->group_mask == GroupMask::kZero && !identity;
  const bool by_score = additive_ || zero_mask;
  for (std::uint32_t e = 0; e < experts_; ++e) {
    key_[e] = by_score ? sel_[e] : ranking_[base + e];
    key_[e] = masked_[e] != 0 ? kMinusInf : key_[e];
  }
  mask_groups(t);
  rank_row(key_, experts_, order_);
  if (partial_) {
    // Unknown experts leave the order; what they might have won is counted.
    float outside = kMinusInf;
    for (std::uint32_t e = 0; e < experts_; ++e) {
      if (known_[e] == 0 && masked_[e] == 0) {
        outside = std::max(outside, key_[e]);
        rows_.open[t] = 1;
      }
    }
    std::erase_if(order_, [&](std::uint16_t e) { return known_[e] == 0; });
    unsure_ = outside;
  }
}

void Pipeline::set_score(std::uint16_t e, float p) {
  row_p_[e] = p;
  row_z_[e] = p > 0 ? std::log(p) : kMinusInf;
}

void Pipeline::choose_set(std::uint32_t t) {
  const std::uint32_t s = step_->sequence[t];
  const RequestInfo request = s < input_->requests.size() ? input_->requests[s] : RequestInfo{};
  const std::uint32_t k = gate_->top_k;
  if (request.expert != kNoExpert) {
    set_.assign(1, request.expert);
    set_score(request.expert, 1.0F);
    row_weights_ = RowWeights::kRaw;
    tail_begin_ = static_cast<std::uint32_t>(order_.size());
    replaced_ = waits_ = true;
    rows_.open[t] = 0;
    ++counts_.pinned_tokens;
  } else if (request.table_entry != kNoTableEntry) {
    SWITCHYARD_ASSERT(input_->table != nullptr, "a table entry without its table");
    // The simulator may cycle the layers of a trace, and then those of its table too.
    const std::uint32_t layer = step_->layer % input_->table->spec().layers;
    const auto ids = input_->table->ids(request.table_entry, layer);
    const auto p = input_->table->p(request.table_entry, layer);
    ++counts_.table_tokens;
    counts_.table_slots += k;
    for (const std::uint16_t e : ids) {
      counts_.table_agreed += holds(set_, e) ? 1 : 0;
    }
    set_.assign(ids.begin(), ids.end());
    for (std::size_t j = 0; j < ids.size(); ++j) {
      set_score(ids[j], p[j]);
    }
    row_weights_ = RowWeights::kTable;
    replaced_ = true;
  } else if (policy_->set == SetRule::kRoundRobin) {
    set_.assign(k, kNoExpert);
    state_->round_robin = round_robin_set(experts_, k, state_->round_robin, set_);
    for (std::uint32_t e = 0; e < experts_; ++e) {
      set_score(static_cast<std::uint16_t>(e), 1.0F / static_cast<float>(k));
    }
    row_weights_ = RowWeights::kRaw;
    replaced_ = true;
  } else if (policy_->set == SetRule::kBatch) {
    set_.assign(batch_set_.begin(), batch_set_.end());
    row_weights_ = RowWeights::kShare;
    replaced_ = true;
  } else if (request.soft) {
    set_size_ =
        std::min<std::uint32_t>(policy_->soft.experts, static_cast<std::uint32_t>(order_.size()));
    set_.assign(order_.begin(), order_.begin() + set_size_);
    tail_begin_ = set_size_;
    row_weights_ = policy_->soft.renorm ? RowWeights::kShare : RowWeights::kRaw;
    ++counts_.soft_tokens;
  }
}

RankedRow Pipeline::ranked_row() {
  ordered_p_.clear();
  ordered_sel_.clear();
  for (const std::uint16_t e : order_) {
    ordered_p_.push_back(row_p_[e]);
    ordered_sel_.push_back(masked_[e] != 0 ? kMinusInf : sel_[e]);
  }
  return {order_, ordered_p_, ordered_sel_};
}

void Pipeline::open_set() { set_.resize(slots_, kNoExpert); }
void Pipeline::close_set() { set_.resize(set_size(set_)); }

void Pipeline::rerank(std::uint32_t t) {
  if (!policy_->two_tier.on() || replaced_) {
    return;
  }
  const auto size = static_cast<std::uint32_t>(set_.size());
  const auto width = std::min(size + 2, static_cast<std::uint32_t>(order_.size()));
  const auto score = input_->tier2.subspan(row_offset(t, experts_), experts_);
  proposed_.assign(width, kNoExpert);
  // All of the proposed in the scorer's order; the reroute targets follow it too.
  (void)rerank_proposed(ranked_row(), width, width, score, proposed_);
  std::copy(proposed_.begin(), proposed_.end(), order_.begin());
  const bool changed = std::any_of(order_.begin(), order_.begin() + size,
                                   [&](std::uint16_t e) { return !holds(set_, e); });
  counts_.reranked += changed ? 1 : 0;
  set_.assign(order_.begin(), order_.begin() + size);
}

void Pipeline::substitute(std::uint32_t t, std::span<const std::uint32_t> queue) {
  if (waits_) {
    return;  // a pinned token stays where it is
  }
  const bool decode = step_->phase.empty()
                          ? step_->tokens[static_cast<std::size_t>(Phase::kDecode)] != 0
                          : step_->phase[t] == static_cast<std::uint8_t>(Phase::kDecode);
  const bool balance = policy_->soft_balance.on();
  const bool rebalance = policy_->decode_rebalance.on() && decode;
  if (!balance && !rebalance) {
    return;
  }
  const RankedRow row = ranked_row();
  const auto before = static_cast<std::uint32_t>(set_.size());
  open_set();
  if (balance) {
    soft_balance(policy_->soft_balance, {row, queue, free_, third_for_all_}, set_, balance_);
  }
  if (rebalance) {
    decode_rebalance(policy_->decode_rebalance, {row, queue, level_}, state_->rebalance, set_,
                     rebalance_);
  }
  close_set();
  // A third expert moves the reroute targets on: they begin after the first k_t candidates.
  tail_begin_ += static_cast<std::uint32_t>(set_.size()) - before;
}

void Pipeline::make_row(std::uint32_t t, std::span<const std::uint32_t> queue,
                        std::span<const std::uint16_t> sets) {
  const CandidatesView& c = input_->candidates;
  if (c.ids[row_offset(t, c.width)] == kNoExpert) {
    return;  // padding
  }
  if (partial_) {
    // known_ is of the last token that was loaded.
    std::fill(known_.begin(), known_.end(), std::uint8_t{0});
    for (std::uint32_t r = 0; r < c.width && c.ids[row_offset(t, c.width, r)] != kNoExpert; ++r) {
      known_[c.ids[row_offset(t, c.width, r)]] = 1;
    }
  }
  order_.resize(experts_);
  select(t, sets);
  top1_[t] = order_[0];
  row_weights_ = RowWeights::kFamily;
  set_size_ = std::min<std::uint32_t>(first_set_size(*policy_, *gate_),
                                      static_cast<std::uint32_t>(order_.size()));
  set_.assign(order_.begin(), order_.begin() + set_size_);
  tail_begin_ = set_size_;
  replaced_ = waits_ = false;
  choose_set(t);
  if (partial_) {
    for (const std::uint16_t e : set_) {
      unsure_slots_ += (replaced_ ? !known(e) : key_[e] < unsure_) ? 1 : 0;
    }
  }
  rerank(t);
  substitute(t, queue);
  write_row(t);
}

void Pipeline::write_row(std::uint32_t t) {
  SWITCHYARD_ASSERT(set_.size() <= slots_, fmt::format("{} of {} slots", set_.size(), slots_));
  std::uint64_t at = row_offset(t, rows_.width);
  const auto put = [&](std::uint16_t e) {
    rows_.ids[at] = e;
    rows_.logit[at] = row_z_[e];
    rows_.p[at] = row_p_[e];
    rows_.sel[at] = sel_[e];
    ++at;
  };
  for (const std::uint16_t e : set_) {
    put(e);
  }
  std::uint32_t entries = static_cast<std::uint32_t>(set_.size());
  rows_.set_size[t] = static_cast<std::uint16_t>(entries);
  for (std::size_t i = tail_begin_; i < order_.size(); ++i) {
    const std::uint16_t e = order_[i];
    if (masked_[e] == 0 && std::find(set_.begin(), set_.end(), e) == set_.end()) {
      put(e);
      ++entries;
    }
  }
  rows_.usable[t] = static_cast<std::uint16_t>(entries);
  rows_.weights[t] = row_weights_;
  rows_.waits[t] = waits_ ? 1 : 0;
}

double Pipeline::now() const {
  return input_->signals != nullptr ? input_->signals->start : step_->step * policy_->step_time;
}

void Pipeline::end_step(LayerDecision& out) {
  out.truncated_slots += unsure_slots_;
  counts_.balanced = balance_.replaced;
  counts_.unbalanced = balance_.stuck;
  counts_.third = balance_.third;
  counts_.rebalanced = rebalance_.replaced;
  out.sets = counts_;
  if (policy_->soft_balance.on()) {
    // The queues as the step leaves them: what waited, ran and waits again.
    queue_at_end_.assign(out.load.begin(), out.load.end());
    for (std::uint32_t e = 0; e < experts_; ++e) {
      queue_at_end_[e] += out.queued[e];
      for (std::size_t place = e; place < step_->backlog.size(); place += experts_) {
        queue_at_end_[e] += step_->backlog[place];
      }
    }
    state_->longest_queue = *std::max_element(queue_at_end_.begin(), queue_at_end_.end());
  }
  const CandidatesView& c = input_->candidates;
  if (c.width < experts_ && !partial_) {
    // Decided with all logits: a replay from the candidates could not give these slots.
    for (std::uint32_t t = 0; t < out.tokens; ++t) {
      const auto stored = c.ids.subspan(row_offset(t, c.width), c.width);
      const auto has = [&](std::uint16_t e) {
        return e == kNoExpert || std::find(stored.begin(), stored.end(), e) != stored.end();
      };
      for (std::uint32_t j = 0; j < slots_; ++j) {
        const std::uint64_t i = row_offset(t, slots_, j);
        out.truncated_slots += has(out.first[i]) && has(out.chosen[i]) ? 0 : 1;
      }
    }
  }
  const RoutingPolicy& p = *policy_;
  const TemperaturePolicy& tp = p.temperature;
  if (tp.controller != TemperatureController::kOff) {
    for (std::uint32_t t = 0; t < out.tokens; ++t) {
      if (top1_[t] == kNoExpert) {
        continue;
      }
      SequenceState& s = tp.controller == TemperatureController::kAcross
                             ? state_->stream
                             : state_->of(step_->sequence[t]);
      s.run = s.last_top1 == top1_[t] ? s.run + 1 : 1;
      s.last_top1 = top1_[t];
      if (s.run >= tp.run) {
        state_->triggered = true;
      }
    }
  }
  if (p.noise.mode == NoiseMode::kAdaptive) {
    std::uint64_t sum = 0;
    std::uint64_t most = 0;
    for (std::uint32_t e = 0; e < experts_; ++e) {
      state_->noise_taken[e] += std::uint64_t{out.load[e]} + out.queued[e];
      sum += state_->noise_taken[e];
      most = std::max(most, state_->noise_taken[e]);
    }
    if (++state_->noise_steps == kNoiseWindow) {
      if (static_cast<double>(most) > kNoiseShare * static_cast<double>(sum)) {
        state_->noise_std = std::min(kNoiseMost, state_->noise_std + kNoiseGrowth);
      }
      state_->noise_steps = 0;
      std::fill(state_->noise_taken.begin(), state_->noise_taken.end(), std::uint64_t{0});
    }
  }
  if (p.bonus.lambda > 0 || p.window.beta > 0) {
    for (std::uint32_t t = 0; t < out.tokens; ++t) {
      SequenceState& s = state_->of(step_->sequence[t]);
      s.history.resize(row_offset(kWindowLength, slots_), kNoExpert);
      std::copy_n(out.chosen.begin() + static_cast<std::ptrdiff_t>(row_offset(t, slots_)), slots_,
                  s.history.begin() +
                      static_cast<std::ptrdiff_t>(row_offset(s.past % kWindowLength, slots_)));
      ++s.past;
    }
  }
  if (p.load_aware.u == LoadLevel::kQueue) {
    for (std::uint32_t e = 0; e < experts_; ++e) {
      std::uint64_t waiting = out.load[e];
      for (std::size_t place = e; place < step_->backlog.size(); place += experts_) {
        waiting += step_->backlog[place];
      }
      state_->queue_level[e] = out.capacity_sum == 0
                                   ? (waiting > 0 ? 1.0F : 0.0F)
                                   : static_cast<float>(static_cast<double>(waiting) /
                                                        static_cast<double>(out.capacity_sum));
    }
  }
}

}  // namespace switchyard
