// SPDX-License-Identifier: Apache-2.0
// Writes one HDF5 file of a known schema (container.hpp, schema.hpp).
//
// Same content in the same order of calls → the same bytes: no times (obj_track_times 0, default
// format version), no process ids, no uninitialised padding. Datasets are chunked, shuffled and
// deflated; those of at most 2 KiB that are written in one piece are contiguous, because the index
// of a chunked dataset alone takes more than that. Strings have a fixed length. Every return code
// counts, the closing ones included (a full disk shows only there): InputError with the system's
// reason, and no file is left behind.
//
//   h5::FileWriter file("t.h5", trace_schema());
//   file.attribute("seed", std::uint64_t{1});
//   file.rows<std::uint16_t>("candidates", {layers, candidates});   // extensible along dim 0
//   file.append<std::uint16_t>("candidates", block);                // any number of whole rows
//   file.write<float>("gate_bias", bias, {layers, experts});
//   file.finish();
//
// One thread at a time: a writer is not locked. Two writers, or a writer and readers, may work in
// different threads at once: Debian's libhdf5 is built thread-safe (H5is_library_threadsafe) and
// lets one call in at a time; with a library that is not, nothing here may run beside another.
// Only one row block per dataset is held in memory (about 128 KiB), with WriteOptions::chunk_cache
// also libhdf5's cache, 1 MiB per dataset that grows.
#pragma once
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/h5/schema.hpp"

namespace switchyard::h5 {

struct WriteOptions {
  /// libhdf5 keeps up to 1 MiB of written rows per dataset before they go to the file. false: rows
  /// go there at once, in the order of append(); for writers of hundreds of datasets, and for those
  /// that read back. The order of pieces in the file, and so its bytes, depend on it.
  bool chunk_cache = true;
};

class FileWriter {
 public:
  /// Opens "<target>.<pid>.tmp" beside the target. `schema` is borrowed until destruction.
  /// InputError when the folder is missing or not writable.
  FileWriter(const std::filesystem::path& target, const SchemaTable& schema,
             const WriteOptions& options = {});
  ~FileWriter();  ///< Removes the temporary unless finish() succeeded.
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  /// Attributes of the file. The name (without '@') and the type must be those of the schema
  /// (asserted). Texts: UTF-8 without NUL, at most 60 000 bytes (InputError); use text() for
  /// longer.
  void attribute(std::string_view name, std::string_view value);
  void attribute(std::string_view name, std::uint64_t value);
  void attribute(std::string_view name, std::int64_t value);
  void attribute(std::string_view name, double value);

  /// A whole dataset, row-major. The product of `shape` must be values.size() (asserted).
  template <class T>
  void write(std::string_view name, std::span<const T> values,
             const std::vector<std::uint64_t>& shape) {
    write_raw(name, ElementOf<T>::value, values.data(), values.size(), shape);
  }
  /// One-dimensional.
  template <class T>
  void write(std::string_view name, const std::vector<T>& values) {
    write_raw(name, ElementOf<T>::value, values.data(), values.size(), {values.size()});
  }
  template <class T>
  void write(std::string_view name, const std::vector<T>& values,
             const std::vector<std::uint64_t>& shape) {
    write_raw(name, ElementOf<T>::value, values.data(), values.size(), shape);
  }
  /// A one-dimensional dataset of fixed-length strings (the longest sets the length).
  void strings(std::string_view name, const std::vector<std::string>& values);
  /// A scalar dataset with one text of any length (a whole scenario, a policy file).
  void text(std::string_view name, std::string_view value);

  /// Declares a dataset of shape [rows so far, trailing…] that append() extends.
  template <class T>
  void rows(std::string_view name, const std::vector<std::uint64_t>& trailing) {
    declare_rows(name, ElementOf<T>::value, trailing);
  }
  /// Appends whole rows: values.size() is a multiple of the product of the trailing dimensions
  /// (asserted). A trailing product of 0 is not allowed.
  template <class T>
  void append(std::string_view name, std::span<const T> values) {
    append_raw(name, ElementOf<T>::value, values.data(), values.size());
  }
  template <class T>
  void append(std::string_view name, const std::vector<T>& values) {
    append_raw(name, ElementOf<T>::value, values.data(), values.size());
  }

  /// Rows first … first+count−1 of a dataset that rows() declared, as appended so far; out of range
  /// is asserted. Before finish() only. Changes no byte of the file when chunk_cache is off.
  template <class T>
  [[nodiscard]] std::vector<T> read_back(std::string_view name, std::uint64_t first,
                                         std::uint64_t count) {
    std::vector<T> values;
    values.resize(back_count(name, ElementOf<T>::value, first, count));
    read_back_raw(name, first, count, values.data());
    return values;
  }
  /// Bytes of rows held in memory, of all datasets (libhdf5's caches not counted).
  [[nodiscard]] std::uint64_t buffered_bytes() const;

  /// Flushes, closes, seals the user block and renames to the target. Afterwards nothing may be
  /// written. Every non-optional schema entry must have been written (asserted; entries with '*'
  /// count as optional).
  void finish();

 private:
  void write_raw(std::string_view name, ElementType type, const void* values, std::size_t count,
                 const std::vector<std::uint64_t>& shape);
  void declare_rows(std::string_view name, ElementType type,
                    const std::vector<std::uint64_t>& trailing);
  void append_raw(std::string_view name, ElementType type, const void* values, std::size_t count);
  std::size_t back_count(std::string_view name, ElementType type, std::uint64_t first,
                         std::uint64_t count) const;
  void read_back_raw(std::string_view name, std::uint64_t first, std::uint64_t count, void* values);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace switchyard::h5
