// SPDX-License-Identifier: Apache-2.0
// The CPU backend's arithmetic against the order of summation written down in cpu_kernels.hpp
// (bit for bit), against double precision (by normalised error), and for what it promises: a row's
// bits depend on the row alone.
#include "engine/backend/cpu_kernels.hpp"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/backend/backend.hpp"
#include "engine/base/random.hpp"

namespace switchyard {
namespace {

std::vector<float> random_floats(std::size_t n, std::uint32_t stream, double scale = 1.0) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] =
        static_cast<float>(scale * random_normal(2080, random_purpose("kernel test"),
                                                 {stream, 0, static_cast<std::uint32_t>(i), 0}));
  }
  return out;
}

std::uint16_t to_bf16(float v) {
  std::uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
float from_bf16(std::uint16_t v) {
  const std::uint32_t bits = static_cast<std::uint32_t>(v) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

/// The documented order, in scalar code.
float documented_dot(const float* a, const float* b, std::size_t n) {
  std::array<float, 16> s{};
  for (std::size_t k = 0; k < n; ++k) {
    s[k % 16] = std::fma(a[k], b[k], s[k % 16]);
  }
  std::array<float, 8> u{};
  for (std::size_t i = 0; i < 8; ++i) {
    u[i] = s[i] + s[i + 8];
  }
  std::array<float, 4> v{};
  for (std::size_t i = 0; i < 4; ++i) {
    v[i] = u[i] + u[i + 4];
  }
  return (v[0] + v[2]) + (v[1] + v[3]);
}

/// Weights of one type and the floats they widen to.
struct Stored {
  std::vector<float> wide;
  std::vector<std::uint16_t> half;
  WeightType type;
  [[nodiscard]] const void* data() const {
    return type == WeightType::kF32 ? static_cast<const void*>(wide.data()) : half.data();
  }
};
Stored random_weights(std::size_t n, std::uint32_t stream, WeightType type) {
  Stored out{random_floats(n, stream), std::vector<std::uint16_t>(n), type};
  for (std::size_t i = 0; i < n; ++i) {
    if (type == WeightType::kBf16) {
      out.half[i] = to_bf16(out.wide[i]);
      out.wide[i] = from_bf16(out.half[i]);
    } else if (type == WeightType::kF16) {
      const auto h = Eigen::half(out.wide[i]);
      out.half[i] = h.x;
      out.wide[i] = static_cast<float>(h);
    }
  }
  return out;
}

TEST(Dot, FollowsTheDocumentedOrderForEveryLengthOnEveryPath) {
  const auto a = random_floats(300, 1);
  const auto b = random_floats(300, 2);
  for (const cpu::Path* path : cpu::paths()) {
    for (std::size_t n = 0; n <= 300; ++n) {
      EXPECT_EQ(path->dot(a.data(), b.data(), n), documented_dot(a.data(), b.data(), n))
          << path->name << ' ' << n;
    }
  }
}

constexpr std::array kTypes{WeightType::kF32, WeightType::kBf16, WeightType::kF16};

/// One product on every path, in rows of a wider matrix, against the documented order.
void expect_documented_bits(std::size_t depth, std::size_t outputs, std::size_t rows,
                            WeightType type, std::uint32_t stream) {
  const std::size_t ldx = depth + 3;
  const std::size_t ldo = outputs + 5;
  const auto x = random_floats(rows * ldx, stream);
  const Stored w = random_weights(outputs * depth, stream + 1, type);
  for (const cpu::Path* path : cpu::paths()) {
    std::vector<float> out(rows * ldo, 99);
    cpu::multiply(*path, {x.data(), ldx, rows, w.data(), type, depth, outputs, out.data(), ldo});
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t n = 0; n < outputs; ++n) {
        ASSERT_EQ(out[r * ldo + n],
                  documented_dot(x.data() + r * ldx, w.wide.data() + n * depth, depth))
            << path->name << " depth " << depth << " outputs " << outputs << " rows " << rows
            << " type " << static_cast<int>(type) << " at " << r << ',' << n;
      }
      for (std::size_t n = outputs; n < ldo; ++n) {
        ASSERT_EQ(out[r * ldo + n], 99) << "written beyond the outputs";
      }
    }
  }
}

TEST(Multiply, HasTheDocumentedBitsForEveryShapeWeightTypeAndPath) {
  std::uint32_t stream = 10;
  for (const std::size_t depth : {1U, 7U, 15U, 16U, 17U, 32U, 61U, 130U}) {
    for (const std::size_t outputs : {1U, 2U, 3U, 4U, 6U, 7U, 13U, 33U}) {
      for (const std::size_t rows : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 18U}) {
        for (const WeightType type : kTypes) {
          expect_documented_bits(depth, outputs, rows, type, stream += 2);
        }
      }
    }
  }
}

TEST(Multiply, HasTheDocumentedBitsBeyondEveryBlockSize) {
  // Rows of 2, 4 and 8 KiB choose other tiles; 1024 inputs and 64 rows are the blocks of many rows.
  std::uint32_t stream = 10000;
  for (const WeightType type : kTypes) {
    for (const std::size_t depth : {1000U, 1030U, 2048U, 2051U, 4200U}) {
      expect_documented_bits(depth, 5, 1, type, stream += 2);
      expect_documented_bits(depth, 5, 4, type, stream += 2);
    }
    expect_documented_bits(1024, 7, 66, type, stream += 2);
    expect_documented_bits(2090, 7, 67, type, stream += 2);
  }
}

TEST(Linear, HasTheDocumentedBitsForAnyThreadsBeyondOneUnitOfWork) {
  const std::size_t depth = 40;
  const std::size_t outputs = 250;
  for (const std::size_t rows : {1U, 5U, 60U, 520U}) {
    const auto x = random_floats(rows * depth, 21000);
    const Stored w = random_weights(outputs * depth, 21001, WeightType::kBf16);
    for (const unsigned threads : {1U, 2U, 3U}) {
      std::vector<float> out(rows * outputs);
      make_cpu_backend(threads)->linear(x.data(), rows, {w.data(), w.type, outputs, depth},
                                        out.data());
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t n = 0; n < outputs; ++n) {
          ASSERT_EQ(out[r * outputs + n],
                    documented_dot(x.data() + r * depth, w.wide.data() + n * depth, depth))
              << rows << " rows, " << threads << " threads, at " << r << ',' << n;
        }
      }
    }
  }
}

TEST(Multiply, KeepsNonFiniteRowsApart) {
  // Padding must not turn an infinity of one row, or beyond the depth, into a NaN of another.
  const std::size_t depth = 21;
  const std::size_t rows = 11;
  auto x = random_floats(rows * 24, 22000);
  for (std::size_t r = 0; r < rows; ++r) {
    x[r * 24 + 21] = x[r * 24 + 22] = INFINITY;  // beyond the depth
  }
  x[4 * 24 + 3] = INFINITY;
  const auto w = random_floats(9 * depth, 22001);
  for (const cpu::Path* path : cpu::paths()) {
    for (const std::size_t count : {std::size_t{5}, rows}) {
      std::vector<float> out(count * 9);
      cpu::multiply(*path,
                    {x.data(), 24, count, w.data(), WeightType::kF32, depth, 9, out.data(), 9});
      for (std::size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(std::isfinite(out[i]), i / 9 != 4) << path->name << ' ' << i;
      }
    }
  }
}

TEST(Linear, AgreesWithDoublePrecision) {
  const std::size_t rows = 33;
  const std::size_t depth = 1024;
  const std::size_t outputs = 96;
  const auto x = random_floats(rows * depth, 5);
  const auto w = random_floats(outputs * depth, 6);
  std::vector<float> out(rows * outputs);
  make_cpu_backend(2)->linear(x.data(), rows, {w.data(), WeightType::kF32, outputs, depth},
                              out.data());
  using Matrix = Eigen::Matrix<float, -1, -1, Eigen::RowMajor>;
  const Eigen::MatrixXd expected =
      Eigen::Map<const Matrix>(x.data(), rows, depth).cast<double>() *
      Eigen::Map<const Matrix>(w.data(), outputs, depth).cast<double>().transpose();
  const Eigen::MatrixXd error =
      Eigen::Map<const Matrix>(out.data(), rows, outputs).cast<double>() - expected;
  EXPECT_LT(error.squaredNorm() / expected.squaredNorm(), 1e-12);
}

struct Experts {
  std::vector<std::vector<float>> store;
  std::vector<ExpertView> views;
};
Experts random_experts(std::size_t count, std::size_t hidden, std::size_t inner) {
  Experts out;
  for (std::size_t e = 0; e < count; ++e) {
    for (int m = 0; m < 3; ++m) {
      out.store.push_back(
          random_floats(hidden * inner, static_cast<std::uint32_t>(1000 + 3 * e) + m, 0.2));
    }
  }
  for (std::size_t e = 0; e < count; ++e) {
    out.views.push_back({{out.store[3 * e].data(), WeightType::kF32, inner, hidden},
                         {out.store[3 * e + 1].data(), WeightType::kF32, inner, hidden},
                         {out.store[3 * e + 2].data(), WeightType::kF32, hidden, inner}});
  }
  return out;
}

/// Straightforward double-precision loops over one row.
std::vector<double> naive_expert(const ExpertView& e, const float* x) {
  const auto at = [](const WeightView& w, std::size_t i, std::size_t j) {
    return static_cast<double>(static_cast<const float*>(w.data)[i * w.cols + j]);
  };
  std::vector<double> inner(e.gate.rows);
  for (std::size_t i = 0; i < e.gate.rows; ++i) {
    double g = 0;
    double u = 0;
    for (std::size_t k = 0; k < e.gate.cols; ++k) {
      g += at(e.gate, i, k) * x[k];
      u += at(e.up, i, k) * x[k];
    }
    inner[i] = g / (1 + std::exp(-g)) * u;
  }
  std::vector<double> out(e.down.rows);
  for (std::size_t i = 0; i < e.down.rows; ++i) {
    for (std::size_t k = 0; k < e.down.cols; ++k) {
      out[i] += at(e.down, i, k) * inner[k];
    }
  }
  return out;
}

TEST(IssueRow11, ExpertsWithoutTokensAndEmptySlotsCountAsNothing) {
  const std::size_t hidden = 20;
  const std::size_t inner = 37;
  const std::size_t rows = 6;
  const Experts experts = random_experts(8, hidden, inner);
  const auto x = random_floats(rows * hidden, 7);
  // All work on experts 3 and 5, the last expert empty (engines.md section 5 row 11), an empty slot
  // (row 3), and a row with nothing at all.
  const std::vector<std::uint16_t> chosen{3, 5, 5, 3, 3, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 5, 3, 5};
  const std::vector<float> weights{.6F, .4F, .9F, .1F, .7F, .3F, .5F, .5F, .2F, .8F, .5F, .5F};
  std::vector<float> out(rows * hidden, 99);
  make_cpu_backend(1)->moe(x.data(), rows, experts.views, chosen, weights, 2, out.data());
  for (std::size_t r = 0; r < rows; ++r) {
    std::vector<double> expected(hidden);
    for (std::size_t j = 0; j < 2; ++j) {
      if (chosen[2 * r + j] != 0xFFFF) {
        const auto y = naive_expert(experts.views[chosen[2 * r + j]], x.data() + r * hidden);
        for (std::size_t i = 0; i < hidden; ++i) {
          expected[i] += static_cast<double>(weights[2 * r + j]) * y[i];
        }
      }
    }
    for (std::size_t i = 0; i < hidden; ++i) {
      EXPECT_NEAR(out[r * hidden + i], expected[i], 1e-5) << r << ',' << i;
      if (r == 3) {
        EXPECT_EQ(out[r * hidden + i], 0.0F);
      }
    }
  }
}

TEST(IssueRow11, NoRowsAtAllAreFine) {
  const Experts experts = random_experts(2, 8, 8);
  make_cpu_backend(1)->moe(nullptr, 0, experts.views, {}, {}, 2, nullptr);
}

TEST(IssueRow22, ARowHasTheSameBitsAloneInAnyBatchAndForAnyThreads) {
  const std::size_t hidden = 64;
  const std::size_t inner = 96;
  const std::size_t rows = 40;
  const Experts experts = random_experts(4, hidden, inner);
  const auto x = random_floats(rows * hidden, 8);
  std::vector<std::uint16_t> chosen;
  std::vector<float> weights;
  for (std::size_t r = 0; r < rows; ++r) {
    chosen.push_back(static_cast<std::uint16_t>(r * r % 4));
    chosen.push_back(static_cast<std::uint16_t>((r * r + 1 + r % 3) % 4));
    weights.push_back(0.75F);
    weights.push_back(0.25F);
  }
  std::vector<float> all(rows * hidden);
  make_cpu_backend(1)->moe(x.data(), rows, experts.views, chosen, weights, 2, all.data());
  std::vector<float> threaded(rows * hidden);
  const auto three = make_cpu_backend(3);
  for (int repeat = 0; repeat < 100; ++repeat) {  // engines.md section 5 row 22
    three->moe(x.data(), rows, experts.views, chosen, weights, 2, threaded.data());
    ASSERT_EQ(all, threaded);
  }
  const auto single = make_cpu_backend(1);
  for (std::size_t r = 0; r < rows; ++r) {
    std::vector<float> alone(hidden);
    single->moe(x.data() + r * hidden, 1, experts.views, std::span(chosen).subspan(2 * r, 2),
                std::span(weights).subspan(2 * r, 2), 2, alone.data());
    for (std::size_t i = 0; i < hidden; ++i) {
      ASSERT_EQ(alone[i], all[r * hidden + i]) << r << ',' << i;
    }
  }
}

TEST(RmsNorm, MatchesItsFormula) {
  const auto x = random_floats(2 * 50, 9);
  const auto weight = random_floats(50, 11);
  std::vector<float> out(100);
  make_cpu_backend(1)->rms_norm(x.data(), 2, {weight.data(), WeightType::kF32, 1, 50}, 1e-5F,
                                out.data());
  for (std::size_t r = 0; r < 2; ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < 50; ++i) {
      sum += static_cast<double>(x[r * 50 + i]) * x[r * 50 + i];
    }
    for (std::size_t i = 0; i < 50; ++i) {
      EXPECT_NEAR(out[r * 50 + i], weight[i] * x[r * 50 + i] / std::sqrt(sum / 50 + 1e-5), 1e-5);
    }
  }
}

TEST(Rope, TurnsPairsAcrossTheHalvesAndKeepsTheirLength) {
  // Pairs (1, 3) by 3 rad and (2, 4) by 1.5 rad.
  const std::vector<float> cosine{std::cos(3.0F), std::cos(1.5F)};
  const std::vector<float> sine{std::sin(3.0F), std::sin(1.5F)};
  std::vector<float> head{1, 2, 3, 4};
  cpu::rope(head.data(), 4, cosine.data(), sine.data());
  EXPECT_NEAR(head[0], std::cos(3.0) * 1 - std::sin(3.0) * 3, 1e-6);
  EXPECT_NEAR(head[2], std::cos(3.0) * 3 + std::sin(3.0) * 1, 1e-6);
  EXPECT_NEAR(head[1], std::cos(1.5) * 2 - std::sin(1.5) * 4, 1e-6);
  EXPECT_NEAR(head[3], std::cos(1.5) * 4 + std::sin(1.5) * 2, 1e-6);
}

TEST(Exponential, IsWithinTwoUnitsInTheLastPlace) {
  std::vector<float> x;
  for (double v = -87.3; v <= 88.3; v += 0.0137) {
    x.push_back(static_cast<float>(v));
  }
  std::vector<float> y = x;
  cpu::exponential(y.data(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(y[i] / exact, 1.0, 2.4e-7) << x[i];
  }
}

TEST(Exponential, TreatsTheEdgesAsDocumented) {
  std::vector<float> x{0.0F, -0.0F, -INFINITY, -87.4F, NAN, 1.0F, 200.0F, INFINITY, -1000.0F};
  cpu::exponential(x.data(), x.size());
  EXPECT_EQ(x[0], 1.0F);
  EXPECT_EQ(x[1], 1.0F);
  EXPECT_EQ(x[2], 0.0F);
  EXPECT_EQ(x[3], 0.0F);
  EXPECT_TRUE(std::isnan(x[4]));
  EXPECT_GT(x[6], 2e38F);
  EXPECT_EQ(x[6], x[7]);
  EXPECT_EQ(x[8], 0.0F);
}

TEST(Softmax, MatchesDoublePrecisionForEveryLengthAndSpreadsNan) {
  for (std::size_t n = 1; n <= 40; ++n) {
    auto x = random_floats(n, static_cast<std::uint32_t>(300 + n), 4.0);
    double sum = 0;
    std::vector<double> expected;
    for (const float v : x) {
      expected.push_back(std::exp(0.5 * static_cast<double>(v)));
      sum += expected.back();
    }
    cpu::softmax(x.data(), n, 0.5F);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(x[i], expected[i] / sum, 1e-6) << n << ',' << i;
    }
  }
  std::vector<float> broken{1, 2, NAN, 3};
  cpu::softmax(broken.data(), 4, 1.0F);
  for (const float v : broken) {
    EXPECT_TRUE(std::isnan(v));
  }
}

TEST(WeightedSum, AddsInAscendingOrderForEveryWidth) {
  for (const std::size_t d : {1U, 6U, 8U, 31U, 32U, 41U, 64U}) {
    const std::size_t n = 13;
    const auto p = random_floats(n, 400);
    const auto values = random_floats(n * d, 401);
    std::vector<float> out(d, 9);
    cpu::weighted_sum(p.data(), values.data(), n, d, out.data());
    for (std::size_t i = 0; i < d; ++i) {
      float sum = 0;
      for (std::size_t j = 0; j < n; ++j) {
        sum = std::fma(p[j], values[j * d + i], sum);
      }
      EXPECT_EQ(out[i], sum) << d << ',' << i;
    }
  }
}

TEST(Swiglu, MatchesItsFormulaForEveryLength) {
  for (std::size_t n = 1; n <= 20; ++n) {
    auto gate = random_floats(n, 500, 5.0);
    const auto up = random_floats(n, 501);
    const auto z = gate;
    cpu::swiglu(gate.data(), up.data(), n);
    for (std::size_t i = 0; i < n; ++i) {
      const double exact = z[i] / (1 + std::exp(-static_cast<double>(z[i]))) * up[i];
      EXPECT_NEAR(gate[i], exact, 2e-6 * std::max(1.0, std::abs(exact)));
    }
  }
}

TEST(Attention, EqualsNaiveSoftmaxWithGroupedHeadsAndAWindow) {
  for (const std::size_t window : {std::size_t{0}, std::size_t{3}}) {
    const AttentionShape shape{
        .layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 6, .windows = {window}};
    const auto backend = make_cpu_backend(1);
    const auto pool = backend->make_pool(shape, {.block = 4});
    const auto cache = pool->make_cache();
    const std::size_t rows = 9;
    const std::vector<float> still(3, 0.0F);  // no rotation: RoPE has its own test
    AttentionRule rule;
    rule.inverse_frequency = still;
    rule.sliding_window = window;
    auto q = random_floats(rows * 24, 20);
    auto k = random_floats(rows * 12, 21);
    const auto v = random_floats(rows * 12, 22);
    const std::vector<KvCache*> caches(rows, cache.get());
    std::vector<std::uint32_t> positions(rows);
    for (std::size_t r = 0; r < rows; ++r) {
      positions[r] = static_cast<std::uint32_t>(r);
    }
    std::vector<float> out(rows * 24);
    backend->attention(0, q.data(), k.data(), v.data(), rows, caches, positions, rule, out.data());
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t h = 0; h < 4; ++h) {
        const std::size_t first = window > 0 && r + 1 > window ? r + 1 - window : 0;
        double sum = 0;
        std::array<double, 6> expected{};
        for (std::size_t j = first; j <= r; ++j) {
          double s = 0;
          for (std::size_t i = 0; i < 6; ++i) {
            s += static_cast<double>(q[r * 24 + h * 6 + i]) * k[j * 12 + h / 2 * 6 + i];
          }
          const double p = std::exp(s / std::sqrt(6.0));
          sum += p;
          for (std::size_t i = 0; i < 6; ++i) {
            expected[i] += p * v[j * 12 + h / 2 * 6 + i];
          }
        }
        for (std::size_t i = 0; i < 6; ++i) {
          EXPECT_NEAR(out[r * 24 + h * 6 + i], expected[i] / sum, 1e-5) << r << ',' << h;
        }
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
