// SPDX-License-Identifier: Apache-2.0
// write_demo_run OUT.h5 [STEPS]: the made-up run as a file, for pictures.
#include <cstdlib>

#include "sim/run/run_file.hpp"
#include "tests/gui/demo_run.hpp"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const auto steps =
      argc > 2 ? static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 400U;
  switchyard::run::write_run(argv[1], switchyard::gui::testing::demoRun(steps));
  return 0;
}
