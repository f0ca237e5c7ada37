// SPDX-License-Identifier: Apache-2.0
// Ranks whose GPUs exchange rows by themselves: a Communicator over NCCL on top of one over MPI.
//
//   std::string why;
//   const auto fast = join_nccl(*job, device, nccl::kFile, timeout, why);  // every rank calls it
//   Communicator& ranks = fast ? *fast : *job;
//
// What lies in GPU memory (rows, inner activations, expert outputs) goes by NCCL: one group of
// ncclSend and ncclRecv per exchange, of the pairs that have something to say, on the backend's
// stream. What lies in host memory (counts, router and output logits, texts) stays with MPI: it
// begins and ends on the host. Bytes are moved, never added up, so results have the bits of MPI.
//
// Failure: the communicator is non-blocking. The host polls ncclCommGetAsyncError and an event
// behind the exchange; an error, or no end within the time-out, aborts the communicator and throws
// InputError. NCCL does not say which rank is silent.
//
// Not modelled: work on the GPU while an exchange runs (the host waits for each, so that a stuck
// rank is told from a slow kernel), blocks of a pair whose two sides differ in length
// (ExpertExchange compares counts before), restart. None of this has run on a GPU: the order of
// calls is tested against a stand-in for NCCL (tests/kernels/nccl_test.cpp).
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "engine/parallel/communicator.hpp"
#include "kernels/device.hpp"

namespace switchyard::gpu {

/// Agrees over `job` whether its ranks can use NCCL, and joins them. Every rank calls it; all get a
/// communicator, or all get null with the same one-line reason: a rank without the library or with
/// another version, two ranks on one GPU, no unique id. InputError: a rank failed, or did not come
/// within `timeout`, after all had agreed. Borrows job and device until finish(); after an error
/// neither is touched any more.
[[nodiscard]] std::unique_ptr<Communicator> join_nccl(Communicator& job, Device& device,
                                                      const char* file,
                                                      std::chrono::milliseconds timeout,
                                                      std::string& why);

}  // namespace switchyard::gpu
