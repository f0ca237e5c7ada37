// SPDX-License-Identifier: Apache-2.0
#include "engine/h5/container.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/h5/handle.hpp"

namespace switchyard::h5 {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kUserBlock = static_cast<std::size_t>(kUserBlockBytes);
constexpr std::string_view kTraceMagic{"SWYTRACE", 8};
constexpr std::string_view kRunMagic{"SWYRUN\0\0", 8};
constexpr std::string_view kSignalsMagic{"SWYSIGNL", 8};
constexpr std::string_view kHdf5Magic{"\x89HDF\r\n\x1a\n", 8};
constexpr std::size_t kChecksumAt = kUserBlock - 8;
constexpr std::size_t kReadBytes = 1 << 20;

using Block = std::array<std::byte, kUserBlock>;

struct FileCloser {
  void operator()(std::FILE* f) const { (void)std::fclose(f); }
};
using Stream = std::unique_ptr<std::FILE, FileCloser>;

template <class T>
T load(const Block& block, std::size_t at) {
  T value;
  std::memcpy(&value, block.data() + at, sizeof value);
  return value;
}
template <class T>
void store(Block& block, std::size_t at, T value) {
  std::memcpy(block.data() + at, &value, sizeof value);
}

Stream open_regular(const fs::path& path, const char* mode) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  if (status.type() == fs::file_type::not_found) {
    throw InputError(path.string(), "cannot open: No such file or directory");
  }
  if (status.type() == fs::file_type::directory) {
    throw InputError(path.string(), "is a folder, not a file");
  }
  if (status.type() != fs::file_type::regular) {
    throw InputError(path.string(), "is not a regular file");
  }
  Stream stream(std::fopen(path.c_str(), mode));
  if (!stream) {
    throw InputError(path.string(), fmt::format("cannot open: {}", std::strerror(errno)));
  }
  return stream;
}

Hash128 hash_content(std::FILE* f, const fs::path& path, std::uint64_t& length,
                     const HashProgress& progress = {}, std::uint64_t total = 0) {
  Hasher128 hasher;
  std::vector<std::byte> buffer(kReadBytes);
  length = 0;
  if (std::fseek(f, static_cast<long>(kUserBlock), SEEK_SET) != 0) {
    throw InputError(path.string(), fmt::format("cannot read: {}", std::strerror(errno)));
  }
  std::size_t n = 0;
  while ((n = std::fread(buffer.data(), 1, buffer.size(), f)) > 0) {
    hasher.update(std::span<const std::byte>(buffer.data(), n));
    length += n;
    if (progress) progress(length, total);
  }
  if (std::ferror(f) != 0) {
    throw InputError(path.string(), "cannot read the file to its end");
  }
  return hasher.digest();
}

}  // namespace

ContainerHeader read_header(const fs::path& path) {
  const Stream stream = open_regular(path, "rb");
  std::error_code ec;
  const std::uint64_t size = fs::file_size(path, ec);
  if (ec) {
    throw InputError(path.string(), fmt::format("cannot read its size: {}", ec.message()));
  }
  if (size == 0) {
    throw InputError(path.string(), "the file is empty");
  }
  Block block{};
  const std::size_t got = std::fread(block.data(), 1, block.size(), stream.get());
  const std::string_view magic(reinterpret_cast<const char*>(block.data()), 8);
  const bool ours = magic == kTraceMagic || magic == kRunMagic || magic == kSignalsMagic;
  if (got < kUserBlock) {
    throw InputError(
        path.string(),
        ours ? fmt::format("cut short: {} bytes, the header alone has {}", size, kUserBlock)
             : "not a Switchyard file");
  }
  if (!ours) {
    if (magic == kHdf5Magic) {
      throw InputError(path.string(), "an HDF5 file, but not one written by Switchyard",
                       "`switchyard import` reads other tools' files");
    }
    if (block == Block{}) {
      throw InputError(path.string(), "unfinished: its header is empty",
                       "the program that wrote it was stopped; write it again");
    }
    throw InputError(path.string(), "not a Switchyard file");
  }
  if (load<std::uint64_t>(block, kChecksumAt) !=
      hash64(std::span<const std::byte>(block.data(), kChecksumAt))) {
    throw InputError(path.string(), "damaged: the checksum of its header does not match");
  }
  if (const auto container = load<std::uint32_t>(block, 12); container != kContainerVersion) {
    throw InputError(path.string(), fmt::format("container version {}, this program reads {}",
                                                container, kContainerVersion));
  }
  ContainerHeader header;
  header.kind = magic == kTraceMagic     ? FileKind::kTrace
                : magic == kSignalsMagic ? FileKind::kSignals
                                         : FileKind::kRun;
  header.schema_version = load<std::uint32_t>(block, 8);
  header.length = load<std::uint64_t>(block, 16);
  header.hash = {load<std::uint64_t>(block, 24), load<std::uint64_t>(block, 32)};
  if (header.length != size - kUserBlockBytes) {
    throw InputError(path.string(),
                     fmt::format("{}: it has {} bytes, its header says {}",
                                 size - kUserBlockBytes < header.length ? "cut short" : "too long",
                                 size, header.length + kUserBlockBytes));
  }
  return header;
}

ContainerHeader check_container(const fs::path& path, FileKind kind, std::uint32_t newest,
                                bool verify, const HashProgress& progress) {
  const ContainerHeader header = read_header(path);
  if (header.kind != kind) {
    throw InputError(path.string(), fmt::format("this is a {}, expected a {}",
                                                kind_name(header.kind), kind_name(kind)));
  }
  if (header.schema_version == 0 || header.schema_version > newest) {
    throw InputError(
        path.string(),
        fmt::format("{} of schema version {}; this program reads up to version {}",
                    kind_name(header.kind), header.schema_version, newest),
        header.schema_version > newest ? "a newer Switchyard wrote it; read it with that one" : "");
  }
  if (!verify) {
    if (header.length + kUserBlockBytes <= kNoVerifyAbove) {
      throw InputError(path.string(), "--no-verify is only for files above 4 GiB",
                       "leave it out; checking this file is quick");
    }
    return header;
  }
  const Stream stream = open_regular(path, "rb");
  std::uint64_t length = 0;
  const Hash128 hash = hash_content(stream.get(), path, length, progress, header.length);
  if (length != header.length || hash != header.hash) {
    throw InputError(path.string(), "damaged: the checksum of its content does not match");
  }
  return header;
}

void seal_file(const fs::path& path, FileKind kind, std::uint32_t schema_version) {
  Stream stream = open_regular(path, "r+b");
  std::uint64_t length = 0;
  const Hash128 hash = hash_content(stream.get(), path, length);
  Block block{};
  const std::string_view magic = kind == FileKind::kTrace     ? kTraceMagic
                                 : kind == FileKind::kSignals ? kSignalsMagic
                                                              : kRunMagic;
  std::memcpy(block.data(), magic.data(), magic.size());
  store(block, 8, schema_version);
  store(block, 12, kContainerVersion);
  store(block, 16, length);
  store(block, 24, hash.low);
  store(block, 32, hash.high);
  store(block, kChecksumAt, hash64(std::span<const std::byte>(block.data(), kChecksumAt)));
  errno = 0;
  bool ok = std::fseek(stream.get(), 0, SEEK_SET) == 0 &&
            std::fwrite(block.data(), 1, block.size(), stream.get()) == block.size() &&
            std::fflush(stream.get()) == 0;
  ok = std::fclose(stream.release()) == 0 && ok;
  if (!ok) {
    throw InputError(path.string(), fmt::format("cannot write: {}", std::strerror(errno)));
  }
}

namespace internal {
namespace {
struct Reason {
  std::string system, deepest;
};

herr_t visit_error(unsigned, const H5E_error2_t* error, void* data) {
  auto& reason = *static_cast<Reason*>(data);
  if (error->desc == nullptr) {
    return 0;
  }
  const std::string_view text(error->desc);
  reason.deepest = text;
  // libhdf5 writes: …, errno = 28, error message = 'No space left on device', buf = …
  constexpr std::string_view key = "error message = '";
  if (const std::size_t at = text.find(key); at != std::string_view::npos) {
    const std::string_view rest = text.substr(at + key.size());
    reason.system = rest.substr(0, rest.find('\''));
  }
  return 0;
}
}  // namespace

void prepare_library() {
  static const bool once = [] {
    (void)H5dont_atexit();
    (void)H5open();
    (void)H5PLset_loading_state(0);
    return true;
  }();
  (void)once;
  thread_local const bool quiet = [] {
    (void)H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    return true;
  }();
  (void)quiet;
}

std::string take_error() {
  Reason reason;
  (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, visit_error, &reason);
  (void)H5Eclear2(H5E_DEFAULT);
  if (!reason.system.empty()) {
    return reason.system;
  }
  return reason.deepest.empty() ? "unknown HDF5 error" : reason.deepest;
}

hid_t element_type(ElementType type) {
  switch (type) {
    case ElementType::kU8:
      return H5T_STD_U8LE;
    case ElementType::kU16:
      return H5T_STD_U16LE;
    case ElementType::kU32:
      return H5T_STD_U32LE;
    case ElementType::kU64:
      return H5T_STD_U64LE;
    case ElementType::kI32:
      return H5T_STD_I32LE;
    case ElementType::kI64:
      return H5T_STD_I64LE;
    case ElementType::kF32:
      return H5T_IEEE_F32LE;
    case ElementType::kF64:
      return H5T_IEEE_F64LE;
    case ElementType::kText:
      break;
  }
  SWITCHYARD_ASSERT(false, "text has no fixed type");
  return -1;
}

}  // namespace internal
}  // namespace switchyard::h5
