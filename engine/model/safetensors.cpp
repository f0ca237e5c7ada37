// SPDX-License-Identifier: Apache-2.0
#include "engine/model/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/json_input.hpp"
#include "engine/model/mapping.hpp"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxHeader = 100'000'000;

DType file_dtype(const std::string& text, const std::string& where, const std::string& tensor) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (text == safetensors_name(dtype)) {
      return dtype;
    }
  }
  throw InputError(where, fmt::format("tensor \"{}\": unknown dtype \"{}\"", tensor, text),
                   "known: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U8 BOOL");
}

struct Entry {
  TensorView view;
  std::uint64_t begin = 0, end = 0;
};

Entry read_entry(const std::string& name, const JsonObject& o, std::span<const std::byte> data,
                 const std::string& where) {
  const auto bad = [&](const std::string& message) {
    return InputError(where, fmt::format("tensor \"{}\": {}", name, message));
  };
  o.only({"dtype", "shape", "data_offsets"});
  Entry e;
  e.view.name = name;
  e.view.dtype = file_dtype(o.text("dtype"), where, name);
  e.view.shape = o.counts("shape", 0, UINT64_MAX);
  if (e.view.shape.size() > 16) {
    throw bad(fmt::format("{} dimensions", e.view.shape.size()));
  }
  std::uint64_t count = 1;
  for (const auto d : e.view.shape) {
    if (__builtin_mul_overflow(count, d, &count)) {
      throw bad("the product of its shape overflows 64 bits");
    }
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, dtype_bits_x32(e.view.dtype) / 256, &bytes)) {
    throw bad("its size in bytes overflows 64 bits");
  }
  const auto offsets = o.counts("data_offsets", 0, UINT64_MAX);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw bad("data_offsets must be [begin, end] with begin <= end");
  }
  e.begin = offsets[0];
  e.end = offsets[1];
  if (e.end - e.begin != bytes) {
    throw bad(fmt::format("{} of shape [{}] needs {} bytes, data_offsets give {}",
                          safetensors_name(e.view.dtype), fmt::join(e.view.shape, ", "), bytes,
                          e.end - e.begin));
  }
  if (e.end > data.size()) {
    throw bad(fmt::format("ends at byte {} of the data, the file has {} (truncated?)", e.end,
                          data.size()));
  }
  e.view.data = data.subspan(e.begin, bytes);
  return e;
}

/// All tensors of one file, checked; metadata is merged into `metadata`.
std::vector<Entry> read_file_header(std::span<const std::byte> file, const std::string& where,
                                    std::map<std::string, std::string>& metadata) {
  if (file.size() < 8) {
    throw InputError(where, fmt::format("not a safetensors file: {} bytes", file.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxHeader) {
    throw InputError(where, fmt::format("header length {} exceeds {} bytes", length, kMaxHeader),
                     "not a safetensors file, or damaged");
  }
  if (length == 0 || length > file.size() - 8) {
    throw InputError(
        where,
        fmt::format("header length {} does not fit the file of {} bytes", length, file.size()),
        "truncated?");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (text.front() != '{') {
    throw InputError(where, "the header does not begin with '{'");
  }
  const auto json = parse_json(text, where + " (header)");
  const JsonObject top(json, where, "");
  const auto data = file.subspan(8 + length);
  std::vector<Entry> entries;
  for (const auto& item : json.items()) {
    if (item.key() == "__metadata__") {
      if (!item.value().is_object()) {
        throw InputError(where, "__metadata__ must map texts to texts");
      }
      for (const auto& m : item.value().items()) {
        if (!m.value().is_string()) {
          throw InputError(where, "__metadata__ must map texts to texts");
        }
        metadata[m.key()] = m.value().get<std::string>();
      }
      continue;
    }
    entries.push_back(read_entry(item.key(), top.object(item.key()), data, where));
  }
  std::vector<const Entry*> order;
  order.reserve(entries.size());
  for (const auto& e : entries) {
    order.push_back(&e);
  }
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->begin, a->end, a->view.name) < std::tie(b->begin, b->end, b->view.name);
  });
  std::uint64_t at = 0;
  for (const Entry* e : order) {
    if (e->begin != at) {
      throw InputError(where,
                       fmt::format("tensor \"{}\": begins at byte {} of the data, expected "
                                   "{}: its bytes {}",
                                   e->view.name, e->begin, at,
                                   e->begin < at ? "overlap another tensor's" : "leave a gap"));
    }
    at = e->end;
  }
  if (at != data.size()) {
    throw InputError(where, fmt::format("{} bytes after the last tensor", data.size() - at));
  }
  return entries;
}

}  // namespace

std::uint64_t TensorView::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

std::vector<float> TensorView::to_float() const {
  if (!is_float_weight(dtype)) {
    throw InputError(fmt::format("tensor \"{}\"", name),
                     fmt::format("cannot be read as floats: dtype {}", safetensors_name(dtype)),
                     "supported: F32, F16, BF16");
  }
  std::vector<float> out(count());
  widen(dtype, data, out);
  return out;
}

struct Safetensors::Impl {
  std::vector<std::unique_ptr<Mapping>> files;
  std::map<std::string, TensorView> tensors;
  std::map<std::string, std::string> file_of, metadata;

  void add(const fs::path& path, const std::map<std::string, std::string>* index) {
    files.push_back(std::make_unique<Mapping>(path));
    for (auto& e : read_file_header(files.back()->bytes(), path.string(), metadata)) {
      const std::string name = e.view.name;
      if (index != nullptr) {
        const auto it = index->find(name);
        if (it == index->end()) {
          throw InputError(path.string(), fmt::format("tensor \"{}\" is not in the index", name));
        }
        if (it->second != path.filename().string()) {
          throw InputError(path.string(), fmt::format("tensor \"{}\": the index places it in {}",
                                                      name, it->second));
        }
      }
      file_of[name] = path.string();
      tensors.emplace(name, std::move(e.view));
    }
  }

  void add_index(const fs::path& path) {
    const auto json = parse_json(read_file(path), path.string());
    const JsonObject top(json, path.string(), "");
    const JsonObject map = top.object("weight_map");
    std::map<std::string, std::string> index;
    std::set<std::string> shards;
    for (const auto& item : top.raw("weight_map").items()) {
      const std::string shard = map.text(item.key());
      if (shard.empty() || shard.find('/') != std::string::npos || shard == "..") {
        map.fail(item.key(), fmt::format("\"{}\" is not a file name", shard));
      }
      index[item.key()] = shard;
      shards.insert(shard);
    }
    for (const auto& shard : shards) {
      add(path.parent_path() / shard, &index);
    }
    for (const auto& [name, shard] : index) {
      if (tensors.find(name) == tensors.end()) {
        throw InputError(path.string(),
                         fmt::format("tensor \"{}\" is missing from {}", name, shard));
      }
    }
  }
};

Safetensors::Safetensors() : impl_(std::make_unique<Impl>()) {}
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;
Safetensors::~Safetensors() = default;

Safetensors Safetensors::open(const fs::path& path) {
  Safetensors s;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    const auto single = path / "model.safetensors";
    const auto index = path / "model.safetensors.index.json";
    if (fs::exists(index, ignored)) {
      s.impl_->add_index(index);
    } else if (fs::exists(single, ignored)) {
      s.impl_->add(single, nullptr);
    } else {
      throw InputError(path.string(),
                       "no weights: neither model.safetensors nor model.safetensors.index.json");
    }
  } else if (path.extension() == ".json") {
    s.impl_->add_index(path);
  } else {
    s.impl_->add(path, nullptr);
  }
  return s;
}

const std::map<std::string, TensorView>& Safetensors::tensors() const { return impl_->tensors; }

const TensorView* Safetensors::find(const std::string& name) const {
  const auto it = impl_->tensors.find(name);
  return it == impl_->tensors.end() ? nullptr : &it->second;
}

std::string Safetensors::file_of(const std::string& name) const {
  const auto it = impl_->file_of.find(name);
  return it == impl_->file_of.end() ? std::string() : it->second;
}

const std::map<std::string, std::string>& Safetensors::metadata() const { return impl_->metadata; }

TensorData TensorData::from_floats(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                                   std::span<const float> values) {
  SWITCHYARD_ASSERT(dtype == DType::kF32 || dtype == DType::kBf16, std::string(dtype_name(dtype)));
  TensorData t;
  t.name = std::move(name);
  t.dtype = dtype;
  t.shape = std::move(shape);
  t.bytes.resize(dtype_bytes(dtype, values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(t.bytes.data() + 4 * i, &values[i], 4);
    } else {
      const std::uint16_t bits = float_to_bf16(values[i]);
      std::memcpy(t.bytes.data() + 2 * i, &bits, 2);
    }
  }
  return t;
}

std::string safetensors_bytes(std::span<const TensorData> tensors,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  std::uint64_t at = 0;
  for (const auto& t : tensors) {
    const auto count =
        std::accumulate(t.shape.begin(), t.shape.end(), std::uint64_t{1}, std::multiplies<>());
    SWITCHYARD_ASSERT(t.bytes.size() == dtype_bytes(t.dtype, count) && !header.contains(t.name) &&
                          !safetensors_name(t.dtype).empty(),
                      fmt::format("{}: {} bytes", t.name, t.bytes.size()));
    header[t.name] = {{"dtype", std::string(safetensors_name(t.dtype))},
                      {"shape", t.shape},
                      {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  out += text;
  for (const auto& t : tensors) {
    out.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  }
  return out;
}

void write_safetensors(const fs::path& path, std::span<const TensorData> tensors,
                       const std::map<std::string, std::string>& metadata) {
  write_file(path, safetensors_bytes(tensors, metadata));
}

}  // namespace switchyard::model
