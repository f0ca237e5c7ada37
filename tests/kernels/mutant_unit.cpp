// SPDX-License-Identifier: Apache-2.0
// One changed kernel source and the checks, in a namespace of their own. CMake defines
//   SWITCHYARD_KERNELS      the namespace
//   SWITCHYARD_MUTANT_FILE  the changed source
//   SWITCHYARD_MUTANT_CHECKS the header of the checks
//   SWITCHYARD_MUTANT_CHECK the check that must object
//   SWITCHYARD_MUTANT_ENTRY the function that runs it
#include <string>

#include SWITCHYARD_MUTANT_FILE  // NOLINT(bugprone-suspicious-include): the changed source
#include SWITCHYARD_MUTANT_CHECKS
#ifdef SWITCHYARD_MUTANT_OF_MOE
#include "kernels/combine.cu"      // NOLINT(bugprone-suspicious-include)
#include "kernels/expert_sort.cu"  // NOLINT(bugprone-suspicious-include)
#endif

#ifdef SWITCHYARD_MUTANT_OF_CAPTURE
#include "kernels/elementwise.cu"  // NOLINT(bugprone-suspicious-include)
#endif

namespace switchyard {
std::string SWITCHYARD_MUTANT_ENTRY();
std::string SWITCHYARD_MUTANT_ENTRY() { return SWITCHYARD_KERNELS::SWITCHYARD_MUTANT_CHECK(); }
}  // namespace switchyard
