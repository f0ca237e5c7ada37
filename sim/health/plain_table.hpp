// SPDX-License-Identifier: Apache-2.0
// Tables for programs: numbers in the cells, units in the headers.
//
// Not modelled: units inside sentences.
#pragma once
#include <vector>

#include "engine/base/table.hpp"

namespace switchyard::health {

/// The same tables for JSON and CSV. A column whose cells are numbers, each with a unit or without
/// ("12.5 %", "431 us", "1.2"), becomes numbers: one unit goes into the header ("share [%]"); where
/// the rows' units differ they go into a column "unit" behind the first one. Times are in us, rates
/// in GB/s. "-" and "n/a" in such a column become empty. Columns with any other text stay.
std::vector<Table> plain_tables(std::vector<Table> tables);

}  // namespace switchyard::health
