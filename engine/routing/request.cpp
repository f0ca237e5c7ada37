// SPDX-License-Identifier: Apache-2.0
// What a policy makes of a request (route.hpp): M14's table entry, M17's keywords, M22's expert.
#include <fmt/format.h>

#include <filesystem>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/routing/route.hpp"

namespace switchyard {

std::optional<RoutingTable> load_table(RoutingPolicy& policy, const PolicyFiles& files,
                                       const GateSpec& gate, std::uint32_t moe_layers,
                                       const std::string& weight_hash) {
  TablePolicy& t = policy.table;
  if (!t.on()) {
    return std::nullopt;
  }
  const auto at = files.find("table.file");
  const std::filesystem::path path = at == files.end() ? std::filesystem::path(t.file) : at->second;
  const std::string text = read_file(path);
  const std::string hash = hex64(hash64(text));
  if (t.hash != "any" && t.hash != hash) {
    throw InputError("policy.table.hash",
                     fmt::format("{} has the hash {}, the policy states {}", t.file, hash, t.hash),
                     "the file was replaced since, or another one was meant");
  }
  RoutingTable table = RoutingTable::from_text(text, path.string());
  const TableSpec& spec = table.spec();
  if (spec.experts != gate.experts || spec.top_k != gate.top_k || spec.layers != moe_layers) {
    throw InputError(
        path.string(),
        fmt::format("the table is of {} MoE layers, {} experts, top-{}; the model has {}, {}, {}",
                    spec.layers, spec.experts, spec.top_k, moe_layers, gate.experts, gate.top_k));
  }
  if (!weight_hash.empty() && spec.weight_hash != "any" && spec.weight_hash != weight_hash) {
    throw InputError(
        path.string(),
        fmt::format("the table was built with the weights {} of {}; the model's are {}",
                    spec.weight_hash, spec.model, weight_hash),
        "build it from a trace of this model, or write weight_hash=any in its first "
        "line");
  }
  t.hash = hash;
  return table;
}

RequestInfo request_info(const RoutingPolicy& policy, const RoutingTable* table,
                         std::span<const std::uint32_t> tokens, std::string_view text,
                         std::uint16_t expert) {
  SWITCHYARD_ASSERT((table != nullptr) == policy.table.on(), "policy.table needs its table");
  RequestInfo info;
  if (policy.pinned.on()) {
    info.expert = expert;
    if (expert == kNoExpert && policy.pinned.requests == PinnedRequests::kAll) {
      info.expert = static_cast<std::uint16_t>(*policy.pinned.expert);
    }
  }
  if (table != nullptr) {
    if (const auto hit = table->find(table_key(table->spec().prefix, tokens, text))) {
      info.table_entry = hit->entry;
      info.table_collision = hit->collision;
    }
  }
  info.soft =
      policy.soft.on() && (policy.soft.all_requests || holds_keyword(policy.soft.keywords, text));
  return info;
}

void require_text(const RoutingPolicy& policy, const RoutingTable* table, std::string_view text,
                  const std::string& where) {
  if (!text.empty()) {
    return;
  }
  if (policy.soft.on() && !policy.soft.all_requests) {
    throw InputError(where, "policy.soft.keywords needs the prompts' texts, which are not recorded",
                     "trace the prompts again, or use soft.requests = \"all\"");
  }
  if (table != nullptr && table->spec().prefix != TablePrefix::kTokens) {
    throw InputError(where, "the table's keys need the prompts' texts, which are not recorded",
                     "build the table by tokens");
  }
}

}  // namespace switchyard
