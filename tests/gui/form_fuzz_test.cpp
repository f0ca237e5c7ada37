// SPDX-License-Identifier: Apache-2.0
// The form of a scenario under seeded nonsense: texts typed into any field, wheels over the fields,
// items of lists added and removed, sections, filter, undo and redo. A text that is typed changes
// its own key or nothing; what it is not, the form says; a wheel changes nothing; and undo leads
// back to the file.
//   SWITCHYARD_FUZZ=N  N seeds in place of one (by hand)
#include <algorithm>
#include <cstdlib>
#include <random>
#include <sstream>

#include <QApplication>
#include <QCheckBox>
#include <QComboBox>
#include <QLineEdit>
#include <QPointer>
#include <QPushButton>
#include <QTest>
#include <QWheelEvent>

#include <gtest/gtest.h>

#include "gui/scenarioform.hpp"
#include "gui/text.hpp"
#include "tests/gui/gui_fixture.hpp"

namespace switchyard::gui {
namespace {

using testing::kTinyScenario;
using testing::writeText;

int seeds() {
  const char* n = std::getenv("SWITCHYARD_FUZZ");
  return n != nullptr ? std::max(1, std::atoi(n)) : 1;
}

std::vector<std::string> linesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// What of two texts is not the same lines at the beginning and at the end.
struct Difference {
  std::vector<std::string> before, after;
};
Difference differenceOf(const std::string& a, const std::string& b) {
  Difference d{linesOf(a), linesOf(b)};
  while (!d.before.empty() && !d.after.empty() && d.before.back() == d.after.back()) {
    d.before.pop_back();
    d.after.pop_back();
  }
  while (!d.before.empty() && !d.after.empty() && d.before.front() == d.after.front()) {
    d.before.erase(d.before.begin());
    d.after.erase(d.after.begin());
  }
  return d;
}

class FormFuzz : public ::testing::Test {
 protected:
  void SetUp() override {
    writeText("fuzz.toml", kTinyScenario);
    form.open(QStringLiteral("fuzz.toml"));
    form.resize(1100, 700);
    form.show();
    QApplication::processEvents();
  }
  std::size_t below(std::size_t n) { return n == 0 ? 0 : random() % n; }
  [[nodiscard]] const ScenarioDocument& document() const { return *form.document(); }

  /// The field of a key that can be typed into; null: none is on the screen.
  [[nodiscard]] QLineEdit* fieldOf(const std::string& key) const {
    QWidget* editor = form.editorOf(qs(key));
    if (auto* box = qobject_cast<QComboBox*>(editor)) editor = box->lineEdit();
    auto* field = qobject_cast<QLineEdit*>(editor);
    return field != nullptr && field->isVisible() && field->isEnabled() && !field->isReadOnly()
               ? field
               : nullptr;
  }
  /// Keys whose fields are on the screen.
  [[nodiscard]] std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (const ScenarioDocument::Entry& e : document().entries()) {
      if (e.editable && fieldOf(e.key) != nullptr) all.push_back(e.key);
    }
    return all;
  }

  void type(const std::string& key, const QString& text) {
    const std::string before = document().text();
    QPointer<QLineEdit> field = fieldOf(key);
    field->setFocus();
    field->selectAll();
    QTest::keyClicks(field, text);
    QApplication::processEvents();
    if (field != nullptr) QTest::keyClick(field, below(2) == 0 ? Qt::Key_Return : Qt::Key_Tab);
    form.commit();
    QApplication::processEvents();
    const std::string after = document().text();
    const Difference d = differenceOf(before, after);
    // One line becomes another, or one is added, with its section and an empty line at most.
    EXPECT_LE(d.before.size(), 1U) << after;
    EXPECT_LE(d.after.size(), 3U) << after;
    const std::string name = key.substr(key.find_last_of('.') + 1);
    if (before != after) {
      ++changes;
      EXPECT_TRUE(std::any_of(d.after.begin(), d.after.end(), [&](const std::string& line) {
        return line.find(name) != std::string::npos;
      })) << after;
      if (document().problem()) {
        ++problems;
        EXPECT_FALSE(form.problemText().startsWith(QStringLiteral("All values")));
        EXPECT_FALSE(form.runButton()->isEnabled());
      }
    } else if (text.contains(']')) {
      // Never a value as it stands: it was refused, and the form says so.
      EXPECT_FALSE(form.problemText().startsWith(QStringLiteral("All values")));
    }
  }

  /// A wheel over a field scrolls the page and changes no value.
  void turn(const std::string& key) {
    const std::string before = document().text();
    QWidget* editor = form.editorOf(qs(key));
    const QPointF at = editor->rect().center();
    QWheelEvent wheel(at, editor->mapToGlobal(at), {}, {0, below(2) == 0 ? 120 : -120},
                      Qt::NoButton, Qt::NoModifier, Qt::NoScrollPhase, false);
    QApplication::sendEvent(editor, &wheel);
    form.commit();
    EXPECT_EQ(document().text(), before) << "a wheel over " << key;
  }

  void editAnyList() {
    const auto& lists = document().lists();
    if (lists.empty()) return;
    const ScenarioDocument::List list = lists[below(lists.size())];
    // Fields of an item are among those that are typed into. A list of another file is left there:
    // hundreds of links make each round long.
    if (list.items > 0 && !list.inFile) return;
    if (list.items == 0) {
      form.editList(qs(list.key), ListEdit::kAdd, 0);
    } else {
      static constexpr std::array kEdits{ListEdit::kAdd, ListEdit::kDuplicate, ListEdit::kRemove};
      form.editList(qs(list.key), kEdits[list.items > 3 ? 2 : below(3)], below(list.items));
    }
    QApplication::processEvents();
  }

  void anything() {
    static const std::array<QString, 16> kTexts{QStringLiteral("0"),
                                                QStringLiteral("-1"),
                                                QStringLiteral("1e999"),
                                                QStringLiteral("nan"),
                                                QStringLiteral("\"\"\""),
                                                QStringLiteral("[1, 2"),
                                                QStringLiteral("400 GB/s"),
                                                QStringLiteral("]]}"),
                                                QStringLiteral("18446744073709551616"),
                                                QStringLiteral("zipf"),
                                                QStringLiteral("x ="),
                                                QStringLiteral("  "),
                                                QStringLiteral("true"),
                                                QStringLiteral("92 %"),
                                                QStringLiteral("{ a = 1 }"),
                                                QStringLiteral("8")};
    const std::vector<std::string> all = keys();
    const std::size_t what = below(12);
    if (what == 0) {
      static const std::array<const char*, 8> kSections{
          "model", "hardware", "parallel", "workload", "policy", "network", "memory", "run"};
      form.showSection(QString::fromLatin1(kSections[below(kSections.size())]));
    } else if (what == 1) {
      form.allKeys()->click();
    } else if (what == 2) {
      form.filter()->setText(below(3) == 0 ? QStringLiteral("e") : QString());
    } else if (what == 3) {
      editAnyList();
    } else if (what == 4) {
      below(2) == 0 ? form.undo() : form.redo();
    } else if (what == 5 && !all.empty()) {
      turn(all[below(all.size())]);
    } else if (!all.empty()) {
      type(all[below(all.size())], kTexts[below(kTexts.size())]);
    }
    QApplication::processEvents();
    if (document().problem() && below(3) != 0) form.undo();
    QApplication::processEvents();
  }

  std::mt19937_64 random;
  ScenarioForm form;
  /// What the form says of a scenario that is all right.
  const QString fine = QStringLiteral("All values are possible.");
  int changes = 0, problems = 0;
};

TEST_F(FormFuzz, ATextChangesItsOwnKeyOrIsRefusedAloud) {
  for (int seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    random.seed(static_cast<std::uint64_t>(seed));
    for (int n = 0; n < 90 && !HasFailure(); ++n) {
      SCOPED_TRACE(::testing::Message() << "round " << n);
      anything();
    }
    for (int n = 0; n < 1000 && document().canUndo(); ++n) form.undo();
    EXPECT_EQ(document().text(), kTinyScenario);
    EXPECT_FALSE(document().changed());
    EXPECT_EQ(form.problemText(), fine);
  }
  // The seed reaches what it is for.
  EXPECT_GT(changes, 10);
  EXPECT_GT(problems, 5);
}

}  // namespace
}  // namespace switchyard::gui
