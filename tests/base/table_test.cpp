// SPDX-License-Identifier: Apache-2.0
#include "engine/base/table.hpp"

#include <gtest/gtest.h>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

const Table kTable{
    "demo",
    "A title",
    {"name", "time [us]", "note"},
    {{"a|b", "1.5", "x, \"y\""}, {"50 % of $", "n/a", ""}, {"\xE6\xB1\x89", "-10", "c_d"}},
    {"A note."}};

TEST(Table, TextAlignsNumbersRightAndCountsWideCharacters) {
  EXPECT_EQ(render(kTable, TableFormat::kText),
            "A title\n"
            "name       time [us]  note\n"
            "---------  ---------  ------\n"
            "a|b              1.5  x, \"y\"\n"
            "50 % of $        n/a\n"
            "\xE6\xB1\x89               -10  c_d\n"
            "A note.\n");
}

TEST(Table, MarkdownEscapesBars) {
  EXPECT_EQ(render(kTable, TableFormat::kMarkdown),
            "**A title**\n\n"
            "| name | time [us] | note |\n|---|---:|---|\n"
            "| a\\|b | 1.5 | x, \"y\" |\n"
            "| 50 % of $ | n/a |  |\n"
            "| \xE6\xB1\x89 | -10 | c_d |\n\nA note.\n");
}

TEST(Table, CsvQuotesAsRfc4180) {
  EXPECT_EQ(
      render(kTable, TableFormat::kCsv),
      "name,time [us],note\na|b,1.5,\"x, \"\"y\"\"\"\n50 % of $,n/a,\n\xE6\xB1\x89,-10,c_d\n");
}

TEST(Table, LatexEscapesItsSpecialCharacters) {
  EXPECT_EQ(render(kTable, TableFormat::kLatex),
            "% A title\n\\begin{tabular}{lrl}\n\\toprule\nname & time [us] & note \\\\\n\\midrule\n"
            "a\\textbar{}b & 1.5 & x, \\textquotedbl{}y\\textquotedbl{} \\\\\n50 \\% of \\$ & n/a &  \\\\\n"
            "\xE6\xB1\x89 & -10 & c\\_d \\\\\n\\bottomrule\n\\end{tabular}\n% A note.\n");
}

TEST(Table, JsonHasNumbersAsNumbers) {
  EXPECT_EQ(render(kTable, TableFormat::kJson),
            "{\"name\": \"demo\", \"title\": \"A title\", \"rows\": [\n"
            "  {\"name\": \"a|b\", \"time [us]\": 1.5, \"note\": \"x, \\\"y\\\"\"},\n"
            "  {\"name\": \"50 % of $\", \"time [us]\": \"n/a\", \"note\": \"\"},\n"
            "  {\"name\": \"\xE6\xB1\x89\", \"time [us]\": -10, \"note\": \"c_d\"}\n"
            "], \"notes\": [\"A note.\"]}\n");
}

// What JSON does not accept as a number stays a string.
TEST(Table, OnlyJsonNumbersBecomeNumbers) {
  const auto cell = [](const char* text) {
    const std::string out = render(Table{"", "", {"v"}, {{text}}, {}}, TableFormat::kJson);
    const std::size_t at = out.find("\"v\": ") + 5;
    return out.substr(at, out.find('}', at) - at);
  };
  for (const char* number : {"0", "-0.5", "1e5", "1.25e-3", "12"}) {
    EXPECT_EQ(cell(number), number);
  }
  for (const char* text : {"007", "1.", "1.e5", ".5", "+1", "nan", "inf", "-inf", "1e", "1,000",
                           "0x10", "", "-", "1e999"}) {
    EXPECT_EQ(cell(text), std::string("\"") + text + "\"");
  }
}

TEST(Table, EmptyTablesRenderInEveryFormat) {
  const Table empty{"e", "", {"a"}, {}, {}};
  EXPECT_EQ(render(empty, TableFormat::kText), "a\n-\n");
  EXPECT_EQ(render(empty, TableFormat::kCsv), "a\n");
  EXPECT_EQ(render(empty, TableFormat::kJson),
            "{\"name\": \"e\", \"title\": \"\", \"rows\": [\n], \"notes\": []}\n");
}

TEST(TableFormat, UnknownNamesGetASuggestion) {
  EXPECT_EQ(parse_table_format("md"), TableFormat::kMarkdown);
  try {
    (void)parse_table_format("jsn");
    FAIL() << "accepted";
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "--format: unknown format \"jsn\"; did you mean \"json\"?");
  }
}

}  // namespace
}  // namespace switchyard
