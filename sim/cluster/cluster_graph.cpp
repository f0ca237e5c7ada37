// SPDX-License-Identifier: Apache-2.0
#include "sim/cluster/cluster_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/dijkstra_shortest_paths_no_color_map.hpp>
#include <cmath>

#include "engine/base/error.hpp"
#include "sim/cluster/route_table.hpp"

namespace switchyard::cluster {

std::uint32_t ClusterGraph::add_device(std::string name, DeviceKind kind, std::uint32_t node,
                                       const std::string& where) {
  if (name.empty()) {
    throw InputError(where, "a device has no name");
  }
  if (find_device(name) != kNone) {
    throw InputError(where, fmt::format("device \"{}\" is there twice", name));
  }
  const auto index = static_cast<std::uint32_t>(devices_.size());
  device_index_.emplace(name, index);
  devices_.push_back({std::move(name), kind, node});
  if (kind == DeviceKind::kGpu) {
    gpus_.push_back(index);
  }
  return index;
}

void ClusterGraph::add_cable(Cable cable) {
  const std::string where = cable.where.empty() ? "cluster" : cable.where;
  if (cable.a >= devices_.size() || cable.b >= devices_.size()) {
    throw InputError(where, fmt::format("link between devices {} and {}: there are only {}",
                                        cable.a, cable.b, devices_.size()));
  }
  const std::string &a = devices_[cable.a].name, &b = devices_[cable.b].name;
  if (cable.a == cable.b) {
    throw InputError(where, fmt::format("link from \"{}\" to itself", a));
  }
  for (const BytesPerSecond rate : {cable.a_to_b, cable.b_to_a}) {
    if (!(rate.value > 0) || !std::isfinite(rate.value)) {
      throw InputError(where,
                       fmt::format("link {}--{}: bandwidth = {} B/s. Violated: 0 < bandwidth "
                                   "< infinity",
                                   a, b, rate.value));
    }
  }
  if (cable.latency < SimTime()) {
    throw InputError(where, fmt::format("link {}--{}: latency = {} ps. Violated: latency >= 0", a,
                                        b, cable.latency.ps()));
  }
  const SimTime later = cable.phase_latency.value_or(cable.latency);
  if (later < SimTime() || later > cable.latency) {
    throw InputError(where, fmt::format("link {}--{}: phase_latency = {} ps. Violated: 0 <= "
                                        "phase_latency <= latency",
                                        a, b, later.ps()));
  }
  if (!(cable.achievable > 0) || cable.achievable > 1) {
    throw InputError(where, fmt::format("link {}--{}: achievable = {}. Violated: 0 < achievable "
                                        "<= 1",
                                        a, b, cable.achievable));
  }
  if (cable.shared_medium && cable.a_to_b != cable.b_to_a) {
    throw InputError(where, fmt::format("link {}--{}: a shared medium has one bandwidth", a, b));
  }
  const auto add = [&](std::uint32_t from, std::uint32_t to, BytesPerSecond rate,
                       const std::string& base) {
    std::string name = base;
    for (std::uint32_t copy = 2; find_link(name) != kNone; ++copy) {
      name = fmt::format("{}#{}", base, copy);
    }
    link_index_.emplace(name, static_cast<std::uint32_t>(links_.size()));
    links_.push_back({std::move(name), from, to, rate, cable.latency, later, cable.achievable,
                      cable.link_class, cable.shared_medium, cable.p2p});
  };
  if (cable.shared_medium) {
    add(cable.a, cable.b, cable.a_to_b,
        cable.name.empty() ? fmt::format("{}--{}", a, b) : cable.name);
  } else {
    add(cable.a, cable.b, cable.a_to_b, fmt::format("{}>{}", a, b));
    add(cable.b, cable.a, cable.b_to_a, fmt::format("{}>{}", b, a));
  }
}

void ClusterGraph::add_cable(std::uint32_t a, std::uint32_t b, BytesPerSecond per_direction,
                             SimTime latency) {
  Cable cable;
  cable.a = a;
  cable.b = b;
  cable.a_to_b = cable.b_to_a = per_direction;
  cable.latency = latency;
  add_cable(std::move(cable));
}

std::uint32_t ClusterGraph::find_device(std::string_view name) const {
  const auto it = device_index_.find(name);
  return it == device_index_.end() ? kNone : it->second;
}

std::uint32_t ClusterGraph::find_link(std::string_view name) const {
  const auto it = link_index_.find(name);
  return it == link_index_.end() ? kNone : it->second;
}

ClusterGraph build_cluster(const scenario::HardwareSpec& hardware) {
  ClusterGraph graph;
  for (const scenario::Device& d : hardware.devices) {
    graph.add_device(d.name, d.kind, d.node, d.where);
  }
  for (const scenario::Link& l : hardware.links) {
    BytesPerSecond rate{l.bandwidth.value * l.achievable};
    for (const std::uint32_t end : {l.a, l.b}) {
      const scenario::Device& d = hardware.devices[end];
      if (d.kind == DeviceKind::kSsd && d.memory_rate.value > 0) {
        rate = std::min(rate, d.memory_rate);
      }
    }
    graph.add_cable({l.name, l.a, l.b, rate, rate, l.latency, l.phase_latency, l.achievable,
                     l.link_class, l.shared_medium, l.p2p, l.where});
  }
  return graph;
}

bool passes_on(DeviceKind kind) {
  return kind != DeviceKind::kSsd && kind != DeviceKind::kCxl && kind != DeviceKind::kRouterCard;
}

namespace {

/// Length of a route, compared lexicographically; see the order in the header. `width` is the
/// negated bottleneck bandwidth, so that "smaller is better" holds for every member.
struct Cost {
  std::uint32_t forwarders = 0;
  std::uint32_t no_p2p = 0;
  std::uint32_t hops = 0;
  double width = -INFINITY;
  auto operator<=>(const Cost&) const = default;
};

/// Sum over the counts, maximum over "crosses a link without p2p" and over `width`. It never makes
/// a route better, which is what Dijkstra's algorithm needs.
struct Extend {
  Cost operator()(const Cost& a, const Cost& b) const {
    return {a.forwarders + b.forwarders, std::max(a.no_p2p, b.no_p2p), a.hops + b.hops,
            std::max(a.width, b.width)};
  }
};

constexpr Cost kUnreached{UINT32_MAX / 4, UINT32_MAX / 4, UINT32_MAX / 4, INFINITY};
/// Forwarder count of leaving a device that never forwards.
constexpr std::uint32_t kNever = 1U << 20;

/// What leaving a device of this kind adds to the count of forwarders.
std::uint32_t forwarding_cost(DeviceKind kind) {
  if (kind == DeviceKind::kGpu) return 1;
  return passes_on(kind) ? 0 : kNever;
}

/// Routes go by nominal rates: what is left of a degraded link does not send traffic elsewhere. To
/// the digits of a float, or rounding would choose among equals.
double nominal(const DirectedLink& link) {
  return static_cast<float>(link.bandwidth.value / link.achievable);
}

struct EdgeData {
  Cost weight;
  std::uint32_t link = 0;
};
using Graph = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, EdgeData,
                                                 boost::no_property, std::uint32_t, std::uint32_t>;

struct Tree {
  std::vector<Cost> cost;
  std::vector<std::uint32_t> parent, link;  // By vertex; kNone at the source and where unreached.
};

}  // namespace

struct RouteFinder {
  explicit RouteFinder(const ClusterGraph& graph) : cluster(graph) {
    struct Edge {
      std::uint32_t from, to;
      EdgeData data;
    };
    std::vector<Edge> edges;
    for (std::uint32_t l = 0; l < graph.links_.size(); ++l) {
      const DirectedLink& link = graph.links_[l];
      const auto add = [&](std::uint32_t from, std::uint32_t to) {
        EdgeData data;
        data.link = l;
        data.weight = {forwarding_cost(graph.devices_[from].kind), link.p2p ? 0U : 1U, 1U,
                       -nominal(link)};
        edges.push_back({from, to, data});
      };
      add(link.from, link.to);
      if (link.shared_medium) {
        add(link.to, link.from);
      }
      any_without_p2p = any_without_p2p || !link.p2p;
    }
    std::stable_sort(edges.begin(), edges.end(),
                     [](const Edge& x, const Edge& y) { return x.from < y.from; });
    std::vector<std::pair<std::uint32_t, std::uint32_t>> ends;
    std::vector<EdgeData> data, relaxed;
    for (const Edge& e : edges) {
      ends.emplace_back(e.from, e.to);
      data.push_back(e.data);
      relaxed.push_back(e.data);
      relaxed.back().weight.no_p2p = 0;
    }
    const auto n = static_cast<std::uint32_t>(graph.devices_.size());
    strict = Graph(boost::edges_are_sorted, ends.begin(), ends.end(), data.begin(), n);
    loose = Graph(boost::edges_are_sorted, ends.begin(), ends.end(), relaxed.begin(), n);
  }

  /// Shortest routes from `source`. The parents are chosen after the search, among all that give
  /// the same cost, by device and link index: the result does not depend on the heap.
  void search(const Graph& graph, std::uint32_t source, Tree& tree) const {
    const std::size_t n = cluster.devices_.size();
    tree.cost.assign(n, kUnreached);
    tree.parent.assign(n, kNone);
    tree.link.assign(n, kNone);
    boost::dijkstra_shortest_paths_no_color_map(
        graph, source,
        boost::weight_map(boost::get(&EdgeData::weight, graph))
            .distance_map(boost::make_iterator_property_map(tree.cost.begin(),
                                                            boost::get(boost::vertex_index, graph)))
            .distance_compare(std::less<Cost>())
            .distance_combine(Extend())
            .distance_inf(kUnreached)
            .distance_zero(Cost{}));
    for (std::uint32_t u = 0; u < n; ++u) {
      if (tree.cost[u] == kUnreached) {
        continue;
      }
      for (auto [e, end] = boost::out_edges(u, graph); e != end; ++e) {
        const auto v = static_cast<std::uint32_t>(boost::target(*e, graph));
        if (v == source || tree.parent[v] != kNone) {
          continue;  // u ascends, so the first that fits has the lowest device index.
        }
        if (Extend()(tree.cost[u], graph[*e].weight) == tree.cost[v]) {
          tree.parent[v] = u;
          tree.link[v] = graph[*e].link;
        }
      }
    }
  }

  /// GPUs and non-forwarding devices strictly between source and v.
  [[nodiscard]] std::uint32_t forwarders(const Tree& tree, std::uint32_t source,
                                         std::uint32_t v) const {
    return tree.cost[v].forwarders - forwarding_cost(cluster.devices_[source].kind);
  }

  /// Appends the links source → v in travel order.
  static void append(const Tree& tree, std::uint32_t v, std::vector<std::uint32_t>& out) {
    const auto first = static_cast<std::ptrdiff_t>(out.size());
    for (; tree.parent[v] != kNone; v = tree.parent[v]) {
      out.push_back(tree.link[v]);
    }
    std::reverse(out.begin() + first, out.end());
  }

  const ClusterGraph& cluster;
  Graph strict;  ///< With the preference for peer-to-peer.
  Graph loose;   ///< Without it: for the two legs of a staged copy.
  bool any_without_p2p = false;
};

RouteTable ClusterGraph::routes() const { return routes(gpus_); }

RouteTable ClusterGraph::routes(std::span<const std::uint32_t> endpoints) const {
  const RouteFinder finder(*this);
  const auto n = static_cast<std::uint32_t>(endpoints.size());
  RouteTable t;
  t.endpoints = n;
  const std::size_t pairs = static_cast<std::size_t>(n) * n;
  t.offset.reserve(pairs + 1);
  t.offset.push_back(0);
  t.latency_ps.assign(pairs, 0);
  t.staged.assign(pairs, 0);
  t.through_gpu.assign(pairs, 0);
  for (const DirectedLink& l : links_) {
    t.bandwidth.push_back(l.bandwidth.value);
    t.link_name.push_back(l.name);
    t.achievable.push_back(l.achievable);
  }
  if (std::all_of(t.achievable.begin(), t.achievable.end(), [](double a) { return a == 1; })) {
    t.achievable.clear();
  }
  if (std::any_of(links_.begin(), links_.end(),
                  [](const DirectedLink& l) { return l.phase_latency != l.latency; })) {
    t.phase_latency_ps.assign(pairs, 0);
  }
  for (const std::uint32_t e : endpoints) {
    SWITCHYARD_ASSERT(e < devices_.size(), fmt::format("endpoint {}", e));
    t.node.push_back(devices_[e].node);
    t.endpoint_name.push_back(devices_[e].name);
  }
  std::vector<Tree> from_cpu(finder.any_without_p2p ? devices_.size() : 0);
  Tree tree, to_host;
  const auto unreachable = [&](std::uint32_t a, std::uint32_t b, const std::string& why,
                               const std::string& hint) {
    return InputError(
        "hardware",
        fmt::format("no route from {} to {}{}", devices_[a].name, devices_[b].name, why), hint);
  };
  for (const std::uint32_t src : endpoints) {
    finder.search(finder.strict, src, tree);
    std::uint32_t host = kNone;  // Nearest CPU, found when the first pair needs it.
    for (const std::uint32_t dst : endpoints) {
      const std::size_t p = t.offset.size() - 1;
      if (src != dst) {
        if (tree.parent[dst] == kNone || finder.forwarders(tree, src, dst) >= kNever) {
          throw unreachable(src, dst, "", "add the missing link");
        }
        const bool gpus =
            devices_[src].kind == DeviceKind::kGpu && devices_[dst].kind == DeviceKind::kGpu;
        if (gpus && tree.cost[dst].no_p2p != 0) {
          if (host == kNone) {
            finder.search(finder.loose, src, to_host);
            for (std::uint32_t d = 0; d < devices_.size(); ++d) {
              if (devices_[d].kind == DeviceKind::kCpu && to_host.parent[d] != kNone &&
                  (host == kNone || to_host.cost[d] < to_host.cost[host])) {
                host = d;
              }
            }
            if (host == kNone) {
              throw unreachable(src, dst,
                                ": the link allows no peer-to-peer traffic and no cpu device can "
                                "stage the copy",
                                "add a device with kind = \"cpu\" and its link");
            }
          }
          Tree& second = from_cpu[host];
          if (second.cost.empty()) {
            finder.search(finder.loose, host, second);
          }
          if (second.parent[dst] == kNone || second.cost[dst].forwarders >= kNever) {
            throw unreachable(host, dst, "", "add the missing link");
          }
          t.staged[p] = 1;
          t.through_gpu[p] = static_cast<std::uint8_t>(
              finder.forwarders(to_host, src, host) + second.cost[dst].forwarders > 0);
          RouteFinder::append(to_host, host, t.link);
          RouteFinder::append(second, dst, t.link);
        } else {
          t.through_gpu[p] = static_cast<std::uint8_t>(finder.forwarders(tree, src, dst) > 0);
          RouteFinder::append(tree, dst, t.link);
        }
      }
      std::int64_t latency = 0;
      for (std::size_t i = t.offset.back(); i < t.link.size(); ++i) {
        latency += links_[t.link[i]].latency.ps();
        if (!t.phase_latency_ps.empty()) {
          t.phase_latency_ps[p] += links_[t.link[i]].phase_latency.ps();
        }
      }
      t.latency_ps[p] = latency;
      t.offset.push_back(static_cast<std::uint32_t>(t.link.size()));
    }
  }
  t.link.shrink_to_fit();
  return t;
}

}  // namespace switchyard::cluster
