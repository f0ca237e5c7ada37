// SPDX-License-Identifier: Apache-2.0
#include "gui/recent.hpp"

#include <QFileInfo>
#include <QSettings>

namespace switchyard::gui {
namespace {
const QString kKey = QStringLiteral("recent");
}

QStringList recentFiles() {
  QStringList there;
  for (const QString& f : QSettings().value(kKey).toStringList()) {
    if (QFileInfo::exists(f)) there << f;
  }
  return there;
}

void rememberFile(const QString& path) {
  const QString whole = QFileInfo(path).absoluteFilePath();
  QStringList files = recentFiles();
  files.removeAll(whole);
  files.prepend(whole);
  while (files.size() > kRecentMost) files.removeLast();
  QSettings().setValue(kKey, files);
}

}  // namespace switchyard::gui
