// SPDX-License-Identifier: Apache-2.0
#include "engine/base/file_hash.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "engine/base/error.hpp"

namespace switchyard {
namespace {

struct Closer {
  void operator()(std::FILE* f) const { (void)std::fclose(f); }
  void operator()(XXH3_state_t* s) const { (void)XXH3_freeState(s); }
};

}  // namespace

std::uint64_t hash64_of_file(const std::filesystem::path& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) {
    throw InputError(path.string(), "is a folder, not a file");
  }
  const std::unique_ptr<std::FILE, Closer> f(std::fopen(path.c_str(), "rb"));
  if (!f) {
    throw InputError(path.string(), fmt::format("cannot open: {}", std::strerror(errno)));
  }
  const std::unique_ptr<XXH3_state_t, Closer> state(XXH3_createState());
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  std::vector<char> buffer(1 << 20);
  std::size_t n = 0;
  while ((n = std::fread(buffer.data(), 1, buffer.size(), f.get())) > 0) {
    XXH3_64bits_update(state.get(), buffer.data(), n);
  }
  if (std::ferror(f.get()) != 0) {
    throw InputError(path.string(), "cannot read the file to its end");
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace switchyard
