// SPDX-License-Identifier: Apache-2.0
#include "gui/runsfolder.hpp"

#include <QDateTime>
#include <QDesktopServices>
#include <QDir>
#include <QFile>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QMessageBox>
#include <QPushButton>
#include <QStandardItemModel>
#include <QUrl>
#include <QVBoxLayout>

#include "gui/tableview.hpp"
#include "gui/text.hpp"

namespace switchyard::gui {

RunsFolder::RunsFolder(const QString& folder, QWidget* parent)
    : QDialog(parent),
      m_folder(folder),
      m_model(new QStandardItemModel(this)),
      m_table(new TableView(this)),
      m_text(new QLabel(this)),
      m_open(new QPushButton(tr("Open"), this)),
      m_delete(new QPushButton(tr("Delete…"), this)) {
  setWindowTitle(tr("Runs kept on disk"));
  setObjectName(QStringLiteral("runsfolder"));
  auto* layout = new QVBoxLayout(this);
  m_text->setWordWrap(true);
  m_text->setTextFormat(Qt::PlainText);
  m_text->setTextInteractionFlags(Qt::TextSelectableByMouse);
  layout->addWidget(m_text);
  m_model->setSortRole(kSortRole);
  m_table->setModel(m_model);
  m_table->setSelectionMode(QAbstractItemView::ExtendedSelection);
  m_table->setAccessibleName(windowTitle());
  m_table->setEmptyText(tr("No run is kept yet: each one that is simulated here is."));
  layout->addWidget(m_table, 1);
  auto* row = new QHBoxLayout;
  auto* show = new QPushButton(tr("Open the folder"), this);
  auto* close = new QPushButton(tr("Close"), this);
  row->addWidget(m_open);
  row->addWidget(m_delete);
  row->addStretch(1);
  row->addWidget(show);
  row->addWidget(close);
  layout->addLayout(row);
  refresh();
  // By date, the newest first.
  m_table->horizontalHeader()->setDefaultAlignment(Qt::AlignLeft | Qt::AlignVCenter);
  m_table->horizontalHeader()->setSortIndicator(2, Qt::DescendingOrder);
  m_table->setSortingEnabled(true);
  connect(m_table->selectionModel(), &QItemSelectionModel::selectionChanged, this,
          &RunsFolder::choose);
  connect(m_table, &QAbstractItemView::doubleClicked, m_open, &QPushButton::click);
  connect(m_open, &QPushButton::clicked, this, [this] {
    emit openWanted(chosen());
    accept();
  });
  connect(m_delete, &QPushButton::clicked, this, &RunsFolder::askDelete);
  connect(show, &QPushButton::clicked, this,
          [this] { QDesktopServices::openUrl(QUrl::fromLocalFile(m_folder)); });
  connect(close, &QPushButton::clicked, this, &QDialog::reject);
  resize(fontMetrics().averageCharWidth() * 84, fontMetrics().height() * 22);
}

QString RunsFolder::text() const { return m_text->text(); }

void RunsFolder::refresh() {
  m_model->removeRows(0, m_model->rowCount());
  m_model->setHorizontalHeaderLabels({tr("file"), tr("size"), tr("written")});
  double all = 0;
  const QFileInfoList files =
      QDir(m_folder).entryInfoList({QStringLiteral("*.h5")}, QDir::Files, QDir::Name);
  for (const QFileInfo& f : files) {
    auto* name = new QStandardItem(f.fileName());
    name->setData(f.fileName(), kSortRole);
    auto* size = new QStandardItem(qs(bytesText(static_cast<double>(f.size()))));
    size->setData(static_cast<double>(f.size()), kSortRole);
    size->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
    auto* when =
        new QStandardItem(f.lastModified().toString(QStringLiteral("yyyy-MM-dd HH:mm:ss")));
    when->setData(f.lastModified(), kSortRole);
    m_model->appendRow({name, size, when});
    all += static_cast<double>(f.size());
  }
  if (m_table->isSortingEnabled()) {
    m_table->sortByColumn(m_table->horizontalHeader()->sortIndicatorSection(),
                          m_table->horizontalHeader()->sortIndicatorOrder());
  }
  m_text->setText(tr("%1 files, %2 in %3")
                      .arg(files.size())
                      .arg(qs(bytesText(all)), QDir::toNativeSeparators(m_folder)));
  m_table->fitColumns();
  m_table->horizontalHeader()->setStretchLastSection(true);
  choose();
}

QStringList RunsFolder::chosen() const {
  QStringList files;
  for (const QModelIndex& i : m_table->selectionModel()->selectedRows()) {
    files << QDir(m_folder).filePath(i.data().toString());
  }
  return files;
}

void RunsFolder::choose() {
  const bool some = m_table->selectionModel()->hasSelection();
  m_open->setEnabled(some);
  m_delete->setEnabled(some);
}

void RunsFolder::askDelete() {
  const QStringList files = chosen();
  double all = 0;
  for (const QString& f : files) all += static_cast<double>(QFileInfo(f).size());
  auto* ask =
      new QMessageBox(QMessageBox::Question, tr("Delete runs"),
                      tr("Delete %1 files (%2)? What is open stays open until it is closed.")
                          .arg(files.size())
                          .arg(qs(bytesText(all))),
                      QMessageBox::Cancel, this);
  ask->setAttribute(Qt::WA_DeleteOnClose);
  QPushButton* yes = ask->addButton(tr("Delete"), QMessageBox::DestructiveRole);
  yes->setObjectName(QStringLiteral("reallyDelete"));
  connect(yes, &QPushButton::clicked, this, [this, files] {
    QStringList left;
    for (const QString& f : files) {
      if (!QFile::remove(f) && QFile::exists(f)) left << QFileInfo(f).fileName();
    }
    refresh();
    if (!left.isEmpty()) {
      m_text->setText(tr("cannot delete: %1").arg(left.join(QStringLiteral(", "))));
    }
  });
  ask->open();
}

}  // namespace switchyard::gui
