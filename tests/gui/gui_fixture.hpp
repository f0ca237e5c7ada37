// SPDX-License-Identifier: Apache-2.0
// What several tests of the window need: waiting with the event loop running, and a scenario that
// simulates in a fraction of a second.
#pragma once
#include <fstream>
#include <memory>
#include <string>

#include <QElapsedTimer>
#include <QTest>

#include "gui/core/runstore.hpp"

namespace switchyard::gui::testing {

template <class Condition>
bool wait(Condition&& done, int ms) {
  QElapsedTimer clock;
  clock.start();
  while (!done() && clock.elapsed() < ms) QTest::qWait(1);
  return done();
}

/// A run in memory, as if opened from `name`.
inline std::shared_ptr<const RunStore> stored(run::RunData data, const char* name = "demo.h5") {
  return std::make_shared<const RunStore>(std::make_shared<const run::RunData>(std::move(data)),
                                          name);
}

inline void writeText(const std::string& name, const std::string& text) {
  std::ofstream(name, std::ios::binary) << text;
}

/// Self-contained but for the model and the hardware that ship.
inline const std::string kTinyScenario = R"(# A comment that stays.
[model]
file = ")" + std::string(SWITCHYARD_SOURCE_DIR) +
                                         R"(/scenarios/models/mixtral_8x7b.json"   # Mixtral

[hardware]
file = ")" + std::string(SWITCHYARD_SOURCE_DIR) +
                                         R"(/scenarios/hardware/hgx_h100.toml"

[workload]
kind = "decode"
batch = 32
context = 128
steps = 12
routing = { synthetic = "zipf", s = 1.0 }

[policy]
capacity = { rule = "share", factor = 1.25, reroute = "next" }   # tight

[run]
seed = 3
)";

inline std::string longScenario() {
  std::string text = kTinyScenario;
  const std::string steps = "steps = 12";
  text.replace(text.find(steps), steps.size(), "steps = 2000000");
  return text;
}

}  // namespace switchyard::gui::testing
