// SPDX-License-Identifier: Apache-2.0
// config.json: read, counted, and its gate made.
#include "engine/model/accounting.hpp"
#include "engine/model/gate.hpp"
#include "engine/model/model_config.hpp"
#include "tests/fuzz/fuzz_input.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  switchyard::fuzz::expect_input_error_or_success([&] {
    const auto config = switchyard::model::parse_model_config(
        {reinterpret_cast<const char*>(data), size}, "config.json", "fuzz");
    (void)switchyard::model::count_parameters(config);
    (void)switchyard::model::gate_spec(config);
  });
  return 0;
}
