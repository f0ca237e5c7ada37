// SPDX-License-Identifier: Apache-2.0
#include "engine/routing/static_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/base/hash.hpp"
#include "engine/routing/text_fields.hpp"

namespace switchyard {
namespace {

using text_fields::Name;

constexpr std::string_view kMagic = "switchyard-routing-table=1 ";
constexpr std::array kPrefixes{Name<TablePrefix>{"tokens", TablePrefix::kTokens},
                               Name<TablePrefix>{"characters", TablePrefix::kCharacters},
                               Name<TablePrefix>{"bytes", TablePrefix::kBytes}};
constexpr std::array<std::string_view, 7> kHeaderKeys{
    "prefix", "digest_bits", "layers", "experts", "top_k", "model", "weight_hash"};

/// Bytes of the first `count` code points.
std::size_t characters(std::string_view text, std::size_t count) {
  std::size_t at = 0;
  for (std::size_t n = 0; n < count && at < text.size(); ++n) {
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
      ++at;
    }
  }
  return at;
}

std::string hex(const TableKey& key) {
  std::string out;
  for (const std::uint8_t byte : key) {
    out += fmt::format("{:02x}", byte);
  }
  return out;
}

/// Reads "<value><stop>" at the front of `rest` and removes it; stop = 0: the end.
template <class T>
T take_number(std::string_view& rest, std::string_view stops, char& stop,
              const std::string& where) {
  T value{};
  const auto [end, ec] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  const auto used = static_cast<std::size_t>(end - rest.data());
  stop = used < rest.size() ? rest[used] : '\0';
  if (ec != std::errc{} || (stop != '\0' && stops.find(stop) == std::string_view::npos)) {
    throw InputError(where, fmt::format("\"{}\" does not go on with a number", rest.substr(0, 24)),
                     "an entry is \"key id:p,id:p;id:p,…\"");
  }
  rest.remove_prefix(std::min(used + 1, rest.size()));
  return value;
}

}  // namespace

TableKey table_key(TablePrefix prefix, std::span<const std::uint32_t> tokens,
                   std::string_view text) {
  switch (prefix) {
    case TablePrefix::kTokens: {
      std::vector<std::byte> bytes;
      for (const std::uint32_t id : tokens.first(std::min(tokens.size(), kTablePrefixLength))) {
        for (unsigned shift = 0; shift < 32; shift += 8) {
          bytes.push_back(static_cast<std::byte>((id >> shift) & 0xFFU));
        }
      }
      return sha256(bytes);
    }
    case TablePrefix::kCharacters:
      text = text.substr(0, characters(text, kTablePrefixLength));
      break;
    case TablePrefix::kBytes:
      text = text.substr(0, kTablePrefixLength);
      break;
  }
  return sha256(std::as_bytes(std::span(text.data(), text.size())));
}

void validate(const TableSpec& spec, const std::string& where) {
  const auto fail = [&](std::string_view key, std::string value, std::string_view rule) {
    throw InputError(where, fmt::format("{} = {}. Violated: {}", key, value, rule));
  };
  if (spec.digest_bits != 256 && spec.digest_bits != 64 && spec.digest_bits != 32) {
    fail("digest_bits", std::to_string(spec.digest_bits), "digest_bits is 256, 64 or 32");
  }
  if (spec.layers < 1 || spec.layers > 4096) {
    fail("layers", std::to_string(spec.layers), "1 <= layers <= 4096");
  }
  if (spec.experts < 1 || spec.experts >= kNoExpert) {
    fail("experts", std::to_string(spec.experts), "1 <= experts <= 65534");
  }
  if (spec.top_k < 1 || spec.top_k > spec.experts || spec.top_k > 255) {
    fail("top_k", std::to_string(spec.top_k), "1 <= top_k <= min(255, experts)");
  }
  for (const std::string& word : {spec.model, spec.weight_hash}) {
    if (word.empty() || word.find_first_of(" \t\r\n") != std::string::npos) {
      fail("model, weight_hash", '"' + word + '"', "a name without spaces");
    }
  }
}

TableEntryBuilder::TableEntryBuilder(std::uint32_t layers, std::uint32_t experts)
    : layers_(layers),
      experts_(experts),
      sum_(row_offset(layers, experts), 0.0),
      tokens_(layers, 0) {}

void TableEntryBuilder::add(std::uint32_t l, std::span<const std::uint16_t> experts,
                            std::span<const float> p) {
  SWITCHYARD_ASSERT(
      l < layers_ && experts.size() == p.size(),
      fmt::format("layer {} of {}, {} experts, {} p", l, layers_, experts.size(), p.size()));
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (experts[i] != kNoExpert) {
      sum_[row_offset(l, experts_, experts[i])] += static_cast<double>(p[i]);
    }
  }
  ++tokens_[l];
}

void TableEntryBuilder::finish(std::uint32_t top_k, std::vector<std::uint16_t>& ids,
                               std::vector<float>& p) const {
  ids.clear();
  p.clear();
  std::vector<std::uint16_t> order(experts_);
  for (std::uint32_t l = 0; l < layers_; ++l) {
    SWITCHYARD_ASSERT(tokens_[l] > 0 && tokens_[l] == tokens_[0] && top_k <= experts_,
                      fmt::format("layer {}: {} tokens, k {}", l, tokens_[l], top_k));
    const double* sum = sum_.data() + row_offset(l, experts_);
    for (std::uint32_t e = 0; e < experts_; ++e) {
      order[e] = static_cast<std::uint16_t>(e);
    }
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                      [&](std::uint16_t a, std::uint16_t b) {
                        return sum[a] != sum[b] ? sum[a] > sum[b] : a < b;
                      });
    for (std::uint32_t j = 0; j < top_k; ++j) {
      ids.push_back(order[j]);
      p.push_back(static_cast<float>(sum[order[j]] / static_cast<double>(tokens_[l])));
    }
  }
}

RoutingTable::RoutingTable(TableSpec spec) : spec_(std::move(spec)) {
  validate(spec_, "routing table");
}

TableKey RoutingTable::digest(const TableKey& key) const {
  TableKey out = key;
  std::fill(out.begin() + spec_.digest_bits / 8, out.end(), std::uint8_t{0});
  return out;
}

RoutingTable::Added RoutingTable::add(const TableKey& key, std::span<const std::uint16_t> ids,
                                      std::span<const float> p) {
  const std::uint64_t width = row_offset(spec_.layers, spec_.top_k);
  SWITCHYARD_ASSERT(ids.size() == width && p.size() == width,
                    fmt::format("{} ids, {} p for {}", ids.size(), p.size(), width));
  const auto [it, fresh] =
      by_digest_.emplace(digest(key), static_cast<std::uint32_t>(keys_.size()));
  if (!fresh) {
    const std::uint32_t held = it->second;
    if (keys_[held] != key) {
      ++collisions_;
      return Added::kCollision;
    }
    const auto from = static_cast<std::ptrdiff_t>(held * width);
    if (std::equal(ids.begin(), ids.end(), ids_.begin() + from) &&
        std::equal(p.begin(), p.end(), p_.begin() + from)) {
      return Added::kRepeated;
    }
    ++conflicts_;
    return Added::kConflict;
  }
  keys_.push_back(key);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  p_.insert(p_.end(), p.begin(), p.end());
  return Added::kNew;
}

std::optional<RoutingTable::Hit> RoutingTable::find(const TableKey& key) const {
  const auto it = by_digest_.find(digest(key));
  if (it == by_digest_.end()) {
    return std::nullopt;
  }
  return Hit{it->second, keys_[it->second] != key};
}

std::span<const std::uint16_t> RoutingTable::ids(std::uint32_t entry, std::uint32_t l) const {
  return std::span(ids_).subspan((std::size_t{entry} * spec_.layers + l) * spec_.top_k,
                                 spec_.top_k);
}

std::span<const float> RoutingTable::p(std::uint32_t entry, std::uint32_t l) const {
  return std::span(p_).subspan((std::size_t{entry} * spec_.layers + l) * spec_.top_k, spec_.top_k);
}

std::string RoutingTable::to_text() const {
  std::string out = fmt::format(
      "{}prefix={} digest_bits={} layers={} experts={} top_k={} model={} weight_hash={}\n", kMagic,
      text_fields::name_of(kPrefixes, spec_.prefix), spec_.digest_bits, spec_.layers, spec_.experts,
      spec_.top_k, spec_.model, spec_.weight_hash);
  for (std::uint32_t i = 0; i < keys_.size(); ++i) {
    out += hex(keys_[i]);
    for (std::uint32_t l = 0; l < spec_.layers; ++l) {
      for (std::uint32_t j = 0; j < spec_.top_k; ++j) {
        out += fmt::format("{}{}:{}", j > 0 ? ',' : (l > 0 ? ';' : ' '), ids(i, l)[j], p(i, l)[j]);
      }
    }
    out += '\n';
  }
  return out;
}

RoutingTable RoutingTable::from_text(std::string_view text, const std::string& where) {
  const auto next_line = [&text] {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return line;
  };
  const std::string first = where + ":1";
  std::string_view header = next_line();
  if (!header.starts_with(kMagic)) {
    throw InputError(first, "not a routing table",
                     "make one with switchyard inspect TRACE --build-table FILE");
  }
  header.remove_prefix(kMagic.size());
  TableSpec spec;
  const auto fields = text_fields::split(header, first);
  for (const auto& [key, value] : fields) {
    if (key == "prefix") {
      spec.prefix = text_fields::parse_name(kPrefixes, value, first, key);
    } else if (key == "digest_bits") {
      spec.digest_bits = text_fields::parse_count(value, first, key);
    } else if (key == "layers") {
      spec.layers = text_fields::parse_count(value, first, key);
    } else if (key == "experts") {
      spec.experts = text_fields::parse_count(value, first, key);
    } else if (key == "top_k") {
      spec.top_k = text_fields::parse_count(value, first, key);
    } else if (key == "model") {
      spec.model = value;
    } else if (key == "weight_hash") {
      spec.weight_hash = value;
    } else {
      throw InputError(first, fmt::format("{}: unknown key", key));
    }
  }
  if (fields.size() != kHeaderKeys.size()) {
    throw InputError(first, fmt::format("the header needs {}", fmt::join(kHeaderKeys, ", ")));
  }
  validate(spec, first);
  RoutingTable table(spec);
  std::vector<std::uint16_t> ids;
  std::vector<float> p;
  for (std::size_t number = 2; !text.empty(); ++number) {
    std::string_view line = next_line();
    const std::string at = fmt::format("{}:{}", where, number);
    TableKey key{};
    for (std::size_t i = 0; i < key.size(); ++i) {
      const char* digits = line.data() + 2 * i;
      if (line.size() < 2 * key.size() + 2 || line[2 * key.size()] != ' ' ||
          std::from_chars(digits, digits + 2, key[i], 16).ptr != digits + 2) {
        throw InputError(at, "the line does not begin with a key of 64 hex digits and a space");
      }
    }
    line.remove_prefix(2 * key.size() + 1);
    ids.clear();
    p.clear();
    const std::uint64_t width = row_offset(spec.layers, spec.top_k);
    char stop = ';';
    for (std::uint64_t i = 0; i < width; ++i) {
      const char expected = i == 0 || i % spec.top_k == 0 ? ';' : ',';
      if (stop != expected) {
        throw InputError(
            at, fmt::format("an entry has {} layers of {} experts", spec.layers, spec.top_k));
      }
      const auto id = take_number<std::uint32_t>(line, ":", stop, at);
      const auto value = take_number<float>(line, ",;", stop, at);
      const auto layer = std::span(ids).subspan(i - i % spec.top_k);
      if (id >= spec.experts ||
          std::find(layer.begin(), layer.end(), static_cast<std::uint16_t>(id)) != layer.end() ||
          !std::isfinite(value) || value < 0) {
        throw InputError(at, fmt::format("expert {} with p = {}. Violated: distinct experts below "
                                         "{} in a layer, p >= 0",
                                         id, value, spec.experts));
      }
      ids.push_back(static_cast<std::uint16_t>(id));
      p.push_back(value);
    }
    if (stop != '\0' || !line.empty()) {
      throw InputError(
          at, fmt::format("text after the {} layers of {} experts", spec.layers, spec.top_k));
    }
    if (table.add(key, ids, p) != Added::kNew) {
      throw InputError(at, "a second entry of this digest");
    }
  }
  return table;
}

RoutingTable RoutingTable::read(const std::filesystem::path& path) {
  return from_text(read_file(path), path.string());
}

}  // namespace switchyard
