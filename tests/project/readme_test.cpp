// SPDX-License-Identifier: Apache-2.0
// The README names what there is: every file it links, every verb, no unfilled field.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "engine/base/atomic_file.hpp"
#include "tests/cli/process.hpp"

namespace {

namespace fs = std::filesystem;
using switchyard::test::run_switchyard;
using switchyard::test::source_path;

std::string readme() { return switchyard::read_file(source_path("README.md")); }

std::set<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> out;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
    out.insert((*it)[1]);
  }
  return out;
}

/// Verbs that --help lists as usable; those it lists as not in this version are left out.
std::set<std::string> registered_verbs() {
  const auto help = run_switchyard({"--help"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  std::set<std::string> verbs;
  std::istringstream lines(help.out);
  bool listed = false;
  static const std::regex entry(R"(^  ([a-z]+)\s.*)");
  std::smatch m;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(" ")) {
      listed = line == "Subcommands:";
    } else if (listed && std::regex_match(line, m, entry)) {
      verbs.insert(m[1]);
    }
  }
  return verbs;
}

}  // namespace

TEST(Readme, HasNoUnfilledField) {
  EXPECT_EQ(matches(readme(), std::regex(R"((@[A-Za-z_ ]+@))")), std::set<std::string>{});
}

TEST(Readme, LinksOnlyFilesThatExist) {
  const auto links = matches(readme(), std::regex(R"(\]\(([^)#]+)[^)]*\))"));
  std::size_t files = 0;
  for (const std::string& link : links) {
    if (link.find("://") == std::string::npos) {
      ++files;
      EXPECT_TRUE(fs::exists(source_path(link))) << link;
    }
  }
  EXPECT_GE(files, 5U);
}

TEST(Readme, ListsEveryVerbAndNoOther) {
  const auto verbs = registered_verbs();
  EXPECT_GE(verbs.size(), 10U);
  const auto listed = matches(readme(), std::regex(R"(\n\| `([a-z]+)[ `])"));
  EXPECT_EQ(verbs, listed);
}
