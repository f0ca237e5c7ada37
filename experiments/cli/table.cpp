// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/sim.hpp"
#include "experiments/tables/tables.hpp"

namespace switchyard::cli {
namespace {

const char* extension(TableFormat format) {
  switch (format) {
    case TableFormat::kMarkdown:
      return "md";
    case TableFormat::kCsv:
      return "csv";
    case TableFormat::kLatex:
      return "tex";
    case TableFormat::kJson:
      return "json";
    case TableFormat::kText:
      break;
  }
  return "txt";
}

Table list_table() {
  Table t;
  t.name = "tables";
  t.columns = {"table", "shows"};
  for (const auto& entry : tables::table_entries()) {
    t.rows.push_back({entry.name, entry.description});
  }
  return t;
}

/// The chosen tables in order, each once.
std::vector<const tables::TableEntry*> chosen(const TableOptions& options) {
  std::vector<const tables::TableEntry*> out;
  if (options.all) {
    if (!options.names.empty()) {
      throw InputError("--all", fmt::format("names a table beside it: {}", options.names.front()),
                       "give one or the other");
    }
    for (const auto& entry : tables::table_entries()) {
      out.push_back(&entry);
    }
    return out;
  }
  for (const std::string& name : options.names) {
    const tables::TableEntry* entry = &tables::table_by_name(name);
    if (std::find(out.begin(), out.end(), entry) == out.end()) {
      out.push_back(entry);
    }
  }
  if (out.empty()) {
    throw InputError("table", "no table is named", "switchyard table --list shows them");
  }
  return out;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, error)) {
    throw InputError(folder.string(), "cannot make this folder", error ? error.message() : "");
  }
}

}  // namespace

int run_table(const TableOptions& options) {
  if (options.list) {
    if (options.all || !options.names.empty() || !options.output.empty() || options.quick) {
      throw InputError("--list", "shows the names only", "leave out the other options");
    }
    fmt::print("{}", render(list_table(), options.format));
    return 0;
  }
  const auto entries = chosen(options);
  if (options.quiet && options.output.empty()) {
    throw InputError("--quiet", "nothing would come out", "add -o DIR");
  }
  tables::TableContext context;
  context.scenarios = scenarios_root();
  context.quick = options.quick;
  if (context.scenarios.empty()) {
    throw InputError("scenarios", "the folder of models and hardware is not found",
                     "set SWITCHYARD_SCENARIOS to the project's scenarios folder");
  }
  if (!options.output.empty()) {
    make_folder(options.output);
  }
  std::vector<Table> printed;
  for (const tables::TableEntry* entry : entries) {
    for (Table& table : entry->make(context)) {
      if (options.output.empty()) {
        printed.push_back(std::move(table));
        continue;
      }
      const auto file =
          options.output / fmt::format("{}.{}", table.name, extension(options.format));
      write_file(file, render(table, options.format));
      if (!options.quiet) {
        fmt::print("{}\n", file.string());
      }
    }
  }
  if (options.output.empty()) {
    fmt::print("{}", render_all(printed, options.format));
  }
  return 0;
}

}  // namespace switchyard::cli
