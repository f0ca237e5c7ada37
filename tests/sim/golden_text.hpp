// SPDX-License-Identifier: Apache-2.0
// Compares a text with a file of tests/golden; a failure prints both and says how to replace it.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "engine/base/atomic_file.hpp"

namespace switchyard::test {

inline void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path golden =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/golden" / name;
  const std::string wanted = std::filesystem::exists(golden) ? read_file(golden) : "";
  if (wanted == text) return;
  write_file(name, text);
  ADD_FAILURE() << "differs from tests/golden/" << name << "; if meant, copy "
                << std::filesystem::absolute(name).string()
                << " over it and say why in the commit\n--- got\n"
                << text << "--- wanted\n"
                << wanted;
}

}  // namespace switchyard::test
