// SPDX-License-Identifier: Apache-2.0
// Files opened lately, newest first, at most ten; in QSettings. Names are absolute.
#pragma once
#include <vector>

#include <QStringList>

#include "gui/viewstate.hpp"

namespace switchyard::gui {

inline constexpr int kRecentMost = 10;
/// Those that still exist.
QStringList recentFiles();
void rememberFile(const QString& path);

/// The bookmarks of a run file, by its absolute path; empty for a file without any.
std::vector<Bookmark> bookmarksOf(const QString& path);
/// Keeps them; those of kBookmarkFiles files at most, the longest unchanged goes first.
void rememberBookmarks(const QString& path, const std::vector<Bookmark>& bookmarks);
inline constexpr int kBookmarkFiles = 200;

}  // namespace switchyard::gui
