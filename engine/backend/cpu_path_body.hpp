// SPDX-License-Identifier: Apache-2.0
// The products of cpu_path.hpp, written once over an instruction set and compiled once for each.
// The including file defines, in an anonymous namespace, `Isa`:
//   V             a vector of kWidth floats; kParts of them are the 16 lanes of the order
//   load(p), load(p, n): kWidth elements of float, Bf16 or F16, or the first n <= kWidth of them
//   and
//                 zeros, as floats; store(p, v); zero(); fma(a, b, c); reduce(s); reduce4(a, b, c,
//                 d)
//   kTileRows × kTileOutputs of many(), kFewRows, few_outputs(rows)
// This file must not use inline functions of the library: the linker may keep the copy compiled for
// the larger instruction set for everyone.

template <class T>
inline typename Isa::V load_tail(const T* p, std::size_t rest, int part) {
  const std::size_t before = static_cast<std::size_t>(part) * Isa::kWidth;
  if (rest <= before) {
    return Isa::zero();
  }
  return Isa::load(p + before, rest - before < Isa::kWidth ? rest - before : Isa::kWidth);
}

template <int R, int N>
struct Sums {
  typename Isa::V s[R][N][Isa::kParts];

  inline void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
        for (int p = 0; p < Isa::kParts; ++p) {
          s[r][n][p] = Isa::zero();
        }
      }
    }
  }
  inline void fetch(const float* from) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
        for (int p = 0; p < Isa::kParts; ++p) {
          s[r][n][p] = Isa::load(from + 16 * (r * N + n) + Isa::kWidth * p);
        }
      }
    }
  }
  inline void keep(float* to) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
        for (int p = 0; p < Isa::kParts; ++p) {
          Isa::store(to + 16 * (r * N + n) + Isa::kWidth * p, s[r][n][p]);
        }
      }
    }
  }
  /// Writes the first `outputs` of N results of each row.
  inline void finish(float* out, std::size_t ldo, std::size_t outputs) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* row = out + static_cast<std::size_t>(r) * ldo;
      if (outputs == static_cast<std::size_t>(N)) {
        constexpr int kFours = N / 4 * 4;
#pragma GCC unroll 2
        for (int n = 0; n < kFours; n += 4) {
          _mm_storeu_ps(row + n,
                        Isa::reduce4(s[r][n], s[r][n + 1 < N ? n + 1 : n],
                                     s[r][n + 2 < N ? n + 2 : n], s[r][n + 3 < N ? n + 3 : n]));
        }
#pragma GCC unroll 4
        for (int n = kFours; n < N; ++n) {
          row[n] = Isa::reduce(s[r][n]);
        }
      } else {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          if (static_cast<std::size_t>(n) < outputs) {
            row[n] = Isa::reduce(s[r][n]);
          }
        }
      }
    }
  }
};

/// Where the weights that come next are fetched to.
enum class Fetch { kNowhere, kFirstCache, kSecondCache };

/// R rows times N rows of the stored weights, which stream from memory. The hardware does not see N
/// interleaved streams (on Zen 4: 12 GB/s against 25), so the N lines of each step that lie N rows
/// further on are fetched in the order of their addresses. Fetching beyond the end is harmless.
template <int R, int N, Fetch kFetch, class T>
inline void tile_few(const float* x, std::size_t ldx, const T* w, std::size_t depth, float* out,
                     std::size_t ldo) {
  constexpr std::size_t kLine = 64 / sizeof(T);
  Sums<R, N> sums;
  sums.clear();
  const char* ahead = reinterpret_cast<const char*>(w + N * depth);
  const auto step = [&](std::size_t k) __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int p = 0; p < Isa::kParts; ++p) {
      typename Isa::V xv[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        xv[r] = Isa::load(x + static_cast<std::size_t>(r) * ldx + k + Isa::kWidth * p);
      }
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const typename Isa::V wv =
            Isa::load(w + static_cast<std::size_t>(n) * depth + k + Isa::kWidth * p);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          sums.s[r][n][p] = Isa::fma(xv[r], wv, sums.s[r][n][p]);
        }
      }
    }
  };
  std::size_t k = 0;
  for (; k + kLine <= depth; k += kLine) {
    if constexpr (kFetch != Fetch::kNowhere) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        _mm_prefetch(ahead + 64 * n, kFetch == Fetch::kFirstCache ? _MM_HINT_T0 : _MM_HINT_T1);
      }
      ahead += 64 * N;
    }
#pragma GCC unroll 2
    for (std::size_t i = 0; i < kLine; i += 16) {
      step(k + i);
    }
  }
  for (; k + 16 <= depth; k += 16) {
    step(k);
  }
  if (k < depth) {
#pragma GCC unroll 2
    for (int p = 0; p < Isa::kParts; ++p) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const typename Isa::V wv =
            load_tail(w + static_cast<std::size_t>(n) * depth + k, depth - k, p);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          sums.s[r][n][p] =
              Isa::fma(load_tail(x + static_cast<std::size_t>(r) * ldx + k, depth - k, p), wv,
                       sums.s[r][n][p]);
        }
      }
    }
  }
  sums.finish(out, ldo, N);
}

template <int R, int N, Fetch kFetch, class T>
void few_sweep(const Product& p) {
  const T* w = static_cast<const T*>(p.w);
  std::size_t n = 0;
  for (; n + N <= p.outputs; n += N) {
    tile_few<R, N, kFetch>(p.x, p.ldx, w + n * p.depth, p.depth, p.out + n, p.ldo);
  }
  for (; n < p.outputs; ++n) {
    tile_few<R, 1, Fetch::kNowhere>(p.x, p.ldx, w + n * p.depth, p.depth, p.out + n, p.ldo);
  }
}

/// The tile that reads memory fastest (measured on Zen 4): what is fetched ahead, N rows, must stay
/// in the first cache until it is used, or go to the second. One row of float32 at a time is a
/// stream the hardware sees by itself, and long enough to hide the latency of its one sum.
template <int R, class T>
void few_rows(const Product& p) {
  const std::size_t bytes = p.depth * sizeof(T);
  constexpr int kWide = Isa::few_outputs(R);
  if (bytes <= 2048) {
    few_sweep<R, kWide, Fetch::kFirstCache, T>(p);
  } else if (R == 1 && sizeof(T) == 4 && bytes <= 8192) {
    few_sweep<R, 1, Fetch::kNowhere, T>(p);
  } else if (bytes <= 4096) {
    few_sweep<R, 2, Fetch::kFirstCache, T>(p);
  } else {
    few_sweep<R, kWide, Fetch::kSecondCache, T>(p);
  }
}

template <int R, class T>
inline void few_dispatch(const Product& p) {
  if (p.rows == static_cast<std::size_t>(R)) {
    few_rows<R, T>(p);
  } else if constexpr (R < Isa::kFewRows) {
    few_dispatch<R + 1, T>(p);
  }
}

void few(const Product& p) {
  switch (p.type) {
    case WeightType::kF32:
      few_dispatch<1, float>(p);
      break;
    case WeightType::kBf16:
      few_dispatch<1, Bf16>(p);
      break;
    case WeightType::kF16:
      few_dispatch<1, F16>(p);
      break;
    default:
      break;  // packed weights come as float
  }
}

float dot(const float* a, const float* b, std::size_t n) {
  float out;
  tile_few<1, 1, Fetch::kNowhere>(a, n, b, n, &out, 1);
  return out;
}

// many(): panels of kTileOutputs weights, [panel][step of 16][output][16], widened and padded with
// zeros in both directions. The depth is passed in blocks, so that one panel's block (24 KiB) stays
// in the first cache while the rows pass, and rows in chunks, so that their block stays in the
// second; between blocks the 16 running sums of every output are kept in `sums`, unrounded.
constexpr std::size_t kDepthBlock = 1024;
constexpr std::size_t kRowChunk = 64;
constexpr std::size_t kPanel = Isa::kTileOutputs;

inline std::size_t steps_of(std::size_t depth) { return (depth + 15) / 16; }
inline std::size_t panels_of(std::size_t outputs) { return (outputs + kPanel - 1) / kPanel; }

std::size_t packed_floats(std::size_t outputs, std::size_t depth) {
  return panels_of(outputs) * kPanel * steps_of(depth) * 16;
}

std::size_t sums_floats(std::size_t outputs, std::size_t rows, std::size_t depth) {
  if (depth <= kDepthBlock) {
    return 0;
  }
  return panels_of(outputs) * kPanel * (rows < kRowChunk ? rows : kRowChunk) * 16;
}

template <class T>
void pack(const T* w, std::size_t depth, std::size_t outputs, float* packed) {
  constexpr std::size_t kLine = 64 / sizeof(T);
  const std::size_t steps = steps_of(depth);
  for (std::size_t n = 0; n < outputs; n += kPanel) {
    const T* from = w + n * depth;
    const std::size_t rows = outputs - n < kPanel ? outputs - n : kPanel;
    const char* ahead = reinterpret_cast<const char*>(from + rows * depth);
    float* to = packed + n * steps * 16;
    for (std::size_t t = 0; t < steps; ++t) {
      const std::size_t k = 16 * t;
      if (k % kLine == 0) {
        for (std::size_t i = 0; i < rows; ++i, ahead += 64) {
          _mm_prefetch(ahead, _MM_HINT_T1);
        }
      }
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kPanel; ++i) {
#pragma GCC unroll 2
        for (int p = 0; p < Isa::kParts; ++p) {
          typename Isa::V v = Isa::zero();
          if (i < rows) {
            v = k + 16 <= depth ? Isa::load(from + i * depth + k + Isa::kWidth * p)
                                : load_tail(from + i * depth + k, depth - k, p);
          }
          Isa::store(to + k * kPanel + 16 * i + Isa::kWidth * p, v);
        }
      }
    }
  }
}

/// `depth` inputs of R rows against one panel. sums: null when they fit one block of the depth.
template <int R>
inline void tile_many(const float* x, std::size_t ldx, const float* panel, std::size_t depth,
                      float* sums, bool first, bool last, float* out, std::size_t ldo,
                      std::size_t outputs) {
  constexpr int N = Isa::kTileOutputs;
  Sums<R, N> tile;
  if (first) {
    tile.clear();
  } else {
    tile.fetch(sums);
  }
  // One part of the lanes after the other: the sums of one fit the registers.
#pragma GCC unroll 2
  for (int p = 0; p < Isa::kParts; ++p) {
    const auto step = [&](std::size_t k, const typename Isa::V(&xv)[R])
        __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const typename Isa::V wv = Isa::load(panel + k * N + 16 * n + Isa::kWidth * p);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          tile.s[r][n][p] = Isa::fma(xv[r], wv, tile.s[r][n][p]);
        }
      }
    };
    typename Isa::V xv[R];
    std::size_t k = 0;
    for (; k + 16 <= depth; k += 16) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        xv[r] = Isa::load(x + static_cast<std::size_t>(r) * ldx + k + Isa::kWidth * p);
      }
      step(k, xv);
    }
    if (k < depth) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        xv[r] = load_tail(x + static_cast<std::size_t>(r) * ldx + k, depth - k, p);
      }
      step(k, xv);
    }
  }
  if (last) {
    tile.finish(out, ldo, outputs);
  } else {
    tile.keep(sums);
  }
}

template <int R>
inline void tile_dispatch(std::size_t rows, const float* x, std::size_t ldx, const float* panel,
                          std::size_t depth, float* sums, bool first, bool last, float* out,
                          std::size_t ldo, std::size_t outputs) {
  if (rows == static_cast<std::size_t>(R)) {
    tile_many<R>(x, ldx, panel, depth, sums, first, last, out, ldo, outputs);
  } else if constexpr (R > 1) {
    tile_dispatch<R - 1>(rows, x, ldx, panel, depth, sums, first, last, out, ldo, outputs);
  }
}

void many(const Product& p, float* packed, float* sums) {
  switch (p.type) {
    case WeightType::kF32:
      pack(static_cast<const float*>(p.w), p.depth, p.outputs, packed);
      break;
    case WeightType::kBf16:
      pack(static_cast<const Bf16*>(p.w), p.depth, p.outputs, packed);
      break;
    case WeightType::kF16:
      pack(static_cast<const F16*>(p.w), p.depth, p.outputs, packed);
      break;
    default:
      break;  // packed weights come as float
  }
  const std::size_t steps = steps_of(p.depth);
  // The next weights come into the second cache while these are multiplied: a few lines before each
  // tile of the first chunk.
  const std::size_t size = p.type == WeightType::kF32 ? 4 : 2;
  const char* next = static_cast<const char*>(p.next);
  const char* const next_end = next == nullptr ? next : next + p.outputs * p.depth * size;
  const std::size_t first_rows = p.rows < kRowChunk ? p.rows : kRowChunk;
  const std::size_t tiles = panels_of(p.outputs) * ((p.depth + kDepthBlock - 1) / kDepthBlock) *
                            ((first_rows + Isa::kTileRows - 1) / Isa::kTileRows);
  const std::size_t lines = (p.outputs * p.depth * size / 64 + tiles - 1) / tiles;
  for (std::size_t chunk = 0; chunk < p.rows; chunk += kRowChunk) {
    const std::size_t end = chunk + kRowChunk < p.rows ? chunk + kRowChunk : p.rows;
    for (std::size_t k = 0; k < p.depth; k += kDepthBlock) {
      const bool last = k + kDepthBlock >= p.depth;
      const std::size_t depth = last ? p.depth - k : kDepthBlock;
      for (std::size_t n = 0; n < p.outputs; n += kPanel) {
        const float* panel = packed + n * steps * 16 + k * kPanel;
        const std::size_t outputs = p.outputs - n < kPanel ? p.outputs - n : kPanel;
        for (std::size_t r = chunk; r < end; r += Isa::kTileRows) {
          const std::size_t rows = end - r < Isa::kTileRows ? end - r : Isa::kTileRows;
          for (std::size_t i = 0; i < lines && next < next_end; ++i, next += 64) {
            _mm_prefetch(next, _MM_HINT_T1);
          }
          float* kept = sums + (n * (end - chunk) + (r - chunk) * kPanel) * 16;
          tile_dispatch<Isa::kTileRows>(rows, p.x + r * p.ldx + k, p.ldx, panel, depth, kept,
                                        k == 0, last, p.out + r * p.ldo + n, p.ldo, outputs);
        }
      }
    }
  }
}
