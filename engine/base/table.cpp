// SPDX-License-Identifier: Apache-2.0
#include "engine/base/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/base/error.hpp"
#include "engine/base/nearest_name.hpp"

namespace switchyard {
namespace {

bool is_number(std::string_view s) {
  if (s.empty() || s.front() == '+' || s.front() == '.') {
    return false;
  }
  const std::string_view digits = s.front() == '-' ? s.substr(1) : s;
  if (digits.empty() || digits.front() < '0' || digits.front() > '9' ||
      (digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9')) {
    return false;  // "-inf", "nan", "007" are text
  }
  if (const std::size_t dot = s.find('.');
      dot != std::string_view::npos &&
      (dot + 1 == s.size() || s[dot + 1] < '0' || s[dot + 1] > '9')) {
    return false;  // "1.", "1.e5" are no numbers in JSON
  }
  double v = 0;
  const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
  return ec == std::errc{} && end == s.data() + s.size();
}

/// Columns a text takes on a terminal: code points, wide CJK counted twice.
std::size_t display_width(std::string_view s) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < s.size();) {
    const auto c = static_cast<unsigned char>(s[i]);
    const std::size_t n = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    width += n == 3 && c >= 0xE3 ? 2 : 1;
    i += n;
  }
  return width;
}

std::string padded(std::string_view s, std::size_t width, bool right) {
  const std::size_t have = display_width(s);
  const std::string fill(width > have ? width - have : 0, ' ');
  return right ? fill + std::string(s) : std::string(s) + fill;
}

std::string json_string(std::string_view s) {
  std::string out = "\"";
  for (const char c : s) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string csv_field(std::string_view s) {
  if (s.find_first_of(",\"\r\n") == std::string_view::npos) {
    return std::string(s);
  }
  std::string out = "\"";
  for (const char c : s) {
    out += c;
    if (c == '"') {
      out += '"';
    }
  }
  return out + "\"";
}

std::string latex(std::string_view s) {
  std::string out;
  for (const char c : s) {
    switch (c) {
      case '&':
      case '%':
      case '$':
      case '#':
      case '_':
      case '{':
      case '}':
        out += '\\';
        out += c;
        break;
      case '~':
        out += "\\textasciitilde{}";
        break;
      case '^':
        out += "\\textasciicircum{}";
        break;
      case '\\':
        out += "\\textbackslash{}";
        break;
      case '<':
        out += "\\textless{}";
        break;
      case '>':
        out += "\\textgreater{}";
        break;
      case '|':
        out += "\\textbar{}";
        break;
      case '"':
        out += "\\textquotedbl{}";
        break;
      default:
        out += c;
    }
  }
  // What tables of ours hold beyond ASCII; pdfLaTeX stops at what it does not know.
  static const std::array<std::pair<std::string_view, std::string_view>, 11> kNamed{{
      {"…", "\\ldots{}"},
      {"→", "$\\to$"},
      {"×", "$\\times$"},
      {"·", "$\\cdot$"},
      {"≤", "$\\le$"},
      {"≥", "$\\ge$"},
      {"−", "$-$"},
      {"–", "--"},
      {"µ", "$\\mu$"},
      {"²", "$^2$"},
      {"Σ", "$\\Sigma$"},
  }};
  for (const auto& [from, to] : kNamed) {
    for (std::size_t at = out.find(from); at != std::string::npos; at = out.find(from, at)) {
      out.replace(at, from.size(), to);
      at += to.size();
    }
  }
  return out;
}

std::string markdown(std::string_view s) {
  std::string out;
  for (const char c : s) {
    if (c == '|') {
      out += '\\';
    }
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::vector<bool> number_columns(const Table& t) {
  std::vector<bool> numeric(t.columns.size(), true);
  for (std::size_t c = 0; c < t.columns.size(); ++c) {
    bool any = false;
    for (const auto& row : t.rows) {
      const bool gap = row[c].empty() || row[c] == "n/a" || row[c] == "-";
      any = any || is_number(row[c]);
      if (!gap && !is_number(row[c])) {
        numeric[c] = false;
      }
    }
    numeric[c] = numeric[c] && any;
  }
  return numeric;
}

std::string render_text(const Table& t) {
  const std::vector<bool> numeric = number_columns(t);
  std::vector<std::size_t> width(t.columns.size());
  for (std::size_t c = 0; c < t.columns.size(); ++c) {
    width[c] = display_width(t.columns[c]);
    for (const auto& row : t.rows) {
      width[c] = std::max(width[c], display_width(row[c]));
    }
  }
  std::string out = t.title.empty() ? "" : t.title + "\n";
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      text += (c == 0 ? "" : "  ") + padded(cells[c], width[c], numeric[c]);
    }
    while (!text.empty() && text.back() == ' ') {
      text.pop_back();
    }
    return text + "\n";
  };
  out += line(t.columns);
  for (std::size_t c = 0; c < t.columns.size(); ++c) {
    out += (c == 0 ? "" : "  ") + std::string(width[c], '-');
  }
  out += "\n";
  for (const auto& row : t.rows) {
    out += line(row);
  }
  for (const std::string& note : t.notes) {
    out += note + "\n";
  }
  return out;
}

std::string render_markdown(const Table& t) {
  const std::vector<bool> numeric = number_columns(t);
  std::string out = t.title.empty() ? "" : fmt::format("**{}**\n\n", markdown(t.title));
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) {
      text += " " + markdown(cell) + " |";
    }
    return text + "\n";
  };
  out += line(t.columns) + "|";
  for (const bool n : numeric) {
    out += n ? "---:|" : "---|";
  }
  out += "\n";
  for (const auto& row : t.rows) {
    out += line(row);
  }
  for (const std::string& note : t.notes) {
    out += "\n" + markdown(note) + "\n";
  }
  return out;
}

std::string render_csv(const Table& t) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      text += (c == 0 ? "" : ",") + csv_field(cells[c]);
    }
    return text + "\n";
  };
  std::string out = line(t.columns);
  for (const auto& row : t.rows) {
    out += line(row);
  }
  return out;
}

std::string render_latex(const Table& t) {
  const std::vector<bool> numeric = number_columns(t);
  std::string spec;
  for (const bool n : numeric) {
    spec += n ? 'r' : 'l';
  }
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      text += (c == 0 ? "" : " & ") + latex(cells[c]);
    }
    return text + " \\\\\n";
  };
  std::string out;
  if (!t.title.empty()) {
    out += "% " + t.title + "\n";
  }
  out += "\\begin{tabular}{" + spec + "}\n\\toprule\n" + line(t.columns) + "\\midrule\n";
  for (const auto& row : t.rows) {
    out += line(row);
  }
  out += "\\bottomrule\n\\end{tabular}\n";
  for (const std::string& note : t.notes) {
    out += "% " + note + "\n";
  }
  return out;
}

std::string render_json(const Table& t) {
  std::string out = fmt::format("{{\"name\": {}, \"title\": {}, \"rows\": [", json_string(t.name),
                                json_string(t.title));
  for (std::size_t r = 0; r < t.rows.size(); ++r) {
    out += r == 0 ? "\n  {" : ",\n  {";
    for (std::size_t c = 0; c < t.columns.size(); ++c) {
      const std::string& cell = t.rows[r][c];
      out += fmt::format("{}{}: {}", c == 0 ? "" : ", ", json_string(t.columns[c]),
                         is_number(cell) ? cell : json_string(cell));
    }
    out += "}";
  }
  out += "\n], \"notes\": [";
  for (std::size_t i = 0; i < t.notes.size(); ++i) {
    out += (i == 0 ? "" : ", ") + json_string(t.notes[i]);
  }
  return out + "]}\n";
}

}  // namespace

TableFormat parse_table_format(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, TableFormat>, 5> known{
      {{"text", TableFormat::kText},
       {"md", TableFormat::kMarkdown},
       {"csv", TableFormat::kCsv},
       {"tex", TableFormat::kLatex},
       {"json", TableFormat::kJson}}};
  std::vector<std::string> names;
  for (const auto& [text, format] : known) {
    if (text == name) {
      return format;
    }
    names.emplace_back(text);
  }
  throw InputError("--format", fmt::format("unknown format \"{}\"", name),
                   suggest_name(name, names));
}

std::string render(const Table& table, TableFormat format) {
  for (const auto& row : table.rows) {
    SWITCHYARD_ASSERT(row.size() == table.columns.size(),
                      fmt::format("table {}: row of {} cells, {} columns", table.name, row.size(),
                                  table.columns.size()));
  }
  switch (format) {
    case TableFormat::kText:
      return render_text(table);
    case TableFormat::kMarkdown:
      return render_markdown(table);
    case TableFormat::kCsv:
      return render_csv(table);
    case TableFormat::kLatex:
      return render_latex(table);
    case TableFormat::kJson:
      return render_json(table);
  }
  return {};
}

std::string render_all(const std::vector<Table>& tables, TableFormat format) {
  const bool json = format == TableFormat::kJson;
  std::string out = json ? "[" : "";
  for (std::size_t i = 0; i < tables.size(); ++i) {
    if (i > 0) {
      out += json ? "," : "\n";
    }
    out += render(tables[i], format);
  }
  return json ? out + "]\n" : out;
}

}  // namespace switchyard
