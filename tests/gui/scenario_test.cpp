// SPDX-License-Identifier: Apache-2.0
// The scenario as a document and as a form: edits in place, checks, undo, run in a child process.
// Before Qt: a member of it is called `signals`.
#include "sim/scenario/scenario.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <QApplication>
#include <QCheckBox>
#include <QComboBox>
#include <QDir>
#include <QLineEdit>
#include <QMessageBox>
#include <QProcess>
#include <QPushButton>
#include <QScrollArea>
#include <QScrollBar>
#include <QTest>
#include <QTimer>
#include <QWheelEvent>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "gui/mainwindow.hpp"
#include "gui/text.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::kTinyScenario;
using testing::wait;
using testing::writeText;

std::string set(const std::string& text, const std::string& key, const std::string& toml) {
  return setInText(text, "x.toml", key, toml);
}
std::string refusal(const std::string& text, const std::string& key, const std::string& toml) {
  try {
    set(text, key, toml);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(SetInText, ReplacesTheValueAndNothingElse) {
  EXPECT_EQ(set("# top\n[run]\nseed = 1   # the seed\ndetail = \"steps\"\n", "run.seed", "42"),
            "# top\n[run]\nseed = 42   # the seed\ndetail = \"steps\"\n");
  EXPECT_EQ(set("[policy]\ncapacity = { rule = \"share\", factor = 1.25 }  # c\n",
                "policy.capacity.factor", "2.0"),
            "[policy]\ncapacity = { rule = \"share\", factor = 2.0 }  # c\n");
  EXPECT_EQ(set("[a]\nlist = [1, # one\n  2]\nb = 'x#y'\n", "a.list", "[3]"),
            "[a]\nlist = [3]\nb = 'x#y'\n");
  EXPECT_EQ(set("[a]\n\"b\" = \"größer\" # ß\nc = 1", "a.c", "2"),
            "[a]\n\"b\" = \"größer\" # ß\nc = 2");
  EXPECT_EQ(set("[a]\nx = \"\"\"\n[b]\nc = 1\n\"\"\"\nc = 1\n", "a.c", "5"),
            "[a]\nx = \"\"\"\n[b]\nc = 1\n\"\"\"\nc = 5\n");
}

TEST(SetInText, AddsAKeyWhereItBelongs) {
  EXPECT_EQ(set("[run]\nseed = 1\n\n[z]\na = 1\n", "run.detail", "\"steps\""),
            "[run]\nseed = 1\ndetail = \"steps\"\n\n[z]\na = 1\n");
  EXPECT_EQ(set("[policy]\ncapacity = { factor = 1 }\n", "policy.capacity.rule", "\"share\""),
            "[policy]\ncapacity = { factor = 1, rule = \"share\" }\n");
  EXPECT_EQ(set("[policy]\ncapacity = {}\n", "policy.capacity.rule", "\"share\""),
            "[policy]\ncapacity = { rule = \"share\"}\n");
  EXPECT_EQ(set("[policy]\nnoise.mode = \"fixed\"\n", "policy.noise.std", "0.1"),
            "[policy]\nnoise.mode = \"fixed\"\nnoise.std = 0.1\n");
  // A new section stands before those that are documented after it, above their comments.
  EXPECT_EQ(
      set("[model]\na = 1\n\n# about the run\n[run]\nseed = 1\n", "network.model", "\"flow\""),
      "[model]\na = 1\n\n[network]\nmodel = \"flow\"\n\n# about the run\n[run]\nseed = 1\n");
  EXPECT_EQ(set("[model]\na = 1", "run.seed", "2"), "[model]\na = 1\n\n[run]\nseed = 2\n");
}

TEST(SetInText, RefusesWhatItCannotPlace) {
  EXPECT_NE(refusal("[a]\nb = 1\n", "a.b.c", "1").find("takes no keys below it"),
            std::string::npos);
  EXPECT_NE(refusal("[a]\nb = 1\n", "a.b", "1\nc = 2").find("other keys would change"),
            std::string::npos);
  EXPECT_NE(refusal("[a\nb = 1\n", "a.b", "1").find("x.toml:"), std::string::npos);
}

// Every key that the form offers can be set to the value it has without changing the scenario.
TEST(Document, EveryOfferedKeyOfTheShippedScenariosCanBeSet) {
  for (const char* name : {"normative.toml", "mixed_fabric.toml", "gpu_failure.toml"}) {
    const std::filesystem::path file =
        std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios" / name;
    ScenarioDocument document(file);
    ASSERT_FALSE(document.problem()) << *document.problem();
    const std::string hash = document.hash();
    int tried = 0;
    const std::vector<ScenarioDocument::Entry> entries = document.entries();
    for (const ScenarioDocument::Entry& e : entries) {
      // One of each kind of hardware is enough; each key resolves the whole scenario anew.
      if (!e.editable || e.value == "auto") continue;
      if (e.key.starts_with("policy.") && ++tried % 4 != 0) continue;
      // Of the third only what stands in items of arrays, which the others do not have.
      if (name == std::string_view("gpu_failure.toml") && e.key.find('[') == std::string::npos) {
        continue;
      }
      document.set(e.key, e.value);
      EXPECT_FALSE(document.problem())
          << e.key << " = " << e.value << ": " << document.problem().value_or("");
      EXPECT_EQ(document.hash(), hash) << e.key << " = " << e.value;
      while (document.undo()) {
      }
    }
  }
}

TEST(Document, SettingsNameWhatDiffersFromTheFile) {
  writeText("doc.toml", kTinyScenario);
  ScenarioDocument document("doc.toml");
  ASSERT_FALSE(document.problem()) << *document.problem();
  EXPECT_TRUE(document.settings().empty());
  document.set("policy.capacity.factor", "2.5");
  document.set("hardware.link_types.nvlink4.bandwidth", "100 GB/s");
  document.set("run.detail", "steps");
  EXPECT_EQ(document.settings(),
            (std::vector<std::string>{"hardware.link_types.nvlink4.bandwidth=\"100 GB/s\"",
                                      "policy.capacity.factor=2.5", "run.detail=\"steps\""}));
  EXPECT_FALSE(document.problem()) << *document.problem();
  EXPECT_EQ(document.entry("hardware.link_types.nvlink4.bandwidth")->value, "100 GB/s");
  // The child resolves the settings to the scenario that is on the screen.
  scenario::ReadOptions options;
  options.settings = document.settings();
  EXPECT_EQ(scenario::scenario_hash(scenario::read_scenario("doc.toml", options)), document.hash());
  document.save();
  EXPECT_TRUE(document.settings().empty());
  std::ifstream in("doc.toml");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_TRUE(text.starts_with("# A comment that stays.\n"));
  EXPECT_NE(text.find("# tight"), std::string::npos);
  EXPECT_NE(text.find("factor = 2.5"), std::string::npos);
}

TEST(SetInText, SetsItemsOfArrays) {
  const std::string sweep =
      "[[sweep]]\nkey = \"run.seed\"  # first\nvalues = [1, 2]\n\n[[sweep]]\nkey = \"a\"\n"
      "values = [\n  3,  # three\n  4,\n]\n";
  EXPECT_EQ(set(sweep, "sweep[0].values", "[1, 2, 3]"),
            "[[sweep]]\nkey = \"run.seed\"  # first\nvalues = [1, 2, 3]\n\n[[sweep]]\nkey = "
            "\"a\"\nvalues = [\n  3,  # three\n  4,\n]\n");
  EXPECT_EQ(set(sweep, "sweep[1].values", "[5]"),
            "[[sweep]]\nkey = \"run.seed\"  # first\nvalues = [1, 2]\n\n[[sweep]]\nkey = \"a\"\n"
            "values = [5]\n");
  // A key that the item does not have yet.
  EXPECT_EQ(set("[[f.events]]\nstep = 1\n# about the next\n[[f.events]]\nstep = 2\n",
                "f.events[1].lasts", "3"),
            "[[f.events]]\nstep = 1\n# about the next\n[[f.events]]\nstep = 2\nlasts = 3\n");
  EXPECT_EQ(set("[f]\nevents = [{ step = 1 }, { step = 2 }]\n", "f.events[1].lasts", "3"),
            "[f]\nevents = [{ step = 1 }, { step = 2, lasts = 3 }]\n");
  EXPECT_EQ(set("[f]\nevents = [{ step = 1 }, { step = 2 }]\n", "f.events[0].step", "9"),
            "[f]\nevents = [{ step = 9 }, { step = 2 }]\n");
  EXPECT_NE(refusal("[[f]]\na = 1\n", "f[1].a", "2").find("no such item"), std::string::npos);
  EXPECT_NE(refusal("[[f]]\na = 1\n", "f[x].a", "2").find("no item of an array"),
            std::string::npos);
}

TEST(Document, SweepsAndFaultsAreEditedWhereTheyStand) {
  const std::filesystem::path root(SWITCHYARD_SOURCE_DIR);
  ScenarioDocument normative(root / "scenarios" / "normative.toml");
  const ScenarioDocument::Entry* values = normative.entry("sweep[0].values");
  ASSERT_NE(values, nullptr);
  EXPECT_TRUE(values->editable);
  EXPECT_EQ(values->value, "[1.0, 1.25, 2.0]");
  normative.set("sweep[0].values", "[1.0, 4.0]");
  EXPECT_FALSE(normative.problem()) << *normative.problem();
  EXPECT_NE(normative.text().find("values = [1.0, 4.0]"), std::string::npos);
  EXPECT_EQ(normative.entry("sweep[0].values")->value, "[1.0, 4.0]");
  // What is wrong in a list is named with its place.
  normative.set("sweep[0].key", "policy.capacity.fctor");
  ASSERT_TRUE(normative.problem());
  EXPECT_NE(normative.problem()->find("normative.toml:"), std::string::npos);
  EXPECT_NE(normative.problem()->find("fctor"), std::string::npos) << *normative.problem();
  normative.undo();
  normative.undo();
  EXPECT_FALSE(normative.changed());

  ScenarioDocument failure(root / "scenarios" / "gpu_failure.toml");
  ASSERT_NE(failure.entry("faults.events[1].step"), nullptr);
  EXPECT_TRUE(failure.entry("faults.events[1].step")->editable);
  EXPECT_TRUE(failure.entry("faults.events[1].step")->inFile);
  // Items of the hardware file are not in this one.
  EXPECT_FALSE(failure.entry("hardware.devices[0].count")->editable);
  failure.set("faults.events[1].step", "30");
  EXPECT_FALSE(failure.problem()) << *failure.problem();
  EXPECT_EQ(failure.entry("faults.events[1].step")->value, "30");
  EXPECT_EQ(failure.settings(), std::vector<std::string>{"faults.events[1].step=30"});
  scenario::ReadOptions options;
  options.settings = failure.settings();
  const std::string file = (root / "scenarios" / "gpu_failure.toml").string();
  EXPECT_EQ(scenario::scenario_hash(scenario::read_scenario(file, options)), failure.hash());
}

std::string list(const std::string& text, const std::string& key, ListEdit edit, std::size_t index,
                 const std::string& toml = {}) {
  try {
    return editList(text, "x.toml", key, edit, index, toml);
  } catch (const InputError& e) {
    return e.what();
  }
}

TEST(EditList, AddsCopiesAndRemovesBlocksAndLeavesTheRestAlone) {
  const std::string two =
      "[f]\na = 1\n\n# the first\n[[f.events]]\nstep = 1  # one\n\n[[f.events]]\nstep = 2\n"
      "\n# run\n[run]\nseed = 1\n";
  EXPECT_EQ(list(two, "f.events", ListEdit::kAdd, 0, "{ step = 3, gpu = \"gpu0\" }"),
            "[f]\na = 1\n\n# the first\n[[f.events]]\nstep = 1  # one\n\n[[f.events]]\nstep = 2\n"
            "\n[[f.events]]\nstep = 3\ngpu = \"gpu0\"\n\n# run\n[run]\nseed = 1\n");
  EXPECT_EQ(list(two, "f.events", ListEdit::kDuplicate, 0),
            "[f]\na = 1\n\n# the first\n[[f.events]]\nstep = 1  # one\n\n[[f.events]]\n"
            "step = 1  # one\n\n[[f.events]]\nstep = 2\n\n# run\n[run]\nseed = 1\n");
  EXPECT_EQ(list(two, "f.events", ListEdit::kRemove, 1),
            "[f]\na = 1\n\n# the first\n[[f.events]]\nstep = 1  # one\n\n# run\n[run]\nseed = 1\n");
  // A list that the file does not have yet stands where its section belongs.
  EXPECT_EQ(list("[model]\na = 1\n\n# r\n[run]\nb = 1\n", "faults.events", ListEdit::kAdd, 0,
                 "{ step = 3 }"),
            "[model]\na = 1\n\n[[faults.events]]\nstep = 3\n\n# r\n[run]\nb = 1\n");
  EXPECT_EQ(list("[run]\nb = 1", "sweep", ListEdit::kAdd, 0, "{ key = \"k\", values = [1] }"),
            "[run]\nb = 1\n\n[[sweep]]\nkey = \"k\"\nvalues = [1]\n");
  // Tables below an item go with it.
  EXPECT_EQ(list("[[a]]\nx = 1\n[a.sub]\ny = 2\n\n[[a]]\nx = 3\n", "a", ListEdit::kRemove, 0),
            "[[a]]\nx = 3\n");
}

TEST(EditList, ChangesListsBetweenBrackets) {
  const std::string two = "[f]\nevents = [{ step = 1 }, { step = 2 }]  # e\nz = 1\n";
  EXPECT_EQ(list(two, "f.events", ListEdit::kAdd, 0, "{ step = 3 }"),
            "[f]\nevents = [{ step = 1 }, { step = 2 }, { step = 3 }]  # e\nz = 1\n");
  EXPECT_EQ(list(two, "f.events", ListEdit::kDuplicate, 0),
            "[f]\nevents = [{ step = 1 }, { step = 1 }, { step = 2 }]  # e\nz = 1\n");
  EXPECT_EQ(list(two, "f.events", ListEdit::kRemove, 0),
            "[f]\nevents = [{ step = 2 }]  # e\nz = 1\n");
  EXPECT_EQ(list(two, "f.events", ListEdit::kRemove, 1),
            "[f]\nevents = [{ step = 1 }]  # e\nz = 1\n");
  EXPECT_EQ(list("[f]\nevents = [{ step = 1 }]\nz = 1\n", "f.events", ListEdit::kRemove, 0),
            "[f]\nz = 1\n");
  EXPECT_NE(list(two, "f.events", ListEdit::kRemove, 2).find("no such item"), std::string::npos);
  EXPECT_NE(list(two, "f.z", ListEdit::kRemove, 0).find("it is no list"), std::string::npos);
  EXPECT_NE(list("faults = { reaction = \"restart\" }\n", "faults.events", ListEdit::kAdd, 0,
                 "{ step = 1 }")
                .find("cannot change the list faults.events"),
            std::string::npos);
}

TEST(EditList, MovesItemsWithTheirComments) {
  const std::string two =
      "[f]\na = 1\n\n# the first\n# of two\n[[f.events]]\nstep = 1  # one\n\n# apart\n\n"
      "[[f.events]]\nstep = 2\n\n# run\n[run]\nseed = 1\n";
  const std::string moved =
      "[f]\na = 1\n\n[[f.events]]\nstep = 2\n\n# apart\n\n# the first\n# of two\n[[f.events]]\n"
      "step = 1  # one\n\n# run\n[run]\nseed = 1\n";
  EXPECT_EQ(list(two, "f.events", ListEdit::kDown, 0), moved);
  EXPECT_EQ(list(two, "f.events", ListEdit::kUp, 1), moved);
  EXPECT_EQ(list(moved, "f.events", ListEdit::kUp, 1), two) << "there and back";
  // Tables below an item go with it; a file need not end in a line break.
  EXPECT_EQ(list("[[a]]\nx = 1\n[a.sub]\ny = 2\n\n[[a]]\nx = 3", "a", ListEdit::kUp, 1),
            "[[a]]\nx = 3\n\n[[a]]\nx = 1\n[a.sub]\ny = 2\n");
  // Between brackets, on one line and on several.
  EXPECT_EQ(list("e = [{ s = 1 }, { s = 2 }, { s = 3 }]  # all\n", "e", ListEdit::kDown, 1),
            "e = [{ s = 1 }, { s = 3 }, { s = 2 }]  # all\n");
  EXPECT_EQ(list("e = [\n  # above\n  { s = 1 },  # one\n  { s = 2 }\n]\n", "e", ListEdit::kUp, 1),
            "e = [\n  { s = 2 },\n  # above\n  { s = 1 }  # one\n]\n");
  EXPECT_EQ(list("e = [\n  { s = 1 },  # one\n  { s = 2 },  # two\n]\n", "e", ListEdit::kDown, 0),
            "e = [\n  { s = 2 },  # two\n  { s = 1 },  # one\n]\n");
  // A comment that would swallow the rest of a line.
  EXPECT_NE(list("e = [\n  { s = 1 }, { s = 2 },  # two\n]\n", "e", ListEdit::kUp, 1)
                .find("cannot go with its item"),
            std::string::npos);
  EXPECT_NE(list(two, "f.events", ListEdit::kUp, 0).find("cannot go up"), std::string::npos);
  EXPECT_NE(list(two, "f.events", ListEdit::kDown, 1).find("cannot go down"), std::string::npos);
  EXPECT_NE(list(two, "f.events", ListEdit::kDown, 2).find("no such item"), std::string::npos);
}

// Each list of a scenario takes a new item that is possible at once, and undo takes it back; a
// child process that gets the settings resolves what is on the screen.
TEST(Document, EveryListTakesANewItemThatResolves) {
  const std::filesystem::path root(SWITCHYARD_SOURCE_DIR);
  for (const char* name : {"gpu_failure.toml", "serving_mixtral.toml", "normative.toml"}) {
    const std::string file = (root / "scenarios" / name).string();
    ScenarioDocument document(file);
    const std::vector<ScenarioDocument::List> lists = document.lists();
    EXPECT_GE(lists.size(), 5U);
    for (const ScenarioDocument::List& l : lists) {
      document.edit(l.key, ListEdit::kAdd);
      // Two devices of one name and two equal links are for a person to tell apart.
      if (l.section != "hardware") {
        EXPECT_FALSE(document.problem()) << name << ' ' << l.key << ": " << *document.problem();
      }
      std::size_t items = 0;
      for (const ScenarioDocument::List& now : document.lists()) {
        if (now.key == l.key) items = now.items;
      }
      if (!document.problem()) {
        EXPECT_EQ(items, l.items + 1) << name << ' ' << l.key;
        scenario::ReadOptions options;
        options.settings = document.settings();
        options.require_trace = false;
        EXPECT_EQ(scenario::scenario_hash(scenario::read_scenario(file, options)), document.hash())
            << name << ' ' << l.key;
      }
      ASSERT_TRUE(document.undo());
      EXPECT_FALSE(document.changed());
    }
  }
}

TEST(Document, ListsOfThePresetAreCopiedIntoTheFileFirst) {
  const std::filesystem::path root(SWITCHYARD_SOURCE_DIR);
  ScenarioDocument document(root / "scenarios" / "gpu_failure.toml");
  const std::string hash = document.hash();
  document.edit("hardware.links", ListEdit::kDuplicate, 1);
  EXPECT_NE(document.text().find("[[hardware.links]]\nfrom = \"gpu[0-7]\"\nto = \"nvswitch\"\n"),
            std::string::npos)
      << document.text();
  // Two equal links are refused, but the copy can be made another one.
  EXPECT_TRUE(document.problem());
  ASSERT_NE(document.entry("hardware.links[2].from"), nullptr);
  EXPECT_TRUE(document.entry("hardware.links[2].from")->editable);
  EXPECT_EQ(document.entry("hardware.links[2].to")->value, "cpu[0-1]");
  document.edit("hardware.links", ListEdit::kRemove, 2);
  ASSERT_FALSE(document.problem()) << *document.problem();
  EXPECT_EQ(document.hash(), hash) << "the copied list is the preset's";
  ASSERT_NE(document.entry("hardware.links[0].type"), nullptr);
  EXPECT_TRUE(document.entry("hardware.links[0].type")->editable);
  document.undo();
  document.undo();
  EXPECT_FALSE(document.changed());
  // The last fault takes its section along; no setting can say that to a child process.
  document.edit("faults.events", ListEdit::kRemove, 0);
  EXPECT_EQ(document.settings().size(), 1U);
  EXPECT_TRUE(document.settings()[0].starts_with("faults.events=[{ kind = \"gpu_loss\""))
      << document.settings()[0];
  document.edit("faults.events", ListEdit::kRemove, 0);
  EXPECT_FALSE(document.problem()) << *document.problem();
  EXPECT_EQ(document.text().find("[faults]"), std::string::npos);
  EXPECT_THROW((void)document.settings(), InputError);
  EXPECT_THROW(document.edit("faults.events", ListEdit::kRemove, 0), InputError);
  EXPECT_THROW(document.edit("no.list", ListEdit::kAdd), InputError);
}

// Values that are impossible alone but possible together do not stand in the way; a point that is
// impossible is named at the axis that is to blame.
// What the form took away must not come back from the file that the child process reads.
TEST(Document, AnExchangedItemIsSetAsAWholeList) {
  const std::filesystem::path file =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios" / "gpu_failure.toml";
  ScenarioDocument document(file);
  document.edit("faults.events", ListEdit::kRemove, 0);
  document.edit("faults.events", ListEdit::kAdd, 0);
  ASSERT_FALSE(document.problem()) << *document.problem();
  ASSERT_EQ(document.settings().size(), 1U);
  scenario::ReadOptions options;
  options.settings = document.settings();
  const auto run = scenario::read_scenario(file.string(), options);
  EXPECT_EQ(scenario::scenario_hash(run), document.hash());
  ASSERT_EQ(run.faults.events.size(), 2U);
  EXPECT_EQ(run.faults.events[1].lasts, 0U) << "of the item that was removed";
}

TEST(Document, ASweepOfTooManyPointsIsNamedAtItsAxis) {
  std::string text = switchyard::read_file(std::filesystem::path(SWITCHYARD_SOURCE_DIR) /
                                           "scenarios" / "mixed_fabric.toml");
  for (const char* key : {"workload.batch", "workload.tokens", "run.seed", "workload.steps"}) {
    text += fmt::format("\n[[sweep]]\nkey = \"{}\"\nvalues = [", key);
    for (int i = 1; i <= 60; ++i) text += fmt::format("{}{}", i == 1 ? "" : ", ", 16 * i);
    text += "]\n";
  }
  const std::filesystem::path folder =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "scenarios" / "models";
  text.replace(text.find("models/"), 7, folder.string() + "/");
  text.replace(text.find("hardware/"), 9,
               std::string(SWITCHYARD_SOURCE_DIR) + "/scenarios/hardware/");
  switchyard::write_file("many.toml", text);
  const ScenarioDocument document("many.toml");
  ASSERT_TRUE(document.problem());
  EXPECT_NE(document.problem()->find("the sweep has more than 100000 points"), std::string::npos)
      << *document.problem();
  EXPECT_NE(document.problem()->find("many.toml:"), std::string::npos);
}

TEST(Document, PointsOfASweepAreCheckedTogether) {
  // tp = 8 alone is refused while attention is "dp"; swept with it, it is not.
  std::string text = kTinyScenario;
  text +=
      "\n[[sweep]]\nkey = \"parallel.tp\"\nvalues = [8]\n\n[[sweep]]\nkey = "
      "\"parallel.attention\"\nvalues = [\"tp\"]\n";
  writeText("joint.toml", text);
  ScenarioDocument document("joint.toml");
  EXPECT_FALSE(document.problem()) << *document.problem();
  scenario::ReadOptions alone;
  alone.settings = {"sweep=[]", "parallel.tp=8"};
  EXPECT_THROW((void)scenario::read_scenario("joint.toml", alone), InputError)
      << "this value is possible alone: the case proves nothing";
  document.set("sweep[1].values", "[\"tp\", \"nonsense\"]");
  ASSERT_TRUE(document.problem());
  const ScenarioDocument::Entry* axis = document.entry("sweep[1].key");
  ASSERT_NE(axis, nullptr);
  EXPECT_NE(document.problem()->find("parallel.attention = \"nonsense\""), std::string::npos)
      << *document.problem();
  const std::string line = axis->origin.substr(0, axis->origin.rfind(':'));
  EXPECT_TRUE(document.problem()->starts_with(line)) << *document.problem() << " not at " << line;
}

TEST(Document, AnImpossibleValueSaysFileAndLineAndUndoMendsIt) {
  writeText("bad.toml", kTinyScenario);
  ScenarioDocument document("bad.toml");
  document.set("workload.batch", "0");
  ASSERT_TRUE(document.problem());
  EXPECT_TRUE(document.problem()->starts_with("bad.toml:10:")) << *document.problem();
  document.set("hardware.link_types.nvlink4.bandwidth", "400");
  ASSERT_TRUE(document.problem());
  document.undo();
  document.undo();
  EXPECT_FALSE(document.problem());
  EXPECT_FALSE(document.changed());
  document.redo();
  EXPECT_TRUE(document.problem());
}

class FormTest : public ::testing::Test {
 protected:
  void SetUp() override {
    qputenv("SWITCHYARD_CLI", SWITCHYARD_CLI_BINARY);
    qputenv("SWITCHYARD_RUNS", "form_runs");
    QDir(QStringLiteral("form_runs")).removeRecursively();
    writeText("form.toml", kTinyScenario);
    window.resize(1280, 800);
    window.show();
    QApplication::processEvents();
  }
  void type(const QString& key, const QString& text) {
    QWidget* editor = window.form()->editorOf(key);
    ASSERT_NE(editor, nullptr) << key.toStdString();
    auto* box = qobject_cast<QComboBox*>(editor);
    QLineEdit* line = box != nullptr ? box->lineEdit() : qobject_cast<QLineEdit*>(editor);
    line->setFocus();
    line->selectAll();
    QTest::keyClicks(line, text);
    QTest::keyClick(line, Qt::Key_Return);
    QApplication::processEvents();
  }
  MainWindow window{false};
};

// A person edits the scenario in the form, runs it in the child process, and the comparison with
// the first run shows the numbers of `switchyard diff`.
TEST_F(FormTest, EditRunAndCompareGivesTheNumbersOfDiff) {
  window.openScenario(QStringLiteral("form.toml"));
  ASSERT_EQ(window.page(), MainWindow::Page::kScenario);
  ScenarioForm& form = *window.form();
  QTest::mouseClick(form.runButton(), Qt::LeftButton);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 30000));
  ASSERT_NE(window.state()->run(), nullptr) << window.messageBar()->text().toStdString();
  ASSERT_EQ(window.page(), MainWindow::Page::kRun);
  window.showPage(MainWindow::Page::kScenario);
  form.showSection(QStringLiteral("policy"));
  type(QStringLiteral("policy.capacity.factor"), QStringLiteral("2.0"));
  EXPECT_TRUE(form.document()->changed());
  QTest::mouseClick(form.compareButton(), Qt::LeftButton);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 30000));
  ASSERT_NE(window.state()->other(), nullptr) << window.messageBar()->text().toStdString();
  QProcess diff;
  diff.start(QStringLiteral(SWITCHYARD_CLI_BINARY),
             {QStringLiteral("diff"), qs(window.state()->run()->path().string()),
              qs(window.state()->other()->path().string()), QStringLiteral("--format"),
              QStringLiteral("csv")});
  ASSERT_TRUE(diff.waitForFinished());
  const QAbstractItemModel& model = *window.compare()->table()->model();
  std::vector<int> rows;
  for (int r = 0; r < model.rowCount(); ++r) rows.push_back(r);
  EXPECT_EQ(tableText(model, rows, TableText::kCsv).toStdString(),
            diff.readAllStandardOutput().toStdString());
  EXPECT_EQ(model.index(0, CompareModel::kName).data().toString(),
            QStringLiteral("policy.capacity.factor"));
  EXPECT_EQ(model.index(0, CompareModel::kB).data().toString(), QStringLiteral("2"));
}

TEST_F(FormTest, WrongValuesAreNamedInlineAndCannotRun) {
  window.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *window.form();
  form.showSection(QStringLiteral("workload"));
  type(QStringLiteral("workload.batch"), QStringLiteral("-3"));
  EXPECT_TRUE(form.problemText().startsWith(QStringLiteral("form.toml:10:")))
      << form.problemText().toStdString();
  EXPECT_FALSE(form.runButton()->isEnabled());
  // Another section and back: no field is empty, the wrong value stands in its own.
  form.showSection(QStringLiteral("run"));
  auto* seed = qobject_cast<QLineEdit*>(form.editorOf(QStringLiteral("run.seed")));
  ASSERT_NE(seed, nullptr);
  EXPECT_EQ(seed->text(), QStringLiteral("3"));
  form.showSection(QStringLiteral("workload"));
  auto* batch = qobject_cast<QLineEdit*>(form.editorOf(QStringLiteral("workload.batch")));
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->text(), QStringLiteral("-3"));
  type(QStringLiteral("workload.batch"), QStringLiteral("16"));
  EXPECT_TRUE(form.runButton()->isEnabled()) << form.problemText().toStdString();
  form.undo();
  form.undo();
  EXPECT_FALSE(form.document()->changed());
}

TEST_F(FormTest, ASearchFindsKeysOfAllSectionsAndUnits) {
  window.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *window.form();
  EXPECT_EQ(form.editorOf(QStringLiteral("hardware.link_types.nvlink4.bandwidth")), nullptr);
  form.filter()->setText(QStringLiteral("nvlink4"));
  QWidget* rate = form.editorOf(QStringLiteral("hardware.link_types.nvlink4.bandwidth"));
  ASSERT_NE(rate, nullptr);
  EXPECT_TRUE(rate->toolTip().contains(QStringLiteral("GB/s")));
  form.filter()->clear();
  form.showSection(QStringLiteral("policy"));
  EXPECT_EQ(form.editorOf(QStringLiteral("policy.gumbel.tau")), nullptr);
  form.allKeys()->setChecked(true);
  EXPECT_NE(form.editorOf(QStringLiteral("policy.gumbel.tau")), nullptr);
  auto* order = qobject_cast<QComboBox*>(form.editorOf(QStringLiteral("policy.capacity.order")));
  ASSERT_NE(order, nullptr);
  EXPECT_GE(order->findText(QStringLiteral("prob")), 0);
}

TEST_F(FormTest, ItemsOfListsAreAddedCopiedRemovedAndRun) {
  window.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *window.form();
  const auto press = [&](const char* name) {
    auto* button = form.findChild<QPushButton*>(QString::fromLatin1(name));
    ASSERT_NE(button, nullptr) << name;
    QTest::mouseClick(button, Qt::LeftButton);
    QApplication::processEvents();
  };
  form.showSection(QStringLiteral("faults"));
  press("add:faults.events");
  ASSERT_NE(form.editorOf(QStringLiteral("faults.events[0].factor")), nullptr)
      << form.problemText().toStdString();
  press("duplicate:faults.events[0]");
  type(QStringLiteral("faults.events[1].step"), QStringLiteral("5"));
  // Down and back up again, each one step of undo.
  ASSERT_FALSE(form.findChild<QPushButton*>(QStringLiteral("up:faults.events[0]"))->isEnabled());
  ASSERT_FALSE(form.findChild<QPushButton*>(QStringLiteral("down:faults.events[1]"))->isEnabled());
  press("up:faults.events[1]");
  EXPECT_EQ(form.document()->entry("faults.events[0].step")->value, "5");
  press("down:faults.events[0]");
  EXPECT_EQ(form.document()->entry("faults.events[1].step")->value, "5");
  form.undo();
  EXPECT_EQ(form.document()->entry("faults.events[0].step")->value, "5");
  form.redo();
  QApplication::processEvents();
  press("remove:faults.events[0]");
  EXPECT_EQ(form.editorOf(QStringLiteral("faults.events[1].step")), nullptr);
  EXPECT_EQ(form.document()->entry("faults.events[0].step")->value, "5");
  EXPECT_TRUE(form.runButton()->isEnabled()) << form.problemText().toStdString();
  QTest::mouseClick(form.runButton(), Qt::LeftButton);
  ASSERT_TRUE(wait([&] { return !window.busy(); }, 30000));
  ASSERT_NE(window.state()->run(), nullptr) << window.messageBar()->text().toStdString();
  EXPECT_NE(window.state()->run()->data().meta.scenario_text.find("faults.events[0].step = 5"),
            std::string::npos);
  for (int i = 0; i < 6; ++i) form.undo();
  EXPECT_FALSE(form.document()->changed());
  EXPECT_FALSE(form.document()->canUndo());
}

// A person who scrolls the form passes over many drop-downs.
TEST_F(FormTest, TheWheelScrollsTheFormAndChangesNoValue) {
  window.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *window.form();
  form.showSection(QStringLiteral("policy"));
  form.allKeys()->setChecked(true);
  QApplication::processEvents();
  const auto turn = [](QWidget* over, int notches) {
    const QPointF at = over->rect().center();
    QWheelEvent wheel(at, over->mapToGlobal(at), {}, {0, -120 * notches}, Qt::NoButton,
                      Qt::NoModifier, Qt::NoScrollPhase, false);
    // Only what comes from outside goes on to the parent when it is ignored.
    QSpontaneKeyEvent::setSpontaneous(&wheel);
    qApp->notify(over, &wheel);
    QApplication::processEvents();
  };
  auto* area = form.findChild<QScrollArea*>();
  ASSERT_NE(area, nullptr);
  ASSERT_GT(area->verticalScrollBar()->maximum(), 0);
  for (const bool focus : {false, true}) {
    int boxes = 0;
    for (auto* box : area->findChildren<QComboBox*>()) {
      if (focus) box->setFocus();
      const QString before = box->currentText();
      area->verticalScrollBar()->setValue(0);
      turn(boxes++ % 2 == 0 ? static_cast<QWidget*>(box) : box->lineEdit(), 2);
      EXPECT_EQ(box->currentText(), before) << box->accessibleName().toStdString();
      EXPECT_GT(area->verticalScrollBar()->value(), 0) << box->accessibleName().toStdString();
    }
    EXPECT_GT(boxes, 5);
  }
  EXPECT_FALSE(form.document()->changed());
  // The window's own: the tool bar and the what-if strip.
  for (auto* box : window.findChildren<QComboBox*>()) {
    if (form.isAncestorOf(box)) continue;
    const int before = box->currentIndex();
    turn(box, 1);
    turn(box, -1);
    turn(box, -1);
    EXPECT_EQ(box->currentIndex(), before) << box->accessibleName().toStdString();
  }
}

TEST_F(FormTest, WhatAnotherProgramWroteIsNotOverwrittenUnasked) {
  window.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *window.form();
  form.showSection(QStringLiteral("workload"));
  type(QStringLiteral("workload.batch"), QStringLiteral("16"));
  const std::string theirs = kTinyScenario + "# added by another program\n";
  writeText("form.toml", theirs);
  EXPECT_EQ(form.diskText(), QString());
  QTest::mouseClick(form.saveButton(), Qt::LeftButton);
  EXPECT_EQ(read_file("form.toml"), theirs);
  EXPECT_TRUE(form.document()->changed());
  EXPECT_TRUE(form.diskText().contains(QStringLiteral("Another program has written to form.toml")))
      << form.diskText().toStdString();
  // Nor is it simulated: the child would read what is not on the screen.
  QTest::mouseClick(form.runButton(), Qt::LeftButton);
  EXPECT_FALSE(window.busy());
  // Read again, with the edit one Undo away.
  QTest::mouseClick(form.reloadButton(), Qt::LeftButton);
  EXPECT_EQ(form.document()->text(), theirs);
  EXPECT_FALSE(form.document()->changed());
  EXPECT_EQ(form.diskText(), QString());
  form.undo();
  EXPECT_EQ(form.document()->entry("workload.batch")->value, "16");
  EXPECT_EQ(form.document()->settings(), std::vector<std::string>{"workload.batch=16"});
  // F5 on the page of the form does the same; a file that is no TOML is refused and named.
  writeText("form.toml", theirs + "# and more\n");
  QTest::keyClick(form.editorOf(QStringLiteral("workload.batch")), Qt::Key_F5);
  EXPECT_EQ(form.document()->text(), theirs + "# and more\n");
  writeText("form.toml", "= = =\n");
  form.reload();
  EXPECT_EQ(form.document()->text(), theirs + "# and more\n");
  EXPECT_TRUE(form.problemText().contains(QStringLiteral("form.toml:1")))
      << form.problemText().toStdString();
  QTest::mouseClick(form.overwriteButton(), Qt::LeftButton);
  EXPECT_EQ(read_file("form.toml"), theirs + "# and more\n");
  EXPECT_EQ(form.diskText(), QString());
  // A file that is gone is said to be, when the window is looked at again; Save writes it.
  std::filesystem::remove("form.toml");
  QEvent activate(QEvent::WindowActivate);
  QApplication::sendEvent(&window, &activate);
  EXPECT_TRUE(form.diskText().contains(QStringLiteral("form.toml is no longer there")));
  QTest::mouseClick(form.saveButton(), Qt::LeftButton);
  EXPECT_EQ(read_file("form.toml"), theirs + "# and more\n");
  EXPECT_EQ(form.diskText(), QString());
}

TEST(Document, AFolderThatCannotBeWrittenLeavesTheDocumentAsItWas) {
  writeText("doc.toml", kTinyScenario);
  ScenarioDocument document("doc.toml");
  document.set("run.seed", "4");
  try {
    document.saveAs("/proc/no/doc.toml");
    ADD_FAILURE() << "saved into /proc";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("/proc/no/doc.toml"), std::string::npos) << e.what();
  }
  EXPECT_EQ(document.path(), "doc.toml");
  EXPECT_TRUE(document.changed());
  EXPECT_EQ(read_file("doc.toml"), kTinyScenario);
}

// Closing asks about a value that stands in its field and was not confirmed yet.
TEST_F(FormTest, ATypedValueIsNotLostWhenTheWindowCloses) {
  MainWindow real(true);
  real.show();
  real.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *real.form();
  form.showSection(QStringLiteral("workload"));
  auto* batch = qobject_cast<QLineEdit*>(form.editorOf(QStringLiteral("workload.batch")));
  ASSERT_NE(batch, nullptr);
  const auto answerWith = [](QMessageBox::StandardButton which) {
    QTimer::singleShot(0, [which] {
      auto* box = qobject_cast<QMessageBox*>(QApplication::activeModalWidget());
      if (box != nullptr) box->button(which)->click();
    });
  };
  batch->setFocus();
  batch->selectAll();
  QTest::keyClicks(batch, QStringLiteral("99"));
  ASSERT_FALSE(form.document()->changed()) << "typed, and not confirmed";
  answerWith(QMessageBox::Cancel);
  EXPECT_FALSE(real.close());
  EXPECT_TRUE(real.isVisible());
  EXPECT_EQ(form.document()->entry("workload.batch")->value, "99");
  answerWith(QMessageBox::Save);
  EXPECT_TRUE(real.close());
  EXPECT_NE(read_file("form.toml").find("batch = 99"), std::string::npos);
}

TEST_F(FormTest, TabThroughFieldsWritesNothingWhileAnotherValueIsWrong) {
  window.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *window.form();
  form.showSection(QStringLiteral("workload"));
  type(QStringLiteral("workload.batch"), QStringLiteral("-3"));
  const std::string wrong = form.document()->text();
  form.showSection(QStringLiteral("policy"));
  form.allKeys()->setChecked(true);
  window.activateWindow();
  QApplication::processEvents();
  form.editorOf(QStringLiteral("policy.capacity.rule"))->setFocus();
  for (int i = 0; i < 12; ++i) {
    QWidget* const before = QApplication::focusWidget();
    ASSERT_NE(before, nullptr);
    QTest::keyClick(before, Qt::Key_Tab);
    EXPECT_NE(QApplication::focusWidget(), before);
  }
  EXPECT_EQ(form.document()->text(), wrong);
  // The wrong field itself takes the old value back.
  form.showSection(QStringLiteral("workload"));
  type(QStringLiteral("workload.batch"), QStringLiteral("32"));
  EXPECT_FALSE(form.document()->changed());
  EXPECT_TRUE(form.runButton()->isEnabled()) << form.problemText().toStdString();
}

TEST_F(FormTest, KeysUndoRedoAndSaveValuesAndAFieldUndoesItsLetters) {
  window.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *window.form();
  window.activateWindow();
  form.showSection(QStringLiteral("workload"));
  const auto field = [&] {
    return qobject_cast<QLineEdit*>(form.editorOf(QStringLiteral("workload.batch")));
  };
  type(QStringLiteral("workload.batch"), QStringLiteral("16"));
  type(QStringLiteral("workload.batch"), QStringLiteral("8"));
  QTest::keyClick(field(), Qt::Key_Z, Qt::ControlModifier);
  EXPECT_EQ(form.document()->entry("workload.batch")->value, "16");
  EXPECT_TRUE(field()->hasFocus()) << "the rows are new, the keyboard stays";
  QTest::keyClick(field(), Qt::Key_Z, Qt::ControlModifier);
  EXPECT_FALSE(form.document()->changed());
  QTest::keyClick(field(), Qt::Key_Z, Qt::ControlModifier | Qt::ShiftModifier);
  EXPECT_EQ(form.document()->entry("workload.batch")->value, "16");
  EXPECT_EQ(field()->text(), QStringLiteral("16"));
  field()->selectAll();
  QTest::keyClicks(field(), QStringLiteral("7"));
  QTest::keyClick(field(), Qt::Key_Z, Qt::ControlModifier);
  EXPECT_EQ(form.document()->entry("workload.batch")->value, "16") << "only the letter is undone";
  EXPECT_EQ(field()->text(), QStringLiteral("16"));
  // What is typed and not confirmed is saved too.
  field()->selectAll();
  QTest::keyClicks(field(), QStringLiteral("24"));
  QTest::keyClick(field(), Qt::Key_S, Qt::ControlModifier);
  EXPECT_FALSE(form.document()->changed());
  EXPECT_NE(read_file("form.toml").find("batch = 24"), std::string::npos);
  // On another page the keys are the page's.
  window.showPage(MainWindow::Page::kWelcome);
  for (const QAction* a : form.commands()) {
    EXPECT_FALSE(a->isEnabled()) << a->text().toStdString();
    EXPECT_FALSE(a->statusTip().isEmpty()) << a->text().toStdString();
  }
}

TEST_F(FormTest, TheFormStaysWhereItIsWhenRowsComeAndGo) {
  window.openScenario(QStringLiteral("form.toml"));
  ScenarioForm& form = *window.form();
  window.activateWindow();
  form.showSection(QStringLiteral("faults"));
  const auto press = [&](const QString& name) {
    auto* button = form.findChild<QPushButton*>(name);
    ASSERT_NE(button, nullptr) << name.toStdString();
    button->setFocus();
    QTest::keyClick(button, Qt::Key_Space);
    QApplication::processEvents();
  };
  auto* area = form.findChild<QScrollArea*>();
  for (int i = 0; i < 9; ++i) press(QStringLiteral("add:faults.events"));
  QScrollBar* bar = area->verticalScrollBar();
  ASSERT_GT(bar->maximum(), 100);
  // The new item has the keyboard, and is on the screen.
  QWidget* focus = QApplication::focusWidget();
  ASSERT_NE(focus, nullptr);
  EXPECT_TRUE(focus->accessibleName().startsWith(QStringLiteral("faults.events[8].")))
      << focus->accessibleName().toStdString();
  EXPECT_TRUE(area->viewport()->rect().intersects(
      QRect(focus->mapTo(area->viewport(), QPoint()), focus->size())));
  EXPECT_GT(bar->value(), 0);
  // Another kind of fault has other keys: the rows are made anew around the field.
  bar->setValue(bar->maximum() / 2);
  const int at = bar->value();
  QWidget* const old = form.editorOf(QStringLiteral("faults.events[4].step"));
  type(QStringLiteral("faults.events[4].step"), QStringLiteral("5"));
  form.undo();
  EXPECT_NE(form.editorOf(QStringLiteral("faults.events[4].step")), old);
  EXPECT_EQ(bar->value(), at);
  EXPECT_TRUE(form.editorOf(QStringLiteral("faults.events[4].step"))->hasFocus());
  // A moved item keeps the keyboard on its button, a removed one gives it to the next.
  press(QStringLiteral("down:faults.events[3]"));
  EXPECT_EQ(QApplication::focusWidget()->objectName(), QStringLiteral("down:faults.events[4]"));
  press(QStringLiteral("remove:faults.events[8]"));
  EXPECT_EQ(QApplication::focusWidget()->objectName(), QStringLiteral("remove:faults.events[7]"));
  // Another section begins at its top.
  form.showSection(QStringLiteral("workload"));
  EXPECT_EQ(bar->value(), 0);
}

TEST_F(FormTest, AMissingOrForeignScenarioIsAMessage) {
  window.openScenario(QStringLiteral("nowhere.toml"));
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("nowhere.toml")));
  EXPECT_EQ(window.page(), MainWindow::Page::kWelcome);
  writeText("foreign.toml", "= = =\n");
  window.openFiles({QStringLiteral("foreign.toml")});
  EXPECT_TRUE(window.messageBar()->text().contains(QStringLiteral("foreign.toml:1")));
}

}  // namespace
}  // namespace switchyard::gui
