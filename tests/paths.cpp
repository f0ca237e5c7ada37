// SPDX-License-Identifier: Apache-2.0
namespace switchyard::test {
extern const char* const kSourceDir = SWITCHYARD_ABSOLUTE_SOURCE_DIR;
}  // namespace switchyard::test
