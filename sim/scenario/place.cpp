// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario/place.hpp"

#include <array>
#include <string>
#include <string_view>

namespace switchyard::scenario {
namespace {

/// The value with this key, else the first one below it, that the user wrote.
const ResolvedValue* written(const Scenario& scenario, std::string_view key) {
  if (key.empty()) return nullptr;
  const std::string below = std::string(key) + ".";
  const ResolvedValue* first = nullptr;
  for (const ResolvedValue& v : scenario.values) {
    if (v.origin == "default" || v.origin.empty()) continue;
    if (v.key == key) return &v;
    if (first == nullptr && v.key.starts_with(below)) first = &v;
  }
  return first;
}

}  // namespace

InputError with_place(const Scenario& scenario, const InputError& error) {
  const std::string& where = error.where();
  const std::string_view key = std::string_view(where).substr(0, where.find(" = "));
  std::string_view closer = error.message();
  closer = closer.substr(0, closer.find_first_of(" :"));
  const bool within =
      closer.starts_with(key) && closer.size() > key.size() && closer[key.size()] == '.';
  const ResolvedValue* value = within ? written(scenario, closer) : nullptr;
  if (value == nullptr) value = written(scenario, key);
  if (value == nullptr && where == "simulated time") {
    return {scenario.path, where + ": " + error.message(), error.hint()};
  }
  if (value == nullptr) return error;
  return {value->origin, within ? error.message() : where + ": " + error.message(), error.hint()};
}

}  // namespace switchyard::scenario
