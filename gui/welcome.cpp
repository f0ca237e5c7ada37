// SPDX-License-Identifier: Apache-2.0
#include "gui/welcome.hpp"

#include <QFileInfo>
#include <QGridLayout>
#include <QLabel>
#include <QPushButton>
#include <QStyleOptionButton>
#include <QStylePainter>
#include <QVBoxLayout>

#include "gui/text.hpp"
#include "gui/theme.hpp"

namespace switchyard::gui {
namespace {

QLabel* heading(const QString& text, QWidget* parent, double larger = 2) {
  auto* label = new QLabel(text, parent);
  makeHeading(label, larger);
  return label;
}

/// A flat button whose text begins at the left, in the palette's colours in every state and theme,
/// which one that a style sheet aligns does not promise.
class FileButton : public QPushButton {
 public:
  explicit FileButton(const QString& text) : QPushButton(text) { setFlat(true); }

 protected:
  void paintEvent(QPaintEvent*) override {
    QStylePainter painter(this);
    QStyleOptionButton option;
    initStyleOption(&option);
    painter.drawControl(QStyle::CE_PushButtonBevel, option);
    const QRect room = style()->subElementRect(QStyle::SE_PushButtonContents, &option, this);
    const int aside = style()->pixelMetric(QStyle::PM_ButtonMargin, &option, this) / 2;
    painter.drawItemText(
        room.adjusted(aside, 0, -aside, 0), Qt::AlignLeft | Qt::AlignVCenter, option.palette,
        isEnabled(),
        option.fontMetrics.elidedText(text(), Qt::ElideMiddle, room.width() - 2 * aside),
        QPalette::ButtonText);
    if (hasFocus()) {
      QStyleOptionFocusRect focus;
      focus.QStyleOption::operator=(option);
      focus.rect = style()->subElementRect(QStyle::SE_PushButtonFocusRect, &option, this);
      painter.drawPrimitive(QStyle::PE_FrameFocusRect, focus);
    }
  }
};

}  // namespace

Welcome::Welcome(const std::filesystem::path& scenarios, QWidget* parent)
    : QScrollArea(parent), m_folder(scenarios), m_entries(gallery(scenarios)) {
  setWidgetResizable(true);
  setFrameShape(QFrame::NoFrame);
  setAccessibleName(tr("Welcome"));
  auto* page = new QWidget(this);
  auto* grid = new QGridLayout(page);
  grid->setContentsMargins(28, 20, 28, 20);
  grid->setHorizontalSpacing(36);
  auto* title = heading(tr("Switchyard"), page, 8);
  auto* what = new QLabel(
      tr("Where the tokens of a Mixture-of-Experts model go, and what that costs."), page);
  grid->addWidget(title, 0, 0, 1, 2);
  grid->addWidget(what, 1, 0, 1, 2);

  auto* left = new QVBoxLayout;
  left->setSpacing(6);
  left->addSpacing(10);
  left->addWidget(heading(tr("Explore"), page));
  bool more = false;
  for (const GalleryEntry& e : m_entries) {
    if (!e.exploration && !more) {
      more = true;
      left->addSpacing(10);
      left->addWidget(heading(tr("Shipped scenarios"), page));
    }
    left->addWidget(entryRow(e));
  }
  if (m_entries.empty()) {
    auto* none = new QLabel(tr("No scenarios are installed beside this program. Name their folder "
                               "in SWITCHYARD_SCENARIOS, or open a run file."),
                            page);
    none->setWordWrap(true);
    left->addWidget(none);
  }
  left->addStretch(1);
  grid->addLayout(left, 2, 0);

  auto* right = new QVBoxLayout;
  right->setSpacing(6);
  right->addSpacing(10);
  right->addWidget(heading(tr("Open"), page));
  auto* open = new QPushButton(tr("Open a run or a scenario…"), page);
  connect(open, &QPushButton::clicked, this, &Welcome::openWanted);
  right->addWidget(open);
  auto* tour = new QPushButton(tr("Tour: twelve tokens"), page);
  tour->setToolTip(tr("Twelve tokens, step by step: which expert takes which"));
  connect(tour, &QPushButton::clicked, this, &Welcome::tourWanted);
  right->addWidget(tour);
  auto* drop = new QLabel(tr("or drop files here: one run opens, two are compared, more are other "
                             "seeds of the two; a scenario "
                             "(.toml) opens in the form."),
                          page);
  drop->setWordWrap(true);
  right->addWidget(drop);
  right->addSpacing(14);
  right->addWidget(heading(tr("Recent"), page));
  m_recent = new QVBoxLayout;
  right->addLayout(m_recent);
  right->addStretch(1);
  grid->addLayout(right, 2, 1);
  grid->setColumnStretch(0, 3);
  grid->setColumnStretch(1, 2);
  grid->setRowStretch(2, 1);
  setWidget(page);
  setRecent({});
}

QWidget* Welcome::entryRow(const GalleryEntry& entry) {
  auto* row = new QWidget(this);
  auto* layout = new QHBoxLayout(row);
  layout->setContentsMargins(0, 2, 0, 2);
  auto* text = new QLabel(row);
  text->setTextFormat(Qt::RichText);
  text->setWordWrap(true);
  text->setText(QStringLiteral("<b>%1</b><br>%2")
                    .arg(qs(entry.title).toHtmlEscaped(), qs(entry.text).toHtmlEscaped()));
  text->setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Preferred);
  auto* run = new QPushButton(tr("Run"), row);
  run->setObjectName(QStringLiteral("run:") + qs(entry.id));
  run->setAccessibleName(tr("Run %1").arg(qs(entry.title)));
  run->setToolTip(entry.runsAlone ? tr("Simulate and show it")
                                  : tr("Needs a file that another command makes first: see Edit…"));
  run->setEnabled(entry.runsAlone);
  const QString id = qs(entry.id);
  connect(run, &QPushButton::clicked, this, [this, id] { emit runWanted(id); });
  auto* edit = new QPushButton(tr("Edit…"), row);
  edit->setObjectName(QStringLiteral("edit:") + qs(entry.id));
  edit->setAccessibleName(tr("Edit %1").arg(qs(entry.title)));
  edit->setToolTip(tr("Open %1 in the form").arg(qs(entry.runs.front().file)));
  const QString file = qs((m_folder / entry.runs.front().file).string());
  connect(edit, &QPushButton::clicked, this, [this, file] { emit editWanted(file); });
  layout->addWidget(text, 1);
  layout->addWidget(run, 0, Qt::AlignTop);
  layout->addWidget(edit, 0, Qt::AlignTop);
  return row;
}

QPushButton* Welcome::runButton(const QString& id) const {
  return findChild<QPushButton*>(QStringLiteral("run:") + id);
}
QPushButton* Welcome::editButton(const QString& id) const {
  return findChild<QPushButton*>(QStringLiteral("edit:") + id);
}

void Welcome::setBusy(bool busy) {
  for (const GalleryEntry& e : m_entries) {
    runButton(qs(e.id))->setEnabled(!busy && e.runsAlone);
  }
}

void Welcome::setRecent(const QStringList& files) {
  while (QLayoutItem* item = m_recent->takeAt(0)) {
    delete item->widget();
    delete item;
  }
  if (files.isEmpty()) {
    m_recent->addWidget(new QLabel(tr("nothing yet")));
    return;
  }
  for (const QString& f : files) {
    auto* button = new FileButton(QFileInfo(f).fileName());
    button->setToolTip(f);
    connect(button, &QPushButton::clicked, this, [this, f] { emit fileWanted(f); });
    m_recent->addWidget(button);
  }
}

}  // namespace switchyard::gui
