// SPDX-License-Identifier: Apache-2.0
// The assumptions of the tables account and arithmetic: every number of a model file, a hardware
// file and an article that enters them.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "experiments/tables/claim_sensitivity.hpp"

namespace switchyard::tables {
namespace {

using model::ModelConfig;

std::uint64_t whole(double value) { return static_cast<std::uint64_t>(std::llround(value)); }

/// As many layers of each kind as before, in proportion and order.
void set_layers(ModelConfig& m, double value) {
  const std::uint64_t layers = whole(value);
  std::vector<model::LayerSpec> specs;
  for (std::uint64_t l = 0; l < layers; ++l) {
    specs.push_back(m.layers.at(l * m.layers.size() / layers));
  }
  m.layers = std::move(specs);
  m.num_layers = layers;
}

/// A number of a model: how to read it (0: the model has none) and to set it.
struct Field {
  std::string name;
  std::function<double(const ModelConfig&)> get;
  std::function<void(ModelConfig&, double)> set;
};

Field member(std::string name, std::uint64_t ModelConfig::*field) {
  return {std::move(name), [field](const ModelConfig& m) { return static_cast<double>(m.*field); },
          [field](ModelConfig& m, double v) { m.*field = whole(v); }};
}

std::vector<Field> fields_of(const ModelConfig& model) {
  std::vector<Field> out = {{"layers",
                             [](const ModelConfig& m) { return static_cast<double>(m.num_layers); },
                             set_layers}};
  if (model.num_heads == model.num_kv_heads) {
    Field heads = member("heads", &ModelConfig::num_heads);
    heads.set = [](ModelConfig& m, double v) { m.num_heads = m.num_kv_heads = whole(v); };
    out.push_back(std::move(heads));
  } else {
    out.push_back(member("heads", &ModelConfig::num_heads));
    out.push_back(member("heads of keys and values", &ModelConfig::num_kv_heads));
  }
  if (model.attention == model::AttentionKind::kGqa) {
    Field size = member("head size", &ModelConfig::head_dim);
    size.set = [](ModelConfig& m, double v) { m.head_dim = m.v_head_dim = whole(v); };
    out.push_back(std::move(size));
  } else {
    out.push_back(member("KV rank", &ModelConfig::kv_lora_rank));
  }
  out.push_back(member("hidden size", &ModelConfig::hidden_size));
  out.push_back(member("experts", &ModelConfig::num_experts));
  out.push_back(member("experts per token", &ModelConfig::top_k));
  out.push_back(member("expert width", &ModelConfig::expert_intermediate));
  out.push_back(member("shared expert width", &ModelConfig::shared_intermediate));
  out.push_back(member("dense width", &ModelConfig::dense_intermediate));
  out.push_back(member("vocabulary", &ModelConfig::vocab_size));
  for (std::size_t i = 0; i < model.router_hidden.size(); ++i) {
    out.push_back({fmt::format("router width {}", i + 1),
                   [i](const ModelConfig& m) { return static_cast<double>(m.router_hidden.at(i)); },
                   [i](ModelConfig& m, double v) { m.router_hidden.at(i) = whole(v); }});
  }
  std::erase_if(out, [&](const Field& f) { return f.get(model) <= 0; });
  return out;
}

/// What an article states in place of a shape, in 1e9 parameters.
std::vector<Field> stated_of(const ModelConfig& model) {
  std::vector<Field> out;
  out.reserve(model.stated.size());
  for (const auto& [key, value] : model.stated) {
    out.push_back(
        {fmt::format("B parameters stated, {}", key),
         [key](const ModelConfig& m) { return 1e-9 * static_cast<double>(m.stated.at(key)); },
         [key](ModelConfig& m, double v) { m.stated.at(key) = whole(1e9 * v); }});
  }
  return out;
}

/// A number of the inputs that is no model's.
template <typename Inputs>
struct Plain {
  std::string name;
  std::function<double(const Inputs&)> get;
  std::function<void(Inputs&, double)> set;
  bool whole = false;
  double most = std::numeric_limits<double>::infinity();
};

template <typename Inputs>
using Measure = std::function<claims::Measurements(const Inputs&)>;

template <typename Inputs>
class Builder {
 public:
  Builder(Inputs inputs, std::vector<claims::Claim> claims)
      : inputs_(std::move(inputs)), claims_(std::move(claims)) {}
  void models(std::vector<Field> (*fields)(const ModelConfig&), bool whole_numbers) {
    for (const auto& [name, config] : inputs_.models) {
      for (const Field& f : fields(config)) {
        add({fmt::format("{} of {}", f.name, name), f.get(config), whole_numbers},
            [name = name, f](Inputs& in, double v) {
              ModelConfig& m = in.models.at(name);
              f.set(m, v);
              return m.num_experts == 0 || m.top_k <= m.num_experts;
            });
      }
    }
  }
  void plain(const std::vector<Plain<Inputs>>& all) {
    for (const Plain<Inputs>& p : all) {
      add({p.name, p.get(inputs_), p.whole, p.most}, [p](Inputs& in, double v) {
        p.set(in, v);
        return true;
      });
    }
  }
  void figures(const std::vector<Figure>& all) {
    for (const Figure& f : all) {
      add({f.name, f.value, f.whole, f.most}, [name = f.name](Inputs& in, double v) {
        in.figures[name] = v;
        return true;
      });
    }
  }
  [[nodiscard]] Sensible done(Measure<Inputs> measure) && {
    Sensible out;
    out.claims = std::move(claims_);
    out.assumptions = std::move(assumptions_);
    out.measure = [inputs = std::move(inputs_), measure = std::move(measure),
                   set = std::move(set_)](std::size_t index,
                                          double value) -> std::optional<claims::Measurements> {
      Inputs changed = inputs;
      if (!set.at(index)(changed, value)) {
        return std::nullopt;
      }
      return measure(changed);
    };
    return out;
  }

 private:
  /// `set` changes a copy of the inputs; false: no sense there.
  void add(Assumption assumption, std::function<bool(Inputs&, double)> set) {
    assumptions_.push_back(std::move(assumption));
    set_.push_back(std::move(set));
  }
  Inputs inputs_;
  std::vector<claims::Claim> claims_;
  std::vector<Assumption> assumptions_;
  std::vector<std::function<bool(Inputs&, double)>> set_;
};

/// For inputs whose figures can be changed. Shapes before hardware before figures before totals
/// without a shape: the order of those alike.
template <typename Inputs>
Sensible sensible(const Inputs& inputs, const std::vector<claims::Claim>& claims,
                  const std::vector<Plain<Inputs>>& plain,
                  claims::Measurements (*measure)(const Inputs&, const std::vector<claims::Claim>&,
                                                  std::vector<Figure>*)) {
  std::vector<Figure> figures;
  (void)measure(inputs, claims, &figures);
  Builder<Inputs> builder(inputs, claims);
  builder.models(fields_of, true);
  builder.plain(plain);
  builder.figures(figures);
  builder.models(stated_of, false);
  return std::move(builder).done(
      [claims, measure](const Inputs& in) { return measure(in, claims, nullptr); });
}

}  // namespace

Sensible sensible_account(const AccountInputs& inputs, const std::vector<claims::Claim>& claims) {
  const auto field = [](const char* name, std::uint64_t AccountInputs::*at) {
    return Plain<AccountInputs>{
        name, [at](const AccountInputs& in) { return 1e-9 * static_cast<double>(in.*at); },
        [at](AccountInputs& in, double v) { in.*at = whole(1e9 * v); }};
  };
  return sensible<AccountInputs>(inputs, claims,
                                 {field("GB of a card (hgx_h100)", &AccountInputs::card_80),
                                  field("GB of a card (whatif_8x188)", &AccountInputs::card_188),
                                  field("GB of a card (whatif_16x280)", &AccountInputs::card_280)},
                                 measure_account);
}

Sensible sensible_arithmetic(const ArithmeticInputs& inputs,
                             const std::vector<claims::Claim>& claims) {
  const auto field = [](const char* name, double ArithmeticInputs::*at) {
    return Plain<ArithmeticInputs>{name, [at](const ArithmeticInputs& in) { return 1e-9 * in.*at; },
                                   [at](ArithmeticInputs& in, double v) { in.*at = 1e9 * v; }};
  };
  return sensible<ArithmeticInputs>(
      inputs, claims,
      {field("GB of a card (hgx_a100)", &ArithmeticInputs::card),
       field("GB/s of memory (hgx_a100)", &ArithmeticInputs::hbm_a100),
       field("GB/s of memory (hgx_h100)", &ArithmeticInputs::hbm_h100),
       field("GB/s of NVLink 3", &ArithmeticInputs::nvlink3),
       field("GB/s of NVLink 4", &ArithmeticInputs::nvlink4),
       field("GB/s of PCIe 4", &ArithmeticInputs::pcie4),
       field("GB/s of optical I/O", &ArithmeticInputs::optical),
       field("GB/s of NCCL, largest message", &ArithmeticInputs::nccl_largest)},
      measure_arithmetic);
}

Sensible sensible_fits(const FitsInputs& inputs, const std::vector<claims::Claim>& claims) {
  std::vector<Plain<FitsInputs>> plain;
  for (const auto& [name, cards] : inputs.hardware) {
    plain.push_back(
        {"GPUs of " + name,
         [name = name](const FitsInputs& in) {
           return static_cast<double>(in.hardware.at(name).count);
         },
         [name = name](FitsInputs& in, double v) { in.hardware.at(name).count = whole(v); }, true});
    plain.push_back(
        {fmt::format("GB of a card ({})", name),
         [name = name](const FitsInputs& in) { return 1e-9 * in.hardware.at(name).bytes; },
         [name = name](FitsInputs& in, double v) { in.hardware.at(name).bytes = 1e9 * v; }});
  }
  plain.push_back({"watermark", [](const FitsInputs& in) { return in.watermark; },
                   [](FitsInputs& in, double v) { in.watermark = v; }, false, 1});
  Builder<FitsInputs> builder(inputs, claims);
  builder.models(fields_of, true);
  builder.plain(plain);
  builder.models(stated_of, false);
  return std::move(builder).done(measure_fits);
}

}  // namespace switchyard::tables
