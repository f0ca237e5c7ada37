// SPDX-License-Identifier: Apache-2.0
// main() of the tests that drive widgets. The platform comes from the environment (CTest sets
// offscreen), so that a person can also watch.
#include <gtest/gtest.h>

#include "gui/application.hpp"
#include "gui/theme.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  switchyard::gui::Application app(argc, argv);
  QApplication::setOrganizationName(QStringLiteral("switchyard-test"));
  QApplication::setApplicationName(QStringLiteral("switchyard-gui-test"));
  switchyard::gui::applyTheme(false);
  return RUN_ALL_TESTS();
}
