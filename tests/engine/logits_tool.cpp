// SPDX-License-Identifier: Apache-2.0
// logits_tool MODEL ID,ID,… OUT: float32 logits of every position, for comparisons by hand with
// other engines (tests/fixtures/check_gguf_against_llama_cpp.py).
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/nn/session.hpp"

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: logits_tool MODEL ID,ID,... OUT\n");
    return 2;
  }
  try {
    std::vector<std::uint32_t> ids;
    std::string_view list = argv[2];
    while (!list.empty()) {
      std::uint32_t id = 0;
      const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), id);
      if (error != std::errc{}) {
        fmt::print(stderr, "logits_tool: \"{}\" is no list of token ids\n", argv[2]);
        return 2;
      }
      ids.push_back(id);
      list.remove_prefix(static_cast<std::size_t>(end - list.data()));
      list.remove_prefix(list.starts_with(',') ? 1 : 0);
    }
    const auto engine = switchyard::Engine::load(argv[1], {});
    switchyard::Session session(engine, {.policy = {}, .seed = 1, .all_logits = true});
    const switchyard::SequenceTokens work{session.add_sequence(), ids};
    const auto& r = session.step({&work, 1}, switchyard::Phase::kPrefill);
    switchyard::write_file(
        argv[3], {reinterpret_cast<const char*>(r.logits.data()), r.logits.size() * sizeof(float)});
  } catch (const switchyard::InputError& e) {
    fmt::print(stderr, "logits_tool: {}\n", e.what());
    return 2;
  }
  return 0;
}
