// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json beside one good shard, a.safetensors with tensors "x" and "y".
#include <fstream>
#include <system_error>

#include "engine/model/safetensors.hpp"
#include "tests/fuzz/fuzz_input.hpp"

namespace {

/// A folder of this process below the working folder, removed at its end.
class Folder {
 public:
  Folder() : path_(fmt::format("fuzz_index.{}", ::getpid())) {
    std::filesystem::create_directories(path_);
    const float one = 1;
    std::vector<switchyard::model::TensorData> tensors;
    for (const char* name : {"x", "y"}) {
      tensors.push_back(switchyard::model::TensorData::from_floats(
          name, switchyard::model::DType::kF32, {1}, {&one, 1}));
    }
    std::ofstream(path_ / "a.safetensors", std::ios::binary)
        << switchyard::model::safetensors_bytes(tensors);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const auto index = folder.path() / "model.safetensors.index.json";
  std::ofstream(index, std::ios::binary)
      << std::string_view(reinterpret_cast<const char*>(data), size);
  switchyard::fuzz::expect_input_error_or_success(
      [&] { (void)switchyard::model::Safetensors::open(folder.path()); });
  return 0;
}
