// SPDX-License-Identifier: Apache-2.0
// One table, five formats. Columns are fixed, units stand in the header, the locale is "C"; no
// timestamps and no paths unless the caller puts them in.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

enum class TableFormat { kText, kMarkdown, kCsv, kLatex, kJson };

/// "text", "md", "csv", "tex", "json". Throws InputError("--format", …) with a suggestion.
TableFormat parse_table_format(std::string_view name);

struct Table {
  std::string name;                  ///< Short id, e.g. "account"; JSON key, CSV omits it.
  std::string title;                 ///< One line above the table.
  std::vector<std::string> columns;  ///< Header texts, unit included.
  std::vector<std::vector<std::string>>
      rows;                        ///< Each as long as `columns` (asserted when printed).
  std::vector<std::string> notes;  ///< Lines under the table; CSV omits them.
};

/// Renders with a trailing newline. A cell that is a plain number is right-aligned in text and a
/// number in JSON; CSV quotes per RFC 4180; LaTeX is a booktabs tabular with special characters
/// escaped.
std::string render(const Table& table, TableFormat format);
/// Several tables: a blank line between them; in JSON one array (also for a single table).
std::string render_all(const std::vector<Table>& tables, TableFormat format);

}  // namespace switchyard
