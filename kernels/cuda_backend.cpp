// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend/cpu_kv.hpp"
#include "engine/backend/packed_weights.hpp"
#include "engine/base/error.hpp"
#include "engine/base/units.hpp"
#include "engine/nn/sampling.hpp"
#include "engine/routing/candidates.hpp"
#include "kernels/attention.hpp"
#include "kernels/capacity.hpp"
#include "kernels/capture_ring.hpp"
#include "kernels/combine.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/expert_ffn.hpp"
#include "kernels/expert_sort.hpp"
#include "kernels/grouped_gemm.hpp"
#include "kernels/linear.hpp"
#include "kernels/router.hpp"
#include "kernels/sampling.hpp"

namespace switchyard::gpu {
namespace {

using kernels::RowOperation;

constexpr std::size_t kWeightPiece = std::size_t{64} << 20;
constexpr std::size_t kWeightAlignment = 256;
constexpr std::size_t kWideRows = 64;  // rows widened at a time while placing

enum class Kind : std::uint8_t { kWeights, kActivations, kKv, kScratch };

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// Device memory against the ledger. Shared, since a KV cache may outlive the backend.
class Memory {
 public:
  explicit Memory(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  [[nodiscard]] Device& device() const { return *device_; }
  [[nodiscard]] const DeviceLedger& ledger() const { return ledger_; }

  void* take(Kind kind, std::size_t bytes) {
    void* const memory = device_->take(std::max<std::size_t>(bytes, 1));
    if (memory == nullptr) {
      throw InputError(
          "--device cuda",
          fmt::format("out of GPU memory: {} more of {} are needed, {} are free; held so far: "
                      "weights {}, activations {}, KV cache {}, scratch {}",
                      bytes_text(bytes), name(kind), bytes_text(device_->free_bytes()),
                      bytes_text(ledger_.weights), bytes_text(ledger_.activations),
                      bytes_text(ledger_.kv), bytes_text(ledger_.scratch)),
          "use a smaller model, --kv-memory, --chunk, or --device cpu");
    }
    of(kind) += bytes;
    return memory;
  }
  void give_back(Kind kind, void* memory, std::size_t bytes) noexcept {
    device_->give_back(memory);
    of(kind) -= bytes;
  }

 private:
  static const char* name(Kind kind) {
    switch (kind) {
      case Kind::kWeights:
        return "weights";
      case Kind::kActivations:
        return "activations";
      case Kind::kKv:
        return "KV cache";
      case Kind::kScratch:
        return "scratch";
    }
    return "memory";
  }
  std::uint64_t& of(Kind kind) {
    switch (kind) {
      case Kind::kWeights:
        return ledger_.weights;
      case Kind::kActivations:
        return ledger_.activations;
      case Kind::kKv:
        return ledger_.kv;
      case Kind::kScratch:
        return ledger_.scratch;
    }
    return ledger_.scratch;
  }
  std::unique_ptr<Device> device_;
  DeviceLedger ledger_;
};

class Buffer final : public DeviceBuffer {
 public:
  Buffer(std::shared_ptr<Memory> memory, std::size_t floats)
      : memory_(std::move(memory)),
        size_(floats),
        data_(static_cast<float*>(memory_->take(Kind::kActivations, floats * sizeof(float)))) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() override { memory_->give_back(Kind::kActivations, data_, size_ * sizeof(float)); }
  float* data() override { return data_; }
  [[nodiscard]] std::size_t size() const override { return size_; }

 private:
  std::shared_ptr<Memory> memory_;
  std::size_t size_;
  float* data_;
};

class DeviceBlocks final : public cpu::BlockMemory {
 public:
  explicit DeviceBlocks(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  float* take(std::size_t floats) override {
    auto* const block = static_cast<float*>(memory_->take(Kind::kKv, floats * sizeof(float)));
    bytes_[block] = floats * sizeof(float);
    return block;
  }
  void give_back(float* block) noexcept override {
    const auto it = bytes_.find(block);
    memory_->give_back(Kind::kKv, block, it->second);
    bytes_.erase(it);
  }

 private:
  std::shared_ptr<Memory> memory_;
  std::map<float*, std::size_t> bytes_;
};

/// Scratch memory that only grows.
class Scratch {
 public:
  explicit Scratch(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }
  void* bytes(std::size_t size) {
    if (size > size_) {
      release();
      data_ = memory_->take(Kind::kScratch, size);
      size_ = size;
    }
    return data_;
  }
  template <class T>
  T* array(std::size_t count) {
    return static_cast<T*>(bytes(count * sizeof(T)));
  }

 private:
  void release() {
    if (data_ != nullptr) {
      memory_->give_back(Kind::kScratch, data_, size_);
    }
    data_ = nullptr;
    size_ = 0;
  }
  std::shared_ptr<Memory> memory_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A host array on the device; copied only when it differs from what is there.
template <class T>
class Mirror {
 public:
  explicit Mirror(const std::shared_ptr<Memory>& memory) : memory_(memory), there_(memory) {}
  const T* of(std::span<const T> host) {
    const bool same =
        data_ != nullptr && host.size() == copy_.size() &&
        (host.empty() || std::memcmp(host.data(), copy_.data(), host.size_bytes()) == 0);
    if (!same) {
      data_ = there_.template array<T>(std::max<std::size_t>(host.size(), 1));
      copy_.assign(host.begin(), host.end());
      if (!host.empty() && !memory_->device().copy_in(data_, copy_.data(), host.size_bytes())) {
        copy_.clear();
        throw CapabilityError("--device cuda: " + memory_->device().error());
      }
    }
    return data_;
  }

 private:
  std::shared_ptr<Memory> memory_;
  Scratch there_;
  std::vector<T> copy_;
  T* data_ = nullptr;
};

Stored stored_as(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return Stored::kF32;
    case WeightType::kBf16:
      return Stored::kBf16;
    case WeightType::kF16:
      return Stored::kF16;
    default:
      break;
  }
  SWITCHYARD_ASSERT(false, "placed weights are plain");
  return Stored::kF32;
}

bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

std::uint32_t narrow(std::size_t n, const char* what) {
  if (n > 0xFFFFFFFFU) {
    throw InputError("--device cuda", fmt::format("unsupported: {} = {}", what, n));
  }
  return static_cast<std::uint32_t>(n);
}

class KernelBackend final : public CudaBackend {
 public:
  KernelBackend(std::unique_ptr<Device> device, const CudaOptions& options,
                std::unique_ptr<DenseLibrary> dense)
      : memory_(std::make_shared<Memory>(std::move(device))),
        bf16_(options.bf16),
        dense_(std::move(dense)) {}
  KernelBackend(const KernelBackend&) = delete;
  KernelBackend& operator=(const KernelBackend&) = delete;
  ~KernelBackend() override {
    for (const Piece& p : pieces_) {
      memory_->give_back(Kind::kWeights, p.data, p.size);
    }
  }

  const DeviceLedger& ledger() const override { return memory_->ledger(); }
  Device& device() const override { return memory_->device(); }
  std::string name() const override {
    const std::string dense = dense_ != nullptr ? dense_->name() : "own dense products";
    return "cuda " + device().name() + (bf16_ ? ", " + dense : "");
  }
  std::string precision() const override { return bf16_ ? "bf16" : "f32"; }

  std::unique_ptr<DeviceBuffer> allocate(std::size_t floats) override {
    return std::make_unique<Buffer>(memory_, floats);
  }
  void upload(std::span<const float> host, float* device_memory) override {
    copy_in(device_memory, host.data(), host.size_bytes());
  }
  void download(const float* device_memory, std::span<float> host) override {
    if (!host.empty() && !device().copy_out(host.data(), device_memory, host.size_bytes())) {
      fail();
    }
  }

  WeightView place(const WeightView& host) override {
    if (host.rows <= 1) {
      return put(host, WeightType::kF32);
    }
    // A plain BF16 matrix that is stored transposed keeps its type; rounding back is exact.
    return put(host, bf16_ || host.type == WeightType::kBf16 ? WeightType::kBf16
                     : is_packed(host)                       ? WeightType::kF32
                                                             : host.type);
  }
  WeightView place_exact(const WeightView& host) override {
    return bf16_ ? put(host, WeightType::kF32) : place(host);
  }

  void embed(const WeightView& table, std::span<const std::uint32_t> tokens, float* out) override {
    kernels::RowParams p = rows_of(RowOperation::kEmbed, tokens.size(), table.cols, out);
    p.w = table.data;
    p.type = stored_as(table.type);
    p.index = index_.of(tokens);
    run("embed", p);
  }
  void rms_norm(const float* x, std::size_t rows, const WeightView& weight, float eps,
                float* out) override {
    kernels::RmsNormParams p;
    p.rows = rows;
    p.columns = narrow(weight.cols, "width");
    p.eps = eps;
    p.x = x;
    p.weight = vector_of(weight);
    p.out = out;
    run("rms_norm", p);
  }
  void linear(const float* x, std::size_t rows, const WeightView& w, float* out) override {
    kernels::LinearParams p;
    p.rows = narrow(rows, "rows");
    p.outputs = narrow(w.rows, "outputs");
    p.depth = narrow(w.cols, "inputs");
    p.type = stored_as(w.type);
    p.w = w.data;
    p.x = x;
    p.x_stride = w.cols;
    p.out = out;
    p.out_stride = w.rows;
    p.aligned = is_aligned(w.data);
    multiply("linear", p);
  }
  void gather(const float* x, std::span<const std::uint32_t> index, std::size_t columns,
              float* out) override {
    kernels::RowParams p = rows_of(RowOperation::kGather, index.size(), columns, out);
    p.x = x;
    p.x_stride = columns;
    p.index = index_.of(index);
    run("gather", p);
  }
  void add(float* x, const float* y, std::size_t count) override {
    kernels::RowParams p = rows_of(RowOperation::kAdd, 1, count, x);
    p.x = y;
    run("add", p);
  }
  void add_bias(float* x, std::size_t rows, const WeightView& bias) override {
    kernels::RowParams p = rows_of(RowOperation::kAddBias, rows, bias.cols, x);
    p.x = vector_of(bias);
    run("add_bias", p);
  }
  void swiglu(float* gate, const float* up, std::size_t count, float limit) override {
    kernels::RowParams p = rows_of(RowOperation::kSwiglu, 1, count, gate);
    p.x = up;
    p.limit = limit;
    run("swiglu", p);
  }
  void clamp(float* x, std::size_t count, float limit) override {
    kernels::RowParams p = rows_of(RowOperation::kClamp, 1, count, x);
    p.limit = limit;
    run("clamp", p);
  }
  void linear_heads(const float* x, std::size_t rows, std::size_t in_stride,
                    std::span<const WeightView> w, std::size_t out_stride, float* out) override {
    if (w.empty()) {
      return;
    }
    kernels::LinearParams p;
    p.rows = narrow(rows, "rows");
    p.outputs = narrow(w[0].rows, "outputs");
    p.depth = narrow(w[0].cols, "inputs");
    p.heads = narrow(w.size(), "heads");
    p.type = stored_as(w[0].type);
    p.x = x;
    p.x_stride = w.size() * in_stride;
    p.x_head = in_stride;
    p.out = out;
    p.out_stride = w.size() * out_stride;
    p.out_head = out_stride;
    p.aligned = in_stride % 4 == 0;
    heads_.clear();
    for (const WeightView& head : w) {
      SWITCHYARD_ASSERT(head.type == w[0].type && head.rows == w[0].rows && head.cols == w[0].cols,
                        "heads alike");
      heads_.push_back(head.data);
      p.aligned = p.aligned && is_aligned(head.data);
    }
    p.w = heads_[0];
    p.w_of = w.size() == 1 ? nullptr : mirror(head_tables_, w.data()).of(heads_);
    multiply("linear_heads", p);
  }
  void copy_columns(const float* x, std::size_t rows, std::size_t in_stride, std::size_t columns,
                    float* out, std::size_t out_stride) override {
    kernels::RowParams p = rows_of(RowOperation::kCopy, rows, columns, out);
    p.x = x;
    p.x_stride = in_stride;
    p.out_stride = out_stride;
    run("copy_columns", p);
  }

  std::unique_ptr<KvPool> make_pool(const AttentionShape& shape,
                                    const KvOptions& options) override {
    return std::make_unique<cpu::CpuKvPool>(shape, options,
                                            std::make_shared<DeviceBlocks>(memory_));
  }
  void advance(KvCache& cache, std::size_t tokens) override {
    static_cast<cpu::CpuKvCache&>(cache).advance(tokens);
  }
  void attention(std::size_t layer, float* q, float* k, const float* v, std::size_t rows,
                 std::span<KvCache* const> caches, std::span<const std::uint32_t> positions,
                 const AttentionRule& rule, float* out) override {
    if (rows == 0) {
      return;
    }
    // Rows of one sequence follow each other; each sequence has one row of the table.
    sequence_.clear();
    std::vector<cpu::CpuKvCache*> held;
    for (std::size_t r = 0; r < rows; ++r) {
      auto* const cache = static_cast<cpu::CpuKvCache*>(caches[r]);
      if (held.empty() || held.back() != cache) {
        held.push_back(cache);
      }
      cache->reserve(positions[r] + std::size_t{1});
      sequence_.push_back(static_cast<std::uint32_t>(held.size() - 1));
    }
    const AttentionShape& shape = held[0]->shape();
    SWITCHYARD_ASSERT(rule.sliding_window == shape.window(layer), "the window of the KV pool");
    std::size_t width = 1;
    for (const cpu::CpuKvCache* cache : held) {
      width = std::max(width, cache->held(layer).size());
    }
    table_.assign(held.size() * width, nullptr);
    first_block_.clear();
    for (std::size_t s = 0; s < held.size(); ++s) {
      const auto blocks = held[s]->held(layer);
      std::transform(blocks.begin(), blocks.end(),
                     table_.begin() + static_cast<std::ptrdiff_t>(s * width),
                     [](const cpu::Block& b) { return b.get(); });
      first_block_.push_back(narrow(held[s]->first_block(layer), "blocks"));
    }
    kernels::AttentionParams p;
    p.rows = narrow(rows, "rows");
    p.heads = narrow(shape.heads, "heads");
    p.kv_heads = narrow(shape.kv_heads, "KV heads");
    p.head_dim = narrow(shape.head_dim, "head_dim");
    p.value_dim = narrow(shape.value_dim(), "value width");
    p.latent = shape.latent > 0;
    p.interleaved = shape.interleaved;
    p.half = narrow(rule.inverse_frequency.size(), "rotated pairs");
    p.window = narrow(rule.sliding_window, "sliding window");
    p.block = narrow(held[0]->block_tokens(), "block");
    p.layer = held[0]->layer_offset(layer);
    p.gain = rule.rotation_gain;
    p.scale = rule.scale > 0 ? rule.scale : 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
    p.frequency = frequency_.of(rule.inverse_frequency);
    p.position = position_.of(positions);
    p.sequence = sequence_there_.of(sequence_);
    p.table = table_there_.of(table_);
    p.table_width = narrow(width, "blocks");
    p.first_block = first_there_.of(first_block_);
    p.sinks = rule.sinks.data == nullptr ? nullptr : vector_of(rule.sinks);
    p.slopes = rule.slopes.empty() ? nullptr : slopes_.of(rule.slopes);
    p.q = q;
    p.k = k;
    p.v = v;
    p.out = out;
    p.longest = *std::max_element(positions.begin(), positions.end()) + 1;
    p.workspace_size = workspace_bytes(p);
    p.workspace = space_.bytes(p.workspace_size);
    run("attention", p);
  }

  void moe(const float* x, std::size_t rows, std::span<const ExpertView> experts,
           std::span<const std::uint16_t> chosen, std::span<const float> weights, std::size_t slots,
           float* out) override {
    if (rows == 0) {
      return;
    }
    const std::size_t count = rows * slots;
    SWITCHYARD_ASSERT(chosen.size() == count && weights.size() == count, "moe shapes");
    run_experts(x, rows, experts, chosen_.of(chosen), weights_.of(weights), slots, out);
  }
  void combine(const float* y, std::span<const std::uint32_t> where, std::span<const float> weights,
               std::size_t rows, std::size_t slots, std::size_t columns, float* out) override {
    SWITCHYARD_ASSERT(where.size() == rows * slots && weights.size() == where.size(), "combine");
    combine_places(y, where_.of(where), weights_.of(weights), rows, slots, columns, out);
  }

  bool gate(const GateCall& call, const float* x, std::size_t rows, std::span<float> logits,
            Candidates& out) override {
    kernels::GateRouterParams p = gate_of(call, x, rows);
    if (can_run(p) != Status::kOk) {
      return false;
    }
    const GateLayout at(rows, *call.gate, call.width);
    auto* const there = static_cast<std::byte*>(gate_.bytes(at.size));
    rank(p, at, there);
    here_.resize(at.size);
    copy_out(here_.data(), there, at.size);
    SWITCHYARD_ASSERT(logits.size() == rows * call.gate->experts, "logits of the gate");
    at.read(here_, logits, out);
    return true;
  }

  bool routed_moe(const GateCall& call, std::span<const ExpertView> experts, const float* x,
                  std::size_t rows, float* out, RoutedLayer& layer) override {
    kernels::GateRouterParams p = gate_of(call, x, rows);
    const GateLayout at(rows, *call.gate, call.width);
    kernels::ChooseParams choose;
    choose.gate = *call.gate;
    choose.tokens = p.router.tokens;
    choose.width = call.width;
    if (rows == 0 || can_run(p) != Status::kOk || can_run(choose) != Status::kOk) {
      return false;
    }
    SWITCHYARD_ASSERT(layer.logits.size() == rows * call.gate->experts, "logits of the gate");
    std::byte* const there = captures_.begin(at.size);
    rank(p, at, there);
    choose.ids = p.router.ids;
    choose.logit = p.router.logit;
    choose.lse = p.router.lse;
    choose.chosen = reinterpret_cast<std::uint16_t*>(there + at.chosen);
    choose.weights = reinterpret_cast<float*>(there + at.weights);
    choose.workspace_size = workspace_bytes(choose);
    choose.workspace = space_.bytes(choose.workspace_size);
    run("choose", choose);
    captures_.end([&layer, at](std::span<const std::byte> bytes) {
      at.read(bytes, layer.logits, *layer.candidates);
      layer.chosen.resize(at.rows * at.slots);
      layer.weights.resize(at.rows * at.slots);
      GateLayout::take(bytes, at.chosen, std::span(layer.chosen));
      GateLayout::take(bytes, at.weights, std::span(layer.weights));
    });
    run_experts(x, rows, experts, choose.chosen, choose.weights, at.slots, out);
    return true;
  }
  void finish_routed() override { captures_.finish(); }
  void drop_routed() noexcept override { captures_.drop(); }

  bool sample(const float* logits, std::size_t vocab, const SamplingOptions& options,
              std::span<const std::uint32_t> sequence, std::span<const std::uint32_t> position,
              std::span<std::uint32_t> tokens, std::uint64_t& nan_rows) override {
    kernels::SamplingParams p;
    p.rows = narrow(tokens.size(), "rows");
    p.vocab = narrow(vocab, "tokens of the vocabulary");
    p.temperature = options.temperature;
    p.top_p = options.top_p;
    p.top_k = options.top_k;
    p.seed = options.seed;
    p.logits = logits;
    p.sequence = index_.of(sequence);
    p.position = where_.of(position);
    const std::size_t words = tokens.size();
    p.token = order_.array<std::uint32_t>(words + (words + 3) / 4);
    p.nan_row = reinterpret_cast<std::uint8_t*>(p.token + words);
    p.workspace_size = workspace_bytes(p);
    p.workspace = space_.bytes(p.workspace_size);
    run("sample", p);
    here_.resize(words * 5);
    copy_out(here_.data(), p.token, here_.size());
    std::memcpy(tokens.data(), here_.data(), tokens.size_bytes());
    nan_rows = static_cast<std::uint64_t>(
        std::count_if(here_.begin() + static_cast<std::ptrdiff_t>(words * 4), here_.end(),
                      [](std::byte b) { return b != std::byte{0}; }));
    return true;
  }

 private:
  /// One layer's gate, and what was chosen, in one piece of memory: logits, then what the offsets
  /// (bytes) say.
  struct GateLayout {
    GateLayout(std::size_t row_count, const GateSpec& gate, std::size_t candidates)
        : rows(row_count),
          slots(gate.top_k),
          width(candidates),
          logit(rows * gate.experts * sizeof(float)),
          lse(logit + rows * width * sizeof(float)),
          weights(lse + rows * sizeof(float)),
          ids(weights + rows * slots * sizeof(float)),
          chosen(ids + rows * width * sizeof(std::uint16_t)),
          nan_row(chosen + rows * slots * sizeof(std::uint16_t)),
          size(nan_row + rows) {}
    template <class T>
    static void take(std::span<const std::byte> bytes, std::size_t from, std::span<T> to) {
      std::memcpy(to.data(), bytes.data() + from, to.size_bytes());
    }
    /// What the router made.
    void read(std::span<const std::byte> bytes, std::span<float> logits, Candidates& out) const {
      out.resize(static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(width));
      take(bytes, 0, logits);
      take(bytes, logit, std::span(out.logit));
      take(bytes, lse, std::span(out.lse));
      take(bytes, ids, std::span(out.ids));
      out.nan_rows = 0;
      for (const std::byte flag : bytes.subspan(nan_row, rows)) {
        out.nan_rows += flag != std::byte{0} ? 1 : 0;
      }
    }
    std::size_t rows, slots, width;
    std::size_t logit, lse, weights, ids, chosen, nan_row, size;
  };

  kernels::GateRouterParams gate_of(const GateCall& call, const float* x, std::size_t rows) {
    kernels::GateRouterParams p;
    p.router.gate = *call.gate;
    p.router.tokens = narrow(rows, "rows");
    p.router.width = call.width;
    p.router.bias = call.selection_bias.empty()
                        ? nullptr
                        : mirror(bias_tables_, call.selection_bias.data()).of(call.selection_bias);
    p.depth = narrow(call.router.cols, "inputs");
    p.type = stored_as(call.router.type);
    p.x = x;
    p.w = call.router.data;
    p.linear_bias = call.router_bias.data == nullptr ? nullptr : vector_of(call.router_bias);
    p.aligned = is_aligned(x) && is_aligned(p.w);
    return p;
  }
  /// Fills `there`, but for what is chosen; p then points there.
  void rank(kernels::GateRouterParams& p, const GateLayout& at, std::byte* there) {
    p.logits = reinterpret_cast<float*>(there);
    p.router.logit = reinterpret_cast<float*>(there + at.logit);
    p.router.lse = reinterpret_cast<float*>(there + at.lse);
    p.router.ids = reinterpret_cast<std::uint16_t*>(there + at.ids);
    p.router.nan_row = reinterpret_cast<std::uint8_t*>(there + at.nan_row);
    if (at.rows <= kFusedGateRows) {
      run("gate", p);
      return;
    }
    kernels::LinearParams product;
    product.rows = p.router.tokens;
    product.outputs = p.router.gate.experts;
    product.depth = p.depth;
    product.type = p.type;
    product.w = p.w;
    product.x = p.x;
    product.x_stride = p.depth;
    product.out = p.logits;
    product.out_stride = product.outputs;
    product.bias = p.linear_bias;
    product.aligned = p.aligned;
    run("linear", product);
    p.router.logits = p.logits;
    run("router", p.router);
  }
  /// The experts of a layer; chosen and weights [rows, slots] are device memory.
  void run_experts(const float* x, std::size_t rows, std::span<const ExpertView> experts,
                   const std::uint16_t* chosen, const float* weights, std::size_t slots,
                   float* out) {
    SWITCHYARD_ASSERT(!experts.empty(), "experts");
    const std::size_t count = rows * slots;
    const ExpertView& like = experts[0];
    pointers_.clear();
    bool aligned = is_aligned(x);
    for (const ExpertView& e : experts) {
      SWITCHYARD_ASSERT(e.gate.data != nullptr && e.gate.rows == like.gate.rows &&
                            e.gate.cols == like.gate.cols && e.limit == like.limit,
                        "experts alike");
      if (e.gate.type != like.gate.type || e.up.type != like.gate.type ||
          e.down.type != like.down.type) {
        throw InputError("--device cuda",
                         "unsupported: the experts of a layer are stored in several types",
                         "use --device cpu");
      }
      const auto bias = [&](const WeightView& b) {
        return b.data == nullptr ? nullptr : vector_of(b);
      };
      pointers_.push_back({e.gate.data, e.up.data, e.down.data, bias(e.gate_bias), bias(e.up_bias),
                           bias(e.down_bias)});
      aligned =
          aligned && is_aligned(e.gate.data) && is_aligned(e.up.data) && is_aligned(e.down.data);
    }
    kernels::ExpertSortParams sort;
    sort.assignments = narrow(count, "assignments");
    sort.experts = narrow(experts.size(), "experts");
    sort.chosen = chosen;
    sort.offsets = offsets_.array<std::uint32_t>(experts.size() + 1);
    sort.order = order_.array<std::uint32_t>(count);
    sort.place = place_.array<std::uint32_t>(count);
    sort.workspace_size = workspace_bytes(sort);
    sort.workspace = space_.bytes(sort.workspace_size);
    run("expert_sort", sort);

    kernels::ExpertFfnParams p;
    p.tokens = narrow(rows, "rows");
    p.slots = narrow(slots, "slots");
    p.experts = sort.experts;
    p.hidden = narrow(like.gate.cols, "hidden size");
    p.inner = narrow(like.gate.rows, "inner size");
    p.gate_type = stored_as(like.gate.type);
    p.down_type = stored_as(like.down.type);
    p.limit = like.limit;
    p.weights = mirror(expert_tables_, experts.data()).of(pointers_);
    p.y = outer_.array<float>(count * p.hidden);
    if (bf16_ && rows > kFewRows && p.hidden % 8 == 0 && p.inner % 8 == 0) {
      kernels::GroupedGemmParams many;
      many.tokens = p.tokens;
      many.slots = p.slots;
      many.experts = p.experts;
      many.hidden = p.hidden;
      many.inner = p.inner;
      many.limit = p.limit;
      many.weights = p.weights;
      many.x = halves_of(x, rows * p.hidden);
      many.offsets = sort.offsets;
      many.order = sort.order;
      many.h = inner_.array<Bf16>(count * p.inner);
      many.y = p.y;
      many.workspace_size = workspace_bytes(many);
      many.workspace = space_.bytes(many.workspace_size);
      run("grouped_gemm", many);
      combine_places(p.y, sort.place, weights, rows, slots, p.hidden, out);
      return;
    }
    p.round_inner = bf16_;
    p.x = bf16_ ? rounded(x, rows * p.hidden) : x;
    p.offsets = sort.offsets;
    p.order = sort.order;
    p.h = inner_.array<float>(count * p.inner);
    p.aligned = aligned;
    p.workspace_size = workspace_bytes(p);
    p.workspace = space_.bytes(p.workspace_size);
    run("expert_ffn", p);
    combine_places(p.y, sort.place, weights, rows, slots, p.hidden, out);
  }
  struct Piece {
    std::byte* data;
    std::size_t size, used;
  };

  [[noreturn]] void fail() const {
    throw CapabilityError("--device cuda: the device failed: " + device().error());
  }
  void copy_in(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0 && !device().copy_in(to, from, bytes)) {
      fail();
    }
  }
  void copy_out(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0 && !device().copy_out(to, from, bytes)) {
      fail();
    }
  }
  /// A matrix or vector on the device as `type`; F16 only as stored.
  WeightView put(const WeightView& host, WeightType type) {
    if (host.data == nullptr) {
      return host;
    }
    WeightView out{nullptr, type, host.rows, host.cols};
    const std::size_t row_bytes = host.cols * weight_bytes(type);
    auto* const to = static_cast<std::byte*>(take_weights(host.rows * row_bytes));
    out.data = to;
    if (!is_packed(host) && host.type == type) {
      copy_in(to, host.data, host.rows * row_bytes);
      return out;
    }
    SWITCHYARD_ASSERT(type != WeightType::kF16, "nothing is rounded to F16");
    for (std::size_t first = 0; first < host.rows; first += kWideRows) {
      const std::size_t last = std::min(host.rows, first + kWideRows);
      wide_.resize((last - first) * host.cols);
      widen_rows(host, first, last, wide_.data());
      const void* from = wide_.data();
      if (type == WeightType::kBf16) {
        half_.resize(wide_.size());
        for (std::size_t i = 0; i < wide_.size(); ++i) {
          store(&half_[i], wide_[i]);
        }
        from = half_.data();
      }
      copy_in(to + first * row_bytes, from, (last - first) * row_bytes);
    }
    return out;
  }
  /// Values rounded to BF16, as such or as floats; until the next call.
  const Bf16* halves_of(const float* x, std::size_t count) {
    auto* const out = rounded_.array<Bf16>(count);
    kernels::RowParams p = rows_of(RowOperation::kToBf16, 1, count, nullptr);
    p.x = x;
    p.out = out;
    run("to_bf16", p);
    return out;
  }
  const float* rounded(const float* x, std::size_t count) {
    auto* const out = rounded_.array<float>(count);
    kernels::RowParams p = rows_of(RowOperation::kRound, 1, count, out);
    p.x = x;
    run("round", p);
    return out;
  }
  /// Whether the library takes the product.
  bool multiplied_there(const kernels::DenseGemmParams& p) {
    if (dense_ == nullptr || p.heads != 1) {
      return false;
    }
    const Status status = dense_->multiply(
        {p.rows, p.outputs, p.depth, p.w, p.x, p.x_stride, p.out, p.out_stride}, device().stream());
    if (status == Status::kLaunchFailed) {
      throw CapabilityError(
          fmt::format("--device cuda: {} did not multiply: {}", dense_->name(), device().error()));
    }
    return status == Status::kOk;
  }
  /// The dense products p in this backend's precision. Float32 matrices are never rounded.
  void multiply(const char* what, kernels::LinearParams p) {
    const std::size_t values = std::size_t{p.rows} * p.x_stride;
    if (bf16_ && p.type != Stored::kF32) {
      kernels::DenseGemmParams many;
      many.rows = p.rows;
      many.outputs = p.outputs;
      many.depth = p.depth;
      many.heads = p.heads;
      many.w = static_cast<const Bf16*>(p.w);
      many.w_of = p.w_of;
      many.x_stride = p.x_stride;
      many.x_head = p.x_head;
      many.out = p.out;
      many.out_stride = p.out_stride;
      many.out_head = p.out_head;
      if (p.rows > kFewRows && p.aligned && can_run(many) == Status::kOk) {
        many.x = halves_of(p.x, values);
        if (!multiplied_there(many)) {
          run("dense_gemm", many);
        }
        return;
      }
      p.x = rounded(p.x, values);
    }
    p.aligned = p.aligned && is_aligned(p.x);
    run(what, p);
  }
  template <class Params>
  void run(const char* what, const Params& params) {
    const Status status = launch(params, device().stream());
    if (status == Status::kLaunchFailed) {
      throw CapabilityError(
          fmt::format("--device cuda: {} did not run: {}", what, device().error()));
    }
    if (status == Status::kUnsupported) {
      throw InputError(
          "--device cuda",
          fmt::format("unsupported: {} of this shape; kernels/README.md has the limits", what),
          "use --device cpu, or --chunk for fewer rows at once");
    }
    SWITCHYARD_ASSERT(status == Status::kOk, fmt::format("{}: {}", what, status_text(status)));
  }

  void* take_weights(std::size_t bytes) {
    const std::size_t size = (bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
    if (pieces_.empty() || pieces_.back().size - pieces_.back().used < size) {
      std::size_t piece = std::max(size, kWeightPiece);
      if (piece > device().free_bytes()) {
        piece = size;  // the last ones may be small
      }
      pieces_.push_back({static_cast<std::byte*>(memory_->take(Kind::kWeights, piece)), piece, 0});
    }
    Piece& p = pieces_.back();
    void* const at = p.data + p.used;
    p.used += size;
    return at;
  }

  static const float* vector_of(const WeightView& v) {
    SWITCHYARD_ASSERT(v.type == WeightType::kF32, "placed vectors are float32");
    return static_cast<const float*>(v.data);
  }
  static kernels::RowParams rows_of(RowOperation operation, std::size_t rows, std::size_t columns,
                                    float* out) {
    kernels::RowParams p;
    p.operation = operation;
    p.rows = rows;
    p.columns = columns;
    p.x_stride = columns;
    p.out = out;
    p.out_stride = columns;
    return p;
  }
  template <class T>
  Mirror<T>& mirror(std::map<const void*, Mirror<T>>& all, const void* key) {
    return all.try_emplace(key, memory_).first->second;
  }
  void combine_places(const float* y, const std::uint32_t* place, const float* weights,
                      std::size_t rows, std::size_t slots, std::size_t columns, float* out) {
    kernels::CombineParams p;
    p.tokens = narrow(rows, "rows");
    p.slots = narrow(slots, "slots");
    p.hidden = narrow(columns, "hidden size");
    p.y_type = p.out_type = kernels::Element::kF32;
    p.y = y;
    p.place = place;
    p.weights = weights;
    p.out = out;
    run("combine", p);
  }

  std::shared_ptr<Memory> memory_;
  std::vector<Piece> pieces_;
  std::vector<float> wide_;
  std::vector<Bf16> half_;
  std::vector<std::byte> here_;
  std::vector<const void*> heads_;
  std::vector<kernels::ExpertPointers> pointers_;
  std::vector<std::uint32_t> sequence_, first_block_;
  std::vector<float*> table_;
  Mirror<std::uint32_t> index_{memory_}, position_{memory_}, sequence_there_{memory_},
      first_there_{memory_}, where_{memory_};
  Mirror<float> frequency_{memory_}, slopes_{memory_}, weights_{memory_};
  Mirror<float*> table_there_{memory_};
  Mirror<std::uint16_t> chosen_{memory_};
  std::map<const void*, Mirror<const void*>> head_tables_;
  std::map<const void*, Mirror<kernels::ExpertPointers>> expert_tables_;
  std::map<const void*, Mirror<float>> bias_tables_;
  Scratch offsets_{memory_}, order_{memory_}, place_{memory_}, space_{memory_}, inner_{memory_},
      outer_{memory_}, rounded_{memory_}, gate_{memory_};
  bool bf16_;
  std::unique_ptr<DenseLibrary> dense_;
  kernels::CaptureRing captures_{
      memory_->device(),
      kCaptureSlots,
      {[this](std::size_t bytes) { return memory_->take(Kind::kScratch, bytes); },
       [this](void* memory, std::size_t bytes) {
         memory_->give_back(Kind::kScratch, memory, bytes);
       }}};
};

}  // namespace

std::unique_ptr<CudaBackend> make_cuda_backend(std::unique_ptr<Device> device,
                                               const CudaOptions& options,
                                               std::unique_ptr<DenseLibrary> dense) {
  return std::make_unique<KernelBackend>(std::move(device), options, std::move(dense));
}

}  // namespace switchyard::gpu
