// SPDX-License-Identifier: Apache-2.0
// Text of a hardware file (scenarios/README.md), as the importers of topologies write it; figures
// of GPU and cables come from a hardware file of the same kind.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/base/error.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::importers {

using scenario::LinkClass;

/// NVLink lanes of a GPU whose cable has this class.
inline std::uint32_t lanes_of(LinkClass c) { return c == LinkClass::kNvlink3 ? 12 : 18; }

/// First cable of one of the classes, or null; borrowed from `h`.
inline const scenario::Link* find_class(const scenario::HardwareSpec& h,
                                        std::initializer_list<LinkClass> classes) {
  for (const scenario::Link& l : h.links) {
    if (std::find(classes.begin(), classes.end(), l.link_class) != classes.end()) {
      return &l;
    }
  }
  return nullptr;
}

/// What an imported hardware file takes over from the one it is like; all borrowed from that.
struct LikeFigures {
  std::string source;  ///< "as in hgx_h100"
  const scenario::GpuType& gpu;
  const scenario::Link* pcie;    ///< never null
  const scenario::Link* nvlink;  ///< null: it has none
  const scenario::Link* numa;    ///< null: it has none
};

/// InputError "--like" when there is no PCIe cable.
inline LikeFigures figures_of(const scenario::HardwareSpec& like) {
  LikeFigures f{"as in " + like.name, like.gpu_type(0),
                find_class(like, {LinkClass::kPcie4, LinkClass::kPcie5, LinkClass::kPcie6}),
                find_class(like, {LinkClass::kNvlink3, LinkClass::kNvlink4, LinkClass::kNvlink5}),
                find_class(like, {LinkClass::kNuma})};
  if (f.pcie == nullptr) {
    throw InputError("--like",
                     fmt::format("{} has no PCIe cable to take the figures from", like.name),
                     "name a hardware file of such a server");
  }
  return f;
}

/// Exact text of a rate or time.
inline std::string gb(double bytes_per_second) {
  return fmt::format("{} GB/s", bytes_per_second / 1e9);
}
inline std::string ns(SimTime t) {
  return fmt::format("{} ns", static_cast<double>(t.ps()) / 1000);
}

class HardwareWriter {
 public:
  /// Latencies and the achievable share are those of `like`.
  void link_type(const std::string& name, LinkClass c, double bandwidth, const scenario::Link& like,
                 const std::string& source, bool p2p = true) {
    types_ += fmt::format(
        "[link_types.{}]\nclass = \"{}\"\nbandwidth = \"{}\"\n{}latency = \"{}\"\n{}{}source = "
        "\"{}\"\n\n",
        name, scenario::kLinkClassNames[static_cast<std::size_t>(c)], gb(bandwidth),
        like.achievable < 1 ? fmt::format("achievable = {}\n", like.achievable) : "",
        ns(like.latency),
        like.phase_latency ? fmt::format("phase_latency = \"{}\"\n", ns(*like.phase_latency)) : "",
        p2p ? "" : "p2p = false\n", source);
  }
  void device(const std::string& name, std::string_view kind, const std::string& type = {}) {
    devices_ += fmt::format("[[devices]]\nname = \"{}\"\nkind = \"{}\"\n{}\n", name, kind,
                            type.empty() ? "" : fmt::format("type = \"{}\"\n", type));
  }
  void link(const std::string& a, const std::string& b, const std::string& type) {
    links_ += fmt::format("[[links]]\nfrom = \"{}\"\nto = \"{}\"\ntype = \"{}\"\n\n", a, b, type);
  }
  [[nodiscard]] std::string text(const std::string& head) const {
    std::string all = head + types_ + devices_ + links_;
    all.pop_back();  // One newline at the end.
    return all;
  }

 private:
  std::string types_, devices_, links_;
};

inline std::string gpu_type_text(const scenario::GpuType& t, const std::string& source) {
  std::string out = fmt::format(
      "[gpu_types.{}]\nmemory = \"{} B\"\nhbm = \"{}\"\nmbu = {}\nmfu = {}\nmfu_grouped = {}\n"
      "sms = {}\nkernel_launch = \"{}\"\ntdp = \"{} W\"\nidle = \"{} W\"\nsource = \"{}\"\n"
      "[gpu_types.{}.peak]\n",
      t.name, t.memory_bytes, gb(t.hbm.value), t.mbu, t.mfu, t.mfu_grouped, t.sms,
      ns(t.kernel_launch), t.tdp_w, t.idle_w, source, t.name);
  for (std::size_t d = 0; d < t.peak.size(); ++d) {
    if (t.peak[d].value > 0) {
      out += fmt::format("{} = \"{} TFLOP/s\"\n", model::dtype_name(static_cast<model::DType>(d)),
                         t.peak[d].value / 1e12);
    }
  }
  return out + fmt::format("source = \"{}\"\n\n", source);
}

}  // namespace switchyard::importers
