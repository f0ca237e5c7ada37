// SPDX-License-Identifier: Apache-2.0
// A scenario file that is being edited key by key. The text is the truth: setting a key replaces
// its value where it stands (comments, order and layout stay), or adds the key to its section; a
// new section goes before the sections that are documented after it. After every change the text
// is read again: exactly the wanted key may differ, else the change is refused; and the scenario
// is resolved, so that problem() says what is wrong and where. No Qt.
//
// Items of arrays of tables that stand in the file ([[sweep]], [[faults.events]],
// [[workload.tiers]]) are set like other keys, "faults.events[0].step", lists of values as a whole,
// "[1.0, 2.0]". Not modelled: items of other files (hardware.links[0].… of a preset) and quoted
// keys: they are shown, not set; new items; removing a key (undo does it).
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::scenario {
enum class ValueKind : std::uint8_t;  // scenario.hpp has names that are macros of Qt
}

namespace switchyard::gui {

/// The text with `key` set to `toml`, or InputError(name, …).
std::string setInText(const std::string& text, const std::string& name, const std::string& key,
                      const std::string& toml);

/// The first of `files` that resolves to this canonical text, as a run holds it (a sweep left out);
/// empty: none.
std::filesystem::path scenarioWithText(const std::vector<std::filesystem::path>& files,
                                       const std::string& canonical);

class ScenarioDocument {
 public:
  struct Entry {
    std::string key, section;
    std::string value;    ///< As in the file where it stands there, as resolved otherwise.
    std::string origin;   ///< "default", "file:line:column", …
    bool inFile = false;  ///< The file itself sets it.
    bool editable = true;
    scenario::ValueKind kind{};
    std::vector<std::string> choices;  ///< Words, or files for a key that names one.
    std::string legal;                 ///< What may stand there, for people.
  };

  /// InputError when the file cannot be read or is no TOML.
  explicit ScenarioDocument(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return m_path; }
  [[nodiscard]] const std::string& text() const { return m_text; }
  /// Differs from what was read or saved last.
  [[nodiscard]] bool changed() const { return m_text != m_saved; }
  /// Of the last text that resolved.
  [[nodiscard]] const std::vector<Entry>& entries() const { return m_entries; }
  /// Null when there is no such key.
  [[nodiscard]] const Entry* entry(std::string_view key) const;
  /// "file:line:column: what is wrong" of the text as it is now.
  [[nodiscard]] const std::optional<std::string>& problem() const { return m_problem; }
  [[nodiscard]] bool hasSweep() const { return m_sweep; }
  [[nodiscard]] const std::string& hash() const { return m_hash; }

  /// `value` is TOML or a bare word, as for --set. InputError when it cannot be placed; the text is
  /// as before then. A value that resolves to nonsense is placed: problem() says so.
  void set(const std::string& key, const std::string& value);
  bool undo();
  bool redo();
  /// --set key=value of everything that differs from the file on disk, sorted by key.
  [[nodiscard]] std::vector<std::string> settings() const;

  /// Writes to a temporary name and renames. InputError: nothing changed on disk.
  void save();
  void saveAs(const std::filesystem::path& path);

 private:
  void resolve();
  std::filesystem::path m_path;
  std::string m_text, m_saved, m_hash;
  std::vector<std::string> m_undo, m_redo;
  std::vector<Entry> m_entries;
  std::optional<std::string> m_problem;
  bool m_sweep = false;
};

}  // namespace switchyard::gui
