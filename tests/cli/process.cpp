// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace switchyard::test {
namespace fs = std::filesystem;

namespace {

/// `tick` gets the child's process id every few milliseconds; may be empty.
ProcessResult run(const std::vector<std::string>& command, const ProcessOptions& options,
                  const std::function<void(pid_t)>& tick) {
  std::array<int, 2> out{}, err{};
  if (pipe(out.data()) != 0 || pipe(err.data()) != 0) {
    throw std::runtime_error("pipe");
  }
  const pid_t child = fork();
  if (child < 0) {
    throw std::runtime_error("fork");
  }
  if (child == 0) {
    for (const int ignored_by_some_shells : {SIGINT, SIGTERM, SIGHUP}) {
      signal(ignored_by_some_shells, SIG_DFL);
    }
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    close(out[0]);
    close(err[0]);
    if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) {
      _exit(127);
    }
    for (const auto& [name, value] : options.environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    std::vector<char*> argv;
    for (const std::string& a : command) {
      argv.push_back(const_cast<char*>(a.c_str()));
    }
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  ProcessResult result;
  std::array<pollfd, 2> fds{pollfd{out[0], POLLIN, 0}, pollfd{err[0], POLLIN, 0}};
  std::array<std::string*, 2> sinks{&result.out, &result.err};
  int open_ends = 2;
  while (open_ends > 0) {
    poll(fds.data(), fds.size(), tick ? 5 : -1);
    if (tick) {
      tick(child);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      if (fds[i].fd >= 0 && fds[i].revents != 0) {
        std::array<char, 65536> buffer{};
        const ssize_t n = read(fds[i].fd, buffer.data(), buffer.size());
        if (n > 0) {
          sinks[i]->append(buffer.data(), static_cast<std::size_t>(n));
        } else {
          close(fds[i].fd);
          fds[i].fd = -1;
          --open_ends;
        }
      }
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  result.died_of_signal = WIFSIGNALED(status);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& options) {
  return run(command, options, {});
}

ProcessResult interrupt_switchyard(std::vector<std::string> arguments, int signal,
                                   const std::function<bool()>& when,
                                   const ProcessOptions& options) {
  arguments.insert(arguments.begin(), SWITCHYARD_BINARY);
  bool sent = false;
  return run(arguments, options, [&](pid_t child) {
    if (!sent && when()) {
      sent = true;
      kill(child, signal);
    }
  });
}

std::string switchyard_binary() { return SWITCHYARD_BINARY; }

ProcessResult run_switchyard(std::vector<std::string> arguments, const ProcessOptions& options) {
  arguments.insert(arguments.begin(), SWITCHYARD_BINARY);
  return run_process(arguments, options);
}

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::current_path() / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

fs::path source_path(const std::string& relative) {
  return fs::path(SWITCHYARD_SOURCE_DIR) / relative;
}

std::vector<std::string> listing(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace switchyard::test
