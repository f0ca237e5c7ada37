// SPDX-License-Identifier: Apache-2.0
// What tests ask of the stand-in for NCCL (fake_nccl.cpp).
#pragma once

extern "C" {
/// Groups that have not ended on a stream.
int fake_nccl_busy(void* stream);
/// Communicators that were neither destroyed nor aborted.
int fake_nccl_live();
/// What a rank called since the reset: "init; recv 2:8; send 1:8; end; ".
const char* fake_nccl_calls(int rank);
void fake_nccl_reset();
/// The next `call` ("Send") of this rank (-1: of any) gives `result`; "async": the next group of
/// the rank ends in this state.
void fake_nccl_fault(const char* call, int rank, int result);
/// Of this thread, instead of 22809.
void fake_nccl_version(int number);
}
