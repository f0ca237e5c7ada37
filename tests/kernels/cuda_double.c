/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libswitchyard_cuda.so: COUNT devices of compute capability MAJOR.0. */
#include <stdio.h>
#include <string.h>

#include "kernels/backend_entry.h"

#ifndef ABI
#define ABI SWITCHYARD_CUDA_ABI
#endif
#ifndef MAJOR
#define MAJOR 0
#endif

#ifndef BARE
int32_t switchyard_cuda_abi(void) { return ABI; }
#ifndef VERSION
#define VERSION "double"
#endif
const char* switchyard_cuda_version(void) { return VERSION; }
int32_t switchyard_cuda_probe(struct SwitchyardCudaDevice* device, char* message,
                              uint64_t message_size) {
  memset(device, 0, sizeof(*device));
  message[0] = '\0';
  if (COUNT < 0) {
    snprintf(message, message_size, "driver too old\nsecond line");
  }
  if (COUNT > 0) {
    snprintf(device->name, sizeof(device->name), "Double %d", MAJOR);
    device->major = MAJOR;
    device->memory_bytes = 1000;
  }
  return COUNT;
}
void* switchyard_cuda_open(int32_t device, int32_t bf16, char* message, uint64_t message_size) {
  (void)bf16;
  snprintf(message, message_size, "it is a double of number %d\nsecond line", (int)device);
  return NULL;
}
#else
int switchyard_cuda_unrelated(void) { return 0; }
#endif
