// SPDX-License-Identifier: Apache-2.0
// Compares nccl_api.hpp with the toolkit's nccl.h, and opens the library as NcclCommunicator does.
// Needs no GPU. Exit 0: all agrees; 1: says what does not.
#include <nccl.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <type_traits>

#include "kernels/nccl_api.hpp"

namespace {

namespace ours = switchyard::gpu::nccl;

/// Arguments and results that are passed alike: enums as int, pointers to what has one layout.
template <class T>
struct Passed {
  using type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <class T>
using passed = typename Passed<T>::type;

template <class A, class B>
constexpr bool one_layout = std::is_same_v<passed<A>, passed<B>> ||
                            (std::is_pointer_v<A> && std::is_pointer_v<B>) ||
                            (std::is_same_v<A, ncclUniqueId> && std::is_same_v<B, ours::UniqueId>);

template <class F, class G>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
struct Alike<R (*)(A...), S (*)(B...)> : std::bool_constant<sizeof...(A) == sizeof...(B)> {
  static_assert(one_layout<R, S> && (one_layout<A, B> && ...));
};

#define SWITCHYARD_ALIKE(name, result, arguments) \
  static_assert(Alike<decltype(&::nccl##name), result(*) arguments>::value, "nccl" #name);
using ours::Comm, ours::Config, ours::Result, ours::Stream, ours::UniqueId;
SWITCHYARD_NCCL_FUNCTIONS(SWITCHYARD_ALIKE)
#undef SWITCHYARD_ALIKE

static_assert(ncclSuccess == ours::kSuccess && ncclInProgress == ours::kInProgress);
static_assert(ncclUint8 == ours::kUint8);
static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));
static_assert(std::is_same_v<ncclComm_t, ncclComm*>);
static_assert(offsetof(ncclConfig_t, size) == offsetof(Config, size) &&
              offsetof(ncclConfig_t, magic) == offsetof(Config, magic) &&
              offsetof(ncclConfig_t, version) == offsetof(Config, version) &&
              offsetof(ncclConfig_t, blocking) == offsetof(Config, blocking) &&
              sizeof(ncclConfig_t) >= sizeof(Config));

}  // namespace

int main() {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config mine;
  if (theirs.magic != mine.magic || theirs.version < mine.version) {
    std::fprintf(stderr, "ncclConfig_t has another magic or an older version\n");
    return 1;
  }
  ours::Functions f;
  std::string why;
  int version = 0;
  if (!ours::open(ours::kFile, f, why) || f.GetVersion(&version) != ours::kSuccess) {
    std::fprintf(stderr, "NCCL: %s\n", why.c_str());
    return 1;
  }
  std::printf("NCCL %s\n", ours::version_text(version).c_str());
  return 0;
}
