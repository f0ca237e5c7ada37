// SPDX-License-Identifier: Apache-2.0
// Checks of the kernels of a whole model against the CPU backend; see checks.hpp. Products may
// differ by rounding: the bound is on the normalised mean square error, sum (got - expected)^2 /
// sum expected^2, per type of the operands.
#pragma once
#include <memory>

#include "engine/backend/backend.hpp"
#include "engine/model/dtype.hpp"
#include "engine/nn/sampling.hpp"
#include "kernels/attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/expert_ffn.hpp"
#include "kernels/grouped_gemm.hpp"
#include "kernels/linear.hpp"
#include "kernels/sampling.hpp"
#include "tests/kernels/checks.hpp"

namespace switchyard::SWITCHYARD_KERNELS {

/// Float32 operands (weights widen exactly): rounding of sums in another order.
inline constexpr double kNmseF32 = 1e-11;
/// Activations and inner values rounded to BF16 (relative error up to 2^-9 each, about 2e-6 squared
/// and averaged).
inline constexpr double kNmseBf16 = 2e-5;

inline Backend& cpu_reference() {
  static const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  return *backend;
}

/// "out: NMSE 3e-3 exceeds 1e-11; out[3] is …", or empty. NaN agrees with NaN.
inline std::string far(const char* name, Output<float>& got, const std::vector<float>& expected,
                       double bound) {
  if (!got.intact()) {
    return std::string("a write outside ") + name;
  }
  double error = 0, size = 0, worst = -1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i];
    const double g = got.data()[i];
    if (std::isnan(e) && std::isnan(g)) {
      continue;
    }
    const double d = std::isfinite(g) && std::isfinite(e) ? (g - e) * (g - e)
                     : same_bits(got.data()[i], expected[i])
                         ? 0
                         : std::numeric_limits<double>::infinity();
    error += d;
    size += std::isfinite(e) ? e * e : 0;
    if (d > worst) {
      worst = d;
      at = i;
    }
  }
  if (error <= bound * size) {
    return {};
  }
  return std::string(name) + ": NMSE " + std::to_string(error / size * 1e9) + "e-9 exceeds " +
         std::to_string(bound * 1e9) + "e-9; " + name + "[" + std::to_string(at) + "] is " +
         std::to_string(got.data()[at]) + ", the CPU has " + std::to_string(expected[at]);
}

/// A weight matrix in memory that begins at a multiple of 16 bytes, as stored and as a view.
struct StoredMatrix {
  StoredMatrix(WeightType as, std::size_t row_count, std::size_t columns, Dice& dice)
      : type(as),
        rows(row_count),
        cols(columns),
        floats(as == WeightType::kF32 ? rows * cols : 0),
        halves(as == WeightType::kF32 ? 0 : rows * cols) {
    for (std::size_t i = 0; i < rows * cols; ++i) {
      const auto v = static_cast<float>(dice.normal());
      if (type == WeightType::kF32) {
        floats[i] = v;
      } else if (type == WeightType::kBf16) {
        halves[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
      } else {
        halves[i] = _cvtss_sh(v, 0);
      }
    }
  }
  [[nodiscard]] const void* data() const {
    return type == WeightType::kF32 ? static_cast<const void*>(floats.data()) : halves.data();
  }
  [[nodiscard]] WeightView view() const { return {data(), type, rows, cols}; }
  WeightType type;
  std::size_t rows, cols;
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;
};

inline gpu::Stored stored(WeightType type) {
  return type == WeightType::kF32    ? gpu::Stored::kF32
         : type == WeightType::kBf16 ? gpu::Stored::kBf16
                                     : gpu::Stored::kF16;
}
inline const char* text_of(WeightType type) {
  return type == WeightType::kF32 ? "f32" : type == WeightType::kBf16 ? "bf16" : "f16";
}
inline std::vector<float> normals(std::size_t count, Dice& dice) {
  std::vector<float> out(count);
  for (float& v : out) {
    v = static_cast<float>(dice.normal());
  }
  return out;
}

// ---------------------------------------------------------------------------------- linear

struct LinearShape {
  std::uint32_t rows, outputs, depth, heads;
  WeightType type;
  bool bias, aligned;
};

inline std::string text_of(const LinearShape& s) {
  return "linear rows=" + std::to_string(s.rows) + " N=" + std::to_string(s.outputs) +
         " K=" + std::to_string(s.depth) + " heads=" + std::to_string(s.heads) + " " +
         text_of(s.type) + (s.bias ? " bias" : "") + (s.aligned ? " aligned" : "");
}

inline std::string check(const LinearShape& s) {
  Dice dice(s.rows * 7 + s.outputs + s.depth);
  std::vector<StoredMatrix> w;
  std::vector<WeightView> views;
  std::vector<const void*> pointers;
  for (std::uint32_t j = 0; j < s.heads; ++j) {
    w.emplace_back(s.type, s.outputs, s.depth, dice);
  }
  for (const StoredMatrix& m : w) {
    views.push_back(m.view());
    pointers.push_back(m.data());
  }
  const std::vector<float> x = normals(row_offset(s.rows, s.heads * s.depth), dice);
  const std::vector<float> bias = normals(s.outputs, dice);
  std::vector<float> expected(row_offset(s.rows, s.heads * s.outputs));
  cpu_reference().linear_heads(x.data(), s.rows, s.depth, views, s.outputs, expected.data());
  for (std::size_t i = 0; s.bias && i < expected.size(); ++i) {
    expected[i] += bias[i % s.outputs];
  }
  return under_schedules(text_of(s), [&]() -> std::string {
    const auto run = [&](std::uint32_t first, std::uint32_t rows, Output<float>& out) {
      LinearParams p;
      p.rows = rows;
      p.outputs = s.outputs;
      p.depth = s.depth;
      p.heads = s.heads;
      p.type = stored(s.type);
      p.w = w[0].data();
      p.w_of = s.heads > 1 ? pointers.data() : nullptr;
      p.x = x.data() + row_offset(first, s.heads * s.depth);
      p.x_stride = std::uint64_t{s.heads} * s.depth;
      p.x_head = s.depth;
      p.out = out.data();
      p.out_stride = std::uint64_t{s.heads} * s.outputs;
      p.out_head = s.outputs;
      p.bias = s.bias ? bias.data() : nullptr;
      p.aligned = s.aligned;
      return launched(launch(p, nullptr));
    };
    Output<float> out(expected.size());
    std::string what = first_of({run(0, s.rows, out), far("out", out, expected, kNmseF32)});
    // The promise of every backend: a row alone has the bits it has among others.
    for (std::uint32_t r = 0; what.empty() && s.rows > 1 && r < s.rows; r += 3) {
      Output<float> alone(row_offset(1, s.heads * s.outputs));
      what = run(r, 1, alone);
      for (std::size_t i = 0; what.empty() && i < alone.size(); ++i) {
        if (!same_bits(alone.data()[i], out.data()[r * alone.size() + i])) {
          what = "row " + std::to_string(r) + " alone differs from itself among others";
        }
      }
    }
    return what;
  });
}

inline std::vector<LinearShape> linear_shapes() {
  std::vector<LinearShape> shapes;
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kF16}) {
    for (const std::uint32_t rows : {0U, 1U, 2U, 3U, 4U, 5U, 8U, 9U}) {
      shapes.push_back({rows, 21, 96, 1, type, rows % 2 == 0, true});
      shapes.push_back({rows, 3, 37, 1, type, rows % 2 == 1, false});
    }
    shapes.push_back({3, 1, 1, 1, type, false, false});
    shapes.push_back({2, 16, 520, 1, type, false, true});
    shapes.push_back({2, 17, 520, 1, type, true, false});
    shapes.push_back({3, 9, 40, 3, type, false, true});
    shapes.push_back({9, 5, 11, 2, type, false, false});
  }
  return shapes;
}

// ------------------------------------------------------------------------------------- moe

struct MoeShape {
  std::uint32_t tokens, slots, experts, hidden, inner;
  WeightType gate_type, down_type;
  enum class Skew : std::uint8_t { kEven, kSame, kEmptySlots } skew;
  bool bias;
  float limit;
  bool aligned;
};

inline std::string text_of(const MoeShape& s) {
  return "moe T=" + std::to_string(s.tokens) + " K=" + std::to_string(s.slots) +
         " E=" + std::to_string(s.experts) + " H=" + std::to_string(s.hidden) +
         " I=" + std::to_string(s.inner) + " " + text_of(s.gate_type) + "/" + text_of(s.down_type) +
         " skew=" + std::to_string(static_cast<int>(s.skew)) + (s.bias ? " bias" : "") +
         (s.limit > 0 ? " limit" : "") + (s.aligned ? " aligned" : "");
}

/// The layer as the CPU holds it and as the kernels take it.
struct MoeLayer {
  explicit MoeLayer(const MoeShape& s, Dice& dice) {
    for (std::uint32_t e = 0; e < s.experts; ++e) {
      for (const auto& [rows, cols, type] :
           {std::tuple{s.inner, s.hidden, s.gate_type}, std::tuple{s.inner, s.hidden, s.gate_type},
            std::tuple{s.hidden, s.inner, s.down_type}, std::tuple{1U, s.inner, WeightType::kF32},
            std::tuple{1U, s.inner, WeightType::kF32},
            std::tuple{1U, s.hidden, WeightType::kF32}}) {
        parts.emplace_back(type, rows, cols, dice);
      }
    }
    for (std::uint32_t e = 0; e < s.experts; ++e) {
      const StoredMatrix* p = &parts[std::size_t{e} * 6];
      ExpertView view{p[0].view(), p[1].view(), p[2].view()};
      const auto bias = [&](const StoredMatrix& m) { return s.bias ? m.floats.data() : nullptr; };
      if (s.bias) {
        view.gate_bias = p[3].view();
        view.up_bias = p[4].view();
        view.down_bias = p[5].view();
      }
      view.limit = s.limit;
      views.push_back(view);
      pointers.push_back(
          {p[0].data(), p[1].data(), p[2].data(), bias(p[3]), bias(p[4]), bias(p[5])});
    }
    const std::size_t assignments = row_offset(s.tokens, s.slots);
    weights = normals(assignments, dice);
    for (std::size_t i = 0; i < assignments; ++i) {
      const std::size_t t = i / s.slots;
      const std::size_t j = i % s.slots;
      const std::size_t e = s.skew == MoeShape::Skew::kSame ? j : (t * 5 + j * 3 + t / 3);
      chosen.push_back(s.skew == MoeShape::Skew::kEmptySlots && (i % 3 == 1 || t == 1)
                           ? kNoExpert
                           : static_cast<std::uint16_t>(e % s.experts));
    }
    x = normals(row_offset(s.tokens, s.hidden), dice);
  }
  std::vector<StoredMatrix> parts;
  std::vector<ExpertView> views;
  std::vector<ExpertPointers> pointers;
  std::vector<std::uint16_t> chosen;
  std::vector<float> weights, x;
};

inline std::string check(const MoeShape& s) {
  Dice dice(s.tokens * 3 + s.hidden + s.inner);
  const MoeLayer layer(s, dice);
  std::vector<float> expected(layer.x.size());
  cpu_reference().moe(layer.x.data(), s.tokens, layer.views, layer.chosen, layer.weights, s.slots,
                      expected.data());
  return under_schedules(text_of(s), [&]() -> std::string {
    const std::size_t n = layer.chosen.size();
    Output<std::uint32_t> offsets(s.experts + 1);
    Output<std::uint32_t> order(n);
    Output<std::uint32_t> place(n);
    ExpertSortParams sort;
    sort.assignments = static_cast<std::uint32_t>(n);
    sort.experts = s.experts;
    sort.chosen = layer.chosen.data();
    sort.offsets = offsets.data();
    sort.order = order.data();
    sort.place = place.data();
    Output<std::uint32_t> sort_space(workspace_bytes(sort) / 4);
    sort.workspace = sort_space.data();
    sort.workspace_size = workspace_bytes(sort);
    Output<float> h(row_offset(static_cast<std::uint32_t>(n), s.inner));
    Output<float> y(row_offset(static_cast<std::uint32_t>(n), s.hidden));
    ExpertFfnParams p;
    p.tokens = s.tokens;
    p.slots = s.slots;
    p.experts = s.experts;
    p.hidden = s.hidden;
    p.inner = s.inner;
    p.gate_type = stored(s.gate_type);
    p.down_type = stored(s.down_type);
    p.limit = s.limit;
    p.weights = layer.pointers.data();
    p.x = layer.x.data();
    p.offsets = offsets.data();
    p.order = order.data();
    p.h = h.data();
    p.y = y.data();
    p.aligned = s.aligned;
    Output<std::uint32_t> space(workspace_bytes(p) / 4);
    p.workspace = space.data();
    p.workspace_size = workspace_bytes(p);
    Output<float> out(expected.size());
    CombineParams combine;
    combine.tokens = s.tokens;
    combine.slots = s.slots;
    combine.hidden = s.hidden;
    combine.y_type = combine.out_type = Element::kF32;
    combine.y = y.data();
    combine.place = place.data();
    combine.weights = layer.weights.data();
    combine.out = out.data();
    return first_of({launched(launch(sort, nullptr)), launched(launch(p, nullptr)),
                     launched(launch(combine, nullptr)), far("out", out, expected, kNmseF32),
                     h.intact() && y.intact() ? "" : "a write outside h or y",
                     space.intact() ? "" : "a write outside the workspace"});
  });
}

inline std::vector<MoeShape> moe_shapes() {
  using Skew = MoeShape::Skew;
  using Type = WeightType;
  std::vector<MoeShape> shapes;
  for (std::uint32_t k = 1; k <= 8; ++k) {
    shapes.push_back({3, k, 8, 24, 16, Type::kBf16, Type::kBf16, Skew::kEven, false, 0, true});
  }
  for (const std::uint32_t tokens : {0U, 1U, 2U, 4U, 5U, 19U}) {
    shapes.push_back({tokens, 2, 8, 40, 24, Type::kBf16, Type::kF16, Skew::kEven, false, 0, true});
    shapes.push_back({tokens, 2, 8, 13, 7, Type::kF32, Type::kBf16, Skew::kSame, false, 0, false});
    shapes.push_back(
        {tokens, 3, 8, 16, 9, Type::kF16, Type::kF32, Skew::kEmptySlots, true, 7, false});
  }
  shapes.push_back({9, 1, 512, 8, 8, Type::kBf16, Type::kBf16, Skew::kEven, false, 0, true});
  shapes.push_back({33, 8, 512, 8, 3, Type::kBf16, Type::kBf16, Skew::kSame, false, 0, true});
  shapes.push_back({2, 1, 1, 32, 8, Type::kBf16, Type::kBf16, Skew::kSame, true, 0, true});
  return shapes;
}

// ------------------------------------------------------------------------------ attention

struct AttentionCase {
  std::uint32_t heads, kv_heads, head_dim, latent, half;
  bool interleaved;
  std::uint32_t window, block;
  bool sinks, slopes;
  float gain;
  /// Rows of each step, per sequence; all at once in a step.
  std::vector<std::vector<std::uint32_t>> steps;
};

inline std::string text_of(const AttentionCase& s) {
  return "attention heads=" + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) +
         " d=" + std::to_string(s.head_dim) + " latent=" + std::to_string(s.latent) +
         " half=" + std::to_string(s.half) + (s.interleaved ? " interleaved" : "") +
         " window=" + std::to_string(s.window) + " block=" + std::to_string(s.block) +
         (s.sinks ? " sinks" : "") + (s.slopes ? " slopes" : "") +
         " sequences=" + std::to_string(s.steps[0].size());
}

inline std::string check(const AttentionCase& s) {
  const std::uint32_t value_dim = s.latent > 0 ? s.latent : s.head_dim;
  return under_schedules(text_of(s), [&]() -> std::string {
    Dice dice(s.head_dim + s.heads);
    Backend& cpu = cpu_reference();
    AttentionShape shape{1, s.heads, s.kv_heads, s.head_dim, s.latent, s.interleaved, {s.window}};
    const auto pool = cpu.make_pool(shape, {s.block, 0});
    const std::size_t sequences = s.steps[0].size();
    std::vector<std::unique_ptr<KvCache>> caches;
    for (std::size_t i = 0; i < sequences; ++i) {
      caches.push_back(pool->make_cache());
    }
    std::vector<float> frequency;
    for (std::uint32_t i = 0; i < s.half; ++i) {
      frequency.push_back(1.0F / static_cast<float>(1 + 3 * i));
    }
    const std::vector<float> sinks = normals(s.heads, dice);
    std::vector<float> slopes;
    for (std::uint32_t j = 0; s.slopes && j < s.heads; ++j) {
      slopes.push_back(0.25F / static_cast<float>(j + 1));
    }
    AttentionRule rule;
    rule.inverse_frequency = frequency;
    rule.rotation_gain = s.gain;
    rule.scale = 0.3F;
    rule.sliding_window = s.window;
    rule.sinks = s.sinks ? WeightView{sinks.data(), WeightType::kF32, 1, s.heads} : WeightView{};
    rule.slopes = slopes;

    // Blocks of the kernel's own cache, all of them from the start, with a layer before this one.
    constexpr std::uint32_t kBlocks = 12;
    const std::size_t strips = s.latent > 0 ? 1 : 2;
    const std::size_t layer = std::size_t{s.kv_heads} * s.block * s.head_dim * strips;
    std::vector<Output<float>> blocks;
    std::vector<float*> table;
    for (std::size_t i = 0; i < sequences * kBlocks; ++i) {
      blocks.emplace_back(2 * layer);
    }
    // Sequence 1's table starts at its second block once the window is past the first.
    for (Output<float>& b : blocks) {
      table.push_back(b.data());
    }
    std::vector<std::uint32_t> length(sequences, 0);
    for (const std::vector<std::uint32_t>& step : s.steps) {
      std::vector<std::uint32_t> position, sequence;
      std::vector<KvCache*> cache_of;
      for (std::uint32_t i = 0; i < sequences; ++i) {
        for (std::uint32_t n = 0; n < step[i]; ++n) {
          position.push_back(length[i] + n);
          sequence.push_back(i);
          cache_of.push_back(caches[i].get());
        }
      }
      const auto rows = static_cast<std::uint32_t>(position.size());
      std::vector<float> q = normals(row_offset(rows, s.heads * s.head_dim), dice);
      std::vector<float> k = normals(row_offset(rows, s.kv_heads * s.head_dim), dice);
      const std::vector<float> v = normals(k.size(), dice);
      Output<float> got_q(q.size());
      std::copy(q.begin(), q.end(), got_q.data());
      const std::vector<float> k_before = k, q_before = q;
      std::vector<float> expected(row_offset(rows, s.heads * value_dim));
      cpu.attention(0, q.data(), k.data(), v.data(), rows, cache_of, position, rule,
                    expected.data());
      for (std::size_t i = 0; i < sequences; ++i) {
        if (step[i] > 0) {
          cpu.advance(*caches[i], step[i]);
        }
      }
      // As the backend passes it: only blocks that the window still sees.
      std::vector<std::uint32_t> first_block;
      std::vector<float*> held(sequences * kBlocks, nullptr);
      for (std::uint32_t i = 0; i < sequences; ++i) {
        const std::uint32_t sees =
            s.window > 0 && length[i] + 1 > s.window ? length[i] + 1 - s.window : 0;
        first_block.push_back(sees / s.block);
        for (std::uint32_t b = first_block[i]; b < kBlocks; ++b) {
          held[i * kBlocks + b - first_block[i]] = table[i * kBlocks + b];
        }
        length[i] += step[i];
      }
      Output<float> out(expected.size());
      Output<float> shared_out(expected.size());
      AttentionParams p;
      p.rows = rows;
      p.heads = s.heads;
      p.kv_heads = s.kv_heads;
      p.head_dim = s.head_dim;
      p.value_dim = value_dim;
      p.latent = s.latent > 0;
      p.interleaved = s.interleaved;
      p.half = s.half;
      p.window = s.window;
      p.block = s.block;
      p.layer = layer;
      p.gain = s.gain;
      p.scale = rule.scale;
      p.frequency = frequency.data();
      p.position = position.data();
      p.sequence = sequence.data();
      p.table = held.data();
      p.table_width = kBlocks;
      p.first_block = first_block.data();
      p.sinks = s.sinks ? sinks.data() : nullptr;
      p.slopes = s.slopes ? slopes.data() : nullptr;
      p.q = got_q.data();
      p.k = k_before.data();
      p.v = v.data();
      p.out = out.data();
      std::string what = first_of({launched(launch(p, nullptr)), difference("q", got_q, q),
                                   far("out", out, expected, kNmseF32)});
      // With a block for each part of a long context: the same bits.
      std::copy(q_before.begin(), q_before.end(), got_q.data());
      p.out = shared_out.data();
      p.longest = rows == 0 ? 0 : *std::max_element(position.begin(), position.end()) + 1;
      Output<float> space(workspace_bytes(p) / sizeof(float));
      p.workspace = space.data();
      p.workspace_size = workspace_bytes(p);
      what = first_of({what, launched(launch(p, nullptr)),
                       space.intact() ? "" : "a write outside the workspace"});
      for (std::size_t i = 0; what.empty() && i < expected.size(); ++i) {
        if (!same_bits(out.data()[i], shared_out.data()[i])) {
          what = "out has other bits when parts are shared out";
        }
      }
      if (!what.empty()) {
        return "at length " + std::to_string(length[0]) + ": " + what;
      }
    }
    const bool intact =
        std::all_of(blocks.begin(), blocks.end(), [](const auto& b) { return b.intact(); });
    return intact ? "" : "a write outside a block of the cache";
  });
}

inline std::vector<AttentionCase> attention_cases() {
  const std::vector<std::vector<std::uint32_t>> decode{{5, 1}, {1, 1}, {1, 0}, {2, 3}};
  const std::vector<std::vector<std::uint32_t>> deep{{70}, {1}};
  std::vector<AttentionCase> cases;
  cases.push_back({4, 4, 16, 0, 8, false, 0, 16, false, false, 1, decode});
  cases.push_back({4, 2, 20, 0, 10, true, 0, 3, false, false, 1.3F, decode});
  cases.push_back({3, 1, 33, 0, 0, false, 0, 4, false, true, 1, decode});
  cases.push_back({4, 2, 8, 0, 4, false, 3, 2, true, false, 1.3465F, decode});
  cases.push_back({3, 1, 40, 32, 4, true, 0, 4, false, false, 1, decode});
  cases.push_back({2, 1, 136, 0, 68, false, 0, 16, true, false, 1, decode});
  cases.push_back({2, 1, 16, 0, 8, false, 0, 16, false, false, 1, deep});
  cases.push_back({2, 2, 8, 0, 4, true, 66, 8, true, false, 1, deep});
  cases.push_back({2, 1, 160, 128, 16, true, 0, 16, false, false, 1, deep});
  cases.push_back({2, 1, 8, 0, 4, false, 0, 16, false, false, 1, {{0, 0}, {1, 0}}});
  // More than two parts; the second sequence has fewer.
  cases.push_back({1, 1, 8, 0, 4, false, 0, 32, true, false, 1, {{260, 3}, {1, 1}}});
  cases.push_back({2, 1, 8, 0, 4, false, 150, 32, false, true, 1, {{170}, {1}}});
  return cases;
}

// ---------------------------------------------------------------------------- elementwise

/// All row operations on rows of `columns`.
struct RowsShape {
  std::uint32_t rows, columns;
};
inline std::string text_of(const RowsShape& s) {
  return "rows " + std::to_string(s.rows) + " x " + std::to_string(s.columns);
}

inline std::string check(const RowsShape& s) {
  Dice dice(s.rows * 11 + s.columns);
  Backend& cpu = cpu_reference();
  const std::size_t n = row_offset(s.rows, s.columns);
  std::vector<float> a = normals(n, dice);
  const std::vector<float> b = normals(n, dice);
  const std::vector<float> bias = normals(s.columns, dice);
  if (n > 2) {
    a[2] = std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<std::uint32_t> index;
  for (std::uint32_t r = 0; r < s.rows; ++r) {
    index.push_back(r * 3 % s.rows);
  }
  struct Expectation {
    RowOperation operation;
    std::vector<float> out;
    float limit = 0;
    double bound = 0;
  };
  const auto made = [&](const auto& body) {
    std::vector<float> out = a;
    body(out);
    return out;
  };
  std::vector<Expectation> all;
  all.push_back({RowOperation::kGather,
                 made([&](auto& o) { cpu.gather(b.data(), index, s.columns, o.data()); })});
  all.push_back({RowOperation::kCopy, b});
  all.push_back({RowOperation::kAdd, made([&](auto& o) { cpu.add(o.data(), b.data(), n); })});
  all.push_back({RowOperation::kAddBias, made([&](auto& o) {
                   cpu.add_bias(o.data(), s.rows, {bias.data(), WeightType::kF32, 1, s.columns});
                 })});
  all.push_back({RowOperation::kClamp, made([&](auto& o) { cpu.clamp(o.data(), n, 0.5F); }), 0.5F});
  all.push_back({RowOperation::kSwiglu,
                 made([&](auto& o) { cpu.swiglu(o.data(), b.data(), n, 0); }), 0, 1e-12});
  all.push_back({RowOperation::kSwiglu,
                 made([&](auto& o) { cpu.swiglu(o.data(), b.data(), n, 0.7F); }), 0.7F, 1e-12});
  all.push_back({RowOperation::kRound, made([&](auto& o) {
                   for (std::size_t i = 0; i < n; ++i) {
                     o[i] = model::bf16_to_float(model::float_to_bf16(b[i]));
                   }
                 })});
  all.push_back({RowOperation::kSigmoid, made([&](auto& o) {
                   for (std::size_t i = 0; i < n; ++i) {
                     o[i] = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(b[i]))));
                   }
                 })});
  std::vector<float> normed(n);
  const WeightView gain{bias.data(), WeightType::kF32, 1, s.columns};
  cpu.rms_norm(b.data(), s.rows, gain, 1e-5F, normed.data());
  const StoredMatrix table(WeightType::kBf16, s.rows, s.columns, dice);
  std::vector<float> embedded(n);
  cpu.embed(table.view(), index, embedded.data());
  return under_schedules(text_of(s), [&]() -> std::string {
    for (const Expectation& e : all) {
      Output<float> out(n);
      std::copy(a.begin(), a.end(), out.data());
      RowParams p;
      p.operation = e.operation;
      p.rows = s.rows;
      p.columns = s.columns;
      p.x = e.operation == RowOperation::kAddBias ? bias.data() : b.data();
      p.x_stride = p.out_stride = s.columns;
      p.index = index.data();
      p.out = out.data();
      p.limit = e.limit;
      const std::string what =
          first_of({launched(launch(p, nullptr)), far("out", out, e.out, e.bound)});
      if (!what.empty()) {
        return "operation " + std::to_string(static_cast<int>(e.operation)) + ": " + what;
      }
    }
    Output<float> out(n);
    RowParams p;
    p.operation = RowOperation::kEmbed;
    p.rows = s.rows;
    p.columns = s.columns;
    p.w = table.data();
    p.type = gpu::Stored::kBf16;
    p.index = index.data();
    p.out = out.data();
    p.out_stride = s.columns;
    RmsNormParams norm;
    norm.rows = s.rows;
    norm.columns = s.columns;
    norm.eps = 1e-5F;
    norm.x = b.data();
    norm.weight = bias.data();
    Output<float> norm_out(n);
    norm.out = norm_out.data();
    return first_of({launched(launch(p, nullptr)), far("embedded", out, embedded, 0),
                     launched(launch(norm, nullptr)), far("normed", norm_out, normed, kNmseF32)});
  });
}

inline std::vector<RowsShape> rows_shapes() {
  return {{0, 5}, {1, 1}, {3, 7}, {2, 32}, {4, 255}, {3, 256}, {2, 257}, {5, 600}};
}

// ------------------------------------------------------------------- experts on tensor cores

struct GroupedShape {
  MoeShape moe;  // BF16 weights
};
inline std::string text_of(const GroupedShape& s) { return "grouped " + text_of(s.moe); }

inline std::string check(const GroupedShape& shape) {
  const MoeShape& s = shape.moe;
  Dice dice(s.tokens * 3 + s.hidden + s.inner);
  const MoeLayer layer(s, dice);
  const std::size_t n = layer.chosen.size();
  std::vector<float> expected(layer.x.size());
  cpu_reference().moe(layer.x.data(), s.tokens, layer.views, layer.chosen, layer.weights, s.slots,
                      expected.data());
  // The sort by its definition; the sort kernel has its own check.
  std::vector<std::uint32_t> offsets{0}, order, place(n, kNoPlace);
  for (std::uint32_t e = 0; e < s.experts; ++e) {
    for (std::uint32_t i = 0; i < n; ++i) {
      if (layer.chosen[i] == e) {
        place[i] = static_cast<std::uint32_t>(order.size());
        order.push_back(i);
      }
    }
    offsets.push_back(static_cast<std::uint32_t>(order.size()));
  }
  order.resize(n + 1);  // never empty
  std::vector<gpu::Bf16> x(layer.x.size() + 8);
  for (std::size_t i = 0; i < layer.x.size(); ++i) {
    gpu::store(&x[i], layer.x[i]);
  }
  return under_schedules(text_of(shape), [&]() -> std::string {
    Output<std::uint16_t> h(n * s.inner);
    Output<float> y(n * s.hidden);
    GroupedGemmParams p;
    p.tokens = s.tokens;
    p.slots = s.slots;
    p.experts = s.experts;
    p.hidden = s.hidden;
    p.inner = s.inner;
    p.limit = s.limit;
    p.weights = layer.pointers.data();
    p.x = x.data();
    p.offsets = offsets.data();
    p.order = order.data();
    p.h = reinterpret_cast<gpu::Bf16*>(h.data());
    p.y = y.data();
    Output<std::uint32_t> space(workspace_bytes(p) / 4);
    p.workspace = space.data();
    p.workspace_size = workspace_bytes(p);
    std::string what = launched(launch(p, nullptr));
    if (!what.empty()) {
      return what;
    }
    Output<float> out(expected.size());
    std::fill_n(out.data(), expected.size(), 0.0F);
    for (std::size_t i = 0; i < n; ++i) {
      if (place[i] != kNoPlace) {
        cpu::axpy(layer.weights[i], y.data() + std::size_t{place[i]} * s.hidden,
                  out.data() + i / s.slots * s.hidden, s.hidden);
      }
    }
    return first_of({far("out", out, expected, kNmseBf16),
                     h.intact() && y.intact() ? "" : "a write outside h or y",
                     space.intact() ? "" : "a write outside the workspace"});
  });
}

inline std::vector<GroupedShape> grouped_shapes() {
  using Skew = MoeShape::Skew;
  const auto bf16 = [](std::uint32_t tokens, std::uint32_t slots, std::uint32_t experts,
                       std::uint32_t hidden, std::uint32_t inner, Skew skew, bool bias,
                       float limit) {
    return GroupedShape{{tokens, slots, experts, hidden, inner, WeightType::kBf16,
                         WeightType::kBf16, skew, bias, limit, true}};
  };
  std::vector<GroupedShape> shapes{bf16(0, 2, 8, 16, 8, Skew::kEven, false, 0),
                                   bf16(1, 1, 1, 8, 8, Skew::kSame, false, 0),
                                   bf16(3, 2, 4, 40, 72, Skew::kEven, false, 0),
                                   bf16(5, 3, 8, 136, 24, Skew::kEmptySlots, true, 7),
                                   bf16(131, 1, 2, 32, 16, Skew::kSame, true, 0)};
  return shapes;
}

// ---------------------------------------------------------------- dense products of many rows

struct DenseShape {
  std::uint32_t rows, outputs, depth, heads;
};
inline std::string text_of(const DenseShape& s) {
  return "dense rows=" + std::to_string(s.rows) + " N=" + std::to_string(s.outputs) +
         " K=" + std::to_string(s.depth) + " heads=" + std::to_string(s.heads);
}

inline std::string check(const DenseShape& s) {
  Dice dice(s.rows * 7 + s.outputs + s.depth);
  std::vector<StoredMatrix> w;
  std::vector<WeightView> views;
  std::vector<const void*> pointers;
  for (std::uint32_t j = 0; j < s.heads; ++j) {
    w.emplace_back(WeightType::kBf16, s.outputs, s.depth, dice);
  }
  for (const StoredMatrix& m : w) {
    views.push_back(m.view());
    pointers.push_back(m.data());
  }
  const std::size_t x_width = std::size_t{s.heads} * s.depth;
  std::vector<float> x = normals(s.rows * x_width, dice);
  std::vector<gpu::Bf16> half(x.size() + 8);
  for (std::size_t i = 0; i < x.size(); ++i) {
    gpu::store(&half[i], x[i]);
    x[i] = gpu::to_float(half[i]);  // the CPU multiplies the same numbers
  }
  const std::size_t out_width = std::size_t{s.heads} * s.outputs;
  std::vector<float> expected(s.rows * out_width);
  cpu_reference().linear_heads(x.data(), s.rows, s.depth, views, s.outputs, expected.data());
  return under_schedules(text_of(s), [&]() -> std::string {
    const auto run = [&](std::uint32_t first, std::uint32_t rows, Output<float>& out) {
      DenseGemmParams p;
      p.rows = rows;
      p.outputs = s.outputs;
      p.depth = s.depth;
      p.heads = s.heads;
      p.w = static_cast<const gpu::Bf16*>(w[0].data());
      p.w_of = s.heads > 1 ? pointers.data() : nullptr;
      p.x = half.data() + first * x_width;
      p.x_stride = x_width;
      p.x_head = s.depth;
      p.out = out.data();
      p.out_stride = out_width;
      p.out_head = s.outputs;
      return launched(launch(p, nullptr));
    };
    Output<float> out(expected.size());
    std::string what = first_of({run(0, s.rows, out), far("out", out, expected, kNmseF32)});
    // Rows elsewhere in a tile have the same bits.
    const std::uint32_t first = s.rows / 3;
    if (what.empty() && first > 0) {
      Output<float> some((s.rows - first) * out_width);
      what = run(first, s.rows - first, some);
      for (std::size_t i = 0; what.empty() && i < some.size(); ++i) {
        if (!same_bits(some.data()[i], out.data()[first * out_width + i])) {
          what = "a row has other bits in another place of its tile";
        }
      }
    }
    return what;
  });
}

inline std::vector<DenseShape> dense_shapes() {
  return {{0, 8, 8, 1},     {1, 1, 8, 1},    {9, 130, 40, 1},
          {130, 20, 16, 1}, {12, 24, 72, 3}, {40, 129, 136, 1}};
}

// ------------------------------------------------------------------------ gate and ranking

struct GateShape {
  RouterShape router;
  std::uint32_t depth;
  WeightType type;
  bool linear_bias, aligned;
};
inline std::string text_of(const GateShape& s) {
  return "gate H=" + std::to_string(s.depth) + " " + text_of(s.type) + " " + text_of(s.router);
}

inline std::string check(const GateShape& s) {
  const std::uint32_t experts = s.router.gate.experts;
  Dice dice(s.depth + experts);
  const StoredMatrix w(s.type, experts, s.depth, dice);
  const std::vector<float> x = normals(row_offset(s.router.tokens, s.depth), dice);
  const std::vector<float> linear_bias = normals(experts, dice);
  const std::vector<float> bias = make_bias(s.router.bias, experts);
  return under_schedules(text_of(s), [&]() -> std::string {
    const std::size_t n = row_offset(s.router.tokens, s.router.width);
    Output<float> logits(row_offset(s.router.tokens, experts));
    Output<std::uint16_t> ids(n);
    Output<float> logit(n);
    Output<float> lse(s.router.tokens);
    Output<std::uint8_t> nan_row(s.router.tokens);
    GateRouterParams p;
    p.router = {s.router.gate,
                s.router.tokens,
                s.router.width,
                nullptr,
                s.router.bias ? bias.data() : nullptr,
                ids.data(),
                logit.data(),
                lse.data(),
                nan_row.data()};
    p.depth = s.depth;
    p.x = x.data();
    p.w = w.data();
    p.type = stored(s.type);
    p.linear_bias = s.linear_bias ? linear_bias.data() : nullptr;
    p.logits = logits.data();
    p.aligned = s.aligned;
    const std::string what = launched(launch(p, nullptr));
    if (!what.empty()) {
      return what;
    }
    // The ranking of exactly these logits, and the logits themselves.
    const std::vector<float> made(logits.data(), logits.data() + logits.size());
    std::vector<float> exact(made.size());
    cpu_reference().linear(x.data(), s.router.tokens, w.view(), exact.data());
    for (std::size_t i = 0; s.linear_bias && i < exact.size(); ++i) {
      exact[i] += linear_bias[i % experts];
    }
    Candidates expected;
    RankWorkspace scratch;
    rank_candidates(s.router.gate, made, bias, s.router.width, scratch, expected);
    return first_of({far("logits", logits, exact, kNmseF32), difference("ids", ids, expected.ids),
                     difference("logit", logit, expected.logit),
                     difference("lse", lse, expected.lse)});
  });
}

inline std::vector<GateShape> gate_shapes() {
  std::vector<GateShape> shapes;
  std::uint32_t n = 0;
  for (const std::uint32_t experts : {1U, 8U, 60U, 128U, 160U, 512U}) {
    for (const GateSpec& gate : router_gates(experts, std::min(experts, 4U))) {
      const std::uint32_t tokens = n % 5 == 0 ? 0 : n % 5;
      const auto type = std::array{WeightType::kBf16, WeightType::kF32, WeightType::kF16}[n % 3];
      const bool aligned = n % 2 == 0;
      shapes.push_back(
          {{gate, tokens, std::min(experts, gate.top_k + 2), n % 3 == 1, Logits::kRandom},
           aligned ? 48U : 19U,
           type,
           n % 4 == 1,
           aligned});
      ++n;
    }
  }
  return shapes;
}

// ------------------------------------------------------------------------------- sampling

struct SamplingShape {
  std::uint32_t rows, vocab;
  double temperature, top_p;
  std::uint32_t top_k;
  Logits kind;
};
inline std::string text_of(const SamplingShape& s) {
  return "sampling rows=" + std::to_string(s.rows) + " V=" + std::to_string(s.vocab) +
         " temperature=" + std::to_string(s.temperature) + " top_p=" + std::to_string(s.top_p) +
         " top_k=" + std::to_string(s.top_k) +
         " logits=" + std::to_string(static_cast<int>(s.kind));
}

inline std::string check(const SamplingShape& s) {
  const std::vector<float> logits = make_logits(s.kind, s.rows, s.vocab, 17 + s.vocab);
  std::vector<std::uint32_t> sequence, position, expected;
  std::vector<std::uint8_t> expected_nan;
  const SamplingOptions options{s.temperature, s.top_p, 9, s.top_k};
  for (std::uint32_t r = 0; r < s.rows; ++r) {
    sequence.push_back(r / 2);
    position.push_back(40 + r);
    expected.push_back(sample(std::span(logits).subspan(row_offset(r, s.vocab), s.vocab), options,
                              sequence[r], position[r]));
    const auto row = std::span(logits).subspan(row_offset(r, s.vocab), s.vocab);
    expected_nan.push_back(std::any_of(row.begin(), row.end(), [](float z) { return z != z; }));
  }
  return under_schedules(text_of(s), [&]() -> std::string {
    Output<std::uint32_t> token(s.rows);
    Output<std::uint8_t> nan_row(s.rows);
    SamplingParams p;
    p.nan_row = nan_row.data();
    p.rows = s.rows;
    p.vocab = s.vocab;
    p.temperature = s.temperature;
    p.top_p = s.top_p;
    p.top_k = s.top_k;
    p.seed = options.seed;
    p.logits = logits.data();
    p.sequence = sequence.data();
    p.position = position.data();
    p.token = token.data();
    Output<double> space(workspace_bytes(p) / sizeof(double));
    p.workspace = space.data();
    p.workspace_size = workspace_bytes(p);
    return first_of({launched(launch(p, nullptr)), difference("token", token, expected),
                     difference("nan_row", nan_row, expected_nan),
                     space.intact() ? "" : "a write outside the workspace"});
  });
}

inline std::vector<SamplingShape> sampling_shapes() {
  std::vector<SamplingShape> shapes{{0, 5, 1, 1, 0, Logits::kRandom},
                                    {1, 1, 1, 0.5, 1, Logits::kRandom},
                                    {1, 700, 0.8, 0.9, 40, Logits::kRandom}};
  for (const Logits kind : kLogits) {
    shapes.push_back({3, 65, 0, 1, 0, kind});
    shapes.push_back({3, 33, 1.5, 1, 0, kind});
    shapes.push_back({3, 40, 0.7, 0.6, 0, kind});
    shapes.push_back({2, 40, 1, 0.8, 5, kind});
  }
  return shapes;
}

inline std::string check_grouped() { return check_all(grouped_shapes()); }
inline std::string check_dense() { return check_all(dense_shapes()); }
inline std::string check_gate() { return check_all(gate_shapes()); }
inline std::string check_sampling() { return check_all(sampling_shapes()); }
inline std::string check_linear() { return check_all(linear_shapes()); }
inline std::string check_moe() { return check_all(moe_shapes()); }
inline std::string check_attention() { return check_all(attention_cases()); }
inline std::string check_rows() { return check_all(rows_shapes()); }

}  // namespace switchyard::SWITCHYARD_KERNELS
