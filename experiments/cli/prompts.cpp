// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/prompts.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"
#include "engine/model/tokenizer.hpp"

namespace switchyard::cli {
namespace {

PromptText parse_object(std::string_view line, const std::string& where) {
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& e) {
    throw InputError(where, fmt::format("not valid JSON: {}", e.what()));
  }
  if (!value.is_object()) {
    throw InputError(where, "not a JSON object", R"(write {"text": "…"})");
  }
  PromptText out;
  static const std::array<std::string, 5> kKeys{"text", "id", "domain", "max_new", "expert"};
  for (const auto& [key, item] : value.items()) {
    const auto text = [&, &name = key, &field = item] {
      if (!field.is_string()) {
        throw InputError(where, fmt::format("\"{}\" is not a string", name));
      }
      return field.get<std::string>();
    };
    if (key == "text") {
      out.text = text();
    } else if (key == "id") {
      out.name = text();
    } else if (key == "domain") {
      out.domain = text();
    } else if (key == "max_new") {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > 1'000'000) {
        throw InputError(where, "\"max_new\" is not a whole number from 0 to 1000000");
      }
      out.max_new = item.get<std::uint32_t>();
    } else if (key == "expert") {
      if (item.is_number_unsigned()) {
        out.expert = std::to_string(item.get<std::uint64_t>());
      } else if (item.is_string() && !item.get<std::string>().empty()) {
        out.expert = item.get<std::string>();
      } else {
        throw InputError(where, "\"expert\" is neither an expert's id nor a name");
      }
    } else {
      throw InputError(where, fmt::format("unknown key \"{}\"", key), suggest_name(key, kKeys));
    }
  }
  if (out.text.empty()) {
    throw InputError(where, "\"text\" is missing or empty");
  }
  return out;
}

void check_utf8(std::string_view line, const std::string& file, int number) {
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t length = model::utf8_length(line, at);
    if (length == 0) {
      throw InputError(
          fmt::format("{}:{}:{}", file, number, at + 1),
          fmt::format("byte 0x{:02x} is not valid UTF-8", static_cast<unsigned char>(line[at])),
          "save the prompts as UTF-8");
    }
    at += length;
  }
}

}  // namespace

std::vector<PromptText> read_prompts(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension != ".txt" && extension != ".jsonl") {
    throw InputError(path.string(), "not a prompt file", "prompts come as .txt or .jsonl");
  }
  const std::string content = read_file(path);
  std::string_view rest = content;
  if (rest.starts_with("\xEF\xBB\xBF")) {
    rest.remove_prefix(3);
  }
  std::vector<PromptText> out;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.find_first_not_of(" \t") == std::string_view::npos) {
      continue;
    }
    check_utf8(line, path.string(), number);
    PromptText prompt;
    if (extension == ".jsonl") {
      prompt = parse_object(line, fmt::format("{}:{}", path.string(), number));
    } else {
      prompt.text = line;
    }
    if (prompt.name.empty()) {
      prompt.name = std::to_string(number);
    }
    prompt.line = number;
    out.push_back(std::move(prompt));
  }
  if (out.empty()) {
    throw InputError(path.string(), "there is no prompt in it", "write one prompt a line");
  }
  return out;
}

}  // namespace switchyard::cli
