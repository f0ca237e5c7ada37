/* SPDX-License-Identifier: Apache-2.0 */
/* The C entries of libswitchyard_cuda.so, found by dlsym. The program links neither CUDA nor this
 * library; it opens it on --device cuda. Layout and meaning are fixed by SWITCHYARD_CUDA_ABI: any
 * change gets a new number, and a program refuses a library of another number. */
#ifndef SWITCHYARD_KERNELS_BACKEND_ENTRY_H_
#define SWITCHYARD_KERNELS_BACKEND_ENTRY_H_
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SWITCHYARD_CUDA_ABI 4

struct SwitchyardCudaDevice {
  char name[256];        /* zero-terminated */
  int32_t major, minor;  /* compute capability */
  uint64_t memory_bytes; /* total device memory */
};

/* The number above, of the library. */
typedef int32_t (*SwitchyardCudaAbi)(void);
/* Version text of the library; static storage. */
typedef const char* (*SwitchyardCudaVersion)(void);
/* Counts the devices and describes device 0 in *device when there is one (else *device is all
 * zero). Returns the count >= 0, or -1 with a zero-terminated reason in message (message_size >= 1
 * bytes; "" otherwise). */
typedef int32_t (*SwitchyardCudaProbe)(struct SwitchyardCudaDevice* device, char* message,
                                       uint64_t message_size);

/* Opens device `device` < count; bf16: 0 float32, 1 BF16 operands of products. Returns a
 * switchyard::Backend* that the caller deletes, or null with a reason in message as above. A C++
 * object: program and library must be of one version and one compiler. */
typedef void* (*SwitchyardCudaOpen)(int32_t device, int32_t bf16, char* message,
                                    uint64_t message_size);

/* Joins the GPUs of a job's ranks (kernels/nccl_communicator.hpp): `backend` is one of open's,
 * `job` a switchyard::Communicator*; every rank calls it. Returns a Communicator* that the caller
 * deletes and that borrows both until finish(), or on every rank null with a reason in message.
 * Throws switchyard::InputError when a rank fails or does not come within timeout_ms. */
typedef void* (*SwitchyardCudaJoin)(void* backend, void* job, uint64_t timeout_ms, char* message,
                                    uint64_t message_size);

#define SWITCHYARD_CUDA_ABI_NAME "switchyard_cuda_abi"
#define SWITCHYARD_CUDA_VERSION_NAME "switchyard_cuda_version"
#define SWITCHYARD_CUDA_PROBE_NAME "switchyard_cuda_probe"
#define SWITCHYARD_CUDA_OPEN_NAME "switchyard_cuda_open"
#define SWITCHYARD_CUDA_JOIN_NAME "switchyard_cuda_join"

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_KERNELS_BACKEND_ENTRY_H_ */
