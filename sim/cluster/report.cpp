// SPDX-License-Identifier: Apache-2.0
#include "sim/cluster/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "engine/base/error.hpp"

namespace switchyard::cluster {
namespace {

/// The cluster with a source and a sink; the edges at the terminals are opened and closed per cut.
class CutGraph {
 public:
  explicit CutGraph(const ClusterGraph& cluster)
      : graph_(cluster.devices().size() + 2), gpus_(cluster.gpus().size()) {
    const std::size_t devices = cluster.devices().size();
    source_ = devices;
    sink_ = devices + 1;
    const auto ends = [&](std::uint32_t device) {
      return !passes_on(cluster.devices()[device].kind);
    };
    for (const DirectedLink& l : cluster.links()) {
      const auto capacity = static_cast<std::int64_t>(l.bandwidth.value);
      total_ += capacity;
      if (!ends(l.from)) add(l.from, l.to, capacity);
      if (l.shared_medium && !ends(l.to)) add(l.to, l.from, capacity);
    }
    for (const std::uint32_t gpu : cluster.gpus()) {
      from_source_.push_back(add(source_, gpu, 0));
      to_sink_.push_back(add(gpu, sink_, 0));
    }
  }

  /// Bytes per second from the GPUs marked 1 to the others.
  std::int64_t flow(const std::vector<std::uint8_t>& sender) {
    auto capacity = boost::get(boost::edge_capacity, graph_);
    for (std::size_t g = 0; g < gpus_; ++g) {
      capacity[from_source_[g]] = sender[g] != 0 ? total_ : 0;
      capacity[to_sink_[g]] = sender[g] != 0 ? 0 : total_;
    }
    return boost::push_relabel_max_flow(graph_, source_, sink_);
  }

 private:
  using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  using Graph = boost::adjacency_list<
      boost::vecS, boost::vecS, boost::directedS, boost::no_property,
      boost::property<
          boost::edge_capacity_t, std::int64_t,
          boost::property<boost::edge_residual_capacity_t, std::int64_t,
                          boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;

  Traits::edge_descriptor add(std::size_t from, std::size_t to, std::int64_t capacity) {
    const auto forward = boost::add_edge(from, to, graph_).first;
    const auto backward = boost::add_edge(to, from, graph_).first;
    boost::put(boost::edge_capacity, graph_, forward, capacity);
    boost::put(boost::edge_capacity, graph_, backward, 0);
    boost::put(boost::edge_reverse, graph_, forward, backward);
    boost::put(boost::edge_reverse, graph_, backward, forward);
    return forward;
  }

  Graph graph_;
  std::size_t gpus_, source_ = 0, sink_ = 0;
  std::int64_t total_ = 0;
  std::vector<Traits::edge_descriptor> from_source_, to_sink_;
};

}  // namespace

Bisection bisection(const ClusterGraph& graph) {
  const std::size_t n = graph.gpus().size();
  if (n < 2) {
    throw InputError("hardware", "bisection needs at least two GPUs");
  }
  CutGraph cut(graph);
  Bisection best;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::vector<std::uint8_t> sender(n, 0);
  const auto consider = [&] {
    const std::int64_t flow = cut.flow(sender);
    if (flow < least) {
      least = flow;
      best.half.clear();
      for (std::uint32_t g = 0; g < n; ++g) {
        if (sender[g] != 0) {
          best.half.push_back(g);
        }
      }
    }
  };
  const std::size_t half = n / 2;
  best.exact = n <= 16;
  if (best.exact) {
    // Subsets in lexicographic order of the marks; both directions of a cut are two of them. Where
    // no cable has two different rates, GPU 0 may be fixed to the sending side.
    std::fill(sender.begin(), sender.begin() + static_cast<std::ptrdiff_t>(half), std::uint8_t{1});
    bool symmetric = n % 2 == 0;
    for (std::size_t l = 0; symmetric && l < graph.links().size(); ++l) {
      const DirectedLink& x = graph.links()[l];
      symmetric =
          x.shared_medium ||
          std::any_of(graph.links().begin(), graph.links().end(), [&](const DirectedLink& y) {
            return y.from == x.to && y.to == x.from && y.bandwidth == x.bandwidth;
          });
    }
    const auto first = sender.begin() + (symmetric ? 1 : 0);
    do {
      consider();
    } while (std::prev_permutation(first, sender.end()));
  } else {
    const std::size_t starts = std::min<std::size_t>(n, 32);
    for (std::size_t k = 0; k < starts; ++k) {
      std::fill(sender.begin(), sender.end(), std::uint8_t{0});
      for (std::size_t i = 0; i < half; ++i) {
        sender[(k * n / starts + i) % n] = 1;
      }
      consider();
    }
  }
  best.capacity = BytesPerSecond{static_cast<double>(least)};
  return best;
}

RouteReport report_routes(const RouteTable& routes) {
  RouteReport r;
  r.pairs_on_link.assign(routes.links(), 0);
  for (std::uint32_t i = 0; i < routes.endpoints; ++i) {
    for (std::uint32_t j = 0; j < routes.endpoints; ++j) {
      if (i == j) {
        continue;
      }
      const auto links = routes.links_of(i, j);
      r.longest_hops = std::max(r.longest_hops, static_cast<std::uint32_t>(links.size()));
      r.staged_pairs += routes.staged[routes.pair(i, j)];
      r.through_gpu_pairs += routes.through_gpu[routes.pair(i, j)];
      r.longest_latency = std::max(r.longest_latency, routes.latency(i, j));
      for (const std::uint32_t l : links) {
        ++r.pairs_on_link[l];
        if (r.narrow_link == kNone || routes.bandwidth[l] < r.narrow_bandwidth.value) {
          r.narrow_src = i;
          r.narrow_dst = j;
          r.narrow_link = l;
          r.narrow_bandwidth = BytesPerSecond{routes.bandwidth[l]};
        }
      }
    }
  }
  double worst = 0;
  for (std::uint32_t l = 0; l < routes.links(); ++l) {
    const double time = static_cast<double>(r.pairs_on_link[l]) / routes.bandwidth[l];
    if (time > worst) {
      worst = time;
      r.uniform_link = l;
      r.uniform_per_gpu = BytesPerSecond{static_cast<double>(routes.endpoints - 1) / time};
    }
  }
  return r;
}

std::string rates_in_words(const ClusterGraph& graph) {
  std::set<std::string> nominal, shared;
  for (const DirectedLink& l : graph.links()) {
    (l.achievable < 1 ? shared : nominal)
        .emplace(scenario::kLinkClassNames[static_cast<std::size_t>(l.link_class)]);
  }
  std::string text = "exchanges run at the achievable rate";
  if (!shared.empty())
    text += fmt::format(", a share of the nominal one of {}", fmt::join(shared, ", "));
  if (!nominal.empty()) {
    text += fmt::format("; no share is stated for {}: the nominal rate", fmt::join(nominal, ", "));
  }
  return text;
}

Table link_table(const ClusterGraph& graph, const RouteTable& routes) {
  const RouteReport r = report_routes(routes);
  Table t;
  t.name = "links";
  t.title = "Links and what a uniform all-to-all puts on them (bandwidth per direction)";
  t.columns = {"link",
               "from",
               "to",
               "class",
               "bandwidth [GB/s]",
               "achievable [GB/s]",
               "latency [us]",
               "later phases [us]",
               "duplex",
               "peer-to-peer",
               "pairs",
               "time / bottleneck"};
  for (std::uint32_t l = 0; l < graph.links().size(); ++l) {
    const DirectedLink& x = graph.links()[l];
    std::string share = "n/a";
    if (r.uniform_link != kNone) {
      const double own = static_cast<double>(r.pairs_on_link[l]) / x.bandwidth.value;
      const double worst =
          static_cast<double>(r.pairs_on_link[r.uniform_link]) / routes.bandwidth[r.uniform_link];
      share = fmt::format("{:.3f}", own / worst);
    }
    t.rows.push_back(
        {x.name, graph.devices()[x.from].name, graph.devices()[x.to].name,
         std::string(scenario::kLinkClassNames[static_cast<std::size_t>(x.link_class)]),
         fmt::format("{:.3f}", x.bandwidth.value / x.achievable * 1e-9),
         fmt::format("{:.3f}", x.bandwidth.value * 1e-9), fmt::format("{:.3f}", x.latency.us()),
         fmt::format("{:.3f}", x.phase_latency.us()), x.shared_medium ? "shared" : "full",
         x.p2p ? "yes" : "no", fmt::format("{}", r.pairs_on_link[l]), share});
  }
  return t;
}

Table route_kind_table(const RouteTable& routes) {
  struct Kind {
    std::uint64_t pairs = 0;
    std::uint32_t src = 0, dst = 0;
  };
  // Widest first: bandwidth counts negative.
  using Key = std::tuple<double, std::size_t, std::int64_t, std::uint8_t, std::uint8_t>;
  std::map<Key, Kind> kinds;
  for (std::uint32_t i = 0; i < routes.endpoints; ++i) {
    for (std::uint32_t j = 0; j < routes.endpoints; ++j) {
      if (i == j) {
        continue;
      }
      double narrow = std::numeric_limits<double>::infinity();
      for (const std::uint32_t l : routes.links_of(i, j)) {
        narrow = std::min(narrow, routes.bandwidth[l]);
      }
      const std::size_t p = routes.pair(i, j);
      Kind& kind = kinds[{-narrow, routes.links_of(i, j).size(), routes.latency_ps[p],
                          routes.staged[p], routes.through_gpu[p]}];
      if (kind.pairs++ == 0) {
        kind.src = i;
        kind.dst = j;
      }
    }
  }
  Table t;
  t.name = "routes";
  t.title = "Kinds of routes between GPUs";
  t.columns = {"pairs", "hops", "narrowest [GB/s]", "latency [us]", "by", "first pair's path"};
  for (const auto& [key, kind] : kinds) {
    const auto& [negative, hops, latency, staged, forwarded] = key;
    std::string path;
    for (const std::uint32_t l : routes.links_of(kind.src, kind.dst)) {
      path += (path.empty() ? "" : " ") + routes.link_name[l];
    }
    t.rows.push_back({fmt::format("{}", kind.pairs), fmt::format("{}", hops),
                      fmt::format("{:.3f}", -negative * 1e-9),
                      fmt::format("{:.3f}", SimTime::from_ps(latency).us()),
                      staged != 0      ? "host memory"
                      : forwarded != 0 ? "another GPU"
                                       : "switches",
                      path});
  }
  return t;
}

Table topology_table(const ClusterGraph& graph, const RouteTable& routes) {
  const RouteReport r = report_routes(routes);
  Table t;
  t.name = "topology";
  t.title = "Topology";
  t.columns = {"figure", "value", "unit"};
  const auto row = [&](const char* name, std::string value, const char* unit) {
    t.rows.push_back({name, std::move(value), unit});
  };
  row("GPUs", fmt::format("{}", graph.gpus().size()), "");
  row("devices", fmt::format("{}", graph.devices().size()), "");
  row("directed links", fmt::format("{}", graph.links().size()), "");
  if (graph.gpus().size() >= 2) {
    const Bisection b = bisection(graph);
    t.notes.push_back(rates_in_words(graph));
    row("bisection, one direction", fmt::format("{:.3f}", b.capacity.value * 1e-9), "GB/s");
    if (!b.exact) {
      t.notes.emplace_back("bisection: upper bound, contiguous halves only");
    }
  }
  if (r.narrow_link != kNone) {
    row("longest route", fmt::format("{}", r.longest_hops), "hops");
    row("longest path latency", fmt::format("{:.3f}", r.longest_latency.us()), "us");
    row("narrowest route",
        fmt::format("{} > {} by {}", routes.endpoint_name[r.narrow_src],
                    routes.endpoint_name[r.narrow_dst], routes.link_name[r.narrow_link]),
        "");
    row("narrowest route bandwidth", fmt::format("{:.3f}", r.narrow_bandwidth.value * 1e-9),
        "GB/s");
    row("bottleneck of a uniform all-to-all", routes.link_name[r.uniform_link], "");
    row("each GPU sends then", fmt::format("{:.3f}", r.uniform_per_gpu.value * 1e-9), "GB/s");
    row("pairs staged through host memory", fmt::format("{}", r.staged_pairs), "");
    row("pairs forwarded by a GPU", fmt::format("{}", r.through_gpu_pairs), "");
  }
  return t;
}

}  // namespace switchyard::cluster
