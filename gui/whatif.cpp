// SPDX-License-Identifier: Apache-2.0
#include "gui/whatif.hpp"

#include <cmath>

#include <QComboBox>
#include <QDir>
#include <QFileInfo>
#include <QLabel>
#include <QLineEdit>
#include <QPushButton>

#include "engine/base/error.hpp"
#include "gui/choicebox.hpp"
#include "gui/core/gallery.hpp"
#include "gui/core/scenariodocument.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {

WhatIf::WhatIf(QWidget* parent)
    : QToolBar(tr("What if"), parent),
      m_name(new QLabel(this)),
      m_factor(new QLineEdit(this)),
      m_links(new QLineEdit(this)),
      m_policy(new ChoiceBox(this)),
      m_algorithm(new ChoiceBox(this)),
      m_lost(new ChoiceBox(this)),
      m_choose(new QPushButton(tr("Scenario…"), this)),
      m_run(new QPushButton(tr("Run and overlay"), this)) {
  setObjectName(QStringLiteral("whatif"));
  setMovable(false);
  const auto field = [&](const QString& text, QWidget* editor, const QString& tip) {
    auto* label = new QLabel(text, this);
    label->setContentsMargins(8, 0, 4, 0);
    label->setBuddy(nullptr);
    addWidget(label);
    addWidget(editor);
    editor->setAccessibleName(tr("What if: %1").arg(text));
    editor->setToolTip(tip);
    return label;
  };
  auto* title = new QLabel(tr("What if"), this);
  QFont bold = font();
  bold.setBold(true);
  title->setFont(bold);
  title->setContentsMargins(6, 0, 4, 0);
  m_titleItem = addWidget(title);
  m_factor->setPlaceholderText(tr("as is"));
  m_links->setPlaceholderText(tr("× 1"));
  m_policy->addItem(tr("as is"), QString());
  const QDir policies(qs((scenariosFolder() / "policies").string()));
  for (const QString& f : policies.entryList({QStringLiteral("*.toml")}, QDir::Files, QDir::Name)) {
    m_policy->addItem(QFileInfo(f).completeBaseName(), policies.absoluteFilePath(f));
  }
  m_policy->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  m_algorithm->addItem(tr("as is"), QString());
  for (const char* a : {"direct", "ring", "ring_bidirectional", "hierarchical"}) {
    m_algorithm->addItem(QString::fromLatin1(a), QString::fromLatin1(a));
  }
  m_algorithm->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  m_factorName = field(tr("capacity factor"), m_factor,
        tr("policy.capacity.factor, a number > 0. Where the scenario has no capacity limit it gets "
           "one: policy.capacity.rule = share, this factor times an expert's fair share."));
  field(tr("policy"), m_policy, tr("A policy file in place of policy.file"));
  field(tr("exchange"), m_algorithm, tr("network.algorithm"));
  field(tr("links ×"), m_links, tr("Bandwidth of every type of link, times this"));
  // As wide as the usual names, whatever has been in it when it is first shown.
  m_lost->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  m_lost->addItem(tr("none"), QString());
  field(
      tr("lost GPU"), m_lost,
      tr("faults.events: besides the scenario's own faults this GPU is lost at the cursor's step, "
         "else in the middle of the run"));
  addSeparator();
  addWidget(m_run);
  auto* gap = new QWidget(this);
  gap->setFixedWidth(6);
  addWidget(gap);
  addWidget(m_choose);
  m_nameItem = addWidget(m_name);
  m_name->setContentsMargins(8, 0, 0, 0);
  m_choose->setToolTip(tr("The scenario that the shown run came from"));
  connect(m_run, &QPushButton::clicked, this, &WhatIf::runWanted);
  connect(m_choose, &QPushButton::clicked, this, &WhatIf::chooseScenario);
  connect(m_factor, &QLineEdit::returnPressed, this, &WhatIf::runWanted);
  connect(m_links, &QLineEdit::returnPressed, this, &WhatIf::runWanted);
  fitText();
  refresh();
}

void WhatIf::fitText() {
  setNarrow(m_narrow);
  if (m_room > 0) fitInto(m_room);
}

void WhatIf::setNarrow(int level) {
  m_narrow = level;
  const bool small = level > 0;
  m_policy->setMinimumContentsLength(small ? 8 : 14);
  m_algorithm->setMinimumContentsLength(small ? 8 : 18);
  m_lost->setMinimumContentsLength(6);
  const int field = fontMetrics().averageCharWidth() * (small ? 7 : 9);
  m_factor->setFixedWidth(field);
  m_links->setFixedWidth(field);
  m_titleItem->setVisible(level < 2);
  m_nameItem->setVisible(level < 3);
  m_factorName->setText(level < 4 ? tr("capacity factor") : tr("factor"));
}

void WhatIf::fitInto(int width) {
  m_room = width;
  constexpr int kMost = 4;
  for (int level = 0; level <= kMost; ++level) {
    setNarrow(level);
    if (sizeHint().width() <= width) return;
  }
}

void WhatIf::changeEvent(QEvent* event) {
  QToolBar::changeEvent(event);
  if (event->type() == QEvent::FontChange) fitText();
}

void WhatIf::setScenario(const QString& file, const QStringList& settings) {
  m_file = file;
  m_settings = settings;
  refresh();
}

void WhatIf::setGpus(const QStringList& names) {
  m_lost->clear();
  m_lost->addItem(tr("none"), QString());
  for (const QString& name : names) m_lost->addItem(name, name);
}

void WhatIf::setBusy(bool busy) {
  m_busy = busy;
  refresh();
}

void WhatIf::refresh() {
  m_run->setEnabled(!m_busy && !m_file.isEmpty());
  m_run->setToolTip(m_file.isEmpty()
                        ? tr("The scenario of this run is not known: choose it with Scenario…")
                        : tr("Simulate %1 with these changes and show it as B").arg(m_file));
  m_name->setText(m_file.isEmpty() ? tr("scenario not known") : QFileInfo(m_file).fileName());
  fitText();
}

QString WhatIf::withFaults(const QString& gpu) const {
  const QString lost =
      QStringLiteral("{ kind = \"gpu_loss\", gpu = \"%1\", step = %2 }").arg(gpu).arg(m_step);
  // What the shown run had as a whole goes before the file; changes of single keys are made in it.
  ScenarioDocument document(m_file.toStdString());
  QString whole;
  for (const QString& s : m_settings) {
    const QString key = s.section(QLatin1Char('='), 0, 0);
    const QString value = s.section(QLatin1Char('='), 1);
    if (key == QStringLiteral("faults.events")) {
      whole = value.trimmed();
    } else if (key.startsWith(QStringLiteral("faults.events["))) {
      document.set(key.toStdString(), value.toStdString());
    }
  }
  if (!whole.endsWith(QLatin1Char(']'))) {
    return qs(document.listWith("faults.events", lost.toStdString()));
  }
  whole.chop(1);
  whole = whole.trimmed();
  return whole + (whole.endsWith(QLatin1Char('[')) ? QString() : QStringLiteral(", ")) + lost +
         QLatin1Char(']');
}

QStringList WhatIf::withFactor(double factor, const QStringList& before) const {
  ScenarioDocument document(m_file.toStdString());
  for (const QString& s : before) {
    const QString key = s.section(QLatin1Char('='), 0, 0);
    if (key.startsWith(QStringLiteral("policy."))) {
      document.set(key.toStdString(), s.section(QLatin1Char('='), 1).toStdString());
    }
  }
  const auto value = [&](const char* key) {
    const ScenarioDocument::Entry* entry = document.entry(key);
    return entry == nullptr ? QString() : qs(entry->value).remove(QLatin1Char('"'));
  };
  const QString rule = value("policy.capacity.rule");
  const QString dynamic = value("policy.capacity.dynamic");
  if (rule == QStringLiteral("absolute") || rule == QStringLiteral("fairseq_train")) {
    throw InputError("capacity factor",
                     "the scenario's capacity limit, policy.capacity.rule = " + rule.toStdString() +
                         ", has no factor",
                     "leave the field empty or choose a policy whose limit has one");
  }
  if (!dynamic.isEmpty() && dynamic != QStringLiteral("fixed")) {
    throw InputError(
        "capacity factor",
        "the scenario's capacity limit changes in the run, policy.capacity.dynamic = " +
            dynamic.toStdString() + ", and has no fixed factor",
        "leave the field empty or choose a policy with a fixed limit");
  }
  QStringList out;
  if (rule == QStringLiteral("none")) out << QStringLiteral("policy.capacity.rule=share");
  return out << QStringLiteral("policy.capacity.factor=%1").arg(factor);
}

QStringList WhatIf::settings() const {
  QStringList out = m_settings;
  const auto number = [](const QLineEdit* edit, const char* what) {
    bool ok = false;
    const double v = edit->text().trimmed().toDouble(&ok);
    if (!ok || !(v > 0) || !std::isfinite(v)) {
      throw InputError(what, "\"" + edit->text().toStdString() + "\" is no number > 0", "e.g. 1.5");
    }
    return v;
  };
  if (!m_policy->currentData().toString().isEmpty()) {
    out << QStringLiteral("policy.file=%1").arg(m_policy->currentData().toString());
  }
  if (!m_factor->text().trimmed().isEmpty()) {
    out << withFactor(number(m_factor, "capacity factor"), out);
  }
  if (!m_algorithm->currentData().toString().isEmpty()) {
    out << QStringLiteral("network.algorithm=%1").arg(m_algorithm->currentData().toString());
  }
  if (const QString gpu = m_lost->currentData().toString(); !gpu.isEmpty()) {
    out << QStringLiteral("faults.events=") + withFaults(gpu);
  }
  if (!m_links->text().trimmed().isEmpty()) {
    const double factor = number(m_links, "links");
    const ScenarioDocument document(m_file.toStdString());
    for (const ScenarioDocument::Entry& e : document.entries()) {
      const QString key = qs(e.key);
      if (!key.startsWith(QStringLiteral("hardware.link_types.")) ||
          !key.endsWith(QStringLiteral(".bandwidth")) || key.contains(QStringLiteral(".source."))) {
        continue;
      }
      // "450 GB/s" → "900 GB/s"
      // What the shown run set itself goes before the file.
      QString value = qs(e.value);
      for (const QString& s : m_settings) {
        if (s.startsWith(key + QLatin1Char('=')))
          value = s.mid(key.size() + 1).remove(QLatin1Char('"'));
      }
      const qsizetype space = value.indexOf(QLatin1Char(' '));
      bool ok = false;
      const double rate = value.left(space).toDouble(&ok);
      if (!ok || space < 0) {
        throw InputError(e.key, "\"" + value.toStdString() + "\" is no rate that could be scaled",
                         "e.g. 450 GB/s");
      }
      out << QStringLiteral("%1=%2%3")
                 .arg(key)
                 .arg(rate * factor, 0, 'g', 10)
                 .arg(value.mid(space));
    }
  }
  return out;
}

}  // namespace switchyard::gui
