// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/inspect_gguf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "engine/model/gguf.hpp"
#include "engine/model/tokenizer.hpp"

namespace switchyard::cli {
namespace {

/// At most 60 bytes, whole characters; control characters as blanks, bytes that are no UTF-8 as
/// U+FFFD.
std::string shown(const std::string& text) {
  constexpr std::size_t kMost = 60;
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t n = model::utf8_length(text, at);
    if (at + std::max<std::size_t>(n, 1) > kMost) {
      return fmt::format("{}… ({} bytes)", out, text.size());
    }
    if (n == 0) {
      out += "\xef\xbf\xbd";
    } else if (n == 1) {
      const auto b = static_cast<unsigned char>(text[at]);
      out += b < 0x20 || b == 0x7f ? ' ' : text[at];
    } else {
      out += text.substr(at, n);
    }
    at += std::max<std::size_t>(n, 1);
  }
  return out;
}

struct Shower {
  std::string operator()(std::uint64_t v) const { return fmt::to_string(v); }
  std::string operator()(std::int64_t v) const { return fmt::to_string(v); }
  std::string operator()(double v) const { return fmt::format("{}", v); }
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(const std::string& v) const { return shown(v); }
  template <class T>
  std::string operator()(const std::vector<T>& v) const {
    return fmt::format("array of {}", v.size());
  }
};

}  // namespace

std::vector<Table> inspect_gguf(const std::filesystem::path& path) {
  const model::Gguf file = model::Gguf::open(path);
  struct Sum {
    std::uint64_t tensors = 0, values = 0, bytes = 0;
    void add(const model::TensorView& t) {
      ++tensors;
      values += t.count();
      bytes += t.data.size();
    }
  };
  std::map<std::string, Sum> by_type;
  Sum all;
  for (const auto& [name, tensor] : file.tensors()) {
    by_type[model::file_dtype_name(tensor.dtype)].add(tensor);
    all.add(tensor);
  }
  Table types;
  types.name = "gguf";
  types.title = "GGUF file: tensors by type";
  types.columns = {"type", "tensors", "values", "bytes [B]"};
  const auto row = [&](const std::string& name, const Sum& s) {
    types.rows.push_back(
        {name, fmt::to_string(s.tensors), fmt::to_string(s.values), fmt::to_string(s.bytes)});
  };
  for (const auto& [name, sum] : by_type) {
    row(name, sum);
  }
  row("all", all);
  Table metadata;
  metadata.name = "gguf-metadata";
  metadata.title = "GGUF file: metadata";
  metadata.columns = {"key", "value"};
  for (const auto& [key, value] : file.metadata()) {
    metadata.rows.push_back({shown(key), std::visit(Shower{}, value)});
  }
  return {types, metadata};
}

}  // namespace switchyard::cli
