// SPDX-License-Identifier: Apache-2.0
// The described cluster: devices and links as plain data, in the order of the file. The graph and
// the routes are built from it by sim/cluster.
//
// Bandwidths are PER DIRECTION (a vendor's "900 GB/s NVLink" is 450 GB/s here). Rates are what the
// hardware can do at best; the achievable share is a separate, sourced fraction.
//
// File form (TOML; every figure may carry a `source` text beside it):
//   name = "hgx_h100"
//   [gpu_types.h100]            # memory, hbm, peak.<dtype>, mbu, mfu, mfu_grouped, sms, …
//   [link_types.nvlink4]        # class, bandwidth, achievable, latency, phase_latency, duplex,
//   p2p,
//                               # source
//   [[devices]]  name = "gpu" count = 8 kind = "gpu" type = "h100" node = 0   # → gpu0 … gpu7
//   [[links]]    from = "gpu[0-7]" to = "nvswitch" type = "nvlink4"
// `count = n` makes name0 … name(n−1) (with count absent the name is used as it is). "gpu[0-7]" and
// "gpu[0,2,4]" name several devices. Two patterns of equal length pair up element by element; one
// device against a pattern gives a star. `[network]` states defaults for links that do not say it.
//
// Not modelled: clock throttling, ECC overhead (the stated memory is what the driver reports),
// NUMA distance other than by links, switch-internal contention (a switch is a point).
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.hpp"
#include "engine/model/dtype.hpp"

namespace switchyard::scenario {

enum class DeviceKind : std::uint8_t {
  kGpu,
  kSwitch,       ///< Ethernet or InfiniBand switch.
  kNvSwitch,     ///< NVSwitch domain as one point.
  kPcieSwitch,   ///< PCIe switch.
  kRootComplex,  ///< PCIe root complex of a socket.
  kNic,
  kCpu,  ///< Host socket with its memory.
  kSsd,
  kCxl,  ///< Memory pool.
  /// A GPU that only routes (parallel.router = "card"); hardware files say gpu.
  kRouterCard
};
inline constexpr std::array<std::string_view, 9> kDeviceKindNames{
    "gpu", "switch", "nvswitch", "pcie_switch", "root_complex", "nic", "cpu", "ssd", "cxl"};

inline constexpr std::size_t kDTypeCount = static_cast<std::size_t>(model::DType::kMxfp4) + 1;

/// A GPU model. Peak rates are dense (no sparsity); 0 in `peak` means "no units for this format".
struct GpuType {
  std::string name;
  std::uint64_t memory_bytes = 0;  ///< > 0.
  BytesPerSecond hbm;              ///< Peak rate of the GPU's memory, > 0.
  /// By model::DType: fp32, fp16, bf16, fp8, int8, int4, mxfp4 can be stated; at least one is > 0.
  std::array<FlopsPerSecond, kDTypeCount> peak{};
  double mbu = 1.0;          ///< Achievable share of `hbm`, (0, 1].
  double mfu = 1.0;          ///< Achievable share of `peak` in dense GEMM, (0, 1].
  double mfu_grouped = 1.0;  ///< The same for grouped expert GEMM, (0, 1]; default: mfu.
  std::uint32_t sms = 0;     ///< Streaming multiprocessors; 0: not stated. No cost reads them.
  SimTime kernel_launch;     ///< Fixed time of one kernel, >= 0.
  double tdp_w = 0;          ///< Watts, > 0.
  double idle_w = 0;         ///< Watts, 0 <= idle <= tdp; 0 = not stated (energy tables print n/a).

  /// Peak for weights in `format`. A format without units is widened first (mxfp4, int4, int4_g128
  /// → fp8 → bf16 → fp16 → fp32; int8 → bf16 …), so the rate of the next wider format that has
  /// units is returned. FlopsPerSecond{0} when there is none.
  [[nodiscard]] FlopsPerSecond peak_for(model::DType format) const;
};

struct Device {
  std::string name;  ///< Unique.
  DeviceKind kind = DeviceKind::kGpu;
  std::uint32_t node = 0;          ///< Server the device sits in.
  std::int32_t gpu_type = -1;      ///< Index into HardwareSpec::gpu_types for GPUs, else −1.
  std::uint64_t memory_bytes = 0;  ///< cpu, ssd, cxl: capacity (0 = not stated). GPUs: of the type.
  BytesPerSecond memory_rate;      ///< cpu, ssd, cxl: read rate (0 = not stated). GPUs: type's hbm.
  std::string where;               ///< "file:line:column" of its entry.
};

enum class LinkClass : std::uint8_t {
  kNvlink3,
  kNvlink4,
  kNvlink5,
  kPcie4,
  kPcie5,
  kPcie6,
  kInfiniband,
  kEthernet,
  kNuma,  ///< Socket to socket (UPI, xGMI).
  kCxl,
  kOther
};
inline constexpr std::array<std::string_view, 11> kLinkClassNames{
    "nvlink3", "nvlink4",  "nvlink5", "pcie4", "pcie5", "pcie6",
    "ib",      "ethernet", "numa",    "cxl",   "other"};

/// One cable, usable in both directions.
struct Link {
  std::string name;  ///< "a--b", or the entry's `name` (with an index if it made several). Unique.
  std::uint32_t a = 0, b = 0;  ///< Indices into HardwareSpec::devices, a ≠ b.
  LinkClass link_class = LinkClass::kOther;
  BytesPerSecond bandwidth;  ///< Per direction, > 0.
  double achievable = 1.0;   ///< Share of `bandwidth` that exchanges reach, (0, 1].
  SimTime latency;           ///< Of this hop, start-up of a call included, ≥ 0.
  /// Of this hop in every phase of a call but its first (a ring's steps in one kernel), 0 …
  /// `latency`; not stated: `latency`.
  std::optional<SimTime> phase_latency;
  bool shared_medium =
      false;        ///< duplex = "shared": both directions share `bandwidth` (half duplex).
  bool p2p = true;  ///< false: GPU-to-GPU traffic may not pass through; it is staged in host memory
                    ///< (two copies, by way of the nearest cpu device).
  std::string where;
};

struct HardwareSpec {
  std::string name;
  std::vector<GpuType> gpu_types;
  std::vector<Device> devices;      ///< File order.
  std::vector<Link> links;          ///< File order.
  std::vector<std::uint32_t> gpus;  ///< Device index of GPU rank r, in file order.
  std::uint32_t nodes = 1;          ///< Largest node index + 1.
  std::string canonical;            ///< Resolved text, one "key = value" a line; names the inputs.

  [[nodiscard]] std::size_t gpu_count() const { return gpus.size(); }
  [[nodiscard]] const Device& gpu(std::size_t rank) const { return devices[gpus[rank]]; }
  [[nodiscard]] const GpuType& gpu_type(std::size_t rank) const {
    return gpu_types[static_cast<std::size_t>(gpu(rank).gpu_type)];
  }
};

/// Reads and validates a hardware file: devices unique and known, at least one GPU, all GPUs
/// connected, bandwidths finite and > 0. Throws InputError with file:line:column.
HardwareSpec read_hardware(const std::string& path);

}  // namespace switchyard::scenario
