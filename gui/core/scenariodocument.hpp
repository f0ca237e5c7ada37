// SPDX-License-Identifier: Apache-2.0
// A scenario file that is being edited key by key. The text is the truth: setting a key replaces
// its value where it stands (comments, order and layout stay), or adds the key to its section; a
// new section goes before the sections that are documented after it. After every change the text
// is read again: exactly the wanted key may differ, else the change is refused; and the scenario
// is resolved, so that problem() says what is wrong and where. No Qt.
//
// Items of arrays of tables that stand in the file ([[sweep]], [[faults.events]],
// [[workload.tiers]]) are set like other keys, "faults.events[0].step", lists of values as a whole,
// "[1.0, 2.0]". Items are added, copied, moved and removed (ListEdit); a list of another file (the
// links of a hardware preset) is copied into this one first. Not modelled: quoted keys: they are
// shown, not set; removing a key (undo does it).
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::scenario {
enum class ValueKind : std::uint8_t;  // scenario.hpp has names that are macros of Qt
struct Node;
struct ReadOptions;
struct Scenario;
struct SweepAxis;
}  // namespace switchyard::scenario

namespace switchyard::gui {

/// The text with `key` set to `toml`, or InputError(name, …).
std::string setInText(const std::string& text, const std::string& name, const std::string& key,
                      const std::string& toml);

/// The text with an item of the list of tables `key` ("faults.events") added after its last one,
/// copied (the copy follows it), or removed; or InputError(name, …). Comments inside a removed item
/// go with it. kUp and kDown exchange an item with its neighbour, each with the comment directly
/// above it and the one at its end. `toml`: the new item as an inline table; only for kAdd.
enum class ListEdit : std::uint8_t { kAdd, kDuplicate, kRemove, kUp, kDown };
std::string editList(const std::string& text, const std::string& name, const std::string& key,
                     ListEdit edit, std::size_t index, const std::string& toml = {});

/// Which scenario a run was made from: resolves files once, and again where one was written since.
/// What a scenario names (a model, a policy) may change unnoticed until then. From any thread.
class ScenarioTexts {
 public:
  /// The first of `files` that resolves to this canonical text, as a run holds it (a sweep left
  /// out); empty: none.
  std::filesystem::path withText(const std::vector<std::filesystem::path>& files,
                                 const std::string& canonical);
  /// Files resolved so far.
  [[nodiscard]] std::size_t resolved() const;

 private:
  struct Known {
    std::filesystem::file_time_type written;
    std::string text;  ///< Empty: it cannot be read here.
  };
  mutable std::mutex m_mutex;
  std::map<std::filesystem::path, Known> m_known;
  std::size_t m_resolved = 0;
};

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

  /// A list of tables that a scenario may have, whether it has items or not.
  struct List {
    std::string key, section;
    std::string item;  ///< What one of them is, for people: "fault".
    std::size_t items = 0;
    bool inFile = false;  ///< false with items: they stand in another file.
  };

  /// InputError when the file cannot be read or is no TOML.
  explicit ScenarioDocument(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return m_path; }
  [[nodiscard]] const std::string& text() const { return m_text; }
  /// Differs from what was read or saved last.
  [[nodiscard]] bool changed() const { return m_text != m_saved; }
  /// Of the last text that resolved; items of lists that stand in the file as they are now.
  [[nodiscard]] const std::vector<Entry>& entries() const { return m_entries; }
  /// Null when there is no such key.
  [[nodiscard]] const Entry* entry(std::string_view key) const;
  /// "file:line:column: what is wrong" of the text as it is now.
  [[nodiscard]] const std::optional<std::string>& problem() const { return m_problem; }
  /// In the order of sections. Tiers only where requests arrive.
  [[nodiscard]] const std::vector<List>& lists() const { return m_lists; }
  /// Adds an item that can be edited, copies, moves or removes one; one step of undo. The lists of
  /// another file are copied into this one first. With the last fault or alarm its whole section
  /// goes: it means nothing without. InputError: the text is as before.
  void edit(const std::string& list, ListEdit edit, std::size_t index = 0);
  /// The list with one more item (an inline table) at its end, as an inline array: what --set takes
  /// for it. InputError where the list cannot have it.
  [[nodiscard]] std::string listWith(const std::string& key, const std::string& item) const;
  [[nodiscard]] bool hasSweep() const { return m_sweep; }
  [[nodiscard]] const std::string& hash() const { return m_hash; }

  /// `value` is TOML or a bare word, as for --set. InputError when it cannot be placed; the text is
  /// as before then. A value that resolves to nonsense is placed: problem() says so.
  void set(const std::string& key, const std::string& value);
  bool undo();
  bool redo();
  [[nodiscard]] bool canUndo() const { return !m_undo.empty(); }
  [[nodiscard]] bool canRedo() const { return !m_redo.empty(); }
  /// --set key=value of everything that differs from the file on disk, sorted by key; a list whose
  /// number of items differs as a whole. InputError where a whole list was removed: no setting says
  /// that, the file must be saved.
  [[nodiscard]] std::vector<std::string> settings() const;

  /// What another program did to the file since it was read or saved. Reads the file.
  enum class OnDisk : std::uint8_t { kSame, kOther, kGone };
  [[nodiscard]] OnDisk onDisk() const;
  /// Takes the text that is in the file now; one step of undo. InputError when the file cannot be
  /// read or is no TOML: the text is as before.
  void reload();

  /// Writes to a temporary name and renames. InputError: nothing changed on disk. What another
  /// program wrote there since is refused, or replaced with `overwrite`.
  void save(bool overwrite = false);
  void saveAs(const std::filesystem::path& path);

 private:
  void resolve();
  /// What is wrong with a point of the sweep, at the axis that is to blame.
  [[nodiscard]] std::optional<std::string> sweepProblem(
      const std::vector<scenario::SweepAxis>& axes, const scenario::ReadOptions& options) const;
  [[nodiscard]] std::vector<List> listsOf(const scenario::Node& root,
                                          const scenario::Scenario& s) const;
  /// An item that can stand in the list, as an inline table.
  [[nodiscard]] std::string newItem(const std::string& key, std::size_t items) const;
  /// The text with the items of a list that stands in another file.
  [[nodiscard]] std::string ownText(const List& list) const;
  void keepItems();
  void replace(const std::string& text);
  std::filesystem::path m_path;
  std::string m_text, m_saved, m_hash;
  std::vector<std::string> m_undo, m_redo;
  std::vector<Entry> m_entries;
  std::vector<List> m_lists;
  std::string m_firstGpu = "gpu0";
  std::optional<std::string> m_problem;
  bool m_sweep = false;
};

}  // namespace switchyard::gui
