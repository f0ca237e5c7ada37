// SPDX-License-Identifier: Apache-2.0
// Links every function that is looked up by name, and opens the libraries as the look-up does.
// Needs no GPU. Exit 0: all are there; 1: says what is not.
#include <dlfcn.h>

#include <cstdio>

#include "kernels/cublas_names.hpp"

namespace {

struct Name {
  const char* text;
  const void* linked;
};

int check(const char* file, const Name* names, std::size_t count) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s: %s\n", file, dlerror());
    return 1;
  }
  int missing = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (dlsym(library, names[i].text) != names[i].linked) {
      std::fprintf(stderr, "%s: %s is not what was linked\n", file, names[i].text);
      ++missing;
    }
  }
  std::printf("%s: %zu functions\n", file, count);
  return missing;
}

}  // namespace

int main() {
#define SWITCHYARD_NAME(f) {#f, reinterpret_cast<const void*>(&f)},
  const Name lt[] = {SWITCHYARD_CUBLAS_LT_FUNCTIONS(SWITCHYARD_NAME)};
  const Name blas[] = {SWITCHYARD_CUBLAS_FUNCTIONS(SWITCHYARD_NAME)};
#undef SWITCHYARD_NAME
  return check(SWITCHYARD_CUBLAS_LT_FILE, lt, sizeof lt / sizeof *lt) +
                     check(SWITCHYARD_CUBLAS_FILE, blas, sizeof blas / sizeof *blas) >
                 0
             ? 1
             : 0;
}
