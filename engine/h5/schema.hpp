// SPDX-License-Identifier: Apache-2.0
// The schema table of an HDF5 file kind: one row per attribute and dataset. Writers refuse a name
// that is not in it, readers check every row against the file, and FORMAT.md is printed from it, so
// code, files and documentation cannot drift apart.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::h5 {

/// Which of the project's files it is; decides the magic in the user block.
enum class FileKind : std::uint8_t { kTrace, kRun, kSignals };
/// "routing trace", "run file", "signals file": as used in messages.
std::string_view kind_name(FileKind kind);

/// Element types of datasets and attributes. All little-endian; kText is a fixed-length UTF-8
/// string, padded with zero bytes.
enum class ElementType : std::uint8_t { kU8, kU16, kU32, kU64, kI32, kI64, kF32, kF64, kText };
/// "u8" … "f64", "text".
std::string_view type_name(ElementType type);
/// Bytes per element; 0 for kText, whose length is per dataset.
std::size_t type_size(ElementType type);

template <class T>
struct ElementOf;
#define SWITCHYARD_H5_ELEMENT(cpp, kind)                    \
  template <>                                               \
  struct ElementOf<cpp> {                                   \
    static constexpr ElementType value = ElementType::kind; \
  }
SWITCHYARD_H5_ELEMENT(std::uint8_t, kU8);
SWITCHYARD_H5_ELEMENT(std::uint16_t, kU16);
SWITCHYARD_H5_ELEMENT(std::uint32_t, kU32);
SWITCHYARD_H5_ELEMENT(std::uint64_t, kU64);
SWITCHYARD_H5_ELEMENT(std::int32_t, kI32);
SWITCHYARD_H5_ELEMENT(std::int64_t, kI64);
SWITCHYARD_H5_ELEMENT(float, kF32);
SWITCHYARD_H5_ELEMENT(double, kF64);
#undef SWITCHYARD_H5_ELEMENT

struct SchemaEntry {
  /// "@seed" is an attribute of the file; "token/phase" a dataset in group "token". A '*' matches
  /// any characters of one path component ("lod/*/max").
  std::string name;
  /// Dimensions, outermost first, row-major: "T,L,M". A name that starts with an upper-case letter
  /// is one number everywhere in the file (checked on read), a lower-case one is free, digits are
  /// that number. Empty: a scalar (attributes and texts).
  std::string shape;
  ElementType type = ElementType::kU8;
  std::string unit;  ///< "ps", "B", "tokens"; empty for pure numbers, ids and texts.
  std::string meaning;
  bool optional = false;  ///< May be absent.
};

struct SchemaTable {
  FileKind kind = FileKind::kTrace;
  std::uint32_t version = 1;  ///< Readers accept 1…version.
  std::string title;          ///< Heading of FORMAT.md.
  std::string introduction;   ///< Paragraphs under the heading (Markdown).
  std::vector<SchemaEntry> entries;

  /// The entry that matches `name` ('*' included), or null. Borrowed from this table.
  [[nodiscard]] const SchemaEntry* find(std::string_view name) const;
};

/// True when `pattern` ('*' = any characters but '/') matches the whole of `name`.
bool name_matches(std::string_view pattern, std::string_view name);
/// "T,L,M" → {"T","L","M"}; "" → {}.
std::vector<std::string> split_shape(std::string_view shape);

/// The text of FORMAT.md: heading, introduction, the container (user block), one table of
/// attributes, one of datasets.
std::string format_markdown(const SchemaTable& table);

}  // namespace switchyard::h5
