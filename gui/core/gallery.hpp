// SPDX-License-Identifier: Apache-2.0
// What the welcome page offers: ready-made explorations, then every other shipped scenario. No Qt.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace switchyard::gui {

struct GalleryRun {
  std::string file;                   ///< Below the folder of scenarios.
  std::vector<std::string> settings;  ///< key=value
  std::string label;                  ///< Part of the run file's name.
};
/// Simulations: the first two are shown as a comparison, others wait in its lists.
struct GalleryEntry {
  std::string id, title, text;
  std::vector<GalleryRun> runs;
  /// Routing is recorded first, from the shipped checkpoint (scripts/demo does the same).
  bool records = false;
  bool oneLayer = false;     ///< Shown at the first MoE layer, not at the sum of all.
  bool runsAlone = true;     ///< false: it needs a file that something else makes first.
  std::vector<std::string> panes;  ///< Named in `text` and hidden at first: shown with the run.
  bool exploration = false;        ///< Made for the welcome page, with what to look at in `text`.
};

/// $SWITCHYARD_SCENARIOS, else the installed folder, else the one that this program was built from;
/// empty if none is there.
std::filesystem::path scenariosFolder();

/// Entries whose files are all in `folder`. The others' text is the first comment of the file.
std::vector<GalleryEntry> gallery(const std::filesystem::path& folder);

}  // namespace switchyard::gui
