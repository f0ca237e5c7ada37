// SPDX-License-Identifier: Apache-2.0
// Prompt files: .txt with one prompt a line (blank lines skipped), or .jsonl with one object a
// line: "text", optional "id", "domain", "max_new", "expert" (an id, or a name of pinned.names).
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace switchyard::cli {

struct PromptText {
  std::string name;  ///< "id" of the object, else the line number.
  std::string domain, text;
  std::optional<std::uint32_t> max_new;
  std::string expert;  ///< Id or name as written; empty: none.
  int line = 0;  ///< In the file, from 1.
};

/// InputError with file and line: neither .txt nor .jsonl, invalid JSON, unknown key, wrong type,
/// empty text, no prompt at all.
std::vector<PromptText> read_prompts(const std::filesystem::path& path);

}  // namespace switchyard::cli
