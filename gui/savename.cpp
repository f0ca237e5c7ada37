// SPDX-License-Identifier: Apache-2.0
#include "gui/savename.hpp"

#include <QFileDialog>
#include <QFileInfo>
#include <QRegularExpression>

namespace switchyard::gui {

QString suffixOf(const QString& kind) {
  static const QRegularExpression suffix(QStringLiteral("\\*\\.(\\w+)"));
  return suffix.match(kind).captured(1);
}

void prepareToSave(QFileDialog& dialog, const QString& start, const QStringList& kinds) {
  // A desktop's own dialog would ask about the name as it was typed, without the suffix.
  dialog.setOption(QFileDialog::DontUseNativeDialog);
  dialog.setAcceptMode(QFileDialog::AcceptSave);
  dialog.setFileMode(QFileDialog::AnyFile);
  dialog.setNameFilters(kinds);
  dialog.setDefaultSuffix(suffixOf(kinds.value(0)));
  QObject::connect(&dialog, &QFileDialog::filterSelected, &dialog,
                   [&dialog](const QString& kind) { dialog.setDefaultSuffix(suffixOf(kind)); });
  if (!start.isEmpty()) {
    const QFileInfo file(start);
    dialog.setDirectory(file.absolutePath());
    dialog.selectFile(file.fileName());
  }
}

QString askSaveName(QWidget* parent, const QString& title, const QString& start,
                    const QStringList& kinds) {
  QFileDialog dialog(parent, title);
  prepareToSave(dialog, start, kinds);
  return dialog.exec() == QDialog::Accepted ? dialog.selectedFiles().value(0) : QString();
}

}  // namespace switchyard::gui
