// SPDX-License-Identifier: Apache-2.0
// The Backend (engine/backend/backend.hpp) over the kernels of this folder, in one of two
// precisions. In both keys, values, norms, the residual and all sums are float32, vectors are
// widened when they are placed, and gates are float32 on both sides.
//
// float32: activations are float32, plain weights stay as stored (float32, BF16, F16), packed ones
//   (FP8, MXFP4, GGUF blocks) are widened when placed: exactly, at float32's size. One order of
//   summation (few_rows.hpp). Bits: a row's depend on its own inputs only, whatever the step.
// BF16: matrices are rounded to BF16 when placed (BF16 and MXFP4 exactly), what they are multiplied
//   with, the experts' inner values included, when it is used. Calls of at most kFewRows rows go to
//   the few-row kernels; of more to tensor cores (grouped_gemm.hpp), unless a width is no multiple
//   of 8: then to the few-row kernels, too. The two sum the same products in different orders.
//   Bits: a row's depend on its own inputs and on whether its call had more than kFewRows rows, on
//   nothing else; so decode in batches of up to 8 equals decode alone, prefill whose every call
//   (a prompt's last chunk, too) has 9 rows and more equals prefill at once, and prefill differs
//   from decode by rounding. This takes mma.sync
//   to sum every row and column of a tile alike, which device_check.sh verifies on the GPU.
//   Dense products of many rows go to cuBLASLt where the machine has it (dense_library.hpp; name()
//   says which, so traces do): then this holds as far as cuBLASLt keeps a row's bits when one
//   algorithm runs with another number of rows, which NVIDIA does not promise.
//
// A gate's product and ranking run on the device (one kernel for up to kFusedGateRows rows, two for
// more). Without a policy the device also chooses and weighs, so a layer needs nothing from the
// host: what it chose is copied out beside the computation (capture_ring.hpp) and read when the
// step ends, where switchyard::routing decides the same candidates again, for the trace. Under a
// policy the host reads each layer's candidates and decides there. Weights that the device made may
// differ from the recorded ones in the last bit (router.hpp: exp() at a rounding border).
// Sampling runs on the device; only tokens are read then.
//
// Memory: weights in pieces of kWeightPiece, never given back before the end; scratch in buffers
// that only grow; KV blocks one by one. A ledger counts each kind; what does not fit is an
// InputError that says what was planned, what is there, and what is missing.
// A launch that fails or a fault of the device is a CapabilityError of one line.
//
// Several ranks (engine/nn/expert_exchange.hpp) have a backend and a device each; rows go between
// them by NCCL (nccl_communicator.hpp) or through host memory. Float32 has the bits of one rank
// alone, but for exp() at a rounding border (router.hpp): with ranks the host ranks the logits. BF16
// would not: a rank has fewer rows, so kFewRows parts products otherwise. The CLI refuses it.
//
// Not modelled: keys and values in BF16, CUDA graphs, several devices of one process.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/backend/backend.hpp"
#include "kernels/dense_library.hpp"
#include "kernels/device.hpp"

namespace switchyard::gpu {

/// Bytes of device memory that the backend holds, by kind.
struct DeviceLedger {
  std::uint64_t weights = 0, activations = 0, kv = 0, scratch = 0;
  [[nodiscard]] std::uint64_t total() const { return weights + activations + kv + scratch; }
};

struct CudaOptions {
  bool bf16 = false;  ///< Operands of products are BF16, else float32.
};
/// BF16: most rows of a call that the few-row kernels take.
inline constexpr std::size_t kFewRows = 8;
/// Most rows whose gate is one kernel with its ranking; it reads the matrix once per row.
inline constexpr std::size_t kFusedGateRows = 16;
/// Layers whose routing may be on its way to the host.
inline constexpr std::size_t kCaptureSlots = 8;

class CudaBackend : public Backend {
 public:
  [[nodiscard]] virtual const DeviceLedger& ledger() const = 0;
  /// Where it computes; lives as long as the backend.
  [[nodiscard]] virtual Device& device() const = 0;
};

/// `dense`: for BF16 products of many rows; null: our own kernel.
[[nodiscard]] std::unique_ptr<CudaBackend> make_cuda_backend(
    std::unique_ptr<Device> device, const CudaOptions& options = {},
    std::unique_ptr<DenseLibrary> dense = nullptr);

}  // namespace switchyard::gpu
