// SPDX-License-Identifier: Apache-2.0
// Outputs appear whole or not at all: written under a temporary name beside the target, then
// renamed.
#pragma once
#include <filesystem>
#include <string_view>

namespace switchyard {

/// A pending output. The constructor checks that the target's folder exists and is writable
/// (InputError otherwise) and follows symbolic links, which stay; commit() flushes, closes, renames;
/// the destructor removes the temporary, "<target>.<pid>.tmp", when commit() was not reached.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Where to write until commit(). Writers such as libhdf5 open this path themselves.
  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  [[nodiscard]] const std::filesystem::path& target() const { return target_; }
  /// fsyncs the temporary and renames it over the target. Throws InputError with the system's
  /// reason (full disk included); then nothing is left behind.
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  bool done_ = false;
};

/// Ends the process at once with `code`, after removing the temporaries of all outputs of this
/// process that are not committed. For an interrupt; any thread may call it, a signal handler must
/// not (it takes a lock).
[[noreturn]] void exit_without_pending_outputs(int code);

/// Writes `content` to `target` atomically. InputError on any failure.
void write_file(const std::filesystem::path& target, std::string_view content);
/// Reads a whole file. InputError names it when it is missing, a folder, or unreadable.
std::string read_file(const std::filesystem::path& path);

}  // namespace switchyard
