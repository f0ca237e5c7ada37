// SPDX-License-Identifier: Apache-2.0
#include "gui/core/gallery.hpp"

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/base/error.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/scenario/shipped.hpp"

namespace switchyard::gui {
namespace {

namespace fs = std::filesystem;

/// A scenario that declares a sweep runs as the point that its other keys describe.
const char* const kNoSweep = "sweep=[]";

std::vector<GalleryEntry> explorations() {
  const auto make = [](const char* id, const char* title, const char* text,
                       std::vector<GalleryRun> runs) {
    GalleryEntry e;
    e.id = id;
    e.title = title;
    e.text = text;
    e.runs = std::move(runs);
    e.exploration = true;
    return e;
  };
  std::vector<GalleryEntry> all;
  all.push_back(make("demo", "Demo: a real model's routing on 8 H100",
                     "Records which expert each token of the shipped checkpoint goes to, then "
                     "replays it on a 57 B model. Look at: red cells of the heat map, Experts.",
                     {{"demo.toml", {}, "demo"}}));
  all.back().records = all.back().oneLayer = true;
  all.push_back(make("overloaded", "An overloaded expert under capacity 1.0",
                     "Skewed routing against a tight limit: what overflows goes to the next best "
                     "expert. Look at: Reroutes and Capacity.",
                     {{"overloaded_expert.toml", {}, "overloaded"}}));
  all.back().oneLayer = true;
  all.push_back(make(
      "fabric", "NVLink and PCIe mixed: ring, hierarchical, direct",
      "The same prefill over 8 NVLink and 8 PCIe GPUs with three exchange algorithms: ring and "
      "hierarchical side by side, direct to be chosen in Compare. Look at: Compare, Topology, Link "
      "use.",
      {{"mixed_fabric.toml", {kNoSweep, "network.algorithm=ring"}, "ring"},
       {"mixed_fabric.toml", {kNoSweep, "network.algorithm=hierarchical"}, "hierarchical"},
       {"mixed_fabric.toml", {kNoSweep, "network.algorithm=direct"}, "direct"}}));
  all.push_back(make("offload", "Experts offloaded to the host, LRU cache on the GPU",
                     "More experts than the GPU holds: misses wait for PCIe. Look at: Events, GPU "
                     "time, Memory.",
                     {{"offload_lru.toml", {kNoSweep}, "offload"}}));
  all.back().panes = {"memory"};
  all.push_back(make("failure", "A GPU fails and heals",
                     "Its experts move to the others and come back. Look at: Events, Load "
                     "imbalance, Step time.",
                     {{"gpu_failure.toml", {kNoSweep}, "failure"}}));
  all.push_back(make("serving", "Requests arrive, wait, are batched and leave",
                     "Time to the first token and per output token of every request. Look at: "
                     "Requests, Step time, Events.",
                     {{"serving_mixtral.toml", {kNoSweep}, "serving"}}));
  return all;
}

/// First comment block without the licence line.
std::string firstComment(const fs::path& file) {
  std::ifstream in(file);
  std::string line, text;
  while (std::getline(in, line) && line.starts_with("#")) {
    if (line.find("SPDX") != std::string::npos) continue;
    const std::size_t from = line.find_first_not_of("# ");
    if (from == std::string::npos) break;
    if (!text.empty()) text += ' ';
    text += line.substr(from);
  }
  const std::size_t end = text.find(". ");
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

/// Whether `switchyard sim` finds all that the scenario names.
bool canRun(const fs::path& file, const fs::path& folder) {
  try {
    scenario::ReadOptions options;
    options.presets_root = folder.string();
    options.settings = {kNoSweep};
    (void)scenario::read_scenario(file.string(), options);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

fs::path scenariosFolder() { return scenario::shipped_scenarios(SWITCHYARD_SCENARIOS_DIR); }

std::vector<GalleryEntry> gallery(const fs::path& folder) {
  std::vector<GalleryEntry> all;
  std::set<std::string> used;
  std::error_code ignored;
  for (GalleryEntry& e : explorations()) {
    const bool whole = std::all_of(e.runs.begin(), e.runs.end(), [&](const GalleryRun& r) {
      return fs::is_regular_file(folder / r.file, ignored);
    });
    if (!whole) continue;
    for (const GalleryRun& r : e.runs) used.insert(r.file);
    all.push_back(std::move(e));
  }
  std::vector<fs::path> files;
  for (const auto& f : fs::directory_iterator(folder, ignored)) {
    if (f.path().extension() == ".toml" && !used.contains(f.path().filename().string())) {
      files.push_back(f.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& f : files) {
    const std::string name = f.stem().string();
    GalleryEntry e;
    e.id = e.title = name;
    e.text = firstComment(f);
    e.runs = {{f.filename().string(), {kNoSweep}, name}};
    e.runsAlone = canRun(f, folder);
    all.push_back(std::move(e));
  }
  return all;
}

}  // namespace switchyard::gui
