// SPDX-License-Identifier: Apache-2.0
#include "engine/h5/file_reader.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <new>
#include <optional>

#include "engine/base/error.hpp"
#include "engine/h5/handle.hpp"

namespace switchyard::h5 {
namespace {
using internal::element_type;
using internal::Handle;

// zlib packs at most 1032:1; the rest is the padding of a partial chunk.
constexpr std::uint64_t kMostPacking = 1100;
constexpr std::uint64_t kMostPadding = 1 << 20;
constexpr std::size_t kMostObjects = 100000;
constexpr int kMostDepth = 8;

struct Bound {
  std::uint64_t value = 0;
  std::string dataset;  // That set it first.
};

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

herr_t collect_attribute(hid_t, const char* name, const H5A_info_t*, void* data) {
  static_cast<std::vector<std::string>*>(data)->emplace_back(name);
  return 0;
}

herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* data) {
  auto& links = *static_cast<std::vector<std::pair<std::string, H5L_type_t>>*>(data);
  links.emplace_back(name, info->type);
  return links.size() > kMostObjects ? -1 : 0;
}
}  // namespace

struct FileReader::State {
  std::filesystem::path path;
  const SchemaTable* schema = nullptr;
  ContainerHeader header;
  Handle file;
  std::vector<std::string> datasets, attributes;
  std::map<std::string, Bound, std::less<>> extents;

  [[noreturn]] void fail(std::string_view what, const std::string& message) const {
    throw InputError(path.string(), fmt::format("{}: {}", what, message));
  }
  hid_t check(hid_t id, std::string_view what) const {
    if (id < 0) {
      fail(what, fmt::format("cannot read: {}", internal::take_error()));
    }
    return id;
  }
  void check_status(herr_t status, std::string_view what) const {
    (void)check(status < 0 ? -1 : 0, what);
  }

  void list(const std::string& group, int depth) {
    std::vector<std::pair<std::string, H5L_type_t>> links;
    const std::string name = group.empty() ? "/" : group;
    Handle node(check(H5Gopen2(file.id(), name.c_str(), H5P_DEFAULT), name), H5Gclose);
    hsize_t at = 0;
    check_status(H5Literate(node.id(), H5_INDEX_NAME, H5_ITER_INC, &at, collect_link, &links),
                 name);
    for (const auto& [child, type] : links) {
      const std::string full = group.empty() ? child : fmt::format("{}/{}", group, child);
      if (type != H5L_TYPE_HARD) {
        fail(full, "a link out of its place; such files are refused");
      }
      Handle object(check(H5Oopen(node.id(), child.c_str(), H5P_DEFAULT), full), H5Oclose);
      const H5I_type_t kind = H5Iget_type(object.id());
      if (kind == H5I_GROUP) {
        if (depth >= kMostDepth) {
          fail(full, fmt::format("groups nest deeper than {}", kMostDepth));
        }
        list(full, depth + 1);
      } else if (kind == H5I_DATASET) {
        datasets.push_back(full);
      }
      if (datasets.size() > kMostObjects) {
        fail(full, "too many datasets");
      }
    }
  }

  [[nodiscard]] bool has_dataset(std::string_view name) const {
    return std::binary_search(datasets.begin(), datasets.end(), name);
  }

  [[nodiscard]] Handle open(std::string_view name) const {
    if (!has_dataset(name)) {
      fail(name, "the dataset is missing");
    }
    return {check(H5Dopen2(file.id(), std::string(name).c_str(), H5P_DEFAULT), name), H5Dclose};
  }

  [[nodiscard]] std::vector<std::uint64_t> shape_of(hid_t dataset, std::string_view name) const {
    const Handle space(check(H5Dget_space(dataset), name), H5Sclose);
    if (H5Sget_simple_extent_type(space.id()) == H5S_NULL) {
      fail(name, "has no data space");
    }
    const int rank = H5Sget_simple_extent_ndims(space.id());
    check_status(rank, name);
    std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
    check_status(H5Sget_simple_extent_dims(space.id(), dims.data(), nullptr), name);
    return {dims.begin(), dims.end()};
  }

  /// Bytes of one element after checking its type.
  [[nodiscard]] std::uint64_t check_type(hid_t type, ElementType expected,
                                         std::string_view name) const {
    if (expected == ElementType::kText) {
      const htri_t variable =
          H5Tget_class(type) == H5T_STRING ? H5Tis_variable_str(type) : htri_t{1};
      if (variable != 0) {
        fail(name, "expected text of a fixed length");
      }
      const std::size_t size = H5Tget_size(type);
      if (size == 0 || size > header.length) {
        fail(name, fmt::format("a text of {} bytes does not fit in the file", size));
      }
      return size;
    }
    if (H5Tequal(type, element_type(expected)) <= 0) {
      fail(name, fmt::format("expected elements of type {}", type_name(expected)));
    }
    return type_size(expected);
  }

  /// Checks storage and size so that reading allocates no more than the file can hold.
  void check_storage(hid_t dataset, std::string_view name, std::uint64_t element,
                     const std::vector<std::uint64_t>& shape) const {
    const Handle plist(check(H5Dget_create_plist(dataset), name), H5Pclose);
    const H5D_layout_t layout = H5Pget_layout(plist.id());
    if (layout == H5D_VIRTUAL || H5Pget_external_count(plist.id()) != 0) {
      fail(name, "its data lie in another file; such files are refused");
    }
    const int filters = H5Pget_nfilters(plist.id());
    for (int i = 0; i < filters; ++i) {
      std::size_t values = 0;
      unsigned flags = 0;
      const H5Z_filter_t id = H5Pget_filter2(plist.id(), static_cast<unsigned>(i), &flags, &values,
                                             nullptr, 0, nullptr, nullptr);
      if (id != H5Z_FILTER_DEFLATE && id != H5Z_FILTER_SHUFFLE && id != H5Z_FILTER_FLETCHER32) {
        fail(name, fmt::format("filter {} is not supported", static_cast<int>(id)));
      }
    }
    const std::uint64_t stored = std::min<std::uint64_t>(
        static_cast<std::uint64_t>(H5Dget_storage_size(dataset)), header.length);
    const bool packed = layout == H5D_CHUNKED;
    const std::uint64_t most =
        packed && stored > 0
            ? (stored > std::numeric_limits<std::uint64_t>::max() / (2 * kMostPacking)
                   ? std::numeric_limits<std::uint64_t>::max()
                   : stored * kMostPacking + kMostPadding)
            : stored;
    // Multiply with care: hostile dimensions overflow 64 bits. A zero anywhere means no elements.
    const bool none = std::find(shape.begin(), shape.end(), 0U) != shape.end();
    std::uint64_t bytes = none ? 0 : element;
    for (const std::uint64_t d : shape) {
      if (bytes != 0 && d > std::numeric_limits<std::uint64_t>::max() / bytes) {
        bytes = std::numeric_limits<std::uint64_t>::max();
        break;
      }
      bytes *= d;
    }
    if (bytes > most) {
      fail(name, fmt::format("{} elements cannot come from the {} bytes stored for them",
                             shape_text(shape), stored));
    }
    if (packed) {
      std::vector<hsize_t> chunk(shape.size());
      check_status(H5Pget_chunk(plist.id(), static_cast<int>(chunk.size()), chunk.data()), name);
      std::uint64_t chunk_bytes = element;
      for (const hsize_t d : chunk) {
        chunk_bytes = chunk_bytes > (1ULL << 32) ? chunk_bytes : chunk_bytes * d;
      }
      // libhdf5 allocates a whole chunk to read one element of it.
      if (chunk_bytes > std::max<std::uint64_t>(most, kMostPadding)) {
        fail(name, fmt::format("its chunks of {} bytes are larger than its data", chunk_bytes));
      }
    }
  }

  void check_entry(const SchemaEntry& entry, const std::string& name) {
    const Handle dataset = open(name);
    const Handle type(check(H5Dget_type(dataset.id()), name), H5Tclose);
    const std::uint64_t element = check_type(type.id(), entry.type, name);
    const std::vector<std::uint64_t> shape = shape_of(dataset.id(), name);
    const std::vector<std::string> symbols = split_shape(entry.shape);
    if (symbols.size() != shape.size()) {
      fail(name, fmt::format("has the shape {}, expected [{}]", shape_text(shape), entry.shape));
    }
    check_storage(dataset.id(), name, element, shape);
    for (std::size_t i = 0; i < shape.size(); ++i) {
      const char c = symbols[i].front();
      if (c >= '0' && c <= '9' && symbols[i] != std::to_string(shape[i])) {
        fail(name, fmt::format("has the shape {}, expected [{}]", shape_text(shape), entry.shape));
      }
      if (c >= 'A' && c <= 'Z') {
        const auto [it, fresh] = extents.emplace(symbols[i], Bound{shape[i], name});
        if (it->second.value != shape[i]) {
          fail(name, fmt::format("has the shape {}, expected [{}] with {} = {} as in {}",
                                 shape_text(shape), entry.shape, symbols[i], it->second.value,
                                 it->second.dataset));
        }
      }
    }
  }

  [[nodiscard]] Handle open_attribute(std::string_view name, ElementType expected) const {
    const std::string full = fmt::format("attribute {}", name);
    if (!std::binary_search(attributes.begin(), attributes.end(), name)) {
      fail(full, "missing");
    }
    Handle attribute(check(H5Aopen(file.id(), std::string(name).c_str(), H5P_DEFAULT), full),
                     H5Aclose);
    const Handle type(check(H5Aget_type(attribute.id()), full), H5Tclose);
    (void)check_type(type.id(), expected, full);
    const Handle space(check(H5Aget_space(attribute.id()), full), H5Sclose);
    if (H5Sget_simple_extent_type(space.id()) != H5S_SCALAR) {
      fail(full, "expected a single value");
    }
    return attribute;
  }

  template <class T>
  [[nodiscard]] T number(std::string_view name, ElementType type) const {
    const Handle attribute = open_attribute(name, type);
    T value{};
    check_status(H5Aread(attribute.id(), element_type(type), &value), name);
    return value;
  }

  static std::string unpad(const char* bytes, std::size_t size) {
    const std::string_view padded(bytes, size);
    return std::string(padded.substr(0, std::min(padded.find('\0'), size)));
  }

  [[nodiscard]] std::string object_text(hid_t object, const char* key,
                                        std::string_view name) const {
    const htri_t exists = H5Aexists(object, key);
    if (exists <= 0) {
      return {};
    }
    const Handle attribute(check(H5Aopen(object, key, H5P_DEFAULT), name), H5Aclose);
    return attribute_text(attribute.id(), name);
  }
  [[nodiscard]] std::string attribute_text(hid_t attribute, std::string_view name) const {
    const Handle type(check(H5Aget_type(attribute), name), H5Tclose);
    std::string bytes(check_type(type.id(), ElementType::kText, name), '\0');
    check_status(H5Aread(attribute, type.id(), bytes.data()), name);
    return unpad(bytes.data(), bytes.size());
  }
};

FileReader::FileReader(const std::filesystem::path& path, const SchemaTable& schema,
                       const ReadOptions& options) {
  const ContainerHeader header =
      check_container(path, schema.kind, schema.version, options.verify, options.progress);
  internal::prepare_library();
  state_ = std::make_unique<State>();
  State& s = *state_;
  s.path = path;
  s.schema = &schema;
  s.header = header;
  const Handle access(s.check(H5Pcreate(H5P_FILE_ACCESS), "file"), H5Pclose);
  s.check_status(H5Pset_file_locking(access.id(), false, true), "file");
  s.check_status(H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG), "file");
  s.file = Handle(s.check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "file"), H5Fclose);
  hsize_t at = 0;
  s.check_status(
      H5Aiterate2(s.file.id(), H5_INDEX_NAME, H5_ITER_INC, &at, collect_attribute, &s.attributes),
      "attributes");
  std::sort(s.attributes.begin(), s.attributes.end());
  s.list("", 0);
  std::sort(s.datasets.begin(), s.datasets.end());
  for (const SchemaEntry& entry : schema.entries) {
    if (entry.name.starts_with('@')) {
      const std::string_view name = std::string_view(entry.name).substr(1);
      if (!entry.optional || has(entry.name)) {
        (void)s.open_attribute(name, entry.type);
      }
    } else if (entry.name.find('*') == std::string::npos) {
      if (!entry.optional || s.has_dataset(entry.name)) {
        s.check_entry(entry, entry.name);
      }
    } else {
      for (const std::string& name : s.datasets) {
        if (schema.find(name) == &entry) {
          s.check_entry(entry, name);
        }
      }
    }
  }
}

FileReader::~FileReader() = default;
FileReader::FileReader(FileReader&&) noexcept = default;
FileReader& FileReader::operator=(FileReader&&) noexcept = default;

const ContainerHeader& FileReader::header() const { return state_->header; }
const std::filesystem::path& FileReader::path() const { return state_->path; }
std::uint64_t FileReader::file_bytes() const { return state_->header.length + kUserBlockBytes; }
const std::vector<std::string>& FileReader::datasets() const { return state_->datasets; }
const std::vector<std::string>& FileReader::attributes() const { return state_->attributes; }

bool FileReader::has(std::string_view name) const {
  return name.starts_with('@') ? std::binary_search(state_->attributes.begin(),
                                                    state_->attributes.end(), name.substr(1))
                               : state_->has_dataset(name);
}

std::vector<std::uint64_t> FileReader::shape(std::string_view name) const {
  const Handle dataset = state_->open(name);
  return state_->shape_of(dataset.id(), name);
}

std::uint64_t FileReader::extent(std::string_view symbol) const {
  const auto it = state_->extents.find(symbol);
  return it == state_->extents.end() ? 0 : it->second.value;
}

std::string FileReader::text_attribute(std::string_view name) const {
  const Handle attribute = state_->open_attribute(name, ElementType::kText);
  return state_->attribute_text(attribute.id(), name);
}
std::uint64_t FileReader::u64_attribute(std::string_view name) const {
  return state_->number<std::uint64_t>(name, ElementType::kU64);
}
std::int64_t FileReader::i64_attribute(std::string_view name) const {
  return state_->number<std::int64_t>(name, ElementType::kI64);
}
double FileReader::f64_attribute(std::string_view name) const {
  return state_->number<double>(name, ElementType::kF64);
}

std::size_t FileReader::checked_count(std::string_view name, ElementType type, std::uint64_t first,
                                      std::uint64_t count) const {
  const SchemaEntry* entry = state_->schema->find(name);
  SWITCHYARD_ASSERT(entry != nullptr && entry->type == type && type != ElementType::kText,
                    fmt::format("{} read as {}", name, type_name(type)));
  std::vector<std::uint64_t> dims = shape(name);
  const std::uint64_t rows = dims.empty() ? 1 : dims[0];
  if (count != kAllRows) {
    if (first > rows || count > rows - first) {
      fail(name, fmt::format("rows {} to {} of {} asked for", first, first + count, rows));
    }
    dims[0] = count;
  }
  std::uint64_t n = 1;
  for (const std::uint64_t d : dims) {
    n *= d;
  }
  return static_cast<std::size_t>(n);
}

void FileReader::read_raw(std::string_view name, ElementType type, std::uint64_t first,
                          std::uint64_t count, void* values) const {
  internal::prepare_library();  // in this thread: the file may have been opened in another one
  const Handle dataset = state_->open(name);
  const std::vector<std::uint64_t> dims = state_->shape_of(dataset.id(), name);
  if (std::find(dims.begin(), dims.end(), 0U) != dims.end() || count == 0) {
    return;
  }
  if (count == kAllRows) {
    state_->check_status(
        H5Dread(dataset.id(), element_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, values), name);
    return;
  }
  std::vector<hsize_t> start(dims.size(), 0);
  std::vector<hsize_t> block(dims.begin(), dims.end());
  start[0] = first;
  block[0] = count;
  const Handle space(state_->check(H5Dget_space(dataset.id()), name), H5Sclose);
  state_->check_status(
      H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr, block.data(), nullptr),
      name);
  const Handle memory(
      state_->check(H5Screate_simple(static_cast<int>(block.size()), block.data(), nullptr), name),
      H5Sclose);
  state_->check_status(
      H5Dread(dataset.id(), element_type(type), memory.id(), space.id(), H5P_DEFAULT, values),
      name);
}

std::vector<std::string> FileReader::strings(std::string_view name) const {
  const Handle dataset = state_->open(name);
  const Handle type(state_->check(H5Dget_type(dataset.id()), name), H5Tclose);
  const std::size_t length = state_->check_type(type.id(), ElementType::kText, name);
  std::uint64_t count = 1;
  for (const std::uint64_t d : state_->shape_of(dataset.id(), name)) {
    count *= d;  // The product was checked when the file was opened.
  }
  std::string packed(length * count, '\0');
  if (count > 0) {
    state_->check_status(
        H5Dread(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()), name);
  }
  std::vector<std::string> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    values[i] = State::unpad(packed.data() + i * length, length);
  }
  return values;
}

std::string FileReader::text(std::string_view name) const {
  const std::vector<std::string> one = strings(name);
  if (one.size() != 1) {
    fail(name, "expected one text");
  }
  return one[0];
}

void FileReader::fail(std::string_view dataset, std::uint64_t row,
                      const std::string& message) const {
  state_->fail(fmt::format("{}[{}]", dataset, row), message);
}
void FileReader::fail(std::string_view dataset, const std::string& message) const {
  state_->fail(dataset, message);
}

std::vector<std::string> schema_differences(const SchemaTable& schema, const FileReader& file) {
  std::vector<std::string> differences;
  for (const std::string& name : file.attributes()) {
    if (schema.find("@" + name) == nullptr) {
      differences.push_back(fmt::format("attribute {} is not in the schema", name));
    }
  }
  for (const std::string& name : file.datasets()) {
    const SchemaEntry* entry = schema.find(name);
    if (entry == nullptr) {
      differences.push_back(fmt::format("dataset {} is not in the schema", name));
      continue;
    }
    const auto [unit, dimensions] = file.described(name);
    if (unit != entry->unit) {
      differences.push_back(
          fmt::format("{}: unit '{}', the schema says '{}'", name, unit, entry->unit));
    }
    if (dimensions != entry->shape) {
      differences.push_back(
          fmt::format("{}: dimensions '{}', the schema says '{}'", name, dimensions, entry->shape));
    }
  }
  return differences;
}

std::pair<std::string, std::string> FileReader::described(std::string_view name) const {
  const Handle dataset = state_->open(name);
  return {state_->object_text(dataset.id(), "unit", name),
          state_->object_text(dataset.id(), "dimensions", name)};
}

}  // namespace switchyard::h5
