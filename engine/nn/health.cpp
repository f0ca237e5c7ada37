// SPDX-License-Identifier: Apache-2.0
#include "engine/nn/health.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/backend/packed_weights.hpp"
#include "engine/base/crc32c.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard {
namespace {

template <class T>
T parse_whole(std::string_view text, const std::string& where, const char* what) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw InputError(where, fmt::format("{} \"{}\" is not a whole number", what, text),
                     "write TENSOR:VALUE:BIT@STEP, e.g. layers.1.experts.3.gate:17:14@2");
  }
  return value;
}

/// What is read again together: "layers.1.experts.3." for a tensor of that expert, else its name.
std::string unit_of(const std::string& tensor) {
  const std::size_t at = tensor.find(".experts.");
  return at == std::string::npos ? tensor : tensor.substr(0, tensor.rfind('.') + 1);
}

bool in_unit(const std::string& tensor, const std::string& unit) {
  return unit.ends_with('.') ? tensor.starts_with(unit) : tensor == unit;
}

/// The tensor's bytes, of a packed one its values in float32; `view` points to them afterwards.
std::vector<std::byte> own_copy(WeightView& view) {
  const WeightType type = is_packed(view) ? WeightType::kF32 : view.type;
  std::vector<std::byte> out(view.rows * view.cols * weight_bytes(type));
  if (is_packed(view)) {
    widen_rows(view, 0, view.rows, reinterpret_cast<float*>(out.data()));
  } else {
    std::memcpy(out.data(), view.data, out.size());
  }
  view = {out.data(), type, view.rows, view.cols};
  return out;
}

}  // namespace

BitFlip parse_bit_flip(std::string_view text, const std::string& where) {
  const std::size_t first = text.find(':');
  const std::size_t second = first == std::string_view::npos ? first : text.find(':', first + 1);
  const std::size_t at = second == std::string_view::npos ? second : text.find('@', second + 1);
  if (at == std::string_view::npos) {
    throw InputError(where, fmt::format("\"{}\" is no TENSOR:VALUE:BIT@STEP", text),
                     "e.g. layers.1.experts.3.gate:17:14@2");
  }
  BitFlip out;
  out.tensor = std::string(text.substr(0, first));
  out.element =
      parse_whole<std::uint64_t>(text.substr(first + 1, second - first - 1), where, "value");
  out.bit = parse_whole<unsigned>(text.substr(second + 1, at - second - 1), where, "bit");
  out.step = parse_whole<std::uint32_t>(text.substr(at + 1), where, "step");
  return out;
}

WeightState state_of(const WeightView& view, bool norm, bool crc) {
  WeightState out;
  // Some rows at a time; packed rows are widened once for both.
  const std::size_t step = std::max<std::size_t>(1, 4096 / std::max<std::size_t>(view.cols, 1));
  const bool packed = is_packed(view);
  std::vector<float> wide(step * view.cols);
  double sum = 0;
  for (std::size_t first = 0; first < view.rows; first += step) {
    const std::size_t last = std::min(view.rows, first + step);
    const std::span<float> values(wide.data(), (last - first) * view.cols);
    if (norm || packed) {
      widen_rows(view, first, last, values.data());
    }
    if (norm) {
      for (const float w : values) {
        sum += static_cast<double>(w) * w;
      }
    }
    if (crc && packed) {
      out.crc = crc32c(std::as_bytes(values), out.crc);
    }
  }
  if (crc && !packed) {
    out.crc = crc32c({static_cast<const std::byte*>(view.data),
                      view.rows * view.cols * weight_bytes(view.type)});
  }
  out.finite = std::isfinite(sum);  // squares of floats do not overflow a double
  out.norm = std::sqrt(sum);
  return out;
}

unsigned flippable_bits(const WeightView& view) {
  return is_packed(view) ? 32 : static_cast<unsigned>(8 * weight_bytes(view.type));
}

std::vector<std::byte> flip_bit(WeightView& view, std::uint64_t element, unsigned bit) {
  std::vector<std::byte> out = own_copy(view);
  out[element * weight_bytes(view.type) + bit / 8] ^= std::byte{1} << (bit % 8);
  return out;
}

HealthMonitor::HealthMonitor(Engine& engine, const HealthOptions& options)
    : engine_(engine), options_(options) {
  if (options.every == 0) {
    throw InputError("--health", "every = 0. Violated: every >= 1");
  }
  if (!options.norms && !options.crc) {
    throw InputError("--health", "neither norms nor CRCs would be compared");
  }
  if (engine.checkpoint() == nullptr) {
    throw InputError("--health", "unsupported: the model was not loaded from a checkpoint");
  }
  if (engine.grid().ranks() > 1) {
    throw InputError("--health",
                     "unsupported over several ranks: a rank holds its own experts only, and what "
                     "it finds and repairs is not told to the others",
                     "run it in one process");
  }
  for_each_named_view(engine.weights_for_repair(), engine.config().tie_word_embeddings,
                      [&](const std::string& name, WeightView& view) {
                        noted_[name] = {&view, state_of(view)};
                      });
  report_.tensors = noted_.size();
}

void HealthMonitor::inject(const BitFlip& flip) {
  const auto it = noted_.find(flip.tensor);
  if (it == noted_.end()) {
    std::vector<std::string> names;
    for (const auto& [name, noted] : noted_) {
      names.push_back(name);
    }
    throw InputError("--flip", fmt::format("the model has no tensor \"{}\"", flip.tensor),
                     suggest_name(flip.tensor, names));
  }
  const WeightView& view = *it->second.view;
  if (flip.element >= view.rows * view.cols || flip.bit >= flippable_bits(view)) {
    throw InputError(
        "--flip", fmt::format("value {}, bit {}: {} has {} values of {} bits", flip.element,
                              flip.bit, flip.tensor, view.rows * view.cols, flippable_bits(view)));
  }
  flips_.push_back(flip);
}

void HealthMonitor::before_step(std::uint32_t step) {
  for (const BitFlip& flip : flips_) {
    if (flip.step != step) {
      continue;
    }
    WeightView& view = *noted_.at(flip.tensor).view;
    copies_[flip.tensor] = flip_bit(view, flip.element, flip.bit);
    if (flip.tensor == "embedding" && engine_.config().tie_word_embeddings) {
      engine_.weights_for_repair().head = view;
    }
    std::erase(damaged_, flip.tensor);
    if (state_of(view, false).crc != noted_.at(flip.tensor).state.crc) {
      damaged_.push_back(flip.tensor);  // unless the flip undoes another
    }
    ++report_.flips;
    report_.events.push_back(fmt::format("step {}: bit {} of value {} of {} flipped", step,
                                         flip.bit, flip.element, flip.tensor));
  }
  std::erase_if(flips_, [&](const BitFlip& flip) { return flip.step == step; });
  if (step % options_.every == 0) {
    (void)check(step);
  }
}

const StepResult& HealthMonitor::step(Session& session, std::span<const SequenceTokens> work,
                                      Phase phase, std::uint32_t step) {
  before_step(step);
  const StepResult& r = session.step(work, phase);
  if (!after_step(r)) {
    return r;
  }
  ++report_.redone;
  report_.events.push_back(fmt::format("step {}: run again from its sequences' tokens", step));
  const StepResult& again = session.redo(work, phase);
  (void)after_step(again);
  return again;
}

bool HealthMonitor::after_step(const StepResult& result) {
  report_.damaged_steps += damaged_.empty() ? 0 : 1;
  const auto not_finite = [](float z) { return !std::isfinite(z); };
  const bool nan =
      std::any_of(result.router_logits.begin(), result.router_logits.end(), not_finite) ||
      std::any_of(result.logits.begin(), result.logits.end(), not_finite);
  const bool large = std::any_of(result.router_logits.begin(), result.router_logits.end(),
                                 [&](float z) { return std::abs(z) > options_.logit_limit; });
  report_.nan_alarms += nan ? 1 : 0;
  report_.router_alarms += large ? 1 : 0;
  if (nan || large) {
    report_.events.push_back(
        fmt::format("step {}: {}", result.step,
                    nan ? "a logit is not finite"
                        : fmt::format("a router logit is beyond {}", options_.logit_limit)));
    return check(result.step) > 0;
  }
  return false;
}

std::size_t HealthMonitor::check(std::uint32_t step) {
  ++report_.checks;
  std::vector<std::string> units;
  for (const auto& [name, noted] : noted_) {
    const WeightState& then = noted.state;
    const WeightState now = state_of(*noted.view, options_.norms, options_.crc);
    bool bad = false;
    // What was NaN when it was loaded is the checkpoint's own; only the CRC can watch it.
    const bool moved = std::abs(now.norm - then.norm) > options_.norm_tolerance * then.norm;
    if (options_.norms && then.finite && (!now.finite || moved)) {
      bad = true;
      ++(now.finite ? report_.norm : report_.not_finite);
      report_.events.push_back(
          now.finite ? fmt::format("step {}: the norm of {} is {:.6g}, was {:.6g}", step, name,
                                   now.norm, then.norm)
                     : fmt::format("step {}: {} holds a NaN or infinity", step, name));
    }
    if (options_.crc && now.crc != then.crc) {
      bad = true;
      ++report_.crc;
      report_.events.push_back(fmt::format("step {}: the CRC-32C of {} is {:08x}, was {:08x}", step,
                                           name, now.crc, then.crc));
    }
    const std::string unit = unit_of(name);
    if (bad && std::find(units.begin(), units.end(), unit) == units.end()) {
      units.push_back(unit);
    }
  }
  if (!units.empty()) {
    reload(units, step);
  }
  return units.size();
}

void HealthMonitor::reload(std::span<const std::string> units, std::uint32_t step) {
  Engine::Reread fresh = engine_.read_again();
  const bool tied = engine_.config().tie_word_embeddings;
  for_each_named_view(fresh.weights, tied, [&](const std::string& name, WeightView& view) {
    if (std::none_of(units.begin(), units.end(),
                     [&](const std::string& unit) { return in_unit(name, unit); })) {
      return;
    }
    const Noted& noted = noted_.at(name);
    if (state_of(view).crc != noted.state.crc) {
      throw InputError(
          engine_.checkpoint()->path().string(),
          fmt::format("{} is damaged, and the file holds other bytes than were loaded", name),
          "the checkpoint has changed; start again");
    }
    std::vector<std::byte> copy = own_copy(view);
    copies_[name] = std::move(copy);
    *noted.view = view;
    if (name == "embedding" && tied) {
      engine_.weights_for_repair().head = view;
    }
    std::erase(damaged_, name);
  });
  for (const std::string& unit : units) {
    ++report_.reloads;
    report_.events.push_back(
        fmt::format("step {}: {} read again from the checkpoint", step,
                    unit.ends_with('.') ? unit.substr(0, unit.size() - 1) : unit));
  }
}

}  // namespace switchyard
