// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <set>
#include <type_traits>
#include <utility>

#include "engine/base/nearest_name.hpp"
#include "sim/run/columns.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::run {
namespace {

/// Steps are numbered with 32 bits, kNone excepted.
constexpr std::uint64_t kMostSteps = kNone - 1;
/// What the writer packs together, about (file_writer.cpp).
constexpr std::uint64_t kChunkBytes = 128 << 10;

template <class T>
using Stored = std::conditional_t<std::is_enum_v<T> || std::is_same_v<T, bool>, std::uint8_t, T>;
template <class V>
using Element = typename std::remove_cvref_t<V>::value_type;

std::string layer_name(std::size_t layer) { return fmt::format("layer_{:05}", layer); }

bool finite_or_no_data(double v) { return std::isnan(v) || std::isfinite(v); }

}  // namespace

struct RunReader::State {
  State(const std::filesystem::path& path, const h5::ReadOptions& options)
      : file(path, run_schema(), options) {}

  h5::FileReader file;
  RunData base;
  std::uint64_t bytes = 0;       // Of values read.
  std::uint64_t base_bytes = 0;  // Of those, by the constructor.

  // Extents.
  [[nodiscard]] std::uint64_t gpus() const { return base.inventory.gpus.size(); }
  [[nodiscard]] std::uint64_t links() const { return base.inventory.links.size(); }
  [[nodiscard]] std::uint64_t layers() const { return base.inventory.moe_layers.size(); }
  [[nodiscard]] std::uint64_t experts() const { return base.inventory.experts; }
  [[nodiscard]] std::uint64_t steps() const { return base.totals.steps; }

  template <class T>
  std::vector<T> read(const std::string& name) {
    std::vector<T> v = file.read<T>(name);
    bytes += v.size() * sizeof(T);
    return v;
  }
  template <class T>
  std::vector<T> rows(const std::string& name, std::uint64_t first, std::uint64_t count) {
    std::vector<T> v = file.read_rows<T>(name, first, count);
    bytes += v.size() * sizeof(T);
    return v;
  }
  std::vector<std::string> strings(const std::string& name) {
    std::vector<std::string> v = file.strings(name);
    for (const std::string& s : v) bytes += s.size();
    return v;
  }

  /// Calls file.fail for the first value that does not pass. `width` values make a row, the first
  /// row is `first`.
  template <class T, class Check>
  void check(const std::string& name, const std::vector<T>& values, Check&& good,
             std::string_view want, std::uint64_t width = 1, std::uint64_t first = 0) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!good(values[i])) {
        file.fail(name, first + i / std::max<std::uint64_t>(width, 1),
                  fmt::format("{}; expected {}", values[i], want));
      }
    }
  }
  template <class T>
  void check_index(const std::string& name, const std::vector<T>& values, std::uint64_t size,
                   bool none, std::string_view of, std::uint64_t width = 1,
                   std::uint64_t first = 0) const {
    if constexpr (std::is_unsigned_v<T>) {
      check(
          name, values, [=](T v) { return v < size || (none && v == kNone); },
          fmt::format("less than {} ({})", size, of), width, first);
    } else {
      SWITCHYARD_ASSERT(false, name + " is not an index");
    }
  }
  /// Checks what follows from the type alone: times and ids are what they are, floats finite or
  /// NaN and not negative, signed integers not negative.
  template <class T>
  void check_plain(const std::string& name, const std::vector<T>& values, std::uint64_t width = 1,
                   std::uint64_t first = 0) const {
    if constexpr (std::is_floating_point_v<T>) {
      check(
          name, values, [](T v) { return std::isnan(v) || (std::isfinite(v) && v >= 0); },
          "a finite number that is not negative, or NaN", width, first);
    } else if constexpr (std::is_signed_v<T>) {
      check(
          name, values, [](T v) { return v >= 0; }, "a number that is not negative", width, first);
    }
  }

  /// The dataset must be there, with its outermost dimension `rows` where said.
  void need(const std::string& name) const {
    if (!file.has(name)) {
      file.fail(name, fmt::format("missing, but the run's detail is \"{}\"",
                                  kDetailNames[static_cast<std::size_t>(base.meta.detail)]));
    }
  }
  void need_shape(const std::string& name, const std::vector<std::uint64_t>& want) const {
    need(name);
    const std::vector<std::uint64_t> got = file.shape(name);
    if (got != want) {
      file.fail(name, fmt::format("has the shape [{}], expected [{}]", fmt::join(got, ", "),
                                  fmt::join(want, ", ")));
    }
  }
  void need_detail(const char* block, Detail needed) const {
    if (base.meta.detail < needed) {
      throw InputError(file.path().string(),
                       fmt::format("{} are not in a run with detail = \"{}\"", block,
                                   kDetailNames[static_cast<std::size_t>(base.meta.detail)]),
                       fmt::format("simulate with run.detail = \"{}\"",
                                   kDetailNames[static_cast<std::size_t>(needed)]));
    }
  }
  void need_range(std::uint64_t first, std::uint64_t count) const {
    if (first > steps() || count > steps() - first) {
      throw InputError(file.path().string(), fmt::format("steps {} to {} asked for; the run has {}",
                                                         first, first + count, steps()));
    }
  }

  template <class Row, class T>
  std::vector<Stored<T>> read_column(std::vector<Row>& out, const std::string& name, T Row::*member,
                                     std::uint64_t first, std::uint64_t count) {
    std::vector<Stored<T>> values = rows<Stored<T>>(name, first, count);
    out.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      out[i].*member = static_cast<T>(values[i]);
    }
    return values;
  }

  template <class T, std::size_t N>
  T named(const std::string& name, const std::array<std::string_view, N>& names) const {
    const std::string text = file.text_attribute(name);
    for (std::size_t i = 0; i < N; ++i) {
      if (names[i] == text) return static_cast<T>(i);
    }
    file.fail("attribute " + name,
              fmt::format("\"{}\" is not one of: {}", text, fmt::join(names, ", ")));
  }
  template <std::size_t N>
  void check_names(const std::string& name, const std::array<std::string_view, N>& want) {
    const std::vector<std::string> got = strings(name);
    for (std::size_t i = 0; i < N; ++i) {
      if (got[i] != want[i]) {
        file.fail(name, i, fmt::format("\"{}\"; expected \"{}\"", got[i], want[i]));
      }
    }
  }
  std::uint32_t small_attribute(const std::string& name) const {
    const std::uint64_t v = file.u64_attribute(name);
    if (v >= kNone) file.fail("attribute " + name, fmt::format("{} is too large", v));
    return static_cast<std::uint32_t>(v);
  }

  void need_layer(std::uint32_t layer) const;
  [[nodiscard]] std::uint64_t width_of(StepColumn column) const {
    switch (column) {
      case StepColumn::kGpuPhase:
        return gpus() * kPhases;
      case StepColumn::kGpuMemory:
        return gpus() * kMemoryCategories;
      case StepColumn::kGpuMemoryPeak:
        return gpus();
      case StepColumn::kLinkBytes:
        return links();
      default:
        return experts();
    }
  }
  /// Name without its ending, and width.
  [[nodiscard]] std::pair<std::string, std::uint64_t> series_place(LodSeries series,
                                                                   std::uint32_t layer) const {
    const auto expert = [&](const char* name) {
      return std::pair(
          fmt::format("lod_expert/{}/{}", layer == kNone ? "all" : layer_name(layer), name),
          experts());
    };
    const auto plain = [&](const char* name, std::uint64_t width) {
      SWITCHYARD_ASSERT(layer == kNone, "a layer of a series without layers");
      return std::pair(fmt::format("lod/{}", name), width);
    };
    switch (series) {
      case LodSeries::kSteps:
        return plain("steps", kStepSeries);
      case LodSeries::kStepStart:
        return plain("step_start", 1);
      case LodSeries::kGpuPhase:
        return plain("gpu_phase", gpus() * kPhases);
      case LodSeries::kLinkBytes:
        return plain("link_bytes", links());
      case LodSeries::kLinkUse:
        return plain("link_use", links());
      case LodSeries::kExpertKept:
        return expert("kept");
      case LodSeries::kExpertOverflow:
        return expert("overflow");
      case LodSeries::kExpertFill:
        break;
    }
    return expert("fill");
  }

  void read_meta();
  void read_inventory();
  void read_metrics();
  Totals read_totals();
  void check_blocks() const;
  void check_lod(const std::string& name, std::uint64_t width) const;

  static bool good_bin(auto v) {
    if constexpr (std::is_floating_point_v<decltype(v)>) {
      return std::isfinite(v) && v >= 0;
    } else {
      return v >= 0;
    }
  }
  /// Rows at … at + bins − 1 of a series' datasets.
  template <class T, class Sum>
  typename Lod<T, Sum>::Level read_bins(const std::string& name, std::uint64_t width,
                                        std::uint64_t at, std::uint64_t bins, bool max, bool sum) {
    typename Lod<T, Sum>::Level level;
    if (width == 0) return level;
    const auto good = [](auto v) { return good_bin(v); };
    if (max) {
      level.max = rows<T>(name + "_max", at, bins);
      level.flag = rows<std::uint8_t>(name + "_flag", at, bins);
      check(name + "_max", level.max, good, "a number that is not negative", width, at);
      check(
          name + "_flag", level.flag, [](std::uint8_t v) { return v <= 1; }, "0 or 1", width, at);
    }
    if (sum) {
      level.sum = rows<Sum>(name + "_sum", at, bins);
      check(name + "_sum", level.sum, good, "a number that is not negative", width, at);
    }
    return level;
  }
  template <class T, class Sum>
  void read_lod(Lod<T, Sum>& lod, const std::string& name, std::uint64_t width,
                std::size_t finest) {
    lod = Lod<T, Sum>::restored(static_cast<std::size_t>(width), steps());
    std::uint64_t at = 0;
    const std::size_t top = lod_levels(steps());
    for (std::size_t l = top; l >= std::max<std::size_t>(std::min(finest, top), 1); --l) {
      const std::uint64_t bins = lod_bins(steps(), l);
      lod.set_level(l, read_bins<T, Sum>(name, width, at, bins, true, true));
      at += bins;
    }
  }
  void read_expert_lod(ExpertLod& lod, const std::string& group, std::size_t finest) {
    internal::expert_lods(lod, [&](const char* name, auto& one) {
      read_lod(one, fmt::format("lod_expert/{}/{}", group, name), experts(), finest);
    });
  }
  ExpertSteps read_experts(const std::string& group, std::uint64_t first, std::uint64_t count) {
    need_detail("expert x step numbers", Detail::kSteps);
    need_range(first, count);
    ExpertSteps x;
    if (experts() == 0) return x;
    internal::expert_columns(x, [&](const char* column, auto& v) {
      const std::string name = fmt::format("expert/{}/{}", group, column);
      v = rows<Element<decltype(v)>>(name, first, count);
      check_plain(name, v, experts(), first);
    });
    return x;
  }
};

void RunReader::State::read_meta() {
  RunMeta& m = base.meta;
  internal::meta_texts(m,
                       [this](const char* name, std::string& v) { v = file.text_attribute(name); });
  m.detail = named<Detail>("detail", kDetailNames);
  m.seed = file.u64_attribute("seed");
  m.scenario_text = file.text("scenario");
  bytes += m.scenario_text.size();
  base.notes = strings("notes");
  base.cohesion = file.has("step/cohesion");
  if (base.cohesion != file.has("step/cohesion_baseline")) {
    file.fail("step/cohesion", "cohesion and cohesion_baseline are present together");
  }
  internal::counters(base.totals,
                     [this](const char* name, std::uint64_t& v) { v = file.u64_attribute(name); });
  if (steps() > kMostSteps) {
    file.fail("attribute steps", fmt::format("{} is too large", steps()));
  }
  check_names("names/phases", kPhaseNames);
  check_names("names/memory_categories", kMemoryCategoryNames);
  check_names("names/step_kinds", kStepKindNames);
  check_names("names/straggler_reasons", kStragglerReasonNames);
  check_names("names/request_outcomes", kRequestOutcomeNames);
  check_names("names/event_kinds", kEventKindNames);
  check_names("names/step_series", kStepSeriesNames);
}

void RunReader::State::read_inventory() {
  Inventory& inv = base.inventory;
  const auto texts = [this](auto& items, const std::string& name, auto member) {
    std::vector<std::string> v = strings(name);
    items.resize(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) items[i].*member = std::move(v[i]);
  };
  texts(inv.gpus, "gpu/name", &GpuInfo::name);
  if (inv.gpus.empty()) file.fail("gpu/name", "the run has no GPU");
  const std::uint64_t g = gpus();
  (void)read_column(inv.gpus, "gpu/node", &GpuInfo::node, 0, g);
  (void)read_column(inv.gpus, "gpu/memory", &GpuInfo::memory_bytes, 0, g);
  if (file.has("gpu/engine")) {
    const auto engines = read_column(inv.gpus, "gpu/engine", &GpuInfo::engine, 0, g);
    for (std::size_t i = 0; i < engines.size(); ++i) {
      const std::uint32_t least = i == 0 ? 0 : engines[i - 1];
      if (engines[i] != least && (i == 0 || engines[i] != least + 1)) {
        file.fail("gpu/engine", i, fmt::format("{} does not ascend from 0 by ones", engines[i]));
      }
    }
  }
  const std::vector<double> hbm = read<double>("gpu/hbm");
  const std::vector<double> peak = read<double>("gpu/peak");
  const auto rate = [](double v) { return std::isfinite(v) && v >= 0; };
  check("gpu/hbm", hbm, rate, "a finite rate that is not negative");
  check("gpu/peak", peak, rate, "a finite rate that is not negative");
  for (std::size_t i = 0; i < g; ++i) {
    inv.gpus[i].hbm.value = hbm[i];
    inv.gpus[i].peak.value = peak[i];
  }
  texts(inv.links, "link/name", &LinkInfo::name);
  texts(inv.links, "link/from", &LinkInfo::from);
  texts(inv.links, "link/to", &LinkInfo::to);
  texts(inv.links, "link/class", &LinkInfo::link_class);
  const std::vector<double> bandwidth = read<double>("link/bandwidth");
  check(
      "link/bandwidth", bandwidth, [](double v) { return std::isfinite(v) && v > 0; },
      "a finite positive rate");
  for (std::size_t i = 0; i < bandwidth.size(); ++i) inv.links[i].bandwidth.value = bandwidth[i];

  inv.experts = small_attribute("experts");
  inv.top_k = small_attribute("top_k");
  inv.moe_layers = read<std::uint32_t>("moe_layers");
  for (std::size_t i = 1; i < inv.moe_layers.size(); ++i) {
    if (inv.moe_layers[i] <= inv.moe_layers[i - 1]) {
      file.fail("moe_layers", i, fmt::format("{} does not ascend", inv.moe_layers[i]));
    }
  }
  const std::vector<std::uint64_t> shape = file.shape("placement");
  if (shape[1] != experts() || shape[2] == 0 || shape[2] >= kNone) {
    file.fail("placement", fmt::format("has the shape [{}], expected [{}, {}, at least 1]",
                                       fmt::join(shape, ", "), layers(), experts()));
  }
  inv.replicas = static_cast<std::uint32_t>(shape[2]);
  inv.placement = read<std::uint32_t>("placement");
  check_index("placement", inv.placement, g, true, "GPUs", shape[1] * shape[2]);
  for (std::size_t i = 0; i < inv.placement.size(); i += inv.replicas) {
    if (inv.placement[i] == kNone) {
      file.fail("placement", i / (shape[1] * shape[2]), "an expert without a GPU");
    }
  }
}

Totals RunReader::State::read_totals() {
  Totals t = base.totals;  // The counters.
  t.gpu_memory = read<std::uint64_t>("totals/gpu_memory");
  t.gpu_memory_peak = read<std::uint64_t>("totals/gpu_memory_peak");
  t.expert_kept = read<std::uint64_t>("totals/expert_kept");
  t.expert_overflow = read<std::uint64_t>("totals/expert_overflow");
  if (file.has("totals/expert_time")) {
    t.expert_time_ps = read<std::int64_t>("totals/expert_time");
    check_plain("totals/expert_time", t.expert_time_ps, experts());
  }
  t.reroute_experts = read<std::uint64_t>("totals/reroute_experts");
  t.reroute_gpus = read<std::uint64_t>("totals/reroute_gpus");
  t.pair_bytes = read<std::uint64_t>("totals/pair_bytes");
  t.gpu_phase_ps = read<std::int64_t>("totals/gpu_phase");
  check_plain("totals/gpu_phase", t.gpu_phase_ps, kPhases);
  t.link_bytes = read<std::uint64_t>("totals/link_bytes");
  t.link_busy_ps = read<std::int64_t>("totals/link_busy");
  check_plain("totals/link_busy", t.link_busy_ps);
  return t;
}

void RunReader::State::read_metrics() {
  std::vector<std::string> names = strings("metric/name");
  const std::vector<double> values = read<double>("metric/value");
  std::vector<std::string> units = strings("metric/unit");
  check("metric/value", values, finite_or_no_data, "a finite number or NaN");
  std::set<std::string> seen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!seen.insert(names[i]).second) {
      file.fail("metric/name", i, fmt::format("\"{}\" stands twice", names[i]));
    }
    base.metrics.push_back({std::move(names[i]), values[i], std::move(units[i])});
  }
}

void RunReader::State::check_lod(const std::string& name, std::uint64_t width) const {
  if (width == 0) return;
  std::uint64_t bins = 0;
  for (std::size_t l = lod_levels(steps()); l >= 1; --l) bins += lod_bins(steps(), l);
  for (const char* part : {"_max", "_sum", "_flag"}) need_shape(name + part, {bins, width});
}

/// Presence and shapes of all blocks that the detail promises; the schema check has seen to types
/// and ranks. Cheap: no values are read.
void RunReader::State::check_blocks() const {
  const RunData shape_of;  // For the names of the columns only.
  const Detail detail = base.meta.detail;
  const std::uint64_t s = steps();
  const auto expert_group = [&](const std::string& group) {
    if (experts() == 0) return;
    internal::expert_columns(shape_of.experts, [&](const char* column, const auto&) {
      need_shape(fmt::format("expert/{}/{}", group, column), {s, experts()});
    });
  };
  const auto expert_lod = [&](const std::string& group) {
    internal::expert_lods(shape_of.lod.experts, [&](const char* column, const auto&) {
      check_lod(fmt::format("lod_expert/{}/{}", group, column), experts());
    });
  };
  check_lod("lod/steps", kStepSeries);
  check_lod("lod/step_start", 1);
  check_lod("lod/gpu_phase", gpus() * kPhases);
  check_lod("lod/link_bytes", links());
  check_lod("lod/link_use", links());
  expert_lod("all");
  if (detail >= Detail::kSteps) {
    internal::step_columns(
        [&](const char* column, auto) { need_shape(fmt::format("step/{}", column), {s}); });
    need_shape("step/phase", {s, kPhases});
    expert_group("all");
    need_shape("gpu_step/phase", {s, gpus(), kPhases});
    need_shape("gpu_step/bytes_out", {s, gpus()});
    need_shape("gpu_step/bytes_in", {s, gpus()});
    need_shape("gpu_step/memory", {s, gpus(), kMemoryCategories});
    need_shape("gpu_step/memory_peak", {s, gpus()});
    if (links() > 0) {
      need_shape("link_step/bytes", {s, links()});
      need_shape("link_step/busy", {s, links()});
    }
    internal::reroute_columns(shape_of.reroutes, [&](const char* column, const auto&) {
      need(fmt::format("reroute/{}", column));
    });
  }
  if (detail >= Detail::kLayers) {
    if (layers() > 0) {
      internal::layer_columns(shape_of.layer_steps, [&](const char* column, const auto&) {
        need_shape(fmt::format("layer/{}", column), {s, layers()});
      });
    }
    for (std::uint64_t l = 0; l < layers(); ++l) {
      expert_group(layer_name(l));
      expert_lod(layer_name(l));
    }
  }
  if (detail >= Detail::kTokens) {
    internal::token_columns(
        [&](const char* column, auto) { need(fmt::format("token/{}", column)); });
  }
}

RunReader::RunReader(const std::filesystem::path& path, const h5::ReadOptions& options)
    : state_(std::make_unique<State>(path, options)) {
  state_->read_meta();
  state_->read_inventory();
  state_->check_blocks();
  state_->read_metrics();
  state_->base_bytes = state_->bytes;
}
RunReader::~RunReader() = default;
RunReader::RunReader(RunReader&&) noexcept = default;
RunReader& RunReader::operator=(RunReader&&) noexcept = default;

const RunData& RunReader::base() const { return state_->base; }
std::uint64_t RunReader::bytes_read() const { return state_->bytes; }
Totals RunReader::read_totals() const { return state_->read_totals(); }

std::vector<StepScalars> RunReader::read_steps(std::uint64_t first, std::uint64_t count) const {
  State& s = *state_;
  s.need_detail("step numbers", Detail::kSteps);
  s.need_range(first, count);
  std::vector<StepScalars> out;
  internal::step_columns([&](const char* column, auto member) {
    const std::string name = fmt::format("step/{}", column);
    const auto values = s.read_column(out, name, member, first, count);
    const std::string_view c = column;
    if (c == "kind") {
      s.check_index(name, values, kStepKindNames.size(), false, "step kinds", 1, first);
    } else if (c == "warmup") {
      s.check_index(name, values, 2, false, "0 or 1", 1, first);
    } else if (c == "straggler_gpu") {
      s.check_index(name, values, s.gpus(), true, "GPUs", 1, first);
    } else if (c == "straggler_reason") {
      s.check_index(name, values, kStragglerReasonNames.size(), false, "reasons", 1, first);
    } else {
      s.check_plain(name, values, 1, first);
    }
  });
  if (s.base.cohesion) {
    const auto cosines = [&](const char* name, auto member) {
      const auto values = s.read_column(out, name, member, first, count);
      s.check(
          name, values, [](double v) { return std::isnan(v) || (v >= -1 && v <= 1); },
          "a cosine, or NaN", 1, first);
    };
    cosines("step/cohesion", &StepScalars::cohesion);
    cosines("step/cohesion_baseline", &StepScalars::cohesion_baseline);
  }
  const bool several = s.file.has("step/engine");
  if (several) {
    const auto engines = s.read_column(out, "step/engine", &StepScalars::engine, first, count);
    s.check_index("step/engine", engines, s.base.inventory.gpus.back().engine + 1U, false,
                  "replicas", 1, first);
  }
  const std::vector<std::int64_t> phases = s.rows<std::int64_t>("step/phase", first, count);
  s.check_plain("step/phase", phases, kPhases, first);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::copy_n(phases.begin() + static_cast<std::ptrdiff_t>(i * kPhases), kPhases,
                out[i].phase_ps.begin());
    if (out[i].end_ps < out[i].start_ps) {
      s.file.fail("step/end", first + i,
                  fmt::format("{} is before the start, {}", out[i].end_ps, out[i].start_ps));
    }
    const std::int64_t least = i == 0    ? out[i].start_ps
                               : several ? out[i - 1].start_ps
                                         : out[i - 1].end_ps;
    if (out[i].start_ps < least) {
      s.file.fail("step/start", first + i,
                  fmt::format("{} is before the {} of the step before, {}", out[i].start_ps,
                              several ? "start" : "end", least));
    }
  }
  return out;
}

LayerSteps RunReader::read_layers(std::uint64_t first, std::uint64_t count) const {
  State& s = *state_;
  s.need_detail("layer numbers", Detail::kLayers);
  s.need_range(first, count);
  LayerSteps x;
  if (s.layers() == 0) return x;
  internal::layer_columns(x, [&](const char* column, auto& v) {
    const std::string name = fmt::format("layer/{}", column);
    v = s.rows<Element<decltype(v)>>(name, first, count);
    s.check_plain(name, v, s.layers(), first);
  });
  s.check_index("layer/straggler_gpu", x.straggler_gpu, s.gpus(), true, "GPUs", s.layers(), first);
  s.check_index("layer/straggler_reason", x.straggler_reason, kStragglerReasonNames.size(), false,
                "reasons", s.layers(), first);
  return x;
}

ExpertSteps RunReader::read_experts(std::uint64_t first, std::uint64_t count) const {
  return state_->read_experts("all", first, count);
}

ExpertSteps RunReader::read_layer_experts(std::uint32_t layer, std::uint64_t first,
                                          std::uint64_t count) const {
  state_->need_detail("expert numbers of a layer", Detail::kLayers);
  if (layer >= state_->layers()) {
    throw InputError(
        state_->file.path().string(),
        fmt::format("MoE layer {} asked for; the run has {}", layer, state_->layers()));
  }
  return state_->read_experts(layer_name(layer), first, count);
}

GpuSteps RunReader::read_gpus(std::uint64_t first, std::uint64_t count) const {
  State& s = *state_;
  s.need_detail("GPU numbers", Detail::kSteps);
  s.need_range(first, count);
  GpuSteps x;
  x.phase_ps = s.rows<std::int64_t>("gpu_step/phase", first, count);
  s.check_plain("gpu_step/phase", x.phase_ps, s.gpus() * kPhases, first);
  x.bytes_out = s.rows<std::uint64_t>("gpu_step/bytes_out", first, count);
  x.bytes_in = s.rows<std::uint64_t>("gpu_step/bytes_in", first, count);
  x.memory = s.rows<std::uint64_t>("gpu_step/memory", first, count);
  x.memory_peak = s.rows<std::uint64_t>("gpu_step/memory_peak", first, count);
  return x;
}

LinkSteps RunReader::read_links(std::uint64_t first, std::uint64_t count) const {
  State& s = *state_;
  s.need_detail("link numbers", Detail::kSteps);
  s.need_range(first, count);
  LinkSteps x;
  if (s.links() == 0) return x;
  x.bytes = s.rows<std::uint64_t>("link_step/bytes", first, count);
  x.busy_ps = s.rows<std::int64_t>("link_step/busy", first, count);
  s.check_plain("link_step/busy", x.busy_ps, s.links(), first);
  return x;
}

namespace {

struct ColumnPlace {
  const char* group;  ///< Null: expert/<layer>/.
  const char* name;
};
ColumnPlace place_of(StepColumn column) {
  switch (column) {
    case StepColumn::kKept:
      return {nullptr, "kept"};
    case StepColumn::kOverflow:
      return {nullptr, "overflow"};
    case StepColumn::kReroutedIn:
      return {nullptr, "rerouted_in"};
    case StepColumn::kQueued:
      return {nullptr, "queued"};
    case StepColumn::kDropped:
      return {nullptr, "dropped"};
    case StepColumn::kCapacity:
      return {nullptr, "capacity"};
    case StepColumn::kFill:
      return {nullptr, "fill"};
    case StepColumn::kGpuPhase:
      return {"gpu_step", "phase"};
    case StepColumn::kGpuMemory:
      return {"gpu_step", "memory"};
    case StepColumn::kGpuMemoryPeak:
      return {"gpu_step", "memory_peak"};
    case StepColumn::kLinkBytes:
      break;
  }
  return {"link_step", "bytes"};
}

}  // namespace

void RunReader::State::need_layer(std::uint32_t layer) const {
  if (layer == kNone) return;
  need_detail("numbers of a layer", Detail::kLayers);
  if (layer >= layers()) {
    throw InputError(file.path().string(),
                     fmt::format("MoE layer {} asked for; the run has {}", layer, layers()));
  }
}

template <class T>
std::vector<T> RunReader::read_column(StepColumn column, std::uint32_t layer, std::uint64_t first,
                                      std::uint64_t count) const {
  State& s = *state_;
  s.need_detail("step numbers", Detail::kSteps);
  s.need_range(first, count);
  const ColumnPlace at = place_of(column);
  SWITCHYARD_ASSERT(at.group == nullptr || layer == kNone, "a layer of a column without layers");
  s.need_layer(layer);
  const std::uint64_t width = s.width_of(column);
  if (width == 0) return {};
  const std::string name =
      at.group != nullptr
          ? fmt::format("{}/{}", at.group, at.name)
          : fmt::format("expert/{}/{}", layer == kNone ? "all" : layer_name(layer), at.name);
  std::vector<T> values = s.rows<T>(name, first, count);
  s.check_plain(name, values, width, first);
  return values;
}
template std::vector<std::uint32_t> RunReader::read_column(StepColumn, std::uint32_t, std::uint64_t,
                                                           std::uint64_t) const;
template std::vector<float> RunReader::read_column(StepColumn, std::uint32_t, std::uint64_t,
                                                   std::uint64_t) const;
template std::vector<std::int64_t> RunReader::read_column(StepColumn, std::uint32_t, std::uint64_t,
                                                          std::uint64_t) const;
template std::vector<std::uint64_t> RunReader::read_column(StepColumn, std::uint32_t, std::uint64_t,
                                                           std::uint64_t) const;

std::uint64_t RunReader::rows_together(StepColumn column) const {
  const std::uint64_t element = place_of(column).group == nullptr ? 4 : 8;
  const std::uint64_t width = state_->width_of(column);
  return std::max<std::uint64_t>(1, kChunkBytes / std::max<std::uint64_t>(1, width * element));
}

template <class T, class Sum>
typename Lod<T, Sum>::Level RunReader::read_lod_bins(LodSeries series, std::uint32_t layer,
                                                     LodPart part, std::size_t level,
                                                     std::uint64_t first,
                                                     std::uint64_t count) const {
  State& s = *state_;
  const std::size_t top = lod_levels(s.steps());
  const std::uint64_t bins = level >= 1 && level <= top ? lod_bins(s.steps(), level) : 0;
  if (first > bins || count > bins - first) {
    throw InputError(s.file.path().string(),
                     fmt::format("bins {} to {} of level {} asked for; it has {}", first,
                                 first + count, level, bins));
  }
  s.need_layer(layer);
  std::uint64_t at = first;
  for (std::size_t l = top; l > level; --l) at += lod_bins(s.steps(), l);
  const auto [name, width] = s.series_place(series, layer);
  return s.read_bins<T, Sum>(name, width, at, count, part == LodPart::kMaxAndFlag,
                             part == LodPart::kSum);
}
template Lod<double, double>::Level RunReader::read_lod_bins<double, double>(
    LodSeries, std::uint32_t, LodPart, std::size_t, std::uint64_t, std::uint64_t) const;
template Lod<float, double>::Level RunReader::read_lod_bins<float, double>(LodSeries, std::uint32_t,
                                                                           LodPart, std::size_t,
                                                                           std::uint64_t,
                                                                           std::uint64_t) const;
template Lod<std::int64_t, std::int64_t>::Level
    RunReader::read_lod_bins<std::int64_t, std::int64_t>(LodSeries, std::uint32_t, LodPart,
                                                         std::size_t, std::uint64_t,
                                                         std::uint64_t) const;
template Lod<std::uint64_t, std::uint64_t>::Level
    RunReader::read_lod_bins<std::uint64_t, std::uint64_t>(LodSeries, std::uint32_t, LodPart,
                                                           std::size_t, std::uint64_t,
                                                           std::uint64_t) const;
template Lod<std::uint32_t, std::uint64_t>::Level
    RunReader::read_lod_bins<std::uint32_t, std::uint64_t>(LodSeries, std::uint32_t, LodPart,
                                                           std::size_t, std::uint64_t,
                                                           std::uint64_t) const;

RerouteSteps RunReader::read_reroutes() const {
  State& s = *state_;
  s.need_detail("reroutes per step", Detail::kSteps);
  RerouteSteps x;
  internal::reroute_columns(x, [&](const char* column, auto& v) {
    v = s.read<std::uint32_t>(fmt::format("reroute/{}", column));
  });
  s.check_index("reroute/step", x.step, s.steps(), false, "steps");
  s.check_index("reroute/layer", x.layer, s.layers(), true, "MoE layers");
  s.check_index("reroute/from", x.from, s.experts(), false, "experts");
  s.check_index("reroute/to", x.to, s.experts(), false, "experts");
  for (std::size_t i = 1; i < x.step.size(); ++i) {
    if (x.step[i] < x.step[i - 1]) {
      s.file.fail("reroute/step", i, fmt::format("{} does not ascend", x.step[i]));
    }
  }
  return x;
}

std::vector<RequestRecord> RunReader::read_requests() const {
  State& s = *state_;
  std::vector<RequestRecord> out;
  const std::uint64_t n = s.file.extent("Requests");
  internal::request_columns([&](const char* column, auto member) {
    const std::string name = fmt::format("request/{}", column);
    const auto values = s.read_column(out, name, member, 0, n);
    const std::string_view c = column;
    if (c == "outcome") {
      s.check_index(name, values, kRequestOutcomeNames.size(), false, "outcomes");
    } else if (c == "arrival" || c == "first_token" || c == "end") {
      s.check(
          name, values, [](auto v) { return static_cast<std::int64_t>(v) >= -1; },
          "a time, or -1 for none");
    } else {
      s.check_plain(name, values);
    }
  });
  if (s.file.has("request/tier")) {
    internal::served_columns([&](const char* column, auto member) {
      const std::string name = fmt::format("request/{}", column);
      const auto values = s.read_column(out, name, member, 0, n);
      const std::string_view c = column;
      if (c == "replica") {
        s.check_index(name, values, s.base.inventory.gpus.back().engine + 1U, true, "replicas");
      } else if (c == "met_slo") {
        s.check_index(name, values, 2, false, "0 or 1");
      } else if (c == "scheduled") {
        s.check(
            name, values, [](auto v) { return static_cast<std::int64_t>(v) >= -1; },
            "a time, or -1 for none");
      }
    });
  }
  if (s.file.has("request/cached_tokens")) {
    internal::prefix_columns([&](const char* column, auto member) {
      const std::string name = fmt::format("request/{}", column);
      s.check_plain(name, s.read_column(out, name, member, 0, n));
    });
  }
  return out;
}

bool RunReader::has_served_requests() const { return state_->file.has("request/tier"); }

std::vector<TokenRecord> RunReader::read_tokens() const {
  State& s = *state_;
  s.need_detail("tokens", Detail::kTokens);
  std::vector<TokenRecord> out;
  const std::uint64_t n = s.file.extent("Tokens");
  internal::token_columns([&](const char* column, auto member) {
    const std::string name = fmt::format("token/{}", column);
    const auto values = s.read_column(out, name, member, 0, n);
    if (std::string_view(column) == "step") {
      s.check_index(name, values, s.steps(), false, "steps");
    } else {
      s.check_plain(name, values);
    }
  });
  return out;
}

std::vector<Event> RunReader::read_events() const {
  State& s = *state_;
  std::vector<Event> out;
  const std::uint64_t n = s.file.extent("Events");
  internal::event_columns([&](const char* column, auto member) {
    const std::string name = fmt::format("event/{}", column);
    const auto values = s.read_column(out, name, member, 0, n);
    const std::string_view c = column;
    if constexpr (std::is_unsigned_v<Element<decltype(values)>>) {
      if (c == "kind") {
        s.check_index(name, values, kEventKindNames.size(), false, "event kinds");
      } else if (c == "step") {
        s.check_index(name, values, s.steps(), true, "steps");
      } else if (c == "layer") {
        s.check_index(name, values, s.layers(), true, "MoE layers");
      } else if (c == "gpu") {
        s.check_index(name, values, s.gpus(), true, "GPUs");
      } else if (c == "expert") {
        s.check_index(name, values, s.experts(), true, "experts");
      } else {
        s.check_index(name, values, s.links(), true, "links");
      }
    } else if (c == "value") {
      s.check(
          name, values, [](auto v) { return finite_or_no_data(static_cast<double>(v)); },
          "a finite number or NaN");
    } else {
      s.check_plain(name, values);
    }
  });
  std::vector<std::string> text = s.strings("event/text");
  for (std::size_t i = 0; i < out.size(); ++i) out[i].text = std::move(text[i]);
  return out;
}

std::vector<CriticalEntry> RunReader::read_critical_path() const {
  State& s = *state_;
  std::vector<CriticalEntry> out;
  const std::uint64_t n = s.file.extent("Critical");
  internal::critical_columns([&](const char* column, auto member) {
    const std::string name = fmt::format("critical/{}", column);
    const auto values = s.read_column(out, name, member, 0, n);
    const std::string_view c = column;
    if constexpr (std::is_unsigned_v<Element<decltype(values)>>) {
      if (c == "step") {
        s.check_index(name, values, s.steps(), false, "steps");
      } else if (c == "layer") {
        s.check_index(name, values, s.layers(), true, "MoE layers");
      } else if (c == "phase") {
        s.check_index(name, values, kPhases, false, "phases");
      } else if (c == "gpu") {
        s.check_index(name, values, s.gpus(), true, "GPUs");
      } else {
        s.check_index(name, values, kStragglerReasonNames.size(), false, "reasons");
      }
    } else {
      s.check_plain(name, values);
    }
  });
  return out;
}

RunLod RunReader::read_lod(std::size_t finest) const {
  State& s = *state_;
  RunLod lod;
  s.read_lod(lod.steps, "lod/steps", kStepSeries, finest);
  s.read_lod(lod.step_start, "lod/step_start", 1, finest);
  s.read_lod(lod.gpu_phase, "lod/gpu_phase", s.gpus() * kPhases, finest);
  s.read_lod(lod.link_bytes, "lod/link_bytes", s.links(), finest);
  s.read_lod(lod.link_use, "lod/link_use", s.links(), finest);
  s.read_expert_lod(lod.experts, "all", finest);
  return lod;
}

ExpertLod RunReader::read_layer_lod(std::uint32_t layer, std::size_t finest) const {
  State& s = *state_;
  s.need_detail("levels of detail of a layer", Detail::kLayers);
  if (layer >= s.layers()) {
    throw InputError(s.file.path().string(),
                     fmt::format("MoE layer {} asked for; the run has {}", layer, s.layers()));
  }
  ExpertLod lod;
  s.read_expert_lod(lod, layer_name(layer), finest);
  return lod;
}

std::size_t RunReader::overview_level(std::uint64_t most_bytes) const {
  const State& s = *state_;
  // Bytes per bin: max + sum + flag of each series.
  const double bin = static_cast<double>(kStepSeries) * 17 + 17 +
                     static_cast<double>(s.gpus() * kPhases) * 17 +
                     static_cast<double>(s.links()) * (17 + 13) +
                     static_cast<double>(s.experts()) * (13 + 13 + 13);
  const std::size_t top = lod_levels(s.steps());
  double bytes = static_cast<double>(s.base_bytes);
  std::size_t level = top;
  for (std::size_t l = top; l >= 1; --l) {
    bytes += bin * static_cast<double>(lod_bins(s.steps(), l));
    if (bytes > static_cast<double>(most_bytes)) break;
    level = l;
  }
  return std::max<std::size_t>(level, 1);
}

RunLod RunReader::overview() const { return read_lod(overview_level()); }

RunData read_run(const std::filesystem::path& path, const RunParts& parts,
                 const h5::ReadOptions& options) {
  const RunReader reader(path, options);
  RunData run = reader.base();
  run.totals = reader.read_totals();
  const std::uint64_t n = reader.steps();
  const auto layers = static_cast<std::uint32_t>(run.inventory.moe_layers.size());
  if (reader.has(Detail::kSteps)) {
    if (parts.steps) run.steps = reader.read_steps(0, n);
    if (parts.experts) run.experts = reader.read_experts(0, n);
    if (parts.gpus) run.gpus = reader.read_gpus(0, n);
    if (parts.links) run.links = reader.read_links(0, n);
    if (parts.reroutes) run.reroutes = reader.read_reroutes();
  }
  if (reader.has(Detail::kLayers)) {
    if (parts.layers) run.layer_steps = reader.read_layers(0, n);
    for (std::uint32_t l = 0; parts.layer_experts && l < layers; ++l) {
      run.layer_experts.push_back(reader.read_layer_experts(l, 0, n));
    }
  }
  if (reader.has(Detail::kTokens) && parts.tokens) run.tokens = reader.read_tokens();
  if (parts.requests) {
    run.requests = reader.read_requests();
    run.serving = reader.has_served_requests();
  }
  if (parts.events) run.events = reader.read_events();
  if (parts.critical_path) run.critical_path = reader.read_critical_path();
  if (parts.lod) {
    run.lod = reader.read_lod(1);
    for (std::uint32_t l = 0; reader.has(Detail::kLayers) && l < layers; ++l) {
      run.lod.layers.push_back(reader.read_layer_lod(l, 1));
    }
  }
  return run;
}

}  // namespace switchyard::run
