// SPDX-License-Identifier: Apache-2.0
// The runs that the window has simulated and kept on disk: how large each is, and a way to be rid
// of them. Not modelled: runs that were saved elsewhere.
#pragma once
#include <QDialog>
#include <QStringList>

class QLabel;
class QPushButton;
class QStandardItemModel;

namespace switchyard::gui {

class TableView;

class RunsFolder : public QDialog {
  Q_OBJECT
 public:
  explicit RunsFolder(const QString& folder, QWidget* parent = nullptr);
  [[nodiscard]] TableView* table() const { return m_table; }
  /// "3 files, 4.2 MB in FOLDER".
  [[nodiscard]] QString text() const;
  [[nodiscard]] QPushButton* deleteButton() const { return m_delete; }
  [[nodiscard]] QPushButton* openButton() const { return m_open; }

 signals:
  void openWanted(const QStringList& files);

 private:
  void refresh();
  void choose();
  void askDelete();
  [[nodiscard]] QStringList chosen() const;
  QString m_folder;
  QStandardItemModel* m_model;
  TableView* m_table;
  QLabel* m_text;
  QPushButton *m_open, *m_delete;
};

}  // namespace switchyard::gui
