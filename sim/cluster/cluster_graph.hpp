// SPDX-License-Identifier: Apache-2.0
// The cluster as a directed graph (M30): devices are vertices, cables are pairs of directed links.
//
// A full-duplex cable gives two directed links, each with its own bandwidth. A shared medium
// (half duplex, a bus) gives ONE link that both directions load. Routes between GPUs are found once
// (route_table.hpp); every network model works on the links of those routes and on nothing else.
//
// Route choice, in this order (each step decides only among ties of the one before):
//   1. fewest GPUs passed through (GPUs forward only where no other way exists, as in a ring cabled
//      GPU to GPU; SSDs and memory pools never forward),
//   2. peer-to-peer before staged through host memory,
//   3. fewest hops,
//   4. largest bottleneck bandwidth, nominal: what is left of a degraded link moves no route,
//   5. lowest device index, then lowest link index, walking back from the destination.
// GPU to GPU without peer-to-peer: the route is source → nearest CPU (same order) → destination,
// two copies that run as a pipeline of chunks: both legs carry all the bytes and both latencies
// add.
//
// Bandwidths are per direction, bytes per second: what exchanges reach, nominal · achievable of the
// hardware file. Latencies are per hop; a route's is their sum, and so is its phase latency, which
// later phases of one call pay in its place.
// Not modelled: several routes at once (adaptive routing, striping over parallel cables: state
// their sum as one cable), congestion inside a switch, per-packet overhead (put it into the
// bandwidth), staging without pipelining.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/table.hpp"
#include "engine/base/units.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::cluster {

using scenario::DeviceKind;
using scenario::LinkClass;

/// "No such index".
inline constexpr std::uint32_t kNone = UINT32_MAX;

struct GraphDevice {
  std::string name;
  DeviceKind kind = DeviceKind::kGpu;
  std::uint32_t node = 0;  ///< Server.
};

/// A cable between two devices, as added.
struct Cable {
  std::string name;                      ///< Empty: "a--b".
  std::uint32_t a = 0, b = 0;            ///< Device indices, a ≠ b.
  BytesPerSecond a_to_b;                 ///< > 0, finite.
  BytesPerSecond b_to_a;                 ///< > 0, finite; equal to a_to_b on a shared medium.
  SimTime latency;                       ///< Of this hop, either way. ≥ 0.
  std::optional<SimTime> phase_latency;  ///< In later phases of a call, 0 … latency; absent: it.
  double achievable = 1.0;  ///< Share of the nominal rate that a_to_b and b_to_a are, (0, 1].
  LinkClass link_class = LinkClass::kOther;
  bool shared_medium = false;
  bool p2p = true;    ///< false: GPU-to-GPU traffic is staged in host memory instead.
  std::string where;  ///< Place in the user's file, for messages.
};

/// A directed link, or the one link of a shared medium (then from → to is the order of the cable).
struct DirectedLink {
  std::string name;  ///< "from>to", unique; a shared medium keeps the cable's name.
  std::uint32_t from = 0, to = 0;
  BytesPerSecond bandwidth;
  SimTime latency, phase_latency;
  double achievable = 1.0;  ///< bandwidth / nominal rate.
  LinkClass link_class = LinkClass::kOther;
  bool shared_medium = false;
  bool p2p = true;
};

struct RouteTable;

class ClusterGraph {
 public:
  /// Returns the device's index. Names must be unique and non-empty: InputError(where) otherwise.
  std::uint32_t add_device(std::string name, DeviceKind kind, std::uint32_t node = 0,
                           const std::string& where = "cluster");
  /// Adds one or two links. Throws InputError for a bandwidth that is not positive and finite, a
  /// negative latency, a cable from a device to itself or an unknown index.
  void add_cable(Cable cable);
  /// Symmetric full-duplex cable; every phase pays `latency`.
  void add_cable(std::uint32_t a, std::uint32_t b, BytesPerSecond per_direction, SimTime latency);

  [[nodiscard]] const std::vector<GraphDevice>& devices() const { return devices_; }
  [[nodiscard]] const std::vector<DirectedLink>& links() const { return links_; }
  /// Device index of GPU rank r, in the order added.
  [[nodiscard]] const std::vector<std::uint32_t>& gpus() const { return gpus_; }
  /// Index, or kNone.
  [[nodiscard]] std::uint32_t find_device(std::string_view name) const;
  [[nodiscard]] std::uint32_t find_link(std::string_view name) const;

  /// Routes between all GPUs; endpoint r is GPU rank r. Throws InputError naming the pair when two
  /// GPUs are not connected, or when a staged copy finds no CPU.
  [[nodiscard]] RouteTable routes() const;
  /// Routes between any devices (distinct indices), in this order. Only GPU-to-GPU pairs are
  /// staged.
  [[nodiscard]] RouteTable routes(std::span<const std::uint32_t> endpoints) const;

 private:
  friend struct RouteFinder;
  std::vector<GraphDevice> devices_;
  std::vector<DirectedLink> links_;
  std::vector<std::uint32_t> gpus_;
  std::map<std::string, std::uint32_t, std::less<>> device_index_, link_index_;
};

/// One vertex per device and the cables of the file, in the order of the file, so device indices
/// are those of `hardware` and GPU rank r is hardware.gpus[r]. A cable to an SSD is no faster than
/// the SSD's stated rate.
ClusterGraph build_cluster(const scenario::HardwareSpec& hardware);

/// Whether traffic may go on from a device of this kind: not from memories and router cards.
[[nodiscard]] bool passes_on(DeviceKind kind);

}  // namespace switchyard::cluster
