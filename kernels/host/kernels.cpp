// SPDX-License-Identifier: Apache-2.0
// The kernel sources as g++ compiles them for the host executor.
// NOLINTBEGIN(bugprone-suspicious-include): the sources are the subject.
#include "kernels/attention.cu"
#include "kernels/capacity.cu"
#include "kernels/combine.cu"
#include "kernels/elementwise.cu"
#include "kernels/expert_ffn.cu"
#include "kernels/expert_sort.cu"
#include "kernels/grouped_gemm.cu"
#include "kernels/linear.cu"
#include "kernels/router.cu"
#include "kernels/sampling.cu"
// NOLINTEND(bugprone-suspicious-include)
