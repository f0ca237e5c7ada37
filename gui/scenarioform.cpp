// SPDX-License-Identifier: Apache-2.0
#include "gui/scenarioform.hpp"

#include <algorithm>
#include <tuple>

#include <QAction>
#include <QCheckBox>
#include <QComboBox>
#include <QFileInfo>
#include <QFormLayout>
#include <QKeyEvent>
#include <QLabel>
#include <QLineEdit>
#include <QListWidget>
#include <QPainter>
#include <QPushButton>
#include <QScrollArea>
#include <QScrollBar>
#include <QSplitter>
#include <QVBoxLayout>

#include "engine/base/error.hpp"
#include "gui/choicebox.hpp"
#include "gui/savename.hpp"
#include "gui/text.hpp"
#include "gui/theme.hpp"

namespace switchyard::gui {
namespace {

/// Shown besides what the file sets: what people change first.
const QStringList& commonKeys() {
  static const QStringList keys = {QStringLiteral("model.file"),
                                   QStringLiteral("model.top_k"),
                                   QStringLiteral("model.dtype.experts"),
                                   QStringLiteral("hardware.file"),
                                   QStringLiteral("parallel.attention"),
                                   QStringLiteral("parallel.dp"),
                                   QStringLiteral("parallel.tp"),
                                   QStringLiteral("parallel.ep"),
                                   QStringLiteral("parallel.placement"),
                                   QStringLiteral("workload.kind"),
                                   QStringLiteral("workload.batch"),
                                   QStringLiteral("workload.context"),
                                   QStringLiteral("workload.tokens"),
                                   QStringLiteral("workload.steps"),
                                   QStringLiteral("workload.warmup_steps"),
                                   QStringLiteral("workload.routing.synthetic"),
                                   QStringLiteral("workload.routing.s"),
                                   QStringLiteral("workload.routing.sigma"),
                                   QStringLiteral("workload.routing.alpha"),
                                   QStringLiteral("workload.routing.domains"),
                                   QStringLiteral("workload.routing.token_correlation"),
                                   QStringLiteral("workload.routing.layer_correlation"),
                                   QStringLiteral("policy.file"),
                                   QStringLiteral("policy.capacity.rule"),
                                   QStringLiteral("policy.capacity.factor"),
                                   QStringLiteral("policy.capacity.reroute"),
                                   QStringLiteral("policy.capacity.exhausted"),
                                   QStringLiteral("policy.capacity.order"),
                                   QStringLiteral("network.model"),
                                   QStringLiteral("network.algorithm"),
                                   QStringLiteral("network.dispatch"),
                                   QStringLiteral("memory.watermark"),
                                   QStringLiteral("run.seed"),
                                   QStringLiteral("run.detail")};
  return keys;
}

bool common(const QString& key) {
  return commonKeys().contains(key) || key.startsWith(QStringLiteral("hardware.link_types.")) ||
         (key.startsWith(QStringLiteral("hardware.gpu_types.")) &&
          (key.endsWith(QStringLiteral(".memory")) || key.endsWith(QStringLiteral(".hbm"))));
}

/// One line that ends in an ellipsis where it has no room; all of it is the tool tip.
class CutLabel : public QLabel {
 public:
  CutLabel(const QString& text, QWidget* parent) : QLabel(text, parent) {
    setTextFormat(Qt::PlainText);
    setForegroundRole(QPalette::PlaceholderText);
    setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
    setToolTip(text);
  }

 protected:
  void paintEvent(QPaintEvent*) override {
    QPainter painter(this);
    painter.setPen(palette().color(foregroundRole()));
    painter.drawText(rect(), Qt::AlignLeft | Qt::AlignVCenter,
                     fontMetrics().elidedText(text(), Qt::ElideRight, width()));
  }
};

QLineEdit* lineOf(QWidget* editor) {
  auto* box = qobject_cast<QComboBox*>(editor);
  return box != nullptr ? box->lineEdit() : static_cast<QLineEdit*>(editor);
}

}  // namespace

ScenarioForm::ScenarioForm(QWidget* parent)
    : QWidget(parent),
      m_title(new QLabel(this)),
      m_problem(new QLabel(this)),
      m_sections(new QListWidget(this)),
      m_area(new QScrollArea(this)),
      m_filter(new QLineEdit(this)),
      m_all(new QCheckBox(tr("All keys"), this)),
      m_undo(new QPushButton(tr("Undo"), this)),
      m_redo(new QPushButton(tr("Redo"), this)),
      m_save(new QPushButton(tr("Save"), this)),
      m_saveAs(new QPushButton(tr("Save as…"), this)),
      m_run(new QPushButton(tr("Run"), this)),
      m_compare(new QPushButton(tr("Run and compare"), this)),
      m_disk(new QWidget(this)),
      m_diskText(new QLabel(m_disk)),
      m_reload(new QPushButton(tr("Reload"), m_disk)),
      m_overwrite(new QPushButton(tr("Overwrite"), m_disk)) {
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(10, 8, 10, 6);
  auto* top = new QHBoxLayout;
  makeHeading(m_title, 2);
  m_title->setTextFormat(Qt::PlainText);
  m_filter->setPlaceholderText(tr("Find a key"));
  m_filter->setAccessibleName(tr("Find a key"));
  m_filter->setClearButtonEnabled(true);
  m_all->setToolTip(tr("Also keys that the file leaves at their defaults"));
  top->addWidget(m_title, 1);
  top->addWidget(m_filter);
  top->addWidget(m_all);
  layout->addLayout(top);
  auto* disk = new QHBoxLayout(m_disk);
  disk->setContentsMargins(6, 2, 6, 2);
  disk->addWidget(m_diskText, 1);
  disk->addWidget(m_reload);
  disk->addWidget(m_overwrite);
  m_disk->setAutoFillBackground(true);
  m_disk->setBackgroundRole(QPalette::ToolTipBase);
  m_diskText->setForegroundRole(QPalette::ToolTipText);
  m_diskText->setTextFormat(Qt::PlainText);
  m_diskText->setWordWrap(true);
  m_disk->setAccessibleName(tr("The file on disk"));
  m_reload->setToolTip(tr("Read the file as it is now; Undo brings back what stands here"));
  m_overwrite->setToolTip(tr("Write what stands here over what another program wrote"));
  m_disk->hide();
  layout->addWidget(m_disk);
  auto* middle = new QHBoxLayout;
  m_sections->setAccessibleName(tr("Sections"));
  m_area->setWidgetResizable(true);
  m_area->setAccessibleName(tr("Keys of the section"));
  middle->addWidget(m_sections);
  middle->addWidget(m_area, 1);
  layout->addLayout(middle, 1);
  m_problem->setWordWrap(true);
  m_problem->setTextFormat(Qt::PlainText);
  m_problem->setTextInteractionFlags(Qt::TextSelectableByMouse);
  m_problem->setAccessibleName(tr("Check"));
  layout->addWidget(m_problem);
  auto* bottom = new QHBoxLayout;
  for (QPushButton* b : {m_undo, m_redo, m_save, m_saveAs}) bottom->addWidget(b);
  bottom->addStretch(1);
  bottom->addWidget(m_compare);
  bottom->addWidget(m_run);
  layout->addLayout(bottom);
  m_undo->setToolTip(tr("Undo the last change of a value"));
  m_save->setToolTip(tr("Edit the values in the file; comments and order stay"));
  m_run->setToolTip(tr("Simulate what is on the screen, saved or not"));
  m_compare->setToolTip(tr("Simulate, and show the run as B beside the one that is open"));
  connect(m_sections, &QListWidget::currentRowChanged, this, [this] { rebuild(); });
  connect(m_filter, &QLineEdit::textChanged, this, [this] { rebuild(); });
  connect(m_all, &QCheckBox::toggled, this, [this] { rebuild(true); });
  connect(m_undo, &QPushButton::clicked, this, &ScenarioForm::undo);
  connect(m_redo, &QPushButton::clicked, this, &ScenarioForm::redo);
  connect(m_save, &QPushButton::clicked, this, [this] { save(SaveTo::kFile); });
  connect(m_saveAs, &QPushButton::clicked, this, [this] { save(SaveTo::kElsewhere); });
  connect(m_reload, &QPushButton::clicked, this, &ScenarioForm::reload);
  connect(m_overwrite, &QPushButton::clicked, this, [this] { save(SaveTo::kFileAsItIsNow); });
  connect(m_run, &QPushButton::clicked, this, [this] { wantRun(false); });
  connect(m_compare, &QPushButton::clicked, this, [this] { wantRun(true); });
  fitText();
  makeCommands();
  refresh();
}

void ScenarioForm::fitText() {
  m_filter->setMaximumWidth(fontMetrics().averageCharWidth() * 30);
  m_sections->setMaximumWidth(fontMetrics().averageCharWidth() * 18);
}

void ScenarioForm::changeEvent(QEvent* event) {
  QWidget::changeEvent(event);
  if (event->type() == QEvent::FontChange) fitText();
}

void ScenarioForm::makeCommands() {
  // In the order of refresh(), which enables each as its button.
  const auto add = [this](const QString& text, const QList<QKeySequence>& keys, const QString& tip,
                          QPushButton* button) {
    auto* action = new QAction(text, this);
    action->setShortcuts(keys);
    action->setStatusTip(tip);
    action->setEnabled(false);
    button->setToolTip(button->toolTip() +
                       (button->toolTip().isEmpty() ? QString() : QStringLiteral("\n")) +
                       QKeySequence::listToString(keys, QKeySequence::NativeText));
    connect(action, &QAction::triggered, this, [this, button] {
      commit();
      if (button->isEnabled()) button->click();
    });
    addAction(action);
    m_commands << action;
  };
  add(tr("Save scenario"), {QKeySequence(Qt::CTRL | Qt::Key_S)},
      tr("Save the scenario that is in the form"), m_save);
  add(tr("Save scenario as…"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_S)},
      tr("Save the scenario under another name"), m_saveAs);
  add(tr("Undo"), {QKeySequence(Qt::CTRL | Qt::Key_Z)}, tr("Undo the last change in the form"),
      m_undo);
  add(tr("Redo"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_Z)},
      tr("Make the change in the form again that was undone"), m_redo);
  add(tr("Run scenario"), {QKeySequence(Qt::CTRL | Qt::Key_R)},
      tr("Simulate what is in the form, saved or not"), m_run);
  add(tr("Run scenario and compare"), {QKeySequence(Qt::CTRL | Qt::SHIFT | Qt::Key_R)},
      tr("Simulate what is in the form, and show it as B"), m_compare);
}

void ScenarioForm::wantRun(bool compare) {
  commit();
  // What was typed may be wrong, and the child reads the file.
  if (m_run->isEnabled() && checkDisk()) emit runWanted(compare);
}

bool ScenarioForm::eventFilter(QObject* watched, QEvent* event) {
  // A field undoes letters while it holds some that are not confirmed, else the form undoes values.
  if (event->type() == QEvent::ShortcutOverride) {
    const auto* key = static_cast<QKeyEvent*>(event);
    if (key->matches(QKeySequence::Undo) || key->matches(QKeySequence::Redo)) {
      for (const auto& [name, row] : m_rows) {
        if (row.editor != watched && lineOf(row.editor) != watched) continue;
        if (lineOf(row.editor)->text() != row.shown) break;
        event->ignore();
        return true;
      }
    }
  }
  return QWidget::eventFilter(watched, event);
}

void ScenarioForm::showEvent(QShowEvent* event) {
  QWidget::showEvent(event);
  refresh();
}

void ScenarioForm::hideEvent(QHideEvent* event) {
  QWidget::hideEvent(event);
  for (QAction* a : m_commands) a->setEnabled(false);
}

ScenarioForm::~ScenarioForm() = default;

void ScenarioForm::open(const QString& file) {
  auto document = std::make_unique<ScenarioDocument>(file.toStdString());
  m_document = std::move(document);
  m_refused.clear();
  m_notSaved.clear();
  m_disk->hide();
  m_filling = true;
  m_sections->clear();
  for (const ScenarioDocument::Entry& e : m_document->entries()) {
    const QString section = qs(e.section);
    if (m_sections->findItems(section, Qt::MatchExactly).isEmpty()) m_sections->addItem(section);
  }
  // Sections that a scenario gets with its first fault, alarm or axis.
  for (const ScenarioDocument::List& list : m_document->lists()) {
    const QString section = qs(list.section);
    if (m_sections->findItems(section, Qt::MatchExactly).isEmpty()) m_sections->addItem(section);
  }
  m_filling = false;
  m_sections->setCurrentRow(0);
  rebuild();
  refresh();
}

std::vector<const ScenarioDocument::Entry*> ScenarioForm::shown() const {
  std::vector<const ScenarioDocument::Entry*> out;
  if (m_document == nullptr) return out;
  const QString section =
      m_sections->currentItem() != nullptr ? m_sections->currentItem()->text() : QString();
  const QString wanted = m_filter->text().trimmed();
  for (const ScenarioDocument::Entry& e : m_document->entries()) {
    const QString key = qs(e.key);
    if (!wanted.isEmpty()) {
      // A search goes through all sections and all keys.
      if (key.contains(wanted, Qt::CaseInsensitive)) out.push_back(&e);
      continue;
    }
    if (qs(e.section) != section) continue;
    if (m_all->isChecked() || e.inFile || common(key)) out.push_back(&e);
  }
  return out;
}

QString ScenarioForm::originText(const ScenarioDocument::Entry& entry) const {
  if (entry.origin == "default") return tr("default");
  const QString origin = qs(entry.origin);
  const QString own = qs(m_document->path().string());
  if (origin.startsWith(own + QLatin1Char(':'))) {
    return tr("line %1").arg(origin.mid(own.size() + 1).section(QLatin1Char(':'), 0, 0));
  }
  const QString file = origin.section(QLatin1Char('/'), -1);
  return file.isEmpty() ? origin : file;
}

void ScenarioForm::rebuildLater() {
  // Later: the widget that sent this is in the page that goes.
  QMetaObject::invokeMethod(
      this, [this] { rebuild(true); }, Qt::QueuedConnection);
}

void ScenarioForm::rebuild(bool keepPlace) {
  if (m_filling) return;
  const int scrolled = keepPlace ? m_area->verticalScrollBar()->value() : 0;
  QStringList next;
  const QWidget* focus = keepPlace ? window()->focusWidget() : nullptr;
  if (focus != nullptr && m_area->widget() != nullptr && m_area->widget()->isAncestorOf(focus)) {
    next = m_next;
    for (const auto& [key, row] : m_rows) {
      if (row.editor == focus || row.editor->isAncestorOf(focus)) next << key;
    }
    if (!focus->objectName().isEmpty()) next << focus->objectName();
  }
  const bool moved = !next.isEmpty() && !m_next.isEmpty();
  m_next.clear();
  auto* page = new QWidget;
  auto* form = new QGridLayout(page);
  form->setContentsMargins(12, 8, 12, 8);
  form->setHorizontalSpacing(12);
  form->setVerticalSpacing(4);
  form->setColumnStretch(1, 3);
  form->setColumnStretch(2, 2);
  m_rows.clear();
  int line = 0;
  const bool searching = !m_filter->text().trimmed().isEmpty();
  QString headOf;  // the item whose rows are being added
  for (const ScenarioDocument::Entry* e : shown()) {
    const QString key = qs(e->key);
    QString itemKey;
    if (!searching && m_document != nullptr) {
      for (const ScenarioDocument::List& list : m_document->lists()) {
        const QString start = qs(list.key) + QLatin1Char('[');
        if (!key.startsWith(start)) continue;
        const QString number = key.mid(start.size()).section(QLatin1Char(']'), 0, 0);
        itemKey = start + number + QStringLiteral("].");
        if (itemKey != headOf) {
          form->addWidget(itemHead(list, number.toULongLong(), page), line++, 0, 1, 4);
        }
      }
    }
    headOf = itemKey;
    // Without the section; "sweep[0].values" stays "[0].values".
    const qsizetype skip = qs(e->section).size();
    const QString own = itemKey.isEmpty() ? key.mid(skip + (key.mid(skip).startsWith('.') ? 1 : 0))
                                          : QStringLiteral("    ") + key.mid(itemKey.size());
    auto* name = new QLabel(searching ? key : own, page);
    name->setTextFormat(Qt::PlainText);
    name->setToolTip(key);
    QWidget* editor = nullptr;
    if (e->editable && !e->choices.empty()) {
      auto* box = new ChoiceBox(page);  // the wheel scrolls the page
      box->setEditable(true);
      box->setInsertPolicy(QComboBox::NoInsert);
      for (const std::string& c : e->choices) box->addItem(qs(c));
      box->setCurrentIndex(box->findText(qs(e->value)));
      box->setEditText(qs(e->value));
      box->setFocusPolicy(Qt::StrongFocus);
      connect(box, &QComboBox::activated, this,
              [this, key, box] { rowEdited(key, box->currentText()); });
      connect(box->lineEdit(), &QLineEdit::editingFinished, this,
              [this, key, box] { rowEdited(key, box->currentText()); });
      editor = box;
    } else {
      auto* edit = new QLineEdit(qs(e->value), page);
      edit->setCursorPosition(0);
      edit->setReadOnly(!e->editable);
      edit->setEnabled(e->editable);
      connect(edit, &QLineEdit::editingFinished, this,
              [this, key, edit] { rowEdited(key, edit->text()); });
      editor = edit;
    }
    editor->installEventFilter(this);
    lineOf(editor)->installEventFilter(this);
    editor->setAccessibleName(key);
    const QString hint = e->editable                               ? qs(e->legal)
                         : key.contains(QStringLiteral(".source")) ? tr("where the number is from")
                                                                   : tr("follows from other keys");
    editor->setToolTip(e->editable ? hint : qs(e->value) + QLatin1Char('\n') + hint);
    name->setBuddy(editor);
    auto* legal = new CutLabel(hint, page);
    auto* origin = new QLabel(page);
    origin->setForegroundRole(QPalette::PlaceholderText);
    form->addWidget(name, line, 0);
    form->addWidget(editor, line, 1);
    form->addWidget(legal, line, 2);
    form->addWidget(origin, line, 3);
    m_rows[key] = {editor, origin, lineOf(editor)->text()};
    ++line;
  }
  const QString section =
      m_sections->currentItem() != nullptr ? m_sections->currentItem()->text() : QString();
  bool lists = false;
  if (!searching && m_document != nullptr) {
    auto* row = new QHBoxLayout;
    for (const ScenarioDocument::List& list : m_document->lists()) {
      if (qs(list.section) != section) continue;
      lists = true;
      auto* add = new QPushButton(tr("Add %1").arg(qs(list.item)), page);
      add->setObjectName(QStringLiteral("add:") + qs(list.key));
      add->setToolTip(list.inFile || list.items == 0
                          ? tr("A new item of %1").arg(qs(list.key))
                          : tr("Copies the %1 items of %2 into this file, and adds one")
                                .arg(list.items)
                                .arg(qs(list.key)));
      connect(add, &QPushButton::clicked, this,
              [this, key = qs(list.key)] { editList(key, ListEdit::kAdd, 0); });
      row->addWidget(add);
    }
    row->addStretch(1);
    form->addLayout(row, line++, 0, 1, 4);
  }
  if (m_rows.empty() && !lists) {
    const QString why = searching          ? tr("No key has \"%1\" in its name.").arg(m_filter->text())
                        : m_all->isChecked() ? tr("This section has no keys.")
                                             : tr("The scenario sets nothing here. \"All keys\" shows "
                                                  "what could be set, with the defaults.");
    auto* none = new QLabel(why, page);
    none->setTextFormat(Qt::PlainText);
    form->addWidget(none, line++, 0, 1, 4);
  }
  form->setRowStretch(line + 1, 1);
  m_area->setWidget(page);
  refresh();
  if (!keepPlace) return;
  form->activate();
  m_area->verticalScrollBar()->setValue(scrolled);
  for (const QString& name : next) {
    const auto row = m_rows.find(name);
    QWidget* widget = row != m_rows.end() ? row->second.editor : page->findChild<QWidget*>(name);
    if (widget == nullptr || !widget->isEnabled()) continue;
    widget->setFocus(Qt::TabFocusReason);
    if (moved) m_area->ensureWidgetVisible(widget);
    break;
  }
}

QWidget* ScenarioForm::itemHead(const ScenarioDocument::List& list, std::size_t index,
                                QWidget* page) {
  auto* head = new QWidget(page);
  auto* row = new QHBoxLayout(head);
  row->setContentsMargins(0, 6, 0, 0);
  auto* name =
      new QLabel(tr("%1 %2 of %3").arg(qs(list.item)).arg(index + 1).arg(list.items), head);
  QFont bold = font();
  bold.setBold(true);
  name->setFont(bold);
  row->addWidget(name);
  const QString where = QStringLiteral("%1[%2]").arg(qs(list.key)).arg(index);
  for (const auto& [text, id, edit] :
       {std::tuple(tr("Duplicate"), QStringLiteral("duplicate:"), ListEdit::kDuplicate),
        std::tuple(tr("Remove"), QStringLiteral("remove:"), ListEdit::kRemove),
        std::tuple(tr("Up"), QStringLiteral("up:"), ListEdit::kUp),
        std::tuple(tr("Down"), QStringLiteral("down:"), ListEdit::kDown)}) {
    auto* button = new QPushButton(text, head);
    button->setEnabled(edit == ListEdit::kUp     ? index > 0
                       : edit == ListEdit::kDown ? index + 1 < list.items
                                                 : true);
    button->setObjectName(id + where);
    button->setAccessibleName(text + QLatin1Char(' ') + where);
    button->setToolTip(list.inFile ? where
                                   : tr("Copies the %1 items of %2 into this file first")
                                         .arg(list.items)
                                         .arg(qs(list.key)));
    connect(button, &QPushButton::clicked, this,
            [this, key = qs(list.key), edit = edit, index] { editList(key, edit, index); });
    row->addWidget(button);
  }
  row->addStretch(1);
  return head;
}

void ScenarioForm::editList(const QString& list, ListEdit edit, std::size_t index) {
  if (m_document == nullptr) return;
  m_refused.clear();
  m_notSaved.clear();
  std::size_t items = 0;
  for (const ScenarioDocument::List& l : m_document->lists()) {
    if (qs(l.key) == list) items = l.items;
  }
  try {
    m_document->edit(list.toStdString(), edit, index);
    // The keyboard goes with the item; to the item that is new.
    const auto button = [&](const char* what, std::size_t at) {
      return QStringLiteral("%1:%2[%3]").arg(QLatin1String(what), list).arg(at);
    };
    if (edit == ListEdit::kAdd || edit == ListEdit::kDuplicate) {
      const QString start =
          QStringLiteral("%1[%2].").arg(list).arg(edit == ListEdit::kAdd ? items : index + 1);
      for (const ScenarioDocument::Entry& e : m_document->entries()) {
        if (qs(e.key).startsWith(start)) m_next << qs(e.key);
      }
    } else if (edit == ListEdit::kRemove) {
      m_next << button("remove", index);
      if (index > 0) m_next << button("remove", index - 1);
      m_next << QStringLiteral("add:") + list;
    } else {
      const bool up = edit == ListEdit::kUp;
      const std::size_t at = up ? index - 1 : index + 1;
      m_next << button(up ? "up" : "down", at) << button(up ? "down" : "up", at);
    }
  } catch (const InputError& error) {
    m_refused = QString::fromUtf8(error.what());
  }
  rebuildLater();
  refresh();
  emit changed();
}

void ScenarioForm::refresh() {
  const bool there = m_document != nullptr;
  m_title->setText(there ? QFileInfo(qs(m_document->path().string())).fileName() +
                               (m_document->changed() ? tr(" (changed)") : QString())
                         : tr("No scenario is open"));
  m_title->setToolTip(there ? qs(m_document->path().string()) : QString());
  const bool good = there && !m_document->problem() && m_refused.isEmpty();
  QString text;
  if (!m_refused.isEmpty()) {
    text = m_refused;
  } else if (!m_notSaved.isEmpty()) {
    text = m_notSaved;
  } else if (there && m_document->problem()) {
    text = qs(*m_document->problem());
  } else if (there) {
    text =
        m_document->hasSweep()
            ? tr("All values are possible. The sweep is left out here: switchyard sweep runs it.")
            : tr("All values are possible.");
  }
  m_problem->setText(text);
  m_problem->setForegroundRole(good && m_notSaved.isEmpty() ? QPalette::WindowText
                                                            : QPalette::BrightText);
  m_undo->setEnabled(there && m_document->canUndo());
  m_redo->setEnabled(there && m_document->canRedo());
  m_save->setEnabled(there && (m_document->changed() || !m_disk->isHidden()));
  m_saveAs->setEnabled(there);
  m_run->setEnabled(good && !m_busy);
  m_compare->setEnabled(good && !m_busy);
  const QPushButton* buttons[] = {m_save, m_saveAs, m_undo, m_redo, m_run, m_compare};
  for (qsizetype i = 0; i < m_commands.size(); ++i) {
    m_commands[i]->setEnabled(isVisible() && buttons[i]->isEnabled());
  }
  if (!there) return;
  m_filling = true;
  for (auto& [key, row] : m_rows) {
    const ScenarioDocument::Entry* e = m_document->entry(key.toStdString());
    if (e == nullptr) continue;
    // What is wrong stays as typed until it is changed again.
    if (good) {
      if (auto* box = qobject_cast<QComboBox*>(row.editor)) {
        box->setEditText(qs(e->value));
        box->setCurrentIndex(box->findText(qs(e->value)));
        box->setEditText(qs(e->value));
      } else {
        auto* edit = static_cast<QLineEdit*>(row.editor);
        if (edit->text() != qs(e->value)) edit->setText(qs(e->value));
        edit->setCursorPosition(0);
      }
      row.shown = lineOf(row.editor)->text();
    }
    row.origin->setText(originText(*e));
    row.origin->setToolTip(qs(e->origin));
  }
  m_filling = false;
}

void ScenarioForm::rowEdited(const QString& key, const QString& text) {
  const auto row = m_rows.find(key);
  // A field that was only passed through says nothing, whatever is wrong elsewhere.
  if (m_filling || row == m_rows.end() || row->second.shown == text) return;
  row->second.shown = text;
  setValue(key, text);
}

void ScenarioForm::commit() {
  std::vector<std::pair<QString, QString>> typed;
  for (const auto& [key, row] : m_rows) {
    const QString text = lineOf(row.editor)->text();
    if (text != row.shown) typed.emplace_back(key, text);
  }
  for (const auto& [key, text] : typed) rowEdited(key, text);
}

void ScenarioForm::setValue(const QString& key, const QString& value) {
  if (m_document == nullptr || m_filling) return;
  const ScenarioDocument::Entry* e = m_document->entry(key.toStdString());
  if (e == nullptr || (qs(e->value) == value && !m_document->problem() && m_refused.isEmpty())) {
    return;
  }
  m_refused.clear();
  m_notSaved.clear();
  std::vector<std::string> before;
  for (const ScenarioDocument::Entry& x : m_document->entries()) before.push_back(x.key);
  try {
    m_document->set(key.toStdString(), value.trimmed().toStdString());
  } catch (const InputError& error) {
    m_refused = QString::fromUtf8(error.what());
  }
  std::vector<std::string> after;
  for (const ScenarioDocument::Entry& x : m_document->entries()) after.push_back(x.key);
  if (before != after) rebuildLater();
  refresh();
  emit changed();
}

void ScenarioForm::undo() {
  if (m_document == nullptr) return;
  m_refused.clear();
  m_notSaved.clear();
  m_document->undo();
  rebuild(true);
  emit changed();
}

void ScenarioForm::redo() {
  if (m_document == nullptr) return;
  m_refused.clear();
  m_notSaved.clear();
  m_document->redo();
  rebuild(true);
  emit changed();
}

void ScenarioForm::save(SaveTo where) {
  if (m_document == nullptr) return;
  commit();
  m_notSaved.clear();
  // An impossible value is not written without a word: asked for once more, it is.
  if (const auto& problem = m_document->problem(); problem && m_warned != m_document->text()) {
    m_warned = m_document->text();
    m_notSaved = tr("Not saved yet: no run can come of this scenario. Save once more to write it "
                    "as it is.\n%1")
                     .arg(qs(*problem));
    refresh();
    emit changed();
    return;
  }
  if (where == SaveTo::kFile && m_document->onDisk() == ScenarioDocument::OnDisk::kOther) {
    checkDisk();  // offers to reload or to overwrite
    return;
  }
  try {
    if (where == SaveTo::kElsewhere) {
      const QString path = askSaveName(this, tr("Save the scenario"),
                                       qs(m_document->path().string()), {tr("Scenarios (*.toml)")});
      if (path.isEmpty()) return;
      m_document->saveAs(path.toStdString());
    } else {
      m_document->save(where == SaveTo::kFileAsItIsNow);
    }
    checkDisk();
  } catch (const InputError& e) {
    m_notSaved = QString::fromUtf8(e.what());
  }
  refresh();
  emit changed();
}

bool ScenarioForm::checkDisk() {
  if (m_document == nullptr) return true;
  const ScenarioDocument::OnDisk now = m_document->onDisk();
  const QString name = qs(m_document->path().filename().string());
  if (now == ScenarioDocument::OnDisk::kOther) {
    m_diskText->setText(tr("Another program has written to %1 since it was read here.").arg(name));
  } else if (now == ScenarioDocument::OnDisk::kGone) {
    m_diskText->setText(tr("%1 is no longer there; Save writes it again.").arg(name));
  }
  m_reload->setVisible(now == ScenarioDocument::OnDisk::kOther);
  m_overwrite->setVisible(now == ScenarioDocument::OnDisk::kOther);
  m_disk->setVisible(now != ScenarioDocument::OnDisk::kSame);
  refresh();
  return now == ScenarioDocument::OnDisk::kSame;
}

QString ScenarioForm::diskText() const {
  return m_disk->isHidden() ? QString() : m_diskText->text();
}

void ScenarioForm::reload() {
  if (m_document == nullptr) return;
  commit();
  m_refused.clear();
  m_notSaved.clear();
  try {
    m_document->reload();
  } catch (const InputError& e) {
    m_notSaved = QString::fromUtf8(e.what());
  }
  checkDisk();
  rebuild(true);
  emit changed();
}

QWidget* ScenarioForm::editorOf(const QString& key) const {
  const auto found = m_rows.find(key);
  return found == m_rows.end() ? nullptr : found->second.editor;
}

void ScenarioForm::showSection(const QString& section) {
  const auto found = m_sections->findItems(section, Qt::MatchExactly);
  if (!found.isEmpty()) m_sections->setCurrentItem(found.first());
}

QString ScenarioForm::problemText() const { return m_problem->text(); }

void ScenarioForm::setBusy(bool busy) {
  m_busy = busy;
  refresh();
}

}  // namespace switchyard::gui
