// SPDX-License-Identifier: Apache-2.0
// The what-if strip: another capacity factor, policy, exchange algorithm, faster links, a GPU that
// is lost (at the cursor's step, else in the middle of the run; in place of the scenario's faults).
// One click runs the scenario of the run that is shown with it and lays the result over it.
#pragma once
#include <cstdint>

#include <QToolBar>

class QComboBox;
class QLabel;
class QLineEdit;
class QPushButton;

namespace switchyard::gui {

class WhatIf : public QToolBar {
  Q_OBJECT
 public:
  explicit WhatIf(QWidget* parent = nullptr);
  /// The scenario that the shown run came from; empty: not known.
  void setScenario(const QString& file, const QStringList& settings);
  /// GPUs that can be lost, and the step at which one is.
  void setGpus(const QStringList& names);
  void setStep(std::uint64_t step) { m_step = step; }
  [[nodiscard]] QComboBox* lost() const { return m_lost; }
  [[nodiscard]] QString scenario() const { return m_file; }
  void setBusy(bool busy);
  /// As wide as it is laid out for in that many pixels: boxes and fields become narrower, then
  /// title, file name and the longest label go.
  void fitInto(int width);
  [[nodiscard]] QLineEdit* factor() const { return m_factor; }
  [[nodiscard]] QLineEdit* links() const { return m_links; }
  [[nodiscard]] QComboBox* policy() const { return m_policy; }
  [[nodiscard]] QComboBox* algorithm() const { return m_algorithm; }
  [[nodiscard]] QPushButton* runButton() const { return m_run; }
  /// What is to be changed, as --set takes it, after what the shown run was changed by. InputError
  /// for a factor that is no number > 0, and for one that the scenario's capacity limit would not
  /// use.
  [[nodiscard]] QStringList settings() const;
  /// What the shown run set itself, without what the strip changes.
  [[nodiscard]] const QStringList& baseSettings() const { return m_settings; }

 signals:
  void runWanted();
  void chooseScenario();

 protected:
  void changeEvent(QEvent* event) override;

 private:
  void fitText();
  void setNarrow(int level);
  /// The scenario's faults and the loss of the GPU, as an inline array.
  [[nodiscard]] QString withFaults(const QString& gpu) const;
  /// The settings for a capacity factor, after those in `before`: with a rule that multiplies by it
  /// where the scenario has no capacity limit. InputError where its limit has no factor.
  [[nodiscard]] QStringList withFactor(double factor, const QStringList& before) const;
  void refresh();
  QString m_file;
  QStringList m_settings;
  int m_narrow = 0;  // how much has given way
  int m_room = 0;    // of fitInto(); 0: not known
  QLabel *m_name, *m_factorName = nullptr;
  QAction *m_titleItem = nullptr, *m_nameItem = nullptr;
  QLineEdit *m_factor, *m_links;
  QComboBox *m_policy, *m_algorithm, *m_lost;
  std::uint64_t m_step = 0;
  QPushButton *m_choose, *m_run;
  bool m_busy = false;
};

}  // namespace switchyard::gui
