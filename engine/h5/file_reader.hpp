// SPDX-License-Identifier: Apache-2.0
// Reads one HDF5 file of a known schema (container.hpp, schema.hpp).
//
// The constructor checks the user block and the content hash before libhdf5 opens the file, then
// every schema entry: present unless optional, type, rank, and dimensions (the same number wherever
// the same upper-case name stands). A size that the file cannot hold (deflate packs at most 1032:1)
// is refused before anything is allocated. Links out of the file, external and virtual storage,
// variable-length strings and filter plug-ins are refused. Ranges of values are the caller's.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/h5/container.hpp"
#include "engine/h5/schema.hpp"

namespace switchyard::h5 {

struct ReadOptions {
  bool verify = true;  ///< false (--no-verify): skip the content hash; only above 4 GiB.
  HashProgress progress = {};  ///< Of the hash; empty: not told.
};

class FileReader {
 public:
  /// `schema` is borrowed until destruction. InputError names the file and what is wrong with it.
  FileReader(const std::filesystem::path& path, const SchemaTable& schema,
             const ReadOptions& options = {});
  ~FileReader();
  FileReader(FileReader&&) noexcept;
  FileReader& operator=(FileReader&&) noexcept;

  [[nodiscard]] const ContainerHeader& header() const;
  [[nodiscard]] const std::filesystem::path& path() const;
  /// Size of the whole file in bytes, user block included.
  [[nodiscard]] std::uint64_t file_bytes() const;

  /// Names of all datasets, sorted, whether the schema knows them or not.
  [[nodiscard]] const std::vector<std::string>& datasets() const;
  /// Names of the file's attributes, sorted, without '@'.
  [[nodiscard]] const std::vector<std::string>& attributes() const;
  /// Does the file have this dataset ("token/phase") or attribute ("@seed")?
  [[nodiscard]] bool has(std::string_view name) const;
  /// Dimensions of a dataset; a scalar has none. InputError when it is missing.
  [[nodiscard]] std::vector<std::uint64_t> shape(std::string_view name) const;
  /// The "unit" and "dimensions" attributes of a dataset; empty when it has none.
  [[nodiscard]] std::pair<std::string, std::string> described(std::string_view name) const;
  /// The number behind an upper-case dimension name of the schema; 0 when no dataset has it.
  [[nodiscard]] std::uint64_t extent(std::string_view symbol) const;

  /// Attributes of the file; InputError when missing or of another type.
  [[nodiscard]] std::string text_attribute(std::string_view name) const;
  [[nodiscard]] std::uint64_t u64_attribute(std::string_view name) const;
  [[nodiscard]] std::int64_t i64_attribute(std::string_view name) const;
  [[nodiscard]] double f64_attribute(std::string_view name) const;

  /// A whole dataset, row-major. The type must be the schema's and the file's.
  template <class T>
  [[nodiscard]] std::vector<T> read(std::string_view name) const {
    std::vector<T> values;
    values.resize(checked_count(name, ElementOf<T>::value, 0, kAllRows));
    read_raw(name, ElementOf<T>::value, 0, kAllRows, values.data());
    return values;
  }
  /// Rows first … first+count−1 along the outermost dimension; InputError when out of range.
  template <class T>
  [[nodiscard]] std::vector<T> read_rows(std::string_view name, std::uint64_t first,
                                         std::uint64_t count) const {
    std::vector<T> values;
    values.resize(checked_count(name, ElementOf<T>::value, first, count));
    read_raw(name, ElementOf<T>::value, first, count, values.data());
    return values;
  }
  [[nodiscard]] std::vector<std::string> strings(std::string_view name) const;
  [[nodiscard]] std::string text(std::string_view name) const;

  /// Throws InputError "<file>: <dataset>[row]: <message>"; for callers that check ranges.
  [[noreturn]] void fail(std::string_view dataset, std::uint64_t row,
                         const std::string& message) const;
  [[noreturn]] void fail(std::string_view dataset, const std::string& message) const;

 private:
  static constexpr std::uint64_t kAllRows = ~0ULL;
  [[nodiscard]] std::size_t checked_count(std::string_view name, ElementType type,
                                          std::uint64_t first, std::uint64_t count) const;
  void read_raw(std::string_view name, ElementType type, std::uint64_t first, std::uint64_t count,
                void* values) const;

  struct State;
  std::unique_ptr<State> state_;
};

/// How a file differs from the schema table beyond what the reader insists on: datasets and
/// attributes that the table does not know, "unit" or "dimensions" attributes that disagree. Empty
/// when table and file agree.
std::vector<std::string> schema_differences(const SchemaTable& schema, const FileReader& file);

}  // namespace switchyard::h5
