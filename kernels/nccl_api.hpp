// SPDX-License-Identifier: Apache-2.0
// The few functions of NCCL that NcclCommunicator calls, in NCCL's own layout (nccl.h, stable since
// 2.14), so that neither the build nor a program without GPUs needs NCCL. nccl_link_check.cpp
// compares all of this with the toolkit's nccl.h.
#pragma once
#include <cstddef>
#include <string>

namespace switchyard::gpu::nccl {

using Comm = void*;    ///< ncclComm_t
using Stream = void*;  ///< cudaStream_t
using Result = int;    ///< ncclResult_t
inline constexpr Result kSuccess = 0, kInProgress = 7;
inline constexpr int kUint8 = 1;  ///< ncclDataType_t
struct UniqueId {
  char internal[128];
};
/// ncclConfig_t as NCCL 2.14 had it. Later versions read as much as `size` says and take their own
/// defaults for what a config of this `version` did not have.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

/// X(name without "nccl", result, arguments)
#define SWITCHYARD_NCCL_FUNCTIONS(X)                                  \
  X(GetVersion, Result, (int*))                                       \
  X(GetUniqueId, Result, (UniqueId*))                                 \
  X(CommInitRankConfig, Result, (Comm*, int, UniqueId, int, Config*)) \
  X(CommFinalize, Result, (Comm))                                     \
  X(CommDestroy, Result, (Comm))                                      \
  X(CommAbort, Result, (Comm))                                        \
  X(CommGetAsyncError, Result, (Comm, Result*))                       \
  X(GetErrorString, const char*, (Result))                            \
  X(GetLastError, const char*, (Comm))                                \
  X(Send, Result, (const void*, std::size_t, int, int, Comm, Stream)) \
  X(Recv, Result, (void*, std::size_t, int, int, Comm, Stream))       \
  X(GroupStart, Result, ())                                           \
  X(GroupEnd, Result, ())

struct Functions {
#define SWITCHYARD_NCCL_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  SWITCHYARD_NCCL_FUNCTIONS(SWITCHYARD_NCCL_MEMBER)
#undef SWITCHYARD_NCCL_MEMBER
};

inline constexpr const char* kFile = "libnccl.so.2";

/// Opens the library (toolkit_library.hpp) and looks its functions up; it stays open. False: why
/// says in one line what is missing.
[[nodiscard]] bool open(const char* file, Functions& functions, std::string& why);
/// "2.28.9" of GetVersion's number, which had another form before 2.9.
[[nodiscard]] std::string version_text(int number);

}  // namespace switchyard::gpu::nccl
