// SPDX-License-Identifier: Apache-2.0
// The text of the tables that follow from arithmetic, against tests/golden. Each row carries its
// own arithmetic in the column "ours is"; for example C02a: 32,768 tokens x 8,388,608 B per token
// (2 x 128 layers x 128 heads x 128 x 2 B) = 274,877,906,944 B.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::tables {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  std::string line;
  while (std::getline(in, line)) {
    lines.push_back(line);
  }
  return lines;
}

/// Lines only in a with "-", only in b with "+", by longest common subsequence.
std::string difference(const std::string& a_text, const std::string& b_text) {
  const auto a = lines_of(a_text);
  const auto b = lines_of(b_text);
  std::vector<std::vector<std::size_t>> common(a.size() + 1,
                                               std::vector<std::size_t>(b.size() + 1, 0));
  for (std::size_t i = a.size(); i-- > 0;) {
    for (std::size_t j = b.size(); j-- > 0;) {
      common[i][j] =
          a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::string out;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      ++i;
      ++j;
    } else if (j == b.size() || (i < a.size() && common[i + 1][j] >= common[i][j + 1])) {
      out += "-" + a[i++] + "\n";
    } else {
      out += "+" + b[j++] + "\n";
    }
  }
  return out;
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, TableIsAsCommitted) {
  const std::string relative = "tests/golden/" + GetParam() + ".txt";
  TableContext context;
  context.scenarios = fs::path(SWITCHYARD_SOURCE_DIR) / "scenarios";
  const std::string ours = render_all(table_by_name(GetParam()).make(context), TableFormat::kText);
  const fs::path fresh = fs::current_path() / (GetParam() + ".txt");
  write_file(fresh, ours);
  const fs::path golden = fs::path(SWITCHYARD_SOURCE_DIR) / relative;
  const std::string committed = fs::exists(golden) ? read_file(golden) : std::string();
  if (ours != committed) {
    FAIL() << difference(committed, ours) << "differs from " << relative << "; if meant, copy "
           << fresh.string() << " over it and say why in the commit";
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, Golden, ::testing::Values("account", "fits", "mixed-fabric"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

TEST(GoldenDifference, NamesTheLinesThatChanged) {
  EXPECT_EQ(difference("a\nb\nc\n", "a\nB\nc\n"), "-b\n+B\n");
  EXPECT_EQ(difference("a\n", "a\n"), "");
  EXPECT_EQ(difference("", "x\n"), "+x\n");
}

}  // namespace
}  // namespace switchyard::tables
