// SPDX-License-Identifier: Apache-2.0
// A scenario as a form: sections at the left, a row per key with its value, what may stand there,
// and where the value comes from. Every change is checked at once; the line above the buttons says
// what is wrong and where. Saving edits the values in place. Run simulates the text as it is on the
// screen, saved or not.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include <QWidget>

#include "gui/core/scenariodocument.hpp"

class QAction;
class QCheckBox;
class QComboBox;
class QLabel;
class QLineEdit;
class QListWidget;
class QPushButton;
class QScrollArea;

namespace switchyard::gui {

class ScenarioForm : public QWidget {
  Q_OBJECT
 public:
  explicit ScenarioForm(QWidget* parent = nullptr);
  ~ScenarioForm() override;
  /// InputError when the file cannot be opened; the form stays as it was.
  void open(const QString& file);
  /// Null before open().
  [[nodiscard]] const ScenarioDocument* document() const { return m_document.get(); }
  /// The editor of a key that is on the screen, a QLineEdit or an editable QComboBox; else null.
  [[nodiscard]] QWidget* editorOf(const QString& key) const;
  void showSection(const QString& section);
  /// As typed into the key's editor.
  void setValue(const QString& key, const QString& value);
  /// Adds, copies or removes an item of a list of tables ("faults.events").
  void editList(const QString& list, ListEdit edit, std::size_t index);
  void undo();
  void redo();
  [[nodiscard]] QString problemText() const;
  [[nodiscard]] QPushButton* runButton() const { return m_run; }
  [[nodiscard]] QPushButton* compareButton() const { return m_compare; }
  [[nodiscard]] QPushButton* saveButton() const { return m_save; }
  [[nodiscard]] QPushButton* reloadButton() const { return m_reload; }
  [[nodiscard]] QPushButton* overwriteButton() const { return m_overwrite; }
  /// Save, save as, undo, redo, run, run and compare; each acts while the form is on the screen.
  [[nodiscard]] const QList<QAction*>& commands() const { return m_commands; }
  /// Takes over what stands in a field and was not confirmed with Enter or Tab.
  void commit();
  /// Whether the file is as it was read or saved; if not, a line above the keys says so and offers
  /// what can be done.
  bool checkDisk();
  /// What that line says; empty: nothing.
  [[nodiscard]] QString diskText() const;
  /// Reads the file again; Undo brings back what stood in the form.
  void reload();
  [[nodiscard]] QLineEdit* filter() const { return m_filter; }
  [[nodiscard]] QCheckBox* allKeys() const { return m_all; }
  /// No second simulation while one runs.
  void setBusy(bool busy);

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override;
  void showEvent(QShowEvent* event) override;
  void hideEvent(QHideEvent* event) override;
  void changeEvent(QEvent* event) override;

 signals:
  /// compare: as B beside the run that is shown.
  void runWanted(bool compare);
  void changed();

 private:
  struct Row {
    QWidget* editor = nullptr;
    QLabel* origin = nullptr;
    QString shown;  ///< What the editor held when it was filled or read last.
  };
  /// `keepPlace`: the same rows stay on screen, and the editor or button with the keyboard focus
  /// has it again.
  void rebuild(bool keepPlace = false);
  void rebuildLater();
  void rowEdited(const QString& key, const QString& text);
  void makeCommands();
  void fitText();
  void wantRun(bool compare);
  /// Name of the item, with the buttons that copy and remove it.
  QWidget* itemHead(const ScenarioDocument::List& list, std::size_t index, QWidget* page);
  void refresh();
  enum class SaveTo { kFile, kFileAsItIsNow, kElsewhere };
  void save(SaveTo where);
  [[nodiscard]] std::vector<const ScenarioDocument::Entry*> shown() const;
  [[nodiscard]] QString originText(const ScenarioDocument::Entry& entry) const;

  std::unique_ptr<ScenarioDocument> m_document;
  QLabel *m_title, *m_problem;
  QListWidget* m_sections;
  QScrollArea* m_area;
  QLineEdit* m_filter;
  QCheckBox* m_all;
  QPushButton *m_undo, *m_redo, *m_save, *m_saveAs, *m_run, *m_compare;
  std::map<QString, Row> m_rows;
  QString m_refused;     ///< A change that could not be placed.
  std::string m_warned;  ///< The text that was warned about before it is saved.
  QString m_notSaved;    ///< Why the last attempt to save failed.
  QStringList m_next;    ///< Who gets the focus after the rows are made anew: the first that can.
  QWidget* m_disk;       ///< The line about the file, with its buttons.
  QLabel* m_diskText;
  QPushButton *m_reload, *m_overwrite;
  QList<QAction*> m_commands;
  bool m_busy = false, m_filling = false;
};

}  // namespace switchyard::gui
