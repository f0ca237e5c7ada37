// SPDX-License-Identifier: Apache-2.0
// The name of a file to write.
#pragma once
#include <QString>
#include <QStringList>

class QFileDialog;
class QWidget;

namespace switchyard::gui {

/// "png" of "Picture (*.png)"; empty where the kind names no suffix.
QString suffixOf(const QString& kind);

/// Makes the dialog one that asks for a file to write, starting at `start` (a file or ""), of one
/// of `kinds` ("Picture (*.png)"), the first at first. A name without a suffix gets that of the
/// chosen kind.
void prepareToSave(QFileDialog& dialog, const QString& start, const QStringList& kinds);

/// Asks for a file as prepareToSave() says. Whether an existing file is to be replaced is asked of
/// the name with its suffix. Empty: the person gave up.
QString askSaveName(QWidget* parent, const QString& title, const QString& start,
                    const QStringList& kinds);

}  // namespace switchyard::gui
