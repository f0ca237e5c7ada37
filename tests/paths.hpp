// SPDX-License-Identifier: Apache-2.0
// Included by force into every test: where the source tree is. Only paths.cpp holds the absolute
// path, so that the compile cache serves a fresh clone too.
#pragma once
namespace switchyard::test {
extern const char* const kSourceDir;
}  // namespace switchyard::test
