// SPDX-License-Identifier: Apache-2.0
// A described cluster as Graphviz text: a box per server, a node per device, an edge per cable with
// its class, rate per direction and latency. `dot -Tsvg` draws it. Cables of one kind have one
// colour; a cable without peer-to-peer is dashed, a shared medium bold.
//
// Not written: routes and their bottlenecks (switchyard inspect FILE.toml lists them).
#pragma once
#include <string>

#include "sim/scenario/hardware.hpp"

namespace switchyard::exporters {

/// `title` stands under the picture; any text.
std::string hardware_dot(const scenario::HardwareSpec& hardware, const std::string& title);

}  // namespace switchyard::exporters
