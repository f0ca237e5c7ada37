// SPDX-License-Identifier: Apache-2.0
// main() of the tests that drive widgets. The platform comes from the environment (CTest sets
// offscreen), so that a person can also watch.
#include <QApplication>

#include <gtest/gtest.h>

#include "gui/theme.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  QApplication app(argc, argv);
  QApplication::setOrganizationName(QStringLiteral("switchyard-test"));
  QApplication::setApplicationName(QStringLiteral("switchyard-gui-test"));
  switchyard::gui::applyTheme(false);
  return RUN_ALL_TESTS();
}
