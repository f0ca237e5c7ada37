// SPDX-License-Identifier: Apache-2.0
// The backend's source as g++ compiles it for the host executor.
#include "kernels/cuda_backend.cu"  // NOLINT(bugprone-suspicious-include): the source is the subject
