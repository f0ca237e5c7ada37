// SPDX-License-Identifier: Apache-2.0
#include "engine/base/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"

namespace switchyard {
namespace fs = std::filesystem;
namespace {

/// Temporaries of this process that are not committed. The process id tells those of a parent,
/// which a forked child inherits, from its own.
struct Pending {
  std::mutex mutex;
  std::vector<std::pair<pid_t, fs::path>> files;
};
/// Never destroyed: exit_without_pending_outputs() may run in a thread that outlives statics.
Pending& pending() {
  static auto* const all = new Pending;
  return *all;
}
void forget(const fs::path& temporary) {  // pending().mutex is held
  std::erase(pending().files, std::pair(::getpid(), temporary));
}

/// The file that a name stands for: symbolic links followed, also where their end does not exist.
fs::path behind_links(const fs::path& name) {
  constexpr int kMostLinks = 40;  // As path_resolution(7).
  fs::path p = name;
  std::error_code ec;
  for (int i = 0; i < kMostLinks && fs::is_symlink(p, ec); ++i) {
    const fs::path to = fs::read_symlink(p, ec);
    if (ec) break;
    p = to.is_absolute() ? to : p.parent_path() / to;
  }
  if (fs::is_symlink(p, ec)) {
    throw InputError(name.string(), "a symbolic link that leads to no end");
  }
  return p;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& target) : target_(behind_links(target)) {
  if (target_.empty()) {
    throw InputError("output", "the file name is empty");
  }
  const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) {
    throw InputError(target_.string(), "the output folder does not exist",
                     fmt::format("make it first: mkdir -p {}", folder.string()));
  }
  if (fs::is_directory(target_, ec)) {
    throw InputError(target_.string(), "is a folder, not a file");
  }
  if (fs::exists(target_, ec) && !fs::is_regular_file(target_, ec)) {
    // The rename in commit() would replace a device or a pipe.
    throw InputError(target_.string(), "exists and is not a regular file");
  }
  temporary_ = target_;
  temporary_ += fmt::format(".{}.tmp", ::getpid());
  const std::lock_guard lock(pending().mutex);
  const int fd = ::open(temporary_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw InputError(target_.string(), fmt::format("cannot write here: {}", std::strerror(errno)));
  }
  ::close(fd);
  pending().files.emplace_back(::getpid(), temporary_);
}

AtomicFile::~AtomicFile() {
  if (!done_) {
    const std::lock_guard lock(pending().mutex);
    std::error_code ec;
    fs::remove(temporary_, ec);
    forget(temporary_);
  }
}

void AtomicFile::commit() {
  const int fd = ::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int sync_errno = errno;
  if (fd >= 0) {
    ::close(fd);
  }
  if (!synced) {
    throw InputError(target_.string(), fmt::format("cannot write: {}", std::strerror(sync_errno)));
  }
  const std::lock_guard lock(pending().mutex);
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    throw InputError(target_.string(), fmt::format("cannot rename: {}", std::strerror(errno)));
  }
  forget(temporary_);
  done_ = true;
}

void exit_without_pending_outputs(int code) {
  Pending& all = pending();
  all.mutex.lock();  // Never released: no output is begun or committed from here on.
  for (const auto& [owner, temporary] : all.files) {
    if (owner == ::getpid()) {
      (void)::unlink(temporary.c_str());
    }
  }
  ::_exit(code);
}

void write_file(const fs::path& target, std::string_view content) {
  AtomicFile file(target);
  std::FILE* f = std::fopen(file.temporary().c_str(), "wb");
  bool ok = f != nullptr && std::fwrite(content.data(), 1, content.size(), f) == content.size();
  ok = ok && std::fflush(f) == 0;
  int reason = errno;
  if (f != nullptr && std::fclose(f) != 0 && ok) {
    reason = errno;
    ok = false;
  }
  if (!ok) {
    throw InputError(target.string(), fmt::format("cannot write: {}", std::strerror(reason)));
  }
  file.commit();
}

std::string read_file(const fs::path& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    throw InputError(path.string(), "is a folder, not a file");
  }
  std::FILE* f = std::fopen(path.c_str(), "rb");
  if (f == nullptr) {
    throw InputError(path.string(), fmt::format("cannot open: {}", std::strerror(errno)));
  }
  std::string content;
  char buffer[1 << 16];
  std::size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof buffer, f)) > 0) {
    content.append(buffer, n);
  }
  const bool bad = std::ferror(f) != 0;
  std::fclose(f);
  if (bad) {
    throw InputError(path.string(), "cannot read the file to its end");
  }
  return content;
}

}  // namespace switchyard
