// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/interrupt.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"

namespace switchyard::cli {
namespace {

struct Children {
  std::mutex mutex;
  std::vector<pid_t> running;
};
/// Never destroyed: the watching thread may outlive static objects.
Children& children() {
  static auto* const all = new Children;
  return *all;
}

[[noreturn]] void stop(int signal) {
  Children& all = children();
  const std::lock_guard lock(all.mutex);  // Never released: no child is started from here on.
  for (const pid_t child : all.running) {
    (void)::kill(child, SIGTERM);
  }
  for (const pid_t child : all.running) {
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  exit_without_pending_outputs(128 + signal);
}

}  // namespace

void watch_interrupts() {
  // Beyond `ulimit -f` a write fails with EFBIG then, as on a full disk.
  (void)std::signal(SIGXFSZ, SIG_IGN);
  // Into a pipe without a reader a write fails with EPIPE, so that unfinished outputs are removed.
  (void)std::signal(SIGPIPE, SIG_IGN);
  sigset_t watched;
  sigemptyset(&watched);
  bool any = false;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) {
      sigaddset(&watched, signal);
      any = true;
    }
  }
  if (!any) {
    return;
  }
  pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  std::thread([watched] {
    int signal = 0;
    while (sigwait(&watched, &signal) != 0) {
    }
    stop(signal);
  }).detach();
}

void reserve_standard_streams() {
  // Each open() takes the lowest number that is free. Reading from 0 and writing to 1 fail then.
  constexpr std::array<int, 3> kModes{O_WRONLY, O_RDONLY, O_WRONLY};
  for (int stream = 0; stream < 3; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    (void)::open("/dev/null", kModes[static_cast<std::size_t>(stream)]);
  }
}

bool reader_has_left(int descriptor) {
  struct pollfd end {
    descriptor, 0, 0
  };
  return ::poll(&end, 1, 0) == 1 && (end.revents & POLLERR) != 0;
}

pid_t start_child(const std::function<int()>& work) {
  Children& all = children();
  std::unique_lock lock(all.mutex);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) {
    throw CapabilityError(fmt::format("cannot start another process: {}", std::strerror(errno)));
  }
  if (child == 0) {
    lock.unlock();
    all.running.clear();
    watch_interrupts();  // Threads do not survive a fork; the signals are still blocked.
    const int code = work();
    std::fflush(nullptr);
    _exit(code);
  }
  all.running.push_back(child);
  return child;
}

EndedChild wait_for_child() {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) != 0) {
    if (errno != EINTR) {
      throw std::runtime_error(
          fmt::format("cannot wait for the processes of the points: {}", std::strerror(errno)));
    }
  }
  // Reaped under the lock, so that an interrupt never signals a process id that is used again.
  Children& all = children();
  const std::lock_guard lock(all.mutex);
  int status = 0;
  while (::waitpid(info.si_pid, &status, 0) < 0 && errno == EINTR) {
  }
  all.running.erase(std::remove(all.running.begin(), all.running.end(), info.si_pid),
                    all.running.end());
  EndedChild ended;
  ended.pid = info.si_pid;
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  ended.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return ended;
}

}  // namespace switchyard::cli
