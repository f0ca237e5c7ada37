// SPDX-License-Identifier: Apache-2.0
#include "engine/base/version.hpp"

namespace switchyard {
std::string version() { return SWITCHYARD_VERSION; }
}  // namespace switchyard
