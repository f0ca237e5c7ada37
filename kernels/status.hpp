// SPDX-License-Identifier: Apache-2.0
// What the host side of a kernel answers. Every kernel has three steps:
//   can_run(params)          is this shape supported? No GPU is needed to ask.
//   workspace_bytes(params)  bytes of scratch memory the caller brings, aligned to 16; 0: none.
//   launch(params, stream)   queues the kernels; never waits for the device. Nothing to do (0
//                            tokens) is kOk without a launch.
#pragma once
#include <cstdint>

namespace switchyard::gpu {

enum class Status : std::uint8_t {
  kOk,
  kInvalidShape,       ///< The parameters contradict each other: a mistake of the caller.
  kUnsupported,        ///< Legal, but beyond this kernel's limits; its header names them.
  kWorkspaceTooSmall,  ///< Less than workspace_bytes().
  kLaunchFailed        ///< CUDA refused the launch, or the host executor found a fault.
};

[[nodiscard]] constexpr const char* status_text(Status status) {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kInvalidShape:
      return "invalid shape";
    case Status::kUnsupported:
      return "unsupported";
    case Status::kWorkspaceTooSmall:
      return "workspace too small";
    case Status::kLaunchFailed:
      return "launch failed";
  }
  return "unknown status";
}

}  // namespace switchyard::gpu
