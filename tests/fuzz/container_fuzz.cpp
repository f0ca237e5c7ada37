// SPDX-License-Identifier: Apache-2.0
// A trace or run file. The header's own checksum is made right, so that what it says is looked at;
// the content's hash is not, since libhdf5 must never see a file whose hash is wrong.
#include "engine/base/hash.hpp"
#include "engine/h5/container.hpp"
#include "engine/trace/trace.hpp"
#include "sim/run/run_file.hpp"
#include "tests/fuzz/fuzz_input.hpp"

#include <cstring>
#include <span>

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using switchyard::fuzz::expect_input_error_or_success;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const bool repaired : {false, true}) {
    if (repaired && size >= 512) {
      const std::uint64_t sum = switchyard::hash64(std::as_bytes(std::span(bytes)).subspan(0, 504));
      std::memcpy(bytes.data() + 504, &sum, sizeof sum);
    }
    const switchyard::fuzz::MemoryFile file(bytes);
    expect_input_error_or_success([&] { (void)switchyard::h5::read_header(file.path()); });
    expect_input_error_or_success([&] { (void)switchyard::read_trace(file.path()); });
    expect_input_error_or_success([&] { (void)switchyard::run::read_run(file.path()); });
  }
  return 0;
}
