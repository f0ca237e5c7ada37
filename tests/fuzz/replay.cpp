// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over files instead of over what libFuzzer makes up: [--mutations N] FOLDER...
// Each file as it is, cut short, and N times changed by a seeded mutator (64 by default, fewer for
// large files), so that the sanitizer build meets damaged input too. Fails when there is no file,
// so that a corpus that went missing is noticed.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz_input.hpp"

namespace {

/// Changes of the kinds that readers get wrong. Reproducible: file number and round are the seed.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 1) {}

  std::string changed(std::string bytes) {
    for (std::uint64_t n = 1 + below(4); n > 0 && !bytes.empty(); --n) {
      const std::size_t at = below(bytes.size());
      const std::size_t length = 1 + below(std::min<std::size_t>(64, bytes.size() - at));
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 1:
          bytes[at] = "\0\xff\x7f\x80 \"{}[]:,0129-e.\\\n"[below(22)];
          break;
        case 2: {
          static constexpr std::array<std::uint64_t, 10> kNumbers{
              0, 1, 2, 31, 0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 32U, 1ULL << 63U, ~0ULL};
          const std::uint64_t value = kNumbers[below(kNumbers.size())];
          std::memcpy(bytes.data() + at, &value, std::min<std::size_t>(8, bytes.size() - at));
          break;
        }
        case 3:
          bytes.erase(at, length);
          break;
        case 4:
          bytes.insert(below(bytes.size()), bytes.substr(at, length));
          break;
        default: {
          const std::string part = bytes.substr(at, length);
          const std::size_t to = below(bytes.size());
          bytes.replace(to, std::min(part.size(), bytes.size() - to), part);
        }
      }
    }
    return bytes;
  }

 private:
  std::size_t below(std::size_t n) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::size_t>(state_ >> 33U) % n;
  }
  std::uint64_t state_;
};

void feed(const std::string& bytes) {
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t mutations = 64;
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--mutations" && i + 1 < argc) {
      const std::string_view number = argv[++i];
      std::from_chars(number.data(), number.data() + number.size(), mutations);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argument)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (std::size_t n = 0; n < files.size(); ++n) {
    std::ifstream in(files[n], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    fmt::print("{} ({} bytes)\n", files[n].filename().string(), bytes.size());
    std::fflush(stdout);
    feed(bytes);
    for (std::size_t k = 1; k <= 16; ++k) {
      feed(bytes.substr(0, bytes.size() * k / 17));
    }
    const std::uint64_t rounds = bytes.size() > 50'000 ? mutations / 8 : mutations;
    for (std::uint64_t k = 0; k < rounds; ++k) {
      feed(Mutator(n * 1'000'003 + k).changed(bytes));
    }
  }
  fmt::print("{} files\n", files.size());
  return files.empty() ? 1 : 0;
}
