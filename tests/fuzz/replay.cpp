// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over files instead of over what libFuzzer makes up: FOLDER... Fails when there
// is none, so that a corpus that went missing is noticed.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz_input.hpp"

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    fmt::print("{} ({} bytes)\n", path.filename().string(), bytes.size());
    std::fflush(stdout);
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    (void)LLVMFuzzerTestOneInput(data, bytes.size());
    // Cut short and with a bit turned over, at places that differ from file to file.
    for (std::size_t k = 1; k <= 16 && !bytes.empty(); ++k) {
      std::string changed = bytes;
      changed[changed.size() * k / 17] ^= static_cast<char>(1U << (k % 8));
      const auto* c = reinterpret_cast<const std::uint8_t*>(changed.data());
      (void)LLVMFuzzerTestOneInput(c, changed.size());
      (void)LLVMFuzzerTestOneInput(data, bytes.size() * k / 17);
    }
  }
  fmt::print("{} files\n", files.size());
  return files.empty() ? 1 : 0;
}
