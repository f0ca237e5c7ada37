// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/shipped.hpp"

#include <cstdlib>

namespace switchyard::scenario {

namespace fs = std::filesystem;

fs::path shipped_scenarios(const fs::path& source, const fs::path& program) {
  if (const char* named = std::getenv("SWITCHYARD_SCENARIOS")) return named;
  std::error_code ignored;
  const fs::path self = program.empty() ? fs::read_symlink("/proc/self/exe", ignored) : program;
  const fs::path installed =
      self.parent_path().parent_path() / "share" / "switchyard" / "scenarios";
  if (!self.empty() && fs::is_directory(installed, ignored)) return installed;
  return fs::is_directory(source, ignored) ? source : fs::path{};
}

}  // namespace switchyard::scenario
