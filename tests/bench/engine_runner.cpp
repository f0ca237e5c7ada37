// SPDX-License-Identifier: Apache-2.0
// Runs a checkpoint step by step at the word of a script, so that it can be timed in turns with
// another engine in one run (experiments/bench/compare.py):
//   engine_runner FOLDER THREADS
//   < prefill T0 T1 …   a new sequence, all tokens in one step
//   < decode T0 T1 …    the same sequence, one step for each token
//   > SECONDS ARGMAX LOGIT   elapsed time, and the largest logit of the last row
// The first line it writes names the program and its arithmetic path.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/version.hpp"
#include "engine/nn/session.hpp"

int main(int argc, char** argv) {
  using switchyard::Phase;
  if (argc != 3) {
    std::fprintf(stderr, "usage: engine_runner FOLDER THREADS\n");
    return 2;
  }
  try {
    const auto engine =
        switchyard::Engine::load(argv[1], {.threads = static_cast<unsigned>(std::stoul(argv[2]))});
    std::printf("switchyard %s (%s)\n", switchyard::version().c_str(),
                engine.backend().name().c_str());
    std::fflush(stdout);
    std::unique_ptr<switchyard::Session> session;
    std::uint32_t sequence = 0;
    std::string line;
    while (std::getline(std::cin, line)) {
      std::istringstream words(line);
      std::string verb;
      words >> verb;
      std::vector<std::uint32_t> tokens;
      for (std::uint32_t token = 0; words >> token;) {
        tokens.push_back(token);
      }
      if (tokens.empty() || (verb != "prefill" && (verb != "decode" || !session))) {
        throw switchyard::InputError("standard input", "not understood: " + line.substr(0, 40));
      }
      if (verb == "prefill") {
        session = std::make_unique<switchyard::Session>(engine, switchyard::SessionOptions{});
        sequence = session->add_sequence();
      }
      const std::size_t width = verb == "prefill" ? tokens.size() : 1;
      const auto start = std::chrono::steady_clock::now();
      for (std::size_t i = 0; i < tokens.size(); i += width) {
        const switchyard::SequenceTokens work{sequence, std::span(tokens).subspan(i, width)};
        (void)session->step({&work, 1}, width > 1 ? Phase::kPrefill : Phase::kDecode);
      }
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const auto logits = session->last().logits_of(0);
      const auto top = std::max_element(logits.begin(), logits.end());
      std::printf("%.9f %td %.6f\n", seconds, top - logits.begin(), static_cast<double>(*top));
      std::fflush(stdout);
    }
  } catch (const switchyard::InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
