// SPDX-License-Identifier: Apache-2.0
// What the window shows of a run first: the whole of it, the sum over its layers. Read in the thread
// that opens the file, so that the window's own thread finds the pages in the store. No Qt.
#pragma once
#include <cstddef>
#include <functional>

#include "gui/core/runstore.hpp"

namespace switchyard::gui {

/// Reads the pages behind pictures of about `columns` pixel columns, the table of experts and the
/// colours of links. `stop` is called between reads; what it throws ends the reading. A page that cannot be read (InputError) is left out: who draws it says why.
void readFirstPictures(const RunStore& run, std::size_t columns,
                       const std::function<void()>& stop = {});

}  // namespace switchyard::gui
