// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and kill: child processes are stopped, unfinished outputs removed, and the process ends
// with 128 + signal (130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP). Under mpirun, which
// ends all ranks with SIGTERM when one dies, rank 0 says so in a line.
//
// A thread of its own waits for the signals, which are blocked everywhere else: cleaning up needs
// no async-signal-safe code, and handlers that libraries install (SimGrid's for SIGINT) do not run.
// A signal that was ignored when the program started (nohup, background jobs) stays ignored.
#pragma once
#include <sys/types.h>

#include <functional>

namespace switchyard::cli {

/// Call once, before any other thread is started. SIGXFSZ and SIGPIPE are ignored from then on.
void watch_interrupts();

/// Standard streams that are closed become ones that can only fail or, of errors, say nothing: else
/// the first files to be opened would get their numbers, and their text. Call before anything else.
void reserve_standard_streams();

/// Whether nobody reads a pipe any more (`| head`).
bool reader_has_left(int descriptor);

/// Runs `work` in a child process, which ends with the value it returns; `work` must not throw.
/// Throws CapabilityError when there can be no other process. The children end before their parent
/// does.
pid_t start_child(const std::function<int()>& work);

struct EndedChild {
  pid_t pid = -1;
  int exit_code = 0;  ///< Of a child that ended by itself.
  int signal = 0;     ///< > 0: the signal that killed it.
};
/// Waits for the next child to end. Throws std::runtime_error when there is none to wait for.
EndedChild wait_for_child();

}  // namespace switchyard::cli
