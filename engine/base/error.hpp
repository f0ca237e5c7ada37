// SPDX-License-Identifier: Apache-2.0
// The three classes of errors. There is no fourth.
//  (a) InputError: the user's input is wrong. Says where (file:line:column when known), what, and a
//      hint. Caught once, in main(); exit code 2.
//  (b) Simulated failures (link down, out of memory in the model) are data in the run, never
//  exceptions. (c) Programmer errors: SWITCHYARD_ASSERT. No input file can reach one.
// CapabilityError is the fourth exit: something is missing on this machine (exit code 3).
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace switchyard {

/// A mistake in the user's input. what() is one line: "where: message; hint".
class InputError : public std::runtime_error {
 public:
  /// `where` names the place ("file.toml:17:13", "trace.h5", "--set"); `hint` may be empty.
  InputError(std::string where, std::string message, std::string hint = {});
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] const std::string& hint() const { return hint_; }

 private:
  std::string where_, message_, hint_;
};

/// Something this machine or build lacks (no GPU, built without MPI). One line; exit code 3.
class CapabilityError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void assert_failed(const char* expression, const char* file, int line,
                                const std::string& values);

}  // namespace switchyard

/// Checks an invariant that no input can break; stays on in every build type. `values` is a string
/// (usually fmt::format) that shows the numbers involved.
#define SWITCHYARD_ASSERT(condition, values)                                 \
  do {                                                                       \
    if (!(condition)) {                                                      \
      ::switchyard::assert_failed(#condition, __FILE__, __LINE__, (values)); \
    }                                                                        \
  } while (false)
