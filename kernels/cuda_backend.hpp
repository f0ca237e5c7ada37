// SPDX-License-Identifier: Apache-2.0
// The Backend (engine/backend/backend.hpp) over the kernels of this folder. Activations, keys and
// values are float32, plain weights stay as stored (float32, BF16, F16), sums are float32 in the
// one order of few_rows.hpp; so a row's bits depend on neither its neighbours nor the batch, and
// differ from the CPU backend's by rounding only. Packed weights (FP8, MXFP4, GGUF blocks) are
// widened when they are placed: exactly, at float32's size. Vectors are widened, too. The choice of
// experts stays with switchyard::routing on the host, which reads each layer's gate logits.
//
// Memory: weights in pieces of kWeightPiece, never given back before the end; scratch in buffers
// that only grow; KV blocks one by one. A ledger counts each kind; what does not fit is an
// InputError that says what was planned, what is there, and what is missing.
// A launch that fails or a fault of the device is a CapabilityError of one line.
//
// Not modelled: tensor cores, CUDA graphs, several streams or devices, routing on the device in the
// engine's loop, several ranks (the CLI refuses --device cuda under mpirun).
#pragma once
#include <cstdint>
#include <memory>

#include "engine/backend/backend.hpp"
#include "kernels/device.hpp"

namespace switchyard::gpu {

/// Bytes of device memory that the backend holds, by kind.
struct DeviceLedger {
  std::uint64_t weights = 0, activations = 0, kv = 0, scratch = 0;
  [[nodiscard]] std::uint64_t total() const { return weights + activations + kv + scratch; }
};

class CudaBackend : public Backend {
 public:
  [[nodiscard]] virtual const DeviceLedger& ledger() const = 0;
};

[[nodiscard]] std::unique_ptr<CudaBackend> make_cuda_backend(std::unique_ptr<Device> device);

}  // namespace switchyard::gpu
