// SPDX-License-Identifier: Apache-2.0
// What the window shows before a run is open: the shipped scenarios, each with Run and Edit, and
// the files opened lately.
#pragma once
#include <filesystem>
#include <vector>

#include <QScrollArea>

#include "gui/core/gallery.hpp"

class QPushButton;
class QVBoxLayout;

namespace switchyard::gui {

class Welcome : public QScrollArea {
  Q_OBJECT
 public:
  explicit Welcome(const std::filesystem::path& scenarios, QWidget* parent = nullptr);
  [[nodiscard]] const std::vector<GalleryEntry>& entries() const { return m_entries; }
  /// Null for an unknown id.
  [[nodiscard]] QPushButton* runButton(const QString& id) const;
  [[nodiscard]] QPushButton* editButton(const QString& id) const;
  /// While a simulation runs, no second one is offered.
  void setBusy(bool busy);
  void setRecent(const QStringList& files);

 signals:
  void runWanted(const QString& id);
  void editWanted(const QString& file);
  void openWanted();
  void fileWanted(const QString& file);
  void tourWanted();

 private:
  QWidget* entryRow(const GalleryEntry& entry);
  std::filesystem::path m_folder;
  std::vector<GalleryEntry> m_entries;
  QVBoxLayout* m_recent = nullptr;
};

}  // namespace switchyard::gui
