// SPDX-License-Identifier: Apache-2.0
#include "engine/h5/file_writer.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/h5/container.hpp"
#include "engine/h5/handle.hpp"

namespace switchyard::h5 {
namespace {
using internal::element_type;
using internal::Handle;

constexpr std::uint64_t kChunkBytes = 128 * 1024;  // Fits libhdf5's chunk cache of 1 MiB.
constexpr std::uint64_t kContiguousBytes = 2048;
constexpr std::size_t kAttributeBytes = 60000;  // The object header of format 0 holds 64 KiB.
constexpr unsigned kDeflateLevel = 4;

std::uint64_t product(const std::vector<std::uint64_t>& shape) {
  std::uint64_t n = 1;
  for (const std::uint64_t d : shape) {
    n *= d;
  }
  return n;
}

std::vector<hsize_t> hsizes(const std::vector<std::uint64_t>& shape) {
  return {shape.begin(), shape.end()};
}

/// Rows are grouped up to kChunkBytes; wider rows are halved along their longest dimension.
std::vector<hsize_t> chunk_shape(const std::vector<std::uint64_t>& shape, std::uint64_t element,
                                 std::uint64_t rows) {
  std::vector<hsize_t> chunk = hsizes(shape);
  for (hsize_t& d : chunk) {
    d = std::max<hsize_t>(d, 1);
  }
  chunk[0] = 1;
  const auto bytes = [&] {
    std::uint64_t n = element;
    for (const hsize_t d : chunk) {
      n *= d;
    }
    return n;
  };
  while (bytes() > 8 * kChunkBytes) {
    hsize_t& longest = *std::max_element(chunk.begin(), chunk.end());
    longest = (longest + 1) / 2;
  }
  chunk[0] = std::clamp<std::uint64_t>(kChunkBytes / bytes(), 1, std::max<std::uint64_t>(rows, 1));
  return chunk;
}

struct Rows {
  ElementType type = ElementType::kU8;
  std::vector<std::uint64_t> trailing;
  std::uint64_t row_bytes = 0;
  std::uint64_t chunk_rows = 0;
  std::uint64_t written = 0;      // Rows in the dataset.
  std::vector<std::byte> buffer;  // Fewer than chunk_rows rows.
  Handle dataset;
};
}  // namespace

struct FileWriter::State {
  State(const std::filesystem::path& path, const SchemaTable& table)
      : target(path), schema(table), output(path) {}

  std::filesystem::path target;
  const SchemaTable& schema;
  AtomicFile output;
  Handle file;
  std::map<std::string, Rows, std::less<>> rows;
  std::vector<std::string> order;            // Of the declarations: flushed in this order.
  std::set<std::string, std::less<>> names;  // Written or declared.
  std::map<std::string, std::uint64_t, std::less<>> extents;
  bool finished = false;
  bool chunk_cache = true;

  [[noreturn]] void fail() const {
    throw InputError(target.string(), fmt::format("cannot write: {}", internal::take_error()));
  }
  hid_t check(hid_t id) const {
    if (id < 0) {
      fail();
    }
    return id;
  }
  void check_status(herr_t status) const {
    if (status < 0) {
      fail();
    }
  }
  void close(Handle& handle) const {
    if (!handle.close()) {
      fail();
    }
  }

  const SchemaEntry& enter(std::string_view name, ElementType type) {
    SWITCHYARD_ASSERT(!finished, fmt::format("{} after finish()", name));
    const SchemaEntry* entry = schema.find(name);
    SWITCHYARD_ASSERT(entry != nullptr, fmt::format("{} is not in the schema", name));
    SWITCHYARD_ASSERT(entry->type == type, fmt::format("{} is {}, written as {}", name,
                                                       type_name(entry->type), type_name(type)));
    SWITCHYARD_ASSERT(names.insert(std::string(name)).second,
                      fmt::format("{} written twice", name));
    return *entry;
  }

  void bind(std::string_view name, const SchemaEntry& entry,
            const std::vector<std::uint64_t>& shape) {
    const std::vector<std::string> symbols = split_shape(entry.shape);
    SWITCHYARD_ASSERT(
        symbols.size() == shape.size(),
        fmt::format("{} has {} dimensions, the schema says [{}]", name, shape.size(), entry.shape));
    for (std::size_t i = 0; i < shape.size(); ++i) {
      const char c = symbols[i].front();
      if (c >= 'A' && c <= 'Z') {
        const auto [it, fresh] = extents.emplace(symbols[i], shape[i]);
        SWITCHYARD_ASSERT(it->second == shape[i], fmt::format("{}: {} = {}, elsewhere {}", name,
                                                              symbols[i], shape[i], it->second));
      } else if (c >= '0' && c <= '9') {
        SWITCHYARD_ASSERT(symbols[i] == std::to_string(shape[i]),
                          fmt::format("{}: {} instead of {}", name, shape[i], symbols[i]));
      }
    }
  }

  void object_text(hid_t object, const char* key, std::string_view value) const {
    Handle type = text_type(value.size());
    Handle space(check(H5Screate(H5S_SCALAR)), H5Sclose);
    Handle attribute(
        check(H5Acreate2(object, key, type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT)), H5Aclose);
    // The type is at least one byte long, also for an empty text.
    const char zero = 0;
    check_status(H5Awrite(attribute.id(), type.id(), value.empty() ? &zero : value.data()));
    close(attribute);
    close(space);
    close(type);
  }

  [[nodiscard]] Handle text_type(std::size_t length) const {
    Handle type(check(H5Tcopy(H5T_C_S1)), H5Tclose);
    check_status(H5Tset_size(type.id(), std::max<std::size_t>(length, 1)));
    check_status(H5Tset_strpad(type.id(), H5T_STR_NULLPAD));
    check_status(H5Tset_cset(type.id(), H5T_CSET_UTF8));
    return type;
  }

  void check_text(std::string_view name, std::string_view value) const {
    if (value.find('\0') != std::string_view::npos) {
      throw InputError(target.string(), fmt::format("{}: the text has a NUL byte", name));
    }
  }

  template <class T>
  void number(std::string_view name, ElementType type, T value) {
    const std::string full = fmt::format("@{}", name);
    (void)enter(full, type);
    Handle space(check(H5Screate(H5S_SCALAR)), H5Sclose);
    Handle attribute(check(H5Acreate2(file.id(), full.c_str() + 1, element_type(type), space.id(),
                                      H5P_DEFAULT, H5P_DEFAULT)),
                     H5Aclose);
    check_status(H5Awrite(attribute.id(), element_type(type), &value));
    close(attribute);
    close(space);
  }

  /// Makes the dataset with its "unit" and "dimensions" attributes. `maximum` empty: fixed size.
  [[nodiscard]] Handle make(std::string_view name, const SchemaEntry& entry, hid_t type,
                            const std::vector<std::uint64_t>& shape,
                            const std::vector<hsize_t>& chunk, bool extensible) const {
    const std::string path(name);
    for (std::size_t slash = path.find('/'); slash != std::string::npos;
         slash = path.find('/', slash + 1)) {
      const std::string group = path.substr(0, slash);
      const htri_t exists = H5Lexists(file.id(), group.c_str(), H5P_DEFAULT);
      if (exists < 0) {
        fail();
      }
      if (exists == 0) {
        Handle plist(check(H5Pcreate(H5P_GROUP_CREATE)), H5Pclose);
        check_status(H5Pset_obj_track_times(plist.id(), false));
        Handle made(
            check(H5Gcreate2(file.id(), group.c_str(), H5P_DEFAULT, plist.id(), H5P_DEFAULT)),
            H5Gclose);
        close(made);
        close(plist);
      }
    }
    const std::vector<hsize_t> dims = hsizes(shape);
    std::vector<hsize_t> limit = dims;
    if (extensible) {
      limit[0] = H5S_UNLIMITED;
    }
    Handle space(check(dims.empty() ? H5Screate(H5S_SCALAR)
                                    : H5Screate_simple(static_cast<int>(dims.size()), dims.data(),
                                                       limit.data())),
                 H5Sclose);
    Handle plist(check(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
    check_status(H5Pset_obj_track_times(plist.id(), false));
    if (!chunk.empty()) {
      check_status(H5Pset_chunk(plist.id(), static_cast<int>(chunk.size()), chunk.data()));
      check_status(H5Pset_shuffle(plist.id()));
      check_status(H5Pset_deflate(plist.id(), kDeflateLevel));
      // Padding of the last chunk is the fill value 0, never what happened to be in memory.
      check_status(H5Pset_fill_time(plist.id(), H5D_FILL_TIME_ALLOC));
    }
    Handle access(check(H5Pcreate(H5P_DATASET_ACCESS)), H5Pclose);
    if (extensible && !chunk_cache) {
      check_status(H5Pset_chunk_cache(access.id(), 0, 0, H5D_CHUNK_CACHE_W0_DEFAULT));
    }
    Handle dataset(check(H5Dcreate2(file.id(), path.c_str(), type, space.id(), H5P_DEFAULT,
                                    plist.id(), access.id())),
                   H5Dclose);
    close(access);
    close(plist);
    close(space);
    object_text(dataset.id(), "unit", entry.unit);
    object_text(dataset.id(), "dimensions", entry.shape);
    return dataset;
  }

  void write_whole(std::string_view name, const SchemaEntry& entry, hid_t type,
                   std::uint64_t element, const void* values,
                   const std::vector<std::uint64_t>& shape) const {
    const std::uint64_t bytes = product(shape) * element;
    const bool small = shape.empty() || bytes <= kContiguousBytes;
    Handle dataset =
        make(name, entry, type, shape,
             small ? std::vector<hsize_t>{} : chunk_shape(shape, element, shape[0]), false);
    if (bytes > 0) {
      check_status(H5Dwrite(dataset.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values));
    }
    close(dataset);
  }

  /// Writes whole chunks out of the buffer; with `last` the remainder too.
  void flush(const std::string& name, Rows& rows_of, bool last) {
    const std::uint64_t buffered = rows_of.buffer.size() / rows_of.row_bytes;
    const std::uint64_t count = last ? buffered : buffered - buffered % rows_of.chunk_rows;
    std::vector<std::uint64_t> shape{rows_of.written + count};
    shape.insert(shape.end(), rows_of.trailing.begin(), rows_of.trailing.end());
    if (last && !rows_of.dataset.valid()) {
      // Never reached one chunk: written in one piece, which keeps small files small.
      write_whole(name, *schema.find(name), element_type(rows_of.type), type_size(rows_of.type),
                  rows_of.buffer.data(), shape);
      rows_of.written = count;
      rows_of.buffer.clear();
      return;
    }
    if (count > 0) {
      const std::uint64_t first = rows_of.written;
      if (!rows_of.dataset.valid()) {
        std::vector<hsize_t> chunk =
            chunk_shape(shape, type_size(rows_of.type), std::numeric_limits<std::uint64_t>::max());
        rows_of.dataset =
            make(name, *schema.find(name), element_type(rows_of.type), shape, chunk, true);
      } else {
        check_status(H5Dset_extent(rows_of.dataset.id(), hsizes(shape).data()));
      }
      std::vector<hsize_t> start(shape.size(), 0);
      std::vector<hsize_t> block = hsizes(shape);
      start[0] = first;
      block[0] = count;
      Handle space(check(H5Dget_space(rows_of.dataset.id())), H5Sclose);
      check_status(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr,
                                       block.data(), nullptr));
      Handle memory(check(H5Screate_simple(static_cast<int>(block.size()), block.data(), nullptr)),
                    H5Sclose);
      check_status(H5Dwrite(rows_of.dataset.id(), element_type(rows_of.type), memory.id(),
                            space.id(), H5P_DEFAULT, rows_of.buffer.data()));
      close(memory);
      close(space);
      rows_of.written += count;
      rows_of.buffer.erase(
          rows_of.buffer.begin(),
          rows_of.buffer.begin() + static_cast<std::ptrdiff_t>(count * rows_of.row_bytes));
    }
    if (last) {
      close(rows_of.dataset);
    }
  }
};

FileWriter::FileWriter(const std::filesystem::path& target, const SchemaTable& schema,
                       const WriteOptions& options) {
  internal::prepare_library();
  state_ = std::make_unique<State>(target, schema);
  state_->chunk_cache = options.chunk_cache;
  Handle creation(state_->check(H5Pcreate(H5P_FILE_CREATE)), H5Pclose);
  state_->check_status(H5Pset_userblock(creation.id(), kUserBlockBytes));
  state_->check_status(H5Pset_obj_track_times(creation.id(), false));
  Handle access(state_->check(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  // Nothing else writes this temporary; some file systems cannot lock.
  state_->check_status(H5Pset_file_locking(access.id(), false, true));
  // Closing the file closes what an error left open.
  state_->check_status(H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG));
  state_->file = Handle(state_->check(H5Fcreate(state_->output.temporary().c_str(), H5F_ACC_TRUNC,
                                                creation.id(), access.id())),
                        H5Fclose);
}

FileWriter::~FileWriter() {
  if (state_ && !state_->finished) {
    state_->rows.clear();
    (void)state_->file.close();
    (void)H5Eclear2(H5E_DEFAULT);
  }
}

void FileWriter::attribute(std::string_view name, std::string_view value) {
  const std::string full = fmt::format("@{}", name);
  (void)state_->enter(full, ElementType::kText);
  state_->check_text(full, value);
  if (value.size() > kAttributeBytes) {
    throw InputError(state_->target.string(),
                     fmt::format("{}: the text has {} bytes, an attribute holds {}", full,
                                 value.size(), kAttributeBytes));
  }
  state_->object_text(state_->file.id(), full.c_str() + 1, value);
}
void FileWriter::attribute(std::string_view name, std::uint64_t value) {
  state_->number(name, ElementType::kU64, value);
}
void FileWriter::attribute(std::string_view name, std::int64_t value) {
  state_->number(name, ElementType::kI64, value);
}
void FileWriter::attribute(std::string_view name, double value) {
  state_->number(name, ElementType::kF64, value);
}

void FileWriter::write_raw(std::string_view name, ElementType type, const void* values,
                           std::size_t count, const std::vector<std::uint64_t>& shape) {
  const SchemaEntry& entry = state_->enter(name, type);
  state_->bind(name, entry, shape);
  SWITCHYARD_ASSERT(!shape.empty() && product(shape) == count,
                    fmt::format("{}: {} values for a shape of {}", name, count, product(shape)));
  state_->write_whole(name, entry, element_type(type), type_size(type), values, shape);
}

void FileWriter::strings(std::string_view name, const std::vector<std::string>& values) {
  const SchemaEntry& entry = state_->enter(name, ElementType::kText);
  state_->bind(name, entry, {values.size()});
  std::size_t length = 1;
  for (const std::string& value : values) {
    state_->check_text(name, value);
    length = std::max(length, value.size());
  }
  std::string packed(length * values.size(), '\0');
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(packed.data() + i * length, values[i].data(), values[i].size());
  }
  Handle type = state_->text_type(length);
  state_->write_whole(name, entry, type.id(), length, packed.data(), {values.size()});
  state_->close(type);
}

void FileWriter::text(std::string_view name, std::string_view value) {
  const SchemaEntry& entry = state_->enter(name, ElementType::kText);
  state_->bind(name, entry, {});
  state_->check_text(name, value);
  Handle type = state_->text_type(value.size());
  const std::string copy = value.empty() ? std::string(1, '\0') : std::string(value);
  state_->write_whole(name, entry, type.id(), copy.size(), copy.data(), {});
  state_->close(type);
}

void FileWriter::declare_rows(std::string_view name, ElementType type,
                              const std::vector<std::uint64_t>& trailing) {
  (void)state_->enter(name, type);
  Rows rows;
  rows.type = type;
  rows.trailing = trailing;
  rows.row_bytes = product(trailing) * type_size(type);
  SWITCHYARD_ASSERT(rows.row_bytes > 0, fmt::format("{}: rows of no bytes", name));
  std::vector<std::uint64_t> shape{1};
  shape.insert(shape.end(), trailing.begin(), trailing.end());
  rows.chunk_rows =
      chunk_shape(shape, type_size(type), std::numeric_limits<std::uint64_t>::max())[0];
  state_->rows.emplace(std::string(name), std::move(rows));
  state_->order.emplace_back(name);
}

void FileWriter::append_raw(std::string_view name, ElementType type, const void* values,
                            std::size_t count) {
  const auto it = state_->rows.find(name);
  SWITCHYARD_ASSERT(it != state_->rows.end() && !state_->finished,
                    fmt::format("append to {}, which rows() did not declare", name));
  Rows& rows = it->second;
  const std::uint64_t bytes = count * type_size(type);
  SWITCHYARD_ASSERT(rows.type == type && bytes % rows.row_bytes == 0,
                    fmt::format("{}: {} bytes of {} in rows of {}", name, bytes, type_name(type),
                                rows.row_bytes));
  const auto* first = static_cast<const std::byte*>(values);
  rows.buffer.insert(rows.buffer.end(), first, first + bytes);
  if (rows.buffer.size() / rows.row_bytes >= rows.chunk_rows) {
    state_->flush(it->first, rows, false);
  }
}

std::size_t FileWriter::back_count(std::string_view name, ElementType type, std::uint64_t first,
                                   std::uint64_t count) const {
  const auto it = state_->rows.find(name);
  SWITCHYARD_ASSERT(it != state_->rows.end() && !state_->finished,
                    fmt::format("{} read back, which rows() did not declare", name));
  const Rows& rows = it->second;
  const std::uint64_t all = rows.written + rows.buffer.size() / rows.row_bytes;
  SWITCHYARD_ASSERT(rows.type == type && first <= all && count <= all - first,
                    fmt::format("{}: rows {} to {} of {} as {}", name, first, first + count, all,
                                type_name(type)));
  return static_cast<std::size_t>(count * (rows.row_bytes / type_size(type)));
}

void FileWriter::read_back_raw(std::string_view name, std::uint64_t first, std::uint64_t count,
                               void* values) {
  const State& s = *state_;
  const Rows& rows = state_->rows.find(name)->second;
  auto* to = static_cast<std::byte*>(values);
  if (first < rows.written && count > 0) {
    const std::uint64_t stored = std::min(count, rows.written - first);
    std::vector<hsize_t> start(rows.trailing.size() + 1, 0);
    std::vector<hsize_t> block{stored};
    block.insert(block.end(), rows.trailing.begin(), rows.trailing.end());
    start[0] = first;
    Handle space(s.check(H5Dget_space(rows.dataset.id())), H5Sclose);
    s.check_status(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr,
                                       block.data(), nullptr));
    Handle memory(s.check(H5Screate_simple(static_cast<int>(block.size()), block.data(), nullptr)),
                  H5Sclose);
    s.check_status(H5Dread(rows.dataset.id(), element_type(rows.type), memory.id(), space.id(),
                           H5P_DEFAULT, to));
    s.close(memory);
    s.close(space);
    to += stored * rows.row_bytes;
    first += stored;
    count -= stored;
  }
  if (count > 0) {
    std::memcpy(to, rows.buffer.data() + (first - rows.written) * rows.row_bytes,
                count * rows.row_bytes);
  }
}

std::uint64_t FileWriter::buffered_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, rows] : state_->rows) bytes += rows.buffer.capacity();
  return bytes;
}

void FileWriter::finish() {
  State& s = *state_;
  SWITCHYARD_ASSERT(!s.finished, "finish() twice");
  for (const std::string& name : s.order) {
    Rows& rows = s.rows.find(name)->second;
    s.flush(name, rows, true);
    std::vector<std::uint64_t> shape{rows.written};
    shape.insert(shape.end(), rows.trailing.begin(), rows.trailing.end());
    s.bind(name, *s.schema.find(name), shape);
  }
  for (const SchemaEntry& entry : s.schema.entries) {
    const bool required = !entry.optional && entry.name.find('*') == std::string::npos;
    SWITCHYARD_ASSERT(!required || s.names.contains(entry.name),
                      fmt::format("{} was not written", entry.name));
  }
  s.close(s.file);
  seal_file(s.output.temporary(), s.schema.kind, s.schema.version);
  s.output.commit();
  s.finished = true;
}

}  // namespace switchyard::h5
