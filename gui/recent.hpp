// SPDX-License-Identifier: Apache-2.0
// Files opened lately, newest first, at most ten; in QSettings. Names are absolute.
#pragma once
#include <QStringList>

namespace switchyard::gui {

inline constexpr int kRecentMost = 10;
/// Those that still exist.
QStringList recentFiles();
void rememberFile(const QString& path);

}  // namespace switchyard::gui
