// SPDX-License-Identifier: Apache-2.0
// tokenizer.json; if it is accepted, some text goes through it and back.
#include "engine/model/tokenizer.hpp"
#include "tests/fuzz/fuzz_input.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using switchyard::fuzz::expect_input_error_or_success;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  expect_input_error_or_success([&] {
    const auto tokenizer = switchyard::model::Tokenizer::parse(text, "tokenizer.json");
    for (const std::string_view sample :
         {std::string_view("The 12 foxes\n\n  jump!"),
          std::string_view("gr\xC3\xB6\xC3\x9F"
                           "e \xE8\xAA\x9E"),
          std::string_view("\xFF\xC3 \x80<|endoftext|>"), text.substr(0, 64)}) {
      expect_input_error_or_success([&] { (void)tokenizer.decode(tokenizer.encode(sample)); });
    }
    for (std::uint32_t id = 0; id < std::min<std::size_t>(tokenizer.vocab_size(), 16); ++id) {
      (void)tokenizer.token_bytes(id);
    }
  });
  return 0;
}
