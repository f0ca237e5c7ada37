// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/import.hpp"

#include <fmt/format.h>

#include <memory>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "experiments/cli/named_file.hpp"
#include "experiments/import/nccl_xml.hpp"
#include "experiments/import/topo_m.hpp"
#include "sim/cluster/cluster_graph.hpp"
#include "sim/cluster/route_table.hpp"
#include "sim/scenario/hardware_reader.hpp"
#include "sim/scenario/tree.hpp"

namespace switchyard::cli {

int import_topo_m(const ImportOptions& options) {
  if (options.like.empty()) {
    throw InputError("--like", "is missing",
                     "name a hardware with the same GPU, e.g. hgx_h100, or its file");
  }
  importers::TopoMOptions topo;
  topo.name = options.output.stem().string();
  if (topo.name.empty() ||
      topo.name.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") !=
          std::string::npos) {
    throw InputError("-o", fmt::format("\"{}\" is no name of a hardware", topo.name),
                     "use letters, digits, _, - and .");
  }
  if (options.output.extension() != ".toml") {
    throw InputError("-o", "a hardware file ends in .toml");
  }
  topo.like = scenario::read_hardware(find_named(options.like, "hardware", "--like").string());
  if (!options.numa.empty()) {
    topo.numa = parse_rate(options.numa, "--numa", "numa");
    if (!(topo.numa->value > 0)) {
      throw InputError("--numa", fmt::format("numa = \"{}\". Violated: numa > 0", options.numa));
    }
  }
  const std::string given = read_file(options.input), where = options.input.string();
  importers::NcclXml xml;
  const bool is_xml = options.kind == "nccl-xml";
  if (is_xml) xml = importers::hardware_from_nccl_xml(given, where, topo);
  const std::string text = is_xml ? xml.toml : importers::hardware_from_topo_m(given, where, topo);
  // What is written must be readable: it is read before it is written.
  auto source = std::make_shared<scenario::Source>();
  source->name = options.output.string();
  scenario::Context context;
  const scenario::HardwareSpec hardware =
      scenario::hardware_from(context, scenario::parse_toml(text, source), topo.name);
  static_cast<void>(cluster::build_cluster(hardware).routes());
  write_file(options.output, text);
  if (!options.quiet) {
    Table table;
    table.name = "import";
    table.title = "Hardware file";
    table.columns = {"quantity", "value"};
    table.rows = {{"GPUs", std::to_string(hardware.gpu_count())},
                  {"devices", std::to_string(hardware.devices.size())},
                  {"cables", std::to_string(hardware.links.size())}};
    if (is_xml) {
      table.rows.push_back({"PCI elements left out", std::to_string(xml.left_out)});
      table.rows.push_back({"PCIe links with the rate of --like", std::to_string(xml.unstated)});
      if (!xml.nvlink) {
        table.notes.emplace_back(
            "the XML states no NVLink, so GPUs talk over PCIe here; NCCL adds NVLink when it runs: "
            "import what NCCL_TOPO_DUMP_FILE writes then");
      }
    }
    table.notes.push_back(fmt::format("next: switchyard inspect {}", options.output.string()));
    fmt::print("{}", render(table, options.format));
  }
  return 0;
}

}  // namespace switchyard::cli
