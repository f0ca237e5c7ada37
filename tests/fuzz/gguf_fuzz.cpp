// SPDX-License-Identifier: Apache-2.0
// A GGUF file: container, configuration, tokenizer, and every tensor taken as the engine takes
// them.
#include "engine/backend/packed_weights.hpp"
#include "engine/model/gguf.hpp"
#include "engine/model/gguf_model.hpp"
#include "engine/model/tokenizer.hpp"
#include "engine/nn/weights.hpp"
#include "tests/fuzz/fuzz_input.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using switchyard::fuzz::expect_input_error_or_success;
  const switchyard::fuzz::MemoryFile file({reinterpret_cast<const char*>(data), size});
  expect_input_error_or_success([&] {
    const auto gguf = switchyard::model::Gguf::open(file.path());
    expect_input_error_or_success([&] {
      (void)switchyard::model::Tokenizer::parse(switchyard::model::gguf_tokenizer_json(gguf),
                                                "fuzz");
    });
    expect_input_error_or_success([&] {
      switchyard::model::GgufWriter copy;
      (void)switchyard::model::copy_gguf_tokenizer(copy, gguf);
    });
  });
  expect_input_error_or_success([&] {
    auto checkpoint = switchyard::model::Checkpoint::open_gguf(file.path());
    switchyard::require_runnable(checkpoint.config(), "fuzz");
    auto weights = switchyard::take_weights(checkpoint);
    switchyard::for_each_view(weights, checkpoint.config().tie_word_embeddings,
                              [](switchyard::WeightView& view) {
                                std::vector<float> row(view.cols);
                                switchyard::widen_rows(view, view.rows - 1, view.rows, row.data());
                              });
  });
  return 0;
}
