// SPDX-License-Identifier: Apache-2.0
// The dependency arrows of CONTRIBUTING.md, checked on the include graph and on the link graph:
// arrows never point up or sideways. Also: which file may include which third-party library, the
// SPDX line, and that no path of one machine is committed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/atomic_file.hpp"

namespace fs = std::filesystem;

namespace {

/// Module of a source path, e.g. "engine/nn/x.cpp" → "engine". "entry" is the C header of the
/// library that the program opens by dlopen.
const std::vector<std::pair<std::string, std::string>> kModules{
    {"engine/base/", "base"},
    {"engine/h5/", "h5"},
    {"engine/routing/", "routing"},
    {"engine/trace/", "trace"},
    {"engine/model/", "model"},
    {"engine/nn/", "engine"},
    {"engine/backend/", "engine"},
    {"engine/parallel/", "engine"},
    {"sim/scenario/", "scenario"},
    {"sim/run/", "run"},
    {"sim/cluster/", "cluster"},
    {"sim/network/", "network"},
    {"sim/placement/", "placement"},
    {"sim/health/", "health"},
    {"sim/faults/", "sim"},
    {"sim/cost/", "sim"},
    {"sim/memory/", "sim"},
    {"sim/serving/", "sim"},
    {"sim/loop/", "sim"},
    {"experiments/", "experiments"},
    {"gui/", "gui"},
    {"kernels/backend_entry.h", "entry"},
    {"kernels/", "kernels"},
    {"tests/", "tests"}};

/// What each module may use (itself always). model and scenario use routing only for its plain
/// structs.
const std::map<std::string, std::set<std::string>> kAllowed{
    {"base", {}},
    {"h5", {"base"}},
    {"routing", {"base"}},
    {"trace", {"base", "routing", "h5"}},
    {"model", {"base", "routing"}},
    {"engine", {"base", "routing", "trace", "model"}},
    {"scenario", {"base", "model", "routing"}},
    {"run", {"base", "h5"}},
    {"cluster", {"base", "scenario"}},
    {"network", {"base", "cluster", "scenario"}},
    {"placement", {"base"}},
    {"health", {"base", "run", "scenario"}},
    {"sim",
     {"base", "routing", "trace", "model", "scenario", "run", "cluster", "network", "placement",
      "health"}},
    {"experiments",
     {"base", "routing", "trace", "model", "engine", "scenario", "run", "cluster", "network",
      "placement", "health", "sim", "entry"}},
    {"entry", {}},
    {"gui", {"base", "routing", "run", "scenario", "health", "trace"}},
    {"kernels", {"base", "routing", "trace", "model", "engine", "entry"}}};

std::string module_of(const std::string& path) {
  for (const auto& [prefix, name] : kModules) {
    if (path.starts_with(prefix)) {
      return name;
    }
  }
  return {};
}

struct Include {
  std::string file;    // relative to the root
  std::string target;  // as written
  bool quoted = false;
};

std::vector<std::string> source_files() {
  std::vector<std::string> files;
  const fs::path root = SWITCHYARD_SOURCE_DIR;
  for (const char* top : {"engine", "sim", "experiments", "gui", "kernels", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string ext = entry.path().extension().string();
      if (entry.is_regular_file() &&
          (ext == ".hpp" || ext == ".cpp" || ext == ".cu" || ext == ".cuh" || ext == ".h")) {
        files.push_back(fs::relative(entry.path(), root).string());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Include> all_includes() {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> out;
  for (const std::string& file : source_files()) {
    std::ifstream in(fs::path(SWITCHYARD_SOURCE_DIR) / file);
    std::string line;
    std::smatch m;
    while (std::getline(in, line)) {
      if (std::regex_search(line, m, pattern)) {
        out.push_back({file, m[2], m[1] == "\""});
      }
    }
  }
  return out;
}

}  // namespace

TEST(Arrows, IncludesNeverPointUpOrSideways) {
  std::size_t checked = 0;
  for (const Include& i : all_includes()) {
    const std::string from = module_of(i.file);
    const std::string to = module_of(i.target);
    if (from == "tests" || to.empty() || from == to) {
      continue;
    }
    if (from == "experiments" && i.target == "kernels/backend_entry.h") {
      continue;  // the C entry points of the library that is opened at run time
    }
    ++checked;
    ASSERT_TRUE(kAllowed.count(from)) << i.file;
    EXPECT_TRUE(kAllowed.at(from).count(to)) << i.file << " includes " << i.target;
  }
  EXPECT_GT(checked, 50U);
}

TEST(Arrows, LinksNeverPointUpOrSideways) {
  std::istringstream graph(switchyard::read_file(SWITCHYARD_LINK_GRAPH));
  std::string line;
  std::size_t checked = 0;
  while (std::getline(graph, line)) {
    const std::size_t colon = line.find(": ");
    ASSERT_NE(colon, std::string::npos) << line;
    const std::string from = line.substr(0, colon);
    std::istringstream libraries(line.substr(colon + 2));
    std::string library;
    while (std::getline(libraries, library, ';')) {
      std::smatch m;
      static const std::regex own(R"(switchyard(?:::|_)(\w+))");
      if (!std::regex_search(library, m, own) || m[1] == "options" || m[1] == from ||
          m[1].str().starts_with("gui")) {
        continue;
      }
      ++checked;
      EXPECT_TRUE(kAllowed.at(from).count(m[1])) << from << " links " << library;
    }
  }
  EXPECT_GT(checked, 10U);
}

TEST(Arrows, ThirdPartyHeadersStayBehindTheirBorder) {
  // header prefix → folders (or files) that may include it, tests aside
  const std::map<std::string, std::vector<std::string>> border{
      {"simgrid/", {"sim/network/"}},
      {"xbt", {"sim/network/"}},
      {"hdf5", {"engine/h5/"}},
      {"H5", {"engine/h5/"}},
      {"mpi.h", {"engine/parallel/"}},
      {"Eigen/", {"engine/nn/", "engine/backend/"}},
      {"Q", {"gui/"}},
      {"boost/graph/", {"sim/cluster/"}},
      {"boost/property_tree/", {"experiments/import/nccl_xml.cpp"}},
      {"boost/context/", {"kernels/host/"}},
      {"cuda", {"kernels/"}},
      {"toml++/", {"sim/scenario/", "experiments/claims/", "experiments/tables/"}},
      {"CLI/", {"experiments/cli/main.cpp"}}};
  for (const Include& i : all_includes()) {
    if (i.quoted || i.file.starts_with("tests/")) {
      continue;
    }
    for (const auto& [prefix, places] : border) {
      if (i.target.starts_with(prefix)) {
        EXPECT_TRUE(std::any_of(places.begin(), places.end(),
                                [&](const std::string& p) { return i.file.starts_with(p); }))
            << i.file << " includes <" << i.target << ">";
      }
    }
    // No SimGrid type in a public header, anywhere.
    EXPECT_FALSE(i.target.starts_with("simgrid/") && i.file.ends_with(".hpp")) << i.file;
  }
}

TEST(Files, StartWithTheirLicence) {
  for (const std::string& file : source_files()) {
    std::ifstream in(fs::path(SWITCHYARD_SOURCE_DIR) / file);
    std::string line;
    std::getline(in, line);
    EXPECT_TRUE(line.find("SPDX-License-Identifier: Apache-2.0") != std::string::npos) << file;
  }
}

TEST(Files, HoldNoPathOfOneMachine) {
  static const std::regex bad(R"((^|[^\w])/(work|root|home)/)");
  for (const std::string& file : source_files()) {
    if (file == "tests/project/arrow_test.cpp") {
      continue;
    }
    std::istringstream text(switchyard::read_file(fs::path(SWITCHYARD_SOURCE_DIR) / file));
    std::string line;
    while (std::getline(text, line)) {
      EXPECT_FALSE(std::regex_search(line, bad)) << file << ": " << line;
    }
  }
}
