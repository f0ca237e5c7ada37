// SPDX-License-Identifier: Apache-2.0
// Runs the built command line as a child process, as a person or a script would.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace switchyard::test {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + signal when it died of one.
  bool died_of_signal = false;
  std::string out;
  std::string err;
};

struct ProcessOptions {
  std::filesystem::path folder;                    ///< Working folder; empty: the current one.
  std::map<std::string, std::string> environment;  ///< Added to (and overriding) the inherited one.
};

/// Runs `command` (program first, found through PATH when it has no slash), waits, returns what it
/// printed. Standard input is /dev/null.
ProcessResult run_process(const std::vector<std::string>& command,
                          const ProcessOptions& options = {});

/// Path of the built `switchyard`.
std::string switchyard_binary();

/// run_process for the built `switchyard`, with `arguments`.
ProcessResult run_switchyard(std::vector<std::string> arguments,
                             const ProcessOptions& options = {});

/// run_switchyard that sends `signal` to the process as soon as `when` holds (asked every few
/// milliseconds). Compare ProcessResult::died_of_signal.
ProcessResult interrupt_switchyard(std::vector<std::string> arguments, int signal,
                                   const std::function<bool()>& when,
                                   const ProcessOptions& options);

/// A fresh, empty folder below the test's working folder, removed and made again.
std::filesystem::path fresh_folder(const std::string& name);

/// A file of the source tree.
std::filesystem::path source_path(const std::string& relative);

/// Names (sorted) of what a folder holds, recursively.
std::vector<std::string> listing(const std::filesystem::path& folder);

}  // namespace switchyard::test
