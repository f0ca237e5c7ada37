// SPDX-License-Identifier: Apache-2.0
// Between std::string (UTF-8) and QString, and the texts for people that panes and tables share.
#pragma once
#include <string>

#include <QString>

#include "gui/core/columns.hpp"

namespace switchyard::gui {

inline QString qs(const std::string& s) { return QString::fromStdString(s); }
inline QString qs(std::string_view s) {
  return QString::fromUtf8(s.data(), static_cast<qsizetype>(s.size()));
}
inline QString count(std::uint64_t n) { return qs(groupDigits(n)); }
inline QString gpuName(std::uint32_t gpu) {
  return gpu == run::kNone ? QStringLiteral("no GPU") : QStringLiteral("GPU %1").arg(gpu);
}

}  // namespace switchyard::gui
