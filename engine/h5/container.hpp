// SPDX-License-Identifier: Apache-2.0
// The container of every file Switchyard writes in HDF5: a 512-byte user block in front of an
// ordinary HDF5 file (h5py, MATLAB and Julia read it; they skip the user block themselves).
//
//   byte  0 magic, 8 bytes ("SWYTRACE", "SWYRUN\0\0" or "SWYSIGNL")
//   byte  8 schema version, u32; byte 12 container version, u32 (1)
//   byte 16 length of everything after the user block, u64
//   byte 24 XXH3-128 of everything after the user block: low word u64, high word u64
//   byte 40 zero bytes
//   byte 504 XXH3-64 of bytes 0…503, u64
// All little-endian. The block is written last, and a reader checks it before libhdf5 sees the
// file, because libhdf5 1.10 crashes and hangs on damaged metadata.
//
// Not modelled: signatures. The hash notices damage, not malice; sizes and ranges of an honest
// looking file are checked by the readers on top.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

#include "engine/base/hash.hpp"
#include "engine/h5/schema.hpp"

namespace switchyard::h5 {

constexpr std::uint64_t kUserBlockBytes = 512;
constexpr std::uint32_t kContainerVersion = 1;
/// Files above this size may be read without the hash check.
constexpr std::uint64_t kNoVerifyAbove = 4ULL << 30;

/// What a valid user block says.
struct ContainerHeader {
  FileKind kind = FileKind::kTrace;
  std::uint32_t schema_version = 0;
  std::uint64_t length = 0;  ///< Bytes after the user block.
  Hash128 hash;              ///< Of those bytes.
};

/// Told how many bytes of how many were hashed; what it throws ends the reading.
using HashProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Reads and checks the user block and the file's size, without libhdf5 and without the hash of the
/// content. InputError names the file and says what it is: missing, empty, a folder, foreign,
/// unfinished, cut short, damaged header.
ContainerHeader read_header(const std::filesystem::path& path);

/// read_header(), then: kind as expected (else "this is a run file, expected a routing trace"),
/// schema 1…`newest` (else both versions are named), and, with `verify`, the content hash
/// (streamed). `verify = false` is an InputError for files of 4 GiB or less.
ContainerHeader check_container(const std::filesystem::path& path, FileKind kind,
                                std::uint32_t newest, bool verify,
                                const HashProgress& progress = {});

/// Hashes the content of a closed HDF5 file that has a 512-byte user block and writes the block.
/// InputError when the file cannot be read or written.
void seal_file(const std::filesystem::path& path, FileKind kind, std::uint32_t schema_version);

}  // namespace switchyard::h5
