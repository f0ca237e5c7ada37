// SPDX-License-Identifier: Apache-2.0
#include "engine/model/gguf.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <tuple>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/ggml_blocks.hpp"
#include "engine/model/mapping.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1U << 20U;
constexpr std::size_t kMaxName = 1024;
constexpr std::uint64_t kMaxElements = 1U << 26U;  ///< Of an array; vocabularies have 2^18.
constexpr std::uint32_t kMaxDimensions = 4;

enum class ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

struct TypeRow {
  std::uint32_t code;
  const char* name;
  std::optional<DType> dtype;
};
/// ggml's type codes; those without a DType are refused by name.
const std::array<TypeRow, 32>& type_rows() {
  static const std::array<TypeRow, 32> rows{{
      {0, "F32", DType::kF32},      {1, "F16", DType::kF16},       {2, "Q4_0", DType::kQ4_0},
      {3, "Q4_1", std::nullopt},    {6, "Q5_0", std::nullopt},     {7, "Q5_1", std::nullopt},
      {8, "Q8_0", DType::kQ8_0},    {9, "Q8_1", std::nullopt},     {10, "Q2_K", std::nullopt},
      {11, "Q3_K", std::nullopt},   {12, "Q4_K", DType::kQ4K},     {13, "Q5_K", std::nullopt},
      {14, "Q6_K", DType::kQ6K},    {15, "Q8_K", std::nullopt},    {16, "IQ2_XXS", std::nullopt},
      {17, "IQ2_XS", std::nullopt}, {18, "IQ3_XXS", std::nullopt}, {19, "IQ1_S", std::nullopt},
      {20, "IQ4_NL", std::nullopt}, {21, "IQ3_S", std::nullopt},   {22, "IQ2_S", std::nullopt},
      {23, "IQ4_XS", std::nullopt}, {24, "I8", std::nullopt},      {25, "I16", std::nullopt},
      {26, "I32", std::nullopt},    {27, "I64", std::nullopt},     {28, "F64", std::nullopt},
      {29, "IQ1_M", std::nullopt},  {30, "BF16", DType::kBf16},    {34, "TQ1_0", std::nullopt},
      {35, "TQ2_0", std::nullopt},  {39, "MXFP4", DType::kMxfp4},
  }};
  return rows;
}

std::uint32_t type_code(DType dtype) {
  for (const TypeRow& row : type_rows()) {
    if (row.dtype == dtype) {
      return row.code;
    }
  }
  SWITCHYARD_ASSERT(false, std::string(dtype_name(dtype)));
  return 0;
}

/// The double whose shortest text is that of the float.
double shortest_double(float value) {
  if (!std::isfinite(value)) {
    return static_cast<double>(value);
  }
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double out = 0;
  std::from_chars(text.data(), end, out);
  return out;
}

/// A cursor over the mapped header; every read is checked against the file's end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string where)
      : bytes_(bytes), where_(std::move(where)) {}

  [[nodiscard]] std::uint64_t at() const { return at_; }
  [[nodiscard]] std::uint64_t left() const { return bytes_.size() - at_; }
  void naming(std::string what) { what_ = std::move(what); }

  template <class T>
  T get() {
    need(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  bool boolean() {
    const auto value = get<std::uint8_t>();
    if (value > 1) {
      throw bad(fmt::format("a truth value of {}", value));
    }
    return value == 1;
  }
  std::string text(std::uint64_t limit = std::numeric_limits<std::uint64_t>::max()) {
    const auto length = get<std::uint64_t>();
    if (length > limit) {
      throw bad(fmt::format("a text of {} bytes, more than {}", length, limit));
    }
    need(length);
    std::string out(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return out;
  }
  /// Length of an array whose elements take at least `size` bytes each.
  std::uint64_t array_length(std::uint64_t size) {
    const auto length = get<std::uint64_t>();
    if (length > left() / size) {
      throw bad(fmt::format("{} elements do not fit the file", length), "truncated?");
    }
    if (length > kMaxElements) {
      throw bad(fmt::format("{} elements, more than {}", length, kMaxElements));
    }
    return length;
  }
  [[nodiscard]] InputError bad(const std::string& message, const std::string& hint = {}) const {
    return InputError(where_, what_.empty() ? message : what_ + ": " + message, hint);
  }

 private:
  void need(std::uint64_t n) const {
    if (n > left()) {
      throw bad(fmt::format("{} bytes wanted at byte {}, the file has {}", n, at_, bytes_.size()),
                "truncated?");
    }
  }
  std::span<const std::byte> bytes_;
  std::string where_, what_;
  std::uint64_t at_ = 0;
};

template <class T>
std::vector<std::int64_t> integer_array(Cursor& in) {
  const std::uint64_t n = in.array_length(sizeof(T));
  std::vector<std::int64_t> out;
  out.reserve(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    const T value = in.get<T>();
    if constexpr (sizeof(T) == 8 && std::is_unsigned_v<T>) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        throw in.bad(fmt::format("element {} is {}, beyond 2^63", i, value));
      }
    }
    out.push_back(static_cast<std::int64_t>(value));
  }
  return out;
}

template <class T>
std::vector<double> number_array(Cursor& in) {
  const std::uint64_t n = in.array_length(sizeof(T));
  std::vector<double> out;
  out.reserve(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(T) == 4) {
      out.push_back(shortest_double(in.get<float>()));
    } else {
      out.push_back(in.get<double>());
    }
  }
  return out;
}

GgufValue read_array(Cursor& in) {
  const auto type = in.get<std::uint32_t>();
  switch (static_cast<ValueType>(type)) {
    case ValueType::kU8:
      return integer_array<std::uint8_t>(in);
    case ValueType::kI8:
      return integer_array<std::int8_t>(in);
    case ValueType::kU16:
      return integer_array<std::uint16_t>(in);
    case ValueType::kI16:
      return integer_array<std::int16_t>(in);
    case ValueType::kU32:
      return integer_array<std::uint32_t>(in);
    case ValueType::kI32:
      return integer_array<std::int32_t>(in);
    case ValueType::kU64:
      return integer_array<std::uint64_t>(in);
    case ValueType::kI64:
      return integer_array<std::int64_t>(in);
    case ValueType::kF32:
      return number_array<float>(in);
    case ValueType::kF64:
      return number_array<double>(in);
    case ValueType::kBool: {
      const std::uint64_t n = in.array_length(1);
      std::vector<std::int64_t> out;
      out.reserve(n);
      for (std::uint64_t i = 0; i < n; ++i) {
        out.push_back(in.boolean() ? 1 : 0);
      }
      return out;
    }
    case ValueType::kString: {
      const std::uint64_t n = in.array_length(8);
      std::vector<std::string> out;
      out.reserve(n);
      for (std::uint64_t i = 0; i < n; ++i) {
        out.push_back(in.text());
      }
      return out;
    }
    case ValueType::kArray:
      throw in.bad("unsupported: an array of arrays");
  }
  throw in.bad(fmt::format("unknown element type {}", type));
}

GgufValue read_value(Cursor& in) {
  const auto type = in.get<std::uint32_t>();
  const auto whole = [](std::int64_t v) -> GgufValue {
    return v < 0 ? GgufValue(v) : GgufValue(static_cast<std::uint64_t>(v));
  };
  switch (static_cast<ValueType>(type)) {
    case ValueType::kU8:
      return std::uint64_t{in.get<std::uint8_t>()};
    case ValueType::kU16:
      return std::uint64_t{in.get<std::uint16_t>()};
    case ValueType::kU32:
      return std::uint64_t{in.get<std::uint32_t>()};
    case ValueType::kU64:
      return in.get<std::uint64_t>();
    case ValueType::kI8:
      return whole(in.get<std::int8_t>());
    case ValueType::kI16:
      return whole(in.get<std::int16_t>());
    case ValueType::kI32:
      return whole(in.get<std::int32_t>());
    case ValueType::kI64:
      return whole(in.get<std::int64_t>());
    case ValueType::kF32:
      return shortest_double(in.get<float>());
    case ValueType::kF64:
      return in.get<double>();
    case ValueType::kBool:
      return in.boolean();
    case ValueType::kString:
      return in.text();
    case ValueType::kArray:
      return read_array(in);
  }
  throw in.bad(fmt::format("unknown value type {}", type));
}

DType tensor_dtype(const Cursor& in, std::uint32_t code) {
  for (const TypeRow& row : type_rows()) {
    if (row.code == code) {
      if (!row.dtype) {
        throw in.bad(fmt::format("unsupported tensor type {}", row.name),
                     "supported: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K, MXFP4");
      }
      return *row.dtype;
    }
  }
  throw in.bad(fmt::format("unknown tensor type {}", code));
}

std::uint64_t aligned(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

std::uint64_t tensor_bytes(const std::string& where, DType dtype,
                           std::span<const std::uint64_t> shape) {
  const BlockShape block = block_shape(dtype);
  const std::uint64_t row = shape.empty() ? 1 : shape.back();
  if (row % block.values != 0) {
    throw InputError(where, fmt::format("rows of {} values do not fill blocks of {} ({})", row,
                                        block.values, file_dtype_name(dtype)));
  }
  std::uint64_t bytes = row / block.values;
  bool over = __builtin_mul_overflow(bytes, std::uint64_t{block.bytes}, &bytes);
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
    over = __builtin_mul_overflow(bytes, shape[i], &bytes) || over;
  }
  if (over || bytes >> 63U != 0) {
    throw InputError(where, "its size in bytes exceeds 2^63");
  }
  return bytes;
}

bool is_gguf_path(const fs::path& path) { return path.extension() == ".gguf"; }

struct Gguf::Impl {
  fs::path path;
  std::vector<std::unique_ptr<Mapping>> files;  // the parts of one model, in order
  std::map<std::string, GgufValue> metadata;    // of the first
  std::map<std::string, TensorView> tensors;
  Hash128 hash;

  struct Span {
    std::uint64_t begin, end;
    const std::string* name;
  };

  /// Reads one file: its tensors are added, its metadata go to `values` and `header`.
  void read(const fs::path& name, std::map<std::string, GgufValue>& values, Hash128& header) {
    files.push_back(std::make_unique<Mapping>(name));
    const std::span<const std::byte> bytes = files.back()->bytes();
    Cursor in(bytes, name.string());
    if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0) {
      throw in.bad("not a GGUF file");
    }
    (void)in.get<std::uint32_t>();
    const auto version = in.get<std::uint32_t>();
    if (version != 2 && version != 3) {
      throw in.bad(fmt::format("unsupported GGUF version {}", version),
                   (version & 0xffffU) == 0 ? "a big-endian file?" : "supported: 2 and 3");
    }
    const auto tensor_count = in.get<std::uint64_t>();
    const auto key_count = in.get<std::uint64_t>();
    const std::uint64_t metadata_begin = in.at();
    for (std::uint64_t i = 0; i < key_count; ++i) {
      in.naming(fmt::format("metadata entry {}", i));
      const std::string key = in.text(std::numeric_limits<std::uint16_t>::max());
      in.naming(fmt::format("metadata \"{}\"", key));
      if (!values.emplace(key, read_value(in)).second) {
        throw in.bad("is given twice");
      }
    }
    header = hash128(bytes.subspan(metadata_begin, in.at() - metadata_begin));
    read_tensors(in, tensor_count, bytes, name, values);
  }

  /// "model-00001-of-00003.gguf" is the first of three parts (llama.cpp's gguf-split), of which
  /// each says its number, and how many there are.
  void read_parts() {
    const auto stated = [&](const std::map<std::string, GgufValue>& values, const fs::path& name,
                            const std::string& key) {
      const auto it = values.find(key);
      const auto* value = it == values.end() ? nullptr : std::get_if<std::uint64_t>(&it->second);
      if (value == nullptr) {
        throw InputError(name.string(),
                         fmt::format("metadata \"{}\": expected a whole number, not below 0", key));
      }
      return *value;
    };
    if (!metadata.contains("split.count") || stated(metadata, path, "split.count") <= 1) {
      return;
    }
    const std::uint64_t count = stated(metadata, path, "split.count");
    const std::uint64_t number = stated(metadata, path, "split.no");
    const std::string name = path.filename().string();
    const std::string end = fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
    if (count > 99999 || number >= count || !name.ends_with(end)) {
      throw InputError(path.string(),
                       fmt::format("is part {} of {}, and is not named so", number + 1, count),
                       "parts are named NAME-00001-of-00003.gguf");
    }
    const std::string stem = name.substr(0, name.size() - end.size());
    const auto part = [&](std::uint64_t i) {
      return path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count);
    };
    if (number != 0) {
      throw InputError(path.string(), fmt::format("is part {} of {}", number + 1, count),
                       "name the first, " + part(0).string());
    }
    for (std::uint64_t i = 1; i < count; ++i) {
      std::map<std::string, GgufValue> values;
      Hash128 header;
      read(part(i), values, header);
      if (stated(values, part(i), "split.no") != i ||
          stated(values, part(i), "split.count") != count) {
        throw InputError(part(i).string(),
                         fmt::format("does not say that it is part {} of {}", i + 1, count));
      }
    }
    if (metadata.contains("split.tensors.count")) {
      if (const std::uint64_t all = stated(metadata, path, "split.tensors.count");
          all != tensors.size()) {
        throw InputError(path.string(), fmt::format("the parts hold {} tensors, not the stated {}",
                                                    tensors.size(), all));
      }
    }
  }

  void read_tensors(Cursor& in, std::uint64_t tensor_count, std::span<const std::byte> bytes,
                    const fs::path& file, const std::map<std::string, GgufValue>& values) {
    std::vector<std::pair<TensorView, std::uint64_t>> found;  // with offset in the data
    for (std::uint64_t i = 0; i < tensor_count; ++i) {
      in.naming(fmt::format("tensor {}", i));
      TensorView view;
      view.name = in.text(kMaxName);
      in.naming(fmt::format("tensor \"{}\"", view.name));
      const auto dimensions = in.get<std::uint32_t>();
      if (dimensions == 0 || dimensions > kMaxDimensions) {
        throw in.bad(fmt::format("{} dimensions; GGUF has 1 to {}", dimensions, kMaxDimensions));
      }
      for (std::uint32_t d = 0; d < dimensions; ++d) {
        view.shape.push_back(in.get<std::uint64_t>());
      }
      std::reverse(view.shape.begin(), view.shape.end());
      view.dtype = tensor_dtype(in, in.get<std::uint32_t>());
      const auto offset = in.get<std::uint64_t>();
      found.emplace_back(std::move(view), offset);
    }
    in.naming("");
    std::uint64_t alignment = kDefaultAlignment;
    if (const auto it = values.find("general.alignment"); it != values.end()) {
      const auto* value = std::get_if<std::uint64_t>(&it->second);
      if (value == nullptr || *value == 0 || *value > kMaxAlignment ||
          (*value & (*value - 1)) != 0) {
        throw in.bad("metadata \"general.alignment\": not a power of two up to 2^20");
      }
      alignment = *value;
    }
    const std::uint64_t data_begin =
        std::min<std::uint64_t>(aligned(in.at(), alignment), bytes.size());
    const auto data = bytes.subspan(data_begin);
    std::vector<Span> spans;
    for (auto& [view, offset] : found) {
      in.naming(fmt::format("tensor \"{}\"", view.name));
      const std::uint64_t size = tensor_bytes(
          fmt::format("{}: tensor \"{}\"", file.string(), view.name), view.dtype, view.shape);
      if (offset % alignment != 0) {
        throw in.bad(
            fmt::format("begins at byte {} of the data, no multiple of {}", offset, alignment));
      }
      if (offset > data.size() || size > data.size() - offset) {
        throw in.bad(fmt::format("needs bytes {} to {} of the data, the file has {}", offset,
                                 static_cast<unsigned __int128>(offset) + size >
                                         std::numeric_limits<std::uint64_t>::max()
                                     ? std::numeric_limits<std::uint64_t>::max()
                                     : offset + size,
                                 data.size()),
                     "truncated?");
      }
      view.data = data.subspan(offset, size);
      const std::string name = view.name;
      const auto [it, fresh] = tensors.emplace(name, std::move(view));
      if (!fresh) {
        throw in.bad("is given twice");
      }
      spans.push_back({offset, offset + size, &it->first});
    }
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return std::tie(a.begin, a.end, *a.name) < std::tie(b.begin, b.end, *b.name);
    });
    for (std::size_t i = 1; i < spans.size(); ++i) {
      if (spans[i].begin < spans[i - 1].end) {
        in.naming(fmt::format("tensor \"{}\"", *spans[i].name));
        throw in.bad(fmt::format("its bytes overlap tensor \"{}\"", *spans[i - 1].name));
      }
    }
  }
};

Gguf::Gguf() : impl_(std::make_unique<Impl>()) {}
Gguf::Gguf(Gguf&&) noexcept = default;
Gguf& Gguf::operator=(Gguf&&) noexcept = default;
Gguf::~Gguf() = default;

Gguf Gguf::open(const fs::path& path) {
  Gguf g;
  g.impl_->path = path;
  g.impl_->read(path, g.impl_->metadata, g.impl_->hash);
  g.impl_->read_parts();
  return g;
}

const fs::path& Gguf::path() const { return impl_->path; }
const std::map<std::string, GgufValue>& Gguf::metadata() const { return impl_->metadata; }
const std::map<std::string, TensorView>& Gguf::tensors() const { return impl_->tensors; }
Hash128 Gguf::metadata_hash() const { return impl_->hash; }
bool Gguf::has(const std::string& key) const { return impl_->metadata.count(key) != 0; }

void Gguf::fail(const std::string& key, const std::string& message, const std::string& hint) const {
  throw InputError(impl_->path.string(), fmt::format("metadata \"{}\": {}", key, message), hint);
}

namespace {

template <class T>
const T& value_of(const Gguf& file, const std::string& key, const char* expected) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) {
    file.fail(key, "missing");
  }
  const T* value = std::get_if<T>(&it->second);
  if (value == nullptr) {
    file.fail(key, fmt::format("expected {}", expected));
  }
  return *value;
}

}  // namespace

std::uint64_t Gguf::count(const std::string& key) const {
  return value_of<std::uint64_t>(*this, key, "a whole number, not below 0");
}
std::uint64_t Gguf::count_or(const std::string& key, std::uint64_t fallback) const {
  return has(key) ? count(key) : fallback;
}
double Gguf::number(const std::string& key) const {
  const double value = value_of<double>(*this, key, "a floating-point number");
  if (!std::isfinite(value)) {
    fail(key, "not a finite number");
  }
  return value;
}
double Gguf::number_or(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}
bool Gguf::flag_or(const std::string& key, bool fallback) const {
  return has(key) ? value_of<bool>(*this, key, "true or false") : fallback;
}
const std::string& Gguf::text(const std::string& key) const {
  return value_of<std::string>(*this, key, "a text");
}
const std::vector<std::string>& Gguf::texts(const std::string& key) const {
  return value_of<std::vector<std::string>>(*this, key, "an array of texts");
}
const std::vector<std::int64_t>& Gguf::integers(const std::string& key) const {
  return value_of<std::vector<std::int64_t>>(*this, key, "an array of whole numbers");
}

namespace {

template <class T>
void put(std::string& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put(out, std::uint64_t{text.size()});
  out += text;
}

}  // namespace

void GgufWriter::key(const std::string& name, std::uint32_t type) {
  ++keys_;
  put_text(metadata_, name);
  put(metadata_, type);
}
void GgufWriter::u32(const std::string& name, std::uint64_t value) {
  SWITCHYARD_ASSERT(value >> 32U == 0, fmt::format("{} = {}", name, value));
  key(name, static_cast<std::uint32_t>(ValueType::kU32));
  put(metadata_, static_cast<std::uint32_t>(value));
}
void GgufWriter::f32(const std::string& name, double value) {
  key(name, static_cast<std::uint32_t>(ValueType::kF32));
  put(metadata_, static_cast<float>(value));
}
void GgufWriter::flag(const std::string& name, bool value) {
  key(name, static_cast<std::uint32_t>(ValueType::kBool));
  put(metadata_, static_cast<std::uint8_t>(value ? 1 : 0));
}
void GgufWriter::text(const std::string& name, std::string_view value) {
  key(name, static_cast<std::uint32_t>(ValueType::kString));
  put_text(metadata_, value);
}
void GgufWriter::texts(const std::string& name, std::span<const std::string> values) {
  key(name, static_cast<std::uint32_t>(ValueType::kArray));
  put(metadata_, static_cast<std::uint32_t>(ValueType::kString));
  put(metadata_, std::uint64_t{values.size()});
  for (const std::string& v : values) {
    put_text(metadata_, v);
  }
}
void GgufWriter::integers(const std::string& name, std::span<const std::int32_t> values) {
  key(name, static_cast<std::uint32_t>(ValueType::kArray));
  put(metadata_, static_cast<std::uint32_t>(ValueType::kI32));
  put(metadata_, std::uint64_t{values.size()});
  for (const std::int32_t v : values) {
    put(metadata_, v);
  }
}
void GgufWriter::numbers(const std::string& name, std::span<const double> values) {
  key(name, static_cast<std::uint32_t>(ValueType::kArray));
  put(metadata_, static_cast<std::uint32_t>(ValueType::kF32));
  put(metadata_, std::uint64_t{values.size()});
  for (const double v : values) {
    put(metadata_, static_cast<float>(v));
  }
}
void GgufWriter::tensor(const std::string& name, std::vector<std::uint64_t> shape, DType dtype) {
  SWITCHYARD_ASSERT(!shape.empty() && shape.size() <= kMaxDimensions, name);
  (void)tensor_bytes(name, dtype, shape);
  tensors_.push_back({name, std::move(shape), dtype});
}

void GgufWriter::write(const fs::path& path,
                       const std::function<void(std::size_t, const Sink&)>& produce) const {
  std::string head = "GGUF";
  put(head, std::uint32_t{3});
  put(head, std::uint64_t{tensors_.size()});
  put(head, keys_);
  head += metadata_;
  std::uint64_t offset = 0;
  for (const Info& t : tensors_) {
    put_text(head, t.name);
    put(head, static_cast<std::uint32_t>(t.shape.size()));
    for (auto it = t.shape.rbegin(); it != t.shape.rend(); ++it) {
      put(head, *it);
    }
    put(head, type_code(t.dtype));
    put(head, offset);
    offset = aligned(offset + tensor_bytes(t.name, t.dtype, t.shape), kDefaultAlignment);
  }
  head.resize(aligned(head.size(), kDefaultAlignment), '\0');

  AtomicFile file(path);
  std::ofstream out(file.temporary(), std::ios::binary);
  const auto check = [&] {
    if (!out) {
      throw InputError(path.string(), "cannot write", "is the disk full?");
    }
  };
  out.write(head.data(), static_cast<std::streamsize>(head.size()));
  check();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Info& t = tensors_[i];
    const std::uint64_t size = tensor_bytes(t.name, t.dtype, t.shape);
    std::uint64_t written = 0;
    produce(i, [&](std::span<const std::byte> bytes) {
      out.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
      check();
      written += bytes.size();
    });
    SWITCHYARD_ASSERT(written == size, fmt::format("{}: {} of {} bytes", t.name, written, size));
    const std::string padding(aligned(size, kDefaultAlignment) - size, '\0');
    out.write(padding.data(), static_cast<std::streamsize>(padding.size()));
  }
  out.close();
  check();
  file.commit();
}

}  // namespace switchyard::model
