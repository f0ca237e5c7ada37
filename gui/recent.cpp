// SPDX-License-Identifier: Apache-2.0
#include "gui/recent.hpp"

#include <QFileInfo>
#include <QSettings>

namespace switchyard::gui {
namespace {
const QString kKey = QStringLiteral("recent");
const QString kBookmarks = QStringLiteral("bookmarks");
}  // namespace

QStringList recentFiles() {
  QStringList there;
  for (const QString& f : QSettings().value(kKey).toStringList()) {
    if (QFileInfo::exists(f)) there << f;
  }
  return there;
}

void rememberFile(const QString& path) {
  const QString whole = QFileInfo(path).absoluteFilePath();
  QStringList files = recentFiles();
  files.removeAll(whole);
  files.prepend(whole);
  while (files.size() > kRecentMost) files.removeLast();
  QSettings().setValue(kKey, files);
}

// One list: path, "step name", "step name", …, and so on for the next file; a path is absolute, so
// it never begins with a digit. Newest first.
namespace {
std::vector<QStringList> bookmarkLists() {
  std::vector<QStringList> lists;
  for (const QString& s : QSettings().value(kBookmarks).toStringList()) {
    if (s.isEmpty()) continue;
    if (!s[0].isDigit()) {
      lists.push_back({s});
    } else if (!lists.empty()) {
      lists.back() << s;
    }
  }
  return lists;
}
}  // namespace

std::vector<Bookmark> bookmarksOf(const QString& path) {
  const QString whole = QFileInfo(path).absoluteFilePath();
  std::vector<Bookmark> out;
  for (const QStringList& list : bookmarkLists()) {
    if (list.first() != whole) continue;
    for (qsizetype i = 1; i < list.size(); ++i) {
      bool ok = false;
      const std::uint64_t step = list[i].section(' ', 0, 0).toULongLong(&ok);
      if (ok) out.push_back({step, list[i].section(' ', 1)});
    }
  }
  return out;
}

void rememberBookmarks(const QString& path, const std::vector<Bookmark>& bookmarks) {
  const QString whole = QFileInfo(path).absoluteFilePath();
  std::vector<QStringList> lists = bookmarkLists();
  std::erase_if(lists, [&](const QStringList& l) { return l.first() == whole; });
  if (!bookmarks.empty()) {
    QStringList mine = {whole};
    for (const Bookmark& b : bookmarks) {
      mine << QString::number(b.step) + QLatin1Char(' ') + b.name.simplified();
    }
    lists.insert(lists.begin(), mine);
  }
  if (lists.size() > kBookmarkFiles) lists.resize(kBookmarkFiles);
  QStringList all;
  for (const QStringList& l : lists) all << l;
  QSettings().setValue(kBookmarks, all);
}

}  // namespace switchyard::gui
