// SPDX-License-Identifier: Apache-2.0
// Each file of tests/scenario/bad is refused with exactly the message in its first line, which has
// a place with a line number; and no damage to a good file does anything but an InputError.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "sim/scenario/scenario.hpp"

namespace {

namespace fs = std::filesystem;
using switchyard::InputError;
using namespace switchyard::scenario;  // NOLINT(google-build-using-namespace): the unit under test

const fs::path kSource = SWITCHYARD_SOURCE_DIR;
const fs::path kBad = kSource / "tests/scenario/bad";

std::string without(std::string text, const std::string& what) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what)) {
    text.erase(at, what.size());
  }
  return text;
}

class BadScenario : public testing::TestWithParam<std::string> {};

TEST_P(BadScenario, IsRefusedWithTheMessageInItsFirstLine) {
  const fs::path file = kBad / GetParam();
  std::ifstream in(file);
  std::string expected;
  std::getline(in, expected);
  const std::string mark = "# expect: ";
  ASSERT_TRUE(expected.starts_with(mark)) << "the first line of a bad scenario is its message";
  expected.erase(0, mark.size());
  std::string message = "(accepted)";
  try {
    static_cast<void>(read_sweep(file.string()));
  } catch (const InputError& e) {
    message = without(without(e.what(), kBad.string() + "/"), kSource.string() + "/");
    EXPECT_FALSE(e.where().empty());
  }
  EXPECT_EQ(message, expected);
  EXPECT_TRUE(std::regex_search(message, std::regex(R"(^[a-z0-9_]+\.(toml:\d+:\d+|csv:\d+): )")))
      << "no place with a line number: " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

std::vector<std::string> bad_files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kBad)) {
    if (entry.path().extension() == ".toml") {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Corpus, BadScenario, testing::ValuesIn(bad_files()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return without(info.param.substr(0, info.param.size() - 5), "_");
                         });

TEST(BadCorpus, IsNotEmpty) { EXPECT_GE(bad_files().size(), 80U); }

/// splitmix64: a fixed sequence of damage.
struct Sequence {
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
};

TEST(MutatedScenario, IsReadOrRefusedButNeverAnythingElse) {
  // One text with its hardware inline, so that damage reaches both readers.
  std::string hardware = switchyard::read_file(kSource / "scenarios/hardware/mixed_16.toml");
  hardware =
      std::regex_replace(hardware, std::regex(R"(\[\[(devices|links)\]\])"), "[[hardware.$1]]");
  hardware =
      std::regex_replace(hardware, std::regex(R"(\n\[(gpu_types|link_types))"), "\n[hardware.$1");
  const std::string good =
      "[model]\nfile = \"models/qwen2_57b_s1.json\"\n[hardware]\n" + hardware +
      "[parallel]\nep = 16\nplacement = \"round_robin\"\n"
      "[workload]\nkind = \"prefill\"\nbatch = 4\ntokens = 128\n"
      "routing = { synthetic = \"zipf\", s = 1.1 }\n"
      "[policy]\ncapacity = { rule = \"share\", factor = 1.25 }\n"
      "[network]\nmodel = \"flow\"\npayload = { dispatch = \"fp8\", header = \"16 B\" }\n"
      "[memory]\nwatermark = \"92 %\"\n[run]\nseed = 3\n"
      "[[sweep]]\nkey = \"run.seed\"\nvalues = [1, 2]\n";
  const std::string name = (kSource / "scenarios/mutated.toml").string();
  ASSERT_NO_THROW(static_cast<void>(read_scenario_text(good, name)));
  const std::string alphabet = "[]{}=\"'.,#-+0123456789eEinfaT_ \n\\\t\xC3\xFF%/GB";
  std::size_t accepted = 0;
  std::size_t refused = 0;
  Sequence random{20240229};
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    const std::size_t edits = 1 + random.below(3);
    for (std::size_t i = 0; i < edits && !text.empty(); ++i) {
      const std::size_t at = random.below(text.size());
      switch (random.below(5)) {
        case 0:
          text[at] = alphabet[random.below(alphabet.size())];
          break;
        case 1:
          text.insert(at, 1, alphabet[random.below(alphabet.size())]);
          break;
        case 2:
          text.erase(at, 1 + random.below(12));
          break;
        case 3:
          text.insert(random.below(text.size()), text.substr(at, random.below(40)));
          break;
        default:
          if (round % 10 == 0) {
            text.resize(at);
          } else {
            text[at] = static_cast<char>(random.below(256));
          }
      }
    }
    try {
      static_cast<void>(read_scenario_text(text, name));
      ++accepted;
    } catch (const InputError& e) {
      ++refused;
      EXPECT_FALSE(e.where().empty()) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    }
  }
  // Both happen often, or the damage would prove nothing.
  EXPECT_GT(accepted, 300U);
  EXPECT_GT(refused, 300U);
}

}  // namespace
