// SPDX-License-Identifier: Apache-2.0
// One safetensors file: header checked, every byte that a tensor claims read.
#include "engine/model/checkpoint.hpp"
#include "engine/model/safetensors.hpp"
#include "tests/fuzz/fuzz_input.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using switchyard::fuzz::MemoryFile;
  const MemoryFile file({reinterpret_cast<const char*>(data), size});
  switchyard::fuzz::expect_input_error_or_success([&] {
    const auto weights = switchyard::model::Safetensors::open(file.path());
    (void)switchyard::model::hash_tensors(weights.tensors());
    for (const auto& [name, view] : weights.tensors()) {
      if (switchyard::model::is_float_weight(view.dtype)) {
        (void)view.to_float();
      }
    }
  });
  return 0;
}
